//! What a step costs, as measured.

mod hidden;
mod leaves;
pub(super) mod stored;
#[cfg(test)]
mod tests;

use self::hidden::HiddenTime;
use self::leaves::{LeafCosts, N_CLASSES, place};
use super::draft_times::DRAFT_US_PER_NODE;
use super::limits::VERIFY_ROWS_MAX;

/// The time of a verification step by the rows and the leaves of its tree, and of drafting.
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
/// What is measured are chains. What the leaves of other trees add is learnt from steps alone, per leaf and over a small grid of
/// shapes; where neither a shape nor its like was seen, a leaf counts as a thousandth of a step of one row, which shrinks as
/// steps show otherwise. More leaves are never cheaper: a tree that is would do no worse for being taken for a chain.
///
/// Size: about 4 kB, whatever was measured.
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
    /// What leaves add.
    leaves: LeafCosts,
    /// Mean error of the newest steps, as a logarithm. What they all have in common is not the price of leaves, so that is learnt
    /// from what sets a step apart from them.
    recent_error: Option<f32>,
    /// `verify_us` of 1 ..= `VERIFY_ROWS_MAX` rows with one leaf.
    table: [f32; VERIFY_ROWS_MAX],
    /// What 1, 2, 4, … leaves add to each, in steps of one row, and how long such a step takes.
    added: [[f32; N_CLASSES]; VERIFY_ROWS_MAX],
    row_us: f32,
    draft_us_per_node: f32,
    /// How much drafting delays nothing.
    hidden: HiddenTime,
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
/// How much a step enters the mean error of the newest ones: enough to follow a longer context, which every step shows.
const RECENT_RATE: f32 = 1.0 / 4.0;
/// Times off by more than e^0.7 ≈ 2× count as 2×: a step that the system interrupted teaches little.
const LOG_ERROR_MAX: f32 = 0.7;
/// … and next to the steps before it one teaches the price of leaves as much as if it were off by 1.35×: in simulation with an
/// interruption in fifty steps free leaves then look free, where they would else seem to take a tenth of a step.
const LOG_SURPRISE_MAX: f32 = 0.3;
/// Times that are taken in, µs: a larger one is a fault of a clock, and sums of these stay finite.
const US_MIN: f32 = 1e-6;
const US_MAX: f32 = 1e30;

/// By how much the steps of a device have turned out slower or faster than measured ahead, by batch length: heat, a battery
/// that saves, another program. And what leaves and drafts cost, which is not measured ahead.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CostCorrection {
    /// Logarithms of factors, by rows.
    log_factors: [f32; VERIFY_ROWS_MAX],
    leaves: LeafCosts,
    hidden: HiddenTime,
}

/// Factors beyond e^2.8 ≈ 16× are no state of the device that was measured.
const LOG_CORRECTION_MAX: f32 = 2.8;

impl CostCorrection {
    /// Nothing learnt.
    pub(crate) fn none() -> Self {
        let (leaves, hidden) = (LeafCosts::unknown(), HiddenTime::default());
        Self { log_factors: [0.0; VERIFY_ROWS_MAX], leaves, hidden }
    }

    /// What turns `measured` into `learnt`, both without padding of their batches.
    pub(crate) fn between(measured: &CostProfile, learnt: &CostProfile) -> Self {
        let log_factors = std::array::from_fn(|i| {
            let factor = learnt.interpolate(i + 1) / measured.interpolate(i + 1);
            factor.ln().clamp(-LOG_CORRECTION_MAX, LOG_CORRECTION_MAX)
        });
        Self { log_factors, leaves: learnt.leaves.clone(), hidden: learnt.hidden }
    }
}

impl CostProfile {
    /// A profile from measured pairs of rows and µs, of chains; several of the same rows are averaged, zero rows are left out, and of
    /// more than [`VERIFY_ROWS_MAX`] rows the fewest are kept, for the slope. With no usable pair at all rows are
    /// [free](Self::free_rows).
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

    /// A profile by which a step takes `us` whatever its rows, and drafting no time: every draft pays. It stays so,
    /// whatever is observed. For tests and benchmarks that want full trees, the same ones in every run, and for an engine
    /// that only scores, so that nothing is measured.
    pub fn free_rows(us: f32) -> Self {
        let us = if us.is_finite() && us > 0.0 { us.clamp(US_MIN, US_MAX) } else { 1.0 };
        let mut knots = [Knot::default(); VERIFY_ROWS_MAX + 1];
        knots[0] = Knot { rows: 1, log_us: us.ln(), n_young: 0 };
        CostProfile {
            knots,
            n_knots: 1,
            free_rows: true,
            batch_lens: Vec::new(),
            leaves: LeafCosts::unknown(),
            recent_error: None,
            table: [us; VERIFY_ROWS_MAX],
            added: [[0.0; N_CLASSES]; VERIFY_ROWS_MAX],
            row_us: us,
            draft_us_per_node: 0.0,
            hidden: HiddenTime::default(),
        }
    }

    /// The same profile for a backend that runs these batch lengths only: a batch costs what the next length that holds it does.
    pub fn with_batch_lens(mut self, batch_lens: &[usize]) -> Self {
        self.batch_lens = batch_lens.iter().copied().filter(|&len| len > 0).collect();
        self.batch_lens.sort_unstable();
        self.fill_table();
        self.fill_added();
        self
    }

    /// The same profile with its times corrected, and with what is known of leaves and of drafting.
    pub(crate) fn corrected(mut self, correction: &CostCorrection) -> Self {
        let CostCorrection { log_factors, leaves, hidden } = correction;
        (self.leaves, self.hidden) = (leaves.clone(), *hidden);
        for knot in &mut self.knots[..self.n_knots] {
            let log_us = knot.log_us + log_factors[knot.rows.min(VERIFY_ROWS_MAX) - 1];
            knot.log_us = log_us.clamp(US_MIN.ln(), US_MAX.ln());
        }
        self.fill_table();
        self.fill_added();
        self
    }

    /// The same profile with another cost of asking the sources for one tree node, in µs. Where rows are
    /// [free](Self::free_rows), drafting stays so too.
    pub fn with_draft_us_per_node(mut self, us: f32) -> Self {
        if !self.free_rows && us.is_finite() {
            self.draft_us_per_node = us.max(0.0);
        }
        self
    }

    /// The batch length that a draft of `rows` rows is padded to: itself where the backend takes any.
    pub fn batch_len(&self, rows: usize) -> usize {
        let next = self.batch_lens.partition_point(|&len| len < rows);
        self.batch_lens.get(next).copied().unwrap_or(rows)
    }

    /// Expected time of verifying a tree of `rows` rows, `leaves` of which have no children, in µs (Lever, eq. 4: `t_verify`). A
    /// chain has one leaf, and so has the root alone. It rises with rows and with leaves, and is a number above 0.
    #[inline]
    pub fn verify_us(&self, rows: usize, leaves: usize) -> f32 {
        self.chain_us(rows) + self.leaves_us(rows, leaves)
    }

    /// The part of [`verify_us`](Self::verify_us) that a chain takes as well.
    fn chain_us(&self, rows: usize) -> f32 {
        let rows = rows.max(1);
        match self.table.get(rows - 1) {
            Some(&us) => us,
            None => self.interpolate(self.batch_len(rows)).max(self.table[VERIFY_ROWS_MAX - 1]),
        }
    }

    /// The part of [`verify_us`](Self::verify_us) that is due to leaves. It rises with rows and with leaves, from 0.
    pub(super) fn leaves_us(&self, rows: usize, leaves: usize) -> f32 {
        let rows = rows.max(1);
        let (class, weight) = place(leaves.min(rows));
        let of_rows = &self.added[rows.min(VERIFY_ROWS_MAX) - 1];
        (of_rows[class] + weight * (of_rows[class + 1] - of_rows[class])) * self.row_us
    }

    /// Expected time of a step whose tree has `rows` rows and `leaves` leaves: `t_draft + t_verify` (Lever, eq. 4).
    #[inline]
    pub fn step_us(&self, rows: usize, leaves: usize) -> f32 {
        self.chain_step_us(rows) + self.leaves_us(rows, leaves)
    }

    /// The part of [`step_us`](Self::step_us) that a step with a chain takes as well.
    pub(super) fn chain_step_us(&self, rows: usize) -> f32 {
        self.draft_us_per_node * (rows.max(1) - 1) as f32 + self.chain_us(rows)
    }

    /// Learns from a measured step, whose tree had `rows` rows and `leaves` leaves: how everything has changed, and a little of
    /// the cost of rows and of leaves; more of it where nothing was measured within a factor of two of these rows. The rows that
    /// the tree is padded to are added here; they are no leaves, since nothing is computed from what they see. Cost: about 1 µs,
    /// and 2 µs where the tree branches; allocates nothing.
    pub fn observe(&mut self, rows: usize, leaves: usize, us: f32) {
        if rows == 0 || self.free_rows || !us.is_finite() || us <= 0.0 {
            return;
        }
        let (rows, leaves) = (self.batch_len(rows), leaves.clamp(1, rows));
        let expected_us = self.interpolate(rows) + self.row_us * self.leaves.added(rows, leaves);
        let log_us = us.clamp(US_MIN, US_MAX).ln();
        let error = (log_us - expected_us.ln()).clamp(-LOG_ERROR_MAX, LOG_ERROR_MAX);
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
            let surprise = error - self.recent_error.unwrap_or(error);
            let surprise = surprise.clamp(-LOG_SURPRISE_MAX, LOG_SURPRISE_MAX);
            if self.leaves.observe(rows, leaves, surprise * expected_us / self.row_us) {
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

    /// What passes of a draft model that take `draft_us` together are taken to add to a step, in µs: the part beyond what is hidden
    /// behind the reads of a streamed target ([`observe_hidden`](Self::observe_hidden)), and half of the hidden part.
    pub fn added_us(&self, draft_us: f32) -> f32 {
        self.hidden.added_us(draft_us)
    }

    /// Learns from a step that drafting of `us` would not have delayed it, whether or not so much was drafted. The time that
    /// [`observe`](Self::observe) is told is then the one of a step without drafting. Ignored where rows are
    /// [free](Self::free_rows).
    pub fn observe_hidden(&mut self, us: f32) {
        if !self.free_rows && us.is_finite() {
            self.hidden.observe(us.clamp(0.0, US_MAX));
        }
    }

    /// The same profile with as much drafting hidden as by another one.
    pub(crate) fn with_hidden_of(mut self, other: &CostProfile) -> Self {
        self.hidden = other.hidden;
        self
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

    /// Expected time of a chain of `rows` rows, in µs.
    fn interpolate(&self, rows: usize) -> f32 {
        self.interpolate_by(rows, |knot| self.knots[knot].log_us.exp())
    }

    /// The same, where the time of a knot is `us` of its index.
    fn interpolate_by(&self, rows: usize, us: impl Fn(usize) -> f32) -> f32 {
        let last = self.n_knots - 1;
        let rows_last = self.knots[last].rows;
        if rows <= rows_last {
            let (left, right, weight) = self.neighbours(rows);
            // Not `from + weight * (to - from)`, which rounds to 0 where `to` is the smallest part of `from`.
            return us(left) * (1.0 - weight) + us(right) * weight;
        }
        // Beyond the last knot: the slope of the last two, or time in proportion where there is one only.
        let slope = match last.checked_sub(1) {
            _ if self.free_rows => 0.0,
            Some(before) => (us(last) - us(before)) / (rows_last - self.knots[before].rows) as f32,
            None => us(last) / rows_last as f32,
        };
        (us(last) + slope.max(0.0) * (rows - rows_last) as f32).min(US_MAX)
    }

    /// Fills the table of chains: the mean of the two tightest monotone envelopes (the running maximum from the left, the running
    /// minimum from the right).
    fn fill_table(&mut self) {
        // Powers take longest, and there are fewer knots than rows.
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

    /// Fills the table of what leaves add, which rises with rows and with leaves by itself.
    fn fill_added(&mut self) {
        if !self.free_rows {
            self.added = std::array::from_fn(|i| self.leaves.added_by_class(self.batch_len(i + 1)));
        }
    }
}
