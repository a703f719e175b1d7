//! Dot products of keys with a tile of queries. Keys are in panels of 16 slots, as floats or 8-bit blocks.

use super::super::activations::{Block, quantize_block};
use super::super::aligned::Line;
use super::super::layout::{PANEL_ROWS, Scaled};
use super::super::matmul::{Ahead, FloatColumns, int_tile};
use super::super::simd::Simd;

/// Scores of the first `C` panels of `keys`; returns `C`.
#[inline(always)]
pub(super) fn score_panels<S: Simd, K: KeyPanels, const N: usize, const C: usize>(
    s: S,
    keys: &[Line],
    panel_lines: usize,
    queries: [&[K::Query]; N],
    scale: S::F,
    scores: &mut [f32],
    stride: usize,
) -> usize {
    let mut panels: [&[Line]; C] = [&[]; C];
    for c in 0..C {
        panels[c] = &keys[c * panel_lines..][..panel_lines];
    }
    let (first, end) = (keys.len().min(C * panel_lines), keys.len().min(2 * C * panel_lines));
    let dots = K::dots::<S, N, C>(s, panels, queries, &keys[first..end]);
    for n in 0..N {
        let scores = &mut scores[n * stride..][..C * PANEL_ROWS];
        for c in 0..C {
            s.store(s.mul(dots[c][n], scale), &mut scores.as_chunks_mut().0[c]);
        }
    }
    C
}

/// The representation of keys, and their dot products with queries.
pub(super) trait KeyPanels {
    /// An element of a query in the form for these keys.
    type Query: Copy;

    /// The queries in that form, in `blocks` if they must be rounded.
    fn queries<'a, S: Simd, const N: usize>(
        s: S,
        queries: [&'a [f32]; N],
        blocks: &'a mut [Block],
    ) -> [&'a [Self::Query]; N];

    /// The dot products of `N` queries with the 16 keys of each panel. `next` are the panels after them.
    fn dots<S: Simd, const N: usize, const C: usize>(
        s: S,
        panels: [&[Line]; C],
        queries: [&[Self::Query]; N],
        next: &[Line],
    ) -> [[S::F; N]; C];
}

/// Keys in panels of floats.
pub(super) struct FloatKeys<F>(std::marker::PhantomData<F>);

impl<F: FloatColumns> KeyPanels for FloatKeys<F> {
    type Query = f32;

    #[inline(always)]
    fn queries<'a, S: Simd, const N: usize>(
        _s: S,
        queries: [&'a [f32]; N],
        _blocks: &'a mut [Block],
    ) -> [&'a [f32]; N] {
        queries
    }

    #[inline(always)]
    fn dots<S: Simd, const N: usize, const C: usize>(
        s: S,
        panels: [&[Line]; C],
        queries: [&[f32]; N],
        next: &[Line],
    ) -> [[S::F; N]; C] {
        let mut acc = [[s.splat(0.0); N]; C];
        let ahead = Ahead::new(next, queries[0].len());
        for i in 0..queries[0].len() {
            ahead.prefetch(s, i);
            let mut keys = [s.splat(0.0); C];
            for c in 0..C {
                keys[c] = F::column(s, panels[c], i);
            }
            for n in 0..N {
                let q = s.splat(queries[n][i]);
                for c in 0..C {
                    acc[c][n] = s.fma(q, keys[c], acc[c][n]);
                }
            }
        }
        acc
    }
}

/// Keys in panels of 8-bit blocks, like the rows of a Q8_0 matrix.
pub(super) struct IntKeys;

impl KeyPanels for IntKeys {
    type Query = Block;

    #[inline(always)]
    fn queries<'a, S: Simd, const N: usize>(
        s: S,
        queries: [&'a [f32]; N],
        blocks: &'a mut [Block],
    ) -> [&'a [Block]; N] {
        let n_blocks = queries[0].len() / 32;
        for n in 0..N {
            for (x, block) in queries[n].as_chunks::<32>().0.iter().zip(&mut blocks[n * n_blocks..]) {
                *block = quantize_block(s, x);
            }
        }
        let mut out: [&[Block]; N] = [&[]; N];
        for n in 0..N {
            out[n] = &blocks[n * n_blocks..][..n_blocks];
        }
        out
    }

    #[inline(always)]
    fn dots<S: Simd, const N: usize, const C: usize>(
        s: S,
        panels: [&[Line]; C],
        queries: [&[Block]; N],
        next: &[Line],
    ) -> [[S::F; N]; C] {
        let ahead = Ahead::new(next, queries[0].len().div_ceil(2));
        int_tile::<S, Scaled<8>, C, N>(s, panels, queries, &ahead)
    }
}
