//! Steps of several generations whose rows share passes.

use std::borrow::{Borrow, BorrowMut};
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Generation, Panic, Progress};
use crate::engine::session::Session;
use crate::engine::step::{Member, Outcome, Prompt, SharedPasses, joins_any, step};
use crate::error::GenerateError;
use crate::kernels::FloatEnv;

/// Runs the next step of several generations, with the rows of all in one forward pass where the measured costs say
/// that this takes less time than a pass for each. Afterwards the `next` of each generation with a step yields its events
/// without computing.
///
/// A shared pass reads the weights once for all of its generations. Each output has the same bits as alone: a row
/// never depends on the rows of another generation.
///
/// - A generation that [awaits no pass](Generation::awaits_pass) is left as it is: events of its newest step have not
///   been taken, or its output has ended.
/// - The prompt of a generation that has not begun joins the steps of others with as many rows as make a pass about 1.3 times
///   as long, so that it delays them little; the generation then still awaits a pass. If no other generation can share its pass with
///   them, prompts are prefilled as a whole first.
/// - Generations of one engine share passes. A generation of another engine, of a model of static graphs, or with a
///   pruned session ([`SessionOptions::pruning`](crate::SessionOptions::pruning) and a predictor) runs its step alone.
///
/// Each generation ends for itself. The `next` of a generation whose step failed yields its error, and that of a
/// cancelled one its summary; the rows of the others are computed to the end. If a draft source or a logits processor
/// panics, the `next` of its generation resumes the panic.
///
/// Returns the passes that were shared.
///
/// ```no_run
/// # use refrain::{Engine, EngineOptions, Event, GenerateOptions, OwnedGeneration, SessionOptions, SpecialTokens};
/// # let engine = Engine::open("model.gguf", EngineOptions::default())?;
/// let mut generations = Vec::new();
/// for text in ["The roof", "The tap"] {
///     let mut session = engine.session(SessionOptions::default())?;
///     session.append_text(text, SpecialTokens::AsText)?;
///     generations.push(OwnedGeneration::new(session, GenerateOptions::default())?);
/// }
/// while generations.iter().any(|generation| generation.awaits_pass()) {
///     refrain::step_together(&mut generations.iter_mut().collect::<Vec<_>>());
///     for generation in &mut generations {
///         while !generation.awaits_pass() {
///             match generation.next() {
///                 Some(Ok(Event::Token(token))) => print!("{}", token.text),
///                 Some(event) => drop(event?),
///                 None => break,
///             }
///         }
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn step_together<S: BorrowMut<Session>>(generations: &mut [&mut Generation<S>]) -> SharedPasses {
    // The app's processors and sources too compute in the default environment.
    let _env = FloatEnv::ieee();
    let joining: Vec<bool> = {
        let sessions: Vec<&Session> = generations.iter().filter_map(|it| it.stepping_session()).collect();
        let joins = |it: &&mut Generation<S>| {
            it.unread_prompt().is_some_and(|session| joins_any(session, sessions.iter().copied()))
        };
        generations.iter().map(joins).collect()
    };
    for (generation, joins) in generations.iter_mut().zip(&joining) {
        if matches!(generation.progress, Progress::Prompt) && !joins {
            let prefilled = catch_unwind(AssertUnwindSafe(|| generation.prefill(|_, _| {})));
            generation.settle_caught(prefilled);
        }
    }
    let (mut members, mut prompts) = (Vec::new(), Vec::new());
    for (place, generation) in generations.iter_mut().enumerate().filter(|(_, it)| it.awaits_pass()) {
        match joining[place] {
            true => prompts.push(generation.prompt(place)),
            false => members.push(generation.member(place)),
        }
    }
    let shared_passes = step(&mut members, &mut prompts);
    let of_members: Vec<_> = members.into_iter().map(Member::into_outcome).collect();
    let of_prompts: Vec<_> = prompts.into_iter().map(Prompt::into_outcome).collect();
    for (place, outcome) in of_members {
        generations[place].settle_caught(outcome);
    }
    for (place, outcome) in of_prompts {
        generations[place].settle_prompt(outcome);
    }
    shared_passes
}

impl<S: BorrowMut<Session>> Generation<S> {
    /// Runs a step of this generation alone: a group of one.
    pub(super) fn step_alone(&mut self) {
        let mut members = [self.member(0)];
        step(&mut members, &mut []);
        let [member] = members;
        let (_, outcome) = member.into_outcome();
        self.settle_caught(outcome);
    }

    /// This generation in a step that begins.
    fn member(&mut self, place: usize) -> Member<'_> {
        let Self { session, run, progress } = self;
        *progress = Progress::Working;
        Member::new(place, session.as_mut().expect("the session is here").borrow_mut(), run)
    }

    /// This generation's prompt in a step of others.
    fn prompt(&mut self, place: usize) -> Prompt<'_> {
        let Self { session, run, progress } = self;
        *progress = Progress::Working;
        Prompt::new(place, session.as_mut().expect("the session is here").borrow_mut(), run)
    }

    /// The session, if the generation awaits a step.
    fn stepping_session(&self) -> Option<&Session> {
        let session = self.session.as_ref().filter(|_| matches!(self.progress, Progress::Steps));
        session.filter(|_| self.awaits_pass()).map(Borrow::borrow)
    }

    /// The session, if tokens of the prompt are still to be computed.
    fn unread_prompt(&self) -> Option<&Session> {
        self.prompt_progress().filter(|(done, total)| done < total)?;
        self.session.as_ref().map(Borrow::borrow)
    }

    /// Takes the result of a part of the prompt.
    fn settle_prompt(&mut self, result: Outcome) {
        if matches!(result, Ok(Ok(()))) {
            self.progress = Progress::Prompt;
            return;
        }
        self.settle_caught(result);
    }

    /// As [`settle`](Self::settle), for work whose panic was caught.
    fn settle_caught(&mut self, result: Outcome) {
        let settled = result.and_then(|result| catch_unwind(AssertUnwindSafe(|| self.settle_step(result))));
        if let Err(panic) = settled {
            self.progress = Progress::Panicked(Panic(panic));
        }
    }

    fn settle_step(&mut self, result: Result<(), GenerateError>) {
        if matches!(self.progress, Progress::Working) {
            self.progress = Progress::Steps;
        }
        self.settle(result);
    }
}
