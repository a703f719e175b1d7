//! CoordGen's calibration and reuse over another rule, for its Table 4.

use refrain::TokenId;
use refrain::drafting::{Anchor, Candidates, Cursor};

use super::SharedRows;
use super::calibration::Calibration;
use crate::rules::source::{Plan, Rule};

/// Maximum appended tokens: the longest draft of the paper.
const APPENDED_MAX: usize = 32;

/// Minimum probability of a calibrated path: half the probability of a token that reuse keeps, so that the second of
/// two equally likely tokens is drafted too.
const REACH_MIN: f32 = 0.15;

#[derive(Clone)]
pub(super) struct CoordGen<R> {
    base: R,
    calibration: Calibration,
    rows: SharedRows,
}

impl<R> CoordGen<R> {
    pub(super) fn new(base: R, rows: &SharedRows) -> Self {
        CoordGen { base, calibration: Calibration::default(), rows: rows.clone() }
    }
}

impl<R: Rule> Rule for CoordGen<R> {
    fn read(&mut self, committed: &[TokenId]) {
        self.base.read(committed);
        self.calibration.read(committed);
    }

    fn reset(&mut self) {
        self.base.reset();
        self.calibration.reset();
    }

    fn plan(&mut self, committed: &[TokenId], plan: &mut Plan) {
        self.base.plan(committed, plan);
        let rows = self.rows.lock();
        // The base's draft is one path, so its last node is its end.
        let n_room = APPENDED_MAX.saturating_sub(plan.len());
        let end = plan.len();
        plan.merge_path(end, &rows.segment()[..rows.segment().len().min(n_room)]);
        self.calibration.calibrate(0, rows.lists());
        drop(rows);
        self.plan_calibrated(plan);
    }

    fn memory_usage(&self) -> usize {
        self.base.memory_usage() + self.calibration.memory_usage() + self.rows.lock().memory_usage()
    }
}

/// A node whose successors by calibration are known.
struct Waiting {
    reach: f32,
    token: TokenId,
    parent: usize,
    next: Vec<Cursor>,
}

impl<R: Rule> CoordGen<R> {
    /// Fills the plan with the calibrated tree, the most likely paths first, down to the threshold of reuse.
    fn plan_calibrated(&mut self, plan: &mut Plan) {
        let mut anchors: Vec<Anchor> = Vec::new();
        self.calibration.anchors(&mut anchors);
        let mut waiting: Vec<Waiting> = Vec::new();
        let mut candidates = Candidates::with_limit(64);
        let cursors: Vec<Cursor> = anchors.iter().map(|anchor| anchor.cursor).collect();
        let mut expand =
            |calibration: &mut Calibration, waiting: &mut Vec<Waiting>, at: &[Cursor], parent, reach| {
                candidates.clear();
                calibration.expand(at, &mut candidates);
                // Several places claim the same token, the best first. A node waits once: where a base's path goes on,
                // nodes that wait once for each place would double at every token.
                let first = waiting.len();
                for candidate in candidates.as_slice() {
                    match waiting[first..].iter_mut().find(|node| node.token == candidate.token) {
                        Some(node) => node.next.push(candidate.next),
                        None => waiting.push(Waiting {
                            reach: reach * candidate.probability,
                            token: candidate.token,
                            parent,
                            next: vec![candidate.next],
                        }),
                    }
                }
            };
        expand(&mut self.calibration, &mut waiting, &cursors, 0, 1.0);
        let likeliest = |waiting: &[Waiting]| {
            let reaches = waiting.iter().enumerate().map(|(i, node)| (i, node.reach));
            reaches.reduce(|best, other| if other.1 > best.1 { other } else { best }).map(|best| best.0)
        };
        while let Some(best) = likeliest(&waiting) {
            let Waiting { reach, token, parent, next } = waiting.swap_remove(best);
            if reach < REACH_MIN {
                return;
            }
            let Some(node) = plan.merge(parent, token, 1.0) else { return };
            expand(&mut self.calibration, &mut waiting, &next, node, reach);
        }
    }
}
