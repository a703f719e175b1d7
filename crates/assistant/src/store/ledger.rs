//! The ledger: what each kept answer was made from, the newest summary of each subject, and a deletion that has begun.
//!
//! A line per entry: XXH3 of the JSON in 16 hexadecimal digits, a space, the JSON. Lines are appended durably; a deletion replaces
//! the file in one step. The first line names the version. An incomplete last line is the result of a crash and is cut off. Other
//! lines with a wrong checksum are left out: the answer of such a line then has no entry, and the next deletion deletes it.
//!
//! With a key, the second line has a random id of the file and what tells a wrong key; the JSON of the others is a part of the
//! index's encryption, in hexadecimal digits. Its place is the id and the number of the line, so no line can be moved or come from an
//! earlier file.
//!
//! The file is bounded. Above [`Bounds::bytes_max`] it is written again with the newest answers and summaries; what it does not name
//! any more is deleted from history and prefixes first, so nothing of unknown origin stays.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, BufRead, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};

use refrain_files::open_regular;
use refrain_files::replace::{Manner, replace_bytes};
use refrain_index::KeyProblem;
use refrain_index::internals::{PART_BYTES, Seal, place};
use xxhash_rust::xxh3::xxh3_64;

use super::entry::{Entry, Forgetting, Made, Notes, StoredPart, StoredSummary, is_named};
use super::error::{StoreError, io_error};
use super::names::{note_hash, places};

const MAGIC: &str = "refrain-ledger ";
const VERSION: u32 = 2;
/// The version of an encrypted ledger, which programs without encryption refuse.
const SEALED: u32 = 3;

/// Maximum length of a line. The longest is a deletion with the names of 100,000 links.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// Maximum length of a kept summary, in bytes.
const SUMMARY_BYTES_MAX: usize = 64 << 10;

/// Maximum number of kept parts of summaries. The oldest go first.
const PARTS_MAX: usize = 1024;

/// Number of places at which a note forgets its earlier ones: each time that an editor replaces the file adds one.
const PLACES_MAX: usize = 256;

/// Lines of the file that may be superseded before it is written again.
const STALE_MAX: usize = 1024;

/// The lengths of the file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Above it, the file is written again. Above twice this length, nothing is appended, and nothing is read but deletions.
    pub(crate) bytes_max: u64,
    /// Answers, summaries and their notes then have at most this length, and the whole file at most the mean of both.
    pub(crate) kept_bytes_max: u64,
}

impl Default for Bounds {
    /// An answer from four notes takes about 220 bytes, a note about 200: 16 MiB name at least 16,000 answers.
    fn default() -> Self {
        Self { bytes_max: 32 << 20, kept_bytes_max: 16 << 20 }
    }
}

impl Bounds {
    /// Encrypted lines are twice as long.
    pub(super) fn of(seal: &Seal) -> Self {
        let Self { bytes_max, kept_bytes_max } = Self::default();
        let times = if seal.encrypts() { 2 } else { 1 };
        Self { bytes_max: times * bytes_max, kept_bytes_max: times * kept_bytes_max }
    }
}

#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    seal: Seal,
    /// The random id of an encrypted file.
    id: u64,
    bounds: Bounds,
    /// `None` if the file could not be opened after it was replaced.
    file: Option<File>,
    len: u64,
    /// Whether something may follow the last whole line.
    is_torn: bool,
    n_lines: usize,
    /// By model and record.
    answers: BTreeMap<(String, u64), Made>,
    /// By namespace and subject.
    summaries: BTreeMap<(String, u64), StoredSummary>,
    /// By namespace and subject.
    parts: BTreeMap<(String, u64), StoredPart>,
    notes: Notes,
    namespaces: BTreeSet<String>,
    forgetting: Vec<Forgetting>,
}

/// What was found in the file of a ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    Whole,
    /// Lines were left out, or all are gone. Namespaces and places of notes may be among them, so it is unknown how to find all prefixes.
    Damaged,
    /// An older version, of which nothing was read.
    Older,
}

/// What a smaller ledger does not name any more.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Compaction {
    /// Answers that stay, by model and record.
    kept: BTreeSet<(String, u64)>,
    summaries: BTreeSet<(String, u64)>,
    parts: BTreeSet<(String, u64)>,
    /// Answers of the histories that are to be deleted, by model.
    pub(crate) dropped: BTreeMap<String, Vec<u64>>,
    /// Whether all prefixes are to be deleted, because the ledger drops namespaces and notes that only prefixes have.
    pub(crate) clears_prefixes: bool,
}

impl Ledger {
    /// Reads the ledger, or creates an empty one.
    ///
    /// With `is_expected`, the store has files that only a ledger with lines can have led to: one without a first line is then
    /// damaged.
    ///
    /// # Errors
    /// [`StoreError::Key`], before anything is changed.
    pub(super) fn open(
        path: &Path,
        seal: Seal,
        bounds: Bounds,
        is_expected: bool,
    ) -> Result<(Self, Found), StoreError> {
        let mut ledger = Self {
            path: path.to_owned(),
            seal,
            id: 0,
            bounds,
            file: None,
            len: 0,
            is_torn: false,
            n_lines: 0,
            answers: BTreeMap::new(),
            summaries: BTreeMap::new(),
            parts: BTreeMap::new(),
            notes: Notes::new(),
            namespaces: BTreeSet::new(),
            forgetting: Vec::new(),
        };
        let found = match open_regular(path) {
            Ok(file) => ledger.read(file)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Whole,
            Err(error) => return Err(io_error("read", path)(error)),
        };
        let found = match found {
            Found::Whole if ledger.len == 0 && is_expected => Found::Damaged,
            found => found,
        };
        if ledger.len == 0 && found == Found::Whole {
            ledger.rewrite()?;
        }
        if ledger.file.is_none() && path.symlink_metadata().is_ok() {
            ledger.file = Some(open_file(path)?);
        }
        if found != Found::Older && fs::metadata(path).is_ok_and(|metadata| metadata.len() > ledger.len) {
            ledger.cut()?;
        }
        Ok((ledger, found))
    }

    #[cfg(test)]
    pub(super) fn set_bounds(&mut self, bounds: Bounds) {
        self.bounds = bounds;
    }

    fn read(&mut self, file: File) -> Result<Found, StoreError> {
        let mut reader = BufReader::new(file);
        let (mut line, mut is_damaged) = (Vec::new(), false);
        loop {
            line.clear();
            let failed = io_error("read", &self.path);
            let mut n_read =
                reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(failed)? as u64;
            let mut is_whole = line.pop_if(|byte| *byte == b'\n').is_some();
            let mut entry = if is_whole { self.decode(&line) } else { None };
            while !is_whole && n_read >= LINE_BYTES_MAX {
                // The rest of a line that is longer than any valid one.
                line.clear();
                let failed = io_error("read", &self.path);
                let more =
                    reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(failed)?;
                if more == 0 {
                    break;
                }
                n_read += more as u64;
                is_whole = line.last() == Some(&b'\n');
            }
            if !is_whole {
                if self.n_lines == 1 && self.seal.encrypts() {
                    return Err(self.key(KeyProblem::Wrong));
                }
                return Ok(if is_damaged { Found::Damaged } else { Found::Whole });
            }
            if self.len == 0 {
                let given = std::str::from_utf8(&line).ok().and_then(|line| line.strip_prefix(MAGIC));
                match given.and_then(|given| given.parse::<u32>().ok()) {
                    Some(SEALED) if !self.seal.encrypts() => return Err(self.key(KeyProblem::Missing)),
                    Some(given) if given < SEALED && self.seal.encrypts() => {
                        return Err(self.key(KeyProblem::NotEncrypted));
                    }
                    Some(VERSION | SEALED) => {}
                    Some(given) if given < VERSION => return Ok(Found::Older),
                    Some(_) => return Err(StoreError::Version { path: self.path.clone() }),
                    // Whether it is of this key cannot be told.
                    None if self.seal.encrypts() => return Err(self.key(KeyProblem::Wrong)),
                    None => is_damaged = true,
                }
            } else if self.n_lines == 1 && self.seal.encrypts() {
                self.id = self.id_of(&line).ok_or_else(|| self.key(KeyProblem::Wrong))?;
            } else {
                let is_too_much = self.len > 2 * self.bounds.bytes_max;
                entry = entry.filter(|entry| !is_too_much || matches!(entry, Entry::Forget { .. }));
                is_damaged |= entry.is_none();
                if let Some(entry) = entry {
                    self.take(entry);
                }
            }
            self.len += n_read;
            self.n_lines += 1;
        }
    }

    /// Adds entries durably. After an error the ledger does not have them.
    pub(crate) fn append(&mut self, entries: Vec<Entry>) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        let lines = (self.n_lines..).zip(&entries).map(|(n_line, entry)| self.line(n_line, entry));
        let lines = lines.collect::<io::Result<Vec<Vec<u8>>>>().map_err(io_error("encrypt", &self.path))?;
        if let Some(long) = lines.iter().find(|line| line.len() as u64 > LINE_BYTES_MAX) {
            let (path, bytes) = (self.path.clone(), long.len() as u64);
            return Err(StoreError::TooLarge { path, bytes, max: LINE_BYTES_MAX });
        }
        let lines = lines.concat();
        let is_intent = entries.iter().any(|entry| matches!(entry, Entry::Forget { .. }));
        if !is_intent && self.len + lines.len() as u64 > 2 * self.bounds.bytes_max {
            let max = 2 * self.bounds.bytes_max;
            return Err(StoreError::TooLarge { path: self.path.clone(), bytes: self.len, max });
        }
        if self.is_torn {
            self.cut()?;
        }
        let file = match &mut self.file {
            Some(file) => file,
            closed => closed.insert(open_file(&self.path)?),
        };
        if let Err(error) = file.write_all(&lines).and_then(|()| file.sync_data()) {
            // The next line begins at the end of the last whole one; what is cut off was not acknowledged. If this fails, the
            // next call tries again first.
            self.is_torn = true;
            let _ = self.cut();
            return Err(io_error("write", &self.path)(error));
        }
        self.len += lines.len() as u64;
        self.n_lines += entries.len();
        entries.into_iter().for_each(|entry| self.take(entry));
        Ok(())
    }

    /// Entries for the notes that the ledger does not have yet, to be appended with what is made from them.
    pub(crate) fn new_notes<'a>(&self, paths: impl IntoIterator<Item = &'a PathBuf>) -> Vec<Entry> {
        let paths: BTreeSet<&PathBuf> = paths.into_iter().collect();
        let named = paths.into_iter().map(|path| (note_hash(path), places(path)));
        let entries = named.filter_map(|(note, mut places)| {
            // A note may get more places: its file was replaced, or it was moved behind a link.
            match self.notes.get(&note) {
                Some(known) if places.iter().all(|place| known.contains(place)) => return None,
                Some(known) if known.len() < PLACES_MAX => {
                    places.extend(known);
                    places.sort_unstable();
                    places.dedup();
                }
                _ => {}
            }
            Some(Entry::Note { note, places })
        });
        entries.collect()
    }

    /// The entry of a namespace that the ledger does not have yet.
    pub(crate) fn new_namespace(&self, name: &str) -> Option<Entry> {
        (!self.namespaces.contains(name)).then(|| Entry::Namespace { name: name.to_owned() })
    }

    /// The summary of a subject.
    pub(crate) fn summary(&self, namespace: &str, subject: u64) -> Option<&StoredSummary> {
        self.summaries.get(&(namespace.to_owned(), subject))
    }

    /// The summary of a part with this hash.
    pub(crate) fn part(&self, namespace: &str, hash: u128) -> Option<&StoredPart> {
        let part = self.parts.get(&(namespace.to_owned(), hash as u64));
        part.filter(|part| part.check == (hash >> 64) as u64)
    }

    pub(super) fn n_summaries(&self) -> usize {
        self.summaries.len()
    }

    /// When the oldest summary was made, in µs since 1970.
    pub(super) fn oldest_summary(&self) -> Option<u64> {
        self.summaries.values().map(|summary| summary.at).min()
    }

    /// The number of answers and summaries that were made from each note, by its hash.
    pub(super) fn n_made_from(&self) -> BTreeMap<u64, usize> {
        let made = self.answers.values().chain(self.all_summaries().map(|summary| &summary.made));
        let mut n = BTreeMap::new();
        made.flat_map(|made| &made.notes).for_each(|note| *n.entry(*note).or_default() += 1);
        n
    }

    /// Summaries, and those of parts.
    fn all_summaries(&self) -> impl Iterator<Item = &StoredSummary> {
        self.summaries.values().chain(self.parts.values().map(|part| &part.summary))
    }

    /// The namespaces that have prefixes.
    pub(crate) fn namespaces(&self) -> &BTreeSet<String> {
        &self.namespaces
    }

    /// The notes that names find, and the names themselves.
    pub(crate) fn notes_named(&self, names: &[u64]) -> BTreeSet<u64> {
        let found = self.notes.iter().filter(|(note, places)| is_named(**note, Some(places), names));
        found.map(|(note, _)| *note).chain(names.iter().copied()).collect()
    }

    /// Deletions that have begun.
    pub(crate) fn forgetting(&self) -> &[Forgetting] {
        &self.forgetting
    }

    /// Whether a deletion takes an answer of the history.
    pub(crate) fn is_forgotten(&self, what: &Forgetting, model: &str, record: u64) -> bool {
        match self.answers.get(&(model.to_owned(), record)) {
            Some(made) => what.takes(record, made, &self.notes),
            None => what.takes_unknown(record),
        }
    }

    /// Writes the file again without the answers and summaries that a deletion takes, and with the rest of the deletion in its
    /// place. Returns the number of removed summaries.
    pub(crate) fn finish_forgetting(
        &mut self,
        what: &Forgetting,
        rest: Option<Forgetting>,
    ) -> Result<usize, StoreError> {
        let n_before = self.summaries.len();
        let notes = &self.notes;
        self.answers.retain(|&(_, record), made| !what.takes(record, made, notes));
        self.summaries.retain(|_, summary| !what.takes(summary.at, &summary.made, notes));
        self.parts.retain(|_, part| !what.takes(part.summary.at, &part.summary.made, notes));
        match what {
            Forgetting::Notes { names, .. } => {
                self.notes.retain(|&note, places| !is_named(note, Some(places), names));
            }
            Forgetting::Everything { .. } => {
                self.namespaces.clear();
                self.notes.clear();
            }
            Forgetting::Conversation(_) | Forgetting::Before { .. } | Forgetting::Index { .. } => {}
        }
        let mut others: Vec<Forgetting> =
            self.forgetting.iter().filter(|&other| other != what).cloned().collect();
        others.extend(rest.filter(|rest| !others.contains(rest)));
        let before = std::mem::replace(&mut self.forgetting, others);
        self.rewrite().inspect_err(|_| self.forgetting = before)?;
        Ok(n_before - self.summaries.len())
    }

    /// Whether the file is to be [compacted](Self::plan).
    pub(crate) fn is_full(&self) -> bool {
        let n_live = 1
            + self.answers.len()
            + self.summaries.len()
            + self.parts.len()
            + self.notes.len()
            + self.namespaces.len()
            + self.forgetting.len();
        self.len > self.bounds.bytes_max || self.n_lines > n_live + STALE_MAX
    }

    /// Chooses the newest answers and summaries that fit the bounds. `live` has the answers in the histories, by model:
    /// the ledger drops those that a history has evicted.
    pub(crate) fn plan(&self, live: &BTreeMap<String, BTreeSet<u64>>) -> Compaction {
        let is_live = |model: &str, record: &u64| live.get(model).is_some_and(|live| live.contains(record));
        let answers = self.answers.iter().filter(|((model, record), _)| is_live(model, record));
        let answers = answers.map(|((model, record), made)| {
            let entry = Entry::Answer { model: model.clone(), record: *record, made: made.clone() };
            (*record, entry)
        });
        let summaries = self.summaries.values().map(|summary| (summary.at, Entry::Summary(summary.clone())));
        let parts = self.parts.values().map(|part| (part.summary.at, Entry::Part(part.clone())));
        let mut newest: Vec<(u64, Entry)> = answers.chain(summaries).chain(parts).collect();
        newest.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
        let mut compaction = Compaction::default();
        // Lines that were superseded are no reason to drop others.
        let is_long = self.len > self.bounds.bytes_max;
        let (mut bytes, mut notes) = (0, BTreeSet::new());
        for (_, entry) in newest {
            let (Entry::Answer { made, .. }
            | Entry::Summary(StoredSummary { made, .. })
            | Entry::Part(StoredPart { summary: StoredSummary { made, .. }, .. })) = &entry
            else {
                continue;
            };
            let new: Vec<u64> = made.notes.iter().filter(|note| !notes.contains(*note)).copied().collect();
            let places = new.iter().map(|note| self.note_bytes(*note));
            bytes += self.line_len(&entry) + places.sum::<u64>();
            if is_long && bytes > self.bounds.kept_bytes_max {
                break;
            }
            notes.extend(new);
            match entry {
                Entry::Answer { model, record, .. } => drop(compaction.kept.insert((model, record))),
                Entry::Summary(summary) => {
                    compaction.summaries.insert((summary.namespace, summary.subject));
                }
                Entry::Part(StoredPart { summary, .. }) => {
                    compaction.parts.insert((summary.namespace, summary.subject));
                }
                _ => {}
            }
        }
        for (model, records) in live {
            let is_dropped = |record: &&u64| !compaction.kept.contains(&(model.clone(), **record));
            let dropped: Vec<u64> = records.iter().filter(is_dropped).copied().collect();
            if !dropped.is_empty() {
                compaction.dropped.insert(model.clone(), dropped);
            }
        }
        let others = self.notes.keys().filter(|note| !notes.contains(*note));
        let of_notes: u64 = others.map(|note| self.note_bytes(*note)).sum();
        let of_names: u64 = self.namespaces.iter().map(|name| name.len() as u64 + 64).sum();
        let room = (self.bounds.bytes_max - self.bounds.kept_bytes_max) / 2;
        compaction.clears_prefixes = is_long && of_notes + of_names > room;
        compaction
    }

    fn note_bytes(&self, note: u64) -> u64 {
        // 20 digits and a comma per hash; kind, braces and checksum.
        let plain = 64 + 21 * (1 + self.notes.get(&note).map_or(0, Vec::len) as u64);
        if self.seal.encrypts() { 2 * (plain + PART_BYTES as u64) } else { plain }
    }

    /// Writes the file again as [planned](Self::plan), after the rest was deleted.
    pub(crate) fn compact(&mut self, compaction: &Compaction) -> Result<(), StoreError> {
        self.answers.retain(|key, _| compaction.kept.contains(key));
        self.summaries.retain(|key, _| compaction.summaries.contains(key));
        self.parts.retain(|key, _| compaction.parts.contains(key));
        if compaction.clears_prefixes {
            let made = self.answers.values().chain(self.all_summaries().map(|summary| &summary.made));
            let used: BTreeSet<u64> = made.flat_map(|made| made.notes.iter().copied()).collect();
            self.notes.retain(|note, _| used.contains(note));
            self.namespaces.clear();
        }
        self.rewrite()
    }

    fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Answer { model, record, made } => drop(self.answers.insert((model, record), made)),
            Entry::Summary(summary) => {
                let key = (summary.namespace.clone(), summary.subject);
                match summary.text.len() {
                    0..=SUMMARY_BYTES_MAX => drop(self.summaries.insert(key, summary)),
                    _ => drop(self.summaries.remove(&key)),
                }
            }
            Entry::Part(part) => {
                let key = (part.summary.namespace.clone(), part.summary.subject);
                match part.summary.text.len() {
                    0..=SUMMARY_BYTES_MAX => drop(self.parts.insert(key, part)),
                    _ => drop(self.parts.remove(&key)),
                }
                if self.parts.len() > PARTS_MAX {
                    let oldest = self.parts.iter().min_by_key(|(_, part)| part.summary.at);
                    let oldest = oldest.map(|(key, _)| key.clone());
                    oldest.map(|key| self.parts.remove(&key));
                }
            }
            Entry::Note { note, places } => drop(self.notes.insert(note, places)),
            Entry::Namespace { name } => drop(self.namespaces.insert(name)),
            Entry::Forget { what } => self.forgetting.push(what),
        }
    }

    /// Writes the file again from what is in memory.
    pub(crate) fn rewrite(&mut self) -> Result<(), StoreError> {
        let mut bytes =
            format!("{MAGIC}{}\n", if self.seal.encrypts() { SEALED } else { VERSION }).into_bytes();
        let notes = self.notes.iter().map(|(&note, places)| Entry::Note { note, places: places.clone() });
        let answers = self.answers.iter().map(|((model, record), made)| Entry::Answer {
            model: model.clone(),
            record: *record,
            made: made.clone(),
        });
        let summaries = self.summaries.values().cloned().map(Entry::Summary);
        let summaries = summaries.chain(self.parts.values().cloned().map(Entry::Part));
        let namespaces = self.namespaces.iter().map(|name| Entry::Namespace { name: name.clone() });
        let forgetting = self.forgetting.iter().map(|what| Entry::Forget { what: what.clone() });
        let mut n_lines = 1;
        let encrypted = io_error("encrypt", &self.path);
        // Every file has another id. `RandomState` has random keys from the system.
        let id = RandomState::new().hash_one(self.len);
        let encode_all = || -> io::Result<()> {
            if self.seal.encrypts() {
                bytes.extend(id_line(&self.seal, id)?);
                n_lines += 1;
            }
            for entry in notes.chain(answers).chain(summaries).chain(namespaces).chain(forgetting) {
                bytes.extend(encode(&self.seal, id, n_lines, &entry)?);
                n_lines += 1;
            }
            Ok(())
        };
        encode_all().map_err(encrypted)?;
        // Some systems do not replace a file that is open.
        self.file = None;
        let replaced = replace(&self.path, &bytes);
        self.file = open_file(&self.path).ok();
        // It may have been replaced before the error.
        if replaced.is_ok() || fs::read(&self.path).is_ok_and(|found| found == bytes) {
            self.is_torn = false;
            (self.len, self.n_lines, self.id) = (bytes.len() as u64, n_lines, id);
        }
        replaced
    }

    fn key(&self, problem: KeyProblem) -> StoreError {
        StoreError::Key { path: self.path.clone(), problem }
    }

    /// The id of an encrypted file, in its second line.
    fn id_of(&self, line: &[u8]) -> Option<u64> {
        let (id, check) = line.split_at_checked(16)?;
        let id = u64::from_str_radix(std::str::from_utf8(id).ok()?, 16).ok()?;
        self.seal.open(&place("ledger", &id.to_le_bytes()), &from_hex(check)?).map(|_| id)
    }

    /// The line of an entry.
    fn line(&self, n_line: usize, entry: &Entry) -> io::Result<Vec<u8>> {
        encode(&self.seal, self.id, n_line, entry)
    }

    /// The length of the line of an entry.
    fn line_len(&self, entry: &Entry) -> u64 {
        let len = to_json(entry).len();
        18 + if self.seal.encrypts() { 2 * (len + PART_BYTES) } else { len } as u64
    }

    /// The entry of the next line.
    fn decode(&self, line: &[u8]) -> Option<Entry> {
        let (sum, text) = (line.get(..16)?, line.get(17..)?);
        let sum = u64::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
        if xxh3_64(text) != sum {
            return None;
        }
        if !self.seal.encrypts() {
            return serde_json::from_slice(text).ok();
        }
        serde_json::from_slice(&self.seal.open(&line_place(self.id, self.n_lines), &from_hex(text)?)?).ok()
    }

    /// Cuts off what follows the last whole line.
    fn cut(&mut self) -> Result<(), StoreError> {
        let file = match &self.file {
            Some(file) => file,
            None => self.file.insert(open_file(&self.path)?),
        };
        let cut = file.set_len(self.len).and_then(|()| file.sync_data());
        cut.map_err(io_error("cut off the torn end of", &self.path))?;
        self.is_torn = false;
        Ok(())
    }
}

fn open_file(path: &Path) -> Result<File, StoreError> {
    File::options().append(true).open(path).map_err(io_error("open", path))
}

fn to_json(entry: &Entry) -> String {
    serde_json::to_string(entry).expect("strings and numbers, and paths are stored as strings")
}

fn encode(seal: &Seal, id: u64, n_line: usize, entry: &Entry) -> io::Result<Vec<u8>> {
    let json = to_json(entry);
    let text = if seal.encrypts() {
        let mut part = Vec::with_capacity(json.len() + PART_BYTES);
        seal.close(&line_place(id, n_line), json.as_bytes(), &mut part)?;
        to_hex(&part)
    } else {
        json
    };
    Ok(format!("{:016x} {text}\n", xxh3_64(text.as_bytes())).into_bytes())
}

/// The second line of an encrypted file.
fn id_line(seal: &Seal, id: u64) -> io::Result<Vec<u8>> {
    let mut check = Vec::new();
    seal.close(&place("ledger", &id.to_le_bytes()), &[], &mut check)?;
    Ok(format!("{id:016x}{}\n", to_hex(&check)).into_bytes())
}

fn line_place(id: u64, n_line: usize) -> Vec<u8> {
    place("ledger line", &[id.to_le_bytes(), (n_line as u64).to_le_bytes()].concat())
}

pub(super) fn to_hex(bytes: &[u8]) -> String {
    let digit = |digit: u8| char::from(b"0123456789abcdef"[usize::from(digit)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

pub(super) fn from_hex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = text.as_chunks::<2>();
    let bytes = pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?));
    if rest.is_empty() { bytes.collect() } else { None }
}

/// Compares the key with the first line of a ledger, which may be in use.
pub(super) fn check_first_line(path: &Path, seal: &Seal) -> Result<(), StoreError> {
    let mut line = Vec::new();
    match open_regular(path) {
        Ok(file) => file.take(32).read_to_end(&mut line).map_err(io_error("read", path))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(io_error("read", path)(error)),
    };
    let is_sealed = line.starts_with(format!("{MAGIC}{SEALED}\n").as_bytes());
    let problem = match (is_sealed, seal.encrypts()) {
        (true, false) => KeyProblem::Missing,
        (false, true) if !line.is_empty() => KeyProblem::NotEncrypted,
        _ => return Ok(()),
    };
    Err(StoreError::Key { path: path.to_owned(), problem })
}

/// Replaces a file in one step.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    replace_bytes(path, Manner::Private, bytes).map_err(|error| io_error("replace", path)(error.source))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::entry::NOTES_MAX;
    use super::*;

    fn seal() -> Seal {
        Seal::default()
    }

    fn answer(record: u64, notes: &[u64]) -> Entry {
        let made = Made { notes: notes.to_vec(), ..Made::default() };
        Entry::Answer { model: "m".into(), record, made }
    }

    fn summary(subject: u64, text: &str) -> Entry {
        let made = Made { notes: vec![subject], ..Made::default() };
        Entry::Summary(StoredSummary {
            namespace: "n".into(),
            subject,
            at: 5,
            made,
            of: None,
            text: text.to_owned(),
        })
    }

    fn part(hash: u128, at: u64, note: u64) -> Entry {
        let made = Made { notes: vec![note], ..Made::default() };
        let summary = StoredSummary {
            namespace: "n".into(),
            subject: hash as u64,
            at,
            made,
            of: None,
            text: format!("{hash}"),
        };
        Entry::Part(StoredPart { check: (hash >> 64) as u64, is_cut: false, summary })
    }

    #[test]
    fn parts_are_found_by_their_whole_hash_and_go_with_their_notes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let hash = |n: u64| (u128::from(n) << 64) | (1 << 32) | u128::from(n);
        let mut ledger = open(&path);
        ledger
            .append(vec![note(3, &[30]), note(4, &[40]), part(hash(1), 5, 3), part(hash(2), 6, 4)])
            .unwrap();
        drop(ledger);
        let mut ledger = open(&path);
        let text = ledger.part("n", hash(1)).map(|part| part.summary.text.clone());
        assert_eq!(text, Some(format!("{}", hash(1))));
        assert_eq!((ledger.part("other", hash(1)), ledger.part("n", hash(1) ^ (1 << 80))), (None, None));
        assert_eq!(ledger.n_summaries(), 0);
        let what = Forgetting::Notes { paths: Vec::new(), names: vec![30], index: None };
        ledger.finish_forgetting(&what, None).unwrap();
        assert!(!fs::read_to_string(&path).unwrap().contains(&format!("{}", hash(1))));
        drop(ledger);
        let mut ledger = open(&path);
        assert_eq!((ledger.part("n", hash(1)), ledger.part("n", hash(2)).is_some()), (None, true));
        let many = (0..2 * PARTS_MAX as u64).map(|n| part(u128::from(n), 100 + n, 4)).collect();
        ledger.append(many).unwrap();
        assert_eq!((ledger.parts.len(), ledger.part("n", hash(2))), (PARTS_MAX, None), "the oldest go");
    }

    fn note(note: u64, places: &[u64]) -> Entry {
        Entry::Note { note, places: places.to_vec() }
    }

    fn open(path: &Path) -> Ledger {
        let (ledger, found) = Ledger::open(path, seal(), Bounds::default(), false).unwrap();
        assert_eq!(found, Found::Whole);
        ledger
    }

    fn has(ledger: &Ledger, record: u64) -> bool {
        ledger.answers.contains_key(&("m".to_owned(), record))
    }

    #[test]
    fn entries_come_back_and_a_torn_end_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut ledger = open(&path);
        ledger.append(vec![answer(1, &[7]), summary(7, "old")]).unwrap();
        ledger.append(vec![summary(7, "new\nline"), answer(2, &[8])]).unwrap();
        drop(ledger);
        let whole = fs::read(&path).unwrap();
        for len in 0..=whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            let ledger = open(&path);
            let n_whole_lines = whole[..len].iter().filter(|&&byte| byte == b'\n').count();
            assert_eq!(ledger.n_lines, n_whole_lines.max(1), "without a header, it is begun again");
            assert_eq!(has(&ledger, 2), n_whole_lines == 5);
            if n_whole_lines >= 4 {
                assert_eq!(ledger.summary("n", 7).unwrap().text, "new\nline");
            }
            assert_eq!(ledger.summary("x", 7), None);
        }
    }

    #[test]
    fn a_flipped_bit_costs_its_line_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut ledger = open(&path);
        (1..4).for_each(|record| ledger.append(vec![answer(record, &[record])]).unwrap());
        drop(ledger);
        let whole = fs::read(&path).unwrap();
        let header = MAGIC.len() + 2;
        let middle = header + (whole.len() - header) / 2;
        let mut flipped = whole.clone();
        flipped[middle] ^= 1;
        fs::write(&path, &flipped).unwrap();
        let (ledger, found) = Ledger::open(&path, seal(), Bounds::default(), false).unwrap();
        assert_eq!(found, Found::Damaged);
        assert_eq!((1..4).filter(|&record| has(&ledger, record)).collect::<Vec<_>>(), [1, 3]);
        fs::write(&path, format!("{MAGIC}9\n")).unwrap();
        assert!(matches!(
            Ledger::open(&path, seal(), Bounds::default(), false),
            Err(StoreError::Version { .. })
        ));
        fs::write(&path, format!("{MAGIC}1\n")).unwrap();
        assert_eq!(Ledger::open(&path, seal(), Bounds::default(), false).unwrap().1, Found::Older);
    }

    #[test]
    fn with_a_key_no_word_is_on_the_disk_and_lines_stay_where_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let keyed = |key: u8| Seal::new(Some(&[key; 32]), "test");
        let open = |seal: Seal| Ledger::open(&path, seal, Bounds::default(), false);
        let what = Forgetting::Notes { paths: vec!["/notes/a.md".into()], names: vec![70], index: None };
        let (mut ledger, _) = open(keyed(1)).unwrap();
        ledger.append(vec![summary(7, "the secret"), answer(1, &[7])]).unwrap();
        ledger.append(vec![summary(8, "harmless"), Entry::Forget { what: what.clone() }]).unwrap();
        drop(ledger);
        let whole = fs::read(&path).unwrap();
        let text = String::from_utf8(whole.clone()).unwrap();
        for word in ["secret", "harmless", "notes", "summary", "forget"] {
            assert!(!text.contains(word) && !text.contains(&to_hex(word.as_bytes())), "{word}");
        }
        // Every prefix has its whole lines, as without a key.
        let n_header = text.match_indices('\n').nth(1).unwrap().0 + 1;
        for len in n_header..=whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            let (ledger, found) = open(keyed(1)).unwrap();
            let n_whole_lines = whole[..len].iter().filter(|&&byte| byte == b'\n').count();
            assert_eq!((ledger.n_lines, found), (n_whole_lines, Found::Whole));
            assert_eq!(
                (has(&ledger, 1), ledger.forgetting().len()),
                (n_whole_lines >= 4, usize::from(n_whole_lines == 6))
            );
        }
        let refused = |seal: Seal, file: &[u8]| {
            fs::write(&path, file).unwrap();
            let Err(StoreError::Key { problem, .. }) = open(seal) else { panic!("opened") };
            assert_eq!(fs::read(&path).unwrap(), file, "nothing is changed");
            problem
        };
        assert_eq!(refused(keyed(2), &whole), KeyProblem::Wrong);
        assert_eq!(refused(seal(), &whole), KeyProblem::Missing);
        for plain in [format!("{MAGIC}1\n"), format!("{MAGIC}2\n")] {
            assert_eq!(refused(keyed(1), plain.as_bytes()), KeyProblem::NotEncrypted);
        }
        for len in 1..n_header {
            if whole[..len].contains(&b'\n') {
                assert_eq!(refused(keyed(1), &whole[..len]), KeyProblem::Wrong);
            }
        }
        // A line that stands elsewhere, twice, or in another file is none of this.
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        fs::remove_file(&path).unwrap();
        let (mut other, _) = open(keyed(1)).unwrap();
        other.append(vec![summary(7, "older"), answer(1, &[7])]).unwrap();
        drop(other);
        let other = fs::read_to_string(&path).unwrap();
        let other = other.split_inclusive('\n').nth(2).unwrap();
        for moved in [
            [lines[0], lines[1], lines[3], lines[2]],
            [lines[0], lines[1], lines[2], lines[2]],
            [lines[0], lines[1], lines[2], other],
            [lines[0], lines[1], other, lines[3]],
        ] {
            fs::write(&path, moved.concat()).unwrap();
            let (ledger, found) = open(keyed(1)).unwrap();
            assert_eq!(found, Found::Damaged);
            assert!(ledger.summary("n", 7).is_none_or(|summary| summary.text == "the secret"));
        }
    }

    #[test]
    fn a_deletion_leaves_no_byte_and_survives_until_it_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut ledger = open(&path);
        ledger.append(vec![note(7, &[70]), note(8, &[80])]).unwrap();
        ledger.append(vec![summary(7, "the secret"), summary(8, "harmless"), answer(3, &[8, 7])]).unwrap();
        let what = Forgetting::Notes { paths: vec!["/notes/a.md".into()], names: vec![70], index: None };
        ledger.append(vec![Entry::Forget { what: what.clone() }]).unwrap();
        drop(ledger);
        let mut ledger = open(&path);
        assert_eq!(ledger.forgetting(), std::slice::from_ref(&what));
        assert_eq!(ledger.notes_named(&[70]), [7, 70].into());
        assert!(ledger.is_forgotten(&what, "m", 3) && ledger.is_forgotten(&what, "m", 4));
        assert_eq!(ledger.finish_forgetting(&what, None).unwrap(), 1);
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("secret") && !text.contains("a.md") && text.contains("harmless"), "{text}");
        drop(ledger);
        let ledger = open(&path);
        assert_eq!((ledger.forgetting(), ledger.notes.len(), has(&ledger, 3)), (&[][..], 1, false));
    }

    #[cfg(unix)]
    #[test]
    fn paths_that_are_not_unicode_come_back() {
        use std::os::unix::ffi::OsStringExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let odd = |name: &[u8]| PathBuf::from(std::ffi::OsString::from_vec(name.to_vec()));
        let (note, index) = (odd(b"/caf\xe9.md"), odd(b"/in\xffdex"));
        let (some, one) = (Some(index.clone()), vec![note.clone()]);
        let all = [
            Forgetting::Notes { paths: vec![note, "/plain".into()], names: vec![], index: some.clone() },
            Forgetting::Everything { index: some, roots: one.clone() },
            Forgetting::Index { index, paths: one, is_all: false },
        ];
        open(&path).append(all.iter().map(|what| Entry::Forget { what: what.clone() }).collect()).unwrap();
        assert_eq!(open(&path).forgetting(), all);
    }

    #[test]
    fn a_line_that_could_not_be_read_is_not_written() {
        let folder = tempfile::tempdir().unwrap();
        let mut ledger = open(&folder.path().join("ledger"));
        let names: Vec<u64> = (0..900_000).map(|n| u64::MAX - n).collect();
        let what = Forgetting::Notes { paths: vec!["/a".into()], names, index: None };
        let refused = ledger.append(vec![Entry::Forget { what }]);
        assert!(matches!(refused, Err(StoreError::TooLarge { max: LINE_BYTES_MAX, .. })));
        assert_eq!(ledger.forgetting(), []);
    }

    #[test]
    fn superseded_lines_cost_no_answer() {
        let folder = tempfile::tempdir().unwrap();
        let bounds = Bounds { bytes_max: 1 << 20, kept_bytes_max: 200 };
        let (mut ledger, _) = Ledger::open(&folder.path().join("ledger"), seal(), bounds, false).unwrap();
        ledger.append((0..9).map(|record| answer(record, &[])).collect()).unwrap();
        (0..=STALE_MAX + 1).for_each(|_| ledger.append(vec![summary(1, "a")]).unwrap());
        assert!(ledger.is_full() && ledger.len <= bounds.bytes_max);
        let mut live = BTreeMap::from([("m".to_owned(), (0..9).collect::<BTreeSet<u64>>())]);
        compacted(&mut ledger, &mut live);
        assert_eq!((live["m"].len(), ledger.is_full()), (9, false));
    }

    #[test]
    fn a_wrong_clock_hides_nothing_from_a_deletion_by_time() {
        let before = |time, now| Forgetting::Before { time, now };
        let takes = |what: &Forgetting, at| what.takes(at, &Made::default(), &Notes::new());
        assert!(takes(&before(5, 9), 4) && !takes(&before(5, 9), 5) && !takes(&before(5, 9), 9));
        // Made at a time that has not come yet.
        assert!(takes(&before(5, 9), 10) && takes(&before(9, 9), u64::MAX));
    }

    #[test]
    fn more_notes_than_an_entry_names_go_with_any() {
        let paths: Vec<PathBuf> = (0..=NOTES_MAX).map(|n| format!("/n/{n}").into()).collect();
        let made = Made::from(&paths, None);
        let what = Forgetting::Notes { paths: vec!["/x".into()], names: vec![1], index: None };
        assert!(made.of_many && made.notes.is_empty() && what.takes(0, &made, &Notes::new()));
        assert_eq!(Made::from(&paths[1..], None).notes.len(), NOTES_MAX);
    }

    /// As the store compacts: what a history has is deleted if the ledger does not keep it.
    fn compacted(ledger: &mut Ledger, live: &mut BTreeMap<String, BTreeSet<u64>>) {
        let compaction = ledger.plan(live);
        for (model, dropped) in &compaction.dropped {
            let live = live.get_mut(model).unwrap();
            live.retain(|record| !dropped.contains(record));
        }
        ledger.compact(&compaction).unwrap();
    }

    #[test]
    fn the_file_stays_bounded_and_names_every_answer_that_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let bounds = Bounds { bytes_max: 20_000, kept_bytes_max: 10_000 };
        let (mut ledger, _) = Ledger::open(&path, seal(), bounds, false).unwrap();
        let mut live: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for record in 0..2000 {
            let places: Vec<u64> = (0..8).map(|n| record * 10 + n).collect();
            ledger.append(vec![note(record, &places), answer(record, &[record])]).unwrap();
            live.entry("m".to_owned()).or_default().insert(record);
            if ledger.is_full() {
                compacted(&mut ledger, &mut live);
                assert!(ledger.len <= 15_000, "{}", ledger.len);
            }
            assert!(ledger.len <= 21_000, "{}", ledger.len);
            assert!(live["m"].iter().all(|&record| has(&ledger, record)));
        }
        assert!(has(&ledger, 1999) && !has(&ledger, 0));
        // A file of any length is opened, and smaller afterwards.
        drop(ledger);
        let mut whole = fs::read(&path).unwrap();
        let n_live = live["m"].len();
        for record in 2000..3000 {
            whole.extend(encode(&seal(), 0, 0, &answer(record, &[1, 2, 3, 4])).unwrap());
            live.get_mut("m").unwrap().insert(record);
        }
        let what = Forgetting::Conversation(3);
        whole.extend(encode(&seal(), 0, 0, &Entry::Forget { what: what.clone() }).unwrap());
        fs::write(&path, &whole).unwrap();
        let (mut ledger, found) = Ledger::open(&path, seal(), bounds, false).unwrap();
        assert_eq!((found, ledger.forgetting()), (Found::Damaged, &[what][..]));
        assert!(matches!(ledger.append(vec![answer(1, &[])]), Err(StoreError::TooLarge { .. })));
        compacted(&mut ledger, &mut live);
        assert!(ledger.len <= 15_000 && live["m"].len() < n_live + 1000);
        assert!(live["m"].iter().all(|&record| has(&ledger, record)));
    }

    #[test]
    fn evicted_answers_and_superseded_lines_are_written_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut ledger = open(&path);
        ledger.append(vec![answer(1, &[]), answer(2, &[])]).unwrap();
        for _ in 0..=STALE_MAX + 1 {
            ledger.append(vec![summary(1, "a")]).unwrap();
        }
        assert!(ledger.is_full());
        let mut live = BTreeMap::from([("m".to_owned(), BTreeSet::from([2, 3]))]);
        compacted(&mut ledger, &mut live);
        assert_eq!(live["m"], [2].into(), "of unknown origin");
        assert!(!ledger.is_full() && !has(&ledger, 1) && has(&ledger, 2));
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 3);
    }

    proptest! {
        #[test]
        fn any_file_is_read_or_refused(text in "(refrain-ledger [0-9]{1,3}\n)?(.{0,40}\n){0,4}.{0,9}") {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("ledger");
            fs::write(&path, &text).unwrap();
            let _ = Ledger::open(&path, seal(), Bounds::default(), false);
        }
    }
}
