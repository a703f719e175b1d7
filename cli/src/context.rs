//! The notes of a request: read, split, and chosen by what is asked.

use std::fmt;
use std::path::PathBuf;

use refrain_index::{Document, Passage, PassageIndex, ReadLimits, SkipReason, read_documents, split};
use serde::Serialize;

use crate::failure::Failure;
use crate::terminal::{note, visible};

/// A folder's notes, ready to be asked.
pub(crate) struct Notes {
    index: PassageIndex,
}

/// Where a passage of the prompt came from, for the statistics.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct PassageSource {
    path: String,
    line: usize,
    title: String,
    /// BM25; absent where the passage was not searched for.
    score: Option<f32>,
}

impl PassageSource {
    pub(crate) fn is_same_place(&self, other: &Self) -> bool {
        (&self.path, self.line) == (&other.path, other.line)
    }
}

impl fmt::Display for PassageSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = format!("{}:{} {}", self.path, self.line, self.title);
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
        let source = PassageSource { path: path.display().to_string(), line, title: title.clone(), score };
        Self { title, text, source }
    }
}

impl Notes {
    /// Reads the notes at `paths`, telling what was left out.
    pub(crate) fn read(paths: &[PathBuf]) -> Result<Self, Failure> {
        let found = read_documents(paths, &ReadLimits::default())?;
        // Hidden files and pictures are not what a user means by notes; the rest might be missed.
        let unexpected = |reason: &SkipReason| !matches!(reason, SkipReason::Hidden | SkipReason::NotANote);
        for skipped in found.skipped.iter().filter(|skipped| unexpected(&skipped.reason)) {
            note(&format!("skipped {}: {}", skipped.path.display(), skipped.reason));
        }
        let passages: Vec<Passage> = found.documents.iter().flat_map(split).collect();
        if !paths.is_empty() && passages.is_empty() {
            let place = paths[0].display();
            return Err(Failure::input(format!("no text in `{place}`"), "notes are .md and .txt files"));
        }
        Ok(Self { index: PassageIndex::build(passages)? })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.index.passages().is_empty()
    }

    /// The `limit` passages that share most with the request, best first. Where none shares a word, the first ones: a
    /// request may well speak of "these notes" only.
    pub(crate) fn search(&self, request: &str, limit: usize) -> Result<Vec<Chosen>, Failure> {
        let hits = self.index.search(request, limit)?;
        if hits.is_empty() && !self.is_empty() {
            note("no note shares a word with the request: the first ones are shown to the model");
            return Ok(self.index.passages().iter().take(limit).map(|p| Chosen::new(p, None)).collect());
        }
        Ok(hits.iter().map(|hit| Chosen::new(hit.passage, Some(hit.score))).collect())
    }

    /// Everything, in order; passages that were cut from one section are joined again.
    pub(crate) fn whole(&self) -> Vec<Chosen> {
        join(self.index.passages())
    }
}

/// All of a text that is not a note of a folder, such as the mail to reply to.
pub(crate) fn whole_text(name: &str, text: &str) -> Vec<Chosen> {
    let document = Document::new(name, text);
    let mut chosen = join(&split(&document));
    if !text.trim_start().starts_with('#') {
        // A file name that stands for standard input or a mail is no title.
        chosen.iter_mut().for_each(|passage| passage.title.clear());
    }
    chosen
}

fn join(passages: &[Passage]) -> Vec<Chosen> {
    let mut joined: Vec<Chosen> = Vec::new();
    for passage in passages {
        let path = passage.path.display().to_string();
        match joined.last_mut() {
            Some(last) if last.source.path == path && last.title == passage.title => {
                last.text.push_str("\n\n");
                last.text.push_str(&passage.text);
            }
            _ => joined.push(Chosen::new(passage, None)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_that_was_cut_is_whole_again() {
        let text = format!("# Log\n\n{}\n\nlast", "word ".repeat(150).trim());
        let chosen = whole_text("log.md", &text);
        assert_eq!(chosen.len(), 1);
        assert_eq!(chosen[0].title, "Log");
        assert_eq!(chosen[0].text.split_whitespace().count(), 151);
    }

    #[test]
    fn a_text_without_heading_has_no_title() {
        let chosen = whole_text("-", "Dear Ada,\n\nsee you.");
        assert_eq!((chosen[0].title.as_str(), chosen[0].text.as_str()), ("", "Dear Ada,\n\nsee you."));
    }
}
