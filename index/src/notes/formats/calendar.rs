//! Calendars: each event (`VEVENT`), to-do (`VTODO`) and journal entry (`VJOURNAL`) is a unit.

use std::ops::Range;

use icalendar::parser::{Component, read_components, unfold};

use super::{Body, Piece, Unit, lines, parse_date, sorted};
use crate::notes::report::SkipReason;

/// Components with text for the user.
const KINDS: [&str; 3] = ["VEVENT", "VTODO", "VJOURNAL"];

/// Maximum depth of components in an event. An alarm in an event has depth 2. The parser recurses once per level.
const DEPTH_MAX: usize = 8;

/// Properties in an event's text, in their order, with the words before their values.
const PROPERTIES: [(&str, &str); 8] = [
    ("DTSTART", "Starts: "),
    ("DTEND", "Ends: "),
    ("DUE", "Due: "),
    ("LOCATION", "Location: "),
    ("ORGANIZER", "Organizer: "),
    ("ATTENDEE", "Attendee: "),
    ("RRULE", "Repeats: "),
    ("DESCRIPTION", ""),
];

/// Maximum attendees of an event in its text.
const ATTENDEES_MAX: usize = 32;

/// Reads a calendar. Components that do not parse are left out.
pub(super) fn read(name: &str, text: &str) -> Result<Vec<Unit>, SkipReason> {
    let places = components(text);
    let units: Vec<Unit> = places.iter().filter_map(|place| event(name, text, place)).collect();
    if units.is_empty() && !text.contains("BEGIN:VCALENDAR") {
        return Err(SkipReason::Broken { what: "no line BEGIN:VCALENDAR", offset: 0 });
    }
    Ok(units)
}

/// Places of the components of [`KINDS`], from `BEGIN` to `END`. One without end, or too deep, is left out.
fn components(text: &str) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    // The start of the open component, and its depth: components inside it may have any name.
    let mut open: Option<(usize, usize)> = None;
    let mut is_too_deep = false;
    for (place, line) in lines(text) {
        if let Some(begun) = line.strip_prefix("BEGIN:") {
            match &mut open {
                Some((_, depth)) => *depth += 1,
                None if KINDS.contains(&begun.trim()) => {
                    (open, is_too_deep) = (Some((place.start, 1)), false)
                }
                None => {}
            }
            is_too_deep |= open.is_some_and(|(_, depth)| depth > DEPTH_MAX);
        } else if line.starts_with("END:")
            && let Some((start, depth)) = &mut open
        {
            *depth -= 1;
            if *depth == 0 {
                if !is_too_deep {
                    places.push(*start..place.end);
                }
                open = None;
            }
        }
    }
    places
}

fn event(name: &str, text: &str, place: &Range<usize>) -> Option<Unit> {
    // The parser wants one kind of line end, and the last line ended.
    let component =
        unfold(&format!("{}\r\n", text[place.clone()].replace("\r\n", "\n").replace('\n', "\r\n")));
    // A folded line may hide a `BEGIN`, and the parser recurses.
    if nesting(&component) > DEPTH_MAX {
        return None;
    }
    let component = read_components(&component).ok()?.into_iter().next()?;
    let mut lines = Vec::new();
    for (key, label) in PROPERTIES {
        for value in values(&component, key).take(ATTENDEES_MAX) {
            let value =
                value.strip_prefix("mailto:").or(value.strip_prefix("MAILTO:")).unwrap_or(&value).to_owned();
            lines.push(format!("{label}{}", readable(&value)));
        }
    }
    let title = values(&component, "SUMMARY").next().unwrap_or_else(|| name.to_owned());
    let date =
        ["DTSTART", "DUE", "DTSTAMP"].iter().find_map(|key| parse_date(&values(&component, key).next()?));
    let categories = values(&component, "CATEGORIES").collect::<Vec<_>>().join(",").to_lowercase();
    let tags = categories.split(',').map(|tag| tag.trim().to_owned()).filter(|tag| !tag.is_empty());
    Some(Unit {
        // An event without details is found by its summary.
        body: Body::Decoded(vec![Piece {
            text: if lines.is_empty() { title.clone() } else { lines.join("\n") },
            place: place.clone(),
            date: None,
        }]),
        title,
        date,
        tags: sorted(tags.collect()),
    })
}

/// The deepest nesting of components, at most.
fn nesting(component: &str) -> usize {
    let begins = |line: &str| line.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("BEGIN:"));
    component.lines().filter(|line| begins(line.trim_start())).count()
}

/// The values of a property. The parser has removed the escapes of texts.
fn values<'a>(component: &'a Component<'_>, key: &'a str) -> impl Iterator<Item = String> + 'a {
    let properties = component.properties.iter().filter(move |property| property.name.as_str() == key);
    properties.map(|property| property.val.as_str().to_owned()).filter(|value| !value.trim().is_empty())
}

/// `20240501T123000Z` as `2024-05-01 12:30`, so that a search for the date finds it; other values unchanged.
fn readable(value: &str) -> String {
    if parse_date(value).is_none() || !value.as_bytes()[..8].iter().all(u8::is_ascii_digit) {
        return value.to_owned();
    }
    let time = value.get(9..13).filter(|time| time.bytes().all(|byte| byte.is_ascii_digit()));
    let time = time.map(|time| format!(" {}:{}", &time[..2], &time[2..])).unwrap_or_default();
    format!("{}-{}-{}{time}", &value[..4], &value[4..6], &value[6..8])
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALENDAR: &str = "BEGIN:VCALENDAR\r\nVERSION:2.0\r\nBEGIN:VEVENT\r\nSUMMARY:Dentist\\, Dr. Voss\r\n\
        DTSTART;TZID=Europe/Oslo:20240501T123000\r\nDESCRIPTION:Bring the X-ray\r\n s.\\nBe early.\r\nCATEGORIES:Health,Teeth\r\n\
        BEGIN:VALARM\r\nTRIGGER:-PT15M\r\nEND:VALARM\r\nEND:VEVENT\r\nBEGIN:VTIMEZONE\r\nTZID:x\r\nEND:VTIMEZONE\r\n\
        BEGIN:VEVENT\r\nSUMMARY:Alone\r\nEND:VEVENT\r\nEND:VCALENDAR\r\n";

    fn text(unit: &Unit) -> &str {
        match &unit.body {
            Body::Decoded(pieces) => &pieces[0].text,
            Body::Verbatim(_) => unreachable!("events are decoded"),
        }
    }

    #[test]
    fn events_are_units() {
        let units = read("a", CALENDAR).unwrap();
        assert_eq!(units.len(), 2);
        assert_eq!((units[0].title.as_str(), units[0].date), ("Dentist, Dr. Voss", Some(1_714_566_600)));
        assert_eq!(text(&units[0]), "Starts: 2024-05-01 12:30\nBring the X-rays.\nBe early.");
        assert_eq!(units[0].tags, ["health", "teeth"]);
        assert_eq!(text(&units[1]), "Alone");
    }

    #[test]
    fn a_broken_event_does_not_hide_the_others() {
        let broken = CALENDAR.replacen("SUMMARY:Dentist", "SUM\u{7f}MARY;;=:Dentist", 1);
        assert!(!read("a", &broken).unwrap().is_empty());
        assert!(read("a", "no calendar").is_err());
        let deep = format!("{}{}", "BEGIN:VEVENT\n".repeat(100), "END:VEVENT\n".repeat(100));
        assert!(components(&deep).is_empty());
        // Folded, so that no line begins with BEGIN.
        let folded = format!("BEGIN:VEVENT\n{}END:VEVENT\n", "BEG\n IN:A\n".repeat(300_000));
        assert_eq!(read("a", &format!("BEGIN:VCALENDAR\n{folded}")), Ok(Vec::new()));
    }
}
