//! Keys and values of recent prompts and answers, so that the next turn of a conversation computes only its new part.
//!
//! An entry is immutable: conversations that branch, and requests at the same time, restore the same one. A restored state gives the bits of a
//! prefill.
//!
//! Keys and values serve every prompt as far as it agrees. The state of recurrent layers serves only a prompt that has all tokens of its
//! entry. Such models therefore have entries behind the prompt and behind the answer, and where two conversations part: there, the prefill
//! of the second one remembers the state for the third one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use refrain::{Session, TokenId};

/// Fewer tokens are computed as fast as they are kept.
const TOKENS_MIN: usize = 16;

/// Conversations often share a few tokens more than their system turn, by chance. The state of recurrent layers is therefore kept at a multiple of
/// this position before the first different token.
const PARTING_STEP: usize = 16;

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
        let is_recurrent = session.state().ends().is_some();
        let agreed = |entry: &Entry| entry.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        let usable = |entry: &Entry| match agreed(entry) {
            n_agreed if is_recurrent && (n_agreed < entry.tokens.len() || n_agreed == tokens.len()) => 0,
            n_agreed => n_agreed,
        };
        let rank = |entry: &Entry| (usable(entry), entry.key.is_some() && entry.key.as_deref() == key);
        let mut entries = self.lock();
        let parting = entries.iter().map(|entry| agreed(entry)).max().unwrap_or(0);
        let best = entries.iter().enumerate().map(|(index, entry)| (rank(entry), index)).max();
        let best = best.filter(|((n, _), _)| *n > session.state().n_cached_tokens().max(TOKENS_MIN));
        let best = best.map(|(_, index)| {
            let entry = entries.remove(index);
            entries.push(Arc::clone(&entry));
            entry
        });
        drop(entries);
        if let Some(entry) = best {
            // An error leaves the session as it was: the tokens are computed.
            let _ = session.state_mut().restore(0, &entry.tokens, &entry.state);
        }
        let parting = parting / PARTING_STEP * PARTING_STEP;
        if parting > session.state().n_cached_tokens() {
            session.state_mut().remember(parting);
        }
    }

    /// Keeps what a session has computed, and forgets the oldest entries beyond the budget.
    pub(crate) fn keep(&self, session: &Session, key: Option<&str>) {
        let bytes_max = self.bytes_max.load(Ordering::Relaxed);
        let ends = session.state().ends();
        let is_recurrent = ends.is_some();
        let ends = ends.unwrap_or_else(|| vec![session.state().n_cached_tokens()]);
        let new: Vec<Arc<Entry>> = ends
            .iter()
            .filter_map(|&end| self.entry(session, end, is_recurrent, bytes_max, key).map(Arc::new))
            .collect();
        let tokens = &session.tokens()[..session.state().n_cached_tokens()];
        let mut entries = self.lock();
        let all = entries.clone();
        entries.retain(|old| {
            // The conversation before this turn is a part of the new entry. Of recurrent layers it has another state: that is needed where
            // another conversation goes on from it.
            let is_parting = || {
                let goes_on = |other: &Entry| {
                    other.tokens.starts_with(&old.tokens) && !tokens.starts_with(&other.tokens)
                };
                is_recurrent && (ends.contains(&old.tokens.len()) || all.iter().any(|other| goes_on(other)))
            };
            new.is_empty() || !tokens.starts_with(&old.tokens) || is_parting()
        });
        entries.extend(new);
        let mut bytes: usize = entries.iter().map(|entry| entry.bytes()).sum();
        while bytes > bytes_max {
            // Of a client that names its conversations, each counts more than one of a client that does not.
            let index = entries.iter().position(|entry| entry.key.is_none());
            let index = index.filter(|index| index + 1 < entries.len()).unwrap_or(0);
            bytes -= entries.remove(index).bytes();
        }
    }

    /// The state of the first `n_tokens` tokens; `None` if it is known already, too short, too large, or if there is no memory for it.
    fn entry(
        &self,
        session: &Session,
        n_tokens: usize,
        is_recurrent: bool,
        bytes_max: usize,
        key: Option<&str>,
    ) -> Option<Entry> {
        let n_bytes = usize::try_from(session.state().bytes(n_tokens)).unwrap_or(usize::MAX);
        if n_tokens < TOKENS_MIN || n_bytes.saturating_add(n_tokens * size_of::<TokenId>()) > bytes_max {
            return None;
        }
        let tokens = &session.tokens()[..n_tokens];
        let serves = |entry: &Entry| match is_recurrent {
            true => entry.tokens == tokens,
            false => entry.tokens.starts_with(tokens),
        };
        if self.lock().iter().any(|entry| serves(entry)) {
            return None;
        }
        let mut state = Vec::new();
        state.try_reserve_exact(n_bytes).ok()?;
        session.state().write(0..n_tokens, &mut state).ok()?;
        Some(Entry { tokens: tokens.to_vec(), state, key: key.map(str::to_owned) })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
