//! The bytes before the data: a prelude of fixed length, and JSON whose length the prelude states.
//!
//! The hyper-parameters are those of the program ([`ModelConfig`]), so a change of their types needs a new version of the
//! format. All else has types of its own.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use xxhash_rust::xxh3::Xxh3;

use super::{FORMAT_VERSION, HEADER_BYTES_MAX, MAGIC, PAGE_BYTES, PackedFileError};
use crate::kernels::PANEL_LAYOUT_VERSION;
use crate::model::config::ModelConfig;
use crate::schedule::GraphKind;
use refrain_containers::Source;

/// The offset of the JSON.
pub(super) const PRELUDE_BYTES: usize = 40;
/// The offset of the checksum in the prelude. It covers all other bytes before the data.
const CHECKSUM_AT: usize = 32;

/// The content of the JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    /// The model's name.
    pub(super) name: String,
    /// The program that wrote the file.
    pub(super) packed_by: String,
    pub(super) config: ModelConfig,
    pub(super) tokenizer: TokenizerJson,
    pub(super) sections: Vec<SectionJson>,
    /// Present if the file holds a part of a model only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) piece: Option<PieceJson>,
}

/// The part of a model in one file of static graphs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PieceJson {
    /// The identity of the whole model: 32 hexadecimal digits.
    pub(super) model: String,
    /// `[first, end)` of each block of layers.
    pub(super) blocks: Vec<[usize; 2]>,
    /// Rows of the prefill graphs.
    pub(super) prefill_len: usize,
    /// Rows of the verify graphs.
    pub(super) verify_len: usize,
    /// The graph; absent for the file without layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) graph: Option<GraphJson>,
}

/// A graph: a block of layers for one batch length.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GraphJson {
    pub(super) block: usize,
    pub(super) kind: GraphKind,
}

/// The section of the tokenizer's files.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TokenizerJson {
    /// Padding included.
    pub(super) len: u64,
    pub(super) checksum: Checksum,
    pub(super) files: Vec<FileJson>,
}

/// One of the tokenizer's files, which are stored one after another.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileJson {
    pub(super) name: String,
    pub(super) len: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SectionJson {
    pub(super) name: String,
    /// From the start of the data.
    pub(super) offset: u64,
    /// Padding included.
    pub(super) len: u64,
    pub(super) checksum: Checksum,
    pub(super) tensors: Vec<TensorJson>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TensorJson {
    pub(super) name: String,
    #[serde(rename = "type")]
    pub(super) ty: String,
    pub(super) shape: Vec<u64>,
    /// From the start of the section.
    pub(super) offset: u64,
    pub(super) len: u64,
}

/// A checksum as 16 hexadecimal digits: the length is fixed, and the value is exact for readers whose numbers
/// are floats.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Checksum(pub(super) u64);

impl Serialize for Checksum {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&format!("{:016x}", self.0))
    }
}

impl<'de> Deserialize<'de> for Checksum {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let is_hex = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = is_hex.then(|| u64::from_str_radix(&text, 16).ok()).flatten();
        number.map(Checksum).ok_or_else(|| D::Error::custom("a checksum is 16 hexadecimal digits"))
    }
}

impl Header {
    /// The JSON. Its length does not depend on checksums or on offsets in the file, so it is known before
    /// them.
    pub(super) fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("strings, finite numbers and lists have a JSON form")
    }

    /// All bytes before the data: prelude, JSON, and zeros up to the next page.
    pub(super) fn encode(json: &[u8], data_len: u64) -> Vec<u8> {
        let data_start = data_start(json.len() as u64);
        let mut bytes = Vec::with_capacity(data_start as usize);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend(PANEL_LAYOUT_VERSION.to_le_bytes());
        bytes.extend((json.len() as u64).to_le_bytes());
        bytes.extend((data_start + data_len).to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend_from_slice(json);
        bytes.resize(data_start as usize, 0);
        let checksum = checksum(&bytes).to_le_bytes();
        bytes[CHECKSUM_AT..PRELUDE_BYTES].copy_from_slice(&checksum);
        bytes
    }

    /// Reads and verifies all bytes before the data; also returns the offset of the data.
    pub(super) fn read(source: &Source) -> Result<(Self, u64), PackedFileError> {
        let file = || source.name().to_owned();
        let json_len = read_prelude(source)?;
        let data_start = data_start(json_len);
        if data_start > source.len() {
            let (offset, left) = (PRELUDE_BYTES as u64, source.len() - PRELUDE_BYTES as u64);
            let (field, needed) = ("header".to_owned(), data_start - offset);
            return Err(PackedFileError::Truncated { file: file(), field, offset, needed, left });
        }
        let bytes =
            source.read_vec(0, data_start).map_err(|source| PackedFileError::Io { file: file(), source })?;
        let [stated, stated_len] = [CHECKSUM_AT, 24].map(|at| u64_at(&bytes, at));
        let computed = checksum(&bytes);
        if stated != computed {
            return Err(PackedFileError::HeaderChecksum { file: file(), stated, computed });
        }
        if stated_len > source.len() {
            let (field, offset) = ("data".to_owned(), data_start);
            let (needed, left) = (stated_len.saturating_sub(offset), source.len() - offset);
            return Err(PackedFileError::Truncated { file: file(), field, offset, needed, left });
        }
        if stated_len < source.len() {
            return Err(PackedFileError::FileLength { file: file(), len: source.len(), stated: stated_len });
        }
        let json = &bytes[PRELUDE_BYTES..PRELUDE_BYTES + json_len as usize];
        let header = serde_json::from_slice(json)
            .map_err(|e| PackedFileError::Header { file: file(), reason: e.to_string() })?;
        Ok((header, data_start))
    }
}

/// Checks the fields that are needed to compute the checksum; returns the length of the JSON.
fn read_prelude(source: &Source) -> Result<u64, PackedFileError> {
    let file = || source.name().to_owned();
    let mut prelude = [0; PRELUDE_BYTES];
    let n_bytes = prelude.len().min(usize::try_from(source.len()).unwrap_or(usize::MAX));
    let read = source.read_exact_at(0, &mut prelude[..n_bytes]);
    read.map_err(|source| PackedFileError::Io { file: file(), source })?;
    let found: [u8; 8] = prelude[..8].try_into().expect("eight bytes");
    if found != MAGIC {
        return Err(PackedFileError::Magic { file: file(), found });
    }
    if n_bytes < PRELUDE_BYTES {
        let (field, needed) = ("prelude".to_owned(), PRELUDE_BYTES as u64);
        return Err(PackedFileError::Truncated {
            file: file(),
            field,
            offset: 0,
            needed,
            left: n_bytes as u64,
        });
    }
    let [version, layout] =
        [8, 12].map(|at| u32::from_le_bytes(prelude[at..at + 4].try_into().expect("four bytes")));
    if version != FORMAT_VERSION {
        return Err(PackedFileError::Version { file: file(), version, supported: FORMAT_VERSION });
    }
    if layout != PANEL_LAYOUT_VERSION {
        return Err(PackedFileError::PanelLayout { file: file(), layout, supported: PANEL_LAYOUT_VERSION });
    }
    let (value, limit) = (u64_at(&prelude, 16), HEADER_BYTES_MAX);
    if value > limit {
        return Err(PackedFileError::OverLimit {
            file: file(),
            field: "header length",
            offset: 16,
            value,
            limit,
        });
    }
    Ok(value)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// The offset of the data; `json_len` is at most [`HEADER_BYTES_MAX`].
pub(super) fn data_start(json_len: u64) -> u64 {
    (PRELUDE_BYTES as u64 + json_len).next_multiple_of(PAGE_BYTES)
}

/// The checksum of all bytes before the data except its own.
fn checksum(bytes: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&bytes[..CHECKSUM_AT]);
    hash.update(&bytes[PRELUDE_BYTES..]);
    hash.digest()
}
