//! Texts from files and standard input.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use crate::failure::Failure;

/// Maximum length of a text, in bytes: the same limit as for a note.
const INPUT_BYTES_MAX: u64 = 4 << 20;

/// Reads a text file, or standard input for `-`.
pub(crate) fn read_input(path: &Path) -> Result<String, Failure> {
    String::from_utf8(read_bytes(path)?)
        .map_err(|_| Failure::input(format!("`{}` is not UTF-8 text", path.display()), "convert it to UTF-8"))
}

/// The bytes of a file, or of standard input for `-`.
pub(crate) fn read_bytes(path: &Path) -> Result<Vec<u8>, Failure> {
    let cannot = |error: io::Error| {
        Failure::input(
            format!("cannot read `{}`: {error}", path.display()),
            "check the path and its permissions",
        )
    };
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(path).map_err(cannot)?)
    };
    let mut bytes = Vec::new();
    source.take(INPUT_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(cannot)?;
    if bytes.len() as u64 > INPUT_BYTES_MAX {
        let problem = format!("`{}` is longer than {INPUT_BYTES_MAX} bytes", path.display());
        return Err(Failure::input(problem, "give a shorter text"));
    }
    Ok(bytes)
}
