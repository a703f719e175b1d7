//! A process that is killed, or whose disk is full, at any point loses no note that it does not read again, and no deletion that it has begun. The
//! child process is this test program, started again.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use refrain_index::notes::{Metadata, NotesIndex, NotesWriter, document_path};

use crate::child_support::{self, Child};
use crate::notes_support::{self, found, options, update};

/// The environment variable with the child's folder.
const FOLDER: &str = "REFRAIN_TEST_NOTES";

/// A word that occurs in one note only.
fn secret(i: u32) -> String {
    format!("secret{i}word")
}

fn number(name: &str) -> u32 {
    name.trim_end_matches(".md").parse().expect("a number")
}

/// Writes, changes, removes and forgets notes until it is killed, and prints what it has begun and done. Not a test by
/// itself.
#[test]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let folder = Path::new(&folder);
    let notes = folder.join("notes");
    let mut out = std::io::stdout();
    let mut writer = NotesWriter::open(&folder.join("index"), options()).expect("opens");
    writer.add(&[&notes]).expect("exists");
    let first = fs::read_to_string(folder.join("next")).map_or(0, |next| next.parse().expect("a number"));
    writeln!(out, "\nopen").expect("a parent");
    for i in first.. {
        // Renamed, so that a kill leaves a whole number.
        fs::write(folder.join("new"), (i + 1).to_string()).expect("written");
        fs::rename(folder.join("new"), folder.join("next")).expect("renamed");
        let path = notes.join(format!("{i}.md"));
        fs::write(&path, format!("# Note {i}\n\nThe word is {}.", secret(i))).expect("written");
        writer.update_paths(&[&path]).expect("updates");
        writeln!(out, "\nsafe {i}").expect("a parent");
        match i % 4 {
            1 => {
                fs::write(&path, format!("The word of {i} has changed.")).expect("written");
                update(&mut writer);
            }
            2 => {
                writeln!(out, "\nforgetting {i}").expect("a parent");
                writer.forget(&[&path]).expect("forgets");
                writeln!(out, "\nforgotten {i}").expect("a parent");
            }
            3 => {
                fs::remove_file(&path).expect("removed");
                writer.maintain().expect("maintains");
            }
            _ => {}
        }
    }
}

/// Starts a child, and kills it some time after a number of lines. Returns the notes that were indexed, and those that
/// were forgotten.
fn round(folder: &Path, n_lines: usize, longer: Duration) -> (Vec<u32>, Vec<u32>) {
    let child = Child::start(child_support::command("notes_kill::child").env(FOLDER, folder));
    let (mut safe, mut forgotten) = (Vec::new(), Vec::new());
    child.kill(n_lines + 1, longer, |line| {
        match line.split_once(' ') {
            Some(("safe", i)) => safe.extend(i.parse::<u32>()),
            Some(("forgotten", i)) => forgotten.extend(i.parse::<u32>()),
            _ => return line == "open",
        }
        true
    });
    (safe, forgotten)
}

fn check(folder: &Path, safe: &[u32], forgotten: &[u32]) {
    let (index_folder, notes) = (folder.join("index"), folder.join("notes"));
    let exists = |i: u32| notes.join(format!("{i}.md")).exists();
    // A reader needs no writer after a crash.
    let index = NotesIndex::open(&index_folder).expect("a reader opens after a kill");
    for &i in safe.iter().filter(|&&i| i % 4 == 0) {
        assert_eq!(found(&index, &secret(i)), [format!("{i}.md")], "{i} was indexed");
    }
    // The next writer finishes every deletion that was begun before it returns.
    let mut writer = NotesWriter::open(&index_folder, options()).expect("opens after a kill");
    assert!(
        writer.notices().iter().all(|notice| !notice.to_string().contains("built again")),
        "{:?}",
        writer.notices()
    );
    for &i in forgotten {
        assert!(
            notes_support::files_with(&index_folder, secret(i).as_bytes()).is_empty(),
            "{i} was forgotten"
        );
    }
    update(&mut writer);
    drop(writer);
    let index = NotesIndex::open(&index_folder).expect("opens");
    for entry in fs::read_dir(&notes).expect("a folder") {
        let i = number(&entry.expect("an entry").file_name().to_string_lossy());
        let is_indexed = !found(&index, &secret(i)).is_empty();
        let text = fs::read_to_string(notes.join(format!("{i}.md"))).expect("text");
        assert!(!is_indexed || text.contains(&secret(i)), "{i} is in the index, and not in the note");
        assert!(
            is_indexed || i % 4 == 2 || !text.contains(&secret(i)),
            "{i} is in the note, and not in the index"
        );
    }
    for &i in safe.iter().filter(|&&i| i % 4 != 2 && !exists(i)) {
        assert!(notes_support::files_with(&index_folder, secret(i).as_bytes()).is_empty(), "{i} was removed");
    }
}

/// Rounds on one folder: later ones check what earlier ones left.
const ROUNDS_PER_FOLDER: u32 = 25;

fn rounds(n_rounds: u32) {
    let (mut n_safe, mut n_forgotten) = (0, 0);
    for first in (0..n_rounds).step_by(ROUNDS_PER_FOLDER as usize) {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("notes")).expect("a folder");
        let (mut safe, mut forgotten) = (Vec::new(), Vec::new());
        for i in first..n_rounds.min(first + ROUNDS_PER_FOLDER) {
            let longer = Duration::from_micros(u64::from(i) * 1709 % 20_000);
            let (more_safe, more_forgotten) = round(folder.path(), (i * 5 % 7) as usize, longer);
            safe.extend(more_safe);
            forgotten.extend(more_forgotten);
            check(folder.path(), &safe, &forgotten);
        }
        (n_safe, n_forgotten) = (n_safe + safe.len(), n_forgotten + forgotten.len());
    }
    assert!(n_safe > 0 && n_forgotten > 0, "the rounds reached deletions");
}

#[test]
fn a_killed_writer_loses_nothing_and_finishes_deletions() {
    rounds(50);
}

#[test]
#[ignore = "many minutes: 5,000 rounds"]
fn a_writer_killed_5000_times_loses_nothing_and_finishes_deletions() {
    rounds(5000);
}

/// The environment variable with the folder of a child that puts documents.
const DOCUMENTS: &str = "REFRAIN_TEST_NOTES_DOCUMENTS";

/// The documents of a transaction, beside the one of its own.
const SHARED: [&str; 3] = ["shared/a", "shared/b", "shared/c"];

/// Puts the same documents anew in each transaction, with its number, and one of its own, which the next transactions remove and
/// forget. Not a test by itself.
#[test]
fn child_with_documents() {
    let Some(folder) = std::env::var_os(DOCUMENTS) else { return };
    let mut out = std::io::stdout();
    let mut writer = NotesWriter::open(&Path::new(&folder).join("index"), options()).expect("opens");
    let first = writer.cursor().map_or(0, |cursor| cursor_number(cursor) + 1);
    writeln!(out, "\nopen").expect("a parent");
    for i in first.. {
        let mut transaction = writer.transaction();
        for id in SHARED {
            let text = format!("The generation is generation{i}word, in {id}.");
            transaction.put(id.as_bytes(), &text, &Metadata::default()).expect("put");
        }
        let text = format!("The word is {}.", secret(i));
        transaction.put(format!("own/{i}").as_bytes(), &text, &Metadata::default()).expect("put");
        if let Some(before) = i.checked_sub(2) {
            transaction.remove(format!("own/{before}").as_bytes()).expect("removed");
        }
        transaction.set_cursor(Some(i.to_string().as_bytes())).expect("short");
        transaction.commit().expect("commits");
        writeln!(out, "\nsafe {i}").expect("a parent");
        if i % 3 == 0 {
            writer.forget(&[document_path(format!("own/{i}").as_bytes()).expect("an id")]).expect("forgets");
            writeln!(out, "\nforgotten {i}").expect("a parent");
        }
    }
}

fn cursor_number(cursor: &[u8]) -> u32 {
    std::str::from_utf8(cursor).expect("a number").parse().expect("a number")
}

fn check_documents(folder: &Path, safe: &[u32], forgotten: &[u32]) {
    let index_folder = folder.join("index");
    let index = match NotesIndex::open(&index_folder) {
        // Killed before the first commit.
        Err(_) if safe.is_empty() => return,
        index => index.expect("a reader opens after a kill"),
    };
    let cursor = index.cursor().expect("reads").map(|cursor| cursor_number(&cursor));
    assert!(cursor >= safe.last().copied(), "{cursor:?} of {safe:?}");
    let Some(newest) = cursor else { return };
    // A transaction is there as a whole, and nothing of the ones before.
    for id in SHARED {
        let passages = index.passages_of(&document_path(id.as_bytes()).expect("an id")).expect("reads");
        let texts: Vec<&str> = passages.iter().map(|passage| passage.text.as_str()).collect();
        assert_eq!(texts, [format!("The generation is generation{newest}word, in {id}.")]);
    }
    for i in newest.saturating_sub(6)..=newest {
        let is_there = !index
            .passages_of(&document_path(format!("own/{i}").as_bytes()).expect("an id"))
            .expect("reads")
            .is_empty();
        if i + 2 <= newest || forgotten.contains(&i) {
            assert!(!is_there, "own/{i} of {newest}");
        } else if i % 3 != 0 {
            assert!(is_there, "own/{i} of {newest}");
        }
    }
    drop(index);
    drop(NotesWriter::open(&index_folder, options()).expect("opens after a kill"));
    let gone = (0..newest).filter(|i| i + 2 <= newest || forgotten.contains(i));
    for i in gone {
        assert!(notes_support::files_with(&index_folder, secret(i).as_bytes()).is_empty(), "{i} is gone");
    }
    if let Some(before) = newest.checked_sub(1) {
        let before = format!("generation{before}word");
        assert!(
            notes_support::files_with(&index_folder, before.as_bytes()).is_empty(),
            "{before} was replaced"
        );
    }
}

#[test]
fn a_killed_transaction_is_there_as_a_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let (mut safe, mut forgotten) = (Vec::new(), Vec::new());
    for i in 0..40_u32 {
        let command = child_support::command("notes_kill::child_with_documents");
        let child = Child::start({ command }.env(DOCUMENTS, folder.path()));
        let longer = Duration::from_micros(u64::from(i) * 1709 % 20_000);
        child.kill((i * 5 % 7) as usize + 1, longer, |line| {
            match line.split_once(' ') {
                Some(("safe", i)) => safe.extend(i.parse::<u32>()),
                Some(("forgotten", i)) => forgotten.extend(i.parse::<u32>()),
                _ => return line == "open",
            }
            true
        });
        check_documents(folder.path(), &safe, &forgotten);
    }
    assert!(safe.len() > 40 && !forgotten.is_empty(), "the rounds reached deletions");
}

/// The environment variable with the folder of a child whose files have a limit.
#[cfg(unix)]
const FULL: &str = "REFRAIN_TEST_NOTES_FULL";

/// Updates with a limit on the length of files, which the system reports as it reports a full disk. Not a test by itself.
#[cfg(unix)]
#[test]
fn child_on_a_full_disk() {
    let Some(folder) = std::env::var_os(FULL) else { return };
    let index = Path::new(&folder).join("index");
    let mut writer = NotesWriter::open(&index, options()).expect("opens");
    let failed = writer.update(&mut |_, _| std::ops::ControlFlow::Continue(()));
    assert!(failed.is_err(), "{failed:?}");
    assert!(matches!(writer.purge(), Err(refrain_index::NotesError::Stopped { .. })));
    println!("\nrefused");
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_an_error_and_loses_nothing() {
    let place = notes_support::Place::new();
    place.write("first.md", "The first note.");
    drop(place.indexed());
    for i in 0..30 {
        place.write(&format!("{i}.md"), format!("Note {i}.\n\n{}", format!("word{i} ").repeat(1500)));
    }
    // Each limit ends another file: catalogue, words, texts.
    for limit_kb in [8, 24, 64] {
        let script = format!("trap '' XFSZ; ulimit -f {}; exec \"$0\" \"$@\"", limit_kb * 2);
        let output = Command::new("sh")
            .args(["-c", &script])
            .arg(std::env::current_exe().expect("this program"))
            .args(["--exact", "notes_kill::child_on_a_full_disk", "--nocapture", "--test-threads=1"])
            .env(FULL, place.index().parent().expect("a folder"))
            .output()
            .expect("runs");
        assert!(String::from_utf8_lossy(&output.stdout).contains("refused"), "{limit_kb}: {output:?}");
        assert_eq!(found(&place.reader(), "first"), ["first.md"]);
    }
    let mut writer = place.writer();
    assert!(writer.notices().is_empty(), "{:?}", writer.notices());
    assert_eq!(update(&mut writer).n_added, 30);
    assert_eq!(found(&place.reader(), "word7"), ["7.md"; 10]);
}
