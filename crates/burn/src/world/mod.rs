//! The text for training the fixture models: an assistant's world of notes, meetings, mails, screens and replies.
//!
//! A document is a function of (seed, number). Any part of the corpus can therefore be made without the rest, and
//! training continues at the next document after an interruption.

pub mod answer;
pub mod document;
pub mod lexicon;
pub mod note;
pub mod prose;
pub mod relation;
pub mod reply;
pub mod rows;
pub mod sample;
pub mod summary;
pub mod template;
pub mod ui;

use crate::rng::Rng;
use answer::Span;
use document::Document;
use lexicon::Lexicon;

/// The notes of full-size documents.
pub const FULL: Span = Span { notes: [1, 4], facts: [2, 7], alike: 30, questions: [1, 6] };
/// The notes of the first documents, in which copying is easiest to learn.
pub const EASY: Span = Span { notes: [1, 1], facts: [2, 4], ..FULL };
/// The notes of a shorter document.
const SHORT: Span = Span { notes: [1, 2], facts: [2, 5], ..FULL };
/// Short, similar notes with many questions: most wrong answers contain the fact of another note.
const CLOSE: Span = Span { notes: [2, 4], facts: [2, 4], alike: 65, questions: [4, 8] };

/// The stages of training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// One short note at a time.
    Easy,
    /// Full documents, and nearly a third of repeated lines, until copying is learnt.
    Drill,
    /// The text of the four tasks.
    Full,
}

/// Draws document `number` of the corpus. Most chats answer questions, where copying a name matters.
pub fn document(seed: u64, number: u64, stage: Stage) -> Document {
    let mut words = Lexicon::new(Rng::new(seed, number), false);
    let mut span = if stage == Stage::Easy { EASY } else { FULL };
    if stage != Stage::Easy && words.rng.percent(30) && stage == Stage::Drill {
        return prose::repeat(&mut words).document();
    }
    if stage != Stage::Easy && words.rng.percent(45) {
        return answer::chat(&mut words, CLOSE).document();
    }
    if stage != Stage::Easy && words.rng.percent(35) {
        span = SHORT;
    }
    match words.rng.below(100) {
        0..=56 => answer::chat(&mut words, span).document(),
        57..=69 => summary::chat(&mut words, span).document(),
        70..=81 => reply::chat(&mut words, span).document(),
        82..=91 => ui::chat(&mut words).document(),
        92..=93 => prose::repeat(&mut words).document(),
        94..=95 => prose::small_talk(&mut words).document(),
        96..=97 => prose::pages(&mut words, span),
        _ => prose::diary(&mut words),
    }
}
