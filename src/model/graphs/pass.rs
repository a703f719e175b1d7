//! A pass over the blocks: it takes each block's layers when it comes to it, and waits where they are not there yet.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::file::BlockLayers;
use super::slots::{Slot, Slots, WorkKind};
use crate::model::transformer::{ForwardError, PassEnd};
use crate::model::weights::Layer;
use crate::schedule::GraphKind;

/// How often a pass that waits looks whether it is cancelled.
const CANCEL_INTERVAL: Duration = Duration::from_millis(5);

/// One forward pass. While it lives no other pass runs: the blocks' memory is theirs alone.
pub(in crate::model) struct Pass<'a> {
    slots: &'a Slots,
    graph_lens: [usize; 2],
    end: PassEnd,
    _turn: MutexGuard<'a, ()>,
    is_finished: bool,
}

/// The layers of a block, for as long as this pass computes them.
pub(in crate::model) struct Block {
    layers: Arc<BlockLayers>,
    graph: GraphKind,
    /// Rows of a call: no more, and no fewer.
    pub(in crate::model) batch_len: usize,
    started: Instant,
}

impl Block {
    pub(in crate::model) fn layers(&self) -> &[Layer] {
        &self.layers.layers
    }
}

impl<'a> Pass<'a> {
    /// A pass to the final hidden states is the end of a prefill: blocks that have not changed yet are told to.
    pub(super) fn new(
        slots: &'a Slots,
        graph_lens: [usize; 2],
        turn: MutexGuard<'a, ()>,
        end: PassEnd,
    ) -> Self {
        if end == PassEnd::Hidden {
            let mut state = slots.lock();
            state.schedule = None;
            for block_idx in 0..state.slots.len() {
                if state.slots[block_idx].graph() == Some(GraphKind::Prefill) {
                    state.request(block_idx, GraphKind::Verify);
                }
            }
            slots.notify();
        }
        Self { slots, graph_lens, end, _turn: turn, is_finished: false }
    }

    /// The layers of a block, once they are there.
    ///
    /// # Errors
    /// [`ForwardError::Layers`]: they could not be read; the next pass tries again. [`ForwardError::Cancelled`].
    pub(in crate::model) fn block(
        &self,
        block_idx: usize,
        cancel: &AtomicBool,
    ) -> Result<Block, ForwardError> {
        let mut state = self.slots.lock();
        loop {
            if cancel.load(Ordering::Relaxed) {
                return Err(ForwardError::Cancelled);
            }
            match &mut state.slots[block_idx] {
                Slot::Ready { graph, layers } => {
                    let (layers, graph) = (Arc::clone(layers), *graph);
                    let batch_len = self.graph_lens[graph as usize];
                    return Ok(Block { layers, graph, batch_len, started: Instant::now() });
                }
                Slot::Empty { error, .. } => {
                    if let Some(error) = error.take() {
                        return Err(ForwardError::Layers(error));
                    }
                    let graph = match self.end {
                        PassEnd::Hidden => GraphKind::Verify,
                        PassEnd::KeysAndValues => GraphKind::Prefill,
                    };
                    state.request(block_idx, graph);
                    self.slots.notify();
                }
                Slot::Queued { .. } | Slot::Loading { .. } => {
                    state = self.slots.wait(state, Some(CANCEL_INTERVAL));
                }
            }
        }
    }

    /// The block has computed its part; its graph may be changed from now on.
    pub(in crate::model) fn computed(&self, block_idx: usize, block: Block) {
        let Block { layers, graph, started, .. } = block;
        let ended = Instant::now();
        drop(layers);
        let mut state = self.slots.lock();
        state.traced(WorkKind::Compute, block_idx, graph, started, ended);
        if let Some(schedule) = &mut state.schedule {
            schedule.n_computed += 1;
            state.advance();
            self.slots.notify();
        }
    }

    /// All blocks have computed.
    pub(in crate::model) fn finish(mut self) {
        self.is_finished = true;
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            // The chunk will be computed again, from its first block; the plan does not know of that.
            self.slots.lock().schedule = None;
        }
    }
}
