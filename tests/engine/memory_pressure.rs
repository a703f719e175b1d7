//! Memory pressure at every point of a conversation: sessions and generations that wait give their KV caches up and compute them again,
//! and the output stays that of plain decoding, bit for bit: with draft models, self-draft, streamed weights, recurrent layers, bounded
//! windows, forks and truncations. What is given up is free memory.

use refrain::checkpoint::Checkpoint;
use refrain::device::MemoryPressure;
use refrain::drafting::DraftModelOptions;
use refrain::drafting::{Calibration, DraftPolicy, DraftRows, Predictor, ReuseConfig};
use refrain::internals::draft::CostProfile;
use refrain::internals::kernels::BlockType;
use refrain::internals::stream::resident_bytes;
use refrain::state::WindowCache;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{
    CancelToken, Engine, EngineOptions, Event, OwnedGeneration, Sampling, Session, SessionOptions, TokenId,
    step_together,
};
use tempfile::TempDir;

use crate::common::{
    LogitsRecorder, Rng, Tiny, fixtures, isa, options, plain, prompt, random_prompt, run, run_in,
};
use crate::model_files::{golden, packed};

const PRESSURE: [MemoryPressure; 3] =
    [MemoryPressure::Normal, MemoryPressure::Warning, MemoryPressure::Critical];

/// Rows cost nothing, so that everything drafts.
fn with_free_rows(streaming: Option<StreamOptions>) -> EngineOptions {
    let cost_profile = Some(CostProfile::free_rows(1e6));
    EngineOptions { n_threads: Some(2), isa: isa(), cost_profile, streaming, ..EngineOptions::default() }
}

fn nearly_free() -> DraftModelOptions {
    DraftModelOptions { cost_profile: Some(CostProfile::free_rows(0.01)), ..DraftModelOptions::default() }
}

fn drafting() -> SessionOptions {
    SessionOptions {
        calibration: Calibration::InContext,
        reuse: Some(ReuseConfig { threshold: 0.0, ..ReuseConfig::default() }),
        policy: DraftPolicy { rows: DraftRows::Fixed(7), ..DraftPolicy::default() },
        prefill_chunk: 16,
        ..SessionOptions::default()
    }
}

/// An engine under pressure, one of the same model without, and the options of the sessions.
struct Pair {
    name: &'static str,
    engine: Engine,
    calm: Engine,
    session: SessionOptions,
    _dir: Option<TempDir>,
}

fn pairs() -> Vec<Pair> {
    let tiny = Tiny { ty: BlockType::Q8_0, n_layers: 3, ..Tiny::default() };
    let checkpoint = Checkpoint::from_gguf_bytes(tiny.gguf().into(), "tiny").unwrap();
    let smaller = Tiny { n_layers: 1, seed: 9, ..tiny };
    let draft_model = Checkpoint::from_gguf_bytes(smaller.gguf().into(), "smaller").unwrap();
    let load = |checkpoint: &Checkpoint| Engine::load(checkpoint, with_free_rows(None), |_, _| {}).unwrap();
    let mut pairs = Vec::new();
    let mut add = |name, engine, calm, session, _dir| {
        pairs.push(Pair { name, engine, calm, session, _dir });
    };

    let engine = load(&checkpoint);
    engine.set_draft_model(&draft_model, nearly_free(), |_, _| {}).unwrap();
    add("a draft model", engine, load(&checkpoint), drafting(), None);

    let (dir, path) = packed(&checkpoint);
    let streaming = Some(StreamOptions::new(Pinned::Layers(1)));
    let engine = Engine::open(&path, with_free_rows(streaming)).unwrap();
    engine.set_draft_model(&draft_model, nearly_free(), |_, _| {}).unwrap();
    add("streamed", engine, load(&checkpoint), drafting(), Some(dir));

    let fixture = Checkpoint::open(fixtures().join("target.gguf")).unwrap();
    let (dir, path) = packed(&fixture);
    let mut streaming = StreamOptions::new(Pinned::Layers(4));
    streaming.pinned_first = 3;
    let engine = Engine::open(&path, with_free_rows(Some(streaming))).unwrap();
    engine.set_self_draft(Predictor::read(fixtures().join("target.predictor")).unwrap()).unwrap();
    add("self-draft", engine, load(&fixture), drafting(), Some(dir));

    for name in ["qwen3_5", "granitemoehybrid"] {
        let recurrent = Checkpoint::open(golden(name)).unwrap();
        add(name, load(&recurrent), load(&recurrent), drafting(), None);
    }
    let windows = Checkpoint::open(golden("gemma3")).unwrap();
    let bounded = SessionOptions { window_cache: WindowCache::Bounded, ..drafting() };
    add("bounded windows", load(&windows), load(&windows), bounded, None);
    pairs
}

fn sampling(seed: u64) -> Sampling {
    match seed % 2 {
        0 => Sampling::default(),
        _ => Sampling { temperature: 0.9, top_p: 0.95, seed: Some(seed), ..Sampling::default() },
    }
}

/// Reports pressure; whether it is critical.
fn press(engine: &Engine, rng: &mut Rng) -> bool {
    let level = PRESSURE[rng.below(3)];
    engine.device().set_memory_pressure(level);
    level == MemoryPressure::Critical
}

/// Generates up to `n` tokens. Between events, pressure is reported, and the generation waits. Returns the number of caches given up.
fn generate(
    engine: &Engine,
    session: &mut Session,
    (n, seed): (usize, u64),
    rng: &mut Rng,
) -> (Vec<TokenId>, LogitsRecorder, usize) {
    let logits = LogitsRecorder::default();
    let mut request = options(n);
    request.sampling = sampling(seed);
    request.processors.push(Box::new(logits.clone()));
    let (mut tokens, mut n_released) = (Vec::new(), 0);
    let mut generation = session.generate(request).unwrap();
    while let Some(event) = generation.next() {
        if let Event::Token(token) = event.unwrap() {
            tokens.push(token.id);
        }
        if rng.below(3) == 0 {
            n_released += usize::from(press(engine, rng));
            generation.release_memory();
        }
    }
    (tokens, logits, n_released)
}

#[test]
fn what_waits_gives_its_keys_and_values_up_and_changes_no_bit() {
    for Pair { name, engine, calm, session: options_of, .. } in &pairs() {
        let mut n_released = 0;
        for seed in 0..4 {
            let mut rng = Rng(seed);
            let vocab_size = engine.config().vocab_size.min(256);
            let mut session = engine.session(options_of.clone()).unwrap();
            let mut reference = calm.session(plain()).unwrap();
            for turn in 0..6 {
                let case = format!("{name}, seed {seed}, turn {turn}");
                let text: Vec<TokenId> =
                    (0..1 + rng.below(40)).map(|_| TokenId(rng.below(vocab_size) as u32)).collect();
                for session in [&mut session, &mut reference] {
                    session.append_tokens(&text).unwrap();
                }
                for _ in 0..rng.below(4) {
                    if press(engine, &mut rng) {
                        session.release_memory();
                        assert_eq!(session.state().n_cached_tokens(), 0, "{case}");
                        n_released += 1;
                    }
                    session.prefill_chunk(&CancelToken::new()).unwrap();
                }
                if rng.below(3) == 0 {
                    session = session.fork().unwrap();
                }
                let request = (1 + rng.below(12), rng.next_u64());
                let (expected, expected_logits, _) = generate(calm, &mut reference, request, &mut Rng(0));
                calm.device().set_memory_pressure(MemoryPressure::Normal);
                let (found, logits, n) = generate(engine, &mut session, request, &mut rng);
                n_released += n;
                assert_eq!(found, expected, "{case}");
                assert_eq!(*logits.0.lock().unwrap(), *expected_logits.0.lock().unwrap(), "{case}");
                assert_eq!(session.tokens(), reference.tokens(), "{case}");
                if rng.below(3) == 0 {
                    let len = session.tokens().len() - rng.below(session.tokens().len());
                    for session in [&mut session, &mut reference] {
                        session.truncate(len).unwrap();
                    }
                }
            }
        }
        assert!(n_released > 20, "{name}: {n_released}");
        // Nothing of it stays: the engine drafts again.
        engine.device().set_memory_pressure(MemoryPressure::Normal);
        let text = prompt(3, 60);
        for _ in 0..2 {
            let expected = run(calm, plain(), Vec::new(), &text, options(30));
            let found = run(engine, options_of.clone(), Vec::new(), &text, options(30));
            found.assert_equal(&expected, name);
            assert!(found.stats.sources.iter().any(|source| source.drafted > 0), "{name}");
        }
    }
}

#[test]
fn generations_that_share_passes_give_up_one_by_one() {
    let Some(Pair { engine, calm, session, .. }) = pairs().into_iter().next() else { unreachable!() };
    let prompts = [random_prompt(1, 30), random_prompt(2, 50), random_prompt(3, 9)];
    let expected: Vec<_> =
        prompts.iter().map(|prompt| run(&calm, plain(), Vec::new(), prompt, options(20)).tokens).collect();
    let generation = |prompt: &Vec<TokenId>| {
        let mut session = engine.session(session.clone()).unwrap();
        session.append_tokens(prompt).unwrap();
        OwnedGeneration::new(session, options(20)).unwrap()
    };
    let mut generations: Vec<_> = prompts.iter().map(generation).collect();
    let (mut found, mut rng) = (vec![Vec::new(); prompts.len()], Rng(5));
    while generations.iter().any(|generation| generation.awaits_pass()) {
        press(&engine, &mut rng);
        generations[rng.below(prompts.len())].release_memory();
        step_together(&mut generations.iter_mut().collect::<Vec<_>>());
        for (generation, tokens) in generations.iter_mut().zip(&mut found) {
            while !generation.awaits_pass() {
                match generation.next() {
                    Some(Ok(Event::Token(token))) => tokens.push(token.id),
                    Some(Ok(_)) => {}
                    Some(Err(error)) => panic!("{error}"),
                    None => break,
                }
                if rng.below(4) == 0 {
                    generation.release_memory();
                }
            }
        }
    }
    assert_eq!(found, expected);
}

/// A state at a remembered position is there again after the cache was given up and computed anew.
#[test]
fn remembered_states_come_back() {
    let engine =
        Engine::load(&Checkpoint::open(golden("qwen3_5")).unwrap(), with_free_rows(None), |_, _| {}).unwrap();
    let mut session = engine.session(plain()).unwrap();
    session.append_tokens(&random_prompt(1, 50)).unwrap();
    session.state_mut().remember(20);
    let mut states = [Vec::new(), Vec::new()];
    for state in &mut states {
        session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
        assert!(session.state().ends().unwrap().contains(&20));
        session.state().write(0..20, state).unwrap();
        engine.device().set_memory_pressure(MemoryPressure::Critical);
        session.release_memory();
        assert!(session.state().write(0..20, &mut Vec::new()).is_err(), "nothing is computed");
    }
    assert_eq!(states[0], states[1]);
}

#[test]
fn histories_are_released_and_not_rebuilt_under_pressure() {
    let engine = Tiny::default().engine(1);
    let mut session = engine.session(SessionOptions::default()).unwrap();
    session.append_tokens(&prompt(1, 30)).unwrap();
    run_in(&mut session, options(20), usize::MAX);
    assert_eq!(engine.history().n_tokens("default"), 20);
    engine.device().set_memory_pressure(MemoryPressure::Warning);
    assert_eq!(engine.history().n_tokens("default"), 20);
    engine.device().set_memory_pressure(MemoryPressure::Critical);
    assert_eq!((engine.history().n_namespaces(), engine.history().memory_usage()), (0, 0));
    run_in(&mut session, options(20), usize::MAX);
    assert_eq!(engine.history().n_namespaces(), 0);
    engine.device().set_memory_pressure(MemoryPressure::Normal);
    run_in(&mut session, options(20), usize::MAX);
    assert_eq!(engine.history().n_tokens("default"), 20);
}

#[test]
fn the_bound_of_all_histories_is_an_option() {
    let options_of = EngineOptions { history_total_tokens_max: Some(50), ..Tiny::default().options() };
    let engine = Tiny::default().engine_with(options_of);
    for namespace in ["a", "b", "c"] {
        let named = SessionOptions { namespace: namespace.into(), ..SessionOptions::default() };
        run(&engine, named, Vec::new(), &prompt(1, 30), options(20));
    }
    let kept = ["a", "b", "c"].map(|namespace| engine.history().n_tokens(namespace));
    assert_eq!(kept, [0, 20, 20]);
}

/// The pages of a KV cache that was given up are the system's again. (The other tests of this process use less than a third of it.)
#[test]
fn what_is_given_up_is_free_memory() {
    let tiny = Tiny { hidden_dim: 32, head_dim: 128, context_len: 100_000, ..Tiny::default() };
    let engine = tiny.engine(1);
    let options = SessionOptions { context_len: Some(100_000), ..plain() };
    let mut session = engine.session(options).unwrap();
    let tokens = vec![TokenId(97); 90_000];
    session.append_tokens(&tokens).unwrap();
    let bytes = session.state().bytes(tokens.len());
    let state = vec![0x11; bytes as usize];
    assert_eq!(session.state_mut().restore(0, &tokens, &state).unwrap(), tokens.len() - 1);
    drop(state);
    let Some(before) = resident_bytes() else { return };
    engine.device().set_memory_pressure(MemoryPressure::Critical);
    session.release_memory();
    let after = resident_bytes().unwrap();
    assert!(bytes > 150 << 20, "{bytes}");
    assert!(after + bytes * 2 / 3 < before, "{bytes} bytes: {before} before, {after} after");
}
