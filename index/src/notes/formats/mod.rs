//! Readers of the formats: a file's bytes become units of text with their places in the file.
//!
//! Every reader takes any bytes. A file that cannot be read at all is refused with a [`SkipReason`]. A broken part (a
//! message, a line, an event) is left out, and the rest of the file is read.
//!
//! [`SkipReason`]: super::SkipReason

mod archive;
mod calendar;
mod chat;
mod date;
mod encoding;
mod epub;
mod html;
mod inflate;
mod json;
mod limits;
mod mail;
mod markdown;
mod markup;
mod mime;
mod office;
mod outline;
mod package;
mod pdf;
mod screen;
mod table;
mod unit;

pub use date::parse_date;
pub(crate) use encoding::Decoded;
pub(super) use markdown::tags_of;
pub use screen::{ScreenElement, ScreenXml, read_screen_xml};
use unit::Losses;
pub(super) use unit::{Body, Piece, Unit, Verbatim};

use super::kind::Format;
use super::report::SkipReason;

/// What a file contains.
#[derive(Debug)]
pub(super) struct Contents<'a> {
    pub(super) units: Vec<Unit>,
    /// The text in which the places of the units lie.
    pub(super) text: Decoded<'a>,
    /// [`SkipReason::Partly`] if a part of the file was left out.
    pub(super) lost: Option<SkipReason>,
}

/// Reads the units of a file. `name` is the file's name without its extension, for titles. It may panic: the parsers come
/// from other projects, and their input from anyone.
///
/// # Errors
/// The reason why no part of the file can be read.
pub(super) fn read<'a>(format: Format, name: &str, file: &'a [u8]) -> Result<Contents<'a>, SkipReason> {
    let text = match format {
        Format::Html | Format::Xhtml | Format::Csv | Format::Tsv => html::decoded(file)?,
        _ => Decoded::new(file),
    };
    let mut losses = Losses::default();
    let units = match format {
        Format::Text => markdown::read(name, text.text()?),
        Format::Mail => mail::read(name, &text.bytes, &mut losses),
        Format::Mailbox => mail::read_mailbox(name, &text.bytes, &mut losses),
        Format::Chat => chat::read(name, text.text()?, &mut losses),
        Format::ScreenText => screen::read_text(name, text.text()?),
        Format::ScreenXml => screen::read_xml(name, text.text()?),
        Format::Calendar => calendar::read(name, &text.bytes, &mut losses),
        Format::Rst => markup::read_rst(name, text.text()?),
        Format::Org => markup::read_org(name, text.text()?),
        Format::Yaml | Format::Code => markup::read_plain(name, text.text()?),
        Format::Html => html::read(name, text.text()?, false, &mut losses),
        Format::Xhtml => html::read(name, text.text()?, true, &mut losses),
        Format::Csv => table::read(name, text.text()?, None, &mut losses),
        Format::Tsv => table::read(name, text.text()?, Some(b'\t'), &mut losses),
        Format::Json => json::read(name, text.text()?, &mut losses),
        Format::Docx => office::read_docx(name, &text.bytes, &mut losses),
        Format::Odt => office::read_odt(name, &text.bytes, &mut losses),
        Format::Epub => epub::read(name, &text.bytes, &mut losses),
        Format::Pdf => pdf::read(name, &text.bytes, &mut losses),
    };
    let units = units.map_err(|reason| text.in_file(reason))?;
    let lost =
        losses.first.map(|first| SkipReason::Partly { n: losses.n, first: Box::new(text.in_file(first)) });
    Ok(Contents { units, text, lost })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FORMATS: [Format; 20] = [
        Format::Text,
        Format::Mail,
        Format::Mailbox,
        Format::Chat,
        Format::ScreenText,
        Format::ScreenXml,
        Format::Calendar,
        Format::Rst,
        Format::Org,
        Format::Html,
        Format::Xhtml,
        Format::Csv,
        Format::Tsv,
        Format::Json,
        Format::Yaml,
        Format::Code,
        Format::Docx,
        Format::Odt,
        Format::Epub,
        Format::Pdf,
    ];

    fn check(bytes: &[u8]) {
        for format in FORMATS {
            let Ok(Contents { units, text, .. }) = read(format, "name", bytes) else { continue };
            for unit in units {
                match unit.body {
                    Body::Verbatim(verbatim) => {
                        let sections = verbatim.sections.into_iter().map(|section| section.body);
                        for place in sections.chain([verbatim.place]) {
                            let decoded = std::str::from_utf8(&text.bytes[place.clone()]).unwrap();
                            let read = &bytes[text.place(place)];
                            assert!(!text.is_verbatim() || decoded.as_bytes() == read);
                        }
                    }
                    Body::Decoded(pieces) => {
                        let is_in_file = |piece: &Piece| bytes.get(text.place(piece.place.clone())).is_some();
                        assert!(pieces.iter().all(is_in_file));
                    }
                }
            }
        }
    }

    #[test]
    fn binary_files_are_refused_with_the_offset() {
        let refused = |format, bytes| read(format, "a", bytes).unwrap_err();
        assert_eq!(refused(Format::Text, b"ab\0c"), SkipReason::NotText { offset: 2 });
        assert_eq!(refused(Format::Chat, b"abc\xff"), SkipReason::NotText { offset: 3 });
        assert_eq!(
            refused(Format::ScreenXml, b"\xef\xbb\xbf<a>\n<b></a>"),
            SkipReason::Broken { what: "not well-formed XML", offset: 10 }
        );
    }

    #[test]
    fn deep_nesting_ends_in_an_answer() {
        let deep = 100_000;
        check("<a>".repeat(deep).as_bytes());
        check(&[vec![b'['; deep], b"\n".to_vec()].concat());
        check("BEGIN:VEVENT\r\n".repeat(deep).as_bytes());
        check("Content-Type: multipart/mixed; boundary=a\r\n\r\n--a\r\n".repeat(deep / 10).as_bytes());
        check("From a\n".repeat(deep).as_bytes());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>) {
            check(&bytes);
        }

        #[test]
        fn any_mixture_of_syntax_is_read_or_refused(
            parts in prop::collection::vec(
                prop_oneof![
                    Just("BEGIN:VEVENT\r\n"), Just("END:VEVENT\r\n"), Just("SUMMARY:a\\, b\r\n"), Just(" folded\r\n"),
                    Just("DTSTART:20240230T250000Z\r\n"), Just("From a b\n"), Just("Subject: =?utf-8?q?=C3?=\n"),
                    Just("\n\n"), Just("{\"role\":\"user\",\"content\":\"é\"}\n"), Just("{\"a\":[1,"), Just("---\n"),
                    Just("tags: [a, b]\n"), Just("<node text=\"é &amp;\"/>"), Just("<a>"), Just("</a>"), Just("# é #tag\n"),
                    Just("<h1>A</h1>"), Just("<title>"), Just("<div hidden>"), Just("<svg><pre>"), Just("\"a\"\",b\n"), Just("\"k\": [1, {}], "),
                    Just("====\n"), Just("* a :b:\n"), Just("#+begin_src\n"), Just("\u{d}"), Just("a,b\n"),
                    Just("Content-Type: text/html; charset=iso-2022-jp\n"), Just("date: 2024-01-01\n"), Just("\u{feff}"),
                ],
                0..30
            )
        ) {
            check(parts.concat().as_bytes());
        }
    }
}
