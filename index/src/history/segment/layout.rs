//! The header of a segment and the location of its sections.

use std::ops::Range;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_64;

use crate::history::HistoryError;
use crate::history::cache::PAGE_BYTES;
use crate::history::log::{Place, u32_at, u64_at};

const MAGIC: [u8; 8] = *b"RFRNHSEG";
const VERSION: u32 = 2;
const FIXED_BYTES: usize = 56;

/// Maximum number of replaced files: the header has room for this number.
pub(in crate::history) const REPLACES_MAX: usize = 256;

/// The contents of the header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) place: Place,
    pub(super) symbol_bytes: u32,
    pub(super) n_records: u32,
    /// Symbols of the text, including the zeros.
    pub(super) n_text: u32,
    pub(super) n_distinct: u32,
    pub(super) tables_sum: u64,
    /// Numbers of the replaced files.
    pub(super) replaces: Vec<u64>,
}

/// A section that is read page by page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Section {
    /// The first page, counted from the page after the header.
    pub(super) page: u32,
    pub(super) n_items: u32,
    pub(super) item_bytes: u32,
}

/// The location of all sections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Layout {
    pub(super) text: Section,
    pub(super) shorter: Section,
    pub(super) nexts: Section,
    pub(super) ends: Section,
    pub(super) n_pages: u32,
    pub(super) tables_at: u64,
    pub(super) tables_bytes: u64,
}

impl Section {
    fn n_pages(self) -> u64 {
        (u64::from(self.n_items) * u64::from(self.item_bytes)).div_ceil(PAGE_BYTES as u64)
    }

    /// The page of an item, and the item's offset in it.
    pub(super) fn locate(self, item: u32) -> (u32, usize) {
        let at = u64::from(item) * u64::from(self.item_bytes);
        (self.page + (at / PAGE_BYTES as u64) as u32, at as usize % PAGE_BYTES)
    }

    /// The items on the same page as this one.
    pub(super) fn page_around(self, item: u32) -> Range<u32> {
        let n = PAGE_BYTES as u32 / self.item_bytes;
        let start = item / n * n;
        start..start.saturating_add(n).min(self.n_items)
    }
}

impl Header {
    pub(super) fn encode(&self) -> Vec<u8> {
        assert!(self.replaces.len() <= REPLACES_MAX, "{} files are replaced", self.replaces.len());
        let mut bytes = Vec::with_capacity(PAGE_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&self.symbol_bytes.to_le_bytes());
        bytes.extend_from_slice(&self.place.owner.to_le_bytes());
        bytes.extend_from_slice(&self.place.number.to_le_bytes());
        for number in [self.n_records, self.n_text, self.n_distinct, self.replaces.len() as u32] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.tables_sum.to_le_bytes());
        debug_assert_eq!(bytes.len(), FIXED_BYTES);
        self.replaces.iter().for_each(|number| bytes.extend_from_slice(&number.to_le_bytes()));
        bytes.resize(PAGE_BYTES - 8, 0);
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        bytes
    }

    /// Reads a header of `PAGE_BYTES` and checks that it belongs to `place`.
    pub(super) fn decode(page: &[u8], place: Place, path: &Path) -> Result<Self, HistoryError> {
        let damaged = |what| HistoryError::Damaged { path: path.to_owned(), offset: 0, what };
        let (fields, sum) = page.split_at(PAGE_BYTES - 8);
        if fields[..8] != MAGIC || xxh3_64(fields).to_le_bytes() != sum {
            return Err(damaged("the header's checksum"));
        }
        let given = u32_at(page, 8);
        if given != VERSION {
            return Err(HistoryError::Version { path: path.to_owned(), given, known: VERSION });
        }
        if (Place { owner: u64_at(page, 16), number: u64_at(page, 24) }) != place {
            return Err(HistoryError::Misplaced { path: path.to_owned() });
        }
        let n_replaces = u32_at(page, 44) as usize;
        let header = Header {
            place,
            symbol_bytes: u32_at(page, 12),
            n_records: u32_at(page, 32),
            n_text: u32_at(page, 36),
            n_distinct: u32_at(page, 40),
            tables_sum: u64_at(page, 48),
            replaces: (0..n_replaces.min(REPLACES_MAX)).map(|i| u64_at(page, FIXED_BYTES + 8 * i)).collect(),
        };
        let in_range = matches!(header.symbol_bytes, 2 | 4)
            && n_replaces <= REPLACES_MAX
            && header.n_records <= header.n_text
            && header.n_distinct <= header.n_text;
        if in_range { Ok(header) } else { Err(damaged("a count of the header")) }
    }

    /// Number of prefixes that are not empty: one per token.
    pub(super) fn n_prefixes(&self) -> u32 {
        self.n_text - self.n_records
    }

    /// The location of the sections. All sums are of u32 values and fit a u64.
    pub(super) fn layout(&self) -> Layout {
        let text = Section { page: 0, n_items: self.n_text, item_bytes: self.symbol_bytes };
        let mut n_pages = text.n_pages();
        let mut next = |n_items, item_bytes| {
            let section = Section { page: n_pages as u32, n_items, item_bytes };
            n_pages += section.n_pages();
            section
        };
        let shorter = next(self.n_prefixes(), 4);
        let nexts = next(self.n_prefixes(), self.symbol_bytes);
        let ends = next(self.n_prefixes(), 4);
        let tables_bytes = u64::from(self.n_records) * 16
            + u64::from(self.n_distinct) * 4
            + (u64::from(self.n_distinct) + 1) * 4
            + n_pages * 8;
        let tables_at = (1 + n_pages) * PAGE_BYTES as u64;
        Layout { text, shorter, nexts, ends, n_pages: n_pages as u32, tables_at, tables_bytes }
    }
}
