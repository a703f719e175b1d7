//! Names of histories, namespaces, records and files.

use std::fmt;
use std::path::{Path, PathBuf};

use refrain::Engine;
use xxhash_rust::xxh3::xxh3_64;

use super::HistoryError;

/// Identifies a history: the tokenizer of its token ids, and the model of its responses.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HistoryKey {
    /// The tokenizer's [fingerprint](refrain::Tokenizer::fingerprint).
    pub tokenizer: u64,
    /// The model's [identity](refrain::Engine::model_identity).
    pub model: u128,
}

impl HistoryKey {
    /// The key of an engine's model. For a model that is not packed, the first call reads its weights once.
    pub fn of(engine: &Engine) -> Self {
        let model = engine.model_identity().to_bits();
        HistoryKey { tokenizer: engine.tokenizer().fingerprint(), model }
    }

    /// The key in the name of a folder; `None` for other names.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let (tokenizer, model) = name.split_once('-')?;
        let tokenizer = u64::from_str_radix(tokenizer, 16).ok()?;
        let key = HistoryKey { tokenizer, model: u128::from_str_radix(model, 16).ok()? };
        (key.to_string() == name).then_some(key)
    }

    /// The hash of the key and the namespace. It ties a file to its place.
    pub(super) fn owner(&self, namespace: &str) -> u64 {
        let mut bytes = Vec::with_capacity(24 + namespace.len());
        bytes.extend_from_slice(&self.tokenizer.to_le_bytes());
        bytes.extend_from_slice(&self.model.to_le_bytes());
        bytes.extend_from_slice(namespace.as_bytes());
        xxh3_64(&bytes)
    }
}

impl fmt::Display for HistoryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}-{:032x}", self.tokenizer, self.model)
    }
}

/// The id of a response: the time of its append in µs since 1970, made unique. Ids ascend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RecordId(pub u64);

impl fmt::Display for RecordId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Maximum length of a namespace's name, in bytes. Every file system accepts folder names of three times this length.
pub const NAMESPACE_BYTES_MAX: usize = 64;

pub(super) fn check_namespace(name: &str) -> Result<(), HistoryError> {
    match name.len() {
        1..=NAMESPACE_BYTES_MAX => Ok(()),
        bytes => Err(HistoryError::NamespaceName { bytes, max: NAMESPACE_BYTES_MAX }),
    }
}

/// The folder name of a namespace. Lower-case letters, digits, `-` and `_` are unchanged; every other byte becomes
/// `%XX`. So no name leads out of the folder, and two names differ even on a file system that ignores case.
pub(super) fn encode_namespace(name: &str) -> String {
    let mut encoded = String::new();
    for &byte in name.as_bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => encoded.push(byte as char),
            _ => encoded.push_str(&format!("%{byte:02x}")),
        }
    }
    encoded
}

/// The namespace of a folder name; `None` for other names.
pub(super) fn decode_namespace(folder: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = folder.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte == b'%' {
            let digits = rest.get(..2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(byte);
        }
    }
    let name = String::from_utf8(bytes).ok()?;
    (check_namespace(&name).is_ok() && encode_namespace(&name) == folder).then_some(name)
}

/// A file of a namespace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FileKind {
    Log,
    Segment,
}

impl FileKind {
    pub(super) fn path(self, folder: &Path, number: u64) -> PathBuf {
        match self {
            FileKind::Log => folder.join(format!("log-{number}")),
            FileKind::Segment => folder.join(format!("segment-{number}")),
        }
    }

    /// Kind and number of a file name; `None` for other names.
    pub(super) fn parse(name: &str) -> Option<(Self, u64)> {
        let (kind, number) = name.split_once('-')?;
        let number: u64 = number.parse().ok()?;
        let kind = match kind {
            "log" => FileKind::Log,
            "segment" => FileKind::Segment,
            _ => return None,
        };
        (kind.path(Path::new(""), number).to_str() == Some(name)).then_some((kind, number))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn namespaces_come_back_from_their_folders(name in "\\PC{1,16}") {
            let folder = encode_namespace(&name);
            prop_assert!(folder.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/' && byte != b'.'));
            prop_assert_eq!(decode_namespace(&folder), Some(name));
        }

        #[test]
        fn other_folders_are_no_namespaces(folder in "[a-zA-Z%./]{0,8}") {
            if let Some(name) = decode_namespace(&folder) {
                prop_assert_eq!(encode_namespace(&name), folder);
            }
        }
    }

    #[test]
    fn keys_and_files_come_back_from_their_names() {
        let key = HistoryKey { tokenizer: 7, model: u128::MAX - 1 };
        assert_eq!(HistoryKey::parse(&key.to_string()), Some(key));
        assert_eq!(HistoryKey::parse("7-1"), None);
        assert_eq!(FileKind::parse("log-12"), Some((FileKind::Log, 12)));
        assert_eq!(FileKind::parse("segment-1"), Some((FileKind::Segment, 1)));
        assert_eq!((FileKind::parse("log-012"), FileKind::parse("log-12.partial")), (None, None));
    }
}
