//! The weights of a model that are in memory, by role.

use std::sync::Arc;

use crate::kernels::PackedMatrix;
use crate::model::arch::tensors::{LayerWeight, WeightId, layer_slots};
use crate::model::config::ModelConfig;

/// The tensors of one layer, by role.
pub(crate) struct Layer {
    /// `[LayerWeight::ALL.len()]`
    tensors: Box<[Option<Tensor>]>,
}

enum Tensor {
    Matrix(PackedMatrix),
    Vector(Vec<f32>),
}

/// A source of the tensors of a layer.
pub(in crate::model) trait TensorSource {
    /// The error of a failed read.
    type Error;

    /// Whether the source holds the tensor. Experts of streamed layers are loaded apart.
    fn has(&self, _id: WeightId) -> bool {
        true
    }

    /// A matrix, packed.
    fn matrix(&mut self, id: WeightId) -> Result<PackedMatrix, Self::Error>;
    /// A norm, a bias or another vector.
    fn vector(&mut self, id: WeightId) -> Result<Vec<f32>, Self::Error>;
}

impl Layer {
    /// The tensors that the plan of layer `layer_idx` names.
    pub(in crate::model) fn build<S: TensorSource>(
        config: &ModelConfig,
        layer_idx: usize,
        source: &mut S,
    ) -> Result<Self, S::Error> {
        let mut tensors: Box<[Option<Tensor>]> = LayerWeight::ALL.iter().map(|_| None).collect();
        for (weight, shape) in layer_slots(config, &config.layers[layer_idx]) {
            let id = WeightId::Layer(layer_idx, weight);
            if !source.has(id) {
                continue;
            }
            tensors[weight as usize] = Some(match shape.len() {
                1 => Tensor::Vector(source.vector(id)?),
                _ => Tensor::Matrix(source.matrix(id)?),
            });
        }
        Ok(Self { tensors })
    }

    /// A matrix that the layer's plan names.
    ///
    /// # Panics
    /// If the plan does not name it.
    pub(crate) fn matrix(&self, weight: LayerWeight) -> &PackedMatrix {
        match &self.tensors[weight as usize] {
            Some(Tensor::Matrix(matrix)) => matrix,
            _ => panic!("the plan of the layer has no matrix {weight:?}"),
        }
    }

    /// Whether the matrices of the layer's experts are in memory with it.
    pub(crate) fn has_experts(&self) -> bool {
        self.tensors[LayerWeight::ExpertGate as usize].is_some()
    }

    /// A vector that the layer's plan may name.
    pub(crate) fn vector(&self, weight: LayerWeight) -> Option<&[f32]> {
        match &self.tensors[weight as usize] {
            Some(Tensor::Vector(values)) => Some(values),
            _ => None,
        }
    }

    fn tensor(&self, weight: LayerWeight) -> Option<StoredTensor<'_>> {
        self.tensors[weight as usize].as_ref().map(|tensor| match tensor {
            Tensor::Matrix(matrix) => StoredTensor::Matrix(matrix),
            Tensor::Vector(values) => StoredTensor::Vector(values),
        })
    }

    /// Bytes of the matrices.
    pub(in crate::model) fn matrices_bytes(&self) -> usize {
        let bytes = |tensor: &Tensor| match tensor {
            Tensor::Matrix(matrix) => matrix.size_bytes(),
            Tensor::Vector(_) => 0,
        };
        self.tensors.iter().flatten().map(bytes).sum()
    }
}

/// All weights of a model that are in memory.
pub(crate) struct Weights {
    /// `[vocab_size, hidden_dim]`; `None` if it is streamed. A draft head shares it with its target.
    pub(crate) embedding: Option<Arc<PackedMatrix>>,
    /// Empty if the layers are static graphs or streamed.
    pub(crate) layers: Vec<Layer>,
    /// `[hidden_dim]`
    pub(crate) output_norm: Vec<f32>,
    /// `[vocab_size, hidden_dim]`; `None` if it is tied to the embedding, or streamed.
    pub(crate) head: Option<Arc<PackedMatrix>>,
    /// `None` if layers have no inputs of their own.
    pub(crate) per_layer: Option<PerLayerWeights>,
    /// `None` if there is one residual stream.
    pub(crate) streams: Option<StreamWeights>,
    /// `None` unless the model is a draft head.
    pub(crate) draft_head: Option<DraftHeadWeights>,
}

/// The weights before the layer of a draft head ([`ModelConfig::draft_head`]).
pub(crate) struct DraftHeadWeights {
    /// `[hidden_dim]`
    pub(crate) embedding_norm: Vec<f32>,
    /// `[hidden_dim]`
    pub(crate) hidden_norm: Vec<f32>,
    /// `[hidden_dim, 2 · hidden_dim]`; of EAGLE-3, `[hidden_dim, 3 · hidden_dim of the target]`
    pub(crate) input: PackedMatrix,
}

impl DraftHeadWeights {
    /// Those that the configuration names.
    pub(in crate::model) fn build<S: TensorSource>(
        config: &ModelConfig,
        source: &mut S,
    ) -> Result<Option<Self>, S::Error> {
        if config.draft_head.is_none() {
            return Ok(None);
        }
        let embedding_norm = source.vector(WeightId::DraftEmbeddingNorm)?;
        let hidden_norm = source.vector(WeightId::DraftHiddenNorm)?;
        Ok(Some(Self { embedding_norm, hidden_norm, input: source.matrix(WeightId::DraftInput)? }))
    }
}

/// The projections of residual streams but the first ([`Streams`](crate::model::config::Streams)), each `[hidden_dim, hidden_dim]`.
pub(crate) struct StreamWeights {
    /// Of the embedding.
    pub(crate) into: Vec<PackedMatrix>,
    /// To the final hidden state.
    pub(crate) out: Vec<PackedMatrix>,
}

impl StreamWeights {
    /// Those that the configuration names.
    pub(in crate::model) fn read<E>(
        config: &ModelConfig,
        mut matrix: impl FnMut(WeightId) -> Result<PackedMatrix, E>,
    ) -> Result<Option<Self>, E> {
        let Some(streams) = config.streams else { return Ok(None) };
        let mut all = |id: fn(usize) -> WeightId| {
            (1..streams.n).map(|i| matrix(id(i - 1))).collect::<Result<Vec<_>, E>>()
        };
        Ok(Some(Self { into: all(WeightId::StreamIn)?, out: all(WeightId::StreamOut)? }))
    }

    pub(in crate::model) fn size_bytes(&self) -> usize {
        self.into.iter().chain(&self.out).map(PackedMatrix::size_bytes).sum()
    }
}

/// The weights of layers' own inputs ([`PerLayerInputs`](crate::model::config::PerLayerInputs)).
pub(crate) struct PerLayerWeights {
    /// `[per-layer vocab_size, n_layers · dim]`; `None` if it is streamed.
    pub(crate) embedding: Option<PackedMatrix>,
    /// `[n_layers · dim, hidden_dim]`
    pub(crate) projection: PackedMatrix,
    /// `[dim]`
    pub(crate) norm: Vec<f32>,
}

impl PerLayerWeights {
    /// Those that the configuration names.
    pub(in crate::model) fn build<S: TensorSource>(
        config: &ModelConfig,
        source: &mut S,
    ) -> Result<Option<Self>, S::Error> {
        if config.per_layer.is_none() {
            return Ok(None);
        }
        let embedding = Some(source.matrix(WeightId::PerLayerEmbedding)?);
        let projection = source.matrix(WeightId::PerLayerProjection)?;
        let norm = source.vector(WeightId::PerLayerNorm)?;
        Ok(Some(Self { embedding, projection, norm }))
    }

    fn size_bytes(&self) -> usize {
        self.embedding.as_ref().map_or(0, PackedMatrix::size_bytes) + self.projection.size_bytes()
    }
}

impl Weights {
    /// The tensor of a role; `None` if the model has none.
    pub(crate) fn tensor(&self, id: WeightId) -> Option<StoredTensor<'_>> {
        match id {
            WeightId::Embedding => self.embedding.as_deref().map(StoredTensor::Matrix),
            WeightId::OutputNorm => Some(StoredTensor::Vector(&self.output_norm)),
            WeightId::Head => self.head.as_deref().map(StoredTensor::Matrix),
            WeightId::PerLayerEmbedding => {
                self.per_layer.as_ref()?.embedding.as_ref().map(StoredTensor::Matrix)
            }
            WeightId::PerLayerProjection => {
                self.per_layer.as_ref().map(|own| StoredTensor::Matrix(&own.projection))
            }
            WeightId::PerLayerNorm => self.per_layer.as_ref().map(|own| StoredTensor::Vector(&own.norm)),
            WeightId::StreamIn(i) => self.streams.as_ref()?.into.get(i).map(StoredTensor::Matrix),
            WeightId::StreamOut(i) => self.streams.as_ref()?.out.get(i).map(StoredTensor::Matrix),
            WeightId::DraftEmbeddingNorm => {
                self.draft_head.as_ref().map(|head| StoredTensor::Vector(&head.embedding_norm))
            }
            WeightId::DraftHiddenNorm => {
                self.draft_head.as_ref().map(|head| StoredTensor::Vector(&head.hidden_norm))
            }
            WeightId::DraftInput => self.draft_head.as_ref().map(|head| StoredTensor::Matrix(&head.input)),
            WeightId::Layer(layer_idx, weight) => self.layers.get(layer_idx)?.tensor(weight),
        }
    }

    /// Bytes of the matrices, those of a mapped file included.
    pub(crate) fn memory_usage(&self) -> usize {
        self.embedding.as_deref().map_or(0, PackedMatrix::size_bytes)
            + self.head.as_deref().map_or(0, PackedMatrix::size_bytes)
            + self.draft_head.as_ref().map_or(0, |head| head.input.size_bytes())
            + self.per_layer.as_ref().map_or(0, PerLayerWeights::size_bytes)
            + self.streams.as_ref().map_or(0, StreamWeights::size_bytes)
            + self.layers.iter().map(Layer::matrices_bytes).sum::<usize>()
    }
}

/// A tensor of [`Weights`].
pub(crate) enum StoredTensor<'a> {
    Matrix(&'a PackedMatrix),
    Vector(&'a [f32]),
}
