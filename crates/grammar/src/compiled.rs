//! What the masks and the drafts of a grammar share.

use std::sync::{Arc, OnceLock};

use crate::marker::Marker;
use crate::parser::Start;
use crate::vocabulary::Vocabulary;

/// A compiled grammar.
pub(crate) struct Compiled {
    pub(crate) vocabulary: Vocabulary,
    pub(crate) start: Arc<Start>,
    pub(crate) marker: Option<Marker>,
}

/// Where the output of a generation begins: the number of tokens before it. Mask and drafts of one generation share it; the
/// first of them that is called has the prompt before it.
#[derive(Debug, Default)]
pub(crate) struct OutputStart(OnceLock<usize>);

impl OutputStart {
    /// The start, which is `n_tokens` if nobody has called before.
    pub(crate) fn of(&self, n_tokens: usize) -> usize {
        *self.0.get_or_init(|| n_tokens)
    }
}
