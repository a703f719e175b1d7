//! Tokenizers: equal to the reference library on every family's settings, equal from both containers, and every way in
//! which a tokenizer file can be wrong.

mod model_files;

use std::fmt::{Debug, Display};

use model_files::hf::{HfModel, tokenizer_json};
use model_files::{Gguf, golden};
use proptest::prelude::*;
use refrain::model::checkpoint::Checkpoint;
use refrain::model::gguf::{GgufFile, GgufValue};
use refrain::token::TokenId;
use refrain::tokenizer::{Message, Role, SpecialTokens, TEXT_BYTES_MAX, Tokenizer, TokenizerError};
use serde_json::{Value, json};

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const TEXTS: &[&str] = &[
    "",
    " ",
    "abcabab cab",
    "The meeting with Anna is at 10:45 on 2024-07-26, isn't it?",
    "I'LL we'Ve it'S don't 'tis",
    "x = [1234567, 0x7fff];\n\tif (a != b) {\n        return -1;\n    }\n\n\n",
    "trailing spaces   \n   \n\r\n  leading",
    "   \t\t  \n \u{a0}\u{2003}\u{3000} odd spaces",
    "naïve café Ångström Straße ŁÓDŹ",
    "e\u{301} decomposed, \u{212b} compatibility, ﬁ ligature",
    "日本語のテキスト、한국어 텍스트, العربية, עברית, हिन्दी",
    "٣٤٥ ²³ Ⅷ ½ ௧௨",
    "🦀🇸🇪👩\u{200d}👩\u{200d}👧 emoji",
    "<|im_start|>user\nhi<|im_end|>",
    "<|im_end|><|im_end|>x<|endoftext|",
    "<|im_st<|im_end|>art|>",
    "null\u{0}byte \u{feff}bom \u{fffd}",
    "$100+5%~|`^<=>\\/{}[]()!?.,;:\"#&*_-@",
];

/// The vocabulary and merges of a golden model where there is one, else of the tiny tokenizer.
fn base_json() -> Value {
    match golden("qwen2") {
        Some(path) => {
            serde_json::from_str(&std::fs::read_to_string(path.join("tokenizer.json")).unwrap()).unwrap()
        }
        None => tokenizer_json(),
    }
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn sequence(steps: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps})
}

/// A `tokenizer.json` with the settings that published files of a family have, and the family's name in GGUF.
fn family_json(pre: &str) -> Value {
    let mut json = base_json();
    match pre {
        "llama-bpe" => {
            json["pre_tokenizer"] = sequence(&[split(LLAMA3), byte_level(false)]);
            json["model"]["ignore_merges"] = true.into();
        }
        "qwen2" => {
            json["normalizer"] = json!({"type": "NFC"});
            json["pre_tokenizer"] = sequence(&[split(QWEN2), byte_level(false)]);
        }
        "smollm" => {
            let digits = json!({"type": "Digits", "individual_digits": true});
            json["pre_tokenizer"] = sequence(&[digits, byte_level(true)]);
        }
        "gpt-2" => json["pre_tokenizer"] = byte_level(true),
        _ => unreachable!("{pre}"),
    }
    json
}

const FAMILIES: [&str; 4] = ["llama-bpe", "qwen2", "smollm", "gpt-2"];

fn from_json(json: &Value) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_json(&json.to_string(), "tokenizer.json")
}

/// The same tokenizer as GGUF metadata.
fn gguf_of(json: &Value, pre: &str) -> Gguf {
    let mut gguf = Gguf::default();
    let mut tokens: Vec<(u64, String, i32)> = Vec::new();
    for (text, id) in json["model"]["vocab"].as_object().unwrap() {
        tokens.push((id.as_u64().unwrap(), text.clone(), 1));
    }
    for added in json["added_tokens"].as_array().unwrap() {
        tokens.push((added["id"].as_u64().unwrap(), added["content"].as_str().unwrap().to_owned(), 3));
    }
    tokens.sort();
    let merge = |m: &Value| match m {
        Value::String(text) => text.clone(),
        pair => format!("{} {}", pair[0].as_str().unwrap(), pair[1].as_str().unwrap()),
    };
    let merges: Vec<String> = json["model"]["merges"].as_array().unwrap().iter().map(merge).collect();
    gguf.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", pre);
    gguf.set("tokenizer.ggml.tokens", tokens.iter().map(|t| t.1.clone()).collect::<Vec<_>>());
    gguf.set("tokenizer.ggml.token_type", tokens.iter().map(|t| t.2).collect::<Vec<_>>());
    gguf.set("tokenizer.ggml.merges", merges);
    gguf
}

fn from_gguf(gguf: &Gguf) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_gguf(&GgufFile::from_bytes(gguf.bytes().into(), "bad.gguf").unwrap())
}

/// One family three ways: the reference library, our reader of its file, our reader of GGUF.
struct ThreeWays {
    pre: &'static str,
    reference: tokenizers::Tokenizer,
    reference_as_text: tokenizers::Tokenizer,
    json: Tokenizer,
    gguf: Tokenizer,
}

impl ThreeWays {
    fn all() -> Vec<Self> {
        FAMILIES
            .into_iter()
            .map(|pre| {
                let json = family_json(pre);
                let reference = json.to_string().parse::<tokenizers::Tokenizer>().unwrap();
                let mut reference_as_text = reference.clone();
                reference_as_text.set_encode_special_tokens(true);
                let gguf = from_gguf(&gguf_of(&json, pre)).unwrap();
                Self { pre, reference, reference_as_text, json: from_json(&json).unwrap(), gguf }
            })
            .collect()
    }

    fn check(&self, text: &str) {
        for (special, reference) in
            [(SpecialTokens::Parse, &self.reference), (SpecialTokens::AsText, &self.reference_as_text)]
        {
            let expected = reference.encode_fast(text, false).unwrap();
            let expected: Vec<TokenId> = expected.get_ids().iter().map(|&id| TokenId(id)).collect();
            let from_json = self.json.encode(text, special).unwrap();
            assert_eq!(from_json, expected, "{} tokenizer.json, {special:?}, {text:?}", self.pre);
            let from_gguf = self.gguf.encode(text, special).unwrap();
            assert_eq!(from_gguf, expected, "{} GGUF, {special:?}, {text:?}", self.pre);
            if special == SpecialTokens::AsText && self.pre != "qwen2" {
                // (Qwen composes characters first, so there the text comes back composed.)
                assert_eq!(self.json.decode(&from_json), text);
            }
        }
    }
}

#[test]
fn both_containers_equal_the_reference_on_awkward_texts() {
    for family in ThreeWays::all() {
        TEXTS.iter().for_each(|text| family.check(text));
        assert_eq!(family.json.fingerprint(), family.gguf.fingerprint());
        assert_eq!(family.json.vocab_size(), family.gguf.vocab_size());
    }
}

/// Text whose characters sit on the edges of the families' expressions.
fn awkward_text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just(" ".to_owned()),
        Just("\n".to_owned()),
        Just("\r\n".to_owned()),
        Just("\t".to_owned()),
        Just("'s".to_owned()),
        Just("'RE".to_owned()),
        Just("abc".to_owned()),
        Just("é".to_owned()),
        Just("e\u{301}".to_owned()),
        Just("\u{3000}".to_owned()),
        Just("<|im_end|>".to_owned()),
        Just("<|im".to_owned()),
        "[0-9]{1,5}",
        "[a-zA-Z]{1,6}",
        "[!-/:-@]{1,3}",
        any::<char>().prop_map(String::from),
    ];
    prop::collection::vec(piece, 0..20).prop_map(|pieces| pieces.concat())
}

#[test]
fn both_containers_equal_the_reference_on_random_texts() {
    let families = ThreeWays::all();
    proptest!(|(text in awkward_text())| families.iter().for_each(|family| family.check(&text)));
}

#[test]
fn the_default_pre_tokenizer_splits_punctuation_and_digits() {
    let tokenizer = from_gguf(&gguf_of(&base_json(), "default")).unwrap();
    for text in TEXTS {
        assert_eq!(tokenizer.decode(&tokenizer.encode(text, SpecialTokens::AsText).unwrap()), *text);
    }
}

// Sentence piece

/// A small llama-style vocabulary: control tokens, all bytes, pieces with scores.
fn spm_gguf() -> Gguf {
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

/// Sentence piece as it is defined: join the neighbours whose piece has the best score, leftmost first, until none is
/// left; spell what is no piece in bytes.
fn spm_by_definition(gguf: &Gguf, text: &str) -> Vec<TokenId> {
    let get = |key: &str| &gguf.metadata.iter().find(|(k, _)| k == key).unwrap().1;
    let tokens = get("tokenizer.ggml.tokens").as_array().unwrap().as_strings().unwrap();
    let scores = get("tokenizer.ggml.scores").as_array().unwrap().as_f32s().unwrap();
    let normal = |piece: &str| {
        tokens.iter().position(|t| t == piece).filter(|&id| id >= 3 && !piece.starts_with("<0x"))
    };
    let spaced = if text.is_empty() { String::new() } else { format!(" {text}") };
    let mut symbols: Vec<String> = spaced.replace(' ', "▁").chars().map(String::from).collect();
    loop {
        let joined = symbols
            .windows(2)
            .enumerate()
            .filter_map(|(i, pair)| normal(&pair.concat()).map(|id| (i, scores[id])));
        let best = joined.fold(None, |best: Option<(usize, f32)>, (i, score)| match best {
            Some((_, s)) if s >= score => best,
            _ => Some((i, score)),
        });
        let Some((i, _)) = best else { break };
        let right = symbols.remove(i + 1);
        symbols[i].push_str(&right);
    }
    let ids = symbols.iter().flat_map(|symbol| match normal(symbol) {
        Some(id) => vec![TokenId(id as u32)],
        None => symbol.bytes().map(|byte| TokenId(3 + u32::from(byte))).collect(),
    });
    ids.collect()
}

#[test]
fn sentence_piece_scores_act_as_defined() {
    let gguf = spm_gguf();
    let tokenizer = from_gguf(&gguf).unwrap();
    let check = |text: &str| {
        let ids = tokenizer.encode(text, SpecialTokens::AsText).unwrap();
        assert_eq!(ids, spm_by_definition(&gguf, text), "{text:?}");
        assert_eq!(tokenizer.decode(&ids), text);
    };
    TEXTS.iter().for_each(|text| check(text));
    proptest!(|(text in "[ a-ehinort.<>s\n日]{0,30}")| check(&text));
    assert!(tokenizer.adds_bos());
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(TokenId(1)), &[TokenId(2)][..]));
    assert_eq!(tokenizer.token_bytes(TokenId(3 + 10)), Some(&b"\n"[..]));
    assert_eq!(tokenizer.encode("</s>", SpecialTokens::Parse).unwrap(), [TokenId(2)]);
    let no_prefix = from_gguf(spm_gguf().set("tokenizer.ggml.add_space_prefix", false)).unwrap();
    let ids = no_prefix.encode("the", SpecialTokens::AsText).unwrap();
    assert_eq!((no_prefix.decode(&ids), ids[0]), ("the".to_owned(), no_prefix.token_id("t").unwrap()));
}

#[test]
fn sentence_piece_files_of_both_styles_equal_the_reference() {
    let gguf = spm_gguf();
    let get = |key: &str| gguf.metadata.iter().find(|(k, _)| k == key).unwrap().1.clone();
    let tokens = get("tokenizer.ggml.tokens").as_array().unwrap().as_strings().unwrap().to_vec();
    let vocab: serde_json::Map<String, Value> =
        tokens.iter().enumerate().map(|(id, text)| (text.clone(), id.into())).collect();
    let merges =
        [["▁", "t"], ["h", "e"], ["i", "n"], ["▁", "a"], ["▁t", "he"], ["e", "r"], ["▁", "in"], ["▁", "▁"]];
    let added = |id: u32, content: &str| {
        json!({"id": id, "content": content, "special": true, "normalized": false, "single_word": false,
            "lstrip": false, "rstrip": false})
    };
    let mut json = json!({
        "added_tokens": [added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
        "post_processor": {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "vocab": vocab,
            "merges": merges},
    });
    let legacy = json!({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]});
    let metaspace =
        json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false});
    for (normalizer, pre_tokenizer) in [(legacy, Value::Null), (Value::Null, metaspace)] {
        json["normalizer"] = normalizer;
        json["pre_tokenizer"] = pre_tokenizer;
        let ours = from_json(&json).unwrap();
        let reference = json.to_string().parse::<tokenizers::Tokenizer>().unwrap();
        for text in TEXTS.iter().chain(&["<s>the</s> the", "a </s>b", "<unk>"]) {
            let expected = reference.encode_fast(*text, false).unwrap();
            let ids = ours.encode(text, SpecialTokens::Parse).unwrap();
            assert_eq!(ids.iter().map(|id| id.0).collect::<Vec<_>>(), expected.get_ids(), "{text:?}");
        }
        // The post-processor says that a text begins with `<s>`.
        assert_eq!((ours.bos(), ours.adds_bos()), (Some(TokenId(1)), true));
    }
}

// Files that are wrong

#[track_caller]
fn assert_variant<T: Debug>(result: Result<T, impl Debug + Display>, variant: &str, message_has: &[&str]) {
    let error = result.expect_err(variant);
    let (debug, message) = (format!("{error:?}"), error.to_string());
    assert!(debug.starts_with(variant), "expected {variant}, got {debug}");
    assert!(!message.contains('\n'), "{message}");
    for part in message_has {
        assert!(message.contains(part), "{message:?} does not have {part:?}");
    }
}

#[track_caller]
fn json_refused(change: impl Fn(&mut Value), variant: &str, message_has: &[&str]) {
    let mut json = tokenizer_json();
    change(&mut json);
    assert_variant(from_json(&json), variant, &[&["tokenizer.json"], message_has].concat());
}

#[test]
fn tokenizer_json_that_is_refused() {
    for text in ["", "{}", "[]", "{\"model\": 3}", &"[".repeat(100_000)] {
        assert_variant(Tokenizer::from_json(text, "tokenizer.json"), "Json", &["tokenizer.json"]);
    }
    json_refused(|j| j["model"]["vocab"] = json!([]), "Json", &["an object from token texts"]);
    json_refused(|j| j["model"]["vocab"]["ab"] = json!(-1), "Json", &[]);
    json_refused(|j| j["model"]["vocab"]["ab"] = json!(4_294_967_296u64), "Json", &[]);
    json_refused(|j| j["added_tokens"][0]["id"] = "x".into(), "Json", &[]);
    let twice = tokenizer_json().to_string().replace("\"abc\":257", "\"abc\":257,\"abc\":300");
    assert_variant(Tokenizer::from_json(&twice, "tokenizer.json"), "Json", &["\"abc\" is given twice"]);

    for model in ["Unigram", "WordPiece", "WordLevel"] {
        json_refused(|j| j["model"] = json!({"type": model}), "Unsupported", &[model]);
    }
    json_refused(|j| j["model"]["dropout"] = 0.1.into(), "Unsupported", &["dropout"]);
    json_refused(|j| j["model"]["continuing_subword_prefix"] = "##".into(), "Unsupported", &["##"]);
    json_refused(|j| j["model"]["end_of_word_suffix"] = "</w>".into(), "Unsupported", &["</w>"]);
    json_refused(|j| j["normalizer"] = json!({"type": "Precompiled"}), "Unsupported", &["Precompiled"]);
    json_refused(
        |j| j["pre_tokenizer"] = json!({"type": "BertPreTokenizer"}),
        "Unsupported",
        &["BertPreTokenizer"],
    );
    json_refused(|j| j["pre_tokenizer"] = Value::Null, "Unsupported", &["neither ByteLevel nor Metaspace"]);
    json_refused(|j| j["model"]["byte_fallback"] = true.into(), "Unsupported", &["byte fallback"]);
    json_refused(|j| j["pre_tokenizer"] = json!({"kind": 3}), "WrongType", &["pre-tokenizer.type"]);

    let nested = (0..6).fold(byte_level(true), |step, _| sequence(&[step]));
    json_refused(|j| j["pre_tokenizer"] = nested.clone(), "OverLimit", &["nesting", "limit is 4"]);
    json_refused(
        |j| j["pre_tokenizer"] = sequence(&vec![byte_level(true); 70]),
        "OverLimit",
        &["steps", "64"],
    );
    let long = split(&"a".repeat(20_000));
    json_refused(
        |j| j["pre_tokenizer"] = sequence(&[long.clone(), byte_level(false)]),
        "OverLimit",
        &["pattern"],
    );
    json_refused(|j| j["model"]["vocab"]["x9"] = 16_777_216.into(), "OverLimit", &["token id"]);
    json_refused(
        |j| j["model"]["vocab"]["x".repeat(70_000)] = 261.into(),
        "OverLimit",
        &["bytes of a token"],
    );
    let many: Vec<Value> = (0..70_000).map(|i| json!({"id": 300 + i, "content": format!("<{i}>")})).collect();
    json_refused(|j| j["added_tokens"] = many.clone().into(), "OverLimit", &["added tokens"]);

    json_refused(|j| j["model"]["vocab"]["x9"] = 5.into(), "DuplicateToken", &["id 5"]);
    json_refused(
        |j| j["added_tokens"][1]["content"] = "<|endoftext|>".into(),
        "DuplicateToken",
        &["<|endoftext|>"],
    );
    json_refused(|j| j["added_tokens"][1]["id"] = 258.into(), "DuplicateToken", &["258"]);
    json_refused(|j| j["added_tokens"][1]["content"] = "ab".into(), "DuplicateToken", &["\"ab\""]);
    json_refused(|j| j["added_tokens"][1]["content"] = "".into(), "EmptyToken", &["259"]);
    json_refused(|j| j["model"]["vocab"][""] = 300.into(), "EmptyToken", &["300"]);
    for merge in
        [json!(["a", "zz"]), json!(["b", "a"]), json!("ab"), json!("a b c"), json!(" b"), json!("a ")]
    {
        json_refused(|j| j["model"]["merges"][1] = merge.clone(), "Merge", &["merge 1"]);
    }
    json_refused(|j| _ = j["model"]["vocab"].as_object_mut().unwrap().remove("Ġ"), "MissingByte", &["0x20"]);
    json_refused(|j| j["model"]["unk_token"] = "<unk>".into(), "Missing", &["<unk>"]);
    let bad_pattern = sequence(&[split("(unclosed"), byte_level(false)]);
    json_refused(|j| j["pre_tokenizer"] = bad_pattern.clone(), "Json", &[]);
}

#[test]
fn merges_may_be_texts_or_pairs() {
    let mut json = tokenizer_json();
    json["model"]["merges"] = json!(["a b", "ab c"]);
    let texts = from_json(&json).unwrap();
    let pairs = from_json(&tokenizer_json()).unwrap();
    let encode = |t: &Tokenizer| t.encode("abcab", SpecialTokens::AsText).unwrap();
    assert_eq!(encode(&texts), [TokenId(257), TokenId(256)]);
    assert_eq!(encode(&texts), encode(&pairs));
}

#[test]
fn added_tokens_keep_the_ids_of_the_file() {
    // The reference library would give the second token the next free id; here the file's word counts.
    let mut json = tokenizer_json();
    json["added_tokens"][2]["id"] = 300.into();
    let tokenizer = from_json(&json).unwrap();
    assert_eq!(tokenizer.encode("<|im_end|>", SpecialTokens::Parse).unwrap(), [TokenId(300)]);
    assert_eq!(tokenizer.vocab_size(), 301);
    assert_eq!(tokenizer.token_bytes(TokenId(280)), None);
}

#[test]
fn control_tokens_in_the_vocabulary_cannot_be_spelled() {
    // With `ignore_merges` a whole piece is looked up in the vocabulary: here a control token is such a piece.
    let mut json = tokenizer_json();
    json["model"]["ignore_merges"] = true.into();
    json["model"]["vocab"]["PAD"] = 261.into();
    json["added_tokens"].as_array_mut().unwrap().push(json!({"id": 261, "content": "PAD", "special": true}));
    let tokenizer = from_json(&json).unwrap();
    assert_eq!(tokenizer.encode("PAD", SpecialTokens::Parse).unwrap(), [TokenId(261)]);
    let spelled = tokenizer.encode("PAD", SpecialTokens::AsText).unwrap();
    assert_eq!((spelled.len(), tokenizer.decode(&spelled)), (3, "PAD".to_owned()));
}

#[track_caller]
fn gguf_refused(change: impl Fn(&mut Gguf), variant: &str, message_has: &[&str]) {
    let mut gguf = Gguf::default();
    gguf.add_byte_level_tokenizer("gpt-2");
    change(&mut gguf);
    assert_variant(from_gguf(&gguf), variant, &[&["bad.gguf"], message_has].concat());
}

#[test]
fn gguf_tokenizers_that_are_refused() {
    for key in ["model", "tokens", "merges"] {
        let key = format!("tokenizer.ggml.{key}");
        gguf_refused(|g| _ = g.unset(&key), "Missing", &[&key]);
        gguf_refused(|g| _ = g.set(&key, 3u32), "WrongType", &[&key]);
    }
    gguf_refused(|g| _ = g.set("tokenizer.ggml.model", "bert"), "Unsupported", &["bert"]);
    gguf_refused(|g| _ = g.set("tokenizer.ggml.pre", "deepseek-coder"), "Unsupported", &["deepseek-coder"]);
    gguf_refused(
        |g| _ = g.set("tokenizer.ggml.token_type", vec![1i32; 3]),
        "WrongCount",
        &["token_type", "3", "262"],
    );
    gguf_refused(|g| _ = g.set("tokenizer.ggml.token_type", vec![-1i32; 262]), "WrongType", &["token_type"]);
    gguf_refused(
        |g| _ = g.set("tokenizer.ggml.eos_token_id", 262u32),
        "IdOutOfRange",
        &["eos_token_id", "262"],
    );
    gguf_refused(|g| _ = g.set("tokenizer.ggml.bos_token_id", u32::MAX), "IdOutOfRange", &["bos_token_id"]);
    gguf_refused(|g| _ = g.set("tokenizer.ggml.add_bos_token", 1u32), "WrongType", &["a bool"]);
    gguf_refused(|g| _ = g.set("tokenizer.chat_template", 1u32), "WrongType", &["chat_template"]);
    gguf_refused(|g| _ = g.set("tokenizer.ggml.merges", vec!["a  b".to_owned()]), "Merge", &["merge 0"]);
    gguf_refused(|g| _ = g.set("tokenizer.ggml.merges", vec!["a c".to_owned()]), "Merge", &["a c"]);
    let tokens = |change: fn(&mut Vec<String>)| {
        move |g: &mut Gguf| {
            let key = "tokenizer.ggml.tokens";
            let value = &g.metadata.iter().find(|(k, _)| k == key).unwrap().1;
            let mut tokens = value.as_array().unwrap().as_strings().unwrap().to_vec();
            change(&mut tokens);
            g.set(key, tokens);
        }
    };
    gguf_refused(tokens(|t| t[257] = "ab".into()), "DuplicateToken", &["\"ab\""]);
    gguf_refused(tokens(|t| t[257] = String::new()), "EmptyToken", &["257"]);
    gguf_refused(tokens(|t| t[usize::from(b'x')] = "xx".into()), "MissingByte", &["0x78"]);

    let spm = |change: fn(&mut Gguf)| {
        let mut gguf = spm_gguf();
        change(&mut gguf);
        from_gguf(&gguf)
    };
    assert_variant(spm(|g| _ = g.unset("tokenizer.ggml.scores")), "Missing", &["scores"]);
    assert_variant(spm(|g| _ = g.set("tokenizer.ggml.scores", vec![0.0f32; 3])), "WrongCount", &["scores"]);
    assert_variant(spm(|g| _ = g.set("tokenizer.ggml.scores", GgufValue::U8(1))), "WrongType", &["scores"]);
    let all_normal = vec![3i32; 306];
    let unspelled = spm_gguf().set("tokenizer.ggml.token_type", all_normal).clone();
    assert_variant(from_gguf(&unspelled), "MissingByte", &["0x00"]);
}

#[test]
fn texts_over_the_limit_are_refused() {
    let tokenizer = from_json(&tokenizer_json()).unwrap();
    let text = " ".repeat(TEXT_BYTES_MAX + 1);
    assert_variant(tokenizer.encode(&text, SpecialTokens::Parse), "TextTooLong", &["shorten"]);
}

// What the files beside tokenizer.json say

/// A tiny folder with these extra files.
fn folder(files: &[(&str, &str)]) -> (tempfile::TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    HfModel::tiny("llama").write(dir.path());
    std::fs::write(dir.path().join("tokenizer.json"), tokenizer_json().to_string()).unwrap();
    for (name, text) in files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    (dir, checkpoint)
}

#[test]
fn companion_files_name_the_ends_and_the_template() {
    let tokenizer = |files: &[(&str, &str)]| folder(files).1.tokenizer().unwrap();
    let config = r#"{"bos_token": {"content": "<|im_start|>"}, "eos_token": "<|im_end|>", "add_bos_token": true,
        "chat_template": "old"}"#;
    let full = tokenizer(&[
        ("tokenizer_config.json", config),
        ("generation_config.json", r#"{"eos_token_id": [65, 258]}"#),
        ("chat_template.jinja", "new"),
    ]);
    assert_eq!((full.bos(), full.adds_bos()), (Some(TokenId(259)), true));
    assert_eq!(full.eos(), [260, 65, 258].map(TokenId));
    assert_eq!(
        (full.special_texts().bos.as_str(), full.special_texts().eos.as_str()),
        ("<|im_start|>", "<|im_end|>")
    );
    assert_eq!(full.chat_template().unwrap().source(), "new");

    let bare = tokenizer(&[]);
    // Well-known ends count even where no file names them.
    assert_eq!((bare.bos(), bare.adds_bos(), bare.eos().len()), (None, false, 2));
    assert!(bare.chat_template().is_none());
    assert_variant(
        bare.encode_chat(&[Message::new(Role::User, "hi")], true),
        "NoChatTemplate",
        &["plain text"],
    );

    let list =
        r#"{"chat_template": [{"name": "tool_use", "template": "a"}, {"name": "default", "template": "b"}]}"#;
    assert_eq!(tokenizer(&[("tokenizer_config.json", list)]).chat_template().unwrap().source(), "b");

    let broken = tokenizer(&[("chat_template.jinja", "{% for %}")]);
    assert!(broken.chat_template().is_none());
    assert!(broken.chat_template_error().is_some());
    assert_variant(broken.encode_chat(&[], true), "Template(Syntax", &["line 1"]);
}

#[test]
fn companion_files_that_are_refused() {
    let refused = |files: &[(&str, &str)], variant: &str, message_has: &[&str]| {
        assert_variant(folder(files).1.tokenizer(), variant, message_has);
    };
    refused(&[("tokenizer_config.json", "[]")], "Json", &["tokenizer_config.json"]);
    refused(&[("tokenizer_config.json", r#"{"bos_token": 3}"#)], "WrongType", &["bos_token"]);
    refused(&[("tokenizer_config.json", r#"{"eos_token": {"text": "x"}}"#)], "WrongType", &["eos_token"]);
    refused(&[("tokenizer_config.json", r#"{"add_bos_token": "yes"}"#)], "WrongType", &["add_bos_token"]);
    refused(&[("tokenizer_config.json", r#"{"chat_template": 3}"#)], "WrongType", &["chat_template"]);
    refused(
        &[("tokenizer_config.json", r#"{"chat_template": [{"name": "x"}]}"#)],
        "WrongType",
        &["named default"],
    );
    refused(&[("generation_config.json", r#"{"eos_token_id": "x"}"#)], "WrongType", &["eos_token_id"]);
    refused(&[("generation_config.json", r#"{"eos_token_id": [1, -2]}"#)], "WrongType", &["eos_token_id"]);
    refused(&[("generation_config.json", r#"{"eos_token_id": 261}"#)], "IdOutOfRange", &["261"]);
    refused(
        &[("generation_config.json", r#"{"eos_token_id": 4294967296}"#)],
        "IdOutOfRange",
        &["4294967296"],
    );
    refused(&[("tokenizer.json", "{\u{0}")], "Json", &["tokenizer.json"]);
    let mut big = tokenizer_json();
    big["model"]["vocab"]["x9"] = 262.into();
    refused(&[("tokenizer.json", &big.to_string())], "VocabTooLarge", &["263", "262"]);
    let (dir, checkpoint) = folder(&[]);
    std::fs::write(dir.path().join("tokenizer.json"), b"\xff").unwrap();
    assert_variant(checkpoint.tokenizer(), "File(NotUtf8", &["byte 0"]);
}
