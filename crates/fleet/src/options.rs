//! The options of a fleet.

use std::time::Duration;

/// Options of a [`Fleet`](crate::Fleet).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FleetOptions {
    /// The name of this host, 1 to [`HOST_BYTES_MAX`](Self::HOST_BYTES_MAX) bytes. No other host may have it: each publish
    /// removes what the host has published before and has no longer.
    pub host: String,
    /// Maximum time of a call. What is done by then is kept, and the next call goes on from there.
    pub budget: Duration,
    /// Maximum bytes of other hosts' segments in the history's folder, of all namespaces together. Above it, the newest are
    /// kept.
    pub cache_bytes: u64,
}

impl FleetOptions {
    /// Maximum length of a host's name, in bytes.
    pub const HOST_BYTES_MAX: usize = 64;

    /// The defaults: ten seconds, and 256 MiB, which are 22 million tokens.
    pub fn new(host: impl Into<String>) -> Self {
        FleetOptions { host: host.into(), budget: Duration::from_secs(10), cache_bytes: 256 << 20 }
    }
}
