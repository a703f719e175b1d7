//! Policies limit the steps that draft and the rows of their drafts. For every policy and every report of the
//! device, tokens, texts and the bits of the logits are those of plain decoding. The only mode that is not
//! exact is on request and reported.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use common::{Rng, Run, Tiny, plain, prompt, run, run_in, samplings};
use refrain::checkpoint::Checkpoint;
use refrain::device::{MemoryPressure, ThermalState};
use refrain::drafting::{
    Acceptance, AcceptanceFloor, Calibration, DraftPolicy, DraftRows, DraftSource, PidConfig, ReuseConfig,
    SkipRules,
};
use refrain::internals::draft::testing::{AlwaysRight, AlwaysWrong, Random};
use refrain::{
    CancelToken, Drafting, Engine, GenerateOptions, Sampling, SessionError, SessionOptions, Stats, TokenId,
};

const MAX_TOKENS: usize = 40;

fn options(sampling: &Sampling) -> GenerateOptions {
    GenerateOptions {
        max_tokens: MAX_TOKENS,
        sampling: sampling.clone(),
        ignore_eos: true,
        ..GenerateOptions::default()
    }
}

fn drafting(policy: DraftPolicy) -> SessionOptions {
    SessionOptions { policy, history: false, ..SessionOptions::default() }
}

fn rows(rows: DraftRows) -> DraftPolicy {
    DraftPolicy { rows, ..DraftPolicy::default() }
}

fn floor(window: usize, rate_min: f32, pause: usize) -> DraftPolicy {
    DraftPolicy { floor: Some(AcceptanceFloor { window, rate_min, pause }), ..DraftPolicy::default() }
}

fn skip(skip: SkipRules) -> DraftPolicy {
    DraftPolicy { skip, ..DraftPolicy::default() }
}

/// Required statistics of a run.
type Holds = fn(&Stats) -> bool;

/// Policies, each with the required statistics of its run.
fn policies() -> Vec<(&'static str, DraftPolicy, Holds)> {
    let pid = |set_point| DraftRows::Pid(PidConfig { set_point, ..PidConfig::default() });
    let wild = PidConfig { proportional: 900.0, integral: 900.0, derivative: 900.0, ..PidConfig::default() };
    vec![
        ("auto", DraftPolicy::default(), |_| true),
        ("fixed 1", rows(DraftRows::Fixed(1)), |s| {
            s.rows.total() <= 2 * s.steps && s.policy.rows_allowed.len() == 2
        }),
        ("fixed 4", rows(DraftRows::Fixed(4)), |s| {
            s.rows.total() <= 5 * s.steps && s.policy.rows_allowed[4] > 0
        }),
        ("fixed 63", rows(DraftRows::Fixed(63)), |s| s.policy.rows_allowed.len() == 64),
        ("pid 0.1", rows(pid(0.1)), |s| s.policy.rows_allowed.iter().sum::<usize>() == s.steps),
        ("pid 0.9", rows(pid(0.9)), |s| s.policy.rows_allowed.len() <= 16),
        ("pid wild", rows(DraftRows::Pid(wild)), |s| s.policy.rows_allowed.len() <= 16),
        ("floor 0", floor(2, 0.0, 3), |s| s.drafting_off.below_floor == 0),
        ("floor 1", floor(2, 1.0, 3), |_| true),
        ("short", skip(SkipRules { tokens_min: MAX_TOKENS + 1, ..SkipRules::default() }), |s| {
            s.drafting_off.short_output == s.steps && s.rows.total() == s.steps
        }),
        ("not short", skip(SkipRules { tokens_min: MAX_TOKENS, ..SkipRules::default() }), |s| {
            s.drafting_off.short_output == 0
        }),
        ("hot", skip(SkipRules { temperature_max: Some(0.5), ..SkipRules::default() }), |s| {
            [0, s.steps].contains(&s.drafting_off.high_temperature)
        }),
        ("everything", DraftPolicy { rows: pid(0.5), ..floor(3, 0.4, 2) }, |_| true),
    ]
}

/// Sources that are right, wrong, and mixed.
fn sources(prompt: &[TokenId], known: &[TokenId]) -> [Vec<Box<dyn DraftSource>>; 4] {
    [
        Vec::new(),
        vec![Box::new(AlwaysRight::new(prompt.len(), known.to_vec()))],
        vec![Box::new(AlwaysWrong::new(prompt.len(), known.to_vec()))],
        vec![Box::new(Random::new(5, 2 * common::VOCAB_SIZE as u32))],
    ]
}

#[test]
fn every_exact_policy_gives_the_bits_of_plain_decoding() {
    let (engine, prompt) = (Tiny::default().engine(2), prompt(3, 70));
    let (mut n_falls, mut n_hot) = (0, 0);
    for sampling in &samplings() {
        let reference = run(&engine, plain(), Vec::new(), &prompt, options(sampling));
        assert_eq!(reference.stats.drafting_off.disabled, reference.stats.steps);
        for (name, policy, holds) in policies() {
            for verify_lens in [vec![], vec![4, 32, 64]] {
                for (i, sources) in sources(&prompt, &reference.tokens).into_iter().enumerate() {
                    let session = SessionOptions {
                        verify_lens: verify_lens.clone(),
                        verify_rows_max: 64,
                        ..drafting(policy)
                    };
                    let run = run(&engine, session, sources, &prompt, options(sampling));
                    let case = format!("{name}, sources {i}, lens {verify_lens:?}, {sampling:?}");
                    run.assert_equal(&reference, &case);
                    assert!(run.stats.lossy.is_none(), "{case}");
                    assert!(!verify_lens.is_empty() || holds(&run.stats), "{case}: {:?}", run.stats);
                    check_counts(&run.stats, &case);
                    n_falls += run.stats.policy.floor_falls;
                    n_hot += run.stats.drafting_off.high_temperature;
                }
            }
        }
    }
    assert!(n_falls > 20 && n_hot > 100, "{n_falls} falls, {n_hot} hot steps");
}

/// Every step without a draft has one reason, and every fall has a pause.
fn check_counts(stats: &Stats, case: &str) {
    let off = &stats.drafting_off;
    let n_off = off.disabled + off.output_end + off.no_candidate + off.not_worth + off.short_output;
    let n_off = n_off + off.high_temperature + off.low_memory + off.below_floor + off.measured;
    let n_off = n_off + off.memory_pressure + off.heat;
    // A plain step is compared with drafts before it.
    assert!(2 * off.measured <= stats.steps + 1, "{case}: {stats:?}");
    let n_drafted = stats.steps - n_off;
    assert!(n_off <= stats.steps, "{case}: {stats:?}");
    let drafted: usize = stats.sources.iter().map(|source| source.drafted).sum();
    assert!(drafted >= n_drafted, "{case}: {stats:?}");
    assert!(off.below_floor == 0 || stats.policy.floor_falls > 0, "{case}: {stats:?}");
}

/// The controller follows acceptance: right drafts increase the rows, wrong ones decrease them.
#[test]
fn controlled_drafts_follow_acceptance() {
    let (engine, prompt) = (Tiny::default().engine(1), prompt(3, 70));
    let long = || GenerateOptions { max_tokens: 400, ..options(&Sampling::default()) };
    let reference = run(&engine, plain(), Vec::new(), &prompt, long());
    let allowed = |sources: Vec<Box<dyn DraftSource>>| {
        let session = SessionOptions {
            drafting: Drafting::OwnSources,
            ..drafting(rows(DraftRows::Pid(PidConfig::default())))
        };
        run(&engine, session, sources, &prompt, long()).stats.policy.rows_allowed
    };
    let [_, right, wrong, _] = sources(&prompt, &reference.tokens);
    let PidConfig { rows_min, rows_max, .. } = PidConfig::default();
    let (right, wrong) = (allowed(right), allowed(wrong));
    assert!(right.len() == rows_max + 1 && right[rows_min] == 0, "{right:?}");
    // A source that is always wrong soon has a low reliability and drafts nothing, so its reliability stays.
    assert!(wrong[rows_min..=2].iter().sum::<usize>() > 300, "{wrong:?}");
}

/// A draft model, calibration and reuse beside the texts: everything that memory pressure releases.
fn full_engine() -> (Tiny, Engine) {
    let tiny = Tiny::default();
    let engine = tiny.engine(3);
    let smaller = Tiny { n_layers: 1, seed: 9, ..tiny };
    let draft_model = Checkpoint::from_gguf_bytes(smaller.gguf().into(), "smaller").unwrap();
    engine.set_draft_model(&draft_model, refrain::DraftModelOptions::default(), |_, _| {}).unwrap();
    (tiny, engine)
}

fn full_session() -> SessionOptions {
    SessionOptions {
        calibration: Calibration::InContext,
        reuse: Some(ReuseConfig { threshold: 0.0, ..ReuseConfig::default() }),
        prefill_chunk: 16,
        ..drafting(DraftPolicy::default())
    }
}

const THERMAL: [ThermalState; 4] =
    [ThermalState::Nominal, ThermalState::Fair, ThermalState::Serious, ThermalState::Critical];
const PRESSURE: [MemoryPressure; 3] =
    [MemoryPressure::Normal, MemoryPressure::Warning, MemoryPressure::Critical];

#[test]
fn heat_and_memory_pressure_bound_drafts_and_change_nothing() {
    let (tiny, engine) = full_engine();
    let prompt = prompt(3, 70);
    for sampling in &samplings() {
        let reference = run(&tiny.engine(1), plain(), Vec::new(), &prompt, options(sampling));
        for thermal in THERMAL {
            for pressure in PRESSURE {
                engine.device().set_thermal_state(thermal);
                engine.device().set_memory_pressure(pressure);
                assert_eq!(
                    (engine.device().thermal_state(), engine.device().memory_pressure()),
                    (thermal, pressure)
                );
                let [_, right, ..] = sources(&prompt, &reference.tokens);
                let run = run(&engine, full_session(), right, &prompt, options(sampling));
                let case = format!("{thermal:?} {pressure:?} {sampling:?}");
                run.assert_equal(&reference, &case);
                check_counts(&run.stats, &case);
                let off = &run.stats.drafting_off;
                let most = thermal.draft_rows_max().min(pressure.draft_rows_max()).saturating_add(1);
                assert!(run.stats.rows.total() <= run.stats.steps.saturating_mul(most), "{case}");
                let (n_steps, is_critical) = (run.stats.steps, pressure == MemoryPressure::Critical);
                assert_eq!(off.memory_pressure, if is_critical { n_steps } else { 0 }, "{case}");
                let too_hot = thermal == ThermalState::Critical && !is_critical;
                assert_eq!(off.heat, if too_hot { n_steps } else { 0 }, "{case}");
                let limited = run.stats.policy.heat_limited + run.stats.policy.memory_limited;
                assert_eq!(limited > 0, (2..usize::MAX).contains(&most), "{case}: {:?}", run.stats.policy);
            }
        }
        engine.device().set_thermal_state(ThermalState::Nominal);
        engine.device().set_memory_pressure(MemoryPressure::Normal);
    }
}

/// Another thread reports at random times while several generations run.
#[test]
fn reports_from_another_thread_change_nothing() {
    let (tiny, engine) = full_engine();
    let prompts = [prompt(8, 90), prompt(9, 60)];
    let (done, n_reports, n_answered) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let is_enough = || n_reports.load(Ordering::Relaxed) > 50 && n_answered.load(Ordering::Relaxed) > 20;
    let converse = |prompt: &[TokenId], sampling: &Sampling| {
        let mut reference = tiny.engine(1).session(plain()).unwrap();
        let mut session = engine.session(full_session()).unwrap();
        for turn in 0..20 {
            for session in [&mut reference, &mut session] {
                session.append_tokens(&prompt[turn..turn + 3]).unwrap();
            }
            let short = || GenerateOptions { max_tokens: 12, ..options(sampling) };
            let expected = run_in(&mut reference, short(), usize::MAX);
            let found = run_in(&mut session, short(), usize::MAX);
            found.assert_equal(&expected, &format!("turn {turn}, {sampling:?}"));
            n_answered.fetch_add(found.stats.policy.memory_reports, Ordering::Relaxed);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut rng = Rng(3);
            while !done.load(Ordering::Relaxed) {
                match rng.below(3) {
                    0 => engine.device().set_thermal_state(THERMAL[rng.below(4)]),
                    _ => engine.device().set_memory_pressure(PRESSURE[rng.below(3)]),
                }
                n_reports.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_micros(rng.below(3000) as u64));
            }
        });
        let workers: Vec<_> = prompts
            .iter()
            .map(|prompt| {
                let (is_enough, converse) = (&is_enough, &converse);
                scope.spawn(move || {
                    loop {
                        samplings().iter().for_each(|sampling| converse(prompt, sampling));
                        // On a fast machine the run may end before many reports.
                        if is_enough() {
                            return;
                        }
                    }
                })
            })
            .collect();
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok));
    });
}

/// Reports between the tokens of one generation: each step has another state, and released sources draft again.
#[test]
fn reports_between_tokens_change_nothing() {
    let (tiny, engine) = full_engine();
    let prompt = prompt(5, 80);
    for sampling in &samplings() {
        let long = || GenerateOptions { max_tokens: 120, ..options(sampling) };
        let reference = run(&tiny.engine(1), plain(), Vec::new(), &prompt, long());
        for seed in 0..6 {
            let mut session = engine.session(full_session()).unwrap();
            session.append_tokens(&prompt).unwrap();
            let (mut rng, mut tokens) = (Rng(seed), Vec::new());
            let summary = session.generate(long()).unwrap().run(|event| {
                tokens.push(event.id);
                engine.device().set_memory_pressure(PRESSURE[rng.below(3)]);
                std::ops::ControlFlow::Continue(())
            });
            let stats = summary.unwrap().stats;
            assert_eq!(tokens, reference.tokens, "{sampling:?}, seed {seed}");
            assert!(stats.policy.memory_reports > 10, "{:?}", stats.policy);
            assert!(stats.drafting_off.memory_pressure > 5, "{:?}", stats.drafting_off);
            engine.device().set_memory_pressure(MemoryPressure::Normal);
            // The sources are rebuilt: the text drafts again.
            let after = run_in(&mut session, long(), usize::MAX);
            let context = after.stats.sources.iter().find(|source| source.name == "context").unwrap();
            assert!(context.drafted > 0, "{:?}", after.stats.sources);
        }
    }
}

#[test]
fn memory_is_given_back_and_comes_back() {
    let (_, engine) = full_engine();
    let mut session = engine.session(full_session()).unwrap();
    session.append_tokens(&prompt(3, 300)).unwrap();
    run_in(&mut session, options(&Sampling::default()), usize::MAX);
    let mut used = vec![session.draft_memory_usage()];
    for pressure in [MemoryPressure::Warning, MemoryPressure::Critical] {
        engine.device().set_memory_pressure(pressure);
        assert_eq!(session.draft_memory_usage(), *used.last().unwrap(), "nothing moves in an idle session");
        session.release_memory();
        used.push(session.draft_memory_usage());
        let n_cached = if pressure == MemoryPressure::Critical { 0 } else { session.tokens().len() - 1 };
        assert_eq!(
            session.state().n_cached_tokens(),
            n_cached,
            "the KV cache of a session that waits, {pressure:?}"
        );
    }
    // The remaining memory is the draft model's keys and values, which are new and untouched, and the builder.
    assert!(used[1] < used[0] && used[2] < used[1], "{used:?}");
    engine.device().set_memory_pressure(MemoryPressure::Normal);
    run_in(&mut session, options(&Sampling::default()), usize::MAX);
    assert!(session.draft_memory_usage() > used[1], "{used:?}");
}

/// A fork of a session that released its memory continues in the same way.
#[test]
fn forks_under_pressure() {
    let (tiny, engine) = full_engine();
    let reference = run(&tiny.engine(1), plain(), Vec::new(), &prompt(3, 70), options(&Sampling::default()));
    for pressure in PRESSURE {
        engine.device().set_memory_pressure(pressure);
        let mut session = engine.session(full_session()).unwrap();
        session.append_tokens(&prompt(3, 70)).unwrap();
        session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
        let mut fork = session.fork().unwrap();
        run_in(&mut fork, options(&Sampling::default()), usize::MAX).assert_equal(&reference, "fork");
        engine.device().set_memory_pressure(MemoryPressure::Normal);
        run_in(&mut session, options(&Sampling::default()), usize::MAX).assert_equal(&reference, "session");
    }
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let engine = Tiny::default().engine(1);
    let nan = f32::NAN;
    let pid = |pid: PidConfig| rows(DraftRows::Pid(pid));
    let default = PidConfig::default();
    for (policy, name) in [
        (rows(DraftRows::Fixed(0)), "policy.rows"),
        (rows(DraftRows::Fixed(DraftRows::MAX + 1)), "policy.rows"),
        (pid(PidConfig { set_point: 1.1, ..default }), "policy.rows.set_point"),
        (pid(PidConfig { proportional: nan, ..default }), "policy.rows.proportional"),
        (pid(PidConfig { integral: -1.0, ..default }), "policy.rows.integral"),
        (pid(PidConfig { derivative: 1e9, ..default }), "policy.rows.derivative"),
        (pid(PidConfig { rows_min: 0, ..default }), "policy.rows.rows_min"),
        (pid(PidConfig { rows_max: 64, ..default }), "policy.rows.rows_max"),
        (pid(PidConfig { rows_start: 16, ..default }), "policy.rows.rows_start"),
        (floor(0, 0.5, 1), "policy.floor.window"),
        (floor(1, nan, 1), "policy.floor.rate_min"),
        (floor(1, 0.5, 1 << 17), "policy.floor.pause"),
        (
            skip(SkipRules { temperature_max: Some(nan), ..SkipRules::default() }),
            "policy.skip.temperature_max",
        ),
    ] {
        check_refused(&engine, drafting(policy), name);
    }
    for top_p in [0.0, -0.5, 1.5, nan] {
        let session =
            SessionOptions { acceptance: Acceptance::LossyTopP(top_p), ..SessionOptions::default() };
        check_refused(&engine, session, "acceptance.lossy_top_p");
    }
}

fn check_refused(engine: &Engine, session: SessionOptions, name: &str) {
    match engine.session(session.clone()).err() {
        Some(SessionError::OutOfRange { option, .. } | SessionError::NumberOutOfRange { option, .. }) => {
            assert_eq!(option, name, "{session:?}");
        }
        other => panic!("{session:?}: {other:?}"),
    }
}

fn lossy(top_p: f32) -> SessionOptions {
    SessionOptions { acceptance: Acceptance::LossyTopP(top_p), ..drafting(DraftPolicy::default()) }
}

fn lossy_run(engine: &Engine, top_p: f32, prompt: &[TokenId], sampling: &Sampling) -> Run {
    let sources: Vec<Box<dyn DraftSource>> = vec![Box::new(Random::new(5, common::VOCAB_SIZE as u32))];
    run(engine, lossy(top_p), sources, prompt, options(sampling))
}

/// The mode is on request only. It is then reported, and only then may the output differ.
#[test]
fn lossy_acceptance_is_marked_and_never_the_default() {
    assert_eq!(SessionOptions::default().acceptance, Acceptance::Strict);
    assert_eq!(Acceptance::default(), Acceptance::Strict);
    let (engine, prompt) = (Tiny::default().engine(1), prompt(3, 70));
    for sampling in &samplings() {
        let reference = run(&engine, plain(), Vec::new(), &prompt, options(sampling));
        let run_at = |top_p| lossy_run(&engine, top_p, &prompt, sampling);
        let found = run_at(1.0);
        let marked = found.stats.lossy.expect("marked");
        assert_eq!(marked.top_p, 1.0);
        assert!(marked.replaced > 5, "{marked:?}: the test would prove little");
        assert_ne!(found.tokens, reference.tokens);
        // A nucleus of one token contains the likeliest one only.
        let found = run_at(f32::MIN_POSITIVE);
        assert!(found.stats.lossy.is_some(), "marked, whether or not anything was replaced");
        if sampling.temperature == 0.0 {
            assert_eq!(found.stats.lossy.unwrap().replaced, 0);
            found.assert_equal(&reference, "a nucleus of one token");
        }
        // Without drafts nothing can be accepted.
        let session = SessionOptions { acceptance: Acceptance::LossyTopP(1.0), ..plain() };
        let found = run(&engine, session, Vec::new(), &prompt, options(sampling));
        found.assert_equal(&reference, "no drafts");
        assert_eq!(found.stats.lossy.unwrap().replaced, 0);
    }
}

/// The same seed gives the same text, independent of measured costs, threads, and earlier generations.
#[test]
fn lossy_output_is_a_function_of_the_seed() {
    let prompt = prompt(3, 70);
    for sampling in &samplings() {
        let expected = lossy_run(&Tiny::default().engine(1), 0.9, &prompt, sampling);
        assert!(expected.stats.lossy.unwrap().replaced > 0);
        let measured = Tiny::default().engine_with(refrain::EngineOptions {
            n_threads: Some(2),
            cost_profile: None,
            ..Tiny::default().options()
        });
        run(&measured, drafting(DraftPolicy::default()), Vec::new(), &prompt, options(sampling));
        let learnt = measured.reliability();
        for round in 0..3 {
            let found = lossy_run(&measured, 0.9, &prompt, sampling);
            found.assert_equal(&expected, &format!("round {round}"));
        }
        let evidence = |table: &refrain::internals::draft::ReliabilityTable| format!("{table:?}");
        assert_eq!(evidence(&measured.reliability()), evidence(&learnt), "and teaches nobody");
        let other = Sampling { seed: sampling.seed.map(|seed| seed + 1), ..sampling.clone() };
        let differs = lossy_run(&measured, 0.9, &prompt, &other).tokens != expected.tokens;
        assert_eq!(differs, sampling.temperature > 0.0);
    }
}

/// If measured passes decided about calls of a draft model, the output would depend on a clock.
#[test]
fn lossy_acceptance_takes_no_source_that_weighs_times() {
    let (_, engine) = full_engine();
    let session = SessionOptions { drafting: Drafting::DraftModel, ..lossy(0.5) };
    assert!(matches!(engine.session(session).err(), Some(SessionError::LossyDraftModel)));
    assert_eq!(engine.session(lossy(0.5)).unwrap().source_names(), ["context", "resume"]);
}
