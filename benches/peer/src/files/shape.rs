//! The dimensions of published models, and the tensors derived from them.

use refrain::internals::model::gguf::GgufWriter;

/// A model with known dimensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// The name on the command line.
    pub name: &'static str,
    /// GGUF's name of the family, which is also the prefix of its keys.
    pub architecture: &'static str,
    pub n_layers: u64,
    pub hidden_dim: u64,
    pub n_heads: u64,
    pub n_kv_heads: u64,
    pub head_dim: u64,
    pub ffn_dim: u64,
    pub vocab_size: u64,
    pub context_len: u32,
    pub rope_theta: u32,
    /// RMS norms add `1 / norm_eps_inv`.
    pub norm_eps_inv: u32,
    /// Whether the output matrix is the embedding.
    pub tied: bool,
}

const SHAPES: [Shape; 5] = [
    Shape {
        name: "qwen2.5-0.5b",
        architecture: "qwen2",
        n_layers: 24,
        hidden_dim: 896,
        n_heads: 14,
        n_kv_heads: 2,
        head_dim: 64,
        ffn_dim: 4864,
        vocab_size: 151_936,
        context_len: 32_768,
        rope_theta: 1_000_000,
        norm_eps_inv: 1_000_000,
        tied: true,
    },
    Shape {
        name: "qwen2.5-1.5b",
        architecture: "qwen2",
        n_layers: 28,
        hidden_dim: 1536,
        n_heads: 12,
        n_kv_heads: 2,
        head_dim: 128,
        ffn_dim: 8960,
        vocab_size: 151_936,
        context_len: 32_768,
        rope_theta: 1_000_000,
        norm_eps_inv: 1_000_000,
        tied: true,
    },
    Shape {
        name: "llama-3.2-1b",
        architecture: "llama",
        n_layers: 16,
        hidden_dim: 2048,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 64,
        ffn_dim: 8192,
        vocab_size: 128_256,
        context_len: 131_072,
        rope_theta: 500_000,
        norm_eps_inv: 100_000,
        tied: true,
    },
    Shape {
        name: "qwen3-1.7b",
        architecture: "qwen3",
        n_layers: 28,
        hidden_dim: 2048,
        n_heads: 16,
        n_kv_heads: 8,
        head_dim: 128,
        ffn_dim: 6144,
        vocab_size: 151_936,
        context_len: 40_960,
        rope_theta: 1_000_000,
        norm_eps_inv: 1_000_000,
        tied: true,
    },
    Shape {
        name: "qwen3-8b",
        architecture: "qwen3",
        n_layers: 36,
        hidden_dim: 4096,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 128,
        ffn_dim: 12_288,
        vocab_size: 151_936,
        context_len: 40_960,
        rope_theta: 1_000_000,
        norm_eps_inv: 1_000_000,
        tied: false,
    },
];

/// A tensor of a shape: GGUF's name, dimensions (columns first), and the distribution of its numbers.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub role: Role,
}

/// The role of a tensor, which decides its type and its numbers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Role {
    /// Token embedding and output matrix.
    Head,
    /// Norm weights, around 1.
    Norm,
    /// Biases, around 0.
    Bias,
    /// Divisors of the rotary frequencies.
    RopeFactors,
    /// The value projection of a layer.
    AttnV { layer_idx: u64 },
    /// The second feed-forward matrix of a layer.
    FfnDown { layer_idx: u64 },
    /// Any other matrix.
    Matrix,
}

impl Shape {
    /// The shape with this name, as a command-line argument.
    pub fn parse(name: &str) -> Result<Self, String> {
        let found = SHAPES.iter().find(|shape| shape.name.eq_ignore_ascii_case(name));
        let names: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
        found.copied().ok_or_else(|| format!("no such shape; there are: {}", names.join(", ")))
    }

    /// All tensors, in the order of the file.
    pub fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = vec![
            matrix("token_embd", self.vocab_size, self.hidden_dim, Role::Head),
            vector("output_norm.weight", self.hidden_dim, Role::Norm),
        ];
        if !self.tied {
            tensors.push(matrix("output", self.vocab_size, self.hidden_dim, Role::Head));
        }
        if self.architecture == "llama" {
            tensors.push(vector("rope_freqs.weight", self.head_dim / 2, Role::RopeFactors));
        }
        (0..self.n_layers).for_each(|layer_idx| self.push_layer(layer_idx, &mut tensors));
        tensors
    }

    fn push_layer(&self, layer_idx: u64, tensors: &mut Vec<Tensor>) {
        let (q_dim, kv_dim) = (self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim);
        let blk = |part: &str| format!("blk.{layer_idx}.{part}");
        tensors.extend([
            vector(&blk("attn_norm.weight"), self.hidden_dim, Role::Norm),
            matrix(&blk("attn_q"), q_dim, self.hidden_dim, Role::Matrix),
            matrix(&blk("attn_k"), kv_dim, self.hidden_dim, Role::Matrix),
            matrix(&blk("attn_v"), kv_dim, self.hidden_dim, Role::AttnV { layer_idx }),
            matrix(&blk("attn_output"), self.hidden_dim, q_dim, Role::Matrix),
            vector(&blk("ffn_norm.weight"), self.hidden_dim, Role::Norm),
            matrix(&blk("ffn_gate"), self.ffn_dim, self.hidden_dim, Role::Matrix),
            matrix(&blk("ffn_up"), self.ffn_dim, self.hidden_dim, Role::Matrix),
            matrix(&blk("ffn_down"), self.hidden_dim, self.ffn_dim, Role::FfnDown { layer_idx }),
        ]);
        match self.architecture {
            "qwen2" => tensors.extend([
                vector(&blk("attn_q.bias"), q_dim, Role::Bias),
                vector(&blk("attn_k.bias"), kv_dim, Role::Bias),
                vector(&blk("attn_v.bias"), kv_dim, Role::Bias),
            ]),
            "qwen3" => tensors.extend([
                vector(&blk("attn_q_norm.weight"), self.head_dim, Role::Norm),
                vector(&blk("attn_k_norm.weight"), self.head_dim, Role::Norm),
            ]),
            _ => {}
        }
    }

    /// The hyper-parameters, under the keys that both loaders read.
    pub fn put_metadata(&self, writer: &mut GgufWriter) {
        let key = |name: &str| format!("{}.{name}", self.architecture);
        let head_dim = self.head_dim as u32;
        writer.metadata("general.architecture", self.architecture);
        writer.metadata("general.name", format!("{} with random weights", self.name).as_str());
        for (name, value) in [
            ("block_count", self.n_layers as u32),
            ("context_length", self.context_len),
            ("embedding_length", self.hidden_dim as u32),
            ("feed_forward_length", self.ffn_dim as u32),
            ("attention.head_count", self.n_heads as u32),
            ("attention.head_count_kv", self.n_kv_heads as u32),
            ("attention.key_length", head_dim),
            ("attention.value_length", head_dim),
            ("rope.dimension_count", head_dim),
            ("vocab_size", self.vocab_size as u32),
        ] {
            writer.metadata(&key(name), value);
        }
        writer.metadata(&key("attention.layer_norm_rms_epsilon"), 1.0 / self.norm_eps_inv as f32);
        writer.metadata(&key("rope.freq_base"), self.rope_theta as f32);
    }

    /// The Llama 3.2 rule in GGUF's form: one divisor per frequency (factor 32, original context 8192, low and high
    /// frequency factors 1 and 4).
    pub fn rope_factors(&self) -> Vec<f32> {
        const FACTOR: f64 = 32.0;
        const ORIGINAL_CONTEXT_LEN: f64 = 8192.0;
        const LOW_FREQ_FACTOR: f64 = 1.0;
        const HIGH_FREQ_FACTOR: f64 = 4.0;
        let divisor = |i: u64| {
            let exponent = (2 * i) as f64 / self.head_dim as f64;
            let wavelength = 2.0 * std::f64::consts::PI * f64::from(self.rope_theta).powf(exponent);
            let turns = ORIGINAL_CONTEXT_LEN / wavelength;
            let kept = ((turns - LOW_FREQ_FACTOR) / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR)).clamp(0.0, 1.0);
            (1.0 / ((1.0 - kept) / FACTOR + kept)) as f32
        };
        (0..self.head_dim / 2).map(divisor).collect()
    }
}

fn matrix(name: &str, n_rows: u64, n_cols: u64, role: Role) -> Tensor {
    Tensor { name: format!("{name}.weight"), dims: vec![n_cols, n_rows], role }
}

fn vector(name: &str, len: u64, role: Role) -> Tensor {
    Tensor { name: name.to_owned(), dims: vec![len], role }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_those_of_the_published_models() {
        let n_params = |name| -> u64 {
            let tensors = Shape::parse(name).unwrap().tensors();
            tensors
                .iter()
                .filter(|t| t.role != Role::RopeFactors)
                .map(|t| t.dims.iter().product::<u64>())
                .sum()
        };
        // The counts of the model cards.
        assert_eq!(n_params("Qwen2.5-0.5B"), 494_032_768);
        assert_eq!(n_params("qwen2.5-1.5b"), 1_543_714_304);
        assert_eq!(n_params("llama-3.2-1b"), 1_235_814_400);
        assert_eq!(n_params("qwen3-1.7b"), 1_720_574_976);
        assert_eq!(n_params("qwen3-8b"), 8_190_735_360);
        assert!(Shape::parse("qwen4").unwrap_err().contains("qwen3-1.7b"));
    }

    #[test]
    fn rope_factors_are_those_of_the_published_file() {
        let factors = Shape::parse("llama-3.2-1b").unwrap().rope_factors();
        assert_eq!(factors.len(), 32);
        assert_eq!((factors[0], factors[31]), (1.0, 32.0));
        assert!(factors.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}
