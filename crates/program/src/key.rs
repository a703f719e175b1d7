//! The key of the stores: `--key-file`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::failure::Failure;

/// What to do about a key that is not that of a store.
pub const KEY_ADVICE: &str = "--key-file names the key; a store keeps the one it was begun with, or none";

/// The file that `--key-file` names.
static FILE: OnceLock<Option<PathBuf>> = OnceLock::new();

/// Sets the file, once.
pub fn set_file(file: Option<PathBuf>) {
    let _ = FILE.set(file);
}

/// The key with which the stores of this run are encrypted; `None` without the option.
///
/// # Errors
/// The file cannot be read, has no key, or may be read by others.
pub fn key() -> Result<Option<[u8; 32]>, Failure> {
    FILE.get().and_then(Option::as_deref).map(read).transpose()
}

fn read(path: &Path) -> Result<[u8; 32], Failure> {
    let name = path.display();
    let failed = |error| Failure::input(format!("`{name}`: {error}"), "--key-file names the file of the key");
    let file = File::open(path).map_err(failed)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        if file.metadata().map_err(failed)?.mode() & 0o077 != 0 {
            let problem = format!("`{name}`: others may read the key, or change it");
            return Err(Failure::input(problem, "close it with `chmod 600`"));
        }
    }
    let mut bytes = Vec::new();
    file.take(256).read_to_end(&mut bytes).map_err(failed)?;
    parse(&bytes).ok_or_else(|| {
        let problem = format!("`{name}` has no key: neither 32 bytes nor 64 hexadecimal digits");
        Failure::input(problem, "make one with `umask 077; head -c 32 /dev/urandom > FILE`, and keep a copy")
    })
}

/// 32 bytes, or 64 hexadecimal digits in a line.
fn parse(bytes: &[u8]) -> Option<[u8; 32]> {
    if let Ok(key) = bytes.try_into() {
        return Some(key);
    }
    let digits = bytes.trim_ascii_end();
    let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
    let (pairs, rest) = digits.as_chunks::<2>();
    let key: Option<Vec<u8>> =
        pairs.iter().map(|&[high, low]| Some(digit(high)? << 4 | digit(low)?)).collect();
    key.filter(|_| rest.is_empty())?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_bytes_or_digits() {
        assert_eq!(parse(&[0xab; 32]), Some([0xab; 32]));
        assert_eq!(parse("aB".repeat(32).as_bytes()), Some([0xab; 32]));
        assert_eq!(parse(format!("{}\r\n", "ab".repeat(32)).as_bytes()), Some([0xab; 32]));
        // Digits that are 32 bytes long are bytes.
        assert_eq!(parse("ab".repeat(16).as_bytes()), Some(*b"abababababababababababababababab"));
        for wrong in ["", "ab", &"ab".repeat(33), &"xy".repeat(32), &format!("{} ab", "ab".repeat(30))] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
