//! Gathered rows: a product with some rows of a matrix has the bits of the product with all rows.

use super::matmul::{multiply, random_weights};
use super::{Random, assert_bits, pool_of};
use crate::*;

const N_ROWS: usize = 70;
/// Rows within a panel and across panels, the same row twice, and the last row of a partial panel.
const GATHERED: [usize; 19] = [69, 0, 15, 16, 3, 3, 64, 17, 40, 41, 42, 1, 2, 68, 31, 32, 48, 5, 60];

#[test]
fn gathered_rows_have_the_bits_of_the_whole_product() {
    let pool = pool_of(2);
    for ty in BlockType::ALL {
        for n_cols in if ty.is_float() { [3, 70] } else { [256, 512] } {
            let mut random = Random::new(n_cols as u64 + 1);
            let bytes = random_weights(&mut random, ty, N_ROWS, n_cols);
            let whole = PackedMatrix::pack(ty, N_ROWS, n_cols, &bytes, &|row| row).unwrap();
            let mut gathered = whole.empty_like(GATHERED.len()).unwrap();
            for (n, row) in GATHERED.into_iter().enumerate() {
                assert_eq!(gathered.n_rows(), n);
                assert!(gathered.push_row_of(&whole, row));
            }
            let x = random.floats(5 * n_cols);
            for k in Kernels::available() {
                let all = multiply(k, &pool, &whole, &x, 5);
                let some = multiply(k, &pool, &gathered, &x, 5);
                for (r, (some, all)) in
                    some.chunks_exact(GATHERED.len()).zip(all.chunks_exact(N_ROWS)).enumerate()
                {
                    let expected = GATHERED.map(|row| all[row]);
                    assert_bits(some, &expected, &format!("{ty} × {n_cols}, row {r}, {}", k.isa()));
                }
            }
        }
    }
}

#[test]
fn a_full_matrix_takes_no_more_rows() {
    let whole = PackedMatrix::pack(BlockType::F32, 40, 1, &[1; 160], &|row| row).unwrap();
    let mut gathered = whole.empty_like(20).unwrap();
    // Room is allocated in panels of 16 rows.
    assert_eq!((0..40).filter(|&row| gathered.push_row_of(&whole, row)).count(), 32);
    assert!(whole.empty_like(usize::MAX).is_err());
    assert!(!whole.empty_like(0).unwrap().push_row_of(&whole, 0));
}
