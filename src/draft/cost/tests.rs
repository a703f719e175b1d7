//! The cost profile: measured costs, costs learned from steps, and costs without evidence.

use proptest::prelude::*;

use super::*;

#[test]
fn interpolates_and_goes_on_with_the_last_slope() {
    let costs = CostProfile::from_measurements(&[(1, 100.0), (4, 130.0), (8, 250.0)]);
    assert!((costs.verify_us(1, 1) - 100.0).abs() < 0.1);
    assert!((costs.verify_us(2, 1) - 110.0).abs() < 0.1);
    assert!((costs.verify_us(6, 1) - 190.0).abs() < 0.1);
    assert!((costs.verify_us(12, 1) - 370.0).abs() < 0.1);
}

#[test]
fn noise_never_makes_a_larger_batch_cheaper() {
    let costs =
        CostProfile::from_measurements(&[(1, 100.0), (2, 140.0), (3, 120.0), (8, 110.0), (16, 300.0)]);
    for rows in 1..40 {
        assert!(costs.verify_us(rows, 1) <= costs.verify_us(rows + 1, 1), "{rows} rows");
    }
}

#[test]
fn compiled_lengths_make_a_staircase() {
    let costs =
        CostProfile::from_measurements(&[(1, 100.0), (4, 130.0), (8, 250.0)]).with_batch_lens(&[8, 1, 4]);
    assert_eq!(costs.verify_us(2, 1), costs.verify_us(4, 1));
    assert!(costs.verify_us(4, 1) < costs.verify_us(5, 1));
    assert_eq!(costs.batch_len(5), 8);
    assert_eq!(costs.batch_len(9), 9);
}

#[test]
fn unusable_measurements_are_left_out() {
    for pairs in [&[][..], &[(0, 5.0)], &[(1, f32::NAN), (2, -1.0), (3, f32::INFINITY)]] {
        let mut costs = CostProfile::from_measurements(pairs);
        costs.observe(0, 1, 1.0);
        costs.observe(3, 1, f32::NAN);
        assert!((costs.verify_us(1, 1) - 1.0).abs() < 1e-6);
        assert!((costs.verify_us(100, 1) - 1.0).abs() < 1e-6);
    }
}

#[test]
fn learns_heat_and_ignores_an_interruption() {
    let mut costs = CostProfile::from_measurements(&[(1, 100.0), (8, 200.0)]);
    costs.observe(1, 1, 1e6);
    assert!(costs.verify_us(1, 1) < 115.0, "{}", costs.verify_us(1, 1));
    for _ in 0..100 {
        costs.observe(1, 1, 200.0);
    }
    assert!((190.0..210.0).contains(&costs.verify_us(1, 1)));
    assert!((330.0..410.0).contains(&costs.verify_us(8, 1)), "{}", costs.verify_us(8, 1));
}

#[test]
fn learns_the_shape_too() {
    let mut costs = CostProfile::from_measurements(&[(1, 100.0), (8, 200.0)]);
    for _ in 0..2000 {
        costs.observe(1, 1, 100.0);
        costs.observe(8, 1, 400.0);
    }
    assert!((95.0..115.0).contains(&costs.verify_us(1, 1)), "{}", costs.verify_us(1, 1));
    assert!((350.0..410.0).contains(&costs.verify_us(8, 1)), "{}", costs.verify_us(8, 1));
}

/// Steps that draft four rows, with a plain one now and then, on a device where four rows cost 1.3 times one.
#[test]
fn a_few_plain_steps_show_a_wrong_ratio() {
    let mut costs = CostProfile::from_measurements(&[(1, 100.0), (4, 101.0), (8, 150.0)]);
    for _ in 0..8 {
        (0..12).for_each(|_| costs.observe(4, 1, 260.0));
        costs.observe(1, 1, 200.0);
    }
    let ratio = costs.verify_us(4, 1) / costs.verify_us(1, 1);
    assert!((1.25..1.35).contains(&ratio), "{ratio}");
}

/// Compiled lengths: a plain step is padded too.
#[test]
fn plain_steps_are_due_where_they_are_shorter() {
    let costs = || CostProfile::from_measurements(&[(1, 100.0), (4, 130.0), (32, 600.0)]);
    for (mut costs, rows, is_due) in [
        (costs(), 2, true),
        (costs().with_batch_lens(&[4, 32]), 4, false),
        (costs().with_batch_lens(&[4, 32]), 5, true),
        (CostProfile::free_rows(5.0), 8, false),
    ] {
        for _ in 0..50 {
            // Seven steps save an eighth each.
            let n_drafted = (0..100).take_while(|_| !costs.is_plain_due(rows, 2.0)).count();
            assert_eq!(n_drafted, if is_due { 7 } else { 100 }, "{rows} rows, {costs:?}");
            costs.observe(costs.batch_len(1), 1, 100.0);
        }
    }
}

#[test]
fn steps_of_one_length_move_all_lengths_alike() {
    for rows in [1, 4, 8] {
        let mut costs = CostProfile::from_measurements(&[(1, 100.0), (4, 130.0), (8, 150.0)]);
        let us = 1.2 * costs.verify_us(rows, 1);
        (0..300).for_each(|i| costs.observe(rows, 1, us * (0.97 + 0.01 * (i % 7) as f32)));
        let ratios = [4, 8].map(|rows| costs.verify_us(rows, 1) / costs.verify_us(1, 1));
        assert!(
            (ratios[0] - 1.3).abs() < 0.04 && (ratios[1] - 1.5).abs() < 0.05,
            "{ratios:?} from {rows} rows"
        );
    }
}

#[test]
fn one_measured_length_goes_on_in_proportion() {
    let costs = CostProfile::from_measurements(&[(2, 100.0)]);
    assert!((costs.verify_us(8, 1) - 400.0).abs() < 0.1, "{}", costs.verify_us(8, 1));
    assert!((costs.verify_us(80, 1) - 4000.0).abs() < 1.0, "{}", costs.verify_us(80, 1));
}

#[test]
fn learns_the_shape_of_rows_that_were_not_measured() {
    let mut costs = CostProfile::from_measurements(&[(1, 100.0)]);
    let true_us = |rows: usize| 90.0 + 10.0 * rows as f32;
    for _ in 0..20 {
        for rows in [16, 3, 40, 1, 8, 64, 5] {
            costs.observe(rows, 1, true_us(rows));
        }
    }
    for rows in 1..=VERIFY_ROWS_MAX {
        let error = costs.verify_us(rows, 1) / true_us(rows);
        assert!((0.8..1.25).contains(&error), "{rows} rows: {} µs", costs.verify_us(rows, 1));
        assert!(rows == 1 || costs.verify_us(rows - 1, 1) <= costs.verify_us(rows, 1), "{rows} rows");
    }
}

#[test]
fn observed_knots_are_bounded_and_an_interruption_does_not_bend_them_far() {
    let mut costs = CostProfile::from_measurements(&[(1, 100.0)]);
    costs.observe(32, 1, 1e9);
    assert!(costs.verify_us(32, 1) < 3200.0 * 1.5, "{}", costs.verify_us(32, 1));
    assert!((costs.verify_us(1, 1) - 100.0).abs() < 0.1, "{}", costs.verify_us(1, 1));
    for rows in (1..=200).chain([usize::MAX]) {
        costs.observe(rows, 1, 100.0 * rows as f32);
    }
    assert!(costs.n_knots <= 12, "{}", costs.n_knots);
    let mut full =
        CostProfile::from_measurements(&(1..=VERIFY_ROWS_MAX + 5).map(|n| (n, 9.0)).collect::<Vec<_>>());
    (1..100).for_each(|rows| full.observe(rows, 1, 9.0));
    assert_eq!(full.n_knots, VERIFY_ROWS_MAX + 1);
}

#[test]
fn free_rows_stay_free() {
    for mut costs in [CostProfile::free_rows(100.0), CostProfile::from_measurements(&[])] {
        let before = costs.step_us(1, 1);
        for rows in [1, 64, 8, 1000, 1] {
            costs.observe(rows, 1, 50.0 * rows as f32);
        }
        for rows in [2, 32, 64, 65, 1000] {
            assert!((costs.step_us(rows, 1) / before - 1.0).abs() < 1e-6, "{rows} rows");
        }
    }
    assert!((CostProfile::free_rows(f32::NAN).verify_us(9, 1) - 1.0).abs() < 1e-6);
}

#[test]
fn what_was_learnt_of_one_measurement_corrects_another() {
    let measured = [(1, 100.0), (8, 200.0), (64, 900.0)];
    let short = CostProfile::from_measurements(&measured);
    let long = CostProfile::from_measurements(&measured.map(|(rows, us)| (rows, 3.0 * us)));
    let mut learnt = short.clone();
    // Few rows cost twice as much after this change, many rows four times.
    for _ in 0..2000 {
        learnt.observe(1, 1, 200.0);
        learnt.observe(64, 1, 3600.0);
    }
    let correction = CostCorrection::between(&short, &learnt);
    let corrected = long.clone().corrected(&correction);
    assert!((560.0..700.0).contains(&corrected.verify_us(1, 1)), "{}", corrected.verify_us(1, 1));
    assert!((9300.0..11300.0).contains(&corrected.verify_us(64, 1)), "{}", corrected.verify_us(64, 1));
    // Without observations nothing drifts.
    let again = CostCorrection::between(&long, &corrected);
    for (a, b) in again.log_factors.iter().zip(&correction.log_factors) {
        assert!((a - b).abs() < 0.05, "{a} {b}");
    }
    assert_eq!(CostCorrection::between(&short, &short), CostCorrection::none());
    assert_eq!(short.clone().corrected(&CostCorrection::none()).verify_us(5, 1), short.verify_us(5, 1));
}

#[test]
fn corrections_are_bounded() {
    let short = CostProfile::from_measurements(&[(1, 1.0), (8, 2.0)]);
    let long = CostProfile::from_measurements(&[(1, 1e9), (8, 2e9)]);
    assert!(short.clone().corrected(&CostCorrection::between(&short, &long)).verify_us(1, 1) < 17.0);
    assert!(long.clone().corrected(&CostCorrection::between(&long, &short)).verify_us(1, 1) > 0.9e9 / 17.0);
    let free = CostProfile::free_rows(5.0);
    assert_eq!(CostCorrection::between(&free, &free), CostCorrection::none());
}

#[test]
fn many_rows_cost_no_more_to_hold() {
    let mut costs = CostProfile::from_measurements(&[
        (1, 100.0),
        (100_000, 100_100.0),
        (usize::MAX, 1e30),
        (200_000, 1e9),
    ]);
    for _ in 0..100 {
        costs.observe(100_000, 1, 100_100.0);
    }
    assert!((costs.verify_us(65, 1) / 164.0 - 1.0).abs() < 0.01, "{}", costs.verify_us(65, 1));
    assert!((costs.verify_us(200_000, 1) / 200_100.0 - 1.0).abs() < 0.01);
    let costs = CostProfile::from_measurements(&[(1, 100.0)]).with_batch_lens(&[100_000, usize::MAX]);
    assert_eq!(costs.verify_us(1, 1), costs.verify_us(100_000, 1));
}

/// Cost of a chain on the devices below.
fn chain_us(rows: usize) -> f32 {
    970.0 + 30.0 * rows as f32
}

fn measured_chains() -> CostProfile {
    let measured = [1, 2, 4, 8, 16, 32, 64].map(|rows| (rows, chain_us(rows)));
    CostProfile::from_measurements(&measured).with_leaf_prices()
}

#[test]
fn without_prices_leaves_cost_nothing_and_nothing_is_learnt_of_them() {
    let mut costs = CostProfile::from_measurements(&[(1, chain_us(1)), (16, chain_us(16))]);
    (0..200).for_each(|step| costs.observe(16, 1 + step % 2 * 7, chain_us(16) * (1 + step % 2) as f32));
    assert_eq!(costs.verify_us(16, 8), costs.verify_us(16, 1));
    assert_eq!(CostProfile::free_rows(5.0).with_leaf_prices().verify_us(16, 8), 5.0);
}

/// Shapes of a builder: nothing drafted, a path, a tree.
const SHAPES: [(usize, usize); 9] =
    [(1, 1), (12, 3), (6, 1), (30, 10), (1, 1), (9, 4), (20, 1), (17, 8), (4, 2)];

/// Runs steps of these shapes in turn, on a device with a leaf cost of `per_leaf` one-row steps and all times
/// multiplied by `heat`.
fn run(costs: &mut CostProfile, n_steps: usize, per_leaf: f32, heat: f32) {
    for (rows, leaves) in SHAPES.into_iter().cycle().take(n_steps) {
        costs.observe(rows, leaves, true_us(rows, leaves, per_leaf, heat));
    }
}

/// The same with an error of up to 10 % in every step, and one interruption in fifty steps.
fn run_with_noise(costs: &mut CostProfile, n_steps: usize, per_leaf: f32, heat: f32) {
    let mut x = 1u64;
    for step in 0..n_steps {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let noise = 0.9 + 0.2 * (x >> 40) as f32 / (1 << 24) as f32;
        let interruption = if (x >> 33).is_multiple_of(50) { 3.0 } else { 1.0 };
        let (rows, leaves) = SHAPES[step % SHAPES.len()];
        costs.observe(rows, leaves, true_us(rows, leaves, per_leaf, heat) * noise * interruption);
    }
}

fn true_us(rows: usize, leaves: usize, per_leaf: f32, heat: f32) -> f32 {
    heat * (chain_us(rows) + per_leaf * chain_us(1) * (leaves - 1) as f32)
}

/// The profile's cost of a leaf of this shape, in one-row steps.
fn price(costs: &CostProfile, rows: usize, leaves: usize) -> f32 {
    let added_us = costs.verify_us(rows, leaves) - costs.verify_us(rows, 1);
    added_us / (costs.verify_us(1, 1) * (leaves - 1) as f32)
}

#[test]
fn what_leaves_cost_is_learnt() {
    for per_leaf in [0.0, 0.01, 0.05, 0.2] {
        let (mut quiet, mut noisy) = (measured_chains(), measured_chains());
        run(&mut quiet, 6000, per_leaf, 1.0);
        run_with_noise(&mut noisy, 1500, per_leaf, 1.0);
        for (rows, leaves) in SHAPES.into_iter().chain([(12, 6), (32, 16), (8, 2), (24, 12)]) {
            // Shapes that were never seen follow from others, and the first plain steps take a part of dear leaves for the cost of rows.
            let [quiet_max, noisy_max] =
                if SHAPES.contains(&(rows, leaves)) { [0.03, 0.16] } else { [0.07, 0.18] };
            for (costs, error_max) in [(&quiet, quiet_max), (&noisy, noisy_max)] {
                // In one-row steps: the newest interruptions affect all times alike.
                let learnt = costs.verify_us(rows, leaves) / costs.verify_us(1, 1);
                let ratio = learnt / true_us(rows, leaves, per_leaf, 1.0) * chain_us(1);
                assert!(
                    (ratio - 1.0).abs() < error_max,
                    "{rows} rows, {leaves} leaves at {per_leaf}: {ratio}"
                );
            }
        }
    }
}

#[test]
fn a_longer_context_is_not_taken_for_the_price_of_leaves() {
    for n_steps in [10, 50, 200] {
        let mut costs = measured_chains();
        run_with_noise(&mut costs, n_steps, 0.0, 2.0);
        for (rows, leaves) in [(12, 3), (30, 10), (17, 8)] {
            let price = price(&costs, rows, leaves);
            assert!(price < 0.006, "{rows} rows, {leaves} leaves: {price} after {n_steps} steps");
        }
    }
}

#[test]
fn leaves_that_were_never_seen_cost_a_little_and_less_with_evidence() {
    let mut costs = measured_chains();
    for (rows, leaves) in [(2, 2), (16, 5), (32, 16), (64, 63)] {
        assert!((costs.verify_us(rows, 1) / chain_us(rows) - 1.0).abs() < 1e-3);
        assert!((price(&costs, rows, leaves) * 1024.0 - 1.0).abs() < 0.05, "{rows} rows, {leaves} leaves");
    }
    let prices = |costs: &CostProfile| [(16, 8), (16, 4), (32, 8), (64, 32)].map(|(r, l)| price(costs, r, l));
    let mut before = prices(&costs);
    for _ in 0..5 {
        // A tree takes as long as a chain.
        (0..20).for_each(|step| costs.observe(16, if step % 2 == 0 { 1 } else { 8 }, chain_us(16)));
        let after = prices(&costs);
        assert!(before.iter().zip(&after).all(|(before, after)| after < before), "{before:?} {after:?}");
        let [seen, fewer_leaves, more_rows, far] = after;
        assert!(seen < fewer_leaves.min(more_rows) && far > fewer_leaves.max(more_rows), "{after:?}");
        before = after;
    }
    assert!(before[0] < 0.2 / 1024.0, "{before:?}");
}

#[test]
fn an_unseen_shape_is_no_cheaper_by_the_leaf_than_the_nearest_seen() {
    let mut costs = measured_chains();
    for _ in 0..2000 {
        for (rows, leaves, per_leaf) in [(1, 1, 0.0), (8, 4, 0.02), (8, 1, 0.0), (32, 16, 0.06)] {
            costs.observe(rows, leaves, true_us(rows, leaves, per_leaf, 1.0));
        }
    }
    let near_one = [(8, 2), (4, 2), (4, 4), (8, 8), (2, 2)].map(|(rows, leaves)| price(&costs, rows, leaves));
    assert!(near_one.iter().all(|&near| near >= 0.98 * price(&costs, 8, 4)), "{near_one:?}");
    let near_other =
        [(64, 16), (32, 32), (64, 64), (64, 32)].map(|(rows, leaves)| price(&costs, rows, leaves));
    assert!(near_other.iter().all(|&near| near >= 0.98 * price(&costs, 32, 16)), "{near_other:?}");
}

#[test]
fn leaves_that_looked_too_dear_are_tried_again() {
    let mut costs = measured_chains();
    run(&mut costs, 1000, 0.5, 1.0);
    let dear = price(&costs, 12, 3);
    assert!(dear > 0.2, "{dear}");
    let plain_us = costs.verify_us(1, 1);
    (0..60).for_each(|_| costs.observe(1, 1, plain_us));
    assert!(price(&costs, 12, 3) > 0.95 * dear, "a while without leaves tells nothing of them");
    (0..1000).for_each(|_| costs.observe(1, 1, plain_us));
    assert!(price(&costs, 12, 3) < 0.05 * dear, "{} of {dear}", price(&costs, 12, 3));
}

#[test]
fn padding_counts_as_rows_and_not_as_leaves() {
    let mut costs = measured_chains().with_batch_lens(&[1, 8, 32]);
    run(&mut costs, 500, 0.1, 1.0);
    for leaves in 1..4 {
        assert_eq!(costs.verify_us(4, leaves), costs.verify_us(8, leaves));
        assert!(costs.verify_us(8, leaves) < costs.verify_us(9, leaves));
        assert!(costs.verify_us(4, leaves) < costs.verify_us(4, leaves + 1));
    }
}

#[test]
fn a_length_that_takes_next_to_nothing_beside_another_takes_something() {
    let costs = CostProfile::from_measurements(&[(1, 487_944.7), (4, 6.9e-9)]).with_batch_lens(&[4]);
    assert!(costs.verify_us(1, 0) > 0.0);
}

/// Any rows, leaves and time, including invalid ones.
fn any_step() -> impl Strategy<Value = (usize, usize, f32)> {
    let count = || prop_oneof![0usize..70, Just(usize::MAX), any::<usize>()];
    (count(), count(), prop_oneof![1.0f32..1e6, any::<f32>(), Just(f32::MAX), Just(f32::MIN_POSITIVE)])
}

proptest! {
    #[test]
    fn whatever_is_observed_costs_are_positive_and_rise_with_rows_and_with_leaves(
        measured in prop::collection::vec((0usize..100, prop_oneof![1.0f32..1e6, any::<f32>()]), 0..6),
        steps in prop::collection::vec(any_step(), 0..200),
        (stairs, prices) in any::<(bool, bool)>(),
    ) {
        let mut costs = CostProfile::from_measurements(&measured);
        if prices {
            costs = costs.with_leaf_prices();
        }
        if stairs {
            costs = costs.with_batch_lens(&[4, 16, 100, usize::MAX]);
        }
        for (rows, leaves, us) in steps {
            costs.observe(rows, leaves, us);
        }
        // Rounding may change the last few units in the last place.
        let rises = |less: f32, more: f32| less <= more * (1.0 + 1e-5);
        for rows in (1..=70).chain([1000, usize::MAX - 1]) {
            for leaves in (0..rows.min(70)).chain([rows, usize::MAX - 1]) {
                let us = costs.verify_us(rows, leaves);
                prop_assert!(us.is_finite() && us > 0.0, "{rows} rows, {leaves} leaves: {us}");
                prop_assert!(rises(us, costs.verify_us(rows, leaves + 1)), "{rows} rows, {leaves} leaves");
                prop_assert!(rises(us, costs.verify_us(rows + 1, leaves)), "{rows} rows, {leaves} leaves");
            }
        }
    }
}

#[test]
fn hidden_drafting_is_kept_beside_other_times_and_not_learnt_where_rows_are_free() {
    let measured = CostProfile::from_measurements(&[(1, 100.0), (8, 250.0)]);
    let mut learnt = measured.clone();
    (0..40).for_each(|_| learnt.observe_hidden(30.0));
    let later = measured.clone().corrected(&CostCorrection::between(&measured, &learnt));
    let fixed = CostProfile::free_rows(100.0).with_hidden_of(&learnt);
    for costs in [&learnt, &later, &fixed, &learnt.clone().with_batch_lens(&[8])] {
        assert!((costs.added_us(50.0) - 35.0).abs() < 0.1 && costs.added_us(28.0) == 14.0);
    }
    assert_eq!(measured.added_us(50.0), 50.0);
    let mut free = CostProfile::free_rows(100.0);
    free.observe_hidden(30.0);
    learnt.observe_hidden(f32::NAN);
    assert_eq!((free.added_us(50.0), learnt.added_us(28.0)), (50.0, 14.0));
}

#[test]
fn scaled_costs_scale_back() {
    let costs = CostProfile::from_measurements(&[(1, 100.0), (8, 200.0), (32, 700.0)]);
    let factor = |rows: usize| 1.0 + rows as f32 / 10.0;
    let scaled = costs.clone().scaled(factor);
    assert!((scaled.verify_us(8, 1) / costs.verify_us(8, 1) - 1.8).abs() < 1e-3);
    let back = scaled.scaled(|rows| 1.0 / factor(rows));
    for rows in [1, 8, 32] {
        assert!((back.verify_us(rows, 1) / costs.verify_us(rows, 1) - 1.0).abs() < 1e-3, "{rows}");
    }
    // Factors that are no numbers change nothing, and free rows stay free.
    assert_eq!(costs.clone().scaled(|_| f32::NAN).verify_us(8, 1), costs.verify_us(8, 1));
    assert_eq!(CostProfile::free_rows(5.0).scaled(factor).verify_us(8, 1), 5.0);
}
