//! Large zeroed buffers in huge pages.
//!
//! All weights of a model are read for every token, and with 4 KiB pages the page-table walks cost a part of the bandwidth. Linux provides
//! 2 MiB pages for aligned memory with the advice `MADV_HUGEPAGE`. The system zeroes the memory when it is first touched. Bytes behind the last
//! whole huge page stay in small pages, so a buffer never takes more memory than its size.

use std::ptr::NonNull;

use memmap2::MmapMut;

/// The huge page of x86-64, and of ARM with 4 KiB pages. Smaller buffers use small pages.
pub(super) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed memory of its own, aligned to a huge page.
pub(super) struct HugePages {
    map: MmapMut,
    /// Bytes before the boundary.
    skipped: usize,
}

impl HugePages {
    /// At least `bytes` zeroed bytes; `None` if they are too few, the system has no huge pages, or the mapping fails. The caller then uses the
    /// allocator, which reports a lack of memory.
    #[cfg(all(target_os = "linux", not(miri)))]
    pub(super) fn zeroed(bytes: usize) -> Option<Self> {
        use memmap2::Advice;

        if bytes < HUGE_PAGE_BYTES {
            return None;
        }
        // The system aligns to small pages only. The skipped bytes are never touched, so they take no memory.
        let map = MmapMut::map_anon(bytes.checked_add(HUGE_PAGE_BYTES)?).ok()?;
        let skipped = map.as_ptr().align_offset(HUGE_PAGE_BYTES);
        let whole = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        // Only advice: without it the memory is slower.
        let _ = map.advise_range(Advice::HugePage, skipped, whole);
        // If the system used a huge page for the rest without advice, most of it would be empty.
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
