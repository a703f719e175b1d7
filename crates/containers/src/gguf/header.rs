//! Reads the header of one GGUF file: version, metadata pairs, tensor table.

use std::collections::{HashMap, HashSet};

use super::{GgmlType, GgufArray, GgufError, GgufValue};
use crate::source::Source;

/// Longest header accepted (the largest published ones, with 262 144 tokens and their merges, have about
/// 16 MB).
pub const HEADER_BYTES_MAX: u64 = 1 << 30;
/// Most metadata pairs accepted.
pub const PAIRS_MAX: u64 = 1 << 16;
/// Longest metadata key accepted; the specification's limit.
pub const KEY_BYTES_MAX: u64 = (1 << 16) - 1;
/// Longest string accepted.
pub const STRING_BYTES_MAX: u64 = 1 << 24;
/// Longest array accepted, at each level.
pub const ARRAY_LEN_MAX: u64 = 1 << 24;
/// Deepest nesting of arrays accepted.
pub const ARRAY_DEPTH_MAX: usize = 4;
/// Most tensors accepted in one file.
pub const TENSORS_MAX: u64 = 1 << 17;
/// Longest tensor name accepted. (ggml itself stops at 64.)
pub const TENSOR_NAME_BYTES_MAX: u64 = 1024;
/// Most dimensions of a tensor; ggml's limit.
pub const N_DIMS_MAX: u32 = 4;
/// Largest alignment accepted.
pub const ALIGNMENT_MAX: u64 = 1 << 20;

/// Bytes of the file that are read at once.
const WINDOW_BYTES: u64 = 1 << 20;

/// The header of one file, not yet compared with its data.
pub(super) struct Header {
    pub(super) version: u32,
    pub(super) metadata: Vec<(String, GgufValue)>,
    pub(super) tensors: Vec<TensorEntry>,
    /// The end of the header, before padding.
    pub(super) end: u64,
}

/// An entry of the tensor table.
pub(super) struct TensorEntry {
    pub(super) name: String,
    pub(super) dims: Vec<u64>,
    pub(super) ty: GgmlType,
    pub(super) data_offset: u64,
}

impl Header {
    pub(super) fn read(source: &Source) -> Result<Self, GgufError> {
        let mut reader = Reader { source, offset: 0, window: Vec::new(), window_start: 0 };
        let version = read_version(&mut reader)?;
        let n_tensors = reader.limited_u64("tensor count", TENSORS_MAX)?;
        let n_pairs = reader.limited_u64("metadata pair count", PAIRS_MAX)?;
        // The smallest pair is an empty key, a type and one byte; the smallest tensor an empty name and one
        // dimension.
        reader.require("metadata pairs", n_pairs * (8 + 4 + 1))?;
        reader.require("tensor table", n_tensors * (8 + 4 + 8 + 4 + 8))?;
        let metadata = read_metadata(&mut reader, n_pairs)?;
        let mut tensors = Vec::with_capacity(n_tensors as usize);
        for _ in 0..n_tensors {
            tensors.push(read_tensor(&mut reader)?);
        }
        Ok(Self { version, metadata, tensors, end: reader.offset })
    }
}

fn read_version(reader: &mut Reader<'_>) -> Result<u32, GgufError> {
    let file = || reader.source.name().to_owned();
    let magic: [u8; 4] = match reader.source.len() {
        0..4 => return Err(GgufError::Magic { file: file(), found: [0; 4] }),
        _ => reader.array("magic")?,
    };
    let file = || reader.source.name().to_owned();
    match &magic {
        b"GGUF" => {}
        b"FUGG" => return Err(GgufError::BigEndian { file: file() }),
        _ => return Err(GgufError::Magic { file: file(), found: magic }),
    }
    let version = u32::from_le_bytes(reader.array("version")?);
    let file = || reader.source.name().to_owned();
    match version {
        2 | 3 => Ok(version),
        // The magic has the same bytes in big-endian files, so the byte order follows from the version.
        _ if (1..=3).contains(&version.swap_bytes()) => Err(GgufError::BigEndian { file: file() }),
        _ => Err(GgufError::Version { file: file(), version }),
    }
}

fn read_metadata(reader: &mut Reader<'_>, n_pairs: u64) -> Result<Vec<(String, GgufValue)>, GgufError> {
    let mut pairs = Vec::with_capacity(n_pairs as usize);
    let mut seen = HashSet::new();
    for _ in 0..n_pairs {
        let offset = reader.offset;
        let key = reader.string("metadata key", KEY_BYTES_MAX)?;
        if !seen.insert(key.clone()) {
            return Err(GgufError::DuplicateKey { file: reader.file(), key, offset });
        }
        let value = read_value(reader, &key)?;
        pairs.push((key, value));
    }
    Ok(pairs)
}

fn read_value(reader: &mut Reader<'_>, key: &str) -> Result<GgufValue, GgufError> {
    let offset = reader.offset;
    let value_type = u32::from_le_bytes(reader.array(key)?);
    Ok(match value_type {
        0 => GgufValue::U8(u8::from_le_bytes(reader.array(key)?)),
        1 => GgufValue::I8(i8::from_le_bytes(reader.array(key)?)),
        2 => GgufValue::U16(u16::from_le_bytes(reader.array(key)?)),
        3 => GgufValue::I16(i16::from_le_bytes(reader.array(key)?)),
        4 => GgufValue::U32(u32::from_le_bytes(reader.array(key)?)),
        5 => GgufValue::I32(i32::from_le_bytes(reader.array(key)?)),
        6 => GgufValue::F32(f32::from_le_bytes(reader.array(key)?)),
        7 => GgufValue::Bool(reader.bool(key)?),
        8 => GgufValue::String(reader.string(key, STRING_BYTES_MAX)?),
        9 => GgufValue::Array(read_array(reader, key, 1)?),
        10 => GgufValue::U64(u64::from_le_bytes(reader.array(key)?)),
        11 => GgufValue::I64(i64::from_le_bytes(reader.array(key)?)),
        12 => GgufValue::F64(f64::from_le_bytes(reader.array(key)?)),
        _ => {
            return Err(GgufError::ValueType {
                file: reader.file(),
                field: key.to_owned(),
                offset,
                value_type,
            });
        }
    })
}

fn read_array(reader: &mut Reader<'_>, key: &str, depth: usize) -> Result<GgufArray, GgufError> {
    let offset = reader.offset;
    if depth > ARRAY_DEPTH_MAX {
        let field = key.to_owned();
        return Err(GgufError::ArrayDepth { file: reader.file(), field, offset, limit: ARRAY_DEPTH_MAX });
    }
    let value_type = u32::from_le_bytes(reader.array(key)?);
    let len = reader.limited_u64(key, ARRAY_LEN_MAX)?;
    Ok(match value_type {
        0 => GgufArray::U8(reader.numbers(key, len, u8::from_le_bytes)?),
        1 => GgufArray::I8(reader.numbers(key, len, i8::from_le_bytes)?),
        2 => GgufArray::U16(reader.numbers(key, len, u16::from_le_bytes)?),
        3 => GgufArray::I16(reader.numbers(key, len, i16::from_le_bytes)?),
        4 => GgufArray::U32(reader.numbers(key, len, u32::from_le_bytes)?),
        5 => GgufArray::I32(reader.numbers(key, len, i32::from_le_bytes)?),
        6 => GgufArray::F32(reader.numbers(key, len, f32::from_le_bytes)?),
        7 => GgufArray::Bool(reader.elements(key, len, 1, |reader| reader.bool(key))?),
        8 => GgufArray::String(reader.elements(key, len, 8, |reader| reader.string(key, STRING_BYTES_MAX))?),
        9 => GgufArray::Array(reader.elements(key, len, 12, |reader| read_array(reader, key, depth + 1))?),
        10 => GgufArray::U64(reader.numbers(key, len, u64::from_le_bytes)?),
        11 => GgufArray::I64(reader.numbers(key, len, i64::from_le_bytes)?),
        12 => GgufArray::F64(reader.numbers(key, len, f64::from_le_bytes)?),
        _ => {
            return Err(GgufError::ValueType {
                file: reader.file(),
                field: key.to_owned(),
                offset,
                value_type,
            });
        }
    })
}

fn read_tensor(reader: &mut Reader<'_>) -> Result<TensorEntry, GgufError> {
    let name = reader.string("tensor name", TENSOR_NAME_BYTES_MAX)?;
    let n_dims = u32::from_le_bytes(reader.array(&name)?);
    if !(1..=N_DIMS_MAX).contains(&n_dims) {
        return Err(GgufError::DimCount { file: reader.file(), tensor: name, n_dims, limit: N_DIMS_MAX });
    }
    let dims = reader.numbers(&name, n_dims.into(), u64::from_le_bytes)?;
    let ty = GgmlType(u32::from_le_bytes(reader.array(&name)?));
    let data_offset = u64::from_le_bytes(reader.array(&name)?);
    Ok(TensorEntry { name, dims, ty, data_offset })
}

/// A map from each key to its index in the metadata. The keys are distinct.
pub(super) fn index(metadata: &[(String, GgufValue)]) -> HashMap<String, usize> {
    metadata.iter().enumerate().map(|(i, (key, _))| (key.clone(), i)).collect()
}

/// A forward reader over a source, with one window of it in memory.
struct Reader<'a> {
    source: &'a Source,
    offset: u64,
    window: Vec<u8>,
    window_start: u64,
}

impl Reader<'_> {
    fn file(&self) -> String {
        self.source.name().to_owned()
    }

    /// Fails unless `needed` bytes are left in the file and in the limit of the header.
    fn require(&self, field: &str, needed: u64) -> Result<(), GgufError> {
        let left = self.source.len() - self.offset;
        if needed > left {
            let (file, field) = (self.file(), field.to_owned());
            return Err(GgufError::Truncated { file, field, offset: self.offset, needed, left });
        }
        // Both are at most the length of a file, so the sum cannot overflow.
        let value = self.offset + needed;
        if value > HEADER_BYTES_MAX {
            let (file, field) = (self.file(), format!("end of {field}"));
            return Err(GgufError::OverLimit {
                file,
                field,
                offset: self.offset,
                value,
                limit: HEADER_BYTES_MAX,
            });
        }
        Ok(())
    }

    fn array<const N: usize>(&mut self, field: &str) -> Result<[u8; N], GgufError> {
        let mut out = [0; N];
        self.fill(field, &mut out)?;
        Ok(out)
    }

    fn fill(&mut self, field: &str, out: &mut [u8]) -> Result<(), GgufError> {
        self.require(field, out.len() as u64)?;
        let io = |source: std::io::Error, file: String| GgufError::Io { file, source };
        if out.len() as u64 >= WINDOW_BYTES {
            self.source.read_exact_at(self.offset, out).map_err(|e| io(e, self.file()))?;
        } else {
            let window_end = self.window_start + self.window.len() as u64;
            if self.offset < self.window_start || self.offset + out.len() as u64 > window_end {
                let len = WINDOW_BYTES.min(self.source.len() - self.offset);
                self.window = self.source.read_vec(self.offset, len).map_err(|e| io(e, self.file()))?;
                self.window_start = self.offset;
            }
            let begin = (self.offset - self.window_start) as usize;
            out.copy_from_slice(&self.window[begin..begin + out.len()]);
        }
        self.offset += out.len() as u64;
        Ok(())
    }

    fn limited_u64(&mut self, field: &str, limit: u64) -> Result<u64, GgufError> {
        let offset = self.offset;
        let value = u64::from_le_bytes(self.array(field)?);
        if value > limit {
            let (file, field) = (self.file(), field.to_owned());
            return Err(GgufError::OverLimit { file, field, offset, value, limit });
        }
        Ok(value)
    }

    fn bool(&mut self, field: &str) -> Result<bool, GgufError> {
        let offset = self.offset;
        let [value] = self.array(field)?;
        match value {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(GgufError::Bool { file: self.file(), field: field.to_owned(), offset, value }),
        }
    }

    fn string(&mut self, field: &str, limit: u64) -> Result<String, GgufError> {
        let len = self.limited_u64(field, limit)?;
        self.require(field, len)?;
        let offset = self.offset;
        let mut bytes = vec![0; len as usize];
        self.fill(field, &mut bytes)?;
        String::from_utf8(bytes).map_err(|_| GgufError::NotUtf8 {
            file: self.file(),
            field: field.to_owned(),
            offset,
        })
    }

    fn numbers<const N: usize, T>(
        &mut self,
        field: &str,
        len: u64,
        read: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, GgufError> {
        self.elements(field, len, N as u64, |reader| Ok(read(reader.array(field)?)))
    }

    /// Reads `len` elements of at least `bytes_min` bytes each; the bytes left in the file are checked before
    /// memory is reserved.
    fn elements<T>(
        &mut self,
        field: &str,
        len: u64,
        bytes_min: u64,
        mut read: impl FnMut(&mut Self) -> Result<T, GgufError>,
    ) -> Result<Vec<T>, GgufError> {
        // `len` is at most ARRAY_LEN_MAX, so the product cannot overflow.
        self.require(field, len * bytes_min)?;
        let mut out = Vec::with_capacity(len as usize);
        for _ in 0..len {
            out.push(read(self)?);
        }
        Ok(out)
    }
}
