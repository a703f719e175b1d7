//! Correction of the probabilities of tokens that a source drafts.
//!
//! Of all claims, those with too high a probability are drafted most. Claims that are right on average are therefore too confident where
//! they are drafted; and a text that repeats more or less than most is noticed late by cells that each see a few claims. One number
//! corrects both: a shift of the log-odds of every drafted token, moved after each step towards what came true (the intercept of a logistic
//! regression, by stochastic gradient descent on its log-likelihood: Platt, *Probabilistic outputs for support vector machines*, 1999).

/// Share of the difference between what came true and the probability by which the log-odds move.
const RATE: f32 = 0.2;
/// Factor per step, so that the shift of a text that drafts nothing any more is forgotten: half after 355 steps.
const FADING: f32 = 511.0 / 512.0;
/// Bounds of the shift, in log-odds.
const SHIFT_MIN: f32 = -1.5;
const SHIFT_MAX: f32 = 1.5;

/// The shift of the log-odds of drafted tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct DraftedShift {
    log_odds: f32,
    /// `exp(log_odds)`
    factor: f32,
}

impl DraftedShift {
    pub(super) const NONE: DraftedShift = DraftedShift { log_odds: 0.0, factor: 1.0 };

    fn of(log_odds: f32) -> Self {
        let log_odds = log_odds.clamp(SHIFT_MIN, SHIFT_MAX);
        DraftedShift { log_odds, factor: log_odds.exp() }
    }

    /// The corrected probability: rises with `probability`, and is 0 or 1 where that is.
    #[inline]
    pub(super) fn apply(self, probability: f32) -> f32 {
        let odds = self.factor * probability;
        odds / (1.0 - probability + odds)
    }

    /// Learns from a judged token: `missed` is 1 or 0 for what came true, less the corrected probability.
    pub(super) fn learn(&mut self, missed: f32) {
        *self = Self::of(self.log_odds + RATE * missed);
    }

    /// Ends a step.
    pub(super) fn fade(&mut self) {
        if *self != Self::NONE {
            *self = Self::of(FADING * self.log_odds);
        }
    }

    /// `theirs`, which began from `base`; the mean with this shift if that has moved meanwhile: each is an estimate of its own text.
    pub(super) fn merged(self, base: Self, theirs: Self) -> Self {
        match self == base {
            true => theirs,
            false => Self::of(0.5 * (self.log_odds + theirs.log_odds)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_true_half_as_often_is_expected_half_as_often() {
        for (claimed, rate) in [(0.6, 0.3), (0.3, 0.15), (0.2, 0.4), (0.5, 0.5)] {
            let mut shift = DraftedShift::NONE;
            let mut total = 0.0;
            for step in 0..4000 {
                // Evenly spread hits.
                let hit =
                    f32::from(u8::from(((step + 1) as f32 * rate).floor() > (step as f32 * rate).floor()));
                let probability = shift.apply(claimed);
                total += if step < 2000 { 0.0 } else { probability };
                shift.learn(hit - probability);
            }
            let mean = total / 2000.0;
            assert!((mean - rate).abs() < 0.02, "{claimed} came true at {rate}, expected at {mean}");
        }
    }

    #[test]
    fn certain_tokens_stay_certain_and_the_order_stays() {
        for log_odds in [-9.0, -1.0, 0.0, 0.5, 9.0] {
            let shift = DraftedShift::of(log_odds);
            assert_eq!((shift.apply(0.0), shift.apply(1.0)), (0.0, 1.0));
            let shifted: Vec<f32> = (0..=100).map(|i| shift.apply(i as f32 / 100.0)).collect();
            assert!(shifted.is_sorted() && shifted.iter().all(|p| (0.0..=1.0).contains(p)), "{log_odds}");
            assert!(shift.apply(0.98) > 0.9, "a long copy is not cut short");
        }
        assert_eq!(DraftedShift::NONE.apply(0.3), 0.3);
    }

    #[test]
    fn a_shift_fades_and_merges() {
        let mut shift = DraftedShift::of(-1.0);
        (0..355).for_each(|_| shift.fade());
        assert!((shift.log_odds + 0.5).abs() < 0.01, "{}", shift.log_odds);
        let (base, theirs) = (DraftedShift::of(0.2), DraftedShift::of(-0.3));
        assert_eq!(base.merged(base, theirs), theirs);
        assert!((DraftedShift::of(0.4).merged(base, theirs).log_odds - 0.05).abs() < 1e-6);
    }
}
