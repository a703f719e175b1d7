//! The store on a failing disk, with damaged files, and with a clock that jumps: nothing wrong is ever restored, and
//! nothing forgotten comes back.

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, SystemTime};

use proptest::prelude::*;
use refrain::drafting::CostProfile;
use refrain::{CancelToken, Drafting, Engine, EngineOptions, KvType, Session, SessionOptions, TokenId};

use super::folder::{BLOCK_TOKENS, Entry, Tree, label_name, partial_name};
use super::seal::Id;
use super::store::LABELS_MAX;
use super::{Label, PrefixError, PrefixOptions, PrefixStore};
use crate::disk_file::DiskFile;
use crate::history::disk::{Disk, Kind, RealDisk};
use crate::history::testing::{Crash, Fails, MemDisk};

static ENGINE: LazyLock<Engine> = LazyLock::new(|| {
    let options = EngineOptions {
        n_threads: Some(1),
        cost_profile: Some(CostProfile::free_rows(100.0)),
        ..EngineOptions::default()
    };
    Engine::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/target.gguf"), options)
        .expect("the fixture loads")
});

/// With recurrent layers.
static RECURRENT: LazyLock<Engine> = LazyLock::new(|| {
    let options = EngineOptions {
        n_threads: Some(1),
        cost_profile: Some(CostProfile::free_rows(100.0)),
        ..EngineOptions::default()
    };
    Engine::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden/qwen3_5"), options)
        .expect("the golden model loads")
});

thread_local! {
    static NOW: Cell<u64> = const { Cell::new(1_000_000) };
}

fn clock() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(NOW.get())
}

fn open(disk: &MemDisk, options: PrefixOptions) -> Result<PrefixStore, PrefixError> {
    PrefixStore::open_on(Arc::new(disk.clone()), Path::new("prefixes"), options, clock)
}

fn options(key: Option<[u8; 32]>) -> PrefixOptions {
    PrefixOptions { key, sync: true, ..PrefixOptions::default() }
}

fn session(tokens: &[TokenId]) -> Session {
    session_of(&ENGINE, tokens)
}

fn session_of(engine: &Engine, tokens: &[TokenId]) -> Session {
    let options = SessionOptions { drafting: Drafting::Off, history: false, ..SessionOptions::default() };
    let mut session = engine.session(SessionOptions { kv_type: KvType::F16, ..options }).expect("a session");
    session.append_tokens(tokens).expect("fits");
    session
}

fn prefilled(tokens: &[TokenId]) -> Session {
    prefilled_of(&ENGINE, tokens)
}

fn prefilled_of(engine: &Engine, tokens: &[TokenId]) -> Session {
    let mut session = session_of(engine, tokens);
    session.prefill(&CancelToken::new(), |_, _| {}).expect("computes");
    session
}

fn state(session: &Session) -> Vec<u8> {
    let mut state = Vec::new();
    session.state().write(0..session.state().n_cached_tokens(), &mut state).expect("is computed");
    state
}

/// `n` tokens that no other seed gives.
fn tokens(seed: u32, n: u32) -> Vec<TokenId> {
    (0..n).map(|i| TokenId(seed % 251 + 1 + (i * i * 7 + i * seed) % 40)).collect()
}

fn label(tokens: std::ops::Range<usize>, name: &str) -> Label {
    Label { tokens, name: name.to_owned() }
}

/// Restores a prompt; what is restored has the computed bits.
fn restored(store: &PrefixStore, prompt: &[TokenId]) -> usize {
    restored_of(&ENGINE, store, prompt)
}

fn restored_of(engine: &Engine, store: &PrefixStore, prompt: &[TokenId]) -> usize {
    let mut session = session_of(engine, prompt);
    let n = store.restore(&mut session, "a").expect("restores");
    assert_eq!(session.state().n_cached_tokens(), n);
    if n > 0 {
        let computed = prefilled_of(engine, &prompt[..n + 1]);
        assert!(state(&session) == state(&computed), "{n} tokens have other bits");
    }
    n
}

/// Whether any file contains these bytes.
fn holds(disk: &MemDisk, bytes: &[u8]) -> bool {
    disk.paths().iter().any(|path| disk.contents(path).windows(bytes.len()).any(|window| window == bytes))
}

fn token_bytes(tokens: &[TokenId]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.0.to_le_bytes()).collect()
}

fn tree(store: &PrefixStore, namespace: &str) -> Tree {
    Tree::list(&*store.disk, &store.namespace_folder(namespace)).expect("lists")
}

#[test]
fn a_changed_or_cut_file_is_never_used() {
    let prompt = tokens(1, 6);
    for key in [None, Some([7; 32])] {
        let disk = MemDisk::default();
        let store = open(&disk, options(key)).unwrap();
        assert_eq!(store.keep(&prefilled(&prompt), "a", &[], usize::MAX).unwrap(), 5);
        assert_eq!(restored(&store, &prompt), 5);
        let tree = tree(&store, "a");
        let path = tree.path(tree.blocks.values().next().unwrap());
        let whole = disk.contents(&path);
        let mut session = session(&prompt);
        let mut refuses = |bytes: &[u8], case: &str| {
            disk.put(&path, bytes);
            assert_eq!(store.restore(&mut session, "a").unwrap(), 0, "{case}");
            store.unusable.lock().unwrap().clear();
        };
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 1 << (at % 8);
            refuses(&changed, &format!("byte {at} of {}", whole.len()));
            refuses(&whole[..at], &format!("{at} bytes of {}", whole.len()));
        }
        refuses(&[&whole[..], &[0]].concat(), "a byte more");
        refuses(&vec![0xFF; whole.len()], "noise");
        disk.put(&path, &whole[..whole.len() - 1]);
        assert_eq!(store.verify().unwrap().left_aside.len(), 1);
        // Damage in the state is found by a restore; the next keep writes the block again.
        let mut changed = whole.clone();
        changed[whole.len() - 20] ^= 1;
        disk.put(&path, &changed);
        assert_eq!(
            (store.status().unwrap().left_aside.len(), store.verify().unwrap().left_aside.len()),
            (0, 1)
        );
        assert_eq!(restored(&store, &prompt), 0);
        store.keep(&prefilled(&prompt), "a", &[], usize::MAX).unwrap();
        assert_eq!(restored(&store, &prompt), 5);
        assert_eq!(store.verify().unwrap().left_aside.len(), 0);
    }
}

/// Two whole blocks, of which the first has a state at its end, and a shorter one with another. A damaged block gives way to the last
/// state before it, and what has given way is written again.
#[test]
fn a_damaged_block_of_a_recurrent_model_gives_way_to_an_earlier_state() {
    let prompt = tokens(1, 141);
    let kept = || {
        let mut session = session_of(&RECURRENT, &prompt);
        session.state_mut().remember(64);
        session.prefill(&CancelToken::new(), |_, _| {}).expect("computes");
        assert_eq!(session.state().ends(), Some(vec![64, 140]));
        session
    };
    for key in [None, Some([7; 32])] {
        let disk = MemDisk::default();
        let store = open(&disk, options(key)).unwrap();
        assert_eq!(store.keep(&kept(), "a", &[], usize::MAX).unwrap(), 140);
        let tree = tree(&store, "a");
        let mut entries: Vec<Entry> = tree.blocks.values().copied().collect();
        entries.sort_by_key(|entry| entry.index);
        assert_eq!(entries.iter().map(|entry| entry.n_tokens).collect::<Vec<_>>(), [64, 64, 12]);
        let whole: Vec<Vec<u8>> = entries.iter().map(|entry| disk.contents(&tree.path(entry))).collect();
        let states = [true, false, true].map(|has_end| has_end as usize);
        let recurrent = (kept().state().bytes(64) - kept().state().keys_values_bytes(64)) as usize;
        assert_eq!(whole[0].len() - whole[1].len(), recurrent);
        for (i, left) in [(0, 0), (1, 64), (2, 64)] {
            let path = tree.path(&entries[i]);
            let len = whole[i].len();
            let within = len - 16 - states[i] * recurrent;
            for at in [0, 8, 16, 40, 56, 70, 100, within - 1, within, (within + len) / 2, len - 17, len - 1] {
                let mut changed = whole[i].clone();
                changed[at] ^= 1 << (at % 8);
                for damaged in [&changed[..], &whole[i][..at], &[&whole[i][..], &[0]].concat()] {
                    disk.put(&path, damaged);
                    assert_eq!(
                        restored_of(&RECURRENT, &store, &prompt),
                        left,
                        "block {i}, byte {at} of {len}"
                    );
                    store.unusable.lock().unwrap().clear();
                }
            }
            // The state of another prompt, of a block that has none, and none at all.
            disk.put(&path, &changed_place(&whole, i));
            assert_eq!(restored_of(&RECURRENT, &store, &prompt), left, "block {i}");
            assert_eq!(store.keep(&kept(), "a", &[], usize::MAX).unwrap(), 140);
            assert_eq!(restored_of(&RECURRENT, &store, &prompt), 140);
            disk.remove_file(&path).unwrap();
            assert_eq!(restored_of(&RECURRENT, &store, &prompt), left, "without block {i}");
            store.keep(&kept(), "a", &[], usize::MAX).unwrap();
            assert!(disk.contents(&path).len() == len && store.verify().unwrap().left_aside.is_empty());
        }
    }
}

/// The file of the block before.
fn changed_place(whole: &[Vec<u8>], i: usize) -> Vec<u8> {
    whole[(i + whole.len() - 1) % whole.len()].clone()
}

/// A block that was kept without a state gets one when a session knows it, and keeps it.
#[test]
fn a_state_is_added_to_a_stored_block() {
    let (disk, prompt) = (MemDisk::default(), tokens(1, 141));
    let store = open(&disk, options(None)).unwrap();
    assert_eq!(
        store.keep(&prefilled_of(&RECURRENT, &prompt), "a", &[label(3..4, "x")], usize::MAX).unwrap(),
        140
    );
    let other = [&prompt[..100], &tokens(2, 9)].concat();
    let mut session = session_of(&RECURRENT, &other);
    assert_eq!(store.restore(&mut session, "a").unwrap(), 0);
    session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
    assert_eq!(session.state().ends(), Some(vec![64, 108]), "where the prompts part, in whole blocks");
    store.keep(&session, "a", &[], usize::MAX).unwrap();
    assert_eq!(restored_of(&RECURRENT, &store, &[&prompt[..70], &tokens(3, 9)].concat()), 64);
    // A session that does not know the state leaves it there, as the labels.
    store.keep(&prefilled_of(&RECURRENT, &prompt), "a", &[], usize::MAX).unwrap();
    assert_eq!(restored_of(&RECURRENT, &store, &[&prompt[..70], &tokens(3, 9)].concat()), 64);
    assert_eq!(store.forget("a", "x").unwrap(), 4);
}

#[test]
fn a_block_with_the_name_of_another_is_not_used() {
    let (disk, prompts) = (MemDisk::default(), [tokens(1, 9), tokens(2, 9)]);
    let store = open(&disk, options(None)).unwrap();
    for prompt in &prompts {
        store.keep(&prefilled(prompt), "a", &[], usize::MAX).unwrap();
    }
    store.keep(&prefilled(&prompts[0]), "b", &[], usize::MAX).unwrap();
    let paths = |namespace| {
        let tree = tree(&store, namespace);
        tree.blocks.values().map(|entry| tree.path(entry)).collect::<Vec<_>>()
    };
    let [a, b] = [paths("a"), paths("b")];
    disk.put(&a[0], &disk.contents(&a[1]));
    disk.put(&a[1], &disk.contents(&b[0]));
    assert_eq!(prompts.map(|prompt| restored(&store, &prompt)), [0, 0]);
    assert_eq!(store.verify().unwrap().left_aside.len(), 2);
}

/// Keeps three prompts with a shared beginning, forgets one, evicts, and forgets by time.
fn scenario(disk: &MemDisk, key: Option<[u8; 32]>, is_forgotten: &mut bool) -> Result<(), PrefixError> {
    let store = open(disk, options(key))?;
    let [secret, other, longer] = prompts();
    store.keep(&prefilled(&other), "a", &[label(0..3, "other")], usize::MAX)?;
    store.keep(&prefilled(&secret), "a", &[label(66..150, "secret")], usize::MAX)?;
    store.forget("a", "secret")?;
    *is_forgotten = true;
    store.keep(&prefilled(&longer), "a", &[label(90..100, "longer")], usize::MAX)?;
    Ok(())
}

/// Three prompts with 66 tokens in common. The third continues the second.
fn prompts() -> [Vec<TokenId>; 3] {
    let shared = tokens(3, 66);
    let with = |seed, n| [&shared[..], &tokens(seed, n)].concat();
    let other = with(80, 20);
    let longer = [&other[..], &tokens(90, 40)].concat();
    [with(70, 84), other, longer]
}

#[test]
fn whatever_fails_nothing_wrong_is_restored_and_nothing_forgotten_returns() {
    let [secret, other, longer] = prompts();
    let secret_bytes = token_bytes(&secret[70..78]);
    for key in [None, Some([1; 32])] {
        let whole = MemDisk::default();
        let mut is_forgotten = false;
        scenario(&whole, key, &mut is_forgotten).unwrap();
        let n_ops = whole.n_ops();
        assert!(is_forgotten && n_ops > 40, "{n_ops}");
        for at in 0..n_ops {
            for (fails, crash) in [
                (Fails::Once(at), Crash::KeepsAll),
                (Fails::From(at), Crash::KeepsAll),
                (Fails::From(at), Crash::LosesUnsynced),
                (Fails::From(at), Crash::Tears),
            ] {
                let case = format!("{fails:?} {crash:?} key {}", key.is_some());
                let disk = MemDisk::default();
                disk.fail(Some(fails));
                let mut is_forgotten = false;
                let failed = scenario(&disk, key, &mut is_forgotten).is_err();
                disk.fail(None);
                disk.crash(crash);
                let store = open(&disk, options(key)).unwrap_or_else(|error| panic!("{case}: {error}"));
                let n_secret = restored(&store, &secret);
                if is_forgotten {
                    assert!(n_secret <= 66, "{case}: {n_secret}");
                    assert!(!holds(&disk, &secret_bytes), "{case}: the tokens are there");
                }
                // Forgetting is whole or not begun. (What shares only a part of a block with the secret is other's.)
                assert!(n_secret <= 66 || n_secret == 128 || n_secret == 149, "{case}: {n_secret}");
                restored(&store, &other);
                let n_longer = restored(&store, &longer);
                assert!(failed || n_longer == longer.len() - 1, "{case}: {n_longer}");
                // Nothing is left of what was being written or forgotten.
                let tree = tree(&store, "a");
                assert!(tree.partials.is_empty() && tree.intents.is_empty(), "{case}: {tree:?}");
                assert!(tree.orphans().is_empty(), "{case}");
                let locks =
                    disk.paths().iter().filter(|path| path.extension().is_some_and(|e| e == "lock")).count();
                assert_eq!(locks, 1, "{case}");
                assert!(store.verify().unwrap().left_aside.is_empty(), "{case}");
                // The labels are there with their blocks.
                store.forget("a", "secret").unwrap();
                assert!(!holds(&disk, &secret_bytes), "{case}");
                store.forget("a", "other").unwrap();
                assert_eq!(restored(&store, &other), 0, "{case}");
                assert!(!holds(&disk, &token_bytes(&longer[90..98])), "{case}");
            }
        }
    }
}

#[test]
fn a_full_disk_is_an_error_and_loses_nothing() {
    let (disk, [secret, other, _]) = (MemDisk::default(), prompts());
    let store = open(&disk, options(None)).unwrap();
    store.keep(&prefilled(&other), "a", &[], usize::MAX).unwrap();
    for more in [0, 1, 50, 5000] {
        disk.set_bytes_max(disk.used_bytes() + more);
        let full = store.keep(&prefilled(&secret), "a", &[label(66..150, "secret")], usize::MAX);
        assert!(matches!(full, Err(PrefixError::Io { .. })), "{full:?}");
        assert_eq!(restored(&store, &other), other.len() - 1);
        assert!(restored(&store, &secret) <= 66);
        assert!(tree(&store, "a").partials.is_empty());
    }
    disk.set_bytes_max(usize::MAX);
    assert_eq!(store.keep(&prefilled(&secret), "a", &[], usize::MAX).unwrap(), 149);
}

/// Bytes of the files of one block of 64 tokens.
fn block_bytes() -> u64 {
    let disk = MemDisk::default();
    let store = open(&disk, options(None)).unwrap();
    store.keep(&prefilled(&tokens(1, 65)), "a", &[], usize::MAX).unwrap();
    store.status().unwrap().bytes
}

#[test]
fn the_least_recently_used_blocks_go_first_and_the_bound_holds() {
    let disk = MemDisk::default();
    let max_bytes = 3 * block_bytes() + 100;
    let store = open(&disk, PrefixOptions { max_bytes, ..PrefixOptions::default() }).unwrap();
    let prompts: Vec<_> = (0..5).map(|seed| tokens(10 * seed, 65)).collect();
    let keep = |i: usize| {
        NOW.set(NOW.get() + 1);
        assert_eq!(store.keep(&prefilled(&prompts[i]), "a", &[], usize::MAX).unwrap(), 64);
        assert!(store.status().unwrap().bytes <= max_bytes);
    };
    let held = || {
        prompts
            .iter()
            .map(|prompt| {
                let (before, n) = (NOW.get(), restored(&store, prompt));
                assert_eq!(NOW.get(), before);
                n > 0
            })
            .collect::<Vec<_>>()
    };
    (0..3).for_each(keep);
    NOW.set(NOW.get() + 1);
    restored(&store, &prompts[0]);
    keep(3);
    assert_eq!(tree(&store, "a").blocks.len(), 3);
    assert_eq!(held(), [true, false, true, true, false]);
    // All were used at the same time now. A clock that is set back loses no more than an order.
    NOW.set(NOW.get() - 500);
    keep(4);
    assert!(held()[4]);
    NOW.set(NOW.get() + 10_000);
    // The ends of prefixes go first: a block is never there without those before it.
    let long = tokens(77, 192 + 1);
    assert_eq!(store.keep(&prefilled(&long), "a", &[], usize::MAX).unwrap(), 192);
    NOW.set(NOW.get() + 1);
    keep(0);
    assert_eq!(restored(&store, &long), 128);
    // What never fits is kept as far as it fits, without evicting itself.
    let longer = tokens(78, 64 * 6);
    assert_eq!(store.keep(&prefilled(&longer), "a", &[], usize::MAX).unwrap(), 192);
    assert_eq!(restored(&store, &longer), 192);
    assert!(store.status().unwrap().bytes <= max_bytes);
    // A smaller bound is established by the next open.
    drop(store);
    let store = open(&disk, PrefixOptions { max_bytes: block_bytes(), ..PrefixOptions::default() }).unwrap();
    assert_eq!(restored(&store, &longer), 64);
}

#[test]
fn what_was_not_used_since_a_time_is_forgotten() {
    let disk = MemDisk::default();
    let store = open(&disk, options(None)).unwrap();
    let start = NOW.get();
    for (i, namespace) in ["a", "b", "a"].into_iter().enumerate() {
        NOW.set(start + 10 * i as u64);
        store.keep(&prefilled(&tokens(10 * i as u32, 70)), namespace, &[], usize::MAX).unwrap();
    }
    restored(&store, &tokens(0, 70)); // used at +20
    NOW.set(start + 30);
    assert_eq!(store.forget_before(clock() - Duration::from_secs(15)).unwrap(), 2, "two blocks in b");
    assert_eq!((restored(&store, &tokens(0, 70)), restored(&store, &tokens(20, 70))), (69, 69));
    // The clock is set back: the age of the blocks is unknown.
    NOW.set(start - 100);
    assert_eq!(store.forget_before(SystemTime::UNIX_EPOCH).unwrap(), 4);
    assert_eq!(restored(&store, &tokens(0, 70)), 0);
}

#[test]
fn unfinished_files_of_dead_processes_are_removed_and_those_of_others_are_not() {
    let disk = MemDisk::default();
    let store = open(&disk, options(None)).unwrap();
    store.keep(&prefilled(&tokens(1, 70)), "a", &[], usize::MAX).unwrap();
    let folder = store.namespace_folder("a");
    let [of_other, of_dead] = [store.id, Id([9; 16])].map(|id| folder.join(partial_name(id, 5)));
    let old = folder.join(label_name(Id([1; 16]), Id([2; 16])));
    for path in [&of_other, &of_dead, &old] {
        disk.put(path, b"");
    }
    let second = open(&disk, options(None)).unwrap();
    let exists = |path| disk.paths().contains(path);
    assert_eq!([&of_other, &of_dead, &old].map(exists), [true, false, false]);
    // Forgetting takes no chances.
    second.forget_namespace("a").unwrap();
    assert_eq!(disk.paths().len(), 2, "two locks: {:?}", disk.paths());
    drop((store, second));
    assert_eq!(disk.paths().len(), 0);
}

#[test]
fn a_block_has_a_bounded_number_of_labels() {
    let disk = MemDisk::default();
    let store = open(&disk, options(None)).unwrap();
    let (prompt, session) = (tokens(1, 200), prefilled(&tokens(1, 200)));
    let labels: Vec<Label> = (0..LABELS_MAX + 1).map(|i| label(70..71, &i.to_string())).collect();
    assert_eq!(store.keep(&session, "a", &labels[1..], usize::MAX).unwrap(), 199);
    assert_eq!(store.keep(&session, "a", &labels[1..], usize::MAX).unwrap(), 199);
    // One more: the block is written again, with the labels of this session.
    assert_eq!(store.keep(&session, "a", &labels[..1], usize::MAX).unwrap(), 199);
    assert_eq!(store.status().unwrap().n_labels, 1);
    assert_eq!(store.forget("a", "17").unwrap(), 0);
    assert_eq!(store.forget("a", "0").unwrap(), 3);
    assert_eq!(restored(&store, &prompt), 64);
    // A shorter block with as many labels is replaced, too.
    assert_eq!(store.keep(&session, "a", &labels[1..], 71).unwrap(), 71);
    assert_eq!(store.keep(&session, "a", &labels[..1], 80).unwrap(), 80);
    assert_eq!(store.status().unwrap().n_labels, 1);
    // More labels than that in one call are not kept.
    assert_eq!(store.keep(&session, "a", &labels, usize::MAX).unwrap(), 64);
}

#[test]
fn conversations_behind_one_system_turn_are_kept_without_end() {
    let disk = MemDisk::default();
    let store = open(&disk, PrefixOptions::default()).unwrap();
    let session = prefilled(&tokens(1, 40));
    for i in 0..2000 {
        let labels = [label(0..40, &format!("conversation:{i}"))];
        assert_eq!(store.keep(&session, "a", &labels, usize::MAX).unwrap(), 39, "{i}");
    }
    assert!(store.status().unwrap().n_labels <= LABELS_MAX);
    assert_eq!(store.forget("a", "conversation:1999").unwrap(), 1);
}

#[test]
fn a_label_is_durable_with_its_block() {
    let prompt = tokens(1, 100);
    for sync in [false, true] {
        let disk = MemDisk::default();
        let store = open(&disk, PrefixOptions { sync, ..PrefixOptions::default() }).unwrap();
        store.keep(&prefilled(&prompt), "a", &[], usize::MAX).unwrap();
        disk.sync_dir(&store.namespace_folder("a")).unwrap();
        disk.paths().iter().for_each(|path| disk.put(path, &disk.contents(path)));
        store.keep(&prefilled(&prompt), "a", &[label(3..5, "late")], usize::MAX).unwrap();
        disk.crash(Crash::LosesUnsynced);
        let store = open(&disk, options(None)).unwrap();
        assert_eq!(restored(&store, &prompt), 99, "the block is durable");
        assert_eq!(store.forget("a", "late").unwrap(), 2, "sync: {sync}");
    }
}

type Hook = Arc<Mutex<Option<Box<dyn FnOnce() + Send>>>>;

/// A disk that calls a function before the change of a number.
#[derive(Clone)]
struct Interrupted {
    disk: MemDisk,
    at: Arc<Mutex<usize>>,
    hook: Hook,
    n_opened: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Interrupted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interrupted")
    }
}

impl Interrupted {
    fn count(&self) -> &MemDisk {
        let mut at = self.at.lock().unwrap();
        let is_now = *at == 0;
        *at = at.wrapping_sub(1);
        drop(at);
        if is_now && let Some(hook) = self.hook.lock().unwrap().take() {
            hook();
        }
        &self.disk
    }
}

impl Disk for Interrupted {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.count().create_dir(path)
    }
    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        self.count().list(path)
    }
    fn list_kind(&self, path: &Path, kind: Kind) -> io::Result<Vec<String>> {
        self.count().list_kind(path, kind)
    }
    fn remove_all(&self, path: &Path) -> io::Result<()> {
        self.count().remove_all(path)
    }
    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.n_opened.fetch_add(1, Ordering::Relaxed);
        self.disk.open(path)
    }
    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.count().open_to_write(path)
    }
    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        self.count().create(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.count().rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.count().remove_file(path)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.count().remove_dir(path)
    }
    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.count().sync_dir(path)
    }
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        self.count().lock(path)
    }
    fn stat(&self, path: &Path) -> io::Result<(u64, SystemTime)> {
        self.count().stat(path)
    }
    fn set_time(&self, path: &Path, time: SystemTime) {
        self.disk.set_time(path, time);
    }
}

/// Another process keeps between any two operations of one that forgets, evicts, opens or keeps, and the other way
/// around: what is stored afterwards has the labels of both.
#[test]
fn no_interleaving_loses_a_label() {
    static SESSIONS: Mutex<Vec<Session>> = Mutex::new(Vec::new());
    let [secret, ..] = prompts();
    type Run = fn(Arc<dyn Disk>);
    fn store(disk: Arc<dyn Disk>, max_bytes: u64) -> PrefixStore {
        let options = PrefixOptions { max_bytes, ..PrefixOptions::default() };
        PrefixStore::open_on(disk, Path::new("prefixes"), options, clock).unwrap()
    }
    fn keep(disk: Arc<dyn Disk>, name: &str, up_to: usize) {
        let session = SESSIONS.lock().unwrap().pop();
        let session = session.unwrap_or_else(|| prefilled(&prompts()[0]));
        store(disk, u64::MAX).keep(&session, "a", &[label(66..150, name)], up_to).unwrap();
        SESSIONS.lock().unwrap().push(session);
    }
    let others: [(&str, Run); 5] = [
        ("keeps", |disk| keep(disk, "secret", usize::MAX)),
        ("keeps less", |disk| keep(disk, "secret", 75)),
        ("forgets", |disk| _ = store(disk, u64::MAX).forget("a", "secret").unwrap()),
        ("forgets all", |disk| _ = store(disk, u64::MAX).clear().unwrap()),
        ("evicts", |disk| drop(store(disk, 100))),
    ];
    // The first tokens of the labels; those that only keeps with the label `secret` store.
    let (of_both, of_secret) = (token_bytes(&secret[66..70]), token_bytes(&secret[71..75]));
    for (first, run_first) in others {
        for (second, run_second) in others {
            for at in 0.. {
                let case = format!("`{second}` at operation {at} of `{first}`");
                let disk = MemDisk::default();
                keep(Arc::new(disk.clone()), "earlier", 70);
                let (thread, thread_of_hook) = (Arc::new(Mutex::new(None)), disk.clone());
                let started = Arc::clone(&thread);
                let hook: Box<dyn FnOnce() + Send> = Box::new(move || {
                    let other = std::thread::spawn(move || run_second(Arc::new(thread_of_hook)));
                    // It ends now, or waits for the lock until the first has ended.
                    (0..20)
                        .filter(|_| !other.is_finished())
                        .for_each(|_| std::thread::sleep(Duration::from_millis(1)));
                    *started.lock().unwrap() = Some(other);
                });
                let hook = Arc::new(Mutex::new(Some(hook)));
                run_first(Arc::new(Interrupted {
                    disk: disk.clone(),
                    at: Arc::new(Mutex::new(at)),
                    hook,
                    n_opened: Arc::default(),
                }));
                let Some(thread) = thread.lock().unwrap().take() else {
                    assert!(at > 3, "{case}");
                    break;
                };
                thread.join().unwrap();
                let store = store(Arc::new(disk.clone()), u64::MAX);
                let found = tree(&store, "a");
                assert!(
                    store.verify().unwrap().left_aside.is_empty() && found.orphans().is_empty(),
                    "{case}"
                );
                if first.starts_with("keeps") && second.starts_with("keeps") {
                    let earlier = store.label_id("a", "earlier");
                    assert!(
                        found.labels.values().any(|labels| labels.contains(&earlier)),
                        "{case}: {found:?}"
                    );
                }
                store.forget("a", "secret").unwrap();
                assert!(!holds(&disk, &of_secret), "{case}: {found:?}");
                store.forget("a", "earlier").unwrap();
                assert!(!holds(&disk, &of_both), "{case}: {found:?}");
            }
        }
    }
}

/// A session that has all that a restore could give does not read blocks to find that out.
#[test]
fn a_restore_reads_no_block_that_has_no_more() {
    let disk = MemDisk::default();
    let n_opened = Arc::new(AtomicUsize::new(0));
    let counted = Interrupted {
        disk,
        at: Arc::new(Mutex::new(usize::MAX)),
        hook: Arc::default(),
        n_opened: Arc::clone(&n_opened),
    };
    let options = PrefixOptions::default();
    let store = PrefixStore::open_on(Arc::new(counted), Path::new("prefixes"), options, clock).unwrap();
    let shared = tokens(1, 40);
    let prompt = |seed| [&shared[..], &tokens(seed, 40)].concat();
    for seed in 2..12 {
        store.keep(&prefilled(&prompt(10 * seed)), "a", &[], usize::MAX).unwrap();
    }
    let opened = |session: &mut Session| {
        n_opened.store(0, Ordering::Relaxed);
        let n = store.restore(session, "a").unwrap();
        (n, n_opened.load(Ordering::Relaxed))
    };
    // It has the shared tokens: the siblings' tokens are read, but no state.
    let mut session = prefilled(&prompt(500)[..41]);
    session.append_tokens(&prompt(500)[41..]).unwrap();
    assert_eq!(opened(&mut session), (0, 10));
    // The newest token is the first of a block.
    store.keep(&prefilled(&tokens(600, 200)), "a", &[], usize::MAX).unwrap();
    let mut session = self::session(&tokens(600, 65));
    let (n, n_reads) = opened(&mut session);
    assert_eq!((n, n_reads), (64, 2), "the tokens and the state of one block");
}

/// A folder of notes has thousands of labels: the folder is listed and synced as often as for one.
#[test]
fn many_labels_are_forgotten_in_one_pass() {
    let n_operations = |n_labels: u32| {
        let at = Arc::new(Mutex::new(usize::MAX));
        let counted = Interrupted {
            disk: MemDisk::default(),
            at: Arc::clone(&at),
            hook: Arc::default(),
            n_opened: Arc::default(),
        };
        let options = PrefixOptions::default();
        let store = PrefixStore::open_on(Arc::new(counted), Path::new("prefixes"), options, clock).unwrap();
        let names: Vec<String> = (0..n_labels).map(|n| format!("note {n}")).collect();
        for (n, name) in (0..).zip(&names) {
            let prompt = prefilled(&tokens(10 * n, 40));
            store.keep(&prompt, "a", &[label(3..5, name)], usize::MAX).unwrap();
        }
        *at.lock().unwrap() = usize::MAX;
        assert_eq!(store.forget_all("a", &names).unwrap(), names.len());
        usize::MAX - *at.lock().unwrap()
    };
    let (few, many) = (n_operations(2), n_operations(10));
    // The intent is written and removed, and so are the block and its label.
    assert_eq!(many - few, 8 * 4);
}

/// Folders, files, copies and links with the names of others stop nothing.
#[test]
fn entries_of_a_hostile_folder_stop_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let open = |key| PrefixStore::open(folder.path(), PrefixOptions { key, ..PrefixOptions::default() });
    let (prompt, session) = (tokens(1, 100), prefilled(&tokens(1, 100)));
    let labels = [label(3..5, "x")];
    let store = open(None).unwrap();
    store.keep(&session, "a", &labels, usize::MAX).unwrap();
    let found = tree(&store, "a");
    let entry = *found.blocks.values().find(|entry| entry.index == 0).unwrap();
    let inside = &found.folder;
    let digits = "0123456789abcdef0123456789abcdef";
    std::fs::write(folder.path().join(digits), "a file").unwrap();
    std::fs::write(store.folder.join(digits), "a file").unwrap();
    let name = |index: u32, id: u8| Entry { index, id: Id([id; 16]), ..entry }.to_string();
    std::fs::create_dir(inside.join(name(0, 7))).unwrap();
    std::fs::create_dir(inside.join(label_name(entry.id, Id([7; 16])))).unwrap();
    std::fs::copy(found.path(&entry), inside.join(Entry { index: 5, ..entry }.to_string())).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("/dev/zero", inside.join(name(0, 8))).unwrap();
    let n_foreign = 4 + usize::from(cfg!(unix));
    assert!(store.status().unwrap().left_aside.len() >= n_foreign);
    store.keep(&session, "a", &labels, usize::MAX).unwrap();
    // A copy under another name may cost the block, but nothing more.
    let store = open(None).unwrap();
    assert!(tree(&store, "a").copies.is_empty());
    store.keep(&session, "a", &labels, usize::MAX).unwrap();
    assert_eq!(restored(&store, &prompt), 99);
    let bytes = token_bytes(&prompt[..16]);
    let holds = || {
        let names = RealDisk.list_kind(inside, Kind::File).unwrap_or_default();
        names.iter().any(|name| {
            std::fs::read(inside.join(name)).unwrap().windows(bytes.len()).any(|window| window == bytes)
        })
    };
    assert!(holds());
    assert_eq!(store.forget("a", "x").unwrap(), 2);
    assert!(!holds());
    // What another key, or none, or another version wrote is removed, because it cannot be forgotten.
    store.keep(&session, "a", &labels, usize::MAX).unwrap();
    assert!(holds());
    std::fs::create_dir(folder.path().join(format!("v999-{digits}"))).unwrap();
    let store = open(Some([1; 32])).unwrap();
    assert!(!inside.exists() && !folder.path().join(format!("v999-{digits}")).exists());
    store.keep(&session, "a", &labels, usize::MAX).unwrap();
    store.clear().unwrap();
    assert!(folder.path().join(digits).exists(), "it is not the store's");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// The longest common prefix of a prompt and all kept ones, as the obvious comparison finds it; and after forgetting
    /// one of them, at least that of the others whose blocks do not contain it.
    #[test]
    fn the_longest_common_prefix_is_restored(
        kept in proptest::collection::vec((0..4u32, 1..200usize, 0..210usize, 0..220usize), 1..6),
        (seed, fork, len) in (0..4u32, 0..210usize, 1..220usize),
        cached in 0..200usize,
    ) {
        // Prompts are equal up to the place where they fork.
        let prompt = |seed: u32, fork: usize, len: usize| -> Vec<TokenId> {
            (0..len).map(|i| TokenId(5 + (i * 7 % 31) as u32 + if i >= fork { 40 * (seed + 1) } else { 0 })).collect()
        };
        let disk = MemDisk::default();
        let store = open(&disk, options(None)).unwrap();
        let kept: Vec<Vec<TokenId>> = kept
            .iter()
            .map(|&(seed, len, fork, up_to)| {
                let tokens = prompt(seed, fork, len);
                let session = prefilled(&tokens);
                let n = store.keep(&session, "a", &[], up_to).unwrap();
                assert_eq!(n, up_to.min(tokens.len() - 1));
                tokens[..n].to_vec()
            })
            .collect();
        let wanted = prompt(seed, fork, len);
        let common = |kept: &Vec<TokenId>| kept.iter().zip(&wanted).take_while(|(a, b)| a == b).count();
        let longest = kept.iter().map(common).max().unwrap_or(0);
        let cached = cached.min(wanted.len() - 1);
        let mut session = prefilled(&wanted[..cached + 1]);
        session.append_tokens(&wanted[cached + 1..]).unwrap();
        let n = store.restore(&mut session, "a").unwrap();
        let expected = longest.min(wanted.len() - 1).max(cached);
        prop_assert_eq!((session.state().n_cached_tokens(), n), (expected, expected - cached));
        prop_assert!(expected == 0 || state(&session) == state(&prefilled(&wanted[..expected + 1])));
        // Each prefix is stored once: no block is a beginning of another.
        let blocks = tree(&store, "a").blocks;
        let whole = blocks.values().filter(|entry| entry.n_tokens == BLOCK_TOKENS).count();
        let distinct: std::collections::HashSet<&[TokenId]> =
            kept.iter().flat_map(|kept| (1..=kept.len() / BLOCK_TOKENS).map(|n| &kept[..n * BLOCK_TOKENS])).collect();
        prop_assert_eq!(whole, distinct.len());
    }
}

/// What is forgotten between the reading of the list and its writing does not come back.
#[test]
fn a_hash_that_is_forgotten_meanwhile_is_not_noted_again() {
    let disk = MemDisk::default();
    let store = open(&disk, options(None)).unwrap();
    let prompts = [tokens(1, 200), tokens(100, 200)];
    assert_eq!(store.keep_repeated(&prefilled(&prompts[0]), "a", &[], 199).unwrap(), 0);
    let list = store.namespace_folder("a").join(super::folder::SEEN);
    let of_first = disk.contents(&list);
    assert!(!of_first.is_empty());
    let forgetting = store.lock_changes().unwrap();
    std::thread::scope(|scope| {
        let keeping = scope.spawn(|| store.keep_repeated(&prefilled(&prompts[1]), "a", &[], 199).unwrap());
        std::thread::sleep(Duration::from_millis(200));
        store.disk.remove_file(&list).unwrap();
        drop(forgetting);
        assert_eq!(keeping.join().unwrap(), 0);
    });
    let of_second = disk.contents(&list);
    let ids = of_second.as_chunks::<16>().0;
    assert!(!ids.is_empty() && of_first.as_chunks::<16>().0.iter().all(|id| !ids.contains(id)));
}
