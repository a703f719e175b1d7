//! An open segment: its tables are in memory, all other pages are read on demand.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use refrain::TokenId;
use xxhash_rust::xxh3::xxh3_64;

use super::SEALED;
use super::layout::{Header, Layout, Section};
use super::name::SegmentName;
use crate::disk_file::DiskFile;
use crate::history::cache::{CachedFile, PAGE_BYTES, PageCache};
use crate::history::disk::SealedDisk;
use crate::history::error::{HistoryError, io_error, read_error};
use crate::history::key::RecordId;
use crate::history::log::{Place, Record, u32_at, u64_at};

/// A token's rank among the distinct tokens of a segment, counted from 1. 0 ends a response.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(in crate::history) struct Symbol(pub(in crate::history) u32);

impl Symbol {
    pub(in crate::history) const END: Symbol = Symbol(0);
}

#[derive(Debug)]
pub(in crate::history) struct Segment {
    file: Box<dyn DiskFile>,
    path: PathBuf,
    header: Header,
    /// The header's checksum.
    sum: u64,
    layout: Layout,
    tables: Tables,
    cached: CachedFile,
    /// Offset and kind of the first read failure. After it, no page is read.
    fault: OnceLock<(u64, &'static str)>,
    /// The noted time of the last draft from it, in s since 1970, and whether a draft has used it since.
    used_at: AtomicU64,
    is_used: AtomicBool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::history) struct FrozenRecord {
    pub(in crate::history) id: RecordId,
    start: u32,
    pub(in crate::history) n_tokens: u32,
}

/// A page could not be read or is damaged. The segment stores the details.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::history) struct Fault;

impl Segment {
    /// Opens a segment. The header and tables are read and checked.
    pub(in crate::history) fn open(
        disk: &SealedDisk,
        path: PathBuf,
        place: Place,
        cache: &mut PageCache,
    ) -> Result<Self, HistoryError> {
        let file = disk.open(&path).map_err(io_error("open", &path))?;
        let file = disk.seal().open_file(&place.sealed(SEALED), file).map_err(read_error(&path))?;
        let damaged = |offset, what| HistoryError::Damaged { path: path.clone(), offset, what };
        let len = file.len().map_err(io_error("read", &path))?;
        if len < PAGE_BYTES as u64 {
            return Err(damaged(len, "the file ends in its header"));
        }
        let mut page = vec![0; PAGE_BYTES];
        file.read_at(&mut page, 0).map_err(read_error(&path))?;
        let header = Header::decode(&page, place, &path)?;
        let layout = header.layout();
        // The file is at least as long as the header states, so the tables fit in it.
        if layout.tables_at + layout.tables_bytes != len {
            return Err(damaged(len, "the file's length"));
        }
        let mut tables = vec![0; layout.tables_bytes as usize];
        file.read_at(&mut tables, layout.tables_at).map_err(read_error(&path))?;
        if xxh3_64(&tables) != header.tables_sum {
            return Err(damaged(layout.tables_at, "the checksum of the tables"));
        }
        let tables = Tables::decode(&tables, &header);
        tables.check(&header).map_err(|what| damaged(layout.tables_at, what))?;
        let used_at = AtomicU64::new(disk.used_at(&path).map_err(io_error("read", &path))?);
        let cached = cache.add_file(layout.n_pages as usize);
        let fault = OnceLock::new();
        Ok(Segment {
            file,
            path,
            header,
            sum: u64_at(&page, PAGE_BYTES - 8),
            layout,
            tables,
            cached,
            fault,
            used_at,
            is_used: AtomicBool::new(false),
        })
    }

    /// Frees its pages in the cache.
    pub(in crate::history) fn close(self, cache: &mut PageCache) {
        cache.remove_file(self.cached);
    }

    pub(in crate::history) fn number(&self) -> u64 {
        self.header.place.number
    }

    pub(in crate::history) fn name(&self) -> SegmentName {
        SegmentName { number: self.number(), bytes: self.bytes(), sum: self.sum }
    }

    pub(in crate::history) fn path(&self) -> &Path {
        &self.path
    }

    pub(in crate::history) fn replaces(&self) -> &[u64] {
        &self.header.replaces
    }

    pub(in crate::history) fn records(&self) -> &[FrozenRecord] {
        &self.tables.records
    }

    pub(in crate::history) fn holds(&self, id: RecordId) -> bool {
        self.tables.records.binary_search_by_key(&id, |record| record.id).is_ok()
    }

    /// Tokens of all records.
    pub(in crate::history) fn n_tokens(&self) -> u32 {
        self.header.n_prefixes()
    }

    pub(in crate::history) fn bytes(&self) -> u64 {
        self.layout.tables_at + self.layout.tables_bytes
    }

    /// Bytes of the tables on the heap.
    pub(in crate::history) fn memory_usage(&self) -> usize {
        self.tables.records.capacity() * size_of::<FrozenRecord>()
            + (self.tables.tokens.capacity() + self.tables.starts.capacity()) * 4
            + self.tables.sums.capacity() * 8
    }

    /// The error of an unusable page, if there is one.
    pub(in crate::history) fn fault(&self) -> Option<HistoryError> {
        let &(offset, what) = self.fault.get()?;
        Some(HistoryError::Damaged { path: self.path.clone(), offset, what })
    }

    pub(in crate::history) fn is_faulty(&self) -> bool {
        self.fault.get().is_some()
    }

    pub(in crate::history) fn used_at(&self) -> u64 {
        self.used_at.load(Ordering::Relaxed)
    }

    /// Marks the segment as used by a draft. (Sources have no clock.)
    pub(in crate::history) fn set_used(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }

    /// Stores the time if a draft has used the segment since the last call.
    pub(in crate::history) fn note_use(&self, disk: &SealedDisk, now: u64) {
        if self.is_used.swap(false, Ordering::Relaxed) {
            self.set_used_at(disk, now);
        }
    }

    /// The time is stored in the file, for the next process.
    pub(in crate::history) fn set_used_at(&self, disk: &SealedDisk, seconds: u64) {
        self.used_at.store(seconds, Ordering::Relaxed);
        disk.set_used_at(&self.path, seconds);
    }

    /// The symbol of a token, if the segment contains it.
    pub(in crate::history) fn symbol(&self, token: TokenId) -> Option<Symbol> {
        self.tables.tokens.binary_search(&token.0).ok().map(|i| Symbol(i as u32 + 1))
    }

    /// The token of a symbol other than [`Symbol::END`].
    pub(in crate::history) fn token(&self, symbol: Symbol) -> Option<TokenId> {
        let i = (symbol.0 as usize).checked_sub(1)?;
        self.tables.tokens.get(i).map(|&token| TokenId(token))
    }

    /// Places of the prefixes that end with a symbol: start and end.
    pub(in crate::history) fn places(&self, symbol: Symbol) -> (u32, u32) {
        let i = symbol.0 as usize;
        (self.tables.starts[i - 1], self.tables.starts[i])
    }

    /// Every distinct token with its number of occurrences.
    pub(in crate::history) fn token_counts(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.tables
            .tokens
            .iter()
            .zip(self.tables.starts.windows(2))
            .map(|(&token, places)| (token, places[1] - places[0]))
    }

    /// The first place in `from..to` whose prefix, without its last symbol, has the place `bound` or a later one.
    /// Returns `to` if there is none. The prefixes of `from..to` end with the same symbol. The search begins on the
    /// page of the place `guess`.
    pub(in crate::history) fn first_with_shorter(
        &self,
        (from, to): (u32, u32),
        bound: u32,
        guess: u32,
        cache: &mut PageCache,
    ) -> Result<u32, Fault> {
        let section = self.layout.shorter;
        // Items before `low` are below `bound`; items from `high` on are not.
        let (mut low, mut high) = (self.item_of(from), self.item_of(to));
        let mut next = self.item_of(guess);
        while low < high {
            next = next.max(low).min(high - 1);
            let page = section.page_around(next);
            let (page_from, page_to) = (page.start.max(low), page.end.min(high));
            let bytes = self.items(section, page_from..page_to, cache)?;
            let is_before = |i: u32| u32_at(bytes, 4 * i as usize) < bound;
            let n = page_to - page_from;
            if is_before(n - 1) {
                low = page_to;
            } else if !is_before(0) {
                high = page_from;
            } else {
                low = page_from + partition_point(n, is_before);
                break;
            }
            next = low + (high - low) / 2;
        }
        Ok(low + self.header.n_records)
    }

    /// The symbols after the prefixes at `places`, with their index.
    pub(in crate::history) fn nexts(
        &self,
        places: Range<u32>,
        cache: &mut PageCache,
        mut each: impl FnMut(usize, Symbol),
    ) -> Result<(), Fault> {
        self.scan(self.layout.nexts, places, cache, |i, bytes| each(i, symbol(bytes)))
    }

    /// The ends in the text of the prefixes at `places`, with their index.
    pub(in crate::history) fn ends(
        &self,
        places: Range<u32>,
        cache: &mut PageCache,
        mut each: impl FnMut(usize, u32),
    ) -> Result<(), Fault> {
        self.scan(self.layout.ends, places, cache, |i, bytes| each(i, u32_at(bytes, 0)))
    }

    fn scan(
        &self,
        section: Section,
        places: Range<u32>,
        cache: &mut PageCache,
        mut each: impl FnMut(usize, &[u8]),
    ) -> Result<(), Fault> {
        let (from, to) = (self.item_of(places.start), self.item_of(places.end));
        let mut next = from;
        while next < to {
            let end = section.page_around(next).end.min(to);
            let bytes = self.items(section, next..end, cache)?;
            for (i, item) in (next - from..).zip(bytes.chunks_exact(section.item_bytes as usize)) {
                each(i as usize, item);
            }
            next = end;
        }
        Ok(())
    }

    /// The item of a place, also of the place after the last one. Empty prefixes have no item. Places come from the
    /// checked table of symbols, never from a page.
    fn item_of(&self, place: u32) -> u32 {
        place.saturating_sub(self.header.n_records).min(self.header.n_prefixes())
    }

    /// Items of a section, at least one, all on one page.
    fn items<'c>(
        &self,
        section: Section,
        items: Range<u32>,
        cache: &'c mut PageCache,
    ) -> Result<&'c [u8], Fault> {
        let (page, at) = section.locate(items.start);
        let bytes = cache.page(self.cached, page, |bytes| self.load(page, bytes))?;
        Ok(&bytes[at..][..(items.end - items.start) as usize * section.item_bytes as usize])
    }

    fn load(&self, page: u32, bytes: &mut [u8]) -> Result<(), Fault> {
        if self.is_faulty() {
            return Err(Fault);
        }
        self.read_page(page, bytes).map_err(|what| self.note_fault(page, what))
    }

    fn read_page(&self, page: u32, bytes: &mut [u8]) -> Result<(), &'static str> {
        let offset = (u64::from(page) + 1) * PAGE_BYTES as u64;
        self.file.read_at(bytes, offset).map_err(|_| "a page cannot be read")?;
        if xxh3_64(bytes) == self.tables.sums[page as usize] { Ok(()) } else { Err("a page's checksum") }
    }

    fn note_fault(&self, page: u32, what: &'static str) -> Fault {
        let _ = self.fault.set(((u64::from(page) + 1) * PAGE_BYTES as u64, what));
        Fault
    }

    /// Reads and checks every page.
    pub(in crate::history) fn verify(&self) -> Result<(), HistoryError> {
        let mut bytes = vec![0; PAGE_BYTES];
        for page in 0..self.layout.n_pages {
            self.load(page, &mut bytes).map_err(|Fault| self.fault().expect("just noted"))?;
        }
        Ok(())
    }

    /// The records with their tokens, filtered by `keep`.
    pub(in crate::history) fn read_records(
        &self,
        keep: impl Fn(RecordId) -> bool,
    ) -> Result<Vec<Record>, HistoryError> {
        let noted = |Fault| self.fault().expect("just noted");
        let text = self.read_text(|page, what| Err(self.note_fault(page, what))).map_err(noted)?;
        let records = self.tables.records.iter().filter(|record| keep(record.id)).map(|record| {
            let found = self.record(record, &text);
            found.ok_or_else(|| noted(self.note_fault(0, "a symbol that stands for no token")))
        });
        records.collect()
    }

    /// The records with readable tokens, and the bytes of all unreadable pages.
    pub(in crate::history) fn salvage(&self) -> (Vec<Record>, u64) {
        // Unreadable text becomes `Symbol::END`, which no record contains.
        let text = self.read_text(|_, _| Ok(())).expect("goes on");
        let mut bytes = vec![0; PAGE_BYTES];
        let n_bad =
            (0..self.layout.n_pages).filter(|&page| self.read_page(page, &mut bytes).is_err()).count();
        let records = self.tables.records.iter().filter_map(|record| self.record(record, &text)).collect();
        (records, (n_bad * PAGE_BYTES) as u64)
    }

    /// A record of the text. `None` if one of its symbols is not a token.
    fn record(&self, record: &FrozenRecord, text: &[Symbol]) -> Option<Record> {
        let symbols = &text[record.start as usize..][..record.n_tokens as usize];
        let tokens = symbols.iter().map(|&symbol| self.token(symbol)).collect::<Option<_>>()?;
        Some(Record { id: record.id, tokens })
    }

    /// Reads the whole text without the cache, so that it does not evict pages used by drafts. Calls `bad` for an
    /// unreadable page. If `bad` returns `Ok`, the page is zeros.
    fn read_text(&self, bad: impl Fn(u32, &'static str) -> Result<(), Fault>) -> Result<Vec<Symbol>, Fault> {
        let Section { mut page, n_items, item_bytes } = self.layout.text;
        let mut symbols = Vec::with_capacity(n_items as usize);
        let mut bytes = vec![0; PAGE_BYTES];
        while symbols.len() < n_items as usize {
            if let Err(what) = self.read_page(page, &mut bytes) {
                bad(page, what)?;
                bytes.fill(0);
            }
            let items = bytes.chunks_exact(item_bytes as usize).take(n_items as usize - symbols.len());
            symbols.extend(items.map(symbol));
            page += 1;
        }
        Ok(symbols)
    }
}

fn symbol(bytes: &[u8]) -> Symbol {
    Symbol(match *bytes {
        [low, high] => u32::from(u16::from_le_bytes([low, high])),
        _ => u32_at(bytes, 0),
    })
}

/// The number of items below the bound, among `n` sorted items.
fn partition_point(n: u32, is_before: impl Fn(u32) -> bool) -> u32 {
    let (mut low, mut high) = (0, n);
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(middle) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// The decoded tables.
#[derive(Debug)]
struct Tables {
    records: Vec<FrozenRecord>,
    tokens: Vec<u32>,
    starts: Vec<u32>,
    sums: Vec<u64>,
}

impl Tables {
    /// `bytes` has the length stated in the header.
    fn decode(bytes: &[u8], header: &Header) -> Self {
        let n_distinct = header.n_distinct as usize;
        let (records, bytes) = bytes.split_at(header.n_records as usize * 16);
        let (tokens, bytes) = bytes.split_at(n_distinct * 4);
        let (starts, sums) = bytes.split_at((n_distinct + 1) * 4);
        let numbers = |bytes: &[u8]| bytes.chunks_exact(4).map(|number| u32_at(number, 0)).collect();
        let record = |bytes: &[u8]| FrozenRecord {
            id: RecordId(u64_at(bytes, 0)),
            start: u32_at(bytes, 8),
            n_tokens: u32_at(bytes, 12),
        };
        Tables {
            records: records.chunks_exact(16).map(record).collect(),
            tokens: numbers(tokens),
            starts: numbers(starts),
            sums: sums.chunks_exact(8).map(|sum| u64_at(sum, 0)).collect(),
        }
    }

    /// Checks the invariants of the search. The search checks all other values itself.
    fn check(&self, header: &Header) -> Result<(), &'static str> {
        let mut next = 0u64;
        for record in &self.records {
            if u64::from(record.start) != next {
                return Err("the places of the records");
            }
            next += u64::from(record.n_tokens) + 1;
        }
        if next != u64::from(header.n_text) {
            return Err("the places of the records");
        }
        if !self.records.is_sorted_by(|a, b| a.id < b.id) {
            return Err("the order of the records");
        }
        if !self.tokens.is_sorted_by(|a, b| a < b) {
            return Err("the order of the distinct tokens");
        }
        let places = (Some(&header.n_records), Some(&header.n_text));
        if !self.starts.is_sorted() || (self.starts.first(), self.starts.last()) != places {
            return Err("the starts of the symbols");
        }
        Ok(())
    }
}
