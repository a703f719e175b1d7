//! Links in folders of notes: followed inside what the user named, and nowhere else unless the user says so.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use refrain_index::notes::{NotesOptions, NotesWriter, SkipReason, UpdateReport};
use refrain_index::{ReadLimits, read_documents};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::notes_support::{Place, found, options, update};

/// A secret beside the notes.
fn secret(place: &Place) -> PathBuf {
    let out = place.notes().with_file_name("out");
    fs::create_dir_all(out.join("deep")).unwrap();
    fs::write(out.join("secret.md"), "The word is xyzzy.").unwrap();
    fs::write(out.join("deep/secret.md"), "The word is xyzzy, deep down.").unwrap();
    out
}

fn reason<'a>(report: &'a UpdateReport, name: &str) -> Option<&'a SkipReason> {
    report.skipped.iter().find(|skipped| skipped.path.ends_with(name)).map(|skipped| &skipped.reason)
}

fn is_absent(place: &Place) -> bool {
    found(&place.reader(), "xyzzy").is_empty() && place.files_with("xyzzy").is_empty()
}

#[test]
fn links_out_of_the_notes_are_skipped_with_the_reason() {
    let place = Place::new();
    let out = secret(&place);
    let notes = place.notes();
    place.write("a/good.md", "Good.");
    symlink(out.join("secret.md"), notes.join("leak.txt")).unwrap();
    symlink("../../out/secret.md", notes.join("a/relative.md")).unwrap();
    symlink("leak.txt", notes.join("chain.md")).unwrap();
    symlink(&out, notes.join("folder")).unwrap();
    symlink("folder/deep", notes.join("through")).unwrap();
    symlink("/", notes.join("all")).unwrap();
    symlink(out.join("secret.md"), notes.join("no-source")).unwrap();
    let mut writer = place.writer();
    let report = update(&mut writer);
    assert_eq!(report.n_added, 1);
    for name in ["leak.txt", "a/relative.md", "chain.md", "folder", "through", "all"] {
        assert_eq!(reason(&report, name), Some(&SkipReason::OutsideLink), "{name}");
    }
    assert_eq!(reason(&report, "no-source"), Some(&SkipReason::NotASource));
    assert!(SkipReason::OutsideLink.is_notable() && is_absent(&place));
    // Each of them alone, as a watch reports it.
    for name in ["leak.txt", "folder", "folder/secret.md", "through/secret.md", "all"] {
        let report = writer.update_paths(&[notes.join(name)]).unwrap();
        assert!(!report.is_change() && is_absent(&place), "{name}");
    }
    // The same rule for notes that are read without an index.
    let read = read_documents(&[&notes], &ReadLimits::default()).unwrap();
    assert_eq!(read.documents.len(), 1);
    let n_outside =
        read.skipped.iter().filter(|skipped| skipped.reason == refrain_index::SkipReason::OutsideLink);
    assert_eq!(n_outside.count(), 7);
    let all = ReadLimits { follows_links: true, ..ReadLimits::default() };
    fs::remove_file(notes.join("all")).unwrap();
    assert!(
        read_documents(&[&notes], &all).unwrap().documents.iter().any(|read| read.text.contains("xyzzy"))
    );
    // A named link leads to what the user means.
    let named =
        read_documents(&[notes.join("leak.txt"), notes.join("folder")], &ReadLimits::default()).unwrap();
    assert_eq!(named.documents.len(), 2);
}

#[test]
fn an_option_follows_links_and_is_remembered() {
    let place = Place::new();
    let out = secret(&place);
    symlink(&out, place.notes().join("folder")).unwrap();
    drop(place.writer());
    let open = |follows_links| {
        NotesWriter::open(&place.index(), NotesOptions { follows_links, ..options() }).unwrap()
    };
    assert_eq!(update(&mut open(None)).n_added, 0);
    assert_eq!(update(&mut open(Some(true))).n_added, 2);
    assert_eq!(found(&place.reader(), "xyzzy").len(), 2);
    assert_eq!(update(&mut open(None)).n_unchanged, 2);
    let report = update(&mut open(Some(false)));
    assert_eq!(report.n_removed, 2);
    assert_eq!(reason(&report, "folder"), Some(&SkipReason::OutsideLink));
    assert!(is_absent(&place));
    // What the index has read behind a link is forgotten by the name of the file.
    update(&mut open(Some(true)));
    let mut writer = open(Some(false));
    writer.forget(&[out.join("secret.md")]).unwrap();
    assert!(place.files_with("The word is xyzzy.").is_empty());
}

#[test]
fn links_inside_the_named_paths_are_followed() {
    let place = Place::new();
    let notes = place.notes();
    let other = notes.with_file_name("other");
    fs::create_dir_all(other.join(".hidden")).unwrap();
    fs::write(other.join("there.md"), "The tap drips.").unwrap();
    fs::write(other.join(".hidden/x.md"), "xyzzy").unwrap();
    place.write("sub/a.md", "Here.");
    symlink("../notes/sub/../../other/there.md", notes.join("b.md")).unwrap();
    symlink("b.md", notes.join("c.md")).unwrap();
    symlink(other.join(".hidden"), notes.join("shown")).unwrap();
    symlink(other.join(".hidden/x.md"), notes.join("shown.md")).unwrap();
    symlink("sub", notes.join("sub-again")).unwrap();
    symlink(".", notes.join("loop")).unwrap();
    symlink("itself", notes.join("itself")).unwrap();
    // Named by a link, as users name the folder of a synchronising program.
    let linked = notes.with_file_name("linked");
    symlink(&other, &linked).unwrap();
    let mut writer = place.writer();
    assert_eq!(reason(&update(&mut writer), "b.md"), Some(&SkipReason::OutsideLink));
    writer.add(&[&linked]).unwrap();
    let report = update(&mut writer);
    assert_eq!(found(&place.reader(), "tap"), ["there.md"]);
    assert_eq!(report.n_added, 1);
    for name in ["b.md", "c.md", "sub-again/a.md", "loop"] {
        assert_eq!(reason(&report, name), Some(&SkipReason::AlreadyRead), "{name}");
    }
    for name in ["shown", "shown.md"] {
        assert_eq!(reason(&report, name), Some(&SkipReason::Hidden), "{name}");
    }
    assert!(is_absent(&place));
}

#[test]
fn a_link_that_the_user_adds_is_followed() {
    for is_link_first in [false, true] {
        let place = Place::new();
        let out = secret(&place);
        let (file, folder) = (place.notes().join("leak.md"), place.notes().join("folder"));
        place.write("a.md", "Here.");
        symlink(out.join("secret.md"), &file).unwrap();
        symlink(out.join("deep"), &folder).unwrap();
        let mut writer = NotesWriter::open(&place.index(), options()).unwrap();
        let mut names = [place.notes(), file.clone(), folder.clone()];
        if is_link_first {
            names.reverse();
        }
        names.iter().for_each(|name| writer.add(&[name]).unwrap());
        let report = update(&mut writer);
        assert_eq!((report.n_added, report.skipped), (3, Vec::new()));
        assert_eq!(found(&place.reader(), "xyzzy").len(), 2);
        assert_eq!(update(&mut writer).n_unchanged, 3);
        assert_eq!(writer.update_paths(&[place.notes()]).unwrap().n_removed, 0);
        fs::write(out.join("deep/secret.md"), "Changed.").unwrap();
        assert_eq!(writer.update_paths(&[folder.join("secret.md")]).unwrap().n_changed, 1);
    }
}

#[test]
fn what_becomes_a_link_leaves_the_index() {
    let place = Place::new();
    let out = secret(&place);
    let (file, folder) = (place.write("file.md", "Tap one."), place.notes().join("folder"));
    place.write("folder/secret.md", "Tap two.");
    let mut writer = place.writer();
    update(&mut writer);
    assert_eq!(found(&place.reader(), "tap").len(), 2);
    let replace = |path: &Path, target: &Path| {
        match path.is_dir() {
            true => fs::remove_dir_all(path).unwrap(),
            false => fs::remove_file(path).unwrap(),
        }
        symlink(target, path).unwrap();
    };
    replace(&file, &out.join("secret.md"));
    let report = writer.update_paths(&[&file]).unwrap();
    assert_eq!((report.n_removed, reason(&report, "file.md")), (1, Some(&SkipReason::OutsideLink)));
    replace(&folder, &out);
    let report = update(&mut writer);
    assert_eq!((report.n_removed, reason(&report, "folder")), (1, Some(&SkipReason::OutsideLink)));
    assert!(is_absent(&place) && found(&place.reader(), "tap").is_empty());
}

#[test]
fn pipes_sockets_and_devices_do_not_block() {
    let place = Place::new();
    place.write("a.md", "Good.");
    let fifo = place.notes().join("fifo.md");
    mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(place.notes().join("socket.md")).unwrap();
    symlink("/dev/null", place.notes().join("device.md")).unwrap();
    symlink("fifo.md", place.notes().join("link.md")).unwrap();
    let report = update(&mut place.writer());
    assert_eq!(report.n_added, 1);
    for name in ["fifo.md", "socket.md", "link.md"] {
        assert_eq!(reason(&report, name), Some(&SkipReason::NotASource), "{name}");
    }
    assert_eq!(reason(&report, "device.md"), Some(&SkipReason::OutsideLink));
    assert_eq!(read_documents(&[place.notes()], &ReadLimits::default()).unwrap().documents.len(), 1);
}
