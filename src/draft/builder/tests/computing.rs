//! Sources that compute: when they are expanded, and how their claims combine with text.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use super::{build, builder};
use crate::draft::testing::{AlwaysRight, stateless_source};
use crate::draft::*;
use refrain_trees::TokenId;

/// A source that computes: at each node the same tokens with the same probabilities. A pass takes `pass_us`,
/// plus `row_us` for each node, and is recorded with its number of nodes.
#[derive(Clone)]
struct Computing {
    probabilities: Vec<f32>,
    pass_us: f32,
    row_us: f32,
    ready: BTreeSet<u64>,
    passes: Arc<Mutex<Vec<usize>>>,
    excluded: Option<TokenId>,
}

impl Computing {
    fn new(probabilities: &[f32], pass_us: f32, row_us: f32) -> Self {
        let (probabilities, passes) = (probabilities.to_vec(), Arc::default());
        Computing { probabilities, pass_us, row_us, ready: BTreeSet::new(), passes, excluded: None }
    }
}

impl ComputingSource for Computing {
    fn advance(&mut self, cursor: Cursor, token: TokenId) -> Option<Cursor> {
        Some(Cursor(cursor.0.wrapping_mul(8).wrapping_add(u64::from(token.0) + 1)))
    }

    fn excludes(&mut self, _cursor: Cursor, token: TokenId) -> bool {
        self.excluded == Some(token)
    }

    fn expansion_us(&self, frontier: &[Cursor]) -> f32 {
        match frontier.iter().filter(|cursor| !self.ready.contains(&cursor.0)).count() {
            0 => 0.0,
            n => self.pass_us + self.row_us * n as f32,
        }
    }

    fn prepare(&mut self, frontier: &[Cursor]) {
        let n_before = self.ready.len();
        self.ready.extend(frontier.iter().map(|cursor| cursor.0));
        if self.ready.len() > n_before {
            self.passes.lock().unwrap().push(self.ready.len() - n_before);
        }
    }

    fn watch(&mut self, _cancel: &Arc<AtomicBool>) {}

    fn computed(&self) -> Computed {
        Computed { passes: self.passes.lock().unwrap().len(), ..Computed::default() }
    }
}

impl DraftSource for Computing {
    stateless_source!("computing", DraftModel);

    fn computing(&mut self) -> Option<&mut dyn ComputingSource> {
        Some(self)
    }

    fn anchors(&mut self, _committed: &[TokenId], out: &mut Vec<Anchor>) {
        self.ready.clear();
        out.push(Anchor { cursor: Cursor(0), match_len: 1 });
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        self.prepare(frontier);
        for (parent, cursor) in (0..).zip(frontier) {
            for (token, &probability) in (0u32..).zip(&self.probabilities) {
                let next = Cursor(cursor.0.wrapping_mul(8).wrapping_add(u64::from(token) + 1));
                let token = TokenId(token);
                out.push(Candidate { parent, token, probability, match_len: 1, count: 1, next });
            }
        }
    }
}

/// Nodes of each pass for a tree of `computing` and `others`, and the rows of the tree.
fn passes(computing: Computing, others: Vec<Box<dyn DraftSource>>) -> (Vec<usize>, usize) {
    let passes = Arc::clone(&computing.passes);
    let mut sources = others;
    sources.push(Box::new(computing));
    let tree = build(&mut builder(), &mut sources, &[TokenId(1)]);
    let passes = passes.lock().unwrap().clone();
    (passes, tree.len())
}

#[test]
fn a_source_that_computes_is_asked_where_a_pass_pays() {
    // A step takes 10 ms.
    let (few, rows) = passes(Computing::new(&[0.9], 2000.0, 0.0), Vec::new());
    assert!(few.len() >= 2 && rows == few.len() + 1, "{few:?} {rows}");
    let (more, rows) = passes(Computing::new(&[0.9], 200.0, 0.0), Vec::new());
    assert!(more.len() > few.len() && rows == more.len() + 1, "{more:?} {rows}");
    assert_eq!(passes(Computing::new(&[0.9], 20_000.0, 0.0), Vec::new()), (vec![], 1));
}

#[test]
fn a_token_that_a_source_excludes_is_not_drafted() {
    let response = [1, 2, 3, 4].map(TokenId);
    let drafted = |excluded: Option<TokenId>| {
        let text = Box::new(AlwaysRight::new(1, response.to_vec()));
        let computing = Computing { excluded, ..Computing::new(&[], 0.0, 0.0) };
        let mut sources: Vec<Box<dyn DraftSource>> = vec![text, Box::new(computing)];
        let tree = build(&mut builder(), &mut sources, &[TokenId(1)]);
        tree.tokens().to_vec()
    };
    let all = drafted(None);
    assert!(all.len() >= 4, "{all:?}");
    assert_eq!(drafted(Some(all[2])), all[..2], "the text ends before the token");
    let own = drafted(Some(TokenId(9)));
    assert_eq!(own, all, "a token that nobody proposes");
}

#[test]
fn what_passes_take_is_a_cost_of_the_tree() {
    // If the likeliest claim is nearly worthless, one pass is made, and plain decoding remains.
    let (passes, rows) = passes(Computing::new(&[0.001], 2000.0, 0.0), Vec::new());
    assert_eq!((passes, rows), (vec![1], 1));
}

#[test]
fn passes_that_delay_nothing_are_made_for_less() {
    let n_passes = |hidden_us: f32, pass_us: f32| {
        let mut costs = CostProfile::from_measurements(&[(1, 10_000.0), (32, 10_300.0)]);
        (0..40).for_each(|_| costs.observe_hidden(hidden_us));
        let source = Computing::new(&[0.8], pass_us, 0.0);
        let passes = Arc::clone(&source.passes);
        let mut sources: Vec<Box<dyn DraftSource>> = vec![Box::new(source)];
        let mut tree = DraftTree::default();
        builder().build(&mut sources, &[TokenId(1)], StepLimits::NONE, &costs, &mut tree);
        assert_eq!(tree.len(), passes.lock().unwrap().len() + 1);
        tree.len() - 1
    };
    let [none, some, all] = [0.0, 5_000.0, 1e6].map(|hidden_us| n_passes(hidden_us, 1000.0));
    assert!(0 < none && none <= some && some <= all && none < all, "{none} {some} {all}");
    assert_eq!(all, n_passes(0.0, 500.0), "as if they took half the time");
}

#[test]
fn passes_are_serial_while_narrow_and_grouped_when_several_good_nodes_wait() {
    // Rows of a pass are nearly free, and the four children are equally likely.
    let (grouped, _) = passes(Computing::new(&[0.24; 4], 500.0, 10.0), Vec::new());
    assert_eq!(grouped[..2], [1, 4], "{grouped:?}");
    // One child is much likelier, and each row of a pass costs as much as a pass.
    let (serial, _) = passes(Computing::new(&[0.8, 0.1, 0.05], 0.0, 500.0), Vec::new());
    assert!(serial.len() > 2 && serial.iter().all(|&n| n == 1), "{serial:?}");
}

#[test]
fn a_source_that_computes_is_not_asked_what_others_know() {
    let output = vec![TokenId(7); 40];
    let known: Vec<Box<dyn DraftSource>> = vec![Box::new(AlwaysRight::new(1, output))];
    let (passes, rows) = passes(Computing::new(&[0.9], 2000.0, 0.0), known);
    assert!(passes.is_empty() && rows > 8, "{passes:?} {rows}");
}

/// The context of the tokens of [`tree_with_history`]: a match so long that text is nearly certain.
const KNOWN: [u32; 12] = [30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 1];

/// A history in which 2, 3, 4, 5 follows [`KNOWN`], in 20 responses.
fn history(committed: &[TokenId]) -> Box<dyn DraftSource> {
    let store = Arc::new(HistoryStore::new());
    let response: Vec<TokenId> = KNOWN.into_iter().chain([2, 3, 4, 5]).map(TokenId).collect();
    (0..20).for_each(|_| store.append("a", &response));
    let mut source = store.source("a");
    // The response has begun: its newest token was not primed.
    source.prime(&committed[..committed.len() - 1]);
    Box::new(source)
}

/// The tree of both sources after the last `n_known` tokens of [`KNOWN`]; a step takes 1 µs.
fn tree_with_history(n_known: usize, probabilities: &[f32], pass_us: f32) -> DraftTree {
    let committed = &KNOWN.map(TokenId)[KNOWN.len() - n_known..];
    let mut sources: Vec<Box<dyn DraftSource>> = vec![history(committed)];
    if !probabilities.is_empty() {
        sources.push(Box::new(Computing::new(probabilities, pass_us, 0.0)));
    }
    let mut tree = DraftTree::default();
    let costs = CostProfile::free_rows(1.0);
    builder().build(&mut sources, committed, StepLimits::NONE, &costs, &mut tree);
    tree.check_integrity();
    tree
}

#[test]
fn text_that_a_draft_model_contradicts_is_worth_little() {
    let reach = |tree: &DraftTree, token: u32| {
        tree.child(NodeIdx::ROOT, TokenId(token)).map_or(0.0, |node| tree.reach()[node.index()])
    };
    let alone = reach(&tree_with_history(2, &[], 0.0), 2);
    let contradicted = tree_with_history(2, &[0.5, 0.1], 0.001);
    assert!(reach(&contradicted, 2) < 0.2 * alone, "{} of {alone}", reach(&contradicted, 2));
    assert!(reach(&contradicted, 0) > 0.4);
    let agreed = tree_with_history(2, &[0.1, 0.1, 0.5], 0.001);
    assert!(reach(&agreed, 2) >= 0.5);
}

#[test]
fn a_draft_model_goes_on_where_text_ends() {
    let deepest = |tree: &DraftTree| tree.depths().iter().copied().max();
    assert_eq!(deepest(&tree_with_history(12, &[], 0.0)), Some(4));
    // Tokens that text predicts with certainty are not worth a pass, so the source reaches its node by
    // following the text's claims.
    let tree = tree_with_history(12, &[0.3], 0.08);
    let mut node = NodeIdx::ROOT;
    for token in [2, 3, 4, 5, 0] {
        node = tree.child(node, TokenId(token)).unwrap_or_else(|| panic!("{token} is not there"));
    }
}
