//! Draft heads with random weights, so that their drafts are right by chance only.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this module")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use refrain::LoadError;
use refrain::checkpoint::Checkpoint;
use refrain::internals::kernels::{BlockType, quantize};
use refrain::internals::model::gguf::GgufFile;
use safetensors::serialize;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use crate::common::{Rng, fixtures};
use crate::model_files::{Gguf, golden};

pub fn target_file() -> PathBuf {
    fixtures().join("target.gguf")
}

/// The content of a GGUF file.
pub fn content(path: &Path) -> Gguf {
    let file = GgufFile::open(path).unwrap();
    let tensors = file
        .tensors()
        .iter()
        .map(|tensor| (tensor.name.clone(), tensor.ty, tensor.dims.clone(), file.read(tensor).unwrap()));
    Gguf { metadata: file.metadata().to_vec(), tensors: tensors.collect() }
}

/// The file of a head of the fixture target with random weights, so that its drafts are right by chance only. Embedding and output
/// matrix are the target's.
pub fn head_file() -> Gguf {
    let mut head = content(&target_file());
    head.tensors.clear();
    head.set("llama.block_count", 7u32)
        .set("llama.nextn_predict_layers", 1u32)
        .set("llama.vocab_size", 2048u32);
    let mut rng = Rng(3);
    for (name, n_cols, n_rows) in [
        ("nextn.eh_proj", 512, 256),
        ("nextn.enorm", 256, 1),
        ("nextn.hnorm", 256, 1),
        ("nextn.shared_head_norm", 256, 1),
        ("attn_norm", 256, 1),
        ("attn_q", 256, 256),
        ("attn_k", 256, 128),
        ("attn_v", 256, 128),
        ("attn_output", 256, 256),
        ("ffn_norm", 256, 1),
        ("ffn_gate", 256, 512),
        ("ffn_up", 256, 512),
        ("ffn_down", 512, 256),
    ] {
        let (ty, dims) = match n_rows {
            1 => (BlockType::F32, vec![n_cols as u64]),
            _ => (BlockType::Q8_0, vec![n_cols as u64, n_rows as u64]),
        };
        let values: Vec<f32> = (0..n_cols * n_rows).map(|_| 0.2 * rng.signed()).collect();
        let mut data = Vec::new();
        values.chunks_exact(n_cols).for_each(|row| quantize(ty, row, &mut data));
        head.tensors.push((format!("blk.6.{name}.weight"), ty.into(), dims, data));
    }
    head
}

pub fn random_head() -> Checkpoint {
    Checkpoint::mtp_from_gguf_bytes(head_file().bytes().into(), "head").unwrap()
}

/// The fixture target and its head in one file, as llama.cpp's converter writes them.
pub fn both() -> Gguf {
    let (mut file, head) = (content(&target_file()), head_file());
    file.metadata = head.metadata;
    file.tensors.extend(head.tensors);
    file
}

/// The golden Qwen3.5, and its random head in a folder of its own.
pub fn qwen() -> (Checkpoint, Checkpoint, tempfile::TempDir) {
    let (target, folder) = (golden("qwen3_5"), tempfile::tempdir().unwrap());
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        std::fs::copy(target.join(name), folder.path().join(name)).unwrap();
    }
    std::fs::copy(target.join("mtp.safetensors"), folder.path().join("model.safetensors")).unwrap();
    (Checkpoint::open(target).unwrap(), Checkpoint::open_mtp(folder.path()).unwrap(), folder)
}

/// The folder of an EAGLE-3 head with random weights; tests change it before they open it.
#[derive(Clone)]
pub struct Eagle3Folder {
    pub config: Value,
    pub tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Eagle3Folder {
    /// A head that can draft every third token, in the layout of its authors and of SpecForge.
    pub fn new(hidden: usize, vocab_size: usize) -> Self {
        let (n_heads, n_kv_heads, head_dim, ffn, n_draft) = (4, 2, 16, 96, vocab_size / 3);
        let config = json!({
            "architectures": ["LlamaForCausalLMEagle3"],
            "model_type": "llama",
            "hidden_size": hidden,
            "intermediate_size": ffn,
            "num_hidden_layers": 1,
            "num_attention_heads": n_heads,
            "num_key_value_heads": n_kv_heads,
            "head_dim": head_dim,
            "vocab_size": vocab_size,
            "draft_vocab_size": n_draft,
            "max_position_embeddings": 2048,
            "rms_norm_eps": 1e-6,
        });
        let mut folder = Self { config, tensors: BTreeMap::new() };
        for (name, shape) in [
            ("fc", vec![hidden, 3 * hidden]),
            ("norm", vec![hidden]),
            ("lm_head", vec![n_draft, hidden]),
            ("midlayer.hidden_norm", vec![hidden]),
            ("midlayer.input_layernorm", vec![hidden]),
            ("midlayer.self_attn.q_proj", vec![n_heads * head_dim, 2 * hidden]),
            ("midlayer.self_attn.k_proj", vec![n_kv_heads * head_dim, 2 * hidden]),
            ("midlayer.self_attn.v_proj", vec![n_kv_heads * head_dim, 2 * hidden]),
            ("midlayer.self_attn.o_proj", vec![hidden, n_heads * head_dim]),
            ("midlayer.post_attention_layernorm", vec![hidden]),
            ("midlayer.mlp.gate_proj", vec![ffn, hidden]),
            ("midlayer.mlp.up_proj", vec![ffn, hidden]),
            ("midlayer.mlp.down_proj", vec![hidden, ffn]),
        ] {
            folder.add(&format!("{name}.weight"), &shape);
        }
        let drafted: Vec<i64> = (0..n_draft as i64).map(|i| 3 * i + 1).collect();
        folder.set_drafted(&drafted);
        let is_drafted = (0..vocab_size).map(|token| u8::from(token % 3 == 1)).collect();
        folder.tensors.insert("t2d".to_owned(), (Dtype::BOOL, vec![vocab_size], is_drafted));
        folder
    }

    /// As vLLM's speculators write it, with an embedding.
    pub fn of_speculators(hidden: usize, vocab_size: usize) -> Self {
        let mut folder = Self::new(hidden, vocab_size);
        folder.add("embed_tokens.weight", &[vocab_size, hidden]);
        let renamed = std::mem::take(&mut folder.tensors).into_iter();
        folder.tensors = renamed.map(|(name, t)| (name.replace("midlayer.", "layers.0."), t)).collect();
        let draft_vocab_size = folder.config.as_object_mut().unwrap().remove("draft_vocab_size");
        folder.config = json!({
            "architectures": ["Eagle3Speculator"],
            "speculators_model_type": "eagle3",
            "draft_vocab_size": draft_vocab_size,
            "target_hidden_size": null,
            "transformer_layer_config": folder.config,
        });
        folder
    }

    pub fn add(&mut self, name: &str, shape: &[usize]) {
        let mut rng = Rng(name.len() as u64);
        let n: usize = shape.iter().product();
        let data = (0..n).flat_map(|_| (0.2 * rng.signed()).to_le_bytes()).collect();
        self.tensors.insert(name.to_owned(), (Dtype::F32, shape.to_vec(), data));
    }

    /// Sets the tokens of the draft vocabulary.
    pub fn set_drafted(&mut self, tokens: &[i64]) {
        let distances = tokens.iter().zip(0i64..).flat_map(|(token, i)| (token - i).to_le_bytes()).collect();
        self.tensors.insert("d2t".to_owned(), (Dtype::I64, vec![tokens.len()], distances));
    }

    pub fn open(&self) -> Result<Checkpoint, LoadError> {
        let folder = tempfile::tempdir().unwrap();
        let views: Vec<(String, TensorView<'_>)> = self
            .tensors
            .iter()
            .map(|(name, (dtype, shape, data))| {
                (name.clone(), TensorView::new(*dtype, shape.clone(), data).unwrap())
            })
            .collect();
        std::fs::write(folder.path().join("model.safetensors"), serialize(views, None).unwrap()).unwrap();
        std::fs::write(folder.path().join("config.json"), self.config.to_string()).unwrap();
        Checkpoint::open(folder.path())
    }
}

/// A head of the fixture target.
pub fn eagle3() -> Checkpoint {
    Eagle3Folder::new(256, 2048).open().unwrap()
}
