//! Every supported family equals transformers: texts to ids and back, chats to text and ids. The same vocabulary as GGUF
//! metadata gives the same ids. `tools/tokenizer-goldens` writes the goldens. The test fails if they are missing.

use refrain::internals::tokenizer::TokenizerParts as _;
use std::path::{Path, PathBuf};

use refrain::internals::model::gguf::GgufFile;
use refrain::internals::tokenizer::{ChatTemplate, SpecialTexts, TemplateError};
use refrain::{ChatDate, ChatOptions, Message, Role, SpecialTokens, TokenId, Tokenizer};
use serde_json::Value;

use crate::model_files::{self, Gguf};

/// A family with the forms of the same tokenizer in GGUF.
struct Family {
    name: &'static str,
    twins: &'static [Twin],
}

/// A tokenizer in GGUF.
#[derive(Debug, Clone, Copy)]
enum Twin {
    /// `gpt2` with this `tokenizer.ggml.pre`.
    Merges(&'static str),
    /// `llama` with scores, of a model with this architecture.
    Scores { architecture: &'static str, adds_space: bool },
    /// `gemma4`.
    Gemma4,
}

const FAMILIES: [Family; 17] = [
    Family { name: "llama-bpe", twins: &[Twin::Merges("llama-bpe")] },
    Family { name: "qwen2", twins: &[Twin::Merges("qwen2"), Twin::Merges("deepseek-r1-qwen")] },
    Family { name: "smollm", twins: &[Twin::Merges("smollm")] },
    Family { name: "gpt-2", twins: &[Twin::Merges("gpt-2")] },
    // The merges of these two were trained; they do not follow from scores.
    Family { name: "llama-spm", twins: &[] },
    Family { name: "mistral", twins: &[] },
    Family {
        name: "gemma",
        twins: &[Twin::Scores { architecture: "gemma3", adds_space: false }, Twin::Gemma4],
    },
    Family { name: "phi-3", twins: &[Twin::Scores { architecture: "phi3", adds_space: true }] },
    // GGUF's `t5` is not supported.
    Family { name: "unigram", twins: &[] },
    Family { name: "unigram-bytes", twins: &[] },
    Family { name: "tekken", twins: &[Twin::Merges("tekken")] },
    Family { name: "gpt-4o", twins: &[Twin::Merges("gpt-4o")] },
    Family { name: "qwen35", twins: &[Twin::Merges("qwen35")] },
    Family { name: "lfm2", twins: &[Twin::Merges("lfm2")] },
    Family { name: "minicpm5", twins: &[Twin::Merges("minicpm5")] },
    Family { name: "refact", twins: &[Twin::Merges("refact")] },
    Family { name: "smaug-bpe", twins: &[Twin::Merges("smaug-bpe"), Twin::Merges("dbrx")] },
];

fn folder(family: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/tokenizers").join(family)
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path)
        .unwrap_or_else(|e| panic!("{}: {e}; run tools/tokenizer-goldens", path.display()))
}

fn ids(value: &Value) -> Vec<TokenId> {
    value.as_array().unwrap().iter().map(|id| TokenId(id.as_u64().unwrap() as u32)).collect()
}

fn values(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn message(json: &Value) -> Message {
    let role = match json["role"].as_str().unwrap() {
        "system" => Role::System,
        "developer" => Role::Developer,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        other => panic!("{other}"),
    };
    let mut message = Message::new(role, json["content"].as_str().unwrap());
    let text = |field: &str| json[field].as_str().map(str::to_owned);
    message.reasoning_content = text("reasoning_content");
    message.tool_call_id = text("tool_call_id");
    message.name = text("name");
    message.tool_calls = values(&json["tool_calls"]);
    message
}

fn options(json: &Value, date: ChatDate) -> ChatOptions {
    let mut options = ChatOptions::default();
    options.date = Some(date);
    options.tools = values(&json["tools"]);
    options.documents = values(&json["documents"]);
    for (name, value) in json.as_object().unwrap() {
        match (name.as_str(), value) {
            ("tools" | "documents", _) => {}
            ("enable_thinking", Value::Bool(enable)) => options.enable_thinking = Some(*enable),
            _ => options.set_variable(name, value.clone()).unwrap(),
        }
    }
    options
}

/// The parts of generated texts, as `tools/tokenizer-goldens` writes them.
struct Texts {
    fragments: Vec<String>,
    ranges: Vec<(u32, u32)>,
    n_texts: usize,
    block: usize,
}

impl Texts {
    fn read() -> Self {
        let json: Value = serde_json::from_str(&read(&folder("texts.json"))).unwrap();
        let number = |value: &Value| value.as_u64().unwrap() as u32;
        Self {
            fragments: values(&json["fragments"]).iter().map(|f| f.as_str().unwrap().to_owned()).collect(),
            ranges: values(&json["ranges"]).iter().map(|r| (number(&r[0]), number(&r[1]))).collect(),
            n_texts: number(&json["texts"]) as usize,
            block: number(&json["block"]) as usize,
        }
    }

    /// The text of an index.
    fn text(&self, index: usize) -> String {
        let mut state = index as u64;
        // SplitMix64.
        let mut below = |n: u64| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % n
        };
        let mut text = String::new();
        for _ in 0..below(20) {
            let kind = below(8);
            if kind <= 5 {
                let fragment = &self.fragments[below(self.fragments.len() as u64) as usize];
                let n = if kind == 5 { 1 + below(4) } else { 1 };
                text.push_str(&fragment.repeat(n as usize));
            } else if kind == 6 {
                let (low, high) = self.ranges[below(self.ranges.len() as u64) as usize];
                text.push(char::from_u32(low + below(u64::from(high - low) + 1) as u32).unwrap());
            } else {
                let digits = 1 + below(7) as u32;
                text.push_str(&below(10u64.pow(digits)).to_string());
            }
        }
        text
    }

    /// FNV-1a over the ids of each block of texts: the number of ids, then the ids.
    fn hashes(&self, encode: impl Fn(&str) -> Vec<TokenId>) -> Vec<String> {
        let blocks = (0..self.n_texts).step_by(self.block);
        let hash = |first: usize| {
            let mut hash = 0xcbf2_9ce4_8422_2325u64;
            for index in first..first + self.block {
                let ids = encode(&self.text(index));
                for word in std::iter::once(ids.len() as u64).chain(ids.iter().map(|id| u64::from(id.0))) {
                    hash = (hash ^ word).wrapping_mul(0x0100_0000_01b3);
                }
            }
            format!("{hash:016x}")
        };
        blocks.map(hash).collect()
    }
}

/// The tokenizer of a family's `tokenizer.json` as GGUF metadata.
fn gguf_of(json: &Value, twin: Twin) -> Tokenizer {
    let (mut gguf, model) = (Gguf::default(), &json["model"]);
    let mut tokens: Vec<(u64, String, i32)> = Vec::new();
    for (text, id) in model["vocab"].as_object().unwrap() {
        let is_byte = !matches!(twin, Twin::Merges(_)) && text.len() == 6 && text.starts_with("<0x");
        tokens.push((id.as_u64().unwrap(), text.clone(), if is_byte { 6 } else { 1 }));
    }
    for added in values(&json["added_tokens"]) {
        let (id, text) = (added["id"].as_u64().unwrap(), added["content"].as_str().unwrap());
        let is_unknown = model["unk_token"].as_str() == Some(text);
        let kind = match (is_unknown, added["special"].as_bool().unwrap()) {
            (true, _) => 2,
            (false, true) => 3,
            (false, false) => 4,
        };
        tokens.retain(|(known, ..)| *known != id);
        tokens.push((id, text.to_owned(), kind));
    }
    tokens.sort();
    gguf.set("tokenizer.ggml.tokens", tokens.iter().map(|t| t.1.clone()).collect::<Vec<_>>());
    gguf.set("tokenizer.ggml.token_type", tokens.iter().map(|t| t.2).collect::<Vec<_>>());
    let merges = values(&model["merges"]);
    let merges = merges.iter().map(|m| format!("{} {}", m[0].as_str().unwrap(), m[1].as_str().unwrap()));
    match twin {
        Twin::Merges(pre) => {
            gguf.set("tokenizer.ggml.model", "gpt2")
                .set("tokenizer.ggml.pre", pre)
                .set("tokenizer.ggml.add_bos_token", false);
            gguf.set("tokenizer.ggml.merges", merges.collect::<Vec<_>>());
        }
        Twin::Gemma4 => {
            gguf.set("tokenizer.ggml.model", "gemma4").set("tokenizer.ggml.bos_token_id", 0u32);
            gguf.set("tokenizer.ggml.merges", merges.collect::<Vec<_>>());
        }
        Twin::Scores { architecture, adds_space } => {
            gguf.set("general.architecture", architecture);
            gguf.set("tokenizer.ggml.model", "llama").set("tokenizer.ggml.bos_token_id", 0u32);
            gguf.set("tokenizer.ggml.add_space_prefix", adds_space);
            gguf.set("tokenizer.ggml.scores", tokens.iter().map(|t| -(t.0 as f32)).collect::<Vec<_>>());
        }
    }
    Tokenizer::from_gguf(&GgufFile::from_bytes(gguf.bytes().into(), "twin.gguf").unwrap()).unwrap()
}

#[test]
fn generated_texts_equal_transformers() {
    let texts = Texts::read();
    assert!(texts.n_texts >= 5000);
    for Family { name, twins } in FAMILIES {
        let tokenizer = tokenizer(&folder(name), "chat_template");
        let cases = read(&folder(name).join("cases.jsonl"));
        let golden: Value = serde_json::from_str(cases.lines().next().unwrap()).unwrap();
        for (mode, special) in [("parsed", SpecialTokens::Parse), ("as_text", SpecialTokens::AsText)] {
            let hashes = texts.hashes(|text| tokenizer.encode(text, special).unwrap());
            let expected = values(&golden["blocks"][mode]);
            assert_eq!((hashes.len(), expected.len()), (texts.n_texts / texts.block, hashes.len()));
            for (block, (hash, expected)) in hashes.iter().zip(expected).enumerate() {
                let first = block * texts.block;
                assert_eq!(*hash, expected, "{name}, {mode}, the texts from {first}");
            }
        }
        let json: Value = serde_json::from_str(&read(&folder(name).join("tokenizer.json"))).unwrap();
        for twin in twins {
            let gguf = gguf_of(&json, *twin);
            assert_eq!(gguf.fingerprint(), tokenizer.fingerprint(), "{name}, {twin:?}");
            for index in 0..texts.n_texts {
                let text = texts.text(index);
                for special in [SpecialTokens::Parse, SpecialTokens::AsText] {
                    let ids = tokenizer.encode(&text, special).unwrap();
                    assert_eq!(gguf.encode(&text, special).unwrap(), ids, "{name}, {twin:?}, {text:?}");
                }
                let ids = tokenizer.encode(&text, SpecialTokens::AsText).unwrap();
                assert_eq!(gguf.decode(&ids), tokenizer.decode(&ids), "{name}, {twin:?}, {text:?}");
            }
        }
    }
}

#[test]
fn texts_and_chats_equal_transformers() {
    for Family { name: family, .. } in FAMILIES {
        let folder = folder(family);
        let config: Value = serde_json::from_str(&read(&folder.join("tokenizer_config.json"))).unwrap();
        let tokenizer = tokenizer(&folder, "chat_template");
        let cases = read(&folder.join("cases.jsonl"));
        let mut cases = cases.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let texts = values(&cases.next().unwrap()["texts"]);
        assert!(texts.len() > 10);
        for case in texts {
            let text = case["text"].as_str().unwrap();
            let encode = |special| tokenizer.encode(text, special).unwrap();
            assert_eq!(encode(SpecialTokens::Parse), ids(&case["parsed"]), "{family}, {text:?}");
            assert_eq!(encode(SpecialTokens::AsText), ids(&case["as_text"]), "{family} as text, {text:?}");
            let decoded = tokenizer.decode(&encode(SpecialTokens::AsText));
            assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{family}, {text:?}");
        }
        let text = |field: &str| config[field].as_str().unwrap_or_default().to_owned();
        assert_eq!(
            (&tokenizer.special_texts().bos, &tokenizer.special_texts().eos),
            (&text("bos_token"), &text("eos_token"))
        );
        check_chats(family, "chat_template", &tokenizer, cases);
    }
}

/// Templates of families whose tokenizer, or one like it, is among [`FAMILIES`].
#[test]
fn chats_of_further_families_equal_transformers() {
    let further =
        [("gemma", "gemma-4"), ("gpt-2", "olmo-2"), ("gpt-4o", "phi-4-mini"), ("refact", "granite-4")];
    for (family, name) in further {
        let cases = read(&folder(family).join(name).with_extension("jsonl"));
        let cases = cases.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        check_chats(family, name, &tokenizer(&folder(family), name), cases);
    }
}

/// Renders and encodes chats with the template of a file.
fn check_chats(family: &str, name: &str, tokenizer: &Tokenizer, cases: impl Iterator<Item = Value>) {
    let template = ChatTemplate::new(read(&folder(family).join(name).with_extension("jinja"))).unwrap();
    let (mut n_rendered, mut n_thinking, mut n_refused) = (0, 0, 0);
    for case in cases {
        let messages: Vec<Message> = values(&case["messages"]).iter().map(message).collect();
        let options = options(&case["options"], ChatDate::from_ymd(2024, 7, 26).unwrap());
        let prompt = case["add_generation_prompt"].as_bool().unwrap();
        let rendered = template.render(&messages, &options, prompt, tokenizer.special_texts());
        match case["rendered"].as_str() {
            Some(expected) => {
                assert_eq!(rendered.as_deref(), Ok(expected), "{family}, {name}: {case}");
                let encoded = tokenizer.encode_chat(&messages, &options, prompt).unwrap();
                assert_eq!(encoded, ids(&case["ids"]), "{family}, {name}: {case}");
                n_rendered += 1;
                n_thinking += usize::from(options.enable_thinking == Some(true));
            }
            None => {
                let error = rendered.expect_err(&case.to_string()).to_string();
                assert!(error.contains(case["error"].as_str().unwrap()), "{error}: {case}");
                n_refused += 1;
            }
        }
    }
    assert!(
        n_rendered >= 6 && n_thinking >= 2 && n_rendered + n_refused == 14,
        "{family}, {name}: {n_rendered}, {n_thinking}, {n_refused}"
    );
}

/// Published templates are their authors'. `tools/published-templates FOLDER` renders those of a folder with transformers
/// and runs this test: a line for each template, then its first differences.
#[test]
#[ignore = "needs a folder of published templates: tools/published-templates FOLDER"]
fn published_templates_equal_transformers() {
    let path = std::env::var("REFRAIN_TEST_TEMPLATES").expect("the cases of tools/published-templates");
    let special = SpecialTexts { bos: "<s>".to_owned(), eos: "</s>".to_owned() };
    let (mut n_cases, mut n_rendered, mut differences) = (0, 0, Vec::new());
    for line in read(Path::new(&path)).lines() {
        let json: Value = serde_json::from_str(line).unwrap();
        let template = ChatTemplate::new(json["source"].as_str().unwrap().to_owned());
        let (mut equal, mut refused, mut only_here, mut different) = (0, 0, 0, Vec::new());
        for case in values(&json["cases"]) {
            let messages: Vec<Message> = values(&case["messages"]).iter().map(message).collect();
            let options = options(&case["options"], ChatDate::from_ymd(2024, 9, 6).unwrap());
            let prompt = case["add_generation_prompt"].as_bool().unwrap();
            let rendered = match &template {
                Ok(template) => template.render(&messages, &options, prompt, &special),
                Err(e) => Err(e.clone()),
            };
            let expected = case["rendered"].as_str().ok_or_else(|| case["error"].as_str().unwrap());
            let is_equal = match (&rendered, expected) {
                (Ok(rendered), Ok(expected)) => rendered == expected,
                (Err(TemplateError::Raised { reason, .. }), Err(expected)) => {
                    case["raised"] == true && reason == expected
                }
                (Err(_), Err(_)) => case["raised"] == false,
                (Ok(_), Err(_)) | (Err(_), Ok(_)) => false,
            };
            // The result of `map` and similar filters is a list here and a generator there, which `tojson` refuses.
            let is_generator = expected.is_err_and(|e| e.contains("generator is not JSON serializable"));
            match is_equal {
                true if expected.is_ok() => equal += 1,
                true => refused += 1,
                false if rendered.is_ok() && is_generator => only_here += 1,
                false => different.push(format!(
                    "{}, prompt {prompt}:\n   transformers {expected:?}\n   refrain      {rendered:?}",
                    case["name"].as_str().unwrap()
                )),
            }
        }
        n_cases += equal + refused + only_here + different.len();
        n_rendered += equal;
        let name = json["template"].as_str().unwrap();
        let n_different = different.len();
        println!(
            "{name}: {equal} equal, {refused} refused by both, {only_here} here alone, {n_different} different"
        );
        if let Some(first) = different.first() {
            println!("  {first}");
            differences.push(name.to_owned());
        }
    }
    println!(
        "{n_cases} cases, {n_rendered} rendered, {} templates differ: {differences:?}",
        differences.len()
    );
    assert!(differences.is_empty() && n_rendered > 0);
}

/// The family's files beside a model's configuration, which the tokenizer's reader needs. The template is that of a file.
fn tokenizer(folder: &Path, template: &str) -> Tokenizer {
    let (dir, _) = model_files::hf::folder(&[]);
    for file in ["tokenizer.json", "tokenizer_config.json"] {
        std::fs::write(dir.path().join(file), read(&folder.join(file))).unwrap();
    }
    let template = read(&folder.join(template).with_extension("jinja"));
    std::fs::write(dir.path().join("chat_template.jinja"), template).unwrap();
    Tokenizer::from_hf_folder(&refrain::internals::model::hf::HfFolder::open(dir.path()).unwrap()).unwrap()
}
