//! What a person sees: every command that shows progress, in a terminal of 40, 80 and 110 columns. The screen is that of the plain
//! output: no text is erased, and nothing of a bar is left.

#![cfg(unix)]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::hub::{self, Hub, Place, files};
use crate::pty::{Shown, Then, on_terminal, plain, rendered, without_numbers};
use crate::support::{self, arg, command, model, repository};

const WIDTHS: [u16; 3] = [40, 80, 110];

/// Notes in a folder of their own.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(home.path("notes")).unwrap();
        home.write("car.md", "# Car repair\n\nQulittus Works takes care of the repair of the car.\n");
        home.write(
            "車の修理と台所の蛇口.md",
            "# 車の修理\n\n車の修理は八月十八日の予定です。蛇口も直します。\n",
        );
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path("notes").join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A command in this home, which keeps nothing between runs.
    fn command(&self, args: &[&str]) -> Command {
        let mut command = command(args);
        command.env("HOME", self.0.path());
        command
    }
}

/// Compares the screen of a command with its plain output, each in a home of its own.
#[track_caller]
fn is_plain(args: impl Fn(&Home) -> Vec<String>) {
    let run = |home: &Home| {
        let args = args(home);
        home.command(&args.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let home = Home::new();
    let plain = plain(run(&home));
    for columns in WIDTHS {
        let home_of_screen = Home::new();
        let Shown { code, text, sent } = on_terminal(run(&home_of_screen), columns, &[]);
        assert_eq!(code, Some(0), "{text}");
        assert!(sent.contains("\r\u{1b}[J"), "no bar was drawn: {sent}");
        let there = |text: &str, home: &Home| without_numbers(&text.replace(arg(home.0.path()), "HOME"));
        let expected = there(&rendered(&plain, columns), &home);
        assert_eq!(there(&text, &home_of_screen), expected, "{columns} columns");
    }
}

fn owned<const N: usize>(args: [&str; N]) -> Vec<String> {
    args.map(str::to_owned).into()
}

#[test]
fn ask() {
    is_plain(|home| {
        let question = "Who takes care of the repair of the car?";
        owned(["ask", question, "--context", arg(&home.path("notes")), "--threads", "1", "--store", "none"])
    });
}

#[test]
fn ask_in_colour() {
    let home = Home::new();
    let question = "Who takes care of the repair of the car?";
    let notes = home.path("notes");
    let args = ["ask", question, "--context", arg(&notes), "--threads", "1", "--store", "none"];
    let plain = plain(home.command(&args));
    let mut colored = home.command(&args);
    colored.env("TERM", "xterm-256color");
    let shown = on_terminal(colored, 80, &[]);
    assert!(shown.sent.contains("\u{1b}[2m"), "no colours: {}", shown.sent);
    assert_eq!(without_numbers(&shown.text), without_numbers(&rendered(&plain, 80)));
}

#[test]
fn summarize() {
    is_plain(|home| {
        owned(["summarize", arg(&home.path("notes/car.md")), "--threads", "1", "--store", "none"])
    });
}

#[test]
fn summarize_in_parts() {
    is_plain(|home| {
        let text = "The train to the harbour leaves at nine. Bring the tickets and the map.\n\n".repeat(60);
        let note = home.write("long.md", &text);
        owned([
            "summarize",
            arg(&note),
            "--ctx",
            "512",
            "--max-tokens",
            "24",
            "--threads",
            "1",
            "--store",
            "none",
        ])
    });
}

#[test]
fn reply() {
    is_plain(|_| {
        let mail = repository("examples/mail.txt");
        owned(["reply", arg(&mail), "--threads", "1", "--store", "none"])
    });
}

#[test]
fn edit_and_its_changes() {
    let args = |home: &Home| {
        let note = home.path("notes").join("車の修理と台所の蛇口.md");
        owned(["edit", arg(&note), "Say nine.", "--threads", "1", "--store", "none"])
    };
    is_plain(args);
    is_plain(|home| [args(home), owned(["--changes"])].concat());
}

#[test]
fn ui() {
    is_plain(|_| {
        let screen = repository("examples/screen.txt");
        owned(["ui", arg(&screen), "Open the settings.", "--threads", "1", "--store", "none"])
    });
}

#[test]
fn run_with_notes() {
    is_plain(|home| {
        let notes = home.path("notes");
        owned([
            "run",
            "Who repairs the car?",
            "--context",
            arg(&notes),
            "--threads",
            "1",
            "--store",
            "none",
            "--stats",
            "off",
        ])
    });
}

#[test]
fn index_pack_verify_and_graphs() {
    is_plain(|home| owned(["index", "add", arg(&home.path("notes")), "--index", arg(&home.path("index"))]));
    is_plain(|home| owned(["model", "pack", arg(&model()), arg(&home.path("model.refrain"))]));
    is_plain(|home| owned(["model", "graphs", arg(&model()), arg(&home.path("graphs"))]));
    is_plain(|home| {
        let packed = home.path("model.refrain");
        support::refrain(&["model", "pack", arg(&model()), arg(&packed)]).done();
        owned(["model", "inspect", arg(&packed), "--verify"])
    });
}

#[test]
fn a_conversation() {
    let home = Home::new();
    let args = ["chat", "--threads", "1", "--store", "none", "--stats", "off", "--max-tokens", "20"];
    let mut piped = home.command(&args);
    let expected = {
        use std::io::Write;
        use std::process::Stdio;
        let mut child =
            piped.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(b"Hello\nWho repairs the car?\n").unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap()
    };
    for columns in WIDTHS {
        let script = [
            ("\n>$", Then::Type("Hello\n")),
            ("\n>$", Then::Type("Who repairs the car?\n")),
            ("\n>$", Then::Type("/exit\n")),
        ];
        let shown = on_terminal(home.command(&args), columns, &script);
        assert_eq!(shown.code, Some(0), "{}", shown.text);
        let lines: Vec<&str> = shown.text.lines().map(str::trim_end).collect();
        for line in rendered(&expected, columns).lines() {
            assert!(lines.contains(&line.trim_end()), "no {line:?} in {}", shown.text);
        }
    }
}

#[test]
fn a_paste_is_one_turn_and_lines_come_back() {
    let home = Home::new();
    let (store, talk) = (home.path("store"), home.path("talk.json"));
    let args = ["chat", "--threads", "1", "--store", arg(&store), "--stats", "off", "--max-tokens", "4"];
    let save = format!("/save {}", arg(&talk));
    let script = [
        // The bell in it does not reach the terminal.
        ("\n>$", Then::Type("\u{1b}[200~Hello\nWho repairs\u{7} the car?\u{1b}[201~")),
        ("the car?$", Then::Type("\r")),
        ("\n>$", Then::Type("one \\\r")),
        ("one \\$", Then::Type("two")),
        ("two$", Then::Type("\r")),
        ("\n>$", Then::Type(&save)),
        ("talk.json$", Then::Type("\r")),
        ("\n>$", Then::Type("/exit\r")),
    ];
    let shown = on_terminal(home.command(&args), 200, &script);
    assert_eq!(shown.code, Some(0), "{}", shown.text);
    assert!(!shown.sent.contains('\u{7}'), "{}", shown.sent);
    let saved: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&talk).unwrap()).unwrap();
    let of_user = saved["turns"].as_array().unwrap().iter().filter(|turn| turn["role"] == "user");
    let texts: Vec<&str> = of_user.map(|turn| turn["text"].as_str().unwrap()).collect();
    assert_eq!(texts, ["Hello\nWho repairs\u{7} the car?", "one \ntwo"]);

    use std::os::unix::fs::PermissionsExt;
    let typed = store.join("typed");
    assert_eq!(std::fs::metadata(&typed).unwrap().permissions().mode() & 0o777, 0o600);
    let up = "\u{1b}[A";
    let script = [
        ("\n>$", Then::Type(up)),
        (&*save, Then::Type(up)),
        ("two$", Then::Type("\u{3}")),
        // At the prompt: before it, the terminal acts on keys.
        ("ends the program\n>$", Then::Type("\u{4}")),
    ];
    let shown = on_terminal(home.command(&args), 200, &script);
    assert_eq!(shown.code, Some(0), "{}", shown.text);
    support::refrain(&["forget", "--all", "--store", arg(&store)]).done();
    assert!(!typed.exists());

    // Nothing is kept without a store, and two Ctrl-C end the program.
    let args = ["chat", "--threads", "1", "--store", "none"];
    let script = [
        ("\n>$", Then::Type("/help\r")),
        ("as Ctrl-D\n>$", Then::Type("\u{3}")),
        ("ends the program\n>$", Then::Type("\u{3}")),
    ];
    assert_eq!(on_terminal(home.command(&args), 200, &script).code, Some(130));
    assert!(!typed.exists());
}

#[test]
fn a_terminal_that_cannot_edit_lines_reads_them() {
    let home = Home::new();
    let args = ["chat", "--threads", "1", "--store", "none", "--stats", "off", "--max-tokens", "4"];
    let mut command = home.command(&args);
    command.env("TERM", "dumb");
    let shown = on_terminal(
        command,
        80,
        &[("\n>$", Then::Type("/system\n")), ("no system turn", Then::Type("/exit\n"))],
    );
    assert!(shown.code == Some(0) && !shown.sent.contains("\u{1b}[?2004h"), "{}", shown.sent);
}

/// A hub that sends the model slowly under any name.
fn slow_hub(name: &'static str) -> Hub {
    let bytes = std::fs::read(model()).unwrap();
    Hub::start(files([(name, bytes.clone())]), move |request, _, good| match request.is_listing() {
        true => good,
        false => hub::Reply::new(200, bytes.clone()).paced(bytes.len() / 8 + 1, Duration::from_millis(60)),
    })
}

#[test]
fn a_download_in_a_window_that_becomes_narrow() {
    let hub = slow_hub("a-long-name-of-a-model-with-many-words-Q8_0.gguf");
    let (place, other) = (Place::new(), Place::new());
    let plain = plain(place.pull(&hub, &[]));
    let of = |text: &str, place: &Place| text.replace(arg(place.path()), "HOME");
    for columns in WIDTHS {
        let other = Place::new();
        let shown = on_terminal(other.pull(&hub, &[]), columns, &[]);
        assert_eq!(of(&shown.text, &other).trim_end(), of(&rendered(&plain, columns), &place).trim_end());
        assert!(shown.sent.contains("a-long-name"), "no bar was drawn");
    }
    let script = [("a-long-name", Then::Resize(40))];
    let shown = on_terminal(other.pull(&hub, &[]), 110, &script);
    assert_eq!(of(&shown.text, &other).trim_end(), of(&rendered(&plain, 40), &place).trim_end());
}

/// The note stands where the bar was, and nothing of the bar is left behind it.
#[test]
fn a_note_in_the_middle_of_a_download() {
    let bytes = std::fs::read(model()).unwrap();
    let len = bytes.len();
    let hub = Hub::start(files([("model-Q8_0.gguf", bytes)]), move |request, n, good| {
        match (request.is_listing(), n) {
            (true, _) => good,
            (false, 0) => good.paced(len / 8 + 1, Duration::from_millis(60)).cut(len / 2),
            (false, _) => good,
        }
    });
    let place = Place::new();
    let shown = on_terminal(place.pull(&hub, &[]), 110, &[]);
    assert!(shown.sent.contains("B/s"), "no bar was drawn: {}", shown.sent);
    let lines: Vec<&str> = shown.text.lines().filter(|line| line.contains("trying again")).collect();
    let [line] = lines[..] else { panic!("{}", shown.text) };
    assert!(line.trim_end().ends_with("; trying again"), "{line}");
}

const SUGGESTED: &str = "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF";

#[test]
fn a_model_is_chosen_with_one_key_and_remembered() {
    let hub = slow_hub("smollm2-360m-instruct-q8_0.gguf");
    let place = Place::new();
    let refrain = |args: &[&str]| {
        let mut command = place.command(args);
        command.env("HF_ENDPOINT", hub.url());
        command
    };
    let settings = place.path().join(".config/refrain/config.toml");
    let none = on_terminal(refrain(&[]), 80, &[("A key from 1", Then::Type("q"))]);
    assert!(none.code == Some(0) && none.text.contains("no model is chosen"), "{}", none.text);
    assert!(!settings.exists() && hub.requests().is_empty());

    std::fs::create_dir_all(settings.parent().unwrap()).unwrap();
    std::fs::write(&settings, "# mine\nthreads = 1\n\n[run]\nmax-tokens = 3\n").unwrap();
    let shown = on_terminal(refrain(&[]), 80, &[("A key from 1", Then::Type("1"))]);
    assert_eq!(shown.code, Some(0), "{}", shown.text);
    for text in ["386.4 MB to download", "tokens/s here", "(suggested)", "is the default model from now on"] {
        assert!(shown.text.contains(text), "no `{text}` in {}", shown.text);
    }
    let text = std::fs::read_to_string(&settings).unwrap();
    assert!(text.starts_with(&format!("model = \"{SUGGESTED}")), "{text}");
    assert!(text.ends_with("\n# mine\nthreads = 1\n\n[run]\nmax-tokens = 3\n"), "{text}");
    let ran = hub::run(refrain(&["run", "--store", "none", "Hello"]));
    assert!(ran.code == Some(0) && !ran.stderr.contains("demonstration"), "{}", ran.stderr);
    // Then there is nothing to choose.
    let help = on_terminal(refrain(&[]), 80, &[]);
    assert!(help.code == Some(2) && help.text.contains("Usage: refrain"), "{}", help.text);
}

#[test]
fn a_choice_that_cannot_be_downloaded_changes_nothing() {
    let place = Place::new();
    let hub = Hub::start(files([]), |_, _, _| hub::Reply::new(404, "not found"));
    let mut command = place.command(&[]);
    command.env("HF_ENDPOINT", hub.url());
    let shown = on_terminal(command, 80, &[("A key from 1", Then::Type("2"))]);
    assert!(shown.code == Some(3) && shown.text.contains("error:"), "{}", shown.text);
    assert!(!place.path().join(".config").exists());
}

#[test]
fn without_a_terminal_there_is_only_help() {
    let ran = support::refrain(&[]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""));
    assert!(ran.stderr.contains("Usage: refrain"), "{}", ran.stderr);
}

/// A note, and the program that edits it in place with the model of the repository.
fn edits(home: &Home, note: &Path, instruction: &str, script: &[(&str, Then<'_>)]) -> Shown {
    let (model, store) = (model(), home.path("store"));
    let args = [
        "edit",
        arg(note),
        instruction,
        "--in-place",
        "--threads",
        "1",
        "--model",
        arg(&model),
        "--store",
        arg(&store),
    ];
    on_terminal(home.command(&args), 80, script)
}

#[test]
fn a_long_edit_that_is_stopped_asks_for_what_is_done() {
    let day = |n: usize| format!("## Day {n}\n\nThe tap drips. Ada Voss repairs it on {n} May.\n\n");
    let old: String = (0..200).map(day).collect();
    for answer in ["n\n", "yes\n"] {
        let home = Home::new();
        let note = home.write("days.md", &old);
        let (model, store) = (model(), home.path("store"));
        let args =
            ["edit", arg(&note), "Change May to June.", "--in-place", "--ctx", "512", "--threads", "1"];
        let args = [&args[..], &["--model", arg(&model), "--store", arg(&store)]].concat();
        let script = [("Day 30", Then::Interrupt), ("Replace `", Then::Type(answer))];
        let shown = on_terminal(home.command(&args), 200, &script);
        assert!(shown.text.contains("windows are done"), "{}", shown.text);
        let new = std::fs::read_to_string(&note).unwrap();
        match answer {
            "yes\n" => assert!(new != old && new.ends_with(&day(199))),
            _ => assert_eq!(new, old),
        }
        assert_ne!(shown.code, Some(0));
    }
}

#[test]
fn an_edit_asks_and_can_be_undone() {
    let home = Home::new();
    let old = "The tap drips. Ada Voss repairs it on 3 May.\n";
    let note = home.write("tap.md", old);
    let read = || std::fs::read_to_string(&note).unwrap();
    let instruction = "Change 3 May to 4 May.";
    // The fixture model writes another text. A doubted edit needs the whole word.
    for answer in ["\n", "n\n", "y\n", "ja\n", "\u{4}"] {
        let shown = edits(&home, &note, instruction, &[("Replace `", Then::Type(answer))]);
        assert!(shown.code == Some(0) && shown.text.contains("is unchanged"), "{answer:?}: {}", shown.text);
        assert_eq!(read(), old);
    }
    let shown = edits(&home, &note, instruction, &[("Replace `", Then::Type("yes\n"))]);
    assert!(
        shown.text.contains("[+") && shown.text.contains("--undo"),
        "the changes are shown: {}",
        shown.text
    );
    assert_ne!(read(), old);

    let store = home.path("store");
    let undo = |more: &[&str]| {
        support::refrain(&[&["edit", "--undo", arg(&note), "--store", arg(&store)], more].concat())
    };
    std::fs::write(&note, "My own words.\n").unwrap();
    assert!(undo(&[]).refused(3).contains("--force"), "later changes are not lost");
    assert_eq!(read(), "My own words.\n");
    undo(&["--force"]).done();
    assert_eq!(read(), old);
    undo(&[]).done();
    assert_eq!(read(), "My own words.\n", "what --force has replaced was kept");
    assert!(undo(&[]).refused(3).contains("no text"));

    let list = home.write("list.md", "Apples and pears. Plums and cherries. Onions and leeks.\n");
    let of_list = |answer| edits(&home, &list, "Summarize in one word.", &[("[y/N]", Then::Type(answer))]);
    assert!(of_list("n\n").text.contains("is unchanged"));
    assert!(of_list("y\n").text.contains("--undo"), "one letter is enough without a doubt");
}
