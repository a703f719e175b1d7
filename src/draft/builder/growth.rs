//! Gain and cost of a tree as it grows.

use crate::draft::cost::CostProfile;

/// Gain and leaves of the tree at one number of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Expected tokens.
    gain: f32,
    leaves: usize,
}

/// The growth of the tree, and its best size so far.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// Entry `i` describes the first `i + 1` rows of the tree.
    pub(super) sizes: Vec<Size>,
    /// Time of the passes made for this tree, in µs. It is spent at every size.
    spent_us: f32,
    /// Required advantage of a draft over plain decoding.
    margin: f32,
    max_rows: usize,
    /// Maximum time of a draft, in µs.
    max_us: f32,
    pub(super) best_rows: usize,
    /// Expected tokens per µs of the best size.
    best_rate: f32,
}

impl Growth {
    /// Starts with plain decoding, raised by the margin that a draft must exceed.
    pub(super) fn start(&mut self, costs: &CostProfile, margin: f32, max_rows: usize, max_us: f32) {
        self.sizes.clear();
        self.sizes.push(Size { gain: 1.0, leaves: 1 });
        (self.spent_us, self.margin, self.max_rows, self.max_us, self.best_rows) =
            (0.0, margin, max_rows, max_us, 1);
        self.best_rate = self.rate(1, costs);
    }

    fn rate(&self, rows: usize, costs: &CostProfile) -> f32 {
        let Size { gain, .. } = self.sizes[rows - 1];
        let gain = if rows == 1 { 1.0 + self.margin } else { gain };
        gain / self.us(rows, costs)
    }

    /// Expected time of a step with the first `rows` rows, in µs.
    fn us(&self, rows: usize, costs: &CostProfile) -> f32 {
        costs.step_us(rows, self.sizes[rows - 1].leaves) + costs.added_us(self.spent_us)
    }

    /// Adds a row. `leaves` is the new number of leaves: unchanged if the row extends a path, one more if it
    /// starts a branch.
    pub(super) fn push(&mut self, reach: f32, leaves: usize, costs: &CostProfile) {
        self.sizes.push(Size { gain: self.last().gain + reach, leaves });
        self.consider(self.sizes.len(), costs);
    }

    fn consider(&mut self, rows: usize, costs: &CostProfile) {
        let rate = self.rate(rows, costs);
        if rate > self.best_rate && self.us(rows, costs) <= self.max_us {
            (self.best_rows, self.best_rate) = (rows, rate);
        }
    }

    /// How many times as many tokens per time the best size promises as plain decoding; 1 if that is the best.
    pub(super) fn advantage(&self, costs: &CostProfile) -> f32 {
        match self.best_rows {
            1 => 1.0,
            _ => self.best_rate * costs.step_us(1, 1),
        }
    }

    /// Adds the time of a pass.
    pub(super) fn spend(&mut self, us: f32, costs: &CostProfile) {
        self.spent_us += us;
        (self.best_rows, self.best_rate) = (1, self.rate(1, costs));
        (2..=self.sizes.len()).for_each(|rows| self.consider(rows, costs));
    }

    fn last(&self) -> Size {
        self.sizes[self.sizes.len() - 1]
    }

    /// Whether a pass of `us` with the expected gain beats the best size (Lever, eq. 6). The pass adds one
    /// row that extends a path.
    pub(super) fn pays(&self, gain: f32, us: f32, costs: &CostProfile) -> bool {
        let best = self.sizes[self.best_rows - 1];
        let more_us = costs.step_us(self.best_rows + 1, best.leaves) + costs.added_us(self.spent_us + us);
        self.best_rows < self.max_rows
            && more_us <= self.max_us
            && (best.gain + gain) / more_us > self.best_rate
    }

    /// Whether a larger tree can beat the best size: every further node has at most this `reach`, and no node
    /// removes leaves.
    pub(super) fn can_improve(&self, reach: f32, costs: &CostProfile) -> bool {
        let (Size { gain, leaves }, rows) = (self.last(), self.sizes.len());
        // Leaves never get cheaper with more rows. Their cost is looked up once, because this loop makes most
        // of the look-ups in the cost profile.
        let other_us = costs.leaves_us(rows, leaves) + costs.added_us(self.spent_us);
        (rows + 1..=self.max_rows).any(|more| {
            let gain_max = gain + reach * (more - rows) as f32;
            let us = costs.chain_step_us(more) + other_us;
            us <= self.max_us && gain_max / us > self.best_rate
        })
    }
}
