//! Read bandwidth: each thread reads its part of a buffer far larger than the caches, as several streams at once, with
//! huge pages if the system provides them. One stream leaves part of the bandwidth unused, and so do small pages.
#![allow(unsafe_code)]

use std::hint::black_box;

use super::threads::on_threads;

/// 32 times the last-level cache of a large desktop CPU.
const BUFFER_BYTES: usize = 1 << 30;
/// Passes over the buffer for each number of streams. The best one is the limit.
const PASSES: usize = 6;
/// Bytes of one load instruction: a cache line.
type Line = [u64; 8];

/// The best of several passes with 1, 2, 4 and 8 streams per thread.
pub fn read_bytes_per_s(n_threads: usize) -> f64 {
    let buffer = filled_buffer();
    let part_len = buffer.len() / n_threads;
    let parts: Vec<&[Line]> = buffer.chunks_exact(part_len).take(n_threads).collect();
    let n_bytes = (part_len * n_threads * size_of::<Line>()) as f64;
    let pass = |read: fn(&[Line]) -> u64| {
        let seconds = on_threads(n_threads, &|thread_idx| {
            black_box(read(parts[thread_idx]));
        });
        n_bytes / seconds
    };
    let reads: [fn(&[Line]) -> u64; 4] =
        [read_streams::<1>, read_streams::<2>, read_streams::<4>, read_streams::<8>];
    reads.iter().flat_map(|&read| (0..PASSES).map(move |_| read)).map(pass).fold(0.0, f64::max)
}

fn filled_buffer() -> Vec<Line> {
    let mut buffer: Vec<Line> = Vec::with_capacity(BUFFER_BYTES / size_of::<Line>());
    #[cfg(target_os = "linux")]
    // SAFETY: the advice names the allocation that the vector owns and changes none of its bytes. The kernel rounds or
    // refuses invalid advice, and a refusal only slows the measurement.
    unsafe {
        const PAGE: usize = 4096;
        let start = (buffer.as_mut_ptr() as usize).next_multiple_of(PAGE);
        libc::madvise(start as *mut libc::c_void, BUFFER_BYTES - PAGE, libc::MADV_HUGEPAGE);
    }
    // Written, so that the pages exist and differ from the zero page.
    buffer.extend((0..BUFFER_BYTES as u64 / size_of::<Line>() as u64).map(|i| [i; 8]));
    buffer
}

/// Reads `part` as `N` streams and returns a value that depends on every byte.
fn read_streams<const N: usize>(part: &[Line]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the CPU has the feature.
        return unsafe { read_streams_avx512::<N>(part) };
    }
    let len = part.len() / N;
    let mut sum = [0u64; 8];
    for i in 0..len {
        for stream in 0..N {
            let line = &part[stream * len + i];
            sum.iter_mut().zip(line).for_each(|(sum, word)| *sum ^= word);
        }
    }
    sum.iter().fold(0, |all, sum| all ^ sum)
}

/// The same, a line per instruction. Otherwise the compiler reads the words of several lines one by one.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn read_streams_avx512<const N: usize>(part: &[Line]) -> u64 {
    use std::arch::x86_64::*;

    let len = part.len() / N;
    let mut sums = [_mm512_setzero_si512(); N];
    for i in 0..len {
        for (stream, sum) in sums.iter_mut().enumerate() {
            // SAFETY: the reference is to a whole vector.
            let line = unsafe { _mm512_loadu_si512(part[stream * len + i].as_ptr().cast()) };
            *sum = _mm512_xor_si512(*sum, line);
        }
    }
    sums.into_iter().fold(0, |all, sum| all ^ _mm512_reduce_add_epi64(sum) as u64)
}
