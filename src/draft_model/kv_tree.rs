//! The draft model's keys and values for one session: the committed text, followed by a tree of nodes.
//!
//! ```text
//! slots   0 …………… n_read−1 │ n_read ……………………… n_slots−1
//!         committed text    │ nodes, in the order in which they were computed
//!                     root ─┘ (node 0: the newest token of the text)
//! ```
//!
//! A node is a token with a computed row: its likely successors are known. A pass computes nodes whose
//! parents are computed. Each node attends to the text and its own ancestors, so its result equals that of a
//! plain pass over its path, bit for bit. When tokens are committed, their path is moved to the end of the
//! text, and the other nodes are rolled back ([`KvCache::commit`], as after a verification). Tokens that the
//! target committed without a computed node are computed with the next root. A tree that [keeps](KvTree::keeping) moves the nodes below the
//! path along with it: they are computed for the next draft already.
//!
//! **Recurrent layers** cannot compute rows below rows of earlier passes. Of a model with such layers the cache holds the
//! text before the root, and every pass over nodes computes the root and all nodes of the text again, as one tree: few rows of a small
//! model cost little more than one. A commit keeps the path of the newest pass, without the new root.
//!
//! **A head** reads the target's hidden states beside the tokens of the text ([`HiddenRows`]), and its
//! own below it. Rows of nodes are not those of text: when tokens are committed, all nodes are rolled back and the tokens are computed
//! with the next root, from the hidden states that the target has computed meanwhile. A node needs the hidden state of its parent, so
//! a pass computes children of computed nodes only.
//!
//! **The target's own first layers** ([`own_layers`](super::own_layers)) keep the residual stream of each node, and their text is
//! copied from the target's cache.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::DraftModel;
use super::hidden_rows::{HiddenRows, STATES_MAX};
use crate::draft::{Computed, DraftTree, HiddenStates, VERIFY_ROWS_MAX};
use crate::kernels::{self, Kernels, KvType};
use crate::model::kv_cache::{CacheSize, KvCacheError};
use crate::model::transformer::{ForwardError, Part, PassEnd};
use crate::model::{Batch, KvCache, ModelConfig, Workspace};
use crate::pruning::PredictorScratch;
use refrain_trees::TokenId;

/// Maximum text tokens of one pass.
pub(super) const CHUNK: usize = 256;

/// Maximum nodes of one pass: twice the rows of the longest verification batch.
const PASS_NODES_MAX: usize = 2 * VERIFY_ROWS_MAX;

/// The number of the root.
pub const ROOT: u32 = 0;

/// A likely successor by the draft model.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Likely {
    /// The token.
    pub token: TokenId,
    /// Its probability by the draft model.
    pub probability: f32,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    token: TokenId,
    parent: u32,
    /// The node's range in `likely`.
    likely: (u32, u32),
}

/// # Invariants
/// - the cache holds `text[..n_read]`, followed by all nodes except the root;
/// - `nodes` is empty, or node 0 is the last of `text[..n_read]` and `n_read == text.len()`.
///
/// With recurrent layers, instead:
/// - the cache holds `text[..n_read]` alone;
/// - `nodes` is empty, or node 0 is the token behind it and `n_read + 1 == text.len()`; if `has_pass`, the rows of the newest pass are
///   those of all nodes.
pub struct KvTree {
    model: Arc<DraftModel>,
    kv: KvCache,
    workspace: Workspace,
    batch: Batch,
    /// `[rows, n_logits]`
    logits: Vec<f32>,
    /// The committed text.
    text: Vec<TokenId>,
    /// Tokens of the text in the cache.
    n_read: usize,
    /// `None` unless the model is a head.
    hidden: Option<HiddenRows>,
    /// Residual streams behind the target's own layers, `[nodes.len(), hidden_dim]`; empty with other models.
    kept: Vec<f32>,
    scratch: PredictorScratch,
    nodes: Vec<Node>,
    /// Whether a path of the nodes can be committed from the newest pass of recurrent layers.
    has_pass: bool,
    /// Successors of all nodes; the successors of a node are contiguous, likeliest first.
    likely: Vec<Likely>,
    /// Number of successors kept per node.
    n_likely: usize,
    /// Maximum tokens of text.
    text_len_max: usize,
    /// Maximum nodes computed after a text, not counting the root.
    n_nodes_max: usize,
    /// Whether nodes below a committed path stay.
    keeps: bool,
    cancel: Arc<AtomicBool>,
    computed: Computed,
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
        let config = model.config();
        let text_len_max = context_len.min(config.context_len);
        Ok(Self {
            kv: new_cache(&model, text_len_max, n_nodes_max, kv_type)?,
            workspace: Workspace::new(config),
            batch: Batch::new(),
            logits: Vec::new(),
            text: Vec::new(),
            n_read: 0,
            hidden: config.draft_head.map(|_| HiddenRows::new(config, text_len_max)),
            kept: Vec::new(),
            scratch: PredictorScratch::default(),
            nodes: Vec::new(),
            has_pass: false,
            likely: Vec::new(),
            n_likely,
            text_len_max,
            n_nodes_max,
            keeps: false,
            cancel: Arc::new(AtomicBool::new(false)),
            computed: Computed::default(),
            model,
        })
    }

    /// The tree, which keeps nodes below a committed path from now on. Those of recurrent layers cannot stay, since every pass computes
    /// them again, and those of a head neither, since its rows of text have other inputs.
    pub fn keeping(self) -> Self {
        Self { keeps: !self.kv.is_recurrent() && self.hidden.is_none(), ..self }
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
        let Self { text_len_max, n_likely, n_nodes_max, keeps, .. } = *self;
        let (model, kv_type) = (Arc::clone(&self.model), self.kv.kv_type());
        let mut fork = Self::with_kv_type(model, text_len_max, n_likely, n_nodes_max, kv_type)?;
        fork.kv.copy_from(&self.kv);
        fork.kv.truncate(self.n_read);
        fork.text.clone_from(&self.text);
        fork.n_read = self.n_read;
        fork.keeps = keeps;
        fork.hidden.clone_from(&self.hidden);
        fork.forget_nodes();
        Ok(fork)
    }

    /// Sets the cancel flag of the passes from now on; a pass ends soon after `cancel` is set.
    pub fn watch(&mut self, cancel: &Arc<AtomicBool>) {
        self.cancel = Arc::clone(cancel);
    }

    #[cfg(test)]
    pub(super) fn model(&self) -> &DraftModel {
        &self.model
    }

    /// Hidden states of the target that are kept.
    #[cfg(test)]
    pub(super) fn n_states(&self) -> usize {
        self.hidden.as_ref().map_or(0, HiddenRows::n_states)
    }

    /// The target's hidden states that the model reads, if it is a head whose context is not full.
    pub(super) fn reads_hidden(&self) -> Option<HiddenStates> {
        self.model.reads.filter(|_| self.hidden.as_ref().is_some_and(|rows| !rows.is_full()))
    }

    /// Tokens of the text, if they are more than the context has room for: nothing is drafted then.
    pub(super) fn exceeded_by(&self) -> Option<usize> {
        match &self.hidden {
            Some(rows) => rows.exceeded_by(),
            None => Some(self.text.len()).filter(|&len| len > self.text_len_max),
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
        let chunk_len = CHUNK * self.model.config().target_state_dim().max(1);
        for (i, chunk) in hidden.chunks(chunk_len).enumerate() {
            let Some(rows) = &mut self.hidden else { return Ok(()) };
            let n_before = self.text.len();
            let n_kept = rows.push(first + i * CHUNK, chunk, &mut self.text);
            if n_kept < n_before {
                self.forget_from(n_kept);
            }
            self.follow(committed);
            if self.n_owed() > CHUNK {
                self.read()?;
            }
        }
        Ok(())
    }

    /// Whether the root can be computed. That of a head needs the hidden state of the token before.
    pub(super) fn has_root(&self) -> bool {
        let of_rows = |rows: &HiddenRows| rows.has_root(self.text.len(), !self.nodes.is_empty());
        self.hidden.as_ref().is_none_or(of_rows)
    }

    /// Updates the committed text: the nodes on its path become text, the others are rolled back. Computes
    /// nothing.
    pub fn follow(&mut self, committed: &[TokenId]) {
        if let Some(rows) = &mut self.hidden {
            let (n_before, n_same) = (self.text.len(), rows.follow(committed, &mut self.text));
            if n_same < self.n_read {
                self.forget_from(n_same);
            } else if n_same < n_before || self.text.len() > n_before {
                self.forget_nodes();
            }
            return;
        }
        let common = self.text.iter().zip(committed).take_while(|(a, b)| a == b).count();
        if common == self.text.len() && common == committed.len() {
            return;
        }
        self.text.truncate(common);
        self.text.extend_from_slice(&committed[common..]);
        if common < self.n_computed() {
            self.forget_from(common);
        } else if !self.nodes.is_empty() {
            self.keep_path();
        }
    }

    /// Tokens of the text whose rows are computed, the root's included.
    fn n_computed(&self) -> usize {
        let has_root = self.kv.is_recurrent() && !self.nodes.is_empty();
        self.n_read + usize::from(has_root)
    }

    /// Removes the text and frees the memory: keys and values are allocated again, which takes no memory until they are written. A layer that
    /// cannot be allocated keeps its memory.
    pub fn release(&mut self) {
        self.truncate(0);
        let size = cache_size(self.text_len_max, self.n_nodes_max, self.kv.kv_type());
        self.kv.release(self.model.config(), size);
        self.workspace = Workspace::new(self.model.config());
        (self.logits, self.likely, self.kept) = (Vec::new(), Vec::new(), Vec::new());
        self.scratch = PredictorScratch::default();
        self.hidden = self.hidden.as_ref().map(|_| HiddenRows::new(self.model.config(), self.text_len_max));
    }

    /// Removes the text from position `len` on, and all nodes.
    pub fn truncate(&mut self, len: usize) {
        let n_left = match &mut self.hidden {
            Some(rows) => rows.cut(len, &mut self.text),
            None => {
                self.text.truncate(len);
                len
            }
        };
        if n_left < self.n_computed() {
            self.forget_from(n_left);
        }
    }

    /// Converts the nodes of the new text tokens to text.
    fn keep_path(&mut self) {
        let (mut path, mut node) = (Vec::new(), ROOT);
        for &token in &self.text[self.n_computed()..] {
            let Some(child) = self.child(node, token) else { break };
            path.push(child);
            node = child;
        }
        if self.kv.is_recurrent() {
            return self.keep_path_of_pass(&path);
        }
        self.kv.truncate(self.n_read);
        self.n_read += path.len();
        let is_whole = self.n_read == self.text.len();
        // Below the path, and computed after it.
        let below = if is_whole { self.make_root(node) } else { Vec::new() };
        // Node 1 is in the first slot after the text.
        self.kv.commit(path.iter().chain(&below).map(|&node| node as usize - 1));
        if !is_whole {
            self.forget_nodes();
        }
    }

    /// As [`keep_path`](Self::keep_path) with recurrent layers: commits rows of the newest pass, the old root's and those of `path`. The
    /// new root stays behind the cache.
    fn keep_path_of_pass(&mut self, path: &[u32]) {
        let rows: Vec<usize> =
            std::iter::once(ROOT).chain(path.iter().copied()).map(|row| row as usize).collect();
        let is_whole = self.n_read + rows.len() == self.text.len();
        if std::mem::take(&mut self.has_pass) {
            let n_kept = rows.len() - usize::from(is_whole);
            self.kv.commit(rows[..n_kept].iter().copied());
            self.n_read += n_kept;
            if is_whole {
                self.make_root(rows[n_kept] as u32);
                return;
            }
        }
        self.forget_nodes();
    }

    /// Makes `root`, whose row is the newest of the text, the root, and forgets all other nodes, or, of a tree that keeps, those that are not
    /// below it. Returns the former numbers of the nodes below it that stay, rising.
    fn make_root(&mut self, root: u32) -> Vec<u32> {
        let (nodes, likely) = (std::mem::take(&mut self.nodes), std::mem::take(&mut self.likely));
        let kept = std::mem::take(&mut self.kept);
        let row_len = kept.len() / nodes.len();
        let mut below = Vec::new();
        // The new numbers of nodes from the root on.
        let mut numbers: Vec<Option<u32>> = Vec::new();
        for (node, old) in (root..).zip(&nodes[root as usize..]) {
            let above =
                old.parent.checked_sub(root).and_then(|at| numbers.get(at as usize).copied().flatten());
            let parent = if node == root { Some(ROOT) } else { above.filter(|_| self.keeps) };
            numbers.push(parent.map(|_| self.nodes.len() as u32));
            let Some(parent) = parent else { continue };
            let start = self.likely.len() as u32;
            self.likely.extend_from_slice(&likely[old.likely.0 as usize..old.likely.1 as usize]);
            self.nodes.push(Node { token: old.token, parent, likely: (start, self.likely.len() as u32) });
            self.kept.extend_from_slice(&kept[node as usize * row_len..][..row_len]);
            below.extend((node != root).then_some(node));
        }
        below
    }

    /// Removes the cached text from position `len` on, and all nodes.
    fn forget_from(&mut self, len: usize) {
        self.n_read = self.n_read.min(len);
        self.forget_nodes();
    }

    fn forget_nodes(&mut self) {
        self.kv.truncate(self.n_read);
        // Recurrent layers may go back further.
        self.n_read = self.kv.len();
        self.has_pass = false;
        self.nodes.clear();
        self.likely.clear();
        self.kept.clear();
        self.hidden.iter_mut().for_each(|rows| rows.of_nodes.clear());
    }

    /// Whether the model is in memory now.
    pub(super) fn has_weights(&self) -> bool {
        self.model.is_there()
    }

    /// Whether keys and values of the text are copied from the target's cache.
    pub(super) fn is_copied(&self) -> bool {
        self.model.own_layers().is_some()
    }

    /// Whether nodes below a committed path stay.
    pub fn keeps(&self) -> bool {
        self.keeps
    }

    /// Number of tokens of the text.
    pub fn text_len(&self) -> usize {
        self.text.len()
    }

    /// Maximum tokens of text.
    pub fn text_len_max(&self) -> usize {
        self.text_len_max
    }

    /// Number of rows needed to compute the root; 0 if it is computed.
    pub fn n_owed(&self) -> usize {
        match self.nodes.is_empty() {
            true => (self.text.len() - self.n_read).max(1),
            false => 0,
        }
    }

    /// Number of computed nodes, including the root.
    pub fn n_nodes(&self) -> u32 {
        self.nodes.len() as u32
    }

    /// Number of nodes that may still be computed after this text.
    pub fn room(&self) -> usize {
        self.n_nodes_max - self.nodes.len().saturating_sub(1)
    }

    /// Computes the text except its newest token.
    ///
    /// # Errors
    /// [`ForwardError`]; text computed before stays.
    pub fn read(&mut self) -> Result<(), ForwardError> {
        while self.n_read + 1 < self.text.len() {
            let end = (self.text.len() - 1).min(self.n_read + CHUNK);
            let started = Instant::now();
            self.batch.set_chain(self.n_read, &self.text[self.n_read..end]);
            self.set_text_inputs();
            self.forward(PassEnd::KeysAndValues)?;
            self.kv.commit_all(&self.batch);
            self.n_read = end;
            self.hidden.iter_mut().for_each(|rows| rows.take(end));
            self.count(started.elapsed().as_secs_f64() * 1e6);
        }
        Ok(())
    }

    /// Computes the root, if needed: the newest token, after the unread text before it.
    ///
    /// # Errors
    /// [`ForwardError`]; text computed before stays.
    ///
    /// # Panics
    /// The text is empty, or the model is a head without the hidden state of the token before.
    pub fn compute_root(&mut self) -> Result<(), ForwardError> {
        assert!(!self.text.is_empty(), "a root is the newest token of a text");
        if !self.nodes.is_empty() {
            return Ok(());
        }
        // After a truncation the cache contains the newest token's row, but its successors are unknown.
        self.forget_from(self.text.len() - 1);
        let is_recurrent = self.kv.is_recurrent();
        let n_rows_max = if is_recurrent { self.n_nodes_max + 1 } else { CHUNK };
        if self.text.len() - self.n_read > n_rows_max {
            self.read()?;
        }
        let unread = &self.text[self.n_read..];
        let n_rows = unread.len();
        match is_recurrent {
            true => {
                let parents: Vec<u32> = (0..n_rows as u32).map(|row| row.saturating_sub(1)).collect();
                self.batch.set_tree(self.n_read, unread, &parents, n_rows);
            }
            false => self.batch.set_chain(self.n_read, unread),
        }
        self.set_text_inputs();
        self.run_nodes(&[(ROOT, self.text[self.text.len() - 1])])?;
        match is_recurrent {
            false => {
                self.kv.commit_all(&self.batch);
                self.n_read += n_rows;
                self.hidden.iter_mut().for_each(|rows| rows.take(self.n_read));
            }
            // The pass is over with its commit.
            true if n_rows > 1 => {
                self.kv.commit(0..n_rows - 1);
                self.n_read += n_rows - 1;
            }
            true => self.has_pass = true,
        }
        Ok(())
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
        let first = self.nodes.len() as u32;
        if self.kv.is_recurrent() {
            let computed = self.nodes.iter().map(|node| (node.parent, node.token));
            let (parents, tokens): (Vec<u32>, Vec<TokenId>) = computed.chain(wanted.iter().copied()).unzip();
            self.batch.set_tree(self.n_read, &tokens, &parents, tokens.len());
            self.has_pass = false;
            self.run_nodes(wanted)?;
            self.has_pass = true;
            return Ok(first);
        }
        for pass in self.passes(wanted) {
            self.compute_pass(&wanted[pass])?;
        }
        Ok(first)
    }

    /// The entries of `wanted` that each pass computes.
    pub(super) fn passes(&self, wanted: &[(u32, TokenId)]) -> Vec<Range<usize>> {
        let (mut passes, mut start) = (Vec::new(), 0);
        let first = self.nodes.len().max(1);
        for (i, &(parent, _)) in wanted.iter().enumerate() {
            // The hidden state of a parent in the same pass is not known.
            if self.hidden.is_some() && parent as usize >= first + start {
                passes.push(start..i);
                start = i;
            }
        }
        passes.extend((start < wanted.len()).then_some(start..wanted.len()));
        passes
    }

    /// Computes nodes in one pass.
    fn compute_pass(&mut self, wanted: &[(u32, TokenId)]) -> Result<(), ForwardError> {
        let first = self.nodes.len() as u32;
        let tokens: Vec<TokenId> = wanted.iter().map(|&(_, token)| token).collect();
        let (nodes, n_read) = (&self.nodes, self.n_read);
        self.batch.set_leaves(n_read, n_read + nodes.len() - 1, &tokens, |row, slots| {
            let start = slots.len();
            let mut node = wanted[row].0;
            assert!(node < first + row as u32, "node {node} is not there");
            while node != ROOT {
                slots.push(n_read as u32 + node - 1);
                node = match node.checked_sub(first) {
                    None => nodes[node as usize].parent,
                    Some(at) => wanted[at as usize].0,
                };
            }
            slots[start..].reverse();
        });
        if let Some(rows) = &self.hidden {
            let inputs = self.workspace.inputs(true);
            wanted.iter().for_each(|&(parent, _)| inputs.extend_from_slice(rows.of_node(parent)));
        }
        self.run_nodes(wanted)?;
        self.kv.commit_all(&self.batch);
        Ok(())
    }

    /// Gives a head the hidden states for a batch of text.
    fn set_text_inputs(&mut self) {
        if let Some(rows) = &self.hidden {
            let inputs = self.workspace.inputs(false);
            inputs.extend_from_slice(rows.rows(self.n_read, self.batch.len()));
        }
    }

    /// Computes up to `n_rows` nodes in one pass: the likeliest that are not computed, by the product of the draft model's
    /// probabilities on their paths, of those where it is `reach_min` at least. Returns whether there were any. A node whose token is none of its
    /// parent's likely successors counts as unreachable.
    ///
    /// # Errors
    /// [`ForwardError`]; the nodes are unchanged.
    pub fn compute_likeliest(&mut self, n_rows: usize, reach_min: f32) -> Result<bool, ForwardError> {
        let mut reach: Vec<f32> = Vec::with_capacity(self.nodes.len());
        let mut computed: HashSet<(u32, TokenId)> = HashSet::with_capacity(self.nodes.len());
        for (node, &Node { token, parent, .. }) in (ROOT..).zip(&self.nodes) {
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
        self.computed.ahead += 1;
        Ok(true)
    }

    /// Updates the committed text, and copies the keys and values of tokens before the newest one from those of the target, whose own
    /// layers these are. Nothing is copied from a [bounded](KvCache::is_bounded) cache, or while the root is computed.
    pub(super) fn copy_text(&mut self, committed: &[TokenId], kv: &KvCache) {
        self.follow(committed);
        let end = kv.len().min(self.text.len().saturating_sub(1));
        if self.nodes.is_empty() && self.n_read < end && end <= self.text_len_max && !kv.is_bounded() {
            self.kv.extend_from(kv, end);
            self.n_read = end;
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
        let config = self.model.own_layers()?.config();
        // The nodes are those behind this very text.
        let base = committed.len().checked_sub(1)?;
        if self.nodes.is_empty() || self.text != committed || kv.len() != base {
            return None;
        }
        kv.note_written(tree.len());
        let mut nodes: Vec<Option<u32>> = Vec::with_capacity(tree.len());
        for (row, (&token, &parent)) in tree.tokens().iter().zip(tree.parents()).enumerate() {
            let node = match row {
                0 => Some(ROOT),
                _ => nodes[parent as usize].and_then(|parent| self.child(parent, token)),
            };
            nodes.push(node);
            let Some(node) = node else { continue };
            kv.copy_slot_of(&self.kv, base + node as usize, base + row);
            rows.push(row as u32);
            hidden.extend_from_slice(&self.kept[node as usize * config.hidden_dim..][..config.hidden_dim]);
        }
        Some(config.n_layers())
    }

    /// The computed child of `node` with `token`.
    pub fn child(&self, node: u32, token: TokenId) -> Option<u32> {
        let below = self.nodes.iter().enumerate().skip(node as usize + 1);
        let mut found = below.filter(|(_, child)| child.parent == node && child.token == token);
        found.next().map(|(index, _)| index as u32)
    }

    /// The likely successors of a node, likeliest first.
    pub fn likely(&self, node: u32) -> &[Likely] {
        let (start, end) = self.nodes[node as usize].likely;
        &self.likely[start as usize..end as usize]
    }

    /// Expected time of a pass over `n_rows` rows that are not computed, in µs. The rows of a pass are usually siblings and
    /// cousins, so their number of leaves adds no information: the pass counts as a chain, here and in
    /// `run_nodes`.
    pub fn pass_us(&self, n_rows: usize) -> f32 {
        let n_again = if self.kv.is_recurrent() { self.nodes.len() } else { 0 };
        self.model.costs().verify_us(n_again + n_rows, 1)
    }

    /// Counts and times of the passes so far.
    pub fn computed(&self) -> &Computed {
        &self.computed
    }

    /// Bytes on the heap, without the weights.
    pub fn memory_usage(&self) -> usize {
        self.kv.memory_usage()
            + self.workspace.memory_usage()
            + self.batch.memory_usage()
            + self.logits.capacity() * size_of::<f32>()
            + self.text.capacity() * size_of::<TokenId>()
            + self.nodes.capacity() * size_of::<Node>()
            + self.likely.capacity() * size_of::<Likely>()
            + self.kept.capacity() * size_of::<f32>()
            + self.hidden.as_ref().map_or(0, HiddenRows::memory_usage)
    }

    /// Runs the batch. Its rows are not committed.
    fn forward(&mut self, end: PassEnd) -> Result<(), ForwardError> {
        let Self { model, batch, kv, workspace, cancel, .. } = self;
        model.forward(Part::new(batch, kv, workspace, cancel), end)
    }

    fn count(&mut self, us: f64) {
        self.computed.passes += 1;
        self.computed.rows += self.batch.len();
        self.computed.time_us += us;
    }

    /// Runs the batch and appends `nodes`, which are its last rows; the cost profile learns the measured
    /// time.
    fn run_nodes(&mut self, nodes: &[(u32, TokenId)]) -> Result<(), ForwardError> {
        let started = Instant::now();
        self.forward(PassEnd::Hidden)?;
        let n_rows = self.batch.len();
        let Self { model, workspace, logits, scratch, .. } = self;
        model.logits(workspace, scratch, (nodes.len(), n_rows), logits)?;
        self.push_nodes(nodes);
        if let Some(own) = &mut self.hidden {
            let (workspace, config) = (&self.workspace, self.model.config());
            own.of_nodes
                .extend((n_rows - nodes.len()..n_rows).flat_map(|row| workspace.own_state(row, config)));
        } else if self.model.own_layers().is_some() {
            let start = (n_rows - nodes.len()) * self.model.config().hidden_dim;
            self.kept.extend_from_slice(&self.workspace.hidden_rows()[start..]);
        }
        let us = started.elapsed().as_secs_f64() * 1e6;
        if n_rows <= VERIFY_ROWS_MAX {
            self.model.costs().observe(n_rows, 1, us as f32);
        }
        self.count(us);
        Ok(())
    }

    /// Appends nodes from the newest logits.
    fn push_nodes(&mut self, nodes: &[(u32, TokenId)]) {
        let n_logits = self.model.config().n_logits();
        for (&(parent, token), logits) in nodes.iter().zip(self.logits.chunks_exact(n_logits)) {
            let start = self.likely.len() as u32;
            push_likely(self.model.kernels, logits, self.n_likely, &mut self.likely);
            if let Some(tokens) = &self.model.tokens {
                let new = &mut self.likely[start as usize..];
                new.iter_mut().for_each(|likely| likely.token = tokens[likely.token.index()]);
            }
            self.nodes.push(Node { token, parent, likely: (start, self.likely.len() as u32) });
        }
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

/// Appends the `n` likeliest tokens, likeliest first; ties go to the lower token id, and NaN logits are left
/// out.
fn push_likely(k: Kernels, logits: &[f32], n: usize, out: &mut Vec<Likely>) {
    if n == 0 {
        return;
    }
    let start = out.len();
    for (i, &logit) in (0u32..).zip(logits) {
        let held = &out[start..];
        // The field holds the logit until all successors are known.
        let passes = logit > f32::NEG_INFINITY && held.last().is_none_or(|last| logit > last.probability);
        if passes || (held.len() < n && logit > f32::NEG_INFINITY) {
            let at = start + held.partition_point(|held| held.probability >= logit);
            if held.len() == n {
                out.pop();
            }
            out.insert(at, Likely { token: TokenId(i), probability: logit });
        }
    }
    let total = kernels::log_sum_exp(k, logits);
    for likely in &mut out[start..] {
        likely.probability = kernels::exp(likely.probability - total);
    }
    // If the sum is NaN, nothing is appended.
    if out[start..].iter().any(|likely| likely.probability.is_nan()) {
        out.truncate(start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_come_first_and_ties_in_order() {
        let likely = |logits: &[f32], n: usize| {
            let mut out = vec![Likely { token: TokenId(99), probability: 0.5 }];
            push_likely(Kernels::detect(), logits, n, &mut out);
            assert_eq!(out[0].token, TokenId(99), "others' are left alone");
            out[1..].iter().map(|likely| (likely.token.0, likely.probability)).collect::<Vec<_>>()
        };
        let tokens = |found: &[(u32, f32)]| found.iter().map(|&(token, _)| token).collect::<Vec<_>>();
        let found = likely(&[1.0, 3.0, 2.0, 3.0, 0.0], 3);
        assert_eq!(tokens(&found), [1, 3, 2]);
        let total: f32 = [1.0f32, 3.0, 2.0, 3.0, 0.0].iter().map(|x| x.exp()).sum();
        assert!((found[0].1 - 3.0f32.exp() / total).abs() < 1e-6);
        assert_eq!(tokens(&likely(&[1.0, 2.0], 8)), [1, 0]);
        assert_eq!(likely(&[1.0, 3.0, 2.0], 0), [], "none are asked for, in a batch of one row");
        assert_eq!(likely(&[f32::NAN, 1.0], 2), []);
        assert_eq!(likely(&[f32::NEG_INFINITY; 3], 2), []);
        assert_eq!(tokens(&likely(&[f32::NEG_INFINITY, 0.0], 2)), [1]);
    }
}
