//! The replay of one recorded response.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use refrain::drafting::{DraftSource, DraftTree, NodeIdx, StepOutcome, SuccessorLists};
use refrain::internals::draft::EchoStore;
use refrain::internals::draft::testing::{AlwaysRight, AlwaysWrong};
use refrain::internals::draft::{
    BuilderConfig, CalibrationSource, ContextSource, DraftTimes, EchoConfig, EchoSource, Evidence, NodeSet,
    OrderConfig, PassagesSource, Prior, ReliabilityConfig, ReliabilityTable, ResumeSource, ReuseConfig,
    ReuseSource, StepLimits, TreeBuilder, VERIFY_ROWS_MAX,
};
use refrain::internals::verify::{Walk, walk};
use refrain::{HistoryStore, TokenId};

use crate::costs::Costs;
use crate::rows::TokenRow;
use crate::rules::Seen;
use crate::rules::logits::SharedRows;
use crate::strategy::{Sources, Strategy};
use crate::tally::{StepEnd, Tally};
use crate::trace::Top;

/// The setting of a measurement: one column of a report.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The strategy.
    pub strategy: Strategy,
    /// Its sources.
    pub sources: Sources,
    /// Maximum number of rows of a verification batch.
    pub max_rows: usize,
    /// The costs of batches, used by [`Strategy::Refrain`] to weigh candidates.
    pub costs: Costs,
    /// Constants of [`Strategy::Refrain`].
    pub constants: Constants,
    /// Whether every row starts with the shipped reliability table, instead of the table learnt from earlier rows.
    pub fresh: bool,
    /// Whether each step of [`Strategy::Refrain`] and [`Strategy::Retrieval`] gets the [reason](StepEnd) of its end. Drafts
    /// are then built twice, so their times are not those of drafting alone.
    pub explain: bool,
}

/// Constants of Refrain's own drafting. The defaults are the shipped ones.
#[derive(Clone, PartialEq, Debug)]
pub struct Constants {
    /// Constants of the automata's candidates.
    pub orders: OrderConfig,
    /// Constants of the builder. The setting gives the number of rows and the vocabulary.
    pub builder: BuilderConfig,
    /// The prior of the reliability table.
    pub prior: Prior,
    /// The learning rate of the reliability table.
    pub reliability: ReliabilityConfig,
}

impl Default for Constants {
    fn default() -> Self {
        Constants {
            orders: OrderConfig::default(),
            builder: BuilderConfig::new(0),
            prior: Prior::SHIPPED,
            reliability: ReliabilityConfig::default(),
        }
    }
}

impl Constants {
    fn table(&self) -> ReliabilityTable {
        ReliabilityTable::with_prior(self.prior.clone(), self.reliability)
    }
}

/// A step of a traced row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedStep {
    /// The committed tokens, each with the name of its draft source; `None` for the bonus token.
    pub tokens: Vec<(TokenId, Option<String>)>,
    /// The rejected paths of the tree, each from its first rejected token.
    pub rejected: Vec<Vec<TokenId>>,
}

/// Replays rows in order with one setting. Learnt state is kept from row to row, as in a running engine.
pub struct Lane<'a> {
    setting: &'a Setting,
    vocab_size: usize,
    table: ReliabilityTable,
    /// The measured times of drafting, which count where rows have a price.
    times: DraftTimes,
    session: Option<String>,
    /// Responses of the session: in the history store for Refrain, unchanged for the rules.
    history: Arc<HistoryStore>,
    earlier: Vec<Vec<TokenId>>,
    /// The target's rows of this and earlier requests, for rules with logits.
    rows: SharedRows,
    /// The same for the source echo.
    echo: EchoStore,
    walk: Walk,
}

/// Called with each claim at a visited node, and whether the response confirmed it.
pub type Judge<'a> = &'a mut dyn FnMut(&Evidence, bool);

/// Gives the target's rows of a tree after a number of committed tokens, `[tree.len()]`; `None` for unknown ones.
pub type Target<'a> = &'a mut dyn FnMut(usize, &DraftTree) -> Vec<Option<Top>>;

/// Optional outputs of a replay besides the counts, and a target.
#[derive(Default)]
pub struct Wanted<'a> {
    /// The steps, in order.
    pub trace: Option<&'a mut Vec<TracedStep>>,
    /// The claims.
    pub judge: Option<Judge<'a>>,
    /// The target, instead of the row's recorded one.
    pub target: Option<Target<'a>>,
}

/// The namespace in the history store. A store contains one session.
const NAMESPACE: &str = "session";

impl<'a> Lane<'a> {
    /// A lane before its first row. The tokens of all rows are below `vocab_size`.
    pub fn new(setting: &'a Setting, vocab_size: usize) -> Self {
        Lane {
            setting,
            vocab_size,
            table: setting.constants.table(),
            times: DraftTimes::new(),
            session: None,
            history: Arc::new(HistoryStore::new()),
            earlier: Vec::new(),
            rows: SharedRows::default(),
            echo: EchoStore::new(),
            walk: Walk::default(),
        }
    }

    /// Replays a row and adds to `tally`.
    pub fn replay(&mut self, row: &TokenRow, tally: &mut Tally, mut wanted: Wanted<'_>) {
        self.enter(row);
        if self.setting.fresh {
            self.table = self.setting.constants.table();
            self.times = DraftTimes::new();
        }
        let mut sources = self.sources(row);
        let mut builder = TreeBuilder::with_table(self.builder_config(), self.table.clone());
        builder.set_times(self.times.clone());
        let names = sources.iter().map(|source| source.name());
        let costs = self.setting.costs.behind(row.prompt.len());
        let costs = costs.with_draft_us_per_node(self.times.us_per_node(names));
        let costs = if self.setting.strategy == Strategy::Lever { costs.with_leaf_prices() } else { costs };
        let mut committed = row.prompt.clone();
        let mut tree = DraftTree::default();
        self.read_prompt(row, &mut sources);
        sources.iter_mut().for_each(|source| source.prime(&committed));
        let mut explainer = self.explainer(row);
        let mut n_said = 0;
        while n_said < row.response.len() {
            let rest = &row.response[n_said..];
            let limits = self.limits(rest);
            if let Some(explainer) = &mut explainer {
                explainer.prepare(&builder, &mut sources, &committed, limits, &costs);
            }
            let started = Instant::now();
            builder.build(&mut sources, &committed, limits, &costs, &mut tree);
            let mut us = started.elapsed();

            let n_new = follow(&tree, rest, &mut self.walk);
            let new_tokens = &rest[..n_new];
            if let Some(explainer) = &explainer {
                *tally.ends.entry(explainer.end(&committed, rest, n_new)).or_default() += 1;
            }
            let tops = match (&mut wanted.target, &row.target) {
                (Some(target), _) => target(committed.len(), &tree),
                (None, Some(rows)) => rows.tops(row, committed.len() - 1, &tree),
                (None, None) => Vec::new(),
            };
            let confidence = self.read_step(committed.len() - 1, &tree, &tops, &mut sources);
            tally.n_looked_up += tops.len();
            tally.n_unknown += tops.iter().filter(|top| top.is_none()).count();
            committed.extend_from_slice(new_tokens);
            let accepted = &self.walk.path()[1..];
            let outcome = StepOutcome { tree: &tree, accepted, new_tokens, confidence: &confidence };
            if let Some(judge) = wanted.judge.as_mut() {
                builder.claims_seen(&outcome, judge);
            }
            let started = Instant::now();
            builder.observe(&mut sources, &committed, &outcome);
            us += started.elapsed();

            tally.draft_us.push(us.as_secs_f32() * 1e6);
            // The measured batches are chains. The builder's reserve for unknown shapes is not part of the time.
            tally.verify_us += f64::from(costs.verify_us(tree.len(), 1));
            tally.plain_us += f64::from(costs.verify_us(1, 1)) * new_tokens.len() as f64;
            self.count(&tree, new_tokens, &sources, tally);
            if let Some(trace) = wanted.trace.as_mut() {
                trace.push(traced(&tree, self.walk.path(), new_tokens, &sources));
            }
            n_said += n_new;
        }
        let of_sources: u64 = sources.iter().map(|source| source.memory_usage()).sum();
        let memory = (of_sources + self.history.memory_usage()) as usize + builder.memory_usage();
        tally.memory_bytes_max = tally.memory_bytes_max.max(memory);
        tally.n_rows += 1;
        self.table = builder.table().clone();
        self.times = builder.times().clone();
        self.leave(row);
    }

    /// Adds the row's response to the history without replaying it.
    pub fn skip(&mut self, row: &TokenRow) {
        self.enter(row);
        self.leave(row);
    }

    /// Gives the next row's session a history of these responses, instead of the rows that this lane has replayed.
    pub fn set_history<'b>(&mut self, row: &TokenRow, responses: impl Iterator<Item = &'b [TokenId]>) {
        self.session = None;
        self.enter(row);
        for response in responses {
            self.history.append(NAMESPACE, response);
            self.earlier.push(response.to_vec());
        }
    }

    /// Clears the history if the session changes or the row has no session.
    fn enter(&mut self, row: &TokenRow) {
        if row.session.is_none() || row.session != self.session {
            self.session.clone_from(&row.session);
            self.history = Arc::new(HistoryStore::new());
            self.earlier.clear();
        }
    }

    fn leave(&mut self, row: &TokenRow) {
        if row.session.is_some() && self.setting.sources != Sources::Prompt {
            if self.setting.strategy.retrieves() {
                self.history.append(NAMESPACE, &row.response);
            }
            self.earlier.push(row.response.clone());
        }
    }

    /// The target's rows of the prompt, as a prefill gives them.
    fn read_prompt(&self, row: &TokenRow, sources: &mut [Box<dyn DraftSource>]) {
        let Some(rows) = &row.target else { return };
        self.rows.lock().read_prompt(&row.prompt, rows.text());
        let mut lists = SuccessorLists::new();
        rows.text()[..row.prompt.len() - 1].iter().for_each(|top| lists.push(&top.successors()));
        calibrate(sources, 0, &lists);
    }

    /// The target's rows of a step whose root is token `root` of the text. Returns the target's probability of each
    /// node's token; nothing without rows.
    fn read_step(
        &self,
        root: usize,
        tree: &DraftTree,
        tops: &[Option<Top>],
        sources: &mut [Box<dyn DraftSource>],
    ) -> Vec<f32> {
        if tops.is_empty() {
            return Vec::new();
        }
        let path = self.walk.path();
        self.rows.lock().read_step(tree, path, root, tops);
        let nodes = (1..tree.len() as u32).map(NodeIdx).filter(|node| !path.contains(node));
        let known = nodes.filter_map(|node| Some((node, tops[node.index()].as_ref()?)));
        reject(sources, tree, known.take(EchoConfig::default().rejected_rows as usize));
        let mut lists = SuccessorLists::new();
        path.iter().for_each(|node| {
            lists.push(&tops[node.index()].as_ref().map_or_else(Vec::new, Top::successors));
        });
        calibrate(sources, root, &lists);
        let given_parent = |(&parent, &token): (&u32, &TokenId)| {
            tops[parent as usize].map_or(f32::NAN, |top| top.probability(token))
        };
        tree.parents().iter().zip(tree.tokens()).map(given_parent).collect()
    }

    fn explainer(&self, row: &TokenRow) -> Option<Explainer> {
        let Setting { strategy, explain, .. } = self.setting;
        (*explain && strategy.retrieves()).then(|| Explainer {
            config: BuilderConfig { max_rows: VERIFY_ROWS_MAX, ..self.builder_config() },
            seen: Seen::new(&self.texts_before(row)),
            widest: DraftTree::default(),
        })
    }

    /// The texts of a row's sources besides prompt and output.
    fn texts_before<'b>(&'b self, row: &'b TokenRow) -> Vec<&'b [TokenId]> {
        let passages = row.passages.iter().filter(|_| self.setting.sources == Sources::Passages);
        self.earlier.iter().chain(passages).map(Vec::as_slice).collect()
    }

    fn limits(&self, rest: &[TokenId]) -> StepLimits {
        match self.setting.strategy {
            Strategy::Plain => StepLimits { max_rows: 1, max_depth: 0 },
            // As in the engine: the last token is the bonus token, so a draft is at most one token shorter.
            _ => StepLimits { max_rows: self.setting.max_rows, max_depth: rest.len() - 1 },
        }
    }

    fn builder_config(&self) -> BuilderConfig {
        match self.setting.strategy {
            strategy if strategy.retrieves() => BuilderConfig {
                max_rows: self.setting.max_rows,
                vocab_size: self.vocab_size,
                ..self.setting.constants.builder
            },
            _ => BuilderConfig::as_claimed(self.vocab_size, self.setting.max_rows),
        }
    }

    fn sources(&self, row: &TokenRow) -> Vec<Box<dyn DraftSource>> {
        let Setting { strategy, sources, max_rows, constants, .. } = self.setting;
        let prompt_len = row.prompt.len();
        match strategy {
            // In a replay without a model, no source drafts with a model.
            Strategy::Plain | Strategy::DraftModel | Strategy::ModelRule(_) => Vec::new(),
            Strategy::AlwaysRight => vec![Box::new(AlwaysRight::new(prompt_len, row.response.clone()))],
            Strategy::AlwaysWrong => vec![Box::new(AlwaysWrong::new(prompt_len, row.response.clone()))],
            Strategy::Baseline(baseline) => vec![baseline.source(*max_rows, &self.earlier())],
            Strategy::LogitRule(rule) => vec![rule.source(*max_rows, &self.earlier(), &self.rows)],
            Strategy::Oracle(oracle) => {
                vec![oracle.source(*max_rows, &self.texts_before(row), prompt_len, &row.response)]
            }
            Strategy::Refrain | Strategy::Lever | Strategy::Rows(_) | Strategy::Retrieval => {
                let context = ContextSource::with_config(constants.orders, ContextSource::MAX_TOKENS);
                let mut all: Vec<Box<dyn DraftSource>> =
                    vec![Box::new(context), Box::new(ResumeSource::new())];
                if *sources != Sources::Prompt && row.session.is_some() {
                    all.push(Box::new(self.history.source_with_config(NAMESPACE, constants.orders)));
                }
                let (calibration, echo) = strategy.target_rows();
                if calibration && row.target.is_some() {
                    all.push(Box::new(CalibrationSource::new()));
                }
                if echo && row.target.is_some() {
                    all.push(Box::new(EchoSource::new(EchoConfig::default(), &self.echo)));
                }
                if (calibration || echo) && row.target.is_some() {
                    all.push(Box::new(ReuseSource::new(ReuseConfig::default())));
                }
                if *sources == Sources::Passages && !row.passages.is_empty() {
                    let passages = row.passages.iter().map(Vec::as_slice);
                    all.push(Box::new(PassagesSource::with_config(constants.orders, passages)));
                }
                all
            }
        }
    }

    fn earlier(&self) -> Vec<&[TokenId]> {
        self.earlier.iter().map(Vec::as_slice).collect()
    }

    fn count(
        &self,
        tree: &DraftTree,
        new_tokens: &[TokenId],
        sources: &[Box<dyn DraftSource>],
        tally: &mut Tally,
    ) {
        tally.count_step(new_tokens.len());
        tally.n_empty += usize::from(tree.is_empty_draft());
        tally.n_batch_rows += tree.len();
        for (index, source) in sources.iter().enumerate() {
            let of_source = |node: &NodeIdx| tree.source(*node) == Some(index);
            let nodes = (1..tree.len()).map(|i| NodeIdx(i as u32));
            let drafted = nodes.filter(of_source).count();
            if drafted > 0 {
                let counts = tally.sources.entry(source.name().to_owned()).or_default();
                counts.drafted += drafted;
                counts.accepted += self.walk.path().iter().filter(|node| of_source(node)).count();
            }
        }
    }
}

fn calibrate(sources: &mut [Box<dyn DraftSource>], first: usize, lists: &SuccessorLists) {
    let listeners = sources.iter_mut().filter_map(|source| source.target_listener());
    listeners.for_each(|source| source.calibrate(first, lists));
}

/// The target's rows of rejected nodes, as a session gives them.
fn reject<'a>(
    sources: &mut [Box<dyn DraftSource>],
    tree: &DraftTree,
    rows: impl Iterator<Item = (NodeIdx, &'a Top)>,
) {
    let (mut nodes, mut lists) = (Vec::new(), SuccessorLists::new());
    rows.for_each(|(node, top)| {
        nodes.push(node);
        lists.push(&top.successors());
    });
    let listeners = sources.iter_mut().filter_map(|source| source.target_listener());
    listeners.for_each(|source| source.reject(tree, &nodes, &lists));
}

/// Finds out why steps end, from the texts of the sources and a tree of the largest batch.
struct Explainer {
    config: BuilderConfig,
    seen: Seen,
    /// The draft if the batch had [`VERIFY_ROWS_MAX`] rows.
    widest: DraftTree,
}

impl Explainer {
    /// Builds the widest tree of a step, before its own tree: anchors are then those of the step's own.
    fn prepare(
        &mut self,
        builder: &TreeBuilder,
        sources: &mut [Box<dyn DraftSource>],
        committed: &[TokenId],
        limits: StepLimits,
        costs: &refrain::drafting::CostProfile,
    ) {
        self.seen.read(committed);
        let limits = StepLimits { max_rows: VERIFY_ROWS_MAX, ..limits };
        let mut widest = TreeBuilder::with_table(self.config, builder.table().clone());
        widest.build(sources, committed, limits, costs, &mut self.widest);
    }

    /// Why a step after `committed` committed only the first `n_new` tokens of `rest`.
    fn end(&self, committed: &[TokenId], rest: &[TokenId], n_new: usize) -> StepEnd {
        let new_tokens = &rest[..n_new];
        let Some((&bonus, accepted)) = new_tokens.split_last().filter(|_| n_new < rest.len()) else {
            return StepEnd::Output;
        };
        let before = accepted.last().or(committed.last());
        // The step's own accepted tokens are part of the text that a pointer may follow.
        let in_step = |token: TokenId| accepted.contains(&token);
        let pair_in_step = |token, next| accepted.windows(2).any(|pair| pair == [token, next]);
        if !self.seen.holds(bonus) && !in_step(bonus) {
            return StepEnd::Absent;
        }
        if before.is_some_and(|&before| !self.seen.holds_pair(before, bonus) && !pair_in_step(before, bonus))
        {
            return StepEnd::Jump;
        }
        let child = |node: Option<NodeIdx>, &token: &TokenId| self.widest.child(node?, token);
        match new_tokens.iter().fold(Some(NodeIdx::ROOT), child) {
            Some(_) => StepEnd::BelowBudget,
            None => StepEnd::UnderWeighted,
        }
    }
}

/// Follows the recorded tokens in the tree, as the verifier does. Returns the number of committed tokens.
fn follow(tree: &DraftTree, rest: &[TokenId], path: &mut Walk) -> usize {
    let mut n_new = 0;
    let choose = |_, chosen: &[TokenId]| Ok::<_, Infallible>(rest[chosen.len()]);
    let is_end = |_| {
        n_new += 1;
        n_new == rest.len()
    };
    match walk(tree, NodeSet::ALL, path, choose, is_end) {
        Ok(()) => n_new,
        Err(never) => match never {},
    }
}

fn traced(
    tree: &DraftTree,
    path: &[NodeIdx],
    new_tokens: &[TokenId],
    sources: &[Box<dyn DraftSource>],
) -> TracedStep {
    let name = |node: NodeIdx| tree.source(node).map(|source| sources[source].name().to_owned());
    let drafted = path[1..].iter().map(|&node| name(node)).chain(std::iter::repeat(None));
    let is_leaf = |node: NodeIdx| tree.children(node).next().is_none();
    let nodes = (1..tree.len()).map(|i| NodeIdx(i as u32));
    let rejected = nodes.filter(|&node| is_leaf(node) && !path.contains(&node)).map(|leaf| {
        let up = std::iter::successors(Some(leaf), |&node| tree.parent(node));
        let mut tokens: Vec<TokenId> =
            up.take_while(|node| !path.contains(node)).map(|n| tree.token(n)).collect();
        tokens.reverse();
        tokens
    });
    TracedStep { tokens: new_tokens.iter().copied().zip(drafted).collect(), rejected: rejected.collect() }
}
