//! Sums of the slots' values, weighted by the exponentials.

use std::ops::Range;

use super::super::aligned::{Line, Plain};
use super::super::simd::{LANES, Simd};

/// Positions whose values are widened at a time: 16 KiB if heads have 128 elements.
pub(super) const GROUP_VALUES: usize = 32;

/// 16 elements of the values as the kernel loads them.
pub(super) trait ValueChunk: Plain {
    /// Whether values are codes with a scale for each 32 of them.
    const SCALED: bool;
    /// Whether loading takes a conversion, which pays once for many tiles.
    const WIDENS: bool;
    fn load<S: Simd>(s: S, x: &Self) -> S::F;
}

impl ValueChunk for [f32; LANES] {
    const SCALED: bool = false;
    const WIDENS: bool = false;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &Self) -> S::F {
        s.load(x)
    }
}

impl ValueChunk for [u16; LANES] {
    const SCALED: bool = false;
    const WIDENS: bool = true;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &Self) -> S::F {
        s.load_f16(x)
    }
}

impl ValueChunk for [u8; LANES] {
    const SCALED: bool = true;
    const WIDENS: bool = true;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &Self) -> S::F {
        s.load_i8(x)
    }
}

/// 16 codes of four bits, less 8: the low nibbles, then the high ones.
impl ValueChunk for [u8; LANES / 2] {
    const SCALED: bool = true;
    const WIDENS: bool = true;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &Self) -> S::F {
        const LOW: u64 = 0x0F0F_0F0F_0F0F_0F0F;
        let nibbles = u64::from_le_bytes(*x);
        let codes = u128::from(nibbles & LOW) | u128::from(nibbles >> 4 & LOW) << 64;
        s.sub(s.load_u8(&codes.to_le_bytes()), s.splat(8.0))
    }
}

/// Positions between two shares of prefetches.
const POSITIONS: usize = 16;

/// Some positions of a block, all in the prefix.
pub(super) struct ValueGroup<'a, V> {
    pub(super) positions: Range<usize>,
    /// The values after them, which are prefetched.
    pub(super) next: &'a [V],
    /// The exponentials of all queries.
    pub(super) scores: &'a [Line],
    /// Room for weights that include scales.
    pub(super) weights: &'a mut [Line],
    /// The results of all queries.
    pub(super) sums: &'a mut [Line],
}

/// Adds values of `rows`, `[n_positions, n_chunks]`, to chunks `chunk .. chunk + C` of the sums of `N` queries; returns `C`.
///
/// `weights` are `[n_positions]`, or `[head_dim / 32, GROUP_VALUES]` if values are scaled. `sums` begins with the first query's.
#[inline(always)]
pub(super) fn sum<S: Simd, V: ValueChunk, E: ValueChunk, const N: usize, const C: usize>(
    s: S,
    rows: &[E],
    n_chunks: usize,
    chunk: usize,
    weights: [&[f32]; N],
    sums: &mut [Line],
    next: &[V],
) -> usize {
    // Tiles of several chunks begin at an even one, so that the scales of their chunks are known when this is compiled.
    debug_assert!(C == 1 || chunk.is_multiple_of(2));
    let mut weights = weights;
    if V::SCALED {
        for n in 0..N {
            weights[n] = &weights[n][chunk / 2 * GROUP_VALUES..];
        }
    }
    let mut acc = [[s.splat(0.0); C]; N];
    for n in 0..N {
        for c in 0..C {
            acc[n][c] = s.load(sums[n * (n_chunks + 1) + chunk + c].floats());
        }
    }
    let n_positions = rows.len() / n_chunks;
    let mut shares = next.chunks(next.len().div_ceil(n_positions.div_ceil(POSITIONS)).max(1));
    let mut first = 0;
    while first < n_positions {
        for line in shares.next().unwrap_or(&[]).iter().step_by(64 / size_of::<V>()) {
            s.prefetch(line);
        }
        if n_positions - first >= POSITIONS {
            let mut part = weights;
            for n in 0..N {
                part[n] = &weights[n][first..];
                // The loop then has no checks of weights.
                let len = if V::SCALED { (C - 1) / 2 * GROUP_VALUES + POSITIONS } else { POSITIONS };
                assert!(part[n].len() >= len);
            }
            for (i, row) in rows[first * n_chunks..].chunks_exact(n_chunks).enumerate().take(POSITIONS) {
                step::<S, V, E, N, C>(s, &row[chunk..][..C], part, i, &mut acc);
            }
        } else {
            for i in first..n_positions {
                step::<S, V, E, N, C>(s, &rows[i * n_chunks + chunk..][..C], weights, i, &mut acc);
            }
        }
        first += POSITIONS;
    }
    for n in 0..N {
        for c in 0..C {
            s.store(acc[n][c], sums[n * (n_chunks + 1) + chunk + c].floats_mut());
        }
    }
    C
}

/// Multiplies the exponentials of some positions by their scales.
#[inline(always)]
pub(super) fn scale_weights<S: Simd>(s: S, exponentials: &[f32], scales: &[f32], out: &mut [f32]) {
    let (e, e_tail) = exponentials.as_chunks::<LANES>();
    let (scales, scales_tail) = scales.as_chunks::<LANES>();
    let (out, out_tail) = out.as_chunks_mut::<LANES>();
    for ((e, scales), out) in e.iter().zip(scales).zip(out) {
        s.store(s.mul(s.load(e), s.load(scales)), out);
    }
    for ((e, scale), out) in e_tail.iter().zip(scales_tail).zip(out_tail) {
        *out = e * scale;
    }
}

/// Adds the values of one position.
#[inline(always)]
fn step<S: Simd, V: ValueChunk, E: ValueChunk, const N: usize, const C: usize>(
    s: S,
    row: &[E],
    weights: [&[f32]; N],
    position: usize,
    acc: &mut [[S::F; C]; N],
) {
    let mut values = [s.splat(0.0); C];
    for c in 0..C {
        values[c] = E::load(s, &row[c]);
    }
    for n in 0..N {
        let mut weight = s.splat(0.0);
        for c in 0..C {
            if !V::SCALED && c == 0 {
                weight = s.splat(weights[n][position]);
            }
            if V::SCALED && c % 2 == 0 {
                weight = s.splat(weights[n][c / 2 * GROUP_VALUES + position]);
            }
            acc[n][c] = s.fma(weight, values[c], acc[n][c]);
        }
    }
}
