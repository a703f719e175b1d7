//! A checked GGUF model: the metadata and tensor table of one file, or of all parts of a split one.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::path::Path;

use super::header::{ALIGNMENT_MAX, Header, TensorEntry, index};
use super::part::{GgufTensor, Part};
use super::split::SplitPart;
use super::{GgufError, GgufValue};
use crate::source::Source;

/// Alignment of the start of the data and of each tensor, if the file does not state one.
const ALIGNMENT_DEFAULT: u64 = 32;

/// A checked GGUF model. Files of any architecture and element type can be opened, even if their weights
/// cannot be loaded.
///
/// The bytes of every tensor are inside its file, aligned, and overlap no other tensor. Keys and tensor names
/// are unique.
#[derive(Debug)]
pub struct GgufFile {
    parts: Vec<Source>,
    version: u32,
    metadata: Vec<(String, GgufValue)>,
    by_key: HashMap<String, usize>,
    tensors: Vec<GgufTensor>,
    by_name: HashMap<String, usize>,
}

impl GgufFile {
    /// Opens a file. For a split model, `path` may name any part; the others are found in the same folder by
    /// their names.
    ///
    /// # Errors
    /// [`GgufError`]; nothing stays open.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let first = read_part(open_source(path)?)?;
        let Some(split) = SplitPart::of(&first)? else {
            return Self::from_parts(vec![first]);
        };
        Self::from_parts(split.open_all(path, first, |path| read_part(open_source(path)?))?)
    }

    /// Reads a model from bytes in memory; messages call it `name`.
    ///
    /// # Errors
    /// As [`GgufFile::open`], and [`GgufError::SplitInMemory`].
    pub fn from_bytes(bytes: Cow<'static, [u8]>, name: &str) -> Result<Self, GgufError> {
        let part = read_part(Source::from_bytes(bytes, name))?;
        match SplitPart::of(&part)? {
            None => Self::from_parts(vec![part]),
            Some(split) => Err(GgufError::SplitInMemory { file: name.to_owned(), count: split.count }),
        }
    }

    fn from_parts(parts: Vec<Part>) -> Result<Self, GgufError> {
        let mut tensors = Vec::new();
        let mut by_name = HashMap::new();
        let mut sources = Vec::with_capacity(parts.len());
        let mut first = None;
        for (part_idx, part) in parts.into_iter().enumerate() {
            for mut tensor in part.tensors {
                tensor.part = part_idx;
                if by_name.insert(tensor.name.clone(), tensors.len()).is_some() {
                    let file = part.source.name().to_owned();
                    return Err(GgufError::DuplicateTensor { file, tensor: tensor.name });
                }
                tensors.push(tensor);
            }
            sources.push(part.source);
            // The metadata of the first part describes the model; the other parts only repeat the split fields.
            first.get_or_insert((part.version, part.metadata));
        }
        let (version, metadata) = first.unwrap_or_default();
        let by_key = index(&metadata);
        Ok(Self { parts: sources, version, metadata, by_key, tensors, by_name })
    }

    /// The path of the first part, or the name given to [`GgufFile::from_bytes`].
    pub fn name(&self) -> &str {
        self.parts.first().map_or("", Source::name)
    }

    /// Paths of all parts.
    pub fn part_names(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().map(Source::name)
    }

    /// Version of the format: 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// All metadata pairs, in the order of the file.
    pub fn metadata(&self) -> &[(String, GgufValue)] {
        &self.metadata
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.by_key.get(key).and_then(|&i| self.metadata.get(i)).map(|(_, value)| value)
    }

    /// Adds a metadata pair, unless the file has one with this key.
    pub fn set_default(&mut self, key: &str, value: GgufValue) {
        if !self.by_key.contains_key(key) {
            self.by_key.insert(key.to_owned(), self.metadata.len());
            self.metadata.push((key.to_owned(), value));
        }
    }

    /// All tensors, part by part, in the order of the tables.
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.by_name.get(name).and_then(|&i| self.tensors.get(i))
    }

    /// The file that holds a tensor.
    pub fn file_of(&self, tensor: &GgufTensor) -> &str {
        self.parts.get(tensor.part).map_or("", Source::name)
    }

    /// Fills `out` with bytes of a tensor of this model, from byte `start` of the tensor on.
    ///
    /// # Errors
    /// [`GgufError::Io`], also if the tensor ends before `out` is full; `out` is then unspecified.
    pub fn read_at(&self, tensor: &GgufTensor, start: u64, out: &mut [u8]) -> Result<(), GgufError> {
        let io = |source| GgufError::Io { file: self.file_of(tensor).to_owned(), source };
        let part = self.parts.get(tensor.part).ok_or_else(|| io(std::io::ErrorKind::NotFound.into()))?;
        part.read_range_at(tensor.offset, tensor.len.unwrap_or(0), start, out).map_err(io)
    }

    /// Reads the bytes of a tensor of this model; no bytes if its element type is unknown.
    ///
    /// # Errors
    /// [`GgufError::Io`].
    pub fn read(&self, tensor: &GgufTensor) -> Result<Vec<u8>, GgufError> {
        let io = |source| GgufError::Io { file: self.file_of(tensor).to_owned(), source };
        let part = self.parts.get(tensor.part).ok_or_else(|| io(std::io::ErrorKind::NotFound.into()))?;
        part.read_vec(tensor.offset, tensor.len.unwrap_or(0)).map_err(io)
    }
}

fn open_source(path: &Path) -> Result<Source, GgufError> {
    Source::open(path).map_err(|source| GgufError::Io { file: path.display().to_string(), source })
}

fn read_part(source: Source) -> Result<Part, GgufError> {
    let header = Header::read(&source)?;
    let alignment = alignment(&source, &header)?;
    // The header ends at HEADER_BYTES_MAX at the latest, so rounding up cannot overflow.
    let data_start = header.end.next_multiple_of(alignment);
    let mut names = HashSet::new();
    let mut tensors = Vec::with_capacity(header.tensors.len());
    for entry in header.tensors {
        if !names.insert(entry.name.clone()) {
            return Err(GgufError::DuplicateTensor { file: source.name().to_owned(), tensor: entry.name });
        }
        tensors.push(check_tensor(&source, entry, alignment, data_start)?);
    }
    check_overlap(&source, &tensors)?;
    Ok(Part { source, version: header.version, metadata: header.metadata, tensors })
}

fn alignment(source: &Source, header: &Header) -> Result<u64, GgufError> {
    let Some((_, value)) = header.metadata.iter().find(|(key, _)| key == "general.alignment") else {
        return Ok(ALIGNMENT_DEFAULT);
    };
    match value.as_u64() {
        Some(n) if n.is_power_of_two() && (8..=ALIGNMENT_MAX).contains(&n) => Ok(n),
        _ => Err(GgufError::Alignment {
            file: source.name().to_owned(),
            value: value.as_u64().map_or_else(|| format!("a {}", value.type_name()), |n| n.to_string()),
            limit: ALIGNMENT_MAX,
        }),
    }
}

fn check_tensor(
    source: &Source,
    entry: TensorEntry,
    alignment: u64,
    data_start: u64,
) -> Result<GgufTensor, GgufError> {
    let file = || source.name().to_owned();
    let TensorEntry { name, dims, ty, data_offset } = entry;
    if dims.contains(&0) {
        return Err(GgufError::ZeroDim { file: file(), tensor: name, dims });
    }
    let n_elements = dims.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim));
    let Some(n_elements) = n_elements else {
        return Err(GgufError::SizeOverflow { file: file(), tensor: name, dims });
    };
    let mut len = None;
    if let Some((block_len, block_bytes)) = ty.block() {
        let n_cols = dims.first().copied().unwrap_or(1);
        if n_cols % block_len != 0 {
            return Err(GgufError::PartialBlock {
                file: file(),
                tensor: name,
                n_cols,
                block_len,
                ty: ty.to_string(),
            });
        }
        len = (n_elements / block_len).checked_mul(block_bytes);
        if len.is_none() {
            return Err(GgufError::SizeOverflow { file: file(), tensor: name, dims });
        }
    }
    if data_offset % alignment != 0 {
        return Err(GgufError::Misaligned { file: file(), tensor: name, offset: data_offset, alignment });
    }
    let (file_len, needed) = (source.len(), len.unwrap_or(0));
    let offset = data_start.saturating_add(data_offset);
    if offset.checked_add(needed).is_none_or(|end| end > file_len) {
        return Err(GgufError::OutOfFile { file: file(), tensor: name, offset, needed, file_len });
    }
    Ok(GgufTensor { name, ty, dims, part: 0, offset, len })
}

fn check_overlap(source: &Source, tensors: &[GgufTensor]) -> Result<(), GgufError> {
    let mut order: Vec<&GgufTensor> = tensors.iter().collect();
    order.sort_by_key(|t| (t.offset, t.len));
    for pair in order.windows(2) {
        let (other, tensor) = (pair[0], pair[1]);
        // Checked to be inside the file, so the sum does not overflow. An unknown type has at least one byte.
        let other_end = other.offset + other.len.unwrap_or(1);
        if tensor.offset < other_end {
            return Err(GgufError::Overlap {
                file: source.name().to_owned(),
                tensor: tensor.name.clone(),
                offset: tensor.offset,
                other: other.name.clone(),
                other_end,
            });
        }
    }
    Ok(())
}
