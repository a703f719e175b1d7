//! Compares steps of matrix states and short convolutions with plain loops, bit for bit, on every instruction set.

use proptest::prelude::*;

use super::{Random, assert_bits, pool_of};
use crate::*;

/// One head's state, `[key_dim][value_dim]`, and its step as the formula has it.
fn plain_step(
    rule: StateRule,
    state: &mut [Vec<f32>],
    [query, key, value]: [&[f32]; 3],
    decay: f32,
    gain: f32,
) -> Vec<f32> {
    let update = |j: usize| {
        let dot = state.iter().zip(key).fold(0.0, |sum: f32, (row, k)| row[j].mul_add(*k, sum));
        match rule {
            StateRule::Delta => (-decay).mul_add(dot, value[j]) * gain,
            StateRule::Ssd => value[j] * gain,
        }
    };
    let updates: Vec<f32> = (0..value.len()).map(update).collect();
    for (row, k) in state.iter_mut().zip(key) {
        row.iter_mut().zip(&updates).for_each(|(x, u)| *x = k.mul_add(*u, *x * decay));
    }
    let out = |j: usize| state.iter().zip(query).fold(0.0, |sum: f32, (row, q)| row[j].mul_add(*q, sum));
    (0..value.len()).map(out).collect()
}

/// Rows of random inputs, with the columns of queries, keys and values in one matrix.
struct Inputs {
    shape: StateShape,
    qkv: Vec<f32>,
    decay: Vec<f32>,
    gain: Vec<f32>,
}

impl Inputs {
    fn new(seed: u64, shape: StateShape, n_rows: usize) -> Self {
        let mut random = Random::new(seed);
        let qkv = random.floats(n_rows * (2 * shape.key_len() + shape.value_len()));
        // Gains that keep states of the delta rule from growing.
        let mut positive =
            |scale: f32| (0..n_rows * shape.n_heads).map(|_| scale * random.float().abs()).collect();
        let (decay, gain) = (positive(1.0), positive(1.0 / shape.key_dim as f32));
        Self { shape, qkv, decay, gain }
    }

    fn rows(&self) -> StateInputs<'_> {
        let (key_len, n_heads) = (self.shape.key_len(), self.shape.n_heads);
        let row_len = 2 * key_len + self.shape.value_len();
        StateInputs {
            queries: RowPart::all(&self.qkv, row_len),
            keys: RowPart::from(&self.qkv, row_len, key_len),
            values: RowPart::from(&self.qkv, row_len, 2 * key_len),
            decay: RowPart::all(&self.decay, n_heads),
            gain: RowPart::all(&self.gain, n_heads),
        }
    }

    /// The outputs of rows in sequence, and the bytes of the final states.
    fn plain(&self, rows: impl Iterator<Item = usize>) -> (Vec<f32>, Vec<u8>) {
        let StateShape { rule, n_heads, n_key_heads, sharing, key_dim, value_dim } = self.shape;
        let mut states = vec![vec![vec![0.0; value_dim]; key_dim]; n_heads];
        let mut out = Vec::new();
        for row in rows {
            let qkv = &self.qkv[row * (2 * self.shape.key_len() + self.shape.value_len())..];
            let (keys, values) = (&qkv[self.shape.key_len()..], &qkv[2 * self.shape.key_len()..]);
            for (head, state) in states.iter_mut().enumerate() {
                let key_head = match sharing {
                    KeySharing::Adjacent => head * n_key_heads / n_heads,
                    KeySharing::Strided => head % n_key_heads,
                };
                let query = &qkv[key_head * key_dim..][..key_dim];
                let key = &keys[key_head * key_dim..][..key_dim];
                let value = &values[head * value_dim..][..value_dim];
                let at = row * n_heads + head;
                out.extend(plain_step(rule, state, [query, key, value], self.decay[at], self.gain[at]));
            }
        }
        (out, states.iter().flatten().flatten().flat_map(|x| x.to_ne_bytes()).collect())
    }
}

/// A chain that is recorded, of which the first `n_folded` rows come from records.
fn advanced(k: Kernels, pool: &Pool, inputs: &Inputs, n_folded: usize, n_rows: usize) -> (Vec<f32>, Vec<u8>) {
    let shape = inputs.shape;
    let zero = StateBuf::zeroed(shape).unwrap();
    let mut records = RowRing::zeroed(n_rows + 3, shape.record_len()).unwrap();
    // The ring wraps around.
    records.drop_first(n_rows + 1);
    let mut result = StateBuf::zeroed(shape).unwrap();
    let mut out = vec![f32::NAN; n_rows * shape.value_len()];
    let (from, to) = (StatePlace::Result, StatePlace::Result);
    let numbers: Vec<u32> = (0..n_rows as u32).collect();
    let mut scratch = StateScratch::new();
    // All rows are recorded, though the result is for nothing.
    let steps: Vec<StateStep> = (0..n_rows as u32)
        .map(|row| StateStep { row, from, to: if row == 0 { to } else { StatePlace::None } })
        .collect();
    let walk = StateWalk { steps: &steps, n_levels: 0, numbers: &numbers, skipped: 0 };
    advance_states(k, pool, &zero, &mut result, &mut records, 0, inputs.rows(), walk, &mut scratch, &mut out);
    // The rest as a tree: each row once in its place, and once as a leaf of its parent.
    let rest: Vec<u32> = (n_folded as u32..n_rows as u32).collect();
    let steps: Vec<StateStep> = (0..rest.len() as u32)
        .map(|row| {
            let level = |row: u32| if row == 0 { StatePlace::Result } else { StatePlace::Level(row / 3) };
            StateStep { row, from: row.checked_sub(1).map_or(from, level), to: level(row) }
        })
        .collect();
    let walk = StateWalk { steps: &steps, n_levels: rest.len() / 3 + 1, numbers: &rest, skipped: n_rows };
    let all = inputs.rows();
    let (qkv_len, n_heads) = (2 * shape.key_len() + shape.value_len(), shape.n_heads);
    let qkv = &inputs.qkv[n_folded * qkv_len..];
    let of_rest = StateInputs {
        queries: RowPart::all(qkv, qkv_len),
        keys: RowPart::from(qkv, qkv_len, shape.key_len()),
        values: RowPart::from(qkv, qkv_len, 2 * shape.key_len()),
        decay: RowPart::all(&inputs.decay[n_folded * n_heads..], n_heads),
        gain: RowPart::all(&inputs.gain[n_folded * n_heads..], n_heads),
    };
    let out_of_rest = &mut out[n_folded * shape.value_len()..];
    out_of_rest.fill(f32::NAN);
    let new = &mut scratch;
    advance_states(k, pool, &zero, &mut result, &mut records, n_folded, of_rest, walk, new, out_of_rest);
    // The state after all of them, from the records.
    fold_states(k, pool, &zero, &mut result, &records, n_rows);
    let mut bytes = Vec::new();
    result.write_bytes(&mut bytes);
    // And as a chain without records.
    let steps: Vec<StateStep> = numbers.iter().map(|&row| StateStep { row, from, to }).collect();
    let walk = StateWalk { steps: &steps, n_levels: 0, numbers: &numbers, skipped: n_rows };
    let mut chain = vec![f32::NAN; out.len()];
    result.clear();
    advance_states(k, pool, &zero, &mut result, &mut records, 0, all, walk, &mut scratch, &mut chain);
    let mut chain_bytes = Vec::new();
    result.write_bytes(&mut chain_bytes);
    assert_eq!(chain_bytes, bytes, "the state of a chain and of records");
    let folded = n_folded * shape.value_len();
    assert_bits(&chain[folded..], &out[folded..], "outputs of a chain and behind records");
    (chain, bytes)
}

fn check(shape: StateShape, n_folded: usize, n_rows: usize, pools: &[Pool]) {
    let inputs = Inputs::new(n_rows as u64, shape, n_rows);
    let (out, bytes) = inputs.plain(0..n_rows);
    for k in Kernels::available() {
        for pool in pools {
            let case = format!("{shape:?}, {}, {} threads, {n_folded}", k.isa(), pool.n_threads());
            let (got, got_bytes) = advanced(k, pool, &inputs, n_folded, n_rows);
            assert_bits(&got, &out, &case);
            assert_eq!(got_bytes, bytes, "{case}");
        }
    }
}

const RULES: [StateRule; 2] = [StateRule::Delta, StateRule::Ssd];

fn shape(rule: StateRule, heads: [usize; 2], key_dim: usize, value_dim: usize) -> StateShape {
    let [n_heads, n_key_heads] = heads;
    StateShape { rule, n_heads, n_key_heads, sharing: KeySharing::Adjacent, key_dim, value_dim }
}

#[test]
fn states_equal_the_plain_loops() {
    let pools = [1, 3].map(pool_of);
    for rule in RULES {
        // Tiles of four panels, of two, of one, and the last lanes of a panel.
        for value_dim in [1, 5, 15, 16, 17, 31, 32, 40, 63, 64, 65, 96, 111, 128, 130] {
            check(shape(rule, [2, 2], 9, value_dim), 2, 5, &pools);
        }
        for key_dim in [1, 2, 16, 33, 128] {
            check(shape(rule, [3, 1], key_dim, 20), 0, 4, &pools);
        }
        check(shape(rule, [16, 8], 64, 64), 3, 9, &pools);
        check(StateShape { sharing: KeySharing::Strided, ..shape(rule, [6, 2], 7, 18) }, 3, 6, &pools);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn states_equal_the_plain_loops_anywhere(
        rule in 0..2usize, n_key_heads in 1usize..4, group in 1usize..4, key_dim in 1usize..40, value_dim in 1usize..150,
        strided: bool, n_folded in 0usize..5, n_rows in 1usize..5,
    ) {
        let sharing = if strided { KeySharing::Strided } else { KeySharing::Adjacent };
        let shape = StateShape { sharing, ..shape(RULES[rule], [n_key_heads * group, n_key_heads], key_dim, value_dim) };
        check(shape, n_folded, n_folded + n_rows, &[pool_of(1)]);
    }
}

/// The formula against the textbook's, in double precision.
#[test]
fn states_are_those_of_the_papers() {
    for rule in RULES {
        let shape = shape(rule, [1, 1], 12, 10);
        let inputs = Inputs::new(7, shape, 30);
        let (out, _) = inputs.plain(0..30);
        let mut state = vec![[0.0f64; 10]; 12];
        for row in 0..30 {
            let x: Vec<f64> = inputs.qkv[row * 34..][..34].iter().map(|&x| f64::from(x)).collect();
            let (query, key, value) = (&x[..12], &x[12..24], &x[24..]);
            let (decay, gain) = (f64::from(inputs.decay[row]), f64::from(inputs.gain[row]));
            state.iter_mut().flatten().for_each(|x| *x *= decay);
            for j in 0..10 {
                let seen = match rule {
                    StateRule::Delta => (0..12).map(|i| state[i][j] * key[i]).sum(),
                    StateRule::Ssd => 0.0,
                };
                (0..12).for_each(|i| state[i][j] += key[i] * (value[j] - seen) * gain);
                let expected: f64 = (0..12).map(|i| state[i][j] * query[i]).sum();
                let got = f64::from(out[row * 10 + j]);
                assert!((got - expected).abs() < 1e-5, "{rule:?}, row {row}: {got}, not {expected}");
            }
        }
    }
}

/// NaN in a row reaches its own descendants only, and padding lanes reach nothing.
#[test]
fn rows_do_not_see_their_siblings() {
    let shape = shape(StateRule::Delta, [2, 1], 6, 21);
    let mut inputs = Inputs::new(5, shape, 3);
    let zero = StateBuf::zeroed(shape).unwrap();
    let (from, none) = (StatePlace::Result, StatePlace::None);
    let steps = [
        StateStep { row: 0, from, to: StatePlace::Result },
        StateStep { row: 1, from, to: none },
        StateStep { row: 2, from, to: none },
    ];
    let walk = StateWalk { steps: &steps, n_levels: 0, numbers: &[0, 1, 2], skipped: 3 };
    for k in Kernels::available() {
        let run = |inputs: &Inputs| {
            let (mut result, mut records) =
                (StateBuf::zeroed(shape).unwrap(), RowRing::zeroed(0, 0).unwrap());
            let mut out = vec![0.0; 3 * 42];
            let (pool, scratch) = (pool_of(2), &mut StateScratch::new());
            let records = &mut records;
            advance_states(k, &pool, &zero, &mut result, records, 0, inputs.rows(), walk, scratch, &mut out);
            out
        };
        let before = run(&inputs);
        let kept = inputs.qkv[54 + 12];
        inputs.qkv[54 + 12] = f32::NAN;
        let after = run(&inputs);
        inputs.qkv[54 + 12] = kept;
        assert_bits(&after[..42], &before[..42], "the root");
        assert!(after[42].is_nan());
        assert_bits(&after[43..], &before[43..], "other lanes and the sibling");
    }
}

#[test]
fn convolutions_equal_the_plain_loops() {
    let pools = [1, 3].map(pool_of);
    // The parents of a tree, the last row with another root's inputs before it.
    let parents = [NO_PARENT, 0, 0, 1, 3, 2, 4];
    let numbers = [0, 1, 3, 4, 5, 8, 9];
    for (conv_dim, conv_len) in [(1, 1), (7, 2), (16, 4), (33, 3), (512, 4), (530, 4), (1100, 3), (20, 16)] {
        let mut random = Random::new(conv_dim as u64);
        let weight = random.floats(conv_len * conv_dim);
        let bias = random.floats(conv_dim);
        let before = random.floats((conv_len + 1) * conv_dim);
        let x = random.floats(7 * (conv_dim + 3));
        let x_row = |row: usize| &x[row * (conv_dim + 3) + 2..][..conv_dim];
        for bias in [None, Some(&bias[..])] {
            let mut expected = Vec::new();
            for row in 0..7 {
                let mut rows = vec![row];
                while parents[*rows.last().unwrap()] != NO_PARENT {
                    rows.push(parents[*rows.last().unwrap()] as usize);
                }
                let new = rows.into_iter().map(x_row);
                let seen: Vec<&[f32]> = new.chain(before.chunks(conv_dim).rev()).take(conv_len).collect();
                expected.extend((0..conv_dim).map(|c| {
                    let taps =
                        (0..conv_len).map(|tap| (weight[tap * conv_dim + c], seen[conv_len - 1 - tap][c]));
                    taps.fold(bias.map_or(0.0, |bias| bias[c]), |sum, (weight, x)| weight.mul_add(x, sum))
                }));
            }
            for (k, pool) in
                Kernels::available().into_iter().flat_map(|k| pools.iter().map(move |pool| (k, pool)))
            {
                let case = format!("{conv_dim} columns, {conv_len} taps, {}", k.isa());
                let mut inputs = RowRing::zeroed(conv_len + 1 + 8, conv_dim).unwrap();
                inputs.drop_first(conv_len + 5);
                for (i, row) in before.chunks(conv_dim).enumerate() {
                    inputs.row_mut(i).copy_from_slice(row);
                }
                let rows = ConvRows {
                    x: RowPart::from(&x, conv_dim + 3, 2),
                    parents: &parents,
                    numbers: &numbers,
                    skipped: 2,
                };
                let mut out = vec![f32::NAN; 7 * conv_dim];
                convolve(k, pool, &weight, bias, &mut inputs, conv_len + 1, rows, &mut out);
                assert_bits(&out, &expected, &case);
                for (i, row) in before.chunks(conv_dim).enumerate() {
                    assert_bits(inputs.row(i), row, &case);
                }
                for (row, &number) in numbers.iter().enumerate().skip(2) {
                    assert_bits(inputs.row(conv_len + 1 + number as usize - 2), x_row(row), &case);
                }
            }
        }
    }
}

#[test]
fn a_ring_drops_its_first_rows() {
    let mut ring = RowRing::zeroed(4, 3).unwrap();
    for i in 0..4 {
        ring.row_mut(i).fill(i as f32);
    }
    ring.drop_first(3);
    assert_eq!((ring.row(0)[0], ring.row(1)[2]), (3.0, 0.0));
    ring.copy_row(0, 2);
    ring.drop_first(2);
    assert_eq!((ring.row(0)[1], ring.row(1)[0], ring.row(2)[0]), (3.0, 2.0, 3.0));
    assert_eq!(ring.size_bytes() as u64, RowRing::bytes(4, 3));
    RowRing::zeroed(0, 5).unwrap().drop_first(0);
}

#[test]
#[cfg_attr(miri, ignore = "Miri ends where an allocation is refused")]
fn absurd_sizes_are_errors() {
    assert!(RowRing::zeroed(usize::MAX / 2, 3).is_err());
    assert!(RowRing::zeroed(usize::MAX / 32, 8).is_err());
    for key_dim in [usize::MAX / 128, usize::MAX] {
        let shape = shape(StateRule::Ssd, [2, 1], key_dim, 128);
        assert!(StateBuf::zeroed(shape).is_err());
        // (With sizes of 32 bits, the true numbers have at most 42.)
        if usize::BITS == 64 {
            assert_eq!((shape.bytes(), shape.written_bytes()), (u64::MAX, u64::MAX));
        }
    }
}

#[test]
#[should_panic(expected = "step 1 of 1 levels")]
fn a_level_that_does_not_exist_panics() {
    let shape = shape(StateRule::Ssd, [1, 1], 2, 2);
    let inputs = Inputs::new(1, shape, 2);
    let from = StatePlace::Result;
    let steps = [StateStep { row: 0, from, to: from }, StateStep { row: 1, from, to: StatePlace::Level(1) }];
    let walk = StateWalk { steps: &steps, n_levels: 1, numbers: &[0, 1], skipped: 2 };
    let (zero, mut result) = (StateBuf::zeroed(shape).unwrap(), StateBuf::zeroed(shape).unwrap());
    let (records, scratch) = (&mut RowRing::zeroed(0, 0).unwrap(), &mut StateScratch::new());
    let k = Kernels::detect();
    advance_states(
        k,
        &pool_of(1),
        &zero,
        &mut result,
        records,
        0,
        inputs.rows(),
        walk,
        scratch,
        &mut [0.0; 4],
    );
}
