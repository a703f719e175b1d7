//! Packing and matmul: the plain loops of `oracle` define every output.

use half::f16;
use proptest::prelude::*;

use super::{Random, assert_bits, pool_of};
use crate::block::{BlockFormat, with_format};
use crate::layout::IntLayout;
use crate::unpacked::Unpacked;
use crate::*;

/// Random bytes of `ty`, with finite scales of both signs.
pub(super) fn random_weights(random: &mut Random, ty: BlockType, n_rows: usize, n_cols: usize) -> Vec<u8> {
    let n_bytes = ty.row_bytes(n_cols as u64).unwrap() as usize * n_rows;
    if ty.is_float() {
        let mut out = Vec::new();
        quantize(ty, &random.floats(n_rows * n_cols), &mut out);
        return out;
    }
    let mut out: Vec<u8> = (0..n_bytes).map(|_| random.next() as u8).collect();
    for block in out.chunks_mut(ty.block_bytes()) {
        if ty == BlockType::Mxfp4 {
            // 2⁻⁵ and some powers below it.
            block[0] = 122 - block[0] % 8;
        }
        for &at in f16_places(ty) {
            let scale = f16::from_f32(random.float() * 0.05);
            block[at..at + 2].copy_from_slice(&scale.to_le_bytes());
        }
    }
    out
}

/// Where a block has f16 factors.
fn f16_places(ty: BlockType) -> &'static [usize] {
    match ty {
        BlockType::Mxfp4 => &[],
        BlockType::Tq2_0 => &[64],
        BlockType::Q2K => &[80, 82],
        BlockType::Q3K => &[108],
        BlockType::Q6K => &[208],
        BlockType::Q8_0 | BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Iq4Nl | BlockType::Iq4Xs => &[0],
        _ => &[0, 2],
    }
}

pub(super) fn quantize_activations(x: &[f32]) -> Vec<(f32, Vec<i32>)> {
    x.chunks(32)
        .map(|x| {
            let amax = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            let scale = amax / 127.0;
            if x.iter().any(|x| !x.is_finite()) {
                return (f32::NAN, vec![0; 32]);
            }
            let inverse = 1.0 / scale;
            if inverse.is_infinite() {
                return (0.0, vec![0; 32]);
            }
            (scale, x.iter().map(|x| (x * inverse).round_ties_even() as i32).collect())
        })
        .collect()
}

/// Formats with a scale per 16 columns.
const SPLIT: [BlockType; 3] = [BlockType::Q2K, BlockType::Q3K, BlockType::Q6K];

fn level(ty: BlockType, code: u8) -> i32 {
    with_format!(ty, F => <F as BlockFormat>::Layout::level(code), _ => unreachable!("{ty} has no codes"))
}

fn scale_and_min(ty: BlockType, block: &Unpacked, sixteenth: usize) -> (f32, Option<f32>) {
    with_format!(
        ty,
        F => {
            let (scale, min) = <F as BlockFormat>::Layout::scale_and_min(block, sixteenth);
            (scale, <F as BlockFormat>::Layout::MIN.then_some(min))
        },
        _ => unreachable!("{ty} has no codes")
    )
}

/// One output, from the row's bytes in the file: without panels, tiles or vectors.
pub(super) fn oracle(ty: BlockType, row: &[u8], x: &[f32]) -> f32 {
    if ty.is_float() {
        let mut w = vec![0.0; x.len()];
        dequantize(ty, row, &mut w);
        let mut acc = [0.0f32; 4];
        for (c, (w, x)) in w.iter().zip(x).enumerate() {
            acc[c % 4] = w.mul_add(*x, acc[c % 4]);
        }
        return (acc[0] + acc[1]) + (acc[2] + acc[3]);
    }
    let activations = quantize_activations(x);
    let mut acc = 0.0f32;
    let mut unpacked = Unpacked::new();
    for (i, bytes) in row.chunks(ty.block_bytes()).enumerate() {
        ty.read(bytes, &mut unpacked);
        for block in 0..ty.block_len() / 32 {
            let (a_scale, q) = &activations[i * ty.block_len() / 32 + block];
            // Formats with a scale per 16 columns: the sums of each half, otherwise of all 32 columns.
            let width = if SPLIT.contains(&ty) { 16 } else { 32 };
            for first in (0..32).step_by(width) {
                let (codes, q) = (&unpacked.codes[32 * block + first..][..width], &q[first..][..width]);
                let dot: i32 = codes.iter().zip(q).map(|(&code, q)| level(ty, code) * q).sum();
                let (scale, min) = scale_and_min(ty, &unpacked, (32 * block + first) / 16);
                acc = (scale * a_scale).mul_add(dot as f32, acc);
                if let Some(min) = min {
                    acc = min.mul_add(a_scale * q.iter().sum::<i32>() as f32, acc);
                }
            }
        }
    }
    acc
}

struct Case {
    ty: BlockType,
    n_rows: usize,
    n_cols: usize,
    n_act_rows: usize,
    bytes: Vec<u8>,
    x: Vec<f32>,
}

impl Case {
    fn new(seed: u64, ty: BlockType, n_rows: usize, n_cols: usize, n_act_rows: usize) -> Self {
        let mut random = Random::new(seed);
        let bytes = random_weights(&mut random, ty, n_rows, n_cols);
        let x = random.floats(n_act_rows * n_cols);
        Case { ty, n_rows, n_cols, n_act_rows, bytes, x }
    }

    fn name(&self) -> String {
        format!("{} {} × {}, {} activation rows", self.ty, self.n_rows, self.n_cols, self.n_act_rows)
    }

    fn pack(&self) -> PackedMatrix {
        PackedMatrix::pack(self.ty, self.n_rows, self.n_cols, &self.bytes, &|row| row).unwrap()
    }

    fn run(&self, k: Kernels, pool: &Pool) -> Vec<f32> {
        multiply(k, pool, &self.pack(), &self.x, self.n_act_rows)
    }

    fn expected(&self) -> Vec<f32> {
        let row_bytes = self.ty.row_bytes(self.n_cols as u64).unwrap() as usize;
        let mut out = Vec::new();
        for r in 0..self.n_act_rows {
            let x = &self.x[r * self.n_cols..][..self.n_cols];
            out.extend(
                (0..self.n_rows).map(|o| oracle(self.ty, &self.bytes[o * row_bytes..][..row_bytes], x)),
            );
        }
        out
    }

    fn check(&self, pools: &[Pool]) {
        let expected = self.expected();
        for k in Kernels::available() {
            for pool in pools {
                let case = format!("{}, {}, {} threads", self.name(), k.isa(), pool.n_threads());
                assert_bits(&self.run(k, pool), &expected, &case);
            }
        }
    }
}

pub(super) fn multiply(k: Kernels, pool: &Pool, w: &PackedMatrix, x: &[f32], n_act_rows: usize) -> Vec<f32> {
    let mut activations = Activations::new();
    activations.set(k, pool, x, n_act_rows, w.n_cols(), w.activation_form());
    let mut out = vec![f32::NAN; n_act_rows * w.n_rows()];
    matmul(k, pool, &activations, &mut [MatMul { w, out: &mut out }]);
    out
}

/// Column counts that a type allows, unusual ones first.
fn columns(ty: BlockType) -> Vec<usize> {
    match ty.block_len() {
        1 => vec![1, 2, 3, 4, 5, 15, 16, 17, 70],
        32 => vec![32, 64, 96, 160],
        _ => vec![256, 512, 768],
    }
}

#[test]
fn equals_the_plain_loops() {
    let pool = [pool_of(1)];
    for ty in BlockType::ALL {
        for n_cols in columns(ty) {
            for (n_rows, n_act_rows) in
                [(1, 1), (15, 2), (16, 3), (17, 4), (40, 5), (33, 8), (20, 17), (5, 64)]
            {
                Case::new(n_cols as u64, ty, n_rows, n_cols, n_act_rows).check(&pool);
            }
        }
    }
}

#[test]
fn every_activation_row_count_and_thread_count() {
    let pools = [1, 2, 3, 4].map(pool_of);
    for ty in BlockType::ALL {
        for n_act_rows in 1..=17 {
            // Large enough not to be run inline.
            Case::new(7, ty, 150, 256, n_act_rows).check(&pools);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn equals_the_plain_loops_anywhere(
        ty in proptest::sample::select(&BlockType::ALL[..]),
        blocks in 1usize..6, n_rows in 1usize..41, n_act_rows in 1usize..18, seed: u64,
    ) {
        let n_cols = if ty.is_float() { blocks * 14 - seed as usize % 14 } else { blocks * ty.block_len() };
        Case::new(seed, ty, n_rows, n_cols, n_act_rows).check(&[pool_of(1)]);
    }
}

/// Groups of rows, each with a matrix of a stack, have the bits of a product with their own matrix.
#[test]
fn groups_have_the_bits_of_their_products() {
    let pools = [1, 3].map(pool_of);
    for ty in BlockType::ALL {
        for n_outputs in [16, 80] {
            let (n_matrices, n_x) = (5, 23);
            let case = Case::new(3, ty, n_matrices * n_outputs, 256, n_x);
            let w = case.pack();
            for k in Kernels::available() {
                let step = Activations::group_step(k);
                // (matrix, rows of `x`): 1, 7, 2 and 8 rows.
                let of_groups =
                    [(4, vec![3]), (0, (0..7).collect()), (2, vec![22, 3]), (1, (9..17).collect())];
                let (mut rows, mut groups) = (Vec::new(), Vec::new());
                for (_, of_group) in &of_groups {
                    let first_row = rows.len();
                    rows.extend(of_group);
                    rows.resize(rows.len().next_multiple_of(step), 0);
                    groups.push(RowGroup { first_row, n_rows: of_group.len(), first_out: first_row });
                }
                for pool in &pools {
                    let mut x = Activations::new();
                    x.set_gathered(k, pool, &case.x, &rows, 256, w.activation_form());
                    let mut outs = [0, 1].map(|_| vec![f32::NAN; rows.len() * n_outputs]);
                    let [one, other] = &mut outs;
                    let matrix = |group: usize| {
                        let matrix: usize = of_groups[group].0;
                        w.rows(matrix * n_outputs..(matrix + 1) * n_outputs)
                    };
                    let jobs = &mut [
                        GroupedMatMul { w: &matrix, out: one },
                        GroupedMatMul { w: &matrix, out: other },
                    ];
                    matmul_groups(k, pool, &x, &groups, n_outputs, jobs);
                    let whole = multiply(k, pool, &w, &case.x, n_x);
                    for (group, (matrix, of_group)) in groups.iter().zip(&of_groups) {
                        for (i, &row) in of_group.iter().enumerate() {
                            let expected =
                                &whole[row as usize * w.n_rows() + matrix * n_outputs..][..n_outputs];
                            for out in &outs {
                                let got = &out[(group.first_out + i) * n_outputs..][..n_outputs];
                                assert_bits(got, expected, &format!("{ty} {group:?} {}", k.isa()));
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Rule 1 of exactness (`ARCHITECTURE.md`): a row has the same bits alone and in any batch.
#[test]
fn a_row_does_not_depend_on_the_others() {
    let pool = pool_of(2);
    for ty in BlockType::ALL {
        let case = Case::new(11, ty, 37, 512, 64);
        let w = case.pack();
        for k in Kernels::available() {
            let batch = multiply(k, &pool, &w, &case.x, 64);
            for r in 0..64 {
                let alone = multiply(k, &pool, &w, &case.x[r * 512..][..512], 1);
                assert_bits(
                    &batch[r * 37..][..37],
                    &alone,
                    &format!("row {r} of {}, {}", case.name(), k.isa()),
                );
            }
        }
    }
}

#[test]
fn extreme_codes_and_activations_do_not_saturate() {
    // The largest magnitudes of every code with activations of ±127, which would saturate 16-bit
    // intermediates.
    let pool = [pool_of(1)];
    for ty in BlockType::ALL.into_iter().filter(|ty| !ty.is_float()) {
        for (fill, n_act_rows) in [0x00, 0x7F, 0x80, 0xFF].into_iter().flat_map(|fill| [(fill, 3), (fill, 6)])
        {
            let mut case = Case::new(3, ty, 16, 256, n_act_rows);
            for block in case.bytes.chunks_mut(ty.block_bytes()) {
                let scales = f16_places(ty).iter().flat_map(|&at| at..at + 2);
                let scales: Vec<_> = scales.map(|at| (at, block[at])).collect();
                let exponent = block[0];
                block.fill(fill);
                scales.into_iter().for_each(|(at, byte)| block[at] = byte);
                if ty == BlockType::Mxfp4 {
                    block[0] = exponent;
                }
            }
            for (i, x) in case.x.iter_mut().enumerate() {
                *x = if i / 256 % 3 == 2 && i % 2 == 1 { -1.0 } else { 1.0 }
                    * if i / 256 % 3 == 1 { -1.0 } else { 1.0 };
            }
            case.check(&pool);
        }
    }
}

#[test]
fn awkward_activations() {
    let pool = [pool_of(1)];
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-40, f32::MIN_POSITIVE, -0.0] {
        for ty in [BlockType::Q8_0, BlockType::Q4K, BlockType::Q6K, BlockType::F32] {
            let mut case = Case::new(5, ty, 18, 256, 3);
            case.x[256..512].fill(0.0);
            case.x[300] = special;
            case.check(&pool);
            let out = case.run(Kernels::detect(), &pool[0]);
            assert!(out[..18].iter().all(|x| x.is_finite()), "row 0 does not read row 1");
            let is_poisoned = out[18..36].iter().any(|x| x.is_nan());
            assert!(
                special.is_finite() || ty == BlockType::F32 || is_poisoned,
                "{special} is seen in the outputs"
            );
        }
    }
}

#[test]
fn dequantize_row_equals_dequantize() {
    for ty in BlockType::ALL {
        for n_cols in columns(ty) {
            let mut random = Random::new(n_cols as u64);
            let bytes = random_weights(&mut random, ty, 35, n_cols);
            // A permutation, as for the Q and K matrices of GGUF llama files.
            let map = |row: usize| (row * 13 + 4) % 35;
            let w = PackedMatrix::pack(ty, 35, n_cols, &bytes, &map).unwrap();
            let mut all = vec![0.0; 35 * n_cols];
            dequantize(ty, &bytes, &mut all);
            let mut row = vec![0.0; n_cols];
            for r in 0..35 {
                w.dequantize_row(r, &mut row);
                assert_bits(&row, &all[map(r) * n_cols..][..n_cols], &format!("{ty}, row {r}"));
            }
        }
    }
}

/// Compares with f64 on dequantised weights. The tolerance is that of 8-bit activations: half a step of
/// amax/127 per column. The products accumulate it as a random walk; 4 σ are allowed.
#[test]
fn close_to_the_real_product() {
    for ty in BlockType::ALL {
        let case = Case::new(9, ty, 32, 1024, 2);
        let mut w = vec![0.0; 32 * 1024];
        dequantize(ty, &case.bytes, &mut w);
        let out = case.run(Kernels::detect(), &pool_of(1));
        for r in 0..2 {
            for o in 0..32 {
                let (w, x) = (&w[o * 1024..][..1024], &case.x[r * 1024..][..1024]);
                let exact: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                let norm = w.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt();
                let step = if ty.is_float() { 1e-6 } else { 1.0 / 127.0 / 12f64.sqrt() };
                let error = (f64::from(out[r * 32 + o]) - exact).abs();
                assert!(error <= 4.0 * step * norm + 1e-5, "{ty}: {error} with norm {norm}");
            }
        }
    }
}

#[test]
fn several_jobs_of_several_types_in_one_call() {
    let k = Kernels::detect();
    let pool = pool_of(3);
    let cases = [
        Case::new(1, BlockType::Q4K, 50, 256, 3),
        Case::new(1, BlockType::F32, 7, 256, 3),
        Case::new(1, BlockType::Q6K, 333, 256, 3),
    ];
    let x = Random::new(8).floats(3 * 256);
    let weights: Vec<_> = cases.iter().map(Case::pack).collect();
    let mut outs: Vec<_> = cases.iter().map(|case| vec![f32::NAN; 3 * case.n_rows]).collect();
    let form = weights.iter().map(PackedMatrix::activation_form).reduce(ActivationForm::with).unwrap();
    let mut activations = Activations::new();
    activations.set(k, &pool, &x, 3, 256, form);
    let mut jobs: Vec<_> = weights.iter().zip(&mut outs).map(|(w, out)| MatMul { w, out }).collect();
    matmul(k, &pool, &activations, &mut jobs);
    for (w, out) in weights.iter().zip(&outs) {
        assert_bits(out, &multiply(k, &pool, w, &x, 3), "a job in company");
    }
}

#[test]
fn computed_rows_are_prepared_as_given_ones() {
    let weights = [BlockType::Q4_0, BlockType::F16].map(|ty| Case::new(4, ty, 20, 96, 1).pack());
    for (k, n_threads) in Kernels::available().into_iter().flat_map(|k| [(k, 1), (k, 3)]) {
        let pool = pool_of(n_threads);
        // Buffers grow, shrink and change their form.
        let (mut given, mut computed) = (Activations::new(), Activations::new());
        for (n_rows, form) in [
            (1, ActivationForm::Int8),
            (400, ActivationForm::Both),
            (7, ActivationForm::F32),
            (0, ActivationForm::Both),
            (2, ActivationForm::Both),
        ] {
            let x = Random::new(9).floats(n_rows * 96);
            let mut doubled = x.clone();
            computed.set_computed(k, &pool, &mut doubled, 96, form, &|row, out| {
                assert_eq!(out, &x[row * 96..][..96]);
                out.iter_mut().for_each(|x| *x *= 2.0);
            });
            assert_bits(&doubled, &x.iter().map(|x| x * 2.0).collect::<Vec<_>>(), "computed once");
            given.set(k, &pool, &doubled, n_rows, 96, form);
            for w in weights.iter().filter(|w| given.has(w.activation_form())) {
                let [mut of_given, mut of_computed] = [(); 2].map(|()| vec![f32::NAN; n_rows * 20]);
                matmul(k, &pool, &given, &mut [MatMul { w, out: &mut of_given }]);
                matmul(k, &pool, &computed, &mut [MatMul { w, out: &mut of_computed }]);
                assert_bits(&of_computed, &of_given, &format!("{:?}, {n_rows} rows, {form:?}", k.isa()));
            }
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let identity = |row| row;
    let pack = |ty, n_rows, n_cols, len| PackedMatrix::pack(ty, n_rows, n_cols, &vec![0; len], &identity);
    assert!(matches!(pack(BlockType::Q8_0, 1, 33, 34), Err(PackError::PartialBlock { n_cols: 33, .. })));
    assert!(matches!(
        pack(BlockType::Q8_0, 2, 32, 67),
        Err(PackError::WrongLength { expected: 68, given: 67, .. })
    ));
    assert!(pack(BlockType::F32, usize::MAX, usize::MAX / 4, 0).is_err());
    assert_eq!(pack(BlockType::F16, 0, 5, 0).unwrap().n_rows(), 0);
}

#[test]
fn no_rows_and_no_columns() {
    let k = Kernels::detect();
    let pool = pool_of(2);
    let w = PackedMatrix::pack(BlockType::F32, 3, 2, &[0; 24], &|row| row).unwrap();
    assert!(multiply(k, &pool, &w, &[], 0).is_empty());
    let w = PackedMatrix::pack(BlockType::Q8_0, 3, 0, &[], &|row| row).unwrap();
    for k in Kernels::available() {
        assert_bits(&multiply(k, &pool, &w, &[], 2), &[0.0; 6], "no columns");
        assert_bits(&multiply(k, &pool, &w, &[], 7), &[0.0; 21], "no columns, seven rows");
    }
}
