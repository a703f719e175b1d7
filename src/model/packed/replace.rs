//! Puts a whole file in place of another, or leaves things as they were.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// What was being done when the system refused.
#[derive(Debug, thiserror::Error)]
#[error("{action} `{path}`: {source}")]
pub(super) struct ReplaceError {
    pub(super) action: &'static str,
    pub(super) path: String,
    pub(super) source: io::Error,
}

/// Writes a file under another name in the same folder, syncs it, and renames it to `path`.
///
/// When anything fails, whatever was at `path` is still there and the other file is gone; only where the folder cannot be
/// synced, after everything else, the new file has its name already. (A process that is killed leaves the other file
/// behind, named `.NAME.….partial`.)
pub(super) fn replace_file<T, E: From<ReplaceError>>(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<T, E>,
) -> Result<T, E> {
    let partial = Partial { path: partial_path(path) };
    let failed = |action, path: &Path| {
        let path = path.display().to_string();
        move |source| ReplaceError { action, path, source }
    };
    let mut file = File::create(&partial.path).map_err(failed("create", &partial.path))?;
    let done = write(&mut file)?;
    file.sync_all().map_err(failed("sync", &partial.path))?;
    drop(file);
    fs::rename(&partial.path, path).map_err(failed("rename to", path))?;
    // The new name is on the disk once the folder is.
    #[cfg(unix)]
    {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("sync", folder))?;
    }
    Ok(done)
}

/// Removes the file when it goes; after the rename there is none.
struct Partial {
    path: PathBuf,
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Best effort: the failure that is reported is the one that came first.
        let _ = fs::remove_file(&self.path);
    }
}

/// A name that no other process and no other call uses.
fn partial_path(path: &Path) -> PathBuf {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let call = CALLS.fetch_add(1, Ordering::Relaxed);
    let mut name = std::ffi::OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{}-{call}.partial", std::process::id()));
    path.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn a_failure_leaves_the_old_file_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model");
        fs::write(&path, "old").unwrap();
        let full = || ReplaceError {
            action: "write",
            path: String::new(),
            source: io::ErrorKind::StorageFull.into(),
        };
        let result: Result<(), ReplaceError> = replace_file(&path, |file| {
            file.write_all(b"half").unwrap();
            assert_eq!(names(folder.path()).len(), 2);
            Err(full())
        });
        assert_eq!(result.unwrap_err().source.kind(), io::ErrorKind::StorageFull);
        assert_eq!(
            (names(folder.path()), fs::read(&path).unwrap()),
            (vec!["model".to_owned()], b"old".to_vec())
        );

        replace_file(&path, |file| file.write_all(b"new").map_err(|_| full())).unwrap();
        assert_eq!(
            (names(folder.path()), fs::read(&path).unwrap()),
            (vec!["model".to_owned()], b"new".to_vec())
        );
    }

    #[test]
    fn places_that_cannot_be_written_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let nowhere = folder.path().join("missing/model");
        let error = replace_file(&nowhere, |_| Ok::<(), ReplaceError>(())).unwrap_err();
        assert_eq!(error.action, "create");
        fs::create_dir(folder.path().join("folder")).unwrap();
        let error = replace_file(&folder.path().join("folder"), |_| Ok::<(), ReplaceError>(())).unwrap_err();
        assert_eq!(error.action, "rename to");
        assert_eq!(names(folder.path()), ["folder"]);
    }
}
