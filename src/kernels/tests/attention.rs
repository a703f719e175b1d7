//! Attention against plain loops over logical positions.

use proptest::prelude::*;

use super::matmul::quantize_activations;
use super::{Random, assert_bits, tree};
use crate::kernels::*;

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

/// One head of one row, over the slots it sees in order.
fn oracle(cache: &Cache, shape: AttentionShape, kv_head: usize, query: &[f32], slots: &[usize]) -> Vec<f32> {
    let head_dim = shape.head_dim;
    let at = |slot: usize| (slot * shape.n_kv_heads + kv_head) * head_dim;
    let scores: Vec<f32> = slots
        .iter()
        .map(|&slot| {
            let key = &cache.keys[at(slot)..][..head_dim];
            let dot = match cache.layer.kv_type() {
                ty @ (KvType::Q8_0 | KvType::Q4_0) => dot_of_blocks(ty, query, key),
                _ => query.iter().zip(key).fold(0.0, |acc: f32, (q, k)| q.mul_add(*k, acc)),
            };
            dot * (1.0 / (head_dim as f32).sqrt())
        })
        .collect();
    let mut folded: Option<(f32, f32, Vec<f32>)> = None;
    for (block, scores) in scores.chunks(256).enumerate() {
        let slots = &slots[256 * block..][..scores.len()];
        let max = scores.iter().fold(f32::NEG_INFINITY, |max, x| max.max(*x));
        let e: Vec<f32> = scores.iter().map(|x| exp(x - max)).collect();
        let mut lanes = [0.0f32; 16];
        for (p, e) in e.iter().enumerate() {
            lanes[p % 16] += e;
        }
        let sums = (0..head_dim).map(|i| {
            slots.iter().zip(&e).fold(0.0f32, |acc, (&slot, e)| {
                let value = &cache.values[at(slot)..][..head_dim];
                match cache.layer.kv_type() {
                    ty @ (KvType::Q8_0 | KvType::Q4_0) => {
                        let (scale, q) = &levels(ty, &value[i / 32 * 32..][..32])[0];
                        (e * scale).mul_add(q[i % 32] as f32, acc)
                    }
                    _ => e.mul_add(value[i], acc),
                }
            })
        });
        let (sum, sums) = (tree(lanes), sums.collect::<Vec<f32>>());
        folded = Some(match folded {
            None => (max, sum, sums),
            Some((old_max, old_sum, old)) => {
                let both = old_max.max(max);
                let (a, b) = (exp(old_max - both), exp(max - both));
                let sums = old.iter().zip(&sums).map(|(old, new)| b.mul_add(*new, a * old));
                (both, b.mul_add(sum, a * old_sum), sums.collect())
            }
        });
    }
    match folded {
        None => vec![0.0; head_dim],
        Some((_, sum, sums)) => sums.iter().map(|x| x * (1.0 / sum)).collect(),
    }
}

fn expected(cache: &Cache, shape: AttentionShape, q: &[f32], visible: &[Visible<'_>]) -> Vec<f32> {
    let mut out = Vec::new();
    for (row, visible) in visible.iter().enumerate() {
        let slots: Vec<usize> =
            (0..visible.prefix_len).chain(visible.extra.iter().map(|&s| s as usize)).collect();
        for head in 0..shape.n_heads {
            let query = &q[(row * shape.n_heads + head) * shape.head_dim..][..shape.head_dim];
            out.extend(oracle(cache, shape, head / (shape.n_heads / shape.n_kv_heads), query, &slots));
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
    let mut out = vec![f32::NAN; q.len()];
    attention(k, pool, shape, q, layer, visible, &mut AttentionScratch::new(), &mut out);
    out
}

fn shape(n_heads: usize, n_kv_heads: usize, head_dim: usize) -> AttentionShape {
    AttentionShape { n_heads, n_kv_heads, head_dim }
}

fn check(shape: AttentionShape, ty: KvType, n_slots: usize, visible: &[Visible<'_>], pools: &[Pool]) {
    let cache = Cache::new(n_slots as u64, ty, shape, n_slots);
    let q = Random::new(3).floats(visible.len() * shape.n_heads * shape.head_dim);
    let expected = expected(&cache, shape, &q, visible);
    for k in Kernels::available() {
        for pool in pools {
            let case = format!(
                "{shape:?}, {ty:?}, {} rows, {}, {} threads",
                visible.len(),
                k.isa(),
                pool.n_threads()
            );
            assert_bits(&run(k, pool, shape, &q, &cache.layer, visible), &expected, &case);
        }
    }
}

#[test]
fn equals_the_plain_loops() {
    let pools = [1, 2, 3].map(Pool::new);
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
        for ty in KvType::ALL.into_iter().filter(|ty| ty.holds(shape.head_dim)) {
            check(shape, ty, 48, &rows, &pools);
            check(shape, ty, 48, &rows[10..], &pools);
        }
    }
}

/// Prefixes of several panels and blocks of positions, for tiles of every height, in items of chunks and of blocks. The rows
/// of a tile see different lengths.
#[test]
fn equals_the_plain_loops_over_long_prefixes() {
    let pools = [Pool::new(2)];
    let extra = [395, 301, 399];
    for n_rows in 1..=9 {
        let rows: Vec<Visible<'_>> =
            [(300, 3), (290, 0), (129, 2), (128, 1), (64, 0), (65, 3), (300, 1), (63, 0), (257, 2)][..n_rows]
                .iter()
                .map(|&(prefix_len, n)| Visible { prefix_len, extra: &extra[..n] })
                .collect();
        for shape in [shape(1, 1, 128), shape(2, 1, 64), shape(7, 1, 32)] {
            for ty in KvType::ALL {
                check(shape, ty, 400, &rows, &pools);
            }
        }
    }
}

/// Extra slots across the border of two blocks, blocks of extra slots alone, rows that end in different blocks, and more queries
/// than a chunk has.
#[test]
fn equals_the_plain_loops_across_blocks() {
    let pools = [1, 2, 5].map(Pool::new);
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn equals_the_plain_loops_anywhere(
        kv_heads in 1usize..4, group in 1usize..10, head_dim in 1usize..100, ty in 0..KvType::ALL.len(),
        rows in proptest::collection::vec((0usize..60, proptest::collection::vec(0u32..60, 0..8)), 1..9),
    ) {
        let visible: Vec<_> = rows.iter().map(|(prefix_len, extra)| Visible { prefix_len: *prefix_len, extra }).collect();
        let ty = KvType::ALL[ty];
        let head_dim = if ty.holds(head_dim) { head_dim } else { head_dim.next_multiple_of(32) };
        check(shape(kv_heads * group, kv_heads, head_dim), ty, 60, &visible, &[Pool::new(1)]);
    }
}

/// Rule 2 of exactness (`ARCHITECTURE.md`): NaN in a slot that no row sees does not change any result.
#[test]
fn masked_slots_enter_no_result() {
    let shape = shape(4, 2, 32);
    for k in Kernels::available() {
        let mut cache = Cache::new(1, KvType::F32, shape, 40);
        let visible = [
            Visible { prefix_len: 20, extra: &[30] },
            Visible { prefix_len: 20, extra: &[30, 33] },
            Visible { prefix_len: 20, extra: &[30, 36] },
            Visible { prefix_len: 17, extra: &[] },
        ];
        let q = Random::new(3).floats(visible.len() * 4 * 32);
        let before = run(k, &Pool::new(1), shape, &q, &cache.layer, &visible);
        for slot in (20..40).filter(|slot| ![30, 33, 36].contains(slot)) {
            cache.layer.write(k, slot, &[f32::NAN; 64], &[f32::NAN; 64]);
        }
        let after = run(k, &Pool::new(1), shape, &q, &cache.layer, &visible);
        assert_bits(&after, &before, "NaN in slots that nobody sees");
        // A slot that one row sees affects that row only.
        cache.layer.write(k, 36, &[f32::NAN; 64], &[f32::NAN; 64]);
        let after = run(k, &Pool::new(1), shape, &q, &cache.layer, &visible);
        assert_bits(&after[..256], &before[..256], "rows 0 and 1");
        assert!(after[256..384].iter().all(|x| x.is_nan()));
        assert_bits(&after[384..], &before[384..], "row 3");
        // A committed slot does not affect a row of the same tile whose prefix ends before it.
        cache.layer.write(k, 18, &[f32::NAN; 64], &[f32::NAN; 64]);
        let after = run(k, &Pool::new(1), shape, &q, &cache.layer, &visible);
        assert!(after[..384].iter().all(|x| x.is_nan()));
        assert_bits(&after[384..], &before[384..], "row 3, whose neighbours see slot 18");
    }
}

/// Rule 2: keys give the same bits as extra slots and after a commit moved them into the prefix.
#[test]
fn committed_or_extra_is_the_same() {
    let shape = shape(6, 2, 64);
    for ty in KvType::ALL {
        for k in Kernels::available() {
            let mut cache = Cache::new(2, ty, shape, 100);
            let q = Random::new(3).floats(6 * 64);
            let path = [90, 77, 95, 81, 88];
            let draft =
                run(k, &Pool::new(2), shape, &q, &cache.layer, &[Visible { prefix_len: 50, extra: &path }]);
            // In a batch with rows that see fewer and more slots.
            let company = [Visible { prefix_len: 3, extra: &[] }, Visible { prefix_len: 50, extra: &path }];
            let both = run(k, &Pool::new(2), shape, &[&q[..], &q].concat(), &cache.layer, &company);
            assert_bits(&both[6 * 64..], &draft, "alone or not");
            for (i, &slot) in path.iter().enumerate() {
                cache.layer.copy_slot(slot as usize, 50 + i);
            }
            let committed =
                run(k, &Pool::new(1), shape, &q, &cache.layer, &[Visible { prefix_len: 55, extra: &[] }]);
            assert_bits(&committed, &draft, "as extra slots, then committed");
            let mut fork = KvLayer::new(ty, 2, 60, 64).unwrap();
            fork.copy_prefix(&cache.layer, 55);
            let forked = run(k, &Pool::new(1), shape, &q, &fork, &[Visible { prefix_len: 55, extra: &[] }]);
            assert_bits(&forked, &committed, "in a fork of another size");
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
        let out = run(k, &Pool::new(1), one, &[0.0; 10], &layer, &[Visible { prefix_len: 1, extra: &[] }]);
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
    run(Kernels::detect(), &Pool::new(1), shape(1, 1, 16), &[0.0; 16], &layer, &visible);
}
