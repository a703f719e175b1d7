//! A namespace: a log that grows and segments that do not, and the changes of files that keep them whole.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use refrain::TokenId;
use refrain::internals::sam::SuffixAutomaton;

use super::HistoryError;
use super::cache::PageCache;
use super::disk::{Disk, PARTIAL};
use super::error::io_error;
use super::key::{FileKind, RecordId};
use super::log::{Log, Place, Record};
use super::report::Recovered;
use super::segment::{Segment, write_segment};
use super::store::Context;
use super::upkeep::shrink;

#[derive(Debug)]
pub(super) struct Namespace {
    folder: PathBuf,
    owner: u64,
    log: Log,
    /// What the log holds.
    live: Vec<Record>,
    n_live_tokens: usize,
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

impl Namespace {
    /// Opens the namespace of a folder, and removes what a crash has left over. What was cut off or, with
    /// [`repair`](super::HistoryOptions::repair), dropped goes to `recovered`.
    pub(super) fn open(
        context: &Context,
        folder: PathBuf,
        owner: u64,
        recovered: &mut Vec<Recovered>,
    ) -> Result<Self, HistoryError> {
        let disk = context.disk();
        let repair = context.options.repair;
        let (mut logs, mut segments, mut replaced) = (Vec::new(), Vec::new(), BTreeSet::new());
        let (mut newest, mut paths, mut is_whole) = (0, Vec::new(), true);
        for name in disk.list(&folder).map_err(io_error("read", &folder))? {
            if name.ends_with(PARTIAL) {
                remove(disk, &folder.join(&name))?;
            }
            let Some((kind, number)) = FileKind::parse(&name) else { continue };
            newest = newest.max(number);
            paths.push((number, kind.path(&folder, number)));
            let place = Place { owner, number };
            match kind {
                FileKind::Log => {
                    let (log, scan) = Log::open(disk, &folder, place, repair)?;
                    replaced.insert(scan.replaces);
                    is_whole &= scan.damaged.is_empty();
                    recovered.extend(Recovered::of_scan(log.path(), &scan));
                    logs.push((log, scan.records));
                }
                FileKind::Segment => match open_segment(context, &folder, place) {
                    Ok(segment) => {
                        replaced.extend(segment.replaces());
                        segments.push(segment);
                    }
                    Err(HistoryError::Damaged { path, offset, .. }) if repair => {
                        recovered.push(Recovered::remove_segment(disk, path, offset)?);
                    }
                    Err(error) => return Err(error),
                },
            }
        }
        logs.retain(|(log, _)| !replaced.contains(&log.number()));
        let (stale, mut segments): (Vec<_>, Vec<_>) =
            segments.into_iter().partition(|segment: &Segment| replaced.contains(&segment.number()));
        segments.sort_by_key(|segment| segment.records().first().map(|record| record.id));
        stale.into_iter().for_each(|segment| segment.close(&mut context.cache()));
        for (_, path) in paths.iter().filter(|(number, _)| replaced.contains(number)) {
            remove(disk, path)?;
        }
        // Above all that are there, and so above what they replace.
        let next_number = newest + 1;
        let (log, live) = settle_logs(disk, &folder, Place { owner, number: next_number }, logs, is_whole)?;
        Ok(Namespace {
            n_live_tokens: live.iter().map(|record| record.tokens.len()).sum(),
            folder,
            owner,
            log,
            live,
            automaton: OnceLock::new(),
            segments,
            next_number: AtomicU64::new(next_number + 1),
            n_appends: 0,
            n_moves: 0,
        })
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

    pub(super) fn log(&mut self) -> &mut Log {
        &mut self.log
    }

    pub(super) fn bytes(&self) -> u64 {
        self.log.bytes() + self.segments.iter().map(Segment::bytes).sum::<u64>()
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
        if let Err(failed) = self.log.append(&record, context.options.sync) {
            if failed.stops {
                context.stop();
            }
            return Err(failed.error);
        }
        if let Some(automaton) = self.automaton.get_mut() {
            extend(automaton, &record.tokens);
        }
        self.n_live_tokens += record.tokens.len();
        self.live.push(record);
        self.n_appends += 1;
        Ok(())
    }

    /// Freezes the log into a segment and starts another one.
    ///
    /// # Errors
    /// The log goes on as it was, unless the store has stopped.
    fn seal(&mut self, context: &Context) -> Result<(), HistoryError> {
        if self.live.is_empty() {
            return Ok(());
        }
        let replaces = [self.log.number()];
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
        let old = self.log.path().to_owned();
        (self.log, self.live) = (log, live);
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
        let (disk, place) = (context.disk(), self.next_place());
        let log = Log::create(disk, &self.folder, place, self.log.number(), &kept).inspect_err(|_| {
            context.undo(&self.folder, &[FileKind::Log.path(&self.folder, place.number)]);
        })?;
        self.take_log(context, log, kept)?;
        Ok(true)
    }

    /// Removes a record from the file that holds it; `false` where none does.
    pub(super) fn forget(&mut self, context: &Context, id: RecordId) -> Result<bool, HistoryError> {
        if self.filter_log(context, |record| record.id != id)? {
            return Ok(true);
        }
        let holds =
            |segment: &&Segment| segment.records().binary_search_by_key(&id, |record| record.id).is_ok();
        let Some(segment) = self.segments.iter().find(holds) else { return Ok(false) };
        let number = segment.number();
        let kept = segment.read_records(|record| record != id)?;
        let by = match kept.is_empty() {
            true => None,
            false => Some(put_segment(context, &self.folder, self.next_place(), &[number], &kept)?),
        };
        self.replace_segments(context, &[number], by)?;
        Ok(true)
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

fn open_segment(context: &Context, folder: &Path, place: Place) -> Result<Segment, HistoryError> {
    Segment::open(context.disk(), folder, place, &mut context.cache())
}

/// Removes a file, if it is there.
fn remove(disk: &dyn Disk, path: &Path) -> Result<(), HistoryError> {
    match disk.remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(io_error("remove", path)(error)),
        _ => Ok(()),
    }
}

/// The one log of a namespace. There is none where a crash came between a segment and the log after it, and there are
/// several where a damaged one does not say what it replaces: their records are put together. One that was damaged is written
/// anew.
fn settle_logs(
    disk: &dyn Disk,
    folder: &Path,
    place: Place,
    mut logs: Vec<(Log, Vec<Record>)>,
    is_whole: bool,
) -> Result<(Log, Vec<Record>), HistoryError> {
    if logs.len() == 1 && is_whole {
        return Ok(logs.remove(0));
    }
    let mut records: Vec<Record> = logs.iter_mut().flat_map(|(_, records)| std::mem::take(records)).collect();
    records.sort_by_key(|record| record.id);
    records.dedup_by_key(|record| record.id);
    let log = Log::create(disk, folder, place, 0, &records)?;
    logs.iter().try_for_each(|(old, _)| remove(disk, old.path()))?;
    disk.sync_dir(folder).map_err(io_error("sync", folder))?;
    Ok((log, records))
}
