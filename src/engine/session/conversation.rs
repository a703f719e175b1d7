//! The conversation part of a session: its turns and their tokens.

use crate::engine::error::SessionProblem;
use crate::model::ModelConfig;
use refrain_tokenizer::{ChatDate, ChatOptions, Message, Role, Tokenizer, TokenizerError};
use refrain_trees::TokenId;

/// Turns or plain text, as tokens.
#[derive(Debug, Clone)]
pub(in crate::engine) struct Conversation {
    /// Committed tokens: prompt and output.
    pub(in crate::engine) tokens: Vec<TokenId>,
    /// Maximum number of tokens.
    pub(in crate::engine) context_len: usize,
    messages: Vec<Message>,
    chat: ChatOptions,
    /// Turns that were encoded, or committed as an answer.
    n_settled: usize,
    /// Whether the tokens are the encoding of `messages`.
    is_encoded: bool,
    /// Tokens up to the end of the newest answer; 0 if unknown.
    answered_len: usize,
}

impl Conversation {
    pub(super) fn new(context_len: usize) -> Self {
        let (tokens, messages, chat) = (Vec::new(), Vec::new(), ChatOptions::default());
        Self { tokens, context_len, messages, chat, n_settled: 0, is_encoded: true, answered_len: 0 }
    }

    /// The turns so far, answers included.
    pub(super) fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Adds a turn.
    ///
    /// # Errors
    /// [`SessionProblem::Mixed`]: the session holds plain text.
    pub(super) fn push_turn(&mut self, message: Message) -> Result<(), SessionProblem> {
        if self.messages.is_empty() && !self.tokens.is_empty() {
            return Err(SessionProblem::Mixed);
        }
        self.messages.push(message);
        self.is_encoded = false;
        Ok(())
    }

    /// Sets the chat template's options. If they contain no date, the date of the first answer is kept.
    pub(super) fn set_chat_options(&mut self, options: ChatOptions) {
        let date = options.date.or(self.chat.date);
        self.chat = options;
        self.chat.date = date;
        self.is_encoded = self.messages.is_empty();
    }

    /// Removes the newest turn. Returns the turn and the number of tokens that stay valid.
    pub(super) fn pop_turn(&mut self) -> Option<(Message, usize)> {
        let popped = self.messages.pop()?;
        self.n_settled = self.n_settled.min(self.messages.len());
        let mut n_kept = self.tokens.len();
        if popped.role == Role::Assistant {
            // The next encoding finds the tokens before the answer.
            self.answered_len = 0;
        } else {
            n_kept = self.answered_len;
        }
        self.is_encoded = self.messages.is_empty();
        Some((popped, if self.is_encoded { 0 } else { n_kept }))
    }

    /// Keeps the answer as a turn. Templates add the white space around reasoning themselves.
    pub(in crate::engine) fn finish_turn(&mut self, tokenizer: &Tokenizer, answer: &str, reasoning: &str) {
        if !self.messages.is_empty() {
            let turn = match reasoning {
                "" => Message::new(Role::Assistant, tokenizer.answer_text(answer).unwrap_or(answer)),
                _ => {
                    let mut turn = Message::new(Role::Assistant, answer.trim_start());
                    turn.reasoning_content = Some(reasoning.trim().to_owned());
                    turn
                }
            };
            self.messages.push(turn);
            self.n_settled = self.messages.len();
            self.answered_len = self.tokens.len();
            self.is_encoded = false;
        }
    }

    /// Checks that plain tokens may follow.
    ///
    /// # Errors
    /// [`SessionProblem::Mixed`]: the session holds turns.
    pub(super) fn check_plain(&self) -> Result<(), SessionProblem> {
        if self.messages.is_empty() { Ok(()) } else { Err(SessionProblem::Mixed) }
    }

    /// Checks that `tokens` may follow the first `n_kept` tokens.
    ///
    /// # Errors
    /// [`SessionProblem::TokenOutOfRange`], [`SessionProblem::ContextOverflow`].
    pub(super) fn check_tokens(
        &self,
        config: &ModelConfig,
        n_kept: usize,
        tokens: &[TokenId],
    ) -> Result<(), SessionProblem> {
        let vocab_size = config.vocab_size;
        if let Some(token) = tokens.iter().find(|t| t.index() >= vocab_size) {
            return Err(SessionProblem::TokenOutOfRange { token: token.0, vocab_size });
        }
        let (n_tokens, context_len) = (n_kept.saturating_add(tokens.len()), self.context_len);
        if n_tokens > context_len {
            return Err(SessionProblem::ContextOverflow { n_tokens, context_len });
        }
        Ok(())
    }

    /// Encodes the turns; `None` if the tokens are already their encoding.
    pub(super) fn encode(&mut self, tokenizer: &Tokenizer) -> Result<Option<Vec<TokenId>>, TokenizerError> {
        if !self.is_encoded {
            self.chat.date.get_or_insert_with(ChatDate::now);
        }
        match (self.is_encoded, self.messages.is_empty()) {
            (true, _) => Ok(None),
            (false, true) => Ok(Some(Vec::new())),
            (false, false) => tokenizer.encode_chat(&self.messages, &self.chat, true).map(Some),
        }
    }

    /// Removes the newest turn if it was appended since the last encoding. Called if the turns could not be
    /// encoded or do not fit.
    pub(super) fn drop_failed_turn(&mut self) {
        if self.messages.len() > self.n_settled {
            self.messages.pop();
        }
        // The tokens are those of an earlier encoding; a later encoding is compared with them.
        self.is_encoded = self.messages.is_empty();
    }

    /// Replaces the tokens from `n_kept` on with the encoding of the turns.
    pub(super) fn set_encoded(&mut self, n_kept: usize, tokens: &[TokenId]) {
        self.tokens.truncate(n_kept);
        self.tokens.extend_from_slice(&tokens[n_kept..]);
        self.n_settled = self.messages.len();
        self.is_encoded = true;
    }
}
