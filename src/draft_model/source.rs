//! The source *draft model*: the likely next tokens of a smaller model.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard};

use super::DraftModel;
use super::drafter::Drafter;
use super::kv_tree::{KvTree, ROOT};
use super::own_layers::OWN_SOURCE;
use super::own_rows::{OwnRows, lock};
use crate::draft::{
    Anchor, Candidate, Candidates, Computed, ComputingSource, Cursor, DraftSource, EvidenceClass,
    HiddenStates, StepOutcome, VERIFY_ROWS_MAX,
};
use crate::kernels::KvType;
use crate::model::ModelConfig;
use crate::model::kv_cache::KvCacheError;
use refrain_trees::TokenId;

/// Number of proposed successors of a node. It is fixed at any distribution (Lever); the reliability table
/// weighs each successor.
const CANDIDATES: usize = 8;

/// Maximum nodes computed after a text: twice the rows of the longest verification batch, because some nodes
/// are computed in a group and never drafted, and as many ahead.
const NODES_MAX: usize = 4 * VERIFY_ROWS_MAX;

/// The same with recurrent layers, which compute all nodes in every pass and keep records for the rows of two: as many as a verification
/// batch has beside its root.
const RECURRENT_NODES_MAX: usize = VERIFY_ROWS_MAX - 1;

fn nodes_max(config: &ModelConfig) -> usize {
    if config.is_recurrent() { RECURRENT_NODES_MAX } else { NODES_MAX }
}

/// Drafts with a smaller model.
///
/// A cursor is a parent and a token. It denotes a node of the model's [`KvTree`] or a node that is not
/// computed yet; its parent may not be computed either, if other sources proposed the tokens. Expanding
/// computes the missing nodes, in one pass for all cursors. The builder decides which cursors are worth a
/// pass. The source holds the keys and values of the session's text and of the nodes, and a row of logits for
/// each node of a pass.
pub(crate) struct DraftModelSource {
    name: &'static str,
    /// Shared with the session's target if its own layers draft ([`OwnRows`]).
    drafter: Arc<Mutex<Drafter>>,
    /// Parents that were not computed when first used: their own parents, and their tokens. A parent is a
    /// node of the tree, or an entry of this list, numbered from [`UNSEEN`] on.
    unseen: Vec<(u32, TokenId)>,
}

/// The cursor of the newest token of the text.
const ROOT_CURSOR: Cursor = Cursor(u64::MAX);

/// The number of the first entry of `unseen`.
const UNSEEN: u32 = 1 << 31;

/// Maximum entries of `unseen` in one draft: eight times the rows of the longest verification batch.
const UNSEEN_MAX: usize = 8 * VERIFY_ROWS_MAX;

impl DraftModelSource {
    /// A source without text, for a session of `context_len` tokens.
    ///
    /// # Errors
    /// There is no memory for the keys and values.
    pub(crate) fn new(
        model: &Arc<DraftModel>,
        context_len: usize,
        kv_type: KvType,
    ) -> Result<Self, KvCacheError> {
        // Keys and values of a model of its own have their own type.
        let kv_type = if model.own_layers().is_some() { kv_type } else { KvType::F16 };
        let n_nodes_max = nodes_max(model.config());
        let drafter = Drafter::with_kv_type(model, context_len, CANDIDATES, n_nodes_max, kv_type)?;
        let drafter = Arc::new(Mutex::new(drafter.keeping()));
        Ok(Self { name: model.source_name(), drafter, unseen: Vec::new() })
    }

    /// Maximum bytes of such a source, without the model's weights.
    pub(crate) fn bytes(config: &ModelConfig, context_len: usize, kv_type: KvType) -> u64 {
        KvTree::bytes_of(config, context_len, nodes_max(config), kv_type)
    }

    /// The rows that the session's target takes over, if its own layers draft.
    pub(crate) fn own_rows(&self) -> Option<OwnRows> {
        self.lock().is_copied().then(|| OwnRows::new(&self.drafter))
    }

    /// The source of a fork, which drafts the rows that `rows` takes over.
    pub(crate) fn of_rows(rows: &OwnRows) -> Self {
        Self { name: OWN_SOURCE, drafter: Arc::clone(rows.drafter()), unseen: Vec::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Drafter> {
        lock(&self.drafter)
    }

    /// Returns the node of `cursor`: its number in the tree, or its future number after `wanted` is computed.
    /// Appends the missing ancestors and the node itself to `wanted`. Returns `None` if the tree has no room
    /// for them.
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

    /// The cursor's node, if it is computed.
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

    /// The nodes that must be computed for these cursors.
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
        let node = self.node(self.lock().tree()?, cursor);
        if let Some(node) = node {
            return Some(encode((node, token)));
        }
        let parent = decode(cursor);
        // From the newest on, because all children of a node are proposed consecutively.
        let at = self.unseen.iter().rposition(|&unseen| unseen == parent).or_else(|| {
            (self.unseen.len() < UNSEEN_MAX).then(|| {
                self.unseen.push(parent);
                self.unseen.len() - 1
            })
        });
        Some(encode((UNSEEN + at? as u32, token)))
    }

    fn expansion_us(&self, frontier: &[Cursor]) -> f32 {
        let drafter = self.lock();
        let Some(tree) = drafter.tree() else { return 0.0 };
        let pass_us = |n_rows: usize| if n_rows == 0 { 0.0 } else { tree.pass_us(n_rows) };
        let passes = tree.passes(&self.missing(tree, frontier));
        pass_us(tree.n_owed()) + passes.into_iter().map(|pass| pass_us(pass.len())).sum::<f32>()
    }

    fn prepare(&mut self, frontier: &[Cursor]) {
        // The root first, because every other node depends on it.
        let mut drafter = self.lock();
        drafter.compute_root();
        let Some(tree) = drafter.tree().filter(|tree| tree.n_owed() == 0) else { return };
        let wanted = self.missing(tree, frontier);
        if !wanted.is_empty() {
            drafter.with(|tree| tree.compute(&wanted));
        }
    }

    fn compute_ahead(&mut self, budget_us: f32) -> bool {
        self.lock().compute_ahead(budget_us)
    }

    fn reads_hidden(&self) -> Option<HiddenStates> {
        self.lock().reads_hidden()
    }

    fn read_hidden(&mut self, committed: &[TokenId], first: usize, hidden: &[f32]) {
        self.lock().read_hidden(committed, first, hidden);
    }

    fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        self.lock().watch(cancel);
    }

    fn computed(&self) -> Computed {
        self.lock().computed()
    }
}

impl DraftSource for DraftModelSource {
    fn name(&self) -> &str {
        self.name
    }

    fn evidence(&self) -> EvidenceClass {
        EvidenceClass::DraftModel
    }

    fn computing(&mut self) -> Option<&mut dyn ComputingSource> {
        Some(self)
    }

    fn prime(&mut self, committed: &[TokenId]) {
        self.lock().prime(committed);
    }

    fn release(&mut self) {
        self.lock().release();
    }

    fn truncate(&mut self, len: usize) {
        self.lock().truncate(len);
    }

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        self.lock().keep_up(committed);
        self.unseen.clear();
        if self.lock().tree().is_some() {
            out.push(Anchor { cursor: ROOT_CURSOR, match_len: 1 });
        }
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        self.prepare(frontier);
        let drafter = self.lock();
        let Some(tree) = drafter.tree() else { return };
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
        self.lock().follow(committed);
    }

    fn memory_usage(&self) -> u64 {
        (self.lock().memory_usage() + self.unseen.capacity() * size_of::<(u32, TokenId)>()) as u64
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        let drafter = Arc::new(Mutex::new(self.lock().clone()));
        Box::new(Self { name: self.name, drafter, unseen: Vec::new() })
    }
}
