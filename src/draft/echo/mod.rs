//! The source *echo*: a token tree from the target's own predictions after the same one or two tokens.
//!
//! Every row that the target computes predicts what follows its token. [Calibration](super::CalibrationSource)
//! keeps the predictions of committed positions and follows them through the text, so a chain ends at a
//! successor that the text does not have. This source keeps the predictions of rejected rows too, and keys
//! them by the two tokens that they follow, then by the last one (Token Recycling, arXiv 2408.08696, keys
//! them by the last token):
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
//! three quarters of the list. In replays of traces, decay after two tokens lowered the tokens per step. An
//! [`EchoStore`] has the lists; sessions of a namespace share it.

mod store;

use serde::{Deserialize, Serialize};

use super::evidence::EvidenceClass;
use super::source::{Anchor, Candidate, Candidates, Cursor, DraftSource, TargetListener};
use super::successors::{LIST_BYTES, Successor, SuccessorLists};
use refrain_trees::TokenId;
use refrain_trees::VERIFY_ROWS_MAX;
use refrain_trees::{DraftTree, NodeIdx};
use store::Store;

pub use store::{EchoList, EchoStore};

/// What the source keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct EchoConfig {
    /// Maximum rejected rows read per step, the likeliest first, 0..=[`VERIFY_ROWS_MAX`](crate::drafting::VERIFY_ROWS_MAX). They are
    /// projected together. 0: visited rows only.
    pub rejected_rows: u32,
    /// Maximum lists of successors, 1..=[`LISTS_MAX`](Self::LISTS_MAX). About 90 bytes each. Sessions that share their
    /// lists have the largest of their values together.
    pub lists_max: u32,
}

impl Default for EchoConfig {
    fn default() -> Self {
        // A row in the batch costs far more than its projection onto the shortlist.
        EchoConfig { rejected_rows: VERIFY_ROWS_MAX as u32, lists_max: 1 << 16 }
    }
}

impl EchoConfig {
    /// Maximum of [`lists_max`](Self::lists_max): more than a context and its drafts have.
    pub const LISTS_MAX: u32 = 1 << 22;

    /// What [`Calibration::Auto`](crate::drafting::Calibration::Auto) chooses: fewer lists, 3.3 MB at most, because each session's memory counts
    /// against the budget of a streamed model.
    pub const AUTO: EchoConfig = EchoConfig { rejected_rows: VERIFY_ROWS_MAX as u32, lists_max: 1 << 14 };
}

/// No token before.
const NONE: u32 = u32::MAX;

/// The last two tokens of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pair {
    before: u32,
    last: u32,
}

impl Pair {
    /// The last two of these tokens.
    fn ending(tokens: &[TokenId]) -> Option<Self> {
        let (&last, before) = tokens.split_last()?;
        Some(Self { before: before.last().map_or(NONE, |token| token.0), last: last.0 })
    }

    /// The pair after one more token.
    fn then(self, token: TokenId) -> Self {
        Self { before: self.last, last: token.0 }
    }

    /// The last token alone. As a key it is distinct from every pair: no token is `NONE`.
    fn single(self) -> Self {
        Self { before: NONE, last: self.last }
    }

    fn key(self) -> u64 {
        u64::from(self.before) << 32 | u64::from(self.last)
    }
}

/// Drafts from the target's newest successors after the last two tokens, or after the last one.
///
/// Holds 40 bytes for each row of a prefill until the text is read. A fork shares the lists; neither a reset nor a
/// release drops them.
#[derive(Clone, Debug)]
pub struct EchoSource {
    store: EchoStore,
    /// Lists of positions of the committed text from `first` on, until the text is read.
    unread: SuccessorLists,
    first: usize,
    /// The last two committed tokens; `None` before the first.
    root: Option<Pair>,
    /// The key of the row before the root, if this row has been read.
    before_root: Option<Pair>,
}

/// The cursor of the runners-up of the row before the root. It is no pair: no token is `NONE`.
const RUNNERS_UP: Cursor = Cursor(u64::MAX);

impl EchoSource {
    /// A source with the lists of `store`; configuration values beyond the bounds are clamped.
    pub fn new(config: EchoConfig, store: &EchoStore) -> Self {
        store.lock().reserve(config.lists_max);
        let (store, unread) = (store.clone(), SuccessorLists::new());
        Self { store, unread, first: 0, root: None, before_root: None }
    }

    /// Upper bound of a source's bytes in a context of `context_len` tokens, with those of its store.
    pub(crate) fn bytes(config: EchoConfig, context_len: usize) -> u64 {
        Store::bytes(config.lists_max) + (2 * LIST_BYTES * context_len) as u64
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
        let mut store = self.store.lock();
        for at in 0..self.unread.len() {
            let end = self.first + at + 1;
            let Some(pair) = committed.get(..end).and_then(Pair::ending) else { break };
            Self::file(&mut store, pair, &self.unread, at);
        }
        drop(store);
        let has_row_before = self.first + self.unread.len() == committed.len().saturating_sub(1);
        self.root = Pair::ending(committed);
        self.before_root = committed.split_last().and_then(|(_, before)| Pair::ending(before));
        self.before_root = self.before_root.filter(|_| has_row_before && !self.unread.is_empty());
        self.unread.clear();
    }

    /// Pushes the successors of a key as children of a path that ends with `path`, of which `match_len` tokens agree.
    fn propose(store: &Store, key: Pair, path: Pair, match_len: u32, parent: u32, out: &mut Candidates) {
        let Some(slot) = store.slot(key) else { return };
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

impl TargetListener for EchoSource {
    fn calibrate(&mut self, first: usize, lists: &SuccessorLists) {
        if self.unread.is_empty() || first < self.first {
            self.unread.clear();
            self.first = first;
        }
        self.unread.write(first - self.first, lists);
    }

    fn reject(&mut self, tree: &DraftTree, nodes: &[NodeIdx], lists: &SuccessorLists) {
        let mut store = self.store.lock();
        for (at, &node) in nodes.iter().enumerate() {
            let Some(parent) = tree.parent(node) else { continue };
            let pair = Pair { before: tree.token(parent).0, last: tree.token(node).0 };
            Self::file(&mut store, pair, lists, at);
        }
    }
}

impl DraftSource for EchoSource {
    fn name(&self) -> &str {
        "echo"
    }

    fn evidence(&self) -> EvidenceClass {
        EvidenceClass::TargetRows
    }

    fn target_listener(&mut self) -> Option<&mut dyn TargetListener> {
        Some(self)
    }

    fn prime(&mut self, committed: &[TokenId]) {
        self.read(committed);
    }

    fn release(&mut self) {
        self.truncate(0);
        self.unread = SuccessorLists::new();
    }

    /// The lists stay: they are predictions after one or two tokens, wherever these occur.
    fn truncate(&mut self, len: usize) {
        self.unread.truncate(len.saturating_sub(self.first));
        (self.root, self.before_root) = (None, None);
    }

    fn anchors(&mut self, _committed: &[TokenId], out: &mut Vec<Anchor>) {
        let Some(root) = self.root else { return };
        let store = self.store.lock();
        let by_pair = root.before != NONE && store.slot(root).is_some();
        if by_pair || store.slot(root.single()).is_some() {
            out.push(Anchor { cursor: Cursor(root.key()), match_len: 1 + u32::from(by_pair) });
        }
        if self.before_root.is_some() {
            out.push(Anchor { cursor: RUNNERS_UP, match_len: 0 });
        }
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        let store = self.store.lock();
        for (parent, &cursor) in (0..).zip(frontier) {
            if cursor == RUNNERS_UP {
                if let (Some(before), Some(root)) = (self.before_root, self.root) {
                    Self::propose(&store, before, root, 0, parent, out);
                }
                continue;
            }
            let pair = Pair { before: (cursor.0 >> 32) as u32, last: cursor.0 as u32 };
            if pair.before != NONE && store.slot(pair).is_some() {
                Self::propose(&store, pair, pair, 2, parent, out);
            } else {
                Self::propose(&store, pair.single(), pair, 1, parent, out);
            }
        }
    }

    /// The owner of the store reports the lists.
    fn memory_usage(&self) -> u64 {
        self.unread.memory_usage() as u64
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        Box::new(self.clone())
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

    fn source(lists_max: u32) -> EchoSource {
        EchoSource::new(EchoConfig { lists_max, ..EchoConfig::default() }, &EchoStore::new())
    }

    /// The proposals at these cursors: (token, match length, cursor).
    fn expand(source: &mut EchoSource, frontier: &[Cursor]) -> Vec<(char, u32, Cursor)> {
        let mut candidates = Candidates::with_limit(100);
        source.expand(frontier, &mut candidates);
        let of = |c: &Candidate| (char::from_u32(c.token.0).unwrap(), c.match_len, c.next);
        candidates.as_slice().iter().map(of).collect()
    }

    fn at_root(source: &mut EchoSource) -> Vec<(char, u32, Cursor)> {
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
        source.calibrate(0, &lists(&["b", "xy", "q", "b", "z"]));
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
        source.calibrate(0, &lists(&["b", "cx"]));
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
        source.calibrate(0, &lists(&["cbe"]));
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
        let of_store = || EchoSource::new(EchoConfig::default(), &store);
        let mut one = of_store();
        one.calibrate(0, &lists(&["b"]));
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
        later.calibrate(1, &lists(&["c"]));
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
            let mut source = EchoSource::new(config, &store);
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
            let bound = EchoSource::bytes(config, 0);
            assert!(most <= bound, "{lists_max} lists: {most} of {bound} bytes");
            assert_eq!(store.len(), lists_max as usize);
        }
    }
}
