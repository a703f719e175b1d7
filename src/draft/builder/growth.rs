//! Gain and cost of a tree as it grows.

use crate::draft::cost::CostProfile;

/// A tree as it was with some number of rows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    /// Expected tokens.
    gain: f32,
    leaves: usize,
}

/// How the tree has grown, and its best size so far.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// The tree by its rows: entry `i` is of the first `i + 1`.
    pub(super) sizes: Vec<Size>,
    /// Time of the passes that sources have made for this tree, in µs: it is spent, whatever the size.
    spent_us: f32,
    /// By how much a draft must beat plain decoding.
    margin: f32,
    max_rows: usize,
    pub(super) best_rows: usize,
    /// Expected tokens per µs of the best size.
    best_rate: f32,
}

impl Growth {
    /// Plain decoding, with the head start that a draft has to beat.
    pub(super) fn start(&mut self, costs: &CostProfile, margin: f32, max_rows: usize) {
        self.sizes.clear();
        self.sizes.push(Size { gain: 1.0, leaves: 1 });
        (self.spent_us, self.margin, self.max_rows, self.best_rows) = (0.0, margin, max_rows, 1);
        self.best_rate = self.rate(1, costs);
    }

    fn rate(&self, rows: usize, costs: &CostProfile) -> f32 {
        let Size { gain, leaves } = self.sizes[rows - 1];
        let gain = if rows == 1 { 1.0 + self.margin } else { gain };
        gain / (costs.step_us(rows, leaves) + costs.added_us(self.spent_us))
    }

    /// The tree has another row, and this many leaves by now: one more than before where the row is a new branch, as many where
    /// it goes on with a path.
    pub(super) fn push(&mut self, reach: f32, leaves: usize, costs: &CostProfile) {
        self.sizes.push(Size { gain: self.last().gain + reach, leaves });
        self.consider(self.sizes.len(), costs);
    }

    fn consider(&mut self, rows: usize, costs: &CostProfile) {
        let rate = self.rate(rows, costs);
        if rate > self.best_rate {
            (self.best_rows, self.best_rate) = (rows, rate);
        }
    }

    /// A pass was made.
    pub(super) fn spend(&mut self, us: f32, costs: &CostProfile) {
        self.spent_us += us;
        (self.best_rows, self.best_rate) = (1, self.rate(1, costs));
        (2..=self.sizes.len()).for_each(|rows| self.consider(rows, costs));
    }

    fn last(&self) -> Size {
        self.sizes[self.sizes.len() - 1]
    }

    /// Whether a pass of `us` that is expected to gain so much, on one row more that goes on with a path, beats the best size
    /// (Lever, eq. 6).
    pub(super) fn pays(&self, gain: f32, us: f32, costs: &CostProfile) -> bool {
        let best = self.sizes[self.best_rows - 1];
        let more_us = costs.step_us(self.best_rows + 1, best.leaves) + costs.added_us(self.spent_us + us);
        self.best_rows < self.max_rows && (best.gain + gain) / more_us > self.best_rate
    }

    /// Whether any larger tree could beat the best: no further node is reached more often than `reach`, and none takes leaves away.
    pub(super) fn can_improve(&self, reach: f32, costs: &CostProfile) -> bool {
        let (Size { gain, leaves }, rows) = (self.last(), self.sizes.len());
        // More rows make leaves no cheaper. (What leaves add is looked up once: this loop is most of what a cost profile is asked.)
        let other_us = costs.leaves_us(rows, leaves) + costs.added_us(self.spent_us);
        (rows + 1..=self.max_rows).any(|more| {
            let gain_max = gain + reach * (more - rows) as f32;
            gain_max / (costs.chain_step_us(more) + other_us) > self.best_rate
        })
    }
}
