//! Prefill: computes the KV cache entries of the prompt, chunk by chunk.

use std::ops::Range;
use std::sync::Arc;

use super::Session;
use crate::cancel::CancelToken;
use crate::draft::HiddenStates;
use crate::engine::policy::MemoryPressure;
use crate::engine::reader::Reader;
use crate::engine::shared::Shared;
use crate::engine::stats::Stopwatch;
use crate::error::GenerateError;
use crate::face::internals;
use crate::model::state::Purpose;
use crate::model::streamed::SweepMemory;
use crate::model::transformer::{ForwardError, PassEnd};

/// How many tokens a pass of the prefill may have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Those of a chunk.
    Chunk,
    /// Of a streamed model, those of a sweep.
    Sweep,
}

impl Session {
    /// Prefills all tokens except the newest, and calls `progress` with (tokens done, tokens to do) after
    /// each chunk.
    ///
    /// A streamed model reads its weights once per up to 8,192 tokens, as its budget allows
    /// ([`StreamMemory::prompt_bytes`](crate::streaming::StreamMemory::prompt_bytes)): these tokens pass layer by layer, and the
    /// share of the layers that are done counts as tokens.
    ///
    /// [`Session::generate`] prefills automatically. An earlier call overlaps prefill with the user's typing.
    ///
    /// # Errors
    /// The turns cannot be encoded or do not fit: the newest turn is removed. A pass failed or was cancelled: finished passes stay,
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
            self.prefill_once(Reach::Chunk, cancel, &mut |_, _| {})
        }

        /// As [`prefill_chunk`](Self::prefill_chunk), of a streamed model as many tokens as one pass over its weights may compute. Meanwhile
        /// it calls `progress` with the tokens that are done, as far as layers count as tokens, and those to be done.
        ///
        /// # Errors
        /// As [`prefill`](Self::prefill).
        fn prefill_pass(
            &mut self,
            cancel: &CancelToken,
            mut progress: impl FnMut(usize, usize),
        ) -> Result<(usize, usize), GenerateError> {
            self.prefill_once(Reach::Sweep, cancel, &mut progress)
        }
    }

    fn prefill_once(
        &mut self,
        reach: Reach,
        cancel: &CancelToken,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(usize, usize), GenerateError> {
        self.encode_turns()?;
        let (end, pass_end) = self.prepare_prefill(cancel);
        if self.target.kv.len() < end {
            self.prefill_next(end, pass_end, reach, cancel, &mut 0.0, &mut |done| progress(done, end))?;
        }
        Ok((self.target.kv.len(), end))
    }

    /// Fills the batch of the next pass with the next tokens of the prompt, at most `n_rows_max` and those of a chunk. Returns their positions:
    /// none if nothing is left to do. Only the first call for a prompt prepares the readers of rows, which takes longer than a row.
    ///
    /// # Errors
    /// [`ForwardError`]; nothing but the batch has changed.
    pub(in crate::engine) fn set_prompt_rows(
        &mut self,
        n_rows_max: usize,
        is_first: bool,
        cancel: &CancelToken,
    ) -> Result<Range<usize>, ForwardError> {
        let end = if is_first {
            self.prepare_prefill(cancel).0
        } else {
            self.drafting.sources.recover();
            self.answer_pressure(cancel);
            self.conversation.tokens.len().saturating_sub(1)
        };
        let Self { shared, options, conversation, target, remembered, .. } = self;
        let done = target.kv.len();
        let limit = end.min(done + n_rows_max.min(options.prefill_chunk));
        // As in a chunk of its own.
        let limit = remembered.filter(|at| (done + 1..=limit).contains(at)).unwrap_or(limit);
        if done < limit {
            target.set_chain(shared, &conversation.tokens[done..limit])?;
        }
        Ok(done..limit)
    }

    /// Commits the rows of [`set_prompt_rows`](Self::set_prompt_rows) behind their pass to the final hidden states. Adds the time of
    /// calibration to `calibrate_us`.
    ///
    /// # Errors
    /// As [`calibrate_chunk`](Self::calibrate_chunk).
    pub(in crate::engine) fn commit_prompt_rows(
        &mut self,
        positions: Range<usize>,
        cancel: &CancelToken,
        calibrate_us: &mut f64,
    ) -> Result<(), ForwardError> {
        self.target.kv.commit_all(&self.target.batch);
        if self.remembered == Some(positions.end) {
            self.target.kv.checkpoint(self.shared.compute(), Purpose::Snapshot);
        }
        self.read_pass(positions, PassEnd::Hidden, cancel, calibrate_us)
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
            let report = &mut |done: usize| progress((done - start) as u64, (end - start) as u64);
            self.prefill_next(end, pass_end, Reach::Sweep, cancel, calibrate_us, report)?;
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
            graphs.expect_prefill(start, end - start, options.prefill_chunk, cancel.flag());
        }
        (end, pass_end)
    }

    /// Prefills the next chunk before `end`, or as many chunks as a sweep may have. Calls `progress` with the tokens in the KV cache.
    fn prefill_next(
        &mut self,
        end: usize,
        pass_end: PassEnd,
        reach: Reach,
        cancel: &CancelToken,
        calibrate_us: &mut f64,
        progress: &mut dyn FnMut(usize),
    ) -> Result<(), GenerateError> {
        let done = self.target.kv.len();
        let chunk_len = self.options.prefill_chunk;
        let shared = Arc::clone(&self.shared);
        let sweep = match reach {
            Reach::Sweep if end - done > chunk_len => self.sweep_memory(&shared),
            _ => None,
        };
        let sweep_len = sweep.as_ref().map_or(0, |memory| memory.n_rows(self.target.taps.is_some()));
        let limit = end.min(done + chunk_len.max(sweep_len));
        // Recurrent layers have a state only where a pass ends.
        let remembered = self.remembered.filter(|at| (done + 1..=limit).contains(at));
        let chunk_end = remembered.unwrap_or(limit);
        let chunk = &self.conversation.tokens[done..chunk_end];
        let is_sweep = chunk.len() > chunk_len;
        if is_sweep {
            let mut report = |layers: usize, n_layers: usize| {
                // The whole is reported behind the pass.
                if layers < n_layers {
                    progress(done + (chunk_end - done) * layers / n_layers);
                }
            };
            self.target.forward_sweep(&shared, chunk, chunk_len, pass_end, cancel, &mut report)?;
        } else {
            self.target.forward_chain(&shared, chunk, pass_end, cancel)?;
        }
        self.target.kv.commit_all(&self.target.batch);
        if remembered.is_some() {
            self.target.kv.checkpoint(shared.compute(), Purpose::Snapshot);
        }
        let read = self.read_pass(done..chunk_end, pass_end, cancel, calibrate_us);
        if is_sweep {
            self.target.workspace.release_rows();
        }
        read?;
        progress(chunk_end);
        Ok(())
    }

    /// The memory for a sweep, if there is any: the model is streamed, no other session has it, and nothing asks for less memory.
    fn sweep_memory<'a>(&self, shared: &'a Shared) -> Option<SweepMemory<'a>> {
        let is_relaxed = self.pressure.level == MemoryPressure::Normal;
        shared.model.streamed().filter(|_| is_relaxed && self.target.kv.is_swept())?.sweep_memory()
    }

    /// Passes the rows of the newest pass, which are those at `positions`, to the sources that read them, chunk by chunk.
    ///
    /// # Errors
    /// As [`calibrate_chunk`](Self::calibrate_chunk).
    pub(in crate::engine) fn read_pass(
        &mut self,
        positions: Range<usize>,
        pass_end: PassEnd,
        cancel: &CancelToken,
        calibrate_us: &mut f64,
    ) -> Result<(), ForwardError> {
        let is_listed = self.target.reader.as_ref().is_some_and(|reader| reader.prefill_end().is_some());
        for start in positions.clone().step_by(self.options.prefill_chunk) {
            let chunk = start..positions.end.min(start + self.options.prefill_chunk);
            let first_row = start - positions.start;
            self.read_hidden(chunk.clone(), first_row, pass_end, cancel);
            if is_listed {
                let mut watch = Stopwatch::start();
                self.calibrate_chunk(start, first_row..first_row + chunk.len(), cancel)?;
                watch.lap(calibrate_us);
            }
        }
        Ok(())
    }

    /// Passes the hidden states of the chunk at `positions`, from row `first_row` of the pass on, to the sources that read them.
    fn read_hidden(
        &mut self,
        positions: Range<usize>,
        first_row: usize,
        pass_end: PassEnd,
        cancel: &CancelToken,
    ) {
        if self.is_dormant() {
            return;
        }
        let Self { shared, conversation, target, drafting, .. } = self;
        for states in drafting.sources.reads_hidden().into_iter().flatten() {
            let is_there = states != HiddenStates::Final || pass_end != PassEnd::KeysAndValues;
            let rows = if is_there { target.states().of(states) } else { None };
            if let Some(rows) = rows {
                let row_len = states.row_len(shared.model.config().hidden_dim);
                let rows = &rows[first_row * row_len..][..positions.len() * row_len];
                drafting.sources.read_hidden(&conversation.tokens, positions.clone(), (states, rows), cancel);
            }
        }
    }

    /// Passes the successor lists of the chunk at position `first`, these rows of the pass, to the sources, while its hidden states
    /// are valid.
    ///
    /// # Errors
    /// A streamed output matrix could not be read, or `cancel` was set meanwhile: the chunk's tokens are
    /// committed, but their successor lists are missing.
    fn calibrate_chunk(
        &mut self,
        first: usize,
        rows: Range<usize>,
        cancel: &CancelToken,
    ) -> Result<(), ForwardError> {
        let Self { shared, conversation, target, drafting, .. } = self;
        let Some(reader) = &mut target.reader else { return Ok(()) };
        let lists = reader.list_batch(shared, &mut target.workspace, rows, cancel.flag())?;
        drafting.sources.calibrate(&conversation.tokens, first, lists);
        Ok(())
    }
}
