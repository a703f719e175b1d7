//! Sums of the slots' values, weighted by the scores.

use std::ops::Range;

use super::super::aligned::Plain;
use super::super::simd::{LANES, Simd};
use super::Visible;

/// An element of the values as the kernel loads it.
pub(super) trait ValueElement: Plain {
    /// Whether values are codes with a scale for each 32 of them.
    const SCALED: bool;
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F;
}

impl ValueElement for f32 {
    const SCALED: bool = false;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load(x)
    }
}

impl ValueElement for u16 {
    const SCALED: bool = false;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load_f16(x)
    }
}

impl ValueElement for u8 {
    const SCALED: bool = true;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load_i8(x)
    }
}

/// The second pass: values weighted by `e[p]`.
pub(super) struct Weighted<'a, E, const N: usize> {
    /// `[n_slots, n_chunks]`
    pub(super) values: &'a [[E; LANES]],
    /// `[n_slots, n_chunks / 2]` if values are scaled.
    pub(super) scales: &'a [f32],
    pub(super) n_chunks: usize,
    /// `[N, stride]`: e[p]
    pub(super) scores: &'a [f32],
    pub(super) stride: usize,
    pub(super) visible: [Visible<'a>; N],
    /// Positions that all queries see.
    pub(super) shared: usize,
    /// 1 / Σ e[p]
    pub(super) inverse: [f32; N],
    /// `[head_dim]` each
    pub(super) outs: [&'a mut [f32]; N],
}

impl<E: ValueElement, const N: usize> Weighted<'_, E, N> {
    /// Positions whose values fit in the first-level cache while all their chunks are summed.
    #[inline(always)]
    pub(super) fn positions_per_pass(&self) -> usize {
        (16 * 1024 / (self.n_chunks * size_of::<[E; LANES]>())).max(1)
    }

    /// Adds the values at `positions`, which all queries see, to chunks `chunk .. chunk + C` of the outputs;
    /// returns `C`.
    #[inline(always)]
    pub(super) fn sum<S: Simd, const C: usize>(
        &mut self,
        s: S,
        positions: Range<usize>,
        chunk: usize,
    ) -> usize {
        let mut acc = [[s.splat(0.0); C]; N];
        for n in 0..N {
            for c in 0..C {
                acc[n][c] = s.load_partial(chunk_of(self.outs[n], chunk + c), 0.0);
            }
        }
        // The first chunks also load the lines of the other chunks, one pass ahead.
        let (start, end) = (positions.start * self.n_chunks, positions.end * self.n_chunks);
        let next = if chunk == 0 { &self.values[end..self.values.len().min(2 * end - start)] } else { &[] };
        let mut next = next.chunks(self.n_chunks);
        for position in positions {
            for line in next.next().unwrap_or(&[]).iter().step_by(64 / size_of::<[E; LANES]>()) {
                s.prefetch(line);
            }
            let value = &self.values[position * self.n_chunks + chunk..][..C];
            let mut values = [s.splat(0.0); C];
            for c in 0..C {
                values[c] = E::load(s, &value[c]);
            }
            for n in 0..N {
                let e = self.scores[n * self.stride + position];
                self.add(s, e, position, chunk, &values, &mut acc[n]);
            }
        }
        for n in 0..N {
            for c in 0..C {
                s.store_partial(acc[n][c], chunk_of_mut(self.outs[n], chunk + c));
            }
        }
        C
    }

    /// Adds the values that only query `n` sees to one chunk of its output, and divides by the sum of the weights.
    #[inline(always)]
    pub(super) fn finish<S: Simd>(&mut self, s: S, n: usize, chunk: usize) {
        let mut acc = [s.load_partial(chunk_of(self.outs[n], chunk), 0.0)];
        for position in self.shared..self.visible[n].len() {
            let slot = self.visible[n].slot(position);
            let values = [E::load(s, &self.values[slot * self.n_chunks + chunk])];
            let e = self.scores[n * self.stride + position];
            self.add(s, e, slot, chunk, &values, &mut acc);
        }
        s.store_partial(s.mul(acc[0], s.splat(self.inverse[n])), chunk_of_mut(self.outs[n], chunk));
    }

    /// `acc += e · values` of a slot; `e` includes the scale if values have one.
    #[inline(always)]
    fn add<S: Simd, const C: usize>(
        &self,
        s: S,
        e: f32,
        slot: usize,
        chunk: usize,
        values: &[S::F; C],
        acc: &mut [S::F; C],
    ) {
        let mut weight = s.splat(e);
        for c in 0..C {
            if E::SCALED && (c == 0 || (chunk + c).is_multiple_of(2)) {
                weight = s.splat(e * self.scales[slot * (self.n_chunks / 2) + (chunk + c) / 2]);
            }
            acc[c] = s.fma(weight, values[c], acc[c]);
        }
    }
}

/// Chunk `chunk` of a head's output; the last one may be shorter.
#[inline(always)]
fn chunk_of(out: &[f32], chunk: usize) -> &[f32] {
    &out[chunk * LANES..out.len().min((chunk + 1) * LANES)]
}

/// As `chunk_of`, mutable.
#[inline(always)]
fn chunk_of_mut(out: &mut [f32], chunk: usize) -> &mut [f32] {
    let end = out.len().min((chunk + 1) * LANES);
    &mut out[chunk * LANES..end]
}
