//! Stored answers: `run` and `chat` with `--history`, and `refrain history`.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};

use refrain_index::history::{HistoryLog, HistoryOptions};
use serde_json::Value;

use crate::support::{AT_ANY_COST, Ran, arg, command, refrain, refrain_with};

const REQUEST: &str = "Tell me about Ada.";

fn run(folder: &Path, more: &[&str]) -> Ran {
    let args = ["run", "--max-tokens", "32", "--stats", "json", "--history", arg(folder)];
    refrain(&[&args, AT_ANY_COST, more, &[REQUEST]].concat())
}

/// The last line of a run.
fn report(ran: Ran) -> Value {
    serde_json::from_str(ran.done().lines().last().expect("a report")).expect("JSON")
}

fn history(report: &Value) -> u64 {
    let sources = report["stats"]["sources"].as_array().expect("sources");
    sources
        .iter()
        .find(|source| source["name"] == "history")
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
    // Another namespace does not draft from them. Plain decoding stores its answers, but does not draft.
    let turn = format!("{REQUEST}\n");
    let chat = ["chat", "--max-tokens", "32", "--stats", "json", "--history", arg(folder.path())];
    let chat = [&chat, AT_ANY_COST].concat();
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

/// A running chat after its first answer, as the writer of the history. It ends with its standard input.
fn chat(folder: &Path) -> Child {
    let args = ["chat", "--max-tokens", "8", "--stats", "off", "--history", arg(folder)];
    let mut child = command(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    writeln!(child.stdin.as_mut().expect("piped"), "Hello.").expect("it reads");
    // The history is open when the first part of the answer arrives.
    let stdout = child.stdout.as_mut().expect("piped");
    stdout.read_exact(&mut [0]).expect("an answer");
    child
}

#[test]
fn a_second_program_drafts_and_hands_its_answers_in() {
    let folder = tempfile::tempdir().unwrap();
    let first = report(run(folder.path(), &[]));
    let mut chat = chat(folder.path());
    for _ in 0..2 {
        let ran = run(folder.path(), &[]);
        assert!(ran.stderr.contains("answers are handed in"), "{}", ran.stderr);
        let second = report(ran);
        assert_eq!(second["text"], first["text"]);
        assert!(history(&second) > 0, "{second}");
    }
    let runs = |listed: Vec<String>| listed.iter().filter(|line| line.contains("  run ")).count();
    assert_eq!(runs(list(folder.path())), 3);
    // Commands that change other files need the writer's place.
    let forget = refrain(&["history", "forget", "--all", "--history", arg(folder.path())]);
    assert!(forget.refused(3).contains("in use"));
    drop(chat.stdin.take());
    chat.wait_with_output().expect("ends");
    assert_eq!(runs(list(folder.path())), 3, "taken in");
    refrain(&["history", "forget", "--all", "--history", arg(folder.path())]).done();
    assert_eq!(list(folder.path()), Vec::<String>::new());
}

#[test]
fn a_second_program_shares_the_default_folder_too() {
    let home = tempfile::tempdir().unwrap();
    let run = || {
        let args = ["run", "--max-tokens", "8", "--stats", "off", REQUEST];
        let output =
            command(&args).env("HOME", home.path()).env("LOCALAPPDATA", home.path()).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    run();
    let folder =
        [".local/share/refrain/history", "refrain/history", "Library/Application Support/refrain/history"]
            .map(|place| home.path().join(place));
    let folder = folder.into_iter().find(|folder| folder.exists()).expect("a default folder");
    let key = HistoryLog::keys(&folder).unwrap()[0];
    let held = HistoryLog::open(&folder, key, HistoryOptions::default()).unwrap();
    assert!(run().contains("answers are handed in"));
    held.maintain().unwrap();
    assert_eq!(held.list().len(), 2);
}

#[test]
fn damage_is_left_out_with_a_notice_until_it_is_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let first = report(run(folder.path(), &[]));
    report(run(folder.path(), &[]));
    let key = HistoryLog::keys(folder.path()).unwrap()[0];
    let log = folder.path().join(key.to_string()).join("run/log-1");
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&log, &bytes).unwrap();
    let ran = run(folder.path(), &[]);
    let message = &ran.stderr;
    assert!(message.contains("log-1`, byte 64") && message.contains("history repair"), "{message}");
    let report = report(ran);
    assert_eq!(report["text"], first["text"]);
    assert!(history(&report) > 0, "the other answer drafts: {report}");
    assert_eq!(list(folder.path()).len(), 2);
    // Nothing is deleted before `repair`.
    let aside = log.with_file_name("damaged.log-1");
    assert_eq!(std::fs::read(&aside).unwrap(), bytes);
    let repaired = refrain(&["history", "repair", "--history", arg(folder.path())]);
    assert!(repaired.stderr.contains("dropped"), "{}", repaired.stderr);
    repaired.done();
    assert!(!aside.exists());
    assert_eq!(list(folder.path()).len(), 2);
}

#[test]
fn lists_of_echo_are_kept_with_the_answers() {
    let folder = tempfile::tempdir().unwrap();
    let echoing = ["--echo", "--calibration", "full"];
    let (first, second) = (report(run(folder.path(), &echoing)), report(run(folder.path(), &echoing)));
    assert_eq!(first["text"], second["text"]);
    let key = HistoryLog::keys(folder.path()).unwrap()[0];
    let echo = folder.path().join(key.to_string()).join("run/echo");
    let mut bytes = std::fs::read(&echo).unwrap();
    bytes[100] ^= 1;
    std::fs::write(&echo, &bytes).unwrap();
    // A run without echo does not read it.
    assert!(!run(folder.path(), &[]).stderr.contains("left out"));
    let ran = run(folder.path(), &echoing);
    assert!(ran.stderr.contains("echo`, byte 64") && ran.stderr.contains("history repair"), "{}", ran.stderr);
    assert_eq!(report(ran)["text"], first["text"]);
    let aside = echo.with_file_name("damaged.echo");
    assert!(aside.exists() && echo.exists());
    refrain(&["history", "repair", "--history", arg(folder.path())]).done();
    assert!(!aside.exists() && echo.exists());
    assert_eq!(list(folder.path()).len(), 4);
    let number = list(folder.path())[0].split_whitespace().next().unwrap().to_owned();
    refrain(&["history", "forget", "--history", arg(folder.path()), &number]).done();
    assert!(!echo.exists());
    assert_eq!(list(folder.path()).len(), 3);
}

#[test]
fn a_folder_that_is_none_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    assert!(run(&file, &[]).refused(3).contains("--history"));
}

#[test]
fn the_default_folder_is_the_users_and_can_be_left_alone() {
    let home = tempfile::tempdir().unwrap();
    let run = |more: &[&str]| {
        let args = [&["run", "--max-tokens", "8", "--stats", "off"], more, &[REQUEST]].concat();
        let output =
            command(&args).env("HOME", home.path()).env("LOCALAPPDATA", home.path()).output().unwrap();
        assert!(output.status.success());
        // What the answer is, and where it ends, is said in each run.
        let stderr = String::from_utf8(output.stderr).unwrap();
        let of_history = |line: &&str| !line.contains("is a demonstration") && !line.starts_with("cut: ");
        stderr.lines().filter(of_history).map(|line| format!("{line}\n")).collect::<String>()
    };
    assert_eq!(run(&["--no-history"]), "");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    let first = run(&[]);
    assert!(first.contains("answers are kept in") && first.contains("--no-history"), "{first}");
    assert_eq!(run(&[]), "", "said once");
    let listed =
        command(&["history", "list"]).env("HOME", home.path()).env("LOCALAPPDATA", home.path()).output();
    assert_eq!(String::from_utf8(listed.unwrap().stdout).unwrap().lines().count(), 2);
    // Without a home folder there is no place for answers.
    refrain(&["run", "--max-tokens", "8", REQUEST]).done();
    assert!(refrain(&["history", "list"]).refused(2).contains("--history"));
}
