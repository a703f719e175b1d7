//! Sweeps: passes over a long prompt of a streamed model, which read each layer once.
//!
//! ```text
//! layer 0:  piece 0, piece 1, …, piece n     layer 1:  piece 0, piece 1, …, piece n     …
//! ```
//!
//! A piece has the length of a prefill chunk, so the buffers of a layer are those of a chunk. Between the layers only the residual
//! streams of all rows are kept. A row sees rows before it only, whose keys and values in the layer at hand exist: in its own piece, in
//! earlier ones, or in the cache. So its bits are those of a pass over its piece.
//!
//! Recurrent layers commit each piece, and so have the states and checkpoints of a prefill in chunks. If a sweep fails, they return to the
//! newest checkpoint before it, and with them the whole cache ([`KvCache::truncate`](crate::model::KvCache::truncate)).
//!
//! Experts that are read on request follow the router. They compute the rows of all pieces together, so that each is read once per
//! sweep and layer.

use std::ops::Range;

use super::{At, Buffers, Compute, ForwardError, Model, Normed, Part, PassEnd, experts};
use crate::kernels::{self, FloatEnv, resize_exact};
use crate::model::batch::PREFILL_CHUNK_MAX;
use crate::model::config::{FeedForward, Mixer, ModelConfig};
use crate::model::rows::{ActiveRows, Rows};
use crate::model::streamed::Streamed;

/// Maximum rows of a sweep.
pub(in crate::model) const SWEEP_ROWS_MAX: usize = PREFILL_CHUNK_MAX;

/// Bytes of a row's token, position and visible slots.
const ROW_BYTES: u64 = 128;

/// Maximum bytes of a sweep over `n_rows` rows, beside the buffers of a piece. `taps`: a draft source reads residual streams before three
/// layers. `None` if the model runs no sweeps: layers' own inputs, or several residual streams, take more memory than chunks save reads.
pub(in crate::model) fn sweep_bytes(
    config: &ModelConfig,
    reads_experts: bool,
    taps: bool,
    n_rows: usize,
) -> Option<u64> {
    if config.per_layer.is_some() || config.streams.is_some() {
        return None;
    }
    let hidden_bytes = 4 * config.hidden_dim as u64;
    let mut row_bytes = hidden_bytes * if taps { 4 } else { 1 } + ROW_BYTES;
    let mut bytes = 0;
    if reads_experts {
        let shared_dims = config.layers.iter().filter_map(|layer| match &layer.feed {
            FeedForward::Experts(experts) => Some(experts.shared_ffn_dim),
            _ => None,
        });
        let shared_dim = shared_dims.max().unwrap_or(0) as u64;
        // Normed and projected rows, their activations, and the shared network.
        row_bytes += 2 * hidden_bytes + 6 * shared_dim.max(config.hidden_dim as u64) + 8 * shared_dim;
        bytes += experts::bytes(config, n_rows);
    }
    Some(row_bytes.saturating_mul(n_rows as u64).saturating_add(bytes))
}

impl Model {
    /// Runs the chain of a part of a streamed model in pieces of `piece_len` rows, each layer over all of them before the next one. Afterwards
    /// the part is as after [`forward`](Self::forward), and its recurrent layers are committed: to be followed by
    /// [`commit_all`](crate::model::KvCache::commit_all). Calls `progress` with (layers done, layers of the pass).
    ///
    /// # Errors
    /// As [`forward`](Self::forward); the cache then has the tokens before the sweep, or fewer: the state of recurrent layers, or of bounded
    /// windows, may be lost.
    ///
    /// # Panics
    /// If the model is not streamed, or it or the cache [runs no sweeps](crate::model::KvCache::is_swept).
    pub(crate) fn forward_sweep(
        &self,
        compute: Compute<'_>,
        part: Part<'_>,
        piece_len: usize,
        end: PassEnd,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), ForwardError> {
        let _env = FloatEnv::ieee();
        let streamed = self.streamed.as_ref().expect("sweeps read a streamed model");
        assert!(self.config.per_layer.is_none() && self.config.streams.is_none() && part.kv().is_swept());
        self.check_pieces(part.batch(), piece_len, part.kv())?;
        let parts = &mut [part];
        parts[0].begin_rows(self.config.hidden_dim);
        let mut buffers = parts[0].take_buffers();
        let result = self.sweep(compute, streamed, parts, piece_len, &mut buffers, end, progress);
        parts[0].put_buffers(buffers);
        if result.is_err() {
            parts[0].end_failed_sweep();
        }
        result
    }

    #[allow(clippy::too_many_arguments, reason = "the arguments of one pass")]
    fn sweep(
        &self,
        compute: Compute<'_>,
        streamed: &Streamed,
        parts: &mut [Part<'_>],
        piece_len: usize,
        ws: &mut Buffers,
        end: PassEnd,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), ForwardError> {
        let (hidden_dim, n_layers) = (self.config.hidden_dim, self.n_layers(end));
        let batch = parts[0].batch();
        let mut residual = std::mem::take(&mut ws.x);
        resize_exact(&mut residual, batch.len() * hidden_dim);
        parts[0].grow_ropes();
        self.embed(batch.tokens(), &mut residual)?;
        if self.config.embedding_scale != 1.0 {
            kernels::scale(compute.kernels, &mut residual, self.config.embedding_scale);
        }
        let active = ActiveRows::all(std::iter::once(batch), std::mem::take(&mut ws.active));
        let pass = Part::wait(parts, |cancel| streamed.pass(n_layers, end == PassEnd::Hidden, cancel))?;
        for layer_idx in 0..n_layers {
            Part::tap(parts, layer_idx, &active, &residual, hidden_dim);
            let leased = Part::wait(parts, |cancel| pass.layer(layer_idx, cancel, None))?;
            let [layer] = leased.as_ref() else { unreachable!("one layer at a time") };
            let at = At { compute, plan: &self.config.layers[layer_idx], layer, layer_idx };
            self.sweep_layer(&at, &active.rows(), parts, piece_len, &mut residual, ws, end)?;
            progress(layer_idx + 1, n_layers);
        }
        drop(pass);
        if end != PassEnd::KeysAndValues {
            Part::tap(parts, self.config.n_layers(), &active, &residual, hidden_dim);
            let weight = &self.weights.output_norm;
            for rows in residual.chunks_mut(piece_len * hidden_dim) {
                resize_exact(&mut ws.normed, rows.len());
                Normed { x: rows, weight, eps: self.config.norm_eps }.write(compute, &mut ws.normed);
                rows.copy_from_slice(&ws.normed);
            }
        }
        ws.active = active.recycled();
        ws.x = residual;
        Ok(())
    }

    /// Runs all pieces through one layer.
    #[allow(clippy::too_many_arguments, reason = "the arguments of one pass")]
    fn sweep_layer(
        &self,
        at: &At<'_>,
        rows: &Rows<'_>,
        parts: &mut [Part<'_>],
        piece_len: usize,
        residual: &mut Vec<f32>,
        ws: &mut Buffers,
        end: PassEnd,
    ) -> Result<(), ForwardError> {
        let (hidden_dim, n_rows) = (self.config.hidden_dim, rows.positions.len());
        let is_recurrent = !matches!(at.plan.mixer, Mixer::Attention(_));
        let last_idx = self.last_partial_layer(end);
        let feeds_together = matches!(at.plan.feed, FeedForward::Experts(_)) && !at.layer.has_experts();
        for start in (0..n_rows).step_by(piece_len) {
            let piece = start..n_rows.min(start + piece_len);
            if is_recurrent {
                parts[0].begin_piece(at.layer_idx, piece.clone())?;
            }
            let values = &mut residual[piece.start * hidden_dim..piece.end * hidden_dim];
            ws.resize(&self.config, piece.len());
            ws.x.copy_from_slice(values);
            let goes_on = self.mix(at, last_idx, &piece_of(rows, piece.clone()), parts, ws)?;
            if goes_on && !feeds_together {
                self.feed(at, parts, ws)?;
            }
            values.copy_from_slice(&ws.x);
            if is_recurrent {
                parts[0].end_piece(at.layer_idx);
            }
        }
        if feeds_together && at.layer_idx != last_idx {
            std::mem::swap(&mut ws.x, residual);
            ws.resize(&self.config, n_rows);
            let fed = self.feed(at, parts, ws);
            std::mem::swap(&mut ws.x, residual);
            return fed;
        }
        Ok(())
    }
}

/// Some of the rows of one part.
fn piece_of<'a>(rows: &Rows<'a>, piece: Range<usize>) -> Rows<'a> {
    Rows {
        slots: &rows.slots[piece.clone()],
        positions: &rows.positions[piece.clone()],
        visible: &rows.visible[piece],
        starts: &[0],
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::kernels::{Kernels, KvType, Pool};
    use crate::model::batch::{Batch, VariedTokens};
    use crate::model::checkpoint::Checkpoint;
    use crate::model::kv_cache::KvCache;
    use crate::model::packed::pack;
    use crate::model::transformer::Workspace;
    use crate::model::weights::{LoadOptions, Quantize};
    use refrain_stream::{Pinned, StreamOptions};

    const PIECE: usize = 16;
    const N_ROWS: usize = 120;

    /// The golden model of a family, packed at `path` and streamed, no layer of it kept in memory.
    fn streamed(family: &str, path: &Path) -> Model {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/");
        let checkpoint = Checkpoint::open(format!("{folder}{family}")).unwrap();
        let keep = LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() };
        pack(&checkpoint, path, keep).unwrap();
        let checkpoint = Checkpoint::open(path).unwrap();
        let streaming = StreamOptions::new(Pinned::Layers(0));
        Model::load(&checkpoint, LoadOptions { streaming: Some(&streaming), ..LoadOptions::default() })
            .unwrap()
    }

    /// The buffers are those of a piece and what is planned for the rows of a sweep. The final hidden states are those of pieces.
    #[test]
    fn a_sweep_takes_the_planned_memory() {
        for family in ["qwen3", "qwen3_moe", "lfm2_moe", "gpt_oss"] {
            let dir = tempfile::tempdir().unwrap();
            let model = streamed(family, &dir.path().join("model.refrain"));
            let config = model.config();
            let pool = Pool::new(1);
            let compute = Compute { kernels: Kernels::detect(), pool: &pool };
            let (never, end) = (AtomicBool::new(false), PassEnd::Unprojected);
            let n_slots = N_ROWS + PIECE;
            let mut tokens = VariedTokens::new(config.vocab_size);
            let tokens = tokens.draw(N_ROWS);
            let new = || {
                (KvCache::new(config, KvType::F32, n_slots).unwrap(), Workspace::new(config), Batch::new())
            };

            let (mut kv, mut workspace, mut batch) = new();
            let mut expected = Vec::new();
            for piece in tokens.chunks(PIECE) {
                batch.set_chain(kv.len(), piece);
                model.forward(compute, &batch, &mut kv, &mut workspace, end, &never).unwrap();
                kv.commit_all(&batch);
                expected.extend(workspace.hidden_rows().iter().map(|x| x.to_bits()));
            }
            let (mut kv, mut workspace, mut batch) = new();
            batch.set_chain(0, &tokens);
            let part = Part::new(&batch, &mut kv, &mut workspace, &never);
            let mut n_reports = 0;
            model.forward_sweep(compute, part, PIECE, end, &mut |_, _| n_reports += 1).unwrap();
            kv.commit_all(&batch);
            assert_eq!((kv.len(), n_reports), (N_ROWS, config.n_layers()), "{family}");
            let found: Vec<u32> = workspace.hidden_rows().iter().map(|x| x.to_bits()).collect();
            assert!(found == expected, "{family}: bits differ");
            let has_experts = model.streamed().is_some_and(Streamed::reads_experts);
            let planned = sweep_bytes(config, has_experts, false, N_ROWS).unwrap();
            let of_piece = Workspace::bytes(config, PIECE, n_slots);
            let taken = workspace.memory_usage() as u64;
            assert!(taken <= of_piece + planned, "{family}: {taken} of {of_piece} and {planned}");
            workspace.release_rows();
            assert_eq!(workspace.memory_usage(), 0, "{family}");
        }
    }

    /// A sweep that is cancelled between layers leaves no state behind: the same rows then have the bits of a cache that never saw it.
    #[test]
    fn a_sweep_that_fails_leaves_the_cache_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let model = streamed("lfm2_moe", &dir.path().join("model.refrain"));
        let config = model.config();
        let pool = Pool::new(1);
        let compute = Compute { kernels: Kernels::detect(), pool: &pool };
        let mut tokens = VariedTokens::new(config.vocab_size);
        let tokens = tokens.draw(N_ROWS);
        let bits_after = |n_layers: Option<usize>| {
            let mut kv = KvCache::new(config, KvType::F32, N_ROWS + PIECE).unwrap();
            let (mut workspace, mut batch) = (Workspace::new(config), Batch::new());
            let mut sweep = |kv: &mut KvCache, end: usize, n_layers: Option<usize>| {
                batch.set_chain(kv.len(), &tokens[kv.len()..end]);
                let cancel = AtomicBool::new(false);
                let part = Part::new(&batch, kv, &mut workspace, &cancel);
                let mut progress = |done, _| cancel.store(Some(done) == n_layers, Ordering::Relaxed);
                let swept = model.forward_sweep(compute, part, PIECE, PassEnd::Unprojected, &mut progress);
                if swept.is_ok() {
                    kv.commit_all(&batch);
                }
                swept
            };
            sweep(&mut kv, PIECE, None).unwrap();
            if n_layers.is_some() {
                assert!(matches!(sweep(&mut kv, N_ROWS, n_layers), Err(ForwardError::Cancelled)));
                assert!(kv.len() <= PIECE);
                sweep(&mut kv, PIECE, None).unwrap();
            }
            sweep(&mut kv, N_ROWS, None).unwrap();
            workspace.hidden_rows().iter().map(|x| x.to_bits()).collect::<Vec<_>>()
        };
        let expected = bits_after(None);
        for n_layers in 1..config.n_layers() {
            assert!(
                bits_after(Some(n_layers)) == expected,
                "cancelled behind {n_layers} layers: bits differ"
            );
        }
    }
}
