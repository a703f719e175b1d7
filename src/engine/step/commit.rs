//! The commit: the only stage that changes tokens, KV cache and output.

use std::collections::VecDeque;

use crate::draft::DraftTree;
use crate::engine::event::{Origin, TokenEvent};
use crate::engine::output::Scanner;
use crate::engine::run::{CommittedToken, WalkScratch};
use crate::engine::stats::SourceStats;
use crate::model::KvCache;
use refrain_trees::TokenId;

/// What a commit changes.
pub(super) struct Changes<'a> {
    pub(super) tokens: &'a mut Vec<TokenId>,
    pub(super) kv: &'a mut KvCache,
    /// The output's scanner.
    pub(super) scanner: &'a mut Scanner,
    pub(super) events: &'a mut VecDeque<CommittedToken>,
}

/// Makes the walk's tokens final: closes the KV cache up along the accepted path and drops the other rows,
/// appends the tokens, and queues their events. `scanner` is that of the walk, `sources` names those of the tree.
///
/// A visited node without a token (the walk failed there) is not committed.
pub(super) fn commit(
    walked: &mut WalkScratch,
    scanner: Scanner,
    tree: &DraftTree,
    sources: &[SourceStats],
    changes: Changes<'_>,
) {
    let WalkScratch { walk, pieces, .. } = walked;
    let Changes { tokens, kv, scanner: of_output, events } = changes;
    kv.commit(walk.path()[..walk.tokens().len()].iter().map(|node| node.index()));
    tokens.extend_from_slice(walk.tokens());
    *of_output = scanner;
    for (i, (&id, text)) in walk.tokens().iter().zip(pieces.drain(..)).enumerate() {
        let source = walk.drafted(i).and_then(|node| tree.source(node));
        let origin = source.map_or(Origin::Target, |source| Origin::Draft(sources[source].name.clone()));
        let event = TokenEvent { id, text, segments: Vec::new(), origin };
        events.push_back(CommittedToken { event, source });
    }
}
