//! Experts of streamed layers: a pass reads those that its rows choose, and those in use stay in memory.
//!
//! A *slot* holds the three matrices of an expert. When a pass needs an expert that no slot holds, the coldest slot takes it.
//! The *heat* of an expert is the number of its uses, where older uses count less: a use counts half after
//! [`HALF_LIFE`] passes. As the order of two experts must not change while neither is used, heat is kept as the logarithm of
//! uses that grow in weight.
//!
//! The experts that a pass needs are known only behind its router, so nothing is read ahead. A failed read fails only the
//! pass that waits for it. Reads of a pass that was cancelled go on, and fill their slots.
//!
//! Cost: a decoding step that finds `h` of its experts in memory reads `(1 − h) · n_used · layers` experts. For
//! Qwen3-30B-A3B in Q4_0 (48 layers, 8 of 128 experts of 2.6 MB), a step uses 1.0 GB of experts of 16 GB.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::kernels::Instant;
use crate::kernels::{ActivationForm, AllocError, BlockType, PackedMatrix, PackedRows, PageBlock, PageBuf};
use crate::model::arch::tensors::{LayerWeight, WeightId, is_expert_matrix};
use crate::model::config::FeedForward;
use crate::model::packed::{PAGE_BYTES, PackedFile, PackedSection, PackedTensor, Part};
use refrain_stream::{
    BlockRead, BlockReads, DIRECT_ALIGN, Meter, Patience, ReadAt, ReadFailure, StreamOptions, TakeError,
};

use super::BLOCK_BYTES;

/// Concurrent reads. A step of one row reads the matrices of a few experts at a time.
const N_READS: usize = 16;

/// Passes after which a use counts half.
const HALF_LIFE: f64 = 64.0;

/// How long a release of memory waits for reads under way.
const LEAN_WAIT: Duration = Duration::from_millis(100);

/// The matrices of an expert, in the order of a slot.
const MATRICES: [LayerWeight; 3] = [LayerWeight::ExpertGate, LayerWeight::ExpertUp, LayerWeight::ExpertDown];

/// Where a layer has the matrices of its experts.
#[derive(Clone, Copy, Debug)]
struct Place {
    /// The offset of the first expert's matrix in the file.
    start: u64,
    /// Bytes of an expert's matrix: whole panels.
    len: u64,
    ty: BlockType,
    /// Of an expert.
    n_rows: usize,
    n_cols: usize,
}

impl Place {
    /// The pages of an expert's matrix: their offset, their bytes, and the bytes before the matrix.
    fn pages(&self, expert: u64) -> (u64, usize, usize) {
        let page = DIRECT_ALIGN as u64;
        let start = self.start + expert * self.len;
        let offset = start - start % page;
        let end = (start + self.len).next_multiple_of(page);
        (offset, (end - offset) as usize, (start - offset) as usize)
    }

    /// Bytes of a buffer for any expert.
    fn buffer_len(&self) -> u64 {
        (self.len + 2 * PAGE_BYTES).next_multiple_of(PAGE_BYTES)
    }
}

/// The experts of a packed file, by layer.
pub(super) struct ExpertPlaces {
    /// `[n_layers]`
    layers: Vec<Option<[Place; 3]>>,
    n_experts_max: usize,
    n_used_max: usize,
    /// Layers with experts.
    n_layers: usize,
    /// Experts of all layers.
    n_total: usize,
    /// Bytes of all experts in the file.
    bytes: u64,
    /// Bytes of the experts of one row.
    pub(super) row_bytes: u64,
}

/// Sizes of the experts, for the choice of what is in memory.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ExpertSizes {
    /// Memory of a slot.
    pub(super) slot_bytes: u64,
    /// The fewest slots: the experts of a row.
    pub(super) n_min: usize,
    /// Experts of all layers.
    pub(super) n_total: usize,
    /// Bytes of all experts in the file.
    pub(super) bytes: u64,
}

impl ExpertPlaces {
    /// `None` if no layer has experts.
    pub(super) fn of(file: &PackedFile) -> Option<Self> {
        let config = file.config();
        let mut places = Self {
            layers: vec![None; config.n_layers()],
            n_experts_max: 0,
            n_used_max: 0,
            n_layers: 0,
            n_total: 0,
            bytes: 0,
            row_bytes: 0,
        };
        for section in file.sections() {
            let Part::Layer(layer_idx) = section.part else { continue };
            let FeedForward::Experts(experts) = &config.layers[layer_idx].feed else { continue };
            let place = |weight: LayerWeight| {
                let id = WeightId::Layer(layer_idx, weight);
                let tensor = section.tensors.iter().find(|tensor| tensor.id == id);
                let tensor = tensor.expect("the header was held against the hyper-parameters");
                Place {
                    start: section.offset + tensor.offset,
                    len: tensor.len / experts.n_experts as u64,
                    ty: tensor.ty,
                    n_rows: tensor.shape[0] as usize / experts.n_experts,
                    n_cols: tensor.shape[1] as usize,
                }
            };
            let of_layer = MATRICES.map(place);
            let expert_bytes: u64 = of_layer.iter().map(|place| place.len).sum();
            places.layers[layer_idx] = Some(of_layer);
            places.n_experts_max = places.n_experts_max.max(experts.n_experts);
            places.n_used_max = places.n_used_max.max(experts.n_used);
            places.n_layers += 1;
            places.n_total += experts.n_experts;
            places.bytes += expert_bytes * experts.n_experts as u64;
            places.row_bytes += expert_bytes * experts.n_used as u64;
        }
        (places.n_layers > 0).then_some(places)
    }

    pub(super) fn sizes(&self) -> ExpertSizes {
        let slot_bytes = self.buffer_lens().map(PageBuf::size_bytes).iter().sum();
        ExpertSizes { slot_bytes, n_min: self.n_used_max, n_total: self.n_total, bytes: self.bytes }
    }

    /// The lengths of the buffers of a slot: room for any layer's.
    fn buffer_lens(&self) -> [u64; 3] {
        [0, 1, 2].map(|i| {
            let lens = self.layers.iter().flatten().map(|places| places[i].buffer_len());
            lens.max().unwrap_or(0)
        })
    }
}

/// A section without the matrices of experts, which are its last tensors.
pub(super) fn without_experts(section: &PackedSection) -> PackedSection {
    let mut section = section.clone();
    let is_expert = |tensor: &PackedTensor| is_expert_matrix(tensor.id);
    let Some(first) = section.tensors.iter().position(is_expert) else { return section };
    debug_assert!(section.tensors[first..].iter().all(is_expert), "experts are the last tensors");
    section.len = section.tensors[first].offset.next_multiple_of(PAGE_BYTES);
    section.tensors.truncate(first);
    section
}

/// The experts in memory.
pub(in crate::model) struct ExpertCache {
    places: ExpertPlaces,
    reads: BlockReads,
    meter: Arc<Meter>,
    stall_max: Duration,
    /// Slots without memory pressure.
    n_planned: usize,
    n_slots: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    slots: Vec<Slot>,
    /// The slot of each expert of each layer.
    slot_of: Vec<Option<usize>>,
    /// The heat of each expert of each layer.
    heat: Vec<f64>,
    /// Calls of `load`.
    n_calls: u64,
    /// The newest failure, with the call that requested the read.
    failure: Option<(u64, ReadFailure)>,
}

/// The matrices of an expert, or room for them.
struct Slot {
    /// The expert, as an index of `slot_of`.
    expert: Option<usize>,
    buffers: [Buffer; 3],
    /// Blocks whose reads have not ended.
    n_blocks: usize,
    failure: Option<ReadFailure>,
    /// The newest call that wants the expert.
    call: u64,
    /// The call that requested its reads.
    requested: u64,
}

enum Buffer {
    Pages(Arc<PageBuf>),
    /// The blocks whose reads have ended.
    Blocks(Vec<PageBlock>),
}

impl Slot {
    fn new(lens: [u64; 3]) -> Result<Self, AllocError> {
        let pages = |len: u64| PageBuf::zeroed(usize::try_from(len).unwrap_or(usize::MAX));
        let [gate, up, down] = lens;
        let pages = [pages(gate)?, pages(up)?, pages(down)?];
        let buffers = pages.map(|pages| Buffer::Pages(Arc::new(pages)));
        Ok(Self { expert: None, buffers, n_blocks: 0, failure: None, call: 0, requested: 0 })
    }

    /// Whether it can take another expert.
    fn is_free(&mut self) -> bool {
        let unused = |buffer: &mut Buffer| match buffer {
            Buffer::Pages(pages) => Arc::get_mut(pages).is_some(),
            Buffer::Blocks(_) => false,
        };
        self.n_blocks == 0 && self.buffers.iter_mut().all(unused)
    }

    fn is_ready(&self) -> bool {
        self.n_blocks == 0 && self.failure.is_none()
    }
}

/// Experts of a layer, while a pass computes with them.
pub(in crate::model) struct LoadedExperts {
    matrices: Vec<[PackedMatrix; 3]>,
}

impl LoadedExperts {
    /// A matrix of the expert at index `at` of those that were loaded.
    pub(in crate::model) fn rows(&self, weight: LayerWeight, at: usize) -> PackedRows<'_> {
        let matrix = MATRICES.iter().position(|&other| other == weight).expect("a matrix of an expert");
        let matrix = &self.matrices[at][matrix];
        matrix.rows(0..matrix.n_rows())
    }
}

impl ExpertCache {
    /// `n_slots` slots, at least the experts of a row.
    pub(super) fn new(
        places: ExpertPlaces,
        n_slots: usize,
        file: Arc<dyn ReadAt>,
        meter: Arc<Meter>,
        options: &StreamOptions,
    ) -> Result<Self, super::StreamedError> {
        let lens = places.buffer_lens();
        let slots = (0..n_slots).map(|_| Slot::new(lens)).collect::<Result<Vec<_>, _>>()?;
        let n_keys = places.layers.len() * places.n_experts_max;
        let state = State {
            slots,
            slot_of: vec![None; n_keys],
            heat: vec![f64::NEG_INFINITY; n_keys],
            n_calls: 0,
            failure: None,
        };
        let reads =
            BlockReads::new(file, Arc::clone(&meter), N_READS).map_err(super::StreamedError::Spawn)?;
        Ok(Self {
            places,
            reads,
            meter,
            stall_max: options.stall_max,
            n_planned: n_slots,
            n_slots: AtomicUsize::new(n_slots),
            state: Mutex::new(state),
        })
    }

    /// Experts that can be in memory at a time.
    pub(in crate::model) fn n_slots(&self) -> usize {
        self.n_slots.load(Ordering::Relaxed)
    }

    /// Memory of the slots.
    pub(super) fn bytes(&self) -> u64 {
        self.places.sizes().slot_bytes * self.n_slots() as u64
    }

    /// The form of activations that a matrix of the layer's experts is multiplied with.
    pub(in crate::model) fn form(&self, layer_idx: usize, weight: LayerWeight) -> ActivationForm {
        let places = self.places.layers[layer_idx].as_ref().expect("a layer of experts");
        let at = MATRICES.iter().position(|&other| other == weight).expect("a matrix of an expert");
        if places[at].ty.block_len() == 1 { ActivationForm::F32 } else { ActivationForm::Int8 }
    }

    /// Reduces the slots to those of one row, or has all of them again. No pass may be under way. Waits for reads of a cancelled pass, for
    /// [`LEAN_WAIT`] in which none ends; if they take longer, a later call releases their slots.
    pub(super) fn set_lean(&self, is_lean: bool) {
        let mut state = self.lock();
        self.collect(&mut state, self.reads.ended_already());
        let wanted = if is_lean { self.places.n_used_max.min(self.n_planned) } else { self.n_planned };
        let mut patience = Patience::new(LEAN_WAIT, self.reads.n_reads());
        while state.slots.len() > wanted {
            if state.slots.last_mut().is_some_and(Slot::is_free) {
                let slot = state.slots.pop();
                if let Some(expert) = slot.and_then(|slot| slot.expert) {
                    state.slot_of[expert] = None;
                }
            } else if patience.is_over(self.reads.n_reads()) {
                break;
            } else {
                let ended = self.reads.ended(&mut patience);
                self.collect(&mut state, ended);
            }
        }
        // Fewer slots are enough if there is no memory for more.
        while state.slots.len() < wanted {
            let Ok(slot) = Slot::new(self.places.buffer_lens()) else { break };
            state.slots.push(slot);
        }
        self.n_slots.store(state.slots.len(), Ordering::Relaxed);
    }

    /// Waits for experts of a layer, at most [`n_slots`](Self::n_slots), each named once. What an earlier call returned must
    /// have been dropped.
    ///
    /// # Errors
    /// [`TakeError`]; a later call reads again.
    pub(super) fn load(
        &self,
        layer_idx: usize,
        experts: &[u32],
        cancel: &AtomicBool,
    ) -> Result<LoadedExperts, TakeError> {
        let places = self.places.layers[layer_idx].as_ref().expect("a layer of experts");
        let start = Instant::now();
        let mut state = self.lock();
        assert!(experts.len() <= state.slots.len(), "{} experts, {} slots", experts.len(), state.slots.len());
        state.n_calls += 1;
        let call = state.n_calls;
        let age = call as f64 / (HALF_LIFE * self.places.n_layers as f64);
        self.collect(&mut state, self.reads.ended_already());
        let first = layer_idx * self.places.n_experts_max;
        let mut n_hits = 0;
        for &expert in experts {
            let key = first + expert as usize;
            state.heat[key] = ((state.heat[key] - age).exp2() + 1.0).log2() + age;
            if let Some(slot) = state.slot_of[key] {
                state.slots[slot].call = call;
                n_hits += usize::from(state.slots[slot].is_ready());
            }
        }
        self.meter.experts(experts.len(), n_hits);
        let limit = self.stall_max;
        let mut patience = Patience::new(limit, self.reads.n_reads());
        let result = loop {
            if cancel.load(Ordering::Relaxed) {
                break Err(TakeError::Cancelled);
            }
            if let Some((_, failure)) = state.failure.take_if(|(of, _)| *of == call) {
                break Err(TakeError::Failed(failure));
            }
            let mut n_missing = 0;
            for &expert in experts {
                let key = first + expert as usize;
                match state.slot_of[key] {
                    Some(slot) if state.slots[slot].is_ready() => continue,
                    // (A read that an earlier call requested may have failed; then the expert will have no slot.)
                    Some(_) => {}
                    None => self.request(&mut state, key, places, expert, call),
                }
                n_missing += 1;
            }
            if n_missing == 0 {
                break Ok(());
            }
            if patience.is_over(self.reads.n_reads()) {
                break Err(TakeError::Failed(ReadFailure::Stalled { offset: places[0].start, limit }));
            }
            let ended = self.reads.ended(&mut patience);
            self.collect(&mut state, ended);
        };
        if n_hits < experts.len() {
            self.meter.stalled(start.elapsed());
        }
        result?;
        let matrices = experts.iter().map(|&expert| {
            let slot = state.slot_of[first + expert as usize].expect("every expert is in memory");
            let buffers = &state.slots[slot].buffers;
            [0, 1, 2].map(|i| {
                let Place { ty, n_rows, n_cols, .. } = places[i];
                let Buffer::Pages(pages) = &buffers[i] else { unreachable!("all reads have ended") };
                let skipped = places[i].pages(u64::from(expert)).2;
                let matrix = PackedMatrix::from_pages(ty, n_rows, n_cols, Arc::clone(pages), skipped);
                matrix.expect("panels of a matrix that was checked with the header")
            })
        });
        Ok(LoadedExperts { matrices: matrices.collect() })
    }

    /// Requests the reads of an expert into the coldest slot; waits for a later call if none is free.
    fn request(&self, state: &mut State, key: usize, places: &[Place; 3], expert: u32, call: u64) {
        let State { slots, slot_of, heat, .. } = state;
        let coldest = slots
            .iter_mut()
            .enumerate()
            .filter_map(|(i, slot)| (slot.call != call && slot.is_free()).then_some((i, slot.expert)))
            .map(|(i, expert)| (i, expert.map_or(f64::NEG_INFINITY, |expert| heat[expert])))
            .min_by(|a, b| a.1.total_cmp(&b.1));
        let Some((slot_idx, _)) = coldest else { return };
        let slot = &mut slots[slot_idx];
        if let Some(old) = slot.expert.replace(key) {
            slot_of[old] = None;
        }
        slot_of[key] = Some(slot_idx);
        (slot.call, slot.requested, slot.failure) = (call, call, None);
        let mut requests = Vec::new();
        for (i, place) in places.iter().enumerate() {
            let Buffer::Pages(pages) = std::mem::replace(&mut slot.buffers[i], Buffer::Blocks(Vec::new()))
            else {
                unreachable!("a free slot has its pages");
            };
            let pages = Arc::into_inner(pages).expect("a free slot is not viewed");
            let (offset, len, _) = place.pages(u64::from(expert));
            let blocks = pages.split(len, BLOCK_BYTES).into_iter();
            requests.extend(blocks.map(|block| BlockRead {
                tag: 3 * slot_idx + i,
                offset: offset + block.start() as u64,
                block,
            }));
        }
        slot.n_blocks = requests.len();
        self.reads.request(requests);
    }

    /// Gives blocks back to their slots. A slot with a failed read becomes empty with its last block.
    fn collect(&self, state: &mut State, ended: Vec<(BlockRead, Result<(), ReadFailure>)>) {
        for (read, result) in ended {
            let (slot_idx, buffer) = (read.tag / 3, read.tag % 3);
            let slot = &mut state.slots[slot_idx];
            if let Buffer::Blocks(blocks) = &mut slot.buffers[buffer] {
                blocks.push(read.block);
            }
            if let Err(failure) = result {
                slot.failure.get_or_insert(failure);
            }
            slot.n_blocks -= 1;
            if slot.n_blocks > 0 {
                continue;
            }
            for buffer in &mut slot.buffers {
                if let Buffer::Blocks(blocks) = buffer {
                    *buffer = Buffer::Pages(Arc::new(PageBlock::join(std::mem::take(blocks))));
                }
            }
            if let Some(failure) = slot.failure.take() {
                // The call that wants it now may not be the one that requested it: then it requests it again, into any slot.
                state.failure = Some((slot.requested, failure));
                slot.call = 0;
                if let Some(expert) = slot.expert.take() {
                    state.slot_of[expert] = None;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held would be a bug; slots and their table are changed together.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
