//! Computed prompts kept between runs: `run` and `chat` with `--prefixes`.

use serde_json::Value;

use crate::support::{refrain, refrain_with};

const REQUEST: &str = "Tell me about Ada.";

/// The reports of a command: one per answer.
fn reports(command: &str, prefixes: &str, request: &str, turns: &str) -> Vec<Value> {
    let args = [command, "--max-tokens", "16", "--stats", "json", "--no-history", prefixes, request];
    let args: Vec<&str> = args.into_iter().filter(|arg| !arg.is_empty()).collect();
    let stdout = refrain_with(&args, turns.as_bytes()).done();
    stdout.lines().filter_map(|line| serde_json::from_str(line).ok().filter(Value::is_object)).collect()
}

fn cached(report: &Value) -> (u64, u64) {
    let count = |name: &str| report["stats"][name].as_u64().expect("a number");
    (count("cached_tokens"), count("prefilled_tokens"))
}

#[test]
fn a_later_run_computes_nothing_again_and_answers_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let option = format!("--prefixes={}", folder.path().join("prefixes").display());
    let [plain, first, second] =
        ["", &option, &option].map(|option| reports("run", option, REQUEST, "").pop().expect("a report"));
    assert_eq!((&first["text"], &second["text"]), (&plain["text"], &plain["text"]));
    let (cached_before, n_prompt) = cached(&first);
    assert_eq!(cached_before, 0);
    assert_eq!(cached(&second), (n_prompt, 0));
    // Conversations have a namespace of their own. The second turn finds its text in the session.
    let turns = "Where does Ada live?\nAnd when does she leave?\n";
    let [plain, first, second] = ["", &option, &option].map(|option| reports("chat", option, "", turns));
    let texts = |reports: &[Value]| reports.iter().map(|report| report["text"].clone()).collect::<Vec<_>>();
    assert_eq!((texts(&first), texts(&second)), (texts(&plain), texts(&plain)));
    assert_eq!(cached(&first[0]).0, 0);
    assert_eq!((cached(&second[0]).1, cached(&second[1]).1), (0, 0), "{second:?}");
}

#[test]
fn a_folder_that_cannot_be_used_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let option = format!("--prefixes={}", file.path().display());
    assert!(refrain(&["run", "--no-history", &option, REQUEST]).refused(1).contains("--prefixes"));
    // Without a home there is no default folder.
    assert!(refrain(&["run", "--no-history", "--prefixes", REQUEST]).refused(2).contains("--prefixes=DIR"));
}
