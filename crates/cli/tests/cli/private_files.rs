//! What the program writes of the user's text is the user's alone: under any umask, after every command, no folder has
//! more than mode 0700 and no file more than 0600.
#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::json;

use crate::support::{arg, command, model, repository};

const QUESTION: &str = "Who takes care of the repair of the car?";

/// A home with notes. `mine/` is the user's, everything else is written by the program.
struct Home {
    folder: tempfile::TempDir,
    umask: &'static str,
}

impl Home {
    fn new(umask: &'static str) -> Self {
        let home = Self { folder: tempfile::tempdir().unwrap(), umask };
        fs::create_dir(home.path("mine")).unwrap();
        let text = "# Car repair\n\nQulittus Works takes care of the repair of the car.\n";
        fs::write(home.path("mine/car.md"), text).unwrap();
        fs::write(home.path("mine/trip.md"), "# Trip\n\nThe trip begins on Monday with Ada Voss.\n").unwrap();
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The program under the umask, with this home.
    fn command(&self, args: &[&str]) -> Command {
        let clean = command(args);
        let mut command = Command::new("sh");
        command
            .args(["-c", "umask \"$0\" && exec \"$@\"", self.umask])
            .arg(clean.get_program())
            .args(clean.get_args());
        for (name, value) in clean.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env("XDG_DATA_HOME", self.path("data")).env("XDG_CACHE_HOME", self.path("cache"));
        command.env("XDG_CONFIG_HOME", self.path("config")).env("HOME", self.path("home"));
        command
    }

    /// Runs a command, which must succeed, and checks what it has left.
    #[track_caller]
    fn run(&self, args: &[&str], input: &str) -> String {
        let mut child = self.command(args);
        let child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("the program starts");
        let _ = child.stdin.take().expect("piped").write_all(input.as_bytes());
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        self.check(&format!("{args:?}"));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Everything outside `mine/` is private.
    #[track_caller]
    fn check(&self, after: &str) {
        let open = [&self.path("data"), &self.path("cache"), &self.path("config"), &self.path("home")];
        let loose: Vec<_> = open
            .into_iter()
            .flat_map(|path| all(path))
            .filter(|(_, mode)| mode & 0o077 != 0)
            .map(|(path, mode)| format!("{} {mode:o}", path.display()))
            .collect();
        assert!(loose.is_empty(), "after {after} under umask {}: {loose:?}", self.umask);
    }
}

/// A path with everything below it, and their modes. Links are not followed.
fn all(path: &Path) -> Vec<(PathBuf, u32)> {
    let Ok(found) = fs::symlink_metadata(path) else { return Vec::new() };
    let mut all = vec![(path.to_owned(), found.mode() & 0o777)];
    if found.is_dir() {
        all.extend(fs::read_dir(path).unwrap().flat_map(|entry| self::all(&entry.unwrap().path())));
    }
    all
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o777
}

fn stop(mut child: Child) {
    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    assert!(child.wait().unwrap().success());
}

#[test]
fn no_command_leaves_a_file_for_others() {
    // The tightest umask must not take from the owner what the program needs.
    for umask in ["000", "077"] {
        every_command(&Home::new(umask));
    }
}

fn every_command(home: &Home) {
    let (notes, model) = (home.path("mine"), model());
    let (car, trip) = (notes.join("car.md"), notes.join("trip.md"));
    let (notes, model, car, trip) = (arg(&notes), arg(&model), arg(&car), arg(&trip));
    let one = ["--threads", "1"];
    let run = |args: &[&str]| home.run(args, "");
    let with = |args: &[&str]| run(&[args, &one].concat());

    run(&["index", "add", notes]);
    run(&["index", "update", "--model", model]);
    run(&["index", "search", "repair"]);
    run(&["index", "status"]);
    with(&["ask", QUESTION]);
    with(&["summarize", trip]);
    with(&["summarize", trip, "--changes"]);
    with(&["reply", arg(&repository("examples/mail.txt")), "--max-tokens", "8"]);
    with(&["edit", trip, "Replace Monday with Tuesday.", "--max-tokens", "8"]);
    with(&["run", "--max-tokens", "8", "--drafting", "echo=on", "--context", car, QUESTION]);
    home.run(&["chat", "--max-tokens", "8", "--threads", "1"], "Hello.\nAnd then?\n");
    with(&[
        "model",
        "score",
        "--text",
        "Ada Voss repairs it.",
        "--logits",
        arg(&home.path("data").join("logits")),
    ]);
    serve(home, notes, model);
    mcp(home, notes, model);
    run(&["index", "forget", trip]);
    run(&["forget", car]);
    run(&["forget", "--all"]);
}

fn serve(home: &Home, notes: &str, model: &str) {
    let (index, store, socket) =
        (home.path("data/served"), home.path("data/store"), home.path("data/socket"));
    let args = ["serve", "--threads", "1", "--model", model, "--index", arg(&index), "--store", arg(&store)];
    let place = format!("unix:{}", arg(&socket));
    let args = [&args[..], &["--listen", &place, "--notes", notes]].concat();
    let mut child = home
        .command(&args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut line).unwrap();
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).expect("it listens");
    let body = r#"{"messages": [{"role": "user", "content": "Who repairs the car?"}], "max_tokens": 4}"#;
    let head = "POST /v1/chat/completions HTTP/1.1\r\nContent-Type: application/json\r\nHost: localhost";
    write!(stream, "{head}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(reply.starts_with("HTTP/1.1 200"), "{reply}");
    home.check("a request to serve");
    stop(child);
    home.check("serve");
}

fn mcp(home: &Home, notes: &str, model: &str) {
    let index = home.path("data/mcp");
    let args = ["mcp", "--threads", "1", "--model", model, "--index", arg(&index), "--notes", notes];
    let about = json!({ "name": "test", "version": "1" });
    let begin = json!({ "protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about });
    let call = json!({ "name": "search_notes", "arguments": { "query": "repair" } });
    let message = |id: u64, method: &str, params| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    let begun = json!({ "jsonrpc": "2.0", "method": "notifications/initialized" });
    let input = [message(1, "initialize", begin), begun, message(2, "tools/call", call)];
    let input: String = input.iter().map(|message| format!("{message}\n")).collect();
    let output = home.run(&args, &input);
    assert!(output.contains("Qulittus"), "{output}");
}

#[test]
fn an_edited_file_keeps_its_mode() {
    let home = Home::new("000");
    let note = home.path("mine/car.md");
    set_mode(&note, 0o640);
    home.run(
        &[
            "edit",
            arg(&note),
            "Write VIII.",
            "--in-place",
            "--yes",
            "--force",
            "--model",
            arg(&model()),
            "--threads",
            "1",
        ],
        "",
    );
    assert_eq!(mode(&note), 0o640);
    let names: Vec<_> =
        fs::read_dir(home.path("mine")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn what_older_versions_left_open_is_closed_and_what_others_own_is_not_touched() {
    let home = Home::new("000");
    let (notes, store) = (home.path("mine"), home.path("data/store"));
    home.run(&["index", "add", arg(&notes)], "");
    let car = notes.join("car.md");
    let summarize = ["summarize", arg(&car), "--threads", "1", "--store", arg(&store)];
    home.run(&summarize, "");
    home.run(&["run", "--max-tokens", "4", "--threads", "1", "Hello."], "");
    let open = |path: &Path| {
        for (path, _) in all(path) {
            set_mode(&path, if path.is_dir() { 0o755 } else { 0o644 });
        }
    };
    open(&home.path("data"));
    set_mode(&home.path("mine"), 0o755);
    set_mode(&home.path("mine/car.md"), 0o644);
    let command = |args: &[&str]| assert!(home.command(args).output().unwrap().status.success(), "{args:?}");
    command(&["index", "search", "repair"]);
    command(&summarize);
    command(&["run", "--max-tokens", "4", "--threads", "1", "Hello."]);
    let loose =
        |path: &Path| all(path).into_iter().filter(|(_, mode)| mode & 0o077 != 0).map(|(path, _)| path);
    let mut still: Vec<_> = loose(&home.path("data")).collect();
    still.sort();
    // Above the stores nothing holds text.
    let above = ["data", "data/refrain"].map(|name| home.path(name));
    assert_eq!(still, above);
    assert_eq!((mode(&home.path("mine")), mode(&home.path("mine/car.md"))), (0o755, 0o644));

    // A folder with something else in it is the user's.
    let shared = home.path("mine/shared");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("letter.txt"), "mine").unwrap();
    set_mode(&shared, 0o755);
    set_mode(&shared.join("letter.txt"), 0o644);
    command(&["run", "--max-tokens", "4", "--threads", "1", "--store", arg(&shared), "Hello."]);
    let modes = all(&shared);
    for (path, mode) in modes {
        let is_users = path == shared || path.ends_with("letter.txt");
        assert_eq!(mode & 0o077 != 0, is_users, "{path:?} {mode:o}");
    }
}

/// Only root can make files of other users, as in a container.
#[test]
fn folders_of_other_users_are_refused() {
    use std::os::unix::fs::{chown, symlink};
    use std::os::unix::process::CommandExt;
    const OWN: u32 = 41_001;
    const OTHER: u32 = 41_002;
    let home = Home::new("022");
    if chown(home.folder.path(), Some(OWN), None).is_err() {
        return;
    }
    for (path, _) in all(&home.path("mine")) {
        chown(path, Some(OWN), None).unwrap();
    }
    let shared = home.path("shared");
    fs::create_dir(&shared).unwrap();
    set_mode(&shared, 0o1777);
    let mine = home.path("mine");
    for name in ["folder", "link"] {
        let trap = shared.join(name);
        match name {
            "folder" => fs::create_dir(&trap).unwrap(),
            _ => {
                let empty = home.path("empty");
                fs::create_dir(&empty).unwrap();
                chown(&empty, Some(OWN), None).unwrap();
                symlink(&empty, &trap).unwrap();
            }
        }
        std::os::unix::fs::lchown(&trap, Some(OTHER), None).unwrap();
        if name == "folder" {
            set_mode(&trap, 0o777);
        }
        for args in [
            &["index", "add", arg(&mine), "--index", arg(&trap)][..],
            &["run", "--max-tokens", "4", "--store", arg(&trap), "Hello."],
            &["summarize", arg(&mine.join("car.md")), "--store", arg(&trap)],
        ] {
            let output = home.command(args).uid(OWN).gid(OWN).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.contains("another user"), "{args:?}: {stderr}");
        }
        let made: Vec<_> = all(&shared).into_iter().map(|(path, _)| path).collect();
        assert!(made.len() <= 3, "{made:?}");
    }
}
