//! One decoding step.
//!
//! ```text
//! decide ─► draft ─► verify ─► walk ─► commit ─► observe
//! ```
//!
//! | stage | reads | changes |
//! | --- | --- | --- |
//! | [`decide`] | policy, heat, memory pressure, room in the output | the policy's own state |
//! | [`draft`] | committed tokens, sources, costs | the draft tree |
//! | [`verify`] | the tree | scratch slots after the committed KV cache, hidden states |
//! | [`walk`] | the tree, hidden states, committed tokens | nothing: it returns accepted nodes and chosen tokens |
//! | [`commit`] | the walk | tokens, KV cache, output; all or nothing |
//! | [`observe`] | all of the above | sources, reliability, costs, policy, statistics |
//!
//! A step that fails or panics before its commit leaves tokens, KV cache and output as they were.

mod commit;
mod decide;
mod draft;
mod observe;
mod overlap;
mod verify;
mod walk;

use crate::engine::error::GenerateError;
use crate::engine::run::Run;
use crate::engine::session::Session;
use crate::engine::stats::Stopwatch;
use decide::decide;
use draft::draft;
use overlap::StepFlows;
use verify::verify;
use walk::{Walked, walk};

/// Runs one step: commits at least one token and queues their events in `run.events`.
///
/// # Errors
/// A pass failed, or the sampler found no token. Tokens chosen before the failure are committed.
pub(super) fn step(session: &mut Session, run: &mut Run) -> Result<(), GenerateError> {
    let mut watch = Stopwatch::start();
    if session.answer_pressure() {
        run.stats.policy.memory_reports += 1;
        run.projection.release();
    }
    let began = session.shared.flow();
    let decision = decide(session, &run.output);
    let drafted = draft(session, &decision);
    watch.lap(&mut run.stats.time_us.draft);
    let after_draft = session.shared.flow();

    let verified = verify(session, &drafted, &run.cancel)?;
    let forward_us = watch.lap(&mut run.stats.time_us.forward);

    let mut walked = walk(session, run, verified);
    watch.lap(&mut run.stats.time_us.walk);

    commit::commit(session, run, &mut walked);
    watch.lap(&mut run.stats.time_us.commit);

    let Walked { failure: None, n_replaced, .. } = walked else {
        return Err(walked.failure.expect("the walk failed"));
    };
    let flows = StepFlows { began, drafted: after_draft, ended: session.shared.flow() };
    let seen = observe::Step { decision, drafted, verified, n_replaced, forward_us, flows };
    observe::observe(session, run, &seen);
    watch.lap(&mut run.stats.time_us.observe);
    Ok(())
}
