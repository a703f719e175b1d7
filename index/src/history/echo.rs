//! The kept lists of echo: one file per namespace, beside its answers.
//!
//! All numbers are little-endian.
//!
//! ```text
//! header, 64 bytes   magic 8 · version u32 · lists u32 · owner u64 · begun u64 · 0 16 · sum of the lists u64 · XXH3 of it u64
//! list, 48 bytes     key u64 · tokens u32 × 8 · −log-probabilities in sixteenths u8 × 8
//! ```
//!
//! The sum of the lists is seeded by the owner (model and namespace). *Begun* is the time of the first list, in µs since
//! 1970. Lists come in order of age, the oldest first. The file is replaced as a whole.
//!
//! The lists derive from the answers and the prompts of the namespace, and no list is known to be free of one of them. So
//! a forgotten answer takes all lists of its namespace with it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use refrain::drafting::EchoConfig;
use refrain::internals::draft::{EchoList, EchoStore};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::HistoryError;
use super::changes::{put_file, remove, set_aside};
use super::disk::SealedDisk;
use super::error::{io_error, read_error};
use super::log::{read_all, u32_at, u64_at};
use super::report::LeftOut;
use crate::disk_file::if_there;
use crate::seal::{self, PART_BYTES};

/// The name of the file. Names of logs and segments have a number.
const NAME: &str = "echo";

const MAGIC: [u8; 8] = *b"RFRNECHO";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;
const LIST_BYTES: usize = 48;

/// The length of the longest file.
const BYTES_MAX: u64 = HEADER_BYTES as u64 + LIST_BYTES as u64 * EchoConfig::LISTS_MAX as u64;

/// The contents of a file.
#[derive(Debug)]
struct Contents {
    begun: u64,
    /// The sum of the header, which differs from file to file.
    sum: u64,
    lists: Vec<EchoList>,
}

/// The lists of a namespace in memory, and what is known about their file.
#[derive(Debug)]
pub(super) struct Kept {
    echo: EchoStore,
    lists_max: u32,
    path: PathBuf,
    owner: u64,
    /// The time of the first list, in µs since 1970.
    begun: u64,
    /// The sum of the file's header; `None` without a file.
    sum: Option<u64>,
    /// The number of changes of `echo` that the file has.
    n_changes: u64,
    /// Whether there is a file that is neither used nor damaged: of a newer version, for example. It stays.
    is_blocked: bool,
}

/// The lists of the namespaces that this process uses.
pub(super) type Echoes = BTreeMap<String, Kept>;

impl Kept {
    /// The lists of a namespace's folder.
    pub(super) fn new(folder: &Path, owner: u64, lists_max: u32, now: u64) -> Self {
        let (echo, path) = (EchoStore::new(), folder.join(NAME));
        Self { echo, lists_max, path, owner, begun: now, sum: None, n_changes: 0, is_blocked: false }
    }

    /// The lists. They are at most the largest of all `lists_max`.
    pub(super) fn echo(&mut self, lists_max: u32) -> EchoStore {
        self.lists_max = self.lists_max.max(lists_max);
        self.echo.clone()
    }

    /// Replaces the lists by those of the file. If there is none that can be used, they are dropped; the writer sets a
    /// damaged file aside.
    ///
    /// # Errors
    /// A damaged file cannot be set aside, or the file cannot be opened for a reason that [`LeftOut`] does not know.
    pub(super) fn read(
        &mut self,
        disk: &SealedDisk,
        writes: bool,
        now: u64,
    ) -> Result<Option<LeftOut>, HistoryError> {
        let (contents, left_out) = match read_echo(disk, &self.path, self.owner) {
            Ok(contents) => (contents, None),
            Err(error) => (None, Some(LeftOut::of(error)?)),
        };
        self.is_blocked = left_out.as_ref().is_some_and(|left_out| !left_out.is_damage());
        self.sum = contents.as_ref().map(|contents| contents.sum);
        self.begun = contents.as_ref().map_or(now, |contents| contents.begun);
        let lists = contents.map_or_else(Vec::new, |contents| contents.lists);
        self.n_changes = self.echo.replace(self.lists_max, &lists);
        let Some(mut left_out) = left_out else { return Ok(None) };
        if writes && left_out.is_damage() {
            left_out.aside = Some(set_aside(disk, &self.path)?);
        }
        Ok(Some(left_out))
    }

    /// Whether the file is another than the one that was read or written.
    pub(super) fn is_changed(&self, disk: &SealedDisk) -> bool {
        read_sum(disk, &self.path) != self.sum
    }

    /// Writes the lists, if they have changed since they were read or written. Lists that begun before `oldest` are dropped
    /// instead, with their file.
    ///
    /// # Errors
    /// The old file is kept. The next call tries again.
    pub(super) fn write(&mut self, disk: &SealedDisk, oldest: u64, now: u64) -> Result<(), HistoryError> {
        if self.is_blocked {
            return Ok(());
        }
        if self.begun < oldest {
            return self.forget(disk, now);
        }
        // Lists that are set while the file is written belong to the next one.
        let n_changes = self.echo.n_changes();
        let lists = self.echo.lists();
        if n_changes == self.n_changes || lists.is_empty() {
            return Ok(());
        }
        let bytes = encode(self.owner, self.begun, &lists);
        let bytes =
            disk.seal().close_blob(&sealed(self.owner), bytes).map_err(io_error("encrypt", &self.path))?;
        put_file(disk, &self.path, |file| file.write_at(&bytes, 0))?;
        (self.n_changes, self.sum) = (n_changes, Some(u64_at(&bytes, HEADER_BYTES - 8)));
        Ok(())
    }

    /// Removes the file, durably, then the lists.
    ///
    /// # Errors
    /// Nothing has changed, or the file may come back after a crash.
    pub(super) fn forget(&mut self, disk: &SealedDisk, now: u64) -> Result<(), HistoryError> {
        remove_echo(disk, self.path.parent().expect("files of the store lie in a folder"))?;
        self.forget_lists(now);
        Ok(())
    }

    /// Drops the lists of a file that was removed.
    pub(super) fn forget_lists(&mut self, now: u64) {
        (self.n_changes, self.sum, self.begun) = (self.echo.replace(self.lists_max, &[]), None, now);
        self.is_blocked = false;
    }

    pub(super) fn memory_usage(&self) -> usize {
        self.echo.memory_usage()
    }
}

/// Removes the file of a namespace's folder, durably.
pub(super) fn remove_echo(disk: &SealedDisk, folder: &Path) -> Result<(), HistoryError> {
    let path = folder.join(NAME);
    if matches!(if_there(disk.stat(&path)), Ok(None)) {
        return Ok(());
    }
    remove(disk, &path)?;
    disk.sync_dir(folder).map_err(io_error("sync", folder))
}

/// Reads and checks the file of a namespace's folder.
pub(super) fn verify_echo(disk: &SealedDisk, folder: &Path, owner: u64) -> Result<(), HistoryError> {
    read_echo(disk, &folder.join(NAME), owner).map(drop)
}

/// The length of the file of a namespace's folder; 0 without one.
pub(super) fn echo_bytes(disk: &SealedDisk, folder: &Path) -> u64 {
    disk.stat(&folder.join(NAME)).map_or(0, |(bytes, _)| bytes)
}

/// The sum of a file's header; `None` if there is none.
fn read_sum(disk: &SealedDisk, path: &Path) -> Option<u64> {
    let mut sum = [0; 8];
    disk.open(path).ok()?.read_at(&mut sum, HEADER_BYTES as u64 - 8).ok()?;
    Some(u64::from_le_bytes(sum))
}

/// Reads a file. `None` if it does not exist.
///
/// # Errors
/// The file cannot be read, is longer than any valid one, has another version, belongs elsewhere, or is damaged.
fn read_echo(disk: &SealedDisk, path: &Path, owner: u64) -> Result<Option<Contents>, HistoryError> {
    let Some(file) = if_there(disk.open(path)).map_err(io_error("open", path))? else { return Ok(None) };
    let bytes = read_all(&*file, path, BYTES_MAX + PART_BYTES as u64 + 8)?;
    let sum = bytes.get(HEADER_BYTES - 8..HEADER_BYTES).map(|sum| u64_at(sum, 0));
    let bytes = disk.seal().open_blob(&sealed(owner), bytes).map_err(read_error(path))?;
    let contents = decode(&bytes, path, owner)?;
    // Of the file as it is: encrypted bytes differ from file to file too.
    Ok(Some(Contents { sum: sum.unwrap_or(contents.sum), ..contents }))
}

/// The place of a namespace's lists, for their encryption.
fn sealed(owner: u64) -> Vec<u8> {
    seal::place("history echo", &owner.to_le_bytes())
}

fn encode(owner: u64, begun: u64, lists: &[EchoList]) -> Vec<u8> {
    let mut body = Vec::with_capacity(lists.len() * LIST_BYTES);
    for list in lists {
        body.extend_from_slice(&list.key.to_le_bytes());
        list.tokens.iter().for_each(|token| body.extend_from_slice(&token.to_le_bytes()));
        body.extend_from_slice(&list.sixteenths);
    }
    let mut bytes = Vec::with_capacity(HEADER_BYTES + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&(lists.len() as u32).to_le_bytes());
    for number in [owner, begun, 0, 0, xxh3_64_with_seed(&body, owner)] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
    bytes.append(&mut body);
    bytes
}

fn decode(bytes: &[u8], path: &Path, owner: u64) -> Result<Contents, HistoryError> {
    let damaged = |offset, what| HistoryError::Damaged { path: path.to_owned(), offset, what };
    let Some((header, body)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Err(damaged(bytes.len() as u64, "the header's end"));
    };
    let sum = u64_at(header, HEADER_BYTES - 8);
    if header[..8] != MAGIC || xxh3_64(&header[..HEADER_BYTES - 8]) != sum {
        return Err(damaged(0, "the header's checksum"));
    }
    let given = u32_at(header, 8);
    if given != VERSION {
        return Err(HistoryError::Version { path: path.to_owned(), given, known: VERSION });
    }
    if u64_at(header, 16) != owner {
        return Err(HistoryError::Misplaced { path: path.to_owned() });
    }
    if u64::from(u32_at(header, 12)) * LIST_BYTES as u64 != body.len() as u64 {
        return Err(damaged(12, "the number of lists"));
    }
    if xxh3_64_with_seed(body, owner) != u64_at(header, HEADER_BYTES - 16) {
        return Err(damaged(HEADER_BYTES as u64, "the lists' checksum"));
    }
    let (mut lists, mut keys) = (Vec::with_capacity(body.len() / LIST_BYTES), BTreeSet::new());
    for (bytes, offset) in body.chunks_exact(LIST_BYTES).zip((HEADER_BYTES as u64..).step_by(LIST_BYTES)) {
        let mut list = EchoList { key: u64_at(bytes, 0), tokens: [0; 8], sixteenths: [0; 8] };
        list.tokens.iter_mut().zip((8..).step_by(4)).for_each(|(token, at)| *token = u32_at(bytes, at));
        list.sixteenths.copy_from_slice(&bytes[40..]);
        if !list.is_valid() {
            return Err(damaged(offset, "a list"));
        }
        if !keys.insert(list.key) {
            return Err(damaged(offset, "the key of a list"));
        }
        lists.push(list);
    }
    Ok(Contents { begun: u64_at(header, 24), sum, lists })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OWNER: u64 = 7;

    fn list() -> impl Strategy<Value = EchoList> {
        let tokens = proptest::collection::btree_set(0u32..1 << 20, 1..9);
        (any::<u64>(), tokens, any::<[u8; 8]>()).prop_map(|(key, tokens, mut sixteenths)| {
            let mut list = EchoList { key: key & !1, tokens: [u32::MAX; 8], sixteenths: [u8::MAX; 8] };
            sixteenths.sort_unstable();
            for (i, token) in tokens.into_iter().enumerate() {
                (list.tokens[i], list.sixteenths[i]) = (token, sixteenths[i]);
            }
            list
        })
    }

    fn lists(n_max: usize) -> impl Strategy<Value = Vec<EchoList>> {
        proptest::collection::vec(list(), 0..n_max).prop_map(|mut lists| {
            let mut keys = BTreeSet::new();
            lists.retain(|list| keys.insert(list.key));
            lists
        })
    }

    fn read(bytes: &[u8]) -> Result<Contents, HistoryError> {
        decode(bytes, Path::new("echo"), OWNER)
    }

    /// Corrects the checksums.
    fn sign(bytes: &mut [u8]) {
        let sum = xxh3_64_with_seed(&bytes[HEADER_BYTES..], OWNER);
        bytes[48..56].copy_from_slice(&sum.to_le_bytes());
        let sum = xxh3_64(&bytes[..56]);
        bytes[56..64].copy_from_slice(&sum.to_le_bytes());
    }

    proptest! {
        #[test]
        fn a_file_reads_back_as_it_was(lists in lists(40), begun in any::<u64>()) {
            let bytes = encode(OWNER, begun, &lists);
            let read = read(&bytes).unwrap();
            prop_assert_eq!((read.begun, read.sum), (begun, u64_at(&bytes, 56)));
            prop_assert_eq!(read.lists, lists);
        }

        #[test]
        fn every_changed_byte_is_noticed(lists in lists(6), at in any::<prop::sample::Index>(), by in 1u8..) {
            let mut bytes = encode(OWNER, 3, &lists);
            let at = at.index(bytes.len());
            bytes[at] ^= by;
            for bytes in [&bytes[..], &bytes[..at]] {
                let is_damaged = matches!(read(bytes), Err(HistoryError::Damaged { .. }));
                prop_assert!(is_damaged, "{} bytes", bytes.len());
            }
        }

        /// With correct checksums: a file is refused, or holds lists that a store may have.
        #[test]
        fn a_crafted_file_is_refused_or_valid(
            lists in lists(6),
            edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        ) {
            let mut bytes = encode(OWNER, 3, &lists);
            for (at, byte) in edits {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes[..8].copy_from_slice(&MAGIC);
            sign(&mut bytes);
            if let Ok(contents) = read(&bytes) {
                prop_assert!(contents.lists.iter().all(EchoList::is_valid));
                let echo = EchoStore::new();
                echo.replace(64, &contents.lists);
                prop_assert_eq!(echo.lists(), contents.lists);
            }
        }
    }

    #[test]
    fn what_is_wrong_has_a_place() {
        let one = EchoList { key: 5, tokens: [4, 3, 2, 1, 0, 9, 8, 7], sixteenths: [1; 8] };
        let two = EchoList { key: 6, ..one };
        let whole = encode(OWNER, 0, &[one, two]);
        let error = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = whole.clone();
            change(&mut bytes);
            sign(&mut bytes);
            read(&bytes).unwrap_err().to_string()
        };
        assert_eq!(
            error(&|bytes| bytes[8] = 9),
            "`echo` has version 9 of the history's format, this program reads 1"
        );
        assert!(error(&|bytes| bytes[16] = 9).contains("belongs to another place"));
        assert_eq!(error(&|bytes| bytes[15] = 9), "`echo` is damaged at byte 12: the number of lists");
        assert_eq!(error(&|bytes| bytes.truncate(100)), "`echo` is damaged at byte 12: the number of lists");
        assert_eq!(error(&|bytes| bytes[112] = 5), "`echo` is damaged at byte 112: the key of a list");
        assert_eq!(error(&|bytes| bytes[120] = 3), "`echo` is damaged at byte 112: a list");
        assert_eq!(
            read(&whole[..9]).unwrap_err().to_string(),
            "`echo` is damaged at byte 9: the header's end"
        );
    }
}
