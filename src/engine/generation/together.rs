//! Steps of several generations whose rows share passes.

use std::borrow::BorrowMut;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Generation, Panic, Progress};
use crate::engine::session::Session;
use crate::engine::step::{Member, Outcome, SharedPasses, step};
use crate::error::GenerateError;
use crate::kernels::FloatEnv;

/// Runs the next step of several generations, with the rows of all in one forward pass where the measured costs say
/// that this takes less time than a pass for each. Afterwards each generation's `next` yields the events of its step
/// without computing.
///
/// A shared pass reads the weights once for all of its generations. Each output has the same bits as alone: a row
/// never depends on the rows of another generation.
///
/// - A generation that [awaits no pass](Generation::awaits_pass) is left as it is: events of its newest step have not
///   been taken, or its output has ended.
/// - A generation whose prompt is not prefilled is prefilled first. For prompts that may
///   not delay the others, an app calls [`Session::prefill`] before.
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
    for generation in
        generations.iter_mut().filter(|generation| matches!(generation.progress, Progress::Prompt))
    {
        let prefilled = catch_unwind(AssertUnwindSafe(|| generation.prefill(|_, _| {})));
        generation.settle_caught(prefilled);
    }
    let going = generations.iter_mut().enumerate().filter(|(_, generation)| generation.awaits_pass());
    let mut members: Vec<Member<'_>> = going.map(|(place, generation)| generation.member(place)).collect();
    let shared_passes = step(&mut members);
    let outcomes: Vec<_> = members.into_iter().map(Member::into_outcome).collect();
    for (place, outcome) in outcomes {
        generations[place].settle_caught(outcome);
    }
    shared_passes
}

impl<S: BorrowMut<Session>> Generation<S> {
    /// Runs a step of this generation alone: a group of one.
    pub(super) fn step_alone(&mut self) {
        let mut members = [self.member(0)];
        step(&mut members);
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
