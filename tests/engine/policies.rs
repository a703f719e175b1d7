//! Policies limit the steps that draft and the rows of their drafts. For every policy and every report of the
//! device, tokens, texts and the bits of the logits are those of plain decoding.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use refrain::checkpoint::Checkpoint;
use refrain::device::{MemoryPressure, ThermalState};
use refrain::drafting::{
    AcceptanceFloor, Calibration, DraftPolicy, DraftRows, DraftSource, ReuseConfig, SkipRules,
};
use refrain::internals::draft::CostProfile;
use refrain::internals::draft::testing::{AlwaysRight, AlwaysWrong, Random};
use refrain::{
    CancelToken, Engine, EngineOptions, ErrorKind, GenerateOptions, Sampling, SessionOptions, Stats, TokenId,
};

use crate::common::{self, Rng, Tiny, plain, prompt, run, run_in, samplings};

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
    vec![
        ("auto", DraftPolicy::default(), |_| true),
        ("fixed 1", rows(DraftRows::Fixed(1)), |s| {
            s.rows.total() <= 2 * s.steps && s.policy.rows_allowed.len() == 2
        }),
        ("fixed 4", rows(DraftRows::Fixed(4)), |s| {
            s.rows.total() <= 5 * s.steps && s.policy.rows_allowed[4] > 0
        }),
        ("fixed 63", rows(DraftRows::Fixed(63)), |s| s.policy.rows_allowed.len() == 64),
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
        ("everything", DraftPolicy { rows: DraftRows::Fixed(7), ..floor(3, 0.4, 2) }, |_| true),
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

/// A row costs more than a share of a long time, so only drafts that need not be paid are bought.
#[test]
fn drafts_without_savings_are_bought_from_the_stake_alone() {
    let (tiny, prompt) = (Tiny::default(), prompt(3, 20));
    let cost_profile = Some(CostProfile::from_measurements(&[(1, 1e6), (2, 1.9e6), (64, 2e6)]));
    let engine = tiny.engine_with(EngineOptions { cost_profile, ..tiny.options() });
    let reference = run(&engine, plain(), Vec::new(), &prompt, options(&Sampling::default()));
    let run_at = |stake| {
        let sources: Vec<Box<dyn DraftSource>> =
            vec![Box::new(AlwaysRight::new(prompt.len(), reference.tokens.clone()))];
        let session = drafting(DraftPolicy { stake, ..DraftPolicy::default() });
        let found = run(&engine, session, sources, &prompt, options(&Sampling::default()));
        found.assert_equal(&reference, &format!("{stake:?}"));
        found.stats
    };
    let unpaid = run_at(None);
    assert!(unpaid.steps < reference.stats.steps && unpaid.drafting_off.not_paid == 0, "{unpaid:?}");
    // The stake of the prompt is a hundredth of what a row costs.
    let paid = run_at(Some(0.01));
    assert_eq!((paid.steps, paid.drafting_off.not_paid), (reference.stats.steps, reference.stats.steps));
    assert!(paid.saved_us <= 0.0, "{paid:?}");
}

/// Every step without a draft has one reason, and every fall has a pause.
fn check_counts(stats: &Stats, case: &str) {
    let off = &stats.drafting_off;
    let n_off = off.disabled + off.output_end + off.no_candidate + off.not_worth + off.short_output;
    let n_off = n_off + off.high_temperature + off.low_memory + off.below_floor + off.measured;
    let n_off = n_off + off.memory_pressure + off.heat + off.not_paid;
    // A plain step is compared with drafts before it.
    assert!(2 * off.measured <= stats.steps + 1, "{case}: {stats:?}");
    let n_drafted = stats.steps - n_off;
    assert!(n_off <= stats.steps, "{case}: {stats:?}");
    let drafted: usize = stats.sources.iter().map(|source| source.drafted).sum();
    assert!(drafted >= n_drafted, "{case}: {stats:?}");
    assert!(off.below_floor == 0 || stats.policy.floor_falls > 0, "{case}: {stats:?}");
}

/// A draft model, calibration and reuse beside the texts: everything that memory pressure releases.
fn full_engine() -> (Tiny, Engine) {
    let tiny = Tiny::default();
    let engine = tiny.engine(3);
    let smaller = Tiny { n_layers: 1, seed: 9, ..tiny };
    let draft_model = Checkpoint::from_gguf_bytes(smaller.gguf().into(), "smaller").unwrap();
    engine.set_draft_model(&draft_model, refrain::drafting::DraftModelOptions::default(), |_, _| {}).unwrap();
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
    for (policy, name) in [
        (rows(DraftRows::Fixed(0)), "policy.rows"),
        (rows(DraftRows::Fixed(DraftRows::MAX + 1)), "policy.rows"),
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
}

fn check_refused(engine: &Engine, session: SessionOptions, name: &str) {
    let refused = engine.session(session.clone()).unwrap_err();
    assert_eq!((refused.kind(), refused.field()), (ErrorKind::InvalidArgument, Some(name)), "{session:?}");
}
