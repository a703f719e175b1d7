//! `refrain model score`.

use std::fs;

use serde_json::Value;

use crate::support::{arg, model, refrain, refrain_with};

const TEXT: &str = "The hotel for the trip is the Marlund.";

fn score_json(args: &[&str]) -> Value {
    let model = model();
    let all = [&["model", "score", arg(&model), "--json"], args].concat();
    serde_json::from_str(&refrain(&all).done()).expect("JSON")
}

fn log_probabilities(report: &Value) -> Vec<f64> {
    let tokens = report["tokens"].as_array().unwrap();
    assert_eq!(tokens[0]["log_probability"], Value::Null, "nothing stands before the first token");
    tokens[1..].iter().map(|token| token["log_probability"].as_f64().unwrap()).collect()
}

#[test]
fn perplexity_is_that_of_the_tokens() {
    let report = score_json(&["--text", TEXT]);
    let logs = log_probabilities(&report);
    let mean = logs.iter().sum::<f64>() / logs.len() as f64;
    assert!((report["perplexity"].as_f64().unwrap() - (-mean).exp()).abs() < 1e-9);
    assert!(logs.iter().all(|log| *log < 0.0));
    let text: String =
        report["tokens"].as_array().unwrap().iter().map(|token| token["text"].as_str().unwrap()).collect();
    assert!(text.ends_with(TEXT), "{text}");
}

#[test]
fn text_file_pipe_and_ids_score_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("text.txt");
    fs::write(&file, TEXT).unwrap();
    let report = score_json(&["--text", TEXT]);
    assert_eq!(score_json(&["--text", &format!("@{}", arg(&file))]), report);
    let ids: Vec<_> =
        report["tokens"].as_array().unwrap().iter().map(|token| token["id"].to_string()).collect();
    assert_eq!(score_json(&["--tokens", &ids.join(",")]), report);
    let piped =
        refrain_with(&["model", "score", arg(&model()), "--json", "--text", "@-"], TEXT.as_bytes()).done();
    assert_eq!(serde_json::from_str::<Value>(&piped).unwrap(), report);
}

#[test]
fn logits_are_written_for_every_token() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("logits.safetensors");
    let report = score_json(&["--text", TEXT, "--weights", "f32", "--logits", arg(&file)]);
    let (header, rows) = read_logits(&fs::read(&file).unwrap());
    assert_eq!(header["logits"]["dtype"], "F32");
    assert_eq!(rows.len(), report["tokens"].as_array().unwrap().len());
    let ids: Vec<_> = report["tokens"]
        .as_array()
        .unwrap()
        .iter()
        .map(|token| token["id"].as_u64().unwrap() as usize)
        .collect();
    for (i, expected) in log_probabilities(&report).into_iter().enumerate() {
        let total = rows[i].iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
        let log = f64::from(rows[i][ids[i + 1]]) - total;
        assert!((log - expected).abs() < 1e-4, "token {i}: {log} {expected}");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no partial file is left");
}

/// Header and rows of the tensor `logits`.
fn read_logits(bytes: &[u8]) -> (Value, Vec<Vec<f32>>) {
    let (len, rest) = bytes.split_at(8);
    let (header, data) = rest.split_at(u64::from_le_bytes(len.try_into().unwrap()) as usize);
    assert_eq!(header.len() % 8, 0, "the data is aligned");
    let header: Value = serde_json::from_slice(header).unwrap();
    let shape = &header["logits"]["shape"];
    let n_cols = shape[1].as_u64().unwrap() as usize;
    assert_eq!(data.len() as u64, 4 * shape[0].as_u64().unwrap() * n_cols as u64);
    let values: Vec<_> = data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    (header, values.chunks(n_cols).map(<[f32]>::to_vec).collect())
}

#[test]
fn text_shows_every_token_and_the_perplexity() {
    let text = refrain(&["model", "score", "--text", TEXT]).done();
    assert!(text.lines().last().unwrap().starts_with("perplexity "), "{text}");
}

#[test]
fn what_cannot_be_scored_is_refused() {
    let model = model();
    let refused =
        |args: &[&str], code| refrain(&[&["model", "score", arg(&model)], args].concat()).refused(code);
    assert!(refused(&["--text", ""], 3).contains("at least two"));
    assert!(refused(&["--tokens", "1,4294967295"], 3).contains("4294967295"));
    assert!(refused(&["--tokens", "1,x"], 2).contains("x"));
    assert!(refused(&[], 2).contains("--text"));
    let missing = refused(&["--text", TEXT, "--logits", "no/such/folder/l.safetensors"], 1);
    assert!(missing.contains("l.safetensors"), "{missing}");
}
