//! The counts of a replay.

use std::collections::BTreeMap;

/// Counts over the steps of some rows.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Number of replayed rows.
    pub n_rows: usize,
    /// Number of committed tokens.
    pub n_tokens: usize,
    /// Number of steps.
    pub n_steps: usize,
    /// Steps by acceptance length: entry `i` counts the steps that committed `i` tokens.
    pub steps_by_len: Vec<usize>,
    /// Number of steps with an empty draft.
    pub n_empty: usize,
    /// Number of rows of all verification batches.
    pub n_batch_rows: usize,
    /// Per source of drafts: tokens drafted and accepted.
    pub sources: BTreeMap<String, Drafted>,
    /// Time of each step for building the draft and learning from its outcome, in µs.
    pub draft_us: Vec<f32>,
    /// Time of all verification batches according to the cost profile, in µs.
    pub verify_us: f64,
    /// Time of plain decoding of the same tokens according to the cost profile, in µs.
    pub plain_us: f64,
    /// For each replayed row, its speed relative to plain decoding, drafting included: without and with the time of its prompt.
    pub speeds: Vec<[f32; 2]>,
    /// Number of tree rows that were looked up in a trace.
    pub n_looked_up: usize,
    /// Of these, the rows that the trace does not have: the tree left the recorded batches.
    pub n_unknown: usize,
    /// Number of steps by the reason of their end; all 0 unless the setting explains steps.
    pub ends: BTreeMap<StepEnd, usize>,
    /// Largest memory of builder and sources at the end of a row, in bytes, including shared history.
    pub memory_bytes_max: usize,
}

/// Why a step committed no further token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum StepEnd {
    /// The output ended.
    Output,
    /// The next token occurs nowhere in the sources.
    Absent,
    /// The next token occurs in the sources, but nowhere after the token before it.
    Jump,
    /// The pair was seen, but even the largest batch would have left the next token out.
    UnderWeighted,
    /// The largest batch would have had the next token; this one had no room for it.
    BelowBudget,
}

impl StepEnd {
    /// All reasons, in the order of reports.
    pub const ALL: [StepEnd; 5] =
        [StepEnd::Absent, StepEnd::Jump, StepEnd::UnderWeighted, StepEnd::BelowBudget, StepEnd::Output];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            StepEnd::Output => "end of output",
            StepEnd::Absent => "absent",
            StepEnd::Jump => "jump",
            StepEnd::UnderWeighted => "under-weighted",
            StepEnd::BelowBudget => "below the budget",
        }
    }
}

/// Tokens drafted and accepted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drafted {
    /// Verified draft tokens.
    pub drafted: usize,
    /// Draft tokens confirmed by the response.
    pub accepted: usize,
}

impl Tally {
    /// Adds a step that committed `n_tokens`.
    pub fn count_step(&mut self, n_tokens: usize) {
        self.n_steps += 1;
        self.n_tokens += n_tokens;
        if self.steps_by_len.len() <= n_tokens {
            self.steps_by_len.resize(n_tokens + 1, 0);
        }
        self.steps_by_len[n_tokens] += 1;
    }

    /// Adds the counts of another tally.
    pub fn add(&mut self, other: &Tally) {
        self.n_rows += other.n_rows;
        self.n_tokens += other.n_tokens;
        self.n_steps += other.n_steps;
        if self.steps_by_len.len() < other.steps_by_len.len() {
            self.steps_by_len.resize(other.steps_by_len.len(), 0);
        }
        self.steps_by_len.iter_mut().zip(&other.steps_by_len).for_each(|(to, n)| *to += n);
        self.n_empty += other.n_empty;
        self.n_batch_rows += other.n_batch_rows;
        for (name, drafted) in &other.sources {
            let to = self.sources.entry(name.clone()).or_default();
            to.drafted += drafted.drafted;
            to.accepted += drafted.accepted;
        }
        self.draft_us.extend_from_slice(&other.draft_us);
        self.verify_us += other.verify_us;
        self.plain_us += other.plain_us;
        self.speeds.extend_from_slice(&other.speeds);
        self.n_looked_up += other.n_looked_up;
        self.n_unknown += other.n_unknown;
        other.ends.iter().for_each(|(&end, n)| *self.ends.entry(end).or_default() += n);
        self.memory_bytes_max = self.memory_bytes_max.max(other.memory_bytes_max);
    }

    /// Tokens committed per step, including the bonus token; 1 without steps.
    pub fn acceptance_length(&self) -> f64 {
        if self.n_steps == 0 { 1.0 } else { self.n_tokens as f64 / self.n_steps as f64 }
    }

    /// Share of steps without a draft.
    pub fn empty_share(&self) -> f64 {
        if self.n_steps == 0 { 0.0 } else { self.n_empty as f64 / self.n_steps as f64 }
    }

    /// Mean number of rows of a verification batch.
    pub fn rows_per_step(&self) -> f64 {
        if self.n_steps == 0 { 0.0 } else { self.n_batch_rows as f64 / self.n_steps as f64 }
    }

    /// Speed over plain decoding according to the cost profile. `with_drafting` includes the measured time of
    /// drafting.
    pub fn speed_up(&self, with_drafting: bool) -> f64 {
        let draft_us = self.draft_us.iter().map(|&us| f64::from(us)).sum::<f64>();
        let us = self.verify_us + if with_drafting { draft_us } else { 0.0 };
        if us > 0.0 { self.plain_us / us } else { 1.0 }
    }

    /// The `q` quantile of the time of drafting per step, in µs; 0 without steps.
    pub fn draft_us_quantile(&self, q: f64) -> f32 {
        let mut sorted = self.draft_us.clone();
        let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
        let at = (q * last as f64).round() as usize;
        *sorted.select_nth_unstable_by(at, f32::total_cmp).1
    }
}

/// The median; `None` without values.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.get(values.len().checked_sub(1)? / 2)?, values.get(values.len() / 2)?);
    Some((low + high) / 2.0)
}

/// The geometric mean; 1 without values.
pub fn geometric_mean(values: impl IntoIterator<Item = f64>) -> f64 {
    let (mut sum, mut n) = (0.0, 0);
    for value in values {
        sum += value.max(1e-9).ln();
        n += 1;
    }
    if n == 0 { 1.0 } else { (sum / f64::from(n)).exp() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_all_steps() {
        let (mut first, mut second) = (Tally::default(), Tally::default());
        [1, 4].into_iter().for_each(|n| first.count_step(n));
        second.count_step(1);
        first.draft_us = vec![3.0, 1.0];
        second.draft_us = vec![2.0];
        first.add(&second);
        assert_eq!((first.n_steps, first.n_tokens, first.acceptance_length()), (3, 6, 2.0));
        assert_eq!(first.steps_by_len, [0, 2, 0, 0, 1]);
        assert_eq!([0.0, 0.5, 1.0].map(|q| first.draft_us_quantile(q)), [1.0, 2.0, 3.0]);
    }

    #[test]
    fn medians_of_even_and_odd_numbers() {
        assert_eq!(
            [vec![], vec![3.0], vec![4.0, 1.0], vec![5.0, 1.0, 2.0]].map(median),
            [None, Some(3.0), Some(2.5), Some(2.0)]
        );
    }

    #[test]
    fn nothing_divides_by_nothing() {
        let tally = Tally::default();
        assert_eq!((tally.acceptance_length(), tally.empty_share(), tally.speed_up(true)), (1.0, 0.0, 1.0));
        assert_eq!(tally.draft_us_quantile(0.99), 0.0);
        assert_eq!(geometric_mean([]), 1.0);
        assert!((geometric_mean([1.0, 4.0]) - 2.0).abs() < 1e-12);
    }
}
