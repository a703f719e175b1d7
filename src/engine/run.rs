//! State of one running generation.

use std::collections::VecDeque;

use crate::cancel::CancelToken;
use crate::draft::{Learned, RejectionCounter};
use crate::engine::event::TokenEvent;
use crate::engine::output::Output;
use crate::engine::projection::Projection;
use crate::engine::stats::Stats;
use crate::verify::{LogitsProcessor, Sampler, Walk};
use refrain_stream::Flow;
use refrain_tokenizer::{ReasoningSplitter, TextKind, Tokenizer};
use refrain_trees::TokenId;

/// A generation without its session.
pub(super) struct Run {
    pub(super) cancel: CancelToken,
    pub(super) sampler: Sampler,
    /// The seed of the random numbers; `None` at temperature 0.
    pub(super) seed: Option<u64>,
    pub(super) processors: Vec<Box<dyn LogitsProcessor>>,
    pub(super) output: Output,
    /// Splits the text of the taken tokens.
    pub(super) reasoning: ReasoningSplitter,
    /// The same text, collected by kind.
    pub(super) answer: AnswerText,
    pub(super) projection: Projection,
    /// The learned state at the start of the generation.
    pub(super) learned: Learned,
    pub(super) stats: Stats,
    pub(super) rejections: RejectionCounter,
    /// Committed tokens whose events the app has not taken.
    pub(super) events: VecDeque<CommittedToken>,
    /// Tokens of the newest step that the app has taken.
    pub(super) n_taken: usize,
    pub(super) prompt_len: usize,
    /// Whether the session is prepared to read the prompt in the steps of others.
    pub(super) reads_prompt: bool,
    /// Flash traffic at the start of the generation, and at the end of its prefill.
    pub(super) flows: [Flow; 2],
    /// The energy meter at the end of the prefill.
    pub(super) joules: Option<f64>,
    /// Buffers of the walk.
    pub(super) scratch: WalkScratch,
}

/// A committed token on its way to the app.
pub(super) struct CommittedToken {
    pub(super) event: TokenEvent,
    /// The source that drafted the token, as an index into [`Stats::sources`].
    pub(super) source: Option<usize>,
}

/// The text of an output by kind, without the markers.
#[derive(Default)]
pub(super) struct AnswerText {
    pub(super) reasoning: String,
    pub(super) answer: String,
}

/// Buffers of the walk, kept between steps.
#[derive(Default)]
pub(super) struct WalkScratch {
    /// The committed text, followed by the path.
    pub(super) text: Vec<TokenId>,
    pub(super) walk: Walk,
    /// The text that becomes final with each token of the path.
    pub(super) pieces: Vec<String>,
}

impl Run {
    /// Takes the next committed token, if any: counts it and classifies its text as reasoning or answer.
    pub(super) fn take_token(&mut self, tokenizer: &Tokenizer) -> Option<TokenEvent> {
        let CommittedToken { mut event, source } = self.events.pop_front()?;
        if tokenizer.is_special(event.id) {
            let token = String::from_utf8_lossy(tokenizer.token_bytes(event.id).unwrap_or_default());
            self.reasoning.push_control(&token, &mut event.segments);
        }
        self.reasoning.push(&event.text, &mut event.segments);
        self.answer.push(&event.segments);
        self.output.take(&event.text);
        self.n_taken += 1;
        self.stats.tokens += 1;
        if let Some(source) = source {
            self.stats.sources[source].accepted += 1;
        }
        if self.events.is_empty() {
            self.count_step();
        }
        Some(event)
    }

    /// Splits the text that the output had held back, and ends the reasoning.
    pub(super) fn end_text(&mut self, held: &str) -> Vec<(TextKind, String)> {
        let mut segments = Vec::new();
        self.reasoning.push(held, &mut segments);
        self.reasoning.finish(&mut segments);
        self.answer.push(&segments);
        segments
    }

    /// Counts the newest step; no more of its tokens will be taken.
    pub(super) fn count_step(&mut self) {
        let n_taken = std::mem::take(&mut self.n_taken);
        self.stats.count_step(n_taken);
    }
}

impl AnswerText {
    fn push(&mut self, segments: &[(TextKind, String)]) {
        for (kind, text) in segments {
            match kind {
                TextKind::Reasoning => self.reasoning.push_str(text),
                _ => self.answer.push_str(text),
            }
        }
    }
}
