//! One folder, several processes: one writes, the others read and hand in, whichever of them is killed. The children are this
//! test program, started again.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use refrain::{Anchor, Candidates, Cursor, DraftSource, TokenId};
use refrain_index::history::Access;
use refrain_index::{HistoryError, HistoryKey, HistoryLog, HistoryOptions, SyncPolicy};

const KEY: HistoryKey = HistoryKey { tokenizer: 7, model: 8 };

/// Names the folder, the namespace and the first response of a child.
const FOLDER: &str = "REFRAIN_TEST_SHARED";
const NAMESPACE: &str = "REFRAIN_TEST_SHARED_NAMESPACE";
const FIRST: &str = "REFRAIN_TEST_SHARED_FIRST";

fn options() -> HistoryOptions {
    HistoryOptions {
        sync: SyncPolicy::Always,
        live_tokens_max: 64,
        segment_tokens_max: 4000,
        ..HistoryOptions::default()
    }
}

fn open(folder: &Path) -> HistoryLog {
    HistoryLog::open(folder, KEY, options()).expect("opens")
}

/// The `i`-th response: any process can tell what it must be.
fn response(i: u32) -> Vec<TokenId> {
    let text = (0..4 + i % 20).map(|j| TokenId(i.wrapping_mul(31).wrapping_add(j * j) % 97));
    text.chain([TokenId(1000 + i)]).collect()
}

fn index_of(tokens: &[TokenId]) -> u32 {
    tokens.last().expect("none is empty").0 - 1000
}

fn role(log: &HistoryLog) -> &'static str {
    match log.access() {
        Access::Write => "writes",
        Access::HandIn => "hands-in",
        _ => "reads",
    }
}

/// The responses of a namespace, each as it must be and there once.
fn held(log: &HistoryLog, namespace: &str) -> Vec<u32> {
    let infos = log.list().into_iter().filter(|info| info.namespace == namespace);
    let mut held: Vec<u32> = infos
        .map(|info| {
            let tokens = log.tokens(info.record).expect("sound").expect("listed");
            assert_eq!(tokens, response(index_of(&tokens)));
            index_of(&tokens)
        })
        .collect();
    held.sort_unstable();
    let n = held.len();
    held.dedup();
    assert_eq!(n, held.len(), "a response is there twice");
    held
}

/// Appends until it is killed, and says of each response that it is safe. Not a test by itself.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let namespace = std::env::var(NAMESPACE).expect("a name");
    let first: u32 = std::env::var(FIRST).expect("a number").parse().expect("a number");
    let log = HistoryLog::open(Path::new(&folder), KEY, options()).expect("opens");
    let mut out = std::io::stdout();
    writeln!(out, "\nopen {} {}", role(&log), held(&log, &namespace).len()).expect("a parent");
    for i in first.. {
        match log.append(&namespace, &response(i)) {
            Ok(_) => writeln!(out, "\nsafe {i}").expect("a parent"),
            Err(HistoryError::ReadOnly { .. }) => {
                writeln!(out, "\nrefused {}", held(&log, &namespace).len()).expect("a parent");
                return;
            }
            // The writer is held up, or killed.
            Err(HistoryError::InboxFull { .. }) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
        if i % 8 == 0 {
            log.maintain().expect("maintains");
        }
    }
}

fn command(folder: &Path, namespace: &str, first: u32) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command
        .args(["--exact", "child", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .env(NAMESPACE, namespace)
        .env(FIRST, first.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    command
}

/// A child, and what it says.
struct Appender {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    safe: Vec<u32>,
}

impl Appender {
    fn start(folder: &Path, namespace: &str, first: u32) -> Self {
        let mut child = command(folder, namespace, first).spawn().expect("starts");
        let lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        Appender { child, lines, safe: Vec::new() }
    }

    /// Reads until a line that begins with `word`, and returns the rest of it.
    fn wait_for(&mut self, word: &str) -> String {
        loop {
            let line = self.lines.next().expect("goes on until it is killed").expect("text");
            self.note(&line);
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    fn note(&mut self, line: &str) {
        // A line that a kill has cut short says less than was said; it is never the number of another one.
        self.safe.extend(line.strip_prefix("safe ").and_then(|i| i.parse::<u32>().ok()));
    }

    /// Kills it, and returns the responses that it was told are safe. The last line may be cut short, so it does not count.
    fn kill(mut self) -> Vec<u32> {
        self.child.kill().expect("runs");
        let mut rest: Vec<String> = self.lines.by_ref().map_while(Result::ok).collect();
        rest.pop();
        rest.iter().for_each(|line| self.note(line));
        self.child.wait().expect("ends");
        self.safe
    }
}

fn kill_rounds(n_rounds: u32) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut safe: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
    let mut roles: BTreeMap<String, u32> = BTreeMap::new();
    for round in 0..n_rounds {
        let names = if round % 2 == 0 { ["a", "b"] } else { ["b", "a"] };
        let mut children = names.map(|name| {
            let mut child = Appender::start(folder.path(), name, round * 10_000);
            let opened = child.wait_for("open ");
            *roles.entry(opened.split(' ').next().expect("a word").to_owned()).or_default() += 1;
            (name, child)
        });
        for _ in 0..round * 7 % 11 {
            children.iter_mut().for_each(|(_, child)| drop(child.wait_for("safe ")));
        }
        std::thread::sleep(Duration::from_micros(u64::from(round * 389 % 3000)));
        // The writer first, or the other: one goes on for a while, and may take its place.
        if round % 3 == 0 {
            children.reverse();
        }
        let [(first, child), (second, mut survivor)] = children;
        safe.entry(first).or_default().extend(child.kill());
        for _ in 0..12 {
            survivor.wait_for("safe ");
        }
        safe.entry(second).or_default().extend(survivor.kill());

        let log = open(folder.path());
        assert_eq!(role(&log), "writes", "a killed process blocks nobody");
        for (name, safe) in &safe {
            let held = held(&log, name);
            let lost: Vec<&u32> = safe.iter().filter(|i| held.binary_search(i).is_err()).collect();
            assert_eq!(lost, Vec::<&u32>::new(), "round {round}, namespace {name}");
        }
        log.verify().expect("sound");
        assert!(log.left_out().iter().all(|left_out| left_out.aside.is_none()), "{:?}", log.left_out());
    }
    assert!(roles["writes"] >= n_rounds && roles["hands-in"] >= n_rounds / 2, "{roles:?}");
}

#[test]
fn killed_processes_lose_nothing_that_was_appended_or_handed_in() {
    kill_rounds(12);
}

#[test]
#[ignore = "minutes: 200 rounds"]
fn processes_killed_200_times_lose_nothing() {
    kill_rounds(200);
}

#[test]
fn a_second_process_reads_and_hands_in_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut child = Appender::start(folder.path(), "a", 0);
    (0..20).for_each(|_| drop(child.wait_for("safe ")));
    let n_safe = child.safe.len();
    let start = Instant::now();
    let log = open(folder.path());
    assert!(start.elapsed() < Duration::from_secs(1));
    assert_eq!(role(&log), "hands-in");
    assert!(held(&log, "a").len() >= n_safe);
    log.append("mine", &response(5)).expect("handed in");
    assert_eq!(held(&log, "mine"), [5]);
    assert!(matches!(log.forget_namespace("a"), Err(HistoryError::InUse { .. })));
    let safe = child.kill();
    log.refresh().expect("the lock ends with its process");
    assert_eq!((role(&log), held(&log, "mine")), ("writes", vec![5]));
    let held = held(&log, "a");
    assert!(safe.iter().all(|i| held.contains(i)), "{safe:?} and {held:?}");
    assert!(log.forget_namespace("a").expect("forgets"));
}

#[test]
fn of_many_that_open_at_once_one_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    for round in 0..20 {
        let logs: Vec<HistoryLog> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..6).map(|_| scope.spawn(|| open(folder.path()))).collect();
            threads.into_iter().map(|thread| thread.join().expect("opens")).collect()
        });
        let n_writers = || logs.iter().filter(|log| role(log) == "writes").count();
        assert!(n_writers() <= 1, "{} write", n_writers());
        // A child that another test is just starting has a copy of the last round's lock until it runs its program.
        let start = Instant::now();
        while n_writers() == 0 && start.elapsed() < Duration::from_secs(10) {
            logs.iter().for_each(|log| log.refresh().expect("reads"));
        }
        assert_eq!(n_writers(), 1);
        std::thread::scope(|scope| {
            for (i, log) in (round * 6..).zip(&logs) {
                scope.spawn(move || log.append("a", &response(i)).expect("appends"));
            }
        });
        logs.iter().for_each(|log| log.maintain().expect("maintains"));
    }
    assert_eq!(held(&open(folder.path()), "a"), Vec::from_iter(0..120));
}

/// While files go under them, readers have everything that was appended before they opened the folder, and draft from it.
#[test]
fn readers_are_right_while_the_writer_freezes_and_merges() {
    let folder = tempfile::tempdir().expect("a folder");
    let writer = open(folder.path());
    let (n_safe, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let check = |log: &HistoryLog, n: u32| {
            let held = held(log, "a");
            assert!(
                held.len() as u32 >= n && held.iter().copied().eq(0..held.len() as u32),
                "{n} of {held:?}"
            );
            let mut source = log.source("a");
            for i in (0..n).step_by(7) {
                source.reset();
                let text = response(i);
                let mut anchors: Vec<Anchor> = Vec::new();
                source.anchors(&text, &mut anchors);
                assert_eq!(anchors[0].match_len as usize, text.len(), "response {i}");
                let cursors: Vec<Cursor> = anchors.iter().map(|anchor| anchor.cursor).collect();
                source.expand(&cursors, &mut Candidates::with_limit(32));
            }
            assert_eq!(log.left_out(), []);
        };
        for refreshes in [false, true] {
            let (n_safe, is_over, folder) = (&n_safe, &is_over, folder.path());
            scope.spawn(move || {
                let log = open(folder);
                let mut n_seen = 0;
                while !is_over.load(Ordering::SeqCst) || n_seen < 3 {
                    let n = n_safe.load(Ordering::SeqCst);
                    if refreshes {
                        log.refresh().expect("reads");
                        check(&log, n);
                    } else {
                        check(&open(folder), n);
                    }
                    n_seen += 1;
                }
            });
        }
        for i in 0..400 {
            writer.append("a", &response(i)).expect("appends");
            n_safe.store(i + 1, Ordering::SeqCst);
            if i % 8 == 0 {
                writer.maintain().expect("maintains");
            }
        }
        is_over.store(true, Ordering::SeqCst);
    });
}

#[cfg(unix)]
#[test]
fn a_process_without_permission_to_write_reads() {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    use std::os::unix::process::CommandExt;
    let folder = tempfile::tempdir().expect("a folder");
    let log = open(folder.path());
    for i in 0..40 {
        log.append("a", &response(i)).expect("appends");
    }
    drop(log);
    let mut paths = vec![folder.path().to_owned()];
    let mut n_seen = 0;
    while let Some(path) = paths.get(n_seen).cloned() {
        n_seen += 1;
        if path.is_dir() {
            paths.extend(std::fs::read_dir(&path).expect("a folder").map(|entry| entry.expect("one").path()));
        }
    }
    let set = |write: bool| {
        for path in paths.iter().rev() {
            let mode = 0o444 | if path.is_dir() { 0o111 } else { 0 } | if write { 0o200 } else { 0 };
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its owner may");
        }
    };
    set(false);
    let mut command = command(folder.path(), "a", 0);
    if folder.path().metadata().expect("a folder").uid() == 0 {
        // Permissions do not hold the superuser.
        command.uid(65_534).gid(65_534);
    }
    match command.output() {
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("open reads 40") && said.contains("refused 40"), "{said}");
        }
        Err(error) => println!("skipped: another user cannot start this program: {error}"),
    }
    set(true);
}
