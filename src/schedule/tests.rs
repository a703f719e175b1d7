use proptest::prelude::*;

use super::exact::exact;
use super::*;

fn graph(load_us: f64, compute_us: f64) -> GraphTimes {
    GraphTimes { load_us, compute_us, compute_us_per_token: 0.0 }
}

/// Blocks of (load, prefill call, verify call), graphs of 8 and 2 rows.
fn times(blocks: &[(f64, f64, f64)]) -> SwitchTimes {
    let block = |&(load, prefill, verify): &(f64, f64, f64)| BlockTimes {
        prefill: graph(load, prefill),
        verify: graph(load, verify),
    };
    SwitchTimes::new("test".to_owned(), 8, 2, blocks.iter().map(block).collect())
}

fn all_prefill(times: &SwitchTimes) -> Vec<GraphKind> {
    vec![GraphKind::Prefill; times.blocks.len()]
}

fn total(times: &SwitchTimes, prefill: &Prefill, plan: &Plan) -> f64 {
    simulate(times, prefill, &all_prefill(times), plan).unwrap().total_us
}

fn verify(block: usize, after: Option<usize>) -> Load {
    Load { block, graph: GraphKind::Verify, after }
}

#[test]
fn a_timeline_by_hand() {
    // Two blocks, two chunks of 8 rows. A chunk in a verify graph takes four calls of 3.
    let times = times(&[(10.0, 10.0, 3.0), (10.0, 10.0, 3.0)]);
    let prefill = Prefill::new(0, 16, 8);
    let initial = all_prefill(&times);
    assert_eq!(total(&times, &prefill, &Plan::default()), 40.0);
    // Computation takes 40, then loading 2 · 10.
    assert_eq!(total(&times, &prefill, &synchronous(&prefill, &initial)), 60.0);
    // Block 0 loads from 30 to 40 while block 1 computes; block 1 loads from 40 to 50.
    assert_eq!(total(&times, &prefill, &asynchronous(&prefill, &initial)), 50.0);
    // Block 0 loads from 10 to 20 while block 1 computes, and computes from 20 to 32. Block 1 computes from
    // 32 to 42 and loads until 52.
    let early = Plan { loads: vec![verify(0, Some(0)), verify(1, Some(1))] };
    let timeline = simulate(&times, &prefill, &initial, &early).unwrap();
    assert_eq!((timeline.total_us, timeline.computed_us, timeline.stalled_us), (52.0, 42.0, 0.0));
    // Block 1 loads from 20 to 30 while block 0 computes. Block 0 loads from 30 to 40 while block 1 computes
    // for 12.
    let best = Plan { loads: vec![verify(1, Some(0)), verify(0, Some(1))] };
    assert_eq!(total(&times, &prefill, &best), 42.0);
    assert_eq!(exact(&times, &prefill), Some((best.clone(), 42.0)));
    assert_eq!(progressive(&times, &prefill, &initial), best);
}

#[test]
fn loads_and_computation_slow_each_other_down() {
    let mut times = times(&[(10.0, 10.0, 3.0), (10.0, 10.0, 3.0)]);
    (times.compute_beside_load, times.load_beside_compute) = (2.0, 4.0);
    let prefill = Prefill::new(0, 8, 8);
    // Block 1 computes from 10 to 30. A load of block 0 advances by 20/4 = 5 in that time and ends at 35; the
    // second load ends at 45.
    let plan = asynchronous(&prefill, &all_prefill(&times));
    let timeline = simulate(&times, &prefill, &all_prefill(&times), &plan).unwrap();
    assert_eq!((timeline.computed_us, timeline.total_us, timeline.work_us), (30.0, 45.0, 20.0));
}

#[test]
fn computation_waits_for_a_load_that_is_late() {
    let times = times(&[(100.0, 10.0, 3.0), (100.0, 10.0, 3.0)]);
    let prefill = Prefill::new(0, 16, 8);
    let plan = Plan { loads: vec![verify(0, Some(0)), verify(1, Some(1))] };
    // Block 0 loads from 10 to 110 and computes until 122; block 1 computes until 132 and loads until 232.
    let timeline = simulate(&times, &prefill, &all_prefill(&times), &plan).unwrap();
    assert_eq!((timeline.total_us, timeline.stalled_us), (232.0, 90.0));
}

#[test]
fn a_context_makes_calls_longer() {
    let mut times = times(&[(0.0, 10.0, 3.0)]);
    times.blocks[0].prefill.compute_us_per_token = 1.0;
    times.blocks[0].verify.compute_us_per_token = 0.5;
    assert_eq!(times.chunk_us(0, GraphKind::Prefill, 100, 8), 110.0);
    // Calls at 100, 102, 104 and 106 tokens.
    assert_eq!(times.chunk_us(0, GraphKind::Verify, 100, 8), 4.0 * 3.0 + 0.5 * 412.0);
    assert_eq!(total(&times, &Prefill::new(4, 13, 8), &Plan::default()), 14.0 + 22.0);
}

#[test]
fn short_prompts_change_at_once_and_long_ones_go_back() {
    let times = times(&[(10.0, 10.0, 3.0), (10.0, 10.0, 3.0)]);
    // Two rows: a padded prefill call takes 30, one verify call 3, and both loads are needed anyway.
    let padded = self::times(&[(10.0, 30.0, 3.0), (10.0, 30.0, 3.0)]);
    let plan = progressive(&padded, &Prefill::new(0, 2, 8), &all_prefill(&padded));
    assert_eq!(plan.loads, [verify(0, None), verify(1, None)]);
    assert_eq!(total(&padded, &Prefill::new(0, 2, 8), &plan), 23.0);
    // If it takes 10, block 0 computes while block 1 loads, and loads while block 1 computes.
    let plan = progressive(&times, &Prefill::new(0, 2, 8), &all_prefill(&times));
    assert_eq!(plan.loads, [verify(1, None), verify(0, Some(0))]);
    assert_eq!(total(&times, &Prefill::new(0, 2, 8), &plan), 20.0);
    // With verify graphs at first: two rows change no graph, 800 rows are worth two loads per block.
    let initial = [GraphKind::Verify; 2];
    assert_eq!(progressive(&times, &Prefill::new(0, 2, 8), &initial), Plan::default());
    let plan = progressive(&times, &Prefill::new(0, 800, 8), &initial);
    assert_eq!(plan.loads[..2], [0, 1].map(|block| Load { block, graph: GraphKind::Prefill, after: None }));
    assert_eq!(plan.loads[2..].iter().filter(|load| load.graph == GraphKind::Verify).count(), 2);
    assert_eq!(progressive(&times, &Prefill::new(0, 0, 8), &initial), Plan::default());
}

#[test]
fn plans_that_cannot_be_followed_are_errors() {
    let times = times(&[(10.0, 10.0, 3.0), (10.0, 10.0, 3.0)]);
    let prefill = Prefill::new(0, 16, 8);
    let check =
        |loads: &[Load]| simulate(&times, &prefill, &all_prefill(&times), &Plan { loads: loads.to_vec() });
    assert_eq!(check(&[verify(1, Some(0)), verify(0, None)]), Err(PlanError::Deadlock { load_idx: 0 }));
    assert!(matches!(check(&[verify(2, None)]), Err(PlanError::OutOfRange { block: 2, n_blocks: 2, .. })));
    assert!(matches!(
        check(&[verify(0, Some(2))]),
        Err(PlanError::OutOfRange { after: Some(2), n_chunks: 2, .. })
    ));
    let twice = [verify(0, Some(1)), verify(0, Some(1))];
    assert_eq!(check(&twice), Err(PlanError::NotRising { load_idx: 1, block: 0 }));
}

#[test]
fn times_from_outside_are_checked() {
    let good = times(&[(1.0, 2.0, 3.0)]);
    assert_eq!(SwitchTimes::from_json(&good.to_json()).unwrap(), good);
    for (from, to) in [
        ("\"version\": 1", "\"version\": 2"),
        ("\"load_us\": 1.0", "\"load_us\": -1.0"),
        ("\"load_us\": 1.0", "\"load_us\": 1e300"),
        ("\"prefill_len\": 8", "\"prefill_len\": 0"),
        ("\"verify_len\": 2", "\"verify_len\": 100000"),
        ("\"compute_beside_load\": 1.0", "\"compute_beside_load\": 0.5"),
        ("\"label\"", "\"lable\""),
    ] {
        let text = good.to_json();
        assert!(text.contains(from), "{from} in {text}");
        assert!(SwitchTimes::from_json(&text.replace(from, to)).is_err(), "{to}");
    }
    let none = SwitchTimes::new(String::new(), 8, 2, Vec::new());
    assert!(matches!(none.check(), Err(TimesError::OutOfRange { .. })));
}

/// From slow to fast flash, from short calls that cost as much as long ones to calls that cost twice as much,
/// prompts of one to four chunks.
#[test]
fn the_greedy_plan_is_near_the_best() {
    let mut state = 1u64;
    let mut uniform = |from: f64, to: f64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        from + (to - from) * (state >> 11) as f64 / (1u64 << 53) as f64
    };
    let mut ratios = Vec::new();
    for _ in 0..150 {
        let n_blocks = uniform(1.0, 5.0) as usize;
        let block = |_| (uniform(1.0, 60.0), uniform(5.0, 20.0), uniform(1.0, 2.0));
        let blocks: Vec<_> = (0..n_blocks).map(block).collect();
        let blocks: Vec<_> =
            blocks.iter().map(|&(load, prefill, dear)| (load, prefill, prefill / 4.0 * dear)).collect();
        let mut times = times(&blocks);
        times.compute_beside_load = uniform(1.0, 1.3);
        let prefill = Prefill::new(0, uniform(1.0, 33.0) as usize, 8);
        let (_, best_us) = exact(&times, &prefill).expect("few plans");
        let greedy = progressive(&times, &prefill, &all_prefill(&times));
        ratios.push(total(&times, &prefill, &greedy) / best_us);
    }
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    let worst = ratios.iter().copied().fold(0.0, f64::max);
    assert!(mean < 1.05 && worst < 1.4, "mean {mean}, worst {worst}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Exhaustive search is never worse than the greedy plan, which is never worse than the baselines.
    #[test]
    fn plans_are_in_order(
        blocks in proptest::collection::vec((1.0f64..60.0, 5.0f64..20.0, 1.0f64..10.0), 1..=3),
        n_rows in 1usize..=32,
        slowdown in 1.0f64..1.3,
    ) {
        let mut times = times(&blocks);
        times.compute_beside_load = slowdown;
        let prefill = Prefill::new(0, n_rows, 8);
        let initial = all_prefill(&times);
        let (best, best_us) = exact(&times, &prefill).expect("few plans");
        prop_assert_eq!(total(&times, &prefill, &best), best_us);
        let planned_us = total(&times, &prefill, &progressive(&times, &prefill, &initial));
        prop_assert!(planned_us >= best_us - 1e-6);
        for plan in [synchronous(&prefill, &initial), asynchronous(&prefill, &initial)] {
            prop_assert!(planned_us <= total(&times, &prefill, &plan) + 1e-6);
        }
    }

    /// No plan takes less time than its computation or its loads, and `stalled_us` is the difference between
    /// `computed_us` and `work_us`.
    #[test]
    fn timelines_add_up(
        blocks in proptest::collection::vec((1.0f64..60.0, 5.0f64..20.0, 1.0f64..20.0), 1..=6),
        picks in proptest::collection::vec(0usize..6, 6),
        n_rows in 1usize..=40,
    ) {
        let times = times(&blocks);
        let prefill = Prefill::new(0, n_rows, 8);
        let after = |block: usize| picks[block].min(prefill.chunks.len()).checked_sub(1);
        let mut loads: Vec<Load> = (0..blocks.len()).map(|block| verify(block, after(block))).collect();
        loads.sort_by_key(|load| load.starts_at(blocks.len()));
        let timeline = simulate(&times, &prefill, &all_prefill(&times), &Plan { loads }).unwrap();
        let loads_us: f64 = blocks.iter().map(|block| block.0).sum();
        prop_assert!((timeline.work_us + timeline.stalled_us - timeline.computed_us).abs() < 1e-6);
        prop_assert!(timeline.total_us >= loads_us - 1e-6 && timeline.total_us >= timeline.computed_us - 1e-6);
        prop_assert!(timeline.total_us <= timeline.work_us + loads_us + 1e-6);
    }
}
