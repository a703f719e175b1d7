//! Paths as the index stores them: absolute, as bytes, with a hash for searches.

use std::path::{Component, Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::error::NotesError;

/// The path under which the index has a file: absolute, without `.` and `..`; links are kept.
///
/// # Errors
/// [`NotesError::Path`]: the path is empty, there is no current folder, or (where paths have no bytes) it is not Unicode.
pub fn absolute(path: &Path) -> Result<PathBuf, NotesError> {
    let refused = |what| NotesError::Path { path: path.to_owned(), what };
    let full =
        std::path::absolute(path).map_err(|_| refused("it is empty, or there is no current folder"))?;
    let mut plain = PathBuf::new();
    for component in full.components() {
        match component {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    if to_bytes(&plain).is_none() {
        return Err(refused("its name is not Unicode"));
    }
    Ok(plain)
}

/// The place that a path leads to, without links, also if there is nothing: what exists of it is resolved, the rest is
/// appended.
pub fn without_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // As the system, it does not follow a loop of links for ever.
    for _ in 0..40 {
        let above = path.ancestors().find_map(|above| Some((above.canonicalize().ok()?, above)));
        let Some((plain, above)) = above else { return path };
        let rest = path.strip_prefix(above).unwrap_or(Path::new(""));
        let mut names = rest.components();
        let Some(first) = names.next() else { return plain };
        // A link to something that is gone cannot be resolved at once.
        match plain.join(first).read_link() {
            Ok(target) => path = plain.join(target).join(names.as_path()),
            Err(_) => return plain.join(rest),
        }
    }
    path
}

/// The bytes of a path. `None` if this system's paths have no bytes and the path is not Unicode.
pub(super) fn to_bytes(path: &Path) -> Option<&[u8]> {
    #[cfg(unix)]
    return Some(std::os::unix::ffi::OsStrExt::as_bytes(path.as_os_str()));
    #[cfg(not(unix))]
    path.to_str().map(str::as_bytes)
}

/// The path of stored bytes.
pub(super) fn from_bytes(bytes: &[u8]) -> Option<PathBuf> {
    #[cfg(unix)]
    return Some(PathBuf::from(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(bytes)));
    #[cfg(not(unix))]
    std::str::from_utf8(bytes).ok().map(PathBuf::from)
}

/// The number under which a path, or everything in a folder, is found.
pub(super) fn hash(path: &Path) -> u64 {
    xxh3_64(to_bytes(path).unwrap_or_default())
}
