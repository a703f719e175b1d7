//! Drafting while a disk reads.

/// How much drafting a step has for nothing. Between two passes over a streamed model the disk goes on until its ring of buffers is
/// full, and for what it has read by then the next pass need not wait. A draft model that takes no longer delays nothing.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub(super) struct HiddenTime {
    us: f32,
}

/// What hidden drafting is taken to cost nevertheless: power from the battery, and reads that wait for a processor. With less a draft
/// model is asked about much that text knows.
const HIDDEN_PRICE: f32 = 0.5;
/// How much a step enters the mean.
const RATE: f32 = 1.0 / 4.0;

impl HiddenTime {
    /// Steps hide drafting of `us`, on average.
    pub(super) fn of(us: f32) -> Self {
        Self { us }
    }

    /// The drafting that steps hide on average, in µs.
    pub(super) fn us(self) -> f32 {
        self.us
    }

    /// The mean of both, with this weight of `theirs`.
    pub(super) fn blended(self, theirs: Self, weight: f32) -> Self {
        Self { us: self.us + weight * (theirs.us - self.us) }
    }

    /// What drafting for `draft_us` is taken to add to a step: the part that is not hidden, and a share of the other.
    pub(super) fn added_us(self, draft_us: f32) -> f32 {
        draft_us - (1.0 - HIDDEN_PRICE) * draft_us.min(self.us)
    }

    /// A step could have hidden drafting of `us`.
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
