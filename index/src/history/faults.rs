//! The store on a failing disk: for every operation and every failure, no acknowledged response is lost.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use refrain::TokenId;
use refrain::drafting::DraftSource;
use refrain::internals::draft::{EchoList, EchoStore};

use super::disk::Disk;
use super::testing::{Crash, Fails, MemDisk};
use super::{
    Access, HistoryError, HistoryKey, HistoryLog, HistoryOptions, LeftOutReason, RecordId, SyncPolicy,
};

const KEY: HistoryKey = HistoryKey { tokenizer: 1, model: 2 };

/// Whether this is the module `faults_with_key`. It repeats all tests but those that look for plain bytes, damage bytes at places of the
/// plain formats, or count them; `index/tests/index/keys.rs` damages encrypted files.
fn encrypts() -> bool {
    module_path!().ends_with("with_key")
}

/// Small limits, so that a few responses are frozen and a few more are merged.
fn options(sync: SyncPolicy) -> HistoryOptions {
    let key = encrypts().then_some([9; 32]);
    HistoryOptions { sync, live_tokens_max: 16, segment_tokens_max: 200, key, ..HistoryOptions::default() }
}

fn open(disk: &MemDisk, options: HistoryOptions) -> Result<HistoryLog, HistoryError> {
    HistoryLog::open_on(Box::new(disk.clone()), Path::new("history"), KEY, options)
}

/// The store, with every append synced.
#[track_caller]
fn opened(disk: &MemDisk) -> HistoryLog {
    open(disk, options(SyncPolicy::Always)).unwrap()
}

fn is_segment(path: &Path) -> bool {
    path.file_name().unwrap().to_str().unwrap().starts_with("segment-")
}

fn is_log(path: &Path) -> bool {
    path.file_name().unwrap().to_str().unwrap().starts_with("log-")
}

fn path_of(disk: &MemDisk, is_kind: fn(&Path) -> bool) -> PathBuf {
    disk.paths().into_iter().find(|path| is_kind(path)).unwrap()
}

/// Flips bits of one byte of a file. Returns its new bytes.
fn flip(disk: &MemDisk, path: &Path, at: usize, bits: u8) -> Vec<u8> {
    let mut bytes = disk.contents(path);
    bytes[at] ^= bits;
    disk.put(path, &bytes);
    bytes
}

/// Tokens that no other response has.
fn secret() -> Vec<TokenId> {
    (0..6).map(|i| TokenId(0xdead_0000 + i)).collect()
}

/// The number of files with tokens of [`secret`].
fn n_with_secret(disk: &MemDisk) -> usize {
    let is_in = |bytes: &[u8]| bytes.windows(4).any(|window| window[2..] == [0xad, 0xde] && window[1] == 0);
    disk.paths().iter().filter(|path| is_in(&disk.contents(path))).count()
}

type Records = BTreeMap<RecordId, (String, Vec<TokenId>)>;

/// The expected contents of the store.
#[derive(Default, Debug)]
struct Known {
    /// Append acknowledged.
    held: Records,
    /// The call to append or forget failed or did not return: the record may be there.
    unsure: Records,
    /// Forgetting acknowledged.
    forgotten: Vec<RecordId>,
    /// The keys of lists of echo: those of each namespace, and those that were forgotten with a response.
    echoed: BTreeMap<String, BTreeSet<u64>>,
    silenced: BTreeSet<u64>,
    n_failed: usize,
}

impl Known {
    fn append(&mut self, log: &HistoryLog, namespace: &str, tokens: Vec<TokenId>) {
        // More than 1 µs: a separate test covers two processes with equal ids.
        std::thread::sleep(std::time::Duration::from_micros(2));
        match log.append(namespace, &tokens) {
            Ok(id) => drop(self.held.insert(id, (namespace.to_owned(), tokens))),
            // A failed append leaves no record, also after a reopen. A crash during the append may leave one.
            Err(_) => self.n_failed += 1,
        }
    }

    fn forget(&mut self, log: &HistoryLog, id: RecordId) {
        let Some(record) = self.held.remove(&id) else { return };
        match log.forget(id) {
            Ok(()) => {
                self.forgotten.push(id);
                self.silence(&record.0);
            }
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
            Ok(_) => {
                self.forgotten.extend(Records::into_keys(of));
                self.silence(namespace);
            }
            Err(_) => {
                self.unsure.extend(of);
                self.n_failed += 1;
            }
        }
    }

    /// A session of the namespace sets a list of echo.
    fn learn(&mut self, log: &HistoryLog, namespace: &str) {
        let Ok(echo) = log.echo(namespace, ECHO_LISTS) else { return };
        let key = (self.silenced.len() + self.echoed.values().map(BTreeSet::len).sum::<usize>()) as u64;
        set(&echo, key);
        self.echoed.entry(namespace.to_owned()).or_default().insert(key);
    }

    fn silence(&mut self, namespace: &str) {
        self.silenced.extend(self.echoed.remove(namespace).unwrap_or_default());
    }

    /// Lists of echo are those of the namespace, and none of them derives from a forgotten response.
    fn check_echo(&self, log: &HistoryLog, case: &str) {
        for namespace in ["a", "b"] {
            let keys =
                keys(&log.echo(namespace, ECHO_LISTS).unwrap_or_else(|error| panic!("{case}: {error}")));
            assert!(keys.is_disjoint(&self.silenced), "{case}: {keys:?} of {namespace} have come back");
            let echoed = self.echoed.get(namespace).cloned().unwrap_or_default();
            assert!(keys.is_subset(&echoed), "{case}: {keys:?} of {namespace}, not {echoed:?}");
        }
    }

    /// The list and the tokens match the expected contents.
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

/// More than any test sets.
const ECHO_LISTS: u32 = 1000;

/// Sets the list of a key.
fn set(echo: &EchoStore, key: u64) {
    let list = EchoList { key, tokens: [7, 6, 5, 4, 3, 2, 1, 0], sixteenths: [9; 8] };
    echo.replace(ECHO_LISTS, &[echo.lists(), vec![list]].concat());
}

fn keys(echo: &EchoStore) -> BTreeSet<u64> {
    echo.lists().iter().map(|list| list.key).collect()
}

fn tokens(i: u32) -> Vec<TokenId> {
    (0..3 + i % 5).map(|j| TokenId((i * 7 + j * j) % 11)).collect()
}

/// All changes of files: append, freeze, merge, keep lists of echo, forget from log and segment, remove a namespace.
fn scenario(log: &HistoryLog, known: &mut Known) {
    for i in 0..10 {
        let namespace = if i % 4 == 3 { "b" } else { "a" };
        known.append(log, namespace, tokens(i));
        known.learn(log, namespace);
    }
    known.n_failed += usize::from(log.maintain().is_err());
    let first = known.held.keys().next().copied();
    first.into_iter().for_each(|id| known.forget(log, id));
    for i in 10..22 {
        known.append(log, "a", tokens(i));
        if i % 5 == 0 {
            known.learn(log, "a");
            known.n_failed += usize::from(log.maintain().is_err());
        }
    }
    let newest = known.held.keys().last().copied();
    newest.into_iter().for_each(|id| known.forget(log, id));
    known.forget_namespace(log, "b");
    known.append(log, "b", tokens(30));
    known.learn(log, "b");
    known.n_failed += usize::from(log.maintain().is_err());
}

/// The number of operations of the whole scenario without a fault.
fn n_ops(sync: SyncPolicy) -> usize {
    let disk = MemDisk::default();
    let log = open(&disk, options(sync)).unwrap();
    let mut known = Known::default();
    scenario(&log, &mut known);
    known.check(&log, false, "without faults");
    assert_eq!((known.n_failed, known.held.len(), known.forgotten.len()), (0, 19, 4));
    known.check_echo(&log, "without faults");
    assert_eq!((known.echoed["b"].len(), known.silenced.len()), (1, 13));
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
                // The interrupted append may be there.
                known.check(&log, true, &case);
                known.check_echo(&log, &case);
                assert!(log.list().len() <= known.held.len() + known.unsure.len() + 1, "{case}");
                log.verify().unwrap();
                // The store accepts further appends, and finds the same again.
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
                    // Without a reopen, the contents match the results of all calls, also if the store has stopped.
                    known.check(&log, false, &case);
                }
                Err(error) => assert!(matches!(error, HistoryError::Io { .. }), "{case}: {error}"),
            }
            disk.fail(None);
            let log = open(&disk, options(sync)).unwrap_or_else(|error| panic!("{case}: {error}"));
            known.check_echo(&log, &case);
            // With `Every`, a failed sync removes the records that were not durable yet.
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
    let log = opened(&disk);
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
    let log = opened(&disk);
    assert_eq!(log.list().iter().map(|info| info.record).collect::<Vec<_>>(), [kept]);
    log.append("a", &tokens(4)).unwrap();
}

#[test]
fn a_full_disk_is_an_error_until_there_is_room() {
    let disk = MemDisk::default();
    let log = opened(&disk);
    let mut known = Known::default();
    let (mut i, mut n_full) = (0, 0);
    // Capacity grows in small steps, so that every kind of write reaches the end of the disk.
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
    known.check(&opened(&disk), false, "full, opened again");
}

/// Files of a store with a log, a frozen segment and a merged one.
fn small_store(disk: &MemDisk) -> Known {
    small_store_with(disk, false)
}

/// The same, on request with lists of echo.
fn small_store_with(disk: &MemDisk, echoes: bool) -> Known {
    let log = opened(disk);
    let mut known = Known::default();
    if echoes {
        (0..3).for_each(|_| known.learn(&log, "a"));
    }
    (0..22).for_each(|i| known.append(&log, "a", tokens(i)));
    log.maintain().unwrap();
    let stats = &log.stats().namespaces[0];
    assert!(stats.n_segments >= 2 && stats.n_live_tokens > 0, "{stats:?}");
    known
}

#[test]
fn bits_of_a_small_store_are_covered() {
    if encrypts() {
        return;
    }
    check_bits(53);
}

#[test]
#[ignore = "a minute: every bit"]
fn every_bit_of_a_small_store_is_covered() {
    check_bits(1);
}

/// Flips every bit of the logs and of the segments' headers, and every `step`-th bit of the rest. After each flip,
/// the store opens for writing, reports the damaged parts, has every other response, drafts from it, and deletes
/// nothing.
fn check_bits(step: usize) {
    let disk = MemDisk::default();
    let known = small_store(&disk);
    disk.crash(Crash::KeepsAll);
    let files: Vec<(PathBuf, Vec<u8>)> =
        disk.paths().into_iter().map(|path| (path.clone(), disk.contents(&path))).collect();
    for (path, whole) in &files {
        let is_log = is_log(path);
        for bit in 0..whole.len() * 8 {
            if !is_log && bit >= 72 * 8 && bit % step != 0 {
                continue;
            }
            let mut flipped = whole.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            let disk = MemDisk::default();
            disk.create_dir(path.parent().unwrap()).unwrap();
            files.iter().for_each(|(other, bytes)| disk.put(other, bytes));
            disk.put(path, &flipped);
            check_damaged(&disk, &known, path, &flipped, &format!("{}, bit {bit}", path.display()));
        }
    }
    known.check(&opened(&disk), false, "whole again");
}

fn check_damaged(disk: &MemDisk, known: &Known, path: &Path, bytes: &[u8], case: &str) {
    let is_kept = || disk.paths().iter().any(|path| disk.contents(path) == bytes);
    let log = open(disk, options(SyncPolicy::Always)).unwrap_or_else(|error| panic!("{case}: {error}"));
    assert!(matches!(log.access(), Access::Write), "{case}: {:?}", log.access());
    // Damage of a page is detected when the page is read.
    let found = log.verify();
    assert!(log.left_out().iter().any(|left_out| left_out.path == path), "{case}: not noticed, {found:?}");
    assert!(is_kept(), "{case}: the damaged file is gone");
    log.maintain().unwrap();
    assert!(is_kept(), "{case}: the damaged file is gone after a merge");
    log.verify().unwrap_or_else(|error| panic!("{case}: {error}"));
    let listed = log.list();
    for info in &listed {
        assert_eq!(log.tokens(info.record).unwrap().as_ref(), Some(&known.held[&info.record].1), "{case}");
    }
    let n_lost = known.held.len() - listed.len();
    let n_in_file = if is_segment(path) { known.held.len() - 1 } else { 1 };
    assert!(n_lost <= n_in_file, "{case}: {n_lost} responses are lost");
    let mut source = log.source("a");
    for info in &listed {
        source.truncate(0);
        let text = &known.held[&info.record].1;
        let mut anchors = Vec::new();
        source.anchors(text, &mut anchors);
        assert!(anchors.first().is_some_and(|anchor| anchor.match_len >= 3), "{case}: {anchors:?}");
    }
    drop((source, log));
    // The notice appears once, and nothing else is lost.
    let log = opened(disk);
    assert_eq!((log.left_out(), log.list()), (vec![], listed), "{case}");
}

#[test]
fn a_repair_drops_what_is_damaged_and_nothing_else() {
    if encrypts() {
        return;
    }
    let disk = MemDisk::default();
    let known = small_store(&disk);
    disk.crash(Crash::KeepsAll);
    for path in disk.paths() {
        let whole = disk.contents(&path);
        // Offset in the header of both logs and segments.
        let flipped = flip(&disk, &path, 9, 4);
        let log = opened(&disk);
        let [left_out] = &log.left_out()[..] else { panic!("{:?}", log.left_out()) };
        assert_eq!((&left_out.path, left_out.offset), (&path, 0));
        assert_eq!(left_out.reason, LeftOutReason::Damaged("the header's checksum"));
        let aside = left_out.aside.clone().unwrap();
        assert_eq!(disk.contents(&aside), flipped);
        let dropped = log.repair().unwrap();
        assert_eq!((dropped.len(), &dropped[0].path), (1, &path), "{dropped:?}");
        assert!(!disk.paths().contains(&aside));
        assert_eq!(log.repair().unwrap(), []);
        let n_lost = known.held.len() - log.list().len();
        assert_eq!(n_lost == 0, is_log(&path), "the records of a log say where they belong");
        for info in log.list() {
            assert_eq!(log.tokens(info.record).unwrap().as_ref(), Some(&known.held[&info.record].1));
        }
        drop(log);
        let log = opened(&disk);
        assert_eq!(log.left_out(), []);
        drop(log);
        disk.put(&path, &whole);
    }
}

/// A store whose segment has a damaged page that drafts read, and the path of the segment.
fn with_bad_page(disk: &MemDisk) -> (Known, PathBuf) {
    let known = small_store(disk);
    disk.crash(Crash::KeepsAll);
    let path = path_of(disk, is_segment);
    // Beyond the header and the text, because drafts do not read the text.
    flip(disk, &path, 2 * 4096, 1);
    (known, path)
}

fn draft_all(log: &HistoryLog) {
    let mut source = log.source("a");
    for i in 0..22 {
        let mut anchors = Vec::new();
        source.anchors(&tokens(i), &mut anchors);
        let mut candidates = refrain::drafting::Candidates::with_limit(64);
        source.expand(&anchors.iter().map(|anchor| anchor.cursor).collect::<Vec<_>>(), &mut candidates);
    }
}

#[test]
fn a_page_that_goes_bad_silences_its_segment_until_it_is_written_anew() {
    if encrypts() {
        return;
    }
    let disk = MemDisk::default();
    let (known, path) = with_bad_page(&disk);
    let log = opened(&disk);
    // Another process detects the same damage but cannot repair it.
    let reader = opened(&disk);
    for log in [&log, &reader] {
        draft_all(log);
        let stats = log.stats();
        assert!(
            matches!(&stats.namespaces[0].damaged[..], [HistoryError::Damaged { path: named, offset: 8192, .. }] if *named == path),
            "{stats:?}"
        );
        let [left_out] = &log.left_out()[..] else { panic!("{:?}", log.left_out()) };
        assert_eq!((&left_out.path, left_out.offset, &left_out.aside), (&path, 8192, &None));
    }
    log.maintain().unwrap();
    assert_eq!(log.stats().namespaces[0].damaged.len(), 0);
    let [left_out] = &log.left_out()[..] else { panic!("{:?}", log.left_out()) };
    assert!(disk.paths().contains(left_out.aside.as_ref().unwrap()));
    // The page contained no tokens, so no response is lost.
    known.check(&log, false, "written anew");
    log.verify().unwrap();
    reader.maintain().unwrap();
    known.check(&reader, false, "read again");
    assert_eq!(reader.left_out(), []);
}

#[test]
fn a_repair_keeps_the_responses_that_can_be_read() {
    if encrypts() {
        return;
    }
    for page in 1..4 {
        let disk = MemDisk::default();
        let log =
            open(&disk, HistoryOptions { live_tokens_max: 1 << 12, ..options(SyncPolicy::Always) }).unwrap();
        let mut known = Known::default();
        // Two pages of text in the segment; the boundary is inside a response.
        (0..21).for_each(|i| known.append(&log, "a", (0..150).map(|j| TokenId(i * j % 300)).collect()));
        (0..7).for_each(|_| known.append(&log, "a", tokens(2)));
        let n_before = known.held.len();
        log.append("a", &[TokenId(5); 1 << 12]).unwrap();
        drop(log);
        let bytes = flip(&disk, &path_of(&disk, is_segment), page * 4096 + 7, 0x10);
        let log = opened(&disk);
        let dropped = log.repair().unwrap();
        assert_eq!((dropped[0].offset, dropped[0].bytes, dropped.len()), (page as u64 * 4096, 4096, 1));
        assert!(!disk.paths().iter().any(|path| disk.contents(path) == bytes), "dropped for good");
        log.verify().unwrap();
        assert_eq!(log.repair().unwrap(), []);
        let n_left = log.list().len() - 1;
        // 2048 symbols per page, 151 per response. Damaged pages of the text lose their responses; other pages lose
        // none.
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
fn files_that_are_not_for_this_program_are_left_where_they_are() {
    if encrypts() {
        return;
    }
    let disk = MemDisk::default();
    let known = small_store(&disk);
    disk.crash(Crash::KeepsAll);
    // A file with another number. It does not belong here, so it must not be changed.
    let path = disk.paths().remove(0);
    let bytes = disk.contents(&path);
    let kind = path.file_name().unwrap().to_str().unwrap().split('-').next().unwrap().to_owned();
    let foreign = path.with_file_name(format!("{kind}-900"));
    disk.put(&foreign, &bytes);
    let log = opened(&disk);
    let [left_out] = &log.left_out()[..] else { panic!("{:?}", log.left_out()) };
    assert_eq!((&left_out.path, &left_out.reason), (&foreign, &LeftOutReason::Misplaced));
    known.check(&log, false, "beside a foreign file");
    assert_eq!(log.repair().unwrap(), []);
    assert_eq!(disk.contents(&foreign), bytes);
    log.append("a", &tokens(3)).unwrap();
}

#[test]
fn there_is_an_end_to_namespaces() {
    let disk = MemDisk::default();
    let log = opened(&disk);
    for i in 0..HistoryLog::NAMESPACES_MAX {
        log.append(&format!("n{i}"), &[]).unwrap();
    }
    assert!(matches!(log.append("one more", &[]), Err(HistoryError::TooManyNamespaces { max: 1024 })));
    log.forget_namespace("n5").unwrap();
    log.append("one more", &[]).unwrap();
    drop(log);
    assert_eq!(opened(&disk).stats().namespaces.len(), 1024);
}

#[test]
fn one_writes_and_the_others_hand_in() {
    let disk = MemDisk::default();
    let writer = opened(&disk);
    let mut known = Known::default();
    known.append(&writer, "a", tokens(1));
    let guests = [(); 2].map(|()| opened(&disk));
    for (i, guest) in (2..).zip(&guests) {
        assert!(matches!(guest.access(), Access::HandIn));
        guest.refresh().unwrap();
        known.check(guest, false, "what the others have appended");
        known.append(guest, "a", tokens(i));
        known.append(guest, "new", tokens(i));
        known.check(guest, false, "its own are seen at once");
        let held = known.held.keys().next().copied().unwrap();
        assert!(matches!(guest.forget(held), Err(HistoryError::InUse { .. })));
        assert!(matches!(guest.forget_namespace("a"), Err(HistoryError::InUse { .. })));
        assert!(matches!(guest.repair(), Err(HistoryError::InUse { .. })));
    }
    assert_eq!((known.n_failed, writer.list().len()), (0, 1));
    // Enough appends to freeze and merge while other processes read.
    (10..40).for_each(|i| known.append(&writer, "a", tokens(i)));
    writer.maintain().unwrap();
    known.check(&writer, false, "taken in");
    writer.maintain().unwrap();
    known.check(&writer, false, "once");
    for guest in &guests {
        guest.refresh().unwrap();
        assert!(matches!(guest.access(), Access::HandIn));
        known.check(guest, false, "refreshed");
    }
    let source = writer.source("a");
    drop(writer);
    guests[0].refresh().unwrap();
    assert!(matches!(guests[0].access(), Access::HandIn), "a source holds the store open");
    drop(source);
    known.append(&guests[1], "a", tokens(50));
    guests[0].refresh().unwrap();
    assert!(matches!(guests[0].access(), Access::Write));
    known.check(&guests[0], false, "by the new writer");
    guests[1].maintain().unwrap();
    assert!(matches!(guests[1].access(), Access::HandIn));
    known.check(&guests[1], false, "by the other");
}

/// Two processes on a disk that fails at every operation: a writer that freezes and merges, and one that hands in.
fn scenario_of_two(disk: &MemDisk, known: &mut Known) {
    let Ok(writer) = open(disk, options(SyncPolicy::Always)) else { return };
    let Ok(guest) = open(disk, options(SyncPolicy::Always)) else { return };
    for i in 0..12 {
        known.append(&writer, "a", tokens(i));
        known.append(&guest, if i % 3 == 0 { "b" } else { "a" }, tokens(40 + i));
        if i % 4 == 3 {
            known.n_failed += usize::from(writer.maintain().is_err());
            known.n_failed += usize::from(guest.maintain().is_err());
        }
    }
    let held = known.held.keys().nth(3).copied();
    held.into_iter().for_each(|id| known.forget(&writer, id));
    known.append(&guest, "b", tokens(60));
    let newest = known.held.keys().last().copied();
    newest.into_iter().for_each(|id| known.forget(&writer, id));
    drop(writer);
    known.append(&guest, "b", tokens(61));
    known.n_failed += usize::from(guest.maintain().is_err());
    known.append(&guest, "b", tokens(62));
}

#[test]
fn a_crash_at_every_operation_of_two_processes_loses_nothing() {
    let disk = MemDisk::default();
    let mut known = Known::default();
    scenario_of_two(&disk, &mut known);
    assert_eq!((known.n_failed, known.held.len(), known.forgotten.len()), (0, 25, 2));
    known.check(&opened(&disk), false, "without faults");
    for at in 0..disk.n_ops() {
        for crash in [Some(Crash::KeepsAll), Some(Crash::LosesUnsynced), Some(Crash::Tears), None] {
            let case = format!("{crash:?} at operation {at}");
            let disk = MemDisk::default();
            disk.fail(Some(if crash.is_some() { Fails::From(at) } else { Fails::Once(at) }));
            let mut known = Known::default();
            scenario_of_two(&disk, &mut known);
            match crash {
                Some(crash) => disk.crash(crash),
                None => disk.fail(None),
            }
            let log =
                open(&disk, options(SyncPolicy::Always)).unwrap_or_else(|error| panic!("{case}: {error}"));
            assert!(matches!(log.access(), Access::Write), "{case}: {:?}", log.access());
            // A hand-in that failed at its last step, or that a crash interrupted, may be there.
            known.check(&log, true, &case);
            assert!(log.list().len() <= known.held.len() + known.unsure.len() + 1, "{case}");
            assert!(log.left_out().iter().all(|left_out| left_out.reason == LeftOutReason::Torn), "{case}");
            log.maintain().unwrap_or_else(|error| panic!("{case}: {error}"));
            known.check(&log, true, &case);
        }
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_read() {
    let disk = MemDisk::default();
    let known = small_store(&disk);
    disk.crash(Crash::KeepsAll);
    let segment = path_of(&disk, is_segment);
    disk.set_read_only();
    let log = opened(&disk);
    assert!(matches!(log.access(), Access::Read { .. }));
    known.check(&log, false, "read only");
    let mut anchors = Vec::new();
    refrain::drafting::DraftSource::anchors(&mut log.source("a"), &tokens(4), &mut anchors);
    assert!(anchors[0].match_len >= 3, "it drafts");
    let refused = log.append("a", &tokens(1)).unwrap_err();
    let HistoryError::ReadOnly { reason, .. } = refused else { panic!("{refused}") };
    assert!(matches!(&*reason, HistoryError::Io { action: "create", .. }), "{reason}");
    assert!(matches!(log.forget(RecordId(1)), Err(HistoryError::ReadOnly { .. })));
    log.maintain().unwrap();
    drop(log);
    // Damage is reported, and nothing is changed.
    flip(&disk, &segment, 9, 4);
    let log = opened(&disk);
    assert!(log.left_out()[0].path == segment && log.left_out()[0].aside.is_none(), "{:?}", log.left_out());
    assert!(!log.list().is_empty());
}

fn folder_of(namespace: &str) -> PathBuf {
    Path::new("history").join(KEY.to_string()).join(namespace)
}

#[test]
fn a_namespace_that_cannot_be_read_is_left_out() {
    let disk = MemDisk::default();
    let log = opened(&disk);
    let mut known = Known::default();
    for (i, namespace) in (0..).zip(["a", "b", "c"]) {
        known.append(&log, namespace, tokens(i));
    }
    drop(log);
    let of_b = *known.held.keys().nth(1).unwrap();
    let of_b = known.held.remove_entry(&of_b).unwrap();
    disk.set_unreadable(vec![folder_of("b")]);
    let writer = opened(&disk);
    assert!(matches!(writer.access(), Access::Write), "{:?}", writer.access());
    let reader = opened(&disk);
    assert!(matches!(reader.access(), Access::HandIn), "{:?}", reader.access());
    for log in [&writer, &reader] {
        known.check(log, false, "without `b`");
        assert_eq!(log.list().len(), 2);
        let [left_out] = &log.left_out()[..] else { panic!("{:?}", log.left_out()) };
        let reason = LeftOutReason::Io(io::ErrorKind::PermissionDenied);
        assert_eq!((&left_out.path, &left_out.reason), (&folder_of("b"), &reason));
    }
    known.append(&writer, "a", tokens(4));
    assert!(matches!(writer.append("b", &tokens(5)), Err(HistoryError::Io { action: "read", .. })));
    known.append(&reader, "b", tokens(6));
    reader.refresh().unwrap();
    known.check(&reader, false, "its own responses are seen");
    // Readable again: nothing was lost.
    disk.set_unreadable(Vec::new());
    known.held.extend([of_b]);
    writer.maintain().unwrap();
    assert_eq!(writer.left_out(), []);
    known.check(&writer, false, "readable again");
}

#[test]
fn a_namespace_that_fails_does_not_hold_up_the_hand_ins_of_others() {
    let disk = MemDisk::default();
    let writer = opened(&disk);
    let guest = opened(&disk);
    let mut known = Known::default();
    let of_a = guest.append("a", &tokens(1)).unwrap();
    (2..4).for_each(|i| known.append(&guest, "b", tokens(i)));
    disk.create_dir(&folder_of("a")).unwrap();
    disk.set_unreadable(vec![folder_of("a")]);
    assert!(matches!(writer.maintain(), Err(HistoryError::Io { action: "read", .. })));
    known.check(&writer, false, "`b` is taken in");
    // A response of another namespace can be forgotten; one that waits in the inbox gives the reason.
    let of_b = *known.held.keys().next().unwrap();
    known.forget(&writer, of_b);
    assert_eq!(known.n_failed, 0);
    assert!(matches!(writer.forget(of_a), Err(HistoryError::Io { action: "read", .. })));
    disk.set_unreadable(Vec::new());
    known.held.insert(of_a, ("a".into(), tokens(1)));
    writer.maintain().unwrap();
    known.check(&writer, false, "`a` is taken in");
    writer.forget(of_a).unwrap();
}

#[test]
fn what_is_forgotten_does_not_come_back_from_a_hand_in() {
    let check = |fails: Option<Fails>| {
        let disk = MemDisk::default();
        let writer = opened(&disk);
        let guest = opened(&disk);
        let mut known = Known::default();
        known.append(&guest, "a", tokens(1));
        known.append(&guest, "b", tokens(2));
        let of_a = *known.held.keys().next().unwrap();
        disk.fail(fails);
        known.forget(&writer, of_a);
        let n_ops = disk.n_ops();
        disk.fail(None);
        drop(writer);
        let writer = opened(&disk);
        writer.maintain().unwrap();
        known.check(&writer, false, &format!("{fails:?}"));
        n_ops
    };
    for at in 0..check(None) {
        check(Some(Fails::Once(at)));
    }
}

#[test]
fn a_full_disk_refuses_a_hand_in_and_keeps_the_others() {
    if encrypts() {
        return;
    }
    let disk = MemDisk::default();
    let writer = opened(&disk);
    let guest = opened(&disk);
    let mut known = Known::default();
    known.append(&guest, "a", tokens(1));
    for room in 0..110 {
        disk.set_bytes_max(disk.used_bytes() + room);
        let n_before = disk.paths().len();
        match guest.append("a", &tokens(2)) {
            Ok(id) => drop(known.held.insert(id, ("a".into(), tokens(2)))),
            Err(HistoryError::Io { source, .. }) => {
                assert_eq!((source.kind(), disk.paths().len()), (io::ErrorKind::StorageFull, n_before));
            }
            Err(error) => panic!("{error}"),
        }
        disk.set_bytes_max(usize::MAX);
    }
    assert!((2..60).contains(&known.held.len()), "{}", known.held.len());
    known.check(&guest, false, "full");
    writer.maintain().unwrap();
    known.check(&writer, false, "taken in");
}

#[test]
fn a_response_with_the_id_of_another_is_kept_too() {
    if encrypts() {
        return;
    }
    let disk = MemDisk::default();
    let writer = opened(&disk);
    let folder = Path::new("history").join(KEY.to_string());
    let inbox = super::inbox::Inbox { disk: &disk.plain(), folder: &folder, key: KEY };
    for frozen in [false, true] {
        let id = writer.append("a", &tokens(1)).unwrap();
        if frozen {
            writer.append("a", &[TokenId(3); 15]).unwrap();
        }
        let n_before = writer.list().len();
        // Another process used the same id in the same µs. A copy of the writer's own record is not added.
        for tokens in [tokens(2), tokens(1), tokens(2)] {
            inbox.put("a", &super::log::Record { id, tokens: tokens.into() }).unwrap();
        }
        // A reader has both, before the writer has moved them.
        let reader = opened(&disk);
        assert!(matches!(reader.access(), Access::HandIn));
        assert_eq!(reader.tokens(id).unwrap(), Some(tokens(1)));
        let of_reader = reader.list().into_iter().map(|info| reader.tokens(info.record).unwrap());
        assert!(of_reader.filter(|text| *text == Some(tokens(2))).count() >= 1, "frozen: {frozen}");
        writer.maintain().unwrap();
        assert_eq!(writer.tokens(id).unwrap(), Some(tokens(1)));
        let others =
            writer.list().into_iter().filter(|info| writer.tokens(info.record).unwrap() == Some(tokens(2)));
        assert!(others.count() >= 1 && writer.list().len() > n_before, "frozen: {frozen}");
        assert_eq!(inbox.read().unwrap().by_namespace.len(), 0);
        // A writer that was killed before it removed the hand-in leaves it there.
        let n_before = writer.list().len();
        inbox.put("a", &super::log::Record { id, tokens: tokens(2).into() }).unwrap();
        writer.maintain().unwrap();
        assert_eq!(writer.list().len(), n_before, "frozen: {frozen}");
    }
}

#[test]
fn what_is_forgotten_is_in_no_file() {
    if encrypts() {
        return;
    }
    // In the log, in a segment, in a merged segment.
    for n_later in [0, 4, 30] {
        for whole_namespace in [false, true] {
            let disk = MemDisk::default();
            let log = opened(&disk);
            let id = log.append("a", &secret()).unwrap();
            for i in 0..n_later {
                log.append("a", &tokens(i)).unwrap();
            }
            log.maintain().unwrap();
            assert_eq!(n_with_secret(&disk), 1, "{n_later}");
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
            assert_eq!(n_with_secret(&disk), 0, "{n_later}");
            disk.crash(Crash::LosesUnsynced);
            assert_eq!(n_with_secret(&disk), 0, "{n_later}, after a loss of power");
        }
    }
}

#[test]
fn what_is_forgotten_is_in_no_hand_in_and_in_no_file_that_was_set_aside() {
    if encrypts() {
        return;
    }
    for whole_namespace in [false, true] {
        for damaged in [false, true] {
            let disk = MemDisk::default();
            let mut writer = opened(&disk);
            let guest = opened(&disk);
            let id = guest.append("a", &secret()).unwrap();
            assert_eq!(n_with_secret(&disk), 1);
            if damaged {
                // In a log with another, damaged record.
                writer.maintain().unwrap();
                writer.append("a", &tokens(1)).unwrap();
                drop(writer);
                let path = path_of(&disk, is_log);
                flip(&disk, &path, disk.contents(&path).len() - 1, 1);
                writer = opened(&disk);
                assert_eq!((writer.left_out().len(), n_with_secret(&disk)), (1, 2), "in the log and aside");
            }
            if whole_namespace {
                assert!(writer.forget_namespace("a").unwrap());
                assert!(!writer.forget_namespace("a").unwrap());
            } else {
                writer.forget(id).unwrap();
            }
            assert_eq!(n_with_secret(&disk), 0);
            // A reader keeps it until its next refresh.
            assert_eq!(guest.tokens(id).unwrap(), Some(secret()));
            guest.refresh().unwrap();
            assert_eq!(guest.tokens(id).unwrap(), None);
            writer.maintain().unwrap();
            disk.crash(Crash::LosesUnsynced);
            assert_eq!(n_with_secret(&disk), 0);
        }
    }
}

/// The file of the lists of echo of namespace "a".
fn echo_path() -> PathBuf {
    folder_of("a").join("echo")
}

#[test]
fn lists_of_echo_are_kept_with_the_responses() {
    let disk = MemDisk::default();
    let known = small_store_with(&disk, true);
    let log = opened(&disk);
    let echo = log.echo("a", ECHO_LISTS).unwrap();
    assert_eq!(keys(&echo), known.echoed["a"]);
    assert_eq!(keys(&log.echo("b", ECHO_LISTS).unwrap()), BTreeSet::new());
    // Nothing has changed, so nothing is written.
    let n_ops = disk.n_ops();
    log.maintain().unwrap();
    assert_eq!(disk.n_ops(), n_ops);
    // A namespace without a response has no folder.
    set(&log.echo("b", ECHO_LISTS).unwrap(), 5);
    log.maintain().unwrap();
    assert!(!disk.paths().iter().any(|path| path.starts_with(folder_of("b"))));
    log.append("b", &tokens(1)).unwrap();
    log.maintain().unwrap();
    // The lists of a full store are those that were set last.
    (100..110).for_each(|key| set(&echo, key));
    log.maintain().unwrap();
    drop(log);
    let log = opened(&disk);
    assert_eq!(keys(&log.echo("b", ECHO_LISTS).unwrap()), BTreeSet::from([5]));
    assert_eq!(keys(&log.echo("a", 4).unwrap()), (106..110).collect());
    let stats = log.stats().namespaces;
    assert!(stats[0].bytes > 13 * 48, "{stats:?}");
    known.check(&log, true, "beside echo");
}

#[test]
fn damaged_lists_of_echo_are_left_out_and_nothing_else() {
    let disk = MemDisk::default();
    let known = small_store_with(&disk, true);
    disk.crash(Crash::KeepsAll);
    let whole = disk.contents(&echo_path());
    for bit in 0..whole.len() * 8 {
        let case = format!("bit {bit}");
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        disk.put(&echo_path(), &flipped);
        if bit % 7 == 0 {
            // Without a session that uses it.
            let log = opened(&disk);
            assert_eq!(log.left_out(), [], "{case}");
            assert!(matches!(log.verify(), Err(HistoryError::Damaged { .. })), "{case}");
            assert_eq!(log.left_out().len(), 1, "{case}");
            assert_eq!(log.repair().unwrap().len(), 1, "{case}");
            assert_eq!((log.repair().unwrap(), log.left_out(), log.verify().is_ok()), (vec![], vec![], true));
            assert!(!disk.paths().contains(&echo_path()));
            continue;
        }
        let log = opened(&disk);
        let echo = log.echo("a", ECHO_LISTS).unwrap();
        assert!(echo.is_empty(), "{case}");
        let [left_out] = &log.left_out()[..] else { panic!("{case}: {:?}", log.left_out()) };
        assert!(matches!(left_out.reason, LeftOutReason::Damaged(_)), "{case}: {left_out}");
        assert_eq!(disk.contents(left_out.aside.as_ref().unwrap()), flipped, "{case}");
        known.check(&log, false, &case);
        // They begin anew.
        set(&echo, 77);
        log.maintain().unwrap();
        assert_eq!(log.repair().unwrap().len(), 1, "{case}");
        drop(log);
        let log = opened(&disk);
        assert_eq!(keys(&log.echo("a", ECHO_LISTS).unwrap()), BTreeSet::from([77]), "{case}");
        assert_eq!(log.left_out(), [], "{case}");
    }
}

#[test]
fn lists_of_echo_that_are_not_for_this_program_stay() {
    if encrypts() {
        return;
    }
    for newer in [false, true] {
        let disk = MemDisk::default();
        let known = small_store_with(&disk, true);
        let mut bytes = disk.contents(&echo_path());
        // The version, or the owner.
        bytes[if newer { 8 } else { 16 }] ^= 2;
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes[..56]);
        bytes[56..64].copy_from_slice(&sum.to_le_bytes());
        disk.put(&echo_path(), &bytes);
        let log = opened(&disk);
        let echo = log.echo("a", ECHO_LISTS).unwrap();
        assert!(echo.is_empty());
        set(&echo, 3);
        log.maintain().unwrap();
        assert_eq!(log.repair().unwrap(), []);
        let [left_out] = &log.left_out()[..] else { panic!("{:?}", log.left_out()) };
        let expected = match newer {
            true => LeftOutReason::Version { given: 3, known: 1 },
            false => LeftOutReason::Misplaced,
        };
        assert_eq!((&left_out.reason, &left_out.path), (&expected, &echo_path()));
        assert_eq!(disk.contents(&echo_path()), bytes);
        // It may derive from the response, whatever it is.
        log.forget(*known.held.keys().next().unwrap()).unwrap();
        assert!(!disk.paths().contains(&echo_path()) && echo.is_empty());
        set(&echo, 4);
        log.maintain().unwrap();
        assert!(disk.paths().contains(&echo_path()));
    }
}

#[test]
fn readers_of_the_lists_of_echo_do_not_write_and_do_not_bring_back_what_is_forgotten() {
    if encrypts() {
        return;
    }
    for echoes in [false, true] {
        let disk = MemDisk::default();
        let known = small_store_with(&disk, echoes);
        let writer = opened(&disk);
        let guest = opened(&disk);
        let echo = guest.echo("a", ECHO_LISTS).unwrap();
        assert_eq!(echo.len(), if echoes { 3 } else { 0 });
        set(&echo, 200);
        guest.maintain().unwrap();
        assert_eq!(disk.paths().contains(&echo_path()), echoes);
        assert!(keys(&echo).contains(&200), "its own are kept in memory");
        if echoes {
            let of_writer = writer.echo("a", ECHO_LISTS).unwrap();
            assert!(!keys(&of_writer).contains(&200));
            set(&of_writer, 300);
            writer.maintain().unwrap();
            guest.refresh().unwrap();
            assert_eq!(keys(&echo), keys(&of_writer), "read again");
            set(&echo, 200);
        }
        // Whether the writer uses echo or not, nothing that derives from the response stays.
        writer.forget(*known.held.keys().next().unwrap()).unwrap();
        drop(writer);
        guest.refresh().unwrap();
        assert!(matches!(guest.access(), Access::Write));
        assert!(echo.is_empty());
        set(&echo, 400);
        guest.maintain().unwrap();
        drop(guest);
        let log = opened(&disk);
        assert_eq!(keys(&log.echo("a", ECHO_LISTS).unwrap()), BTreeSet::from([400]));
        log.clear().unwrap();
        assert_eq!(disk.paths(), Vec::<PathBuf>::new());
        assert!(log.echo("a", ECHO_LISTS).unwrap().is_empty());
    }
}

#[test]
fn lists_of_echo_begin_anew_at_the_maximum_age() {
    let disk = MemDisk::default();
    let age_max = Some(std::time::Duration::from_millis(50));
    let log = open(&disk, HistoryOptions { age_max, ..options(SyncPolicy::Always) }).unwrap();
    let echo = log.echo("a", ECHO_LISTS).unwrap();
    set(&echo, 1);
    log.append("a", &tokens(1)).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(60));
    log.append("a", &tokens(2)).unwrap();
    log.maintain().unwrap();
    assert!(log.list().len() < 2 && echo.is_empty() && !disk.paths().contains(&echo_path()));
}
