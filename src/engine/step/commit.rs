//! The commit: the only stage that changes tokens, KV cache and output.

use super::walk::Walked;
use crate::engine::event::{Origin, TokenEvent};
use crate::engine::run::{CommittedToken, Run};
use crate::engine::session::Session;

/// Makes the walk's tokens final: closes the KV cache up along the accepted path and drops the other rows,
/// appends the tokens, and queues their events.
///
/// A visited node without a token (the walk failed there) is not committed.
pub(super) fn commit(session: &mut Session, run: &mut Run, walked: &mut Walked) {
    let Session { conversation, target, drafting, .. } = session;
    let (walk, pieces, sources) = (&run.scratch.walk, &mut run.scratch.pieces, &run.stats.sources);
    target.kv.commit(walk.path()[..walk.tokens().len()].iter().map(|node| node.index()));
    conversation.tokens.extend_from_slice(walk.tokens());
    std::mem::swap(&mut run.output.scanner, &mut walked.scanner);
    for (i, (&id, text)) in walk.tokens().iter().zip(pieces.drain(..)).enumerate() {
        let source = walk.drafted(i).and_then(|node| drafting.tree.source(node));
        let origin = source.map_or(Origin::Target, |source| Origin::Draft(sources[source].name.clone()));
        run.events.push_back(CommittedToken {
            event: TokenEvent { id, text, segments: Vec::new(), origin },
            source,
        });
    }
}
