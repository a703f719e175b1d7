//! The files below the roots, in a fixed order, each once.
//!
//! Links are followed where the bounds allow it, and a loop of links ends. A file that several names lead to is read under
//! one of them: a name that no link leads through comes first, then the order of names decides.

use std::collections::HashSet;
use std::fs::Metadata;
use std::io;
use std::path::{Path, PathBuf};

use walkdir::{DirEntry, WalkDir};

use super::kind::Format;
use super::paths;
use super::report::{SkipReason, SkippedSource};
use super::sources::Sources;
use super::stamp::Stamp;
use crate::bounds::{Bounds, is_hidden};

/// A file to be indexed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) path: PathBuf,
    pub(super) format: Format,
    pub(super) stamp: Stamp,
}

/// The result of a walk.
#[derive(Debug, Default)]
pub(super) struct Walk {
    pub(super) found: Vec<Found>,
    pub(super) skipped: Vec<SkippedSource>,
    /// Paths whose contents could not be listed. Files below them may still exist.
    pub(super) unknown: Vec<PathBuf>,
    /// Paths whose walk has ended at the limit. Files below them were not looked for.
    pub(super) cut: Vec<PathBuf>,
    /// Whether a walked path is not alone in leading to its file, so that only a walk of everything can choose a name.
    pub(super) has_other_names: bool,
}

/// Limits of a walk.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits<'a> {
    pub(super) file_bytes_max: u64,
    pub(super) n_entries_max: usize,
    /// Where links may lead.
    pub(super) bounds: &'a Bounds,
}

/// Walks the files at `starts`, which lie below roots.
pub(super) fn walk<'a>(
    starts: impl IntoIterator<Item = &'a Path>,
    sources: &Sources,
    own_folder: &Path,
    limits: Limits<'_>,
) -> Walk {
    let mut walk = Walk::default();
    let mut linked = Vec::new();
    let mut n_entries = 0;
    for start in starts {
        walk_from(start, sources, own_folder, limits, &mut n_entries, &mut walk, &mut linked);
    }
    if !walk.has_other_names {
        return walk;
    }
    let mut seen: HashSet<Identity> = HashSet::new();
    let named = std::mem::take(&mut walk.found);
    for found in named.into_iter().chain(linked) {
        if identity(&found.path).is_none_or(|identity| seen.insert(identity)) {
            walk.found.push(found);
        } else {
            walk.skipped.push(SkippedSource { path: found.path, reason: SkipReason::AlreadyRead });
        }
    }
    walk
}

fn walk_from(
    start: &Path,
    sources: &Sources,
    own_folder: &Path,
    limits: Limits<'_>,
    n_entries: &mut usize,
    walk: &mut Walk,
    linked: &mut Vec<Found>,
) {
    // Folders that a link leads to; the walk is depth-first, so the last ones contain the current entry.
    let mut links: Vec<PathBuf> = Vec::new();
    let mut entries = WalkDir::new(start).follow_links(true).sort_by_file_name().into_iter();
    loop {
        let skip = |path: &Path, reason| SkippedSource { path: path.to_owned(), reason };
        let entry = match entries.next() {
            None => return,
            Some(Ok(entry)) => entry,
            Some(Err(error)) => {
                let path = error.path().unwrap_or(start).to_owned();
                if error.loop_ancestor().is_some() {
                    walk.has_other_names = true;
                    walk.skipped.push(skip(&path, SkipReason::AlreadyRead));
                    continue;
                }
                let kind = error.io_error().map_or(io::ErrorKind::Other, io::Error::kind);
                // A root that is not there may be on a disk that is not there.
                if kind != io::ErrorKind::NotFound || sources.roots.contains(&path) && !is_removed_file(&path)
                {
                    walk.unknown.push(path.clone());
                    walk.skipped.push(skip(&path, SkipReason::Unreadable(kind)));
                } else if path != start {
                    walk.skipped.push(skip(&path, SkipReason::Vanished));
                }
                continue;
            }
        };
        let path = entry.path();
        let is_folder = entry.file_type().is_dir();
        *n_entries += 1;
        if *n_entries > limits.n_entries_max {
            walk.cut.push(start.to_owned());
            walk.skipped.push(skip(path, SkipReason::TooMany { limit: limits.n_entries_max }));
            return;
        }
        if path == own_folder || sources.is_forgotten(path) {
            if is_folder {
                entries.skip_current_dir();
            }
            continue;
        }
        if entry.depth() > 0 && is_hidden(path) {
            walk.skipped.push(skip(path, SkipReason::Hidden));
            if is_folder {
                entries.skip_current_dir();
            }
            continue;
        }
        let is_root = sources.roots.contains(path);
        // A root has a walk of its own.
        let is_walked = is_root && entry.depth() > 0;
        let refused = match entry.path_is_symlink() && !is_root {
            true => sources.check_target(path, limits.bounds).err(),
            false => None,
        };
        if is_walked || refused.is_some() {
            if is_folder {
                entries.skip_current_dir();
            }
            let is_source = is_folder || Format::of(path).is_some();
            let reason =
                refused.flatten().map(|reason| if is_source { reason } else { SkipReason::NotASource });
            walk.skipped.extend(reason.map(|reason| skip(path, reason)));
            continue;
        }
        while links.last().is_some_and(|link| !path.starts_with(link)) {
            links.pop();
        }
        if entry.path_is_symlink() {
            walk.has_other_names = true;
            if is_folder {
                links.push(path.to_owned());
            }
        }
        if is_folder {
            continue;
        }
        match examine(&entry, limits) {
            Ok((found, n_names)) => {
                walk.has_other_names |= n_names > 1;
                if links.is_empty() && !entry.path_is_symlink() {
                    walk.found.push(found);
                } else {
                    linked.push(found);
                }
            }
            Err(reason) => walk.skipped.push(skip(path, reason)),
        }
    }
}

/// Whether a path that is not there was removed from its folder: the folder has other files. A folder without any may be the
/// place of a disk that is not there, and so may a path without the extension of a source.
fn is_removed_file(path: &Path) -> bool {
    let has_files =
        |folder: &Path| std::fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_some());
    Format::of(path).is_some() && path.parent().is_some_and(has_files)
}

/// The file at an entry, and the number of its names.
fn examine(entry: &DirEntry, limits: Limits<'_>) -> Result<(Found, u64), SkipReason> {
    let format = Format::of(entry.path()).ok_or(SkipReason::NotASource)?;
    if paths::to_bytes(entry.path()).is_none() {
        return Err(SkipReason::Name);
    }
    let metadata = entry.metadata().map_err(|error| {
        match error.io_error().map_or(io::ErrorKind::Other, io::Error::kind) {
            io::ErrorKind::NotFound => SkipReason::Vanished,
            kind => SkipReason::Unreadable(kind),
        }
    })?;
    // A pipe or a device would block.
    if !metadata.is_file() {
        return Err(SkipReason::NotASource);
    }
    let stamp = Stamp::of(&metadata);
    if stamp.bytes > limits.file_bytes_max {
        return Err(SkipReason::TooLong { bytes: stamp.bytes, limit: limits.file_bytes_max });
    }
    Ok((Found { path: entry.path().to_owned(), format, stamp }, n_names(&metadata)))
}

fn n_names(metadata: &Metadata) -> u64 {
    #[cfg(unix)]
    return std::os::unix::fs::MetadataExt::nlink(metadata);
    #[cfg(not(unix))]
    {
        let _ = metadata;
        1
    }
}

/// What two names of a file have in common.
#[cfg(unix)]
pub(super) type Identity = (u64, u64);
#[cfg(not(unix))]
pub(super) type Identity = PathBuf;

/// The files at a path and below it; links below it are not followed. At most `n_max` entries are visited.
pub(super) fn identities(path: &Path, n_max: usize) -> HashSet<Identity> {
    let entries = WalkDir::new(path).into_iter().take(n_max).filter_map(Result::ok);
    let files = entries.filter(|entry| entry.depth() == 0 || entry.file_type().is_file());
    files.filter(|entry| entry.path().is_file()).filter_map(|entry| identity(entry.path())).collect()
}

pub(super) fn identity(path: &Path) -> Option<Identity> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
    }
    #[cfg(not(unix))]
    std::fs::canonicalize(path).ok()
}
