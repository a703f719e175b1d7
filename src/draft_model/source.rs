//! The source *draft model*: what a smaller model would say next.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::DraftModel;
use super::drafter::Drafter;
use super::kv_tree::{KvTree, ROOT};
use crate::draft::{
    Anchor, Candidate, Candidates, Computed, ComputingSource, Cursor, DraftSource, EvidenceClass, StepOutcome,
};
use crate::model::ModelConfig;
use crate::model::kv_cache::KvCacheError;
use crate::token::TokenId;

/// Successors of a node that are proposed: the set of candidates has this size whatever the distribution (Lever), and what
/// each is worth is for the reliability table to say.
const CANDIDATES: usize = 8;

/// Nodes computed behind a text at most: twice the rows of the longest verification batch, since some are computed beside
/// others and never drafted.
const NODES_MAX: usize = 128;

/// Drafts with a smaller model.
///
/// A cursor is a parent and a token: a node of the model's [`KvTree`], or one that is not computed yet, and so may its parent be,
/// where others have claimed the tokens. Expanding computes what is not there, in one pass for all cursors; which cursors are
/// worth a pass is the builder's to say. Holds the keys and values of the session's text and of the nodes, and a row of logits
/// for each node of a pass.
pub(crate) struct DraftModelSource {
    drafter: Drafter,
    /// Parents that are not computed, at first: their own parents, and their tokens. A parent is a node of the tree, or one
    /// of these, from [`UNSEEN`] on.
    unseen: Vec<(u32, TokenId)>,
}

/// The cursor of the newest token of the text.
const ROOT_CURSOR: Cursor = Cursor(u64::MAX);

/// The first of the parents that were not computed.
const UNSEEN: u32 = 1 << 31;

/// Parents that are not computed in one draft at most: as many as a tree has rows go on from one another.
const UNSEEN_MAX: usize = 4 * NODES_MAX;

impl DraftModelSource {
    /// A source without text, for a session of `context_len` tokens.
    ///
    /// # Errors
    /// There is no memory for the keys and values.
    pub(crate) fn new(model: &Arc<DraftModel>, context_len: usize) -> Result<Self, KvCacheError> {
        Ok(Self { drafter: Drafter::new(model, context_len, CANDIDATES, NODES_MAX)?, unseen: Vec::new() })
    }

    /// Bytes of a source like that at most, without the model's weights.
    pub(crate) fn bytes(config: &ModelConfig, context_len: usize) -> u64 {
        KvTree::bytes(config, context_len, NODES_MAX)
    }

    /// The cursor's node, where it is computed or among the nodes that follow those of the tree; with nothing of its path in
    /// either, puts what is missing behind `wanted`, as far as there is room.
    fn want(&self, tree: &KvTree, cursor: Cursor, wanted: &mut Vec<(u32, TokenId)>) -> Option<u32> {
        if cursor == ROOT_CURSOR {
            return Some(ROOT);
        }
        let (parent, token) = decode(cursor);
        let parent = match parent.checked_sub(UNSEEN) {
            None => parent,
            Some(at) => self.want(tree, encode(self.unseen[at as usize]), wanted)?,
        };
        if let Some(node) = tree.child(parent, token) {
            return Some(node);
        }
        let at = wanted.iter().position(|&node| node == (parent, token)).or_else(|| {
            (wanted.len() < tree.room()).then(|| {
                wanted.push((parent, token));
                wanted.len() - 1
            })
        });
        Some(tree.n_nodes().max(1) + at? as u32)
    }

    /// The cursor's node, where it is computed.
    fn node(&self, tree: &KvTree, cursor: Cursor) -> Option<u32> {
        if cursor == ROOT_CURSOR {
            return (tree.n_owed() == 0).then_some(ROOT);
        }
        let (parent, token) = decode(cursor);
        let parent = match parent.checked_sub(UNSEEN) {
            None => parent,
            Some(at) => self.node(tree, encode(self.unseen[at as usize]))?,
        };
        tree.child(parent, token)
    }

    /// What has to be computed for these cursors.
    fn missing(&self, tree: &KvTree, frontier: &[Cursor]) -> Vec<(u32, TokenId)> {
        let mut wanted = Vec::new();
        for &cursor in frontier {
            self.want(tree, cursor, &mut wanted);
        }
        wanted
    }
}

fn encode((parent, token): (u32, TokenId)) -> Cursor {
    Cursor(u64::from(parent) << 32 | u64::from(token.0))
}

fn decode(Cursor(bits): Cursor) -> (u32, TokenId) {
    ((bits >> 32) as u32, TokenId(bits as u32))
}

impl ComputingSource for DraftModelSource {
    fn advance(&mut self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        if cursor == ROOT_CURSOR {
            return Some(encode((ROOT, token)));
        }
        if let Some(node) = self.node(self.drafter.tree()?, cursor) {
            return Some(encode((node, token)));
        }
        let parent = decode(cursor);
        // The newest: all children of a node come one after another.
        let at = self.unseen.iter().rposition(|&unseen| unseen == parent).or_else(|| {
            (self.unseen.len() < UNSEEN_MAX).then(|| {
                self.unseen.push(parent);
                self.unseen.len() - 1
            })
        });
        Some(encode((UNSEEN + at? as u32, token)))
    }

    fn expansion_us(&self, frontier: &[Cursor]) -> f32 {
        let Some(tree) = self.drafter.tree() else { return 0.0 };
        let pass_us = |n_rows: usize| if n_rows == 0 { 0.0 } else { tree.pass_us(n_rows) };
        pass_us(tree.n_owed()) + pass_us(self.missing(tree, frontier).len())
    }

    fn prepare(&mut self, frontier: &[Cursor]) {
        // The root first: whatever is wanted goes on from it.
        self.drafter.compute_root();
        let Some(tree) = self.drafter.tree().filter(|tree| tree.n_owed() == 0) else { return };
        let wanted = self.missing(tree, frontier);
        if !wanted.is_empty() {
            self.drafter.with(|tree| tree.compute(&wanted));
        }
    }

    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        self.drafter.watch(cancel);
    }

    fn computed(&self) -> Computed {
        self.drafter.computed()
    }
}

impl DraftSource for DraftModelSource {
    fn name(&self) -> &str {
        "draft_model"
    }

    fn evidence(&self) -> EvidenceClass {
        EvidenceClass::DraftModel
    }

    fn computing(&mut self) -> Option<&mut dyn ComputingSource> {
        Some(self)
    }

    fn prime(&mut self, committed: &[TokenId]) {
        self.drafter.prime(committed);
    }

    fn reset(&mut self) {
        self.drafter.truncate(0);
    }

    fn release(&mut self) {
        self.drafter.release();
    }

    fn truncate(&mut self, len: usize) {
        self.drafter.truncate(len);
    }

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        self.drafter.keep_up(committed);
        self.unseen.clear();
        if self.drafter.tree().is_some() {
            out.push(Anchor { cursor: ROOT_CURSOR, match_len: 1 });
        }
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        self.prepare(frontier);
        let Some(tree) = self.drafter.tree() else { return };
        for (parent, &cursor) in frontier.iter().enumerate() {
            let Some(node) = self.node(tree, cursor) else { continue };
            for likely in tree.likely(node) {
                out.push(Candidate {
                    parent: parent as u32,
                    token: likely.token,
                    probability: likely.probability,
                    match_len: 1,
                    count: 1,
                    next: encode((node, likely.token)),
                });
            }
        }
    }

    fn observe(&mut self, committed: &[TokenId], _step: &StepOutcome<'_>) {
        self.drafter.follow(committed);
    }

    fn memory_usage(&self) -> usize {
        self.drafter.memory_usage() + self.unseen.capacity() * size_of::<(u32, TokenId)>()
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        Box::new(Self { drafter: self.drafter.clone(), unseen: Vec::new() })
    }
}
