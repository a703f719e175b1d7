//! A published rule as a draft source.

use std::fmt;

use refrain::TokenId;
use refrain::drafting::{
    Anchor, Candidate, Candidates, ComputingSource, Cursor, DraftSource, EvidenceClass, StepOutcome,
};

/// A rule, for use by a [`RuleSource`].
pub(crate) trait Rule: Clone + Send + 'static {
    /// The class of the rule's claims.
    const EVIDENCE: EvidenceClass = EvidenceClass::Plain;

    /// Reads the newly committed tokens. `committed` is the whole text, which has not been shortened.
    fn read(&mut self, committed: &[TokenId]);

    /// Clears the session's text.
    fn reset(&mut self);

    /// As [`DraftSource::release`].
    fn release(&mut self) {
        self.reset();
    }

    /// Plans the draft after `committed`, which was read completely. `plan` is empty.
    fn plan(&mut self, committed: &[TokenId], plan: &mut Plan);

    /// Learns from the outcome of the newest draft.
    fn learn(&mut self, step: &StepOutcome<'_>) {
        let _ = step;
    }

    /// As [`DraftSource::computing`]. A rule plans its whole tree when anchors are requested, so it is always expanded.
    fn computing(&mut self) -> Option<&mut dyn ComputingSource> {
        None
    }

    /// Bytes on the heap.
    fn memory_usage(&self) -> usize;
}

/// A planned tree: parents before children, node 0 the root.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    nodes: Vec<Planned>,
    /// Maximum number of nodes below the root.
    n_max: usize,
}

#[derive(Clone, Copy, Debug)]
struct Planned {
    parent: u32,
    token: TokenId,
    /// The rule's own probability that the walk reaches this node.
    reach: f32,
}

impl Plan {
    /// An empty plan for at most `n_max` nodes below the root.
    pub(crate) fn new(n_max: usize) -> Self {
        Plan { nodes: Vec::with_capacity(n_max + 1), n_max }
    }

    /// Removes all nodes except the root.
    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
        self.nodes.push(Planned { parent: 0, token: TokenId(0), reach: 1.0 });
    }

    /// Number of nodes below the root.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len() - 1
    }

    /// Maximum number of nodes below the root.
    pub(crate) fn n_max(&self) -> usize {
        self.n_max
    }

    /// Appends a node and returns its index. `None` if the plan is full.
    pub(crate) fn push(&mut self, parent: usize, token: TokenId, reach: f32) -> Option<usize> {
        (self.len() < self.n_max).then(|| {
            self.nodes.push(Planned { parent: parent as u32, token, reach });
            self.nodes.len() - 1
        })
    }

    /// The token of a node.
    pub(crate) fn token(&self, node: usize) -> TokenId {
        self.nodes[node].token
    }

    /// The rule's own probability that the walk reaches a node.
    pub(crate) fn reach(&self, node: usize) -> f32 {
        self.nodes[node].reach
    }

    /// The child of `parent` with `token`: the planned one, or a new one. `None` if the plan is full.
    pub(crate) fn merge(&mut self, parent: usize, token: TokenId, reach: f32) -> Option<usize> {
        let mut below = self.nodes.iter().enumerate().skip(parent + 1);
        match below.find(|(_, node)| node.parent as usize == parent && node.token == token) {
            Some((node, _)) => Some(node),
            None => self.push(parent, token, reach),
        }
    }

    /// Merges a path below `parent`. Returns its last node, or that before the plan was full.
    pub(crate) fn merge_path(&mut self, parent: usize, tokens: &[TokenId]) -> usize {
        let mut last = parent;
        for &token in tokens {
            let Some(node) = self.merge(last, token, 1.0) else { break };
            last = node;
        }
        last
    }

    /// Appends a path below the root.
    pub(crate) fn push_path(&mut self, tokens: &[TokenId]) {
        self.merge_path(0, tokens);
    }
}

/// A rule as a draft source. A cursor is the index of a planned node.
#[derive(Clone)]
pub(crate) struct RuleSource<R> {
    name: String,
    rule: R,
    plan: Plan,
    n_read: usize,
}

impl<R: Rule> RuleSource<R> {
    /// The source of `rule`, for drafts of at most `n_max` tokens.
    pub(crate) fn boxed(name: impl fmt::Display, n_max: usize, rule: R) -> Box<dyn DraftSource> {
        Box::new(RuleSource { name: name.to_string(), rule, plan: Plan::new(n_max), n_read: 0 })
    }

    fn read(&mut self, committed: &[TokenId]) {
        if committed.len() < self.n_read {
            self.truncate(0); // shortened without notice
        }
        self.rule.read(committed);
        self.n_read = committed.len();
    }
}

impl<R: Rule> DraftSource for RuleSource<R> {
    fn name(&self) -> &str {
        &self.name
    }

    fn evidence(&self) -> EvidenceClass {
        R::EVIDENCE
    }

    fn computing(&mut self) -> Option<&mut dyn ComputingSource> {
        self.rule.computing()
    }

    fn prime(&mut self, committed: &[TokenId]) {
        self.read(committed);
    }

    fn truncate(&mut self, _len: usize) {
        self.rule.reset();
        self.n_read = 0;
    }

    fn release(&mut self) {
        self.rule.release();
        self.n_read = 0;
    }

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        self.read(committed);
        self.plan.clear();
        self.rule.plan(committed, &mut self.plan);
        if self.plan.len() > 0 {
            out.push(Anchor { cursor: Cursor(0), match_len: 1 });
        }
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        for (index, cursor) in frontier.iter().enumerate() {
            let parent = cursor.0 as usize;
            let Some(&Planned { reach, .. }) = self.plan.nodes.get(parent) else { continue };
            // A parent precedes its children.
            for (i, node) in self.plan.nodes.iter().enumerate().skip(parent + 1) {
                if node.parent as usize == parent {
                    out.push(Candidate {
                        parent: index as u32,
                        token: node.token,
                        probability: node.reach / reach,
                        match_len: 1,
                        count: 1,
                        next: Cursor(i as u64),
                    });
                }
            }
        }
    }

    fn observe(&mut self, committed: &[TokenId], step: &StepOutcome<'_>) {
        self.rule.learn(step);
        self.read(committed);
    }

    fn memory_usage(&self) -> u64 {
        (self.rule.memory_usage() + self.plan.nodes.capacity() * size_of::<Planned>()) as u64
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        Box::new(self.clone())
    }
}

/// The tree built from a rule's draft after `committed`.
#[cfg(test)]
pub(crate) fn built(
    source: Box<dyn DraftSource>,
    max_rows: usize,
    committed: &[TokenId],
) -> refrain::drafting::DraftTree {
    use refrain::internals::draft::{BuilderConfig, StepLimits, TreeBuilder};

    let mut sources = [source];
    let mut builder = TreeBuilder::new(BuilderConfig::as_claimed(1 << 20, max_rows));
    let mut tree = refrain::drafting::DraftTree::default();
    sources[0].prime(committed);
    // Rules ignore the costs of rows.
    let costs = refrain::drafting::CostProfile::from_measurements(&[(1, 100.0), (64, 1e6)]);
    builder.build(&mut sources, committed, StepLimits::NONE, &costs, &mut tree);
    tree.check_integrity();
    tree
}
