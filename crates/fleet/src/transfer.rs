//! What a call has moved.

use crate::FleetError;

/// What a [publish](crate::Fleet::publish) or a [pull](crate::Fleet::pull) has moved.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Transfer {
    /// Number of segments that were moved.
    pub n_moved: usize,
    /// Their bytes.
    pub moved_bytes: u64,
    /// Number of segments that were there already.
    pub n_kept: usize,
    /// Number of segments that were removed at the destination.
    pub n_removed: usize,
    /// What could not be done. The rest was done.
    pub failed: Vec<FleetError>,
}
