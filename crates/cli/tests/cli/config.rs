//! Defaults of options from a file and from the environment; completions and manual pages.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Ran, arg, command, refrain, repository};

/// A file of settings in a folder of its own.
fn settings(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.toml");
    std::fs::write(&path, text).unwrap();
    (folder, path)
}

fn ran(command: &mut Command) -> Ran {
    let output = command.output().expect("the program runs");
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

/// The tokens of an answer with these arguments.
fn n_tokens(command: &mut Command) -> u64 {
    let stdout = ran(command).done();
    let stats: serde_json::Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
    stats["stats"]["tokens"].as_u64().unwrap()
}

const RUN: [&str; 5] = ["run", "--stats", "json", "--ignore-eos", "Everything about the harbour"];

#[test]
fn the_stronger_setting_wins() {
    let (_folder, file) = settings("max-tokens = 3\n[run]\nmax-tokens = 5\n[chat]\nmax-tokens = 7\n");
    let with = |more: &[&str]| {
        let mut command = command(&["--config", arg(&file)]);
        command.args(RUN).args(more);
        command
    };
    assert_eq!(n_tokens(&mut with(&[])), 5, "the table of the command");
    assert_eq!(n_tokens(with(&[]).env("REFRAIN_MAX_TOKENS", "4")), 4, "the environment");
    assert_eq!(n_tokens(with(&["--max-tokens", "6"]).env("REFRAIN_MAX_TOKENS", "4")), 6, "the command line");
    let mut ignoring = command(&["--config", "none", "--max-tokens"]);
    assert_eq!(ran(&mut ignoring).code, Some(2), "options of `run` stand behind it");
    let mut ignoring = command(&["--config", "none"]);
    ignoring
        .args(RUN)
        .args(["--max-tokens", "2"])
        .env("REFRAIN_MAX_TOKENS", "x")
        .env("REFRAIN_CONFIG", &file);
    assert_eq!(n_tokens(&mut ignoring), 2, "nothing is read");

    let (_folder, top) = settings("max-tokens = 3\n");
    assert_eq!(n_tokens(command(&RUN).env("REFRAIN_CONFIG", &top)), 3, "the top of the file");
}

#[test]
fn the_file_is_found_in_the_home_folder() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join(".config").join("refrain");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.toml"), "max-tokens = 3\nstore = \"none\"\n").unwrap();
    let mut of_home = command(&RUN);
    of_home.env("HOME", home.path()).env("APPDATA", home.path().join(".config"));
    assert_eq!(n_tokens(&mut of_home), 3);
    assert!(!home.path().join(".local").exists(), "nothing was stored");
}

#[test]
fn a_default_gives_way_to_an_option_that_excludes_it() {
    let (_folder, file) = settings("regex = \"no\"\n");
    let given = ["--config", arg(&file), "run", "--stats", "off", "--choice", "yes", "hello"];
    assert_eq!(refrain(&given).done().trim(), "yes", "--choice was given");

    let (_folder, file) = settings("regex = \"no\"\nchoice = [\"yes\"]\n");
    let refused = refrain(&[&["--config", arg(&file)], &RUN[..]].concat()).refused(2);
    assert!(refused.contains("exclude each other") && refused.contains("line 1"), "{refused}");
}

#[test]
fn paths_start_at_the_folder_of_the_file() {
    let (folder, file) = settings("model = \"models/small.gguf\"\nmax-tokens = 2\n");
    std::fs::create_dir(folder.path().join("models")).unwrap();
    std::fs::copy(repository("fixtures/target.gguf"), folder.path().join("models/small.gguf")).unwrap();
    let mut elsewhere = command(&["--config", arg(&file)]);
    elsewhere.args(RUN).current_dir(std::env::temp_dir());
    assert_eq!(n_tokens(&mut elsewhere), 2);

    let (_folder, file) = settings("model = \"~/small.gguf\"\nmax-tokens = 2\n");
    let mut of_home = command(&["--config", arg(&file)]);
    let models = folder.path().join("models");
    of_home.args(RUN).args(["--store", "none"]).env("HOME", &models).env("USERPROFILE", &models);
    assert_eq!(n_tokens(&mut of_home), 2);
}

#[test]
fn an_unusable_setting_is_named_with_its_place() {
    let cases: [(&str, i32, &[&str]); 11] = [
        ("max-tokens = 3\nmodle = \"x\"\n", 3, &["line 2", "modle"]),
        ("[runn]\n", 3, &["line 1", "runn"]),
        ("[run]\nlanguages = [\"de\"]\n", 3, &["line 2", "languages"]),
        ("[forget]\nall = true\n", 3, &["line 2", "all"]),
        ("[edit]\nin-place = true\n", 3, &["line 2", "in-place"]),
        ("max-tokens = \n", 3, &["line 1"]),
        ("\nmax-tokens = \"many\"\n", 2, &["many", "--max-tokens", "line 2"]),
        ("ignore-eos = 1\n", 3, &["ignore-eos", "true or false"]),
        ("max-tokens = 1979-05-27\n", 3, &["max-tokens", "datetime"]),
        ("stop = [[\"a\"]]\n", 3, &["stop", "list"]),
        ("max-tokens = 1\nmax-tokens = 2\n", 3, &["line 2"]),
    ];
    for (text, code, named) in cases {
        let (_folder, file) = settings(text);
        let line = refrain(&[&["--config", arg(&file)], &RUN[..]].concat()).refused(code);
        for part in named.iter().chain(&["config.toml"]) {
            assert!(line.contains(part), "{text:?}: {line}");
        }
    }
    let refused = ran(command(&RUN).env("REFRAIN_THREADS", "few")).refused(2);
    assert!(refused.contains("REFRAIN_THREADS") && refused.contains("few"), "{refused}");
    let refused = refrain(&[&["--config", "nowhere.toml"], &RUN[..]].concat()).refused(3);
    assert!(refused.contains("nowhere.toml"), "{refused}");
    let (_folder, long) = settings(&"#".repeat((1 << 20) + 1));
    let refused = refrain(&[&["--config", arg(&long)], &RUN[..]].concat()).refused(3);
    assert!(refused.contains("1048576"), "{refused}");
}

#[test]
fn the_settings_are_listed_with_their_origin() {
    let (_folder, file) = settings("threads = 1\n[index.search]\npassages = 9\n");
    let mut listing = command(&["--config", arg(&file), "config"]);
    let listed = ran(listing.env("REFRAIN_MAX_TOKENS", "12")).done();
    for line in ["threads = 1", "[index.search] passages = 9", "the variable REFRAIN_MAX_TOKENS = 12"] {
        assert!(listed.lines().any(|listed| listed == line), "{listed}");
    }
    assert!(listed.starts_with(arg(&file)));
    assert!(refrain(&["config"]).done().starts_with("no file"));
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    let bash = refrain(&["config", "completions", "bash"]).done();
    for word in ["summarize", "forget", "--max-tokens", "--json-schema"] {
        assert!(bash.contains(word), "{word}");
    }
    // The shell reads the script.
    match Command::new("bash").args(["-n", "-c", &bash]).output() {
        Ok(checked) => assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr)),
        Err(error) => println!("no bash here: {error}"),
    }

    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man").join("man1");
    refrain(&["config", "man", arg(&pages)]).done();
    let text = |name: &str| std::fs::read_to_string(Path::new(&pages).join(name)).unwrap();
    assert!(text("refrain.1").contains("refrain\\-run(1)"));
    assert!(text("refrain-run.1").contains("max\\-tokens"));
    assert!(text("refrain-index-search.1").contains("REQUEST"));
    let in_the_way = folder.path().join("file");
    std::fs::write(&in_the_way, "").unwrap();
    assert!(refrain(&["config", "man", arg(&in_the_way)]).refused(1).contains("file"));
}

#[test]
fn only_paths_begin_in_the_home_folder() {
    let (_folder, file) = settings("store = \"~/answers\"\n[run]\nsystem = \"~/ is my home.\"\n");
    let home = tempfile::tempdir().unwrap();
    let mut shown = command(&["--config", arg(&file), "config"]);
    shown.env("HOME", home.path()).env("USERPROFILE", home.path());
    let stdout = ran(&mut shown).done();
    assert!(stdout.contains("system = ~/ is my home."), "{stdout}");
    assert!(stdout.contains(&format!("store = {}", home.path().join("answers").display())), "{stdout}");
}
