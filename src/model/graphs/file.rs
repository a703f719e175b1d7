//! The file of one graph, read into a block's memory.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::{GraphsError, LayersError, LayersProblem};
use crate::kernels::{PackedMatrix, PageBuf};
use crate::model::checkpoint::WeightId;
use crate::model::direct::{DirectFile, ReadMode};
use crate::model::packed::{PackedFile, PackedSection, PackedTensor};
use crate::model::weights::{Layer, TensorSource};

/// The layers of a block, in the memory that they were read into.
pub(super) struct BlockLayers {
    pub(super) layers: Vec<Layer>,
    pages: Arc<PageBuf>,
}

impl BlockLayers {
    /// The memory, for the next graph.
    ///
    /// # Panics
    /// If somebody else still holds the layers.
    pub(super) fn into_pages(block: Arc<Self>) -> PageBuf {
        let block = Arc::into_inner(block).expect("nobody computes with layers that are given up");
        drop(block.layers);
        Arc::into_inner(block.pages).expect("the matrices are gone")
    }
}

/// A graph's file, open for direct reads. Its header was checked when the folder was opened.
pub(super) struct GraphFile {
    name: String,
    direct: DirectFile,
    /// Where the sections begin in the file; they follow each other.
    start: u64,
    len: u64,
    layers: Range<usize>,
    sections: Vec<PackedSection>,
}

impl GraphFile {
    pub(super) fn open(file: &PackedFile, layers: Range<usize>) -> Result<Self, GraphsError> {
        let name = file.file().to_owned();
        let direct = DirectFile::open(Path::new(&name));
        let direct = direct.map_err(|source| GraphsError::Io { file: name.clone(), source })?;
        let sections = file.sections().to_vec();
        let start = sections.first().map_or(0, |section| section.offset);
        let len = sections.iter().map(|section| section.len).sum();
        Ok(Self { name, direct, start, len, layers, sections })
    }

    pub(super) fn read_mode(&self) -> ReadMode {
        self.direct.mode()
    }

    /// Bytes that a load reads, and that the block's memory must have.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of norms and biases, which are copied out of that memory.
    pub(super) fn vectors_bytes(&self) -> u64 {
        let tensors = self.sections.iter().flat_map(|section| &section.tensors);
        tensors.filter(|tensor| tensor.shape.len() == 1).map(|tensor| tensor.len).sum()
    }

    /// Reads the graph into `pages`, which are at least as long, and compares it with its checksums.
    ///
    /// # Errors
    /// The memory, and why there is no graph in it.
    pub(super) fn load(&self, mut pages: PageBuf) -> Result<BlockLayers, Box<(PageBuf, LayersError)>> {
        // The block's memory was allocated with this length, so it is a usize.
        let bytes = &mut pages.bytes_mut()[..self.len as usize];
        let read = self.direct.read_exact_at(self.start, bytes).map_err(|(offset, error)| {
            LayersProblem::Read { offset, kind: error.kind(), message: error.to_string() }
        });
        if let Err(problem) = read.and_then(|()| self.verify(bytes)) {
            return Err(Box::new((pages, LayersError { file: self.name.clone(), problem })));
        }
        let pages = Arc::new(pages);
        let mut source = SectionTensors { file: self, pages: &pages };
        let build = |layer_idx| match Layer::build(layer_idx, &mut source) {
            Ok(layer) => layer,
            Err(never) => match never {},
        };
        let layers = self.layers.clone().map(build).collect();
        Ok(BlockLayers { layers, pages })
    }

    fn verify(&self, bytes: &[u8]) -> Result<(), LayersProblem> {
        for section in &self.sections {
            let start = (section.offset - self.start) as usize;
            let computed = xxh3_64(&bytes[start..start + section.len as usize]);
            if computed != section.checksum {
                let (section, offset, stated) = (section.part.to_string(), section.offset, section.checksum);
                return Err(LayersProblem::Checksum { section, offset, stated, computed });
            }
        }
        Ok(())
    }

    /// A tensor, and where it begins in the block's memory.
    fn find(&self, id: WeightId) -> Option<(&PackedTensor, usize)> {
        let in_section =
            |section: &'_ PackedSection| section.tensors.iter().position(|tensor| tensor.id == id);
        let (section, at) = self.sections.iter().find_map(|section| Some((section, in_section(section)?)))?;
        let tensor = &section.tensors[at];
        Some((tensor, (section.offset - self.start + tensor.offset) as usize))
    }

    fn place(&self, id: WeightId) -> (&PackedTensor, usize) {
        self.find(id).expect("the header was held against the hyper-parameters")
    }
}

/// The tensors of a graph as views of the memory that it was read into.
struct SectionTensors<'a> {
    file: &'a GraphFile,
    pages: &'a Arc<PageBuf>,
}

impl TensorSource for SectionTensors<'_> {
    type Error = std::convert::Infallible;

    fn has(&self, id: WeightId) -> bool {
        self.file.find(id).is_some()
    }

    fn matrix(&mut self, id: WeightId) -> Result<PackedMatrix, Self::Error> {
        let (tensor, start) = self.file.place(id);
        let (n_rows, n_cols) = (tensor.shape[0] as usize, tensor.shape[1] as usize);
        let matrix = PackedMatrix::from_pages(tensor.ty, n_rows, n_cols, Arc::clone(self.pages), start);
        Ok(matrix.expect("shape and type were checked with the header"))
    }

    fn vector(&mut self, id: WeightId) -> Result<Vec<f32>, Self::Error> {
        let (tensor, start) = self.file.place(id);
        let bytes = &self.pages.bytes()[start..start + tensor.len as usize];
        Ok(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    }
}
