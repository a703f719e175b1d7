//! Large zeroed buffers in huge pages.
//!
//! A model's weights are read from end to end for every token; with 4 KiB pages the walk through the page tables costs a
//! part of the bandwidth. Linux gives 2 MiB pages to memory that asks for them (`madvise(MADV_HUGEPAGE)`) and is aligned
//! to them. The memory comes zeroed from the system when it is first touched, as with the allocator, and what does not
//! fill a whole huge page stays in small ones, so a buffer never holds more than its size.

use std::ptr::NonNull;

use memmap2::MmapMut;

/// A huge page of x86-64 and of ARM with 4 KiB pages, and the smallest buffer that asks for one.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed memory of its own, aligned to a huge page.
pub(super) struct HugePages {
    map: MmapMut,
    /// Bytes before the boundary.
    skipped: usize,
}

impl HugePages {
    /// At least `bytes` zeroed bytes, or `None` where they are too few, the system has no such pages, or no memory is
    /// left: the allocator then says so.
    #[cfg(all(target_os = "linux", not(miri)))]
    pub(super) fn zeroed(bytes: usize) -> Option<Self> {
        use memmap2::Advice;

        if bytes < HUGE_PAGE_BYTES {
            return None;
        }
        // The system aligns to small pages only; what is skipped is never touched and so costs no memory.
        let map = MmapMut::map_anon(bytes.checked_add(HUGE_PAGE_BYTES)?).ok()?;
        let skipped = map.as_ptr().align_offset(HUGE_PAGE_BYTES);
        let whole = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        // Advice only: without it the memory is the same and slower.
        let _ = map.advise_range(Advice::HugePage, skipped, whole);
        // Where the system gives huge pages unasked, the last one would be mostly empty.
        let _ = map.advise_range(Advice::NoHugePage, skipped + whole, map.len() - skipped - whole);
        Some(Self { map, skipped })
    }

    #[cfg(not(all(target_os = "linux", not(miri))))]
    pub(super) fn zeroed(_bytes: usize) -> Option<Self> {
        None
    }

    /// The first byte; aligned to a huge page.
    pub(super) fn start(&mut self) -> NonNull<u8> {
        NonNull::from(&mut self.map[self.skipped..]).cast()
    }
}
