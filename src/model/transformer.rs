//! The forward pass: from the rows of a batch to final hidden states, and to the logits of selected rows.
//!
//! Prefill, decoding and verification share one code path, which reads the plan of each layer
//! ([`LayerPlan`](crate::model::config::LayerPlan)). For every row of a batch:
//!
//! ```text
//! x = embedding[token] · embedding_scale                      [hidden_dim]
//!     (of a draft head: made from x and a hidden state of the target, `draft_head.rs`)
//! per layer:  x += residual_scale · post_norm(mix(pre_norm(x)))
//!             x += residual_scale · post_norm(feed(pre_norm(x)))
//!             x += post_norm(out · (activation(gate·x) ∘ own inputs of the layer));  x *= output scale
//!             (around the layer: several residual streams, and a branch beside the mixer, `streams.rs`)
//! hidden = rms_norm(x);  logits = softcap(logit_scale · head·hidden)
//!
//! attention:  q, k, v = Wq·a (+ bias), Wk·a (+ bias), Wv·a (+ bias)
//!             q, k = rope(norm(q)), rope(norm(k))             → k, v go to the row's cache slot
//!             Wo·attention(q, visible keys and values) (+ bias)
//! dense:      Wdown·(activation(Wgate·b) ∘ Wup·b)
//! experts:    Σ weight·dense of the experts that the router chooses for the row (`experts.rs`)
//! ```
//!
//! A norm, multiplier or bias that the plan does not name is left out. The kernels guarantee that a row's arithmetic does
//! not depend on the other rows, so chunking, batching and padding do not affect its bits. Loading, passes and
//! projections set the default [environment](kernels::FloatEnv) of floating-point arithmetic, so the caller's rounding
//! mode and flush-to-zero setting do not affect them either.

mod draft_head;
pub(in crate::model) mod error;
mod experts;
mod feed;
mod head;
mod parts;
mod per_layer;
mod recurrent;
mod streams;
mod sweep;
mod timing;

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use crate::kernels::{
    self, ActivationForm, Activations, AttentionRule, AttentionScratch, AttentionShape, Kernels, MatMul,
    StateScratch, resize_exact,
};
use crate::model::arch::tensors::LayerWeight;
use crate::model::batch::Batch;
use crate::model::checkpoint::Checkpoint;
pub use crate::model::compute::{Compute, PassEnd};
use crate::model::config::{
    Activation, Attention, Dense, FeedForward, KvSource, LayerPlan, Mixer, ModelConfig, QkNorm, Widths,
};
use crate::model::graphs::{GraphFolder, GraphsError, StaticGraphs};
use crate::model::kv_cache::KvCache;
use crate::model::layers::LayersError;
use crate::model::packed::{ModelIdentity, PackedFile, identity_of_weights, layout_of_weights};
use crate::model::resident::{Layer, Weights};
use crate::model::rope::RopeTable;
use crate::model::rows::{ActiveRows, Hooks, Rows};
use crate::model::state::TreeRows;
use crate::model::streamed::{StreamMemory, Streamed, StreamedError};
use crate::model::weights::{LoadOptions, Quantize, WeightsError};
pub use error::ForwardError;
use refrain_stream::StreamOptions;
use refrain_trees::TokenId;

use experts::ExpertBuffers;
pub use head::ProjectedPart;
pub use parts::Part;
use streams::StreamBuffers;
pub(in crate::model) use sweep::{SWEEP_ROWS_MAX, sweep_bytes};
pub(crate) use timing::LayerTime;

/// A loaded transformer: immutable, shared by all sessions.
pub struct Model {
    config: ModelConfig,
    weights: Weights,
    /// The layers, if they are static graphs.
    graphs: Option<StaticGraphs>,
    streamed: Option<Streamed>,
    identity: OnceLock<ModelIdentity>,
}

/// Maximum number of rows projected at a time with default options: the rows of a prefill chunk that
/// calibration reads.
const GATHERED_ROWS: usize = 64;

/// The buffers of a pass. They grow to the largest batch and are reused, so that a decoding step allocates
/// nothing.
pub struct Workspace {
    /// One for each of [`ModelConfig::ropes`].
    ropes: Vec<RopeTable>,
    attention: AttentionScratch,
    /// The rows of the batch, as recurrent layers walk them.
    rows: TreeRows,
    states: StateScratch,
    taps: Taps,
    buffers: Buffers,
}

/// Residual streams before some layers, which a pass keeps for who reads them.
#[derive(Default)]
struct Taps {
    /// The layers, counted from 0; behind the last one, that of the final hidden state before its norm.
    layers: Option<[usize; 3]>,
    /// `[n_rows, 3, hidden_dim]`; NaN where a row or a layer was not computed.
    rows: Vec<f32>,
}

/// The buffers of a pass's rows. In a pass of several parts, those of the first part hold the rows of all.
#[derive(Default)]
struct Buffers {
    activations: Activations,
    /// Empty between passes; only its memory is kept.
    active: ActiveRows<'static>,
    /// Residual stream, `[n_rows, hidden_dim]`; after a pass to [`PassEnd::Hidden`], the normed final hidden
    /// states.
    x: Vec<f32>,
    /// Residual stream of a pass through static graphs, `[n_rows, hidden_dim]`. There `x` holds the rows of
    /// one call.
    residual: Vec<f32>,
    /// `[n_rows, hidden_dim]`
    normed: Vec<f32>,
    /// Hidden states for each row of the next pass of a draft head: the target's, `[n_rows, target_state_dim]`, or the head's own,
    /// `[n_rows, hidden_dim]`.
    inputs: Vec<f32>,
    inputs_are_own: bool,
    /// They behind the embeddings, both normed: `[n_rows, 2 * hidden_dim]`.
    joined: Vec<f32>,
    /// The layers' own inputs, `[n_rows, n_layers * dim]`; empty if there are none.
    per_layer: Vec<f32>,
    /// The row of `per_layer` that belongs to the first row of the layer at hand.
    per_layer_start: usize,
    streams: StreamBuffers,
    /// Ones: the weight of a norm without one, or what a row is summed with.
    ones: Vec<f32>,
    /// Of the layer at hand: `[n_rows, n_heads * head_dim]`
    q: Vec<f32>,
    /// `[n_rows, n_kv_heads * head_dim]`
    k: Vec<f32>,
    /// `[n_rows, n_kv_heads * head_dim]`
    v: Vec<f32>,
    /// `[n_rows, n_heads * head_dim]`; of a recurrent layer, the result of its states.
    attended: Vec<f32>,
    /// Input projections of a recurrent layer, `[n_rows, recurrent_dim]`; or of the layers' own inputs, or of the branch beside
    /// the mixer.
    mixed: Vec<f32>,
    /// Results of its convolution, `[n_rows, conv_dim]`.
    convolved: Vec<f32>,
    /// Factors of its states, and learning rates or time steps: `[n_rows, heads of states]`.
    decay: Vec<f32>,
    gain: Vec<f32>,
    /// `[n_rows, hidden_dim]`
    projected: Vec<f32>,
    /// `[n_rows, ffn_dim]`; or the gate of attention, `[n_rows, n_heads * head_dim]`.
    gate: Vec<f32>,
    /// `[n_rows, ffn_dim]`
    up: Vec<f32>,
    /// `[n_gathered, hidden_dim]`: the rows of a projection.
    gathered: Vec<f32>,
    /// `[n_gathered, tokens of a piece]`: logits of a piece of a streamed output matrix.
    piece: Vec<f32>,
    mixture: ExpertBuffers,
}

impl Workspace {
    /// An empty workspace for `config`.
    pub fn new(config: &ModelConfig) -> Self {
        Self {
            ropes: config.ropes.iter().map(RopeTable::new).collect(),
            attention: AttentionScratch::new(),
            rows: TreeRows::new(),
            states: StateScratch::new(),
            taps: Taps::default(),
            buffers: Buffers::default(),
        }
    }

    /// Sets the final hidden states of `n_rows` rows to some numbers, as if a pass had computed them: for measuring
    /// projections.
    pub(crate) fn assume_hidden(&mut self, config: &ModelConfig, n_rows: usize) {
        self.buffers.x.clear();
        self.buffers.x.resize(n_rows * config.hidden_dim, 0.5);
    }

    /// The hidden states for the rows of the next pass, if the model is a draft head ([`ModelConfig::draft_head`]). To be filled before
    /// each pass: with the target's, `[n_rows, target_state_dim]`, or with the [head's own](Self::own_state), `[n_rows, hidden_dim]`.
    pub(crate) fn inputs(&mut self, are_own: bool) -> &mut Vec<f32> {
        self.buffers.inputs.clear();
        self.buffers.inputs_are_own = are_own;
        &mut self.buffers.inputs
    }

    /// What a draft head reads of a row below it, after a pass to [`PassEnd::Hidden`]: the final hidden state, or that of EAGLE-3 before
    /// its norm. `[hidden_dim]`
    pub(crate) fn own_state(&self, row: usize, config: &ModelConfig) -> &[f32] {
        // The last norm has left the residual stream in the buffer of normed rows.
        let rows = if config.eagle3().is_some() { &self.buffers.normed } else { &self.buffers.x };
        &rows[row * config.hidden_dim..][..config.hidden_dim]
    }

    /// Releases the buffers of rows, whose hidden states are lost.
    pub(crate) fn release_rows(&mut self) {
        self.buffers = Buffers::default();
        self.taps.rows = Vec::new();
    }

    /// Makes the next passes keep the residual streams before three layers, or none. Passes of static graphs keep none.
    pub(crate) fn tap(&mut self, layers: Option<[usize; 3]>) {
        self.taps.layers = layers;
    }

    /// What the newest pass kept. `[n_rows, 3, hidden_dim]`
    pub(crate) fn tapped_rows(&self) -> &[f32] {
        &self.taps.rows
    }

    /// The final hidden states of all rows, after a pass to [`PassEnd::Hidden`]. `[n_rows, hidden_dim]`
    pub(crate) fn hidden_rows(&self) -> &[f32] {
        &self.buffers.x
    }

    /// The final hidden state of a row, after a pass to [`PassEnd::Hidden`]. `[hidden_dim]`
    pub(crate) fn hidden_row(&self, row: usize, hidden_dim: usize) -> &[f32] {
        &self.buffers.x[row * hidden_dim..][..hidden_dim]
    }

    /// Maximum bytes of a workspace for passes over up to `n_rows` rows with a KV cache of `n_slots` slots:
    /// the buffers of rows, the widest rows in both forms of activations, the rotations of all positions, and
    /// attention scores for one thread per processor of the process. Logits are not included.
    pub fn bytes(config: &ModelConfig, n_rows: usize, n_slots: usize) -> u64 {
        let Widths { n_heads, n_kv_heads, head_dim, q_dim, kv_dim, recurrent_dim, .. } = config.widths();
        let ffn_dims = config.layers.iter().map(|layer| match &layer.feed {
            FeedForward::None => 0,
            FeedForward::Dense(dense) => dense.ffn_dim,
            FeedForward::Experts(experts) => experts.shared_ffn_dim,
        });
        let own_dim = config.per_layer.map_or(0, |per_layer| per_layer.dim);
        let ffn_dim = ffn_dims.max().unwrap_or(0).max(own_dim);
        // The streams, and the branch beside the mixer.
        let n_streams = config.streams.map_or(0, |streams| streams.n + 1);
        let branch_rank = config.layers.iter().filter_map(|layer| layer.branch_rank).max().unwrap_or(0);
        let per_layer = config.per_layer_dims();
        let mixed_dim = recurrent_dim.max(branch_rank).max(per_layer);
        // The embedding and the hidden state of a draft head.
        let joined_dim = if config.draft_head.is_some() { 2 * config.hidden_dim } else { 0 };
        let values = (4 + n_streams) * config.hidden_dim
            + joined_dim
            + config.target_state_dim()
            + 2 * q_dim
            + 2 * kv_dim
            + ffn_dim
            + ffn_dim.max(q_dim)
            + 2 * recurrent_dim
            + mixed_dim
            + per_layer;
        // Four bytes as f32, and two as blocks of 64 bytes for 32 values.
        let input_dim = config.hidden_dim.max(joined_dim).max(config.target_state_dim());
        let prepared = 6 * ffn_dim.max(input_dim).max(q_dim);
        let rows_bytes = ((4 * values + prepared) as u64).saturating_mul(n_rows as u64);
        // With the ones that rows are multiplied with.
        let gathered_bytes = (4 * (config.hidden_dim * GATHERED_ROWS + ffn_dim.max(head_dim))) as u64;
        let n_threads = std::thread::available_parallelism().map_or(1, usize::from);
        let rope_bytes = config.ropes.iter().map(|rope| RopeTable::bytes(rope, n_slots));
        let attention_bytes = match n_kv_heads {
            0 => 0,
            _ => {
                let shape = AttentionShape { n_heads, n_kv_heads, head_dim };
                AttentionScratch::bytes(shape, n_threads, n_slots, n_rows)
            }
        };
        rows_bytes
            .saturating_add(gathered_bytes)
            .saturating_add(rope_bytes.fold(0, u64::saturating_add))
            .saturating_add(attention_bytes)
            .saturating_add(experts::bytes(config, n_rows))
    }

    /// Bytes on the heap of the rows' buffers. The rotary table, the scratch of attention and the rows
    /// rounded to 8 bits are not counted.
    pub fn memory_usage(&self) -> usize {
        let Buffers { x, residual, normed, q, k, v, attended, projected, gate, up, gathered, piece, .. } =
            &self.buffers;
        let Buffers { mixed, convolved, decay, gain, per_layer, ones, inputs, joined, .. } = &self.buffers;
        let buffers = [
            x, residual, normed, q, k, v, attended, projected, gate, up, gathered, piece, mixed, convolved,
            decay, gain, per_layer, ones, inputs, joined,
        ];
        let rows_bytes: usize = buffers.into_iter().map(|buffer| buffer.capacity() * size_of::<f32>()).sum();
        rows_bytes + self.buffers.mixture.memory_usage() + self.buffers.streams.memory_usage()
    }
}

impl Buffers {
    /// Copies the final hidden states of `rows` to `gathered`.
    fn gather(&mut self, rows: &[u32], hidden_dim: usize) {
        let Self { gathered, x, .. } = self;
        gathered.clear();
        append_rows(gathered, x, rows, hidden_dim);
    }

    /// Appends the final hidden states of `rows` of another workspace to `gathered`.
    fn gather_more(&mut self, other: &Self, rows: &[u32], hidden_dim: usize) {
        append_rows(&mut self.gathered, &other.x, rows, hidden_dim);
    }

    /// Gives the residual stream `n_rows` rows. The buffers of a layer get their lengths when it is computed.
    fn resize(&mut self, config: &ModelConfig, n_rows: usize) {
        for buffer in [&mut self.x, &mut self.normed, &mut self.projected] {
            resize_exact(buffer, n_rows * config.hidden_dim);
        }
    }
}

/// The packed file of a model that is to be streamed.
fn streamed_file<'a>(
    checkpoint: &'a Checkpoint,
    options: &LoadOptions<'_>,
) -> Result<&'a PackedFile, StreamedError> {
    let Some(file) = checkpoint.packed() else {
        return Err(StreamedError::NotPacked { file: checkpoint.name().to_owned() });
    };
    if options.quantize == Quantize::F32 {
        return Err(StreamedError::Widened { file: file.file().to_owned() });
    }
    Ok(file)
}

/// Appends rows of `x`, `[n_rows, row_len]`, to `to`.
fn append_rows(to: &mut Vec<f32>, x: &[f32], rows: &[u32], row_len: usize) {
    to.reserve_exact(rows.len() * row_len);
    rows.iter().for_each(|&row| to.extend_from_slice(&x[row as usize * row_len..][..row_len]));
}

impl Model {
    /// Loads the weights of a checkpoint.
    pub fn load(checkpoint: &Checkpoint, options: LoadOptions<'_>) -> Result<Self, WeightsError> {
        if let Some(streaming) = options.streaming {
            return Ok(Self::load_streamed(checkpoint, streaming, options)?);
        }
        if let Some(folder) = checkpoint.graphs() {
            return Ok(Self::load_graphs(folder, options)?);
        }
        Self::refuse_head(checkpoint)?;
        let weights = Weights::load(checkpoint, checkpoint.config(), options, None)?;
        let identity = OnceLock::new();
        // The header states the identity of the packed weights, not of weights widened to f32.
        if let Some(file) = checkpoint.packed().filter(|_| options.quantize != Quantize::F32) {
            identity.get_or_init(|| file.identity());
        }
        Ok(Self { config: checkpoint.config().clone(), weights, graphs: None, streamed: None, identity })
    }

    /// The memory that the weights would take, from the headers of the files alone: all of it for a model in memory or of static
    /// graphs, and by its parts for a streamed one.
    ///
    /// # Errors
    /// As [`load`](Self::load), as far as options and headers tell.
    pub(crate) fn planned_memory(
        checkpoint: &Checkpoint,
        options: &LoadOptions<'_>,
    ) -> Result<(u64, Option<StreamMemory>), WeightsError> {
        if let Some(streaming) = options.streaming {
            let memory = Streamed::planned_memory(streamed_file(checkpoint, options)?, streaming)?;
            return Ok((memory.pinned_bytes, Some(memory)));
        }
        if let Some(folder) = checkpoint.graphs() {
            return Ok((StaticGraphs::planned_bytes(folder, options.graph_memory_max)?, None));
        }
        Self::refuse_head(checkpoint)?;
        Ok((options.quantize.weights_bytes(checkpoint), None))
    }

    /// # Errors
    /// [`WeightsError::NoTarget`]: the checkpoint is a draft head, not a model.
    pub(crate) fn refuse_head(checkpoint: &Checkpoint) -> Result<(), WeightsError> {
        match checkpoint.config().draft_head {
            None => Ok(()),
            Some(_) => Err(WeightsError::NoTarget { name: checkpoint.name().to_owned() }),
        }
    }

    /// Loads a draft head ([`ModelConfig::draft_head`]) of `target`: its own weights, and embedding and output matrix
    /// only if the target does not have them in memory.
    ///
    /// # Errors
    /// [`WeightsError`]; [`WeightsError::Missing`] if the target streams a matrix that the file of the head does not have.
    pub(crate) fn load_head(
        checkpoint: &Checkpoint,
        target: &Model,
        options: LoadOptions<'_>,
    ) -> Result<Self, WeightsError> {
        // The file of a head may leave the output matrix out, as if it were the embedding, and its context.
        let own = checkpoint.config().clone();
        let context_len = own.context_len.min(target.config.context_len);
        let tied_head = own.eagle3().is_none() && target.config.tied_head;
        let config = ModelConfig { context_len, tied_head, ..own };
        let weights = Weights::load(checkpoint, &config, options, Some(&target.weights))?;
        Ok(Self { config, weights, graphs: None, streamed: None, identity: OnceLock::new() })
    }

    fn load_streamed(
        checkpoint: &Checkpoint,
        streaming: &StreamOptions,
        options: LoadOptions<'_>,
    ) -> Result<Self, StreamedError> {
        let file = streamed_file(checkpoint, &options)?;
        let (streamed, weights) = Streamed::open(file, streaming, options.progress)?;
        let (config, identity) = (checkpoint.config().clone(), OnceLock::from(file.identity()));
        Ok(Self { config, weights, graphs: None, streamed: Some(streamed), identity })
    }

    fn load_graphs(folder: &GraphFolder, options: LoadOptions<'_>) -> Result<Self, GraphsError> {
        if options.quantize == Quantize::F32 {
            return Err(GraphsError::Widened { file: folder.path().display().to_string() });
        }
        let graphs = StaticGraphs::open(folder, options.graph_memory_max)?;
        let weights = Weights::load_ends(folder)?;
        let (config, identity) = (folder.config().clone(), OnceLock::from(folder.identity()));
        Ok(Self { config, weights, graphs: Some(graphs), streamed: None, identity })
    }

    /// The layers as static graphs, if the model is one of static graphs.
    pub fn graphs(&self) -> Option<&StaticGraphs> {
        self.graphs.as_ref()
    }

    /// The streamed weights, if the model is streamed.
    pub fn streamed(&self) -> Option<&Streamed> {
        self.streamed.as_ref()
    }

    /// The identity of the model, the key of its measurements. It is equal for equal weights, whether they
    /// were packed ahead of time or while loading.
    ///
    /// The header of a packed file states it. For other containers the first call reads all weights: about
    /// 0.1 s for a gigabyte.
    pub fn identity(&self) -> ModelIdentity {
        *self.identity.get_or_init(|| identity_of_weights(&self.config, &self.weights))
    }

    /// A hash of hyper-parameters and of the formats of the weights in memory. Models that share it take the same time for a pass.
    pub(crate) fn layout(&self) -> ModelIdentity {
        layout_of_weights(&self.config, &self.weights)
    }

    /// The dimensions.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Bytes of a layer's matrices; 0 if the layers are not in memory.
    pub(crate) fn layer_bytes(&self, layer_idx: usize) -> usize {
        self.weights.layers.get(layer_idx).map_or(0, Layer::matrices_bytes)
    }

    /// Bytes of the weights, those of a mapped file included. For static graphs and streamed models, the
    /// bytes that are in memory at a time.
    pub fn memory_usage(&self) -> usize {
        match (&self.graphs, &self.streamed) {
            (Some(graphs), _) => graphs.memory().used_bytes as usize,
            (None, Some(streamed)) => streamed.memory().total_bytes() as usize,
            (None, None) => self.weights.memory_usage(),
        }
    }

    /// Runs `batch` after the committed prefix of `kv`.
    ///
    /// Afterwards the slots behind the prefix hold the keys and values of every row, not yet committed. With
    /// [`PassEnd::Hidden`], `workspace` holds the final hidden states for [`Model::logits`].
    ///
    /// # Errors
    /// [`ForwardError`]; `cancel` is read before every layer.
    pub fn forward(
        &self,
        compute: Compute<'_>,
        batch: &Batch,
        kv: &mut KvCache,
        workspace: &mut Workspace,
        end: PassEnd,
        cancel: &AtomicBool,
    ) -> Result<(), ForwardError> {
        self.forward_through(compute, Part::new(batch, kv, workspace, cancel), end, Hooks::default())
    }

    /// As [`Model::forward`], with [`Hooks`].
    ///
    /// The layers behind the interlude skip rows that it drops. From that layer on, the keys and values of
    /// these rows are not written, and their final hidden states are NaN. All other rows have the same bits
    /// as in a pass without the interlude.
    ///
    /// # Errors
    /// As [`Model::forward`]; [`ForwardError::Undivided`] if the layers are static graphs.
    ///
    /// # Panics
    /// If the interlude keeps a row and drops one that it sees.
    pub fn forward_through(
        &self,
        compute: Compute<'_>,
        part: Part<'_>,
        end: PassEnd,
        hooks: Hooks<'_>,
    ) -> Result<(), ForwardError> {
        self.run_parts(compute, &mut [part], end, hooks)
    }

    /// Writes the embedding of each token to `x`, `[tokens.len(), hidden_dim]`.
    fn embed(&self, tokens: &[TokenId], x: &mut [f32]) -> Result<(), LayersError> {
        if let Some(read) = self.streamed.as_ref().and_then(|streamed| streamed.embed(tokens, x)) {
            return read;
        }
        let embedding = self.weights.embedding.as_ref().expect("in memory where it is not streamed");
        for (row, token) in x.chunks_exact_mut(self.config.hidden_dim).zip(tokens) {
            embedding.dequantize_row(token.index(), row);
        }
        Ok(())
    }

    /// Runs the rows of `parts` through consecutive layers. The first one is layer `first_layer` of the model.
    #[allow(clippy::too_many_arguments, reason = "the arguments of one pass")]
    fn run_layers(
        &self,
        compute: Compute<'_>,
        first_layer: usize,
        layers: &[Layer],
        rows: &Rows<'_>,
        parts: &mut [Part<'_>],
        ws: &mut Buffers,
        end: PassEnd,
    ) -> Result<(), ForwardError> {
        let last_idx = self.last_partial_layer(end);
        for (layer_idx, layer) in (first_layer..=last_idx).zip(layers) {
            let at = At { compute, plan: &self.config.layers[layer_idx], layer, layer_idx };
            if self.mix(&at, last_idx, rows, parts, ws)? {
                self.feed(&at, parts, ws)?;
            }
        }
        Ok(())
    }

    /// The first half of a layer, up to the result of its mixer in the residual stream. `false` if the pass needs no more of layer
    /// `last_idx`.
    fn mix(
        &self,
        at: &At<'_>,
        last_idx: usize,
        rows: &Rows<'_>,
        parts: &mut [Part<'_>],
        ws: &mut Buffers,
    ) -> Result<bool, ForwardError> {
        Part::poll(parts)?;
        if let Some(streams) = &self.config.streams {
            self.predict_streams(at, streams, ws);
        }
        if let Some(rank) = at.plan.branch_rank {
            self.compute_branch(at, rank, ws);
        }
        match &at.plan.mixer {
            Mixer::Attention(attention) => {
                self.project_qkv(at, attention, rows, parts, ws);
                if attention.kv_layer().is_none() {
                    self.write_kv(at, attention, rows, parts, ws);
                }
                if at.layer_idx == last_idx {
                    return Ok(false);
                }
                self.attend(at, attention, rows, parts, ws);
            }
            // A state needs all of a row's inputs, so nothing is left out at the end of a prefill chunk.
            Mixer::ShortConv(conv) => self.short_conv(at, conv, rows, parts, ws),
            Mixer::DeltaNet(delta) => self.delta_net(at, delta, rows, parts, ws),
            Mixer::Mamba2(mamba) => self.mamba2(at, mamba, rows, parts, ws),
        }
        if at.layer_idx == last_idx {
            return Ok(false);
        }
        let bias = match &at.plan.mixer {
            Mixer::ShortConv(_) => LayerWeight::ConvOutBias,
            _ => LayerWeight::OBias,
        };
        self.add_result(at, LayerWeight::PostAttnNorm, Some(bias), ws);
        if at.plan.branch_rank.is_some() {
            self.add_branch(at, ws);
        }
        Ok(true)
    }

    /// The second half of a layer: its feed-forward part, and what follows it.
    fn feed(&self, at: &At<'_>, parts: &mut [Part<'_>], ws: &mut Buffers) -> Result<(), ForwardError> {
        Part::poll(parts)?;
        match &at.plan.feed {
            FeedForward::None => {}
            FeedForward::Dense(dense) => self.feed_forward(at, dense, ws),
            FeedForward::Experts(experts) => self.feed_experts(at, experts, parts, ws)?,
        }
        if at.plan.feed != FeedForward::None {
            self.add_result(at, LayerWeight::PostFfnNorm, None, ws);
        }
        if let Some(streams) = &self.config.streams {
            self.correct_streams(at, streams, ws);
        }
        if let Some(per_layer) = &self.config.per_layer {
            self.add_per_layer(at, per_layer, ws);
        }
        if let Some(&[scale]) = at.layer.vector(LayerWeight::OutputScale) {
            for_rows(at.compute, &mut ws.x, self.config.hidden_dim, &|_, row| {
                kernels::scale(at.compute.kernels, row, scale);
            });
        }
        Ok(())
    }

    /// The last layer of a pass, if it is computed in part only.
    fn last_partial_layer(&self, end: PassEnd) -> usize {
        match end {
            PassEnd::Hidden | PassEnd::Unprojected => usize::MAX,
            PassEnd::KeysAndValues => self.config.last_stateful_layer(),
        }
    }

    /// Checks that a batch continues the cache, fits behind its prefix and has tokens of the vocabulary.
    ///
    /// # Errors
    /// [`ForwardError`].
    pub(crate) fn check(&self, batch: &Batch, kv: &KvCache) -> Result<(), ForwardError> {
        self.check_pieces(batch, batch.len(), kv)
    }

    /// As [`check`](Self::check), for rows that run in pieces of up to `piece_len` rows.
    fn check_pieces(&self, batch: &Batch, piece_len: usize, kv: &KvCache) -> Result<(), ForwardError> {
        let (base, n_rows, n_slots) = (batch.base(), batch.len(), kv.n_slots());
        if base != kv.len() {
            return Err(ForwardError::NotNext { base, len: kv.len() });
        }
        if n_rows > n_slots - base {
            return Err(ForwardError::CacheFull { base, n_rows, n_slots });
        }
        let n_piece_rows = n_rows.min(piece_len);
        if let Some(n_rows_max) = kv.pass_rows_max().filter(|&max| n_piece_rows > max) {
            return Err(ForwardError::TooManyRows { n_rows: n_piece_rows, n_rows_max });
        }
        let vocab_size = self.config.vocab_size;
        match batch.tokens().iter().find(|t| t.index() >= vocab_size) {
            Some(token) => Err(ForwardError::TokenOutOfRange { token: token.0, vocab_size }),
            None => Ok(()),
        }
    }

    /// `x` → normed, rotated `q` and `k`, and `v`; the gate of the result in `gate`.
    fn project_qkv(
        &self,
        at: &At<'_>,
        attention: &Attention,
        rows: &Rows<'_>,
        parts: &[Part<'_>],
        ws: &mut Buffers,
    ) {
        let &At { compute, layer, .. } = at;
        let (config, k) = (&self.config, compute.kernels);
        let (n_rows, q_dim, kv_dim) = (rows.positions.len(), attention.q_dim(), attention.kv_dim());
        for (buffer, row_len) in [(&mut ws.q, q_dim), (&mut ws.k, kv_dim), (&mut ws.v, kv_dim)] {
            resize_exact(buffer, n_rows * row_len);
        }
        let q = MatMul { w: layer.matrix(LayerWeight::Q), out: &mut ws.q };
        let matrix = |weight: LayerWeight| layer.matrix(weight);
        let mut project = |jobs: &mut [MatMul<'_>]| match config.eagle3() {
            Some(_) => project(compute, &mut ws.activations, &ws.joined, 2 * config.hidden_dim, jobs),
            None => {
                let (normed, activations) = (&mut ws.normed, &mut ws.activations);
                self.project_input(at, LayerWeight::AttnNorm, &ws.x, normed, activations, jobs);
            }
        };
        match attention.kv {
            KvSource::Own => project(&mut [
                q,
                MatMul { w: matrix(LayerWeight::K), out: &mut ws.k },
                MatMul { w: matrix(LayerWeight::V), out: &mut ws.v },
            ]),
            KvSource::OneProjection => {
                project(&mut [q, MatMul { w: matrix(LayerWeight::K), out: &mut ws.k }]);
            }
            KvSource::Layer(_) => project(&mut [q]),
        }
        if attention.kv == KvSource::OneProjection {
            ws.v.copy_from_slice(&ws.k);
        }
        if attention.gated {
            resize_exact(&mut ws.gate, n_rows * q_dim);
            let jobs = &mut [MatMul { w: layer.matrix(LayerWeight::AttnGate), out: &mut ws.gate }];
            self.project_input(at, LayerWeight::AttnNorm, &ws.x, &mut ws.normed, &mut ws.activations, jobs);
        }
        let finish = |bias: LayerWeight, norm: LayerWeight, row_idx: usize, row: &mut [f32]| {
            if let Some(bias) = layer.vector(bias) {
                kernels::add(k, row, bias);
            }
            match (attention.qk_norm, layer.vector(norm)) {
                (Some(QkNorm::Head), Some(norm)) => {
                    for head in row.chunks_exact_mut(attention.head_dim) {
                        kernels::rms_norm_in_place(k, head, norm, config.norm_eps);
                    }
                }
                (Some(QkNorm::Row), Some(norm)) => kernels::rms_norm_in_place(k, row, norm, config.norm_eps),
                _ => {}
            }
            if let Some(rope) = attention.rope {
                let position = rows.positions[row_idx] as usize;
                let (cos, sin) = parts[rows.part_of(row_idx)].rope(rope, position);
                kernels::rope(k, row, attention.head_dim, cos, sin);
            }
        };
        for_rows(compute, &mut ws.q, q_dim, &|i, row| {
            finish(LayerWeight::QBias, LayerWeight::QNorm, i, row);
            if let Some(growth) = attention.query_growth {
                let periods = rows.positions[i] as usize / growth.original_context_len;
                // The logarithm from libm: the same bits on every platform.
                kernels::scale(k, row, 1.0 + growth.beta * libm::logf(1.0 + periods as f32));
            }
        });
        if attention.kv_layer().is_some() {
            return;
        }
        for_rows(compute, &mut ws.k, kv_dim, &|i, row| {
            finish(LayerWeight::KBias, LayerWeight::KNorm, i, row);
        });
        // Values of one projection have its bias.
        let bias = if attention.kv == KvSource::Own { LayerWeight::VBias } else { LayerWeight::KBias };
        if let Some(bias) = layer.vector(bias) {
            ws.v.chunks_exact_mut(bias.len()).for_each(|row| kernels::add(k, row, bias));
        }
        if attention.v_norm {
            let head_dim = attention.head_dim;
            ws.ones.resize(head_dim.max(ws.ones.len()), 1.0);
            let ones = &ws.ones[..head_dim];
            for_rows(compute, &mut ws.v, kv_dim, &|_, row| {
                for head in row.chunks_exact_mut(head_dim) {
                    kernels::rms_norm_in_place(k, head, ones, config.norm_eps);
                }
            });
        }
    }

    fn write_kv(
        &self,
        at: &At<'_>,
        attention: &Attention,
        rows: &Rows<'_>,
        parts: &mut [Part<'_>],
        ws: &Buffers,
    ) {
        let kv_dim = attention.kv_dim();
        for (part, (range, own)) in parts.iter_mut().zip(rows.by_part()) {
            let values = range.start * kv_dim..range.end * kv_dim;
            let keys_and_values =
                ws.k[values.clone()].chunks_exact(kv_dim).zip(ws.v[values].chunks_exact(kv_dim));
            let layer_kv = part.kv_layer(at.layer_idx);
            for (&slot, (key, value)) in own.slots.iter().zip(keys_and_values) {
                layer_kv.write(at.compute.kernels, slot as usize, key, value);
            }
        }
    }

    /// `projected = Wo · attention(q, kv)`
    fn attend(
        &self,
        at: &At<'_>,
        attention: &Attention,
        rows: &Rows<'_>,
        parts: &mut [Part<'_>],
        ws: &mut Buffers,
    ) {
        self.attention(at, attention, rows, parts, ws);
        if attention.gated {
            kernels::sigmoid_mul(at.compute.kernels, &mut ws.attended, &ws.gate);
        }
        let jobs = &mut [MatMul { w: at.layer.matrix(LayerWeight::O), out: &mut ws.projected }];
        project(at.compute, &mut ws.activations, &ws.attended, attention.q_dim(), jobs);
    }

    /// `attended = attention(q, kv)`, where each part attends to its own keys and values.
    fn attention(
        &self,
        at: &At<'_>,
        attention: &Attention,
        rows: &Rows<'_>,
        parts: &mut [Part<'_>],
        ws: &mut Buffers,
    ) {
        let &At { compute, layer, layer_idx, .. } = at;
        let Attention { n_heads, n_kv_heads, head_dim, scale, window, softcap, .. } = *attention;
        let shape = AttentionShape { n_heads, n_kv_heads, head_dim };
        let rule = AttentionRule { scale, window, softcap, sinks: layer.vector(LayerWeight::Sinks) };
        let q_dim = attention.q_dim();
        resize_exact(&mut ws.attended, ws.q.len());
        for (part, (range, own)) in parts.iter_mut().zip(rows.by_part()) {
            let values = range.start * q_dim..range.end * q_dim;
            let (q, out) = (&ws.q[values.clone()], &mut ws.attended[values]);
            let (kv, scratch) = part.attended(layer_idx);
            kernels::attention(compute.kernels, compute.pool, shape, rule, q, kv, own.visible, scratch, out);
        }
    }

    /// `projected = Wdown · (activation(Wgate·norm(x)) ∘ Wup·norm(x))`
    fn feed_forward(&self, at: &At<'_>, dense: &Dense, ws: &mut Buffers) {
        let &At { compute, layer, .. } = at;
        let n_rows = ws.x.len() / self.config.hidden_dim;
        resize_exact(&mut ws.gate, n_rows * dense.ffn_dim);
        resize_exact(&mut ws.up, n_rows * dense.ffn_dim);
        let jobs = &mut [
            MatMul { w: layer.matrix(LayerWeight::Gate), out: &mut ws.gate },
            MatMul { w: layer.matrix(LayerWeight::Up), out: &mut ws.up },
        ];
        self.project_input(at, LayerWeight::FfnNorm, &ws.x, &mut ws.normed, &mut ws.activations, jobs);
        if dense.cutoff.is_some() {
            ws.ones.resize(dense.ffn_dim.max(ws.ones.len()), 1.0);
        }
        let (up, ones) = (&ws.up, &ws.ones);
        let jobs = &mut [MatMul { w: layer.matrix(LayerWeight::Down), out: &mut ws.projected }];
        project_computed(compute, &mut ws.activations, &mut ws.gate, dense.ffn_dim, jobs, &|i, row| {
            if let Some(cutoff) = dense.cutoff {
                streams::cut_off(compute.kernels, row, cutoff, &ones[..row.len()]);
            }
            activate(compute.kernels, dense.activation, row, &up[i * row.len()..(i + 1) * row.len()]);
        });
    }

    /// Multiplies the rows of the residual stream, normed if the layer has `norm`.
    fn project_input(
        &self,
        at: &At<'_>,
        norm: LayerWeight,
        x: &[f32],
        normed: &mut [f32],
        activations: &mut Activations,
        jobs: &mut [MatMul<'_>],
    ) {
        match at.layer.vector(norm) {
            Some(weight) => {
                let norm = Normed { x, weight, eps: self.config.norm_eps };
                norm.project(at.compute, activations, normed, jobs);
            }
            None => project(at.compute, activations, x, self.config.hidden_dim, jobs),
        }
    }

    /// `x += residual_scale · norm(projected (+ bias))`
    fn add_result(&self, at: &At<'_>, norm: LayerWeight, bias: Option<LayerWeight>, ws: &mut Buffers) {
        let &At { compute, plan, layer, .. } = at;
        let k = compute.kernels;
        let bias = bias.and_then(|bias| layer.vector(bias));
        let norm = layer.vector(norm);
        if let Some(norm) = norm {
            let eps = self.config.norm_eps;
            for_rows(compute, &mut ws.projected, self.config.hidden_dim, &|_, row| {
                if let Some(bias) = bias {
                    kernels::add(k, row, bias);
                }
                kernels::rms_norm_in_place(k, row, norm, eps);
            });
        }
        // A norm has taken the bias in; without one, it is added behind the product, as it always was.
        let bias = bias.filter(|_| norm.is_none());
        let projected = &ws.projected;
        for_rows(compute, &mut ws.x, self.config.hidden_dim, &|i, row| {
            let result = &projected[i * row.len()..(i + 1) * row.len()];
            match plan.residual_scale {
                1.0 => kernels::add(k, row, result),
                scale => kernels::add_scaled(k, row, result, scale),
            }
            if let Some(bias) = bias {
                match plan.residual_scale {
                    1.0 => kernels::add(k, row, bias),
                    scale => kernels::add_scaled(k, row, bias, scale),
                }
            }
        });
    }
}

/// A layer of a pass.
struct At<'a> {
    compute: Compute<'a>,
    plan: &'a LayerPlan,
    layer: &'a Layer,
    layer_idx: usize,
}

/// `gate = activation(gate) ∘ up`
fn activate(k: Kernels, activation: Activation, gate: &mut [f32], up: &[f32]) {
    match activation {
        Activation::Silu => kernels::silu_mul(k, gate, up),
        Activation::GeluTanh => kernels::gelu_mul(k, gate, up),
        Activation::ClampedSwiglu { limit } => kernels::swiglu_clamped_mul(k, gate, up, SWIGLU_ALPHA, limit),
    }
}

/// The factor of the sigmoid's argument in gpt-oss.
const SWIGLU_ALPHA: f32 = 1.702;

/// Multiplies rows of activations `[n_rows, n_cols]` with several matrices. The activations are prepared
/// once, in all forms that the matrices need (a file may mix float and block types within a layer).
fn project(
    compute: Compute<'_>,
    activations: &mut Activations,
    x: &[f32],
    n_cols: usize,
    jobs: &mut [MatMul<'_>],
) {
    let Some(form) = form_of(jobs) else { return };
    activations.set(compute.kernels, compute.pool, x, x.len() / n_cols, n_cols, form);
    kernels::matmul(compute.kernels, compute.pool, activations, jobs);
}

/// As [`project`], of rows that `row` first computes in `x`.
fn project_computed(
    compute: Compute<'_>,
    activations: &mut Activations,
    x: &mut [f32],
    n_cols: usize,
    jobs: &mut [MatMul<'_>],
    row: &(dyn Fn(usize, &mut [f32]) + Sync),
) {
    let Some(form) = form_of(jobs) else { return };
    activations.set_computed(compute.kernels, compute.pool, x, n_cols, form, row);
    kernels::matmul(compute.kernels, compute.pool, activations, jobs);
}

/// The form that all matrices of a product read.
fn form_of(jobs: &[MatMul<'_>]) -> Option<ActivationForm> {
    jobs.iter().map(|job| job.w.activation_form()).reduce(ActivationForm::with)
}

/// Rows to be normed.
struct Normed<'a> {
    /// `[n_rows, hidden_dim]`
    x: &'a [f32],
    /// `[hidden_dim]`
    weight: &'a [f32],
    eps: f32,
}

impl Normed<'_> {
    fn row(&self, compute: Compute<'_>, i: usize, out: &mut [f32]) {
        kernels::rms_norm(
            compute.kernels,
            &self.x[i * out.len()..(i + 1) * out.len()],
            self.weight,
            self.eps,
            out,
        );
    }

    /// Writes the normed rows to `out`.
    fn write(&self, compute: Compute<'_>, out: &mut [f32]) {
        for_rows(compute, out, self.weight.len(), &|i, row| self.row(compute, i, row));
    }

    /// Writes the normed rows to `out`, and multiplies them.
    fn project(
        &self,
        compute: Compute<'_>,
        activations: &mut Activations,
        out: &mut [f32],
        jobs: &mut [MatMul<'_>],
    ) {
        project_computed(compute, activations, out, self.weight.len(), jobs, &|i, row| {
            self.row(compute, i, row)
        });
    }
}

/// With fewer values, waking the workers takes longer than a row-wise kernel: about 2 µs on one core.
const PARALLEL_VALUES_MIN: usize = 16 * 1024;

fn for_rows(compute: Compute<'_>, out: &mut [f32], row_len: usize, f: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    if out.len() < PARALLEL_VALUES_MIN {
        out.chunks_exact_mut(row_len).enumerate().for_each(|(i, row)| f(i, row));
    } else {
        compute.pool.for_rows(out, row_len, f);
    }
}
