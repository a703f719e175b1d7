//! The parser of one text: llguidance's token parser, with its failures as typed errors.

use std::panic::AssertUnwindSafe;
use std::sync::Mutex;

use llguidance::api::StopReason;
use llguidance::panic_utils::catch_unwind;
use llguidance::toktrie::{Recognizer, SimpleVob, TokTrie};
use llguidance::{CancellationHandle, TokenParser};
use refrain::TokenId;

use crate::error::{GrammarError, brief};
use crate::limits::MASK_TIME_MAX;
use crate::watch::Watched;

/// A compiled grammar before its first token, with the mask of that token. Each text takes a copy.
///
/// A copy has its own lexer. A shared lexer would keep what other texts have computed, and the fuel of a mask would depend on
/// them: a limit could be reached with drafts and not without.
pub(crate) struct Start(Mutex<TokenParser>);

impl Start {
    /// # Errors
    /// Those of the first mask.
    pub(crate) fn new(mut parser: TokenParser) -> Result<Self, GrammarError> {
        if parser.is_fresh() {
            parser.start_without_prompt();
        }
        let mut parser = Parser::new(parser);
        parser.mask()?;
        Ok(Self(Mutex::new(parser.inner)))
    }

    pub(crate) fn parser(&self) -> Parser {
        Parser::new(self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).deep_clone())
    }

    /// Bytes of a copy, about.
    pub(crate) fn memory_usage(&self) -> usize {
        bytes(&self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// Bytes of a parser, about: those of its lexer, its masks and its grammar.
pub(crate) fn bytes(parser: &TokenParser) -> usize {
    let lexemes = parser.parser.grammar().lexer_spec();
    let n_mask_bytes = parser.token_env.tok_trie().vocab_size() / 8;
    // A lexer specification has its own copy of the expressions.
    parser.parser.lexer_stats().num_bytes
        + lexemes.regex_builder.exprset().num_bytes()
        + 500 * lexemes.lexemes.len()
        + n_mask_bytes
        + (64 << 10)
}

/// Tokens whose masks are computed when a grammar is compiled.
const PROBED_TOKENS: usize = 4;

/// A parser behind a text. After an error every further call gives the same error.
pub(crate) struct Parser {
    inner: TokenParser,
    /// Ends a call that takes too long.
    cancellation: CancellationHandle,
    /// The mask of this text, if it was computed ahead.
    ahead: Option<SimpleVob>,
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
    fn new(mut inner: TokenParser) -> Self {
        let cancellation = inner.enable_cancellation();
        Self { inner, cancellation, ahead: None, failure: None }
    }

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
        .inspect(|&is_allowed| self.ahead = self.ahead.take().filter(|_| !is_allowed))
    }

    /// Whether the grammar allows a token here.
    pub(crate) fn allows(&mut self, token: TokenId) -> Result<bool, GrammarError> {
        self.run(|parser| parser.validate_token(token.0))
    }

    /// Drops the newest `n_tokens` tokens. Not every grammar can.
    pub(crate) fn rollback(&mut self, n_tokens: usize) -> Result<(), GrammarError> {
        self.ahead = None;
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
        if let Some(mask) = &self.ahead {
            return Ok(Mask::Tokens(mask.clone()));
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

    /// Computes the mask before it is asked for. An error shows when it is.
    pub(crate) fn mask_ahead(&mut self) {
        if self.failure.is_none()
            && let Ok(Mask::Tokens(mask)) = self.mask()
        {
            self.ahead = Some(mask);
        }
    }

    /// Computes the first masks along one text: a grammar whose first rows are too large is refused before decoding.
    pub(crate) fn probe(mut self) -> Result<(), GrammarError> {
        for _ in 0..PROBED_TOKENS {
            let Mask::Tokens(mask) = self.mask()? else { break };
            let ends = self.inner.token_env.tok_trie().eos_tokens().to_vec();
            let Some(token) = mask.iter().find(|token| !ends.contains(token)) else { break };
            if !self.push(TokenId(token))? {
                break;
            }
        }
        Ok(())
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
        let watched = Watched::begin(&self.cancellation);
        let result = catch_unwind(AssertUnwindSafe(|| call(inner)));
        drop(watched);
        let is_cancelled = self.cancellation.is_cancelled();
        let reason = match result {
            Ok(value) if !is_cancelled => return Ok(value),
            Ok(_) => String::new(),
            Err(error) => brief(&error),
        };
        let position = self.inner.num_tokens();
        let failure = match self.inner.stop_reason() {
            _ if is_cancelled => {
                let reason = format!("it took more than {} s", MASK_TIME_MAX.as_secs());
                GrammarError::TooComplex { position, reason }
            }
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
