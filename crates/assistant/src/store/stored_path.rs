//! Paths in the ledger: text, or after a NUL, which no path has, the bytes in hexadecimal digits if they are no Unicode text.

use std::path::{Path, PathBuf};

use super::ledger::{from_hex, to_hex};

fn encode(path: &Path) -> String {
    match path.to_str() {
        Some(text) => text.to_owned(),
        None => format!("\0{}", to_hex(path.as_os_str().as_encoded_bytes())),
    }
}

/// `None` if the text is no path of this system.
fn decode(text: &str) -> Option<PathBuf> {
    let Some(digits) = text.strip_prefix('\0') else { return Some(PathBuf::from(text)) };
    let bytes = from_hex(digits.as_bytes());
    #[cfg(unix)]
    return bytes.map(|bytes| {
        PathBuf::from(<std::ffi::OsString as std::os::unix::ffi::OsStringExt>::from_vec(bytes))
    });
    #[cfg(not(unix))]
    bytes.and_then(|bytes| String::from_utf8(bytes).ok()).map(PathBuf::from)
}

/// One path.
pub(super) mod one {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&encode(path))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<PathBuf, D::Error> {
        decode(&String::deserialize(deserializer)?).ok_or_else(|| D::Error::custom("no path"))
    }
}

/// A path or none.
pub(super) mod option {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(
        path: &Option<PathBuf>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        path.as_deref().map(encode).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<PathBuf>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| decode(&text).ok_or_else(|| D::Error::custom("no path"))).transpose()
    }
}

/// Several paths.
pub(super) mod many {
    use serde::de::Error as _;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::*;

    pub(in super::super) fn serialize<S: Serializer>(
        paths: &[PathBuf],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(paths.iter().map(|path| encode(path)))
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<PathBuf>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        let paths: Option<Vec<PathBuf>> = texts.iter().map(|text| decode(text)).collect();
        paths.ok_or_else(|| D::Error::custom("no path"))
    }
}
