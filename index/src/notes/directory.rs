//! The files of the inverted index: a tantivy directory over plain files.
//!
//! Reads are positioned reads into owned buffers, not mappings, so a failing disk or a shortened file is an error. An
//! open file keeps its contents after the writer has removed it (on Unix). Small files have a checksum of this crate;
//! the others have tantivy's. With a key, all are encrypted.
//!
//! tantivy's own locks are not taken. The writer holds the lock of the whole folder, and a reader that meets a file
//! being removed reads the list of segments again.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use refrain_files::open_regular;
use tantivy::HasLen;
use tantivy::directory::error::{DeleteError, LockError, OpenReadError, OpenWriteError};
use tantivy::directory::{
    AntiCallToken, Directory, DirectoryLock, FileHandle, Lock, OwnedBytes, TerminatingWrite, WatchCallback,
    WatchHandle, WritePtr,
};

use super::files::{self, Folder};
use crate::disk_file::DiskFile;
use crate::history::disk::{Disk, RealDisk};
use crate::seal::{CHUNK_BYTES, FileWriter};

/// tantivy's list of its files. Only a list of candidates for removal, so it need not survive a loss of power.
pub(super) const MANAGED: &str = ".managed.json";

#[derive(Clone, Debug)]
pub(super) struct PlainDirectory {
    folder: Arc<Folder>,
}

impl PlainDirectory {
    pub(super) fn new(folder: Folder) -> Self {
        Self { folder: Arc::new(folder) }
    }

    fn path(&self, name: &Path) -> PathBuf {
        self.folder.join(name)
    }
}

fn open_error(name: &Path) -> impl FnOnce(io::Error) -> OpenReadError {
    let name = name.to_owned();
    move |error| match error.kind() {
        io::ErrorKind::NotFound => OpenReadError::FileDoesNotExist(name),
        _ => OpenReadError::wrap_io_error(error, name),
    }
}

impl Directory for PlainDirectory {
    fn get_file_handle(&self, name: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        let opened = open_regular(&self.path(name)).and_then(|file| {
            let file = self.folder.seal.open_file(&files::sealed(name), Box::new(file))?;
            let len = file.len()? as usize;
            Ok(OpenFile { file, len })
        });
        Ok(Arc::new(opened.map_err(open_error(name))?))
    }

    fn delete(&self, name: &Path) -> Result<(), DeleteError> {
        fs::remove_file(self.path(name)).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => DeleteError::FileDoesNotExist(name.to_owned()),
            _ => DeleteError::IoError { io_error: Arc::new(error), filepath: name.to_owned() },
        })
    }

    fn exists(&self, name: &Path) -> Result<bool, OpenReadError> {
        self.path(name).try_exists().map_err(open_error(name))
    }

    fn open_write(&self, name: &Path) -> Result<WritePtr, OpenWriteError> {
        let file = files::create_new(&self.path(name)).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => OpenWriteError::FileAlreadyExists(name.to_owned()),
            _ => OpenWriteError::wrap_io_error(error, name.to_owned()),
        })?;
        if !self.folder.seal.encrypts() {
            return Ok(BufWriter::new(Box::new(NewFile(file))));
        }
        let writer = FileWriter::new(&self.folder.seal, &files::sealed(name));
        let writer = writer.map_err(|error| OpenWriteError::wrap_io_error(error, name.to_owned()))?;
        Ok(BufWriter::new(Box::new(NewSealedFile { file, writer, n_written: 0, pending: Vec::new() })))
    }

    fn atomic_read(&self, name: &Path) -> Result<Vec<u8>, OpenReadError> {
        match files::read(&self.folder.seal, &self.path(name)) {
            // Without the list, the writer compares the names in the folder.
            Err(error) if name == Path::new(MANAGED) && files::is_damage(&error) => {
                Err(OpenReadError::FileDoesNotExist(name.to_owned()))
            }
            read => read.map_err(open_error(name)),
        }
    }

    fn atomic_write(&self, name: &Path, data: &[u8]) -> io::Result<()> {
        files::replace(&self.folder.seal, &self.path(name), data, name != Path::new(MANAGED))
    }

    fn sync_directory(&self) -> io::Result<()> {
        RealDisk.sync_dir(&self.folder)
    }

    fn acquire_lock(&self, _lock: &Lock) -> Result<DirectoryLock, LockError> {
        Ok(DirectoryLock::from(Box::new(())))
    }

    fn watch(&self, _callback: WatchCallback) -> tantivy::Result<WatchHandle> {
        Ok(WatchHandle::empty())
    }
}

#[derive(Debug)]
struct OpenFile {
    file: Box<dyn DiskFile>,
    len: usize,
}

impl HasLen for OpenFile {
    fn len(&self) -> usize {
        self.len
    }
}

impl FileHandle for OpenFile {
    fn read_bytes(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        if range.start > range.end || range.end > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut bytes = vec![0; range.len()];
        self.file.read_at(&mut bytes, range.start as u64)?;
        Ok(OwnedBytes::new(bytes))
    }
}

/// A file that is durable when it is complete.
struct NewFile(File);

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl TerminatingWrite for NewFile {
    fn terminate_ref(&mut self, _: AntiCallToken) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// An encrypted file that is durable when it is complete.
struct NewSealedFile {
    file: File,
    writer: FileWriter,
    n_written: u64,
    /// Less than a run of chunks.
    pending: Vec<u8>,
}

/// Bytes that are encrypted at a time.
const RUN_BYTES: usize = 16 * CHUNK_BYTES;

impl NewSealedFile {
    fn write_pending(&mut self) -> io::Result<()> {
        self.writer.write_at(&self.file, &self.pending, self.n_written)?;
        self.n_written += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

impl Write for NewSealedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(RUN_BYTES - self.pending.len());
        self.pending.extend_from_slice(&bytes[..n]);
        if self.pending.len() == RUN_BYTES {
            self.write_pending()?;
        }
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        // A chunk is written once, when it is whole.
        Ok(())
    }
}

impl TerminatingWrite for NewSealedFile {
    fn terminate_ref(&mut self, _: AntiCallToken) -> io::Result<()> {
        self.write_pending()?;
        self.writer.finish(&self.file)?;
        self.file.sync_data()
    }
}
