//! The layout of panels is part of a file format. Tests pin the layout and check mapped panels.

use std::io::Write;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::matmul::{multiply, random_weights};
use super::{Random, assert_bits, pool_of};
use crate::mapping::Mapping;
use crate::*;

const N_ROWS: usize = 37;
const N_COLS: usize = 512;

fn packed(ty: BlockType) -> PackedMatrix {
    let weights = random_weights(&mut Random::new(7), ty, N_ROWS, N_COLS);
    PackedMatrix::pack(ty, N_ROWS, N_COLS, &weights, &|row| row).unwrap()
}

/// If this fails, the layout has changed. Increase `PANEL_LAYOUT_VERSION` (unless the layout was never
/// released) and pin the new hashes; otherwise packed files of the old layout would be read as if they had
/// the new one.
#[test]
fn the_layout_is_the_one_that_its_version_names() {
    let hashes = BlockType::ALL.map(|ty| (ty.name(), xxh3_64(packed(ty).panel_bytes())));
    let pinned: [(&str, u64); 17] = [
        ("F32", 0x47d8_6e0b_ccb7_4765),
        ("F16", 0xb1eb_b663_5d90_c2ae),
        ("BF16", 0xcda4_dc61_9283_72a6),
        ("Q8_0", 0xa094_605b_4228_65bf),
        ("Q4_0", 0x9a35_de8d_2e51_411d),
        ("Q4_1", 0xa4c6_4cb7_a9cd_03d4),
        ("Q5_0", 0x0469_1c17_81ed_f2bc),
        ("Q5_1", 0xbbc8_981f_24b0_7483),
        ("Q4_K", 0x074d_bae2_f488_7eb5),
        ("Q5_K", 0xe33a_ff54_960c_14e1),
        ("Q6_K", 0x7462_4bbd_6ec7_e2ee),
        ("Q2_K", 0xf45e_a3d0_be39_d5c1),
        ("Q3_K", 0xa7cd_d832_95e5_8f94),
        ("IQ4_NL", 0x9a35_de8d_2e51_411d),
        ("IQ4_XS", 0xecda_217e_998e_8054),
        ("MXFP4", 0xb22e_8555_081d_ff31),
        ("TQ2_0", 0xa86a_5733_24e4_9e5e),
    ];
    assert_eq!(PANEL_LAYOUT_VERSION, 1);
    assert_eq!(hashes, pinned, "found {hashes:#018x?}");
}

#[test]
fn panels_read_back_or_mapped_are_the_same_matrix() {
    for ty in BlockType::ALL {
        let matrix = packed(ty);
        let bytes = matrix.panel_bytes();
        assert_eq!(PackedMatrix::packed_bytes(ty, N_ROWS, N_COLS), Some(bytes.len() as u64), "{ty}");
        let read = PackedMatrix::from_panels(ty, N_ROWS, N_COLS, |panels| {
            panels.copy_from_slice(bytes);
            Ok::<(), PackError>(())
        });
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0; 64]).unwrap();
        file.write_all(bytes).unwrap();
        let mapping = Arc::new(Mapping::new(&file).unwrap());
        let mapped = PackedMatrix::from_mapping(ty, N_ROWS, N_COLS, mapping, 64).unwrap();
        for (way, other) in [("read", read.unwrap()), ("mapped", mapped)] {
            assert_eq!(other.panel_bytes(), bytes, "{ty} {way}");
            let (mut a, mut b) = (vec![0.0; N_COLS], vec![0.0; N_COLS]);
            for row in 0..N_ROWS {
                matrix.dequantize_row(row, &mut a);
                other.dequantize_row(row, &mut b);
                assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()), "{ty} {way} row {row}");
            }
        }
    }
}

/// A packed file with correct checksums may contain any bytes.
#[test]
fn any_bytes_give_the_same_bits_on_every_isa() {
    const N_ACT_ROWS: usize = 5;
    for ty in BlockType::ALL.into_iter().filter(|ty| !ty.is_float()) {
        for seed in 0..8 {
            let mut random = Random::new(seed);
            let matrix = PackedMatrix::from_panels(ty, N_ROWS, N_COLS, |panels| {
                panels.fill_with(|| random.next() as u8);
                Ok::<(), PackError>(())
            });
            let (matrix, x) = (matrix.unwrap(), random.floats(N_ACT_ROWS * N_COLS));
            let by_isa =
                Kernels::available().into_iter().map(|k| multiply(k, &pool_of(1), &matrix, &x, N_ACT_ROWS));
            let by_isa: Vec<_> = by_isa.collect();
            for (k, out) in Kernels::available().iter().zip(&by_isa) {
                assert_bits(out, &by_isa[0], &format!("{ty} on {}", k.isa()));
            }
        }
    }
}

#[test]
fn widened_matrices_hold_the_same_numbers() {
    for ty in BlockType::ALL {
        let matrix = packed(ty);
        let mut bytes = Vec::new();
        let mut values = vec![0.0; N_COLS];
        for row in 0..N_ROWS {
            matrix.dequantize_row(row, &mut values);
            quantize(BlockType::F32, &values, &mut bytes);
        }
        let expected = PackedMatrix::pack(BlockType::F32, N_ROWS, N_COLS, &bytes, &|row| row).unwrap();
        let widened = matrix.widened().unwrap();
        assert_eq!(
            (widened.block_type(), widened.n_rows(), widened.n_cols()),
            (BlockType::F32, N_ROWS, N_COLS)
        );
        assert!(widened.panel_bytes() == expected.panel_bytes(), "{ty}");
    }
}

#[test]
fn shapes_without_a_size_are_refused() {
    let partial = PackedMatrix::from_panels(BlockType::Q8_0, 1, 31, |_| Ok::<(), PackError>(()));
    assert!(matches!(partial, Err(PackError::PartialBlock { .. })));
    let huge = PackedMatrix::from_panels(BlockType::F32, usize::MAX, 32, |_| Ok::<(), PackError>(()));
    assert!(matches!(huge, Err(PackError::Alloc(_))));
    // (The most rows of 32 bits times 128 bytes are a number of 64 bits.)
    let bytes = PackedMatrix::packed_bytes(BlockType::F32, usize::MAX, 32);
    assert_eq!(bytes, (usize::BITS < 64).then_some(1 << 39));
}
