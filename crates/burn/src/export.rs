//! The Hugging Face layout of a model: config.json, model.safetensors, the tokenizer and its template.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use burn::module::Param;
use burn::tensor::Tensor;
use half::bf16;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use crate::Error;
use crate::model::{Block, Eagle3Head, Llama, ModelShape, MtpHead};
use crate::world::document::{CHAT_TEMPLATE, END_OF_TEXT, MESSAGE_END, MESSAGE_START};

/// A weight in the layout of a checkpoint: matrices are `[out, in]`.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// Name in a Hugging Face checkpoint.
    pub name: String,
    /// Sizes.
    pub shape: Vec<usize>,
    /// Values, row by row.
    pub values: Vec<f32>,
}

fn values<const D: usize>(param: &Param<Tensor<D>>) -> Result<Vec<f32>, Error> {
    param.val().into_data().try_to_vec::<f32>().map_err(|error| Error::Weights(format!("{error:?}")))
}

/// Columns `from..to` of `[rows, cols]` as the rows of a new matrix.
fn transposed(matrix: &[f32], cols: usize, from: usize, to: usize) -> Vec<f32> {
    (from..to).flat_map(|col| matrix.iter().skip(col).step_by(cols).copied()).collect()
}

/// All weights under their Hugging Face names.
pub fn weights(model: &Llama) -> Result<Vec<Weight>, Error> {
    let shape = &model.shape;
    let weight =
        |name: &str, shape: Vec<usize>, values: Vec<f32>| Weight { name: name.to_owned(), shape, values };
    let embedding = values(&model.embedding)?;
    let mut out = vec![weight("model.embed_tokens.weight", vec![shape.vocab, shape.hidden], embedding)];
    for (at, block) in model.blocks.iter().enumerate() {
        out.extend(block_weights(block, shape, &format!("model.layers.{at}."))?);
    }
    out.push(weight("model.norm.weight", vec![shape.hidden], values(&model.final_norm)?));
    Ok(out)
}

/// The weights of a head for multi-token prediction, in the names of Qwen3.5.
pub fn mtp_weights(head: &MtpHead) -> Result<Vec<Weight>, Error> {
    let hidden = head.shape.hidden;
    let weight =
        |name: &str, shape: Vec<usize>, values: Vec<f32>| Weight { name: name.to_owned(), shape, values };
    let input = transposed(&values(&head.input)?, hidden, 0, hidden);
    let mut out = vec![
        weight("mtp.fc.weight", vec![hidden, 2 * hidden], input),
        weight("mtp.pre_fc_norm_embedding.weight", vec![hidden], values(&head.embedding_norm)?),
        weight("mtp.pre_fc_norm_hidden.weight", vec![hidden], values(&head.hidden_norm)?),
        weight("mtp.norm.weight", vec![hidden], values(&head.final_norm)?),
    ];
    out.extend(block_weights(&head.block, &head.shape, "mtp.layers.0.")?);
    Ok(out)
}

/// The weights of an EAGLE-3 head, in the names of its authors, with the target's embedding.
pub fn eagle3_weights(head: &Eagle3Head, embedding: &[f32]) -> Result<Vec<Weight>, Error> {
    let ModelShape { hidden, vocab, .. } = head.shape;
    let weight =
        |name: &str, shape: Vec<usize>, values: Vec<f32>| Weight { name: name.to_owned(), shape, values };
    let input = transposed(&values(&head.input)?, hidden, 0, hidden);
    let n_tokens = head.output.val().dims()[1];
    let output = transposed(&values(&head.output)?, n_tokens, 0, n_tokens);
    let mut out = vec![
        weight("embed_tokens.weight", vec![vocab, hidden], embedding.to_vec()),
        weight("fc.weight", vec![hidden, 3 * hidden], input),
        weight("midlayer.hidden_norm.weight", vec![hidden], values(&head.hidden_norm)?),
        weight("norm.weight", vec![hidden], values(&head.final_norm)?),
        weight("lm_head.weight", vec![n_tokens, hidden], output),
    ];
    out.extend(block_weights(&head.block, &head.shape, "midlayer.")?);
    Ok(out)
}

fn block_weights(block: &Block, shape: &ModelShape, prefix: &str) -> Result<Vec<Weight>, Error> {
    let mut out = Vec::new();
    let mut push = |name: &str, shape: Vec<usize>, values: Vec<f32>| {
        out.push(Weight { name: format!("{prefix}{name}.weight"), shape, values });
    };
    push("input_layernorm", vec![shape.hidden], values(&block.attn_norm)?);
    let (qkv, [read, _]) = (values(&block.qkv)?, block.qkv.val().dims());
    let (q, kv) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    for (name, from, rows) in [("q", 0, q), ("k", q, kv), ("v", q + kv, kv)] {
        let part = transposed(&qkv, q + 2 * kv, from, from + rows);
        push(&format!("self_attn.{name}_proj"), vec![rows, read], part);
    }
    let attn_out = transposed(&values(&block.attn_out)?, shape.hidden, 0, shape.hidden);
    push("self_attn.o_proj", vec![shape.hidden, q], attn_out);
    push("post_attention_layernorm", vec![shape.hidden], values(&block.ffn_norm)?);
    let gate_up = values(&block.gate_up)?;
    let wide = shape.intermediate;
    for (name, from) in [("gate", 0), ("up", wide)] {
        let part = transposed(&gate_up, 2 * wide, from, from + wide);
        push(&format!("mlp.{name}_proj"), vec![wide, shape.hidden], part);
    }
    let down = transposed(&values(&block.down)?, shape.hidden, 0, shape.hidden);
    push("mlp.down_proj", vec![shape.hidden, wide], down);
    Ok(out)
}

/// config.json, with the ids of the tokens at the beginning and end of a text.
pub fn config(shape: &ModelShape, bos: Option<u32>, eos: Option<u32>) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.intermediate,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.max_positions,
        "tie_word_embeddings": true,
        "attention_bias": false,
        "mlp_bias": false,
        "torch_dtype": "bfloat16",
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": bos,
    })
}

/// Ids of the special tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecialIds {
    /// `<|endoftext|>`.
    pub end_of_text: u32,
    /// `<|im_start|>`.
    pub message_start: u32,
    /// `<|im_end|>`.
    pub message_end: u32,
}

impl SpecialIds {
    /// Looks up the ids.
    pub fn of(tokenizer: &tokenizers::Tokenizer) -> Result<Self, Error> {
        let id = |text| tokenizer.token_to_id(text).ok_or(Error::NoSpecialToken(text));
        Ok(Self {
            end_of_text: id(END_OF_TEXT)?,
            message_start: id(MESSAGE_START)?,
            message_end: id(MESSAGE_END)?,
        })
    }
}

/// Writes config.json and model.safetensors into an existing folder. Weights become bf16, as in published
/// checkpoints.
pub fn write_model(model: &Llama, (bos, eos): (Option<u32>, Option<u32>), out: &Path) -> Result<(), Error> {
    write_weights(&weights(model)?, [], out)?;
    write_json(&out.join("config.json"), config(&model.shape, bos, eos))
}

/// Writes an EAGLE-3 head, which drafts `tokens` and reads the target's residual streams before the layers `taps`, with the target's
/// embedding, `[vocab, hidden]`, into a new or empty folder.
pub fn write_eagle3(
    head: &Eagle3Head,
    tokens: &[u32],
    taps: [usize; 3],
    embedding: &[f32],
    out: &Path,
) -> Result<(), Error> {
    fs::create_dir_all(out)?;
    let distances = (0..).zip(tokens).flat_map(|(number, &token)| (i64::from(token) - number).to_le_bytes());
    let distances: Vec<u8> = distances.collect();
    let is_drafted: Vec<u8> =
        (0..head.shape.vocab as u32).map(|token| u8::from(tokens.binary_search(&token).is_ok())).collect();
    let d2t = TensorView::new(Dtype::I64, vec![tokens.len()], &distances)?;
    let t2d = TensorView::new(Dtype::BOOL, vec![head.shape.vocab], &is_drafted)?;
    write_weights(&eagle3_weights(head, embedding)?, [("d2t", d2t), ("t2d", t2d)], out)?;
    let mut config = config(&ModelShape { layers: 1, ..head.shape.clone() }, None, None);
    config["architectures"] = json!(["LlamaForCausalLMEagle3"]);
    config["tie_word_embeddings"] = json!(false);
    config["draft_vocab_size"] = json!(tokens.len());
    config["eagle_config"] = json!({
        "eagle_aux_hidden_state_layer_ids": taps,
        "use_aux_hidden_state": true,
    });
    write_json(&out.join("config.json"), config)
}

/// Whether a folder can be written there: there is none, or an empty one.
pub fn is_free_folder(folder: &Path) -> bool {
    fs::read_dir(folder).map_or(!folder.exists(), |mut entries| entries.next().is_none())
}

/// Writes model.safetensors, the weights in bf16 and `others` as they are.
fn write_weights<'a>(
    weights: &[Weight],
    others: impl IntoIterator<Item = (&'a str, TensorView<'a>)>,
    out: &Path,
) -> Result<(), Error> {
    let bytes: Vec<Vec<u8>> = weights
        .iter()
        .map(|weight| weight.values.iter().flat_map(|value| bf16::from_f32(*value).to_le_bytes()).collect())
        .collect();
    let mut views: BTreeMap<_, _> = others.into_iter().map(|(name, view)| (name.to_owned(), view)).collect();
    for (weight, bytes) in weights.iter().zip(&bytes) {
        views.insert(weight.name.clone(), TensorView::new(Dtype::BF16, weight.shape.clone(), bytes)?);
    }
    let metadata = [("format".to_owned(), "pt".to_owned())].into_iter().collect();
    Ok(safetensors::serialize_to_file(views, Some(metadata), &out.join("model.safetensors"))?)
}

fn write_json(path: &Path, value: Value) -> Result<(), Error> {
    Ok(fs::write(path, serde_json::to_string_pretty(&value)? + "\n")?)
}

/// Writes the folder of a fixture model: weights, tokenizer and template.
pub fn write_folder(model: &Llama, tokenizer: &tokenizers::Tokenizer, out: &Path) -> Result<(), Error> {
    fs::create_dir_all(out)?;
    let ids = SpecialIds::of(tokenizer)?;
    write_model(model, (Some(ids.end_of_text), Some(ids.message_end)), out)?;
    let write = |name: &str, value: Value| write_json(&out.join(name), value);
    write(
        "generation_config.json",
        json!({ "bos_token_id": ids.end_of_text, "eos_token_id": [ids.message_end, ids.end_of_text], "do_sample": false }),
    )?;
    write(
        "tokenizer_config.json",
        json!({
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": model.shape.max_positions,
            "add_bos_token": false,
            "bos_token": null,
            "eos_token": MESSAGE_END,
            "pad_token": END_OF_TEXT,
            "chat_template": CHAT_TEMPLATE,
        }),
    )?;
    tokenizer.save(out.join("tokenizer.json"), true)?;
    Ok(())
}
