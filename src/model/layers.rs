//! Layers over sections of a packed file that were read into memory, and the errors of reading them.

use std::io;
use std::sync::Arc;

use thiserror::Error;

use crate::kernels::{PackedMatrix, PageBuf};
use crate::model::arch::tensors::is_expert_matrix;
use crate::model::checkpoint::WeightId;
use crate::model::config::ModelConfig;
use crate::model::packed::{PackedSection, PackedTensor};
use crate::model::resident::{Layer, TensorSource};
use refrain_files::{ErrorKind, Facts, Fault};
use refrain_stream::ReadFailure;

/// Weights could not be read for a pass. The next pass reads again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}: {problem}")]
pub struct LayersError {
    /// The file.
    pub file: String,
    /// The problem.
    pub problem: LayersProblem,
}

impl Fault for LayersError {
    fn facts(&self) -> Facts<'_> {
        let facts = match &self.problem {
            LayersProblem::Read { offset, kind, .. } => Facts::io(*kind).at(*offset),
            LayersProblem::Stalled { offset, limit_ms } => {
                Facts::new(ErrorKind::Io).at(*offset).limit(*limit_ms)
            }
            LayersProblem::Checksum { section, offset, .. } => {
                Facts::new(ErrorKind::Damaged).field(section).at(*offset)
            }
        };
        facts.file(&self.file)
    }
}

/// The cause of a failed read of weights.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LayersProblem {
    /// A read failed.
    #[error("cannot read at offset {offset}: {message}")]
    Read {
        /// The offset of the read.
        offset: u64,
        /// The kind of the error; [`io::ErrorKind::UnexpectedEof`] if the file was shortened.
        kind: io::ErrorKind,
        /// The message of the system.
        message: String,
    },
    /// No read ended within the limit.
    #[error("the weights at offset {offset} do not come: no read has ended for {limit_ms} ms")]
    Stalled {
        /// The offset of the weights in the file.
        offset: u64,
        /// The limit, in milliseconds.
        limit_ms: u64,
    },
    /// The bytes do not match their checksum.
    #[error(
        "section `{section}` at offset {offset} is damaged: its checksum is {stated:016x}, its bytes give {computed:016x}"
    )]
    Checksum {
        /// The section.
        section: String,
        /// Its offset in the file.
        offset: u64,
        /// The checksum in the header.
        stated: u64,
        /// The checksum of the bytes.
        computed: u64,
    },
}

impl From<ReadFailure> for LayersProblem {
    fn from(failure: ReadFailure) -> Self {
        match failure {
            ReadFailure::Read { offset, kind, message } => Self::Read { offset, kind, message },
            ReadFailure::Stalled { offset, limit } => {
                Self::Stalled { offset, limit_ms: u64::try_from(limit.as_millis()).unwrap_or(u64::MAX) }
            }
        }
    }
}

/// The tensors of consecutive sections in a buffer: matrices are views of the buffer, norms and biases are
/// copies.
///
/// Opening the file has checked shapes and types against the hyper-parameters.
pub(in crate::model) struct SectionTensors<'a> {
    pub(in crate::model) sections: &'a [PackedSection],
    /// The buffer. It begins with the first section, and may be longer than all of them.
    pub(in crate::model) pages: &'a Arc<PageBuf>,
}

impl SectionTensors<'_> {
    /// A layer.
    ///
    /// # Panics
    /// If the sections lack its tensors.
    pub(in crate::model) fn layer(&mut self, config: &ModelConfig, layer_idx: usize) -> Layer {
        match Layer::build(config, layer_idx, self) {
            Ok(layer) => layer,
            Err(never) => match never {},
        }
    }

    /// A tensor, and its offset in the buffer.
    fn find(&self, id: WeightId) -> Option<(&PackedTensor, usize)> {
        let start = self.sections.first()?.offset;
        let in_section =
            |section: &'_ PackedSection| section.tensors.iter().position(|tensor| tensor.id == id);
        let (section, at) = self.sections.iter().find_map(|section| Some((section, in_section(section)?)))?;
        let tensor = &section.tensors[at];
        Some((tensor, (section.offset - start + tensor.offset) as usize))
    }

    fn place(&self, id: WeightId) -> (&PackedTensor, usize) {
        self.find(id).expect("the header was held against the hyper-parameters")
    }
}

impl TensorSource for SectionTensors<'_> {
    type Error = std::convert::Infallible;

    fn has(&self, id: WeightId) -> bool {
        !is_expert_matrix(id) || self.find(id).is_some()
    }

    fn matrix(&mut self, id: WeightId) -> Result<PackedMatrix, Self::Error> {
        let (tensor, start) = self.place(id);
        let (n_rows, n_cols) = (tensor.shape[0] as usize, tensor.shape[1] as usize);
        let matrix = PackedMatrix::from_pages(tensor.ty, n_rows, n_cols, Arc::clone(self.pages), start);
        Ok(matrix.expect("shape and type were checked with the header"))
    }

    fn vector(&mut self, id: WeightId) -> Result<Vec<f32>, Self::Error> {
        let (tensor, start) = self.place(id);
        let bytes = &self.pages.bytes()[start..start + tensor.len as usize];
        Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}

/// Bytes of the norms and biases of sections, which are copied from the buffer.
pub(in crate::model) fn vectors_bytes(sections: &[PackedSection]) -> u64 {
    let tensors = sections.iter().flat_map(|section| &section.tensors);
    tensors.filter(|tensor| tensor.shape.len() == 1).map(|tensor| tensor.len).sum()
}
