//! The tensors and the metadata that follow from a model's dimensions.

use refrain::internals::model::gguf::GgufWriter;

/// A model with known dimensions.
#[derive(Clone, Copy, PartialEq, Debug)]
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
    /// Rotated elements of a head.
    pub rotary_dim: u64,
    pub ffn_dim: u64,
    pub vocab_size: u64,
    pub context_len: u32,
    pub rope_theta: u32,
    /// RMS norms add `1 / norm_eps_inv`.
    pub norm_eps_inv: u32,
    /// Whether the output matrix is the embedding.
    pub tied: bool,
    /// Whether the file has divisors of the rotary frequencies, by the rule of Llama 3.2.
    pub rope_factors: bool,
    /// Whether queries, keys and values have biases.
    pub qkv_bias: bool,
    /// Whether each head's queries and keys are normed.
    pub head_norms: bool,
    /// Whether the query matrix has as many rows again for a gate.
    pub query_gate: bool,
    /// Whether norms follow attention and the feed-forward part.
    pub post_norms: bool,
    /// GGUF's name of the norm before the feed-forward part.
    pub ffn_norm: &'static str,
    /// GGUF's name of the last norm.
    pub output_norm: &'static str,
    /// The model divides its logits by this.
    pub logit_divisor: u32,
    /// The layers without attention.
    pub recurrent: Option<Recurrent>,
    /// The experts of every layer, instead of one feed-forward part.
    pub experts: Option<Experts>,
    /// Further metadata of the family.
    pub more: &'static [(&'static str, Value)],
}

/// Recurrent layers.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Recurrent {
    pub mixer: Mixer,
    /// The other layers.
    pub attention_layers: &'static [u64],
}

/// A recurrent mixer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Mixer {
    /// A gated short convolution of the residual stream's width.
    ShortConv { conv_len: u64 },
    /// The gated delta rule, with as many heads of keys as of values, all of one size.
    DeltaNet { n_heads: u64, head_dim: u64, conv_len: u64 },
    /// Mamba-2 with one group.
    Mamba2 { n_heads: u64, head_dim: u64, state_dim: u64, conv_len: u64 },
}

/// Experts of a layer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Experts {
    pub n_experts: u64,
    /// Experts of a row.
    pub n_used: u64,
    pub ffn_dim: u64,
}

/// A value of the metadata.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Value {
    Count(u32),
    Number(f32),
    Flag(bool),
    Integers(&'static [i32]),
}

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
    /// Norm weights and other factors around 1.
    Norm,
    /// Biases, around 0.
    Bias,
    /// Divisors of the rotary frequencies.
    RopeFactors,
    /// Number `idx` of `of` matrices of a kind that mixes may give more bits in some layers: value projections, and second
    /// feed-forward matrices.
    Important { idx: u64, of: u64 },
    /// Any other matrix.
    Matrix,
    /// The scores of the experts.
    Router,
    /// The taps of a short convolution.
    Conv,
    /// The negative rates of decay of a recurrent state.
    Decay,
    /// The biases of the time steps of a recurrent state, before the softplus.
    StepBias,
}

impl Shape {
    /// The mixer of a layer, if the layer is recurrent.
    fn mixer(&self, layer_idx: u64) -> Option<Mixer> {
        let recurrent = self.recurrent.filter(|recurrent| !recurrent.attention_layers.contains(&layer_idx));
        recurrent.map(|recurrent| recurrent.mixer)
    }

    /// All tensors, in the order of the file.
    pub fn tensors(&self) -> Vec<Tensor> {
        let mut tensors = vec![
            matrix("token_embd", self.vocab_size, self.hidden_dim, Role::Head),
            vector(&format!("{}.weight", self.output_norm), self.hidden_dim, Role::Norm),
        ];
        if !self.tied {
            tensors.push(matrix("output", self.vocab_size, self.hidden_dim, Role::Head));
        }
        if self.rope_factors {
            tensors.push(vector("rope_freqs.weight", self.head_dim / 2, Role::RopeFactors));
        }
        (0..self.n_layers).for_each(|layer_idx| self.push_layer(layer_idx, &mut tensors));
        tensors
    }

    fn push_layer(&self, layer_idx: u64, tensors: &mut Vec<Tensor>) {
        let blk = |part: &str| format!("blk.{layer_idx}.{part}");
        let norm = |part: &str| vector(&blk(&format!("{part}.weight")), self.hidden_dim, Role::Norm);
        tensors.push(norm("attn_norm"));
        match self.mixer(layer_idx) {
            None => self.push_attention(layer_idx, tensors),
            Some(mixer) => self.push_mixer(mixer, layer_idx, tensors),
        }
        if self.post_norms {
            tensors.push(norm("post_attention_norm"));
        }
        tensors.push(norm(self.ffn_norm));
        let down = Role::Important { idx: layer_idx, of: self.n_layers };
        match self.experts {
            None => tensors.extend([
                matrix(&blk("ffn_gate"), self.ffn_dim, self.hidden_dim, Role::Matrix),
                matrix(&blk("ffn_up"), self.ffn_dim, self.hidden_dim, Role::Matrix),
                matrix(&blk("ffn_down"), self.hidden_dim, self.ffn_dim, down),
            ]),
            Some(Experts { n_experts, ffn_dim, .. }) => tensors.extend([
                matrix(&blk("ffn_gate_inp"), n_experts, self.hidden_dim, Role::Router),
                matrix(&blk("ffn_gate_exps"), ffn_dim, self.hidden_dim, Role::Matrix).stacked(n_experts),
                matrix(&blk("ffn_up_exps"), ffn_dim, self.hidden_dim, Role::Matrix).stacked(n_experts),
                matrix(&blk("ffn_down_exps"), self.hidden_dim, ffn_dim, down).stacked(n_experts),
            ]),
        }
        if self.post_norms {
            tensors.push(norm("post_ffw_norm"));
        }
    }

    fn push_attention(&self, layer_idx: u64, tensors: &mut Vec<Tensor>) {
        let (q_dim, kv_dim) = (self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim);
        let q_rows = if self.query_gate { 2 * q_dim } else { q_dim };
        let blk = |part: &str| format!("blk.{layer_idx}.{part}");
        tensors.extend([
            matrix(&blk("attn_q"), q_rows, self.hidden_dim, Role::Matrix),
            matrix(&blk("attn_k"), kv_dim, self.hidden_dim, Role::Matrix),
            matrix(&blk("attn_v"), kv_dim, self.hidden_dim, self.value_role(layer_idx)),
            matrix(&blk("attn_output"), self.hidden_dim, q_dim, Role::Matrix),
        ]);
        if self.qkv_bias {
            tensors.extend([
                vector(&blk("attn_q.bias"), q_dim, Role::Bias),
                vector(&blk("attn_k.bias"), kv_dim, Role::Bias),
                vector(&blk("attn_v.bias"), kv_dim, Role::Bias),
            ]);
        }
        if self.head_norms {
            tensors.extend([
                vector(&blk("attn_q_norm.weight"), self.head_dim, Role::Norm),
                vector(&blk("attn_k_norm.weight"), self.head_dim, Role::Norm),
            ]);
        }
    }

    fn push_mixer(&self, mixer: Mixer, layer_idx: u64, tensors: &mut Vec<Tensor>) {
        let hidden_dim = self.hidden_dim;
        let blk = |part: &str| format!("blk.{layer_idx}.{part}");
        match mixer {
            Mixer::ShortConv { conv_len } => tensors.extend([
                matrix(&blk("shortconv.in_proj"), 3 * hidden_dim, hidden_dim, Role::Matrix),
                matrix(&blk("shortconv.conv"), hidden_dim, conv_len, Role::Conv),
                matrix(&blk("shortconv.out_proj"), hidden_dim, hidden_dim, Role::Matrix),
            ]),
            Mixer::DeltaNet { n_heads, head_dim, conv_len } => {
                let inner = n_heads * head_dim;
                tensors.extend([
                    matrix(&blk("attn_qkv"), 3 * inner, hidden_dim, self.value_role(layer_idx)),
                    matrix(&blk("attn_gate"), inner, hidden_dim, Role::Matrix),
                    matrix(&blk("ssm_conv1d"), 3 * inner, conv_len, Role::Conv),
                    vector(&blk("ssm_dt.bias"), n_heads, Role::StepBias),
                    vector(&blk("ssm_a"), n_heads, Role::Decay),
                    matrix(&blk("ssm_beta"), n_heads, hidden_dim, Role::Matrix),
                    matrix(&blk("ssm_alpha"), n_heads, hidden_dim, Role::Matrix),
                    vector(&blk("ssm_norm.weight"), head_dim, Role::Norm),
                    matrix(&blk("ssm_out"), hidden_dim, inner, Role::Matrix),
                ]);
            }
            Mixer::Mamba2 { n_heads, head_dim, state_dim, conv_len } => {
                let inner = n_heads * head_dim;
                let conv_dim = inner + 2 * state_dim;
                let of_heads = |part: &str, role| Tensor { name: blk(part), dims: vec![1, n_heads], role };
                tensors.extend([
                    matrix(&blk("ssm_in"), inner + conv_dim + n_heads, hidden_dim, Role::Matrix),
                    matrix(&blk("ssm_conv1d"), conv_dim, conv_len, Role::Conv),
                    vector(&blk("ssm_conv1d.bias"), conv_dim, Role::Bias),
                    vector(&blk("ssm_dt.bias"), n_heads, Role::StepBias),
                    of_heads("ssm_a", Role::Decay),
                    of_heads("ssm_d", Role::Norm),
                    matrix(&blk("ssm_norm"), 1, inner, Role::Norm),
                    matrix(&blk("ssm_out"), hidden_dim, inner, Role::Matrix),
                ]);
            }
        }
    }

    /// The role of a layer's value projection. The fused projection of the delta rule is one; other recurrent layers have none.
    fn value_role(&self, layer_idx: u64) -> Role {
        let has_values =
            |&layer_idx: &u64| matches!(self.mixer(layer_idx), None | Some(Mixer::DeltaNet { .. }));
        let count = |layers: std::ops::Range<u64>| layers.filter(has_values).count() as u64;
        Role::Important { idx: count(0..layer_idx), of: count(0..self.n_layers) }
    }

    /// The hyper-parameters, under the keys that both loaders read.
    pub fn put_metadata(&self, writer: &mut GgufWriter) {
        let key = |name: &str| format!("{}.{name}", self.architecture);
        let head_dim = self.head_dim as u32;
        writer.metadata("general.architecture", self.architecture);
        writer.metadata("general.name", format!("{} with random weights", self.name).as_str());
        let mut counts = vec![
            ("block_count", self.n_layers as u32),
            ("context_length", self.context_len),
            ("embedding_length", self.hidden_dim as u32),
            ("feed_forward_length", self.ffn_dim as u32),
            ("attention.head_count", self.n_heads as u32),
            ("attention.key_length", head_dim),
            ("attention.value_length", head_dim),
            ("rope.dimension_count", self.rotary_dim as u32),
            ("vocab_size", self.vocab_size as u32),
        ];
        if let Some(Experts { n_experts, n_used, ffn_dim }) = self.experts {
            counts.extend([
                ("expert_count", n_experts as u32),
                ("expert_used_count", n_used as u32),
                ("expert_feed_forward_length", ffn_dim as u32),
            ]);
        }
        counts.extend(self.recurrent.iter().flat_map(|recurrent| recurrent.mixer.counts()));
        counts.into_iter().for_each(|(name, count)| _ = writer.metadata(&key(name), count));
        writer.metadata(&key("attention.layer_norm_rms_epsilon"), 1.0 / self.norm_eps_inv as f32);
        writer.metadata(&key("rope.freq_base"), self.rope_theta as f32);
        let is_recurrent: Vec<bool> = (0..self.n_layers).map(|i| self.mixer(i).is_some()).collect();
        let n_kv_heads = self.n_kv_heads as u32;
        match self.recurrent.map(|recurrent| recurrent.mixer) {
            // No KV heads mark a recurrent layer.
            Some(Mixer::ShortConv { .. } | Mixer::Mamba2 { .. }) => {
                let by_layer =
                    is_recurrent.into_iter().map(|recurrent| if recurrent { 0 } else { n_kv_heads });
                writer.metadata(&key("attention.head_count_kv"), by_layer.collect::<Vec<u32>>());
            }
            Some(Mixer::DeltaNet { .. }) => {
                writer.metadata(&key("attention.head_count_kv"), n_kv_heads);
                writer.metadata(&key("attention.recurrent_layers"), is_recurrent);
            }
            None => _ = writer.metadata(&key("attention.head_count_kv"), n_kv_heads),
        }
        for (name, value) in self.more {
            match *value {
                Value::Count(count) => writer.metadata(&key(name), count),
                Value::Number(number) => writer.metadata(&key(name), number),
                Value::Flag(flag) => writer.metadata(&key(name), flag),
                Value::Integers(integers) => writer.metadata(&key(name), integers.to_vec()),
            };
        }
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

impl Mixer {
    fn counts(self) -> Vec<(&'static str, u32)> {
        let (conv_len, [state, n_groups, n_heads, inner]) = match self {
            Mixer::ShortConv { conv_len } => return vec![("shortconv.l_cache", conv_len as u32)],
            Mixer::DeltaNet { n_heads, head_dim, conv_len } => {
                (conv_len, [head_dim, n_heads, n_heads, n_heads * head_dim])
            }
            Mixer::Mamba2 { n_heads, head_dim, state_dim, conv_len } => {
                (conv_len, [state_dim, 1, n_heads, n_heads * head_dim])
            }
        };
        vec![
            ("ssm.conv_kernel", conv_len as u32),
            ("ssm.state_size", state as u32),
            ("ssm.group_count", n_groups as u32),
            ("ssm.time_step_rank", n_heads as u32),
            ("ssm.inner_size", inner as u32),
        ]
    }
}

impl Tensor {
    /// As many of this matrix, behind each other.
    fn stacked(mut self, n_matrices: u64) -> Self {
        self.dims.push(n_matrices);
        self
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
        assert_eq!(n_params("qwen3-30b-a3b"), 30_532_122_624);
        assert_eq!(n_params("gemma-3-1b"), 999_885_952);
        assert_eq!(n_params("lfm2-1.2b"), 1_170_340_608);
        // The cards give these two in billions only: 0.75 for the text part, and 1.5.
        assert_eq!(n_params("qwen3.5-0.8b"), 752_393_024);
        assert_eq!(n_params("granite-4.0-h-1b"), 1_461_538_368);
        assert!(Shape::parse("qwen4").unwrap_err().contains("qwen3-1.7b"));
    }

    #[test]
    fn value_projections_are_counted_where_there_are_some() {
        let role = |name: &str, tensor: &str| {
            let tensors = Shape::parse(name).unwrap().tensors();
            tensors.into_iter().find(|t| t.name == tensor).map(|t| t.role)
        };
        assert_eq!(role("lfm2-1.2b", "blk.8.attn_v.weight"), Some(Role::Important { idx: 2, of: 6 }));
        assert_eq!(role("qwen3.5-0.8b", "blk.8.attn_qkv.weight"), Some(Role::Important { idx: 8, of: 24 }));
        assert_eq!(role("qwen3.5-0.8b", "blk.11.attn_v.weight"), Some(Role::Important { idx: 11, of: 24 }));
        assert_eq!(role("granite-4.0-h-1b", "blk.8.attn_v.weight"), None);
    }

    #[test]
    fn rope_factors_are_those_of_the_published_file() {
        let factors = Shape::parse("llama-3.2-1b").unwrap().rope_factors();
        assert_eq!(factors.len(), 32);
        assert_eq!((factors[0], factors[31]), (1.0, 32.0));
        assert!(factors.windows(2).all(|pair| pair[0] <= pair[1]));
    }
}
