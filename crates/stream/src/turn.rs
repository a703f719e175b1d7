//! A fair lock: threads get their turn in order of arrival.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::thread::ThreadId;

use super::patience::CANCEL_INTERVAL;

/// A ticket lock. A mutex is not fair: because a pass takes long, a thread that locks it again at once would
/// starve the others.
#[derive(Debug, Default)]
pub struct Turns {
    state: Mutex<Tickets>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Tickets {
    next: u64,
    /// The ticket whose turn it is.
    served: u64,
    /// The thread that has the turn.
    holder: Option<ThreadId>,
    /// Tickets of threads that were cancelled while they waited.
    given_up: Vec<u64>,
}

impl Tickets {
    fn serve_next(&mut self) {
        self.holder = None;
        self.served += 1;
        while let Some(at) = self.given_up.iter().position(|&ticket| ticket == self.served) {
            self.given_up.swap_remove(at);
            self.served += 1;
        }
    }
}

/// A thread got no turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnError {
    /// The pass was cancelled.
    Cancelled,
    /// The thread has the turn already: it would wait for itself.
    Held,
}

/// A turn. Dropping it ends the turn.
#[derive(Debug)]
pub struct Turn<'a>(&'a Turns);

impl Turns {
    /// Waits for a turn.
    ///
    /// # Errors
    /// [`TurnError`]; [`TurnError::Cancelled`] if `cancel` is set before.
    pub fn wait(&self, cancel: &AtomicBool) -> Result<Turn<'_>, TurnError> {
        let thread = std::thread::current().id();
        let mut state = self.lock();
        if state.holder == Some(thread) {
            return Err(TurnError::Held);
        }
        let ticket = state.next;
        state.next += 1;
        while state.served != ticket {
            if cancel.load(Ordering::Relaxed) {
                state.given_up.push(ticket);
                return Err(TurnError::Cancelled);
            }
            let waited = self.changed.wait_timeout(state, CANCEL_INTERVAL);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state.holder = Some(thread);
        Ok(Turn(self))
    }

    /// A turn, if no other thread has a turn or waits for one.
    pub fn try_now(&self) -> Option<Turn<'_>> {
        let mut state = self.lock();
        (state.served == state.next).then(|| {
            state.next += 1;
            state.holder = Some(std::thread::current().id());
            Turn(self)
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Tickets> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.lock().serve_next();
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn turns_come_in_order_and_one_at_a_time() {
        let (turns, never) = (Turns::default(), AtomicBool::new(false));
        let (inside, order) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
        let first = turns.wait(&never).unwrap();
        std::thread::scope(|scope| {
            for i in 0..4 {
                let queued = turns.lock().next;
                let (turns, never, inside, order) = (&turns, &never, &inside, &order);
                scope.spawn(move || {
                    let _turn = turns.wait(never).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    order.lock().unwrap().push(i);
                    inside.fetch_sub(1, Ordering::SeqCst);
                });
                while turns.lock().next == queued {
                    std::thread::yield_now();
                }
            }
            drop(first);
        });
        assert_eq!(order.into_inner().unwrap(), [0, 1, 2, 3]);
    }

    #[test]
    fn a_turn_is_had_at_once_or_not_at_all() {
        let (turns, never) = (Turns::default(), AtomicBool::new(false));
        let first = turns.try_now().unwrap();
        assert!(turns.try_now().is_none());
        drop(first);
        let second = turns.wait(&never).unwrap();
        assert!(turns.try_now().is_none());
        drop(second);
        drop(turns.try_now().unwrap());
    }

    #[test]
    fn who_has_the_turn_does_not_wait_for_it() {
        let (turns, never) = (Turns::default(), AtomicBool::new(false));
        for _ in 0..2 {
            let held = turns.wait(&never).unwrap();
            assert_eq!(turns.wait(&never).err(), Some(TurnError::Held));
            drop(held);
            let held = turns.try_now().unwrap();
            assert_eq!(turns.wait(&never).err(), Some(TurnError::Held));
            drop(held);
        }
    }

    #[test]
    fn who_goes_away_is_passed_over() {
        let (turns, cancelled, never) = (Turns::default(), AtomicBool::new(true), AtomicBool::new(false));
        for _ in 0..3 {
            let first = turns.wait(&never).unwrap();
            std::thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| assert_eq!(turns.wait(&cancelled).err(), Some(TurnError::Cancelled)));
                }
            });
            drop(first);
        }
        drop(turns.wait(&never).unwrap());
        assert!(turns.lock().given_up.is_empty());
    }
}
