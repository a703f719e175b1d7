//! What an app chooses about streaming. None of it changes a bit of the output.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::file::ReadAt;
use super::slowed::Slowed;

/// How much of a model stays in memory; the rest is read from the file in every pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pinned {
    /// As much as fits when the process is to hold so many bytes. What it holds already is taken off first
    /// ([`resident_bytes`](super::resident_bytes)), then what is [reserved](StreamOptions::reserved_bytes), then the ring; of the
    /// rest the output matrix is pinned, then layers, then the embedding, of which a pass needs a few rows.
    ///
    /// A ring of up to 16 MiB is had with any budget, so that a small model streams with a budget of 0.
    Memory(u64),
    /// So many layers, or all that there are; with all of them embedding and output matrix too, with fewer neither.
    Layers(usize),
}

/// How a packed file is streamed.
#[derive(Debug, Clone)]
pub struct StreamOptions {
    /// What stays in memory.
    pub pinned: Pinned,
    /// Bytes of the budget that are left for what comes later: sessions ([`SessionOptions::memory_bytes`]), and a draft model
    /// ([`DraftModelOptions::memory_bytes`]).
    ///
    /// [`SessionOptions::memory_bytes`]: crate::engine::SessionOptions::memory_bytes
    /// [`DraftModelOptions::memory_bytes`]: crate::engine::DraftModelOptions::memory_bytes
    pub reserved_bytes: u64,
    /// Models a disk that reads no more than so many bytes per second.
    pub bandwidth_max: Option<u64>,
    /// How long no read may end while a pass waits for the ring; then the pass fails. Single rows of an embedding are read by
    /// the pass itself, as long as the system takes for them.
    pub stall_max: Duration,
    /// What stands between the file and who reads it.
    pub wrap: Option<WrapReader>,
}

impl StreamOptions {
    /// How long a disk may take for a read by default: longer than one that spins up or repeats a bad sector.
    pub const STALL_MAX: Duration = Duration::from_secs(60);

    /// Streams with this in memory.
    pub fn new(pinned: Pinned) -> Self {
        Self { pinned, reserved_bytes: 0, bandwidth_max: None, stall_max: Self::STALL_MAX, wrap: None }
    }

    /// The file as these options want it read.
    pub(crate) fn reader(&self, file: Arc<dyn ReadAt>) -> Arc<dyn ReadAt> {
        let file = match &self.wrap {
            Some(wrap) => (wrap.0)(file),
            None => file,
        };
        match self.bandwidth_max {
            Some(bytes_per_s) => Arc::new(Slowed::new(file, bytes_per_s)),
            None => file,
        }
    }
}

/// Puts a reader of the app's own in front of the file: one that counts, decrypts, or fails on purpose.
#[derive(Clone)]
pub struct WrapReader(Arc<Wrap>);

type Wrap = dyn Fn(Arc<dyn ReadAt>) -> Arc<dyn ReadAt> + Send + Sync;

impl WrapReader {
    /// `wrap` is given the file when a model is loaded, and returns what is read instead.
    pub fn new(wrap: impl Fn(Arc<dyn ReadAt>) -> Arc<dyn ReadAt> + Send + Sync + 'static) -> Self {
        Self(Arc::new(wrap))
    }
}

impl fmt::Debug for WrapReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WrapReader")
    }
}
