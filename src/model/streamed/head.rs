//! The output matrix, cut into pieces that fit the ring's buffers.

use std::sync::Arc;

use crate::kernels::{BlockType, PANEL_ROWS, PackedMatrix, PageBuf};
use crate::model::packed::PackedTensor;
use refrain_stream::{DIRECT_ALIGN, Extent};

/// Consecutive panels of the output matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) extent_idx: usize,
    /// The offset of the panels in their extent. (A matrix begins on a line, an extent on a page.)
    start: usize,
    ty: BlockType,
    pub(super) first_row: usize,
    n_rows: usize,
    n_cols: usize,
}

impl Piece {
    /// The piece as a matrix over the buffer of its extent.
    pub(super) fn matrix(&self, pages: &Arc<PageBuf>) -> PackedMatrix {
        let matrix =
            PackedMatrix::from_pages(self.ty, self.n_rows, self.n_cols, Arc::clone(pages), self.start);
        matrix.expect("panels of a matrix that was checked with the header")
    }
}

/// Cuts the matrix at offset `start` of the file into the fewest pieces that fit `slot_len`, of nearly equal
/// length, and appends their extents.
///
/// `slot_len` must be at least a panel and two pages.
pub(super) fn pieces(
    tensor: &PackedTensor,
    start: u64,
    slot_len: u64,
    extents: &mut Vec<Extent>,
) -> Vec<Piece> {
    let page = DIRECT_ALIGN as u64;
    // Checked against the limits of the hyper-parameters, which fit in usize.
    let (n_rows, n_cols) = (tensor.shape[0] as usize, tensor.shape[1] as usize);
    let n_panels = n_rows.div_ceil(PANEL_ROWS);
    let panel_bytes = tensor.len / n_panels as u64;
    let n_panels_max = ((slot_len - 2 * page) / panel_bytes) as usize;
    let n_pieces = n_panels.div_ceil(n_panels_max);
    let mut pieces = Vec::with_capacity(n_pieces);
    for piece_idx in 0..n_pieces {
        let [first, end] = [piece_idx, piece_idx + 1].map(|i| i * n_panels / n_pieces);
        let [from, to] = [first, end].map(|panel| start + panel as u64 * panel_bytes);
        let offset = from - from % page;
        pieces.push(Piece {
            extent_idx: extents.len(),
            start: (from - offset) as usize,
            ty: tensor.ty,
            first_row: first * PANEL_ROWS,
            n_rows: n_rows.min(end * PANEL_ROWS) - first * PANEL_ROWS,
            n_cols,
        });
        extents.push(Extent { offset, len: (to.next_multiple_of(page) - offset) as usize });
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::checkpoint::WeightId;

    #[test]
    fn pieces_cover_the_matrix_and_fit() {
        for (n_rows, n_cols) in [(1, 32), (16, 64), (1000, 96), (4097, 32)] {
            let len = PackedMatrix::packed_bytes(BlockType::Q8_0, n_rows, n_cols).unwrap();
            let (id, ty, shape) = (WeightId::Head, BlockType::Q8_0, vec![n_rows as u64, n_cols as u64]);
            let tensor = PackedTensor { id, name: String::new(), ty, shape, offset: 64, len };
            let panel_bytes = len / (n_rows as u64).div_ceil(16);
            for slot_len in [panel_bytes + 8192, 3 * panel_bytes + 8192, 20_000 + panel_bytes, 1 << 30] {
                let (start, mut extents) = (4096 * 5 + 64, vec![Extent { offset: 0, len: 4096 }]);
                let pieces = pieces(&tensor, start, slot_len, &mut extents);
                let (mut next_row, mut next_byte) = (0, start);
                for piece in &pieces {
                    let Extent { offset, len } = extents[piece.extent_idx];
                    assert!(len as u64 <= slot_len && (offset + len as u64).is_multiple_of(4096));
                    assert_eq!((piece.first_row, offset + piece.start as u64), (next_row, next_byte));
                    let bytes = PackedMatrix::packed_bytes(ty, piece.n_rows, n_cols).unwrap();
                    assert!(piece.start as u64 + bytes <= len as u64);
                    next_row += piece.n_rows;
                    next_byte += bytes;
                }
                assert_eq!((next_row, next_byte), (n_rows, start + tensor.len), "{n_rows} in {slot_len}");
                assert_eq!(extents.len(), 1 + pieces.len());
            }
        }
    }
}
