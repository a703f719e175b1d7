//! The tensors of an encoder's folder, checked against its hyper-parameters and packed for the kernels.

use std::path::Path;

use xxhash_rust::xxh3::Xxh3;

use super::config::EncoderConfig;
use crate::kernels::{BlockType, FloatEnv, KvLayer, PackError, PackedMatrix, dequantize};
use crate::model::checkpoint::CheckpointError;
use crate::model::weights::WeightsError;
use refrain_containers::hf::{HfError, HfFolder, SafetensorsFile, StoredTensor};

/// What may stand before a tensor's name: nothing, or the name of the model inside one with a head.
const ROOTS: [&str; 3] = ["", "bert.", "roberta."];

/// Tensors that no vector depends on, behind the root: the head of the first training, and tables that follow from the configuration.
const UNUSED: [&str; 3] = ["pooler.", "embeddings.position_ids", "embeddings.token_type_ids"];

/// Heads beside the model.
const HEADS: [&str; 4] = ["cls.", "lm_head.", "classifier.", "qa_outputs."];

/// A matrix and what is added to its products.
pub(super) struct Linear {
    /// `[n_outputs, n_inputs]`
    pub(super) matrix: PackedMatrix,
    /// `[n_outputs]`
    pub(super) bias: Vec<f32>,
}

/// A layer norm.
pub(super) struct Norm {
    /// `[hidden_dim]`
    pub(super) weight: Vec<f32>,
    /// `[hidden_dim]`
    pub(super) bias: Vec<f32>,
}

/// Rows that are looked up, in the type of the file.
pub(super) struct Table {
    ty: BlockType,
    row_bytes: usize,
    bytes: Vec<u8>,
}

impl Table {
    /// # Panics
    /// If there is no such row, or `out` has another length.
    pub(super) fn row(&self, row: usize, out: &mut [f32]) {
        dequantize(self.ty, &self.bytes[row * self.row_bytes..][..self.row_bytes], out);
    }
}

/// The weights of a layer.
pub(super) struct Layer {
    pub(super) query: Linear,
    pub(super) key: Linear,
    pub(super) value: Linear,
    pub(super) out: Linear,
    pub(super) attention_norm: Norm,
    pub(super) up: Linear,
    pub(super) down: Linear,
    pub(super) norm: Norm,
}

/// All weights of an encoder.
pub struct EncoderWeights {
    /// `[vocab_size, hidden_dim]`
    pub(super) words: Table,
    /// `[n_positions, hidden_dim]`
    pub(super) positions: Table,
    /// `[n_types, hidden_dim]`
    pub(super) types: Table,
    pub(super) norm: Norm,
    pub(super) layers: Vec<Layer>,
    hash: u128,
}

impl EncoderWeights {
    /// Reads and packs the tensors of a folder. Shapes are checked before anything is allocated, so memory is bounded by the file.
    ///
    /// # Errors
    /// A tensor is missing, has another shape than the configuration says, a type that cannot be read, or belongs to no such model.
    pub fn load(folder: &HfFolder, config: &EncoderConfig) -> Result<Self, WeightsError> {
        let _env = FloatEnv::ieee();
        let word = "embeddings.word_embeddings.weight";
        let root = ROOTS.into_iter().find(|root| folder.tensor(&format!("{root}{word}")).is_some());
        let mut reader =
            Reader { folder, root: root.unwrap_or_default(), used: Vec::new(), hash: Xxh3::new() };
        let EncoderConfig { hidden_dim, ffn_dim, .. } = *config;
        let words = reader.table(word, config.vocab_size, hidden_dim)?;
        let positions =
            reader.table("embeddings.position_embeddings.weight", config.n_positions, hidden_dim)?;
        let types = reader.table("embeddings.token_type_embeddings.weight", config.n_types, hidden_dim)?;
        let norm = reader.norm("embeddings.LayerNorm", hidden_dim)?;
        let mut layers = Vec::with_capacity(config.n_layers);
        for layer_idx in 0..config.n_layers {
            let mut linear = |name: &str, n_outputs, n_inputs| {
                reader.linear(&format!("encoder.layer.{layer_idx}.{name}"), n_outputs, n_inputs)
            };
            let query = linear("attention.self.query", hidden_dim, hidden_dim)?;
            let key = linear("attention.self.key", hidden_dim, hidden_dim)?;
            let value = linear("attention.self.value", hidden_dim, hidden_dim)?;
            let out = linear("attention.output.dense", hidden_dim, hidden_dim)?;
            let up = linear("intermediate.dense", ffn_dim, hidden_dim)?;
            let down = linear("output.dense", hidden_dim, ffn_dim)?;
            let mut norm = |name: &str| reader.norm(&format!("encoder.layer.{layer_idx}.{name}"), hidden_dim);
            let attention_norm = norm("attention.output.LayerNorm")?;
            let norm = norm("output.LayerNorm")?;
            layers.push(Layer { query, key, value, out, attention_norm, up, down, norm });
        }
        reader.refuse_unexpected()?;
        Ok(Self { words, positions, types, norm, layers, hash: reader.hash.digest128() })
    }

    /// A hash of all tensors.
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// Bytes of matrices and tables.
    pub fn size_bytes(&self) -> usize {
        let of_layer = |layer: &Layer| {
            let Layer { query, key, value, out, up, down, .. } = layer;
            [query, key, value, out, up, down].map(|linear| linear.matrix.size_bytes()).iter().sum::<usize>()
        };
        let tables = [&self.words, &self.positions, &self.types];
        tables.map(|table| table.bytes.len()).iter().sum::<usize>()
            + self.layers.iter().map(of_layer).sum::<usize>()
    }
}

/// Reads tensors by their names behind the root.
struct Reader<'a> {
    folder: &'a HfFolder,
    root: &'static str,
    used: Vec<String>,
    hash: Xxh3,
}

impl<'a> Reader<'a> {
    /// A tensor of this shape. The second name is that of older files.
    fn find(
        &mut self,
        names: [&str; 2],
        shape: &[u64],
    ) -> Result<(&'a SafetensorsFile, &'a StoredTensor, BlockType), CheckpointError> {
        let [name, older] = names.map(|name| format!("{}{name}", self.root));
        let (name, found) = match (self.folder.tensor(&name), self.folder.tensor(&older)) {
            (None, Some(found)) => (older, Some(found)),
            (found, _) => (name, found),
        };
        let Some((file, tensor)) = found else {
            let file = self.folder.path().display().to_string();
            return Err(CheckpointError::MissingTensor { file, tensor: name });
        };
        if tensor.shape != shape {
            return Err(CheckpointError::WrongShape {
                file: file.name().to_owned(),
                tensor: name,
                expected: shape.to_vec(),
                found: tensor.shape.clone(),
            });
        }
        let Some(ty) = tensor.dtype.block_type() else {
            let (file, ty) = (file.name().to_owned(), tensor.dtype.name().to_owned());
            return Err(CheckpointError::UnsupportedType { file, tensor: name, ty });
        };
        self.used.push(name);
        Ok((file, tensor, ty))
    }

    fn read(&mut self, names: [&str; 2], shape: &[u64]) -> Result<(BlockType, Vec<u8>), WeightsError> {
        let (file, tensor, ty) = self.find(names, shape)?;
        let failed = |source| WeightsError::Pack { tensor: tensor.name.clone(), source };
        // The bytes of the file and their packed form.
        KvLayer::check_room(tensor.len.saturating_mul(2)).map_err(PackError::from).map_err(failed)?;
        let bytes = file.read(tensor).map_err(HfError::from).map_err(CheckpointError::from)?;
        self.hash.update(ty.name().as_bytes());
        self.hash.update(&bytes);
        Ok((ty, bytes))
    }

    fn table(&mut self, name: &str, n_rows: usize, n_cols: usize) -> Result<Table, WeightsError> {
        let (ty, bytes) = self.read([name, name], &[n_rows as u64, n_cols as u64])?;
        Ok(Table { ty, row_bytes: bytes.len() / n_rows, bytes })
    }

    fn vector(&mut self, names: [&str; 2], len: usize) -> Result<Vec<f32>, WeightsError> {
        let (ty, bytes) = self.read(names, &[len as u64])?;
        let mut values = vec![0.0; len];
        dequantize(ty, &bytes, &mut values);
        Ok(values)
    }

    fn norm(&mut self, name: &str, len: usize) -> Result<Norm, WeightsError> {
        let mut vector =
            |end: &str, older: &str| self.vector([&format!("{name}.{end}"), &format!("{name}.{older}")], len);
        Ok(Norm { weight: vector("weight", "gamma")?, bias: vector("bias", "beta")? })
    }

    fn linear(&mut self, name: &str, n_outputs: usize, n_inputs: usize) -> Result<Linear, WeightsError> {
        let weight = format!("{name}.weight");
        let (ty, bytes) = self.read([&weight, &weight], &[n_outputs as u64, n_inputs as u64])?;
        let matrix = PackedMatrix::pack(ty, n_outputs, n_inputs, &bytes, &|row| row)
            .map_err(|source| WeightsError::Pack { tensor: weight, source })?;
        let bias = format!("{name}.bias");
        Ok(Linear { matrix, bias: self.vector([&bias, &bias], n_outputs)? })
    }

    /// A tensor that no one reads would be a part of another model.
    fn refuse_unexpected(&self) -> Result<(), CheckpointError> {
        let is_known = |name: &str| {
            let inner = name.strip_prefix(self.root).unwrap_or(name);
            self.used.iter().any(|used| used == name)
                || UNUSED.iter().any(|unused| inner.starts_with(unused))
                || HEADS.iter().any(|head| name.starts_with(head))
        };
        for shard in self.folder.shards() {
            if let Some(tensor) = shard.tensors().iter().find(|tensor| !is_known(&tensor.name)) {
                let file = Path::new(shard.name()).display().to_string();
                let (tensor, architecture) = (tensor.name.clone(), "bert");
                return Err(CheckpointError::UnexpectedTensor { file, tensor, architecture });
            }
        }
        Ok(())
    }
}
