//! Passes of several parts: rows of different sequences share the reading of the weights, and each part
//! attends to its own KV cache.
//!
//! ```text
//! rows    part 0 (batch 0, KV cache 0) │ part 1 (batch 1, KV cache 1) │ …
//! ```
//!
//! Norms, projections and the feed-forward run over all rows at once; rotations, keys and values, and
//! attention run by part. A row's arithmetic does not depend on the other rows, so a part has the bits of a
//! pass of its own. A pass of one sequence is a pass of one part.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Buffers, Compute, ForwardError, Model, Normed, PassEnd, Taps, Workspace};
use crate::kernels::{self, AttentionScratch, FloatEnv, KvLayer, StateScratch, resize_exact};
use crate::model::batch::{Batch, Form};
use crate::model::kv_cache::KvCache;
use crate::model::rows::{ActiveRows, Hooks, KeptRows, Meanwhile};
use crate::model::state::{RecurrentError, RecurrentLayer, TreeRows};
use crate::model::streamed::PassLayer;
use refrain_trees::TokenId;

/// One of the sequences of a pass: a batch behind the committed prefix of its own KV cache.
pub struct Part<'a> {
    batch: &'a Batch,
    kv: &'a mut KvCache,
    workspace: &'a mut Workspace,
    cancel: &'a AtomicBool,
    is_cancelled: bool,
}

impl<'a> Part<'a> {
    /// A part of the next pass; `cancel` ends this part only.
    pub fn new(
        batch: &'a Batch,
        kv: &'a mut KvCache,
        workspace: &'a mut Workspace,
        cancel: &'a AtomicBool,
    ) -> Self {
        Self { batch, kv, workspace, cancel, is_cancelled: false }
    }

    /// Whether the pass found the part's cancel flag set. Its rows must then not be committed.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// Reads the cancel flags of all parts.
    ///
    /// # Errors
    /// [`ForwardError::Cancelled`] if every part is cancelled.
    pub(super) fn poll(parts: &mut [Part<'_>]) -> Result<(), ForwardError> {
        let mut goes_on = false;
        for part in parts {
            part.is_cancelled |= part.cancel.load(Ordering::Relaxed);
            goes_on |= !part.is_cancelled;
        }
        if goes_on { Ok(()) } else { Err(ForwardError::Cancelled) }
    }

    /// Calls `wait` with the flag of a part that is not cancelled, and again with another part's flag if the
    /// wait was cancelled.
    ///
    /// # Errors
    /// Those of `wait`; [`ForwardError::Cancelled`] only if every part is cancelled.
    pub(super) fn wait<T>(
        parts: &mut [Part<'_>],
        mut wait: impl FnMut(&AtomicBool) -> Result<T, ForwardError>,
    ) -> Result<T, ForwardError> {
        loop {
            let waiting = parts.iter_mut().find(|part| !part.is_cancelled);
            let part = waiting.ok_or(ForwardError::Cancelled)?;
            match wait(part.cancel) {
                Err(ForwardError::Cancelled) => part.is_cancelled = true,
                result => return result,
            }
        }
    }

    /// The buffers of the rows, for the pass of which this is the first part.
    pub(super) fn take_buffers(&mut self) -> Buffers {
        std::mem::take(&mut self.workspace.buffers)
    }

    /// Gives the buffers back behind the pass.
    pub(super) fn put_buffers(&mut self, buffers: Buffers) {
        self.workspace.buffers = buffers;
    }

    pub(super) fn tokens(&self) -> &'a [TokenId] {
        self.batch.tokens()
    }

    pub(super) fn cancel(&self) -> &'a AtomicBool {
        self.cancel
    }

    /// A rotation of a position, as cosines and sines.
    pub(super) fn rope(&self, rope: usize, position: usize) -> (&[f32], &[f32]) {
        self.workspace.ropes[rope].row(position)
    }

    pub(super) fn kv_layer(&mut self, layer_idx: usize) -> &mut KvLayer {
        self.kv.layer_mut(layer_idx)
    }

    /// The state of a recurrent layer, the rows of the batch, and scratch memory.
    pub(super) fn recurrent(
        &mut self,
        layer_idx: usize,
    ) -> (&mut RecurrentLayer, &TreeRows, &mut StateScratch) {
        let Workspace { rows, states, .. } = &mut *self.workspace;
        (self.kv.recurrent_layer_mut(layer_idx), rows, states)
    }

    pub(super) fn batch(&self) -> &'a Batch {
        self.batch
    }

    pub(super) fn kv(&self) -> &KvCache {
        self.kv
    }

    /// Prepares for the written rows of the batch, and what is kept of them.
    pub(super) fn begin_rows(&mut self, hidden_dim: usize) {
        self.kv.note_written(self.batch.len());
        let Taps { layers, rows } = &mut self.workspace.taps;
        rows.clear();
        if layers.is_some() {
            rows.resize(3 * self.batch.len() * hidden_dim, f32::NAN);
        }
    }

    /// Computes the rotations of the batch's positions that are not there yet.
    pub(super) fn grow_ropes(&mut self) {
        let positions = self.batch.positions().iter();
        let n_positions = positions.map(|&p| p as usize + 1).max().unwrap_or(0);
        let context_len = self.kv.context_len();
        self.workspace.ropes.iter_mut().for_each(|rope| rope.grow(n_positions, context_len));
    }

    /// Begins a piece of a sweep in a recurrent layer: these rows of the batch.
    pub(super) fn begin_piece(&mut self, layer_idx: usize, rows: Range<usize>) -> Result<(), ForwardError> {
        self.workspace.rows.set_whole(self.batch.base() + rows.start, rows.len());
        let begun = self.kv.recurrent_layer_mut(layer_idx).begin(&self.workspace.rows);
        begun.map_err(recurrent_error)
    }

    /// Commits a piece of a sweep in a recurrent layer.
    pub(super) fn end_piece(&mut self, layer_idx: usize) {
        self.kv.recurrent_layer_mut(layer_idx).commit_all();
    }

    /// Takes back what a sweep that failed has left in the layers.
    pub(super) fn end_failed_sweep(&mut self) {
        self.kv.truncate(self.batch.base());
    }

    /// Begins a pass over the rows of the batch.
    fn begin(&mut self, hidden_dim: usize) -> Result<(), ForwardError> {
        self.begin_rows(hidden_dim);
        if !self.kv.is_recurrent() {
            return Ok(());
        }
        let (rows, base) = (&mut self.workspace.rows, self.batch.base());
        match self.batch.form() {
            (Form::Chain, parents) => rows.set_whole(base, parents.len()),
            (Form::Tree, parents) => rows.set_tree(base, parents, self.batch.len()),
            (Form::Leaves, _) => panic!("recurrent layers have no rows below rows of earlier passes"),
        }
        self.kv.begin(rows).map_err(recurrent_error)
    }

    /// Drops rows from the pass of recurrent layers.
    pub(super) fn keep(&mut self, kept: &[u32]) {
        if self.kv.is_recurrent() {
            self.workspace.rows.keep(kept);
        }
    }

    /// Keeps the residual stream `x` before a layer for the parts that read it.
    pub(super) fn tap(
        parts: &mut [Part<'_>],
        layer_idx: usize,
        active: &ActiveRows<'_>,
        x: &[f32],
        hidden_dim: usize,
    ) {
        for (part, (range, _)) in parts.iter_mut().zip(active.rows().by_part()) {
            let Taps { layers, rows } = &mut part.workspace.taps;
            let places = layers.iter().flatten().enumerate().filter(|(_, tapped)| **tapped == layer_idx);
            for (place, _) in places {
                for i in range.clone() {
                    // Rows are dropped only where there is one part.
                    let row = active.kept()[i] as usize - range.start;
                    let to = &mut rows[(3 * row + place) * hidden_dim..][..hidden_dim];
                    to.copy_from_slice(&x[i * hidden_dim..][..hidden_dim]);
                }
            }
        }
    }

    /// What attention reads and needs beside the queries.
    pub(super) fn attended(&mut self, layer_idx: usize) -> (&KvLayer, &mut AttentionScratch) {
        (self.kv.layer_mut(layer_idx), &mut self.workspace.attention)
    }
}

fn recurrent_error(error: RecurrentError) -> ForwardError {
    match error {
        RecurrentError::NotNext { base, len } => ForwardError::NotNext { base, len },
        RecurrentError::TooManyRows { n_rows, n_rows_max } => {
            ForwardError::TooManyRows { n_rows, n_rows_max }
        }
    }
}

impl Model {
    /// Runs several batches in one pass, each after the committed prefix of its own KV cache.
    ///
    /// Each part has the bits of [`Model::forward`] with its batch, in its KV cache and in its workspace. The
    /// first part's workspace holds the rows of all parts during the pass. A part whose cancel flag is set
    /// during the pass is [cancelled](Part::is_cancelled); the others go on.
    ///
    /// # Errors
    /// [`ForwardError`], for all parts: a batch does not fit (nothing was read or written), a read failed, or
    /// every part was cancelled. Committed KV entries are unchanged.
    ///
    /// # Panics
    /// If there are several parts and the layers are static graphs.
    pub fn forward_together(
        &self,
        compute: Compute<'_>,
        parts: &mut [Part<'_>],
        end: PassEnd,
    ) -> Result<(), ForwardError> {
        if parts.is_empty() {
            return Ok(());
        }
        assert!(parts.len() == 1 || self.graphs.is_none(), "static graphs run one batch at a time");
        self.run_parts(compute, parts, end, Hooks::default())
    }

    /// Runs one part or more. An interlude looks at the rows of one part.
    pub(super) fn run_parts(
        &self,
        compute: Compute<'_>,
        parts: &mut [Part<'_>],
        end: PassEnd,
        hooks: Hooks<'_>,
    ) -> Result<(), ForwardError> {
        let _env = FloatEnv::ieee();
        self.begin_parts(parts)?;
        if (hooks.interlude.is_some() || hooks.kept.is_some()) && self.graphs.is_some() {
            return Err(ForwardError::Undivided);
        }
        let mut buffers = parts[0].take_buffers();
        let result = self.run_rows(compute, parts, &mut buffers, end, hooks);
        parts[0].put_buffers(buffers);
        result
    }

    /// Checks the batches, and begins a pass over their rows.
    ///
    /// # Errors
    /// [`ForwardError`]: a batch does not fit; nothing was read or written.
    pub(super) fn begin_parts(&self, parts: &mut [Part<'_>]) -> Result<(), ForwardError> {
        parts.iter().try_for_each(|part| self.check(part.batch, part.kv))?;
        parts.iter_mut().try_for_each(|part| part.begin(self.config.hidden_dim))
    }

    /// Writes the residual streams before the first layer, and layers' own inputs, of the rows that are not `kept`.
    pub(super) fn begin_rows(
        &self,
        compute: Compute<'_>,
        parts: &mut [Part<'_>],
        ws: &mut Buffers,
        kept: Option<&KeptRows<'_>>,
    ) -> Result<(), ForwardError> {
        let config = &self.config;
        let n_kept = kept.map_or(0, |kept| kept.rows.len());
        ws.resize(config, parts.iter().map(|part| part.batch.len()).sum::<usize>() - n_kept);
        let mut x = &mut ws.x[..];
        for part in &mut *parts {
            let fresh = kept.map(|kept| {
                let tokens = (0u32..).zip(part.batch.tokens());
                let fresh = tokens.filter(|(row, _)| kept.rows.binary_search(row).is_err());
                fresh.map(|(_, &token)| token).collect::<Vec<_>>()
            });
            let tokens = fresh.as_deref().unwrap_or(part.batch.tokens());
            part.grow_ropes();
            let own = x.split_off_mut(..tokens.len() * config.hidden_dim).expect("a row for each token");
            self.embed(tokens, own)?;
            if config.embedding_scale != 1.0 {
                kernels::scale(compute.kernels, own, config.embedding_scale);
            }
        }
        self.join_hidden(compute, ws);
        self.set_per_layer(compute, parts, ws)?;
        self.begin_streams(compute, ws);
        Ok(())
    }

    fn run_rows<'a>(
        &self,
        compute: Compute<'_>,
        parts: &mut [Part<'a>],
        ws: &mut Buffers,
        end: PassEnd,
        Hooks { interlude, mut meanwhile, kept }: Hooks<'_>,
    ) -> Result<(), ForwardError> {
        let config = &self.config;
        let kept = kept.as_ref();
        self.begin_rows(compute, parts, ws, kept)?;
        let batches = parts.iter().map(|part| -> &'a Batch { part.batch });
        let mut active = ActiveRows::all(batches, std::mem::take(&mut ws.active));
        let result = match (&self.graphs, &self.streamed) {
            (None, None) => {
                let layer = |layer_idx: usize, _: &AtomicBool| {
                    Ok(std::slice::from_ref(&self.weights.layers[layer_idx]))
                };
                self.run_each(compute, layer, &mut active, parts, ws, end, interlude, kept)
            }
            (Some(graphs), _) => self.run_graphs(compute, graphs, &active.rows(), parts, ws, end),
            (None, Some(streamed)) => {
                let n_layers = self.n_layers(end);
                let pass = |cancel: &AtomicBool| {
                    let head_follows = end == PassEnd::Hidden;
                    streamed.pass(n_layers, head_follows, cancel)
                };
                Part::wait(parts, pass).and_then(|pass| {
                    let layer = |layer_idx: usize, cancel: &AtomicBool| {
                        let meanwhile = meanwhile.as_mut().map(|work| work as &mut dyn Meanwhile);
                        pass.layer(layer_idx, cancel, meanwhile)
                    };
                    self.run_each(compute, layer, &mut active, parts, ws, end, interlude, kept)
                })
            }
        };
        if result.is_ok() && end != PassEnd::KeysAndValues {
            self.end_streams(compute, ws);
            let normed = Normed { x: &ws.x, weight: &self.weights.output_norm, eps: config.norm_eps };
            normed.write(compute, &mut ws.normed);
            std::mem::swap(&mut ws.x, &mut ws.normed);
            active.put_back(&mut ws.x, config.hidden_dim);
            hand_out(&ws.x, parts, config.hidden_dim);
        }
        ws.active = active.recycled();
        result
    }
}

impl Model {
    /// Runs `batch` through the first `n_layers` layers, which are all that `kv` holds. The workspace then has the residual streams
    /// behind them. Of a streamed model the layers must be pinned; other passes may run at the same time.
    ///
    /// # Errors
    /// As [`Model::forward`]; [`ForwardError::Released`] if a layer was released under memory pressure.
    pub(crate) fn forward_first(
        &self,
        compute: Compute<'_>,
        n_layers: usize,
        part: Part<'_>,
    ) -> Result<(), ForwardError> {
        let _env = FloatEnv::ieee();
        let layers = self.first_layers(n_layers).ok_or(ForwardError::Released { n_layers })?;
        let parts = &mut [part];
        self.begin_parts(parts)?;
        let mut buffers = parts[0].take_buffers();
        let ws = &mut buffers;
        let result = self.begin_rows(compute, parts, ws, None).and_then(|()| {
            let batch = parts[0].batch;
            let active = ActiveRows::all(std::iter::once(batch), std::mem::take(&mut ws.active));
            let run = layers.iter().enumerate().try_for_each(|(layer_idx, layer)| {
                let (layer, end) = (layer.as_ref(), PassEnd::Unprojected);
                self.run_layers(compute, layer_idx, layer, &active.rows(), parts, ws, end)
            });
            ws.active = active.recycled();
            run
        });
        parts[0].put_buffers(buffers);
        result
    }

    /// The first `n_layers` layers; `None` unless all of them are in memory.
    fn first_layers(&self, n_layers: usize) -> Option<Vec<PassLayer>> {
        let streamed = self.streamed.as_ref()?;
        (0..n_layers).map(|layer_idx| streamed.pinned(layer_idx)).collect()
    }

    /// Whether the first `n_layers` layers of a streamed model are in memory now.
    pub(crate) fn has_first_layers(&self, n_layers: usize) -> bool {
        self.first_layers(n_layers).is_some()
    }
}

/// Copies the rows of all parts but the first to their own workspaces.
fn hand_out(x: &[f32], parts: &mut [Part<'_>], hidden_dim: usize) {
    let mut first = parts[0].batch.len();
    for part in &mut parts[1..] {
        let end = first + part.batch.len();
        let (from, to) = (&x[first * hidden_dim..end * hidden_dim], &mut part.workspace.buffers.x);
        resize_exact(to, from.len());
        to.copy_from_slice(from);
        first = end;
    }
}
