//! Checksums of sections: XXH3 over every byte up to the next section, padding included.

use xxhash_rust::xxh3::Xxh3;

use super::{LINE_BYTES, PAGE_BYTES};

const ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

/// The running checksum of a section. Its tensors are added in order, with the padding of the file.
pub(super) struct SectionSum {
    hash: Xxh3,
    len: u64,
}

impl SectionSum {
    pub(super) fn new() -> Self {
        Self { hash: Xxh3::new(), len: 0 }
    }

    /// Adds bytes of the file.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.hash.update(bytes);
        self.len += bytes.len() as u64;
    }

    /// Adds and returns the zeros after a tensor, up to the next line.
    pub(super) fn pad_line(&mut self) -> &'static [u8] {
        self.pad(LINE_BYTES)
    }

    /// Adds and returns the zeros after the section, up to the next page.
    pub(super) fn pad_page(&mut self) -> &'static [u8] {
        self.pad(PAGE_BYTES)
    }

    fn pad(&mut self, to: u64) -> &'static [u8] {
        // Less than a page, so it fits.
        let padding = &ZEROS[..(self.len.next_multiple_of(to) - self.len) as usize];
        self.update(padding);
        padding
    }

    pub(super) fn digest(&self) -> u64 {
        self.hash.digest()
    }
}
