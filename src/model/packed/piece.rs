//! The description of a file that holds a part of a model only.

use std::ops::Range;

use super::PackedFileError;
use super::header::{GraphJson, PieceJson};
use super::identity::ModelIdentity;
use super::plan::Scope;
use crate::model::config::ModelConfig;
use crate::schedule::{GRAPH_ROWS_MAX, GraphKind};

/// The part of a model in a file, and the blocks of the model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The identity of the whole model.
    pub model: ModelIdentity,
    /// The layers of each block; together all of them, in order.
    pub blocks: Vec<Range<usize>>,
    /// Rows of the prefill graphs.
    pub prefill_len: usize,
    /// Rows of the verify graphs.
    pub verify_len: usize,
    /// The block and graph that the file holds; `None`: everything but the layers.
    pub graph: Option<(usize, GraphKind)>,
}

impl Piece {
    /// Rows of a call.
    pub fn graph_len(&self, graph: GraphKind) -> usize {
        match graph {
            GraphKind::Prefill => self.prefill_len,
            GraphKind::Verify => self.verify_len,
        }
    }

    pub(super) fn scope(&self) -> Scope {
        match self.graph {
            None => Scope::Ends,
            Some((block, _)) => Scope::Layers(self.blocks[block].clone()),
        }
    }

    pub(super) fn to_json(&self) -> PieceJson {
        PieceJson {
            model: self.model.to_string(),
            blocks: self.blocks.iter().map(|block| [block.start, block.end]).collect(),
            prefill_len: self.prefill_len,
            verify_len: self.verify_len,
            graph: self.graph.map(|(block, kind)| GraphJson { block, kind }),
        }
    }
}

/// Checks the header of a piece against the hyper-parameters.
pub(super) fn check(file: &str, config: &ModelConfig, json: &PieceJson) -> Result<Piece, PackedFileError> {
    let error = |field: String, found: String, expected: String| {
        Err(PackedFileError::Piece { file: file.to_owned(), field, found, expected })
    };
    let is_hex = json.model.len() == 32 && json.model.bytes().all(|byte| byte.is_ascii_hexdigit());
    let Some(model) = json.model.parse().ok().filter(|_| is_hex) else {
        return error("piece.model".to_owned(), json.model.clone(), "32 hexadecimal digits".to_owned());
    };
    let mut start = 0;
    for (block_idx, block) in json.blocks.iter().enumerate() {
        if block[0] != start || block[1] <= start || block[1] > config.n_layers() {
            let expected = format!("a range from layer {start} that ends at {} at most", config.n_layers());
            return error(format!("piece.blocks[{block_idx}]"), format!("{block:?}"), expected);
        }
        start = block[1];
    }
    if start != config.n_layers() {
        let expected = format!("layer {}", config.n_layers());
        return error("the end of piece.blocks".to_owned(), format!("layer {start}"), expected);
    }
    for (field, len) in [("piece.prefill_len", json.prefill_len), ("piece.verify_len", json.verify_len)] {
        if !(1..=GRAPH_ROWS_MAX).contains(&len) {
            return error(field.to_owned(), len.to_string(), format!("1..={GRAPH_ROWS_MAX}"));
        }
    }
    let n_blocks = json.blocks.len();
    let graph = json.graph.as_ref().map(|graph| (graph.block, graph.kind));
    if let Some((block, _)) = graph.filter(|(block, _)| *block >= n_blocks) {
        return error("piece.graph.block".to_owned(), block.to_string(), format!("less than {n_blocks}"));
    }
    Ok(Piece {
        model,
        blocks: json.blocks.iter().map(|block| block[0]..block[1]).collect(),
        prefill_len: json.prefill_len,
        verify_len: json.verify_len,
        graph,
    })
}
