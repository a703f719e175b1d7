//! The list of folders that updates read, and of forgotten files that they do not. It is the only part of the index
//! that cannot be built again from the notes.
//!
//! Of a forgotten file, the list has a hash of the path, so that not even its name remains.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use super::codec::{Decoder, Encoder};
use super::error::{NotesError, io_error};
use super::{files, paths};

/// File name of the list.
pub(super) const NAME: &str = "sources";

/// The version of the format.
const VERSION: u32 = 1;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sources {
    /// Absolute paths. None lies in another.
    pub(super) roots: BTreeSet<PathBuf>,
    /// Hashes of forgotten paths.
    forgotten: BTreeSet<u64>,
}

impl Sources {
    /// Reads the list of a folder. `None` if there is none.
    ///
    /// # Errors
    /// [`NotesError::Damaged`], [`NotesError::Version`] or [`NotesError::Io`].
    pub(super) fn read(folder: &Path) -> Result<Option<Self>, NotesError> {
        let path = Self::path(folder);
        let damaged =
            |what: &str| NotesError::Damaged { path: path.clone(), offset: 0, what: what.to_owned() };
        let bytes = match files::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if files::is_damage(&error) => return Err(damaged("wrong checksum")),
            Err(error) => return Err(io_error("read", &path)(error)),
        };
        match Decoder(&bytes).u32() {
            Some(given) if given > VERSION => {
                return Err(NotesError::Version { path, given, known: VERSION });
            }
            _ => {}
        }
        Self::decode(&bytes).map(Some).ok_or_else(|| damaged("not a list of folders"))
    }

    pub(super) fn path(folder: &Path) -> PathBuf {
        folder.join(NAME)
    }

    pub(super) fn write(&self, folder: &Path) -> Result<(), NotesError> {
        let path = Self::path(folder);
        files::replace(&path, &self.encode(), true).map_err(io_error("write", &path))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder.u32(VERSION);
        encoder.u32(self.roots.len() as u32);
        self.roots.iter().for_each(|root| encoder.bytes(paths::to_bytes(root).unwrap_or_default()));
        encoder.u32(self.forgotten.len() as u32);
        self.forgotten.iter().for_each(|&hash| encoder.u64(hash));
        encoder.0
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut decoder = Decoder(bytes);
        let mut sources = Self::default();
        if decoder.u32()? != VERSION {
            return None;
        }
        for _ in 0..decoder.u32()? {
            sources.roots.insert(paths::from_bytes(decoder.bytes()?)?);
        }
        for _ in 0..decoder.u32()? {
            sources.forgotten.insert(decoder.u64()?);
        }
        decoder.0.is_empty().then_some(sources)
    }

    /// Adds a file or folder, also if it was forgotten.
    pub(super) fn add(&mut self, path: &Path) {
        for ancestor in path.ancestors() {
            self.forgotten.remove(&paths::hash(ancestor));
        }
        if self.root_of(path).is_none() {
            self.roots.retain(|root| !root.starts_with(path));
            self.roots.insert(path.to_owned());
        }
    }

    /// Removes a root, or notes that a path below a root is not to be read.
    pub(super) fn forget(&mut self, path: &Path) {
        self.roots.retain(|root| !root.starts_with(path));
        if self.root_of(path).is_some() {
            self.forgotten.insert(paths::hash(path));
        }
    }

    /// The root that contains a path.
    pub(super) fn root_of(&self, path: &Path) -> Option<&Path> {
        path.ancestors().find_map(|ancestor| self.roots.get(ancestor)).map(PathBuf::as_path)
    }

    /// Whether exactly this path was forgotten. A walk asks for each folder on its way down.
    pub(super) fn is_forgotten(&self, path: &Path) -> bool {
        !self.forgotten.is_empty() && self.forgotten.contains(&paths::hash(path))
    }

    /// Whether updates read a path: it lies below a root, and neither it nor a folder above it was forgotten.
    pub(super) fn is_read(&self, path: &Path) -> bool {
        self.root_of(path).is_some() && !path.ancestors().any(|ancestor| self.is_forgotten(ancestor))
    }

    pub(super) fn n_forgotten(&self) -> usize {
        self.forgotten.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roots(sources: &Sources) -> Vec<&str> {
        sources.roots.iter().map(|root| root.to_str().unwrap()).collect()
    }

    #[test]
    fn roots_do_not_overlap_and_forgotten_paths_are_not_read() {
        let mut sources = Sources::default();
        sources.add(Path::new("/a/b"));
        sources.add(Path::new("/a/b/c"));
        assert_eq!(roots(&sources), ["/a/b"]);
        sources.add(Path::new("/a"));
        assert_eq!(roots(&sources), ["/a"]);
        sources.forget(Path::new("/a/b/c"));
        assert!(sources.is_read(Path::new("/a/b/d")) && !sources.is_read(Path::new("/a/b/c/x")));
        assert_eq!(Sources::decode(&sources.encode()), Some(sources.clone()));
        sources.add(Path::new("/a/b/c/x"));
        assert!(sources.is_read(Path::new("/a/b/c/y")));
        sources.forget(Path::new("/"));
        assert_eq!(roots(&sources), [""; 0]);
    }

    #[test]
    fn a_damaged_list_is_an_error_and_a_newer_one_too() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Sources::read(folder.path()).unwrap(), None);
        Sources::default().write(folder.path()).unwrap();
        assert_eq!(Sources::read(folder.path()).unwrap(), Some(Sources::default()));
        let path = Sources::path(folder.path());
        files::replace(&path, &[2, 0, 0, 0, 9], true).unwrap();
        assert!(matches!(Sources::read(folder.path()), Err(NotesError::Version { given: 2, known: 1, .. })));
        std::fs::write(&path, b"x").unwrap();
        assert!(Sources::read(folder.path()).unwrap_err().is_damage());
    }
}
