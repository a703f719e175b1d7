//! The notes of `--context`: read, split into passages, and searched.

use std::path::{Path, PathBuf};

use refrain_assistant::{AssistantOptions, Passage, Searched};
use refrain_index::{
    Document, Hit, PassageIndex, ReadLimits, SkipReason, read_documents, split, split_sections,
};

use crate::failure::Failure;
use crate::input::STANDARD_INPUT;
use crate::terminal::{note, visible};

/// The passages of all notes, with their search index.
pub(crate) struct Notes {
    index: PassageIndex,
    /// The notes as a whole: a passage per section.
    sections: Vec<refrain_index::Passage>,
}

impl Notes {
    /// Reads the notes at `paths`, and a text that was piped. A notice names each file that was skipped.
    pub(crate) fn read(paths: &[PathBuf], piped: Option<&str>) -> Result<Self, Failure> {
        let mut found = read_documents(paths, &ReadLimits::default())?;
        // Hidden files and pictures are skipped without a notice: users do not expect them to be read.
        let unexpected = |reason: &SkipReason| !matches!(reason, SkipReason::Hidden | SkipReason::NotASource);
        for skipped in found.skipped.iter().filter(|skipped| unexpected(&skipped.reason)) {
            note(&visible(&format!("skipped {}: {}", skipped.path.display(), skipped.reason)));
        }
        found.documents.extend(piped.map(|text| Document::new(STANDARD_INPUT, text)));
        let passages: Vec<_> = found.documents.iter().flat_map(split).collect();
        if let Some(place) = paths.first().filter(|_| passages.is_empty()) {
            let problem = format!("no text in `{}`", place.display());
            return Err(Failure::input(problem, "`refrain index add --help` lists the kinds of files"));
        }
        let sections = found.documents.iter().flat_map(split_sections).collect();
        Ok(Self { index: PassageIndex::build(passages)?, sections })
    }

    /// The `limit` passages that match the question best, best first; none if no passage covers enough of it, as in notes of an index. If it
    /// has function words only, the first passages, because it may mention only "these notes".
    pub(crate) fn for_answer(&self, question: &str, limit: usize) -> Result<Covered, Failure> {
        let hits = self.index.search(question, limit)?;
        let coverage = hits.iter().map(|hit| hit.coverage).fold(0.0, f32::max);
        let words = PassageIndex::searched_words(question);
        if words.is_empty() || coverage >= AssistantOptions::default().coverage_min {
            return self.or_first(&hits, limit).map(Covered::By);
        }
        let nearest = hits.iter().map(|hit| shown(hit.passage, Some(hit.score)));
        Ok(Covered::Not(Searched::in_vain(words, coverage, nearest.collect::<Result<_, _>>()?)))
    }

    /// As [`for_answer`](Self::for_answer), for a turn of a conversation. If the notes do not cover it, it is searched for together with the
    /// turn before it, which it may continue.
    pub(crate) fn for_turn(
        &self,
        asked: &str,
        before: Option<&str>,
        limit: usize,
    ) -> Result<Covered, Failure> {
        match (self.for_answer(asked, limit)?, before) {
            (Covered::Not(alone), Some(before)) => {
                let together = self.for_answer(&format!("{asked}\n{before}"), limit)?;
                Ok(if matches!(together, Covered::By(_)) { together } else { Covered::Not(alone) })
            }
            (covered, _) => Ok(covered),
        }
    }

    fn or_first(&self, hits: &[Hit<'_>], limit: usize) -> Result<Vec<Passage>, Failure> {
        if hits.is_empty() {
            note("no passage shares a word with the request: the prompt shows the first ones");
            return self.index.passages().iter().take(limit).map(|passage| shown(passage, None)).collect();
        }
        hits.iter().map(|hit| shown(hit.passage, Some(hit.score))).collect()
    }

    /// All sections in file order.
    pub(crate) fn whole(&self) -> Result<Vec<Passage>, Failure> {
        self.sections.iter().map(|section| shown(section, None)).collect()
    }
}

/// What notes have of a question.
pub(crate) enum Covered {
    By(Vec<Passage>),
    Not(Searched),
}

/// A passage as tasks show it. One without a heading has its place as a title.
fn shown(passage: &refrain_index::Passage, score: Option<f32>) -> Result<Passage, Failure> {
    let refrain_index::Passage { path, line, title, text } = passage;
    let title = if title.is_empty() { format!("{}:{line}", path.display()) } else { title.clone() };
    let shown = Passage::new(title, text);
    let mut shown = if path == Path::new(STANDARD_INPUT) { shown } else { shown.of_note(path)? };
    shown.source.iter_mut().for_each(|source| source.score = score);
    Ok(shown)
}
