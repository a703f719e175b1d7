//! Fallback to plain decoding if drafts are seldom accepted.

use std::collections::VecDeque;

use crate::engine::options::AcceptanceFloor;

/// State of an [`AcceptanceFloor`].
#[derive(Debug, Clone)]
pub(super) struct Floor {
    config: AcceptanceFloor,
    /// (drafted, accepted) of the last steps that drafted; at most one window.
    steps: VecDeque<(usize, usize)>,
    drafted: usize,
    accepted: usize,
    /// Remaining plain steps of the pause.
    paused: usize,
    /// Length of the next pause, in multiples of `config.pause`.
    pause_factor: usize,
    /// Whether the current window began after a pause.
    on_probation: bool,
}

impl Floor {
    /// `config` must have been checked.
    pub(super) fn new(config: AcceptanceFloor) -> Self {
        Self {
            config,
            steps: VecDeque::new(),
            drafted: 0,
            accepted: 0,
            paused: 0,
            pause_factor: 1,
            on_probation: false,
        }
    }

    /// Whether the next step decodes plainly.
    pub(super) fn is_paused(&self) -> bool {
        self.paused > 0
    }

    /// Observes a finished step; returns `true` if acceptance has just fallen below the floor.
    pub(super) fn observe(&mut self, drafted: usize, accepted: usize) -> bool {
        if self.paused > 0 {
            self.paused -= 1;
            return false;
        }
        if drafted == 0 {
            return false;
        }
        self.push(drafted, accepted);
        if self.steps.len() < self.config.window {
            return false;
        }
        if self.accepted as f32 >= self.config.rate_min * self.drafted as f32 {
            (self.on_probation, self.pause_factor) = (false, 1);
            return false;
        }
        if self.on_probation {
            self.pause_factor = (2 * self.pause_factor).min(AcceptanceFloor::PAUSE_FACTOR_MAX);
        }
        self.paused = self.config.pause * self.pause_factor;
        (self.drafted, self.accepted, self.on_probation) = (0, 0, true);
        self.steps.clear();
        true
    }

    fn push(&mut self, drafted: usize, accepted: usize) {
        if self.steps.len() == self.config.window
            && let Some((drafted, accepted)) = self.steps.pop_front()
        {
            self.drafted -= drafted;
            self.accepted -= accepted;
        }
        self.steps.push_back((drafted, accepted));
        self.drafted += drafted;
        self.accepted += accepted;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn floor() -> Floor {
        Floor::new(AcceptanceFloor { window: 4, rate_min: 0.25, pause: 8 })
    }

    /// The lengths of the alternating stretches with and without drafts, if each draft of 4 rows has
    /// `accepted(step)` accepted rows.
    fn stretches(floor: &mut Floor, n_steps: usize, accepted: impl Fn(usize) -> usize) -> Vec<usize> {
        let mut lens = vec![0];
        let mut paused = false;
        for step in 0..n_steps {
            if floor.is_paused() != paused {
                paused = !paused;
                lens.push(0);
            }
            *lens.last_mut().unwrap() += 1;
            if paused {
                floor.observe(0, 0)
            } else {
                floor.observe(4, accepted(step))
            };
        }
        lens
    }

    #[test]
    fn drafts_that_are_never_right_cost_a_vanishing_share() {
        let lens = stretches(&mut floor(), 1000, |_| 0);
        assert_eq!(lens[..9], [4, 8, 4, 16, 4, 32, 4, 64, 4]);
        assert_eq!(lens[9], 8 * AcceptanceFloor::PAUSE_FACTOR_MAX, "and no longer");
        assert_eq!(lens[11], lens[9]);
    }

    #[test]
    fn drafts_at_the_floor_go_on() {
        assert_eq!(stretches(&mut floor(), 500, |_| 1), [500]);
        // In one of four steps all rows are accepted: 4 of 16.
        assert_eq!(stretches(&mut floor(), 500, |step| if step % 4 == 0 { 4 } else { 0 }), [500]);
    }

    #[test]
    fn a_decision_takes_a_whole_window_and_success_sets_the_pause_back() {
        let mut floor = floor();
        let bad = stretches(&mut floor, 4 + 8 + 4 + 16, |_| 0);
        assert_eq!(bad, [4, 8, 4, 16]);
        assert_eq!(stretches(&mut floor, 50, |_| 2), [50], "one good window");
        assert_eq!(stretches(&mut floor, 20, |_| 0)[1], 8, "and the pause is as short as at first");
        let mut once = self::floor();
        // A single bad step among good ones does not pause.
        assert_eq!(stretches(&mut once, 200, |step| if step % 4 == 1 { 0 } else { 2 }), [200]);
    }

    #[test]
    fn steps_without_a_draft_do_not_count() {
        let mut floor = floor();
        (0..100).for_each(|_| assert!(!floor.observe(0, 0)));
        assert_eq!((1..=4).map(|_| floor.observe(3, 0)).collect::<Vec<_>>(), [false, false, false, true]);
    }
}
