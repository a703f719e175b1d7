//! The errors of sampling.

use thiserror::Error;

use refrain_files::{ErrorKind, Facts, Fault};

/// A token could not be chosen, or an option was refused.
#[derive(Debug, Error, Clone, PartialEq)]
#[non_exhaustive]
pub enum SamplingError {
    /// An option is outside its range.
    #[error("{option} is {given}, outside {range}")]
    OutOfRange {
        /// The option.
        option: &'static str,
        /// Its value.
        given: f64,
        /// The allowed values.
        range: &'static str,
    },
    /// A logit bias names a token that the model does not have.
    #[error("logit_bias names token {token}, but the vocabulary has {vocab_size} tokens")]
    BiasOutOfVocabulary {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },
    /// Every token is forbidden by bias or processors, or no logit is a number.
    #[error("no token can be chosen at position {position}: every logit is -inf or not a number")]
    NoCandidate {
        /// Position of the token in the sequence.
        position: usize,
    },
    /// A logit is +∞: the model overflowed, or a processor wrote it. There is no distribution to sample from.
    #[error("the logit of token {token} at position {position} is +inf")]
    InfiniteLogit {
        /// The first such token.
        token: u32,
        /// Position in the sequence.
        position: usize,
    },
}

impl Fault for SamplingError {
    fn facts(&self) -> Facts<'_> {
        let invalid = Facts::new(ErrorKind::InvalidArgument);
        let no_token = Facts::new(ErrorKind::NoToken);
        match self {
            Self::OutOfRange { option, given, .. } => Facts { value: Some(*given), ..invalid.field(option) },
            Self::BiasOutOfVocabulary { token, vocab_size } => {
                invalid.field("logit_bias").over(*token, *vocab_size)
            }
            Self::NoCandidate { .. } => no_token,
            Self::InfiniteLogit { token, .. } => no_token.field("token").value(*token),
        }
    }
}
