//! `refrain chat`, with its turns from a pipe.

use serde_json::Value;

use crate::support::{self, AT_ANY_COST, arg, refrain_with, repository};

fn chat(args: &[&str], turns: &str) -> support::Ran {
    refrain_with(&[&["chat", "--max-tokens", "24"], args].concat(), turns.as_bytes())
}

/// The JSON lines of a chat's statistics.
fn reports(args: &[&str], turns: &str) -> Vec<Value> {
    let stdout = chat(&[&["--stats", "json"], args].concat(), turns).done();
    stdout
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok().filter(Value::is_object))
        .collect()
}

#[test]
fn turns_are_answered_and_the_conversation_is_kept() {
    let reports = reports(&[], "Where does Ada live?\n\nAnd when does she leave?\n");
    assert_eq!(reports.len(), 2);
    let cached = |report: &Value| report["stats"]["cached_tokens"].as_u64().unwrap();
    assert_eq!(cached(&reports[0]), 0);
    assert!(cached(&reports[1]) > 0, "the second turn keeps the KV cache of the first");
}

#[test]
fn the_same_answer_again_is_drafted_from_history() {
    let turn = "Tell me about Ada.\n";
    let reports = reports(AT_ANY_COST, &format!("{turn}/reset\n{turn}"));
    assert_eq!(reports[0]["text"], reports[1]["text"], "/reset forgets the conversation");
    let steps = |report: &Value| report["stats"]["steps"].as_u64().unwrap();
    let history = |report: &Value| {
        let sources = report["stats"]["sources"].as_array().unwrap();
        sources.iter().find(|source| source["name"] == "history").unwrap()["accepted"].as_u64().unwrap()
    };
    assert!(history(&reports[1]) > 0 && steps(&reports[1]) < steps(&reports[0]), "{reports:?}");
}

#[test]
fn drafting_never_changes_a_conversation() {
    let turns = "How much of the Preambon project is done?\nWhere is it based?\nHow much of the Preambon project is done?\n";
    let notes = repository("fixtures/notes");
    let texts = |draft: &str| {
        let reports = reports(&["--context", arg(&notes), "--draft", draft], turns);
        reports.iter().map(|report| report["text"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(texts("auto"), texts("off"));
}

#[test]
fn notes_that_were_shown_are_not_shown_again() {
    let note = repository("fixtures/notes/project-preambon.md");
    let turns = "How much of the Preambon project is done?\nWhere is the Preambon project based?\n";
    let reports = reports(&["--context", arg(&note)], turns);
    assert_eq!(reports[0]["passages"].as_array().unwrap().len(), 1);
    assert_eq!(reports[1]["passages"].as_array().unwrap().len(), 0);
}

#[test]
fn commands_are_obeyed() {
    let ran = chat(&["--stats", "off"], "/stats\n/nonsense\nhello\n/stats\n/exit\nnever answered\n");
    assert!(ran.stderr.contains("there is no answer yet"), "{}", ran.stderr);
    assert!(ran.stderr.contains("no such command: /nonsense"), "{}", ran.stderr);
    assert!(ran.stderr.contains("tokens per step"), "{}", ran.stderr);
    assert!(!ran.done().contains("never"));
}

#[test]
fn a_named_model_is_sampled_and_greedy_on_request() {
    let model = repository("fixtures/target.gguf");
    let seeds = |args: &[&str]| -> Vec<Value> {
        let reports = reports(&[&["--model", arg(&model)], args].concat(), "hello\n/reset\nhello\n");
        reports.iter().map(|report| report["seed"].clone()).collect()
    };
    let drawn = seeds(&[]);
    assert!(drawn.iter().all(Value::is_u64) && drawn[0] != drawn[1], "a seed for each answer: {drawn:?}");
    assert!(seeds(&["--temp", "0"]).iter().all(Value::is_null), "greedy");
    assert!(reports(&[], "hello\n")[0]["seed"].is_null(), "the model inside the program is greedy");
}

#[test]
fn the_legend_is_printed_once_and_only_with_colours() {
    let legends =
        |args: &[&str]| chat(args, "hello\nhello\n").stderr.matches("draft source of a token").count();
    assert_eq!(legends(&["--color", "always"]), 1);
    assert_eq!(legends(&[]), 0);
    assert_eq!(legends(&["--color", "always", "--stats", "off"]), 0);
}

#[test]
fn a_turn_that_does_not_fit_is_taken_back() {
    let long = "word ".repeat(5000);
    let ran = chat(&["--stats", "off", "--ctx", "200"], &format!("{long}\nhello\n"));
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert!(ran.stderr.contains("\nerror: ") && ran.stderr.contains("--ctx"), "{}", ran.stderr);
    assert!(!ran.stdout.trim().is_empty(), "the next turn is answered");
}
