//! Turns on the engine: one pass at a time, fair between jobs, interactive jobs first.
//!
//! A job takes a turn for each step and for each chunk of a prefill. Jobs of equal priority take turns in the order in which
//! they ask, so each has one turn per round. A background job gets a turn when no interactive job waits, and in any case after
//! [`PASSED_OVER_MAX`] interactive turns: an interactive job waits for at most one running pass and the interactive jobs before
//! it (and, once in [`PASSED_OVER_MAX`] turns, for one pass of a background job), and background work never starves.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use refrain::CancelToken;

use crate::options::Priority;

/// Interactive turns in a row while a background job waits. Background work then gets 3 % of the turns.
const PASSED_OVER_MAX: u32 = 32;

/// How often a waiting job looks at its cancel token, which wakes nobody.
const CANCEL_POLL: Duration = Duration::from_millis(10);

/// Grants passes of the models of one device in fair turns.
///
/// Each [`Assistant`](crate::Assistant) has one; assistants that share one, and an app's own generations beside them, take turns with
/// each other ([`Builder::gate`](crate::Builder::gate)). Whoever holds a [`GateTurn`] runs one pass, and drops it.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<State>,
    /// The holder of the turn has changed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    n_tickets: u64,
    /// The ticket whose owner may run.
    holder: Option<u64>,
    interactive: VecDeque<u64>,
    background: VecDeque<u64>,
    /// Interactive turns since a background job began to wait.
    n_passed_over: u32,
}

/// The right to run one pass; dropping it, also by unwinding, gives the turn to the next job.
#[derive(Debug)]
#[must_use = "the turn ends when it is dropped"]
pub struct GateTurn<'a> {
    gate: &'a Gate,
}

impl Gate {
    /// Waits for a turn. `None` only if `cancel` was set meanwhile.
    ///
    /// A thread that holds a turn must not ask for another one: it would wait for itself.
    pub fn enter(&self, priority: Priority, cancel: &CancelToken) -> Option<GateTurn<'_>> {
        let mut state = self.lock();
        state.n_tickets += 1;
        let ticket = state.n_tickets;
        state.queue(priority).push_back(ticket);
        state.choose();
        while state.holder != Some(ticket) {
            if cancel.is_cancelled() {
                state.queue(priority).retain(|&waiting| waiting != ticket);
                return None;
            }
            let waited = self.changed.wait_timeout(state, CANCEL_POLL);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        Some(GateTurn { gate: self })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn n_waiting(&self) -> usize {
        let state = self.lock();
        state.interactive.len() + state.background.len()
    }
}

impl State {
    fn queue(&mut self, priority: Priority) -> &mut VecDeque<u64> {
        match priority {
            Priority::Interactive => &mut self.interactive,
            Priority::Background => &mut self.background,
        }
    }

    /// Gives a free turn to the next job.
    fn choose(&mut self) {
        if self.holder.is_some() {
            return;
        }
        let takes_background = self.interactive.is_empty() || self.n_passed_over >= PASSED_OVER_MAX;
        self.holder = match takes_background.then(|| self.background.pop_front()).flatten() {
            Some(ticket) => {
                self.n_passed_over = 0;
                Some(ticket)
            }
            None => {
                self.n_passed_over = if self.background.is_empty() { 0 } else { self.n_passed_over + 1 };
                self.interactive.pop_front()
            }
        };
    }
}

impl Drop for GateTurn<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        state.holder = None;
        state.choose();
        drop(state);
        self.gate.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;
    use std::thread::{self, JoinHandle};

    use super::*;

    fn enter(gate: &Gate, priority: Priority) -> GateTurn<'_> {
        gate.enter(priority, &CancelToken::new()).expect("not cancelled")
    }

    /// Starts a thread that takes one turn and notes its name then. Returns when the thread waits.
    fn waits(
        gate: &Arc<Gate>,
        order: &Arc<Mutex<Vec<usize>>>,
        name: usize,
        priority: Priority,
    ) -> JoinHandle<()> {
        let n_before = gate.n_waiting();
        let (theirs, order) = (Arc::clone(gate), Arc::clone(order));
        let thread = thread::spawn(move || {
            let _turn = enter(&theirs, priority);
            order.lock().unwrap().push(name);
        });
        while gate.n_waiting() == n_before {
            thread::yield_now();
        }
        thread
    }

    #[test]
    fn turns_come_in_order_and_interactive_jobs_first() {
        use Priority::{Background, Interactive};
        let (gate, order) = (Arc::new(Gate::default()), Arc::new(Mutex::new(Vec::new())));
        let turn = enter(&gate, Background);
        let priorities = [Background, Interactive, Background, Interactive, Interactive];
        let threads: Vec<_> = priorities
            .into_iter()
            .enumerate()
            .map(|(name, priority)| waits(&gate, &order, name, priority))
            .collect();
        drop(turn);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(*order.lock().unwrap(), [1, 3, 4, 0, 2]);
    }

    #[test]
    fn background_work_gets_a_turn_after_a_bounded_number_of_others() {
        let mut state = State::default();
        state.background.push_back(0);
        let mut n_interactive = 0;
        loop {
            state.interactive.push_back(1);
            state.holder = None;
            state.choose();
            if state.holder == Some(0) {
                break;
            }
            n_interactive += 1;
        }
        assert_eq!(n_interactive, PASSED_OVER_MAX);
    }

    #[test]
    fn a_cancelled_job_leaves_the_queue_and_a_panic_gives_the_turn_back() {
        let gate = Gate::default();
        let turn = enter(&gate, Priority::Interactive);
        let cancel = CancelToken::new();
        cancel.cancel();
        assert!(gate.enter(Priority::Interactive, &cancel).is_none());
        assert_eq!(gate.n_waiting(), 0);
        drop(turn);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _turn = enter(&gate, Priority::Background);
            panic!("an app's source");
        }));
        assert!(panicked.is_err());
        drop(enter(&gate, Priority::Background));
    }

    #[test]
    fn one_job_runs_at_a_time() {
        let gate = Gate::default();
        let running = Mutex::new(());
        thread::scope(|scope| {
            for name in 0..4 {
                let (gate, running) = (&gate, &running);
                scope.spawn(move || {
                    for _ in 0..200 {
                        let priority =
                            if name % 2 == 0 { Priority::Interactive } else { Priority::Background };
                        let _turn = enter(gate, priority);
                        drop(running.try_lock().expect("alone"));
                    }
                });
            }
        });
    }
}
