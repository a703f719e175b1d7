//! The clock of responses.

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
