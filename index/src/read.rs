//! Reads the documents of files and folders, in a fixed order and within stated limits.
//!
//! If a file named by the caller is not readable text, that is an error: without it, an answer would use less than
//! the caller requested. In a folder, other files than notes are skipped and reported. Links are followed inside the named
//! files and folders. Every file and folder is read once, under its first name, so a loop of links ends.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::bounds::{Bounds, Target, is_hidden};
use crate::document::Document;
use crate::notes::{Decoded, FileText, SourceKind};

/// File name extensions of text that is read as it is.
const NOTE_EXTENSIONS: [&str; 3] = ["md", "markdown", "txt"];

/// Limits on the data read into memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadLimits {
    /// Maximum length of a file, in bytes. Default 8 MiB, as in an index.
    pub file_bytes_max: u64,
    /// Maximum length of the texts of all files together, in bytes. Default 64 MiB; the index needs about the same memory again.
    pub total_bytes_max: u64,
    /// Maximum number of visited files and folders. Default 100,000, so that reading the root of a disk by mistake
    /// ends soon.
    pub n_entries_max: usize,
    /// Whether links in folders are followed that lead out of all named files and folders. Default `false`: in a shared folder,
    /// anybody may have placed them.
    pub follows_links: bool,
}

impl Default for ReadLimits {
    fn default() -> Self {
        Self {
            file_bytes_max: 8 << 20,
            total_bytes_max: 64 << 20,
            n_entries_max: 100_000,
            follows_links: false,
        }
    }
}

/// The result of reading.
#[derive(Debug, Default)]
pub struct Documents {
    /// The texts: in the order of the paths given, a folder's files sorted by path.
    pub documents: Vec<Document>,
    /// Skipped files and folders.
    pub skipped: Vec<Skipped>,
}

/// A skipped file or folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    /// The file or folder.
    pub path: PathBuf,
    /// The reason.
    pub reason: SkipReason,
}

/// The reason why a file or folder was skipped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SkipReason {
    /// Its name starts with a dot.
    #[error("hidden")]
    Hidden,
    /// Its extension is not one of a source ([`SourceKind`]).
    #[error("not a source")]
    NotASource,
    /// A link leads out of all named files and folders, and [`ReadLimits::follows_links`] is not set.
    #[error("a link out of the named files and folders")]
    OutsideLink,
    /// It is neither UTF-8 text nor UTF-16 with a byte order mark.
    #[error("neither UTF-8 text nor UTF-16 with a byte order mark")]
    NotText,
    /// It does not follow its format, or has no text.
    #[error(transparent)]
    Format(crate::notes::SkipReason),
    /// It exceeds the maximum length of a file.
    #[error("longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: u64,
    },
    /// It was already read under another name.
    #[error("already read under another name")]
    AlreadyRead,
    /// It is a broken link, or permission to read it is missing.
    #[error("cannot be read: {0}")]
    Unreadable(io::ErrorKind),
}

/// The error that ended reading.
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
    #[error("`{}` is neither UTF-8 text nor UTF-16 with a byte order mark", path.display())]
    NotText {
        /// The path as given.
        path: PathBuf,
    },
    /// A named file does not follow its format, or has no text.
    #[error("cannot read `{}`: {reason}", path.display())]
    Format {
        /// The path as given.
        path: PathBuf,
        /// The reason.
        reason: crate::notes::SkipReason,
    },
    /// A named file exceeds the maximum length of a file.
    #[error("`{}` is longer than {limit} bytes", path.display())]
    FileTooLong {
        /// The path as given.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// All texts together exceed their limit.
    #[error("the files up to `{}` are longer than {limit} bytes together", path.display())]
    TotalTooLong {
        /// The first file that did not fit.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// The folders contain more entries than the limit.
    #[error("more than {limit} files and folders up to `{}`", path.display())]
    TooManyEntries {
        /// The folder being read.
        path: PathBuf,
        /// The limit.
        limit: usize,
    },
}

/// Reads every named file, and every source in every named folder and its subfolders: the files that an index reads ([`SourceKind`]). A named
/// file of another extension is read as text.
///
/// # Errors
/// [`ReadError`] with the file or folder and the limit. No text is returned.
pub fn read_documents<P: AsRef<Path>>(paths: &[P], limits: &ReadLimits) -> Result<Documents, ReadError> {
    let bounds = Bounds::new(paths.iter().map(P::as_ref), limits.follows_links);
    let (seen, found) = (HashSet::new(), Documents::default());
    let mut reader = Reader { limits, bounds, total_bytes: 0, n_entries: 0, seen, found };
    for path in paths {
        reader.read_named(path.as_ref())?;
    }
    Ok(reader.found)
}

struct Reader<'a> {
    limits: &'a ReadLimits,
    /// Where links may lead.
    bounds: Bounds,
    total_bytes: u64,
    n_entries: usize,
    /// Canonical paths of the visited files and folders.
    seen: HashSet<PathBuf>,
    found: Documents,
}

impl Reader<'_> {
    /// Reads a path named by the caller. Every failure is an error.
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
        // The user may name a pipe.
        match File::open(path).map_err(Unread::Io).and_then(|file| read_file(path, file, limit)) {
            Ok(document) => self.keep(document),
            Err(Unread::Io(source)) => Err(io_error(source)),
            Err(Unread::NotText) => Err(ReadError::NotText { path: path.to_owned() }),
            Err(Unread::Format(reason)) => Err(ReadError::Format { path: path.to_owned(), reason }),
            Err(Unread::TooLong) => Err(ReadError::FileTooLong { path: path.to_owned(), limit }),
        }
    }

    /// Reads a folder and its subfolders with a stack of paths instead of recursion, because a chain of folders may
    /// be deeper than the call stack. Failures below the named folder are skipped and reported.
    fn read_folders(&mut self, named: &Path) -> Result<(), FolderError> {
        let mut waiting = vec![named.to_owned()];
        while let Some(path) = waiting.pop() {
            if path != named
                && path.is_symlink()
                && let Some(reason) = self.leads_out(&path)
            {
                self.skip(&path, reason);
                continue;
            }
            let is_folder = match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => true,
                Ok(metadata) if metadata.is_file() => false,
                Ok(_) => {
                    self.skip(&path, SkipReason::NotASource);
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
                    // The stack returns the last entry first.
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

    /// The reason why a link is not followed.
    fn leads_out(&self, link: &Path) -> Option<SkipReason> {
        if self.bounds.follows_links {
            return None;
        }
        match self.bounds.target(link) {
            Ok(Target::Inside { below, .. }) => {
                below.ancestors().any(is_hidden).then_some(SkipReason::Hidden)
            }
            Ok(Target::Outside) => Some(SkipReason::OutsideLink),
            Err(error) => Some(SkipReason::Unreadable(error.kind())),
        }
    }

    /// Entries of one folder in the order of their names, without hidden ones.
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
            let is_hidden = is_hidden(path);
            if is_hidden {
                self.skip(path, SkipReason::Hidden);
            }
            !is_hidden
        });
        Ok(entries)
    }

    /// A file found in a folder.
    fn read_note(&mut self, path: &Path) -> Result<(), ReadError> {
        if SourceKind::of(path).is_none() {
            self.skip(path, SkipReason::NotASource);
            return Ok(());
        }
        if !self.is_new(path) {
            self.skip(path, SkipReason::AlreadyRead);
            return Ok(());
        }
        let limit = self.limits.file_bytes_max;
        let opened = self.bounds.open(path).and_then(|file| match file.metadata()?.is_file() {
            true => Ok(file),
            false => Err(io::ErrorKind::InvalidInput.into()),
        });
        match opened.map_err(Unread::Io).and_then(|file| read_file(path, file, limit)) {
            Ok(document) => self.keep(document)?,
            Err(Unread::Io(error)) => self.skip(path, SkipReason::Unreadable(error.kind())),
            Err(Unread::NotText) => self.skip(path, SkipReason::NotText),
            Err(Unread::Format(reason)) => self.skip(path, SkipReason::Format(reason)),
            Err(Unread::TooLong) => self.skip(path, SkipReason::TooLong { limit }),
        }
        Ok(())
    }

    fn keep(&mut self, document: Document) -> Result<(), ReadError> {
        self.total_bytes += document.text.len() as u64;
        if self.total_bytes > self.limits.total_bytes_max {
            let limit = self.limits.total_bytes_max;
            return Err(ReadError::TotalTooLong { path: document.path, limit });
        }
        self.found.documents.push(document);
        Ok(())
    }

    fn skip(&mut self, path: &Path, reason: SkipReason) {
        self.found.skipped.push(Skipped { path: path.to_owned(), reason });
    }

    /// Stores the canonical path. Returns false if it was stored before. A path that cannot be resolved counts as
    /// new: reading it gives the error.
    fn is_new(&mut self, path: &Path) -> bool {
        fs::canonicalize(path).map_or(true, |place| self.seen.insert(place))
    }
}

enum FolderError {
    /// The folder itself cannot be read.
    Entry(io::Error),
    /// A limit is exceeded, so reading ends.
    Limit(ReadError),
}

enum Unread {
    Io(io::Error),
    NotText,
    Format(crate::notes::SkipReason),
    TooLong,
}

impl From<io::Error> for Unread {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The texts of a file below their titles.
fn below_titles(texts: &[FileText]) -> String {
    let (mut whole, mut above) = (String::new(), "");
    for text in texts {
        if text.title != above {
            whole.extend([&text.title, "\n\n"]);
            above = &text.title;
        }
        whole.extend([&text.text, "\n\n"]);
    }
    whole.truncate(whole.trim_end().len());
    whole
}

/// The document of one file. Reads at most one byte beyond the limit, so a pipe or a growing file is limited as well.
fn read_file(path: &Path, file: File, bytes_max: u64) -> Result<Document, Unread> {
    let mut bytes = Vec::new();
    file.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(Unread::TooLong);
    }
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let is_note = NOTE_EXTENSIONS.iter().any(|note| note.eq_ignore_ascii_case(extension));
    if !is_note && SourceKind::of(path).is_some() {
        let texts = crate::notes::read_texts(path, &bytes).map_err(Unread::Format)?.texts;
        return Ok(Document::plain(path, &below_titles(&texts)));
    }
    let text = Decoded::new(&bytes);
    text.text().map(|text| Document::new(path, text)).map_err(|_| Unread::NotText)
}

#[cfg(test)]
mod tests;
