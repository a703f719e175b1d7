//! Answers that `run` and `chat` keep, and draft later ones from.

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, Stdio};

use crate::support::{AT_ANY_COST, Ran, arg, command, refrain};
use serde_json::Value;

const REQUEST: &str = "Tell me about Ada.";

fn run(folder: &Path, more: &[&str]) -> Ran {
    let args = ["run", "--max-tokens", "32", "--stats", "json", "--store", arg(folder)];
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

#[test]
fn a_later_run_drafts_from_an_earlier_one() {
    let folder = tempfile::tempdir().unwrap();
    let (first, second) = (report(run(folder.path(), &[])), report(run(folder.path(), &[])));
    assert_eq!(first["text"], second["text"]);
    assert_eq!(history(&first), 0);
    let steps = |report: &Value| report["stats"]["steps"].as_u64().unwrap();
    assert!(history(&second) > 0 && steps(&second) < steps(&first), "{first} {second}");
    // Plain decoding keeps its answers, but does not draft.
    let plain = report(run(folder.path(), &["--draft", "off"]));
    assert_eq!((&plain["text"], history(&plain)), (&first["text"], 0));
    // What is forgotten is not drafted from.
    let forgotten = refrain(&["forget", "--all", "--json", "--store", arg(folder.path())]).done();
    assert_eq!(serde_json::from_str::<Value>(&forgotten).expect("JSON")["answers"], 3);
    assert_eq!(history(&report(run(folder.path(), &[]))), 0);
}

/// A running chat after its first answer. It ends with its standard input.
fn chat(folder: &Path) -> Child {
    let args = ["chat", "--max-tokens", "8", "--stats", "off", "--store", arg(folder)];
    let mut child = command(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    writeln!(child.stdin.as_mut().expect("piped"), "Hello.").expect("it reads");
    // The store is open when the first part of the answer arrives.
    let stdout = child.stdout.as_mut().expect("piped");
    stdout.read_exact(&mut [0]).expect("an answer");
    child
}

#[test]
fn a_second_program_answers_and_keeps_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let first = report(run(folder.path(), &[]));
    let mut chat = chat(folder.path());
    let ran = run(folder.path(), &[]);
    assert!(ran.stderr.contains("nothing is kept") && ran.stderr.contains("in use"), "{}", ran.stderr);
    let second = report(ran);
    assert_eq!((&second["text"], history(&second)), (&first["text"], 0));
    let forget = refrain(&["forget", "--all", "--store", arg(folder.path())]);
    assert!(forget.refused(3).contains("in use"));
    drop(chat.stdin.take());
    chat.wait_with_output().expect("ends");
    assert!(history(&report(run(folder.path(), &[]))) > 0, "the first answer is still there");
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
        let of_store = |line: &&str| !line.contains("is a demonstration") && !line.starts_with("cut: ");
        stderr.lines().filter(of_store).map(|line| format!("{line}\n")).collect::<String>()
    };
    assert_eq!(run(&["--store", "none"]), "");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);
    let first = run(&[]);
    assert!(first.contains("are kept in") && first.contains("--store none"), "{first}");
    assert_eq!(run(&[]), "", "said once");
    // Without a home folder there is no place for answers.
    refrain(&["run", "--max-tokens", "8", REQUEST]).done();
}
