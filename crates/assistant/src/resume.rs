//! Conversations that wait give their keys and values back when memory is short, and get them again when they go on: read from the store
//! or computed, whichever is cheaper by what both have taken so far. The bits are the same.

use std::sync::{Mutex, PoisonError, Weak};
use std::time::Duration;

/// Something that waits with keys and values in memory.
pub(crate) trait Waiting: Send + Sync {
    /// Answers the newest report of memory pressure.
    fn release_memory(&self);
}

/// All that wait, as far as they are still there.
#[derive(Default)]
pub(crate) struct WaitingRoom(Mutex<Vec<Weak<dyn Waiting>>>);

impl WaitingRoom {
    pub(crate) fn add(&self, waiting: Weak<dyn Waiting>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|waiting| waiting.strong_count() > 0);
        all.push(waiting);
    }

    pub(crate) fn release_memory(&self) {
        // Not under the lock: a conversation may be begun meanwhile.
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        all.iter().filter_map(Weak::upgrade).for_each(|waiting| waiting.release_memory());
    }
}

/// What a token of a prompt costs, read from the store and computed.
#[derive(Debug, Default)]
pub(crate) struct PromptCosts(Mutex<Costs>);

#[derive(Debug, Default)]
struct Costs {
    read: Mean,
    computed: Mean,
    /// Prompts in a row that were computed, though the store was there.
    n_computed: u32,
}

/// The mean time of a token, in µs, of the newest tokens.
#[derive(Debug, Default)]
struct Mean {
    us: Option<f64>,
}

/// Tokens below which a time says nothing: opening files and starting threads are most of it.
const TOKENS_MIN: usize = 64;

/// The weight of the newest time in the mean.
const WEIGHT: f64 = 0.25;

/// A store that was slower is tried again after so many prompts.
const RETRY: u32 = 8;

impl Mean {
    fn note(&mut self, n_tokens: usize, time: Duration) {
        if n_tokens >= TOKENS_MIN {
            let new = time.as_secs_f64() * 1e6 / n_tokens as f64;
            self.us = Some(self.us.map_or(new, |us| us + WEIGHT * (new - us)));
        }
    }
}

impl PromptCosts {
    pub(crate) fn note_read(&self, n_tokens: usize, time: Duration) {
        self.lock().read.note(n_tokens, time);
    }

    pub(crate) fn note_computed(&self, n_tokens: usize, time: Duration) {
        self.lock().computed.note(n_tokens, time);
    }

    /// Whether keys and values that were given back are read again, not computed.
    pub(crate) fn prefers_reading(&self) -> bool {
        let mut costs = self.lock();
        let is_slower = costs.read.us.zip(costs.computed.us).is_some_and(|(read, computed)| read > computed);
        let computes = is_slower && costs.n_computed < RETRY;
        costs.n_computed = if computes { costs.n_computed + 1 } else { 0 };
        !computes
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Costs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cheaper_way_is_taken_and_the_other_tried_again() {
        let (ms, costs) = (Duration::from_millis, PromptCosts::default());
        assert!(costs.prefers_reading(), "nothing is known");
        costs.note_computed(100, ms(100));
        assert!(costs.prefers_reading(), "a read is not measured");
        costs.note_read(3, ms(900));
        assert!(costs.prefers_reading(), "too few tokens say nothing");
        costs.note_read(100, ms(10));
        assert!(costs.prefers_reading());
        costs.note_read(100, ms(1000));
        let n_computed = (0..2 * (RETRY + 1)).filter(|_| !costs.prefers_reading()).count();
        assert_eq!(n_computed, 2 * RETRY as usize, "one of nine tries the store");
        // The means follow.
        (0..20).for_each(|_| costs.note_read(100, ms(10)));
        assert!(costs.prefers_reading());
    }
}
