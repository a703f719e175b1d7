//! The tree builder: Lever's greedy search, generalised to all sources at once.
//!
//! ```text
//! frontier ← {root};  T ← {}
//! while T has room:
//!   v ← frontier node with the highest reach r(v);  T ← T + v
//!   ask every source that has a cursor at v;  frontier ← frontier + children,  r(child) = r(v) · p(child)
//!     (as late as the order allows: when r(v) · the most that p can be comes up)
//!   stop when no larger tree can pay
//! keep the prefix of T with the highest gain/cost
//! ```
//!
//! Since p ≤ 1 a child's reach is at most its parent's, so nodes come out in order of falling reach, and the first m of
//! them are the tree of m nodes with the highest gain `1 + Σ r`. Lever stops at the first node that lowers gain/cost
//! (eq. 6); with a staircase of batch lengths that is a local optimum. Evaluating every prefix costs nothing more and
//! finds the best size of all, fills the free rows of a stair, and lets `{root}` compete: that is plain decoding.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::reliability::{Caps, Evidence, ReliabilityTable};
use super::source::{Anchor, Candidates, Cursor, DraftSource, SourceKind, StepOutcome};
use super::{BuilderConfig, CostProfile, DraftTree, NodeIdx, StepLimits, Weighing};
use crate::token::TokenId;

/// Draft sources that a tree is built from at most: [`TreeBuilder::build`] panics with more.
pub const SOURCES_MAX: usize = u8::MAX as usize - 1;

/// Builds the draft tree of each step from all sources, and learns from what became of it.
///
/// Deterministic: equal calls give equal trees; ties go to the node that was found first, then to the lower token.
/// Cost: at most `max_rows` nodes are expanded, each with one call per source. No allocation once warm. Memory: below
/// 1 MB at the default bounds.
#[derive(Debug)]
pub struct TreeBuilder {
    config: BuilderConfig,
    table: ReliabilityTable,
    n_builds: u64,
    /// Nodes found in this build, in order of discovery; node 0 is the root.
    found: Vec<Found>,
    frontier: BinaryHeap<Ranked>,
    /// Cursors of all found nodes; a node's are contiguous and grouped by source.
    cursors: Vec<(u8, Cursor)>,
    /// Claims under all expanded nodes; a node's are contiguous.
    claims: Vec<Claim>,
    /// For each node of the tree: the claims about its children, none where nobody was asked. Shape `[tree.len()]`.
    claims_of: Vec<(u32, u32)>,
    /// Of each source: what its claims can be worth in this build.
    caps: Vec<Caps>,
    /// Whether some source knows what the target has said elsewhere.
    hears_target: bool,
    scratch: Scratch,
}

/// A node that some source proposed.
#[derive(Clone, Copy, Debug)]
struct Found {
    token: TokenId,
    /// Index in the tree of the node's parent, which is there already.
    parent: NodeIdx,
    depth: u32,
    reach: f32,
    source: u8,
    /// The node's part of `cursors`.
    cursors: (u32, u32),
    /// The most that a child's probability can be.
    cap: f32,
}

/// A found node in the frontier: highest reach first, then first found first.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Ranked {
    /// The node's reach; of a node in the tree the most that a child's can be.
    reach: f32,
    found: u32,
    /// Where it is in the tree, if it is, and its children are to be asked for.
    node: Option<NodeIdx>,
}

impl Eq for Ranked {}

impl Ord for Ranked {
    fn cmp(&self, other: &Self) -> Ordering {
        self.reach.total_cmp(&other.reach).then(other.found.cmp(&self.found))
    }
}

impl PartialOrd for Ranked {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A source's claim about a token under an expanded node.
#[derive(Clone, Copy, Debug)]
struct Claim {
    token: TokenId,
    source: u8,
    /// The claim's probability after the reliability table.
    probability: f32,
    evidence: Evidence,
    next: Cursor,
}

/// A token under the node being expanded, and the claims that agree on it.
#[derive(Clone, Copy, Debug)]
struct Child {
    token: TokenId,
    probability: f32,
    source: u8,
    claims: (u32, u32),
}

#[derive(Debug)]
struct Scratch {
    anchors: Vec<Anchor>,
    frontier: Vec<Cursor>,
    candidates: Candidates,
    children: Vec<Child>,
}

impl TreeBuilder {
    /// A builder with the reliability table that ships.
    pub fn new(config: BuilderConfig) -> Self {
        Self::with_table(config, ReliabilityTable::new())
    }

    /// A builder that goes on with what another one has learned.
    pub fn with_table(config: BuilderConfig, table: ReliabilityTable) -> Self {
        let config = BuilderConfig { max_rows: config.max_rows.max(1), ..config };
        TreeBuilder {
            config,
            table,
            n_builds: 0,
            found: Vec::new(),
            frontier: BinaryHeap::new(),
            cursors: Vec::new(),
            claims: Vec::new(),
            claims_of: Vec::new(),
            caps: Vec::new(),
            hears_target: false,
            scratch: Scratch {
                anchors: Vec::new(),
                frontier: Vec::new(),
                candidates: Candidates::with_limit(config.n_candidates_max),
                children: Vec::new(),
            },
        }
    }

    /// What was learned so far.
    pub fn table(&self) -> &ReliabilityTable {
        &self.table
    }

    /// How many draft tokens the newest build has weighed, whether or not they paid.
    pub fn n_considered(&self) -> usize {
        self.found.len().saturating_sub(1)
    }

    /// Goes on with what another builder has learned.
    pub fn set_table(&mut self, table: ReliabilityTable) {
        self.table = table;
    }

    /// Builds the tree of the next step into `tree`: its root is the last of `committed`.
    ///
    /// # Panics
    /// `committed` is empty, or there are more than [`SOURCES_MAX`] sources.
    pub fn build(
        &mut self,
        sources: &mut [Box<dyn DraftSource>],
        committed: &[TokenId],
        limits: StepLimits,
        costs: &CostProfile,
        tree: &mut DraftTree,
    ) {
        assert!(sources.len() <= SOURCES_MAX, "{} sources", sources.len());
        let root = *committed.last().expect("a tree has a root: the last committed token");
        let max_rows = limits.max_rows.clamp(1, self.config.max_rows);
        let max_depth = limits.max_depth.min(self.config.max_depth) as u32;
        self.start(sources, committed, root);
        tree.start(root);
        self.n_builds += 1;
        tree.set_id(self.n_builds);
        self.expand(sources, 0, NodeIdx::ROOT, max_depth);

        let weighs = self.config.weighing == Weighing::Learned;
        let mut best = Best::plain(costs, self.config.margin);
        let mut gain = 1.0;
        while tree.len() < max_rows {
            let Some(&Ranked { reach, .. }) = self.frontier.peek() else { break };
            if weighs && !best.can_improve(gain, reach, tree.len(), max_rows, costs) {
                break;
            }
            let Ranked { found, node, .. } = self.frontier.pop().expect("just seen");
            if let Some(node) = node {
                self.expand(sources, found as usize, node, max_depth);
                continue;
            }
            let Found { token, parent, source, cap, .. } = self.found[found as usize];
            let node = tree.push(parent, token, reach, usize::from(source));
            self.claims_of.push((0, 0));
            gain += reach;
            best.consider(gain, tree.len(), costs);
            self.frontier.push(Ranked { reach: reach * cap, found, node: Some(node) });
        }
        if weighs {
            tree.truncate(best.rows);
        }
    }

    /// Learns from a step, and lets every source learn: `committed` is everything committed so far, the step's tokens
    /// included.
    pub fn observe(
        &mut self,
        sources: &mut [Box<dyn DraftSource>],
        committed: &[TokenId],
        outcome: &StepOutcome<'_>,
    ) {
        if self.config.weighing == Weighing::Learned && outcome.tree.id() == self.n_builds {
            self.learn(outcome);
        }
        for source in sources {
            source.observe(committed, outcome);
        }
    }

    /// Bytes on the heap; the sources are left out.
    pub fn memory_usage(&self) -> usize {
        self.table.memory_usage()
            + self.found.capacity() * size_of::<Found>()
            + self.frontier.capacity() * size_of::<Ranked>()
            + self.cursors.capacity() * size_of::<(u8, Cursor)>()
            + self.claims.capacity() * size_of::<Claim>()
            + self.claims_of.capacity() * size_of::<(u32, u32)>()
            + self.caps.capacity() * size_of::<Caps>()
            + self.scratch.children.capacity() * size_of::<Child>()
            + self.config.n_candidates_max * size_of::<super::Candidate>()
    }

    /// Every claim under a visited node is evidence: the committed token shows if it was right.
    fn learn(&mut self, outcome: &StepOutcome<'_>) {
        let TreeBuilder { table, claims, claims_of, .. } = self;
        for_judged(claims, claims_of, outcome, |evidence, hit| table.update(evidence, hit));
    }

    /// What [`observe`](Self::observe) learns, or would learn, from a step of the newest tree: each claim under a visited
    /// node, and whether the target chose its token. For fitting the table that ships.
    pub fn claims_seen(&self, outcome: &StepOutcome<'_>, sink: impl FnMut(&Evidence, bool)) {
        for_judged(&self.claims, &self.claims_of, outcome, sink);
    }

    /// The root as the only found node, with the cursors of all anchors.
    fn start(&mut self, sources: &mut [Box<dyn DraftSource>], committed: &[TokenId], root: TokenId) {
        self.found.clear();
        self.frontier.clear();
        self.cursors.clear();
        self.claims.clear();
        self.claims_of.clear();
        for (index, source) in sources.iter_mut().enumerate() {
            self.scratch.anchors.clear();
            source.anchors(committed, &mut self.scratch.anchors);
            let anchors = self.scratch.anchors.iter().take(CURSORS_MAX);
            self.cursors.extend(anchors.map(|anchor| (index as u8, anchor.cursor)));
        }
        self.caps.clear();
        self.caps.extend(sources.iter().map(|source| match self.config.weighing {
            Weighing::Learned => self.table.caps(source.kind()),
            Weighing::AsClaimed => Caps::NONE,
        }));
        self.hears_target = sources.iter().any(|source| is_of_target(source.kind()));
        let cursors = (0, self.cursors.len() as u32);
        let parent = NodeIdx::ROOT;
        let root = Found { token: root, parent, depth: 0, reach: 1.0, source: u8::MAX, cursors, cap: 1.0 };
        self.found.push(root);
        self.claims_of.push((0, 0));
    }

    /// Asks the sources for the children of a node that has just entered the tree.
    fn expand(&mut self, sources: &mut [Box<dyn DraftSource>], found: usize, node: NodeIdx, max_depth: u32) {
        let Found { depth, reach, cursors, .. } = self.found[found];
        let first_claim = self.claims.len();
        if depth < max_depth {
            self.ask(sources, cursors, (depth + 1, reach));
        }
        self.claims_of[node.index()] = (first_claim as u32, self.claims.len() as u32);
        self.agree(first_claim);
        for i in 0..self.scratch.children.len() {
            let child = self.scratch.children[i];
            let reach = reach * child.probability;
            if reach < self.config.reach_min {
                continue;
            }
            let first_cursor = self.cursors.len() as u32;
            let claims = &self.claims[child.claims.0 as usize..child.claims.1 as usize];
            let caps = claims.iter().map(|claim| self.caps[usize::from(claim.source)].after(&claim.evidence));
            let cap = caps.fold(0.0, f32::max);
            for of_source in claims.chunk_by(|a, b| a.source == b.source) {
                let cursors = of_source.iter().take(CURSORS_MAX);
                self.cursors.extend(cursors.map(|claim| (claim.source, claim.next)));
            }
            self.frontier.push(Ranked { reach, found: self.found.len() as u32, node: None });
            self.found.push(Found {
                token: child.token,
                parent: node,
                depth: depth + 1,
                reach,
                source: child.source,
                cursors: (first_cursor, self.cursors.len() as u32),
                cap,
            });
        }
    }

    /// Collects what the sources claim at the cursors of a node with this reach, sorted by token and source. What would be below
    /// the least reach is left out: most claims are, and sorting them takes longer than finding them.
    fn ask(&mut self, sources: &mut [Box<dyn DraftSource>], cursors: (u32, u32), (depth, reach): (u32, f32)) {
        let first_claim = self.claims.len();
        let cursors = &self.cursors[cursors.0 as usize..cursors.1 as usize];
        for group in cursors.chunk_by(|a, b| a.0 == b.0) {
            let index = group[0].0;
            let source = &mut sources[usize::from(index)];
            self.scratch.frontier.clear();
            self.scratch.frontier.extend(group.iter().map(|&(_, cursor)| cursor));
            self.scratch.candidates.clear();
            source.expand(&self.scratch.frontier, &mut self.scratch.candidates);
            for candidate in self.scratch.candidates.as_slice() {
                if candidate.token.index() >= self.config.vocab_size {
                    continue;
                }
                let evidence = Evidence {
                    kind: source.kind(),
                    probability: candidate.probability,
                    match_len: candidate.match_len,
                    count: candidate.count,
                    depth,
                    is_agreed: false,
                };
                let probability = match self.config.weighing {
                    Weighing::Learned => self.table.probability(&evidence),
                    Weighing::AsClaimed => evidence.probability.clamp(0.0, 1.0),
                };
                // If others agree with it, a claim of the target may still rise to what it says.
                let most =
                    if is_of_target(evidence.kind) { 1.0_f32.min(5.0 * probability) } else { probability };
                if reach * most >= self.config.reach_min {
                    let (token, next) = (candidate.token, candidate.next);
                    self.claims.push(Claim { token, source: index, probability, evidence, next });
                }
            }
        }
        // Unstable, with a complete key: a stable sort would allocate.
        self.claims[first_claim..].sort_unstable_by(|a, b| {
            let by_token = a.token.cmp(&b.token).then(a.source.cmp(&b.source));
            by_token.then(b.probability.total_cmp(&a.probability)).then(a.next.0.cmp(&b.next.0))
        });
        if self.hears_target && self.config.weighing == Weighing::Learned {
            self.note_agreement(first_claim);
        }
    }

    /// Weighs the claims of calibration and reuse that matches of text agree with anew.
    fn note_agreement(&mut self, first_claim: usize) {
        for group in self.claims[first_claim..].chunk_by_mut(|a, b| a.token == b.token) {
            if group.iter().any(|claim| claim.evidence.kind.matches_text()) {
                for claim in group.iter_mut().filter(|claim| is_of_target(claim.evidence.kind)) {
                    claim.evidence.is_agreed = true;
                    claim.probability = self.table.probability(&claim.evidence);
                }
            }
        }
    }

    /// Merges the claims from `first_claim` on into children, best first.
    ///
    /// Claims for one token come from the same text more often than not, so they are no independent witnesses: the
    /// strongest counts. (Their noisy-or was tried: acceptance with context and history was the same to three digits.)
    fn agree(&mut self, first_claim: usize) {
        let children = &mut self.scratch.children;
        children.clear();
        let mut start = first_claim as u32;
        for group in self.claims[first_claim..].chunk_by(|a, b| a.token == b.token) {
            let end = start + group.len() as u32;
            let strongest = group
                .iter()
                .reduce(|best, claim| if claim.probability > best.probability { claim } else { best });
            let strongest = strongest.expect("a group is not empty");
            children.push(Child {
                token: strongest.token,
                probability: strongest.probability,
                source: strongest.source,
                claims: (start, end),
            });
            start = end;
        }
        children.sort_unstable_by(|a, b| b.probability.total_cmp(&a.probability).then(a.token.cmp(&b.token)));
        share(children, self.hears_target);
        children.truncate(self.config.n_children_max);
    }
}

/// Whether a kind's claims are what the target has said elsewhere.
fn is_of_target(kind: SourceKind) -> bool {
    matches!(kind, SourceKind::Calibration | SourceKind::Reuse)
}

/// Calls `judged` with every claim under the visited nodes, and whether the target chose its token.
fn for_judged(
    claims: &[Claim],
    claims_of: &[(u32, u32)],
    outcome: &StepOutcome<'_>,
    mut judged: impl FnMut(&Evidence, bool),
) {
    let visited = std::iter::once(NodeIdx::ROOT).chain(outcome.accepted.iter().copied());
    for (node, &chosen) in visited.zip(outcome.new_tokens) {
        let Some(&(start, end)) = claims_of.get(node.index()) else { break };
        let claims = &claims[start as usize..end as usize];
        // Sorted by token and source: of a source's claims about one token, the strongest is the first.
        for same in claims.chunk_by(|a, b| (a.token, a.source) == (b.token, b.source)) {
            judged(&same[0].evidence, same[0].token == chosen);
        }
    }
}

/// Scales the children's probabilities where they exceed 1 together: alike, where matches of text claim them. What the
/// target has said elsewhere adds many weak claims to a strong one, which would cut a long copy short token by token; there
/// the odds share the whole, so that what is nearly certain stays so.
fn share(children: &mut [Child], by_odds: bool) {
    let total: f32 = children.iter().map(|child| child.probability).sum();
    if total <= 1.0 {
        return;
    }
    if !by_odds {
        children.iter_mut().for_each(|child| child.probability /= total);
        return;
    }
    let odds = |child: &Child| child.probability / (1.0 - child.probability).max(1e-3);
    let total: f32 = children.iter().map(odds).sum();
    children.iter_mut().for_each(|child| child.probability = child.probability.min(odds(child) / total));
}

/// Cursors of one source at one node at most.
const CURSORS_MAX: usize = 8;

/// The best size of the tree so far.
struct Best {
    rows: usize,
    /// Expected tokens per µs.
    rate: f32,
}

impl Best {
    /// Plain decoding, with the head start that a draft has to beat.
    fn plain(costs: &CostProfile, margin: f32) -> Self {
        Best { rows: 1, rate: (1.0 + margin) / costs.step_us(1) }
    }

    fn consider(&mut self, gain: f32, rows: usize, costs: &CostProfile) {
        let rate = gain / costs.step_us(rows);
        if rate > self.rate {
            *self = Best { rows, rate };
        }
    }

    /// Whether any tree of up to `max_rows` rows could beat the best: no further node is reached more often than `reach`.
    fn can_improve(&self, gain: f32, reach: f32, rows: usize, max_rows: usize, costs: &CostProfile) -> bool {
        (rows + 1..=max_rows).any(|more| {
            let gain_max = gain + reach * (more - rows) as f32;
            gain_max / costs.step_us(more) > self.rate
        })
    }
}
