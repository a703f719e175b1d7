//! Names from outside: of repositories, revisions and files. A checked name is safe as a part of a path and of an address, on every system.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// Maximum length of an owner's or a repository's name, as on the public hub.
const REPO_BYTES_MAX: usize = 96;
/// Maximum length of a file's path: file systems refuse names from 256 bytes on.
const PATH_BYTES_MAX: usize = 240;
/// Maximum number of folders in a file's path.
const DEPTH_MAX: usize = 8;
/// Names that Windows gives to devices, with any ending.
const DEVICES: [&str; 4] = ["con", "prn", "aux", "nul"];

/// A name cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(crate) enum NameError {
    #[error("`{}` is not OWNER/NAME, OWNER/NAME:FILE or OWNER/NAME@REVISION:FILE", given.escape_debug())]
    Form { given: String },
    #[error("the {what} is empty")]
    Empty { what: &'static str },
    #[error("the {what} has {given} bytes, more than {max}")]
    TooLong { what: &'static str, given: usize, max: usize },
    #[error("the {what} has {given} folders, more than {max}")]
    TooDeep { what: &'static str, given: usize, max: usize },
    #[error(
        "the {what} has the byte 0x{byte:02x} at {at}; letters, digits, `.`, `_`, `-` and `+` are allowed"
    )]
    Byte { what: &'static str, byte: u8, at: usize },
    #[error("a part of the {what} begins or ends with a dot, or begins with `-`")]
    Dots { what: &'static str },
    #[error("a part of the {what} is the name of a device on Windows")]
    Device { what: &'static str },
    #[error("the {what} ends like a file of an unfinished download")]
    Part { what: &'static str },
}

/// A repository: `OWNER/NAME`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Repo {
    owner: String,
    name: String,
}

impl Repo {
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for Repo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.owner, self.name)
    }
}

impl FromStr for Repo {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let form = || NameError::Form { given: text.chars().take(200).collect() };
        let (owner, name) = text.split_once('/').ok_or_else(form)?;
        for (part, what) in [(owner, "owner"), (name, "name of the repository")] {
            if part.contains('/') {
                return Err(form());
            }
            check_length(part, what, REPO_BYTES_MAX)?;
            check_part(part, what)?;
        }
        Ok(Self { owner: owner.to_owned(), name: name.to_owned() })
    }
}

/// `OWNER/NAME[@REVISION][:FILE]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelName {
    pub(crate) repo: Repo,
    /// A branch, a tag or a commit.
    pub(crate) revision: Option<String>,
    /// A file, a pattern, or a quantisation.
    pub(crate) file: Option<String>,
}

impl FromStr for ModelName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let (head, file) = match text.split_once(':') {
            Some((head, file)) => (head, Some(file)),
            None => (text, None),
        };
        let (repo, revision) = match head.split_once('@') {
            Some((repo, revision)) => (repo, Some(revision)),
            None => (head, None),
        };
        if let Some(revision) = revision {
            check_path(revision, "revision")?;
        }
        if let Some(file) = file {
            // `*` and `?` match; everything else is as in a path.
            check_length(file, "file", PATH_BYTES_MAX)?;
            let is_allowed = |byte: u8| is_name_byte(byte) || matches!(byte, b'/' | b'*' | b'?');
            if let Some(at) = file.bytes().position(|byte| !is_allowed(byte)) {
                return Err(NameError::Byte { what: "file", byte: file.as_bytes()[at], at });
            }
        }
        let repo = repo.parse()?;
        Ok(Self { repo, revision: revision.map(str::to_owned), file: file.map(str::to_owned) })
    }
}

/// Checks a path that a hub, a record or a user gives: relative, below its folder, and usable on every system.
pub(crate) fn check_path(path: &str, what: &'static str) -> Result<(), NameError> {
    check_length(path, what, PATH_BYTES_MAX)?;
    let depth = path.matches('/').count();
    if depth > DEPTH_MAX {
        return Err(NameError::TooDeep { what, given: depth, max: DEPTH_MAX });
    }
    path.split('/').try_for_each(|part| check_part(part, what))?;
    // Those names belong to unfinished files.
    let lower = path.to_ascii_lowercase();
    if lower.ends_with(".part") || lower.ends_with(".part.json") {
        return Err(NameError::Part { what });
    }
    Ok(())
}

fn check_length(text: &str, what: &'static str, max: usize) -> Result<(), NameError> {
    match text.len() {
        0 => Err(NameError::Empty { what }),
        given if given > max => Err(NameError::TooLong { what, given, max }),
        _ => Ok(()),
    }
}

fn check_part(part: &str, what: &'static str) -> Result<(), NameError> {
    if part.is_empty() {
        return Err(NameError::Empty { what });
    }
    if let Some(at) = part.bytes().position(|byte| !is_name_byte(byte)) {
        return Err(NameError::Byte { what, byte: part.as_bytes()[at], at });
    }
    if part.starts_with(['.', '-']) || part.ends_with('.') {
        return Err(NameError::Dots { what });
    }
    let stem = part.split('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_port = |prefix: &str| {
        stem.strip_prefix(prefix).is_some_and(|n| n.len() == 1 && n.as_bytes()[0].is_ascii_digit())
    };
    if DEVICES.contains(&&*stem) || is_port("com") || is_port("lpt") {
        return Err(NameError::Device { what });
    }
    Ok(())
}

fn is_name_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-' | b'+')
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_have_an_owner_a_repository_a_revision_and_a_file() {
        let name: ModelName = "Qwen/Qwen2.5-0.5B-Instruct-GGUF@main:Q4_0".parse().unwrap();
        assert_eq!(name.repo.to_string(), "Qwen/Qwen2.5-0.5B-Instruct-GGUF");
        assert_eq!((name.revision.as_deref(), name.file.as_deref()), (Some("main"), Some("Q4_0")));
        let name: ModelName = "a/b:dir/*q4_k_m.gguf".parse().unwrap();
        assert_eq!(name.file.as_deref(), Some("dir/*q4_k_m.gguf"));
        let name: ModelName = "a/b@refs/pr/1".parse().unwrap();
        assert_eq!(name.revision.as_deref(), Some("refs/pr/1"));
    }

    #[test]
    fn names_that_leave_their_folder_are_refused() {
        for given in [
            "",
            "a",
            "/",
            "a/",
            "/b",
            "a/b/c",
            "../b",
            "a/..",
            "a/.b",
            ".a/b",
            "a/-b",
            "a/b.",
            "a/b c",
            "a/b\0",
            "a\\b/c",
            "con/b",
            "a/NUL.gguf",
            "a/com1",
            "a/b:",
            "a/b@",
            "a/b@../x",
            "a/b:x y",
            "ä/b",
            "http://a/b",
            "a/b@x@y",
        ] {
            assert!(given.parse::<ModelName>().is_err(), "{given:?}");
        }
        assert!(format!("{}/b", "a".repeat(97)).parse::<Repo>().is_err());
        for path in [
            "../x",
            "a/../x",
            "/etc/passwd",
            "a//b",
            "a/",
            "C:/x",
            "C:x",
            "\\\\host\\x",
            "a\\b",
            "x.part",
            "X.PART",
            "x.part.json",
            ".hidden",
            "a/.b",
            "-rf",
            "nul",
            "aux.json",
            "a\nb",
            "\u{202e}x",
            "a/b/c/d/e/f/g/h/i/j",
            "x.",
        ] {
            assert!(check_path(path, "file").is_err(), "{path:?}");
        }
        for path in
            ["model.gguf", "BF16/model-00001-of-00003.gguf", "model-c++.gguf", "1_Pooling/config.json"]
        {
            check_path(path, "file").unwrap();
        }
    }

    proptest! {
        #[test]
        fn a_path_that_passes_stays_below_its_folder(path in "[a-zA-Z./\\\\:_ +-]{0,40}") {
            if check_path(&path, "file").is_ok() {
                let parts: Vec<_> = Path::new(&path).components().collect();
                prop_assert!(parts.iter().all(|part| matches!(part, Component::Normal(_))));
                prop_assert_eq!(parts.len(), path.split('/').count());
            }
        }

        #[test]
        fn no_name_panics(text in ".{0,60}") {
            let _ = text.parse::<ModelName>();
            let _ = check_path(&text, "file");
        }
    }
}
