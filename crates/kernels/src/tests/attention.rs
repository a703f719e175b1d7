//! Attention against plain loops over logical positions.

use proptest::prelude::*;

use super::matmul::quantize_activations;
use super::{Random, assert_bits, pool_of, tree};
use crate::math::tanh_lanes;
use crate::scalar::Scalar;
use crate::*;

/// A layer filled with random keys and values, and the written numbers `[n_slots, n_kv_heads, head_dim]`,
/// rounded to f16 if the layer rounds to f16.
struct Cache {
    layer: KvLayer,
    keys: Vec<f32>,
    values: Vec<f32>,
}

impl Cache {
    fn new(seed: u64, ty: KvType, shape: AttentionShape, n_slots: usize) -> Self {
        let mut random = Random::new(seed);
        let width = shape.n_kv_heads * shape.head_dim;
        let (mut keys, mut values) = (random.floats(n_slots * width), random.floats(n_slots * width));
        let mut layer = KvLayer::new(ty, shape.n_kv_heads, n_slots, shape.head_dim).unwrap();
        for slot in 0..n_slots {
            let range = slot * width..(slot + 1) * width;
            layer.write(Kernels::detect(), slot, &keys[range.clone()], &values[range]);
        }
        if ty == KvType::F16 {
            for x in keys.iter_mut().chain(&mut values) {
                *x = half::f16::from_f32(*x).to_f32();
            }
        }
        Cache { layer, keys, values }
    }
}

/// Scale and levels of each 32 numbers, as a layer of this type holds them.
fn levels(ty: KvType, x: &[f32]) -> Vec<(f32, Vec<i32>)> {
    if ty == KvType::Q8_0 {
        return quantize_activations(x);
    }
    x.chunks(32)
        .map(|x| {
            // The first of the greatest magnitude becomes −8.
            let extreme = x.iter().copied().fold(0.0f32, |a, b| if b.abs() > a.abs() { b } else { a });
            let scale = extreme / -8.0;
            if x.iter().any(|x| !x.is_finite()) {
                return (f32::NAN, vec![0; 32]);
            }
            let inverse = if scale == 0.0 { 0.0 } else { 1.0 / scale };
            (scale, x.iter().map(|x| ((x * inverse + 8.5) as i32).clamp(0, 15) - 8).collect())
        })
        .collect()
}

/// A query in 8-bit blocks and a key in blocks; the scales of keys are f16.
fn dot_of_blocks(ty: KvType, query: &[f32], key: &[f32]) -> f32 {
    let (query, key) = (quantize_activations(query), levels(ty, key));
    query.iter().zip(&key).fold(0.0, |acc: f32, ((q_scale, q), (k_scale, k))| {
        let k_scale = half::f16::from_f32(*k_scale).to_f32();
        let dot: i32 = q.iter().zip(k).map(|(q, k)| q * k).sum();
        (k_scale * q_scale).mul_add(dot as f32, acc)
    })
}

/// Keys and values of some slots for one KV head, as the layer holds them: the plain loops read them once per row.
struct HeadOracle<'a> {
    cache: &'a Cache,
    shape: AttentionShape,
    kv_head: usize,
}

impl HeadOracle<'_> {
    fn range(&self, slot: usize) -> std::ops::Range<usize> {
        let start = (slot * self.shape.n_kv_heads + self.kv_head) * self.shape.head_dim;
        start..start + self.shape.head_dim
    }

    fn dot(&self, query: &[f32], slot: usize) -> f32 {
        let key = &self.cache.keys[self.range(slot)];
        match self.cache.layer.kv_type() {
            ty @ (KvType::Q8_0 | KvType::Q4_0) => dot_of_blocks(ty, query, key),
            _ => query.iter().zip(key).fold(0.0, |acc: f32, (q, k)| q.mul_add(*k, acc)),
        }
    }

    /// Adds `e` times the slot's value.
    fn add_value(&self, slot: usize, e: f32, sums: &mut [f32]) {
        let value = &self.cache.values[self.range(slot)];
        match self.cache.layer.kv_type() {
            ty @ (KvType::Q8_0 | KvType::Q4_0) => {
                for (sums, (scale, q)) in sums.chunks_mut(32).zip(levels(ty, value)) {
                    for (sum, q) in sums.iter_mut().zip(q) {
                        *sum = (e * scale).mul_add(q as f32, *sum);
                    }
                }
            }
            _ => sums.iter_mut().zip(value).for_each(|(sum, value)| *sum = e.mul_add(*value, *sum)),
        }
    }

    /// One head of one row, over the slots it sees in order.
    fn row(&self, rule: AttentionRule<'_>, head: usize, query: &[f32], slots: &[usize]) -> Vec<f32> {
        let head_dim = self.shape.head_dim;
        let first = slots.len().saturating_sub(rule.window.unwrap_or(usize::MAX));
        let mut folded: Option<(f32, f32, Vec<f32>)> = None;
        let mut start = first;
        while start < slots.len() {
            let end = slots.len().min(start / 256 * 256 + 256);
            let scores: Vec<f32> = slots[start..end]
                .iter()
                .map(|&slot| {
                    let score = self.dot(query, slot) * rule.scale;
                    rule.softcap.map_or(score, |cap| cap * tanh(score / cap))
                })
                .collect();
            let max = scores.iter().fold(f32::NEG_INFINITY, |max, x| max.max(*x));
            let (mut lanes, mut sums) = ([0.0f32; 16], vec![0.0f32; head_dim]);
            for (p, score) in (start..end).zip(scores) {
                let e = exp(score - max);
                lanes[p % 16] += e;
                self.add_value(slots[p], e, &mut sums);
            }
            let sum = tree(lanes);
            folded = Some(match folded {
                None => (max, sum, sums),
                Some((old_max, old_sum, old)) => {
                    let both = old_max.max(max);
                    let (a, b) = (exp(old_max - both), exp(max - both));
                    let sums = old.iter().zip(&sums).map(|(old, new)| b.mul_add(*new, a * old));
                    (both, b.mul_add(sum, a * old_sum), sums.collect())
                }
            });
            start = end;
        }
        let Some((max, mut sum, mut sums)) = folded else { return vec![0.0; head_dim] };
        if let Some(sinks) = rule.sinks {
            let both = max.max(sinks[head]);
            let (a, b) = (exp(max - both), exp(sinks[head] - both));
            sum = a * sum + b;
            sums.iter_mut().for_each(|x| *x *= a);
        }
        sums.iter().map(|x| x * (1.0 / sum)).collect()
    }
}

fn tanh(x: f32) -> f32 {
    tanh_lanes(Scalar, [x; 16])[0]
}

fn slots_of(visible: &Visible<'_>) -> Vec<usize> {
    (0..visible.prefix_len).chain(visible.extra.iter().map(|&slot| slot as usize)).collect()
}

fn expected(
    cache: &Cache,
    shape: AttentionShape,
    rule: AttentionRule<'_>,
    q: &[f32],
    visible: &[Visible<'_>],
) -> Vec<f32> {
    let mut out = Vec::new();
    for (row, visible) in visible.iter().enumerate() {
        let slots = slots_of(visible);
        for head in 0..shape.n_heads {
            let query = &q[(row * shape.n_heads + head) * shape.head_dim..][..shape.head_dim];
            let kv_head = head / (shape.n_heads / shape.n_kv_heads);
            out.extend(HeadOracle { cache, shape, kv_head }.row(rule, head, query, &slots));
        }
    }
    out
}

fn run(
    k: Kernels,
    pool: &Pool,
    shape: AttentionShape,
    q: &[f32],
    layer: &KvLayer,
    visible: &[Visible<'_>],
) -> Vec<f32> {
    run_rule(k, pool, shape, AttentionRule::plain(shape.head_dim), q, layer, visible)
}

fn run_rule(
    k: Kernels,
    pool: &Pool,
    shape: AttentionShape,
    rule: AttentionRule<'_>,
    q: &[f32],
    layer: &KvLayer,
    visible: &[Visible<'_>],
) -> Vec<f32> {
    let mut out = vec![f32::NAN; q.len()];
    attention(k, pool, shape, rule, q, layer, visible, &mut AttentionScratch::new(), &mut out);
    out
}

fn shape(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape { n_heads, n_kv_heads, head_dim }
}

fn check(shape: AttentionShape, ty: KvType, n_slots: usize, visible: &[Visible<'_>], pools: &[Pool]) {
    check_rules(shape, &[AttentionRule::plain(shape.head_dim)], ty, n_slots, visible, pools);
}

fn check_rules(
    shape: AttentionShape,
    rules: &[AttentionRule<'_>],
    ty: KvType,
    n_slots: usize,
    visible: &[Visible<'_>],
    pools: &[Pool],
) {
    let cache = Cache::new(n_slots as u64, ty, shape, n_slots);
    let q = Random::new(3).floats(visible.len() * shape.n_heads * shape.head_dim);
    for &rule in rules {
        let expected = expected(&cache, shape, rule, &q, visible);
        for k in Kernels::available() {
            for pool in pools {
                let case = format!(
                    "{shape:?}, {rule:?}, {ty:?}, {} rows, {}, {} threads",
                    visible.len(),
                    k.isa(),
                    pool.n_threads()
                );
                assert_bits(&run_rule(k, pool, shape, rule, &q, &cache.layer, visible), &expected, &case);
            }
        }
    }
}

/// A window, and a window with a softcap, sinks and a scale of its own.
fn windowed(head_dim: usize, window: usize, sinks: &[f32]) -> [AttentionRule<'_>; 2] {
    let plain = AttentionRule { window: Some(window), ..AttentionRule::plain(head_dim) };
    // Scores reach about ±2, so that the cap bends them.
    [plain, AttentionRule { scale: 0.7, softcap: Some(1.5), sinks: Some(sinks), ..plain }]
}

#[test]
fn equals_the_plain_loops() {
    let pools = [1, 2, 3].map(pool_of);
    let extra = [40, 35, 47];
    // Causal rows, rows of a tree, and rows that see no slots, few slots, and all slots.
    let rows: Vec<Visible<'_>> =
        [(0, 0), (0, 1), (1, 0), (2, 0), (3, 0), (15, 2), (16, 3), (17, 1), (30, 3), (48, 0), (30, 2)]
            .map(|(prefix_len, n)| Visible { prefix_len, extra: &extra[..n] })
            .to_vec();
    for shape in [
        shape(1, 1, 16),
        shape(4, 2, 64),
        shape(6, 2, 80),
        shape(3, 3, 10),
        shape(9, 3, 64),
        shape(2, 1, 128),
        shape(7, 1, 64),
        shape(12, 2, 96),
    ] {
        for ty in KvType::ALL.iter().copied().filter(|ty| ty.holds(shape.head_dim)) {
            check(shape, ty, 48, &rows, &pools);
            check(shape, ty, 48, &rows[10..], &pools);
        }
    }
}

/// Prefixes of several panels and blocks of positions, for tiles of every height, in items of chunks and of blocks. The rows
/// of a tile see different lengths.
#[test]
fn equals_the_plain_loops_over_long_prefixes() {
    let pools = [pool_of(2)];
    let extra = [395, 301, 399];
    for n_rows in 1..=9 {
        let rows: Vec<Visible<'_>> =
            [(300, 3), (290, 0), (129, 2), (128, 1), (64, 0), (65, 3), (300, 1), (63, 0), (257, 2)][..n_rows]
                .iter()
                .map(|&(prefix_len, n)| Visible { prefix_len, extra: &extra[..n] })
                .collect();
        for shape in [shape(1, 1, 128), shape(2, 1, 64), shape(7, 1, 32)] {
            for &ty in KvType::ALL {
                check(shape, ty, 400, &rows, &pools);
            }
        }
    }
}

/// Extra slots across the border of two blocks, blocks of extra slots alone, rows that end in different blocks, and more queries
/// than a chunk has.
#[test]
fn equals_the_plain_loops_across_blocks() {
    let pools = [1, 2, 5].map(pool_of);
    let extra: Vec<u32> = (520..820).rev().collect();
    let ends = [
        (510, 5),
        (512, 1),
        (511, 1),
        (508, 4),
        (256, 0),
        (255, 2),
        (0, 300),
        (700, 0),
        (3, 0),
        (0, 0),
        (130, 270),
    ];
    let rows: Vec<Visible<'_>> = (0..20)
        .map(|row| ends[row % ends.len()])
        .map(|(prefix_len, n)| Visible { prefix_len, extra: &extra[..n] })
        .collect();
    for (shape, ty) in [
        (shape(7, 1, 32), KvType::F16),
        (shape(7, 1, 32), KvType::Q8_0),
        (shape(7, 1, 32), KvType::Q4_0),
        (shape(12, 2, 24), KvType::F32),
        (shape(4, 2, 128), KvType::F16),
    ] {
        for n_rows in [1, 2, 7, 20] {
            check(shape, ty, 820, &rows[..n_rows], &pools);
        }
        // Each row alone, so that items are blocks.
        for row in &rows[..11] {
            check(shape, ty, 820, &[*row], &pools[1..]);
        }
    }
}

/// Windows that begin and end anywhere in a block, in the prefix and among the extra slots, for rows of one tile whose windows
/// differ, in items of chunks and of blocks.
#[test]
fn windows_softcaps_and_sinks_equal_the_plain_loops() {
    let pools = [1, 2, 3, 4].map(pool_of);
    let extra: Vec<u32> = (560..620).rev().collect();
    let ends = [
        (500, 3),
        (500, 30),
        (510, 5),
        (511, 1),
        (512, 0),
        (530, 60),
        (0, 0),
        (255, 2),
        (257, 0),
        (0, 40),
        (18, 3),
    ];
    let rows: Vec<Visible<'_>> = (0..22)
        .map(|row| ends[row % ends.len()])
        .map(|(prefix_len, n)| Visible { prefix_len, extra: &extra[..n] })
        .collect();
    let sinks: Vec<f32> = Random::new(8).floats(7).iter().map(|x| 3.0 * x).collect();
    for (shape, ty) in [
        (shape(7, 1, 32), KvType::F16),
        (shape(1, 1, 32), KvType::Q8_0),
        (shape(2, 1, 64), KvType::Q4_0),
        (shape(6, 2, 20), KvType::F32),
    ] {
        for window in [1, 2, 15, 16, 17, 40, 255, 256, 257, 300, 10_000] {
            let rules = windowed(shape.head_dim, window, &sinks[..shape.n_heads]);
            check_rules(shape, &rules, ty, 620, &rows, &pools[..2]);
            // Few rows, so that items are blocks on several threads.
            check_rules(shape, &rules[1..], ty, 620, &rows[1..2], &pools);
            check_rules(shape, &rules[1..], ty, 620, &rows[5..7], &pools[2..]);
        }
    }
}

/// A ring that was written over and over has the bits of a layer of all slots, for windows that it holds: before and behind the
/// places where it wraps around, with extra slots on both sides of one.
#[test]
fn a_ring_equals_a_layer_of_all_slots() {
    let pools = [1, 3].map(pool_of);
    for n_slots in [300usize, 530, 1000, 1030, 1290, 1550] {
        let extra: Vec<u32> = (n_slots as u32 - 24..n_slots as u32).rev().collect();
        let rows: Vec<Visible<'_>> = [(24, 1), (24, 24), (30, 3), (25, 0), (31, 7), (40, 0), (39, 2)]
            .map(|(back, n)| Visible { prefix_len: n_slots - back, extra: &extra[..n] })
            .to_vec();
        let sinks: Vec<f32> = Random::new(8).floats(7);
        for (shape, ty) in [
            (shape(7, 1, 32), KvType::F16),
            (shape(1, 1, 32), KvType::Q8_0),
            (shape(2, 1, 64), KvType::Q4_0),
            (shape(6, 2, 20), KvType::F32),
        ] {
            let cache = Cache::new(n_slots as u64, ty, shape, n_slots);
            let width = shape.n_kv_heads * shape.head_dim;
            let mut ring = KvLayer::ring(ty, shape.n_kv_heads, 400, shape.head_dim).unwrap();
            assert_eq!((ring.n_slots(), ring.is_ring(), cache.layer.is_ring()), (512, true, false));
            for (slot, (key, value)) in cache.keys.chunks(width).zip(cache.values.chunks(width)).enumerate() {
                ring.write(Kernels::detect(), slot, key, value);
            }
            let q = Random::new(3).floats(rows.len() * shape.n_heads * shape.head_dim);
            for window in [1, 2, 16, 17, 40, 255, 256, 257, 400, 472] {
                for rule in windowed(shape.head_dim, window, &sinks[..shape.n_heads]) {
                    for k in Kernels::available() {
                        for pool in &pools {
                            for n_rows in [1, 2, 7] {
                                let (rows, q) = (&rows[..n_rows], &q[..q.len() / 7 * n_rows]);
                                let full = run_rule(k, pool, shape, rule, q, &cache.layer, rows);
                                let case =
                                    format!("{n_slots} slots, {rule:?}, {ty:?}, {n_rows} rows, {}", k.isa());
                                assert_bits(&run_rule(k, pool, shape, rule, q, &ring, rows), &full, &case);
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
#[should_panic(expected = "a window of 513 in 512 slots")]
fn a_ring_refuses_longer_windows() {
    let (shape, mut out) = (shape(1, 1, 32), [0.0; 32]);
    let ring = KvLayer::ring(KvType::F16, 1, 512, 32).unwrap();
    let rule = AttentionRule { window: Some(513), ..AttentionRule::plain(32) };
    let rows = [Visible { prefix_len: 3, extra: &[] }];
    let scratch = &mut AttentionScratch::new();
    attention(Kernels::detect(), &pool_of(1), shape, rule, &[0.0; 32], &ring, &rows, scratch, &mut out);
}

/// Each part of the rule alone.
#[test]
fn each_part_of_a_rule_equals_the_plain_loops() {
    let pools = [1, 4].map(pool_of);
    let extra = [310, 305, 319];
    let rows = [(0, 0), (0, 1), (300, 3), (255, 2), (17, 0)]
        .map(|(prefix_len, n)| Visible { prefix_len, extra: &extra[..n] });
    let plain = AttentionRule::plain(32);
    let rules = [
        AttentionRule { scale: 1.0, ..plain },
        AttentionRule { scale: 0.0, ..plain },
        AttentionRule { softcap: Some(0.3), ..plain },
        AttentionRule { softcap: Some(50.0), ..plain },
        AttentionRule { sinks: Some(&[0.5, -100.0, 100.0, f32::NEG_INFINITY]), ..plain },
    ];
    for &ty in KvType::ALL {
        check_rules(shape(4, 2, 32), &rules, ty, 320, &rows, &pools);
        check_rules(shape(4, 2, 32), &rules, ty, 320, &rows[2..3], &pools);
    }
}

/// Rules are what their formulas state, within the rounding of f32.
#[test]
fn rules_are_close_to_the_formulas() {
    let shape = shape(4, 2, 32);
    let cache = Cache::new(9, KvType::F32, shape, 620);
    let extra: Vec<u32> = (560..620).rev().collect();
    let rows = [(0, 1), (500, 3), (500, 30), (20, 60), (256, 0), (530, 60)]
        .map(|(prefix_len, n)| Visible { prefix_len, extra: &extra[..n] });
    let q: Vec<f32> = Random::new(3).floats(rows.len() * 128).iter().map(|x| 4.0 * x).collect();
    let sinks = [0.5, -2.0, 3.0, 0.0];
    for window in [1, 7, 33, 256, 300, 1000] {
        for rule in windowed(32, window, &sinks) {
            let got = run_rule(Kernels::detect(), &pool_of(2), shape, rule, &q, &cache.layer, &rows);
            for (i, (query, got)) in q.chunks(32).zip(got.chunks(32)).enumerate() {
                let (row, head) = (&rows[i / 4], i % 4);
                let slots = slots_of(row);
                let (mut total, mut sums) = (0.0f64, [0.0f64; 32]);
                for &slot in &slots[slots.len().saturating_sub(window)..] {
                    let range = (slot * 2 + head / 2) * 32..(slot * 2 + head / 2 + 1) * 32;
                    let dot: f64 = query
                        .iter()
                        .zip(&cache.keys[range.clone()])
                        .map(|(q, k)| f64::from(*q) * f64::from(*k))
                        .sum();
                    let mut score = dot * f64::from(rule.scale);
                    if let Some(cap) = rule.softcap {
                        score = f64::from(cap) * (score / f64::from(cap)).tanh();
                    }
                    total += score.exp();
                    for (sum, value) in sums.iter_mut().zip(&cache.values[range]) {
                        *sum += score.exp() * f64::from(*value);
                    }
                }
                total += rule.sinks.map_or(0.0, |sinks| f64::from(sinks[head]).exp());
                for (got, sum) in got.iter().zip(sums) {
                    let error = (f64::from(*got) - sum / total).abs();
                    assert!(error < 3e-6, "{rule:?}, {row:?}, head {head}: {got}, not {}", sum / total);
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn equals_the_plain_loops_anywhere(
        kv_heads in 1usize..4, group in 1usize..10, head_dim in 1usize..100, ty in 0..KvType::ALL.len(),
        rows in proptest::collection::vec((0usize..60, proptest::collection::vec(0u32..60, 0..8)), 1..9),
        window in 1usize..70, has_window: bool, softcap in proptest::option::of(0.1f32..5.0),
        sinks in proptest::option::of(-3.0f32..3.0),
    ) {
        let visible: Vec<_> = rows.iter().map(|(prefix_len, extra)| Visible { prefix_len: *prefix_len, extra }).collect();
        let ty = KvType::ALL[ty];
        let head_dim = if ty.holds(head_dim) { head_dim } else { head_dim.next_multiple_of(32) };
        let sinks: Option<Vec<f32>> = sinks.map(|sink| (0..kv_heads * group).map(|head| sink + head as f32 * 0.1).collect());
        let rule = AttentionRule {
            window: has_window.then_some(window),
            softcap,
            sinks: sinks.as_deref(),
            ..AttentionRule::plain(head_dim)
        };
        check_rules(shape(kv_heads * group, kv_heads, head_dim), &[rule], ty, 60, &visible, &[pool_of(1)]);
    }
}

/// Rule 2 of exactness (`ARCHITECTURE.md`): NaN in a slot that no row sees does not change any result.
#[test]
fn masked_slots_enter_no_result() {
    let shape = shape(4, 2, 32);
    for k in Kernels::available() {
        let mut cache = Cache::new(1, KvType::F32, shape, 40);
        // The row with the shortest prefix is the first of its tile, which may be of any size.
        let visible = [
            Visible { prefix_len: 17, extra: &[] },
            Visible { prefix_len: 20, extra: &[30] },
            Visible { prefix_len: 20, extra: &[30, 33] },
            Visible { prefix_len: 20, extra: &[30, 36] },
        ];
        let q = Random::new(3).floats(visible.len() * 4 * 32);
        let before = run(k, &pool_of(1), shape, &q, &cache.layer, &visible);
        for slot in (20..40).filter(|slot| ![30, 33, 36].contains(slot)) {
            cache.layer.write(k, slot, &[f32::NAN; 64], &[f32::NAN; 64]);
        }
        let after = run(k, &pool_of(1), shape, &q, &cache.layer, &visible);
        assert_bits(&after, &before, "NaN in slots that nobody sees");
        // A slot that one row sees affects that row only.
        cache.layer.write(k, 36, &[f32::NAN; 64], &[f32::NAN; 64]);
        let after = run(k, &pool_of(1), shape, &q, &cache.layer, &visible);
        assert_bits(&after[..384], &before[..384], "rows 0 to 2");
        assert!(after[384..].iter().all(|x| x.is_nan()));
        // A committed slot does not affect a row of the same tile whose prefix ends before it.
        cache.layer.write(k, 18, &[f32::NAN; 64], &[f32::NAN; 64]);
        let after = run(k, &pool_of(1), shape, &q, &cache.layer, &visible);
        assert!(after[128..].iter().all(|x| x.is_nan()));
        assert_bits(&after[..128], &before[..128], "row 0, whose neighbours see slot 18");
    }
}

/// Rule 2: keys give the same bits as extra slots and after a commit moved them into the prefix.
#[test]
fn committed_or_extra_is_the_same() {
    let shape = shape(6, 2, 64);
    for &ty in KvType::ALL {
        for k in Kernels::available() {
            let mut cache = Cache::new(2, ty, shape, 100);
            let q = Random::new(3).floats(6 * 64);
            let path = [90, 77, 95, 81, 88];
            let draft =
                run(k, &pool_of(2), shape, &q, &cache.layer, &[Visible { prefix_len: 50, extra: &path }]);
            // In a batch with rows that see fewer and more slots.
            let company = [Visible { prefix_len: 3, extra: &[] }, Visible { prefix_len: 50, extra: &path }];
            let both = run(k, &pool_of(2), shape, &[&q[..], &q].concat(), &cache.layer, &company);
            assert_bits(&both[6 * 64..], &draft, "alone or not");
            for (i, &slot) in path.iter().enumerate() {
                cache.layer.copy_slot(slot as usize, 50 + i);
            }
            let committed =
                run(k, &pool_of(1), shape, &q, &cache.layer, &[Visible { prefix_len: 55, extra: &[] }]);
            assert_bits(&committed, &draft, "as extra slots, then committed");
            let mut fork = KvLayer::new(ty, 2, 60, 64).unwrap();
            fork.copy_prefix(&cache.layer, 55);
            let forked = run(k, &pool_of(1), shape, &q, &fork, &[Visible { prefix_len: 55, extra: &[] }]);
            assert_bits(&forked, &committed, "in a fork of another size");
            // Slot by slot, from other places: those of a ring too.
            for mut copy in [KvLayer::new(ty, 2, 90, 64).unwrap(), KvLayer::ring(ty, 2, 90, 64).unwrap()] {
                (0..50).for_each(|slot| copy.copy_slot_of(&cache.layer, slot, slot));
                path.iter().zip([70, 61, 59, 88, 53]).for_each(|(&from, to)| {
                    copy.copy_slot_of(&cache.layer, from as usize, to);
                });
                let visible = [Visible { prefix_len: 50, extra: &[70, 61, 59, 88, 53] }];
                // (A ring is read through a window, here a longer one than the text.)
                let rule = AttentionRule { window: Some(60), ..AttentionRule::plain(64) };
                let copied = run_rule(k, &pool_of(1), shape, rule, &q, &copy, &visible);
                assert_bits(&copied, &committed, "copied to other slots");
            }
        }
    }
}

/// Rule 2 for a tree deeper than the window: a row alone, in a batch of 33, and after its ancestors were committed.
#[test]
fn windows_do_not_depend_on_the_batch_or_on_commits() {
    let shape = shape(4, 2, 32);
    let width = 4 * 32;
    let path: Vec<u32> = (0..25).map(|i| 420 + (i * 7) % 25).collect();
    let sinks = [0.5, -2.0, 3.0, 0.0];
    for &ty in KvType::ALL {
        for k in Kernels::available() {
            let mut cache = Cache::new(2, ty, shape, 450);
            let q = Random::new(3).floats(33 * width);
            // Row 20 is the row at test; the others see more, less, another branch, or only a long prefix.
            let batch: Vec<Visible<'_>> = (0..33)
                .map(|row| match row {
                    20 => Visible { prefix_len: 290, extra: &path },
                    _ if row % 3 == 0 => Visible { prefix_len: 290, extra: &path[..row % 25] },
                    _ if row % 3 == 1 => Visible { prefix_len: 12 * row, extra: &path[row % 25..] },
                    _ => Visible { prefix_len: 400 - row, extra: &[] },
                })
                .collect();
            let own = &q[20 * width..21 * width];
            let windows = [1, 7, 24, 25, 26, 40, 59, 60, 61, 200, 314, 315, 1000];
            let mut before = Vec::new();
            for window in windows {
                for rule in windowed(32, window, &sinks) {
                    let alone = run_rule(k, &pool_of(1), shape, rule, own, &cache.layer, &batch[20..21]);
                    for n_threads in 1..=4 {
                        let pool = pool_of(n_threads);
                        let case = format!("{ty:?}, {rule:?}, {}, {n_threads} threads", k.isa());
                        let again = run_rule(k, &pool, shape, rule, own, &cache.layer, &batch[20..21]);
                        assert_bits(&again, &alone, &case);
                        let all = run_rule(k, &pool, shape, rule, &q, &cache.layer, &batch);
                        assert_bits(&all[20 * width..21 * width], &alone, &format!("{case}, in the batch"));
                    }
                    before.push(alone);
                }
            }
            for (i, &slot) in path.iter().enumerate() {
                cache.layer.copy_slot(slot as usize, 290 + i);
            }
            let rules = windows.into_iter().flat_map(|window| windowed(32, window, &sinks));
            for (rule, before) in rules.zip(before) {
                for n_threads in [1, 4] {
                    let visible = [Visible { prefix_len: 315, extra: &[] }];
                    let pool = pool_of(n_threads);
                    let after = run_rule(k, &pool, shape, rule, own, &cache.layer, &visible);
                    assert_bits(&after, &before, &format!("{ty:?}, {rule:?}, {}: committed", k.isa()));
                }
            }
        }
    }
}

/// NaN before the window of a row does not change its result, in a batch with rows that see it, in chunks and in blocks.
#[test]
fn positions_before_the_window_enter_no_result() {
    let shape = shape(2, 1, 32);
    let path: Vec<u32> = (560..600).collect();
    let sinks = [1.0, 0.0];
    for k in Kernels::available() {
        for (window, prefix_len) in [(20, 540), (50, 540), (300, 540), (24, 256), (3, 14)] {
            let mut cache = Cache::new(4, KvType::F32, shape, 600);
            let row = Visible { prefix_len, extra: &path };
            let batch = [Visible { prefix_len, extra: &[] }, row, Visible { prefix_len, extra: &path[..5] }];
            let q = Random::new(3).floats(3 * 64);
            for rule in windowed(32, window, &sinks) {
                for n_threads in [1, 4] {
                    let pool = pool_of(n_threads);
                    let before = run_rule(k, &pool, shape, rule, &q, &cache.layer, &batch);
                    let slots = slots_of(&row);
                    for &slot in &slots[..slots.len() - window] {
                        cache.layer.write(k, slot, &[f32::NAN; 32], &[f32::NAN; 32]);
                    }
                    let case =
                        format!("{rule:?}, {prefix_len} in the prefix, {n_threads} threads, {}", k.isa());
                    let alone = run_rule(k, &pool, shape, rule, &q[64..128], &cache.layer, &batch[1..2]);
                    assert_bits(&alone, &before[64..128], &case);
                    let after = run_rule(k, &pool, shape, rule, &q, &cache.layer, &batch);
                    assert_bits(&after[64..128], &before[64..128], &format!("{case}, in the batch"));
                    assert!(
                        after[..64].iter().all(|x| x.is_nan()),
                        "{case}: a row whose window reaches the NaN"
                    );
                    cache = Cache::new(4, KvType::F32, shape, 600);
                }
            }
        }
    }
}

/// Parts of a rule that have no effect change no bit.
#[test]
fn rules_without_effect_are_the_plain_rule() {
    let shape = shape(4, 2, 32);
    let extra = [310, 305, 319];
    let rows =
        [(0, 0), (1, 0), (300, 3), (17, 2)].map(|(prefix_len, n)| Visible { prefix_len, extra: &extra[..n] });
    let q = Random::new(3).floats(rows.len() * 128);
    for &ty in KvType::ALL {
        let cache = Cache::new(5, ty, shape, 320);
        for k in Kernels::available() {
            let plain = run(k, &pool_of(2), shape, &q, &cache.layer, &rows);
            let rule = AttentionRule {
                window: Some(303),
                sinks: Some(&[f32::NEG_INFINITY; 4]),
                ..AttentionRule::plain(32)
            };
            let same = run_rule(k, &pool_of(2), shape, rule, &q, &cache.layer, &rows);
            assert_bits(&same, &plain, k.isa().name());
        }
    }
}

#[test]
fn f16_rounds_the_same_on_every_isa() {
    let x = [
        0.1,
        65504.0,
        65520.0,
        1e-8,
        6e-8,
        -0.0,
        f32::INFINITY,
        1.0 + 1.0 / 2048.0,
        1.0 + 3.0 / 2048.0,
        1e30,
    ];
    let one = shape(1, 1, 10);
    for k in Kernels::available() {
        let mut layer = KvLayer::new(KvType::F16, 1, 1, 10).unwrap();
        layer.write(k, 0, &[0.0; 10], &x);
        let out = run(k, &pool_of(1), one, &[0.0; 10], &layer, &[Visible { prefix_len: 1, extra: &[] }]);
        let expected = x.map(|x| half::f16::from_f32(x).to_f32() + 0.0);
        assert_bits(&out, &expected, k.isa().name());
    }
}

#[test]
fn scratch_and_layer_sizes() {
    assert_eq!(KvLayer::new(KvType::F16, 2, 100, 64).unwrap().size_bytes(), 2 * 2 * 64 * (112 + 100));
    assert_eq!(KvLayer::new(KvType::F32, 1, 0, 64).unwrap().size_bytes(), 0);
    assert!(KvLayer::new(KvType::F32, 8, usize::MAX / 16, 64).is_err());
}

#[test]
#[should_panic(expected = "slot 48 of 48")]
fn a_slot_past_the_end_panics() {
    let layer = KvLayer::new(KvType::F16, 1, 48, 16).unwrap();
    let visible = [Visible { prefix_len: 0, extra: &[48] }];
    run(Kernels::detect(), &pool_of(1), shape(1, 1, 16), &[0.0; 16], &layer, &visible);
}

#[test]
#[should_panic(expected = "a window of no positions")]
fn an_empty_window_panics() {
    let layer = KvLayer::new(KvType::F16, 1, 48, 16).unwrap();
    let rule = AttentionRule { window: Some(0), ..AttentionRule::plain(16) };
    run_rule(Kernels::detect(), &pool_of(1), shape(1, 1, 16), rule, &[], &layer, &[]);
}

#[test]
#[should_panic(expected = "Some(2) sinks for 1 heads")]
fn sinks_of_other_heads_panic() {
    let layer = KvLayer::new(KvType::F16, 1, 48, 16).unwrap();
    let rule = AttentionRule { sinks: Some(&[0.0; 2]), ..AttentionRule::plain(16) };
    run_rule(Kernels::detect(), &pool_of(1), shape(1, 1, 16), rule, &[], &layer, &[]);
}
