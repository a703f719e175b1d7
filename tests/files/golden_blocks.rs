//! Golden blocks: the values of every block format as an independent reader computes them, bit for bit.
//! `tools/block-goldens` writes the data.

use std::path::Path;

use refrain::internals::kernels::{BlockType, PackedMatrix, dequantize};
use safetensors::SafeTensors;

#[test]
fn blocks_have_the_values_of_the_reference() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/blocks.safetensors");
    let bytes = std::fs::read(path).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    for ty in BlockType::ALL.into_iter().filter(|ty| !ty.is_float()) {
        let blocks = tensors.tensor(&format!("{ty}.blocks")).unwrap();
        let expected: Vec<u32> = tensors
            .tensor(&format!("{ty}.values"))
            .unwrap()
            .data()
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(blocks.shape()[1], ty.block_bytes(), "{ty}");
        assert_eq!(expected.len(), blocks.shape()[0] * ty.block_len(), "{ty}");
        let mut values = vec![0.0; expected.len()];
        dequantize(ty, blocks.data(), &mut values);
        assert_bits(&values, &expected, ty.name());
        // Packed as one row, and as a row of each block.
        let n_blocks = blocks.shape()[0];
        for (n_rows, n_cols) in [(1, expected.len()), (n_blocks, ty.block_len())] {
            let matrix = PackedMatrix::pack(ty, n_rows, n_cols, blocks.data(), &|row| row).unwrap();
            for (row, expected) in expected.chunks(n_cols).enumerate() {
                let mut values = vec![0.0; n_cols];
                matrix.dequantize_row(row, &mut values);
                assert_bits(&values, expected, &format!("row {row} of {n_rows} of {ty}"));
            }
        }
    }
}

#[track_caller]
fn assert_bits(values: &[f32], expected: &[u32], case: &str) {
    for (i, (value, &expected)) in values.iter().zip(expected).enumerate() {
        assert!(
            value.to_bits() == expected,
            "{case}: element {i} is {value}, not {}",
            f32::from_bits(expected)
        );
    }
}
