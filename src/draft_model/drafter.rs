//! A draft model's state for one session, shared by the source and the published methods.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::DraftModel;
use super::hidden_rows::CHUNK;
use super::kv_tree::KvTree;
use crate::draft::{Computed, ComputingSource, DraftTree, HiddenStates};
use crate::kernels::KvType;
use crate::model::kv_cache::{KvCache, KvCacheError};
use crate::model::transformer::ForwardError;
use refrain_trees::TokenId;

/// Maximum unread text tokens before a draft, while drafts are requested. A longer text is prefilled
/// beforehand in one pass, which costs little more than a few rows. The cost of the next draft is therefore
/// bounded.
const OWED_MAX: usize = 32;

/// The same while no draft is requested: the tokens of one pass.
const OWED_UNASKED_MAX: usize = CHUNK;

/// Nodes of a pass made ahead: they cost little more than one.
const AHEAD_ROWS: usize = 8;

/// The probability below which a node is not computed ahead: the battery pays for it too.
const AHEAD_REACH_MIN: f32 = 0.01;

/// A [`KvTree`], or the reason why it is unusable. An error turns drafting off, is reported, and never
/// affects the output.
pub struct Drafter {
    /// `None` if its memory could not be allocated.
    tree: Option<KvTree>,
    /// The error that turned drafting off.
    failed: Option<String>,
    /// Whether a draft was requested since the last prefill.
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

    /// As [`new`](Self::new), with keys and values of another type.
    pub(super) fn with_kv_type(
        model: &Arc<DraftModel>,
        context_len: usize,
        n_likely: usize,
        n_nodes_max: usize,
        kv_type: KvType,
    ) -> Result<Self, KvCacheError> {
        let tree = KvTree::with_kv_type(Arc::clone(model), context_len, n_likely, n_nodes_max, kv_type)?;
        Ok(Self { tree: Some(tree), failed: None, was_asked: false })
    }

    /// The drafter with a tree that [keeps](KvTree::keeping) nodes.
    pub fn keeping(self) -> Self {
        Self { tree: self.tree.map(KvTree::keeping), ..self }
    }

    /// The tree, if it is usable: no error has occurred, its text is not empty and fits, its root can be computed, and the model is in
    /// memory.
    pub fn tree(&self) -> Option<&KvTree> {
        let fits = |tree: &&KvTree| {
            (1..=tree.text_len_max()).contains(&tree.text_len()) && tree.has_root() && tree.has_weights()
        };
        self.tree.as_ref().filter(|_| self.failed.is_none()).filter(fits)
    }

    /// Runs `work` on the tree; `None` if the tree is unusable or `work` fails.
    pub fn with<T>(&mut self, work: impl FnOnce(&mut KvTree) -> Result<T, ForwardError>) -> Option<T> {
        self.tree()?;
        match work(self.tree.as_mut()?) {
            Ok(value) => Some(value),
            // The app cancelled, and the target's own pass will report it; or the target's layers were released meanwhile.
            Err(ForwardError::Cancelled | ForwardError::Released { .. }) => None,
            Err(error) => {
                self.failed = Some(error.to_string());
                None
            }
        }
    }

    /// Whether the model is the target's own first layers.
    pub(super) fn is_copied(&self) -> bool {
        self.tree.as_ref().is_some_and(KvTree::is_copied)
    }

    /// Copies what the target has computed of the text: see [`KvTree::copy_text`].
    pub(super) fn copy_text(&mut self, committed: &[TokenId], kv: &KvCache) {
        if let Some(tree) = self.tree.as_mut().filter(|_| self.failed.is_none()) {
            tree.copy_text(committed, kv);
        }
    }

    /// Hands the rows of `tree` that are computed over to the target: see [`KvTree::hand_over`].
    pub(super) fn hand_over(
        &self,
        committed: &[TokenId],
        tree: &DraftTree,
        kv: &mut KvCache,
        rows: &mut Vec<u32>,
        hidden: &mut Vec<f32>,
    ) -> Option<usize> {
        let own = self.tree.as_ref().filter(|_| self.failed.is_none())?;
        own.hand_over(committed, tree, kv, rows, hidden)
    }

    /// Updates the committed text without computing.
    pub fn follow(&mut self, committed: &[TokenId]) {
        if let Some(tree) = &mut self.tree {
            tree.follow(committed);
        }
    }

    /// Updates the committed text, and prefills it if more than 32 tokens are unread. If no draft was
    /// requested since the last prefill, the limit is one pass.
    pub fn keep_up(&mut self, committed: &[TokenId]) {
        let n_max = if self.was_asked { OWED_MAX } else { OWED_UNASKED_MAX };
        self.read(committed, n_max);
    }

    /// Updates the text before a draft, and prefills it if more than 32 tokens are unread.
    pub fn prime(&mut self, committed: &[TokenId]) {
        self.read(committed, OWED_MAX);
    }

    fn read(&mut self, committed: &[TokenId], n_owed_max: usize) {
        self.follow(committed);
        // Keys and values of the target's own layers are copied before the next draft.
        if self.is_copied() {
            return;
        }
        if self.tree().is_some_and(|tree| tree.n_owed() > n_owed_max) && self.with(KvTree::read).is_some() {
            self.was_asked = false;
        }
    }

    /// Computes the root for a draft.
    pub fn compute_root(&mut self) {
        self.was_asked = true;
        self.with(KvTree::compute_root);
    }

    /// Removes the text from position `len` on.
    pub fn truncate(&mut self, len: usize) {
        if let Some(tree) = &mut self.tree {
            tree.truncate(len);
        }
    }

    /// Removes the text and frees the memory.
    pub fn release(&mut self) {
        self.was_asked = false;
        if let Some(tree) = &mut self.tree {
            tree.release();
        }
    }

    /// Bytes on the heap, without the weights.
    pub fn memory_usage(&self) -> usize {
        self.tree.as_ref().map_or(0, KvTree::memory_usage)
    }
}

impl ComputingSource for Drafter {
    /// Computes the likeliest nodes that are not computed; none before the root is computed, or with recurrent layers, whose nodes do not
    /// outlast a commit.
    fn compute_ahead(&mut self, budget_us: f32) -> bool {
        let is_open =
            |tree: &KvTree| tree.keeps() && tree.n_owed() == 0 && tree.pass_us(AHEAD_ROWS) <= budget_us;
        self.tree().is_some_and(is_open)
            && self.with(|tree| tree.compute_likeliest(AHEAD_ROWS, AHEAD_REACH_MIN)) == Some(true)
    }

    fn reads_hidden(&self) -> Option<HiddenStates> {
        self.tree.as_ref().filter(|_| self.failed.is_none()).and_then(KvTree::reads_hidden)
    }

    fn read_hidden(&mut self, committed: &[TokenId], first: usize, hidden: &[f32]) {
        let Some(tree) = self.tree.as_mut().filter(|_| self.failed.is_none()) else { return };
        match tree.read_hidden(committed, first, hidden) {
            Ok(()) | Err(ForwardError::Cancelled) => {}
            Err(error) => self.failed = Some(error.to_string()),
        }
    }

    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        if let Some(tree) = &mut self.tree {
            tree.watch(cancel);
        }
    }

    /// The computation so far, and the reason why drafting is off, if it is.
    fn computed(&self) -> Computed {
        let mut computed = self.tree.as_ref().map(|tree| tree.computed().clone()).unwrap_or_default();
        computed.off = self.failed.clone().or_else(|| {
            let tree = self.tree.as_ref()?;
            let (len, max) = (tree.exceeded_by()?, tree.text_len_max());
            Some(format!("{len} tokens exceed the draft model's context of {max}"))
        });
        computed
    }
}

/// A copy for a fork of the session. If its memory cannot be allocated, the copy does not draft.
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
