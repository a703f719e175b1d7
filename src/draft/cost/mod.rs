//! Measured costs of a step.

mod hidden;
pub(crate) mod joint;
mod leaves;
mod plain;
pub(super) mod stored;
#[cfg(test)]
mod tests;

use self::hidden::HiddenTime;
use self::leaves::LeafPrices;
use self::plain::PlainSteps;
use super::draft_times::DRAFT_US_PER_NODE;
use crate::face::internals;
use refrain_trees::VERIFY_ROWS_MAX;

/// The time of a verification step by the rows and leaves of its tree, and the time of drafting.
///
/// The profile is measured when the model is loaded, never computed by a formula: if memory bandwidth is the
/// limit, more rows are nearly free; if arithmetic is the limit, every row costs. Between measured rows the
/// time is interpolated. Beyond them it continues with the last slope, or in proportion to the rows if only
/// one number of rows was measured. A larger batch is never cheaper: a monotone envelope smooths noise in the
/// measurements. For a backend with compiled batch lengths the profile is a staircase.
///
/// Later measurements correct it slowly ([`observe`](Self::observe)), because the cost grows with the context
/// and with heat. Costs of row counts far from any measured count are learned from steps.
///
/// The measurements cover only chains, and a tree costs as much as a chain of its rows. A profile [with prices of
/// leaves](Self::with_leaf_prices) learns what further leaves add, as Lever's costs do.
///
/// Size: about 2 kB, whatever was measured.
#[derive(Clone, Debug)]
pub struct CostProfile {
    /// Ascending by rows; the first `n_knots` are in use. At most one for each number of rows up to
    /// `VERIFY_ROWS_MAX`, and one larger.
    knots: [Knot; VERIFY_ROWS_MAX + 1],
    n_knots: usize,
    /// Whether every batch costs the same, by construction.
    free_rows: bool,
    /// Batch lengths of the backend, ascending; empty if it accepts any length.
    batch_lens: Vec<usize>,
    /// Learned cost of leaves; `None`: they cost nothing.
    leaves: Option<Box<LeafPrices>>,
    /// Mean error of the newest steps, as a logarithm. A common error of all steps is not the cost of leaves,
    /// so the shape (rows and leaves) is learned from the deviation from this mean.
    recent_error: Option<f32>,
    /// Plain steps that the other steps are compared with.
    plain: PlainSteps,
    /// `verify_us` of 1 ..= `VERIFY_ROWS_MAX` rows with one leaf.
    table: [f32; VERIFY_ROWS_MAX],
    /// The µs of a one-row step.
    row_us: f32,
    draft_us_per_node: f32,
    /// Mean drafting time that delays nothing.
    hidden: HiddenTime,
    /// Generations that draft alike in each step ([`shared_by`](Self::shared_by)).
    n_members: usize,
}

/// A number of rows with a known time.
#[derive(Clone, Copy, Default, Debug)]
struct Knot {
    rows: usize,
    /// Logarithm of the time in µs.
    log_us: f32,
    /// Remaining steps in which the knot learns fast.
    n_young: u8,
}

/// Share of an unexpected time attributed to a common change (heat, a longer context) …
const GLOBAL_RATE: f32 = 1.0 / 8.0;
/// … and to this batch length only. Slow, so that noise does not distort the profile's shape.
const LOCAL_RATE: f32 = 1.0 / 64.0;
/// A knot added at a distance from all others starts from a guess, so it learns at this rate …
const YOUNG_RATE: f32 = 1.0 / 2.0;
/// … for this many steps, from which nothing else is learned: enough to correct a guess that is wrong by 16×.
const N_YOUNG: u8 = 8;
/// Weight of a step in the mean error of the newest steps: enough to follow a longer context, which affects
/// every step.
const RECENT_RATE: f32 = 1.0 / 4.0;
/// Times that differ by more than e^0.7 ≈ 2× count as 2×: an interrupted step carries little information.
const LOG_ERROR_MAX: f32 = 0.7;
/// … and the deviation from the preceding steps counts at most 1.35× for the costs of rows and of leaves. In a simulation
/// with one interruption in fifty steps, free leaves are then estimated as free; without this bound, as a
/// tenth of a step.
const LOG_SURPRISE_MAX: f32 = 0.3;
/// Range of accepted times, µs: a larger time is a clock error, and sums within the range stay finite.
const US_MIN: f32 = 1e-6;
const US_MAX: f32 = 1e30;

/// Learned ratio of this device's step times to the stored profile, by batch length: heat, a battery saver,
/// another program. Also contains the costs of drafts, which the stored profile lacks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CostCorrection {
    /// Logarithms of factors, by rows.
    log_factors: [f32; VERIFY_ROWS_MAX],
    hidden: HiddenTime,
}

/// Maximum log-factor: factors beyond e^2.8 ≈ 16× do not belong to the measured device.
const LOG_CORRECTION_MAX: f32 = 2.8;

impl CostCorrection {
    /// A correction without evidence.
    pub(crate) fn none() -> Self {
        Self { log_factors: [0.0; VERIFY_ROWS_MAX], hidden: HiddenTime::default() }
    }

    /// The correction that converts `measured` to `learnt`, both without padding of their batches.
    pub(crate) fn between(measured: &CostProfile, learnt: &CostProfile) -> Self {
        let log_factors = std::array::from_fn(|i| {
            let factor = learnt.interpolate(i + 1) / measured.interpolate(i + 1);
            factor.ln().clamp(-LOG_CORRECTION_MAX, LOG_CORRECTION_MAX)
        });
        Self { log_factors, hidden: learnt.hidden }
    }
}

impl CostProfile {
    /// A profile from measured pairs of rows and µs, of chains. Several times for the same rows are averaged;
    /// zero rows are ignored. Of the row counts above [`VERIFY_ROWS_MAX`] the smallest is kept, for the
    /// slope. Without a usable pair, all rows are [free](Self::free_rows).
    pub fn from_measurements(measurements: &[(usize, f32)]) -> Self {
        let mut pairs: Vec<(usize, f32)> = measurements
            .iter()
            .filter(|(rows, us)| *rows > 0 && us.is_finite() && *us > 0.0)
            .map(|&(rows, us)| (rows, us.clamp(US_MIN, US_MAX).ln()))
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
        profile.fill_added();
        profile
    }

    /// A profile in which every step takes `us` at any number of rows, and drafting takes no time: every
    /// draft pays. Observations do not change it. For tests and benchmarks with full and reproducible trees,
    /// and for an engine that only scores, so that nothing is measured.
    pub fn free_rows(us: f32) -> Self {
        let us = if us.is_finite() && us > 0.0 { us.clamp(US_MIN, US_MAX) } else { 1.0 };
        let mut knots = [Knot::default(); VERIFY_ROWS_MAX + 1];
        knots[0] = Knot { rows: 1, log_us: us.ln(), n_young: 0 };
        CostProfile {
            knots,
            n_knots: 1,
            free_rows: true,
            batch_lens: Vec::new(),
            leaves: None,
            recent_error: None,
            plain: PlainSteps::default(),
            table: [us; VERIFY_ROWS_MAX],
            row_us: us,
            draft_us_per_node: 0.0,
            hidden: HiddenTime::default(),
            n_members: 1,
        }
    }

    internals! {
        /// The same profile, which learns what leaves add to the time of their rows and counts it (`leaves.rs`). If rows are
        /// [free](Self::free_rows), leaves stay free too. Sessions do without: measured prices changed no speed, and learning
        /// and looking them up took 4 to 6 µs of a step.
        #[cfg_attr(not(feature = "internals"), allow(dead_code, reason = "for the lab"))]
        fn with_leaf_prices(mut self) -> Self {
            self.leaves = (!self.free_rows).then(Box::default);
            self.fill_added();
            self
        }
    }

    /// The same profile for a backend with these batch lengths only: a batch costs as much as the next length
    /// that holds it.
    pub(crate) fn with_batch_lens(mut self, batch_lens: &[usize]) -> Self {
        self.batch_lens = batch_lens.iter().copied().filter(|&len| len > 0).collect();
        self.batch_lens.sort_unstable();
        self.fill_table();
        self.fill_added();
        self
    }

    /// The same profile with its times corrected, and with the learned costs of drafting.
    pub(crate) fn corrected(mut self, correction: &CostCorrection) -> Self {
        let CostCorrection { log_factors, hidden } = correction;
        self.hidden = *hidden;
        // A stored profile was measured for long.
        self.plain = PlainSteps::MEASURED;
        for knot in &mut self.knots[..self.n_knots] {
            let log_us = knot.log_us + log_factors[knot.rows.min(VERIFY_ROWS_MAX) - 1];
            knot.log_us = log_us.clamp(US_MIN.ln(), US_MAX.ln());
        }
        self.fill_table();
        self.fill_added();
        self
    }

    /// The same profile with the time of each number of rows multiplied by a factor. If rows are
    /// [free](Self::free_rows), nothing changes.
    pub(crate) fn scaled(mut self, factor: impl Fn(usize) -> f32) -> Self {
        if self.free_rows {
            return self;
        }
        for knot in &mut self.knots[..self.n_knots] {
            let factor = factor(knot.rows);
            if factor.is_finite() && factor > 0.0 {
                knot.log_us = (knot.log_us + factor.ln()).clamp(US_MIN.ln(), US_MAX.ln());
            }
        }
        self.fill_table();
        self.fill_added();
        self
    }

    internals! {
        /// The same profile with another time for querying the sources at one tree node, in µs. If rows are
        /// [free](Self::free_rows), drafting stays free too.
        fn with_draft_us_per_node(mut self, us: f32) -> Self {
            if !self.free_rows && us.is_finite() {
                self.draft_us_per_node = us.max(0.0);
            }
            self
        }
    }

    /// The padded batch length of a draft of `rows` rows: `rows` itself if the backend accepts any length.
    pub(crate) fn batch_len(&self, rows: usize) -> usize {
        let next = self.batch_lens.partition_point(|&len| len < rows);
        self.batch_lens.get(next).copied().unwrap_or(rows)
    }

    internals! {
        /// Expected time of verifying a tree of `rows` rows with `leaves` leaves, in µs (Lever, eq. 4:
        /// `t_verify`). A chain has one leaf, and so has a lone root; further leaves cost nothing without prices. The time rises
        /// with rows and with leaves and is positive.
        #[inline]
        fn verify_us(&self, rows: usize, leaves: usize) -> f32 {
            self.chain_us(rows) + self.leaves_us(rows, leaves)
        }
    }

    /// The part of [`verify_us`](Self::verify_us) of a chain with the same rows.
    fn chain_us(&self, rows: usize) -> f32 {
        let rows = rows.max(1);
        match self.table.get(rows - 1) {
            Some(&us) => us,
            None => self.interpolate(self.batch_len(rows)).max(self.table[VERIFY_ROWS_MAX - 1]),
        }
    }

    /// The part of [`verify_us`](Self::verify_us) added by leaves. It rises with rows and with
    /// leaves, and one leaf adds nothing.
    pub(super) fn leaves_us(&self, rows: usize, leaves: usize) -> f32 {
        let Some(prices) = &self.leaves else { return 0.0 };
        prices.added_to(rows.max(1), leaves) * self.row_us
    }

    /// Expected time of a step whose tree has `rows` rows and `leaves` leaves: `t_draft + t_verify` (Lever,
    /// eq. 4).
    #[inline]
    pub(crate) fn step_us(&self, rows: usize, leaves: usize) -> f32 {
        self.chain_step_us(rows) + self.leaves_us(rows, leaves)
    }

    /// The part of [`step_us`](Self::step_us) of a chain with the same rows.
    pub(super) fn chain_step_us(&self, rows: usize) -> f32 {
        self.draft_us_per_node * (rows.max(1) - 1) as f32 + self.chain_us(rows)
    }

    /// Learns from a measured step whose tree had `rows` rows and `leaves` leaves. It updates the common
    /// factor strongly, and the costs of these rows, and of leaves that have prices, slightly. The first plain steps behind steps of several rows correct the ratio
    /// of the two strongly. The update is stronger if no time
    /// was measured within a factor of two of these rows. Padding rows are added here; they are not leaves,
    /// because nothing is computed from their attention. Cost: about 1 µs; allocates nothing.
    pub fn observe(&mut self, rows: usize, leaves: usize, us: f32) {
        if rows == 0 || self.free_rows || !us.is_finite() || us <= 0.0 {
            return;
        }
        let (rows, leaves) = (self.batch_len(rows), leaves.clamp(1, rows));
        let of_leaves = self.leaves.as_ref().map_or(0.0, |prices| prices.costs.added(rows, leaves));
        let expected_us = self.interpolate(rows) + self.row_us * of_leaves;
        let log_us = us.clamp(US_MIN, US_MAX).ln();
        let error = (log_us - expected_us.ln()).clamp(-LOG_ERROR_MAX, LOG_ERROR_MAX);
        self.ensure_knot_near(rows);
        let (left, right, weight) = self.neighbours(rows);
        let share = self.plain.observe(rows == self.batch_len(1));
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
            let surprise = error - self.recent_error.unwrap_or(error);
            let surprise = surprise.clamp(-LOG_SURPRISE_MAX, LOG_SURPRISE_MAX);
            knots[left].log_us += share * surprise * (1.0 - weight);
            knots[right].log_us += share * surprise * weight;
            let surprise = surprise * expected_us / self.row_us;
            if self.leaves.as_mut().is_some_and(|prices| prices.costs.observe(rows, leaves, surprise)) {
                self.fill_added();
            }
        }
        let recent = self.recent_error.get_or_insert(error);
        *recent += RECENT_RATE * (error - *recent);
        for knot in &mut self.knots[..self.n_knots] {
            knot.log_us = knot.log_us.clamp(US_MIN.ln(), US_MAX.ln());
        }
        self.fill_table();
    }

    /// Time that draft model passes of `draft_us` in total add to a step, in µs: the part beyond the reads of
    /// a streamed target ([`observe_hidden`](Self::observe_hidden)), and half of the hidden part.
    pub(crate) fn added_us(&self, draft_us: f32) -> f32 {
        self.hidden.added_us(draft_us * self.n_members as f32)
    }

    /// Expected time of a prompt, in µs, as batches of the most rows that have a cost.
    pub fn prompt_us(&self, n_tokens: usize) -> f64 {
        f64::from(self.chain_us(VERIFY_ROWS_MAX)) * n_tokens as f64 / VERIFY_ROWS_MAX as f64
    }

    /// Maximum time of a step that may take `extra_us` longer than a plain one, in µs. In a shared pass, each generation may.
    pub(crate) fn us_max(&self, extra_us: f32) -> f32 {
        self.step_us(1, 1) + extra_us.max(0.0) * self.n_members as f32
    }

    /// The costs of a draft in a pass that `n` generations share and in which all draft alike: `rows` rows of
    /// each take the time of `n · rows` rows, and they draft one after another.
    pub(crate) fn shared_by(&self, n: usize) -> Self {
        let mut shared = self.clone();
        if self.free_rows || n < 2 {
            return shared;
        }
        for (i, us) in shared.table.iter_mut().enumerate() {
            *us = self.chain_us(n * self.batch_len(i + 1));
        }
        if let Some(prices) = &mut shared.leaves {
            prices.scale(n as f32);
        }
        shared.draft_us_per_node *= n as f32;
        shared.n_members = n;
        shared
    }

    /// Whether a draft of `rows` rows, with this advantage over plain decoding, is to be given up for a plain step, whose time is
    /// learned. Not where a plain step takes as long by construction.
    pub(crate) fn is_plain_due(&mut self, rows: usize, advantage: f32) -> bool {
        let differs = !self.free_rows && self.batch_len(1) < self.batch_len(rows);
        differs && self.plain.is_due(advantage)
    }

    /// The same profile with each time changed as from one profile to another.
    pub(crate) fn moved(self, from: &CostProfile, to: &CostProfile) -> Self {
        self.scaled(|rows| to.interpolate(rows) / from.interpolate(rows))
    }

    /// Whether every batch costs the same, by construction.
    pub(crate) fn has_free_rows(&self) -> bool {
        self.free_rows
    }

    /// Observes that drafting of `us` would not have delayed a step, whether or not the step drafted so long.
    /// The time passed to [`observe`](Self::observe) must then be that of a step without drafting. Ignored if
    /// rows are [free](Self::free_rows).
    pub(crate) fn observe_hidden(&mut self, us: f32) {
        if !self.free_rows && us.is_finite() {
            self.hidden.observe(us.clamp(0.0, US_MAX));
        }
    }

    /// The same profile with the hidden drafting time of another.
    pub(crate) fn with_hidden_of(mut self, other: &CostProfile) -> Self {
        self.hidden = other.hidden;
        self
    }

    /// Adds a knot at `rows`, with the interpolated time, if there is none within a factor of two.
    fn ensure_knot_near(&mut self, rows: usize) {
        let is_near = |knot: &Knot| knot.rows < 2 * rows && rows < knot.rows.saturating_mul(2);
        if self.free_rows || rows > VERIFY_ROWS_MAX || self.knots().iter().any(is_near) {
            return;
        }
        let knot = Knot { rows, log_us: self.interpolate(rows).ln(), n_young: N_YOUNG };
        let at = self.knots().partition_point(|knot| knot.rows < rows);
        // The array has room, because no two knots have the same rows.
        self.n_knots += 1;
        self.knots[at..self.n_knots].rotate_right(1);
        self.knots[at] = knot;
    }

    fn knots(&self) -> &[Knot] {
        &self.knots[..self.n_knots]
    }

    /// The knots around `rows` and the weight of the right one; beyond the last knot the weight is 1.
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

    /// Expected time of a chain of `rows` rows, in µs.
    fn interpolate(&self, rows: usize) -> f32 {
        self.interpolate_by(rows, |knot| self.knots[knot].log_us.exp())
    }

    /// As [`interpolate`](Self::interpolate), with the time of the knot with index `i` given by `us(i)`.
    fn interpolate_by(&self, rows: usize, us: impl Fn(usize) -> f32) -> f32 {
        let last = self.n_knots - 1;
        let rows_last = self.knots[last].rows;
        if rows <= rows_last {
            let (left, right, weight) = self.neighbours(rows);
            // Not `from + weight * (to - from)`, which rounds to 0 if `to` is tiny relative to `from`.
            return us(left) * (1.0 - weight) + us(right) * weight;
        }
        // Beyond the last knot: the slope of the last two, or proportional time if there is only one.
        let slope = match last.checked_sub(1) {
            _ if self.free_rows => 0.0,
            Some(before) => (us(last) - us(before)) / (rows_last - self.knots[before].rows) as f32,
            None => us(last) / rows_last as f32,
        };
        (us(last) + slope.max(0.0) * (rows - rows_last) as f32).min(US_MAX)
    }

    /// Fills the table of chains: the mean of the two tightest monotone envelopes (the running maximum from
    /// the left, the running minimum from the right).
    fn fill_table(&mut self) {
        // Powers take most of the time, and there are fewer knots than rows.
        let mut knots_us = [0.0; VERIFY_ROWS_MAX + 1];
        knots_us.iter_mut().zip(self.knots()).for_each(|(us, knot)| *us = knot.log_us.exp());
        let interpolate = |rows: usize| self.interpolate_by(rows, |knot| knots_us[knot]);
        let raw: [f32; VERIFY_ROWS_MAX] = std::array::from_fn(|i| interpolate(self.batch_len(i + 1)));
        self.row_us = interpolate(1);
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

    /// Fills the table of added leaf costs, which already rise with rows and with leaves.
    fn fill_added(&mut self) {
        let batch_lens: [usize; VERIFY_ROWS_MAX] = std::array::from_fn(|i| self.batch_len(i + 1));
        if let Some(prices) = &mut self.leaves {
            prices.fill(&batch_lens);
        }
    }
}
