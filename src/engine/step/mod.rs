//! One decoding step.
//!
//! ```text
//! decide ─► draft ─► verify ─► walk ─► commit ─► observe
//! ```
//!
//! | stage | reads | changes |
//! | --- | --- | --- |
//! | [`decide`] | heat, memory pressure, room in the output, the account, costs | the policy's own state |
//! | [`draft`] | committed tokens, limits | the draft tree; the places of sources, when a plain step is due |
//! | [`verify`] | the tree, committed tokens | scratch slots after the committed KV cache, hidden states; what sources compute ahead |
//! | [`walk`] | the tree, hidden states, committed tokens | scratch only: it returns accepted nodes and chosen tokens |
//! | [`commit`] | the walk | tokens, KV cache, output; all or nothing |
//! | [`observe`] | all of the above | sources, reliability, costs, policy, statistics |
//!
//! Each stage takes what it reads and what it changes as parameters of its own (`Reads`, `Changes`), so the compiler holds this
//! table. Before the draft, [`Member::begin`] answers memory pressure, moves the costs behind the grown context, and lets the sources catch up with
//! steps that attached nothing. After the last stage, the account takes the step's time.
//!
//! A step that fails or panics before its commit leaves tokens, KV cache and output as they were.
//!
//! The driver takes a group of generations. A single generation is a group of one; [`joint`] decides which generations
//! share a pass. A stage of one generation that fails or panics ends that generation's step only.

mod commit;
mod decide;
mod draft;
mod joint;
mod observe;
mod overlap;
mod prompt;
mod verify;
mod walk;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use crate::cancel::CancelToken;
use crate::draft::NodeSet;
use crate::engine::policy::StepTime;
use crate::engine::run::Run;
use crate::engine::session::{Session, Sources, TargetState, Verified};
use crate::engine::shared::Shared;
use crate::engine::stats::Stopwatch;
use crate::error::GenerateError;
use crate::model::Model;
use crate::model::transformer::{ForwardError, Part};
use commit::commit;
use decide::{Decision, decide};
use draft::{Drafted, draft};
pub use joint::SharedPasses;
pub(in crate::engine) use joint::joins_any;
use observe::{PassTime, observe};
use overlap::StepFlows;
pub(in crate::engine) use prompt::Prompt;
use refrain_stream::Flow;
use refrain_trees::TokenId;
use verify::{verify, verify_together};
use walk::{Walked, walk};

/// A generation in a step.
pub(in crate::engine) struct Member<'a> {
    session: &'a mut Session,
    run: &'a mut Run,
    /// The caller's number of the generation; the driver reorders the members.
    place: usize,
    /// Members of equal number lie side by side and form a group.
    group: usize,
    begun: Option<Begun>,
    outcome: Option<Outcome>,
}

/// The end of a step: its result, or the panic of a draft source or a logits processor.
pub(in crate::engine) type Outcome = thread::Result<Result<(), GenerateError>>;

/// The stages of a step before its pass.
#[derive(Clone, Copy)]
struct Begun {
    decision: Decision,
    drafted: Drafted,
    draft_us: f64,
    began: Flow,
    after_draft: Flow,
}

/// Runs the next step of each member: it commits at least one token and queues their events. Members of one engine share
/// passes where the measured costs say that this is faster; the others run passes of their own, one after another.
/// Every member has an outcome afterwards. Some rows of `prompts` join the first pass that they may share.
pub(in crate::engine) fn step(members: &mut [Member<'_>], prompts: &mut [Prompt<'_>]) -> SharedPasses {
    let mut shared_passes = SharedPasses::default();
    joint::group_by_engine(members);
    for of_engine in groups(members) {
        shared_passes += step_of_engine(of_engine, prompts);
    }
    shared_passes
}

/// As [`step`], for a single member or members of one engine whose rows may share passes.
fn step_of_engine(members: &mut [Member<'_>], prompts: &mut [Prompt<'_>]) -> SharedPasses {
    // The draft of a step counts the cost of its rows in the pass that is expected.
    joint::group_by_cost(members);
    for group in groups(members) {
        let n_sharing = group.len();
        group.iter_mut().for_each(|member| member.begin(n_sharing));
    }
    let members = going(members);
    let n_groups = joint::group_by_cost(members);
    let n_members = members.len();
    joint::forget_if_apart(members, n_groups);
    let mut shared_passes = SharedPasses::default();
    for (number, group) in groups(members).enumerate() {
        // What was read while all drafted comes to the first pass.
        let flow = group[0].session.shared.flow();
        for begun in group.iter_mut().filter_map(|member| member.begun.as_mut()) {
            begun.began = if number == 0 { begun.began } else { flow };
            begun.after_draft = flow;
        }
        let before_us = if n_groups > 1 { joint::alone_us(group) } else { None };
        let prompts = if number == 0 { &mut *prompts } else { &mut [] };
        shared_passes += pass_and_end(group, prompts);
        if let Some(before_us) = before_us {
            joint::observe_alone(group, before_us, n_members);
        }
    }
    shared_passes
}

/// The pass of a group, and the stages after it. Rows of `prompts` join it.
fn pass_and_end(group: &mut [Member<'_>], prompts: &mut [Prompt<'_>]) -> SharedPasses {
    let (mut watch, mut us) = (Stopwatch::start(), 0.0);
    for member in &mut *group {
        member.set_rows();
    }
    let group = going(group);
    let mut shared_passes = SharedPasses::default();
    let Some(first) = group.first() else { return shared_passes };
    let shared = Arc::clone(&first.session.shared);
    let n_member_rows: usize = group.iter().map(Member::n_rows).sum();
    let mut prompts = match prompts {
        [] => Vec::new(),
        prompts => prompt::join(prompts, first.session, joint::prompt_rows(&shared, group)),
    };
    let n_prompt_rows: usize = prompts.iter().map(|prompt| prompt.n_rows()).sum();
    let (n_rows, n_members) = (n_member_rows + n_prompt_rows, group.len());
    if n_members + prompts.len() > 1 {
        let (generations, prompt_rows) = (n_members + prompts.len(), n_prompt_rows);
        shared_passes += SharedPasses { passes: 1, generations, rows: n_rows, prompt_rows };
    }
    let quiet_us = if prompts.is_empty() { 0.0 } else { joint::group_us(&shared, group) };
    watch.lap(&mut us);

    let (verified, mut failures) = verify_group(&shared, group, &mut prompts);
    watch.lap(&mut us);

    let passed = going(group);
    if n_members > 1 {
        joint::project_roots(&shared, passed);
        // After a cancellation or an error, the time says nothing about the next pass. One with rows of prompts is longer.
        if passed.len() == n_members && prompts.is_empty() {
            joint::observe_pass(&shared, passed, us);
        }
    }
    let share_us = |n: usize| us * n as f64 / n_rows as f64;
    for member in &mut *passed {
        // A row of a prompt costs as much as a generation without drafts.
        let n_sharing = n_members + n_prompt_rows;
        member.end(verified, PassTime { us: share_us(member.n_rows()), n_sharing });
    }
    if n_prompt_rows > 0 && passed.len() == n_members && failures.iter().all(Option::is_none) {
        let projected_us: f64 = passed.iter().map(|member| member.run.projection.time_us()).sum();
        shared.prompt_pace().observe(n_prompt_rows, quiet_us, (us + projected_us) as f32);
    }
    for (prompt, failure) in prompts.iter_mut().zip(&mut failures) {
        prompt.end(failure.take(), share_us(prompt.n_rows()));
    }
    shared_passes
}

/// Runs the rows of a group and of prompts to their final hidden states, in one pass. A member whose rows fail has an error as its
/// outcome; the errors of prompts are returned.
fn verify_group(
    shared: &Shared,
    group: &mut [Member<'_>],
    prompts: &mut [&mut Prompt<'_>],
) -> (Verified, Vec<Option<ForwardError>>) {
    let whole = Verified { nodes: NodeSet::ALL, pruned: None, n_kept: 0 };
    if let ([member], []) = (&mut *group, &*prompts) {
        return (member.verify().unwrap_or(whole), Vec::new());
    }
    let parts = group.iter_mut().map(|member| member.session.target.part(&member.run.cancel));
    let parts = parts.chain(prompts.iter_mut().map(|prompt| prompt.part()));
    let mut failures = verify_together(shared, &mut parts.collect::<Vec<Part<'_>>>());
    let of_prompts = failures.split_off(group.len());
    for (member, failure) in group.iter_mut().zip(failures) {
        failure.into_iter().for_each(|error| member.fail(error));
    }
    (whole, of_prompts)
}

/// The groups of sorted members.
fn groups<'m, 'a>(members: &'m mut [Member<'a>]) -> impl Iterator<Item = &'m mut [Member<'a>]> {
    members.chunk_by_mut(|a, b| a.group == b.group)
}

/// The members whose step has not ended; the others come behind them.
fn going<'m, 'a>(members: &'m mut [Member<'a>]) -> &'m mut [Member<'a>] {
    members.sort_unstable_by_key(|member| (member.outcome.is_some(), member.place));
    let n_going = members.partition_point(|member| member.outcome.is_none());
    &mut members[..n_going]
}

impl<'a> Member<'a> {
    /// A generation whose next step begins. `place` is the caller's number of it.
    pub(in crate::engine) fn new(place: usize, session: &'a mut Session, run: &'a mut Run) -> Self {
        Self { session, run, place, group: 0, begun: None, outcome: None }
    }

    /// The caller's number of the generation, and the end of its step.
    ///
    /// # Panics
    /// The step has not run.
    pub(in crate::engine) fn into_outcome(self) -> (usize, Outcome) {
        (self.place, self.outcome.expect("the step has ended"))
    }

    /// Runs a stage; a panic is the outcome of the step.
    fn guarded<T>(&mut self, stage: impl FnOnce(&mut Session, &mut Run) -> T) -> Option<T> {
        let Self { session, run, .. } = self;
        match catch_unwind(AssertUnwindSafe(|| stage(session, run))) {
            Ok(result) => Some(result),
            Err(panic) => {
                self.outcome = Some(Err(panic));
                None
            }
        }
    }

    /// Ends the step with an error.
    fn fail(&mut self, error: ForwardError) {
        self.outcome = Some(Ok(Err(error.into())));
    }

    /// Rows of the verification batch, padding included.
    fn n_rows(&self) -> usize {
        self.begun.as_ref().map_or(0, |begun| begun.drafted.n_rows)
    }

    /// The stages before the pass, which `n_sharing` generations are expected to share.
    fn begin(&mut self, n_sharing: usize) {
        self.begun = self.guarded(|session, run| {
            let mut watch = Stopwatch::start();
            if session.answer_pressure(&run.cancel) {
                run.stats.policy.memory_reports += 1;
                run.projection.release();
            }
            run.projection.clear();
            let began = session.shared.flow();
            session.follow_context();
            let Session { shared, conversation, target, drafting, pressure, .. } = session;
            let device = (shared.device.thermal(), pressure.level);
            let prices = (&drafting.account, &drafting.costs);
            let sources = &mut drafting.sources;
            let decision = decide(device, run.output.remaining(), prices, sources, &mut drafting.policy);
            let committed = &conversation.tokens[..];
            if decision.limits().is_some() {
                catch_up(committed, target, sources, &shared.model, &run.cancel);
                target.share_text(committed);
            }
            let drafted = draft(
                draft::Reads { decision: &decision, committed, n_sharing, cancel: &run.cancel },
                draft::Changes {
                    sources: &mut drafting.sources,
                    builder: &mut drafting.builder,
                    costs: &mut drafting.costs,
                    tree: &mut drafting.tree,
                },
            );
            let draft_us = watch.lap(&mut run.stats.time_us.draft);
            Begun { decision, drafted, draft_us, began, after_draft: began }
        });
    }

    /// Fills the batch with the rows of the draft.
    fn set_rows(&mut self) {
        let n_rows = self.n_rows();
        let Session { shared, target, drafting, .. } = &mut *self.session;
        if let Err(error) = target.set_rows(shared, &drafting.tree, n_rows) {
            self.fail(error);
        }
    }

    /// The pass of this generation alone.
    fn verify(&mut self) -> Option<Verified> {
        let drafts = self.begun.is_some_and(|begun| begun.decision.limits().is_some());
        let result = self.guarded(|session, Run { cancel, .. }| {
            let Session { shared, options, conversation, target, drafting, .. } = session;
            let reads = verify::Reads {
                shared,
                committed: &conversation.tokens,
                tree: &drafting.tree,
                verify_lens: &options.verify_lens,
                drafts,
                cancel,
            };
            verify(reads, target, &mut drafting.sources)
        })?;
        result.map_err(|error| self.fail(error)).ok()
    }

    /// The stages after the pass. Tokens chosen before a failure are committed.
    fn end(&mut self, verified: Verified, pass: PassTime) {
        let Some(begun) = self.begun else { return };
        let ended = self.guarded(|session, run| end(session, run, &begun, verified, pass));
        if let Some(result) = ended {
            self.outcome = Some(Ok(result));
        }
    }
}

/// Passes the text of steps without drafts to the reader and the sources.
fn catch_up(
    committed: &[TokenId],
    target: &mut TargetState,
    sources: &mut Sources,
    model: &Model,
    cancel: &CancelToken,
) {
    let behind = committed.get(sources.n_observed()..).unwrap_or_default();
    if let Some(reader) = target.reader.as_mut().filter(|_| !behind.is_empty()) {
        reader.extend(model, behind);
    }
    sources.prime(committed, cancel);
}

fn end(
    session: &mut Session,
    run: &mut Run,
    begun: &Begun,
    verified: Verified,
    pass: PassTime,
) -> Result<(), GenerateError> {
    let is_dormant = session.is_dormant() || begun.decision.is_off;
    let Session { shared, conversation, target, drafting, .. } = session;
    let Begun { decision, drafted, draft_us, began, after_draft } = *begun;
    let row_us = f64::from(drafting.costs.verify_us(pass.n_sharing, 1)) / pass.n_sharing as f64;
    let mut watch = Stopwatch::start();
    run.stats.time_us.forward += pass.us;
    let Walked { scanner, failure } = walk(
        walk::Reads {
            shared,
            committed: &conversation.tokens,
            tree: &drafting.tree,
            verified: verified.nodes,
            output: &run.output,
            cancel: &run.cancel,
        },
        walk::Scratch {
            walk: &mut run.scratch,
            projection: &mut run.projection,
            workspace: &mut target.workspace,
            reader: target.reader.as_mut().filter(|_| !decision.is_off),
            sampler: &mut run.sampler,
            processors: &mut run.processors,
        },
    );
    let walk_us = watch.lap(&mut run.stats.time_us.walk);

    let changes = commit::Changes {
        tokens: &mut conversation.tokens,
        kv: &mut target.kv,
        scanner: &mut run.output.scanner,
        events: &mut run.events,
    };
    commit(&mut run.scratch, scanner, &drafting.tree, &run.stats.sources, changes);
    let commit_us = watch.lap(&mut run.stats.time_us.commit);

    if let Some(error) = failure {
        return Err(error);
    }
    observe(
        &observe::Reads {
            shared,
            decision,
            drafted,
            verified,
            pass,
            flows: StepFlows { began, drafted: after_draft, ended: shared.flow() },
            tree: &drafting.tree,
            walk: &run.scratch.walk,
            tokens: &conversation.tokens,
            room: run.output.remaining(),
            projection: &run.projection,
            taps: target.taps,
            is_dormant,
            cancel: &run.cancel,
        },
        observe::Changes {
            sources: &mut drafting.sources,
            builder: &mut drafting.builder,
            costs: &mut drafting.costs,
            policy: &mut drafting.policy,
            reader: target.reader.as_mut().filter(|_| !decision.is_off),
            workspace: &mut target.workspace,
            rejections: &mut run.rejections,
            stats: &mut run.stats,
        },
    );
    let observe_us = watch.lap(&mut run.stats.time_us.observe);
    drafting.account.observe(StepTime {
        drafting_us: draft_us + observe_us,
        other_us: pass.us + walk_us + commit_us,
        row_us,
        n_tokens: run.scratch.walk.tokens().len(),
        has_draft: drafting.tree.len() > 1,
        may_draft: decision.rows.is_ok(),
        is_shared: pass.n_sharing > 1,
    });
    run.stats.saved_us = drafting.account.saved_us();
    Ok(())
}
