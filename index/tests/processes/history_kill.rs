//! A process killed during appends loses no acknowledged response. The child process is this test program, started
//! again.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use refrain::TokenId;
use refrain_index::{HistoryKey, HistoryLog, HistoryOptions, SyncPolicy};

const KEY: HistoryKey = HistoryKey { tokenizer: 7, model: 8 };

/// The environment variable with the child's folder.
const FOLDER: &str = "REFRAIN_TEST_HISTORY";

fn options() -> HistoryOptions {
    HistoryOptions {
        sync: SyncPolicy::Always,
        live_tokens_max: 64,
        segment_tokens_max: 4000,
        ..HistoryOptions::default()
    }
}

/// The `i`-th response, equal in all processes.
fn response(i: u32) -> Vec<TokenId> {
    (0..4 + i % 20)
        .map(|j| TokenId(i.wrapping_mul(31).wrapping_add(j * j) % 97))
        .chain([TokenId(1000 + i)])
        .collect()
}

fn index_of(tokens: &[TokenId]) -> u32 {
    tokens.last().expect("none is empty").0 - 1000
}

/// Appends until it is killed, and prints each acknowledged response. Not a test by itself.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let log = HistoryLog::open(Path::new(&folder), KEY, options()).expect("opens");
    let mut out = std::io::stdout();
    let first = log.list().len() as u32;
    writeln!(out, "\nopen {first}").expect("a parent");
    for i in first.. {
        let id = log.append("a", &response(i)).expect("appends");
        writeln!(out, "\nsafe {i} {id}").expect("a parent");
        if i % 16 == 0 {
            log.maintain().expect("maintains");
            // Removes a namespace at intervals. The number of other responses must stay the index of the next one.
            log.append("gone", &response(i)).expect("appends");
            log.forget_namespace("gone").expect("forgets");
        }
    }
}

fn start(folder: &Path) -> Child {
    let program = std::env::current_exe().expect("this program");
    Command::new(program)
        .args(["--exact", "history_kill::child", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts")
}

/// Starts a child that appends, and kills it some time after the given number of acknowledged responses. Returns the
/// number of responses that were acknowledged before the kill.
fn round(folder: &Path, n_acknowledged: usize, longer: Duration) -> u32 {
    let mut child = start(folder);
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut n_safe = 0;
    let mut note = |line: std::io::Result<String>| {
        let line = line.unwrap_or_default();
        let mut words = line.split(' ');
        let number =
            |words: &mut std::str::Split<'_, char>| words.next().and_then(|word| word.parse::<u32>().ok());
        match words.next() {
            // A line cut inside a number gives a smaller number.
            Some("safe") if words.clone().count() == 2 => {
                n_safe = number(&mut words).map_or(n_safe, |i| i + 1)
            }
            Some("open") => n_safe = number(&mut words).expect("a number"),
            _ => return false,
        }
        true
    };
    let mut n_seen = 0;
    while n_seen <= n_acknowledged {
        n_seen += usize::from(note(lines.next().expect("the child goes on until it is killed")));
    }
    std::thread::sleep(longer);
    child.kill().expect("runs");
    for line in lines {
        note(line);
    }
    child.wait().expect("ends");
    n_safe
}

fn check(folder: &Path, n_safe: u32) {
    let log = HistoryLog::open(folder, KEY, options()).expect("opens after a kill");
    // A forgotten namespace may exist again, if the removal was not acknowledged.
    log.forget_namespace("gone").expect("forgets");
    let listed = log.list();
    assert!(listed.len() as u32 >= n_safe, "{} of {n_safe} responses are left", listed.len());
    assert!(listed.len() as u32 <= n_safe + 1, "{} responses, {n_safe} of them safe", listed.len());
    for (i, info) in listed.iter().enumerate() {
        let tokens = log.tokens(info.record).expect("sound").expect("listed");
        assert_eq!(index_of(&tokens), i as u32);
        assert_eq!(tokens, response(i as u32));
    }
    log.verify().expect("sound");
}

fn rounds(n_rounds: u32) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut n_safe = 0;
    for i in 0..n_rounds {
        let n_before = n_safe;
        n_safe =
            round(folder.path(), (i * 7 % 40) as usize, Duration::from_micros(u64::from(i * 389 % 3000)));
        assert!(n_safe >= n_before, "{n_safe} after {n_before}");
        check(folder.path(), n_safe);
    }
}

#[test]
fn a_killed_process_loses_nothing_that_is_safe() {
    rounds(30);
}

#[test]
#[ignore = "a minute: 500 rounds"]
fn a_process_killed_500_times_loses_nothing_that_is_safe() {
    rounds(500);
}
