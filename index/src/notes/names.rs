//! All names of a file: a deletion that is given one of them must find what the others name.

use std::collections::{BTreeSet, HashSet};
#[cfg(unix)]
use std::fs::Metadata;
#[cfg(unix)]
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::catalogue::Catalogue;
use super::paths::{is_document, without_links};
use super::report::SkipReason;
use super::sources::Sources;
#[cfg(unix)]
use super::stamp::Stamp;
use super::walk::{Identity, Limits, identities, identity, walk};
use crate::bounds::Bounds;

/// The names of the files at and below a path.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// The path; the same place below a root that is a link to it or contains it; the names that a walk finds for the same
    /// files.
    pub(super) now: BTreeSet<PathBuf>,
    /// Names of the catalogue that are gone. Length, time and inode are those of one of the files, which has another name now.
    pub(super) earlier: BTreeSet<PathBuf>,
}

/// All names of the files at and below each path.
pub(super) fn names(
    named: &[PathBuf],
    sources: &Sources,
    catalogue: &Catalogue,
    own_folder: &Path,
    limits: Limits<'_>,
) -> Vec<Names> {
    let own = |path: &PathBuf| Names { now: [path.clone()].into(), ..Names::default() };
    let mut names: Vec<Names> = named.iter().map(own).collect();
    let files: Vec<HashSet<Identity>> = named
        .iter()
        .map(|path| if is_document(path) { HashSet::new() } else { identities(path, limits.n_entries_max) })
        .collect();
    for (path, Names { now: names, .. }) in
        named.iter().zip(&mut names).filter(|(path, _)| !is_document(path))
    {
        // Also of a file that is gone, because its text is still in the index.
        let place = without_links(path);
        names.extend(sources.roots.iter().filter_map(|root| {
            let below = place.strip_prefix(without_links(root)).ok()?;
            // Joined with nothing, a path would end with a separator.
            Some(if below.as_os_str().is_empty() { root.clone() } else { root.join(below) })
        }));
    }
    if files.iter().all(HashSet::is_empty) {
        return names;
    }
    // A forgotten folder has no list of its files.
    let mut add = |path: &Path, is_of: &dyn Fn(&HashSet<Identity>) -> bool| {
        for ((files, names), named) in files.iter().zip(&mut names).zip(named) {
            if !path.starts_with(named) && is_of(files) {
                names.now.insert(path.to_owned());
            }
        }
    };
    // A file that the index has read behind a link is forgotten also if updates would not follow the link any more.
    let bounds = Bounds::new(std::iter::empty(), true);
    let all = Limits { bounds: &bounds, ..limits };
    let walk = walk(sources.roots.iter().map(PathBuf::as_path), sources, own_folder, all);
    let found = walk.found.into_iter().map(|found| found.path);
    let others = walk.skipped.into_iter().filter(|skipped| skipped.reason == SkipReason::AlreadyRead);
    for path in found.chain(others.map(|skipped| skipped.path)) {
        let Some(identity) = identity(&path) else { continue };
        add(&path, &|files| files.contains(&identity));
    }
    // Identities of other systems are paths, and a path that is gone has none.
    #[cfg(unix)]
    for ((files, names), named) in files.iter().zip(&mut names).zip(named) {
        let inodes: HashSet<u64> = files.iter().map(|&(_, inode)| inode).collect();
        // An inode alone may be that of another disk, or be used again. A rename keeps length and time too.
        let mut stamps = None;
        for (path, entry) in catalogue.entries.iter().filter(|(_, entry)| inodes.contains(&entry.stamp.inode))
        {
            let is_gone = || path.symlink_metadata().is_err_and(|error| error.kind() == ErrorKind::NotFound);
            if path.starts_with(named) || !is_gone() {
                continue;
            }
            let stamps = stamps.get_or_insert_with(|| stamps_below(named, limits.n_entries_max));
            if stamps.contains(&unchanged_by_a_rename(&entry.stamp)) {
                names.earlier.insert(path.clone());
            }
        }
    }
    #[cfg(not(unix))]
    let _ = catalogue;
    names
}

/// What a rename leaves as it was.
#[cfg(unix)]
fn unchanged_by_a_rename(stamp: &Stamp) -> (u64, i64, u64) {
    (stamp.bytes, stamp.modified, stamp.inode)
}

/// The stamps of the files at a path and below it; links below it are not followed.
#[cfg(unix)]
fn stamps_below(path: &Path, n_max: usize) -> HashSet<(u64, i64, u64)> {
    let entries = walkdir::WalkDir::new(path).into_iter().take(n_max).filter_map(Result::ok);
    let stamps = entries.filter_map(|entry| {
        let metadata = if entry.depth() == 0 { entry.path().metadata().ok() } else { entry.metadata().ok() };
        metadata.filter(Metadata::is_file).map(|metadata| unchanged_by_a_rename(&Stamp::of(&metadata)))
    });
    stamps.collect()
}
