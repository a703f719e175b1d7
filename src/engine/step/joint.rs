//! The steps of several generations whose rows share passes.
//!
//! ```text
//! each: decide ─► draft ─┐                ┌─► each: walk ─► commit ─► observe
//!                        ├─ verify, once ─┤
//! each: decide ─► draft ─┘                └─► each: walk ─► commit ─► observe
//! ```
//!
//! A stage of one generation that fails or panics ends that generation's step only.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use super::{Begun, PassTime, begin, end, pass_and_end};
use crate::draft::{CostProfile, JointRows, NodeSet};
use crate::engine::error::GenerateError;
use crate::engine::projection::{Projection, RootWave};
use crate::engine::run::Run;
use crate::engine::session::{Session, TargetState, Verified};
use crate::engine::stats::Stopwatch;
use crate::model::transformer::{ForwardError, Part, PassEnd};

/// A generation in a joint step.
pub(in crate::engine) struct Member<'a> {
    pub(in crate::engine) session: &'a mut Session,
    pub(in crate::engine) run: &'a mut Run,
    /// The end of the step: its result, or the panic of a draft source or a logits processor. `None` before the step.
    pub(in crate::engine) outcome: Option<thread::Result<Result<(), GenerateError>>>,
    begun: Option<Begun>,
}

/// Passes that generations have shared.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct SharedPasses {
    /// Passes with rows of at least two generations.
    pub passes: usize,
    /// Generations in these passes.
    pub generations: usize,
    /// Rows of these passes.
    pub rows: usize,
}

impl std::ops::AddAssign for SharedPasses {
    fn add_assign(&mut self, other: Self) {
        self.passes += other.passes;
        self.generations += other.generations;
        self.rows += other.rows;
    }
}

impl<'a> Member<'a> {
    /// A generation whose next step begins.
    pub(in crate::engine) fn new(session: &'a mut Session, run: &'a mut Run) -> Self {
        Self { session, run, outcome: None, begun: None }
    }

    /// Whether its rows may share a pass: the layers run one by one, and every row runs through all of them.
    fn can_share(&self) -> bool {
        self.session.shared.model.graphs().is_none() && !self.session.target.prunes()
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

    /// Runs the rest of the step; its result is the outcome.
    fn finish(&mut self, rest: impl FnOnce(&mut Session, &mut Run) -> Result<(), GenerateError>) {
        if let Some(result) = self.guarded(rest) {
            self.outcome = Some(Ok(result));
        }
    }

    /// The rows of the step, or before its draft those of the newest step, with their costs.
    fn joint_rows(&self) -> JointRows<'_> {
        let Self { session: Session { options, drafting, .. }, run, .. } = self;
        let costs: &CostProfile = &drafting.costs;
        // A fixed number of rows is drafted at no cost, and yet it takes time.
        let costs = if costs.has_free_rows() { run.learned.costs() } else { costs };
        let rows = match &self.begun {
            Some(begun) => begun.drafted.n_rows,
            None => costs.batch_len(drafting.tree.len().max(1)),
        };
        // The memory bound of a session's workspace.
        JointRows { costs, rows, rows_max: options.prefill_chunk.max(options.rows_max()) }
    }
}

/// Runs the next step of each member. Members of one engine share passes where the measured costs say that this is
/// faster; the others run passes of their own, one after another.
pub(in crate::engine) fn step_together(members: &mut [Member<'_>]) -> SharedPasses {
    let mut shared_passes = SharedPasses::default();
    let (mut sharing, mut rest): (Vec<_>, Vec<_>) = members.iter_mut().partition(|member| member.can_share());
    for member in &mut rest {
        member.finish(super::step);
    }
    while let Some(first) = sharing.first() {
        let engine = Arc::clone(&first.session.shared);
        let (mut of_engine, others): (Vec<_>, Vec<_>) =
            sharing.into_iter().partition(|member| Arc::ptr_eq(&member.session.shared, &engine));
        sharing = others;
        shared_passes += step_of_engine(&mut of_engine);
    }
    shared_passes
}

/// The groups that share passes, by their rows so far.
fn groups(members: &[&mut Member<'_>]) -> Vec<Vec<usize>> {
    let rows: Vec<JointRows<'_>> = members.iter().map(|member| member.joint_rows()).collect();
    members[0].session.shared.joint_costs().groups(&rows)
}

/// As [`step_together`], for members of one engine whose rows may share passes.
fn step_of_engine(members: &mut [&mut Member<'_>]) -> SharedPasses {
    // The draft of a step counts the cost of its rows in the pass that is expected.
    for group in groups(members) {
        for &i in &group {
            let member = &mut *members[i];
            member.begun = member.guarded(|session, run| begin(session, run, group.len()));
        }
    }
    let mut begun: Vec<&mut Member<'_>> =
        members.iter_mut().map(|member| &mut **member).filter(|member| member.begun.is_some()).collect();
    if begun.is_empty() {
        return SharedPasses::default();
    }
    let groups = groups(&begun);
    let shared = Arc::clone(&begun[0].session.shared);
    shared.joint_costs().forget_if_apart(&groups);
    let mut group_of = vec![0; begun.len()];
    for (number, group) in groups.iter().enumerate() {
        group.iter().for_each(|&i| group_of[i] = number);
    }
    let mut shared_passes = SharedPasses::default();
    for number in 0..groups.len() {
        let members = begun.iter_mut().zip(&group_of).filter(|(_, group)| **group == number);
        let mut group: Vec<&mut Member<'_>> = members.map(|(member, _)| &mut **member).collect();
        // What was read while all drafted comes to the first pass.
        let flow = shared.flow();
        for begun in group.iter_mut().filter_map(|member| member.begun.as_mut()) {
            begun.began = if number == 0 { begun.began } else { flow };
            begun.after_draft = flow;
        }
        let before_us = if groups.len() > 1 { alone_us(&group) } else { None };
        shared_passes += step_group(&mut group);
        if let (Some(before_us), Some(after_us)) = (before_us, alone_us(&group)) {
            shared.joint_costs().observe_alone(group_of.len(), after_us / before_us);
        }
    }
    shared_passes
}

/// Expected time of a pass of the only member of a group.
fn alone_us(group: &[&mut Member<'_>]) -> Option<f32> {
    let [member] = group else { return None };
    Some(member.session.drafting.costs.verify_us(member.session.drafting.tree.len(), 1))
}

/// The pass of a group, and the stages after it.
fn step_group(group: &mut [&mut Member<'_>]) -> SharedPasses {
    if let [member] = group {
        let begun = member.begun.take().expect("the draft is built");
        member.finish(|session, run| pass_and_end(session, run, &begun));
        return SharedPasses::default();
    }
    let shared = Arc::clone(&group[0].session.shared);
    for member in &mut *group {
        let n_rows = member.joint_rows().rows;
        let Session { target, drafting, .. } = &mut *member.session;
        if let Err(error) = target.set_rows(&shared, &drafting.tree, n_rows) {
            member.outcome = Some(Ok(Err(error.into())));
        }
    }
    let mut fitting: Vec<&mut Member<'_>> =
        group.iter_mut().map(|member| &mut **member).filter(|member| member.outcome.is_none()).collect();

    let (mut watch, mut us) = (Stopwatch::start(), 0.0);
    let parts = fitting.iter_mut().map(|member| member.session.target.part(&member.run.cancel));
    let mut parts: Vec<Part<'_>> = parts.collect();
    let result = shared.model.forward_together(shared.compute(), &mut parts, PassEnd::Hidden);
    let is_cancelled: Vec<bool> = parts.iter().map(Part::is_cancelled).collect();
    drop(parts);
    watch.lap(&mut us);
    for (member, is_cancelled) in fitting.iter_mut().zip(is_cancelled) {
        let failure = if is_cancelled { Some(ForwardError::Cancelled) } else { result.clone().err() };
        member.outcome = failure.map(|error| Ok(Err(error.into())));
    }
    let n_rows: usize = fitting.iter().map(|member| member.joint_rows().rows).sum();
    let is_shared = fitting.len() > 1;
    let shared_passes = match is_shared {
        true => SharedPasses { passes: 1, generations: fitting.len(), rows: n_rows },
        false => SharedPasses::default(),
    };

    // After a cancellation or an error, the time says nothing about the next pass.
    let is_whole = fitting.iter().all(|member| member.outcome.is_none());
    let mut passed: Vec<&mut Member<'_>> =
        fitting.into_iter().filter(|member| member.outcome.is_none()).collect();
    project_roots(&mut passed);
    if is_whole {
        let projected_us: f64 = passed.iter().map(|member| member.run.projection.time_us()).sum();
        let rows: Vec<JointRows<'_>> = passed.iter().map(|member| member.joint_rows()).collect();
        shared.joint_costs().observe(&rows, (us + projected_us) as f32);
    }
    for member in passed {
        let begun = member.begun.take().expect("the draft is built");
        let us = us * begun.drafted.n_rows as f64 / n_rows as f64;
        member.run.stats.time_us.forward += us;
        let verified = Verified { nodes: NodeSet::ALL, pruned: None, n_kept: 0 };
        let pass = PassTime { us, is_shared };
        member.finish(|session, run| end(session, run, &begun, verified, pass));
    }
    shared_passes
}

/// Projects the first wave of each member.
fn project_roots(members: &mut [&mut Member<'_>]) {
    let Some(first) = members.first() else { return };
    let shared = Arc::clone(&first.session.shared);
    let waves = members.iter_mut().map(|member| {
        let Member { session: Session { target, drafting, .. }, run, .. } = &mut **member;
        let TargetState { workspace, .. } = target;
        let Run { projection, cancel, .. } = &mut **run;
        RootWave { projection, workspace, tree: &drafting.tree, cancel }
    });
    Projection::project_roots(&shared, &mut waves.collect::<Vec<_>>());
    for Member { run, .. } in members.iter_mut().map(|member| &mut **member) {
        run.stats.time_us.walk += run.projection.time_us();
    }
}
