//! The source *draft model*: what a smaller model would say next.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::DraftModel;
use super::drafter::Drafter;
use super::kv_tree::{KvTree, ROOT};
use crate::draft::{Anchor, Candidate, Candidates, Computed, Cursor, DraftSource, SourceKind, StepOutcome};
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
/// A cursor is a node of the model's [`KvTree`], or one that is not computed yet: a computed parent and a token. Expanding
/// computes what is not there, in one pass for all cursors; which cursors are worth a pass is the builder's to say. Holds the
/// keys and values of the session's text and of the nodes, and a row of logits for each node of a pass.
pub(crate) struct DraftModelSource {
    drafter: Drafter,
}

/// The cursor of the newest token of the text.
const ROOT_CURSOR: Cursor = Cursor(u64::MAX);

impl DraftModelSource {
    /// A source without text, for a session of `context_len` tokens.
    ///
    /// # Errors
    /// There is no memory for the keys and values.
    pub(crate) fn new(model: &Arc<DraftModel>, context_len: usize) -> Result<Self, KvCacheError> {
        Ok(Self { drafter: Drafter::new(model, context_len, CANDIDATES, NODES_MAX)? })
    }
}

/// The cursor's node, where it is computed.
fn node(tree: &KvTree, cursor: Cursor) -> Option<u32> {
    match cursor {
        ROOT_CURSOR => (tree.n_owed() == 0).then_some(ROOT),
        _ => {
            let (parent, token) = decode(cursor);
            tree.child(parent, token)
        }
    }
}

fn encode(parent: u32, token: TokenId) -> Cursor {
    Cursor(u64::from(parent) << 32 | u64::from(token.0))
}

fn decode(Cursor(bits): Cursor) -> (u32, TokenId) {
    ((bits >> 32) as u32, TokenId(bits as u32))
}

impl DraftSource for DraftModelSource {
    fn kind(&self) -> SourceKind {
        SourceKind::DraftModel
    }

    fn name(&self) -> &str {
        "draft_model"
    }

    fn prime(&mut self, committed: &[TokenId]) {
        self.drafter.read(committed);
    }

    fn reset(&mut self) {
        self.drafter.truncate(0);
    }

    fn truncate(&mut self, len: usize) {
        self.drafter.truncate(len);
    }

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        self.drafter.read(committed);
        if self.drafter.tree().is_some() {
            out.push(Anchor { cursor: ROOT_CURSOR, match_len: 1 });
        }
    }

    fn expansion_us(&self, frontier: &[Cursor]) -> f32 {
        let Some(tree) = self.drafter.tree() else { return 0.0 };
        let n_rows = match frontier.first() {
            Some(&ROOT_CURSOR) => tree.n_owed(),
            _ => frontier.iter().filter(|&&cursor| node(tree, cursor).is_none()).count(),
        };
        if n_rows == 0 { 0.0 } else { tree.pass_us(n_rows) }
    }

    fn prepare(&mut self, frontier: &[Cursor]) {
        self.drafter.with(|tree| {
            if frontier.contains(&ROOT_CURSOR) {
                tree.compute_root()?;
            }
            let mut wanted: Vec<(u32, TokenId)> = Vec::new();
            for &cursor in frontier {
                let is_new = node(tree, cursor).is_none() && !wanted.contains(&decode(cursor));
                if is_new && wanted.len() < tree.room() {
                    wanted.push(decode(cursor));
                }
            }
            if wanted.is_empty() { Ok(()) } else { tree.compute(&wanted).map(drop) }
        });
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        self.prepare(frontier);
        let Some(tree) = self.drafter.tree() else { return };
        for (parent, &cursor) in frontier.iter().enumerate() {
            let Some(node) = node(tree, cursor) else { continue };
            for likely in tree.likely(node) {
                out.push(Candidate {
                    parent: parent as u32,
                    token: likely.token,
                    probability: likely.probability,
                    match_len: 1,
                    count: 1,
                    next: encode(node, likely.token),
                });
            }
        }
    }

    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        self.drafter.watch(cancel);
    }

    fn computed(&self) -> Option<Computed> {
        Some(self.drafter.computed())
    }

    fn observe(&mut self, committed: &[TokenId], _step: &StepOutcome<'_>) {
        self.drafter.follow(committed);
    }

    fn memory_usage(&self) -> usize {
        self.drafter.memory_usage()
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        Box::new(Self { drafter: self.drafter.clone() })
    }
}
