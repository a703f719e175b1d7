//! The draft model's keys and values for one session: the committed text, followed by a tree of nodes.
//!
//! A node is a token with a computed row: its likely successors are known. A pass computes nodes whose
//! parents are computed. Each node attends to the text and its own ancestors, so its result equals that of a
//! plain pass over its path, bit for bit. When tokens are committed, the nodes on their path become text, and the others are
//! rolled back. Tokens that the target committed without a computed node are computed with the next root.
//!
//! There are three kinds of trees ([`Rows`]), which have the [`Trunk`] in common:
//!
//! | kind | rows of nodes | a committed path |
//! | --- | --- | --- |
//! | [`Cached`] | stay in the cache | moves to the end of the text ([`KvCache::commit`], as after a verification) |
//! | [`Recomputed`], with recurrent layers | are computed again by every pass | is kept from the newest pass |
//! | [`Head`] | have other inputs than text | is computed again from the target's hidden states |

mod cached;
mod head;
mod recomputed;
mod rows;
mod trunk;

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::DraftModel;
use super::hidden_rows::{CHUNK, HiddenRows, STATES_MAX};
use crate::draft::{Computed, DraftTree, HiddenStates, VERIFY_ROWS_MAX};
use crate::kernels::KvType;
use crate::model::kv_cache::{CacheSize, KvCacheError};
use crate::model::transformer::ForwardError;
use crate::model::{KvCache, ModelConfig, Workspace};
use cached::Cached;
use head::Head;
use recomputed::Recomputed;
use refrain_trees::TokenId;
use rows::Rows;
pub use trunk::{Likely, ROOT};
use trunk::{Node, Trunk};

/// Maximum nodes of one pass: twice the rows of the longest verification batch.
const PASS_NODES_MAX: usize = 2 * VERIFY_ROWS_MAX;

/// The kinds of trees.
enum Kind {
    Cached(Cached),
    Recomputed(Recomputed),
    Head(Head),
}

impl Kind {
    /// The kind for a model: that of its layers.
    fn new(config: &ModelConfig, text_len_max: usize) -> Self {
        if config.draft_head.is_some() {
            Self::Head(Head { states: HiddenRows::new(config, text_len_max) })
        } else if config.is_recurrent() {
            Self::Recomputed(Recomputed::default())
        } else {
            Self::Cached(Cached::default())
        }
    }

    /// The same for a tree with the same text. Its nodes are to be [forgotten](Rows::forget_from).
    fn fork(&self) -> Self {
        match self {
            Self::Cached(Cached { keeps, .. }) => Self::Cached(Cached { keeps: *keeps, ..Cached::default() }),
            Self::Recomputed(_) => Self::Recomputed(Recomputed::default()),
            Self::Head(Head { states }) => Self::Head(Head { states: states.clone() }),
        }
    }

    fn rows(&self) -> &dyn Rows {
        match self {
            Self::Cached(rows) => rows,
            Self::Recomputed(rows) => rows,
            Self::Head(rows) => rows,
        }
    }

    fn rows_mut(&mut self) -> &mut dyn Rows {
        match self {
            Self::Cached(rows) => rows,
            Self::Recomputed(rows) => rows,
            Self::Head(rows) => rows,
        }
    }

    /// What a head reads of the target.
    fn states(&self) -> Option<&HiddenRows> {
        match self {
            Self::Head(Head { states }) => Some(states),
            _ => None,
        }
    }
}

/// The text and the tree of one session's draft model.
pub struct KvTree {
    trunk: Trunk,
    kind: Kind,
    /// Maximum tokens of text.
    text_len_max: usize,
}

impl KvTree {
    /// An empty tree. It holds texts of up to `context_len` tokens or the draft model's trained context
    /// length, keeps the `n_likely` likeliest successors of each node, and computes up to `n_nodes_max` nodes
    /// after a text.
    pub fn new(
        model: Arc<DraftModel>,
        context_len: usize,
        n_likely: usize,
        n_nodes_max: usize,
    ) -> Result<Self, KvCacheError> {
        Self::with_kv_type(model, context_len, n_likely, n_nodes_max, KvType::F16)
    }

    /// As [`new`](Self::new), with keys and values of another type: of the target's own layers, its type.
    pub(super) fn with_kv_type(
        model: Arc<DraftModel>,
        context_len: usize,
        n_likely: usize,
        n_nodes_max: usize,
        kv_type: KvType,
    ) -> Result<Self, KvCacheError> {
        let text_len_max = context_len.min(model.config().context_len);
        let kv = new_cache(&model, text_len_max, n_nodes_max, kv_type)?;
        let kind = Kind::new(model.config(), text_len_max);
        Ok(Self { trunk: Trunk::new(model, kv, n_likely, n_nodes_max), kind, text_len_max })
    }

    /// The tree, which keeps nodes below a committed path from now on. Those of recurrent layers cannot stay, since every pass computes
    /// them again, and those of a head neither, since its rows of text have other inputs.
    pub fn keeping(mut self) -> Self {
        if let Kind::Cached(cached) = &mut self.kind {
            cached.keeps = true;
        }
        self
    }

    /// Maximum bytes of such a tree, without the weights.
    pub fn bytes(config: &ModelConfig, context_len: usize, n_nodes_max: usize) -> u64 {
        Self::bytes_of(config, context_len, n_nodes_max, KvType::F16)
    }

    /// As [`bytes`](Self::bytes), with keys and values of another type.
    pub(super) fn bytes_of(
        config: &ModelConfig,
        context_len: usize,
        n_nodes_max: usize,
        kv_type: KvType,
    ) -> u64 {
        let size = cache_size(context_len.min(config.context_len), n_nodes_max, kv_type);
        let row_bytes = |dim: usize| (dim as u64).saturating_mul(size_of::<f32>() as u64);
        let logits = row_bytes(config.n_logits()).saturating_mul(n_nodes_max.min(PASS_NODES_MAX) as u64);
        // Of a head, or of the target's own layers.
        let n_own = n_nodes_max.saturating_add(1) as u64;
        let states = row_bytes(config.target_state_dim()).saturating_mul(STATES_MAX as u64);
        let hidden = row_bytes(config.hidden_dim).saturating_mul(n_own).saturating_add(states);
        KvCache::bytes(config, size)
            .saturating_add(Workspace::bytes(config, CHUNK, size.n_slots))
            .saturating_add(logits)
            .saturating_add(hidden)
    }

    /// An independent tree with the same text, without nodes.
    pub fn fork(&self) -> Result<Self, KvCacheError> {
        let Self { trunk, kind, text_len_max } = self;
        let (model, kv_type) = (Arc::clone(&trunk.model), trunk.kv.kv_type());
        let kv = new_cache(&model, *text_len_max, trunk.n_nodes_max, kv_type)?;
        let mut fork = Trunk::new(model, kv, trunk.n_likely, trunk.n_nodes_max);
        fork.kv.copy_from(&trunk.kv);
        fork.text.clone_from(&trunk.text);
        fork.n_read = trunk.n_read;
        let mut kind = kind.fork();
        kind.rows_mut().forget_from(&mut fork, trunk.n_read);
        Ok(Self { trunk: fork, kind, text_len_max: *text_len_max })
    }

    /// Sets the cancel flag of the passes from now on; a pass ends soon after `cancel` is set.
    pub fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        self.trunk.cancel = Arc::clone(cancel);
    }

    #[cfg(test)]
    pub(super) fn model(&self) -> &DraftModel {
        &self.trunk.model
    }

    /// Hidden states of the target that are kept.
    #[cfg(test)]
    pub(super) fn n_states(&self) -> usize {
        self.kind.states().map_or(0, HiddenRows::n_states)
    }

    /// The target's hidden states that the model reads, if it is a head whose context is not full.
    pub(super) fn reads_hidden(&self) -> Option<HiddenStates> {
        self.trunk.model.reads.filter(|_| self.kind.states().is_some_and(|rows| !rows.is_full()))
    }

    /// Tokens of the text, if they are more than the context has room for: nothing is drafted then.
    pub(super) fn exceeded_by(&self) -> Option<usize> {
        match self.kind.states() {
            Some(rows) => rows.exceeded_by(),
            None => Some(self.trunk.text.len()).filter(|&len| len > self.text_len_max),
        }
    }

    /// Receives these states, `[n, target_state_dim]`, at the positions from `first` on of `committed`. Rows of text are
    /// computed as soon as there are more than a pass takes. At most [`STATES_MAX`] states are kept, whether passes succeed or not.
    ///
    /// # Errors
    /// [`ForwardError`]; text computed before stays, and the states before the failed pass are kept.
    pub(super) fn read_hidden(
        &mut self,
        committed: &[TokenId],
        first: usize,
        hidden: &[f32],
    ) -> Result<(), ForwardError> {
        match &mut self.kind {
            Kind::Head(head) => head.receive(&mut self.trunk, committed, first, hidden),
            _ => Ok(()),
        }
    }

    /// Whether the root can be computed. That of a head needs the hidden state of the token before.
    pub(super) fn has_root(&self) -> bool {
        let Trunk { text, nodes, .. } = &self.trunk;
        self.kind.states().is_none_or(|rows| rows.has_root(text.len(), !nodes.is_empty()))
    }

    /// Updates the committed text: the nodes on its path become text, the others are rolled back. Computes
    /// nothing.
    pub fn follow(&mut self, committed: &[TokenId]) {
        self.kind.rows_mut().follow(&mut self.trunk, committed);
    }

    /// Removes the text and frees the memory: keys and values are allocated again, which takes no memory until they are written. A layer that
    /// cannot be allocated keeps its memory.
    pub fn release(&mut self) {
        self.truncate(0);
        let Self { trunk, kind, text_len_max } = self;
        let size = cache_size(*text_len_max, trunk.n_nodes_max, trunk.kv.kv_type());
        trunk.kv.release(trunk.model.config(), size);
        trunk.release();
        let keeps = matches!(kind, Kind::Cached(Cached { keeps: true, .. }));
        *kind = Kind::new(trunk.model.config(), *text_len_max);
        if let Kind::Cached(cached) = kind {
            cached.keeps = keeps;
        }
    }

    /// Removes the text from position `len` on, and all nodes.
    pub fn truncate(&mut self, len: usize) {
        self.kind.rows_mut().truncate(&mut self.trunk, len);
    }

    /// Whether the model is in memory now.
    pub(super) fn has_weights(&self) -> bool {
        self.trunk.model.is_there()
    }

    /// Whether keys and values of the text are copied from the target's cache.
    pub(super) fn is_copied(&self) -> bool {
        self.trunk.model.own_layers().is_some()
    }

    /// Whether nodes below a committed path stay.
    pub fn keeps(&self) -> bool {
        matches!(self.kind, Kind::Cached(Cached { keeps: true, .. }))
    }

    /// Number of tokens of the text.
    pub fn text_len(&self) -> usize {
        self.trunk.text.len()
    }

    /// Maximum tokens of text.
    pub fn text_len_max(&self) -> usize {
        self.text_len_max
    }

    /// Number of rows needed to compute the root; 0 if it is computed.
    pub fn n_owed(&self) -> usize {
        self.trunk.n_owed()
    }

    /// Number of computed nodes, including the root.
    pub fn n_nodes(&self) -> u32 {
        self.trunk.nodes.len() as u32
    }

    /// Number of nodes that may still be computed after this text.
    pub fn room(&self) -> usize {
        self.trunk.n_nodes_max - self.trunk.nodes.len().saturating_sub(1)
    }

    /// Computes the text except its newest token.
    ///
    /// # Errors
    /// [`ForwardError`]; text computed before stays.
    pub fn read(&mut self) -> Result<(), ForwardError> {
        match &mut self.kind {
            Kind::Head(Head { states }) => self.trunk.read(Some(states)),
            _ => self.trunk.read(None),
        }
    }

    /// Computes the root, if needed: the newest token, after the unread text before it.
    ///
    /// # Errors
    /// [`ForwardError`]; text computed before stays.
    ///
    /// # Panics
    /// The text is empty, or the model is a head without the hidden state of the token before.
    pub fn compute_root(&mut self) -> Result<(), ForwardError> {
        let Self { trunk, kind, .. } = self;
        assert!(!trunk.text.is_empty(), "a root is the newest token of a text");
        if !trunk.nodes.is_empty() {
            return Ok(());
        }
        // After a truncation the cache contains the newest token's row, but its successors are unknown.
        kind.rows_mut().forget_from(trunk, trunk.text.len() - 1);
        kind.rows_mut().compute_root(trunk)
    }

    /// Computes nodes, each given by its parent and its token, in as few passes as possible: one, but for a head. Returns the number of
    /// the first; the others follow consecutively. A parent is a computed node or an earlier entry of
    /// `wanted`.
    ///
    /// # Errors
    /// [`ForwardError`]; nodes of earlier passes stay.
    ///
    /// # Panics
    /// A parent is neither computed nor an earlier entry, or there is no [room](Self::room).
    pub fn compute(&mut self, wanted: &[(u32, TokenId)]) -> Result<u32, ForwardError> {
        assert!(wanted.len() <= self.room(), "{} nodes where {} fit", wanted.len(), self.room());
        let first = self.n_nodes();
        self.kind.rows_mut().compute(&mut self.trunk, wanted)?;
        Ok(first)
    }

    /// The entries of `wanted` that each pass computes.
    pub(super) fn passes(&self, wanted: &[(u32, TokenId)]) -> Vec<Range<usize>> {
        self.kind.rows().passes(&self.trunk, wanted)
    }

    /// Computes up to `n_rows` nodes in one pass: the likeliest that are not computed, by the product of the draft model's
    /// probabilities on their paths, of those where it is `reach_min` at least. Returns whether there were any. A node whose token is none of its
    /// parent's likely successors counts as unreachable.
    ///
    /// # Errors
    /// [`ForwardError`]; the nodes are unchanged.
    pub fn compute_likeliest(&mut self, n_rows: usize, reach_min: f32) -> Result<bool, ForwardError> {
        let mut reach: Vec<f32> = Vec::with_capacity(self.trunk.nodes.len());
        let mut computed: HashSet<(u32, TokenId)> = HashSet::with_capacity(self.trunk.nodes.len());
        for (node, &Node { token, parent, .. }) in (ROOT..).zip(&self.trunk.nodes) {
            let below = || self.likely(parent).iter().find(|likely| likely.token == token);
            reach.push(match node {
                ROOT => 1.0,
                _ => below().map_or(0.0, |likely| reach[parent as usize] * likely.probability),
            });
            if node != ROOT {
                computed.insert((parent, token));
            }
        }
        let mut wanted: Vec<(f32, (u32, TokenId))> = Vec::new();
        for (node, &above) in (ROOT..).zip(&reach) {
            let likely =
                self.likely(node).iter().map(|likely| (above * likely.probability, (node, likely.token)));
            wanted.extend(likely.filter(|(reach, node)| *reach >= reach_min && !computed.contains(node)));
        }
        wanted.sort_by(|(a, _), (b, _)| b.total_cmp(a));
        wanted.truncate(n_rows.min(self.room()));
        let wanted: Vec<(u32, TokenId)> = wanted.into_iter().map(|(_, node)| node).collect();
        if wanted.is_empty() {
            return Ok(false);
        }
        self.compute(&wanted)?;
        self.trunk.computed.ahead += 1;
        Ok(true)
    }

    /// Updates the committed text, and copies the keys and values of tokens before the newest one from those of the target, whose own
    /// layers these are. Nothing is copied from a [bounded](KvCache::is_bounded) cache, or while the root is computed.
    pub(super) fn copy_text(&mut self, committed: &[TokenId], kv: &KvCache) {
        self.follow(committed);
        let Self { trunk, text_len_max, .. } = self;
        let end = kv.len().min(trunk.text.len().saturating_sub(1));
        if trunk.nodes.is_empty() && trunk.n_read < end && end <= *text_len_max && !kv.is_bounded() {
            trunk.kv.extend_from(kv, end);
            trunk.n_read = end;
        }
    }

    /// The rows of `tree` behind `committed` that are computed nodes: appends their numbers to `rows` and their residual streams to
    /// `hidden`, `[n, hidden_dim]`, and copies their keys and values to the slots of a batch of the tree behind the committed
    /// prefix of `kv`, the target's cache. Returns the number of layers.
    pub(super) fn hand_over(
        &self,
        committed: &[TokenId],
        tree: &DraftTree,
        kv: &mut KvCache,
        rows: &mut Vec<u32>,
        hidden: &mut Vec<f32>,
    ) -> Option<usize> {
        let config = self.trunk.model.own_layers()?.config();
        // The nodes are those behind this very text.
        let base = committed.len().checked_sub(1)?;
        let Self { trunk, kind: Kind::Cached(Cached { residuals, .. }), .. } = self else { return None };
        if trunk.nodes.is_empty() || trunk.text != committed || kv.len() != base {
            return None;
        }
        kv.note_written(tree.len());
        let mut nodes: Vec<Option<u32>> = Vec::with_capacity(tree.len());
        for (row, (&token, &parent)) in tree.tokens().iter().zip(tree.parents()).enumerate() {
            let node = match row {
                0 => Some(ROOT),
                _ => nodes[parent as usize].and_then(|parent| trunk.child(parent, token)),
            };
            nodes.push(node);
            let Some(node) = node else { continue };
            kv.copy_slot_of(&trunk.kv, base + node as usize, base + row);
            rows.push(row as u32);
            hidden.extend_from_slice(&residuals[node as usize * config.hidden_dim..][..config.hidden_dim]);
        }
        Some(config.n_layers())
    }

    /// The computed child of `node` with `token`.
    pub fn child(&self, node: u32, token: TokenId) -> Option<u32> {
        self.trunk.child(node, token)
    }

    /// The likely successors of a node, likeliest first.
    pub fn likely(&self, node: u32) -> &[Likely] {
        self.trunk.likely(node)
    }

    /// Expected time of a pass over `n_rows` rows that are not computed, in µs. The rows of a pass are usually siblings and
    /// cousins, so their number of leaves adds no information: the pass counts as a chain, here and in
    /// `Trunk::run_nodes`.
    pub fn pass_us(&self, n_rows: usize) -> f32 {
        let n_again = self.kind.rows().n_again(&self.trunk);
        self.trunk.model.costs().verify_us(n_again + n_rows, 1)
    }

    /// Counts and times of the passes so far.
    pub fn computed(&self) -> &Computed {
        &self.trunk.computed
    }

    /// Bytes on the heap, without the weights.
    pub fn memory_usage(&self) -> usize {
        self.trunk.memory_usage() + self.kind.rows().memory_usage()
    }
}

/// The size of a tree's cache.
fn cache_size(text_len_max: usize, n_nodes_max: usize, kv_type: KvType) -> CacheSize {
    let tree_rows_max = n_nodes_max.saturating_add(1);
    CacheSize { tree_rows_max, ..CacheSize::full(kv_type, text_len_max.saturating_add(n_nodes_max)) }
}

/// The cache of a tree.
fn new_cache(
    model: &DraftModel,
    text_len_max: usize,
    n_nodes_max: usize,
    kv_type: KvType,
) -> Result<KvCache, KvCacheError> {
    let kv = KvCache::sized(model.config(), cache_size(text_len_max, n_nodes_max, kv_type))?;
    // The target's rotations are those of its context.
    Ok(if model.own_layers().is_some() { kv.with_context(text_len_max) } else { kv })
}
