//! Every family of models beside transformers: logits and greedy tokens of the golden models, at any chunk length, number of
//! threads and batch length, and with right drafts. `tools/make-goldens` writes the data.

use std::path::Path;

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftSource;
use refrain::internals::draft::testing::AlwaysRight;
use refrain::{CancelToken, GenerateOptions, KvType, SessionOptions, TokenId};
use safetensors::SafeTensors;

use crate::common::{engine_f32, plain, run};
use crate::model_files::golden;

/// Distance of logits from the reference that its own rounding explains.
const TOLERANCE: f32 = 2e-4;

/// A prompt and what the reference computes from it.
struct Reference {
    prompt: Vec<TokenId>,
    /// `[prompt.len(), vocab_size]`
    logits: Vec<f32>,
    /// Empty if the reference has none.
    greedy: Vec<TokenId>,
}

impl Reference {
    fn read(folder: &Path, prefix: &str) -> Option<Self> {
        let bytes = std::fs::read(folder.join("golden.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let words = |name: &str| -> Option<Vec<[u8; 4]>> {
            let tensor = tensors.tensor(&format!("{prefix}{name}")).ok()?;
            Some(tensor.data().chunks_exact(4).map(|word| word.try_into().unwrap()).collect())
        };
        let tokens = |name: &str| -> Option<Vec<TokenId>> {
            Some(words(name)?.into_iter().map(|word| TokenId(u32::from_le_bytes(word))).collect())
        };
        Some(Self {
            prompt: tokens("prompt")?,
            logits: words("logits")?.into_iter().map(f32::from_le_bytes).collect(),
            greedy: tokens("greedy").unwrap_or_default(),
        })
    }
}

fn check(family: &str, prefix: &str, context_len: Option<usize>) {
    let folder = golden(family);
    let checkpoint = Checkpoint::open(&folder).unwrap_or_else(|error| panic!("{family}: {error}"));
    let reference =
        Reference::read(&folder, prefix).unwrap_or_else(|| panic!("{family} has no {prefix}prompt"));
    let mut first: Option<Vec<f32>> = None;
    for n_threads in [1, 3] {
        let engine = engine_f32(&checkpoint, n_threads);
        for prefill_chunk in [1, 7, 64, 4096] {
            let options = SessionOptions { prefill_chunk, kv_type: KvType::F32, context_len, ..plain() };
            let mut session = engine.session(options).unwrap();
            session.append_tokens(&reference.prompt).unwrap();
            let mut logits = Vec::new();
            session
                .score(&CancelToken::new(), Some(&mut |row: &[f32]| logits.extend_from_slice(row)))
                .unwrap();
            assert_eq!(logits.len(), reference.logits.len());
            let distance = |(a, b): (&f32, &f32)| (a - b).abs();
            let off = logits.iter().zip(&reference.logits).map(distance).fold(0.0, f32::max);
            // Gemma 4 does not scale its scores down, so that rounding shows more.
            let tolerance = if family.starts_with("gemma4") { 2.0 * TOLERANCE } else { TOLERANCE };
            assert!(
                off < tolerance,
                "{family}: {n_threads} threads, chunks of {prefill_chunk}: off by {off}"
            );
            let first = first.get_or_insert_with(|| logits.clone());
            let same = first.iter().zip(&logits).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{family}: {n_threads} threads, chunks of {prefill_chunk}: bits differ");
        }
        if reference.greedy.is_empty() {
            continue;
        }
        for verify_rows_max in [1, 2, 3, 4, 7, 8, 16, 33, 64] {
            let session = SessionOptions {
                verify_rows_max,
                prefill_chunk: 1 + 5 * verify_rows_max,
                kv_type: KvType::F32,
                history: false,
                context_len,
                ..SessionOptions::default()
            };
            let known = || AlwaysRight::new(reference.prompt.len(), reference.greedy.clone());
            let sources: Vec<Box<dyn DraftSource>> =
                if verify_rows_max % 2 == 0 { vec![Box::new(known())] } else { Vec::new() };
            let options = GenerateOptions { max_tokens: 32, ignore_eos: true, ..GenerateOptions::default() };
            let run = run(&engine, session, sources, &reference.prompt, options);
            assert_eq!(run.tokens, reference.greedy, "{family}: {n_threads} threads, {verify_rows_max} rows");
        }
    }
}

macro_rules! families {
    ($($test:ident: $folder:literal;)*) => {$(
        #[test]
        fn $test() {
            check($folder, "", None);
        }
    )*};
}

families! {
    gemma3: "gemma3";
    gemma3_in_a_multimodal_folder: "gemma3-multimodal";
    gemma3n: "gemma3n";
    gemma4: "gemma4";
    gemma4_with_experts: "gemma4-experts";
    granite: "granite";
    gpt_oss: "gpt_oss";
    granite_hybrid: "granitemoehybrid-dense";
    granite_hybrid_with_experts: "granitemoehybrid";
    lfm2: "lfm2";
    lfm2_with_experts: "lfm2_moe";
    minicpm: "minicpm";
    ministral: "ministral";
    ministral3: "ministral3";
    mistral: "mistral";
    olmo2: "olmo2";
    olmo3: "olmo3";
    qwen3_5: "qwen3_5";
    qwen3_5_with_groups_of_heads: "qwen3_5-grouped";
    qwen3_with_groups_of_heads: "qwen3-grouped";
    qwen3_moe: "qwen3_moe";
    smollm3: "smollm3";
}

/// Frequencies that depend on the length of the context: within the original one, and behind it.
#[test]
fn phi3_within_and_behind_the_original_context() {
    check("phi3", "", Some(64));
    check("phi3", "long_", Some(256));
}

#[test]
fn dynamic_scaling_within_and_behind_the_original_context() {
    check("llama-dynamic", "", Some(64));
    let long = Reference::read(&golden("llama-dynamic"), "long_").unwrap();
    check("llama-dynamic", "long_", Some(long.prompt.len()));
}
