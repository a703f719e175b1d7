//! The passes of a session: its prefill, and its verification batches.

use std::sync::atomic::Ordering;

use super::Session;
use crate::draft::NodeSet;
use crate::engine::generation::GenerateError;
use crate::engine::stats::Stopwatch;
use crate::model::Interlude;
use crate::model::transformer::{ForwardError, PassEnd};
use crate::pruning::Pruned;

impl Session {
    /// Prefills everything but the newest token, calling `progress` with (tokens done, tokens to do) after each chunk.
    ///
    /// [`Session::generate`] does this by itself; calling it earlier hides the time behind the user's typing.
    ///
    /// # Errors
    /// A cancelled prefill keeps the chunks that are done and goes on from there when called again.
    pub fn prefill(&mut self, mut progress: impl FnMut(usize, usize)) -> Result<(), GenerateError> {
        self.sync_chat()?;
        self.answer_pressure();
        let end = self.tokens.len().saturating_sub(1);
        let start = self.kv.len().min(end);
        // The newest token is the root of the next batch, so its slot must be free.
        self.kv.truncate(end);
        if let Some(reader) = &mut self.reader {
            reader.extend(&self.shared.model, &self.tokens);
            reader.extend_frequent(&self.shared.model, &mut self.sources);
        }
        let pass_end = match &self.reader {
            Some(reader) if reader.reads_prefill() => PassEnd::Hidden,
            _ => PassEnd::KeysAndValues,
        };
        if let Some(graphs) = self.shared.model.graphs() {
            graphs.expect_prefill(start, end - start, self.options.prefill_chunk);
        }
        while self.kv.len() < end {
            let done = self.kv.len();
            let chunk_end = end.min(done + self.options.prefill_chunk);
            self.batch.set_chain(done, &self.tokens[done..chunk_end]);
            self.forward(pass_end)?;
            self.kv.commit_all(&self.batch);
            if pass_end == PassEnd::Hidden {
                self.calibrate_chunk(done)?;
            }
            progress(chunk_end - start, end - start);
        }
        Ok(())
    }

    /// Tells the sources the successors of the chunk that stands at `first`, while its hidden states are there.
    ///
    /// # Errors
    /// A streamed output matrix could not be read: the chunk's successors are not known, and its tokens are committed.
    fn calibrate_chunk(&mut self, first: usize) -> Result<(), ForwardError> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        let mut watch = Stopwatch::start();
        let lists = reader.list_batch(&self.shared, &mut self.workspace, self.batch.len())?;
        let listeners = self.sources.iter_mut().filter_map(|source| source.target_listener());
        listeners.for_each(|source| source.calibrate(first, lists));
        self.calibrated = self.calibrated.max(first + lists.len());
        watch.lap(&mut self.calibrate_us);
        Ok(())
    }

    /// Runs the current batch; a cancellation is taken note of once.
    pub(in crate::engine) fn forward(&mut self, end: PassEnd) -> Result<(), ForwardError> {
        self.forward_through(end, None)
    }

    /// Runs the batch of the current tree, and finds which of its nodes are `verified`. `None`: nothing was to be pruned.
    pub(in crate::engine) fn verify(&mut self) -> Result<Option<Pruned>, ForwardError> {
        self.verified = NodeSet::ALL;
        let Some(mut pruner) = self.pruner.take() else {
            return self.forward(PassEnd::Hidden).map(|()| None);
        };
        let (tree, lens) = (std::mem::take(&mut self.tree), std::mem::take(&mut self.options.verify_lens));
        let mut pass = pruner.pass(&tree, &lens);
        let result =
            self.forward_through(PassEnd::Hidden, pass.as_mut().map(|pass| pass as &mut dyn Interlude));
        let pruned = pass.and_then(|pass| pass.pruned());
        (self.tree, self.options.verify_lens, self.pruner) = (tree, lens, Some(pruner));
        self.verified = pruned.map_or(NodeSet::ALL, |pruned| pruned.kept);
        result.map(|()| pruned)
    }

    /// Whether verification batches are cut down.
    pub(in crate::engine) fn prunes(&self) -> bool {
        self.pruner.is_some()
    }

    pub(in crate::engine) fn forward_through(
        &mut self,
        end: PassEnd,
        interlude: Option<&mut dyn Interlude>,
    ) -> Result<(), ForwardError> {
        let shared = &self.shared;
        let result = shared.model.forward_through(
            shared.compute(),
            &self.batch,
            &mut self.kv,
            &mut self.workspace,
            end,
            interlude,
            &self.cancel,
        );
        if result == Err(ForwardError::Cancelled) {
            self.cancel.store(false, Ordering::Relaxed);
        }
        result
    }
}
