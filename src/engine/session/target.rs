//! The target part of a session: its KV cache, and the forward passes that extend it.

use crate::cancel::CancelToken;
use crate::draft::{DraftTree, HiddenStates, NodeSet};
use crate::draft_model::OwnRows;
use crate::engine::error::SessionProblem;
use crate::engine::options::SessionOptions;
use crate::engine::reader::Reader;
use crate::engine::shared::Shared;
use crate::error::SessionError;
use crate::model::kv_cache::CacheSize;
use crate::model::transformer::{ForwardError, Part, PassEnd};
use crate::model::{Batch, Hooks, Interlude, KvCache, Meanwhile, Workspace};
use crate::pruning::{Pruned, Pruner};
use refrain_trees::TokenId;

/// State of the target model for one session.
pub(in crate::engine) struct TargetState {
    pub(in crate::engine) kv: KvCache,
    pub(in crate::engine) workspace: Workspace,
    pub(in crate::engine) batch: Batch,
    /// Prunes verification batches, if the engine has a predictor.
    pruner: Option<Pruner>,
    /// Projects the target's rows for calibration and echo.
    pub(in crate::engine) reader: Option<Reader>,
    /// The layers before which a source reads the residual stream.
    pub(in crate::engine) taps: Option<[usize; 3]>,
    /// Rows that the target's own layers have drafted.
    pub(super) own_rows: Option<OwnRows>,
}

/// A verification batch after its pass.
#[derive(Debug, Clone, Copy)]
pub(in crate::engine) struct Verified {
    /// Nodes whose rows passed all layers of the target.
    pub(in crate::engine) nodes: NodeSet,
    /// The predictor's decision; `None` if pruning was not considered.
    pub(in crate::engine) pruned: Option<Pruned>,
    /// Rows that the first layers left out.
    pub(in crate::engine) n_kept: usize,
}

/// Hidden states of the rows of a pass.
#[derive(Clone, Copy)]
pub(in crate::engine) struct PassStates<'a> {
    pub(in crate::engine) workspace: &'a Workspace,
    /// The layers before which the residual stream was kept, from the prefill on.
    pub(in crate::engine) taps: Option<[usize; 3]>,
}

impl<'a> PassStates<'a> {
    /// These states of all rows; `None` if the pass kept none.
    pub(in crate::engine) fn of(self, states: HiddenStates) -> Option<&'a [f32]> {
        match states {
            HiddenStates::Final => Some(self.workspace.hidden_rows()),
            HiddenStates::Before(taps) => (self.taps == Some(taps)).then(|| self.workspace.tapped_rows()),
        }
    }
}

impl TargetState {
    /// An empty KV cache and empty buffers.
    ///
    /// # Errors
    /// There is no memory for the KV cache.
    pub(super) fn new(
        shared: &Shared,
        size: CacheSize,
        context_len: usize,
        pruner: Option<Pruner>,
        reader: Option<Reader>,
        own_rows: Option<OwnRows>,
    ) -> Result<Self, SessionError> {
        let config = shared.model.config();
        let kv = KvCache::sized(config, size)?.with_context(context_len);
        let (workspace, batch) = (Workspace::new(config), Batch::new());
        Ok(Self { kv, workspace, batch, pruner, reader, taps: None, own_rows })
    }

    /// The state of a fork: copies of the KV cache and of what drafting has in common with it, and buffers of its own.
    ///
    /// # Errors
    /// There is no memory for another KV cache or shortlist.
    pub(super) fn fork(
        &self,
        shared: &Shared,
        options: &SessionOptions,
        context_len: usize,
    ) -> Result<Self, SessionError> {
        let size = options.cache_size(shared.model.config());
        let reader = self.reader.as_ref().map(|_| Reader::new(options, &shared.model)).transpose();
        let reader = reader.map_err(SessionProblem::Shortlist)?.flatten();
        let (pruner, own_rows) =
            (self.pruner.as_ref().map(Pruner::fork), self.own_rows.as_ref().map(OwnRows::fork));
        let mut fork = Self::new(shared, size, context_len, pruner, reader, own_rows)?;
        fork.kv.copy_from(&self.kv);
        Ok(fork)
    }

    /// Hidden states of the rows of the newest pass.
    pub(in crate::engine) fn states(&self) -> PassStates<'_> {
        PassStates { workspace: &self.workspace, taps: self.taps }
    }

    /// Whether verification batches are pruned.
    pub(in crate::engine) fn prunes(&self) -> bool {
        self.pruner.is_some()
    }

    /// Runs `tokens` after the cached tokens, up to `end`. [`commit_all`](KvCache::commit_all) adds them to
    /// the KV cache.
    pub(super) fn forward_chain(
        &mut self,
        shared: &Shared,
        tokens: &[TokenId],
        end: PassEnd,
        cancel: &CancelToken,
    ) -> Result<(), ForwardError> {
        let Self { kv, workspace, batch, .. } = self;
        workspace.tap(self.taps);
        batch.set_chain(kv.len(), tokens);
        let part = Part::new(batch, kv, workspace, cancel.flag());
        shared.model.forward_through(shared.compute(), part, end, Hooks::default())
    }

    /// As [`forward_chain`](Self::forward_chain) of a streamed model, in pieces of `piece_len` tokens that share the reading of each layer.
    /// Calls `progress` with (layers done, layers of the pass).
    ///
    /// # Errors
    /// [`ForwardError`]; cached tokens may be lost.
    pub(super) fn forward_sweep(
        &mut self,
        shared: &Shared,
        tokens: &[TokenId],
        piece_len: usize,
        end: PassEnd,
        cancel: &CancelToken,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), ForwardError> {
        let Self { kv, workspace, batch, .. } = self;
        workspace.tap(self.taps);
        batch.set_chain(kv.len(), tokens);
        let part = Part::new(batch, kv, workspace, cancel.flag());
        let result = shared.model.forward_sweep(shared.compute(), part, piece_len, end, progress);
        if result.is_err() {
            workspace.release_rows();
        }
        result
    }

    /// Fills the batch of the next pass with tokens behind the cached ones.
    ///
    /// # Errors
    /// [`ForwardError`]; nothing but the batch has changed.
    pub(super) fn set_chain(&mut self, shared: &Shared, tokens: &[TokenId]) -> Result<(), ForwardError> {
        self.workspace.tap(self.taps);
        self.batch.set_chain(self.kv.len(), tokens);
        shared.model.check(&self.batch, &self.kv)
    }

    /// Fills the batch of the next pass with the rows of `tree`, padded to `n_rows`.
    ///
    /// # Errors
    /// [`ForwardError`]; nothing but the batch has changed.
    pub(in crate::engine) fn set_rows(
        &mut self,
        shared: &Shared,
        tree: &DraftTree,
        n_rows: usize,
    ) -> Result<(), ForwardError> {
        self.workspace.tap(self.taps);
        self.batch.set_tree(self.kv.len(), tree.tokens(), tree.parents(), n_rows);
        shared.model.check(&self.batch, &self.kv)
    }

    /// The part of a shared pass with the rows of [`set_rows`](Self::set_rows).
    pub(in crate::engine) fn part<'a>(&'a mut self, cancel: &'a CancelToken) -> Part<'a> {
        Part::new(&self.batch, &mut self.kv, &mut self.workspace, cancel.flag())
    }

    /// Copies keys and values of the committed text to the draft source of the target's own layers, if there is one.
    pub(in crate::engine) fn share_text(&mut self, committed: &[TokenId]) {
        if let Some(own_rows) = &mut self.own_rows {
            own_rows.read_text(committed, &self.kv);
        }
    }

    /// Runs the rows of `tree`, set by [`set_rows`](Self::set_rows), up to their final hidden states, and works `meanwhile` while layers
    /// are read. `committed` is the whole text, the root at its end; rows that the target's own layers have drafted begin
    /// behind these layers.
    ///
    /// # Errors
    /// [`ForwardError`]; committed tokens and their keys and values are unchanged.
    pub(in crate::engine) fn verify(
        &mut self,
        shared: &Shared,
        committed: &[TokenId],
        tree: &DraftTree,
        batch_lens: &[usize],
        mut meanwhile: Option<impl Meanwhile>,
        cancel: &CancelToken,
    ) -> Result<Verified, ForwardError> {
        let Self { kv, workspace, batch, pruner, own_rows, taps, .. } = self;
        let mut pass = pruner.as_mut().and_then(|pruner| pruner.pass(tree, batch_lens));
        let interlude = pass.as_mut().map(|pass| pass as &mut dyn Interlude);
        let meanwhile = meanwhile.as_mut().map(|work| work as &mut dyn Meanwhile);
        let (compute, end) = (shared.compute(), PassEnd::Hidden);
        // (Behind the layers that have computed them, rows pass no taps before.)
        let own_rows = own_rows.as_mut().filter(|_| taps.is_none());
        let kept = own_rows.and_then(|own_rows| own_rows.hand_over(committed, tree, kv));
        // Rows cannot be dropped before they join the pass.
        let kept = kept.filter(|kept| interlude.as_ref().is_none_or(|it| it.layer_idx() >= kept.layer_idx));
        let n_kept = kept.map_or(0, |kept| kept.rows.len());
        let part = Part::new(batch, kv, workspace, cancel.flag());
        shared.model.forward_through(compute, part, end, Hooks { interlude, meanwhile, kept })?;
        let pruned = pass.and_then(|pass| pass.pruned());
        Ok(Verified { nodes: pruned.map_or(NodeSet::ALL, |pruned| pruned.kept), pruned, n_kept })
    }
}
