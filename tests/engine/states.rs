//! Keys and values kept as bytes and restored: every later bit is that of a session that computed them.

use std::path::Path;

use proptest::prelude::*;
use refrain::checkpoint::Checkpoint;
use refrain::device::IsaKind;
use refrain::internals::error::SessionProblem;
use refrain::internals::kernels::BlockType;
use refrain::internals::model::graphs::write_graphs;
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{
    CancelToken, Engine, EngineOptions, GenerateOptions, KvType, Quantize, Role, Session, SessionOptions,
    TokenId,
};

use crate::common::{self, Tiny, VOCAB_SIZE, options, plain, prompt, run_in, samplings};

fn with(engine: &Engine, kv_type: KvType, tokens: &[TokenId]) -> Session {
    let mut session = engine.session(SessionOptions { kv_type, ..plain() }).unwrap();
    session.append_tokens(tokens).unwrap();
    session
}

fn prefilled(engine: &Engine, kv_type: KvType, tokens: &[TokenId]) -> Session {
    let mut session = with(engine, kv_type, tokens);
    session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
    session
}

fn state(session: &Session, range: std::ops::Range<usize>) -> Vec<u8> {
    let mut state = Vec::new();
    session.state().write(range, &mut state).unwrap();
    state
}

/// A tiny model with heads that every type of cache can hold.
fn tiny() -> Tiny {
    Tiny { head_dim: 32, ..Tiny::default() }
}

#[test]
fn a_restored_session_continues_bit_for_bit() {
    let engine = tiny().engine(2);
    let prompt = prompt(1, 150);
    for &kv_type in KvType::ALL {
        let computed = prefilled(&engine, kv_type, &prompt);
        for sampling in samplings() {
            let options = || GenerateOptions { sampling: sampling.clone(), ..options(40) };
            let expected = run_in(&mut with(&engine, kv_type, &prompt), options(), usize::MAX);
            // (positions cached before, first and end of the state)
            for (n_cached, first, end) in
                [(0, 0, 149), (0, 0, 1), (0, 0, 64), (37, 0, 149), (37, 37, 100), (48, 32, 149), (48, 33, 81)]
            {
                let mut session = prefilled(&engine, kv_type, &prompt[..n_cached + 1]);
                session.append_tokens(&prompt[n_cached + 1..]).unwrap();
                let n = session
                    .state_mut()
                    .restore(first, &prompt[first..end], &state(&computed, first..end))
                    .unwrap();
                assert_eq!((n, session.state().n_cached_tokens()), (end - n_cached, end));
                let mut fork = session.fork().unwrap();
                for (session, case) in [(&mut session, "restored"), (&mut fork, "fork")] {
                    let run = run_in(session, options(), usize::MAX);
                    run.assert_equal(&expected, &format!("{case} {kv_type} {n_cached} {first}..{end}"));
                    assert_eq!((run.stats.cached_tokens, run.stats.prefilled_tokens), (end, 149 - end));
                }
                // The state behind the restored one is the same, too.
                session.truncate(150).unwrap();
                assert!(state(&session, 0..150)[..] == state(&fork, 0..150)[..]);
            }
        }
    }
}

/// Instruction sets, threads, chunks and streamed weights are no part of the key, because they change no bit.
#[test]
fn states_are_equal_on_every_instruction_set_and_from_any_way_of_computing() {
    let prompt = prompt(3, 90);
    for ty in [BlockType::F32, BlockType::Q8_0, BlockType::Q4_0] {
        let tiny = Tiny { ty, ..tiny() };
        for &kv_type in KvType::ALL {
            let first = prefilled(&tiny.engine(1), kv_type, &prompt);
            let (key, bytes) = (first.state().key(), state(&first, 0..89));
            for &isa in IsaKind::ALL {
                let options = EngineOptions { isa: Some(isa), n_threads: Some(3), ..tiny.options() };
                let checkpoint = Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
                // Not every machine has every instruction set.
                let Ok(engine) = Engine::load(&checkpoint, options, |_, _| {}) else { continue };
                let options = SessionOptions { kv_type, prefill_chunk: 7, ..plain() };
                let mut session = engine.session(options).unwrap();
                session.append_tokens(&prompt).unwrap();
                session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
                assert_eq!(session.state().key(), key);
                assert!(state(&session, 0..89) == bytes, "{ty:?} {kv_type} {isa:?}");
            }
        }
    }
}

#[test]
fn streamed_models_and_static_graphs_take_the_state_of_a_model_in_memory() {
    let folder = tempfile::tempdir().unwrap();
    let [path, graphs] = ["tiny.refrain", "graphs"].map(|name| folder.path().join(name));
    let tiny = tiny();
    let checkpoint = Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
    let keep = || LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() };
    pack(&checkpoint, &path, keep()).unwrap();
    write_graphs(&checkpoint, &graphs, 2, 16, 4, keep()).unwrap();
    let streaming = Some(StreamOptions::new(Pinned::Layers(0)));
    let engine = tiny.engine(2);
    let prompt = prompt(5, 100);
    let computed = prefilled(&engine, KvType::F16, &prompt);
    let expected = run_in(&mut with(&engine, KvType::F16, &prompt), options(20), usize::MAX);
    for (path, streaming, case) in [(&path, streaming, "streamed"), (&graphs, None, "static graphs")] {
        let engine = Engine::open(path, EngineOptions { streaming, ..tiny.options() }).unwrap();
        let mut session = with(&engine, KvType::F16, &prompt);
        assert_eq!(session.state().key(), computed.state().key(), "{case}");
        assert_eq!(session.state_mut().restore(0, &prompt[..75], &state(&computed, 0..75)).unwrap(), 75);
        run_in(&mut session, options(20), usize::MAX).assert_equal(&expected, case);
        assert!(state(&session, 0..99) == state(&computed, 0..99), "{case}");
    }
}

#[test]
fn the_key_tells_apart_what_changes_the_bits() {
    let tiny = tiny();
    let engines = [
        tiny.engine(1),
        Tiny { seed: 2, ..tiny }.engine(1),
        Tiny { ty: BlockType::Q8_0, ..tiny }.engine(1),
        tiny.engine_with(EngineOptions { quantize: Quantize::Q4_0, ..tiny.options() }),
    ];
    let mut keys: Vec<_> = engines
        .iter()
        .flat_map(|engine| KvType::ALL.iter().map(|&kv_type| with(engine, kv_type, &[]).state().key()))
        .map(|key| key.to_string())
        .collect();
    assert!(keys.iter().all(|key| key.len() == 32), "{keys:?}");
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), engines.len() * KvType::ALL.len());
}

#[test]
fn what_does_not_fit_is_refused_and_changes_nothing() {
    let engine = tiny().engine(1);
    let prompt = prompt(1, 60);
    let computed = prefilled(&engine, KvType::F16, &prompt);
    let whole = state(&computed, 0..59);
    assert_eq!(whole.len() as u64, computed.state().bytes(59));
    let mut out = vec![7];
    for range in [0..60, 59..60, 70..80, usize::MAX - 1..usize::MAX] {
        let refused = computed.state().write(range, &mut out);
        assert!(
            matches!(
                refused.as_ref().unwrap_err().detail(),
                Some(SessionProblem::StateRange { n_cached: 59, .. })
            ),
            "{refused:?}"
        );
    }
    assert_eq!(out, [7]);

    let mut session = with(&engine, KvType::F16, &prompt);
    let gap = session.state_mut().restore(1, &prompt[1..], &whole);
    assert!(
        matches!(
            gap.as_ref().unwrap_err().detail(),
            Some(SessionProblem::StateRange { start: 1, end: 60, n_cached: 0 })
        ),
        "{gap:?}"
    );
    for bytes in [&whole[..whole.len() - 1], &[], &[&whole[..], &[0]].concat()] {
        let length = session.state_mut().restore(0, &prompt[..59], bytes);
        assert!(
            matches!(length.as_ref().unwrap_err().detail(), Some(SessionProblem::StateLength { .. })),
            "{length:?}"
        );
    }
    let other = with(&engine, KvType::F32, &prompt).state_mut().restore(0, &prompt[..59], &whole);
    assert!(
        matches!(other.as_ref().unwrap_err().detail(), Some(SessionProblem::StateLength { .. })),
        "{other:?}"
    );
    assert_eq!(session.state_mut().restore(0, &[TokenId(200); 59], &whole).unwrap(), 0, "no token agrees");
    assert_eq!(session.state().n_cached_tokens(), 0);
    assert_eq!(with(&engine, KvType::F16, &[]).state_mut().restore(0, &prompt[..59], &whole).unwrap(), 0);
    // The newest token is computed by the next step.
    let mut shorter = with(&engine, KvType::F16, &prompt[..20]);
    assert_eq!(shorter.state_mut().restore(0, &prompt[..59], &whole).unwrap(), 19);
    assert_eq!(shorter.state_mut().restore(0, &prompt[..59], &whole).unwrap(), 0);
}

#[test]
fn encoding_gives_the_tokens_that_a_generation_continues() {
    let engine = tiny().engine(1);
    let mut session = engine.session(plain()).unwrap();
    assert_eq!(session.state_mut().encode().unwrap(), []);
    session.append_turn(Role::User, "hello").unwrap();
    let prompt = session.state_mut().encode().unwrap().to_vec();
    assert_eq!(session.tokens(), prompt);
    assert_eq!(session.state().n_cached_tokens(), 0);
    let run = run_in(&mut session, options(5), usize::MAX);
    assert_eq!(session.tokens(), [&prompt[..], &run.tokens].concat());
    assert_eq!(session.state().n_cached_tokens(), session.tokens().len() - 1);
}

/// The bits of keys and values and the layout of states, for each family, type of weights and type of cache. If this test
/// fails, `STATE_VERSION` in `src/engine/session/state.rs` must increase, so that states of earlier versions are not used; if only the families
/// with recurrent layers fail (`lfm2`, `qwen3_5`, `granitemoehybrid`), `RECURRENT_STATE_VERSION`.
#[test]
fn the_bits_of_a_state_have_a_version() {
    let options =
        || EngineOptions { n_threads: Some(1), quantize: Quantize::Keep, ..EngineOptions::default() };
    let tokens: Vec<TokenId> = (0..80).map(|i| TokenId(i * 37 % 250)).collect();
    let hash = |engine: &Engine, kv_type| {
        let session = prefilled(engine, kv_type, &tokens);
        let hash = state(&session, 0..79).iter().fold(0xCBF2_9CE4_8422_2325u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
        });
        format!("{hash:016x}")
    };
    let mut found = Vec::new();
    let fixture = Engine::open(common::fixtures().join("target.gguf"), options()).unwrap();
    for &kv_type in KvType::ALL {
        found.push((kv_type.name().to_owned(), hash(&fixture, kv_type)));
    }
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for family in ["llama", "qwen2", "qwen3", "lfm2", "qwen3_5", "granitemoehybrid"] {
        let engine = Engine::open(golden.join(family), options()).unwrap();
        found.push((family.to_owned(), hash(&engine, KvType::F32)));
    }
    use BlockType::{BF16, F16, F32, Q4_0, Q4K, Q8_0};
    for ty in [F32, F16, BF16, Q8_0, Q4_0, Q4K] {
        let tiny = Tiny { ty, hidden_dim: 256, ..tiny() };
        found.push((ty.to_string(), hash(&tiny.engine_with(options()), KvType::F16)));
    }
    let found: Vec<(&str, &str)> = found.iter().map(|(of, hash)| (of.as_str(), hash.as_str())).collect();
    let expected = [
        ("f16", "ca343b013ffb73af"),
        ("f32", "cacc903815eedcba"),
        ("q8_0", "bb2dcfcc2364f61c"),
        ("q4_0", "d00da7c6baf46294"),
        ("llama", "bfccdae9c9a0d453"),
        ("qwen2", "a7d2039f753176d7"),
        ("qwen3", "ee2679d9e5cabd65"),
        ("lfm2", "074ff30e1823c447"),
        ("qwen3_5", "191110f65b8f9f79"),
        ("granitemoehybrid", "515ba427c37c3634"),
        ("F32", "fa941827594f82c2"),
        ("F16", "a18885564f81bac2"),
        ("BF16", "20299b8ce6973fa6"),
        ("Q8_0", "138a66d76fc24146"),
        ("Q4_0", "b7dbeb5b6426facf"),
        ("Q4_K", "9b2800afd37190ea"),
    ];
    assert_eq!(found, expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Any range behind any prefix, of tokens that agree up to any position: the state afterwards is the computed one.
    #[test]
    fn any_range_is_restored_as_far_as_it_agrees(
        kv in 0..KvType::ALL.len(),
        len in 2..70usize,
        cached in 0..70usize,
        first in 0..70usize,
        end in 0..70usize,
        differs in 0..90usize,
    ) {
        let engine = tiny().engine(1);
        let kv_type = KvType::ALL[kv];
        let kept = prompt(2, 70);
        let mut own = kept[..len].to_vec();
        if let Some(token) = own.get_mut(differs) {
            token.0 = (token.0 + 1) % VOCAB_SIZE as u32;
        }
        let cached = cached.min(len - 1);
        let (first, end) = (first.min(cached), end.clamp(first.min(cached), 69));
        let computed = prefilled(&engine, kv_type, &kept);
        let mut session = prefilled(&engine, kv_type, &own[..cached + 1]);
        session.append_tokens(&own[cached + 1..]).unwrap();
        let n = session.state_mut().restore(first, &kept[first..end], &state(&computed, first..end)).unwrap();
        let agreed = if differs < first { end.min(len) } else { end.min(differs).min(len) };
        prop_assume!(differs >= first); // otherwise the caller broke its word
        let expected = agreed.min(len - 1).max(cached);
        prop_assert_eq!(session.state().n_cached_tokens(), expected);
        prop_assert_eq!(n, expected - cached);
        let reference = prefilled(&engine, kv_type, &own);
        prop_assert!(state(&session, 0..expected) == state(&reference, 0..expected));
    }
}
