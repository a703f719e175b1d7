//! The source *predictions*: drafts in the target's own words, from what the target found likely after the same tokens.
//!
//! Every row that the target computes predicts what follows its token. One [store](EchoStore) has these predictions: for the
//! last two tokens of a path and for the last one a list of likely successors. (Token Recycling, arXiv 2408.08696, keys them by
//! the last token.) Three parts of a session fill it or ask it, each with its own switch:
//!
//! - *Calibration* (CoordGen, arXiv 2510.15312, section 3.3): the rows of the prompt, as prefill computes them, and the rows
//!   that a walk visits. A successor's own successors are those that the target found after it elsewhere, so the store is a
//!   token tree over the context.
//! - *Echo* also keeps the rows of rejected drafts, and shares the store with the sessions of a namespace.
//! - *Reuse* (CoordGen, section 3.4): of a rejected draft, the longest segment whose tokens the store finds likely
//!   drafts again (`segments.rs`). With echo the store has the segment's own rows.
//!
//! ```text
//! output      … Clinton ▏                  the row before found: Clinton .6, Obama .3
//! store       (…, Clinton) → 's .5, arrived .3        (Clinton, 's) → visit .8        's → visit .4, own .1
//! draft       Clinton → 's → visit …
//!                     → arrived → …
//!                     → Obama              a runner-up of the row before: the token may only have been delayed
//! ```
//!
//! After two tokens the newest row counts. After one token rows differ more, and older ones decay: a new row replaces
//! three quarters of the list. In replays of traces, decay after two tokens lowered the tokens per step.

mod segments;
mod store;

use super::evidence::EvidenceClass;
use super::source::{Anchor, Candidate, Candidates, Cursor, DraftSource, StepOutcome, TargetListener};
use super::successors::{Successor, SuccessorLists};
use refrain_trees::TokenId;
use refrain_trees::{DraftTree, NodeIdx};
use segments::Segments;
use store::{NONE, Pair, Store};

pub use segments::ReuseConfig;
pub use store::{EchoConfig, EchoList, EchoStore};

/// Drafts from the target's newest successors after the last two tokens, or after the last one, and from rejected segments.
///
/// Without echo the lists are the source's own: at most [`EchoConfig::lists_max`] by default, copied for a fork and dropped with
/// the whole text. With echo a fork shares them; neither a reset nor a release drops them. Segments hold at most
/// [`ReuseConfig::tokens_max`] tokens.
#[derive(Clone, Debug)]
pub struct PredictionsSource {
    store: EchoStore,
    echoes: bool,
    segments: Option<Segments>,
    /// Number of tokens before the end of the newest lists of the text.
    n_listed: usize,
    /// The last two committed tokens; `None` before the first.
    root: Option<Pair>,
    /// The key of the row before the root, if this row has been read.
    before_root: Option<Pair>,
}

/// The cursor of the runners-up of the row before the root. It is no pair: no token is `NONE`.
const RUNNERS_UP: Cursor = Cursor(u64::MAX);

impl PredictionsSource {
    /// A source with lists of its own; configuration values beyond the bounds are clamped.
    pub fn new(reuse: Option<ReuseConfig>) -> Self {
        Self { echoes: false, ..Self::with_echo(EchoConfig::default(), &EchoStore::new(), reuse) }
    }

    /// A source that echoes, with the lists of `store`; configuration values beyond the bounds are clamped.
    pub fn with_echo(config: EchoConfig, store: &EchoStore, reuse: Option<ReuseConfig>) -> Self {
        store.lock().reserve(config.lists_max);
        Self {
            store: store.clone(),
            echoes: true,
            segments: reuse.map(Segments::new),
            n_listed: 0,
            root: None,
            before_root: None,
        }
    }

    /// Upper bound of the bytes of a source's lists.
    pub(crate) fn bytes(config: EchoConfig) -> u64 {
        Store::bytes(config.lists_max)
    }

    /// Files a list under the pair and under its last token.
    fn file(store: &mut Store, pair: Pair, lists: &SuccessorLists, at: usize) {
        if lists.successor(at, 0).is_none() {
            return;
        }
        if pair.before != NONE {
            store.set(pair, lists, at);
        }
        store.blend(pair.single(), lists, at);
    }

    fn read(&mut self, committed: &[TokenId]) {
        self.root = Pair::ending(committed);
        let before = committed.split_last().filter(|(_, before)| before.len() == self.n_listed);
        self.before_root = before.and_then(|(_, before)| Pair::ending(before));
    }

    /// Pushes the successors in a slot as children of a path that ends with `path`, of which `match_len` tokens agree.
    fn propose(
        store: &Store,
        (slot, match_len): (usize, u32),
        path: Pair,
        parent: u32,
        out: &mut Candidates,
    ) {
        for Successor { token, log_probability } in store.lists.list(slot) {
            if match_len == 0 && token.0 == path.last {
                continue; // The root is no runner-up of its own row.
            }
            let candidate = Candidate {
                parent,
                token,
                probability: log_probability.exp(),
                match_len,
                count: 1,
                next: Cursor(path.then(token).key()),
            };
            if !out.push(candidate) {
                return;
            }
        }
    }
}

impl TargetListener for PredictionsSource {
    fn calibrate(&mut self, committed: &[TokenId], first: usize, lists: &SuccessorLists) {
        let mut store = self.store.lock();
        for at in 0..lists.len() {
            let Some(pair) = committed.get(..first + at + 1).and_then(Pair::ending) else { break };
            Self::file(&mut store, pair, lists, at);
        }
        self.n_listed = first + lists.len();
    }

    fn reject(&mut self, tree: &DraftTree, nodes: &[NodeIdx], lists: &SuccessorLists) {
        if !self.echoes {
            return;
        }
        let mut store = self.store.lock();
        for (at, &node) in nodes.iter().enumerate() {
            let Some(parent) = tree.parent(node) else { continue };
            let pair = Pair { before: tree.token(parent).0, last: tree.token(node).0 };
            Self::file(&mut store, pair, lists, at);
        }
    }
}

impl DraftSource for PredictionsSource {
    fn name(&self) -> &str {
        "predictions"
    }

    fn evidence(&self) -> EvidenceClass {
        EvidenceClass::TargetRows
    }

    fn target_listener(&mut self) -> Option<&mut dyn TargetListener> {
        Some(self)
    }

    fn prime(&mut self, committed: &[TokenId]) {
        // A new turn has begun; rejected segments of the last turn are no longer relevant.
        self.segments.iter_mut().for_each(Segments::clear);
        self.read(committed);
    }

    fn observe(&mut self, committed: &[TokenId], step: &StepOutcome<'_>) {
        if let Some(segments) = &mut self.segments {
            let store = self.store.lock();
            let before_root = committed.len().checked_sub(step.new_tokens.len() + 2).map(|at| committed[at]);
            segments.observe(step, |node| {
                let parent = step.tree.parent(node)?;
                let before = step.tree.parent(parent).map(|before| step.tree.token(before)).or(before_root);
                let before = before.map_or(NONE, |token| token.0);
                let pair = Pair { before, last: step.tree.token(parent).0 };
                store.probability(pair, step.tree.token(node))
            });
        }
        self.read(committed);
    }

    fn release(&mut self) {
        self.truncate(0);
        self.segments.iter_mut().for_each(Segments::release);
    }

    /// Lists stay while there is text: they are predictions after one or two tokens, wherever these occur.
    fn truncate(&mut self, len: usize) {
        if len == 0 && !self.echoes {
            self.store.clear();
        }
        self.segments.iter_mut().for_each(Segments::clear);
        self.n_listed = self.n_listed.min(len);
        (self.root, self.before_root) = (None, None);
    }

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        let Some(root) = self.root else { return };
        let store = self.store.lock();
        if let Some((_, match_len)) = store.after(root) {
            out.push(Anchor { cursor: Cursor(root.key()), match_len });
        }
        if self.before_root.is_some() {
            out.push(Anchor { cursor: RUNNERS_UP, match_len: 0 });
        }
        if let Some(segments) = &self.segments {
            segments.anchors(committed, out);
            out.sort_by_key(|anchor| std::cmp::Reverse(anchor.match_len));
        }
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        let store = self.store.lock();
        for (parent, &cursor) in (0..).zip(frontier) {
            if cursor == RUNNERS_UP {
                if let (Some(before), Some(root)) = (self.before_root, self.root)
                    && let Some(slot) = store.slot(before)
                {
                    Self::propose(&store, (slot, 0), root, parent, out);
                }
            } else if segments::is_place(cursor) {
                self.segments.iter().for_each(|segments| segments.expand(cursor, parent, out));
            } else {
                let pair = Pair { before: (cursor.0 >> 32) as u32, last: cursor.0 as u32 };
                store
                    .after(pair)
                    .into_iter()
                    .for_each(|after| Self::propose(&store, after, pair, parent, out));
            }
        }
    }

    /// The owner of shared lists reports them.
    fn memory_usage(&self) -> u64 {
        let own = if self.echoes { 0 } else { self.store.memory_usage() };
        (own + self.segments.as_ref().map_or(0, Segments::memory_usage)) as u64
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        let store = if self.echoes { self.store.clone() } else { self.store.copy() };
        Box::new(Self { store, ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<TokenId> {
        text.chars().map(|c| TokenId(c as u32)).collect()
    }

    /// Lists of these tokens, each half as likely as the one before it.
    fn lists(of_rows: &[&str]) -> SuccessorLists {
        let mut lists = SuccessorLists::new();
        for row in of_rows {
            let successor = |(i, token): (usize, TokenId)| Successor {
                token,
                log_probability: -std::f32::consts::LN_2 * (i + 1) as f32,
            };
            lists.push(&tokens(row).into_iter().enumerate().map(successor).collect::<Vec<_>>());
        }
        lists
    }

    fn source(lists_max: u32) -> PredictionsSource {
        let config = EchoConfig { lists_max, ..EchoConfig::default() };
        PredictionsSource::with_echo(config, &EchoStore::new(), None)
    }

    /// The proposals at these cursors: (token, match length, cursor).
    fn expand(source: &mut PredictionsSource, frontier: &[Cursor]) -> Vec<(char, u32, Cursor)> {
        let mut candidates = Candidates::with_limit(100);
        source.expand(frontier, &mut candidates);
        let of = |c: &Candidate| (char::from_u32(c.token.0).unwrap(), c.match_len, c.next);
        candidates.as_slice().iter().map(of).collect()
    }

    fn at_root(source: &mut PredictionsSource) -> Vec<(char, u32, Cursor)> {
        let mut anchors = Vec::new();
        source.anchors(&[], &mut anchors);
        assert!(anchors.is_sorted_by(|a, b| a.match_len >= b.match_len));
        expand(source, &anchors.iter().map(|anchor| anchor.cursor).collect::<Vec<_>>())
    }

    fn draft(found: &[(char, u32, Cursor)]) -> Vec<(char, u32)> {
        found.iter().map(|&(token, match_len, _)| (token, match_len)).collect()
    }

    #[test]
    fn two_tokens_come_before_one() {
        let mut source = source(100);
        source.calibrate(&tokens("abcqbr"), 0, &lists(&["b", "xy", "q", "b", "z"]));
        source.prime(&tokens("abcqbr"));
        source.truncate(5);
        source.prime(&tokens("abcqb"));
        // "qb" was followed by z, "ab" by x and y.
        assert_eq!(draft(&at_root(&mut source)), [('z', 2)]);
        source.prime(&tokens("abcqbab"));
        assert_eq!(draft(&at_root(&mut source)), [('x', 2), ('y', 2)]);
        source.prime(&tokens("abcqbabb"));
        assert_eq!(draft(&at_root(&mut source)), [('z', 1), ('x', 1), ('y', 1)], "no row of \"bb\"");
        source.prime(&tokens("abcqbabbr"));
        assert_eq!(at_root(&mut source), [], "no row of r");
    }

    #[test]
    fn chains_go_on_where_the_text_does_not() {
        let mut source = source(100);
        let mut tree = DraftTree::new(TokenId('b' as u32));
        let x = tree.push(NodeIdx::ROOT, TokenId('x' as u32), 0.5, 0);
        let y = tree.push(x, TokenId('y' as u32), 0.5, 0);
        source.reject(&tree, &[x, y], &lists(&["y", "z"]));
        source.calibrate(&tokens("abcab"), 0, &lists(&["b", "cx"]));
        source.prime(&tokens("abcab"));
        let found = at_root(&mut source);
        assert_eq!(draft(&found), [('c', 2), ('x', 2)]);
        let found = expand(&mut source, &[found[1].2]);
        assert_eq!(draft(&found), [('y', 2)]);
        let found = expand(&mut source, &[found[0].2]);
        assert_eq!(draft(&found), [('z', 2)]);
        assert_eq!(expand(&mut source, &[found[0].2]), []);
    }

    #[test]
    fn runners_up_of_the_row_before_are_children_of_the_root() {
        let mut source = source(100);
        source.calibrate(&tokens("ab"), 0, &lists(&["cbe"]));
        source.prime(&tokens("ab"));
        let found = at_root(&mut source);
        assert_eq!(draft(&found), [('c', 0), ('e', 0)], "b is the root");
        let mut tree = DraftTree::new(TokenId('b' as u32));
        let c = tree.push(NodeIdx::ROOT, TokenId('c' as u32), 0.5, 0);
        source.reject(&tree, &[c], &lists(&["d"]));
        assert_eq!(draft(&expand(&mut source, &[found[0].2])), [('d', 2)], "the chain goes on after \"bc\"");
        source.prime(&tokens("abxa"));
        assert_eq!(draft(&at_root(&mut source)), [('c', 1), ('b', 1), ('e', 1)], "the row of x was not read");
    }

    #[test]
    fn sources_of_a_store_share_its_lists() {
        let store = EchoStore::new();
        let of_store = || PredictionsSource::with_echo(EchoConfig::default(), &store, None);
        let mut one = of_store();
        one.calibrate(&tokens("aa"), 0, &lists(&["b"]));
        one.prime(&tokens("aa"));
        let found = at_root(&mut one);
        assert_eq!(draft(&found), [('b', 1), ('b', 0)]);
        one.truncate(0);
        assert_eq!(at_root(&mut one), [], "no text");
        let mut later = of_store();
        later.prime(&tokens("xa"));
        assert_eq!(draft(&at_root(&mut later)), [('b', 1)], "the list of an earlier text");
        one.release();
        assert_eq!(one.memory_usage(), 0);
        assert_eq!(draft(&at_root(&mut later)), [('b', 1)]);
        later.calibrate(&tokens("xaa"), 1, &lists(&["c"]));
        later.prime(&tokens("xaa"));
        one.prime(&tokens("xa"));
        assert_eq!(draft(&at_root(&mut one)), [('c', 2)]);
        store.clear();
        assert_eq!((at_root(&mut one), store.memory_usage()), (vec![], 0));
    }

    #[test]
    fn memory_stays_within_the_bound() {
        for lists_max in [1, 100, 14_337, 20_000] {
            let config = EchoConfig { lists_max, ..EchoConfig::default() };
            let store = EchoStore::new();
            let mut source = PredictionsSource::with_echo(config, &store, None);
            let mut row = 0u32;
            let mut most = 0;
            for _ in 0..60 {
                let mut tree = DraftTree::new(TokenId(row));
                let mut nodes = Vec::new();
                for _ in 0..1000 {
                    row += 1;
                    nodes.push(tree.push(NodeIdx::ROOT, TokenId(row), 0.5, 0));
                }
                source.reject(&tree, &nodes, &lists(&vec!["abcdefgh"; nodes.len()]));
                most = most.max(source.memory_usage() + store.memory_usage() as u64);
            }
            let bound = PredictionsSource::bytes(config);
            assert!(most <= bound, "{lists_max} lists: {most} of {bound} bytes");
            assert_eq!(store.len(), lists_max as usize);
        }
    }

    /// A source that calibrates: after "ab" and "bx" the target found what the text does not have.
    fn calibrated(reuse: Option<ReuseConfig>) -> PredictionsSource {
        let mut source = PredictionsSource::new(reuse);
        source.calibrate(&tokens("abxab"), 0, &lists(&["", "xc", "y", ""]));
        source.prime(&tokens("abxab"));
        source
    }

    #[test]
    fn lists_without_echo_are_the_sources_own() {
        let mut source = calibrated(None);
        let mut tree = DraftTree::new(TokenId('b' as u32));
        let node = tree.push(NodeIdx::ROOT, TokenId('c' as u32), 0.5, 0);
        source.reject(&tree, &[node], &lists(&["d"]));
        let found = at_root(&mut source);
        assert_eq!(draft(&found), [('x', 2), ('c', 2)]);
        assert_eq!(draft(&expand(&mut source, &[found[0].2])), [('y', 2)]);
        assert_eq!(expand(&mut source, &[found[1].2]), [], "no row of a rejected token");
        let mut fork = source.fork();
        source.truncate(3);
        source.prime(&tokens("abxab"));
        assert_eq!(draft(&at_root(&mut source)), [('x', 2), ('c', 2)], "lists stay with the text");
        source.truncate(0);
        source.prime(&tokens("abxab"));
        assert_eq!(at_root(&mut source), [], "and go with it");
        let mut anchors = Vec::new();
        fork.anchors(&[], &mut anchors);
        assert_eq!(anchors[0].match_len, 2, "a fork has a copy");
        source.release();
        assert_eq!(source.memory_usage(), 0);
    }

    /// Of a rejected draft "xyz" the store finds x and y likely, so the segment drafts after the token that replaced x.
    #[test]
    fn a_segment_that_the_store_finds_likely_drafts_again() {
        for (reuse, expected) in [(None, &[][..]), (Some(ReuseConfig::default()), &[('y', 0), ('x', 0)])] {
            let mut source = calibrated(reuse);
            let mut tree = DraftTree::new(TokenId('b' as u32));
            let mut node = NodeIdx::ROOT;
            for token in tokens("xyz") {
                node = tree.push(node, token, 0.5, 0);
            }
            let new_tokens = tokens("q");
            let outcome = StepOutcome { tree: &tree, accepted: &[], new_tokens: &new_tokens };
            source.observe(&tokens("abxabq"), &outcome);
            assert_eq!(draft(&at_root(&mut source)), expected);
        }
    }
}
