//! Drafts from a grammar: the tokens that it forces, and its branches where they are few.
//!
//! A cursor is a node of the tree below the newest committed token. A node stands for a token of this source or of another: the
//! source follows the other sources' tokens ([`ComputingSource::advance`]), so forced text also follows text that another source
//! has drafted. The parser moves to a node when the node is expanded, over the common start of the paths.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use refrain::TokenId;
use refrain::drafting::{
    Anchor, Candidate, Candidates, Computed, ComputingSource, Cursor, DraftSource, EvidenceClass, StepOutcome,
};

use crate::alternatives::{Continuation, continuation};
use crate::compiled::{Compiled, OutputStart};
use crate::follower::Follower;
use crate::prices::Prices;

/// Maximum nodes of a step: a tree has up to 64 rows, and each row's node has up to 24 children.
const NODES_MAX: usize = 4096;

/// The name of the source: its reliability is learnt under it.
const NAME: &str = "grammar";

/// Drafts of one generation from its grammar; made by [`Grammar::constrain`](crate::Grammar::constrain).
///
/// Forced tokens are claimed with probability 1. Branches are claimed with the share that was taken before where the same
/// branches were open, and with equal shares at first.
///
/// Memory: the parser (at most about 100 MB of lexer states, usually below 1 MB) and the counts of 1,024 branch points.
pub struct GrammarDrafts {
    grammar: Arc<Compiled>,
    start: Arc<OutputStart>,
    follower: Follower,
    prices: Prices,
    nodes: Vec<Node>,
    /// The output, then the path to the node of the newest expansion.
    text: Vec<TokenId>,
    n_output: usize,
    /// The parser has failed. The mask reports the failure if plain decoding meets it.
    is_off: bool,
}

/// A node of the step's tree; node 0 is the newest committed token.
struct Node {
    parent: u32,
    token: TokenId,
    /// The tokens that are known to follow: the rest of a forced text or of a branch.
    rest: Arc<[TokenId]>,
    /// Start of `rest` in itself.
    n_done: usize,
    /// The branches below this node, once it was expanded.
    branches: Vec<TokenId>,
}

impl GrammarDrafts {
    pub(crate) fn new(grammar: Arc<Compiled>, start: Arc<OutputStart>) -> Self {
        let follower = Follower::new(Arc::clone(&grammar));
        let (prices, nodes, text) = (Prices::default(), Vec::new(), Vec::new());
        Self { grammar, start, follower, prices, nodes, text, n_output: 0, is_off: false }
    }

    /// Adds a node; `None` if there are too many.
    fn add(&mut self, parent: u32, token: TokenId, rest: Arc<[TokenId]>, n_done: usize) -> Option<Cursor> {
        let fits = self.nodes.len() < NODES_MAX;
        fits.then(|| {
            self.nodes.push(Node { parent, token, rest, n_done, branches: Vec::new() });
            Cursor(self.nodes.len() as u64 - 1)
        })
    }

    /// Pushes the candidates below a node.
    fn expand_node(&mut self, at: u32, parent: u32, out: &mut Candidates) {
        let Some(node) = self.nodes.get(at as usize) else { return };
        if let Some(&token) = node.rest.get(node.n_done) {
            let (rest, n_done) = (Arc::clone(&node.rest), node.n_done + 1);
            self.push(at, parent, (token, 1.0), (rest, n_done), out);
            return;
        }
        match self.continuation(at) {
            None | Some(Continuation::Open) => {}
            Some(Continuation::Forced(tokens)) => {
                let first = tokens[0];
                self.push(at, parent, (first, 1.0), (tokens.into(), 1), out);
            }
            Some(Continuation::Branches(branches)) => {
                let firsts: Vec<TokenId> = branches.iter().map(|branch| branch[0]).collect();
                let mut priced: Vec<_> = self.prices.of(&firsts).into_iter().zip(branches).collect();
                // Stable: equal prices keep the order of the bytes.
                priced.sort_by(|(a, _), (b, _)| b.total_cmp(a));
                for (price, branch) in priced {
                    let first = branch[0];
                    self.push(at, parent, (first, price), (branch.into(), 1), out);
                }
                self.nodes[at as usize].branches = firsts;
            }
        }
    }

    /// Pushes one candidate, with a node for it.
    fn push(
        &mut self,
        at: u32,
        parent: u32,
        (token, probability): (TokenId, f32),
        (rest, n_done): (Arc<[TokenId]>, usize),
        out: &mut Candidates,
    ) {
        if out.is_full() {
            return;
        }
        let Some(next) = self.add(at, token, rest, n_done) else { return };
        // The match length keeps the records of forced tokens and of branches apart.
        let match_len = if probability == 1.0 { 32 } else { 0 };
        out.push(Candidate { parent, token, probability, match_len, count: 1, next });
    }

    /// What the grammar says after a node; `None` if its path is not allowed, the constrained text has not begun, or the parser
    /// has failed.
    fn continuation(&mut self, at: u32) -> Option<Continuation> {
        if self.is_off || !self.move_to(at) {
            return None;
        }
        let parser = self.follower.parser()?;
        match continuation(parser, &self.grammar.vocabulary) {
            Ok(continuation) => Some(continuation),
            Err(_) => {
                self.is_off = true;
                None
            }
        }
    }

    /// Moves the parser to a node; `false` if the grammar does not allow the path.
    fn move_to(&mut self, at: u32) -> bool {
        self.text.truncate(self.n_output);
        let mut node = at;
        while node != 0 {
            let Node { parent, token, .. } = self.nodes[node as usize];
            self.text.push(token);
            node = parent;
        }
        self.text[self.n_output..].reverse();
        self.follower.follow(&self.text).is_ok()
    }

    /// The node of a token below another node.
    fn child(&self, parent: u32, token: TokenId) -> Option<u32> {
        let below = (0..).zip(&self.nodes).skip(parent as usize + 1);
        below.filter(|(_, node)| node.parent == parent && node.token == token).map(|(at, _)| at).next()
    }
}

impl DraftSource for GrammarDrafts {
    fn name(&self) -> &str {
        NAME
    }

    fn evidence(&self) -> EvidenceClass {
        EvidenceClass::Plain
    }

    fn computing(&mut self) -> Option<&mut dyn ComputingSource> {
        Some(self)
    }

    fn truncate(&mut self, _len: usize) {
        self.nodes.clear();
        self.text.clear();
        self.n_output = 0;
    }

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        self.truncate(0);
        let start = self.start.of(committed.len());
        let Some(output) = committed.get(start..).filter(|_| !self.is_off) else { return };
        self.text.extend_from_slice(output);
        self.n_output = output.len();
        let root = self.add(0, TokenId(0), Arc::from([]), 0).expect("room for the root");
        out.push(Anchor { cursor: root, match_len: 1 });
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        for (parent, cursor) in (0..).zip(frontier) {
            self.expand_node(cursor.0 as u32, parent, out);
        }
    }

    fn observe(&mut self, _committed: &[TokenId], step: &StepOutcome<'_>) {
        let mut at = (!self.nodes.is_empty()).then_some(0);
        for &token in step.new_tokens {
            let Some(node) = at else { break };
            let branches = std::mem::take(&mut self.nodes[node as usize].branches);
            if branches.len() > 1 {
                self.prices.count(&branches, token);
            }
            at = self.child(node, token);
        }
    }

    fn memory_usage(&self) -> u64 {
        (self.nodes.capacity() * size_of::<Node>()
            + self.text.capacity() * size_of::<TokenId>()
            + self.prices.memory_usage()) as u64
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        let mut fork = Self::new(Arc::clone(&self.grammar), Arc::clone(&self.start));
        fork.prices = self.prices.clone();
        Box::new(fork)
    }
}

impl ComputingSource for GrammarDrafts {
    fn advance(&mut self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        let node = self.nodes.get(cursor.0 as usize)?;
        // A forced token excludes the others.
        let is_excluded = node.n_done < node.rest.len();
        if is_excluded { None } else { self.add(cursor.0 as u32, token, Arc::from([]), 0) }
    }

    fn excludes(&mut self, cursor: Cursor, token: TokenId) -> bool {
        let at = cursor.0 as u32;
        let Some(node) = self.nodes.get(at as usize) else { return false };
        if let Some(&forced) = node.rest.get(node.n_done) {
            return forced != token;
        }
        if self.is_off || !self.move_to(at) {
            return false;
        }
        let allowed = self.follower.allows(token);
        self.is_off = allowed.is_err();
        allowed.is_ok_and(|is_allowed| !is_allowed)
    }

    fn watch(&mut self, _cancel: &Arc<AtomicBool>) {}

    fn computed(&self) -> Computed {
        Computed {
            off: self.is_off.then(|| "the grammar is too complex to draft from".to_owned()),
            ..Computed::default()
        }
    }
}

impl fmt::Debug for GrammarDrafts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarDrafts").field("n_nodes", &self.nodes.len()).finish_non_exhaustive()
    }
}
