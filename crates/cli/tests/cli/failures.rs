//! Each error is one line with advice, and its exit code states its kind.

use std::fs;

use crate::support::{arg, refrain, refrain_with, repository};

const USAGE: i32 = 2;
const INPUT: i32 = 3;

#[test]
fn usage_errors_end_with_2() {
    let cases: [(&[&str], &str); 14] = [
        (&["sing"], "sing"),
        (&["run", "--penalty", "dry=101", "hi"], "dry.multiplier"),
        (&["run", "--penalty", "dry-base=x", "hi"], "dry-base"),
        (&["run", "--tempo", "1", "hi"], "--tempo"),
        (&["run", "--temp", "-1", "hi"], "temp"),
        (&["run", "--temp", "hot", "hi"], "hot"),
        (&["run", "--top-p", "2", "hi"], "top_p"),
        (&["run", "--threads", "0", "hi"], "threads"),
        (&["run", "--drafting", "batch=65", "hi"], "verify"),
        (&["run", "--ctx", "1", "hi"], "context"),
        (&["run", "--logit-bias", "x", "hi"], "42=-inf"),
        (&["run", "--stop", "", "hi"], "stop"),
        (&["run", "--raw", "--context", ".", "hi"], "--raw"),
        (&["run"], "PROMPT"),
    ];
    for (args, word) in cases {
        let message = refrain(args).refused(USAGE);
        assert!(message.contains(word), "{args:?}: {message}");
    }
}

#[test]
fn the_nearest_command_and_option_are_suggested() {
    let cases: [(&[&str], &str); 3] = [
        (&["sumarize", "a.md"], "'summarize'"),
        (&["index", "serch", "roof"], "'search'"),
        (&["run", "--max-token", "5", "hi"], "'--max-tokens'"),
    ];
    for (args, word) in cases {
        let message = refrain(args).refused(USAGE);
        assert!(message.contains("similar") && message.contains(word), "{args:?}: {message}");
    }
    assert!(!refrain(&["zzz"]).refused(USAGE).contains("similar"));
}

#[test]
fn a_model_that_is_none_is_named_in_words() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let whole = fs::read(repository("fixtures/target.gguf")).unwrap();
    fs::create_dir_all(path("one")).unwrap();
    fs::create_dir_all(path("two")).unwrap();
    fs::write(path("one/small.GGUF"), &whole).unwrap();
    fs::write(path("two/b.gguf"), &whole).unwrap();
    fs::write(path("two/a.gguf"), &whole).unwrap();
    fs::write(path("empty.gguf"), b"").unwrap();
    fs::write(path("head.gguf"), &whole[..30]).unwrap();
    fs::write(path("body.gguf"), &whole[..whole.len() / 2]).unwrap();
    let cases: [(&str, &[&str]); 5] = [
        ("one", &["is a folder", "small.GGUF"]),
        ("two", &["2 GGUF files", "a.gguf"]),
        ("empty.gguf", &["is empty", "0 bytes"]),
        ("head.gguf", &["is cut off"]),
        ("body.gguf", &["is cut off"]),
    ];
    for (name, words) in cases {
        let message = refrain(&["run", "--model", arg(&path(name)), "hi"]).refused(INPUT);
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}

#[test]
fn input_errors_end_with_3() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("binary.txt"), b"\xff\0").unwrap();
    fs::write(path("model.gguf"), b"no model").unwrap();
    fs::create_dir(path("empty")).unwrap();
    let (binary, gguf, empty, missing) =
        (path("binary.txt"), path("model.gguf"), path("empty"), path("missing"));
    let cases: [(&[&str], &str); 8] = [
        (&["run", "--model", arg(&missing), "hi"], "missing"),
        (&["run", "--model", arg(&gguf), "hi"], "model.gguf"),
        (&["run", "--model", arg(&empty), "hi"], "empty"),
        (&["summarize", arg(&missing)], "missing"),
        (&["summarize", arg(&binary)], "UTF-8"),
        (&["run", "--context", arg(&missing), "hi"], "missing"),
        (&["run", "--context", arg(&binary), "hi"], "UTF-8"),
        (&["run", "--context", arg(&empty), "hi"], "no text"),
    ];
    for (args, word) in cases {
        let message = refrain(args).refused(INPUT);
        assert!(message.contains(word), "{args:?}: {message}");
    }
    let message = refrain_with(&["run"], b"\xff\xfe").refused(INPUT);
    assert!(message.contains("UTF-8"), "{message}");
}

#[test]
fn a_request_that_does_not_fit_is_refused_with_both_numbers() {
    let long = "Preambon ".repeat(5000);
    let note = repository("fixtures/notes/project-preambon.md");
    let args = ["ask", "--context", arg(&note), long.as_str()];
    let message = refrain(&args).refused(INPUT);
    assert!(message.contains("the request has") && message.contains("--ctx"), "{message}");
    // Not even the start of these notes fits.
    let tight = ["run", "--ctx", "16", "--context", arg(&note), "Go."];
    let message = refrain(&tight).refused(INPUT);
    assert!(message.contains("room for") && message.contains("--ctx"), "{message}");
    // Without a layout, the session refuses.
    let message = refrain_with(&["run", "--raw", "-"], long.as_bytes()).refused(INPUT);
    assert!(message.contains("context"), "{message}");
}

#[test]
fn a_chat_template_that_does_not_parse_is_refused_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.gguf");
    let mut bytes = fs::read(repository("fixtures/target.gguf")).unwrap();
    let at = bytes.windows(6).position(|part| part == b"{% for").expect("a template");
    bytes[at + 3..at + 6].copy_from_slice(b"fro");
    fs::write(&model, bytes).unwrap();
    for command in [&["run", "hi"][..], &["chat"]] {
        let message = refrain(&[command, &["--model", arg(&model)]].concat()).refused(INPUT);
        assert!(message.contains("line 1") && message.contains("--raw"), "{message}");
    }
    let raw = ["run", "--raw", "--max-tokens", "4", "--model", arg(&model), "hi"];
    refrain(&raw).done();
}

#[test]
fn control_characters_in_names_do_not_reach_the_terminal() {
    let message = refrain(&["run", "--model", "\x1b]0;title\x07.gguf", "hi"]).refused(INPUT);
    assert!(!message.contains(|c: char| c.is_control()), "{message:?}");
}

#[test]
fn help_and_version_go_to_standard_output() {
    assert!(refrain(&["--help"]).done().contains("model"));
    assert!(refrain(&["run", "--help"]).done().contains("--context"));
    assert!(refrain(&["--version"]).done().starts_with("refrain "));
    let bare = refrain(&[]);
    assert_eq!(bare.code, Some(USAGE));
    assert!(bare.stderr.contains("Usage"));
}

#[test]
fn help_fits_a_screen_and_names_the_way_to_the_rest() {
    for command in ["run", "chat"] {
        let help = refrain(&[command, "--help"]).done();
        let n_lines = help.lines().count();
        assert!((24..=40).contains(&n_lines), "{n_lines} lines:\n{help}");
        let longest = help.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(longest.chars().count() <= 100, "{longest}");
        assert!(help.contains("--help-all") && !help.contains("--top-k"), "{help}");
        assert_eq!(refrain(&[command, "-h"]).done(), help);
        let all = refrain(&[command, "--help-all"]).done();
        for rest in ["Sampling:", "--top-k", "--grammar", "--quantize", "--seed", "--config"] {
            assert!(all.contains(rest), "{rest} in\n{all}");
        }
        assert!(all.contains("reuse-steps=N") && all.contains("dry-base=X"), "{all}");
        assert!(!all.contains("--flash-bandwidth"), "{all}");
    }
}
