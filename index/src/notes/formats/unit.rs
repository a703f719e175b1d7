//! The units of a file, and the lines from which readers make them.

use std::ops::Range;

use super::limits::TEXT_BYTES_MAX;
use crate::markdown::Section;
use crate::notes::report::SkipReason;

/// A note, message, chat, screen or event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::notes) struct Unit {
    pub(in crate::notes) title: String,
    pub(in crate::notes) body: Body,
    /// Seconds since 1970, UTC.
    pub(in crate::notes) date: Option<i64>,
    /// Lower case, sorted, distinct.
    pub(in crate::notes) tags: Vec<String>,
    /// The page of the file, from 1, if the file has pages.
    pub(in crate::notes) page: Option<u64>,
}

/// The text of a unit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::notes) enum Body {
    /// Bytes of the file are the text.
    Verbatim(Verbatim),
    /// Pieces that were decoded from the file, each with its place. A passage contains whole pieces where they fit.
    Decoded(Vec<Piece>),
}

/// A text that stands in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::notes) struct Verbatim {
    /// The bytes of the file that are the text.
    pub(in crate::notes) place: Range<usize>,
    /// Their division. Places are those of the file.
    pub(in crate::notes) sections: Vec<Section>,
    /// Words that stand for the unit as a whole: aliases, and tags that are not in the text.
    pub(in crate::notes) names: Vec<String>,
}

/// A decoded text and its place in the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::notes) struct Piece {
    pub(in crate::notes) text: String,
    pub(in crate::notes) place: Range<usize>,
    /// Seconds since 1970, UTC, if it differs from the unit's.
    pub(in crate::notes) date: Option<i64>,
}

/// Bytes up to which short lines share a piece. A piece takes more memory than a short line.
const PIECE_BYTES: usize = 240;

/// Pieces made of lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pieces: Vec<Piece>,
    n_bytes: usize,
    is_full: bool,
}

impl Lines {
    /// Adds a line. Behind [`TEXT_BYTES_MAX`], lines are left out.
    pub(super) fn push(&mut self, line: &str, place: Range<usize>, losses: &mut Losses) {
        self.n_bytes = self.n_bytes.saturating_add(line.len() + 1);
        if self.n_bytes > TEXT_BYTES_MAX {
            if !std::mem::replace(&mut self.is_full, true) {
                let (limit, offset) = (TEXT_BYTES_MAX as u64, place.start as u64);
                losses.add(SkipReason::Limit { what: "bytes of text", limit, offset });
            }
            return;
        }
        match self.pieces.last_mut().filter(|last| last.text.len() + line.len() < PIECE_BYTES) {
            Some(last) => {
                last.text.push('\n');
                last.text.push_str(line);
                last.place.end = place.end;
            }
            None => self.pieces.push(Piece { text: line.to_owned(), place, date: None }),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(super) fn into_pieces(self) -> Vec<Piece> {
        self.pieces
    }
}

/// A text with a space between its words. A list of the words would take many times its length.
pub(super) fn spaced(text: &str) -> String {
    let mut spaced = String::with_capacity(text.len());
    for word in text.split_whitespace() {
        if !spaced.is_empty() {
            spaced.push(' ');
        }
        spaced.push_str(word);
    }
    spaced
}

/// Parts of a file that were left out.
#[derive(Debug, Default)]
pub(super) struct Losses {
    pub(super) n: usize,
    pub(super) first: Option<SkipReason>,
}

impl Losses {
    pub(super) fn add(&mut self, reason: SkipReason) {
        self.n += 1;
        self.first.get_or_insert(reason);
    }

    pub(super) fn append(&mut self, later: Self) {
        self.n += later.n;
        self.first = self.first.take().or(later.first);
    }
}

/// Lines of bytes with their places, without line ends.
pub(super) fn physical_lines(bytes: &[u8]) -> impl Iterator<Item = (Range<usize>, &[u8])> {
    let mut start = 0;
    bytes.split_inclusive(|&byte| byte == b'\n').map(move |line| {
        let content = line.strip_suffix(b"\n").unwrap_or(line);
        let n_returns = content.iter().rev().take_while(|&&byte| byte == b'\r').count();
        let content = &content[..content.len() - n_returns];
        let place = start..start + content.len();
        start += line.len();
        (place, content)
    })
}

/// Lines of a text with their places, without line ends.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (Range<usize>, &str)> {
    let mut start = 0;
    text.split_inclusive('\n').map(move |line| {
        let content = line.trim_end_matches(['\n', '\r']);
        let place = start..start + content.len();
        start += line.len();
        (place, content)
    })
}

pub(super) fn sorted(mut tags: Vec<String>) -> Vec<String> {
    tags.retain(|tag| tag.len() <= TAG_BYTES_MAX);
    tags.sort_unstable();
    tags.dedup();
    // A file of `#1 #2 …` has no use for all of them.
    tags.truncate(TAGS_MAX);
    tags
}

/// Maximum number of tags of a unit.
const TAGS_MAX: usize = 64;

/// Maximum length of a tag, in bytes. Longer ones are text, not labels.
pub(super) const TAG_BYTES_MAX: usize = 64;
