//! The dimensions of published models, from their `config.json`.

use super::shape::{Experts, Mixer, Recurrent, Shape, Value};

/// What most families have in common; the dimensions are empty.
const LLAMA_LIKE: Shape = Shape {
    name: "",
    architecture: "llama",
    n_layers: 0,
    hidden_dim: 0,
    n_heads: 0,
    n_kv_heads: 0,
    head_dim: 0,
    rotary_dim: 0,
    ffn_dim: 0,
    vocab_size: 0,
    context_len: 0,
    rope_theta: 10_000,
    norm_eps_inv: 1_000_000,
    tied: true,
    rope_factors: false,
    qkv_bias: false,
    head_norms: false,
    query_gate: false,
    post_norms: false,
    ffn_norm: "ffn_norm",
    output_norm: "output_norm",
    logit_divisor: 1,
    recurrent: None,
    experts: None,
    more: &[],
};

const QWEN2: Shape = Shape {
    architecture: "qwen2",
    vocab_size: 151_936,
    context_len: 32_768,
    rope_theta: 1_000_000,
    qkv_bias: true,
    ..LLAMA_LIKE
};

const QWEN3: Shape = Shape {
    architecture: "qwen3",
    vocab_size: 151_936,
    context_len: 40_960,
    rope_theta: 1_000_000,
    head_norms: true,
    ..LLAMA_LIKE
};

impl Shape {
    /// The shape with this name, as a command-line argument.
    pub fn parse(name: &str) -> Result<Self, String> {
        let found = SHAPES.iter().find(|shape| shape.name.eq_ignore_ascii_case(name));
        let names: Vec<&str> = SHAPES.iter().map(|shape| shape.name).collect();
        found.copied().ok_or_else(|| format!("no such shape; there are: {}", names.join(", ")))
    }
}

/// All shapes.
pub const SHAPES: [Shape; 10] = [
    Shape {
        name: "qwen2.5-0.5b",
        n_layers: 24,
        hidden_dim: 896,
        n_heads: 14,
        n_kv_heads: 2,
        head_dim: 64,
        rotary_dim: 64,
        ffn_dim: 4864,
        ..QWEN2
    },
    Shape {
        name: "qwen2.5-1.5b",
        n_layers: 28,
        hidden_dim: 1536,
        n_heads: 12,
        n_kv_heads: 2,
        head_dim: 128,
        rotary_dim: 128,
        ffn_dim: 8960,
        ..QWEN2
    },
    Shape {
        name: "llama-3.2-1b",
        n_layers: 16,
        hidden_dim: 2048,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 64,
        rotary_dim: 64,
        ffn_dim: 8192,
        vocab_size: 128_256,
        context_len: 131_072,
        rope_theta: 500_000,
        norm_eps_inv: 100_000,
        rope_factors: true,
        ..LLAMA_LIKE
    },
    Shape {
        name: "qwen3-1.7b",
        n_layers: 28,
        hidden_dim: 2048,
        n_heads: 16,
        n_kv_heads: 8,
        head_dim: 128,
        rotary_dim: 128,
        ffn_dim: 6144,
        ..QWEN3
    },
    Shape {
        name: "qwen3-8b",
        n_layers: 36,
        hidden_dim: 4096,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 128,
        rotary_dim: 128,
        ffn_dim: 12_288,
        tied: false,
        ..QWEN3
    },
    Shape {
        name: "qwen3-30b-a3b",
        architecture: "qwen3moe",
        n_layers: 48,
        hidden_dim: 2048,
        n_heads: 32,
        n_kv_heads: 4,
        head_dim: 128,
        rotary_dim: 128,
        ffn_dim: 6144,
        tied: false,
        experts: Some(Experts { n_experts: 128, n_used: 8, ffn_dim: 768 }),
        ..QWEN3
    },
    // Every sixth layer sees everything, which is what both loaders assume; the others have the window and a rotation of
    // their own.
    Shape {
        name: "gemma-3-1b",
        architecture: "gemma3",
        n_layers: 26,
        hidden_dim: 1152,
        n_heads: 4,
        n_kv_heads: 1,
        head_dim: 256,
        rotary_dim: 256,
        ffn_dim: 6912,
        vocab_size: 262_144,
        context_len: 32_768,
        rope_theta: 1_000_000,
        head_norms: true,
        post_norms: true,
        more: &[
            ("attention.sliding_window", Value::Count(512)),
            ("rope.freq_base_swa", Value::Number(10_000.0)),
        ],
        ..LLAMA_LIKE
    },
    Shape {
        name: "lfm2-1.2b",
        architecture: "lfm2",
        n_layers: 16,
        hidden_dim: 2048,
        n_heads: 32,
        n_kv_heads: 8,
        head_dim: 64,
        rotary_dim: 64,
        ffn_dim: 8192,
        vocab_size: 65_536,
        context_len: 128_000,
        rope_theta: 1_000_000,
        norm_eps_inv: 100_000,
        head_norms: true,
        output_norm: "token_embd_norm",
        recurrent: Some(Recurrent {
            mixer: Mixer::ShortConv { conv_len: 3 },
            attention_layers: &[2, 5, 8, 10, 12, 14],
        }),
        ..LLAMA_LIKE
    },
    // The text part, without the block that predicts further tokens.
    Shape {
        name: "qwen3.5-0.8b",
        architecture: "qwen35",
        n_layers: 24,
        hidden_dim: 1024,
        n_heads: 8,
        n_kv_heads: 2,
        head_dim: 256,
        rotary_dim: 64,
        ffn_dim: 3584,
        vocab_size: 248_320,
        context_len: 262_144,
        rope_theta: 10_000_000,
        query_gate: true,
        ffn_norm: "post_attention_norm",
        recurrent: Some(Recurrent {
            mixer: Mixer::DeltaNet { n_heads: 16, head_dim: 128, conv_len: 4 },
            attention_layers: &[3, 7, 11, 15, 19, 23],
        }),
        more: &[("rope.dimension_sections", Value::Integers(&[11, 11, 10, 0]))],
        ..QWEN3
    },
    // No position embedding.
    Shape {
        name: "granite-4.0-h-1b",
        architecture: "granitehybrid",
        n_layers: 40,
        hidden_dim: 1536,
        n_heads: 12,
        n_kv_heads: 4,
        head_dim: 128,
        rotary_dim: 128,
        ffn_dim: 4096,
        vocab_size: 100_352,
        context_len: 131_072,
        norm_eps_inv: 100_000,
        logit_divisor: 6,
        recurrent: Some(Recurrent {
            mixer: Mixer::Mamba2 { n_heads: 48, head_dim: 64, state_dim: 128, conv_len: 4 },
            attention_layers: &[5, 15, 25, 35],
        }),
        more: &[
            ("rope.scaling.finetuned", Value::Flag(false)),
            ("attention.scale", Value::Number(1.0 / 128.0)),
            ("embedding_scale", Value::Number(12.0)),
            ("residual_scale", Value::Number(0.22)),
            ("logit_scale", Value::Number(6.0)),
        ],
        ..LLAMA_LIKE
    },
];
