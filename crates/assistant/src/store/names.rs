//! Names of notes as hashes: the ledger has no paths.
//!
//! A hash is XXH3 of the path. It hides no path from somebody who can guess it; a key would lie in the same folder and hide
//! no more.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use refrain_index::notes::without_links;
use refrain_index::{NotesError, NotesIndex};
use xxhash_rust::xxh3::xxh3_64;

/// Maximum number of files whose identities a deletion of a folder looks up, as the index does by default.
const FILES_MAX: usize = 100_000;

/// The hash under which a note is noted.
pub(crate) fn note_hash(path: &Path) -> u64 {
    xxh3_64(path.as_os_str().as_encoded_bytes())
}

/// What a note is found by besides its own path: the folders above it, the path without links with the folders above that,
/// and the identity of its file, which stays when the file is renamed.
pub(crate) fn places(path: &Path) -> Vec<u64> {
    let mut places: BTreeSet<u64> = path.ancestors().skip(1).map(note_hash).collect();
    places.extend(without_links(path).ancestors().map(note_hash));
    places.extend(identity(path));
    places.remove(&note_hash(path));
    places.into_iter().collect()
}

/// What finds the notes at and below paths: a note goes if its hash, or one of its [`places`], is among these.
pub(crate) fn names_of<'a>(paths: impl IntoIterator<Item = &'a PathBuf>) -> Vec<u64> {
    let mut names = BTreeSet::new();
    let mut n_left = FILES_MAX;
    for path in paths {
        names.insert(note_hash(path));
        // A file that is gone is found by where it was.
        names.insert(note_hash(&without_links(path)));
        add_identities(path, &mut names, &mut n_left);
    }
    names.into_iter().collect()
}

/// Notes that are left out of searches: those at and below a path, which another process is to delete from the index.
#[derive(Debug, Clone)]
pub(crate) struct Hidden {
    pub(crate) path: PathBuf,
    /// What finds them. Ascending; empty if it is not known yet.
    pub(crate) names: Vec<u64>,
}

impl Hidden {
    pub(crate) fn hides(&self, note: &Path) -> bool {
        let is_name = |hash: &u64| self.names.binary_search(hash).is_ok();
        is_name(&note_hash(note)) || places(note).iter().any(is_name)
    }
}

/// Adds the identities of the files at a path and below it. Links below it are not followed.
fn add_identities(path: &Path, names: &mut BTreeSet<u64>, n_left: &mut usize) {
    let mut open = vec![path.to_owned()];
    while let Some(path) = open.pop() {
        if *n_left == 0 {
            return;
        }
        *n_left -= 1;
        match fs::read_dir(&path) {
            Ok(entries) => {
                let entries = entries.flatten();
                let is_link = |entry: &fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_symlink());
                open.extend(entries.filter(|entry| !is_link(entry)).map(|entry| entry.path()));
            }
            Err(_) => names.extend(identity(&path)),
        }
    }
}

/// The identity of a file. Two files have the same one only one after the other.
fn identity(path: &Path) -> Option<u64> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let metadata = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let (device, inode) = (metadata.dev().to_le_bytes(), metadata.ino().to_le_bytes());
        Some(xxh3_64(&[&b"file"[..], &device, &inode].concat()))
    }
    #[cfg(not(unix))]
    {
        // The path without links is among the places.
        let _ = path;
        None
    }
}

/// What finds the notes at and below paths, under all names that the index knows.
pub(crate) fn names_with_index(
    paths: &[PathBuf],
    notes: Option<&NotesIndex>,
) -> Result<Vec<u64>, NotesError> {
    let mut all = paths.to_vec();
    match notes.map(|notes| notes.names_of(paths)) {
        None => {}
        Some(Ok(names)) => all.extend(names),
        // A writer builds it again, and an index that was deleted names nothing.
        Some(Err(error)) if error.is_damage() || matches!(error, NotesError::NoIndex { .. }) => {}
        Some(Err(error)) => return Err(error),
    }
    Ok(names_of(&all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finds(named: &Path, note: &Path) -> bool {
        Hidden { path: named.to_owned(), names: names_of([&named.to_owned()]) }.hides(note)
    }

    #[test]
    fn folders_are_compared_by_components() {
        let (folder, note) = (Path::new("/n/a"), Path::new("/n/a/b/c.md"));
        assert!(finds(folder, note) && finds(note, note) && finds(Path::new("/"), note));
        for other in ["/n/a/b/c", "/n/ab", "/n/a/b/c.md/d", "/m"] {
            assert!(!finds(Path::new(other), note), "{other}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_is_gone_is_found_through_links() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("notes")).unwrap();
        fs::write(path("notes/a.md"), "a").unwrap();
        std::os::unix::fs::symlink("notes", path("link")).unwrap();
        std::os::unix::fs::symlink(path("notes/a.md"), path("a.md")).unwrap();
        let places: BTreeSet<u64> = places(&path("notes/a.md")).into_iter().collect();
        fs::remove_file(path("notes/a.md")).unwrap();
        for named in ["link/a.md", "a.md", "link"] {
            let names = names_of([&path(named)]);
            let is_found = names.contains(&note_hash(&path("notes/a.md")));
            assert!(is_found || names.iter().any(|name| places.contains(name)), "{named}");
        }
        assert!(
            finds(&path("link/a.md"), &path("notes/a.md")) && !finds(&path("link/a.md"), &path("notes/b.md"))
        );
    }

    #[cfg(unix)]
    #[test]
    fn links_and_renamed_files_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir(path("notes")).unwrap();
        fs::write(path("notes/a.md"), "a").unwrap();
        fs::write(path("notes/b.md"), "b").unwrap();
        std::os::unix::fs::symlink(path("notes"), path("link")).unwrap();
        fs::hard_link(path("notes/a.md"), path("hard.md")).unwrap();
        assert!(finds(&path("link"), &path("notes/a.md")) && finds(&path("notes"), &path("link/a.md")));
        assert!(
            finds(&path("hard.md"), &path("notes/a.md")) && !finds(&path("hard.md"), &path("notes/b.md"))
        );
        let before = [note_hash(&path("hard.md"))].into_iter().chain(places(&path("hard.md")));
        let before: Vec<u64> = before.collect();
        fs::rename(path("hard.md"), path("renamed.md")).unwrap();
        assert!(names_of([&path("renamed.md")]).iter().any(|name| before.contains(name)));
    }
}
