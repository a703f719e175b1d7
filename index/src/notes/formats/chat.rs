//! Chats with a JSON object per line: a message, or a conversation with a list of messages.

use std::ops::Range;

use serde_json::{Map, Value};

use super::limits::UNITS_MAX;
use super::parse_date;
use super::unit::{Body, Losses, Piece, Unit, lines};
use crate::notes::report::SkipReason;

/// Keys of a message's text, author and time, and of a conversation's title and messages, as chat programs export them.
const TEXT: [&str; 5] = ["content", "text", "body", "message", "value"];
const AUTHOR: [&str; 6] = ["role", "author", "from", "sender", "name", "user"];
const TIME: [&str; 6] = ["timestamp", "time", "date", "created_at", "ts", "sent_at"];
const TITLE: [&str; 3] = ["title", "subject", "conversation"];
const MESSAGES: [&str; 3] = ["messages", "conversations", "turns"];

/// Reads a chat. Lines that are no message are left out. Messages on lines of their own form one unit; a line with a
/// list of messages is a unit of its own. The parser of JSON refuses a line that nests more than 128 values.
pub(super) fn read(name: &str, text: &str, losses: &mut Losses) -> Result<Vec<Unit>, SkipReason> {
    let mut units = Vec::new();
    let mut loose = chat(name);
    let mut first_broken = None;
    for (place, line) in lines(text) {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let Ok(Value::Object(object)) = serde_json::from_str(line) else {
            first_broken.get_or_insert(place.start);
            let what = "a line that is no JSON object, or nests more than 128 values";
            losses.add(SkipReason::Broken { what, offset: place.start as u64 });
            continue;
        };
        match find(&object, &MESSAGES).and_then(Value::as_array) {
            Some(_) if units.len() == UNITS_MAX => {
                let (limit, offset) = (UNITS_MAX as u64, place.start as u64);
                losses.add(SkipReason::Limit { what: "conversations", limit, offset });
            }
            Some(messages) => {
                let mut unit = chat(find(&object, &TITLE).and_then(Value::as_str).unwrap_or(name));
                unit.date = time(&object);
                messages
                    .iter()
                    .filter_map(Value::as_object)
                    .for_each(|message| add(&mut unit, message, &place));
                units.push(unit);
            }
            None => add(&mut loose, &object, &place),
        }
    }
    units.push(loose);
    units.retain(|unit| unit.body != Body::Decoded(Vec::new()));
    match first_broken {
        Some(offset) if units.is_empty() => {
            Err(SkipReason::Broken { what: "no line is a JSON object with a message", offset: offset as u64 })
        }
        _ => Ok(units),
    }
}

fn chat(title: &str) -> Unit {
    Unit {
        title: title.to_owned(),
        body: Body::Decoded(Vec::new()),
        date: None,
        tags: Vec::new(),
        page: None,
    }
}

fn add(unit: &mut Unit, message: &Map<String, Value>, place: &Range<usize>) {
    let Some(content) = find(message, &TEXT).map(content).filter(|text| !text.trim().is_empty()) else {
        return;
    };
    let text = match find(message, &AUTHOR).and_then(Value::as_str) {
        Some(author) => format!("{author}: {}", content.trim()),
        None => content.trim().to_owned(),
    };
    if let Body::Decoded(pieces) = &mut unit.body {
        pieces.push(Piece { text, place: place.clone(), date: time(message) });
    }
}

/// A text, or the texts of a list of parts.
fn content(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| match part {
                Value::String(text) => Some(text.as_str()),
                Value::Object(part) => find(part, &TEXT).and_then(Value::as_str),
                _ => None,
            });
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

/// A date as text, or a number of seconds or milliseconds.
fn time(object: &Map<String, Value>) -> Option<i64> {
    match find(object, &TIME)? {
        Value::String(text) => parse_date(text),
        Value::Number(number) => {
            let number = number.as_f64()?;
            // In seconds, this number is in the year 5138; in milliseconds, in 1973.
            Some(if number.abs() < 1e11 { number as i64 } else { (number / 1000.0) as i64 })
        }
        _ => None,
    }
}

fn find<'a>(object: &'a Map<String, Value>, keys: &[&str]) -> Option<&'a Value> {
    keys.iter().find_map(|&key| object.get(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(unit: &Unit) -> Vec<&str> {
        match &unit.body {
            Body::Decoded(pieces) => pieces.iter().map(|piece| piece.text.as_str()).collect(),
            Body::Verbatim(_) => unreachable!("chats are decoded"),
        }
    }

    #[test]
    fn messages_and_conversations_are_read() {
        let text = "{\"from\":\"Ada\",\"text\":\"Hi\",\"ts\":1714521600}\nbroken\n\
            {\"title\":\"Trip\",\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"When?\"}]}]}\n\
            {\"from\":\"Bo\",\"text\":\"Hello\\nthere\"}\n";
        let mut losses = Losses::default();
        let units = read("chat", text, &mut losses).unwrap();
        assert_eq!((losses.n, losses.first.is_some()), (1, true));
        assert_eq!((units[0].title.as_str(), texts(&units[0])), ("Trip", vec!["user: When?"]));
        assert_eq!(
            (units[1].title.as_str(), texts(&units[1])),
            ("chat", vec!["Ada: Hi", "Bo: Hello\nthere"])
        );
        let Body::Decoded(pieces) = &units[1].body else { unreachable!("chats are decoded") };
        assert_eq!((pieces[0].date, pieces[1].date), (Some(1_714_521_600), None));
        assert!(text[pieces[1].place.clone()].starts_with("{\"from\":\"Bo\""));
    }

    #[test]
    fn a_file_without_messages_is_refused() {
        let read = |text| read("a", text, &mut Losses::default());
        assert_eq!(read("\n\n").unwrap(), []);
        assert!(matches!(read("\nx\n"), Err(SkipReason::Broken { offset: 1, .. })));
        assert_eq!(read("{\"content\":7}\n").unwrap(), []);
    }
}
