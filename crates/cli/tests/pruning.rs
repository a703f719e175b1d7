//! `--pruning`: rows that look wrong at a middle layer are dropped.

mod support;

use serde_json::Value;
use support::{arg, refrain, repository};

const QUESTION: &str = "Who comes along on the trip to Aniarda?";

fn answer(args: &[&str]) -> (String, Value) {
    let notes = repository("fixtures/notes");
    let common = ["run", "--threads", "1", "--stats", "json", "--task", "answer", "--context", arg(&notes)];
    let shown = refrain(&[&common[..], args, &[QUESTION]].concat()).done();
    let (text, json) = shown.trim_end().rsplit_once('\n').expect("text, then one line of JSON");
    (text.to_owned(), serde_json::from_str(json).expect("JSON"))
}

#[test]
fn pruning_changes_no_answer_and_is_in_the_statistics() {
    let (plain, report) = answer(&["--draft", "off"]);
    assert!(report["stats"]["pruning"].is_null());
    let path = repository("fixtures/target.predictor");
    for predictor in ["fixture", arg(&path)] {
        let (text, report) = answer(&["--pruning", predictor]);
        assert_eq!(text, plain);
        let pruning = &report["stats"]["pruning"];
        assert!(pruning["rows_kept"].as_u64() <= pruning["rows_before"].as_u64(), "{pruning}");
        // Trees are larger with a draft model.
        let (text, report) = answer(&["--pruning", predictor, "--draft", "fixture"]);
        assert_eq!(text, plain);
        assert!(report["stats"]["pruning"]["rows_before"].as_u64().is_some(), "{report}");
    }
    let say = ["chat", "--threads", "1", "--max-tokens", "8", "--stats", "text", "--pruning", "fixture"];
    let chatted = support::refrain_with(&say, b"Hello\n");
    assert_eq!(chatted.code, Some(0), "{}", chatted.stderr);
}

#[test]
fn what_cannot_prune_is_refused_in_one_line() {
    let run = |args: &[&str]| refrain(&[&["run"], args, &["hello"]].concat());
    let refused = run(&["--pruning", "no-such.predictor"]).refused(3);
    assert!(refused.contains("no-such.predictor"), "{refused}");
    let model = repository("fixtures/target.gguf");
    let refused = run(&["--pruning", arg(&model)]).refused(3);
    assert!(refused.contains("not a predictor file"), "{refused}");
    let other = repository("fixtures/draft.gguf");
    let refused = run(&["--model", arg(&other), "--pruning", "fixture"]).refused(3);
    assert!(refused.contains("trained for model"), "{refused}");
}

#[test]
fn the_parts_of_pruning_are_compared_in_one_run() {
    let rows = repository("fixtures/rows.jsonl");
    let args = ["bench", "ablate", arg(&rows), "--pruning", "fixture", "--task-rows", "2", "--free-rows"];
    let shown = refrain(&[&args[..], &["--max-tokens", "32", "--rows", "32"]].concat()).done();
    for arm in ["whole drafts", "pruned", "pruned, no shadow tokens", "pruned, no safeguards"] {
        assert!(shown.contains(&format!("| {arm} |")), "{arm} in {shown}");
    }
    let model = repository("fixtures/target.gguf");
    let args = ["bench", "pruning", arg(&model), "--threads", "1", "--rounds", "2", "--context", "32"];
    let shown = refrain(&[&args[..], &["--rows", "8,16"]].concat()).done();
    assert!(shown.contains("| 16 | 8 |"), "{shown}");
    let refused = refrain(&[&args[..], &["--layer", "6"]].concat());
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
}

#[cfg(not(feature = "train"))]
#[test]
fn without_training_the_command_says_how_to_build_it() {
    let notes = repository("fixtures/rows.jsonl");
    let model = repository("fixtures/target.gguf");
    let refused =
        refrain(&["train", "predictor", arg(&model), "--text", arg(&notes), "--out", "x"]).refused(2);
    assert!(refused.contains("cargo run --release -p refrain-cli --features train -- train"), "{refused}");
}

#[cfg(feature = "train")]
#[test]
fn a_predictor_and_a_draft_model_are_trained_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let rows = repository("fixtures/rows.jsonl");
    let model = repository("fixtures/target.gguf");
    let (predictor, draft) = (folder.path().join("target.predictor"), folder.path().join("draft.gguf"));
    let text = ["--text", arg(&rows), "--positions", "1500", "--threads", "1"];
    let args = ["train", "predictor", arg(&model), "--steps", "60", "--rank", "16", "--out", arg(&predictor)];
    let shown = refrain(&[&args[..], &text].concat()).done();
    assert!(shown.contains("held out: at"), "{shown}");
    let args = ["train", "draft", arg(&model), "--steps", "4", "--layers", "1", "--out", arg(&draft)];
    let shown = refrain(&[&args[..], &text].concat()).done();
    assert!(shown.contains("held out: at"), "{shown}");
    let (plain, _) = answer(&["--draft", "off"]);
    let (text, _) = answer(&["--pruning", arg(&predictor), "--draft", arg(&draft)]);
    assert_eq!(text, plain);
    let to_folder = ["train", "draft", arg(&model), "--out", arg(folder.path())];
    refrain(&[&to_folder[..], &["--text", arg(&rows)]].concat()).refused(2);
}
