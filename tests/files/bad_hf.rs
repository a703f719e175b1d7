//! Every rule that a Hugging Face folder can break, with its error: safetensors files, the shard index.

use std::path::Path;

use refrain::checkpoint::Checkpoint;
use refrain::internals::model::Source;
use refrain::internals::model::checkpoint::{LayerWeight, WeightId};
use refrain::internals::model::hf::{SafetensorsError, SafetensorsFile, TENSORS_MAX};
use serde_json::{Value, json};

use crate::model_files::hf::{HfModel, with_header};
use crate::model_files::{self, Gguf, assert_variant};

// Safetensors

fn parse(bytes: Vec<u8>) -> Result<SafetensorsFile, SafetensorsError> {
    SafetensorsFile::from_source(Source::from_bytes(bytes.into(), "bad.safetensors"))
}

#[track_caller]
fn refused(header: &str, data_len: usize, variant: &str, message_has: &[&str]) {
    let bytes = with_header(header, data_len);
    assert_variant(&parse(bytes).unwrap_err(), variant, &[&["bad.safetensors"], message_has].concat());
}

#[test]
fn safetensors_lengths() {
    for len in 0..8 {
        assert_variant(&parse(vec![0; len]).unwrap_err(), "TooShort", &["at least 8"]);
    }
    let stating = |len: u64| [&len.to_le_bytes()[..], b"{}"].concat();
    assert_variant(&parse(stating(u64::MAX)).unwrap_err(), "HeaderTooLarge", &["limit of 100000000"]);
    assert_variant(&parse(stating(100_000_001)).unwrap_err(), "HeaderTooLarge", &[]);
    assert_variant(&parse(stating(3)).unwrap_err(), "HeaderTruncated", &["3 bytes", "10 bytes"]);
    assert_eq!(parse(stating(2)).unwrap().tensors(), []);
}

#[test]
fn safetensors_headers() {
    for header in ["", "[]", "{", "{\"a\": 1}", "{\"a\": {\"dtype\": \"F32\"}}", "{} x", "\u{0}"] {
        refused(header, 0, "Header", &[]);
    }
    let one = |rest: &str| format!("{{\"a\": {{\"dtype\": \"F32\", {rest}}}}}");
    refused(&one("\"shape\": [-1], \"data_offsets\": [0, 4]"), 4, "Header", &["tensor \"a\""]);
    refused(&one("\"shape\": [1], \"data_offsets\": [0]"), 4, "Header", &[]);
    refused(&one("\"shape\": [1], \"shape\": [1], \"data_offsets\": [0, 4]"), 4, "Header", &["duplicate"]);
    refused(&one("\"shape\": [18446744073709551616], \"data_offsets\": [0, 4]"), 4, "Header", &[]);
    assert_eq!(parse(with_header("{\"__metadata__\": {\"format\": \"pt\"}}   ", 0)).unwrap().tensors(), []);
}

#[test]
fn a_name_given_twice_is_refused() {
    let entry = |begin: u64| {
        format!("{{\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [{begin}, {}]}}", begin + 4)
    };
    refused(&format!("{{\"a\": {}, \"a\": {}}}", entry(0), entry(4)), 8, "Header", &["\"a\" is given twice"]);
    refused("{\"__metadata__\": {}, \"__metadata__\": {}}", 0, "Header", &["given twice"]);
}

#[test]
fn safetensors_tensors() {
    let tensor = |dtype: &str, shape: &str, offsets: &str| {
        format!("{{\"a\": {{\"dtype\": \"{dtype}\", \"shape\": {shape}, \"data_offsets\": {offsets}}}}}")
    };
    refused(
        &tensor("F32", "[1,1,1,1,1,1,1,1,1]", "[0, 4]"),
        4,
        "TooManyDims",
        &["9 dimensions", "limit is 8"],
    );
    refused(&tensor("F32", "[4294967296, 4294967296]", "[0, 4]"), 4, "SizeOverflow", &["`a`"]);
    refused(&tensor("F4", "[3]", "[0, 2]"), 2, "SizeOverflow", &["[3]"]);
    refused(&tensor("F32", "[2]", "[0, 4]"), 4, "WrongSize", &["0..4", "needs 8 bytes"]);
    refused(&tensor("F32", "[1]", "[4, 0]"), 4, "WrongSize", &["4..0"]);
    refused(&tensor("X9", "[1]", "[4, 0]"), 4, "WrongSize", &[]);
    refused(&tensor("F32", "[2]", "[0, 8]"), 4, "OutOfFile", &["offset 8", "4 bytes of data"]);
    refused(&tensor("F32", "[1]", "[0, 4]"), 8, "Gap", &["4 bytes at data offset 4"]);
    refused(&tensor("F32", "[1]", "[4, 8]"), 8, "Gap", &["data offset 0"]);
    refused("{}", 1, "Gap", &[]);
    let two = "{\"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]},
        \"b\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [4, 12]}}";
    refused(two, 12, "Overlap", &["`b`", "`a`", "ends at 8"]);
    // A type of a later version is listed. An empty tensor has no bytes.
    let listed = parse(with_header(&tensor("X9", "[1]", "[0, 4]"), 4)).unwrap();
    assert_eq!(listed.tensors()[0].dtype.name(), "X9");
    assert_eq!(parse(with_header(&tensor("F32", "[0]", "[0, 0]"), 0)).unwrap().tensors()[0].len, 0);
}

#[test]
fn too_many_tensors() {
    let entries = (0..=TENSORS_MAX)
        .map(|i| format!("\"{i}\":{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}"));
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    refused(&header, 0, "TooManyTensors", &["131073", "131072"]);
}

#[test]
fn what_is_accepted_here_is_accepted_by_the_formats_own_library() {
    for name in ["llama", "qwen2", "qwen3"] {
        let model = model_files::hf::safetensors_bytes(&HfModel::tiny(name).tensors);
        let ours = parse(model.clone()).unwrap();
        let theirs = safetensors::SafeTensors::deserialize(&model).unwrap();
        assert_eq!(ours.tensors().len(), theirs.len());
        for tensor in ours.tensors() {
            assert_eq!(ours.read(tensor).unwrap(), theirs.tensor(&tensor.name).unwrap().data());
        }
    }
}

// Folders

#[track_caller]
fn folder_refused(write: impl Fn(&Path), variant: &str, message_has: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    assert_variant(&Checkpoint::open(dir.path()).unwrap_err(), variant, message_has);
}

#[test]
fn a_sharded_folder_equals_the_single_file() {
    let (single, sharded) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let model = HfModel::tiny("qwen3");
    model.write(single.path());
    model.write_sharded(sharded.path(), |_| {});
    let (single, sharded) =
        (Checkpoint::open(single.path()).unwrap(), Checkpoint::open(sharded.path()).unwrap());
    assert_eq!(single.config(), sharded.config());
    for id in [WeightId::Embedding, WeightId::Head, WeightId::Layer(0, LayerWeight::QNorm)] {
        assert_eq!(single.tensor(id), sharded.tensor(id));
        assert_eq!(single.read(id).unwrap().len(), sharded.read(id).unwrap().len());
    }
}

#[test]
fn folders_without_their_files() {
    folder_refused(|_| {}, "Hf(MissingFile", &["no `model.safetensors`"]);
    folder_refused(
        |dir| {
            HfModel::tiny("llama").write(dir);
            std::fs::remove_file(dir.join("config.json")).unwrap();
        },
        "Hf(MissingFile",
        &["no `config.json`"],
    );
    folder_refused(
        |dir| {
            HfModel::tiny("llama").write(dir);
            std::fs::write(dir.join("config.json"), b"{\"a\": \"\xff\"}").unwrap();
        },
        "Hf(NotUtf8",
        &["byte 7"],
    );
    folder_refused(
        |dir| {
            HfModel::tiny("llama").write(dir);
            let file = std::fs::File::create(dir.join("config.json")).unwrap();
            file.set_len(257 << 20).unwrap();
        },
        "Hf(TooLarge",
        &["config.json", "limit of 268435456"],
    );
    folder_refused(
        |dir| {
            HfModel::tiny("llama").write(dir);
            std::fs::write(dir.join("model.safetensors"), "short").unwrap();
        },
        "Hf(Safetensors(TooShort",
        &["model.safetensors"],
    );
    folder_refused(
        |dir| {
            HfModel::tiny("llama").write(dir);
            std::fs::remove_file(dir.join("config.json")).unwrap();
            std::fs::create_dir(dir.join("config.json")).unwrap();
        },
        "Hf(Io",
        &["config.json"],
    );
}

#[test]
fn indexes() {
    let sharded =
        |change: fn(&mut Value)| move |dir: &Path| HfModel::tiny("llama").write_sharded(dir, change);
    folder_refused(sharded(|index| *index = json!([])), "Hf(Index", &["index.json"]);
    folder_refused(sharded(|index| index["weight_map"]["lm_head.weight"] = 3.into()), "Hf(Index", &[]);
    for name in [
        "../model.safetensors",
        "/etc/passwd",
        "a/b.safetensors",
        "a\\b.safetensors",
        "C:x.safetensors",
        ".safetensors",
        "model.bin",
        "",
        "a\u{0}.safetensors",
    ] {
        let dir = tempfile::tempdir().unwrap();
        HfModel::tiny("llama")
            .write_sharded(dir.path(), |index| index["weight_map"]["lm_head.weight"] = name.into());
        assert_variant(&Checkpoint::open(dir.path()).unwrap_err(), "Hf(ShardName", &["inside the folder"]);
    }
    folder_refused(
        sharded(|index| index["weight_map"]["lm_head.weight"] = "gone.safetensors".into()),
        "Hf(Safetensors(Io",
        &["gone.safetensors"],
    );
    folder_refused(
        sharded(|index| index["weight_map"]["extra"] = "model-00001-of-00012.safetensors".into()),
        "Hf(NotInShard",
        &["`extra`", "model-00001-of-00012"],
    );
    folder_refused(
        sharded(|index| index["weight_map"]["lm_head.weight"] = "model-00001-of-00012.safetensors".into()),
        "Hf(NotInShard",
        &["`lm_head.weight`"],
    );
    folder_refused(
        |dir| {
            HfModel::tiny("llama").write_sharded(dir, |_| {});
            let two = [("model.embed_tokens.weight", 262 * 32), ("model.norm.weight", 32)];
            let mut both = HfModel::tiny("llama").tensors;
            both.retain(|t| two.iter().any(|(name, _)| *name == t.name));
            let bytes = model_files::hf::safetensors_bytes(&both);
            std::fs::write(dir.join("model-00001-of-00012.safetensors"), bytes).unwrap();
        },
        "Hf(NotInIndex",
        &["`model.norm.weight`", "does not place there"],
    );
    folder_refused(
        |dir| {
            let map: serde_json::Map<_, _> =
                (0..1025).map(|i| (format!("t{i}"), format!("{i}.safetensors").into())).collect();
            let index = json!({"weight_map": map});
            std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
        },
        "Hf(TooManyShards",
        &["1025", "1024"],
    );
    let twice = "{\"weight_map\": {\"a\": \"a.safetensors\", \"a\": \"b.safetensors\"}}";
    folder_refused(
        |dir| std::fs::write(dir.join("model.safetensors.index.json"), twice).unwrap(),
        "Hf(Index",
        &["given twice"],
    );
}

#[test]
fn paths_that_are_no_model() {
    let dir = tempfile::tempdir().unwrap();
    assert_variant(&Checkpoint::open("no/such/path").unwrap_err(), "NoSuchFile", &["no such file"]);
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "notes").unwrap();
    assert_variant(&Checkpoint::open(&text).unwrap_err(), "NotAModel", &["neither a GGUF file"]);
    let named = dir.path().join("named.gguf");
    std::fs::write(&named, "notes").unwrap();
    assert_variant(&Checkpoint::open(&named).unwrap_err(), "Gguf(Magic", &[]);
    let unnamed = dir.path().join("blob");
    std::fs::write(&unnamed, Gguf::tiny().bytes()).unwrap();
    assert_eq!(Checkpoint::open(&unnamed).unwrap().config().n_layers(), 1);
}
