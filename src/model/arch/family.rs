//! The form of a family.

use std::fmt;

use serde::{Serialize, Serializer};

use super::keys::{Keys, key};
use super::tensors::{Container, Place, Slot};
use crate::model::config::{ConfigError, ModelConfig};

/// A family of models.
pub(in crate::model) struct Family {
    /// Its name in packed files and messages: `general.architecture` of GGUF files.
    pub(super) name: &'static str,
    /// Further names in `general.architecture`.
    pub(super) gguf: &'static [&'static str],
    /// Names in `model_type` of `config.json`.
    pub(super) json: &'static [&'static str],
    /// Reads the hyper-parameters.
    pub(super) read: fn(&Keys<'_>, Architecture) -> Result<ModelConfig, ConfigError>,
    /// Converters to GGUF reorder the rows of queries and keys ([`RowOrder::Interleaved`](super::tensors::RowOrder::Interleaved)).
    pub(super) interleaves: bool,
    /// Where a container stores a tensor.
    pub(super) place: fn(&ModelConfig, &Slot, Container) -> Place,
    /// What may stand in a folder for the `model.` at the beginning of a tensor's name.
    pub(super) roots: &'static [&'static str],
    /// GGUF files may have a block behind the layers that is a head for multi-token prediction, and folders tensors `mtp.*`.
    pub(super) has_mtp: bool,
    /// Whether a stored tensor is one to ignore, beside those of all families.
    pub(super) is_redundant: fn(&str, &ModelConfig) -> bool,
}

impl Family {
    pub(in crate::model) fn roots(&self) -> &'static [&'static str] {
        self.roots
    }

    pub(in crate::model) fn has_mtp(&self) -> bool {
        self.has_mtp
    }

    /// A family whose tensors have their standard names.
    pub(super) const STANDARD: Family = Family {
        name: "",
        gguf: &[],
        json: &[],
        read: |keys, _| Err(keys.missing(key("architecture", "model_type"))),
        interleaves: false,
        place: |config, slot, container| slot.standard(config, container),
        roots: &["model."],
        has_mtp: false,
        is_redundant: |_, _| false,
    };
}

/// A model family with an implemented forward pass.
#[derive(Clone, Copy)]
pub struct Architecture(pub(super) &'static Family);

impl Architecture {
    /// The name in `general.architecture` of GGUF files.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    pub(in crate::model) fn family(self) -> &'static Family {
        self.0
    }
}

impl PartialEq for Architecture {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Architecture {}

impl std::hash::Hash for Architecture {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl fmt::Debug for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Architecture {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}
