//! One output: the decoding loop, as an iterator of events.

mod exchange;
mod start;
#[cfg(feature = "stream")]
mod stream;
mod together;

use std::borrow::BorrowMut;
use std::fmt;
use std::ops::ControlFlow;
use std::panic;

use thiserror::Error;

use crate::cancel::CancelToken;
use crate::draft::CostCorrection;
use crate::energy::EnergyStats;
use crate::engine::error::GenerateProblem;
use crate::engine::event::{Event, FinishReason, Summary, TokenEvent};
use crate::engine::options::{DraftRows, GenerateOptions};
use crate::engine::run::Run;
use crate::engine::session::Session;
use crate::engine::stats::{Stats, Stopwatch, StreamingStats};
use crate::engine::step::joins_any;
use crate::error::GenerateError;
use crate::face::internals;
use crate::kernels::FloatEnv;
use refrain_files::ErrorKind;

pub use exchange::Exchange;
#[cfg(feature = "stream")]
pub use stream::EventStream;
pub use together::step_together;

/// A running generation: an iterator of [`Event`]s that ends after [`Event::Done`] or an error.
///
/// `S` is the session handle: [`Session::generate`] borrows the session (`&mut Session`),
/// [`OwnedGeneration::new`] owns it, and
/// [`into_session`](OwnedGeneration::into_session) returns it. Both are `Send`.
///
/// Tokens are committed to the session step by step. After a generation is dropped or cancelled, the session
/// contains exactly the tokens whose events were taken, as after plain decoding. If a draft source or a
/// logits processor panics, the generation yields nothing more, and the session stays usable in the same
/// state.
pub struct Generation<S: BorrowMut<Session> = Session> {
    /// Present until [`OwnedGeneration::into_session`] takes it.
    session: Option<S>,
    run: Run,
    progress: Progress,
}

/// A generation that owns its session: `Send + 'static`, for a struct, another thread, or a foreign caller.
pub type OwnedGeneration = Generation<Session>;

/// What a draft source or a logits processor has panicked with.
struct Panic(Box<dyn std::any::Any + Send>);

/// Progress of a generation.
enum Progress {
    /// The prompt is not yet prefilled.
    Prompt,
    /// Steps follow.
    Steps,
    /// A prefill or step is running, or has panicked.
    Working,
    /// A stage of a step has panicked; the next item resumes the panic.
    Panicked(Panic),
    /// The last item is this error, after the committed tokens are taken.
    Failed(GenerateError),
    /// The last item is this summary, after the committed tokens are taken.
    Done(Box<Summary>),
    /// The last item was taken.
    Ended,
}

/// A generation could not start; contains the session and the error.
#[derive(Debug, Error)]
#[error("{error}")]
#[non_exhaustive]
pub struct RefusedGeneration {
    /// The session, in the same state as after a failed [`Session::generate`].
    pub session: Box<Session>,
    /// Why the generation could not start.
    #[source]
    pub error: GenerateError,
}

impl Session {
    /// Starts a generation; the iterator yields its output.
    ///
    /// # Errors
    /// Options out of range, or an empty prompt: the session is unchanged. Turns that the template cannot
    /// encode or that do not fit: the newest turn is removed, so a shorter one can replace it.
    pub fn generate(&mut self, options: GenerateOptions) -> Result<Generation<&mut Session>, GenerateError> {
        let run = start::start(self, options)?;
        Ok(Generation { session: Some(self), run, progress: Progress::Prompt })
    }
}

impl OwnedGeneration {
    /// As [`Session::generate`], with a generation that owns the session.
    ///
    /// # Errors
    /// As [`Session::generate`], with the session in the error.
    #[allow(clippy::result_large_err, reason = "the generation that it stands for is larger")]
    pub fn new(mut session: Session, options: GenerateOptions) -> Result<Self, RefusedGeneration> {
        match start::start(&mut session, options) {
            Ok(run) => Ok(Self { session: Some(session), run, progress: Progress::Prompt }),
            Err(error) => Err(RefusedGeneration { session: Box::new(session), error }),
        }
    }
}

impl<S: BorrowMut<Session>> Generation<S> {
    /// The callback form: calls `on_token` for each token until the output ends, or cancels if the callback
    /// breaks.
    ///
    /// # Errors
    /// As the iterator's items.
    pub fn run(
        mut self,
        mut on_token: impl FnMut(&TokenEvent) -> ControlFlow<()>,
    ) -> Result<Summary, GenerateError> {
        loop {
            match self.next() {
                Some(Ok(Event::Token(token))) => {
                    if on_token(&token).is_break() {
                        self.stop();
                    }
                }
                Some(Ok(Event::Done(summary))) => return Ok(summary),
                Some(Err(error)) => return Err(error),
                None => return Err(GenerateProblem::Ended.into()),
            }
        }
    }

    /// The text of the tokens whose events were taken.
    pub fn text(&self) -> &str {
        self.run.output.text()
    }

    /// Statistics so far. Token and acceptance counts include only the tokens whose events were taken.
    pub fn stats(&self) -> &Stats {
        &self.run.stats
    }

    /// Whether the next event needs a forward pass: of the prompt, or of a step. If not, `next` returns without
    /// computing: it takes an event of the newest step, or the end of the output.
    pub fn awaits_pass(&self) -> bool {
        self.run.events.is_empty()
            && match self.progress {
                Progress::Prompt => true,
                Progress::Steps => self.run.output.finish().is_none(),
                _ => false,
            }
    }

    /// A token that cancels this generation only, from any thread.
    pub fn cancel_token(&self) -> CancelToken {
        self.run.cancel.clone()
    }

    /// Releases memory as [`Session::release_memory`] does, for a generation that waits between two events. If the session has
    /// given up its KV cache, the next step computes the text again first.
    pub fn release_memory(&mut self) {
        let session = self.session.as_mut().expect("the session is here").borrow_mut();
        session.release_memory();
        let is_whole = session.target.kv.len() + 1 >= session.conversation.tokens.len();
        if !is_whole && matches!(self.progress, Progress::Steps) && self.run.output.finish().is_none() {
            self.progress = Progress::Prompt;
        }
    }

    /// Prefills the prompt now instead of at the first event, and calls `progress` with (tokens done, tokens
    /// to do) after each chunk. Does nothing if the prompt is already prefilled.
    ///
    /// # Errors
    /// As [`Session::prefill`]. After any error except a cancellation, a further call continues after the
    /// finished chunks.
    pub fn prefill(&mut self, progress: impl FnMut(u64, u64)) -> Result<(), GenerateError> {
        if !matches!(self.progress, Progress::Prompt) {
            return Ok(());
        }
        let Self { session, run, .. } = self;
        let session = session.as_mut().expect("the session is here").borrow_mut();
        let mut watch = Stopwatch::start();
        let mut calibrate_us = 0.0;
        self.progress = Progress::Working;
        let prefilled = session.prefill_tokens(&run.cancel, progress, &mut calibrate_us);
        self.progress = Progress::Prompt;
        if run.stats.steps == 0 {
            run.flows[1] = session.shared.flow();
        }
        let time_us = &mut run.stats.time_us;
        watch.lap(&mut time_us.prefill);
        time_us.calibrate += calibrate_us;
        time_us.prefill -= calibrate_us;
        prefilled?;
        self.progress = Progress::Working;
        session.prime(&run.cancel);
        self.progress = Progress::Steps;
        session.drafting.account.primed(watch.lap(&mut run.stats.time_us.prime));
        if run.stats.steps == 0 {
            run.joules = session.shared.joules();
        }
        Ok(())
    }

    internals! {
        /// Prefills a chunk of the prompt, or if the pass of a streamed model may be `long`, as many tokens as it can have; then calls
        /// `progress` meanwhile with (tokens done, tokens to do). Returns whether the prompt is prefilled.
        ///
        /// # Errors
        /// As [`prefill`](Self::prefill).
        fn prefill_part(
            &mut self,
            long: bool,
            progress: &mut dyn FnMut(usize, usize),
        ) -> Result<bool, GenerateError> {
            if !matches!(self.progress, Progress::Prompt) {
                return Ok(true);
            }
            let Self { session, run, .. } = self;
            let session = session.as_mut().expect("the session is here").borrow_mut();
            let mut watch = Stopwatch::start();
            self.progress = Progress::Working;
            let passed = match long {
                true => session.prefill_pass(&run.cancel, progress),
                false => session.prefill_chunk(&run.cancel),
            };
            self.progress = Progress::Prompt;
            watch.lap(&mut run.stats.time_us.prefill);
            let (done, total) = passed?;
            if done == total {
                self.prefill(|_, _| {})?;
            }
            Ok(done == total)
        }

        /// Whether its rows may share passes with generations of the same engine and the same options.
        fn shares_passes(&self) -> bool {
            self.session.as_ref().is_some_and(|session| {
                let session: &Session = session.borrow();
                joins_any(session, std::iter::once(session))
            })
        }

        /// The tokens of the prompt that are computed, and those that are to be; `None` once it is prefilled.
        fn prompt_progress(&self) -> Option<(usize, usize)> {
            let session: &Session = self.session.as_ref()?.borrow();
            let is_prompt = matches!(self.progress, Progress::Prompt);
            is_prompt.then(|| (session.target.kv.len(), session.conversation.tokens.len() - 1))
        }
    }

    /// Runs the next step, or ends the output if it is complete.
    fn advance(&mut self) {
        // The app's processors and sources too compute in the default environment.
        let _env = FloatEnv::ieee();
        let result = match self.progress {
            Progress::Prompt => self.prefill(|_, _| {}),
            Progress::Steps if self.run.output.finish().is_some() => return self.finish(String::new()),
            Progress::Steps => return self.step_alone(),
            _ => return,
        };
        self.settle(result);
    }

    /// Takes the result of a prefill or a step.
    fn settle(&mut self, result: Result<(), GenerateError>) {
        match result {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Cancelled => self.stop(),
            Err(error) => self.progress = Progress::Failed(error),
        }
    }

    /// Ends the output early; the session keeps the tokens that the app has taken.
    fn stop(&mut self) {
        if self.run.events.is_empty() && self.run.output.finish().is_some() {
            return; // The output ended with the token taken last.
        }
        self.forget_untaken();
        let held = self.run.output.cancel();
        self.finish(held);
    }

    /// Rolls back the tokens whose events were not taken. The session then holds exactly the taken tokens, as
    /// after plain decoding.
    fn forget_untaken(&mut self) {
        let Self { session, run, .. } = self;
        if run.events.is_empty() {
            return;
        }
        let session = session.as_mut().expect("the session is here").borrow_mut();
        run.count_step();
        let n_kept = session.conversation.tokens.len() - run.events.len();
        run.events.clear();
        session.truncate_tokens(n_kept);
        run.output.rewind(&session.shared.tokenizer, &session.conversation.tokens[run.prompt_len..]);
    }

    /// Completes the output: updates the learned state and makes the summary the last item.
    fn finish(&mut self, held: String) {
        let Self { session, run, .. } = self;
        let session = session.as_mut().expect("the session is here").borrow_mut();
        let finish = run.output.finish().unwrap_or(FinishReason::Cancelled);
        run.stats.rejections = run.rejections.finish();
        session.drafting.sources.guarded(|sources| {
            for (stats, source) in run.stats.sources.iter_mut().zip(sources) {
                let before = stats.computed.take();
                stats.computed =
                    source.computing().map(|source| source.computed()).map(|all| match &before {
                        Some(before) => all.since(before),
                        None => all,
                    });
            }
        });
        let [start, prefilled] = run.flows;
        let streaming = |streamed| StreamingStats::new(streamed, start, prefilled, run.stats.tokens);
        run.stats.streaming = session.shared.model.streamed().map(streaming);
        run.stats.energy = EnergyStats::between(run.joules, session.shared.joules(), run.stats.tokens);
        let segments = run.end_text(&held);
        close(session, run);
        let summary = Summary { finish, text: held, segments, seed: run.seed, stats: run.stats.clone() };
        self.progress = Progress::Done(Box::new(summary));
    }

    /// Ends the generation without a summary: it was dropped early, or an error or panic occurred.
    fn abandon(&mut self) {
        self.forget_untaken();
        let Self { session, run, .. } = self;
        let session = session.as_mut().expect("the session is here").borrow_mut();
        if run.output.finish().is_none() {
            let held = run.output.cancel();
            run.end_text(&held);
        }
        close(session, run);
        self.progress = Progress::Ended;
    }
}

impl OwnedGeneration {
    /// Ends the generation after the last taken token and returns the session.
    pub fn into_session(mut self) -> Session {
        self.end_early();
        self.session.take().expect("the session is taken once")
    }
}

impl<S: BorrowMut<Session>> Generation<S> {
    fn end_early(&mut self) {
        if !matches!(self.progress, Progress::Done(_) | Progress::Ended) {
            self.abandon();
        }
    }
}

/// Updates the learned state, and adds the output to history and conversation.
fn close(session: &mut Session, run: &Run) {
    session.shared.carried().put(session.drafting.account.end());
    let Session { shared, options, target, drafting, .. } = &*session;
    let costs = drafting.costs.clone().with_batch_lens(&[]);
    let learned = run.learned.clone().with_drafting(drafting.builder.table(), drafting.builder.times());
    // Shared passes teach no costs.
    let n_steps = run.stats.steps.saturating_sub(run.stats.shared_steps);
    let learned = match session.profile() {
        // Times of pruned batches do not apply to whole batches, and fixed numbers of rows do not use costs.
        _ if target.prunes() || options.policy.rows != DraftRows::Auto => learned,
        Some(profile) => {
            // The costs have followed the context. The profile predicts what that changes, so it is not a change of the device.
            let measured = profile.costs(drafting.context, options.projection_rows);
            learned.with_correction(CostCorrection::between(&measured, &costs), n_steps)
        }
        None => learned.with_costs(session.costs_moved(costs, drafting.context, 0), n_steps),
    };
    shared.learned().merge(&run.learned, &learned);
    if run.output.n_tokens() > 0 {
        // Memory pressure has released what would grow again here.
        if session.options.history && !session.is_dormant() {
            let output = &session.conversation.tokens[run.prompt_len..];
            session.shared.history.append(&session.options.namespace, output);
        }
        session.conversation.finish_turn(
            &session.shared.tokenizer,
            &run.answer.answer,
            &run.answer.reasoning,
        );
    }
    session.drafting.sources.end_generation();
}

impl<S: BorrowMut<Session>> Iterator for Generation<S> {
    type Item = Result<Event, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        if matches!(self.progress, Progress::Working) {
            self.abandon(); // A panic has ended the generation; tokens that were not taken are rolled back.
        }
        loop {
            if let Progress::Panicked(_) = self.progress
                && let Progress::Panicked(panic) = std::mem::replace(&mut self.progress, Progress::Working)
            {
                panic::resume_unwind(panic.0);
            }
            let Self { session, run, .. } = self;
            let session = session.as_mut().expect("the session is here").borrow_mut();
            if let Some(token) = run.take_token(&session.shared.tokenizer) {
                return Some(Ok(Event::Token(token)));
            }
            match std::mem::replace(&mut self.progress, Progress::Ended) {
                Progress::Ended => return None,
                Progress::Done(summary) => return Some(Ok(Event::Done(*summary))),
                Progress::Failed(error) => {
                    self.abandon();
                    return Some(Err(error));
                }
                progress => {
                    self.progress = progress;
                    self.advance();
                }
            }
        }
    }
}

impl<S: BorrowMut<Session>> Drop for Generation<S> {
    fn drop(&mut self) {
        if self.session.is_some() {
            self.end_early();
        }
    }
}

impl<S: BorrowMut<Session>> fmt::Debug for Generation<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Generation")
            .field("text", &self.text())
            .field("n_tokens", &self.run.stats.tokens)
            .finish_non_exhaustive()
    }
}
