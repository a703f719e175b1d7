//! What can go wrong while training.

/// An error of the trainer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file could not be read or written.
    #[error("file: {0}")]
    Io(#[from] std::io::Error),
    /// A JSON file is malformed.
    #[error("JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// The tokenizer crate refused.
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
    Gguf(#[from] refrain::model::gguf::GgufWriteError),
    /// A checkpoint is not what the exporter writes.
    #[error("weights: {0}")]
    Weights(String),
    /// The tokenizer lacks a token that the chat template needs.
    #[error("the tokenizer has no token {0}: make it again with `refrain-burn tokenizer`")]
    NoSpecialToken(&'static str),
    /// The loss is no number any more.
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
