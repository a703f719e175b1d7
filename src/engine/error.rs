//! Why an engine could not be loaded, a session not started or changed, a generation not started or continued.

use thiserror::Error;

use crate::draft::{SourceName, VERIFY_ROWS_MAX};
use crate::draft_model::VocabularyMismatch;
use crate::kernels::{IsaKind, PackError};
use crate::model::checkpoint::LoadError;
use crate::model::graphs::GraphsError;
use crate::model::kv_cache::KvCacheError;
use crate::model::transformer::ForwardError;
use crate::model::weights::WeightsError;
use crate::tokenizer::TokenizerError;
use crate::verify::SamplingError;

/// Why an engine, or its draft model, could not be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The checkpoint could not be opened.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The weights could not be read or packed.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The tokenizer could not be built.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The CPU does not have the instruction set asked for.
    #[error("this CPU does not have the instruction set {isa:?}")]
    Isa {
        /// What was asked for.
        isa: IsaKind,
    },
    /// The thread count is not usable.
    #[error("{given} threads are outside 1..={max}")]
    Threads {
        /// What was asked for.
        given: usize,
        /// The limit.
        max: usize,
    },
    /// The system gave fewer threads than asked for.
    #[error("{n_threads} threads could not be started: {source}")]
    Spawn {
        /// What was asked for.
        n_threads: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// The times of static graphs could not be measured.
    #[error(transparent)]
    Graphs(#[from] GraphsError),
    /// There was no memory for the cost measurement.
    #[error(transparent)]
    KvCache(#[from] KvCacheError),
    /// Streamed weights could not be read for the cost measurement.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// A draft model's tokens are not the target's.
    #[error("`{name}` cannot draft: {mismatch}")]
    DraftVocabulary {
        /// The checkpoint.
        name: String,
        /// The first difference.
        mismatch: VocabularyMismatch,
    },
    /// Static graphs run batches of fixed lengths, and a draft model runs single rows.
    #[error("`{name}` is a folder of static graphs, which cannot draft; name the model that it was made of")]
    DraftGraphs {
        /// The folder.
        name: String,
    },
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
    /// Lossy acceptance makes the output depend on the drafts, and [`Drafting::DraftModel`](crate::Drafting::DraftModel) drafts as a clock says.
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
    /// The forward pass failed. (A cancelled generation ends with [`FinishReason::Cancelled`](crate::FinishReason::Cancelled) instead.)
    #[error(transparent)]
    Forward(#[from] ForwardError),
}
