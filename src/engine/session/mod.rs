//! One conversation: its tokens, its KV cache, and the sources that draft for it.

mod error;
mod passes;
mod start;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::draft::{DraftSource, DraftTree, NodeSet, SOURCES_MAX, SourceKind, TreeBuilder};
use crate::engine::Shared;
use crate::engine::generation::{GenerateError, Generation};
use crate::engine::options::{GenerateOptions, SessionOptions};
use crate::engine::policy::{MemoryPressure, PressureReport};
use crate::engine::profile::{MachineProfile, ProfileMismatch};
use crate::engine::reader::Reader;
use crate::model::{Batch, KvCache, Workspace};
use crate::pruning::Pruner;
use crate::token::TokenId;
use crate::tokenizer::{ChatDate, ChatOptions, Message, Role, SpecialTokens};
use crate::verify::Walk;

pub use error::SessionError;

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
    chat: ChatOptions,
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

impl Session {
    /// Adds a turn. It becomes tokens, by the model's chat template, when the next answer is generated.
    ///
    /// # Errors
    /// [`SessionError::Mixed`] in a session of plain text.
    pub fn append_turn(&mut self, role: Role, content: impl Into<String>) -> Result<(), SessionError> {
        self.append_message(Message::new(role, content))
    }

    /// Adds a turn with fields beside its role and content: tool calls, a tool's answer, reasoning.
    ///
    /// # Errors
    /// [`SessionError::Mixed`] in a session of plain text.
    pub fn append_message(&mut self, message: Message) -> Result<(), SessionError> {
        if self.messages.is_empty() && !self.tokens.is_empty() {
            return Err(SessionError::Mixed);
        }
        self.messages.push(message);
        self.synced = false;
        Ok(())
    }

    /// Sets what the model's chat template is given beside the turns: from the next answer on, for all turns. Unless the
    /// options have a date, the session keeps that of its first answer, so that the tokens of a conversation do not change
    /// at midnight.
    pub fn set_chat_options(&mut self, options: ChatOptions) {
        let date = self.chat.date();
        self.chat = match (options.date(), date) {
            (None, Some(date)) => options.with_date(date),
            _ => options,
        };
        self.synced = self.messages.is_empty();
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

    /// Adds a draft source of the app's own. It changes speed, never output; with [`Drafting::Off`](crate::engine::Drafting::Off) it is not asked.
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
        fork.chat.clone_from(&self.chat);
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
        if self.chat.date().is_none() {
            self.chat = std::mem::take(&mut self.chat).with_date(ChatDate::now());
        }
        let tokens = match self.messages.is_empty() {
            true => Vec::new(),
            false => self.shared.tokenizer.encode_chat(&self.messages, &self.chat, true)?,
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
            let text = self.shared.tokenizer.answer_text(text).unwrap_or(text);
            self.messages.push(Message::new(Role::Assistant, text));
            self.answered_len = self.tokens.len();
            self.synced = false;
        }
    }
}
