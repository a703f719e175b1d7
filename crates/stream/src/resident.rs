//! Memory that the process holds, and memory that the system has available, as the system reports them.

/// Bytes of memory that the process holds now, without droppable pages of the page cache. `None` if the
/// system does not report it.
///
/// On Linux this is anonymous memory (`RssAnon` of `/proc/self/status`). It includes weights in memory, but
/// not mapped files.
pub fn resident_bytes() -> Option<u64> {
    field(&std::fs::read_to_string("/proc/self/status").ok()?, "RssAnon:")
}

/// Bytes of memory that programs can allocate before the system swaps. `None` if the system does not report
/// it.
///
/// On Linux and Android this is `MemAvailable` of `/proc/meminfo`, which ignores limits of control groups.
pub fn available_bytes() -> Option<u64> {
    field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

/// The value of the line that begins with `name`, in bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_found_or_there_is_no_number() {
        assert_eq!(field("Name:\tx\nVmRSS:\t  9 kB\nRssAnon:\t   1234 kB\n", "RssAnon:"), Some(1234 * 1024));
        for status in ["", "RssAnon:", "RssAnon: x kB", "RssAnon: 1 MB", "RssAnon: 99999999999999999999 kB"] {
            assert_eq!(field(status, "RssAnon:"), None, "{status}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn the_system_has_some_memory() {
        assert!(available_bytes().unwrap() > 1 << 20);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_is_written_counts() {
        let before = resident_bytes().unwrap();
        let held = std::hint::black_box(vec![1u8; 64 << 20]);
        let after = resident_bytes().unwrap();
        assert!(after > before + (48 << 20), "{before} {after}");
        drop(held);
    }
}
