//! Calendars: each event (`VEVENT`), to-do (`VTODO`) and journal entry (`VJOURNAL`) is a unit.
//!
//! Lines are unfolded as bytes (RFC 5545, 3.1), because a fold may lie inside a character. Components are counted, not
//! nested, so that the depth has no limit.

use std::borrow::Cow;
use std::ops::Range;

use super::limits::{EVENT_VALUES_MAX, UNITS_MAX};
use super::mime::is_fold;
use super::parse_date;
use super::unit::{Body, Losses, Piece, Unit, physical_lines, sorted};
use crate::markdown::TITLE_BYTES_MAX;
use crate::notes::report::SkipReason;

/// Components with text for the user.
const KINDS: [&str; 3] = ["VEVENT", "VTODO", "VJOURNAL"];

/// Properties in an event's text, in their order, with the words before their values.
const PROPERTIES: [(&str, &str); 11] = [
    ("DTSTART", "Starts: "),
    ("DTEND", "Ends: "),
    ("DUE", "Due: "),
    ("LOCATION", "Location: "),
    ("ORGANIZER", "Organizer: "),
    ("ATTENDEE", "Attendee: "),
    ("RRULE", "Repeats: "),
    ("CONTACT", "Contact: "),
    ("URL", "URL: "),
    ("DESCRIPTION", ""),
    ("COMMENT", ""),
];

/// Reads a calendar. An event that does not end is read up to the next one; lines that are no property are left out.
pub(super) fn read(name: &str, bytes: &[u8], losses: &mut Losses) -> Result<Vec<Unit>, SkipReason> {
    let mut units = Vec::new();
    let mut open: Option<Event> = None;
    let mut is_calendar = false;
    let mut finish = |open: &mut Option<Event>, end: Option<usize>, losses: &mut Losses| {
        let Some(event) = open.take() else { return };
        if end.is_none() || event.n_open > 0 {
            let what = "an event without its end";
            losses.add(SkipReason::Broken { what, offset: event.place.start as u64 });
        }
        let end = end.unwrap_or(event.place.end);
        if units.len() == UNITS_MAX {
            let offset = event.place.start as u64;
            losses.add(SkipReason::Limit { what: "events", limit: UNITS_MAX as u64, offset });
        } else {
            units.extend(event.into_unit(name, end));
        }
    };
    for (place, line) in unfolded(bytes) {
        let offset = place.start as u64;
        let text = String::from_utf8_lossy(&line);
        let Some(property) = Property::of(&text) else {
            if is_calendar && !text.trim().is_empty() {
                losses.add(SkipReason::Broken { what: "a line without a property", offset });
            }
            continue;
        };
        let component = property.value.trim();
        let is_event = KINDS.iter().any(|kind| kind.eq_ignore_ascii_case(component));
        let is_whole = component.eq_ignore_ascii_case("VCALENDAR");
        if property.is("BEGIN") {
            is_calendar |= is_whole;
            if is_event || is_whole {
                finish(&mut open, None, losses);
            }
            match &mut open {
                Some(event) => event.n_open += 1,
                None if is_event => open = Some(Event::new(component, place)),
                None => {}
            }
        } else if property.is("END") {
            match &mut open {
                Some(event) if event.kind.eq_ignore_ascii_case(component) => {
                    finish(&mut open, Some(place.end), losses)
                }
                Some(_) if is_event || is_whole => finish(&mut open, None, losses),
                Some(event) => event.n_open = event.n_open.saturating_sub(1),
                None => {}
            }
        } else if let Some(event) = &mut open {
            event.place.end = place.end;
            // Those of an alarm in the event belong to the alarm.
            if event.n_open == 0 {
                if let Cow::Owned(_) = text {
                    losses.add(SkipReason::NotText { offset });
                }
                event.add(&property, offset, losses);
            }
        }
    }
    finish(&mut open, None, losses);
    if units.is_empty() && !is_calendar {
        return Err(SkipReason::Broken { what: "no line BEGIN:VCALENDAR", offset: 0 });
    }
    Ok(units)
}

/// Lines without their folds, and their places.
fn unfolded(bytes: &[u8]) -> impl Iterator<Item = (Range<usize>, Cow<'_, [u8]>)> {
    let mut lines = physical_lines(bytes).peekable();
    std::iter::from_fn(move || {
        let (mut place, line) = lines.next()?;
        let mut line = Cow::Borrowed(line);
        while let Some((folded, rest)) = lines.next_if(|(_, line)| is_fold(line)) {
            line.to_mut().extend_from_slice(&rest[1..]);
            place.end = folded.end;
        }
        Some((place, line))
    })
}

/// `NAME;PARAMETER=VALUE:VALUE`.
struct Property<'a> {
    name: &'a str,
    parameters: &'a str,
    value: &'a str,
}

impl<'a> Property<'a> {
    fn of(line: &'a str) -> Option<Self> {
        let end = line.find([':', ';'])?;
        let (name, rest) = line.split_at(end);
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let name = name.trim();
        if name.is_empty() || !name.bytes().all(is_name) {
            return None;
        }
        // A quoted parameter may contain a colon. A quote without its end does not hide the value.
        let mut is_quoted = false;
        let colon = rest.bytes().position(|byte| {
            is_quoted ^= byte == b'"';
            byte == b':' && !is_quoted
        });
        let (parameters, value) = rest.split_at(colon.or_else(|| rest.find(':'))?);
        Some(Self { name, parameters, value: &value[1..] })
    }

    fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// The name of a person.
    fn common_name(&self) -> Option<&'a str> {
        let mut is_quoted = false;
        let mut parameters = self.parameters.split(|char: char| {
            is_quoted ^= char == '"';
            char == ';' && !is_quoted
        });
        let name = parameters.find_map(|parameter| {
            let (key, value) = parameter.split_once('=')?;
            key.trim().eq_ignore_ascii_case("CN").then(|| value.trim().trim_matches('"').trim())
        });
        name.filter(|name| !name.is_empty())
    }

    /// The value for a reader.
    fn text(&self) -> String {
        let text = unescaped(self.value);
        if !self.is("ATTENDEE") && !self.is("ORGANIZER") {
            return readable(&text);
        }
        let address = match text.get(..7) {
            Some(scheme) if scheme.eq_ignore_ascii_case("mailto:") => text[7..].to_owned(),
            _ => text,
        };
        match self.common_name() {
            Some(name) if name != address => format!("{name} <{address}>"),
            _ => address,
        }
    }
}

/// A value without the escapes of texts.
fn unescaped(value: &str) -> String {
    let mut text = String::with_capacity(value.len());
    let mut chars = value.chars();
    while let Some(char) = chars.next() {
        match (char, char == '\\') {
            (_, true) => match chars.next() {
                Some('n' | 'N') => text.push('\n'),
                Some(escaped @ ('\\' | ',' | ';' | ':' | '"')) => text.push(escaped),
                Some(other) => text.extend(['\\', other]),
                None => text.push('\\'),
            },
            // A zero byte would make the text a binary file's.
            ('\0', _) => text.push(char::REPLACEMENT_CHARACTER),
            _ => text.push(char),
        }
    }
    text
}

/// A component of [`KINDS`].
struct Event {
    kind: String,
    place: Range<usize>,
    /// Components that are open in it.
    n_open: usize,
    title: Option<String>,
    /// The values of [`PROPERTIES`].
    values: [Vec<String>; PROPERTIES.len()],
    /// Of `DTSTART`, `DUE` and `DTSTAMP`.
    dates: [Option<i64>; 3],
    tags: Vec<String>,
}

impl Event {
    fn new(kind: &str, place: Range<usize>) -> Self {
        Self {
            kind: kind.to_owned(),
            place,
            n_open: 0,
            title: None,
            values: Default::default(),
            dates: [None; 3],
            tags: Vec::new(),
        }
    }

    fn add(&mut self, property: &Property<'_>, offset: u64, losses: &mut Losses) {
        if property.value.trim().is_empty() {
            return;
        }
        if let Some(at) = ["DTSTART", "DUE", "DTSTAMP"].iter().position(|name| property.is(name)) {
            self.dates[at] = self.dates[at].or_else(|| parse_date(property.value));
        }
        if property.is("SUMMARY") {
            self.title.get_or_insert_with(|| unescaped(property.value));
        } else if property.is("CATEGORIES") {
            let mut is_escaped = false;
            let categories = property.value.split(|char: char| {
                let divides = char == ',' && !is_escaped;
                is_escaped = char == '\\' && !is_escaped;
                divides
            });
            let tags = categories.map(|tag| unescaped(tag).trim().to_lowercase());
            self.tags.extend(tags.filter(|tag| !tag.is_empty()));
        } else if let Some(at) = PROPERTIES.iter().position(|(name, _)| property.is(name)) {
            if self.values[at].len() == EVENT_VALUES_MAX {
                let limit = EVENT_VALUES_MAX as u64;
                losses.add(SkipReason::Limit { what: "values of a property", limit, offset });
                return;
            }
            self.values[at].push(property.text());
        }
    }

    /// `None` if it has neither title nor text.
    fn into_unit(self, name: &str, end: usize) -> Option<Unit> {
        let values = PROPERTIES.iter().zip(&self.values);
        let lines = values
            .flat_map(|(&(_, label), values)| values.iter().map(move |value| format!("{label}{value}")));
        // An event without details is found by its summary, and passages have only the start of a title.
        let is_long = |title: &&String| title.len() > TITLE_BYTES_MAX;
        let long = self.title.iter().filter(is_long).cloned();
        let text = long.chain(lines).collect::<Vec<_>>().join("\n");
        if text.is_empty() && self.title.is_none() {
            return None;
        }
        let title = self.title.unwrap_or_else(|| name.to_owned());
        let text = if text.is_empty() { title.clone() } else { text };
        Some(Unit {
            body: Body::Decoded(vec![Piece { text, place: self.place.start..end, date: None }]),
            title,
            date: self.dates.into_iter().flatten().next(),
            tags: sorted(self.tags),
            page: None,
        })
    }
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

    fn read_all(calendar: impl AsRef<[u8]>) -> (Vec<Unit>, usize, Option<SkipReason>) {
        let mut losses = Losses::default();
        let units = read("a", calendar.as_ref(), &mut losses).unwrap();
        (units, losses.n, losses.first)
    }

    fn titles(units: &[Unit]) -> Vec<&str> {
        units.iter().map(|unit| unit.title.as_str()).collect()
    }

    #[test]
    fn events_are_units() {
        let (units, n_lost, _) = read_all(CALENDAR);
        assert_eq!((units.len(), n_lost), (2, 0));
        assert_eq!((units[0].title.as_str(), units[0].date), ("Dentist, Dr. Voss", Some(1_714_566_600)));
        assert_eq!(text(&units[0]), "Starts: 2024-05-01 12:30\nBring the X-rays.\nBe early.");
        assert_eq!(units[0].tags, ["health", "teeth"]);
        assert_eq!(text(&units[1]), "Alone");
    }

    #[test]
    fn properties_are_read_in_any_spelling() {
        let event = "begin:vevent\nsummary;language=\"a:b;c\":Tea\\; cake\\\\\ndtstart;value=date:20240501\n\
            attendee;cn=\"Voss; Ada\";role=x:MAILTO:ada@x\norganizer:mailto:bo@x\ncategories:a\\,b,C\ndescription;x=\"open:no end\nend:VEVENT\n";
        let (units, n_lost, _) = read_all(event);
        assert_eq!((titles(&units), n_lost), (vec!["Tea; cake\\"], 0));
        assert_eq!(
            text(&units[0]),
            "Starts: 2024-05-01\nOrganizer: bo@x\nAttendee: Voss; Ada <ada@x>\nno end"
        );
        assert_eq!(units[0].tags, ["a,b", "c"]);
        let long = "word ".repeat(100);
        let (units, ..) = read_all(format!("BEGIN:VEVENT\nSUMMARY:{long}last\nLOCATION:x\nEND:VEVENT"));
        assert!(text(&units[0]).contains("word last\nLocation: x"));
    }

    #[test]
    fn folds_lie_anywhere_and_places_stay_those_of_the_file() {
        for (end, fold) in [("\r\n", "\r\n "), ("\n", "\n "), ("\r\n", "\r\n\t"), ("\n", "\n\t")] {
            let plain = CALENDAR.replace("\r\n s", "s").replace("Dentist", "Zähne 語𝄞").replace("\r\n", end);
            // A fold behind every byte.
            let folded: Vec<u8> = plain
                .bytes()
                .flat_map(|byte| {
                    if byte == b'\n' || byte == b'\r' {
                        vec![byte]
                    } else {
                        [&[byte][..], fold.as_bytes()].concat()
                    }
                })
                .collect();
            let (whole, ..) = read_all(&plain);
            let (units, n_lost, _) = read_all(&folded);
            assert_eq!((titles(&units), n_lost), (titles(&whole), 0));
            for (unit, whole) in units.iter().zip(&whole) {
                assert_eq!(text(unit), text(whole));
                let (Body::Decoded(here), Body::Decoded(there)) = (&unit.body, &whole.body) else {
                    unreachable!()
                };
                let lines = unfolded(&folded[here[0].place.clone()]);
                let unfolded: Vec<u8> =
                    lines.flat_map(|(_, line)| [&line[..], end.as_bytes()].concat()).collect();
                assert_eq!(String::from_utf8(unfolded).unwrap().trim_end(), &plain[there[0].place.clone()]);
            }
        }
    }

    #[test]
    fn damage_costs_at_most_its_event() {
        let event = |title: &str| format!("BEGIN:VEVENT\r\nSUMMARY:{title}\r\nEND:VEVENT\r\n");
        let broken = |what, offset| Some(SkipReason::Broken { what, offset });
        let unclosed = format!(
            "BEGIN:VCALENDAR\r\nBEGIN:VEVENT\r\nSUMMARY:one\r\n{}END:VCALENDAR\r\n{}",
            event("two"),
            event("three")
        );
        let (units, n_lost, first) = read_all(unclosed);
        assert_eq!((titles(&units), n_lost), (vec!["one", "two", "three"], 1));
        assert_eq!(first, broken("an event without its end", 17));
        let garbage = format!(
            "BEGIN:VCALENDAR\r\n{}garbage\r\n\0\x01\r\n{}END:VALARM\r\n{}",
            event("one"),
            event("two"),
            event("three")
        );
        let (units, n_lost, first) = read_all(garbage);
        assert_eq!((titles(&units), n_lost), (vec!["one", "two", "three"], 2));
        assert_eq!(first, broken("a line without a property", 56));
        let alarm =
            "BEGIN:VEVENT\nBEGIN:VALARM\nSUMMARY:alarm\nBEGIN:X\nEND:VALARM\nSUMMARY:late\nEND:VEVENT\n";
        let (units, n_lost, _) = read_all(format!("{alarm}{}", event("two")));
        assert_eq!((titles(&units), n_lost), (vec!["two"], 1));
        let latin = [
            event("one").into_bytes(),
            b"BEGIN:VEVENT\nSUMMARY:caf\xe9 noir\nEND:VEVENT\n".to_vec(),
            event("three").into_bytes(),
        ]
        .concat();
        let (units, n_lost, first) = read_all(latin);
        assert_eq!((titles(&units), n_lost), (vec!["one", "caf\u{fffd} noir", "three"], 1));
        assert_eq!(first, Some(SkipReason::NotText { offset: 52 }));
        // Every beginning of a calendar.
        let whole = CALENDAR.find("END:VEVENT").unwrap() + "END:VEVENT".len();
        for end in 0..=CALENDAR.len() {
            let read = read("a", &CALENDAR.as_bytes()[..end], &mut Losses::default());
            let first = read.ok().and_then(|units| units.first().map(|unit| unit.title.clone()));
            assert!(end < whole || first.as_deref() == Some("Dentist, Dr. Voss"), "{end}: {first:?}");
        }
        assert!(read("a", b"no calendar", &mut Losses::default()).is_err());
    }

    #[test]
    fn depth_costs_nothing_and_values_have_a_limit() {
        let n = 300_000;
        let (units, n_lost, _) = read_all(format!("{}SUMMARY:x\nEND:VEVENT\n", "BEGIN:VEVENT\n".repeat(n)));
        assert_eq!((titles(&units), n_lost), (vec!["x"], n - 1));
        // Folded, so that no line begins with BEGIN.
        let folded = format!("BEGIN:VEVENT\nSUMMARY:x\n{}END:VEVENT\n", "BEG\n IN:A\n".repeat(n));
        assert_eq!(titles(&read_all(folded).0), ["x"]);
        let attendees = format!("BEGIN:VEVENT\n{}END:VEVENT\n", "ATTENDEE:mailto:a@x\n".repeat(2000));
        let (_, n_lost, first) = read_all(attendees);
        assert_eq!(
            (n_lost, first),
            (1000, Some(SkipReason::Limit { what: "values of a property", limit: 1000, offset: 20_013 }))
        );
    }
}
