//! The sample notes of the repository with questions about them, made by the generator, with names that
//! training never used.

use serde::{Deserialize, Serialize};

use super::lexicon::Lexicon;
use super::note::{Note, is_open, kinds};
use super::template::fill;
use crate::rng::Rng;

/// Facts of a sample note.
const FACTS: usize = 6;

/// A question about the sample notes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SampleQuestion {
    /// The question.
    pub question: String,
    /// The required value.
    pub answer: String,
    /// File of the note with this fact.
    pub note: String,
}

/// A note as a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SampleNote {
    /// File name.
    pub file: String,
    /// Markdown, the title as a heading.
    pub text: String,
}

fn file_name(title: &str) -> String {
    let words: Vec<String> = title
        .split(|c: char| !c.is_alphanumeric())
        .filter(|word| !word.is_empty())
        .map(str::to_lowercase)
        .collect();
    format!("{}.md", words.join("-"))
}

/// `count` notes, one kind after another, and a question about every second of them.
pub fn notes(seed: u64, count: usize) -> (Vec<SampleNote>, Vec<SampleQuestion>) {
    let kinds: Vec<_> = kinds().collect();
    let (mut files, mut questions) = (Vec::with_capacity(count), Vec::new());
    for at in 0..count {
        let mut words = Lexicon::new(Rng::new(seed, at as u64), true);
        let note = Note::of_kind(&mut words, kinds[at % kinds.len()], FACTS);
        let file = file_name(&note.title);
        if at % 2 == 0 {
            // A value that occurs in the note only.
            if let Some(fact) = note.facts.iter().find(|fact| is_open(&fact.relation.value)) {
                let subject = fill(&mut words.rng, note.kind.subject, &[('n', &note.name)]);
                let question = format!("{}?", fact.question(&mut words, &subject));
                questions.push(SampleQuestion { question, answer: fact.value.clone(), note: file.clone() });
            }
        }
        files.push(SampleNote { file, text: format!("# {}\n\n{}\n", note.title, note.text) });
    }
    (files, questions)
}
