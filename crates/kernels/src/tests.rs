//! Compares every instruction set of this machine with plain loops and with scalar code, bit for bit.
//!
//! The tests check the three rules of exactness. Each of the following faults, planted in the code, made a
//! test fail:
//!
//! | planted fault | caught by |
//! | --- | --- |
//! | a float tile sums in 2 accumulators instead of 4 | `matmul::equals_the_plain_loops` |
//! | the minimum is added before the scale's term | `matmul::equals_the_plain_loops` |
//! | the one-row tile sums each unit of columns apart | `matmul::a_row_does_not_depend_on_the_others` |
//! | a lane's tree adds neighbours first | `rows::equal_on_every_isa`, `attention::equals_the_plain_loops` |
//! | extra slots are visited in order of slot number | `attention::committed_or_extra_is_the_same` |
//! | the fourth panel of keys is the third again | `attention::equals_the_plain_loops_over_long_prefixes` |
//! | a row takes the values that only its neighbour sees | `attention::masked_slots_enter_no_result` |

mod attention;
mod float_env;
mod gather;
mod matmul;
mod panels;
mod pool;
mod recurrent;
mod rows;

use super::{Kernels, Pool};

/// A pool of so many threads; of the calling one where there are no others.
pub(super) fn pool_of(n_threads: usize) -> Pool {
    Pool::new(if cfg!(target_family = "wasm") { 1 } else { n_threads })
}

/// A small random generator with the same numbers on every machine (xorshift64*).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    /// In −1..1.
    pub(super) fn float(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(super) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}

/// Bits, with one pattern for all NaNs, because NaN payloads may differ.
pub(super) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| if x.is_nan() { f32::NAN.to_bits() } else { x.to_bits() }).collect()
}

#[track_caller]
pub(super) fn assert_bits(got: &[f32], expected: &[f32], case: &str) {
    assert_eq!(got.len(), expected.len(), "{case}");
    for (i, (a, b)) in bits(got).into_iter().zip(bits(expected)).enumerate() {
        assert!(a == b, "{case}: element {i} is {} ({a:#x}), not {} ({b:#x})", got[i], expected[i]);
    }
}

/// The fixed tree over sixteen lanes, as plain code.
pub(super) fn tree(x: [f32; 16]) -> f32 {
    let fours = |i: usize| (x[i] + x[i + 8]) + (x[i + 4] + x[i + 12]);
    (fours(0) + fours(2)) + (fours(1) + fours(3))
}

#[test]
fn detect_gives_the_fastest() {
    let available = Kernels::available();
    assert_eq!(available[0].isa(), super::IsaKind::Scalar);
    assert_eq!(Kernels::detect().isa(), available.last().unwrap().isa());
    eprintln!("tested: {:?}", available.iter().map(|k| k.isa()).collect::<Vec<_>>());
}
