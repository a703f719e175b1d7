//! Notes on disk: `refrain index`, and `refrain run --notes`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::{self, Ran, arg, command, refrain, repository};

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = Self(tempfile::tempdir().expect("a folder"));
        fs::create_dir(place.notes()).expect("a folder");
        fs::write(place.notes().join("tap.md"), "# Kitchen\n\nThe tap drips. Ada Voss repairs it.\n")
            .unwrap();
        fs::write(
            place.notes().join("roof.md"),
            "---\ntags: [house]\ndate: 2024-05-01\n---\nThe roof leaks.\n",
        )
        .unwrap();
        place
    }

    fn notes(&self) -> PathBuf {
        self.0.path().join("notes")
    }

    fn index(&self) -> PathBuf {
        self.0.path().join("index")
    }

    fn run(&self, args: &[&str]) -> Ran {
        refrain(&[&["index"], args, &["--index", arg(&self.index())]].concat())
    }

    fn found(&self, args: &[&str]) -> Vec<Value> {
        let out = self.run(&[&["search", "--json"], args].concat()).done();
        out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    }

    fn status(&self) -> Value {
        serde_json::from_str(&self.run(&["status", "--json"]).done()).expect("JSON")
    }
}

#[test]
fn notes_are_added_searched_updated_and_forgotten() {
    let place = Place::new();
    let added = place.run(&["add", arg(&place.notes())]);
    assert!(added.stderr.contains("2 files added"), "{}", added.stderr);
    added.done();
    let hit = &place.found(&["who is repairing the taps"])[0];
    assert_eq!(
        (hit["title"].as_str(), hit["start"].as_u64(), hit["verbatim"].as_bool()),
        (Some("Kitchen"), Some(11), Some(true))
    );
    let matched = &hit["snippet"]["matched"][0];
    let text = hit["snippet"]["text"].as_str().unwrap();
    assert_eq!(&text[matched[0].as_u64().unwrap() as usize..matched[1].as_u64().unwrap() as usize], "tap");
    let shown = place.run(&["search", "roof"]).done();
    assert!(shown.contains("note  2024-05-01  roof") && shown.contains("The roof leaks."), "{shown}");

    let filtered = |args: &[&str]| place.found(&[&["tap roof"], args].concat()).len();
    assert_eq!(filtered(&[]), 2);
    assert_eq!(filtered(&["--tag", "house"]), 1);
    assert_eq!(filtered(&["--kind", "mail"]), 0);
    assert_eq!(filtered(&["--dates", "..2024-05-01"]), 1);
    assert_eq!(filtered(&["--within", arg(&place.notes().join("tap.md"))]), 1);

    fs::write(place.notes().join("tap.md"), "The tap is new.").unwrap();
    let updated = place.run(&["update"]);
    assert!(updated.stderr.contains("0 files added, 1 changed, 0 removed"), "{}", updated.stderr);
    assert_eq!(place.found(&["drips"]).len(), 0);

    place.run(&["forget", arg(&place.notes().join("roof.md"))]).done();
    place.run(&["update"]).done();
    assert_eq!(place.found(&["roof"]).len(), 0);
    let status = place.status();
    assert_eq!((status["files"].as_u64(), status["forgotten"].as_u64()), (Some(1), Some(1)));
    assert!(place.run(&["status"]).done().contains("files     1 (1 forgotten)"));
}

#[test]
fn a_damaged_index_is_built_again_by_the_next_search() {
    let place = Place::new();
    place.run(&["add", arg(&place.notes())]).done();
    fs::write(place.index().join("words/meta.json"), "{}").unwrap();
    let ran = place.run(&["search", "roof"]);
    assert!(ran.stderr.contains("built again"), "{}", ran.stderr);
    assert!(ran.done().contains("The roof leaks."));
}

#[test]
fn mistakes_end_with_a_line_and_a_code() {
    let place = Place::new();
    assert!(place.run(&["search", "roof"]).refused(3).contains("refrain index add"));
    assert!(place.run(&["add", "/no/such/file.md"]).refused(3).contains("/no/such/file.md"));
    assert!(place.run(&["add", arg(&place.notes()), "--languages", "xx"]).refused(2).contains("known are"));
    assert!(place.run(&["search", "roof", "--dates", "May.."]).refused(2).contains("no date"));
    assert!(place.run(&["search", "roof", "--kind", "letter"]).refused(2).contains("letter"));
    assert!(refrain(&["index", "status"]).refused(2).contains("--index"));
}

#[test]
fn a_missing_path_does_not_stop_the_others() {
    let place = Place::new();
    let (notes, picture) = (place.notes(), place.notes().with_file_name("picture.png"));
    fs::write(&picture, [0x89, b'P', b'N', b'G']).unwrap();
    let ran = place.run(&["add", "/no/such/file.md", arg(&notes), arg(&picture)]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(3), ""), "{}", ran.stderr);
    for text in ["error: `/no/such/file.md` does not exist", "picture.png", "2 files added"] {
        assert!(ran.stderr.contains(text), "no `{text}` in {}", ran.stderr);
    }
    assert_eq!(place.status()["roots"].as_array().unwrap().len(), 1);
    assert_eq!(place.run(&["add", "/no/such/a.md", "/no/such/b.md"]).code, Some(3));
}

#[test]
fn a_skipped_file_is_named() {
    let place = Place::new();
    fs::write(place.notes().join("binary.md"), [0_u8, 159]).unwrap();
    let ran = place.run(&["add", arg(&place.notes())]);
    assert!(
        ran.stderr.contains("binary.md: neither UTF-8 text nor UTF-16 with a byte order mark at byte 0"),
        "{}",
        ran.stderr
    );
    ran.done();
}

#[test]
fn other_files_are_counted_and_places_are_lines() {
    let place = Place::new();
    fs::write(place.notes().join("picture.png"), "x").unwrap();
    fs::write(place.notes().join("noending"), "x").unwrap();
    fs::write(place.notes().join("list.rst"), "Fauna\n=====\n\nA quokka.\n").unwrap();
    let ran = place.run(&["add", arg(&place.notes())]);
    let counts =
        "skipped 2 files that are no sources (text in images is not read): 1 without an ending, 1 .png";
    assert!(ran.stderr.contains(counts), "{}", ran.stderr);
    ran.done();
    assert_eq!(place.found(&["quokka"])[0]["locator"], "line 4");
    assert!(place.run(&["search", "quokka"]).done().contains("list.rst:4"));
}

#[cfg(unix)]
#[test]
fn links_out_of_the_notes_need_an_option() {
    let place = Place::new();
    let secret = place.notes().with_file_name("secret.md");
    fs::write(&secret, "The word is xyzzy.").unwrap();
    fs::write(place.notes().join("roof.md"), "The roof leaks.").unwrap();
    std::os::unix::fs::symlink(&secret, place.notes().join("leak.md")).unwrap();
    let added = place.run(&["add", arg(&place.notes())]);
    assert!(added.stderr.contains("leak.md: a link out of the folders of the index"), "{}", added.stderr);
    added.done();
    let finds = |place: &Place| place.run(&["search", "xyzzy"]).stdout.contains("The word is");
    assert!(!finds(&place));
    place.run(&["update", "--follow-links"]).done();
    place.run(&["update"]).done();
    assert!(finds(&place));
    place.run(&["update", "--follow-links=false"]).done();
    assert!(!finds(&place));
}

#[test]
fn options_for_reading_are_remembered() {
    let place = Place::new();
    place.run(&["add", arg(&place.notes()), "--max-bytes", "40", "--languages", "de"]).done();
    let updated = place.run(&["update"]);
    assert!(updated.stderr.contains("exceed the limit of 40"), "{}", updated.stderr);
    updated.done();
    let updated = place.run(&["update", "--max-bytes", "4000", "--languages", "all"]);
    assert!(!updated.stderr.contains("exceed"), "{}", updated.stderr);
    assert!(updated.stderr.contains("files added"), "{}", updated.stderr);
}

#[test]
fn forgetting_something_unknown_is_told() {
    let place = Place::new();
    place.run(&["add", arg(&place.notes())]).done();
    let later = place.notes().join("later.md");
    let ran = place.run(&["forget", arg(&later)]);
    assert!(ran.stderr.contains("later.md; from now on it is not read"), "{}", ran.stderr);
    ran.done();
    fs::write(&later, "Never read.").unwrap();
    assert!(place.run(&["update"]).stderr.contains("0 files added"));
}

#[test]
fn vectors_of_a_model_are_stored_and_used() {
    let place = Place::new();
    let model = repository("tests/golden/qwen3");
    place.run(&["add", arg(&place.notes()), "--embedder", arg(&model)]).done();
    assert_eq!(place.status()["embedders"].as_array().unwrap().len(), 1);
    // The request has a word of one note; a vector is similar to every other.
    assert_eq!(place.found(&["tap"]).len(), 2);
    assert_eq!(place.found(&["tap", "--words"]).len(), 1);
    fs::write(place.notes().join("new.md"), "The door creaks.").unwrap();
    place.run(&["update"]).done();
    assert_eq!(place.found(&["tap"]).len(), 3, "the model is remembered");
    place.run(&["update", "--embedder", "none"]).done();
    assert_eq!(place.found(&["tap"]).len(), 1);
    let refused = place.run(&["update", "--embedder", "/no/such.gguf"]);
    assert!(refused.stderr.contains("error: /no/such.gguf"), "{}", refused.stderr);
    assert_eq!(place.found(&["tap"]).len(), 1);
}

#[test]
#[cfg(unix)]
fn a_watched_index_gets_vectors_of_new_notes() {
    let place = Place::new();
    let model = repository("tests/golden/qwen3");
    let index = place.index();
    let args = ["index", "watch", "--embedder", arg(&model), "--index", arg(&index)];
    place.run(&["add", arg(&place.notes())]).done();
    let mut child = command(&args).stderr(std::process::Stdio::null()).spawn().expect("starts");
    // A vector is similar to every other, so a request finds all passages that have one.
    let wait_found = |n: usize| {
        let since = Instant::now();
        while place.found(&["tap"]).len() != n {
            assert!(since.elapsed() < Duration::from_secs(60), "{n} passages are never found");
        }
    };
    wait_found(2);
    fs::write(place.notes().join("new.md"), "The door creaks.").unwrap();
    wait_found(3);
    let interrupted = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(interrupted.success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn answers_come_from_the_stored_notes() {
    let place = Place::new();
    let notes = repository("fixtures/notes");
    place.run(&["add", arg(&notes), "--model", arg(&support::model())]).done();
    assert_eq!(place.status()["tokenizers"].as_array().unwrap().len(), 1);
    let question = "Who comes along on the trip to Aniarda?";
    let ran = |notes: &[&str]| {
        let out = refrain(&[&["ask", question, "--max-tokens", "32", "--json"], notes].concat()).done();
        serde_json::from_str::<Value>(&out).expect("JSON")
    };
    let stored = ran(&["--notes", arg(&place.index())]);
    let passage = &stored["passages"][0];
    assert!(Path::new(passage["path"].as_str().unwrap()).ends_with("aniarda-travel.md"), "{passage}");
    let read = ran(&["--context", arg(&notes)]);
    assert_eq!(passage["title"], read["passages"][0]["title"]);
}
