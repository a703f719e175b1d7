//! What a step costs, as measured.

/// The time of a verification step by its number of rows, and of drafting.
///
/// Measured when the model is loaded, never a formula: where memory bandwidth binds, more rows are nearly free; where
/// arithmetic binds, each costs. Between measured rows the time is interpolated, beyond them continued with the last
/// slope. A larger batch is never cheaper (noise in the measurements is levelled by a monotone envelope). A backend
/// with compiled batch lengths makes the profile a staircase: see [`with_batch_lens`](Self::with_batch_lens).
///
/// Later measurements correct it slowly ([`observe`](Self::observe)): the cost grows with the context and with heat.
#[derive(Clone, Debug)]
pub struct CostProfile {
    /// Measured rows, ascending. Shape `[n_knots]`.
    knots: Vec<usize>,
    /// Logarithm of the time in µs at each knot. Shape `[n_knots]`.
    log_us: Vec<f32>,
    /// Batch lengths of the backend, ascending; empty where it takes any.
    batch_lens: Vec<usize>,
    /// `verify_us` of 1 ..= table.len() rows.
    table: Vec<f32>,
    draft_us_per_node: f32,
}

/// How much of an unexpected time is taken as a change of everything (heat, a longer context) …
const GLOBAL_RATE: f32 = 1.0 / 8.0;
/// … and how much as one of this batch length alone. Slow, so that noise does not bend the profile's shape.
const LOCAL_RATE: f32 = 1.0 / 64.0;
/// Times off by more than e^0.7 ≈ 2× count as 2×: a step that the system interrupted teaches little.
const LOG_ERROR_MAX: f32 = 0.7;
/// Cost of asking the automata for one tree node, µs; measured by `benches/drafting.rs`.
const DRAFT_US_PER_NODE: f32 = 1.5;

impl CostProfile {
    /// A profile from measured pairs of rows and µs; several of the same rows are averaged, zero rows are left out. With no
    /// usable pair at all every step costs the same, so drafting is free.
    pub fn from_measurements(measurements: &[(usize, f32)]) -> Self {
        let mut pairs: Vec<(usize, f32)> = measurements
            .iter()
            .filter(|(rows, us)| *rows > 0 && us.is_finite() && *us > 0.0)
            .map(|&(rows, us)| (rows, us.ln()))
            .collect();
        pairs.sort_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let mut profile = CostProfile {
            knots: Vec::new(),
            log_us: Vec::new(),
            batch_lens: Vec::new(),
            table: Vec::new(),
            draft_us_per_node: DRAFT_US_PER_NODE,
        };
        for group in pairs.chunk_by(|a, b| a.0 == b.0) {
            profile.knots.push(group[0].0);
            profile.log_us.push(group.iter().map(|pair| pair.1).sum::<f32>() / group.len() as f32);
        }
        if profile.knots.is_empty() {
            profile.knots.push(1);
            profile.log_us.push(0.0);
        }
        profile.fill_table();
        profile
    }

    /// The same profile for a backend that runs these batch lengths only: a batch costs what the next length that holds it does.
    pub fn with_batch_lens(mut self, batch_lens: &[usize]) -> Self {
        self.batch_lens = batch_lens.iter().copied().filter(|&len| len > 0).collect();
        self.batch_lens.sort_unstable();
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
        self.batch_lens.iter().copied().find(|&len| len >= rows).unwrap_or(rows)
    }

    /// Expected time of verifying `rows` rows, in µs.
    pub fn verify_us(&self, rows: usize) -> f32 {
        let rows = rows.max(1);
        match self.table.get(rows - 1) {
            Some(&us) => us,
            None => self.interpolate(self.batch_len(rows)).max(self.table[self.table.len() - 1]),
        }
    }

    /// Expected time of a step whose tree has `rows` rows: `t_draft + t_verify` (Lever, eq. 4).
    pub fn step_us(&self, rows: usize) -> f32 {
        self.draft_us_per_node * (rows.max(1) - 1) as f32 + self.verify_us(rows)
    }

    /// Learns from a measured step. O(table).
    pub fn observe(&mut self, rows: usize, us: f32) {
        if rows == 0 || !us.is_finite() || us <= 0.0 {
            return;
        }
        let rows = self.batch_len(rows);
        let error = (us.ln() - self.interpolate(rows).ln()).clamp(-LOG_ERROR_MAX, LOG_ERROR_MAX);
        let (left, right, weight) = self.neighbours(rows);
        for log_us in &mut self.log_us {
            *log_us += GLOBAL_RATE * error;
        }
        self.log_us[left] += LOCAL_RATE * error * (1.0 - weight);
        self.log_us[right] += LOCAL_RATE * error * weight;
        self.fill_table();
    }

    /// The knots around `rows` and the weight of the right one, below 0 or above 1 only where there is none to that side.
    fn neighbours(&self, rows: usize) -> (usize, usize, f32) {
        let right = self.knots.partition_point(|&knot| knot < rows).min(self.knots.len() - 1);
        let left = right.saturating_sub(1);
        let span = self.knots[right] - self.knots[left];
        if span == 0 || rows <= self.knots[left] {
            return (left, left, 0.0);
        }
        (left, right, ((rows - self.knots[left]) as f32 / span as f32).min(1.0))
    }

    fn interpolate(&self, rows: usize) -> f32 {
        let (left, right, weight) = self.neighbours(rows);
        let (from, to) = (self.log_us[left].exp(), self.log_us[right].exp());
        let last = self.knots[self.knots.len() - 1];
        if rows <= last {
            return from + weight * (to - from);
        }
        // Beyond the last knot: the slope of the last two, or time in proportion where there is one only.
        let before = self.knots.len().saturating_sub(2);
        let end = self.log_us[self.knots.len() - 1].exp();
        if before + 1 == self.knots.len() {
            return end;
        }
        let slope = (end - self.log_us[before].exp()) / (last - self.knots[before]) as f32;
        end + slope.max(0.0) * (rows - last) as f32
    }

    /// Fills the table up to the largest measured or compiled length: the mean of the two tightest monotone envelopes (the
    /// running maximum from the left, the running minimum from the right).
    fn fill_table(&mut self) {
        let last = self.knots[self.knots.len() - 1].max(self.batch_lens.last().copied().unwrap_or(1));
        self.table.clear();
        for rows in 1..=last {
            let us = self.interpolate(self.batch_len(rows));
            self.table.push(us);
        }
        let mut highest = 0.0f32;
        for i in 0..last {
            // O(last²) altogether, and rows are at most a few dozen.
            let lowest = self.table[i..].iter().copied().fold(f32::INFINITY, f32::min);
            highest = highest.max(self.table[i]);
            self.table[i] = 0.5 * (highest + lowest);
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
}
