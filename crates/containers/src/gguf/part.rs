//! One file of a model: its metadata and its tensor table, checked by themselves.

use super::{GgmlType, GgufValue};
use crate::source::Source;

/// An entry of the tensor table.
#[derive(Clone, PartialEq, Debug)]
pub struct GgufTensor {
    /// Its name.
    pub name: String,
    /// Element type, possibly one that cannot be loaded.
    pub ty: GgmlType,
    /// Dimensions, fastest first: columns, rows, …
    pub dims: Vec<u64>,
    /// The part of a split file that holds the data; 0 otherwise.
    pub part: usize,
    /// Offset of the data from the start of that file.
    pub offset: u64,
    /// Bytes of the data; `None` if the element type is unknown.
    pub len: Option<u64>,
}

/// One file, checked by itself.
pub(super) struct Part {
    pub(super) source: Source,
    pub(super) version: u32,
    pub(super) metadata: Vec<(String, GgufValue)>,
    pub(super) tensors: Vec<GgufTensor>,
}

impl Part {
    pub(super) fn get(&self, key: &str) -> Option<&GgufValue> {
        self.metadata.iter().find(|(k, _)| k == key).map(|(_, value)| value)
    }
}
