//! Load for a server: clients that are slow, clients that go away, and many that ask at once. `tests/servers/load.rs` runs small rounds; the
//! example `load` runs the large ones.
#![allow(dead_code, unused_imports, reason = "tests and the example use a part each")]

mod abort;
mod mixed;
mod sample;
mod served;
mod slow;

use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use abort::{Ending, STAGES, Stage, abort};
pub(crate) use mixed::{Client, known_answers};
pub(crate) use sample::{Sample, cpu_seconds};
pub(crate) use served::{Served, is_server, serve_until_the_parent_ends};
pub(crate) use slow::SlowClients;

/// Clients of a round with requests. More than compute at a time, so that some wait.
const CLIENTS: usize = 8;

/// Opens slow connections, and asks beside them with new connections and a kept one. Panics at a wrong answer.
pub(crate) fn slow_round(served: &Served, n_connections: usize, n_ticks: usize) {
    let known = known_answers();
    let mut kept = Client::new(served.address);
    let mut slow = SlowClients::open(served.address, n_connections);
    for tick in 0..n_ticks {
        slow.tick();
        let (call, expected) = &known[tick % known.len()];
        assert_eq!(kept.text(call), *expected, "{call:?} on a kept connection");
        assert_eq!(Client::new(served.address).text(call), *expected, "{call:?} on a new connection");
    }
}

/// Begins requests and goes away, at every stage in turn. Returns how many had reached their stage.
pub(crate) fn abort_round(served: &Served, n_requests: usize) -> usize {
    let (next, n_reached) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= n_requests {
                        return;
                    }
                    let ending =
                        if (index / STAGES.len()).is_multiple_of(2) { Ending::Close } else { Ending::Reset };
                    let reached = abort(served.address, STAGES[index % STAGES.len()], ending, index);
                    n_reached.fetch_add(usize::from(reached.expect("it connects")), Ordering::Relaxed);
                }
            });
        }
    });
    n_reached.into_inner()
}

/// Valid and invalid requests to every endpoint, streamed and whole, from several clients. Every answer must be the known one. Calls
/// `sampled` after each of `n_samples` equal parts.
pub(crate) fn mixed_round(
    served: &Served,
    n_requests: usize,
    n_samples: usize,
    sampled: impl Fn(Sample) + Sync,
) {
    let known = known_answers();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| {
                let mut client = Client::new(served.address);
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= n_requests {
                        return;
                    }
                    if index.is_multiple_of((n_requests / n_samples).max(1)) {
                        sampled(served.sample());
                    }
                    // A step that shares no divisor with the number of calls, so that neighbours change.
                    let (call, expected) = &known[(index * 7 + index / known.len()) % known.len()];
                    assert_eq!(client.text(call), *expected, "request {index}: {call:?}");
                }
            });
        }
    });
}
