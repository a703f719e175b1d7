//! Learning from the step: sources, reliability, costs, policy and statistics. Changes nothing else.

use super::decide::Decision;
use super::draft::Drafted;
use super::overlap::StepFlows;
use crate::cancel::CancelToken;
use crate::draft::{CostProfile, DraftTree, NodeIdx, RejectionCounter, StepOutcome, TreeBuilder};
use crate::engine::policy::Policy;
use crate::engine::projection::Projection;
use crate::engine::reader::Reader;
use crate::engine::session::{PassStates, Sources, Verified};
use crate::engine::shared::Shared;
use crate::engine::stats::Stats;
use crate::model::Workspace;
use crate::model::streamed::Streamed;
use crate::verify::Walk;
use refrain_trees::TokenId;

/// The time of a step's pass.
#[derive(Clone, Copy)]
pub(super) struct PassTime {
    /// In µs. Of a pass that generations share, the part of this one's rows.
    pub(super) us: f64,
    /// Generations with rows in the pass, and rows of prompts.
    pub(super) n_sharing: usize,
}

/// What observing reads: the results of the step's stages.
pub(super) struct Reads<'a> {
    pub(super) shared: &'a Shared,
    pub(super) decision: Decision,
    pub(super) drafted: Drafted,
    pub(super) verified: Verified,
    pub(super) pass: PassTime,
    pub(super) flows: StepFlows,
    pub(super) tree: &'a DraftTree,
    pub(super) walk: &'a Walk,
    /// The whole text, with the step's tokens.
    pub(super) tokens: &'a [TokenId],
    /// Tokens that the output has room for.
    pub(super) room: usize,
    pub(super) projection: &'a Projection,
    /// The layers before which the pass kept the residual stream.
    pub(super) taps: Option<[usize; 3]>,
    /// Whether the sources must not be called with text.
    pub(super) is_dormant: bool,
    pub(super) cancel: &'a CancelToken,
}

/// What observing changes.
pub(super) struct Changes<'a> {
    pub(super) sources: &'a mut Sources,
    pub(super) builder: &'a mut TreeBuilder,
    pub(super) costs: &'a mut CostProfile,
    pub(super) policy: &'a mut Policy,
    pub(super) reader: Option<&'a mut Reader>,
    /// Buffers for projections of the reader; the rows' hidden states stay.
    pub(super) workspace: &'a mut Workspace,
    pub(super) rejections: &'a mut RejectionCounter,
    pub(super) stats: &'a mut Stats,
}

/// Passes the committed step to every learner.
pub(super) fn observe(reads: &Reads<'_>, changes: Changes<'_>) {
    let Changes { sources, builder, costs, policy, reader, workspace, rejections, stats } = changes;
    observe_costs(reads, costs);
    if let Some(reader) = reader {
        read_rows(reads, reader, workspace, sources);
    }
    count(reads, policy, stats);
    if !reads.is_dormant {
        read_hidden(reads, PassStates { workspace, taps: reads.taps }, sources);
    }
    let &Reads { tree, walk, tokens, cancel, .. } = reads;
    let (accepted, new_tokens) = (&walk.path()[1..], walk.tokens());
    let outcome = StepOutcome { tree, accepted, new_tokens };
    rejections.observe(&outcome);
    if !reads.is_dormant {
        sources.watched(cancel, |sources| builder.observe(sources, tokens, &outcome));
        sources.note_observed(tokens.len());
    }
}

/// Updates the costs with the time of the batch and the drafting time that its reads could have hidden. The time of a
/// shared pass is not that of a batch of these rows, so it changes no costs of single generations.
fn observe_costs(reads: &Reads<'_>, costs: &mut CostProfile) {
    let Reads { shared, drafted, pass, flows, tree, projection, .. } = reads;
    if pass.n_sharing > 1 {
        return;
    }
    // Plain decoding chooses tokens at the same cost, so this time is not part of the batch.
    let batch_us = pass.us + projection.time_us() + flows.read_us();
    let ring_room = shared.model.streamed().map_or(0, Streamed::ring_room);
    costs.observe(drafted.n_rows, tree.n_leaves(), batch_us as f32);
    costs.observe_hidden(flows.hidden_us(ring_room) as f32);
}

/// Passes the target's distributions at the step's rows to the sources, while the hidden states are valid.
fn read_rows(reads: &Reads<'_>, reader: &mut Reader, workspace: &mut Workspace, sources: &mut Sources) {
    let &Reads { shared, tree, tokens, verified, .. } = reads;
    let path = reads.walk.path();
    // The root was the newest token before the step.
    let first = tokens.len() - path.len() - 1;
    reader.extend(&shared.model, &tokens[first + 1..]);
    let (nodes, lists) = reader.list_rejected(shared, workspace, tree, verified.nodes, path);
    sources.reject(tree, nodes, lists);
    sources.calibrate(tokens, first, reader.visited());
}

/// Passes the hidden states of the path to the sources that read them.
fn read_hidden(reads: &Reads<'_>, states: PassStates<'_>, sources: &mut Sources) {
    let &Reads { shared, tokens, cancel, .. } = reads;
    // The root was the newest token before the step.
    let (path, end) = (reads.walk.path(), tokens.len() - 1);
    for read in sources.reads_hidden().into_iter().flatten() {
        let Some(rows) = states.of(read) else { continue };
        let row_len = read.row_len(shared.model.config().hidden_dim);
        let of_path = path.iter().flat_map(|node| &rows[node.index() * row_len..][..row_len]);
        let rows: Vec<f32> = of_path.copied().collect();
        sources.read_hidden(tokens, end - path.len()..end, (read, &rows), cancel);
    }
}

/// Counts the step's rows and decisions. Tokens are counted when the app takes them.
fn count(reads: &Reads<'_>, policy: &mut Policy, stats: &mut Stats) {
    let &Reads { decision, drafted, verified, tree, walk, .. } = reads;
    let (n_visited, n_new, n_rows) = (walk.path().len(), walk.tokens().len(), drafted.n_rows);
    if let Some(pruning) = stats.pruning.as_mut().filter(|_| tree.len() > 1) {
        let named = tree.child(walk.path()[n_visited - 1], walk.tokens()[n_new - 1]);
        let is_cut_short = named.is_some_and(|node| !verified.nodes.contains(node));
        pruning.count_step(n_rows, verified.pruned);
        pruning.cut_short += usize::from(is_cut_short);
    }
    for source in (1..tree.len()).filter_map(|node| tree.source(NodeIdx(node as u32))) {
        stats.sources[source].drafted += 1;
    }
    stats.shared_steps += usize::from(reads.pass.n_sharing > 1);
    stats.rows.valid += n_visited;
    stats.rows.wasted += tree.len() - n_visited;
    stats.rows.padded += n_rows - tree.len();
    stats.rows.projected += reads.projection.n_projected();
    stats.rows.kept += verified.n_kept;
    policy.observe(decision.rows, (tree.len() - 1, n_visited - 1), &mut stats.policy);
    if tree.len() == 1 {
        *(match decision.rows {
            Err(skip) => skip.counter(&mut stats.drafting_off),
            Ok(_) if reads.room + n_new <= 1 => &mut stats.drafting_off.output_end,
            Ok(_) if drafted.is_given_up => &mut stats.drafting_off.measured,
            Ok(_) if drafted.n_considered > 0 => &mut stats.drafting_off.not_worth,
            Ok(_) => &mut stats.drafting_off.no_candidate,
        }) += 1;
    }
}
