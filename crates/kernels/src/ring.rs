//! Rows of numbers that recurrent layers keep from pass to pass.

use std::marker::PhantomData;
use std::ops::Range;

use super::aligned::{AlignedBuf, AllocError};
use super::simd::LANES;

/// A ring of rows of numbers: the first ones can be dropped without moving the others.
pub struct RowRing {
    buf: AlignedBuf,
    row_len: usize,
    n_rows: usize,
    /// Where row 0 is.
    first: usize,
}

impl RowRing {
    /// `n_rows` rows of zeros.
    ///
    /// # Errors
    /// [`AllocError`]: the memory could not be allocated.
    pub fn zeroed(n_rows: usize, row_len: usize) -> Result<Self, AllocError> {
        let n_numbers = n_rows.checked_mul(row_len).ok_or(AllocError { bytes: usize::MAX })?;
        Ok(Self { buf: AlignedBuf::zeroed(n_numbers.div_ceil(LANES))?, row_len, n_rows, first: 0 })
    }

    /// Bytes of a ring, saturating.
    pub fn bytes(n_rows: usize, row_len: usize) -> u64 {
        let n_numbers = (n_rows as u64).saturating_mul(row_len as u64);
        n_numbers.div_ceil(LANES as u64).saturating_mul(64)
    }

    /// Memory held.
    pub fn size_bytes(&self) -> usize {
        self.buf.size_bytes()
    }

    /// Rows.
    pub fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Numbers of a row.
    pub fn row_len(&self) -> usize {
        self.row_len
    }

    /// A row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &[f32] {
        let start = self.start(row);
        &self.buf.cast::<f32>()[start..start + self.row_len]
    }

    /// A row.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        let (start, row_len) = (self.start(row), self.row_len);
        &mut self.buf.cast_mut::<f32>()[start..start + row_len]
    }

    /// Copies row `from` over row `to`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn copy_row(&mut self, from: usize, to: usize) {
        let (from, to) = (self.start(from), self.start(to));
        self.buf.cast_mut::<f32>().copy_within(from..from + self.row_len, to);
    }

    /// Drops the first `n` rows: row `n` becomes row 0. The last rows then have any values.
    ///
    /// # Panics
    /// If there are fewer rows.
    pub fn drop_first(&mut self, n: usize) {
        assert!(n <= self.n_rows, "{n} of {} rows", self.n_rows);
        self.first = (self.first + n).checked_rem(self.n_rows).unwrap_or(0);
    }

    fn start(&self, row: usize) -> usize {
        assert!(row < self.n_rows, "row {row} of {}", self.n_rows);
        (self.first + row) % self.n_rows * self.row_len
    }

    pub(super) fn shared(&mut self) -> SharedRing<'_> {
        let (row_len, n_rows, first) = (self.row_len, self.n_rows, self.first);
        let numbers = self.buf.cast_mut::<f32>();
        SharedRing { ptr: numbers.as_mut_ptr(), row_len, n_rows, first, ring: PhantomData }
    }

    /// A ring that is only read.
    pub(super) fn shared_to_read(&self) -> SharedRing<'_> {
        let (row_len, n_rows, first) = (self.row_len, self.n_rows, self.first);
        let ptr = self.buf.cast::<f32>().as_ptr().cast_mut();
        SharedRing { ptr, row_len, n_rows, first, ring: PhantomData }
    }
}

/// A ring of which the workers of a section read some rows and write others.
#[derive(Clone, Copy)]
pub(super) struct SharedRing<'a> {
    ptr: *mut f32,
    row_len: usize,
    n_rows: usize,
    first: usize,
    ring: PhantomData<&'a mut [f32]>,
}

// SAFETY: all access goes through `read` and `write`, whose callers keep written parts apart.
unsafe impl Send for SharedRing<'_> {}
// SAFETY: as above.
unsafe impl Sync for SharedRing<'_> {}

impl<'a> SharedRing<'a> {
    #[inline(always)]
    fn start(self, row: usize, part: &Range<usize>) -> usize {
        assert!(row < self.n_rows && part.start <= part.end && part.end <= self.row_len);
        let at = self.first + row;
        (if at < self.n_rows { at } else { at - self.n_rows }) * self.row_len + part.start
    }

    /// A part of a row.
    ///
    /// # Safety
    /// No overlapping part is written while the result is alive.
    #[inline(always)]
    pub(super) unsafe fn read(self, row: usize, part: Range<usize>) -> &'a [f32] {
        let start = self.start(row, &part);
        // SAFETY: inside the ring, which is borrowed for `'a`; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts(self.ptr.add(start), part.len()) }
    }

    /// A part of a row.
    ///
    /// # Safety
    /// The ring is not one that is only read, and no overlapping part is read or written while the result is alive.
    #[inline(always)]
    pub(super) unsafe fn write(self, row: usize, part: Range<usize>) -> &'a mut [f32] {
        let start = self.start(row, &part);
        // SAFETY: inside the ring, which is borrowed mutably for `'a`; the caller guarantees the rest.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(start), part.len()) }
    }
}
