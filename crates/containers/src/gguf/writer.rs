//! Writes GGUF version 3: first all metadata and tensors are declared, then the data is written in the
//! declared order.
//!
//! ```
//! use refrain_kernels::BlockType;
//! use refrain_containers::gguf::{GgufFile, GgufWriter};
//!
//! let mut writer = GgufWriter::new();
//! writer.metadata("general.architecture", "llama");
//! writer.tensor("blk.0.attn_norm.weight", BlockType::F32, &[4]);
//! let mut data = writer.start(Vec::new())?;
//! data.write_tensor(&[0; 16])?;
//! let file = GgufFile::from_bytes(data.finish()?.into(), "example")?;
//! assert_eq!(file.tensors()[0].dims, [4]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::io::{self, Write};

use thiserror::Error;

use super::{GgmlType, GgufArray, GgufValue};

const ALIGNMENT: u64 = 32;

/// A GGUF file could not be written.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GgufWriteError {
    /// A write failed. The bytes written so far are not a GGUF file.
    #[error("cannot write the GGUF file: {0}")]
    Io(#[from] io::Error),
    /// A declared tensor is not a whole number of blocks, or has an unknown type or a size over 64 bits.
    #[error("tensor `{tensor}` with dims {dims:?} of {ty} has no size")]
    NoSize {
        /// The tensor.
        tensor: String,
        /// Its dimensions, columns first.
        dims: Vec<u64>,
        /// Its type.
        ty: String,
    },
    /// The data has the wrong length for the next tensor.
    #[error("tensor `{tensor}` needs {expected} bytes, {given} were given")]
    WrongLength {
        /// The tensor.
        tensor: String,
        /// Bytes it needs.
        expected: u64,
        /// Bytes given.
        given: u64,
    },
    /// There is data for more tensors than were declared.
    #[error("data for a tensor after the last of {declared} declared")]
    TooManyTensors {
        /// Tensors declared.
        declared: usize,
    },
    /// The file was finished before the data of every tensor was written.
    #[error("{missing} declared tensors have no data yet")]
    TensorsMissing {
        /// Tensors without data.
        missing: usize,
    },
}

/// Collects the metadata and the tensor table.
#[derive(Debug, Default, Clone)]
pub struct GgufWriter {
    metadata: Vec<(String, GgufValue)>,
    tensors: Vec<(String, GgmlType, Vec<u64>)>,
}

impl GgufWriter {
    /// A writer with nothing declared.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata pair. Keys are written as given: a key given twice makes a file that the reader refuses.
    pub fn metadata(&mut self, key: &str, value: impl Into<GgufValue>) -> &mut Self {
        self.metadata.push((key.to_owned(), value.into()));
        self
    }

    /// Declares a tensor; `dims` are as GGUF orders them, columns first.
    pub fn tensor(&mut self, name: &str, ty: impl Into<GgmlType>, dims: &[u64]) -> &mut Self {
        self.tensors.push((name.to_owned(), ty.into(), dims.to_vec()));
        self
    }

    /// Writes the header. The data follows through the returned value, tensor by tensor in the order declared.
    ///
    /// # Errors
    /// [`GgufWriteError::NoSize`] before anything is written; [`GgufWriteError::Io`].
    pub fn start<W: Write>(self, out: W) -> Result<GgufDataWriter<W>, GgufWriteError> {
        let mut header = Vec::new();
        header.extend_from_slice(b"GGUF");
        put_u32(&mut header, 3);
        put_u64(&mut header, self.tensors.len() as u64);
        put_u64(&mut header, self.metadata.len() as u64);
        for (key, value) in &self.metadata {
            put_str(&mut header, key);
            put_u32(&mut header, value.type_id());
            put_value(&mut header, value);
        }
        let mut offset = 0u64;
        let mut sizes = Vec::with_capacity(self.tensors.len());
        for (name, ty, dims) in self.tensors {
            let len = size_of_tensor(ty, &dims);
            let next = len.and_then(|len| offset.checked_add(len)?.checked_next_multiple_of(ALIGNMENT));
            let (Some(len), Some(next)) = (len, next) else {
                return Err(GgufWriteError::NoSize { tensor: name, dims, ty: ty.to_string() });
            };
            put_str(&mut header, &name);
            put_u32(&mut header, dims.len() as u32);
            dims.iter().for_each(|&dim| put_u64(&mut header, dim));
            put_u32(&mut header, ty.0);
            put_u64(&mut header, offset);
            sizes.push((name, len));
            offset = next;
        }
        header.resize(header.len().next_multiple_of(ALIGNMENT as usize), 0);
        let mut out = out;
        out.write_all(&header)?;
        Ok(GgufDataWriter { out, sizes, n_written: 0 })
    }
}

/// Streams the data of the declared tensors.
#[derive(Debug)]
pub struct GgufDataWriter<W: Write> {
    out: W,
    /// Name and bytes of each declared tensor.
    sizes: Vec<(String, u64)>,
    n_written: usize,
}

impl<W: Write> GgufDataWriter<W> {
    /// Writes the next declared tensor's data and its padding.
    ///
    /// # Errors
    /// [`GgufWriteError::WrongLength`] or [`GgufWriteError::TooManyTensors`], with nothing written;
    /// [`GgufWriteError::Io`].
    pub fn write_tensor(&mut self, data: &[u8]) -> Result<(), GgufWriteError> {
        let Some((tensor, expected)) = self.sizes.get(self.n_written) else {
            return Err(GgufWriteError::TooManyTensors { declared: self.sizes.len() });
        };
        let given = data.len() as u64;
        if given != *expected {
            return Err(GgufWriteError::WrongLength { tensor: tensor.clone(), expected: *expected, given });
        }
        self.out.write_all(data)?;
        let padding = given.next_multiple_of(ALIGNMENT) - given;
        self.out.write_all(&[0; ALIGNMENT as usize][..padding as usize])?;
        self.n_written += 1;
        Ok(())
    }

    /// Flushes and returns the output.
    ///
    /// # Errors
    /// [`GgufWriteError::TensorsMissing`]; [`GgufWriteError::Io`].
    pub fn finish(mut self) -> Result<W, GgufWriteError> {
        let missing = self.sizes.len() - self.n_written;
        if missing > 0 {
            return Err(GgufWriteError::TensorsMissing { missing });
        }
        self.out.flush()?;
        Ok(self.out)
    }
}

fn size_of_tensor(ty: GgmlType, dims: &[u64]) -> Option<u64> {
    let (block_len, block_bytes) = ty.block()?;
    if dims.first()? % block_len != 0 {
        return None;
    }
    let n_elements = dims.iter().try_fold(1u64, |n, &dim| n.checked_mul(dim))?;
    (n_elements / block_len).checked_mul(block_bytes)
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    put_u64(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &GgufValue) {
    match value {
        GgufValue::U8(v) => out.extend(v.to_le_bytes()),
        GgufValue::I8(v) => out.extend(v.to_le_bytes()),
        GgufValue::U16(v) => out.extend(v.to_le_bytes()),
        GgufValue::I16(v) => out.extend(v.to_le_bytes()),
        GgufValue::U32(v) => out.extend(v.to_le_bytes()),
        GgufValue::I32(v) => out.extend(v.to_le_bytes()),
        GgufValue::F32(v) => out.extend(v.to_le_bytes()),
        GgufValue::Bool(v) => out.push(u8::from(*v)),
        GgufValue::String(v) => put_str(out, v),
        GgufValue::Array(v) => put_array(out, v),
        GgufValue::U64(v) => out.extend(v.to_le_bytes()),
        GgufValue::I64(v) => out.extend(v.to_le_bytes()),
        GgufValue::F64(v) => out.extend(v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &GgufArray) {
    put_u32(out, array.type_id());
    put_u64(out, array.len() as u64);
    match array {
        GgufArray::U8(v) => out.extend_from_slice(v),
        GgufArray::I8(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        GgufArray::U16(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        GgufArray::I16(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        GgufArray::U32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        GgufArray::I32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        GgufArray::F32(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        GgufArray::Bool(v) => out.extend(v.iter().map(|&v| u8::from(v))),
        GgufArray::String(v) => v.iter().for_each(|v| put_str(out, v)),
        GgufArray::Array(v) => v.iter().for_each(|v| put_array(out, v)),
        GgufArray::U64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        GgufArray::I64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
        GgufArray::F64(v) => v.iter().for_each(|v| out.extend(v.to_le_bytes())),
    }
}
