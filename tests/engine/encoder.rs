//! Sentence encoders: the vectors of transformers (`tools/encoder-goldens`), the same bits however they are computed, and folders that are
//! refused.

use std::fs;
use std::path::{Path, PathBuf};

use refrain::device::IsaKind;
use refrain::embedding::{Encoder, EncoderOptions};
use refrain::internals::kernels::Kernels;
use refrain::{CancelToken, ErrorKind, LoadError};
use serde_json::{Value, json};

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/encoders").join(name)
}

fn opened(folder: &Path, n_threads: usize, isa: Option<IsaKind>) -> Encoder {
    let mut options = EncoderOptions::default();
    (options.n_threads, options.isa) = (Some(n_threads), isa);
    Encoder::open(folder, options).expect("a sound folder")
}

fn encode(encoder: &Encoder, texts: &[&str]) -> Vec<Vec<f32>> {
    encoder.encode(texts, &CancelToken::new()).unwrap()
}

/// A text, its ids and its vector by the reference implementation.
struct Case {
    text: String,
    n_tokens: usize,
    vector: Vec<f32>,
}

fn cases(file: &Path) -> Vec<Case> {
    let text = fs::read_to_string(file)
        .unwrap_or_else(|e| panic!("{}: {e}; run tools/encoder-goldens", file.display()));
    let cases: Vec<Value> = serde_json::from_str(&text).unwrap();
    let numbers =
        |value: &Value| value.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
    let case = |case: &Value| Case {
        text: case["text"].as_str().unwrap().to_owned(),
        n_tokens: case["ids"].as_array().unwrap().len(),
        vector: numbers(&case["vector"]),
    };
    cases.iter().map(case).collect()
}

/// The largest difference of the vectors from those of the reference.
fn largest_difference(encoder: &Encoder, cases: &[Case]) -> f32 {
    let texts: Vec<&str> = cases.iter().map(|case| &*case.text).collect();
    let vectors = encode(encoder, &texts);
    let mut largest = 0.0_f32;
    for (case, vector) in cases.iter().zip(&vectors) {
        assert_eq!(encoder.count_tokens(&case.text).unwrap().0, case.n_tokens, "{:?}", case.text);
        assert_eq!(vector.len(), case.vector.len());
        let differences = vector.iter().zip(&case.vector).map(|(a, b)| (a - b).abs());
        largest = differences.fold(largest, f32::max);
    }
    largest
}

#[test]
fn vectors_are_those_of_the_reference() {
    for name in ["bert", "xlm-roberta"] {
        let largest =
            largest_difference(&opened(&golden(name), 2, None), &cases(&golden(name).join("vectors.json")));
        assert!(largest < 2e-6, "{name}: {largest}");
    }
}

/// `REFRAIN_TEST_MINILM` names a folder with the published model.
#[test]
fn the_vectors_of_minilm_are_those_of_the_reference() {
    let Some(folder) = std::env::var_os("REFRAIN_TEST_MINILM") else { return };
    let encoder = opened(Path::new(&folder), 2, None);
    assert_eq!((encoder.dimensions(), encoder.tokens_max()), (384, 256));
    let cases = cases(&golden("minilm.json"));
    let largest = largest_difference(&encoder, &cases);
    println!("the largest difference is {largest:e}");
    assert!(largest < 1e-5, "{largest}");
    let vectors: Vec<&[f32]> = cases.iter().map(|case| &*case.vector).collect();
    let likeness = |a: usize, b: usize| vectors[a].iter().zip(vectors[b]).map(|(a, b)| a * b).sum::<f32>();
    assert!(likeness(0, 1) > likeness(1, 2) + 0.3, "a question and the note that answers it");
}

#[test]
fn a_vector_has_the_same_bits_alone_and_together_on_any_threads_and_instruction_set() {
    for name in ["bert", "xlm-roberta"] {
        let cases = cases(&golden(name).join("vectors.json"));
        // More rows than one pass has.
        let texts: Vec<&str> = cases.iter().cycle().take(60).map(|case| &*case.text).collect();
        let together = encode(&opened(&golden(name), 3, None), &texts);
        let alone = opened(&golden(name), 1, None);
        for (text, vector) in texts.iter().zip(&together).rev() {
            assert_eq!(encode(&alone, &[text])[0], *vector, "{name}: {text:?}");
        }
        for kernels in Kernels::available() {
            let other = opened(&golden(name), 2, Some(kernels.isa()));
            assert_eq!(encode(&other, &texts[..8]), together[..8], "{name}: {}", kernels.isa());
            assert_eq!(other.identity(), alone.identity());
        }
    }
    assert!(encode(&opened(&golden("bert"), 1, None), &[]).is_empty());
}

#[test]
fn a_longer_text_is_cut_and_a_cancelled_one_has_no_vector() {
    let encoder = opened(&golden("bert"), 1, None);
    let (long, longer) = ("tap ".repeat(200), "tap ".repeat(300));
    assert_eq!(encode(&encoder, &[&long]), encode(&encoder, &[&longer]));
    let (n_read, n_left) = encoder.count_tokens(&long).unwrap();
    assert!(n_read == encoder.tokens_max() && n_left > 0);
    let cancel = CancelToken::new();
    cancel.cancel();
    assert_eq!(encoder.encode(&["a"], &cancel).unwrap_err().kind(), ErrorKind::Cancelled);
    // The next text has its vector.
    assert_eq!(encode(&encoder, &["a"]).len(), 1);
    let prompts = opened(&golden("xlm-roberta"), 1, None);
    assert_eq!((prompts.query_prompt(), prompts.passage_prompt()), ("query: ", "passage: "));
}

/// A copy of a golden folder.
struct Copied(tempfile::TempDir);

impl Copied {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        fs::create_dir(place.path().join("1_Pooling")).unwrap();
        for name in [
            "config.json",
            "modules.json",
            "1_Pooling/config.json",
            "sentence_bert_config.json",
            "tokenizer.json",
            "model.safetensors",
        ] {
            fs::copy(golden("bert").join(name), place.path().join(name)).unwrap();
        }
        Self(place)
    }

    fn change(&self, name: &str, change: impl Fn(&mut Value)) {
        let path = self.0.path().join(name);
        let mut value: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut value);
        fs::write(path, value.to_string()).unwrap();
    }

    #[track_caller]
    fn refused(&self, kind: ErrorKind, has: &[&str]) -> LoadError {
        let error = Encoder::open(self.0.path(), EncoderOptions::default()).expect_err("refused");
        assert_eq!(error.kind(), kind, "{error}");
        let file = error.file().map(|file| file.starts_with(self.0.path()));
        assert_eq!(file, Some(true), "{error}");
        assert!(has.iter().all(|has| error.to_string().contains(has)), "{error}, not {has:?}");
        error
    }
}

#[test]
fn damaged_folders_are_refused_with_file_field_and_limit() {
    let copied = Copied::new();
    let weights = copied.0.path().join("model.safetensors");
    let bytes = fs::read(&weights).unwrap();
    for cut in [4, 100, bytes.len() - 4] {
        fs::write(&weights, &bytes[..cut]).unwrap();
        copied.refused(ErrorKind::Damaged, &["model.safetensors"]);
    }
    let mut huge = bytes.clone();
    huge[..8].copy_from_slice(&(1_u64 << 60).to_le_bytes());
    fs::write(&weights, &huge).unwrap();
    copied.refused(ErrorKind::OverLimit, &["1152921504606846976", "limit of 100000000"]);
    fs::write(&weights, &bytes).unwrap();

    for (field, value, kind, has) in [
        ("hidden_size", json!(1_u64 << 50), ErrorKind::Damaged, "`hidden_size` is 1125899906842624"),
        // Within the limits, and not what the tensors are: nothing of this size is allocated.
        ("vocab_size", json!(16_000_000), ErrorKind::Damaged, "word_embeddings.weight` has shape"),
        (
            "max_position_embeddings",
            json!(65_536),
            ErrorKind::Damaged,
            "position_embeddings.weight` has shape",
        ),
        (
            "num_hidden_layers",
            json!(4),
            ErrorKind::Damaged,
            "`encoder.layer.3.attention.self.query.weight` is missing",
        ),
        ("num_hidden_layers", json!(2), ErrorKind::Damaged, "`encoder.layer.2."),
        (
            "intermediate_size",
            json!(1_000_000),
            ErrorKind::Damaged,
            "`encoder.layer.0.intermediate.dense.weight` has shape",
        ),
        ("hidden_act", json!("relu"), ErrorKind::Unsupported, "`hidden_act` = relu"),
        ("num_attention_heads", json!(5), ErrorKind::Damaged, "do not fit together"),
    ] {
        let copied = Copied::new();
        copied.change("config.json", |config| config[field] = value.clone());
        copied.refused(kind, &[has]);
    }
    let copied = Copied::new();
    copied.change("1_Pooling/config.json", |pooling| pooling["pooling_mode_max_tokens"] = true.into());
    copied.refused(ErrorKind::Unsupported, &["1_Pooling/config.json", "pooling_mode_max_tokens"]);

    let copied = Copied::new();
    copied.change("tokenizer.json", |tokenizer| {
        tokenizer["model"]["vocab"].as_object_mut().unwrap().remove("[UNK]");
    });
    copied.refused(ErrorKind::NotFound, &["tokenizer.json", "\"[UNK]\" (`unk_token`)"]);
    let copied = Copied::new();
    copied.change("tokenizer.json", |tokenizer| tokenizer["model"]["vocab"]["beyond"] = 500.into());
    copied.refused(ErrorKind::Mismatch, &["501 tokens"]);

    let empty = tempfile::tempdir().unwrap();
    let error = Encoder::open(empty.path(), EncoderOptions::default()).unwrap_err();
    assert!(error.to_string().contains("no folder with a `config.json`"), "{error}");
    assert!(!Encoder::is_encoder(empty.path()) && Encoder::is_encoder(golden("bert")));
    assert!(!Encoder::is_encoder(golden("../qwen3")));
}

/// A folder of BERT's first years has its vocabulary as a text.
#[test]
fn a_vocabulary_of_lines_is_the_tokenizer() {
    let copied = Copied::new();
    let expected = opened(copied.0.path(), 1, None);
    let text = fs::read_to_string(copied.0.path().join("tokenizer.json")).unwrap();
    let tokenizer: Value = serde_json::from_str(&text).unwrap();
    let mut tokens: Vec<(u64, String)> = tokenizer["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(text, id)| (id.as_u64().unwrap(), text.clone()))
        .collect();
    tokens.sort_unstable();
    let lines: String = tokens.iter().map(|(_, text)| format!("{text}\n")).collect();
    fs::remove_file(copied.0.path().join("tokenizer.json")).unwrap();
    fs::write(copied.0.path().join("vocab.txt"), &lines).unwrap();
    let encoder = opened(copied.0.path(), 1, None);
    assert_eq!(encoder.identity(), expected.identity());
    for case in cases(&golden("bert").join("vectors.json")) {
        assert_eq!(encode(&encoder, &[&case.text]), encode(&expected, &[&case.text]));
    }
    fs::write(copied.0.path().join("vocab.txt"), format!("{lines}tap\ntap\n")).unwrap();
    copied.refused(ErrorKind::Damaged, &["vocab.txt", "\"tap\""]);
}
