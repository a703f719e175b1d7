//! How notes are named to clients: by a URI with a hash of the path, and by a name for people.
//!
//! A URI is the same after a restart, and tells nothing of the path to somebody who cannot guess it. It is looked up among the files of the
//! index. The name for people begins with the folder that the user has given to the index, so that it does not show what is above it.

use std::path::{Component, Path, PathBuf};

use refrain_assistant::Assistant;
use refrain_index::notes::{NoteFile, document_id, document_path};

use crate::error::{ApiError, ApiResult};
use crate::page::{of_task, short_path};

/// The beginning of each URI.
pub(super) const SCHEME: &str = "refrain://notes/";
/// What the hashes are for: another hash of the same path is no id.
const KEY: &str = "refrain-serve: the id of a note";
/// Length of an id: 128 bits, so that no two paths share one.
const ID_DIGITS: usize = 32;

/// The id of the note at a path.
pub(super) fn id(path: &Path) -> String {
    let mut hasher = blake3::Hasher::new_derive_key(KEY);
    hasher.update(path.as_os_str().as_encoded_bytes());
    hasher.finalize().to_hex()[..ID_DIGITS].to_owned()
}

/// The URI of the note at a path.
pub(super) fn uri(path: &Path) -> String {
    format!("{SCHEME}{}", id(path))
}

/// The id in a URI; `None` if it is no URI of a note.
pub(super) fn id_of(uri: &str) -> Option<&str> {
    let is_digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
    uri.strip_prefix(SCHEME).filter(|id| id.len() == ID_DIGITS && id.bytes().all(is_digit))
}

/// The note with an id; `None` if the index has none.
pub(super) fn find(assistant: &Assistant, id: &str) -> ApiResult<Option<NoteFile>> {
    let files = assistant.note_files().map_err(of_task)?;
    Ok(files.into_iter().find(|file| self::id(&file.path) == id))
}

/// As [`find`], for calls of tools.
///
/// # Errors
/// Status 404: the index has no such note.
pub(super) fn found(assistant: &Assistant, id: &str) -> ApiResult<PathBuf> {
    let note = find(assistant, id)?;
    let note = note.ok_or_else(|| {
        ApiError::not_found("the notes have no note with this URI (it may have been deleted)")
    })?;
    Ok(note.path)
}

/// The names of an index's notes.
pub(super) struct Names {
    roots: Vec<PathBuf>,
}

impl Names {
    pub(super) fn of(assistant: &Assistant) -> Self {
        // Without the list of folders, names are short.
        let roots = assistant.notes().and_then(|notes| notes.roots().ok());
        Self { roots: roots.unwrap_or_default() }
    }

    /// The path below the parent of the user's folder, with `/` between its parts: `notes/work/plan.md`. A document without a file has the
    /// path that stands for its id.
    pub(super) fn name(&self, path: &Path) -> String {
        if document_id(path).is_some() {
            return path.display().to_string();
        }
        // The innermost folder.
        let root =
            self.roots.iter().filter(|root| path.starts_with(root)).max_by_key(|root| root.as_os_str().len());
        let below = root.and_then(|root| path.strip_prefix(root.parent().unwrap_or(root)).ok());
        let parts = below.map(|below| below.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>());
        parts.map_or_else(|| short_path(path), |parts| parts.join("/"))
    }

    /// The paths that a name may mean: several, if two of the user's folders have one name.
    ///
    /// # Errors
    /// Status 404: no folder of the notes begins so.
    pub(super) fn paths(&self, name: &str) -> ApiResult<Vec<PathBuf>> {
        if let Some(id) = document_id(Path::new(name)) {
            return Ok(vec![document_path(&id).map_err(|error| ApiError::not_found(error.to_string()))?]);
        }
        let given = Path::new(name.trim_end_matches('/'));
        // `..` and absolute paths name nothing below the folders.
        let is_plain = given.components().all(|part| matches!(part, Component::Normal(_)));
        let mut parts = given.iter();
        let first = parts.next().filter(|_| is_plain);
        let rest = parts.as_path();
        let below = |root: &PathBuf| if rest.as_os_str().is_empty() { root.clone() } else { root.join(rest) };
        let roots = self.roots.iter().filter(|root| first.is_some() && root.file_name() == first);
        let paths: Vec<PathBuf> = roots.map(below).collect();
        match paths.is_empty() {
            true => Err(ApiError::not_found(
                "the notes have no such folder (names begin with a folder of the index, as in `notes/work`)",
            )),
            false => Ok(paths),
        }
    }

    /// As [`paths`](Self::paths), for several names.
    pub(super) fn all_paths(&self, names: &[String]) -> ApiResult<Vec<PathBuf>> {
        let paths = names.iter().map(|name| self.paths(name)).collect::<ApiResult<Vec<_>>>()?;
        Ok(paths.concat())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::error::ErrorKind;

    fn names() -> Names {
        let roots = ["/home/ada/notes", "/home/ada/notes/.hidden", "/mail/notes", "/home/ada/one.md"];
        Names { roots: roots.map(PathBuf::from).to_vec() }
    }

    #[test]
    fn a_uri_has_an_id_and_nothing_else() {
        let uri = uri(Path::new("/home/ada/notes/trip.md"));
        assert_eq!(id_of(&uri).map(str::len), Some(ID_DIGITS));
        assert!(!uri.contains("ada") && !uri.contains("trip"));
        assert_ne!(uri, super::uri(Path::new("/home/ada/notes/trip.md2")));
        let upper = uri.to_uppercase();
        for not in [
            "",
            "file:///etc/passwd",
            &uri[..uri.len() - 1],
            &format!("{uri}0"),
            &format!("{uri}/.."),
            &upper,
        ] {
            assert_eq!(id_of(not), None, "{not}");
        }
    }

    #[test]
    fn names_begin_with_the_users_folder() {
        let name = |path: &str| names().name(Path::new(path));
        assert_eq!(name("/home/ada/notes/work/plan.md"), "notes/work/plan.md");
        assert_eq!(name("/home/ada/notes/.hidden/a.md"), ".hidden/a.md");
        assert_eq!(name("/home/ada/one.md"), "one.md");
        assert_eq!(name("/home/eve/two.md"), "eve/two.md");
        assert_eq!(Names { roots: vec!["/".into()] }.name(Path::new("/a/b.md")), "a/b.md");
    }

    #[test]
    fn folders_are_found_by_name_and_nothing_above_them() {
        let paths = |name: &str| names().paths(name).map_err(|error| error.kind);
        assert_eq!(paths("notes/work/"), Ok(vec!["/home/ada/notes/work".into(), "/mail/notes/work".into()]));
        assert_eq!(paths("one.md"), Ok(vec!["/home/ada/one.md".into()]));
        for not in
            ["", "/", "..", "notes/..", "notes/../../etc", "/home/ada/notes", "ada/notes", "./notes", "other"]
        {
            assert_eq!(paths(not), Err(ErrorKind::NotFound), "{not}");
        }
    }

    proptest! {
        #[test]
        fn no_name_leads_out_of_the_folders(name in "(notes|one.md|\\.\\.|\\.|/|a|\\\\|C:){0,6}") {
            for path in names().paths(&name).unwrap_or_default() {
                prop_assert!(names().roots.iter().any(|root| path.starts_with(root)));
                prop_assert!(!path.components().any(|part| matches!(part, Component::ParentDir)));
            }
        }

        #[test]
        fn a_name_leads_back_to_its_path(below in prop::collection::vec("[a-c.]{0,2}[d-f]", 0..4)) {
            let path = below.iter().fold(PathBuf::from("/mail/notes"), |path, part| path.join(part));
            prop_assert!(names().paths(&names().name(&path)).unwrap().contains(&path));
        }
    }
}
