//! Models larger than memory: the statistics and errors of `--memory` and `--pinned-layers`.

mod support;

use std::path::PathBuf;

use serde_json::Value;
use support::{arg, model, refrain, repository};
use tempfile::TempDir;

fn packed() -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target.refrain");
    refrain(&["pack", arg(&model()), arg(&path)]).done();
    (dir, path)
}

fn run(model: &str, more: &[&str]) -> support::Ran {
    let notes = repository("fixtures/notes");
    let mut args =
        vec!["run", "--model", model, "--context", arg(&notes), "--task", "answer", "--no-history"];
    args.extend(["--max-tokens", "24"]);
    args.extend(more);
    args.push("Who comes along on the trip to Aniarda?");
    refrain(&args)
}

#[test]
fn streamed_answers_are_those_of_the_model_in_memory() {
    let (_dir, path) = packed();
    let expected = run(arg(&model()), &["--stats", "off"]).done();
    assert!(!expected.trim().is_empty());
    let all = ["--memory", "0", "--draft", "fixture", "--pruning", "fixture", "--pruning-threshold", "0.05"];
    for more in [
        &["--memory", "0"][..],
        &["--pinned-layers", "2"],
        &["--memory", "1GiB"],
        &["--pinned-layers", "99"],
        &all,
    ] {
        let more = [&["--stats", "off"][..], more].concat();
        assert_eq!(run(arg(&path), &more).done(), expected, "{more:?}");
    }
    let slow = run(arg(&path), &["--flash-bandwidth", "200MB", "--stats", "off"]).done();
    assert_eq!(slow, expected);
}

#[test]
fn statistics_tell_of_flash() {
    let (_dir, path) = packed();
    let text = run(arg(&path), &["--memory", "0", "--stats", "json"]).done();
    let json: Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
    let streaming = &json["stats"]["streaming"];
    assert!(streaming["bytes_per_token"].as_f64().unwrap() > 1e5, "{streaming}");
    assert!(streaming["bandwidth"].as_f64().unwrap() > 0.0, "{streaming}");
    for field in ["overlap", "read_mode", "memory", "prefill", "decode"] {
        assert!(!streaming[field].is_null(), "{field}: {streaming}");
    }
    assert!(streaming["decode"]["stall_us"].as_f64().unwrap() >= 0.0, "{streaming}");
    let in_memory = run(arg(&path), &["--stats", "json"]).done();
    let json: Value = serde_json::from_str(in_memory.lines().last().unwrap()).unwrap();
    assert!(json["stats"]["streaming"].is_null());
}

#[test]
fn what_cannot_be_streamed_is_refused_with_advice() {
    let (_dir, path) = packed();
    let refused = run(arg(&model()), &["--memory", "1GiB"]).refused(2);
    assert!(refused.contains("only packed files") && refused.contains("refrain pack"), "{refused}");
    let refused = run(arg(&path), &["--memory", "1TiB"]).refused(2);
    assert!(refused.contains("MiB"), "{refused}");
    run(arg(&path), &["--memory", "1GiB", "--pinned-layers", "1"]).refused(2);
}

#[test]
fn a_text_is_scored_from_flash() {
    let (_dir, path) = packed();
    let text = ["--text", "The train leaves at 08:15 from platform 4."];
    let expected = refrain(&[&["score", arg(&path)][..], &text].concat()).done();
    let streamed = refrain(&[&["score", arg(&path), "--pinned-layers", "1"][..], &text].concat()).done();
    assert_eq!(streamed, expected);
}

#[test]
fn streaming_is_measured_beside_the_disk() {
    let (_dir, path) = packed();
    let args = ["bench", "stream", arg(&path), "--tokens", "4", "--rounds", "2", "--pinned", "0,50,100"];
    let table = refrain(&args).done();
    let rows = table.lines().filter(|line| line.starts_with("| ") && line.contains(" % |")).count();
    assert_eq!(rows, 3, "{table}");
    let json: Value = serde_json::from_str(&refrain(&[&args[..], &["--json"]].concat()).done()).unwrap();
    assert_eq!(json["shares"][0]["rounds"].as_array().unwrap().len(), 2);
    assert_eq!(json["shares"][2]["pass_bytes"], 0);
    assert!(json["shares"][0]["rounds"][0]["sequential"].as_f64().unwrap() > 0.0);
}

#[test]
fn drafting_is_measured_where_the_model_comes_from_flash() {
    let (_dir, path) = packed();
    let rows = repository("fixtures/rows.jsonl");
    let args = [
        "bench",
        "stream",
        arg(&path),
        "--replay",
        arg(&rows),
        "--flash-bandwidth",
        "100MB",
        "--task-rows",
        "1",
    ];
    let args = [&args[..], &["--pinned", "0,100", "--lengths", "8,24", "--draft", "fixture", "--rows", "8"]]
        .concat();
    let cells: Vec<Value> =
        serde_json::from_str(&refrain(&[&args[..], &["--json"]].concat()).done()).unwrap();
    assert_eq!(cells.len(), 2 * 2 * 6, "{cells:?}");
    for cell in &cells {
        assert!(cell["n_rows"].as_u64().unwrap() > 0 && cell["speed_up"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(cell["acceptance_length"].as_f64().unwrap() >= 1.0, "{cell}");
    }
    let table = refrain(&[&args[..], &["--strategy", "refrain"]].concat()).done();
    assert_eq!(table.lines().filter(|line| line.contains("| refrain |")).count(), 4, "{table}");
    assert!(table.contains("a slowed reader models a disk of 100 MB/s"), "{table}");
    let whole = ["bench", "stream", arg(&path), "--replay", arg(&rows), "--task-rows", "1", "--pinned", "50"];
    assert_eq!(
        refrain(&whole)
            .done()
            .lines()
            .filter(|line| line.starts_with("| 50 % | whole | refrain | 4 |"))
            .count(),
        1
    );
    let without = ["bench", "stream", arg(&path), "--replay", arg(&rows), "--strategy", "chain:8"];
    assert!(refrain(&without).refused(2).contains("--draft"));
}

#[test]
#[cfg(target_os = "linux")]
fn a_budget_is_kept_while_memory_is_asked_back() {
    let (_dir, path) = packed();
    let args = ["bench", "pressure", arg(&path), "--memory", "0", "--seconds", "2", "--reports", "100"];
    let ran = refrain(&[&args[..], &["--tokens", "12", "--json"]].concat());
    let json: Value = serde_json::from_str(ran.stdout.trim()).unwrap_or_else(|_| panic!("{ran:?}"));
    // A busy machine answers fewer reports.
    assert!(json["n_reports"].as_u64().unwrap() > 50 && json["n_answered"].as_u64().unwrap() > 10, "{json}");
    assert!(
        json["n_answers"].as_u64().unwrap() > 2 && json["peak_bytes"].as_u64().unwrap() > 1 << 20,
        "{json}"
    );
    // The exit code agrees with the report, for any size of this build's own pages.
    assert_eq!(ran.code == Some(0), json["is_within"].as_bool().unwrap(), "{json}");
    let fits = ["bench", "pressure", arg(&path), "--memory", "1GiB", "--seconds", "1"];
    assert!(refrain(&fits).refused(2).contains("--memory"));
}
