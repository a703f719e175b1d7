//! The tree of a model with recurrent layers, which cannot compute rows below rows of earlier passes.
//!
//! The cache holds the text before the root, and every pass over nodes computes the root and all nodes of the text again, as one tree:
//! few rows of a small model cost little more than one. A commit keeps the path of the newest pass, without the new root.

use super::rows::Rows;
use super::trunk::{ROOT, Trunk};
use crate::model::transformer::ForwardError;
use refrain_trees::TokenId;

/// # Invariants
/// - the cache holds `text[..n_read]` alone;
/// - `nodes` is empty, or node 0 is the token behind it and `n_read + 1 == text.len()`; if `has_pass`, the rows of the newest pass are
///   those of all nodes.
#[derive(Default)]
pub(super) struct Recomputed {
    /// Whether a path of the nodes can be committed from the newest pass.
    has_pass: bool,
}

/// Tokens of the text whose rows are computed, the root's included.
fn n_computed(trunk: &Trunk) -> usize {
    trunk.n_read + usize::from(!trunk.nodes.is_empty())
}

impl Recomputed {
    /// Commits rows of the newest pass: the old root's, and those of the new text tokens. The new root stays behind the cache.
    fn keep_path(&mut self, trunk: &mut Trunk) {
        let rows: Vec<u32> = std::iter::once(ROOT).chain(trunk.path(n_computed(trunk))).collect();
        let is_whole = trunk.n_read + rows.len() == trunk.text.len();
        if std::mem::take(&mut self.has_pass) {
            let n_kept = rows.len() - usize::from(is_whole);
            trunk.kv.commit(rows[..n_kept].iter().map(|&row| row as usize));
            trunk.n_read += n_kept;
            if is_whole {
                trunk.make_root(rows[n_kept], false);
                return;
            }
        }
        self.forget_from(trunk, trunk.n_read);
    }
}

impl Rows for Recomputed {
    fn follow(&mut self, trunk: &mut Trunk, committed: &[TokenId]) {
        match trunk.set_text(committed) {
            None => {}
            Some(common) if common < n_computed(trunk) => self.forget_from(trunk, common),
            Some(_) if !trunk.nodes.is_empty() => self.keep_path(trunk),
            Some(_) => {}
        }
    }

    fn truncate(&mut self, trunk: &mut Trunk, len: usize) {
        trunk.text.truncate(len);
        if len < n_computed(trunk) {
            self.forget_from(trunk, len);
        }
    }

    fn forget_from(&mut self, trunk: &mut Trunk, len: usize) {
        trunk.forget_from(len);
        self.has_pass = false;
    }

    /// The unread text is a chain of rows of one pass, of which all but the root's are committed at once.
    fn compute_root(&mut self, trunk: &mut Trunk) -> Result<(), ForwardError> {
        if trunk.text.len() - trunk.n_read > trunk.n_nodes_max + 1 {
            trunk.read(None)?;
        }
        let unread = &trunk.text[trunk.n_read..];
        let (n_rows, newest) = (unread.len(), unread[unread.len() - 1]);
        let parents: Vec<u32> = (0..n_rows as u32).map(|row| row.saturating_sub(1)).collect();
        trunk.batch.set_tree(trunk.n_read, unread, &parents, n_rows);
        trunk.run_nodes(&[(ROOT, newest)])?;
        // The pass is over with its commit.
        self.has_pass = n_rows == 1;
        if n_rows > 1 {
            trunk.kv.commit(0..n_rows - 1);
            trunk.n_read += n_rows - 1;
        }
        Ok(())
    }

    fn compute(&mut self, trunk: &mut Trunk, wanted: &[(u32, TokenId)]) -> Result<(), ForwardError> {
        let computed = trunk.nodes.iter().map(|node| (node.parent, node.token));
        let (parents, tokens): (Vec<u32>, Vec<TokenId>) = computed.chain(wanted.iter().copied()).unzip();
        trunk.batch.set_tree(trunk.n_read, &tokens, &parents, tokens.len());
        self.has_pass = false;
        trunk.run_nodes(wanted)?;
        self.has_pass = true;
        Ok(())
    }

    fn n_again(&self, trunk: &Trunk) -> usize {
        trunk.nodes.len()
    }
}
