//! The options of a history.

use std::time::Duration;

use super::HistoryError;
use crate::seal::debug_options;

/// The durability of appends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SyncPolicy {
    /// Each append is durable when it returns. A crash of the process or the machine loses no appended response.
    #[default]
    Always,
    /// Appends to a namespace become durable in groups of this number, and by
    /// [`HistoryLog::sync`](super::HistoryLog::sync). A crash of the machine loses at most this number of newest
    /// responses. A crash of the process alone loses nothing.
    Every(u32),
    /// Appends become durable by [`HistoryLog::sync`](super::HistoryLog::sync), or at a time chosen by the system. A
    /// crash of the process alone loses nothing.
    Never,
}

/// Options of a [`HistoryLog`](super::HistoryLog).
#[derive(Clone)]
pub struct HistoryOptions {
    /// The durability of appends.
    pub sync: SyncPolicy,
    /// Maximum tokens in the log of a namespace before it is frozen, 16..=2²⁴; also the length of the longest
    /// response. A log needs 64 bytes of memory per token.
    pub live_tokens_max: u32,
    /// Maximum tokens of a merged segment, up to 2²⁸. Fewer and larger segments are searched faster. During a merge,
    /// 30 bytes of memory per token are needed.
    pub segment_tokens_max: u32,
    /// Maximum tokens of a namespace. Above it, whole segments are dropped, least recently used first. On the disk a
    /// token takes 12 bytes, or 16 if the segment contains more than 65,535 distinct tokens.
    pub tokens_max: u64,
    /// Maximum age of a response. [`HistoryLog::maintain`](super::HistoryLog::maintain) drops older responses from
    /// the log one by one. It drops a segment if its newest response is older. `None`: no limit.
    pub age_max: Option<Duration>,
    /// Memory for pages of segments, for all namespaces together; at least 256 KiB.
    pub cache_bytes: usize,
    /// Encrypts and authenticates the tokens of answers, and the lists of echo. The app stores the key. A history is
    /// encrypted from its beginning, or not at all. What stays visible: names of namespaces, times and lengths of answers,
    /// sizes and times of files. Encrypted answers are not shared with other hosts.
    pub key: Option<[u8; 32]>,
}

debug_options!(HistoryOptions: sync, live_tokens_max, segment_tokens_max, tokens_max, age_max, cache_bytes);

impl Default for HistoryOptions {
    fn default() -> Self {
        HistoryOptions {
            sync: SyncPolicy::Always,
            // The automaton takes 4 MB, and freezing delays a response only slightly.
            live_tokens_max: 1 << 16,
            segment_tokens_max: 1 << 22,
            tokens_max: 1 << 24,
            age_max: None,
            // With the automaton and the tables, 10 M tokens stay below 64 MiB.
            cache_bytes: 48 << 20,
            key: None,
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
