//! `--pruning`: rows that look wrong at a middle layer are dropped.

use serde_json::Value;

use crate::support::{self, arg, refrain, repository};

const QUESTION: &str = "Who comes along on the trip to Aniarda?";

fn answer(args: &[&str]) -> (String, Value) {
    let notes = repository("fixtures/notes");
    let common = ["ask", QUESTION, "--threads", "1", "--json", "--context", arg(&notes)];
    let shown = refrain(&[&common[..], args].concat()).done();
    let report: Value = serde_json::from_str(&shown).expect("JSON");
    (report["text"].as_str().expect("a text").to_owned(), report["stats"][0].clone())
}

#[test]
fn pruning_changes_no_answer_and_is_in_the_statistics() {
    let (plain, stats) = answer(&["--draft", "off"]);
    assert!(stats["pruning"].is_null());
    let path = repository("fixtures/target.predictor");
    for predictor in ["fixture", arg(&path)] {
        let (text, stats) = answer(&["--pruning", predictor]);
        assert_eq!(text, plain);
        let pruning = &stats["pruning"];
        assert!(pruning["rows_kept"].as_u64() <= pruning["rows_before"].as_u64(), "{pruning}");
        // Trees are larger with a draft model.
        let (text, stats) = answer(&["--pruning", predictor, "--draft", "fixture"]);
        assert_eq!(text, plain);
        assert!(stats["pruning"]["rows_before"].as_u64().is_some(), "{stats}");
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
