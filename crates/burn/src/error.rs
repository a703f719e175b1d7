//! Errors of training.

/// An error of the trainer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("file: {0}")]
    Io(#[from] std::io::Error),
    /// A JSON file is malformed.
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The tokenizer crate returned an error.
    #[error("tokenizer: {0}")]
    Tokenizer(#[from] tokenizers::Error),
    /// A training state could not be read or written.
    #[error("training state: {0}")]
    Record(#[from] burn::store::RecordError),
    /// A weights file could not be read or written.
    #[error("weights file: {0}")]
    SafeTensors(#[from] safetensors::SafeTensorError),
    /// The GGUF file could not be written.
    #[error("GGUF: {0}")]
    Gguf(#[from] refrain::internals::model::gguf::GgufWriteError),
    /// A checkpoint differs from the exporter's format.
    #[error("weights: {0}")]
    Weights(String),
    /// A text could not be read.
    #[error("{}: {source}", path.display())]
    Text {
        /// The file.
        path: std::path::PathBuf,
        /// The system's error, or the UTF-8 error of a file that is not text.
        source: std::io::Error,
    },
    /// A text is too long.
    #[error("{}: longer than {max} bytes", path.display())]
    TextTooLong {
        /// The file.
        path: std::path::PathBuf,
        /// The limit.
        max: u64,
    },
    /// A line of a file of rows is not a row.
    #[error("{}, line {line}: {source}", path.display())]
    Row {
        /// The file.
        path: std::path::PathBuf,
        /// The line, from 1.
        line: usize,
        /// The problem.
        source: serde_json::Error,
    },
    /// The engine's tokenizer cannot encode a text.
    #[error(transparent)]
    Encode(#[from] refrain::TokenizerError),
    /// The target could not be loaded, or the predictor could not be made or written.
    #[error(transparent)]
    Load(#[from] refrain::LoadError),
    /// The target could not be run.
    #[error(transparent)]
    Generate(#[from] refrain::GenerateError),
    /// There is too little text for training.
    #[error("the text has {given} positions to learn from, {needed} are needed")]
    TooFewPositions {
        /// Positions of the text.
        given: usize,
        /// Required positions: those of a step, and as many held out.
        needed: usize,
    },
    /// There are too few passages for training and evaluation.
    #[error("the text has {given} passages to learn from, 2 are needed")]
    TooFewPassages {
        /// Completely recorded passages of the text.
        given: usize,
    },
    /// The tokenizer lacks a token of the chat template.
    #[error("the tokenizer has no token {0}: make it again with `refrain-burn tokenizer`")]
    NoSpecialToken(&'static str),
    /// The loss is not a number.
    #[error("the loss is {loss} at step {step}; the last saved state is intact")]
    Diverged {
        /// The step.
        step: usize,
        /// The loss.
        loss: f64,
    },
    /// The command line is wrong.
    #[error("{0}")]
    Usage(String),
}

impl From<refrain::SessionError> for Error {
    fn from(error: refrain::SessionError) -> Self {
        Self::Generate(error.into())
    }
}
