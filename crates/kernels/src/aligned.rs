//! Zeroed memory on cache-line boundaries. Allocation is fallible, because weights and KV caches are large
//! compared with a device's memory.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use super::pages::HugePages;
use crate::room::{LARGE_BYTES, has_room};

/// One cache line: the width of the widest vector, and the unit in which packed weights are addressed.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Line(pub(super) [u8; 64]);

impl Line {
    /// The line as two halves of 16 half-precision numbers (their bits).
    pub(super) fn halves(&self) -> &[[u16; 16]; 2] {
        // SAFETY: same size, the line is aligned for u16, and any bits are a valid u16.
        unsafe { &*(self as *const Line).cast() }
    }

    pub(super) fn halves_mut(&mut self) -> &mut [[u16; 16]; 2] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { &mut *(self as *mut Line).cast() }
    }

    /// The line as four rows of 16 bytes.
    pub(super) fn quarters(&self) -> &[[u8; 16]; 4] {
        // SAFETY: same size; bytes have no alignment and no invalid values.
        unsafe { &*(self as *const Line).cast() }
    }

    /// The line as 16 single-precision numbers.
    pub(super) fn floats(&self) -> &[f32; 16] {
        // SAFETY: same size, the line is aligned for f32, and any bits are a valid f32.
        unsafe { &*(self as *const Line).cast() }
    }

    pub(super) fn floats_mut(&mut self) -> &mut [f32; 16] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { &mut *(self as *mut Line).cast() }
    }

    /// Lines as single-precision numbers.
    pub(super) fn floats_of(lines: &[Line]) -> &[f32] {
        // SAFETY: a line is 16 initialised numbers, aligned for them, and any bits are a valid f32.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), 16 * lines.len()) }
    }

    /// Lines as single-precision numbers.
    pub(super) fn floats_of_mut(lines: &mut [Line]) -> &mut [f32] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), 16 * lines.len()) }
    }

    /// Bytes as lines; `None` unless they begin on a line boundary and are a whole number of lines.
    pub(super) fn slice_of(bytes: &[u8]) -> Option<&[Line]> {
        // SAFETY: a line is 64 bytes, any of which are valid.
        let (before, lines, after) = unsafe { bytes.align_to() };
        (before.is_empty() && after.is_empty()).then_some(lines)
    }

    /// Lines as bytes.
    pub(super) fn bytes_of(lines: &[Line]) -> &[u8] {
        // SAFETY: a line is 64 initialised bytes, and bytes have no alignment.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), size_of_val(lines)) }
    }

    /// Lines as bytes.
    pub(super) fn bytes_of_mut(lines: &mut [Line]) -> &mut [u8] {
        // SAFETY: as above, the borrow is exclusive, and any bytes make a line.
        unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), size_of_val(lines)) }
    }
}

/// An allocation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("could not allocate {bytes} bytes")]
#[non_exhaustive]
pub struct AllocError {
    /// Its size in bytes; saturated if the size overflows.
    pub bytes: usize,
}

impl AllocError {
    /// The failure of an allocation of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self { bytes }
    }
}

/// A fixed number of zero-initialised lines.
pub(super) struct AlignedBuf {
    ptr: NonNull<Line>,
    n_lines: usize,
    owner: Owner,
}

/// The owner of a buffer's memory.
enum Owner {
    /// There are no lines.
    Nobody,
    /// The allocator, which gave memory from here on.
    Allocator(NonNull<u8>),
    /// A mapping of huge pages.
    Pages { _pages: HugePages },
}

// SAFETY: the buffer owns its memory and hands out references by the usual borrow rules only.
unsafe impl Send for AlignedBuf {}
// SAFETY: shared access is read-only.
unsafe impl Sync for AlignedBuf {}

/// Refuses a large buffer that leaves too little memory for others.
fn check_room(n_lines: usize) -> Result<(), AllocError> {
    let bytes = n_lines.saturating_mul(64);
    if bytes < LARGE_BYTES || has_room(bytes) { Ok(()) } else { Err(AllocError { bytes }) }
}

impl AlignedBuf {
    /// A buffer that is read as a whole: a large one uses huge pages where the system has them.
    pub(super) fn zeroed_huge(n_lines: usize) -> Result<Self, AllocError> {
        check_room(n_lines)?;
        match HugePages::zeroed(n_lines.saturating_mul(64)) {
            Some(mut pages) => {
                let ptr = pages.start().cast();
                Ok(AlignedBuf { ptr, n_lines, owner: Owner::Pages { _pages: pages } })
            }
            None => Self::zeroed(n_lines),
        }
    }

    /// A buffer that is filled gradually: untouched pages take no memory.
    pub(super) fn zeroed(n_lines: usize) -> Result<Self, AllocError> {
        if n_lines == 0 {
            return Ok(AlignedBuf { ptr: NonNull::dangling(), n_lines, owner: Owner::Nobody });
        }
        check_room(n_lines)?;
        let too_large = || AllocError { bytes: n_lines.saturating_mul(64) };
        let layout = Self::layout(n_lines).ok_or_else(too_large)?;
        // SAFETY: the layout has a size other than zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or_else(too_large)?;
        // SAFETY: the layout has room for a line more than the buffer, so the first boundary and the lines behind it are
        // within the allocation.
        let ptr = unsafe { start.add(start.align_offset(align_of::<Line>())) }.cast();
        Ok(AlignedBuf { ptr, n_lines, owner: Owner::Allocator(start) })
    }

    /// The layout that the allocator is asked for: a line more than the buffer, so that a line boundary is in it. For larger
    /// alignments than this one, the system's allocator writes the zeros itself, and thereby takes all memory at once.
    fn layout(n_lines: usize) -> Option<Layout> {
        let bytes = n_lines.checked_add(1)?.checked_mul(size_of::<Line>())?;
        Layout::from_size_align(bytes, align_of::<usize>()).ok()
    }

    pub(super) fn size_bytes(&self) -> usize {
        self.n_lines * 64
    }

    pub(super) fn lines(&self) -> &[Line] {
        // SAFETY: `n_lines` lines (perhaps none) were allocated and zeroed, on a line boundary, and live as
        // long as `self`.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.n_lines) }
    }

    pub(super) fn lines_mut(&mut self) -> &mut [Line] {
        // SAFETY: as above, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.n_lines) }
    }

    /// The buffer as numbers of another type.
    pub(super) fn cast<T: Plain>(&self) -> &[T] {
        let n = self.size_bytes() / size_of::<T>();
        // SAFETY: `T` is plain, so any bits are valid; 64 is a multiple of its size and alignment.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().cast(), n) }
    }

    /// The buffer as numbers of another type.
    pub(super) fn cast_mut<T: Plain>(&mut self) -> &mut [T] {
        let n = self.size_bytes() / size_of::<T>();
        // SAFETY: as in `cast`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().cast(), n) }
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if let Owner::Allocator(start) = self.owner {
            let layout = Self::layout(self.n_lines).expect("the layout was valid at allocation");
            // SAFETY: allocated in `zeroed` with this layout, and freed once.
            unsafe { dealloc(start.as_ptr(), layout) }
        }
    }
}

/// Number types for which every bit pattern is valid.
///
/// # Safety
/// The size and the alignment divide 64, there is no padding, and any bits are valid.
pub(super) unsafe trait Plain: Copy {}
// SAFETY: a plain byte.
unsafe impl Plain for u8 {}
// SAFETY: a plain 16-bit number.
unsafe impl Plain for u16 {}
// SAFETY: a plain 32-bit number.
unsafe impl Plain for f32 {}
// SAFETY: eight plain bytes.
unsafe impl Plain for [u8; 8] {}
// SAFETY: sixteen plain bytes.
unsafe impl Plain for [u8; 16] {}
// SAFETY: sixteen plain 16-bit numbers, half of a line.
unsafe impl Plain for [u16; 16] {}
// SAFETY: sixteen plain 32-bit numbers, a line.
unsafe impl Plain for [f32; 16] {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeroed_and_aligned() {
        let mut buf = AlignedBuf::zeroed(3).unwrap();
        assert_eq!(buf.lines().as_ptr() as usize % 64, 0);
        assert!(buf.cast::<f32>().iter().all(|&x| x == 0.0));
        buf.cast_mut::<u16>()[95] = 7;
        assert_eq!(buf.lines()[2].halves()[1][15], 7);
        assert_eq!(AlignedBuf::zeroed(0).unwrap().cast::<f32>().len(), 0);
    }

    #[test]
    fn large_buffers_are_zeroed_and_aligned_too() {
        // Miri takes ten minutes to look at every byte.
        let step = if cfg!(miri) { 40_009 } else { 1 };
        // Just below, at and above one huge page, and with a tail.
        for n_lines in [(2 << 20) / 64 - 1, (2 << 20) / 64, (2 << 20) / 64 + 1, (5 << 20) / 64] {
            let mut buf = AlignedBuf::zeroed_huge(n_lines).unwrap();
            assert_eq!(buf.lines().as_ptr() as usize % 64, 0);
            assert_eq!(buf.lines().len(), n_lines);
            assert!(Line::bytes_of(buf.lines()).iter().step_by(step).all(|&byte| byte == 0));
            Line::bytes_of_mut(buf.lines_mut()).fill(7);
            assert!(Line::bytes_of(buf.lines()).iter().step_by(step).all(|&byte| byte == 7));
        }
    }

    #[test]
    fn bytes_are_lines_on_boundaries_only() {
        let buf = AlignedBuf::zeroed(3).unwrap();
        let bytes = Line::bytes_of(buf.lines());
        assert_eq!(Line::slice_of(bytes).map(<[Line]>::len), Some(3));
        assert_eq!(Line::slice_of(&bytes[64..128]).map(<[Line]>::len), Some(1));
        assert!(Line::slice_of(&bytes[1..65]).is_none() && Line::slice_of(&bytes[..100]).is_none());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri ends where an allocation is refused")]
    fn absurd_sizes_are_errors() {
        assert!(AlignedBuf::zeroed(usize::MAX / 8).is_err());
        assert!(AlignedBuf::zeroed(usize::MAX / 128).is_err());
        assert!(AlignedBuf::zeroed_huge(usize::MAX / 128).is_err());
    }
}
