//! Paths as the index stores them: absolute, as bytes, with a hash for searches.

use std::fmt::Write as _;
use std::path::{Component, Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use super::error::NotesError;

/// The path of all documents without files, for conditions and deletions; the first component of the path of each. (The path of a file is
/// absolute. A folder of this name is `./document:`.)
pub const DOCUMENTS: &str = "document:";

/// Maximum length of the id of a document, in bytes.
pub const ID_BYTES_MAX: usize = 512;

/// The path under which the index has a document without a file ([`Transaction::put`](super::Transaction::put)): `document:/` and the
/// id, with all bytes but ASCII letters, digits, `-`, `.`, `_`, `~` as `%XX`. A `/` between other bytes stays, so that ids may have
/// folders: `document:/projects` names every document whose id begins with `projects/`. Different ids have different paths. Searches,
/// citations and deletions name a document by its path.
///
/// # Errors
/// [`NotesError::OutOfRange`]: the id is empty, or longer than [`ID_BYTES_MAX`].
pub fn document_path(id: &[u8]) -> Result<PathBuf, NotesError> {
    match id.len() {
        1..=ID_BYTES_MAX => Ok(path_of_id(id)),
        given => {
            let (given, max) = (given as u64, ID_BYTES_MAX as u64);
            Err(NotesError::OutOfRange { option: "the length of a document's id", given, min: 1, max })
        }
    }
}

/// As [`document_path`], of an id of any length.
pub(super) fn path_of_id(id: &[u8]) -> PathBuf {
    let mut path = PathBuf::from(DOCUMENTS);
    if id.is_empty() {
        return path;
    }
    let names: Vec<&[u8]> = id.split(|&byte| byte == b'/').collect();
    let mut name = String::new();
    for (at, part) in names.iter().enumerate() {
        // A name of dots would be a step to another folder.
        let is_step = matches!(part, [b'.'] | [b'.', b'.']);
        for &byte in *part {
            match byte {
                b'.' if is_step => name.push_str("%2E"),
                b'-' | b'.' | b'_' | b'~' => name.push(byte.into()),
                _ if byte.is_ascii_alphanumeric() => name.push(byte.into()),
                _ => {
                    let _ = write!(name, "%{byte:02X}");
                }
            }
        }
        match names.get(at + 1) {
            // Paths have no empty names.
            Some(next) if part.is_empty() || next.is_empty() => name.push_str("%2F"),
            _ => path.push(std::mem::take(&mut name)),
        }
    }
    path
}

/// The id of the document whose path this is; `None` for the path of a file, and for [`DOCUMENTS`].
pub fn document_id(path: &Path) -> Option<Vec<u8>> {
    let mut components = path.components();
    if components.next()?.as_os_str() != DOCUMENTS {
        return None;
    }
    let mut id = Vec::new();
    for (at, component) in components.enumerate() {
        if at > 0 {
            id.push(b'/');
        }
        let mut bytes = component.as_os_str().as_encoded_bytes();
        while let [first, rest @ ..] = bytes {
            let decoded = match rest {
                [high, low, ..] if *first == b'%' => hex(*high).zip(hex(*low)),
                _ => None,
            };
            match decoded {
                Some((high, low)) => {
                    id.push(high << 4 | low);
                    bytes = &rest[2..];
                }
                None => {
                    id.push(*first);
                    bytes = rest;
                }
            }
        }
    }
    (!id.is_empty()).then_some(id)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

/// Whether a path is that of documents without a file: of one, of some, or `document:`, of all.
pub fn is_document(path: &Path) -> bool {
    path.components().next().is_some_and(|first| first.as_os_str() == DOCUMENTS)
}

/// The path under which the index has a file: absolute, without `.` and `..`; links are kept. The path of a document without a file stays.
///
/// # Errors
/// [`NotesError::Path`]: the path is empty, there is no current folder, or (where paths have no bytes) it is not Unicode.
pub fn absolute(path: &Path) -> Result<PathBuf, NotesError> {
    // Nothing of the file system has this path.
    if is_document(path) {
        return Ok(path_of_id(&document_id(path).unwrap_or_default()));
    }
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
    if is_document(path) {
        return path.to_owned();
    }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn documents_have_paths_and_files_have_no_ids() {
        for (id, path) in [
            (&b"row-42"[..], "document:/row-42"),
            (b"projects/a b.md", "document:/projects/a%20b.md"),
            (b"/a//b/", "document:/%2Fa%2F%2Fb%2F"),
            (b"./../x", "document:/%2E/%2E%2E/x"),
            (b"\xff\0%", "document:/%FF%00%25"),
        ] {
            assert_eq!(document_path(id).unwrap(), Path::new(path));
            assert_eq!(document_id(Path::new(path)).as_deref(), Some(id));
            assert_eq!(absolute(Path::new(path)).unwrap(), Path::new(path));
        }
        assert_eq!(absolute(Path::new("document:/%61")).unwrap(), Path::new("document:/a"));
        assert_eq!(absolute(Path::new(DOCUMENTS)).unwrap().as_os_str(), DOCUMENTS);
        for id in [&[][..], &[b'a'; ID_BYTES_MAX + 1]] {
            let given = id.len() as u64;
            assert!(matches!(document_path(id), Err(NotesError::OutOfRange { given: n, .. }) if n == given));
        }
        for path in ["/document:/a", "./document:/a", "documents:/a", "a"] {
            assert!(document_id(Path::new(path)).is_none() && !is_document(Path::new(path)), "{path}");
        }
    }

    proptest! {
        #[test]
        fn every_id_comes_back(id in prop::collection::vec(prop_oneof![Just(b'/'), Just(b'.'), Just(b'%'), any::<u8>()], 1..40)) {
            let path = document_path(&id).unwrap();
            prop_assert_eq!(document_id(&path), Some(id));
            prop_assert_eq!(absolute(&path).unwrap(), path);
        }
    }
}
