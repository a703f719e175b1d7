//! The builder, compared with the obvious implementation, and with sources of every kind that looks up.

mod computing;

use proptest::prelude::*;

use crate::draft::testing::{AlwaysRight, AlwaysWrong, Endless, Random, stateless_source};
use crate::draft::*;
use refrain_trees::TokenId;

const VOCAB_SIZE: u32 = 64;

/// A CPU bound by memory: the first rows are nearly free.
fn flat_costs() -> CostProfile {
    CostProfile::from_measurements(&[(1, 10_000.0), (8, 11_000.0), (16, 14_000.0), (32, 22_000.0)])
}

/// A row costs a fifth of a step.
fn moderate_costs() -> CostProfile {
    CostProfile::from_measurements(&[(1, 1000.0), (2, 1200.0), (32, 7200.0)])
}

/// Every row costs the same.
fn steep_costs() -> CostProfile {
    CostProfile::from_measurements(&[(1, 1000.0), (2, 2000.0)])
}

fn builder() -> TreeBuilder {
    TreeBuilder::new(BuilderConfig::new(VOCAB_SIZE as usize))
}

fn build(
    builder: &mut TreeBuilder,
    sources: &mut [Box<dyn DraftSource>],
    committed: &[TokenId],
) -> DraftTree {
    let mut tree = DraftTree::default();
    builder.build(sources, committed, StepLimits::NONE, &flat_costs(), &mut tree);
    tree.check_integrity();
    tree
}

/// Runs steps until `target` is complete, with the engine's walk; returns the rows of each step's tree.
fn replay(
    builder: &mut TreeBuilder,
    sources: &mut [Box<dyn DraftSource>],
    prompt: &[TokenId],
    target: &[TokenId],
    costs: &CostProfile,
) -> Vec<usize> {
    let mut committed = prompt.to_vec();
    sources.iter_mut().for_each(|source| source.prime(&committed));
    let (mut rows, mut said) = (Vec::new(), 0);
    let mut tree = DraftTree::default();
    while said < target.len() {
        let limits = StepLimits { max_rows: 32, max_depth: target.len() - said - 1, ..StepLimits::NONE };
        builder.build(sources, &committed, limits, costs, &mut tree);
        tree.check_integrity();
        let mut accepted = Vec::new();
        let mut node = NodeIdx::ROOT;
        while let Some(child) = tree.child(node, target[said + accepted.len()]) {
            accepted.push(child);
            node = child;
        }
        let new_tokens = &target[said..=said + accepted.len()];
        committed.extend_from_slice(new_tokens);
        let outcome = StepOutcome { tree: &tree, accepted: &accepted, new_tokens };
        builder.observe(sources, &committed, &outcome);
        said += new_tokens.len();
        rows.push(tree.len());
    }
    rows
}

fn varied(n: usize, seed: u32) -> Vec<TokenId> {
    let mut x = seed | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        x
    };
    (0..n).map(|_| TokenId(next() % VOCAB_SIZE)).collect()
}

#[test]
fn knowing_everything_fills_the_rows() {
    let target = varied(320, 3);
    let mut sources: Vec<Box<dyn DraftSource>> = vec![Box::new(AlwaysRight::new(1, target.clone()))];
    let rows = replay(&mut builder(), &mut sources, &[TokenId(1)], &target, &flat_costs());
    assert_eq!(rows, [32; 10]);
}

#[test]
fn without_sources_or_matches_the_draft_is_empty() {
    let tree = build(&mut builder(), &mut [], &[TokenId(5)]);
    assert!(tree.is_empty_draft());
    assert_eq!(tree.token(NodeIdx::ROOT), TokenId(5));
    let mut sources: Vec<Box<dyn DraftSource>> = vec![Box::new(ContextSource::new())];
    assert!(build(&mut builder(), &mut sources, &[TokenId(5)]).is_empty_draft());
}

#[test]
fn a_source_that_is_always_wrong_is_soon_left_alone() {
    let target = varied(400, 3);
    let mut sources: Vec<Box<dyn DraftSource>> = vec![Box::new(AlwaysWrong::new(1, target.clone()))];
    let rows = replay(&mut builder(), &mut sources, &[TokenId(1)], &target, &moderate_costs());
    assert_eq!(rows.len(), 400, "one token per step");
    assert!(rows[0] > 1, "its word is taken at first");
    assert!(rows[40..].iter().all(|&rows| rows == 1), "{rows:?}");
}

#[test]
fn a_source_that_becomes_right_is_noticed_while_nothing_is_drafted() {
    let (wrong, right) = (varied(200, 3), varied(400, 7));
    let mut builder = builder();
    // One source name, whose reliability is learned.
    let turned = |source: Box<dyn DraftSource>| Box::new(Named("turned", source)) as Box<dyn DraftSource>;
    let mut sources = [turned(Box::new(AlwaysWrong::new(1, wrong.clone())))];
    replay(&mut builder, &mut sources, &[TokenId(1)], &wrong, &steep_costs());
    let mut sources = [turned(Box::new(AlwaysRight::new(1, right.clone())))];
    let rows = replay(&mut builder, &mut sources, &[TokenId(1)], &right, &flat_costs());
    assert!(rows[0] == 1 || rows[0] < 32);
    assert!(rows.len() < 200, "{} steps", rows.len());
    assert!(rows[rows.len() - 2] > 16, "{rows:?}");
}

#[test]
fn where_rows_cost_as_much_as_steps_only_near_certainty_is_drafted() {
    let target = varied(300, 11);
    let mut sources: Vec<Box<dyn DraftSource>> =
        vec![Box::new(ContextSource::new()), Box::new(Random::new(5, VOCAB_SIZE))];
    let rows = replay(&mut builder(), &mut sources, &varied(100, 4), &target, &steep_costs());
    let late = &rows[rows.len() / 2..];
    assert!(late.iter().filter(|&&rows| rows > 1).count() * 20 <= late.len(), "{late:?}");
}

#[test]
fn free_rows_of_a_stair_are_filled() {
    let costs = flat_costs().with_batch_lens(&[1, 8, 16, 32]);
    let mut sources: Vec<Box<dyn DraftSource>> = vec![Box::new(Endless::new(VOCAB_SIZE))];
    let mut builder = builder();
    let mut tree = DraftTree::default();
    builder.build(
        &mut sources,
        &[TokenId(1)],
        StepLimits::NONE,
        &costs.with_draft_us_per_node(0.0),
        &mut tree,
    );
    assert!([8, 16, 32].contains(&tree.len()), "{} rows", tree.len());
}

#[test]
fn a_repeated_text_is_drafted_from_the_context() {
    let paragraph = varied(60, 21);
    let mut sources: Vec<Box<dyn DraftSource>> = vec![Box::new(ContextSource::new())];
    let prompt = [paragraph.clone(), varied(10, 5), paragraph[..3].to_vec()].concat();
    let rows = replay(&mut builder(), &mut sources, &prompt, &paragraph[3..], &flat_costs());
    assert!(rows.len() <= 10, "{} steps for 57 tokens", rows.len());
}

#[test]
fn sources_that_agree_share_a_node() {
    let text: Vec<TokenId> = [1, 2, 3, 4, 1, 2].map(TokenId).to_vec();
    let store = std::sync::Arc::new(HistoryStore::new());
    store.append("a", &text[..4]);
    let mut sources: Vec<Box<dyn DraftSource>> =
        vec![Box::new(ContextSource::new()), Box::new(store.source("a"))];
    sources.iter_mut().for_each(|source| source.prime(&text));
    let tree = build(&mut builder(), &mut sources, &text);
    let child = tree.child(NodeIdx::ROOT, TokenId(3)).expect("both say 3");
    assert!(tree.source(child).is_some());
    assert!(tree.child(child, TokenId(4)).is_some());
}

#[test]
fn a_tree_that_the_builder_did_not_make_teaches_nothing() {
    let mut builder = builder();
    let mut sources: Vec<Box<dyn DraftSource>> = vec![Box::new(Endless::new(VOCAB_SIZE))];
    let first = build(&mut builder, &mut sources, &[TokenId(1)]);
    let stranger = DraftTree::new(TokenId(1));
    let new_tokens = [TokenId(2)];
    for _ in 0..100 {
        let outcome = StepOutcome { tree: &stranger, accepted: &[], new_tokens: &new_tokens };
        builder.observe(&mut sources, &[TokenId(1), TokenId(2)], &outcome);
    }
    let again = build(&mut builder, &mut sources, &[TokenId(1)]);
    assert_eq!(first.reach(), again.reach());
}

/// All sources at their worst, combined.
fn any_sources(seed: u64) -> Vec<Box<dyn DraftSource>> {
    let mut sources: Vec<Box<dyn DraftSource>> = vec![Box::new(Random::new(seed, VOCAB_SIZE))];
    if seed.is_multiple_of(2) {
        sources.push(Box::new(ContextSource::new()));
    }
    if seed.is_multiple_of(3) {
        sources.push(Box::new(Random::new(seed + 1, VOCAB_SIZE)));
    }
    if seed.is_multiple_of(5) {
        sources.push(Box::new(Endless::new(VOCAB_SIZE)));
    }
    sources
}

/// The obvious implementation: all nodes that the sources can propose, down to a depth, as (reach, path),
/// highest reach first.
fn all_nodes(
    builder: &TreeBuilder,
    source: &mut dyn DraftSource,
    committed: &[TokenId],
    depth: u32,
) -> Vec<(f32, Vec<u32>)> {
    let mut table = builder.table().clone();
    let slot = table.slot(source.name(), source.evidence());
    let mut anchors = Vec::new();
    source.anchors(committed, &mut anchors);
    let mut level = vec![(1.0f32, anchors.iter().map(|a| a.cursor).collect::<Vec<_>>(), Vec::new())];
    let mut nodes = Vec::new();
    for depth in 1..=depth {
        let mut next_level = Vec::new();
        for (reach, cursors, path) in level {
            let mut children: std::collections::BTreeMap<u32, (f32, Vec<Cursor>)> = Default::default();
            let mut out = Candidates::with_limit(builder_config().n_candidates_max);
            source.expand(&cursors, &mut out);
            let mut claims: Vec<(u32, f32, Cursor)> = Vec::new();
            for c in out.as_slice().iter().filter(|c| c.token.0 < VOCAB_SIZE) {
                let evidence = Evidence {
                    class: source.evidence(),
                    probability: c.probability,
                    match_len: c.match_len,
                    count: c.count,
                    depth,
                    agreement: Agreement::Unknown,
                };
                let p = table.probability(slot, &evidence);
                if reach * p >= builder_config().reach_min {
                    claims.push((c.token.0, p, c.next));
                }
            }
            claims.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
            for (token, p, next) in claims {
                let child = children.entry(token).or_insert((p, Vec::new()));
                child.0 = child.0.max(p);
                child.1.push(next);
            }
            // Added up and scaled in the builder's order: nodes that differ by a rounding error would change places, and a tree
            // of other leaves has another price.
            let mut children: Vec<_> = children.into_iter().collect();
            children.sort_by(|a, b| b.1.0.total_cmp(&a.1.0));
            let total: f32 = children.iter().map(|(_, child)| child.0).sum();
            for (token, (p, cursors)) in children {
                let reach = reach * if total > 1.0 { p / total } else { p };
                if reach >= builder_config().reach_min {
                    let path = [path.as_slice(), &[token]].concat();
                    nodes.push((reach, path.clone()));
                    next_level.push((reach, cursors, path));
                }
            }
        }
        level = next_level;
    }
    nodes.sort_by(|a, b| b.0.total_cmp(&a.0));
    nodes
}

/// Number of leaves of the tree of these paths, by searching a child of each.
fn n_leaves(nodes: &[(f32, Vec<u32>)]) -> usize {
    let is_leaf = |path: &[u32]| {
        !nodes.iter().any(|(_, other)| other.split_last().is_some_and(|(_, above)| above == path))
    };
    nodes.iter().filter(|(_, path)| is_leaf(path)).count().max(1)
}

/// `costs` after observing that each leaf costs a fifth of a one-row step.
fn with_dear_leaves(costs: CostProfile) -> CostProfile {
    let mut costs = costs.with_leaf_prices();
    let row_us = costs.verify_us(1, 1);
    let chains = costs.clone();
    for (rows, leaves) in
        [(8, 4), (8, 1), (16, 8), (1, 1), (4, 2), (4, 1), (32, 12), (16, 3)].into_iter().cycle().take(4000)
    {
        let added_us = 0.2 * row_us * (leaves - 1) as f32;
        costs.observe(rows, leaves, chains.verify_us(rows, 1) + added_us);
    }
    costs
}

fn builder_config() -> BuilderConfig {
    BuilderConfig::new(VOCAB_SIZE as usize)
}

proptest! {
    #[test]
    fn any_sources_give_legal_trees(seed in any::<u64>(), max_rows in 0usize..70, max_depth in 0usize..12) {
        let mut builder = builder();
        let mut sources = any_sources(seed);
        let mut tree = DraftTree::default();
        let limits = StepLimits { max_rows, max_depth, ..StepLimits::NONE };
        for n in 1..20 {
            let committed = varied(n, seed as u32);
            sources.iter_mut().for_each(|source| source.prime(&committed));
            builder.build(&mut sources, &committed, limits, &flat_costs(), &mut tree);
            tree.check_integrity();
            prop_assert!(tree.len() <= max_rows.clamp(1, 32));
            prop_assert!(tree.depths().iter().all(|&depth| depth as usize <= max_depth));
            prop_assert!(tree.tokens().iter().all(|token| token.0 < VOCAB_SIZE));
            prop_assert!(tree.reach().is_sorted_by(|a, b| a >= b));
        }
    }

    #[test]
    fn equal_calls_give_equal_trees(seed in any::<u64>()) {
        let run = || {
            let mut builder = builder();
            let mut sources = any_sources(seed);
            let mut trees = Vec::new();
            for n in 1..12 {
                let committed = varied(n, seed as u32);
                let tree = build(&mut builder, &mut sources, &committed);
                let next = [TokenId(n as u32 % VOCAB_SIZE)];
                let accepted: Vec<NodeIdx> = Vec::new();
                let outcome = StepOutcome { tree: &tree, accepted: &accepted, new_tokens: &next };
                builder.observe(&mut sources, &committed, &outcome);
                trees.push(tree);
            }
            trees
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn the_tree_has_the_best_rate_of_all_sizes(
        seed in any::<u64>(),
        n in 1usize..9,
        stairs in any::<bool>(),
        dear_leaves in any::<bool>(),
    ) {
        let committed = varied(n, seed as u32);
        let mut builder = builder();
        let mut source: Vec<Box<dyn DraftSource>> = vec![Box::new(Random::new(seed, VOCAB_SIZE))];
        let mut costs = flat_costs();
        if stairs {
            costs = costs.with_batch_lens(&[1, 4, 8, 16, 32]);
        }
        if dear_leaves {
            costs = with_dear_leaves(costs);
        }
        let mut tree = DraftTree::default();
        let limits = StepLimits { max_rows: 8, max_depth: 4, ..StepLimits::NONE };
        builder.build(&mut source, &committed, limits, &costs, &mut tree);

        let nodes = all_nodes(&builder, source[0].as_mut(), &committed, 4);
        let mut best = 1.01 / costs.step_us(1, 1);
        let mut gain = 1.0;
        for (rows, (reach, _)) in (2..=8).zip(&nodes) {
            gain += reach;
            best = f32::max(best, gain / costs.step_us(rows, n_leaves(&nodes[..rows - 1])));
        }
        let rate = tree.gain() / costs.step_us(tree.len(), tree.n_leaves());
        let rate = if tree.is_empty_draft() { rate * 1.01 } else { rate };
        prop_assert!((rate - best).abs() <= 1e-5 * best, "{rate} of {best}, {} rows", tree.len());
    }
}

#[test]
fn where_leaves_are_dear_fewer_branches_pay_and_paths_as_ever() {
    let tree = |source: Box<dyn DraftSource>, costs: &CostProfile| {
        let mut tree = DraftTree::default();
        let mut sources = [source];
        sources[0].prime(&[TokenId(1)]);
        builder().build(&mut sources, &[TokenId(1)], StepLimits::NONE, costs, &mut tree);
        tree.check_integrity();
        tree
    };
    let (plain, dear) = (flat_costs(), with_dear_leaves(flat_costs()));
    let branching = || Box::new(Random::new(5, VOCAB_SIZE));
    let (wide, narrow) = (tree(branching(), &plain), tree(branching(), &dear));
    assert!(
        wide.n_leaves() > 2 && narrow.n_leaves() < wide.n_leaves(),
        "{} {}",
        wide.n_leaves(),
        narrow.n_leaves()
    );
    let path = || Box::new(AlwaysRight::new(1, varied(40, 3)));
    assert_eq!(tree(path(), &plain).tokens(), tree(path(), &dear).tokens());
    assert_eq!(tree(path(), &dear).len(), 32);
}

#[test]
fn as_many_sources_as_allowed_are_asked() {
    let response: Vec<TokenId> = [1, 2, 3].map(TokenId).to_vec();
    let empty = || Box::new(ContextSource::new()) as Box<dyn DraftSource>;
    let mut sources: Vec<Box<dyn DraftSource>> = (1..SOURCES_MAX).map(|_| empty()).collect();
    let store = std::sync::Arc::new(HistoryStore::new());
    (0..20).for_each(|_| store.append("a", &response));
    sources.push(Box::new(store.source("a")));
    let tree = build(&mut builder(), &mut sources, &response[..1]);
    assert_eq!(tree.source(NodeIdx(1)), Some(SOURCES_MAX - 1));
    sources.push(empty());
    let mut builder = builder();
    let too_many = std::panic::AssertUnwindSafe(|| build(&mut builder, &mut sources, &response[..1]));
    assert!(std::panic::catch_unwind(too_many).is_err());
}

/// A source under another name.
struct Named(&'static str, Box<dyn DraftSource>);

impl DraftSource for Named {
    fn name(&self) -> &str {
        self.0
    }

    fn evidence(&self) -> EvidenceClass {
        self.1.evidence()
    }

    fn prime(&mut self, committed: &[TokenId]) {
        self.1.prime(committed);
    }

    fn truncate(&mut self, _len: usize) {
        self.1.truncate(0);
    }

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        self.1.anchors(committed, out);
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        self.1.expand(frontier, out);
    }

    fn observe(&mut self, committed: &[TokenId], step: &StepOutcome<'_>) {
        self.1.observe(committed, step);
    }

    fn memory_usage(&self) -> u64 {
        self.1.memory_usage()
    }

    fn fork(&self) -> Box<dyn DraftSource> {
        Box::new(Named(self.0, self.1.fork()))
    }
}

/// A source that was unreliable under another name does not affect this one.
#[test]
fn reliability_is_learnt_by_name() {
    let (wrong, right) = (varied(200, 3), varied(64, 7));
    let rows = |first: &'static str| {
        let mut builder = builder();
        let mut sources =
            [Box::new(Named(first, Box::new(AlwaysWrong::new(1, wrong.clone())))) as Box<dyn DraftSource>];
        replay(&mut builder, &mut sources, &[TokenId(1)], &wrong, &flat_costs());
        let right = AlwaysRight::new(1, right.clone());
        let mut sources = [Box::new(Named("new", Box::new(right))) as Box<dyn DraftSource>];
        build(&mut builder, &mut sources, &[TokenId(1)]).len()
    };
    assert_eq!(rows("old"), 32);
    assert!(rows("new") < 32);
}

/// Proposes one token after any text, with a low probability.
#[derive(Clone)]
struct Unlikely(TokenId);

impl DraftSource for Unlikely {
    stateless_source!("unlikely", Plain);

    fn anchors(&mut self, _committed: &[TokenId], out: &mut Vec<Anchor>) {
        out.push(Anchor { cursor: Cursor(0), match_len: 1 });
    }

    fn expand(&mut self, _frontier: &[Cursor], out: &mut Candidates) {
        let (token, next) = (self.0, Cursor(0));
        out.push(Candidate { parent: 0, token, probability: 0.05, match_len: 1, count: 1, next });
    }
}

/// A claim that failed until its reach is below `reach_min` is withheld and therefore not judged; it is right
/// later.
#[test]
fn a_claim_below_the_least_reach_earns_its_way_back() {
    let (right, wrong) = (TokenId(7), TokenId(8));
    let mut sources: Vec<Box<dyn DraftSource>> = vec![Box::new(Unlikely(right))];
    let mut builder = builder();
    // One step; returns whether the claim was judged.
    let mut step = |said: TokenId| {
        let tree = build(&mut builder, &mut sources, &[TokenId(1)]);
        let outcome = StepOutcome { tree: &tree, accepted: &[], new_tokens: &[said] };
        let mut is_judged = false;
        builder.claims_seen(&outcome, |_, _| is_judged = true);
        builder.observe(&mut sources, &[TokenId(1), said], &outcome);
        is_judged
    };
    let n_fails = (0..10_000).take_while(|_| step(wrong)).count();
    assert!(n_fails < 10_000, "it is withheld some day");
    let n_withheld = (0..10_000).take_while(|_| !step(right)).count();
    assert!(n_withheld < 2_000, "after {n_withheld} steps without it");
    let n_judged = (0..500).filter(|_| step(right)).count();
    assert!(n_judged >= 499, "{n_judged}");
    let mut table = builder.table().clone();
    let slot = table.slot("unlikely", EvidenceClass::Plain);
    let claim = Evidence {
        class: EvidenceClass::Plain,
        probability: 0.05,
        match_len: 1,
        count: 1,
        depth: 1,
        agreement: Agreement::Unknown,
    };
    assert!(table.probability(slot, &claim) > 0.5);
}
