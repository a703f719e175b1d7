//! Layers made from bytes of a packed file that were read into memory, and why they could not be.

use std::io;
use std::sync::Arc;

use thiserror::Error;

use crate::kernels::{PackedMatrix, PageBuf};
use crate::model::checkpoint::WeightId;
use crate::model::packed::{PackedSection, PackedTensor};
use crate::model::weights::{Layer, TensorSource};
use crate::stream::ReadFailure;

/// Weights that a pass needs could not be brought into memory. The next pass tries again.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{file}: {problem}")]
pub struct LayersError {
    /// The file that holds them.
    pub file: String,
    /// What went wrong.
    pub problem: LayersProblem,
}

/// What went wrong with a file of layers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum LayersProblem {
    /// A read failed.
    #[error("cannot read at offset {offset}: {message}")]
    Read {
        /// Where the read began.
        offset: u64,
        /// The kind of the system's error; [`io::ErrorKind::UnexpectedEof`] where the file has become shorter.
        kind: io::ErrorKind,
        /// What the system said.
        message: String,
    },
    /// The disk gave nothing for too long.
    #[error("the weights at offset {offset} do not come: no read has ended for {limit_ms} ms")]
    Stalled {
        /// Where the weights begin that are waited for.
        offset: u64,
        /// The limit, in milliseconds.
        limit_ms: u64,
    },
    /// The bytes are not those that were written.
    #[error(
        "section `{section}` at offset {offset} is damaged: its checksum is {stated:016x}, its bytes give {computed:016x}"
    )]
    Checksum {
        /// The section.
        section: String,
        /// Where it begins.
        offset: u64,
        /// As stated.
        stated: u64,
        /// Of the bytes that were read.
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

/// The tensors of sections that lie in memory as they lie in the file, one behind the other: matrices as views, norms and biases
/// copied.
///
/// The sections' header was held against the hyper-parameters when the file was opened, so shapes and types fit.
pub(in crate::model) struct SectionTensors<'a> {
    pub(in crate::model) sections: &'a [PackedSection],
    /// The first section begins where these do; there may be more behind the last one.
    pub(in crate::model) pages: &'a Arc<PageBuf>,
}

impl SectionTensors<'_> {
    /// A layer of the sections.
    ///
    /// # Panics
    /// If they have none of its tensors.
    pub(in crate::model) fn layer(&mut self, layer_idx: usize) -> Layer {
        match Layer::build(layer_idx, self) {
            Ok(layer) => layer,
            Err(never) => match never {},
        }
    }

    /// A tensor, and where it begins in memory.
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
        self.find(id).is_some()
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

/// Bytes of norms and biases of the sections: they are copied out of what was read.
pub(in crate::model) fn vectors_bytes(sections: &[PackedSection]) -> u64 {
    let tensors = sections.iter().flat_map(|section| &section.tensors);
    tensors.filter(|tensor| tensor.shape.len() == 1).map(|tensor| tensor.len).sum()
}
