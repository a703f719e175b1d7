//! Options of an assistant and of a job.

use std::fmt;

use refrain::checkpoint::Checkpoint;
use refrain::device::MemoryEstimate;
use refrain::drafting::DraftSource;
use refrain::{CancelToken, DryOptions, EngineOptions, LoadError, LogitsProcessor, Sampling, SessionOptions};
use refrain_index::history::HistoryOptions;

/// Options of an [`Assistant`](crate::Assistant). These options change answers: `session.kv_type`, `session.context_len`,
/// `sampling`, `answer_tokens`, `n_passages`, `n_parts_max` and `system`. The others change time, and
/// which data is kept.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AssistantOptions {
    /// Options of every session. `namespace` and `history` have no effect: the assistant has its own history.
    pub session: SessionOptions,
    /// How tokens are chosen, unless the job has its own sampling. Default: greedy, with a penalty against loops
    /// ([`DryOptions::against_loops`]), which for an edit begins at 32 repeated tokens. Commands for screens ignore `sampling.dry`.
    pub sampling: Sampling,
    /// Tokens of the context that are reserved for the output, and its maximum length. `None`: 512, at most a quarter of the
    /// context. At most half of the context.
    pub answer_tokens: Option<usize>,
    /// Passages that a search shows to the model. Default 4.
    pub n_passages: usize,
    /// The least [coverage](refrain_index::NoteHit::coverage) that a question needs of a passage found, 0 to 1. If no passage to be
    /// shown has it, an answer from the notes is refused ([`TaskError::NotInNotes`](crate::TaskError::NotInNotes)), and a turn of a
    /// conversation shows no passage. With an embedder, a passage of its
    /// [`similarity_min`](refrain_index::notes::Embedder::similarity_min) is enough; if the embedder has none, nothing is refused. 0 shows
    /// what is found. Default 0.3 (`docs/measure/questions.md` has the measurement).
    pub coverage_min: f32,
    /// Passages that a search finds for drafts, the shown ones included. Default 8.
    pub n_draft_passages: usize,
    /// Maximum number of parts of a text that is summarised in parts. Further parts are left out. Default 32.
    pub n_parts_max: usize,
    /// Maximum number of parts that are summarised at the same time. Their steps share passes, which takes less time, and each has a KV
    /// cache of its own; there are fewer where the memory or the measured costs say so. Never changes a summary. Default 4.
    pub n_parts_together: usize,
    /// A system turn before every prompt.
    pub system: Option<String>,
    /// Whether the assistant keeps answers and summaries, and drafts later answers and summaries from them. It keeps them in the store
    /// if there is one, else in memory. Default `true`.
    pub history: bool,
    /// With a store: which prompts' keys and values are kept, so that later prompts do not compute the same beginning again. A token takes
    /// as many bytes as in the KV cache. Prompts of [`Assistant::prefetch`](crate::Assistant::prefetch) are always kept. Default:
    /// [`KeptPrompts::Repeated`].
    pub keeps_prompts: KeptPrompts,
    /// Maximum bytes of kept keys and values. Beyond it, the least recently used are evicted. Default 1 GiB.
    pub prefix_bytes_max: u64,
}

impl AssistantOptions {
    /// The memory of an assistant with these options, before its model is loaded: with `n_sessions` jobs and waiting conversations at a
    /// time. [`history_bytes`](MemoryEstimate::history_bytes) is what kept answers grow to: in memory, or the pages of a store. On disk, a
    /// store has up to [`prefix_bytes_max`](Self::prefix_bytes_max) beside them.
    ///
    /// # Errors
    /// As [`MemoryEstimate::new`].
    pub fn estimate_memory(
        &self,
        checkpoint: &Checkpoint,
        engine: &EngineOptions,
        n_sessions: usize,
        has_store: bool,
    ) -> Result<MemoryEstimate, LoadError> {
        let session = SessionOptions { history: self.history, ..self.session.clone() };
        let mut memory = MemoryEstimate::new(checkpoint, engine, &session, n_sessions)?;
        if has_store && self.history {
            memory.history_bytes = HistoryOptions::default().cache_bytes as u64;
        }
        Ok(memory)
    }
}

impl Default for AssistantOptions {
    fn default() -> Self {
        Self {
            session: SessionOptions::default(),
            sampling: Sampling { dry: DryOptions::against_loops(), ..Sampling::default() },
            answer_tokens: None,
            n_passages: 4,
            coverage_min: 0.3,
            n_draft_passages: 8,
            n_parts_max: 32,
            n_parts_together: 4,
            system: None,
            history: true,
            keeps_prompts: KeptPrompts::default(),
            prefix_bytes_max: 1 << 30,
        }
    }
}

/// The prompts whose keys and values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KeptPrompts {
    /// Of conversations, every prompt: the next turn goes on from it. Of other tasks, what a second prompt begins with too, 64 tokens at a
    /// time ([`PrefixStore::keep_repeated`](refrain_index::PrefixStore::keep_repeated)).
    #[default]
    Repeated,
    /// All.
    All,
    /// None.
    None,
}

/// Who waits for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// The app's own user, if the app also serves other programs. Foreground jobs go before all others: if they never pause,
    /// interactive and background jobs together get one turn in 513.
    Foreground,
    /// A person. Interactive jobs take turns.
    #[default]
    Interactive,
    /// Nobody. A background job runs while no other job does: it gives way after every step and every chunk of a
    /// prefill. If interactive jobs never pause, background jobs get one turn in 33.
    Background,
}

/// Options of one job.
#[non_exhaustive]
pub struct JobOptions {
    /// Default: interactive.
    pub priority: Priority,
    /// How tokens are chosen. `None`: as the assistant's options say. A job of several generations uses one seed for all.
    pub sampling: Option<Sampling>,
    /// As [`AssistantOptions::answer_tokens`], for this job.
    pub answer_tokens: Option<usize>,
    /// Texts before which the output ends.
    pub stop: Vec<String>,
    /// Whether the output goes on after the model's end token. Default `false`.
    pub ignore_eos: bool,
    /// Stops the job from any thread.
    pub cancel: CancelToken,
    /// Whether the answer is kept, and later answers are drafted from it. Default `true`.
    pub keep: bool,
    /// The app's own draft sources, for the last generation of the job. They never change the output.
    pub sources: Vec<Box<dyn DraftSource>>,
    /// The app's own logits processors, for the last generation of the job.
    pub processors: Vec<Box<dyn LogitsProcessor>>,
}

impl Default for JobOptions {
    fn default() -> Self {
        Self {
            priority: Priority::default(),
            sampling: None,
            answer_tokens: None,
            stop: Vec::new(),
            ignore_eos: false,
            cancel: CancelToken::new(),
            keep: true,
            sources: Vec::new(),
            processors: Vec::new(),
        }
    }
}

impl fmt::Debug for JobOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { priority, sampling, answer_tokens, stop, ignore_eos, cancel, keep, sources, processors } =
            self;
        f.debug_struct("JobOptions")
            .field("priority", priority)
            .field("sampling", sampling)
            .field("answer_tokens", answer_tokens)
            .field("stop", stop)
            .field("ignore_eos", ignore_eos)
            .field("cancel", cancel)
            .field("keep", keep)
            .field("n_sources", &sources.len())
            .field("n_processors", &processors.len())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_answers_take_memory_or_the_pages_of_a_store() {
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
        let checkpoint = Checkpoint::open(model).unwrap();
        let of = |options: AssistantOptions, n_sessions, has_store| {
            options.estimate_memory(&checkpoint, &EngineOptions::default(), n_sessions, has_store).unwrap()
        };
        let [stored, kept] = [true, false].map(|has_store| of(AssistantOptions::default(), 1, has_store));
        assert!(0 < stored.history_bytes && stored.history_bytes < kept.history_bytes);
        let none = of(AssistantOptions { history: false, ..AssistantOptions::default() }, 2, true);
        assert_eq!((none.history_bytes, none.kv_bytes), (0, 2 * stored.kv_bytes));
    }
}
