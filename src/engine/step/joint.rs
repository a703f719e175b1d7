//! Which generations of a step share a pass, and what shared passes teach.
//!
//! ```text
//! each: decide ─► draft ─┐                ┌─► each: walk ─► commit ─► observe
//!                        ├─ verify, once ─┤
//! each: decide ─► draft ─┘                └─► each: walk ─► commit ─► observe
//! prompts: some rows ────┘                └─► commit them
//! ```

use std::sync::Arc;

use super::Member;
use crate::draft::{CostProfile, JointRows};
use crate::engine::projection::{Projection, RootWave};
use crate::engine::run::Run;
use crate::engine::session::{Session, TargetState};
use crate::engine::shared::Shared;

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
    /// Those of them that are tokens of prompts.
    pub prompt_rows: usize,
}

impl std::ops::AddAssign for SharedPasses {
    fn add_assign(&mut self, other: Self) {
        self.passes += other.passes;
        self.generations += other.generations;
        self.rows += other.rows;
        self.prompt_rows += other.prompt_rows;
    }
}

impl Member<'_> {
    /// Whether rows of both may share a pass: they belong to one engine, and its layers run one by one, all of them over
    /// every row.
    fn may_share(&self, other: &Self) -> bool {
        may_share(self.session, other.session)
    }

    /// The rows of the step, or before its draft those of the newest step, with their costs.
    fn joint_rows(&self) -> JointRows<'_> {
        let Self { session, run, .. } = self;
        let Session { options, drafting, .. } = &**session;
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

fn may_share(session: &Session, other: &Session) -> bool {
    let can_share = |session: &Session| session.shared.model.graphs().is_none() && !session.target.prunes();
    Arc::ptr_eq(&session.shared, &other.shared) && can_share(session) && can_share(other)
}

/// Whether some rows of a prompt may join the next step of one of these sessions.
pub(in crate::engine) fn joins_any<'a>(
    prompt: &Session,
    mut decoding: impl Iterator<Item = &'a Session>,
) -> bool {
    decoding.any(|session| may_share(prompt, session))
}

/// Rows of prompts that may join the pass of a group.
pub(super) fn prompt_rows(shared: &Shared, group: &[Member<'_>]) -> usize {
    let rows: Vec<JointRows<'_>> = group.iter().map(Member::joint_rows).collect();
    let n_rows: usize = rows.iter().map(|member| member.rows).sum();
    let joint = *shared.joint_costs();
    // A row fits in any case, so that prompts get on beside full trees.
    let room = rows[0].rows_max.saturating_sub(n_rows).max(1);
    shared.prompt_pace().rows(room, |n| joint.longer_us(&rows, n))
}

/// Expected time of a pass of a group, with its projections.
pub(super) fn group_us(shared: &Shared, group: &[Member<'_>]) -> f32 {
    let rows: Vec<JointRows<'_>> = group.iter().map(Member::joint_rows).collect();
    shared.joint_costs().all_us(&rows)
}

/// Groups the members whose rows may share a pass.
pub(super) fn group_by_engine(members: &mut [Member<'_>]) {
    for i in 0..members.len() {
        let first = members[..i].iter().position(|member| member.may_share(&members[i]));
        members[i].group = first.unwrap_or(i);
    }
    sort(members);
}

/// Groups members of one engine as the measured costs say. Returns the number of groups.
pub(super) fn group_by_cost(members: &mut [Member<'_>]) -> usize {
    if members.len() < 2 {
        return members.len();
    }
    members.sort_unstable_by_key(|member| member.place);
    let groups = {
        let rows: Vec<JointRows<'_>> = members.iter().map(Member::joint_rows).collect();
        members[0].session.shared.joint_costs().groups(&rows)
    };
    for (number, group) in groups.iter().enumerate() {
        group.iter().for_each(|&i| members[i].group = number);
    }
    sort(members);
    groups.len()
}

fn sort(members: &mut [Member<'_>]) {
    members.sort_unstable_by_key(|member| (member.group, member.place));
}

/// If the members step apart, the shared pass that would be too slow loses weight.
pub(super) fn forget_if_apart(members: &[Member<'_>], n_groups: usize) {
    if n_groups > 1 {
        members[0].session.shared.joint_costs().forget();
    }
}

/// Expected time of a pass of the only member of a group.
pub(super) fn alone_us(group: &[Member<'_>]) -> Option<f32> {
    let [Member { session: Session { drafting, .. }, .. }] = group else { return None };
    Some(drafting.costs.verify_us(drafting.tree.len(), 1))
}

/// Learns from a pass of the only member of a group, one of `n_members` that step apart. It was expected to take `before_us`.
pub(super) fn observe_alone(group: &[Member<'_>], before_us: f32, n_members: usize) {
    if let Some(after_us) = alone_us(group) {
        group[0].session.shared.joint_costs().observe_alone(n_members, after_us / before_us);
    }
}

/// Learns from a whole pass of a group that took `us`, without the projections of its first waves.
pub(super) fn observe_pass(shared: &Shared, group: &[Member<'_>], us: f64) {
    let projected_us: f64 = group.iter().map(|member| member.run.projection.time_us()).sum();
    let rows: Vec<JointRows<'_>> = group.iter().map(Member::joint_rows).collect();
    shared.joint_costs().observe(&rows, (us + projected_us) as f32);
}

/// Projects the first wave of each member.
pub(super) fn project_roots(shared: &Shared, members: &mut [Member<'_>]) {
    let waves = members.iter_mut().map(|member| {
        let Session { target: TargetState { workspace, .. }, drafting, .. } = &mut *member.session;
        let Run { projection, cancel, .. } = &mut *member.run;
        RootWave { projection, workspace, tree: &drafting.tree, cancel }
    });
    Projection::project_roots(shared, &mut waves.collect::<Vec<_>>());
    for Member { run, .. } in members {
        run.stats.time_us.walk += run.projection.time_us();
    }
}
