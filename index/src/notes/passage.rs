//! The passages of a file: its units, divided as the index stores them.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use super::formats::{Body, Piece, Unit, Verbatim};
use super::kind::SourceKind;
use super::language::Language;
use crate::passage::{PASSAGE_WORDS_MAX, count_words, short_title, slices, title_below};

/// A passage as the index stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotePassage {
    /// The file, as an absolute path; of a document without a file, the path that stands for its id
    /// ([`document_path`](super::document_path)).
    pub path: PathBuf,
    /// The kind of its source.
    pub kind: SourceKind,
    /// The title of the note, message, chat, screen or event, with the heading above the passage.
    pub title: String,
    /// The text; never empty.
    pub text: String,
    /// The bytes of the file from which the text was read: the text itself if [`is_verbatim`](Self::is_verbatim), else
    /// the message, line, element or event with the text in an encoded form. Of an archive or a PDF, it is the whole file.
    pub place: Range<u64>,
    /// Whether the bytes of [`place`](Self::place) are the text.
    pub is_verbatim: bool,
    /// The line or page of the file on which the passage begins, for citations; `None` in a file without either.
    pub locator: Option<Locator>,
    /// Seconds since 1970, UTC: the date in the note, message, chat or event, else that of the file's last change.
    pub date: i64,
    /// Tags, in lower case.
    pub tags: Vec<String>,
    /// The language in which the words are stemmed; `None` if it is unclear or has no stemmer.
    pub language: Option<Language>,
    /// A hash of title and text, under which the token ids of the text and the vector of both are stored.
    pub key: u64,
}

/// A text below its title, which a heading or the name of a file often says alone: what the vector of a passage stands for.
pub(super) fn titled<'a>(title: &str, text: &'a str) -> Cow<'a, str> {
    match title.is_empty() || text.contains(title) {
        true => text.into(),
        false => format!("{title}\n\n{text}").into(),
    }
}

/// Where a reader finds a passage in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Locator {
    /// A line, from 1.
    Line(u64),
    /// A page, from 1.
    Page(u64),
}

impl Locator {
    /// A number for the index.
    pub(super) fn code(self) -> u64 {
        match self {
            Self::Line(line) => line << 1,
            Self::Page(page) => page << 1 | 1,
        }
    }

    pub(super) fn of_code(code: u64) -> Self {
        match code & 1 {
            0 => Self::Line(code >> 1),
            _ => Self::Page(code >> 1),
        }
    }
}

/// `line 12` or `page 3`.
impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(line) => write!(f, "line {line}"),
            Self::Page(page) => write!(f, "page {page}"),
        }
    }
}

/// The part of a passage that its unit's text gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Chunk {
    pub(super) title: String,
    pub(super) text: String,
    pub(super) place: Range<usize>,
    pub(super) is_verbatim: bool,
    /// The date of its messages, if they have their own.
    pub(super) date: Option<i64>,
}

/// Divides a unit of a file. Text under a heading, or runs of messages, events and elements, form chunks of at most
/// [`PASSAGE_WORDS_MAX`] words, which repeat up to `n_overlap` words. A title that no chunk has as a whole forms chunks too: that of
/// a unit without text, and a long one.
pub(super) fn chunks(unit: &Unit, bytes: &[u8], n_overlap: usize) -> Vec<Chunk> {
    let mut chunks: Vec<Chunk> = match &unit.body {
        Body::Verbatim(Verbatim { place, sections, .. }) => {
            // The reader has checked that the range is text.
            let text = std::str::from_utf8(&bytes[..place.end]).unwrap_or_default();
            let slices = slices(text, sections, n_overlap).into_iter().map(|slice| Chunk {
                title: title_below(&unit.title, slice.heading),
                text: text[slice.range.clone()].to_owned(),
                place: slice.range,
                is_verbatim: true,
                date: None,
            });
            slices.collect()
        }
        Body::Decoded(pieces) => runs(pieces, n_overlap)
            .into_iter()
            .map(|Run { text, place, date }| Chunk {
                title: short_title(&unit.title).to_owned(),
                text,
                place,
                is_verbatim: false,
                date,
            })
            .collect(),
    };
    let title = short_title(&unit.title);
    // A reader of mail or calendars puts a long subject into the text.
    let is_in_text = match &unit.body {
        Body::Decoded(pieces) => pieces.iter().any(|piece| piece.text.contains(&unit.title)),
        Body::Verbatim(_) => false,
    };
    if chunks.is_empty() || title.len() < unit.title.len() && !is_in_text {
        let place = match &unit.body {
            Body::Decoded(pieces) if !pieces.is_empty() => {
                pieces[0].place.start..pieces[pieces.len() - 1].place.end
            }
            _ => 0..bytes.len(),
        };
        let parts = slices_of_plain(&unit.title, 0).into_iter().map(|text| Chunk {
            title: title.trim().to_owned(),
            text: text.to_owned(),
            place: place.clone(),
            is_verbatim: false,
            date: None,
        });
        chunks.extend(parts);
    }
    chunks
}

/// Pieces in a row.
#[derive(Debug)]
struct Run {
    text: String,
    place: Range<usize>,
    /// The date of the first piece that has one and that the run before does not have.
    date: Option<i64>,
}

/// Packs pieces into runs; a piece that is too long is divided. A run repeats the last pieces of the run before it as far as
/// they fit the overlap.
fn runs(pieces: &[Piece], n_overlap: usize) -> Vec<Run> {
    let parts: Vec<(&str, &Piece, usize)> = pieces
        .iter()
        .flat_map(|piece| {
            let n_words = count_words(&piece.text);
            let whole = (n_words <= PASSAGE_WORDS_MAX).then(|| piece.text.trim());
            let divided = if whole.is_some() { Vec::new() } else { slices_of_plain(&piece.text, n_overlap) };
            whole.into_iter().chain(divided).map(move |text| (text, piece, count_words(text)))
        })
        .filter(|(text, _, _)| !text.is_empty())
        .collect();
    // The parts of each run, and the first one that is new.
    let mut runs: Vec<(Range<usize>, usize)> = Vec::new();
    let mut n_words_open = 0;
    for (at, &(_, _, n_words)) in parts.iter().enumerate() {
        match runs.last_mut() {
            Some((open, _)) if n_words_open + n_words <= PASSAGE_WORDS_MAX => {
                open.end = at + 1;
                n_words_open += n_words;
            }
            last => {
                let (mut start, mut n_repeated) = (at, 0);
                let room = n_overlap.min(PASSAGE_WORDS_MAX - n_words);
                let first = last.map_or(at, |(last, _)| last.start + 1);
                while start > first && n_repeated + parts[start - 1].2 <= room {
                    start -= 1;
                    n_repeated += parts[start].2;
                }
                n_words_open = n_repeated + n_words;
                runs.push((start..at + 1, at));
            }
        }
    }
    let joined = runs.into_iter().map(|(run, first_new)| {
        let date = parts[first_new..run.end].iter().find_map(|(_, piece, _)| piece.date);
        let parts = &parts[run];
        let text = parts.iter().map(|(text, _, _)| *text).collect::<Vec<_>>().join("\n");
        let place = parts[0].1.place.start..parts[parts.len() - 1].1.place.end;
        Run { text, place, date }
    });
    joined.collect()
}

/// Slices of a decoded text. Lines that look like headings are text there.
fn slices_of_plain(text: &str, n_overlap: usize) -> Vec<&str> {
    crate::passage::pack(text, 0..text.len(), n_overlap).into_iter().map(|range| &text[range]).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decoded(texts: &[&str]) -> Vec<Piece> {
        texts
            .iter()
            .enumerate()
            .map(|(i, text)| Piece { text: (*text).to_owned(), place: i..i + 1, date: None })
            .collect()
    }

    #[test]
    fn short_pieces_form_one_run_and_long_ones_are_divided() {
        let long = "word ".repeat(130);
        let pieces = decoded(&["a: one", "b: two", &long, "c: three"]);
        let runs = runs(&pieces, 0);
        let places: Vec<_> = runs.iter().map(|run| run.place.clone()).collect();
        assert_eq!(places, [0..2, 2..3, 2..4]);
        assert_eq!(runs[0].text, "a: one\nb: two");
        assert!(runs[2].text.ends_with("c: three"));
    }

    #[test]
    fn a_run_repeats_whole_messages() {
        let message = format!("a: {}", "word ".repeat(19).trim());
        let mut pieces = decoded(&[message.as_str(); 8]);
        for (i, piece) in (0..).zip(&mut pieces) {
            piece.date = (i != 6).then_some(i);
        }
        let runs: Vec<_> = runs(&pieces, 24).into_iter().map(|run| (run.place, run.date)).collect();
        // The date of a repeated message is that of the run before.
        assert_eq!(runs, [(0..6, Some(0)), (5..8, Some(7))]);
    }

    proptest! {
        #[test]
        fn every_piece_is_in_a_run(texts in prop::collection::vec("([a-z]{1,9} ){0,60}", 0..12), n_overlap in 0..60_usize) {
            let pieces = decoded(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            let runs = runs(&pieces, n_overlap);
            for Run { text, place, .. } in &runs {
                prop_assert!(count_words(text) <= PASSAGE_WORDS_MAX && !text.is_empty());
                prop_assert!(place.start < place.end);
            }
            for piece in pieces.iter().filter(|piece| !piece.text.trim().is_empty()) {
                let is_in = |Run { text, place, .. }: &Run| {
                    place.start <= piece.place.start && piece.place.end <= place.end && text.contains(piece.text.trim())
                };
                prop_assert!(runs.iter().any(is_in));
            }
        }

        #[test]
        fn verbatim_chunks_are_the_bytes_of_the_file(text in "([a-z#.\\- é語\r\n]|word ){0,600}", n_overlap in 0..60_usize) {
            let bytes = text.as_bytes();
            for unit in super::super::formats::read(super::super::kind::Format::Text, "a", bytes).unwrap().units {
                for chunk in chunks(&unit, bytes, n_overlap) {
                    // A title that is no passage's is text.
                    prop_assert!(chunk.is_verbatim || unit.title.contains(&chunk.text));
                    prop_assert!(!chunk.is_verbatim || chunk.text.as_bytes() == &bytes[chunk.place]);
                }
            }
        }
    }
}
