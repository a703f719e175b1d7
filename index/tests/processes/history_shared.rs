//! One folder, several processes: one writes, the others read and hand in, and any of them may be killed. The child
//! processes are this test program, started again.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use refrain::TokenId;
use refrain::drafting::{Anchor, Candidates, Cursor, DraftSource};
use refrain_index::history::Access;
use refrain_index::{HistoryError, HistoryKey, HistoryLog, HistoryOptions, SyncPolicy};

use crate::child_support::{self, Child};

pub(crate) const KEY: HistoryKey = HistoryKey { tokenizer: 7, model: 8 };

/// The environment variables with the child's folder, namespace and first response.
const FOLDER: &str = "REFRAIN_TEST_SHARED";
const NAMESPACE: &str = "REFRAIN_TEST_SHARED_NAMESPACE";
const FIRST: &str = "REFRAIN_TEST_SHARED_FIRST";
/// Pause between two appends of a child, in µs; none if it is not set.
const PAUSE_US: &str = "REFRAIN_TEST_SHARED_PAUSE_US";

pub(crate) fn options() -> HistoryOptions {
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

/// The `i`-th response, equal in all processes.
pub(crate) fn response(i: u32) -> Vec<TokenId> {
    let text = (0..4 + i % 20).map(|j| TokenId(i.wrapping_mul(31).wrapping_add(j * j) % 97));
    text.chain([TokenId(1000 + i)]).collect()
}

pub(crate) fn index_of(tokens: &[TokenId]) -> u32 {
    tokens.last().expect("none is empty").0 - 1000
}

fn role(log: &HistoryLog) -> &'static str {
    match log.access() {
        Access::Write => "writes",
        Access::HandIn => "hands-in",
        _ => "reads",
    }
}

/// The responses of a namespace. Checks that each is correct and occurs once.
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

/// Appends until it is killed, and prints each acknowledged response. Not a test by itself.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let namespace = std::env::var(NAMESPACE).expect("a name");
    let first: u32 = std::env::var(FIRST).expect("a number").parse().expect("a number");
    let pause = std::env::var(PAUSE_US).map_or(0, |us| us.parse().expect("a number"));
    let log = HistoryLog::open(Path::new(&folder), KEY, options()).expect("opens");
    let mut out = std::io::stdout();
    writeln!(out, "\nopen {} {}", role(&log), held(&log, &namespace).len()).expect("a parent");
    for i in first.. {
        std::thread::sleep(Duration::from_micros(pause));
        match log.append(&namespace, &response(i)) {
            Ok(_) => writeln!(out, "\nsafe {i}").expect("a parent"),
            Err(HistoryError::ReadOnly { .. }) => {
                writeln!(out, "\nrefused {}", held(&log, &namespace).len()).expect("a parent");
                return;
            }
            // The writer is delayed, or was killed.
            Err(HistoryError::InboxFull { .. }) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => panic!("{error}"),
        }
        if i % 8 == 0 {
            log.maintain().expect("maintains");
            if pause > 0 {
                writeln!(out, "\nrole {}", role(&log)).expect("a parent");
            }
        }
    }
}

fn command(folder: &Path, namespace: &str, first: u32) -> Command {
    let mut command = child_support::command("history_shared::child");
    command.env(FOLDER, folder).env(NAMESPACE, namespace).env(FIRST, first.to_string());
    command
}

/// A child process and the responses that it has acknowledged.
struct Appender {
    child: Child,
    safe: Vec<u32>,
}

impl Appender {
    fn start(folder: &Path, namespace: &str, first: u32) -> Self {
        Appender { child: Child::start(&mut command(folder, namespace, first)), safe: Vec::new() }
    }

    /// Reads up to a line that begins with `word`, and returns the rest of that line.
    fn wait_for(&mut self, word: &str) -> String {
        loop {
            let line = self.child.line();
            self.safe.extend(safe(&line));
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
    }

    /// Kills the child, and returns the acknowledged responses.
    fn kill(self) -> Vec<u32> {
        let mut all = self.safe;
        self.child.kill(0, Duration::ZERO, |line| {
            all.extend(safe(line));
            true
        });
        all
    }
}

/// The response that a line acknowledges.
fn safe(line: &str) -> Option<u32> {
    line.strip_prefix("safe ")?.parse().ok()
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
        // Kills the writer first, or the other child. The survivor continues for a while and may become the writer.
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
    assert!(roles["writes"] >= n_rounds / 2 && roles["hands-in"] >= n_rounds / 2, "{roles:?}");
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

/// One of many workers that share a namespace. A thread reads its output, so that it never waits for this process.
struct Worker {
    process: std::process::Child,
    /// The lines so far.
    lines: Arc<Mutex<Vec<String>>>,
    reader: JoinHandle<()>,
}

impl Worker {
    fn start(folder: &Path, serial: u32) -> Self {
        let mut command = command(folder, "all", serial * 10_000);
        let Child { process, lines: from } = Child::start(command.env(PAUSE_US, "1500"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let to = Arc::clone(&lines);
        let reader =
            std::thread::spawn(move || from.for_each(|line| to.lock().expect("whole lines").push(line)));
        Worker { process, lines, reader }
    }

    fn is_open(&self) -> bool {
        self.lines.lock().expect("whole lines").iter().any(|line| line.starts_with("open "))
    }

    /// Whether it wrote the history when it last said so.
    fn writes(&self) -> bool {
        let lines = self.lines.lock().expect("whole lines");
        let last = lines.iter().rev().find(|line| line.starts_with("role ") || line.starts_with("open "));
        last.is_some_and(|line| line.split(' ').nth(1) == Some("writes"))
    }

    /// The responses acknowledged so far.
    fn safe(&self) -> Vec<u32> {
        self.lines.lock().expect("whole lines").iter().filter_map(|line| safe(line)).collect()
    }

    fn kill(mut self) -> Vec<u32> {
        self.process.kill().expect("runs");
        self.process.wait().expect("ends");
        self.reader.join().expect("reads to the end");
        self.lines.lock().expect("whole lines").iter().filter_map(|line| safe(line)).collect()
    }
}

/// The worker that writes. Soon after a writer's end there is one: a worker takes its place when it maintains.
fn writer(workers: &[Worker]) -> usize {
    let start = Instant::now();
    loop {
        if let Some(writer) = workers.iter().position(Worker::writes) {
            return writer;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "nobody writes");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Rounds per folder: the check of a round reads the whole history.
const ROUNDS_PER_FOLDER: u32 = 25;

/// Six workers append to one namespace. In each round one of them is killed at a random time, in every third round the
/// writer, and another one starts. Then a process that opens the folder must have every acknowledged response.
fn worker_rounds(n_rounds: u32) {
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut below = move |n: u64| {
        // Xorshift (Marsaglia 2003).
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % n
    };
    let (mut n_safe, mut n_writers_killed, mut longest) = (0, 0, Duration::ZERO);
    for first in (0..n_rounds).step_by(ROUNDS_PER_FOLDER as usize) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut serials = 0..;
        let mut start = || Worker::start(folder.path(), serials.next().expect("endless"));
        let mut workers: Vec<Worker> = (0..6).map(|_| start()).collect();
        let mut safe: Vec<u32> = Vec::new();
        let check = |safe: &[u32]| {
            let start = Instant::now();
            let log = open(folder.path());
            let elapsed = start.elapsed();
            let held = held(&log, "all");
            let lost: Vec<&u32> = safe.iter().filter(|i| held.binary_search(i).is_err()).collect();
            assert_eq!(lost, Vec::<&u32>::new(), "of {} acknowledged responses", safe.len());
            let damaged = log.left_out().into_iter().find(|left_out| left_out.aside.is_some());
            assert_eq!(damaged, None);
            elapsed
        };
        for round in first..n_rounds.min(first + ROUNDS_PER_FOLDER) {
            while !workers.iter().all(Worker::is_open) {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_micros(below(20_000)));
            let victim = match round % 3 {
                0 => writer(&workers),
                _ => below(workers.len() as u64) as usize,
            };
            let victim = workers.swap_remove(victim);
            n_writers_killed += u32::from(victim.writes());
            safe.extend(victim.kill());
            let known: Vec<u32> = safe.iter().copied().chain(workers.iter().flat_map(Worker::safe)).collect();
            longest = longest.max(check(&known));
            workers.push(start());
        }
        safe.extend(workers.into_iter().flat_map(Worker::kill));
        check(&safe);
        open(folder.path()).verify().expect("sound");
        n_safe += safe.len();
    }
    println!(
        "{n_rounds} kills, {n_writers_killed} of them of the writer; {n_safe} responses acknowledged, none lost; the longest open took {longest:?}"
    );
    assert!(n_writers_killed >= n_rounds / 3, "{n_writers_killed} of {n_rounds}");
}

#[test]
fn many_workers_killed_lose_nothing_that_was_acknowledged() {
    worker_rounds(20);
}

#[test]
#[ignore = "minutes: 1,000 rounds"]
fn many_workers_killed_1000_times_lose_nothing_that_was_acknowledged() {
    worker_rounds(1000);
}

/// An answer of one process is there for the others as soon as they look, before the writer has taken it in.
#[test]
fn what_one_hands_in_the_others_have_after_a_refresh() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut writer = Appender::start(folder.path(), "theirs", 0);
    writer.wait_for("safe ");
    let workers = [open(folder.path()), open(folder.path())];
    for i in 0..20 {
        let (from, to) = (&workers[i as usize % 2], &workers[1 - i as usize % 2]);
        assert_eq!((role(from), role(to)), ("hands-in", "hands-in"));
        from.append("all", &response(i)).expect("handed in");
        to.maintain().expect("reads");
        assert_eq!(held(to, "all"), Vec::from_iter(0..=i));
    }
    drop(writer.kill());
}

#[test]
fn a_second_process_reads_and_hands_in_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut child = Appender::start(folder.path(), "a", 0);
    (0..20).for_each(|_| drop(child.wait_for("safe ")));
    let n_safe = child.safe.len();
    let log = open(folder.path());
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
        // A child just started by another test has a copy of the previous round's lock until it runs its program.
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

/// While files are replaced, readers have all responses that were appended before they opened the folder, and draft
/// from them.
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
                source.truncate(0);
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
        // Permissions do not restrict the superuser.
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
