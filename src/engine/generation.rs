//! One output: the decoding loop, as an iterator of events.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use serde::Serialize;
use thiserror::Error;

use crate::draft::{
    CostCorrection, CostProfile, Learned, NodeIdx, RejectionCounter, ReliabilityTable, SourceName,
    StepLimits, StepOutcome,
};
use crate::engine::options::{Drafting, GenerateOptions, STOP_BYTES_MAX, SessionOptions};
use crate::engine::output::{FinishReason, Output, OutputLimits};
use crate::engine::overlap::StepFlows;
use crate::engine::policy::{Acceptance, DraftRows, LOSSY_ROWS, Policy, Request, Skip};
use crate::engine::projection::Projection;
use crate::engine::reader::Reader;
use crate::engine::session::{Session, SessionError};
use crate::engine::stats::{LossyStats, PruningStats, SourceStats, Stats, Stopwatch, StreamingStats};
use crate::model::Model;
use crate::model::streamed::Streamed;
use crate::model::transformer::ForwardError;
use crate::pruning::Pruned;
use crate::stream::Flow;
use crate::token::TokenId;
use crate::verify::{LogitsProcessor, Sampler, SamplingError, walk};

/// What a generation yields.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
#[allow(clippy::large_enum_variant, reason = "events are taken one by one, and the large one ends them")]
pub enum Event {
    /// A token of the output.
    Token(TokenEvent),
    /// The output has ended; nothing follows.
    Done(Summary),
}

/// One token of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenEvent {
    /// The token.
    pub id: TokenId,
    /// The text that became final with it: complete characters only, and nothing that may turn out to be part of a stop
    /// string. Often the token's own text, sometimes empty, sometimes that of several tokens.
    pub text: String,
    /// Where the token came from.
    pub origin: Origin,
}

/// Where a token came from. The target model chose it in every case; this says who had proposed it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Nobody: the target's own next token.
    Target,
    /// The draft source of this name.
    Draft(SourceName),
}

/// How a generation ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Why.
    pub finish: FinishReason,
    /// Text that had been held back, because it might have become a stop string or a character, and belongs to the output;
    /// empty unless the generation was cancelled.
    pub text: String,
    /// What it took.
    pub stats: Stats,
}

/// Why a generation could not start or go on. The session keeps what is committed and can be used again.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// There is nothing to continue.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A stop string is empty or too long.
    #[error("a stop string has {given} bytes, outside 1..={max}")]
    StopLength {
        /// Its length.
        given: usize,
        /// The limit.
        max: usize,
    },
    /// The sampling options are not usable, or no token could be chosen.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// The turns could not be encoded or do not fit.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The generation has yielded its last event already.
    #[error("the generation has ended")]
    Ended,
    /// The forward pass failed. (A cancelled generation ends with [`FinishReason::Cancelled`] instead.)
    #[error(transparent)]
    Forward(#[from] ForwardError),
}

/// A running generation: an iterator of [`Event`]s that ends after [`Event::Done`] or an error.
///
/// Tokens are committed to the session step by step. A generation that is dropped early leaves the session with the tokens
/// whose events were taken, as plain decoding would.
pub struct Generation<'s> {
    session: &'s mut Session,
    sampler: Sampler,
    processors: Vec<Box<dyn LogitsProcessor>>,
    output: Output,
    projection: Projection,
    costs: CostProfile,
    /// What drafting had learnt when the generation began.
    learned: Learned,
    policy: Policy,
    stats: Stats,
    rejections: RejectionCounter,
    events: VecDeque<Event>,
    prompt_len: usize,
    /// What had flowed from flash when the generation began, and when its prompt was prefilled.
    flows: [Flow; 2],
    started: bool,
    /// An error that comes after the tokens that were committed before it.
    failed: Option<GenerateError>,
    ended: bool,
}

impl<'s> Generation<'s> {
    pub(super) fn new(session: &'s mut Session, options: GenerateOptions) -> Result<Self, GenerateError> {
        let vocab_size = session.shared.model.config().vocab_size;
        options.sampling.check(vocab_size)?;
        if session.tokens().is_empty() {
            return Err(GenerateError::EmptyPrompt);
        }
        if let Some(stop) = options.stop.iter().find(|s| s.is_empty() || s.len() > STOP_BYTES_MAX) {
            return Err(GenerateError::StopLength { given: stop.len(), max: STOP_BYTES_MAX });
        }
        let prompt_len = session.tokens.len();
        let eos = session.shared.tokenizer.eos();
        let output = Output::new(OutputLimits {
            stop: options.stop,
            stop_tokens: options.stop_tokens,
            end_tokens: if options.ignore_eos { Vec::new() } else { eos.to_vec() },
            max_tokens: options.max_tokens,
            context_tokens: session.context_len - prompt_len,
        });
        let sources = session.sources.iter_mut().map(|source| SourceStats {
            name: source.name().into(),
            evidence: source.evidence(),
            drafted: 0,
            accepted: 0,
            // Until the end: what was computed before.
            computed: source.computing().map(|source| source.computed()),
        });
        let stats = Stats {
            prompt_tokens: prompt_len,
            cached_tokens: session.kv.len().min(prompt_len - 1),
            prefilled_tokens: prompt_len - 1 - session.kv.len().min(prompt_len - 1),
            sources: sources.collect(),
            pruning: session.prunes().then(PruningStats::default),
            lossy: match session.options.acceptance {
                Acceptance::Strict => None,
                Acceptance::LossyTopP(top_p) => Some(LossyStats { top_p, replaced: 0 }),
            },
            ..Stats::default()
        };
        let is_lossy = session.options.acceptance.is_lossy();
        // With lossy acceptance drafts decide, and so must not depend on what other generations have learnt.
        let learned = session.shared.learned().start();
        session.builder.set_table(match is_lossy {
            true => ReliabilityTable::new(),
            false => learned.reliability().clone(),
        });
        session.builder.set_times(learned.times().clone());
        let costs = match session.profile() {
            Some(profile) => {
                let costs = profile.costs(prompt_len, session.options.projection_rows);
                costs.corrected(learned.correction())
            }
            None => learned.costs().clone(),
        };
        let draft_us = learned.times().us_per_node(session.sources.iter().map(|source| source.name()));
        let costs = costs.with_draft_us_per_node(draft_us);
        let rows = match session.options.policy.rows {
            DraftRows::Auto if is_lossy => DraftRows::Fixed(LOSSY_ROWS),
            rows => rows,
        };
        let costs = match rows {
            DraftRows::Auto => costs,
            // Every row that the policy allows is worth it. What a step takes is still weighed against what a draft model takes.
            _ if is_lossy => CostProfile::free_rows(1.0),
            _ => CostProfile::free_rows(costs.verify_us(1, 1)).with_hidden_of(&costs),
        };
        let costs = costs.with_batch_lens(&session.options.verify_lens);
        let request = Request {
            drafts: session.options.drafting != Drafting::Off,
            n_tokens_max: output.remaining(),
            temperature: options.sampling.temperature,
        };
        let policy = Policy::new(&session.options.policy, rows, &request);
        Ok(Self {
            sampler: Sampler::new(session.shared.kernels, options.sampling),
            processors: options.processors,
            output,
            projection: Projection::new(
                session.options.projection,
                wave_rows_max(&session.shared.model, &session.options),
                session.shared.projection_costs.clone(),
                vocab_size,
            ),
            costs,
            learned,
            policy,
            stats,
            rejections: RejectionCounter::default(),
            events: VecDeque::new(),
            prompt_len,
            flows: [session.shared.flow(); 2],
            started: false,
            failed: None,
            ended: false,
            session,
        })
    }

    /// The callback form: calls `on_token` for each token until the output ends or it breaks, which cancels.
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
                        self.cancel();
                    }
                }
                Some(Ok(Event::Done(summary))) => return Ok(summary),
                Some(Err(error)) => return Err(error),
                None => return Err(GenerateError::Ended),
            }
        }
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        self.output.text()
    }

    /// Prefills the prompt now rather than with the first event, calling `progress` with (tokens done, tokens to do) after
    /// each chunk. Does nothing once the prompt is prefilled.
    ///
    /// # Errors
    /// As [`Session::prefill`]. After a cancellation the generation goes on from the chunks that are done.
    pub fn prefill(&mut self, progress: impl FnMut(usize, usize)) -> Result<(), GenerateError> {
        if self.started {
            return Ok(());
        }
        let mut watch = Stopwatch::start();
        let calibrate_us = self.session.calibrate_us;
        let prefilled = self.session.prefill(progress);
        self.flows[1] = self.session.shared.flow();
        let time_us = &mut self.stats.time_us;
        watch.lap(&mut time_us.prefill);
        let calibrate_us = self.session.calibrate_us - calibrate_us;
        time_us.calibrate += calibrate_us;
        time_us.prefill -= calibrate_us;
        prefilled?;
        self.started = true;
        self.session.prime();
        watch.lap(&mut self.stats.time_us.prime);
        Ok(())
    }

    /// One step: decide → draft → batch → forward → walk → commit → observe.
    fn step(&mut self) -> Result<(), GenerateError> {
        let (session, time_us) = (&mut *self.session, &mut self.stats.time_us);
        let mut watch = Stopwatch::start();

        if session.answer_pressure() {
            self.stats.policy.memory_reports += 1;
            self.projection.release();
        }
        let decided = self.policy.decide(session.shared.device.thermal(), session.pressure.level);
        let began = session.shared.flow();
        let Session { builder, sources, tokens, tree, .. } = session;
        match decided {
            Ok(n_rows) => {
                // Below the root, at most as many draft tokens as leave room for the bonus token.
                let max_depth = self.output.remaining() - 1;
                let limits = StepLimits { max_rows: n_rows.saturating_add(1), max_depth };
                builder.build(sources, tokens, limits, &self.costs, tree);
            }
            Err(_) => tree.start(tokens[tokens.len() - 1]),
        }
        let n_rows = self.costs.batch_len(tree.len());
        session.batch.set_tree(tokens.len() - 1, tree.tokens(), tree.parents(), n_rows);
        watch.lap(&mut time_us.draft);
        let drafted = session.shared.flow();

        let forward_us_before = time_us.forward;
        let pruned = session.verify()?;
        watch.lap(&mut time_us.forward);

        let walked = self.walk();
        let (session, time_us) = (&mut *self.session, &mut self.stats.time_us);
        watch.lap(&mut time_us.walk);

        // After an error of the sampler the last visited node has no token, and so is not committed.
        let path = session.walk.path();
        let n_kept = path.len() - usize::from(walked.is_err());
        session.kv.commit(path[..n_kept].iter().map(|node| node.index()));
        watch.lap(&mut time_us.commit);

        walked?;
        // Choosing tokens costs what it does in plain decoding, and is no part of the batch.
        let batch_us = time_us.forward - forward_us_before + self.projection.time_us();
        self.observe_times(n_rows, batch_us, (began, drafted));
        self.observe(n_rows, decided, pruned);
        watch.lap(&mut self.stats.time_us.observe);
        Ok(())
    }

    /// Costs learn what the batch took, and how much drafting its reads could have hidden.
    fn observe_times(&mut self, n_rows: usize, batch_us: f64, (began, drafted): (Flow, Flow)) {
        let flows = StepFlows { began, drafted, ended: self.session.shared.flow() };
        let ring_bytes = self.session.shared.model.streamed().map_or(0, Streamed::ring_bytes);
        self.costs.observe(n_rows, self.session.tree.n_leaves(), (batch_us + flows.read_us()) as f32);
        self.costs.observe_hidden(flows.hidden_us(ring_bytes) as f32);
    }

    /// Follows the target's choices; each is committed as a token at once, so that the next one is made with it.
    fn walk(&mut self) -> Result<(), GenerateError> {
        let Session { shared, tokens, workspace, tree, verified, walk: path, reader, .. } =
            &mut *self.session;
        let names = &self.stats.sources;
        let (tree, verified) = (&*tree, *verified);
        let lossy = &mut self.stats.lossy;
        self.projection.clear();
        if let Some(reader) = reader {
            reader.start_walk();
        }
        // Both closures need the tokens: one to choose, the other to add to them.
        let tokens = std::cell::RefCell::new(tokens);
        walk(
            tree,
            verified,
            path,
            |node| {
                let tokens = tokens.borrow();
                let logits = self.projection.logits(shared, workspace, tree, verified, node)?;
                if let Some(reader) = reader {
                    reader.list_visited(shared, logits);
                }
                self.processors.iter_mut().for_each(|p| p.process(&tokens, logits));
                let Some(LossyStats { top_p, replaced }) = lossy else {
                    return self.sampler.choose(&tokens, logits).map_err(GenerateError::from);
                };
                let drafted = tree.children(node).filter(|&child| verified.contains(child));
                let drafted = drafted.map(|child| tree.token(child));
                let choice = self.sampler.choose_or_accept(&tokens, logits, drafted, *top_p)?;
                *replaced += usize::from(choice.is_replaced);
                Ok(choice.token)
            },
            |token, node| {
                tokens.borrow_mut().push(token);
                let text = self.output.push(&shared.tokenizer, token);
                let source = node.and_then(|node| tree.source(node));
                let origin =
                    source.map_or(Origin::Target, |source| Origin::Draft(names[source].name.clone()));
                self.events.push_back(Event::Token(TokenEvent { id: token, text, origin }));
                match self.output.finish() {
                    Some(_) => ControlFlow::Break(()),
                    None => ControlFlow::Continue(()),
                }
            },
        )
    }

    /// Takes from the step's rows what the sources want to know of the target, while the hidden states are there.
    fn read_rows(&mut self) {
        let Session { shared, workspace, tokens, sources, tree, verified, walk, reader, calibrated, .. } =
            &mut *self.session;
        let Some(reader) = reader else { return };
        let path = walk.path();
        // The root was the newest token before the step.
        let first = tokens.len() - path.len() - 1;
        let lists = reader.visited();
        let listeners = sources.iter_mut().filter_map(|source| source.target_listener());
        listeners.for_each(|source| source.calibrate(first, lists));
        *calibrated = first + lists.len();
        reader.extend(&shared.model, &tokens[first + 1..]);
        reader.judge(shared, workspace, tree, *verified, path);
    }

    /// Sources, reliability and statistics learn from the step.
    fn observe(&mut self, n_rows: usize, decided: Result<usize, Skip>, pruned: Option<Pruned>) {
        self.read_rows();
        let is_dormant = self.session.is_dormant();
        let Session { tokens, sources, builder, tree, verified, walk, primed, reader, .. } =
            &mut *self.session;
        let path = walk.path();
        let new_tokens = &tokens[tokens.len() - path.len()..];
        let stats = &mut self.stats;
        // A token at which the output ended was agreed with, even though its row is not kept.
        let named = tree.child(path[path.len() - 1], new_tokens[path.len() - 1]);
        let ended_in_draft = named.filter(|&node| verified.contains(node));
        if let Some(pruning) = stats.pruning.as_mut().filter(|_| tree.len() > 1) {
            pruning.count_step(n_rows, pruned);
            pruning.cut_short += usize::from(named.is_some() && ended_in_draft.is_none());
        }
        let agreed = path[1..].iter().copied().chain(ended_in_draft);
        for source in agreed.filter_map(|node| tree.source(node)) {
            stats.sources[source].accepted += 1;
        }
        for source in (1..tree.len()).filter_map(|i| tree.source(NodeIdx(i as u32))) {
            stats.sources[source].drafted += 1;
        }
        stats.rows.valid += path.len();
        stats.rows.wasted += tree.len() - path.len();
        stats.rows.padded += n_rows - tree.len();
        stats.rows.projected += self.projection.n_projected();
        stats.count_step(new_tokens.len());
        self.policy.observe(decided, (tree.len() - 1, path.len() - 1), &mut stats.policy);
        if tree.len() == 1 {
            let off = &mut stats.drafting_off;
            *(if let Err(skip) = decided {
                skip.counter(off)
            } else if self.output.remaining() + new_tokens.len() <= 1 {
                &mut off.output_end
            } else if builder.n_considered() > 0 {
                &mut off.not_worth
            } else {
                &mut off.no_candidate
            }) += 1;
        }
        let confidence = reader.as_ref().map_or(&[][..], Reader::confidence);
        let outcome = StepOutcome { tree, accepted: &path[1..], new_tokens, confidence };
        self.rejections.observe(&outcome);
        if !is_dormant {
            builder.observe(sources, tokens, &outcome);
            *primed = tokens.len();
        }
    }

    /// Ends the output on the app's wish.
    fn cancel(&mut self) {
        if self.events.is_empty() && self.output.finish().is_some() {
            return; // The output has ended by itself, with the token taken last.
        }
        self.forget_untaken();
        let text = self.output.cancel();
        self.end(text);
    }

    /// Rolls back the tokens whose events were not taken, so that the session holds what the app has seen, as it would
    /// after plain decoding.
    fn forget_untaken(&mut self) {
        if self.events.is_empty() {
            return;
        }
        // A step that failed was not counted.
        if self.failed.take().is_none() {
            self.stats.take_back(self.session.walk.path().len(), self.events.len());
        }
        let kept = self.session.tokens.len() - self.events.len();
        self.events.clear();
        self.session.truncate_tokens(kept);
        self.output.restart();
        for &token in &self.session.tokens[self.prompt_len..] {
            self.output.push(&self.session.shared.tokenizer, token);
        }
    }

    /// Puts the last event in the queue and lets history and conversation have the output.
    fn end(&mut self, held_text: String) {
        self.ended = true;
        let finish = self.output.finish().unwrap_or(FinishReason::Cancelled);
        self.stats.rejections = self.rejections.finish();
        for (stats, source) in self.stats.sources.iter_mut().zip(&mut self.session.sources) {
            let before = stats.computed.take();
            stats.computed = source.computing().map(|source| source.computed()).map(|all| match &before {
                Some(before) => all.since(before),
                None => all,
            });
        }
        let [start, prefilled] = self.flows;
        let streaming = |streamed| StreamingStats::new(streamed, start, prefilled, self.stats.tokens);
        self.stats.streaming = self.session.shared.model.streamed().map(streaming);
        self.close();
        let summary = Summary { finish, text: held_text, stats: std::mem::take(&mut self.stats) };
        self.events.push_back(Event::Done(summary));
    }

    fn close(&mut self) {
        let session = &mut *self.session;
        // A wish to stop that came too late must not stop the next generation.
        session.cancel.store(false, Ordering::Relaxed);
        let learnt = self.costs.clone().with_batch_lens(&[]);
        if self.stats.lossy.is_none() {
            let weighs_costs = session.options.policy.rows == DraftRows::Auto;
            let theirs = self.learned.clone().with_drafting(session.builder.table(), session.builder.times());
            let theirs = match session.profile() {
                // Batches that were cut down tell nothing of whole ones.
                _ if session.prunes() || !weighs_costs => theirs,
                Some(profile) => {
                    // The context has grown: what that costs is in the profile, and no news about the device.
                    let measured = profile.costs(session.tokens.len(), session.options.projection_rows);
                    theirs.with_correction(CostCorrection::between(&measured, &learnt), self.stats.steps)
                }
                None => theirs.with_costs(learnt, self.stats.steps),
            };
            session.shared.learned().merge(&self.learned, &theirs);
        }
        if self.output.n_tokens() > 0 {
            if session.options.history {
                session.shared.history.append(&session.options.namespace, &session.tokens[self.prompt_len..]);
            }
            session.finish_turn(self.output.text());
        }
    }
}

impl Iterator for Generation<'_> {
    type Item = Result<Event, GenerateError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.events.is_empty() && !self.ended {
            if let Some(error) = self.failed.take() {
                self.ended = true;
                self.close();
                return Some(Err(error));
            }
            if self.output.finish().is_some() {
                self.end(String::new());
                break;
            }
            let result = if self.started { self.step() } else { self.prefill(|_, _| {}) };
            match result {
                Ok(()) => {}
                Err(GenerateError::Forward(ForwardError::Cancelled)) => self.cancel(),
                Err(error) => self.failed = Some(error),
            }
        }
        self.events.pop_front().map(Ok)
    }
}

impl Drop for Generation<'_> {
    fn drop(&mut self) {
        if !self.ended {
            self.forget_untaken();
            if self.output.finish().is_none() {
                self.output.cancel();
            }
            self.close();
        }
    }
}

/// Logits of a wave at most where the output matrix is streamed, in bytes: memory has a limit there.
pub(super) const STREAMED_WAVE_BYTES: usize = 8 << 20;

/// Rows of a wave at most. Where each wave reads the output matrix from flash, one shall be all that a step needs.
fn wave_rows_max(model: &Model, options: &SessionOptions) -> usize {
    match model.is_head_streamed() {
        true => options.projection_rows.max(STREAMED_WAVE_BYTES / (4 * model.config().vocab_size)),
        false => options.projection_rows,
    }
}
