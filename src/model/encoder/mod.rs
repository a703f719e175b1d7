//! Sentence encoders of BERT's family: texts to vectors, by layers in which every position sees every other.
//!
//! ```text
//! x    = norm(word[token] + position[i] + type[0])                        layer norms, with biases
//! each layer:
//!     x = norm(x + out · attention(q · x, k · x, v · x))                  every row sees the whole text
//!     x = norm(x + down · gelu(up · x))
//! vector = mean of the rows, or the first one; scaled to length 1
//! ```
//!
//! Products, attention and row-wise functions are those of the decoders, over one layer of keys and values that is written anew for each
//! text. A row's bits depend on its own text, so texts share passes. Weights keep the type of the file: at 22 to 300 million
//! parameters the vectors matter more than the memory.
//!
//! [`EncoderConfig`] reads the files of a folder, `weights` the tensors, `pass` computes. [`Encoder`](crate::embedding::Encoder) is the
//! handle of apps.

mod config;
mod pass;
mod weights;

pub use config::{
    CONFIG_FILES, EncoderConfig, POSITIONS_MAX, PROMPT_BYTES_MAX, Pooling, is_encoder, parse_encoder_config,
};
pub use pass::{EncodeError, EncoderWorkspace};
pub use weights::EncoderWeights;
