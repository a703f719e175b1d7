//! Speed of the kernels against memory bandwidth: `cargo bench --bench kernels [-- FILTER]`.
//!
//! The shape is the feed-forward of a 1.5 B model, 8960 outputs of 1536 columns. Decoding reads every weight
//! once per step, so copies of the matrix take turns; together they exceed the caches. `memory/read` sums the
//! same number of bytes with the same threads; this is the limit for one row. GB/s counts packed bytes,
//! padding included.
//!
//! `REFRAIN_BENCH_THREADS` sets the threads (default: all), `REFRAIN_BENCH_TYPES=Q4_0,Q2_K` the types of weights
//! (default: some; `all`).

use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use refrain::internals::kernels::*;

const N_COLS: usize = 1536;
const N_ROWS: usize = 8960;
/// Bytes of all copies of a matrix: eight times the last-level cache of the machine of this bench's first results.
const WORKING_SET: usize = 256 << 20;

fn n_threads() -> usize {
    let all = || std::thread::available_parallelism().map_or(1, usize::from);
    std::env::var("REFRAIN_BENCH_THREADS").ok().and_then(|n| n.parse().ok()).unwrap_or_else(all)
}

/// The types of weights to measure.
fn types() -> Vec<BlockType> {
    let names = std::env::var("REFRAIN_BENCH_TYPES").unwrap_or_else(|_| "Q8_0,Q4_0,Q4_K,Q6_K,F16".to_owned());
    let is_named = |ty: &BlockType| names == "all" || names.split(',').any(|name| name == ty.name());
    let types: Vec<_> = BlockType::ALL.into_iter().filter(is_named).collect();
    assert!(!types.is_empty(), "no type of weights is called {names}");
    types
}

/// Numbers in −1..1 (xorshift).
fn numbers(n: usize) -> Vec<f32> {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

/// A matrix of the type. Of the types that are only read, the bytes are arbitrary, with small scales.
fn matrix(ty: BlockType) -> PackedMatrix {
    let n = N_ROWS * N_COLS;
    let mut bytes = Vec::new();
    if ty.is_float() || matches!(ty, BlockType::Q8_0 | BlockType::Q4_0) {
        quantize(ty, &numbers(n), &mut bytes);
    } else {
        let n_bytes = ty.row_bytes(n as u64).expect("whole blocks") as usize;
        bytes.extend((0..n_bytes).map(|i| (i * 37 % 32) as u8));
        if ty == BlockType::Mxfp4 {
            // Not the exponents of subnormal scales, which are slow.
            bytes.iter_mut().step_by(ty.block_bytes()).for_each(|exponent| *exponent = 120);
        }
    }
    PackedMatrix::pack(ty, N_ROWS, N_COLS, &bytes, &|row| row).expect("packs")
}

fn bench_memory(c: &mut Criterion) {
    let pool = Pool::new(n_threads());
    let data = vec![1u64; WORKING_SET / 8];
    let mut group = c.benchmark_group("memory");
    group.throughput(Throughput::Bytes(WORKING_SET as u64));
    group.bench_function("read", |b| {
        b.iter(|| {
            let total = AtomicU64::new(0);
            pool.run(data.len() / 512, &|_, chunks| {
                let sum = data[chunks.start * 512..chunks.end * 512]
                    .iter()
                    .fold(0u64, |sum, x| sum.wrapping_add(*x));
                total.fetch_add(sum, Ordering::Relaxed);
            });
            assert_eq!(total.into_inner(), data.len() as u64);
        });
    });
}

fn bench_matmul(c: &mut Criterion) {
    let pool = Pool::new(n_threads());
    for ty in types() {
        let first = matrix(ty);
        let n_copies = WORKING_SET.div_ceil(first.size_bytes());
        let mut copies = vec![first];
        copies.resize_with(n_copies, || matrix(ty));
        let mut group = c.benchmark_group(format!("matmul/{ty}"));
        for k in Kernels::available() {
            let rows: &[usize] = match k.isa() {
                IsaKind::Scalar => &[1],
                _ => &[1, 2, 4, 8, 16, 32, 64, 128, 256, 512],
            };
            for &n_rows in rows {
                group.throughput(Throughput::Bytes(copies[0].size_bytes() as u64));
                let x = numbers(n_rows * N_COLS);
                let mut activations = Activations::new();
                let mut out = vec![0.0; n_rows * N_ROWS];
                let turn = Cell::new(0);
                group.bench_function(BenchmarkId::new(k.isa().name(), n_rows), |b| {
                    b.iter(|| {
                        let w = &copies[turn.replace((turn.get() + 1) % n_copies)];
                        activations.set(k, &pool, &x, n_rows, N_COLS, w.activation_form());
                        matmul(k, &pool, &activations, &mut [MatMul { w, out: &mut out }]);
                        black_box(&mut out);
                    });
                });
            }
        }
    }
}

/// Multiply-adds of 32 bits in registers alone, `n` of them, with vectors of 8 or of 16.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "instructions that the program is not compiled for")]
mod peak {
    use std::arch::x86_64::*;

    /// Chains that hide the latency of a multiply-add on two ports.
    const N_CHAINS: usize = 12;

    macro_rules! peak {
        ($name:ident, $feature:literal, $lanes:literal, $set:ident, $fma:ident, $sum:expr) => {
            /// # Safety
            ///
            /// The machine has the instructions.
            #[target_feature(enable = $feature)]
            pub(super) unsafe fn $name(n: usize) -> f32 {
                let mut acc = [$set(0.0); N_CHAINS];
                let (x, y) = (std::hint::black_box($set(1e-3)), std::hint::black_box($set(0.5)));
                for _ in 0..n / ($lanes * N_CHAINS) {
                    acc.iter_mut().for_each(|acc| *acc = $fma(*acc, x, y));
                }
                let mut sum = acc[0];
                acc[1..].iter().for_each(|&acc| sum = $fma(acc, x, sum));
                $sum(sum)
            }
        };
    }
    peak!(avx2, "avx2,fma", 8, _mm256_set1_ps, _mm256_fmadd_ps, |sum| _mm256_cvtss_f32(sum));
    peak!(avx512, "avx512f", 16, _mm512_set1_ps, _mm512_fmadd_ps, |sum| _mm512_cvtss_f32(sum));

    /// Products of bytes of which `N_PAIRS` pairs are added in 16 bits before they are widened: eight of codes of 4 bits, one
    /// of codes of 8 bits. `n` multiply-adds.
    ///
    /// # Safety
    ///
    /// The machine has the instructions.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn bytes_avx2<const N_PAIRS: usize>(n: usize) -> f32 {
        /// With two vectors per sum, the factors and the ones, sixteen registers.
        const N_SUMS: usize = 6;
        let (a, b) = (std::hint::black_box(_mm256_set1_epi8(3)), std::hint::black_box(_mm256_set1_epi8(5)));
        let ones = _mm256_set1_epi16(1);
        let mut sums = [_mm256_setzero_si256(); N_SUMS];
        for _ in 0..n / (32 * N_PAIRS * N_SUMS) {
            let mut pairs = [_mm256_setzero_si256(); N_SUMS];
            for _ in 0..N_PAIRS {
                for pair in &mut pairs {
                    let product: __m256i;
                    // SAFETY: registers only. An intrinsic of constant factors would be computed once, before the loop.
                    unsafe {
                        std::arch::asm!("vpmaddubsw {0}, {1}, {2}", out(ymm_reg) product, in(ymm_reg) a, in(ymm_reg) b,
                            options(nomem, nostack, preserves_flags));
                    }
                    *pair = _mm256_add_epi16(*pair, product);
                }
            }
            for (sum, pair) in sums.iter_mut().zip(pairs) {
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pair, ones));
            }
        }
        let sum = sums.into_iter().reduce(|sum, next| _mm256_add_epi32(sum, next));
        _mm256_cvtss_f32(_mm256_castsi256_ps(sum.expect("there are sums")))
    }

    /// Products of bytes, `n` multiply-adds.
    ///
    /// # Safety
    ///
    /// The machine has the instructions.
    #[target_feature(enable = "avx512f,avx512vnni")]
    pub(super) unsafe fn bytes_avx512(n: usize) -> f32 {
        let (a, b) = (std::hint::black_box(_mm512_set1_epi8(3)), std::hint::black_box(_mm512_set1_epi8(5)));
        let mut sums = [_mm512_setzero_si512(); N_CHAINS];
        for _ in 0..n / (64 * N_CHAINS) {
            sums.iter_mut().for_each(|sum| *sum = _mm512_dpbusd_epi32(*sum, a, b));
        }
        let sum = sums.into_iter().reduce(|sum, next| _mm512_add_epi32(sum, next));
        _mm512_cvtss_f32(_mm512_castsi512_ps(sum.expect("there are sums")))
    }
}

/// Computes as many multiply-adds. The machine has the instructions.
#[cfg(target_arch = "x86_64")]
type Peak = unsafe fn(usize) -> f32;

/// What the registers give, all threads: multiply-adds of f32, and of bytes.
#[cfg(target_arch = "x86_64")]
#[expect(unsafe_code, reason = "instructions that the program is not compiled for")]
fn bench_peaks(c: &mut Criterion) {
    const N: usize = 1 << 22;
    let pool = Pool::new(n_threads());
    let has = |isa| Kernels::available().into_iter().any(|k| k.isa() == isa);
    let peaks: [(&str, &str, IsaKind, Peak); 5] = [
        ("fma", "avx2", IsaKind::Avx2, peak::avx2),
        ("fma", "avx512", IsaKind::Avx512, peak::avx512),
        ("int8", "avx2, 4 bits", IsaKind::Avx2, peak::bytes_avx2::<8>),
        ("int8", "avx2, 8 bits", IsaKind::Avx2, peak::bytes_avx2::<1>),
        ("int8", "avx512", IsaKind::Avx512, peak::bytes_avx512),
    ];
    for (what, name, isa, peak) in peaks {
        if !has(isa) {
            continue;
        }
        let mut group = c.benchmark_group(what);
        group.throughput(Throughput::Elements((64 * N) as u64));
        group.bench_function(name, |b| {
            b.iter(|| {
                pool.run(64, &|_, items| {
                    for _ in items {
                        // SAFETY: the machine has the instruction set.
                        black_box(unsafe { peak(N) });
                    }
                });
            });
        });
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn bench_peaks(_: &mut Criterion) {}

/// The attention of Qwen2-1.5B: 12 heads over 2 KV heads of 128. One decoding row, trees, and a prefill chunk; behind a long
/// context also with a window of 512 positions, and with a softcap.
fn bench_attention(c: &mut Criterion) {
    let pool = Pool::new(n_threads());
    let shape = AttentionShape { n_heads: 12, n_kv_heads: 2, head_dim: 128 };
    let plain = AttentionRule::plain(128);
    let mut group = c.benchmark_group("attention");
    let trees = [1024, 4096].into_iter().flat_map(|context| [8, 16, 32].map(|n_rows| (context, n_rows)));
    let cells = [(512, 1), (4096, 1), (512, 16)].into_iter().chain(trees).chain([(2048, 256)]);
    for ((context, n_rows), ty) in cells.flat_map(|cell| [(cell, KvType::F16), (cell, KvType::Q8_0)]) {
        let mut kv = KvLayer::new(ty, 2, context + 256, 128).expect("allocates");
        let x = numbers(256);
        for slot in 0..context + 256 {
            kv.write(Kernels::detect(), slot, &x, &x);
        }
        let q = numbers(n_rows * 12 * 128);
        let mut out = vec![0.0; q.len()];
        let visible: Vec<_> =
            (0..n_rows).map(|row| Visible { prefix_len: context + row, extra: &[] }).collect();
        group.throughput(Throughput::Elements((n_rows * context * 12 * 2 * 128) as u64));
        for k in Kernels::available() {
            if k.isa() == IsaKind::Scalar && context * n_rows > 4096 {
                continue;
            }
            let mut scratch = AttentionScratch::new();
            let windowed = AttentionRule { window: Some(512), ..plain };
            let capped = AttentionRule { softcap: Some(50.0), ..plain };
            for (name, rule) in [("", plain), (" window 512", windowed), (" softcap", capped)] {
                if rule != plain && (context < 2048 || ty != KvType::F16) {
                    continue;
                }
                let name = format!("{n_rows}x{context} {ty}{name}");
                group.bench_function(BenchmarkId::new(k.isa().name(), name), |b| {
                    b.iter(|| {
                        attention(
                            k,
                            &pool,
                            shape,
                            rule,
                            &q,
                            &kv,
                            &visible,
                            &mut scratch,
                            black_box(&mut out),
                        );
                    });
                });
            }
        }
    }
}

fn bench_rows(c: &mut Criterion) {
    let (x, y) = (numbers(8960), numbers(8960));
    let mut group = c.benchmark_group("rows of 8960");
    for k in Kernels::available() {
        let mut out = x.clone();
        group.bench_function(BenchmarkId::new("rms_norm", k.isa()), |b| {
            b.iter(|| rms_norm(k, &x, &y, 1e-6, &mut out))
        });
        let mut out = x.clone();
        group.bench_function(BenchmarkId::new("silu_mul", k.isa()), |b| {
            b.iter(|| {
                out.copy_from_slice(&x);
                silu_mul(k, &mut out, &y);
            });
        });
        group.bench_function(BenchmarkId::new("log_sum_exp", k.isa()), |b| {
            b.iter(|| log_sum_exp(k, black_box(&x)))
        });
        group.bench_function(BenchmarkId::new("argmax", k.isa()), |b| b.iter(|| argmax(k, black_box(&x))));
    }
}

/// The eight likeliest tokens of a row of logits of SmolLM2's vocabulary, with the plain loop and [`log_sum_exp`] over the whole row.
fn bench_likeliest(c: &mut Criterion) {
    const N: usize = 49_152;
    // Sums of four numbers are nearly normal: a deviation of 2.3, as logits of small models have.
    let x: Vec<f32> = numbers(4 * N).as_chunks::<4>().0.iter().map(|x| 2.0 * x.iter().sum::<f32>()).collect();
    let mut group = c.benchmark_group("likeliest of 49152");
    for k in Kernels::available() {
        group.bench_function(BenchmarkId::new("likeliest", k.isa()), |b| {
            b.iter(|| likeliest::<8>(k, black_box(&x)))
        });
        group.bench_function(BenchmarkId::new("log_sum_exp", k.isa()), |b| {
            b.iter(|| log_sum_exp(k, black_box(&x)))
        });
    }
    group.bench_function("plain loop", |b| b.iter(|| plain_likeliest(black_box(&x))));
}

fn plain_likeliest(x: &[f32]) -> [(f32, usize); 8] {
    let mut best = [(f32::NEG_INFINITY, 0); 8];
    for (i, &x) in x.iter().enumerate() {
        if x > best[7].0 {
            let at = best.partition_point(|&(held, _)| held >= x);
            best[at..].rotate_right(1);
            best[at] = (x, i);
        }
    }
    best
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .sample_size(20)
        .warm_up_time(std::time::Duration::from_millis(300))
        .measurement_time(std::time::Duration::from_millis(1500))
        .without_plots();
    targets = bench_memory, bench_peaks, bench_matmul, bench_attention, bench_rows, bench_likeliest
}
criterion_main!(benches);
