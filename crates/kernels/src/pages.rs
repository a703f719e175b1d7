//! Large zeroed buffers in huge pages.
//!
//! All weights of a model are read for every token, and with 4 KiB pages the page-table walks take a part of
//! the bandwidth. Linux provides 2 MiB pages for aligned memory with the advice `MADV_HUGEPAGE`. The system
//! zeroes the memory on first access. Bytes after the last whole huge page stay in small pages, so a buffer
//! never takes more memory than its size.

use std::ptr::NonNull;

use memmap2::MmapMut;

/// The size of a huge page on x86-64, and on ARM with 4 KiB pages. Smaller buffers use small pages.
pub const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed memory in a mapping of its own, aligned to a huge page.
pub(super) struct HugePages {
    map: MmapMut,
    /// Bytes before the boundary.
    skipped: usize,
}

impl HugePages {
    /// At least `bytes` zeroed bytes; `None` if they are too few, the system has no huge pages, or the
    /// mapping fails. The caller then uses the allocator, which reports a lack of memory.
    #[cfg(all(target_os = "linux", not(miri)))]
    pub(super) fn zeroed(bytes: usize) -> Option<Self> {
        use memmap2::Advice;

        if bytes < HUGE_PAGE_BYTES {
            return None;
        }
        // The system aligns to small pages only. The skipped bytes are never accessed, so they take no
        // memory.
        let map = MmapMut::map_anon(bytes.checked_add(HUGE_PAGE_BYTES)?).ok()?;
        let skipped = map.as_ptr().align_offset(HUGE_PAGE_BYTES);
        let whole = bytes / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
        // Advice only: without it, memory access is slower.
        let _ = map.advise_range(Advice::HugePage, skipped, whole);
        // Otherwise the system might use a mostly empty huge page for the rest.
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
