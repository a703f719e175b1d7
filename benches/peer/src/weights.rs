//! What a token needs of a file: every matrix once, the embedding only where it is the head too.

use std::path::Path;

use refrain::model::gguf::{GgufError, GgufFile};
use serde::Serialize;

/// The work of one row.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Weights {
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Bytes of the matrices that a row is multiplied with, as stored in the file.
    pub bytes_per_row: u64,
    /// Multiply-adds of a row with these matrices.
    pub macs_per_row: u64,
    pub vocab_size: usize,
}

impl Weights {
    /// Reads the tensor table of a model file.
    pub fn of_file(path: &Path) -> Result<Self, GgufError> {
        let file = GgufFile::open(path)?;
        let tied = file.tensor("output.weight").is_none();
        let mut weights = Self {
            file_bytes: std::fs::metadata(path).map_or(0, |meta| meta.len()),
            bytes_per_row: 0,
            macs_per_row: 0,
            vocab_size: 0,
        };
        for tensor in file.tensors().iter().filter(|tensor| tensor.dims.len() == 2) {
            let is_embedding = tensor.name == "token_embd.weight";
            if is_embedding {
                weights.vocab_size = tensor.dims[1] as usize;
            }
            if !is_embedding || tied {
                weights.bytes_per_row += tensor.len.unwrap_or(0);
                weights.macs_per_row += tensor.dims.iter().product::<u64>();
            }
        }
        Ok(weights)
    }
}
