//! Turns on the engine: one pass at a time, fair between jobs, higher priorities first.
//!
//! A job takes a turn for each step and for each chunk of a prefill. Jobs of equal priority take turns in the order in which
//! they ask, so each has one turn per round. A lower priority gets a turn when no higher one waits, nor has ended a turn just now
//! ([`RETURN_TIME`]): a job that decodes asks again within microseconds, and would otherwise wait for a foreign pass at every
//! token. One that waited meanwhile sees the free turn within [`CANCEL_POLL`]. In any case it gets one after [`FOREGROUND_TURNS_MAX`] foreground or [`INTERACTIVE_TURNS_MAX`] interactive turns, so
//! no work starves.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use refrain::CancelToken;

use crate::options::Priority;

/// Interactive turns in a row while a background job waits. Background work then gets 3 % of the turns.
const INTERACTIVE_TURNS_MAX: u32 = 32;

/// Foreground turns in a row while another job waits. Others then get one turn in five hundred, so that nearly all tokens
/// of a foreground job wait for nobody.
const FOREGROUND_TURNS_MAX: u32 = 512;

/// How long a job may take between two turns and still keep lower priorities out: choosing a token and handing out its text take
/// less than 0.1 ms, and an app's own work with it should fit too.
const RETURN_TIME: Duration = Duration::from_millis(1);

/// How often a waiting job looks at its cancel token, and whether the turn is still free. Neither wakes anybody: a job that decodes
/// ends a turn and takes the next one hundreds of times a second.
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
    /// The ticket whose owner may run, and its priority.
    holder: Option<(u64, Priority)>,
    foreground: VecDeque<u64>,
    interactive: VecDeque<u64>,
    background: VecDeque<u64>,
    /// Foreground turns since another job began to wait.
    n_foreground: u32,
    /// Interactive turns since a background job began to wait.
    n_interactive: u32,
    /// The priority of the newest turn, and when it ended.
    last: Option<(Priority, Instant)>,
}

/// The right to run one pass; dropping it, also by unwinding, gives the turn to the next job.
#[derive(Debug)]
#[must_use = "the turn ends when it is dropped"]
pub struct GateTurn<'a> {
    gate: &'a Gate,
    priority: Priority,
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
        loop {
            // Also those who wait choose: a job of a higher priority may not come back.
            let has_chosen = state.choose(Instant::now());
            if state.holder.is_some_and(|(holder, _)| holder == ticket) {
                break;
            }
            if has_chosen {
                self.changed.notify_all();
            }
            if cancel.is_cancelled() {
                state.queue(priority).retain(|&waiting| waiting != ticket);
                return None;
            }
            let time = if state.holder.is_some() { CANCEL_POLL } else { RETURN_TIME };
            let waited = self.changed.wait_timeout(state, time);
            (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
        drop(state);
        Some(GateTurn { gate: self, priority })
    }

    /// Whether a foreground job computes: it has a turn, waits for one, or may ask for its next one at any moment.
    pub fn is_in_foreground(&self) -> bool {
        let state = self.lock();
        state.holder.is_some_and(|(_, priority)| priority == Priority::Foreground)
            || !state.foreground.is_empty()
            || state.comes_back(Priority::Foreground, Instant::now())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    fn n_waiting(&self) -> usize {
        let state = self.lock();
        state.foreground.len() + state.interactive.len() + state.background.len()
    }
}

impl State {
    fn queue(&mut self, priority: Priority) -> &mut VecDeque<u64> {
        match priority {
            Priority::Foreground => &mut self.foreground,
            Priority::Interactive => &mut self.interactive,
            Priority::Background => &mut self.background,
        }
    }

    /// Gives a free turn to the next job. Returns whether a job has got it.
    fn choose(&mut self, now: Instant) -> bool {
        if self.holder.is_some() {
            return false;
        }
        self.holder = self.next(now);
        self.holder.is_some()
    }

    /// The ticket and the priority of the next job, if one may run now.
    fn next(&mut self, now: Instant) -> Option<(u64, Priority)> {
        let others_wait = !self.interactive.is_empty() || !self.background.is_empty();
        if !others_wait || self.n_foreground < FOREGROUND_TURNS_MAX {
            if let Some(ticket) = self.foreground.pop_front() {
                self.n_foreground = if others_wait { self.n_foreground + 1 } else { 0 };
                return Some((ticket, Priority::Foreground));
            }
            if self.comes_back(Priority::Foreground, now) {
                return None;
            }
        }
        let takes_background = self.n_interactive >= INTERACTIVE_TURNS_MAX
            || self.interactive.is_empty() && !self.comes_back(Priority::Interactive, now);
        let next = match takes_background.then(|| self.background.pop_front()).flatten() {
            Some(ticket) => {
                self.n_interactive = 0;
                (ticket, Priority::Background)
            }
            None => {
                let ticket = self.interactive.pop_front()?;
                self.n_interactive = if self.background.is_empty() { 0 } else { self.n_interactive + 1 };
                (ticket, Priority::Interactive)
            }
        };
        self.n_foreground = 0;
        Some(next)
    }

    /// Whether a job of this priority had the newest turn and may ask for its next one at any moment.
    fn comes_back(&self, priority: Priority, now: Instant) -> bool {
        self.last.is_some_and(|(last, ended)| last == priority && now.duration_since(ended) < RETURN_TIME)
    }
}

impl Drop for GateTurn<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.gate.lock();
        state.holder = None;
        state.last = Some((self.priority, now));
        let has_chosen = state.choose(now);
        drop(state);
        if has_chosen {
            self.gate.changed.notify_all();
        }
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
        use Priority::{Background, Foreground, Interactive};
        for (high, low, expected) in [
            (Interactive, Background, INTERACTIVE_TURNS_MAX),
            (Foreground, Background, FOREGROUND_TURNS_MAX),
            (Foreground, Interactive, FOREGROUND_TURNS_MAX),
        ] {
            let mut state = State::default();
            state.queue(low).push_back(0);
            let mut n_high = 0;
            loop {
                state.queue(high).push_back(1);
                state.holder = None;
                state.choose(Instant::now());
                if state.holder.is_some_and(|(ticket, _)| ticket == 0) {
                    break;
                }
                n_high += 1;
            }
            assert_eq!(n_high, expected, "{high:?} before {low:?}");
        }
    }

    #[test]
    fn a_job_that_comes_back_keeps_lower_priorities_out() {
        use Priority::{Background, Foreground, Interactive};
        let now = Instant::now();
        for (last, waits, gets_it) in [
            (Foreground, Interactive, false),
            (Foreground, Background, false),
            (Interactive, Background, false),
            (Interactive, Interactive, true),
            (Background, Interactive, true),
            (Background, Background, true),
        ] {
            let mut state = State { last: Some((last, now)), ..State::default() };
            state.queue(waits).push_back(0);
            assert_eq!(state.choose(now), gets_it, "{waits:?} after {last:?}");
            // It has not come back.
            let mut state = State { last: Some((last, now)), ..State::default() };
            state.queue(waits).push_back(0);
            assert!(state.choose(now + RETURN_TIME), "{waits:?} after {last:?}");
        }
    }

    #[test]
    fn a_foreground_job_is_there_between_its_turns_too() {
        let gate = Gate::default();
        drop(enter(&gate, Priority::Interactive));
        assert!(!gate.is_in_foreground());
        let turn = enter(&gate, Priority::Foreground);
        assert!(gate.is_in_foreground());
        drop(turn);
        let now = Instant::now();
        let mut state = State { last: Some((Priority::Foreground, now)), ..State::default() };
        assert!(state.comes_back(Priority::Foreground, now));
        state.last = Some((Priority::Foreground, now - RETURN_TIME));
        assert!(!state.comes_back(Priority::Foreground, now));
        std::thread::sleep(RETURN_TIME);
        assert!(!gate.is_in_foreground());
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
