//! Engines and sessions on one thread.

use std::mem;
use std::time::Duration;

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftModelOptions;
use refrain::{CancelToken, ErrorKind, FinishReason, Generation, Origin};
use refrain_kernels::Instant;
use serde::Serialize;

use crate::error::ErrorInfo;
use crate::events::{Event, JobResult, JobStats, Stage, Text, TextKind};
use crate::options::{EngineOptions, GenerateOptions, Message, SessionOptions, parse};

/// The name of a model in messages.
const MODEL: &str = "model";

/// A loaded model.
#[derive(Debug)]
pub struct Engine(refrain::Engine);

/// What an engine computes with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EngineInfo {
    /// The instruction set of the kernels.
    pub isa: &'static str,
    /// Why it is the slow one; `null` if it is not.
    pub notice: Option<String>,
    /// Bytes of the weights.
    pub memory_bytes: u64,
    /// The longest context of the model, in tokens.
    pub context_len: u64,
}

impl Engine {
    /// Loads a GGUF file or a packed file; `progress` is called with (bytes read, bytes to read) after each tensor. The bytes are
    /// freed at the end.
    ///
    /// # Errors
    /// Options, a damaged or unknown model, or a lack of memory.
    pub fn open(
        bytes: Vec<u8>,
        options: &str,
        progress: impl FnMut(u64, u64),
    ) -> Result<Self, Box<ErrorInfo>> {
        let options = parse::<EngineOptions>(options)?.for_library()?;
        Ok(Self(refrain::Engine::load(&checkpoint(bytes)?, options, progress)?))
    }

    /// Loads a smaller model of the same vocabulary, which drafts for sessions that are started from now on.
    ///
    /// # Errors
    /// As [`Engine::open`], and if the vocabularies differ.
    pub fn set_draft_model(&self, bytes: Vec<u8>) -> Result<(), Box<ErrorInfo>> {
        Ok(self.0.set_draft_model(&checkpoint(bytes)?, DraftModelOptions::default(), |_, _| {})?)
    }

    /// Starts a conversation.
    ///
    /// # Errors
    /// Options, or a lack of memory for the KV cache.
    pub fn session(&self, options: &str) -> Result<Session, Box<ErrorInfo>> {
        let options = parse::<SessionOptions>(options)?;
        let mut session = self.0.session(options.for_library()?)?;
        if let Some(system) = options.system {
            session.append_turn(refrain::Role::System, system)?;
        }
        Ok(Session { state: State::Idle(Box::new(session)), stats: JobStats::default() })
    }

    /// What it computes with.
    pub fn info(&self) -> EngineInfo {
        let device = self.0.device();
        EngineInfo {
            isa: device.isa().name(),
            notice: device.kernels_notice().map(|notice| notice.to_string()),
            memory_bytes: self.0.memory_usage(),
            context_len: self.0.config().context_len() as u64,
        }
    }
}

/// GGUF files begin with their name. Whatever else comes is opened as a packed file, which says what is wrong with it.
fn checkpoint(bytes: Vec<u8>) -> Result<Checkpoint, Box<ErrorInfo>> {
    let opened = match bytes.starts_with(b"GGUF") {
        true => Checkpoint::from_gguf_bytes(bytes.into(), MODEL),
        false => Checkpoint::from_packed_bytes(bytes.into(), MODEL),
    };
    Ok(opened?)
}

/// A conversation, and the generation that runs in it.
#[derive(Debug)]
pub struct Session {
    state: State,
    stats: JobStats,
}

enum State {
    Idle(Box<refrain::Session>),
    Running(Box<Running>),
    /// While a call moves the session; and behind a panic, after which the module is not called again.
    Moved,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Idle(_) => "Idle",
            Self::Running(_) => "Running",
            Self::Moved => "Moved",
        })
    }
}

struct Running {
    generation: Generation,
    cancel: CancelToken,
    is_prefilled: bool,
    /// The output so far.
    answer: String,
    reasoning: String,
}

impl Session {
    /// Appends turns, a JSON list of `{"role", "content"}`. Those before one that is refused stay.
    ///
    /// # Errors
    /// The JSON, a role, or a generation that runs.
    pub fn append(&mut self, messages: &str) -> Result<(), Box<ErrorInfo>> {
        let messages = parse::<Vec<Message>>(messages)?;
        let roles = messages.iter().map(Message::role).collect::<Result<Vec<_>, _>>()?;
        let session = self.idle()?;
        for (message, role) in messages.into_iter().zip(roles) {
            session.append_turn(role, message.content)?;
        }
        Ok(())
    }

    /// Starts a generation; [`Session::events`] runs it.
    ///
    /// # Errors
    /// Options; turns that do not fit the context, of which the newest is then removed; a generation that runs.
    pub fn start(&mut self, options: &str) -> Result<(), Box<ErrorInfo>> {
        let options = parse::<GenerateOptions>(options)?.for_library()?;
        self.idle()?;
        let State::Idle(session) = mem::replace(&mut self.state, State::Moved) else {
            unreachable!("it is idle")
        };
        match Generation::new(*session, options) {
            Ok(generation) => {
                let cancel = generation.cancel_token();
                let (answer, reasoning) = (String::new(), String::new());
                let running = Running { generation, cancel, is_prefilled: false, answer, reasoning };
                self.state = State::Running(Box::new(running));
                self.stats = JobStats::default();
                Ok(())
            }
            Err(refused) => {
                self.state = State::Idle(refused.session);
                Err(refused.error.into())
            }
        }
    }

    /// Computes for about `time`, at least one step, and returns the events. The first call computes the prompt. None if no
    /// generation runs.
    pub fn events(&mut self, time: Duration) -> Vec<Event> {
        let (mut events, start) = (Vec::new(), Instant::now());
        let State::Running(running) = &mut self.state else { return events };
        if !running.is_prefilled {
            running.is_prefilled = true;
            let mut newest = (0, 0);
            if let Err(error) = running.generation.prefill(|done, total| newest = (done, total)) {
                return self.end(events, Err(error.into()));
            }
            let (done, total) = newest;
            events.push(Event::Progress { stage: Stage::Prefill, done, total });
        }
        let mut has_stepped = false;
        loop {
            if running.generation.awaits_pass() {
                if has_stepped && start.elapsed() >= time {
                    self.stats = running.generation.stats().into();
                    return events;
                }
                has_stepped = true;
            }
            match running.generation.next() {
                Some(Ok(refrain::Event::Token(token))) => {
                    let drafted_by = match &token.origin {
                        Origin::Draft(name) => Some(name.to_string()),
                        _ => None,
                    };
                    running.push(&mut events, &token.segments, drafted_by.as_deref());
                }
                Some(Ok(refrain::Event::Done(summary))) => {
                    running.push(&mut events, &summary.segments, None);
                    let result = match summary.finish {
                        FinishReason::Cancelled => Err(cancelled()),
                        finish => Ok(JobResult {
                            text: mem::take(&mut running.answer),
                            reasoning: mem::take(&mut running.reasoning),
                            finish,
                            seed: summary.seed,
                            stats: JobStats::from(&summary.stats),
                        }),
                    };
                    return self.end(events, result);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return self.end(events, Err(error.into())),
                None => return self.end(events, Err(cancelled())),
            }
        }
    }

    /// Cancels the generation; the next batch of events has its end. The tokens that came stay in the conversation.
    pub fn cancel(&self) {
        if let State::Running(running) = &self.state {
            running.cancel.cancel();
        }
    }

    /// Counts and times of the newest generation, as of the newest batch.
    pub fn stats(&self) -> JobStats {
        self.stats
    }

    fn idle(&mut self) -> Result<&mut refrain::Session, Box<ErrorInfo>> {
        match &mut self.state {
            State::Idle(session) => Ok(session),
            _ => Err(ErrorInfo::busy()),
        }
    }

    fn end(&mut self, mut events: Vec<Event>, result: Result<JobResult, Box<ErrorInfo>>) -> Vec<Event> {
        if let State::Running(running) = mem::replace(&mut self.state, State::Moved) {
            self.stats = running.generation.stats().into();
            self.state = State::Idle(Box::new(running.generation.into_session()));
        }
        events.push(match result {
            Ok(result) => Event::Done { result: Box::new(result) },
            Err(error) => Event::Failed { error },
        });
        events
    }
}

fn cancelled() -> Box<ErrorInfo> {
    Box::new(ErrorInfo::new(ErrorKind::Cancelled, "cancelled"))
}

impl Running {
    /// Adds text to the output, and to the newest event if its kind and origin are the same.
    fn push(
        &mut self,
        events: &mut Vec<Event>,
        segments: &[(refrain::TextKind, String)],
        drafted_by: Option<&str>,
    ) {
        for (kind, text) in segments.iter().filter(|(_, text)| !text.is_empty()) {
            let kind = TextKind::from(*kind);
            match kind {
                TextKind::Answer => self.answer.push_str(text),
                TextKind::Reasoning => self.reasoning.push_str(text),
            }
            match events.last_mut() {
                Some(Event::Text(last)) if last.kind == kind && last.drafted_by.as_deref() == drafted_by => {
                    last.text.push_str(text);
                }
                _ => events.push(Event::Text(Text {
                    text: text.clone(),
                    kind,
                    drafted_by: drafted_by.map(str::to_owned),
                })),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: &[u8] = include_bytes!("../../../fixtures/target.gguf");
    const QUESTION: &str = r#"[{"role": "user", "content": "Answer the question from the notes.\n\n# Shed\nNadia has the key of the shed.\n\nQuestion: Who has the key of the shed?"}]"#;

    fn engine() -> Engine {
        Engine::open(TARGET.to_vec(), r#"{"measure_ms": 0}"#, |_, _| {}).unwrap()
    }

    /// All events, and the number of batches.
    fn run(session: &mut Session, time: Duration) -> (Vec<Event>, usize) {
        let (mut all, mut n) = (Vec::new(), 0);
        loop {
            let batch = session.events(time);
            if batch.is_empty() {
                return (all, n);
            }
            all.extend(batch);
            n += 1;
        }
    }

    fn text_of(events: &[Event]) -> String {
        let texts = events.iter().filter_map(|event| match event {
            Event::Text(text) => Some(text.text.as_str()),
            _ => None,
        });
        texts.collect()
    }

    #[test]
    fn an_answer_is_the_same_in_any_batches_and_with_any_drafts() {
        let engine = engine();
        let mut answers = Vec::new();
        for (options, ms) in [("", 0), ("", 10_000), (r#"{"drafting": "off"}"#, 5)] {
            let mut session = engine.session(options).unwrap();
            session.append(QUESTION).unwrap();
            session.start(r#"{"max_tokens": 40}"#).unwrap();
            let (events, n_batches) = run(&mut session, Duration::from_millis(ms));
            assert!(matches!(events[0], Event::Progress { done, total, .. } if done == total && total > 0));
            let Some(Event::Done { result }) = events.last() else { panic!("{events:?}") };
            assert_eq!(result.text, text_of(&events));
            assert!(!result.text.is_empty());
            assert!(n_batches == 1 || ms < 10_000, "{n_batches}");
            assert_eq!(session.stats(), result.stats);
            answers.push(result.text.clone());
            // The session goes on.
            session.append(r#"[{"role": "user", "content": "Where is it?"}]"#).unwrap();
            session.start(r#"{"max_tokens": 3}"#).unwrap();
            assert!(matches!(run(&mut session, Duration::ZERO).0.last(), Some(Event::Done { .. })));
        }
        assert!(answers.iter().all(|answer| *answer == answers[0]));
    }

    #[test]
    fn a_cancelled_answer_ends_and_its_session_goes_on() {
        let engine = engine();
        let mut session = engine.session("").unwrap();
        session.append(QUESTION).unwrap();
        session.start("").unwrap();
        assert_eq!(session.start("").unwrap_err().code, 33);
        assert_eq!(session.append(QUESTION).unwrap_err().kind, "busy");
        assert!(!text_of(&session.events(Duration::ZERO)).is_empty());
        session.cancel();
        let (events, _) = run(&mut session, Duration::ZERO);
        let Some(Event::Failed { error }) = events.last() else { panic!("{events:?}") };
        assert_eq!((error.code, error.kind), (10, "cancelled"));
        assert!(session.events(Duration::ZERO).is_empty());
        session.append(QUESTION).unwrap();
        session.start(r#"{"max_tokens": 2}"#).unwrap();
        assert!(matches!(run(&mut session, Duration::ZERO).0.last(), Some(Event::Done { .. })));
    }

    #[test]
    fn bad_input_is_an_error_with_its_place() {
        for bytes in [&b""[..], b"GGUF", b"not a model", &TARGET[..1000]] {
            let error = Engine::open(bytes.to_vec(), "", |_, _| {}).unwrap_err();
            assert_eq!(error.file.as_deref(), Some("model"), "{error}");
        }
        let engine = engine();
        assert_eq!(
            engine.session(r#"{"context_len": 1000000}"#).unwrap_err().field.as_deref(),
            Some("context_len")
        );
        let mut session = engine.session("").unwrap();
        assert_eq!(
            session.append(r#"[{"role": "robot", "content": ""}]"#).unwrap_err().field.as_deref(),
            Some("role")
        );
        assert_eq!(session.append("{}").unwrap_err().kind, "not_json");
        assert_eq!(
            session.start(r#"{"temperature": -1}"#).unwrap_err().field.as_deref(),
            Some("temperature")
        );
        let long = serde_json::json!([{"role": "user", "content": "word ".repeat(5000)}]).to_string();
        session.append(&long).unwrap();
        assert_eq!(session.start("").unwrap_err().kind, "context_full");
        assert!(session.events(Duration::ZERO).is_empty());
    }
}
