//! Reads single rows of a streamed matrix: of the embedding for the tokens of a batch, and of the output
//! matrix for shortlists.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::kernels::{AllocError, BlockType, PANEL_ROWS, PackError, PackedMatrix, PageBuf};
use crate::model::packed::PackedTensor;
use crate::model::shortlist::Shortlist;
use refrain_stream::{DIRECT_ALIGN, Meter, ReadAt, ReadFailure, read_aside};
use refrain_trees::TokenId;

/// Reads rows by panels of 16, since the rows of a panel are interleaved.
pub(super) struct RowReader {
    file: Arc<dyn ReadAt>,
    meter: Arc<Meter>,
    ty: BlockType,
    n_rows: usize,
    n_cols: usize,
    /// The offset of the matrix in the file.
    start: u64,
    panel_bytes: usize,
    panel: Mutex<Panel>,
    /// Rows that stay in memory, if any do.
    kept: Option<Mutex<Shortlist>>,
}

/// The newest panel.
struct Panel {
    idx: Option<usize>,
    /// Room for a panel, and for the rest of its first and last page.
    pages: Arc<PageBuf>,
}

/// Bytes of memory for up to `n_max` [kept](RowReader::keep) rows of a matrix.
pub(super) fn kept_bytes(tensor: &PackedTensor, n_max: usize) -> u64 {
    let n_panels = tensor.shape[0].div_ceil(PANEL_ROWS as u64);
    let kept = n_panels.min(n_max.div_ceil(PANEL_ROWS) as u64);
    // And the place of each row, and the number of each kept one.
    tensor.len / n_panels.max(1) * kept + 4 * (tensor.shape[0] + kept * PANEL_ROWS as u64)
}

impl RowReader {
    /// `start`: the offset of `tensor` in the file.
    pub(super) fn new(
        file: Arc<dyn ReadAt>,
        meter: Arc<Meter>,
        tensor: &PackedTensor,
        start: u64,
    ) -> Result<Self, AllocError> {
        // Checked against the limits of the hyper-parameters, which fit in usize.
        let (ty, n_rows, n_cols) = (tensor.ty, tensor.shape[0] as usize, tensor.shape[1] as usize);
        let panel_bytes = (tensor.len / n_rows.div_ceil(PANEL_ROWS) as u64) as usize;
        let pages =
            Arc::new(PageBuf::zeroed((panel_bytes + 2 * DIRECT_ALIGN).next_multiple_of(DIRECT_ALIGN))?);
        let panel = Mutex::new(Panel { idx: None, pages });
        Ok(Self { file, meter, ty, n_rows, n_cols, start, panel_bytes, panel, kept: None })
    }

    /// Keeps up to `n_max` rows in memory from now on: half of them the lowest-numbered, which are read now and are those of the most
    /// frequent tokens of most vocabularies, the others as they are used.
    ///
    /// # Errors
    /// The memory could not be allocated. A row that cannot be read now is read when it is used.
    pub(super) fn keep(&mut self, n_max: usize) -> Result<(), PackError> {
        let mut kept = Shortlist::new(&self.empty()?, self.n_rows, n_max)?;
        // A vocabulary that fits is kept whole.
        let n_first = if self.n_rows <= n_max { self.n_rows } else { n_max / 2 };
        // What is read now is not of a pass.
        let meter = Meter::default();
        kept.extend(|to, row| self.read_row(&meter, to, row), (0..n_first as u32).map(TokenId));
        self.kept = Some(Mutex::new(kept));
        Ok(())
    }

    /// Bytes of memory of the kept rows, and of their room.
    pub(super) fn kept_len(&self) -> u64 {
        self.kept().map_or(0, |kept| kept.memory_usage() as u64)
    }

    fn kept(&self) -> Option<MutexGuard<'_, Shortlist>> {
        // An error or a panic leaves whole rows.
        self.kept.as_ref().map(|kept| kept.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Appends a row to `to`, a kept one without reading; `false` if there is no room or it cannot be read.
    pub(super) fn copy_row(&self, to: &mut PackedMatrix, row: usize) -> bool {
        if let Some(mut kept) = self.kept()
            && let Some(at) = self.kept_row(&mut kept, row)
        {
            return to.push_row_of(kept.matrix(), at);
        }
        self.read_row(&self.meter, to, row)
    }

    /// The place of a row among the kept ones, of which it becomes one if there is room.
    fn kept_row(&self, kept: &mut Shortlist, row: usize) -> Option<usize> {
        let token = TokenId(row as u32);
        kept.extend(|to, row| self.read_row(&self.meter, to, row), [token]);
        kept.row(token)
    }

    fn read_row(&self, meter: &Meter, to: &mut PackedMatrix, row: usize) -> bool {
        self.with_row(meter, row, |panel, lane| to.push_row_of(panel, lane)).unwrap_or(false)
    }

    /// A matrix of the same type and columns without rows.
    pub(super) fn empty(&self) -> Result<PackedMatrix, PackError> {
        PackedMatrix::from_panels(self.ty, 0, self.n_cols, |_| Ok(()))
    }

    /// Dequantizes rows into `out`, `[rows.len(), n_cols]`; each panel is read once.
    ///
    /// # Errors
    /// [`ReadFailure`]; `out` is then unspecified.
    ///
    /// # Panics
    /// If there is no such row, or `out` has another length.
    pub(super) fn dequantize(
        &self,
        rows: impl ExactSizeIterator<Item = usize>,
        out: &mut [f32],
    ) -> Result<(), ReadFailure> {
        assert_eq!(out.len(), rows.len() * self.n_cols);
        let mut by_panel: Vec<(usize, &mut [f32])> = rows.zip(out.chunks_exact_mut(self.n_cols)).collect();
        by_panel.sort_unstable_by_key(|(row, _)| *row);
        let mut kept = self.kept();
        for (row, values) in by_panel {
            let held = kept
                .as_mut()
                .and_then(|kept| self.kept_row(kept, row).map(|at| kept.matrix().dequantize_row(at, values)));
            if held.is_none() {
                self.with_row(&self.meter, row, |panel, lane| panel.dequantize_row(lane, values))?;
            }
        }
        Ok(())
    }

    /// Calls `f` with the panel that contains `row`, and the row's number in it. `meter` counts what is read.
    ///
    /// # Errors
    /// [`ReadFailure`]; `f` was not called.
    ///
    /// # Panics
    /// If there is no such row.
    fn with_row<T>(
        &self,
        meter: &Meter,
        row: usize,
        f: impl FnOnce(&PackedMatrix, usize) -> T,
    ) -> Result<T, ReadFailure> {
        assert!(row < self.n_rows, "row {row} of {}", self.n_rows);
        let idx = row / PANEL_ROWS;
        let start = self.start + (idx * self.panel_bytes) as u64;
        let offset = start - start % DIRECT_ALIGN as u64;
        let skipped = (start - offset) as usize;
        let mut panel = self.lock();
        if panel.idx != Some(idx) {
            panel.idx = None;
            let pages = Arc::get_mut(&mut panel.pages).expect("views end with the call");
            let len = (skipped + self.panel_bytes).next_multiple_of(DIRECT_ALIGN);
            read_aside(&*self.file, meter, offset, &mut pages.bytes_mut()[..len])?;
            panel.idx = Some(idx);
        }
        let n_rows = PANEL_ROWS.min(self.n_rows - idx * PANEL_ROWS);
        let pages = Arc::clone(&panel.pages);
        let matrix = PackedMatrix::from_pages(self.ty, n_rows, self.n_cols, pages, skipped);
        Ok(f(&matrix.expect("a panel of a matrix that was checked"), row % PANEL_ROWS))
    }

    fn lock(&self) -> MutexGuard<'_, Panel> {
        // `idx` is set last, so after a panic there is no panel or a complete one.
        self.panel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
