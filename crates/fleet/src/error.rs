//! The errors of a fleet.

use std::io;
use std::time::Duration;

use refrain_index::HistoryError;
use thiserror::Error;

/// Something could not be shared. Drafting goes on without it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FleetError {
    /// The address is neither a URL of a known store nor a folder.
    #[error("`{address}` is no store of objects: {source}")]
    Address {
        /// The address.
        address: String,
        /// The reason.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The length of the host's name is outside its range.
    #[error("the host's name has {bytes} bytes, outside 1..={max}")]
    HostName {
        /// The length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// The thread's clock and sockets cannot be set up.
    #[error("cannot wait for the store: {0}")]
    Runtime(io::Error),
    /// The store has failed.
    #[error("cannot {action} `{object}`: {source}")]
    Store {
        /// The operation.
        action: &'static str,
        /// The object.
        object: String,
        /// The store's error.
        source: Box<object_store::Error>,
    },
    /// The time limit of the call has passed. The rest was not tried.
    #[error("the store was too slow: the limit of {budget:?} has passed")]
    OutOfTime {
        /// The limit.
        budget: Duration,
    },
    /// An object is not as long as its name or the listing states. It was not used.
    #[error("`{object}` has {given} bytes instead of {stated}")]
    Length {
        /// The object.
        object: String,
        /// The length in its name.
        stated: u64,
        /// The length that was found.
        given: u64,
    },
    /// An object is not the segment that its name states, or one of another model or namespace. It was not used.
    #[error("`{object}` was not used: {source}")]
    Segment {
        /// The object.
        object: String,
        /// What differs.
        source: HistoryError,
    },
    /// The time of a deletion is not readable. Nothing of this namespace was shared.
    #[error("`{object}` has no time of a deletion")]
    Deleted {
        /// The object.
        object: String,
    },
    /// A listing has too many objects.
    #[error("`{object}` has more than {max} objects")]
    TooMany {
        /// The place.
        object: String,
        /// The limit.
        max: usize,
    },
    /// The history on this host could not be read or changed.
    #[error(transparent)]
    History(#[from] HistoryError),
}
