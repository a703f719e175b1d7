//! What an app can choose about its history.

use std::time::Duration;

use super::HistoryError;

/// When an append is durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SyncPolicy {
    /// When it returns: a crash of the process or the machine loses nothing that was appended.
    #[default]
    Always,
    /// With every so many appends to a namespace, and by [`HistoryLog::sync`](super::HistoryLog::sync). A crash of the machine loses at most the
    /// newest so many; one of the process alone loses nothing.
    Every(u32),
    /// By [`HistoryLog::sync`](super::HistoryLog::sync), and when the system sees fit. A crash of the process alone loses nothing.
    Never,
}

/// Options of a [`HistoryLog`](super::HistoryLog).
#[derive(Clone, Debug)]
pub struct HistoryOptions {
    /// When an append is durable.
    pub sync: SyncPolicy,
    /// Tokens that the log of a namespace holds before it is frozen, 16..=2²⁴; also the longest response. A log costs 64 bytes
    /// of memory per token.
    pub live_tokens_max: u32,
    /// Tokens of a segment that segments are still merged into, up to 2²⁸. Fewer and larger segments are searched faster;
    /// merging takes 30 bytes of memory per token while it lasts.
    pub segment_tokens_max: u32,
    /// Tokens of a namespace: with more, whole segments are dropped, the one first that has not drafted for longest. On the disk
    /// a token takes 12 bytes, 16 where more than 65,535 different ones occur.
    pub tokens_max: u64,
    /// Responses older than this are dropped by [`HistoryLog::maintain`](super::HistoryLog::maintain): from the log one by one, of a segment when its
    /// newest is. `None`: none are.
    pub age_max: Option<Duration>,
    /// Memory for pages of segments, of all namespaces together; at least 256 KiB are used.
    pub cache_bytes: usize,
}

impl Default for HistoryOptions {
    fn default() -> Self {
        HistoryOptions {
            sync: SyncPolicy::Always,
            // The automaton takes 4 MB, and a response hardly waits for the freezing.
            live_tokens_max: 1 << 16,
            segment_tokens_max: 1 << 22,
            tokens_max: 1 << 24,
            age_max: None,
            // With the automaton and the tables, 10 M tokens stay below 64 MiB.
            cache_bytes: 48 << 20,
        }
    }
}

impl HistoryOptions {
    pub(super) fn check(&self) -> Result<(), HistoryError> {
        let check = |option, given: u64, min: u64, max: u64| match (min..=max).contains(&given) {
            true => Ok(()),
            false => Err(HistoryError::OutOfRange { option, given, min, max }),
        };
        check("live_tokens_max", u64::from(self.live_tokens_max), 16, 1 << 24)?;
        check("segment_tokens_max", u64::from(self.segment_tokens_max), 0, 1 << 28)?;
        match self.sync {
            SyncPolicy::Every(n) => check("sync", u64::from(n), 1, u64::from(u32::MAX)),
            SyncPolicy::Always | SyncPolicy::Never => Ok(()),
        }
    }
}
