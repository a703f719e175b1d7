//! Gain and cost of a tree as it grows.

use crate::draft::CostProfile;

/// How the tree has grown, and its best size so far.
#[derive(Debug, Default)]
pub(super) struct Growth {
    /// Expected tokens of the tree by its rows: entry `i` is of the first `i + 1`.
    pub(super) gains: Vec<f32>,
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
        self.gains.clear();
        self.gains.push(1.0);
        (self.spent_us, self.margin, self.max_rows, self.best_rows) = (0.0, margin, max_rows, 1);
        self.best_rate = self.rate(1, costs);
    }

    fn rate(&self, rows: usize, costs: &CostProfile) -> f32 {
        let gain = if rows == 1 { 1.0 + self.margin } else { self.gains[rows - 1] };
        gain / (costs.step_us(rows) + self.spent_us)
    }

    /// The tree has another row.
    pub(super) fn push(&mut self, reach: f32, costs: &CostProfile) {
        self.gains.push(self.gain() + reach);
        self.consider(self.gains.len(), costs);
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
        (2..=self.gains.len()).for_each(|rows| self.consider(rows, costs));
    }

    fn gain(&self) -> f32 {
        self.gains[self.gains.len() - 1]
    }

    /// Whether a pass of `us` that is expected to gain so much, on one row more, beats the best size (Lever, eq. 6).
    pub(super) fn pays(&self, gain: f32, us: f32, costs: &CostProfile) -> bool {
        let more_us = costs.step_us(self.best_rows + 1) + self.spent_us + us;
        self.best_rows < self.max_rows && (self.gains[self.best_rows - 1] + gain) / more_us > self.best_rate
    }

    /// Whether any larger tree could beat the best: no further node is reached more often than `reach`.
    pub(super) fn can_improve(&self, reach: f32, costs: &CostProfile) -> bool {
        let (gain, rows) = (self.gain(), self.gains.len());
        (rows + 1..=self.max_rows).any(|more| {
            let gain_max = gain + reach * (more - rows) as f32;
            gain_max / (costs.step_us(more) + self.spent_us) > self.best_rate
        })
    }
}
