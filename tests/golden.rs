//! Golden checkpoints: logits and greedy tokens of a reference implementation, from both containers, at any chunk length,
//! batch length and thread count.
//!
//! The data lies beside the checkout, in `../shared/golden`; without it these tests say so and pass.

mod common;

use std::path::{Path, PathBuf};

use common::{gguf_bytes, plain, run};
use refrain::internals::draft::testing::AlwaysRight;
use refrain::internals::kernels::BlockType;
use refrain::internals::model::gguf::{GgufArray, GgufValue, GgufWriter};
use refrain::{
    CancelToken, Checkpoint, DraftSource, Engine, EngineOptions, GenerateOptions, KvType, Quantize,
    SessionOptions, TokenId,
};
use safetensors::{Dtype, SafeTensors};

const ARCHITECTURES: [&str; 3] = ["llama", "qwen2", "qwen3"];

fn golden(architecture: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/golden").join(architecture);
    if folder.is_dir() {
        return Some(folder);
    }
    println!("skipped: there is no {}", folder.display());
    None
}

struct Reference {
    prompt: Vec<TokenId>,
    /// `[prompt.len(), vocab_size]`
    logits: Vec<f32>,
    greedy: Vec<TokenId>,
}

fn words(bytes: &[u8]) -> impl Iterator<Item = [u8; 4]> + '_ {
    bytes.chunks_exact(4).map(|word| word.try_into().unwrap())
}

impl Reference {
    fn read(folder: &Path) -> Self {
        let bytes = std::fs::read(folder.join("golden.safetensors")).unwrap();
        let tensors = SafeTensors::deserialize(&bytes).unwrap();
        let tokens = |name: &str| -> Vec<TokenId> {
            words(tensors.tensor(name).unwrap().data()).map(|w| TokenId(u32::from_le_bytes(w))).collect()
        };
        let logits = words(tensors.tensor("logits").unwrap().data()).map(f32::from_le_bytes).collect();
        Self { prompt: tokens("prompt"), logits, greedy: tokens("greedy") }
    }
}

fn engine(checkpoint: &Checkpoint, n_threads: usize) -> Engine {
    let options = EngineOptions {
        n_threads: Some(n_threads),
        quantize: Quantize::F32,
        cost_profile: Some(refrain::internals::draft::CostProfile::free_rows(100.0)),
        ..EngineOptions::default()
    };
    Engine::load(checkpoint, options, None).unwrap()
}

/// Logits of every prompt position, in chunks.
fn logits(engine: &Engine, prompt: &[TokenId], prefill_chunk: usize) -> Vec<f32> {
    let options = SessionOptions { prefill_chunk, kv_type: KvType::F32, ..plain() };
    let mut session = engine.session(options).unwrap();
    session.append_tokens(prompt).unwrap();
    let mut logits = Vec::new();
    session.score(&CancelToken::new(), Some(&mut |row: &[f32]| logits.extend_from_slice(row))).unwrap();
    logits
}

fn largest_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn check(checkpoint: &Checkpoint, reference: &Reference, name: &str) -> Vec<f32> {
    let mut first: Option<Vec<f32>> = None;
    for n_threads in 1..=4 {
        let engine = engine(checkpoint, n_threads);
        for prefill_chunk in [1, 7, 64, 4096] {
            let logits = logits(&engine, &reference.prompt, prefill_chunk);
            let difference = largest_difference(&logits, &reference.logits);
            assert!(
                difference < 2e-4,
                "{name}: threads {n_threads} chunk {prefill_chunk}: off by {difference}"
            );
            let first = first.get_or_insert_with(|| logits.clone());
            assert!(
                first.iter().zip(&logits).all(|(a, b)| a.to_bits() == b.to_bits()),
                "{name}: bits differ"
            );
        }
        for verify_rows_max in 1..=64 {
            let session = SessionOptions {
                verify_rows_max,
                prefill_chunk: 1 + 5 * verify_rows_max,
                kv_type: KvType::F32,
                history: false,
                ..SessionOptions::default()
            };
            let known = || AlwaysRight::new(reference.prompt.len(), reference.greedy.clone());
            // Every other run drafts the right tokens, so that long batches are filled.
            let sources: Vec<Box<dyn DraftSource>> =
                if verify_rows_max % 2 == 0 { vec![Box::new(known())] } else { Vec::new() };
            let options = GenerateOptions { max_tokens: 32, ignore_eos: true, ..GenerateOptions::default() };
            let run = run(&engine, session, sources, &reference.prompt, options);
            assert_eq!(run.tokens, reference.greedy, "{name}: threads {n_threads} rows {verify_rows_max}");
        }
    }
    first.unwrap()
}

#[test]
fn from_safetensors() {
    for architecture in ARCHITECTURES {
        let Some(folder) = golden(architecture) else { continue };
        let checkpoint = Checkpoint::open(&folder).unwrap();
        check(&checkpoint, &Reference::read(&folder), architecture);
    }
}

/// The same tensors in a GGUF file, as published converters lay them out, give the same bits.
#[test]
fn from_gguf() {
    for architecture in ARCHITECTURES {
        let Some(folder) = golden(architecture) else { continue };
        let reference = Reference::read(&folder);
        let from_folder = logits(&engine(&Checkpoint::open(&folder).unwrap(), 2), &reference.prompt, 64);
        let bytes = to_gguf(&folder, architecture);
        let checkpoint = Checkpoint::from_gguf_bytes(bytes.into(), architecture).unwrap();
        let from_gguf = check(&checkpoint, &reference, architecture);
        assert!(
            from_folder.iter().zip(&from_gguf).all(|(a, b)| a.to_bits() == b.to_bits()),
            "{architecture}"
        );
    }
}

/// Writes a golden folder as a GGUF file: names, dimension order, and the row order of llama's queries and keys.
fn to_gguf(folder: &Path, architecture: &str) -> Vec<u8> {
    let json = |name: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
    };
    let (config, tokenizer) = (json("config.json"), json("tokenizer.json"));
    let number = |key: &str| config[key].as_u64().unwrap();
    let (n_heads, n_kv_heads) = (number("num_attention_heads"), number("num_key_value_heads"));
    let head_dim = config["head_dim"].as_u64().unwrap_or(number("hidden_size") / n_heads);

    let mut w = GgufWriter::new();
    let text = |s: &str| GgufValue::String(s.to_owned());
    w.metadata("general.architecture", text(architecture));
    for (key, value) in [
        ("block_count", number("num_hidden_layers")),
        ("context_length", number("max_position_embeddings")),
        ("embedding_length", number("hidden_size")),
        ("feed_forward_length", number("intermediate_size")),
        ("attention.head_count", n_heads),
        ("attention.head_count_kv", n_kv_heads),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
    ] {
        w.metadata(&format!("{architecture}.{key}"), GgufValue::U32(value as u32));
    }
    let float = |value: &serde_json::Value| GgufValue::F32(value.as_f64().unwrap() as f32);
    let rope = &config["rope_parameters"];
    w.metadata(&format!("{architecture}.attention.layer_norm_rms_epsilon"), float(&config["rms_norm_eps"]));
    w.metadata(&format!("{architecture}.rope.freq_base"), float(&rope["rope_theta"]));

    let vocab = tokenizer["model"]["vocab"].as_object().unwrap();
    let vocab_size = number("vocab_size") as usize;
    let mut tokens: Vec<String> = (0..vocab_size).map(|i| format!("[PAD{i}]")).collect();
    vocab.iter().for_each(|(token, id)| tokens[id.as_u64().unwrap() as usize] = token.clone());
    let mut types = vec![1; vocab_size];
    for added in tokenizer["added_tokens"].as_array().unwrap() {
        let id = added["id"].as_u64().unwrap() as usize;
        tokens[id] = added["content"].as_str().unwrap().to_owned();
        types[id] = 3;
    }
    let merges = tokenizer["model"]["merges"].as_array().unwrap().iter().map(|merge| match merge {
        serde_json::Value::String(merge) => merge.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    });
    w.metadata("tokenizer.ggml.model", text("gpt2"));
    w.metadata("tokenizer.ggml.pre", text("gpt-2"));
    w.metadata("tokenizer.ggml.tokens", GgufValue::Array(GgufArray::String(tokens)));
    w.metadata("tokenizer.ggml.token_type", GgufValue::Array(GgufArray::I32(types)));
    w.metadata("tokenizer.ggml.merges", GgufValue::Array(GgufArray::String(merges.collect())));
    w.metadata("tokenizer.ggml.eos_token_id", GgufValue::U32(number("eos_token_id") as u32));

    let mut contents = Vec::new();
    if rope["rope_type"] == "llama3" {
        let factors = llama3_factors(rope, head_dim as usize);
        w.tensor("rope_freqs.weight", BlockType::F32, &[head_dim / 2]);
        contents.push(factors.iter().flat_map(|f| f.to_le_bytes()).collect());
    }
    let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    for (name, tensor) in tensors.tensors() {
        assert_eq!(tensor.dtype(), Dtype::BF16);
        let shape = tensor.shape();
        let name = gguf_name(&name);
        let mut data = tensor.data().to_vec();
        if architecture == "llama" && (name.contains("attn_q.") || name.contains("attn_k.")) {
            data = interleave(&data, shape, head_dim as usize);
        }
        let dims: Vec<u64> = shape.iter().rev().map(|&d| d as u64).collect();
        if shape.len() == 1 {
            // Converters keep vectors in f32.
            data = data.chunks_exact(2).flat_map(|b| [0, 0, b[0], b[1]]).collect();
            w.tensor(&name, BlockType::F32, &dims);
        } else {
            w.tensor(&name, BlockType::BF16, &dims);
        }
        contents.push(data);
    }
    gguf_bytes(w, &contents)
}

/// Rows of each head from two halves to interleaved pairs, as the converter of llama models does.
fn interleave(data: &[u8], shape: &[usize], head_dim: usize) -> Vec<u8> {
    let rows: Vec<&[u8]> = data.chunks_exact(shape[1] * 2).collect();
    let half = head_dim / 2;
    let order = (0..shape[0] / head_dim)
        .flat_map(|head| (0..half).flat_map(move |i| [0, 1].map(|part| head * head_dim + part * half + i)));
    order.flat_map(|row| rows[row].iter().copied()).collect()
}

/// What converters store for llama3 scaling: the divisor of each frequency.
fn llama3_factors(rope: &serde_json::Value, head_dim: usize) -> Vec<f32> {
    let get = |key: &str| rope[key].as_f64().unwrap();
    let (theta, factor, low, high) =
        (get("rope_theta"), get("factor"), get("low_freq_factor"), get("high_freq_factor"));
    let original = get("original_max_position_embeddings");
    (0..head_dim / 2)
        .map(|i| {
            let wave_len = 2.0 * std::f64::consts::PI * theta.powf(2.0 * i as f64 / head_dim as f64);
            let divisor = if wave_len < original / high {
                1.0
            } else if wave_len > original / low {
                factor
            } else {
                let smooth = (original / wave_len - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            };
            divisor as f32
        })
        .collect()
}

fn gguf_name(name: &str) -> String {
    let Some(rest) = name.strip_prefix("model.layers.") else {
        return match name {
            "model.embed_tokens.weight" => "token_embd.weight",
            "model.norm.weight" => "output_norm.weight",
            "lm_head.weight" => "output.weight",
            other => panic!("{other}"),
        }
        .to_owned();
    };
    let (layer, rest) = rest.split_once('.').unwrap();
    let (module, kind) = rest.rsplit_once('.').unwrap();
    let module = match module {
        "input_layernorm" => "attn_norm",
        "post_attention_layernorm" => "ffn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        other => panic!("{other}"),
    };
    format!("blk.{layer}.{module}.{kind}")
}
