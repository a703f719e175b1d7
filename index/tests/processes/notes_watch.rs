//! Watching: what happens to files and folders shows in the index, without a call.

use std::fs;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use refrain::CancelToken;
use refrain_index::notes::{NotesIndex, NotesWriter, Request, SkipReason, UpdateReport, hand_in};

use crate::notes_support::{Place, found, options};

/// A thread that watches, and what it reports.
struct Watched<'scope> {
    cancel: CancelToken,
    reports: Receiver<UpdateReport>,
    thread: Option<std::thread::ScopedJoinHandle<'scope, ()>>,
}

impl Drop for Watched<'_> {
    /// Also if an assertion fails: the scope waits for the thread.
    fn drop(&mut self) {
        self.cancel.cancel();
        let ended = self.thread.take().expect("dropped once").join();
        assert!(ended.is_ok() || std::thread::panicking(), "watching has failed");
    }
}

/// Returns when the first update is done.
fn watch<'scope>(scope: &'scope std::thread::Scope<'scope, '_>, mut writer: NotesWriter) -> Watched<'scope> {
    let (sender, reports) = channel();
    let cancel = CancelToken::new();
    let cancelled = cancel.clone();
    let thread = scope.spawn(move || {
        let mut on_report = |_: &mut NotesWriter, report: &UpdateReport| {
            drop(sender.send(report.clone()));
            Ok(())
        };
        writer.watch(&cancelled, &mut on_report).expect("watches");
    });
    reports.recv_timeout(WAIT_MAX).expect("a first report");
    Watched { cancel, reports, thread: Some(thread) }
}

/// Longer than any machine takes.
const WAIT_MAX: Duration = Duration::from_secs(60);

fn wait(what: &str, mut is_met: impl FnMut() -> bool) {
    let since = Instant::now();
    while !is_met() {
        assert!(since.elapsed() < WAIT_MAX, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a search finds exactly these files.
fn wait_found(index: &NotesIndex, text: &str, names: &[&str]) {
    wait(&format!("{text}: {names:?}, found {:?}", found(index, text)), || {
        index.refresh().expect("reads");
        found(index, text) == names
    });
}

fn writer(place: &Place, root: &Path) -> NotesWriter {
    let mut writer = NotesWriter::open(&place.index(), options()).expect("opens");
    writer.add(&[root]).expect("exists");
    writer
}

#[cfg(unix)]
#[test]
fn links_out_of_the_notes_are_reported_and_not_read() {
    let place = Place::new();
    place.write("a.md", "The tap drips.");
    let out = place.notes().with_file_name("out");
    fs::create_dir(&out).unwrap();
    fs::write(out.join("secret.md"), "The word is xyzzy.").unwrap();
    std::thread::scope(|scope| {
        let watched = watch(scope, place.writer());
        std::os::unix::fs::symlink(&out, place.notes().join("folder")).unwrap();
        std::os::unix::fs::symlink(out.join("secret.md"), place.notes().join("leak.md")).unwrap();
        let mut named = std::collections::BTreeSet::new();
        while named.len() < 2 {
            let report = watched.reports.recv_timeout(WAIT_MAX).expect("a report");
            let outside = report.skipped.iter().filter(|skipped| skipped.reason == SkipReason::OutsideLink);
            named.extend(outside.map(|skipped| skipped.path.clone()));
        }
        // What happens behind the link is not watched; a change here shows that all reports have come.
        fs::write(out.join("secret.md"), "The word is still xyzzy.").unwrap();
        place.write("b.md", "The roof leaks.");
        let index = place.reader();
        wait_found(&index, "roof", &["b.md"]);
        assert_eq!(found(&index, "xyzzy"), [""; 0]);
    });
}

#[test]
fn changes_of_files_and_folders_are_followed() {
    let place = Place::new();
    let note = place.write("a.md", "The tap drips.");
    std::thread::scope(|scope| {
        let _watched = watch(scope, place.writer());
        let index = place.reader();
        assert_eq!(found(&index, "tap"), ["a.md"]);

        place.write("b.md", "The roof leaks.");
        wait_found(&index, "roof", &["b.md"]);
        place.write("a.md", "The door creaks.");
        wait_found(&index, "door", &["a.md"]);
        fs::rename(&note, place.notes().join("c.md")).unwrap();
        wait_found(&index, "door", &["c.md"]);
        fs::remove_file(place.notes().join("b.md")).unwrap();
        wait_found(&index, "roof", &[]);

        // A new folder, what is written into it later, and its new name.
        place.write("new/deep/d.md", "The window is open.");
        wait_found(&index, "window", &["d.md"]);
        place.write("new/deep/e.md", "The stove is cold.");
        wait_found(&index, "stove", &["e.md"]);
        fs::rename(place.notes().join("new"), place.notes().join("renamed")).unwrap();
        place.write("renamed/deep/f.md", "The cellar is dry.");
        wait_found(&index, "cellar", &["f.md"]);
        wait("the renamed folder", || {
            index.refresh().unwrap();
            let passages = index.passages_of(&place.notes()).unwrap();
            passages.len() == 4
                && !passages.iter().any(|passage| passage.path.starts_with(place.notes().join("new")))
        });
        place.write("renamed/deep/f.md", "The cellar is wet.");
        wait_found(&index, "wet", &["f.md"]);
        fs::remove_dir_all(place.notes().join("renamed")).unwrap();
        wait_found(&index, "window stove cellar", &[]);
    });
    assert!(place.files_with("cellar").is_empty(), "the end of watching purges");
}

#[test]
fn a_root_is_followed_when_it_is_replaced_and_when_it_comes_back() {
    let place = Place::new();
    let root = place.write("root.md", "The tap drips.");
    place.write("beside.md", "Not a root.");
    let folder = place.notes().join("folder");
    place.write("folder/a.md", "The roof leaks.");
    let mut writer = writer(&place, &root);
    writer.add(&[&folder]).unwrap();
    std::thread::scope(|scope| {
        let watched = watch(scope, writer);
        let index = place.reader();
        // As editors save: a new file takes the name, more than once.
        for word in ["first", "second", "third"] {
            fs::write(place.notes().join("root.md~"), format!("The {word} text.")).unwrap();
            fs::rename(place.notes().join("root.md~"), &root).unwrap();
            wait_found(&index, word, &["root.md"]);
        }
        fs::remove_file(&root).unwrap();
        wait_found(&index, "third", &[]);
        fs::write(&root, "The file is back.").unwrap();
        wait_found(&index, "back", &["root.md"]);

        fs::remove_dir_all(&folder).unwrap();
        wait("a report of the missing folder", || {
            watched
                .reports
                .try_iter()
                .any(|report| report.skipped.iter().any(|skipped| skipped.path == folder))
        });
        place.write("folder/b.md", "The cellar is dry.");
        wait_found(&index, "cellar", &["b.md"]);
        place.write("folder/b.md", "The cellar is wet.");
        wait_found(&index, "wet", &["b.md"]);
        place.write("beside.md", "Still not a root.");
        assert_eq!(found(&index, "still"), [""; 0]);
    });
}

#[test]
fn requests_of_other_processes_are_carried_out() {
    let place = Place::new();
    let secret = place.write("a.md", "The word is xyzzy.");
    let other = place.notes().with_file_name("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("b.md"), "The roof leaks.").unwrap();
    std::thread::scope(|scope| {
        let watched = watch(scope, place.writer());
        let index = place.reader();
        hand_in(&place.index(), None, &Request::Forget(vec![secret])).unwrap();
        wait("the forgotten text", || place.files_with("xyzzy").is_empty());
        hand_in(&place.index(), None, &Request::Add(vec![other.clone()])).unwrap();
        wait_found(&index, "roof", &["b.md"]);
        fs::write(other.join("c.md"), "The new root is watched.").unwrap();
        wait_found(&index, "watched", &["c.md"]);
        fs::write(place.index().join(".inbox/9.request"), "damaged").unwrap();
        wait("a failed request", || watched.reports.try_iter().any(|report| !report.failed.is_empty()));
    });
}

/// The environment variable with the folder of the child that may not read a folder.
#[cfg(unix)]
const FOLDER: &str = "REFRAIN_TEST_WATCH";

/// Watches beside a folder without permission. Not a test by itself.
#[cfg(unix)]
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let notes = folder.join("notes");
    assert!(fs::read_dir(notes.join("locked")).is_err(), "the test needs a folder that it may not read");
    let mut writer = NotesWriter::open(&folder.join("index"), options()).expect("opens");
    writer.add(&[&notes]).expect("exists");
    std::thread::scope(|scope| {
        let _watched = watch(scope, writer);
        let index = NotesIndex::open(&folder.join("index")).expect("opens");
        fs::write(notes.join("zebra/a.md"), "The tap drips.").expect("written");
        wait_found(&index, "tap", &["a.md"]);
    });
    println!("\nfollowed");
}

#[cfg(unix)]
#[test]
fn a_folder_without_permission_is_left_out() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let folder = tempfile::tempdir().unwrap();
    let notes = folder.path().join("notes");
    let set_mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for name in ["locked", "zebra"] {
        fs::create_dir_all(notes.join(name)).unwrap();
        set_mode(&notes.join(name), 0o777);
    }
    set_mode(folder.path(), 0o777);
    set_mode(&notes.join("locked"), 0);
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child
        .args(["--exact", "notes_watch::child", "--nocapture", "--test-threads=1"])
        .env(FOLDER, folder.path());
    if fs::read_dir(notes.join("locked")).is_ok() {
        // The superuser may read everything, so the child is somebody else.
        child.uid(65_534).gid(65_534);
    }
    let output = child.output().unwrap();
    set_mode(&notes.join("locked"), 0o777);
    assert!(String::from_utf8_lossy(&output.stdout).contains("followed"), "{output:?}");
}
