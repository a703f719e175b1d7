//! `refrain model profile`, and the row times that starts keep.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::support::{Ran, arg, command, model, refrain};

#[test]
fn a_profile_is_measured_shown_stored_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("m.gguf");
    fs::copy(model(), &file).unwrap();
    let shown =
        refrain(&["model", "profile", arg(&file), "--contexts", "64,0,100000", "--threads", "1"]).done();
    assert!(
        shown.contains("context 0") && shown.contains("context 64") && shown.contains("projection"),
        "{shown}"
    );
    assert!(!shown.contains("100000"), "the model was not trained for that context:\n{shown}");
    let inspected = refrain(&["model", "inspect", "--json", arg(&file)]).done();
    let inspected: Value = serde_json::from_str(&inspected).unwrap();
    let longest = inspected["config"]["context_len"].as_u64().unwrap() - 64;

    let path = folder.path().join("m.gguf.profile.json");
    let profile: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(profile["key"]["n_threads"], 1);
    let contexts = profile["verify"].as_array().unwrap().iter().map(|cost| cost["context"].as_u64().unwrap());
    let contexts: BTreeSet<u64> = contexts.collect();
    assert_eq!(contexts, BTreeSet::from([0, 64, longest]));

    let args = ["run", "--model", arg(&file), "--threads", "1", "--max-tokens", "4", "--raw", "A note."];
    let used = refrain(&args);
    assert!(!used.stderr.contains("profile"), "{}", used.stderr);
    let with_profile = used.done();
    // Another KV type has other costs.
    let other_kv = refrain(&[&args[..], &["--kv", "f32"]].concat());
    assert!(other_kv.stderr.contains("KV type f16, here it is f32"), "{}", other_kv.stderr);
    other_kv.done();
    // Learnt values are stored beside the profile.
    let learned = folder.path().join("m.gguf.learned");
    let first = fs::read(&learned).unwrap();
    assert!(first.starts_with(b"refrain-learned 1 "));
    assert_eq!(refrain(&args).done(), with_profile, "learnt values change no token");
    assert!(fs::read(&learned).unwrap() != first, "the next run adds to it");
    fs::write(&learned, "damaged").unwrap();
    let damaged = refrain(&args);
    assert!(damaged.stderr.contains("learnt is left aside"), "{}", damaged.stderr);
    assert_eq!(damaged.done(), with_profile);
    assert_eq!(fs::read(&learned).unwrap(), b"damaged", "nothing is deleted unasked");

    fs::write(&path, "{").unwrap();
    let left_aside = refrain(&args);
    assert!(left_aside.stderr.contains("the stored profile is not used"), "{}", left_aside.stderr);
    assert_eq!(left_aside.done(), with_profile, "a profile changes no token");
}

#[test]
fn the_model_inside_is_measured_for_a_named_file_only() {
    let folder = tempfile::tempdir().unwrap();
    let shown = refrain(&["model", "profile", "--contexts", "0", "--threads", "1"]);
    assert!(shown.stderr.contains("--out"), "{}", shown.stderr);
    assert!(shown.done().contains("context 0"));
    let nowhere = folder.path().join("none").join("p.json");
    let line = refrain(&["model", "profile", "--contexts", "0", "--out", arg(&nowhere)]);
    assert_eq!(line.code, Some(3), "{}", line.stderr);
    assert!(line.stderr.contains("--out"), "{}", line.stderr);
}

#[test]
fn nothing_but_profiles_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let profile = |out: &str| {
        let (model, out) = (at("m.gguf"), at(out));
        refrain(&["model", "profile", arg(&model), "--contexts", "0", "--threads", "1", "--out", arg(&out)])
    };
    fs::copy(model(), at("m.gguf")).unwrap();
    fs::write(at("notes.txt"), "mine").unwrap();
    fs::write(at("list.json"), "[1]").unwrap();
    fs::create_dir(at("folder")).unwrap();
    for (out, named) in
        [("m.gguf", "m.gguf"), ("notes.txt", "notes.txt"), ("list.json", "list.json"), ("folder", "folder")]
    {
        let message = profile(out).refused(2);
        assert!(message.contains(named), "{out}: {message}");
    }
    assert!(fs::read(at("m.gguf")).unwrap() == fs::read(model()).unwrap());
    assert_eq!(fs::read_to_string(at("notes.txt")).unwrap(), "mine");

    // Files of `refrain model profile` are replaced, also those of another version.
    profile("p.json").done();
    fs::write(at("p.json"), "{\"version\": 1}").unwrap();
    profile("p.json").done();
    assert!(fs::read_to_string(at("p.json")).unwrap().contains("\"cpu\""));
}

/// A user's home.
struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// Where starts keep row times.
    fn file(&self) -> PathBuf {
        let below = match (cfg!(windows), cfg!(target_os = "macos")) {
            (true, _) => "refrain/cache",
            (_, true) => "Library/Caches/refrain",
            (false, false) => "cache/refrain",
        };
        self.0.path().join(below).join("row-times.json")
    }

    /// Answers a request with these options: its statistics, and what else the program says.
    fn run(&self, args: &[&str]) -> (Value, String) {
        let model = model();
        let all = ["run", "--raw", "A note.", "--model", arg(&model), "--max-tokens", "4", "--stats", "json"];
        let store = self.0.path().join("store");
        let store = if args.contains(&"--store") { vec![] } else { vec!["--store", arg(&store)] };
        let mut command = command(&[&all[..], &store, args].concat());
        let home = self.0.path();
        command.env("HOME", home).env("LOCALAPPDATA", home).env("XDG_CACHE_HOME", home.join("cache"));
        let output = command.stdin(std::process::Stdio::null()).output().expect("the program runs");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        let ran =
            Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) };
        let stderr = ran.stderr.clone();
        (serde_json::from_str(ran.done().lines().last().expect("a line")).expect("statistics"), stderr)
    }

    /// Where the costs of rows come from, and the answer.
    fn start(&self, args: &[&str]) -> (String, String) {
        let (stats, stderr) = self.run(args);
        assert!(!stderr.contains("row-times"), "the cache is silent: {stderr}");
        let text = |key: &str| stats[key].as_str().unwrap_or_else(|| panic!("{key}: {stats}")).to_owned();
        (text("row_times"), text("text"))
    }
}

#[test]
fn a_second_start_does_not_measure() {
    let home = Home::new();
    let one = ["--threads", "1"];
    let (origin, text) = home.start(&one);
    assert_eq!(origin, "measured");
    let kept = fs::read(home.file()).unwrap();
    let is = |origin: &str| (origin.to_owned(), text.clone());
    assert_eq!(home.start(&one), is("kept"));
    assert_eq!(fs::read(home.file()).unwrap(), kept, "nothing new was measured");
    // Another setting is measured, and both are kept.
    assert_eq!(home.start(&["--threads", "2"]), is("measured"));
    for threads in ["1", "2"] {
        assert_eq!(home.start(&["--threads", threads]), is("kept"));
    }
    // Damage costs a measurement, and no more.
    fs::write(home.file(), &kept[..kept.len() / 2]).unwrap();
    assert_eq!(home.start(&one), is("measured"));
    assert_eq!(home.start(&one), is("kept"));
}

#[test]
fn the_times_of_a_draft_model_are_kept_too() {
    let home = Home::new();
    let n_kept = || {
        let kept: Value = serde_json::from_slice(&fs::read(home.file()).unwrap()).unwrap();
        kept["entries"].as_array().unwrap().len()
    };
    let args = ["--threads", "1", "--draft", "fixture"];
    home.start(&args[..2]);
    assert_eq!(n_kept(), 1);
    home.start(&args);
    assert_eq!(n_kept(), 2);
    let kept = fs::read(home.file()).unwrap();
    home.start(&args);
    assert_eq!(fs::read(home.file()).unwrap(), kept, "neither model was measured again");
}

#[test]
fn a_run_without_a_store_writes_no_times_and_reads_them() {
    let home = Home::new();
    let none = ["--threads", "1", "--store", "none"];
    for _ in 0..2 {
        assert_eq!(home.start(&none).0, "measured");
        assert_eq!(fs::read_dir(home.0.path()).unwrap().count(), 0, "nothing is written");
    }
    home.start(&none[..2]);
    assert_eq!(home.start(&none).0, "kept");
}

#[test]
fn times_that_cannot_be_kept_are_measured_each_time() {
    let home = Home::new();
    let folder: &Path = &home.file();
    let folder = folder.parent().unwrap();
    fs::create_dir_all(folder.parent().unwrap()).unwrap();
    fs::write(folder, "in the way").unwrap();
    for _ in 0..2 {
        assert_eq!(home.start(&["--threads", "1"]).0, "measured");
    }
    assert_eq!(fs::read_to_string(folder).unwrap(), "in the way");
}
