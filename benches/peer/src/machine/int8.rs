//! Peak of 8-bit integer arithmetic: dot-product instructions on registers alone.
#![allow(unsafe_code)]

/// The best of several runs, if the CPU has dot-product instructions that this bench measures.
pub fn macs_per_s(n_threads: usize) -> Option<f64> {
    #[cfg(target_arch = "x86_64")]
    return x86::macs_per_s(n_threads);
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _ = n_threads;
        None
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    use crate::machine::threads::on_threads;

    /// Runs of the loop. The best one is the limit.
    const RUNS: usize = 10;
    /// Iterations of the loop in a run: some tens of milliseconds.
    const N_TURNS: u64 = 10_000_000;
    /// Independent sums: more than the latency of the instruction times its throughput (4 × 2 on the fastest cores), and
    /// few enough for the sixteen registers of AVX2 beside the two factors.
    const N_SUMS: usize = 12;

    pub(super) fn macs_per_s(n_threads: usize) -> Option<f64> {
        let (run, macs_per_turn): (fn(), usize) =
            if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512vnni") {
                // SAFETY: the CPU has the features.
                (|| unsafe { dot_avx512(N_TURNS) }, N_SUMS * 64)
            } else if is_x86_feature_detected!("avxvnni") {
                // SAFETY: the CPU has the feature.
                (|| unsafe { dot_avx_vnni(N_TURNS) }, N_SUMS * 32)
            } else {
                return None;
            };
        let n_macs = N_TURNS as f64 * macs_per_turn as f64 * n_threads as f64;
        let runs = (0..RUNS).map(|_| n_macs / on_threads(n_threads, &|_| run()));
        Some(runs.fold(0.0, f64::max))
    }

    #[target_feature(enable = "avx512f,avx512vnni")]
    fn dot_avx512(n_turns: u64) {
        let (a, b) = (_mm512_set1_epi32(black_box(0x0102_0304)), _mm512_set1_epi32(black_box(0x0504_0302)));
        let mut sums = [_mm512_setzero_si512(); N_SUMS];
        for _ in 0..n_turns {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }

    #[target_feature(enable = "avx2,avxvnni")]
    fn dot_avx_vnni(n_turns: u64) {
        let (a, b) = (_mm256_set1_epi32(black_box(0x0102_0304)), _mm256_set1_epi32(black_box(0x0504_0302)));
        let mut sums = [_mm256_setzero_si256(); N_SUMS];
        for _ in 0..n_turns {
            for sum in &mut sums {
                *sum = _mm256_dpbusd_avx_epi32(*sum, a, b);
            }
        }
        black_box(sums);
    }
}
