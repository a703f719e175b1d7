//! Values in the notation of a programming language, written as JSON while they arrive.

use serde_json::Value;

use super::held::{Cursor, Held, Stop};

/// Levels of lists and objects in a value.
const DEPTH_MAX: usize = 64;

/// How values are written.
#[derive(Debug)]
pub(super) struct Dialect {
    /// Marks around texts. One that begins another is behind it.
    pub(super) quotes: &'static [&'static str],
    /// Whether texts have escapes with `\`, and keys are values.
    pub(super) is_python: bool,
}

/// Python's literals.
pub(super) static PYTHON: Dialect = Dialect { quotes: &["\"\"\"", "'''", "\"", "'"], is_python: true };

/// A value that arrives.
#[derive(Debug)]
pub(super) struct Literal {
    dialect: &'static Dialect,
    /// The brackets that are open.
    stack: Vec<char>,
    state: State,
    /// A comma that comes before another item only.
    owes_comma: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Value,
    /// Before an item of a list, or its end.
    Item,
    Key,
    /// Behind a key.
    Colon,
    /// In a text between such quotes.
    Text {
        quote: &'static str,
        is_key: bool,
    },
    /// Behind a value.
    Behind,
}

impl Literal {
    pub(super) fn new(dialect: &'static Dialect) -> Self {
        Self { dialect, stack: Vec::new(), state: State::Value, owes_comma: false }
    }

    /// Appends JSON as far as the held text decides it; `Ok` at the end of the value.
    pub(super) fn run(&mut self, held: &mut Held, json: &mut String) -> Result<(), Stop> {
        loop {
            if self.state == State::Behind && self.stack.is_empty() {
                return Ok(());
            }
            match self.state {
                State::Text { quote, is_key } => {
                    if self.text(quote, held, json)? {
                        json.push('"');
                        self.state = if is_key { State::Colon } else { State::Behind };
                    }
                }
                _ => self.structure(held, json)?,
            }
        }
    }

    /// A whole text as JSON; `None` if it is no value.
    pub(super) fn whole(dialect: &'static Dialect, text: &str) -> Option<String> {
        let (mut held, mut json) = (Held::default(), String::new());
        held.push(text.trim());
        // A number ends at another character.
        held.push("\n");
        let read = Self::new(dialect).run(&mut held, &mut json);
        (read.is_ok() && held.rest().trim().is_empty()).then_some(json)
    }

    fn structure(&mut self, held: &mut Held, json: &mut String) -> Result<(), Stop> {
        let n_spaces = held.rest().len() - held.rest().trim_start().len();
        held.skip(n_spaces);
        let mut cursor = Cursor::new(held.rest());
        let next = cursor.peek()?;
        if matches!(next, ']' | ')' | '}') && matches!(self.state, State::Behind | State::Item | State::Key) {
            if self.stack.pop() != Some(next) {
                return Err(Stop::Bad);
            }
            held.skip(1);
            json.push(if next == '}' { '}' } else { ']' });
            (self.state, self.owes_comma) = (State::Behind, false);
            return Ok(());
        }
        match self.state {
            State::Behind => {
                cursor.literal(",")?;
                self.owes_comma = true;
                self.state = if self.stack.last() == Some(&'}') { State::Key } else { State::Item };
            }
            State::Colon => {
                cursor.literal(":")?;
                json.push(':');
                self.state = State::Value;
            }
            State::Key | State::Item | State::Value => {
                let is_key = self.state == State::Key;
                if let Some(quote) = self.quote(&mut cursor)? {
                    self.comma(json);
                    json.push('"');
                    self.state = State::Text { quote, is_key };
                } else if is_key {
                    let key = cursor.run(|c| c != ':' && c != '}')?.trim_end();
                    self.comma(json);
                    json.push_str(&Value::from(key).to_string());
                    self.state = State::Colon;
                } else if matches!(next, '[' | '(' | '{') {
                    if self.stack.len() == DEPTH_MAX {
                        return Err(Stop::Bad);
                    }
                    cursor.at += 1;
                    self.comma(json);
                    json.push(if next == '{' { '{' } else { '[' });
                    self.stack.push(match next {
                        '[' => ']',
                        '(' => ')',
                        _ => '}',
                    });
                    self.state = if next == '{' { State::Key } else { State::Item };
                } else {
                    let word = self.word(&mut cursor)?;
                    self.comma(json);
                    json.push_str(&word);
                    self.state = State::Behind;
                }
            }
            State::Text { .. } => return Err(Stop::Bad),
        }
        held.skip(cursor.at);
        Ok(())
    }

    fn comma(&mut self, json: &mut String) {
        if std::mem::take(&mut self.owes_comma) {
            json.push(',');
        }
    }

    fn quote(&self, cursor: &mut Cursor<'_>) -> Result<Option<&'static str>, Stop> {
        for quote in self.dialect.quotes {
            if cursor.maybe(quote)? {
                return Ok(Some(quote));
            }
        }
        Ok(None)
    }

    /// A number, a constant, or another word, which is a text.
    fn word(&self, cursor: &mut Cursor<'_>) -> Result<String, Stop> {
        let word = match self.dialect.is_python {
            true => cursor.run(|c| c.is_alphanumeric() || "_.+-".contains(c))?,
            false => cursor.run(|c| !",}]".contains(c))?.trim_end(),
        };
        if word.is_empty() {
            return Err(Stop::Bad);
        }
        Ok(match word {
            "True" | "true" => "true".to_owned(),
            "False" | "false" => "false".to_owned(),
            "None" | "null" => "null".to_owned(),
            word => number(word).unwrap_or_else(|| Value::from(word).to_string()),
        })
    }

    /// Takes a part of a text; whether it has ended.
    fn text(&self, quote: &str, held: &mut Held, json: &mut String) -> Result<bool, Stop> {
        let rest = held.rest();
        if rest.is_empty() {
            return Err(Stop::More);
        }
        if rest.starts_with(quote) {
            held.skip(quote.len());
            return Ok(true);
        }
        if rest.starts_with('\\') && self.dialect.is_python {
            let (n_bytes, escaped) = escape(&mut Cursor::new(rest))?;
            json.push_str(&escaped);
            held.skip(n_bytes);
            return Ok(false);
        }
        if quote.starts_with(rest) {
            return Err(Stop::More);
        }
        let first = rest.chars().next().map_or(1, char::len_utf8);
        let is_end = |c: char| quote.starts_with(c) || c == '\\' && self.dialect.is_python;
        let n_bytes = rest[first..].find(is_end).map_or(rest.len(), |at| first + at);
        push_escaped(&held.take(n_bytes), json);
        Ok(false)
    }
}

/// Appends a text as a part of a JSON string.
pub(super) fn push_escaped(text: &str, json: &mut String) {
    let quoted = Value::from(text).to_string();
    json.push_str(&quoted[1..quoted.len() - 1]);
}

/// A number in JSON: a JSON number as it is written, and what Python allows beyond.
pub(super) fn number(word: &str) -> Option<String> {
    let is_json = |text: &str| serde_json::from_str::<serde_json::Number>(text).is_ok();
    if is_json(word) {
        return Some(word.to_owned());
    }
    let digits = word.replace('_', "");
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", digits.strip_prefix('+').unwrap_or(&digits)),
    };
    if let Some(hex) = digits.strip_prefix("0x").filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit())) {
        return Some(format!("{sign}{}", u64::from_str_radix(hex, 16).ok()?));
    }
    if !digits.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return None;
    }
    let trimmed = digits.trim_start_matches('0');
    let zero = if trimmed.starts_with(|c: char| c.is_ascii_digit()) { "" } else { "0" };
    let mut text = format!("{sign}{zero}{trimmed}");
    if text.ends_with('.') {
        text.push('0');
    }
    is_json(&text).then_some(text)
}

/// An escape of Python at the beginning of a text: its length, and the same in a JSON string.
fn escape(cursor: &mut Cursor<'_>) -> Result<(usize, String), Stop> {
    cursor.literal("\\")?;
    let kind = cursor.peek()?;
    cursor.at += kind.len_utf8();
    let mut json = String::new();
    match kind {
        'n' => json.push_str("\\n"),
        't' => json.push_str("\\t"),
        'r' => json.push_str("\\r"),
        'b' => json.push_str("\\b"),
        'f' => json.push_str("\\f"),
        '0' => json.push_str("\\u0000"),
        '\n' => {}
        '\\' | '\'' | '"' | '/' => push_escaped(kind.encode_utf8(&mut [0; 4]), &mut json),
        'x' | 'u' | 'U' => {
            let n_digits = match kind {
                'x' => 2,
                'u' => 4,
                _ => 8,
            };
            match hex(cursor, n_digits) {
                Ok(first) if (0xD800..0xDC00).contains(&first) => json.push_str(&pair(cursor, first)?),
                Ok(code) => {
                    let c = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
                    push_escaped(c.encode_utf8(&mut [0; 4]), &mut json);
                }
                Err(Stop::More) => return Err(Stop::More),
                // As Python's readers of other dialects: the letters themselves.
                Err(Stop::Bad) => push_escaped(&format!("\\{kind}"), &mut json),
            }
        }
        other => push_escaped(&format!("\\{other}"), &mut json),
    }
    Ok((cursor.at, json))
}

/// A code of exactly so many hexadecimal digits.
fn hex(cursor: &mut Cursor<'_>, n_digits: usize) -> Result<u32, Stop> {
    let rest = cursor.rest();
    let n_given = rest.bytes().take(n_digits).take_while(u8::is_ascii_hexdigit).count();
    if n_given < n_digits {
        return Err(if n_given == rest.len() { cursor.end() } else { Stop::Bad });
    }
    cursor.at += n_digits;
    u32::from_str_radix(&rest[..n_digits], 16).map_err(|_| Stop::Bad)
}

/// The character of two codes, as JSON writes one beyond 16 bits.
fn pair(cursor: &mut Cursor<'_>, first: u32) -> Result<String, Stop> {
    let mut ahead = *cursor;
    let second = ahead.literal("\\u").and_then(|()| hex(&mut ahead, 4));
    match second {
        Ok(second) if (0xDC00..0xE000).contains(&second) => {
            *cursor = ahead;
            let code = 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00);
            Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER).to_string())
        }
        Err(Stop::More) => Err(Stop::More),
        _ => Ok(char::REPLACEMENT_CHARACTER.to_string()),
    }
}
