//! Page-aligned memory for direct reads. Threads may fill parts of it concurrently.

use std::ptr::NonNull;
use std::sync::Arc;

use super::aligned::{AlignedBuf, AllocError, Line};
use super::pages::HUGE_PAGE_BYTES;

/// Zeroed, page-aligned bytes: filled by direct reads, and viewed by packed matrices.
pub struct PageBuf {
    buf: AlignedBuf,
    /// Lines before the first page.
    skipped: usize,
    len: usize,
}

/// The alignment that direct reads require of memory, on every common disk.
const PAGE_BYTES: usize = 4096;

impl PageBuf {
    /// `len` zeroed bytes.
    pub fn zeroed(len: usize) -> Result<Self, AllocError> {
        // One page more than requested, to leave room for alignment.
        let buf = AlignedBuf::zeroed_huge(len.div_ceil(64).saturating_add(PAGE_BYTES / 64))?;
        let skipped = buf.lines().as_ptr().cast::<u8>().align_offset(PAGE_BYTES) / 64;
        Ok(PageBuf { buf, skipped, len })
    }

    /// Bytes of memory held by a buffer of `len` bytes.
    pub fn size_bytes(len: u64) -> u64 {
        len.next_multiple_of(64) + PAGE_BYTES as u64
    }

    /// `len` rounded up to whole huge pages; `len` itself if it is less than one. Bytes after the last whole
    /// huge page are in small pages, which the kernel fills in pieces of 4 KiB.
    pub fn huge_len(len: u64) -> u64 {
        let huge_page = HUGE_PAGE_BYTES as u64;
        if len < huge_page { len } else { len.next_multiple_of(huge_page) }
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "nobody asks whether a buffer is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &Line::bytes_of(&self.buf.lines()[self.skipped..])[..self.len]
    }

    /// Its bytes, to write into.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut Line::bytes_of_mut(&mut self.buf.lines_mut()[self.skipped..])[..self.len]
    }

    /// Splits the first `len` bytes into independently owned blocks of `block_len`; the last one may be
    /// shorter. [`PageBlock::join`] returns the buffer. If `len` is 0, there is one empty block.
    ///
    /// # Panics
    /// If the buffer is shorter, or `block_len` is 0.
    pub fn split(mut self, len: usize, block_len: usize) -> Vec<PageBlock> {
        let base = NonNull::from(&mut self.bytes_mut()[..len]).cast::<u8>();
        let pages = Arc::new(self);
        let block = |start: usize| PageBlock {
            // SAFETY: `start <= len`, so this is inside the bytes or just after them.
            ptr: unsafe { base.add(start) },
            start,
            len: block_len.min(len - start),
            pages: Arc::clone(&pages),
        };
        (0..len.div_ceil(block_len).max(1)).map(|i| block(i * block_len)).collect()
    }
}

/// An exclusively owned part of a [`PageBuf`].
///
/// # Invariants
/// - The blocks of a buffer do not overlap. While a block exists, the buffer is accessed through its blocks
///   only.
/// - `ptr..ptr + len` is inside the buffer that `pages` keeps alive.
pub struct PageBlock {
    pages: Arc<PageBuf>,
    ptr: NonNull<u8>,
    start: usize,
    len: usize,
}

// SAFETY: only this block gives access to its bytes, which are plain numbers.
unsafe impl Send for PageBlock {}

impl PageBlock {
    /// The offset of the block in its buffer.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Its bytes, to write into.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: initialised bytes of a live buffer, which no other block overlaps; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr(), self.len) }
    }

    /// Joins all blocks of a buffer.
    ///
    /// # Panics
    /// If a block is missing.
    pub fn join(blocks: Vec<PageBlock>) -> PageBuf {
        let pages = blocks.first().map(|block| Arc::clone(&block.pages)).expect("a buffer has a block");
        drop(blocks);
        Arc::into_inner(pages).expect("no block is left out")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_buffers_begin_on_pages() {
        for len in [0, 1, 4096, 3 << 20] {
            let mut buf = PageBuf::zeroed(len).unwrap();
            assert_eq!(buf.bytes().as_ptr() as usize % PAGE_BYTES, 0);
            assert!(buf.bytes().len() == len && buf.bytes().iter().all(|&byte| byte == 0));
            buf.bytes_mut().fill(7);
            assert!(buf.buf.size_bytes() as u64 <= PageBuf::size_bytes(len as u64));
        }
        assert!(PageBuf::zeroed(usize::MAX).is_err());
    }

    #[test]
    fn blocks_are_filled_apart_and_joined() {
        for (len, used, block_len) in
            [(10_000, 10_000, 4096), (8192, 8192, 4096), (8192, 4097, 4096), (1, 0, 1)]
        {
            let mut blocks = PageBuf::zeroed(len).unwrap().split(used, block_len);
            assert_eq!(blocks.len(), used.div_ceil(block_len).max(1));
            std::thread::scope(|scope| {
                for (i, block) in blocks.iter_mut().enumerate() {
                    scope.spawn(move || block.bytes_mut().fill(i as u8 + 1));
                }
            });
            blocks.reverse();
            let pages = PageBlock::join(blocks);
            let expected = |at: usize| if at < used { (at / block_len) as u8 + 1 } else { 0 };
            assert!(pages.bytes().iter().enumerate().all(|(at, &byte)| byte == expected(at)), "{len} {used}");
        }
    }

    #[test]
    #[should_panic(expected = "no block is left out")]
    fn a_buffer_without_one_of_its_blocks_is_none() {
        let mut blocks = PageBuf::zeroed(8192).unwrap().split(8192, 4096);
        let _kept = blocks.pop();
        PageBlock::join(blocks);
    }
}
