//! Golden checkpoints: logits and greedy tokens of a reference implementation, from both containers, at any chunk
//! length, batch length and thread count. `tools/make-goldens` writes the data.

use std::path::Path;

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftSource;
use refrain::internals::draft::testing::AlwaysRight;
use refrain::{CancelToken, Engine, GenerateOptions, KvType, SessionOptions, TokenId};
use safetensors::SafeTensors;

use crate::common::{engine_f32, plain, run};
use crate::model_files::{GOLDEN, GOLDEN_EXPERTS, Gguf, golden};

struct Reference {
    prompt: Vec<TokenId>,
    /// `[prompt.len(), vocab_size]`
    logits: Vec<f32>,
    greedy: Vec<TokenId>,
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> + '_ {
    bytes.chunks_exact(4).map(|word| word.try_into().unwrap())
}

impl Reference {
    fn read(folder: &Path) -> Self {
        let bytes = std::fs::read(folder.join("golden.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tokens = |name: &str| -> Vec<TokenId> {
            words(tensors.tensor(name).unwrap().data()).map(|w| TokenId(u32::from_le_bytes(w))).collect()
        };
        let logits = words(tensors.tensor("logits").unwrap().data()).map(f32::from_le_bytes).collect();
        Self { prompt: tokens("prompt"), logits, greedy: tokens("greedy") }
    }
}

/// Logits of every prompt position, in chunks.
fn logits(engine: &Engine, prompt: &[TokenId], prefill_chunk: usize) -> Vec<f32> {
    let options = SessionOptions { prefill_chunk, kv_type: KvType::F32, ..plain() };
    let mut session = engine.session(options).unwrap();
    session.append_tokens(prompt).unwrap();
    let mut logits = Vec::new();
    session.score(&CancelToken::new(), Some(&mut |row: &[f32]| logits.extend_from_slice(row))).unwrap();
    logits
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn check(checkpoint: &Checkpoint, reference: &Reference, name: &str) -> Vec<f32> {
    let mut first: Option<Vec<f32>> = None;
    for n_threads in 1..=4 {
        let engine = engine_f32(checkpoint, n_threads);
        for prefill_chunk in [1, 7, 64, 4096] {
            let logits = logits(&engine, &reference.prompt, prefill_chunk);
            let difference = largest_difference(&logits, &reference.logits);
            assert!(
                difference < 2e-4,
                "{name}: threads {n_threads} chunk {prefill_chunk}: off by {difference}"
            );
            let first = first.get_or_insert_with(|| logits.clone());
            assert!(
                first.iter().zip(&logits).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{name}: bits differ"
            );
        }
        for verify_rows_max in 1..=64 {
            let session = SessionOptions {
                verify_rows_max,
                prefill_chunk: 1 + 5 * verify_rows_max,
                kv_type: KvType::F32,
                history: false,
                ..SessionOptions::default()
            };
            let known = || AlwaysRight::new(reference.prompt.len(), reference.greedy.clone());
            // Every second run has right drafts, so that long batches are filled.
            let sources: Vec<Box<dyn DraftSource>> =
                if verify_rows_max % 2 == 0 { vec![Box::new(known())] } else { Vec::new() };
            let options = GenerateOptions { max_tokens: 32, ignore_eos: true, ..GenerateOptions::default() };
            let run = run(&engine, session, sources, &reference.prompt, options);
            assert_eq!(run.tokens, reference.greedy, "{name}: threads {n_threads} rows {verify_rows_max}");
        }
    }
    first.unwrap()
}

#[test]
fn from_safetensors() {
    for architecture in GOLDEN.into_iter().chain(GOLDEN_EXPERTS) {
        let folder = golden(architecture);
        let checkpoint = Checkpoint::open(&folder).unwrap();
        check(&checkpoint, &Reference::read(&folder), architecture);
    }
}

/// The same tensors in a GGUF file, in the layout of published converters, give the same bits.
#[test]
fn from_gguf() {
    for architecture in GOLDEN {
        let folder = golden(architecture);
        let reference = Reference::read(&folder);
        let from_folder = logits(&engine_f32(&Checkpoint::open(&folder).unwrap(), 2), &reference.prompt, 64);
        let bytes = Gguf::from_golden(&folder).bytes();
        let checkpoint = Checkpoint::from_gguf_bytes(bytes.into(), architecture).unwrap();
        let from_gguf = check(&checkpoint, &reference, architecture);
        assert!(
            from_folder.iter().zip(&from_gguf).all(|(a, b)| a.to_bits() == b.to_bits()),
            "{architecture}"
        );
    }
}
