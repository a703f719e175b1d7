//! Documents without files: put, replaced, removed and forgotten in transactions, found by ids, and followed by change numbers.

use std::path::{Path, PathBuf};

use refrain_index::notes::{
    CURSOR_BYTES_MAX, ID_BYTES_MAX, Language, Metadata, NotesIndex, NotesOptions, NotesWriter, Notice,
    Request, SkipReason, document_path, hand_in,
};
use refrain_index::{Locator, NoteFilter, NotesError, Search, SourceKind};

use crate::notes_support::{Place, options, search, update};

fn ids(index: &NotesIndex, request: &str, filter: NoteFilter) -> Vec<String> {
    let mut request = Search::new(request, 10);
    request.filter = filter;
    let hits = index.search(&request).unwrap();
    let id =
        |path: &Path| String::from_utf8_lossy(&refrain_index::notes::document_id(path).unwrap()).into_owned();
    let mut ids: Vec<String> = hits.iter().map(|hit| id(&hit.passage.path)).collect();
    ids.sort();
    ids
}

fn tagged(tag: &str) -> Metadata {
    Metadata { tags: vec![tag.to_owned()], ..Metadata::default() }
}

#[test]
fn documents_are_found_beside_files_and_by_every_condition() {
    let place = Place::new();
    place.write("tap.md", "The tap of the file drips.");
    let mut writer = place.writer();
    update(&mut writer);
    let mut transaction = writer.transaction();
    let dated = Metadata { date: Some(1000), kind: SourceKind::Mail, ..tagged("#House") };
    transaction.put(b"rooms/1", "---\ntags: [wet]\n---\n# Kitchen\n\nThe tap drips.", &dated).unwrap();
    let titled = Metadata { title: Some("Bath".to_owned()), ..tagged("garden") };
    transaction.put(b"rooms/2", "A tap drips here too.", &titled).unwrap();
    transaction
        .put(b"\xff\0/", "A tap in the yard.", &Metadata { date: Some(9000), ..Metadata::default() })
        .unwrap();
    assert_eq!(transaction.len(), 3);
    transaction.commit().unwrap();
    let index = place.reader();
    assert_eq!(search(&index, "tap").len(), 4);
    let all = NoteFilter::within(["document:"]);
    assert_eq!(ids(&index, "tap", all.clone()), ["rooms/1", "rooms/2", "\u{fffd}\0/"]);
    assert_eq!(ids(&index, "tap", NoteFilter::within(["document:/rooms"])), ["rooms/1", "rooms/2"]);
    let with = |change: &dyn Fn(&mut NoteFilter)| {
        let mut filter = all.clone();
        change(&mut filter);
        ids(&index, "tap", filter)
    };
    assert_eq!(with(&|filter| filter.tags = vec!["house".to_owned()]), ["rooms/1"]);
    assert_eq!(
        with(&|filter| filter.tags = vec!["wet".to_owned(), "Garden".to_owned()]),
        ["rooms/1", "rooms/2"]
    );
    assert_eq!(with(&|filter| filter.kinds = vec![SourceKind::Mail]), ["rooms/1"]);
    assert_eq!(with(&|filter| (filter.from, filter.until) = (Some(1001), Some(9000))), ["\u{fffd}\0/"]);
    let passages = index.passages_of(&document_path(b"rooms/1").unwrap()).unwrap();
    assert_eq!((passages[0].title.as_str(), passages[0].locator), ("Kitchen", Some(Locator::Line(6))));
    assert_eq!(index.passages_of(&document_path(b"rooms/2").unwrap()).unwrap()[0].title, "Bath");
    // Files and documents are listed together; an update of the files leaves the documents.
    assert_eq!(update(&mut writer).n_removed, 0);
    let files = index.files().unwrap();
    assert_eq!(files.len(), 4);
    assert!(files.iter().filter(|file| file.path.starts_with("document:")).count() == 3);
    let status = index.status().unwrap();
    assert_eq!((status.n_files, status.n_documents), (1, 3));
}

#[test]
fn a_transaction_is_seen_as_a_whole_or_not_at_all() {
    let place = Place::new();
    let mut writer = NotesWriter::open(&place.index(), options()).unwrap();
    writer.put(b"a", "The first apple.", &Metadata::default()).unwrap();
    let index = place.reader();
    let seen = |index: &NotesIndex| {
        index.refresh().unwrap();
        ids(index, "apple pear", NoteFilter::default())
    };
    let mut transaction = writer.transaction();
    transaction.put(b"b", "The second apple.", &Metadata::default()).unwrap();
    assert!(transaction.remove(b"a").unwrap() && !transaction.remove(b"a").unwrap());
    assert!(!transaction.remove(b"none").unwrap());
    transaction.set_cursor(Some(b"5")).unwrap();
    drop(transaction);
    assert_eq!((seen(&index), writer.cursor()), (vec!["a".to_owned()], None));
    let mut transaction = writer.transaction();
    transaction.put(b"b", "The second apple.", &Metadata::default()).unwrap();
    // The last change of an id counts.
    transaction.remove(b"b").unwrap();
    transaction.put(b"c", "A pear.", &Metadata::default()).unwrap();
    transaction.put(b"c", "A ripe pear.", &Metadata::default()).unwrap();
    transaction.remove(b"a").unwrap();
    transaction.set_cursor(Some(b"6")).unwrap();
    transaction.commit().unwrap();
    assert_eq!((seen(&index), writer.cursor()), (vec!["c".to_owned()], Some(&b"6"[..])));
    assert_eq!(index.cursor().unwrap().as_deref(), Some(&b"6"[..]));
    drop(writer);
    let mut writer = NotesWriter::open(&place.index(), options()).unwrap();
    assert_eq!(writer.cursor(), Some(&b"6"[..]));
    // A cursor alone is a change; documents that are there already are none.
    let before = writer.documents_since(0).change;
    let mut transaction = writer.transaction();
    transaction.put(b"c", "A ripe pear.", &Metadata::default()).unwrap();
    transaction.set_cursor(Some(b"7")).unwrap();
    assert!(transaction.is_empty());
    assert_eq!(transaction.commit().unwrap(), before);
    assert_eq!(place.reader().cursor().unwrap().as_deref(), Some(&b"7"[..]));
}

#[test]
fn changes_are_followed_by_their_number() {
    let place = Place::new();
    let mut writer = NotesWriter::open(&place.index(), options()).unwrap();
    let start = writer.documents_since(0);
    assert!(!start.is_complete && start.put.is_empty());
    for (id, text) in [(b"a", "one"), (b"b", "two"), (b"c", "three")] {
        writer.put(id, text, &Metadata::default()).unwrap();
    }
    assert!(writer.remove(b"b").unwrap() && !writer.remove(b"b").unwrap());
    writer.put(b"a", "one, and more", &Metadata::default()).unwrap();
    let index = place.reader();
    let put = |since: u64| -> Vec<(Vec<u8>, u64)> {
        let changes = index.documents_since(since).unwrap();
        changes.put.into_iter().map(|document| (document.id, document.bytes)).collect()
    };
    assert_eq!(put(0), [(b"c".to_vec(), 5), (b"a".to_vec(), 13)]);
    let all = index.documents_since(start.change).unwrap();
    assert!(all.is_complete && all.removed == [b"b"] && all.put.len() == 2);
    let since = index.document(b"c").unwrap().unwrap().change;
    assert_eq!(put(since), [(b"a".to_vec(), 13)]);
    assert_eq!(put(all.change), []);
    // A document that is put again is not removed any more.
    writer.put(b"b", "two", &Metadata::default()).unwrap();
    let later = index.documents_since(start.change).unwrap();
    assert!(later.removed.is_empty() && later.put.len() == 3);
    // What is forgotten leaves no id: a copy begins anew.
    writer.remove(b"c").unwrap();
    writer
        .forget(&[
            document_path(b"b").unwrap(),
            document_path(b"c").unwrap(),
            document_path(b"none").unwrap(),
        ])
        .unwrap();
    let forgotten = index.documents_since(later.change).unwrap();
    assert!(!forgotten.is_complete && forgotten.removed.is_empty() && forgotten.put.len() == 1);
    assert!(index.documents_since(forgotten.change).unwrap().is_complete);
    assert!(!index.documents_since(forgotten.change + 1).unwrap().is_complete);
}

#[test]
fn removed_text_leaves_no_byte() {
    let place = Place::new();
    place.write("tap.md", "The tap of the file drips.");
    let mut writer = place.writer();
    update(&mut writer);
    let secret = |n: u32| format!("secret{n}word");
    let put = |writer: &mut NotesWriter, id: &str, n: u32| {
        writer
            .put(id.as_bytes(), &format!("The word is {}.", secret(n)), &tagged(&format!("tag{n}")))
            .unwrap();
    };
    for n in 0..6 {
        put(&mut writer, &format!("folder/{n}"), n);
    }
    assert!((0..6).all(|n| !place.files_with(&secret(n)).is_empty()));
    // Replaced, then removed, then forgotten: alone, through another process, and with its folder.
    put(&mut writer, "folder/0", 6);
    writer.maintain().unwrap();
    writer.remove(b"folder/1").unwrap();
    writer.forget(&[document_path(b"folder/2").unwrap()]).unwrap();
    hand_in(&place.index(), None, &Request::Forget(vec!["document:/folder/3".into()])).unwrap();
    writer.maintain().unwrap();
    for n in 0..4 {
        for text in [secret(n), format!("tag{n}")] {
            assert_eq!(place.files_with(&text), [] as [PathBuf; 0], "{text}");
        }
    }
    assert!(place.files_with("folder/3").is_empty() && !place.files_with("folder/1").is_empty());
    let report = writer.forget(&["document:/folder", "document:/other", "document:"]).unwrap();
    assert_eq!((report.n_removed, report.unknown), (3, vec![PathBuf::from("document:/other")]));
    assert_eq!(place.files_with("secret"), [] as [PathBuf; 0]);
    assert_eq!(place.files_with("folder/"), [] as [PathBuf; 0]);
    assert_eq!(search(&place.reader(), "tap").len(), 1);
}

#[test]
fn what_is_too_long_is_refused_with_the_limit() {
    let place = Place::new();
    let options = NotesOptions { file_bytes_max: Some(60 << 20), ..options() };
    let mut writer = NotesWriter::open(&place.index(), options.clone()).unwrap();
    let mut transaction = writer.transaction();
    let text = "word ".repeat(10 << 20);
    let full = transaction.put(b"a", &text, &Metadata::default()).unwrap_err();
    assert!(matches!(full, NotesError::TransactionFull { max: 0x200_0000, .. }), "{full}");
    transaction.put(b"a", &text[..20 << 20], &Metadata::default()).unwrap();
    let full = transaction.put(b"b", &text[..20 << 20], &Metadata::default()).unwrap_err();
    assert!(full.to_string().contains("more than 33554432: commit it"), "{full}");
    // The one before takes its place.
    transaction.put(b"a", "short", &Metadata::default()).unwrap();
    transaction.put(b"b", &text[..20 << 20], &Metadata::default()).unwrap();
    drop(transaction);
    drop(writer);
    let mut writer =
        NotesWriter::open(&place.index(), NotesOptions { file_bytes_max: Some(8 << 20), ..options }).unwrap();
    let long = writer.put(b"row 1", &text, &Metadata::default()).unwrap_err();
    assert_eq!(
        long.to_string(),
        "`document:/row%201` cannot be put into the index: 52428800 bytes exceed the limit of 8388608"
    );
    let binary = writer.put(b"a", "a\0b", &Metadata::default()).unwrap_err();
    assert!(
        matches!(binary, NotesError::Document { reason: SkipReason::NotText { offset: 1 }, .. }),
        "{binary}"
    );
    for id in [&b""[..], &[b'x'; ID_BYTES_MAX + 1]] {
        let refused = writer.put(id, "a", &Metadata::default()).unwrap_err();
        assert!(matches!(refused, NotesError::OutOfRange { min: 1, max: 512, .. }), "{refused}");
        assert!(writer.remove(id).is_err());
    }
    let title = Metadata { title: Some("x".repeat(5000)), ..Metadata::default() };
    assert!(matches!(writer.put(b"a", "a", &title), Err(NotesError::OutOfRange { option: "title", .. })));
    assert!(writer.transaction().set_cursor(Some(&[0; CURSOR_BYTES_MAX + 1])).is_err());
    writer.put(&[b'/'; ID_BYTES_MAX], "A text without any other word.", &Metadata::default()).unwrap();
    assert_eq!(search(&place.reader(), "word").len(), 1);
}

#[test]
fn a_new_index_and_new_languages_want_the_documents_again() {
    let place = Place::new();
    let mut writer = NotesWriter::open(&place.index(), options()).unwrap();
    let put = |writer: &mut NotesWriter, cursor: &[u8]| {
        let mut transaction = writer.transaction();
        transaction.put(b"a", "Die Häuser sind alt.", &Metadata::default()).unwrap();
        transaction.set_cursor(Some(cursor)).unwrap();
        transaction.commit().unwrap()
    };
    let first = put(&mut writer, b"1");
    drop(writer);
    let languages = Some(vec![Language::German]);
    let mut writer = NotesWriter::open(&place.index(), NotesOptions { languages, ..options() }).unwrap();
    assert_eq!((writer.cursor(), place.reader().cursor().unwrap()), (None, None));
    assert!(put(&mut writer, b"1") > first, "the same text is read in its language");
    assert_eq!(search(&place.reader(), "Haus").len(), 1);
    drop(writer);
    let catalogue = std::fs::read_dir(place.index()).unwrap().flatten();
    let catalogue =
        catalogue.map(|entry| entry.path()).find(|path| path.to_string_lossy().contains("catalogue-"));
    std::fs::write(catalogue.unwrap(), b"damaged").unwrap();
    let mut writer = NotesWriter::open(&place.index(), options()).unwrap();
    assert!(writer.notices().iter().any(|notice| matches!(notice, Notice::Rebuilt { .. })));
    assert_eq!((writer.cursor(), writer.document(b"a")), (None, None));
    assert!(!writer.documents_since(first).is_complete, "numbers of the index before are unknown");
    put(&mut writer, b"1");
    assert_eq!(search(&place.reader(), "Häuser").len(), 1);
}
