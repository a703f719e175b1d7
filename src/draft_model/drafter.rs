//! A draft model at work for one session: what the source and the published rules share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::DraftModel;
use super::kv_tree::{CHUNK, KvTree};
use crate::draft::Computed;
use crate::model::kv_cache::KvCacheError;
use crate::model::transformer::ForwardError;
use crate::token::TokenId;

/// Tokens of text that are left unread until the next draft, while drafts are asked for. More are read together beforehand, which
/// costs little more than a few rows: so what the next draft costs has a bound.
const OWED_MAX: usize = 32;

/// The same while nobody asks: as many as one pass reads.
const OWED_UNASKED_MAX: usize = CHUNK;

/// A [`KvTree`], and why it is not used, where it is not: an error turns drafting off and is told, and never reaches the
/// output.
pub struct Drafter {
    /// Not there where there was no memory for it.
    tree: Option<KvTree>,
    /// Why it has stopped for good.
    failed: Option<String>,
    /// Whether a draft was asked for since text was read ahead of one.
    was_asked: bool,
}

impl Drafter {
    /// A drafter without text: see [`KvTree::new`].
    pub fn new(
        model: &Arc<DraftModel>,
        context_len: usize,
        n_likely: usize,
        n_nodes_max: usize,
    ) -> Result<Self, KvCacheError> {
        let tree = KvTree::new(Arc::clone(model), context_len, n_likely, n_nodes_max)?;
        Ok(Self { tree: Some(tree), failed: None, was_asked: false })
    }

    /// The tree, where it can be used: it has not failed, and its text fits and is not empty.
    pub fn tree(&self) -> Option<&KvTree> {
        let fits = |tree: &&KvTree| (1..=tree.text_len_max()).contains(&tree.text_len());
        self.tree.as_ref().filter(|_| self.failed.is_none()).filter(fits)
    }

    /// Does something with the tree; `None` where it cannot be used or fails.
    pub fn with<T>(&mut self, work: impl FnOnce(&mut KvTree) -> Result<T, ForwardError>) -> Option<T> {
        self.tree()?;
        match work(self.tree.as_mut()?) {
            Ok(value) => Some(value),
            // The app's wish; the target's own pass will meet it.
            Err(ForwardError::Cancelled) => None,
            Err(error) => {
                self.failed = Some(error.to_string());
                None
            }
        }
    }

    /// Takes over the committed text.
    pub fn follow(&mut self, committed: &[TokenId]) {
        if let Some(tree) = &mut self.tree {
            tree.follow(committed);
        }
    }

    /// Takes over the committed text, and reads it where more of it is unread than the next draft should cost. Where no draft was asked
    /// for since text was read last, that is more.
    pub fn keep_up(&mut self, committed: &[TokenId]) {
        let n_max = if self.was_asked { OWED_MAX } else { OWED_UNASKED_MAX };
        self.read(committed, n_max);
    }

    /// Takes over text that a draft follows on, and reads it where more of it is unread than the draft should cost.
    pub fn prime(&mut self, committed: &[TokenId]) {
        self.read(committed, OWED_MAX);
    }

    fn read(&mut self, committed: &[TokenId], n_owed_max: usize) {
        self.follow(committed);
        if self.tree().is_some_and(|tree| tree.n_owed() > n_owed_max) && self.with(KvTree::read).is_some() {
            self.was_asked = false;
        }
    }

    /// Computes the root for a draft.
    pub fn compute_root(&mut self) {
        self.was_asked = true;
        self.with(KvTree::compute_root);
    }

    /// Forgets the text from position `len` on.
    pub fn truncate(&mut self, len: usize) {
        if let Some(tree) = &mut self.tree {
            tree.truncate(len);
        }
    }

    /// Forgets the text and gives the memory back.
    pub fn release(&mut self) {
        self.was_asked = false;
        if let Some(tree) = &mut self.tree {
            tree.release();
        }
    }

    /// Passes end soon after `cancel` is set.
    pub fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        if let Some(tree) = &mut self.tree {
            tree.watch(cancel);
        }
    }

    /// The work so far, and why there is none any more, where that is so.
    pub fn computed(&self) -> Computed {
        let mut computed = self.tree.as_ref().map(|tree| tree.computed().clone()).unwrap_or_default();
        computed.off = self.failed.clone().or_else(|| {
            let tree = self.tree.as_ref().filter(|tree| tree.text_len() > tree.text_len_max())?;
            let (len, max) = (tree.text_len(), tree.text_len_max());
            Some(format!("{len} tokens exceed the draft model's context of {max}"))
        });
        computed
    }

    /// Bytes on the heap, without the weights.
    pub fn memory_usage(&self) -> usize {
        self.tree.as_ref().map_or(0, KvTree::memory_usage)
    }
}

/// A copy for a fork of the session; where there is no memory for it, it does not draft.
impl Clone for Drafter {
    fn clone(&self) -> Self {
        let (tree, failed) = match self.tree.as_ref().map(KvTree::fork) {
            Some(Ok(tree)) => (Some(tree), self.failed.clone()),
            Some(Err(error)) => (None, Some(error.to_string())),
            None => (None, self.failed.clone()),
        };
        Self { tree, failed, was_asked: self.was_asked }
    }
}
