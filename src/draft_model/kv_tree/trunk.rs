//! What trees of all kinds have: the text, the nodes behind it, their keys and values, and passes over them.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::draft::{Computed, VERIFY_ROWS_MAX};
use crate::draft_model::DraftModel;
use crate::draft_model::hidden_rows::CHUNK;
use crate::draft_model::hidden_rows::HiddenRows;
use crate::kernels::Instant;
use crate::kernels::{self, Kernels};
use crate::model::transformer::{ForwardError, Part, PassEnd};
use crate::model::{Batch, KvCache, Workspace};
use crate::pruning::PredictorScratch;
use refrain_trees::TokenId;

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
pub(super) struct Node {
    pub(super) token: TokenId,
    pub(super) parent: u32,
    /// The node's range in `likely`.
    likely: (u32, u32),
}

/// The text and its nodes. What the cache holds of the nodes depends on the kind of the tree.
///
/// # Invariant
/// The cache holds `text[..n_read]` first.
pub(super) struct Trunk {
    pub(super) model: Arc<DraftModel>,
    pub(super) kv: KvCache,
    pub(super) workspace: Workspace,
    pub(super) batch: Batch,
    /// `[rows, n_logits]`
    logits: Vec<f32>,
    scratch: PredictorScratch,
    /// The committed text.
    pub(super) text: Vec<TokenId>,
    /// Tokens of the text in the cache.
    pub(super) n_read: usize,
    pub(super) nodes: Vec<Node>,
    /// Successors of all nodes; the successors of a node are contiguous, likeliest first.
    likely: Vec<Likely>,
    /// Number of successors kept per node.
    pub(super) n_likely: usize,
    /// Maximum nodes computed after a text, not counting the root.
    pub(super) n_nodes_max: usize,
    pub(super) cancel: Arc<AtomicBool>,
    pub(super) computed: Computed,
}

impl Trunk {
    pub(super) fn new(model: Arc<DraftModel>, kv: KvCache, n_likely: usize, n_nodes_max: usize) -> Self {
        Self {
            workspace: Workspace::new(model.config()),
            model,
            kv,
            batch: Batch::new(),
            logits: Vec::new(),
            scratch: PredictorScratch::default(),
            text: Vec::new(),
            n_read: 0,
            nodes: Vec::new(),
            likely: Vec::new(),
            n_likely,
            n_nodes_max,
            cancel: Arc::new(AtomicBool::new(false)),
            computed: Computed::default(),
        }
    }

    /// Frees the buffers of passes.
    pub(super) fn release(&mut self) {
        self.workspace = Workspace::new(self.model.config());
        (self.logits, self.likely) = (Vec::new(), Vec::new());
        self.scratch = PredictorScratch::default();
    }

    /// Sets the text. Returns the number of its first tokens that stay; `None` if it is the same text.
    pub(super) fn set_text(&mut self, committed: &[TokenId]) -> Option<usize> {
        let common = self.text.iter().zip(committed).take_while(|(a, b)| a == b).count();
        if common == self.text.len() && common == committed.len() {
            return None;
        }
        self.text.truncate(common);
        self.text.extend_from_slice(&committed[common..]);
        Some(common)
    }

    /// Removes the cached text from position `len` on, and all nodes.
    pub(super) fn forget_from(&mut self, len: usize) {
        self.n_read = self.n_read.min(len);
        self.kv.truncate(self.n_read);
        // Recurrent layers may go back further.
        self.n_read = self.kv.len();
        self.nodes.clear();
        self.likely.clear();
    }

    /// Number of rows needed to compute the root; 0 if it is computed.
    pub(super) fn n_owed(&self) -> usize {
        match self.nodes.is_empty() {
            true => (self.text.len() - self.n_read).max(1),
            false => 0,
        }
    }

    /// The nodes below the root that lie on the path of the text from position `first` on.
    pub(super) fn path(&self, first: usize) -> Vec<u32> {
        let (mut path, mut node) = (Vec::new(), ROOT);
        for &token in &self.text[first..] {
            let Some(child) = self.child(node, token) else { break };
            path.push(child);
            node = child;
        }
        path
    }

    /// Makes `root`, whose row is the newest of the text, the root, and forgets all other nodes, or, if those below it are `kept`, the others.
    /// Returns the former numbers of the nodes that stay, rising.
    pub(super) fn make_root(&mut self, root: u32, kept: bool) -> Vec<u32> {
        let (nodes, likely) = (std::mem::take(&mut self.nodes), std::mem::take(&mut self.likely));
        let mut staying = Vec::new();
        // The new numbers of nodes from the root on.
        let mut numbers: Vec<Option<u32>> = Vec::new();
        for (node, old) in (root..).zip(&nodes[root as usize..]) {
            let above =
                old.parent.checked_sub(root).and_then(|at| numbers.get(at as usize).copied().flatten());
            let parent = if node == root { Some(ROOT) } else { above.filter(|_| kept) };
            numbers.push(parent.map(|_| self.nodes.len() as u32));
            let Some(parent) = parent else { continue };
            let start = self.likely.len() as u32;
            self.likely.extend_from_slice(&likely[old.likely.0 as usize..old.likely.1 as usize]);
            self.nodes.push(Node { token: old.token, parent, likely: (start, self.likely.len() as u32) });
            staying.push(node);
        }
        staying
    }

    /// The computed child of `node` with `token`.
    pub(super) fn child(&self, node: u32, token: TokenId) -> Option<u32> {
        let below = self.nodes.iter().enumerate().skip(node as usize + 1);
        let mut found = below.filter(|(_, child)| child.parent == node && child.token == token);
        found.next().map(|(index, _)| index as u32)
    }

    /// The likely successors of a node, likeliest first.
    pub(super) fn likely(&self, node: u32) -> &[Likely] {
        let (start, end) = self.nodes[node as usize].likely;
        &self.likely[start as usize..end as usize]
    }

    /// Computes the text except its newest token; of a head, from the hidden states `head`.
    ///
    /// # Errors
    /// [`ForwardError`]; text computed before stays.
    pub(super) fn read(&mut self, mut head: Option<&mut HiddenRows>) -> Result<(), ForwardError> {
        while self.n_read + 1 < self.text.len() {
            let end = (self.text.len() - 1).min(self.n_read + CHUNK);
            let started = Instant::now();
            self.set_chain(end, head.as_deref());
            self.forward(PassEnd::KeysAndValues)?;
            self.commit_chain(head.as_deref_mut());
            self.count(started.elapsed().as_secs_f64() * 1e6);
        }
        Ok(())
    }

    /// Computes the root behind the unread text before it, as a chain of text; of a head, from the hidden states `head`.
    ///
    /// # Errors
    /// [`ForwardError`]; text computed before stays.
    pub(super) fn compute_root(&mut self, mut head: Option<&mut HiddenRows>) -> Result<(), ForwardError> {
        if self.text.len() - self.n_read > CHUNK {
            self.read(head.as_deref_mut())?;
        }
        self.set_chain(self.text.len(), head.as_deref());
        self.run_nodes(&[(ROOT, self.text[self.text.len() - 1])])?;
        self.commit_chain(head);
        Ok(())
    }

    /// Fills the batch with the unread text up to `end`.
    fn set_chain(&mut self, end: usize, head: Option<&HiddenRows>) {
        self.batch.set_chain(self.n_read, &self.text[self.n_read..end]);
        if let Some(rows) = head {
            let inputs = self.workspace.inputs(false);
            inputs.extend_from_slice(rows.rows(self.n_read, self.batch.len()));
        }
    }

    /// Adds the chain of the batch to the cache.
    fn commit_chain(&mut self, head: Option<&mut HiddenRows>) {
        self.kv.commit_all(&self.batch);
        self.n_read += self.batch.len();
        if let Some(rows) = head {
            rows.take(self.n_read);
        }
    }

    /// Fills the batch with nodes behind those in the cache, each with its own ancestors.
    ///
    /// # Panics
    /// A parent is neither computed nor an earlier entry.
    pub(super) fn set_nodes(&mut self, wanted: &[(u32, TokenId)]) {
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
    pub(super) fn run_nodes(&mut self, nodes: &[(u32, TokenId)]) -> Result<(), ForwardError> {
        let started = Instant::now();
        self.forward(PassEnd::Hidden)?;
        let n_rows = self.batch.len();
        let Self { model, workspace, logits, scratch, .. } = self;
        model.logits(workspace, scratch, (nodes.len(), n_rows), logits)?;
        self.push_nodes(nodes);
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

    /// Bytes on the heap, without the weights.
    pub(super) fn memory_usage(&self) -> usize {
        self.kv.memory_usage()
            + self.workspace.memory_usage()
            + self.batch.memory_usage()
            + self.logits.capacity() * size_of::<f32>()
            + self.text.capacity() * size_of::<TokenId>()
            + self.nodes.capacity() * size_of::<Node>()
            + self.likely.capacity() * size_of::<Likely>()
    }
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
