//! The file of one graph, read into a block's memory.

use std::ops::Range;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::{GraphsError, LayersError, LayersProblem};
use crate::kernels::PageBuf;
use crate::model::config::ModelConfig;
use crate::model::layers::{SectionTensors, vectors_bytes};
use crate::model::packed::{PackedFile, PackedSection};
use crate::model::resident::Layer;
use refrain_stream::{DirectFile, ReadAt, ReadFailure, ReadMode, read_full};

/// The layers of a block, as views of the memory that the graph was read into.
pub(super) struct BlockLayers {
    pub(super) layers: Vec<Layer>,
    pages: Arc<PageBuf>,
}

impl BlockLayers {
    /// Returns the memory, for the next graph.
    ///
    /// # Panics
    /// If a pass still holds the layers.
    pub(super) fn into_pages(block: Arc<Self>) -> PageBuf {
        let block = Arc::into_inner(block).expect("nobody computes with layers that are given up");
        drop(block.layers);
        Arc::into_inner(block.pages).expect("the matrices are gone")
    }
}

/// The file of a graph, open for direct reads. Its header was checked when the folder was opened.
pub(super) struct GraphFile {
    name: String,
    config: ModelConfig,
    direct: DirectFile,
    /// The offset of the first section. The sections are contiguous.
    start: u64,
    len: u64,
    layers: Range<usize>,
    sections: Vec<PackedSection>,
}

impl GraphFile {
    pub(super) fn open(file: &PackedFile, layers: Range<usize>) -> Result<Self, GraphsError> {
        let name = file.file().to_owned();
        let direct = file.reopen_direct().expect("the graphs of a folder are files");
        let direct = direct.map_err(|source| GraphsError::Io { file: name.clone(), source })?;
        let sections = file.sections().to_vec();
        let start = sections.first().map_or(0, |section| section.offset);
        let len = sections.iter().map(|section| section.len).sum();
        Ok(Self { name, config: file.config().clone(), direct, start, len, layers, sections })
    }

    pub(super) fn read_mode(&self) -> ReadMode {
        self.direct.mode()
    }

    /// Bytes that a load reads: the minimum size of the block's memory.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Bytes of norms and biases, which are copied from that memory.
    pub(super) fn vectors_bytes(&self) -> u64 {
        vectors_bytes(&self.sections)
    }

    /// Reads the graph into `pages` and verifies its checksums. `pages` must be at least [`len`](Self::len)
    /// bytes long.
    ///
    /// # Errors
    /// The memory, and the error.
    pub(super) fn load(&self, mut pages: PageBuf) -> Result<BlockLayers, Box<(PageBuf, LayersError)>> {
        // The block's memory was allocated with this length, so it fits in usize.
        let bytes = &mut pages.bytes_mut()[..self.len as usize];
        let read =
            read_full(&self.direct, self.start, bytes).map_err(|failed| ReadFailure::from(failed).into());
        if let Err(problem) = read.and_then(|()| self.verify(bytes)) {
            return Err(Box::new((pages, LayersError { file: self.name.clone(), problem })));
        }
        let pages = Arc::new(pages);
        let mut tensors = SectionTensors { sections: &self.sections, pages: &pages };
        let layers = self.layers.clone().map(|layer_idx| tensors.layer(&self.config, layer_idx)).collect();
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
}
