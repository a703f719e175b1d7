//! Responses that a process hands in while another one writes the history.
//!
//! Each response is a file of its own, a log of one record, in the folder `.inbox`. Its name is `NAMESPACE.NUMBER`;
//! the number is random, so that two processes never choose the same name. The file is renamed to this name when its
//! contents are durable, and never changes afterwards, so the writer reads only complete files. The writer appends a
//! response to the namespace's log before it removes the file. After a crash in between, the record's id shows that
//! the log already contains the response.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};

use super::HistoryError;
use super::changes::{ASIDE, put_file, remove, set_aside};
use super::disk::{PARTIAL, SealedDisk};
use super::error::io_error;
use super::key::{HistoryKey, decode_namespace, encode_namespace};
use super::log::{Place, Record, encode_log, read_log};
use super::report::LeftOut;
use crate::disk_file::if_there;

/// The folder, beside the namespaces. Folder names of namespaces contain no dot.
const INBOX: &str = ".inbox";

/// Maximum number of hand-ins, over all namespaces and including damaged ones: more than a day of answers, read in
/// some ms. Each process that hands in at the same moment may exceed the limit by one.
pub(super) const HAND_INS_MAX: usize = 512;

/// Maximum number of tokens read at a time (64 MiB), for responses of any length. The other responses wait for the
/// next time.
const READ_TOKENS_MAX: usize = 1 << 24;

/// Attempts to hand in. A starting writer removes unfinished files, because they look like leftovers of a crash.
const ATTEMPTS: usize = 3;

/// Responses from other processes.
#[derive(Default, Debug)]
pub(super) struct HandIns {
    /// By namespace, each with its file; oldest first.
    pub(super) by_namespace: BTreeMap<String, Vec<(Record, PathBuf)>>,
    pub(super) left_out: Vec<LeftOut>,
}

/// The hand-ins of one model's history.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inbox<'a> {
    pub(super) disk: &'a SealedDisk,
    /// The model's folder.
    pub(super) folder: &'a Path,
    pub(super) key: HistoryKey,
}

impl Inbox<'_> {
    fn path(&self) -> PathBuf {
        self.folder.join(INBOX)
    }

    fn place(&self, namespace: &str, number: u64) -> Place {
        Place { owner: self.key.owner(namespace), number }
    }

    fn names(&self) -> Result<Option<Vec<String>>, HistoryError> {
        let inbox = self.path();
        if_there(self.disk.list(&inbox)).map_err(io_error("read", &inbox))
    }

    /// Hands a response in, durably.
    ///
    /// # Errors
    /// The response was not handed in.
    pub(super) fn put(&self, namespace: &str, record: &Record) -> Result<(), HistoryError> {
        let inbox = self.path();
        let names = match self.names()? {
            Some(names) => names,
            None => {
                self.disk.create_dir(&inbox).map_err(io_error("create", &inbox))?;
                self.disk.sync_dir(self.folder).map_err(io_error("sync", self.folder))?;
                Vec::new()
            }
        };
        if names.len() >= HAND_INS_MAX {
            return Err(HistoryError::InboxFull { path: inbox, max: HAND_INS_MAX });
        }
        let is_gone = |error: &HistoryError| match error {
            HistoryError::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
            _ => false,
        };
        let mut attempt = 1;
        loop {
            // Every `RandomState` has another seed.
            let number = RandomState::new().hash_one(attempt);
            let path = inbox.join(file_name(namespace, number));
            let (place, records) = (self.place(namespace, number), std::slice::from_ref(record));
            let bytes =
                encode_log(self.disk.seal(), place, 0, records).map_err(io_error("encrypt", &path))?;
            match put_file(self.disk, &path, |file| file.write_at(&bytes, 0)) {
                Err(error) if is_gone(&error) && attempt < ATTEMPTS => attempt += 1,
                // If the sync of the folder failed, the file may already have its name.
                put => return put.map(drop).inspect_err(|_| drop(self.disk.remove_file(&path))),
            }
        }
    }

    /// Reads the hand-ins. Changes nothing. A file that disappears meanwhile has been moved to the log.
    pub(super) fn read(&self) -> Result<HandIns, HistoryError> {
        let (mut found, mut n_tokens) = (HandIns::default(), 0);
        for name in self.names()?.unwrap_or_default() {
            let Some((namespace, number)) = parse(&name) else { continue };
            let path = self.path().join(&name);
            match read_hand_in(self.disk, &path, self.place(&namespace, number)) {
                Ok(record) => {
                    n_tokens += record.tokens.len();
                    found.by_namespace.entry(namespace).or_default().push((record, path));
                }
                Err(HistoryError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => found.left_out.push(LeftOut::of(error)?),
            }
            if n_tokens > READ_TOKENS_MAX {
                break;
            }
        }
        found.by_namespace.values_mut().for_each(|records| records.sort_by_key(|(record, _)| record.id));
        Ok(found)
    }

    /// Removes hand-ins after their responses are in the log.
    pub(super) fn remove(&self, paths: impl IntoIterator<Item = PathBuf>) -> Result<(), HistoryError> {
        paths.into_iter().try_for_each(|path| remove(self.disk, &path))?;
        self.sync()
    }

    /// Removes unfinished hand-ins.
    pub(super) fn remove_unfinished(&self) -> Result<(), HistoryError> {
        let names = self.names()?.unwrap_or_default();
        let unfinished = names.iter().filter(|name| name.ends_with(PARTIAL));
        unfinished.into_iter().try_for_each(|name| remove(self.disk, &self.path().join(name)))
    }

    /// Sets damaged hand-ins aside.
    pub(super) fn set_aside(&self, left_out: &mut [LeftOut]) -> Result<(), HistoryError> {
        for left_out in left_out.iter_mut().filter(|left_out| left_out.is_damage()) {
            left_out.aside = Some(set_aside(self.disk, &left_out.path)?);
        }
        Ok(())
    }

    /// Removes the hand-ins of a namespace that were set aside (`None`: of all namespaces). With `sound`, also
    /// removes its other hand-ins. Returns the removed files.
    pub(super) fn forget(&self, namespace: Option<&str>, sound: bool) -> Result<Vec<PathBuf>, HistoryError> {
        let mut removed = Vec::new();
        for name in self.names()?.unwrap_or_default() {
            let aside = name.strip_prefix(ASIDE).and_then(parse);
            let Some((of, _)) = aside.clone().or_else(|| parse(&name)) else { continue };
            if namespace.is_none_or(|namespace| namespace == of) && (aside.is_some() || sound) {
                let path = self.path().join(&name);
                remove(self.disk, &path)?;
                removed.push(path);
            }
        }
        if !removed.is_empty() {
            self.sync()?;
        }
        Ok(removed)
    }

    fn sync(&self) -> Result<(), HistoryError> {
        let inbox = self.path();
        self.disk.sync_dir(&inbox).map_err(io_error("sync", &inbox))
    }
}

/// The record of a hand-in.
fn read_hand_in(disk: &SealedDisk, path: &Path, place: Place) -> Result<Record, HistoryError> {
    let mut scan = read_log(disk, path.to_owned(), place)?;
    let damaged = |offset, what| HistoryError::Damaged { path: path.to_owned(), offset, what };
    match (scan.records.pop(), scan.damaged.first(), scan.torn) {
        (_, Some(&(offset, _, what)), _) => Err(damaged(offset, what)),
        (_, _, Some((offset, _))) => Err(damaged(offset, "the end of the file is missing")),
        (Some(record), ..) if scan.records.is_empty() => Ok(record),
        _ => Err(damaged(scan.end, "not one response")),
    }
}

fn file_name(namespace: &str, number: u64) -> String {
    format!("{}.{number:016x}", encode_namespace(namespace))
}

/// Parses the name of a hand-in: namespace and number.
fn parse(name: &str) -> Option<(String, u64)> {
    let (namespace, number) = name.split_once('.')?;
    let (namespace, number) = (decode_namespace(namespace)?, u64::from_str_radix(number, 16).ok()?);
    (file_name(&namespace, number) == name).then_some((namespace, number))
}

#[cfg(test)]
mod tests {
    use super::super::disk::Disk as _;
    use super::super::key::RecordId;
    use super::super::testing::MemDisk;
    use super::*;
    use refrain::TokenId;

    const KEY: HistoryKey = HistoryKey { tokenizer: 1, model: 2 };

    fn record(id: u64) -> Record {
        Record { id: RecordId(id), tokens: (0..5).map(TokenId).collect() }
    }

    fn with_inbox(check: impl FnOnce(&MemDisk, Inbox<'_>)) {
        let disk = MemDisk::default();
        let folder = Path::new("model");
        disk.create_dir(folder).unwrap();
        check(&disk, Inbox { disk: &disk.plain(), folder, key: KEY });
    }

    #[test]
    fn names_come_back() {
        assert_eq!(parse(&file_name("../Ä", 7)), Some(("../Ä".to_owned(), 7)));
        assert_eq!(parse("a.7"), None);
        assert_eq!(parse("a.0000000000000007.partial"), None);
        assert_eq!(parse("damaged.a.0000000000000007"), None);
    }

    #[test]
    fn what_is_handed_in_is_read_oldest_first() {
        with_inbox(|_, inbox| {
            assert!(inbox.read().unwrap().by_namespace.is_empty());
            [5, 3].into_iter().for_each(|id| inbox.put("a", &record(id)).unwrap());
            inbox.put("B", &record(4)).unwrap();
            let found = inbox.read().unwrap();
            let ids: Vec<Vec<u64>> = found
                .by_namespace
                .values()
                .map(|records| records.iter().map(|(record, _)| record.id.0).collect())
                .collect();
            assert_eq!((ids, found.left_out), (vec![vec![4], vec![3, 5]], vec![]));
        });
    }

    #[test]
    fn there_is_an_end_to_it() {
        with_inbox(|_, inbox| {
            (0..HAND_INS_MAX as u64).for_each(|id| inbox.put("a", &record(id)).unwrap());
            assert!(matches!(inbox.put("a", &record(0)), Err(HistoryError::InboxFull { max: 512, .. })));
        });
    }

    #[test]
    fn a_damaged_one_is_named_and_forgotten_with_its_namespace() {
        with_inbox(|disk, inbox| {
            inbox.put("a", &record(1)).unwrap();
            let path = disk.paths().pop().unwrap();
            let whole = disk.contents(&path);
            for byte in 0..whole.len() {
                let mut flipped = whole.clone();
                flipped[byte] ^= 8;
                disk.put(&path, &flipped);
                let found = inbox.read().unwrap();
                assert!(found.by_namespace.is_empty(), "byte {byte}");
                assert!(found.left_out[0].path == path && found.left_out[0].is_damage(), "byte {byte}");
                disk.put(&path, &whole[..byte]);
                assert_eq!(inbox.read().unwrap().left_out.len(), 1, "{byte} bytes");
            }
            let mut left_out = inbox.read().unwrap().left_out;
            inbox.set_aside(&mut left_out).unwrap();
            assert!(inbox.read().unwrap().left_out.is_empty());
            assert_eq!(inbox.forget(Some("b"), true).unwrap(), Vec::<PathBuf>::new());
            assert_eq!(inbox.forget(Some("a"), false).unwrap(), [left_out[0].aside.clone().unwrap()]);
            assert_eq!(disk.paths(), Vec::<PathBuf>::new());
        });
    }
}
