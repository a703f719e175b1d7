//! Drives the passes of a request and sends the pieces of its outputs. Steps share turns with other requests, and so do the parts of a prompt
//! while others decode.

use refrain::internals::tokenizer::TokenizerParts as _;
use std::time::{Duration, Instant};

use refrain::internals::tokenizer::ReasoningSplitter;
use refrain::{
    CancelToken, Drafting, ErrorKind, Event, FinishReason, GenerateError, Origin, OwnedGeneration,
    SessionError, Stats, TextKind, TokenEvent,
};
use refrain_assistant::provenance::{Shown, SpanOptions, copied_spans};
use tokio::sync::mpsc::Sender;
use tokio::sync::mpsc::error::TrySendError;

use super::logprobs::{Logprobs, TokenLogprob, scored};
use super::piece::{Annotation, Finish, Piece, PromptScores, Usage};
use super::prediction;
use super::prepare::{Output, Prepared};
use super::request::Document;
use super::stops::Stops;
use super::tool_format::{CallPart, OutputReader, read_token};
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

/// A streamed response reports the prompt about as often as a prefill has chunks.
const PROGRESS_TOKENS: usize = 256;

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
        if request.scores_prompts {
            self.score_prompt(index)?;
        }
        let of_session = |error: SessionError| ApiError::of_engine(error, request.param);
        // Memory for a session, a restored prompt and draft sources take part of a turn: beside a pass they would slow it down.
        let enter = || model.gate.enter(priority, cancel).ok_or_else(ApiError::stopped);
        // Copies of a grammar take no part of a turn: no other request waits for them.
        let Output { options, logprobs, reader, stops, ahead } = prepared.output(index, cancel);
        let turn = enter()?;
        let mut session_options = model.session.clone();
        if !request.drafts {
            session_options.drafting = Drafting::Off;
        }
        let mut session = model.engine.session(session_options).map_err(of_session)?;
        session.append_tokens(prompt).map_err(of_session)?;
        model.warm.restore(&mut session, key);
        let n_cached = session.state().n_cached_tokens();
        let prefill_since = Instant::now();
        let generation =
            OwnedGeneration::new(session, options).map_err(|refused| self.failed(refused.error))?;
        drop(turn);
        let mut generation = Box::new(generation);
        let prompt_reader = model.combiner.enter(priority, &model.gate, self.app.metrics());
        let total = prompt.len() - 1;
        let mut shown = n_cached;
        let mut show = |done: usize| {
            if done >= shown + PROGRESS_TOKENS || done >= total {
                shown = done;
                self.send(Piece::Prefill { done, total, cached: n_cached.min(total) });
            }
        };
        while let Some((before, _)) = generation.prompt_progress() {
            let progress = &mut |done: usize, _: usize| {
                if done < total {
                    show(done)
                }
            };
            let read = prompt_reader.read(generation, cancel, progress).ok_or_else(ApiError::stopped)?;
            generation = read.map_err(|error| self.failed(error))?;
            if let Some((done, _)) =
                generation.prompt_progress().filter(|(done, _)| *done > before && *done < total)
            {
                show(done);
            }
            self.check_time()?;
        }
        show(total);
        let prefill_us = prefill_since.elapsed().as_secs_f64() * 1e6;
        let mut writer = Writer::new(self, index, prompt.len(), logprobs, reader, stops);
        let decoder = prompt_reader.decode();
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
                    if writer.has_stopped() {
                        break (FinishReason::Stop, generation.stats().clone());
                    }
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
        let session = generation.into_session();
        let stop = match finish {
            FinishReason::Stop => writer.stopped_by().or_else(|| {
                // The engine's own stop strings, which the text does not have and the tokens have.
                let text = model.engine.tokenizer().decode(&session.tokens()[prompt.len()..]);
                first_of(&request.stop, &text)
            }),
            _ => None,
        };
        writer.end(finish, stop, &request.documents);
        model.warm.keep(&session, key);
        (stats.cached_tokens, stats.prefilled_tokens) = (n_cached, total - n_cached.min(total));
        // With the time in which the prompt waited.
        stats.time_us.prefill = prefill_us;
        self.app.metrics().add_output(&stats, first_token);
        self.count(index, &stats, n_reasoning);
        Ok(())
    }

    /// Sends the probabilities of the prompt's tokens. They are computed in a session of their own, in one turn.
    fn score_prompt(&self, index: usize) -> ApiResult<()> {
        let Self { prepared, cancel, .. } = *self;
        let (model, request, prompt) = (&prepared.model, &prepared.request, prepared.prompt(index));
        let of_session = |error: SessionError| ApiError::of_engine(error, request.param);
        let turn = model.gate.enter(request.priority, cancel).ok_or_else(ApiError::stopped)?;
        let mut session = model.engine.session(model.session.clone()).map_err(of_session)?;
        session.append_tokens(prompt).map_err(of_session)?;
        let tokenizer = model.engine.tokenizer();
        let n_top = request.logprobs.unwrap_or_default();
        let (mut position, mut scores) = (0, PromptScores::default());
        let mut receive = |logits: &[f32]| {
            position += 1;
            if let Some(&token) = prompt.get(position) {
                scores.rest.push(scored(logits, token, n_top, tokenizer));
            }
        };
        session.score(cancel, Some(&mut receive)).map_err(|error| self.failed(error))?;
        drop(turn);
        // A token that the tokenizer put there is no part of the text.
        let first =
            prompt.first().filter(|first| !(tokenizer.adds_bos() && tokenizer.bos() == Some(**first)));
        scores.first = first.map(|&first| tokenizer.token_bytes(first).unwrap_or_default().to_vec());
        self.send(Piece::Prompt { choice: index, scores });
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
        usage.steps += stats.steps;
        usage.reasoning += n_reasoning;
        usage.prefill_time += Duration::from_secs_f64(stats.time_us.prefill / 1e6);
        usage.decode_time += Duration::from_secs_f64(stats.time_us.decode() / 1e6);
        if let Some(source) = stats.sources.iter().find(|source| source.name == prediction::NAME) {
            usage.accepted_prediction += source.accepted;
            usage.rejected_prediction += source.drafted.saturating_sub(source.accepted);
        }
    }
}

/// The string that occurs first in a text.
fn first_of(strings: &[String], text: &str) -> Option<String> {
    let found = strings.iter().filter_map(|string| text.find(string.as_str()).map(|at| (at, string)));
    found.min_by_key(|(at, _)| *at).map(|(_, string)| string.clone())
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
    stops: Option<Stops>,
    /// Whether the text that `stops` holds is reasoning.
    holds_reasoning: bool,
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
        stops: Option<Stops>,
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
            stops,
            holds_reasoning: false,
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
                self.free(true, text, origin);
                continue;
            }
            let Some(reader) = &mut self.reader else {
                self.free(false, text, origin);
                continue;
            };
            let mut parts = Vec::new();
            reader.push(&text, &mut parts);
            parts.into_iter().for_each(|part| self.part(part, origin));
        }
    }

    /// Text outside of calls, as far as no stop string begins in it.
    fn free(&mut self, is_reasoning: bool, mut text: String, origin: &Origin) {
        if is_reasoning != self.holds_reasoning {
            self.flush(origin);
            self.holds_reasoning = is_reasoning;
        }
        if let Some(stops) = &mut self.stops {
            text = stops.push(&text);
        }
        self.certain(is_reasoning, text, origin);
    }

    /// The text that might have begun a stop string.
    fn flush(&mut self, origin: &Origin) {
        let rest = self.stops.as_mut().map(Stops::flush).unwrap_or_default();
        self.certain(self.holds_reasoning, rest, origin);
    }

    fn certain(&mut self, is_reasoning: bool, text: String, origin: &Origin) {
        match is_reasoning {
            _ if text.is_empty() => {}
            true => self.send(Piece::Reasoning { choice: self.choice, text, origin: origin.clone() }),
            false => self.answer(text, origin),
        }
    }

    /// The stop string that has ended the text outside of calls.
    fn stopped_by(&self) -> Option<String> {
        self.stops.as_ref().and_then(Stops::found).map(str::to_owned)
    }

    fn has_stopped(&self) -> bool {
        self.stops.as_ref().is_some_and(|stops| stops.found().is_some())
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
        if self.has_stopped() {
            return;
        }
        match part {
            CallPart::Text(text) => self.free(false, text, origin),
            CallPart::Begin(name) => {
                self.flush(origin);
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

    fn end(mut self, finish: FinishReason, stop: Option<String>, documents: &[Document]) {
        let mut parts = Vec::new();
        if let Some(reader) = &mut self.reader {
            reader.finish(&mut parts);
        }
        parts.into_iter().for_each(|part| self.part(part, &Origin::Target));
        self.flush(&Origin::Target);
        let finish = match finish {
            FinishReason::MaxTokens | FinishReason::ContextFull => Finish::Length,
            _ if self.n_calls > 0 => Finish::ToolCalls,
            _ => Finish::Stop,
        };
        let annotations = annotations(&self.text, documents);
        self.send(Piece::End { choice: self.choice, finish, stop, annotations });
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
