//! Durable changes of whole files: written, removed, set aside.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use super::disk::{PARTIAL, SealedDisk};
use super::error::{HistoryError, io_error};
use crate::disk_file::{DiskFile, if_there};

/// Removes a file, if it exists.
pub(super) fn remove(disk: &SealedDisk, path: &Path) -> Result<(), HistoryError> {
    if_there(disk.remove_file(path)).map(drop).map_err(io_error("remove", path))
}

/// Prefix of the names of damaged files that were set aside. No other file of the history has this prefix.
pub(super) const ASIDE: &str = "damaged.";

/// Renames a damaged file, so that no part of the history reads it. The folder is not synced: after a crash the file
/// may have its old name, and its damage is detected again.
pub(super) fn set_aside(disk: &SealedDisk, path: &Path) -> Result<PathBuf, HistoryError> {
    let mut name = OsString::from(ASIDE);
    name.push(path.file_name().expect("files of the store have names"));
    let aside = path.with_file_name(name);
    disk.rename(path, &aside).map_err(io_error("set aside", path))?;
    Ok(aside)
}

/// Writes a whole file at `path`, durably. After an error, the old state is kept, with two exceptions: a file ending
/// in [`PARTIAL`] may remain if its removal fails too, and the new file is in place if only the folder's sync failed.
pub(super) fn put_file(
    disk: &SealedDisk,
    path: &Path,
    write: impl FnOnce(&dyn DiskFile) -> io::Result<()>,
) -> Result<Box<dyn DiskFile>, HistoryError> {
    let mut name = path.file_name().expect("files of the store have names").to_owned();
    name.push(PARTIAL);
    let partial = path.with_file_name(name);
    let file = disk.create(&partial).map_err(io_error("create", &partial))?;
    let written = write(&*file).map_err(io_error("write", &partial));
    let synced = written.and_then(|()| file.sync().map_err(io_error("sync", &partial)));
    let renamed = synced.and_then(|()| disk.rename(&partial, path).map_err(io_error("rename to", path)));
    if let Err(error) = renamed {
        drop(file);
        // Reports the first failure.
        let _ = disk.remove_file(&partial);
        return Err(error);
    }
    let folder = path.parent().expect("files of the store lie in a folder");
    disk.sync_dir(folder).map_err(io_error("sync", folder))?;
    Ok(file)
}

/// Removes a folder with its files, durably. `false` if it does not exist.
pub(super) fn remove_files(disk: &SealedDisk, folder: &Path) -> Result<bool, HistoryError> {
    let Some(names) = if_there(disk.list(folder)).map_err(io_error("read", folder))? else {
        return Ok(false);
    };
    for name in &names {
        let path = folder.join(name);
        remove(disk, &path)?;
    }
    disk.sync_dir(folder).map_err(io_error("sync", folder))?;
    // A folder without files is not a namespace, so a failure to remove it does not matter.
    let _ = disk.remove_dir(folder);
    Ok(!names.is_empty())
}
