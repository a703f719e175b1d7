//! Every kind of invalid tokenizer file, with its error.

use refrain::internals::tokenizer::TokenizerParts as _;
use std::fmt::Debug;

use refrain::internals::model::gguf::{GgufFile, GgufValue};
use refrain::internals::tokenizer::TEXT_BYTES_MAX;
use refrain::{SpecialTokens, TokenId, Tokenizer, TokenizerError};
use serde_json::{Value, json};

use crate::model_files::hf::{folder, tokenizer_json};
use crate::model_files::{Gguf, assert_variant, spm_gguf};

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

fn byte_level(use_regex: bool) -> Value {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": use_regex})
}

fn sequence(steps: &[Value]) -> Value {
    json!({"type": "Sequence", "pretokenizers": steps})
}

fn from_json(json: &Value) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_json(&json.to_string(), "tokenizer.json")
}

fn from_gguf(gguf: &Gguf) -> Result<Tokenizer, TokenizerError> {
    Tokenizer::from_gguf(&GgufFile::from_bytes(gguf.bytes().into(), "bad.gguf").unwrap())
}

#[track_caller]
fn refused<T: Debug>(result: Result<T, TokenizerError>, variant: &str, message_has: &[&str]) {
    assert_variant(&result.expect_err(variant), variant, message_has);
}

#[track_caller]
fn json_refused(change: impl Fn(&mut Value), variant: &str, message_has: &[&str]) {
    let mut json = tokenizer_json();
    change(&mut json);
    refused(from_json(&json), variant, &[&["tokenizer.json"], message_has].concat());
}

/// A WordPiece tokenizer with a change.
fn word_pieces(change: impl Fn(&mut Value)) -> Result<Tokenizer, TokenizerError> {
    let mut json = json!({
        "added_tokens": [{"id": 0, "content": "[UNK]", "special": true}],
        "normalizer": {"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "model": {"type": "WordPiece", "vocab": {"[UNK]": 0, "tap": 1, "##s": 2, "a": 3}},
    });
    change(&mut json);
    from_json(&json)
}

#[test]
fn word_pieces_that_are_refused() {
    let tokenizer = word_pieces(|_| {}).unwrap();
    let ids = tokenizer.encode("Á taps [UNK] tapa", SpecialTokens::AsText).unwrap();
    // Brackets have no pieces, and no text spells the unknown token.
    assert_eq!(ids, [3, 1, 2, 0, 0, 0, 0].map(TokenId));
    assert_eq!(tokenizer.decode(&ids), "a taps");
    let refused_with = |change: &dyn Fn(&mut Value), variant, has: &[&str]| {
        refused(word_pieces(change), variant, &[&["tokenizer.json"], has].concat());
    };
    refused_with(&|j| j["model"]["unk_token"] = "<unk>".into(), "Missing", &["\"<unk>\" (`unk_token`)"]);
    refused_with(
        &|j| j["model"]["vocab"]["x".repeat(300)] = 4.into(),
        "OverLimit",
        &["300, the limit is 256"],
    );
    refused_with(&|j| j["model"]["vocab"]["tap"] = 3.into(), "DuplicateToken", &["id 3"]);
    refused_with(&|j| j["model"]["vocab"]["x"] = 4_000_000.into(), "OverLimit", &["token id is 4000000"]);
    refused_with(&|j| j["model"]["vocab"] = json!(["a"]), "Json", &[]);
    refused_with(&|j| j["model"]["continuing_subword_prefix"] = "@@".into(), "Unsupported", &["@@"]);
    refused_with(&|j| j["model"]["max_input_chars_per_word"] = 5000.into(), "OverLimit", &["5000"]);
    refused_with(&|j| j["pre_tokenizer"] = byte_level(true), "Unsupported", &["before WordPiece"]);
    refused_with(&|j| j["normalizer"] = json!({"type": "BertNormalizer"}), "Json", &[]);
}

#[test]
fn tokenizer_json_that_is_refused() {
    for text in ["", "{}", "[]", "{\"model\": 3}", &"[".repeat(100_000)] {
        refused(Tokenizer::from_json(text, "tokenizer.json"), "Json", &["tokenizer.json"]);
    }
    json_refused(|j| j["model"]["vocab"] = json!([]), "Json", &["an object from token texts"]);
    json_refused(|j| j["model"]["vocab"]["ab"] = json!(-1), "Json", &[]);
    json_refused(|j| j["model"]["vocab"]["ab"] = json!(4_294_967_296u64), "Json", &[]);
    json_refused(|j| j["added_tokens"][0]["id"] = "x".into(), "Json", &[]);
    let twice = tokenizer_json().to_string().replace("\"abc\":257", "\"abc\":257,\"abc\":300");
    refused(Tokenizer::from_json(&twice, "tokenizer.json"), "Json", &["\"abc\" is given twice"]);

    json_refused(|j| j["model"] = json!({"type": "WordLevel"}), "Unsupported", &["WordLevel"]);
    json_refused(|j| j["model"]["dropout"] = 0.1.into(), "Unsupported", &["dropout"]);
    json_refused(|j| j["model"]["continuing_subword_prefix"] = "##".into(), "Unsupported", &["##"]);
    json_refused(|j| j["model"]["end_of_word_suffix"] = "</w>".into(), "Unsupported", &["</w>"]);
    json_refused(|j| j["normalizer"] = json!({"type": "Nmt"}), "Unsupported", &["Nmt"]);
    let table = |text: &str| json!({"type": "Precompiled", "precompiled_charsmap": text});
    json_refused(
        |j| j["normalizer"] = json!({"type": "Precompiled"}),
        "WrongType",
        &["precompiled_charsmap"],
    );
    json_refused(|j| j["normalizer"] = table("*"), "Json", &["precompiled_charsmap", "base64"]);
    // An array of one unit, from which every letter leads outside.
    json_refused(|j| j["normalizer"] = table("BAAAAAAAAAA="), "Json", &["leads outside itself"]);
    json_refused(|j| j["normalizer"] = table(&"A".repeat(5 << 20)), "OverLimit", &["charsmap", "4194304"]);
    json_refused(
        |j| j["pre_tokenizer"] = json!({"type": "UnicodeScripts"}),
        "Unsupported",
        &["UnicodeScripts"],
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
    let double = json!({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"});
    let doubled = json!({"type": "Sequence", "normalizers": vec![double; 30]});
    json_refused(|j| j["normalizer"] = doubled.clone(), "OverLimit", &["growth", "32", "limit is 16"]);
    json_refused(
        |j| j["normalizer"] = json!({"type": "Prepend", "prepend": "x".repeat(1 << 20)}),
        "OverLimit",
        &["growth"],
    );
    json_refused(|j| j["model"]["vocab"]["x9"] = 70_000.into(), "OverLimit", &["token id", "65798"]);
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
fn unigram_files_that_are_refused() {
    let unigram = || {
        let words = ["<unk>", "</s>", "▁a", "▁", "a", "b"];
        let vocab: Vec<Value> = words.iter().zip(0..).map(|(word, i)| json!([word, -f64::from(i)])).collect();
        let special = |id: u32, content: &str| json!({"id": id, "content": content, "special": true});
        json!({
            "added_tokens": [special(0, "<unk>"), special(1, "</s>")],
            "pre_tokenizer": {"type": "Metaspace", "replacement": "▁"},
            "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab},
        })
    };
    from_json(&unigram()).unwrap();
    let unigram_refused = |change: &dyn Fn(&mut Value), variant: &str, message_has: &[&str]| {
        let mut json = unigram();
        change(&mut json);
        refused(from_json(&json), variant, &[&["tokenizer.json"], message_has].concat());
    };
    for vocab in
        [json!({"a": 1}), json!([["a"]]), json!([["a", "x"]]), json!([["a", null]]), json!([[1, 1.0]])]
    {
        unigram_refused(&|j| j["model"]["vocab"] = vocab.clone(), "Json", &[]);
    }
    unigram_refused(&|j| j["model"] = json!({"type": "Unigram"}), "Json", &["vocab"]);
    // JSON has no NaN; a number beyond the range of `f64` is no number either.
    for score in ["NaN", "1e999", "-1e999"] {
        let text = unigram().to_string().replace("[\"b\",-5.0]", &format!("[\"b\",{score}]"));
        assert!(text.contains(score));
        refused(Tokenizer::from_json(&text, "tokenizer.json"), "Json", &["tokenizer.json"]);
    }
    unigram_refused(&|j| j["model"]["unk_id"] = Value::Null, "Missing", &["unk_id"]);
    unigram_refused(&|j| j["model"]["unk_id"] = 6.into(), "IdOutOfRange", &["unk_id", "6"]);
    unigram_refused(&|j| j["model"]["unk_id"] = u64::MAX.into(), "IdOutOfRange", &["unk_id"]);
    unigram_refused(&|j| j["model"]["unk_id"] = json!(-1), "Json", &[]);
    unigram_refused(&|j| j["model"]["vocab"] = json!([]), "IdOutOfRange", &["unk_id", "0 entries"]);
    unigram_refused(&|j| j["model"]["vocab"][5][0] = "a".into(), "DuplicateToken", &["\"a\"", "id 5"]);
    unigram_refused(&|j| j["model"]["vocab"][5][0] = "".into(), "EmptyToken", &["id 5"]);
    unigram_refused(&|j| j["added_tokens"][1]["id"] = 7.into(), "DuplicateToken", &["</s>"]);
    unigram_refused(&|j| j["added_tokens"][1]["content"] = "<unk>".into(), "DuplicateToken", &["<unk>"]);
    unigram_refused(
        &|j| j["model"]["vocab"][5][0] = "x".repeat(257).into(),
        "OverLimit",
        &["unigram piece", "257", "256"],
    );
    unigram_refused(&|j| j["model"]["byte_fallback"] = true.into(), "MissingByte", &["0x00"]);
    unigram_refused(&|j| j["pre_tokenizer"] = byte_level(true), "Unsupported", &["ByteLevel"]);
}

#[track_caller]
fn gguf_refused(change: impl Fn(&mut Gguf), variant: &str, message_has: &[&str]) {
    let mut gguf = Gguf::default();
    gguf.add_byte_level_tokenizer("gpt-2");
    change(&mut gguf);
    refused(from_gguf(&gguf), variant, &[&["bad.gguf"], message_has].concat());
}

#[test]
fn gguf_tokenizers_that_are_refused() {
    for key in ["model", "tokens", "merges"] {
        let key = format!("tokenizer.ggml.{key}");
        gguf_refused(|g| _ = g.unset(&key), "Missing", &[&key]);
        gguf_refused(|g| _ = g.set(&key, 3u32), "WrongType", &[&key]);
    }
    for model in ["bert", "t5", "rwkv", "plamo2"] {
        gguf_refused(|g| _ = g.set("tokenizer.ggml.model", model), "Unsupported", &[model]);
    }
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
    refused(spm(|g| _ = g.unset("tokenizer.ggml.scores")), "Missing", &["scores"]);
    refused(spm(|g| _ = g.set("tokenizer.ggml.scores", vec![0.0f32; 3])), "WrongCount", &["scores"]);
    refused(spm(|g| _ = g.set("tokenizer.ggml.scores", GgufValue::U8(1))), "WrongType", &["scores"]);
    let gemma4 = |change: fn(&mut Gguf)| {
        let mut gguf = spm_gguf();
        gguf.set("tokenizer.ggml.model", "gemma4");
        gguf.set("tokenizer.ggml.merges", vec!["h e".to_owned()]);
        change(&mut gguf);
        from_gguf(&gguf)
    };
    gemma4(|_| ()).unwrap();
    refused(gemma4(|g| _ = g.unset("tokenizer.ggml.merges")), "Missing", &["merges"]);
    refused(gemma4(|g| _ = g.set("tokenizer.ggml.merges", vec!["h q".to_owned()])), "Merge", &["h q"]);
    let all_normal = vec![3i32; 306];
    let unspelled = spm_gguf().set("tokenizer.ggml.token_type", all_normal).clone();
    refused(from_gguf(&unspelled), "MissingByte", &["0x00"]);
}

#[test]
fn texts_over_the_limit_are_refused() {
    let tokenizer = from_json(&tokenizer_json()).unwrap();
    let text = " ".repeat(TEXT_BYTES_MAX + 1);
    refused(tokenizer.encode(&text, SpecialTokens::Parse), "TextTooLong", &["shorten"]);
}

#[test]
fn companion_files_that_are_refused() {
    let files_refused = |files: &[(&str, &str)], variant: &str, message_has: &[&str]| {
        refused(folder(files).1.tokenizer(), variant, message_has);
    };
    files_refused(&[("tokenizer_config.json", "[]")], "Json", &["tokenizer_config.json"]);
    files_refused(&[("tokenizer_config.json", r#"{"bos_token": 3}"#)], "WrongType", &["bos_token"]);
    files_refused(
        &[("tokenizer_config.json", r#"{"eos_token": {"text": "x"}}"#)],
        "WrongType",
        &["eos_token"],
    );
    files_refused(
        &[("tokenizer_config.json", r#"{"add_bos_token": "yes"}"#)],
        "WrongType",
        &["add_bos_token"],
    );
    files_refused(&[("tokenizer_config.json", r#"{"chat_template": 3}"#)], "WrongType", &["chat_template"]);
    files_refused(
        &[("tokenizer_config.json", r#"{"chat_template": [{"name": "x"}]}"#)],
        "WrongType",
        &["named default"],
    );
    files_refused(&[("generation_config.json", r#"{"eos_token_id": "x"}"#)], "WrongType", &["eos_token_id"]);
    files_refused(
        &[("generation_config.json", r#"{"eos_token_id": [1, -2]}"#)],
        "WrongType",
        &["eos_token_id"],
    );
    files_refused(&[("generation_config.json", r#"{"eos_token_id": 261}"#)], "IdOutOfRange", &["261"]);
    files_refused(
        &[("generation_config.json", r#"{"eos_token_id": 4294967296}"#)],
        "IdOutOfRange",
        &["4294967296"],
    );
    files_refused(&[("tokenizer.json", "{\u{0}")], "Json", &["tokenizer.json"]);
    let mut big = tokenizer_json();
    big["model"]["vocab"]["x9"] = 320.into();
    files_refused(&[("tokenizer.json", &big.to_string())], "VocabTooLarge", &["321", "320"]);
    let (dir, checkpoint) = folder(&[]);
    std::fs::write(dir.path().join("tokenizer.json"), b"\xff").unwrap();
    refused(checkpoint.tokenizer(), "File(NotUtf8", &["byte 0"]);
}

/// The time of these expressions grows with the square of a text, or faster, in one match or over all.
#[test]
fn the_steps_of_all_patterns_over_a_text_are_bounded() {
    let text = "a".repeat(100_000);
    let replace = |pattern: &str| json!({"type": "Replace", "pattern": {"Regex": pattern}, "content": "a"});
    for pattern in ["(?=(a+))a*b", "a*b|a", "(?=.*b)a", "(a+)+b"] {
        for is_normalizer in [false, true] {
            let mut json = tokenizer_json();
            match is_normalizer {
                true => json["normalizer"] = json!({"type": "Sequence", "normalizers": [replace(pattern)]}),
                false => json["pre_tokenizer"] = sequence(&[split(pattern), byte_level(false)]),
            }
            let tokenizer = from_json(&json).unwrap();
            for special in [SpecialTokens::AsText, SpecialTokens::Parse] {
                let encoded = tokenizer.encode(&text, special);
                refused(encoded, "TooManySteps", &["tokenizer.json", "100000 bytes"]);
            }
            // A short text has few steps.
            assert!(!tokenizer.encode("aaab", SpecialTokens::AsText).unwrap().is_empty(), "{pattern}");
        }
    }
    // Each piece of a first split has few steps; together they have many.
    let steps: Vec<Value> = std::iter::repeat_n(split("a*b|a"), 40).chain([byte_level(false)]).collect();
    let mut json = tokenizer_json();
    json["pre_tokenizer"] = sequence(&[vec![split("[^c]+")], steps].concat());
    let text = format!("{}c", "a".repeat(4_000)).repeat(50);
    refused(from_json(&json).unwrap().encode(&text, SpecialTokens::AsText), "TooManySteps", &[]);
}

#[test]
fn patterns_that_cannot_be_compiled_are_refused() {
    for (pattern, reason) in [
        (r"(.)\1", "back-references"),
        (r"a\Kb", "\\K"),
        ("(?:(?:ab){1000}){1000}", "operations"),
        ("[a", "error"),
        ("(a", "error"),
    ] {
        let change = |j: &mut Value| j["pre_tokenizer"] = sequence(&[split(pattern), byte_level(false)]);
        json_refused(change, "Json", &[reason]);
    }
}
