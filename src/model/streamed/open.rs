//! Setting up a streamed model: pinned weights are read, all others become extents of a ring.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::experts::{ExpertCache, ExpertPlaces, ExpertSizes, without_experts};
use super::plan::{Plan, Sizes};
use super::rows::{self, RowReader};
use super::{
    BLOCK_BYTES, EMBEDDING_ROWS_KEPT, N_READS, StreamMemory, Streamed, StreamedError, StreamedLayer, head,
};
use crate::kernels::{PANEL_ROWS, PackedMatrix, PageBuf};
use crate::model::checkpoint::WeightId;
use crate::model::config::ModelConfig;
use crate::model::layers::{LayersError, SectionTensors, vectors_bytes};
use crate::model::packed::{PackedFile, PackedSection, PackedTensor, Part};
use crate::model::resident::{PerLayerWeights, StreamWeights, TensorSource, Weights};
use crate::model::transformer::{SWEEP_ROWS_MAX, sweep_bytes};
use refrain_stream::{
    Extent, Meter, ReadAt, ReadFailure, Ring, RingOptions, StreamOptions, Turns, check_options, read_full,
    reader_of, resident_bytes,
};

impl Streamed {
    /// Reads the pinned weights and starts the ring's threads; `progress` is called with (bytes read, bytes
    /// to read).
    ///
    /// The returned [`Weights`] hold all pinned weights except the layers.
    ///
    /// # Errors
    /// [`StreamedError`].
    pub(in crate::model) fn open(
        file: &PackedFile,
        options: &StreamOptions,
        progress: Option<&dyn Fn(u64, u64)>,
    ) -> Result<(Self, Weights), StreamedError> {
        check_options(options)?;
        let name = file.file().to_owned();
        let Some(direct) = file.reopen_direct() else {
            return Err(StreamedError::InMemory { file: name });
        };
        let direct = direct.map_err(|source| StreamedError::Io { file: name, source })?;
        let places = ExpertPlaces::of(file);
        let plan = plan(&sizes(file, places.as_ref()), options)?;
        let reader = reader_of(options, Arc::new(direct));
        // Without slots, all experts are pinned with their layers.
        let places = places.filter(|_| plan.n_experts > 0);
        Opening { file, plan, places, reader, meter: Arc::default(), progress }.open(options)
    }

    /// The memory for weights that [`open`](Self::open) would take now, from the header alone.
    ///
    /// # Errors
    /// [`StreamedError::MemoryLimit`], or a number of the options is out of its range.
    pub(in crate::model) fn planned_memory(
        file: &PackedFile,
        options: &StreamOptions,
    ) -> Result<StreamMemory, StreamedError> {
        check_options(options)?;
        let sizes = sizes(file, ExpertPlaces::of(file).as_ref());
        Ok(plan(&sizes, options)?.memory(&sizes))
    }
}

/// The choice of pinned weights within what the process does not hold yet.
fn plan(sizes: &Sizes, options: &StreamOptions) -> Result<Plan, StreamedError> {
    let taken = resident_bytes().unwrap_or(0).saturating_add(options.reserved_bytes);
    Plan::new(sizes, options.pinned, options.pinned_first, taken)
}

/// A streamed model while it is set up.
struct Opening<'a> {
    file: &'a PackedFile,
    plan: Plan,
    /// The experts, if they are read on request.
    places: Option<ExpertPlaces>,
    reader: Arc<dyn ReadAt>,
    meter: Arc<Meter>,
    progress: Option<&'a dyn Fn(u64, u64)>,
}

impl Opening<'_> {
    fn open(mut self, options: &StreamOptions) -> Result<(Streamed, Weights), StreamedError> {
        let tied = self.file.config().tied_head;
        let mut pinned = PinnedBytes { done: 0, total: self.pinned_bytes(), vectors: 0 };
        let mut extents = Vec::new();
        let layers = self.layers(&mut extents, &mut pinned)?;
        let layers_bytes = pinned.done + pinned.vectors;
        let weights = self.ends(&mut pinned)?;
        let ends_bytes = pinned.done + pinned.vectors - layers_bytes;
        let mut head = Vec::new();
        if !self.plan.head {
            let (tensor, start) = place(self.file, head_id(tied));
            head = head::pieces(tensor, start, self.plan.slot_len, &mut extents);
        }
        let head_rows = self.rows(head_id(tied), self.plan.head)?;
        let mut embedding_rows = self.rows(WeightId::Embedding, self.plan.embedding)?;
        if let Some(rows) = embedding_rows.as_mut().filter(|_| self.plan.keeps_rows) {
            rows.keep(EMBEDDING_ROWS_KEPT)?;
        }
        let is_per_layer_pinned = self.plan.per_layer || self.file.config().per_layer.is_none();
        let per_layer_rows = self.rows(WeightId::PerLayerEmbedding, is_per_layer_pinned)?;
        let is_read =
            |extent_idx: usize| !layers.get(extent_idx).is_some_and(|layer: &StreamedLayer| layer.is_planned);
        let read = extents.iter().enumerate().filter(|(extent_idx, _)| is_read(*extent_idx));
        let ring_pass_bytes: u64 = read.map(|(_, extent)| extent.len as u64).sum();
        let row_bytes = self.places.as_ref().map_or(0, |places| places.row_bytes);
        let pass_bytes = ring_pass_bytes + row_bytes;
        let experts = match self.places.take() {
            Some(places) => {
                let (file, meter) = (Arc::clone(&self.reader), Arc::clone(&self.meter));
                Some(ExpertCache::new(places, self.plan.n_experts, file, meter, options)?)
            }
            None => None,
        };
        let ring = if ring_pass_bytes > 0 { Some(self.ring(extents, options)?) } else { None };
        for (extent_idx, _) in layers.iter().enumerate().filter(|(_, layer)| layer.is_planned) {
            ring.iter().for_each(|ring| ring.skip(extent_idx));
        }
        let (file, turns) = (self.file.file().to_owned(), Turns::default());
        let Self { reader, meter, plan, .. } = self;
        let config = self.file.config().clone();
        let streamed = Streamed {
            file,
            config,
            reader,
            meter,
            layers,
            head,
            head_rows,
            embedding_rows,
            per_layer_rows,
            ring,
            experts,
            turns,
            plan,
            ends_bytes,
            pass_bytes,
            lean_wanted: AtomicBool::new(false),
            is_lean: AtomicBool::new(false),
            sweeps: AtomicBool::new(false),
        };
        Ok((streamed, weights))
    }

    fn layers(
        &self,
        extents: &mut Vec<Extent>,
        pinned: &mut PinnedBytes,
    ) -> Result<Vec<StreamedLayer>, StreamedError> {
        let mut layers = Vec::with_capacity(self.plan.layers.len());
        for section in self.file.sections() {
            let Part::Layer(layer_idx) = section.part else { continue };
            let is_planned = self.plan.layers[layer_idx];
            let section = &self.section(section);
            let mut layer = None;
            if is_planned {
                let pages = self.read(section, pinned)?;
                let sections = std::slice::from_ref(section);
                layer = Some(Arc::new(
                    SectionTensors { sections, pages: &pages }.layer(self.file.config(), layer_idx),
                ));
            }
            layers.push(StreamedLayer { section: section.clone(), is_planned, pinned: Mutex::new(layer) });
            // A buffer of this length is allocated now or later, so the length fits in usize. Pinned layers
            // have an extent too, for the time after they were released.
            extents.push(Extent { offset: section.offset, len: section.len as usize });
        }
        Ok(layers)
    }

    /// The part of a section that is read as a whole.
    fn section(&self, section: &PackedSection) -> PackedSection {
        if self.places.is_some() { without_experts(section) } else { section.clone() }
    }

    /// Reads the output norm, and embedding and output matrix if they are pinned.
    fn ends(&self, pinned: &mut PinnedBytes) -> Result<Weights, StreamedError> {
        let (mut embedding, mut head) = (None, None);
        for section in self.file.sections().iter().filter(|section| self.is_pinned(section)) {
            match section.part {
                Part::Embedding => {
                    embedding = Some(Arc::new(self.matrix(section, WeightId::Embedding, pinned)?))
                }
                Part::Output => head = Some(Arc::new(self.matrix(section, WeightId::Head, pinned)?)),
                Part::Layer(_) | Part::PerLayer | Part::Streams => {}
            }
        }
        let output_norm = self.file.vector(WeightId::OutputNorm)?;
        let per_layer = self.per_layer(pinned)?;
        let streams = self.streams(pinned)?;
        Ok(Weights { embedding, layers: Vec::new(), output_norm, head, per_layer, streams, draft_head: None })
    }

    /// Reads the projections of residual streams.
    fn streams(&self, pinned: &mut PinnedBytes) -> Result<Option<StreamWeights>, StreamedError> {
        let mut sections = self.file.sections().iter();
        let Some(section) = sections.find(|section| section.part == Part::Streams) else { return Ok(None) };
        let pages = self.read(section, pinned)?;
        let mut source = SectionTensors { sections: std::slice::from_ref(section), pages: &pages };
        match StreamWeights::read(self.file.config(), |id| source.matrix(id)) {
            Ok(weights) => Ok(weights),
            Err(never) => match never {},
        }
    }

    /// Reads the weights of layers' own inputs; their embedding only if it is pinned.
    fn per_layer(&self, pinned: &mut PinnedBytes) -> Result<Option<PerLayerWeights>, StreamedError> {
        let sections = self.file.sections().iter();
        let Some(section) = sections.clone().find(|section| section.part == Part::PerLayer) else {
            return Ok(None);
        };
        if self.plan.per_layer {
            let pages = self.read(section, pinned)?;
            let mut source = SectionTensors { sections: std::slice::from_ref(section), pages: &pages };
            return match PerLayerWeights::build(self.file.config(), &mut source) {
                Ok(weights) => Ok(weights),
                Err(never) => match never {},
            };
        }
        let projection = self.file.matrix(WeightId::PerLayerProjection, None)?;
        let norm = self.file.vector(WeightId::PerLayerNorm)?;
        pinned.done += projection.size_bytes() as u64;
        pinned.vectors += 4 * norm.len() as u64;
        if let Some(progress) = self.progress {
            progress(pinned.done, pinned.total);
        }
        Ok(Some(PerLayerWeights { embedding: None, projection, norm }))
    }

    fn rows(&self, id: WeightId, is_pinned: bool) -> Result<Option<RowReader>, StreamedError> {
        if is_pinned {
            return Ok(None);
        }
        let (tensor, start) = place(self.file, id);
        Ok(Some(RowReader::new(Arc::clone(&self.reader), Arc::clone(&self.meter), tensor, start)?))
    }

    fn ring(&self, extents: Vec<Extent>, options: &StreamOptions) -> Result<Ring, StreamedError> {
        let slot_len = usize::try_from(self.plan.slot_len).unwrap_or(usize::MAX);
        let buffers = (0..self.plan.n_slots).map(|_| PageBuf::zeroed(slot_len)).collect::<Result<_, _>>()?;
        let (file, meter) = (Arc::clone(&self.reader), Arc::clone(&self.meter));
        let stall_max = options.stall_max;
        let options = RingOptions { block_len: BLOCK_BYTES, n_reads: N_READS, stall_max };
        Ring::new(file, meter, extents, buffers, options).map_err(StreamedError::Spawn)
    }

    /// Reads a pinned section.
    fn read(&self, section: &PackedSection, pinned: &mut PinnedBytes) -> Result<Arc<PageBuf>, StreamedError> {
        let len = usize::try_from(section.len).unwrap_or(usize::MAX);
        let mut pages = PageBuf::zeroed(len)?;
        read_full(&*self.reader, section.offset, pages.bytes_mut()).map_err(|failed| LayersError {
            file: self.file.file().to_owned(),
            problem: ReadFailure::from(failed).into(),
        })?;
        pinned.done += section.len;
        pinned.vectors += vectors_bytes(std::slice::from_ref(section));
        if let Some(progress) = self.progress {
            progress(pinned.done, pinned.total);
        }
        Ok(Arc::new(pages))
    }

    fn matrix(
        &self,
        section: &PackedSection,
        id: WeightId,
        pinned: &mut PinnedBytes,
    ) -> Result<PackedMatrix, StreamedError> {
        let pages = self.read(section, pinned)?;
        match (SectionTensors { sections: std::slice::from_ref(section), pages: &pages }).matrix(id) {
            Ok(matrix) => Ok(matrix),
            Err(never) => match never {},
        }
    }

    fn is_pinned(&self, section: &PackedSection) -> bool {
        match section.part {
            Part::Layer(layer_idx) => self.plan.layers[layer_idx],
            Part::Embedding => self.plan.embedding,
            Part::Output => self.plan.head && !self.file.config().tied_head,
            Part::PerLayer => self.plan.per_layer,
            Part::Streams => true,
        }
    }

    fn pinned_bytes(&self) -> u64 {
        let sections = self.file.sections().iter().filter(|section| self.is_pinned(section));
        let whole: u64 = sections.map(|section| self.section(section).len).sum();
        // The projection of layers' own inputs is pinned in any case.
        let projection = self.file.tensor(WeightId::PerLayerProjection).filter(|_| !self.plan.per_layer);
        whole + projection.map_or(0, |tensor| tensor.len)
    }
}

/// Bytes of pinned sections.
struct PinnedBytes {
    done: u64,
    total: u64,
    /// Copies of norms and biases.
    vectors: u64,
}

fn head_id(tied: bool) -> WeightId {
    if tied { WeightId::Embedding } else { WeightId::Head }
}

/// A tensor of the file, and its offset in the file.
fn place(file: &PackedFile, id: WeightId) -> (&PackedTensor, u64) {
    let of_section = |section: &'_ PackedSection| section.tensors.iter().position(|tensor| tensor.id == id);
    let found = file.sections().iter().find_map(|section| Some((section, of_section(section)?)));
    let (section, at) = found.expect("the header was held against the hyper-parameters");
    (&section.tensors[at], section.offset + section.tensors[at].offset)
}

/// Memory of the longest sweep.
fn longest_sweep(config: &ModelConfig, reads_experts: bool) -> u64 {
    sweep_bytes(config, reads_experts, false, SWEEP_ROWS_MAX.min(config.context_len)).unwrap_or(0)
}

fn sizes(file: &PackedFile, places: Option<&ExpertPlaces>) -> Sizes {
    let tied = file.config().tied_head;
    let (layers, copies) = (Vec::new(), Vec::new());
    let experts = places.map_or_else(ExpertSizes::default, ExpertPlaces::sizes);
    let mut sizes = Sizes {
        layers,
        copies,
        head: 0,
        embedding: None,
        embedding_rows: 0,
        head_panel: 0,
        per_layer: 0,
        per_layer_pinned: 0,
        streams: 0,
        sweep: longest_sweep(file.config(), places.is_some()),
        experts,
    };
    for section in file.sections() {
        match section.part {
            Part::Layer(_) => {
                sizes.layers.push(without_experts(section).len);
                sizes.copies.push(vectors_bytes(std::slice::from_ref(section)));
            }
            Part::Embedding if tied => sizes.head = section.len,
            Part::Embedding => sizes.embedding = Some(section.len),
            Part::Output if !tied => sizes.head = section.len,
            Part::Output => {}
            Part::PerLayer => {
                let is_row = |tensor: &&PackedTensor| tensor.id == WeightId::PerLayerEmbedding;
                let rows = section.tensors.iter().find(is_row).map_or(0, |tensor| tensor.len);
                (sizes.per_layer, sizes.per_layer_pinned) = (section.len, section.len - rows);
            }
            Part::Streams => sizes.streams = section.len,
        }
    }
    let (embedding, _) = place(file, WeightId::Embedding);
    sizes.embedding_rows = rows::kept_bytes(embedding, EMBEDDING_ROWS_KEPT);
    let (tensor, _) = place(file, head_id(tied));
    sizes.head_panel = tensor.len / tensor.shape[0].div_ceil(PANEL_ROWS as u64);
    sizes
}
