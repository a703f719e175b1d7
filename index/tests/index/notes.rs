//! Stored notes: formats, updates, searches, deletion, damage and several writers.

use std::collections::BTreeSet;
use std::error::Error;
use std::fs::{self, File};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use refrain::{Engine, EngineOptions, SpecialTokens, TokenId};
use refrain_index::notes::{
    Embedder, LABEL_BYTES_MAX, Language, NotesError, NotesIndex, NotesOptions, NotesWriter, Notice, Request,
    Search, SkipReason, SourceKind, hand_in, parse_date,
};

use crate::notes_support::{self, Place, found, names, options, search, update};

const CALENDAR: &str = "BEGIN:VCALENDAR\nBEGIN:VEVENT\nSUMMARY:Dentist\nDTSTART:20240501T123000Z\n\
    LOCATION:Kirkegata 7\nCATEGORIES:Health\nEND:VEVENT\nEND:VCALENDAR\n";

fn everything() -> Place {
    let place = Place::new();
    place.write(
        "kitchen.md",
        "# Kitchen\n\nThe tap drips. Ada Voss repairs it. #repair\n\n## Paint\n\nBlue paint.",
    );
    place.write("mail/a.eml", "From: Bo <bo@example.org>\nSubject: Paint\nDate: Wed, 1 May 2024 12:00:00 +0000\n\nThe paint has arrived.\n");
    place.write(
        "mail/b.mbox",
        "From x\nSubject: Boat\n\nThe boat leaks.\n\nFrom y\nSubject: Sail\n\nThe sail is torn.\n",
    );
    place.write("chat.jsonl", "{\"role\":\"user\",\"content\":\"Where is the boat?\"}\n");
    place.write("a.screen", "[1] button Save paint\n");
    place.write("b.xml", "<h><node class=\"Button\" text=\"Order a boat\"/></h>");
    place.write("c.ics", CALENDAR);
    place
}

/// A wrong path costs the user no file.
#[test]
fn a_folder_with_other_files_is_refused_and_left_as_it_is() {
    let place = Place::new();
    for (folder, file) in [("a", "words/letter.txt"), ("b", "catalogue.txt"), ("c", "film.partial")] {
        let folder = place.notes().join(folder);
        let file = folder.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, "mine").unwrap();
        let error = NotesWriter::open(&folder, options()).map(drop).unwrap_err();
        assert!(matches!(error, NotesError::Foreign { .. }), "{error}");
        assert!(NotesIndex::open(&folder).is_err());
        assert_eq!(fs::read(&file).unwrap(), b"mine");
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "nothing was written");
    }
}

/// Every passage has a copy of its title.
#[test]
fn long_titles_are_cut() {
    let place = Place::new();
    place.write(
        "a.md",
        format!("# {}\n\nThe tap drips.\n\n## é{}\n\nBlue paint.", "é".repeat(100_000), "b".repeat(1000)),
    );
    let index = place.indexed();
    for hit in search(&index, "tap paint") {
        assert!(hit.passage.title.len() <= 600, "{}", hit.passage.title.len());
    }
}

#[test]
fn every_format_is_found_and_filtered() {
    let place = everything();
    let index = place.indexed();
    assert_eq!(index.status().unwrap().n_files, 7);
    assert_eq!(found(&index, "Who is repairing the taps?"), ["kitchen.md"]);
    assert_eq!(found(&index, "torn sails"), ["b.mbox"]);
    assert_eq!(found(&index, "dentists"), ["c.ics"]);
    let boats: BTreeSet<_> = found(&index, "boat").into_iter().collect();
    assert_eq!(boats, ["b.mbox", "b.xml", "chat.jsonl"].map(str::to_owned).into());
    let filtered = |change: &dyn Fn(&mut Search<'_>)| {
        let mut search = Search::new("paint boat dentist", 10);
        change(&mut search);
        let mut names = names(&index.search(&search).unwrap());
        names.sort();
        names
    };
    assert_eq!(
        filtered(&|search| search.filter.kinds = vec![SourceKind::Chat, SourceKind::Event]),
        ["c.ics", "chat.jsonl"]
    );
    assert_eq!(
        filtered(&|search| search.filter.folders = vec![place.notes().join("mail")]),
        ["a.eml", "b.mbox"]
    );
    assert_eq!(filtered(&|search| search.filter.folders = vec![place.notes().join("mail/a.eml")]), ["a.eml"]);
    assert_eq!(filtered(&|search| search.filter.tags = vec!["#Health".to_owned()]), ["c.ics"]);
    assert_eq!(
        filtered(
            &|search| (search.filter.from, search.filter.until) = (Some(1_714_564_000), Some(1_714_567_000))
        ),
        ["a.eml", "c.ics"]
    );
    let paint = &search(&index, "blue paint")[0];
    assert_eq!(paint.passage.title, "Kitchen: Paint");
    let text = fs::read(&paint.passage.path).unwrap();
    assert_eq!(&text[paint.passage.place.start as usize..paint.passage.place.end as usize], b"Blue paint.");
    assert!(paint.passage.is_verbatim);
    assert_eq!(&paint.snippet.text[paint.snippet.matched[0].clone()], "Blue");
}

#[test]
fn words_of_many_languages_are_found() {
    let place = Place::new();
    place.write("de.md", "Die Häuser am Fluss wurden im vergangenen Jahr von der Gemeinde verkauft.");
    place
        .write("fr.md", "Les maisons au bord de la rivière ont été vendues par la commune l'année dernière.");
    place.write("ja.md", "東京都へ行く電車は八時に出発します。");
    place.write("zh.md", "我们明天在北京开会，讨论新的预算。");
    place.write("ko.md", "회의는 내일 아침 아홉 시에 시작합니다.");
    place.write("el.md", "Η συνάντηση θα γίνει αύριο το πρωί στο γραφείο.");
    let index = place.indexed();
    for (request, name) in [
        ("Haus", "de.md"),
        ("haeuser hauser", "de.md"),
        ("maison", "fr.md"),
        ("riviere", "fr.md"),
        ("東京", "ja.md"),
        ("電", "ja.md"),
        ("北京开会", "zh.md"),
        ("算", "zh.md"),
        ("회의", "ko.md"),
        ("ΣΥΝΑΝΤΗΣΗ", "el.md"),
    ] {
        assert_eq!(found(&index, request), [name], "{request}");
    }
}

/// Later commands read as the first one did.
#[test]
fn settings_are_stored_with_the_index() {
    let place = Place::new();
    place.write("a.md", "Die Häuser am Fluss wurden im vergangenen Jahr von der Gemeinde verkauft.");
    place.write("long.md", "word ".repeat(100));
    let chosen =
        NotesOptions { languages: Some(vec![Language::English]), file_bytes_max: Some(200), ..options() };
    let mut writer = NotesWriter::open(&place.index(), chosen).unwrap();
    writer.add(&[place.notes()]).unwrap();
    writer.set_label("model", Some("a.gguf")).unwrap();
    let too_long = "x".repeat(LABEL_BYTES_MAX + 1);
    assert!(matches!(writer.set_label("model", Some(&too_long)), Err(NotesError::OutOfRange { .. })));
    assert_eq!(update(&mut writer).n_added, 1);
    drop(writer);
    let language = || search(&place.reader(), "Gemeinde")[0].passage.language;
    assert_eq!(language(), Some(Language::English));

    let mut writer = place.writer();
    assert_eq!(writer.label("model"), Some("a.gguf"));
    assert_eq!(place.reader().label("model").unwrap().as_deref(), Some("a.gguf"));
    let report = update(&mut writer);
    assert_eq!((report.n_unchanged, report.n_changed), (1, 0));
    assert!(
        report.skipped.iter().any(|skipped| matches!(skipped.reason, SkipReason::TooLong { limit: 200, .. }))
    );
    drop(writer);

    // Other languages: every passage is made again, also if the file is the same.
    let other = NotesOptions { languages: Some(Vec::new()), file_bytes_max: Some(1000), ..options() };
    let mut writer = NotesWriter::open(&place.index(), other).unwrap();
    writer.set_label("model", None).unwrap();
    let report = update(&mut writer);
    assert_eq!((report.n_changed, report.n_added), (1, 1));
    assert_eq!((language(), writer.label("model")), (Some(Language::German), None));
}

#[test]
fn messages_have_their_own_dates() {
    let place = Place::new();
    let message = |day: u32, text: &str| {
        format!(
            "{{\"from\":\"Ada\",\"text\":\"{text} {}\",\"date\":\"2024-05-{day:02}\"}}\n",
            "word ".repeat(70)
        )
    };
    place.write("a.jsonl", [message(1, "tap"), message(9, "roof")].concat());
    let index = place.indexed();
    let mut request = Search::new("tap roof", 9);
    request.filter.from = parse_date("2024-05-05");
    let hits = index.search(&request).unwrap();
    assert_eq!(hits.len(), 1);
    assert!(hits[0].passage.text.contains("roof"));
    assert_eq!(Some(hits[0].passage.date), parse_date("2024-05-09"));
}

#[test]
fn a_file_is_forgotten_under_all_its_names() {
    let place = Place::new();
    let secret = place.write("a/secret.md", "The word is xyzzy.");
    place.write("a/other.md", "Other words.");
    let linked = place.notes().join("b/linked.md");
    fs::create_dir(place.notes().join("b")).unwrap();
    fs::hard_link(&secret, &linked).unwrap();
    let check = |forgotten: &Path| {
        let mut writer = place.writer();
        update(&mut writer);
        assert_eq!(place.files_with("xyzzy").len(), 1);
        assert_eq!(writer.forget(&[forgotten]).unwrap().unknown, [""; 0].map(std::path::PathBuf::from));
        assert!(place.files_with("xyzzy").is_empty(), "{}", forgotten.display());
        update(&mut writer);
        assert_eq!(found(&place.reader(), "xyzzy"), [""; 0], "{}", forgotten.display());
        drop(writer);
        fs::remove_dir_all(place.index()).unwrap();
    };
    for forgotten in [&secret, &linked, &place.notes().join("b")] {
        check(forgotten);
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        let outside = place.notes().with_file_name("outside");
        symlink(&secret, place.notes().join("0.md")).unwrap();
        symlink(place.notes().join("a"), place.notes().join("0")).unwrap();
        symlink(place.notes(), &outside).unwrap();
        for forgotten in ["notes/0.md", "notes/0", "outside/a/secret.md", "outside/a", "outside"] {
            check(&place.notes().with_file_name(forgotten));
        }
    }
}

#[cfg(unix)]
#[test]
fn a_renamed_file_is_forgotten_under_the_name_that_the_index_has() {
    let place = Place::new();
    let before = place.write("a/secret.md", "The word is xyzzy.");
    place.write("a/other.md", "Other words.");
    let mut writer = place.writer();
    update(&mut writer);
    let after = place.notes().join("a/renamed.md");
    fs::rename(&before, &after).unwrap();
    let mut names = place.reader().names_of(&[&after]).unwrap();
    names.sort();
    assert_eq!(names, [after.clone(), before]);
    writer.forget(&[&after]).unwrap();
    assert!(place.files_with("xyzzy").is_empty());
    assert_eq!(found(&place.reader(), "other words").len(), 1);
    // A later file of the earlier name is another note.
    place.write("a/secret.md", "The word is plugh.");
    update(&mut writer);
    assert_eq!(found(&place.reader(), "plugh").len(), 1);
}

#[cfg(unix)]
#[test]
fn the_inode_alone_makes_no_earlier_name() {
    let place = Place::new();
    let gone = place.write("disk/note.md", "The word is xyzzy.");
    let mut writer = place.writer();
    update(&mut writer);
    // The number is used for another file now, as after the file was removed or on another disk.
    let other = place.notes().join("other.md");
    fs::rename(&gone, &other).unwrap();
    fs::write(&other, "Something else, and longer.").unwrap();
    assert_eq!(place.reader().names_of(&[&other]).unwrap(), std::slice::from_ref(&other));
    writer.forget(&[&other]).unwrap();
    assert_eq!(found(&place.reader(), "xyzzy").len(), 1);
    place.write("disk/note.md", "The word is xyzzy.");
    update(&mut writer);
    assert_eq!(found(&place.reader(), "xyzzy").len(), 1);
}

#[test]
fn a_deletion_that_waits_is_named_until_it_is_done() {
    let place = Place::new();
    let secret = place.write("secret.md", "The word is xyzzy.");
    let mut writer = place.writer();
    update(&mut writer);
    let reader = place.reader();
    assert_eq!(reader.waiting_to_be_forgotten().unwrap(), [""; 0].map(std::path::PathBuf::from));
    hand_in(&place.index(), None, &Request::Update).unwrap();
    hand_in(&place.index(), None, &Request::Forget(vec![secret.clone()])).unwrap();
    assert_eq!(reader.waiting_to_be_forgotten().unwrap(), [secret]);
    writer.maintain().unwrap();
    assert_eq!(reader.waiting_to_be_forgotten().unwrap(), [""; 0].map(std::path::PathBuf::from));
}

#[test]
fn forgetting_an_unknown_path_tells_and_is_remembered() {
    let place = everything();
    let mut writer = place.writer();
    update(&mut writer);
    let (unknown, known) = (place.notes().join("later.md"), place.notes().join("mail"));
    let report = writer.forget(&[&unknown, &known]).unwrap();
    assert_eq!((report.unknown, report.n_removed), (vec![unknown.clone()], 2));
    fs::write(&unknown, "Never indexed.").unwrap();
    assert_eq!(update(&mut writer).n_added, 0);
    writer.add(&[&unknown]).unwrap();
    assert_eq!(update(&mut writer).n_added, 1);
}

#[test]
fn a_path_below_a_forgotten_or_hidden_folder_is_added_alone() {
    let place = Place::new();
    place.write("a/secret.md", "The word is xyzzy.");
    let wanted = place.write("a/b/wanted.md", "The tap drips.");
    place.write(".hidden/c/kept.md", "The roof leaks.");
    place.write(".hidden/d.md", "Not this.");
    let mut writer = NotesWriter::open(&place.index(), options()).unwrap();
    writer.add(&[place.notes().join(".hidden/c")]).unwrap();
    writer.add(&[place.notes()]).unwrap();
    assert_eq!(update(&mut writer).n_added, 3);
    writer.forget(&[place.notes().join("a")]).unwrap();
    writer.add(&[wanted.parent().unwrap()]).unwrap();
    for _ in 0..2 {
        update(&mut writer);
        // A report about the folder above.
        writer.update_paths(&[place.notes()]).unwrap();
        let index = place.reader();
        assert_eq!(
            (found(&index, "tap"), found(&index, "roof")),
            (vec!["wanted.md".into()], vec!["kept.md".into()])
        );
        assert_eq!(found(&index, "xyzzy this"), [""; 0]);
    }
    fs::write(&wanted, "The tap shines.").unwrap();
    assert_eq!(writer.update_paths(&[&wanted]).unwrap().n_changed, 1);
}

#[test]
fn files_behind_the_limit_are_removed_when_they_are_gone() {
    let place = Place::new();
    let paths: Vec<_> = (0..9).map(|i| place.write(&format!("{i}.md"), format!("Note {i}."))).collect();
    let mut writer = place.writer();
    assert_eq!(update(&mut writer).n_added, 9);
    drop(writer);
    let mut writer =
        NotesWriter::open(&place.index(), NotesOptions { n_entries_max: 4, ..options() }).unwrap();
    fs::remove_file(&paths[1]).unwrap();
    fs::remove_file(&paths[8]).unwrap();
    let report = update(&mut writer);
    assert_eq!(report.n_removed, 2, "{report:?}");
    assert!(report.skipped.iter().any(|skipped| skipped.reason == SkipReason::TooMany { limit: 4 }));
    assert_eq!(place.reader().n_passages(), 7);
}

#[test]
fn a_root_that_is_a_file_and_gone_is_removed() {
    let place = Place::new();
    let root = place.write("a.md", "The tap drips.");
    let other = place.write("b.md", "Keeps the folder from being an empty place of a disk.");
    let mut writer = NotesWriter::open(&place.index(), options()).unwrap();
    writer.add(&[&root]).unwrap();
    update(&mut writer);
    fs::remove_file(&root).unwrap();
    assert_eq!(update(&mut writer).n_removed, 1);
    assert_eq!(place.reader().n_passages(), 0);
    fs::write(&root, "The tap is back.").unwrap();
    assert_eq!(update(&mut writer).n_added, 1);
    fs::remove_file(&root).unwrap();
    fs::remove_file(&other).unwrap();
    assert_eq!(update(&mut writer).n_removed, 0, "its disk may be away");
}

#[test]
fn updates_follow_the_files() {
    let place = Place::new();
    let note = place.write("a.md", "The tap drips.");
    place.write("b.md", "The roof leaks.");
    let mut writer = place.writer();
    let report = update(&mut writer);
    assert_eq!((report.n_added, report.n_passages, report.n_unchanged), (2, 2, 0));
    let reader = place.reader();

    let report = update(&mut writer);
    assert_eq!((report.is_change(), report.n_unchanged), (false, 2));

    place.write("a.md", "The tap is repaired.");
    fs::rename(place.notes().join("b.md"), place.notes().join("c.md")).unwrap();
    let report = update(&mut writer);
    assert_eq!((report.n_added, report.n_changed, report.n_removed), (1, 1, 1));
    assert_eq!(found(&reader, "roof"), ["b.md"], "a reader keeps its state");
    reader.refresh().unwrap();
    assert_eq!(found(&reader, "roof"), ["c.md"]);
    assert_eq!(found(&reader, "drips"), [""; 0]);

    // The same length and the same time of modification: noticed by the time of change, or because the entry is young.
    let modified = fs::metadata(&note).unwrap().modified().unwrap();
    fs::write(&note, "The tap is replaced.").unwrap();
    File::options().write(true).open(&note).unwrap().set_modified(modified).unwrap();
    assert_eq!(update(&mut writer).n_changed, 1);

    // A clock in the past and one in the future.
    for time in [SystemTime::UNIX_EPOCH, SystemTime::now() + Duration::from_secs(1 << 30)] {
        fs::write(&note, format!("The tap at {time:?}.")).unwrap();
        File::options().write(true).open(&note).unwrap().set_modified(time).unwrap();
        assert_eq!(update(&mut writer).n_changed, 1, "{time:?}");
    }
    assert_eq!(place.files_with("drips"), [""; 0].map(std::path::PathBuf::from));
}

#[test]
fn settled_files_are_not_read_again() {
    let place = Place::new();
    let note = place.write("a.md", "The tap drips.");
    let mut writer = place.writer();
    // Until the file is old enough that a change must show in its times.
    while update(&mut writer).n_read > 0 {
        assert!(note.exists());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert_eq!(update(&mut writer).n_unchanged, 1);
    drop(writer);
    let mut writer =
        NotesWriter::open(&place.index(), NotesOptions { reads_all: true, ..options() }).unwrap();
    assert_eq!(update(&mut writer).n_read, 1);
}

#[test]
fn forgotten_text_leaves_no_byte_and_does_not_come_back() {
    let place = everything();
    let tokenizer = fixture_engine();
    let mut writer = place.writer();
    update(&mut writer);
    writer.tokenize(tokenizer.tokenizer(), &mut |_, _| ControlFlow::Continue(())).unwrap();
    writer.embed(&Letters, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let secret_tokens = tokens_of(&tokenizer, "Blue paint.");
    for secret in ["arrived", "bo@example.org", "Voss", "Dentist", "Kirkegata"] {
        assert!(!place.files_with(secret).is_empty(), "{secret}");
    }
    assert!(!notes_support::files_with(&place.index(), &secret_tokens).is_empty());

    writer.forget(&[place.notes().join("mail"), place.notes().join("kitchen.md")]).unwrap();
    for secret in ["arrived", "bo@example.org", "Voss", "voss", "repair", "drip", "a.eml", "kitchen"] {
        assert_eq!(place.files_with(secret), [""; 0].map(std::path::PathBuf::from), "{secret}");
    }
    assert!(notes_support::files_with(&place.index(), &secret_tokens).is_empty());
    assert_eq!(update(&mut writer).n_added, 0);
    drop(writer);
    let index = place.indexed();
    assert_eq!(found(&index, "tap"), [""; 0]);
    assert_eq!(index.status().unwrap().n_forgotten, 2);

    fs::remove_file(place.notes().join("c.ics")).unwrap();
    let mut writer = place.writer();
    assert_eq!(update(&mut writer).n_removed, 1);
    assert_eq!(place.files_with("Kirkegata"), [""; 0].map(std::path::PathBuf::from));

    writer.add(&[place.notes().join("mail/a.eml")]).unwrap();
    assert_eq!(update(&mut writer).n_added, 1, "the rest of the folder stays forgotten");
    writer.forget(&[place.notes()]).unwrap();
    let index = place.reader();
    assert_eq!((index.n_passages(), index.status().unwrap().roots.len()), (0, 0));
}

#[test]
fn a_changed_note_is_visible_before_its_old_text_is_purged() {
    let place = Place::new();
    let note = place.write("a.md", "The tap drips.");
    place.write("b.md", "Other words.");
    let mut writer = place.writer();
    update(&mut writer);
    place.write("a.md", "The tap shines.");
    assert_eq!(writer.update_paths(&[&note]).unwrap().n_changed, 1);
    let index = place.reader();
    assert_eq!((found(&index, "shines"), found(&index, "drips").len()), (vec!["a.md".to_owned()], 0));
    writer.purge().unwrap();
    assert!(place.files_with("drips").is_empty());
    fs::remove_file(&note).unwrap();
    assert_eq!(writer.update_paths(&[&note]).unwrap().n_removed, 1);
    assert!(writer.update_paths(&[Path::new("/somewhere/else.md")]).unwrap().skipped.is_empty());
    let hidden = place.write(".hidden/a.md", "secret");
    assert_eq!(writer.update_paths(&[&hidden]).unwrap().n_added, 0);
}

#[test]
fn many_small_updates_leave_few_segments() {
    let place = Place::new();
    let mut writer = place.writer();
    for i in 0..40 {
        let path = place.write(&format!("{i}.md"), format!("Note {i} of the series."));
        writer.update_paths(&[path]).unwrap();
        writer.maintain().unwrap();
    }
    let status = place.reader().status().unwrap();
    assert_eq!(status.n_passages, 40);
    assert!(status.n_segments <= 16, "{} segments", status.n_segments);
}

#[test]
fn odd_files_are_named_skips() {
    let place = Place::new();
    place.write("good.md", "Good.");
    place.write("binary.md", [0_u8, 1, 2, 255]);
    place.write("latin.txt", b"caf\xe9");
    place.write("huge.md", "word ".repeat(3 << 20));
    place.write("picture.png", "x");
    place.write(".hidden.md", "x");
    place.write("broken.xml", "<a><b></a>");
    place.write("broken.ics", "no calendar");
    place.write("broken.jsonl", "no json\n");
    place.write("empty.md", "");
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        symlink(place.notes(), place.notes().join("loop")).unwrap();
        symlink("nowhere", place.notes().join("dangling.md")).unwrap();
        symlink(place.notes().join("good.md"), place.notes().join("also-good.md")).unwrap();
    }
    let mut writer = place.writer();
    let report = update(&mut writer);
    assert_eq!(report.n_added, 2, "{report:?}");
    let reason = |name: &str| {
        let skipped = report.skipped.iter().find(|skipped| skipped.path.ends_with(name));
        skipped.unwrap_or_else(|| panic!("{name}: {report:?}")).reason.clone()
    };
    assert_eq!(reason("binary.md"), SkipReason::NotText { offset: 0 });
    assert_eq!(reason("latin.txt"), SkipReason::NotText { offset: 3 });
    assert_eq!(reason("huge.md"), SkipReason::TooLong { bytes: 15 << 20, limit: 8 << 20 });
    assert_eq!(reason("picture.png"), SkipReason::NotASource);
    assert_eq!(reason(".hidden.md"), SkipReason::Hidden);
    for broken in ["broken.xml", "broken.ics", "broken.jsonl"] {
        assert!(matches!(reason(broken), SkipReason::Broken { .. }), "{broken}");
    }
    #[cfg(unix)]
    {
        assert_eq!(reason("loop"), SkipReason::AlreadyRead);
        assert_eq!(reason("also-good.md"), SkipReason::AlreadyRead);
        assert!(report.skipped.iter().any(|skipped| skipped.path.ends_with("dangling.md")));
    }
    // A note that turns into something else is removed.
    place.write("good.md", [0_u8]);
    assert_eq!(update(&mut writer).n_removed, 1);
}

#[test]
fn a_root_that_is_away_keeps_its_passages() {
    let place = Place::new();
    place.write("a.md", "The tap drips.");
    let mut writer = place.writer();
    update(&mut writer);
    let away = place.notes().with_file_name("away");
    fs::rename(place.notes(), &away).unwrap();
    let report = update(&mut writer);
    assert_eq!((report.n_removed, report.skipped.len()), (0, 1));
    assert_eq!(found(&place.reader(), "tap"), ["a.md"]);
}

#[test]
fn a_second_writer_leaves_requests() {
    let place = Place::new();
    let secret = place.write("a.md", "The secret word is xyzzy.");
    let mut writer = place.writer();
    update(&mut writer);
    assert!(matches!(NotesWriter::open(&place.index(), options()), Err(NotesError::InUse { .. })));
    let request = Request::Forget(vec![secret]);
    assert!(NotesWriter::open_or_hand_in(&place.index(), options(), &request).unwrap().is_none());
    let other = place.notes().with_file_name("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("b.md"), "Another note.").unwrap();
    hand_in(&place.index(), None, &Request::Add(vec![other])).unwrap();
    assert_eq!(place.reader().status().unwrap().n_requests, 2);

    assert!(writer.maintain().unwrap(), "an update is asked for");
    assert!(place.files_with("xyzzy").is_empty());
    assert_eq!(update(&mut writer).n_added, 1);
    assert_eq!(place.reader().status().unwrap().n_requests, 0);
}

/// A request is acknowledged when it is left, so nobody may have to ask again.
#[test]
fn closing_carries_out_what_was_left_meanwhile() {
    let place = Place::new();
    place.write("a.md", "The secret word is xyzzy.");
    let mut writer = place.writer();
    update(&mut writer);
    let other = place.notes().with_file_name("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("b.md"), "The roof leaks.").unwrap();
    hand_in(&place.index(), None, &Request::Add(vec![other.clone()])).unwrap();
    let gone = place.notes().with_file_name("gone");
    fs::create_dir(&gone).unwrap();
    hand_in(&place.index(), None, &Request::Add(vec![other, gone.clone()])).unwrap();
    fs::remove_dir(&gone).unwrap();
    fs::write(place.index().join(".inbox/9.request"), "damaged").unwrap();

    let (mut reports, mut n_left) = (Vec::new(), 0);
    // More arrive during the update: the last one after its last look at the inbox.
    let mut on_progress = |_: u64, _: u64| {
        if n_left < 2 {
            n_left += 1;
            let request = Request::Forget(vec![place.notes().join(format!("{n_left}.md"))]);
            hand_in(&place.index(), None, &request).unwrap();
        }
        ControlFlow::Continue(())
    };
    writer.close(&mut on_progress, &mut |report| reports.push(report.clone())).unwrap();
    let status = place.reader().status().unwrap();
    assert_eq!((status.n_requests, status.roots.len(), status.n_files), (0, 2, 2));
    let unknown: usize = reports.iter().map(|report| report.unknown.len()).sum();
    assert_eq!((unknown, n_left), (2, 2));
    let failed: Vec<_> = reports.into_iter().flat_map(|report| report.failed).collect();
    // The other one has no path, so the next forgetting has removed it.
    assert_eq!(failed[..1], status.failed);
    assert_eq!(failed[0].request, Some(Request::Add(vec![gone.clone()])));
    assert!(failed[0].reason.contains("gone"), "{failed:?}");
    assert_eq!((failed.len(), &failed[1].request), (2, &None));
    place.writer().forget(&[gone]).unwrap();
    assert_eq!(place.reader().status().unwrap().failed, []);
}

/// Deletions are carried out, also those that are left while a person ends the reading. An update waits.
#[test]
fn leaving_carries_out_deletions_and_reads_nothing() {
    for is_interrupted in [false, true] {
        let place = Place::new();
        let secret = place.write("a.md", "The secret word is xyzzy.");
        let mut writer = place.writer();
        update(&mut writer);
        place.write("b.md", "The roof leaks.");
        let ask = |request| hand_in(&place.index(), None, &request).unwrap();
        let leave_requests = || {
            ask(Request::Forget(vec![secret.clone()]));
            ask(Request::Update);
        };
        if is_interrupted {
            ask(Request::Update);
            let mut n_calls = 0;
            let mut on_progress = |_: u64, _: u64| {
                n_calls += 1;
                if n_calls == 1 {
                    leave_requests();
                }
                ControlFlow::Break(())
            };
            writer.close(&mut on_progress, &mut |_| {}).unwrap();
            assert!(n_calls > 0);
        } else {
            leave_requests();
            writer.leave().unwrap();
            assert!(found(&place.reader(), "roof").is_empty());
        }
        assert!(place.files_with("xyzzy").is_empty());
        assert_eq!(place.reader().status().unwrap().n_requests, 1, "the update");
    }
}

/// Processes that add at the same time: whoever holds the folder, everything is in the index in the end.
#[test]
fn no_request_is_left_behind_by_several_processes() {
    let place = Place::new();
    drop(place.indexed());
    for round in 0..6 {
        std::thread::scope(|scope| {
            for i in 0..4 {
                let path = place.write(&format!("{round}-{i}/note.md"), format!("Note n{round}x{i}."));
                let index = place.index();
                scope.spawn(move || {
                    let added = path.with_file_name("note.md");
                    let request = Request::Add(vec![added.clone()]);
                    let Some(mut writer) = NotesWriter::open_or_hand_in(&index, options(), &request).unwrap()
                    else {
                        return;
                    };
                    writer.add(&[added]).unwrap();
                    update(&mut writer);
                    writer.close(&mut |_, _| ControlFlow::Continue(()), &mut |_| {}).unwrap();
                });
            }
        });
        let index = place.reader();
        assert_eq!(index.status().unwrap().n_requests, 0);
        for i in 0..4 {
            assert_eq!(found(&index, &format!("n{round}x{i}")), ["note.md"], "{round}, {i}");
        }
    }
}

#[test]
fn a_damaged_index_is_built_again() {
    let place = everything();
    drop(place.indexed());
    let mut files = Vec::new();
    for folder in [place.index(), place.index().join("words")] {
        files.extend(
            fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file()),
        );
    }
    files.retain(|path| !path.ends_with(".lock") && !path.ends_with(".managed.json"));
    assert!(files.len() > 8);
    for file in files {
        let Ok(bytes) = fs::read(&file) else { continue };
        for damage in 0..3 {
            match damage {
                0 => fs::write(&file, &bytes[..bytes.len() / 2]).unwrap(),
                1 => fs::remove_file(&file).unwrap(),
                _ => {
                    let mut flipped = bytes.clone();
                    flipped[bytes.len() / 3] ^= 4;
                    fs::write(&file, flipped).unwrap();
                }
            }
            let is_list = file.ends_with("sources");
            let opened = NotesIndex::open(&place.index());
            assert!(
                opened.is_ok()
                    || opened
                        .is_err_and(|error| error.is_damage() || matches!(error, NotesError::NoIndex { .. }))
            );
            let mut writer = NotesWriter::open(&place.index(), options()).unwrap();
            let is_noticed = !writer.notices().is_empty() || damage == 1;
            assert!(is_noticed, "{}: {damage}", file.display());
            let is_list = is_list || file.ends_with("sources-copy");
            assert!(!is_list || writer.roots().count() == 1, "the list is there twice");
            let aside = place.index().join("damaged.words");
            let rebuilt = writer.notices().iter().find_map(|notice| match notice {
                Notice::Rebuilt { aside, .. } => Some(aside.clone()),
                _ => None,
            });
            assert_eq!(
                rebuilt.flatten(),
                aside.exists().then_some(aside.clone()),
                "{}: {damage}",
                file.display()
            );
            let report = update(&mut writer);
            assert!(report.n_added == if is_list { 0 } else { 7 } || damage == 1, "{report:?}");
            assert!(!aside.exists(), "the index is whole again");
            drop(writer);
            let index = place.reader();
            assert_eq!(found(&index, "torn sails"), ["b.mbox"], "{}: {damage}", file.display());
            assert_eq!(index.status().unwrap().n_files, 7);
            // Segments have other names now.
            if !file.exists() || fs::read(&file).unwrap() != bytes {
                break;
            }
        }
    }
}

#[test]
fn an_interrupted_update_keeps_its_work() {
    let place = Place::new();
    for i in 0..600 {
        place.write(&format!("{i}.md"), format!("Note {i}."));
    }
    let mut writer = place.writer();
    let mut n_calls = 0;
    let mut on_progress = |_: u64, _: u64| {
        n_calls += 1;
        if n_calls > 1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let report = writer.update(&mut on_progress).unwrap();
    assert!(report.is_incomplete && report.n_added > 0 && report.n_added < 600, "{}", report.n_added);
    let n_left = 600 - report.n_added;
    assert_eq!(place.reader().n_passages(), report.n_added);
    assert_eq!(update(&mut writer).n_added, n_left);
}

#[test]
fn several_readers_search_beside_a_writer() {
    let place = Place::new();
    place.write("fixed.md", "The fixed star.");
    let mut writer = place.writer();
    update(&mut writer);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let index = place.reader();
                    for _ in 0..60 {
                        index.refresh().unwrap();
                        assert_eq!(found(&index, "fixed star"), ["fixed.md"]);
                    }
                })
            })
            .collect();
        let mut i = 0;
        while readers.iter().any(|reader| !reader.is_finished()) {
            i += 1;
            place.write("moving.md", format!("The moving planet {i}."));
            update(&mut writer);
        }
    });
}

fn fixture_engine() -> Engine {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/target.gguf");
    Engine::open(model, EngineOptions::default()).expect("the fixture model")
}

fn tokens_of(engine: &Engine, text: &str) -> Vec<u8> {
    let tokens = engine.tokenizer().encode(text, SpecialTokens::AsText).expect("tokens");
    tokens.iter().flat_map(|token| token.0.to_le_bytes()).collect()
}

#[test]
fn stored_token_ids_are_those_of_the_tokenizer_and_draft() {
    let place = everything();
    let engine = fixture_engine();
    let mut writer = place.writer();
    update(&mut writer);
    let all = |_: u64, _: u64| ControlFlow::Continue(());
    let n_passages = writer.tokenize(engine.tokenizer(), &mut { all }).unwrap();
    assert_eq!(n_passages, 9);
    assert_eq!(writer.tokenize(engine.tokenizer(), &mut { all }).unwrap(), 0);
    let index = place.reader();
    assert_eq!(index.status().unwrap().tokenizers, [engine.tokenizer().fingerprint()]);
    let passages: Vec<_> = search(&index, "paint").into_iter().map(|hit| hit.passage).collect();
    let expected: Vec<Vec<TokenId>> = passages
        .iter()
        .map(|passage| engine.tokenizer().encode(&passage.text, SpecialTokens::AsText).unwrap())
        .collect();
    assert_eq!(index.tokens(engine.tokenizer(), &passages).unwrap(), expected);
    let mut source = index.draft_source(engine.tokenizer(), &passages).unwrap();
    let mut anchors = Vec::new();
    source.anchors(&expected[0][..3], &mut anchors);
    assert_eq!(anchors[0].match_len, 3);

    // Damaged ones are made again.
    let path = place.index().join(format!("tokens-{:016x}", engine.tokenizer().fingerprint()));
    let mut bytes = fs::read(&path).unwrap();
    bytes[30] ^= 1;
    fs::write(&path, bytes).unwrap();
    let index = place.reader();
    assert_eq!(index.tokens(engine.tokenizer(), &passages).unwrap(), expected);
    assert_eq!(writer.tokenize(engine.tokenizer(), &mut { all }).unwrap(), 9);
    assert!(matches!(writer.notices().last(), Some(Notice::Derived { .. })));
}

/// Counts letters: an embedder for tests of the plumbing, without any meaning.
struct Letters;

impl Embedder for Letters {
    fn identity(&self) -> u64 {
        26
    }

    fn dimensions(&self) -> usize {
        26
    }

    fn embed(&self, texts: &[&str]) -> Result<Vec<Vec<f32>>, Box<dyn Error + Send + Sync>> {
        let count = |text: &&str| {
            let mut counts = [0.0; 26];
            for letter in text.bytes().filter(u8::is_ascii_lowercase) {
                counts[usize::from(letter - b'a')] += 1.0;
            }
            let length = counts.iter().map(|x: &f32| x * x).sum::<f32>().sqrt().max(1.0);
            counts.iter().map(|x| x / length).collect()
        };
        Ok(texts.iter().map(count).collect())
    }
}

/// Fails as a model that cannot be loaded.
struct Failing;

impl Embedder for Failing {
    fn identity(&self) -> u64 {
        1
    }

    fn dimensions(&self) -> usize {
        4
    }

    fn embed(&self, _texts: &[&str]) -> Result<Vec<Vec<f32>>, Box<dyn Error + Send + Sync>> {
        Err("no model".into())
    }
}

#[test]
fn hybrid_searches_find_what_words_do_not() {
    let place = Place::new();
    place.write("a.md", "zzz zzzz zz");
    place.write("b.md", "The tap drips.");
    let mut writer = place.writer();
    update(&mut writer);
    assert_eq!(writer.embed(&Letters, &mut |_, _| ControlFlow::Continue(())).unwrap(), 2);
    let index = place.reader();
    let mut request = Search::new("zzzzzzzz tap", 2);
    assert_eq!(names(&index.search(&request).unwrap()), ["b.md"]);
    request.embedder = Some(&Letters);
    let hybrid = names(&index.search(&request).unwrap());
    assert_eq!(hybrid.iter().collect::<BTreeSet<_>>().len(), 2);
    request.filter.folders = vec![place.notes().join("b.md")];
    assert_eq!(names(&index.search(&request).unwrap()), ["b.md"]);
    request.embedder = Some(&Failing);
    assert!(matches!(index.search(&request), Err(NotesError::Embedder(_))));
    assert!(matches!(
        writer.embed(&Failing, &mut |_, _| ControlFlow::Continue(())),
        Err(NotesError::Embedder(_))
    ));
    assert_eq!(update(&mut writer).n_unchanged, 2, "the writer goes on");
}

/// What an index has: every passage without the times, which depend on the moment of writing.
fn contents(index: &NotesIndex, place: &Place) -> Vec<(String, String, u64, Vec<String>)> {
    let passages = index.passages_of(&place.notes()).unwrap();
    let mut contents: Vec<_> = passages
        .into_iter()
        .map(|passage| {
            let path = passage.path.strip_prefix(place.notes()).unwrap().display().to_string();
            (path, format!("{}\n{}", passage.title, passage.text), passage.place.start, passage.tags)
        })
        .collect();
    contents.sort();
    contents
}

#[derive(Debug, Clone)]
enum Step {
    Write(u8, String),
    Remove(u8),
    Rename(u8, u8),
    Update,
    UpdatePath(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let name = 0..6_u8;
    let step = prop_oneof![
        3 => (name.clone(), "(# [a-c]\n|[a-c ]{1,8}\n|#[ab] |\n){0,12}").prop_map(|(n, text)| Step::Write(n, text)),
        1 => name.clone().prop_map(Step::Remove),
        1 => (name.clone(), name.clone()).prop_map(|(a, b)| Step::Rename(a, b)),
        1 => Just(Step::Update),
        2 => name.prop_map(Step::UpdatePath),
    ];
    prop::collection::vec(step, 1..14)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn updates_give_what_a_new_index_has(steps in steps()) {
        let place = Place::new();
        let path = |n: u8| place.notes().join(format!("{}/{n}.md", n % 2));
        let mut writer = place.writer();
        for step in steps {
            match step {
                Step::Write(n, text) => drop(place.write(&format!("{}/{n}.md", n % 2), text)),
                Step::Remove(n) => drop(fs::remove_file(path(n))),
                Step::Rename(a, b) => drop(fs::rename(path(a), path(b))),
                Step::Update => drop(update(&mut writer)),
                Step::UpdatePath(n) => drop(writer.update_paths(&[path(n)]).unwrap()),
            }
        }
        update(&mut writer);
        let incremental = contents(&place.reader(), &place);
        drop(writer);
        fs::remove_dir_all(place.index()).unwrap();
        prop_assert_eq!(incremental, contents(&place.indexed(), &place));
    }
}
