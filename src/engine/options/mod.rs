//! Options of an engine, a session and a generation.
//!
//! Options are plain values and import no other part of the engine. Their ranges are checked when a session
//! or a generation starts.

mod policy;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::cancel::CancelToken;
use crate::draft::{CostProfile, DraftSource, EchoConfig, ReuseConfig};
use crate::face::internals;
use crate::kernels::{IsaKind, KvType};
use crate::model::ModelConfig;
use crate::model::graphs::Switching;
use crate::model::kv_cache::WindowCache;
use crate::model::weights::{PackedAccess, Quantize};
use crate::profile::{MachineProfile, kv_type_name};
use crate::pruning::PruningConfig;
use crate::verify::{LogitsProcessor, Sampling};
use refrain_stream::StreamOptions;
use refrain_trees::TokenId;

pub use policy::{AcceptanceFloor, DraftPolicy, DraftRows, SkipRules};

/// Options of an [`Engine`](crate::engine::Engine). `quantize` is the only option that changes the output.
#[derive(Debug, Clone, Default)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct EngineOptions {
    /// Threads of the forward pass, including the caller's. `None`: one per physical performance core that
    /// the process may use.
    pub n_threads: Option<usize>,
    /// Instruction set of the kernels. `None`: the widest that the CPU supports.
    pub isa: Option<IsaKind>,
    /// Block format of the weight matrices after loading.
    pub quantize: Quantize,
    /// How the weights of a packed file are loaded into memory.
    pub packed_access: PackedAccess,
    /// Cost of a verification batch by its rows. `None`: measured while loading, unless `profile` matches
    /// this machine.
    pub cost_profile: Option<CostProfile>,
    /// Time for measuring step costs while loading, if neither `cost_profile` nor a matching `profile` is given. `None`:
    /// 300 ms. Zero: nothing is measured; each row is taken to add a quarter of the first one, until steps have shown
    /// otherwise. Static graphs that have no stored times are measured anyway.
    pub measure_time: Option<Duration>,
    /// Step costs by rows and context length, from
    /// [`Device::measure_profile`](crate::device::Device::measure_profile). The profile is ignored if it was
    /// measured on another CPU, model shape, instruction set or number of threads, or with another KV cache
    /// type than the session's. [`Device::profile_mismatch`](crate::device::Device::profile_mismatch)
    /// reports the mismatch.
    pub profile: Option<MachineProfile>,
    /// Maximum bytes of weights that a model of static graphs holds at a time. `None`: the minimum, which is
    /// the embedding, the head and one graph per block. Opening the model fails if the limit is below this
    /// minimum.
    pub graph_memory_max: Option<u64>,
    /// When the loaded static graphs are switched between prefill and verification.
    pub graph_switching: Switching,
    /// Keeps only a part of a packed file's weights in memory. Every pass streams the others from flash ahead
    /// of the computation, and `packed_access` is ignored. `None`: all weights are in memory.
    pub streaming: Option<StreamOptions>,
    /// Maximum history tokens per namespace. `None`:
    /// [`HistoryStore::TOKENS_MAX`](crate::draft::HistoryStore::TOKENS_MAX).
    pub history_tokens_max: Option<u32>,
    /// Maximum history tokens of all namespaces together, of about 60 bytes each. `None`:
    /// [`HistoryStore::TOTAL_TOKENS_MAX`](crate::draft::HistoryStore::TOTAL_TOKENS_MAX), or the bound of one namespace if it is greater.
    pub history_total_tokens_max: Option<usize>,
}

/// Options of a draft model. No option changes the output.
#[derive(Debug, Clone, Default)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct DraftModelOptions {
    /// Block format of the weight matrices after loading.
    pub quantize: Quantize,
    /// How the weights of a packed file are loaded into memory.
    pub packed_access: PackedAccess,
    /// Cost of a draft model pass by its rows. `None`: measured while loading.
    pub cost_profile: Option<CostProfile>,
}

/// Whether a session drafts, and from which draft sources.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum Drafting {
    /// All draft sources. The tree builder decides at every step and may choose an empty draft.
    #[default]
    Auto,
    /// As `Auto`, but only the draft model and the app's own sources propose tokens.
    DraftModel,
    /// As `Auto`, but only the app's own sources propose tokens.
    OwnSources,
    /// As `OwnSources`, but every proposed token is verified. This suits sources that plan whole trees. If
    /// such a source runs a model, its memory is not part of [`DraftModelOptions::memory_bytes`].
    AsClaimed,
    /// Plain decoding.
    Off,
}

/// Whether the session drafts from the target's own distributions over the context
/// ([`PredictionsSource`](crate::draft::PredictionsSource)), and the set of tokens that they are projected onto.
///
/// Calibration of the prompt computes the last layer for every row of the prompt. Without calibration a
/// prefill computes only the keys and values of this layer. The extra time of prefill is about the time of
/// one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum Calibration {
    /// If a plain decoding step takes [`TARGET_READ_STEP_US_MIN`] or longer: [echo](SessionOptions::echo), as configured there or with
    /// [`EchoConfig::AUTO`], and [`InContext`](Self::InContext) if the target is streamed, whose reads hide the time that the prompt's
    /// rows take. Otherwise `Off`.
    #[default]
    Auto,
    /// None. [Echo](SessionOptions::echo) reads the rows of steps.
    Off,
    /// The distributions of prompt and output, projected onto the tokens of the context and frequent tokens.
    InContext,
    /// The distributions of prompt and output, projected onto the whole vocabulary.
    Full,
}

/// Minimum time of a plain decoding step, in µs, for which it pays to read the target's rows.
pub const TARGET_READ_STEP_US_MIN: f32 = 500.0;

/// Options of a [`Session`](crate::engine::Session). No option changes the output, except `kv_type`, and
/// `context_len` if the output ends because the context is full.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct SessionOptions {
    /// Maximum tokens of prompt and output together. `None`: the model's trained context length, at most
    /// [`CONTEXT_LEN_DEFAULT_MAX`].
    pub context_len: Option<usize>,
    /// Element type of the KV cache.
    #[serde(with = "kv_type_name")]
    pub kv_type: KvType,
    /// Which keys and values layers with a window keep. Default: all, so that the session can be truncated at no cost and
    /// its state can be kept.
    pub window_cache: WindowCache,
    /// Whether the session drafts, and from which draft sources.
    pub drafting: Drafting,
    /// When the session drafts, and how many rows.
    pub policy: DraftPolicy,
    /// With [`Drafting::Auto`]: whether the engine's draft model, if one is loaded, is a draft source.
    pub draft_model: bool,
    /// With [`Drafting::Auto`]: whether the session drafts from the target's distributions over the context.
    pub calibration: Calibration,
    /// With [`Drafting::Auto`]: whether the session drafts from the target's distributions after visited and rejected tokens, and from
    /// those of earlier sessions. Distributions are over the whole vocabulary with [`Calibration::Full`], and over the tokens of the
    /// context and frequent tokens otherwise. Those of the prompt are [`calibration`](Self::calibration)'s part. The sessions of a namespace
    /// share them, in the engine's history; without [`history`](Self::history) the session has its own. `None` (the
    /// default): no echo, unless [`Calibration::Auto`] chooses it.
    pub echo: Option<EchoConfig>,
    /// With calibration or echo: reuse of rejected draft segments that the target's distributions find likely. `None`: nothing
    /// is kept.
    pub reuse: Option<ReuseConfig>,
    /// How verification batches are pruned at a middle layer, if the engine has a predictor. `None`: no
    /// pruning.
    pub pruning: Option<PruningConfig>,
    /// The namespace of the history, such as an app, a user or a task. The session drafts from this namespace
    /// and adds its output to it.
    pub namespace: String,
    /// Whether the session drafts from, and adds to, the history of the namespace, and shares the lists of echo
    /// with the namespace.
    pub history: bool,
    /// Maximum rows of a verification batch, including the root:
    /// 1..=[`VERIFY_ROWS_MAX`](crate::drafting::VERIFY_ROWS_MAX).
    pub verify_rows_max: usize,
    /// Batch lengths that a static-shape backend has compiled, in rising order. Batches are padded to the
    /// next length. Empty (the default): no padding, except that static graphs run whole calls.
    pub verify_lens: Vec<usize>,
    /// Prompt tokens per forward pass, 1..=[`PREFILL_CHUNK_MAX`](crate::PREFILL_CHUNK_MAX). Static graphs use
    /// the rows of a prefill graph. Of a streamed model, several chunks share the reading of each layer, as far as
    /// [`StreamMemory::prompt_bytes`](crate::streaming::StreamMemory::prompt_bytes) reaches. A cancelled prefill keeps its
    /// finished passes.
    pub prefill_chunk: usize,
    /// Maximum rows that are projected onto the vocabulary at a time. A streamed output matrix takes more, up
    /// to 8 MiB of logits.
    pub projection_rows: usize,
}

/// Maximum default context length, in tokens. It bounds the KV cache of a 1.5 B model to about 100 MB.
pub const CONTEXT_LEN_DEFAULT_MAX: usize = 4096;

impl SessionOptions {
    internals! {
        /// The context length for a model of this configuration, in tokens.
        fn context_len_for(&self, config: &ModelConfig) -> usize {
            self.context_len.unwrap_or_else(|| config.context_len.min(CONTEXT_LEN_DEFAULT_MAX))
        }
    }

    /// Whether the target's rows are read for drafts.
    pub(crate) fn reads_rows(&self) -> bool {
        self.calibration != Calibration::Off || self.echo.is_some()
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
            window_cache: WindowCache::Full,
            drafting: Drafting::Auto,
            policy: DraftPolicy::default(),
            draft_model: true,
            calibration: Calibration::default(),
            echo: None,
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
    /// Maximum output tokens.
    pub max_tokens: usize,
    /// How each token is chosen.
    pub sampling: Sampling,
    /// Stop strings: the output ends before the first occurrence of one of them. The session's tokens include
    /// the token that completes the string. In plain text, truncate the session before the next generation.
    /// Each string has 1 to [`STOP_BYTES_MAX`] bytes.
    pub stop: Vec<String>,
    /// Token ids that end the output, besides the model's end tokens.
    pub stop_tokens: Vec<TokenId>,
    /// Whether generation continues after the model's end tokens.
    pub ignore_eos: bool,
    /// Applied to the logits in this order, before bias and penalties.
    pub processors: Vec<Box<dyn LogitsProcessor>>,
    /// Draft sources of this generation only, after those of the session. They observe the committed text before the
    /// first step and are dropped when the generation ends. They never change the output; with
    /// [`Drafting::Off`](crate::engine::Drafting::Off) they are never called.
    pub sources: Vec<Box<dyn DraftSource>>,
    /// Stops this generation. Clone the token before the generation starts, or take it from
    /// [`Generation::cancel_token`](crate::Generation::cancel_token).
    pub cancel: CancelToken,
}

/// Maximum bytes of a stop string. Text that may become a stop string is held back.
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
            sources: Vec::new(),
            cancel: CancelToken::new(),
        }
    }
}

impl fmt::Debug for GenerateOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { max_tokens, sampling, stop, stop_tokens, ignore_eos, processors, sources, cancel } = self;
        f.debug_struct("GenerateOptions")
            .field("max_tokens", max_tokens)
            .field("sampling", sampling)
            .field("stop", stop)
            .field("stop_tokens", stop_tokens)
            .field("ignore_eos", ignore_eos)
            .field("n_processors", &processors.len())
            .field("n_sources", &sources.len())
            .field("cancel", cancel)
            .finish()
    }
}
