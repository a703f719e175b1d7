//! Prefixes of prompts on disk: keys and values, and states of recurrent layers, that were computed once and are restored bit for bit.
//!
//! ```no_run
//! use refrain::{Engine, EngineOptions, GenerateOptions, Role, SessionOptions};
//! use refrain_index::prefixes::{Label, PrefixOptions, PrefixStore};
//!
//! let engine = Engine::open("model.gguf", EngineOptions::default())?;
//! let prefixes = PrefixStore::open("prefixes".as_ref(), PrefixOptions::default())?;
//! let mut session = engine.session(SessionOptions::default())?;
//! session.append_turn(Role::System, "You answer from the notes. …")?;
//! let before = session.state_mut().encode()?.to_vec();
//! session.append_turn(Role::User, "Where is the key?")?;
//! prefixes.restore(&mut session, "mail")?;
//! for event in session.generate(GenerateOptions::default())? {
//!     event?; // …
//! }
//! // The label begins where the tokens differ from those of the system turn, which all conversations share.
//! let tokens = session.tokens();
//! let start = tokens.iter().zip(&before).take_while(|(a, b)| a == b).count();
//! let label = Label { tokens: start..tokens.len(), name: "conversation:17".to_owned() };
//! prefixes.keep(&session, "mail", &[label], usize::MAX)?;
//! // … and when the user deletes the conversation:
//! prefixes.forget("mail", "conversation:17")?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # In the folder
//!
//! ```text
//! FOLDER/
//!   STORE.lock                      locked by an open store as long as it lives
//!   CHANGES.lock                    locked while names change
//!   v1-KEY/                         the version of the format, and a hash of the key
//!     NAMESPACE/                    an app, a user, a task
//!       INDEX-PARENT-ID-TOKENS      a block: up to 64 tokens and their state
//!       ID.LABEL                    empty: the block contains tokens with this label
//!       STORE-N.partial             a block that is being written
//!       forget-…                    empty: what is being forgotten
//!       seen                        ids of blocks that one prompt had, and that are not stored
//! ```
//!
//! A block's id is a hash of its parent's id and its tokens, and the first parent is a hash of namespace and
//! [`StateKey`](refrain::state::StateKey). So equal beginnings of prompts are stored once, and what follows from a block is
//! told by names alone. Keys and values of a position depend on the tokens up to it only, so the first positions of a
//! block serve a prompt that agrees with them and then differs. All names are hashes (BLAKE3), keyed if there is a key.
//! Recurrent layers have a state at the end of a block only: `recurrent.rs` describes where it is stored.
//!
//! Readers need no lock. Names change under a lock of the folder, which is held for a few files at a time:
//!
//! - A block is written under another name, without the lock, and renamed. Its labels exist, durably, before it does, and
//!   are removed after it. Two processes that write the same block write the same contents, except that one may know the state of
//!   recurrent layers at its end and the other may not: the last one stays.
//! - A reader that finds a file removed restores less.
//! - Forgetting states its intent in a file, removes, and then removes the intent. After a crash, the next
//!   [`open`](PrefixStore::open) finishes it.
//! - What a killed process was writing is removed by the next open, which finds the process's lock free.
//!
//! # Guarantees
//!
//! - A restored session gives the same bits as one that computed its prompt. A checksum (XXH3), or with a key an
//!   authentication tag (XChaCha20-Poly1305), covers every byte and is verified before the byte is used.
//! - Damaged and foreign files are left aside; [`verify`](PrefixStore::verify) lists them. A damaged block is replaced
//!   when its prefix is kept again. Links, pipes and folders are foreign, whatever their names.
//! - What another version of the format or another key, or none, wrote is removed by [`open`](PrefixStore::open), because
//!   it could not be forgotten.
//! - After [`forget`](PrefixStore::forget) returned, no file holds the forgotten tokens or what was computed from them.
//! - Nothing is shared between namespaces, models, tokenizers, types of KV cache, and versions of the arithmetic.
//! - The files take at most [`PrefixOptions::max_bytes`].
//! - Losing a block costs time only, so keeping waits for the disk only for labels, unless [`PrefixOptions::sync`] is set.

mod block;
mod error;
#[cfg(test)]
mod faults;
mod folder;
mod options;
mod recurrent;
mod report;
mod seal;
mod seen;
mod store;
mod upkeep;

pub use error::{PrefixError, PrefixProblem};
pub use options::{Label, PrefixOptions};
pub use report::{LeftAside, PrefixStatus};
pub use store::PrefixStore;
