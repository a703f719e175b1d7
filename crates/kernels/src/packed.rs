//! A weight matrix in the layout of the kernels.

use std::ops::Range;
use std::sync::Arc;

use super::activations::ActivationForm;
use super::aligned::{AlignedBuf, AllocError, Line};
use super::block::{BlockFormat, BlockType, with_format};
use super::layout::{IntLayout, LayoutInfo, PANEL_ROWS};
use super::page_buf::PageBuf;
use super::panels::Panels;
use super::quantize::dequantize;
use super::unpacked::Unpacked;
use crate::mapping::Mapping;

/// A weight matrix `[n_rows, n_cols]`, packed in panels of 16 interleaved rows (the layouts are in `layout.rs`).
///
/// Packing is lossless: [`PackedMatrix::dequantize_row`] returns the same bits as [`dequantize`] for the row
/// of the file. Rows after the last full panel are padded with zeros, and columns are padded to the unit of
/// the layout.
pub struct PackedMatrix {
    pub(super) ty: BlockType,
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
    pub(super) panel_lines: usize,
    /// `[n_panels, panel_lines]`, with room for more panels if rows are
    /// [gathered](PackedMatrix::push_row_of).
    pub(super) data: Panels,
}

/// A matrix could not be packed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PackError {
    /// The columns are not a whole number of blocks.
    #[error("{n_cols} columns are not a whole number of {ty} blocks of {}", ty.block_len())]
    PartialBlock {
        /// The element type.
        ty: BlockType,
        /// The number of columns.
        n_cols: usize,
    },
    /// The bytes do not match the shape.
    #[error("a {n_rows} × {n_cols} matrix of {ty} needs {expected} bytes, {given} were given")]
    WrongLength {
        /// The element type.
        ty: BlockType,
        /// The number of rows.
        n_rows: usize,
        /// The number of columns.
        n_cols: usize,
        /// Bytes that the shape needs; saturated on overflow.
        expected: u64,
        /// Bytes given.
        given: usize,
    },
    /// An allocation failed.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

impl PackedMatrix {
    /// The same weights as f32, with the bits of [`PackedMatrix::dequantize_row`]. Needs memory for the new
    /// matrix and for one row.
    ///
    /// # Errors
    /// [`PackError::Alloc`].
    pub fn widened(&self) -> Result<Self, PackError> {
        let n_lines = Self::n_lines(BlockType::F32, self.n_rows, self.n_cols)?;
        let mut data = AlignedBuf::zeroed_huge(n_lines)?;
        let mut row_values = vec![0.0; self.n_cols];
        for row in 0..self.n_rows {
            self.dequantize_row(row, &mut row_values);
            // Each line of an f32 panel is one column.
            let panel = &mut data.lines_mut()[row / PANEL_ROWS * self.n_cols..][..self.n_cols];
            for (line, &value) in panel.iter_mut().zip(&row_values) {
                line.floats_mut()[row % PANEL_ROWS] = value;
            }
        }
        Ok(Self::over(BlockType::F32, self.n_rows, self.n_cols, Panels::Owned(data)))
    }

    /// Bytes of a packed matrix of this shape; `None` if the columns are not a whole number of blocks, or on
    /// overflow.
    pub fn packed_bytes(ty: BlockType, n_rows: usize, n_cols: usize) -> Option<u64> {
        ty.row_bytes(n_cols as u64)?;
        let lines = (ty.panel_lines(n_cols)? as u64).checked_mul(n_rows.div_ceil(PANEL_ROWS) as u64)?;
        lines.checked_mul(64)
    }

    /// A matrix whose panels are written by `fill`, in the form of [`PackedMatrix::panel_bytes`]. `fill`
    /// receives [`packed_bytes`](PackedMatrix::packed_bytes) zeroed bytes.
    ///
    /// Any bytes are valid and give the same results on every instruction set.
    ///
    /// # Errors
    /// The error of `fill`; a [`PackError`] if the shape is not valid or an allocation fails.
    pub fn from_panels<E: From<PackError>>(
        ty: BlockType,
        n_rows: usize,
        n_cols: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let n_lines = Self::n_lines(ty, n_rows, n_cols)?;
        let mut data = AlignedBuf::zeroed_huge(n_lines).map_err(PackError::from)?;
        fill(Line::bytes_of_mut(data.lines_mut()))?;
        Ok(Self::over(ty, n_rows, n_cols, Panels::Owned(data)))
    }

    /// A matrix over panels in a mapped file, from byte `start` on.
    ///
    /// # Panics
    /// If `start` is not a multiple of 64, or the file ends before the panels end.
    pub fn from_mapping(
        ty: BlockType,
        n_rows: usize,
        n_cols: usize,
        mapping: Arc<Mapping>,
        start: usize,
    ) -> Result<Self, PackError> {
        let n_lines = Self::n_lines(ty, n_rows, n_cols)?;
        let left = mapping.bytes().len().saturating_sub(start);
        assert!(start.is_multiple_of(64), "panels at byte {start}");
        assert!(n_lines <= left / 64, "{n_lines} lines of panels in {left} bytes");
        Ok(Self::over(ty, n_rows, n_cols, Panels::Mapped { mapping, start, n_lines }))
    }

    /// A matrix over panels in a buffer, from byte `start` on.
    ///
    /// # Panics
    /// If `start` is not a multiple of 64, or the bytes end before the panels end.
    pub fn from_pages(
        ty: BlockType,
        n_rows: usize,
        n_cols: usize,
        pages: Arc<PageBuf>,
        start: usize,
    ) -> Result<Self, PackError> {
        let n_lines = Self::n_lines(ty, n_rows, n_cols)?;
        let left = pages.len().saturating_sub(start);
        assert!(start.is_multiple_of(64), "panels at byte {start}");
        assert!(n_lines <= left / 64, "{n_lines} lines of panels in {left} bytes");
        Ok(Self::over(ty, n_rows, n_cols, Panels::Pages { pages, start, n_lines }))
    }

    fn n_lines(ty: BlockType, n_rows: usize, n_cols: usize) -> Result<usize, PackError> {
        if ty.row_bytes(n_cols as u64).is_none() {
            return Err(PackError::PartialBlock { ty, n_cols });
        }
        let bytes = Self::packed_bytes(ty, n_rows, n_cols).and_then(|bytes| usize::try_from(bytes).ok());
        bytes.map(|bytes| bytes / 64).ok_or(PackError::Alloc(AllocError { bytes: usize::MAX }))
    }

    /// A matrix over `data`, which has exactly the lines of the shape.
    fn over(ty: BlockType, n_rows: usize, n_cols: usize, data: Panels) -> Self {
        let panel_lines = ty.panel_lines(n_cols).expect("the shape has a size");
        PackedMatrix { ty, n_rows, n_cols, panel_lines, data }
    }

    /// The bytes of the panels, as stored in packed files. Numbers have the byte order of this machine.
    pub fn panel_bytes(&self) -> &[u8] {
        Line::bytes_of(self.data.lines())
    }

    /// Rows: the outputs of a [`matmul`](super::matmul).
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Columns: the inputs of a [`matmul`](super::matmul).
    pub fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Memory held by the weights, padding included.
    pub fn size_bytes(&self) -> usize {
        self.data.size_bytes()
    }

    /// The element type before packing.
    pub fn block_type(&self) -> BlockType {
        self.ty
    }

    /// The form of activations that this matrix is multiplied with.
    pub fn activation_form(&self) -> ActivationForm {
        if self.ty.is_float() { ActivationForm::F32 } else { ActivationForm::Int8 }
    }

    /// Dequantises one row (an embedding, for example), with the bits of [`dequantize`].
    ///
    /// # Panics
    /// If there is no such row, or `out` is not `n_cols` long.
    pub fn dequantize_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.n_rows, "row {row} of {}", self.n_rows);
        assert_eq!(out.len(), self.n_cols);
        let panel = self.panel(row / PANEL_ROWS);
        match self.ty.layout() {
            Some(info) => unpack_codes(self.ty, info, panel, row % PANEL_ROWS, out),
            None => unpack_floats(self.ty, panel, row % PANEL_ROWS, out),
        }
    }

    /// A range of rows in whole panels: a matrix of their own, such as an expert's of a stack of matrices.
    ///
    /// # Panics
    /// If the range does not begin at a multiple of 16, ends neither at one nor with the matrix, or there are no such
    /// rows.
    pub fn rows(&self, rows: Range<usize>) -> PackedRows<'_> {
        assert!(rows.start <= rows.end && rows.end <= self.n_rows, "rows {rows:?} of {}", self.n_rows);
        let is_whole = |row: usize| row.is_multiple_of(PANEL_ROWS);
        assert!(is_whole(rows.start) && (is_whole(rows.end) || rows.end == self.n_rows), "rows {rows:?}");
        PackedRows { matrix: self, first_panel: rows.start / PANEL_ROWS, n_rows: rows.len() }
    }

    /// All rows.
    pub(super) fn all(&self) -> PackedRows<'_> {
        PackedRows { matrix: self, first_panel: 0, n_rows: self.n_rows }
    }

    pub(super) fn n_panels(&self) -> usize {
        self.n_rows.div_ceil(PANEL_ROWS)
    }

    pub(super) fn panel(&self, panel: usize) -> &[Line] {
        &self.data.lines()[panel * self.panel_lines..][..self.panel_lines]
    }
}

/// A view of whole panels of a [`PackedMatrix`].
#[derive(Clone, Copy)]
pub struct PackedRows<'a> {
    matrix: &'a PackedMatrix,
    first_panel: usize,
    n_rows: usize,
}

impl<'a> PackedRows<'a> {
    /// Rows: the outputs of a product.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Columns: the inputs of a product.
    pub fn n_cols(&self) -> usize {
        self.matrix.n_cols
    }

    /// The element type before packing.
    pub fn block_type(&self) -> BlockType {
        self.matrix.ty
    }

    /// The form of activations that the rows are multiplied with.
    pub fn activation_form(&self) -> ActivationForm {
        self.matrix.activation_form()
    }

    pub(super) fn n_panels(&self) -> usize {
        self.n_rows.div_ceil(PANEL_ROWS)
    }

    /// The lines of a range of panels, contiguous.
    pub(super) fn panels(&self, panels: Range<usize>) -> &'a [Line] {
        let panel_lines = self.matrix.panel_lines;
        let [first, end] = [panels.start.min(panels.end), panels.end].map(|panel| self.first_panel + panel);
        &self.matrix.data.lines()[first * panel_lines..end * panel_lines]
    }

    pub(super) fn panel(&self, panel: usize) -> &'a [Line] {
        self.matrix.panel(self.first_panel + panel)
    }
}

fn unpack_floats(ty: BlockType, panel: &[Line], lane: usize, out: &mut [f32]) {
    for (col, value) in out.iter_mut().enumerate() {
        *value = match ty {
            BlockType::F32 => panel[col].floats()[lane],
            _ => {
                let bits = panel[col / 2].halves()[col % 2][lane];
                let mut one = [0.0];
                dequantize(ty, &bits.to_le_bytes(), &mut one);
                one[0]
            }
        };
    }
}

/// The inverse of packing.
fn unpack_codes(ty: BlockType, info: LayoutInfo, panel: &[Line], lane: usize, out: &mut [f32]) {
    let mut unpacked = Unpacked::new();
    for (i, out) in out.chunks_mut(ty.block_len()).enumerate() {
        let block_idx = i * ty.block_len() / 32;
        let unit = &panel[block_idx / info.unit_blocks * info.unit_lines..][..info.unit_lines];
        let first = block_idx % info.unit_blocks;
        for (sub, codes) in unpacked.codes[..ty.block_len()].as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let lines = &unit[(first + sub) * info.block_lines..][..info.block_lines];
            for (group, codes) in codes.as_chunks_mut().0.iter_mut().enumerate() {
                *codes = info.codes(lines, group, lane);
            }
        }
        let scales = &unit[info.unit_blocks * info.block_lines..];
        with_format!(ty, F => <F as BlockFormat>::Layout::unpack_scales(&mut unpacked, scales, first, lane), _ => {});
        ty.dequantize(&unpacked, out);
    }
}
