//! The options of `serve` and `mcp`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use refrain_program::args::{ModelArgs, addressable_bytes, number, setting};
use refrain_serve::Limits;

use super::session::SessionArgs;

#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The address, the port, both, or `unix:PATH` for a socket of this user.
    ///
    /// Such as 0.0.0.0, 8081, 127.0.0.1:0 (a free port) or [::1]:8080. An address that other devices reach needs --token. Only this user
    /// may open the socket.
    #[arg(long, value_name = "PLACE", default_value = "127.0.0.1:8080", value_parser = listen)]
    pub(crate) listen: Listen,
    /// The secret of every request, at least 16 characters; `none` for none.
    ///
    /// Requests have it as `Authorization: Bearer …`. The variable REFRAIN_TOKEN hides it from other users of this device. The default with
    /// --notes on an address is a new one, which the printed address has. With --notes and `none`, every program and every user of this
    /// device can read the notes.
    #[arg(long, value_name = "SECRET")]
    pub(crate) token: Option<String>,
    /// Let pages of this origin use the server, such as `https://chat.example`.
    ///
    /// May be repeated.
    #[arg(long, value_name = "ORIGIN")]
    pub(crate) origin: Vec<String>,
    /// A further name of this device that clients use, without a port.
    ///
    /// May be repeated.
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
    /// Notes to answer from: folders and files to watch, or an index.
    ///
    /// Folders and files are added to the index. Without PATH: the index as `refrain index` keeps it.
    #[arg(long, value_name = "SETTINGS", value_delimiter = ',', value_parser = limit, verbatim_doc_comment)]
    pub(crate) limits: Vec<Limit>,
    #[command(flatten)]
    pub(crate) notes: NotesArgs,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) session: SessionArgs,
}

/// Where a server listens.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Listen {
    Address(SocketAddr),
    Socket(PathBuf),
}

fn listen(text: &str) -> Result<Listen, String> {
    const PORT: u16 = 8080;
    if let Some(path) = text.strip_prefix("unix:") {
        return Ok(Listen::Socket(path.into()));
    }
    let address = text.parse::<SocketAddr>().ok();
    let host = || text.parse::<IpAddr>().ok().map(|host| SocketAddr::new(host, PORT));
    let port = || text.parse::<u16>().ok().map(|port| SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port));
    let address = address.or_else(host).or_else(port);
    address.map(Listen::Address).ok_or_else(|| "give an address, a port, both, or unix:PATH".to_owned())
}

/// A limit of a server.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Limit {
    Running(usize),
    Waiting(usize),
    Grace(Duration),
    Prompts(usize),
    Models(usize),
}

fn limit(text: &str) -> Result<Limit, String> {
    const GRACE_MAX: u64 = 3600;
    setting(text, |key, value| {
        Some(match key {
            "running" => number(value).map(Limit::Running),
            "waiting" => number(value).map(Limit::Waiting),
            "grace" => number(value).and_then(|seconds| match seconds {
                0..=GRACE_MAX => Ok(Limit::Grace(Duration::from_secs(seconds))),
                _ => Err(format!("the maximum is {GRACE_MAX} seconds")),
            }),
            "prompts" => addressable_bytes(value).map(Limit::Prompts),
            "models" => addressable_bytes(value).map(Limit::Models),
            _ => return None,
        })
    })
}

impl ServeArgs {
    /// The limits of requests.
    pub(crate) fn limits(&self) -> Limits {
        let mut limits = Limits::default();
        for limit in self.limits.iter().copied() {
            match limit {
                Limit::Running(n) => limits.running = n,
                Limit::Waiting(n) => limits.waiting = n,
                Limit::Grace(time) => limits.grace_time = time,
                Limit::Prompts(bytes) => limits.warm_bytes = bytes,
                Limit::Models(_) => {}
            }
        }
        limits
    }

    /// The memory of all loaded models.
    pub(crate) fn models_memory(&self) -> Option<usize> {
        self.limits.iter().rev().find_map(|limit| match limit {
            Limit::Models(bytes) => Some(*bytes),
            _ => None,
        })
    }
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
    /// The folder of the index.
    ///
    /// The default is `refrain/notes` in the user's data folder.
    #[arg(long, value_name = "DIR")]
    pub(crate) index: Option<PathBuf>,
    /// Where answers and computed prompts are kept; `none` keeps them in memory.
    ///
    /// Later answers draft from them and restore the prompts. The default with --notes is `refrain/assistant` in the user's data folder.
    /// Never changes the output.
    #[arg(long, value_name = "DIR")]
    pub(crate) store: Option<PathBuf>,
    /// Let clients of the Model Context Protocol delete notes.
    ///
    /// Their tool `forget` deletes notes from the index and what was made from them.
    #[arg(long)]
    pub(crate) mcp_forget: bool,
}

impl NotesArgs {
    /// Whether anything may be written to the disk unasked.
    pub(crate) fn keeps(&self) -> bool {
        !self.store.as_deref().is_some_and(super::is_none)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_limits_are_read() {
        let address = |text: &str| Ok(Listen::Address(text.parse().unwrap()));
        assert_eq!(listen("0.0.0.0"), address("0.0.0.0:8080"));
        assert_eq!(listen("0"), address("127.0.0.1:0"));
        assert_eq!(listen("[::1]:81"), address("[::1]:81"));
        assert_eq!(listen("unix:a/b"), Ok(Listen::Socket("a/b".into())));
        assert!(listen("somewhere").is_err() && listen("70000").is_err());
        assert_eq!(limit("grace=3600"), Ok(Limit::Grace(Duration::from_secs(3600))));
        assert_eq!(limit("prompts=1GiB"), Ok(Limit::Prompts(1 << 30)));
        for (text, part) in
            [("grace=3601", "grace: the maximum"), ("models=1.5GiB", "models: "), ("x=1", "no key `x`")]
        {
            assert!(limit(text).unwrap_err().contains(part), "{text}");
        }
    }
}
