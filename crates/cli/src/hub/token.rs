//! The secret of a hub's user. It is in no error, note or listing.

use std::fmt;
use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use refrain_files::open_regular;

use super::HubError;
use refrain_program::place::{folder_of, home};

/// Maximum length, in bytes; those of the public hub have about 40.
const TOKEN_BYTES_MAX: usize = 4096;
/// The name of the entry in a keyring.
const KEYRING_SERVICE: &str = "refrain";
/// A locked keyring asks its user for a password.
const KEYRING_TIME: Duration = Duration::from_secs(60);

/// A token.
#[derive(Clone)]
pub(crate) struct Token(String);

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(secret)")
    }
}

impl Token {
    fn new(text: &str) -> Result<Option<Self>, HubError> {
        let text = text.trim();
        match text.len() {
            0 => Ok(None),
            1..=TOKEN_BYTES_MAX if text.bytes().all(|byte| byte.is_ascii_graphic()) => {
                Ok(Some(Self(text.to_owned())))
            }
            _ => Err(HubError::TokenBytes { max: TOKEN_BYTES_MAX }),
        }
    }

    /// The value of the header `Authorization`.
    pub(crate) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// The first of: the variable `HF_TOKEN`; the keyring, if it is asked for; the file that the hub's own tools keep.
    ///
    /// # Errors
    /// The variable or the file holds no token, or the keyring was asked for and gives none.
    pub(crate) fn find(asks_keyring: bool) -> Result<Option<Self>, HubError> {
        if let Ok(text) = std::env::var("HF_TOKEN")
            && let Some(token) = Self::new(&text)?
        {
            return Ok(Some(token));
        }
        if asks_keyring {
            return Self::of_keyring().map(Some);
        }
        if std::env::var("HF_HUB_DISABLE_IMPLICIT_TOKEN").is_ok_and(|off| !matches!(&*off, "" | "0")) {
            return Ok(None);
        }
        let Some(path) = token_file() else { return Ok(None) };
        let mut text = String::new();
        let read = open_regular(&path)
            .and_then(|file| file.take(TOKEN_BYTES_MAX as u64 + 2).read_to_string(&mut text));
        match read {
            Ok(_) => Self::new(&text),
            // Nobody has signed in; or the file is another user's.
            Err(_) => Ok(None),
        }
    }

    /// Asks the keyring through the system's own program. (A library would bring a client of D-Bus with some fifty crates.)
    fn of_keyring() -> Result<Self, HubError> {
        let mut command = if cfg!(target_os = "macos") {
            let mut command = Command::new("security");
            command.args(["find-generic-password", "-w", "-s", KEYRING_SERVICE]);
            command
        } else if cfg!(windows) {
            return Err(HubError::Keyring { problem: "on Windows, set HF_TOKEN".to_owned() });
        } else {
            let mut command = Command::new("secret-tool");
            command.args(["lookup", "service", KEYRING_SERVICE]);
            command
        };
        let program = command.get_program().to_string_lossy().into_owned();
        let problem = |problem: String| HubError::Keyring { problem };
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| problem(format!("`{program}`: {error}")))?;
        let mut out = child.stdout.take().expect("piped").take(TOKEN_BYTES_MAX as u64 + 2);
        let read = move || {
            let mut text = String::new();
            out.read_to_string(&mut text).map(|_| text)
        };
        let reader = std::thread::Builder::new().spawn(read).map_err(|error| {
            let _ = child.kill();
            let _ = child.wait();
            problem(format!("no thread reads its answer: {error}"))
        })?;
        let start = Instant::now();
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if start.elapsed() < KEYRING_TIME => std::thread::sleep(Duration::from_millis(20)),
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(problem(format!(
                        "`{program}` has not answered within {} s",
                        KEYRING_TIME.as_secs()
                    )));
                }
            }
        };
        let text = reader.join().ok().and_then(Result::ok).filter(|_| status.success()).unwrap_or_default();
        let missing = || problem(format!("`{program}` knows no entry with the service `{KEYRING_SERVICE}`"));
        Self::new(&text)?.ok_or_else(missing)
    }
}

/// The file in which the hub's own tools keep the token.
fn token_file() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("HF_TOKEN_PATH").filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let folder = folder_of("HF_HOME")
        .or_else(|| folder_of("XDG_CACHE_HOME").map(|cache| cache.join("huggingface")))
        .or_else(|| home(".cache/huggingface"));
    folder.map(|folder| folder.join("token"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_visible_ascii_and_never_shown() {
        let token = Token::new(" hf_secret\n").unwrap().unwrap();
        assert_eq!(token.header(), "Bearer hf_secret");
        assert!(!format!("{token:?}").contains("hf_secret"));
        assert!(Token::new(" \n").unwrap().is_none());
        for text in ["a b", "a\r\nHost: b", "ä", &"a".repeat(4097)] {
            let error = Token::new(text).unwrap_err().to_string();
            assert!(!error.contains(text), "{error}");
        }
    }
}
