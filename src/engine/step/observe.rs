//! Learning from the step: sources, reliability, costs, policy and statistics. Changes nothing else.

use super::PassTime;
use super::decide::Decision;
use super::draft::Drafted;
use super::overlap::StepFlows;
use crate::draft::{NodeIdx, StepOutcome};
use crate::engine::reader::Reader;
use crate::engine::run::Run;
use crate::engine::session::{DraftingState, Session, TargetState, Verified};
use crate::model::streamed::Streamed;

/// The results of the step's stages.
pub(super) struct Step {
    pub(super) decision: Decision,
    pub(super) drafted: Drafted,
    pub(super) verified: Verified,
    pub(super) n_replaced: usize,
    pub(super) pass: PassTime,
    pub(super) flows: StepFlows,
}

/// Passes the committed step to every learner.
pub(super) fn observe(session: &mut Session, run: &mut Run, step: &Step) {
    observe_costs(session, run, step);
    read_rows(session, run, step);
    count(session, run, step);
    let is_dormant = session.is_dormant();
    let Session { shared, conversation, target, drafting, .. } = session;
    let (tokens, walk) = (&conversation.tokens, &run.scratch.walk);
    let reads = drafting.reads_hidden().into_iter().flatten();
    for states in reads.filter(|&states| !is_dormant && target.has(states)) {
        // The root was the newest token before the step.
        let (path, end) = (walk.path(), tokens.len() - 1);
        let row_len = states.row_len(shared.model.config().hidden_dim);
        let rows = target.hidden_rows(states);
        let of_path = path.iter().flat_map(|node| &rows[node.index() * row_len..][..row_len]);
        let rows = (states, &of_path.copied().collect::<Vec<f32>>()[..]);
        drafting.read_hidden(tokens, end - path.len()..end, rows, &run.cancel);
    }
    let confidence = target.reader.as_ref().map_or(&[][..], Reader::confidence);
    let Run { cancel, rejections, .. } = run;
    drafting.watched(cancel, |drafting| {
        let DraftingState { sources, builder, tree, primed, .. } = drafting;
        let (accepted, new_tokens) = (&walk.path()[1..], walk.tokens());
        let outcome = StepOutcome { tree, accepted, new_tokens, confidence };
        rejections.observe(&outcome);
        if !is_dormant {
            builder.observe(sources, tokens, &outcome);
            *primed = tokens.len();
        }
    });
}

/// Updates the costs with the time of the batch and the drafting time that its reads could have hidden. The time of a
/// shared pass is not that of a batch of these rows, so it changes no costs of single generations.
fn observe_costs(session: &mut Session, run: &Run, step: &Step) {
    if step.pass.is_shared {
        return;
    }
    let Session { shared, drafting, .. } = session;
    // Plain decoding chooses tokens at the same cost, so this time is not part of the batch.
    let batch_us = step.pass.us + run.projection.time_us() + step.flows.read_us();
    let ring_room = shared.model.streamed().map_or(0, Streamed::ring_room);
    drafting.costs.observe(step.drafted.n_rows, drafting.tree.n_leaves(), batch_us as f32);
    drafting.costs.observe_hidden(step.flows.hidden_us(ring_room) as f32);
}

/// Passes the target's distributions at the step's rows to the sources, while the hidden states are valid.
fn read_rows(session: &mut Session, run: &Run, step: &Step) {
    let Session { shared, conversation, target, drafting, .. } = session;
    let TargetState { reader: Some(reader), workspace, .. } = target else { return };
    let (tokens, path) = (&conversation.tokens, run.scratch.walk.path());
    // The root was the newest token before the step.
    let first = tokens.len() - path.len() - 1;
    reader.extend(&shared.model, &tokens[first + 1..]);
    reader.judge(shared, workspace, &drafting.tree, step.verified.nodes, path);
    let (lists, (nodes, rejected)) = (reader.visited(), reader.rejected());
    drafting.guarded(|DraftingState { sources, tree, .. }| {
        for source in sources.iter_mut().filter_map(|source| source.target_listener()) {
            if !nodes.is_empty() {
                source.reject(tree, nodes, rejected);
            }
            source.calibrate(first, lists);
        }
    });
    drafting.calibrated = drafting.calibrated.max(first + lists.len());
}

/// Counts the step's rows and decisions. Tokens are counted when the app takes them.
fn count(session: &mut Session, run: &mut Run, step: &Step) {
    let DraftingState { tree, policy, .. } = &mut session.drafting;
    let Run { stats, output, projection, scratch, .. } = run;
    let (walk, n_rows) = (&scratch.walk, step.drafted.n_rows);
    let (n_visited, n_new) = (walk.path().len(), walk.tokens().len());
    if let Some(pruning) = stats.pruning.as_mut().filter(|_| tree.len() > 1) {
        let named = tree.child(walk.path()[n_visited - 1], walk.tokens()[n_new - 1]);
        let is_cut_short = named.is_some_and(|node| !step.verified.nodes.contains(node));
        pruning.count_step(n_rows, step.verified.pruned);
        pruning.cut_short += usize::from(is_cut_short);
    }
    for source in (1..tree.len()).filter_map(|node| tree.source(NodeIdx(node as u32))) {
        stats.sources[source].drafted += 1;
    }
    stats.shared_steps += usize::from(step.pass.is_shared);
    stats.rows.valid += n_visited;
    stats.rows.wasted += tree.len() - n_visited;
    stats.rows.padded += n_rows - tree.len();
    stats.rows.projected += projection.n_projected();
    stats.rows.kept += step.verified.n_kept;
    if let Some(lossy) = &mut stats.lossy {
        lossy.replaced += step.n_replaced;
    }
    policy.observe(step.decision.rows, (tree.len() - 1, n_visited - 1), &mut stats.policy);
    if tree.len() == 1 {
        *(match step.decision.rows {
            Err(skip) => skip.counter(&mut stats.drafting_off),
            Ok(_) if output.remaining() + n_new <= 1 => &mut stats.drafting_off.output_end,
            Ok(_) if step.drafted.is_given_up => &mut stats.drafting_off.measured,
            Ok(_) if step.drafted.n_considered > 0 => &mut stats.drafting_off.not_worth,
            Ok(_) => &mut stats.drafting_off.no_candidate,
        }) += 1;
    }
}
