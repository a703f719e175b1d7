//! The engine's own reasons for errors of loading, of sessions and of generations. Errors of the layers below are boxed as they are.

use thiserror::Error;

use crate::draft::{SourceName, VERIFY_ROWS_MAX};
use crate::draft_model::VocabularyMismatch;
use crate::error::of_pack;
use crate::kernels::{IsaKind, PackError};
use crate::verify::ProcessorError;
use refrain_files::{ErrorKind, Facts, Fault};

/// An engine or its draft model could not be set up.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineProblem {
    /// The CPU does not support the requested instruction set.
    #[error("this CPU does not have the instruction set {isa:?}")]
    Isa {
        /// The requested instruction set.
        isa: IsaKind,
    },
    /// The thread count is out of range.
    #[error("{given} threads are outside 1..={max}")]
    Threads {
        /// The requested number of threads.
        given: usize,
        /// The limit.
        max: usize,
    },
    /// The system started fewer threads than requested.
    #[error("{n_threads} threads could not be started: {source}")]
    Spawn {
        /// The requested number of threads.
        n_threads: usize,
        /// The system's error.
        source: std::io::Error,
    },
    /// The model is loaded, and the system gives the process no more memory. Nothing stays allocated.
    #[error("the system gives less than {bytes} bytes of memory beside the model")]
    Memory {
        /// The memory that was asked for.
        bytes: usize,
    },
    /// The draft model's vocabulary differs from the target's.
    #[error("`{name}` cannot draft: {mismatch}")]
    DraftVocabulary {
        /// The checkpoint.
        name: String,
        /// The first difference.
        mismatch: VocabularyMismatch,
    },
    /// Static graphs run batches of fixed lengths, and a draft model runs single rows.
    #[error("`{name}` is a folder of static graphs and cannot draft; give the model that it was made from")]
    DraftGraphs {
        /// The folder.
        name: String,
    },
    /// A draft head reads hidden states of another width than the target has, or its vocabulary has another size.
    #[error(
        "`{name}` is the head of a model with hidden states of {hidden_dim} and {vocab_size} tokens; this one has \
         {target_hidden_dim} and {target_vocab_size}"
    )]
    HeadWidth {
        /// The checkpoint.
        name: String,
        /// Width of the hidden states that the head reads.
        hidden_dim: usize,
        /// Rows of its vocabulary.
        vocab_size: usize,
        /// Width of the target's hidden states.
        target_hidden_dim: usize,
        /// Rows of the target's vocabulary.
        target_vocab_size: usize,
    },
    /// An EAGLE-3 head reads the residual stream before a layer that the target does not have.
    #[error("`{name}` reads the input of layer {layer_idx}, and this model has {n_layers} layers")]
    HeadLayer {
        /// The checkpoint.
        name: String,
        /// The layer, counted from 0.
        layer_idx: usize,
        /// The target's layers; a head may read the output of the last one.
        n_layers: usize,
    },
    /// An EAGLE-3 head reads the residual stream between layers, of which the target has none or several.
    #[error("`{name}` reads hidden states between layers; {target} give none")]
    NoTaps {
        /// The checkpoint.
        name: String,
        /// What the target is.
        target: &'static str,
    },
}

/// A session could not be started or changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SessionProblem {
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
    /// The compiled batch lengths do not rise from 1.
    #[error("verify_lens must rise, with values in 1..={VERIFY_ROWS_MAX}, and reach verify_rows_max")]
    VerifyLens,
    /// The shortlist of calibration, echo and reuse could not be allocated.
    #[error(transparent)]
    Shortlist(PackError),
    /// The threshold of reuse is not a probability.
    #[error("the threshold of reuse is {given}, outside 0..=1")]
    ReuseThreshold {
        /// Its value.
        given: f32,
    },
    /// A share of pruning is outside 0..=1.
    #[error("{option} is {given}, outside 0..=1")]
    PruningShare {
        /// The option.
        option: &'static str,
        /// Its value.
        given: f32,
    },
    /// The session requires a draft model, but none is loaded.
    #[error("there is no draft model; load one before the session starts")]
    NoDraftModel,
    /// The session holds a conversation and cannot take plain text or tokens, or it holds plain text and
    /// cannot take turns.
    #[error("a session holds either turns of a conversation or plain text; start another session")]
    Mixed,
    /// The tokens do not fit.
    #[error(
        "{n_tokens} tokens exceed the context of {context_len}; shorten the text or ask for a longer context"
    )]
    ContextOverflow {
        /// Tokens that the session would have.
        n_tokens: usize,
        /// The session's limit.
        context_len: usize,
    },
    /// There are too many draft sources.
    #[error("a session can have at most {max} draft sources")]
    TooManySources {
        /// The limit.
        max: usize,
    },
    /// The session already has a draft source of this name: reliability and statistics are keyed by name.
    #[error("the session already has a draft source named `{name}`; give each source a unique name")]
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
    /// The positions of a state do not lie within the computed ones, or do not follow them.
    #[error("a state of positions {start}..{end} does not fit to {n_cached} tokens with keys and values")]
    StateRange {
        /// The first position.
        start: usize,
        /// The position after the last one.
        end: usize,
        /// Tokens whose keys and values are computed.
        n_cached: usize,
    },
    /// The model has recurrent layers, whose state is known at few positions, and not at this one.
    #[error(
        "a state cannot end at position {end}, because recurrent layers know theirs at {known:?} only; end it there, or call \
         `SessionStateMut::remember` before the prefill"
    )]
    StateEnd {
        /// The position after the last one of the state.
        end: usize,
        /// Positions at which a state can end, in rising order.
        known: Vec<usize>,
    },
    /// There is no memory for a copy of the state of recurrent layers.
    #[error("a copy of the recurrent state needs {bytes} bytes, which could not be allocated")]
    StateMemory {
        /// Bytes of the copy.
        bytes: usize,
    },
    /// The caches of layers with a window are [bounded](crate::state::WindowCache::Bounded), so earlier positions are gone.
    #[error(
        "the state of a session with `window_cache: bounded` cannot be kept: layers with a window keep the newest tokens only"
    )]
    BoundedWindows,
    /// A state has a wrong length.
    #[error("a state has {given} bytes, its tokens need {expected}")]
    StateLength {
        /// Its length.
        given: u64,
        /// The length for this model and type of KV cache.
        expected: u64,
    },
}

/// A generation could not start or continue. The session keeps the committed tokens and stays usable.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GenerateProblem {
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
    /// A logits processor failed; the error is the processor's own.
    #[error("a logits processor failed: {0}")]
    Processor(#[source] ProcessorError),
    /// The generation has already yielded its last event.
    #[error("the generation has ended")]
    Ended,
    /// The thread of a stream of events could not be started.
    #[error("the thread of the stream could not be started: {0}")]
    Worker(#[source] std::io::Error),
}

impl Fault for EngineProblem {
    fn facts(&self) -> Facts<'_> {
        let unsupported = Facts::new(ErrorKind::Unsupported);
        let mismatch = Facts::new(ErrorKind::Mismatch);
        match self {
            Self::Isa { .. } => unsupported.field("isa"),
            Self::Threads { given, max } => {
                Facts::new(ErrorKind::InvalidArgument).field("n_threads").over(*given, *max)
            }
            Self::Spawn { source, .. } => Facts::io(source.kind()),
            Self::Memory { bytes } => Facts::new(ErrorKind::OutOfMemory).value(*bytes),
            Self::DraftVocabulary { name, .. } | Self::HeadWidth { name, .. } => mismatch.file(name),
            Self::HeadLayer { name, layer_idx, n_layers } => mismatch.file(name).over(*layer_idx, *n_layers),
            Self::DraftGraphs { name } | Self::NoTaps { name, .. } => unsupported.file(name),
        }
    }
}

impl Fault for SessionProblem {
    fn facts(&self) -> Facts<'_> {
        let invalid = Facts::new(ErrorKind::InvalidArgument);
        let number = |given: f32| Some(f64::from(given));
        match self {
            Self::OutOfRange { option, given, max, .. } => invalid.field(option).over(*given, *max),
            Self::NumberOutOfRange { option, given, .. } | Self::PruningShare { option, given } => {
                Facts { value: number(*given), ..invalid.field(option) }
            }
            Self::ReuseThreshold { given } => {
                Facts { value: number(*given), ..invalid.field("reuse.threshold") }
            }
            Self::VerifyLens => invalid.field("verify_lens"),
            Self::Shortlist(error) => of_pack(error),
            Self::NoDraftModel => Facts::new(ErrorKind::WrongState).field("draft_model"),
            Self::Mixed => Facts::new(ErrorKind::WrongState),
            Self::ContextOverflow { n_tokens, context_len } => {
                Facts::new(ErrorKind::ContextFull).over(*n_tokens, *context_len)
            }
            Self::TooManySources { max } => Facts::new(ErrorKind::OverLimit).field("sources").limit(*max),
            Self::DuplicateSource { .. } => invalid.field("sources"),
            Self::TokenOutOfRange { token, vocab_size } => invalid.field("token").over(*token, *vocab_size),
            Self::StateRange { n_cached, .. } => invalid.field("range").limit(*n_cached),
            Self::StateEnd { end, .. } => invalid.field("range").value(*end),
            Self::StateMemory { bytes } => Facts::new(ErrorKind::OutOfMemory).value(*bytes),
            Self::BoundedWindows => Facts::new(ErrorKind::Unsupported).field("window_cache"),
            Self::StateLength { given, .. } => Facts::new(ErrorKind::Mismatch).field("state").value(*given),
        }
    }
}

impl Fault for GenerateProblem {
    fn facts(&self) -> Facts<'_> {
        let invalid = Facts::new(ErrorKind::InvalidArgument);
        match self {
            Self::EmptyPrompt => invalid.field("prompt"),
            Self::StopLength { given, max } => invalid.field("stop").over(*given, *max),
            Self::Processor(_) => Facts::new(ErrorKind::Processor),
            Self::Ended => Facts::new(ErrorKind::WrongState),
            Self::Worker(source) => Facts::io(source.kind()),
        }
    }
}
