//! Every supported family equals transformers: texts to ids and back, chats to text and ids. `tools/tokenizer-goldens`
//! writes the goldens. The test fails if they are missing.

use std::path::{Path, PathBuf};

use refrain::internals::tokenizer::ChatTemplate;
use refrain::{ChatDate, ChatOptions, Message, Role, SpecialTokens, TokenId, Tokenizer};
use serde_json::Value;

const FAMILIES: [&str; 6] = ["llama-bpe", "qwen2", "smollm", "gpt-2", "llama-spm", "mistral"];

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

fn options(json: &Value) -> ChatOptions {
    let mut options = ChatOptions::default()
        .with_date(ChatDate::from_ymd(2024, 7, 26).unwrap())
        .with_tools(values(&json["tools"]))
        .with_documents(values(&json["documents"]));
    if let Some(enable) = json["enable_thinking"].as_bool() {
        options = options.with_enable_thinking(enable);
    }
    options
}

#[test]
fn texts_and_chats_equal_transformers() {
    for family in FAMILIES {
        let folder = folder(family);
        let config: Value = serde_json::from_str(&read(&folder.join("tokenizer_config.json"))).unwrap();
        let template = read(&folder.join("chat_template.jinja"));
        let tokenizer = tokenizer(&folder);
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
        let template = ChatTemplate::new(template).unwrap();
        let (mut n_rendered, mut n_refused) = (0, 0);
        for case in cases {
            let messages: Vec<Message> = values(&case["messages"]).iter().map(message).collect();
            let options = options(&case["options"]);
            let prompt = case["add_generation_prompt"].as_bool().unwrap();
            let text = |field: &str| config[field].as_str().unwrap_or_default().to_owned();
            assert_eq!(
                (&tokenizer.special_texts().bos, &tokenizer.special_texts().eos),
                (&text("bos_token"), &text("eos_token"))
            );
            let rendered = template.render(&messages, &options, prompt, tokenizer.special_texts());
            match case["rendered"].as_str() {
                Some(expected) => {
                    assert_eq!(rendered.as_deref(), Ok(expected), "{family}: {case}");
                    let encoded = tokenizer.encode_chat(&messages, &options, prompt).unwrap();
                    assert_eq!(encoded, ids(&case["ids"]), "{family}: {case}");
                    n_rendered += 1;
                }
                None => {
                    let error = rendered.expect_err(&case.to_string()).to_string();
                    assert!(error.contains(case["error"].as_str().unwrap()), "{error}: {case}");
                    n_refused += 1;
                }
            }
        }
        assert!(n_rendered >= 4 && n_rendered + n_refused == 10, "{family}: {n_rendered}, {n_refused}");
    }
}

/// The family's files beside a model's configuration, which the tokenizer's reader needs.
fn tokenizer(folder: &Path) -> Tokenizer {
    let (dir, _) = model_files::hf::folder(&[]);
    for file in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        std::fs::write(dir.path().join(file), read(&folder.join(file))).unwrap();
    }
    Tokenizer::from_hf_folder(&refrain::internals::model::hf::HfFolder::open(dir.path()).unwrap()).unwrap()
}

mod model_files;
