//! Values computed from the texts of passages, stored beside the index: token ids of a tokenizer, vectors of an
//! embedder.
//!
//! A file has a header with the identity of the tokenizer or embedder, then records that are appended: the key of a
//! text, and its value. Equal texts share a record, and a changed note keeps the records of its unchanged passages.
//! Each record has a checksum. The first record that is cut or damaged ends the file for a reader; the writer cuts it off
//! there and computes the rest again.
//!
//! With a key, key and value of a record are a part of [`seal`](crate::seal). Its place is the offset in the file: a record
//! that stands elsewhere is damaged. The magic number is another.
//!
//! A record whose text is in no passage any more could tell the text, so a purge writes the file again without it.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use refrain::TokenId;
use refrain_files::open_regular;
use refrain_files::replace::private_options;
use xxhash_rust::xxh3::xxh3_64;

use super::codec::{Decoder, Encoder};
use super::error::{NotesError, io_error};
use super::files::{self, Folder};
use crate::disk_file::{DiskFile, if_there};
use crate::seal::{self, Seal};

/// The kind of values in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DerivedKind {
    Tokens,
    Vectors,
}

impl DerivedKind {
    const ALL: [Self; 2] = [Self::Tokens, Self::Vectors];

    fn name(self) -> &'static str {
        match self {
            Self::Tokens => "tokens",
            Self::Vectors => "vectors",
        }
    }

    pub(super) fn path(self, folder: &Path, identity: u64) -> PathBuf {
        folder.join(format!("{}-{identity:016x}", self.name()))
    }

    /// Kind and identity of a file name; `None` for other names.
    pub(super) fn parse(name: &str) -> Option<(Self, u64)> {
        let (kind, identity) = name.split_once('-')?;
        let kind = Self::ALL.into_iter().find(|known| known.name() == kind)?;
        let identity = u64::from_str_radix(identity, 16).ok()?;
        (kind.path(Path::new(""), identity).to_str() == Some(name)).then_some((kind, identity))
    }
}

/// The files of a folder.
pub(super) fn list(folder: &Path) -> Result<Vec<(DerivedKind, u64)>, NotesError> {
    let mut found: Vec<_> =
        files::names(folder)?.iter().filter_map(|name| DerivedKind::parse(name)).collect();
    found.sort_by_key(|&(kind, identity)| (kind as u8, identity));
    Ok(found)
}

const MAGIC: &[u8; 8] = b"RFNOTES2";
const SEALED_MAGIC: &[u8; 8] = b"RFNOTESK";
/// Magic, kind, identity.
const HEADER: usize = 24;
/// Length and checksum of what follows: key and value.
const RECORD: usize = 12;
const KEY: usize = 8;
/// Maximum length of a value, in bytes: a vector of 16,384 numbers, or the tokens of a passage many times over.
const VALUE_BYTES_MAX: u32 = 1 << 16;

/// An open file of values.
#[derive(Debug)]
pub(super) struct Derived {
    path: PathBuf,
    records: Records,
    file: File,
    /// Offset and length of each key's record, without its head.
    places: HashMap<u64, (u64, u32)>,
    /// Offset behind the last sound record.
    end: u64,
}

impl Derived {
    /// Opens a file for reading; `None` if it does not exist or its header is damaged. Damaged records are left out.
    pub(super) fn open(
        folder: &Folder,
        kind: DerivedKind,
        identity: u64,
    ) -> Result<Option<Self>, NotesError> {
        let path = kind.path(folder, identity);
        let opened = if_there(open_regular(&path)).map_err(io_error("open", &path))?;
        let Some(file) = opened else { return Ok(None) };
        let records = Records::new(&folder.seal, kind, identity);
        Self::scan(path.clone(), file, records).map_err(io_error("read", &path))
    }

    /// Opens a file for appending, and creates it if necessary. The second value tells whether a part was damaged.
    pub(super) fn open_to_write(
        folder: &Folder,
        kind: DerivedKind,
        identity: u64,
    ) -> Result<(Self, bool), NotesError> {
        let path = kind.path(folder, identity);
        let io = |source| NotesError::Io { action: "write", path: path.clone(), source };
        let mut file =
            private_options().read(true).write(true).create(true).truncate(false).open(&path).map_err(io)?;
        let len = DiskFile::len(&file).map_err(io)?;
        let records = Records::new(&folder.seal, kind, identity);
        let scanned = Self::scan(path.clone(), file.try_clone().map_err(io)?, records.clone()).map_err(io)?;
        if let Some(derived) = scanned {
            let is_cut = derived.end < len;
            if is_cut {
                DiskFile::set_len(&derived.file, derived.end).map_err(io)?;
            }
            return Ok((derived, is_cut));
        }
        DiskFile::set_len(&file, 0).map_err(io)?;
        file.seek(SeekFrom::Start(0)).map_err(io)?;
        file.write_all(&records.header).map_err(io)?;
        let derived = Self { path: path.clone(), records, file, places: HashMap::new(), end: HEADER as u64 };
        Ok((derived, len > 0))
    }

    fn scan(path: PathBuf, mut file: File, records: Records) -> io::Result<Option<Self>> {
        let len = DiskFile::len(&file)?;
        file.seek(SeekFrom::Start(0))?;
        let mut reader = io::BufReader::with_capacity(1 << 16, &mut file);
        let mut found = [0; HEADER];
        if len < HEADER as u64 {
            return Ok(None);
        }
        reader.read_exact(&mut found)?;
        if found[..] != records.header[..] {
            return Ok(None);
        }
        let (mut places, mut end) = (HashMap::new(), HEADER as u64);
        let mut record = Vec::new();
        while end + RECORD as u64 <= len {
            let mut head = [0; RECORD];
            reader.read_exact(&mut head)?;
            let mut decoder = Decoder(&head);
            let (Some(n), Some(sum)) = (decoder.u32(), decoder.u64()) else { break };
            let at = end + RECORD as u64;
            if n > records.bytes_max() || at + u64::from(n) > len {
                break;
            }
            record.resize(n as usize, 0);
            reader.read_exact(&mut record)?;
            let key = (xxh3_64(&record) == sum).then(|| records.open(at, &record)).flatten();
            let Some((key, _)) = key else { break };
            places.insert(key, (at, n));
            end = at + u64::from(n);
        }
        drop(reader);
        Ok(Some(Self { path, records, file, places, end }))
    }

    pub(super) fn contains(&self, key: u64) -> bool {
        self.places.contains_key(&key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = u64> + '_ {
        self.places.keys().copied()
    }

    /// The value of a key.
    pub(super) fn value(&self, key: u64) -> Result<Option<Vec<u8>>, NotesError> {
        let Some(&place) = self.places.get(&key) else { return Ok(None) };
        self.records.value(&self.file, place).map(Some).map_err(io_error("read", &self.path))
    }

    /// Appends values; keys that are present keep theirs, and values over the limit are left out. Call
    /// [`sync`](Self::sync) when all are appended.
    pub(super) fn append(&mut self, values: &[(u64, Vec<u8>)]) -> Result<(), NotesError> {
        let mut bytes = Vec::new();
        let mut placed = HashMap::new();
        for (key, value) in values {
            if self.places.contains_key(key)
                || placed.contains_key(key)
                || value.len() > VALUE_BYTES_MAX as usize
            {
                continue;
            }
            let at = self.end + (bytes.len() + RECORD) as u64;
            self.records.encode(at, *key, value, &mut bytes).map_err(io_error("encrypt", &self.path))?;
            placed.insert(*key, (at, (self.end + bytes.len() as u64 - at) as u32));
        }
        self.file.write_at(&bytes, self.end).map_err(io_error("write", &self.path))?;
        self.end += bytes.len() as u64;
        self.places.extend(placed);
        Ok(())
    }

    pub(super) fn sync(&self) -> Result<(), NotesError> {
        DiskFile::sync(&self.file).map_err(io_error("sync", &self.path))
    }
}

/// Writes a file again without the keys that are not `live`, if it has any. A damaged file is removed: its bytes may be
/// any. Returns whether it was damaged.
pub(super) fn compact(
    folder: &Folder,
    kind: DerivedKind,
    identity: u64,
    live: &HashSet<u64>,
) -> Result<bool, NotesError> {
    let path = kind.path(folder, identity);
    let Some(derived) = Derived::open(folder, kind, identity)? else {
        let is_damaged = path.exists();
        files::remove(&path)?;
        return Ok(is_damaged);
    };
    let io = |source| NotesError::Io { action: "write", path: path.clone(), source };
    let is_cut = DiskFile::len(&derived.file).map_err(io)? > derived.end;
    if !is_cut && derived.keys().all(|key| live.contains(&key)) {
        return Ok(false);
    }
    let written = files::replace_by(&path, true, |file| {
        let mut writer = io::BufWriter::new(file);
        writer.write_all(&derived.records.header)?;
        // In the order of the file, so that its pages are read once.
        let mut kept: Vec<_> = derived.places.iter().filter(|(key, _)| live.contains(key)).collect();
        kept.sort_by_key(|(_, (at, _))| *at);
        let (mut bytes, mut end) = (Vec::new(), HEADER as u64);
        for (&key, &place) in kept {
            let value = derived.records.value(&derived.file, place)?;
            derived.records.encode(end + RECORD as u64, key, &value, &mut bytes)?;
            writer.write_all(&bytes)?;
            end += bytes.len() as u64;
            bytes.clear();
        }
        writer.flush()
    });
    written.map_err(io)?;
    Ok(is_cut)
}

/// The form of the records of a file.
#[derive(Debug, Clone)]
struct Records {
    seal: Seal,
    header: Vec<u8>,
}

impl Records {
    fn new(seal: &Seal, kind: DerivedKind, identity: u64) -> Self {
        let mut header = Encoder(if seal.encrypts() { SEALED_MAGIC } else { MAGIC }.to_vec());
        header.u64(kind as u64);
        header.u64(identity);
        Self { seal: seal.clone(), header: header.0 }
    }

    /// The place of a record, for its encryption.
    fn place(&self, at: u64) -> Vec<u8> {
        seal::place("notes values", &[&self.header[..], &at.to_le_bytes()].concat())
    }

    /// Maximum length of a record without its head.
    fn bytes_max(&self) -> u32 {
        VALUE_BYTES_MAX + (KEY + self.seal.part_bytes()) as u32
    }

    /// Appends a record whose head ends at an offset of the file.
    fn encode(&self, at: u64, key: u64, value: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let mut part = Vec::with_capacity(KEY + value.len() + self.seal.part_bytes());
        self.seal.close(&self.place(at), &[&key.to_le_bytes(), value].concat(), &mut part)?;
        out.extend_from_slice(&(part.len() as u32).to_le_bytes());
        out.extend_from_slice(&xxh3_64(&part).to_le_bytes());
        out.extend_from_slice(&part);
        Ok(())
    }

    /// Key and value of a record without its head.
    fn open(&self, at: u64, record: &[u8]) -> Option<(u64, Vec<u8>)> {
        let mut contents = self.seal.open(&self.place(at), record)?;
        let key = u64::from_le_bytes(*contents.first_chunk()?);
        contents.drain(..KEY);
        Some((key, contents))
    }

    fn value(&self, file: &File, (at, n): (u64, u32)) -> io::Result<Vec<u8>> {
        let mut record = vec![0; n as usize];
        file.read_at(&mut record, at)?;
        let opened = self.open(at, &record).map(|(_, value)| value);
        opened.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a record has changed"))
    }
}

pub(super) fn encode_tokens(tokens: &[TokenId]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.0.to_le_bytes()).collect()
}

pub(super) fn decode_tokens(bytes: &[u8]) -> Vec<TokenId> {
    bytes.as_chunks().0.iter().map(|&token| TokenId(u32::from_le_bytes(token))).collect()
}

pub(super) fn encode_vector(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|value| value.to_le_bytes()).collect()
}

pub(super) fn decode_vector(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|&value| f32::from_le_bytes(value)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const KIND: DerivedKind = DerivedKind::Tokens;

    fn folders() -> [(tempfile::TempDir, Folder); 2] {
        [None, Some([7; 32])].map(|key| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().to_owned();
            (folder, Folder::new(path, key.as_ref()))
        })
    }

    fn values(folder: &Folder) -> Vec<(u64, Vec<u8>)> {
        let Some(derived) = Derived::open(folder, KIND, 7).unwrap() else { return Vec::new() };
        let mut keys: Vec<u64> = derived.keys().collect();
        keys.sort_unstable();
        keys.into_iter().map(|key| (key, derived.value(key).unwrap().unwrap())).collect()
    }

    fn written(folder: &Folder) -> Vec<(u64, Vec<u8>)> {
        let (mut derived, _) = Derived::open_to_write(folder, KIND, 7).unwrap();
        derived.append(&[(1, b"one".to_vec()), (2, Vec::new()), (1, b"again".to_vec())]).unwrap();
        derived.append(&[(3, b"three".to_vec())]).unwrap();
        derived.sync().unwrap();
        vec![(1, b"one".to_vec()), (2, Vec::new()), (3, b"three".to_vec())]
    }

    #[test]
    fn values_come_back_and_dead_ones_leave_no_byte() {
        for (_temporary, folder) in &folders() {
            let all = written(folder);
            assert_eq!(values(folder), all);
            assert_eq!(list(folder).unwrap(), [(KIND, 7)]);
            let raw = || fs::read(KIND.path(folder, 7)).unwrap();
            let has = |bytes: &[u8], word: &[u8]| bytes.windows(word.len()).any(|window| window == word);
            assert_eq!(has(&raw(), b"three"), !folder.seal.encrypts());
            // Hashes of texts tell them to whoever guesses.
            assert_eq!(has(&raw(), &3_u64.to_le_bytes()), !folder.seal.encrypts());
            compact(folder, KIND, 7, &[2, 3].into()).unwrap();
            assert_eq!(values(folder), all[1..]);
            assert!(!has(&raw(), b"one"));
        }
    }

    #[test]
    fn every_cut_and_every_damaged_byte_leaves_a_prefix() {
        for (_temporary, folder) in &folders() {
            let all = written(folder);
            let path = KIND.path(folder, 7);
            let bytes = fs::read(&path).unwrap();
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 0x10;
                for broken in [&damaged[..], &bytes[..at]] {
                    fs::write(&path, broken).unwrap();
                    let read = values(folder);
                    assert!(read.len() < all.len() && read == all[..read.len()], "byte {at}");
                    let (mut derived, _) = Derived::open_to_write(folder, KIND, 7).unwrap();
                    derived.append(&all).unwrap();
                    assert_eq!(values(folder), all, "byte {at}");
                }
            }
        }
    }
}
