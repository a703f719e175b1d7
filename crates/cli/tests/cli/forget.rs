//! `refrain forget`: after it, no file in the data folder has a byte of what was forgotten.

use std::path::{Path, PathBuf};

use refrain::{Engine, EngineOptions, SpecialTokens};
use serde_json::Value;

use crate::support::{Ran, arg, command, files, has, refrain};

/// Words of the two notes, which answers and prompts repeat.
const SECRET: &str = "Qulittus";
const OTHER: &str = "Zanzibar";

const QUESTION: &str = "Who takes care of the repair of the car?";

/// Notes, and a data folder of the program.
struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let home = Self { folder: tempfile::tempdir().unwrap() };
        std::fs::create_dir(home.path("notes")).unwrap();
        let car = "# Car repair\n\nQulittus Works takes care of the repair of the car.\n";
        std::fs::write(home.path("notes/car.md"), car).unwrap();
        let trip = "# Trip\n\nThe trip to Zanzibar begins on Monday with Ada Voss.\n";
        std::fs::write(home.path("notes/trip.md"), trip).unwrap();
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn ran(&self, args: &[&str]) -> Ran {
        let mut command = command(args);
        command.env("XDG_DATA_HOME", self.path("data")).env("XDG_CACHE_HOME", self.path("cache"));
        command.env("LOCALAPPDATA", self.path("data")).env("HOME", self.path("home"));
        let output = command.stdin(std::process::Stdio::null()).output().expect("the program runs");
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }

    fn json(&self, args: &[&str]) -> Value {
        let stdout = self.ran(&[args, &["--json"]].concat()).done();
        serde_json::from_str(stdout.lines().last().expect("a line")).expect("one JSON object")
    }

    /// The files beside the notes that have a word, as text or as the last two of its token ids.
    fn files_with(&self, word: &str) -> Vec<PathBuf> {
        let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/target.gguf");
        let engine =
            Engine::open(model, EngineOptions { n_threads: Some(1), ..EngineOptions::default() }).unwrap();
        let tokens = engine.tokenizer().encode(word, SpecialTokens::AsText).unwrap();
        let ids: Vec<u8> =
            tokens[tokens.len() - 2..].iter().flat_map(|token| token.0.to_le_bytes()).collect();
        let mut found = files(self.folder.path());
        found.retain(|path, bytes| {
            !path.starts_with(self.path("notes")) && (has(bytes, word.as_bytes()) || has(bytes, &ids))
        });
        found.into_keys().collect()
    }
}

const NONE: [PathBuf; 0] = [];

#[test]
fn a_note_is_forgotten_with_everything_that_was_made_from_it() {
    let home = Home::new();
    let (notes, car, trip) = (home.path("notes"), home.path("notes/car.md"), home.path("notes/trip.md"));
    home.ran(&["index", "add", arg(&notes)]).done();
    // What comes twice is kept.
    for _ in 0..2 {
        home.ran(&["ask", QUESTION, "--within", arg(&car)]).done();
    }
    home.ran(&["ask", QUESTION, "--context", arg(&car)]).done();
    home.ran(&["summarize", arg(&car)]).done();
    home.ran(&["edit", arg(&car), "Say bike."]).done();
    home.ran(&["reply", arg(&car)]).done();
    home.ran(&["summarize", arg(&trip)]).done();
    assert!(home.files_with(SECRET).len() >= 4 && home.files_with(OTHER).len() >= 2);
    let forgotten = home.json(&["forget", arg(&car)]);
    assert_eq!((forgotten["answers"].as_u64(), forgotten["summaries"].as_u64()), (Some(6), Some(1)));
    assert!(forgotten["prefix_blocks"].as_u64().unwrap() > 0 && forgotten["notes_pending"] == false);
    assert_eq!(home.files_with(SECRET), NONE);
    assert!(home.files_with(OTHER).len() >= 2);
    // A folder, and all.
    let forgotten = home.json(&["forget", arg(&notes)]);
    assert_eq!(forgotten["answers"], 1);
    assert_eq!(home.files_with(OTHER), NONE);
    home.ran(&["summarize", arg(&trip)]).done();
    let before = home.json(&["forget", "--before", "2020-01-01"]);
    assert_eq!((before["answers"].as_u64(), before["summaries"].as_u64()), (Some(0), Some(0)));
    assert!(home.ran(&["forget", "--all"]).stderr.contains("1 answers, 1 summaries"));
    assert_eq!(home.files_with(OTHER), NONE);
}

#[test]
fn naming_a_store_spares_the_index_of_all_programs() {
    let home = Home::new();
    let (notes, store) = (home.path("notes"), home.path("try"));
    home.ran(&["index", "add", arg(&notes)]).done();
    std::fs::create_dir(&store).unwrap();
    home.ran(&["forget", "--all", "--store", arg(&store)]).done();
    assert!(!home.files_with(SECRET).is_empty());
    // The notes in place of their index: refused, and what is kept stays usable.
    let wrong = home.ran(&["forget", arg(&notes.join("car.md")), "--notes", arg(&notes)]);
    assert!(wrong.code != Some(0) && !wrong.stderr.contains("noted"), "{}", wrong.stderr);
    home.ran(&["forget", "--all"]).done();
    assert_eq!(home.files_with(SECRET), NONE);
}

#[cfg(unix)]
#[test]
fn prompts_of_a_file_that_is_gone_are_forgotten_through_a_link() {
    let home = Home::new();
    std::os::unix::fs::symlink(home.path("notes"), home.path("link")).unwrap();
    let car = home.path("notes/car.md");
    for _ in 0..2 {
        home.ran(&["run", QUESTION, "--context", arg(&car), "--max-tokens", "8"]).done();
    }
    std::fs::remove_file(&car).unwrap();
    let forgotten = home.json(&["forget", arg(&home.path("link/car.md"))]);
    assert!(forgotten["prefix_blocks"].as_u64().unwrap() > 0, "{forgotten}");
}

#[test]
fn answers_and_prompts_of_run_are_forgotten_by_their_files() {
    let home = Home::new();
    let (car, trip) = (home.path("notes/car.md"), home.path("notes/trip.md"));
    for note in [&car, &trip, &car, &trip] {
        home.ran(&["run", QUESTION, "--context", arg(note), "--max-tokens", "8"]).done();
    }
    assert!(!home.files_with(SECRET).is_empty() && !home.files_with(OTHER).is_empty());
    assert_eq!(home.json(&["forget", arg(&home.path("not"))])["prefix_blocks"], 0);
    assert!(home.json(&["forget", arg(&car)])["prefix_blocks"].as_u64().unwrap() > 0);
    assert_eq!(home.files_with(SECRET), NONE);
    assert!(!home.files_with(OTHER).is_empty());
    home.json(&["forget", arg(&home.path("notes"))]);
    assert_eq!(home.files_with(OTHER), NONE);
}

#[test]
fn what_cannot_be_forgotten_is_refused_in_one_line() {
    assert!(refrain(&["forget"]).refused(2).contains("NOTE"));
    assert!(refrain(&["forget", "a.md", "--all"]).refused(2).contains("--all"));
    assert!(refrain(&["forget", "--before", "soon"]).refused(2).contains("soon"));
    // It would delete more than what was made from the note before.
    assert!(refrain(&["forget", "a.md", "--before", "2020-01-01"]).refused(2).contains("--before"));
    assert!(refrain(&["forget", "--all", "--store", "no-such-folder"]).refused(3).contains("no-such-folder"));
}
