//! JSON: a line of text per value, `key.key: value`. Its strings are decoded by serde_json; the walk has a stack of its own, so that each
//! value has a place.

use super::limits::{JSON_DEPTH_MAX, NAME_BYTES_MAX};
use super::unit::{Body, Lines, Losses, Unit};
use crate::notes::report::SkipReason;

/// Keys of a path that are shown, the nearest ones.
const KEYS_SHOWN: usize = 3;

/// What may stand next.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Value,
    ValueOrEnd,
    KeyOrEnd,
    Key,
    Colon,
    CommaOrEnd,
}

/// Reads a file of JSON, also with several values in a row. What stands before a fault is read.
pub(super) fn read(name: &str, text: &str, losses: &mut Losses) -> Result<Vec<Unit>, SkipReason> {
    let mut lines = Lines::default();
    match values(text, &mut lines, losses) {
        Ok(()) => {}
        Err(fault) if lines.is_empty() => return Err(fault),
        Err(fault) => losses.add(fault),
    }
    let body = Body::Decoded(lines.into_pieces());
    Ok(vec![Unit { title: name.to_owned(), body, date: None, tags: Vec::new(), page: None }])
}

fn values(text: &str, lines: &mut Lines, losses: &mut Losses) -> Result<(), SkipReason> {
    let bytes = text.as_bytes();
    // The open lists and objects, and the keys of the latter.
    let mut open: Vec<(u8, String)> = Vec::new();
    let mut next = Next::Value;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        if byte.is_ascii_whitespace() {
            at += 1;
            continue;
        }
        let start = at;
        let broken = || SkipReason::Broken { what: "no valid JSON", offset: start as u64 };
        let is_value = matches!(next, Next::Value | Next::ValueOrEnd);
        match byte {
            b'{' | b'[' if is_value => {
                if open.len() == JSON_DEPTH_MAX {
                    let (limit, offset) = (JSON_DEPTH_MAX as u64, at as u64);
                    return Err(SkipReason::Limit { what: "values in each other", limit, offset });
                }
                open.push((byte, String::new()));
                next = if byte == b'{' { Next::KeyOrEnd } else { Next::ValueOrEnd };
                at += 1;
                continue;
            }
            b'}' | b']' => {
                // Settings have a comma behind the last value too.
                let (opening, empty, more) = match byte {
                    b'}' => (b'{', Next::KeyOrEnd, Next::Key),
                    _ => (b'[', Next::ValueOrEnd, Next::Value),
                };
                let is_end = [Next::CommaOrEnd, empty, more].contains(&next);
                if !is_end || open.pop().is_none_or(|(of, _)| of != opening) {
                    return Err(broken());
                }
                at += 1;
            }
            b',' if next == Next::CommaOrEnd => {
                next = if open.last().is_some_and(|(of, _)| *of == b'{') { Next::Key } else { Next::Value };
                at += 1;
                continue;
            }
            b':' if next == Next::Colon => {
                next = Next::Value;
                at += 1;
                continue;
            }
            b'"' => {
                at = string_end(bytes, at).ok_or_else(broken)?;
                // Some programs write half a character, or a tab.
                let value: String = serde_json::from_str(&text[start..at])
                    .unwrap_or_else(|_| text[start + 1..at - 1].to_owned());
                match next {
                    Next::Key | Next::KeyOrEnd => {
                        if let Some((_, key)) = open.last_mut() {
                            *key = value[..value.floor_char_boundary(NAME_BYTES_MAX)].to_owned();
                        }
                        next = Next::Colon;
                        continue;
                    }
                    _ if is_value => push(&value, start..at, &open, lines, losses),
                    _ => return Err(broken()),
                }
            }
            // Settings have comments.
            b'/' => {
                at = comment_end(text, at).ok_or_else(broken)?;
                continue;
            }
            _ if is_value => {
                let is_end = |byte: &u8| byte.is_ascii_whitespace() || b",]}:[{\"".contains(byte);
                at += bytes[at..].iter().position(is_end).unwrap_or(bytes.len() - at);
                let value = &text[start..at];
                let is_number = |value: &str| {
                    value.starts_with(|first: char| first == '-' || first.is_ascii_digit())
                        && value.parse::<f64>().is_ok()
                };
                match value {
                    // The last three are no JSON, and Python writes them.
                    "null" | "NaN" | "Infinity" | "-Infinity" => {}
                    "true" | "false" => push(value, start..at, &open, lines, losses),
                    value if is_number(value) => push(value, start..at, &open, lines, losses),
                    _ => return Err(broken()),
                }
            }
            _ => return Err(broken()),
        }
        next = if open.is_empty() { Next::Value } else { Next::CommaOrEnd };
    }
    match open.is_empty() {
        true => Ok(()),
        false => Err(SkipReason::Broken { what: "no end of the JSON", offset: text.len() as u64 }),
    }
}

/// The offset behind a comment that begins at `start`.
fn comment_end(text: &str, start: usize) -> Option<usize> {
    let rest = text.get(start + 2..)?;
    match &text[start..start + 2] {
        "//" => Some(start + 2 + rest.find('\n').unwrap_or(rest.len())),
        "/*" => Some(start + 2 + rest.find("*/")? + 2),
        _ => None,
    }
}

/// The offset behind a string that begins at `start`.
fn string_end(bytes: &[u8], start: usize) -> Option<usize> {
    let mut at = start + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn push(
    value: &str,
    place: std::ops::Range<usize>,
    open: &[(u8, String)],
    lines: &mut Lines,
    losses: &mut Losses,
) {
    let value = value.trim();
    if value.is_empty() {
        return;
    }
    let mut keys: Vec<&str> = open
        .iter()
        .rev()
        .map(|(_, key)| key.as_str())
        .filter(|key| !key.is_empty())
        .take(KEYS_SHOWN)
        .collect();
    keys.reverse();
    match keys.is_empty() {
        true => lines.push(value, place, losses),
        false => lines.push(&format!("{}: {value}", keys.join(".")), place, losses),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(json: &str) -> Result<(String, usize), SkipReason> {
        let mut losses = Losses::default();
        let unit = read("a", json, &mut losses)?.remove(0);
        let Body::Decoded(pieces) = unit.body else { unreachable!("values are decoded") };
        Ok((pieces.into_iter().map(|piece| piece.text).collect::<Vec<_>>().join("\n"), losses.n))
    }

    #[test]
    fn values_have_their_keys() {
        let json = "{\"people\": [{\"name\": \"Ad\\u00e9\", \"age\": 4.50, \"x\": null}, {\"a\": {\"b\": {\"c\": true}}}, []], \"e\": {}}\n[\"one\"]";
        let lines = "people.name: Adé\npeople.age: 4.50\na.b.c: true\none";
        assert_eq!(text(json), Ok((lines.to_owned(), 0)));
        assert_eq!(text("  "), Ok((String::new(), 0)));
    }

    #[test]
    fn what_programs_write_besides_json_is_read() {
        let read = |json: &str| text(json).unwrap();
        let lines = |text: &str| (text.to_owned(), 0);
        assert_eq!(read("[\"a\\ud83d\", \"b\tc\", \"d\"]"), lines("a\\ud83d\nb\tc\nd"));
        assert_eq!(read("{\"a\": NaN, \"b\": -Infinity, \"c\": 1e999, \"d\": 2}"), lines("c: 1e999\nd: 2"));
        assert_eq!(read("// s\n{\"a\": /* é */ 1, // t\n\"b\": 2,}"), lines("a: 1\nb: 2"));
        // Values before the limit.
        let deep = format!("[\"a\", {}", "[".repeat(200));
        assert_eq!(read(&deep), ("a".to_owned(), 1));
    }

    #[test]
    fn broken_and_deep_files_are_refused() {
        let limit = SkipReason::Limit { what: "values in each other", limit: 128, offset: 128 };
        assert_eq!(text(&"[".repeat(1_000_000)), Err(limit));
        let depth = format!("{}1{}", "[".repeat(128), "]".repeat(128));
        assert_eq!(text(&depth), Ok(("1".to_owned(), 0)));
        for json in [
            "{",
            "[1,]x",
            "{\"a\" 1}",
            "[}",
            "tru",
            "\"open",
            "[,1]",
            "{1:2}",
            "]",
            "1 \"\\",
            "/ no",
            "/* no",
            "1 /",
        ] {
            let read = text(json);
            assert!(read.is_err() || read.is_ok_and(|(_, n_lost)| n_lost == 1), "{json}");
        }
        assert_eq!(text("{\"a\": \"kept\", b"), Ok(("a: kept".to_owned(), 1)));
    }
}
