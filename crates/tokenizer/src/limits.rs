//! Limits on a tokenizer's files and texts, and a field that errors name.

/// The name of the pre-tokenizer of a byte-level vocabulary in GGUF files.
pub const PRE_TOKENIZER: &str = "tokenizer.ggml.pre";

/// Maximum number of tokens in a vocabulary; published vocabularies have up to 262,144.
pub const VOCAB_SIZE_MAX: usize = 1 << 24;
/// Maximum length of a text for [`Tokenizer::encode`](super::Tokenizer::encode), in bytes: about a million tokens. Encoding needs about 140
/// bytes of memory per byte of text (measured), so this also limits a call to about 600 MB.
pub const TEXT_BYTES_MAX: usize = 4 << 20;
/// Maximum number of control and user-defined tokens.
pub const ADDED_TOKENS_MAX: usize = 1 << 16;
/// Maximum length of a control or user-defined token, in bytes (published: about 90, a run of spaces or newlines).
/// The automaton that finds these tokens needs about 70 bytes of memory per byte of their text (measured).
pub const ADDED_TOKEN_BYTES_MAX: usize = 1 << 10;
/// Maximum total length of all control and user-defined tokens, in bytes. Building the automaton takes about 3 µs per
/// byte (measured on tokens of 1000 bytes).
pub const ADDED_TOKENS_BYTES_MAX: usize = 1 << 20;
/// Memory needed to build a tokenizer, as a multiple of its files' bytes, in addition to [`FILE_MEMORY_SLACK`].
pub const FILE_MEMORY_MULTIPLE: usize = 64;
/// Memory needed to build a tokenizer from the smallest files, in bytes.
pub const FILE_MEMORY_SLACK: usize = 64 << 20;
