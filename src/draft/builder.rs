//! The tree builder: Lever's greedy search, generalised to all sources at once.
//!
//! ```text
//! frontier ← {root};  T ← {}
//! while T has room:
//!   v ← frontier node with the highest reach r(v);  T ← T + v
//!   ask every source that has a cursor at v;  frontier ← frontier + children,  r(child) = r(v) · p(child)
//!     (as late as the order allows: when r(v) · the most that p can be comes up)
//!   ask a source that computes only where that pays, and for several frontier nodes at once where that is cheaper
//!   stop when no larger tree can pay
//! keep the prefix of T with the highest gain/cost
//! ```
//!
//! Since p ≤ 1 a child's reach is at most its parent's, so nodes come out in order of falling reach, and the first m of
//! them are the tree of m nodes with the highest gain `1 + Σ r`. Lever stops at the first node that lowers gain/cost
//! (eq. 6); with a staircase of batch lengths that is a local optimum. Evaluating every prefix costs nothing more and
//! finds the best size of all, fills the free rows of a stair, and lets `{root}` compete: that is plain decoding.
//!
//! Sources that look up are asked at every node. One that computes ([`DraftSource::expansion_us`]: a draft model) is asked by
//! eq. 6 itself: a pass of `t` µs at a node v, of whose children the other sources know a share of the probability already, is
//! expected to gain `r(v) · (1 − known) · p̂`, with p̂ how often its likeliest claim comes true, and is made if that beats
//! gain/cost. Nodes that wait in the frontier join the pass while they make its gain per µs larger: so passes are serial while
//! one node stands out, and grouped when several good ones wait. What passes take enters the cost of every size alike.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::reliability::{Agreement, Caps, Evidence, ReliabilityTable};
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
    /// Whether some source is a draft model.
    hears_model: bool,
    growth: Growth,
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
    /// Frontier nodes that may join a pass, by reach.
    waiting: Vec<(Ranked, Cursor)>,
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
            hears_model: false,
            growth: Growth::default(),
            scratch: Scratch {
                anchors: Vec::new(),
                frontier: Vec::new(),
                candidates: Candidates::with_limit(config.n_candidates_max),
                children: Vec::new(),
                waiting: Vec::new(),
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
        self.growth.start(costs, self.config.margin, max_rows);
        self.expand(sources, 0, NodeIdx::ROOT, max_depth, costs);

        let weighs = self.config.weighing == Weighing::Learned;
        while tree.len() < max_rows {
            let Some(&Ranked { reach, .. }) = self.frontier.peek() else { break };
            if weighs && !self.growth.can_improve(reach, costs) {
                break;
            }
            let Ranked { found, node, .. } = self.frontier.pop().expect("just seen");
            if let Some(node) = node {
                self.expand(sources, found as usize, node, max_depth, costs);
                continue;
            }
            let Found { token, parent, source, cap, .. } = self.found[found as usize];
            let node = tree.push(parent, token, reach, usize::from(source));
            self.claims_of.push((0, 0));
            self.growth.push(reach, costs);
            self.frontier.push(Ranked { reach: reach * cap, found, node: Some(node) });
        }
        if weighs {
            tree.truncate(self.growth.best_rows);
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
            self.age(sources);
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
            + self.growth.gains.capacity() * size_of::<f32>()
            + self.scratch.children.capacity() * size_of::<Child>()
            + self.scratch.waiting.capacity() * size_of::<(Ranked, Cursor)>()
            + self.config.n_candidates_max * size_of::<super::Candidate>()
    }

    /// Every claim under a visited node is evidence: the committed token shows if it was right.
    fn learn(&mut self, outcome: &StepOutcome<'_>) {
        let TreeBuilder { table, claims, claims_of, .. } = self;
        for_judged(claims, claims_of, outcome, |evidence, hit| table.update(evidence, hit));
        for_visited(claims, claims_of, outcome, |claims, chosen| {
            let of_model = claims.iter().filter(|claim| claim.evidence.kind == SourceKind::DraftModel);
            let first = of_model.reduce(|first, claim| {
                if claim.evidence.probability > first.evidence.probability { claim } else { first }
            });
            if let Some(first) = first {
                table.update_first(first.evidence.kind, first.token == chosen);
            }
        });
    }

    /// What is known of kinds that compute ages where none of them was asked.
    fn age(&mut self, sources: &[Box<dyn DraftSource>]) {
        let kind = SourceKind::DraftModel;
        let was_asked = self.claims.iter().any(|claim| claim.evidence.kind == kind);
        if !was_asked && sources.iter().any(|source| source.kind() == kind) {
            self.table.age_first(kind);
        }
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
        self.hears_model = sources.iter().any(|source| is_of_model(source.kind()));
        let cursors = (0, self.cursors.len() as u32);
        let parent = NodeIdx::ROOT;
        let root = Found { token: root, parent, depth: 0, reach: 1.0, source: u8::MAX, cursors, cap: 1.0 };
        self.found.push(root);
        self.claims_of.push((0, 0));
    }

    /// Asks the sources for the children of a node that has just entered the tree.
    fn expand(
        &mut self,
        sources: &mut [Box<dyn DraftSource>],
        found: usize,
        node: NodeIdx,
        max_depth: u32,
        costs: &CostProfile,
    ) {
        let Found { depth, reach, cursors, .. } = self.found[found];
        let first_claim = self.claims.len();
        let mut waits = false;
        if depth < max_depth {
            waits = self.ask(sources, cursors, (depth + 1, reach));
        }
        self.agree(first_claim);
        if waits && self.ask_computing(sources, found, max_depth, costs) {
            self.agree(first_claim);
        }
        self.claims_of[node.index()] = (first_claim as u32, self.claims.len() as u32);
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
            let cap = if self.hears_model && self.advance(sources, cursors, child) { 1.0 } else { cap };
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

    /// Lets the sources that stand at a node (its cursors) and do not claim this child go on to it; `true` where one does.
    fn advance(&mut self, sources: &mut [Box<dyn DraftSource>], cursors: (u32, u32), child: Child) -> bool {
        let claims = &self.claims[child.claims.0 as usize..child.claims.1 as usize];
        let mut goes_on = false;
        for at in cursors.0..cursors.1 {
            let (index, cursor) = self.cursors[at as usize];
            if claims.iter().any(|claim| claim.source == index) {
                continue;
            }
            if let Some(next) = sources[usize::from(index)].advance(cursor, child.token) {
                self.cursors.push((index, next));
                goes_on = true;
            }
        }
        goes_on
    }

    /// Collects what the sources claim at the cursors of a node with this reach; `true` where one that computes was left out.
    fn ask(&mut self, sources: &mut [Box<dyn DraftSource>], cursors: (u32, u32), below: (u32, f32)) -> bool {
        let weighs = self.config.weighing == Weighing::Learned;
        let mut waits = false;
        let mut start = cursors.0;
        while start < cursors.1 {
            let index = self.cursors[start as usize].0;
            let group = self.cursors[start as usize..cursors.1 as usize].iter();
            let n = group.take_while(|cursor| cursor.0 == index).count() as u32;
            self.scratch.frontier.clear();
            let group = &self.cursors[start as usize..(start + n) as usize];
            self.scratch.frontier.extend(group.iter().map(|&(_, cursor)| cursor));
            let source = &mut sources[usize::from(index)];
            if weighs && source.expansion_us(&self.scratch.frontier) > 0.0 {
                waits = true;
            } else {
                self.claim(index, source.as_mut(), below);
            }
            start += n;
        }
        waits
    }

    /// Takes down what a source claims at the cursors of `scratch.frontier`, below a node with this reach. What would be below the
    /// least reach is left out: most claims are, and sorting them takes longer than finding them.
    fn claim(&mut self, index: u8, source: &mut dyn DraftSource, (depth, reach): (u32, f32)) {
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
                agreement: Agreement::Unknown,
            };
            let probability = match self.config.weighing {
                Weighing::Learned => self.table.probability(&evidence),
                Weighing::AsClaimed => evidence.probability.clamp(0.0, 1.0),
            };
            let rise = if is_of_target(evidence.kind) { AGREED_RISE_MAX } else { 1.0 };
            let most = (rise * probability).min(1.0);
            if reach * most >= self.config.reach_min {
                let (token, next) = (candidate.token, candidate.next);
                self.claims.push(Claim { token, source: index, probability, evidence, next });
            }
        }
    }

    /// Asks the sources that compute at a node, where that pays; `scratch.children` is what the others know of it. `true` where
    /// one was asked.
    fn ask_computing(
        &mut self,
        sources: &mut [Box<dyn DraftSource>],
        found: usize,
        max_depth: u32,
        costs: &CostProfile,
    ) -> bool {
        let Found { depth, reach, cursors, .. } = self.found[found];
        // Best first. Many weak claims may add up to 1 and still leave open which of them is right.
        let known = self.scratch.children.first().map_or(0.0, |child| child.probability);
        let mut asked = false;
        for at in cursors.0..cursors.1 {
            let (index, cursor) = self.cursors[at as usize];
            let source = &mut sources[usize::from(index)];
            let alone_us = source.expansion_us(&[cursor]);
            if alone_us <= 0.0 {
                continue; // it looks up, and has been asked
            }
            let first_hit = self.table.first_hit(source.kind());
            let alone = reach * (1.0 - known) * first_hit;
            self.scratch.frontier.clear();
            self.scratch.frontier.push(cursor);
            self.find_waiting(index, max_depth);
            let (gain, us) = self.join_waiting(source.as_ref(), (alone, alone_us), first_hit);
            if self.growth.pays(gain, us, costs) {
                source.prepare(&self.scratch.frontier);
                self.growth.spend(us, costs);
                self.scratch.frontier.truncate(1);
                self.claim(index, source.as_mut(), (depth + 1, reach));
                asked = true;
            }
        }
        asked
    }

    /// Lists the frontier nodes that wait for this source alone, highest reach first.
    fn find_waiting(&mut self, index: u8, max_depth: u32) {
        let Self { found, frontier, cursors, scratch, .. } = self;
        scratch.waiting.clear();
        for &ranked in frontier.iter() {
            let Found { depth, reach, cursors: (start, end), .. } = found[ranked.found as usize];
            // Where others go on too, they are asked first.
            if let [(of, cursor)] = cursors[start as usize..end as usize]
                && of == index
                && depth < max_depth
            {
                scratch.waiting.push((Ranked { reach, ..ranked }, cursor));
            }
        }
        scratch.waiting.sort_unstable_by_key(|waiting| std::cmp::Reverse(waiting.0));
        scratch.waiting.truncate(GROUP_MAX - 1);
    }

    /// Adds waiting nodes to the pass in `scratch.frontier` while they make its gain per µs larger, and returns its gain and µs.
    fn join_waiting(
        &mut self,
        source: &dyn DraftSource,
        (mut gain, mut us): (f32, f32),
        first_hit: f32,
    ) -> (f32, f32) {
        let Scratch { frontier, waiting, .. } = &mut self.scratch;
        for &(Ranked { reach, .. }, cursor) in waiting.iter() {
            frontier.push(cursor);
            let (more_gain, more_us) = (gain + reach * first_hit, source.expansion_us(frontier));
            if more_us <= us {
                continue; // it is computed already, and joins for nothing
            }
            if more_gain / more_us < gain / us {
                frontier.pop();
                break;
            }
            (gain, us) = (more_gain, more_us);
        }
        (gain, us)
    }

    /// Weighs the claims about which others have something to say anew; they are sorted by token.
    fn note_agreement(&mut self, first_claim: usize) {
        let claims = &mut self.claims[first_claim..];
        let was_asked = claims.iter().any(|claim| is_of_model(claim.evidence.kind));
        for group in claims.chunk_by_mut(|a, b| a.token == b.token) {
            let of_text = group.iter().filter(|claim| claim.evidence.kind.matches_text());
            let text = of_text.map(|claim| claim.evidence.match_len).max();
            let mut model = None;
            for claim in group.iter_mut().filter(|claim| is_of_model(claim.evidence.kind)) {
                claim.evidence.agreement = if text.is_some() { Agreement::Text } else { Agreement::Unknown };
                claim.evidence.match_len = text.unwrap_or(0);
                claim.probability = self.table.probability(&claim.evidence);
                model = Some(claim.probability);
            }
            for claim in group.iter_mut().filter(|claim| !is_of_model(claim.evidence.kind)) {
                let before = claim.evidence.agreement;
                claim.evidence.agreement = match (model, text) {
                    (Some(_), _) => Agreement::Model,
                    (None, _) if was_asked => Agreement::NotModel,
                    (None, Some(_)) if is_of_target(claim.evidence.kind) => Agreement::Text,
                    (None, _) => Agreement::Unknown,
                };
                if let Some(probability) = model {
                    // The model's claim, which knows of the match, speaks for both.
                    claim.probability = probability;
                } else if claim.evidence.agreement != before {
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
        // Unstable, with a complete key: a stable sort would allocate.
        self.claims[first_claim..].sort_unstable_by(|a, b| {
            let by_token = a.token.cmp(&b.token).then(a.source.cmp(&b.source));
            by_token.then(b.probability.total_cmp(&a.probability)).then(a.next.0.cmp(&b.next.0))
        });
        if (self.hears_target || self.hears_model) && self.config.weighing == Weighing::Learned {
            self.note_agreement(first_claim);
        }
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
        share(children, self.hears_target || self.hears_model);
        children.truncate(self.config.n_children_max);
    }
}

/// Whether a kind's claims are what the target has said elsewhere.
fn is_of_target(kind: SourceKind) -> bool {
    matches!(kind, SourceKind::Calibration | SourceKind::Reuse)
}

/// Whether a kind's claims are a smaller model's.
fn is_of_model(kind: SourceKind) -> bool {
    kind == SourceKind::DraftModel
}

/// Calls `judged` with every claim under the visited nodes, and whether the target chose its token.
fn for_judged(
    claims: &[Claim],
    claims_of: &[(u32, u32)],
    outcome: &StepOutcome<'_>,
    mut judged: impl FnMut(&Evidence, bool),
) {
    for_visited(claims, claims_of, outcome, |claims, chosen| {
        // Sorted by token and source: of a source's claims about one token, the strongest is the first.
        for same in claims.chunk_by(|a, b| (a.token, a.source) == (b.token, b.source)) {
            judged(&same[0].evidence, same[0].token == chosen);
        }
    });
}

/// Calls `visit` with the claims under each visited node, and the token that the target chose there.
fn for_visited(
    claims: &[Claim],
    claims_of: &[(u32, u32)],
    outcome: &StepOutcome<'_>,
    mut visit: impl FnMut(&[Claim], TokenId),
) {
    let visited = std::iter::once(NodeIdx::ROOT).chain(outcome.accepted.iter().copied());
    for (node, &chosen) in visited.zip(outcome.new_tokens) {
        let Some(&(start, end)) = claims_of.get(node.index()) else { break };
        visit(&claims[start as usize..end as usize], chosen);
    }
}

/// Scales the children's probabilities where they exceed 1 together: alike, where matches of text claim them. What the
/// target has said elsewhere, or a draft model says, adds many weak claims to a strong one, which would cut a long copy short
/// token by token; there the odds share the whole, so that what is nearly certain stays so.
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

/// How much more a claim of calibration or reuse may be worth once matches of text agree with it: by the priors up to 4.3 times.
const AGREED_RISE_MAX: f32 = 5.0;

/// Cursors of one source at one node at most.
const CURSORS_MAX: usize = 8;

/// Nodes that a source computes in one pass at most.
const GROUP_MAX: usize = 8;

/// How the tree has grown, and its best size so far.
#[derive(Debug, Default)]
struct Growth {
    /// Expected tokens of the tree by its rows: entry `i` is of the first `i + 1`.
    gains: Vec<f32>,
    /// Time of the passes that sources have made for this tree, in µs: it is spent, whatever the size.
    spent_us: f32,
    /// By how much a draft must beat plain decoding.
    margin: f32,
    max_rows: usize,
    best_rows: usize,
    /// Expected tokens per µs of the best size.
    best_rate: f32,
}

impl Growth {
    /// Plain decoding, with the head start that a draft has to beat.
    fn start(&mut self, costs: &CostProfile, margin: f32, max_rows: usize) {
        self.gains.clear();
        self.gains.push(1.0);
        (self.spent_us, self.margin, self.max_rows, self.best_rows) = (0.0, margin, max_rows, 1);
        self.best_rate = self.rate(1, costs);
    }

    fn rate(&self, rows: usize, costs: &CostProfile) -> f32 {
        let gain = if rows == 1 { 1.0 + self.margin } else { self.gains[rows - 1] };
        gain / (costs.step_us(rows) + self.spent_us)
    }

    /// The tree has another row.
    fn push(&mut self, reach: f32, costs: &CostProfile) {
        self.gains.push(self.gain() + reach);
        self.consider(self.gains.len(), costs);
    }

    fn consider(&mut self, rows: usize, costs: &CostProfile) {
        let rate = self.rate(rows, costs);
        if rate > self.best_rate {
            (self.best_rows, self.best_rate) = (rows, rate);
        }
    }

    /// A pass was made.
    fn spend(&mut self, us: f32, costs: &CostProfile) {
        self.spent_us += us;
        (self.best_rows, self.best_rate) = (1, self.rate(1, costs));
        (2..=self.gains.len()).for_each(|rows| self.consider(rows, costs));
    }

    fn gain(&self) -> f32 {
        self.gains[self.gains.len() - 1]
    }

    /// Whether a pass of `us` that is expected to gain so much, on one row more, beats the best size (Lever, eq. 6).
    fn pays(&self, gain: f32, us: f32, costs: &CostProfile) -> bool {
        let more_us = costs.step_us(self.best_rows + 1) + self.spent_us + us;
        self.best_rows < self.max_rows && (self.gains[self.best_rows - 1] + gain) / more_us > self.best_rate
    }

    /// Whether any larger tree could beat the best: no further node is reached more often than `reach`.
    fn can_improve(&self, reach: f32, costs: &CostProfile) -> bool {
        let (gain, rows) = (self.gain(), self.gains.len());
        (rows + 1..=self.max_rows).any(|more| {
            let gain_max = gain + reach * (more - rows) as f32;
            gain_max / (costs.step_us(more) + self.spent_us) > self.best_rate
        })
    }
}
