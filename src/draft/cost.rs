//! What a step costs, as measured.

/// Rows of the longest verification batch, the root included.
pub const VERIFY_ROWS_MAX: usize = 64;

/// The time of a verification step by its number of rows, and of drafting.
///
/// Measured when the model is loaded, never a formula: where memory bandwidth binds, more rows are nearly free; where
/// arithmetic binds, each costs. Between measured rows the time is interpolated, beyond them continued with the last
/// slope, or in proportion to the rows where one number of them only was measured. A larger batch is never cheaper
/// (noise in the measurements is levelled by a monotone envelope). A backend with compiled batch lengths makes the
/// profile a staircase: see [`with_batch_lens`](Self::with_batch_lens).
///
/// Later measurements correct it slowly ([`observe`](Self::observe)): the cost grows with the context and with heat.
/// What was not measured near a number of rows is learnt from the steps that have it.
///
/// Size: about 2 kB, whatever was measured.
#[derive(Clone, Debug)]
pub struct CostProfile {
    /// Ascending by rows, the first `n_knots` in use: one for each number of rows up to `VERIFY_ROWS_MAX` at most, and one
    /// larger.
    knots: [Knot; VERIFY_ROWS_MAX + 1],
    n_knots: usize,
    /// Whether every batch costs the same, by decree.
    free_rows: bool,
    /// Batch lengths of the backend, ascending; empty where it takes any.
    batch_lens: Vec<usize>,
    /// `verify_us` of 1 ..= `VERIFY_ROWS_MAX` rows.
    table: [f32; VERIFY_ROWS_MAX],
    draft_us_per_node: f32,
}

/// A number of rows whose time is known.
#[derive(Clone, Copy, Default, Debug)]
struct Knot {
    rows: usize,
    /// Logarithm of the time in µs.
    log_us: f32,
    /// Steps from which the knot still learns fast.
    n_young: u8,
}

/// How much of an unexpected time is taken as a change of everything (heat, a longer context) …
const GLOBAL_RATE: f32 = 1.0 / 8.0;
/// … and how much as one of this batch length alone. Slow, so that noise does not bend the profile's shape.
const LOCAL_RATE: f32 = 1.0 / 64.0;
/// A knot that was put where none was near starts from a guess, so it learns this fast …
const YOUNG_RATE: f32 = 1.0 / 2.0;
/// … for this many steps, from which nothing else is learnt: together enough for a guess that was wrong by 16×.
const N_YOUNG: u8 = 8;
/// Times off by more than e^0.7 ≈ 2× count as 2×: a step that the system interrupted teaches little.
const LOG_ERROR_MAX: f32 = 0.7;
/// Cost of asking the automata for one tree node, µs, in cold caches; in warm ones it is a third (`benches/drafting.rs`).
const DRAFT_US_PER_NODE: f32 = 1.5;

/// By how much the steps of a device have turned out slower or faster than measured ahead, by batch length: heat, a battery
/// that saves, another program. Logarithms of factors.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CostCorrection([f32; VERIFY_ROWS_MAX]);

/// Factors beyond e^2.8 ≈ 16× are no state of the device that was measured.
const LOG_CORRECTION_MAX: f32 = 2.8;

impl CostCorrection {
    /// Nothing learnt.
    pub(crate) fn none() -> Self {
        Self([0.0; VERIFY_ROWS_MAX])
    }

    /// What turns `measured` into `learnt`, both without padding of their batches.
    pub(crate) fn between(measured: &CostProfile, learnt: &CostProfile) -> Self {
        Self(std::array::from_fn(|i| {
            let factor = learnt.interpolate(i + 1) / measured.interpolate(i + 1);
            factor.ln().clamp(-LOG_CORRECTION_MAX, LOG_CORRECTION_MAX)
        }))
    }
}

impl CostProfile {
    /// A profile from measured pairs of rows and µs; several of the same rows are averaged, zero rows are left out, and of
    /// more than [`VERIFY_ROWS_MAX`] rows the fewest are kept, for the slope. With no usable pair at all rows are
    /// [free](Self::free_rows).
    pub fn from_measurements(measurements: &[(usize, f32)]) -> Self {
        let mut pairs: Vec<(usize, f32)> = measurements
            .iter()
            .filter(|(rows, us)| *rows > 0 && us.is_finite() && *us > 0.0)
            .map(|&(rows, us)| (rows, us.ln()))
            .collect();
        pairs.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut profile = Self::free_rows(1.0);
        let groups = pairs.chunk_by(|a, b| a.0 == b.0);
        for (i, (group, knot)) in groups.zip(&mut profile.knots).enumerate() {
            let log_us = group.iter().map(|pair| pair.1).sum::<f32>() / group.len() as f32;
            *knot = Knot { rows: group[0].0, log_us, n_young: 0 };
            profile.n_knots = i + 1;
            profile.free_rows = false;
            profile.draft_us_per_node = DRAFT_US_PER_NODE;
            if knot.rows > VERIFY_ROWS_MAX {
                break;
            }
        }
        profile.fill_table();
        profile
    }

    /// A profile by which a step takes `us` whatever its rows, and drafting no time: every draft pays. It stays so,
    /// whatever is observed. For tests and benchmarks that want full trees, the same ones in every run, and for an engine
    /// that only scores, so that nothing is measured.
    pub fn free_rows(us: f32) -> Self {
        let us = if us.is_finite() && us > 0.0 { us } else { 1.0 };
        let mut knots = [Knot::default(); VERIFY_ROWS_MAX + 1];
        knots[0] = Knot { rows: 1, log_us: us.ln(), n_young: 0 };
        CostProfile {
            knots,
            n_knots: 1,
            free_rows: true,
            batch_lens: Vec::new(),
            table: [us; VERIFY_ROWS_MAX],
            draft_us_per_node: 0.0,
        }
    }

    /// The same profile for a backend that runs these batch lengths only: a batch costs what the next length that holds it does.
    pub fn with_batch_lens(mut self, batch_lens: &[usize]) -> Self {
        self.batch_lens = batch_lens.iter().copied().filter(|&len| len > 0).collect();
        self.batch_lens.sort_unstable();
        self.fill_table();
        self
    }

    /// The same profile with its times corrected.
    pub(crate) fn corrected(mut self, CostCorrection(log_factors): &CostCorrection) -> Self {
        for knot in &mut self.knots[..self.n_knots] {
            knot.log_us += log_factors[knot.rows.min(VERIFY_ROWS_MAX) - 1];
        }
        self.fill_table();
        self
    }

    /// The same profile with another cost of asking the sources for one tree node, in µs.
    pub fn with_draft_us_per_node(mut self, us: f32) -> Self {
        self.draft_us_per_node = us.max(0.0);
        self
    }

    /// The batch length that a draft of `rows` rows is padded to: itself where the backend takes any.
    pub fn batch_len(&self, rows: usize) -> usize {
        let next = self.batch_lens.partition_point(|&len| len < rows);
        self.batch_lens.get(next).copied().unwrap_or(rows)
    }

    /// Expected time of verifying `rows` rows, in µs.
    pub fn verify_us(&self, rows: usize) -> f32 {
        let rows = rows.max(1);
        match self.table.get(rows - 1) {
            Some(&us) => us,
            None => self.interpolate(self.batch_len(rows)).max(self.table[VERIFY_ROWS_MAX - 1]),
        }
    }

    /// Expected time of a step whose tree has `rows` rows: `t_draft + t_verify` (Lever, eq. 4).
    pub fn step_us(&self, rows: usize) -> f32 {
        self.draft_us_per_node * (rows.max(1) - 1) as f32 + self.verify_us(rows)
    }

    /// Learns from a measured step: how everything has changed, and a little of the shape; more of it where nothing was
    /// measured within a factor of two of these rows. Cost: about 1 µs; allocates nothing.
    pub fn observe(&mut self, rows: usize, us: f32) {
        if rows == 0 || self.free_rows || !us.is_finite() || us <= 0.0 {
            return;
        }
        let rows = self.batch_len(rows);
        let error = (us.ln() - self.interpolate(rows).ln()).clamp(-LOG_ERROR_MAX, LOG_ERROR_MAX);
        self.ensure_knot_near(rows);
        let (left, right, weight) = self.neighbours(rows);
        let knots = &mut self.knots[..self.n_knots];
        let nearest = &mut knots[if weight < 0.5 { left } else { right }];
        if nearest.n_young > 0 {
            nearest.n_young -= 1;
            nearest.log_us += YOUNG_RATE * error;
        } else {
            for knot in knots.iter_mut() {
                knot.log_us += GLOBAL_RATE * error;
            }
            knots[left].log_us += LOCAL_RATE * error * (1.0 - weight);
            knots[right].log_us += LOCAL_RATE * error * weight;
        }
        self.fill_table();
    }

    /// Puts a knot at `rows`, on the line as it is, where there is none within a factor of two.
    fn ensure_knot_near(&mut self, rows: usize) {
        let is_near = |knot: &Knot| knot.rows < 2 * rows && rows < knot.rows.saturating_mul(2);
        if self.free_rows || rows > VERIFY_ROWS_MAX || self.knots().iter().any(is_near) {
            return;
        }
        let knot = Knot { rows, log_us: self.interpolate(rows).ln(), n_young: N_YOUNG };
        let at = self.knots().partition_point(|knot| knot.rows < rows);
        // There is room: no two knots have the same rows.
        self.n_knots += 1;
        self.knots[at..self.n_knots].rotate_right(1);
        self.knots[at] = knot;
    }

    fn knots(&self) -> &[Knot] {
        &self.knots[..self.n_knots]
    }

    /// The knots around `rows` and the weight of the right one: all of it beyond the last knot.
    fn neighbours(&self, rows: usize) -> (usize, usize, f32) {
        let knots = self.knots();
        let right = knots.partition_point(|knot| knot.rows < rows).min(knots.len() - 1);
        let left = right.saturating_sub(1);
        let span = knots[right].rows - knots[left].rows;
        if span == 0 || rows <= knots[left].rows {
            return (left, left, 0.0);
        }
        (left, right, ((rows - knots[left].rows) as f32 / span as f32).min(1.0))
    }

    fn interpolate(&self, rows: usize) -> f32 {
        let us = |knot: &Knot| knot.log_us.exp();
        let [.., last] = self.knots() else { unreachable!("a profile has a knot") };
        if rows <= last.rows {
            let (left, right, weight) = self.neighbours(rows);
            let (from, to) = (us(&self.knots[left]), us(&self.knots[right]));
            return from + weight * (to - from);
        }
        // Beyond the last knot: the slope of the last two, or time in proportion where there is one only.
        let slope = match self.knots() {
            _ if self.free_rows => 0.0,
            [.., before, last] => (us(last) - us(before)) / (last.rows - before.rows) as f32,
            _ => us(last) / last.rows as f32,
        };
        us(last) + slope.max(0.0) * (rows - last.rows) as f32
    }

    /// Fills the table: the mean of the two tightest monotone envelopes (the running maximum from the left, the running
    /// minimum from the right).
    fn fill_table(&mut self) {
        let raw: [f32; VERIFY_ROWS_MAX] = std::array::from_fn(|i| self.interpolate(self.batch_len(i + 1)));
        let mut lowest = f32::INFINITY;
        for (us, &raw) in self.table.iter_mut().zip(&raw).rev() {
            lowest = lowest.min(raw);
            *us = lowest;
        }
        let mut highest = 0.0f32;
        for (us, &raw) in self.table.iter_mut().zip(&raw) {
            highest = highest.max(raw);
            *us = 0.5 * (*us + highest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpolates_and_goes_on_with_the_last_slope() {
        let costs = CostProfile::from_measurements(&[(1, 100.0), (4, 130.0), (8, 250.0)]);
        assert!((costs.verify_us(1) - 100.0).abs() < 0.1);
        assert!((costs.verify_us(2) - 110.0).abs() < 0.1);
        assert!((costs.verify_us(6) - 190.0).abs() < 0.1);
        assert!((costs.verify_us(12) - 370.0).abs() < 0.1);
    }

    #[test]
    fn noise_never_makes_a_larger_batch_cheaper() {
        let costs =
            CostProfile::from_measurements(&[(1, 100.0), (2, 140.0), (3, 120.0), (8, 110.0), (16, 300.0)]);
        for rows in 1..40 {
            assert!(costs.verify_us(rows) <= costs.verify_us(rows + 1), "{rows} rows");
        }
    }

    #[test]
    fn compiled_lengths_make_a_staircase() {
        let costs =
            CostProfile::from_measurements(&[(1, 100.0), (4, 130.0), (8, 250.0)]).with_batch_lens(&[8, 1, 4]);
        assert_eq!(costs.verify_us(2), costs.verify_us(4));
        assert!(costs.verify_us(4) < costs.verify_us(5));
        assert_eq!(costs.batch_len(5), 8);
        assert_eq!(costs.batch_len(9), 9);
    }

    #[test]
    fn unusable_measurements_are_left_out() {
        for pairs in [&[][..], &[(0, 5.0)], &[(1, f32::NAN), (2, -1.0), (3, f32::INFINITY)]] {
            let mut costs = CostProfile::from_measurements(pairs);
            costs.observe(0, 1.0);
            costs.observe(3, f32::NAN);
            assert!((costs.verify_us(1) - 1.0).abs() < 1e-6);
            assert!((costs.verify_us(100) - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn learns_heat_and_ignores_an_interruption() {
        let mut costs = CostProfile::from_measurements(&[(1, 100.0), (8, 200.0)]);
        costs.observe(1, 1e6);
        assert!(costs.verify_us(1) < 115.0, "{}", costs.verify_us(1));
        for _ in 0..100 {
            costs.observe(1, 200.0);
        }
        assert!((190.0..210.0).contains(&costs.verify_us(1)));
        assert!((330.0..410.0).contains(&costs.verify_us(8)), "{}", costs.verify_us(8));
    }

    #[test]
    fn learns_the_shape_too() {
        let mut costs = CostProfile::from_measurements(&[(1, 100.0), (8, 200.0)]);
        for _ in 0..2000 {
            costs.observe(1, 100.0);
            costs.observe(8, 400.0);
        }
        assert!((95.0..115.0).contains(&costs.verify_us(1)), "{}", costs.verify_us(1));
        assert!((350.0..410.0).contains(&costs.verify_us(8)), "{}", costs.verify_us(8));
    }

    #[test]
    fn one_measured_length_goes_on_in_proportion() {
        let costs = CostProfile::from_measurements(&[(2, 100.0)]);
        assert!((costs.verify_us(8) - 400.0).abs() < 0.1, "{}", costs.verify_us(8));
        assert!((costs.verify_us(80) - 4000.0).abs() < 1.0, "{}", costs.verify_us(80));
    }

    #[test]
    fn learns_the_shape_of_rows_that_were_not_measured() {
        let mut costs = CostProfile::from_measurements(&[(1, 100.0)]);
        let true_us = |rows: usize| 90.0 + 10.0 * rows as f32;
        for _ in 0..20 {
            for rows in [16, 3, 40, 1, 8, 64, 5] {
                costs.observe(rows, true_us(rows));
            }
        }
        for rows in 1..=VERIFY_ROWS_MAX {
            let error = costs.verify_us(rows) / true_us(rows);
            assert!((0.8..1.25).contains(&error), "{rows} rows: {} µs", costs.verify_us(rows));
            assert!(rows == 1 || costs.verify_us(rows - 1) <= costs.verify_us(rows), "{rows} rows");
        }
    }

    #[test]
    fn observed_knots_are_bounded_and_an_interruption_does_not_bend_them_far() {
        let mut costs = CostProfile::from_measurements(&[(1, 100.0)]);
        costs.observe(32, 1e9);
        assert!(costs.verify_us(32) < 3200.0 * 1.5, "{}", costs.verify_us(32));
        assert!((costs.verify_us(1) - 100.0).abs() < 0.1, "{}", costs.verify_us(1));
        for rows in (1..=200).chain([usize::MAX]) {
            costs.observe(rows, 100.0 * rows as f32);
        }
        assert!(costs.n_knots <= 12, "{}", costs.n_knots);
        let mut full =
            CostProfile::from_measurements(&(1..=VERIFY_ROWS_MAX + 5).map(|n| (n, 9.0)).collect::<Vec<_>>());
        (1..100).for_each(|rows| full.observe(rows, 9.0));
        assert_eq!(full.n_knots, VERIFY_ROWS_MAX + 1);
    }

    #[test]
    fn free_rows_stay_free() {
        for mut costs in [CostProfile::free_rows(100.0), CostProfile::from_measurements(&[])] {
            let before = costs.step_us(1);
            for rows in [1, 64, 8, 1000, 1] {
                costs.observe(rows, 50.0 * rows as f32);
            }
            for rows in [2, 32, 64, 65, 1000] {
                assert!((costs.step_us(rows) / before - 1.0).abs() < 1e-6, "{rows} rows");
            }
        }
        assert!((CostProfile::free_rows(f32::NAN).verify_us(9) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn what_was_learnt_of_one_measurement_corrects_another() {
        let measured = [(1, 100.0), (8, 200.0), (64, 900.0)];
        let short = CostProfile::from_measurements(&measured);
        let long = CostProfile::from_measurements(&measured.map(|(rows, us)| (rows, 3.0 * us)));
        let mut learnt = short.clone();
        // Few rows cost twice as much by now, many rows four times.
        for _ in 0..2000 {
            learnt.observe(1, 200.0);
            learnt.observe(64, 3600.0);
        }
        let correction = CostCorrection::between(&short, &learnt);
        let corrected = long.clone().corrected(&correction);
        assert!((560.0..700.0).contains(&corrected.verify_us(1)), "{}", corrected.verify_us(1));
        assert!((9300.0..11300.0).contains(&corrected.verify_us(64)), "{}", corrected.verify_us(64));
        // Where nothing is observed, nothing drifts.
        let again = CostCorrection::between(&long, &corrected);
        for (a, b) in again.0.iter().zip(&correction.0) {
            assert!((a - b).abs() < 0.05, "{a} {b}");
        }
        assert_eq!(CostCorrection::between(&short, &short), CostCorrection::none());
        assert_eq!(short.clone().corrected(&CostCorrection::none()).verify_us(5), short.verify_us(5));
    }

    #[test]
    fn corrections_are_bounded() {
        let short = CostProfile::from_measurements(&[(1, 1.0), (8, 2.0)]);
        let long = CostProfile::from_measurements(&[(1, 1e9), (8, 2e9)]);
        assert!(short.clone().corrected(&CostCorrection::between(&short, &long)).verify_us(1) < 17.0);
        assert!(long.clone().corrected(&CostCorrection::between(&long, &short)).verify_us(1) > 0.9e9 / 17.0);
        let free = CostProfile::free_rows(5.0);
        assert_eq!(CostCorrection::between(&free, &free), CostCorrection::none());
    }

    #[test]
    fn many_rows_cost_no_more_to_hold() {
        let started = std::time::Instant::now();
        let mut costs = CostProfile::from_measurements(&[
            (1, 100.0),
            (100_000, 100_100.0),
            (usize::MAX, 1e30),
            (200_000, 1e9),
        ]);
        for _ in 0..100 {
            costs.observe(100_000, 100_100.0);
        }
        assert!((costs.verify_us(65) / 164.0 - 1.0).abs() < 0.01, "{}", costs.verify_us(65));
        assert!((costs.verify_us(200_000) / 200_100.0 - 1.0).abs() < 0.01);
        let costs = CostProfile::from_measurements(&[(1, 100.0)]).with_batch_lens(&[100_000, usize::MAX]);
        assert_eq!(costs.verify_us(1), costs.verify_us(100_000));
        assert!(started.elapsed().as_secs() < 5);
    }
}
