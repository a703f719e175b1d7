//! The lines that a user has typed in conversations, so that the arrow keys bring them back.
//!
//! `FOLDER/typed` has a JSON object per line: time, conversation, text. A deletion of everything, of a conversation or by time removes
//! lines. They are made from no note. With a key there are none, because the file is not encrypted.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use refrain_files::open_regular;
use refrain_files::replace::{Manner, ReplaceError, private_options, replace_bytes};
use serde::{Deserialize, Serialize};

use super::entry::{Forgetting, micros};
use super::error::{StoreError, io_error};

/// The id of a conversation, under which [`Assistant::forget`](crate::Assistant::forget) deletes what was kept of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConversationId(pub u64);

pub(super) const FILE: &str = "typed";

/// Lines that are read.
const LINES_MAX: usize = 1000;
/// Maximum bytes of a line's text. A longer one, such as a paste, is not kept.
const LINE_BYTES_MAX: usize = 16 << 10;
/// Maximum bytes that are read: the newest.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The lines that a user has typed, in the folder of a store: at most 4 MiB, of which the newest 1,000 lines are read. Only their owner
/// can read them.
/// [`Forget`](crate::Forget) deletes them.
#[derive(Debug, Clone)]
pub struct TypedLines {
    path: PathBuf,
}

#[derive(Serialize, Deserialize)]
struct Line {
    /// In µs since 1970.
    at: u64,
    conversation: u64,
    text: String,
}

impl TypedLines {
    /// The lines in the folder of a store, which must exist before the first line is added.
    pub fn in_store(folder: impl AsRef<Path>) -> Self {
        Self { path: folder.as_ref().join(FILE) }
    }

    /// The newest lines, oldest first. A file that cannot be read has none; damaged lines are left out.
    pub fn read(&self) -> Vec<String> {
        self.lines().unwrap_or_default().into_iter().map(|line| line.text).collect()
    }

    /// Adds a line of a conversation. One that is longer than the limit is not added.
    ///
    /// # Errors
    /// [`StoreError::Io`].
    pub fn append(&self, conversation: ConversationId, text: &str) -> Result<(), StoreError> {
        if text.len() > LINE_BYTES_MAX {
            return Ok(());
        }
        let line =
            Line { at: micros(SystemTime::now()), conversation: conversation.0, text: text.to_owned() };
        let file = private_options().create(true).append(true).open(&self.path);
        let mut file = file.map_err(io_error("open", &self.path))?;
        // In one write, in front of it the end of a line that a crash has cut.
        let json = format!("\n{}\n", json(&line));
        file.write_all(json.as_bytes()).map_err(io_error("write", &self.path))?;
        let n_bytes = file.metadata().map_err(io_error("read", &self.path))?.len();
        if n_bytes > FILE_BYTES_MAX { self.replace(&self.lines()?) } else { Ok(()) }
    }

    /// Deletes the lines that a deletion finds.
    pub(crate) fn forget(&self, what: &Forgetting) -> Result<(), StoreError> {
        let goes = |line: &Line| match what {
            Forgetting::Everything { .. } => true,
            Forgetting::Before { time, now } => line.at < *time || line.at > *now,
            Forgetting::Conversation(id) => line.conversation == *id,
            Forgetting::Notes { .. } | Forgetting::Index { .. } => false,
        };
        if matches!(what, Forgetting::Notes { .. } | Forgetting::Index { .. })
            || self.path.symlink_metadata().is_err()
        {
            return Ok(());
        }
        let lines: Vec<Line> = match what {
            Forgetting::Everything { .. } => Vec::new(),
            _ => self.lines()?.into_iter().filter(|line| !goes(line)).collect(),
        };
        // Also what is damaged goes, and what calls that were killed had begun to write.
        self.replace(&lines)?;
        match lines.is_empty() {
            true => fs::remove_file(&self.path).map_err(io_error("remove", &self.path)),
            false => Ok(()),
        }
    }

    fn lines(&self) -> Result<Vec<Line>, StoreError> {
        let mut file = match open_regular(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(io_error("open", &self.path)(error)),
        };
        let bytes = tail(&mut file).map_err(io_error("read", &self.path))?;
        let lines = bytes.split(|&byte| byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok());
        let mut lines: Vec<Line> = lines.collect();
        lines.drain(..lines.len().saturating_sub(LINES_MAX));
        Ok(lines)
    }

    fn replace(&self, lines: &[Line]) -> Result<(), StoreError> {
        // Half of the limit, so that not every line writes the file again.
        let (mut text, mut n_bytes) = (Vec::new(), 0);
        for line in lines.iter().rev() {
            let json = json(line);
            n_bytes += json.len() as u64 + 1;
            if n_bytes > FILE_BYTES_MAX / 2 {
                break;
            }
            text.push(json);
        }
        text.reverse();
        let text = text.join("\n") + "\n";
        replace_bytes(&self.path, Manner::Private, text.as_bytes())
            .map_err(|ReplaceError { action, path, source }| StoreError::Io { action, path, source })
    }
}

fn json(line: &Line) -> String {
    serde_json::to_string(line).expect("numbers and text have a JSON form")
}

/// The newest bytes of a file.
fn tail(file: &mut File) -> io::Result<Vec<u8>> {
    let n_bytes = file.metadata()?.len();
    file.seek(SeekFrom::Start(n_bytes.saturating_sub(FILE_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ConversationId = ConversationId(1);

    #[test]
    fn lines_come_back_and_a_deletion_finds_them() {
        let folder = tempfile::tempdir().unwrap();
        let typed = TypedLines::in_store(folder.path());
        assert!(typed.read().is_empty());
        typed.append(A, "one\n\u{1b}two").unwrap();
        typed.append(ConversationId(2), "three").unwrap();
        assert_eq!(typed.read(), ["one\n\u{1b}two", "three"]);
        typed.forget(&Forgetting::Conversation(1)).unwrap();
        assert_eq!(typed.read(), ["three"]);
        let now = micros(SystemTime::now());
        typed.forget(&Forgetting::Before { time: 1, now: now + 1_000_000 }).unwrap();
        assert_eq!(typed.read(), ["three"]);
        typed.forget(&Forgetting::Before { time: now + 1, now: now + 2 }).unwrap();
        assert!(!folder.path().join(FILE).exists());
        typed.append(A, "four").unwrap();
        typed.forget(&Forgetting::Everything { index: None, roots: Vec::new() }).unwrap();
        assert!(!folder.path().join(FILE).exists());
    }

    #[test]
    fn the_file_is_bounded_and_damage_costs_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let typed = TypedLines::in_store(folder.path());
        typed.append(A, &"x".repeat(LINE_BYTES_MAX + 1)).unwrap();
        assert!(typed.read().is_empty());
        let long = "\u{1}".repeat(LINE_BYTES_MAX);
        (0..60).for_each(|_| typed.append(A, &long).unwrap());
        assert!(fs::metadata(folder.path().join(FILE)).unwrap().len() <= FILE_BYTES_MAX);
        assert!(typed.read().len() > 10);
        fs::write(folder.path().join(FILE), b"{\"at\":1,\"conv\xff").unwrap();
        typed.append(A, "after a crash").unwrap();
        assert_eq!(typed.read(), ["after a crash"]);
    }

    #[cfg(unix)]
    #[test]
    fn only_the_owner_can_read_lines() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        TypedLines::in_store(folder.path()).append(A, "mine").unwrap();
        let mode = fs::metadata(folder.path().join(FILE)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
