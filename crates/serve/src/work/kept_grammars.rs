//! The newest grammars of a model, kept: agents send the same tools with every request.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use refrain_grammar::Grammar;

/// Grammars that a model keeps, and their bytes. One alone is smaller.
const KEPT: usize = 16;
const KEPT_BYTES_MAX: usize = 128 << 20;

/// The kept grammars, the oldest first, under hashes of their sources.
#[derive(Debug, Default)]
pub(crate) struct Grammars {
    kept: Mutex<Vec<(blake3::Hash, Grammar)>>,
    /// Whether one is compiled. One at a time: it takes a processor, and equal requests often come together.
    pub(super) is_compiling: Mutex<bool>,
    pub(super) has_compiled: Condvar,
}

impl Grammars {
    pub(super) fn find(&self, key: blake3::Hash) -> Option<Grammar> {
        let mut kept = self.lock();
        let index = kept.iter().position(|(other, _)| *other == key)?;
        let entry = kept.remove(index);
        let grammar = entry.1.clone();
        kept.push(entry);
        Some(grammar)
    }

    pub(super) fn keep(&self, key: blake3::Hash, grammar: Grammar) {
        let mut kept = self.lock();
        kept.push((key, grammar));
        let mut n_bytes: usize = kept.iter().map(|(_, grammar)| grammar.memory_usage()).sum();
        while kept.len() > KEPT || n_bytes > KEPT_BYTES_MAX {
            n_bytes -= kept.remove(0).1.memory_usage();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(blake3::Hash, Grammar)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
