//! What an app can choose: when an engine is loaded, when a session starts, and for each generation.

use serde::{Deserialize, Serialize};

use super::generation::STREAMED_WAVE_BYTES;
use super::policy::{Acceptance, DraftPolicy};
use super::profile::MachineProfile;
use super::reader::Reader;
pub use crate::draft::VERIFY_ROWS_MAX;
use crate::draft::{CostProfile, ReuseConfig};
use crate::draft_model::DraftModelSource;
use crate::kernels::{IsaKind, KvType};
use crate::model::graphs::Switching;
use crate::model::weights::{PackedAccess, Quantize};
use crate::model::{Checkpoint, KvCache, ModelConfig, Workspace};
use crate::pruning::PruningConfig;
use crate::stream::StreamOptions;
use crate::token::TokenId;
use crate::verify::{LogitsProcessor, Sampling};

/// Options of an [`Engine`](crate::engine::Engine). None of them but `quantize` changes a bit of the output.
#[derive(Debug, Clone, Default)]
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

/// Options of a draft model. None of them changes a bit of the output.
#[derive(Debug, Clone, Default)]
pub struct DraftModelOptions {
    /// What the matrices become while loading.
    pub quantize: Quantize,
    /// How the weights of a packed file come into memory.
    pub packed_access: PackedAccess,
    /// What a pass costs by its rows; `None`: measured while loading.
    pub cost_profile: Option<CostProfile>,
}

impl DraftModelOptions {
    /// Bytes that the draft model in `checkpoint` takes, about, with what one such session computes by it. Where the target is streamed within
    /// a budget they are to be [reserved](crate::stream::StreamOptions::reserved_bytes), for the target is loaded first.
    pub fn memory_bytes(&self, checkpoint: &Checkpoint, session: &SessionOptions) -> u64 {
        let (config, context_len) =
            (checkpoint.config(), session.context_len.unwrap_or(CONTEXT_LEN_DEFAULT_MAX));
        let session_bytes = match session.drafting {
            Drafting::AsClaimed => 0,
            _ => DraftModelSource::bytes(config, context_len),
        };
        self.quantize.weights_bytes(checkpoint).saturating_add(session_bytes)
    }
}

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
    /// As `OwnSources`, and all that they draft is verified: for sources that plan whole trees. Where such a source drafts with a
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
    /// Those of the output alone, onto the tokens of the context and the most frequent ones of the vocabulary: their rows are
    /// computed anyway, and the prompt costs nothing.
    Output,
    /// Those of the prompt and the output, onto the same tokens.
    InContext,
    /// Onto the whole vocabulary.
    Full,
}

/// Below this time of a plain step, in µs, calibration and reuse cost more than they save: some 20 µs a step, for a twentieth
/// fewer steps.
pub const TARGET_READ_STEP_US_MIN: f32 = 500.0;

/// Which rows of a verification batch are projected onto the vocabulary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProjectionMode {
    /// Those that the walk asks for, in waves of the likeliest rows, as far as that is measured to pay.
    #[default]
    OnDemand,
    /// All at once, as other engines do: for comparison.
    Eager,
}

/// Options of a [`Session`](crate::engine::Session). None of them changes a bit of the output, but for `kv_type`, a lossy
/// `acceptance` and, where the output ends for want of room, `context_len`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
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
    /// Rows of a verification batch at most, the root included, 1..=[`VERIFY_ROWS_MAX`].
    pub verify_rows_max: usize,
    /// Batch lengths that a static-shape backend has compiled, rising; batches are padded to the next of them. Empty (the
    /// default): every length, without padding, or of static graphs whole calls.
    pub verify_lens: Vec<usize>,
    /// Prompt tokens per forward pass, 1..=[`PREFILL_CHUNK_MAX`]; with static graphs, the rows of a prefill graph. A cancelled
    /// prefill keeps the chunks that are done.
    pub prefill_chunk: usize,
    /// Which rows are projected onto the vocabulary.
    pub projection: ProjectionMode,
    /// Rows of a wave of [`ProjectionMode::OnDemand`] at most; of a streamed output matrix more, as far as their logits take 8 MiB.
    pub projection_rows: usize,
}

/// The context that a session gets when it does not ask for one, in tokens: a KV cache of a 1.5 B model stays near 100 MB.
pub const CONTEXT_LEN_DEFAULT_MAX: usize = 4096;

/// The longest prefill chunk, in tokens: its activations must stay small beside the weights.
pub const PREFILL_CHUNK_MAX: usize = 8192;

impl SessionOptions {
    /// The length of the context for a model of this configuration.
    pub fn context_len(&self, config: &ModelConfig) -> usize {
        self.context_len.unwrap_or_else(|| config.context_len.min(CONTEXT_LEN_DEFAULT_MAX))
    }

    /// Rows of the longest verification batch.
    pub(crate) fn rows_max(&self) -> usize {
        self.verify_lens.last().copied().unwrap_or(0).max(self.verify_rows_max)
    }

    /// Bytes that a session takes with a model of this configuration, about: the KV cache of a full context, a pass, the logits of a wave, and
    /// the rows that [`calibration`](Self::calibration) and [`reuse`](Self::reuse) project onto. Where the model is streamed within a
    /// budget they are to be [reserved](crate::stream::StreamOptions::reserved_bytes) for each session at a time.
    pub fn memory_bytes(&self, config: &ModelConfig) -> u64 {
        let n_slots = self.context_len(config).saturating_add(self.rows_max()) as u64;
        let kv_bytes = KvCache::bytes_per_slot(config, self.kv_type).saturating_mul(n_slots);
        let row_bytes = (config.vocab_size as u64).saturating_mul(size_of::<f32>() as u64);
        let logits_bytes =
            row_bytes.saturating_mul(self.projection_rows as u64).max(STREAMED_WAVE_BYTES as u64);
        let reads = self.calibration != Calibration::Off || self.reuse.is_some();
        kv_bytes
            .saturating_add(Workspace::bytes(config, self.prefill_chunk.max(self.rows_max())))
            .saturating_add(logits_bytes)
            .saturating_add(if reads { Reader::bytes(config) } else { 0 })
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
            projection: ProjectionMode::default(),
            projection_rows: 8,
        }
    }
}

pub(super) mod kv_type_name {
    //! `KvType` by its name: `kernels` does not know serde.
    use super::KvType;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(in crate::engine) fn serialize<S: Serializer>(
        kv_type: &KvType,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(kv_type.name())
    }

    pub(in crate::engine) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<KvType, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = KvType::ALL.into_iter().find(|kv_type| kv_type.name() == name);
        found.ok_or_else(|| D::Error::unknown_variant(&name, &["f16", "f32", "q8_0"]))
    }
}

/// Options of one generation.
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
}

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
        }
    }
}
