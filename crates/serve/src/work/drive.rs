//! Drives the passes of a request and sends the pieces of its outputs. A chunk of a prompt is a turn of its own; steps share turns with other
//! requests.

use refrain::internals::tokenizer::TokenizerParts as _;
use std::time::{Duration, Instant};

use refrain::internals::tokenizer::ReasoningSplitter;
use refrain::{
    CancelToken, ErrorKind, Event, FinishReason, GenerateError, Origin, OwnedGeneration, SessionError, Stats,
    TextKind, TokenEvent,
};
use refrain_assistant::provenance::{Shown, SpanOptions, copied_spans};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use super::call_form::{CallPart, read_token};
use super::calls::OutputReader;
use super::logprobs::{Logprobs, TokenLogprob};
use super::piece::{Annotation, Finish, Piece, Usage};
use super::prediction;
use super::prepare::{Output, Prepared};
use super::request::Document;
use crate::app::App;
use crate::error::{ApiError, ApiResult};
use crate::metrics::add;

/// Computes all outputs of a request. The last piece is [`Piece::Done`] or [`Piece::Failed`].
pub(crate) fn drive(app: &App, prepared: &Prepared, sender: &Sender<Piece>, cancel: &CancelToken) {
    let since = Instant::now();
    let mut driver = Driver { app, prepared, sender, cancel, since, usage: Usage::default() };
    let driven = (0..prepared.n_outputs()).try_for_each(|output| driver.output(output));
    app.metrics().add_request(since.elapsed());
    let mut last = match driven {
        Ok(()) => Piece::Done(driver.usage),
        Err(error) => {
            let counter = if sender.is_closed() { &app.metrics().cancelled } else { &app.metrics().failed };
            add(counter, 1);
            Piece::Failed(error)
        }
    };
    // The receiver may have gone. One that is too slow makes room, or the end of the channel tells it.
    for _ in 0..LAST_ATTEMPTS {
        match sender.try_send(last) {
            Err(TrySendError::Full(unsent)) => last = unsent,
            _ => return,
        }
        std::thread::sleep(LAST_PAUSE);
    }
}

/// How long the last piece waits for room: two seconds.
const LAST_ATTEMPTS: usize = 20;
const LAST_PAUSE: Duration = Duration::from_millis(100);

struct Driver<'a> {
    app: &'a App,
    prepared: &'a Prepared,
    sender: &'a Sender<Piece>,
    cancel: &'a CancelToken,
    since: Instant,
    usage: Usage,
}

impl Driver<'_> {
    fn output(&mut self, index: usize) -> ApiResult<()> {
        let Self { prepared, cancel, .. } = *self;
        let (model, request) = (&prepared.model, &prepared.request);
        let (key, priority) = (request.cache_key.as_deref(), request.priority);
        let prompt = prepared.prompt(index);
        let of_session = |error: SessionError| ApiError::of_engine(error, request.param);
        // Memory for a session, a restored prompt and draft sources take part of a turn: beside a pass they would slow it down.
        let enter = || model.gate.enter(priority, cancel).ok_or_else(ApiError::stopped);
        // Copies of a grammar take no part of a turn: no other request waits for them.
        let Output { options, logprobs, reader, ahead } = prepared.output(index, cancel);
        let mut turn = enter()?;
        let mut session = model.engine.session(model.session.clone()).map_err(of_session)?;
        session.append_tokens(prompt).map_err(of_session)?;
        model.warm.restore(&mut session, key);
        let n_cached = session.state().n_cached_tokens();
        let prefill_since = Instant::now();
        let mut done = n_cached;
        loop {
            let chunk = session.prefill_chunk(cancel);
            let (n_computed, total) = chunk.map_err(|error| self.failed(error))?;
            if n_computed > done || n_computed >= total {
                done = n_computed;
                self.send(Piece::Prefill { done, total, cached: n_cached.min(total) });
            }
            if done >= total {
                break;
            }
            self.check_time()?;
            drop(turn);
            turn = enter()?;
        }
        let prefill_us = prefill_since.elapsed().as_secs_f64() * 1e6;
        let generation =
            OwnedGeneration::new(session, options).map_err(|refused| self.failed(refused.error))?;
        drop(turn);
        let mut generation = Box::new(generation);
        let mut writer = Writer::new(self, index, prompt.len(), logprobs, reader);
        let decoder = model.combiner.enter(priority, &model.gate, self.app.metrics());
        let (mut first_token, mut tokens) = (None, Vec::new());
        let (finish, mut stats) = loop {
            if generation.awaits_pass() {
                self.check_time()?;
                // Outside of the turn: other requests do not wait for a mask.
                ahead.iter().for_each(|ahead| ahead.compute(&tokens));
                generation = decoder.step(generation, cancel).ok_or_else(ApiError::stopped)?;
            }
            match generation.next() {
                Some(Ok(Event::Token(token))) => {
                    first_token.get_or_insert_with(|| self.since.elapsed());
                    tokens.push(token.id);
                    writer.token(token);
                }
                Some(Ok(Event::Done(summary))) => {
                    writer.rest(summary.text, summary.segments);
                    break (summary.finish, summary.stats);
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(self.failed(error)),
                None => return Err(ApiError::server("the generation has ended early")),
            }
        };
        drop(decoder);
        if finish == FinishReason::Cancelled {
            return Err(ApiError::stopped());
        }
        let n_reasoning = writer.n_reasoning;
        writer.end(finish, &request.documents);
        model.warm.keep(&generation.into_session(), key);
        (stats.cached_tokens, stats.prefilled_tokens) = (n_cached, done - n_cached.min(done));
        stats.time_us.prefill += prefill_us;
        self.app.metrics().add_output(&stats, first_token);
        self.count(index, &stats, n_reasoning);
        Ok(())
    }

    fn send(&self, piece: Piece) {
        send(self.sender, self.cancel, piece);
    }

    fn check_time(&self) -> ApiResult<()> {
        let limit: Duration = self.app.limits().request_time;
        if self.since.elapsed() <= limit {
            return Ok(());
        }
        let message = format!("the request took more than {} s", limit.as_secs());
        Err(ApiError::server(message).with_code("time_limit").finally())
    }

    fn failed(&self, error: GenerateError) -> ApiError {
        match error.kind() {
            ErrorKind::Cancelled => ApiError::stopped(),
            _ => ApiError::of_engine(error, self.prepared.request.param),
        }
    }

    fn count(&mut self, index: usize, stats: &Stats, n_reasoning: usize) {
        let usage = &mut self.usage;
        // Outputs of one prompt share it.
        if index.is_multiple_of(self.prepared.request.n) {
            usage.prompt += stats.prompt_tokens;
            usage.cached += stats.cached_tokens;
        }
        usage.output += stats.tokens;
        usage.reasoning += n_reasoning;
        if let Some(source) = stats.sources.iter().find(|source| source.name == prediction::NAME) {
            usage.accepted_prediction += source.accepted;
            usage.rejected_prediction += source.drafted.saturating_sub(source.accepted);
        }
    }
}

/// Sends a piece. A client that leaves too many unread ends its request; one that drops the receiver cancels it itself.
fn send(sender: &Sender<Piece>, cancel: &CancelToken, piece: Piece) {
    if let Err(TrySendError::Full(_)) = sender.try_send(piece) {
        cancel.cancel();
    }
}

/// Turns the tokens of one output into pieces.
struct Writer<'a> {
    sender: &'a Sender<Piece>,
    cancel: &'a CancelToken,
    prepared: &'a Prepared,
    app: &'a App,
    choice: usize,
    /// The position of the next token.
    position: usize,
    logprobs: Option<Logprobs>,
    /// Probabilities of tokens whose text has not come yet.
    pending: Vec<TokenLogprob>,
    reader: Option<OutputReader>,
    n_calls: usize,
    n_reasoning: usize,
    /// Tells whether the newest token is reasoning; texts come later.
    splitter: ReasoningSplitter,
    /// The answer, for annotations.
    text: String,
}

impl<'a> Writer<'a> {
    fn new(
        driver: &Driver<'a>,
        choice: usize,
        n_prompt: usize,
        logprobs: Option<Logprobs>,
        reader: Option<OutputReader>,
    ) -> Self {
        let Driver { app, prepared, sender, cancel, .. } = *driver;
        let splitter = prepared.model.engine.tokenizer().reasoning_splitter(prepared.prompt(choice));
        Self {
            sender,
            cancel,
            prepared,
            app,
            choice,
            position: n_prompt,
            logprobs,
            pending: Vec::new(),
            reader,
            n_calls: 0,
            n_reasoning: 0,
            splitter,
            text: String::new(),
        }
    }

    fn token(&mut self, token: TokenEvent) {
        let TokenEvent { id, text, segments, origin, .. } = token;
        let tokenizer = self.prepared.model.engine.tokenizer();
        if let Some(logprobs) = &self.logprobs {
            let taken = logprobs.take(self.position, id, tokenizer);
            // An end token is no part of the text.
            self.pending.extend(taken.filter(|_| !tokenizer.eos().contains(&id)));
        }
        self.position += 1;
        if self.prepared.is_plain {
            // A continued text has no reasoning apart, whatever markers it has.
            self.segments(vec![(TextKind::Answer, text)], &origin);
            return;
        }
        let was_reasoning = self.splitter.kind() == TextKind::Reasoning;
        read_token(&mut self.splitter, tokenizer, id);
        let is_reasoning = self.splitter.kind() == TextKind::Reasoning;
        self.n_reasoning += usize::from(was_reasoning || is_reasoning);
        self.segments(segments, &origin);
        if let Some(reader) = &mut self.reader {
            let mut parts = Vec::new();
            reader.push_token(tokenizer, id, &self.splitter, &mut parts);
            parts.into_iter().for_each(|part| self.part(part, &origin));
        }
    }

    /// The rest of the output.
    fn rest(&mut self, text: String, segments: Vec<(TextKind, String)>) {
        match self.prepared.is_plain {
            true => self.segments(vec![(TextKind::Answer, text)], &Origin::Target),
            false => self.segments(segments, &Origin::Target),
        }
    }

    fn segments(&mut self, segments: Vec<(TextKind, String)>, origin: &Origin) {
        for (kind, text) in segments {
            if text.is_empty() {
                continue;
            }
            if kind != TextKind::Answer {
                // Probabilities are those of the answer.
                self.pending.clear();
                self.send(Piece::Reasoning { choice: self.choice, text, origin: origin.clone() });
                continue;
            }
            let Some(reader) = &mut self.reader else {
                self.answer(text, origin);
                continue;
            };
            let mut parts = Vec::new();
            reader.push(&text, &mut parts);
            parts.into_iter().for_each(|part| self.part(part, origin));
        }
    }

    fn answer(&mut self, text: String, origin: &Origin) {
        if !self.prepared.request.documents.is_empty() {
            self.text.push_str(&text);
        }
        let logprobs = std::mem::take(&mut self.pending);
        self.send(Piece::Text { choice: self.choice, text, logprobs, origin: origin.clone() });
    }

    fn part(&mut self, part: CallPart, origin: &Origin) {
        let choice = self.choice;
        match part {
            CallPart::Text(text) => self.answer(text, origin),
            CallPart::Begin(name) => {
                let call = self.n_calls;
                self.n_calls += 1;
                let id = self.app.id("call_");
                self.send(Piece::Call { choice, call, id, name });
            }
            CallPart::Arguments(text) => {
                self.pending.clear();
                self.send(Piece::Arguments { choice, call: self.n_calls.saturating_sub(1), text });
            }
        }
    }

    fn end(mut self, finish: FinishReason, documents: &[Document]) {
        let mut parts = Vec::new();
        if let Some(reader) = &mut self.reader {
            reader.finish(&mut parts);
        }
        parts.into_iter().for_each(|part| self.part(part, &Origin::Target));
        let finish = match finish {
            FinishReason::MaxTokens | FinishReason::ContextFull => Finish::Length,
            _ if self.n_calls > 0 => Finish::ToolCalls,
            _ => Finish::Stop,
        };
        let annotations = annotations(&self.text, documents);
        self.send(Piece::End { choice: self.choice, finish, annotations });
    }

    fn send(&self, piece: Piece) {
        send(self.sender, self.cancel, piece);
    }
}

/// The spans of an answer that stand in documents.
fn annotations(answer: &str, documents: &[Document]) -> Vec<Annotation> {
    if documents.is_empty() {
        return Vec::new();
    }
    let shown: Vec<Shown<'_>> = documents
        .iter()
        .map(|document| Shown { document: &document.title, at: Some(0), text: &document.text })
        .collect();
    let spans = copied_spans(answer, &shown, SpanOptions::default());
    let annotation = |span: refrain_assistant::provenance::CopiedSpan| {
        let characters = |end: usize| answer[..end].chars().count();
        let document = &documents[span.passage];
        let url = document.url.clone().unwrap_or_else(|| format!("document:{}", span.passage));
        Annotation {
            start: characters(span.output.start),
            end: characters(span.output.end),
            document: span.passage,
            title: document.title.clone(),
            url,
            place: span.place,
            is_exact: span.is_exact,
        }
    };
    spans.into_iter().map(annotation).collect()
}
