//! Mail: single messages (`.eml`) and mailboxes (`.mbox`).

use std::borrow::Cow;

use refrain_files::catch_quietly;

use super::limits::UNITS_MAX;
use super::mime::{self, Message, field_name, is_fold};
use super::unit::{Body, Losses, Piece, Unit, physical_lines};
use crate::markdown::TITLE_BYTES_MAX;
use crate::notes::report::SkipReason;

pub(super) fn read(name: &str, bytes: &[u8], losses: &mut Losses) -> Result<Vec<Unit>, SkipReason> {
    let start = bytes.len() - bytes.trim_ascii_start().len();
    let no_header = SkipReason::Broken { what: "no mail header", offset: start as u64 };
    Ok(vec![message(name, &bytes[start..], start, losses).ok_or(no_header)?])
}

/// Reads a mailbox. A message without a header, and one at which the decoder panics, is left out.
pub(super) fn read_mailbox(name: &str, bytes: &[u8], losses: &mut Losses) -> Result<Vec<Unit>, SkipReason> {
    let mut starts = message_starts(bytes);
    if starts.is_empty() {
        return Err(SkipReason::Broken { what: "no line `From ` at the start of a mailbox", offset: 0 });
    }
    if let Some(&(separator, _)) = starts.get(UNITS_MAX) {
        losses.add(SkipReason::Limit { what: "messages", limit: UNITS_MAX as u64, offset: separator as u64 });
    }
    let ends: Vec<usize> =
        starts.iter().skip(1).map(|&(separator, _)| separator).chain([bytes.len()]).collect();
    starts.truncate(UNITS_MAX);
    let mut units = Vec::new();
    for (&(_, start), end) in starts.iter().zip(ends) {
        let unquoted = unquoted(&bytes[start..end]);
        let mut losses_of_message = Losses::default();
        let read = || message(name, &unquoted, start, &mut losses_of_message);
        let what = match catch_quietly(read) {
            Ok(Some(unit)) => {
                // A place belongs to the bytes of the file, also if quotes were removed.
                let body = match unit.body {
                    Body::Decoded(pieces) => Body::Decoded(
                        pieces.into_iter().map(|piece| Piece { place: start..end, ..piece }).collect(),
                    ),
                    verbatim => verbatim,
                };
                units.push(Unit { body, ..unit });
                losses.append(losses_of_message);
                continue;
            }
            Ok(None) => "a message without a header",
            Err(_) => "a message at which the decoder panicked",
        };
        losses.add(SkipReason::Broken { what, offset: start as u64 });
    }
    Ok(units)
}

/// Offsets of the separator lines and of the messages after them: a line `From …` at the start of the file (RFC 4155), and
/// after an empty line where a header follows, because a paragraph may begin with the word too.
fn message_starts(bytes: &[u8]) -> Vec<(usize, usize)> {
    let mut starts = Vec::new();
    let mut is_behind_empty = true;
    let mut lines = physical_lines(bytes).peekable();
    while let Some((place, line)) = lines.next() {
        if is_behind_empty && line.starts_with(b"From ") {
            let start = lines.peek().map_or(bytes.len(), |(next, _)| next.start);
            if place.start == 0 || is_header(line, &bytes[start..]) {
                starts.push((place.start, start));
            }
        }
        is_behind_empty = line.trim_ascii().is_empty();
    }
    starts
}

/// Fields of which every message has one.
const FIELDS: [&[u8]; 10] = [
    b"from",
    b"to",
    b"subject",
    b"date",
    b"message-id",
    b"received",
    b"return-path",
    b"delivered-to",
    b"mime-version",
    b"sender",
];

/// Whether a message follows a line `From …`: fields up to an empty line, one of them of [`FIELDS`]. Behind a line with a
/// time, as programs write it, one field of any name is enough.
fn is_header(separator: &[u8], bytes: &[u8]) -> bool {
    let is_digit = |at: usize, pair: &[u8]| pair.get(at).is_some_and(u8::is_ascii_digit);
    let has_time = separator
        .windows(6)
        .any(|time| time[2] == b':' && time[5] == b':' && [0, 1, 3, 4].iter().all(|&at| is_digit(at, time)));
    let mut n_fields = 0;
    let mut has_known = false;
    for (_, line) in physical_lines(bytes) {
        // As for the line before a separator: no scan goes beyond the next candidate.
        if line.trim_ascii().is_empty() {
            return has_known;
        }
        match field_name(line) {
            Some(_) if has_time => return true,
            Some(name) => {
                n_fields += 1;
                has_known |= FIELDS.iter().any(|field| field.eq_ignore_ascii_case(name));
            }
            // Programs quote the separator of a message that was one in another mailbox.
            None if line.starts_with(b">From ") => {}
            None if n_fields > 0 && is_fold(line) => {}
            None => return false,
        }
    }
    has_known
}

/// A message without the quotes of mailboxes: a line `>From ` stands for `From `, `>>From ` for `>From `.
fn unquoted(message: &[u8]) -> Cow<'_, [u8]> {
    let is_quoted = |line: &[u8]| {
        let n_quotes = line.iter().take_while(|&&byte| byte == b'>').count();
        n_quotes > 0 && line[n_quotes..].starts_with(b"From ")
    };
    if !physical_lines(message).any(|(_, line)| is_quoted(line)) {
        return Cow::Borrowed(message);
    }
    let mut plain = Vec::with_capacity(message.len());
    let lines = message.split_inclusive(|&byte| byte == b'\n');
    lines.for_each(|line| plain.extend_from_slice(if is_quoted(line) { &line[1..] } else { line }));
    Cow::Owned(plain)
}

fn message(name: &str, bytes: &[u8], offset: usize, losses: &mut Losses) -> Option<Unit> {
    let Message { subject, date, mut text } = mime::read(bytes, offset, losses)?;
    let title = subject.unwrap_or_else(|| name.to_owned());
    // Passages have the start of a title, and none is made of an empty text.
    if title.len() > TITLE_BYTES_MAX || text.trim().is_empty() {
        text.insert_str(0, &format!("{title}\n"));
    }
    Some(Unit {
        title,
        body: Body::Decoded(vec![Piece { text, place: offset..offset + bytes.len(), date: None }]),
        date,
        tags: Vec::new(),
        page: None,
    })
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

    fn place(unit: &Unit) -> std::ops::Range<usize> {
        match &unit.body {
            Body::Decoded(pieces) => pieces[0].place.clone(),
            Body::Verbatim(_) => unreachable!("mail is decoded"),
        }
    }

    /// The message, and the number of parts that were left out with the first reason.
    fn one(mail: impl AsRef<[u8]>) -> (Unit, usize, Option<SkipReason>) {
        let mut losses = Losses::default();
        let unit = read("a", mail.as_ref(), &mut losses).unwrap().remove(0);
        (unit, losses.n, losses.first)
    }

    fn text_of(mail: impl AsRef<[u8]>) -> String {
        let (unit, n_lost, first) = one(mail);
        assert_eq!((n_lost, first), (0, None));
        text(&unit).trim().to_owned()
    }

    fn mailbox(mailbox: &[u8]) -> (Vec<Unit>, Losses) {
        let mut losses = Losses::default();
        let units = read_mailbox("a", mailbox, &mut losses).unwrap();
        (units, losses)
    }

    #[test]
    fn a_message_is_decoded() {
        let mail = b"From: =?utf-8?q?Ad=C3=A9?= <ada@example.org>\r\nTo: bo@example.org\r\nSubject: The =?utf-8?b?ZMOkbW1lcg==?=\r\n\
            Date: Wed, 1 May 2024 12:00:00 +0200\r\nContent-Type: text/plain; charset=iso-8859-1\r\n\
            Content-Transfer-Encoding: quoted-printable\r\n\r\nGr=FC=DFe\r\n";
        let (unit, ..) = one(mail);
        assert_eq!((unit.title.as_str(), unit.date), ("The dämmer", Some(1_714_557_600)));
        assert_eq!(text(&unit), "From: Adé <ada@example.org>\nTo: bo@example.org\n\nGrüße\n");
    }

    #[test]
    fn headers_are_unfolded_and_words_decoded() {
        let header = "Subject: =?utf-8?q?one_?=\r\n =?utf-8?q?two?= three\r\n\tfour =? five\r\nFROM : \"Voss, Ada\"\r\n <ada@x>, bo@x (Bo)\r\n\r\nhi";
        let (unit, ..) = one(header);
        assert_eq!(unit.title, "one two three four =? five");
        assert_eq!(text(&unit), "From: Voss, Ada <ada@x>, bo@x (Bo)\n\nhi");
        // A line that is no field is skipped inside a header, and begins the body at its end.
        assert_eq!(one("From x y\nSubject: s\n\nhi").0.title, "s");
        assert_eq!(text_of("Subject: s\nodd line\nTo: b\n\nhi"), "To: b\n\nhi");
        assert_eq!(text_of("Subject: s\nHello there.\nBye."), "Hello there.\nBye.");
        assert_eq!(text_of("Subject: only a subject"), "only a subject");
        let long = "word ".repeat(100);
        assert!(text_of(format!("Subject: {long}last\n\nhi")).contains("word last\n"));
        assert!(read("a", b"no header\n\nx", &mut Losses::default()).is_err());
    }

    #[test]
    fn html_becomes_text_and_attachments_are_left_out() {
        let mail = b"Subject: s\nContent-Type: multipart/mixed; boundary=b\n\npreamble\n--b\nContent-Type: text/html\n\n<p>Hello <b>Ada</b></p>\n\
            --b\nContent-Type: application/pdf\nContent-Disposition: attachment\n\nSECRET\n--b\n\
            Content-Type: text/plain; name=x.txt\n\nSECRET\n--b--\nepilogue";
        assert_eq!(text_of(mail), "Hello Ada");
    }

    #[test]
    fn of_alternatives_the_first_with_text_is_read() {
        let mail = |parts: &[&str]| {
            let parts: String = parts.iter().map(|part| format!("--b\r\n{part}\r\n")).collect();
            format!(
                "Subject: s\r\nContent-Type: Multipart/ALTERNATIVE;\r\n boundary=\"b\"\r\n\r\n{parts}--b--\r\n"
            )
        };
        let html = "Content-Type: text/html\r\n\r\n<p>html</p>";
        assert_eq!(text_of(mail(&["\r\nplain", html])), "plain");
        assert_eq!(text_of(mail(&[html, "\r\nplain"])), "plain");
        assert_eq!(text_of(mail(&["\r\n \r\n", html])), "html");
        let mixed = "Content-Type: multipart/mixed; boundary=c\r\n\r\n--c\r\n\r\none\r\n--c\r\nContent-Type: text/html\r\n\r\n<p>two\r\n--c--";
        assert_eq!(text_of(mail(&[html, mixed])), "one\n\ntwo");
        let other = |kind: &str| format!("Content-Type: text/{kind}\r\n\r\n{kind}");
        assert_eq!(text_of(mail(&[&other("x-amp-html"), &other("calendar"), html])), "html");
        assert_eq!(text_of(mail(&[&other("calendar"), &other("enriched")])), "enriched");
        assert_eq!(text_of("Subject: s\nContent-Type: text\n\nwithout a subtype"), "without a subtype");
        // Neither an end nor a boundary: the text is there all the same.
        assert_eq!(
            text_of("Subject: s\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\none\n--b\n\ntwo\n"),
            "one\n\ntwo"
        );
        assert_eq!(
            text_of("Subject: s\nContent-Type: multipart/mixed; boundary=b\n\nno boundary"),
            "no boundary"
        );
        assert_eq!(text_of("Subject: s\nContent-Type: multipart/mixed\n\n--b\n\none"), "--b\n\none");
        assert_eq!(
            text_of("Subject: s\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\n--bx\n-- b\none\n--b--"),
            "--bx\n-- b\none"
        );
    }

    #[test]
    fn forwarded_messages_are_read() {
        let inner = "Subject: inner\nFrom: bo@x\nContent-Type: text/plain\n\nforwarded";
        let outer = |encoding: &str, inner: &str| {
            format!(
                "Subject: outer\nContent-Type: multipart/mixed; boundary=b\n\n--b\n\nsee below\n--b\n\
                content-TYPE: Message/RFC822\nContent-Disposition: attachment{encoding}\n\n{inner}\n--b--\n"
            )
        };
        let read = "see below\n\nSubject: inner\nFrom: bo@x\n\n\nforwarded";
        assert_eq!(text_of(outer("", inner)), read);
        let base64 = "U3ViamVjdDogaW5uZXIKRnJvbTogYm9AeApDb250ZW50LVR5cGU6IHRleHQvcGxhaW4KCmZvcndhcmRlZA==";
        assert_eq!(text_of(outer("\nContent-Transfer-Encoding: base64", base64)), read);
        let digest = format!(
            "Subject: d\nContent-Type: multipart/digest; boundary=b\n\n--b\n\n{inner}\n--b\n\n{inner}\n--b--"
        );
        assert_eq!(text_of(digest).matches("forwarded").count(), 2);
    }

    #[test]
    fn a_damaged_encoding_loses_no_text() {
        let mail = |encoding: &str, body: &str| {
            format!("Subject: s\nContent-Transfer-Encoding: {encoding}\n\n{body}")
        };
        assert_eq!(
            text_of(mail("BASE64", "aGVs\nbG8g\n\n_____\nThe list's footer, in clear.")),
            "hello _____\nThe list's footer, in clear."
        );
        assert_eq!(text_of(mail("quoted-printable", "a=ZZ b")), "a=ZZ b");
        assert_eq!(text_of(mail("unknown", "text")), "text");
        assert_eq!(text_of("Subject: s\nContent-Type: text/plain; charset=us-ascii\n\nGrüße"), "Grüße");
        assert_eq!(text_of("Subject: s\nContent-Type: text/plain; charset=no-such\n\nGrüße"), "Grüße");
        assert_eq!(text_of(b"Subject: s\n\nGr\xfc\xdfe"), "Gr\u{fffd}\u{fffd}e");
    }

    #[test]
    fn depth_and_number_of_parts_have_limits() {
        let limit = |what, limit, offset| Some(SkipReason::Limit { what, limit, offset });
        let what = "parts and messages in each other";
        for (header, is_message) in [
            ("Content-Type: message/rfc822\n\n", true),
            ("CONTENT-type:\r\n\tMessage/(x)rfc822\r\n (y)\r\n\r\n", false),
            ("Content-Type: message/global\nContent-Transfer-Encoding: 8bit\n\n", true),
            ("Content-Type: multipart/digest; boundary=a\n\n--a\n\n", false),
            ("Content-Type: multipart/mixed; boundary=a\n\n--a\n", false),
        ] {
            let (_, n_lost, first) = one(format!("{}x", header.repeat(100_000)));
            assert!(n_lost <= 1, "{header}");
            if is_message {
                assert_eq!(first, limit(what, 16, 17 * header.len() as u64), "{header}");
            }
        }
        let nested: String =
            (0..3000).map(|i| format!("Content-Type: multipart/mixed; boundary=b{i}\n\n--b{i}\n")).collect();
        assert_eq!(one(nested).1, 1);
        let many = format!(
            "Subject: s\nContent-Type: multipart/mixed; boundary=a\n\n{}",
            "--a\n\nx\n".repeat(100_000)
        );
        let (unit, n_lost, first) = one(many);
        assert_eq!((n_lost, first), (1, limit("parts", 1000, 0)));
        assert_eq!(text(&unit).matches('x').count(), 999);
        // Encoded messages in each other.
        let mut mail = "Subject: s\n\nx".to_owned();
        for _ in 0..20 {
            let quoted = mail.replace('=', "=3D");
            mail = format!(
                "Content-Type: message/rfc822\nContent-Transfer-Encoding: quoted-printable\n\n{quoted}"
            );
        }
        assert_eq!(one(mail).1, 1);
    }

    #[test]
    fn a_mailbox_is_divided_at_its_separators() {
        let mail = b"From a Wed May 1\nSubject: one\n\nFirst.\nFrom here on.\n\nFrom b Thu\nSubject: two\n\nSecond.\n";
        let (units, losses) = mailbox(mail);
        let titles: Vec<_> = units.iter().map(|unit| unit.title.as_str()).collect();
        assert_eq!((titles, losses.n), (vec!["one", "two"], 0));
        assert_eq!(&mail[place(&units[1])], b"Subject: two\n\nSecond.\n");
        assert!(read_mailbox("a", b"Subject: one\n", &mut Losses::default()).is_err());
    }

    #[test]
    fn only_a_header_makes_a_separator() {
        let separator = "From ada@example.org Wed May  1 12:00:00 2024\r\n";
        let body = "First.\r\n\r\nFrom the deck we saw whales.\r\nThey were grey.\r\n\r\nFrom there: on\r\nNote: bring shoes\r\n\r\n\
            From the sea\r\n\r\n>From quoted\r\n>>From twice\r\n > From not\r\n\r\nFrom last";
        let mail = format!(
            "{separator}Content-Length: 3\r\nSubject: one\r\n\r\n{body}\r\n\r\n{separator}X-Odd: 1\r\n\r\nSecond.\r\n"
        );
        let (units, losses) = mailbox(mail.as_bytes());
        assert_eq!((units.len(), losses.n), (2, 0));
        let plain = body.replace("\r\n", "\n").replace("\n>From", "\nFrom").replace(">>From", ">From");
        assert_eq!(text(&units[0]).trim(), plain);
        assert_eq!(
            units.iter().map(|unit| &mail[place(unit)]).collect::<String>(),
            mail.replace(separator, "")
        );
        // A quoted separator, a folded field and a broken line may stand in a header.
        let (units, _) = mailbox(
            format!("{separator}\nx\n\n{separator}>From b Thu\nSubject: a\n b\nbroken\nTo: c\n\nx")
                .as_bytes(),
        );
        assert_eq!(units.iter().map(|unit| unit.title.as_str()).collect::<Vec<_>>(), ["a b"]);
    }

    /// A line of a space ends a header, as it ends a message: otherwise each of these lines is a candidate whose header has all later
    /// ones, and reading takes the square of their number.
    #[test]
    fn a_header_ends_at_a_line_of_white_space() {
        let mail = format!("From a\nA: b\n\n{}", "From :x\nA: b\n \n".repeat(200_000));
        let (units, losses) = mailbox(mail.as_bytes());
        assert_eq!(units.len() + losses.n, 1);
        assert!(!is_header(b"From :x", b"A: b\n \nTo: c\n\n"));
    }

    #[test]
    fn a_message_without_a_header_is_reported() {
        let (units, losses) = mailbox(b"From a\n\nno header\n\nFrom b\nTo: x\n\nSecond.\n");
        assert_eq!((units.len(), losses.n), (1, 1));
        assert_eq!(losses.first, Some(SkipReason::Broken { what: "a message without a header", offset: 7 }));
    }
}
