//! A namespace: a log that grows and segments that do not, and the changes of files that keep them whole.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use refrain::TokenId;
use refrain::internals::sam::SuffixAutomaton;

use super::HistoryError;
use super::cache::PageCache;
use super::disk::{ASIDE, remove, set_aside};
use super::error::io_error;
use super::files::{Found, open_segment, settle, sort};
use super::key::{FileKind, RecordId};
use super::log::{Log, Place, Record};
use super::report::{LeftOut, LeftOutReason};
use super::segment::{Segment, write_segment};
use super::store::Context;
use super::upkeep::shrink;

#[derive(Debug)]
pub(super) struct Namespace {
    folder: PathBuf,
    owner: u64,
    /// `None` if another process writes.
    log: Option<Log>,
    /// The records of the log. If another process writes: also those handed in and not taken in yet.
    live: Vec<Record>,
    n_live_tokens: usize,
    /// Bytes of logs that are only read.
    read_bytes: u64,
    /// Of what the log holds; made when the namespace first drafts.
    automaton: OnceLock<SuffixAutomaton>,
    /// Oldest first.
    segments: Vec<Segment>,
    next_number: AtomicU64,
    /// Counts appends: a reader's match in the automaton may be longer at another number.
    pub(super) n_appends: u64,
    /// Counts what moves or drops responses: cursors and matches of another number are void.
    pub(super) n_moves: u64,
}

/// Attempts of a reader to find the same files before and after it has opened them.
const READ_ATTEMPTS: usize = 32;

impl Namespace {
    /// Opens the namespace of a folder for writing: removes what a crash has left over and sets damaged files aside, after the
    /// responses of damaged logs that can be read are in a new one. Unused parts are added to `left_out`.
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

    /// Opens the namespace of a folder for reading, with the responses that were handed in and not taken in yet. Changes no
    /// file. A folder that is not there is empty. A folder that cannot be read is left out, and the namespace holds the hand-ins only.
    ///
    /// The writer may replace files meanwhile. So the folder is listed again afterwards, and read again where another file is
    /// in it. Each file is whole, so that also after the last attempt only responses can be missing, until the next time.
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
        // The writer may be in the middle of an append, so an incomplete record is not reported.
        found.left_out.retain(|left_out| left_out.reason != LeftOutReason::Torn);
        left_out.append(&mut found.left_out);
        let read_bytes = found.logs.iter().map(|(_, scan)| scan.end).sum();
        let mut live = handed_in;
        live.retain(|record| found.segments.iter().all(|segment| !segment.holds(record.id)));
        live.extend(found.logs.into_iter().flat_map(|(_, scan)| scan.records));
        sort(&mut live);
        Ok(Namespace { read_bytes, ..Self::new(folder, owner, live, found.segments) })
    }

    /// A namespace that has no file yet, where another process writes.
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

    /// The log of a namespace that this process writes.
    pub(super) fn log(&mut self) -> &mut Log {
        self.log.as_mut().expect("only the writer comes here")
    }

    pub(super) fn bytes(&self) -> u64 {
        let log_bytes = self.log.as_ref().map_or(self.read_bytes, Log::bytes);
        log_bytes + self.segments.iter().map(Segment::bytes).sum::<u64>()
    }

    /// The automaton over what the log holds. The first call builds it: about 0.2 µs per token.
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
            + self.segments.iter().map(Segment::memory_usage).sum::<usize>()
    }

    /// The id of the newest response.
    pub(super) fn newest_id(&self) -> u64 {
        let frozen = self.segments.iter().filter_map(|segment| segment.records().last());
        let newest = frozen.map(|record| record.id).chain(self.live.iter().map(|record| record.id)).max();
        newest.map_or(0, |id| id.0)
    }

    pub(super) fn holds(&self, id: RecordId) -> bool {
        self.live.iter().any(|record| record.id == id)
            || self.segments.iter().any(|segment| segment.holds(id))
    }

    /// The tokens of a response; `None` where there is none of that id.
    ///
    /// # Errors
    /// The segment that holds it cannot be read.
    pub(super) fn tokens(&self, id: RecordId) -> Result<Option<Box<[TokenId]>>, HistoryError> {
        if let Some(found) = self.live.iter().find(|found| found.id == id) {
            return Ok(Some(found.tokens.clone()));
        }
        let Some(segment) = self.segments.iter().find(|segment| segment.holds(id)) else { return Ok(None) };
        let found = segment.read_records(|record| record == id)?;
        Ok(found.into_iter().next().map(|found| found.tokens))
    }

    /// Where a new file goes.
    pub(super) fn next_place(&self) -> Place {
        Place { owner: self.owner, number: self.next_number.fetch_add(1, Ordering::Relaxed) }
    }

    /// Appends a record; the log is frozen before that where it would outgrow its bound.
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

    /// Adds a response that is on the disk: in the log, or handed in.
    pub(super) fn push(&mut self, record: Record) {
        if let Some(automaton) = self.automaton.get_mut() {
            extend(automaton, &record.tokens);
        }
        self.n_live_tokens += record.tokens.len();
        self.live.push(record);
        self.n_appends += 1;
    }

    /// Takes in responses that other processes have handed in, oldest first, durably. One that is in the namespace already was
    /// taken in by a call that a crash interrupted. If another response has its id, it gets a new one from `next_id`.
    ///
    /// # Errors
    /// Some of them may be taken in, each wholly or not at all.
    pub(super) fn take_in(
        &mut self,
        context: &Context,
        handed_in: Vec<Record>,
        next_id: impl Fn() -> RecordId,
    ) -> Result<(), HistoryError> {
        let (mut taken, mut n_taken_tokens) = (Vec::<Record>::new(), 0);
        for mut record in handed_in {
            let same = taken.iter().find(|taken| taken.id == record.id).map(|taken| taken.tokens.clone());
            // If a damaged segment has the id, its tokens cannot be compared, and both responses are kept.
            let same = same.or_else(|| self.tokens(record.id).unwrap_or_default());
            if same.as_ref() == Some(&record.tokens) {
                continue;
            }
            if same.is_some() || self.holds(record.id) {
                record.id = next_id();
            }
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
        self.add_to_log(context, taken)
    }

    /// Writes the log anew with more responses: ids rise in a log, and theirs may be older than its newest.
    fn add_to_log(&mut self, context: &Context, added: Vec<Record>) -> Result<(), HistoryError> {
        if added.is_empty() {
            return Ok(());
        }
        let mut records = [&self.live[..], &added].concat();
        sort(&mut records);
        self.rewrite_log(context, records)
    }

    /// Freezes the log into a segment and starts another one.
    ///
    /// # Errors
    /// The log goes on as it was, unless the store has stopped.
    fn seal(&mut self, context: &Context) -> Result<(), HistoryError> {
        if self.live.is_empty() {
            return Ok(());
        }
        let replaces = [self.log().number()];
        let segment = put_segment(context, &self.folder, self.next_place(), &replaces, &self.live)?;
        // From here on the log counts for nothing, so it must not be appended to where it stays.
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
        // Also where nobody ever maintains the store, it has a bound.
        shrink(context, self)
    }

    /// Puts another log in place of this one, with what it holds; the old file goes.
    fn take_log(&mut self, context: &Context, log: Log, live: Vec<Record>) -> Result<(), HistoryError> {
        let old = self.log().path().to_owned();
        (self.log, self.live) = (Some(log), live);
        self.n_live_tokens = self.live.iter().map(|record| record.tokens.len()).sum();
        self.automaton = OnceLock::new();
        self.n_moves += 1;
        self.remove_replaced(context, &[old])
    }

    /// Removes files that others stand for. While they are there, what stands for them must be too: so after an error nothing
    /// is changed until they are removed by a reopen.
    fn remove_replaced(&self, context: &Context, paths: &[PathBuf]) -> Result<(), HistoryError> {
        let disk = context.disk();
        let removed = paths.iter().try_for_each(|path| remove(disk, path));
        let synced =
            removed.and_then(|()| disk.sync_dir(&self.folder).map_err(io_error("sync", &self.folder)));
        synced.inspect_err(|_| context.stop())
    }

    /// Puts a segment in place of others, or nothing; their files go.
    ///
    /// # Errors
    /// The change is made, but a file could not be removed; the store has stopped.
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

    /// Removes a record from the file that holds it; `false` where none does. A damaged segment that holds it is written anew
    /// with what can be read, and files that were set aside, which may hold it too, are removed first.
    pub(super) fn forget(&mut self, context: &Context, id: RecordId) -> Result<bool, HistoryError> {
        if !self.holds(id) {
            return Ok(false);
        }
        self.remove_aside(context)?;
        if self.filter_log(context, |record| record.id != id)? {
            return Ok(true);
        }
        let Some(segment) = self.segments.iter().find(|segment| segment.holds(id)) else { return Ok(false) };
        let number = segment.number();
        let kept = match segment.read_records(|record| record != id) {
            Err(HistoryError::Damaged { .. }) => {
                segment.salvage().0.into_iter().filter(|record| record.id != id).collect()
            }
            kept => kept?,
        };
        let by = self.put_in_place_of(context, number, &kept)?;
        self.replace_segments(context, &[number], by)?;
        Ok(true)
    }

    /// Writes a damaged segment anew without what is damaged, and sets its file aside. `false` where it holds none.
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

    /// Removes the files that were set aside, and returns them.
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

    /// Gives the pages in the cache back.
    pub(super) fn close(&mut self, cache: &mut PageCache) {
        self.n_moves += 1;
        self.segments.drain(..).for_each(|segment| segment.close(cache));
        self.live = Vec::new();
        self.automaton = OnceLock::new();
        self.n_live_tokens = 0;
    }
}

/// Writes a segment and opens it. After an error there is none, unless the store has stopped.
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

fn extend(automaton: &mut SuffixAutomaton, tokens: &[TokenId]) {
    automaton.start_sequence();
    for token in tokens {
        automaton.extend(token.0).expect("a log is shorter than any automaton's bound");
    }
}
