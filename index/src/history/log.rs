//! The log of a namespace: its newest responses in order of their appends.
//!
//! All numbers are little-endian.
//!
//! ```text
//! header, 64 bytes   magic 8 · version u32 · 0 u32 · owner u64 · number u64 · replaces u64 · 0 16 · XXH3 of it u64
//! record             tokens u32 · sum of this head u32 · id u64 · sum of the tokens u64 · tokens u32 each
//! ```
//!
//! Both sums of a record are seeded by the owner (model and namespace) and the number of the log. The sum of
//! the tokens is also seeded by the id. A record copied from another log is therefore detected. Ids ascend.
//! The sum of the head protects the length.
//!
//! With a key, the version is [`SEALED`], the tokens are a part of [`seal`](crate::seal), and the sum is that of the part. The
//! part's place is its log, with the id and the length of the record: these stay visible.
//!
//! An incomplete record at the end of the file is the result of a crash during the last append: the *torn
//! tail*. It is cut off before the next append. Any other invalid bytes are damage: such a file is never
//! changed or removed.

use std::io;
use std::path::{Path, PathBuf};

use refrain::TokenId;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::changes::put_file;
use super::disk::SealedDisk;
use super::error::{HistoryError, io_error};
use super::key::{FileKind, RecordId};
use super::options::SyncPolicy;
use crate::disk_file::DiskFile;
use crate::seal::{self, KeyProblem, Seal};

const MAGIC: [u8; 8] = *b"RFRNHLOG";
const VERSION: u32 = 1;
/// The version of a log whose tokens are encrypted.
const SEALED: u32 = VERSION | 1 << 31;
const HEADER_BYTES: usize = 64;
const HEAD_BYTES: usize = 24;

/// Maximum length of a readable log: far above any limit of its tokens.
const LOG_BYTES_MAX: u64 = 1 << 28;

/// A response with its id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Record {
    pub(super) id: RecordId,
    pub(super) tokens: Box<[TokenId]>,
}

/// The place of a file: its history and namespace, and its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) owner: u64,
    pub(super) number: u64,
}

impl Place {
    fn seed(self) -> u64 {
        xxh3_64_with_seed(&self.number.to_le_bytes(), self.owner)
    }

    /// The place of a file of a kind, for its encryption.
    pub(super) fn sealed(self, kind: &str) -> Vec<u8> {
        seal::place(kind, &[self.owner.to_le_bytes(), self.number.to_le_bytes()].concat())
    }
}

/// A log opened for appending.
#[derive(Debug)]
pub(super) struct Log {
    file: Box<dyn DiskFile>,
    seal: Seal,
    path: PathBuf,
    place: Place,
    /// Bytes of complete records, and the durable part of them.
    len: u64,
    synced_len: u64,
    n_unsynced: u32,
}

/// The contents of a log.
#[derive(Debug)]
pub(super) struct Scan {
    pub(super) path: PathBuf,
    pub(super) records: Vec<Record>,
    /// The number of the replaced log.
    pub(super) replaces: u64,
    /// The offset of the end of the readable records.
    pub(super) end: u64,
    /// The torn tail: offset and bytes.
    pub(super) torn: Option<(u64, u64)>,
    /// Damaged places: offset, bytes and kind of damage.
    pub(super) damaged: Vec<(u64, u64, &'static str)>,
}

/// The error of an append.
#[derive(Debug)]
pub(super) struct AppendError {
    pub(super) error: HistoryError,
    /// Whether the contents of the file are now unknown.
    pub(super) stops: bool,
}

impl Log {
    /// Writes a new log with these records, durably.
    pub(super) fn create(
        disk: &SealedDisk,
        folder: &Path,
        place: Place,
        replaces: u64,
        records: &[Record],
    ) -> Result<Self, HistoryError> {
        let path = FileKind::Log.path(folder, place.number);
        let seal = disk.seal().clone();
        let bytes = encode_log(&seal, place, replaces, records).map_err(io_error("encrypt", &path))?;
        let file = put_file(disk, &path, |file| file.write_at(&bytes, 0))?;
        let len = bytes.len() as u64;
        Ok(Log { file, seal, path, place, len, synced_len: len, n_unsynced: 0 })
    }

    /// Opens a log without damage for appending, after it was read. The torn tail is cut off.
    pub(super) fn resume(disk: &SealedDisk, place: Place, scan: &Scan) -> Result<Self, HistoryError> {
        debug_assert!(scan.damaged.is_empty(), "{:?}", scan.damaged);
        let (path, len) = (scan.path.clone(), scan.end);
        let file = disk.open_to_write(&path).map_err(io_error("open", &path))?;
        if scan.torn.is_some() {
            let cut = file.set_len(len).and_then(|()| file.sync());
            cut.map_err(io_error("cut off the torn tail of", &path))?;
        }
        Ok(Log { file, seal: disk.seal().clone(), path, place, len, synced_len: len, n_unsynced: 0 })
    }

    /// Appends a record, durable according to `policy`. After an error the log does not contain it.
    pub(super) fn append(&mut self, record: &Record, policy: SyncPolicy) -> Result<(), AppendError> {
        let mut bytes = Vec::new();
        let encoded = encode(&self.seal, record, self.place, &mut bytes);
        encoded
            .map_err(|source| AppendError { error: io_error("encrypt", &self.path)(source), stops: false })?;
        if let Err(source) = self.file.write_at(&bytes, self.len) {
            // A full disk is not fatal: the written part is cut off, and the old state is restored.
            let stops = self.file.set_len(self.len).is_err();
            return Err(AppendError { error: io_error("append to", &self.path)(source), stops });
        }
        self.len += bytes.len() as u64;
        self.n_unsynced += 1;
        let is_due = match policy {
            SyncPolicy::Always => true,
            SyncPolicy::Every(n) => self.n_unsynced >= n,
            SyncPolicy::Never => false,
        };
        if is_due {
            self.sync().map_err(|error| AppendError { error, stops: true })?;
        }
        Ok(())
    }

    /// Makes all records durable. After an error the log must not be written again. It is then unknown which
    /// unsynced records are on the disk, and the system may have marked them as clean. They are cut off, so
    /// that no later open trusts them.
    pub(super) fn sync(&mut self) -> Result<(), HistoryError> {
        if self.synced_len == self.len {
            return Ok(());
        }
        if let Err(source) = self.file.sync() {
            let _ = self.file.set_len(self.synced_len);
            return Err(io_error("sync", &self.path)(source));
        }
        (self.synced_len, self.n_unsynced) = (self.len, 0);
        Ok(())
    }

    pub(super) fn number(&self) -> u64 {
        self.place.number
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn bytes(&self) -> u64 {
        self.len
    }
}

/// Reads a log. Changes nothing. Damage is skipped and listed; the records after it are identified by their
/// sums.
///
/// # Errors
/// The file cannot be read, is longer than any valid log, has another version or belongs elsewhere.
pub(super) fn read_log(disk: &SealedDisk, path: PathBuf, place: Place) -> Result<Scan, HistoryError> {
    let file = disk.open(&path).map_err(io_error("open", &path))?;
    let bytes = read_all(&*file, &path, LOG_BYTES_MAX)?;
    let mut scan = Scan { path, records: Vec::new(), replaces: 0, end: 0, torn: None, damaged: Vec::new() };
    let mut end = bytes.len().min(HEADER_BYTES);
    let seal = disk.seal();
    match read_header(&bytes, seal, place, &scan.path) {
        Ok(replaces) => scan.replaces = replaces,
        Err(HistoryError::Damaged { what, .. }) => scan.damaged.push((0, end as u64, what)),
        Err(error) => return Err(error),
    }
    while end < bytes.len() {
        let newest = scan.records.last().map(|record| record.id);
        if let Some((record, next)) = decode(seal, &bytes, end, place, newest) {
            scan.records.push(record);
            end = next;
            continue;
        }
        let mut later = (end + 4..bytes.len()).step_by(4);
        let next = later.find(|&at| decode(seal, &bytes, at, place, newest).is_some());
        if next.is_none() && is_cut_short(&bytes[end..], place.seed(), seal.part_bytes()) {
            scan.torn = Some((end as u64, (bytes.len() - end) as u64));
            break;
        }
        let next = next.unwrap_or(bytes.len());
        scan.damaged.push((end as u64, (next - end) as u64, "a record's checksum"));
        end = next;
    }
    scan.end = end as u64;
    Ok(scan)
}

/// Whether the end of a log is the result of a crash during an append. The end is then shorter than a head,
/// shorter than the length in its head, or all zeros (the file grew before its contents were written).
fn is_cut_short(tail: &[u8], seed: u64, part_bytes: usize) -> bool {
    let Some(head) = tail.get(..HEAD_BYTES) else { return true };
    let (n_tokens, sum, id, body_sum) = (u32_at(head, 0), u32_at(head, 4), u64_at(head, 8), u64_at(head, 16));
    let is_head = sum == head_sum(n_tokens, id, body_sum, seed);
    is_head && (HEAD_BYTES + part_bytes) as u64 + u64::from(n_tokens) * 4 > tail.len() as u64
        || tail.iter().all(|&byte| byte == 0)
}

/// The whole of a file of at most `max` bytes.
pub(super) fn read_all(file: &dyn DiskFile, path: &Path, max: u64) -> Result<Vec<u8>, HistoryError> {
    let bytes = file.len().map_err(io_error("read", path))?;
    if bytes > max {
        return Err(HistoryError::TooLarge { path: path.to_owned(), bytes, max });
    }
    let mut contents = vec![0; bytes as usize];
    file.read_at(&mut contents, 0).map_err(io_error("read", path))?;
    Ok(contents)
}

/// A whole log.
///
/// # Errors
/// As [`Seal::close`].
pub(super) fn encode_log(
    seal: &Seal,
    place: Place,
    replaces: u64,
    records: &[Record],
) -> io::Result<Vec<u8>> {
    let mut bytes = header(version(seal), place, replaces);
    records.iter().try_for_each(|record| encode(seal, record, place, &mut bytes))?;
    Ok(bytes)
}

fn version(seal: &Seal) -> u32 {
    if seal.encrypts() { SEALED } else { VERSION }
}

fn header(version: u32, place: Place, replaces: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER_BYTES);
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&version.to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    for number in [place.owner, place.number, replaces, 0, 0] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
    bytes
}

/// Checks a header and returns the number of the replaced log.
fn read_header(bytes: &[u8], seal: &Seal, place: Place, path: &Path) -> Result<u64, HistoryError> {
    let path = || path.to_owned();
    let what = "the header's checksum";
    let damaged = HistoryError::Damaged { path: path(), offset: 0, what };
    let Some(header) = bytes.get(..HEADER_BYTES) else { return Err(damaged) };
    let (fields, sum) = header.split_at(HEADER_BYTES - 8);
    if fields[..8] != MAGIC || xxh3_64(fields).to_le_bytes() != sum {
        return Err(damaged);
    }
    match u32_at(header, 8) {
        given if given == version(seal) => {}
        SEALED => return Err(HistoryError::Key { path: path(), problem: KeyProblem::Missing }),
        VERSION => return Err(HistoryError::Key { path: path(), problem: KeyProblem::NotEncrypted }),
        given => return Err(HistoryError::Version { path: path(), given, known: VERSION }),
    }
    if (u64_at(header, 16), u64_at(header, 24)) != (place.owner, place.number) {
        return Err(HistoryError::Misplaced { path: path() });
    }
    Ok(u64_at(header, 32))
}

fn encode(seal: &Seal, record: &Record, place: Place, bytes: &mut Vec<u8>) -> io::Result<()> {
    let seed = place.seed();
    let tokens: Vec<u8> = record.tokens.iter().flat_map(|token| token.0.to_le_bytes()).collect();
    let n_tokens = record.tokens.len() as u32;
    let mut part = Vec::with_capacity(tokens.len() + seal.part_bytes());
    seal.close(&part_place(place, n_tokens, record.id.0), &tokens, &mut part)?;
    let body_sum = xxh3_64_with_seed(&part, seed ^ record.id.0);
    bytes.extend_from_slice(&n_tokens.to_le_bytes());
    bytes.extend_from_slice(&head_sum(n_tokens, record.id.0, body_sum, seed).to_le_bytes());
    bytes.extend_from_slice(&record.id.0.to_le_bytes());
    bytes.extend_from_slice(&body_sum.to_le_bytes());
    bytes.extend_from_slice(&part);
    Ok(())
}

/// The place of a record's tokens, for their encryption.
fn part_place(place: Place, n_tokens: u32, id: u64) -> Vec<u8> {
    [&place.sealed("history record")[..], &n_tokens.to_le_bytes(), &id.to_le_bytes()].concat()
}

fn head_sum(n_tokens: u32, id: u64, body_sum: u64, seed: u64) -> u32 {
    let mut head = [0; 20];
    head[..4].copy_from_slice(&n_tokens.to_le_bytes());
    head[4..12].copy_from_slice(&id.to_le_bytes());
    head[12..].copy_from_slice(&body_sum.to_le_bytes());
    xxh3_64_with_seed(&head, seed) as u32
}

/// The record at `at` and the offset of its end, if it is valid and newer than `newest`.
fn decode(
    seal: &Seal,
    bytes: &[u8],
    at: usize,
    place: Place,
    newest: Option<RecordId>,
) -> Option<(Record, usize)> {
    let seed = place.seed();
    let head = bytes.get(at..)?.get(..HEAD_BYTES)?;
    let (n_tokens, sum, id, body_sum) = (u32_at(head, 0), u32_at(head, 4), u64_at(head, 8), u64_at(head, 16));
    if sum != head_sum(n_tokens, id, body_sum, seed) || newest.is_some_and(|newest| id <= newest.0) {
        return None;
    }
    let n_bytes = usize::try_from(u64::from(n_tokens) * 4 + seal.part_bytes() as u64).ok()?;
    let part = bytes[at + HEAD_BYTES..].get(..n_bytes)?;
    if body_sum != xxh3_64_with_seed(part, seed ^ id) {
        return None;
    }
    let tokens = seal.open(&part_place(place, n_tokens, id), part)?;
    let tokens = tokens.chunks_exact(4).map(|token| TokenId(u32_at(token, 0))).collect();
    Some((Record { id: RecordId(id), tokens }, at + HEAD_BYTES + n_bytes))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::super::disk::Disk as _;
    use super::super::testing::{Crash, MemDisk};
    use super::*;

    const PLACE: Place = Place { owner: 3, number: 1 };

    fn record(id: u64, tokens: impl IntoIterator<Item = u32>) -> Record {
        Record { id: RecordId(id), tokens: tokens.into_iter().map(TokenId).collect() }
    }

    fn records() -> Vec<Record> {
        vec![record(1, 0..5), record(2, []), record(7, [u32::MAX, 0, 9]), record(9, 40..60)]
    }

    /// A disk with a log of the records, and the log's bytes.
    fn written() -> (MemDisk, Vec<u8>) {
        let disk = MemDisk::default();
        let folder = Path::new("ns");
        disk.create_dir(folder).unwrap();
        let mut log = Log::create(&disk.plain(), folder, PLACE, 0, &records()[..1]).unwrap();
        for record in &records()[1..] {
            log.append(record, SyncPolicy::Always).unwrap();
        }
        let bytes = disk.contents(log.path());
        (disk, bytes)
    }

    fn path() -> PathBuf {
        FileKind::Log.path(Path::new("ns"), 1)
    }

    fn read(disk: &MemDisk) -> Result<Scan, HistoryError> {
        read_log(&disk.plain(), path(), PLACE)
    }

    #[test]
    fn what_was_written_is_read() {
        let (disk, _) = written();
        let scan = read(&disk).unwrap();
        assert_eq!(scan.records, records());
        assert_eq!((scan.torn, scan.damaged), (None, vec![]));
    }

    #[test]
    fn every_prefix_gives_its_whole_records() {
        let (disk, bytes) = written();
        let mut seen = Vec::new();
        for len in HEADER_BYTES..=bytes.len() {
            for filler in [None, Some(0), Some(0xff)] {
                // The new end of a file may contain any bytes before its contents are durable.
                let mut torn = bytes[..len].to_vec();
                torn.resize(if filler.is_some() { bytes.len() } else { len }, filler.unwrap_or(0));
                disk.put(&path(), &torn);
                let scan = read(&disk).unwrap();
                assert!(records().starts_with(&scan.records), "{len}");
                let whole: usize = scan.records.iter().map(|r| HEAD_BYTES + 4 * r.tokens.len()).sum();
                let is_whole = torn.len() == HEADER_BYTES + whole;
                // The full length with other contents may come from a crash or from damage.
                let is_torn = match filler {
                    None => scan.torn.is_some(),
                    Some(_) => scan.torn.is_some() || scan.damaged.len() == 1,
                };
                assert_eq!(is_torn, !is_whole, "{len}, {filler:?}: {scan:?}");
                seen.push(scan.records.len());
                let is_damaged = !scan.damaged.is_empty();
                if !is_damaged {
                    Log::resume(&disk.plain(), PLACE, &scan).unwrap();
                }
                let kept = if is_damaged { &torn[..] } else { &torn[..HEADER_BYTES + whole] };
                assert_eq!(disk.contents(&path()), kept, "only a torn tail is cut off");
            }
        }
        assert_eq!((seen.first(), seen.last()), (Some(&0), Some(&records().len())));
        for len in 0..HEADER_BYTES {
            disk.put(&path(), &bytes[..len]);
            let scan = read(&disk).unwrap();
            assert_eq!(
                (scan.damaged, scan.records.len()),
                (vec![(0, len as u64, "the header's checksum")], 0)
            );
        }
    }

    #[test]
    fn every_bit_is_covered() {
        let (disk, bytes) = written();
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            disk.put(&path(), &flipped);
            let scan = read(&disk).unwrap();
            let n_lost = records().len() - scan.records.len();
            assert_eq!(n_lost, usize::from(bit / 8 >= HEADER_BYTES), "bit {bit}: no other record is lost");
            let [(offset, n_bytes, _)] = scan.damaged[..] else { panic!("bit {bit}: {scan:?}") };
            assert!((offset..offset + n_bytes).contains(&(bit as u64 / 8)), "bit {bit} found at {offset}");
            assert_eq!(scan.torn, None, "bit {bit}");
        }
    }

    #[test]
    fn a_record_of_another_log_is_none_of_this() {
        let (disk, bytes) = written();
        let folder = Path::new("ns");
        let other = Place { number: 2, ..PLACE };
        let log = Log::create(&disk.plain(), folder, other, 0, &records()).unwrap();
        let foreign = disk.contents(log.path());
        disk.put(
            &path(),
            &[&bytes[..HEADER_BYTES], &foreign[HEADER_BYTES..], &bytes[HEADER_BYTES..]].concat(),
        );
        let scan = read(&disk).unwrap();
        assert_eq!((scan.records, scan.damaged.len(), scan.damaged[0].0), (records(), 1, 64));
        disk.put(&path(), &foreign);
        assert!(matches!(read(&disk), Err(HistoryError::Misplaced { .. })));
    }

    #[test]
    fn a_version_from_the_future_is_named() {
        let (disk, bytes) = written();
        let mut header = bytes[..HEADER_BYTES - 8].to_vec();
        header[8] = 2;
        let sum = xxh3_64(&header).to_le_bytes();
        disk.put(&path(), &[&header[..], &sum, &bytes[HEADER_BYTES..]].concat());
        assert!(matches!(read(&disk), Err(HistoryError::Version { given: 2, .. })));
    }

    #[test]
    fn a_full_disk_costs_the_record_and_nothing_else() {
        let (disk, bytes) = written();
        let mut log = Log::resume(&disk.plain(), PLACE, &read(&disk).unwrap()).unwrap();
        disk.set_bytes_max(disk.used_bytes() + 40);
        let failed = log.append(&record(10, 0..100), SyncPolicy::Always).unwrap_err();
        assert!(!failed.stops, "{:?}", failed.error);
        assert_eq!(disk.contents(log.path()), bytes);
        disk.set_bytes_max(usize::MAX);
        log.append(&record(11, 0..3), SyncPolicy::Always).unwrap();
        disk.crash(Crash::LosesUnsynced);
        assert_eq!(read(&disk).unwrap().records.len(), 5);
    }
}
