//! Freezes responses: sorts their prefixes and writes the file.

use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::SEALED;
use super::layout::{Header, Layout};
use crate::disk_file::DiskFile;
use crate::history::HistoryError;
use crate::history::cache::PAGE_BYTES;
use crate::history::changes::put_file;
use crate::history::disk::SealedDisk;
use crate::history::key::FileKind;
use crate::history::log::{Place, Record};
use crate::history::sort::suffix_array;
use crate::seal::CHUNK_BYTES;

/// Pages and tables begin with a chunk of an encrypted file.
const _: () = assert!(PAGE_BYTES.is_multiple_of(CHUNK_BYTES));

/// Number of pages per write.
const WRITE_PAGES: usize = 256;

/// Writes a segment of these records, in this order, durably. Needs 30 bytes of memory per token, and time linear in
/// the tokens.
pub(in crate::history) fn write_segment(
    disk: &SealedDisk,
    folder: &Path,
    place: Place,
    replaces: &[u64],
    records: &[Record],
) -> Result<PathBuf, HistoryError> {
    let frozen = Frozen::new(records);
    let path = FileKind::Segment.path(folder, place.number);
    put_file(disk, &path, |file| {
        // The pages of a segment are the chunks of an encrypted file.
        disk.seal().write_file(&place.sealed(SEALED), file, |file| frozen.write(file, place, replaces))
    })?;
    Ok(path)
}

/// A segment in memory.
struct Frozen {
    /// `(id, start, tokens)` of each record.
    records: Vec<(u64, u32, u32)>,
    /// Distinct tokens, ascending. The symbol `s` is the token at `s - 1`.
    tokens: Vec<u32>,
    /// The text reversed, except that the last 0 stays last. A prefix of the text is a suffix of this.
    reversed: Vec<u32>,
    /// By place: the start of each prefix in `reversed`; empty prefixes first.
    array: Vec<u32>,
    /// By place: for each prefix that is not empty, the place of the prefix without its last symbol.
    shorter: Vec<u32>,
    /// First place of each symbol from 1 on, and the end.
    starts: Vec<u32>,
}

impl Frozen {
    fn new(records: &[Record]) -> Self {
        let tokens = distinct_tokens(records);
        let n_text = records.iter().map(|record| record.tokens.len() + 1).sum();
        let mut spans = Vec::with_capacity(records.len());
        let mut start = 0;
        for record in records {
            let n_tokens = record.tokens.len() as u32;
            spans.push((record.id.0, start, n_tokens));
            start += n_tokens + 1;
        }
        let mut reversed = Vec::with_capacity(n_text);
        for record in records.iter().rev() {
            let symbol = |token: u32| tokens.partition_point(|&known| known < token) as u32 + 1;
            reversed.extend(record.tokens.iter().rev().map(|token| symbol(token.0)));
            reversed.push(0);
        }
        let array = suffix_array(&reversed, tokens.len() as u32);
        let starts = starts_of(&reversed, tokens.len());
        let shorter = shorter_of(&reversed, &array, &starts);
        Frozen { records: spans, tokens, reversed, array, shorter, starts }
    }

    /// The symbol of the text at `at`.
    fn symbol(&self, at: usize) -> u32 {
        // The last 0 of the text is also the last of `reversed`.
        let n = self.reversed.len();
        if at + 1 == n { 0 } else { self.reversed[n - 2 - at] }
    }

    /// The end in the text of the prefix that starts at `start` in `reversed`: the position after its last symbol.
    fn end(&self, start: u32) -> u32 {
        self.reversed.len() as u32 - 1 - start
    }

    fn write(&self, file: &dyn DiskFile, place: Place, replaces: &[u64]) -> io::Result<()> {
        // Two bytes hold 0 and one symbol per distinct token.
        let symbol_bytes = if self.tokens.len() <= usize::from(u16::MAX) { 2 } else { 4 };
        let mut header = Header {
            place,
            symbol_bytes,
            n_records: self.records.len() as u32,
            n_text: self.reversed.len() as u32,
            n_distinct: self.tokens.len() as u32,
            tables_sum: 0,
            replaces: replaces.to_vec(),
        };
        let layout = header.layout();
        let mut pages = PageWriter { file, at: PAGE_BYTES as u64, pending: Vec::new(), sums: Vec::new() };
        let put_symbol = |pages: &mut PageWriter<'_>, symbol: u32| {
            pages.push(&symbol.to_le_bytes()[..symbol_bytes as usize])
        };
        for at in 0..self.reversed.len() {
            put_symbol(&mut pages, self.symbol(at))?;
        }
        pages.end_section()?;
        for place in &self.shorter {
            pages.push(&place.to_le_bytes())?;
        }
        pages.end_section()?;
        let ends = || self.array[self.records.len()..].iter().map(|&start| self.end(start));
        for end in ends() {
            put_symbol(&mut pages, self.symbol(end as usize))?;
        }
        pages.end_section()?;
        for end in ends() {
            pages.push(&end.to_le_bytes())?;
        }
        pages.end_section()?;
        let tables = self.tables(&pages.finish()?, &layout);
        file.write_at(&tables, layout.tables_at)?;
        header.tables_sum = xxh3_64(&tables);
        file.write_at(&header.encode(), 0)
    }

    fn tables(&self, sums: &[u64], layout: &Layout) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(layout.tables_bytes as usize);
        for (id, start, n_tokens) in &self.records {
            bytes.extend_from_slice(&id.to_le_bytes());
            bytes.extend_from_slice(&start.to_le_bytes());
            bytes.extend_from_slice(&n_tokens.to_le_bytes());
        }
        for number in [&self.tokens, &self.starts].into_iter().flatten() {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        sums.iter().for_each(|sum| bytes.extend_from_slice(&sum.to_le_bytes()));
        debug_assert_eq!(bytes.len() as u64, layout.tables_bytes);
        bytes
    }
}

/// The first place of each symbol from 1 on, and the end.
fn starts_of(reversed: &[u32], n_distinct: usize) -> Vec<u32> {
    let mut starts = vec![0; n_distinct + 1];
    reversed.iter().for_each(|&symbol| starts[symbol as usize] += 1);
    let mut n_before = 0;
    for start in &mut starts {
        n_before += *start;
        *start = n_before;
    }
    starts
}

/// By place: for each prefix that is not empty, the place of the prefix without its last symbol. Appending one symbol
/// keeps the order of prefixes, so the shorter prefixes are visited in order and each gets the next place of its
/// symbol.
fn shorter_of(reversed: &[u32], array: &[u32], starts: &[u32]) -> Vec<u32> {
    let n_empty = starts[0];
    let mut next = starts.to_vec();
    let mut shorter = vec![0; reversed.len() - n_empty as usize];
    for (place, &start) in array.iter().enumerate() {
        let longer = start.checked_sub(1).map(|before| reversed[before as usize]);
        if let Some(symbol) = longer.filter(|&symbol| symbol > 0) {
            let at = &mut next[symbol as usize - 1];
            shorter[(*at - n_empty) as usize] = place as u32;
            *at += 1;
        }
    }
    shorter
}

fn distinct_tokens(records: &[Record]) -> Vec<u32> {
    let mut tokens: Vec<u32> = Vec::new();
    let mut n_sorted_at = 1 << 16;
    for record in records {
        tokens.extend(record.tokens.iter().map(|token| token.0));
        // Removes duplicates at intervals, so that the length stays near the number of distinct tokens.
        if tokens.len() >= n_sorted_at {
            tokens.sort_unstable();
            tokens.dedup();
            n_sorted_at = 2 * tokens.len() + (1 << 16);
        }
    }
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

/// Writes pages in order and computes the sum of each.
struct PageWriter<'a> {
    file: &'a dyn DiskFile,
    at: u64,
    pending: Vec<u8>,
    sums: Vec<u64>,
}

impl PageWriter<'_> {
    fn push(&mut self, item: &[u8]) -> io::Result<()> {
        self.pending.extend_from_slice(item);
        if self.pending.len() >= WRITE_PAGES * PAGE_BYTES { self.write_pending() } else { Ok(()) }
    }

    /// Fills the last page with zeros.
    fn end_section(&mut self) -> io::Result<()> {
        self.pending.resize(self.pending.len().next_multiple_of(PAGE_BYTES), 0);
        self.write_pending()
    }

    fn write_pending(&mut self) -> io::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        self.file.write_at(&self.pending, self.at)?;
        self.at += self.pending.len() as u64;
        self.sums.extend(self.pending.chunks_exact(PAGE_BYTES).map(xxh3_64));
        self.pending.clear();
        Ok(())
    }

    fn finish(self) -> io::Result<Vec<u64>> {
        debug_assert!(self.pending.is_empty());
        Ok(self.sums)
    }
}
