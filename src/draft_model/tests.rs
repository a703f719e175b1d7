//! The tree of keys and values, compared with plain passes over the same tokens, and drafters with errors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;

use super::drafter::Drafter;
use super::kv_tree::{KvTree, Likely, ROOT};
use super::*;
use crate::draft::{Candidates, ComputingSource, Cursor, DraftSource};
use crate::kernels::KvType;
use crate::model::Checkpoint;
use crate::model::weights::LoadOptions;
use refrain_trees::TokenId;

const N_LIKELY: usize = 4;
const N_NODES_MAX: usize = 12;
const CONTEXT_LEN: usize = 64;

/// Short convolutions, the gated delta rule, Mamba-2.
const RECURRENT: [&str; 3] = ["lfm2", "qwen3_5", "granitemoehybrid-dense"];

/// The fixture draft model.
fn model() -> Arc<DraftModel> {
    open("fixtures/draft.gguf")
}

/// A golden model.
fn golden(family: &str) -> Arc<DraftModel> {
    open(&format!("tests/golden/{family}"))
}

/// A model whose passes cost 10 µs and 1 µs for each row.
fn open(path: &str) -> Arc<DraftModel> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let checkpoint = Checkpoint::open(path).expect("the fixture");
    let model = Model::load(&checkpoint, LoadOptions::default()).expect("the fixture");
    let costs = CostProfile::from_measurements(&[(1, 11.0), (64, 74.0)]);
    Arc::new(DraftModel::new("draft", model, Kernels::detect(), Arc::new(Pool::new(1)), costs))
}

fn tree(model: &Arc<DraftModel>) -> KvTree {
    KvTree::new(Arc::clone(model), CONTEXT_LEN, N_LIKELY, N_NODES_MAX).expect("memory")
}

/// The model's likely successors of `text`, from a plain pass over it.
fn from_scratch(model: &Arc<DraftModel>, text: &[TokenId]) -> Vec<Likely> {
    let mut tree = tree(model);
    tree.follow(text);
    tree.compute_root().expect("a text that fits");
    tree.likely(ROOT).to_vec()
}

/// The products of the probabilities on the paths of all nodes, in order.
fn reaches(tree: &KvTree, paths: &[Vec<TokenId>]) -> Vec<f32> {
    let mut reaches: Vec<f32> = vec![1.0];
    for path in &paths[1..] {
        let (&token, above) = path.split_last().expect("only the root's path is empty");
        let parent = paths.iter().position(|path| path == above).expect("a parent is computed");
        let likely = tree.likely(parent as u32).iter().find(|likely| likely.token == token);
        reaches.push(likely.map_or(0.0, |likely| reaches[parent] * likely.probability));
    }
    reaches
}

/// An operation of a session on a tree.
#[derive(Clone, Debug)]
enum Op {
    /// Computes nodes, each below a computed node or an earlier entry (by an index into them), with a likely
    /// successor or another token.
    Compute(Vec<(prop::sample::Index, usize)>),
    /// Computes this many of the likeliest nodes.
    Ahead(usize),
    /// Commits a computed path of at most this many nodes, followed by a token, if there is one.
    Commit(usize, Option<u32>),
    /// Commits tokens that were not drafted.
    Append(Vec<u32>),
    Truncate(prop::sample::Index),
    /// Continues with the fork and drops the original.
    Fork,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => prop::collection::vec((any::<prop::sample::Index>(), 0..N_LIKELY + 2), 1..4).prop_map(Op::Compute),
        2 => (0..6usize).prop_map(Op::Ahead),
        4 => (0..4usize, prop::option::of(0..380u32)).prop_map(|(n, token)| Op::Commit(n, token)),
        1 => prop::collection::vec(0..380u32, 1..6).prop_map(Op::Append),
        1 => any::<prop::sample::Index>().prop_map(Op::Truncate),
        1 => Just(Op::Fork),
    ];
    prop::collection::vec(op, 1..24)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nodes_say_what_a_plain_pass_over_their_path_says(
        first in prop::collection::vec(0..380u32, 1..8),
        ops in ops(),
        family in prop::sample::select(&[None, Some(RECURRENT[0]), Some(RECURRENT[1]), Some(RECURRENT[2])][..]),
        keeps in any::<bool>(),
    ) {
        let model = family.map_or_else(model, golden);
        let mut tree = tree(&model);
        if keeps {
            tree = tree.keeping();
        }
        let mut text: Vec<TokenId> = first.into_iter().map(TokenId).collect();
        // The path of each computed node, the root first.
        let mut paths: Vec<Vec<TokenId>> = Vec::new();
        for op in ops {
            match op {
                Op::Compute(below) => {
                    tree.follow(&text);
                    tree.compute_root().unwrap();
                    if paths.is_empty() {
                        paths.push(Vec::new());
                    }
                    let mut wanted: Vec<(u32, TokenId)> = Vec::new();
                    for (index, rank) in below {
                        let parent = index.index(paths.len() + wanted.len()) as u32;
                        let is_there = (parent as usize) < paths.len();
                        let likely = is_there.then(|| tree.likely(parent).get(rank)).flatten();
                        let token = likely.map_or(TokenId(rank as u32), |likely| likely.token);
                        let is_new = tree.child(parent, token).is_none() && !wanted.contains(&(parent, token));
                        if is_new && wanted.len() < tree.room() {
                            wanted.push((parent, token));
                        }
                    }
                    if !wanted.is_empty() {
                        let first = tree.compute(&wanted).unwrap();
                        prop_assert_eq!(first as usize, paths.len());
                        for (parent, token) in wanted {
                            let above = paths[parent as usize].iter().copied();
                            paths.push(above.chain([token]).collect());
                        }
                    }
                }
                Op::Ahead(n) => {
                    tree.follow(&text);
                    tree.compute_root().unwrap();
                    if paths.is_empty() {
                        paths.push(Vec::new());
                    }
                    let mut open: Vec<(f32, Vec<TokenId>)> = Vec::new();
                    for (node, (path, reach)) in paths.iter().zip(reaches(&tree, &paths)).enumerate() {
                        for likely in tree.likely(node as u32) {
                            let path: Vec<TokenId> = path.iter().copied().chain([likely.token]).collect();
                            if !paths.contains(&path) {
                                open.push((reach * likely.probability, path));
                            }
                        }
                    }
                    open.sort_by(|(a, _), (b, _)| b.total_cmp(a));
                    open.truncate(n.min(tree.room()));
                    prop_assert_eq!(tree.compute_likeliest(n, 0.0).unwrap(), !open.is_empty());
                    paths.extend(open.into_iter().map(|(_, path)| path));
                    prop_assert_eq!(tree.n_nodes() as usize, paths.len());
                }
                Op::Commit(n, token) => {
                    // The newest path is the likeliest to be long.
                    let path = paths.last().map_or(&[][..], |path| &path[..n.min(path.len())]);
                    if path.is_empty() && token.is_none() {
                        continue;
                    }
                    let committed: Vec<TokenId> = path.iter().copied().chain(token.map(TokenId)).collect();
                    text.extend_from_slice(&committed);
                    tree.follow(&text);
                    let stays = tree.keeps() && paths.contains(&committed);
                    let below = paths.iter().filter_map(|path| path.strip_prefix(&committed[..]));
                    paths = if stays { below.map(<[TokenId]>::to_vec).collect() } else { Vec::new() };
                    if stays {
                        prop_assert_eq!(tree.n_nodes() as usize, paths.len());
                    }
                    if token.is_none() {
                        prop_assert_eq!(tree.n_owed(), 0, "the row of the new root is there");
                    }
                }
                Op::Append(tokens) => {
                    text.extend(tokens.into_iter().map(TokenId));
                    tree.follow(&text);
                    paths.clear();
                }
                Op::Truncate(index) => {
                    let len = 1 + index.index(text.len());
                    if len < text.len() {
                        paths.clear();
                    }
                    text.truncate(len);
                    tree.truncate(len);
                }
                Op::Fork => {
                    tree = tree.fork().unwrap();
                    paths.clear();
                }
            }
            if text.len() + N_NODES_MAX > CONTEXT_LEN {
                break;
            }
            for (node, path) in (0u32..).zip(&paths) {
                let whole: Vec<TokenId> = text.iter().chain(path).copied().collect();
                prop_assert_eq!(tree.likely(node), from_scratch(&model, &whole));
            }
        }
        tree.follow(&text);
        tree.compute_root().unwrap();
        prop_assert_eq!(tree.likely(ROOT), from_scratch(&model, &text));
    }
}

#[test]
fn what_is_computed_ahead_costs_the_next_draft_nothing() {
    let mut source = DraftModelSource::new(&model(), CONTEXT_LEN, KvType::F16).unwrap();
    let mut text = vec![TokenId(5), TokenId(6)];
    let mut anchors = Vec::new();
    source.anchors(&text, &mut anchors);
    assert!(!source.compute_ahead(f32::MAX), "without the root nothing is known to be likely");
    source.prepare(&[anchors[0].cursor]);
    assert!(!source.compute_ahead(1.0), "a pass takes longer");
    while source.compute_ahead(f32::MAX) {}
    let computed = source.computed();
    assert!(computed.ahead > 1 && computed.passes == computed.ahead + 1, "{computed:?}");
    // The likeliest token, and the likeliest behind it: a path of the next draft.
    for _ in 0..2 {
        text.push(expanded(&mut source, &text)[0]);
    }
    let next = expanded(&mut source, &text);
    assert_eq!(source.computed(), computed, "the next draft is there");
    assert_eq!(next[..N_LIKELY], from_scratch_of(&text, CONTEXT_LEN));
    // Those of recurrent layers do not outlast a commit.
    let mut source = DraftModelSource::new(&golden(RECURRENT[0]), CONTEXT_LEN, KvType::F16).unwrap();
    expanded(&mut source, &text);
    assert!(!source.compute_ahead(f32::MAX));
}

#[test]
fn nodes_that_stay_are_seen_by_nodes_below_them() {
    let model = model();
    let mut tree = tree(&model).keeping();
    let mut text = vec![TokenId(5), TokenId(6)];
    tree.follow(&text);
    tree.compute_root().unwrap();
    let path = [7, 8, 9].map(TokenId);
    // A sibling before it, so that it moves.
    let nodes = tree.compute(&[(ROOT, TokenId(3)), (ROOT, path[0])]).unwrap();
    tree.compute(&[(nodes + 1, path[1])]).unwrap();
    text.push(path[0]);
    tree.follow(&text);
    let kept = tree.child(ROOT, path[1]).expect("it stays");
    let last = tree.compute(&[(kept, path[2])]).unwrap();
    text.extend_from_slice(&path[1..]);
    assert_eq!(tree.likely(last), from_scratch(&model, &text));
}

#[test]
fn a_committed_path_is_not_computed_again() {
    let model = model();
    let mut tree = tree(&model);
    let mut text = vec![TokenId(5), TokenId(6)];
    tree.follow(&text);
    tree.compute_root().unwrap();
    let next = tree.likely(ROOT)[0].token;
    let node = tree.compute(&[(ROOT, next)]).unwrap();
    let after = tree.likely(node)[0].token;
    let rows = tree.computed().rows;
    // Exactly the path: the root is computed.
    text.push(next);
    tree.follow(&text);
    assert_eq!(tree.n_owed(), 0);
    assert_eq!(tree.likely(ROOT)[0].token, after);
    // One more token is one row.
    text.push(after);
    tree.follow(&text);
    tree.compute_root().unwrap();
    assert_eq!(tree.computed().rows, rows + 1);
}

#[test]
fn recurrent_layers_commit_the_path_of_the_newest_pass() {
    for family in RECURRENT {
        let model = golden(family);
        let mut tree = tree(&model);
        let mut text = vec![TokenId(5), TokenId(6)];
        tree.follow(&text);
        tree.compute_root().unwrap();
        let (first, second) = (tree.likely(ROOT)[0].token, tree.likely(ROOT)[1].token);
        let nodes = tree.compute(&[(ROOT, first), (ROOT, second)]).unwrap();
        let third = tree.likely(nodes + 1)[0].token;
        let below = tree.compute(&[(nodes + 1, third)]).unwrap();
        assert_eq!(tree.computed().rows, 2 + 3 + 4, "{family}: nodes are computed again");
        let last = tree.likely(below).to_vec();
        // The path is in the newest pass alone.
        text.extend([second, third]);
        tree.follow(&text);
        assert_eq!((tree.n_owed(), tree.likely(ROOT)), (0, &last[..]), "{family}");
        // A token that was no node owes its own row, and that of the root, whose pass is over.
        text.push(TokenId(7));
        tree.follow(&text);
        assert_eq!(tree.n_owed(), 2, "{family}");
        tree.compute_root().unwrap();
        assert_eq!(tree.likely(ROOT), from_scratch(&model, &text), "{family}");
    }
}

#[test]
fn cursors_of_one_pass_are_cheaper_than_passes_of_their_own() {
    let mut source = DraftModelSource::new(&model(), CONTEXT_LEN, KvType::F16).unwrap();
    let text = [TokenId(5), TokenId(6)];
    source.prime(&text);
    let mut anchors = Vec::new();
    source.anchors(&text, &mut anchors);
    assert_eq!(anchors.len(), 1);
    let root = anchors[0].cursor;
    assert!(source.expansion_us(&[root]) > 0.0);
    let mut candidates = Candidates::with_limit(100);
    source.expand(&[root], &mut candidates);
    assert_eq!(source.expansion_us(&[root]), 0.0, "it is computed now");
    let below: Vec<Cursor> = candidates.as_slice().iter().map(|candidate| candidate.next).collect();
    assert!(below.len() > 4);
    let (one, four) = (source.expansion_us(&below[..1]), source.expansion_us(&below[..4]));
    assert!(one < four && four < 4.0 * one, "{one} {four}");
    let passes = source.computed().passes;
    source.prepare(&below[..4]);
    assert_eq!(source.expansion_us(&below[..4]), 0.0);
    candidates.clear();
    source.expand(&below[..4], &mut candidates);
    assert_eq!(source.computed().passes, passes + 1);
    assert!(candidates.as_slice().iter().any(|candidate| candidate.parent == 3));
}

#[test]
fn a_path_that_others_claim_is_computed_in_one_pass() {
    let mut source = DraftModelSource::new(&model(), CONTEXT_LEN, KvType::F16).unwrap();
    let text = [TokenId(5), TokenId(6)];
    let mut anchors = Vec::new();
    source.anchors(&text, &mut anchors);
    let path = [7, 8, 9].map(TokenId);
    let step = |at: Cursor, &token: &TokenId| source.advance(at, token).expect("goes on");
    let end = path.iter().fold(anchors[0].cursor, step);
    assert_eq!(path.iter().fold(anchors[0].cursor, |at, &token| source.advance(at, token).unwrap()), end);
    let mut candidates = Candidates::with_limit(100);
    source.expand(&[end], &mut candidates);
    assert_eq!(source.computed().passes, 2, "the root, and the path");
    assert_eq!(source.expansion_us(&[end]), 0.0);
    let whole: Vec<TokenId> = text.into_iter().chain(path).collect();
    let expected: Vec<Likely> = from_scratch(&model(), &whole);
    for (found, expected) in candidates.as_slice().iter().zip(expected) {
        assert_eq!((found.token, found.probability), (expected.token, expected.probability));
    }
    // Committed nodes need not be computed again.
    source.anchors(&whole[..4], &mut anchors);
    assert_eq!(source.expansion_us(&[anchors[1].cursor]), 0.0);
}

#[test]
fn an_error_turns_drafting_off_and_is_told() {
    let mut source = DraftModelSource::new(&model(), CONTEXT_LEN, KvType::F16).unwrap();
    let outside = [TokenId(5), TokenId(1 << 20)];
    let mut anchors = Vec::new();
    source.anchors(&outside, &mut anchors);
    source.prepare(&[anchors[0].cursor]);
    let off = source.computed().off.expect("a reason");
    assert!(off.contains("1048576"), "{off}");
    anchors.clear();
    source.anchors(&[TokenId(5)], &mut anchors);
    assert!(anchors.is_empty());
    assert!(source.fork().computing().unwrap().computed().off.is_some());
}

#[test]
fn a_text_that_is_too_long_is_not_drafted_from_until_it_is_short_again() {
    let mut source = DraftModelSource::new(&model(), 8, KvType::F16).unwrap();
    let text: Vec<TokenId> = (0..9).map(TokenId).collect();
    let mut anchors = Vec::new();
    source.anchors(&text, &mut anchors);
    assert!(anchors.is_empty());
    assert!(source.computed().off.unwrap().contains("context of 8"));
    source.truncate(8);
    source.anchors(&text[..8], &mut anchors);
    assert_eq!((anchors.len(), source.computed().off), (1, None));
}

#[test]
fn who_is_not_asked_keeps_up_in_long_strides() {
    let text: Vec<TokenId> = (0..700).map(|i| TokenId(i * 7 % 500)).collect();
    let mut source = DraftModelSource::new(&model(), 1024, KvType::F16).unwrap();
    let n_passes = |source: &DraftModelSource| source.computed().passes;
    let mut anchors = Vec::new();
    // Returns the lengths at which the text was prefilled, and the cost of a draft at each length.
    let mut follow = |source: &mut DraftModelSource, lens: std::ops::Range<usize>| {
        let (mut read_at, mut costs) = (Vec::new(), Vec::new());
        for len in lens {
            let before = n_passes(source);
            anchors.clear();
            source.anchors(&text[..len], &mut anchors);
            read_at.extend((n_passes(source) > before).then_some(len));
            costs.push(source.expansion_us(&[anchors[0].cursor]));
        }
        (read_at, costs)
    };
    source.prime(&text[..5]);
    let (read_at, costs) = follow(&mut source, 6..600);
    assert_eq!(read_at, [257, 513]);
    assert!(costs[..200].is_sorted() && costs[200] > costs[0] && costs[251] < costs[200], "{costs:?}");
    for len in [599, 600] {
        let asked = expanded(&mut source, &text[..len]);
        assert_eq!(asked[..N_LIKELY], from_scratch_of(&text[..len], 1024), "{len}");
    }
    // After a request for a draft, the next prefill comes earlier.
    assert_eq!(follow(&mut source, 601..660).0, [633]);
    assert!(follow(&mut source, 660..700).0.is_empty());
    source.release();
    source.prime(&text[..300]);
    assert_eq!(expanded(&mut source, &text[..300])[..N_LIKELY], from_scratch_of(&text[..300], 1024));
}

/// The tokens proposed after `text`.
fn expanded(source: &mut DraftModelSource, text: &[TokenId]) -> Vec<TokenId> {
    let (mut anchors, mut candidates) = (Vec::new(), Candidates::with_limit(100));
    source.anchors(text, &mut anchors);
    source.expand(&[anchors[0].cursor], &mut candidates);
    candidates.as_slice().iter().map(|candidate| candidate.token).collect()
}

/// The model's likely successors of `text`, read token by token.
fn from_scratch_of(text: &[TokenId], context_len: usize) -> Vec<TokenId> {
    let mut tree = KvTree::new(model(), context_len, N_LIKELY, N_NODES_MAX).expect("memory");
    for len in 1..=text.len() {
        tree.follow(&text[..len]);
        tree.compute_root().expect("a text that fits");
    }
    tree.likely(ROOT).iter().map(|likely| likely.token).collect()
}

#[test]
fn a_cancelled_pass_drafts_nothing_and_is_made_later() {
    let mut drafter = Drafter::new(&model(), CONTEXT_LEN, N_LIKELY, N_NODES_MAX).unwrap();
    let cancel = Arc::new(AtomicBool::new(true));
    drafter.watch(&cancel);
    drafter.follow(&[TokenId(5), TokenId(6)]);
    assert_eq!(drafter.with(KvTree::compute_root), None);
    assert_eq!(drafter.computed().off, None);
    assert!(cancel.load(Ordering::Relaxed), "the target's pass is to see it too");
    cancel.store(false, Ordering::Relaxed);
    assert_eq!(drafter.with(KvTree::compute_root), Some(()));

    let mut source = DraftModelSource::new(&model(), CONTEXT_LEN, KvType::F16).unwrap();
    source.watch(&cancel);
    cancel.store(true, Ordering::Relaxed);
    let mut anchors = Vec::new();
    source.anchors(&[TokenId(5), TokenId(6)], &mut anchors);
    let below = source.advance(anchors[0].cursor, TokenId(7)).unwrap();
    let mut candidates = Candidates::with_limit(100);
    source.expand(&[anchors[0].cursor, below], &mut candidates);
    assert!(candidates.as_slice().is_empty());
}

#[test]
fn the_buffers_of_passes_are_counted() {
    let model = model();
    let mut tree = tree(&model);
    let before = tree.memory_usage();
    tree.follow(&[TokenId(5); 40]);
    tree.compute_root().unwrap();
    let config = model.config();
    // Two buffers of the feed-forward layer are the largest of a pass.
    let least = 40 * 2 * config.widths().ffn_dim * size_of::<f32>();
    let logits = config.vocab_size * size_of::<f32>();
    assert!(tree.memory_usage() >= before + logits + least, "{before} {}", tree.memory_usage());
}
