//! Answers that are kept: `run` and `chat` with `--history`, and `refrain history`.

mod support;

use std::path::Path;

use refrain_index::history::{HistoryLog, HistoryOptions};
use serde_json::Value;
use support::{Ran, arg, command, refrain, refrain_with};

const REQUEST: &str = "Tell me about Ada.";

fn run(folder: &Path, more: &[&str]) -> Ran {
    refrain(
        &[&["run", "--max-tokens", "32", "--stats", "json", "--history", arg(folder)], more, &[REQUEST]]
            .concat(),
    )
}

/// The last line of a run.
fn report(ran: Ran) -> Value {
    serde_json::from_str(ran.done().lines().last().expect("a report")).expect("JSON")
}

fn history(report: &Value) -> u64 {
    let sources = report["stats"]["sources"].as_array().expect("sources");
    sources
        .iter()
        .find(|source| source["kind"] == "history")
        .map_or(0, |source| source["accepted"].as_u64().unwrap())
}

fn list(folder: &Path) -> Vec<String> {
    refrain(&["history", "list", "--history", arg(folder)]).done().lines().map(str::to_owned).collect()
}

#[test]
fn a_later_run_drafts_from_an_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (report(run(folder.path(), &[])), report(run(folder.path(), &[])));
    assert_eq!(first["text"], second["text"]);
    assert_eq!(history(&first), 0);
    let steps = |report: &Value| report["stats"]["steps"].as_u64().unwrap();
    assert!(history(&second) > 0 && steps(&second) < steps(&first), "{first} {second}");
    // Another namespace does not see them; nor does plain decoding, which is kept all the same.
    let turn = format!("{REQUEST}\n");
    let chat = ["chat", "--max-tokens", "32", "--stats", "json", "--history", arg(folder.path())];
    assert!(refrain_with(&chat, turn.as_bytes()).done().contains("\"history\""));
    let plain = report(run(folder.path(), &["--draft", "off"]));
    assert_eq!((&plain["text"], history(&plain)), (&first["text"], 0));
    let listed = list(folder.path());
    assert_eq!(listed.len(), 4, "{listed:?}");
    assert_eq!(listed.iter().filter(|line| line.contains("  chat ")).count(), 1, "{listed:?}");
}

#[test]
fn what_is_forgotten_is_not_drafted_from() {
    let folder = tempfile::tempdir().unwrap();
    let place = arg(folder.path());
    for _ in 0..3 {
        report(run(folder.path(), &[]));
    }
    let listed = list(folder.path());
    let number = listed[0].split_whitespace().next().unwrap();
    let forget = |args: &[&str]| refrain(&[&["history", "forget", "--history", place], args].concat());
    forget(&[number]).done();
    assert_eq!(list(folder.path()), listed[1..]);
    assert!(forget(&[number]).refused(3).contains(number));
    let stats = refrain(&["history", "stats", "--history", place]).done();
    assert!(stats.contains("2 answers, "), "{stats}");
    forget(&["--namespace", "run"]).done();
    assert_eq!(list(folder.path()), Vec::<String>::new());
    assert_eq!(history(&report(run(folder.path(), &[]))), 0);
    forget(&["--all"]).done();
    assert_eq!(list(folder.path()), Vec::<String>::new());
    assert!(forget(&[]).refused(2).contains("required"));
}

#[test]
fn a_history_in_use_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    report(run(folder.path(), &[]));
    let key = HistoryLog::keys(folder.path()).unwrap()[0];
    let _held = HistoryLog::open(folder.path(), key, HistoryOptions::default()).unwrap();
    assert!(run(folder.path(), &[]).refused(3).contains("in use"));
    assert!(refrain(&["history", "list", "--history", arg(folder.path())]).refused(3).contains("in use"));
}

#[test]
fn damage_is_named_and_repaired() {
    let folder = tempfile::tempdir().unwrap();
    report(run(folder.path(), &[]));
    report(run(folder.path(), &[]));
    let key = HistoryLog::keys(folder.path()).unwrap()[0];
    let log = folder.path().join(key.to_string()).join("run/log-1");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let message = run(folder.path(), &[]).refused(3);
    assert!(message.contains("log-1` is damaged at byte 64") && message.contains("repair"), "{message}");
    let repaired = refrain(&["history", "repair", "--history", arg(folder.path())]);
    assert!(repaired.stderr.contains("dropped"), "{}", repaired.stderr);
    repaired.done();
    assert_eq!(list(folder.path()).len(), 1);
}

#[test]
fn the_default_folder_is_the_users_and_can_be_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let args = [&["run", "--max-tokens", "8", "--stats", "off"], more, &[REQUEST]].concat();
        let output =
            command(&args).env("HOME", home.path()).env("LOCALAPPDATA", home.path()).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(run(&["--no-history"]), "");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    let first = run(&[]);
    assert!(first.contains("answers are kept in") && first.contains("--no-history"), "{first}");
    assert_eq!(run(&[]), "", "said once");
    let listed =
        command(&["history", "list"]).env("HOME", home.path()).env("LOCALAPPDATA", home.path()).output();
    assert_eq!(String::from_utf8(listed.unwrap().stdout).unwrap().lines().count(), 2);
    // Without a home there is nothing to keep answers in.
    refrain(&["run", "--max-tokens", "8", REQUEST]).done();
    assert!(refrain(&["history", "list"]).refused(2).contains("--history"));
}
