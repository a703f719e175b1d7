//! Compares recurrent layers with a plain loop over committed tokens, bit for bit: trees, commits, truncations, checkpoints, forks,
//! snapshots, dropped rows, failed passes.

use proptest::prelude::*;

use super::*;
use crate::kernels::{Kernels, KeySharing, Pool, RowPart, StateInputs, StateRule, StateScratch, StateShape};
use crate::model::compute::Compute;

/// A layer with random weights: the convolution of a token's inputs gives queries, keys and values.
struct Layer {
    shape: RecurrentShape,
    /// `[conv_len, conv_dim]`
    weight: Vec<f32>,
    bias: Option<Vec<f32>>,
}

/// In −1..1, a function of its arguments.
fn number(token: u32, i: usize) -> f32 {
    let mut x = (u64::from(token) << 32 | i as u64).wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ x >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 29;
    (x >> 40) as f32 / (1 << 23) as f32 - 1.0
}

impl Layer {
    fn new(shape: RecurrentShape, with_bias: bool) -> Self {
        let weight = (0..shape.conv_len * shape.conv_dim).map(|i| 0.5 * number(1 << 30, i)).collect();
        let bias = with_bias.then(|| (0..shape.conv_dim).map(|i| 0.5 * number(1 << 31, i)).collect());
        Self { shape, weight, bias }
    }

    /// Columns of a token's inputs: those of the convolution, or of queries, keys and values without one.
    fn n_columns(&self) -> usize {
        let states = self.shape.states.map_or(0, |states| 2 * states.key_len() + states.value_len());
        self.shape.conv_dim.max(states)
    }

    fn out_len(&self) -> usize {
        self.shape.states.map_or(self.shape.conv_dim, |states| states.value_len())
    }

    fn x(&self, token: u32) -> impl Iterator<Item = f32> {
        (0..self.n_columns()).map(move |i| number(token, i))
    }

    fn decay(&self, token: u32) -> impl Iterator<Item = f32> {
        (0..self.shape.states.map_or(0, |states| states.n_heads))
            .map(move |i| 0.5 + 0.5 * number(token, 1000 + i))
    }

    fn gain(&self, token: u32) -> impl Iterator<Item = f32> {
        (0..self.shape.states.map_or(0, |states| states.n_heads)).map(move |i| number(token, 2000 + i).abs())
    }
}

/// The state of a plain run, one token at a time.
#[derive(Clone)]
struct Plain {
    /// `[n_heads, key_dim, value_dim]`
    states: Vec<f32>,
    /// The last `conv_len − 1` inputs.
    tail: Vec<Vec<f32>>,
}

impl Plain {
    fn new(layer: &Layer) -> Self {
        let n_states =
            layer.shape.states.map_or(0, |states| states.n_heads * states.key_dim * states.value_dim);
        let tail_len = if layer.shape.conv_dim == 0 { 0 } else { layer.shape.conv_len - 1 };
        Self { states: vec![0.0; n_states], tail: vec![vec![0.0; layer.shape.conv_dim]; tail_len] }
    }

    /// Appends a token, and returns its output.
    fn push(&mut self, layer: &Layer, token: u32) -> Vec<f32> {
        let mut x: Vec<f32> = layer.x(token).collect();
        let conv_dim = layer.shape.conv_dim;
        if conv_dim > 0 {
            self.tail.push(x.clone());
            let tap = |tap: usize, c: usize| (layer.weight[tap * conv_dim + c], self.tail[tap][c]);
            for (c, x) in x.iter_mut().enumerate() {
                let bias = layer.bias.as_ref().map_or(0.0, |bias| bias[c]);
                *x = (0..layer.shape.conv_len).map(|t| tap(t, c)).fold(bias, |sum, (w, x)| w.mul_add(x, sum));
            }
            self.tail.remove(0);
        }
        let Some(StateShape { rule, n_heads, n_key_heads, sharing, key_dim, value_dim }) = layer.shape.states
        else {
            return x;
        };
        let (queries, rest) = x.split_at(n_key_heads * key_dim);
        let (keys, values) = rest.split_at(n_key_heads * key_dim);
        let mut out = Vec::new();
        for (head, (decay, gain)) in layer.decay(token).zip(layer.gain(token)).enumerate() {
            let key_head = match sharing {
                KeySharing::Adjacent => head / (n_heads / n_key_heads),
                KeySharing::Strided => head % n_key_heads,
            };
            let state = &mut self.states[head * key_dim * value_dim..][..key_dim * value_dim];
            for j in 0..value_dim {
                let value = values[head * value_dim + j];
                let key = |i: usize| keys[key_head * key_dim + i];
                let update = match rule {
                    StateRule::Delta => {
                        let dot =
                            (0..key_dim).fold(0.0f32, |sum, i| state[i * value_dim + j].mul_add(key(i), sum));
                        (-decay).mul_add(dot, value) * gain
                    }
                    StateRule::Ssd => value * gain,
                };
                let mut sum = 0.0f32;
                for i in 0..key_dim {
                    let x = &mut state[i * value_dim + j];
                    *x = key(i).mul_add(update, *x * decay);
                    sum = x.mul_add(queries[key_head * key_dim + i], sum);
                }
                out.push(sum);
            }
        }
        out
    }

    fn bytes(&self) -> Vec<u8> {
        self.states.iter().chain(self.tail.iter().flatten()).flat_map(|x| x.to_ne_bytes()).collect()
    }
}

/// A layer under test, and the plain states before every position.
struct Run<'a> {
    layer: &'a Layer,
    compute: Compute<'a>,
    recurrent: RecurrentLayer,
    /// `[len() + 1]`
    plain: Vec<Plain>,
    rows: TreeRows,
    scratch: StateScratch,
    next_token: u32,
}

const ROWS_MAX: usize = 9;

/// Small enough that short runs cross borders of checkpoints.
const CHECKPOINTS: CheckpointPolicy = CheckpointPolicy { n_max: 3, spacing_min: 3, spacing_share: 6 };

#[track_caller]
fn assert_bits(got: &[f32], expected: &[f32]) {
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert!(expected.iter().all(|x| x.is_finite()));
    assert_eq!(bits(got), bits(expected));
}

impl<'a> Run<'a> {
    fn new(layer: &'a Layer, compute: Compute<'a>) -> Self {
        Self {
            layer,
            compute,
            recurrent: RecurrentLayer::new(layer.shape, ROWS_MAX, CHECKPOINTS).unwrap(),
            plain: vec![Plain::new(layer)],
            rows: TreeRows::new(),
            scratch: StateScratch::new(),
            next_token: 0,
        }
    }

    fn len(&self) -> usize {
        self.plain.len() - 1
    }

    /// New tokens for the rows of `self.rows`; computes the pass, checks the outputs, and returns the tokens.
    fn pass(&mut self, parents: &[u32]) -> Vec<u32> {
        let tokens: Vec<u32> = (0..parents.len() as u32).map(|i| self.next_token + i).collect();
        self.next_token += parents.len() as u32;
        let rows = &self.rows;
        rows.check_integrity();
        // Values of padding rows, and of decays, that nothing may read.
        let mut x = vec![f32::NAN; rows.len() * self.layer.n_columns()];
        let n_heads = self.layer.shape.states.map_or(0, |states| states.n_heads);
        let [mut decay, mut gain] = [(); 2].map(|()| vec![f32::NAN; rows.len() * n_heads]);
        for (i, &row) in rows.numbers().iter().enumerate() {
            let token = tokens[row as usize];
            x[i * self.layer.n_columns()..].iter_mut().zip(self.layer.x(token)).for_each(|(to, x)| *to = x);
            decay[i * n_heads..].iter_mut().zip(self.layer.decay(token)).for_each(|(to, x)| *to = x);
            gain[i * n_heads..].iter_mut().zip(self.layer.gain(token)).for_each(|(to, x)| *to = x);
        }
        self.recurrent.begin(rows).unwrap();
        let conv_dim = self.layer.shape.conv_dim;
        if conv_dim > 0 {
            let mut out = vec![f32::NAN; x.len()];
            let part = RowPart::all(&x, conv_dim);
            let (weight, bias) = (&self.layer.weight, self.layer.bias.as_deref());
            self.recurrent.convolve(self.compute, rows, part, weight, bias, &mut out);
            x = out;
        }
        let mut out = x.clone();
        if let Some(states) = self.layer.shape.states {
            out = vec![f32::NAN; rows.len() * states.value_len()];
            let columns = self.layer.n_columns();
            let inputs = StateInputs {
                queries: RowPart::all(&x, columns),
                keys: RowPart::from(&x, columns, states.key_len()),
                values: RowPart::from(&x, columns, 2 * states.key_len()),
                decay: RowPart::all(&decay, n_heads),
                gain: RowPart::all(&gain, n_heads),
            };
            self.recurrent.advance(self.compute, rows, inputs, &mut self.scratch, &mut out);
        }
        let out_len = self.layer.out_len();
        for (i, &row) in rows.numbers().iter().enumerate() {
            let mut plain = self.plain.last().unwrap().clone();
            let path = path_to(parents, row as usize);
            let outs: Vec<Vec<f32>> =
                path.into_iter().map(|row| plain.push(self.layer, tokens[row])).collect();
            assert_bits(&out[i * out_len..][..out_len], outs.last().unwrap());
        }
        assert!(out[rows.numbers().len() * out_len..].iter().all(|x| x.to_bits() == 0), "padding is zero");
        tokens
    }

    fn commit(&mut self, tokens: &[u32], path: &[usize]) {
        self.recurrent.commit(path.iter().copied());
        for &row in path {
            let mut plain = self.plain.last().unwrap().clone();
            plain.push(self.layer, tokens[row]);
            self.plain.push(plain);
        }
    }

    /// A pass over a tree, of which the path to `end` is committed.
    fn tree(&mut self, parents: &[u32], n_rows: usize, end: Option<usize>) {
        self.rows.set_tree(self.len(), parents, n_rows);
        let tokens = self.pass(parents);
        if let Some(end) = end {
            self.commit(&tokens, &path_to(parents, end));
        }
        self.check();
    }

    fn chunk(&mut self, n_rows: usize, commits: bool) {
        self.rows.set_whole(self.len(), n_rows);
        let parents: Vec<u32> = (0..n_rows as u32).map(|row| row.saturating_sub(1)).collect();
        let tokens = self.pass(&parents);
        if commits {
            let all: Vec<usize> = (0..n_rows).collect();
            self.commit(&tokens, &all);
        }
        self.check();
    }

    fn truncate(&mut self, len: usize) {
        let n_exact = self.recurrent.n_journaled();
        let positions = self.recurrent.checkpoint_positions();
        let left = self.recurrent.truncate(len);
        let checkpoint = positions.into_iter().filter(|&position| position <= len).max().unwrap_or(0);
        let expected = if len + n_exact >= self.len() { len.min(self.len()) } else { checkpoint };
        assert_eq!(left, expected, "{len} of {} with {n_exact} in the journal", self.len());
        self.plain.truncate(left + 1);
        self.check();
    }

    fn bytes(&self) -> Vec<u8> {
        self.bytes_at(self.len())
    }

    fn bytes_at(&self, end: usize) -> Vec<u8> {
        let mut bytes = vec![7];
        self.recurrent.write_state(self.compute, end, &mut bytes).unwrap();
        assert_eq!(bytes.remove(0), 7);
        assert_eq!(bytes.len() as u64, self.recurrent.state_bytes());
        bytes
    }

    fn check(&self) {
        self.recurrent.check_integrity();
        assert_eq!(self.recurrent.len(), self.len());
        assert_eq!(self.bytes(), self.plain.last().unwrap().bytes(), "the state at {}", self.len());
        let ends = self.recurrent.state_ends();
        assert_eq!(ends.last().copied().unwrap_or(0), self.len());
        for end in ends {
            assert_eq!(self.bytes_at(end), self.plain[end].bytes(), "the state at {end} of {}", self.len());
        }
    }
}

/// The rows from the root to `row`.
fn path_to(parents: &[u32], row: usize) -> Vec<usize> {
    let mut path = vec![row];
    while *path.last().unwrap() != 0 {
        path.push(parents[*path.last().unwrap()] as usize);
    }
    path.reverse();
    path
}

fn states(rule: StateRule, heads: [usize; 2], key_dim: usize, value_dim: usize) -> StateShape {
    let [n_heads, n_key_heads] = heads;
    StateShape { rule, n_heads, n_key_heads, sharing: KeySharing::Adjacent, key_dim, value_dim }
}

/// Layers of each kind, small.
fn layers() -> Vec<Layer> {
    let delta = states(StateRule::Delta, [4, 2], 5, 19);
    let ssd = StateShape { sharing: KeySharing::Strided, ..states(StateRule::Ssd, [6, 3], 4, 70) };
    let conv = |states: StateShape| 2 * states.key_len() + states.value_len();
    let shapes = [
        (RecurrentShape { conv_dim: conv(delta), conv_len: 4, states: Some(delta) }, false),
        (RecurrentShape { conv_dim: conv(ssd), conv_len: 3, states: Some(ssd) }, true),
        (RecurrentShape { conv_dim: 21, conv_len: 3, states: None }, false),
        // A tail longer than the longest batch, and none.
        (RecurrentShape { conv_dim: 5, conv_len: 13, states: None }, true),
        (RecurrentShape { conv_dim: 6, conv_len: 1, states: None }, false),
        (RecurrentShape { conv_dim: 0, conv_len: 0, states: Some(delta) }, false),
    ];
    shapes.into_iter().map(|(shape, with_bias)| Layer::new(shape, with_bias)).collect()
}

/// All trees of up to `n_max` rows.
fn trees(n_max: usize) -> Vec<Vec<u32>> {
    let mut all = vec![vec![0]];
    let mut last = all.clone();
    for n in 1..n_max as u32 {
        last =
            last.iter().flat_map(|tree| (0..n).map(move |parent| [&tree[..], &[parent]].concat())).collect();
        all.extend(last.iter().cloned());
    }
    all
}

/// Every path of every tree of up to five rows, after journals of every length, across borders of checkpoints.
#[test]
fn every_pattern_of_acceptance() {
    let pool = Pool::new(1);
    let compute = Compute { kernels: Kernels::detect(), pool: &pool };
    let all = trees(5);
    assert_eq!(all.len(), 1 + 1 + 2 + 6 + 24);
    for layer in layers() {
        let mut run = Run::new(&layer, compute);
        for (i, tree) in all.iter().enumerate() {
            for end in 0..tree.len() {
                run.tree(tree, tree.len() + (i + end) % 3, Some(end));
            }
            // The state at other offsets from the checkpoints, and a short run again.
            if i % 5 == 4 {
                run.truncate(i % 3);
            }
        }
        assert!(!run.recurrent.checkpoint_positions().is_empty());
        // Every truncation, from a state with a journal.
        for back in 0..run.len() {
            let (mut fork, len) = (Run::new(&layer, compute), run.len() - back);
            fork.recurrent.copy_from(&run.recurrent);
            fork.plain.clone_from(&run.plain);
            fork.next_token = run.next_token;
            fork.truncate(len);
            fork.tree(&[0, 0, 1], 3, Some(2));
            fork.truncate(fork.len() - 1);
            fork.tree(&[0], 1, Some(0));
        }
    }
}

#[test]
fn single_rows_chains_and_chunks_are_the_same() {
    let pool = Pool::new(2);
    for layer in layers() {
        for k in Kernels::available() {
            let mut run = Run::new(&layer, Compute { kernels: k, pool: &pool });
            for n in [1, 2, 3, 30, 1, 1, 7] {
                run.chunk(n, true);
                run.tree(&[0], 1, Some(0));
                run.tree(&[0, 0, 1, 2, 3], 5, Some(4));
                run.tree(&[0], 1, Some(0));
                run.tree(&[0, 0, 1, 2, 3], 5, Some(4));
                // A journal that is folded by a chunk.
                run.chunk(n, false);
            }
        }
    }
}

#[test]
fn a_failed_pass_changes_nothing() {
    let pool = Pool::new(1);
    let compute = Compute { kernels: Kernels::detect(), pool: &pool };
    for layer in layers() {
        let mut run = Run::new(&layer, compute);
        for committed in [None, Some(3), None, Some(0), Some(4)] {
            run.tree(&[0, 0, 1, 2, 1], 5, None);
            run.tree(&[0, 0, 0, 0, 3, 4, 4], 8, None);
            run.chunk(6, false);
            // Only the convolution was computed.
            run.rows.set_tree(run.len(), &[0, 0], 2);
            run.recurrent.begin(&run.rows).unwrap();
            run.check();
            run.commit(&[], &[]);
            run.check();
            run.tree(&[0, 0, 1, 2, 1], 5, committed);
        }
    }
}

#[test]
fn batches_that_do_not_fit_are_refused() {
    let layer = &layers()[0];
    let mut recurrent = RecurrentLayer::new(layer.shape, 4, CHECKPOINTS).unwrap();
    let mut rows = TreeRows::new();
    rows.set_chain(3, 2);
    assert_eq!(recurrent.begin(&rows), Err(RecurrentError::NotNext { base: 3, len: 0 }));
    rows.set_chain(0, 5);
    assert_eq!(recurrent.begin(&rows), Err(RecurrentError::TooManyRows { n_rows: 5, n_rows_max: 4 }));
    rows.set_whole(0, 5);
    assert_eq!(recurrent.begin(&rows), Ok(()));
}

#[test]
#[cfg_attr(miri, ignore = "Miri ends where an allocation is refused")]
fn absurd_layers_are_errors() {
    for (conv_dim, key_dim, n_rows_max, n_max) in [
        (8, usize::MAX / 64, 2, 0),
        (usize::MAX / 32, 4, 2, 0),
        (8, 4, usize::MAX / 64, 0),
        (8, 1 << 40, 1, 4),
    ] {
        let states = Some(states(StateRule::Ssd, [2, 1], key_dim, 8));
        let shape = RecurrentShape { conv_dim, conv_len: 4, states };
        let checkpoints = CheckpointPolicy { n_max, ..CHECKPOINTS };
        assert!(RecurrentLayer::new(shape, n_rows_max, checkpoints).is_err(), "{shape:?}");
        assert!(RecurrentLayer::bytes(&shape, n_rows_max, checkpoints) > 1 << 45);
    }
}

#[test]
fn contradictory_shapes_are_errors() {
    let good = states(StateRule::Delta, [4, 2], 5, 19);
    let check = |conv_dim, conv_len, states| RecurrentShape { conv_dim, conv_len, states }.check();
    assert_eq!(check(3, 4, Some(good)), Ok(()));
    assert_eq!(check(0, 0, None), Err(ShapeError::Empty));
    assert_eq!(check(3, 0, None), Err(ShapeError::ConvLen { given: 0, max: 16 }));
    assert_eq!(check(3, 17, Some(good)), Err(ShapeError::ConvLen { given: 17, max: 16 }));
    let zero = ShapeError::ZeroDim { n_heads: 4, key_dim: 0, value_dim: 19 };
    assert_eq!(check(3, 4, Some(StateShape { key_dim: 0, ..good })), Err(zero));
    for n_key_heads in [0, 3] {
        let error = ShapeError::KeyHeads { n_heads: 4, n_key_heads };
        assert_eq!(check(3, 4, Some(StateShape { n_key_heads, ..good })), Err(error));
    }
}

#[test]
#[should_panic(expected = "all of a pass is computed")]
fn a_pass_without_its_states_is_not_committed() {
    let layer = &layers()[5];
    let mut recurrent = RecurrentLayer::new(layer.shape, 4, CHECKPOINTS).unwrap();
    let mut rows = TreeRows::new();
    rows.set_chain(0, 1);
    recurrent.begin(&rows).unwrap();
    recurrent.commit([0]);
}

#[test]
#[should_panic(expected = "row 3 is kept and its parent is not")]
fn a_row_is_kept_with_its_ancestors_only() {
    let mut rows = TreeRows::new();
    rows.set_tree(0, &[0, 0, 1, 2], 5);
    rows.keep(&[0, 1, 3]);
}

/// One thing that happens to a sequence.
#[derive(Debug, Clone)]
enum Event {
    /// Parents by index, padding, rows that are dropped with their descendants before the layer, and the end of the path.
    Tree {
        picks: Vec<prop::sample::Index>,
        padding: usize,
        dropped: Vec<bool>,
        end: Option<prop::sample::Index>,
    },
    Chunk {
        n_rows: usize,
        commits: bool,
    },
    Truncate(prop::sample::Index),
    Checkpoint(Purpose),
    Fork,
    Snapshot(prop::sample::Index),
    Compute {
        isa: prop::sample::Index,
        pool: usize,
    },
}

fn event() -> impl Strategy<Value = Event> {
    let index = any::<prop::sample::Index>;
    let tree = (
        prop::collection::vec(index(), 0..ROWS_MAX),
        0usize..3,
        prop::collection::vec(prop::bool::weighted(0.15), ROWS_MAX),
        prop::option::weighted(0.9, index()),
    );
    prop_oneof![
        8 => tree.prop_map(|(picks, padding, dropped, end)| Event::Tree { picks, padding, dropped, end }),
        2 => (1usize..20, prop::bool::weighted(0.8)).prop_map(|(n_rows, commits)| Event::Chunk { n_rows, commits }),
        2 => index().prop_map(Event::Truncate),
        1 => Just(Event::Checkpoint(Purpose::Prompt)),
        1 => Just(Event::Checkpoint(Purpose::Snapshot)),
        1 => Just(Event::Fork),
        1 => index().prop_map(Event::Snapshot),
        1 => (index(), 0usize..3).prop_map(|(isa, pool)| Event::Compute { isa, pool }),
    ]
}

impl Run<'_> {
    fn pruned_tree(
        &mut self,
        parents: &[u32],
        padding: usize,
        dropped: &[bool],
        end: Option<prop::sample::Index>,
    ) {
        let n_rows = parents.len() + padding;
        self.rows.set_tree(self.len(), parents, n_rows);
        self.rows.check_integrity();
        // Dropped in two steps, as by two layers; padding with the second.
        for n_steps in [1, 2] {
            let is_kept = |row: usize| {
                let of_row = |&row: &usize| row > 0 && dropped[row] && row % 2 < n_steps;
                if row < parents.len() { !path_to(parents, row).iter().any(of_row) } else { n_steps == 1 }
            };
            let kept: Vec<u32> = (0..n_rows).filter(|&row| is_kept(row)).map(|row| row as u32).collect();
            self.rows.keep(&kept);
            assert_eq!(self.rows.len(), kept.len());
        }
        let tokens = self.pass(parents);
        if let Some(end) = end {
            let end = self.rows.numbers()[end.index(self.rows.numbers().len())];
            self.commit(&tokens, &path_to(parents, end as usize));
        }
        self.check();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]
    #[test]
    fn any_history_equals_plain_decoding(
        layer in 0usize..6, events in prop::collection::vec(event(), 1..30),
    ) {
        let pools = [1, 2, 3].map(Pool::new);
        let isas = Kernels::available();
        let layer = &layers()[layer];
        let compute = Compute { kernels: Kernels::detect(), pool: &pools[1] };
        let mut run = Run::new(layer, compute);
        for event in events {
            match event {
                Event::Tree { picks, padding, dropped, end } => {
                    let mut parents = vec![0u32];
                    for pick in &picks {
                        parents.push(pick.index(parents.len()) as u32);
                    }
                    parents.truncate(ROWS_MAX);
                    run.pruned_tree(&parents, padding, &dropped, end);
                }
                Event::Chunk { n_rows, commits } => run.chunk(n_rows, commits),
                Event::Truncate(len) => run.truncate(len.index(run.len() + 2)),
                Event::Checkpoint(purpose) => {
                    run.recurrent.checkpoint(run.compute, purpose);
                    run.check();
                    let len = run.len();
                    prop_assert!(len == 0 || run.recurrent.checkpoint_positions().contains(&len));
                }
                Event::Fork => {
                    let mut fork = Run::new(layer, run.compute);
                    // A layer with a past of its own.
                    fork.chunk(5, true);
                    fork.recurrent.copy_from(&run.recurrent);
                    fork.plain.clone_from(&run.plain);
                    fork.next_token = run.next_token;
                    fork.check();
                    let before = run.bytes();
                    fork.tree(&[0, 0, 1], 3, Some(1));
                    prop_assert_eq!(run.bytes(), before);
                    run = fork;
                }
                Event::Snapshot(of) => {
                    let mut restored = Run::new(layer, run.compute);
                    restored.chunk(4, true);
                    let ends = run.recurrent.state_ends();
                    let end = if ends.is_empty() { 0 } else { *of.get(&ends) };
                    restored.recurrent.read_state(end, &run.bytes_at(end));
                    restored.plain = run.plain;
                    restored.plain.truncate(end + 1);
                    restored.next_token = run.next_token;
                    run = restored;
                    run.check();
                    let held: Vec<usize> = (1..=end).filter(|&at| at == end).collect();
                    prop_assert_eq!(run.recurrent.checkpoint_positions(), held);
                }
                Event::Compute { isa, pool } => {
                    run.compute = Compute { kernels: isas[isa.index(isas.len())], pool: &pools[pool] };
                }
            }
        }
    }
}

/// The order of a walk over large trees takes few states.
#[test]
fn walks_keep_few_states() {
    let mut rows = TreeRows::new();
    let shapes: [fn(u32) -> u32; 5] = [
        |row| row.saturating_sub(1),
        |_| 0,
        |row| row.saturating_sub(1) / 2,
        |row| row.saturating_sub(2),
        |row| row / 3,
    ];
    for (parent, n_levels) in shapes.into_iter().zip([1, 0, 6, 1, 4]) {
        let parents: Vec<u32> = (0..100).map(parent).collect();
        rows.set_tree(0, &parents, 100);
        rows.check_integrity();
        assert!(rows.n_levels() <= n_levels, "{} levels", rows.n_levels());
    }
    rows.set_chain(4, 3);
    rows.check_integrity();
    rows.set_whole(4, 3);
    rows.check_integrity();
    rows.set_tree(4, &[], 2);
    rows.check_integrity();
    assert!(StateScratch::bytes(&states(StateRule::Ssd, [1, 1], 128, 128), 2, 100) >= 2 * 6 * 4 * 128 * 64);
}
