//! Processes that are killed at any point, and processes that use the folder at the same time: what is restored has the
//! computed bits, forgetting that was begun is finished, and nothing is left behind. The child processes are this test
//! program, started again.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use refrain::{Engine, TokenId};
use refrain_index::prefixes::{Label, PrefixOptions, PrefixStore};

use crate::child_support::{self, Child};
use crate::prefixes_support::{computed, engine, files, holds, plain, state, token_bytes};

/// The environment variables with the child's folder and its number.
const FOLDER: &str = "REFRAIN_TEST_PREFIXES";
const NUMBER: &str = "REFRAIN_TEST_PREFIXES_NUMBER";

/// Small, so that blocks are evicted, too.
fn options() -> PrefixOptions {
    PrefixOptions { max_bytes: 2_000_000, ..PrefixOptions::default() }
}

/// A beginning that all prompts share, and a part that is child `number`'s `i`-th.
fn prompt(number: u32, i: u32) -> Vec<TokenId> {
    let shared = (0..70).map(|j| TokenId(5 + j * j % 90));
    let own = [100 + i % 97, 200 + i / 97 % 97, 300 + i / 9409, 400 + number].map(TokenId);
    shared.chain(own).chain((0..i % 90).map(|j| TokenId(5 + (i + j) % 90))).collect()
}

/// The tokens that only this prompt has.
fn own(number: u32, i: u32) -> Vec<u8> {
    token_bytes(&prompt(number, i)[70..74])
}

fn label(i: u32) -> String {
    format!("note:{i}")
}

/// Keeps, restores and forgets until it is killed, and prints what it does. Not a test by itself.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let number: u32 = std::env::var(NUMBER).ok().and_then(|number| number.parse().ok()).expect("a number");
    let engine = engine(1);
    let mut out = std::io::stdout();
    let first = number / 8 * 1000;
    loop {
        let store = PrefixStore::open(Path::new(&folder), options()).expect("opens");
        for i in first..first + 1000 {
            let tokens = prompt(number % 8, i);
            let mut session = engine.session(plain()).expect("a session");
            session.append_tokens(&tokens).expect("fits");
            store.restore(&mut session, "a").expect("restores");
            session.prefill(&refrain::CancelToken::new(), |_, _| {}).expect("computes");
            let labels = [Label { tokens: 70..74, name: label(i) }];
            store.keep(&session, "a", &labels, usize::MAX).expect("keeps");
            writeln!(out, "\nkept {i}").expect("a parent");
            if i % 3 == 1 {
                writeln!(out, "\nforgetting {}", i - 1).expect("a parent");
                store.forget("a", &label(i - 1)).expect("forgets");
                writeln!(out, "\nforgotten {}", i - 1).expect("a parent");
            }
        }
    }
}

fn start(folder: &Path, number: u32) -> Child {
    let mut command = child_support::command("prefixes_kill::child");
    Child::start(command.env(FOLDER, folder).env(NUMBER, number.to_string()))
}

/// Kills a child some time after a number of lines. Returns what it has forgotten.
fn kill(child: Child, n_lines: usize, longer: Duration) -> Vec<u32> {
    let mut forgotten = Vec::new();
    child.kill(n_lines, longer, |line| match line.split_once(' ') {
        Some((word @ ("kept" | "forgetting" | "forgotten"), i)) => {
            let i: u32 = i.parse().expect("a number");
            forgotten.extend((word == "forgotten").then_some(i));
            true
        }
        _ => false,
    });
    forgotten
}

/// The folder after all processes have ended.
fn check(engine: &Engine, folder: &Path, forgotten: &[(u32, u32)], case: &str) {
    let store = PrefixStore::open(folder, options()).expect("opens after a kill");
    let all = files(folder);
    let is_leftover = |name: &str| name.contains("partial") || name.starts_with("forget");
    let mut locks = 0;
    for path in all.keys() {
        let name = path.file_name().and_then(|name| name.to_str()).expect("a name");
        assert!(!is_leftover(name), "{case}: {name}");
        locks += usize::from(name.ends_with(".lock"));
    }
    assert_eq!(locks, 2, "{case}: of the store and of changes");
    let status = store.verify().expect("reads");
    assert!(status.left_aside.is_empty(), "{case}: {status:?}");
    assert!(status.bytes <= 2_000_000, "{case}: {status:?}");
    for &(number, i) in forgotten {
        let own = own(number, i);
        assert!(
            !all.iter().any(|(_, bytes)| bytes.windows(16).any(|window| window == own)),
            "{case}: {i} is there"
        );
    }
    let tokens = prompt(9, 500);
    let mut session = engine.session(plain()).expect("a session");
    session.append_tokens(&tokens).expect("fits");
    let n = store.restore(&mut session, "a").expect("restores");
    assert!(n == 0 || state(&session) == state(&computed(engine, &tokens[..n + 1])), "{case}: other bits");
}

/// Each round kills two processes on one folder.
fn rounds(n_rounds: u32) {
    let (engine, folder) = (engine(1), tempfile::tempdir().expect("a folder"));
    let mut n_restored = 0;
    for round in 0..n_rounds {
        let children = [0, 1].map(|number| start(folder.path(), number + 8 * (round % 9)));
        let mut forgotten = Vec::new();
        for (number, child) in (0..).zip(children) {
            let longer = Duration::from_micros(u64::from((round * 389 + number * 211) % 4000));
            let done = kill(child, (round * 7 % 23 + 1) as usize, longer);
            forgotten.extend(done.into_iter().map(|i| (number, i)));
        }
        // Prompts that an earlier round kept are the same ones.
        check(&engine, folder.path(), &forgotten, &format!("round {round}"));
        n_restored += usize::from(holds(folder.path(), &token_bytes(&prompt(0, 0)[..16])));
    }
    assert!(n_restored > 0, "nothing was ever kept");
}

#[test]
fn killed_processes_leave_a_whole_store() {
    rounds(100);
}

#[test]
#[ignore = "minutes: 2,500 rounds of two processes"]
fn processes_killed_5000_times_leave_a_whole_store() {
    rounds(2500);
}

/// Several processes keep, restore, evict and forget at the same time: none fails, and every restored bit is right.
#[test]
fn processes_share_a_folder_without_errors() {
    let (engine, folder) = (engine(1), tempfile::tempdir().expect("a folder"));
    let children = [0, 1, 2].map(|number| start(folder.path(), number));
    let store = PrefixStore::open(folder.path(), options()).expect("opens");
    let mut n_found = 0;
    for i in 0..60 {
        let tokens = prompt(i % 3, i);
        let mut session = engine.session(plain()).expect("a session");
        session.append_tokens(&tokens).expect("fits");
        let n = store.restore(&mut session, "a").expect("restores");
        n_found += usize::from(n > 0);
        assert!(n == 0 || state(&session) == state(&computed(&engine, &tokens[..n + 1])), "{i}: other bits");
        store.keep(&computed(&engine, &tokens), "a", &[], usize::MAX).expect("keeps");
        if i % 20 == 19 {
            store.forget_namespace("a").expect("forgets");
        }
    }
    assert!(n_found > 10, "{n_found}");
    for mut child in children {
        assert!(child.process.try_wait().expect("runs").is_none(), "a process has failed");
        child.kill(0, Duration::ZERO, |_| true);
    }
    drop(store);
    check(&engine, folder.path(), &[], "shared");
}
