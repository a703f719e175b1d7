//! Configurations and tensors that do not form a supported model, from both containers.

use std::path::Path;

use refrain::LoadError;
use refrain::checkpoint::Checkpoint;
use refrain::checkpoint::ModelConfig;
use refrain::internals::error::CheckpointError;
use refrain::internals::kernels::BlockType;
use refrain::internals::model::arch::parse_config;
use refrain::internals::model::checkpoint::{LayerWeight, RowOrder, WeightId};
use refrain::internals::model::config::{
    ConfigError, FeedForward, KvSource, Mixer, RopeScaling, Routing, Streams,
};
use serde_json::{Value, json};

use crate::model_files::hf::HfModel;
use crate::model_files::{self, Gguf, assert_variant};

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
        |c| c["model_type"] = "mamba".into(),
        "UnknownArchitecture",
        &["`mamba`", "supported:", "llama", "qwen3"],
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
        ("rope_interleaved", json!(true)),
        ("partial_rotary_factor", json!(1.5)),
        ("quantization_config", json!({"quant_method": "gptq"})),
        ("num_local_experts", json!(8)),
        ("num_experts", json!(64)),
        ("attn_logit_softcapping", json!(50.0)),
        ("final_logit_softcapping", json!(30.0)),
        ("attention_multiplier", json!(0.1)),
        ("layer_types", json!(["linear_attention"])),
    ] {
        config_refused(|c| c[field] = value.clone(), "Unsupported", &[field]);
    }
    config_refused(|c| c["layer_types"] = "all".into(), "WrongType", &["layer_types", "\"all\""]);
    for kind in ["su", "mrope"] {
        let scaling = json!({"rope_type": kind, "factor": 4.0});
        config_refused(
            |c| c["rope_scaling"] = scaling.clone(),
            "Unsupported",
            &["rope_scaling.rope_type", kind],
        );
        config_refused(|c| c["rope_parameters"] = scaling.clone(), "Unsupported", &["rope_parameters", kind]);
    }
    let old_name = json!({"type": "mrope", "factor": 4.0});
    config_refused(|c| c["rope_scaling"] = old_name.clone(), "Unsupported", &["mrope"]);
    let no_lists = json!({"rope_type": "longrope", "factor": 4.0});
    config_refused(|c| c["rope_scaling"] = no_lists.clone(), "Missing", &["short_factor"]);
    let short_lists = json!({"rope_type": "longrope", "short_factor": [1.0, 2.0], "long_factor": [1.0, 2.0]});
    config_refused(|c| c["rope_scaling"] = short_lists.clone(), "Inconsistent", &["2 factors", "rotary_dim"]);
    let no_ramp = json!({"rope_type": "yarn", "factor": 4.0, "beta_fast": 0.0});
    config_refused(|c| c["rope_scaling"] = no_ramp.clone(), "OutOfRange", &["beta_fast"]);
    let by_layer = json!({"full_attention": {"rope_type": "default"}});
    config_refused(|c| c["rope_parameters"] = by_layer.clone(), "Unsupported", &["full_attention"]);
    let partial = json!({"rope_type": "default", "partial_rotary_factor": 0.0});
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
    assert_eq!(older.ropes[0].theta, 500_000.0);
    let linear = config(|c| c["rope_scaling"] = json!({"type": "linear", "factor": 2.0})).unwrap();
    assert_eq!(linear.ropes[0].scaling, RopeScaling::Linear { factor: 2.0 });
    let none = config(|c| c["rope_scaling"] = Value::Null).unwrap();
    assert_eq!(none.ropes[0].scaling, RopeScaling::None);
}

#[test]
fn families_have_their_own_defaults() {
    let mistral = config(|c| {
        c["model_type"] = "mistral".into();
        c["sliding_window"] = 64.into();
    });
    let mistral = mistral.unwrap();
    assert_eq!((mistral.architecture.name(), mistral.context_len), ("llama", 128));
    assert_eq!(mistral.attention(0).unwrap().window, Some(64));
    let window_off = config(|c| {
        c["model_type"] = "qwen2".into();
        c["sliding_window"] = 64.into();
        c["use_sliding_window"] = false.into();
    });
    assert_eq!(window_off.unwrap().attention(0).unwrap().window, None);
    let window_on = config(|c| {
        c["model_type"] = "qwen2".into();
        c["sliding_window"] = 64.into();
        c["use_sliding_window"] = true.into();
        c["max_window_layers"] = 0.into();
    });
    let window_on = window_on.unwrap();
    let attention = window_on.attention(0).unwrap();
    assert_eq!((attention.window, attention.qkv_bias, attention.o_bias), (Some(64), true, false));
    let no_kv = config(|c| c["num_key_value_heads"] = Value::Null).unwrap();
    assert_eq!(no_kv.attention(0).unwrap().n_kv_heads, 4);
    let no_head_dim = config(|c| c["head_dim"] = Value::Null).unwrap();
    assert_eq!(no_head_dim.attention(0).unwrap().head_dim, 8);
    let biased = config(|c| c["attention_bias"] = true.into()).unwrap();
    let biased = biased.attention(0).unwrap();
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

#[track_caller]
fn folder_refused(write: impl Fn(&Path), variant: &str, message_has: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path());
    assert_variant(&Checkpoint::open(dir.path()).unwrap_err(), variant, message_has);
}

#[test]
fn every_architecture_opens() {
    for name in ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gpt_oss"] {
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

#[test]
fn experts_that_do_not_fit() {
    let of_type = |model_type: &'static str, change: fn(&mut HfModel)| {
        move |dir: &Path| {
            let mut model = HfModel::tiny(model_type);
            change(&mut model);
            model.write(dir);
        }
    };
    let qwen = |change: fn(&mut HfModel)| of_type("qwen3_moe", change);
    let oss = |change: fn(&mut HfModel)| of_type("gpt_oss", change);
    const UP: &str = "model.layers.0.mlp.experts.3.up_proj.weight";
    const BLOCKS: &str = "model.layers.0.mlp.experts.gate_up_proj_blocks";
    const SCALES: &str = "model.layers.0.mlp.experts.down_proj_scales";
    // Numbers of experts
    folder_refused(qwen(|m| m.config["num_experts"] = 0.into()), "Config(OutOfRange", &["n_experts", "is 0"]);
    folder_refused(qwen(|m| m.config["num_experts"] = 5000.into()), "Config(OutOfRange", &["5000", "4096"]);
    folder_refused(qwen(|m| m.config["num_experts"] = 5.into()), "WrongShape", &["gate.weight", "[4, 32]"]);
    folder_refused(qwen(|m| m.config["num_experts"] = 3.into()), "WrongShape", &["expected [3, 32]"]);
    folder_refused(
        qwen(|m| m.config["num_local_experts"] = 8.into()),
        "Config(Inconsistent",
        &["num_experts = 4", "num_local_experts = 8"],
    );
    folder_refused(
        qwen(|m| m.config["num_experts_per_tok"] = 5.into()),
        "Config(OutOfRange",
        &["n_used", "is 5", "1 to 4"],
    );
    folder_refused(qwen(|m| m.config["num_experts_per_tok"] = 0.into()), "Config(OutOfRange", &["n_used"]);
    // Widths
    folder_refused(
        qwen(|m| m.config["moe_intermediate_size"] = 24.into()),
        "Config(OutOfRange",
        &["expert ffn_dim", "24", "multiple of 16"],
    );
    folder_refused(
        qwen(|m| m.config["moe_intermediate_size"] = 32.into()),
        "WrongShape",
        &["experts.0.gate"],
    );
    // Dense layers between
    folder_refused(
        qwen(|m| m.config["decoder_sparse_step"] = 0.into()),
        "Config(OutOfRange",
        &["decoder_sparse_step", "at least 1"],
    );
    folder_refused(
        qwen(|m| m.config["mlp_only_layers"] = json!([1])),
        "Config(OutOfRange",
        &["mlp_only_layers", "is 1", "below 1"],
    );
    folder_refused(
        qwen(|m| m.config["mlp_only_layers"] = json!([0.5])),
        "Config(WrongType",
        &["mlp_only_layers"],
    );
    folder_refused(
        qwen(|m| m.config["mlp_only_layers"] = json!([0])),
        "MissingTensor",
        &["mlp.gate_proj.weight"],
    );
    folder_refused(
        qwen(|m| {
            m.config["mlp_only_layers"] = json!([0]);
            m.config["intermediate_size"] = Value::Null;
        }),
        "Config(Missing",
        &["intermediate_size"],
    );
    // Tensors
    folder_refused(qwen(|m| _ = m.remove(UP)), "MissingTensor", &[UP]);
    folder_refused(qwen(|m| m.tensor(UP).shape = vec![32, 16]), "WrongShape", &[UP, "expected [16, 32]"]);
    folder_refused(qwen(|m| m.tensor(UP).dtype = "F32"), "UnsupportedType", &[UP, "F32"]);
    folder_refused(
        qwen(|m| _ = m.add("model.layers.0.mlp.experts.4.up_proj.weight", "BF16", &[16, 32])),
        "UnexpectedTensor",
        &["experts.4", "qwen3moe"],
    );
    folder_refused(oss(|m| _ = m.remove(BLOCKS)), "MissingTensor", &[BLOCKS]);
    folder_refused(oss(|m| _ = m.remove(SCALES)), "MissingTensor", &[SCALES]);
    folder_refused(
        oss(|m| m.tensor(BLOCKS).shape = vec![4, 64, 2, 8]),
        "WrongShape",
        &[BLOCKS, "[4, 64, 2, 8]"],
    );
    folder_refused(oss(|m| m.tensor(BLOCKS).dtype = "I8"), "UnsupportedType", &[BLOCKS, "I8"]);
    folder_refused(
        oss(|m| m.tensor(SCALES).shape = vec![4, 32, 2]),
        "WrongShape",
        &[SCALES, "[4, 32, 2]", "expected [4, 32, 1]"],
    );
    // The layout without quantisation holds the matrices transposed.
    folder_refused(
        oss(|m| {
            m.remove(BLOCKS).remove("model.layers.0.mlp.experts.gate_up_proj_scales");
            m.add("model.layers.0.mlp.experts.gate_up_proj", "BF16", &[4, 32, 64]);
        }),
        "MissingTensor",
        &[BLOCKS],
    );
    folder_refused(
        oss(|m| m.config["quantization_config"] = json!({"quant_method": "bitsandbytes"})),
        "Config(Unsupported",
        &["quant_method", "bitsandbytes"],
    );
    folder_refused(
        oss(|m| m.config["swiglu_alpha"] = 1.5.into()),
        "Config(Unsupported",
        &["swiglu_alpha", "1.5"],
    );
    folder_refused(oss(|m| m.config["swiglu_limit"] = 0.into()), "Config(OutOfRange", &["swiglu_limit"]);
}

/// Some folders hold the matrices of all experts as one tensor.
#[test]
fn stacked_experts_are_read_too() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = HfModel::tiny("qwen3_moe");
    model.tensors.retain(|tensor| !tensor.name.contains(".experts."));
    model.add("model.layers.0.mlp.experts.gate_up_proj", "BF16", &[4, 32, 32]);
    model.add("model.layers.0.mlp.experts.down_proj", "BF16", &[4, 32, 16]);
    model.write(dir.path());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let id = |weight| WeightId::Layer(0, weight);
    let stored = |weight| checkpoint.read(id(weight)).unwrap();
    let (gate, up) = (stored(LayerWeight::ExpertGate), stored(LayerWeight::ExpertUp));
    let file = std::fs::read(dir.path().join("model.safetensors")).unwrap();
    // Gate and up of an expert are 16 rows of 32 numbers each, one behind the other.
    let expert_bytes = 16 * 32 * 2;
    let both: Vec<u8> = gate
        .chunks(expert_bytes)
        .zip(up.chunks(expert_bytes))
        .flat_map(|(gate, up)| [gate, up].concat())
        .collect();
    assert!(file.windows(both.len()).any(|window| window == both));
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
    use refrain::internals::model::gguf::GgufValue;
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
        |g| {
            g.tensors.iter_mut().find(|t| t.0 == DOWN).unwrap().1 =
                refrain::internals::model::gguf::GgmlType(26)
        },
        "UnsupportedType",
        &["I32"],
    );
    // Dimensions of 1 that pad a shape are ignored.
    let mut padded = Gguf::tiny();
    padded.remove_tensor(DOWN).add_tensor(DOWN, BlockType::Q8_0, &[64, 32, 1, 1]);
    let checkpoint = Checkpoint::from_gguf_bytes(padded.bytes().into(), "padded").unwrap();
    let down = checkpoint.tensor(WeightId::Layer(0, LayerWeight::Down)).unwrap();
    assert_eq!((down.n_rows, down.n_cols, down.ty), (32, 64, BlockType::Q8_0));
    let q = checkpoint.tensor(WeightId::Layer(0, LayerWeight::Q)).unwrap();
    assert_eq!((q.order, down.order), (RowOrder::Interleaved { head_dim: 8 }, RowOrder::All));
    assert!(matches!(checkpoint.read(WeightId::Head), Err(CheckpointError::NoSuchWeight { .. })));
}

#[test]
fn gguf_rope_factors_become_the_scaling() {
    let mut gguf = Gguf::tiny();
    gguf.add_tensor("rope_freqs.weight", BlockType::F32, &[4]);
    let factors = [1.0f32, 1.0, 2.5, 8.0];
    gguf.tensors.last_mut().unwrap().3 = factors.iter().flat_map(|f| f.to_le_bytes()).collect();
    let checkpoint = Checkpoint::from_gguf_bytes(gguf.bytes().into(), "factors").unwrap();
    assert_eq!(checkpoint.config().ropes[0].scaling, RopeScaling::Factors(factors.to_vec()));
    gguf.set("llama.rope.scaling.type", "linear").set("llama.rope.scaling.factor", 2.0f32);
    let error = Checkpoint::from_gguf_bytes(gguf.bytes().into(), "factors").unwrap_err();
    assert_variant(&error, "Config(Unsupported", &["rope_freqs.weight"]);
    gguf.remove_tensor("rope_freqs.weight");
    let checkpoint = Checkpoint::from_gguf_bytes(gguf.bytes().into(), "linear").unwrap();
    assert_eq!(checkpoint.config().ropes[0].scaling, RopeScaling::Linear { factor: 2.0 });
}

/// The configuration of a golden model with changes.
fn changed(family: &str, change: impl Fn(&mut Value)) -> Result<ModelConfig, ConfigError> {
    let text = std::fs::read_to_string(model_files::golden(family).join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    change(&mut config);
    parse_config(&config.to_string(), "config.json")
}

fn gemma4(change: impl Fn(&mut Value)) -> Result<ModelConfig, ConfigError> {
    changed("gemma4", change)
}

#[test]
fn shared_keys_and_inputs_of_layers_that_do_not_fit() {
    #[track_caller]
    fn refused(change: impl Fn(&mut Value), variant: &str, message_has: &[&str]) {
        assert_variant(&gemma4(change).expect_err(variant), variant, message_has);
    }
    let sliding =
        ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention", "full_attention"];
    refused(
        |c| c["layer_types"] = json!(sliding),
        "Inconsistent",
        &["num_kv_shared_layers = 2", "before layer 3"],
    );
    for n_shared in [5u64, 6, 1 << 40] {
        refused(|c| c["num_kv_shared_layers"] = n_shared.into(), "Inconsistent", &["5 layers"]);
    }
    refused(
        |c| c["layer_types"] = json!(vec!["full_attention"; 4]),
        "Inconsistent",
        &["layer_types with 4 values"],
    );
    refused(|c| c["layer_types"] = json!(vec!["conv"; 5]), "Unsupported", &["layer_types", "conv"]);
    refused(
        |c| c["intermediate_size"] = json!([32, 32]),
        "Inconsistent",
        &["intermediate_size with 2 values"],
    );
    refused(|c| c["hidden_size_per_layer_input"] = 5000.into(), "OutOfRange", &["per-layer dim", "5000"]);
    refused(|c| c["vocab_size_per_layer_input"] = 0.into(), "OutOfRange", &["per-layer vocab_size"]);
    refused(|c| c["sliding_window"] = 0.into(), "OutOfRange", &["sliding_window"]);
    refused(|c| c["global_head_dim"] = 7.into(), "OutOfRange", &["is 7", "even"]);
    refused(|c| c["enable_moe_block"] = true.into(), "Missing", &["num_experts"]);
    refused(|c| c["num_experts"] = 8.into(), "Unsupported", &["num_experts"]);
    refused(|c| c["use_bidirectional_attention"] = "all".into(), "Unsupported", &["all"]);
    refused(|c| c["rope_parameters"] = json!({"rope_type": "default"}), "Missing", &["rope_parameters"]);
    let share = |c: &mut Value| c["rope_parameters"]["full_attention"]["partial_rotary_factor"] = 2.0.into();
    refused(share, "Unsupported", &["partial_rotary_factor"]);
    // A plan from a packed file.
    let mut config = gemma4(|_| ()).unwrap();
    config.per_layer.as_mut().unwrap().dim = 0;
    assert_variant(&config.validate("file").unwrap_err(), "OutOfRange", &["per-layer dim", "is 0"]);
    let validated = |source: usize| {
        let mut config = gemma4(|_| ()).unwrap();
        let Mixer::Attention(attention) = &mut config.layers[4].mixer else { panic!("no attention") };
        attention.kv = KvSource::Layer(source);
        config.validate("file")
    };
    assert!(validated(1).is_ok());
    for source in [4, 5, usize::MAX] {
        assert_variant(
            &validated(source).unwrap_err(),
            "OutOfRange",
            &["kv layer", "an earlier layer than 4"],
        );
    }
    assert_variant(
        &validated(3).unwrap_err(),
        "Inconsistent",
        &["layer 3 without keys and values of its own"],
    );
    assert_variant(&validated(0).unwrap_err(), "Inconsistent", &["1 KV heads of 40", "1 KV heads of 24"]);
}

#[test]
fn gemma4_is_read_in_both_layouts() {
    let older = gemma4(|_| ()).unwrap();
    let newer = gemma4(|c| {
        c["global_head_dim"] = Value::Null;
        c["per_layer_config"] = json!({"1": {"head_dim": 40}, "4": {"head_dim": 40}});
    });
    assert_eq!(older, newer.unwrap());
    assert_eq!(older.ropes[0].scaling, RopeScaling::Proportional { n_pairs: 5 });
    let kv = |config: &ModelConfig, layer_idx| config.attention(layer_idx).unwrap().kv;
    let sources = (0..5).map(|layer_idx| kv(&older, layer_idx)).collect::<Vec<_>>();
    assert_eq!(sources, [vec![KvSource::Own; 3], vec![KvSource::Layer(2), KvSource::Layer(1)]].concat());
    assert_eq!(older.last_stateful_layer(), 2);
    let one = gemma4(|c| {
        c["attention_k_eq_v"] = true.into();
        c["num_attention_heads"] = 4.into();
        c["num_global_key_value_heads"] = 2.into();
    });
    let one = one.unwrap();
    assert_eq!((kv(&one, 0), kv(&one, 1)), (KvSource::Own, KvSource::OneProjection));
    assert_eq!((one.attention(0).unwrap().n_kv_heads, one.attention(1).unwrap().n_kv_heads), (1, 2));
    let none = gemma4(|c| c["hidden_size_per_layer_input"] = 0.into()).unwrap();
    assert_eq!(none.per_layer, None);
}

#[test]
fn gemma3n_configurations_that_are_refused() {
    let cases: &[Case] = &[
        (|c| c["altup_num_inputs"] = 1.into(), "OutOfRange", &["residual streams", "2 to 8"]),
        (|c| c["altup_num_inputs"] = 9.into(), "OutOfRange", &["residual streams", "2 to 8"]),
        (|c| c["altup_active_idx"] = 4.into(), "OutOfRange", &["active stream", "below 4"]),
        (|c| c["laurel_rank"] = 0.into(), "OutOfRange", &["rank of the branch"]),
        (|c| c["laurel_rank"] = 5000.into(), "OutOfRange", &["rank of the branch", "5000"]),
        (
            |c| c["activation_sparsity_pattern"] = json!([0.5, 0.5]),
            "Inconsistent",
            &["activation_sparsity_pattern with 2 values", "5 layers"],
        ),
        (
            |c| c["activation_sparsity_pattern"] = json!([1.0, 0.0, 0.0, 0.0, 0.0]),
            "Unsupported",
            &["activation_sparsity_pattern"],
        ),
        (
            |c| c["activation_sparsity_pattern"] = "all".into(),
            "WrongType",
            &["a number, or one for each layer"],
        ),
        (|c| c["num_kv_shared_layers"] = 5.into(), "Inconsistent", &["num_kv_shared_layers = 5", "5 layers"]),
        (|c| c["intermediate_size"] = json!([32, 32]), "Inconsistent", &["intermediate_size"]),
        (|c| c["layer_types"][0] = "linear_attention".into(), "Unsupported", &["layer_types"]),
    ];
    all_refused("gemma3n", cases);
}

#[test]
fn gemma3n_has_the_defaults_of_its_class() {
    let dense = |config: &ModelConfig, layer_idx: usize| match &config.layers[layer_idx].feed {
        FeedForward::Dense(dense) => dense.clone(),
        other => panic!("{other:?}"),
    };
    let bare = changed("gemma3n", |c| {
        let fields = c.as_object_mut().unwrap();
        fields.retain(|name, _| !name.starts_with("altup") && !name.starts_with("activation_"));
        fields.retain(|name, _| !["laurel_rank", "layer_types", "num_kv_shared_layers"].contains(&&**name));
        fields.insert("final_logit_softcapping".to_owned(), Value::Null);
        fields.insert("intermediate_size".to_owned(), 32.into());
        fields.insert("num_hidden_layers".to_owned(), 30.into());
    });
    let bare = bare.unwrap();
    assert_eq!(bare.streams, Some(Streams { n: 4, active: 0, gate_scaled: true }));
    assert_eq!((bare.logit_softcap, bare.layers[29].branch_rank), (None, Some(64)));
    // 0.95 of a normal distribution lies below it.
    assert_eq!((dense(&bare, 9).cutoff, dense(&bare, 10).cutoff), (Some(1.644_853_6), None));
    let attention = |layer_idx: usize| bare.attention(layer_idx).unwrap();
    assert_eq!((attention(3).window, attention(4).window), (Some(12), None));
    assert_eq!((attention(15).kv_layer(), attention(19).kv_layer()), (Some(13), Some(14)));
    let one = changed("gemma3n", |c| c["activation_sparsity_pattern"] = json!([0.05])).unwrap();
    assert_eq!(dense(&one, 4).cutoff, Some(-1.644_853_6));
}

#[test]
fn lfm2_moe_configurations_that_are_refused() {
    let cases: &[Case] = &[
        (|c| c["num_experts_per_tok"] = 9.into(), "OutOfRange", &["n_used", "9"]),
        (|c| c["moe_intermediate_size"] = 24.into(), "OutOfRange", &["expert ffn_dim", "multiple of 16"]),
        (|c| c["routed_scaling_factor"] = 0.into(), "OutOfRange", &["scale of the experts' weights"]),
        (|c| c["routed_scaling_factor"] = (-1).into(), "OutOfRange", &["scale of the experts' weights"]),
        (|c| c["use_expert_bias"] = 1.into(), "WrongType", &["use_expert_bias"]),
        (|c| c["num_dense_layers"] = "2".into(), "WrongType", &["num_dense_layers"]),
        (|c| _ = c.as_object_mut().unwrap().remove("intermediate_size"), "Missing", &["intermediate_size"]),
    ];
    all_refused("lfm2_moe", cases);
    let routing = |config: ModelConfig| match &config.layers[2].feed {
        FeedForward::Experts(experts) => experts.routing,
        other => panic!("{other:?}"),
    };
    let other = changed("lfm2_moe", |c| {
        c["routed_scaling_factor"] = 2.5.into();
        c["norm_topk_prob"] = false.into();
        c["use_expert_bias"] = false.into();
    });
    let expected = Routing::Sigmoid { biased: false, normalized: false, scale: 2.5 };
    assert_eq!(routing(other.unwrap()), expected);
    // All layers may have experts, and then the width of the others may be missing.
    let all = changed("lfm2_moe", |c| {
        c["num_dense_layers"] = 0.into();
        c.as_object_mut().unwrap().remove("intermediate_size");
    });
    assert!(matches!(all.unwrap().layers[0].feed, FeedForward::Experts(_)));
}

type Case = (fn(&mut Value), &'static str, &'static [&'static str]);

#[track_caller]
fn all_refused(family: &str, cases: &[Case]) {
    for (change, variant, message_has) in cases {
        assert_variant(&changed(family, change).expect_err(variant), variant, message_has);
    }
}

#[test]
fn plans_with_recurrent_layers_that_contradict_themselves() {
    all_refused(
        "lfm2",
        &[
            (|c| c["conv_L_cache"] = 0.into(), "OutOfRange", &["conv_len", "is 0"]),
            (|c| c["conv_L_cache"] = 65.into(), "OutOfRange", &["conv_len", "1 to 64"]),
            (|c| c["layer_types"][1] = "mamba".into(), "Unsupported", &["layer_types", "mamba"]),
            (|c| c["layer_types"] = json!(vec!["conv"; 4]), "Inconsistent", &["layer_types with 4 values"]),
            (|c| c["num_attention_heads"] = 0.into(), "OutOfRange", &["num_attention_heads", "is 0"]),
            (|c| c["num_key_value_heads"] = 3.into(), "Inconsistent", &["n_kv_heads = 3"]),
        ],
    );
    all_refused(
        "qwen3_5",
        &[
            (
                |c| c["text_config"]["linear_num_value_heads"] = 3.into(),
                "Inconsistent",
                &["n_value_heads = 3"],
            ),
            (|c| c["text_config"]["linear_num_key_heads"] = 0.into(), "OutOfRange", &["n_key_heads", "is 0"]),
            (|c| c["text_config"]["linear_key_head_dim"] = 5000.into(), "OutOfRange", &["key_dim", "5000"]),
            (|c| c["text_config"]["linear_value_head_dim"] = 0.into(), "OutOfRange", &["value_dim"]),
            (|c| c["text_config"]["linear_conv_kernel_dim"] = 0.into(), "OutOfRange", &["conv_len"]),
            (|c| c["text_config"]["layer_types"][0] = "conv".into(), "Unsupported", &["layer_types", "conv"]),
            (
                |c| c["text_config"]["layer_types"] = json!(["linear_attention", "full_attention"]),
                "Inconsistent",
                &["layer_types with 2 values"],
            ),
        ],
    );
    all_refused(
        "granitemoehybrid",
        &[
            (
                |c| c["mamba_n_heads"] = 0.into(),
                "Inconsistent",
                &["Mamba-2 width of 64", "mamba_n_heads = 0"],
            ),
            (
                |c| c["mamba_n_heads"] = 5.into(),
                "Inconsistent",
                &["Mamba-2 width of 64", "mamba_n_heads = 5"],
            ),
            (|c| c["mamba_n_groups"] = 3.into(), "Inconsistent", &["n_heads = 4", "n_groups = 3"]),
            (|c| c["mamba_n_groups"] = 0.into(), "OutOfRange", &["n_groups"]),
            (|c| c["mamba_d_state"] = 0.into(), "OutOfRange", &["state_dim"]),
            (|c| c["mamba_d_conv"] = 65.into(), "OutOfRange", &["conv_len", "65"]),
            (|c| c["mamba_expand"] = (u64::MAX / 8).into(), "Inconsistent", &["Mamba-2 width"]),
            (|c| c["layer_types"][0] = "conv".into(), "Unsupported", &["layer_types", "conv"]),
            (|c| c["layer_types"] = json!(vec!["mamba"; 3]), "Inconsistent", &["layer_types with 3 values"]),
            (|c| c["num_experts_per_tok"] = 9.into(), "OutOfRange", &["n_used", "9"]),
            (|c| c["num_local_experts"] = 5000.into(), "OutOfRange", &["n_experts", "5000"]),
            (|c| c["shared_intermediate_size"] = (1 << 21).into(), "OutOfRange", &["shared ffn_dim"]),
        ],
    );
}

#[test]
fn gemma4_with_experts_that_do_not_fit() {
    all_refused(
        "gemma4-experts",
        &[
            (|c| c["top_k_experts"] = 9.into(), "OutOfRange", &["n_used", "1 to 8"]),
            (|c| c["top_k_experts"] = 0.into(), "OutOfRange", &["n_used"]),
            (|c| c["num_experts"] = 0.into(), "OutOfRange", &["n_experts", "is 0"]),
            (|c| c["num_experts"] = 5000.into(), "OutOfRange", &["5000", "4096"]),
            (|c| c["num_experts"] = Value::Null, "Missing", &["num_experts"]),
            (|c| c["top_k_experts"] = Value::Null, "Missing", &["top_k_experts"]),
            (|c| c["moe_intermediate_size"] = 24.into(), "OutOfRange", &["expert ffn_dim", "multiple of 16"]),
            (|c| c["hidden_size"] = 40.into(), "OutOfRange", &["hidden_dim", "multiple of 16"]),
            (|c| c["intermediate_size"] = 0.into(), "OutOfRange", &["shared ffn_dim", "is 0"]),
            (|c| c["enable_moe_block"] = false.into(), "Unsupported", &["num_experts"]),
        ],
    );
    // A plan from a packed file.
    let mut config = changed("gemma4-experts", |_| ()).unwrap();
    let FeedForward::Experts(experts) = &mut config.layers[1].feed else { panic!("no experts") };
    experts.shared_gated = true;
    assert_variant(&config.validate("file").unwrap_err(), "Inconsistent", &["norms of experts"]);
}

#[test]
fn windows_as_long_as_the_context_limit_nothing() {
    let families = [
        "gemma3",
        "gemma3n",
        "gemma4",
        "gemma4-experts",
        "gpt_oss",
        "ministral",
        "ministral3",
        "mistral",
        "olmo3",
        "phi3",
    ];
    for family in families {
        let windows = |window: u64| {
            let config = changed(family, |c| c["sliding_window"] = window.into()).unwrap();
            let of = |layer_idx| config.attention(layer_idx).and_then(|attention| attention.window);
            (0..config.n_layers()).filter_map(of).collect::<Vec<_>>()
        };
        let shorter = windows(2047);
        assert!(!shorter.is_empty() && shorter.iter().all(|&window| window == 2047), "{family}: {shorter:?}");
        for window in [2048, 2049, 1 << 40] {
            assert!(windows(window).is_empty(), "{family}: a window of {window}");
        }
    }
}

/// A golden folder with changes of its tensors and its configuration.
fn golden_with(family: &str, keep: impl Fn(&str) -> bool, change: impl Fn(&mut Value)) -> LoadError {
    let from = model_files::golden(family);
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let kept: Vec<_> = tensors.tensors().into_iter().filter(|(name, _)| keep(name)).collect();
    let dir = tempfile::tempdir().unwrap();
    safetensors::serialize_to_file(kept, None, &dir.path().join("model.safetensors")).unwrap();
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    change(&mut config);
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    Checkpoint::open(dir.path()).expect_err(family)
}

#[test]
fn tensors_that_each_kind_of_layer_needs() {
    for (family, names) in [
        ("gemma3n", &["layers.0.altup.router_norm.weight", "layers.4.laurel.linear_left.weight"][..]),
        ("gemma4", &["layers.0.per_layer_input_gate.weight", "layers.4.layer_scalar"]),
        (
            "gemma4-experts",
            &[
                "layers.0.router.scale",
                "layers.1.router.per_expert_scale",
                "layers.2.router.proj.weight",
                "layers.3.experts.gate_up_proj",
                "layers.3.experts.down_proj",
                "layers.0.mlp.up_proj.weight",
                "layers.1.pre_feedforward_layernorm_2.weight",
                "layers.2.post_feedforward_layernorm_1.weight",
            ],
        ),
        ("gpt_oss", &["layers.1.self_attn.sinks", "layers.2.mlp.router.bias"]),
        (
            "granitemoehybrid",
            &[
                "layers.0.mamba.dt_bias",
                "layers.2.mamba.A_log",
                "layers.3.mamba.conv1d.weight",
                "layers.1.self_attn.o_proj.weight",
                "layers.0.block_sparse_moe.input_linear.weight",
                "layers.3.shared_mlp.output_linear.weight",
            ],
        ),
        (
            "lfm2",
            &[
                "layers.0.conv.conv.weight",
                "layers.3.conv.in_proj.weight",
                "layers.2.self_attn.k_proj.weight",
            ],
        ),
        ("lfm2_moe", &["layers.2.feed_forward.expert_bias", "layers.3.feed_forward.experts.7.w2.weight"]),
        (
            "qwen3_5",
            &[
                "layers.0.linear_attn.A_log",
                "layers.2.linear_attn.in_proj_b.weight",
                "layers.4.linear_attn.norm.weight",
                "layers.3.self_attn.q_norm.weight",
            ],
        ),
    ] {
        for name in names {
            let error = golden_with(family, |tensor| !tensor.ends_with(name), |_| ());
            assert_variant(&error, "MissingTensor", &[name]);
        }
    }
}

#[test]
fn counts_of_experts_that_the_tensors_do_not_have() {
    for family in ["gemma4-experts", "gpt_oss", "granitemoehybrid", "lfm2_moe", "qwen3_moe"] {
        for n_experts in [7, 9] {
            let change = |config: &mut Value| {
                for field in ["num_experts", "num_local_experts"] {
                    if let Some(n) = config.get_mut(field).filter(|n| n.is_number()) {
                        *n = n_experts.into();
                    }
                }
            };
            let error = golden_with(family, |_| true, change);
            assert_variant(&error, "WrongShape", &[&format!("expected [{n_experts}")]);
        }
    }
}

#[test]
fn olmo3_is_read_in_both_layouts() {
    let older = changed("olmo3", |_| ()).unwrap();
    let newer = changed("olmo3", |c| {
        let mut full = c["rope_scaling"].take();
        full["rope_theta"] = c["rope_theta"].take();
        let sliding = json!({"rope_type": "default", "rope_theta": 500_000.0});
        c["rope_parameters"] = json!({"full_attention": full, "sliding_attention": sliding});
    });
    assert_eq!(newer.unwrap(), older);
}
