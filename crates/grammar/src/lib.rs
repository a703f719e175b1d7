//! Grammars for the engine [`refrain`]: JSON Schema, regular expressions, lists of choices, Lark and GBNF grammars.
//!
//! A [`Vocabulary`] is built once per tokenizer. A [`Grammar`] is compiled once per schema and constrains any number of
//! generations:
//!
//! ```no_run
//! use refrain::{Engine, EngineOptions, GenerateOptions, Role, SessionOptions};
//! use refrain_grammar::{Grammar, JsonOptions, Vocabulary};
//!
//! let engine = Engine::open("model.gguf", EngineOptions::default())?;
//! let vocabulary = Vocabulary::of_engine(&engine)?;
//! let schema = r#"{"type": "object", "properties": {"action": {"enum": ["click", "scroll"]}}, "required": ["action"]}"#;
//! let grammar = Grammar::json_schema(&vocabulary, schema, JsonOptions::default())?;
//!
//! let mut session = engine.session(SessionOptions::default())?;
//! session.append_turn(Role::User, "Show me the next page.")?;
//! for event in session.generate(grammar.constrain(GenerateOptions::default()))? {
//!     println!("{:?}", event?);
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Grammar::constrain`] adds two parts to a generation. The [`GrammarMask`] forbids every token that the grammar does not
//! allow, at each visited node with that node's path as the text. It decides the output. The [`GrammarDrafts`] propose the
//! tokens that the grammar forces, and the branches if the grammar leaves few of them; they change only the speed. The output equals
//! plain decoding with the same mask, bit for bit.
//!
//! The parser is the crate [`llguidance`].

mod alternatives;
mod compile;
mod compiled;
mod dead_ends;
mod decimal;
mod drafts;
mod error;
mod facts;
mod follower;
mod gbnf;
mod grammar;
mod json;
mod lark;
mod limits;
mod marker;
mod mask;
mod numbers;
mod parser;
mod prices;
mod schema;
mod vocabulary;
mod watch;

pub use drafts::GrammarDrafts;
pub use error::{GrammarError, GrammarKind, VocabularyError};
pub use gbnf::{GbnfProblem, is_gbnf};
pub use grammar::Grammar;
pub use limits::{CHOICES_MAX, GRAMMAR_BYTES_MAX, MARKER_BYTES_MAX};
pub use mask::{GrammarMask, MaskAhead};
pub use schema::JsonOptions;
pub use vocabulary::Vocabulary;
