//! Why a session refuses.

use thiserror::Error;

use crate::draft::SourceName;
use crate::engine::options::VERIFY_ROWS_MAX;
use crate::kernels::PackError;
use crate::model::kv_cache::KvCacheError;
use crate::tokenizer::TokenizerError;

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
    /// Lossy acceptance makes the output depend on the drafts, and [`Drafting::DraftModel`](crate::engine::Drafting::DraftModel) drafts as a clock says.
    #[error(
        "with lossy acceptance no draft model drafts, since the time of its passes decides when it is asked; choose strict acceptance"
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
    /// The session has a draft source of this name: reliability and statistics are kept by name.
    #[error("the session has a draft source named `{name}` already; give each source a name of its own")]
    DuplicateSource {
        /// The name.
        name: SourceName,
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
