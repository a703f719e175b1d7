//! `--draft`: a smaller model as a draft source.

mod support;

use serde_json::Value;
use support::{arg, refrain, refrain_with, repository};

const PROMPT: &str = "The train leaves at noon. The train leaves at";

fn answer(args: &[&str]) -> (String, Value) {
    let common = ["run", "--threads", "1", "--max-tokens", "24", "--stats", "json", "--raw"];
    let shown = refrain(&[&common[..], args, &[PROMPT]].concat()).done();
    let (text, json) = shown.trim_end().rsplit_once('\n').expect("text, then one line of JSON");
    (text.to_owned(), serde_json::from_str(json).expect("JSON"))
}

#[test]
fn a_draft_model_changes_no_answer_and_is_in_the_statistics() {
    let (plain, _) = answer(&["--draft", "off"]);
    let path = repository("fixtures/draft.gguf");
    for draft in ["fixture", arg(&path)] {
        for strategy in [
            "refrain",
            "draft-model",
            "chain:3",
            "specinfer",
            "opt-tree",
            "opt-tree-0.05",
            "eagle-2",
            "edgellm",
            "best-first",
        ] {
            let (text, report) = answer(&["--draft", draft, "--strategy", strategy]);
            assert_eq!(text, plain, "{strategy}");
            let sources = report["stats"]["sources"].as_array().unwrap();
            let model = sources.iter().find(|source| source["evidence"] == "draft_model").unwrap();
            let computed = &model["computed"];
            assert!(computed["passes"].as_u64() <= computed["rows"].as_u64(), "{model}");
            assert!(computed["off"].is_null(), "{model}");
            let is_rule = !["refrain", "draft-model"].contains(&strategy);
            assert!(!is_rule || model["drafted"].as_u64() > Some(0), "{strategy}: {model}");
        }
    }
    let (text, report) = answer(&["--draft", "fixture", "--strategy", "retrieval"]);
    assert_eq!(text, plain);
    let kinds: Vec<_> =
        report["stats"]["sources"].as_array().unwrap().iter().map(|s| &s["evidence"]).collect();
    assert!(!kinds.contains(&&"draft_model".into()), "{kinds:?}");
}

#[test]
fn a_conversation_drafts_with_a_model() {
    let say = |args: &[&str]| {
        let args = [&["chat", "--threads", "1", "--max-tokens", "16", "--stats", "off"], args].concat();
        refrain_with(&args, b"Hello\nAnd again\n").done()
    };
    assert_eq!(say(&["--draft", "fixture", "--strategy", "draft-model"]), say(&["--draft", "off"]));
}

#[test]
fn what_cannot_draft_is_refused_in_one_line() {
    let run = |args: &[&str]| refrain(&[&["run"], args, &["hello"]].concat());
    for strategy in ["draft-model", "chain:8", "opt-tree"] {
        assert!(run(&["--strategy", strategy]).refused(2).contains("--draft"), "{strategy}");
    }
    assert!(run(&["--draft", "off", "--strategy", "pld"]).refused(2).contains("--draft off"));
    run(&["--draft", "fixture", "--strategy", "chain:64"]).refused(2);
    run(&["--draft", "no-such-model.gguf"]).refused(3);
}

#[test]
fn the_ways_of_drafting_with_a_model_are_compared_in_one_run() {
    let rows = repository("fixtures/rows.jsonl");
    let args =
        ["bench", "ablate", arg(&rows), "--draft", "fixture", "--task-rows", "1", "--max-tokens", "24"];
    let shown = refrain(&[&args[..], &["--free-rows"]].concat()).done();
    for part in [
        "| draft model |",
        "| + history + draft model |",
        "| chain:8 |",
        "| eagle-2 |",
        "| edgellm |",
        "| best-first |",
    ] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let model = repository("fixtures/target.gguf");
    let args = ["bench", "replay", arg(&rows), "--model", arg(&model), "--threads", "1", "--model-rows", "1"];
    for projection in ["on-demand", "eager"] {
        let strategies = ["--strategy", "refrain,retrieval,draft-model,chain:4", "--draft", "fixture"];
        let shown = refrain(&[&args[..], &strategies, &["--projection", projection]].concat()).done();
        for strategy in ["refrain", "retrieval", "draft-model", "chain:4"] {
            assert!(shown.contains(&format!("| all | {strategy} |")), "{strategy} in {shown}");
        }
    }
    let refused = refrain(&[&args[..], &["--strategy", "specinfer"]].concat());
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let refused = refrain(&["bench", "replay", arg(&rows), "--strategy", "opt-tree"]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
}
