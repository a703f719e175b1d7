//! What choosing a token from a row of logits needs: the largest number, the largest few, all above a bound, and sums of
//! probabilities, without a pass that a vocabulary of 150,000 tokens would make dear.

use super::Kernels;
use super::math::{exp_lanes, max_across, max_of};
use super::simd::{LANES, Simd, Work};

/// Vectors of a block that is skipped at once.
const BLOCK: usize = 4;
/// Numbers of a block.
pub const BLOCK_LEN: usize = BLOCK * LANES;

/// The lanes of `x` above `bound`. No lane of `bound` is NaN.
#[inline(always)]
fn above<S: Simd>(s: S, x: S::F, bound: S::F) -> u16 {
    !s.eq_mask(s.max(x, bound), bound)
}

/// The index of the largest number; the lowest index if several are equal. NaN is ignored; 0 if all are NaN.
///
/// # Panics
/// If `x` is empty.
pub fn argmax(k: Kernels, x: &[f32]) -> usize {
    assert!(!x.is_empty(), "argmax of nothing");
    k.run(ArgMax { x })
}

struct ArgMax<'a> {
    x: &'a [f32],
}

impl Work for ArgMax<'_> {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> usize {
        let max = s.splat(max_of(s, self.x));
        let (chunks, tail) = self.x.as_chunks::<LANES>();
        for (i, chunk) in chunks.iter().enumerate() {
            let mask = s.eq_mask(s.load(chunk), max);
            if mask != 0 {
                return i * LANES + mask.trailing_zeros() as usize;
            }
        }
        let mask = s.eq_mask(s.load_partial(tail, f32::NAN), max);
        if mask != 0 { chunks.len() * LANES + mask.trailing_zeros() as usize } else { 0 }
    }
}

/// The largest numbers of a row with their indices, and the logarithm of the sum of all exponentials.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Likeliest<const N: usize> {
    best: [(f32, u32); N],
    n: usize,
    /// `ln Σ exp(x)`, of a sum within 0.7 %; −∞ if no number is above −∞.
    pub log_sum: f32,
}

impl<const N: usize> Likeliest<N> {
    /// The numbers and indices, the largest number first; equal ones by index. Fewer than `N` if fewer are above −∞.
    pub fn best(&self) -> &[(f32, u32)] {
        &self.best[..self.n]
    }
}

/// The `N` largest numbers of a row, and its [`log_sum_exp`](crate::log_sum_exp) within 0.007: what a list of likely tokens needs. NaN is
/// ignored.
///
/// A block of 64 is skipped unless one of its numbers is above the smallest of those found, which few blocks have.
/// Sixteen numbers are left out of the sum if all are more than `ln (n + 16) + 5` below the largest, because all such
/// numbers together add at most e⁻⁵ of the largest's exponential. `cargo bench -p refrain --bench kernels likeliest`
/// compares with a plain loop and [`log_sum_exp`](crate::log_sum_exp).
pub fn likeliest<const N: usize>(k: Kernels, x: &[f32]) -> Likeliest<N> {
    k.run(FindLikeliest { x })
}

struct FindLikeliest<'a, const N: usize> {
    x: &'a [f32],
}

impl<const N: usize> FindLikeliest<'_, N> {
    /// Adds the numbers of one vector, whose first has index `first`.
    #[inline(always)]
    fn add<S: Simd>(s: S, found: &mut Likeliest<N>, x: S::F, first: usize) {
        let mut mask = above(s, x, s.splat(found.best[N - 1].0));
        if mask == 0 {
            return;
        }
        let mut lanes = [0.0; LANES];
        s.store(x, &mut lanes);
        while mask != 0 {
            let lane = mask.trailing_zeros() as usize;
            mask &= mask - 1;
            if lanes[lane] > found.best[N - 1].0 {
                let mut at = N - 1;
                // Equal numbers stay before it: they have lower indices.
                while at > 0 && found.best[at - 1].0 < lanes[lane] {
                    found.best[at] = found.best[at - 1];
                    at -= 1;
                }
                found.best[at] = (lanes[lane], (first + lane) as u32);
                found.n = (found.n + 1).min(N);
            }
        }
    }
}

impl<const N: usize> Work for FindLikeliest<'_, N> {
    type Output = Likeliest<N>;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Likeliest<N> {
        const { assert!(N > 0) };
        let mut found = Likeliest { best: [(f32::NEG_INFINITY, 0); N], n: 0, log_sum: f32::NEG_INFINITY };
        let (chunks, tail) = self.x.as_chunks::<LANES>();
        for (i, block) in chunks.chunks(BLOCK).enumerate() {
            let bound = s.splat(found.best[N - 1].0);
            let mut most = bound;
            for chunk in block {
                most = s.max(s.load(chunk), most);
            }
            if s.eq_mask(most, bound) != u16::MAX {
                for (j, chunk) in block.iter().enumerate() {
                    Self::add(s, &mut found, s.load(chunk), (i * BLOCK + j) * LANES);
                }
            }
        }
        let tail_lanes = s.load_partial(tail, f32::NEG_INFINITY);
        Self::add(s, &mut found, tail_lanes, chunks.len() * LANES);
        let max = found.best[0].0;
        if max.is_infinite() {
            found.log_sum = max;
            return found;
        }
        // Lanes at or below the cut add e^(cut − max) each, or nothing; those of the tail that hold no number too.
        let (shift, cut) = (s.splat(max), s.splat(max - libm::logf((self.x.len() + LANES) as f32) - 5.0));
        let mut sum = s.splat(0.0);
        for chunk in chunks {
            let x = s.load(chunk);
            if above(s, x, cut) != 0 {
                sum = s.add(sum, exp_lanes(s, s.sub(s.max(x, cut), shift)));
            }
        }
        if above(s, tail_lanes, cut) != 0 {
            sum = s.add(sum, exp_lanes(s, s.sub(s.max(tail_lanes, cut), shift)));
        }
        found.log_sum = max + libm::logf(s.sum(sum));
        found
    }
}

/// The largest number of each [block](BLOCK_LEN) of `x`, in place of what `out` had. NaN is ignored; −∞ where a block has no number.
pub fn block_max(k: Kernels, x: &[f32], out: &mut Vec<f32>) {
    k.run(BlockMax { x, out });
}

struct BlockMax<'a> {
    x: &'a [f32],
    out: &'a mut Vec<f32>,
}

impl Work for BlockMax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.out.clear();
        self.out.reserve(self.x.len().div_ceil(BLOCK_LEN));
        let (blocks, rest) = self.x.as_chunks::<BLOCK_LEN>();
        let none = s.splat(f32::NEG_INFINITY);
        for block in blocks {
            let mut most = none;
            for chunk in block.as_chunks::<LANES>().0 {
                most = s.max(s.load(chunk), most);
            }
            self.out.push(max_across(s, most));
        }
        if !rest.is_empty() {
            self.out.push(max_of(s, rest));
        }
    }
}

/// Adds `(x · factor, index)` to `out` for each number with `x · factor > bound`, by index. NaN is ignored.
pub fn gather_above(k: Kernels, x: &[f32], factor: f32, bound: f32, out: &mut Vec<(f32, u32)>) {
    k.run(GatherAbove { x, factor, bound, out });
}

struct GatherAbove<'a> {
    x: &'a [f32],
    factor: f32,
    bound: f32,
    out: &'a mut Vec<(f32, u32)>,
}

impl Work for GatherAbove<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let GatherAbove { x, factor, bound, out } = self;
        let (factors, bounds) = (s.splat(factor), s.splat(bound));
        let (blocks, rest) = x.as_chunks::<BLOCK_LEN>();
        for (i, block) in blocks.iter().enumerate() {
            let mut most = bounds;
            for chunk in block.as_chunks::<LANES>().0 {
                most = s.max(s.mul(s.load(chunk), factors), most);
            }
            if s.eq_mask(most, bounds) != u16::MAX {
                add_above(block, factor, bound, i * BLOCK_LEN, out);
            }
        }
        add_above(rest, factor, bound, x.len() - rest.len(), out);
    }
}

/// Adds those of `x`, whose first has index `first`.
fn add_above(x: &[f32], factor: f32, bound: f32, first: usize, out: &mut Vec<(f32, u32)>) {
    for (i, x) in x.iter().enumerate() {
        let x = x * factor;
        if x > bound {
            out.push((x, (first + i) as u32));
        }
    }
}

/// Replaces each logit by `exp((x − max) / temperature)`, NaN by 0, and returns the sum: 16 lanes by index, then the fixed tree of
/// additions. `max` is the largest logit, which is finite.
pub fn exp_scaled(k: Kernels, x: &mut [f32], max: f32, temperature: f32) -> f32 {
    k.run(ExpScaled { x, max, temperature })
}

struct ExpScaled<'a> {
    x: &'a mut [f32],
    max: f32,
    temperature: f32,
}

impl Work for ExpScaled<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let (max, temperature, none) =
            (s.splat(self.max), s.splat(self.temperature), s.splat(f32::NEG_INFINITY));
        let mut sum = s.splat(0.0);
        let (chunks, tail) = self.x.as_chunks_mut::<LANES>();
        for chunk in chunks {
            let e = exp_lanes(s, s.max(s.div(s.sub(s.load(chunk), max), temperature), none));
            s.store(e, chunk);
            sum = s.add(sum, e);
        }
        if !tail.is_empty() {
            // Lanes past the end add exp(−∞) = 0.
            let x = s.load_partial(tail, f32::NEG_INFINITY);
            let e = exp_lanes(s, s.max(s.div(s.sub(x, max), temperature), none));
            s.store_partial(e, tail);
            sum = s.add(sum, e);
        }
        s.sum(sum)
    }
}

/// The sum of `x · factor` over each [block](BLOCK_LEN), in place of what `out` had: products in f32, sums in f64 over eight lanes by index,
/// then the lanes in order.
pub fn block_sums(k: Kernels, x: &[f32], factor: f32, out: &mut Vec<f64>) {
    k.run(BlockSums { x, factor, out });
}

struct BlockSums<'a> {
    x: &'a [f32],
    factor: f32,
    out: &'a mut Vec<f64>,
}

impl Work for BlockSums<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.out.clear();
        for block in self.x.chunks(BLOCK_LEN) {
            let mut sums = [0.0f64; 8];
            let (eights, rest) = block.as_chunks::<8>();
            for eight in eights {
                for (sum, x) in sums.iter_mut().zip(eight) {
                    *sum += f64::from(x * self.factor);
                }
            }
            for (sum, x) in sums.iter_mut().zip(rest) {
                *sum += f64::from(x * self.factor);
            }
            self.out.push(sums.iter().sum());
        }
    }
}
