//! Maximum memory and time for a tokenizer file of n bytes, with any vocabulary.

use refrain::internals::tokenizer::TokenizerParts as _;
use std::time::Duration;

use refrain::internals::engine::TOKENIZER_TOKEN_BYTES;
use refrain::internals::model::gguf::{GgufFile, GgufValue};
use refrain::internals::tokenizer::{FILE_MEMORY_MULTIPLE, FILE_MEMORY_SLACK};
use refrain::{SpecialTokens, Tokenizer, TokenizerError};
use serde_json::json;

use crate::model_files::hf::tokenizer_json;
use crate::model_files::{Gguf, assert_variant, spm_gguf};
use crate::{MEMORY, turn};

/// Builds a tokenizer from a file of `n_bytes` and checks its peak of memory and its time.
#[track_caller]
fn bounded(
    n_bytes: usize,
    build: impl FnOnce() -> Result<Tokenizer, TokenizerError>,
) -> Result<Tokenizer, TokenizerError> {
    let start = cpu_time();
    MEMORY.reset_peak_usage();
    let before = MEMORY.current_usage();
    let result = build();
    let used = MEMORY.peak_usage().saturating_sub(before);
    let limit = FILE_MEMORY_MULTIPLE * n_bytes + FILE_MEMORY_SLACK;
    assert!(used <= limit, "{used} bytes of memory for a file of {n_bytes}, {limit} allowed");
    assert_below_seconds(20, start);
    result
}

/// The time that this thread has computed: other than that of a clock, it does not grow while others have the cores.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[track_caller]
fn assert_below_seconds(seconds: u64, start: Duration) {
    let took = cpu_time() - start;
    assert!(took < Duration::from_secs(seconds), "{took:?} of computing");
}

/// The sentence-piece vocabulary of the other tests, with further pieces.
fn spm_with(pieces: impl Iterator<Item = String>) -> Gguf {
    let mut gguf = spm_gguf();
    let get = |gguf: &Gguf, key: &str| gguf.metadata.iter().find(|(k, _)| k == key).unwrap().1.clone();
    let array = |value: GgufValue| value.as_array().unwrap().clone();
    let mut tokens = array(get(&gguf, "tokenizer.ggml.tokens")).as_strings().unwrap().to_vec();
    let mut scores = array(get(&gguf, "tokenizer.ggml.scores")).as_f32s().unwrap().to_vec();
    let known: std::collections::HashSet<String> = tokens.iter().cloned().collect();
    for piece in pieces.filter(|piece| !known.contains(piece)) {
        scores.push(-(tokens.len() as f32));
        tokens.push(piece);
    }
    let mut types: Vec<i32> = vec![1; tokens.len()];
    types[0] = 2;
    types[1..3].fill(3);
    types[3..259].fill(6);
    gguf.set("tokenizer.ggml.tokens", tokens).set("tokenizer.ggml.scores", scores);
    gguf.set("tokenizer.ggml.token_type", types);
    gguf
}

fn build_gguf(gguf: &Gguf) -> Result<Tokenizer, TokenizerError> {
    let bytes = gguf.bytes();
    let (n_bytes, file) = (bytes.len(), GgufFile::from_bytes(bytes.into(), "bad.gguf").unwrap());
    bounded(n_bytes, || Tokenizer::from_gguf(&file))
}

#[test]
fn pieces_with_a_split_at_every_character() {
    let _turn = turn();
    for unit in ["a", "ab", "日"] {
        let runs = |n: usize| (1..=n).map(move |len| unit.chars().cycle().take(len).collect::<String>());
        // 4.5 MB of pieces whose merges would take 7 GB.
        let refused = build_gguf(&spm_with(runs(3000))).unwrap_err();
        assert_variant(&refused, "MergesTooLarge", &["bad.gguf", "tokenizer.ggml.scores", "limit"]);
        // As long as in published vocabularies.
        let text = unit.repeat(50);
        let tokenizer = build_gguf(&spm_with(runs(64))).unwrap();
        let ids = tokenizer.encode(&text, SpecialTokens::AsText).unwrap();
        assert_eq!(tokenizer.decode(&ids), text);
    }
}

#[test]
fn long_pieces_that_share_their_beginnings() {
    let _turn = turn();
    let long = (0..60u32).map(|i| format!("{}{}", "a".repeat(60_000), char::from_u32(0x4e00 + i).unwrap()));
    build_gguf(&spm_with(long)).unwrap();
}

#[test]
fn as_many_short_pieces_as_letters_make() {
    let _turn = turn();
    let letters: Vec<char> = ('a'..='z').collect();
    let n = letters.len();
    let words = (0..n * n * n + n * n).map(|i| {
        let mut word: String = [letters[i % n], letters[i / n % n]].iter().collect();
        word.extend((i >= n * n).then(|| letters[i / n / n - 1]));
        word
    });
    build_gguf(&spm_with(words)).unwrap();
}

#[track_caller]
fn build_json(json: &serde_json::Value) -> Result<Tokenizer, TokenizerError> {
    let text = json.to_string();
    bounded(text.len(), || Tokenizer::from_json(&text, "tokenizer.json"))
}

#[test]
fn byte_level_runs_with_the_merges_of_the_file() {
    let _turn = turn();
    let mut json = tokenizer_json();
    let n = 1500;
    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    for len in 2..=n {
        vocab.insert("a".repeat(len), (300 + len).into());
    }
    let merges = (1..n).map(|len| json!([&"a".repeat(len), "a"]));
    json["model"]["merges"].as_array_mut().unwrap().extend(merges);
    build_json(&json).unwrap();
}

/// The estimate of a model's memory counts so many bytes for each token.
#[test]
fn a_tokenizer_keeps_what_is_estimated() {
    let _turn = turn();
    let mut json = tokenizer_json();
    let letters: Vec<String> = ('a'..='z').map(String::from).collect();
    let pairs = letters.iter().flat_map(|a| letters.iter().map(move |b| (a.clone(), b.clone())));
    let triples =
        pairs.clone().flat_map(|(a, b)| letters.iter().map(move |c| (format!("{a}{b}"), c.clone())));
    // Behind the tokens that the file has, and those that are added to it.
    for (id, (left, right)) in (261..).zip(pairs.clone().chain(triples)) {
        let vocab = json["model"]["vocab"].as_object_mut().unwrap();
        if !vocab.contains_key(&format!("{left}{right}")) {
            vocab.insert(format!("{left}{right}"), id.into());
            json["model"]["merges"].as_array_mut().unwrap().push(json!([left, right]));
        }
    }
    let text = json.to_string();
    drop(json);
    let before = MEMORY.current_usage();
    let tokenizer = Tokenizer::from_json(&text, "tokenizer.json").unwrap();
    let kept = (MEMORY.current_usage() - before) as u64;
    let estimated = TOKENIZER_TOKEN_BYTES * tokenizer.vocab_size() as u64;
    println!("{kept} bytes of {} tokens, {estimated} estimated", tokenizer.vocab_size());
    assert!(kept <= estimated && estimated <= 4 * kept, "{kept} bytes, {estimated} estimated");
}

#[test]
fn added_tokens_of_any_length() {
    let _turn = turn();
    // Longer ones are refused, because the automaton for finding them takes a multiple of their text.
    let mut json = tokenizer_json();
    let token = |i: usize, len: usize, special: bool| {
        let text: String = format!("<{i:05}").chars().cycle().take(len).collect();
        json!({"id": 300 + i, "content": text, "special": special})
    };
    json["added_tokens"].as_array_mut().unwrap().extend((0..90).map(|i| token(i, 60_000, i % 2 == 0)));
    let refused = build_json(&json).unwrap_err();
    assert_variant(&refused, "OverLimit", &["bytes of an added token", "1024"]);

    let mut json = tokenizer_json();
    json["added_tokens"].as_array_mut().unwrap().extend((0..2000).map(|i| token(i, 1000, i % 2 == 0)));
    let refused = build_json(&json).unwrap_err();
    assert_variant(&refused, "OverLimit", &["bytes of all added tokens", "1048576"]);
    json["added_tokens"].as_array_mut().unwrap().truncate(1000);
    build_json(&json).unwrap();
    let mut json = tokenizer_json();
    json["added_tokens"].as_array_mut().unwrap().extend((0..60_000).map(|i| token(i, 8, i % 2 == 0)));
    build_json(&json).unwrap();
}

/// A unigram vocabulary of these pieces.
fn unigram_json(pieces: impl Iterator<Item = String>) -> serde_json::Value {
    let mut vocab = vec![json!(["<unk>", 0.0]), json!(["▁", -1.0])];
    vocab.extend(pieces.enumerate().map(|(i, piece)| json!([piece, -1.0 - i as f64])));
    json!({
        "added_tokens": [{"id": 0, "content": "<unk>", "special": true}],
        "pre_tokenizer": {"type": "Metaspace", "replacement": "▁"},
        "model": {"type": "Unigram", "unk_id": 0, "vocab": vocab},
    })
}

#[test]
fn unigram_pieces_that_share_nothing_or_everything() {
    let _turn = turn();
    // A tree of hash tables would take a table for every letter.
    let digit = |n: usize| char::from_u32(0x4e00 + n as u32).unwrap();
    let distinct = (0..40_000).map(|i| {
        let head: String = [digit(i % 200), digit(200 + i / 200 % 200)].iter().collect();
        head + &"xyzw".repeat(15)
    });
    build_json(&unigram_json(distinct)).unwrap();
    let runs = unigram_json((1..=256).map(|len| "a".repeat(len)));
    let tokenizer = build_json(&runs).unwrap();
    let start = cpu_time();
    let text = "a".repeat(1 << 20);
    let ids = tokenizer.encode(&text, SpecialTokens::AsText).unwrap();
    assert_eq!(tokenizer.decode(&ids), text);
    assert_below_seconds(20, start);
    let short = unigram_json((0..200_000).map(|i| format!("{i:x}")));
    build_json(&short).unwrap();
}
