//! The rows that a session's target has in common with the draft source of its own layers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::drafter::Drafter;
use crate::draft::DraftTree;
use crate::model::KeptRows;
use crate::model::kv_cache::KvCache;
use refrain_trees::TokenId;

/// Rows that one session's target has in common with the draft source of its own layers.
pub(crate) struct OwnRows {
    drafter: Arc<Mutex<Drafter>>,
    /// Numbers of the kept rows of the newest verification batch.
    rows: Vec<u32>,
    /// `[rows.len(), hidden_dim]`
    hidden: Vec<f32>,
}

impl OwnRows {
    pub(super) fn new(drafter: &Arc<Mutex<Drafter>>) -> Self {
        Self { drafter: Arc::clone(drafter), rows: Vec::new(), hidden: Vec::new() }
    }

    /// The state of the draft source, which it shares with this value.
    pub(super) fn drafter(&self) -> &Arc<Mutex<Drafter>> {
        &self.drafter
    }

    fn lock(&self) -> MutexGuard<'_, Drafter> {
        lock(&self.drafter)
    }

    /// Copies keys and values of the committed text from the target's cache, so that the source does not compute them.
    pub(crate) fn read_text(&mut self, committed: &[TokenId], kv: &KvCache) {
        self.lock().copy_text(committed, kv);
    }

    /// Copies the keys and values of the rows of `tree` that were drafted with the target's own layers to the slots of its batch behind
    /// the committed prefix of `kv`. Returns these rows; `None` if there are none.
    pub(crate) fn hand_over(
        &mut self,
        committed: &[TokenId],
        tree: &DraftTree,
        kv: &mut KvCache,
    ) -> Option<KeptRows<'_>> {
        let Self { drafter, rows, hidden } = self;
        rows.clear();
        hidden.clear();
        let layer_idx = lock(drafter).hand_over(committed, tree, kv, rows, hidden)?;
        (!rows.is_empty()).then_some(KeptRows { layer_idx, rows, hidden })
    }

    /// That of a fork of the session.
    pub(crate) fn fork(&self) -> Self {
        Self::new(&Arc::new(Mutex::new(self.lock().clone())))
    }
}

pub(super) fn lock(drafter: &Mutex<Drafter>) -> MutexGuard<'_, Drafter> {
    // After a panic, the session resets its sources before the next call.
    drafter.lock().unwrap_or_else(PoisonError::into_inner)
}
