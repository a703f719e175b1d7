//! The bytes of a file that one token needs: every matrix once, of experts those of a row, the embedding only if it is also the
//! output matrix.

use std::path::Path;

use refrain::internals::model::gguf::{GgufError, GgufFile, GgufValue};
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
        let count = |name: &str| {
            let architecture = file.get("general.architecture").and_then(GgufValue::as_str)?;
            file.get(&format!("{architecture}.{name}"))?.as_u64()
        };
        for tensor in file.tensors().iter().filter(|tensor| tensor.dims.len() >= 2) {
            let is_embedding = tensor.name == "token_embd.weight";
            if is_embedding {
                weights.vocab_size = tensor.dims[1] as usize;
            }
            if !is_embedding || tied {
                // Of the matrices of all experts, a row needs those of its own.
                let n_matrices = tensor.dims.get(2).copied().unwrap_or(1).max(1);
                let n_used =
                    if n_matrices > 1 { count("expert_used_count").unwrap_or(n_matrices) } else { 1 };
                weights.bytes_per_row += tensor.len.unwrap_or(0) / n_matrices * n_used;
                weights.macs_per_row += tensor.dims[..2].iter().product::<u64>() * n_used;
            }
        }
        Ok(weights)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use refrain::internals::kernels::BlockType;
    use refrain::internals::model::gguf::GgufWriter;

    fn weights_of(tensors: &[(&str, BlockType, &[u64])]) -> Weights {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = GgufWriter::new();
        writer.metadata("general.architecture", "some").metadata("some.expert_used_count", 2u32);
        for (name, ty, dims) in tensors {
            writer.tensor(name, *ty, dims);
        }
        let mut data = writer.start(std::fs::File::create(file.path()).unwrap()).unwrap();
        for (_, ty, dims) in tensors {
            let n_values: u64 = dims.iter().product();
            data.write_tensor(&vec![0; n_values as usize / ty.block_len() * ty.block_bytes()]).unwrap();
        }
        data.finish().unwrap();
        Weights::of_file(file.path()).unwrap()
    }

    #[test]
    fn an_embedding_counts_only_where_it_is_the_head() {
        let embedding = ("token_embd.weight", BlockType::Q8_0, &[32, 10][..]);
        let matrix = ("blk.0.attn_q.weight", BlockType::Q4_0, &[32, 4][..]);
        let norm = ("output_norm.weight", BlockType::F32, &[32][..]);
        let tied = weights_of(&[embedding, matrix, norm]);
        assert_eq!((tied.bytes_per_row, tied.macs_per_row, tied.vocab_size), (10 * 34 + 4 * 18, 14 * 32, 10));
        let head = ("output.weight", BlockType::F16, &[32, 10][..]);
        let untied = weights_of(&[embedding, matrix, norm, head]);
        assert_eq!((untied.bytes_per_row, untied.macs_per_row), (10 * 64 + 4 * 18, 14 * 32));
    }
    #[test]
    fn of_experts_those_of_a_row_count() {
        let head = ("output.weight", BlockType::Q8_0, &[32, 10][..]);
        let experts = ("blk.0.ffn_up_exps.weight", BlockType::Q4_0, &[32, 4, 8][..]);
        let weights = weights_of(&[head, experts]);
        assert_eq!(
            (weights.bytes_per_row, weights.macs_per_row),
            (10 * 34 + 2 * 4 * 18, 10 * 32 + 2 * 4 * 32)
        );
    }
}
