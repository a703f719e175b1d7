//! The state of sequences of every family: whatever way a session comes to its tokens, its next tokens and their logits have the
//! same bits. Forks, truncation to every length, restored states, packed and streamed weights, instruction sets, caches in 16 bits.

use std::collections::BTreeSet;

use refrain::checkpoint::Checkpoint;
use refrain::internals::draft::testing::{AlwaysRight, Random};
use refrain::internals::kernels::{IsaKind, Kernels};
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{CancelToken, Engine, EngineOptions, KvType, Quantize, Session, SessionOptions, TokenId};

use crate::common::{continuation, logits, plain, tokens};
use crate::model_files::golden;

/// One model of each kind of layer plan.
const FAMILIES: [&str; 27] = [
    "gemma3",
    "gemma3-multimodal",
    "gemma3n",
    "gemma4",
    "gemma4-experts",
    "gpt_oss",
    "granitemoehybrid",
    "granite",
    "granitemoehybrid-dense",
    "lfm2",
    "lfm2_moe",
    "llama",
    "llama-dynamic",
    "minicpm",
    "ministral",
    "ministral3",
    "mistral",
    "olmo2",
    "olmo3",
    "phi3",
    "qwen2",
    "qwen3",
    "qwen3-grouped",
    "qwen3_5",
    "qwen3_5-grouped",
    "qwen3_moe",
    "smollm3",
];

fn options() -> EngineOptions {
    EngineOptions {
        n_threads: Some(2),
        quantize: Quantize::F32,
        cost_profile: Some(refrain::internals::draft::CostProfile::free_rows(100.0)),
        ..EngineOptions::default()
    }
}

fn engine(family: &str) -> Engine {
    Engine::load(&Checkpoint::open(golden(family)).unwrap(), options(), |_, _| {}).unwrap()
}

#[test]
fn every_golden_model_is_listed() {
    let folders = std::fs::read_dir(golden("")).unwrap().map(|entry| entry.unwrap().path());
    let models = folders.filter(|path| path.join("config.json").exists());
    let names: BTreeSet<String> =
        models.map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect();
    assert_eq!(names, FAMILIES.map(str::to_owned).into());
}

fn session(engine: &Engine, options: SessionOptions, tokens: &[TokenId]) -> Session {
    let mut session = engine.session(options).unwrap();
    session.append_tokens(tokens).unwrap();
    session
}

#[test]
fn truncation_to_any_length_and_forks_go_on_as_if_new() {
    for family in FAMILIES {
        let engine = engine(family);
        let text = tokens(150);
        let plain = || SessionOptions { prefill_chunk: 48, ..plain() };
        // A session that has been further, through prefill and decoding, and goes back.
        let mut long = session(&engine, plain(), &text);
        continuation(&mut long, 9);
        for len in [158, 151, 150, 149, 130, 128, 97, 64, 48, 20, 3, 1] {
            let all = long.tokens().to_vec();
            long.truncate(len).unwrap();
            assert!(long.state().n_cached_tokens() <= len, "{family} at {len}");
            let expected = continuation(&mut session(&engine, plain(), &all[..len]), 5);
            let mut fork = long.fork().unwrap();
            assert_eq!(continuation(&mut fork, 5), expected, "{family}: a fork at {len}");
            assert_eq!(continuation(&mut long, 5), expected, "{family}: truncated to {len}");
            long.truncate(len).unwrap();
        }
    }
}

#[test]
fn drafts_of_every_kind_leave_the_state_of_plain_decoding() {
    for family in FAMILIES {
        let engine = engine(family);
        let text = tokens(90);
        let expected = continuation(&mut session(&engine, plain(), &text), 24);
        let vocab_size = engine.config().vocab_size as u32;
        for rows in [2, 5, 16, 64] {
            let options =
                SessionOptions { verify_rows_max: rows, history: false, ..SessionOptions::default() };
            // Right drafts, drafts that are right for a while, and what the text gives.
            for n_right in [24, 7, 1, 0] {
                let mut session = session(&engine, options.clone(), &text);
                let mut known = expected.0.clone();
                known[n_right..].iter_mut().for_each(|token| token.0 ^= 1);
                session.add_source(Box::new(AlwaysRight::new(text.len(), known))).unwrap();
                // Branches beside them, so that batches are trees.
                session.add_source(Box::new(Random::new(n_right as u64, vocab_size))).unwrap();
                let found = continuation(&mut session, 24);
                assert_eq!(found, expected, "{family}: {rows} rows, {n_right} right drafts");
            }
        }
    }
}

#[test]
fn restored_states_go_on_as_if_computed() {
    for family in FAMILIES {
        // The second engine stands for another process.
        let (first, second) = (engine(family), engine(family));
        let text = tokens(150);
        for kv_type in [KvType::F16, KvType::F32] {
            let plain = || SessionOptions { kv_type, ..plain() };
            let mut computed = session(&first, plain(), &text);
            computed.prefill(&CancelToken::new(), |_, _| {}).unwrap();
            let expected = continuation(&mut session(&first, plain(), &text), 8);
            for end in computed.state().ends().unwrap_or_else(|| vec![1, 64, 97, 149]) {
                let mut state = Vec::new();
                computed.state().write(0..end, &mut state).unwrap();
                assert_eq!(state.len() as u64, computed.state().bytes(end), "{family}");
                let mut restored = session(&second, plain(), &text);
                assert_eq!(restored.state_mut().restore(0, &text[..end], &state).unwrap(), end, "{family}");
                let mut fork = restored.fork().unwrap();
                assert_eq!(continuation(&mut fork, 8), expected, "{family}: a fork, restored to {end}");
                assert_eq!(continuation(&mut restored, 8), expected, "{family}: restored to {end}");
                let len = 2 * end / 3 + 1;
                fork.truncate(len).unwrap();
                let new = continuation(&mut session(&first, plain(), &text[..len]), 5);
                assert_eq!(continuation(&mut fork, 5), new, "{family}: restored to {end}, back to {len}");
            }
        }
    }
}

#[test]
fn packed_streamed_and_every_instruction_set() {
    let dir = tempfile::tempdir().unwrap();
    for family in FAMILIES {
        let checkpoint = Checkpoint::open(golden(family)).unwrap();
        // Weights as they are in the file, so that a packed file has them too.
        let keep = || EngineOptions { quantize: Quantize::Keep, ..options() };
        let text = tokens(70);
        let in_memory = Engine::load(&checkpoint, keep(), |_, _| {}).unwrap();
        let expected = logits(&mut session(&in_memory, plain(), &text));
        let path = dir.path().join(format!("{family}.refrain"));
        pack(&checkpoint, &path, LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() }).unwrap();
        let packed = Checkpoint::open(&path).unwrap();
        assert_eq!(packed.config(), checkpoint.config(), "{family}");
        for isa in IsaKind::ALL.iter().copied().filter(|&isa| Kernels::with_isa(isa).is_some()) {
            let engine =
                Engine::load(&packed, EngineOptions { isa: Some(isa), ..keep() }, |_, _| {}).unwrap();
            assert!(logits(&mut session(&engine, plain(), &text)) == expected, "{family}: packed, {isa:?}");
        }
        let streaming = StreamOptions::new(Pinned::Layers(1));
        let engine =
            Engine::load(&packed, EngineOptions { streaming: Some(streaming), ..keep() }, |_, _| {}).unwrap();
        assert!(logits(&mut session(&engine, plain(), &text)) == expected, "{family}: streamed");
        let next = continuation(&mut session(&in_memory, plain(), &text), 12);
        let mut drafting =
            session(&engine, SessionOptions { history: false, ..SessionOptions::default() }, &text);
        drafting.add_source(Box::new(AlwaysRight::new(text.len(), next.0[..5].to_vec()))).unwrap();
        assert_eq!(continuation(&mut drafting, 12), next, "{family}: streamed, with drafts");
    }
}

#[test]
fn caches_in_16_bits_depend_on_positions_only() {
    for family in FAMILIES {
        let engine = engine(family);
        let text = tokens(100);
        let of_chunks = |prefill_chunk| {
            let options = SessionOptions { kv_type: KvType::F16, prefill_chunk, ..plain() };
            logits(&mut session(&engine, options, &text))
        };
        let expected = of_chunks(100);
        for chunk in [1, 13, 64] {
            assert!(of_chunks(chunk) == expected, "{family}: chunks of {chunk}");
        }
    }
}
