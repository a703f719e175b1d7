//! The layout of a packed file, computed from hyper-parameters and element types alone. The writer follows
//! this plan, and the reader accepts no other layout.

use std::fmt;
use std::ops::Range;

use super::{LINE_BYTES, PAGE_BYTES};
use crate::kernels::{BlockType, PackedMatrix};
use crate::model::arch::tensors::{Slot, is_expert_matrix, slots, standard_name};
use crate::model::checkpoint::WeightId;
use crate::model::config::ModelConfig;

/// A section of weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The token embedding.
    Embedding,
    /// All tensors of one layer.
    Layer(usize),
    /// The norm before the head, and the head.
    Output,
    /// The weights of layers' own inputs.
    PerLayer,
    /// The projections of residual streams.
    Streams,
}

impl Part {
    fn of(id: WeightId) -> Self {
        match id {
            WeightId::Embedding => Part::Embedding,
            WeightId::Layer(layer_idx, _) => Part::Layer(layer_idx),
            WeightId::OutputNorm | WeightId::Head => Part::Output,
            WeightId::DraftEmbeddingNorm | WeightId::DraftHiddenNorm | WeightId::DraftInput => Part::Output,
            WeightId::PerLayerEmbedding | WeightId::PerLayerProjection | WeightId::PerLayerNorm => {
                Part::PerLayer
            }
            WeightId::StreamIn(_) | WeightId::StreamOut(_) => Part::Streams,
        }
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Embedding => f.write_str("embedding"),
            Part::Layer(layer_idx) => write!(f, "layer.{layer_idx}"),
            Part::Output => f.write_str("output"),
            Part::PerLayer => f.write_str("per_layer"),
            Part::Streams => f.write_str("streams"),
        }
    }
}

/// The part of a model that a file holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Scope {
    All,
    /// Everything except the layers.
    Ends,
    /// Some of the layers.
    Layers(Range<usize>),
}

impl Scope {
    fn holds(&self, part: Part) -> bool {
        match (self, part) {
            (Scope::All, _) => true,
            (Scope::Ends, part) => !matches!(part, Part::Layer(_)),
            (Scope::Layers(layers), Part::Layer(layer_idx)) => layers.contains(&layer_idx),
            (Scope::Layers(_), _) => false,
        }
    }
}

/// The parts of a file in order, each with its tensors in order.
pub(super) fn parts(config: &ModelConfig, scope: &Scope) -> Vec<(Part, Vec<Slot>)> {
    let mut parts = vec![(Part::Embedding, Vec::new())];
    parts.extend((0..config.n_layers()).map(|layer_idx| (Part::Layer(layer_idx), Vec::new())));
    parts.push((Part::Output, Vec::new()));
    if config.per_layer.is_some() {
        parts.push((Part::PerLayer, Vec::new()));
    }
    if config.streams.is_some() {
        parts.push((Part::Streams, Vec::new()));
    }
    for slot in slots(config) {
        let at = match Part::of(slot.id) {
            Part::Embedding => 0,
            Part::Layer(layer_idx) => 1 + layer_idx,
            Part::Output => 1 + config.n_layers(),
            Part::PerLayer => 2 + config.n_layers(),
            Part::Streams => parts.len() - 1,
        };
        parts[at].1.push(slot);
    }
    // A streamed layer is read without its experts, so they come last in its section.
    parts.iter_mut().for_each(|(_, slots)| slots.sort_by_key(|slot| is_expert_matrix(slot.id)));
    parts.retain(|(part, _)| scope.holds(*part));
    parts
}

/// A tensor of a section.
#[derive(Clone, Debug)]
pub struct PackedTensor {
    /// Its role.
    pub id: WeightId,
    /// Its name in GGUF files.
    pub name: String,
    /// Its element type; F32 for a vector.
    pub ty: BlockType,
    /// `[rows, columns]`, or `[length]` of a vector.
    pub shape: Vec<u64>,
    /// Its offset in the section; a multiple of 64.
    pub offset: u64,
    /// Its length without padding.
    pub len: u64,
}

/// A section of the file.
#[derive(Clone, Debug)]
pub(super) struct PlannedSection {
    pub(super) part: Part,
    /// From the start of the data.
    pub(super) offset: u64,
    /// Padding included.
    pub(super) len: u64,
    pub(super) tensors: Vec<PackedTensor>,
}

/// Lays out the sections behind a tokenizer of `start` bytes; `None` if sizes overflow or a row is not a
/// whole number of blocks.
pub(super) fn plan(
    config: &ModelConfig,
    scope: &Scope,
    start: u64,
    ty_of: &dyn Fn(WeightId) -> BlockType,
) -> Option<Vec<PlannedSection>> {
    let mut sections = Vec::new();
    let mut offset = start;
    for (part, slots) in parts(config, scope) {
        let (mut tensors, mut end) = (Vec::with_capacity(slots.len()), 0u64);
        for Slot { id, shape } in slots {
            let ty = if shape.len() == 1 { BlockType::F32 } else { ty_of(id) };
            let len = packed_len(ty, &shape)?;
            tensors.push(PackedTensor { id, name: standard_name(id), ty, shape, offset: end, len });
            end = end.checked_add(len)?.checked_next_multiple_of(LINE_BYTES)?;
        }
        let len = end.checked_next_multiple_of(PAGE_BYTES)?;
        sections.push(PlannedSection { part, offset, len, tensors });
        offset = offset.checked_add(len)?;
    }
    Some(sections)
}

/// Bytes of a tensor: panels of a matrix, f32 of a vector.
fn packed_len(ty: BlockType, shape: &[u64]) -> Option<u64> {
    match *shape {
        [len] => len.checked_mul(4),
        [n_rows, n_cols] => {
            PackedMatrix::packed_bytes(ty, usize::try_from(n_rows).ok()?, usize::try_from(n_cols).ok()?)
        }
        _ => None,
    }
}
