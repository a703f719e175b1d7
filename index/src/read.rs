//! Reads the documents of files and folders, in a fixed order and within stated limits.
//!
//! A file that the caller names must be readable text, or it is an error: leaving it out would answer from less than was
//! asked for. In a folder, what is not a note is skipped and reported. Links are followed; every file and folder is read
//! once, however many names lead to it, so that a loop of links ends.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::document::Document;

/// File name extensions that are read in folders.
const NOTE_EXTENSIONS: [&str; 3] = ["md", "markdown", "txt"];

/// Bounds of what is read into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimits {
    /// Longest file, in bytes. Default 4 MiB: some 700,000 words, more than a book.
    pub file_bytes_max: u64,
    /// All files together, in bytes. Default 64 MiB; the index in memory takes about as much again.
    pub total_bytes_max: u64,
    /// Files and folders looked at. Default 100,000, so that naming the root of a disk by mistake ends soon.
    pub n_entries_max: usize,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self { file_bytes_max: 4 << 20, total_bytes_max: 64 << 20, n_entries_max: 100_000 }
    }
}

/// What was read.
#[derive(Debug, Default)]
pub struct Documents {
    /// The texts: in the order of the paths given, a folder's files sorted by path.
    pub documents: Vec<Document>,
    /// What a folder held that was not read.
    pub skipped: Vec<Skipped>,
}

/// Something in a folder that was not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The file or folder.
    pub path: PathBuf,
    /// Why.
    pub reason: SkipReason,
}

/// Why something in a folder was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SkipReason {
    /// Its name starts with a dot.
    #[error("hidden")]
    Hidden,
    /// Its extension is none of those that notes have.
    #[error("not a .md or .txt file")]
    NotANote,
    /// It holds bytes that are not text.
    #[error("not UTF-8 text")]
    NotText,
    /// It is longer than one file may be.
    #[error("longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: u64,
    },
    /// It was read under another name.
    #[error("already read under another name")]
    AlreadyRead,
    /// A broken link, or no right to read it.
    #[error("cannot be read: {0}")]
    Unreadable(io::ErrorKind),
}

/// Why reading stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// A named file or folder could not be opened or read.
    #[error("cannot read `{}`: {source}", path.display())]
    Io {
        /// The path as given.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A named file is not text.
    #[error("`{}` is not UTF-8 text", path.display())]
    NotText {
        /// The path as given.
        path: PathBuf,
    },
    /// A named file is longer than one file may be.
    #[error("`{}` is longer than {limit} bytes", path.display())]
    FileTooLong {
        /// The path as given.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// All texts together are longer than they may be.
    #[error("the files up to `{}` are longer than {limit} bytes together", path.display())]
    TotalTooLong {
        /// The file that did not fit any more.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// The folders hold more entries than may be looked at.
    #[error("more than {limit} files and folders up to `{}`", path.display())]
    TooManyEntries {
        /// The folder that was being read.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
}

/// Reads every file named, and every note in every folder named and in the folders below it.
///
/// # Errors
/// [`ReadError`], naming the file or folder and the limit; nothing is returned then.
pub fn read_documents<P: AsRef<Path>>(paths: &[P], limits: &ReadLimits) -> Result<Documents, ReadError> {
    let mut reader =
        Reader { limits, total_bytes: 0, n_entries: 0, seen: HashSet::new(), found: Documents::default() };
    for path in paths {
        reader.read_named(path.as_ref())?;
    }
    Ok(reader.found)
}

struct Reader<'a> {
    limits: &'a ReadLimits,
    total_bytes: u64,
    n_entries: usize,
    /// Canonical paths of the files and folders taken.
    seen: HashSet<PathBuf>,
    found: Documents,
}

impl Reader<'_> {
    /// A path that the caller named: whatever is wrong with it is an error.
    fn read_named(&mut self, path: &Path) -> Result<(), ReadError> {
        let io_error = |source| ReadError::Io { path: path.to_owned(), source };
        if fs::metadata(path).map_err(io_error)?.is_dir() {
            return match self.read_folders(path) {
                Err(FolderError::Entry(reason)) => Err(io_error(reason)),
                Err(FolderError::Limit(error)) => Err(error),
                Ok(()) => Ok(()),
            };
        }
        if !self.is_new(path) {
            return Ok(());
        }
        let limit = self.limits.file_bytes_max;
        match read_text(path, limit) {
            Ok(text) => self.keep(path, &text),
            Err(Unread::Io(source)) => Err(io_error(source)),
            Err(Unread::NotText) => Err(ReadError::NotText { path: path.to_owned() }),
            Err(Unread::TooLong) => Err(ReadError::FileTooLong { path: path.to_owned(), limit }),
        }
    }

    /// A folder and those below it, by a stack of paths rather than by recursion: a chain of folders may be deeper than
    /// the call stack. What is wrong below the named folder is skipped and reported.
    fn read_folders(&mut self, named: &Path) -> Result<(), FolderError> {
        let mut waiting = vec![named.to_owned()];
        while let Some(path) = waiting.pop() {
            let is_folder = match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => true,
                Ok(metadata) if metadata.is_file() => false,
                Ok(_) => {
                    self.skip(&path, SkipReason::NotANote);
                    continue;
                }
                Err(error) => {
                    self.skip(&path, SkipReason::Unreadable(error.kind()));
                    continue;
                }
            };
            if !is_folder {
                self.read_note(&path).map_err(FolderError::Limit)?;
            } else if !self.is_new(&path) {
                self.skip(&path, SkipReason::AlreadyRead);
            } else {
                match self.entries(&path) {
                    // The stack gives back the last entry first.
                    Ok(entries) => waiting.extend(entries.into_iter().rev()),
                    Err(FolderError::Entry(error)) if path != named => {
                        self.skip(&path, SkipReason::Unreadable(error.kind()));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Entries of one folder in the order of their names, hidden ones left out.
    fn entries(&mut self, folder: &Path) -> Result<Vec<PathBuf>, FolderError> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(folder).map_err(FolderError::Entry)? {
            let path = entry.map_err(FolderError::Entry)?.path();
            self.n_entries += 1;
            if self.n_entries > self.limits.n_entries_max {
                let limit = self.limits.n_entries_max;
                return Err(FolderError::Limit(ReadError::TooManyEntries { path: folder.to_owned(), limit }));
            }
            entries.push(path);
        }
        entries.sort_unstable();
        entries.retain(|path| {
            let is_hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if is_hidden {
                self.skip(path, SkipReason::Hidden);
            }
            !is_hidden
        });
        Ok(entries)
    }

    /// A file found in a folder.
    fn read_note(&mut self, path: &Path) -> Result<(), ReadError> {
        let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
        if !NOTE_EXTENSIONS.iter().any(|note| note.eq_ignore_ascii_case(extension)) {
            self.skip(path, SkipReason::NotANote);
            return Ok(());
        }
        if !self.is_new(path) {
            self.skip(path, SkipReason::AlreadyRead);
            return Ok(());
        }
        let limit = self.limits.file_bytes_max;
        match read_text(path, limit) {
            Ok(text) => self.keep(path, &text)?,
            Err(Unread::Io(error)) => self.skip(path, SkipReason::Unreadable(error.kind())),
            Err(Unread::NotText) => self.skip(path, SkipReason::NotText),
            Err(Unread::TooLong) => self.skip(path, SkipReason::TooLong { limit }),
        }
        Ok(())
    }

    fn keep(&mut self, path: &Path, text: &str) -> Result<(), ReadError> {
        self.total_bytes += text.len() as u64;
        if self.total_bytes > self.limits.total_bytes_max {
            let limit = self.limits.total_bytes_max;
            return Err(ReadError::TotalTooLong { path: path.to_owned(), limit });
        }
        self.found.documents.push(Document::new(path, text));
        Ok(())
    }

    fn skip(&mut self, path: &Path, reason: SkipReason) {
        self.found.skipped.push(Skipped { path: path.to_owned(), reason });
    }

    /// Notes the place that a path leads to; false if it was noted before. A path that cannot be resolved is new: reading
    /// it will say what is wrong.
    fn is_new(&mut self, path: &Path) -> bool {
        fs::canonicalize(path).map_or(true, |place| self.seen.insert(place))
    }
}

enum FolderError {
    /// The folder itself.
    Entry(io::Error),
    /// A limit: reading ends.
    Limit(ReadError),
}

enum Unread {
    Io(io::Error),
    NotText,
    TooLong,
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The text of one file. Reads one byte past the limit at most, so a pipe or a file that grows is bounded as well.
fn read_text(path: &Path, bytes_max: u64) -> Result<String, Unread> {
    let mut bytes = Vec::new();
    File::open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Unread::TooLong);
    }
    // A text with a NUL is binary data whose bytes happen to be valid UTF-8.
    match String::from_utf8(bytes) {
        Ok(text) if !text.contains('\0') => Ok(text),
        _ => Err(Unread::NotText),
    }
}

#[cfg(test)]
mod tests;
