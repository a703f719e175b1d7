//! Whether a model fits, and how fast it will be, before it is loaded.
//!
//! Both are computed from the header of the model's file and the options: no weights are read, and nothing of their size is allocated.

use std::time::Duration;

use serde::Serialize;

use crate::draft::HistoryStore;
use crate::engine::budget::draft_session_bytes;
use crate::engine::options::{DraftModelOptions, EngineOptions, SessionOptions};
use crate::engine::session::check_options;
use crate::error::LoadError;
use crate::model::kv_cache::KvCacheError;
use crate::model::weights::LoadOptions;
use crate::model::{Checkpoint, Model, ModelConfig};
use crate::profile::{MachineProfile, ProfileKey, cpu_name};
use refrain_stream::available_bytes;

/// Bytes of a tokenizer in memory per token of its vocabulary: the token's bytes, their merges or scores, and the maps from and to ids.
/// `tests/memory/tokenizer_memory.rs` measures it.
pub const TOKENIZER_TOKEN_BYTES: u64 = 400;

/// Bytes of the history in memory per token.
const HISTORY_TOKEN_BYTES: u64 = 60;

/// The memory that a model and its sessions take, before the model is loaded.
///
/// ```no_run
/// use refrain::checkpoint::Checkpoint;
/// use refrain::device::MemoryEstimate;
/// use refrain::{EngineOptions, SessionOptions};
///
/// let checkpoint = Checkpoint::open("model.gguf")?;
/// let (options, session) = (EngineOptions::default(), SessionOptions::default());
/// let memory = MemoryEstimate::new(&checkpoint, &options, &session, 1)?;
/// if memory.fits() == Some(false) {
///     println!("{} MiB are too many: try a smaller model, a shorter context or streaming", memory.total_bytes() >> 20);
/// }
/// # Ok::<(), refrain::LoadError>(())
/// ```
///
/// Each number is an upper bound for full contexts: what a session has not written yet takes no memory. Not counted are the program itself,
/// the app's own draft sources, and what loading holds besides (a megabyte per thread).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct MemoryEstimate {
    /// The weights that stay in memory, those of a mapped file included.
    pub weights_bytes: u64,
    /// Of a streamed model: the buffers for the weights that every pass reads.
    pub stream_bytes: u64,
    /// The tokenizer.
    pub tokenizer_bytes: u64,
    /// Keys, values and recurrent states of all sessions.
    pub kv_bytes: u64,
    /// Activations, attention scores and logits of a pass, of all sessions; of a streamed model, also those of one long prompt.
    pub batch_bytes: u64,
    /// Drafting of all sessions: the sources and what they read of the target.
    pub drafts_bytes: u64,
    /// A draft model with its sessions ([`with_draft_model`](Self::with_draft_model)).
    pub draft_model_bytes: u64,
    /// What the history in memory grows to ([`Engine::history`](crate::Engine::history)). It begins empty, and is not part of the
    /// [total](Self::total_bytes).
    pub history_bytes: u64,
}

impl MemoryEstimate {
    /// The memory of a model with `n_sessions` sessions of the same options. For a memory budget of a streamed model, the process has what
    /// it holds now.
    ///
    /// # Errors
    /// As [`Engine::load`](crate::Engine::load) and [`Engine::session`](crate::Engine::session), as far as options and header tell: a budget
    /// is too small, the model is not packed and cannot be streamed, it is a draft head, or an option of the session is out of its range.
    pub fn new(
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        session: &SessionOptions,
        n_sessions: usize,
    ) -> Result<Self, LoadError> {
        let (weights_bytes, stream) = Model::planned_memory(checkpoint, &load_options(options))?;
        let config = checkpoint.config();
        check_session(session, config)?;
        let is_head_streamed = stream.is_some_and(|stream| !stream.head_pinned);
        let of_session = session.bytes(config, is_head_streamed);
        let of_all = |bytes: u64| bytes.saturating_mul(n_sessions as u64);
        let of_one = options.history_tokens_max.unwrap_or(HistoryStore::TOKENS_MAX) as usize;
        let total = options.history_total_tokens_max;
        let history_tokens = total.unwrap_or(HistoryStore::TOTAL_TOKENS_MAX.max(of_one));
        Ok(Self {
            weights_bytes,
            stream_bytes: stream.map_or(0, |stream| stream.total_bytes() - stream.pinned_bytes),
            tokenizer_bytes: (config.vocab_size as u64).saturating_mul(TOKENIZER_TOKEN_BYTES),
            kv_bytes: of_all(of_session.kv),
            batch_bytes: of_all(of_session.batch)
                .saturating_add(stream.map_or(0, |stream| stream.prompt_bytes)),
            drafts_bytes: of_all(of_session.drafts),
            draft_model_bytes: 0,
            history_bytes: match session.history {
                true => HISTORY_TOKEN_BYTES.saturating_mul(history_tokens as u64),
                false => 0,
            },
        })
    }

    /// The same with a draft model for sessions of these options.
    #[must_use]
    pub fn with_draft_model(
        mut self,
        checkpoint: &Checkpoint,
        options: &DraftModelOptions,
        session: &SessionOptions,
        n_sessions: usize,
    ) -> Self {
        let of_sessions = draft_session_bytes(checkpoint, session).saturating_mul(n_sessions as u64);
        self.draft_model_bytes = options.quantize.weights_bytes(checkpoint).saturating_add(of_sessions);
        self
    }

    /// All of it but the history.
    pub fn total_bytes(&self) -> u64 {
        let Self {
            weights_bytes,
            stream_bytes,
            tokenizer_bytes,
            kv_bytes,
            batch_bytes,
            drafts_bytes,
            draft_model_bytes,
            history_bytes: _,
        } = *self;
        [weights_bytes, stream_bytes, tokenizer_bytes, kv_bytes, batch_bytes, drafts_bytes, draft_model_bytes]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// Whether the system has that much memory to give now. `None` if it does not say how much it has; an app on a phone compares the
    /// [total](Self::total_bytes) with the limit that its system sets.
    pub fn fits(&self) -> Option<bool> {
        available_bytes().map(|available| self.total_bytes() <= available)
    }
}

/// Checks the options of a session as its start does.
fn check_session(session: &SessionOptions, config: &ModelConfig) -> Result<(), LoadError> {
    check_options(session, session.context_len_for(config), config.context_len)?;
    let mut heads = (0..config.n_layers()).filter_map(|layer_idx| config.attention(layer_idx));
    match heads.find(|attention| !session.kv_type.holds(attention.head_dim)) {
        Some(attention) => {
            Err(KvCacheError::HeadDim { kv_type: session.kv_type, head_dim: attention.head_dim }.into())
        }
        None => Ok(()),
    }
}

/// How fast a model answers without drafts, before it is loaded: from the profile that this machine has stored for it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct SpeedEstimate {
    /// From the start of the prefill to the first token, with nothing of the prompt in the KV cache.
    pub time_to_first_token: Duration,
    /// Tokens per second behind the prompt.
    pub tokens_per_s: f32,
}

/// Points at which the cost of attention is looked up at most, whatever the prompt's length.
const POINTS_MAX: usize = 1024;

impl SpeedEstimate {
    /// The speed of an answer behind a prompt of `n_prompt` tokens. Chunks of the prefill have the times of the profile, with the time of
    /// attention that its steps show for longer contexts.
    ///
    /// # Errors
    /// Kind [`Mismatch`](crate::ErrorKind::Mismatch), the field differs: the profile was measured on another CPU, with other weights or
    /// another KV cache, or with other threads or instructions than the options name. Or as
    /// [`MemoryEstimate::new`].
    pub fn new(
        profile: &MachineProfile,
        checkpoint: &Checkpoint,
        options: &EngineOptions,
        session: &SessionOptions,
        n_prompt: usize,
    ) -> Result<Self, LoadError> {
        let key = profile.key();
        let (pinned_bytes, stream) = Model::planned_memory(checkpoint, &load_options(options))?;
        let weights_bytes = match stream {
            Some(stream) => stream.total_bytes(),
            None if checkpoint.graphs().is_some() => pinned_bytes,
            None => options.quantize.matrices_bytes(checkpoint),
        };
        let here = ProfileKey::of(checkpoint.config(), key.kv_type, weights_bytes as usize);
        let here = ProfileKey {
            cpu: cpu_name(),
            isa: options.isa.map_or_else(|| key.isa.clone(), |isa| isa.name().to_owned()),
            n_threads: options.n_threads.unwrap_or(key.n_threads),
            ..here
        };
        if let Some(mismatch) = key.mismatch(&here).or_else(|| key.kv_mismatch(session.kv_type)) {
            return Err(mismatch.into());
        }
        let step_us = f64::from(profile.costs(n_prompt, 1).verify_us(1, 1));
        let prefill_us = prefill_us(profile, n_prompt.saturating_sub(1), session.prefill_chunk.max(1));
        let seconds = (prefill_us + step_us) / 1e6;
        Ok(Self {
            time_to_first_token: Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
            tokens_per_s: (1e6 / step_us) as f32,
        })
    }
}

/// Time of a prefill of `n_tokens` tokens in chunks, in µs.
fn prefill_us(profile: &MachineProfile, n_tokens: usize, chunk: usize) -> f64 {
    let (n_chunks, rest) = (n_tokens / chunk, n_tokens % chunk);
    // The profile has chunks at the beginning of a text only; steps of many rows show what a row costs more behind a context.
    let rows_max = profile.verify().iter().map(|cost| cost.rows).max().unwrap_or(1);
    let us = |context: usize| f64::from(profile.costs(context, 1).verify_us(rows_max, 1));
    let at_begin = us(0);
    let row_us = |context: usize| (us(context) - at_begin).max(0.0) / rows_max as f64;
    let n_points = n_chunks.min(POINTS_MAX);
    let attention: f64 = (0..n_points).map(|point| row_us(n_chunks / n_points * chunk * point)).sum::<f64>()
        / n_points.max(1) as f64;
    let of_chunks = n_chunks as f64 * (profile.prefill_us(chunk) + attention * chunk as f64);
    let of_rest =
        if rest == 0 { 0.0 } else { profile.prefill_us(rest) + row_us(n_tokens - rest) * rest as f64 };
    of_chunks + of_rest
}

fn load_options(options: &EngineOptions) -> LoadOptions<'_> {
    LoadOptions {
        quantize: options.quantize,
        packed_access: options.packed_access,
        graph_memory_max: options.graph_memory_max,
        streaming: options.streaming.as_ref(),
        ..LoadOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::handle::Engine;
    use crate::error::LoadError;
    use crate::kernels::KvType;
    use crate::model::packed::pack;
    use crate::profile::ProfileOptions;
    use refrain_files::ErrorKind;
    use refrain_stream::{Pinned, StreamOptions};

    fn fixture() -> Checkpoint {
        Checkpoint::open(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf")).unwrap()
    }

    /// What is planned from the header is what the loaded model reports.
    #[test]
    fn weights_are_those_that_loading_takes() {
        let checkpoint = fixture();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("target.refrain");
        pack(&checkpoint, &path, LoadOptions::default()).unwrap();
        let packed = Checkpoint::open(&path).unwrap();
        let session = SessionOptions::default();
        let n_layers = checkpoint.config().n_layers();
        for pinned in [
            Pinned::Layers(0),
            Pinned::Layers(2),
            Pinned::Layers(n_layers),
            Pinned::Memory(0),
            Pinned::Memory(1 << 40),
        ] {
            let streaming = Some(StreamOptions::new(pinned));
            let options = EngineOptions { n_threads: Some(1), streaming, ..EngineOptions::default() };
            let estimate = MemoryEstimate::new(&packed, &options, &session, 1).unwrap();
            let engine = Engine::load(&packed, options, |_, _| {}).unwrap();
            let memory = engine.streamed().unwrap().memory();
            let (taken, planned) = (memory.total_bytes(), estimate.weights_bytes + estimate.stream_bytes);
            // Of rows that are kept, the plan has an upper bound.
            assert!(taken.abs_diff(planned) <= planned / 10, "{pinned:?}: {taken} of {planned}");
        }
        let estimate = MemoryEstimate::new(&checkpoint, &EngineOptions::default(), &session, 3).unwrap();
        assert_eq!(estimate.stream_bytes, 0);
        let of_one = MemoryEstimate::new(&checkpoint, &EngineOptions::default(), &session, 1).unwrap();
        assert_eq!(estimate.kv_bytes, 3 * of_one.kv_bytes);
        assert!(estimate.total_bytes() < 3 * of_one.total_bytes());
        let draft = of_one.with_draft_model(&checkpoint, &DraftModelOptions::default(), &session, 2);
        assert!(draft.draft_model_bytes > of_one.weights_bytes);
        assert_eq!(draft.total_bytes(), of_one.total_bytes() + draft.draft_model_bytes);
    }

    #[test]
    fn what_loading_refuses_is_refused() {
        let refused = |options: EngineOptions| {
            MemoryEstimate::new(&fixture(), &options, &SessionOptions::default(), 1).unwrap_err()
        };
        let streaming = Some(StreamOptions::new(Pinned::Layers(1)));
        let not_packed = refused(EngineOptions { streaming, ..EngineOptions::default() });
        assert!(not_packed.to_string().contains("only packed files"), "{not_packed}");
        let refused = |session: SessionOptions| {
            MemoryEstimate::new(&fixture(), &EngineOptions::default(), &session, 1).unwrap_err()
        };
        for (field, session) in [
            ("context_len", SessionOptions { context_len: Some(usize::MAX), ..SessionOptions::default() }),
            ("prefill_chunk", SessionOptions { prefill_chunk: usize::MAX, ..SessionOptions::default() }),
            ("projection_rows", SessionOptions { projection_rows: 0, ..SessionOptions::default() }),
        ] {
            let error = refused(session);
            assert_eq!((error.kind(), error.field()), (ErrorKind::InvalidArgument, Some(field)), "{error}");
        }
        let (options, session) = (EngineOptions::default(), SessionOptions::default());
        let many = MemoryEstimate::new(&fixture(), &options, &session, usize::MAX).unwrap();
        assert_eq!((many.total_bytes(), many.fits().unwrap_or(false)), (u64::MAX, false));
    }

    #[test]
    fn the_speed_is_that_of_the_profile() {
        let checkpoint = fixture();
        let options = EngineOptions { n_threads: Some(1), ..EngineOptions::default() };
        let engine = Engine::load(&checkpoint, options.clone(), |_, _| {}).unwrap();
        let profile = ProfileOptions {
            contexts: vec![256],
            rows: vec![1, 16],
            prefill: vec![64, 256],
            entry_time: Duration::from_millis(5),
            ..ProfileOptions::default()
        };
        let profile = engine.device().measure_profile(&profile, |_, _| {}).unwrap();
        let session = SessionOptions::default();
        let speed = |n_prompt| SpeedEstimate::new(&profile, &checkpoint, &options, &session, n_prompt);
        let times = [1, 2, 64, 257, 400, 100_000, usize::MAX].map(|n| speed(n).unwrap().time_to_first_token);
        assert!(times.is_sorted(), "{times:?}");
        let (one, many) = (speed(1).unwrap(), speed(257).unwrap());
        // A prompt of one token is one step.
        let step_s = one.time_to_first_token.as_secs_f32();
        assert!((one.tokens_per_s * step_s - 1.0).abs() < 1e-3, "{one:?}");
        let chunk_us = profile.prefill_us(256);
        let chunk = many.time_to_first_token.as_secs_f64() * 1e6;
        assert!(chunk >= chunk_us && chunk < 2.0 * chunk_us + 1e5, "{chunk} of {chunk_us}");
        let field = |error: LoadError| {
            assert_eq!(error.kind(), ErrorKind::Mismatch);
            error.field().unwrap().to_owned()
        };
        let other = EngineOptions { n_threads: Some(2), ..options.clone() };
        let error = SpeedEstimate::new(&profile, &checkpoint, &other, &session, 10).unwrap_err();
        assert_eq!(field(error), "threads");
        let other = SessionOptions { kv_type: KvType::Q8_0, ..SessionOptions::default() };
        let error = SpeedEstimate::new(&profile, &checkpoint, &options, &other, 10).unwrap_err();
        assert_eq!(field(error), "KV type");
    }
}
