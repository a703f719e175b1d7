//! Options of an engine, a session and a generation.
//!
//! Options are plain values and import no other part of the engine; ranges are checked where a session or a generation
//! starts.

mod policy;

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cancel::CancelToken;
use crate::draft::{CostProfile, ReuseConfig};
use crate::face::setters;
use crate::kernels::{IsaKind, KvType};
use crate::model::ModelConfig;
use crate::model::graphs::Switching;
use crate::model::weights::{PackedAccess, Quantize};
use crate::profile::{MachineProfile, kv_type_name};
use crate::pruning::PruningConfig;
use crate::stream::StreamOptions;
use crate::token::TokenId;
use crate::verify::{LogitsProcessor, Sampling};

pub use policy::{Acceptance, AcceptanceFloor, DraftPolicy, DraftRows, LOSSY_ROWS, PidConfig, SkipRules};

/// Options of an [`Engine`](crate::engine::Engine). None of them but `quantize` changes a bit of the output.
#[derive(Debug, Clone, Default)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct EngineOptions {
    /// Threads of the forward pass, the caller's included; `None`: the physical performance cores that the process may use.
    pub n_threads: Option<usize>,
    /// Instruction set of the kernels; `None`: the widest that the CPU has.
    pub isa: Option<IsaKind>,
    /// What the matrices become while loading.
    pub quantize: Quantize,
    /// How the weights of a packed file come into memory.
    pub packed_access: PackedAccess,
    /// What a verification batch costs; `None`: measured while loading, unless `profile` fits.
    pub cost_profile: Option<CostProfile>,
    /// What steps cost by rows and context, as [`Engine::measure_profile`](crate::engine::Engine::measure_profile) found. It
    /// is left aside where it was measured on another CPU, for another shape, instruction set or number of threads, or for
    /// another type of KV cache than a session's: [`Session::profile_mismatch`](crate::engine::Session::profile_mismatch)
    /// says so.
    pub profile: Option<MachineProfile>,
    /// Bytes of weights that a model of static graphs may hold at a time; `None`: what it needs, which is embedding, head and
    /// one graph per block. Less is refused when the model is opened.
    pub graph_memory_max: Option<u64>,
    /// When static graphs are changed.
    pub graph_switching: Switching,
    /// Keeps only a part of a packed file's weights in memory and streams the others from flash in every pass, ahead of the
    /// computation; `None`: all are in memory. Then `packed_access` says nothing.
    pub streaming: Option<StreamOptions>,
    /// Tokens of history kept per namespace; `None`: [`HistoryStore::TOKENS_MAX`](crate::draft::HistoryStore::TOKENS_MAX).
    pub history_tokens_max: Option<u32>,
}

setters!(EngineOptions {
    with_n_threads: n_threads: Option<usize>,
    with_isa: isa: Option<IsaKind>,
    with_quantize: quantize: Quantize,
    with_packed_access: packed_access: PackedAccess,
    with_cost_profile: cost_profile: Option<CostProfile>,
    with_profile: profile: Option<MachineProfile>,
    with_graph_memory_max: graph_memory_max: Option<u64>,
    with_graph_switching: graph_switching: Switching,
    with_streaming: streaming: Option<StreamOptions>,
    with_history_tokens_max: history_tokens_max: Option<u32>,
});

/// Options of a draft model. None of them changes a bit of the output.
#[derive(Debug, Clone, Default)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct DraftModelOptions {
    /// What the matrices become while loading.
    pub quantize: Quantize,
    /// How the weights of a packed file come into memory.
    pub packed_access: PackedAccess,
    /// What a pass costs by its rows; `None`: measured while loading.
    pub cost_profile: Option<CostProfile>,
}

setters!(DraftModelOptions {
    with_quantize: quantize: Quantize,
    with_packed_access: packed_access: PackedAccess,
    with_cost_profile: cost_profile: Option<CostProfile>,
});

/// Whether a session drafts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Drafting {
    /// The tree builder decides at every step; an empty draft is one of its choices.
    #[default]
    Auto,
    /// As `Auto`, with none but the draft model and the sources that the app adds.
    DraftModel,
    /// As `Auto`, with none but the sources that the app adds.
    OwnSources,
    /// As `OwnSources`, and all that they draft is verified: for sources that plan whole trees. If such a source drafts with a
    /// model, its memory is not part of [`DraftModelOptions::memory_bytes`].
    AsClaimed,
    /// Plain decoding.
    Off,
}

/// Whether the target's own distributions over the context draft ([`CalibrationSource`](crate::draft::CalibrationSource)), and
/// onto how many tokens they are projected.
///
/// For the rows of the prompt the last layer is computed, of which only keys and values are needed otherwise: a prefill takes
/// longer by about one part in as many as the model has layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Calibration {
    /// [`InContext`](Self::InContext) where a step of the model takes [`TARGET_READ_STEP_US_MIN`] or longer; else `Off`, and
    /// [`SessionOptions::reuse`] is off too.
    #[default]
    Auto,
    /// They do not.
    Off,
    /// Those of the prompt and the output, onto the same tokens.
    InContext,
    /// Onto the whole vocabulary.
    Full,
}

/// Below this time of a plain step, in µs, calibration and reuse cost more than they save: some 20 µs a step, for a twentieth
/// fewer steps.
pub const TARGET_READ_STEP_US_MIN: f32 = 500.0;

/// Options of a [`Session`](crate::engine::Session). None of them changes a bit of the output, but for `kv_type`, a lossy
/// `acceptance` and, where the output ends for want of room, `context_len`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct SessionOptions {
    /// Tokens of prompt and output together; `None`: what the model was trained for, at most
    /// [`CONTEXT_LEN_DEFAULT_MAX`].
    pub context_len: Option<usize>,
    /// Element type of the KV cache.
    #[serde(with = "kv_type_name")]
    pub kv_type: KvType,
    /// Whether to draft.
    pub drafting: Drafting,
    /// When, and how many rows.
    pub policy: DraftPolicy,
    /// Which tokens are accepted: the target's own, unless asked for otherwise.
    pub acceptance: Acceptance,
    /// Whether the engine's draft model drafts, where it has one, with [`Drafting::Auto`].
    pub draft_model: bool,
    /// Whether the target's distributions over the context draft, with [`Drafting::Auto`].
    pub calibration: Calibration,
    /// What is kept of rejected drafts, with [`Drafting::Auto`]; `None`: nothing.
    pub reuse: Option<ReuseConfig>,
    /// How drafts are pruned half-way through the target, where the engine has a predictor; `None`: they are not.
    pub pruning: Option<PruningConfig>,
    /// Whose history drafts for this session and learns from it: an app, a user, a task.
    pub namespace: String,
    /// Whether to draft from, and add to, the history of the namespace.
    pub history: bool,
    /// Rows of a verification batch at most, the root included, 1..=[`VERIFY_ROWS_MAX`](crate::VERIFY_ROWS_MAX).
    pub verify_rows_max: usize,
    /// Batch lengths that a static-shape backend has compiled, rising; batches are padded to the next of them. Empty (the
    /// default): every length, without padding, or of static graphs whole calls.
    pub verify_lens: Vec<usize>,
    /// Prompt tokens per forward pass, 1..=[`PREFILL_CHUNK_MAX`](crate::PREFILL_CHUNK_MAX); with static graphs, the rows of a prefill graph. A cancelled
    /// prefill keeps the chunks that are done.
    pub prefill_chunk: usize,
    /// Rows that are projected onto the vocabulary at a time, at most. A streamed output matrix takes more, up to 8 MiB of logits.
    pub projection_rows: usize,
}

setters!(SessionOptions {
    with_context_len: context_len: Option<usize>,
    with_kv_type: kv_type: KvType,
    with_drafting: drafting: Drafting,
    with_policy: policy: DraftPolicy,
    with_acceptance: acceptance: Acceptance,
    with_draft_model: draft_model: bool,
    with_calibration: calibration: Calibration,
    with_reuse: reuse: Option<ReuseConfig>,
    with_pruning: pruning: Option<PruningConfig>,
    with_namespace: namespace: String,
    with_history: history: bool,
    with_verify_rows_max: verify_rows_max: usize,
    with_verify_lens: verify_lens: Vec<usize>,
    with_prefill_chunk: prefill_chunk: usize,
    with_projection_rows: projection_rows: usize,
});

/// The context that a session gets when it does not ask for one, in tokens: a KV cache of a 1.5 B model stays near 100 MB.
pub const CONTEXT_LEN_DEFAULT_MAX: usize = 4096;

impl SessionOptions {
    /// The length of the context for a model of this configuration.
    pub fn context_len(&self, config: &ModelConfig) -> usize {
        self.context_len.unwrap_or_else(|| config.context_len.min(CONTEXT_LEN_DEFAULT_MAX))
    }

    /// Rows of the longest verification batch.
    pub(crate) fn rows_max(&self) -> usize {
        self.verify_lens.last().copied().unwrap_or(0).max(self.verify_rows_max)
    }
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            context_len: None,
            kv_type: KvType::F16,
            drafting: Drafting::Auto,
            policy: DraftPolicy::default(),
            acceptance: Acceptance::Strict,
            draft_model: true,
            calibration: Calibration::default(),
            reuse: Some(ReuseConfig::default()),
            pruning: Some(PruningConfig::default()),
            namespace: "default".to_owned(),
            history: true,
            verify_rows_max: 32,
            verify_lens: Vec::new(),
            prefill_chunk: 256,
            projection_rows: 8,
        }
    }
}

/// Options of one generation.
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct GenerateOptions {
    /// Output tokens at most.
    pub max_tokens: usize,
    /// How each token is chosen.
    pub sampling: Sampling,
    /// The output ends before the first of these strings. The session's tokens go on to the one that completed the string:
    /// in plain text, truncate before generating further. None may be empty; each at most [`STOP_BYTES_MAX`] long.
    pub stop: Vec<String>,
    /// The output ends at these tokens too, besides the end tokens of the model.
    pub stop_tokens: Vec<TokenId>,
    /// Whether to go on after the model's end tokens.
    pub ignore_eos: bool,
    /// Applied to the logits in this order, before bias and penalties.
    pub processors: Vec<Box<dyn LogitsProcessor>>,
    /// Stops this generation. Clone the token before the generation starts, or take it from
    /// [`Generation::cancel_token`](crate::Generation::cancel_token).
    pub cancel: CancelToken,
}

setters!(GenerateOptions {
    with_max_tokens: max_tokens: usize,
    with_sampling: sampling: Sampling,
    with_stop: stop: Vec<String>,
    with_stop_tokens: stop_tokens: Vec<TokenId>,
    with_ignore_eos: ignore_eos: bool,
    with_processors: processors: Vec<Box<dyn LogitsProcessor>>,
    with_cancel: cancel: CancelToken,
});

/// The longest stop string, in bytes: text that may become one is held back.
pub const STOP_BYTES_MAX: usize = 1024;

impl Default for GenerateOptions {
    fn default() -> Self {
        Self {
            max_tokens: 512,
            sampling: Sampling::default(),
            stop: Vec::new(),
            stop_tokens: Vec::new(),
            ignore_eos: false,
            processors: Vec::new(),
            cancel: CancelToken::new(),
        }
    }
}

impl fmt::Debug for GenerateOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max_tokens, sampling, stop, stop_tokens, ignore_eos, processors, cancel } = self;
        f.debug_struct("GenerateOptions")
            .field("max_tokens", max_tokens)
            .field("sampling", sampling)
            .field("stop", stop)
            .field("stop_tokens", stop_tokens)
            .field("ignore_eos", ignore_eos)
            .field("n_processors", &processors.len())
            .field("cancel", cancel)
            .finish()
    }
}
