//! `--json-schema`, `--regex`, `--choice`, `--grammar` and `--grammar-after`.

use serde_json::Value;

use crate::support::{arg, refrain, refrain_with};

const SCHEMA: &str = r#"{"type": "object", "properties": {"action": {"enum": ["click", "scroll"]}, "target": {"type": "integer",
    "minimum": 1, "maximum": 40}}, "required": ["action", "target"], "additionalProperties": false}"#;

fn answer(args: &[&str]) -> String {
    let common = ["run", "--threads", "1", "--stats", "off"];
    refrain(&[&common[..], args, &["Show the next page."]].concat()).done().trim_end().to_owned()
}

#[test]
fn answers_are_those_of_the_grammar_with_and_without_drafts() {
    let folder = tempfile::tempdir().unwrap();
    let (schema, lark) = (folder.path().join("schema.json"), folder.path().join("sum.lark"));
    std::fs::write(&schema, SCHEMA).unwrap();
    std::fs::write(&lark, "start: N (\"+\" N)* \"=\"\nN: /[1-9]/\n").unwrap();
    let is_command = |text: &str| {
        let value: Value = serde_json::from_str(text).expect("JSON");
        ["click", "scroll"].contains(&value["action"].as_str().unwrap())
            && (1..=40).contains(&value["target"].as_i64().unwrap())
    };
    let check = |args: &[&str], is_right: &dyn Fn(&str) -> bool| {
        for sampled in [&[][..], &["--temp", "1", "--seed", "3"]] {
            let args = [args, sampled].concat();
            let text = answer(&args);
            assert!(is_right(&text), "{args:?}: {text:?}");
            assert_eq!(answer(&[&args[..], &["--draft", "off"]].concat()), text, "{args:?}");
        }
    };
    check(&["--json-schema", SCHEMA], &is_command);
    check(&["--json-schema", arg(&schema)], &is_command);
    check(&["--regex", "(yes|no), [0-9]{2}"], &|text| {
        text.split_once(", ")
            .is_some_and(|(word, n)| ["yes", "no"].contains(&word) && n.parse::<u8>().is_ok())
    });
    check(&["--choice", "left", "--choice", "right", "--choice", "up, then left"], &|text| {
        ["left", "right", "up, then left"].contains(&text)
    });
    check(&["--grammar", arg(&lark), "--max-tokens", "400"], &|text| {
        text.trim_end_matches('=').split('+').all(|n| n.len() == 1)
    });
    let gbnf = folder.path().join("answer.gbnf");
    std::fs::write(&gbnf, "root ::= \"yes\" | \"no\" reason?\nreason ::= \", because \" [a-z]{1,8}\n")
        .unwrap();
    check(&["--grammar", arg(&gbnf)], &|text| {
        text == "yes"
            || text == "no"
            || text.strip_prefix("no, because ").is_some_and(|reason| reason.len() <= 8)
    });
}

#[test]
fn a_conversation_answers_in_the_grammar() {
    let args = ["chat", "--threads", "1", "--stats", "off", "--choice", "left", "--choice", "right"];
    let shown = refrain_with(&args, b"Which way?\nAnd then?\n").done();
    let answers: Vec<&str> = shown.lines().collect();
    assert_eq!(answers.len(), 2, "{shown:?}");
    assert!(answers.iter().all(|answer| ["left", "right"].contains(answer)), "{shown:?}");
}

#[test]
fn what_is_no_grammar_is_refused_in_one_line() {
    let run = |args: &[&str]| refrain(&[&["run"], args, &["hello"]].concat());
    let usage: [(&[&str], &str); 3] = [
        (&["--regex", "a", "--choice", "a"], "--choice"),
        (&["--json-schema", "{}", "--grammar", "x.lark"], "--grammar"),
        (&["--grammar-after", "</think>"], "needs a grammar"),
    ];
    for (args, word) in usage {
        let message = run(args).refused(2);
        assert!(message.contains(word), "{args:?}: {message}");
    }
    let folder = tempfile::tempdir().unwrap();
    let gbnf = folder.path().join("wrong.gbnf");
    std::fs::write(&gbnf, "root ::= a\na ::= \"b\" )\n").unwrap();
    let input: [(&[&str], &str); 7] = [
        (&["--json-schema", r#"{"items": {"uniqueItems": true}}"#], "#/items"),
        (&["--json-schema", r#"{"type": "#], "line 1"),
        (&["--json-schema", "no-such-file.json"], "no-such-file.json"),
        (&["--regex", "("], "regular expression"),
        (&["--choice", "a", "--choice", ""], "choice 1 is empty"),
        (&["--choice", "a", "--grammar-after", ""], "marker"),
        (&["--grammar", arg(&gbnf)], "line 2, column 11"),
    ];
    for (args, word) in input {
        let message = run(args).refused(3);
        assert!(message.contains(word), "{args:?}: {message}");
    }
}

#[test]
fn the_legend_of_colours_names_the_grammar() {
    let stderr =
        refrain(&["run", "--color", "always", "--choice", "yes", "--choice", "no", "Is it so?"]).stderr;
    assert!(stderr.contains("\x1b[96mgrammar\x1b"), "{stderr:?}");
}
