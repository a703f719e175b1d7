//! Mail: single messages (`.eml`) and mailboxes (`.mbox`).

use mail_parser::{Address, Message, MessageParser};

use super::{Body, Piece, Unit};
use crate::notes::report::SkipReason;

/// Maximum parts of a message that are read. A message of more parts is an attack or an archive.
const PARTS_MAX: usize = 64;

pub(super) fn read(name: &str, bytes: &[u8]) -> Result<Vec<Unit>, SkipReason> {
    let unit = message(name, bytes, 0).ok_or(SkipReason::Broken { what: "no mail header", offset: 0 })?;
    Ok(vec![unit])
}

/// Reads a mailbox. A line `From …` at the start or after an empty line begins a message (RFC 4155). Messages without a
/// header are left out.
pub(super) fn read_mailbox(name: &str, bytes: &[u8]) -> Result<Vec<Unit>, SkipReason> {
    let starts = message_starts(bytes);
    if starts.is_empty() {
        return Err(SkipReason::Broken { what: "no line `From ` at the start of a mailbox", offset: 0 });
    }
    let ends = starts.iter().skip(1).map(|&(separator, _)| separator).chain([bytes.len()]);
    let places = starts.iter().map(|&(_, start)| start).zip(ends);
    Ok(places.filter_map(|(start, end)| message(name, &bytes[start..end], start)).collect())
}

/// Offsets of the separator lines and of the messages after them.
fn message_starts(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut starts = Vec::new();
    let (mut offset, mut after_blank) = (0, true);
    for line in bytes.split_inclusive(|&byte| byte == b'\n') {
        if after_blank && line.starts_with(b"From ") {
            starts.push((offset, offset + line.len()));
        }
        after_blank = line.trim_ascii().is_empty();
        offset += line.len();
    }
    starts
}

fn message(name: &str, bytes: &[u8], offset: usize) -> Option<Unit> {
    let message = MessageParser::default().parse(bytes)?;
    // Any text parses as a message without headers.
    if message.headers().is_empty() {
        return None;
    }
    let subject = message.subject().map(str::trim).filter(|subject| !subject.is_empty());
    let mut text = String::new();
    for (label, address) in [("From", message.from()), ("To", message.to()), ("Cc", message.cc())] {
        let people = address.map(people).unwrap_or_default();
        if !people.is_empty() {
            text.push_str(&format!("{label}: {people}\n"));
        }
    }
    text.push('\n');
    text.push_str(&bodies(&message));
    Some(Unit {
        title: subject.unwrap_or(name).to_owned(),
        body: Body::Decoded(vec![Piece { text, place: offset..offset + bytes.len(), date: None }]),
        date: message.date().map(|date| date.to_timestamp()),
        tags: Vec::new(),
    })
}

/// The text parts, HTML as plain text. Attachments are left out.
fn bodies(message: &Message<'_>) -> String {
    let n_parts = message.text_body_count().min(PARTS_MAX);
    let parts = (0..n_parts).filter_map(|part| message.body_text(part));
    // Line ends as in notes.
    parts.map(|part| part.replace("\r\n", "\n")).collect::<Vec<_>>().join("\n\n")
}

/// `Ada Voss <ada@example.org>, …`
fn people(address: &Address<'_>) -> String {
    let people = address.iter().map(|person| match (person.name(), person.address()) {
        (Some(name), Some(address)) => format!("{name} <{address}>"),
        (name, address) => name.or(address).unwrap_or_default().to_owned(),
    });
    people.filter(|person| !person.is_empty()).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(unit: &Unit) -> &str {
        match &unit.body {
            Body::Decoded(pieces) => &pieces[0].text,
            Body::Verbatim(_) => unreachable!("mail is decoded"),
        }
    }

    #[test]
    fn a_message_is_decoded() {
        let mail = b"From: =?utf-8?q?Ad=C3=A9?= <ada@example.org>\r\nTo: bo@example.org\r\nSubject: The =?utf-8?b?ZMOkbW1lcg==?=\r\n\
            Date: Wed, 1 May 2024 12:00:00 +0200\r\nContent-Type: text/plain; charset=iso-8859-1\r\n\
            Content-Transfer-Encoding: quoted-printable\r\n\r\nGr=FC=DFe\r\n";
        let unit = &read("a", mail).unwrap()[0];
        assert_eq!((unit.title.as_str(), unit.date), ("The dämmer", Some(1_714_557_600)));
        assert_eq!(text(unit), "From: Adé <ada@example.org>\nTo: bo@example.org\n\nGrüße\n");
    }

    #[test]
    fn html_becomes_text_and_attachments_are_left_out() {
        let mail = b"Subject: s\nContent-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/html\n\n<p>Hello <b>Ada</b></p>\n\
            --b\nContent-Type: application/pdf\nContent-Disposition: attachment\n\nSECRET\n--b--\n";
        let unit = &read("a", mail).unwrap()[0];
        assert!(text(unit).contains("Hello Ada") && !text(unit).contains("SECRET"), "{}", text(unit));
    }

    #[test]
    fn a_mailbox_is_divided_at_its_separators() {
        let mailbox = b"From a Wed May 1\nSubject: one\n\nFirst.\nFrom here on.\n\nFrom b Thu\nSubject: two\n\nSecond.\n";
        let units = read_mailbox("a", mailbox).unwrap();
        let titles: Vec<_> = units.iter().map(|unit| unit.title.as_str()).collect();
        assert_eq!(titles, ["one", "two"]);
        let Body::Decoded(pieces) = &units[1].body else { unreachable!("mail is decoded") };
        assert_eq!(&mailbox[pieces[0].place.clone()], b"Subject: two\n\nSecond.\n");
        assert!(read_mailbox("a", b"Subject: one\n").is_err());
    }
}
