//! ask, summarize, reply, edit and ui.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{self, Ran, arg, model, refrain, refrain_with, repository};

/// Notes, their index and a store, in folders of their own.
struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let home = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::create_dir(home.path("notes")).unwrap();
        home.write("car.md", "# Car repair\n\nQulittus Works takes care of the repair of the car.\n");
        home.write("kitchen.md", "# Kitchen\n\nThe tap drips. Ada Voss repairs it on 3 May.\n");
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path("notes").join(name);
        std::fs::write(&path, text).unwrap();
        path
    }

    fn index(&self) {
        refrain(&["index", "add", arg(&self.path("notes")), "--index", arg(&self.path("index"))]).done();
    }

    /// A command with the store of this home.
    fn ran(&self, args: &[&str]) -> Ran {
        self.ran_with(args, b"")
    }

    fn ran_with(&self, args: &[&str], input: &[u8]) -> Ran {
        let store = self.path("store");
        refrain_with(&[args, &["--threads", "1", "--store", arg(&store)]].concat(), input)
    }

    fn ran_undo(&self, note: &Path) -> Ran {
        refrain(&["edit", "--undo", arg(note), "--store", arg(&self.path("store"))])
    }

    fn json(&self, args: &[&str]) -> Value {
        let stdout = self.ran(&[args, &["--json"]].concat()).done();
        serde_json::from_str(&stdout).expect("one JSON object")
    }
}

const QUESTION: &str = "Who takes care of the repair of the car?";

#[test]
fn a_question_is_answered_from_the_index() {
    let home = Home::new();
    home.index();
    let index = home.path("index");
    let ask = ["ask", QUESTION, "--notes", arg(&index)];
    let ran = home.ran(&ask);
    let stderr = ran.stderr.clone();
    let text = ran.done();
    assert!(text.contains("Qulittus Works"), "{text}");
    assert!(stderr.contains("[1] ") && stderr.contains("car.md:3 Car repair"), "{stderr}");

    home.ran(&ask).done();
    let json = home.json(&ask);
    assert_eq!(json["text"].as_str().unwrap().trim(), text.trim());
    assert!(json["passages"][0]["path"].as_str().unwrap().ends_with("car.md"));
    assert!(json["sentences"].as_array().is_some_and(|sentences| !sentences.is_empty()));
    let stats = &json["stats"][0];
    assert_eq!(stats["prefilled_tokens"], 0, "the prompt was kept by the second run");
    assert!(stats["cached_tokens"].as_u64().unwrap() > 0);

    let within = home.path("notes").join("kitchen.md");
    let other = home.json(&["ask", "Who repairs the tap?", "--notes", arg(&index), "--within", arg(&within)]);
    assert!(other["passages"].as_array().unwrap().iter().all(|passage| passage["title"] == "Kitchen"));
    let without = home.json(&[&ask[..], &["--draft", "off", "--config", "none"]].concat());
    assert_eq!(without["text"], json["text"], "drafts change no text");
}

/// Below the threshold: the answer, the words, the nearest passages, and an exit code for scripts.
#[test]
fn what_the_notes_do_not_cover_is_not_in_them() {
    let home = Home::new();
    home.index();
    let index = home.path("index");
    let nothing = home.ran(&["ask", "zzz qqq", "--notes", arg(&index)]);
    assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(1), "Not in your notes.\n"));
    assert!(nothing.stderr.contains("searched for: zzz, qqq"), "{}", nothing.stderr);
    let question = "Which airline lost the suitcase beside the car?";
    let ask = ["ask", question, "--notes", arg(&index), "--max-tokens", "2"];
    let refused = home.ran(&ask);
    assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), "Not in your notes.\n"));
    assert!(
        refused.stderr.contains("nearest: ") && refused.stderr.contains("Car repair"),
        "{}",
        refused.stderr
    );
    let json = home.ran(&[&ask[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert!(json["text"].is_null() && json["searched"]["is_not_in_notes"] == true, "{json}");
    assert_eq!(json["nearest"][0]["title"], "Car repair");
    assert!(json["searched"]["coverage"].as_f64().is_some_and(|coverage| coverage < 0.3), "{json}");
}

#[test]
fn a_question_is_answered_from_files() {
    let home = Home::new();
    let notes = home.path("notes");
    let json = home.json(&["ask", QUESTION, "--context", arg(&notes)]);
    assert_eq!(json["passages"][0]["title"], "Car repair");
    assert!(json["passages"][0]["path"].as_str().unwrap().ends_with("car.md"));
    assert!(json["passages"][0]["score"].as_f64().unwrap() > 0.0);
    // What they do not cover is not in them, also in those of an index. A text that is piped in is read as a whole.
    let car = notes.join("car.md");
    let other = ["ask", "Which airline lost the suitcase beside the car?", "--max-tokens", "2"];
    let in_files = [&other[..], &["--context", arg(&car)]].concat();
    for args in [&in_files[..], &["ask", "zzz qqq", "--context", arg(&car)]] {
        let refused = home.ran(args);
        assert_eq!((refused.code, refused.stdout.as_str()), (Some(1), "Not in these files.\n"));
    }
    let json = home.ran(&[&in_files[..], &["--json"]].concat());
    let json: Value = serde_json::from_str(&json.stdout).unwrap();
    assert!(
        json["text"].is_null() && json["searched"]["coverage"].as_f64().is_some_and(|it| it < 0.3),
        "{json}"
    );
    assert_eq!(json["nearest"][0]["title"], "Car repair");
    home.ran(&["ask", "What is it about?", "--context", arg(&car), "--max-tokens", "2"]).done();
    home.ran_with(&other, &std::fs::read(&car).unwrap()).done();
}

#[test]
fn all_passages_that_were_shown_are_listed() {
    let home = Home::new();
    home.index();
    let index = home.path("index");
    let ran =
        home.ran(&["ask", "Who repairs the car and the tap?", "--notes", arg(&index), "--max-tokens", "1"]);
    for text in ["[1] ", "[2] ", "car.md:3 Car repair", "kitchen.md:3 Kitchen"] {
        assert!(ran.stderr.contains(text), "no `{text}` in {}", ran.stderr);
    }
    ran.done();
}

#[test]
fn a_question_is_answered_from_a_pipe() {
    let home = Home::new();
    let log =
        "10:00 started\n10:01 The car needs a repair, and Qulittus Works takes care of it.\n10:02 ended\n";
    let json = |more: &[&str], input: &str| -> Value {
        let args = [&["ask", QUESTION, "--json"], more].concat();
        serde_json::from_str(&home.ran_with(&args, input.as_bytes()).done()).unwrap()
    };
    let passages = json(&[], log)["passages"].clone();
    assert_eq!(passages.as_array().unwrap().len(), 1);
    assert_eq!(passages[0]["title"], "standard input");
    assert_eq!(passages[0]["text"].as_str().unwrap().trim(), log.trim(), "whole, if it fits");
    assert!(passages[0]["path"].is_null());
    // A longer one is searched.
    let long = format!("{}\n\n{log}", "The weather was fine that day.\n\n".repeat(600));
    let found = json(&["--ctx", "1024", "--passages", "1"], &long)["passages"].clone();
    assert!(found[0]["text"].as_str().unwrap().contains("Qulittus"), "{found}");
    // Beside files.
    let notes = home.path("notes");
    let both = json(&["--context", arg(&notes)], "Qulittus Works is closed for the repair of the roof.");
    assert!(both["passages"].as_array().unwrap().len() >= 2, "{both}");
    home.index();
    let index = home.path("index");
    let args = ["ask", QUESTION, "--notes", arg(&index)];
    let ran = home.ran_with(&args, log.as_bytes());
    assert!(ran.stderr.contains("the index is not searched"), "{}", ran.stderr);
    ran.done();
    assert!(!home.ran_with(&args, b"").stderr.contains("not searched"));
    let within = [&args[..], &["--within", arg(&notes)]].concat();
    assert!(home.ran_with(&within, log.as_bytes()).refused(2).contains("--within"));
}

#[test]
fn a_piped_text_is_edited_by_one_argument() {
    let home = Home::new();
    let piped = home.ran_with(&["edit", "Say bike."], b"The car is blue.\n").done();
    assert_eq!(piped, home.ran_with(&["edit", "-", "Say bike."], b"The car is blue.\n").done());
    let note = home.write("a.md", "The car is blue.\n");
    for args in [&["edit", arg(&note)][..], &["edit", "-"], &["edit", "Say bike.", "--in-place"]] {
        let message = home.ran_with(args, b"x").refused(2);
        assert!(message.contains("instruction") || message.contains("--in-place"), "{message}");
    }
}

#[test]
fn files_that_the_index_reads_are_searched_in_it_after_a_look_at_them() {
    let home = Home::new();
    let ran = |args: &[&str]| {
        let mut command = support::command(args);
        command.env("HOME", home.folder.path()).env("XDG_DATA_HOME", home.path("data"));
        let output = command.output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    };
    let notes = home.path("notes");
    let ask = |path: &Path| {
        let args = ["ask", QUESTION, "--context", arg(path), "--json", "--threads", "1", "--max-tokens", "4"];
        let ran = ran(&args);
        let stderr = ran.stderr.clone();
        (serde_json::from_str::<Value>(&ran.done()).unwrap(), stderr)
    };
    // Without an index, the files are read, and none is made.
    ask(&notes);
    assert!(!home.path("data/refrain/notes").exists());
    ran(&["index", "add", arg(&notes)]).done();
    home.write(
        "mail.eml",
        "From: ada@example.org\nSubject: Repair\n\nKlimtur Garage takes care of the repair of the car.\n",
    );
    let (json, stderr) = ask(&notes);
    assert!(stderr.contains("1 files added"), "{stderr}");
    let passages = json["passages"].as_array().unwrap();
    assert!(passages.iter().any(|passage| passage["path"].as_str().unwrap().ends_with("mail.eml")), "{json}");
    let (json, stderr) = ask(&notes.join("car.md"));
    assert!(!stderr.contains("added"), "{stderr}");
    assert!(json["passages"].as_array().unwrap().iter().all(|passage| passage["title"] == "Car repair"));
    // What was forgotten, and what the index does not read, is read for this answer.
    ran(&["index", "forget", arg(&notes.join("car.md"))]).done();
    assert_eq!(ask(&notes.join("car.md")).0["passages"][0]["title"], "Car repair");
    assert!(!ran(&["index", "search", "Qulittus"]).done().contains("Qulittus"));
    let other = home.path("other.md");
    std::fs::write(&other, "# Other\n\nThe repair of the car is done.\n").unwrap();
    assert_eq!(ask(&other).0["passages"][0]["title"], "Other");
    assert!(!ran(&["ask", QUESTION, "--max-tokens", "2"]).stderr.contains(" old"), "it is new");
}

#[test]
fn a_named_model_is_asked_to_cite_the_notes_unless_told_not_to() {
    let home = Home::new();
    let notes = home.path("notes");
    let target = model();
    let ask = ["ask", QUESTION, "--context", arg(&notes), "--model", arg(&target), "--max-tokens", "8"];
    let n_prompt =
        |more: &[&str]| home.json(&[&ask[..], more].concat())["stats"][0]["prompt_tokens"].as_u64().unwrap();
    let (citing, plain) = (n_prompt(&[]), n_prompt(&["--no-citations"]));
    assert!(citing > plain, "the passages have numbers: {citing} {plain}");
}

#[test]
fn texts_are_summarised_and_changes_shown() {
    let home = Home::new();
    let note = home.write("trip.md", "The train leaves at 08:15 from platform 4. Bring the tickets.\n");
    let first = home.ran(&["summarize", arg(&note)]).done();
    assert!(!first.trim().is_empty());
    assert_eq!(home.json(&["summarize", arg(&note)])["previous"].as_str().unwrap().trim(), first.trim());
    let changes = home.ran(&["summarize", arg(&note), "--changes"]).done();
    assert_eq!(changes.trim(), first.trim(), "nothing has changed");
    home.write("trip.md", "The train leaves at 09:40 from platform 7. Bring the tickets and the map.\n");
    let json = home.json(&["summarize", arg(&note)]);
    assert!(json["changes"].as_array().is_some_and(|changes| !changes.is_empty()));

    let piped =
        home.ran_with(&["summarize", "--request", "In one sentence.", "--json"], b"The tap drips.").done();
    assert!(serde_json::from_str::<Value>(&piped).unwrap()["parts"].as_array().unwrap().is_empty());
    home.index();
    let index = format!("--notes={}", arg(&home.path("index")));
    let query = home.json(&["summarize", "--query", "repair of the car", &index]);
    assert_eq!(query["passages"][0]["title"], "Car repair");
    let whole = home.json(&["summarize", arg(&home.path("notes")), &index]);
    assert!(whole["passages"].as_array().unwrap().len() >= 3);
}

#[test]
fn a_message_is_replied_to() {
    let home = Home::new();
    home.index();
    let mail = repository("examples/mail.txt");
    let index = format!("--notes={}", arg(&home.path("index")));
    let wish = ["--request", "Accept. Friendly, in one sentence."];
    let json = home.json(&[&["reply", arg(&mail), &index], &wish[..]].concat());
    assert!(!json["text"].as_str().unwrap().is_empty());
    assert_eq!(json["passages"][0]["title"], "mail");
}

#[test]
fn mail_and_documents_are_read_as_the_index_reads_them() {
    let home = Home::new();
    let mail = home.write(
        "a.eml",
        "Subject: Tap\nContent-Transfer-Encoding: quoted-printable\n\nShall we repair the t=61p?\n",
    );
    let json = home.json(&["reply", arg(&mail), "--request", "Accept."]);
    assert!(json["passages"][0]["text"].as_str().unwrap().contains("Shall we repair the tap?"));
    let broken = home.write("a.pdf", "no PDF");
    assert!(home.ran(&["summarize", arg(&broken)]).refused(3).contains("no header of a PDF"));
}

#[test]
fn all_formats_are_read_as_the_index_reads_them() {
    let home = Home::new();
    let csv = home.write("a.csv", "name,town\nAda,Oslo\n");
    let title =
        |path: &Path| home.json(&["summarize", arg(path), "--max-tokens", "4"])["passages"][0].clone();
    assert!(title(&csv)["text"].as_str().unwrap().contains("town: Oslo"), "{}", title(&csv));
    let note = home.write("b.md", "---\ntitle: Harbour\n---\n\nIt opens at nine.\n");
    assert_eq!(title(&note)["title"], "Harbour");
    let thread =
        "From a Wed May 1\nSubject: One\n\nThe tap drips.\n\nFrom b Thu\nSubject: Two\n\nWho repairs it?\n";
    let mailbox = home.write("c.mbox", thread);
    let json = home.json(&["reply", arg(&mailbox), "--max-tokens", "4"]);
    let titles: Vec<_> = json["passages"].as_array().unwrap().iter().map(|it| it["title"].clone()).collect();
    assert_eq!(titles, ["Two", "One"], "the newest message first");
    assert_eq!(json["passages"][0]["locator"], "line 7");
}

#[test]
fn lines_and_sections_are_edited_alone() {
    let home = Home::new();
    let old = "# Trip\n\nThe tap drips.\n\n## Car\n\nThe car is blue.\n\n## Hotel\n\nNine beds.\n";
    let note = home.write("trip.md", old);
    let part = |more: &[&str]| -> (String, String) {
        let json = home.json(&[&["edit", arg(&note), "Say bike."], more].concat());
        let text = json["text"].as_str().unwrap();
        let place = |key: &str, end: &str| json[key][end].as_u64().unwrap() as usize;
        let (old_start, old_end) = (place("old_part", "start"), place("old_part", "end"));
        assert_eq!(old[..old_start], text[..place("new_part", "start")]);
        assert_eq!(old[old_end..], text[place("new_part", "end")..]);
        let new = text[place("new_part", "start")..place("new_part", "end")].to_owned();
        (old[old_start..old_end].to_owned(), new)
    };
    assert_eq!(part(&["--within", "Car"]).0, "## Car\n\nThe car is blue.\n\n");
    let (line, new) = part(&["--within", "7-7"]);
    assert_eq!(
        (line.as_str(), part(&["--within", "7"])),
        ("The car is blue.\n", (line.clone(), new.clone()))
    );
    let alone = home.ran_with(&["edit", "-", "Say bike."], b"The car is blue.\n").done();
    assert_eq!(alone.trim_end(), new.trim_end(), "as a text of its own");
    let refused = |more: &[&str]| home.ran(&[&["edit", arg(&note), "Say bike."], more].concat()).refused(3);
    assert!(refused(&["--within", "Train"]).contains("no section `Train`"));
    assert!(refused(&["--within", "9-99"]).contains("11 lines"));
    assert!(refused(&["--within", "0"]).contains("not among them"));
}

#[test]
fn long_texts_tell_their_time() {
    let home = Home::new();
    let day = |n: usize| format!("## Day {n}\n\nThe tap drips. Ada Voss repairs it on {n} May.\n\n");
    let old: String = (0..40).map(day).collect();
    let note = home.write("days.md", &old);
    let ran = home.ran(&["edit", arg(&note), "Change May to June.", "--ctx", "512"]);
    assert!(ran.stderr.contains(" prompts with ") && ran.stderr.contains(" tokens: "), "{}", ran.stderr);
    assert!(!ran.done().is_empty());
    let summarize = ["summarize", arg(&note), "--ctx", "512", "--max-tokens", "40"];
    let ran = home.ran(&summarize);
    assert!(ran.stderr.contains(" prompts with ") && ran.stderr.contains("part 1 of "), "{}", ran.stderr);
    assert!(ran.stderr.contains(" left"), "{}", ran.stderr);
    let text = ran.done();
    let json = home.json(&summarize);
    assert_eq!(json["text"].as_str().unwrap().trim(), text.trim());
    let n_parts = json["parts"].as_array().unwrap().len();
    assert_eq!(json["n_kept_parts"], n_parts, "all but the last prompt");
    assert!(n_parts > 2);
}

#[test]
fn a_text_is_edited_in_place() {
    let home = Home::new();
    let old = "The tap drips. Ada Voss repairs it on 3 May.\n";
    let note = home.write("tap.md", old);
    let edit = ["edit", arg(&note), "Change 3 May to 4 May."];
    let json = home.json(&edit);
    let new = json["text"].as_str().unwrap();
    let mut rebuilt = String::new();
    for change in json["changes"].as_array().unwrap() {
        let range = |key: &str| {
            let at = |end: &str| change[key][end].as_u64().unwrap() as usize;
            at("start")..at("end")
        };
        match change["kind"].as_str().unwrap() {
            "keep" => rebuilt.push_str(&old[range("old")]),
            "insert" => rebuilt.push_str(&new[range("new")]),
            "delete" => {}
            other => panic!("{other}"),
        }
    }
    assert_eq!(rebuilt, new);
    assert_eq!(home.ran(&edit).done(), format!("{}\n", new.trim_end_matches('\n')));
    let changes = home.ran(&[&edit[..], &["--changes"]].concat()).done();
    assert!(new.trim() == old.trim() || changes.contains("[+") || changes.contains("[-"), "{changes}");
    assert_eq!(std::fs::read_to_string(&note).unwrap(), old);
    let model = model();
    let in_place =
        |more: &[&str]| home.ran(&[&edit[..], &["--in-place", "--model", arg(&model)], more].concat());
    let read = || std::fs::read_to_string(&note).unwrap();
    assert!(
        home.ran(&[&edit[..], &["--in-place", "--yes"]].concat()).refused(2).contains("--model"),
        "the demonstration"
    );
    assert!(in_place(&[]).refused(2).contains("--yes"), "there is nobody to ask");
    assert!(in_place(&["--json"]).refused(2).contains("--yes"));
    assert!(in_place(&["--yes", "--max-tokens", "3"]).refused(1).contains("not complete"));
    assert_eq!(read(), old, "a cut text replaces nothing");
    let mut nowhere =
        support::command(&[&edit[..], &["--in-place", "--yes", "--model", arg(&model)]].concat());
    let nowhere = nowhere.output().unwrap();
    let stderr = String::from_utf8(nowhere.stderr).unwrap();
    assert!(nowhere.status.code() == Some(2) && stderr.contains("--store"), "{stderr}");
    // The fixture model writes another text, so its edit is doubted.
    let doubted = in_place(&["--yes"]).refused(1);
    assert!(doubted.contains("words of the old one") && doubted.contains("--force"), "{doubted}");
    assert_eq!(read(), old);
    let ran = in_place(&["--yes", "--force"]);
    assert!(ran.stderr.contains("--undo"), "{}", ran.stderr);
    assert_eq!((ran.done().as_str(), read().as_str()), ("", new));
    assert_eq!(std::fs::read_dir(home.path("notes")).unwrap().count(), 3, "no other file is left");
    home.ran_undo(&note).done();
    assert_eq!(read(), old);
    in_place(&["--yes", "--force"]).done();
    let (store, no_index) = (home.path("store"), home.path("no-index"));
    std::fs::create_dir(&no_index).unwrap();
    refrain(&["forget", arg(&note), "--store", arg(&store), "--notes", arg(&no_index)]).done();
    assert!(home.ran_undo(&note).refused(3).contains("no text"), "a forgotten text does not come back");
}

#[test]
fn an_edit_that_keeps_most_of_the_text_needs_no_force() {
    let home = Home::new();
    let (model, old) = (model(), "Apples and pears. Plums and cherries. Onions and leeks.\n");
    let note = home.write("list.md", old);
    let read = || std::fs::read_to_string(&note).unwrap();
    let edit = ["edit", arg(&note), "Summarize in one word.", "--model", arg(&model)];
    assert_eq!(home.json(&edit)["doubts"], serde_json::json!([]));
    home.ran(&[&edit[..], &["--in-place", "--yes"]].concat()).done();
    assert_ne!(read(), old);
    home.ran_undo(&note).done();
    assert_eq!(read(), old);
}

#[test]
fn a_notice_is_written_once_for_each_cause() {
    let home = Home::new();
    let note =
        home.write("long.md", &"The train to the harbour leaves at nine. Bring the map.\n\n".repeat(60));
    let ran = home.ran(&["summarize", arg(&note), "--ctx", "512", "--max-tokens", "3"]);
    assert_eq!(ran.stderr.matches("cut: ").count(), 1, "{}", ran.stderr);
    assert_eq!(ran.stderr.matches("demonstration").count(), 1, "{}", ran.stderr);
    let many: String =
        (0..9).map(|n| format!("# Trip {n}\n\n{}\n\n", "The train leaves at nine. ".repeat(20))).collect();
    home.write("many.md", &many);
    let ran = home.ran(&[
        "ask",
        "When does the train of the trip leave?",
        "--context",
        arg(&home.path("notes")),
        "--ctx",
        "400",
        "--passages",
        "9",
    ]);
    assert!(
        ran.stderr.matches("left out: ").count() == 1 && ran.stderr.contains(" more, "),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.matches("no passage supports").count() <= 1, "{}", ran.stderr);
}

#[test]
fn a_command_names_an_element_of_the_screen() {
    let home = Home::new();
    let screen = repository("examples/screen.txt");
    let json = home.json(&["ui", arg(&screen), "Open the settings.", "--earlier", "none", "scroll up"]);
    let command = &json["command"];
    let text = json["text"].as_str().unwrap();
    assert_eq!(command["command"].as_str(), text.split(' ').next());
    if let Some(element) = command["element"].as_str() {
        let text = std::fs::read_to_string(&screen).unwrap();
        assert!(text.lines().any(|line| line.trim_start().starts_with(&format!("{element} "))), "{element}");
    }
    let empty = home.write("empty.txt", "\n");
    assert!(home.ran(&["ui", arg(&empty), "Go on."]).refused(3).contains("empty.txt"));
    let twice = home.write("twice.txt", "3 button \"a\"\n3 button \"b\"\n");
    let message = home.ran(&["ui", arg(&twice), "Go on."]).refused(3);
    assert!(message.contains("line 2") && message.contains("`3`"), "{message}");
}

#[test]
fn an_agent_takes_steps_and_actions_of_the_app() {
    let home = Home::new();
    let screens = repository("crates/assistant/examples/screens");
    let (screen, earlier) = (screens.join("sign-in.yaml"), screens.join("tasks.html"));
    let actions = home.write(
        "actions.json",
        r#"{"commands": [], "actions": [{"name": "fill", "parameters": {
        "properties": {"field": {"x-element": "type"}}, "required": ["field"]}}]}"#,
    );
    let goal = ["ui", arg(&screen), "Sign in.", "--actions", arg(&actions)];
    let steps = ["--earlier", arg(&earlier), "tap 12 \"OK\"", "--earlier", arg(&screen), "wait"];
    let json = home.json(&[&goal[..], &steps].concat());
    let command = &json["command"];
    assert_eq!(command["command"], "fill", "{json}");
    assert!(["e5", "e7"].contains(&command["arguments"]["field"].as_str().unwrap()), "{json}");
    let broken = home.write("broken.json", r#"[{"name": "tap"}]"#);
    let message = home.ran(&["ui", arg(&screen), "Sign in.", "--actions", arg(&broken)]).refused(3);
    assert!(message.contains("broken.json") && message.contains("/actions/0/name"), "{message}");
    let message = home.ran(&["ui", arg(&screen), "Go on.", "--earlier", arg(&broken), "wait"]).refused(3);
    assert!(message.contains("broken.json") && message.contains("JSON"), "{message}");
}

#[test]
fn what_cannot_be_done_is_refused_in_one_line() {
    let home = Home::new();
    let nowhere = home.path("nowhere");
    assert!(home.ran(&["ask", QUESTION, "--notes", arg(&nowhere)]).code != Some(0));
    home.index();
    let index = home.path("index");
    let note = home.write("long.md", &"many words about many things ".repeat(2000));
    let message = home.ran(&["edit", arg(&note), "Shorten it.", "--ctx", "64"]).refused(3);
    assert!(message.contains("tokens") && message.contains("--ctx"), "{message}");
    let message = home.ran(&["edit", "-", "Shorten it.", "--in-place"]).refused(2);
    assert!(message.contains("--in-place"), "{message}");
    let message = home.ran(&["summarize", arg(Path::new("no-such-file.md"))]).refused(3);
    assert!(message.contains("no-such-file.md"), "{message}");
    assert!(home.ran(&["summarize", "--notes"]).code != Some(0));
    let message = home.ran(&["ask", QUESTION, "--notes", arg(&index), "--passages", "0"]).refused(2);
    assert!(message.contains("--passages"), "{message}");
    let message = refrain(&["summarize", arg(&note), "--changes", "--store", "none"]).refused(2);
    assert!(message.contains("--changes") && message.contains("--store none"), "{message}");
}
