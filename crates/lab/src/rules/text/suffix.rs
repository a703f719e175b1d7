//! SuffixDecoding: best-first trees over the counts of a suffix structure.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use crate::rules::corpus::Texts;
use crate::rules::source::{Plan, Rule};
use refrain::TokenId;
use refrain_trees::sam::{Match, SuffixAutomaton};

/// Number of drafted tokens per matched token.
const FACTOR: usize = 1;
/// Minimum probability of a drafted path.
const PROBABILITY_MIN: f32 = 0.1;
/// Maximum number of matched and drafted tokens together.
const DEPTH_MAX: usize = 64;

#[derive(Clone, Debug)]
pub(super) struct Suffix {
    texts: Texts,
}

impl Suffix {
    pub(super) fn new(earlier: &[&[TokenId]]) -> Self {
        Suffix { texts: Texts::new(earlier) }
    }
}

impl Rule for Suffix {
    fn read(&mut self, committed: &[TokenId]) {
        self.texts.read(committed);
    }

    fn reset(&mut self) {
        self.texts.reset();
    }

    fn plan(&mut self, _committed: &[TokenId], plan: &mut Plan) {
        let mut best = Scored::new(plan.n_max());
        let own = self.texts.own.automaton();
        best.consider_suffixes(own, own.suffix_match());
        best.consider_suffixes(self.texts.earlier.corpus().automaton(), self.texts.earlier.matched());
        std::mem::swap(plan, &mut best.plan);
    }

    fn memory_usage(&self) -> usize {
        self.texts.memory_usage()
    }
}

/// The best plan so far and its sum of probabilities.
struct Scored {
    plan: Plan,
    score: f32,
    trial: Plan,
    queue: BinaryHeap<Waiting>,
    /// Number of queued nodes, to order equal ones.
    n_waited: usize,
}

/// A candidate node: the likeliest first, then the first found.
struct Waiting {
    reach: f32,
    order: usize,
    parent: usize,
    token: TokenId,
    at: Match,
}

impl Scored {
    fn new(n_max: usize) -> Self {
        let mut empty = Plan::new(n_max);
        empty.clear();
        Scored { plan: empty.clone(), score: 0.0, trial: empty, queue: BinaryHeap::new(), n_waited: 0 }
    }

    /// Plans from each suffix of `m`. Suffixes of one state have the same continuations, and the longest of them
    /// allows the longest draft, so one trial per state is enough. For equal scores, the longer match wins within a
    /// text. Between texts, the session's own text wins, because it comes first.
    fn consider_suffixes(&mut self, automaton: &SuffixAutomaton, m: Match) {
        let mut suffix = Some(automaton.renew(m));
        while let Some(m) = suffix.filter(|m| !m.is_empty()) {
            suffix = automaton.shorter(m);
            // A match beyond the maximum depth is replaced by its longest suffix within it, if that is of the same
            // state.
            let len = m.len().min(DEPTH_MAX - 1);
            if suffix.is_none_or(|shorter| shorter.len() < len) {
                let score = self.plan_from(automaton, m, len);
                if score > self.score {
                    self.score = score;
                    std::mem::swap(&mut self.plan, &mut self.trial);
                }
            }
        }
    }

    /// Plans a tree at a match of length `len` into `trial`, and returns its score.
    fn plan_from(&mut self, automaton: &SuffixAutomaton, m: Match, len: usize) -> f32 {
        self.trial.clear();
        self.queue.clear();
        self.wait_for(automaton, m, 0, 1.0);
        let mut score = 0.0;
        let n_max = len * FACTOR;
        while self.trial.len() < n_max {
            let Some(Waiting { reach, parent, token, at, .. }) = self.queue.pop() else { break };
            let Some(node) = self.trial.push(parent, token, reach) else { break };
            score += reach;
            if at.len() - m.len() + len < DEPTH_MAX {
                self.wait_for(automaton, at, node, reach);
            }
        }
        score
    }

    fn wait_for(&mut self, automaton: &SuffixAutomaton, m: Match, parent: usize, reach: f32) {
        let count = automaton.count(m).max(1) as f32;
        for successor in automaton.successors(m) {
            // Counts are lower bounds in text with long repetitions, so the share is limited to 1.
            let reach = reach * (successor.count as f32 / count).min(1.0);
            if reach >= PROBABILITY_MIN {
                self.n_waited += 1;
                let (order, token) = (self.n_waited, TokenId(successor.token));
                self.queue.push(Waiting { reach, order, parent, token, at: successor.next });
            }
        }
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        self.reach.total_cmp(&other.reach).then(other.order.cmp(&self.order))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Waiting {}
