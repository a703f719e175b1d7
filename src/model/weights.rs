//! The weights of a checkpoint, packed for the kernels.

use std::sync::Arc;

use thiserror::Error;

use crate::kernels::{BlockType, PackError, PackedMatrix, dequantize, quantize};
use crate::mapping::Mapping;
use crate::model::checkpoint::{Checkpoint, LayerWeight, LoadError, TensorInfo, WeightId};
use crate::model::config::ModelConfig;

/// What the matrices become while they are loaded. Norms and biases are always f32.
///
/// A packed file has its types already: it is loaded as it was packed, or widened by [`Quantize::F32`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Quantize {
    /// Float matrices become Q8_0 (8.5 bits a weight); matrices that are quantised in the file stay as they are.
    #[default]
    Q8_0,
    /// Float matrices become Q4_0 (4.5 bits a weight); matrices that are quantised in the file stay as they are.
    Q4_0,
    /// Every matrix keeps the type that it has in the file.
    Keep,
    /// Every matrix is widened to f32: four bytes a weight, for checks against a reference.
    F32,
}

/// How the weights of a packed file come into memory. Other containers are always read and packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PackedAccess {
    /// Mapped: there at once, whatever the size, read from the disk where they are first used, and shared with other
    /// processes. The file must stay as it is while the model lives: where another program shortens it, the process ends.
    #[default]
    Map,
    /// Read into memory of its own: takes as long as the disk does; afterwards nothing depends on the file, and the
    /// weights lie in huge pages where the system has them.
    Read,
}

/// How a checkpoint is loaded.
#[derive(Clone, Copy, Default)]
pub struct LoadOptions<'a> {
    /// What the matrices become.
    pub quantize: Quantize,
    /// How the weights of a packed file come into memory.
    pub packed_access: PackedAccess,
    /// Called with (bytes read, bytes to read) after each tensor.
    pub progress: Option<&'a dyn Fn(u64, u64)>,
}

/// Why the weights of a checkpoint could not be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// The file could not be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// A matrix could not be packed.
    #[error("tensor `{tensor}`: {source}")]
    Pack {
        /// Its name in the file.
        tensor: String,
        /// What was wrong with it.
        source: PackError,
    },
    /// The architecture needs a tensor that the checkpoint does not have.
    #[error("the checkpoint has no tensor for {id:?}")]
    Missing {
        /// What is missing.
        id: WeightId,
    },
}

/// One transformer layer.
pub struct Layer {
    /// `[hidden_dim]`
    pub(crate) attn_norm: Vec<f32>,
    /// `[n_heads * head_dim, hidden_dim]`, rows in half-split pair order.
    pub(crate) q: PackedMatrix,
    /// `[n_kv_heads * head_dim, hidden_dim]`, rows in half-split pair order.
    pub(crate) k: PackedMatrix,
    /// `[n_kv_heads * head_dim, hidden_dim]`
    pub(crate) v: PackedMatrix,
    /// `[hidden_dim, n_heads * head_dim]`
    pub(crate) o: PackedMatrix,
    pub(crate) q_bias: Option<Vec<f32>>,
    pub(crate) k_bias: Option<Vec<f32>>,
    pub(crate) v_bias: Option<Vec<f32>>,
    pub(crate) o_bias: Option<Vec<f32>>,
    /// `[head_dim]`: QK-norm (qwen3).
    pub(crate) q_norm: Option<Vec<f32>>,
    pub(crate) k_norm: Option<Vec<f32>>,
    /// `[hidden_dim]`
    pub(crate) ffn_norm: Vec<f32>,
    /// `[ffn_dim, hidden_dim]`
    pub(crate) gate: PackedMatrix,
    /// `[ffn_dim, hidden_dim]`
    pub(crate) up: PackedMatrix,
    /// `[hidden_dim, ffn_dim]`
    pub(crate) down: PackedMatrix,
}

/// All weights of a model.
pub struct Weights {
    /// `[vocab_size, hidden_dim]`
    pub(crate) embedding: PackedMatrix,
    pub(crate) layers: Vec<Layer>,
    /// `[hidden_dim]`
    pub(crate) output_norm: Vec<f32>,
    /// `[vocab_size, hidden_dim]`; `None`: tied to the embedding.
    pub(crate) head: Option<PackedMatrix>,
}

impl Weights {
    /// Reads and packs every tensor of `checkpoint`.
    ///
    /// Beside the packed weights, at most one tensor is held in its file form at a time.
    pub fn load(checkpoint: &Checkpoint, options: LoadOptions<'_>) -> Result<Self, WeightsError> {
        Loader::new(checkpoint, options)?.load()
    }

    /// The output matrix, `[vocab_size, hidden_dim]`.
    pub fn head(&self) -> &PackedMatrix {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    /// The tensor of a role, where the model has it.
    pub(crate) fn tensor(&self, id: WeightId) -> Option<StoredTensor<'_>> {
        use LayerWeight::*;
        use StoredTensor::{Matrix, Vector};
        let (layer_idx, weight) = match id {
            WeightId::Embedding => return Some(Matrix(&self.embedding)),
            WeightId::OutputNorm => return Some(Vector(&self.output_norm)),
            WeightId::Head => return self.head.as_ref().map(Matrix),
            WeightId::Layer(layer_idx, weight) => (layer_idx, weight),
        };
        let layer = self.layers.get(layer_idx)?;
        fn optional(vector: &Option<Vec<f32>>) -> Option<StoredTensor<'_>> {
            vector.as_deref().map(Vector)
        }
        match weight {
            AttnNorm => Some(Vector(&layer.attn_norm)),
            Q => Some(Matrix(&layer.q)),
            K => Some(Matrix(&layer.k)),
            V => Some(Matrix(&layer.v)),
            O => Some(Matrix(&layer.o)),
            QBias => optional(&layer.q_bias),
            KBias => optional(&layer.k_bias),
            VBias => optional(&layer.v_bias),
            OBias => optional(&layer.o_bias),
            QNorm => optional(&layer.q_norm),
            KNorm => optional(&layer.k_norm),
            FfnNorm => Some(Vector(&layer.ffn_norm)),
            Gate => Some(Matrix(&layer.gate)),
            Up => Some(Matrix(&layer.up)),
            Down => Some(Matrix(&layer.down)),
        }
    }

    /// Bytes of the matrices, those of a mapped file included.
    pub fn memory_usage(&self) -> usize {
        let layer = |l: &Layer| {
            [&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down].iter().map(|m| m.size_bytes()).sum::<usize>()
        };
        self.embedding.size_bytes()
            + self.head.as_ref().map_or(0, PackedMatrix::size_bytes)
            + self.layers.iter().map(layer).sum::<usize>()
    }
}

/// A tensor of [`Weights`].
pub(crate) enum StoredTensor<'a> {
    Matrix(&'a PackedMatrix),
    Vector(&'a [f32]),
}

/// Reads a checkpoint's tensors one by one, in the form that the options ask for.
pub(in crate::model) struct Loader<'a> {
    checkpoint: &'a Checkpoint,
    config: &'a ModelConfig,
    options: LoadOptions<'a>,
    /// Of a packed file whose matrices are views of it.
    mapping: Option<Arc<Mapping>>,
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
            (Some(file), PackedAccess::Map) => file.map().map_err(LoadError::from)?,
            _ => None,
        };
        Ok(Self { checkpoint, config: checkpoint.config(), options, mapping, read_bytes: 0, total_bytes })
    }

    fn load(mut self) -> Result<Weights, WeightsError> {
        let embedding = self.matrix(WeightId::Embedding)?;
        let layers = (0..self.config.n_layers).map(|i| self.layer(i)).collect::<Result<_, _>>()?;
        let output_norm = self.vector(WeightId::OutputNorm)?;
        let head = match self.config.tied_head {
            true => None,
            false => Some(self.matrix(WeightId::Head)?),
        };
        Ok(Weights { embedding, layers, output_norm, head })
    }

    fn layer(&mut self, layer_idx: usize) -> Result<Layer, WeightsError> {
        let id = |weight| WeightId::Layer(layer_idx, weight);
        Ok(Layer {
            attn_norm: self.vector(id(LayerWeight::AttnNorm))?,
            q: self.matrix(id(LayerWeight::Q))?,
            k: self.matrix(id(LayerWeight::K))?,
            v: self.matrix(id(LayerWeight::V))?,
            o: self.matrix(id(LayerWeight::O))?,
            q_bias: self.optional_vector(id(LayerWeight::QBias))?,
            k_bias: self.optional_vector(id(LayerWeight::KBias))?,
            v_bias: self.optional_vector(id(LayerWeight::VBias))?,
            o_bias: self.optional_vector(id(LayerWeight::OBias))?,
            q_norm: self.optional_vector(id(LayerWeight::QNorm))?,
            k_norm: self.optional_vector(id(LayerWeight::KNorm))?,
            ffn_norm: self.vector(id(LayerWeight::FfnNorm))?,
            gate: self.matrix(id(LayerWeight::Gate))?,
            up: self.matrix(id(LayerWeight::Up))?,
            down: self.matrix(id(LayerWeight::Down))?,
        })
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

    pub(in crate::model) fn matrix(&mut self, id: WeightId) -> Result<PackedMatrix, WeightsError> {
        let info = self.info(id)?;
        if let Some(file) = self.checkpoint.packed() {
            let matrix = file.matrix(id, self.mapping.as_ref()).map_err(LoadError::from)?;
            self.advance(matrix.size_bytes() as u64);
            return self.widened(matrix, &info.name);
        }
        let bytes = self.read(id)?;
        let target = self.target_type(info);
        let bytes = if target == info.ty { bytes } else { convert(info, target, &bytes) };
        let head_dim = self.config.head_dim;
        let pack = |row_map: &dyn Fn(usize) -> usize| {
            PackedMatrix::pack(target, info.n_rows, info.n_cols, &bytes, row_map)
        };
        let packed = match info.qk_interleaved {
            true => pack(&|row| interleaved_row(row, head_dim)),
            false => pack(&|row| row),
        };
        packed.map_err(|source| WeightsError::Pack { tensor: info.name.clone(), source })
    }

    /// A packed matrix as it is, or as f32 where the options ask for that.
    fn widened(&self, matrix: PackedMatrix, tensor: &str) -> Result<PackedMatrix, WeightsError> {
        if self.options.quantize != Quantize::F32 || matrix.block_type() == BlockType::F32 {
            return Ok(matrix);
        }
        let (n_rows, n_cols) = (matrix.n_rows(), matrix.n_cols());
        let (mut values, mut bytes) = (vec![0.0; n_cols], Vec::new());
        for row in 0..n_rows {
            matrix.dequantize_row(row, &mut values);
            quantize(BlockType::F32, &values, &mut bytes);
        }
        PackedMatrix::pack(BlockType::F32, n_rows, n_cols, &bytes, &|row| row)
            .map_err(|source| WeightsError::Pack { tensor: tensor.to_owned(), source })
    }

    /// The type that a matrix of this type in the file becomes.
    pub(in crate::model) fn target_type(&self, info: &TensorInfo) -> BlockType {
        let is_float = info.ty.block_len() == 1;
        let wanted = match self.options.quantize {
            Quantize::F32 => return BlockType::F32,
            Quantize::Q8_0 if is_float => BlockType::Q8_0,
            Quantize::Q4_0 if is_float => BlockType::Q4_0,
            _ => info.ty,
        };
        // A row that is no whole number of blocks stays as it is (as llama.cpp does).
        if info.n_cols.is_multiple_of(wanted.block_len()) { wanted } else { info.ty }
    }

    fn optional_vector(&mut self, id: WeightId) -> Result<Option<Vec<f32>>, WeightsError> {
        if self.checkpoint.tensor(id).is_none() {
            return Ok(None);
        }
        self.vector(id).map(Some)
    }

    pub(in crate::model) fn vector(&mut self, id: WeightId) -> Result<Vec<f32>, WeightsError> {
        let info = self.info(id)?;
        if let Some(file) = self.checkpoint.packed() {
            let values = file.vector(id).map_err(LoadError::from)?;
            self.advance(4 * values.len() as u64);
            return Ok(values);
        }
        let bytes = self.read(id)?;
        let mut values = vec![0.0; info.n_rows * info.n_cols];
        dequantize(info.ty, &bytes, &mut values);
        if info.qk_interleaved {
            let head_dim = self.config.head_dim;
            return Ok((0..values.len()).map(|i| values[interleaved_row(i, head_dim)]).collect());
        }
        Ok(values)
    }
}

/// Row by row from the file's type to `target`.
fn convert(info: &TensorInfo, target: BlockType, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut row_values = vec![0.0f32; info.n_cols];
    for row in bytes.chunks_exact(bytes.len() / info.n_rows) {
        dequantize(info.ty, row, &mut row_values);
        quantize(target, &row_values, &mut out);
    }
    out
}

/// Where a GGUF llama file keeps the row that stands at `row` in half-split order: its converter interleaves the two
/// halves of each head's rows.
fn interleaved_row(row: usize, head_dim: usize) -> usize {
    let (head, within) = (row / head_dim, row % head_dim);
    let half = head_dim / 2;
    head * head_dim + 2 * (within % half) + within / half
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
        let restored: Vec<usize> = (0..stored.len()).map(|i| stored[interleaved_row(i, head_dim)]).collect();
        assert_eq!(restored, (0..n_heads * head_dim).collect::<Vec<_>>());
    }
}
