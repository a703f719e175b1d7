//! All names of a file: a deletion that is given one of them must find what the others name.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use super::catalogue::Catalogue;
use super::report::SkipReason;
use super::sources::Sources;
use super::walk::{Identity, Limits, identities, identity, walk};

/// All names of the files at and below each path: the path; the same place below a root that is a link to it or contains it;
/// the names that a walk finds for the same files; the names of the catalogue that are gone and had the inode of one of the
/// files, which are its earlier names.
pub(super) fn names(
    named: &[PathBuf],
    sources: &Sources,
    catalogue: &Catalogue,
    own_folder: &Path,
    limits: Limits,
) -> Vec<BTreeSet<PathBuf>> {
    let mut names: Vec<BTreeSet<PathBuf>> = named.iter().map(|path| [path.clone()].into()).collect();
    let files: Vec<HashSet<Identity>> =
        named.iter().map(|path| identities(path, limits.n_entries_max)).collect();
    for (path, names) in named.iter().zip(&mut names) {
        let Ok(place) = path.canonicalize() else { continue };
        names.extend(sources.roots.iter().filter_map(|root| {
            let below = place.strip_prefix(root.canonicalize().ok()?).ok()?;
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
                names.insert(path.to_owned());
            }
        }
    };
    let walk = walk(sources.roots.iter().map(PathBuf::as_path), sources, own_folder, limits);
    let found = walk.found.into_iter().map(|found| found.path);
    let others = walk.skipped.into_iter().filter(|skipped| skipped.reason == SkipReason::AlreadyRead);
    for path in found.chain(others.map(|skipped| skipped.path)) {
        let Some(identity) = identity(&path) else { continue };
        add(&path, &|files| files.contains(&identity));
    }
    // Identities of other systems are paths, and a path that is gone has none.
    #[cfg(unix)]
    for (path, entry) in &catalogue.entries {
        let inode = entry.stamp.inode;
        let has_inode = |files: &HashSet<Identity>| files.iter().any(|&(_, other)| other == inode);
        if files.iter().any(has_inode) && path.symlink_metadata().is_err() {
            add(path, &has_inode);
        }
    }
    #[cfg(not(unix))]
    let _ = catalogue;
    names
}
