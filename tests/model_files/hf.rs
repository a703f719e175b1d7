//! Small Hugging Face folders.

use std::path::Path;

use refrain::checkpoint::Checkpoint;
use serde_json::{Value, json};

/// The content of a folder; tests change it before they write it.
#[derive(Clone)]
pub struct HfModel {
    pub config: Value,
    pub tensors: Vec<HfTensor>,
}

#[derive(Clone)]
pub struct HfTensor {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<u64>,
}

impl HfModel {
    /// A one-layer model of the named type: everything that `open` requires except the tokenizer.
    pub fn tiny(model_type: &str) -> Self {
        let config = json!({
            "model_type": model_type,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "vocab_size": 262,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": false,
        });
        let mut model = Self { config, tensors: Vec::new() };
        for (name, shape) in [
            ("model.embed_tokens.weight", vec![262, 32]),
            ("model.norm.weight", vec![32]),
            ("lm_head.weight", vec![262, 32]),
            ("model.layers.0.input_layernorm.weight", vec![32]),
            ("model.layers.0.self_attn.q_proj.weight", vec![32, 32]),
            ("model.layers.0.self_attn.k_proj.weight", vec![16, 32]),
            ("model.layers.0.self_attn.v_proj.weight", vec![16, 32]),
            ("model.layers.0.self_attn.o_proj.weight", vec![32, 32]),
            ("model.layers.0.post_attention_layernorm.weight", vec![32]),
            ("model.layers.0.mlp.gate_proj.weight", vec![64, 32]),
            ("model.layers.0.mlp.up_proj.weight", vec![64, 32]),
            ("model.layers.0.mlp.down_proj.weight", vec![32, 64]),
        ] {
            model.add(name, "BF16", &shape);
        }
        if model_type == "qwen2" {
            for (name, len) in [("q", 32), ("k", 16), ("v", 16)] {
                model.add(&format!("model.layers.0.self_attn.{name}_proj.bias"), "BF16", &[len]);
            }
        }
        if model_type == "qwen3_moe" {
            model.set_experts(4, 2, 16);
        }
        if model_type == "gpt_oss" {
            model.set_gpt_oss();
        }
        if model_type.starts_with("qwen3") {
            for name in ["q", "k"] {
                model.add(&format!("model.layers.0.self_attn.{name}_norm.weight"), "BF16", &[8]);
            }
        }
        model
    }

    /// Replaces the feed-forward part by so many experts, as qwen3_moe folders have them.
    fn set_experts(&mut self, n_experts: u64, n_used: u64, ffn_dim: u64) {
        self.tensors.retain(|tensor| !tensor.name.contains(".mlp."));
        self.add("model.layers.0.mlp.gate.weight", "BF16", &[n_experts, 32]);
        for expert in 0..n_experts {
            let name = |matrix: &str| format!("model.layers.0.mlp.experts.{expert}.{matrix}_proj.weight");
            self.add(&name("gate"), "BF16", &[ffn_dim, 32]);
            self.add(&name("up"), "BF16", &[ffn_dim, 32]);
            self.add(&name("down"), "BF16", &[32, ffn_dim]);
        }
        self.config["num_experts"] = n_experts.into();
        self.config["num_experts_per_tok"] = n_used.into();
        self.config["moe_intermediate_size"] = ffn_dim.into();
        self.config["norm_topk_prob"] = true.into();
    }

    /// Four experts in MXFP4, biases and sinks.
    fn set_gpt_oss(&mut self) {
        self.tensors.retain(|tensor| !tensor.name.contains(".mlp."));
        let attention = [("q_proj.bias", 32), ("k_proj.bias", 16), ("v_proj.bias", 16), ("o_proj.bias", 32)];
        for (name, len) in attention.into_iter().chain([("sinks", 4)]) {
            self.add(&format!("model.layers.0.self_attn.{name}"), "BF16", &[len]);
        }
        for (name, dtype, shape) in [
            ("router.weight", "BF16", &[4, 32][..]),
            ("router.bias", "BF16", &[4]),
            ("experts.gate_up_proj_blocks", "U8", &[4, 64, 1, 16]),
            ("experts.gate_up_proj_scales", "U8", &[4, 64, 1]),
            ("experts.gate_up_proj_bias", "BF16", &[4, 64]),
            ("experts.down_proj_blocks", "U8", &[4, 32, 1, 16]),
            ("experts.down_proj_scales", "U8", &[4, 32, 1]),
            ("experts.down_proj_bias", "BF16", &[4, 32]),
        ] {
            self.add(&format!("model.layers.0.mlp.{name}"), dtype, shape);
        }
        self.config["num_local_experts"] = 4.into();
        self.config["num_experts_per_tok"] = 2.into();
        self.config["intermediate_size"] = 32.into();
        self.config["quantization_config"] = json!({"quant_method": "mxfp4"});
    }

    pub fn add(&mut self, name: &str, dtype: &'static str, shape: &[u64]) -> &mut Self {
        self.tensors.push(HfTensor { name: name.to_owned(), dtype, shape: shape.to_vec() });
        self
    }

    pub fn remove(&mut self, name: &str) -> &mut Self {
        self.tensors.retain(|t| t.name != name);
        self
    }

    pub fn set_vocab_size(&mut self, vocab_size: u64) -> &mut Self {
        self.config["vocab_size"] = vocab_size.into();
        for name in ["model.embed_tokens.weight", "lm_head.weight"] {
            self.tensor(name).shape[0] = vocab_size;
        }
        self
    }

    pub fn tensor(&mut self, name: &str) -> &mut HfTensor {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap()
    }

    /// Writes `config.json` and `model.safetensors`.
    pub fn write(&self, dir: &Path) {
        std::fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
        std::fs::write(dir.join("model.safetensors"), safetensors_bytes(&self.tensors)).unwrap();
    }

    /// Writes `config.json`, one shard per tensor, and the index, which `change` may alter.
    pub fn write_sharded(&self, dir: &Path, change: impl Fn(&mut Value)) {
        std::fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
        let mut index = json!({"metadata": {"total_size": 0}, "weight_map": {}});
        for (i, tensor) in self.tensors.iter().enumerate() {
            let shard = format!("model-{:05}-of-{:05}.safetensors", i + 1, self.tensors.len());
            std::fs::write(dir.join(&shard), safetensors_bytes(std::slice::from_ref(tensor))).unwrap();
            index["weight_map"][&tensor.name] = shard.into();
        }
        change(&mut index);
        std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }
}

/// A `.safetensors` file of these tensors with random-looking data.
pub fn safetensors_bytes(tensors: &[HfTensor]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for tensor in tensors {
        let bytes = match tensor.dtype {
            "F32" | "I32" => 4,
            "F8_E4M3" | "U8" | "I8" => 1,
            _ => 2,
        };
        let begin = end;
        end += tensor.shape.iter().product::<u64>() * bytes;
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [begin, end]});
        header.insert(tensor.name.clone(), entry);
    }
    let mut bytes = with_header(&Value::Object(header).to_string(), 0);
    bytes.extend((0..end).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as u8));
    bytes
}

/// A file with this text as its header and `data_len` zero bytes of data.
pub fn with_header(header: &str, data_len: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data_len, 0);
    bytes
}

/// A byte-level `tokenizer.json` with the merges `a b` and `ab c` and three control tokens.
pub fn tokenizer_json() -> Value {
    let mut vocab = serde_json::Map::new();
    for (id, c) in super::byte_alphabet().into_iter().enumerate() {
        vocab.insert(c.to_string(), id.into());
    }
    vocab.insert("ab".to_owned(), 256.into());
    vocab.insert("abc".to_owned(), 257.into());
    let added = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    };
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [added(258, "<|endoftext|>"), added(259, "<|im_start|>"), added(260, "<|im_end|>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": false,
            "vocab": vocab,
            "merges": [["a", "b"], ["ab", "c"]],
        },
    })
}

/// A tiny folder with the tiny tokenizer and these further files, and the checkpoint in it.
pub fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    HfModel::tiny("llama").set_vocab_size(320).write(dir.path());
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer_json().to_string()).unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    (dir, checkpoint)
}
