//! The memory of a packed matrix: its own, a mapped file, or a buffer that was read as a whole.

use std::sync::Arc;

use super::aligned::{AlignedBuf, Line};
use super::page_buf::PageBuf;
use crate::mapping::Mapping;

/// The lines of a packed matrix; immutable once they are filled.
pub(super) enum Panels {
    Owned(AlignedBuf),
    Mapped {
        mapping: Arc<Mapping>,
        /// First byte in the mapping; on a line's boundary.
        start: usize,
        n_lines: usize,
    },
    Pages {
        pages: Arc<PageBuf>,
        /// First byte in the pages; on a line's boundary.
        start: usize,
        n_lines: usize,
    },
}

impl Panels {
    pub(super) fn lines(&self) -> &[Line] {
        match self {
            Panels::Owned(buf) => buf.lines(),
            Panels::Mapped { mapping, start, n_lines } => view(mapping.bytes(), *start, *n_lines),
            Panels::Pages { pages, start, n_lines } => view(pages.bytes(), *start, *n_lines),
        }
    }

    pub(super) fn size_bytes(&self) -> usize {
        match self {
            Panels::Owned(buf) => buf.size_bytes(),
            Panels::Mapped { n_lines, .. } | Panels::Pages { n_lines, .. } => n_lines * 64,
        }
    }
}

fn view(bytes: &[u8], start: usize, n_lines: usize) -> &[Line] {
    let bytes = &bytes[start..][..n_lines * 64];
    Line::slice_of(bytes).expect("the bytes begin on a page, and `start` is on a line's boundary")
}
