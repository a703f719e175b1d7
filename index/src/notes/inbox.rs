//! Requests of processes that cannot write, for the one that does.
//!
//! A request is a file in `.inbox`, written whole and durably. The writer carries out the requests, oldest first, and
//! then removes them. Each has the same effect twice as once, so a crash in between does no harm.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::codec::{Decoder, Encoder};
use super::error::{NotesError, io_error};
use super::stamp::since_1970;
use super::{files, paths};

/// Maximum number of requests that wait.
const REQUESTS_MAX: usize = 512;

/// A change of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Request {
    /// Add files and folders.
    Add(Vec<PathBuf>),
    /// Compare the index with the files.
    Update,
    /// Remove files and folders, and do not read them again.
    Forget(Vec<PathBuf>),
}

impl Request {
    fn encode(&self) -> Vec<u8> {
        let mut encoder = Encoder::default();
        let (code, paths) = match self {
            Self::Add(paths) => (1, &paths[..]),
            Self::Update => (2, &[][..]),
            Self::Forget(paths) => (3, &paths[..]),
        };
        encoder.u32(code);
        encoder.u32(paths.len() as u32);
        paths.iter().for_each(|path| encoder.bytes(paths::to_bytes(path).unwrap_or_default()));
        encoder.0
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let mut decoder = Decoder(bytes);
        let code = decoder.u32()?;
        let n_paths = decoder.u32()?;
        let paths: Option<Vec<PathBuf>> = (0..n_paths).map(|_| paths::from_bytes(decoder.bytes()?)).collect();
        match code {
            1 => paths.map(Self::Add),
            2 => Some(Self::Update),
            3 => paths.map(Self::Forget),
            _ => None,
        }
    }
}

pub(super) fn path(folder: &Path) -> PathBuf {
    folder.join(".inbox")
}

/// Leaves a request for the writer. Its paths are absolute.
pub(super) fn put(folder: &Path, request: &Request) -> Result<(), NotesError> {
    let inbox = path(folder);
    files::create_folder(&inbox)?;
    if names(&inbox)?.len() >= REQUESTS_MAX {
        return Err(NotesError::InboxFull { path: inbox, max: REQUESTS_MAX });
    }
    // Ordered by time; two processes differ in their ids.
    let name = format!("{:020}-{}.request", since_1970(SystemTime::now()).max(0), std::process::id());
    let path = inbox.join(name);
    files::replace(&path, &request.encode(), true).map_err(io_error("write", &path))
}

/// The requests, oldest first, with their files. One that is damaged or of a newer program is `None`.
pub(super) fn read(folder: &Path) -> Result<Vec<(PathBuf, Option<Request>)>, NotesError> {
    let inbox = path(folder);
    let read = |name: &String| {
        let path = inbox.join(name);
        let request = files::read(&path).ok().and_then(|bytes| Request::decode(&bytes));
        (path, request)
    };
    Ok(names(&inbox)?.iter().map(read).collect())
}

fn names(inbox: &Path) -> Result<Vec<String>, NotesError> {
    let mut names = files::names(inbox)?;
    names.retain(|name| name.ends_with(".request"));
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_in_order() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(read(folder.path()).unwrap(), []);
        let requests = [Request::Add(vec!["/a".into()]), Request::Forget(vec!["/b".into(), "/c".into()])];
        requests.iter().for_each(|request| put(folder.path(), request).unwrap());
        std::fs::write(path(folder.path()).join("9.request"), b"x").unwrap();
        let found: Vec<_> = read(folder.path()).unwrap().into_iter().map(|(_, request)| request).collect();
        assert_eq!(found, [Some(requests[0].clone()), Some(requests[1].clone()), None]);
    }
}
