//! A pass over the blocks: it waits for the layers of each block, computes them, and releases them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};

use super::file::BlockLayers;
use super::slots::{CANCEL_INTERVAL, Slot, Slots, WorkKind};
use crate::kernels::Instant;
use crate::model::compute::PassEnd;
use crate::model::resident::Layer;
use crate::model::transformer::error::ForwardError;
use crate::schedule::GraphKind;
/// One forward pass. Only one exists at a time.
pub(in crate::model) struct Pass<'a> {
    slots: &'a Slots,
    graph_lens: [usize; 2],
    end: PassEnd,
    _turn: MutexGuard<'a, ()>,
    is_finished: bool,
}

/// The layers of a block while this pass computes them.
pub(in crate::model) struct Block {
    layers: Arc<BlockLayers>,
    graph: GraphKind,
    /// The exact number of rows of a call.
    pub(in crate::model) batch_len: usize,
    started: Instant,
}

impl Block {
    pub(in crate::model) fn layers(&self) -> &[Layer] {
        &self.layers.layers
    }
}

impl<'a> Pass<'a> {
    /// Begins a pass. A pass to the final hidden states ends a prefill, so it requests the graph changes that
    /// remain.
    pub(super) fn new(
        slots: &'a Slots,
        graph_lens: [usize; 2],
        turn: MutexGuard<'a, ()>,
        end: PassEnd,
    ) -> Self {
        if end != PassEnd::KeysAndValues {
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

    /// Waits for the layers of a block.
    ///
    /// # Errors
    /// [`ForwardError::Layers`] if they could not be read (the next pass reads again),
    /// [`ForwardError::Cancelled`].
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
                        PassEnd::Hidden | PassEnd::Unprojected => GraphKind::Verify,
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

    /// Declares that the block has been computed, so that its graph may be changed.
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

    /// Declares that all blocks have been computed.
    pub(in crate::model) fn finish(mut self) {
        self.is_finished = true;
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if !self.is_finished {
            // The chunk will be computed again from its first block, so the plan no longer fits.
            self.slots.lock().schedule = None;
        }
    }
}
