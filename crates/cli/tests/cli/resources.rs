//! What the system refuses (address space, threads, open files) is an error of one line, never a panic or an abort.
#![cfg(target_os = "linux")]

use std::fs;
use std::process::{Command, Stdio};

use crate::support::{arg, command};

/// Runs the program under a limit of the shell: exit code, and standard error.
fn limited(limit: &str, args: &[&str]) -> (Option<i32>, String) {
    let program = command(&[]).get_program().to_owned();
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limit} && exec \"$0\" \"$@\"")]).arg(program).args(args);
    shell.env_clear().env("RUST_BACKTRACE", "0").env("PATH", "/usr/bin:/bin");
    let output = shell.stdin(Stdio::null()).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A success, or an error of one line.
fn check(limit: &str, args: &[&str]) -> bool {
    let (code, stderr) = limited(limit, args);
    let has_message = stderr.lines().any(|line| line.starts_with("error: "));
    let is_error = matches!(code, Some(1..=3)) && has_message;
    let died = ["panicked", "memory allocation of", "stack overflow", "fatal runtime error"];
    assert!(
        (code == Some(0) || is_error) && !died.iter().any(|word| stderr.contains(word)),
        "{limit}, {args:?}: {code:?}, {stderr}"
    );
    code == Some(0)
}

#[test]
fn too_little_address_space_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    fs::create_dir(&notes).unwrap();
    for i in 0..20 {
        fs::write(notes.join(format!("{i}.md")), format!("# Note {i}\n\nThe tap drips on day {i}.\n"))
            .unwrap();
    }
    let index = |n: usize| folder.path().join(format!("index-{n}"));
    // Below, the system cannot start the program.
    let is_started = |mib: &i32| {
        let (code, stderr) = limited(&format!("ulimit -v {}", mib << 10), &["--version"]);
        code == Some(0) || stderr.starts_with("error: the system gives")
    };
    let floor = (40..400).find(is_started).unwrap();
    let mut n_done = 0;
    let mut n = 0;
    for mib in (floor..floor + 96).step_by(3).chain((floor + 96..floor + 400).step_by(16)).chain([1024, 2048])
    {
        let limit = format!("ulimit -v {}", mib << 10);
        n += 1;
        let index = index(n);
        let cases: [&[&str]; 4] = [
            &["run", "--store", "none", "--stats", "off", "--max-tokens", "3", "hi"],
            &["model", "inspect"],
            &["model", "score", "--text", "The tap drips."],
            &["index", "add", "--index", arg(&index), arg(&notes)],
        ];
        for case in cases {
            n_done += usize::from(check(&limit, case));
        }
    }
    assert!(n_done > 8, "{n_done}");
}

#[test]
fn too_few_open_files_are_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    fs::create_dir(&notes).unwrap();
    fs::write(notes.join("a.md"), "# Tap\n\nThe tap drips.\n").unwrap();
    let mut n_done = 0;
    for n in (4..24).chain([32, 64]) {
        let index = folder.path().join(format!("index-{n}"));
        let limit = format!("ulimit -n {n}");
        let cases: [&[&str]; 3] = [
            &["run", "--store", "none", "--stats", "off", "--max-tokens", "3", "hi"],
            &["model", "inspect"],
            &["index", "add", "--index", arg(&index), arg(&notes)],
        ];
        for case in cases {
            n_done += usize::from(check(&limit, case));
        }
    }
    assert!(n_done > 6, "{n_done}");
}
