//! Where the panels of a packed matrix lie: in memory of their own, or in a mapped file.

use std::sync::Arc;

use super::aligned::{AlignedBuf, Line};
use crate::mapping::Mapping;

/// The lines of a packed matrix, immutable once they are filled.
pub(super) enum Panels {
    Owned(AlignedBuf),
    Mapped {
        mapping: Arc<Mapping>,
        /// First byte in the mapping; on a line's boundary.
        start: usize,
        n_lines: usize,
    },
}

impl Panels {
    pub(super) fn lines(&self) -> &[Line] {
        match self {
            Panels::Owned(buf) => buf.lines(),
            Panels::Mapped { mapping, start, n_lines } => {
                let bytes = &mapping.bytes()[*start..][..n_lines * 64];
                Line::slice_of(bytes).expect("mappings begin on a page, and `start` is on a line's boundary")
            }
        }
    }

    pub(super) fn size_bytes(&self) -> usize {
        match self {
            Panels::Owned(buf) => buf.size_bytes(),
            Panels::Mapped { n_lines, .. } => n_lines * 64,
        }
    }
}
