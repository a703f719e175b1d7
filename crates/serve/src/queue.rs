//! The queue of requests: a bounded number waits, and a bounded number computes. Interactive requests come first.
//!
//! Passes of the model are granted by the gate, one at a time; this queue bounds the sessions that exist at once, because each needs memory.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use refrain_assistant::Priority;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::timeout;

use crate::error::{ApiError, ApiResult};

#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    running_max: usize,
    waiting_max: usize,
    waiting_time: Duration,
}

#[derive(Debug, Default)]
struct State {
    /// Requests that were admitted and have not ended.
    n_admitted: usize,
    n_running: usize,
    /// Of them, background ones.
    n_background: usize,
    interactive: VecDeque<oneshot::Sender<Permit>>,
    background: VecDeque<oneshot::Sender<Permit>>,
}

/// A place in the queue, held for the whole life of a request.
#[derive(Debug)]
pub(crate) struct Place {
    queue: Arc<Queue>,
    /// The request's share of the bytes of all bodies: its texts, tools and documents live as long as its place.
    _bytes: Option<OwnedSemaphorePermit>,
}

/// The right to compute.
#[derive(Debug)]
pub(crate) struct Permit {
    queue: Arc<Queue>,
    priority: Priority,
    /// A permit that nobody took must not lock the queue again while it is handed on.
    is_armed: bool,
}

impl Queue {
    pub(crate) fn new(running_max: usize, waiting_max: usize, waiting_time: Duration) -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), running_max, waiting_max, waiting_time })
    }

    /// Admits a request, with its share of the bytes of all bodies.
    ///
    /// # Errors
    /// Status 429: the queue is full.
    pub(crate) fn admit(self: &Arc<Self>, bytes: Option<OwnedSemaphorePermit>) -> ApiResult<Place> {
        let mut state = self.lock();
        if state.n_admitted >= self.running_max + self.waiting_max {
            // A second per request before it is a guess; clients wait longer on each attempt anyway.
            let seconds = (state.n_admitted / self.running_max).clamp(1, 30) as u32;
            let message = format!("{} requests run or wait; try again later", state.n_admitted);
            return Err(ApiError::busy(message, seconds));
        }
        state.n_admitted += 1;
        Ok(Place { queue: Arc::clone(self), _bytes: bytes })
    }

    /// Refuses early, before a body is read, what [`admit`](Self::admit) would refuse.
    pub(crate) fn check(self: &Arc<Self>) -> ApiResult<()> {
        self.admit(None).map(drop)
    }

    /// (running, waiting)
    pub(crate) fn depth(&self) -> (usize, usize) {
        let state = self.lock();
        (state.n_running, state.n_admitted - state.n_running.min(state.n_admitted))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands free permits to those who wait.
    fn hand_out(self: &Arc<Self>, state: &mut State) {
        // One place is for interactive requests only: background work may take long.
        let background_max = self.running_max.saturating_sub(1).max(1);
        while state.n_running < self.running_max {
            let takes_background = state.n_background < background_max;
            let interactive = state.interactive.pop_front().map(|waiting| (waiting, Priority::Interactive));
            let next = interactive.or_else(|| {
                let waiting = takes_background.then(|| state.background.pop_front()).flatten()?;
                Some((waiting, Priority::Background))
            });
            let Some((waiting, priority)) = next else { return };
            state.count(priority, 1);
            if let Err(mut unused) =
                waiting.send(Permit { queue: Arc::clone(self), priority, is_armed: true })
            {
                // Whoever waited has gone.
                unused.is_armed = false;
                state.count(priority, -1);
            }
        }
    }
}

impl State {
    fn count(&mut self, priority: Priority, by: isize) {
        self.n_running = self.n_running.saturating_add_signed(by);
        if priority == Priority::Background {
            self.n_background = self.n_background.saturating_add_signed(by);
        }
    }
}

impl Place {
    /// Waits for the right to compute. A future that is dropped leaves the queue.
    ///
    /// # Errors
    /// Status 503: the time that a request may wait is over.
    pub(crate) async fn permit(&self, priority: Priority) -> ApiResult<Permit> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = self.queue.lock();
            match priority {
                Priority::Background => state.background.push_back(sender),
                Priority::Interactive | Priority::Foreground => state.interactive.push_back(sender),
            }
            // Those who have gone would otherwise be counted until a permit is free.
            state.interactive.retain(|waiting| !waiting.is_closed());
            state.background.retain(|waiting| !waiting.is_closed());
            self.queue.hand_out(&mut state);
        }
        let permit = timeout(self.queue.waiting_time, receiver).await;
        Ok(permit
            .map_err(|_| ApiError::waited_too_long())?
            .expect("the queue drops no sender of a request that waits"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.queue.lock().n_admitted -= 1;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.is_armed {
            let mut state = self.queue.lock();
            state.count(self.priority, -1);
            self.queue.hand_out(&mut state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const LONG: Duration = Duration::from_secs(600);

    #[tokio::test]
    async fn interactive_requests_come_first_and_the_queue_is_bounded() {
        let queue = Queue::new(1, 3, LONG);
        let places: Vec<Place> = (0..4).map(|_| queue.admit(None).expect("room")).collect();
        let refused = queue.admit(None).expect_err("full");
        assert_eq!((refused.kind, refused.retry_after), (ErrorKind::Busy, Some(4)));
        let running = places[0].permit(Priority::Interactive).await.unwrap();
        let mut background = Box::pin(places[1].permit(Priority::Background));
        let mut interactive = Box::pin(places[2].permit(Priority::Interactive));
        assert!(poll(&mut background).await.is_none());
        assert!(poll(&mut interactive).await.is_none());
        drop(running);
        assert!(poll(&mut background).await.is_none());
        let running = poll(&mut interactive).await.expect("its turn");
        drop(running);
        drop(poll(&mut background).await.expect("its turn"));
        assert_eq!(queue.depth(), (0, 4));
        drop((background, interactive));
        drop(places);
        assert_eq!(queue.depth(), (0, 0));
    }

    #[tokio::test]
    async fn background_requests_leave_a_place() {
        let queue = Queue::new(2, 9, LONG);
        let places: Vec<Place> = (0..3).map(|_| queue.admit(None).expect("room")).collect();
        let first = places[0].permit(Priority::Background).await.unwrap();
        let mut second = Box::pin(places[1].permit(Priority::Background));
        assert!(poll(&mut second).await.is_none());
        let interactive = places[2].permit(Priority::Interactive).await.unwrap();
        drop(interactive);
        assert!(poll(&mut second).await.is_none());
        drop(first);
        assert!(poll(&mut second).await.is_some());
    }

    #[tokio::test]
    async fn who_has_gone_gets_no_permit() {
        let queue = Queue::new(1, 3, LONG);
        let places: Vec<Place> = (0..3).map(|_| queue.admit(None).expect("room")).collect();
        let running = places[0].permit(Priority::Interactive).await.unwrap();
        let mut gone = Box::pin(places[1].permit(Priority::Interactive));
        assert!(poll(&mut gone).await.is_none());
        drop(gone);
        let mut next = Box::pin(places[2].permit(Priority::Interactive));
        assert!(poll(&mut next).await.is_none());
        drop(running);
        assert!(poll(&mut next).await.is_some());
    }

    #[tokio::test]
    async fn who_waits_too_long_leaves() {
        for priority in [Priority::Interactive, Priority::Background] {
            let queue = Queue::new(1, 3, Duration::from_millis(1));
            let places: Vec<Place> = (0..2).map(|_| queue.admit(None).expect("room")).collect();
            let _running = places[0].permit(Priority::Interactive).await.unwrap();
            let refused = places[1].permit(priority).await.expect_err("too long");
            assert_eq!(refused.code, Some("queue_time"));
        }
    }

    /// The permit, if it is there without waiting.
    async fn poll(
        future: &mut std::pin::Pin<Box<impl Future<Output = ApiResult<Permit>>>>,
    ) -> Option<Permit> {
        std::future::poll_fn(|context| match future.as_mut().poll(context) {
            std::task::Poll::Ready(permit) => std::task::Poll::Ready(Some(permit.unwrap())),
            std::task::Poll::Pending => std::task::Poll::Ready(None),
        })
        .await
    }
}
