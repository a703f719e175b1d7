//! `refrain inspect`.

mod support;

use std::fs;

use serde_json::Value;
use support::{arg, model, refrain};

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
    let text = refrain(&["inspect", arg(&model)]).done();
    assert!(text.contains("GGUF v3") && text.contains("nothing: this model runs"), "{text}");
    let json: Value = serde_json::from_str(&refrain(&["inspect", "--json", arg(&model)]).done()).unwrap();
    assert_eq!(json["architecture"], "llama");
    assert_eq!(json["unsupported"], Value::Array(Vec::new()));
    let n_tensors = json["tensors"].as_array().unwrap().len() as u64;
    let n_by_type: u64 =
        json["types"].as_array().unwrap().iter().map(|ty| ty["tensors"].as_u64().unwrap()).sum();
    assert!(n_tensors > 0 && n_tensors == n_by_type);
}

#[test]
fn without_a_path_the_model_inside_is_shown() {
    let named: Value = serde_json::from_str(&refrain(&["inspect", "--json", arg(&model())]).done()).unwrap();
    let inside: Value = serde_json::from_str(&refrain(&["inspect", "--json"]).done()).unwrap();
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
    let text = refrain(&["inspect", arg(&file)]).done();
    assert!(text.contains("no tokens for the bytes 04") && text.contains("this model runs"), "{text}");
    let json: Value = serde_json::from_str(&refrain(&["inspect", "--json", arg(&file)]).done()).unwrap();
    assert_eq!(json["tokenizer"]["missing_bytes"], serde_json::json!([4]));
}

#[test]
fn an_unknown_architecture_is_shown_with_what_is_unsupported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("new.gguf");
    let pairs = [("general.architecture", "perceptron"), ("general.name", "A \x1b[2J name")];
    fs::write(&file, gguf(3, &pairs)).unwrap();
    let text = refrain(&["inspect", arg(&file)]).done();
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
    let json: Value = serde_json::from_str(&refrain(&["inspect", "--json", arg(&file)]).done()).unwrap();
    assert_eq!(json["parameters"], 6);
    fs::write(&file, &bytes[..bytes.len() - 1]).unwrap();
    refrain(&["inspect", arg(&file)]).refused(3);
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
        let message = refrain(&["inspect", arg(&file)]).refused(3);
        assert!(message.contains("bad.gguf"), "{message}");
    }
    let empty = refrain(&["inspect", arg(folder.path())]).refused(3);
    assert!(empty.contains("model.safetensors"), "{empty}");
}
