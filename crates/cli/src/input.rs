//! Texts from files and standard input.

use std::fs::File;
use std::io::{self, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use refrain_assistant::Passage;
use refrain_index::SourceKind;

use crate::failure::Failure;
use crate::terminal::{note, visible};

/// Maximum length of a text, in bytes: the same limit as for a note.
const INPUT_BYTES_MAX: u64 = 4 << 20;

/// The title of the text on standard input.
pub(crate) const STANDARD_INPUT: &str = "standard input";

/// Time after which a notice says that standard input is read: nobody may know that a program left it open.
const PATIENCE: Duration = Duration::from_secs(2);

/// Reads a text file, or standard input for `-`.
pub(crate) fn read_input(path: &Path) -> Result<String, Failure> {
    String::from_utf8(read_bytes(path, INPUT_BYTES_MAX)?)
        .map_err(|_| Failure::input(format!("{} is not UTF-8 text", name_of(path)), "convert it to UTF-8"))
}

/// What messages call it.
fn name_of(path: &Path) -> String {
    if path == Path::new("-") { STANDARD_INPUT.to_owned() } else { format!("`{}`", path.display()) }
}

/// The bytes of a file, or of standard input for `-`: at most `max`.
pub(crate) fn read_bytes(path: &Path, max: u64) -> Result<Vec<u8>, Failure> {
    let (is_standard, name) = (path == Path::new("-"), name_of(path));
    let cannot = |error: io::Error| {
        let advice = if is_standard { "check the pipe" } else { "check the path and its permissions" };
        Failure::input(format!("cannot read {name}: {error}"), advice)
    };
    let source: Box<dyn Read> =
        if is_standard { Box::new(io::stdin()) } else { Box::new(File::open(path).map_err(cannot)?) };
    let mut bytes = Vec::new();
    source.take(max + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > max {
        let problem = format!("{name} is longer than the limit of {max} bytes");
        return Err(Failure::input(problem, "give a shorter text"));
    }
    Ok(bytes)
}

/// The text that is piped to a command whose request is on the command line; `None` on a terminal, and if there is no text.
///
/// # Errors
/// The text cannot be read, is longer than the limit, or is not UTF-8.
pub(crate) fn piped_text() -> Result<Option<String>, Failure> {
    if io::stdin().is_terminal() {
        return Ok(None);
    }
    let (sender, receiver) = mpsc::sync_channel(1);
    let read = move || drop(sender.send(read_input(Path::new("-"))));
    let text = match std::thread::Builder::new().name("refrain-input".to_owned()).spawn(read) {
        Err(_) => read_input(Path::new("-")),
        Ok(thread) => {
            let text = receiver.recv_timeout(PATIENCE).or_else(|error| match error {
                RecvTimeoutError::Timeout => {
                    note("reading standard input to its end (`< /dev/null` stands for no text)");
                    receiver.recv().map_err(|_| RecvTimeoutError::Disconnected)
                }
                error => Err(error),
            });
            text.unwrap_or_else(|_| {
                std::panic::resume_unwind(thread.join().expect_err("the thread has sent nothing"))
            })
        }
    }?;
    Ok(Some(text).filter(|text| !text.trim().is_empty()))
}

/// The texts of files, or of standard input without a path.
pub(crate) fn read_texts(paths: &[PathBuf]) -> Result<Vec<Passage>, Failure> {
    match paths {
        [] if io::stdin().is_terminal() => {
            Err(Failure::usage("there is no text", "name a file, or pipe one in"))
        }
        [] => read_text(Path::new("-")),
        paths => Ok(paths.iter().map(|path| read_text(path)).collect::<Result<Vec<_>, _>>()?.concat()),
    }
}

/// Maximum bytes of a file, as in an index.
const DOCUMENT_BYTES_MAX: u64 = 8 << 20;

/// The texts of a file, as an index reads it, or of standard input. A file with an ending that the index does not know is plain text.
pub(crate) fn read_text(path: &Path) -> Result<Vec<Passage>, Failure> {
    if path == Path::new("-") {
        return Ok(vec![Passage::new("", read_input(path)?)]);
    }
    if SourceKind::of(path).is_none() {
        return Ok(vec![Passage::new(title_of(path), read_input(path)?).of_note(path)?]);
    }
    let bytes = read_bytes(path, DOCUMENT_BYTES_MAX)?;
    let (texts, lost) = Passage::read(path, &bytes)
        .map_err(|error| Failure::input(error.to_string(), "name another file"))?;
    if let Some(lost) = lost {
        note(&visible(&format!("`{}`: {lost}", path.display())));
    }
    Ok(texts)
}

/// The title of a file's text.
fn title_of(path: &Path) -> String {
    let name = path.file_stem();
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
