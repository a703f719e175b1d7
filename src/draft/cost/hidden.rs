//! Drafting time hidden behind flash reads.

/// Mean drafting time per step that delays nothing. Between two passes over a streamed model, the disk reads
/// until the ring of buffers is full, and the next pass does not wait for these layers. A draft model that
/// finishes in this time does not delay the step.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub(super) struct HiddenTime {
    us: f32,
}

/// Price of hidden drafting time: it uses battery power, and reads wait for a processor. With a lower price
/// the draft model is run for many tokens that text predicts as well.
const HIDDEN_PRICE: f32 = 0.5;
/// Weight of a step in the mean.
const RATE: f32 = 1.0 / 4.0;

impl HiddenTime {
    /// A mean hidden time of `us`.
    pub(super) fn of(us: f32) -> Self {
        Self { us }
    }

    /// The mean drafting time that a step hides, in µs.
    pub(super) fn us(self) -> f32 {
        self.us
    }

    /// The mean of both, with the given weight of `theirs`.
    pub(super) fn blended(self, theirs: Self, weight: f32) -> Self {
        Self { us: self.us + weight * (theirs.us - self.us) }
    }

    /// Time that drafting for `draft_us` adds to a step: the part that is not hidden, and a share of the
    /// hidden part.
    pub(super) fn added_us(self, draft_us: f32) -> f32 {
        draft_us - (1.0 - HIDDEN_PRICE) * draft_us.min(self.us)
    }

    /// Observes a step that could have hidden drafting of `us`.
    pub(super) fn observe(&mut self, us: f32) {
        self.us += RATE * (us - self.us);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steps_could_hide_is_followed() {
        let mut hidden = HiddenTime::default();
        assert_eq!(hidden.added_us(100.0), 100.0);
        for us in [3000.0, 800.0, 5000.0, 0.0] {
            (0..40).for_each(|_| hidden.observe(us));
            assert!((hidden.added_us(us + 500.0) - HIDDEN_PRICE * us - 500.0).abs() < 1.0, "{hidden:?}");
            assert!((hidden.added_us(us / 2.0) - HIDDEN_PRICE * us / 2.0).abs() < 1.0, "{hidden:?}");
        }
    }
}
