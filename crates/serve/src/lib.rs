//! A local server for the engine [`refrain`]: the APIs of OpenAI, Ollama and Anthropic over HTTP/1.1, and the Model Context Protocol, for one
//! person's device.
//!
//! A [`Server`] has [`Models`] and [`ServeOptions`]. It listens on a loopback address unless it has a token, and answers until its
//! [`CancelToken`](refrain::CancelToken) is cancelled:
//!
//! ```no_run
//! use refrain::{CancelToken, Engine, EngineOptions};
//! use refrain_serve::{Loaded, ModelSpec, Models, ServeOptions, Server};
//!
//! let spec = ModelSpec::new("model", || {
//!     Ok(Loaded::new(Engine::open("model.gguf", EngineOptions::default())?))
//! });
//! let server = Server::bind(ServeOptions::default(), Models::new([spec])?)?;
//! println!("http://{}", server.local_addr());
//! server.run(&CancelToken::new())?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Guarantees
//!
//! - A streamed answer equals the answer sent at once. Both equal the library's output for the same tokens, sampling and seed, bit for bit.
//! - If a field of a request would change the output and is not supported, the request is refused with status 400 and the field's name. Other
//!   fields that are not known are ignored; the header `x-refrain-ignored` names them.
//! - Requests of foreign pages are refused: the headers `Host` and `Origin` are checked before anything else.
//! - No log, metric, panic message or error contains text of prompts or outputs. The log has names of fields.
//! - Requests, connections and their times have limits ([`Limits`]).
//!
//! The guide is `docs/use/serve.md`.
//!
//! # Modules
//!
//! `server` accepts connections, of a `socket`. `security` checks every request before a route sees it. `api` has a folder for each API that
//! clients speak (OpenAI's, Ollama's, Anthropic's); each reads its JSON (`json`), and gives a `work` request to the models. `work` knows no
//! API; it makes the tokens of the prompt, waits in the `queue`, and drives the passes of the model in turns with the jobs of
//! [`refrain_assistant`]. `warm` keeps keys and values of recent prompts. `handed` runs commands of other processes that need the server's
//! store. `page` has the page at `/` and its endpoints. `mcp` has the Model Context Protocol at `/mcp`, and on standard input and output.

mod api;
mod app;
mod blocking;
mod body;
#[cfg(feature = "internals")]
mod check;
mod error;
mod handed;
mod json;
mod limits;
mod mcp;
mod metrics;
mod models;
mod options;
mod origin;
mod page;
mod queue;
mod response;
mod responses;
mod security;
mod server;
mod socket;
mod time;
mod work;

pub use error::{ModelsError, ServeError};
pub use handed::{Announcement, HandError, Handed, HoldingServer, RunHanded};
pub use limits::Limits;
pub use mcp::StdioServer;
pub use models::{Loaded, ModelKind, ModelSpec, Models};
pub use options::ServeOptions;
pub use server::{Server, quiet_panics};

/// Parts for fuzzing, without promises about their stability.
#[cfg(feature = "internals")]
#[doc(hidden)]
pub mod internals {
    pub use crate::check::BodyChecker;
}
