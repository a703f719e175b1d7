//! The thread that reads graphs while passes compute.

use std::sync::Arc;

use super::slots::{LoadJob, Slot, Slots, WorkKind};
use crate::kernels::Instant;

/// Loads queued graphs, one at a time, until the target is dropped.
pub(super) fn run(slots: &Slots) {
    let mut state = slots.lock();
    loop {
        let LoadJob { block_idx, graph, pages } = match state.take() {
            Ok(Some(job)) => job,
            Ok(None) => {
                state = slots.wait(state, None);
                continue;
            }
            Err(_closed) => return,
        };
        drop(state);
        let start = Instant::now();
        let loaded = slots.files[block_idx][graph as usize].load(pages);
        state = slots.lock();
        state.traced(WorkKind::Load, block_idx, graph, start, Instant::now());
        state.n_loads += 1;
        state.slots[block_idx] = match loaded {
            Ok(layers) => Slot::Ready { graph, layers: Arc::new(layers) },
            Err(failed) => {
                let (pages, error) = *failed;
                Slot::Empty { pages, error: Some(error) }
            }
        };
        slots.notify();
    }
}
