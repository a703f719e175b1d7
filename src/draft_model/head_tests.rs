//! Draft heads: their arithmetic against the reference of `tools/make-goldens`, and their tree of keys and values
//! against plain passes, with hidden states that depend on all tokens before them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use safetensors::SafeTensors;

use super::hidden_rows::CHUNK;
use super::hidden_rows::STATES_MAX;
use super::kv_tree::{KvTree, Likely, ROOT};
use super::*;
use crate::draft::{Candidates, ComputingSource, DraftSource, HiddenStates};
use crate::kernels::KvType;
use crate::model::Checkpoint;
use crate::model::weights::{LoadOptions, Quantize};
use refrain_trees::TokenId;

const N_LIKELY: usize = 4;
const N_NODES_MAX: usize = 12;

fn golden(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(path)
}

/// The kinds of heads.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Mtp,
    Eagle3,
}

/// A golden head.
fn head(kind: Kind, quantize: Quantize) -> Arc<DraftModel> {
    let options = LoadOptions { quantize, ..LoadOptions::default() };
    let load = |target: &str, head: &Checkpoint| {
        let target = Model::load(&Checkpoint::open(golden(target)).unwrap(), options).unwrap();
        let model = Model::load_head(head, &target, options).unwrap();
        let costs = CostProfile::from_measurements(&[(1, 11.0), (64, 74.0)]);
        DraftModel::new("head", model, Kernels::detect(), Arc::new(Pool::new(1)), costs)
    };
    Arc::new(match kind {
        Kind::Mtp => {
            // In a folder without its target.
            let folder = tempfile::tempdir().unwrap();
            for (from, to) in [("config.json", "config.json"), ("mtp.safetensors", "model.safetensors")] {
                std::fs::copy(golden("qwen3_5").join(from), folder.path().join(to)).unwrap();
            }
            load("qwen3_5", &Checkpoint::open_mtp(folder.path()).unwrap())
        }
        Kind::Eagle3 => {
            let head = Checkpoint::open(golden("llama/eagle3")).unwrap();
            load("llama", &head).eagle3([0, 2, 3], head.draft_tokens().cloned())
        }
    })
}

fn tree(model: &Arc<DraftModel>) -> KvTree {
    KvTree::new(Arc::clone(model), 64, N_LIKELY, N_NODES_MAX).unwrap()
}

#[test]
fn heads_compute_what_the_references_do() {
    computes_the_golden(Kind::Mtp, "qwen3_5/mtp.safetensors");
    computes_the_golden(Kind::Eagle3, "llama/eagle3/golden.safetensors");
}

fn computes_the_golden(kind: Kind, file: &str) {
    let bytes = std::fs::read(golden(file)).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let words = |name: &str| {
        let data = tensors.tensor(name).unwrap().data().to_vec();
        data.chunks_exact(4).map(|word| word.try_into().unwrap()).collect::<Vec<[u8; 4]>>()
    };
    let floats = |name: &str| words(name).into_iter().map(f32::from_le_bytes).collect::<Vec<_>>();
    let tokens = |name: &str| {
        words(name).into_iter().map(|word| TokenId(u32::from_le_bytes(word))).collect::<Vec<_>>()
    };
    let (prompt, drafted) = (tokens("prompt"), tokens("drafted"));
    let model = head(kind, Quantize::F32);
    let (n_logits, state_dim) = (model.config().n_logits(), model.config().target_state_dim());
    // The number of a token in the head's vocabulary.
    let number = |token: TokenId| {
        let of_head = |tokens: &Arc<[TokenId]>| tokens.iter().position(|&own| own == token).unwrap();
        model.tokens.as_ref().map_or(token.index(), of_head)
    };
    let mut tree = KvTree::new(Arc::clone(&model), 64, n_logits, N_NODES_MAX).unwrap();
    // The newest token has no state yet.
    let states = &floats("states")[..(prompt.len() - 1) * state_dim];
    tree.read_hidden(&prompt, 0, states).unwrap();
    tree.compute_root().unwrap();
    let mut node = ROOT;
    for (i, logits) in floats("logits").chunks_exact(n_logits).enumerate() {
        assert_eq!(tree.likely(node)[0].token, drafted[i], "{kind:?}, draft {i}");
        let total: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        for likely in tree.likely(node) {
            let expected = f64::from(logits[number(likely.token)]) - total.ln();
            let found = f64::from(likely.probability).ln();
            // Keys and values are kept in 16 bits.
            assert!((found - expected).abs() < 3e-3, "{kind:?}, {i}, {:?}: {found} {expected}", likely.token);
        }
        node = tree.compute(&[(node, drafted[i])]).unwrap();
    }
}

/// A hidden state for the last position of `text`: numbers that follow from all of its tokens.
fn state(state_dim: usize, text: &[TokenId]) -> Vec<f32> {
    let mut hash = text.iter().fold(0xCBF2_9CE4_8422_2325u64, |hash, token| {
        (hash ^ u64::from(token.0)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    let mut next = || {
        hash = hash.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (hash >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..state_dim).map(|_| next()).collect()
}

/// Gives the tree the states at `positions` of `text`.
fn compute(tree: &mut KvTree, text: &[TokenId], positions: std::ops::Range<usize>) {
    let (first, dim) = (positions.start, tree.model().config().target_state_dim());
    let states = positions.flat_map(|position| state(dim, &text[..=position]));
    tree.read_hidden(text, first, &states.collect::<Vec<_>>()).unwrap();
}

/// The likely successors of a path behind `text`, computed token by token.
fn from_scratch(model: &Arc<DraftModel>, text: &[TokenId], path: &[TokenId]) -> Vec<Likely> {
    let mut tree = tree(model);
    for n in 2..=text.len() {
        compute(&mut tree, &text[..n], n - 2..n - 1);
        tree.compute_root().unwrap();
    }
    let mut node = ROOT;
    for &token in path {
        node = tree.compute(&[(node, token)]).unwrap();
    }
    tree.likely(node).to_vec()
}

#[derive(Clone, Debug)]
enum Op {
    Root,
    /// Parents, by a share of the nodes that are there or wanted, and the rank of their tokens.
    Nodes(Vec<(prop::sample::Index, usize)>),
    /// A part of the newest path, and further tokens.
    Commit(usize, Vec<u32>),
    Truncate(prop::sample::Index),
    Fork,
}

fn op() -> impl Strategy<Value = Op> {
    let token = 0..380u32;
    prop_oneof![
        3 => Just(Op::Root),
        3 => prop::collection::vec((any::<prop::sample::Index>(), 0..N_LIKELY), 1..5).prop_map(Op::Nodes),
        3 => (0..4usize, prop::collection::vec(token, 1..4)).prop_map(|(n, tokens)| Op::Commit(n, tokens)),
        1 => any::<prop::sample::Index>().prop_map(Op::Truncate),
        1 => Just(Op::Fork),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nodes_and_roots_are_those_of_plain_passes(
        kind in prop_oneof![Just(Kind::Mtp), Just(Kind::Eagle3)],
        ops in prop::collection::vec(op(), 1..14),
    ) {
        let model = head(kind, Quantize::Q8_0);
        let mut known: HashMap<(Vec<TokenId>, Vec<TokenId>), Vec<Likely>> = HashMap::new();
        let mut expected = |text: &[TokenId], path: &[TokenId]| {
            let key = (text.to_vec(), path.to_vec());
            known.entry(key).or_insert_with(|| from_scratch(&model, text, path)).clone()
        };
        let mut text: Vec<TokenId> = [7, 3, 9].map(TokenId).into();
        let mut tree = tree(&model);
        compute(&mut tree, &text, 0..2);
        // The paths of the nodes.
        let mut paths: Vec<Vec<TokenId>> = Vec::new();
        for op in ops {
            match op {
                Op::Root | Op::Nodes(_) if !tree.has_root() => {}
                Op::Root => {
                    tree.compute_root().unwrap();
                    paths.resize(paths.len().max(1), Vec::new());
                }
                Op::Nodes(below) => {
                    tree.compute_root().unwrap();
                    paths.resize(paths.len().max(1), Vec::new());
                    let mut wanted: Vec<(u32, TokenId)> = Vec::new();
                    for (index, rank) in below {
                        let parent = index.index(paths.len() + wanted.len()) as u32;
                        let token = TokenId(rank as u32);
                        let is_new = tree.child(parent, token).is_none() && !wanted.contains(&(parent, token));
                        if is_new && wanted.len() < tree.room() {
                            wanted.push((parent, token));
                        }
                    }
                    for pass in tree.passes(&wanted) {
                        let first = paths.len() + pass.start;
                        let parents = wanted[pass].iter().map(|&(parent, _)| parent as usize);
                        prop_assert!(parents.max() < Some(first), "a pass has no node and its parent");
                    }
                    tree.compute(&wanted).unwrap();
                    for (parent, token) in wanted {
                        let above = paths[parent as usize].iter().copied();
                        paths.push(above.chain([token]).collect());
                    }
                }
                Op::Commit(n, tokens) => {
                    let path = paths.last().map_or(&[][..], |path| &path[..n.min(path.len())]).to_vec();
                    let n_before = text.len();
                    text.extend(path.into_iter().chain(tokens.into_iter().map(TokenId)));
                    compute(&mut tree, &text, n_before - 1..text.len() - 1);
                    paths.clear();
                    prop_assert!(tree.has_root());
                }
                Op::Truncate(index) => {
                    let len = 2 + index.index(text.len() - 1);
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
            if text.len() + N_NODES_MAX > 60 {
                break;
            }
            for (node, path) in (0u32..).zip(&paths) {
                prop_assert_eq!(tree.likely(node), expected(&text, path));
            }
        }
        // Whatever was, the next token of the target makes a root.
        let n_before = text.len();
        text.push(TokenId(1));
        compute(&mut tree, &text, n_before - 1..n_before);
        tree.compute_root().unwrap();
        prop_assert_eq!(tree.likely(ROOT), expected(&text, &[]));
    }
}

#[test]
fn positions_without_states_are_left_out() {
    let model = head(Kind::Mtp, Quantize::Q8_0);
    let text: Vec<TokenId> = (0..20).map(|i| TokenId(i * 7 % 300)).collect();
    let mut tree = tree(&model);
    // The states of a restored beginning never come.
    compute(&mut tree, &text[..15], 9..14);
    assert_eq!((tree.text_len(), tree.has_root()), (5, true));
    tree.compute_root().unwrap();
    // Nor do those of tokens that were computed under memory pressure.
    tree.follow(&text[..17]);
    assert!(!tree.has_root(), "the state before the newest token is missing");
    compute(&mut tree, &text[..19], 16..18);
    assert_eq!((tree.text_len(), tree.has_root()), (7, true));
    tree.compute_root().unwrap();
    assert_eq!(tree.computed().off, None);
    // A released tree begins anew.
    tree.release();
    assert!(!tree.has_root());
    compute(&mut tree, &text, 18..19);
    assert_eq!((tree.text_len(), tree.has_root()), (1, true));
    tree.compute_root().unwrap();
}

#[test]
fn long_texts_are_read_as_their_states_come() {
    let model = head(Kind::Eagle3, Quantize::Q8_0);
    let n = 3 * CHUNK;
    let text: Vec<TokenId> = (0..n as u32).map(|i| TokenId(i * 7 % 300)).collect();
    let mut tree = KvTree::new(Arc::clone(&model), n, N_LIKELY, N_NODES_MAX).unwrap();
    compute(&mut tree, &text, 0..n - 1);
    assert!((1..=CHUNK).contains(&tree.n_owed()), "{}", tree.n_owed());
    assert!(tree.memory_usage() < KvTree::bytes(model.config(), n, N_NODES_MAX) as usize);
    let mut source = DraftModelSource::new(&model, n, KvType::F16).unwrap();
    assert_eq!(source.reads_hidden(), Some(HiddenStates::Before([0, 2, 3])));
    let (mut anchors, mut candidates) = (Vec::new(), Candidates::with_limit(100));
    source.anchors(&text, &mut anchors);
    assert!(anchors.is_empty(), "no state has come");
    let states: Vec<f32> = (0..n - 1)
        .flat_map(|position| state(tree.model().config().target_state_dim(), &text[..=position]))
        .collect();
    source.read_hidden(&text, 0, &states);
    source.anchors(&text, &mut anchors);
    source.expand(&[anchors[0].cursor], &mut candidates);
    tree.compute_root().unwrap();
    for (found, expected) in candidates.as_slice().iter().zip(tree.likely(ROOT)) {
        assert_eq!((found.token, found.probability), (expected.token, expected.probability));
    }
    // A path that others propose takes a pass for each token, and its price says so.
    let first = candidates.as_slice()[0].next;
    let below = source.advance(first, TokenId(5)).unwrap();
    assert!(source.expansion_us(&[below]) > 1.9 * source.expansion_us(&[first]));
    let passes = source.computed().passes;
    source.prepare(&[below]);
    assert_eq!((source.computed().passes, source.expansion_us(&[below])), (passes + 2, 0.0));
}

/// Whatever becomes of the passes, the states that are kept are bounded, and the head goes on with the newest of them.
#[test]
fn states_of_reads_that_are_cancelled_are_bounded() {
    for kind in [Kind::Mtp, Kind::Eagle3] {
        let model = head(kind, Quantize::Q8_0);
        let dim = model.config().target_state_dim();
        let n = 7 * CHUNK;
        let text: Vec<TokenId> = (0..n as u32 + 2).map(|i| TokenId(i * 7 % 300)).collect();
        let states: Vec<f32> =
            (0..n + 1).flat_map(|position| state(dim, &text[position..=position])).collect();
        let states = |positions: std::ops::Range<usize>| &states[positions.start * dim..positions.end * dim];
        let mut tree = KvTree::new(Arc::clone(&model), n, N_LIKELY, N_NODES_MAX).unwrap();
        tree.read_hidden(&text[..11], 0, states(0..10)).unwrap();
        tree.compute_root().unwrap();
        let read = tree.text_len();
        let cancel = Arc::new(AtomicBool::new(true));
        tree.watch(&cancel);
        for first in (10..n).step_by(100) {
            let end = n.min(first + 100);
            let cancelled = tree.read_hidden(&text[..end + 1], first, states(first..end));
            assert!(matches!(cancelled, Ok(()) | Err(ForwardError::Cancelled)));
            assert!(tree.n_states() <= STATES_MAX, "{} at {end}", tree.n_states());
            assert!(tree.memory_usage() < KvTree::bytes(model.config(), n, N_NODES_MAX) as usize);
        }
        assert_eq!(tree.text_len(), read + STATES_MAX, "{kind:?}: the oldest gave way");
        cancel.store(false, Ordering::Relaxed);
        tree.compute_root().unwrap();
        // As if the states that gave way had never come.
        let mut expected = KvTree::new(Arc::clone(&model), n, N_LIKELY, N_NODES_MAX).unwrap();
        expected.read_hidden(&text[..11], 0, states(0..10)).unwrap();
        expected.read_hidden(&text[..n + 1], n - STATES_MAX, states(n - STATES_MAX..n)).unwrap();
        expected.compute_root().unwrap();
        assert_eq!(tree.likely(ROOT), expected.likely(ROOT), "{kind:?}");
    }
}

/// A context that ends before the text: no state behind it is kept, and a cut makes room again.
#[test]
fn a_full_context_takes_no_more_states() {
    for kind in [Kind::Mtp, Kind::Eagle3] {
        let model = head(kind, Quantize::Q8_0);
        let text: Vec<TokenId> = (0..600).map(|i| TokenId(i * 7 % 300)).collect();
        let mut tree = KvTree::new(Arc::clone(&model), 50, N_LIKELY, N_NODES_MAX).unwrap();
        for (first, end) in [(0, 49), (49, 50), (50, 51), (51, 400), (400, 599)] {
            let has_room = tree.reads_hidden().is_some();
            assert_eq!(has_room, end <= 50, "{kind:?}, {end}");
            compute(&mut tree, &text[..end + 1], first..end);
            assert!(tree.text_len() <= 50 && tree.n_states() <= 50, "{kind:?}, {end}");
            assert_eq!(tree.exceeded_by(), Some(end + 1).filter(|_| end > 50), "{kind:?}");
            assert_eq!(tree.has_root(), end <= 50, "{kind:?}, {end}");
            if tree.has_root() {
                tree.compute_root().unwrap();
            }
        }
        tree.truncate(40);
        assert!(tree.reads_hidden().is_some() && tree.exceeded_by().is_none());
        let mut text = text[..40].to_vec();
        text.push(TokenId(3));
        compute(&mut tree, &text, 39..40);
        tree.compute_root().unwrap();
        assert_eq!(tree.likely(ROOT), from_scratch(&model, &text, &[]), "{kind:?}");
    }
}
