//! The program `refrain-fleet`.

#![cfg(feature = "program")]

mod support;

use std::path::Path;

use refrain_index::{HistoryLog, HistoryOptions};
use refrain_program::testing::{Ran, arg, run};
use support::{KEY, drafted, open, options, response};

#[test]
fn a_host_drafts_from_what_another_has_published() {
    let folder = tempfile::tempdir().expect("a folder");
    let [first, second, store] = ["first", "second", "store"].map(|name| folder.path().join(name));
    let share = |verb: &str, host: &str, place: &Path, more: &[&str]| -> Ran {
        let args = [&[verb, arg(&store), "--host", host, "--history", arg(place)], more].concat();
        run(env!("CARGO_BIN_EXE_refrain-fleet"), &args, b"")
    };
    let kept = |place: &Path| open(place).list().len();
    open(&first).append("mail", &response(1)).expect("appends");
    open(&second).append("mail", &response(2)).expect("appends");
    assert!(share("publish", "first", &first, &[]).done().contains("published 1 segments"));
    assert!(share("pull", "second", &second, &[]).done().contains("pulled 1 segments"));
    let log = open(&second);
    assert_eq!(drafted(&log, 1), response(1).len());
    assert_eq!(log.list().len(), 1, "its own answers");
    drop(log);
    // What is forgotten leaves the store and the copies.
    open(&first).forget_namespace("mail").expect("forgets");
    assert!(share("publish", "first", &first, &[]).done().contains("1 removed"));
    assert!(share("pull", "second", &second, &[]).done().contains("1 removed"));
    assert_eq!(drafted(&open(&second), 1), 0);
    // A namespace of all hosts.
    share("publish", "second", &second, &[]).done();
    let removed = share("unpublish", "first", &second, &["--namespace", "mail"]).done();
    assert!(removed.contains("mail: 1 segments deleted"), "{removed}");
    share("pull", "second", &second, &[]).done();
    assert_eq!(kept(&second), 0, "forgotten here too");
}

#[test]
fn what_cannot_be_shared_is_refused_in_one_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let [file, plain, sealed] = ["file", "plain", "sealed"].map(|name| folder.path().join(name));
    let pull = |store: &Path, place: &Path, host: &str| -> Ran {
        let args = ["pull", arg(store), "--host", host, "--history", arg(place)];
        run(env!("CARGO_BIN_EXE_refrain-fleet"), &args, b"")
    };
    std::fs::write(&file, "mine").expect("writes");
    open(&plain).append("mail", &response(1)).expect("appends");
    assert!(pull(&file, &plain, "a").refused(3).contains("no store of objects"));
    for name in [String::new(), "a".repeat(65)] {
        assert!(pull(folder.path(), &plain, &name).refused(2).contains("--host"));
    }
    let encrypted =
        HistoryLog::open(&sealed, KEY, HistoryOptions { key: Some([7; 32]), ..options() }).expect("opens");
    encrypted.append("mail", &response(1)).expect("appends");
    drop(encrypted);
    assert!(pull(folder.path(), &sealed, "a").refused(3).contains("encrypted answers are not shared"));
}
