//! The options of a store of prefixes, and labels.

use crate::seal::debug_options;
use std::ops::Range;

/// Options of a [`PrefixStore`](super::PrefixStore).
#[derive(Clone)]
pub struct PrefixOptions {
    /// Maximum bytes of all files. Above it, the least recently used blocks are removed, the ends of prefixes first.
    /// A label counts as 512 bytes. Processes that keep at the same time may exceed the limit by the blocks that they
    /// are writing.
    pub max_bytes: u64,
    /// Encrypts and authenticates tokens, namespaces and state, and hides them in the names of files. What another key,
    /// or none, wrote in the folder is removed when it is opened. The app stores the key.
    pub key: Option<[u8; 32]>,
    /// Whether kept blocks are durable when [`keep`](super::PrefixStore::keep) returns. Without it, which is the
    /// default, a failure of power may lose or damage them. Damage is detected, so this costs only time. Labels and
    /// forgetting are always durable.
    pub sync: bool,
}

impl Default for PrefixOptions {
    fn default() -> Self {
        PrefixOptions { max_bytes: 4 << 30, key: None, sync: false }
    }
}

debug_options!(PrefixOptions: max_bytes, sync);

/// The origin of a range of tokens, by which they can be forgotten: `note:/notes/trip.md`, `conversation:17`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    /// Positions of the session's tokens.
    pub tokens: Range<usize>,
    /// Any text. Only its hash is stored.
    pub name: String,
}
