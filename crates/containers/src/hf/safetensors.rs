//! One `.safetensors` file: eight bytes of header length, a JSON header, then the data of all tensors without
//! a gap.
//!
//! The header is not parsed by the `safetensors` crate. The crate accepts duplicate names, requires the whole
//! file in memory, and its errors state neither the wrong offset nor the exceeded limit. Tests compare the
//! two parsers.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::SafetensorsError;
use crate::source::Source;
use refrain_kernels::BlockType;

/// Longest header accepted, the same limit as the format's own library.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;
/// Most tensors accepted in one file.
pub const TENSORS_MAX: usize = 1 << 17;
/// Most dimensions accepted of one tensor.
pub const N_DIMS_MAX: usize = 8;

/// Element type of a stored tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dtype(String);

impl Dtype {
    /// The name in the header.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The type of the kernels; `None` if they do not support it.
    pub fn block_type(&self) -> Option<BlockType> {
        match self.0.as_str() {
            "F32" => Some(BlockType::F32),
            "F16" => Some(BlockType::F16),
            "BF16" => Some(BlockType::BF16),
            _ => None,
        }
    }

    /// Bits of one element; `None` for an unknown name.
    fn bits(&self) -> Option<u64> {
        Some(match self.0.as_str() {
            "F4" => 4,
            "F6_E2M3" | "F6_E3M2" => 6,
            "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => 8,
            "U16" | "I16" | "F16" | "BF16" => 16,
            "U32" | "I32" | "F32" => 32,
            "U64" | "I64" | "F64" | "C64" => 64,
            _ => return None,
        })
    }
}

/// An entry of the header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredTensor {
    /// Its name.
    pub name: String,
    /// Element type.
    pub dtype: Dtype,
    /// Dimensions, slowest first.
    pub shape: Vec<u64>,
    /// Offset of the data from the start of the file.
    pub offset: u64,
    /// Bytes of the data.
    pub len: u64,
}

/// A checked `.safetensors` file.
///
/// Every tensor's bytes are inside the file. Tensors do not overlap, every byte of the data belongs to a
/// tensor, and names are unique.
#[derive(Debug)]
pub struct SafetensorsFile {
    source: Source,
    tensors: Vec<StoredTensor>,
}

impl SafetensorsFile {
    /// Opens and checks a file.
    ///
    /// # Errors
    /// [`SafetensorsError`]: the file cannot be read, or breaks a rule of the format; one variant per rule.
    pub fn open(path: &Path) -> Result<Self, SafetensorsError> {
        let source = Source::open(path)
            .map_err(|source| SafetensorsError::Io { file: path.display().to_string(), source })?;
        Self::from_source(source)
    }

    /// Checks a file given as a [`Source`].
    ///
    /// # Errors
    /// As [`SafetensorsFile::open`].
    pub fn from_source(source: Source) -> Result<Self, SafetensorsError> {
        let file = source.name().to_owned();
        let io = |source| SafetensorsError::Io { file: file.clone(), source };
        if source.len() < 8 {
            return Err(SafetensorsError::TooShort { file, len: source.len() });
        }
        let mut len_bytes = [0; 8];
        source.read_exact_at(0, &mut len_bytes).map_err(io)?;
        let len = u64::from_le_bytes(len_bytes);
        if len > HEADER_BYTES_MAX {
            return Err(SafetensorsError::HeaderTooLarge { file, len, limit: HEADER_BYTES_MAX });
        }
        let data_start = len + 8;
        if data_start > source.len() {
            return Err(SafetensorsError::HeaderTruncated { file, len, file_len: source.len() });
        }
        let header = source.read_vec(8, len).map_err(io)?;
        let header: Header = serde_json::from_slice(&header)
            .map_err(|e| SafetensorsError::Header { file: file.clone(), reason: e.to_string() })?;
        if header.0.len() > TENSORS_MAX {
            let count = header.0.len() as u64;
            return Err(SafetensorsError::TooManyTensors { file, count, limit: TENSORS_MAX as u64 });
        }
        let tensors = check_tensors(&file, header.0, data_start, source.len())?;
        Ok(Self { source, tensors })
    }

    /// The path.
    pub fn name(&self) -> &str {
        self.source.name()
    }

    /// All tensors, in order of their data.
    pub fn tensors(&self) -> &[StoredTensor] {
        &self.tensors
    }

    /// Fills `out` with bytes of one of this file's tensors, from byte `start` of the tensor on.
    ///
    /// # Errors
    /// [`SafetensorsError::Io`], also if the tensor ends before `out` is full; `out` is then unspecified.
    pub fn read_at(&self, tensor: &StoredTensor, start: u64, out: &mut [u8]) -> Result<(), SafetensorsError> {
        let io = |source| SafetensorsError::Io { file: self.name().to_owned(), source };
        self.source.read_range_at(tensor.offset, tensor.len, start, out).map_err(io)
    }

    /// Reads the bytes of one of this file's tensors, row-major, little endian.
    ///
    /// # Errors
    /// [`SafetensorsError::Io`].
    pub fn read(&self, tensor: &StoredTensor) -> Result<Vec<u8>, SafetensorsError> {
        self.source
            .read_vec(tensor.offset, tensor.len)
            .map_err(|source| SafetensorsError::Io { file: self.name().to_owned(), source })
    }
}

fn check_tensors(
    file: &str,
    mut entries: Vec<(String, Entry)>,
    data_start: u64,
    file_len: u64,
) -> Result<Vec<StoredTensor>, SafetensorsError> {
    let data_len = file_len - data_start;
    // An empty tensor sorts before the tensor that starts at the same offset.
    entries.sort_by_key(|(_, entry)| (entry.data_offsets.0, entry.data_offsets.1));
    let mut tensors: Vec<StoredTensor> = Vec::with_capacity(entries.len());
    let mut covered = 0;
    for (name, entry) in entries {
        let file = || file.to_owned();
        let (begin, end) = entry.data_offsets;
        if entry.shape.len() > N_DIMS_MAX {
            let n_dims = entry.shape.len();
            return Err(SafetensorsError::TooManyDims {
                file: file(),
                tensor: name,
                n_dims,
                limit: N_DIMS_MAX,
            });
        }
        let dtype = Dtype(entry.dtype);
        let needed = match dtype.bits() {
            Some(bits) => {
                let n_bits = entry.shape.iter().try_fold(bits, |n, &dim| n.checked_mul(dim));
                match n_bits.filter(|n| n % 8 == 0) {
                    Some(n_bits) => n_bits / 8,
                    None => {
                        return Err(SafetensorsError::SizeOverflow {
                            file: file(),
                            tensor: name,
                            shape: entry.shape,
                        });
                    }
                }
            }
            // An element type of a later version is listed and never loaded, so the offsets define its size.
            None => end.saturating_sub(begin),
        };
        if end.checked_sub(begin) != Some(needed) {
            return Err(SafetensorsError::WrongSize { file: file(), tensor: name, begin, end, needed });
        }
        if end > data_len {
            return Err(SafetensorsError::OutOfFile { file: file(), tensor: name, end, data_len });
        }
        if begin < covered {
            let other = tensors.last().map_or_else(String::new, |t| t.name.clone());
            return Err(SafetensorsError::Overlap {
                file: file(),
                tensor: name,
                begin,
                other,
                other_end: covered,
            });
        }
        if begin > covered {
            return Err(SafetensorsError::Gap { file: file(), begin: covered, len: begin - covered });
        }
        covered = end;
        // `end <= data_len`, so the sum is at most `file_len`.
        tensors.push(StoredTensor {
            name,
            dtype,
            shape: entry.shape,
            offset: data_start + begin,
            len: needed,
        });
    }
    if covered != data_len {
        return Err(SafetensorsError::Gap { file: file.to_owned(), begin: covered, len: data_len - covered });
    }
    Ok(tensors)
}

#[derive(Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The header's entries without `__metadata__`; a name given twice is an error.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct HeaderVisitor;
        impl<'de> Visitor<'de> for HeaderVisitor {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut entries = Vec::new();
                let mut seen = HashSet::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format_args!("name {name:?} is given twice")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        let entry = map
                            .next_value()
                            .map_err(|e| A::Error::custom(format_args!("tensor {name:?}: {e}")))?;
                        entries.push((name, entry));
                    }
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(HeaderVisitor)
    }
}
