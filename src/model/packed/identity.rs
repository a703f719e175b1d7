//! The identity of a model: the key of its measurements and caches.

use std::fmt;

use xxhash_rust::xxh3::Xxh3;

use super::plan::{PlannedSection, Scope, plan};
use super::sum::SectionSum;
use crate::kernels::PANEL_LAYOUT_VERSION;
use crate::model::config::ModelConfig;
use crate::model::weights::{StoredTensor, Weights};

/// A hash of hyper-parameters and packed weights. It is equal for equal models from any container, if they
/// are quantised the same way and packed in the same layout. The tokenizer has a
/// [fingerprint](crate::tokenizer::Tokenizer::fingerprint) of its own.
///
/// The hash has 128 bits (XXH3) and detects mistakes, not forgery. It is displayed as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ModelIdentity(u128);

impl ModelIdentity {
    /// The identity of a model whose weights have not been read yet.
    pub(in crate::model) const UNKNOWN: Self = Self(0);

    /// The identity with a stored number.
    pub fn from_bits(bits: u128) -> Self {
        Self(bits)
    }

    /// The hash as a number.
    pub fn to_bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for ModelIdentity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl std::str::FromStr for ModelIdentity {
    type Err = std::num::ParseIntError;

    /// Parses the hexadecimal digits of [`Display`](fmt::Display).
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(Self)
    }
}

/// The identity, from the checksums of all sections, in order.
pub(super) fn identity(
    config: &ModelConfig,
    sections: &[PlannedSection],
    checksums: &[u64],
) -> ModelIdentity {
    let mut hash = Xxh3::new();
    hash.update(&PANEL_LAYOUT_VERSION.to_le_bytes());
    let config = serde_json::to_vec(config).expect("numbers and names have a JSON form");
    hash.update(&(config.len() as u64).to_le_bytes());
    hash.update(&config);
    for (section, checksum) in sections.iter().zip(checksums) {
        // The shapes follow from the hyper-parameters. A zero ends the name of each type.
        for tensor in &section.tensors {
            hash.update(tensor.ty.name().as_bytes());
            hash.update(&[0]);
        }
        hash.update(&checksum.to_le_bytes());
    }
    ModelIdentity(hash.digest128())
}

/// The identity of weights in memory: that of a packed file with these weights. Reads every weight once.
pub(crate) fn identity_of_weights(config: &ModelConfig, weights: &Weights) -> ModelIdentity {
    let ty_of = |id| match weights.tensor(id) {
        Some(StoredTensor::Matrix(matrix)) => matrix.block_type(),
        _ => crate::kernels::BlockType::F32,
    };
    let sections =
        plan(config, &Scope::All, 0, &ty_of).expect("the weights are in memory, so their sizes fit");
    let checksums: Vec<u64> = sections.iter().map(|section| checksum(section, weights)).collect();
    identity(config, &sections, &checksums)
}

fn checksum(section: &PlannedSection, weights: &Weights) -> u64 {
    let mut sum = SectionSum::new();
    for tensor in &section.tensors {
        match weights.tensor(tensor.id) {
            Some(StoredTensor::Matrix(matrix)) => sum.update(matrix.panel_bytes()),
            Some(StoredTensor::Vector(values)) => sum.update(&vector_bytes(values)),
            None => debug_assert!(false, "{:?} is in the plan and not in the weights", tensor.id),
        }
        sum.pad_line();
    }
    sum.pad_page();
    sum.digest()
}

/// A vector in the form of a packed file.
pub(super) fn vector_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}
