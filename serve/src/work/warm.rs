//! Keys and values of recent prompts and answers, so that the next turn of a conversation computes only its new part.
//!
//! An entry is immutable: conversations that branch, and requests at the same time, restore the same one. A restored state gives the bits of a
//! prefill.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use refrain::{Session, TokenId};

/// Fewer tokens are computed as fast as they are kept.
const TOKENS_MIN: usize = 16;

/// The kept states of one model, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Warm {
    entries: Mutex<Vec<Arc<Entry>>>,
    /// The limit of the server, which may be set after a model is loaded.
    bytes_max: Arc<AtomicUsize>,
}

#[derive(Debug)]
struct Entry {
    tokens: Vec<TokenId>,
    state: Vec<u8>,
    key: Option<String>,
}

impl Entry {
    fn bytes(&self) -> usize {
        self.state.len() + self.tokens.len() * size_of::<TokenId>()
    }
}

impl Warm {
    pub(crate) fn new(bytes_max: Arc<AtomicUsize>) -> Self {
        Self { entries: Mutex::default(), bytes_max }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.lock().iter().map(|entry| entry.bytes()).sum()
    }

    /// Restores the longest known beginning of a session's tokens.
    pub(crate) fn restore(&self, session: &mut Session, key: Option<&str>) {
        let tokens = session.tokens();
        let entry = {
            let mut entries = self.lock();
            let agreed = |entry: &Entry| {
                let n_agreed = entry.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
                (n_agreed, entry.key.is_some() && entry.key.as_deref() == key)
            };
            let best = entries.iter().enumerate().map(|(index, entry)| (agreed(entry), index)).max();
            let Some(((n_agreed, _), index)) = best else { return };
            if n_agreed <= session.n_cached_tokens().max(TOKENS_MIN) {
                return;
            }
            let entry = entries.remove(index);
            entries.push(Arc::clone(&entry));
            entry
        };
        // An error leaves the session as it was: the tokens are computed.
        let _ = session.restore_state(0, &entry.tokens, &entry.state);
    }

    /// Keeps what a session has computed, and forgets the oldest entries beyond the budget.
    pub(crate) fn keep(&self, session: &Session, key: Option<&str>) {
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        let n_tokens = session.n_cached_tokens();
        let n_bytes = usize::try_from(session.state_bytes(n_tokens)).unwrap_or(usize::MAX);
        if n_tokens < TOKENS_MIN || n_bytes.saturating_add(n_tokens * size_of::<TokenId>()) > bytes_max {
            return;
        }
        let tokens = &session.tokens()[..n_tokens];
        if self.lock().iter().any(|entry| entry.tokens.starts_with(tokens)) {
            return;
        }
        let mut state = Vec::new();
        if state.try_reserve_exact(n_bytes).is_err() || session.write_state(0..n_tokens, &mut state).is_err()
        {
            return;
        }
        let entry = Entry { tokens: tokens.to_vec(), state, key: key.map(str::to_owned) };
        let mut entries = self.lock();
        // The conversation before this turn is a part of the new entry.
        entries.retain(|old| !entry.tokens.starts_with(&old.tokens));
        entries.push(Arc::new(entry));
        let mut bytes: usize = entries.iter().map(|entry| entry.bytes()).sum();
        while bytes > bytes_max {
            // Of a client that names its conversations, each counts more than one of a client that does not.
            let index = entries.iter().position(|entry| entry.key.is_none());
            let index = index.filter(|index| index + 1 < entries.len()).unwrap_or(0);
            bytes -= entries.remove(index).bytes();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
