//! Shared parts of the integration tests: tiny random models, recorded generations.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this module")]

use std::collections::BTreeMap;
use std::io;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use refrain::checkpoint::Checkpoint;
use refrain::device::IsaKind;
use refrain::drafting::DraftSource;
use refrain::internals::draft::CostProfile;
use refrain::internals::draft::testing::AlwaysRight;
use refrain::internals::kernels::{BlockType, quantize};
use refrain::internals::model::gguf::{GgufArray, GgufValue, GgufWriter};
use refrain::internals::pruning::{PredictorParts, f16};
use refrain::internals::stream::{ReadAt, ReadMode, WrapReader};
use refrain::streaming::StreamOptions;
use refrain::{
    CancelToken, Drafting, Engine, EngineOptions, ErrorKind, Event, FinishReason, GenerateOptions,
    LogitsProcessor, Origin, OwnedGeneration, ProcessorError, Quantize, Sampling, Session, SessionOptions,
    SpecialTokens, Stats, TokenId, step_together,
};

/// A small generator of numbers for test data (SplitMix64).
pub struct Rng(pub u64);

impl Rng {
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next_u64() % n as u64) as usize
    }

    /// Uniform in -1..1.
    pub fn signed(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }
}

/// The shape of a tiny model.
#[derive(Clone, Copy)]
pub struct Tiny {
    pub hidden_dim: usize,
    pub n_layers: usize,
    pub head_dim: usize,
    pub context_len: usize,
    /// Positions that a row of any layer sees.
    pub window: Option<usize>,
    pub ty: BlockType,
    pub seed: u64,
    /// The chat template.
    pub template: &'static str,
}

impl Default for Tiny {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Tokens of a tiny model: 256 bytes, and the end token.
pub const VOCAB_SIZE: usize = 257;
pub const EOS: TokenId = TokenId(256);

impl Tiny {
    pub const DEFAULT: Self = Self {
        hidden_dim: 64,
        n_layers: 2,
        head_dim: 16,
        context_len: 512,
        window: None,
        ty: BlockType::F32,
        seed: 1,
        template: "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}\
                   {% if add_generation_prompt %}[assistant]{% endif %}",
    };

    /// A random model of the qwen3 family (QK-norm, grouped queries) over single bytes, as a GGUF file in memory.
    pub fn gguf(self) -> Vec<u8> {
        let Self { hidden_dim: d, n_layers, head_dim, context_len, window, ty, seed, template } = self;
        let (n_heads, n_kv_heads, ffn_dim) = (4, 2, 2 * d);
        let mut rng = Rng(seed);
        let mut w = GgufWriter::new();
        let mut meta = |key: &str, value: GgufValue| {
            w.metadata(key, value);
        };
        meta("general.architecture", GgufValue::String("qwen3".into()));
        meta("general.name", GgufValue::String("tiny".into()));
        for (key, value) in [
            ("block_count", n_layers),
            ("context_length", context_len),
            ("embedding_length", d),
            ("feed_forward_length", ffn_dim),
            ("attention.head_count", n_heads),
            ("attention.head_count_kv", n_kv_heads),
            ("attention.key_length", head_dim),
            ("attention.value_length", head_dim),
        ] {
            meta(&format!("qwen3.{key}"), GgufValue::U32(value as u32));
        }
        meta("qwen3.attention.layer_norm_rms_epsilon", GgufValue::F32(1e-6));
        meta("qwen3.rope.freq_base", GgufValue::F32(10_000.0));
        if let Some(window) = window {
            meta("qwen3.attention.sliding_window", GgufValue::U32(window as u32));
        }
        meta("tokenizer.ggml.model", GgufValue::String("gpt2".into()));
        meta("tokenizer.ggml.pre", GgufValue::String("gpt-2".into()));
        let tokens = byte_tokens().into_iter().chain(["<|end|>".to_owned()]);
        meta("tokenizer.ggml.tokens", GgufValue::Array(GgufArray::String(tokens.collect())));
        let types = (0..VOCAB_SIZE).map(|i| if i == EOS.index() { 3 } else { 1 });
        meta("tokenizer.ggml.token_type", GgufValue::Array(GgufArray::I32(types.collect())));
        meta("tokenizer.ggml.merges", GgufValue::Array(GgufArray::String(Vec::new())));
        meta("tokenizer.ggml.eos_token_id", GgufValue::U32(EOS.0));
        meta("tokenizer.chat_template", GgufValue::String(template.into()));

        let mut data = Vec::new();
        let mut tensor = |name: String, n_rows: usize, n_cols: usize, ty: BlockType, scale: f32| {
            let values: Vec<f32> = (0..n_rows * n_cols)
                .map(|_| if scale == 0.0 { 1.0 + 0.1 * rng.signed() } else { scale * rng.signed() })
                .collect();
            let mut bytes = Vec::new();
            match ty {
                BlockType::Q4K => random_q4_k(&mut rng, n_rows * n_cols, scale, &mut bytes),
                _ => values.chunks_exact(n_cols).for_each(|row| quantize(ty, row, &mut bytes)),
            }
            let dims: Vec<u64> =
                if n_rows == 1 { vec![n_cols as u64] } else { vec![n_cols as u64, n_rows as u64] };
            w.tensor(&name, ty, &dims);
            data.push(bytes);
        };
        let (q_dim, kv_dim) = (n_heads * head_dim, n_kv_heads * head_dim);
        let scale = 1.7 / (d as f32).sqrt();
        tensor("token_embd.weight".into(), VOCAB_SIZE, d, ty, 1.0);
        tensor("output.weight".into(), VOCAB_SIZE, d, ty, 2.0 * scale);
        tensor("output_norm.weight".into(), 1, d, BlockType::F32, 0.0);
        for i in 0..n_layers {
            let mut layer = |name: &str, n_rows, n_cols, scale| {
                // Q4_K needs rows of whole 256-blocks. Attention outputs are narrower and stay Q8_0, as in mixed
                // files.
                let ty = if n_rows == 1 {
                    BlockType::F32
                } else if n_cols % ty.block_len() == 0 {
                    ty
                } else {
                    BlockType::Q8_0
                };
                tensor(format!("blk.{i}.{name}.weight"), n_rows, n_cols, ty, scale);
            };
            layer("attn_norm", 1, d, 0.0);
            layer("attn_q", q_dim, d, scale);
            layer("attn_k", kv_dim, d, scale);
            layer("attn_v", kv_dim, d, scale);
            layer("attn_output", d, q_dim, 1.7 / (q_dim as f32).sqrt());
            layer("attn_q_norm", 1, head_dim, 0.0);
            layer("attn_k_norm", 1, head_dim, 0.0);
            layer("ffn_norm", 1, d, 0.0);
            layer("ffn_gate", ffn_dim, d, scale);
            layer("ffn_up", ffn_dim, d, scale);
            layer("ffn_down", d, ffn_dim, 1.7 / (ffn_dim as f32).sqrt());
        }
        gguf_bytes(w, &data)
    }

    /// An engine for the model. Batches cost the same at every length, so the builder drafts the maximum
    /// number of rows.
    pub fn engine(self, n_threads: usize) -> Engine {
        self.engine_with(EngineOptions { n_threads: Some(n_threads), ..self.options() })
    }

    pub fn options(self) -> EngineOptions {
        EngineOptions {
            isa: isa(),
            quantize: Quantize::Keep,
            // Rows are free, so the builder drafts the maximum number.
            cost_profile: Some(CostProfile::free_rows(100.0)),
            ..EngineOptions::default()
        }
    }

    pub fn engine_with(self, options: EngineOptions) -> Engine {
        let checkpoint = Checkpoint::from_gguf_bytes(self.gguf().into(), "tiny").expect("a valid model");
        Engine::load(&checkpoint, options, |_, _| {}).expect("a loadable model")
    }
}

/// The instruction set named by `REFRAIN_TEST_ISA`; without it, engines choose the fastest of this machine.
pub fn isa() -> Option<IsaKind> {
    let name = std::env::var("REFRAIN_TEST_ISA").ok()?;
    let named = IsaKind::ALL.iter().copied().find(|isa| isa.name() == name);
    Some(named.unwrap_or_else(|| panic!("REFRAIN_TEST_ISA: no instruction set is called {name}")))
}

/// A GGUF file in memory, with the data of its tensors in the order declared.
pub fn gguf_bytes(writer: GgufWriter, data: &[Vec<u8>]) -> Vec<u8> {
    let mut out = writer.start(Vec::new()).expect("tensors with a size");
    data.iter().for_each(|bytes| out.write_tensor(bytes).expect("as many bytes as declared"));
    out.finish().expect("all tensors")
}

/// Random Q4_K blocks (256 weights in 144 bytes): f16 scale and minimum, 6-bit sub-scales, nibbles.
fn random_q4_k(rng: &mut Rng, n: usize, scale: f32, out: &mut Vec<u8>) {
    for _ in 0..n / 256 {
        // With sub-scales and nibbles about their middle (32, 8), w = d·32·8 − dmin·32 is about zero.
        let mut half = Vec::new();
        quantize(BlockType::F16, &[scale / 32.0 / 8.0, scale / 32.0], &mut half);
        out.extend_from_slice(&half);
        out.extend((0..12 + 128).map(|_| rng.next_u64() as u8));
    }
}

/// The 256 bytes in the spelling of byte-level vocabularies.
fn byte_tokens() -> Vec<String> {
    let printable = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut shifted = 256;
    (0..256u32)
        .map(|b| {
            let code = if printable(b) {
                b
            } else {
                shifted += 1;
                shifted - 1
            };
            char::from_u32(code).unwrap().to_string()
        })
        .collect()
}

/// Records the bits of the logits of every position.
#[derive(Clone, Default)]
pub struct LogitsRecorder(pub Arc<Mutex<BTreeMap<usize, u64>>>);

impl LogitsProcessor for LogitsRecorder {
    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
        let hash = logits.iter().fold(0xCBF2_9CE4_8422_2325u64, |h, x| {
            (h ^ u64::from(x.to_bits())).wrapping_mul(0x0000_0100_0000_01B3)
        });
        let earlier = self.0.lock().unwrap().insert(tokens.len(), hash);
        assert_eq!(earlier, None, "position {} was visited twice", tokens.len());
        Ok(())
    }
}

/// Forces a token at a position.
#[derive(Clone)]
pub struct ForceAt(pub Vec<(usize, TokenId)>);

impl LogitsProcessor for ForceAt {
    fn process(&mut self, tokens: &[TokenId], logits: &mut [f32]) -> Result<(), ProcessorError> {
        for &(position, token) in &self.0 {
            if position == tokens.len() {
                logits[token.index()] += 1e6;
            }
        }
        Ok(())
    }
}

/// The results that drafting must not change, and those that it may change.
pub struct Run {
    pub tokens: Vec<TokenId>,
    /// Text of the events, in order.
    pub texts: Vec<String>,
    pub finish: FinishReason,
    /// Hash of the logits' bits at every position that gave a token.
    pub logits: BTreeMap<usize, u64>,
    pub origins: Vec<Origin>,
    pub stats: Stats,
}

impl Run {
    pub fn text(&self) -> String {
        self.texts.concat()
    }

    /// Compares the results that must be equal bit for bit.
    pub fn assert_equal(&self, plain: &Run, case: &str) {
        assert_eq!(self.tokens, plain.tokens, "tokens: {case}");
        assert_eq!(self.texts, plain.texts, "texts: {case}");
        assert_eq!(self.finish, plain.finish, "finish: {case}");
        assert_eq!(self.logits, plain.logits, "bits of the logits: {case}");
    }
}

/// Generates in `session` and breaks after at most `take` tokens.
pub fn run_in(session: &mut Session, mut options: GenerateOptions, take: usize) -> Run {
    let recorder = LogitsRecorder::default();
    options.processors.insert(0, Box::new(recorder.clone()));
    let (mut tokens, mut texts, mut origins) = (Vec::new(), Vec::new(), Vec::new());
    let summary = session
        .generate(options)
        .expect("valid options")
        .run(|event| {
            tokens.push(event.id);
            texts.push(event.text.clone());
            origins.push(event.origin.clone());
            if tokens.len() < take { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })
        .expect("a generation");
    texts.push(summary.text);
    let logits = recorder.0.lock().unwrap().clone();
    Run { tokens, texts, finish: summary.finish, logits, origins, stats: summary.stats }
}

/// A fresh session over `prompt` with `sources` added.
pub fn run(
    engine: &Engine,
    session: SessionOptions,
    sources: Vec<Box<dyn DraftSource>>,
    prompt: &[TokenId],
    options: GenerateOptions,
) -> Run {
    let mut session = engine.session(session).expect("valid options");
    sources.into_iter().for_each(|s| session.add_source(s).expect("room for a source"));
    session.append_tokens(prompt).expect("a prompt that fits");
    run_in(&mut session, options, usize::MAX)
}

/// Session options without drafting.
pub fn plain() -> SessionOptions {
    SessionOptions { drafting: Drafting::Off, history: false, ..SessionOptions::default() }
}

/// `n` random tokens below 256.
pub fn random_prompt(seed: u64, n: usize) -> Vec<TokenId> {
    let mut rng = Rng(seed);
    (0..n).map(|_| TokenId(rng.below(256) as u32)).collect()
}

/// `n` tokens below 256 that look like nothing in particular.
pub fn tokens(n: usize) -> Vec<TokenId> {
    (0..n as u32).map(|i| TokenId(i.wrapping_mul(2_654_435_761) >> 8 & 0xff)).collect()
}

/// A prompt of `n` random byte tokens with repeats.
pub fn prompt(seed: u64, n: usize) -> Vec<TokenId> {
    let mut rng = Rng(seed);
    let words: Vec<Vec<TokenId>> =
        (0..6).map(|_| (0..4).map(|_| TokenId(97 + rng.below(26) as u32)).collect()).collect();
    (0..n).map(|i| words[(i / 4 * 7 + i / 12) % 6][i % 4]).collect()
}

/// Greedy, and sampling with every penalty.
pub fn samplings() -> [Sampling; 2] {
    let sampled = Sampling {
        temperature: 0.9,
        top_p: 0.95,
        repetition_penalty: 1.1,
        frequency_penalty: 0.1,
        presence_penalty: 0.1,
        penalty_window: 16,
        logit_bias: vec![(TokenId(101), 0.5)],
        seed: Some(11),
        ..Sampling::default()
    };
    [Sampling::default(), sampled]
}

/// A token that is cancelled before the work starts.
pub fn cancelled_token() -> CancelToken {
    let cancel = CancelToken::new();
    cancel.cancel();
    cancel
}

/// Long and short turns, each after a cancelled prefill and before a fork: `session` gives the same output as
/// `reference`.
pub fn assert_turns_agree(
    session: &mut Session,
    reference: &mut Session,
    options: impl Fn() -> GenerateOptions,
) {
    let mut rng = Rng(9);
    for n_tokens in [50, 3, 1, 120, 30] {
        let tokens: Vec<TokenId> = (0..n_tokens).map(|_| TokenId(rng.below(256) as u32)).collect();
        for session in [&mut *session, &mut *reference] {
            session.append_tokens(&tokens).unwrap();
        }
        let cancelled = session.prefill(&cancelled_token(), |_, _| {});
        assert_eq!(cancelled.unwrap_err().kind(), ErrorKind::Cancelled);
        let expected = run_in(reference, options(), usize::MAX);
        let mut fork = session.fork().unwrap();
        for (session, case) in [(&mut *session, "session"), (&mut fork, "fork")] {
            let found = run_in(session, options(), usize::MAX);
            found.assert_equal(&expected, &format!("{case} after {n_tokens} tokens"));
        }
    }
}

/// Cuts of different lengths, each followed by other tokens: `session` gives the same output as `reference`. Calls `check` with each run of
/// `session`.
pub fn assert_cuts_agree(
    session: &mut Session,
    reference: &mut Session,
    options: impl Fn() -> GenerateOptions,
    check: impl Fn(&Run),
) {
    let len = session.tokens().len();
    for cut in [1, 3, 20, len / 2] {
        for session in [&mut *session, &mut *reference] {
            session.truncate(session.tokens().len() - cut).unwrap();
            session.append_tokens(&random_prompt(cut as u64, 5)).unwrap();
        }
        let expected = run_in(reference, options(), usize::MAX);
        let found = run_in(session, options(), usize::MAX);
        found.assert_equal(&expected, &format!("{cut} less"));
        check(&found);
    }
}

/// `events` of a generation, taken one by one.
pub fn events(session: &mut Session, options: GenerateOptions) -> Vec<Event> {
    session.generate(options).expect("valid options").map(|e| e.expect("an event")).collect()
}

/// The folder of the fixture models and the sample notes.
pub fn fixtures() -> &'static Path {
    // The tests of crates in `crates/` use this module too.
    let [here, above] = [
        concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures"),
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures"),
    ];
    Path::new(if Path::new(here).exists() { here } else { above })
}

/// `max_tokens` tokens, also after an end token.
pub fn options(max_tokens: usize) -> GenerateOptions {
    GenerateOptions { max_tokens, ignore_eos: true, ..GenerateOptions::default() }
}

/// 16 tokens, or fewer before an end token.
pub fn sampled(sampling: &Sampling) -> GenerateOptions {
    GenerateOptions { max_tokens: 16, sampling: sampling.clone(), ..GenerateOptions::default() }
}

/// The output of the model in memory, by plain decoding.
pub fn reference(tiny: Tiny, prompt: &[TokenId], sampling: &Sampling) -> Run {
    run(&tiny.engine(1), plain(), Vec::new(), prompt, sampled(sampling))
}

/// The output of plain decoding after `prompt`.
pub fn known(engine: &Engine, prompt: &[TokenId], n: usize) -> Vec<TokenId> {
    run(engine, plain(), Vec::new(), prompt, options(n)).tokens
}

/// A session with right drafts only, so that steps commit many tokens.
pub fn drafted(engine: &Engine, prompt: &[TokenId], known: &[TokenId]) -> Session {
    let base = SessionOptions { drafting: Drafting::OwnSources, history: false, ..SessionOptions::default() };
    let mut session = engine.session(base).unwrap();
    session.add_source(Box::new(AlwaysRight::new(prompt.len(), known.to_vec()))).unwrap();
    session.append_tokens(prompt).unwrap();
    session
}

/// The fixture target. Batches cost the same at every length, so the builder drafts the maximum number of
/// rows.
pub fn fixture_engine() -> Engine {
    let cost_profile = Some(CostProfile::free_rows(100.0));
    let options = EngineOptions { isa: isa(), cost_profile, ..EngineOptions::default() };
    Engine::open(fixtures().join("target.gguf"), options).expect("the fixture model")
}

/// The sample notes, in the order of their file names.
pub fn notes() -> Vec<String> {
    let entries = std::fs::read_dir(fixtures().join("notes")).expect("the sample notes");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read_to_string(path).expect("a note")).collect()
}

/// A session that drafts with the draft model alone, or with all sources.
pub fn drafts_with(verify_rows_max: usize, drafting: Drafting) -> SessionOptions {
    SessionOptions {
        verify_rows_max,
        drafting,
        prefill_chunk: 7 * verify_rows_max,
        history: false,
        ..SessionOptions::default()
    }
}

/// An uninformed predictor; a larger `scale` gives more confident scores. Huge scales overflow.
pub fn uninformed(engine: &Engine, layer_idx: usize, scale: f32) -> PredictorParts {
    let (hidden_dim, vocab_size) = (engine.config().hidden_dim, engine.config().vocab_size);
    let (mut rng, rank) = (Rng(layer_idx as u64 + 5), 12.min(hidden_dim));
    PredictorParts {
        model: engine.model_identity(),
        layer_idx,
        hidden_dim,
        rank,
        vocab_size,
        down: (0..rank * hidden_dim).map(|_| scale * rng.signed()).collect(),
        up: (0..vocab_size * rank).map(|_| f16::from_f32(rng.signed())).collect(),
        shadow_pool: (0..vocab_size as u32).step_by(3).map(TokenId).collect(),
    }
}

/// Demands that generations that share passes have the tokens of plain ones, and that each drafts with the draft model.
pub fn assert_shared_passes_draft(engine: &Engine, session: &SessionOptions, prompts: &[Vec<TokenId>]) {
    let expected: Vec<_> =
        prompts.iter().map(|prompt| run(engine, plain(), Vec::new(), prompt, options(30)).tokens).collect();
    let generation = |prompt: &Vec<TokenId>| {
        let mut session = engine.session(session.clone()).unwrap();
        session.append_tokens(prompt).unwrap();
        OwnedGeneration::new(session, options(30)).unwrap()
    };
    let mut generations: Vec<_> = prompts.iter().map(generation).collect();
    let (mut found, mut n_done, mut n_shared) = (vec![Vec::new(); prompts.len()], 0, 0);
    while n_done < prompts.len() {
        n_shared += step_together(&mut generations.iter_mut().collect::<Vec<_>>()).passes;
        for (generation, tokens) in generations.iter_mut().zip(&mut found) {
            while !generation.awaits_pass() {
                match generation.next() {
                    Some(Ok(Event::Token(token))) => tokens.push(token.id),
                    Some(Ok(Event::Done(summary))) => {
                        let computed = summary.stats.sources[0].computed.clone().unwrap();
                        assert!(computed.passes > 0 && computed.off.is_none(), "{computed:?}");
                        n_done += 1;
                    }
                    Some(other) => panic!("{other:?}"),
                    None => break,
                }
            }
        }
    }
    assert_eq!(found, expected);
    assert!(n_shared > 0);
}

/// A checkpoint with weights in f32.
pub fn engine_f32(checkpoint: &Checkpoint, n_threads: usize) -> Engine {
    let options = EngineOptions {
        n_threads: Some(n_threads),
        quantize: Quantize::F32,
        cost_profile: Some(CostProfile::free_rows(100.0)),
        ..EngineOptions::default()
    };
    Engine::load(checkpoint, options, |_, _| {}).unwrap()
}

/// The model of a file, in memory or streamed.
pub fn engine_at(path: &Path, n_threads: usize, streaming: Option<StreamOptions>) -> Engine {
    let options = EngineOptions {
        n_threads: Some(n_threads),
        isa: isa(),
        streaming,
        cost_profile: Some(CostProfile::free_rows(100.0)),
        ..EngineOptions::default()
    };
    Engine::open(path, options).unwrap()
}

/// The bits of the logits at every position.
pub fn logits(session: &mut Session) -> Vec<u32> {
    let mut bits = Vec::new();
    let mut receive = |row: &[f32]| bits.extend(row.iter().map(|logit| logit.to_bits()));
    session.score(&CancelToken::new(), Some(&mut receive)).unwrap();
    bits
}

/// The next `n` tokens, and the bits of the state behind them, as the final hidden state shows it.
pub fn continuation(session: &mut Session, n: usize) -> (Vec<TokenId>, Vec<u32>) {
    let options = GenerateOptions { max_tokens: n, ignore_eos: true, ..GenerateOptions::default() };
    let before = session.tokens().len();
    session.generate(options).unwrap().for_each(|event| drop(event.unwrap()));
    let hidden = session.last_hidden_state(&CancelToken::new()).unwrap();
    (session.tokens()[before..].to_vec(), hidden.iter().map(|value| value.to_bits()).collect())
}

/// Reads the file of a streamed model through `read`, which receives the file, the offset and the buffer.
pub fn reading(
    read: impl Fn(&dyn ReadAt, u64, &mut [u8]) -> io::Result<usize> + Send + Sync + 'static,
) -> Option<WrapReader> {
    struct Reading<F>(Arc<dyn ReadAt>, Arc<F>);

    impl<F: Fn(&dyn ReadAt, u64, &mut [u8]) -> io::Result<usize> + Send + Sync> ReadAt for Reading<F> {
        fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
            (self.1)(&*self.0, offset, out)
        }

        fn mode(&self) -> ReadMode {
            self.0.mode()
        }
    }

    let read = Arc::new(read);
    Some(WrapReader::new(move |file| Arc::new(Reading(file, Arc::clone(&read)))))
}

/// Reads of a streamed model that take `delay`, and fail after `left` more (`usize::MAX`: none fails).
pub fn failing_after(left: &Arc<AtomicUsize>, delay: Duration) -> Option<WrapReader> {
    let left = Arc::clone(left);
    reading(move |file, offset, out| {
        std::thread::sleep(delay);
        let before = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        before.map_err(|_| io::Error::from_raw_os_error(5))?;
        file.read_at(offset, out)
    })
}

/// A question about a note, in the tokens of the fixture target.
pub fn question(engine: &Engine) -> Vec<TokenId> {
    let text = format!("<|im_start|>user\n{}\nSummarise.<|im_end|>\n<|im_start|>assistant\n", notes()[0]);
    engine.tokenizer().encode(&text, SpecialTokens::Parse).unwrap()
}
