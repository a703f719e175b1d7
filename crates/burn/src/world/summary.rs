//! Summaries: the first facts of each note in other words.

use super::answer::{Span, notes, passages, renamed};
use super::document::Chat;
use super::lexicon::Lexicon;
use super::note::Note;
use super::template::{fill, joined, sentence};
use refrain::Task;

/// Two or three sentences on a note.
fn sentences(words: &mut Lexicon, note: &Note, facts: usize) -> String {
    let subject = renamed(words, note);
    let facts = &note.facts[..note.facts.len().min(facts)];
    let mut out = Vec::new();
    for (i, pair) in facts.chunks(2).enumerate() {
        let subject = if i == 0 { subject.clone() } else { pronoun(words, note) };
        if pair.len() == 2 || words.rng.percent(50) {
            let predicates: Vec<String> = pair.iter().map(|fact| fact.predicate(words)).collect();
            out.push(sentence(&format!("{subject} {}", joined(&predicates))));
        } else {
            out.push(sentence(&pair[0].state(words, &subject)));
        }
    }
    out.join(" ")
}

fn pronoun(words: &mut Lexicon, note: &Note) -> String {
    fill(&mut words.rng, note.kind.pronoun, &[])
}

/// A chat with a request to summarise one or more notes.
pub fn chat(words: &mut Lexicon, span: Span) -> Chat {
    let notes = notes(words, span.at_most(3));
    let request = if words.rng.percent(40) {
        ""
    } else {
        words.rng.pick(&[
            "Keep it short.",
            "Write two or three sentences.",
            "What matters most?",
            "Give me the main points.",
        ])
    };
    let message = Task::Summarize.user_message(&passages(&notes), request);
    let each = if notes.len() == 1 { 4 } else { 2 };
    let parts: Vec<String> = notes.iter().map(|note| sentences(words, note, each)).collect();
    Chat::single(message, parts.join(" "))
}
