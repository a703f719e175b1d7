//! The notes of a request: read, split into passages, and searched.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};

use refrain_files::open_regular;
use refrain_index::{
    Document, NoteHit, NotesIndex, Passage, PassageIndex, ReadLimits, Search, SkipReason, read_documents,
    split, split_sections,
};
use serde::Serialize;

use crate::failure::Failure;
use crate::terminal::{note, visible};

/// The passages of all notes, with their search index.
pub(crate) struct Notes {
    index: PassageIndex,
    /// The notes as a whole: a passage per section.
    sections: Vec<Passage>,
    /// The index on disk, in place of notes that are read now.
    stored: Option<NotesIndex>,
}

/// The place of a passage in the notes, for the statistics.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PassageSource {
    #[serde(serialize_with = "as_text")]
    path: PathBuf,
    line: usize,
    title: String,
    /// BM25; absent if the passage was not found by a search.
    score: Option<f32>,
}

impl PassageSource {
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        self.place() == other.place()
    }

    /// The file, and the line in it.
    pub(crate) fn place(&self) -> (&Path, usize) {
        (&self.path, self.line)
    }
}

/// A path in JSON: a name that is not UTF-8 is shown with replacement characters.
pub(crate) fn as_text<S: serde::Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&path.display())
}

impl fmt::Display for PassageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = format!("{}:{} {}", self.path.display(), self.line, self.title);
        f.write_str(&visible(&place))?;
        self.score.map_or(Ok(()), |score| write!(f, " (score {score:.2})"))
    }
}

/// A passage with its source.
#[derive(Debug, Clone)]
pub(crate) struct Chosen {
    pub(crate) title: String,
    pub(crate) text: String,
    pub(crate) source: PassageSource,
}

impl Chosen {
    fn new(passage: &Passage, score: Option<f32>) -> Self {
        let Passage { path, line, title, text } = passage.clone();
        let source = PassageSource { path, line, title: title.clone(), score };
        Self { title, text, source }
    }

    fn stored(hit: NoteHit) -> Self {
        let NoteHit { passage, score, .. } = hit;
        let line = line_at(&passage.path, passage.place.start);
        let source =
            PassageSource { path: passage.path, line, title: passage.title.clone(), score: Some(score) };
        Self { title: passage.title, text: passage.text, source }
    }
}

/// The line of a file at an offset, from 1; 1 if the file cannot be read any more.
fn line_at(path: &Path, offset: u64) -> usize {
    let mut start = Vec::new();
    let read = open_regular(path).and_then(|file| file.take(offset).read_to_end(&mut start));
    let units = || start.as_chunks::<2>().0.iter();
    let n_ends = match start[..] {
        [0xff, 0xfe, ..] => units().filter(|unit| **unit == *b"\n\0").count(),
        [0xfe, 0xff, ..] => units().filter(|unit| **unit == *b"\0\n").count(),
        _ => start.iter().filter(|&&byte| byte == b'\n').count(),
    };
    read.map_or(1, |_| 1 + n_ends)
}

impl Notes {
    /// Reads the notes at `paths`. A notice names each file that was skipped.
    pub(crate) fn read(paths: &[PathBuf], follows_links: bool) -> Result<Self, Failure> {
        let found = read_documents(paths, &ReadLimits { follows_links, ..ReadLimits::default() })?;
        // Hidden files and pictures are skipped without a notice: users do not expect them to be read.
        let unexpected = |reason: &SkipReason| !matches!(reason, SkipReason::Hidden | SkipReason::NotANote);
        for skipped in found.skipped.iter().filter(|skipped| unexpected(&skipped.reason)) {
            note(&visible(&format!("skipped {}: {}", skipped.path.display(), skipped.reason)));
        }
        let passages: Vec<Passage> = found.documents.iter().flat_map(split).collect();
        if !paths.is_empty() && passages.is_empty() {
            let place = paths[0].display();
            return Err(Failure::input(format!("no text in `{place}`"), "notes are .md and .txt files"));
        }
        let sections = found.documents.iter().flat_map(split_sections).collect();
        Ok(Self { index: PassageIndex::build(passages)?, sections, stored: None })
    }

    /// The notes of an index on disk.
    pub(crate) fn stored(folder: Option<&Path>) -> Result<Self, Failure> {
        let (_, stored) = crate::index::open_named(folder)?;
        Ok(Self { index: PassageIndex::build(Vec::new())?, sections: Vec::new(), stored: Some(stored) })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.index.passages().is_empty()
    }

    /// The `limit` passages that match the request best, best first. If no passage shares a word with the
    /// request, the first passages, because a request may mention only "these notes".
    pub(crate) fn search(&self, request: &str, limit: usize) -> Result<Vec<Chosen>, Failure> {
        if let Some(stored) = &self.stored {
            let hits = stored.search(&Search::new(request, limit))?;
            if hits.is_empty() {
                note("no passage of the notes shares a word with the request");
            }
            return Ok(hits.into_iter().map(Chosen::stored).collect());
        }
        let hits = self.index.search(request, limit)?;
        if hits.is_empty() && !self.is_empty() {
            note("no passage shares a word with the request: the prompt shows the first ones");
            return Ok(self.index.passages().iter().take(limit).map(|p| Chosen::new(p, None)).collect());
        }
        Ok(hits.iter().map(|hit| Chosen::new(hit.passage, Some(hit.score))).collect())
    }

    /// All sections in file order.
    pub(crate) fn whole(&self) -> Vec<Chosen> {
        self.sections.iter().map(|section| Chosen::new(section, None)).collect()
    }
}

/// The passages of a text that came with the request, such as the mail to reply to.
pub(crate) fn whole_text(name: impl Into<PathBuf>, text: &str) -> Vec<Chosen> {
    let document = Document::new(name, text);
    let sections = split_sections(&document);
    let mut chosen: Vec<Chosen> = sections.iter().map(|section| Chosen::new(section, None)).collect();
    if !document.begins_with_heading() {
        // The name of standard input or of a mail file is not a useful title.
        chosen.iter_mut().for_each(|passage| passage.title.clear());
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_section_is_whole_and_as_it_was() {
        let text = format!(
            "# Log\n\n{}\n\nlast",
            "Ten words are in each of these short, plain sentences. ".repeat(15).trim()
        );
        let chosen = whole_text("log.md", &text);
        assert_eq!(chosen.len(), 1);
        assert_eq!(chosen[0].title, "Log");
        assert_eq!(format!("# Log\n\n{}", chosen[0].text), text);
    }

    /// In Gurmukhi every letter has a byte of a line end.
    #[test]
    fn lines_of_utf_16_are_counted_in_its_units() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("note.md");
        let text = format!("{}\nline 2", "\u{a15}".repeat(40));
        for (mark, bytes_of) in
            [([0xff, 0xfe], u16::to_le_bytes as fn(u16) -> [u8; 2]), ([0xfe, 0xff], u16::to_be_bytes)]
        {
            let file: Vec<u8> = mark.into_iter().chain(text.encode_utf16().flat_map(bytes_of)).collect();
            std::fs::write(&path, &file).unwrap();
            assert_eq!(line_at(&path, file.len() as u64), 2);
        }
    }

    #[test]
    fn a_text_without_heading_has_no_title() {
        let chosen = whole_text("-", "Dear Ada,\n\nsee you.");
        assert_eq!((chosen[0].title.as_str(), chosen[0].text.as_str()), ("", "Dear Ada,\n\nsee you."));
    }
}
