//! Prefill: computes the KV cache entries of the prompt, chunk by chunk.

use std::ops::Range;

use super::Session;
use crate::cancel::CancelToken;
use crate::draft::HiddenStates;
use crate::engine::reader::Reader;
use crate::engine::stats::Stopwatch;
use crate::error::GenerateError;
use crate::face::internals;
use crate::model::state::Purpose;
use crate::model::transformer::{ForwardError, PassEnd};

impl Session {
    /// Prefills all tokens except the newest, and calls `progress` with (tokens done, tokens to do) after
    /// each chunk.
    ///
    /// [`Session::generate`] prefills automatically. An earlier call overlaps prefill with the user's typing.
    ///
    /// # Errors
    /// The turns cannot be encoded or do not fit: the newest turn is removed. A pass failed or was cancelled: finished chunks stay,
    /// and a later call continues after them.
    pub fn prefill(
        &mut self,
        cancel: &CancelToken,
        progress: impl FnMut(u64, u64),
    ) -> Result<(), GenerateError> {
        self.encode_turns()?;
        self.prefill_tokens(cancel, progress, &mut 0.0)
    }

    internals! {
        /// Prefills the next chunk of at most [`SessionOptions::prefill_chunk`](crate::SessionOptions::prefill_chunk) tokens.
        /// Returns the prompt tokens in the KV cache and those that it will contain: equal if nothing is left to do.
        ///
        /// An app that lets other work run between the chunks of a long prompt calls this instead of
        /// [`prefill`](Self::prefill).
        ///
        /// # Errors
        /// As [`prefill`](Self::prefill).
        fn prefill_chunk(&mut self, cancel: &CancelToken) -> Result<(usize, usize), GenerateError> {
            self.encode_turns()?;
            let (end, pass_end) = self.prepare_prefill(cancel);
            if self.target.kv.len() < end {
                self.prefill_next(end, pass_end, cancel, &mut 0.0)?;
            }
            Ok((self.target.kv.len(), end))
        }
    }

    /// As [`prefill`](Self::prefill), for encoded turns. Adds the time of calibration to `calibrate_us`.
    pub(in crate::engine) fn prefill_tokens(
        &mut self,
        cancel: &CancelToken,
        mut progress: impl FnMut(u64, u64),
        calibrate_us: &mut f64,
    ) -> Result<(), GenerateError> {
        let (end, pass_end) = self.prepare_prefill(cancel);
        let start = self.target.kv.len();
        while self.target.kv.len() < end {
            self.prefill_next(end, pass_end, cancel, calibrate_us)?;
            progress((self.target.kv.len() - start) as u64, (end - start) as u64);
        }
        // The next turn often changes how this answer is written, and goes on from here.
        self.target.kv.checkpoint(self.shared.compute(), Purpose::Prompt);
        Ok(())
    }

    /// Prepares target and sources for a prefill. Returns the number of tokens to be in the KV cache, and the end of
    /// the passes.
    fn prepare_prefill(&mut self, cancel: &CancelToken) -> (usize, PassEnd) {
        // Before any other call of a source.
        self.drafting.sources.recover();
        self.answer_pressure(cancel);
        let Self { shared, options, conversation, target, drafting, .. } = self;
        let tokens = &conversation.tokens;
        let end = tokens.len().saturating_sub(1);
        // The newest token is the root of the next batch, so its slot must be free.
        target.kv.truncate(end);
        let start = target.kv.len();
        if let Some(reader) = &mut target.reader {
            reader.extend(&shared.model, tokens);
            drafting.sources.guarded(|sources| reader.extend_frequent(&shared.model, sources));
        }
        let [last, before] = drafting.sources.reads_hidden();
        target.taps = before.and_then(HiddenStates::taps);
        let n_layers = shared.model.config().last_stateful_layer() + 1;
        let is_behind = |taps: &[usize; 3]| taps.iter().any(|&layer_idx| layer_idx >= n_layers);
        let pass_end = match target.reader.as_ref().and_then(Reader::prefill_end) {
            Some(pass_end) => pass_end,
            _ if last.is_some() || target.taps.as_ref().is_some_and(is_behind) => PassEnd::Unprojected,
            _ => PassEnd::KeysAndValues,
        };
        if let Some(graphs) = shared.model.graphs() {
            graphs.expect_prefill(start, end - start, options.prefill_chunk);
        }
        (end, pass_end)
    }

    /// Prefills the next chunk before `end`.
    fn prefill_next(
        &mut self,
        end: usize,
        pass_end: PassEnd,
        cancel: &CancelToken,
        calibrate_us: &mut f64,
    ) -> Result<(), GenerateError> {
        let done = self.target.kv.len();
        let limit = end.min(done + self.options.prefill_chunk);
        // Recurrent layers have a state only where a pass ends.
        let remembered = self.remembered.filter(|at| (done + 1..=limit).contains(at));
        let chunk_end = remembered.unwrap_or(limit);
        let chunk = &self.conversation.tokens[done..chunk_end];
        self.target.forward_chain(&self.shared, chunk, pass_end, cancel)?;
        self.target.kv.commit_all(&self.target.batch);
        if remembered.is_some() {
            self.target.kv.checkpoint(self.shared.compute(), Purpose::Snapshot);
        }
        self.read_hidden(done..chunk_end, pass_end, cancel);
        if self.target.reader.as_ref().is_some_and(|reader| reader.prefill_end().is_some()) {
            let mut watch = Stopwatch::start();
            self.calibrate_chunk(done, cancel)?;
            watch.lap(calibrate_us);
        }
        Ok(())
    }

    /// Passes the hidden states of the chunk at `positions` to the sources that read them.
    fn read_hidden(&mut self, positions: Range<usize>, pass_end: PassEnd, cancel: &CancelToken) {
        if self.is_dormant() {
            return;
        }
        let Self { conversation, target, drafting, .. } = self;
        for states in drafting.sources.reads_hidden().into_iter().flatten() {
            let is_there = states != HiddenStates::Final || pass_end != PassEnd::KeysAndValues;
            let rows = if is_there { target.states().of(states) } else { None };
            if let Some(rows) = rows {
                drafting.sources.read_hidden(&conversation.tokens, positions.clone(), (states, rows), cancel);
            }
        }
    }

    /// Passes the successor lists of the chunk at position `first` to the sources, while its hidden states
    /// are valid.
    ///
    /// # Errors
    /// A streamed output matrix could not be read, or `cancel` was set meanwhile: the chunk's tokens are
    /// committed, but their successor lists are missing.
    fn calibrate_chunk(&mut self, first: usize, cancel: &CancelToken) -> Result<(), ForwardError> {
        let Self { shared, conversation, target, drafting, .. } = self;
        let Some(reader) = &mut target.reader else { return Ok(()) };
        let lists = reader.list_batch(shared, &mut target.workspace, target.batch.len(), cancel.flag())?;
        drafting.sources.calibrate(&conversation.tokens, first, lists);
        Ok(())
    }
}
