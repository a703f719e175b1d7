//! Token ids: numbers, and nothing else, to every part below the tokenizer.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The id of a token in a model's vocabulary.
///
/// A newtype, so that tokens, slots, states and node indices do not mix. Any `u32` is a valid value: text from outside
/// (a history written with another tokenizer, say) may hold ids past the vocabulary, and the tree builder drops those.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[repr(transparent)]
#[serde(transparent)]
pub struct TokenId(pub u32);

impl TokenId {
    /// The id as an index into per-token tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for TokenId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
