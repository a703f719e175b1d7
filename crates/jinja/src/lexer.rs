//! Splits a source into tokens, with Jinja's rules for the white space around tags.

use super::error::{Error, ErrorKind, Result};

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Token {
    /// Text between tags.
    Text(String),
    /// `{%`.
    BlockBegin,
    /// `%}`.
    BlockEnd,
    /// `{{`.
    PrintBegin,
    /// `}}`.
    PrintEnd,
    Name(String),
    Str(String),
    Int(i64),
    Float(f64),
    /// An operator or a bracket.
    Op(&'static str),
    /// The end of the source.
    End,
}

/// Longer operators come first.
const OPERATORS: [&str; 27] = [
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", ".", ",", ":", "|", "(",
    ")", "[", "]", "{", "}", "!", ";",
];

/// All tokens with their lines; the last is [`Token::End`].
pub(super) fn tokens(source: &str) -> Result<Vec<(Token, u32)>> {
    // As in Jinja: line ends are unified, and the last one is dropped.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let source = source.strip_suffix('\n').unwrap_or(&source);
    let mut lexer = Lexer { rest: source, line: 1, at_line_start: true, out: Vec::new() };
    while !lexer.rest.is_empty() {
        lexer.text()?;
    }
    lexer.out.push((Token::End, lexer.line));
    Ok(lexer.out)
}

struct Lexer<'s> {
    rest: &'s str,
    line: u32,
    /// Whether the tag before `rest` consumed the end of its line.
    at_line_start: bool,
    out: Vec<(Token, u32)>,
}

impl Lexer<'_> {
    fn error<T>(&self, reason: impl Into<String>) -> Result<T> {
        Err(Box::new(Error { line: self.line, kind: ErrorKind::Syntax(reason.into()) }))
    }

    fn advance(&mut self, n: usize) {
        let (done, rest) = self.rest.split_at(n);
        self.line += done.bytes().filter(|&byte| byte == b'\n').count() as u32;
        self.rest = rest;
    }

    /// Reads text up to the next tag, and the tag.
    fn text(&mut self) -> Result<()> {
        let tag = self
            .rest
            .match_indices('{')
            .find(|(at, _)| matches!(self.rest.as_bytes().get(at + 1), Some(b'{' | b'%' | b'#')));
        let Some((at, _)) = tag else {
            self.push_text(self.rest);
            self.advance(self.rest.len());
            return Ok(());
        };
        let kind = self.rest.as_bytes()[at + 1];
        let sign = self.rest.as_bytes().get(at + 2).copied().filter(|sign| matches!(sign, b'-' | b'+'));
        let text = &self.rest[..at];
        let kept = match sign {
            Some(b'-') => text.trim_end(),
            None if kind != b'{' => self.without_indent(text),
            _ => text,
        };
        self.push_text(kept);
        self.advance(at + 2 + usize::from(sign.is_some()));
        match kind {
            b'#' => {
                let Some(end) = self.rest.find("#}") else { return self.error("a comment without an end") };
                let strips = self.rest[..end].ends_with('-');
                let keeps = self.rest[..end].ends_with('+');
                self.advance(end + 2);
                self.after_tag(strips, !keeps);
                Ok(())
            }
            b'%' if self.is_raw() => self.raw(),
            b'%' => self.tag(Token::BlockBegin, Token::BlockEnd),
            _ => self.tag(Token::PrintBegin, Token::PrintEnd),
        }
    }

    fn push_text(&mut self, text: &str) {
        if !text.is_empty() {
            self.out.push((Token::Text(text.to_owned()), self.line));
        }
    }

    /// `lstrip_blocks`: a tag at the beginning of its line removes the indent before it.
    fn without_indent<'t>(&self, text: &'t str) -> &'t str {
        let line = text.rfind('\n').map_or(0, |at| at + 1);
        let begins_line = line > 0 || self.at_line_start;
        if begins_line && text[line..].trim().is_empty() { &text[..line] } else { text }
    }

    /// The length of the white space after a tag: all of it, or one line end (`trim_blocks`).
    fn after_tag(&mut self, strips: bool, trims: bool) {
        let n = match () {
            () if strips => self.rest.len() - self.rest.trim_start().len(),
            () if trims => usize::from(self.rest.starts_with('\n')),
            () => 0,
        };
        self.at_line_start = self.rest[..n].ends_with('\n');
        self.advance(n);
    }

    fn is_raw(&self) -> bool {
        let rest = self.rest.trim_start();
        let Some(rest) = rest.strip_prefix("raw") else { return false };
        let rest = rest.trim_start();
        rest.starts_with("%}") || rest.starts_with("-%}") || rest.starts_with("+%}")
    }

    /// Reads the text of a `raw` block, up to `{% endraw %}`.
    fn raw(&mut self) -> Result<()> {
        let begin = self.rest.find("%}").unwrap_or(0);
        let strips = self.rest[..begin].ends_with('-');
        self.advance(begin + 2);
        self.after_tag(strips, true);
        let end = self.rest.match_indices("{%").find_map(|(at, _)| {
            let inside =
                self.rest[at + 2..].trim_start_matches(['-', '+']).trim_start().strip_prefix("endraw")?;
            let close = inside.trim_start().trim_start_matches(['-', '+']).strip_prefix("%}")?;
            Some((at, self.rest.len() - close.len()))
        });
        let Some((at, after)) = end else { return self.error("`raw` without `endraw`") };
        let tag = &self.rest[at..after];
        let text = &self.rest[..at];
        let text = if tag.starts_with("{%-") { text.trim_end() } else { self.without_indent(text) };
        let strips = tag.ends_with("-%}");
        self.push_text(text);
        self.advance(after);
        self.after_tag(strips, true);
        Ok(())
    }

    /// Reads the content of a tag.
    fn tag(&mut self, begin: Token, end: Token) -> Result<()> {
        let is_block = end == Token::BlockEnd;
        let close = if is_block { "%}" } else { "}}" };
        self.out.push((begin, self.line));
        let mut brackets = 0usize;
        loop {
            self.advance(self.rest.len() - self.rest.trim_start().len());
            let strips = self.rest.starts_with('-') && self.rest[1..].starts_with(close);
            let keeps = is_block && self.rest.starts_with('+') && self.rest[1..].starts_with(close);
            // `}}` may also end two mappings.
            if strips || keeps || (self.rest.starts_with(close) && brackets == 0) {
                self.out.push((end, self.line));
                self.advance(close.len() + usize::from(strips || keeps));
                self.after_tag(strips, is_block && !keeps);
                return Ok(());
            }
            let line = self.line;
            let token = self.token()?;
            match &token {
                Token::Op("{" | "[" | "(") => brackets += 1,
                Token::Op("}" | "]" | ")") => brackets = brackets.saturating_sub(1),
                _ => {}
            }
            self.out.push((token, line));
        }
    }

    fn token(&mut self) -> Result<Token> {
        let Some(first) = self.rest.chars().next() else { return self.error("a tag without an end") };
        if first.is_alphabetic() || first == '_' {
            let len = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(self.rest.len());
            let name = self.rest[..len].to_owned();
            self.advance(len);
            return Ok(Token::Name(name));
        }
        if first.is_ascii_digit() {
            return self.number();
        }
        if first == '\'' || first == '"' {
            return self.string(first);
        }
        match OPERATORS.into_iter().find(|operator| self.rest.starts_with(operator)) {
            Some(operator) => {
                self.advance(operator.len());
                Ok(Token::Op(operator))
            }
            None => self.error(format!("unexpected character {first:?}")),
        }
    }

    fn number(&mut self) -> Result<Token> {
        let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit() && c != '_').unwrap_or(text.len());
        let mut len = digits(self.rest);
        let mut is_float = false;
        let fraction = &self.rest[len..];
        if fraction.starts_with('.') && fraction[1..].starts_with(|c: char| c.is_ascii_digit()) {
            len += 1 + digits(&fraction[1..]);
            is_float = true;
        }
        let exponent = &self.rest[len..];
        if exponent.starts_with(['e', 'E']) {
            let sign = usize::from(exponent[1..].starts_with(['+', '-']));
            let n_digits = digits(&exponent[1 + sign..]);
            if n_digits > 0 {
                len += 1 + sign + n_digits;
                is_float = true;
            }
        }
        let text = self.rest[..len].replace('_', "");
        let token = match is_float {
            true => text.parse().ok().map(Token::Float),
            false => text.parse().ok().map(Token::Int),
        };
        let Some(token) = token else { return self.error("a number out of range") };
        self.advance(len);
        Ok(token)
    }

    /// Reads a string with Python's escapes.
    fn string(&mut self, quote: char) -> Result<Token> {
        let mut out = String::new();
        let mut chars = self.rest.char_indices().skip(1);
        while let Some((at, c)) = chars.next() {
            if c == quote {
                self.advance(at + 1);
                return Ok(Token::Str(out));
            }
            if c != '\\' {
                out.push(c);
                continue;
            }
            let Some((at, escaped)) = chars.next() else { break };
            let n_digits = match escaped {
                'x' => 2,
                'u' => 4,
                'U' => 8,
                _ => 0,
            };
            match escaped {
                'n' => out.push('\n'),
                't' => out.push('\t'),
                'r' => out.push('\r'),
                'a' => out.push('\u{7}'),
                'b' => out.push('\u{8}'),
                'f' => out.push('\u{c}'),
                'v' => out.push('\u{b}'),
                '0' => out.push('\0'),
                '\\' | '\'' | '"' => out.push(escaped),
                '\n' => {}
                'x' | 'u' | 'U' => {
                    let digits = self.rest.get(at + 1..at + 1 + n_digits);
                    let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
                    match code.and_then(char::from_u32) {
                        Some(c) => out.push(c),
                        None => return self.error("an escape that names no character"),
                    }
                    chars.nth(n_digits - 1);
                }
                other => out.extend(['\\', other]),
            }
        }
        self.error("a string without an end")
    }
}
