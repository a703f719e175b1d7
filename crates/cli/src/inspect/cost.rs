//! The memory that a model needs, and its measured speed.

use refrain::checkpoint::Checkpoint;
use refrain::checkpoint::ModelConfig;
use refrain::device::MachineProfile;
use refrain::internals::engine::ReadRate;
use refrain::internals::model::kv_cache::{CacheSize, KvCache};
use refrain::internals::profile::cpu_name;
use refrain::state::WindowCache;
use refrain::{CONTEXT_LEN_DEFAULT_MAX, KvType, Quantize, SessionOptions};
use serde::Serialize;

/// The memory that a model needs.
#[derive(Debug, Serialize)]
pub(super) struct Memory {
    /// By `--quantize`. Streaming needs less.
    pub(super) weights: Vec<WeightsMemory>,
    /// The context of a session that names none.
    pub(super) context_len_default: usize,
    /// By `--kv`; types that cannot hold the model's heads are left out.
    pub(super) kv_cache: Vec<KvMemory>,
    /// The recurrent layers' state of a sequence at any length, with its checkpoints; 0 if all layers attend.
    pub(super) state_bytes: u64,
    /// At most, all of a session with default options: the above with `f16`, and the buffers of its passes.
    pub(super) session_bytes: u64,
}

/// The weights of a model in memory.
#[derive(Debug, Serialize)]
pub(super) struct WeightsMemory {
    /// The option's name.
    pub(super) quantize: &'static str,
    pub(super) bytes: u64,
    /// Without norms and biases.
    #[serde(skip)]
    matrices_bytes: u64,
}

/// Keys and values of a sequence.
#[derive(Debug, Serialize)]
pub(super) struct KvMemory {
    pub(super) kv_type: &'static str,
    pub(super) bytes_per_token: u64,
    /// With the default context.
    pub(super) bytes: u64,
    /// With the default context and `--window-cache bounded`.
    pub(super) bounded_bytes: u64,
}

impl Memory {
    pub(super) fn new(checkpoint: &Checkpoint) -> Self {
        let config = checkpoint.config();
        let context_len_default = config.context_len.min(CONTEXT_LEN_DEFAULT_MAX);
        let session = SessionOptions::default();
        let weights = |(quantize, name): (Quantize, &'static str)| WeightsMemory {
            quantize: name,
            bytes: quantize.weights_bytes(checkpoint),
            matrices_bytes: quantize.matrices_bytes(checkpoint),
        };
        let kv = |kv_type: KvType| {
            let bytes_per_token = KvCache::bytes_per_slot(config, kv_type);
            let bytes = |window_cache: WindowCache| {
                let size = SessionOptions { window_cache, ..session.clone() }.cache_size(config);
                KvCache::kv_bytes(config, CacheSize { kv_type, n_slots: context_len_default, ..size })
            };
            let [bytes, bounded_bytes] = [WindowCache::Full, WindowCache::Bounded].map(bytes);
            KvMemory { kv_type: kv_type.name(), bytes_per_token, bytes, bounded_bytes }
        };
        let holds = |kv_type: &KvType| {
            (0..config.n_layers())
                .filter_map(|layer_idx| config.attention(layer_idx))
                .all(|attention| kv_type.holds(attention.head_dim))
        };
        Self {
            weights: [(Quantize::Q8_0, "q8_0"), (Quantize::Q4_0, "q4_0"), (Quantize::Keep, "none")]
                .map(weights)
                .into(),
            context_len_default,
            kv_cache: KvType::ALL.iter().copied().filter(holds).map(kv).collect(),
            state_bytes: KvCache::recurrent_bytes(config, session.verify_rows_max),
            session_bytes: session.memory_bytes(config),
        }
    }
}

/// The speed of plain decoding on this machine.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Speed {
    /// From the profile beside the model.
    Measured(MeasuredSpeed),
    /// From the rate at which this machine reads weights.
    Estimated(EstimatedSpeed),
    /// The reason why it is not known.
    Unknown(String),
}

/// What decoding cannot exceed while each token reads the weights from memory.
#[derive(Debug, Serialize)]
pub(super) struct EstimatedSpeed {
    pub(super) tokens_per_s: f64,
    /// Bytes of weights that a token reads, with the default `--quantize`.
    pub(super) bytes_per_token: u64,
    /// Measured now.
    pub(super) read_bytes_per_s: f64,
    pub(super) isa: &'static str,
    pub(super) n_threads: usize,
    /// The reason why it was not measured.
    pub(super) reason: String,
}

#[derive(Debug, Serialize)]
pub(super) struct MeasuredSpeed {
    /// The option that the weights of the profile had.
    pub(super) quantize: &'static str,
    pub(super) kv_type: &'static str,
    pub(super) isa: String,
    pub(super) n_threads: usize,
    /// Steps of one row, ascending by context.
    pub(super) decode: Vec<DecodeSpeed>,
}

#[derive(Debug, Serialize)]
pub(super) struct DecodeSpeed {
    pub(super) context: usize,
    pub(super) tokens_per_s: f32,
}

impl Speed {
    /// The speed of the model with this memory by its stored profile, or an estimate.
    pub(super) fn new(profile: Option<&MachineProfile>, checkpoint: &Checkpoint, memory: &Memory) -> Self {
        let reason = match Self::measured(profile, checkpoint.config(), memory) {
            Ok(measured) => return Self::Measured(measured),
            Err(reason) => reason,
        };
        let bytes_per_token = Quantize::default().bytes_per_row(checkpoint);
        match ReadRate::measure() {
            Ok(Some(rate)) if bytes_per_token > 0 => Self::Estimated(EstimatedSpeed {
                tokens_per_s: rate.bytes_per_s / bytes_per_token as f64,
                bytes_per_token,
                read_bytes_per_s: rate.bytes_per_s,
                isa: rate.isa.name(),
                n_threads: rate.n_threads,
                reason,
            }),
            _ => Self::Unknown(reason),
        }
    }

    /// The speed by the stored profile, or why there is none.
    fn measured(
        profile: Option<&MachineProfile>,
        config: &ModelConfig,
        memory: &Memory,
    ) -> Result<MeasuredSpeed, String> {
        let Some(profile) = profile else {
            return Err("not measured here; `refrain model profile MODEL` measures it".to_owned());
        };
        let (key, here) = (profile.key(), cpu_name());
        let again = "`refrain model profile MODEL` measures again";
        if key.cpu != here {
            return Err(format!("the profile was measured on {}, this is {here}; {again}", key.cpu));
        }
        let is_measured = |weights: &&WeightsMemory| weights.matrices_bytes == key.weights_bytes as u64;
        let measured = memory.weights.iter().find(is_measured);
        let shape = (key.n_layers, key.hidden_dim, key.vocab_size);
        let Some(weights) =
            measured.filter(|_| shape == (config.n_layers(), config.hidden_dim, config.vocab_size))
        else {
            return Err(format!("the profile was measured with other weights; {again}"));
        };
        let mut contexts: Vec<usize> = profile.verify().iter().map(|cost| cost.context).collect();
        contexts.dedup();
        let decode = |context: usize| DecodeSpeed {
            context,
            tokens_per_s: 1e6 / profile.costs(context, 1).verify_us(1, 1),
        };
        Ok(MeasuredSpeed {
            quantize: weights.quantize,
            kv_type: key.kv_type.name(),
            isa: key.isa.clone(),
            n_threads: key.n_threads,
            decode: contexts.into_iter().map(decode).collect(),
        })
    }
}
