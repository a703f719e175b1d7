//! The list of folders that updates read, and of forgotten files that they do not, with the settings for reading. It is
//! the only part of the index that cannot be built again from the notes, so it is stored twice.
//!
//! Of a forgotten file, the list has a hash of the path, so that not even its name remains.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::codec::{Decoder, Encoder};
use super::error::{NotesError, io_error};
use super::files::{self, Folder};
use super::language::Language;
use super::paths;
use super::report::SkipReason;
use crate::bounds::{Bounds, is_hidden};

/// File name of the list.
pub(super) const NAME: &str = "sources";

/// File name of its copy.
pub(super) const COPY: &str = "sources-copy";

/// The version of the format. A list of an earlier one counts as damaged.
const VERSION: u32 = 3;

/// See the module.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sources {
    /// Absolute paths. One lies in another only behind a hidden or forgotten folder, which a walk of the other skips.
    pub(super) roots: BTreeSet<PathBuf>,
    /// Hashes of forgotten paths.
    forgotten: BTreeSet<u64>,
    pub(super) settings: Settings,
}

/// How files are read, if the options of a writer leave it open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) file_bytes_max: u64,
    pub(super) languages: Vec<Language>,
    /// Whether links out of the roots are followed.
    pub(super) follows_links: bool,
    /// What an app has stored with the folder.
    pub(super) labels: BTreeMap<String, String>,
}

impl Default for Settings {
    fn default() -> Self {
        Self { file_bytes_max: 8 << 20, languages: Vec::new(), follows_links: false, labels: BTreeMap::new() }
    }
}

impl Sources {
    /// Reads the list of a folder, or its copy if the list is damaged or missing. `None` if there is neither.
    ///
    /// # Errors
    /// [`NotesError::Damaged`] if the copy is damaged too or missing, [`NotesError::Version`] or [`NotesError::Io`].
    pub(super) fn read(folder: &Folder) -> Result<Option<Self>, NotesError> {
        match Self::read_file(folder, folder.join(NAME)) {
            Ok(Some(sources)) => Ok(Some(sources)),
            Err(error) if !error.is_damage() => Err(error),
            lost => match Self::read_file(folder, folder.join(COPY)) {
                Ok(Some(copy)) => Ok(Some(copy)),
                Err(error) if !error.is_damage() || lost.is_ok() => Err(error),
                _ => lost,
            },
        }
    }

    /// Whether a folder has the list or its copy, also if they are damaged.
    pub(super) fn is_in(folder: &Path) -> bool {
        [NAME, COPY].iter().any(|name| folder.join(name).symlink_metadata().is_ok())
    }

    /// Whether list and copy are whole and equal.
    pub(super) fn is_stored_twice(&self, folder: &Folder) -> bool {
        [NAME, COPY].iter().all(|name| {
            Self::read_file(folder, folder.join(name)).is_ok_and(|stored| stored.as_ref() == Some(self))
        })
    }

    /// Whether the list, or its copy, is there and damaged.
    pub(super) fn damaged(folder: &Folder) -> Option<PathBuf> {
        let is_damaged =
            |path: &PathBuf| Self::read_file(folder, path.clone()).is_err_and(|error| error.is_damage());
        [NAME, COPY].iter().map(|name| folder.join(name)).find(is_damaged)
    }

    fn read_file(folder: &Folder, path: PathBuf) -> Result<Option<Self>, NotesError> {
        let Some(bytes) = files::read_whole(&folder.seal, &path)? else { return Ok(None) };
        match Decoder(&bytes).u32() {
            Some(given) if given > VERSION => {
                return Err(NotesError::Version { path, given, known: VERSION });
            }
            _ => {}
        }
        Self::decode(&bytes).map(Some).ok_or_else(|| NotesError::damaged(&path, "not a list of folders"))
    }

    pub(super) fn write(&self, folder: &Folder) -> Result<(), NotesError> {
        let bytes = self.encode();
        [NAME, COPY].iter().try_for_each(|name| {
            let path = folder.join(name);
            files::replace(&folder.seal, &path, &bytes, true).map_err(io_error("write", &path))
        })
    }

    fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        encoder.u32(VERSION);
        encoder.u32(self.roots.len() as u32);
        self.roots.iter().for_each(|root| encoder.bytes(paths::to_bytes(root).unwrap_or_default()));
        encoder.u32(self.forgotten.len() as u32);
        self.forgotten.iter().for_each(|&hash| encoder.u64(hash));
        encoder.u64(self.settings.file_bytes_max);
        encoder.languages(&self.settings.languages);
        encoder.u32(self.settings.follows_links.into());
        encoder.u32(self.settings.labels.len() as u32);
        for (name, value) in &self.settings.labels {
            encoder.bytes(name.as_bytes());
            encoder.bytes(value.as_bytes());
        }
        encoder.0
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
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
        sources.settings.file_bytes_max = decoder.u64()?;
        sources.settings.languages = decoder.languages()?;
        sources.settings.follows_links = decoder.u32()? != 0;
        for _ in 0..decoder.u32()? {
            let name = decoder.text()?;
            sources.settings.labels.insert(name, decoder.text()?);
        }
        decoder.0.is_empty().then_some(sources)
    }

    /// Adds a file or folder, also if it was forgotten. Other forgotten paths, above and below it, stay forgotten.
    pub(super) fn add(&mut self, path: &Path) {
        self.forgotten.remove(&paths::hash(path));
        self.roots.insert(path.to_owned());
        // A root that a walk of another one reaches is read there, unless a link leads to it: the user means what it leads to.
        for root in self.roots.clone() {
            self.roots.remove(&root);
            if !self.is_read(&root) || self.leads_through_link(&root) {
                self.roots.insert(root);
            }
        }
    }

    /// Removes the roots at and below a path, and stores that it is not to be read.
    pub(super) fn forget(&mut self, path: &Path) {
        self.roots.retain(|root| !root.starts_with(path));
        self.forgotten.insert(paths::hash(path));
    }

    /// The innermost root that contains a path.
    pub(super) fn root_of(&self, path: &Path) -> Option<&Path> {
        path.ancestors().find_map(|ancestor| self.roots.get(ancestor)).map(PathBuf::as_path)
    }

    /// Whether the path, or a folder between the innermost root and the path, is a link.
    pub(super) fn leads_through_link(&self, path: &Path) -> bool {
        let Some(root) = self.root_of(path) else { return false };
        path.ancestors().take_while(|ancestor| *ancestor != root).any(Path::is_symlink)
    }

    /// Where links may lead.
    pub(super) fn bounds(&self) -> Bounds {
        Bounds::new(self.roots.iter().map(PathBuf::as_path), self.settings.follows_links)
    }

    /// The reason why updates do not read what a path leads to, if a link is on the way; `None` if a forgotten path is.
    pub(super) fn check_target(&self, path: &Path, bounds: &Bounds) -> Result<(), Option<SkipReason>> {
        if bounds.follows_links {
            return Ok(());
        }
        let target = bounds.target(path).map_err(|error| Some(SkipReason::of_io(error.kind())))?;
        match bounds.name(&target) {
            None => Err(Some(SkipReason::OutsideLink)),
            Some(name) if self.is_read(&name) => Ok(()),
            // It would be read under its own name, if at all.
            Some(name) => {
                let root = self.root_of(&name);
                let mut below = name.ancestors().take_while(|ancestor| Some(*ancestor) != root);
                Err(below.any(is_hidden).then_some(SkipReason::Hidden))
            }
        }
    }

    /// The roots at and below a path.
    pub(super) fn roots_below<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a PathBuf> {
        self.roots.range(path.to_owned()..).take_while(move |root| root.starts_with(path))
    }

    /// Whether exactly this path was forgotten. A walk asks for each folder on its way down.
    pub(super) fn is_forgotten(&self, path: &Path) -> bool {
        !self.forgotten.is_empty() && self.forgotten.contains(&paths::hash(path))
    }

    /// Whether updates read a path: it lies below a root, and no name on the way is hidden or forgotten.
    pub(super) fn is_read(&self, path: &Path) -> bool {
        self.root_of(path).is_some_and(|root| {
            let mut below = path.ancestors().take_while(|ancestor| *ancestor != root);
            !below.any(|ancestor| is_hidden(ancestor) || self.is_forgotten(ancestor))
        })
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
        let labels = [("model".to_owned(), "é".to_owned())].into();
        let languages = vec![Language::Dutch, Language::Greek];
        sources.settings = Settings { file_bytes_max: 7, languages, follows_links: true, labels };
        assert_eq!(Sources::decode(&sources.encode()), Some(sources.clone()));
        sources.add(Path::new("/a/b/c/x"));
        assert_eq!(roots(&sources), ["/a", "/a/b/c/x"]);
        assert!(sources.is_read(Path::new("/a/b/c/x/1")) && !sources.is_read(Path::new("/a/b/c/y")));
        sources.forget(Path::new("/a/b/c/x/2"));
        assert!(sources.is_read(Path::new("/a/b/c/x/1")) && !sources.is_read(Path::new("/a/b/c/x/2/3")));
        sources.add(Path::new("/a/b/c"));
        assert_eq!(roots(&sources), ["/a"]);
        assert!(sources.is_read(Path::new("/a/b/c/y")) && !sources.is_read(Path::new("/a/b/c/x/2")));
        sources.forget(Path::new("/"));
        assert_eq!(roots(&sources), [""; 0]);
    }

    #[test]
    fn hidden_roots_stay_beside_their_parents() {
        let mut sources = Sources::default();
        ["/a/.b/c", "/a", "/a/.b/c/d"].iter().for_each(|root| sources.add(Path::new(root)));
        assert_eq!(roots(&sources), ["/a", "/a/.b/c"]);
        assert!(sources.is_read(Path::new("/a/.b/c/d")) && !sources.is_read(Path::new("/a/.b/d")));
        assert_eq!(sources.roots_below(Path::new("/a/.b")).count(), 1);
        sources.add(Path::new("/a/.b"));
        assert_eq!(roots(&sources), ["/a", "/a/.b"]);
    }

    #[test]
    fn a_damaged_list_has_a_copy_and_a_newer_one_is_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = &Folder::new(temporary.path().to_owned(), None);
        assert_eq!(Sources::read(folder).unwrap(), None);
        let mut sources = Sources::default();
        sources.add(Path::new("/a"));
        sources.write(folder).unwrap();
        assert!(sources.is_stored_twice(folder));
        for name in [NAME, COPY] {
            std::fs::write(folder.join(name), b"x").unwrap();
            assert_eq!(Sources::read(folder).unwrap().as_ref(), Some(&sources), "{name} is damaged");
            assert_eq!(Sources::damaged(folder), Some(folder.join(name)));
            assert!(!sources.is_stored_twice(folder));
            std::fs::remove_file(folder.join(name)).unwrap();
            assert_eq!(Sources::read(folder).unwrap().as_ref(), Some(&sources), "{name} is missing");
            sources.write(folder).unwrap();
        }
        let path = folder.join(NAME);
        files::replace(&folder.seal, &path, &[4, 0, 0, 0, 9], true).unwrap();
        assert!(matches!(Sources::read(folder), Err(NotesError::Version { given: 4, known: 3, .. })));
        [NAME, COPY].iter().for_each(|name| std::fs::write(folder.join(name), b"x").unwrap());
        assert!(Sources::read(folder).unwrap_err().is_damage());
    }
}
