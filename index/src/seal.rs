//! Encryption of the files of a store with the app's key (XChaCha20-Poly1305).
//!
//! Each use (notes, history, ledger, prefixes) has a key of its own, derived from the app's (BLAKE3). Every sealed part is
//! authenticated together with its *place*: what it is, and where it belongs. So no part can be changed, exchanged with
//! another, or moved to another file. Whoever may write the disk can still remove files, cut a log behind a record, or put
//! back an older copy of a whole file.
//!
//! Three forms:
//!
//! - a *part*: random nonce 24 · ciphertext · tag 16. Records of logs are parts.
//! - a *blob*, a file that is replaced as a whole: magic 8 · part.
//! - a *file* that is written once and read by position, in chunks:
//!
//! ```text
//!  0  magic        8
//!  8  version      u32
//! 12  0            u32
//! 16  id           16    random
//! 32  length       u64   of the contents
//! 40  0            u64
//! 48  tag          16    of all before
//! 64  chunks             4,096 bytes of ciphertext, the last one less, and a tag of 16 each
//! ```
//!
//! The nonce of a chunk is the file's id and the chunk's number, so a chunk is valid at its place in its file alone. A
//! chunk is written once.
//!
//! The file `.key` in a store's folder is a blob without contents. It tells a wrong key, no key, and a key for a store that
//! is not encrypted from damage, before anything is read or changed.

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use chacha20poly1305::aead::Tag;
use chacha20poly1305::{AeadInOut, KeyInit, XChaCha20Poly1305, XNonce};
use thiserror::Error;

use crate::disk_file::DiskFile;

/// Bytes of a tag.
pub(crate) const TAG_BYTES: usize = 16;

const NONCE_BYTES: usize = 24;

/// Bytes of a part without its contents.
pub const PART_BYTES: usize = NONCE_BYTES + TAG_BYTES;

/// The name of the file that says that a store is encrypted.
pub(crate) const KEY_FILE: &str = ".key";

const BLOB_MAGIC: [u8; 8] = *b"RFNBLOB1";
const FILE_MAGIC: [u8; 8] = *b"RFNFILE1";
const FILE_VERSION: u32 = 1;
const HEADER_BYTES: usize = 64;

/// Bytes of contents in a chunk.
pub(crate) const CHUNK_BYTES: usize = 4096;

/// Chunks that are read or written at a time.
const RUN_CHUNKS: usize = 16;

/// Why a store cannot be opened with a key, or without one. Nothing of the store was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KeyProblem {
    /// The store is encrypted, and no key was given.
    #[error("it is encrypted, and no key was given")]
    Missing,
    /// The store is encrypted with another key.
    #[error("it is encrypted with another key")]
    Wrong,
    /// A key was given for a store that is not encrypted. A store is encrypted from its beginning or not at all: begin a
    /// new one.
    #[error("it is not encrypted, and a key was given")]
    NotEncrypted,
}

/// Shows the fields of options; of the key, only whether there is one.
macro_rules! debug_options {
    ($options:ident: $($field:ident),*) => {
        impl std::fmt::Debug for $options {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let Self { $($field,)* key } = self;
                let mut shown = f.debug_struct(stringify!($options));
                $(shown.field(stringify!($field), $field);)*
                shown.field("encrypts", &key.is_some()).finish()
            }
        }
    };
}

pub(crate) use debug_options;

/// Encrypts and authenticates parts with a key, or leaves them as they are.
#[derive(Clone, Default)]
pub struct Seal(Option<Arc<XChaCha20Poly1305>>);

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seal").field("encrypts", &self.encrypts()).finish()
    }
}

/// What a part is and where it belongs.
pub fn place(kind: &str, name: &[u8]) -> Vec<u8> {
    [kind.as_bytes(), &[0], name].concat()
}

impl Seal {
    /// The seal of a use, which has a constant name.
    pub fn new(key: Option<&[u8; 32]>, of: &'static str) -> Self {
        Self(key.map(|key| Arc::new(XChaCha20Poly1305::new(&blake3::derive_key(of, key).into()))))
    }

    /// Whether there is a key.
    pub fn encrypts(&self) -> bool {
        self.0.is_some()
    }

    /// Bytes by which a part with a key is longer than without.
    pub(crate) fn part_bytes(&self) -> usize {
        if self.encrypts() { PART_BYTES } else { 0 }
    }

    /// Appends a part with these contents.
    ///
    /// # Errors
    /// The system has no random numbers.
    pub fn close(&self, place: &[u8], contents: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let Some(cipher) = &self.0 else {
            out.extend_from_slice(contents);
            return Ok(());
        };
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(&mut nonce).map_err(io::Error::other)?;
        out.extend_from_slice(&nonce);
        let start = out.len();
        out.extend_from_slice(contents);
        let tag = encrypt(cipher, nonce, place, &mut out[start..]);
        out.extend_from_slice(&tag);
        Ok(())
    }

    /// The contents of a part; `None` if it was not closed with this key at this place.
    pub fn open(&self, place: &[u8], part: &[u8]) -> Option<Vec<u8>> {
        let Some(cipher) = &self.0 else { return Some(part.to_vec()) };
        let (nonce, rest) = part.split_first_chunk::<NONCE_BYTES>()?;
        let (contents, tag) = rest.split_last_chunk::<TAG_BYTES>()?;
        let mut contents = contents.to_vec();
        decrypt(cipher, *nonce, place, &mut contents, *tag).then_some(contents)
    }

    /// The file of a blob with these contents.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    pub(crate) fn close_blob(&self, place: &[u8], contents: Vec<u8>) -> io::Result<Vec<u8>> {
        if !self.encrypts() {
            return Ok(contents);
        }
        let mut blob = Vec::with_capacity(BLOB_MAGIC.len() + PART_BYTES + contents.len());
        blob.extend_from_slice(&BLOB_MAGIC);
        self.close(place, &contents, &mut blob)?;
        Ok(blob)
    }

    /// The contents of the file of a blob.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`]: it was not closed with this key at this place.
    /// [`io::ErrorKind::PermissionDenied`]: it is encrypted, and there is no key.
    pub(crate) fn open_blob(&self, place: &[u8], blob: Vec<u8>) -> io::Result<Vec<u8>> {
        let part = blob.strip_prefix(&BLOB_MAGIC);
        match (self.encrypts(), part) {
            (false, None) => Ok(blob),
            (false, Some(_)) => Err(no_key()),
            (true, part) => part.and_then(|part| self.open(place, part)).ok_or_else(damage),
        }
    }

    /// Writes a file that is read by position. `write` may write each chunk once, in any order, and must write from the
    /// beginning of a chunk; only the last one may be shorter.
    pub(crate) fn write_file(
        &self,
        place: &[u8],
        file: &dyn DiskFile,
        write: impl FnOnce(&dyn DiskFile) -> io::Result<()>,
    ) -> io::Result<()> {
        if !self.encrypts() {
            return write(file);
        }
        let writer = Through { file, writer: FileWriter::new(self, place)? };
        write(&writer)?;
        writer.writer.finish(file)
    }

    /// Opens a file that [`write_file`](Self::write_file) or a [`FileWriter`] has written.
    ///
    /// # Errors
    /// As [`open_blob`](Self::open_blob). Chunks are checked when they are read.
    pub(crate) fn open_file(&self, place: &[u8], file: Box<dyn DiskFile>) -> io::Result<Box<dyn DiskFile>> {
        let mut header = [0; HEADER_BYTES];
        let file_len = file.len()?;
        if file_len >= HEADER_BYTES as u64 {
            file.read_at(&mut header, 0)?;
        }
        let Some(cipher) = &self.0 else {
            return if header.starts_with(&FILE_MAGIC) { Err(no_key()) } else { Ok(file) };
        };
        let (fields, tag) = header.split_last_chunk::<TAG_BYTES>().expect("longer than a tag");
        let id: [u8; 16] = fields[16..32].try_into().expect("16 bytes");
        let len = u64::from_le_bytes(fields[32..40].try_into().expect("eight bytes"));
        let is_own = *fields == header_fields(id, len)
            && decrypt(cipher, nonce(id, u64::MAX), &header_place(place, fields), &mut [], *tag);
        if !is_own || sealed_len(len) != Some(file_len) {
            return Err(damage());
        }
        Ok(Box::new(SealedFile { file, cipher: Arc::clone(cipher), place: place.to_vec(), id, len }))
    }
}

fn no_key() -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, KeyProblem::Missing)
}

fn damage() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not encrypted with this key, or damaged")
}

/// Encrypts a part in place, and returns its tag, which covers the place too.
pub(crate) fn encrypt(
    cipher: &XChaCha20Poly1305,
    nonce: [u8; NONCE_BYTES],
    place: &[u8],
    part: &mut [u8],
) -> [u8; TAG_BYTES] {
    let tag = cipher.encrypt_inout_detached(&XNonce::from(nonce), place, part.into());
    tag.expect("a part is shorter than 256 GB").into()
}

/// Decrypts a part in place. Returns false if the tag is not that of part and place; then its contents are unspecified.
pub(crate) fn decrypt(
    cipher: &XChaCha20Poly1305,
    nonce: [u8; NONCE_BYTES],
    place: &[u8],
    part: &mut [u8],
    tag: [u8; TAG_BYTES],
) -> bool {
    let tag = Tag::<XChaCha20Poly1305>::from(tag);
    cipher.decrypt_inout_detached(&XNonce::from(nonce), place, part.into(), &tag).is_ok()
}

fn nonce(id: [u8; 16], chunk: u64) -> [u8; NONCE_BYTES] {
    let mut nonce = [0; NONCE_BYTES];
    nonce[..16].copy_from_slice(&id);
    nonce[16..].copy_from_slice(&chunk.to_le_bytes());
    nonce
}

fn header_fields(id: [u8; 16], len: u64) -> [u8; HEADER_BYTES - TAG_BYTES] {
    let mut fields = [0; HEADER_BYTES - TAG_BYTES];
    fields[..8].copy_from_slice(&FILE_MAGIC);
    fields[8..12].copy_from_slice(&FILE_VERSION.to_le_bytes());
    fields[16..32].copy_from_slice(&id);
    fields[32..40].copy_from_slice(&len.to_le_bytes());
    fields
}

fn header_place(place: &[u8], fields: &[u8]) -> Vec<u8> {
    [place, fields].concat()
}

/// The length of a file with contents of a length.
fn sealed_len(len: u64) -> Option<u64> {
    let tags = len.div_ceil(CHUNK_BYTES as u64).checked_mul(TAG_BYTES as u64)?;
    len.checked_add(tags)?.checked_add(HEADER_BYTES as u64)
}

/// Where a chunk begins.
fn chunk_at(chunk: u64) -> u64 {
    HEADER_BYTES as u64 + chunk * (CHUNK_BYTES + TAG_BYTES) as u64
}

/// Writes the chunks of a file.
pub(crate) struct FileWriter {
    cipher: Arc<XChaCha20Poly1305>,
    place: Vec<u8>,
    id: [u8; 16],
    written: Mutex<Written>,
}

#[derive(Default)]
struct Written {
    chunks: HashSet<u64>,
    len: u64,
    /// Bytes of all chunks.
    n_bytes: u64,
}

impl Written {
    fn is_whole(&self) -> bool {
        self.chunks.len() as u64 == self.len.div_ceil(CHUNK_BYTES as u64) && self.n_bytes == self.len
    }
}

impl FileWriter {
    /// # Errors
    /// As [`Seal::close`].
    ///
    /// # Panics
    /// The seal has no key.
    pub(crate) fn new(seal: &Seal, place: &[u8]) -> io::Result<Self> {
        let cipher = Arc::clone(seal.0.as_ref().expect("a key"));
        let mut id = [0; 16];
        getrandom::fill(&mut id).map_err(io::Error::other)?;
        Ok(Self { cipher, place: place.to_vec(), id, written: Mutex::default() })
    }

    pub(crate) fn write_at(&self, file: &dyn DiskFile, bytes: &[u8], offset: u64) -> io::Result<()> {
        let refused = |what: &str| Err(io::Error::new(io::ErrorKind::InvalidInput, what.to_owned()));
        if !offset.is_multiple_of(CHUNK_BYTES as u64) {
            return refused("not at the beginning of a chunk");
        }
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let mut chunk = offset / CHUNK_BYTES as u64;
        let mut run = Vec::with_capacity(RUN_CHUNKS * (CHUNK_BYTES + TAG_BYTES));
        for contents in bytes.chunks(RUN_CHUNKS * CHUNK_BYTES) {
            let first = chunk;
            run.clear();
            for contents in contents.chunks(CHUNK_BYTES) {
                // Two texts under one nonce would tell their difference.
                if !written.chunks.insert(chunk) {
                    return refused("a chunk is written twice");
                }
                let start = run.len();
                run.extend_from_slice(contents);
                let tag = encrypt(&self.cipher, nonce(self.id, chunk), &self.place, &mut run[start..]);
                run.extend_from_slice(&tag);
                chunk += 1;
            }
            file.write_at(&run, chunk_at(first))?;
        }
        written.len = written.len.max(offset + bytes.len() as u64);
        written.n_bytes += bytes.len() as u64;
        Ok(())
    }

    /// Writes the header, without which the file is not valid.
    pub(crate) fn finish(&self, file: &dyn DiskFile) -> io::Result<()> {
        let (len, is_whole) = {
            let written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
            (written.len, written.is_whole())
        };
        if !is_whole {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "a chunk is missing"));
        }
        let fields = header_fields(self.id, len);
        let tag =
            encrypt(&self.cipher, nonce(self.id, u64::MAX), &header_place(&self.place, &fields), &mut []);
        file.write_at(&[&fields[..], &tag].concat(), 0)
    }
}

/// A file that is being written.
struct Through<'a> {
    file: &'a dyn DiskFile,
    writer: FileWriter,
}

impl fmt::Debug for Through<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Through").field("file", &self.file).finish_non_exhaustive()
    }
}

impl DiskFile for Through<'_> {
    fn len(&self) -> io::Result<u64> {
        Ok(self.writer.written.lock().unwrap_or_else(PoisonError::into_inner).len)
    }

    fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.writer.write_at(self.file, bytes, offset)
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// An open file.
struct SealedFile {
    file: Box<dyn DiskFile>,
    cipher: Arc<XChaCha20Poly1305>,
    place: Vec<u8>,
    id: [u8; 16],
    len: u64,
}

impl fmt::Debug for SealedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SealedFile").field("file", &self.file).finish_non_exhaustive()
    }
}

impl DiskFile for SealedFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_at(&self, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut run = Vec::new();
        while !bytes.is_empty() {
            let (first, skipped) = (offset / CHUNK_BYTES as u64, (offset % CHUNK_BYTES as u64) as usize);
            let n_chunks = (skipped + bytes.len()).div_ceil(CHUNK_BYTES).min(RUN_CHUNKS);
            // The contents of these chunks: the last one of the file may be shorter.
            let n_contents =
                (self.len - first * CHUNK_BYTES as u64).min((n_chunks * CHUNK_BYTES) as u64) as usize;
            run.resize(n_contents + n_chunks * TAG_BYTES, 0);
            self.file.read_at(&mut run, chunk_at(first))?;
            let mut skipped = skipped;
            for (chunk, sealed) in (first..).zip(run.chunks_mut(CHUNK_BYTES + TAG_BYTES)) {
                let (contents, tag) = sealed.split_last_chunk_mut::<TAG_BYTES>().expect("each has a tag");
                if !decrypt(&self.cipher, nonce(self.id, chunk), &self.place, contents, *tag) {
                    return Err(damage());
                }
                let n = (contents.len() - skipped).min(bytes.len());
                bytes[..n].copy_from_slice(&contents[skipped..skipped + n]);
                (bytes, offset, skipped) = (&mut bytes[n..], offset + n as u64, 0);
            }
        }
        Ok(())
    }

    fn write_at(&self, _: &[u8], _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_len(&self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync()
    }
}

/// Compares the key of a store with its folder. `found` has the contents of its [`KEY_FILE`]; `has_files` tells whether it
/// has others. Returns whether the store is new, and the file is to be [written](Seal::key_blob).
///
/// # Errors
/// The key is not that of the store.
pub(crate) fn check_key(seal: &Seal, found: Option<Vec<u8>>, has_files: bool) -> Result<bool, KeyProblem> {
    match (seal.encrypts(), found) {
        (false, None) => Ok(false),
        (false, Some(_)) => Err(KeyProblem::Missing),
        (true, Some(blob)) => match seal.open_blob(&place("key", b""), blob) {
            Ok(_) => Ok(false),
            Err(_) => Err(KeyProblem::Wrong),
        },
        (true, None) if has_files => Err(KeyProblem::NotEncrypted),
        (true, None) => Ok(true),
    }
}

impl Seal {
    /// The contents of [`KEY_FILE`].
    pub(crate) fn key_blob(&self) -> io::Result<Vec<u8>> {
        self.close_blob(&place("key", b""), Vec::new())
    }
}

/// Whether a store's folder may have an entry of this name before the key is written: the writer takes the lock, and others
/// may hand in something meanwhile.
pub(crate) fn is_before_key(name: &str) -> bool {
    // Also what a killed process was writing.
    [".lock", ".inbox"].contains(&name)
        || name.starts_with(KEY_FILE)
        || name.strip_prefix('.').is_some_and(|name| name.starts_with(KEY_FILE))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use std::path::Path;

    use super::*;

    /// Without a key.
    fn plain_seal() -> Seal {
        Seal::default()
    }
    use crate::history::disk::Disk;
    use crate::history::testing::MemDisk;

    const KEY: [u8; 32] = [7; 32];

    fn seal() -> Seal {
        Seal::new(Some(&KEY), "test")
    }

    /// A file whose chunks are written from the last to the first.
    fn written(disk: &MemDisk, path: &str, contents: &[u8]) -> Vec<u8> {
        let file = disk.create(Path::new(path)).unwrap();
        let write = |file: &dyn DiskFile| {
            let chunks: Vec<_> = contents.chunks(CHUNK_BYTES).enumerate().collect();
            chunks.iter().rev().try_for_each(|(i, chunk)| file.write_at(chunk, (i * CHUNK_BYTES) as u64))
        };
        seal().write_file(b"place", &*file, write).unwrap();
        disk.contents(Path::new(path))
    }

    fn set(disk: &MemDisk, path: &str, bytes: &[u8]) -> Box<dyn DiskFile> {
        let file = disk.create(Path::new(path)).unwrap();
        file.write_at(bytes, 0).unwrap();
        disk.open(Path::new(path)).unwrap()
    }

    fn contents(n: usize) -> Vec<u8> {
        (0..n).map(|i| ((i * 31) >> 3) as u8).collect()
    }

    proptest! {
        #[test]
        fn a_file_reads_as_plain_bytes(n in 0..200_000_usize, reads in prop::collection::vec((any::<prop::sample::Index>(), 0..90_000_usize), 1..8)) {
            let (disk, bytes) = (MemDisk::default(), contents(n));
            let raw = written(&disk, "f", &bytes);
            prop_assert_eq!(raw.len() as u64, sealed_len(n as u64).unwrap());
            prop_assert!(n < 64 || !raw.windows(16).any(|window| window == &bytes[40..56]));
            let file = seal().open_file(b"place", disk.open(Path::new("f")).unwrap()).unwrap();
            prop_assert_eq!(file.len().unwrap(), n as u64);
            for (at, n_read) in reads {
                let at = at.index(n + 1);
                let mut read = vec![0; n_read];
                let done = file.read_at(&mut read, at as u64);
                match bytes.get(at..at + n_read) {
                    Some(expected) => prop_assert!(done.is_ok() && read == expected),
                    None => prop_assert_eq!(done.unwrap_err().kind(), io::ErrorKind::UnexpectedEof),
                }
            }
        }

        #[test]
        fn parts_come_back_at_their_place_alone(contents in prop::collection::vec(any::<u8>(), 0..99), at in any::<prop::sample::Index>(), by in 1u8..) {
            let mut part = Vec::new();
            seal().close(b"here", &contents, &mut part).unwrap();
            prop_assert_eq!(part.len(), contents.len() + PART_BYTES);
            prop_assert_eq!(seal().open(b"here", &part), Some(contents.clone()));
            prop_assert_eq!(seal().open(b"there", &part), None);
            prop_assert_eq!(Seal::new(Some(&[8; 32]), "test").open(b"here", &part), None);
            prop_assert_eq!(Seal::new(Some(&KEY), "another use").open(b"here", &part), None);
            let blob = seal().close_blob(b"here", contents.clone()).unwrap();
            prop_assert_eq!(seal().open_blob(b"here", blob.clone()).unwrap(), contents);
            for sealed in [&part, &blob] {
                let mut changed = sealed.clone();
                let at = at.index(changed.len());
                changed[at] ^= by;
                prop_assert_eq!(seal().open(b"here", &changed), None);
                prop_assert_eq!(seal().open_blob(b"here", changed).unwrap_err().kind(), io::ErrorKind::InvalidData);
                prop_assert!(seal().open_blob(b"here", sealed[..at].to_vec()).is_err());
            }
        }
    }

    #[test]
    fn a_file_with_any_change_is_refused() {
        let (disk, bytes) = (MemDisk::default(), contents(3 * CHUNK_BYTES + 5));
        let raw = written(&disk, "f", &bytes);
        let again = written(&disk, "g", &bytes);
        let read = |raw: &[u8], place: &[u8]| -> io::Result<Vec<u8>> {
            let file = seal().open_file(place, set(&disk, "h", raw))?;
            let mut read = vec![0; file.len()? as usize];
            file.read_at(&mut read, 0)?;
            Ok(read)
        };
        assert_eq!(read(&raw, b"place").unwrap(), bytes);
        assert!(read(&raw, b"elsewhere").is_err());
        for at in (0..raw.len()).step_by(29).chain(0..80).chain(raw.len() - 40..raw.len()) {
            let mut changed = raw.clone();
            changed[at] ^= 0x40;
            assert_eq!(read(&changed, b"place").unwrap_err().kind(), io::ErrorKind::InvalidData, "byte {at}");
            assert!(read(&raw[..at], b"place").is_err(), "length {at}");
        }
        let stride = CHUNK_BYTES + TAG_BYTES;
        let chunk = |i: usize| HEADER_BYTES + i * stride..HEADER_BYTES + (i + 1) * stride;
        // Chunks of the same file, and of another version of it, are valid at no other place.
        for from in [&raw[chunk(1)], &again[chunk(0)]] {
            let mut moved = raw.clone();
            moved[chunk(0)].copy_from_slice(from);
            assert!(read(&moved, b"place").is_err());
        }
        assert!(read(&[&again[..HEADER_BYTES], &raw[HEADER_BYTES..]].concat(), b"place").is_err());
    }

    #[test]
    fn chunks_are_written_once_and_whole() {
        let disk = MemDisk::default();
        let file = disk.create(Path::new("f")).unwrap();
        let refused = |writes: &[(usize, u64)]| {
            let write =
                |file: &dyn DiskFile| writes.iter().try_for_each(|&(n, at)| file.write_at(&vec![1; n], at));
            seal().write_file(b"place", &*file, write).unwrap_err().kind()
        };
        for writes in [&[(4096, 0), (4096, 0)][..], &[(4096, 5)], &[(100, 0), (4096, 4096)], &[(4096, 4096)]]
        {
            assert_eq!(refused(writes), io::ErrorKind::InvalidInput, "{writes:?}");
        }
    }

    #[test]
    fn without_a_key_everything_is_as_it_is_and_encrypted_files_are_told_apart() {
        let disk = MemDisk::default();
        let raw = written(&disk, "f", b"contents");
        let kind = |error: io::Error| error.kind();
        let refused = io::ErrorKind::PermissionDenied;
        assert_eq!(kind(plain_seal().open_file(b"place", set(&disk, "g", &raw)).unwrap_err()), refused);
        let blob = seal().close_blob(b"place", b"contents".to_vec()).unwrap();
        assert_eq!(kind(plain_seal().open_blob(b"place", blob).unwrap_err()), refused);
        let plain = plain_seal().open_file(b"place", set(&disk, "h", b"contents")).unwrap();
        assert_eq!(plain.len().unwrap(), 8);
        assert_eq!(
            plain_seal().open_blob(b"place", plain_seal().close_blob(b"x", b"a".to_vec()).unwrap()).unwrap(),
            b"a"
        );
        let blob = seal().key_blob().unwrap();
        assert_eq!(check_key(&seal(), Some(blob.clone()), true), Ok(false));
        assert_eq!(check_key(&seal(), None, false), Ok(true));
        assert_eq!(check_key(&plain_seal(), None, true), Ok(false));
        assert_eq!(check_key(&seal(), None, true), Err(KeyProblem::NotEncrypted));
        assert_eq!(check_key(&plain_seal(), Some(blob.clone()), true), Err(KeyProblem::Missing));
        assert_eq!(check_key(&Seal::new(Some(&[8; 32]), "test"), Some(blob), true), Err(KeyProblem::Wrong));
    }
}
