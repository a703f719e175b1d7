//! The layout of panels is part of a file format: what is pinned here, and what a mapping must give.

use std::io::Write;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use super::Random;
use super::matmul::random_weights;
use crate::kernels::*;
use crate::mapping::Mapping;

const N_ROWS: usize = 37;
const N_COLS: usize = 512;

fn packed(ty: BlockType) -> PackedMatrix {
    let weights = random_weights(&mut Random::new(7), ty, N_ROWS, N_COLS);
    PackedMatrix::pack(ty, N_ROWS, N_COLS, &weights, &|row| row).unwrap()
}

/// When this fails, the layout has changed: give `PANEL_LAYOUT_VERSION` the next number (unless the layout was never
/// released) and pin the new hashes, or packed files of the old layout would be read as if they had the new one.
#[test]
fn the_layout_is_the_one_that_its_version_names() {
    let hashes = BlockType::ALL.map(|ty| (ty.name(), xxh3_64(packed(ty).panel_bytes())));
    let pinned: [(&str, u64); 11] = [
        ("F32", 0x47d8_6e0b_ccb7_4765),
        ("F16", 0xb1eb_b663_5d90_c2ae),
        ("BF16", 0xcda4_dc61_9283_72a6),
        ("Q8_0", 0xa094_605b_4228_65bf),
        ("Q4_0", 0x9a35_de8d_2e51_411d),
        ("Q4_1", 0xa4c6_4cb7_a9cd_03d4),
        ("Q5_0", 0xa292_d229_9726_540c),
        ("Q5_1", 0xfae4_194b_25b2_ba98),
        ("Q4_K", 0x074d_bae2_f488_7eb5),
        ("Q5_K", 0xde70_47ae_7336_558d),
        ("Q6_K", 0xff2e_20e9_1144_80a4),
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

#[test]
fn shapes_without_a_size_are_refused() {
    let partial = PackedMatrix::from_panels(BlockType::Q8_0, 1, 31, |_| Ok::<(), PackError>(()));
    assert!(matches!(partial, Err(PackError::PartialBlock { .. })));
    let huge = PackedMatrix::from_panels(BlockType::F32, usize::MAX, 32, |_| Ok::<(), PackError>(()));
    assert!(matches!(huge, Err(PackError::Alloc(_))));
    assert_eq!(PackedMatrix::packed_bytes(BlockType::F32, usize::MAX, 32), None);
}
