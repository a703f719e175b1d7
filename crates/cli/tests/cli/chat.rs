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
    let reports = reports(AT_ANY_COST, &format!("{turn}/clear\n{turn}"));
    assert_eq!(reports[0]["text"], reports[1]["text"], "/clear forgets the conversation");
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
fn a_conversation_is_saved_and_goes_on_with_another_model_system_turn_and_notes() {
    let place = tempfile::tempdir().unwrap();
    let (talk, model) = (place.path().join("talk.json"), repository("fixtures/target.gguf"));
    let notes = repository("fixtures/notes");
    let (talk, model, notes) = (arg(&talk), arg(&model), arg(&notes));
    let first = chat(&["--stats", "off"], &format!("/system Be brief.\n/clear\nHello\n/save {talk}\n"));
    assert!(first.stderr.contains("saved in"), "{}", first.stderr);
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(talk).unwrap()).unwrap();
    let roles = |saved: &Value| -> Vec<String> {
        let turns = saved["turns"].as_array().unwrap().iter();
        turns.map(|turn| turn["role"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(roles(&saved), ["system", "user", "assistant"]);
    assert_eq!(saved["turns"][0]["text"], "Be brief.");

    let turns = format!(
        "/load {talk}\n/system\n/model {model}\n/notes {notes}\nHow much of the Preambon project is done?\n/notes off\n/save {talk}\n"
    );
    let ran = chat(&[], &turns);
    for text in ["3 turns", "system: Be brief.", "the model is", "notes: none"] {
        assert!(ran.stderr.contains(text), "no `{text}` in {}", ran.stderr);
    }
    ran.done();
    let saved: Value = serde_json::from_str(&std::fs::read_to_string(talk).unwrap()).unwrap();
    assert_eq!(roles(&saved), ["system", "user", "assistant", "user", "assistant"]);
    let notes = saved["turns"][3]["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note.as_str().unwrap().ends_with("project-preambon.md")), "{saved}");
}

#[test]
fn a_command_that_fails_leaves_the_conversation_as_it_is() {
    let place = tempfile::tempdir().unwrap();
    let letter = place.path().join("letter.txt");
    std::fs::write(&letter, "Dear Ada").unwrap();
    let nowhere = place.path().join("nowhere");
    let (letter, nowhere) = (arg(&letter), arg(&nowhere));
    let turns = format!(
        "/model {nowhere}\n/notes {nowhere}\n/load {letter}\n/save {letter}\n/save\n/sytem x\n/etc/hosts is what?\n"
    );
    let ran = chat(&["--stats", "off"], &turns);
    assert_eq!(ran.code, Some(3), "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("\nerror: ").count(), 4, "{}", ran.stderr);
    for text in ["/save needs a FILE", "did you mean /system?"] {
        assert!(ran.stderr.contains(text), "no `{text}` in {}", ran.stderr);
    }
    assert!(!ran.stdout.trim().is_empty(), "a path is a turn, and the first model answers");
    assert_eq!(std::fs::read_to_string(letter).unwrap(), "Dear Ada");
}

#[test]
fn a_named_model_is_sampled_and_greedy_on_request() {
    let model = repository("fixtures/target.gguf");
    let seeds = |args: &[&str]| -> Vec<Value> {
        let reports = reports(&[&["--model", arg(&model)], args].concat(), "hello\n/clear\nhello\n");
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

#[test]
fn what_the_files_do_not_cover_is_not_in_them() {
    let folder = tempfile::tempdir().unwrap();
    let note = folder.path().join("car.md");
    std::fs::write(
        &note,
        "# Car repair\nQulittus Works takes care of the repair of the car. The repair costs 240 euros.\n",
    )
    .unwrap();
    let turns = "Which airline lost the suitcase beside the car?\nWho takes care of the repair of the car?\nWhat about the airline?\n";
    let args = ["--context", arg(&note), "--stats", "json"];
    let ran = chat(&args, turns);
    let said = "not in these files: the answer is from the conversation alone";
    assert_eq!(ran.stderr.matches(said).count(), 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("nearest: ") && ran.stderr.contains("car.md Car repair"), "{}", ran.stderr);
    let reports = reports(&args[..2], turns);
    assert_eq!(reports[0]["searched"]["is_not_in_notes"], true, "{}", reports[0]);
    assert_eq!(reports[0]["passages"].as_array().map(Vec::len), Some(0));
    // The third turn goes on with the second.
    assert!(reports[1]["searched"].is_null() && reports[2]["searched"].is_null(), "{reports:?}");
    assert_eq!(reports[1]["passages"][0]["title"], "Car repair");
}
