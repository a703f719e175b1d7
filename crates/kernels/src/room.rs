//! Whether the system gives this process more address space.
//!
//! A refused allocation of weights or a KV cache is a typed error. The small allocations around it cannot fail that way:
//! where they are refused, the process ends. So a large allocation is refused while there is still room for the small ones.
//! The limit is that of the address space (`RLIMIT_AS`, the size of the page tables of a 32-bit process, or the 4 GiB of WebAssembly); a system that
//! promises more memory than it has is not noticed here.

/// Address space that large allocations and threads leave for others.
pub const MEMORY_MARGIN: usize = 16 << 20;

/// Allocations from this size on are asked about. Asking takes a few microseconds.
pub(crate) const LARGE_BYTES: usize = 64 << 10;

/// Whether the system gives `bytes` bytes of address space beside [`MEMORY_MARGIN`], now.
#[cfg(all(unix, not(miri)))]
pub fn has_room(bytes: usize) -> bool {
    bytes.checked_add(MEMORY_MARGIN).is_some_and(|bytes| memmap2::MmapMut::map_anon(bytes).is_ok())
}

/// Whether the module's memory has `bytes` bytes beside [`MEMORY_MARGIN`] or grows by them, now. Memory never shrinks: what this
/// gains is there for the allocation that follows.
#[cfg(target_family = "wasm")]
pub fn has_room(bytes: usize) -> bool {
    let Some(bytes) = bytes.checked_add(MEMORY_MARGIN) else { return false };
    let mut probe = Vec::<u8>::new();
    let has_room = probe.try_reserve_exact(bytes).is_ok();
    // The compiler leaves out an allocation that nothing uses.
    std::hint::black_box(&probe);
    has_room
}

/// Whether the system gives `bytes` bytes of address space beside the margin, now.
#[cfg(not(any(all(unix, not(miri)), target_family = "wasm")))]
pub fn has_room(_bytes: usize) -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_little_and_none_for_everything() {
        assert!(has_room(1 << 20));
        if cfg!(any(all(unix, not(miri)), target_family = "wasm")) {
            assert!(!has_room(usize::MAX) && !has_room(isize::MAX as usize));
        }
    }
}
