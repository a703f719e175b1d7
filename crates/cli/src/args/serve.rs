//! The options of `serve` and `mcp`.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::Args;
use clap::builder::RangedU64ValueParser;
use refrain_program::args::{ModelArgs, addressable_bytes};

use super::session::SessionArgs;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The address to listen on. One that other devices reach needs --token.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    pub(crate) host: IpAddr,
    /// The port; 0 takes a free one.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    pub(crate) port: u16,
    /// Listen on this Unix socket instead of an address. Only this user may open it.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port"])]
    pub(crate) unix_socket: Option<PathBuf>,
    /// The secret that requests must have as `Authorization: Bearer …`, at least 16 characters. The variable REFRAIN_TOKEN hides it from other
    /// users of this device [default with --notes on an address: a new one, which the printed address has].
    #[arg(long, value_name = "SECRET", conflicts_with = "no_token")]
    pub(crate) token: Option<String>,
    /// Serve --notes without a token: every program and every user of this device can read the notes.
    #[arg(long)]
    pub(crate) no_token: bool,
    /// Let pages of this origin use the server, such as `https://chat.example`. May be repeated.
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) origin: Vec<String>,
    /// A further name of this device that clients use, without a port. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub(crate) allow_host: Vec<String>,
    /// The name of the model in the API [default: the name of its file].
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// A further model, loaded at its first request. May be repeated.
    #[arg(long, value_name = "PATH")]
    pub(crate) add_model: Vec<PathBuf>,
    /// A model for `/v1/embeddings`, loaded at its first request.
    #[arg(long, value_name = "PATH")]
    pub(crate) embedding_model: Option<PathBuf>,
    /// Offer every pulled model under its name, loaded at its first request.
    #[arg(long)]
    pub(crate) pulled: bool,
    /// Memory of all loaded models, with the one that is being loaded, such as 16GiB. The longest unused ones without a request are unloaded, and a model that
    /// has no room is refused [default: no limit].
    #[arg(long, value_name = "BYTES", value_parser = addressable_bytes)]
    pub(crate) models_memory: Option<usize>,
    /// Requests that compute at a time, in turns. Each has a KV cache.
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub(crate) parallel: usize,
    /// Requests that wait; further ones are refused.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub(crate) queue: usize,
    /// Seconds that running requests have to end when the server is stopped. Later ones are cancelled.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = RangedU64ValueParser::<u64>::new().range(..=3600))]
    pub(crate) grace_time: u64,
    /// Memory of computed prompts that are kept per model, for the next turns of conversations.
    #[arg(long, value_name = "BYTES", default_value = "512MiB", value_parser = addressable_bytes)]
    pub(crate) kept_prompts: usize,
    #[command(flatten)]
    pub(crate) notes: NotesArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
}

#[derive(Debug, Args)]
pub(crate) struct McpArgs {
    #[command(flatten)]
    pub(crate) notes: NotesArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
}

/// The notes of a server, and what it keeps.
#[derive(Debug, Args)]
#[command(next_help_heading = "Notes")]
pub(crate) struct NotesArgs {
    /// Notes to answer from: folders and files, which are added to the index and watched, or the folder of an index [default without
    /// PATH: the index, as `refrain index` keeps it].
    #[arg(long, value_name = "PATH", num_args = 0..)]
    pub(crate) notes: Option<Vec<PathBuf>>,
    /// The folder of the index [default: `refrain/notes` in the user's data folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) index: Option<PathBuf>,
    /// Keep answers from notes and their computed prompts in this folder; later ones draft from the answers and restore the prompts [default
    /// with --notes: `refrain/assistant` in the user's data folder]. Never changes the output.
    #[arg(long, value_name = "DIR", conflicts_with = "no_store")]
    pub(crate) store: Option<PathBuf>,
    /// Keep answers in memory, and nothing on disk.
    #[arg(long)]
    pub(crate) no_store: bool,
    /// Offer clients of the Model Context Protocol the tool `forget`, which deletes notes from the index and what was made from them.
    #[arg(long)]
    pub(crate) mcp_forget: bool,
}
