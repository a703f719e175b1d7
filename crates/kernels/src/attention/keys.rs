//! Dot products of keys with a tile of queries. Keys are in panels of 16 slots, as floats or in blocks of codes.

use super::super::aligned::Line;
use super::super::int8::Block;
use super::super::layout::Scaled;
use super::super::matmul::{COLUMNS, F32Columns, FloatColumns, int_tile};
use super::super::simd::{Ahead, Simd};

/// Scores of the first `C` panels of `keys`, one line each; returns `C`. `next` is prefetched.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(super) fn score_panels<S: Simd, K: KeyPanels, const N: usize, const C: usize>(
    s: S,
    keys: &[Line],
    panel_lines: usize,
    queries: [&[K::Query]; N],
    scale: S::F,
    scores: &mut [Line],
    stride: usize,
    next: &[Line],
) -> usize {
    let mut panels: [&[Line]; C] = [&[]; C];
    for c in 0..C {
        panels[c] = &keys[c * panel_lines..][..panel_lines];
    }
    let dots = K::dots::<S, N, C>(s, panels, queries, next);
    for n in 0..N {
        let scores = &mut scores[n * stride..][..C];
        for c in 0..C {
            s.store(s.mul(dots[c][n], scale), scores[c].floats_mut());
        }
    }
    C
}

/// The representation of keys, and their dot products with queries.
pub(super) trait KeyPanels {
    /// An element of a query in the form for these keys.
    type Query: Copy;
    /// The keys after widening.
    type Wide: KeyPanels;
    /// Whether loading takes a conversion, which pays once for many tiles.
    const WIDENS: bool;
    /// Whether queries are rounded to blocks.
    const ROUNDS: bool;
    /// Vectors that a dot product needs while it is computed.
    const ACCUMULATORS: usize;

    /// A query in that form: `x`, or query number `query` of `blocks`.
    fn query<'a>(x: &'a [f32], blocks: &'a [Block], query: usize) -> &'a [Self::Query];

    /// Widens panels of `panel_lines` lines to panels of `head_dim` lines.
    fn widen<S: Simd>(s: S, panels: &[Line], panel_lines: usize, wide: &mut [Line], head_dim: usize);

    /// The dot products of `N` queries with the 16 keys of each panel. `next` is prefetched meanwhile.
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
    type Wide = FloatKeys<F32Columns>;
    const WIDENS: bool = F::WIDENS;
    const ROUNDS: bool = false;
    const ACCUMULATORS: usize = 1;

    #[inline(always)]
    fn query<'a>(x: &'a [f32], _blocks: &'a [Block], _query: usize) -> &'a [f32] {
        x
    }

    #[inline(always)]
    fn widen<S: Simd>(s: S, panels: &[Line], panel_lines: usize, wide: &mut [Line], head_dim: usize) {
        for (panel, wide) in panels.chunks(panel_lines).zip(wide.chunks_mut(head_dim)) {
            for (i, line) in wide.iter_mut().enumerate() {
                s.store(F::column(s, panel, i), line.floats_mut());
            }
        }
    }

    #[inline(always)]
    fn dots<S: Simd, const N: usize, const C: usize>(
        s: S,
        panels: [&[Line]; C],
        queries: [&[f32]; N],
        next: &[Line],
    ) -> [[S::F; N]; C] {
        let mut acc = [[s.splat(0.0); N]; C];
        let len = queries[0].len();
        let whole = len / COLUMNS * COLUMNS;
        let ahead = Ahead::new(next, len.div_ceil(COLUMNS));
        let mut first = 0;
        while first < whole {
            ahead.prefetch(s, first / COLUMNS);
            let mut keys: [&[Line]; C] = [&[]; C];
            for c in 0..C {
                keys[c] = F::columns(panels[c], first);
            }
            let mut q = [&[0.0; COLUMNS]; N];
            for n in 0..N {
                q[n] = queries[n][first..].first_chunk().expect("whole columns");
            }
            for i in 0..COLUMNS {
                step::<S, F, N, C>(s, keys, i, elements(q, i), &mut acc);
            }
            first += COLUMNS;
        }
        for i in whole..len {
            step::<S, F, N, C>(s, panels, i, elements(queries, i), &mut acc);
        }
        acc
    }
}

/// Element `i` of each query.
#[inline(always)]
fn elements<Q: std::ops::Index<usize, Output = f32> + ?Sized, const N: usize>(
    queries: [&Q; N],
    i: usize,
) -> [f32; N] {
    let mut out = [0.0; N];
    for n in 0..N {
        out[n] = queries[n][i];
    }
    out
}

/// Adds column `i` of the panels times the queries' elements.
#[inline(always)]
fn step<S: Simd, F: FloatColumns, const N: usize, const C: usize>(
    s: S,
    panels: [&[Line]; C],
    i: usize,
    queries: [f32; N],
    acc: &mut [[S::F; N]; C],
) {
    let mut keys = [s.splat(0.0); C];
    for c in 0..C {
        keys[c] = F::column(s, panels[c], i);
    }
    for n in 0..N {
        let q = s.splat(queries[n]);
        for c in 0..C {
            acc[c][n] = s.fma(q, keys[c], acc[c][n]);
        }
    }
}

/// Keys in panels of blocks of 8 or 4 bits, like the rows of a Q8_0 or Q4_0 matrix.
pub(super) struct IntKeys<const BITS: usize>;

impl<const BITS: usize> KeyPanels for IntKeys<BITS> {
    type Query = Block;
    type Wide = IntKeys<BITS>;
    const WIDENS: bool = false;
    const ROUNDS: bool = true;
    const ACCUMULATORS: usize = 2;

    #[inline(always)]
    fn query<'a>(x: &'a [f32], blocks: &'a [Block], query: usize) -> &'a [Block] {
        let n_blocks = x.len() / 32;
        &blocks[query * n_blocks..][..n_blocks]
    }

    #[inline(always)]
    fn widen<S: Simd>(_s: S, _panels: &[Line], _panel_lines: usize, _wide: &mut [Line], _head_dim: usize) {
        unreachable!("codes are multiplied as they are")
    }

    #[inline(always)]
    fn dots<S: Simd, const N: usize, const C: usize>(
        s: S,
        panels: [&[Line]; C],
        queries: [&[Block]; N],
        next: &[Line],
    ) -> [[S::F; N]; C] {
        let ahead = Ahead::new(next, queries[0].len().div_ceil(2));
        int_tile::<S, Scaled<BITS>, C, N>(s, panels, queries, &ahead)
    }
}
