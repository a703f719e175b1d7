//! The file system interface of the history: few operations, so that tests can make each of them fail.

use std::any::Any;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::ops::Deref;
use std::path::Path;
use std::time::{Duration, SystemTime};

use refrain_files::open_regular;

use crate::disk_file::DiskFile;
use crate::seal::Seal;
use refrain_files::replace;

/// A file system.
pub(crate) trait Disk: fmt::Debug + Send + Sync {
    /// Creates a folder and its parents, if they do not exist. On systems with permissions, only the owner may access
    /// it.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Names in a folder, in any order, without those that are not valid text.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Names of one kind in a folder, as [`list`](Self::list).
    fn list_kind(&self, path: &Path, kind: Kind) -> io::Result<Vec<String>>;
    /// Removes a folder with everything in it. Links in it are removed, not followed.
    fn remove_all(&self, path: &Path) -> io::Result<()>;
    /// Opens an existing file for reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens an existing file for reading and writing.
    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Creates an empty file in place of an existing one or of a link. On systems with permissions, only the owner may
    /// read it.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Renames a file; replaces an existing one.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes the entries of a folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Locks the file against other processes until the value is dropped. `None` if another process holds the lock.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>>;
    /// The length of a file, and the time of its last use or write.
    fn stat(&self, path: &Path) -> io::Result<(u64, SystemTime)>;
    /// Stores the time of a file's use. Errors are ignored.
    fn set_time(&self, path: &Path, time: SystemTime);

    /// The time of a file's last use or write, in s since 1970.
    fn used_at(&self, path: &Path) -> io::Result<u64> {
        let (_, time) = self.stat(path)?;
        Ok(time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs()))
    }

    /// Stores the time of a file's use. Errors are ignored.
    fn set_used_at(&self, path: &Path, seconds: u64) {
        let time = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds));
        time.into_iter().for_each(|time| self.set_time(path, time));
    }
}

/// The kind of an entry of a folder. Links are not followed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    File,
    Folder,
    /// A link, pipe, socket or device.
    Other,
}

/// Suffix of files that are being written and will be renamed. The writer removes those left by a crash.
pub(crate) const PARTIAL: &str = ".partial";

/// A file system, and the encryption of its files. The disk itself does not encrypt: the writers of files do.
#[derive(Debug)]
pub(super) struct SealedDisk {
    pub(super) disk: Box<dyn Disk>,
    pub(super) seal: Seal,
}

impl SealedDisk {
    pub(super) fn seal(&self) -> &Seal {
        &self.seal
    }
}

impl Deref for SealedDisk {
    type Target = dyn Disk;

    fn deref(&self) -> &Self::Target {
        &*self.disk
    }
}

/// The system's file system.
#[derive(Debug)]
pub(crate) struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        replace::create_private_folder(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }

    fn list_kind(&self, path: &Path, kind: Kind) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            let of_entry = match entry.file_type() {
                Ok(of_entry) if of_entry.is_file() => Kind::File,
                Ok(of_entry) if of_entry.is_dir() => Kind::Folder,
                Ok(_) => Kind::Other,
                // Removed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            if of_entry == kind {
                names.extend(entry.file_name().into_string());
            }
        }
        Ok(names)
    }

    fn remove_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(open_regular(path)?))
    }

    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(File::options().read(true).write(true).open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(replace::create_private_file(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        replace::sync_folder(path)
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let file = replace::private_options().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn stat(&self, path: &Path) -> io::Result<(u64, SystemTime)> {
        let metadata = fs::metadata(path)?;
        Ok((metadata.len(), metadata.modified()?))
    }

    fn set_time(&self, path: &Path, time: SystemTime) {
        let _ = File::options().write(true).open(path).and_then(|file| file.set_modified(time));
    }
}
