//! The walk: follows the target's own choices through the draft tree.

use crate::cancel::CancelToken;
use crate::draft::{DraftTree, NodeSet};
use crate::engine::error::GenerateProblem;
use crate::engine::output::{Output, Scanner};
use crate::engine::projection::Projection;
use crate::engine::reader::Reader;
use crate::engine::run::WalkScratch;
use crate::engine::shared::Shared;
use crate::error::GenerateError;
use crate::model::Workspace;
use crate::verify::{self, LogitsProcessor, Sampler};
use refrain_trees::TokenId;

/// What the walk reads.
pub(super) struct Reads<'a> {
    pub(super) shared: &'a Shared,
    pub(super) committed: &'a [TokenId],
    pub(super) tree: &'a DraftTree,
    /// Nodes whose rows passed all layers.
    pub(super) verified: NodeSet,
    pub(super) output: &'a Output,
    pub(super) cancel: &'a CancelToken,
}

/// Buffers of the step; nothing in them outlives it.
pub(super) struct Scratch<'a> {
    /// Visited nodes, chosen tokens and their texts.
    pub(super) walk: &'a mut WalkScratch,
    /// The rows projected so far, from the hidden states in `workspace`.
    pub(super) projection: &'a mut Projection,
    pub(super) workspace: &'a mut Workspace,
    /// Lists the successors of the visited nodes.
    pub(super) reader: Option<&'a mut Reader>,
    pub(super) sampler: &'a mut Sampler,
    /// The app's. Their calls are those of plain decoding.
    pub(super) processors: &'a mut [Box<dyn LogitsProcessor>],
}

/// The walk of one step. Visited nodes, chosen tokens and their texts are in [`Scratch::walk`].
pub(super) struct Walked {
    /// The output's scanner after the last chosen token.
    pub(super) scanner: Scanner,
    /// The last visited node has no token: its logits could not be computed, or the sampler found none.
    pub(super) failure: Option<GenerateError>,
}

/// Chooses a token at each visited node from the node's own logits, with its path as the text. The walk ends
/// if the chosen token is not a draft token below the node, or if the output ends.
pub(super) fn walk(reads: Reads<'_>, scratch: Scratch<'_>) -> Walked {
    let Reads { shared, committed, tree, verified, output, cancel } = reads;
    let Scratch { walk, projection, workspace, mut reader, sampler, processors } = scratch;
    let WalkScratch { text, walk, pieces } = walk;
    let (limits, mut scanner) = (&output.limits, output.scanner.clone());

    // A walk that panicked may have left more tokens than the committed text.
    text.truncate(committed.len());
    text.extend_from_slice(&committed[text.len()..]);
    let n_committed = text.len();
    pieces.clear();
    if let Some(reader) = &mut reader {
        reader.start_walk();
    }
    let result = verify::walk(
        tree,
        verified,
        walk,
        |node, chosen| {
            text.extend_from_slice(&chosen[text.len() - n_committed..]);
            let logits = projection.logits(shared, workspace, tree, verified, node, cancel.flag())?;
            if let Some(reader) = &mut reader {
                reader.list_visited(shared, logits);
            }
            for processor in processors.iter_mut() {
                processor.process(text, logits).map_err(GenerateProblem::Processor)?;
            }
            sampler.choose(text, logits).map_err(GenerateError::from)
        },
        |token| {
            pieces.push(scanner.push(limits, &shared.tokenizer, token));
            scanner.finish().is_some()
        },
    );
    Walked { scanner, failure: result.err() }
}
