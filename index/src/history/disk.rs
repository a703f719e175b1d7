//! What the history asks of a file system: few operations, so that tests can let each of them fail.

use std::any::Any;
use std::ffi::OsString;
use std::fmt;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::HistoryError;
use super::error::io_error;

/// A file system.
pub(super) trait Disk: fmt::Debug + Send + Sync {
    /// Creates a folder and those above it; one that is there is fine. What it holds is the user's own: nobody else may
    /// read it, where the system knows of that.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Names in a folder, in any order; those that are not text are left out.
    fn list(&self, path: &Path) -> io::Result<Vec<String>>;
    /// Opens an existing file for reading.
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Opens an existing file for reading and writing.
    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Creates an empty file, in place of one that is there.
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>>;
    /// Renames a file; one of the new name is replaced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in a folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// Locks the file against other processes until the value is dropped; `None` where one has it.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>>;
    /// When a file was last used or written, in s from 1970.
    fn used_at(&self, path: &Path) -> io::Result<u64>;
    /// Notes that a file was used. Not worth an error.
    fn set_used_at(&self, path: &Path, seconds: u64);
}

/// An open file.
pub(super) trait DiskFile: fmt::Debug + Send + Sync {
    fn len(&self) -> io::Result<u64>;
    /// Reads all of `bytes`; an end before that is an error.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()>;
    /// Writes all of `bytes`. After an error some of them may have been written.
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes what was written durable.
    fn sync(&self) -> io::Result<()>;
}

/// Ends of names that are written and then renamed; what a crash leaves of them is removed.
pub(super) const PARTIAL: &str = ".partial";

/// Removes a file, if it is there.
pub(super) fn remove(disk: &dyn Disk, path: &Path) -> Result<(), HistoryError> {
    match disk.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Start of the names of damaged files that were set aside. No file of the history has a name with this start.
pub(super) const ASIDE: &str = "damaged.";

/// Gives a damaged file a name under which no part of the history reads it. The folder is not synced: after a crash the file
/// may have its old name, and is found damaged again.
pub(super) fn set_aside(disk: &dyn Disk, path: &Path) -> Result<PathBuf, HistoryError> {
    let mut name = OsString::from(ASIDE);
    name.push(path.file_name().expect("files of the store have names"));
    let aside = path.with_file_name(name);
    disk.rename(path, &aside).map_err(io_error("set aside", path))?;
    Ok(aside)
}

/// Puts a whole file at `path`, durably, or leaves things as they were (but for a file that ends in [`PARTIAL`], where even
/// removing fails). Only where the folder's sync fails, the file has its name already.
pub(super) fn put_file(
    disk: &dyn Disk,
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
        // The failure that is reported is the one that came first.
        let _ = disk.remove_file(&partial);
        return Err(error);
    }
    let folder = path.parent().expect("files of the store lie in a folder");
    disk.sync_dir(folder).map_err(io_error("sync", folder))?;
    Ok(file)
}

/// The system's own.
#[derive(Debug)]
pub(super) struct RealDisk;

impl Disk for RealDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let names = fs::read_dir(path)?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        names.filter_map(Result::transpose).collect()
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(File::open(path)?))
    }

    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(File::options().read(true).write(true).open(path)?))
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(private().read(true).write(true).create(true).truncate(true).open(path)?))
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
        // Elsewhere a folder cannot be opened as a file, and names are durable without.
        if cfg!(unix) { File::open(path)?.sync_all() } else { Ok(()) }
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let file = private().write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn used_at(&self, path: &Path) -> io::Result<u64> {
        let modified = fs::metadata(path)?.modified()?;
        Ok(modified.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |time| time.as_secs()))
    }

    fn set_used_at(&self, path: &Path, seconds: u64) {
        let Some(time) = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)) else { return };
        let _ = File::options().write(true).open(path).and_then(|file| file.set_modified(time));
    }
}

/// Options of a file that only its owner may read.
fn private() -> fs::OpenOptions {
    #[allow(unused_mut, reason = "changed on Unix")]
    let mut options = File::options();
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

impl DiskFile for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    #[cfg(unix)]
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(self, bytes, offset)
    }

    #[cfg(unix)]
    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        std::os::unix::fs::FileExt::write_all_at(self, bytes, offset)
    }

    #[cfg(windows)]
    fn read_at(&self, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match std::os::windows::fs::FileExt::seek_read(self, bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => (bytes, offset) = (&mut bytes[n..], offset + n as u64),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    #[cfg(windows)]
    fn write_at(&self, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
        while !bytes.is_empty() {
            match std::os::windows::fs::FileExt::seek_write(self, bytes, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => (bytes, offset) = (&bytes[n..], offset + n as u64),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        File::set_len(self, len)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_all()
    }
}
