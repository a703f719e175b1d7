//! Loading: the weights of a checkpoint are read and packed for the kernels.

use std::sync::Arc;
use std::thread::available_parallelism;

use thiserror::Error;

use crate::error::of_pack;
use crate::face::internals;
use crate::kernels::Mapping;
use crate::kernels::{
    AllocError, BlockType, FloatEnv, HUGE_PAGE_BYTES, Kernels, PANEL_ROWS, PackError, PackedMatrix, Packing,
    PackingPart, convert, dequantize,
};
use crate::model::arch::tensors::{Change, LayerWeight, RowOrder, WeightId, is_expert_matrix};
use crate::model::checkpoint::{Checkpoint, CheckpointError, TensorInfo};
use crate::model::config::{FeedForward, ModelConfig};
use crate::model::graphs::{GraphFolder, GraphsError};
use crate::model::load_workers::LoadWorkers;
use crate::model::resident::{
    DraftHeadWeights, Layer, PerLayerWeights, StreamWeights, TensorSource, Weights,
};
use crate::model::streamed::StreamedError;
use refrain_files::{ErrorKind, Facts, Fault};
use refrain_stream::StreamOptions;

/// The element types of matrices in memory. Norms and biases are always f32.
///
/// The types of a packed file are fixed: it is loaded as it was packed, or widened by [`Quantize::F32`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum Quantize {
    /// Float matrices become Q8_0 (8.5 bits a weight). Quantised matrices keep their type.
    #[default]
    Q8_0,
    /// Float matrices become Q4_0 (4.5 bits a weight). Quantised matrices keep their type.
    Q4_0,
    /// Every matrix keeps the type of the file.
    Keep,
    /// Every matrix is widened to f32: four bytes a weight, for checks against a reference.
    F32,
}

impl Quantize {
    /// The type in memory of a matrix with this type in the file.
    fn target_type(self, id: WeightId, info: &TensorInfo, is_packed: bool) -> BlockType {
        // Packed matrices keep their type, or are widened. Routers are small, and rounding them would change the choice of
        // experts.
        let is_router = matches!(id, WeightId::Layer(_, LayerWeight::Router));
        let is_float = info.ty.block_len() == 1 && !is_packed && !is_router;
        let wanted = match self {
            Quantize::F32 => return BlockType::F32,
            Quantize::Q8_0 if is_float => BlockType::Q8_0,
            Quantize::Q4_0 if is_float => BlockType::Q4_0,
            _ => info.ty,
        };
        // A matrix keeps its type if a row is not a whole number of blocks (as in llama.cpp).
        if info.n_cols.is_multiple_of(wanted.block_len()) { wanted } else { info.ty }
    }

    /// Bytes of the weights of a checkpoint when they are loaded with this option, those of a mapped file
    /// included.
    pub fn weights_bytes(self, checkpoint: &Checkpoint) -> u64 {
        let is_packed = checkpoint.packed().is_some();
        let bytes = |(id, info): (WeightId, &TensorInfo)| match info.n_rows {
            1 => Some(4 * info.n_cols as u64),
            n_rows => PackedMatrix::packed_bytes(self.target_type(id, info, is_packed), n_rows, info.n_cols),
        };
        checkpoint.tensors().filter_map(bytes).fold(0, u64::saturating_add)
    }

    internals! {
        /// Those of the weights' bytes that are matrices: norms, biases and other vectors are left out, as in the profile of a model.
        fn matrices_bytes(self, checkpoint: &Checkpoint) -> u64 {
            let vectors = checkpoint.tensors().filter(|(_, info)| info.n_rows == 1);
            let vectors_bytes: u64 = vectors.map(|(_, info)| 4 * info.n_cols as u64).sum();
            self.weights_bytes(checkpoint).saturating_sub(vectors_bytes)
        }

        /// Bytes of the weights that a pass of one row and its projection read: all matrices but the rows of embeddings that
        /// are looked up, and of experts those that a row uses.
        fn bytes_per_row(self, checkpoint: &Checkpoint) -> u64 {
            let (config, is_packed) = (checkpoint.config(), checkpoint.packed().is_some());
            let bytes = |(id, info): (WeightId, &TensorInfo)| {
                let ty = self.target_type(id, info, is_packed);
                let all = PackedMatrix::packed_bytes(ty, info.n_rows, info.n_cols)?;
                match id {
                    WeightId::Embedding if !config.tied_head => None,
                    WeightId::PerLayerEmbedding => None,
                    WeightId::Layer(layer_idx, _) if is_expert_matrix(id) => match &config.layers[layer_idx].feed {
                        FeedForward::Experts(experts) => Some(all / experts.n_experts as u64 * experts.n_used as u64),
                        FeedForward::None | FeedForward::Dense(_) => None,
                    },
                    _ => (info.n_rows > 1).then_some(all),
                }
            };
            checkpoint.tensors().filter_map(bytes).fold(0, u64::saturating_add)
        }
    }
}

/// Access to the weights of a packed file. Other containers are always read and packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum PackedAccess {
    /// The file is read into memory of the process. Loading takes the time of reading the file, and a disk
    /// error is a typed error. Afterwards the file is not needed, and the weights are in huge pages if the
    /// system has them.
    #[default]
    Read,
    /// The file is mapped. Loading takes no time, pages are read from the disk when they are first used, and
    /// processes share them. WebAssembly has no mappings: there it is read.
    ///
    /// No program may write to the file or shorten it while the model lives: that is undefined behaviour in
    /// Rust's model of memory. In practice the output is wrong, or the process ends with SIGBUS. Replace a
    /// model by writing a new file and renaming it, as `refrain model pack` does. The process also ends with SIGBUS
    /// if the disk cannot read a page.
    Map,
}

/// Options for loading a checkpoint.
#[derive(Clone, Copy, Default)]
pub struct LoadOptions<'a> {
    /// The types of matrices in memory.
    pub quantize: Quantize,
    /// Access to the weights of a packed file.
    pub packed_access: PackedAccess,
    /// Maximum bytes of weights that a model of static graphs holds at a time; `None`: the bytes that it
    /// needs.
    pub graph_memory_max: Option<u64>,
    /// Options for streaming a packed file; `None`: all weights are in memory.
    pub streaming: Option<&'a StreamOptions>,
    /// Called with (bytes read, bytes to read) after each tensor.
    pub progress: Option<&'a dyn Fn(u64, u64)>,
    /// Threads that read, convert and pack weights; `None`: one per processor. Weights do not depend on it.
    pub n_threads: Option<usize>,
}

/// The weights of a checkpoint could not be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file could not be read.
    #[error(transparent)]
    Load(#[from] CheckpointError),
    /// A matrix could not be packed.
    #[error("tensor `{tensor}`: {source}")]
    Pack {
        /// Its name in the file.
        tensor: String,
        /// The cause.
        source: PackError,
    },
    /// The architecture needs a tensor that the checkpoint does not have.
    #[error("the checkpoint has no tensor for {id:?}")]
    Missing {
        /// The missing tensor.
        id: WeightId,
    },
    /// A draft head was loaded as a model of its own.
    #[error("{name} is a draft head, which needs the model that it belongs to")]
    NoTarget {
        /// The checkpoint's name.
        name: String,
    },
    /// The static graphs of the model could not be set up.
    #[error(transparent)]
    Graphs(#[from] GraphsError),
    /// The streaming of the model could not be set up.
    #[error(transparent)]
    Streamed(#[from] StreamedError),
}

impl Fault for WeightsError {
    fn facts(&self) -> Facts<'_> {
        match self {
            Self::Load(error) => error.facts(),
            Self::Pack { tensor, source } => of_pack(source).field(tensor),
            Self::Missing { .. } => Facts::new(ErrorKind::NotFound),
            Self::NoTarget { name } => Facts::new(ErrorKind::Unsupported).file(name),
            Self::Graphs(error) => error.facts(),
            Self::Streamed(error) => error.facts(),
        }
    }
}

impl Weights {
    /// Reads and packs every tensor of `checkpoint`, on [`LoadOptions::n_threads`] threads, in the layout of `config`. A draft
    /// head shares embedding and output matrix of its target where it has none of its own, if the target has them in memory.
    ///
    /// Beside the packed weights, memory holds a part of a matrix in its file form for each thread: a quarter of a
    /// mebibyte, or 16 rows (a head of Q or K) if they are longer, and a converted row.
    pub(in crate::model) fn load(
        checkpoint: &Checkpoint,
        config: &ModelConfig,
        options: LoadOptions<'_>,
        target: Option<&Weights>,
    ) -> Result<Self, WeightsError> {
        Loader { config, ..Loader::new(checkpoint, options)? }.load(target)
    }

    /// Reads all weights of a folder of static graphs except the layers.
    pub(in crate::model) fn load_ends(folder: &GraphFolder) -> Result<Self, GraphsError> {
        let file = folder.ends();
        let embedding = Some(Arc::new(file.matrix(WeightId::Embedding, None)?));
        let output_norm = file.vector(WeightId::OutputNorm)?;
        let head = match folder.config().tied_head {
            true => None,
            false => Some(Arc::new(file.matrix(WeightId::Head, None)?)),
        };
        let per_layer = match folder.config().per_layer {
            None => None,
            Some(_) => Some(PerLayerWeights {
                embedding: Some(file.matrix(WeightId::PerLayerEmbedding, None)?),
                projection: file.matrix(WeightId::PerLayerProjection, None)?,
                norm: file.vector(WeightId::PerLayerNorm)?,
            }),
        };
        let streams = StreamWeights::read(folder.config(), |id| file.matrix(id, None))?;
        Ok(Weights { embedding, layers: Vec::new(), output_norm, head, per_layer, streams, draft_head: None })
    }
}

/// Reads the tensors of a checkpoint one by one, converted as the options require.
pub(in crate::model) struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
    options: LoadOptions<'a>,
    /// The mapping of a packed file, if its matrices are views.
    mapping: Option<Arc<Mapping>>,
    workers: LoadWorkers<Scratch>,
    read_bytes: u64,
    total_bytes: u64,
}

impl<'a> Loader<'a> {
    pub(in crate::model) fn new(
        checkpoint: &'a Checkpoint,
        options: LoadOptions<'a>,
    ) -> Result<Self, WeightsError> {
        let total_bytes = checkpoint.weights_bytes();
        let mapping = match (checkpoint.packed(), options.packed_access) {
            (Some(file), PackedAccess::Map) => file.map().map_err(CheckpointError::from)?,
            _ => None,
        };
        let n_threads = match mapping {
            Some(_) => 1,
            None => options.n_threads.unwrap_or_else(|| available_parallelism().map_or(1, usize::from)),
        };
        let workers = LoadWorkers::new(n_threads);
        Ok(Self {
            checkpoint,
            config: checkpoint.config(),
            options,
            mapping,
            workers,
            read_bytes: 0,
            total_bytes,
        })
    }

    fn load(mut self, target: Option<&Weights>) -> Result<Weights, WeightsError> {
        let config = self.config;
        let mut of_vocabulary = |held: Option<&Arc<PackedMatrix>>, id: WeightId| match held {
            Some(matrix) if matrix.n_cols() == config.hidden_dim => Ok(Arc::clone(matrix)),
            _ => self.matrix(id).map(Arc::new),
        };
        let held = target.and_then(|target| target.embedding.as_ref());
        let embedding = Some(of_vocabulary(held, WeightId::Embedding)?);
        let held = target.filter(|_| config.eagle3().is_none()).and_then(|target| target.head.as_ref());
        let head = match config.tied_head {
            true => None,
            false => Some(of_vocabulary(held, WeightId::Head)?),
        };
        let layers =
            (0..config.n_layers()).map(|i| Layer::build(config, i, &mut self)).collect::<Result<_, _>>()?;
        let output_norm = self.vector(WeightId::OutputNorm)?;
        let per_layer = PerLayerWeights::build(config, &mut self)?;
        let streams = StreamWeights::read(config, |id| self.matrix(id))?;
        let draft_head = DraftHeadWeights::build(config, &mut self)?;
        Ok(Weights { embedding, layers, output_norm, head, per_layer, streams, draft_head })
    }

    fn info(&self, id: WeightId) -> Result<&'a TensorInfo, WeightsError> {
        self.checkpoint.tensor(id).ok_or(WeightsError::Missing { id })
    }

    fn read(&mut self, id: WeightId) -> Result<Vec<u8>, WeightsError> {
        let bytes = self.checkpoint.read(id)?;
        self.advance(bytes.len() as u64);
        Ok(bytes)
    }

    fn advance(&mut self, n_bytes: u64) {
        self.read_bytes += n_bytes;
        if let Some(progress) = self.options.progress {
            progress(self.read_bytes, self.total_bytes);
        }
    }

    /// A packed matrix, widened to f32 if the options require it.
    fn widened(&self, matrix: PackedMatrix, tensor: &str) -> Result<PackedMatrix, WeightsError> {
        if self.options.quantize != Quantize::F32 || matrix.block_type() == BlockType::F32 {
            return Ok(matrix);
        }
        matrix.widened().map_err(|source| WeightsError::Pack { tensor: tensor.to_owned(), source })
    }

    /// The type in memory of a matrix with this type in the file.
    pub(in crate::model) fn target_type(&self, id: WeightId, info: &TensorInfo) -> BlockType {
        self.options.quantize.target_type(id, info, self.checkpoint.packed().is_some())
    }
}

impl TensorSource for Loader<'_> {
    type Error = WeightsError;

    fn matrix(&mut self, id: WeightId) -> Result<PackedMatrix, WeightsError> {
        let _env = FloatEnv::ieee();
        let info = self.info(id)?;
        if let Some(file) = self.checkpoint.packed() {
            let matrix = match &self.mapping {
                Some(mapping) => file.matrix(id, Some(mapping)),
                None => file.read_matrix(id, |source, start, panels| {
                    let piece = read_bytes(panels.len());
                    self.workers.for_each(panels.chunks_mut(piece).enumerate(), |_, (i, panels)| {
                        source.read_exact_at(start + (i * piece) as u64, panels)
                    })
                }),
            };
            let matrix = matrix.map_err(CheckpointError::from)?;
            self.advance(matrix.size_bytes() as u64);
            return self.widened(matrix, info.name());
        }
        let target = self.target_type(id, info);
        let failed = |source| WeightsError::Pack { tensor: info.name().to_owned(), source };
        let row_bytes = info.ty.row_bytes(info.n_cols as u64).and_then(|bytes| usize::try_from(bytes).ok());
        let row_bytes = row_bytes.ok_or(PackError::PartialBlock { ty: info.ty, n_cols: info.n_cols });
        let row_bytes = row_bytes.map_err(failed)?;
        let mut packing = Packing::new(target, info.n_rows, info.n_cols).map_err(failed)?;
        let kernels = Kernels::detect();
        let rows = FileRows { checkpoint: self.checkpoint, id, info, target, row_bytes, kernels };
        let parts = packing.parts(rows.part_panels(self.workers.n_threads()));
        self.workers.for_each(parts, |scratch, part| rows.pack(part, scratch))?;
        self.advance(row_bytes as u64 * info.n_rows as u64);
        Ok(packing.finish())
    }

    fn vector(&mut self, id: WeightId) -> Result<Vec<f32>, WeightsError> {
        let _env = FloatEnv::ieee();
        let info = self.info(id)?;
        if let Some(file) = self.checkpoint.packed() {
            let values = file.vector(id).map_err(CheckpointError::from)?;
            self.advance(4 * values.len() as u64);
            return Ok(values);
        }
        let bytes = self.read(id)?;
        let mut values = vec![0.0; info.n_rows * info.n_cols];
        dequantize(info.ty, &bytes, &mut values);
        match info.change {
            Change::Keep => {}
            Change::PlusOne => values.iter_mut().for_each(|value| *value += 1.0),
            Change::Transposed { n_cols } => {
                let n_rows = values.len() / n_cols;
                values = (0..values.len()).map(|i| values[i % n_rows * n_cols + i / n_rows]).collect();
            }
            Change::MinusExp => {
                values.iter_mut().for_each(|value| *value = -(libm::exp(f64::from(*value)) as f32));
            }
        }
        Ok(values)
    }
}

/// Bytes of a packed file that a thread reads at a time into a matrix of `len` bytes. A piece is a huge page of a matrix that
/// has some: the system zeroes one on first access, and threads in the same one would wait for each other.
fn read_bytes(len: usize) -> usize {
    if len < HUGE_PAGE_BYTES { PART_BYTES } else { HUGE_PAGE_BYTES }
}

/// Bytes of a matrix in file form that a thread reads at a time: they stay in its second-level cache until they are
/// packed.
const PART_BYTES: usize = 256 << 10;

/// Parts of a matrix per thread, so that no thread waits long for the last part.
const PARTS_PER_THREAD: usize = 4;

/// The buffers of a thread that packs.
#[derive(Default)]
struct Scratch {
    /// Rows in file form.
    file: Vec<u8>,
    /// A row as numbers, and in the type in memory.
    values: Vec<f32>,
    converted: Vec<u8>,
}

/// The rows of a matrix in a file.
struct FileRows<'a> {
    checkpoint: &'a Checkpoint,
    id: WeightId,
    info: &'a TensorInfo,
    /// The type in memory.
    target: BlockType,
    /// Bytes of a row in the file.
    row_bytes: usize,
    kernels: Kernels,
}

impl FileRows<'_> {
    /// Panels of a part.
    fn part_panels(&self, n_threads: usize) -> usize {
        let fitting = PART_BYTES / (PANEL_ROWS * self.row_bytes).max(1);
        let balanced = self.info.n_rows.div_ceil(PANEL_ROWS * PARTS_PER_THREAD * n_threads);
        // Whole heads: a part reads all rows of its heads.
        let whole = match self.info.order {
            RowOrder::Interleaved { head_dim } => head_dim.div_ceil(PANEL_ROWS),
            _ => 1,
        };
        fitting.min(balanced).max(1).next_multiple_of(whole)
    }

    /// Reads, converts and packs the rows of a part.
    fn pack(&self, mut part: PackingPart<'_>, scratch: &mut Scratch) -> Result<(), WeightsError> {
        let Self { info, target, row_bytes, .. } = *self;
        let rows = part.rows();
        let mut start = rows.start;
        while start < rows.end {
            // The rows of one stored tensor, and the span that they have there.
            let (tensor, _) = info.stored_row(start);
            let mut end = start;
            let (mut first, mut last) = (usize::MAX, 0);
            while end < rows.end {
                let (of, row) = info.stored_row(end);
                if of != tensor {
                    break;
                }
                (first, last) = (first.min(row), last.max(row));
                end += 1;
            }
            let n_bytes = (last + 1 - first) * row_bytes;
            resize(&mut scratch.file, n_bytes).map_err(|source| self.failed(source))?;
            self.checkpoint.read_rows(self.id, tensor, first, row_bytes, &mut scratch.file)?;
            for row in start..end {
                let from = info.stored_row(row).1;
                let src = &scratch.file[(from - first) * row_bytes..][..row_bytes];
                if target == info.ty {
                    part.pack_row(row, src);
                    continue;
                }
                resize(&mut scratch.values, info.n_cols).map_err(|source| self.failed(source))?;
                scratch.converted.clear();
                convert(self.kernels, info.ty, src, &mut scratch.values, target, &mut scratch.converted);
                part.pack_row(row, &scratch.converted);
            }
            start = end;
        }
        Ok(())
    }

    fn failed(&self, source: AllocError) -> WeightsError {
        WeightsError::Pack { tensor: self.info.name().to_owned(), source: source.into() }
    }
}

/// Resizes a buffer; the values are unspecified.
fn resize<T: Copy + Default>(buffer: &mut Vec<T>, len: usize) -> Result<(), AllocError> {
    let more = len.saturating_sub(buffer.len());
    let failed = |_| AllocError::new(len.saturating_mul(size_of::<T>()));
    buffer.try_reserve_exact(more).map_err(failed)?;
    buffer.resize(len, T::default());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaved_rows_undo_the_permutation_of_gguf_llama_files() {
        // The converter: reshape(n_heads, 2, head_dim/2).swapaxes(1, 2).
        let (n_heads, head_dim) = (3, 8);
        let half = head_dim / 2;
        let mut stored = Vec::new();
        for head in 0..n_heads {
            for pair in 0..half {
                for part in 0..2 {
                    stored.push(head * head_dim + part * half + pair);
                }
            }
        }
        let order = RowOrder::Interleaved { head_dim };
        let restored: Vec<usize> = (0..stored.len()).map(|i| stored[order.stored(i)]).collect();
        assert_eq!(restored, (0..n_heads * head_dim).collect::<Vec<_>>());
    }
}
