//! A namespace: a growing log and immutable segments, and the crash-safe changes of their files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, RwLock};

use refrain::TokenId;
use refrain_trees::sam::SuffixAutomaton;

use super::HistoryError;
use super::cache::PageCache;
use super::changes::{ASIDE, remove, set_aside};
use super::context::Context;
use super::error::io_error;
use super::files::{Found, open_segment, settle, sort};
use super::key::{FileKind, RecordId};
use super::log::{Log, Place, Record};
use super::report::{LeftOut, LeftOutReason};
use super::segment::{Segment, write_segment};

/// Maximum number of namespaces of a store.
pub(super) const NAMESPACES_MAX: usize = 1024;

/// A namespace. Sources may keep a reference while it is being removed.
pub(super) type SharedNamespace = Arc<RwLock<Namespace>>;

pub(super) type Namespaces = BTreeMap<String, SharedNamespace>;

#[derive(Debug)]
pub(super) struct Namespace {
    folder: PathBuf,
    owner: u64,
    /// `None` if another process writes.
    log: Option<Log>,
    /// The records of the log. If another process writes: also the responses that are still handed in.
    live: Vec<Record>,
    n_live_tokens: usize,
    /// Bytes of the logs, if this process only reads them.
    read_bytes: u64,
    /// The automaton of the log's records; built for the first draft.
    automaton: OnceLock<SuffixAutomaton>,
    /// Oldest first.
    segments: Vec<Segment>,
    /// Copies of other hosts' segments. They are searched and never changed.
    pulled: Vec<Segment>,
    next_number: AtomicU64,
    /// Counts appends. After a change, a reader may find a longer match in the automaton.
    pub(super) n_appends: u64,
    /// Counts changes that move or drop responses. After a change, older cursors and matches are invalid.
    pub(super) n_moves: u64,
}

/// Attempts of a reader to find the same files before and after opening them.
const READ_ATTEMPTS: usize = 32;

impl Namespace {
    /// Opens a namespace's folder for writing. The readable responses of damaged logs are first written to a new log.
    /// Then leftovers of a crash are removed and damaged files are set aside. Unused parts are added to `left_out`.
    ///
    /// # Errors
    /// The folder cannot be read or written.
    pub(super) fn open(
        context: &Context,
        folder: PathBuf,
        owner: u64,
        left_out: &mut Vec<LeftOut>,
    ) -> Result<Self, HistoryError> {
        let mut found = Found::read(context, &folder, owner)?;
        let number = found.newest + 1;
        let settled = settle(context.disk(), &folder, Place { owner, number }, &mut found);
        let (log, live) = settled.inspect_err(|_| context.close(found.segments.drain(..)))?;
        left_out.append(&mut found.left_out);
        let mut namespace = Self::new(folder, owner, live, found.segments);
        (namespace.log, namespace.next_number) = (Some(log), AtomicU64::new(number + 1));
        Ok(namespace)
    }

    /// Opens a namespace's folder for reading, including responses that are still handed in. Changes no file. A
    /// folder that does not exist is empty.
    ///
    /// The writer may replace files meanwhile. So the folder is listed again afterwards, and read again if its files
    /// have changed. Each file is complete, so after the last attempt responses can only be missing, until the next
    /// read.
    ///
    /// # Errors
    /// A file cannot be opened for a reason that [`LeftOut`] does not know.
    pub(super) fn open_to_read(
        context: &Context,
        folder: PathBuf,
        owner: u64,
        handed_in: Vec<Record>,
        left_out: &mut Vec<LeftOut>,
    ) -> Result<Self, HistoryError> {
        let mut attempt = 1;
        let mut found = loop {
            let mut found = match Found::read(context, &folder, owner) {
                Ok(found) => found,
                Err(error) => {
                    let mut found = Found::default();
                    found.left_out.push(LeftOut::of(error)?);
                    break found;
                }
            };
            if attempt == READ_ATTEMPTS || found.is_still_there(context.disk(), &folder) {
                break found;
            }
            context.close(found.segments.drain(..));
            attempt += 1;
        };
        // The writer may be appending, so an incomplete record is not reported.
        found.left_out.retain(|left_out| left_out.reason != LeftOutReason::Torn);
        left_out.append(&mut found.left_out);
        let read_bytes = found.logs.iter().map(|(_, scan)| scan.end).sum();
        let mut live: Vec<Record> = found.logs.into_iter().flat_map(|(_, scan)| scan.records).collect();
        sort(&mut live);
        let mut namespace = Namespace { read_bytes, ..Self::new(folder, owner, live, found.segments) };
        let mut added = Vec::new();
        for record in handed_in {
            added.extend(namespace.unless_held(&added, record).ok());
        }
        added.into_iter().for_each(|record| namespace.push(record));
        sort(&mut namespace.live);
        Ok(namespace)
    }

    /// A namespace without files, for a process that does not write.
    pub(super) fn new_to_read(folder: PathBuf, owner: u64) -> Self {
        Self::new(folder, owner, Vec::new(), Vec::new())
    }

    fn new(folder: PathBuf, owner: u64, live: Vec<Record>, segments: Vec<Segment>) -> Self {
        Namespace {
            n_live_tokens: live.iter().map(|record| record.tokens.len()).sum(),
            folder,
            owner,
            log: None,
            live,
            read_bytes: 0,
            automaton: OnceLock::new(),
            segments,
            pulled: Vec::new(),
            next_number: AtomicU64::new(0),
            n_appends: 0,
            n_moves: 0,
        }
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    pub(super) fn live(&self) -> &[Record] {
        &self.live
    }

    pub(super) fn n_live_tokens(&self) -> usize {
        self.n_live_tokens
    }

    pub(super) fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Other hosts' segments.
    pub(super) fn pulled(&self) -> &[Segment] {
        &self.pulled
    }

    /// The segments that drafts search: this host's, then those of other hosts.
    pub(super) fn searched(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().chain(&self.pulled)
    }

    /// A segment by its place in [`searched`](Self::searched).
    pub(super) fn searched_at(&self, at: usize) -> &Segment {
        self.segments.get(at).unwrap_or_else(|| &self.pulled[at - self.segments.len()])
    }

    /// Drops other hosts' segments that are not to be kept, and adds some.
    pub(super) fn replace_pulled(
        &mut self,
        keep: impl Fn(&Segment) -> bool,
        added: Vec<Segment>,
        cache: &mut PageCache,
    ) {
        let dropped: Vec<Segment> = self.pulled.extract_if(.., |segment| !keep(segment)).collect();
        if !dropped.is_empty() || !added.is_empty() {
            self.n_moves += 1;
        }
        dropped.into_iter().for_each(|segment| segment.close(cache));
        self.pulled.extend(added);
    }

    /// The log of a namespace. Only for the writer.
    pub(super) fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("only the writer comes here")
    }

    pub(super) fn bytes(&self) -> u64 {
        let log_bytes = self.log.as_ref().map_or(self.read_bytes, Log::bytes);
        log_bytes + self.segments.iter().map(Segment::bytes).sum::<u64>()
    }

    /// The responses of the log, newest first.
    pub(super) fn newest(&self) -> impl Iterator<Item = &[TokenId]> {
        self.live.iter().rev().map(|record| &*record.tokens)
    }

    /// The automaton of the log's records. The first call builds it: about 0.2 µs per token.
    pub(super) fn automaton(&self) -> &SuffixAutomaton {
        self.automaton.get_or_init(|| {
            let mut automaton = SuffixAutomaton::new();
            self.live.iter().for_each(|record| extend(&mut automaton, &record.tokens));
            automaton
        })
    }

    pub(super) fn memory_usage(&self) -> usize {
        self.n_live_tokens * size_of::<TokenId>()
            + self.live.capacity() * size_of::<Record>()
            + self.automaton.get().map_or(0, SuffixAutomaton::memory_usage)
            + self.searched().map(Segment::memory_usage).sum::<usize>()
    }

    /// The id of the newest response.
    pub(super) fn newest_id(&self) -> u64 {
        let frozen = self.segments.iter().filter_map(|segment| segment.records().last());
        let newest = frozen.map(|record| record.id).chain(self.live.iter().map(|record| record.id)).max();
        newest.map_or(0, |id| id.0)
    }

    /// The ids of all responses.
    pub(super) fn ids(&self) -> BTreeSet<RecordId> {
        let frozen = self.segments.iter().flat_map(|segment| segment.records()).map(|record| record.id);
        frozen.chain(self.live.iter().map(|record| record.id)).collect()
    }

    pub(super) fn holds(&self, id: RecordId) -> bool {
        self.live.iter().any(|record| record.id == id)
            || self.segments.iter().any(|segment| segment.holds(id))
    }

    /// The tokens of a response. `None` if the id does not exist.
    ///
    /// # Errors
    /// The segment that contains it cannot be read.
    pub(super) fn tokens(&self, id: RecordId) -> Result<Option<Box<[TokenId]>>, HistoryError> {
        if let Some(found) = self.live.iter().find(|found| found.id == id) {
            return Ok(Some(found.tokens.clone()));
        }
        let Some(segment) = self.segments.iter().find(|segment| segment.holds(id)) else { return Ok(None) };
        let found = segment.read_records(|record| record == id)?;
        Ok(found.into_iter().next().map(|found| found.tokens))
    }

    /// The place of a new file.
    pub(super) fn next_place(&self) -> Place {
        Place { owner: self.owner, number: self.next_number.fetch_add(1, Ordering::Relaxed) }
    }

    /// Appends a record. If the log would exceed its limit, it is frozen first.
    ///
    /// # Errors
    /// Nothing was appended.
    pub(super) fn append(&mut self, context: &Context, record: Record) -> Result<(), HistoryError> {
        if self.n_live_tokens + record.tokens.len() > context.options.live_tokens_max as usize {
            self.seal(context)?;
        }
        if let Err(failed) = self.log().append(&record, context.options.sync) {
            if failed.stops {
                context.stop();
            }
            return Err(failed.error);
        }
        self.push(record);
        Ok(())
    }

    /// Adds a response that is already on the disk, in the log or handed in.
    pub(super) fn push(&mut self, record: Record) {
        if let Some(automaton) = self.automaton.get_mut() {
            extend(automaton, &record.tokens);
        }
        self.n_live_tokens += record.tokens.len();
        self.live.push(record);
        self.n_appends += 1;
    }

    /// Moves responses that other processes have handed in to the log, oldest first, durably. A response that is
    /// already there comes from a call interrupted by a crash. If another response has its id, it gets the next free one: the
    /// same at each attempt, so that the copy of an interrupted call is found. Returns the newest id.
    ///
    /// # Errors
    /// Some of them may have been moved, each completely or not at all.
    pub(super) fn take_in(&mut self, context: &Context, handed_in: Vec<Record>) -> Result<u64, HistoryError> {
        let (mut taken, mut n_taken_tokens, mut newest) = (Vec::<Record>::new(), 0, 0);
        for record in handed_in {
            let record = match self.unless_held(&taken, record) {
                Ok(record) => record,
                Err(held) => {
                    newest = newest.max(held.0);
                    continue;
                }
            };
            newest = newest.max(record.id.0);
            let n_tokens = record.tokens.len();
            let n_held = self.n_live_tokens + n_taken_tokens;
            if n_held > 0 && n_held + n_tokens > context.options.live_tokens_max as usize {
                self.add_to_log(context, std::mem::take(&mut taken))?;
                self.seal(context)?;
                n_taken_tokens = 0;
            }
            n_taken_tokens += n_tokens;
            taken.push(record);
        }
        self.add_to_log(context, taken)?;
        Ok(newest)
    }

    /// A handed-in response under the next id that is free, here and in `taken`; the id of the same response if it is there
    /// already.
    fn unless_held(&self, taken: &[Record], mut record: Record) -> Result<Record, RecordId> {
        loop {
            let same = taken.iter().find(|taken| taken.id == record.id).map(|taken| taken.tokens.clone());
            // If a damaged segment contains the id, its tokens cannot be compared, and both responses are kept.
            let same = same.or_else(|| self.tokens(record.id).unwrap_or_default());
            if same.as_ref() == Some(&record.tokens) {
                return Err(record.id);
            }
            if same.is_none() && !self.holds(record.id) {
                return Ok(record);
            }
            record.id = RecordId(record.id.0.wrapping_add(1));
        }
    }

    /// Rewrites the log with more responses. Ids ascend in a log, and the new ids may be older than the newest one.
    fn add_to_log(&mut self, context: &Context, added: Vec<Record>) -> Result<(), HistoryError> {
        if added.is_empty() {
            return Ok(());
        }
        let mut records = [&self.live[..], &added].concat();
        sort(&mut records);
        self.rewrite_log(context, records)
    }

    /// Freezes the log into a segment and starts another log.
    ///
    /// # Errors
    /// The old log stays in use, unless the store has stopped.
    fn seal(&mut self, context: &Context) -> Result<(), HistoryError> {
        if self.live.is_empty() {
            return Ok(());
        }
        let replaces = [self.log().number()];
        let segment = put_segment(context, &self.folder, self.next_place(), &replaces, &self.live)?;
        // The segment replaces the log from here on. If the old log remains, it must not be appended to.
        let (disk, place) = (context.disk(), self.next_place());
        let log = match Log::create(disk, &self.folder, place, replaces[0], &[]) {
            Ok(log) => log,
            Err(error) => {
                let paths = [FileKind::Log.path(&self.folder, place.number), segment.path().to_owned()];
                segment.close(&mut context.cache());
                context.undo(&self.folder, &paths);
                return Err(error);
            }
        };
        self.segments.push(segment);
        self.take_log(context, log, Vec::new())?;
        // Enforces the size limit even if `maintain` is never called.
        self.shrink(context)
    }

    /// Drops segments until the tokens fit.
    pub(super) fn shrink(&mut self, context: &Context) -> Result<(), HistoryError> {
        let mut n_tokens = self.n_live_tokens() as u64;
        n_tokens += self.segments().iter().map(|segment| u64::from(segment.n_tokens())).sum::<u64>();
        let mut by_use: Vec<&Segment> = self.segments().iter().collect();
        // Among equally unused segments, the oldest is dropped first: the sort is stable.
        by_use.sort_by_key(|segment| segment.used_at());
        let mut dropped = Vec::new();
        for segment in by_use {
            if n_tokens > context.options.tokens_max {
                n_tokens -= u64::from(segment.n_tokens());
                dropped.push(segment.number());
            }
        }
        if dropped.is_empty() { Ok(()) } else { self.replace_segments(context, &dropped, None) }
    }

    /// Replaces the log and its records; removes the old file.
    fn take_log(&mut self, context: &Context, log: Log, live: Vec<Record>) -> Result<(), HistoryError> {
        let old = self.log().path().to_owned();
        (self.log, self.live) = (Some(log), live);
        self.n_live_tokens = self.live.iter().map(|record| record.tokens.len()).sum();
        self.automaton = OnceLock::new();
        self.n_moves += 1;
        self.remove_replaced(context, &[old])
    }

    /// Removes replaced files. As long as one exists, its replacement must exist too. So after an error the store
    /// stops, and the next open removes them.
    fn remove_replaced(&self, context: &Context, paths: &[PathBuf]) -> Result<(), HistoryError> {
        let disk = context.disk();
        let removed = paths.iter().try_for_each(|path| remove(disk, path));
        let synced =
            removed.and_then(|()| disk.sync_dir(&self.folder).map_err(io_error("sync", &self.folder)));
        synced.inspect_err(|_| context.stop())
    }

    /// Replaces segments by one segment or by nothing, and removes their files.
    ///
    /// # Errors
    /// The change was made, but a file could not be removed. The store has stopped.
    pub(super) fn replace_segments(
        &mut self,
        context: &Context,
        numbers: &[u64],
        by: Option<Segment>,
    ) -> Result<(), HistoryError> {
        self.n_moves += 1;
        let at = self.segments.iter().position(|segment| numbers.contains(&segment.number()));
        let is_old = |segment: &mut Segment| numbers.contains(&segment.number());
        let old: Vec<Segment> = self.segments.extract_if(.., is_old).collect();
        if let (Some(at), Some(by)) = (at, by) {
            self.segments.insert(at, by);
        }
        let paths: Vec<PathBuf> = old.iter().map(|segment| segment.path().to_owned()).collect();
        old.into_iter().for_each(|segment| segment.close(&mut context.cache()));
        self.remove_replaced(context, &paths)
    }

    /// Removes the records of the log that are not to be kept.
    pub(super) fn filter_log(
        &mut self,
        context: &Context,
        keep: impl Fn(&Record) -> bool,
    ) -> Result<bool, HistoryError> {
        let kept: Vec<Record> = self.live.iter().filter(|record| keep(record)).cloned().collect();
        if kept.len() == self.live.len() {
            return Ok(false);
        }
        self.rewrite_log(context, kept)?;
        Ok(true)
    }

    fn rewrite_log(&mut self, context: &Context, records: Vec<Record>) -> Result<(), HistoryError> {
        let (disk, place) = (context.disk(), self.next_place());
        let replaces = self.log().number();
        let log = Log::create(disk, &self.folder, place, replaces, &records).inspect_err(|_| {
            context.undo(&self.folder, &[FileKind::Log.path(&self.folder, place.number)]);
        })?;
        self.take_log(context, log, records)
    }

    /// The number of responses with these ids.
    pub(super) fn n_held(&self, ids: &BTreeSet<RecordId>) -> usize {
        let frozen = self.segments.iter().map(|segment| n_held(segment, ids)).sum::<usize>();
        frozen + self.live.iter().filter(|record| ids.contains(&record.id)).count()
    }

    /// Removes records from their files, each of which is written again once. Returns their number. If a damaged segment
    /// contains one, the readable rest of the segment is rewritten. Files that were set aside may contain them too, so they
    /// are removed first.
    pub(super) fn forget(
        &mut self,
        context: &Context,
        ids: &BTreeSet<RecordId>,
    ) -> Result<usize, HistoryError> {
        let n_removed = self.n_held(ids);
        if n_removed == 0 {
            return Ok(0);
        }
        self.remove_aside(context)?;
        self.filter_log(context, |record| !ids.contains(&record.id))?;
        let holding = self.segments.iter().filter(|segment| n_held(segment, ids) > 0);
        for number in holding.map(Segment::number).collect::<Vec<_>>() {
            let found = self.segments.iter().find(|segment| segment.number() == number);
            let Some(segment) = found else { continue };
            let kept = match segment.read_records(|record| !ids.contains(&record)) {
                Err(HistoryError::Damaged { .. }) => {
                    segment.salvage().0.into_iter().filter(|record| !ids.contains(&record.id)).collect()
                }
                kept => kept?,
            };
            let by = self.put_in_place_of(context, number, &kept)?;
            self.replace_segments(context, &[number], by)?;
        }
        Ok(n_removed)
    }

    /// Rewrites a damaged segment without its damaged parts, and sets its file aside. `None` if it has no damage.
    pub(super) fn renew(&mut self, context: &Context, number: u64) -> Result<Option<LeftOut>, HistoryError> {
        let Some(segment) = self.segments.iter().find(|segment| segment.number() == number) else {
            return Ok(None);
        };
        let Some(HistoryError::Damaged { path, offset, what }) = segment.fault() else { return Ok(None) };
        let (records, bytes) = segment.salvage();
        let used_at = segment.used_at();
        let by = self.put_in_place_of(context, number, &records)?;
        if let Some(by) = &by {
            by.set_used_at(context.disk(), used_at);
        }
        let aside = set_aside(context.disk(), &path).inspect_err(|_| context.stop())?;
        self.replace_segments(context, &[number], by)?;
        Ok(Some(LeftOut { aside: Some(aside), ..LeftOut::damaged(&path, offset, bytes, what) }))
    }

    fn put_in_place_of(
        &self,
        context: &Context,
        number: u64,
        records: &[Record],
    ) -> Result<Option<Segment>, HistoryError> {
        if records.is_empty() {
            return Ok(None);
        }
        put_segment(context, &self.folder, self.next_place(), &[number], records).map(Some)
    }

    /// Removes the files that were set aside. Returns their paths.
    pub(super) fn remove_aside(&self, context: &Context) -> Result<Vec<PathBuf>, HistoryError> {
        let disk = context.disk();
        let names = disk.list(&self.folder).map_err(io_error("read", &self.folder))?;
        let paths: Vec<PathBuf> =
            names.iter().filter(|name| name.starts_with(ASIDE)).map(|name| self.folder.join(name)).collect();
        paths.iter().try_for_each(|path| remove(disk, path))?;
        if !paths.is_empty() {
            disk.sync_dir(&self.folder).map_err(io_error("sync", &self.folder))?;
        }
        Ok(paths)
    }

    /// Drops the contents and frees the pages in the cache.
    pub(super) fn close(&mut self, cache: &mut PageCache) {
        self.n_moves += 1;
        let segments = self.segments.drain(..).chain(self.pulled.drain(..));
        segments.for_each(|segment| segment.close(cache));
        self.live = Vec::new();
        self.automaton = OnceLock::new();
        self.n_live_tokens = 0;
    }
}

/// Writes a segment and opens it. After an error the segment does not exist, unless the store has stopped.
pub(super) fn put_segment(
    context: &Context,
    folder: &Path,
    place: Place,
    replaces: &[u64],
    records: &[Record],
) -> Result<Segment, HistoryError> {
    let written = write_segment(context.disk(), folder, place, replaces, records);
    written.and_then(|_| open_segment(context, folder, place)).inspect_err(|_| {
        context.undo(folder, &[FileKind::Segment.path(folder, place.number)]);
    })
}

/// The number of a segment's responses with these ids.
fn n_held(segment: &Segment, ids: &BTreeSet<RecordId>) -> usize {
    segment.records().iter().filter(|record| ids.contains(&record.id)).count()
}

fn extend(automaton: &mut SuffixAutomaton, tokens: &[TokenId]) {
    automaton.start_sequence();
    for token in tokens {
        automaton.extend(token.0).expect("a log is shorter than any automaton's bound");
    }
}
