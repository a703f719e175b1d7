//! Atomic replacement of a file, and atomic creation of a folder.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A failed operation, with its path.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} `{}`: {source}", path.display())]
pub(crate) struct ReplaceError {
    pub(crate) action: &'static str,
    pub(crate) path: PathBuf,
    pub(crate) source: io::Error,
}

/// Maximum number of names tried for the new file. A name is taken only if an earlier process with the same
/// id was killed, so the first is nearly always free.
const NAMES_MAX: usize = 64;

/// Writes a file under another name in the same folder, syncs it, and renames it to `path`.
///
/// If an operation fails, the file at `path` is unchanged and the new file is removed. The only exception is
/// the final sync of the folder: if it fails, the new file has been renamed already. A killed process leaves
/// the new file behind, named `.NAME.….partial`. The new file is created exclusively, so no existing file or
/// link is written through.
pub(crate) fn replace_file<T, E: From<ReplaceError>>(
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<T, E>,
) -> Result<T, E> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ReplaceError { action, path, source }
    };
    let (mut file, partial) = create_partial(path)?;
    let done = write(&mut file)?;
    file.sync_all().map_err(failed("sync", &partial.path))?;
    drop(file);
    fs::rename(&partial.path, path).map_err(failed("rename to", path))?;
    sync_folder(path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
    Ok(done)
}

/// Creates a folder under another name, lets `write` fill it, and renames it to `path`. `path` must not exist
/// or be an empty folder. `write` must sync the files.
///
/// If an operation fails, `path` is unchanged and the new folder is removed.
pub(crate) fn create_folder<T, E: From<ReplaceError>>(
    path: &Path,
    write: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<T, E> {
    let failed = |action, path: &Path| {
        let path = path.to_owned();
        move |source| ReplaceError { action, path, source }
    };
    let partial =
        Partial { path: partial_path(path, CALLS.fetch_add(1, Ordering::Relaxed)), is_folder: true };
    fs::create_dir(&partial.path).map_err(failed("create", &partial.path))?;
    let done = write(&partial.path)?;
    sync_folder(&partial.path)?;
    fs::rename(&partial.path, path).map_err(failed("rename to", path))?;
    sync_folder(path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
    Ok(done)
}

/// Syncs a folder, which makes renames in it durable.
#[cfg(unix)]
fn sync_folder(folder: &Path) -> Result<(), ReplaceError> {
    let synced = File::open(folder).and_then(|folder| folder.sync_all());
    synced.map_err(|source| ReplaceError { action: "sync", path: folder.to_owned(), source })
}

#[cfg(not(unix))]
fn sync_folder(_folder: &Path) -> Result<(), ReplaceError> {
    Ok(())
}

/// Removes the new file or folder when it is dropped. After the rename there is nothing to remove.
struct Partial {
    path: PathBuf,
    is_folder: bool,
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Best effort: the caller gets the first error.
        let _ = match self.is_folder {
            true => fs::remove_dir_all(&self.path),
            false => fs::remove_file(&self.path),
        };
    }
}

/// Creates a file under an unused name.
fn create_partial(path: &Path) -> Result<(File, Partial), ReplaceError> {
    let mut n_tried = 0;
    loop {
        let partial = partial_path(path, CALLS.fetch_add(1, Ordering::Relaxed));
        n_tried += 1;
        match File::options().write(true).create_new(true).open(&partial) {
            Ok(file) => return Ok((file, Partial { path: partial, is_folder: false })),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && n_tried < NAMES_MAX => {}
            Err(source) => return Err(ReplaceError { action: "create", path: partial, source }),
        }
    }
}

/// The number of names that this process has tried.
static CALLS: AtomicU64 = AtomicU64::new(0);

/// A name that no other process and no other call uses.
fn partial_path(path: &Path, call: u64) -> PathBuf {
    let mut name = OsString::from(".");
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
            path: PathBuf::new(),
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
    fn a_folder_is_there_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("graphs");
        let write = |fails: bool| {
            create_folder(&path, |partial| {
                fs::write(partial.join("a"), "1").unwrap();
                let path = PathBuf::new();
                let full = ReplaceError { action: "write", path, source: io::ErrorKind::StorageFull.into() };
                if fails { Err(full) } else { Ok(()) }
            })
        };
        assert_eq!(write(true).unwrap_err().source.kind(), io::ErrorKind::StorageFull);
        assert_eq!(names(folder.path()), [""; 0]);
        write(false).unwrap();
        assert_eq!((names(folder.path()), names(&path)), (vec!["graphs".to_owned()], vec!["a".to_owned()]));
        assert_eq!(write(false).unwrap_err().action, "rename to");
        assert_eq!((names(folder.path()), names(&path)), (vec!["graphs".to_owned()], vec!["a".to_owned()]));
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

    #[cfg(unix)]
    #[test]
    fn what_lies_under_the_other_name_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("model"), folder.path().join("victim"));
        fs::write(&victim, "mine").unwrap();
        // Concurrent tests may use some of these numbers; then fewer links are in the way.
        let next = CALLS.load(Ordering::Relaxed);
        let planted: Vec<PathBuf> = (next..next + 8).map(|call| partial_path(&path, call)).collect();
        for link in &planted {
            std::os::unix::fs::symlink(&victim, link).unwrap();
        }
        replace_file(&path, |file| {
            file.write_all(b"new").map_err(|source| ReplaceError {
                action: "write",
                path: path.clone(),
                source,
            })
        })
        .unwrap();
        assert_eq!(
            (fs::read(&path).unwrap(), fs::read(&victim).unwrap()),
            (b"new".to_vec(), b"mine".to_vec())
        );
        assert!(!fs::symlink_metadata(&path).unwrap().is_symlink());
        assert!(planted.iter().all(|link| fs::symlink_metadata(link).is_ok_and(|meta| meta.is_symlink())));
    }
}
