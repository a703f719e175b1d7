//! One conversation: its turns and tokens, the target's state for them, and the sources that draft.

mod check;
mod conversation;
mod drafting;
mod prefill;
mod pressure;
mod sources;
mod start;
mod state;
mod target;
mod trace;

use std::fmt;
use std::sync::Arc;

use crate::cancel::CancelToken;
use crate::draft::{CostProfile, DraftSource, EchoStore, PredictionsSource, SourceName};
use crate::engine::options::{Drafting, SessionOptions};
use crate::engine::policy::PressureReport;
use crate::engine::reader::Reader;
use crate::engine::shared::Shared;
use crate::error::SessionError;
use crate::face::internals;
use crate::profile::MachineProfile;
use refrain_tokenizer::{ChatOptions, Message, Role, SpecialTokens};
use refrain_trees::TokenId;

/// Tokens that a generation adds before its costs follow the longer context: moving them takes some µs.
const CONTEXT_STEP: usize = 32;

pub(in crate::engine) use check::check_options;
pub(in crate::engine) use conversation::Conversation;
pub(in crate::engine) use drafting::DraftingState;
pub(in crate::engine) use sources::Sources;
pub use state::{SessionState, SessionStateMut, StateKey};
pub(in crate::engine) use target::{PassStates, TargetState, Verified};
pub use trace::{LogitsReceiver, Score, Traced};

/// One conversation.
///
/// # Invariants
/// - `target.kv.len() <= conversation.tokens.len()`, and the KV cache holds exactly the tokens before that
///   length;
/// - between steps of a generation the KV cache lacks only the newest token, which is the next root.
pub struct Session {
    pub(super) shared: Arc<Shared>,
    pub(super) options: SessionOptions,
    pub(super) conversation: Conversation,
    pub(super) target: TargetState,
    pub(super) drafting: DraftingState,
    /// The newest memory pressure report that this session has handled.
    pub(super) pressure: PressureReport,
    /// Where a prefill that comes past remembers the state of recurrent layers.
    remembered: Option<usize>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { conversation, target, .. } = self;
        f.debug_struct("Session")
            .field("n_turns", &conversation.messages().len())
            .field("n_tokens", &conversation.tokens.len())
            .field("n_cached_tokens", &target.kv.len())
            .field("context_len", &conversation.context_len)
            .field("sources", &self.source_names())
            .finish_non_exhaustive()
    }
}

impl Session {
    /// Adds a turn. The model's chat template turns it into tokens when the next answer is generated.
    ///
    /// # Errors
    /// The session is one of plain text.
    pub fn append_turn(&mut self, role: Role, content: impl Into<String>) -> Result<(), SessionError> {
        self.append_message(Message::new(role, content))
    }

    /// Adds a turn with fields besides its role and content: tool calls, a tool's answer, reasoning.
    ///
    /// # Errors
    /// The session is one of plain text.
    pub fn append_message(&mut self, message: Message) -> Result<(), SessionError> {
        Ok(self.conversation.push_turn(message)?)
    }

    /// Sets the variables of the model's chat template besides the turns: from the next answer on, for all
    /// turns. If the options contain no date, the session keeps the date of its first answer, so the tokens
    /// of a conversation do not change at midnight.
    pub fn set_chat_options(&mut self, options: ChatOptions) {
        self.conversation.set_chat_options(options);
    }

    /// Removes the newest turn, if there is one, with its tokens.
    pub fn pop_turn(&mut self) -> Option<Message> {
        let (popped, n_kept) = self.conversation.pop_turn()?;
        self.truncate_tokens(n_kept);
        Some(popped)
    }

    /// The turns so far. An answer's reasoning is in [`Message::reasoning_content`].
    pub fn turns(&self) -> &[Message] {
        self.conversation.messages()
    }

    /// Adds plain text; the control tokens of the vocabulary are recognised only with
    /// [`SpecialTokens::Parse`].
    ///
    /// # Errors
    /// The text cannot be encoded or does not fit; the session is unchanged.
    pub fn append_text(&mut self, text: &str, special: SpecialTokens) -> Result<(), SessionError> {
        let tokenizer = &self.shared.tokenizer;
        let mut tokens = tokenizer.encode(text, special)?;
        if let Some(bos) =
            tokenizer.bos().filter(|_| self.conversation.tokens.is_empty() && tokenizer.adds_bos())
            && tokens.first() != Some(&bos)
        {
            tokens.insert(0, bos);
        }
        self.append_tokens(&tokens)
    }

    /// Adds tokens as they are.
    ///
    /// # Errors
    /// A token is outside the vocabulary, or the tokens do not fit; the session is unchanged.
    pub fn append_tokens(&mut self, tokens: &[TokenId]) -> Result<(), SessionError> {
        self.conversation.check_plain()?;
        let n_tokens = self.conversation.tokens.len();
        self.conversation.check_tokens(self.shared.model.config(), n_tokens, tokens)?;
        self.conversation.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// The committed tokens, prompt and output.
    pub fn tokens(&self) -> &[TokenId] {
        &self.conversation.tokens
    }

    /// Tokens that the session can hold.
    pub fn context_len(&self) -> usize {
        self.conversation.context_len
    }

    /// Adds a draft source of the app. It never changes the output. With
    /// [`Drafting::Off`](crate::engine::Drafting::Off) it is never called.
    ///
    /// # Errors
    /// There are too many sources, or the session has a source of this name. The session is unchanged.
    pub fn add_source(&mut self, source: Box<dyn DraftSource>) -> Result<(), SessionError> {
        Ok(self.drafting.sources.add_own(source, &self.conversation.tokens)?)
    }

    internals! {
        /// Makes the session draft from, and add to, the lists of `echo`, instead of those of the engine's
        /// [history](crate::Engine::history). For lists that are kept elsewhere, such as on a disk. No effect on a session
        /// without echo ([`SessionOptions::echo`], [`Calibration::Auto`](crate::engine::Calibration::Auto)).
        fn share_echo(&mut self, echo: &EchoStore) {
            if let Some(config) = self.options.echo.filter(|_| self.options.drafting == Drafting::Auto) {
                let source = Box::new(PredictionsSource::with_echo(config, echo, self.options.reuse));
                self.drafting.sources.exchange(source, &self.conversation.tokens);
            }
        }

        /// The names of the session's draft sources, in their order; empty if it does not draft.
        fn source_names(&self) -> Vec<SourceName> {
            self.drafting.sources.own().iter().map(|source| source.name().into()).collect()
        }

        /// Bytes of drafting: the sources, the tree builder, and the projection matrix of calibration.
        fn draft_memory_usage(&self) -> usize {
            self.drafting.memory_usage() + self.target.reader.as_ref().map_or(0, Reader::memory_usage)
        }
    }

    /// The stored profile, if it matches this session.
    pub(super) fn profile(&self) -> Option<&MachineProfile> {
        let kv_type = self.options.kv_type;
        self.shared.profile.as_ref().filter(|profile| profile.key().kv_type == kv_type)
    }

    /// Costs behind a context of `to` tokens, from those behind `from`.
    pub(super) fn costs_moved(&self, costs: CostProfile, from: usize, to: usize) -> CostProfile {
        match (self.profile(), &self.shared.context_costs) {
            (Some(profile), _) => {
                let [from, to] =
                    [from, to].map(|context| profile.costs(context, self.options.projection_rows));
                costs.moved(&from, &to)
            }
            (None, Some(measured)) => {
                costs.scaled(|rows| measured.factor(to, rows) / measured.factor(from, rows))
            }
            (None, None) => costs,
        }
    }

    /// Moves the running generation's costs behind the tokens that it has added, from time to time.
    ///
    /// A longer context makes many rows dearer than one. If that were learned from steps, it would be learned as a cost of all rows, and
    /// the ratio of many rows to one, put back to an empty context at the end, would shrink with every generation.
    pub(super) fn follow_context(&mut self) {
        let (from, to) = (self.drafting.context, self.conversation.tokens.len());
        if to >= from + CONTEXT_STEP && !self.drafting.costs.has_free_rows() {
            let before_us = self.drafting.costs.verify_us(1, 1);
            self.drafting.costs = self.costs_moved(self.drafting.costs.clone(), from, to);
            self.drafting.account.scale(f64::from(self.drafting.costs.verify_us(1, 1) / before_us));
            self.drafting.context = to;
        }
    }

    /// Removes all tokens of a plain-text session from position `len` on.
    ///
    /// # Errors
    /// The session is a conversation, which [`Session::pop_turn`] shortens.
    pub fn truncate(&mut self, len: usize) -> Result<(), SessionError> {
        self.conversation.check_plain()?;
        self.truncate_tokens(len);
        Ok(())
    }

    /// Removes the tokens from `len` on from conversation, target state and drafting state.
    pub(super) fn truncate_tokens(&mut self, len: usize) {
        if len < self.conversation.tokens.len() {
            self.conversation.tokens.truncate(len);
            self.target.kv.truncate(len);
            self.remembered = self.remembered.filter(|&at| at <= len);
        }
        self.drafting.sources.truncate(len);
    }

    /// A second, independent session with a copy of this session's state.
    ///
    /// # Errors
    /// There is no memory for another KV cache.
    pub fn fork(&self) -> Result<Self, SessionError> {
        let Self { shared, options, conversation, target, drafting, pressure, remembered } = self;
        // Drafting continues as it began, whatever draft model or predictor the engine has meanwhile.
        let target = target.fork(shared, options, conversation.context_len)?;
        Ok(Self {
            shared: Arc::clone(shared),
            options: options.clone(),
            conversation: conversation.clone(),
            drafting: drafting.fork(target.own_rows.as_ref()),
            target,
            pressure: *pressure,
            remembered: *remembered,
        })
    }

    /// Bytes of the KV cache and of drafting: the sources, the tree builder, and the projection matrix of calibration. The
    /// [`HistoryStore`](crate::HistoryStore) reports its own bytes.
    pub fn memory_usage(&self) -> u64 {
        (self.target.kv.memory_usage() + self.draft_memory_usage()) as u64
    }

    /// Passes new committed tokens to the sources. While memory pressure is critical, the sources receive
    /// nothing.
    pub(super) fn prime(&mut self, cancel: &CancelToken) {
        if !self.is_dormant() {
            self.drafting.sources.prime(&self.conversation.tokens, cancel);
        }
    }

    /// Encodes the turns and keeps the KV cache of the longest common prefix of new and old tokens.
    ///
    /// # Errors
    /// The template fails, or the tokens do not fit. The newest turn is removed if it was appended since the
    /// last encoding; everything else is unchanged.
    pub(super) fn encode_turns(&mut self) -> Result<(), SessionError> {
        let config = self.shared.model.config();
        let encoded = self.conversation.encode(&self.shared.tokenizer).map_err(SessionError::from);
        let checked = encoded.and_then(|tokens| match tokens {
            Some(tokens) => {
                self.conversation.check_tokens(config, 0, &tokens)?;
                Ok(Some(tokens))
            }
            None => Ok(None),
        });
        let tokens = match checked {
            Ok(Some(tokens)) => tokens,
            Ok(None) => return Ok(()),
            Err(error) => {
                self.conversation.drop_failed_turn();
                if self.conversation.messages().is_empty() {
                    self.truncate_tokens(0);
                }
                return Err(error);
            }
        };
        let old = &self.conversation.tokens;
        let shared_len = old.iter().zip(&tokens).take_while(|(old, new)| old == new).count();
        self.truncate_tokens(shared_len);
        self.conversation.set_encoded(shared_len, &tokens);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::handle::Engine;
    use crate::engine::options::EngineOptions;
    use crate::engine::policy::Policy;
    use crate::model::Checkpoint;
    use crate::model::packed::pack;
    use crate::model::weights::LoadOptions;
    use crate::pruning::Predictor;
    use refrain_stream::{Pinned, StreamOptions};

    /// Otherwise every step would copy keys and values for nobody.
    #[test]
    fn the_target_of_a_fork_has_rows_in_common_with_a_source_only_if_its_session_has() {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures");
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("target.refrain");
        let source = Checkpoint::open(format!("{fixtures}/target.gguf")).unwrap();
        pack(&source, &path, LoadOptions::default()).unwrap();
        let mut streaming = StreamOptions::new(Pinned::Layers(3));
        streaming.pinned_first = 3;
        let options = EngineOptions {
            n_threads: Some(1),
            streaming: Some(streaming),
            cost_profile: Some(CostProfile::free_rows(1e6)),
            ..EngineOptions::default()
        };
        let engine = Engine::open(&path, options).unwrap();
        let before = engine.session(SessionOptions::default()).unwrap();
        engine.set_self_draft(Predictor::read(format!("{fixtures}/target.predictor")).unwrap()).unwrap();
        let after = engine.session(SessionOptions::default()).unwrap();
        for (session, has) in [(&before, false), (&after, true)] {
            let fork = session.fork().unwrap();
            assert_eq!((session.target.own_rows.is_some(), fork.target.own_rows.is_some()), (has, has));
            assert_eq!(fork.source_names(), session.source_names());
        }
    }

    #[test]
    fn costs_follow_a_growing_context_and_come_back_from_it() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf");
        let engine =
            Engine::open(path, EngineOptions { n_threads: Some(1), ..EngineOptions::default() }).unwrap();
        let mut session = engine.session(SessionOptions::default()).unwrap();
        let measured = session.shared.context_costs.clone().expect("measured while loading");
        let empty = CostProfile::from_measurements(&[(1, 100.0), (8, 150.0), (32, 400.0)]);
        let costs = session.costs_moved(empty.clone(), 0, 10);
        session.drafting.begin(Policy::disabled(), (costs, 10));
        for n_tokens in 10..400 {
            session.conversation.tokens.resize(n_tokens, TokenId(1));
            session.follow_context();
            let DraftingState { costs, context, .. } = &session.drafting;
            assert!(*context <= n_tokens && n_tokens < context + CONTEXT_STEP);
            for rows in [1, 8, 32] {
                let expected = empty.verify_us(rows, 1) * measured.factor(*context, rows);
                assert!(
                    (costs.verify_us(rows, 1) / expected - 1.0).abs() < 1e-3,
                    "{rows} rows at {n_tokens}"
                );
            }
        }
        let DraftingState { costs, context, .. } = &session.drafting;
        let back = session.costs_moved(costs.clone(), *context, 0);
        for rows in [1, 8, 32] {
            assert!((back.verify_us(rows, 1) / empty.verify_us(rows, 1) - 1.0).abs() < 1e-3, "{rows} rows");
        }
    }
}
