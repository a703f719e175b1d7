//! Which generations share a pass: those whose rows take less time together than in passes of their own. How many rows of prompts
//! join them.

use super::CostProfile;

/// Learns how far passes with rows of several generations differ from the costs of single generations.
///
/// A generation's costs tᵢ were measured at its own context. Its attention takes as long in a shared pass as alone,
/// and the time of the other operations depends on the total of rows `R` only. So the expected time of a shared pass
/// is the mean of the tᵢ at `R` rows, weighed by the generations' rows rᵢ, times a learnt factor f:
///
/// ```text
/// t(G) = f · Σᵢ (rᵢ / R) · tᵢ(R)        R = Σᵢ rᵢ
/// ```
///
/// A generation joins the group `G` if `t(G ∪ {i}) < t(G) + tᵢ(rᵢ)`; all share a pass if that is faster than the groups
/// so found.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct JointCosts {
    /// Logarithm of f.
    log_factor: f32,
}

/// Rows and costs of a generation that could share a pass.
#[derive(Clone, Copy)]
pub(crate) struct JointRows<'a> {
    pub(crate) costs: &'a CostProfile,
    pub(crate) rows: usize,
    /// Maximum rows of a pass in this generation's buffers.
    pub(crate) rows_max: usize,
}

/// Weight of a pass in the factor.
const RATE: f32 = 1.0 / 8.0;
/// Bound of the error of one pass, so that an interrupted pass carries little information.
const LOG_ERROR_MAX: f32 = 0.7;
/// Bounds of the factor: a half to four.
const LOG_FACTOR_MIN: f32 = -0.7;
const LOG_FACTOR_MAX: f32 = 1.4;
/// Share of the factor that remains after a step in which it kept generations apart: half after 44 steps. They then try
/// a shared pass again.
const KEPT: f32 = 1.0 - 1.0 / 64.0;

impl JointCosts {
    /// Divides generations into groups that share a pass, in their order. Each number is in one group.
    pub(crate) fn groups(&self, members: &[JointRows<'_>]) -> Vec<Vec<usize>> {
        let mut groups = Vec::new();
        let mut rest: Vec<usize> = (0..members.len()).collect();
        while !rest.is_empty() {
            let mut group = vec![rest.remove(0)];
            rest.retain(|&candidate| {
                let alone_us = Self::us(members, &[candidate]);
                let before_us = self.pass_us(members, &group);
                group.push(candidate);
                let fits = Self::rows(members, &group) <= members[group[0]].rows_max;
                let joins = fits && self.pass_us(members, &group) < before_us + alone_us;
                if !joins {
                    group.pop();
                }
                !joins
            });
            groups.push(group);
        }
        // Two may lose where all together win.
        let all: Vec<usize> = (0..members.len()).collect();
        let is_bounded = members.first().is_some_and(|first| Self::rows(members, &all) <= first.rows_max);
        let divided_us: f32 = groups.iter().map(|group| self.pass_us(members, group)).sum();
        if groups.len() > 1 && is_bounded && self.pass_us(members, &all) < divided_us {
            return vec![all];
        }
        groups
    }

    /// Among `n` generations that were kept apart, a pass of one taught it that such passes take `ratio` times as long as it
    /// had expected. The time of a shared pass is not known to have changed.
    pub(crate) fn observe_alone(&mut self, n: usize, ratio: f32) {
        let log_factor = self.log_factor - ratio.ln() / n as f32;
        if log_factor.is_finite() {
            self.log_factor = log_factor.clamp(LOG_FACTOR_MIN, LOG_FACTOR_MAX);
        }
    }

    /// After a step in several groups: a factor that keeps generations apart loses weight, so that a shared pass is tried
    /// again.
    pub(crate) fn forget(&mut self) {
        if self.log_factor > 0.0 {
            self.log_factor *= KEPT;
        }
    }

    /// Learns from a shared pass over `members` that took `us`. Nothing, if rows are
    /// [free](CostProfile::free_rows).
    pub(crate) fn observe(&mut self, members: &[JointRows<'_>], us: f32) {
        if members.iter().any(|member| member.costs.has_free_rows()) {
            return;
        }
        let all: Vec<usize> = (0..members.len()).collect();
        let error = (us / self.pass_us(members, &all)).ln();
        if members.len() > 1 && error.is_finite() {
            let error = error.clamp(-LOG_ERROR_MAX, LOG_ERROR_MAX);
            self.log_factor = (self.log_factor + RATE * error).clamp(LOG_FACTOR_MIN, LOG_FACTOR_MAX);
        }
    }

    /// Expected time of a pass over all members, in µs.
    pub(crate) fn all_us(&self, members: &[JointRows<'_>]) -> f32 {
        let all: Vec<usize> = (0..members.len()).collect();
        self.pass_us(members, &all)
    }

    /// Expected time of a pass over all members with `n` further rows, in µs, if these cost as much as theirs.
    pub(crate) fn longer_us(&self, members: &[JointRows<'_>], n: usize) -> f32 {
        let total = members.iter().map(|member| member.rows).sum::<usize>().max(1);
        let more =
            |member: &JointRows<'_>| member.costs.verify_us(total + n, 1) / member.costs.verify_us(total, 1);
        let share = |member: &JointRows<'_>| member.rows as f32 / total as f32;
        self.all_us(members) * members.iter().map(|member| share(member) * more(member)).sum::<f32>()
    }

    /// Expected time of a pass over a group, in µs.
    fn pass_us(&self, members: &[JointRows<'_>], group: &[usize]) -> f32 {
        let us = Self::us(members, group);
        if group.len() > 1 { self.log_factor.exp() * us } else { us }
    }

    fn rows(members: &[JointRows<'_>], group: &[usize]) -> usize {
        group.iter().map(|&i| members[i].rows).sum()
    }

    /// As [`pass_us`](Self::pass_us), without the factor.
    fn us(members: &[JointRows<'_>], group: &[usize]) -> f32 {
        let total = Self::rows(members, group).max(1);
        let share = |i: usize| members[i].rows as f32 / total as f32;
        group.iter().map(|&i| share(i) * members[i].costs.verify_us(total, 1)).sum()
    }
}

/// Rows of prompts in a pass with rows of generations that decode: as many as make it [`PROMPT_STRETCH`] times as long.
///
/// What a row costs depends on its position, and a pass has its own costs for a part. So the first pass takes the rows by the costs of
/// steps, and each later one corrects their number by the time of the pass before.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PromptPace {
    /// `None` before the first pass.
    rows: Option<f32>,
}

/// How much longer a pass may take with rows of prompts. A token may then take 1.5 times as long as without, with room for noise.
const PROMPT_STRETCH: f32 = 1.3;
/// Bounds of the correction by one pass, which carries little information if it was interrupted. They are alike, so that noise moves the
/// number neither way.
const PACE_FACTOR_MIN: f32 = 1.0 / 1.1;
const PACE_FACTOR_MAX: f32 = 1.1;
/// Rows that join at any price, so that a prompt gets on.
const PROMPT_ROWS_MIN: usize = 2;

impl PromptPace {
    /// Rows for the next pass, from [`PROMPT_ROWS_MIN`] to `rows_max`; `longer_us` is the expected time of the pass with so many further rows.
    pub(crate) fn rows(&self, rows_max: usize, longer_us: impl Fn(usize) -> f32) -> usize {
        let rows = self.rows.map_or_else(
            || {
                let limit_us = PROMPT_STRETCH * longer_us(0);
                (1..=rows_max).take_while(|&n| longer_us(n) <= limit_us).count()
            },
            |rows| rows as usize,
        );
        rows.max(PROMPT_ROWS_MIN).min(rows_max.max(1))
    }

    /// Learns from a pass with `n` rows of prompts that took `us`, and would have taken `quiet_us` without them.
    pub(crate) fn observe(&mut self, n: usize, quiet_us: f32, us: f32) {
        let factor = PROMPT_STRETCH * quiet_us / us;
        // Fewer rows than wanted say nothing about as many.
        let wanted = self.rows.unwrap_or(n as f32).max(PROMPT_ROWS_MIN as f32);
        if factor.is_finite() && (n >= wanted as usize || factor < 1.0) {
            let rows = wanted.min(n as f32 + 1.0) * factor.clamp(PACE_FACTOR_MIN, PACE_FACTOR_MAX);
            self.rows = Some(rows.max(PROMPT_ROWS_MIN as f32));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members<'a>(costs: &'a CostProfile, rows: &[usize]) -> Vec<JointRows<'a>> {
        rows.iter().map(|&rows| JointRows { costs, rows, rows_max: 64 }).collect()
    }

    fn groups(costs: &[(usize, f32)], rows: &[usize]) -> Vec<Vec<usize>> {
        let costs = CostProfile::from_measurements(costs);
        JointCosts::default().groups(&members(&costs, rows))
    }

    #[test]
    fn rows_join_where_reading_the_weights_is_the_cost() {
        let reads = [(1, 100.0), (8, 120.0), (64, 300.0)];
        assert_eq!(groups(&reads, &[1, 1, 1, 1]), [vec![0, 1, 2, 3]]);
        assert_eq!(groups(&reads, &[8, 1, 20]), [vec![0, 1, 2]]);
    }

    #[test]
    fn rows_stay_apart_where_a_longer_batch_costs_more_than_two() {
        // Beyond four rows a backend is three times as slow.
        let cliff = [(1, 50.0), (4, 100.0), (5, 400.0), (64, 5000.0)];
        assert_eq!(groups(&cliff, &[1, 1, 1, 1]), [vec![0, 1, 2, 3]]);
        assert_eq!(groups(&cliff, &[3, 3, 1]), [vec![0, 2], vec![1]]);
    }

    #[test]
    fn a_group_fits_the_buffers_of_its_first() {
        let costs = CostProfile::from_measurements(&[(1, 100.0), (64, 120.0)]);
        let mut members = members(&costs, &[4, 8, 4]);
        members[0].rows_max = 8;
        assert_eq!(JointCosts::default().groups(&members), [vec![0, 2], vec![1]]);
    }

    #[test]
    fn rows_of_prompts_lengthen_a_pass_by_a_third() {
        let costs = CostProfile::from_measurements(&[(1, 100.0), (2, 105.0), (64, 409.0)]);
        let members = members(&costs, &[1]);
        let joint = JointCosts::default();
        let mut pace = PromptPace::default();
        let rows = |pace: &PromptPace| pace.rows(200, |n| joint.longer_us(&members, n));
        assert_eq!(rows(&pace), 6);
        // Rows of the prompt cost three times as much as expected, then little.
        for (row_us, expected) in [(15.0, 1..=3), (1.0, 25..=35)] {
            for _ in 0..60 {
                let n = rows(&pace);
                pace.observe(n, 100.0, 100.0 + row_us * n as f32);
            }
            assert!(expected.contains(&rows(&pace)), "{row_us}: {}", rows(&pace));
        }
        // The last rows of a prompt are few, and an interrupted pass is one of many.
        let before = rows(&pace);
        pace.observe(1, 100.0, 100.0);
        assert_eq!(rows(&pace), before);
        pace.observe(before, 100.0, 1e6);
        assert!(rows(&pace) >= before / 2);
        pace.observe(before, f32::NAN, 0.0);
        assert_eq!(pace.rows(3, |_| 0.0), 3);
        assert_eq!(PromptPace::default().rows(0, |_| 1.0), 1);
    }

    #[test]
    fn a_shared_pass_costs_the_attention_of_each() {
        // Twice the cost per row at the longer context.
        let short = CostProfile::from_measurements(&[(1, 110.0), (2, 120.0), (64, 740.0)]);
        let long = CostProfile::from_measurements(&[(1, 120.0), (2, 140.0), (64, 1380.0)]);
        let members = [&short, &long].map(|costs| JointRows { costs, rows: 1, rows_max: 64 });
        let us = JointCosts::default().pass_us(&members, &[0, 1]);
        assert!((us - 130.0).abs() < 1e-3, "{us}");
    }

    #[test]
    fn all_share_a_pass_where_two_would_not() {
        let costs = CostProfile::from_measurements(&[(1, 100.0), (4, 110.0), (64, 900.0)]);
        let members = members(&costs, &[1, 1, 1, 1]);
        // A shared pass takes 2.1 times as long as rows of one generation.
        let joint = JointCosts { log_factor: 2.1f32.ln() };
        assert_eq!(joint.groups(&members), [vec![0, 1, 2, 3]]);
        assert_eq!(joint.groups(&members[..2]).len(), 2);
    }

    #[test]
    fn a_slower_device_does_not_keep_generations_apart() {
        let costs = CostProfile::from_measurements(&[(1, 100.0), (2, 110.0), (64, 800.0)]);
        let mut joint = JointCosts::default();
        // Everything takes 2.5 times as long, which shared passes tell first.
        while joint.groups(&members(&costs, &[1, 1])).len() == 1 {
            joint.observe(&members(&costs, &[1, 1]), 275.0);
        }
        let mut alone = costs.clone();
        let mut n_apart = 0;
        while joint.groups(&members(&alone, &[1, 1])).len() == 2 {
            for _ in 0..2 {
                let before_us = alone.verify_us(1, 1);
                alone.observe(1, 1, 250.0);
                joint.observe_alone(2, alone.verify_us(1, 1) / before_us);
            }
            n_apart += 1;
            assert!(n_apart < 12, "they share again once they have learnt that they are slower too");
        }
    }

    #[test]
    fn passes_that_last_longer_than_expected_end_and_are_tried_again() {
        let costs = CostProfile::from_measurements(&[(1, 100.0), (2, 110.0), (64, 800.0)]);
        let members = members(&costs, &[1, 1]);
        let mut joint = JointCosts::default();
        let mut n_shared = 0;
        while joint.groups(&members).len() == 1 {
            joint.observe(&members, 330.0);
            n_shared += 1;
            assert!(n_shared < 20, "they part");
        }
        let mut n_apart = 1;
        loop {
            let groups = joint.groups(&members);
            if groups.len() == 1 {
                break;
            }
            joint.forget();
            n_apart += 1;
            assert!(n_apart < 200, "they try again");
        }
        assert!(n_apart > 5, "{n_apart}");
        (0..40).for_each(|_| joint.observe(&members, 110.0));
        assert_eq!(joint.groups(&members).len(), 1);
    }
}
