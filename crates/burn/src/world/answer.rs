//! Questions about notes, with answers that quote or rephrase the notes.

use super::document::{Chat, Question};
use super::lexicon::Lexicon;
use super::note::{Fact, Note, kinds};
use super::template::{capitalised, fill, joined, sentence};
use refrain::{PromptPassage, Task};

/// Size of the context of questions.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// Minimum and maximum number of notes.
    pub notes: [usize; 2],
    /// Minimum and maximum number of facts per note.
    pub facts: [usize; 2],
    /// Percentage of further notes that have the kind of the first one in any case.
    pub alike: usize,
    /// Minimum and maximum number of questions; no question repeats.
    pub questions: [usize; 2],
}

impl Span {
    /// The same size with at most `notes` notes.
    pub fn at_most(self, notes: usize) -> Self {
        Self { notes: self.notes.map(|count| count.min(notes)), ..self }
    }
}

pub(super) fn between(words: &mut Lexicon, [least, most]: [usize; 2]) -> usize {
    words.rng.range(least, most)
}

/// Notes with different subjects, often several of one kind, so that only the subject distinguishes them.
pub fn notes(words: &mut Lexicon, span: Span) -> Vec<Note> {
    let count = between(words, span.notes);
    let mut notes: Vec<Note> = Vec::new();
    while notes.len() < count {
        let facts = between(words, span.facts);
        let all: Vec<_> = kinds().collect();
        let kind = match notes.first() {
            Some(first) if words.rng.percent(span.alike) => first.kind,
            _ => all[words.rng.below(all.len())],
        };
        let note = Note::of_kind(words, kind, facts);
        if notes.iter().all(|other| other.name != note.name) {
            notes.push(note);
        }
    }
    notes
}

/// The passages of a prompt.
pub fn passages(notes: &[Note]) -> Vec<PromptPassage<'_>> {
    notes.iter().map(|note| PromptPassage::new(&note.title, &note.text)).collect()
}

/// The subject in other words of the same kind: "project Velmora" for "the Velmora project".
pub fn renamed(words: &mut Lexicon, note: &Note) -> String {
    if words.rng.percent(50) {
        return note.subject.clone();
    }
    fill(&mut words.rng, note.kind.subject, &[('n', &note.name)])
}

fn ask(words: &mut Lexicon, note: &Note, fact: &Fact) -> (String, String) {
    let subject = renamed(words, note);
    let question = format!("{}?", fact.question(words, &subject));
    let answer = match words.rng.below(20) {
        0..=8 => sentence(&format!("{subject} {}", fact.predicate(words))),
        9..=15 => sentence(&fact.state(words, &subject)),
        16..=17 => {
            let source = words.rng.pick(&["according to the notes, ", "the notes say that "]);
            sentence(&format!("{source}{}", fact.state(words, &subject)))
        }
        _ => sentence(&fact.value),
    };
    (question, answer)
}

fn ask_two(words: &mut Lexicon, note: &Note, facts: [&Fact; 2]) -> (String, String) {
    let subject = renamed(words, note);
    let second = facts[1].question(words, &subject);
    let question = format!("{} and {}?", facts[0].question(words, &subject), lowered(&second));
    let both = facts.map(|fact| fact.predicate(words));
    (question, sentence(&format!("{subject} {}", joined(&both))))
}

fn lowered(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

fn ask_unknown(words: &mut Lexicon, note: &Note) -> Option<(String, String)> {
    let relation = note.unknown(words)?;
    let subject = renamed(words, note);
    let question = format!("{}?", capitalised(&fill(&mut words.rng, relation.ask, &[('s', &subject)])));
    let answer = fill(&mut words.rng, "[The notes do not say.|That is not in the notes.]", &[]);
    Some((question, answer))
}

/// A chat of questions about notes. A further question adds a tenth of the notes' cost and trains the search
/// for a fact as much.
pub fn chat(words: &mut Lexicon, span: Span) -> Chat {
    let notes = notes(words, span);
    let mut chat = Chat::default();
    let turns = between(words, span.questions);
    let mut asked: Vec<(usize, usize)> = Vec::new();
    for turn in 0..turns {
        let at = words.rng.below(notes.len());
        let note = &notes[at];
        let fact = words.rng.below(note.facts.len());
        if asked.contains(&(at, fact)) {
            continue;
        }
        asked.push((at, fact));
        let unknown = if words.rng.percent(6) { ask_unknown(words, note) } else { None };
        let (question, answer) = match unknown {
            Some(pair) => pair,
            None if note.facts.len() > fact + 1 && words.rng.percent(8) => {
                ask_two(words, note, [&note.facts[fact], &note.facts[fact + 1]])
            }
            None => ask(words, note, &note.facts[fact]),
        };
        let message =
            if turn == 0 { Task::Answer.user_message(&passages(&notes), &question) } else { question };
        chat.turn(message, answer);
    }
    chat
}

/// One question of the evaluation: the prompt and the required value.
pub fn question(words: &mut Lexicon, span: Span) -> Question {
    let notes = notes(words, span);
    let note = &notes[words.rng.below(notes.len())];
    let fact = &note.facts[words.rng.below(note.facts.len())];
    let (question, _) = ask(words, note, fact);
    Question {
        message: Task::Answer.user_message(&passages(&notes), &question),
        question,
        fact: fact.value.clone(),
    }
}
