//! Options of streaming. No option changes the output.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::file::ReadAt;
use super::slowed::Slowed;

/// The part of a model that stays in memory. Every pass reads the rest from the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pinned {
    /// A budget for the whole process, in bytes. Memory that the process already holds
    /// ([`resident_bytes`](super::resident_bytes)), [reserved memory](StreamOptions::reserved_bytes) and the
    /// ring are subtracted first, then at most an eighth of the rest for the rows of a long prompt, which read each layer once. What is left
    /// pins the output matrix, keeps up to 4,096 rows of the embedding that were read, and pins layers, then the whole embedding. Experts are not pinned with their layers: room for those of a
    /// row is subtracted first too, and what is left at the end holds the experts that are used most.
    ///
    /// A ring of up to 16 MiB is allocated with any budget, so a small model can be streamed with a budget of
    /// 0.
    Memory(u64),
    /// A number of layers. If it is at least the number of layers of the model, embedding, output matrix and
    /// experts are pinned too; otherwise none is, and there is memory for rows of the embedding and for the experts of
    /// four rows.
    Layers(usize),
}

/// How a packed file is streamed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct StreamOptions {
    /// The weights that stay in memory.
    pub pinned: Pinned,
    /// Layers at the begin of the model that are pinned before others, if any are: those that
    /// `Engine::set_self_draft` drafts with. The others are spread evenly.
    pub pinned_first: usize,
    /// Bytes of the budget for later allocations: sessions (`SessionOptions::memory_bytes`) and a draft
    /// model (`DraftModelOptions::memory_bytes`).
    pub reserved_bytes: u64,
    /// Simulates a disk of this bandwidth, in bytes per second; at least [`BANDWIDTH_MIN`](Self::BANDWIDTH_MIN).
    pub bandwidth_max: Option<u64>,
    /// A pass fails if it waits so long for the ring, or for experts, and no read ends; above 0. Waits are counted, not time, so a
    /// process that the system freezes meanwhile goes on afterwards. The limit does not apply to single rows of an embedding, which
    /// the pass reads itself.
    pub stall_max: Duration,
    /// The app's own reader between the file and the ring, if any.
    pub wrap: Option<WrapReader>,
}

impl StreamOptions {
    /// The default of [`stall_max`](Self::stall_max): longer than a disk needs to spin up or to retry a bad
    /// sector.
    pub const STALL_MAX: Duration = Duration::from_secs(60);

    /// Minimum of [`bandwidth_max`](Self::bandwidth_max): reads in progress cannot be stopped, and at this bandwidth the
    /// sixteen of a ring end within 20 seconds. No disk that streams a model is as slow.
    pub const BANDWIDTH_MIN: u64 = 1_000_000;

    /// The default options with this part of the weights in memory.
    pub fn new(pinned: Pinned) -> Self {
        let (pinned_first, reserved_bytes) = (0, 0);
        Self {
            pinned,
            pinned_first,
            reserved_bytes,
            bandwidth_max: None,
            stall_max: Self::STALL_MAX,
            wrap: None,
        }
    }
}

/// Checks the ranges of the numbers.
///
/// # Errors
/// The first number that is out of its range.
pub fn check_options(options: &StreamOptions) -> Result<(), StreamOptionError> {
    if let Some(given) = options.bandwidth_max.filter(|&given| given < StreamOptions::BANDWIDTH_MIN) {
        return Err(StreamOptionError::Bandwidth { given });
    }
    if options.stall_max.is_zero() { Err(StreamOptionError::StallTime) } else { Ok(()) }
}

/// The reader of `file` with the wrapper and the simulated bandwidth of the options.
pub fn reader_of(options: &StreamOptions, file: Arc<dyn ReadAt>) -> Arc<dyn ReadAt> {
    let file = match &options.wrap {
        Some(wrap) => (wrap.0)(file),
        None => file,
    };
    match options.bandwidth_max {
        Some(bytes_per_s) => Arc::new(Slowed::new(file, bytes_per_s)),
        None => file,
    }
}

/// A number of [`StreamOptions`] that is out of its range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum StreamOptionError {
    /// A simulated disk is too slow.
    #[error("bandwidth_max is {given} bytes per second, the minimum is {}", StreamOptions::BANDWIDTH_MIN)]
    Bandwidth {
        /// The bandwidth.
        given: u64,
    },
    /// No read could end in time.
    #[error("stall_max is 0; it has to be longer than a read")]
    StallTime,
}

/// Wraps the file in a reader of the app: to count reads, to decrypt, or to fail on purpose.
#[derive(Clone)]
pub struct WrapReader(Arc<Wrap>);

type Wrap = dyn Fn(Arc<dyn ReadAt>) -> Arc<dyn ReadAt> + Send + Sync;

impl WrapReader {
    /// When a model is loaded, `wrap` receives its file and returns the reader to use. Passes wait for the reader, so it must not wait for
    /// passes of the model.
    pub fn new(wrap: impl Fn(Arc<dyn ReadAt>) -> Arc<dyn ReadAt> + Send + Sync + 'static) -> Self {
        Self(Arc::new(wrap))
    }
}

impl fmt::Debug for WrapReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WrapReader")
    }
}
