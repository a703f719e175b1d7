//! Lark grammars before they are compiled: their sizes, and the schemas inside them.

use crate::error::{GrammarError, GrammarKind};
use crate::json::Json;
use crate::limits::{FORCED_BYTES_MAX, LARK_LEVELS_MAX, LARK_TOKENS_MAX};
use crate::schema::{self, Numbers};

/// Checks the sizes of a grammar, and rewrites its `%json` schemas.
///
/// # Errors
/// [`GrammarError::Refused`]: it is too large; [`GrammarError::Schema`]: a schema is refused.
pub(crate) fn rewrite(text: &str, numbers: &mut Numbers) -> Result<String, GrammarError> {
    let mut out = String::with_capacity(text.len());
    let (mut n_levels, mut n_tokens, mut n_string_bytes) = (0_usize, 0_usize, 0_usize);
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let len = match first {
            '"' => {
                let len = quoted_len(rest, b'"');
                n_string_bytes += len;
                len
            }
            '#' => line_len(rest),
            '/' if rest.starts_with("//") => line_len(rest),
            '/' => {
                let len = quoted_len(rest, b'/');
                n_string_bytes += len;
                len
            }
            '%' => {
                let word = ["%json", "%regex", "%llguidance"].into_iter().find(|word| rest.starts_with(word));
                let value = word.and_then(|word| {
                    let (value, len) = Json::read_prefix(&rest[word.len()..])?;
                    Some((word, value, word.len() + len))
                });
                match value {
                    Some(("%json", schema, len)) => {
                        out.push_str("%json ");
                        out.push_str(&schema::rewrite(&schema, numbers)?.to_string());
                        rest = &rest[len..];
                        n_tokens += 1;
                        continue;
                    }
                    Some((_, _, len)) => {
                        n_string_bytes += len;
                        len
                    }
                    None => 1,
                }
            }
            '(' | '[' | '{' | ':' => {
                n_levels += 1;
                1
            }
            _ if is_name(first) => rest.find(|c| !is_name(c)).unwrap_or(rest.len()),
            _ => first.len_utf8(),
        };
        n_tokens += usize::from(!first.is_whitespace());
        out.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    let limits = [
        (n_levels, LARK_LEVELS_MAX, "rules, terminals and brackets"),
        (n_tokens, LARK_TOKENS_MAX, "literals, names and operators"),
        (n_string_bytes, FORCED_BYTES_MAX, "bytes of literals and regular expressions"),
    ];
    match limits.into_iter().find(|(given, max, _)| given > max) {
        Some((given, max, what)) => {
            let reason = format!("{given} {what} are more than {max}");
            Err(GrammarError::Refused { kind: GrammarKind::Lark, reason })
        }
        None => Ok(out),
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The length of a text in quotes, with its quotes.
fn quoted_len(text: &str, quote: u8) -> usize {
    let mut is_escaped = false;
    for (at, &byte) in text.as_bytes().iter().enumerate().skip(1) {
        match byte {
            b'\n' if quote == b'"' => return at,
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            byte if byte == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

fn line_len(text: &str) -> usize {
    text.find('\n').unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_schemas_are_rewritten() {
        let text = "start: a # %json {\"minimum\": 1}\n// %json {}\na: \"%json {\\\"\" /%json \\/ {/ %regex {\"a\": 1} \"é\"\n";
        assert_eq!(rewrite(text, &mut Numbers::new()).unwrap(), text);
        let text = "start: \"x\" %json {\"type\": \"integer\", \"minimum\": 1} | \"}\"\n";
        let rewritten = rewrite(text, &mut Numbers::new()).unwrap();
        assert!(
            rewritten.starts_with("start: \"x\" %json {\"$ref\":") && rewritten.ends_with(" | \"}\"\n"),
            "{rewritten}"
        );
    }

    #[test]
    fn large_grammars_are_refused() {
        let many = format!("start: {}\"b\"\n", "\"a\" | ".repeat(LARK_TOKENS_MAX));
        let deep: String = (0..LARK_LEVELS_MAX).map(|i| format!("a{i}: a{}\n", i + 1)).collect();
        let long = format!("start: \"{}\"\n", "x".repeat(FORCED_BYTES_MAX));
        for text in [many, format!("start: a0\n{deep}"), long] {
            let refused = rewrite(&text, &mut Numbers::new());
            assert!(
                matches!(refused, Err(GrammarError::Refused { kind: GrammarKind::Lark, .. })),
                "{refused:?}"
            );
        }
    }
}
