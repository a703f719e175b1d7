//! Rows of prompts in the pass of a step: a prompt that is read while other generations decode joins their passes with a few rows at a
//! time, so that no token waits for a whole chunk of it.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Outcome;
use crate::engine::run::Run;
use crate::engine::session::Session;
use crate::error::GenerateError;
use crate::model::transformer::{ForwardError, Part};

/// A generation whose prompt is being read.
pub(in crate::engine) struct Prompt<'a> {
    session: &'a mut Session,
    run: &'a mut Run,
    /// The caller's number of the generation.
    place: usize,
    /// Positions of the rows in the pass at hand.
    positions: Range<usize>,
    outcome: Outcome,
}

impl<'a> Prompt<'a> {
    pub(in crate::engine) fn new(place: usize, session: &'a mut Session, run: &'a mut Run) -> Self {
        Self { session, run, place, positions: 0..0, outcome: Ok(Ok(())) }
    }

    /// The caller's number of the generation, and how its part of the step ended.
    pub(in crate::engine) fn into_outcome(self) -> (usize, Outcome) {
        (self.place, self.outcome)
    }

    /// Whether the prompt is one of this session's engine that may share its passes.
    pub(super) fn may_join(&self, session: &Session) -> bool {
        super::joint::joins_any(self.session, std::iter::once(session))
    }

    pub(super) fn n_rows(&self) -> usize {
        self.positions.len()
    }

    fn has_failed(&self) -> bool {
        !matches!(self.outcome, Ok(Ok(())))
    }

    fn fail(&mut self, error: ForwardError) {
        self.outcome = Ok(Err(GenerateError::from(error)));
    }

    /// Fills the batch with the next tokens of the prompt, at most `n_rows_max`.
    pub(super) fn begin(&mut self, n_rows_max: usize) {
        let Self { session, run, .. } = self;
        let is_first = !std::mem::replace(&mut run.reads_prompt, true);
        let begun =
            catch_unwind(AssertUnwindSafe(|| session.set_prompt_rows(n_rows_max, is_first, &run.cancel)));
        match begun {
            Ok(Ok(positions)) => self.positions = positions,
            Ok(Err(error)) => self.fail(error),
            Err(panic) => self.outcome = Err(panic),
        }
    }

    /// The part of the pass.
    pub(super) fn part(&mut self) -> Part<'_> {
        self.session.target.part(&self.run.cancel)
    }

    /// Ends the pass with its time, in µs.
    pub(super) fn end(&mut self, failure: Option<ForwardError>, us: f64) {
        if let Some(error) = failure {
            return self.fail(error);
        }
        self.run.stats.time_us.prefill += us;
        let Self { session, run, positions, .. } = self;
        let calibrate_us = &mut run.stats.time_us.calibrate;
        let ended = catch_unwind(AssertUnwindSafe(|| {
            session.commit_prompt_rows(positions.clone(), &run.cancel, calibrate_us)
        }));
        self.outcome = ended.map(|ended| ended.map_err(GenerateError::from));
    }
}

/// Gives the next rows of a pass to the prompts that may join it, in their order, and returns these prompts.
pub(super) fn join<'p, 'a>(
    prompts: &'p mut [Prompt<'a>],
    session: &Session,
    mut n_rows_max: usize,
) -> Vec<&'p mut Prompt<'a>> {
    let mut joining = Vec::new();
    for prompt in prompts.iter_mut().filter(|prompt| prompt.may_join(session) && !prompt.has_failed()) {
        if n_rows_max == 0 {
            break;
        }
        prompt.begin(n_rows_max);
        if prompt.n_rows() > 0 && !prompt.has_failed() {
            n_rows_max -= prompt.n_rows();
            joining.push(prompt);
        }
    }
    joining
}
