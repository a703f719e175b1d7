//! The type of each tensor, by the rules of llama.cpp's quantiser (`llama_tensor_get_type` in `src/llama-quant.cpp`).

use refrain::internals::kernels::BlockType;

use super::shape::{Role, Tensor};

/// A file type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Mix {
    /// Every matrix Q8_0.
    #[value(name = "Q8_0", alias = "q8_0")]
    Q8_0,
    /// Every matrix Q4_0, head and embedding too (`llama-quantize --pure`).
    #[value(name = "Q4_0", alias = "q4_0")]
    Q4_0,
    /// Q4_0 with a Q8_0 head: the output of `llama-quantize` for models whose rows are not a multiple of 256.
    #[value(name = "Q4_0-H8", alias = "q4_0-h8")]
    Q4_0H8,
    /// Q4_0 with a Q6_K head: the output of `llama-quantize` for the other models.
    #[value(name = "Q4_0-H6", alias = "q4_0-h6")]
    Q4_0H6,
    /// Q4_K, with Q6_K for the head and the most important layers.
    #[value(name = "Q4_K_M", alias = "q4_k_m")]
    Q4KM,
    /// Every matrix Q2_K, as the following ones (`llama-quantize --pure`); Q8_0 where rows are no multiple of 256.
    #[value(name = "Q2_K", alias = "q2_k")]
    Q2K,
    #[value(name = "Q3_K", alias = "q3_k")]
    Q3K,
    #[value(name = "IQ4_NL", alias = "iq4_nl")]
    Iq4Nl,
    #[value(name = "IQ4_XS", alias = "iq4_xs")]
    Iq4Xs,
    #[value(name = "MXFP4", alias = "mxfp4")]
    Mxfp4,
    #[value(name = "TQ2_0", alias = "tq2_0")]
    Tq2_0,
}

impl Mix {
    /// `general.file_type` (llama.cpp's `llama_ftype`).
    pub fn file_type(self) -> u32 {
        match self {
            Mix::Q4_0 | Mix::Q4_0H8 | Mix::Q4_0H6 => 2,
            Mix::Q8_0 => 7,
            Mix::Q2K => 10,
            Mix::Q3K => 12,
            Mix::Q4KM => 15,
            Mix::Iq4Nl => 25,
            Mix::Iq4Xs => 30,
            Mix::Tq2_0 => 37,
            Mix::Mxfp4 => 38,
        }
    }

    /// The type of a tensor.
    pub fn type_of(self, tensor: &Tensor) -> BlockType {
        let wanted = match (self, tensor.role) {
            (_, Role::Norm | Role::Bias | Role::RopeFactors) => BlockType::F32,
            (_, Role::Router | Role::Conv | Role::Decay | Role::StepBias) => BlockType::F32,
            (Mix::Q8_0, _) | (Mix::Q4_0H8, Role::Head) => BlockType::Q8_0,
            (Mix::Q4_0H6 | Mix::Q4KM, Role::Head) => BlockType::Q6K,
            (Mix::Q4_0 | Mix::Q4_0H8 | Mix::Q4_0H6, _) => BlockType::Q4_0,
            (Mix::Q4KM, Role::Important { idx, of }) if uses_more_bits(idx, of) => BlockType::Q6K,
            (Mix::Q4KM, _) => BlockType::Q4K,
            (Mix::Q2K, _) => BlockType::Q2K,
            (Mix::Q3K, _) => BlockType::Q3K,
            (Mix::Iq4Nl, _) => BlockType::Iq4Nl,
            (Mix::Iq4Xs, _) => BlockType::Iq4Xs,
            (Mix::Mxfp4, _) => BlockType::Mxfp4,
            (Mix::Tq2_0, _) => BlockType::Tq2_0,
        };
        if tensor.dims[0].is_multiple_of(wanted.block_len() as u64) {
            return wanted;
        }
        // The quantiser's fallbacks to blocks of 32 (`tensor_type_fallback`).
        match wanted {
            BlockType::Q4K => BlockType::Q5_0,
            _ => BlockType::Q8_0,
        }
    }
}

/// llama.cpp's `use_more_bits`: the first and last eighth of the matrices of a kind, and every third between.
fn uses_more_bits(idx: u64, of: u64) -> bool {
    let eighth = of / 8;
    idx < eighth || idx >= 7 * of / 8 || (idx - eighth) % 3 == 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Shape;

    fn types(shape: &str, mix: Mix, part: &str) -> Vec<BlockType> {
        let shape = Shape::parse(shape).unwrap();
        let tensors = shape.tensors();
        let parts = tensors.iter().filter(|tensor| tensor.name.contains(part));
        parts.map(|tensor| mix.type_of(tensor)).collect()
    }

    #[test]
    fn q4_k_m_spends_more_bits_where_the_quantiser_does() {
        let down = types("llama-3.2-1b", Mix::Q4KM, "ffn_down");
        let q6: Vec<usize> = (0..16).filter(|&i| down[i] == BlockType::Q6K).collect();
        assert_eq!(q6, [0, 1, 4, 7, 10, 13, 14, 15]);
        assert_eq!(types("llama-3.2-1b", Mix::Q4KM, "attn_v"), down);
        assert_eq!(types("llama-3.2-1b", Mix::Q4KM, "token_embd"), [BlockType::Q6K]);
        assert!(types("llama-3.2-1b", Mix::Q4KM, "ffn_gate").iter().all(|&ty| ty == BlockType::Q4K));
    }

    #[test]
    fn small_parts_of_recurrent_layers_and_routers_keep_their_precision() {
        for (shape, part) in [
            ("lfm2-1.2b", "shortconv.conv"),
            ("qwen3.5-0.8b", "ssm_dt"),
            ("granite-4.0-h-1b", "ssm_norm"),
            ("granite-4.0-h-1b", "ssm_conv1d"),
            ("qwen3-30b-a3b", "ffn_gate_inp"),
        ] {
            let types = types(shape, Mix::Q4KM, part);
            assert!(!types.is_empty() && types.iter().all(|&ty| ty == BlockType::F32), "{shape} {part}");
        }
        assert!(types("granite-4.0-h-1b", Mix::Q4_0, "ssm_in").iter().all(|&ty| ty == BlockType::Q4_0));
        let values = types("lfm2-1.2b", Mix::Q4KM, "attn_v");
        assert_eq!(values.iter().filter(|&&ty| ty == BlockType::Q6K).count(), 2);
    }

    #[test]
    fn rows_that_are_no_multiple_of_256_fall_back() {
        assert_eq!(types("qwen2.5-0.5b", Mix::Q4KM, "token_embd"), [BlockType::Q8_0]);
        assert!(types("qwen2.5-0.5b", Mix::Q4KM, "attn_q.weight").iter().all(|&ty| ty == BlockType::Q5_0));
        assert!(types("qwen2.5-0.5b", Mix::Q4KM, "ffn_down").contains(&BlockType::Q4K));
        assert_eq!(types("qwen2.5-0.5b", Mix::Q4_0H6, "token_embd"), [BlockType::Q8_0]);
        assert_eq!(types("qwen2.5-1.5b", Mix::Q4_0H6, "token_embd"), [BlockType::Q6K]);
    }
}
