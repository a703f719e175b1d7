//! One conversation: its tokens, its KV cache, and the sources that draft for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thiserror::Error;

use crate::draft::{
    BuilderConfig, CalibrationSource, ContextSource, DraftSource, DraftTree, NodeSet, ResumeSource,
    ReuseConfig, ReuseSource, SOURCES_MAX, SourceKind, TreeBuilder,
};
use crate::draft_model::DraftModelSource;
use crate::engine::generation::{GenerateError, Generation};
use crate::engine::options::{
    Calibration, Drafting, GenerateOptions, PREFILL_CHUNK_MAX, SessionOptions, TARGET_READ_STEP_US_MIN,
    VERIFY_ROWS_MAX,
};
use crate::engine::policy::{DraftRows, MemoryPressure, PressureReport};
use crate::engine::profile::{MachineProfile, ProfileMismatch};
use crate::engine::reader::Reader;
use crate::engine::stats::Stopwatch;
use crate::engine::{CONTEXT_LEN_DEFAULT_MAX, Shared};
use crate::kernels::PackError;
use crate::model::graphs::StaticGraphs;
use crate::model::transformer::{ForwardError, PassEnd};
use crate::model::{Batch, Interlude, KvCache, Workspace, kv_cache::KvCacheError};
use crate::pruning::{Pruned, Pruner, PruningConfig, SHADOW_POOL_MAX};
use crate::token::TokenId;
use crate::tokenizer::{Message, Role, SpecialTokens, TokenizerError};
use crate::verify::Walk;

/// One conversation.
///
/// # Invariants
/// - `kv.len() <= tokens.len()`, and the KV cache holds exactly the tokens before that length;
/// - between steps of a generation, `kv.len() + 1 == tokens.len()`: the newest token is the next root.
pub struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) options: SessionOptions,
    pub(super) context_len: usize,
    /// Committed tokens: prompt and output.
    pub(super) tokens: Vec<TokenId>,
    pub(super) kv: KvCache,
    pub(super) workspace: Workspace,
    pub(super) batch: Batch,
    pub(super) walk: Walk,
    pub(super) sources: Vec<Box<dyn DraftSource>>,
    pub(super) builder: TreeBuilder,
    /// The newest step's draft.
    pub(super) tree: DraftTree,
    /// Its nodes whose rows went through the whole target.
    pub(super) verified: NodeSet,
    /// Cuts verification batches down, where the engine has a predictor.
    pruner: Option<Pruner>,
    /// Tokens that the sources have seen.
    pub(super) primed: usize,
    /// Reads the target's rows for the sources that want it.
    pub(super) reader: Option<Reader>,
    /// Positions of which the sources have been told the successors, or might have been.
    pub(super) calibrated: usize,
    /// Time that calibration has taken in prefills, in µs.
    pub(super) calibrate_us: f64,
    pub(super) cancel: Arc<AtomicBool>,
    /// The report of memory pressure that was answered last.
    pub(super) pressure: PressureReport,
    messages: Vec<Message>,
    /// Whether the tokens stand for `messages`.
    synced: bool,
    /// Tokens up to the end of the newest answer; 0 where that is not known.
    answered_len: usize,
}

/// Stops a session's running prefill or generation from another thread; where none runs, the next one.
#[derive(Clone, Debug)]
pub struct CancelHandle(Arc<AtomicBool>);

impl CancelHandle {
    /// Asks the session to stop. It does so before the next layer, keeping what is committed.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Why a session could not be started or changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionError {
    /// An option is outside its range.
    #[error("{option} is {given}, outside {min}..={max}")]
    OutOfRange {
        /// The option.
        option: &'static str,
        /// Its value.
        given: usize,
        /// The least allowed value.
        min: usize,
        /// The largest allowed value.
        max: usize,
    },
    /// A number is outside its range.
    #[error("{option} is {given}, outside {min}..={max}")]
    NumberOutOfRange {
        /// The option.
        option: &'static str,
        /// Its value.
        given: f32,
        /// The least allowed value.
        min: f32,
        /// The largest allowed value.
        max: f32,
    },
    /// Lossy acceptance makes the output depend on the drafts, and [`Drafting::DraftModel`] drafts as a clock says.
    #[error(
        "with lossy acceptance a draft model drafts by a published rule only; choose one, or strict acceptance"
    )]
    LossyDraftModel,
    /// The compiled batch lengths do not rise from 1.
    #[error("verify_lens must rise, with values in 1..={VERIFY_ROWS_MAX}, and reach verify_rows_max")]
    VerifyLens,
    /// There is no memory for the KV cache.
    #[error(transparent)]
    KvCache(#[from] KvCacheError),
    /// There is no memory for what calibration and reuse project with.
    #[error(transparent)]
    Shortlist(#[from] PackError),
    /// The threshold of reuse is no probability.
    #[error("the threshold of reuse is {given}, outside 0..=1")]
    ReuseThreshold {
        /// Its value.
        given: f32,
    },
    /// A share of pruning is none.
    #[error("{option} is {given}, outside 0..=1")]
    PruningShare {
        /// The option.
        option: &'static str,
        /// Its value.
        given: f32,
    },
    /// The session is to draft with a model, and the engine has none.
    #[error("there is no draft model; load one before the session starts")]
    NoDraftModel,
    /// The text could not be turned into tokens.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The session holds a conversation, which plain text or tokens cannot be added to, or the other way round.
    #[error("a session holds either turns of a conversation or plain text; start another session")]
    Mixed,
    /// The tokens do not fit.
    #[error(
        "{n_tokens} tokens exceed the context of {context_len}; shorten the text or ask for a longer context"
    )]
    ContextOverflow {
        /// Tokens that the session would hold.
        n_tokens: usize,
        /// The session's limit.
        context_len: usize,
    },
    /// There are too many draft sources.
    #[error("a session takes {max} draft sources at most")]
    TooManySources {
        /// The limit.
        max: usize,
    },
    /// A token is not in the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab_size} tokens")]
    TokenOutOfRange {
        /// The token.
        token: u32,
        /// Tokens of the vocabulary.
        vocab_size: usize,
    },
}

impl Session {
    pub(super) fn new(shared: Arc<Shared>, options: SessionOptions) -> Result<Self, SessionError> {
        let options = fitted_to_graphs(&shared, options);
        options.policy.check()?;
        options.acceptance.check()?;
        let is_lossy = options.acceptance.is_lossy();
        let config = shared.model.config();
        let context_len =
            options.context_len.unwrap_or_else(|| config.context_len.min(CONTEXT_LEN_DEFAULT_MAX));
        check("context_len", context_len, 2, config.context_len)?;
        check("verify_rows_max", options.verify_rows_max, 1, VERIFY_ROWS_MAX)?;
        check("prefill_chunk", options.prefill_chunk, 1, PREFILL_CHUNK_MAX)?;
        check("projection_rows", options.projection_rows, 1, VERIFY_ROWS_MAX)?;
        if let Some(reuse) = options.reuse {
            check("reuse.lifetime", reuse.lifetime as usize, 1, u32::MAX as usize)?;
            check("reuse.tokens_max", reuse.tokens_max as usize, 1, ReuseConfig::TOKENS_MAX as usize)?;
            if !(0.0..=1.0).contains(&reuse.threshold) {
                return Err(SessionError::ReuseThreshold { given: reuse.threshold });
            }
        }
        options.pruning.map_or(Ok(()), check_pruning)?;
        let lens = &options.verify_lens;
        let rising = lens.windows(2).all(|pair| pair[0] < pair[1]);
        let reach =
            lens.last().is_none_or(|&last| last >= options.verify_rows_max && last <= VERIFY_ROWS_MAX);
        if !rising || !reach || lens.first() == Some(&0) {
            return Err(SessionError::VerifyLens);
        }
        let rows_max = lens.last().copied().unwrap_or(0).max(options.verify_rows_max);
        // The scratch slots of a verification batch come behind a full context.
        let kv = KvCache::new(config, options.kv_type, context_len + rows_max)?;
        let options = with_settled_calibration(&shared, options);
        let mut sources: Vec<Box<dyn DraftSource>> = Vec::new();
        let max_rows = options.verify_rows_max;
        let mut reader = None;
        let mut bounds = BuilderConfig { max_rows, ..BuilderConfig::new(config.vocab_size) };
        match options.drafting {
            Drafting::Auto => {
                sources.push(Box::new(ContextSource::new()));
                sources.push(Box::new(ResumeSource::new()));
                if options.history {
                    sources.push(Box::new(shared.history.source(&options.namespace)));
                }
                reader = Reader::new(options.calibration, options.reuse.is_some(), &shared.model)?;
                if options.calibration != Calibration::Off {
                    sources.push(Box::new(CalibrationSource::new()));
                }
                if let Some(config) = options.reuse {
                    sources.push(Box::new(ReuseSource::new(config)));
                }
                // When it is asked depends on what its passes take.
                if let Some(model) = shared.draft_model().filter(|_| options.draft_model && !is_lossy) {
                    sources.push(Box::new(DraftModelSource::new(&model, context_len)?));
                }
            }
            Drafting::DraftModel if is_lossy => return Err(SessionError::LossyDraftModel),
            Drafting::DraftModel => {
                let model = shared.draft_model().ok_or(SessionError::NoDraftModel)?;
                sources.push(Box::new(DraftModelSource::new(&model, context_len)?));
            }
            Drafting::ModelRule(rule) => {
                let model = shared.draft_model().ok_or(SessionError::NoDraftModel)?;
                sources.push(rule.source(&model, context_len, max_rows)?);
                bounds = BuilderConfig::as_claimed(config.vocab_size, max_rows);
            }
            Drafting::Baseline(baseline) => {
                sources.push(baseline.source(max_rows, &[]));
                bounds = BuilderConfig::as_claimed(config.vocab_size, max_rows);
            }
            Drafting::AsClaimed => bounds = BuilderConfig::as_claimed(config.vocab_size, max_rows),
            Drafting::OwnSources | Drafting::Off => {}
        }
        if options.policy.rows != DraftRows::Auto || is_lossy {
            // As many rows as the policy says, whatever they are worth.
            (bounds.margin, bounds.reach_min) = (0.0, 0.0);
        }
        let builder = TreeBuilder::with_table(bounds, shared.reliability().clone());
        let pruner = options.pruning.zip(shared.predictor());
        let pruner = pruner.map(|(config, predictor)| Pruner::new(predictor, config));
        let cancel = Arc::new(AtomicBool::new(false));
        sources.iter_mut().for_each(|source| source.watch(&cancel));
        Ok(Self {
            workspace: Workspace::new(config),
            context_len,
            tokens: Vec::new(),
            kv,
            batch: Batch::new(),
            walk: Walk::default(),
            sources,
            builder,
            tree: DraftTree::default(),
            verified: NodeSet::ALL,
            pruner,
            primed: 0,
            reader,
            calibrated: 0,
            calibrate_us: 0.0,
            cancel,
            pressure: PressureReport::default(),
            messages: Vec::new(),
            synced: true,
            answered_len: 0,
            options,
            shared,
        })
    }

    /// Adds a turn. It becomes tokens, by the model's chat template, when the next answer is generated.
    ///
    /// # Errors
    /// [`SessionError::Mixed`] in a session of plain text.
    pub fn append_turn(&mut self, role: Role, content: impl Into<String>) -> Result<(), SessionError> {
        if self.messages.is_empty() && !self.tokens.is_empty() {
            return Err(SessionError::Mixed);
        }
        self.messages.push(Message::new(role, content));
        self.synced = false;
        Ok(())
    }

    /// Takes back the newest turn, if there is one, with its tokens.
    pub fn pop_turn(&mut self) -> Option<Message> {
        let popped = self.messages.pop()?;
        if popped.role == Role::Assistant {
            // What stood before the answer is found again when the turns are encoded.
            self.answered_len = 0;
        } else {
            self.truncate_tokens(self.answered_len);
        }
        if self.messages.is_empty() {
            self.truncate_tokens(0);
        }
        self.synced = self.messages.is_empty();
        Some(popped)
    }

    /// The turns so far, answers included.
    pub fn turns(&self) -> &[Message] {
        &self.messages
    }

    /// Adds plain text; the control tokens of the vocabulary are recognised only with [`SpecialTokens::Parse`].
    ///
    /// # Errors
    /// The text cannot be encoded or does not fit; the session is as it was.
    pub fn append_text(&mut self, text: &str, special: SpecialTokens) -> Result<(), SessionError> {
        let tokenizer = &self.shared.tokenizer;
        let mut tokens = tokenizer.encode(text, special)?;
        if let Some(bos) = tokenizer.bos().filter(|_| self.tokens.is_empty() && tokenizer.adds_bos())
            && tokens.first() != Some(&bos)
        {
            tokens.insert(0, bos);
        }
        self.append_tokens(&tokens)
    }

    /// Adds tokens as they are.
    ///
    /// # Errors
    /// A token is outside the vocabulary, or they do not fit; the session is as it was.
    pub fn append_tokens(&mut self, tokens: &[TokenId]) -> Result<(), SessionError> {
        if !self.messages.is_empty() {
            return Err(SessionError::Mixed);
        }
        self.check_tokens(self.tokens.len(), tokens)?;
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    fn check_tokens(&self, n_kept: usize, tokens: &[TokenId]) -> Result<(), SessionError> {
        let vocab_size = self.shared.model.config().vocab_size;
        if let Some(token) = tokens.iter().find(|t| t.index() >= vocab_size) {
            return Err(SessionError::TokenOutOfRange { token: token.0, vocab_size });
        }
        let (n_tokens, context_len) = (n_kept.saturating_add(tokens.len()), self.context_len);
        if n_tokens > context_len {
            return Err(SessionError::ContextOverflow { n_tokens, context_len });
        }
        Ok(())
    }

    /// The committed tokens, prompt and output.
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// Tokens that the session can hold.
    pub fn context_len(&self) -> usize {
        self.context_len
    }

    /// Adds a draft source of the app's own. It changes speed, never output; with [`Drafting::Off`] it is not asked.
    ///
    /// # Errors
    /// [`SessionError::TooManySources`].
    pub fn add_source(&mut self, mut source: Box<dyn DraftSource>) -> Result<(), SessionError> {
        if self.sources.len() >= SOURCES_MAX {
            return Err(SessionError::TooManySources { max: SOURCES_MAX });
        }
        source.watch(&self.cancel);
        source.reset();
        source.prime(&self.tokens[..self.primed]);
        self.sources.push(source);
        Ok(())
    }

    /// The kinds of the session's draft sources, in their order; empty where it does not draft.
    pub fn source_kinds(&self) -> Vec<SourceKind> {
        self.sources.iter().map(|source| source.kind()).collect()
    }

    /// Why generations of this session do not start from the profile that the engine was given, where that is so.
    pub fn profile_mismatch(&self) -> Option<ProfileMismatch> {
        let profile = self.shared.profile.as_ref();
        let kv_mismatch = profile.and_then(|profile| profile.key().kv_mismatch(self.options.kv_type));
        kv_mismatch.or_else(|| self.shared.profile_mismatch.clone())
    }

    /// The stored profile, where it is of use here.
    pub(super) fn profile(&self) -> Option<&MachineProfile> {
        let kv_type = self.options.kv_type;
        self.shared.profile.as_ref().filter(|profile| profile.key().kv_type == kv_type)
    }

    /// A handle that stops this session from another thread.
    pub fn cancel_handle(&self) -> CancelHandle {
        CancelHandle(Arc::clone(&self.cancel))
    }

    /// Forgets all tokens of a plain-text session from position `len` on.
    ///
    /// # Errors
    /// [`SessionError::Mixed`] in a conversation, which [`Session::pop_turn`] shortens.
    pub fn truncate(&mut self, len: usize) -> Result<(), SessionError> {
        if !self.messages.is_empty() {
            return Err(SessionError::Mixed);
        }
        self.truncate_tokens(len);
        Ok(())
    }

    pub(super) fn truncate_tokens(&mut self, len: usize) {
        if len < self.tokens.len() {
            self.tokens.truncate(len);
            self.kv.truncate(len);
        }
        if len < self.primed.max(self.calibrated) {
            // Automata do not forget; their sources start again, and are primed before the next step.
            self.sources.iter_mut().for_each(|source| source.truncate(len));
            self.primed = 0;
            self.calibrated = self.calibrated.min(len);
        }
    }

    /// A second session that goes on from the same state, on its own.
    ///
    /// # Errors
    /// There is no memory for another KV cache.
    pub fn fork(&self) -> Result<Self, SessionError> {
        let mut fork = Self::new(Arc::clone(&self.shared), self.options.clone())?;
        fork.tokens.clone_from(&self.tokens);
        fork.kv.copy_from(&self.kv);
        fork.sources = self.sources.iter().map(|source| source.fork()).collect();
        fork.sources.iter_mut().for_each(|source| source.watch(&fork.cancel));
        fork.primed = self.primed;
        fork.calibrated = self.calibrated;
        fork.messages.clone_from(&self.messages);
        fork.synced = self.synced;
        fork.answered_len = self.answered_len;
        // What this session has released is not there in the fork either; else the fork answers the report anew.
        if self.pressure.level != MemoryPressure::Normal {
            fork.pressure = self.pressure;
            fork.reader = None;
        }
        Ok(fork)
    }

    /// Bytes held by the KV cache and by what drafts.
    pub fn memory_usage(&self) -> usize {
        self.kv.memory_usage() + self.draft_memory_usage()
    }

    /// Bytes held by what drafts: the sources, the tree builder, and what calibration projects with. History is reported by the
    /// [`HistoryStore`](crate::draft::HistoryStore).
    pub fn draft_memory_usage(&self) -> usize {
        self.builder.memory_usage()
            + self.sources.iter().map(|source| source.memory_usage()).sum::<usize>()
            + self.reader.as_ref().map_or(0, Reader::memory_usage)
    }

    /// Prefills everything but the newest token, calling `progress` with (tokens done, tokens to do) after each chunk.
    ///
    /// [`Session::generate`] does this by itself; calling it earlier hides the time behind the user's typing.
    ///
    /// # Errors
    /// A cancelled prefill keeps the chunks that are done and goes on from there when called again.
    pub fn prefill(&mut self, mut progress: impl FnMut(usize, usize)) -> Result<(), GenerateError> {
        self.sync_chat()?;
        self.answer_pressure();
        let end = self.tokens.len().saturating_sub(1);
        let start = self.kv.len().min(end);
        // The newest token is the root of the next batch, so its slot must be free.
        self.kv.truncate(end);
        if let Some(reader) = &mut self.reader {
            reader.extend(&self.shared.model, &self.tokens);
            reader.extend_frequent(&self.shared.model, &mut self.sources);
        }
        let pass_end = match &self.reader {
            Some(reader) if reader.reads_prefill() => PassEnd::Hidden,
            _ => PassEnd::KeysAndValues,
        };
        if let Some(graphs) = self.shared.model.graphs() {
            graphs.expect_prefill(start, end - start, self.options.prefill_chunk);
        }
        while self.kv.len() < end {
            let done = self.kv.len();
            let chunk_end = end.min(done + self.options.prefill_chunk);
            self.batch.set_chain(done, &self.tokens[done..chunk_end]);
            self.forward(pass_end)?;
            self.kv.commit_all(&self.batch);
            if pass_end == PassEnd::Hidden {
                self.calibrate_chunk(done)?;
            }
            progress(chunk_end - start, end - start);
        }
        Ok(())
    }

    /// Tells the sources the successors of the chunk that stands at `first`, while its hidden states are there.
    ///
    /// # Errors
    /// A streamed output matrix could not be read: the chunk's successors are not known, and its tokens are committed.
    fn calibrate_chunk(&mut self, first: usize) -> Result<(), ForwardError> {
        let Some(reader) = &mut self.reader else { return Ok(()) };
        let mut watch = Stopwatch::start();
        let lists = reader.list_batch(&self.shared, &mut self.workspace, self.batch.len())?;
        self.sources.iter_mut().for_each(|source| source.calibrate(first, lists));
        self.calibrated = self.calibrated.max(first + lists.len());
        watch.lap(&mut self.calibrate_us);
        Ok(())
    }

    /// Runs the current batch; a cancellation is taken note of once.
    pub(super) fn forward(&mut self, end: PassEnd) -> Result<(), ForwardError> {
        self.forward_through(end, None)
    }

    /// Runs the batch of the current tree, and finds which of its nodes are `verified`. `None`: nothing was to be pruned.
    pub(super) fn verify(&mut self) -> Result<Option<Pruned>, ForwardError> {
        self.verified = NodeSet::ALL;
        let Some(mut pruner) = self.pruner.take() else {
            return self.forward(PassEnd::Hidden).map(|()| None);
        };
        let (tree, lens) = (std::mem::take(&mut self.tree), std::mem::take(&mut self.options.verify_lens));
        let mut pass = pruner.pass(&tree, &lens);
        let result =
            self.forward_through(PassEnd::Hidden, pass.as_mut().map(|pass| pass as &mut dyn Interlude));
        let pruned = pass.and_then(|pass| pass.pruned());
        (self.tree, self.options.verify_lens, self.pruner) = (tree, lens, Some(pruner));
        self.verified = pruned.map_or(NodeSet::ALL, |pruned| pruned.kept);
        result.map(|()| pruned)
    }

    /// Whether verification batches are cut down.
    pub(super) fn prunes(&self) -> bool {
        self.pruner.is_some()
    }

    pub(super) fn forward_through(
        &mut self,
        end: PassEnd,
        interlude: Option<&mut dyn Interlude>,
    ) -> Result<(), ForwardError> {
        let shared = &self.shared;
        let result = shared.model.forward_through(
            shared.compute(),
            &self.batch,
            &mut self.kv,
            &mut self.workspace,
            end,
            interlude,
            &self.cancel,
        );
        if result == Err(ForwardError::Cancelled) {
            self.cancel.store(false, Ordering::Relaxed);
        }
        result
    }

    /// Lets the sources see the tokens that they have not seen yet; while memory pressure is critical they see nothing.
    pub(super) fn prime(&mut self) {
        if self.primed < self.tokens.len() && !self.is_dormant() {
            self.sources.iter_mut().for_each(|source| source.prime(&self.tokens));
            self.primed = self.tokens.len();
        }
    }

    /// Encodes the turns, keeping as much of the KV cache as the new tokens share with the old ones.
    pub(super) fn sync_chat(&mut self) -> Result<(), SessionError> {
        if self.synced {
            return Ok(());
        }
        let tokens = match self.messages.is_empty() {
            true => Vec::new(),
            false => self.shared.tokenizer.encode_chat(&self.messages, true)?,
        };
        self.check_tokens(0, &tokens)?;
        let shared_len = self.tokens.iter().zip(&tokens).take_while(|(old, new)| old == new).count();
        self.truncate_tokens(shared_len);
        self.tokens.extend_from_slice(&tokens[shared_len..]);
        self.synced = true;
        Ok(())
    }

    /// Starts to generate; the output comes from the iterator.
    ///
    /// # Errors
    /// Options out of range, an empty or too long prompt, a template that fails. The session's turns and tokens are kept.
    pub fn generate(&mut self, options: GenerateOptions) -> Result<Generation<'_>, GenerateError> {
        self.sync_chat()?;
        Generation::new(self, options)
    }

    /// Keeps the answer as a turn of the conversation.
    pub(super) fn finish_turn(&mut self, text: &str) {
        if !self.messages.is_empty() {
            self.messages.push(Message::new(Role::Assistant, text));
            self.answered_len = self.tokens.len();
            self.synced = false;
        }
    }
}

/// [`Calibration::Auto`] becomes what pays on this machine.
fn with_settled_calibration(shared: &Shared, mut options: SessionOptions) -> SessionOptions {
    if options.calibration == Calibration::Auto {
        // Lossy acceptance must not depend on what a clock has measured.
        let pays = !options.acceptance.is_lossy() && shared.costs().step_us(1) >= TARGET_READ_STEP_US_MIN;
        options.calibration = if pays { Calibration::InContext } else { Calibration::Off };
        options.reuse = options.reuse.filter(|_| pays);
    }
    options
}

/// Static graphs compute whole calls, so chunks are as long as prefill graphs, and batches fill verify graphs.
fn fitted_to_graphs(shared: &Shared, mut options: SessionOptions) -> SessionOptions {
    let Some(piece) = shared.model.graphs().map(StaticGraphs::piece) else { return options };
    // What is out of range stays so, and is refused.
    if (1..=PREFILL_CHUNK_MAX).contains(&options.prefill_chunk) {
        options.prefill_chunk = piece.prefill_len;
    }
    let n_calls = options.verify_rows_max.div_ceil(piece.verify_len);
    let lens = (1..=n_calls).map(|n_calls| n_calls * piece.verify_len);
    if options.verify_lens.is_empty() && lens.clone().all(|len| len <= VERIFY_ROWS_MAX) {
        options.verify_lens = lens.collect();
    }
    options
}

fn check_pruning(config: PruningConfig) -> Result<(), SessionError> {
    check("pruning.shadow_tokens", config.shadow_tokens, 0, SHADOW_POOL_MAX)?;
    let saved_min = config.safeguards.map_or(0.0, |safeguards| safeguards.saved_min);
    for (option, given) in [("pruning.threshold", config.threshold), ("pruning.saved_min", saved_min)] {
        if !(0.0..=1.0).contains(&given) {
            return Err(SessionError::PruningShare { option, given });
        }
    }
    Ok(())
}

fn check(option: &'static str, given: usize, min: usize, max: usize) -> Result<(), SessionError> {
    if (min..=max).contains(&given) {
        Ok(())
    } else {
        Err(SessionError::OutOfRange { option, given, min, max })
    }
}
