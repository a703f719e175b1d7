//! Computed prompts that `run` and `chat` keep between runs.

use serde_json::Value;

use crate::support::{arg, refrain, refrain_with};

const REQUEST: &str = "Tell me about Ada.";

/// The reports of a command: one per answer.
fn reports(command: &str, store: &[&str], request: &[&str], turns: &str) -> Vec<Value> {
    let args = [&[command, "--max-tokens", "16", "--stats", "json"], store, request].concat();
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
    let store = folder.path().join("store");
    let kept = ["--store", arg(&store)];
    let stores: [&[&str]; 3] = [&["--store", "none"], &kept, &kept];
    let run = |store: &[&str]| reports("run", store, &[REQUEST], "").pop().expect("a report");
    let [plain, first, second] = stores.map(run);
    // A prompt is kept when it comes for the second time.
    let third = run(&kept);
    for report in [&first, &second, &third] {
        assert_eq!(report["text"], plain["text"]);
    }
    let (cached_before, n_prompt) = cached(&first);
    assert_eq!((cached_before, cached(&second)), (0, (0, n_prompt)));
    assert_eq!(cached(&third), (n_prompt, 0));
    // The second turn finds its text in the session.
    let turns = "Where does Ada live?\nAnd when does she leave?\n";
    let [plain, first, second] = stores.map(|store| reports("chat", store, &[], turns));
    let texts = |reports: &[Value]| reports.iter().map(|report| report["text"].clone()).collect::<Vec<_>>();
    assert_eq!((texts(&first), texts(&second)), (texts(&plain), texts(&plain)));
    assert!(cached(&first[1]).0 > 0, "{first:?}");
    assert_eq!(cached(&second[0]).1, 0, "{second:?}");
}

#[test]
fn a_folder_that_cannot_be_used_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let refused = refrain(&["run", "--store", arg(file.path()), REQUEST]).refused(1);
    assert!(refused.contains("--store none"), "{refused}");
}
