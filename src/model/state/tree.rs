//! The rows of a pass as recurrent layers see them: parents, and the order of a walk that keeps few states.
//!
//! A state is large, so a walk keeps as few as possible. It goes depth-first. A row's last child takes over the row's state in place;
//! the state stays for the children before it. If the child whose subtree needs most states comes last, the number of states that exist
//! at once is the Strahler number of the tree, at most log₂ of its rows. A leaf's state is not stored at all. The state of the root has
//! a place of its own, because the root is always committed.

use crate::kernels::{NO_PARENT, StatePlace, StateStep};

/// The rows of a pass over one sequence, for all of its recurrent layers. Its buffers are kept between passes.
///
/// # Invariants
/// - Rows are numbered as in the batch, and `numbers` are those that the pass still computes, strictly rising, without padding.
/// - With a row, all of its ancestors are there. Its parent precedes it.
#[derive(Debug, Default, Clone)]
pub struct TreeRows {
    base: usize,
    /// Rows of the batch, padding not counted.
    n_tokens: usize,
    /// Rows of the pass, padding included.
    len: usize,
    whole: bool,
    /// `[n_rows]`
    numbers: Vec<u32>,
    /// `[n_rows]`: parents by index into `numbers`; [`NO_PARENT`] for the root.
    parents: Vec<u32>,
    /// `[n_rows]`
    steps: Vec<StateStep>,
    n_levels: usize,
    /// `[n_rows]`: scratch memory of planning.
    nodes: Vec<Node>,
    /// Rows to be visited, the next one last.
    stack: Vec<StateStep>,
}

/// What planning knows of a row.
#[derive(Debug, Default, Clone, Copy)]
struct Node {
    /// The first child, and the next sibling; 0: none.
    child: u32,
    sibling: u32,
    /// Levels that the walk below the row takes, that of its own state included. 0: the row is a leaf, whose state is not stored.
    n_levels: u32,
    /// The child that takes over the row's state; 0: none.
    last: u32,
}

impl TreeRows {
    /// No rows.
    pub fn new() -> Self {
        Self::default()
    }

    /// A chain of `n_rows` rows after `base` committed tokens, of which any number may be committed.
    pub fn set_chain(&mut self, base: usize, n_rows: usize) {
        self.clear(base, n_rows, n_rows);
        for row in 0..n_rows as u32 {
            self.push(row, row.checked_sub(1));
        }
        self.plan();
    }

    /// A chain of `n_rows` rows after `base` committed tokens that is committed as a whole or not at all, for example a prefill chunk.
    /// Its length has no bound, since no row is recorded.
    pub fn set_whole(&mut self, base: usize, n_rows: usize) {
        self.clear(base, n_rows, n_rows);
        self.whole = true;
        let (from, to) = (StatePlace::Result, StatePlace::Result);
        for row in 0..n_rows as u32 {
            self.push(row, row.checked_sub(1));
            self.steps.push(StateStep { row, from, to });
        }
    }

    /// A tree after `base` committed tokens, followed by padding up to `n_rows` rows. `parents[0]` is ignored: row 0 is the root.
    ///
    /// # Panics
    /// If a parent does not come before its child, or `n_rows` is less than the number of parents.
    pub fn set_tree(&mut self, base: usize, parents: &[u32], n_rows: usize) {
        assert!(parents.len() <= n_rows, "{} rows do not fit a batch of {n_rows}", parents.len());
        self.clear(base, parents.len(), n_rows);
        for (row, &parent) in parents.iter().enumerate() {
            assert!(row == 0 || (parent as usize) < row, "row {row} comes before its parent {parent}");
            self.push(row as u32, (row > 0).then_some(parent));
        }
        self.plan();
    }

    /// Drops the rows that are not in `kept`, numbers of the batch. The remaining rows of a layer's inputs close up.
    ///
    /// # Panics
    /// If `kept` does not rise strictly, contains a row that was dropped before, or a row without its parent; or if the rows are
    /// committed as a whole and some are dropped.
    pub fn keep(&mut self, kept: &[u32]) {
        if kept.len() == self.len {
            return;
        }
        assert!(!self.whole, "{} of {} rows that are committed as a whole", kept.len(), self.len);
        let n_kept = kept.partition_point(|&row| (row as usize) < self.n_tokens);
        // Where each of the old rows goes: for now, in `sibling`.
        let (mut to, n_old) = (0, self.numbers.len());
        self.nodes.clear();
        for from in 0..n_old {
            let is_kept = to < n_kept && kept[to] == self.numbers[from];
            let sibling = if is_kept { to as u32 } else { NO_PARENT };
            self.nodes.push(Node { sibling, ..Node::default() });
            if is_kept {
                let parent = self.parents[from];
                let parent_to =
                    if parent == NO_PARENT { NO_PARENT } else { self.nodes[parent as usize].sibling };
                let number = self.numbers[from];
                assert!(
                    parent == NO_PARENT || parent_to != NO_PARENT,
                    "row {number} is kept and its parent is not"
                );
                self.numbers[to] = number;
                self.parents[to] = parent_to;
                to += 1;
            }
        }
        assert_eq!(to, n_kept, "kept rows rise and are rows of the pass");
        self.numbers.truncate(to);
        self.parents.truncate(to);
        (self.len, self.n_levels) = (kept.len(), 0);
        self.steps.clear();
        self.plan();
    }

    fn clear(&mut self, base: usize, n_tokens: usize, len: usize) {
        (self.base, self.n_tokens, self.len, self.whole, self.n_levels) = (base, n_tokens, len, false, 0);
        self.numbers.clear();
        self.parents.clear();
        self.steps.clear();
    }

    fn push(&mut self, row: u32, parent: Option<u32>) {
        self.numbers.push(row);
        self.parents.push(parent.unwrap_or(NO_PARENT));
    }

    /// Finds the order of the walk.
    fn plan(&mut self) {
        let n_rows = self.numbers.len();
        let root = StateStep { row: 0, from: StatePlace::Result, to: StatePlace::Result };
        if n_rows <= 1 {
            self.steps.extend((0..n_rows).map(|_| root));
            return;
        }
        self.nodes.clear();
        self.nodes.resize(n_rows, Node::default());
        // Rows below come later, so a row's levels are final before its parent reads them.
        for row in (1..n_rows).rev() {
            let (own, parent) = (self.nodes[row].n_levels, self.parents[row] as usize);
            let Node { child, n_levels, last, .. } = self.nodes[parent];
            let most = if last == 0 { 0 } else { self.nodes[last as usize].n_levels };
            self.nodes[row].sibling = child;
            // The child with most levels shares the first of them with the row; the others take one more.
            let other = own.min(most);
            let above = &mut self.nodes[parent];
            above.child = row as u32;
            above.n_levels = n_levels.max(own).max(1).max(if other > 0 { other + 1 } else { 0 });
            if last == 0 || own > most {
                above.last = row as u32;
            }
        }
        self.steps.push(root);
        self.stack.clear();
        self.visit_children(root);
        while let Some(step) = self.stack.pop() {
            self.steps.push(step);
            self.visit_children(step);
        }
        let levels = self.steps.iter().map(|step| match step.to {
            StatePlace::Level(level) => level as usize + 1,
            _ => 0,
        });
        self.n_levels = levels.max().unwrap_or(0);
    }

    /// Puts the children of a visited row on the stack: the last to be visited first.
    fn visit_children(&mut self, step: StateStep) {
        let Node { child, last, .. } = self.nodes[step.row as usize];
        if child == 0 {
            return;
        }
        let from = step.to;
        let above = match from {
            StatePlace::Level(level) => level + 1,
            _ => 0,
        };
        self.push_child(last, from, if from == StatePlace::Result { StatePlace::Level(0) } else { from });
        let mut next = child;
        while next != 0 {
            if next != last {
                self.push_child(next, from, StatePlace::Level(above));
            }
            next = self.nodes[next as usize].sibling;
        }
    }

    fn push_child(&mut self, row: u32, from: StatePlace, to: StatePlace) {
        let is_leaf = self.nodes[row as usize].child == 0;
        self.stack.push(StateStep { row, from, to: if is_leaf { StatePlace::None } else { to } });
    }

    /// Committed tokens before the batch.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Rows of the pass, padding included.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the pass has no rows.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Rows of the batch, dropped ones included, padding not.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Whether the rows are committed as a whole or not at all.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Numbers of the rows with a token that the pass computes, strictly rising.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }

    /// The parent of each of these rows, by index into [`numbers`](Self::numbers).
    pub(super) fn parents(&self) -> &[u32] {
        &self.parents
    }

    /// The walk over these rows.
    pub(super) fn steps(&self) -> &[StateStep] {
        &self.steps
    }

    /// States besides the root's that exist at once.
    pub(super) fn n_levels(&self) -> usize {
        self.n_levels
    }

    /// Bytes on the heap.
    pub fn memory_usage(&self) -> usize {
        (self.numbers.capacity() + self.parents.capacity()) * size_of::<u32>()
            + (self.steps.capacity() + self.stack.capacity()) * size_of::<StateStep>()
            + self.nodes.capacity() * size_of::<Node>()
    }

    /// Panics if a step starts from a state that is not its parent's.
    #[cfg(test)]
    pub(super) fn check_integrity(&self) {
        assert_eq!(self.steps.len(), self.numbers.len());
        assert!(self.numbers.is_sorted_by(|a, b| a < b));
        let mut held = std::collections::HashMap::new();
        for (i, step) in self.steps.iter().enumerate() {
            if i == 0 {
                assert_eq!((step.row, step.to), (0, StatePlace::Result));
            } else {
                let place = format!("{:?}", step.from);
                assert_eq!(held.get(&place), Some(&self.parents[step.row as usize]), "{step:?} of {self:?}");
                assert!(self.whole || step.to != StatePlace::Result, "the root's state stays");
            }
            held.insert(format!("{:?}", step.to), step.row);
        }
        assert_eq!(held.get("Result"), self.steps.last().map(|last| if self.whole { &last.row } else { &0 }));
        let n_levels = (usize::BITS - self.numbers.len().leading_zeros()) as usize;
        assert!(self.n_levels <= n_levels, "{} levels of {} rows", self.n_levels, self.numbers.len());
    }
}
