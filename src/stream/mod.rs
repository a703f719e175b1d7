//! Weights on their way from flash: reads past the page cache into a ring of buffers, ahead of the computation.
//!
//! A model that is larger than memory decodes as fast as its disk reads, if the disk never rests. So a *ring* of two or three
//! buffers, each as long as a layer, is filled with reads of a block each (`O_DIRECT` where the system has it), many at a time: by
//! a few threads through io_uring, or by as many threads with a positioned read each. While a pass computes with one buffer, the next
//! layers are read into the others, and behind the last layer the ring goes on with the first one of the next step. It knows extents
//! of a file and not what they mean; [`model::streamed`](crate::model::streamed) makes layers of them.
//!
//! ```text
//! reads     4a 4b 4c 5a 5b 5c 6a …               blocks of extents 4, 5, 6
//! ring      [ 3: lent ] [ 4: ready ] [ 5: … ]    three buffers
//! pass      computes 3, gives it back, takes 4   or waits: that is a stall
//! ```
//!
//! Which extent comes next is learnt: behind each one the one that followed it last time. A guess that was wrong (the prompt
//! ends, another session's turn comes, a pass is cancelled) costs the reads that were made ahead.
//!
//! A read that fails is an error of the pass that wanted it and of no other; the next pass reads again.

mod file;
mod meter;
mod options;
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
pub use options::{Pinned, StreamOptions, WrapReader};
pub use resident::{available_bytes, resident_bytes};
pub use sequential::sequential_read;

pub(crate) use file::{DirectFile, read_exact_at, read_full};
pub(crate) use meter::Meter;
pub(crate) use queue::Extent;
pub(crate) use ring::{Lease, Ring, RingOptions, TakeError, read_aside};
pub(crate) use turn::{Turn, Turns};

/// Why an extent could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ReadFailure {
    /// A read failed.
    Read { offset: u64, kind: std::io::ErrorKind, message: String },
    /// No read ended for as long as this.
    Stalled { offset: u64, limit: Duration },
}

impl From<(u64, std::io::Error)> for ReadFailure {
    fn from((offset, error): (u64, std::io::Error)) -> Self {
        Self::Read { offset, kind: error.kind(), message: error.to_string() }
    }
}
