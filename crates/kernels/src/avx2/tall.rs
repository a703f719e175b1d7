//! Tall tiles: a panel times many activation rows.
//!
//! A tile of four rows separates the codes of a block anew for each four rows, and has no register left for a fifth. Here the
//! codes of a block for half of the panel's outputs are separated once and stay in registers, while one row after another is
//! multiplied with them. The sums of the rows are in the first-level cache: a load and a store for 256 multiply-adds.
//!
//! The rows of a group are stored block by block, so a tile reads them as one sequential stream.

use std::arch::x86_64::*;

use super::super::aligned::Line;
use super::super::int8::Block;
use super::super::layout::IntLayout;
use super::super::simd::{Ahead, Simd, codes};
use super::Avx2;

type Isa = Avx2<false>;

/// A call for each `i` below `n`, 4 or 8, with constants for `i`.
macro_rules! unrolled {
    ($i:ident < $n:ident => $call:expr) => {
        unrolled!(@ $n $i $call, 0 1 2 3 4 5 6 7)
    };
    (@ $n:ident $i:ident $call:expr, $($k:literal)*) => {
        $(if $k < $n {
            let $i = $k;
            $call;
        })*
    };
}

/// Adds to `sums`, one for each row, the products of a panel and the rows of a group. `blocks` are `[block][row]`.
#[inline(always)]
pub(super) fn tile<L: IntLayout>(
    s: Isa,
    panel: &[Line],
    blocks: &[Block],
    ahead: &Ahead<'_>,
    sums: &mut [Line],
) {
    let mut blocks = blocks.chunks_exact(sums.len());
    for (u, unit) in panel.chunks_exact(L::UNIT_LINES).enumerate() {
        let (code_lines, scale_lines) = unit.split_at(L::UNIT_BLOCKS * L::BLOCK_LINES);
        let unit_factors = L::factors(s, scale_lines);
        for b in 0..L::UNIT_BLOCKS {
            let Some(rows) = blocks.next() else { return };
            ahead.at_block(s, u * L::UNIT_BLOCKS + b);
            let lines = &code_lines[b * L::BLOCK_LINES..][..L::BLOCK_LINES];
            if L::SPLIT {
                for half in 0..2 {
                    let scales = L::scales(s, scale_lines, unit_factors, b, half);
                    for lanes in 0..2 {
                        let factors = [scales.scale[lanes], scales.min[lanes]];
                        if half == 0 {
                            half_block::<L, 4>(s, lines, [0, 1, 2, 3], 0, lanes, factors, rows, sums);
                        } else {
                            half_block::<L, 4>(s, lines, [4, 5, 6, 7], 1, lanes, factors, rows, sums);
                        }
                    }
                }
            } else {
                let scales = L::scales(s, scale_lines, unit_factors, b, 0);
                for lanes in 0..2 {
                    let factors = [scales.scale[lanes], scales.min[lanes]];
                    let groups = [0, 1, 2, 3, 4, 5, 6, 7];
                    half_block::<L, 8>(s, lines, groups, 0, lanes, factors, rows, sums);
                }
            }
        }
    }
}

/// `G` groups of columns of a block for eight outputs, `8 · lanes`.. of the panel, and all rows.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
fn half_block<L: IntLayout, const G: usize>(
    s: Isa,
    lines: &[Line],
    groups: [usize; G],
    half: usize,
    lanes: usize,
    [scale, min]: [__m256; 2],
    rows: &[Block],
    sums: &mut [Line],
) {
    let bias = L::BIAS + if L::WIDE { Isa::WIDE_SHIFT } else { 0 };
    proven! {
        let mut w = [_mm256_setzero_si256(); G];
        // Wide codes are read as signed: their sizes and, to turn the activations, themselves.
        let mut signed = w;
        unrolled!(i < G => {
            w[i] = codes::<Isa, L>(s, lines, groups[i])[lanes];
            if L::WIDE {
                signed[i] = _mm256_xor_si256(w[i], _mm256_set1_epi8(-128));
                w[i] = _mm256_abs_epi8(signed[i]);
            }
        });
        for (row, sum) in rows.iter().zip(sums) {
            let (start, scaled_sum) = if L::SPLIT {
                (row.split_start(bias, half), row.scaled_halves[half])
            } else {
                (row.start(bias), row.scaled_sum)
            };
            let dot = if L::WIDE {
                wide_dot::<G>(&w, &signed, &groups, row, start)
            } else {
                narrow_dot::<L, G>(&w, &groups, row, start)
            };
            let sum = &mut sum.floats_mut().as_chunks_mut::<8>().0[lanes];
            let factor = _mm256_mul_ps(scale, _mm256_set1_ps(row.scale));
            let mut acc = _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(dot), _mm256_loadu_ps(sum.as_ptr()));
            if L::MIN {
                acc = _mm256_fmadd_ps(min, _mm256_set1_ps(scaled_sum), acc);
            }
            _mm256_storeu_ps(sum.as_mut_ptr(), acc);
        }
    }
}

/// Sums in 16 bits over as many groups as are exact: 2 · level · 127 per group stays below 2¹⁵ for eight groups of up to 4 bits, four
/// of 5, two of 6.
#[inline(always)]
fn narrow_dot<L: IntLayout, const G: usize>(
    w: &[__m256i; G],
    groups: &[usize; G],
    row: &Block,
    start: i32,
) -> __m256i {
    let n_exact = (1 << 15) / (2 * 127 * L::LEVEL_MAX);
    proven! {
        let ones = _mm256_set1_epi16(1);
        let mut dot = _mm256_set1_epi32(start);
        let mut shorts = _mm256_setzero_si256();
        unrolled!(i < G => {
            let products = _mm256_maddubs_epi16(w[i], _mm256_set1_epi32(row.q[groups[i]]));
            shorts = if i % n_exact == 0 { products } else { _mm256_add_epi16(shorts, products) };
            if i % n_exact == n_exact - 1 || i == G - 1 {
                dot = _mm256_add_epi32(dot, _mm256_madd_epi16(shorts, ones));
            }
        });
        dot
    }
}

/// The same for signed codes of eight bits, of which `sizes` are the absolute values.
#[inline(always)]
fn wide_dot<const G: usize>(
    sizes: &[__m256i; G],
    signed: &[__m256i; G],
    groups: &[usize; G],
    row: &Block,
    start: i32,
) -> __m256i {
    proven! {
        let ones = _mm256_set1_epi16(1);
        let mut dot = _mm256_set1_epi32(start);
        unrolled!(i < G => {
            let a = _mm256_sign_epi8(_mm256_set1_epi32(row.q[groups[i]]), signed[i]);
            dot = _mm256_add_epi32(dot, _mm256_madd_epi16(_mm256_maddubs_epi16(sizes[i], a), ones));
        });
        dot
    }
}
