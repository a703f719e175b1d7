//! The replay of one recorded response.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Instant;

use refrain::drafting::{
    CostProfile, DraftSource, DraftTree, EchoConfig, NodeIdx, ReuseConfig, StepOutcome, SuccessorLists,
};
use refrain::internals::draft::EchoStore;
use refrain::internals::draft::testing::{AlwaysRight, AlwaysWrong};
use refrain::internals::draft::{
    BuilderConfig, ContextSource, DraftTimes, Evidence, NodeSet, OrderConfig, PassagesSource,
    PredictionsSource, Prior, ReliabilityConfig, ReliabilityTable, ResumeSource, StepLimits, TreeBuilder,
    VERIFY_ROWS_MAX,
};
use refrain::internals::engine::{Account, StepTime};
use refrain::internals::verify::{Walk, walk};
use refrain::{HistoryStore, TokenId};

use crate::costs::Costs;
use crate::rows::TokenRow;
use crate::rules::logits::SharedRows;
use crate::rules::{Pid, PidConfig, Seen, draft_head};
use crate::strategy::{Sources, Strategy};
use crate::tally::{StepEnd, Tally};
use crate::trace::answer::Top;

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
    /// Maximum share of the time of a response that drafts may lose ([`refrain::drafting::DraftPolicy::stake`]); `None`: drafts need not
    /// be paid.
    pub stake: Option<f32>,
    /// Time of drafting a node, in µs, so that a replay has the same numbers everywhere; `None`: as measured.
    pub draft_us_per_node: Option<f32>,
    /// Whether each step of [`Strategy::Refrain`] and [`Strategy::Retrieval`] gets the [reason](StepEnd) of its end. Drafts
    /// are then built twice, so their times are not those of drafting alone.
    pub explain: bool,
}

impl Setting {
    /// With the shipped constants, a table that learns from row to row, and drafts that need not be paid.
    pub fn new(strategy: Strategy, sources: Sources, max_rows: usize, costs: Costs) -> Self {
        Setting {
            strategy,
            sources,
            max_rows,
            costs,
            constants: Constants::default(),
            fresh: false,
            stake: None,
            draft_us_per_node: None,
            explain: false,
        }
    }
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
    /// The same for echo.
    echo: EchoStore,
    walk: Walk,
    account: Account,
    /// What earlier rows owe, in µs.
    carried_us: f64,
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
            account: Account::default(),
            carried_us: 0.0,
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
        let us_per_node = self.setting.draft_us_per_node.unwrap_or_else(|| self.times.us_per_node(names));
        let costs = costs.with_draft_us_per_node(us_per_node);
        let weighed = match self.setting.strategy {
            Strategy::Lever => costs.clone().with_leaf_prices(),
            Strategy::Pid => CostProfile::free_rows(costs.verify_us(1, 1)),
            _ => costs.clone(),
        };
        let mut committed = row.prompt.clone();
        let mut tree = DraftTree::default();
        self.read_prompt(row, &mut sources);
        sources.iter_mut().for_each(|source| source.prime(&committed));
        let mut explainer = self.explainer(row);
        let n_max = self.setting.max_rows.max(2) - 1;
        let mut pid =
            Pid::new(PidConfig { rows_max: n_max, rows_start: n_max.min(4), ..PidConfig::default() });
        let row_us = f64::from(costs.verify_us(1, 1));
        let prompt_us = costs.prompt_us(row.prompt.len());
        self.account.begin(self.setting.stake, (std::mem::take(&mut self.carried_us), prompt_us), row_us);
        let (mut row_plain_us, mut row_us_total) = (0.0, 0.0);
        let mut is_behind = false;
        let mut n_said = 0;
        while n_said < row.response.len() {
            let rest = &row.response[n_said..];
            let extra_us = self.account.extra_us(row_us) as f32;
            let limits = StepLimits { extra_us, ..self.limits(rest, &pid) };
            let is_paid = costs.verify_us(2, 1) - costs.verify_us(1, 1) <= extra_us;
            if let Some(explainer) = &mut explainer {
                explainer.prepare(&builder, &mut sources, &committed, limits, &weighed);
            }
            let started = Instant::now();
            if is_paid {
                if std::mem::take(&mut is_behind) {
                    sources.iter_mut().for_each(|source| source.prime(&committed));
                }
                builder.build(&mut sources, &committed, limits, &weighed, &mut tree);
            } else {
                tree.start(committed[committed.len() - 1]);
                is_behind = true;
            }
            let mut us = started.elapsed();

            let n_new = follow(&tree, rest, &mut self.walk);
            pid.observe(tree.len() - 1, self.walk.path().len() - 1);
            let new_tokens = &rest[..n_new];
            if let Some(explainer) = &explainer {
                *tally.ends.entry(explainer.end(&committed, rest, n_new)).or_default() += 1;
            }
            let tops = match (&mut wanted.target, &row.target) {
                (Some(target), _) => target(committed.len(), &tree),
                (None, Some(rows)) => rows.tops(&row.response, committed.len() - 1, &tree),
                (None, None) => Vec::new(),
            };
            tally.n_looked_up += tops.len();
            tally.n_unknown += tops.iter().filter(|top| top.is_none()).count();
            let root = committed.len() - 1;
            committed.extend_from_slice(new_tokens);
            self.read_step(&committed, root, &tree, &tops, &mut sources);
            let accepted = &self.walk.path()[1..];
            let outcome = StepOutcome { tree: &tree, accepted, new_tokens };
            if let Some(judge) = wanted.judge.as_mut() {
                builder.claims_seen(&outcome, judge);
            }
            let started = Instant::now();
            if is_paid {
                builder.observe(&mut sources, &committed, &outcome);
            }
            us += started.elapsed();
            let draft_us = match self.setting.draft_us_per_node {
                Some(us_per_node) if is_paid => us_per_node * (1 + builder.n_considered()) as f32,
                Some(_) => 0.0,
                None => us.as_secs_f32() * 1e6,
            };

            tally.draft_us.push(draft_us);
            // The measured batches are chains. The builder's reserve for unknown shapes is not part of the time.
            let (draft_us, verify_us) = (f64::from(draft_us), f64::from(costs.verify_us(tree.len(), 1)));
            let plain_us = row_us * new_tokens.len() as f64;
            tally.verify_us += verify_us;
            tally.plain_us += plain_us;
            row_plain_us += plain_us;
            row_us_total += draft_us + verify_us;
            self.account.observe(StepTime {
                drafting_us: draft_us,
                other_us: verify_us,
                row_us,
                n_tokens: new_tokens.len(),
                has_draft: tree.len() > 1,
                may_draft: is_paid,
                is_shared: false,
            });
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
        tally.speeds.push([0.0, prompt_us].map(|us| ((us + row_plain_us) / (us + row_us_total)) as f32));
        self.carried_us = self.account.end();
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
        calibrate(sources, &row.prompt, 0, &lists);
    }

    /// The target's rows of a step whose root is token `root` of the text.
    fn read_step(
        &self,
        committed: &[TokenId],
        root: usize,
        tree: &DraftTree,
        tops: &[Option<Top>],
        sources: &mut [Box<dyn DraftSource>],
    ) {
        if tops.is_empty() {
            return;
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
        calibrate(sources, committed, root, &lists);
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

    fn limits(&self, rest: &[TokenId], pid: &Pid) -> StepLimits {
        // As in the engine: the last token is the bonus token, so a draft is at most one token shorter.
        let max_depth = rest.len() - 1;
        match self.setting.strategy {
            Strategy::Plain => StepLimits { max_rows: 1, max_depth: 0, ..StepLimits::NONE },
            Strategy::Pid => StepLimits {
                max_rows: self.setting.max_rows.min(1 + pid.rows()),
                max_depth,
                ..StepLimits::NONE
            },
            _ => StepLimits { max_rows: self.setting.max_rows, max_depth, ..StepLimits::NONE },
        }
    }

    fn builder_config(&self) -> BuilderConfig {
        let own = BuilderConfig {
            max_rows: self.setting.max_rows,
            vocab_size: self.vocab_size,
            ..self.setting.constants.builder
        };
        match self.setting.strategy {
            // As in the engine, with a given number of rows: they are drafted whatever their value.
            Strategy::Pid => BuilderConfig { margin: 0.0, reach_min: 0.0, ..own },
            strategy if strategy.retrieves() => own,
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
            Strategy::Recorded(drafter) => vec![drafter.source(*max_rows, row)],
            Strategy::Refrain
            | Strategy::Lever
            | Strategy::Echo
            | Strategy::Eagle
            | Strategy::Pid
            | Strategy::Retrieval => {
                let context = ContextSource::with_config(constants.orders, ContextSource::MAX_TOKENS);
                let mut all: Vec<Box<dyn DraftSource>> =
                    vec![Box::new(context), Box::new(ResumeSource::new())];
                if *sources != Sources::Prompt && row.session.is_some() {
                    all.push(Box::new(self.history.source_with_config(NAMESPACE, constants.orders)));
                }
                if *strategy != Strategy::Retrieval && row.target.is_some() {
                    let reuse = Some(ReuseConfig::default());
                    all.push(Box::new(match strategy {
                        Strategy::Echo => {
                            PredictionsSource::with_echo(EchoConfig::default(), &self.echo, reuse)
                        }
                        _ => PredictionsSource::new(reuse),
                    }));
                }
                if *sources == Sources::Passages && !row.passages.is_empty() {
                    let passages = row.passages.iter().map(Vec::as_slice);
                    all.push(Box::new(PassagesSource::with_config(constants.orders, passages)));
                }
                if *strategy == Strategy::Eagle {
                    all.push(draft_head(*max_rows, row));
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

fn calibrate(sources: &mut [Box<dyn DraftSource>], tokens: &[TokenId], first: usize, lists: &SuccessorLists) {
    let listeners = sources.iter_mut().filter_map(|source| source.target_listener());
    listeners.for_each(|source| source.calibrate(tokens, first, lists));
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
        costs: &CostProfile,
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
