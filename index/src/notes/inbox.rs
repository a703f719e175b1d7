//! Requests of processes that cannot write, for the one that does.
//!
//! A request is a file in `.inbox`, written whole and durably. The writer carries out the requests, oldest first, and
//! then removes them. Each has the same effect twice as once, so a crash in between does no harm. A request that cannot
//! be carried out is kept with the reason, for [`NotesIndex::status`](super::NotesIndex::status).

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use super::codec::{Decoder, Encoder};
use super::error::{NotesError, io_error};
use super::files::{self, Folder};
use super::paths;
use super::request::{FailedRequest, Request};
use super::stamp::since_1970;

/// Maximum number of requests that wait.
const REQUESTS_MAX: usize = 512;

/// Maximum number of failed requests that are kept.
const FAILED_MAX: usize = 64;

/// The folder of the requests.
pub(super) const NAME: &str = ".inbox";

/// Extensions of requests that wait, and of failed ones.
const REQUEST: &str = "request";
const FAILED: &str = "failed";

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
    folder.join(NAME)
}

/// Leaves a request for the writer, behind those that wait. Its paths are absolute. Returns the request's file.
pub(super) fn put(folder: &Folder, request: &Request, now: SystemTime) -> Result<PathBuf, NotesError> {
    static N_LEFT: AtomicU64 = AtomicU64::new(0);
    let inbox = path(folder);
    files::create_folder(&inbox)?;
    let waiting = names(&inbox, REQUEST)?;
    if waiting.len() >= REQUESTS_MAX {
        return Err(NotesError::InboxFull { path: inbox, max: REQUESTS_MAX });
    }
    // Ordered by time; two processes differ in their ids, and a clock may stand still.
    let n_left = N_LEFT.fetch_add(1, Ordering::Relaxed);
    let time = since_1970(now).max(0);
    // A clock that went back would order a request before those that wait.
    let newest = waiting.iter().filter_map(|name| name.get(..20)?.parse::<i64>().ok()).max();
    let time = newest.map_or(time, |newest| time.max(newest.saturating_add(1)));
    let path = inbox.join(format!("{time:020}-{}-{n_left:08}.{REQUEST}", std::process::id()));
    files::replace(&folder.seal, &path, &request.encode(), true).map_err(io_error("write", &path))?;
    Ok(path)
}

/// The requests, oldest first, with their files. One that is damaged or of a newer program is `None`.
pub(super) fn read(folder: &Folder) -> Result<Vec<(PathBuf, Option<Request>)>, NotesError> {
    let inbox = path(folder);
    let read = |name: &String| {
        let path = inbox.join(name);
        let request = files::read(&folder.seal, &path).ok().and_then(|bytes| Request::decode(&bytes));
        (path, request)
    };
    Ok(names(&inbox, REQUEST)?.iter().map(read).collect())
}

/// Keeps a request that could not be carried out, with the reason, in place of its file.
pub(super) fn set_failed(
    folder: &Folder,
    path: &Path,
    request: Option<&Request>,
    reason: &str,
) -> Result<(), NotesError> {
    let mut encoder = Encoder::default();
    encoder.bytes(reason.as_bytes());
    encoder.bytes(&request.map(Request::encode).unwrap_or_default());
    let failed = path.with_extension(FAILED);
    files::replace(&folder.seal, &failed, &encoder.0, true).map_err(io_error("write", &failed))?;
    let kept = names(files::folder_of(path), FAILED)?;
    let n_surplus = kept.len().saturating_sub(FAILED_MAX);
    kept[..n_surplus].iter().try_for_each(|name| files::remove(&path.with_file_name(name)))
}

/// The requests that could not be carried out, oldest first, with their files.
pub(super) fn failed(folder: &Folder) -> Result<Vec<(PathBuf, FailedRequest)>, NotesError> {
    let inbox = path(folder);
    let read = |name: &String| {
        let path = inbox.join(name);
        let bytes = files::read(&folder.seal, &path).ok()?;
        let mut decoder = Decoder(&bytes);
        let reason = decoder.text()?;
        Some((path, FailedRequest { request: Request::decode(decoder.bytes()?), reason }))
    };
    Ok(names(&inbox, FAILED)?.iter().filter_map(read).collect())
}

/// Removes failed requests whose paths are all at or below the given ones, and those without a path.
pub(super) fn remove_failed(folder: &Folder, paths: &[PathBuf]) -> Result<(), NotesError> {
    for (path, failed) in failed(folder)? {
        let named = match &failed.request {
            Some(Request::Add(named) | Request::Forget(named)) => &named[..],
            _ => &[],
        };
        if named.iter().all(|named| paths.iter().any(|path| named.starts_with(path))) {
            files::remove(&path)?;
        }
    }
    Ok(())
}

/// The names with an extension, in the order of time.
fn names(inbox: &Path, extension: &str) -> Result<Vec<String>, NotesError> {
    let mut names = files::names(inbox)?;
    names.retain(|name| Path::new(name).extension().is_some_and(|found| found == extension));
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_come_back_in_order() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = Folder::new(temporary.path().to_owned(), Some(&[7; 32]));
        assert_eq!(read(&folder).unwrap(), []);
        let requests = [Request::Add(vec!["/a".into()]), Request::Forget(vec!["/b".into(), "/c".into()])];
        // The clock goes back in between.
        let (now, day) = (SystemTime::now(), std::time::Duration::from_secs(86_400));
        for (request, now) in requests.iter().zip([now, now - day]) {
            put(&folder, request, now).unwrap();
        }
        std::fs::write(path(&folder).join("9.request"), b"x").unwrap();
        let found: Vec<_> = read(&folder).unwrap().into_iter().map(|(_, request)| request).collect();
        assert_eq!(found, [Some(requests[0].clone()), Some(requests[1].clone()), None]);
    }

    #[test]
    fn failed_requests_are_kept_up_to_a_limit_and_removed_by_path() {
        let temporary = tempfile::tempdir().unwrap();
        let folder = Folder::new(temporary.path().to_owned(), Some(&[7; 32]));
        let inbox = path(&folder);
        files::create_folder(&inbox).unwrap();
        for i in 0..FAILED_MAX + 3 {
            let request = Request::Add(vec![format!("/a/{i}.md").into()]);
            set_failed(&folder, &inbox.join(format!("{i:03}.request")), Some(&request), "gone").unwrap();
        }
        set_failed(&folder, &inbox.join("999.request"), None, "damaged").unwrap();
        let kept = failed(&folder).unwrap();
        assert_eq!(kept.len(), FAILED_MAX);
        assert_eq!(kept[0].1.request, Some(Request::Add(vec!["/a/4.md".into()])));
        assert_eq!(kept[0].1.reason, "gone");
        assert_eq!(kept[FAILED_MAX - 1].1.request, None);
        remove_failed(&folder, &["/a/4.md".into(), "/b".into()]).unwrap();
        assert_eq!(failed(&folder).unwrap().len(), FAILED_MAX - 2);
        remove_failed(&folder, &["/a".into()]).unwrap();
        assert_eq!(failed(&folder).unwrap(), []);
    }
}
