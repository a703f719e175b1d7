//! RACER: frequent continuations of all suffixes, then a tree over likely tokens.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use refrain::TokenId;
use refrain_trees::sam::{Match, SuffixAutomaton};

use super::SharedRows;
use crate::rules::corpus::Texts;
use crate::rules::source::{Plan, Rule};
use crate::trace::answer::TOP_LEN;

/// Length of the inserted n-grams.
const NGRAM: usize = 10;
/// Minimum length of a suffix, the root included.
const SUFFIX_MIN: usize = 2;

#[derive(Clone)]
pub(super) struct Racer {
    texts: Texts,
    rows: SharedRows,
}

impl Racer {
    pub(super) fn new(earlier: &[&[TokenId]], rows: &SharedRows) -> Self {
        Racer { texts: Texts::new(earlier), rows: rows.clone() }
    }
}

/// A continuation of a suffix: the most frequent first, then the shortest.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Waiting {
    count: u32,
    depth: Reverse<usize>,
    /// The first found of equal ones.
    order: Reverse<usize>,
    token: u32,
    parent: usize,
    /// State and length of the continuation, in its automaton.
    at: (u32, u32),
    is_own: bool,
}

impl Rule for Racer {
    fn read(&mut self, committed: &[TokenId]) {
        self.texts.read(committed);
    }

    fn reset(&mut self) {
        self.texts.reset();
    }

    fn plan(&mut self, committed: &[TokenId], plan: &mut Plan) {
        let automaton = |is_own| match is_own {
            true => self.texts.own.automaton(),
            false => self.texts.earlier.corpus().automaton(),
        };
        let mut queue = BinaryHeap::new();
        let mut n_found = 0;
        let mut wait = |queue: &mut BinaryHeap<Waiting>, is_own, m: Match, parent, depth: usize| {
            for next in automaton(is_own).successors(m) {
                n_found += 1;
                let (depth, order) = (Reverse(depth), Reverse(n_found));
                let at = next.next.to_parts();
                queue.push(Waiting {
                    count: next.count,
                    depth,
                    order,
                    token: next.token,
                    parent,
                    at,
                    is_own,
                });
            }
        };
        for (is_own, longest) in
            [(true, self.texts.own.automaton().suffix_match()), (false, self.texts.earlier.matched())]
        {
            for suffix in suffixes(automaton(is_own), longest) {
                wait(&mut queue, is_own, suffix, 0, 1);
            }
        }
        while let Some(Waiting { depth: Reverse(depth), token, parent, at, is_own, .. }) = queue.pop() {
            let Some(node) = plan.merge(parent, TokenId(token), 1.0) else { return };
            // A suffix of the minimum length allows the longest continuation.
            if depth < NGRAM - SUFFIX_MIN {
                wait(&mut queue, is_own, Match::from_parts(at.0, at.1), node, depth + 1);
            }
        }
        self.plan_rows(committed, plan);
    }

    fn memory_usage(&self) -> usize {
        self.texts.memory_usage() + self.rows.lock().memory_usage()
    }
}

impl Racer {
    /// Fills the plan with likely tokens, breadth first.
    fn plan_rows(&self, committed: &[TokenId], plan: &mut Plan) {
        let Some(&root) = committed.last() else { return };
        let rows = self.rows.lock();
        // Node, token, breadth and depth.
        let mut layer = std::collections::VecDeque::from([(0, root, TOP_LEN, 0)]);
        // A path of single successors may repeat without end.
        while let Some((parent, token, breadth, depth)) = layer.pop_front().filter(|node| node.3 < NGRAM) {
            let mut below = if depth == 1 { breadth } else { breadth / 2 };
            let likely = rows.after(token).into_iter().flat_map(|top| top.iter());
            for (token, _) in likely.take(breadth) {
                let Some(node) = plan.merge(parent, token, 1.0) else { return };
                layer.push_back((node, token, below.max(1), depth + 1));
                below /= 2;
            }
        }
    }
}

/// The suffixes of a match with at least [`SUFFIX_MIN`] tokens, one for each set of occurrences, longest first.
fn suffixes(automaton: &SuffixAutomaton, longest: Match) -> impl Iterator<Item = Match> + '_ {
    let all = std::iter::successors(Some(automaton.renew(longest)), |&m| automaton.shorter(m));
    all.take_while(|m| m.len() >= SUFFIX_MIN)
}
