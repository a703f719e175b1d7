//! Decides, from sizes alone, which weights are pinned and which are streamed.

use super::experts::ExpertSizes;
use super::{StreamMemory, StreamedError};
use crate::kernels::PageBuf;
use refrain_stream::{DIRECT_ALIGN, Pinned};

/// Sizes of the sections of a packed model, in bytes.
#[derive(Debug, Clone)]
pub(super) struct Sizes {
    pub(super) layers: Vec<u64>,
    /// Norms and biases of each layer. A pinned layer holds a copy of them beside its section.
    pub(super) copies: Vec<u64>,
    /// The output matrix, or the embedding if they are tied.
    pub(super) head: u64,
    /// The embedding; `None` if it is tied to the output matrix.
    pub(super) embedding: Option<u64>,
    /// The rows of a streamed embedding that are kept.
    pub(super) embedding_rows: u64,
    /// One panel of the output matrix, which is its smallest piece.
    pub(super) head_panel: u64,
    /// The experts, which `layers` leaves out.
    pub(super) experts: ExpertSizes,
    /// The weights of layers' own inputs; 0 if there are none.
    pub(super) per_layer: u64,
    /// Those of them that every plan pins: all but their embedding.
    pub(super) per_layer_pinned: u64,
    /// The projections of residual streams, which every plan pins; 0 if there is one stream.
    pub(super) streams: u64,
    /// Memory of the longest sweep; 0 if the model runs none.
    pub(super) sweep: u64,
}

/// The choice of pinned weights, and the size of the ring for the others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Plan {
    /// Whether each layer is pinned.
    pub(super) layers: Vec<bool>,
    pub(super) head: bool,
    pub(super) embedding: bool,
    /// Whether rows of a streamed embedding are kept.
    pub(super) keeps_rows: bool,
    pub(super) per_layer: bool,
    /// Bytes of a buffer; 0 without a ring.
    pub(super) slot_len: u64,
    pub(super) n_slots: usize,
    /// Experts that can be in memory at a time; 0 if all are pinned with their layers, or there are none.
    pub(super) n_experts: usize,
    /// Memory for the rows of a sweep.
    pub(super) sweep_bytes: u64,
}

/// The fewest buffers of a ring: one to compute with, one to read into.
pub(super) const SLOTS_MIN: usize = 2;

/// The buffers of a ring if memory allows: with a third one, reading continues during drafting, projection
/// and sampling.
const SLOTS: usize = 3;

/// Bytes that a ring may take regardless of the budget: far less than a process holds beside its weights, and
/// enough for small models.
const RING_BYTES_FREE: u64 = 16 << 20;

/// Part of the memory for weights that the rows of a sweep may take: a token then reads at most an eighth of it more, and a prompt of `n`
/// chunks reads the weights once instead of `n` times.
const SWEEP_SHARE: u64 = 8;

impl Sizes {
    fn total(&self) -> u64 {
        self.layers.iter().chain(&self.copies).sum::<u64>()
            + self.head
            + self.embedding.unwrap_or(0)
            + self.experts.bytes
            + self.per_layer
            + self.streams
    }

    /// The length of a buffer: room for every layer, and for a panel of the output matrix that begins and
    /// ends within a page. It is rounded up to whole huge pages: into small pages, a disk took three times as
    /// long to read the end of a layer.
    fn slot_len(&self) -> u64 {
        let layer = self.layers.iter().copied().max().unwrap_or(0);
        let piece = (self.head_panel + 2 * DIRECT_ALIGN as u64).next_multiple_of(DIRECT_ALIGN as u64);
        PageBuf::huge_len(layer.max(piece))
    }
}

impl Plan {
    /// `first`: layers at the begin of the model that are pinned before others. `taken`: bytes of the budget that are not available for
    /// weights.
    ///
    /// # Errors
    /// [`StreamedError::MemoryLimit`].
    pub(super) fn new(
        sizes: &Sizes,
        pinned: Pinned,
        first: usize,
        taken: u64,
    ) -> Result<Self, StreamedError> {
        match pinned {
            Pinned::Layers(n_pinned) => Ok(Self::of_layers(sizes, n_pinned, first)),
            Pinned::Memory(limit) => Self::within(sizes, limit, first, taken),
            _ => unreachable!("the ring's crate has no other kind"),
        }
    }

    fn of_layers(sizes: &Sizes, n_pinned: usize, first: usize) -> Self {
        let n_layers = sizes.layers.len();
        if n_pinned >= n_layers {
            return Self::resident(n_layers);
        }
        let layers = chosen(n_layers, n_pinned, first);
        // A few rows' experts.
        let n_experts = (4 * sizes.experts.n_min).min(sizes.experts.n_total);
        let slot_len = sizes.slot_len();
        Self {
            layers,
            head: false,
            embedding: false,
            keeps_rows: true,
            per_layer: false,
            slot_len,
            n_slots: SLOTS,
            n_experts,
            sweep_bytes: sizes.sweep,
        }
    }

    fn resident(n_layers: usize) -> Self {
        Self {
            layers: vec![true; n_layers],
            head: true,
            embedding: true,
            keeps_rows: false,
            per_layer: true,
            slot_len: 0,
            n_slots: 0,
            n_experts: 0,
            sweep_bytes: 0,
        }
    }

    fn within(sizes: &Sizes, limit: u64, first: usize, taken: u64) -> Result<Self, StreamedError> {
        let mut left = limit.saturating_sub(taken);
        if sizes.total() <= left {
            return Ok(Self::resident(sizes.layers.len()));
        }
        let always = sizes.per_layer_pinned + sizes.streams;
        if always > left {
            return Err(StreamedError::MemoryLimit { needed: always, limit, taken });
        }
        left -= always;
        let slot_len = sizes.slot_len();
        let ring = |n_slots: usize| PageBuf::size_bytes(slot_len).saturating_mul(n_slots as u64);
        let ExpertSizes { slot_bytes, n_min, n_total, .. } = sizes.experts;
        let experts_min = slot_bytes.saturating_mul(n_min as u64);
        let needed = ring(SLOTS_MIN).saturating_add(experts_min);
        if needed > left.max(RING_BYTES_FREE) {
            return Err(StreamedError::MemoryLimit { needed: needed.saturating_add(always), limit, taken });
        }
        left = left.saturating_sub(experts_min);
        // If memory is scarce, a pinned layer is worth more than a third buffer.
        let n_slots = if ring(SLOTS) <= (left / 4).max(RING_BYTES_FREE) { SLOTS } else { SLOTS_MIN };
        left = left.saturating_sub(ring(n_slots));
        let sweep_bytes = sizes.sweep.min(left / SWEEP_SHARE);
        left -= sweep_bytes;
        let mut take = |bytes: u64| {
            let fits = bytes <= left;
            left -= if fits { bytes } else { 0 };
            fits
        };
        // First the output matrix: every pass reads all of it, like a layer, and drafting may read it again.
        let head = take(sizes.head);
        // Then little memory for many reads of single rows, each of which waits for the disk.
        let is_embedding_streamed = sizes.embedding.is_some() || !head;
        let keeps_rows = is_embedding_streamed && take(sizes.embedding_rows);
        let n_layers = sizes.layers.len();
        let bytes = |layers: &[bool]| -> u64 {
            let all = sizes.layers.iter().zip(&sizes.copies).zip(layers);
            all.filter(|(_, pinned)| **pinned).map(|((section, copies), _)| section + copies).sum()
        };
        let mut layers = vec![false; n_layers];
        for n_pinned in (1..=n_layers).rev() {
            let candidate = chosen(n_layers, n_pinned, first);
            if take(bytes(&candidate)) {
                layers = candidate;
                break;
            }
        }
        let embedding = match sizes.embedding {
            None => head,
            // Last the embedding: a pass reads only a few of its rows.
            Some(bytes) => take(bytes.saturating_sub(if keeps_rows { sizes.embedding_rows } else { 0 })),
        };
        let per_layer = take(sizes.per_layer - sizes.per_layer_pinned);
        // The rest holds experts: what a pass reads of them depends on its rows, so they come behind all that it reads anyway.
        let n_more = left.checked_div(slot_bytes).map_or(0, |n| usize::try_from(n).unwrap_or(usize::MAX));
        let n_experts = n_min.saturating_add(n_more).min(n_total);
        let keeps_rows = keeps_rows && !embedding;
        Ok(Self { layers, head, embedding, keeps_rows, per_layer, slot_len, n_slots, n_experts, sweep_bytes })
    }

    /// Bytes of memory of a buffer.
    pub(super) fn slot_bytes(&self) -> u64 {
        PageBuf::size_bytes(self.slot_len)
    }

    /// The memory that the plan takes once all pinned weights are read.
    pub(super) fn memory(&self, sizes: &Sizes) -> StreamMemory {
        let pinned = |part: u64, is_pinned: bool| if is_pinned { part } else { 0 };
        let of_layers = sizes.layers.iter().zip(&sizes.copies).zip(&self.layers);
        let layers = of_layers.map(|((section, copies), &is_pinned)| pinned(section + copies, is_pinned));
        let is_streamed = !self.head || self.layers.iter().any(|is_pinned| !is_pinned);
        let experts = &sizes.experts;
        let per_layer = if self.per_layer { sizes.per_layer } else { sizes.per_layer_pinned };
        StreamMemory {
            pinned_bytes: layers.sum::<u64>()
                + pinned(sizes.head, self.head)
                + pinned(sizes.embedding.unwrap_or(0), self.embedding)
                // Without slots, they are pinned with their layers.
                + pinned(experts.bytes, self.n_experts == 0)
                + per_layer
                + sizes.streams,
            rows_bytes: pinned(sizes.embedding_rows, self.keeps_rows),
            ring_bytes: pinned(self.slot_bytes().saturating_mul(self.n_slots as u64), is_streamed),
            experts_bytes: experts.slot_bytes.saturating_mul(self.n_experts as u64),
            prompt_bytes: self.sweep_bytes,
            n_pinned_layers: self.layers.iter().filter(|is_pinned| **is_pinned).count(),
            head_pinned: self.head,
            embedding_pinned: self.embedding,
        }
    }
}

/// Selects `n_pinned` of `n_layers` layers: the `first` ones, and others as evenly as possible.
fn chosen(n_layers: usize, n_pinned: usize, first: usize) -> Vec<bool> {
    let n_first = first.min(n_pinned);
    let mut layers = vec![true; n_first];
    layers.extend(spread(n_layers - n_first, n_pinned - n_first));
    layers
}

/// Selects `n_pinned` of `n_layers` layers as evenly as possible. During a long run of pinned layers the ring
/// would fill up and the disk would become idle.
fn spread(n_layers: usize, n_pinned: usize) -> Vec<bool> {
    (0..n_layers).map(|i| (i + 1) * n_pinned / n_layers > i * n_pinned / n_layers).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const LAYER: u64 = 24 * MIB;
    const COPIES: u64 = 12 << 10;

    fn sizes(n_layers: usize, embedding: Option<u64>) -> Sizes {
        let (layers, copies) = (vec![LAYER; n_layers], vec![COPIES; n_layers]);
        Sizes {
            layers,
            copies,
            head: 120 * MIB,
            embedding,
            embedding_rows: 3 * MIB,
            head_panel: 16 << 10,
            experts: ExpertSizes::default(),
            per_layer: 0,
            per_layer_pinned: 0,
            streams: 0,
            sweep: 0,
        }
    }

    fn ring_bytes(plan: &Plan) -> u64 {
        plan.slot_bytes() * plan.n_slots as u64
    }

    fn n_pinned(plan: &Plan) -> usize {
        plan.layers.iter().filter(|pinned| **pinned).count()
    }

    #[test]
    fn layers_are_pinned_evenly() {
        for n_layers in [1, 2, 7, 28, 36] {
            for n in 0..=n_layers {
                let layers = spread(n_layers, n);
                assert_eq!(layers.iter().filter(|pinned| **pinned).count(), n);
                let runs = layers.chunk_by(|a, b| a == b).filter(|run| run[0]).map(<[bool]>::len);
                assert!(runs.max().unwrap_or(0) <= n.div_ceil((n_layers - n).max(1)), "{n} of {n_layers}");
            }
        }
    }

    #[test]
    fn the_first_layers_are_pinned_before_others() {
        let pinned = |n_pinned: usize, first: usize| -> String {
            chosen(8, n_pinned, first).into_iter().map(|pinned| if pinned { 'x' } else { '.' }).collect()
        };
        assert_eq!(pinned(2, 4), "xx......");
        assert_eq!(pinned(4, 4), "xxxx....");
        assert_eq!(pinned(6, 4), "xxxx.x.x");
        assert_eq!((pinned(8, 4), pinned(0, 4)), ("x".repeat(8), ".".repeat(8)));
        for n in 0..=8 {
            assert_eq!(chosen(8, n, 0), spread(8, n));
        }
        let plan = |first| Plan::new(&sizes(8, None), Pinned::Layers(4), first, 0).unwrap().layers;
        assert_eq!(plan(4), chosen(8, 4, 4));
        let plan = Plan::new(&sizes(28, None), Pinned::Memory(600 * MIB), 9, 0).unwrap();
        assert_eq!(plan.layers, chosen(28, n_pinned(&plan), 9));
        assert!(n_pinned(&plan) > 9, "{plan:?}");
    }

    #[test]
    fn a_number_of_layers_is_what_is_asked_for() {
        let sizes = sizes(8, None);
        let plan = |n| Plan::new(&sizes, Pinned::Layers(n), 0, u64::MAX).unwrap();
        assert_eq!((n_pinned(&plan(3)), plan(3).head, plan(3).embedding), (3, false, false));
        assert_eq!((plan(3).slot_len, plan(3).n_slots), (24 * MIB, 3));
        assert_eq!(plan(8), Plan::resident(8));
        assert_eq!((plan(9), ring_bytes(&plan(8))), (plan(8), 0));
    }

    #[test]
    fn a_budget_is_never_exceeded_and_mostly_used() {
        for embedding in [None, Some(130 * MIB)] {
            let sizes = sizes(28, embedding);
            for limit in (60..1000).step_by(7).map(|mib| mib * MIB) {
                let taken = 10 * MIB;
                let plan = Plan::new(&sizes, Pinned::Memory(limit), 0, taken).unwrap();
                let mut used = n_pinned(&plan) as u64 * (LAYER + COPIES) + ring_bytes(&plan);
                used += if plan.head { 120 * MIB } else { 0 };
                used += if plan.embedding { embedding.unwrap_or(0) } else { 0 };
                used += if plan.keeps_rows { 3 * MIB } else { 0 };
                assert!(used + taken <= limit, "{used} of {limit}");
                let is_full = plan.layers.iter().all(|pinned| *pinned);
                let left = limit - taken - used;
                assert!(is_full || left < LAYER + COPIES, "{used} of {limit}: {plan:?}");
                assert!(plan.keeps_rows != plan.embedding || left < 3 * MIB, "{plan:?}");
                assert!(embedding.is_some() || plan.embedding == plan.head, "a tied matrix is one");
            }
        }
    }

    #[test]
    fn a_long_prompt_takes_an_eighth_of_the_budget_at_most() {
        let sizes = Sizes { sweep: 50 * MIB, ..sizes(28, None) };
        for limit in (60..900).step_by(7).map(|mib| mib * MIB) {
            let plan = Plan::new(&sizes, Pinned::Memory(limit), 0, 10 * MIB).unwrap();
            let head = if plan.head { 120 * MIB } else { 0 };
            let used = n_pinned(&plan) as u64 * (LAYER + COPIES) + ring_bytes(&plan) + head;
            if plan.n_slots > 0 {
                assert!(used + plan.sweep_bytes + 10 * MIB <= limit, "{used} of {limit}: {plan:?}");
                assert!(plan.sweep_bytes <= (limit / 8).min(50 * MIB), "{plan:?}");
                assert!(plan.sweep_bytes == 50 * MIB || limit < 600 * MIB, "{plan:?}");
            }
        }
        assert_eq!(Plan::new(&sizes, Pinned::Layers(3), 0, 0).unwrap().sweep_bytes, 50 * MIB);
        assert_eq!(Plan::resident(28).sweep_bytes, 0);
    }

    #[test]
    fn experts_take_what_is_left() {
        let experts = ExpertSizes { slot_bytes: 3 * MIB, n_min: 8, n_total: 28 * 128, bytes: 10_000 * MIB };
        let sizes = Sizes { experts, ..sizes(28, None) };
        let fixed = sizes.total() - experts.bytes;
        for limit in [200, 500, 1000, 4000, 9000].map(|mib| mib * MIB) {
            let plan = Plan::new(&sizes, Pinned::Memory(limit), 0, 0).unwrap();
            let used = n_pinned(&plan) as u64 * (LAYER + COPIES)
                + ring_bytes(&plan)
                + if plan.head { 120 * MIB } else { 0 }
                + if plan.keeps_rows { 3 * MIB } else { 0 }
                + plan.n_experts as u64 * experts.slot_bytes;
            assert!(plan.n_experts >= 8 && used <= limit, "{used} of {limit}: {plan:?}");
            assert!(limit - used < LAYER + COPIES || plan.n_experts == experts.n_total, "{plan:?}");
            assert_eq!(n_pinned(&plan) == 28, limit > fixed + 200 * MIB, "{plan:?}");
        }
        match Plan::new(&sizes, Pinned::Memory(0), 0, 0) {
            Err(StreamedError::MemoryLimit { needed, .. }) => {
                assert_eq!(needed, 2 * PageBuf::size_bytes(24 * MIB) + 24 * MIB);
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(Plan::new(&sizes, Pinned::Memory(sizes.total()), 0, 0).unwrap(), Plan::resident(28));
        assert_eq!(Plan::new(&sizes, Pinned::Layers(3), 0, 0).unwrap().n_experts, 32);
    }

    #[test]
    fn what_fits_is_resident_and_what_cannot_be_streamed_is_refused() {
        let sizes = sizes(28, Some(130 * MIB));
        let plan = |limit| Plan::new(&sizes, Pinned::Memory(limit), 0, 7);
        assert_eq!(plan(sizes.total() + 7).unwrap(), Plan::resident(28));
        assert!(plan(sizes.total() + 6).unwrap().n_slots > 0);
        match plan(0) {
            Err(StreamedError::MemoryLimit { needed, limit: 0, taken: 7 }) => {
                assert_eq!(needed, 2 * PageBuf::size_bytes(24 * MIB));
                assert!(plan(needed + 7).is_ok() && plan(needed + 6).is_err());
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_small_model_streams_with_no_budget_at_all() {
        let (layers, copies) = (vec![MIB / 2; 6], vec![0; 6]);
        let sizes = Sizes {
            layers,
            copies,
            head: 300 << 10,
            embedding: None,
            embedding_rows: 0,
            head_panel: 5 << 10,
            per_layer: 0,
            per_layer_pinned: 0,
            streams: 0,
            sweep: 0,
            experts: ExpertSizes::default(),
        };
        let plan = Plan::new(&sizes, Pinned::Memory(0), 0, 50 * MIB).unwrap();
        assert_eq!((n_pinned(&plan), plan.head, plan.n_slots), (0, false, 3));
    }

    #[test]
    fn a_buffer_holds_a_panel_wherever_its_pages_begin() {
        let (layers, copies) = (vec![4096], vec![0]);
        let sizes = Sizes {
            layers,
            copies,
            head: 64 << 10,
            embedding: None,
            embedding_rows: 0,
            head_panel: 16 << 10,
            per_layer: 0,
            per_layer_pinned: 0,
            streams: 0,
            sweep: 0,
            experts: ExpertSizes::default(),
        };
        assert_eq!(Plan::new(&sizes, Pinned::Layers(0), 0, 0).unwrap().slot_len, (16 << 10) + 8192);
    }
}
