//! Shared parts of the tests of prefixes.

#![allow(dead_code, unreachable_pub, reason = "each test binary uses a part of this module")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use refrain::drafting::CostProfile;
use refrain::{CancelToken, Drafting, Engine, EngineOptions, Session, SessionOptions, TokenId};

pub fn engine_options(n_threads: usize) -> EngineOptions {
    let costs = CostProfile::free_rows(100.0);
    EngineOptions { n_threads: Some(n_threads), cost_profile: Some(costs), ..EngineOptions::default() }
}

pub fn engine(n_threads: usize) -> Engine {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/target.gguf");
    Engine::open(&model, engine_options(n_threads)).expect("the fixture loads")
}

pub fn plain() -> SessionOptions {
    SessionOptions { drafting: Drafting::Off, history: false, ..SessionOptions::default() }
}

/// A session that has computed the keys and values of all tokens but the newest.
pub fn computed(engine: &Engine, tokens: &[TokenId]) -> Session {
    let mut session = engine.session(plain()).expect("a session");
    session.append_tokens(tokens).expect("fits");
    session.prefill(&CancelToken::new(), |_, _| {}).expect("computes");
    session
}

pub fn state(session: &Session) -> Vec<u8> {
    let mut state = Vec::new();
    session.state().write(0..session.state().n_cached_tokens(), &mut state).expect("is computed");
    state
}

pub fn token_bytes(tokens: &[TokenId]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.0.to_le_bytes()).collect()
}

/// All files below a folder. (Files that other processes remove meanwhile may be missing.)
pub fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(files(&path));
        } else if path.is_file() {
            match std::fs::read(&path) {
                Ok(bytes) => drop(found.insert(path, bytes)),
                // A process that runs may have deleted it.
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{}", path.display()),
            }
        }
    }
    found
}

/// Whether any file below a folder contains these bytes.
pub fn holds(folder: &Path, bytes: &[u8]) -> bool {
    files(folder).values().any(|contents| contents.windows(bytes.len()).any(|window| window == bytes))
}
