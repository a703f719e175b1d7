//! The tree builder: Lever's greedy search, generalised to all sources at once.
//!
//! ```text
//! frontier ← {root};  T ← {}
//! while T has room:
//!   v ← frontier node with the highest reach r(v);  T ← T + v
//!   expand every source with a cursor at v;  frontier ← frontier + children,  r(child) = r(v) · p(child)
//!     (as late as the order allows: when r(v) · max p comes up)
//!   expand a computing source only if that pays, and for several frontier nodes at once if that is cheaper
//!   stop when no larger tree can pay
//! keep the prefix of T with the highest gain/cost
//! ```
//!
//! Since p ≤ 1, a child's reach is at most its parent's. Nodes therefore come out in order of falling reach,
//! and the first m nodes are the tree of m nodes with the highest gain `1 + Σ r`. Lever stops at the first
//! node that lowers gain/cost (eq. 6); with a staircase of batch lengths that is a local optimum. Evaluating
//! every prefix costs nothing more, finds the global optimum, fills the free rows of a stair, and includes
//! `{root}`, which is plain decoding. A prefix costs the sum of its rows and its leaves (eq. 4): a node that
//! extends a path adds a row, a new branch adds a leaf too, which counts with costs that have prices of leaves.
//! Among trees of one size, the tree with the highest gain is chosen.
//!
//! Sources that look up are expanded at every node. A source that computes
//! ([`ComputingSource::expansion_us`]: a draft model) is expanded by eq. 6 itself. Let a pass take `t` µs at
//! a node v, and let `known` be the probability of v's likeliest child from the other sources. The expected
//! gain is `r(v) · (1 − known) · p̂`, with p̂ the hit rate of the source's likeliest claim. The pass is made
//! if this gain beats gain/cost. Nodes that wait in the frontier join the pass while they raise its gain per
//! µs. Passes are therefore serial while one node is much better than the others, and grouped if several good
//! nodes wait. The time of passes is added to the cost of every size alike. The part hidden behind reads of a
//! streamed target counts less ([`CostProfile::added_us`]).

mod claim;
mod claims;
mod expand;
mod frontier;
mod growth;
mod judged;
#[cfg(test)]
mod tests;

use std::collections::BinaryHeap;

use self::claim::{Child, Claim};
use self::frontier::{Found, Ranked};
use self::growth::{Growth, Size};
use super::cost::CostProfile;
use super::draft_times::DraftTimes;
use super::evidence::EvidenceClass;
use super::limits::{BuilderConfig, SOURCES_MAX, StepLimits, Weighing};
use super::reliability::{Caps, ReliabilityTable, SourceSlot};
use super::source::{Anchor, Candidate, Candidates, Cursor, DraftSource, StepOutcome};
use crate::kernels::Instant;
use refrain_trees::TokenId;
use refrain_trees::{DraftTree, NodeIdx};

#[cfg(doc)]
use super::source::ComputingSource;

/// Maximum cursors of one source at one node.
const CURSORS_MAX: usize = 8;

/// One of this many builds is timed: reading the clock around each call of a source takes several µs.
const TIMED_EVERY: u64 = 8;

/// Builds the draft tree of each step from all sources, and learns from the step's result.
///
/// Deterministic: equal calls give equal trees; ties go to the node found first, then to the lower token.
/// Cost: at most `max_rows` nodes are expanded, each with one call per source. No allocation once warm.
/// Memory: below 1 MB at the default bounds.
#[derive(Debug)]
pub struct TreeBuilder {
    config: BuilderConfig,
    table: ReliabilityTable,
    times: DraftTimes,
    n_builds: u64,
    /// Nodes found in this build, in order of discovery; node 0 is the root.
    found: Vec<Found>,
    frontier: BinaryHeap<Ranked>,
    /// Cursors of all found nodes; the cursors of a node are contiguous and grouped by source.
    cursors: Vec<(u8, Cursor)>,
    /// Claims under all expanded nodes; the claims of a node are contiguous.
    claims: Vec<Claim>,
    /// For each node of the tree: the range of the claims about its children, empty if no source was queried.
    /// Shape `[tree.len()]`.
    claims_of: Vec<(u32, u32)>,
    /// For each source: upper bounds of its claims in this build.
    caps: Vec<Caps>,
    /// For each source: the slot of its record in the table. Empty if claims are not weighed.
    slots: Vec<SourceSlot>,
    /// For each source: whether it computes.
    computes: Vec<bool>,
    /// Whether a source's claims come from rows of the target or of a draft model.
    has_rows: bool,
    /// Whether this build is timed.
    is_timed: bool,
    /// For each source: its time in this build, if the build is timed. µs
    source_us: Vec<f32>,
    /// Time of passes in this build, if the build is timed. µs
    passes_us: f32,
    growth: Growth,
    scratch: Scratch,
}

#[derive(Debug)]
struct Scratch {
    anchors: Vec<Anchor>,
    frontier: Vec<Cursor>,
    candidates: Candidates,
    children: Vec<Child>,
    /// Frontier nodes that may join a pass, by reach.
    waiting: Vec<(Ranked, Cursor)>,
    /// Tokens under the node being expanded, and whether a source excludes them.
    verdicts: Vec<(TokenId, bool)>,
}

impl TreeBuilder {
    /// A builder with the built-in reliability table.
    pub fn new(config: BuilderConfig) -> Self {
        Self::with_table(config, ReliabilityTable::new())
    }

    /// The bounds.
    pub fn config(&self) -> BuilderConfig {
        self.config
    }

    /// A builder with a reliability table learned by another builder.
    pub fn with_table(config: BuilderConfig, table: ReliabilityTable) -> Self {
        let config = BuilderConfig { max_rows: config.max_rows.max(1), ..config };
        TreeBuilder {
            config,
            table,
            times: DraftTimes::new(),
            n_builds: 0,
            found: Vec::new(),
            frontier: BinaryHeap::new(),
            cursors: Vec::new(),
            claims: Vec::new(),
            claims_of: Vec::new(),
            caps: Vec::new(),
            slots: Vec::new(),
            computes: Vec::new(),
            has_rows: false,
            is_timed: false,
            source_us: Vec::new(),
            passes_us: 0.0,
            growth: Growth::default(),
            scratch: Scratch {
                anchors: Vec::new(),
                frontier: Vec::new(),
                candidates: Candidates::with_limit(config.n_candidates_max),
                children: Vec::new(),
                waiting: Vec::new(),
                verdicts: Vec::new(),
            },
        }
    }

    /// The reliability table learned so far.
    pub fn table(&self) -> &ReliabilityTable {
        &self.table
    }

    /// Number of draft tokens that the newest build considered, including those that did not pay.
    pub fn n_considered(&self) -> usize {
        self.found.len().saturating_sub(1)
    }

    /// Whether claims are weighed, and trees cut to what pays.
    pub(crate) fn weighs(&self) -> bool {
        self.config.weighing == Weighing::Learned
    }

    /// How many times as many tokens per time the newest tree promises as plain decoding, at these costs; 1 if it drafts nothing.
    pub(crate) fn advantage(&self, costs: &CostProfile) -> f32 {
        self.growth.advantage(costs)
    }

    /// Continues with a reliability table learned by another builder.
    pub fn set_table(&mut self, table: ReliabilityTable) {
        self.table = table;
    }

    /// The measured times of drafting.
    pub fn times(&self) -> &DraftTimes {
        &self.times
    }

    /// Continues with the times measured by another builder.
    pub fn set_times(&mut self, times: DraftTimes) {
        self.times = times;
    }

    /// Builds the tree of the next step into `tree`; the root is the last of `committed`.
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
        self.growth.start(costs, self.config.margin, max_rows, costs.us_max(limits.extra_us));
        let started = self.is_timed.then(Instant::now);
        self.expand(sources, 0, NodeIdx::ROOT, max_depth, costs);

        let weighs = self.weighs();
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
            self.growth.push(reach, tree.n_leaves(), costs);
            self.frontier.push(Ranked { reach: reach * cap, found, node: Some(node) });
        }
        if let Some(started) = started {
            self.learn_times(sources, started.elapsed().as_secs_f32() * 1e6);
        }
        if weighs {
            tree.truncate(self.growth.best_rows);
        }
    }

    /// Learns from a finished step and passes it to every source; `committed` is the whole committed text,
    /// including the step's tokens.
    pub fn observe(
        &mut self,
        sources: &mut [Box<dyn DraftSource>],
        committed: &[TokenId],
        outcome: &StepOutcome<'_>,
    ) {
        if self.weighs() && outcome.tree.id() == self.n_builds {
            self.learn(outcome);
            self.learn_drafted(outcome);
            self.age();
        }
        for source in sources {
            source.observe(committed, outcome);
        }
    }

    /// Bytes on the heap, without the sources.
    pub fn memory_usage(&self) -> usize {
        self.table.memory_usage()
            + self.found.capacity() * size_of::<Found>()
            + self.frontier.capacity() * size_of::<Ranked>()
            + self.cursors.capacity() * size_of::<(u8, Cursor)>()
            + self.claims.capacity() * size_of::<Claim>()
            + self.claims_of.capacity() * size_of::<(u32, u32)>()
            + self.caps.capacity() * size_of::<Caps>()
            + self.slots.capacity() * size_of::<SourceSlot>()
            + self.computes.capacity()
            + self.source_us.capacity() * size_of::<f32>()
            + self.growth.sizes.capacity() * size_of::<Size>()
            + self.scratch.children.capacity() * size_of::<Child>()
            + self.scratch.waiting.capacity() * size_of::<(Ranked, Cursor)>()
            + self.scratch.verdicts.capacity() * size_of::<(TokenId, bool)>()
            + self.config.n_candidates_max * size_of::<Candidate>()
    }

    /// Learns the time per node of each source and of the builder itself from a timed build of `us`.
    fn learn_times(&mut self, sources: &[Box<dyn DraftSource>], us: f32) {
        let n_nodes = self.claims_of.len() as f32;
        for (source, us) in sources.iter().zip(&self.source_us) {
            self.times.observe_source(source.name(), us / n_nodes);
        }
        let own_us = us - self.passes_us - self.source_us.iter().sum::<f32>();
        self.times.observe_builder(own_us.max(0.0) / n_nodes);
    }

    /// Starts a build: the root is the only found node and has the cursors of all anchors.
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
        let weighs = self.weighs();
        if weighs {
            let named = sources.iter().map(|source| (source.name(), source.evidence()));
            self.table.bind(named, &mut self.slots);
        } else {
            self.slots.clear();
        }
        self.caps.clear();
        self.caps.extend(self.slots.iter().map(|&slot| self.table.caps(slot)));
        self.caps.resize(sources.len(), Caps::NONE);
        self.computes.clear();
        self.computes.extend(sources.iter_mut().map(|source| source.computing().is_some()));
        self.has_rows = sources.iter().any(|source| {
            let class = source.evidence();
            class.is_of_target() || class == EvidenceClass::DraftModel
        });
        self.is_timed = weighs && self.n_builds.is_multiple_of(TIMED_EVERY);
        self.passes_us = 0.0;
        self.source_us.clear();
        self.source_us.resize(sources.len(), 0.0);
        let cursors = (0, self.cursors.len() as u32);
        let parent = NodeIdx::ROOT;
        let root = Found { token: root, parent, depth: 0, reach: 1.0, source: u8::MAX, cursors, cap: 1.0 };
        self.found.push(root);
        self.claims_of.push((0, 0));
    }
}
