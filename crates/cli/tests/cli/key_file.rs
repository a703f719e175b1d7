//! `--key-file`: no byte of a note, question, answer or path is on the disk, and a store opens with its key alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use refrain::{Engine, EngineOptions, SpecialTokens};

use crate::support::{Ran, arg, command, files, has, model};

const QUESTION: &str = "Who takes care of the repair of the car?";

/// Words of notes, questions, answers and paths.
const WORDS: [&str; 8] =
    ["Qulittus", "qulittus", "Zanzibar", "zanzibar", "repair", "car.md", "trip.md", "kitchen"];

struct Home(tempfile::TempDir);

impl Home {
    fn new() -> Self {
        let home = Self(tempfile::tempdir().unwrap());
        std::fs::create_dir(home.path("notes")).unwrap();
        let note = |name: &str, text: &str| std::fs::write(home.path("notes").join(name), text).unwrap();
        note("car.md", "# Car repair\n\nQulittus Works takes care of the repair of the car.\n");
        note("trip.md", "# Trip\n\nThe trip to Zanzibar begins on Monday with Ada Voss.\n");
        note("kitchen.md", &"# Kitchen\n\nThe tap of the kitchen drips.\n\n".repeat(400));
        for (name, key) in [("key", "5b"), ("other", "5c")] {
            std::fs::write(home.path(name), key.repeat(32)).unwrap();
            #[cfg(unix)]
            close(&home.path(name), 0o600);
        }
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a command with a key.
    fn with(&self, key: Option<&str>, args: &[&str]) -> Ran {
        let mut command = command(args);
        command.env("XDG_DATA_HOME", self.path("data")).env("XDG_CACHE_HOME", self.path("cache"));
        command.env("LOCALAPPDATA", self.path("data")).env("HOME", self.path("home"));
        // The variable of the option.
        if let Some(key) = key {
            command.env("REFRAIN_KEY_FILE", self.path(key));
        }
        let output = command.stdin(Stdio::null()).output().expect("the program runs");
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("text"),
            stderr: String::from_utf8(output.stderr).expect("text"),
        }
    }

    /// The contents of all files that the program has written.
    fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let folders = ["data", "cache", "home"].map(|name| self.path(name)).into_iter();
        folders.filter(|folder| folder.is_dir()).flat_map(|folder| files(&folder)).collect()
    }
}

#[cfg(unix)]
fn close(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Everything that keeps something.
fn session(home: &Home, key: Option<&str>) {
    let (notes, model) = (home.path("notes"), model());
    let (notes, model) = (arg(&notes), arg(&model));
    home.with(key, &["index", "add", notes, "--model", model]).done();
    home.with(key, &["index", "search", "Qulittus"]).done();
    let fixed = ["--threads", "1", "--model", model];
    home.with(key, &[&["ask", QUESTION][..], &fixed].concat()).done();
    home.with(key, &[&["summarize", arg(&home.path("notes/trip.md"))][..], &fixed].concat()).done();
    let run = ["run", "--max-tokens", "24", "--context", notes, QUESTION];
    home.with(key, &[&run[..], &fixed].concat()).done();
}

#[test]
fn no_word_no_token_and_no_path_is_on_the_disk() {
    let home = Home::new();
    session(&home, Some("key"));
    let engine =
        Engine::open(model(), EngineOptions { n_threads: Some(1), ..EngineOptions::default() }).unwrap();
    let ids = |text: &str| {
        let tokens = engine.tokenizer().encode(text, SpecialTokens::AsText).unwrap();
        let tokens = &tokens[tokens.len() - 2..];
        tokens.iter().flat_map(|token| token.0.to_le_bytes()).collect::<Vec<u8>>()
    };
    let mut forms: Vec<Vec<u8>> = WORDS.iter().map(|word| word.as_bytes().to_vec()).collect();
    forms.extend([ids("Qulittus Works"), ids("the repair of the car"), ids("Zanzibar")]);
    // Paths are in no other form either: not as hexadecimal digits.
    forms.push("car.md".bytes().map(|byte| format!("{byte:02x}")).collect::<String>().into_bytes());
    let files = home.files();
    for kind in [
        "notes/words/",
        "notes/catalogue-",
        "notes/tokens-",
        "assistant/history/",
        "assistant/ledger",
        "assistant/prefixes/",
    ] {
        assert!(files.keys().any(|path| arg(path).contains(kind)), "no file of {kind}: {:?}", files.keys());
    }
    for (path, bytes) in &files {
        let name = path.file_name().unwrap().to_str().unwrap();
        for form in &forms {
            assert!(!has(bytes, form), "{path:?} has {:?}", String::from_utf8_lossy(form));
            assert!(!has(name.as_bytes(), form), "the name of {path:?}");
        }
    }
    // The same session without a key has them all, so the search finds what is there.
    let plain = Home::new();
    session(&plain, None);
    let files = plain.files();
    for form in forms.iter().take(WORDS.len() + 3) {
        let found = files.values().any(|bytes| has(bytes, form));
        // A word in lower case is in the dictionary of the index, in the form that its stemmer gives.
        let may_be_missing = [&b"trip.md"[..], b"car.md", b"qulittus", b"zanzibar"].contains(&&form[..]);
        assert!(found || may_be_missing, "{:?}", String::from_utf8_lossy(form));
    }
    // What was kept is used again.
    assert!(home.with(Some("key"), &["index", "search", "Qulittus"]).done().contains("Qulittus"));
    let forgotten = home.with(Some("key"), &["forget", "--all", "--json"]).done();
    assert!(!forgotten.contains("\"answers\":0"), "{forgotten}");
}

#[test]
fn another_key_or_none_changes_nothing() {
    for (of_store, tried) in [(Some("key"), Some("other")), (Some("key"), None), (None, Some("key"))] {
        let home = Home::new();
        session(&home, of_store);
        let before = home.files();
        let (notes, note, model) = (home.path("notes"), home.path("own.md"), model());
        std::fs::write(&note, "We meet in hall VII.\n").unwrap();
        let before_edit = std::fs::read(&note).unwrap();
        let (notes, note, model) = (arg(&notes), arg(&note), arg(&model));
        for args in [
            &["index", "update"][..],
            &["index", "add", notes],
            &["index", "search", "Qulittus"],
            &["index", "status"],
            &["index", "forget", notes],
            &["ask", QUESTION, "--threads", "1", "--model", model],
            &["run", "--max-tokens", "4", "--threads", "1", "--model", model, "Hello."],
            &["forget", notes],
            &["forget", "--all"],
            &[
                "edit",
                note,
                "Write VIII.",
                "--in-place",
                "--yes",
                "--force",
                "--threads",
                "1",
                "--model",
                model,
            ],
        ] {
            let ran = home.with(tried, args);
            assert!(
                ran.code != Some(0) && ran.stderr.contains("encrypted"),
                "{tried:?} {args:?}: {}",
                ran.stderr
            );
        }
        assert_eq!(std::fs::read(note).unwrap(), before_edit, "an edit whose old text cannot be kept");
        let after = home.files();
        let lock = |path: &Path| path.extension().is_some_and(|extension| extension == "lock");
        for (path, bytes) in before.iter().filter(|(path, _)| !lock(path)) {
            assert_eq!(after.get(path), Some(bytes), "{tried:?}: {path:?}");
        }
        assert!(home.with(of_store, &["index", "search", "Qulittus"]).done().contains("Qulittus"));
    }
}

#[test]
fn a_file_without_a_key_is_refused() {
    let home = Home::new();
    let search = |key: &str| home.with(Some(key), &["index", "search", "tap"]).refused(3);
    assert!(search("missing").contains("--key-file"));
    std::fs::write(home.path("short"), "abc").unwrap();
    #[cfg(unix)]
    close(&home.path("short"), 0o600);
    assert!(search("short").contains("no key"));
    #[cfg(unix)]
    {
        close(&home.path("key"), 0o640);
        assert!(search("key").contains("others"));
    }
}

#[test]
fn what_is_forgotten_with_a_key_is_gone() {
    let home = Home::new();
    session(&home, Some("key"));
    let car = home.path("notes/car.md");
    home.with(Some("key"), &["forget", arg(&car)]).done();
    let found = home.with(Some("key"), &["index", "search", "Qulittus"]);
    assert!(!found.stdout.contains("Qulittus"), "{}", found.stdout);
    assert!(home.with(Some("key"), &["index", "search", "Zanzibar"]).done().contains("Zanzibar"));
    home.with(Some("key"), &["forget", "--all"]).done();
}
