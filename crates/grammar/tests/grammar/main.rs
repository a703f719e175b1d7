//! Grammars: the masked text is that of plain decoding, and it is in the language.

#[path = "../../../../tests/common/mod.rs"]
mod common;
mod endings;
mod exact;
mod gbnf;
#[path = "../grammars/mod.rs"]
mod grammars;
mod lossless;
mod random_grammars;
mod refusals;
mod vocabularies;
