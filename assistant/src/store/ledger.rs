//! The ledger: what each kept answer was made from, the newest summary of each subject, and a deletion that has begun.
//!
//! A line per entry: XXH3 of the JSON in 16 hexadecimal digits, a space, the JSON. Lines are appended durably; a deletion replaces
//! the file in one step. The first line names the version. An incomplete last line is the result of a crash and is cut off. Other
//! lines with a wrong checksum are left out: the answer of such a line then has no entry, and the next deletion deletes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::{StoreError, io_error};

const HEADER: &str = "refrain-ledger 1";

/// Maximum length of a file: far above what the limits of entries give.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Maximum number of summaries. Beyond it, the oldest is dropped.
const SUMMARIES_MAX: usize = 1024;

/// Maximum length of a kept summary, in bytes.
const SUMMARY_BYTES_MAX: usize = 64 << 10;

/// Maximum number of answers. The history keeps 16 M tokens per namespace, so answers of 160 tokens and more are all noted;
/// beyond it the oldest is dropped, which the next deletion then deletes from the history.
const ANSWERS_MAX: usize = 100_000;

/// Lines of the file that may be superseded before it is written again.
const STALE_MAX: usize = 1024;

/// A line of the ledger.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Entry {
    /// An answer in the history of a model.
    Answer { model: String, record: u64, notes: Vec<u64>, conversation: Option<u64> },
    /// A summary of a subject.
    Summary(StoredSummary),
    /// A namespace that has prefixes.
    Namespace { name: String },
    /// A deletion that has begun.
    Forget { what: Forgetting },
}

/// The newest summary of a subject.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StoredSummary {
    pub(crate) namespace: String,
    /// The hash of the subject: the notes and the request.
    pub(crate) subject: u64,
    /// When it was made, in µs since 1970.
    pub(crate) at: u64,
    pub(crate) notes: Vec<u64>,
    pub(crate) text: String,
}

/// What a deletion deletes, as it is noted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Forgetting {
    /// A note, by the hash of its path, and its path for the index of notes in this folder.
    Note {
        hash: u64,
        path: PathBuf,
        index: Option<PathBuf>,
    },
    Conversation(u64),
    /// Everything that was made before this time, in µs since 1970.
    Before(u64),
    /// Everything, with these files and folders of the index of notes in this folder.
    Everything {
        index: Option<PathBuf>,
        roots: Vec<PathBuf>,
    },
}

impl Forgetting {
    /// Whether it takes an answer or summary of this time, in µs since 1970, made from these notes in this conversation.
    pub(crate) fn takes(&self, at: u64, notes: &[u64], conversation: Option<u64>) -> bool {
        match self {
            Self::Note { hash, .. } => notes.contains(hash),
            Self::Conversation(id) => conversation == Some(*id),
            Self::Before(time) => at < *time,
            Self::Everything { .. } => true,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Ledger {
    path: PathBuf,
    file: File,
    len: u64,
    n_lines: usize,
    /// By model and record.
    answers: BTreeMap<(String, u64), (Vec<u64>, Option<u64>)>,
    /// By namespace and subject.
    summaries: BTreeMap<(String, u64), StoredSummary>,
    namespaces: BTreeSet<String>,
    forgetting: Vec<Forgetting>,
}

impl Ledger {
    /// Reads the ledger, or creates an empty one.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let bytes = match fs::metadata(path).map(|metadata| metadata.len()) {
            Ok(bytes) if bytes > FILE_BYTES_MAX => {
                return Err(StoreError::TooLarge { path: path.to_owned(), bytes, max: FILE_BYTES_MAX });
            }
            Ok(_) => fs::read(path).map_err(io_error("read", path))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                replace(path, format!("{HEADER}\n").as_bytes())?;
                format!("{HEADER}\n").into_bytes()
            }
            Err(error) => return Err(io_error("read", path)(error)),
        };
        let file = File::options().append(true).open(path).map_err(io_error("open", path))?;
        let mut ledger = Self {
            path: path.to_owned(),
            file,
            len: 0,
            n_lines: 0,
            answers: BTreeMap::new(),
            summaries: BTreeMap::new(),
            namespaces: BTreeSet::new(),
            forgetting: Vec::new(),
        };
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            let Some(line_of) = line.strip_suffix(b"\n") else { break };
            if ledger.len == 0 && line_of != HEADER.as_bytes() && line_of.starts_with(b"refrain-ledger ") {
                return Err(StoreError::Version { path: path.to_owned() });
            }
            if let Some(entry) = decode(line_of) {
                ledger.take(entry);
            }
            ledger.len += line.len() as u64;
            ledger.n_lines += 1;
        }
        if ledger.len < bytes.len() as u64 {
            ledger.cut()?;
        }
        Ok(ledger)
    }

    /// Adds an entry durably. After an error the ledger does not have it.
    pub(crate) fn append(&mut self, entry: Entry) -> Result<(), StoreError> {
        let line = encode(&entry);
        let written = self.file.write_all(&line).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // The next line begins at the end of the last whole one; what is cut off was not acknowledged.
            let _ = self.cut();
            return Err(io_error("write", &self.path)(error));
        }
        self.len += line.len() as u64;
        self.n_lines += 1;
        self.take(entry);
        if self.n_lines > self.n_live() + STALE_MAX {
            self.rewrite()?;
        }
        Ok(())
    }

    /// The summary of a subject.
    pub(crate) fn summary(&self, namespace: &str, subject: u64) -> Option<&StoredSummary> {
        self.summaries.get(&(namespace.to_owned(), subject))
    }

    /// Notes a namespace.
    pub(crate) fn note_namespace(&mut self, name: &str) -> Result<(), StoreError> {
        match self.namespaces.contains(name) {
            true => Ok(()),
            false => self.append(Entry::Namespace { name: name.to_owned() }),
        }
    }

    /// The namespaces that have prefixes.
    pub(crate) fn namespaces(&self) -> &BTreeSet<String> {
        &self.namespaces
    }

    /// Deletions that have begun.
    pub(crate) fn forgetting(&self) -> &[Forgetting] {
        &self.forgetting
    }

    /// What an answer was made from; `None` if the ledger does not have it.
    pub(crate) fn answer(&self, model: &str, record: u64) -> Option<(&[u64], Option<u64>)> {
        let (notes, conversation) = self.answers.get(&(model.to_owned(), record))?;
        Some((notes, *conversation))
    }

    /// Writes the file again without the answers and summaries that a deletion takes, and without the deletions that have
    /// begun. Returns the number of removed summaries.
    pub(crate) fn finish_forgetting(&mut self, what: &Forgetting) -> Result<usize, StoreError> {
        let n_before = self.summaries.len();
        self.answers.retain(|&(_, record), (notes, conversation)| !what.takes(record, notes, *conversation));
        self.summaries.retain(|_, summary| !what.takes(summary.at, &summary.notes, None));
        if matches!(what, Forgetting::Everything { .. }) {
            self.namespaces.clear();
        }
        let others: Vec<Forgetting> =
            self.forgetting.iter().filter(|&other| other != what).cloned().collect();
        let before = std::mem::replace(&mut self.forgetting, others);
        self.rewrite().inspect_err(|_| self.forgetting = before)?;
        Ok(n_before - self.summaries.len())
    }

    fn take(&mut self, entry: Entry) {
        match entry {
            Entry::Answer { model, record, notes, conversation } => {
                self.answers.insert((model, record), (notes, conversation));
                if self.answers.len() > ANSWERS_MAX
                    && let Some(oldest) = self.answers.keys().min_by_key(|(_, record)| *record).cloned()
                {
                    self.answers.remove(&oldest);
                }
            }
            Entry::Summary(summary) => {
                let key = (summary.namespace.clone(), summary.subject);
                if summary.text.len() > SUMMARY_BYTES_MAX {
                    self.summaries.remove(&key);
                    return;
                }
                self.summaries.insert(key, summary);
                let oldest = self.summaries.iter().min_by_key(|(_, summary)| summary.at);
                if self.summaries.len() > SUMMARIES_MAX
                    && let Some(oldest) = oldest.map(|(key, _)| key.clone())
                {
                    self.summaries.remove(&oldest);
                }
            }
            Entry::Namespace { name } => drop(self.namespaces.insert(name)),
            Entry::Forget { what } => self.forgetting.push(what),
        }
    }

    fn n_live(&self) -> usize {
        1 + self.answers.len() + self.summaries.len() + self.namespaces.len() + self.forgetting.len()
    }

    fn rewrite(&mut self) -> Result<(), StoreError> {
        let mut bytes = format!("{HEADER}\n").into_bytes();
        for ((model, record), (notes, conversation)) in &self.answers {
            let (model, notes) = (model.clone(), notes.clone());
            bytes.extend(encode(&Entry::Answer {
                model,
                record: *record,
                notes,
                conversation: *conversation,
            }));
        }
        for summary in self.summaries.values() {
            bytes.extend(encode(&Entry::Summary(summary.clone())));
        }
        for name in &self.namespaces {
            bytes.extend(encode(&Entry::Namespace { name: name.clone() }));
        }
        for what in &self.forgetting {
            bytes.extend(encode(&Entry::Forget { what: what.clone() }));
        }
        replace(&self.path, &bytes)?;
        self.file = File::options().append(true).open(&self.path).map_err(io_error("open", &self.path))?;
        (self.len, self.n_lines) = (bytes.len() as u64, self.n_live());
        Ok(())
    }

    /// Cuts off what follows the last whole line.
    fn cut(&mut self) -> Result<(), StoreError> {
        let cut = self.file.set_len(self.len).and_then(|()| self.file.sync_data());
        cut.map_err(io_error("cut off the torn end of", &self.path))
    }
}

fn encode(entry: &Entry) -> Vec<u8> {
    let json = serde_json::to_string(entry).expect("strings and numbers");
    format!("{:016x} {json}\n", xxh3_64(json.as_bytes())).into_bytes()
}

fn decode(line: &[u8]) -> Option<Entry> {
    let (sum, json) = (line.get(..16)?, line.get(17..)?);
    let sum = u64::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    (xxh3_64(json) == sum).then(|| serde_json::from_slice(json).ok()).flatten()
}

/// Replaces a file in one step: written under another name, synced, renamed.
fn replace(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    let partial = path.with_extension("partial");
    let write = || -> io::Result<()> {
        let mut file = File::create(&partial)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&partial, path)?;
        sync_folder(path.parent().unwrap_or(Path::new(".")))
    };
    write().map_err(io_error("replace", path))
}

/// Makes a rename in a folder durable.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

#[cfg(not(unix))]
fn sync_folder(_folder: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(record: u64, notes: &[u64]) -> Entry {
        Entry::Answer { model: "m".into(), record, notes: notes.to_vec(), conversation: None }
    }

    fn summary(subject: u64, text: &str) -> Entry {
        let (namespace, notes) = ("n".to_owned(), vec![subject]);
        Entry::Summary(StoredSummary { namespace, subject, at: 5, notes, text: text.to_owned() })
    }

    #[test]
    fn entries_come_back_and_a_torn_end_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut ledger = Ledger::open(&path).unwrap();
        ledger.append(answer(1, &[7])).unwrap();
        ledger.append(summary(7, "old")).unwrap();
        ledger.append(summary(7, "new\nline")).unwrap();
        ledger.append(answer(2, &[8])).unwrap();
        let whole = fs::read(&path).unwrap();
        for len in 0..=whole.len() {
            fs::write(&path, &whole[..len]).unwrap();
            let ledger = Ledger::open(&path).unwrap();
            let n_whole_lines = whole[..len].iter().filter(|&&byte| byte == b'\n').count();
            assert_eq!(ledger.n_lines, n_whole_lines);
            assert_eq!(ledger.answer("m", 2).is_some(), n_whole_lines == 5);
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
        let mut ledger = Ledger::open(&path).unwrap();
        (1..4).for_each(|record| ledger.append(answer(record, &[record])).unwrap());
        let whole = fs::read(&path).unwrap();
        let middle = HEADER.len() + 1 + (whole.len() - HEADER.len() - 1) / 2;
        let mut flipped = whole.clone();
        flipped[middle] ^= 1;
        fs::write(&path, &flipped).unwrap();
        let ledger = Ledger::open(&path).unwrap();
        let found: Vec<u64> = (1..4).filter(|&record| ledger.answer("m", record).is_some()).collect();
        assert_eq!(found, [1, 3]);
        fs::write(&path, "refrain-ledger 9\n").unwrap();
        assert!(matches!(Ledger::open(&path), Err(StoreError::Version { .. })));
    }

    #[test]
    fn a_deletion_leaves_no_byte_and_survives_until_it_is_finished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut ledger = Ledger::open(&path).unwrap();
        ledger.append(summary(7, "the secret")).unwrap();
        ledger.append(summary(8, "harmless")).unwrap();
        let what = Forgetting::Note { hash: 7, path: "/notes/a.md".into(), index: None };
        ledger.append(Entry::Forget { what: what.clone() }).unwrap();
        let mut ledger = Ledger::open(&path).unwrap();
        assert_eq!(ledger.forgetting(), std::slice::from_ref(&what));
        assert_eq!(ledger.finish_forgetting(&what).unwrap(), 1);
        let text = fs::read_to_string(&path).unwrap();
        assert!(!text.contains("secret") && !text.contains("a.md") && text.contains("harmless"), "{text}");
        assert_eq!(Ledger::open(&path).unwrap().forgetting(), []);
    }

    #[test]
    fn superseded_lines_are_written_away() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("ledger");
        let mut ledger = Ledger::open(&path).unwrap();
        for n in 0..=STALE_MAX + 1 {
            ledger.take(summary(1, "a"));
            ledger.n_lines = n;
        }
        ledger.append(summary(1, "b")).unwrap();
        ledger.append(summary(1, "c")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap().lines().count(), 2 + usize::from(ledger.n_lines > 2));
        assert_eq!(Ledger::open(&path).unwrap().summary("n", 1).unwrap().text, "c");
    }
}
