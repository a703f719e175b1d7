//! A block of a prefix: unchanged, and with corrected seals, so that its contents are parsed.
//!
//! The first byte chooses whether the other bytes are the file or edits of a sound one. The file replaces the sound one.
//! Whatever it is, the store opens and reports it, and a restore takes it only if it has the tokens of the prompt.
#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use refrain::drafting::CostProfile;
use refrain::{CancelToken, Engine, EngineOptions, Session, SessionOptions, TokenId};
use refrain_index::prefixes::{PrefixOptions, PrefixStore};
use xxhash_rust::xxh3::Xxh3;

static FOLDER: LazyLock<Folder> = LazyLock::new(Folder::new);

/// A store with one block.
struct Folder {
    path: PathBuf,
    block: PathBuf,
    whole: Vec<u8>,
    engine: Engine,
}

const PROMPT: [TokenId; 4] = [TokenId(5), TokenId(9), TokenId(5), TokenId(7)];

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("refrain-fuzz-prefixes-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        let options = EngineOptions {
            n_threads: Some(1),
            cost_profile: Some(CostProfile::free_rows(1.0)),
            ..EngineOptions::default()
        };
        let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/target.gguf");
        let engine = Engine::open(model, options).expect("the fixture loads");
        let mut session = session(&engine);
        session.prefill(&CancelToken::new(), |_, _| {}).expect("computes");
        let store = PrefixStore::open(&path, PrefixOptions::default()).expect("a new folder");
        assert_eq!(store.keep(&session, "a", &[], usize::MAX).expect("keeps"), 3);
        drop(store);
        let inside = |folder: &PathBuf| {
            let entries =
                fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
            let is_lock = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "lock");
            entries.into_iter().find(|path| !is_lock(path)).expect("an entry")
        };
        let block = inside(&inside(&inside(&path)));
        let whole = fs::read(&block).expect("a file");
        Folder { path, block, whole, engine }
    }
}

fn session(engine: &Engine) -> Session {
    let mut session = engine
        .session(SessionOptions { context_len: Some(16), ..SessionOptions::default() })
        .expect("a session");
    session.append_tokens(&PROMPT).expect("fits");
    session
}

fuzz_target!(|input: &[u8]| {
    let Some((&kind, rest)) = input.split_first() else { return };
    let mut bytes = if kind & 1 == 0 { rest.to_vec() } else { edited(&FOLDER.whole, rest) };
    use_block(&bytes);
    sign(&mut bytes);
    use_block(&bytes);
});

fn use_block(bytes: &[u8]) {
    fs::write(&FOLDER.block, bytes).expect("a file");
    let store = PrefixStore::open(&FOLDER.path, PrefixOptions::default()).expect("opens");
    let status = store.verify().expect("reads");
    assert_eq!(status.n_blocks + status.left_aside.len(), 1);
    let mut session = session(&FOLDER.engine);
    let n = store.restore(&mut session, "a").expect("restores");
    assert!(n <= 3 && (n == 0 || status.n_blocks == 1));
}

/// `whole` with numbers written over it: each edit has a place of two bytes, taken modulo the length, and four bytes.
fn edited(whole: &[u8], edits: &[u8]) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    for edit in edits.chunks_exact(6) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % (bytes.len() - 3);
        bytes[at..at + 4].copy_from_slice(&edit[2..]);
    }
    bytes
}

/// Corrects both seals, where the header's numbers and the length permit.
fn sign(bytes: &mut [u8]) {
    let Some(&[a, b, c, d]) = bytes.get(48..52) else { return };
    let head = 96 + 4 * u32::from_le_bytes([a, b, c, d]) as usize;
    if bytes.len() < head.saturating_add(32) {
        return;
    }
    let seal = |parts: [&[u8]; 2]| {
        let mut hash = Xxh3::new();
        parts.iter().for_each(|part| hash.update(part));
        hash.digest128().to_le_bytes()
    };
    let of_head = seal([&bytes[..64], &bytes[64..head]]);
    bytes[head..head + 16].copy_from_slice(&of_head);
    let end = bytes.len() - 16;
    let of_state = seal([&of_head, &bytes[head + 16..end]]);
    bytes[end..].copy_from_slice(&of_state);
}
