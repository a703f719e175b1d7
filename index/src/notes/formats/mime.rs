//! The text of a message. The parts are walked with a stack of their own, within the limits of [`limits`](super::limits), because a file
//! may nest them a hundred thousand times. The crate `mail-parser` decodes what has no parts: encodings, character
//! sets, encoded words, parameters and dates.

use std::borrow::Cow;
use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use mail_parser::decoders::base64::base64_decode;
use mail_parser::decoders::charsets::map::charset_decoder;
use mail_parser::decoders::quoted_printable::quoted_printable_decode;
use mail_parser::parsers::MessageStream;

use super::html;
use super::limits::{
    MAIL_BOUNDARY_BYTES_MAX, MAIL_DEPTH_MAX, MAIL_FIELD_BYTES_MAX, MAIL_PARTS_MAX, MAIL_WORD_BYTES_MAX,
};
use super::unit::{Losses, physical_lines, spaced};
use crate::notes::report::SkipReason;

/// The text of a message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) subject: Option<String>,
    /// Seconds since 1970, UTC.
    pub(super) date: Option<i64>,
    /// The people, then the bodies: plain text where there is a choice, else HTML as text. Attachments are left out, except
    /// messages.
    pub(super) text: String,
}

/// Reads a message that begins at `offset` of its file. `None` if it has no header.
pub(super) fn read(bytes: &[u8], offset: usize, losses: &mut Losses) -> Option<Message> {
    let (header, _) = Header::read(bytes);
    if header.n_fields == 0 {
        return None;
    }
    let subject = header.value(SUBJECT).map(words).filter(|subject| !subject.is_empty());
    let mut text = header.people();
    text.push('\n');
    text.push_str(&bodies(bytes, offset, losses));
    Some(Message { subject, date: header.date(), text })
}

/// The fields that are read.
const FIELDS: [&str; 8] = [
    "from",
    "to",
    "cc",
    "subject",
    "date",
    "content-type",
    "content-transfer-encoding",
    "content-disposition",
];
const FROM: usize = 0;
const TO: usize = 1;
const CC: usize = 2;
const SUBJECT: usize = 3;
const DATE: usize = 4;
const CONTENT_TYPE: usize = 5;
const ENCODING: usize = 6;
const DISPOSITION: usize = 7;

/// The fields at the start of a message or part. Of a repeated field, the first counts.
#[derive(Debug, Default)]
struct Header<'a> {
    values: [Option<&'a [u8]>; FIELDS.len()],
    n_fields: usize,
}

impl<'a> Header<'a> {
    /// The header, and the offset of the body. A line that is no field is skipped if a field follows it; else the body begins
    /// there, as if the empty line were not missing.
    fn read(bytes: &'a [u8]) -> (Self, usize) {
        let mut header = Self::default();
        // The start of the open field's value, if it is one of those that are read.
        let mut open: Option<(usize, usize)> = None;
        let mut lines = physical_lines(bytes).peekable();
        while let Some((place, line)) = lines.next() {
            let is_folded = header.n_fields > 0 && is_fold(line);
            if is_folded {
                continue;
            }
            if let Some((field, start)) = open.take() {
                header.values[field].get_or_insert(&bytes[start..place.start]);
            }
            if line.is_empty() {
                let end = lines.peek().map_or(bytes.len(), |(next, _)| next.start);
                return (header, end);
            }
            match field_name(line) {
                Some(name) => {
                    header.n_fields += 1;
                    let field = FIELDS.iter().position(|field| field.as_bytes().eq_ignore_ascii_case(name));
                    let value = place.start
                        + name.len()
                        + line[name.len()..].iter().position(|&b| b == b':').unwrap_or(0);
                    open = field.map(|field| (field, value + 1));
                }
                None if lines.peek().is_some_and(|(_, next)| field_name(next).is_some()) => {}
                None => return (header, place.start),
            }
        }
        if let Some((field, start)) = open {
            header.values[field].get_or_insert(&bytes[start..]);
        }
        (header, bytes.len())
    }

    fn value(&self, field: usize) -> Option<&'a [u8]> {
        self.values[field]
    }

    /// A line for the senders, one for the receivers: `From: Ada Voss <ada@example.org>, …`.
    fn people(&self) -> String {
        let mut text = String::new();
        for (label, field) in [("From", FROM), ("To", TO), ("Cc", CC)] {
            let people = self.value(field).map(words).unwrap_or_default();
            // Quotes protect a name's commas, which nobody searches for.
            let people = people.replace(['"', '\\'], "");
            if !people.is_empty() {
                text.push_str(&format!("{label}: {people}\n"));
            }
        }
        text
    }

    fn date(&self) -> Option<i64> {
        let date = MessageStream::new(&start_of(self.value(DATE)?)).parse_date().into_datetime()?;
        date.is_valid().then(|| date.to_timestamp())
    }

    /// The media type with its parameters.
    fn content(&self, default: &'static str) -> Content {
        let content = self.value(CONTENT_TYPE).map(start_of);
        let content = content
            .as_ref()
            .and_then(|value| MessageStream::new(value).parse_content_type().into_content_type());
        let Some(content) = content else {
            return Content { media: default.to_owned(), boundary: None, charset: None, is_named: false };
        };
        let attribute = |name| content.attribute(name).map(|value| value.trim().to_owned());
        let boundary =
            attribute("boundary").filter(|text| (1..=MAIL_BOUNDARY_BYTES_MAX).contains(&text.len()));
        let media = match content.subtype().map(str::trim) {
            Some(subtype) if !subtype.is_empty() => format!("{}/{subtype}", content.ctype().trim()),
            // Without one, a type is none (RFC 2045, 5.2).
            _ => "text/plain".to_owned(),
        };
        Content { media, boundary, charset: attribute("charset"), is_named: content.has_attribute("name") }
    }

    fn is_attachment(&self) -> bool {
        let disposition = self.value(DISPOSITION).map(start_of);
        let disposition = disposition.as_ref().map(|value| MessageStream::new(value).parse_content_type());
        disposition
            .is_some_and(|value| value.as_content_type().is_some_and(|content| content.is_attachment()))
    }

    /// The body without its transfer encoding. A damaged encoding leaves the rest as it is.
    fn decode(&self, body: &'a [u8]) -> Cow<'a, [u8]> {
        let encoding = self.value(ENCODING).map(words).unwrap_or_default().to_ascii_lowercase();
        match encoding.as_str() {
            "base64" => {
                let is_of_base64 = |line: &[u8]| {
                    line.iter().all(|byte| byte.is_ascii_alphanumeric() || b"+/= \t".contains(byte))
                };
                let end = physical_lines(body)
                    .find(|(_, line)| !is_of_base64(line))
                    .map_or(body.len(), |(place, _)| place.start);
                match base64_decode(&body[..end]) {
                    Some(decoded) => Cow::Owned([decoded.as_slice(), &body[end..]].concat()),
                    None => Cow::Borrowed(body),
                }
            }
            "quoted-printable" => quoted_printable_decode(body).map_or(Cow::Borrowed(body), Cow::Owned),
            _ => Cow::Borrowed(body),
        }
    }
}

/// A media type with the parameters that are read.
struct Content {
    /// In lower case, such as `text/plain`.
    media: String,
    boundary: Option<String>,
    charset: Option<String>,
    is_named: bool,
}

impl Content {
    fn decode(&self, bytes: &[u8]) -> String {
        let charset = self.charset.as_deref().unwrap_or_default();
        // Many programs call UTF-8 ASCII, whose decoder is that of Windows-1252.
        let is_ascii = charset.eq_ignore_ascii_case("us-ascii") || charset.eq_ignore_ascii_case("ascii");
        let text = match charset_decoder(charset.as_bytes()) {
            Some(decode) if !is_ascii => decode(bytes),
            _ => String::from_utf8_lossy(bytes).into_owned(),
        };
        // Line ends as in notes.
        text.replace("\r\n", "\n")
    }
}

/// A part or message that waits to be read.
struct Waiting<'a> {
    /// The file, or what was decoded from it.
    source: Rc<Cow<'a, [u8]>>,
    range: Range<usize>,
    is_message: bool,
    is_in_digest: bool,
    depth: usize,
    /// The alternatives above it: the number of the choice, and that of its part.
    choices: Vec<(usize, usize)>,
}

/// The kinds of texts, the best alternative first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Plain,
    Html,
    Other,
}

impl Kind {
    /// Types `text/…` for programs are attachments. Other unknown ones count as plain text (RFC 2046, 4.1.4), and so do parts
    /// without a boundary, so that nothing is lost.
    fn of(content: &Content) -> Option<Self> {
        const FOR_PROGRAMS: [&str; 8] =
            ["calendar", "css", "csv", "directory", "javascript", "rfc822-headers", "vcard", "xml"];
        let (kind, subtype) = content.media.split_once('/')?;
        match (kind, subtype) {
            ("text", "plain") | ("multipart", _) => Some(Self::Plain),
            ("text", "html") => Some(Self::Html),
            ("text", subtype) => {
                (!FOR_PROGRAMS.contains(&subtype.trim_start_matches("x-"))).then_some(Self::Other)
            }
            _ => None,
        }
    }
}

/// A text of a part.
struct Leaf {
    text: String,
    kind: Kind,
    choices: Vec<(usize, usize)>,
}

/// The texts of the parts in their order.
fn bodies(bytes: &[u8], offset: usize, losses: &mut Losses) -> String {
    let whole = Waiting {
        source: Rc::new(Cow::Borrowed(bytes)),
        range: 0..bytes.len(),
        is_message: true,
        is_in_digest: false,
        depth: 0,
        choices: Vec::new(),
    };
    let (mut waiting, mut leaves) = (vec![whole], Vec::new());
    let (mut n_parts, mut n_choices) = (1, 0);
    while let Some(part) = waiting.pop() {
        let Waiting { source, range, is_message, is_in_digest, depth, choices } = part;
        let at = if matches!(*source, Cow::Borrowed(_)) { offset + range.start } else { offset };
        if depth > MAIL_DEPTH_MAX {
            let what = "parts and messages in each other";
            losses.add(SkipReason::Limit { what, limit: MAIL_DEPTH_MAX as u64, offset: at as u64 });
            continue;
        }
        let bytes = &source[range.clone()];
        let (header, body_at) = Header::read(bytes);
        let body = &bytes[body_at..];
        if is_message && depth > 0 {
            let subject = header.value(SUBJECT).map(words).filter(|subject| !subject.is_empty());
            let subject = subject.map(|subject| format!("Subject: {subject}\n")).unwrap_or_default();
            leaves.push(Leaf {
                text: subject + &header.people(),
                kind: Kind::Plain,
                choices: choices.clone(),
            });
        }
        let default = if is_in_digest && !is_message { "message/rfc822" } else { "text/plain" };
        let content = header.content(default);
        let is_multipart = content.media.starts_with("multipart/");
        if is_multipart && let Some(boundary) = &content.boundary {
            let limit = MAIL_PARTS_MAX.saturating_sub(n_parts);
            let (parts, is_cut) = parts(body, boundary.as_bytes(), limit);
            if is_cut {
                losses.add(SkipReason::Limit {
                    what: "parts",
                    limit: MAIL_PARTS_MAX as u64,
                    offset: at as u64,
                });
            }
            if !parts.is_empty() || is_cut {
                n_parts += parts.len();
                let is_choice = content.media == "multipart/alternative";
                n_choices += usize::from(is_choice);
                let start = range.start + body_at;
                let parts = parts.into_iter().enumerate().map(|(number, part)| Waiting {
                    source: Rc::clone(&source),
                    range: start + part.start..start + part.end,
                    is_message: false,
                    is_in_digest: content.media == "multipart/digest",
                    depth: depth + 1,
                    choices: choices
                        .iter()
                        .copied()
                        .chain(is_choice.then_some((n_choices, number)))
                        .collect(),
                });
                let before = waiting.len();
                waiting.extend(parts);
                // The last one is read first.
                waiting[before..].reverse();
                continue;
            }
        }
        if matches!(content.media.as_str(), "message/rfc822" | "message/global") {
            let (source, range) = match header.decode(body) {
                Cow::Borrowed(_) => (Rc::clone(&source), range.start + body_at..range.end),
                Cow::Owned(decoded) => {
                    let range = 0..decoded.len();
                    (Rc::new(Cow::Owned(decoded)), range)
                }
            };
            n_parts += 1;
            waiting.push(Waiting {
                source,
                range,
                is_message: true,
                is_in_digest: false,
                depth: depth + 1,
                choices,
            });
            continue;
        }
        let is_attachment = header.is_attachment() || content.is_named && depth > 0;
        if let Some(kind) = Kind::of(&content).filter(|_| !is_attachment) {
            let text = content.decode(&header.decode(body));
            let text = if kind == Kind::Html { html::to_text(&text) } else { text };
            leaves.push(Leaf { text, kind, choices });
        }
    }
    chosen(&leaves).collect::<Vec<_>>().join("\n\n")
}

/// The texts, of alternatives that of the first part with the best kind.
fn chosen(leaves: &[Leaf]) -> impl Iterator<Item = &str> {
    let mut best: HashMap<usize, (Kind, usize)> = HashMap::new();
    for leaf in leaves.iter().filter(|leaf| !leaf.text.trim().is_empty()) {
        for &(choice, part) in &leaf.choices {
            let found = (leaf.kind, part);
            best.entry(choice).and_modify(|best| *best = found.min(*best)).or_insert(found);
        }
    }
    let is_chosen = move |leaf: &&Leaf| {
        leaf.choices.iter().all(|(choice, part)| best.get(choice).is_none_or(|&(_, best)| best == *part))
    };
    leaves.iter().filter(is_chosen).map(|leaf| leaf.text.as_str())
}

/// The places of the parts of a body, `limit` at most, and whether there are more.
fn parts(body: &[u8], boundary: &[u8], limit: usize) -> (Vec<Range<usize>>, bool) {
    let mut parts = Vec::new();
    let mut start = None;
    // The end of the line before, without its line end: that belongs to the boundary.
    let mut end = 0;
    for (place, line) in physical_lines(body) {
        let rest =
            line.strip_prefix(b"--").and_then(|line| line.strip_prefix(boundary)).map(<[u8]>::trim_ascii_end);
        if let Some(rest @ (b"" | b"--")) = rest {
            parts.extend(start.take().map(|start: usize| start..end.max(start)));
            if rest == b"--" {
                return (parts, false);
            }
            if parts.len() == limit {
                return (parts, true);
            }
            start = Some(body.len().min(next_line(body, place.end)));
        }
        end = place.end;
    }
    parts.extend(start.map(|start| start..body.len()));
    (parts, false)
}

/// The start of the line behind a line that ends at `end`.
fn next_line(bytes: &[u8], end: usize) -> usize {
    let n = bytes[end..].iter().position(|&byte| byte == b'\n');
    n.map_or(bytes.len(), |n| end + n + 1)
}

/// The name of a field: printable ASCII before a colon.
pub(super) fn field_name(line: &[u8]) -> Option<&[u8]> {
    let end = line.iter().position(|&byte| !matches!(byte, 33..=57 | 59..=126))?;
    let is_field = end > 0 && line[end..].trim_ascii_start().starts_with(b":");
    is_field.then(|| &line[..end])
}

/// Whether a line continues the field before it.
pub(super) fn is_fold(line: &[u8]) -> bool {
    line.starts_with(b" ") || line.starts_with(b"\t")
}

/// The start of a field's value as a line, for parsers whose work grows faster than a value's length.
fn start_of(value: &[u8]) -> Vec<u8> {
    let value = value.trim_ascii_end();
    [&value[..value.len().min(MAIL_FIELD_BYTES_MAX)], b"\r\n"].concat()
}

/// A field's value as a line of text, with its encoded words (RFC 2047) decoded.
fn words(value: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = value;
    let mut is_behind_word = false;
    while let Some(at) = find(rest, b"=?") {
        let (before, word) = rest.split_at(at);
        let mut stream = MessageStream::new(&word[1..word.len().min(MAIL_WORD_BYTES_MAX)]);
        let decoded = stream.decode_rfc2047();
        let n_read = if decoded.is_some() { 1 + stream.offset() } else { 2 };
        // White space between two encoded words is not part of the text.
        if !(is_behind_word && decoded.is_some() && before.trim_ascii().is_empty()) {
            text.push_str(&String::from_utf8_lossy(before));
        }
        is_behind_word = decoded.is_some();
        text.push_str(decoded.as_deref().unwrap_or("=?"));
        rest = &word[n_read..];
    }
    text.push_str(&String::from_utf8_lossy(rest));
    spaced(&text)
}

fn find(bytes: &[u8], wanted: &[u8; 2]) -> Option<usize> {
    bytes.windows(2).position(|pair| pair == wanted)
}
