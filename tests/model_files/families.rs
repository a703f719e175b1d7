//! A small `config.json` of every model type.

use std::fs;
use std::path::Path;

use refrain::internals::model::arch::parse_config;
use serde_json::{Map, Value, json};

/// The configurations by name: those of all golden models and of the golden EAGLE-3 head, and one for each further model type that is read.
pub fn configs() -> Vec<(String, Value)> {
    let goldens = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let folders = fs::read_dir(goldens).expect("the golden models").map(|entry| entry.unwrap().path());
    let mut configs: Vec<(String, Value)> = folders
        .flat_map(|folder| [folder.join("eagle3"), folder])
        .filter_map(|folder| {
            let text = fs::read_to_string(folder.join("config.json")).ok()?;
            let name = folder.file_name().unwrap().to_str().expect("a name in ASCII").to_owned();
            let config: Value = serde_json::from_str(&text).unwrap();
            // Tokenizers have configurations of their own.
            config.get("model_type").is_some().then_some((name, config))
        })
        .collect();
    for (name, fields) in further() {
        let mut config = json!({
            "model_type": name,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "vocab_size": 262,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": false,
        });
        for (field, value) in fields {
            config[field] = value;
        }
        parse_config(&config.to_string(), name).unwrap_or_else(|error| panic!("{error}"));
        configs.push((format!("tiny-{name}"), config));
    }
    configs.sort_by(|a, b| a.0.cmp(&b.0));
    configs
}

/// Model types with the fields in which they differ from a plain one.
fn further() -> Vec<(&'static str, Map<String, Value>)> {
    let fields = |value: Value| value.as_object().expect("fields").clone();
    vec![
        (
            "llama",
            fields(json!({"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 64}, "attention_bias": true})),
        ),
        ("mistral", fields(json!({"sliding_window": 16}))),
        (
            "ministral",
            fields(json!({"sliding_window": 16, "layer_types":
            ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]})),
        ),
        (
            "qwen2",
            fields(json!({"use_sliding_window": true, "sliding_window": 16, "max_window_layers": 2,
            "rope_scaling": {"type": "dynamic", "factor": 4.0}})),
        ),
        (
            "qwen3",
            fields(
                json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 32, "attention_factor": 1.1, "truncate": false}}),
            ),
        ),
        (
            "gemma3_text",
            fields(json!({"sliding_window": 16, "sliding_window_pattern": 2, "query_pre_attn_scalar": 8,
            "rope_local_base_freq": 10000.0, "hidden_activation": "gelu_pytorch_tanh",
            "final_logit_softcapping": 30.0, "attn_logit_softcapping": 50.0})),
        ),
        (
            "gemma3",
            fields(
                json!({"text_config": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}}}),
            ),
        ),
        (
            "granite",
            fields(
                json!({"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.1,
            "logits_scaling": 8.0}),
            ),
        ),
        (
            "minicpm",
            fields(json!({"scale_emb": 12, "scale_depth": 1.4, "dim_model_base": 16, "rope_scaling":
            {"rope_type": "longrope", "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 3.0, 4.0],
                "original_max_position_embeddings": 64}})),
        ),
        (
            "mistral3",
            fields(
                json!({"text_config": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
            "head_dim": 8, "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "mscale": 1.0,
                "mscale_all_dim": 1.0, "original_max_position_embeddings": 64, "llama_4_scaling_beta": 0.1}}}),
            ),
        ),
        ("ministral3", fields(json!({"sliding_window": 16}))),
        ("olmo2", fields(json!({"hidden_act": "silu"}))),
        (
            "olmo3",
            fields(json!({"sliding_window": 16, "layer_types":
            ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"], "rope_parameters":
            {"full_attention": {"rope_type": "yarn", "rope_theta": 5e5, "factor": 8.0,
                "original_max_position_embeddings": 64},
                "sliding_attention": {"rope_type": "default", "rope_theta": 5e5}}})),
        ),
        (
            "phi3",
            fields(
                json!({"partial_rotary_factor": 0.5, "original_max_position_embeddings": 64, "sliding_window": 16,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0, 1.1], "long_factor": [1.0, 4.0]}}),
            ),
        ),
        (
            "smollm3",
            fields(json!({"no_rope_layers": [1, 1, 1, 0], "use_sliding_window": true, "sliding_window": 16})),
        ),
    ]
}
