//! The walk: follows the target's own choices through the draft tree.

use crate::engine::error::GenerateError;
use crate::engine::output::Scanner;
use crate::engine::run::{Run, WalkScratch};
use crate::engine::session::{Session, Verified};
use crate::engine::stats::LossyStats;
use crate::verify;

/// The walk of one step. Visited nodes, chosen tokens and their texts are in [`Run::scratch`].
pub(super) struct Walked {
    /// The output's scanner after the last chosen token.
    pub(super) scanner: Scanner,
    /// Tokens that lossy acceptance accepted instead of the target's choice.
    pub(super) n_replaced: usize,
    /// The last visited node has no token: its logits could not be computed, or the sampler found none.
    pub(super) failure: Option<GenerateError>,
}

/// Chooses a token at each visited node from the node's own logits, with its path as the text. The walk ends
/// if the chosen token is not a draft token below the node, or if the output ends.
///
/// Changes only scratch buffers and calibration's list of visited rows.
pub(super) fn walk(session: &mut Session, run: &mut Run, verified: Verified) -> Walked {
    let Session { shared, conversation, target, drafting, .. } = session;
    let tree = &drafting.tree;
    let Run { sampler, processors, output, projection, stats, scratch, cancel, .. } = run;
    let WalkScratch { text, walk, pieces } = scratch;
    let (limits, mut scanner) = (&output.limits, output.scanner.clone());
    let lossy_top_p = stats.lossy.map(|LossyStats { top_p, .. }| top_p);
    let (workspace, mut reader) = (&mut target.workspace, target.reader.as_mut());
    let mut n_replaced = 0;

    // A walk that panicked may have left more tokens than the committed text.
    text.truncate(conversation.tokens.len());
    text.extend_from_slice(&conversation.tokens[text.len()..]);
    let n_committed = text.len();
    pieces.clear();
    if let Some(reader) = &mut reader {
        reader.start_walk();
    }
    let result = verify::walk(
        tree,
        verified.nodes,
        walk,
        |node, chosen| {
            text.extend_from_slice(&chosen[text.len() - n_committed..]);
            let logits = projection.logits(shared, workspace, tree, verified.nodes, node, cancel.flag())?;
            if let Some(reader) = &mut reader {
                reader.list_visited(shared, logits);
            }
            for processor in processors.iter_mut() {
                processor.process(text, logits).map_err(GenerateError::Processor)?;
            }
            let Some(top_p) = lossy_top_p else {
                return sampler.choose(text, logits).map_err(GenerateError::from);
            };
            let drafted = tree.children(node).filter(|&child| verified.nodes.contains(child));
            let drafted = drafted.map(|child| tree.token(child));
            let choice = sampler.choose_or_accept(text, logits, drafted, top_p)?;
            n_replaced += usize::from(choice.is_replaced);
            Ok(choice.token)
        },
        |token| {
            pieces.push(scanner.push(limits, &shared.tokenizer, token));
            scanner.finish().is_some()
        },
    );
    Walked { scanner, n_replaced, failure: result.err() }
}
