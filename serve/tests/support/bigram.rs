//! A model whose next token depends on the newest one only, by a table: it greets, and calls a tool if its chat template asks it to.
//!
//! Small trained models call no tools on their own, so what depends on a call needs a model whose every step is known. The blocks of this
//! one are zero, its embeddings are the rows of the unit matrix, and its output matrix is the table.

use refrain::internals::kernels::{BlockType, quantize};
use refrain::internals::model::gguf::{GgufArray, GgufValue, GgufWriter};

/// The answer without a call. Its last character has four tokens.
pub(crate) const GREETING: &str = "Hello🌍";
/// The text of every free string in a call's arguments.
pub(crate) const FREE_STRING: &str = "Paris";

/// Tokens behind the 256 bytes.
const END: usize = 256;
/// The template writes it to ask for a call.
const ASK: usize = 257;
const OPEN: usize = 258;
const HELLO: usize = 259;
const PARIS: usize = 260;
const VOCAB_SIZE: usize = 261;
/// A multiple of the rows that kernels take at a time.
const HIDDEN_DIM: usize = 288;
const HEAD_DIM: usize = 32;

const TEMPLATE: &str = "{% if tools %}[tools]{% for tool in tools %}{{ tool.function.name }} {% endfor %}as <tool_call>{% endif %}\
    {% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}\
    {% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]\
    {% if tools and messages[-1].role == 'user' and 'plainly' not in messages[-1].content %}<|call|>{% endif %}{% endif %}";

/// The model as a GGUF file. `has_control_marker`: whether the marker of a call is a control token.
pub(crate) fn gguf(has_control_marker: bool) -> Vec<u8> {
    let mut w = GgufWriter::new();
    w.metadata("general.architecture", "llama").metadata("general.name", "bigram");
    for (key, value) in [
        ("block_count", 1),
        ("context_length", 2048),
        ("embedding_length", HIDDEN_DIM),
        ("feed_forward_length", HEAD_DIM),
        ("attention.head_count", 1),
        ("attention.head_count_kv", 1),
        ("attention.key_length", HEAD_DIM),
        ("attention.value_length", HEAD_DIM),
        ("vocab_size", VOCAB_SIZE),
    ] {
        w.metadata(&format!("llama.{key}"), value as u32);
    }
    w.metadata("llama.attention.layer_norm_rms_epsilon", 1e-6_f32);
    w.metadata("llama.rope.freq_base", 10_000_f32);
    w.metadata("tokenizer.ggml.model", "gpt2").metadata("tokenizer.ggml.pre", "gpt-2");
    let words = ["<|end|>", "<|call|>", "<tool_call>", "Hello", FREE_STRING];
    let tokens = byte_texts().chain(words.map(str::to_owned)).collect();
    w.metadata("tokenizer.ggml.tokens", GgufValue::Array(GgufArray::String(tokens)));
    let is_control = |token| matches!(token, END | ASK) || token == OPEN && has_control_marker;
    let kinds = (0..VOCAB_SIZE).map(|token| if is_control(token) { 3 } else { 1 }).collect();
    w.metadata("tokenizer.ggml.token_type", GgufValue::Array(GgufArray::I32(kinds)));
    w.metadata("tokenizer.ggml.merges", GgufValue::Array(GgufArray::String(Vec::new())));
    w.metadata("tokenizer.ggml.eos_token_id", END as u32);
    w.metadata("tokenizer.chat_template", TEMPLATE);
    let mut data = Vec::new();
    let mut tensor = |name: &str, n_rows: usize, n_columns: usize, values: &[f32]| {
        let mut bytes = Vec::new();
        quantize(BlockType::F32, values, &mut bytes);
        let dims = match n_rows {
            1 => vec![n_columns as u64],
            _ => vec![n_columns as u64, n_rows as u64],
        };
        w.tensor(name, BlockType::F32, &dims);
        data.push(bytes);
    };
    let mut unit = vec![0.0; VOCAB_SIZE * HIDDEN_DIM];
    (0..VOCAB_SIZE).for_each(|token| unit[token * HIDDEN_DIM + token] = 1.0);
    let ones = [1.0; HIDDEN_DIM];
    let zeros = vec![0.0; HIDDEN_DIM * HEAD_DIM];
    tensor("token_embd.weight", VOCAB_SIZE, HIDDEN_DIM, &unit);
    tensor("output.weight", VOCAB_SIZE, HIDDEN_DIM, &table());
    tensor("output_norm.weight", 1, HIDDEN_DIM, &ones);
    tensor("blk.0.attn_norm.weight", 1, HIDDEN_DIM, &ones);
    for name in ["attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"] {
        tensor(&format!("blk.0.{name}.weight"), HEAD_DIM, HIDDEN_DIM, &zeros);
    }
    tensor("blk.0.attn_output.weight", HIDDEN_DIM, HEAD_DIM, &zeros);
    tensor("blk.0.ffn_norm.weight", 1, HIDDEN_DIM, &ones);
    tensor("blk.0.ffn_down.weight", HIDDEN_DIM, HEAD_DIM, &zeros);
    let mut file = w.start(Vec::new()).expect("tensors with a size");
    data.iter().for_each(|bytes| file.write_tensor(bytes).expect("as many bytes as declared"));
    file.finish().expect("all tensors")
}

/// The weight of each token (rows) behind each token (columns).
fn table() -> Vec<f32> {
    let mut table = vec![0.0; VOCAB_SIZE * HIDDEN_DIM];
    let mut put = |from: usize, to: usize, weight: f32| table[to * HIDDEN_DIM + from] = weight;
    // Every text that is not continued below ends.
    (0..VOCAB_SIZE).for_each(|from| put(from, END, 0.5));
    let byte = usize::from;
    put(byte(b']'), HELLO, 2.0);
    put(HELLO, 0xF0, 2.0);
    [(0xF0, 0x9F), (0x9F, 0x8C), (0x8C, 0x8D)].into_iter().for_each(|(from, to)| put(from, to, 2.0));
    put(ASK, OPEN, 2.0);
    // JSON: an object as an answer, short strings, short numbers. A grammar decides where one may stand.
    put(byte(b']'), byte(b'{'), 1.0);
    put(byte(b'{'), byte(b'}'), 2.0);
    put(byte(b'['), byte(b'7'), 2.0);
    put(byte(b'"'), PARIS, 3.0);
    // A grammar decides which quotation mark ends a string; the object ends as soon as it may.
    put(byte(b'"'), byte(b'}'), 2.0);
    put(PARIS, byte(b'"'), 2.0);
    put(byte(b':'), byte(b'7'), 2.0);
    put(byte(b'7'), byte(b'}'), 2.0);
    put(byte(b'7'), byte(b']'), 2.0);
    table
}

/// The 256 bytes in the spelling of byte-level vocabularies.
fn byte_texts() -> impl Iterator<Item = String> {
    let is_shown = |b: u32| matches!(b, 33..=126 | 161..=172 | 174..=255);
    let mut n_shifted = 0;
    (0..256_u32).map(move |b| {
        let code = match is_shown(b) {
            true => b,
            false => {
                n_shifted += 1;
                255 + n_shifted
            }
        };
        char::from_u32(code).expect("below the surrogates").to_string()
    })
}
