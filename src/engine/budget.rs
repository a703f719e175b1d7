//! Memory of a session and a draft model, for budgets of streamed targets.

use crate::draft::{EchoConfig, PredictionsSource};
use crate::draft_model::DraftModelSource;
use crate::engine::options::{
    CONTEXT_LEN_DEFAULT_MAX, Calibration, DraftModelOptions, Drafting, SessionOptions,
};
use crate::engine::reader::Reader;
use crate::face::internals;
use crate::kernels::KvType;
use crate::model::kv_cache::{CacheSize, KvCache, WINDOW_RESERVE, WindowBound, WindowCache};
use crate::model::{Checkpoint, ModelConfig, Workspace};
use crate::pruning::Predictor;

/// Maximum bytes of one wave's logits if the output matrix is streamed.
pub(super) const STREAMED_WAVE_BYTES: usize = 8 << 20;

/// Maximum bytes of the draft sources per context token: states and edges of the automata. Measured over random and
/// repetitive texts (`tests/memory/session_memory.rs`).
const DRAFT_TOKEN_BYTES: u64 = 352;

impl SessionOptions {
    internals! {
        /// The size of a session's KV cache.
        fn cache_size(&self, config: &ModelConfig) -> CacheSize {
            let tree_rows_max = self.rows_max();
            // A full context is followed by the scratch slots of a verification batch.
            let n_slots = self.context_len_for(config).saturating_add(tree_rows_max);
            let pass_rows_max = self.prefill_chunk.max(tree_rows_max);
            let windows = match self.window_cache {
                WindowCache::Full => None,
                WindowCache::Bounded => Some(WindowBound { pass_rows_max, reserve: WINDOW_RESERVE }),
            };
            CacheSize { kv_type: self.kv_type, n_slots, tree_rows_max, windows }
        }
    }

    /// Upper bound of one session's bytes with a model of this configuration: the KV cache of a full context,
    /// the activations, rotations and attention scores of a pass, logits, draft sources, and the projection
    /// rows of [`calibration`](Self::calibration) and [`echo`](Self::echo). Not
    /// included: sources of the app, history, vocabulary rows of more than 8 bits, and the attention scores of
    /// more threads than processors (32 bytes per slot and thread). An app that streams the model within a budget
    /// [reserves](field@crate::streaming::StreamOptions::reserved_bytes) this amount per concurrent session.
    pub fn memory_bytes(&self, config: &ModelConfig) -> u64 {
        self.bytes(config, true).total()
    }

    /// The parts of [`memory_bytes`](Self::memory_bytes); with an output matrix in memory, the logits of a piece of it are left out.
    pub(super) fn bytes(&self, config: &ModelConfig, is_head_streamed: bool) -> SessionBytes {
        let size = self.cache_size(config);
        let n_slots = size.n_slots;
        let row_bytes = (config.vocab_size as u64).saturating_mul(size_of::<f32>() as u64);
        let wave_bytes = row_bytes.saturating_mul(self.projection_rows as u64);
        let logits_bytes =
            if is_head_streamed { wave_bytes.max(STREAMED_WAVE_BYTES as u64) } else { wave_bytes };
        let reads = self.drafting == Drafting::Auto && self.reads_rows();
        // One for each pair of tokens, and one for each token.
        let own_lists =
            (n_slots + n_slots.min(config.vocab_size)).min(EchoConfig::default().lists_max as usize) as u32;
        let lists_max = match (self.echo, self.calibration) {
            (Some(echo), _) => echo.lists_max,
            (None, Calibration::Auto) => EchoConfig::AUTO.lists_max,
            (None, _) => own_lists,
        };
        let list_bytes = PredictionsSource::bytes(EchoConfig { lists_max, ..EchoConfig::AUTO });
        let drafts = self.drafting != Drafting::Off;
        let sources = if drafts { DRAFT_TOKEN_BYTES.saturating_mul(n_slots as u64) } else { 0 };
        let read = if reads { Reader::bytes(config).saturating_add(list_bytes) } else { 0 };
        SessionBytes {
            kv: KvCache::bytes(config, size),
            batch: Workspace::bytes(config, self.prefill_chunk.max(self.rows_max()), n_slots)
                // Logits of the wave, and of a piece of a streamed output matrix or of another generation's wave.
                .saturating_add(logits_bytes.saturating_mul(2)),
            drafts: sources.saturating_add(read),
        }
    }
}

/// Upper bounds of a session's bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct SessionBytes {
    /// Keys, values and recurrent states of a full context.
    pub(super) kv: u64,
    /// Activations, rotations, attention scores and logits of a pass.
    pub(super) batch: u64,
    /// Draft sources and projection rows.
    pub(super) drafts: u64,
}

impl SessionBytes {
    pub(super) fn total(self) -> u64 {
        self.kv.saturating_add(self.batch).saturating_add(self.drafts)
    }
}

impl SessionOptions {
    /// Upper bound of the bytes that [`Engine::set_self_draft`](crate::Engine::set_self_draft) with this predictor and one session take
    /// beside [`memory_bytes`](Self::memory_bytes): the exit, a second copy of the first layers' keys and values, and the rows of drafts.
    pub fn self_draft_bytes(&self, config: &ModelConfig, predictor: &Predictor) -> u64 {
        let n_layers = predictor.layer_idx().min(config.n_layers());
        let first = ModelConfig { layers: config.layers[..n_layers].to_vec(), ..config.clone() };
        // The matrix of the whole vocabulary is there twice: as it was read, and packed.
        let exit_bytes = 2 * predictor.memory_usage() as u64;
        DraftModelSource::bytes(&first, self.context_len_for(config), self.kv_type).saturating_add(exit_bytes)
    }
}

impl DraftModelOptions {
    /// Estimated bytes of the draft model in `checkpoint` and of one session's state for it. The target is
    /// loaded first, so an app that streams the target within a budget
    /// [reserves](crate::streaming::StreamOptions::reserved_bytes) them.
    pub fn memory_bytes(&self, checkpoint: &Checkpoint, session: &SessionOptions) -> u64 {
        self.quantize.weights_bytes(checkpoint).saturating_add(draft_session_bytes(checkpoint, session))
    }
}

/// Bytes of one session's state for the draft model in `checkpoint`.
pub(super) fn draft_session_bytes(checkpoint: &Checkpoint, session: &SessionOptions) -> u64 {
    let context_len = session.context_len.unwrap_or(CONTEXT_LEN_DEFAULT_MAX);
    match session.drafting {
        Drafting::AsClaimed => 0,
        _ => DraftModelSource::bytes(checkpoint.config(), context_len, KvType::F16),
    }
}
