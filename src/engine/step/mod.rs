//! One decoding step.
//!
//! ```text
//! decide ─► draft ─► verify ─► walk ─► commit ─► observe
//! ```
//!
//! | stage | reads | changes |
//! | --- | --- | --- |
//! | [`decide`] | policy, heat, memory pressure, room in the output | the policy's own state |
//! | [`draft`] | committed tokens, sources, costs | the draft tree; costs, moved behind the grown context |
//! | [`verify`] | the tree | scratch slots after the committed KV cache, hidden states |
//! | [`walk`] | the tree, hidden states, committed tokens | nothing: it returns accepted nodes and chosen tokens |
//! | [`commit`] | the walk | tokens, KV cache, output; all or nothing |
//! | [`observe`] | all of the above | sources, reliability, costs, policy, statistics |
//!
//! A step that fails or panics before its commit leaves tokens, KV cache and output as they were.
//!
//! [`joint`] runs the steps of several generations whose rows share one pass.

mod commit;
mod decide;
mod draft;
mod joint;
mod observe;
mod overlap;
mod verify;
mod walk;

use crate::engine::error::GenerateError;
use crate::engine::run::Run;
use crate::engine::session::Session;
use crate::engine::session::Verified;
use crate::engine::stats::Stopwatch;
use decide::{Decision, decide};
use draft::{Drafted, draft};
pub use joint::SharedPasses;
pub(super) use joint::{Member, step_together};
use overlap::StepFlows;
use refrain_stream::Flow;
use verify::verify;
use walk::{Walked, walk};

/// The stages of a step before its pass.
#[derive(Clone, Copy)]
struct Begun {
    decision: Decision,
    drafted: Drafted,
    began: Flow,
    after_draft: Flow,
}

/// The time of a step's pass.
#[derive(Clone, Copy)]
struct PassTime {
    /// In µs. Of a pass that generations share, the part of this one's rows.
    us: f64,
    is_shared: bool,
}

/// Runs one step: commits at least one token and queues their events in `run.events`.
///
/// # Errors
/// A pass failed, or the sampler found no token. Tokens chosen before the failure are committed.
pub(super) fn step(session: &mut Session, run: &mut Run) -> Result<(), GenerateError> {
    let begun = begin(session, run, 1);
    pass_and_end(session, run, &begun)
}

/// The stages before the pass, if `n_sharing` generations are expected to share it.
fn begin(session: &mut Session, run: &mut Run, n_sharing: usize) -> Begun {
    let mut watch = Stopwatch::start();
    if session.answer_pressure(&run.cancel) {
        run.stats.policy.memory_reports += 1;
        run.projection.release();
    }
    run.projection.clear();
    let began = session.shared.flow();
    let decision = decide(session, &run.output);
    let drafted = draft(session, &decision, n_sharing, &run.cancel);
    watch.lap(&mut run.stats.time_us.draft);
    Begun { decision, drafted, began, after_draft: session.shared.flow() }
}

/// The pass of a single generation, and the stages after it.
fn pass_and_end(session: &mut Session, run: &mut Run, begun: &Begun) -> Result<(), GenerateError> {
    let mut watch = Stopwatch::start();
    let verified = verify(session, &begun.decision, &begun.drafted, &run.cancel)?;
    let us = watch.lap(&mut run.stats.time_us.forward);
    end(session, run, begun, verified, PassTime { us, is_shared: false })
}

/// The stages after the pass.
fn end(
    session: &mut Session,
    run: &mut Run,
    begun: &Begun,
    verified: Verified,
    pass: PassTime,
) -> Result<(), GenerateError> {
    let mut watch = Stopwatch::start();
    let mut walked = walk(session, run, verified);
    watch.lap(&mut run.stats.time_us.walk);

    commit::commit(session, run, &mut walked);
    watch.lap(&mut run.stats.time_us.commit);

    let Walked { failure: None, n_replaced, .. } = walked else {
        return Err(walked.failure.expect("the walk failed"));
    };
    let Begun { decision, drafted, began, after_draft } = *begun;
    let flows = StepFlows { began, drafted: after_draft, ended: session.shared.flow() };
    let seen = observe::Step { decision, drafted, verified, n_replaced, pass, flows };
    observe::observe(session, run, &seen);
    watch.lap(&mut run.stats.time_us.observe);
    Ok(())
}
