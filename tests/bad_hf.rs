//! Every rule that a Hugging Face folder can break, and the error that says so: safetensors, index, configuration,
//! tensors that do not fit the architecture.

mod model_files;

use std::fmt::Debug;
use std::path::Path;

use model_files::Gguf;
use model_files::hf::{HfModel, with_header};
use refrain::kernels::BlockType;
use refrain::model::checkpoint::{Checkpoint, LayerWeight, LoadError, WeightId};
use refrain::model::config::{Architecture, ConfigError, ModelConfig, RopeScaling};
use refrain::model::hf::{SafetensorsError, SafetensorsFile, TENSORS_MAX, parse_config};
use refrain::model::source::Source;
use serde_json::{Value, json};

#[track_caller]
fn assert_variant(error: &(impl Debug + std::fmt::Display), variant: &str, message_has: &[&str]) {
    let (debug, message) = (format!("{error:?}"), error.to_string());
    assert!(debug.starts_with(variant), "expected {variant}, got {debug}");
    assert!(!message.contains('\n'), "{message}");
    for part in message_has {
        assert!(message.contains(part), "{message:?} does not have {part:?}");
    }
}

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
    // A type of a later version is listed; an empty tensor has no bytes.
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
    assert_variant(&Checkpoint::open("no/such/path".as_ref()).unwrap_err(), "NotAModel", &["no such file"]);
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "notes").unwrap();
    assert_variant(&Checkpoint::open(&text).unwrap_err(), "NotAModel", &["neither a GGUF file"]);
    let named = dir.path().join("named.gguf");
    std::fs::write(&named, "notes").unwrap();
    assert_variant(&Checkpoint::open(&named).unwrap_err(), "Gguf(Magic", &[]);
    let unnamed = dir.path().join("blob");
    std::fs::write(&unnamed, Gguf::tiny().bytes()).unwrap();
    assert_eq!(Checkpoint::open(&unnamed).unwrap().config().n_layers, 1);
}

// Configuration

fn config(change: impl Fn(&mut Value)) -> Result<ModelConfig, ConfigError> {
    let mut config = HfModel::tiny("llama").config;
    change(&mut config);
    parse_config(&config.to_string(), "config.json")
}

#[track_caller]
fn config_refused(change: impl Fn(&mut Value), variant: &str, message_has: &[&str]) {
    let error = config(change).expect_err(variant);
    assert_variant(&error, variant, &[&["config.json"], message_has].concat());
}

#[test]
fn configurations_that_are_refused() {
    for text in ["", "[]", "3", "{", &"[".repeat(100_000)] {
        assert_variant(&parse_config(text, "config.json").unwrap_err(), "NotJson", &["config.json"]);
    }
    config_refused(|c| *c = json!({}), "Missing", &["`model_type`"]);
    config_refused(
        |c| c["model_type"] = "gemma3".into(),
        "UnknownArchitecture",
        &["`gemma3`", "supported: llama"],
    );
    for field in
        ["hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size"]
    {
        config_refused(|c| c[field] = Value::Null, "Missing", &[&format!("`{field}`")]);
        config_refused(|c| c[field] = "64".into(), "WrongType", &[field, "whole number", "\"64\""]);
        config_refused(|c| c[field] = (-1).into(), "WrongType", &["-1"]);
        config_refused(|c| c[field] = 1.5.into(), "WrongType", &["1.5"]);
        config_refused(|c| c[field] = u64::MAX.into(), "OutOfRange", &["18446744073709551615"]);
        config_refused(|c| c[field] = 0.into(), "OutOfRange", &["is 0"]);
    }
    config_refused(
        |c| c["num_key_value_heads"] = 3.into(),
        "Inconsistent",
        &["n_heads = 4", "n_kv_heads = 3"],
    );
    config_refused(|c| c["head_dim"] = 7.into(), "OutOfRange", &["even"]);
    config_refused(|c| c["head_dim"] = 0.into(), "OutOfRange", &["head_dim"]);
    config_refused(|c| c["max_position_embeddings"] = 0.into(), "OutOfRange", &["context_len"]);
    for eps in [json!(0.0), json!(-1e-6), json!(1e300)] {
        config_refused(|c| c["rms_norm_eps"] = eps.clone(), "OutOfRange", &["norm_eps"]);
    }
    config_refused(|c| c["rope_theta"] = 0.into(), "OutOfRange", &["rope_theta"]);
    config_refused(|c| c["rms_norm_eps"] = "1e-6".into(), "WrongType", &["a number"]);
}

#[test]
fn features_that_are_not_computed_are_refused_by_name() {
    for (field, value) in [
        ("hidden_act", json!("gelu")),
        ("mlp_bias", json!(true)),
        ("partial_rotary_factor", json!(0.5)),
        ("quantization_config", json!({"quant_method": "gptq"})),
        ("num_local_experts", json!(8)),
        ("num_experts", json!(64)),
        ("attn_logit_softcapping", json!(50.0)),
        ("final_logit_softcapping", json!(30.0)),
        ("attention_multiplier", json!(0.1)),
        ("layer_types", json!(["linear_attention"])),
        ("layer_types", json!("all")),
    ] {
        config_refused(|c| c[field] = value.clone(), "Unsupported", &[field]);
    }
    for kind in ["yarn", "dynamic", "longrope", "su", "mrope"] {
        let scaling = json!({"rope_type": kind, "factor": 4.0});
        config_refused(
            |c| c["rope_scaling"] = scaling.clone(),
            "Unsupported",
            &["rope_scaling.rope_type", kind],
        );
        config_refused(|c| c["rope_parameters"] = scaling.clone(), "Unsupported", &["rope_parameters", kind]);
    }
    let old_name = json!({"type": "yarn", "factor": 4.0});
    config_refused(|c| c["rope_scaling"] = old_name.clone(), "Unsupported", &["yarn"]);
    let by_layer = json!({"full_attention": {"rope_type": "default"}});
    config_refused(|c| c["rope_parameters"] = by_layer.clone(), "Unsupported", &["full_attention"]);
    let partial = json!({"rope_type": "default", "partial_rotary_factor": 0.5});
    config_refused(|c| c["rope_parameters"] = partial.clone(), "Unsupported", &["partial_rotary_factor"]);
    config_refused(
        |c| c["rope_scaling"] = json!({"rope_type": "linear"}),
        "Missing",
        &["rope_scaling.factor"],
    );
    let flat = json!({"rope_type": "linear", "factor": -2.0});
    config_refused(|c| c["rope_scaling"] = flat.clone(), "OutOfRange", &["factor"]);
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    config_refused(
        |c| c["rope_scaling"] = llama3.clone(),
        "Inconsistent",
        &["low_freq_factor", "high_freq_factor"],
    );
    let no_context = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 0});
    config_refused(
        |c| c["rope_scaling"] = no_context.clone(),
        "OutOfRange",
        &["original_max_position_embeddings"],
    );
}

#[test]
fn both_layouts_of_the_rotary_settings_are_read() {
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    let older = config(|c| {
        c["rope_theta"] = 500_000.0.into();
        c["rope_scaling"] = llama3.clone();
    });
    let newer = config(|c| {
        c["rope_theta"] = Value::Null;
        c["rope_parameters"] = llama3.clone();
        c["rope_parameters"]["rope_theta"] = 500_000.0.into();
    });
    let (older, newer) = (older.unwrap(), newer.unwrap());
    assert_eq!(older, newer);
    assert_eq!(older.rope.theta, 500_000.0);
    let linear = config(|c| c["rope_scaling"] = json!({"type": "linear", "factor": 2.0})).unwrap();
    assert_eq!(linear.rope.scaling, RopeScaling::Linear { factor: 2.0 });
    let none = config(|c| c["rope_scaling"] = Value::Null).unwrap();
    assert_eq!(none.rope.scaling, RopeScaling::None);
}

#[test]
fn families_have_their_own_defaults() {
    let mistral = config(|c| {
        c["model_type"] = "mistral".into();
        c["sliding_window"] = 64.into();
    });
    let mistral = mistral.unwrap();
    assert_eq!((mistral.architecture, mistral.context_len), (Architecture::Llama, 64));
    let window_off = config(|c| {
        c["model_type"] = "qwen2".into();
        c["sliding_window"] = 64.into();
        c["use_sliding_window"] = false.into();
    });
    assert_eq!(window_off.unwrap().context_len, 128);
    let window_on = config(|c| {
        c["model_type"] = "qwen2".into();
        c["sliding_window"] = 64.into();
        c["use_sliding_window"] = true.into();
    });
    let window_on = window_on.unwrap();
    assert_eq!((window_on.context_len, window_on.qkv_bias, window_on.o_bias), (64, true, false));
    let no_kv = config(|c| c["num_key_value_heads"] = Value::Null).unwrap();
    assert_eq!(no_kv.n_kv_heads, 4);
    let no_head_dim = config(|c| c["head_dim"] = Value::Null).unwrap();
    assert_eq!(no_head_dim.head_dim, 8);
    let biased = config(|c| c["attention_bias"] = true.into()).unwrap();
    assert!(biased.qkv_bias && biased.o_bias);
    config_refused(
        |c| {
            c["model_type"] = "mistral".into();
            c["num_key_value_heads"] = Value::Null;
        },
        "Missing",
        &["num_key_value_heads"],
    );
}

// Tensors against the architecture

#[test]
fn every_architecture_opens() {
    for name in ["llama", "mistral", "qwen2", "qwen3"] {
        let dir = tempfile::tempdir().unwrap();
        HfModel::tiny(name).write(dir.path());
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        assert_eq!(checkpoint.config().vocab_size, 262);
        let error = checkpoint.tokenizer().unwrap_err();
        assert_variant(&error, "Missing", &["tokenizer.json is missing"]);
        let error = checkpoint.read(WeightId::Layer(7, LayerWeight::Q)).unwrap_err();
        assert_variant(&error, "NoSuchWeight", &["Layer(7, Q)"]);
    }
}

#[test]
fn tensors_that_do_not_fit() {
    let model = |change: fn(&mut HfModel)| {
        move |dir: &Path| {
            let mut model = HfModel::tiny("llama");
            change(&mut model);
            model.write(dir);
        }
    };
    const Q: &str = "model.layers.0.self_attn.q_proj.weight";
    folder_refused(model(|m| _ = m.remove(Q)), "MissingTensor", &[Q]);
    folder_refused(model(|m| _ = m.remove("lm_head.weight")), "MissingTensor", &["lm_head.weight"]);
    folder_refused(
        model(|m| m.tensor(Q).shape = vec![32, 16]),
        "WrongShape",
        &[Q, "[32, 16]", "expected [32, 32]"],
    );
    folder_refused(model(|m| m.tensor(Q).shape = vec![1024]), "WrongShape", &["[1024]"]);
    folder_refused(model(|m| m.tensor(Q).dtype = "F8_E4M3"), "UnsupportedType", &[Q, "F8_E4M3"]);
    folder_refused(model(|m| m.tensor(Q).dtype = "I16"), "UnsupportedType", &["I16"]);
    folder_refused(
        model(|m| _ = m.add("model.layers.0.self_attn.q_norm.weight", "BF16", &[8])),
        "UnexpectedTensor",
        &["q_norm", "llama"],
    );
    folder_refused(
        model(|m| _ = m.add("model.layers.1.input_layernorm.weight", "BF16", &[32])),
        "UnexpectedTensor",
        &["model.layers.1"],
    );
    let dir = tempfile::tempdir().unwrap();
    let mut tied = HfModel::tiny("llama");
    tied.config["tie_word_embeddings"] = true.into();
    tied.add("model.layers.0.self_attn.rotary_emb.inv_freq", "F32", &[4]);
    tied.write(dir.path());
    assert_eq!(Checkpoint::open(dir.path()).unwrap().tensor(WeightId::Head), None);
}

#[track_caller]
fn gguf_refused(change: impl Fn(&mut Gguf), variant: &str, message_has: &[&str]) {
    let mut gguf = Gguf::tiny();
    change(&mut gguf);
    let error = Checkpoint::from_gguf_bytes(gguf.bytes().into(), "bad.gguf").expect_err(variant);
    assert_variant(&error, variant, &[&["bad.gguf"], message_has].concat());
}

#[test]
fn gguf_configurations_that_are_refused() {
    use refrain::model::gguf::GgufValue;
    gguf_refused(|g| _ = g.unset("general.architecture"), "Config(Missing", &["general.architecture"]);
    gguf_refused(|g| _ = g.set("general.architecture", "mamba"), "Config(UnknownArchitecture", &["mamba"]);
    gguf_refused(|g| _ = g.set("general.architecture", 3u32), "Config(WrongType", &["a string", "uint32"]);
    for key in
        ["block_count", "embedding_length", "attention.head_count", "feed_forward_length", "context_length"]
    {
        let key = format!("llama.{key}");
        gguf_refused(|g| _ = g.unset(&key), "Config(Missing", &[&key]);
        gguf_refused(|g| _ = g.set(&key, GgufValue::I32(-5)), "Config(WrongType", &[&key]);
        gguf_refused(|g| _ = g.set(&key, vec![4u32, 2]), "Config(WrongType", &["same for all layers"]);
        gguf_refused(|g| _ = g.set(&key, u32::MAX), "Config(OutOfRange", &["4294967295"]);
    }
    gguf_refused(|g| _ = g.unset("llama.attention.layer_norm_rms_epsilon"), "Config(Missing", &["epsilon"]);
    for (key, value) in [
        ("expert_count", GgufValue::U32(8)),
        ("attention.value_length", GgufValue::U32(4)),
        ("attention.clamp_kqv", GgufValue::F32(8.0)),
        ("final_logit_softcapping", GgufValue::F32(30.0)),
        ("attention.causal", GgufValue::Bool(false)),
        ("rope.scaling.type", "yarn".into()),
    ] {
        gguf_refused(|g| _ = g.set(&format!("llama.{key}"), value.clone()), "Config(Unsupported", &[key]);
    }
    gguf_refused(
        |g| _ = g.set("llama.rope.dimension_count", 4u32),
        "Config(Unsupported",
        &["partial rotation"],
    );
    gguf_refused(|g| _ = g.set("llama.vocab_size", 99u32), "Config(Inconsistent", &["99", "262"]);
    gguf_refused(|g| _ = g.set("llama.rope.freq_base", f32::NAN), "Config(OutOfRange", &["rope_theta"]);
    gguf_refused(
        |g| _ = g.add_tensor("rope_freqs.weight", BlockType::F32, &[3]),
        "Config(Inconsistent",
        &["3 factors"],
    );
    gguf_refused(
        |g| _ = g.add_tensor("rope_freqs.weight", BlockType::F16, &[4]),
        "UnsupportedType",
        &["rope_freqs"],
    );
    gguf_refused(
        |g| _ = g.add_tensor("rope_freqs.weight", BlockType::F32, &[2, 2]),
        "WrongShape",
        &["rope_freqs"],
    );
}

#[test]
fn gguf_tensors_that_do_not_fit() {
    const DOWN: &str = "blk.0.ffn_down.weight";
    let replace =
        |ty, dims: &'static [u64]| move |g: &mut Gguf| _ = g.remove_tensor(DOWN).add_tensor(DOWN, ty, dims);
    gguf_refused(|g| _ = g.remove_tensor(DOWN), "MissingTensor", &[DOWN]);
    gguf_refused(replace(BlockType::F32, &[32, 64]), "WrongShape", &["[64, 32]", "expected [32, 64]"]);
    gguf_refused(replace(BlockType::F32, &[64, 32, 2]), "WrongShape", &["[2, 32, 64]"]);
    gguf_refused(
        |g| _ = g.add_tensor("blk.0.attn_q.scale", BlockType::F32, &[1]),
        "UnexpectedTensor",
        &["attn_q.scale"],
    );
    gguf_refused(
        |g| {
            _ = g.remove_tensor("output_norm.weight").add_tensor("output_norm.weight", BlockType::Q8_0, &[32])
        },
        "UnsupportedType",
        &["output_norm.weight", "Q8_0"],
    );
    gguf_refused(
        |g| g.tensors.iter_mut().find(|t| t.0 == DOWN).unwrap().1 = refrain::model::gguf::GgmlType(26),
        "UnsupportedType",
        &["I32"],
    );
    // Ones that pad a shape are no dimensions.
    let mut padded = Gguf::tiny();
    padded.remove_tensor(DOWN).add_tensor(DOWN, BlockType::Q8_0, &[64, 32, 1, 1]);
    let checkpoint = Checkpoint::from_gguf_bytes(padded.bytes().into(), "padded").unwrap();
    let down = checkpoint.tensor(WeightId::Layer(0, LayerWeight::Down)).unwrap();
    assert_eq!((down.n_rows, down.n_cols, down.ty), (32, 64, BlockType::Q8_0));
    let q = checkpoint.tensor(WeightId::Layer(0, LayerWeight::Q)).unwrap();
    assert!(q.qk_interleaved && !down.qk_interleaved);
    assert!(matches!(checkpoint.read(WeightId::Head), Err(LoadError::NoSuchWeight { .. })));
}

#[test]
fn gguf_rope_factors_become_the_scaling() {
    let mut gguf = Gguf::tiny();
    gguf.add_tensor("rope_freqs.weight", BlockType::F32, &[4]);
    let factors = [1.0f32, 1.0, 2.5, 8.0];
    gguf.tensors.last_mut().unwrap().3 = factors.iter().flat_map(|f| f.to_le_bytes()).collect();
    let checkpoint = Checkpoint::from_gguf_bytes(gguf.bytes().into(), "factors").unwrap();
    assert_eq!(checkpoint.config().rope.scaling, RopeScaling::Factors(factors.to_vec()));
    gguf.set("llama.rope.scaling.type", "linear").set("llama.rope.scaling.factor", 2.0f32);
    let error = Checkpoint::from_gguf_bytes(gguf.bytes().into(), "factors").unwrap_err();
    assert_variant(&error, "Config(Unsupported", &["rope_freqs.weight"]);
    gguf.remove_tensor("rope_freqs.weight");
    let checkpoint = Checkpoint::from_gguf_bytes(gguf.bytes().into(), "linear").unwrap();
    assert_eq!(checkpoint.config().rope.scaling, RopeScaling::Linear { factor: 2.0 });
}
