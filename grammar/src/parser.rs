//! The parser of one text: llguidance's token parser, with its failures as typed errors.

use std::panic::AssertUnwindSafe;
use std::sync::Mutex;

use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};
use refrain::TokenId;

use crate::error::{GrammarError, brief};

/// A compiled grammar before its first token. Each text takes a copy.
///
/// A copy has its own lexer. A shared lexer would keep what other texts have computed, and the fuel of a mask would depend on
/// them: a limit could be reached with drafts and not without.
pub(crate) struct Start(Mutex<TokenParser>);

impl Start {
    pub(crate) fn new(mut parser: TokenParser) -> Self {
        if parser.is_fresh() {
            parser.start_without_prompt();
        }
        Self(Mutex::new(parser))
    }

    pub(crate) fn parser(&self) -> Parser {
        let inner = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).deep_clone();
        Parser { inner, failure: None }
    }
}

/// A parser behind a text. After an error every further call gives the same error.
pub(crate) struct Parser {
    inner: TokenParser,
    failure: Option<GrammarError>,
}

/// What may follow in a grammar.
pub(crate) enum Mask {
    /// These tokens.
    Tokens(SimpleVob),
    /// End tokens only.
    End,
}

impl Parser {
    /// Consumes a token if the grammar allows it; `false` and unchanged if not.
    pub(crate) fn push(&mut self, token: TokenId) -> Result<bool, GrammarError> {
        self.run(|parser| {
            if !parser.validate_token(token.0)? {
                return Ok(false);
            }
            parser.consume_token(token.0)?;
            parser.check_stop()?;
            Ok(true)
        })
    }

    /// Whether the grammar allows a token here.
    pub(crate) fn allows(&mut self, token: TokenId) -> Result<bool, GrammarError> {
        self.run(|parser| parser.validate_token(token.0))
    }

    /// Drops the newest `n_tokens` tokens. Not every grammar can.
    pub(crate) fn rollback(&mut self, n_tokens: usize) -> Result<(), GrammarError> {
        self.run(|parser| {
            parser.rollback(n_tokens)?;
            // Two texts may share the key of a cached mask.
            parser.parser.invalidate_bias_cache();
            Ok(())
        })
    }

    /// Number of tokens consumed.
    pub(crate) fn n_tokens(&self) -> usize {
        self.inner.num_tokens()
    }

    /// Whether the grammar may end here.
    pub(crate) fn is_accepting(&mut self) -> Result<bool, GrammarError> {
        self.run(|parser| Ok(parser.is_accepting()))
    }

    /// Whether nothing but the end may follow.
    pub(crate) fn is_at_end(&self) -> bool {
        self.inner.stopped()
    }

    /// The tokens that may follow.
    pub(crate) fn mask(&mut self) -> Result<Mask, GrammarError> {
        if self.failure.is_none() && self.is_at_end() {
            return Ok(Mask::End);
        }
        self.run(|parser| {
            let mut mask = parser.compute_mask()?;
            // A Lark grammar may name an end token in its middle. There it would end an incomplete output.
            if !parser.is_accepting() {
                let ends = parser.token_env.tok_trie().eos_tokens();
                ends.iter().for_each(|&end| mask.disallow_token(end));
            }
            Ok(Mask::Tokens(mask))
        })
    }

    /// The tokens that the grammar forces here.
    pub(crate) fn forced_tokens(&mut self) -> Result<Vec<TokenId>, GrammarError> {
        if self.failure.is_none() && self.is_at_end() {
            return Ok(Vec::new());
        }
        let forced = self.run(|parser| Ok(parser.compute_ff_tokens()))?;
        Ok(forced.into_iter().map(TokenId).collect())
    }

    /// The bytes that the grammar forces here.
    pub(crate) fn forced_bytes(&mut self) -> Result<Vec<u8>, GrammarError> {
        self.run(|parser| Ok(parser.force_bytes()))
    }

    /// The bytes that may follow the forced bytes.
    pub(crate) fn next_bytes(&mut self) -> Result<Vec<u8>, GrammarError> {
        self.run(|parser| {
            Ok(parser.parser.with_recognizer(|recognizer| {
                recognizer.trie_started("next_bytes");
                let bytes = (0..=u8::MAX).filter(|&byte| recognizer.byte_allowed(byte)).collect();
                recognizer.trie_finished();
                bytes
            }))
        })
    }

    /// Drops the last tokens of forced bytes that another tokenisation could join with what follows.
    pub(crate) fn chop(&mut self, trie: &TokTrie, tokens: &mut Vec<u32>) -> Result<(), GrammarError> {
        let n_chopped = self.run(|parser| {
            Ok(parser.parser.with_recognizer(|recognizer| trie.chop_tokens(recognizer, tokens)).0)
        })?;
        tokens.truncate(tokens.len() - n_chopped);
        Ok(())
    }

    /// Runs a call of the parser: a panic is an error too.
    fn run<T>(
        &mut self,
        call: impl FnOnce(&mut TokenParser) -> anyhow::Result<T>,
    ) -> Result<T, GrammarError> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let inner = &mut self.inner;
        let reason = match catch_unwind(AssertUnwindSafe(|| call(inner))) {
            Ok(value) => return Ok(value),
            Err(error) => brief(&error),
        };
        let position = self.inner.num_tokens();
        let failure = match self.inner.stop_reason() {
            StopReason::LexerTooComplex | StopReason::ParserTooComplex => {
                GrammarError::TooComplex { position, reason }
            }
            StopReason::NoExtensionBias => GrammarError::NoToken { position },
            _ => GrammarError::Parser { position, reason },
        };
        self.failure = Some(failure.clone());
        Err(failure)
    }
}
