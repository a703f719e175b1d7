//! `refrain model inspect`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::support::{arg, model, refrain};

/// A GGUF file without tensors: magic, version, two counts, then the pairs given.
fn gguf(version: u32, pairs: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.extend((pairs.len() as u64).to_le_bytes());
    for (key, value) in pairs {
        bytes.extend(text(key));
        bytes.extend(8u32.to_le_bytes());
        bytes.extend(text(value));
    }
    bytes
}

#[test]
fn a_model_is_shown_as_text_and_as_json() {
    let model = model();
    let text = refrain(&["model", "inspect", arg(&model)]).done();
    assert!(text.contains("GGUF v3") && text.contains("nothing: this model runs"), "{text}");
    let json: Value =
        serde_json::from_str(&refrain(&["model", "inspect", "--json", arg(&model)]).done()).unwrap();
    assert_eq!(json["architecture"], "llama");
    assert_eq!(json["unsupported"], Value::Array(Vec::new()));
    let n_tensors = json["tensors"].as_array().unwrap().len() as u64;
    let n_by_type: u64 =
        json["types"].as_array().unwrap().iter().map(|ty| ty["tensors"].as_u64().unwrap()).sum();
    assert!(n_tensors > 0 && n_tensors == n_by_type);
}

/// Writes a folder with a model of zeros: four layers of SmolLM3, of which the last rotates nothing, and none has
/// a window but the second.
fn smollm3(folder: &Path) {
    let config = json!({
        "model_type": "smollm3", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 262,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 5000.0, "no_rope_layers": [1, 1, 1, 0],
        "use_sliding_window": true, "sliding_window": 16, "layer_types":
            ["full_attention", "sliding_attention", "full_attention", "full_attention"],
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let mut tensors = vec![
        ("model.embed_tokens.weight".to_owned(), vec![262, 32]),
        ("model.norm.weight".to_owned(), vec![32]),
    ];
    for layer_idx in 0..4 {
        for (name, shape) in [
            ("input_layernorm", vec![32]),
            ("self_attn.q_proj", vec![32, 32]),
            ("self_attn.k_proj", vec![16, 32]),
            ("self_attn.v_proj", vec![16, 32]),
            ("self_attn.o_proj", vec![32, 32]),
            ("post_attention_layernorm", vec![32]),
            ("mlp.gate_proj", vec![64, 32]),
            ("mlp.up_proj", vec![64, 32]),
            ("mlp.down_proj", vec![32, 64]),
        ] {
            tensors.push((format!("model.layers.{layer_idx}.{name}.weight"), shape));
        }
    }
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in tensors {
        let begin = end;
        end += 2 * shape.iter().product::<usize>();
        header.insert(name, json!({"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}));
    }
    let header = Value::Object(header).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &vec![0; end]].concat();
    fs::write(folder.join("model.safetensors"), bytes).unwrap();
}

#[test]
fn layers_and_memory_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    smollm3(folder.path());
    let text = refrain(&["model", "inspect", arg(folder.path())]).done();
    for part in [
        "layers        2 × attention, 4 heads (2 for keys and values) of 8, all positions, rope 5000; \
         feed-forward 64, SiLU; norms before\n",
        "              1 × attention, 4 heads (2 for keys and values) of 8, window 16, rope 5000;",
        "              1 × attention, 4 heads (2 for keys and values) of 8, all positions, no position embedding;",
        " with --quantize q4_0",
        // One of four layers has a window, of 16 positions: 16 + 768 + 255 slots, rounded up to 1280.
        "KV cache f16   384 B a token, 1.50 MiB for 4096, 1.24 MiB with --window-cache bounded\n",
        " tokens/s without drafts, an estimate: not measured here; `refrain model profile MODEL` measures it\n",
    ] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert!(!text.contains("multipliers"), "{text}");
    let json: Value =
        serde_json::from_str(&refrain(&["model", "inspect", "--json", arg(folder.path())]).done()).unwrap();
    let (config, layers, memory) = (&json["config"], json["layers"].as_array().unwrap(), &json["memory"]);
    assert_eq!(
        (&config["n_layers"], &config["n_heads"], &config["ffn_dim"]),
        (&json!(4), &json!(4), &json!(64))
    );
    assert_eq!(config["ropes"][0]["theta"], 5000.0);
    let indices: Vec<&Value> = layers.iter().map(|kind| &kind["indices"]).collect();
    assert_eq!(indices, [&json!([0, 2]), &json!([1]), &json!([3])]);
    assert_eq!(layers[1]["mixer"]["attention"]["window"], 16);
    assert_eq!(layers[2]["mixer"]["attention"]["rope"], Value::Null);
    assert_eq!(memory["context_len_default"], 4096);
    // Blocks of 32 elements cannot hold heads of 8.
    let kv: Vec<&Value> = memory["kv_cache"].as_array().unwrap().iter().map(|kv| &kv["kv_type"]).collect();
    assert_eq!(kv, ["f16", "f32"]);
    // In 4 layers, 2 heads: a key of 8 elements in 16 bits, and a value, padded to 16.
    assert_eq!(memory["kv_cache"][0]["bytes_per_token"], 4 * 2 * (8 + 16) * 2);
    assert_eq!(memory["kv_cache"][0]["bytes"], 4096 * 384);
    assert_eq!(memory["kv_cache"][0]["bounded_bytes"], 4096 * 384 - (4096 - 1280) * 384 / 4);
    let weights = memory["weights"].as_array().unwrap();
    let bytes = |i: usize| weights[i]["bytes"].as_u64().unwrap();
    assert_eq!(weights[1]["quantize"], "q4_0");
    assert!(bytes(1) < bytes(0) && bytes(0) < bytes(2), "{weights:?}");
    assert_eq!((&memory["state_bytes"], &json["speed"]["measured"]), (&json!(0), &Value::Null));
    // A token reads all weights but the norms: two of each layer and the last one. The output matrix is the embedding.
    let estimated = &json["speed"]["estimated"];
    let read = estimated["bytes_per_token"].as_u64().unwrap();
    assert_eq!(read, bytes(0) - (4 * 2 + 1) * 32 * 4, "{weights:?}");
    let [tokens, rate] = ["tokens_per_s", "read_bytes_per_s"].map(|field| estimated[field].as_f64().unwrap());
    assert!(rate > 0.0 && (tokens * read as f64 / rate - 1.0).abs() < 1e-6, "{estimated}");
}

/// Without loading: the weights of the file are zeros.
#[test]
fn what_a_run_needs_is_shown_for_its_options() {
    let folder = tempfile::tempdir().unwrap();
    smollm3(folder.path());
    let need = |more: &[&str]| {
        let all = [&["model", "inspect", "--json", arg(folder.path())], more].concat();
        let json: Value = serde_json::from_str(&refrain(&all).done()).unwrap();
        json["need"].clone()
    };
    let plain = need(&[]);
    let of = |need: &Value, field: &str| need["estimated"]["memory"][field].as_u64().unwrap();
    let total = plain["estimated"]["total_bytes"].as_u64().unwrap();
    assert!(of(&plain, "weights_bytes") + of(&plain, "kv_bytes") < total && total < 1 << 30, "{plain}");
    assert_eq!(
        (&plain["estimated"]["fits"], &plain["estimated"]["context_len"]),
        (&json!(true), &json!(4096))
    );
    let (long, wide) = (need(&["--ctx", "8192"]), need(&["--kv", "f32"]));
    assert!(
        of(&long, "kv_bytes") > 3 * of(&plain, "kv_bytes") / 2
            && of(&wide, "kv_bytes") > of(&plain, "kv_bytes")
    );
    let drafted = need(&["--draft", arg(folder.path())]);
    assert!(of(&drafted, "draft_model_bytes") > of(&drafted, "weights_bytes"));
    let refused = need(&["--memory", "1GiB"]);
    assert!(refused["refused"].as_str().unwrap().contains("only packed files"), "{refused}");
    let text = refrain(&["model", "inspect", "--kv", "f32", arg(folder.path())]).done();
    assert!(text.contains("needs  ") && text.contains("(context 4096, --kv f32)\n"), "{text}");
    assert!(text.contains("fits          yes: "), "{text}");
}

#[test]
fn multipliers_are_shown_where_they_are_not_neutral() {
    let folder = tempfile::tempdir().unwrap();
    smollm3(folder.path());
    let config = json!({
        "model_type": "granite", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 262, "tie_word_embeddings": true,
        "embedding_multiplier": 12.0, "residual_multiplier": 0.25, "attention_multiplier": 0.5, "logits_scaling": 8.0,
    });
    fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let text = refrain(&["model", "inspect", arg(folder.path())]).done();
    assert!(text.contains("multipliers   embedding × 12, logits × 0.125\n"), "{text}");
    assert!(text.contains("layers        4 × attention") && text.contains("scores × 0.5"), "{text}");
    assert!(text.contains("norms before; results × 0.25\n"), "{text}");
}

#[test]
fn a_stored_profile_gives_the_speed() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    fs::copy(model(), &file).unwrap();
    refrain(&["model", "profile", arg(&file), "--contexts", "0,64", "--threads", "1"]).done();
    let inspect = || refrain(&["model", "inspect", arg(&file)]).done();
    let text = inspect();
    assert!(text.contains(" tokens/s after 0 tokens, ") && text.contains("(1 threads, "), "{text}");
    let json: Value =
        serde_json::from_str(&refrain(&["model", "inspect", "--json", arg(&file)]).done()).unwrap();
    let measured = &json["speed"]["measured"];
    assert_eq!((&measured["n_threads"], &measured["kv_type"]), (&json!(1), &json!("f16")));
    let decode = measured["decode"].as_array().unwrap();
    assert_eq!((&decode[0]["context"], &decode[1]["context"]), (&json!(0), &json!(64)));
    assert!(decode[0]["tokens_per_s"].as_f64().unwrap() > 1.0, "{decode:?}");
    let answers = json["need"]["estimated"]["answers"].as_array().unwrap();
    assert_eq!(answers[0]["n_prompt"], 100);
    let first_token = answers.iter().map(|answer| answer["first_token_s"].as_f64().unwrap());
    assert!(first_token.clone().is_sorted() && first_token.clone().all(|s| s > 0.0), "{answers:?}");
    assert!(text.contains(" s behind 100 tokens, then "), "{text}");
    // The profile of another machine, and of other weights.
    let path = folder.path().join("m.gguf.profile.json");
    let profile: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    for (field, value, reason) in [
        ("cpu", json!("Another CPU"), "the profile was measured on Another CPU, this is "),
        ("weights_bytes", json!(1), "the profile was measured with other weights; `refrain model profile"),
    ] {
        let mut other = profile.clone();
        other["key"][field] = value;
        fs::write(&path, other.to_string()).unwrap();
        let text = inspect();
        assert!(
            text.contains(reason) && text.contains(" tokens/s without drafts, an estimate: the profile"),
            "{text}"
        );
    }
}

#[test]
fn without_a_path_the_model_inside_is_shown() {
    let named: Value =
        serde_json::from_str(&refrain(&["model", "inspect", "--json", arg(&model())]).done()).unwrap();
    let inside: Value = serde_json::from_str(&refrain(&["model", "inspect", "--json"]).done()).unwrap();
    assert_eq!(inside["tensors"], named["tensors"]);
}

#[test]
fn bytes_without_a_token_are_named() {
    let mut bytes = fs::read(model()).unwrap();
    // The token of byte 0x04 in the byte-level alphabet, behind its length, becomes one outside of it.
    let token = [2, 0, 0, 0, 0, 0, 0, 0, 0xc4, 0x84];
    let at = bytes.windows(token.len()).position(|window| window == token).unwrap();
    bytes[at + 8..at + 10].copy_from_slice("ȁ".as_bytes());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("without.gguf");
    fs::write(&file, bytes).unwrap();
    let text = refrain(&["model", "inspect", arg(&file)]).done();
    assert!(text.contains("no tokens for the bytes 04") && text.contains("this model runs"), "{text}");
    let json: Value =
        serde_json::from_str(&refrain(&["model", "inspect", "--json", arg(&file)]).done()).unwrap();
    assert_eq!(json["tokenizer"]["missing_bytes"], serde_json::json!([4]));
}

#[test]
fn an_unknown_architecture_is_shown_with_what_is_unsupported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new.gguf");
    let pairs = [("general.architecture", "perceptron"), ("general.name", "A \x1b[2J name")];
    fs::write(&file, gguf(3, &pairs)).unwrap();
    let text = refrain(&["model", "inspect", arg(&file)]).done();
    assert!(text.contains("perceptron") && text.contains("unsupported"), "{text}");
    assert!(!text.contains('\x1b'), "a file must not speak to the terminal");
}

#[test]
fn a_safetensors_file_is_shown_alone() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("w.safetensors");
    let header = br#"{"w":{"dtype":"F16","shape":[2,3],"data_offsets":[0,12]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 12]].concat();
    fs::write(&file, &bytes).unwrap();
    let json: Value =
        serde_json::from_str(&refrain(&["model", "inspect", "--json", arg(&file)]).done()).unwrap();
    assert_eq!(json["parameters"], 6);
    fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    refrain(&["model", "inspect", arg(&file)]).refused(3);
}

#[test]
fn what_is_malformed_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.gguf");
    let whole = gguf(3, &[("general.architecture", "llama")]);
    let cases =
        [Vec::new(), b"GGUF".to_vec(), whole[..whole.len() - 1].to_vec(), gguf(99, &[]), vec![b'x'; 64]];
    for bytes in cases {
        fs::write(&file, &bytes).unwrap();
        let message = refrain(&["model", "inspect", arg(&file)]).refused(3);
        assert!(message.contains("bad.gguf"), "{message}");
    }
    let empty = refrain(&["model", "inspect", arg(folder.path())]).refused(3);
    assert!(empty.contains("model.safetensors"), "{empty}");
}
