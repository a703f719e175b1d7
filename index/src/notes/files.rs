//! Small files of the index: replaced as a whole, with a checksum at their end. With a key, both are encrypted.

use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::Deref;
use std::path::{Path, PathBuf};

use refrain_files::replace::{Manner, ReplaceError, private_options, remove_leftovers, replace_file};
use xxhash_rust::xxh3::xxh3_64;

use super::error::{NotesError, io_error};
use crate::disk_file::if_there;
use crate::history::disk::{Disk, RealDisk};
use crate::seal::{self, KEY_FILE, Seal, check_key, is_before_key};

/// The folder of an index, or one in it, with the encryption of the index.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    path: PathBuf,
    pub(super) seal: Seal,
}

impl Folder {
    pub(super) fn new(path: PathBuf, key: Option<&[u8; 32]>) -> Self {
        Self { path, seal: Seal::new(key, "refrain notes 2026-11: contents of files") }
    }

    /// A folder in this one.
    pub(super) fn inside(&self, name: &str) -> Self {
        Self { path: self.path.join(name), seal: self.seal.clone() }
    }
}

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for Folder {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// The place of a file, for its encryption.
pub(super) fn sealed(path: &Path) -> Vec<u8> {
    seal::place("notes", path.file_name().unwrap_or_default().as_encoded_bytes())
}

/// Length of the checksum.
const SUM: usize = 8;

/// Replaces a file, so that a reader or a crash sees the old or the new contents. `durably`: a loss of power too.
pub(super) fn replace(seal: &Seal, path: &Path, bytes: &[u8], durably: bool) -> io::Result<()> {
    let bytes = [bytes, &xxh3_64(bytes).to_le_bytes()].concat();
    let bytes = seal.close_blob(&sealed(path), bytes)?;
    replace_by(path, durably, |file| file.write_all(&bytes))
}

/// As [`replace`], by what a function writes.
pub(super) fn replace_by(
    path: &Path,
    durably: bool,
    write: impl FnOnce(&mut File) -> io::Result<()>,
) -> io::Result<()> {
    let manner = if durably { Manner::Private } else { Manner::PrivateNotDurable };
    replace_file(path, manner, |file| write(file).map_err(Failed)).map_err(|Failed(error)| error)
}

/// An error of a replacement. Its path is added by the caller.
struct Failed(io::Error);

impl From<ReplaceError> for Failed {
    fn from(error: ReplaceError) -> Self {
        Self(error.source)
    }
}

/// The contents of a replaced file. A wrong checksum is [`io::ErrorKind::InvalidData`], and so is a wrong tag.
pub(super) fn read(seal: &Seal, path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = seal.open_blob(&sealed(path), fs::read(path)?)?;
    let at = bytes.len().checked_sub(SUM);
    let is_sound = at.is_some_and(|at| bytes[at..] == xxh3_64(&bytes[..at]).to_le_bytes());
    match at {
        Some(at) if is_sound => {
            bytes.truncate(at);
            Ok(bytes)
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "wrong checksum")),
    }
}

/// As [`read`]; `None` if the file is missing.
///
/// # Errors
/// [`NotesError::Damaged`], [`NotesError::Io`].
pub(super) fn read_whole(seal: &Seal, path: &Path) -> Result<Option<Vec<u8>>, NotesError> {
    if_there(read(seal, path)).map_err(|error| match is_damage(&error) {
        true => NotesError::damaged(path, "wrong checksum"),
        false => io_error("read", path)(error),
    })
}

/// Whether reading failed because the contents are wrong, not because of the disk.
pub(super) fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

/// Removes what killed processes were writing in a folder. Its text may be any.
pub(super) fn remove_unfinished(folder: &Path) -> Result<(), NotesError> {
    if_there(remove_leftovers(folder, None)).map(drop).map_err(io_error("remove unfinished files of", folder))
}

pub(super) fn folder_of(path: &Path) -> &Path {
    path.parent().expect("files of the index lie in a folder")
}

/// Removes a file, if it exists.
pub(super) fn remove(path: &Path) -> Result<(), NotesError> {
    if_there(fs::remove_file(path)).map(drop).map_err(io_error("remove", path))
}

/// Names in a folder. Empty if it does not exist.
pub(super) fn names(folder: &Path) -> Result<Vec<String>, NotesError> {
    Ok(if_there(RealDisk.list(folder)).map_err(io_error("read", folder))?.unwrap_or_default())
}

/// Compares the key with the folder of an index. The writer of a new index notes its key.
///
/// # Errors
/// [`NotesError::Key`], before anything is read or changed.
pub(super) fn check_store_key(folder: &Folder, writes: bool) -> Result<(), NotesError> {
    let path = folder.join(KEY_FILE);
    // Before the key is read: it is written first.
    // Apart from the lock, the inbox and the key, no file of an index is hidden.
    let has_files = names(folder)?.iter().any(|name| !name.starts_with('.') && !is_before_key(name));
    let found = if_there(fs::read(&path)).map_err(io_error("read", &path))?;
    let is_new = check_key(&folder.seal, found, has_files)
        .map_err(|problem| NotesError::Key { path: folder.to_path_buf(), problem })?;
    if is_new && writes {
        let written =
            folder.seal.key_blob().and_then(|blob| replace_by(&path, true, |file| file.write_all(&blob)));
        written.map_err(io_error("write", &path))?;
    }
    Ok(())
}

/// Creates a folder that only its owner may access.
pub(super) fn create_folder(folder: &Path) -> Result<(), NotesError> {
    RealDisk.create_dir(folder).map_err(io_error("create", folder))
}

/// Makes the names in a folder durable.
pub(super) fn sync_folder(folder: &Path) -> Result<(), NotesError> {
    RealDisk.sync_dir(folder).map_err(io_error("sync", folder))
}

/// Creates a file that only its owner may access; it must not exist.
pub(super) fn create_new(path: &Path) -> io::Result<File> {
    private_options().read(true).write(true).create_new(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaced_files_are_read_and_every_damaged_byte_is_noticed() {
        for key in [None, Some([7; 32])] {
            let temporary = tempfile::tempdir().unwrap();
            let folder = Folder::new(temporary.path().to_owned(), key.as_ref());
            let (seal, path) = (&folder.seal, folder.join("a"));
            replace(seal, &path, b"contents", true).unwrap();
            assert_eq!(read(seal, &path).unwrap(), b"contents");
            let bytes = fs::read(&path).unwrap();
            for at in 0..bytes.len() {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1;
                fs::write(&path, &damaged).unwrap();
                assert!(is_damage(&read(seal, &path).unwrap_err()), "byte {at}");
                fs::write(&path, &bytes[..at]).unwrap();
                assert!(is_damage(&read(seal, &path).unwrap_err()), "length {at}");
            }
            fs::write(folder.join("b"), &bytes).unwrap();
            assert_eq!(read(seal, &folder.join("b")).is_ok(), key.is_none(), "another place");
        }
    }
}
