//! Cuts a model into graphs and writes their files.

use std::ops::Range;
use std::path::Path;

use super::folder::{ENDS, graph_name};
use crate::model::checkpoint::Checkpoint;
use crate::model::packed::{ModelIdentity, Piece, PieceFile, WritePackedError, write_pieces};
use crate::model::weights::LoadOptions;
use crate::schedule::{GRAPH_ROWS_MAX, GraphKind};
use refrain_files::replace::create_folder;

/// A summary of the written files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GraphsSummary {
    /// Blocks of layers.
    pub n_blocks: usize,
    /// The number of files.
    pub n_files: usize,
    /// Bytes of all files.
    pub file_bytes: u64,
    /// Bytes of the model's weights, each counted once.
    pub weights_bytes: u64,
    /// The model's identity.
    pub identity: ModelIdentity,
}

/// Writes `checkpoint` as static graphs of `n_blocks` blocks into a new folder, which appears complete or not
/// at all. If the layers cannot be split equally, the first blocks are one layer longer.
/// [`LoadOptions::quantize`] decides the types of the weights; weights of a packed file keep theirs.
///
/// # Errors
/// [`WritePackedError`]; an existing file or folder at `path` is unchanged.
pub fn write_graphs(
    checkpoint: &Checkpoint,
    path: &Path,
    n_blocks: usize,
    prefill_len: usize,
    verify_len: usize,
    options: LoadOptions<'_>,
) -> Result<GraphsSummary, WritePackedError> {
    let n_layers = checkpoint.config().n_layers();
    for (option, given, max) in [
        ("blocks", n_blocks, n_layers),
        ("rows of the prefill graphs", prefill_len, GRAPH_ROWS_MAX),
        ("rows of the verify graphs", verify_len, GRAPH_ROWS_MAX),
    ] {
        if !(1..=max).contains(&given) {
            return Err(WritePackedError::OutOfRange { option, given, max });
        }
    }
    if checkpoint.config().is_recurrent() {
        return Err(WritePackedError::Recurrent { file: checkpoint.name().to_owned() });
    }
    let piece = Piece {
        model: ModelIdentity::UNKNOWN,
        blocks: cut(n_layers, n_blocks),
        prefill_len,
        verify_len,
        graph: None,
    };
    let pieces = || {
        let ends = PieceFile { name: ENDS.to_owned(), piece: piece.clone() };
        let graphs = (0..n_blocks).flat_map(|block_idx| GraphKind::ALL.map(|graph| (block_idx, graph)));
        let graphs = graphs.map(|(block_idx, graph)| PieceFile {
            name: graph_name(block_idx, graph),
            piece: Piece { graph: Some((block_idx, graph)), ..piece.clone() },
        });
        std::iter::once(ends).chain(graphs).collect()
    };
    let summary = create_folder(path, |folder| write_pieces(checkpoint, folder, pieces(), options))?;
    Ok(GraphsSummary {
        n_blocks,
        n_files: 1 + 2 * n_blocks,
        file_bytes: summary.file_bytes,
        weights_bytes: summary.weights_bytes,
        identity: summary.identity,
    })
}

/// Splits layers into blocks of nearly equal length.
fn cut(n_layers: usize, n_blocks: usize) -> Vec<Range<usize>> {
    let start = |block_idx: usize| block_idx * (n_layers / n_blocks) + block_idx.min(n_layers % n_blocks);
    (0..n_blocks).map(|block_idx| start(block_idx)..start(block_idx + 1)).collect()
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    #[test]
    fn blocks_cover_all_layers_in_order() {
        assert_eq!(super::cut(5, 2), [0..3, 3..5]);
        for (n_layers, n_blocks) in [(1, 1), (7, 7), (24, 5), (24, 6)] {
            let blocks = super::cut(n_layers, n_blocks);
            assert_eq!(blocks.len(), n_blocks);
            assert_eq!(
                blocks.iter().cloned().flatten().collect::<Vec<_>>(),
                (0..n_layers).collect::<Vec<_>>()
            );
            let lens: Vec<usize> = blocks.iter().map(Range::len).collect();
            assert!(lens.iter().max().unwrap() - lens.iter().min().unwrap() <= 1, "{lens:?}");
        }
    }
}
