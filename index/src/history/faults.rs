//! The store on a disk that fails: at every operation, in every way, nothing that was promised is lost.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use refrain::TokenId;

use super::testing::{Crash, Fails, MemDisk};
use super::{HistoryError, HistoryKey, HistoryLog, HistoryOptions, RecordId, SyncPolicy};

const KEY: HistoryKey = HistoryKey { tokenizer: 1, model: 2 };

/// Small enough that a few responses are frozen, and a few more merged.
fn options(sync: SyncPolicy) -> HistoryOptions {
    HistoryOptions { sync, live_tokens_max: 16, segment_tokens_max: 200, ..HistoryOptions::default() }
}

fn open(disk: &MemDisk, options: HistoryOptions) -> Result<HistoryLog, HistoryError> {
    HistoryLog::open_on(Box::new(disk.clone()), Path::new("history"), KEY, options)
}

type Records = BTreeMap<RecordId, (String, Vec<TokenId>)>;

/// What a caller knows that the store must hold.
#[derive(Default, Debug)]
struct Known {
    /// Appended, for sure.
    held: Records,
    /// Appended or forgotten by a call that failed or did not return: there or not.
    unsure: Records,
    /// Forgotten, for sure.
    forgotten: Vec<RecordId>,
    n_failed: usize,
}

impl Known {
    fn append(&mut self, log: &HistoryLog, namespace: &str, tokens: Vec<TokenId>) {
        match log.append(namespace, &tokens) {
            Ok(id) => drop(self.held.insert(id, (namespace.to_owned(), tokens))),
            // An append that fails leaves no record: also not after a reopen. But a crash in the midst of it may.
            Err(_) => self.n_failed += 1,
        }
    }

    fn forget(&mut self, log: &HistoryLog, id: RecordId) {
        let Some(record) = self.held.remove(&id) else { return };
        match log.forget(id) {
            Ok(()) => self.forgotten.push(id),
            Err(_) => {
                self.unsure.insert(id, record);
                self.n_failed += 1;
            }
        }
    }

    fn forget_namespace(&mut self, log: &HistoryLog, namespace: &str) {
        let (of, others) =
            std::mem::take(&mut self.held).into_iter().partition(|(_, (name, _))| name == namespace);
        self.held = others;
        match log.forget_namespace(namespace) {
            Ok(_) => self.forgotten.extend(Records::into_keys(of)),
            Err(_) => {
                self.unsure.extend(of);
                self.n_failed += 1;
            }
        }
    }

    /// What is listed is what is known, and its tokens are there.
    fn check(&self, log: &HistoryLog, may_hold_more: bool, case: &str) {
        let listed: BTreeMap<RecordId, String> =
            log.list().into_iter().map(|info| (info.record, info.namespace)).collect();
        for (id, (namespace, tokens)) in &self.held {
            assert_eq!(listed.get(id), Some(namespace), "{case}: record {id} is lost");
            assert_eq!(log.tokens(*id).unwrap().as_ref(), Some(tokens), "{case}: record {id}");
        }
        for id in listed.keys() {
            let is_known = self.held.contains_key(id) || self.unsure.contains_key(id);
            assert!(!self.forgotten.contains(id), "{case}: record {id} has come back");
            assert!(is_known || may_hold_more, "{case}: record {id} was never appended");
        }
    }
}

fn tokens(i: u32) -> Vec<TokenId> {
    (0..3 + i % 5).map(|j| TokenId((i * 7 + j * j) % 11)).collect()
}

/// Everything that changes files: appends, freezing, merging, forgetting from log and segment, a namespace that goes.
fn scenario(log: &HistoryLog, known: &mut Known) {
    for i in 0..10 {
        known.append(log, if i % 4 == 3 { "b" } else { "a" }, tokens(i));
    }
    let first = known.held.keys().next().copied();
    first.into_iter().for_each(|id| known.forget(log, id));
    for i in 10..22 {
        known.append(log, "a", tokens(i));
        if i % 5 == 0 {
            known.n_failed += usize::from(log.maintain().is_err());
        }
    }
    let newest = known.held.keys().last().copied();
    newest.into_iter().for_each(|id| known.forget(log, id));
    known.forget_namespace(log, "b");
    known.append(log, "b", tokens(30));
    known.n_failed += usize::from(log.maintain().is_err());
}

/// The operations of the whole scenario without a fault.
fn n_ops(sync: SyncPolicy) -> usize {
    let disk = MemDisk::default();
    let log = open(&disk, options(sync)).unwrap();
    let mut known = Known::default();
    scenario(&log, &mut known);
    known.check(&log, false, "without faults");
    assert_eq!((known.n_failed, known.held.len(), known.forgotten.len()), (0, 19, 4));
    assert!(log.stats().namespaces[0].n_segments < 5, "{:?}", log.stats());
    disk.n_ops()
}

#[test]
fn a_crash_at_every_operation_loses_nothing_that_was_acknowledged() {
    for (sync, crashes) in [
        (SyncPolicy::Always, &[Crash::KeepsAll, Crash::LosesUnsynced, Crash::Tears][..]),
        (SyncPolicy::Every(3), &[Crash::KeepsAll]),
        (SyncPolicy::Never, &[Crash::KeepsAll]),
    ] {
        for at in 0..n_ops(sync) {
            for &crash in crashes {
                let case = format!("{sync:?}, {crash:?} at operation {at}");
                let disk = MemDisk::default();
                disk.fail(Some(Fails::From(at)));
                let mut known = Known::default();
                if let Ok(log) = open(&disk, options(sync)) {
                    scenario(&log, &mut known);
                }
                disk.crash(crash);
                let log = open(&disk, options(sync)).unwrap_or_else(|error| panic!("{case}: {error}"));
                // The append that the crash fell into may be there.
                known.check(&log, true, &case);
                assert!(log.list().len() <= known.held.len() + known.unsure.len() + 1, "{case}");
                log.verify().unwrap();
                // And it goes on, and finds the same again.
                known.append(&log, "a", tokens(1));
                log.maintain().unwrap();
                drop(log);
                known.check(&open(&disk, options(sync)).unwrap(), true, &case);
            }
        }
    }
}

#[test]
fn an_error_at_every_operation_is_reported_and_survived() {
    for sync in [SyncPolicy::Always, SyncPolicy::Every(3)] {
        for at in 0..n_ops(sync) {
            let case = format!("{sync:?}, operation {at}");
            let disk = MemDisk::default();
            disk.fail(Some(Fails::Once(at)));
            let mut known = Known::default();
            match open(&disk, options(sync)) {
                Ok(log) => {
                    scenario(&log, &mut known);
                    // Without a reopen everything is as the answers said, the stopped store included.
                    known.check(&log, false, &case);
                }
                Err(error) => assert!(matches!(error, HistoryError::Io { .. }), "{case}: {error}"),
            }
            disk.fail(None);
            let log = open(&disk, options(sync)).unwrap_or_else(|error| panic!("{case}: {error}"));
            // With Every, a failed sync takes back what was not durable yet.
            if sync == SyncPolicy::Always {
                known.check(&log, false, &case);
            }
            log.append("a", &tokens(1)).unwrap();
            log.verify().unwrap();
        }
    }
}

#[test]
fn after_a_failed_sync_nothing_is_written_until_a_reopen() {
    let disk = MemDisk::default();
    let log = open(&disk, options(SyncPolicy::Always)).unwrap();
    let kept = log.append("a", &tokens(1)).unwrap();
    // An append writes, then syncs.
    disk.fail(Some(Fails::Once(1)));
    assert!(matches!(log.append("a", &tokens(2)), Err(HistoryError::Io { action: "sync", .. })));
    disk.fail(None);
    assert!(matches!(log.append("a", &tokens(3)), Err(HistoryError::Stopped)));
    assert!(matches!(log.append("b", &tokens(3)), Err(HistoryError::Stopped)));
    assert!(matches!(log.forget(kept), Err(HistoryError::Stopped)));
    assert!(matches!(log.maintain(), Err(HistoryError::Stopped)));
    drop(log);
    let log = open(&disk, options(SyncPolicy::Always)).unwrap();
    assert_eq!(log.list().iter().map(|info| info.record).collect::<Vec<_>>(), [kept]);
    log.append("a", &tokens(4)).unwrap();
}

#[test]
fn a_full_disk_is_an_error_until_there_is_room() {
    let disk = MemDisk::default();
    let log = open(&disk, options(SyncPolicy::Always)).unwrap();
    let mut known = Known::default();
    let (mut i, mut n_full) = (0, 0);
    // Little by little, so that every kind of write meets the end of the disk.
    for room in (0..500_000).step_by(1777) {
        disk.set_bytes_max(room);
        let full = |error: &HistoryError| match error {
            HistoryError::Io { source, .. } => source.kind() == io::ErrorKind::StorageFull,
            _ => false,
        };
        match log.append("a", &tokens(i)) {
            Ok(id) => drop(known.held.insert(id, ("a".into(), tokens(i)))),
            Err(error) => {
                assert!(full(&error), "{error}");
                n_full += 1;
            }
        }
        if let Err(error) = log.maintain() {
            assert!(full(&error), "{error}");
        }
        i += 1;
        known.check(&log, false, "full");
    }
    assert!(n_full > 20 && known.held.len() > 20, "{n_full} of {i}");
    drop(log);
    known.check(&open(&disk, options(SyncPolicy::Always)).unwrap(), false, "full, opened again");
}

/// Files of a store with a log, a frozen segment and a merged one.
fn small_store(disk: &MemDisk) -> Known {
    let log = open(disk, options(SyncPolicy::Always)).unwrap();
    let mut known = Known::default();
    (0..22).for_each(|i| known.append(&log, "a", tokens(i)));
    log.maintain().unwrap();
    let stats = &log.stats().namespaces[0];
    assert!(stats.n_segments >= 2 && stats.n_live_tokens > 0, "{stats:?}");
    known
}

#[test]
fn bits_of_a_small_store_are_covered() {
    check_bits(53);
}

#[test]
#[ignore = "a minute: every bit"]
fn every_bit_of_a_small_store_is_covered() {
    check_bits(1);
}

/// Flips every bit of the logs and of the segments' headers, and every `step`-th of the rest.
fn check_bits(step: usize) {
    let disk = MemDisk::default();
    let known = small_store(&disk);
    disk.crash(Crash::KeepsAll);
    for path in disk.paths() {
        let whole = disk.contents(&path);
        let is_log = path.file_name().unwrap().to_str().unwrap().starts_with("log-");
        for bit in 0..whole.len() * 8 {
            if !is_log && bit >= 72 * 8 && bit % step != 0 {
                continue;
            }
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            disk.put(&path, &flipped);
            let case = format!("{}, bit {bit}", path.display());
            let found = open(&disk, options(SyncPolicy::Always)).and_then(|log| {
                let is_torn =
                    log.recovered().iter().any(|recovered| recovered.torn && recovered.path == path);
                log.verify().map(|()| assert!(is_torn, "{case}: not noticed"))
            });
            if let Err(error) = found {
                let HistoryError::Damaged { path: named, .. } = &error else { panic!("{case}: {error}") };
                assert_eq!(*named, path, "{case}");
            }
        }
        disk.put(&path, &whole);
    }
    known.check(&open(&disk, options(SyncPolicy::Always)).unwrap(), false, "whole again");
}

#[test]
fn a_repair_drops_what_is_damaged_and_nothing_else() {
    let disk = MemDisk::default();
    let known = small_store(&disk);
    disk.crash(Crash::KeepsAll);
    for path in disk.paths() {
        let whole = disk.contents(&path);
        let mut flipped = whole.clone();
        // In the header of a log and a segment alike.
        flipped[9] ^= 4;
        disk.put(&path, &flipped);
        let error = open(&disk, options(SyncPolicy::Always)).unwrap_err();
        assert!(matches!(error, HistoryError::Damaged { offset: 0, .. }), "{error}");
        let repair = HistoryOptions { repair: true, ..options(SyncPolicy::Always) };
        let log = open(&disk, repair).unwrap();
        assert_eq!(log.recovered().len(), 1, "{:?}", log.recovered());
        assert_eq!(log.recovered()[0].path, path);
        let is_log = path.file_name().unwrap().to_str().unwrap().starts_with("log-");
        let n_lost = known.held.len() - log.list().len();
        assert_eq!(n_lost == 0, is_log, "the records of a log say where they belong");
        for info in log.list() {
            assert_eq!(log.tokens(info.record).unwrap().as_ref(), Some(&known.held[&info.record].1));
        }
        drop(log);
        let log =
            open(&disk, options(SyncPolicy::Always)).unwrap_or_else(|error| panic!("repaired: {error}"));
        assert!(log.recovered().is_empty());
        drop(log);
        disk.put(&path, &whole);
    }
}

#[test]
fn a_page_that_goes_bad_silences_its_segment_and_no_other() {
    use refrain::DraftSource;
    let disk = MemDisk::default();
    small_store(&disk);
    disk.crash(Crash::KeepsAll);
    let is_segment =
        |path: &&std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("segment-");
    let path = disk.paths().iter().find(is_segment).unwrap().clone();
    let mut bytes = disk.contents(&path);
    // Behind the header and the text, which drafts do not read.
    bytes[2 * 4096] ^= 1;
    disk.put(&path, &bytes);
    let log = open(&disk, options(SyncPolicy::Always)).unwrap();
    let mut source = log.source("a");
    for i in 0..22 {
        let mut anchors = Vec::new();
        source.anchors(&tokens(i), &mut anchors);
        let mut candidates = refrain::Candidates::with_limit(64);
        source.expand(&anchors.iter().map(|anchor| anchor.cursor).collect::<Vec<_>>(), &mut candidates);
    }
    let stats = log.stats();
    assert!(
        matches!(&stats.namespaces[0].damaged[..], [HistoryError::Damaged { path: named, offset: 8192, .. }] if *named == path),
        "{stats:?}"
    );
    // The others are merged without it.
    log.maintain().unwrap();
    assert_eq!(log.stats().namespaces[0].damaged.len(), 1);
}

#[test]
fn a_repair_keeps_the_responses_that_can_be_read() {
    let is_segment =
        |path: &&std::path::PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with("segment-");
    for page in 1..4 {
        let disk = MemDisk::default();
        let log =
            open(&disk, HistoryOptions { live_tokens_max: 1 << 12, ..options(SyncPolicy::Always) }).unwrap();
        let mut known = Known::default();
        // Two pages of text in the segment, with the boundary inside a response.
        (0..21).for_each(|i| known.append(&log, "a", (0..150).map(|j| TokenId(i * j % 300)).collect()));
        (0..7).for_each(|_| known.append(&log, "a", tokens(2)));
        let n_before = known.held.len();
        log.append("a", &[TokenId(5); 1 << 12]).unwrap();
        drop(log);
        let path = disk.paths().iter().find(is_segment).unwrap().clone();
        let mut bytes = disk.contents(&path);
        bytes[page * 4096 + 7] ^= 0x10;
        disk.put(&path, &bytes);
        let log = open(&disk, options(SyncPolicy::Always)).unwrap();
        let dropped = log.repair().unwrap();
        assert_eq!((dropped[0].offset, dropped[0].bytes, dropped.len()), (page as u64 * 4096, 4096, 1));
        log.verify().unwrap();
        assert_eq!(log.repair().unwrap(), []);
        let n_left = log.list().len() - 1;
        // 2048 symbols a page, 151 a response: pages of the text cost their own, the array's cost none.
        let n_lost = [0, 14, 7 + 8, 0][page];
        assert_eq!(n_before - n_left, n_lost, "page {page}");
        for info in log.list() {
            if let Some((_, expected)) = known.held.get(&info.record) {
                assert_eq!(log.tokens(info.record).unwrap().as_ref(), Some(expected));
            }
        }
    }
}

#[test]
fn there_is_an_end_to_namespaces() {
    let disk = MemDisk::default();
    let log = open(&disk, options(SyncPolicy::Always)).unwrap();
    for i in 0..HistoryLog::NAMESPACES_MAX {
        log.append(&format!("n{i}"), &[]).unwrap();
    }
    assert!(matches!(log.append("one more", &[]), Err(HistoryError::TooManyNamespaces { max: 1024 })));
    log.forget_namespace("n5").unwrap();
    log.append("one more", &[]).unwrap();
    drop(log);
    assert_eq!(open(&disk, options(SyncPolicy::Always)).unwrap().stats().namespaces.len(), 1024);
}

#[test]
fn a_second_store_is_refused_while_the_first_is_open() {
    let disk = MemDisk::default();
    let log = open(&disk, options(SyncPolicy::Always)).unwrap();
    assert!(matches!(open(&disk, options(SyncPolicy::Always)), Err(HistoryError::InUse { .. })));
    let source = log.source("a");
    drop(log);
    // A source holds the store open.
    assert!(matches!(open(&disk, options(SyncPolicy::Always)), Err(HistoryError::InUse { .. })));
    drop(source);
    open(&disk, options(SyncPolicy::Always)).unwrap();
}

#[test]
fn what_is_forgotten_is_in_no_file() {
    let secret: Vec<TokenId> = (0..6).map(|i| TokenId(0xdead_0000 + i)).collect();
    let holds = |disk: &MemDisk| {
        let is_in =
            |bytes: &[u8]| bytes.windows(4).any(|window| window[2..] == [0xad, 0xde] && window[1] == 0);
        disk.paths().iter().filter(|path| is_in(&disk.contents(path))).count()
    };
    // In the log, in a segment, in a merged one.
    for n_later in [0, 4, 30] {
        for whole_namespace in [false, true] {
            let disk = MemDisk::default();
            let log = open(&disk, options(SyncPolicy::Always)).unwrap();
            let id = log.append("a", &secret).unwrap();
            for i in 0..n_later {
                log.append("a", &tokens(i)).unwrap();
            }
            log.maintain().unwrap();
            assert_eq!(holds(&disk), 1, "{n_later}");
            if whole_namespace {
                assert!(log.forget_namespace("a").unwrap());
                assert!(!log.forget_namespace("a").unwrap());
                assert_eq!(disk.paths(), Vec::<std::path::PathBuf>::new());
            } else {
                log.forget(id).unwrap();
                assert!(
                    matches!(log.forget(id), Err(HistoryError::NoSuchRecord { record }) if record == id.0)
                );
                assert_eq!(log.list().len(), n_later as usize);
            }
            assert_eq!(holds(&disk), 0, "{n_later}");
            disk.crash(Crash::LosesUnsynced);
            assert_eq!(holds(&disk), 0, "{n_later}, after a loss of power");
        }
    }
}
