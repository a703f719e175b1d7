//! The download of one file: into `FILE.part`, resumed where an earlier attempt ended, renamed when its hash has been compared.
//!
//! `FILE.part.json` says which content the part belongs to (its hash) and the server's mark of it (`ETag`). A part of another content is
//! discarded. A killed process loses nothing but the bytes that the system had not written.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use refrain_files::open_regular;
use refrain_files::replace;
use ring::digest::Context;
use serde::{Deserialize, Serialize};
use ureq::http::{HeaderMap, StatusCode, header};

use super::client::Pace;
use super::listing::{Hash, Listed};
use super::{Client, HubError, stop};

/// Bytes that are read and written at a time.
const BUFFER_BYTES: usize = 128 << 10;
/// An attempt that has brought this much was not in vain: the next one follows at once, and the count of attempts starts again.
const PROGRESS_BYTES: u64 = 64 << 10;
/// The longest pause before a further attempt, also one that the hub asks for.
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Maximum length of the file beside a part.
const NOTE_BYTES_MAX: u64 = 4096;
/// Maximum length of an `ETag` that is kept.
const ETAG_BYTES_MAX: usize = 512;

/// What a download reports.
#[derive(Debug)]
pub(crate) enum Event {
    /// Bytes of this file that are on disk.
    Bytes(u64),
    /// A sentence for the user.
    Note(String),
}

/// Downloads one file to `target`. `attempts` bounds the attempts that bring nothing.
///
/// # Errors
/// [`HubError`]. The part stays, unless its bytes were wrong; `target` is as it was.
pub(crate) fn transfer(
    client: &Client,
    address: &str,
    listed: &Listed,
    target: &Path,
    attempts: usize,
    report: &mut dyn FnMut(Event),
) -> Result<(), HubError> {
    let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut download = Download { client, address, listed, name, part: Part::open(target, listed, report)? };
    let mut n_in_vain = 0;
    // Bytes that a reset has discarded are no progress when they come again, so a hub cannot keep a pull for ever.
    let mut best = download.part.n_bytes;
    while let Err(error) = download.attempt(report) {
        let has_progress = download.part.n_bytes >= best.saturating_add(PROGRESS_BYTES);
        best = best.max(download.part.n_bytes);
        n_in_vain = if has_progress { 1 } else { n_in_vain + 1 };
        let pause = match &error {
            HubError::Status { retry_after: Some(asked), .. } => *asked,
            _ if has_progress => Duration::ZERO,
            _ => Duration::from_secs(1 << (n_in_vain - 1).min(5)),
        };
        if !error.is_transient() || n_in_vain >= attempts || pause > PAUSE_MAX {
            return Err(error);
        }
        let after = if pause.is_zero() { String::new() } else { format!(" in {} s", pause.as_secs()) };
        report(Event::Note(format!("{error}; trying again{after}")));
        thread::sleep(pause);
    }
    download.part.finish(target)
}

struct Download<'a> {
    client: &'a Client,
    address: &'a str,
    listed: &'a Listed,
    name: String,
    part: Part,
}

impl Download<'_> {
    /// Requests the missing bytes, and compares the hash when all are there.
    fn attempt(&mut self, report: &mut dyn FnMut(Event)) -> Result<(), HubError> {
        if self.part.n_bytes < self.listed.bytes || self.listed.bytes == 0 {
            self.request(report)?;
        }
        let given = self.part.hash_hex();
        if given == self.listed.hash.hex() {
            return Ok(());
        }
        let is_pieced = self.part.is_pieced;
        self.part.reset()?;
        if is_pieced {
            // A crash of the system may have lost bytes of an earlier attempt. Those of one answer have no such excuse.
            report(Event::Note(format!("the resumed bytes of `{}` are damaged: starting again", self.name)));
            return self.attempt(report);
        }
        Err(HubError::HashDiffers {
            file: self.name.clone(),
            expected: self.listed.hash.hex().to_owned(),
            given,
        })
    }

    fn request(&mut self, report: &mut dyn FnMut(Event)) -> Result<(), HubError> {
        let (from, expected) = (self.part.n_bytes, self.listed.bytes);
        let mut headers = Vec::new();
        if from > 0 {
            headers.push((header::RANGE, format!("bytes={from}-")));
            headers.extend(self.part.etag.clone().map(|etag| (header::IF_RANGE, etag)));
        }
        let accepted: &[StatusCode] =
            if from > 0 { &[StatusCode::OK, StatusCode::PARTIAL_CONTENT] } else { &[StatusCode::OK] };
        let response = match self.client.get(self.address, &headers, accepted, &self.name) {
            Err(error @ HubError::Status { status: 416, .. }) => {
                self.part.reset()?;
                return Err(error);
            }
            response => response?,
        };
        let etag = strong_etag(response.headers());
        if response.status() == StatusCode::PARTIAL_CONTENT {
            let range = response.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
            let is_asked = range.and_then(range_of) == Some((from, expected - 1, expected));
            if !is_asked {
                let given = range.unwrap_or("(none)").chars().take(80).collect();
                self.part.reset()?;
                return Err(HubError::WrongRange { file: self.name.clone(), expected: from, given });
            }
            if self.part.etag.is_some() && self.part.etag != etag {
                self.part.reset()?;
                return Err(HubError::Changed { file: self.name.clone() });
            }
            self.part.is_pieced = true;
        } else {
            // The hub begins at the first byte: it knows no ranges, or the content was changed.
            self.part.reset()?;
        }
        self.part.note(etag)?;
        let rest = expected - self.part.n_bytes;
        if let Some(given) = response.body().content_length().filter(|given| *given != rest) {
            let given = given.saturating_add(self.part.n_bytes);
            return Err(HubError::SizeDiffers { file: self.name.clone(), expected, given });
        }
        let mut reader = response.into_body().into_with_config().limit(u64::MAX).reader();
        let mut pace = Pace::new(self.client.stall_time());
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let n = match reader.read(&mut buffer) {
                Ok(n) => n,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => 0,
                Err(error) => return Err(self.client.read_failed(&error, &self.name)),
            };
            let at = self.part.n_bytes;
            if n == 0 {
                return match at == expected {
                    true => Ok(()),
                    false => Err(HubError::Ended { what: self.name.clone(), at, expected }),
                };
            }
            if at + n as u64 > expected {
                self.part.reset()?;
                return Err(HubError::TooLong { what: self.name.clone(), max: expected });
            }
            self.part.append(&buffer[..n])?;
            report(Event::Bytes(self.part.n_bytes));
            pace.advance(n as u64, &self.name)?;
        }
    }
}

/// An unfinished file.
struct Part {
    path: PathBuf,
    note_path: PathBuf,
    file: File,
    n_bytes: u64,
    listed: Listed,
    context: Context,
    etag: Option<String>,
    /// Whether the bytes are of several answers.
    is_pieced: bool,
}

/// The file beside a part.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    hash: String,
    bytes: u64,
    etag: Option<String>,
}

/// Bytes of `target` that an earlier download has left.
pub(crate) fn part_bytes(target: &Path) -> u64 {
    fs::metadata(part_path(target)).map_or(0, |found| found.len())
}

/// Whether a file has the listed content.
///
/// # Errors
/// [`HubError::Io`]: the file cannot be read.
pub(crate) fn has_hash(path: &Path, listed: &Listed) -> Result<bool, HubError> {
    let mut file = open_regular(path).map_err(HubError::io("open", path))?;
    let mut context = listed.hash.context(listed.bytes);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match file.read(&mut buffer).map_err(HubError::io("read", path))? {
            0 => return Ok(hex(context.finish().as_ref()) == listed.hash.hex()),
            n => context.update(&buffer[..n]),
        }
    }
}

/// The unfinished file of `target`.
pub(super) fn part_path(target: &Path) -> PathBuf {
    with_ending(target, ".part")
}

/// The file beside it.
pub(super) fn note_path(target: &Path) -> PathBuf {
    with_ending(target, ".part.json")
}

fn with_ending(target: &Path, ending: &str) -> PathBuf {
    let mut name = target.file_name().unwrap_or_default().to_owned();
    name.push(ending);
    target.with_file_name(name)
}

impl Part {
    /// Opens the part of `target`, and computes the hash of its bytes. A part of another content is emptied.
    fn open(target: &Path, listed: &Listed, report: &mut dyn FnMut(Event)) -> Result<Self, HubError> {
        let (path, note_path) = (part_path(target), note_path(target));
        // A link would be written through.
        for path in [&path, &note_path] {
            if fs::symlink_metadata(path).is_ok_and(|found| !found.is_file()) {
                return Err(HubError::NotPulled { path: path.clone() });
            }
        }
        let note = read_note(&note_path);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(HubError::io("open", &path))?;
        stop::point()?;
        let context = listed.hash.context(listed.bytes);
        let mut part = Self {
            path,
            note_path,
            file,
            n_bytes: 0,
            listed: listed.clone(),
            context,
            etag: None,
            is_pieced: false,
        };
        let n_bytes = part.file.metadata().map_err(HubError::io("read", &part.path))?.len();
        match note {
            Some(note)
                if Hash::read(&note.hash).as_ref() == Some(&listed.hash)
                    && note.bytes == listed.bytes
                    && n_bytes <= listed.bytes =>
            {
                part.etag = note.etag;
                part.hash_existing(n_bytes, report)?;
            }
            _ => part.reset()?,
        }
        Ok(part)
    }

    fn hash_existing(&mut self, n_bytes: u64, report: &mut dyn FnMut(Event)) -> Result<(), HubError> {
        let mut buffer = vec![0; BUFFER_BYTES];
        while self.n_bytes < n_bytes {
            let n = self.file.read(&mut buffer).map_err(HubError::io("read", &self.path))?;
            if n == 0 {
                break;
            }
            self.context.update(&buffer[..n]);
            self.n_bytes += n as u64;
            report(Event::Bytes(self.n_bytes));
        }
        self.is_pieced = self.n_bytes > 0;
        Ok(())
    }

    /// Empties the part.
    fn reset(&mut self) -> Result<(), HubError> {
        self.file.set_len(0).map_err(HubError::io("empty", &self.path))?;
        self.file.seek(SeekFrom::Start(0)).map_err(HubError::io("empty", &self.path))?;
        self.context = self.listed.hash.context(self.listed.bytes);
        (self.n_bytes, self.etag, self.is_pieced) = (0, None, false);
        Ok(())
    }

    /// Writes beside the part what it belongs to.
    fn note(&mut self, etag: Option<String>) -> Result<(), HubError> {
        let note = Note { hash: self.listed.hash.to_string(), bytes: self.listed.bytes, etag: etag.clone() };
        let text = serde_json::to_vec(&note).expect("strings and a number");
        fs::write(&self.note_path, text).map_err(HubError::io("write", &self.note_path))?;
        stop::point()?;
        self.etag = etag;
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), HubError> {
        self.file.write_all(bytes).map_err(HubError::io("write", &self.path))?;
        self.context.update(bytes);
        self.n_bytes += bytes.len() as u64;
        stop::point()
    }

    fn hash_hex(&self) -> String {
        hex(self.context.clone().finish().as_ref())
    }

    /// Gives the file its name.
    fn finish(self, target: &Path) -> Result<(), HubError> {
        self.file.sync_all().map_err(HubError::io("sync", &self.path))?;
        // Windows renames no open file.
        drop(self.file);
        fs::rename(&self.path, target).map_err(HubError::io("rename to", target))?;
        stop::point()?;
        // A file that is there but not yet durable is found again, or pulled again.
        let _ = replace::sync_folder(target.parent().unwrap_or(Path::new(".")));
        match fs::remove_file(&self.note_path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(HubError::io("remove", &self.note_path)(error))
            }
            _ => stop::point(),
        }
    }
}

/// Downloads a file without a hub.
#[cfg(test)]
pub(super) fn deliver(listed: &Listed, target: &Path, bytes: &[u8]) -> Result<(), HubError> {
    let mut part = Part::open(target, listed, &mut |_| {})?;
    part.reset()?;
    part.note(None)?;
    part.append(bytes)?;
    part.finish(target)
}

/// The file beside a part; `None` if it cannot be used.
fn read_note(path: &Path) -> Option<Note> {
    let mut text = Vec::new();
    open_regular(path).ok()?.take(NOTE_BYTES_MAX + 1).read_to_end(&mut text).ok()?;
    let note: Note = serde_json::from_slice(&text).ok()?;
    // It becomes a header.
    let is_header =
        |etag: &String| etag.len() <= ETAG_BYTES_MAX && etag.bytes().all(|b| (0x20..0x7f).contains(&b));
    Some(Note { etag: note.etag.filter(is_header), ..note })
}

/// The server's mark of a content. A weak one (`W/…`) marks contents of the same meaning, whose bytes may differ.
fn strong_etag(headers: &HeaderMap) -> Option<String> {
    let etag = headers.get(header::ETAG)?.to_str().ok()?;
    let is_usable =
        etag.starts_with('"') && etag.ends_with('"') && (2..=ETAG_BYTES_MAX).contains(&etag.len());
    is_usable.then(|| etag.to_owned())
}

/// First byte, last byte and length of `bytes 5-9/10`. A length of `*` is no promise.
fn range_of(text: &str) -> Option<(u64, u64, u64)> {
    let (range, len) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    Some((first.parse().ok()?, last.parse().ok()?, len.parse().ok()?))
}

/// Hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_have_both_ends_and_a_length() {
        assert_eq!(range_of("bytes 5-9/10"), Some((5, 9, 10)));
        for text in [
            "",
            "bytes 5-9/*",
            "bytes */10",
            "5-9/10",
            "bytes 5-/10",
            "bytes -1-9/10",
            "bytes 5-9/99999999999999999999",
        ] {
            assert_eq!(range_of(text), None, "{text}");
        }
    }

    #[test]
    fn weak_marks_resume_nothing() {
        let etag = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::ETAG, value.parse().unwrap());
            strong_etag(&headers)
        };
        assert_eq!(etag("\"abc\"").as_deref(), Some("\"abc\""));
        for weak in ["W/\"abc\"", "abc", "\"", ""] {
            assert_eq!(etag(weak), None, "{weak}");
        }
    }
}
