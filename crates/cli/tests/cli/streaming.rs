//! Models larger than memory: the statistics and errors of `--memory` and `--pinned-layers`.

use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{self, arg, model, refrain, repository};

fn packed() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target.refrain");
    refrain(&["model", "pack", arg(&model()), arg(&path)]).done();
    (dir, path)
}

fn run(model: &str, more: &[&str]) -> support::Ran {
    let notes = repository("fixtures/notes");
    let mut args = vec!["ask", "--model", model, "--context", arg(&notes)];
    args.extend(["--max-tokens", "24"]);
    args.extend(more);
    args.push("Who comes along on the trip to Aniarda?");
    refrain(&args)
}

#[test]
fn streamed_answers_are_those_of_the_model_in_memory() {
    let (_dir, path) = packed();
    let expected = run(arg(&model()), &[]).done();
    assert!(!expected.trim().is_empty());
    let all = [
        "--memory",
        "0",
        "--draft",
        "fixture",
        "--pruning",
        "fixture",
        "--drafting",
        "pruning-probability=0.05",
    ];
    for more in [
        &["--memory", "0"][..],
        &["--pinned-layers", "2"],
        &["--memory", "1GiB"],
        &["--pinned-layers", "99"],
        &all,
    ] {
        assert_eq!(run(arg(&path), more).done(), expected, "{more:?}");
    }
    let slow = run(arg(&path), &["--flash-bandwidth", "200MB"]).done();
    assert_eq!(slow, expected);
}

#[test]
fn statistics_tell_of_flash() {
    let (_dir, path) = packed();
    let text = run(arg(&path), &["--memory", "0", "--json"]).done();
    let json: Value = serde_json::from_str(&text).unwrap();
    let streaming = &json["stats"][0]["streaming"];
    assert!(streaming["bytes_per_token"].as_f64().unwrap() > 1e5, "{streaming}");
    assert!(streaming["decode"]["read_bytes"].as_u64().unwrap() > 100_000, "{streaming}");
    for field in ["read_mode", "memory", "prefill", "decode"] {
        assert!(!streaming[field].is_null(), "{field}: {streaming}");
    }
    assert!(streaming["decode"]["stall_us"].as_f64().unwrap() >= 0.0, "{streaming}");
    let in_memory = run(arg(&path), &["--json"]).done();
    let json: Value = serde_json::from_str(&in_memory).unwrap();
    assert!(json["stats"][0]["streaming"].is_null());
}

#[test]
fn what_cannot_be_streamed_is_refused_with_advice() {
    let (_dir, path) = packed();
    let refused = run(arg(&model()), &["--memory", "1GiB"]).refused(2);
    assert!(refused.contains("only packed files") && refused.contains("refrain model pack"), "{refused}");
    let refused = run(arg(&path), &["--memory", "1TiB"]).refused(2);
    assert!(refused.contains("MiB"), "{refused}");
    run(arg(&path), &["--memory", "1GiB", "--pinned-layers", "1"]).refused(2);
}

#[test]
fn a_text_is_scored_from_flash() {
    let (_dir, path) = packed();
    let text = ["--text", "The train leaves at 08:15 from platform 4."];
    let expected = refrain(&[&["model", "score", arg(&path)][..], &text].concat()).done();
    let streamed =
        refrain(&[&["model", "score", arg(&path), "--pinned-layers", "1"][..], &text].concat()).done();
    assert_eq!(streamed, expected);
}
