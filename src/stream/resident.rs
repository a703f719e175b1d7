//! What the process holds in memory, and what the system has left, as the system counts it.

/// Bytes of memory that the process holds now, without what the page cache could give up; `None` where the system does not say.
///
/// Linux: anonymous memory, which weights in memory are and mapped files are not (`RssAnon` of `/proc/self/status`).
pub fn resident_bytes() -> Option<u64> {
    field(&std::fs::read_to_string("/proc/self/status").ok()?, "RssAnon:")
}

/// Bytes of memory that programs can have before the system has to write any out; `None` where it does not say.
///
/// Linux and Android: `MemAvailable` of `/proc/meminfo`. A limit on a group of processes is not in it.
pub fn available_bytes() -> Option<u64> {
    field(&std::fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable:")
}

/// The line that begins so, in bytes.
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
        let held = vec![1u8; 64 << 20];
        let after = resident_bytes().unwrap();
        assert!(after > before + (48 << 20), "{before} {after}");
        drop(held);
    }
}
