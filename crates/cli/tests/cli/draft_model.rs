//! `--draft`: a smaller model as a draft source.

use serde_json::Value;

use crate::support::{arg, refrain, refrain_with, repository};

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
        let (text, report) = answer(&["--draft", draft]);
        assert_eq!(text, plain, "{draft}");
        let sources = report["stats"]["sources"].as_array().unwrap();
        let model = sources.iter().find(|source| source["evidence"] == "draft_model").unwrap();
        let computed = &model["computed"];
        assert!(computed["passes"].as_u64() <= computed["rows"].as_u64(), "{model}");
        assert!(computed["off"].is_null(), "{model}");
    }
    let (text, report) = answer(&[]);
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
    assert_eq!(say(&["--draft", "fixture"]), say(&["--draft", "off"]));
}

#[test]
fn what_cannot_draft_is_refused_in_one_line() {
    let run = |args: &[&str]| refrain(&[&["run"], args, &["hello"]].concat());
    run(&["--draft", "no-such-model.gguf"]).refused(3);
}
