//! The values of PDF (ISO 32000, 7.3), read with a stack of their own.

use std::collections::HashMap;
use std::rc::Rc;

use super::super::limits::{PDF_DEPTH_MAX, PDF_VALUES_MAX};

/// A value. Clones share their parts.
#[derive(Debug, Clone)]
pub(super) enum Object {
    Null,
    Number(f64),
    Name(Rc<[u8]>),
    Text(Rc<[u8]>),
    List(Rc<Vec<Object>>),
    Dict(Rc<Dict>),
    Reference(u32),
    /// A word that is no value: an operator of a page, or the end of an object.
    Word(Rc<[u8]>),
}

pub(super) type Dict = HashMap<Rc<[u8]>, Object>;

impl Object {
    pub(super) fn number(&self) -> Option<f64> {
        match self {
            Self::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// A whole number that is not negative.
    pub(super) fn count(&self) -> Option<usize> {
        self.number().filter(|number| (0.0..=1e15).contains(number)).map(|number| number as usize)
    }

    pub(super) fn name(&self) -> Option<&[u8]> {
        match self {
            Self::Name(name) => Some(name),
            _ => None,
        }
    }

    pub(super) fn text(&self) -> Option<&[u8]> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// A list or dictionary that is open.
struct Open {
    is_list: bool,
    values: Vec<Object>,
}

/// Reads values from bytes.
pub(super) struct Lexer<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Lexer<'a> {
    /// The next value or word. What nests too deeply or has too many values is [`Object::Null`]. `None` at the end.
    pub(super) fn next(&mut self) -> Option<Object> {
        self.next_counted(&mut 0)
    }

    /// As [`next`](Self::next); adds the number of values that were read.
    pub(super) fn next_counted(&mut self, n_values: &mut usize) -> Option<Object> {
        let mut open: Vec<Open> = Vec::new();
        let first_value = *n_values;
        loop {
            self.skip_space();
            let &first = self.bytes.get(self.at)?;
            let second = self.bytes.get(self.at + 1).copied();
            let value = match (first, second) {
                (b'<', Some(b'<')) | (b'[', _) => {
                    self.at += if first == b'[' { 1 } else { 2 };
                    if open.len() == PDF_DEPTH_MAX {
                        return Some(Object::Null);
                    }
                    open.push(Open { is_list: first == b'[', values: Vec::new() });
                    continue;
                }
                (b'>', Some(b'>')) | (b']', _) => {
                    self.at += if first == b']' { 1 } else { 2 };
                    match open.pop() {
                        Some(closed) => closed.end(),
                        None => continue,
                    }
                }
                (b'<', _) => Object::Text(self.hexadecimal().into()),
                (b'(', _) => Object::Text(self.literal().into()),
                (b'/', _) => {
                    self.at += 1;
                    Object::Name(self.name().into())
                }
                (b'+' | b'-' | b'.' | b'0'..=b'9', _) => Object::Number(self.number()),
                (b')' | b'>' | b'{' | b'}', _) => {
                    self.at += 1;
                    continue;
                }
                _ => {
                    let word = self.run(|byte| !is_space(byte) && !is_delimiter(byte));
                    match (word, open.last_mut()) {
                        (b"R", Some(Open { values, .. })) => {
                            let number = values.len().checked_sub(2).and_then(|at| values[at].count());
                            let n_kept = values.len().saturating_sub(2);
                            // The reference stands for both.
                            *n_values -= values.len() - n_kept;
                            values.truncate(n_kept);
                            let number = number.and_then(|number| u32::try_from(number).ok());
                            number.map_or(Object::Null, Object::Reference)
                        }
                        (b"null" | b"true" | b"false", _) => Object::Null,
                        // A cut value ends where the object does.
                        (b"endobj" | b"stream" | b"endstream", Some(_)) => {
                            self.at -= word.len();
                            return Some(Object::Null);
                        }
                        (_, Some(_)) => Object::Null,
                        (word, None) => Object::Word(word.into()),
                    }
                }
            };
            *n_values += 1;
            match open.last_mut() {
                None => return Some(value),
                Some(_) if *n_values - first_value > PDF_VALUES_MAX => return Some(Object::Null),
                Some(open) => open.values.push(value),
            }
        }
    }

    /// Skips white space and comments.
    fn skip_space(&mut self) {
        while let Some(&byte) = self.bytes.get(self.at) {
            match byte {
                b'%' => {
                    let rest = &self.bytes[self.at..];
                    self.at +=
                        rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')).unwrap_or(rest.len());
                }
                byte if is_space(byte) => self.at += 1,
                _ => break,
            }
        }
    }

    fn run(&mut self, is_part: impl Fn(u8) -> bool) -> &'a [u8] {
        let start = self.at;
        let rest = &self.bytes[start..];
        self.at += rest.iter().position(|&byte| !is_part(byte)).unwrap_or(rest.len());
        &self.bytes[start..self.at]
    }

    fn number(&mut self) -> f64 {
        let run = self.run(|byte| matches!(byte, b'+' | b'-' | b'.' | b'0'..=b'9'));
        std::str::from_utf8(run).ok().and_then(|number| number.parse().ok()).unwrap_or(0.0)
    }

    fn name(&mut self) -> Vec<u8> {
        let run = self.run(|byte| !is_space(byte) && !is_delimiter(byte));
        if !run.contains(&b'#') {
            return run.to_vec();
        }
        let (mut name, mut at) = (Vec::new(), 0);
        while let Some(&byte) = run.get(at) {
            let code = || Some(hex(*run.get(at + 1)?)? << 4 | hex(*run.get(at + 2)?)?);
            let code = if byte == b'#' { code() } else { None };
            name.push(code.unwrap_or(byte));
            at += if code.is_some() { 3 } else { 1 };
        }
        name
    }

    fn hexadecimal(&mut self) -> Vec<u8> {
        self.at += 1;
        let run = self.run(|byte| byte != b'>');
        let digits: Vec<u8> = run.iter().filter_map(|&byte| hex(byte)).collect();
        self.at = (self.at + 1).min(self.bytes.len());
        digits.chunks(2).map(|pair| pair[0] << 4 | pair.get(1).unwrap_or(&0)).collect()
    }

    fn literal(&mut self) -> Vec<u8> {
        self.at += 1;
        let mut text = Vec::new();
        let mut n_open = 1;
        while let Some(&byte) = self.bytes.get(self.at) {
            self.at += 1;
            match byte {
                b'(' => n_open += 1,
                b')' => {
                    n_open -= 1;
                    if n_open == 0 {
                        break;
                    }
                }
                b'\\' => {
                    let Some(&escaped) = self.bytes.get(self.at) else { break };
                    self.at += 1;
                    let plain = match escaped {
                        b'n' => b'\n',
                        b'r' => b'\r',
                        b't' => b'\t',
                        b'b' | b'f' => b' ',
                        b'0'..=b'7' => {
                            let mut code = u32::from(escaped - b'0');
                            for _ in 0..2 {
                                let Some(&digit @ b'0'..=b'7') = self.bytes.get(self.at) else { break };
                                code = code << 3 | u32::from(digit - b'0');
                                self.at += 1;
                            }
                            code as u8
                        }
                        b'\r' | b'\n' => {
                            let is_pair = escaped == b'\r' && self.bytes.get(self.at) == Some(&b'\n');
                            self.at += usize::from(is_pair);
                            continue;
                        }
                        other => other,
                    };
                    text.push(plain);
                    continue;
                }
                _ => {}
            }
            text.push(byte);
        }
        text
    }
}

impl Open {
    fn end(self) -> Object {
        if self.is_list {
            return Object::List(Rc::new(self.values));
        }
        let mut dict = Dict::new();
        let mut values = self.values.into_iter();
        while let (Some(key), Some(value)) = (values.next(), values.next()) {
            if let Object::Name(key) = key {
                dict.insert(key, value);
            }
        }
        Object::Dict(Rc::new(dict))
    }
}

pub(super) fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\n' | b'\r' | b'\t' | b'\x0c' | 0)
}

fn is_delimiter(byte: u8) -> bool {
    b"()<>[]{}/%".contains(&byte)
}

pub(super) fn hex(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).map(|digit| digit as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<String> {
        let mut lexer = Lexer { bytes: text.as_bytes(), at: 0 };
        std::iter::from_fn(|| lexer.next()).map(|object| shown(&object)).collect()
    }

    fn shown(object: &Object) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match object {
            Object::Null => "null".to_owned(),
            Object::Number(number) => number.to_string(),
            Object::Name(name) => format!("/{}", text(name)),
            Object::Text(bytes) => format!("({})", text(bytes)),
            Object::List(list) => format!("[{}]", list.iter().map(shown).collect::<Vec<_>>().join(" ")),
            Object::Dict(dict) => {
                let mut entries: Vec<_> =
                    dict.iter().map(|(key, value)| format!("{} {}", text(key), shown(value))).collect();
                entries.sort();
                format!("<{}>", entries.join(" "))
            }
            Object::Reference(number) => format!("{number} R"),
            Object::Word(word) => text(word),
        }
    }

    #[test]
    fn values_are_read() {
        assert_eq!(
            all("<</A [1 -2.5 6 0 R]/B#20C (a\\(b(c)\\n\\101\\\nd)>> % no\n<48 656> BT /F1 12 Tf"),
            ["<A [1 -2.5 6 R] B C (a(b(c)\nAd)>", "(He`)", "BT", "/F1", "12", "Tf"]
        );
        assert_eq!(all("<</A 1 endobj 3"), ["null", "endobj", "3"]);
        assert_eq!(all("(open"), ["(open)"]);
    }

    #[test]
    fn depth_and_number_of_values_have_limits() {
        assert!(all(&"[".repeat(100_000)).iter().all(|object| object == "null"));
        assert_eq!(all(&format!("[{}", "0 ".repeat(PDF_VALUES_MAX + 2)))[0], "null");
    }
}
