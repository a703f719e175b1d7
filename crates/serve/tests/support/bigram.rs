//! A model whose next token depends on the newest one only, by a table: it greets, and calls a tool if its chat template asks it to. A
//! second one does so in the channels of gpt-oss.
//!
//! Small trained models call no tools on their own, so what depends on a call needs a model whose every step is known. The blocks of this
//! one are zero, its embeddings are the rows of the unit matrix, and its output matrix is the table.

use refrain::internals::kernels::{BlockType, quantize};
use refrain::internals::model::gguf::{GgufArray, GgufValue, GgufWriter};

/// The answer without a call. Its last character has four tokens.
pub(crate) const GREETING: &str = "Hello🌍";
/// The text of every free string in a call's arguments.
pub(crate) const FREE_STRING: &str = "Paris";
/// The reasoning of the model with channels where it names the recipient of a call before the channel.
pub(crate) const THOUGHT: &str = "Where?";

/// How the model calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Calls {
    /// `<tool_call>`, which is text.
    Text,
    /// `<tool_call>`, which is a control token.
    Control,
    /// Channels; the recipient is behind the channel.
    Channels,
    /// Channels; it reasons, and the recipient is before the channel. A request needs a presence penalty of 2, or under a grammar it
    /// reasons for ever.
    RecipientFirst,
    /// Channels; it answers where it may.
    Never,
    /// Text; it also fills gaps, and ends them with a token of its own.
    Infill,
}

impl Calls {
    fn has_channels(self) -> bool {
        matches!(self, Self::Channels | Self::RecipientFirst | Self::Never)
    }

    /// The tokens behind the 256 bytes.
    fn words(self) -> Vec<&'static str> {
        let mut words = vec!["<|end|>", "<|ask|>", "<tool_call>", "Hello", FREE_STRING];
        if self == Self::Infill {
            words.extend([
                "<|fim_prefix|>",
                "<|fim_suffix|>",
                "<|fim_middle|>",
                "<|file_sep|>",
                "<|fim_pad|>",
            ]);
        }
        if self.has_channels() {
            words[0] = "<|return|>";
            words.extend(["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>", "<|call|>"]);
            words.extend([
                "analysis",
                "commentary",
                "final",
                THOUGHT,
                "assistant",
                "\u{120}to",
                "=functions",
            ]);
        }
        words
    }
}

/// Tokens behind the 256 bytes.
const END: usize = 256;
/// The template writes it to ask for a call.
const ASK: usize = 257;
const OPEN: usize = 258;
const HELLO: usize = 259;
const PARIS: usize = 260;
/// Tokens of the model with channels. Its `END` is `<|return|>`.
const START: usize = 261;
const CHANNEL: usize = 262;
const MESSAGE: usize = 263;
const MESSAGE_END: usize = 264;
const CONSTRAIN: usize = 265;
const CALL: usize = 266;
const ANALYSIS: usize = 267;
const COMMENTARY: usize = 268;
const FINAL: usize = 269;
const WHERE: usize = 270;
const ASSISTANT: usize = 271;
const TO: usize = 272;
const FUNCTIONS: usize = 273;
/// Tokens of the model that fills gaps.
const GAP: usize = 263;
const GAP_END: usize = 265;
/// A multiple of the rows that kernels take at a time.
const HIDDEN_DIM: usize = 288;
const HEAD_DIM: usize = 32;

const TEMPLATE: &str = "{% if tools %}[tools]{% for tool in tools %}{{ tool.function.name }} {% endfor %}as <tool_call>{% endif %}\
    {% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}\
    {% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]\
    {% if tools and messages[-1].role == 'user' and 'plainly' not in messages[-1].content %}<|ask|>{% endif %}{% endif %}";

/// As the published one, it needs a description of each tool.
const CHANNELS_TEMPLATE: &str = "{% if tools %}<|start|>developer<|message|>{% for tool in tools %}// {{ tool.function.description + '' }}\
    type {{ tool.function.name }} {% endfor %}in functions<|end|>{% endif %}\
    {% for m in messages %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endfor %}\
    {% if add_generation_prompt %}<|start|>assistant\
    {% if reasoning_effort == 'high' %}<|channel|>analysis<|message|>{% endif %}{% endif %}";

/// The model as a GGUF file.
pub(crate) fn gguf(calls: Calls) -> Vec<u8> {
    let words = calls.words();
    let vocab_size = 256 + words.len();
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
        ("vocab_size", vocab_size),
    ] {
        w.metadata(&format!("llama.{key}"), value as u32);
    }
    w.metadata("llama.attention.layer_norm_rms_epsilon", 1e-6_f32);
    w.metadata("llama.rope.freq_base", 10_000_f32);
    w.metadata("tokenizer.ggml.model", "gpt2").metadata("tokenizer.ggml.pre", "gpt-2");
    let tokens = byte_texts().chain(words.into_iter().map(str::to_owned)).collect();
    w.metadata("tokenizer.ggml.tokens", GgufValue::Array(GgufArray::String(tokens)));
    let is_control =
        |token| matches!(token, END | ASK | START..=CALL) || token == OPEN && calls == Calls::Control;
    let kinds = (0..vocab_size).map(|token| if is_control(token) { 3 } else { 1 }).collect();
    w.metadata("tokenizer.ggml.token_type", GgufValue::Array(GgufArray::I32(kinds)));
    w.metadata("tokenizer.ggml.merges", GgufValue::Array(GgufArray::String(Vec::new())));
    w.metadata("tokenizer.ggml.eos_token_id", END as u32);
    let template = if calls.has_channels() { CHANNELS_TEMPLATE } else { TEMPLATE };
    w.metadata("tokenizer.chat_template", template);
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
    let mut unit = vec![0.0; vocab_size * HIDDEN_DIM];
    (0..vocab_size).for_each(|token| unit[token * HIDDEN_DIM + token] = 1.0);
    let ones = [1.0; HIDDEN_DIM];
    let zeros = vec![0.0; HIDDEN_DIM * HEAD_DIM];
    tensor("token_embd.weight", vocab_size, HIDDEN_DIM, &unit);
    tensor("output.weight", vocab_size, HIDDEN_DIM, &table(calls));
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
fn table(calls: Calls) -> Vec<f32> {
    let vocab_size = 256 + calls.words().len();
    let mut table = vec![0.0; vocab_size * HIDDEN_DIM];
    let mut put = |from: usize, to: usize, weight: f32| table[to * HIDDEN_DIM + from] = weight;
    // Every text that is not continued below ends.
    (0..vocab_size).for_each(|from| put(from, END, 0.5));
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
    if calls == Calls::Infill {
        put(GAP, HELLO, 2.0);
        put(0x8D, GAP_END, 1.0);
    }
    if !calls.has_channels() {
        return table;
    }
    // A prompt ends with the letters of `assistant`, and what the model writes has it as a token.
    let steps = [
        (byte(b't'), CHANNEL),
        (ANALYSIS, MESSAGE),
        (FINAL, MESSAGE),
        (MESSAGE, HELLO),
        (WHERE, MESSAGE_END),
        (MESSAGE_END, START),
        (START, ASSISTANT),
        (ASSISTANT, TO),
        (TO, FUNCTIONS),
        (FUNCTIONS, byte(b'.')),
        (byte(b'.'), byte(b'w')),
        (byte(b' '), CONSTRAIN),
    ];
    steps.into_iter().for_each(|(from, to)| put(from, to, 2.0));
    put(MESSAGE, byte(b'{'), 1.0);
    put(CHANNEL, COMMENTARY, 1.0);
    put(COMMENTARY, TO, 1.0);
    match calls {
        Calls::Never => put(CHANNEL, FINAL, 2.0),
        Calls::RecipientFirst => {
            put(CHANNEL, ANALYSIS, 2.0);
            put(MESSAGE, WHERE, 3.0);
            // The letters of `assistant` also end what a grammar forces. A penalty of 2 is a weight of 0.12.
            put(byte(b't'), TO, 1.95);
            // Behind the function's name, and behind the channel.
            put(byte(b'r'), CHANNEL, 2.0);
            put(COMMENTARY, byte(b' '), 2.0);
        }
        _ => {}
    }
    if calls != Calls::Never {
        put(byte(b'}'), CALL, 1.0);
    }
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
