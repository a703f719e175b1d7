//! Plain steps that are taken to learn their time.
//!
//! The choice of rows rests on the ratio of a step's time to that of a plain step. Where every step drafts, only the steps' common level
//! is learned, so a wrong ratio would stay: drafts that cost more than they bring would be drafted to the end. A plain step now and then
//! shows the ratio. It loses what its draft would have brought, so the steps before it save for it: each drafting step a small share of a
//! step. Drafts of little promise, whose worth is in doubt, are therefore compared often, and those of much promise seldom.

/// Share of a step that a drafting step saves, until plain steps were measured this often …
const SHARE_FIRST: f32 = 1.0 / 8.0;
const N_FIRST: u8 = 4;
/// … and afterwards: plain steps cost less than one percent then.
const SHARE: f32 = 1.0 / 128.0;

/// What drafting steps have saved for a plain one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PlainMeasure {
    /// In plain steps.
    saved: f32,
    is_due: bool,
}

impl PlainMeasure {
    /// Whether the next step decodes plainly.
    pub(super) fn is_due(self) -> bool {
        self.is_due
    }

    /// Observes a step with a draft of this advantage over plain decoding, or without one.
    pub(super) fn observe(&mut self, advantage: Option<f32>, n_plain_seen: u8) {
        let Some(advantage) = advantage else {
            *self = Self::default();
            return;
        };
        self.saved += if n_plain_seen < N_FIRST { SHARE_FIRST } else { SHARE };
        // A longer draft would be measured no sooner than a shorter one of the same promise, so the newest stands for the next.
        self.is_due = self.saved >= advantage - 1.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The drafting steps before each of the first plain ones, if every draft has this advantage.
    fn stretches(advantage: f32, n: usize) -> Vec<usize> {
        let mut plain = PlainMeasure::default();
        let stretch = |seen: usize| {
            let mut len = 0;
            while !plain.is_due() {
                len += 1;
                plain.observe(Some(advantage), seen as u8);
            }
            plain.observe(None, seen as u8);
            len
        };
        (0..n).map(stretch).collect()
    }

    #[test]
    fn what_promises_little_is_compared_often() {
        assert_eq!(stretches(1.0, 6), [1; 6]);
        assert_eq!(stretches(1.25, 6), [2, 2, 2, 2, 32, 32]);
        assert_eq!(stretches(3.0, 5), [16, 16, 16, 16, 256]);
    }

    #[test]
    fn a_plain_step_of_another_reason_counts() {
        let mut plain = PlainMeasure::default();
        for _ in 0..100 {
            (0..7).for_each(|_| plain.observe(Some(2.0), 0));
            assert!(!plain.is_due());
            plain.observe(None, 0);
        }
        assert!(!plain.is_due());
    }
}
