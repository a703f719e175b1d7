//! `ask` and `forget` while a server has their store: the output is that without a server, and what is kept and deleted is the server's.
#![cfg(unix)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use refrain_index::notes::{Metadata, NotesOptions, NotesWriter};
use serde_json::Value;

use crate::support::{Ran, arg, command, files, has, model, serve, started};

const QUESTION: &str = "Who takes care of the repair of the car?";
const SECRET: &str = "Qulittus";

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(home.path("notes")).unwrap();
        let car = "# Car repair\n\nQulittus Works takes care of the repair of the car. #garage\n";
        std::fs::write(home.path("notes/car.md"), car).unwrap();
        let trip = "# Trip\n\nThe trip to Zanzibar begins on Monday with Ada Voss.\n";
        std::fs::write(home.path("notes/trip.md"), trip).unwrap();
        home.ran(&["index", "add", arg(&home.path("notes")), "--index", arg(&home.path("index"))]).done();
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn ran(&self, args: &[&str]) -> Ran {
        let mut command = command(args);
        command
            .env("XDG_DATA_HOME", self.path("data"))
            .env("HOME", self.path("home"))
            .current_dir(self.0.path());
        let output = command.stdin(Stdio::null()).output().expect("the program runs");
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }

    /// `ask` with this store.
    fn ask(&self, store: &str, more: &[&str]) -> Ran {
        let model = model();
        let store = self.path(store);
        let fixed = ["ask", QUESTION, "--notes", "index", "--threads", "1", "--max-tokens", "24"];
        self.ran(&[&fixed[..], &["--model", arg(&model), "--store", arg(&store)], more].concat())
    }

    /// A server of the notes with this store.
    fn serve(&self, store: &str) -> Child {
        self.serve_index("index", store, "data")
    }

    /// A server of an index with this store, and with this folder for what nobody names.
    fn serve_index(&self, index: &str, store: &str, data: &str) -> Child {
        let (model, index, store) = (model(), self.path(index), self.path(store));
        let args = ["--model", arg(&model), "--notes", arg(&index), "--store", arg(&store)];
        let (child, line) = started(serve("0").args(args).env("XDG_DATA_HOME", self.path(data)));
        assert!(line.starts_with("http://"), "{line}");
        child
    }

    fn files_with(&self, folder: &str, text: &str) -> usize {
        files(&self.path(folder)).values().filter(|bytes| has(bytes, text.as_bytes())).count()
    }
}

fn stop(mut child: Child, signal: &str) {
    let killed = Command::new("kill").args([signal, &child.id().to_string()]).status().expect("kill runs");
    assert!(killed.success());
    child.wait().expect("it ends");
}

/// Notices without times and steps.
fn notices(ran: &Ran) -> Vec<&str> {
    ran.stderr.lines().map(|line| line.split_once(" tokens in ").map_or(line, |(line, _)| line)).collect()
}

#[test]
fn a_question_through_the_server_has_the_same_output() {
    let home = Home::new();
    let kinds: [&[&str]; 4] = [&[], &["--no-citations"], &["--tag", "garage", "--seed", "3"], &["--json"]];
    let own: Vec<Ran> = kinds.iter().map(|more| home.ask("own", more)).collect();
    let server = home.serve("store");
    let file = home.path("store/.server");
    assert!(file.exists());
    for (more, own) in kinds.iter().zip(own) {
        let served = home.ask("store", more);
        assert_eq!(served.code, Some(0), "{}", served.stderr);
        if more.contains(&"--json") {
            let json = |ran: &Ran| serde_json::from_str::<Value>(&ran.stdout).expect("one JSON object");
            let (own, served) = (json(&own), json(&served));
            for field in ["text", "passages", "copied", "sentences", "model", "finish", "not_kept"] {
                assert_eq!(served[field], own[field], "{field}");
            }
        } else {
            assert_eq!((&served.stdout, notices(&served)), (&own.stdout, notices(&own)), "{more:?}");
        }
    }
    // Refusals are the same too.
    let none = ["--within", "none.md"];
    let (own, served) = (home.ask("own", &none), home.ask("store", &none));
    assert_eq!((served.code, notices(&served)), (own.code, notices(&own)));
    // A model that the server does not have answers here.
    let other = home.ran(&["ask", QUESTION, "--notes", "index", "--store", "store", "--max-tokens", "8"]);
    assert!(other.stderr.contains("it has another model") && other.code == Some(0), "{}", other.stderr);
    stop(server, "-TERM");
    assert!(!file.exists());
}

#[test]
fn a_deletion_through_the_server_leaves_no_byte() {
    let home = Home::new();
    let server = home.serve("store");
    let answered = home.ask("store", &[]);
    assert!(!answered.stderr.contains("nothing is kept"), "{}", answered.stderr);
    assert!(home.files_with("index", SECRET) > 0);
    let args = ["forget", "notes/car.md", "--store", "store", "--notes", "index", "--json"];
    let forgotten: Value = serde_json::from_str(&home.ran(&args).done()).expect("one JSON object");
    assert_eq!((forgotten["answers"].as_u64(), &forgotten["notes_pending"]), (Some(1), &Value::Bool(false)));
    assert_eq!(home.files_with("index", SECRET), 0);
    // Of another index than the server's, it deletes nothing.
    std::fs::create_dir(home.path("other")).unwrap();
    let other = home.ran(&["forget", "notes/trip.md", "--store", "store", "--notes", "other"]);
    assert!(other.stderr.contains("it has other notes") && other.code == Some(3), "{}", other.stderr);
    stop(server, "-TERM");
}

#[test]
fn a_document_is_deleted_through_the_server() {
    let home = Home::new();
    let mut writer = NotesWriter::open(&home.path("index"), NotesOptions::default()).unwrap();
    writer.put(b"rows/1", "The Zibbermo ferry leaves at nine.", &Metadata::default()).unwrap();
    drop(writer);
    let server = home.serve("store");
    assert!(home.files_with("index", "Zibbermo") > 0 && home.files_with("index", "rows/1") > 0);
    let args = ["forget", "document:/rows/1", "--store", "store", "--notes", "index", "--json"];
    let forgotten: Value = serde_json::from_str(&home.ran(&args).done()).expect("one JSON object");
    assert_eq!(forgotten["notes_pending"], Value::Bool(false));
    assert_eq!((home.files_with("index", "Zibbermo"), home.files_with("index", "rows/1")), (0, 0));
    stop(server, "-TERM");
}

/// What nobody names is in the folders of the process that is asked, not in those of the server.
#[test]
fn default_folders_are_those_of_the_command() {
    let home = Home::new();
    let index = "data/refrain/notes";
    home.ran(&["index", "add", arg(&home.path("notes"))]).done();
    let server = home.serve_index(index, "store", "elsewhere");
    let (model, store) = (model(), home.path("store"));
    let ask = ["ask", QUESTION, "--threads", "1", "--max-tokens", "24", "--model", arg(&model)];
    let served = home.ran(&[&ask[..], &["--store", arg(&store)]].concat());
    assert!(served.code == Some(0) && !served.stderr.contains("is kept"), "{}", served.stderr);
    assert!(!served.stderr.contains("server"), "{}", served.stderr);
    let forgotten = home.ran(&["forget", "notes/car.md", "--store", "store"]);
    assert!(
        forgotten.stderr.contains("1 answers") && !forgotten.stderr.contains("server"),
        "{}",
        forgotten.stderr
    );
    assert_eq!(home.files_with(index, SECRET), 0);
    stop(server, "-TERM");
}

#[test]
fn a_killed_server_is_none() {
    let home = Home::new();
    let server = home.serve("store");
    stop(server, "-KILL");
    let left = home.path("store/.server");
    assert!(Path::exists(&left));
    let own = home.ask("store", &[]);
    assert!(own.code == Some(0) && !own.stderr.contains("server"), "{}", own.stderr);
    drop(own);
    let forgotten = home.ran(&["forget", "--all", "--store", "store"]);
    assert!(forgotten.stderr.contains("1 answers"), "{}", forgotten.stderr);
    // Another server takes its place.
    let server = home.serve("store");
    assert!(!home.ask("store", &[]).stderr.contains("nothing is kept"));
    stop(server, "-INT");
    assert!(!left.exists());
}
