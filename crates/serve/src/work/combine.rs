//! Steps of the requests that decode at the same time: their rows share passes where that is faster.
//!
//! A request's thread hands in its generation and waits. One of the waiting threads leads: it takes a turn at the gate, runs the steps of all
//! generations that wait ([`step_together`]), and hands them back. After a step all requests come back within microseconds, but the first one
//! would step alone. So the leader, once it has the turn, waits for the other requests that decode: at most [`WAIT_SHARE`] of the time of the
//! newest step, so that a slow request delays the others by no more.
//!
//! A request that reads its prompt hands in its generation too while others decode. It never leads and is not waited for: some rows of its
//! prompt join the step, as many as delay the others little. While nobody decodes, it reads chunks in turns of its own.
//!
//! Interactive and background requests have passes apart, because their turns are.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use refrain::{CancelToken, GenerateError, OwnedGeneration, step_together};
use refrain_assistant::{Gate, Priority};

use crate::metrics::Metrics;

/// The leader waits for a sixteenth of the newest step.
const WAIT_SHARE: u32 = 16;

/// Steps that a prompt waits for. Nobody steps if all requests that decode wait for their clients: then it is read in turns of its own.
const STEPS_AWAITED: u32 = 4;
/// How often a waiting request looks at its cancel token, which wakes nobody.
const CANCEL_POLL: Duration = Duration::from_millis(10);

/// The requests of one model that decode, and those whose prompts join their steps.
#[derive(Default)]
pub(crate) struct Combiner {
    interactive: Class,
    background: Class,
}

/// The requests of one priority.
#[derive(Default)]
struct Class {
    state: Mutex<State>,
    /// For the leader: a generation waits, or a request has stopped decoding.
    arrived: Condvar,
    /// For the others: generations were handed back, there is no leader any more, or nobody decodes any more.
    stepped: Condvar,
}

#[derive(Default)]
struct State {
    n_tickets: u64,
    n_decoding: usize,
    has_leader: bool,
    seats: Vec<Seat>,
    /// Time of the newest step.
    step_time: Duration,
}

/// A generation that was handed in.
struct Seat {
    ticket: u64,
    /// Whether it reads its prompt.
    reads: bool,
    content: Content,
}

enum Content {
    Waits(Box<OwnedGeneration>),
    /// The leader has it.
    Steps,
    HasStepped(Box<OwnedGeneration>),
}

/// A request while it reads its prompt.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    class: &'a Class,
    gate: &'a Gate,
    metrics: &'a Metrics,
    priority: Priority,
}

/// A request while it decodes.
pub(crate) struct Decoder<'a>(Reader<'a>);

impl Combiner {
    /// A request that begins to read its prompt.
    pub(crate) fn enter<'a>(
        &'a self,
        priority: Priority,
        gate: &'a Gate,
        metrics: &'a Metrics,
    ) -> Reader<'a> {
        let class = match priority {
            Priority::Interactive | Priority::Foreground => &self.interactive,
            Priority::Background => &self.background,
        };
        Reader { class, gate, metrics, priority }
    }
}

impl<'a> Reader<'a> {
    /// Computes the next part of the prompt: some rows in the next step of the requests that decode, or, if there are none, a pass in a turn
    /// of its own, which calls `progress` with the tokens that are computed and those that are to be.
    ///
    /// `None` if `cancel`, the token of this generation, was set before; the generation has then ended.
    ///
    /// # Errors
    /// As [`OwnedGeneration::prefill`], of a pass of its own. After a shared step, the generation's next event is the error.
    pub(crate) fn read(
        &self,
        generation: Box<OwnedGeneration>,
        cancel: &CancelToken,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Option<Result<Box<OwnedGeneration>, GenerateError>> {
        match self.read_with_others(generation, cancel)? {
            (generation, true) => Some(Ok(generation)),
            (mut generation, false) => {
                let turn = self.gate.enter(self.priority, cancel)?;
                // Whatever comes meanwhile waits for the background no longer than a chunk.
                let read = generation.prefill_part(self.priority != Priority::Background, progress);
                drop(turn);
                Some(read.map(|_| generation))
            }
        }
    }

    /// Waits for a step of the requests that decode; with the generation, whether a part of the prompt has joined one.
    fn read_with_others(
        &self,
        generation: Box<OwnedGeneration>,
        cancel: &CancelToken,
    ) -> Option<(Box<OwnedGeneration>, bool)> {
        let class = self.class;
        let mut state = class.lock();
        if state.n_decoding == 0 || !generation.shares_passes() {
            return Some((generation, false));
        }
        let ticket = state.hand_in(generation, true);
        let until = Instant::now() + CANCEL_POLL + STEPS_AWAITED * state.step_time;
        loop {
            let seat = state.seat(ticket);
            let ends = cancel.is_cancelled() || state.n_decoding == 0 || Instant::now() >= until;
            match &state.seats[seat].content {
                Content::HasStepped(_) => return Some((state.take_back(seat)?, true)),
                Content::Waits(_) if ends => {
                    let generation = state.take_back(seat)?;
                    drop(state);
                    return (!cancel.is_cancelled()).then_some((generation, false));
                }
                _ => {
                    let waited = class.stepped.wait_timeout(state, CANCEL_POLL);
                    (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// The request begins to decode.
    pub(crate) fn decode(self) -> Decoder<'a> {
        self.class.lock().n_decoding += 1;
        Decoder(self)
    }
}

impl Decoder<'_> {
    /// Runs the next step of a generation in a turn of the gate, with those of other requests. Its next events then need no turn, until it
    /// [awaits a pass](OwnedGeneration::awaits_pass) again.
    ///
    /// `None` if `cancel`, the token of this generation, was set before the step; the generation has then ended.
    pub(crate) fn step(
        &self,
        generation: Box<OwnedGeneration>,
        cancel: &CancelToken,
    ) -> Option<Box<OwnedGeneration>> {
        let class = self.0.class;
        let mut state = class.lock();
        let ticket = state.hand_in(generation, false);
        class.arrived.notify_one();
        loop {
            let seat = state.seat(ticket);
            match &state.seats[seat].content {
                Content::HasStepped(_) => return state.take_back(seat),
                Content::Waits(_) if cancel.is_cancelled() => {
                    let ended = state.take_back(seat);
                    drop(state);
                    drop(ended);
                    return None;
                }
                Content::Waits(_) if !state.has_leader => {
                    state.has_leader = true;
                    drop(state);
                    self.lead(cancel);
                    state = class.lock();
                }
                _ => {
                    let waited = class.stepped.wait_timeout(state, CANCEL_POLL);
                    (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    /// Runs the steps of all generations that wait. Without a turn, because `cancel` was set, another request leads.
    fn lead(&self, cancel: &CancelToken) {
        let Reader { class, gate, metrics, priority } = self.0;
        let _leading = Leading(class);
        let Some(turn) = gate.enter(priority, cancel) else { return };
        let mut taken = class.gather();
        if taken.is_empty() {
            return;
        }
        let since = Instant::now();
        let mut generations: Vec<&mut OwnedGeneration> =
            taken.iter_mut().map(|(_, generation)| &mut **generation).collect();
        // The next event of a generation that panicked tells it; a panic of the pass itself has ended all.
        let passes = catch_unwind(AssertUnwindSafe(|| step_together(&mut generations)));
        let step_time = since.elapsed();
        drop(turn);
        metrics.add_shared(&passes.unwrap_or_default());
        class.hand_back(taken, step_time);
    }
}

impl Drop for Decoder<'_> {
    fn drop(&mut self) {
        let Reader { class, .. } = self.0;
        class.lock().n_decoding -= 1;
        class.arrived.notify_one();
        // Nobody may be left whose steps prompts can join.
        class.stepped.notify_all();
    }
}

/// The lead; dropping it, also by unwinding, lets another request lead.
struct Leading<'a>(&'a Class);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        self.0.lock().has_leader = false;
        self.0.stepped.notify_all();
    }
}

impl Class {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code that can panic runs under the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all requests that decode have handed in their generations, or a moment; takes those that are not cancelled, and those
    /// that read their prompts.
    fn gather(&self) -> Vec<(u64, Box<OwnedGeneration>)> {
        let mut state = self.lock();
        let until = Instant::now() + state.step_time / WAIT_SHARE;
        while state.n_waiting() < state.n_decoding {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                break;
            }
            (state, _) = self.arrived.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner);
        }
        state.take_waiting()
    }

    fn hand_back(&self, taken: Vec<(u64, Box<OwnedGeneration>)>, step_time: Duration) {
        let mut state = self.lock();
        state.step_time = step_time;
        for (ticket, generation) in taken {
            let seat = state.seats.iter_mut().find(|seat| seat.ticket == ticket);
            seat.expect("its request waits").content = Content::HasStepped(generation);
        }
    }
}

impl State {
    fn hand_in(&mut self, generation: Box<OwnedGeneration>, reads: bool) -> u64 {
        self.n_tickets += 1;
        self.seats.push(Seat { ticket: self.n_tickets, reads, content: Content::Waits(generation) });
        self.n_tickets
    }

    fn seat(&self, ticket: u64) -> usize {
        self.seats.iter().position(|seat| seat.ticket == ticket).expect("it is handed in")
    }

    /// The generation of a seat, which becomes free; `None` if the leader has it.
    fn take_back(&mut self, seat: usize) -> Option<Box<OwnedGeneration>> {
        match self.seats.swap_remove(seat).content {
            Content::Waits(generation) | Content::HasStepped(generation) => Some(generation),
            Content::Steps => None,
        }
    }

    /// Requests that decode and wait.
    fn n_waiting(&self) -> usize {
        let waits = |seat: &&Seat| !seat.reads && matches!(seat.content, Content::Waits(_));
        self.seats.iter().filter(waits).count()
    }

    fn take_waiting(&mut self) -> Vec<(u64, Box<OwnedGeneration>)> {
        let steps = |seat: &Seat| match &seat.content {
            Content::Waits(generation) => !seat.reads && !generation.cancel_token().is_cancelled(),
            Content::Steps | Content::HasStepped(_) => false,
        };
        if !self.seats.iter().any(steps) {
            // Prompts alone would be read as a whole.
            return Vec::new();
        }
        // The prompt that came first joins first.
        self.seats.sort_unstable_by_key(|seat| seat.ticket);
        let take = |seat: &mut Seat| match std::mem::replace(&mut seat.content, Content::Steps) {
            Content::Waits(generation) if !generation.cancel_token().is_cancelled() => {
                Some((seat.ticket, generation))
            }
            other => {
                seat.content = other;
                None
            }
        };
        self.seats.iter_mut().filter_map(take).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use refrain::{Engine, EngineOptions, Event, GenerateOptions, SessionOptions, SpecialTokens, TokenId};

    use super::*;

    fn engine() -> Engine {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
        Engine::open(path, EngineOptions::default()).unwrap()
    }

    fn generation(engine: &Engine, text: &str, cancel: &CancelToken) -> Box<OwnedGeneration> {
        let mut session =
            engine.session(SessionOptions { history: false, ..SessionOptions::default() }).unwrap();
        session.append_text(text, SpecialTokens::AsText).unwrap();
        session.prefill_chunk(cancel).unwrap();
        let options =
            GenerateOptions { max_tokens: 60, cancel: cancel.clone(), ..GenerateOptions::default() };
        Box::new(OwnedGeneration::new(session, options).unwrap())
    }

    /// The tokens of a generation, with `step` for each of its steps.
    fn tokens(
        mut generation: Box<OwnedGeneration>,
        mut step: impl FnMut(Box<OwnedGeneration>) -> Option<Box<OwnedGeneration>>,
    ) -> Option<Vec<TokenId>> {
        let mut tokens = Vec::new();
        loop {
            if generation.awaits_pass() {
                generation = step(generation)?;
            }
            match generation.next()?.unwrap() {
                Event::Token(token) => tokens.push(token.id),
                _ => return Some(tokens),
            }
        }
    }

    #[test]
    fn requests_at_once_equal_each_alone() {
        const TEXTS: [&str; 4] =
            ["The roof of the house", "A note about", "On Monday we", "The tap drips, so"];
        let engine = engine();
        let cancel = CancelToken::new();
        let alone = TEXTS.map(|text| tokens(generation(&engine, text, &cancel), Some));
        let (combiner, gate, metrics) = (Combiner::default(), Gate::default(), Metrics::default());
        let start = Barrier::new(TEXTS.len());
        thread::scope(|scope| {
            for (text, alone) in TEXTS.iter().zip(&alone) {
                let (engine, combiner, gate, metrics, start) = (&engine, &combiner, &gate, &metrics, &start);
                scope.spawn(move || {
                    let cancel = CancelToken::new();
                    let generation = generation(engine, text, &cancel);
                    let decoder = combiner.enter(Priority::Interactive, gate, metrics).decode();
                    start.wait();
                    let together = tokens(generation, |generation| decoder.step(generation, &cancel));
                    assert_eq!(together, *alone, "{text}");
                });
            }
        });
        let state = combiner.interactive.lock();
        assert!(state.seats.is_empty() && state.n_decoding == 0 && !state.has_leader);
    }

    /// A prompt that comes while another request decodes is read in its steps; one that is cancelled ends; both outputs are those of each alone.
    #[test]
    fn a_prompt_is_read_beside_a_request_that_decodes() {
        let engine = engine();
        let cancel = CancelToken::new();
        let text = "The roof of the house was repaired in May. ".repeat(20);
        let unread = |text: &str, cancel: &CancelToken| {
            let mut session =
                engine.session(SessionOptions { history: false, ..SessionOptions::default() }).unwrap();
            session.append_text(text, SpecialTokens::AsText).unwrap();
            let cancel = cancel.clone();
            let options = GenerateOptions { max_tokens: 20, cancel, ..GenerateOptions::default() };
            Box::new(OwnedGeneration::new(session, options).unwrap())
        };
        let alone = [tokens(unread("A note about", &cancel), Some), tokens(unread(&text, &cancel), Some)];
        let (combiner, gate, metrics) = (Combiner::default(), Gate::default(), Metrics::default());
        let enter = || combiner.enter(Priority::Interactive, &gate, &metrics);
        let decoder = enter().decode();
        // The prompt waits for the first step on a busy machine too.
        combiner.interactive.lock().step_time = Duration::from_secs(5);
        let (mut decoding, mut found) = (generation(&engine, "A note about", &cancel), Vec::new());
        decoding.prefill(|_, _| {}).unwrap();
        let n_joined = thread::scope(|scope| {
            let reads = scope.spawn(|| {
                let (reader, mut generation, mut n_joined) = (enter(), unread(&text, &cancel), 0);
                while generation.prompt_progress().is_some() {
                    generation = reader.read(generation, &cancel, &mut |_, _| {}).unwrap().unwrap();
                    n_joined += 1;
                }
                let decoder = reader.decode();
                (tokens(generation, |generation| decoder.step(generation, &cancel)), n_joined)
            });
            while combiner.interactive.lock().seats.is_empty() {
                thread::yield_now();
            }
            while found.len() < 20 {
                if decoding.awaits_pass() {
                    decoding = decoder.step(decoding, &cancel).unwrap();
                }
                let Some(Ok(Event::Token(token))) = decoding.next() else { break };
                found.push(token.id);
            }
            drop(decoder);
            let (read, n_joined) = reads.join().unwrap();
            assert_eq!(read, alone[1], "beside another request");
            n_joined
        });
        assert_eq!(found, alone[0].as_deref().unwrap()[..found.len()]);
        assert!(n_joined > 1, "in parts");
        // A request that decodes, but does not step: its client reads nothing.
        let decoder = enter().decode();
        let (mut alone_beside, reader) = (unread(&text, &cancel), enter());
        while alone_beside.prompt_progress().is_some() {
            alone_beside = reader.read(alone_beside, &cancel, &mut |_, _| {}).unwrap().unwrap();
        }
        // A cancelled request does not wait.
        let stopped = CancelToken::new();
        stopped.cancel();
        assert!(enter().read(unread(&text, &stopped), &stopped, &mut |_, _| {}).is_none());
        drop(decoder);
        let state = combiner.interactive.lock();
        assert!(state.seats.is_empty() && state.n_decoding == 0 && !state.has_leader);
    }

    /// A leader that is cancelled before its turn leaves the lead to the next one.
    #[test]
    fn a_cancelled_leader_hands_the_lead_on() {
        let engine = engine();
        let (combiner, gate, metrics) = (Combiner::default(), Gate::default(), Metrics::default());
        let turn = gate.enter(Priority::Background, &CancelToken::new()).unwrap();
        let (first, second) = (CancelToken::new(), CancelToken::new());
        thread::scope(|scope| {
            let begin = |text, cancel| {
                let generation = generation(&engine, text, cancel);
                let (combiner, gate, metrics) = (&combiner, &gate, &metrics);
                scope.spawn(move || {
                    let decoder = combiner.enter(Priority::Interactive, gate, metrics).decode();
                    decoder.step(generation, cancel)
                })
            };
            let n_seats = || combiner.interactive.lock().seats.len();
            let leads = begin("The roof", &first);
            while !combiner.interactive.lock().has_leader {
                thread::yield_now();
            }
            let waits = begin("The tap", &second);
            while n_seats() < 2 {
                thread::yield_now();
            }
            first.cancel();
            assert!(leads.join().unwrap().is_none());
            assert_eq!(n_seats(), 1);
            drop(turn);
            let stepped = waits.join().unwrap().expect("it was not cancelled");
            assert!(!stepped.awaits_pass(), "its events are there");
        });
    }

    #[test]
    fn a_leader_waits_for_requests_that_are_about_to_come_and_no_longer() {
        let class = Class::default();
        {
            let mut state = class.lock();
            state.n_decoding = 2;
            state.step_time = Duration::from_secs(3600) * WAIT_SHARE;
        }
        let engine = engine();
        let cancel = CancelToken::new();
        let (one, other) = (generation(&engine, "One", &cancel), generation(&engine, "Two", &cancel));
        thread::scope(|scope| {
            class.lock().hand_in(one, false);
            let leader = scope.spawn(|| class.gather().len());
            class.lock().hand_in(other, false);
            class.arrived.notify_one();
            assert_eq!(leader.join().unwrap(), 2, "within the hour");
        });
        // A third request that does not come.
        let mut state = class.lock();
        state.seats.clear();
        state.step_time = Duration::from_millis(1);
        state.n_decoding = 3;
        state.hand_in(generation(&engine, "Three", &cancel), false);
        drop(state);
        assert_eq!(class.gather().len(), 1);
    }
}
