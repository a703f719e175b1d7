//! Freezes responses: sorts their suffixes and writes the file.

use std::io;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::layout::{Header, Layout};
use crate::history::HistoryError;
use crate::history::cache::PAGE_BYTES;
use crate::history::disk::{Disk, DiskFile, put_file};
use crate::history::key::FileKind;
use crate::history::log::{Place, Record};
use crate::history::sort::suffix_array;

/// Pages written at a time.
const WRITE_PAGES: usize = 256;

/// Writes a segment of these records, in this order, durably. Takes 30 bytes of memory per token, and time linear in
/// them.
pub(in crate::history) fn write_segment(
    disk: &dyn Disk,
    folder: &Path,
    place: Place,
    replaces: &[u64],
    records: &[Record],
) -> Result<PathBuf, HistoryError> {
    let frozen = Frozen::new(records);
    let path = FileKind::Segment.path(folder, place.number);
    put_file(disk, &path, |file| frozen.write(file, place, replaces))?;
    Ok(path)
}

/// A segment in memory.
struct Frozen {
    /// `(id, start, tokens)` of each record.
    records: Vec<(u64, u32, u32)>,
    /// Distinct tokens, ascending: the symbol `s` stands for the one at `s - 1`.
    tokens: Vec<u32>,
    text: Vec<u32>,
    array: Vec<u32>,
    /// First place in the array of each symbol from 1 on, and the end.
    starts: Vec<u32>,
    /// `(second, first place in the array)`
    pairs: Vec<(u32, u32)>,
    /// First pair of each symbol from 1 on, and the end.
    pair_starts: Vec<u32>,
}

impl Frozen {
    fn new(records: &[Record]) -> Self {
        let tokens = distinct_tokens(records);
        let n_text = records.iter().map(|record| record.tokens.len() + 1).sum();
        let (mut text, mut spans): (Vec<u32>, _) =
            (Vec::with_capacity(n_text), Vec::with_capacity(records.len()));
        for record in records {
            spans.push((record.id.0, text.len() as u32, record.tokens.len() as u32));
            let symbol = |token: u32| tokens.partition_point(|&known| known < token) as u32 + 1;
            text.extend(record.tokens.iter().map(|token| symbol(token.0)));
            text.push(0);
        }
        let mut array = suffix_array(&text, tokens.len() as u32);
        // Those that begin with 0 come first.
        array.drain(..records.len());
        let mut frozen = Frozen {
            records: spans,
            starts: Vec::with_capacity(tokens.len() + 1),
            pair_starts: Vec::with_capacity(tokens.len() + 1),
            pairs: Vec::new(),
            tokens,
            text,
            array,
        };
        frozen.index_pairs();
        frozen
    }

    fn index_pairs(&mut self) {
        let mut newest = (0, 0);
        for (place, &start) in self.array.iter().enumerate() {
            let pair = (self.text[start as usize], self.text[start as usize + 1]);
            if pair.0 != newest.0 {
                self.starts.push(place as u32);
                self.pair_starts.push(self.pairs.len() as u32);
            }
            if pair != newest {
                self.pairs.push((pair.1, place as u32));
            }
            newest = pair;
        }
        self.starts.push(self.array.len() as u32);
        self.pair_starts.push(self.pairs.len() as u32);
    }

    fn write(&self, file: &dyn DiskFile, place: Place, replaces: &[u64]) -> io::Result<()> {
        // Two bytes hold 0 and as many symbols as there are tokens.
        let symbol_bytes = if self.tokens.len() <= usize::from(u16::MAX) { 2 } else { 4 };
        let mut header = Header {
            place,
            symbol_bytes,
            n_records: self.records.len() as u32,
            n_text: self.text.len() as u32,
            n_distinct: self.tokens.len() as u32,
            n_pairs: self.pairs.len() as u32,
            tables_sum: 0,
            replaces: replaces.to_vec(),
        };
        let layout = header.layout();
        let mut pages = PageWriter { file, at: PAGE_BYTES as u64, pending: Vec::new(), sums: Vec::new() };
        for symbol in &self.text {
            pages.push(&symbol.to_le_bytes()[..symbol_bytes as usize])?;
        }
        pages.end_section()?;
        for start in &self.array {
            pages.push(&start.to_le_bytes())?;
        }
        pages.end_section()?;
        for (second, start) in &self.pairs {
            pages.push(&[second.to_le_bytes(), start.to_le_bytes()].concat())?;
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
        for number in [&self.tokens, &self.starts, &self.pair_starts].into_iter().flatten() {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        sums.iter().for_each(|sum| bytes.extend_from_slice(&sum.to_le_bytes()));
        debug_assert_eq!(bytes.len() as u64, layout.tables_bytes);
        bytes
    }
}

fn distinct_tokens(records: &[Record]) -> Vec<u32> {
    let mut tokens: Vec<u32> = Vec::new();
    let mut n_sorted_at = 1 << 16;
    for record in records {
        tokens.extend(record.tokens.iter().map(|token| token.0));
        // Now and then, so that the list stays near the number of distinct ones.
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

/// Writes pages one after the other and sums each.
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
