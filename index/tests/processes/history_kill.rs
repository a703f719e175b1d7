//! A process killed during appends loses no acknowledged response. The child process is this test program, started
//! again.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use refrain_index::HistoryLog;

use crate::child_support::{self, Child};
use crate::history_shared::{KEY, index_of, options, response};

/// The environment variable with the child's folder.
const FOLDER: &str = "REFRAIN_TEST_HISTORY";

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

/// Starts a child that appends, and kills it some time after the given number of acknowledged responses. Returns the
/// number of responses that were acknowledged before the kill.
fn round(folder: &Path, n_acknowledged: usize, longer: Duration) -> u32 {
    let child = Child::start(child_support::command("history_kill::child").env(FOLDER, folder));
    let mut n_safe = 0;
    let number = |word: &str| word.parse::<u32>().expect("a number");
    child.kill(n_acknowledged + 1, longer, |line| {
        match line.split(' ').collect::<Vec<_>>()[..] {
            ["safe", i, _] => n_safe = number(i) + 1,
            ["open", n] => n_safe = number(n),
            _ => return false,
        }
        true
    });
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
