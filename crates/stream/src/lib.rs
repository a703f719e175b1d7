//! Weights streamed from flash: read past the page cache into a ring of buffers, ahead of the computation.
//!
//! The disk limits the speed of a model that is larger than memory, so the disk must never be idle. A *ring*
//! has two or three buffers, each as long as a layer. Many concurrent reads of one block each fill it
//! (`O_DIRECT` if the system has it). A few threads submit them through io_uring; without io_uring, there is
//! one thread per concurrent read. While a pass computes with one buffer, the next layers are read into the
//! others. After the last layer, the ring continues with the first layer of the next step. The ring handles
//! extents of a file; `model::streamed` of `refrain` builds layers from them.
//!
//! ```text
//! reads     4a 4b 4c 5a 5b 5c 6a …               blocks of extents 4, 5, 6
//! ring      [ 3: lent ] [ 4: ready ] [ 5: … ]    three buffers
//! pass      computes 3, gives it back, takes 4   or waits: that is a stall
//! ```
//!
//! The ring predicts the next extent: after each extent, it expects the extent that followed last time. A
//! wrong prediction (the prompt ends, another session takes its turn, a pass is cancelled) wastes the reads
//! made ahead.
//!
//! A failed read fails only the pass that waits for it. The next pass reads again.
//!
//! `unsafe` is allowed in `uring/` alone. The crate is a part of Refrain, outside semantic versioning but for the types that
//! `refrain` exports.

mod blocks;
mod file;
mod meter;
mod options;
mod patience;
mod queue;
mod resident;
mod ring;
mod sequential;
mod slowed;
mod turn;
mod uring;

use std::time::Duration;

pub use file::{DIRECT_ALIGN, ReadAt, ReadMode};
pub use meter::Flow;
pub use options::{Pinned, StreamOptionError, StreamOptions, WrapReader, check_options, reader_of};
pub use resident::{available_bytes, resident_bytes};
pub use sequential::sequential_read;

pub use blocks::{BlockRead, BlockReads};
pub use file::{DirectFile, read_exact_at, read_full};
pub use meter::Meter;
pub use patience::Patience;
pub use queue::Extent;
pub use ring::{Lease, Ring, RingOptions, TakeError, read_aside};
pub use turn::{Turn, TurnError, Turns};

/// An extent could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReadFailure {
    /// A read failed.
    Read {
        /// The first byte that was not read.
        offset: u64,
        /// The kind of the system's error.
        kind: std::io::ErrorKind,
        /// Its message.
        message: String,
    },
    /// No read ended while a pass waited for so long.
    Stalled {
        /// The begin of the awaited extent.
        offset: u64,
        /// The time.
        limit: Duration,
    },
}

impl From<(u64, std::io::Error)> for ReadFailure {
    fn from((offset, error): (u64, std::io::Error)) -> Self {
        Self::Read { offset, kind: error.kind(), message: error.to_string() }
    }
}
