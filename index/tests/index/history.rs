//! The history on a real disk: appended responses are there after a reopen, forgotten ones are not, and drafts equal
//! the result of a scan of the responses.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use proptest::prelude::*;
use refrain::TokenId;
use refrain::drafting::{Anchor, Candidates, Cursor, DraftSource, EvidenceClass, TargetListener};
use refrain::internals::draft::OrderConfig;
use refrain_index::history::LeftOutReason;
use refrain_index::{
    HistoryError, HistoryKey, HistoryLog, HistoryLogSource, HistoryOptions, RecordId, SyncPolicy,
};

const KEY: HistoryKey = HistoryKey { tokenizer: 3, model: 4 };

/// Short logs, so that a few responses fill them, and no waiting for the disk.
fn small() -> HistoryOptions {
    HistoryOptions {
        sync: SyncPolicy::Never,
        live_tokens_max: 32,
        segment_tokens_max: 400,
        ..HistoryOptions::default()
    }
}

fn open(folder: &Path) -> HistoryLog {
    HistoryLog::open(folder, KEY, small()).expect("opens")
}

/// A source that also drafts from matches of a single token.
fn source(log: &HistoryLog, namespace: &str) -> HistoryLogSource {
    log.source_with_config(namespace, OrderConfig::default())
}

fn tokens(ids: impl IntoIterator<Item = u32>) -> Vec<TokenId> {
    ids.into_iter().map(TokenId).collect()
}

type Model = BTreeMap<RecordId, (String, Vec<TokenId>)>;

fn check(log: &HistoryLog, model: &Model) {
    let mut listed: Vec<_> = log.list();
    listed.sort_by_key(|info| info.record);
    let expected: Vec<(RecordId, &str, u32)> =
        model.iter().map(|(&id, (name, tokens))| (id, name.as_str(), tokens.len() as u32)).collect();
    let found: Vec<(RecordId, &str, u32)> =
        listed.iter().map(|info| (info.record, info.namespace.as_str(), info.n_tokens)).collect();
    assert_eq!(found, expected);
    for (&id, (_, tokens)) in model {
        assert_eq!(log.tokens(id).expect("sound").as_ref(), Some(tokens));
    }
    let stats = log.stats();
    let n_tokens: u64 = stats.namespaces.iter().map(|namespace| namespace.n_tokens).sum();
    assert_eq!(n_tokens, expected.iter().map(|record| u64::from(record.2)).sum::<u64>());
}

/// The length of the longest suffix of `text` that occurs in a response of the namespace.
fn longest_match(model: &Model, namespace: &str, text: &[TokenId]) -> usize {
    let newest = &text[text.len() - text.len().min(HistoryLogSource::REMATCH_LEN)..];
    let stands = |len: &usize| {
        let end = &newest[newest.len() - len..];
        let responses = model.values().filter(|(name, _)| name == namespace);
        responses.into_iter().any(|(_, response)| response.windows(*len).any(|window| window == end))
    };
    (1..=newest.len()).take_while(stands).last().unwrap_or(0)
}

/// The tokens of the namespace's responses, most frequent first.
fn frequent(model: &Model, namespace: &str) -> Vec<TokenId> {
    let mut counts = BTreeMap::<TokenId, u32>::new();
    let responses = model.values().filter(|(name, _)| name == namespace);
    responses.flat_map(|(_, tokens)| tokens).for_each(|&token| *counts.entry(token).or_default() += 1);
    let mut tokens: Vec<_> = counts.into_iter().collect();
    tokens.sort_by_key(|&(token, count)| (std::cmp::Reverse(count), token));
    tokens.into_iter().map(|(token, _)| token).collect()
}

fn anchors(source: &mut HistoryLogSource, text: &[TokenId]) -> Vec<Anchor> {
    let mut anchors = Vec::new();
    source.anchors(text, &mut anchors);
    anchors
}

/// Follows a text token by token and compares matches and candidates with the responses.
fn check_drafts(source: &mut HistoryLogSource, model: &Model, namespace: &str, text: &[TokenId]) {
    for end in 1..=text.len() {
        let text = &text[..end];
        let anchors = anchors(source, text);
        let longest = longest_match(model, namespace, text);
        assert_eq!(anchors.first().map_or(0, |anchor| anchor.match_len as usize), longest, "{text:?}");
        check_candidates(source, &anchors, model, namespace, text, 2);
    }
}

/// Checks that each candidate and its descendants follow the matched tokens in the responses at least as often as
/// claimed.
fn check_candidates(
    source: &mut HistoryLogSource,
    anchors: &[Anchor],
    model: &Model,
    namespace: &str,
    text: &[TokenId],
    depth: usize,
) {
    let frontier: Vec<Cursor> = anchors.iter().map(|anchor| anchor.cursor).collect();
    let mut candidates = Candidates::with_limit(64);
    source.expand(&frontier, &mut candidates);
    for candidate in candidates.as_slice() {
        let matched = &text[text.len() - candidate.match_len as usize..];
        let next = [matched, &[candidate.token]].concat();
        let responses = model.values().filter(|(name, _)| name == namespace);
        let n_seen: usize = responses
            .map(|(_, response)| response.windows(next.len()).filter(|window| *window == next).count())
            .sum();
        assert!(
            candidate.count >= 1 && candidate.count as usize <= n_seen,
            "{candidate:?} of {n_seen} after {text:?}"
        );
        assert!(candidate.probability > 0.0 && candidate.probability <= 1.0);
        if depth > 0 {
            let below = Anchor { cursor: candidate.next, match_len: candidate.match_len + 1 };
            let text = [text, &[candidate.token]].concat();
            check_candidates(source, &[below], model, namespace, &text, depth - 1);
        }
    }
}

#[derive(Debug, Clone)]
enum Op {
    Append(usize, Vec<u32>),
    Forget(usize),
    /// Every n-th response.
    ForgetAll(usize),
    ForgetNamespace(usize),
    Maintain,
    Reopen,
    Draft(usize, Vec<u32>),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let text = |len| prop::collection::vec(0..5u32, 0..len);
    let op = prop_oneof![
        12 => (0..3usize, text(32)).prop_map(|(name, text)| Op::Append(name, text)),
        1 => (0..100usize).prop_map(Op::Forget),
        1 => (1..4usize).prop_map(Op::ForgetAll),
        1 => (0..9usize).prop_map(Op::ForgetNamespace),
        2 => Just(Op::Maintain),
        2 => Just(Op::Reopen),
        4 => (0..3usize, text(12)).prop_map(|(name, text)| Op::Draft(name, text)),
    ];
    prop::collection::vec(op, 0..60)
}

const NAMES: [&str; 3] = ["mail", "Mail", "../ä/b"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn it_holds_what_a_map_would(ops in ops()) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut model = Model::new();
        let mut log = open(folder.path());
        let mut sources: Vec<_> = NAMES.iter().map(|name| source(&log, name)).collect();
        for op in ops {
            match op {
                Op::Append(name, text) => {
                    let text = tokens(text);
                    let id = log.append(NAMES[name], &text).expect("there is room");
                    prop_assert!(model.keys().all(|&older| older < id));
                    model.insert(id, (NAMES[name].to_owned(), text));
                }
                Op::Forget(i) => {
                    let id = model.keys().nth(i).copied().unwrap_or(RecordId(1));
                    prop_assert_eq!(log.forget(id).is_ok(), model.remove(&id).is_some());
                }
                Op::ForgetAll(step) => {
                    let unknown = RecordId(1);
                    let ids: Vec<_> = model.keys().copied().step_by(step).chain([unknown]).collect();
                    prop_assert_eq!(log.forget_all(&ids).expect("sound"), ids.len() - 1);
                    model.retain(|id, _| !ids.contains(id));
                }
                Op::ForgetNamespace(name) => {
                    let name = NAMES.get(name).copied().unwrap_or("none");
                    let is_there = log.stats().namespaces.iter().any(|namespace| namespace.namespace == name);
                    prop_assert_eq!(log.forget_namespace(name).expect("sound"), is_there);
                    model.retain(|_, (namespace, _)| namespace != name);
                }
                Op::Maintain => log.maintain().expect("there is room"),
                Op::Reopen => {
                    drop((sources, log));
                    log = open(folder.path());
                    prop_assert_eq!(log.left_out(), []);
                    sources = NAMES.iter().map(|name| source(&log, name)).collect();
                }
                Op::Draft(name, text) => {
                    sources[name].truncate(0);
                    prop_assert_eq!(sources[name].frequent_tokens(100), frequent(&model, NAMES[name]));
                    check_drafts(&mut sources[name], &model, NAMES[name], &tokens(text));
                }
            }
        }
        check(&log, &model);
        drop((sources, log));
        check(&open(folder.path()), &model);
    }
}

#[test]
fn a_source_follows_its_namespace_as_it_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = open(folder.path());
    let mut source = log.source("a");
    assert_eq!((source.name(), source.evidence()), ("history", EvidenceClass::TextMatch));
    let text = tokens(0..12);
    let longest =
        |source: &mut HistoryLogSource| anchors(source, &text).first().map_or(0, |anchor| anchor.match_len);
    assert_eq!(longest(&mut source), 0);
    let first = log.append("a", &tokens(6..20)).unwrap();
    assert_eq!(longest(&mut source), 6);
    log.append("b", &tokens(0..20)).unwrap();
    assert_eq!(longest(&mut source), 6, "another namespace is not seen");
    log.append("a", &tokens(3..12)).unwrap();
    assert_eq!(longest(&mut source), 9);
    // Freezes the first two responses.
    log.append("a", &tokens(100..130)).unwrap();
    assert_eq!(log.stats().namespaces[0].n_segments, 1);
    assert_eq!(longest(&mut source), 9);
    let before = anchors(&mut source, &text);
    log.forget(first).unwrap();
    let mut candidates = Candidates::with_limit(8);
    source.expand(&[before[0].cursor], &mut candidates);
    assert_eq!(candidates.as_slice(), [], "cursors of what was moved are void");
    assert_eq!(longest(&mut source), 9);
    assert!(log.forget_namespace("a").unwrap());
    assert_eq!(longest(&mut source), 0);
    log.append("a", &tokens(10..14)).unwrap();
    assert_eq!(longest(&mut source), 2);
    let mut fork = source.fork();
    let mut found = Vec::new();
    fork.anchors(&text, &mut found);
    assert_eq!(found[0].match_len, 2);
}

#[test]
fn a_response_begins_as_the_newest_ones_in_the_log_did() {
    let folder = tempfile::tempdir().unwrap();
    let log = open(folder.path());
    for ids in [[1, 2, 3], [1, 2, 4], [5, 6, 7]] {
        log.append("a", &tokens(ids)).expect("written");
    }
    let next = |source: &mut HistoryLogSource, frontier: &[Cursor]| {
        let mut candidates = Candidates::with_limit(16);
        source.expand(frontier, &mut candidates);
        candidates.as_slice().to_vec()
    };
    let check = |log: &HistoryLog| {
        let mut source = source(log, "a");
        let prompt = tokens([40, 41]);
        assert!(anchors(&mut source, &prompt).is_empty(), "nothing matches, and no response begins");
        source.prime(&prompt);
        let frontier: Vec<Cursor> =
            anchors(&mut source, &prompt).iter().map(|anchor| anchor.cursor).collect();
        let first = next(&mut source, &frontier);
        assert_eq!(first.iter().map(|c| c.token.0).collect::<Vec<_>>(), [5, 1, 1]);
        let second = next(&mut source, &[first[1].next, first[2].next]);
        let second: Vec<_> = second.iter().map(|c| (c.token.0, c.match_len, c.probability)).collect();
        assert_eq!(second, [(2, 1, 1.0), (2, 1, 1.0)]);
        assert!(anchors(&mut source, &tokens([40, 41, 9])).is_empty(), "it has begun");
    };
    check(&log);
    drop(log);
    check(&open(folder.path()));
}

#[test]
fn drafting_goes_on_while_other_threads_change_the_history() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = open(folder.path());
    let text = tokens((0..20).map(|i| i % 7));
    let end = std::time::Instant::now() + Duration::from_millis(300);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while std::time::Instant::now() < end {
                let id = log.append("a", &text).unwrap();
                log.append("a", &text[..5]).unwrap();
                log.forget(id).unwrap();
            }
        });
        scope.spawn(|| {
            while std::time::Instant::now() < end {
                log.maintain().unwrap();
                log.append("a", &text[2..]).unwrap();
            }
        });
        let (mut source, text) = (log.source("a"), &text);
        scope.spawn(move || {
            while std::time::Instant::now() < end {
                for len in 1..text.len() {
                    let anchors = anchors(&mut source, &text[..len]);
                    let cursors: Vec<Cursor> = anchors.iter().map(|anchor| anchor.cursor).collect();
                    source.expand(&cursors, &mut Candidates::with_limit(32));
                }
            }
        });
    });
    let listed = log.list();
    drop(log);
    assert_eq!(open(folder.path()).list(), listed);
}

#[test]
fn limits_of_age_and_size_are_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = open(folder.path());
    let ids: Vec<RecordId> =
        (0..60).map(|i| log.append("a", &tokens(i * 100..i * 100 + 15)).unwrap()).collect();
    drop(log);
    // No segment was used recently.
    for entry in std::fs::read_dir(folder.path().join(KEY.to_string()).join("a")).unwrap() {
        let file = std::fs::File::options().write(true).open(entry.unwrap().path()).unwrap();
        file.set_modified(std::time::SystemTime::now() - Duration::from_secs(3600)).unwrap();
    }
    let options = HistoryOptions { tokens_max: 300, ..small() };
    let log = HistoryLog::open(folder.path(), KEY, options.clone()).unwrap();
    // The first segment is in use, so a later one is dropped.
    let mut source = log.source("a");
    assert_eq!(anchors(&mut source, &tokens(0..8))[0].match_len, 8);
    drop(source);
    log.maintain().unwrap();
    let kept = log.stats().namespaces.remove(0);
    assert!(kept.n_tokens <= 300 && kept.n_tokens > 200, "{kept:?}");
    let left: Vec<RecordId> = log.list().iter().map(|info| info.record).collect();
    assert!(left.contains(&ids[0]) && left.contains(&ids[59]) && !left.contains(&ids[8]), "{left:?}");
    drop(log);

    let age_max = Duration::from_secs(2);
    std::thread::sleep(age_max + Duration::from_millis(50));
    let options = HistoryOptions { age_max: Some(age_max), ..options };
    let log = HistoryLog::open(folder.path(), KEY, options).unwrap();
    let newest = log.append("a", &tokens(0..3)).unwrap();
    log.maintain().unwrap();
    assert_eq!(log.list().iter().map(|info| info.record).collect::<Vec<_>>(), [newest]);
}

#[test]
fn many_segments_become_few() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = HistoryLog::open(folder.path(), KEY, HistoryOptions { segment_tokens_max: 1 << 20, ..small() })
        .unwrap();
    for i in 0..400 {
        log.append("a", &tokens((0..25).map(|j| (i * j) % 50))).unwrap();
        if i % 10 == 0 {
            log.maintain().unwrap();
        }
    }
    log.maintain().unwrap();
    let stats = log.stats();
    assert!(stats.namespaces[0].n_segments <= 16, "{stats:?}");
    assert_eq!(stats.namespaces[0].n_records, 400);
    log.verify().unwrap();
}

#[test]
fn histories_of_different_models_lie_side_by_side() {
    let folder = tempfile::tempdir().expect("a folder");
    let other = HistoryKey { model: 5, ..KEY };
    assert_eq!(HistoryLog::keys(&folder.path().join("none")).unwrap(), []);
    let log = open(folder.path());
    let beside = HistoryLog::open(folder.path(), other, small()).expect("of another model");
    log.append("a", &tokens(0..4)).unwrap();
    assert_eq!(beside.list(), []);
    assert_eq!(HistoryLog::keys(folder.path()).unwrap(), [KEY, other]);
    // A file copied from one model to the other is left out.
    beside.append("a", &tokens(0..4)).unwrap();
    drop((log, beside));
    let place = |key: HistoryKey| folder.path().join(key.to_string()).join("a/log-1");
    std::fs::copy(place(KEY), place(other)).unwrap();
    let beside = HistoryLog::open(folder.path(), other, small()).unwrap();
    assert_eq!((beside.left_out()[0].reason.clone(), beside.list()), (LeftOutReason::Misplaced, vec![]));
}

#[test]
fn what_cannot_be_stored_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = open(folder.path());
    let refused = log.append("a", &tokens(0..33));
    assert!(matches!(refused, Err(HistoryError::RecordTooLong { n_tokens: 33, max: 32 })));
    for name in [String::new(), "n".repeat(65)] {
        assert!(matches!(log.append(&name, &tokens(0..3)), Err(HistoryError::NamespaceName { .. })));
    }
    let bad = HistoryOptions { live_tokens_max: 15, ..small() };
    let refused = HistoryLog::open(folder.path(), HistoryKey { tokenizer: 9, ..KEY }, bad);
    assert!(matches!(refused, Err(HistoryError::OutOfRange { option: "live_tokens_max", given: 15, .. })));
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    let error = HistoryLog::open(&file, KEY, small()).unwrap_err();
    assert!(matches!(error, HistoryError::Io { action: "create", .. }), "{error}");
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    #[cfg(target_os = "linux")]
    {
        let error = HistoryLog::open("/proc/history".as_ref(), KEY, small()).unwrap_err();
        assert!(matches!(error, HistoryError::Io { .. }), "{error}");
    }
}

#[cfg(unix)]
#[test]
fn nobody_else_may_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().expect("a folder");
    let log = open(&folder.path().join("history"));
    log.append("a", &tokens(0..30)).unwrap();
    log.append("a", &tokens(0..30)).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o077;
    let inside = folder.path().join("history").join(KEY.to_string()).join("a");
    let files: Vec<_> = std::fs::read_dir(&inside).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    assert!(files.iter().map(|path| mode(path)).chain([mode(&inside)]).all(|others| others == 0));
}

#[test]
fn what_was_set_aside_is_removed_with_and_without_the_rest() {
    for is_all in [false, true] {
        let folder = tempfile::tempdir().unwrap();
        let log = open(folder.path());
        log.append("a", &tokens(70_000..70_009)).unwrap();
        log.append("b", &tokens(1..9)).unwrap();
        drop(log);
        let model = folder.path().join(KEY.to_string());
        let path = std::fs::read_dir(model.join("a")).unwrap().next().unwrap().unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let secret = 70_008_u32.to_le_bytes();
        let at = bytes.windows(4).position(|window| window == secret).unwrap();
        bytes[at - 4] ^= 1;
        std::fs::write(&path, bytes).unwrap();
        let log = open(folder.path());
        assert_eq!(log.list().len(), 1, "the answer is damaged");
        let n_files = || {
            std::fs::read_dir(model.join("a")).map_or(0, |entries| {
                let bytes = entries.map(|entry| std::fs::read(entry.unwrap().path()).unwrap());
                bytes.filter(|bytes| bytes.windows(4).any(|window| window == secret)).count()
            })
        };
        assert_eq!(n_files(), 1);
        if is_all {
            assert_eq!(log.clear().unwrap(), 1);
            assert!(log.list().is_empty() && !model.join("b").exists());
        } else {
            assert_eq!((log.remove_aside().unwrap(), log.list().len()), (1, 1));
        }
        assert_eq!((n_files(), log.left_out()), (0, vec![]));
        log.append("a", &tokens(1..9)).unwrap();
    }
}
