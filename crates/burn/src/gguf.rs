//! GGUF version 3 in Q8_0, the format of the models in the repository: one file with weights, tokenizer and template,
//! half the size of bf16.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use refrain::internals::kernels::{BlockType, quantize};
use refrain::internals::model::gguf::{GgufArray, GgufFile, GgufTensor, GgufValue, GgufWriter};
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::Error;
use crate::export::{SpecialIds, Weight, mtp_weights, weights};
use crate::model::{Llama, ModelShape, MtpHead};
use crate::tokens::SPLIT_NAME;
use crate::world::document::CHAT_TEMPLATE;

/// `tokenizer.ggml.token_type` of ordinary and of control tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;

/// The name of a weight in a GGUF file.
fn gguf_name(name: &str) -> String {
    let fixed = [
        ("model.embed_tokens.weight", "token_embd.weight"),
        ("model.norm.weight", "output_norm.weight"),
        ("model.layers.", "blk."),
        ("input_layernorm", "attn_norm"),
        ("post_attention_layernorm", "ffn_norm"),
        ("self_attn.q_proj", "attn_q"),
        ("self_attn.k_proj", "attn_k"),
        ("self_attn.v_proj", "attn_v"),
        ("self_attn.o_proj", "attn_output"),
        ("mlp.gate_proj", "ffn_gate"),
        ("mlp.up_proj", "ffn_up"),
        ("mlp.down_proj", "ffn_down"),
    ];
    renamed(name, &fixed)
}

fn renamed(name: &str, names: &[(&str, &str)]) -> String {
    names.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

/// The name of a weight of a head for multi-token prediction, which is block `block`.
fn mtp_name(name: &str, block: usize) -> String {
    let own = [
        ("mtp.fc", "nextn.eh_proj"),
        ("mtp.pre_fc_norm_embedding", "nextn.enorm"),
        ("mtp.pre_fc_norm_hidden", "nextn.hnorm"),
        ("mtp.norm", "nextn.shared_head_norm"),
        ("mtp.layers.0.", ""),
    ];
    format!("blk.{block}.{}", gguf_name(&renamed(name, &own)))
}

/// Rows of a query or key matrix in the order of GGUF's llama files, whose rotation pairs neighbours: rows `2i` and
/// `2i+1` of a head are rows `i` and `i + dim/2` of the Hugging Face layout.
fn interleaved(weight: &Weight, head_dim: usize) -> Vec<f32> {
    let cols = weight.shape[1];
    let row = |head: usize, i: usize| {
        let from = head * head_dim + i / 2 + (i % 2) * (head_dim / 2);
        &weight.values[from * cols..(from + 1) * cols]
    };
    let heads = weight.shape[0] / head_dim;
    (0..heads).flat_map(|head| (0..head_dim).flat_map(move |i| row(head, i).iter().copied())).collect()
}

/// Tokens in the order of their ids and merges in the order of their rank, as in tokenizer.json.
fn vocabulary(tokenizer: &Tokenizer) -> Result<(Vec<String>, Vec<String>), Error> {
    let json: Value = serde_json::from_str(&tokenizer.to_string(false)?)?;
    let malformed = |what: &str| Error::Weights(format!("tokenizer.json has no {what}"));
    let mut tokens = Vec::with_capacity(tokenizer.get_vocab_size(true));
    for id in 0..tokenizer.get_vocab_size(true) as u32 {
        tokens.push(tokenizer.id_to_token(id).ok_or_else(|| malformed("token for an id"))?);
    }
    let mut merges = Vec::new();
    for merge in json["model"]["merges"].as_array().ok_or_else(|| malformed("merges"))? {
        merges.push(match merge {
            Value::String(pair) => pair.clone(),
            pair => {
                let part = |at: usize| pair[at].as_str().ok_or_else(|| malformed("merge of two texts"));
                format!("{} {}", part(0)?, part(1)?)
            }
        });
    }
    Ok((tokens, merges))
}

/// The metadata of a model.
fn metadata_of_model(shape: &ModelShape, name: &str) -> Vec<(String, GgufValue)> {
    let count = |value: usize| GgufValue::U32(value as u32);
    let text = |value: &str| GgufValue::String(value.to_owned());
    let pairs = [
        ("general.architecture", text("llama")),
        ("general.name", text(name)),
        ("general.license", text("mit or apache-2.0")),
        ("general.file_type", GgufValue::U32(7)), // Mostly Q8_0.
        ("general.quantization_version", GgufValue::U32(2)),
        ("llama.block_count", count(shape.layers)),
        ("llama.context_length", count(shape.max_positions)),
        ("llama.embedding_length", count(shape.hidden)),
        ("llama.feed_forward_length", count(shape.intermediate)),
        ("llama.attention.head_count", count(shape.heads)),
        ("llama.attention.head_count_kv", count(shape.kv_heads)),
        ("llama.attention.key_length", count(shape.head_dim)),
        ("llama.attention.value_length", count(shape.head_dim)),
        ("llama.attention.layer_norm_rms_epsilon", GgufValue::F32(shape.norm_eps as f32)),
        ("llama.rope.dimension_count", count(shape.head_dim)),
        ("llama.rope.freq_base", GgufValue::F32(shape.rope_theta as f32)),
        ("llama.vocab_size", count(shape.vocab)),
    ];
    pairs.map(|(key, value)| (key.to_owned(), value)).into()
}

/// The metadata of a fixture model's tokenizer.
fn metadata_of_tokenizer(tokenizer: &Tokenizer) -> Result<Vec<(String, GgufValue)>, Error> {
    let ids = SpecialIds::of(tokenizer)?;
    let (tokens, merges) = vocabulary(tokenizer)?;
    let special = [ids.end_of_text, ids.message_start, ids.message_end];
    let types =
        (0..tokens.len() as u32).map(|id| if special.contains(&id) { CONTROL } else { NORMAL }).collect();
    let text = |value: &str| GgufValue::String(value.to_owned());
    let pairs = [
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.pre", text(SPLIT_NAME)),
        ("tokenizer.ggml.tokens", GgufValue::Array(GgufArray::String(tokens))),
        ("tokenizer.ggml.token_type", GgufValue::Array(GgufArray::I32(types))),
        ("tokenizer.ggml.merges", GgufValue::Array(GgufArray::String(merges))),
        ("tokenizer.ggml.bos_token_id", GgufValue::U32(ids.end_of_text)),
        ("tokenizer.ggml.eos_token_id", GgufValue::U32(ids.message_end)),
        ("tokenizer.ggml.eot_token_id", GgufValue::U32(ids.message_end)),
        ("tokenizer.ggml.padding_token_id", GgufValue::U32(ids.end_of_text)),
        ("tokenizer.ggml.add_bos_token", GgufValue::Bool(false)),
        ("tokenizer.chat_template", text(CHAT_TEMPLATE)),
    ];
    Ok(pairs.map(|(key, value)| (key.to_owned(), value)).into())
}

/// Writes the file of a fixture model: matrices in Q8_0, norms in F32.
pub fn write(model: &Llama, tokenizer: &Tokenizer, name: &str, out: &Path) -> Result<(), Error> {
    write_model(model, name, metadata_of_tokenizer(tokenizer)?, out)
}

/// As [`write()`], with given metadata of the tokenizer.
pub fn write_model(
    model: &Llama,
    name: &str,
    tokenizer: impl IntoIterator<Item = (String, GgufValue)>,
    out: &Path,
) -> Result<(), Error> {
    let metadata = metadata_of_model(&model.shape, name).into_iter().chain(tokenizer);
    write_weights(&weights(model)?, None, metadata, gguf_name, model.shape.head_dim, out)
}

/// Writes the head for multi-token prediction of a target of the Llama family, with metadata and embedding of the target's file: the
/// block behind its layers.
pub fn write_mtp(head: &MtpHead, target: &GgufFile, out: &Path) -> Result<(), Error> {
    let block = head.shape.layers;
    let own = [
        ("general.name", GgufValue::String("head for multi-token prediction".to_owned())),
        ("llama.block_count", GgufValue::U32(block as u32 + 1)),
        ("llama.nextn_predict_layers", GgufValue::U32(1)),
        ("llama.vocab_size", GgufValue::U32(head.shape.vocab as u32)),
    ];
    let is_own = |key: &str| own.iter().any(|(own, _)| *own == key);
    let of_target = target.metadata().iter().filter(|(key, _)| !is_own(key)).cloned();
    let metadata = of_target.chain(own.iter().map(|(key, value)| ((*key).to_owned(), value.clone())));
    let failed = |error: &dyn std::fmt::Display| Error::Weights(error.to_string());
    let embedding = target.tensor("token_embd.weight").ok_or_else(|| failed(&"no token_embd.weight"))?;
    let bytes = target.read(embedding).map_err(|error| failed(&error))?;
    let name = |name: &str| mtp_name(name, block);
    write_weights(&mtp_weights(head)?, Some((embedding, &bytes)), metadata, name, head.shape.head_dim, out)
}

/// Writes `weights`, and a tensor of another file before them.
fn write_weights(
    weights: &[Weight],
    copied: Option<(&GgufTensor, &[u8])>,
    metadata: impl Iterator<Item = (String, GgufValue)>,
    name_of: impl Fn(&str) -> String,
    head_dim: usize,
    out: &Path,
) -> Result<(), Error> {
    let mut writer = GgufWriter::new();
    for (key, value) in metadata {
        writer.metadata(&key, value);
    }
    if let Some((tensor, _)) = copied {
        writer.tensor(&tensor.name, tensor.ty, &tensor.dims);
    }
    for weight in weights {
        let dims: Vec<u64> = weight.shape.iter().rev().map(|&dim| dim as u64).collect();
        writer.tensor(&name_of(&weight.name), block_type(weight), &dims);
    }
    let mut data = writer.start(BufWriter::new(File::create(out)?))?;
    if let Some((_, bytes)) = copied {
        data.write_tensor(bytes)?;
    }
    for weight in weights {
        let turned = weight.name.contains("q_proj") || weight.name.contains("k_proj");
        let values = if turned { interleaved(weight, head_dim) } else { weight.values.clone() };
        let mut bytes = Vec::new();
        quantize(block_type(weight), &values, &mut bytes);
        data.write_tensor(&bytes)?;
    }
    data.finish()?;
    Ok(())
}

fn block_type(weight: &Weight) -> BlockType {
    if weight.shape.len() == 1 { BlockType::F32 } else { BlockType::Q8_0 }
}
