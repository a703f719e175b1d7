//! Options of a server.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use crate::error::ServeError;
use crate::limits::Limits;
use crate::origin::OriginName;

/// Minimum length of a token, in bytes: 16 characters of base64 have 96 bits.
pub(crate) const TOKEN_BYTES_MIN: usize = 16;
/// Maximum length of a token, in bytes. Headers have a limit of their own.
pub(crate) const TOKEN_BYTES_MAX: usize = 4096;

/// Options of a server.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServeOptions {
    /// The address to listen on. Default 127.0.0.1. An address that other devices reach needs a token.
    pub host: IpAddr,
    /// The port; 0 takes a free one. Default 8080.
    pub port: u16,
    /// A Unix socket to listen on instead of an address; only its owner may open it. Default: none.
    pub unix_socket: Option<PathBuf>,
    /// The secret that every request must have as `Authorization: Bearer …`, or as `x-api-key`. Default: none.
    pub token: Option<String>,
    /// Origins of web pages that may use the server, such as `https://chat.example`. Default: none but the server's own.
    pub origins: Vec<String>,
    /// Further names of this device that requests may have as `Host`, without a port. Addresses and `localhost` need no entry.
    pub hosts: Vec<String>,
    /// Whether clients of the Model Context Protocol may delete notes, and answers made from them, with the tool `forget`. Default: no.
    pub mcp_forget: bool,
    /// Whether SIGTERM stops the server, as service managers expect. Default: it ends the program.
    pub stops_on_sigterm: bool,
    /// The limits.
    pub limits: Limits,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8080,
            unix_socket: None,
            token: None,
            origins: Vec::new(),
            hosts: Vec::new(),
            mcp_forget: false,
            stops_on_sigterm: false,
            limits: Limits::default(),
        }
    }
}

impl std::fmt::Debug for ServeOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { host, port, unix_socket, token, origins, hosts, mcp_forget, stops_on_sigterm, limits } =
            self;
        f.debug_struct("ServeOptions")
            .field("host", host)
            .field("port", port)
            .field("unix_socket", unix_socket)
            .field("has_token", &token.is_some())
            .field("origins", origins)
            .field("hosts", hosts)
            .field("mcp_forget", mcp_forget)
            .field("stops_on_sigterm", stops_on_sigterm)
            .field("limits", limits)
            .finish()
    }
}

impl ServeOptions {
    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.port)
    }

    /// Checks the options, without a look at the system; [`Server::bind`](crate::Server::bind) does so too.
    ///
    /// # Errors
    /// [`ServeError`], with the name of the option.
    pub fn check(&self) -> Result<(), ServeError> {
        match &self.token {
            None if self.unix_socket.is_none() && !self.host.is_loopback() => {
                return Err(ServeError::TokenRequired { host: self.host });
            }
            Some(token) if !(TOKEN_BYTES_MIN..=TOKEN_BYTES_MAX).contains(&token.len()) => {
                let given = token.len();
                return Err(ServeError::TokenLength { given, min: TOKEN_BYTES_MIN, max: TOKEN_BYTES_MAX });
            }
            Some(token) if !token.bytes().all(|byte| byte.is_ascii_graphic()) => {
                return Err(ServeError::TokenBytes);
            }
            _ => {}
        }
        for origin in &self.origins {
            OriginName::read(origin).ok_or_else(|| ServeError::Origin { given: origin.clone() })?;
        }
        let is_name = |host: &&String| {
            !host.is_empty()
                && host.len() <= 253
                && host.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_'))
        };
        if let Some(host) = self.hosts.iter().find(|host| !is_name(host)) {
            return Err(ServeError::HostName { given: host.clone() });
        }
        let Limits { header_bytes, running, connections, choices, .. } = self.limits;
        for (limit, given, min) in [
            ("header_bytes", header_bytes, 8192),
            ("running", running, 1),
            ("connections", connections, 1),
            ("choices", choices, 1),
        ] {
            if given < min {
                return Err(ServeError::LimitTooSmall { limit, given, min });
            }
        }
        Ok(())
    }
}
