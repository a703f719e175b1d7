//! A claim of a source, and the claims that agree on a token.

use crate::draft::evidence::Evidence;
use crate::draft::source::Cursor;
use refrain_trees::TokenId;

/// A source's claim about a token under an expanded node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    pub(super) token: TokenId,
    pub(super) source: u8,
    /// The probability after correction by the reliability table.
    pub(super) probability: f32,
    pub(super) evidence: Evidence,
    pub(super) next: Cursor,
}

/// A token under the node being expanded, and the claims that agree on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Child {
    pub(super) token: TokenId,
    pub(super) probability: f32,
    pub(super) source: u8,
    pub(super) claims: (u32, u32),
}
