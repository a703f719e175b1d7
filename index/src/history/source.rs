//! The draft source *history* from a folder: follows the committed text through a namespace's log and segments.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use refrain::TokenId;
use refrain::drafting::{
    Anchor, Candidates, Cursor, DraftSource, EvidenceClass, StepOutcome, TargetListener,
};
use refrain::internals::draft::{
    AutomatonOrders, OpeningPlace, Openings, OrderConfig, most_frequent, propose_orders,
};
use refrain_trees::sam::{Match, SuffixAutomaton};

use super::cache::PageCache;
use super::context::read;
use super::namespace::{Namespace, SharedNamespace};
use super::search::{Order, Runs, Search, SegmentOrders};
use super::segment::Segment;
use super::store::{HistoryLog, Shared};

/// Drafts from a namespace of a [`HistoryLog`].
///
/// The log and each segment draft separately; tokens on which they agree share a node of the tree. Where a response begins,
/// the source also proposes the beginnings of the newest ones in the log ([`Openings`]). A damaged segment
/// provides no drafts and no error: [`HistoryLog::stats`] reports it.
///
/// Reads take a shared lock; only changes of the namespace take it exclusively. After a change of the history, the
/// newest tokens of the text are matched again, so matches are exact up to [`Self::REMATCH_LEN`] tokens. Appends of
/// other sessions are visible at once, those of other processes after
/// [`HistoryLog::refresh`]. Drafts then depend on timing; output never does.
#[derive(Debug)]
pub struct HistoryLogSource {
    shared: Arc<Shared>,
    name: Arc<str>,
    config: OrderConfig,
    /// The namespace of this name after `n_changes` changes of the store.
    namespace: Option<SharedNamespace>,
    n_changes: u64,
    /// Number of committed tokens matched so far, and the state of the namespace at that time.
    n_followed: usize,
    n_appends: u64,
    n_moves: u64,
    live: Match,
    /// Per segment.
    chains: Vec<Vec<Order>>,
    tree: Tree,
    /// Number of committed tokens where the response begins, and the openings there.
    begin: usize,
    openings: Openings,
}

/// The nodes of one step's cursors.
#[derive(Default, Debug)]
struct Tree {
    /// Cursors of another step are invalid.
    generation: u16,
    nodes: Vec<Node>,
    /// Concatenated chains of the nodes.
    orders: Vec<Order>,
    chain: Vec<Order>,
    runs: Runs,
}

#[derive(Clone, Copy, Debug)]
enum Node {
    Live(Match),
    Opening(OpeningPlace),
    /// `orders[from..to]`.
    Frozen {
        segment: u32,
        from: u32,
        to: u32,
    },
    /// The same with a token appended. Its chain is computed on the first query.
    Appended {
        segment: u32,
        from: u32,
        to: u32,
        token: TokenId,
    },
}

/// Maximum number of parts that draft at a time; the longest matches come first. Each further part adds the same cost
/// again.
const ANCHORS_MAX: usize = 2;

/// A segment with a match of at least this length counts as used. Shorter matches occur in every segment.
const USE_LEN_MIN: u32 = 4;

impl HistoryLog {
    /// A draft source that reads a namespace. The namespace may be created later.
    ///
    /// Its limits are lower than those of a session's own sources, because each order is read from the disk. The
    /// successors of a single token, at thousands of places, are better predicted by the session's own text.
    pub fn source(&self, namespace: &str) -> HistoryLogSource {
        let config = OrderConfig { match_len_min: 2, n_candidates_max: 12, ..OrderConfig::default() };
        self.source_with_config(namespace, config)
    }

    /// A [`source`](Self::source) with other constants.
    pub fn source_with_config(&self, namespace: &str, config: OrderConfig) -> HistoryLogSource {
        HistoryLogSource::new(Arc::clone(self.shared()), namespace, config)
    }
}

impl HistoryLogSource {
    /// Number of committed tokens that are matched again at a start and after a change of the history.
    pub const REMATCH_LEN: usize = 64;

    fn new(shared: Arc<Shared>, name: &str, config: OrderConfig) -> Self {
        HistoryLogSource {
            shared,
            name: name.into(),
            // The session's own sources propose the most frequent tokens.
            config: OrderConfig { match_len_min: config.match_len_min.max(1), ..config },
            namespace: None,
            n_changes: u64::MAX,
            n_followed: usize::MAX,
            n_appends: u64::MAX,
            n_moves: u64::MAX,
            live: Match::EMPTY,
            chains: Vec::new(),
            tree: Tree::default(),
            begin: usize::MAX,
            openings: Openings::default(),
        }
    }

    /// Looks up the namespace again after a namespace was added or removed.
    fn find_namespace(&mut self) {
        // Read before the lookup: a change in between is detected the next time.
        let n_changes = self.shared.n_changes.load(Ordering::Acquire);
        if n_changes != self.n_changes {
            self.namespace = self.shared.find(&self.name);
            self.n_changes = n_changes;
            self.forget_matches();
        }
    }

    fn forget_matches(&mut self) {
        (self.n_followed, self.n_appends, self.n_moves) = (usize::MAX, u64::MAX, u64::MAX);
        self.live = Match::EMPTY;
        self.chains.clear();
    }

    /// Advances the matches to the end of the committed text.
    fn follow(&mut self, committed: &[TokenId]) {
        self.find_namespace();
        let Some(namespace) = self.namespace.clone() else { return };
        let namespace = read(&namespace);
        let n_new = committed.len().wrapping_sub(self.n_followed);
        let is_moved = namespace.n_moves != self.n_moves || n_new >= Self::REMATCH_LEN;
        let is_appended = is_moved || namespace.n_appends != self.n_appends;
        let newest = |all: bool| {
            &committed[committed.len() - if all { Self::REMATCH_LEN.min(committed.len()) } else { n_new }..]
        };
        self.follow_live(&namespace, newest(is_appended), is_appended);
        self.follow_segments(&namespace, newest(is_moved), is_moved);
        self.n_followed = committed.len();
        (self.n_appends, self.n_moves) = (namespace.n_appends, namespace.n_moves);
    }

    fn follow_live(&mut self, namespace: &Namespace, newest: &[TokenId], anew: bool) {
        if anew {
            self.live = Match::EMPTY;
        }
        let automaton = namespace.automaton();
        for token in newest {
            self.live = automaton.follow(self.live, token.0);
        }
    }

    fn follow_segments(&mut self, namespace: &Namespace, newest: &[TokenId], anew: bool) {
        if anew {
            self.chains.resize_with(namespace.searched().count(), Vec::new);
            self.chains.iter_mut().for_each(Vec::clear);
        }
        if newest.is_empty() {
            return;
        }
        let cache = &mut *self.shared.context.cache();
        for (segment, chain) in namespace.searched().zip(&mut self.chains) {
            let mut search = Search { segment, cache };
            newest.iter().for_each(|&token| search.follow(chain, token));
            if segment.is_faulty() {
                chain.clear();
            }
        }
    }

    /// The matches as the first nodes of a new step.
    fn push_anchors(&mut self, out: &mut Vec<Anchor>) {
        let Some(namespace) = &self.namespace else { return };
        let namespace = read(namespace);
        self.tree.restart();
        let least = self.config.match_len_min;
        if self.live.len() >= least as usize {
            let cursor = self.tree.push(Node::Live(self.live));
            out.push(Anchor { cursor, match_len: self.live.len() as u32 });
        }
        for (i, (chain, segment)) in self.chains.iter().zip(namespace.searched()).enumerate() {
            let Some(longest) = chain.first().filter(|longest| longest.len >= least) else { continue };
            if longest.len >= USE_LEN_MIN {
                segment.set_used();
            }
            let node = self.tree.frozen(i as u32, chain);
            out.push(Anchor { cursor: self.tree.push(node), match_len: longest.len });
        }
        // For equal match lengths, the log comes first, then older segments.
        out.sort_by_key(|anchor| std::cmp::Reverse(anchor.match_len));
        out.truncate(ANCHORS_MAX);
    }

    /// Reads the openings, and adds their begins to the nodes of the step.
    fn push_openings(&mut self, out: &mut Vec<Anchor>) {
        let Some(namespace) = &self.namespace else { return };
        self.openings.set(read(namespace).newest());
        for place in self.openings.begins() {
            out.push(Anchor { cursor: self.tree.push(Node::Opening(place)), match_len: 0 });
        }
    }
}

impl Tree {
    fn restart(&mut self) {
        self.generation = self.generation.wrapping_add(1);
        self.nodes.clear();
        self.orders.clear();
    }

    fn push(&mut self, node: Node) -> Cursor {
        push(&mut self.nodes, self.generation, node)
    }

    /// A node for a chain.
    fn frozen(&mut self, segment: u32, chain: &[Order]) -> Node {
        let from = self.orders.len() as u32;
        self.orders.extend_from_slice(chain);
        Node::Frozen { segment, from, to: self.orders.len() as u32 }
    }

    /// The index and the node of a cursor, if the cursor belongs to this step.
    fn node(&self, cursor: Cursor) -> Option<(usize, Node)> {
        let index = cursor.0 as u32 as usize;
        let is_current = (cursor.0 >> 48) as u16 == self.generation;
        self.nodes.get(index).filter(|_| is_current).map(|&node| (index, node))
    }

    fn expand_live(
        &mut self,
        automaton: &SuffixAutomaton,
        m: Match,
        config: &OrderConfig,
        parent: u32,
        out: &mut Candidates,
    ) {
        let Tree { nodes, generation, .. } = self;
        let mut orders = AutomatonOrders::new(automaton, |next| push(nodes, *generation, Node::Live(next)));
        propose_orders(&mut orders, automaton.renew(m), config, parent, out);
    }

    fn expand_frozen(
        &mut self,
        (segment, cache): (&Segment, &mut PageCache),
        node: usize,
        config: &OrderConfig,
        parent: u32,
        out: &mut Candidates,
    ) {
        self.work_out(segment, cache, node);
        let Tree { nodes, orders, runs, generation, .. } = self;
        let Node::Frozen { segment: number, from, to } = nodes[node] else { return };
        let generation = *generation;
        let cursor = |order: usize, token| {
            let node = Node::Appended { segment: number, from: from + order as u32, to, token };
            push(nodes, generation, node)
        };
        let chain = &orders[from as usize..to as usize];
        if !chain.is_empty() {
            let search = Search { segment, cache };
            propose_orders(&mut SegmentOrders::new(search, chain, runs, cursor), 0, config, parent, out);
        }
    }

    /// Computes the chain of a node, if it is missing.
    fn work_out(&mut self, segment: &Segment, cache: &mut PageCache, node: usize) {
        let Node::Appended { segment: number, from, to, token } = self.nodes[node] else { return };
        let mut chain = std::mem::take(&mut self.chain);
        chain.clear();
        chain.extend_from_slice(&self.orders[from as usize..to as usize]);
        Search { segment, cache }.follow(&mut chain, token);
        self.nodes[node] = self.frozen(number, &chain);
        self.chain = chain;
    }

    fn memory_usage(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>()
            + (self.orders.capacity() + self.chain.capacity()) * size_of::<Order>()
            + self.runs.memory_usage()
    }
}

fn push(nodes: &mut Vec<Node>, generation: u16, node: Node) -> Cursor {
    nodes.push(node);
    Cursor(u64::from(generation) << 48 | (nodes.len() as u64 - 1))
}

impl DraftSource for HistoryLogSource {
    fn name(&self) -> &str {
        "history"
    }

    fn evidence(&self) -> EvidenceClass {
        EvidenceClass::TextMatch
    }

    /// `anchors` catches up. A response follows.
    fn prime(&mut self, committed: &[TokenId]) {
        self.begin = committed.len();
    }

    fn truncate(&mut self, _len: usize) {
        self.forget_matches();
        self.begin = usize::MAX;
    }

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        self.follow(committed);
        self.push_anchors(out);
        if committed.len() == self.begin {
            self.push_openings(out);
        }
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        let Some(namespace) = &self.namespace else { return };
        let namespace = read(namespace);
        if namespace.n_moves != self.n_moves {
            return;
        }
        let mut cache = self.shared.context.cache();
        for (parent, &cursor) in frontier.iter().enumerate() {
            let (config, parent) = (&self.config, parent as u32);
            match self.tree.node(cursor) {
                Some((_, Node::Live(m))) => {
                    self.tree.expand_live(namespace.automaton(), m, config, parent, out);
                }
                Some((node, Node::Frozen { segment, .. } | Node::Appended { segment, .. })) => {
                    let segment = namespace.searched_at(segment as usize);
                    self.tree.expand_frozen((segment, &mut cache), node, config, parent, out);
                }
                Some((_, Node::Opening(place))) => {
                    let places = frontier.iter().filter_map(|&cursor| match self.tree.node(cursor) {
                        Some((_, Node::Opening(place))) => Some(place),
                        _ => None,
                    });
                    if let Some(token) = self.openings.token(place, places) {
                        let next = self.tree.push(Node::Opening(token.next));
                        out.push(token.candidate(parent, next));
                    }
                }
                None => {}
            }
        }
    }

    fn observe(&mut self, committed: &[TokenId], _step: &StepOutcome<'_>) {
        self.follow(committed);
    }

    /// The store reports the shared memory.
    fn memory_usage(&self) -> u64 {
        let chains: usize = self.chains.iter().map(|chain| chain.capacity() * size_of::<Order>()).sum();
        let of_matches = chains + self.chains.capacity() * size_of::<Vec<Order>>();
        (of_matches + self.tree.memory_usage() + self.openings.memory_usage()) as u64
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        Box::new(Self::new(Arc::clone(&self.shared), &self.name, self.config))
    }

    fn target_listener(&mut self) -> Option<&mut dyn TargetListener> {
        Some(self)
    }
}

impl TargetListener for HistoryLogSource {
    fn frequent_tokens(&mut self, n_max: usize) -> Vec<TokenId> {
        self.find_namespace();
        let Some(namespace) = &self.namespace else { return Vec::new() };
        let namespace = read(namespace);
        let frozen = namespace.searched().flat_map(Segment::token_counts);
        most_frequent(namespace.automaton().token_counts().chain(frozen), n_max)
    }
}
