//! `refrain run`.

use std::fs;

use serde_json::Value;

use crate::support::{AT_ANY_COST, arg, command, refrain, refrain_with, repository};

const QUESTION: &str = "What is the booking code of the trip to Aniarda?";

fn note() -> String {
    arg(&repository("fixtures/notes/aniarda-travel.md")).to_owned()
}

/// Runs with statistics as JSON. Returns the text before the JSON, and the JSON.
fn run_json(args: &[&str]) -> (String, Value) {
    let mut all = vec!["run", "--stats", "json"];
    all.extend(args);
    let stdout = refrain(&all).done();
    let (text, json) = stdout.trim_end().rsplit_once('\n').expect("text, then one line of JSON");
    (text.to_owned(), serde_json::from_str(json).expect("JSON"))
}

#[test]
fn the_answer_does_not_depend_on_drafting() {
    let sampled = ["--temp", "0.8", "--top-p", "0.9", "--seed", "7", "--penalty", "repeat=1.1"];
    let shapes: [&[&str]; 4] = [&[], &["--drafting", "batch=8"], &["--threads", "1"], &["--isa", "scalar"]];
    for sampling in [&[][..], &sampled[..]] {
        let note = note();
        let mut args = vec!["--context", &note, "--max-tokens", "40", QUESTION];
        args.extend(sampling);
        let (plain, stats) = run_json(&[&args[..], &["--draft", "off"]].concat());
        assert_eq!(stats["stats"]["drafting_off"]["disabled"], stats["stats"]["steps"]);
        assert_eq!(stats["text"].as_str(), Some(plain.as_str()));
        for shape in shapes {
            let (drafted, _) = run_json(&[&args[..], shape].concat());
            assert_eq!(drafted, plain, "{sampling:?} {shape:?}");
        }
    }
}

#[test]
fn the_request_comes_from_argument_or_standard_input() {
    let options = ["--stats", "off", "--max-tokens", "12"];
    let run = |args: &[&str], input: &[u8]| refrain_with(&[&["run"], args, &options].concat(), input).done();
    let expected = run(&[QUESTION], b"");
    assert!(!expected.trim().is_empty());
    assert_eq!(run(&["-"], QUESTION.as_bytes()), expected);
    assert_eq!(run(&[], QUESTION.as_bytes()), expected);
}

#[test]
fn a_piped_text_stands_before_the_request() {
    let text = fs::read(note()).unwrap();
    let request = ["run", QUESTION, "--stats", "json", "--max-tokens", "12"];
    let report = |ran: crate::support::Ran| -> Value {
        let stdout = ran.done();
        serde_json::from_str(stdout.trim_end().rsplit_once('\n').unwrap().1).unwrap()
    };
    let with = report(refrain_with(&request, &text));
    let passages = with["passages"].as_array().unwrap();
    assert!(passages.len() == 1 && passages[0]["title"] == "standard input", "{with}");
    for nothing in [&b""[..], b" \n\n"] {
        assert!(report(refrain_with(&request, nothing))["passages"].as_array().unwrap().is_empty());
    }
    let too_long = refrain_with(&request, &vec![b'x'; (4 << 20) + 1]).refused(3);
    assert!(too_long.contains("standard input") && too_long.contains("4194304"), "{too_long}");
    assert!(refrain_with(&request, b"\xff\xfe").refused(3).contains("UTF-8"));
    assert!(refrain_with(&["run", "--raw", "Go on"], b"text").refused(2).contains("two"));
    // A folder can be opened, and not read.
    let mut of_folder = command(&request);
    of_folder.stdin(fs::File::open(".").unwrap());
    let output = of_folder.output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(3) && stderr.contains("standard input"), "{stderr}");
}

#[test]
fn a_pipe_gets_plain_text_and_a_terminal_colours() {
    // As the task asks it, which the model has learnt.
    let text = fs::read_to_string(note()).unwrap().replacen("\n\n", "\n", 1);
    let prompt = format!("Answer the question from the notes.\n\n{}\n\nQuestion: {QUESTION}", text.trim());
    let args = [&["run", "--max-tokens", "40"], AT_ANY_COST, &[&prompt]].concat();
    let plain = refrain(&args);
    assert!(!plain.stdout.contains('\x1b') && !plain.stderr.contains('\x1b'));
    assert!(plain.stderr.contains("tokens per step"), "statistics by default: {}", plain.stderr);

    assert!(!plain.stderr.contains("colours"), "a legend of no colours: {}", plain.stderr);

    let colored = refrain(&[&args[..], &["--color", "always"]].concat());
    assert_eq!(colored.stderr.matches("draft source of a token").count(), 1, "{}", colored.stderr);
    assert!(colored.stderr.contains("\x1b[32mcontext\x1b"), "the legend is coloured: {:?}", colored.stderr);
    let silent = refrain(&[&args[..], &["--color", "always", "--stats", "off"]].concat());
    assert!(!silent.stderr.contains("colours"), "no statistics, no legend: {}", silent.stderr);
    assert!(colored.stdout.contains("\x1b[32m"), "green for the context: {:?}", colored.stdout);
    assert_eq!(without_colors(&colored.stdout), plain.stdout);

    let forced = command(&args).env("CLICOLOR_FORCE", "1").output().unwrap();
    assert!(forced.stdout.contains(&0x1b));
    let refused = command(&args).env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1").output().unwrap();
    assert!(!refused.stdout.contains(&0x1b));
}

#[test]
fn texts_are_shown_in_the_order_of_their_files_as_far_as_they_fit() {
    // All notes together are several times as long as the context.
    let notes = repository("fixtures/notes");
    let ran = refrain(&[
        "run",
        "--context",
        arg(&notes),
        "--ctx",
        "300",
        "--stats",
        "json",
        "--max-tokens",
        "30",
        "Sum it up.",
    ]);
    assert!(ran.stderr.contains("left out: ") && ran.stderr.contains(" more, "), "{}", ran.stderr);
    let stdout = ran.done();
    let (_, json) = stdout.trim_end().rsplit_once('\n').expect("text, then one line of JSON");
    let report: Value = serde_json::from_str(json).expect("JSON");
    let list = |name: &str| report[name].as_array().unwrap().clone();
    let paths = |name: &str| -> Vec<String> {
        list(name).iter().map(|place| place["path"].as_str().unwrap().to_owned()).collect()
    };
    let all = [paths("passages"), paths("left_out")].concat();
    assert!(all.is_sorted() && all.len() >= 14, "{all:?}");
    assert!(!list("passages").is_empty(), "{report}");
    assert!(list("left_out").iter().all(|left| left["n_tokens"].as_u64().unwrap() > 0), "{report}");
    assert_ne!(report["finish"], "context_full", "the answer has its room: {report}");
}

#[test]
fn a_long_line_is_cut_at_a_word() {
    let folder = tempfile::tempdir().unwrap();
    let note = folder.path().join("long.md");
    std::fs::write(&note, "A long note. ".repeat(2000)).unwrap();
    let ran = refrain(&["run", "--context", arg(&note), "--max-tokens", "8", "Sum it up."]);
    assert!(ran.stderr.contains("the rest of "), "{}", ran.stderr);
    ran.done();
}

#[test]
fn a_drawn_seed_is_reported_and_repeats_the_answer() {
    let sampled = ["--temp", "1.5", "--max-tokens", "24", "--ignore-eos", "Tell me about the garden."];
    let (first, report) = run_json(&sampled);
    let seed = report["seed"].as_u64().expect("a seed").to_string();
    assert_eq!(run_json(&[&sampled[..], &["--seed", &seed]].concat()).0, first);
    let others = [0, 1].map(|_| run_json(&sampled).0);
    assert!(others.iter().any(|other| *other != first), "without a seed another answer");
    let shown = refrain(&[&["run", "--seed", "41"], &sampled[..]].concat());
    assert!(shown.stderr.contains("seed 41"), "{}", shown.stderr);
    let (_, greedy) = run_json(&["--max-tokens", "4", "hello"]);
    assert!(greedy["seed"].is_null(), "{greedy}");
}

#[test]
fn dry_changes_repetitions_and_is_the_same_inside_drafts() {
    let args = ["--max-tokens", "60", "--ignore-eos", "--penalty", "dry=2", "again and again and again"];
    let (plain, _) = run_json(&[&args[..], &["--draft", "off"]].concat());
    let (drafted, _) = run_json(&args);
    assert_eq!(drafted, plain);
    let (without, _) = run_json(&["--max-tokens", "60", "--ignore-eos", "again and again and again"]);
    assert_ne!(without, plain);
}

#[cfg(unix)]
#[test]
fn names_need_not_be_utf_8() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;

    let folder = tempfile::tempdir().unwrap();
    let path = |name: &[u8]| folder.path().join(OsStr::from_bytes(name));
    let (note, model) = (path(b"n\xffte.md"), path(b"m\xff.gguf"));
    std::fs::copy(repository("fixtures/notes/project-preambon.md"), &note).unwrap();
    std::fs::copy(repository("fixtures/target.gguf"), &model).unwrap();
    std::fs::copy(repository("fixtures/draft.gguf"), path(b"d\xff.gguf")).unwrap();
    std::fs::copy(repository("fixtures/target.predictor"), path(b"p\xff")).unwrap();
    let mut program = command(&["run", "--stats", "json", "--max-tokens", "4", "--context"]);
    program.arg(&note).arg("--model").arg(&model).arg(QUESTION);
    program.arg("--draft").arg(path(b"d\xff.gguf")).arg("--pruning").arg(path(b"p\xff"));
    let output = program.stdin(std::process::Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn without_colors(text: &str) -> String {
    let mut plain = String::new();
    for (i, part) in text.split('\x1b').enumerate() {
        plain.push_str(if i == 0 { part } else { part.split_once('m').map_or("", |(_, text)| text) });
    }
    plain
}

#[test]
fn statistics_add_up() {
    let (_, report) = run_json(&["--context", &note(), "--max-tokens", "40", QUESTION]);
    let stats = &report["stats"];
    let number = |value: &Value| value.as_u64().unwrap();
    let lengths = stats["acceptance_lengths"].as_array().unwrap();
    let n_steps: u64 = lengths.iter().map(number).sum();
    let n_tokens: u64 = lengths.iter().enumerate().map(|(len, n_steps)| len as u64 * number(n_steps)).sum();
    assert_eq!((n_steps, n_tokens), (number(&stats["steps"]), number(&stats["tokens"])));
    for source in stats["sources"].as_array().unwrap() {
        assert!(number(&source["accepted"]) <= number(&source["drafted"]), "{source}");
    }
    assert!(report["decode_tokens_per_s"].as_f64().unwrap() > 0.0);
    assert!(report["prefill_tokens_per_s"].as_f64().unwrap() > 0.0);
}

#[test]
fn output_ends_where_it_is_told_to() {
    let (_, limited) = run_json(&["--max-tokens", "3", "--ignore-eos", QUESTION]);
    assert_eq!((&limited["finish"], &limited["stats"]["tokens"]), (&"max_tokens".into(), &3.into()));
    let text = refrain(&["run", "--max-tokens", "12", "--ignore-eos", "--stats", "off", QUESTION]).done();
    let stop: String = text.trim_end().chars().skip(4).take(3).collect();
    let (stopped, report) = run_json(&["--max-tokens", "12", "--ignore-eos", "--stop", &stop, QUESTION]);
    assert_eq!(report["finish"], "stop");
    assert!(
        !stopped.contains(&stop) && text.starts_with(&stopped),
        "{stopped:?} of {text:?} before {stop:?}"
    );
}

#[test]
fn raw_text_is_continued() {
    let args = ["run", "--raw", "--stats", "off", "--max-tokens", "6", "Everything about the trip to"];
    assert!(!refrain(&args).done().trim().is_empty());
}

#[cfg(unix)]
#[test]
fn ctrl_c_keeps_what_was_generated() {
    use std::io::Read;
    use std::process::{Command, Stdio};

    let args = [
        "run",
        "--raw",
        "--ignore-eos",
        "--max-tokens",
        "100000",
        "--draft",
        "off",
        "--isa",
        "scalar",
        "--threads",
        "1",
    ];
    let mut child = command(&[&args[..], &["Everything about"]].concat())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 1];
    stdout.read_exact(&mut first).unwrap();
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let mut rest = Vec::new();
    stdout.read_to_end(&mut rest).unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{stderr}");
    assert_eq!(rest.last(), Some(&b'\n'), "the line is ended");
    assert!(stderr.contains("ended by Ctrl-C"), "{stderr}");
}

#[cfg(unix)]
#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    use std::io::Read;
    use std::process::Stdio;

    let mut child =
        command(&["run", "--raw", "--ignore-eos", "--max-tokens", "200", "--stats", "off", "Everything"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(stderr, "");
}
