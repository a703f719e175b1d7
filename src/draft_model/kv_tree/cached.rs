//! The usual tree: rows of nodes stay in the cache, and become text when their tokens are committed.
//!
//! ```text
//! slots   0 …………… n_read−1 │ n_read ……………………… n_slots−1
//!         committed text    │ nodes, in the order in which they were computed
//!                     root ─┘ (node 0: the newest token of the text)
//! ```
//!
//! Nodes below a committed path may stay too: they are computed for the next draft already. **The target's own first layers**
//! ([`own_layers`](crate::draft_model::own_layers)) keep the residual stream of each node.

use super::rows::Rows;
use super::trunk::{ROOT, Trunk};
use crate::model::transformer::ForwardError;
use refrain_trees::TokenId;

/// # Invariants
/// - the cache holds `text[..n_read]`, followed by all nodes except the root;
/// - `nodes` is empty, or node 0 is the last of `text[..n_read]` and `n_read == text.len()`.
#[derive(Default)]
pub(super) struct Cached {
    /// Whether nodes below a committed path stay.
    pub(super) keeps: bool,
    /// Residual streams behind the target's own layers, `[nodes.len(), hidden_dim]`; empty with other models.
    pub(super) residuals: Vec<f32>,
}

impl Cached {
    /// Keeps the residual streams of the newest `n` nodes, which are the last rows of the newest pass.
    fn keep_residuals(&mut self, trunk: &Trunk, n: usize) {
        if trunk.model.own_layers().is_some() {
            let start = (trunk.batch.len() - n) * trunk.model.config().hidden_dim;
            self.residuals.extend_from_slice(&trunk.workspace.hidden_rows()[start..]);
        }
    }

    /// Converts the nodes of the new text tokens to text.
    fn keep_path(&mut self, trunk: &mut Trunk) {
        let path = trunk.path(trunk.n_read);
        trunk.kv.truncate(trunk.n_read);
        trunk.n_read += path.len();
        let is_whole = trunk.n_read == trunk.text.len();
        // The new root, and the nodes below it.
        let staying =
            if is_whole { self.make_root(trunk, path.last().map_or(ROOT, |&node| node)) } else { Vec::new() };
        // Node 1 is in the first slot after the text.
        let rows = path.iter().chain(staying.iter().skip(1));
        trunk.kv.commit(rows.map(|&node| node as usize - 1));
        if !is_whole {
            self.forget_from(trunk, trunk.n_read);
        }
    }

    fn make_root(&mut self, trunk: &mut Trunk, root: u32) -> Vec<u32> {
        let residuals = std::mem::take(&mut self.residuals);
        let row_len = residuals.len() / trunk.nodes.len();
        let staying = trunk.make_root(root, self.keeps);
        for &node in &staying {
            self.residuals.extend_from_slice(&residuals[node as usize * row_len..][..row_len]);
        }
        staying
    }
}

impl Rows for Cached {
    fn follow(&mut self, trunk: &mut Trunk, committed: &[TokenId]) {
        match trunk.set_text(committed) {
            None => {}
            Some(common) if common < trunk.n_read => self.forget_from(trunk, common),
            Some(_) if !trunk.nodes.is_empty() => self.keep_path(trunk),
            Some(_) => {}
        }
    }

    fn truncate(&mut self, trunk: &mut Trunk, len: usize) {
        trunk.text.truncate(len);
        if len < trunk.n_read {
            self.forget_from(trunk, len);
        }
    }

    fn forget_from(&mut self, trunk: &mut Trunk, len: usize) {
        trunk.forget_from(len);
        self.residuals.clear();
    }

    fn compute_root(&mut self, trunk: &mut Trunk) -> Result<(), ForwardError> {
        trunk.compute_root(None)?;
        self.keep_residuals(trunk, 1);
        Ok(())
    }

    fn compute(&mut self, trunk: &mut Trunk, wanted: &[(u32, TokenId)]) -> Result<(), ForwardError> {
        trunk.set_nodes(wanted);
        trunk.run_nodes(wanted)?;
        self.keep_residuals(trunk, wanted.len());
        trunk.kv.commit_all(&trunk.batch);
        Ok(())
    }

    fn memory_usage(&self) -> usize {
        self.residuals.capacity() * size_of::<f32>()
    }
}
