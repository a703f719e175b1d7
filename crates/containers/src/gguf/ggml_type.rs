//! Element types by their ggml number, including those that no kernel here reads.

use std::fmt;

use refrain_kernels::BlockType;

/// The ggml number of an element type; any number can be listed, only some can be loaded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GgmlType(pub u32);

/// Number, name, elements per block, bytes per block (ggml's `type_traits`). Numbers 4, 5, 31–33 and 36–38
/// were removed.
const KNOWN: [(u32, &str, u64, u64); 32] = [
    (0, "F32", 1, 4),
    (1, "F16", 1, 2),
    (2, "Q4_0", 32, 18),
    (3, "Q4_1", 32, 20),
    (6, "Q5_0", 32, 22),
    (7, "Q5_1", 32, 24),
    (8, "Q8_0", 32, 34),
    (9, "Q8_1", 32, 36),
    (10, "Q2_K", 256, 84),
    (11, "Q3_K", 256, 110),
    (12, "Q4_K", 256, 144),
    (13, "Q5_K", 256, 176),
    (14, "Q6_K", 256, 210),
    (15, "Q8_K", 256, 292),
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (20, "IQ4_NL", 32, 18),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (23, "IQ4_XS", 256, 136),
    (24, "I8", 1, 1),
    (25, "I16", 1, 2),
    (26, "I32", 1, 4),
    (27, "I64", 1, 8),
    (28, "F64", 1, 8),
    (29, "IQ1_M", 256, 56),
    (30, "BF16", 1, 2),
    (34, "TQ1_0", 256, 54),
    (35, "TQ2_0", 256, 66),
    (39, "MXFP4", 32, 17),
];

impl GgmlType {
    /// Elements and bytes of a block; `None` for an unknown number.
    pub fn block(self) -> Option<(u64, u64)> {
        self.known().map(|&(_, _, len, bytes)| (len, bytes))
    }

    /// The type of the kernels; `None` if they do not support it.
    pub fn block_type(self) -> Option<BlockType> {
        BlockType::ALL.into_iter().find(|ty| ty.ggml_id() == self.0)
    }

    fn known(self) -> Option<&'static (u32, &'static str, u64, u64)> {
        KNOWN.iter().find(|(id, ..)| *id == self.0)
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.known() {
            Some((_, name, ..)) => f.pad(name),
            None => f.pad(&format!("type {}", self.0)),
        }
    }
}

impl From<BlockType> for GgmlType {
    fn from(ty: BlockType) -> Self {
        Self(ty.ggml_id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_sizes_agree_with_the_kernels() {
        for ty in BlockType::ALL {
            let ggml = GgmlType::from(ty);
            assert_eq!(ggml.block_type(), Some(ty));
            assert_eq!(ggml.block(), Some((ty.block_len() as u64, ty.block_bytes() as u64)), "{ggml}");
            assert_eq!(ggml.to_string(), ty.name());
        }
        assert_eq!(GgmlType(4711).to_string(), "type 4711");
    }
}
