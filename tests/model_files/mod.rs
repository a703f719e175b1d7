//! Small models made in memory, and the golden models of `tests/golden`.
#![allow(dead_code, unreachable_pub)]

pub mod converted;
pub mod families;
pub mod hf;

use std::fmt::{Debug, Display};
use std::path::{Path, PathBuf};

use refrain::Quantize;
use refrain::checkpoint::Checkpoint;
use refrain::internals::kernels::BlockType;
use refrain::internals::model::gguf::{GgmlType, GgufValue, GgufWriter};
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use tempfile::TempDir;

/// The architectures with a golden model.
pub const GOLDEN: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// Those with experts.
pub const GOLDEN_EXPERTS: [&str; 3] = ["qwen3_moe", "gpt_oss", "lfm2_moe"];

/// The folder of a golden model: a Hugging Face checkpoint and `golden.safetensors`, written by `tools/make-goldens`.
pub fn golden(architecture: &str) -> PathBuf {
    // The tests of crates in `crates/` use this module too.
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = manifest.join("tests/golden").join(architecture);
    let path = if own.is_dir() { own } else { manifest.join("../../tests/golden").join(architecture) };
    assert!(path.is_dir(), "no golden model at {} (tools/make-goldens writes it)", path.display());
    path
}

/// Asserts an error's variant by the beginning of its `Debug` form, and that its message is one line with these parts.
#[track_caller]
pub fn assert_variant(error: &(impl Debug + Display), variant: &str, message_has: &[&str]) {
    let (debug, message) = (format!("{error:?}"), error.to_string());
    assert!(debug.starts_with(variant), "expected {variant}, got {debug}");
    assert!(!message.contains('\n'), "{message}");
    for part in message_has {
        assert!(message.contains(part), "{message:?} does not have {part:?}");
    }
}

/// The content of a GGUF file; tests change it before they request the bytes.
#[derive(Clone, Default)]
pub struct Gguf {
    pub metadata: Vec<(String, GgufValue)>,
    /// Name, type, dims (columns first), data.
    pub tensors: Vec<(String, GgmlType, Vec<u64>, Vec<u8>)>,
}

impl Gguf {
    /// A one-layer llama model of random-looking bytes with a byte-level tokenizer: everything that `open`
    /// requires.
    pub fn tiny() -> Self {
        let mut gguf = Self::default();
        let (hidden, q_dim, kv_dim, ffn, vocab) = (32, 32, 16, 64, 262);
        for (key, value) in [
            ("embedding_length", hidden as u32),
            ("feed_forward_length", ffn as u32),
            ("block_count", 1),
            ("context_length", 128),
            ("attention.head_count", 4),
            ("attention.head_count_kv", 2),
            ("attention.key_length", 8),
        ] {
            gguf.set(&format!("llama.{key}"), value);
        }
        gguf.set("general.architecture", "llama");
        gguf.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
        gguf.set("llama.rope.freq_base", 10_000f32);
        gguf.add_byte_level_tokenizer("gpt-2");
        for (name, dims) in [
            ("token_embd.weight", vec![hidden, vocab]),
            ("output_norm.weight", vec![hidden]),
            ("blk.0.attn_norm.weight", vec![hidden]),
            ("blk.0.attn_q.weight", vec![hidden, q_dim]),
            ("blk.0.attn_k.weight", vec![hidden, kv_dim]),
            ("blk.0.attn_v.weight", vec![hidden, kv_dim]),
            ("blk.0.attn_output.weight", vec![q_dim, hidden]),
            ("blk.0.ffn_norm.weight", vec![hidden]),
            ("blk.0.ffn_gate.weight", vec![hidden, ffn]),
            ("blk.0.ffn_up.weight", vec![hidden, ffn]),
            ("blk.0.ffn_down.weight", vec![ffn, hidden]),
        ] {
            gguf.add_tensor(name, BlockType::F32, &dims);
        }
        gguf
    }

    /// 256 bytes, the merges `a b` and `ab c`, and four control tokens.
    pub fn add_byte_level_tokenizer(&mut self, pre: &str) {
        let mut tokens: Vec<String> = byte_alphabet().into_iter().map(String::from).collect();
        tokens.extend(["ab", "abc"].map(str::to_owned));
        tokens
            .extend(["<|begin_of_text|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"].map(str::to_owned));
        let types: Vec<i32> = tokens.iter().map(|t| if t.starts_with("<|") { 3 } else { 1 }).collect();
        self.set("tokenizer.ggml.model", "gpt2");
        self.set("tokenizer.ggml.pre", pre);
        self.set("tokenizer.ggml.tokens", tokens);
        self.set("tokenizer.ggml.token_type", types);
        self.set("tokenizer.ggml.merges", vec!["a b".to_owned(), "ab c".to_owned()]);
        self.set("tokenizer.ggml.eos_token_id", 260u32);
        self.set("tokenizer.ggml.bos_token_id", 258u32);
        self.set(
            "tokenizer.chat_template",
            "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}",
        );
    }

    pub fn set(&mut self, key: &str, value: impl Into<GgufValue>) -> &mut Self {
        let value = value.into();
        match self.metadata.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = value,
            None => self.metadata.push((key.to_owned(), value)),
        }
        self
    }

    pub fn unset(&mut self, key: &str) -> &mut Self {
        self.metadata.retain(|(k, _)| k != key);
        self
    }

    pub fn add_tensor(&mut self, name: &str, ty: BlockType, dims: &[u64]) -> &mut Self {
        let n_elements: u64 = dims.iter().product();
        let len = n_elements / ty.block_len() as u64 * ty.block_bytes() as u64;
        let data = (0..len).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u8).collect();
        self.tensors.push((name.to_owned(), ty.into(), dims.to_vec(), data));
        self
    }

    pub fn remove_tensor(&mut self, name: &str) -> &mut Self {
        self.tensors.retain(|(n, ..)| n != name);
        self
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut writer = GgufWriter::new();
        for (key, value) in &self.metadata {
            writer.metadata(key, value.clone());
        }
        for (name, ty, dims, _) in &self.tensors {
            writer.tensor(name, *ty, dims);
        }
        let mut out = writer.start(Vec::new()).unwrap();
        for (.., data) in &self.tensors {
            out.write_tensor(data).unwrap();
        }
        out.finish().unwrap()
    }

    /// The tokenizer of a golden folder (they have GPT-2's pre-tokenizer) in GGUF's metadata.
    pub fn add_golden_tokenizer(&mut self, path: &Path) {
        let text = std::fs::read_to_string(path.join("tokenizer.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        let mut tokens: Vec<(u64, String, i32)> = Vec::new();
        for (text, id) in json["model"]["vocab"].as_object().unwrap() {
            tokens.push((id.as_u64().unwrap(), text.clone(), 1));
        }
        for added in json["added_tokens"].as_array().unwrap() {
            let kind = if added["special"] == true { 3 } else { 4 };
            tokens.push((added["id"].as_u64().unwrap(), added["content"].as_str().unwrap().to_owned(), kind));
        }
        tokens.sort();
        let merges = json["model"]["merges"].as_array().unwrap().iter();
        let merges: Vec<String> =
            merges.map(|m| format!("{} {}", m[0].as_str().unwrap(), m[1].as_str().unwrap())).collect();
        self.set("tokenizer.ggml.model", "gpt2");
        self.set("tokenizer.ggml.pre", "gpt-2");
        self.set("tokenizer.ggml.tokens", tokens.iter().map(|t| t.1.clone()).collect::<Vec<_>>());
        self.set("tokenizer.ggml.token_type", tokens.iter().map(|t| t.2).collect::<Vec<_>>());
        self.set("tokenizer.ggml.merges", merges);
        self.set("tokenizer.ggml.eos_token_id", 383u32);
        let text = std::fs::read_to_string(path.join("tokenizer_config.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        self.set("tokenizer.chat_template", json["chat_template"].as_str().unwrap());
    }
}

/// The byte-level alphabet: the character that stands for each byte.
pub fn byte_alphabet() -> Vec<char> {
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| match byte {
            0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => char::from(byte),
            _ => {
                next += 1;
                char::from_u32(next - 1).unwrap()
            }
        })
        .collect()
}

/// A small llama-style vocabulary: control tokens, all bytes, pieces with scores.
pub fn spm_gguf() -> Gguf {
    let mut tokens: Vec<(String, f32, i32)> =
        vec![("<unk>".into(), 0.0, 2), ("<s>".into(), 0.0, 3), ("</s>".into(), 0.0, 3)];
    tokens.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), 0.0, 6)));
    let pieces =
        ["▁t", "he", "in", "▁a", "▁the", "er", "▁in", "on", "re", "▁▁", "▁▁▁▁", "there", "▁there", "<s"];
    tokens.extend(pieces.iter().enumerate().map(|(i, piece)| ((*piece).to_owned(), -(i as f32), 1)));
    let letters = "▁abcdefghijklmnopqrstuvwxyz.,<>é日";
    tokens.extend(letters.chars().enumerate().map(|(i, c)| (c.to_string(), -100.0 - i as f32, 1)));
    let mut gguf = Gguf::default();
    gguf.set("tokenizer.ggml.model", "llama").set("tokenizer.ggml.pre", "default");
    gguf.set("tokenizer.ggml.tokens", tokens.iter().map(|t| t.0.clone()).collect::<Vec<_>>());
    gguf.set("tokenizer.ggml.scores", tokens.iter().map(|t| t.1).collect::<Vec<_>>());
    gguf.set("tokenizer.ggml.token_type", tokens.iter().map(|t| t.2).collect::<Vec<_>>());
    gguf.set("tokenizer.ggml.bos_token_id", 1u32).set("tokenizer.ggml.eos_token_id", 2u32);
    gguf
}

/// A checkpoint, packed into a folder of its own.
pub fn packed(checkpoint: &Checkpoint) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.refrain");
    pack(checkpoint, &path, LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() }).unwrap();
    (dir, path)
}
