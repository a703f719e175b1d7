//! What the rules with logits have seen: the rows of prompts and verified batches.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use refrain::TokenId;
use refrain::drafting::{DraftTree, NodeIdx, SuccessorLists};
use refrain::internals::draft::ReuseConfig;

use crate::trace::answer::Top;

/// The target's rows as far as a rule may have kept them, from request to request.
///
/// Holds a row for each token of the vocabulary, and one for each position of the newest request.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// What followed the newest row of each token. Only looked up, never iterated over.
    newest: HashMap<TokenId, Top>,
    /// The newest computed row of the text: that before the root.
    last: Option<Top>,
    /// The successors of each position of the request.
    lists: SuccessorLists,
    /// The longest likely segment of the newest rejected draft: equation 3 of CoordGen.
    segment: Vec<TokenId>,
}

impl Observed {
    /// Starts a request. A prefill computes all rows of the prompt except that of the root.
    pub(crate) fn read_prompt(&mut self, prompt: &[TokenId], tops: &[Top]) {
        let computed = prompt.len().saturating_sub(1);
        self.lists.clear();
        self.segment.clear();
        self.last = None;
        for (&token, top) in prompt.iter().zip(tops).take(computed) {
            self.newest.insert(token, *top);
            self.lists.push(&top.successors());
            self.last = Some(*top);
        }
    }

    /// Reads a verified batch: its tree, whose root is at position `root` of the text, the visited nodes, and the rows as
    /// far as they are known. Shape of `tops`: `[tree.len()]`.
    pub(crate) fn read_step(
        &mut self,
        tree: &DraftTree,
        path: &[NodeIdx],
        root: usize,
        tops: &[Option<Top>],
    ) {
        for (&token, top) in tree.tokens().iter().zip(tops) {
            if let Some(top) = top {
                self.newest.insert(token, *top);
            }
        }
        let mut visited = SuccessorLists::new();
        for node in path {
            let top = tops[node.index()];
            visited.push(&top.as_ref().map_or_else(Vec::new, Top::successors));
            self.last = top.or(self.last);
        }
        self.lists.write(root, &visited);
        self.keep_segment(tree, path, tops);
    }

    /// Keeps the longest run of rejected tokens that the target finds likely; of equal ones the first.
    fn keep_segment(&mut self, tree: &DraftTree, path: &[NodeIdx], tops: &[Option<Top>]) {
        let threshold = ReuseConfig::default().threshold;
        let mut lens = vec![0u32; tree.len()];
        let mut best = NodeIdx::ROOT;
        for i in 1..tree.len() {
            let (node, parent) = (NodeIdx(i as u32), tree.parents()[i] as usize);
            let is_likely = tops[parent].is_some_and(|top| top.probability(tree.token(node)) >= threshold);
            if is_likely && !path.contains(&node) {
                lens[i] = lens[parent] + 1;
                if lens[i] > lens[best.index()] {
                    best = node;
                }
            }
        }
        self.segment.clear();
        let up = std::iter::successors(Some(best), |&node| tree.parent(node));
        self.segment.extend(up.take(lens[best.index()] as usize).map(|node| tree.token(node)));
        self.segment.reverse();
    }

    /// What followed the newest row of a token.
    pub(super) fn after(&self, token: TokenId) -> Option<&Top> {
        self.newest.get(&token)
    }

    /// The row before the root.
    pub(super) fn last(&self) -> Option<&Top> {
        self.last.as_ref()
    }

    /// The successors of the request's positions.
    pub(super) fn lists(&self) -> &SuccessorLists {
        &self.lists
    }

    /// The likely segment of the newest rejected draft.
    pub(super) fn segment(&self) -> &[TokenId] {
        &self.segment
    }

    pub(super) fn memory_usage(&self) -> usize {
        self.newest.capacity() * (size_of::<Top>() + size_of::<TokenId>() + 1) + self.lists.memory_usage()
    }
}

/// The rows, shared by a replay and its rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedRows(Arc<Mutex<Observed>>);

impl SharedRows {
    /// The rows. Nothing panics while it holds them.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Observed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
