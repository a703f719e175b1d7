//! The tree of a head, which reads the target's hidden states beside the tokens of the text ([`HiddenRows`]), and its own below it.
//!
//! Rows of nodes are not those of text: when tokens are committed, all nodes are rolled back and the tokens are computed with the next
//! root, from the hidden states that the target has computed meanwhile. A node needs the hidden state of its parent, so a pass computes
//! children of computed nodes only.

use std::ops::Range;

use super::rows::Rows;
use super::trunk::Trunk;
use crate::draft_model::hidden_rows::CHUNK;
use crate::draft_model::hidden_rows::HiddenRows;
use crate::model::transformer::ForwardError;
use refrain_trees::TokenId;

/// # Invariants
/// As those of [`Cached`](super::cached::Cached), and `states` has the head's own hidden state of each node.
pub(super) struct Head {
    pub(super) states: HiddenRows,
}

impl Head {
    /// Keeps the head's own hidden states of the newest `n` nodes, which are the last rows of the newest pass.
    fn keep_states(&mut self, trunk: &Trunk, n: usize) {
        let (workspace, config, n_rows) = (&trunk.workspace, trunk.model.config(), trunk.batch.len());
        let states = (n_rows - n..n_rows).flat_map(|row| workspace.own_state(row, config));
        self.states.of_nodes.extend(states);
    }

    /// Receives states of the target: see [`KvTree::read_hidden`](super::KvTree::read_hidden).
    pub(super) fn receive(
        &mut self,
        trunk: &mut Trunk,
        committed: &[TokenId],
        first: usize,
        hidden: &[f32],
    ) -> Result<(), ForwardError> {
        let chunk_len = CHUNK * trunk.model.config().target_state_dim().max(1);
        for (i, chunk) in hidden.chunks(chunk_len).enumerate() {
            let n_before = trunk.text.len();
            let n_kept = self.states.push(first + i * CHUNK, chunk, &mut trunk.text);
            if n_kept < n_before {
                self.forget_from(trunk, n_kept);
            }
            self.follow(trunk, committed);
            if trunk.n_owed() > CHUNK {
                trunk.read(Some(&mut self.states))?;
            }
        }
        Ok(())
    }
}

impl Rows for Head {
    fn follow(&mut self, trunk: &mut Trunk, committed: &[TokenId]) {
        let (n_before, n_same) = (trunk.text.len(), self.states.follow(committed, &mut trunk.text));
        if n_same < trunk.n_read {
            self.forget_from(trunk, n_same);
        } else if n_same < n_before || trunk.text.len() > n_before {
            self.forget_from(trunk, trunk.n_read);
        }
    }

    fn truncate(&mut self, trunk: &mut Trunk, len: usize) {
        let n_left = self.states.cut(len, &mut trunk.text);
        if n_left < trunk.n_read {
            self.forget_from(trunk, n_left);
        }
    }

    fn forget_from(&mut self, trunk: &mut Trunk, len: usize) {
        trunk.forget_from(len);
        self.states.of_nodes.clear();
    }

    fn compute_root(&mut self, trunk: &mut Trunk) -> Result<(), ForwardError> {
        trunk.compute_root(Some(&mut self.states))?;
        self.keep_states(trunk, 1);
        Ok(())
    }

    fn compute(&mut self, trunk: &mut Trunk, wanted: &[(u32, TokenId)]) -> Result<(), ForwardError> {
        for pass in self.passes(trunk, wanted) {
            let wanted = &wanted[pass];
            trunk.set_nodes(wanted);
            let inputs = trunk.workspace.inputs(true);
            wanted.iter().for_each(|&(parent, _)| inputs.extend_from_slice(self.states.of_node(parent)));
            trunk.run_nodes(wanted)?;
            self.keep_states(trunk, wanted.len());
            trunk.kv.commit_all(&trunk.batch);
        }
        Ok(())
    }

    fn passes(&self, trunk: &Trunk, wanted: &[(u32, TokenId)]) -> Vec<Range<usize>> {
        let (mut passes, mut start) = (Vec::new(), 0);
        let first = trunk.nodes.len().max(1);
        for (i, &(parent, _)) in wanted.iter().enumerate() {
            // The hidden state of a parent in the same pass is not known.
            if parent as usize >= first + start {
                passes.push(start..i);
                start = i;
            }
        }
        passes.extend((start < wanted.len()).then_some(start..wanted.len()));
        passes
    }

    fn memory_usage(&self) -> usize {
        self.states.memory_usage()
    }
}
