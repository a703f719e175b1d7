//! Plain steps that are taken to learn their time.
//!
//! The choice of rows rests on the ratio of a step's time to that of a plain step. Where every step drafts, only the steps' common level
//! is learned, so a wrong ratio would stay: drafts that cost more than they bring would be drafted to the end. A plain step now and then
//! shows the ratio. It loses what its draft would have brought, so the steps before it save for it: each step with a draft a small share
//! of a step. Drafts of little promise, whose worth is in doubt, are therefore given up often, and those of much promise seldom.

/// Share of a step that a step with a draft saves, until plain steps were compared this often …
const SHARE_FIRST: f32 = 1.0 / 8.0;
const N_FIRST: u8 = 4;
/// … and afterwards: plain steps cost less than one percent then.
const SHARE: f32 = 1.0 / 128.0;

/// The ratio was measured for a moment while loading. The first plain steps behind steps of several rows correct it by large shares of
/// their deviation, each by less: a half, a third, … After this many, the slow rate of all steps is enough.
const N_COMPARED_MAX: u8 = 62;

/// What steps with a draft have saved for a plain one, and the plain steps that were compared with them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PlainSteps {
    /// In plain steps.
    saved: f32,
    /// Whether the newest step had several rows.
    has_drafted: bool,
    n_compared: u8,
}

impl PlainSteps {
    /// Where the ratio was measured for long.
    pub(super) const MEASURED: Self = Self { saved: 0.0, has_drafted: false, n_compared: N_COMPARED_MAX };

    /// Whether a draft of this advantage over plain decoding is to be given up for a plain step.
    pub(super) fn is_due(&mut self, advantage: f32) -> bool {
        self.saved += if self.n_compared < N_FIRST { SHARE_FIRST } else { SHARE };
        self.saved >= advantage - 1.0
    }

    /// Observes a step; returns the share of its deviation that is due to the ratio.
    pub(super) fn observe(&mut self, is_plain: bool) -> f32 {
        let is_compared = std::mem::replace(&mut self.has_drafted, !is_plain) && is_plain;
        if is_plain {
            self.saved = 0.0;
        }
        if !is_compared || self.n_compared >= N_COMPARED_MAX {
            return 0.0;
        }
        self.n_compared += 1;
        1.0 / f32::from(1 + self.n_compared)
    }

    /// The state of two generations together.
    pub(super) fn blended(self, theirs: Self) -> Self {
        let n_compared = self.n_compared.max(theirs.n_compared);
        Self { saved: self.saved.max(theirs.saved), has_drafted: theirs.has_drafted, n_compared }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The drafted steps before each of the first plain ones, if every draft has this advantage.
    fn stretches(advantage: f32, n: usize) -> Vec<usize> {
        let mut plain = PlainSteps::default();
        let mut stretch = || {
            let mut len = 0;
            while !plain.is_due(advantage) {
                plain.observe(false);
                len += 1;
            }
            plain.observe(true);
            len
        };
        (0..n).map(|_| stretch()).collect()
    }

    #[test]
    fn what_promises_little_is_compared_often() {
        assert_eq!(stretches(1.25, 6), [1, 1, 1, 1, 31, 31]);
        assert_eq!(stretches(3.0, 6), [15, 15, 15, 15, 255, 255]);
        // A draft that promises nothing is never drafted, and nothing can be compared.
        assert_eq!(stretches(1.0, 3), [0; 3]);
    }

    #[test]
    fn only_plain_steps_behind_drafts_are_compared_and_each_counts_less() {
        let mut plain = PlainSteps::default();
        assert_eq!(
            [true, true, false, false, true].map(|is_plain| plain.observe(is_plain)),
            [0.0, 0.0, 0.0, 0.0, 0.5]
        );
        assert_eq!([false, true, true].map(|is_plain| plain.observe(is_plain)), [0.0, 1.0 / 3.0, 0.0]);
        let shares: Vec<f32> =
            (0..200).map(|step| plain.observe(step % 2 == 1)).filter(|&share| share > 0.0).collect();
        assert!(shares.is_sorted_by(|a, b| a > b) && shares.len() == usize::from(N_COMPARED_MAX) - 2);
    }

    #[test]
    fn a_plain_step_of_another_reason_counts() {
        let mut plain = PlainSteps::default();
        for _ in 0..100 {
            assert!((0..7).all(|_| !plain.is_due(2.0)));
            plain.observe(true);
        }
    }
}
