//! Packing: the blocks of a file become the panels of a [`PackedMatrix`], perhaps on several threads.
//!
//! A file holds a row's codes in column order, four bits or eight to a code, or with its upper bits apart. A panel
//! holds four codes of a row in each 32-bit word of a line, so packing moves whole words: of Q4_0, Q4_1 and Q8_0 as
//! they are, of the other formats after their bits have been separated ([`Unpacked`]).

use std::ops::Range;

use super::aligned::{AlignedBuf, Line};
use super::block::{BlockFormat, BlockType, with_format};
use super::layout::{IntLayout, LayoutInfo, PANEL_ROWS};
use super::packed::{PackError, PackedMatrix};
use super::panels::Panels;
use super::unpacked::Unpacked;

impl PackedMatrix {
    /// Packs a row-major matrix of file elements.
    ///
    /// `row_map(i)` is the source row that becomes row `i`: usually the identity, or a permutation if the
    /// file format reorders the matrix's rows.
    ///
    /// # Errors
    /// [`PackError`] if shape, type and bytes do not match, or if an allocation fails.
    ///
    /// # Panics
    /// If `row_map` returns a row that does not exist.
    pub fn pack(
        ty: BlockType,
        n_rows: usize,
        n_cols: usize,
        src: &[u8],
        row_map: &dyn Fn(usize) -> usize,
    ) -> Result<Self, PackError> {
        let row_bytes = ty.row_bytes(n_cols as u64).ok_or(PackError::PartialBlock { ty, n_cols })?;
        let expected = row_bytes.saturating_mul(n_rows as u64);
        if expected != src.len() as u64 {
            return Err(PackError::WrongLength { ty, n_rows, n_cols, expected, given: src.len() });
        }
        let row_bytes = row_bytes as usize;
        let mut packing = Packing::new(ty, n_rows, n_cols)?;
        for mut part in packing.parts(1) {
            for row in part.rows() {
                let from = row_map(row);
                assert!(from < n_rows, "row {row} maps to row {from} of {n_rows}");
                part.pack_row(row, &src[from * row_bytes..][..row_bytes]);
            }
        }
        Ok(packing.finish())
    }
}

/// A matrix that is being packed. Its [parts](Packing::parts) are disjoint, so that several threads can pack them.
pub struct Packing {
    ty: BlockType,
    n_rows: usize,
    n_cols: usize,
    panel_lines: usize,
    data: AlignedBuf,
}

impl Packing {
    /// Allocates a matrix of zeros.
    ///
    /// # Errors
    /// [`PackError::PartialBlock`] if a row is not a whole number of blocks, [`PackError::Alloc`].
    pub fn new(ty: BlockType, n_rows: usize, n_cols: usize) -> Result<Self, PackError> {
        if ty.row_bytes(n_cols as u64).is_none() {
            return Err(PackError::PartialBlock { ty, n_cols });
        }
        let panel_lines = ty.panel_lines(n_cols).unwrap_or(usize::MAX);
        let n_lines = panel_lines.saturating_mul(n_rows.div_ceil(PANEL_ROWS));
        let data = AlignedBuf::zeroed_huge(n_lines)?;
        Ok(Self { ty, n_rows, n_cols, panel_lines, data })
    }

    /// The matrix in parts of `n_panels` panels (16 rows each), in order; the last part may be shorter. No parts if the
    /// matrix has no rows or no columns.
    pub fn parts(&mut self, n_panels: usize) -> impl Iterator<Item = PackingPart<'_>> + Send {
        let Self { ty, n_rows, panel_lines, .. } = *self;
        let n_panels = n_panels.max(1);
        let part_rows = n_panels.saturating_mul(PANEL_ROWS);
        let lines = self.data.lines_mut().chunks_mut(panel_lines.saturating_mul(n_panels).max(1));
        lines.enumerate().map(move |(i, lines)| {
            let rows = i * part_rows..n_rows.min((i + 1).saturating_mul(part_rows));
            PackingPart { ty, rows, panel_lines, lines }
        })
    }

    /// The matrix. Rows that were not packed are zeros of the format.
    pub fn finish(self) -> PackedMatrix {
        let Self { ty, n_rows, n_cols, panel_lines, data } = self;
        PackedMatrix { ty, n_rows, n_cols, panel_lines, data: Panels::Owned(data) }
    }
}

/// Some panels of a matrix that is being packed.
pub struct PackingPart<'a> {
    ty: BlockType,
    rows: Range<usize>,
    panel_lines: usize,
    lines: &'a mut [Line],
}

impl PackingPart<'_> {
    /// The rows of the part.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// Packs a row: `src` holds its elements as in a file.
    ///
    /// # Panics
    /// If the part does not have the row, or `src` is longer than a row.
    pub fn pack_row(&mut self, row: usize, src: &[u8]) {
        assert!(self.rows.contains(&row), "row {row} in a part of rows {:?}", self.rows);
        let (at, lane) = ((row - self.rows.start) / PANEL_ROWS, row % PANEL_ROWS);
        let panel = &mut self.lines[at * self.panel_lines..][..self.panel_lines];
        match self.ty {
            BlockType::Q4_0 => pack_words::<18, 4, 2>(src, panel, lane, 0),
            BlockType::Q4_1 => pack_words::<20, 4, 1>(src, panel, lane, 0),
            // Two's complement becomes unsigned.
            BlockType::Q8_0 => pack_words::<34, 8, 2>(src, panel, lane, 0x8080_8080),
            ty => with_format!(
                ty,
                F => pack_codes::<F>(src, panel, lane),
                _ => pack_floats(ty, src, panel, lane)
            ),
        }
    }
}

impl Line {
    /// Writes the four codes of a lane.
    fn put(&mut self, lane: usize, codes: u32) {
        self.0.as_chunks_mut::<4>().0[lane] = codes.to_le_bytes();
    }
}

fn pack_floats(ty: BlockType, src: &[u8], panel: &mut [Line], lane: usize) {
    if ty == BlockType::F32 {
        for (line, bytes) in panel.iter_mut().zip(src.as_chunks().0) {
            line.floats_mut()[lane] = f32::from_le_bytes(*bytes);
        }
    } else {
        for (line, pair) in panel.iter_mut().zip(src.chunks(4)) {
            for (half, bytes) in line.halves_mut().iter_mut().zip(pair.as_chunks().0) {
                half[lane] = u16::from_le_bytes(*bytes);
            }
        }
    }
}

/// Packs a format whose codes are in the order of panels: a block of 32 columns is f16 factors, then `WORDS` words of
/// codes, one for each line.
fn pack_words<const BYTES: usize, const WORDS: usize, const UNIT_BLOCKS: usize>(
    src: &[u8],
    panel: &mut [Line],
    lane: usize,
    flip: u32,
) {
    let blocks = src.as_chunks::<BYTES>().0.chunks(UNIT_BLOCKS);
    for (blocks, unit) in blocks.zip(panel.chunks_mut(UNIT_BLOCKS * WORDS + 1)) {
        let (codes, scales) = unit.split_at_mut(UNIT_BLOCKS * WORDS);
        let scales = scales[0].halves_mut();
        for (i, (block, lines)) in blocks.iter().zip(codes.as_chunks_mut::<WORDS>().0).enumerate() {
            let (factors, codes) = block.split_at(BYTES - 4 * WORDS);
            for (line, word) in lines.iter_mut().zip(codes.as_chunks().0) {
                line.put(lane, u32::from_le_bytes(*word) ^ flip);
            }
            for (scales, bytes) in scales[i..].iter_mut().zip(factors.as_chunks().0) {
                scales[lane] = u16::from_le_bytes(*bytes);
            }
        }
    }
}

/// Packs any integer format.
fn pack_codes<F: BlockFormat>(src: &[u8], panel: &mut [Line], lane: usize) {
    let info = const { LayoutInfo::of::<F::Layout>() };
    let mut unpacked = Unpacked::new();
    for (i, block) in src.chunks(F::BLOCK_BYTES).enumerate() {
        F::read(block, &mut unpacked);
        let block_idx = i * F::BLOCK_LEN / 32;
        let unit = &mut panel[block_idx / info.unit_blocks * info.unit_lines..][..info.unit_lines];
        // The first block of 32 columns in its unit.
        let first = block_idx % info.unit_blocks;
        for (sub, codes) in unpacked.codes[..F::BLOCK_LEN].as_chunks::<32>().0.iter().enumerate() {
            let lines = &mut unit[(first + sub) * info.block_lines..][..info.block_lines];
            for (group, &codes) in codes.as_chunks().0.iter().enumerate() {
                info.put_codes(lines, group, lane, codes);
            }
        }
        F::Layout::pack_scales(&unpacked, &mut unit[info.unit_blocks * info.block_lines..], first, lane);
    }
}
