//! Model files, tokenizers and templates: what is read from outside, and what is refused.

mod bad_config;
mod bad_gguf;
mod bad_hf;
mod bad_tensors;
mod bad_tokenizers;
mod chat_templates;
#[path = "../common/mod.rs"]
mod common;
mod gguf_converted;
mod golden_blocks;
mod golden_files;
#[path = "../model_files/mod.rs"]
mod model_files;
mod moved_files;
mod packed;
mod pre_tokenizers;
mod special_files;
mod tokenizer_goldens;
mod tokenizers;
