//! Weights streamed from flash: read past the page cache into a ring of buffers, ahead of the computation.
//!
//! The disk limits the speed of a model that is larger than memory, so the disk must never be idle. A *ring*
//! has two or three buffers, each as long as a layer. Many concurrent reads of one block each fill it
//! (`O_DIRECT` if the system has it). A few threads submit them through io_uring; without io_uring, there is
//! one thread per concurrent read. While a pass computes with one buffer, the next layers are read into the
//! others. After the last layer, the ring continues with the first layer of the next step. The ring handles
//! extents of a file; [`model::streamed`](crate::model::streamed) builds layers from them.
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
pub use options::{Pinned, StreamOptionError, StreamOptions, WrapReader};
pub use resident::{available_bytes, resident_bytes};
pub use sequential::sequential_read;

pub(crate) use blocks::{BlockRead, BlockReads};
pub(crate) use file::{DirectFile, read_exact_at, read_full};
pub(crate) use meter::Meter;
pub(crate) use patience::Patience;
pub(crate) use queue::Extent;
pub(crate) use ring::{Lease, Ring, RingOptions, TakeError, read_aside};
pub(crate) use turn::{Turn, TurnError, Turns};

/// An extent could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadFailure {
    /// A read failed.
    Read { offset: u64, kind: std::io::ErrorKind, message: String },
    /// No read ended while a pass waited for so long.
    Stalled { offset: u64, limit: Duration },
}

impl From<(u64, std::io::Error)> for ReadFailure {
    fn from((offset, error): (u64, std::io::Error)) -> Self {
        Self::Read { offset, kind: error.kind(), message: error.to_string() }
    }
}
