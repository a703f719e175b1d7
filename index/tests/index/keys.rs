//! Encrypted stores: the same answers as without a key, no byte of them on the disk, no change that goes unnoticed, and
//! errors that lose nothing.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use refrain::TokenId;
use refrain_index::history::{Access, HistoryKey, HistoryLog, HistoryOptions, LeftOutReason, SyncPolicy};
use refrain_index::notes::{Metadata, NotesIndex, NotesOptions, NotesWriter, Request, Search, hand_in};
use refrain_index::{HistoryError, KeyProblem, NotesError};

use crate::prefixes_support::files;

const KEY: [u8; 32] = [3; 32];
const OTHER: [u8; 32] = [4; 32];
const MODEL: HistoryKey = HistoryKey { tokenizer: 1, model: 2 };

fn has(bytes: &[u8], form: &[u8]) -> bool {
    bytes.windows(form.len()).any(|window| window == form)
}

/// Puts a folder back into an earlier state.
fn restore(folder: &Path, earlier: &BTreeMap<PathBuf, Vec<u8>>) {
    for path in files(folder).into_keys().filter(|path| !earlier.contains_key(path)) {
        fs::remove_file(path).unwrap();
    }
    for (path, bytes) in earlier {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

struct Notes(tempfile::TempDir);

impl Notes {
    /// Notes and an index of them.
    fn new(key: Option<[u8; 32]>) -> Self {
        let notes = Self(tempfile::tempdir().unwrap());
        fs::create_dir(notes.path("notes")).unwrap();
        fs::write(notes.path("notes/tap.md"), "# Kitchen\n\nThe tap drips. Qulittus repairs it.\n").unwrap();
        for i in 0..60 {
            let text = format!(
                "# Trip {i}\n\n{}",
                format!("The ferry {i} leaves at noon from pier {i}. ").repeat(30)
            );
            fs::write(notes.path(&format!("notes/trip-{i}.md")), text).unwrap();
        }
        let mut writer = notes.writer(key).unwrap();
        writer.add(&[notes.path("notes")]).unwrap();
        writer.update(&mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
        writer.put(b"ferryman", "The ferryman is Zanetti.", &Metadata::default()).unwrap();
        drop(writer);
        hand_in(&notes.index(), key.as_ref(), &Request::Add(vec![notes.path("notes/tap.md")])).unwrap();
        notes
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn index(&self) -> PathBuf {
        self.path("index")
    }

    fn writer(&self, key: Option<[u8; 32]>) -> Result<NotesWriter, NotesError> {
        NotesWriter::open(&self.index(), NotesOptions { key, ..NotesOptions::default() })
    }

    fn found(&self, key: Option<[u8; 32]>, request: &str) -> Result<Vec<String>, NotesError> {
        let index = NotesIndex::open_with_key(&self.index(), key.as_ref())?;
        let hits = index.search(&Search::new(request, 5))?;
        Ok(hits.into_iter().map(|hit| format!("{} {:.3}", hit.passage.text, hit.score)).collect())
    }
}

#[test]
fn an_encrypted_index_finds_the_same_and_has_no_word() {
    let (plain, sealed) = (Notes::new(None), Notes::new(Some(KEY)));
    for request in ["Who repairs the tap?", "ferry 7", "pier", "Zanetti"] {
        assert_eq!(plain.found(None, request).unwrap(), sealed.found(Some(KEY), request).unwrap());
    }
    let mut seen = 0;
    for (path, bytes) in files(&plain.index()).into_iter().chain(files(&sealed.index())) {
        let is_sealed = path.starts_with(sealed.index());
        for word in
            ["Qulittus", "qulittus", "ferry", "ferri", "tap.md", "schema", "segments", "Zanetti", "document:"]
        {
            let has = has(&bytes, word.as_bytes());
            assert!(!(has && is_sealed), "{path:?}: {word}");
            seen += usize::from(has);
        }
    }
    assert!(seen >= 7, "the search finds what is there");
    for options in [
        format!("{:?}", NotesOptions { key: Some(KEY), ..NotesOptions::default() }),
        format!("{:?}", HistoryOptions { key: Some(KEY), ..HistoryOptions::default() }),
    ] {
        assert!(options.contains("encrypts: true") && !options.contains("3, 3"), "{options}");
    }
}

#[test]
fn an_index_opens_with_its_key_alone() {
    for (of_index, tried, problem) in [
        (Some(KEY), Some(OTHER), KeyProblem::Wrong),
        (Some(KEY), None, KeyProblem::Missing),
        (None, Some(KEY), KeyProblem::NotEncrypted),
    ] {
        let notes = Notes::new(of_index);
        let before = files(&notes.index());
        let check = |error: NotesError| match error {
            NotesError::Key { problem: found, .. } => assert_eq!(found, problem),
            other => panic!("{other}"),
        };
        check(notes.writer(tried).err().expect("refused"));
        check(notes.found(tried, "tap").unwrap_err());
        check(hand_in(&notes.index(), tried.as_ref(), &Request::Update).unwrap_err());
        check(NotesIndex::roots_in(&notes.index(), tried.as_ref()).unwrap_err());
        assert_eq!(files(&notes.index()), before, "nothing is changed");
        assert_eq!(notes.found(of_index, "tap").unwrap().len(), 1);
    }
    // Without the file that tells, no key still damages nothing.
    let notes = Notes::new(Some(KEY));
    fs::remove_file(notes.index().join(".key")).unwrap();
    let before = files(&notes.index());
    assert!(!notes.writer(None).err().expect("refused").is_damage());
    assert!(!notes.found(None, "tap").unwrap_err().is_damage());
    assert!(matches!(
        notes.writer(Some(KEY)),
        Err(NotesError::Key { problem: KeyProblem::NotEncrypted, .. })
    ));
    assert_eq!(files(&notes.index()), before);
}

#[test]
fn no_change_of_an_encrypted_index_is_believed() {
    let notes = Notes::new(Some(KEY));
    let before = files(&notes.index());
    let expected = notes.found(Some(KEY), "Who repairs the tap?").unwrap();
    let check = |case: &str| {
        // Found as it was, noticed, or built again from the notes; never something else.
        match notes.found(Some(KEY), "Who repairs the tap?") {
            Ok(found) => assert_eq!(found, expected, "{case}"),
            Err(error) => assert!(
                error.is_damage() || matches!(error, NotesError::Key { .. } | NotesError::NoIndex { .. }),
                "{case}: {error}"
            ),
        }
        restore(&notes.index(), &before);
    };
    let paths: Vec<&PathBuf> =
        before.iter().filter(|(_, bytes)| !bytes.is_empty()).map(|(path, _)| path).collect();
    for path in &paths {
        let bytes = &before[*path];
        for at in [0, 9, 33, bytes.len() / 2, bytes.len() - 1] {
            let mut changed = bytes.clone();
            changed[at.min(bytes.len() - 1)] ^= 0x10;
            fs::write(path, changed).unwrap();
            check(&format!("{path:?}, byte {at}"));
        }
        fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
        check(&format!("{path:?} is shorter"));
        for other in paths.iter().filter(|other| other != &path) {
            fs::write(path, &before[*other]).unwrap();
            check(&format!("{path:?} is {other:?}"));
        }
    }
    // The writer builds again what is damaged, from the notes.
    let words: Vec<&&PathBuf> =
        paths.iter().filter(|path| path.extension().is_some_and(|kind| kind == "term")).collect();
    for path in words {
        let mut changed = before[*path].clone();
        let middle = changed.len() / 2;
        changed[middle] ^= 1;
        fs::write(path, changed).unwrap();
    }
    let mut writer = notes.writer(Some(KEY)).unwrap();
    assert!(!writer.notices().is_empty());
    writer.update(&mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
    // What has no file, the app puts again.
    writer.put(b"ferryman", "The ferryman is Zanetti.", &Metadata::default()).unwrap();
    drop(writer);
    assert_eq!(notes.found(Some(KEY), "Who repairs the tap?").unwrap(), expected);
}

#[test]
fn what_is_forgotten_leaves_an_encrypted_index() {
    let notes = Notes::new(Some(KEY));
    let mut writer = notes.writer(Some(KEY)).unwrap();
    writer.forget(&[notes.path("notes/tap.md")]).unwrap();
    drop(writer);
    assert!(notes.found(Some(KEY), "Qulittus").unwrap().is_empty());
    assert_eq!(notes.found(Some(KEY), "ferry 7").unwrap().len(), 5);
}

fn history(folder: &Path, key: Option<[u8; 32]>) -> Result<HistoryLog, HistoryError> {
    let options =
        HistoryOptions { sync: SyncPolicy::Never, live_tokens_max: 64, key, ..HistoryOptions::default() };
    HistoryLog::open(folder, MODEL, options)
}

/// Distinct runs of tokens.
fn answer(i: u32) -> Vec<TokenId> {
    (0..40).map(|at| TokenId(1_000_000 + 1000 * i + at)).collect()
}

/// A history with logs and segments of two namespaces.
fn written(folder: &Path, key: Option<[u8; 32]>) {
    let log = history(folder, key).unwrap();
    for i in 0..12 {
        log.append(if i % 2 == 0 { "a" } else { "b" }, &answer(i)).unwrap();
        log.maintain().unwrap();
    }
}

#[test]
fn an_encrypted_history_keeps_its_answers_and_shows_none() {
    let mut shown = [0, 0];
    for (at, key) in [None, Some(KEY)].into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), key);
        let log = history(folder.path(), key).unwrap();
        assert_eq!(log.list().len(), 12);
        assert!(log.stats().namespaces.iter().all(|stats| stats.n_segments > 0));
        log.verify().unwrap();
        assert_eq!(log.left_out(), []);
        for (path, bytes) in files(folder.path()) {
            for i in 0..12 {
                // As numbers, and as the table of a segment.
                let run: Vec<u8> = answer(i)[3..5].iter().flat_map(|token| token.0.to_le_bytes()).collect();
                shown[at] += usize::from(has(&bytes, &run));
            }
            assert!(key.is_none() || !has(&bytes, b"RFRNHSEG"), "{path:?}");
        }
        if key.is_some() {
            let id = log.list()[0].record;
            log.forget(id).unwrap();
            assert_eq!(log.list().len(), 11);
            assert!(matches!(log.export("a", None), Err(HistoryError::Encrypted { .. })));
        }
    }
    assert!(shown[0] >= 12 && shown[1] == 0, "{shown:?}");
}

#[test]
fn a_history_opens_with_its_key_alone() {
    for (of_history, tried, problem) in [
        (Some(KEY), Some(OTHER), KeyProblem::Wrong),
        (Some(KEY), None, KeyProblem::Missing),
        (None, Some(KEY), KeyProblem::NotEncrypted),
    ] {
        let folder = tempfile::tempdir().unwrap();
        written(folder.path(), of_history);
        let before = files(folder.path());
        let Err(HistoryError::Key { problem: found, .. }) = history(folder.path(), tried) else {
            panic!("opened")
        };
        assert_eq!((found, files(folder.path())), (problem, before));
        // Also beside a process that writes, whose answers would not be taken in.
        let writer = history(folder.path(), of_history).unwrap();
        assert!(matches!(history(folder.path(), tried), Err(HistoryError::Key { .. })));
        let second = history(folder.path(), of_history).unwrap();
        assert!(matches!(second.access(), Access::HandIn));
        second.append("a", &answer(50)).unwrap();
        writer.maintain().unwrap();
        assert_eq!(writer.list().len(), 13);
    }
}

#[test]
fn files_of_an_encrypted_history_are_valid_at_their_place_alone() {
    let folder = tempfile::tempdir().unwrap();
    written(folder.path(), Some(KEY));
    let before = files(folder.path());
    let all = |log: &HistoryLog| {
        log.list().into_iter().map(|info| (info.record, info.namespace)).collect::<Vec<_>>()
    };
    let expected = all(&history(folder.path(), Some(KEY)).unwrap());
    let named = |prefix: &str| -> Vec<PathBuf> {
        let is_named = |path: &&PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(prefix);
        before.keys().filter(is_named).cloned().collect()
    };
    for prefix in ["segment-", "log-"] {
        let paths = named(prefix);
        assert!(paths.len() >= 2, "{prefix}");
        for (path, other) in paths.iter().flat_map(|path| paths.iter().map(move |other| (path, other))) {
            if path == other {
                continue;
            }
            fs::write(path, &before[other]).unwrap();
            let log = history(folder.path(), Some(KEY)).unwrap();
            let found = all(&log);
            assert!(found.iter().all(|info| expected.contains(info)), "{path:?} is {other:?}");
            assert!(found.len() < expected.len() || before[path] == before[other], "{path:?} is {other:?}");
            drop(log);
            restore(folder.path(), &before);
        }
    }
    // What another program hands in without the key is not taken in, and not lost.
    let model = folder.path().join(MODEL.to_string());
    let plain = tempfile::tempdir().unwrap();
    let (writer, hander) = (history(plain.path(), None).unwrap(), history(plain.path(), None).unwrap());
    hander.append("a", &answer(60)).unwrap();
    let inbox = plain.path().join(MODEL.to_string()).join(".inbox");
    let handed = fs::read_dir(&inbox).unwrap().next().unwrap().unwrap().path();
    fs::create_dir_all(model.join(".inbox")).unwrap();
    let planted = model.join(".inbox").join(handed.file_name().unwrap());
    fs::copy(&handed, &planted).unwrap();
    drop(writer);
    let log = history(folder.path(), Some(KEY)).unwrap();
    assert_eq!(all(&log), expected);
    let reasons: Vec<LeftOutReason> = log.left_out().into_iter().map(|left_out| left_out.reason).collect();
    assert_eq!(reasons, [LeftOutReason::Key(KeyProblem::NotEncrypted)]);
    assert!(planted.exists());
}
