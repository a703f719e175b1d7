//! Errors: of starting a server, and of requests. Each API gives the errors of requests its own status and form (`api`).
//!
//! Messages name fields, limits and numbers. They never repeat text of a request.

use std::error::Error as _;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};

use refrain::{ErrorKind as Kind, GenerateError};
use refrain_grammar::{GrammarError, GrammarKind};
use thiserror::Error;

/// A server cannot start, or its listener has failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// The folder of a store cannot have the file that names the server.
    #[error("cannot write the server's address into `{}`: {source}", path.display())]
    Announce {
        /// The folder.
        path: std::path::PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// Other devices could reach the server without a secret.
    #[error("other devices can reach {host}, so a token is needed")]
    TokenRequired {
        /// The address.
        host: IpAddr,
    },
    /// The token is too short or too long.
    #[error("the token has {given} bytes, outside {min}..={max}")]
    TokenLength {
        /// Its bytes.
        given: usize,
        /// The minimum.
        min: usize,
        /// The maximum.
        max: usize,
    },
    /// The token has a byte that a header cannot have.
    #[error("the token may have visible ASCII characters only")]
    TokenBytes,
    /// An origin is not `scheme://host` or `scheme://host:port`.
    #[error("`{given}` is not an origin, such as `https://chat.example` or `http://localhost:3000`")]
    Origin {
        /// The text.
        given: String,
    },
    /// The name of a host has other characters than letters, digits, `-`, `.` and `_`.
    #[error("`{given}` is not the name of a host")]
    HostName {
        /// The text.
        given: String,
    },
    /// A limit is too small.
    #[error("the limit {limit} is {given}, less than {min}")]
    LimitTooSmall {
        /// The limit's name.
        limit: &'static str,
        /// The value.
        given: usize,
        /// The minimum.
        min: usize,
    },
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The reason.
        source: std::io::Error,
    },
    /// A Unix socket cannot be listened on.
    #[error("cannot listen on the socket `{}`: {source}", path.display())]
    Socket {
        /// Its path.
        path: std::path::PathBuf,
        /// The reason.
        source: std::io::Error,
    },
    /// Another server has the Unix socket.
    #[error("another server listens on the socket `{}`", path.display())]
    SocketInUse {
        /// Its path.
        path: std::path::PathBuf,
    },
    /// There is another file in the place of the Unix socket.
    #[error("`{}` exists and is no socket", path.display())]
    NotASocket {
        /// Its path.
        path: std::path::PathBuf,
    },
    /// This system has no Unix sockets.
    #[error("this system has no Unix socket for `{}`", path.display())]
    SocketUnsupported {
        /// The path.
        path: std::path::PathBuf,
    },
    /// A client on standard input does not begin with the handshake of the Model Context Protocol.
    #[error("the client on standard input does not speak the Model Context Protocol")]
    Handshake,
    /// The threads of the server cannot be started.
    #[error("cannot start the threads of the server: {0}")]
    Runtime(#[source] std::io::Error),
}

/// A list of models cannot be used.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelsError {
    /// There is no model.
    #[error("there is no model")]
    Empty,
    /// Two models have one name.
    #[error("two models have the name `{id}`")]
    Duplicate {
        /// The name.
        id: String,
    },
    /// No model has this name.
    #[error("no model has the name `{id}`")]
    Unknown {
        /// The name.
        id: String,
    },
    /// A model cannot be loaded.
    #[error("the model `{id}` cannot be loaded: {reason}")]
    Load {
        /// Its name.
        id: String,
        /// The reason.
        reason: String,
    },
    /// A name is empty or too long.
    #[error("the name of a model has {given} bytes, outside 1..={max}")]
    NameLength {
        /// Its bytes.
        given: usize,
        /// The maximum.
        max: usize,
    },
}

/// Why a request fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorKind {
    /// A field, or the body.
    Invalid,
    /// The token is missing or wrong.
    Unauthorized,
    /// The host or the page that asks is not allowed.
    Forbidden,
    /// The model, the address, or a note.
    NotFound,
    WrongMethod,
    /// The body comes too slowly.
    TooSlow,
    /// The body is too long.
    TooLarge,
    /// The body has another content type.
    WrongType,
    /// The queue is full.
    Busy,
    /// A failure of the server.
    Failed,
    /// The server has no room, or stops.
    Unavailable,
}

/// An error of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiError {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    /// The field's path, such as `messages[0].content`.
    pub(crate) param: Option<String>,
    pub(crate) code: Option<&'static str>,
    /// Seconds until a further attempt makes sense.
    pub(crate) retry_after: Option<u32>,
    /// Official clients repeat requests with server errors, unless a header says that it is no use.
    pub(crate) is_final: bool,
    /// Tokens of a prompt that is too long, and of the context.
    pub(crate) overflow: Option<(usize, usize)>,
}

pub(crate) type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            param: None,
            code: None,
            retry_after: None,
            is_final: false,
            overflow: None,
        }
    }

    /// A field is missing, or has a wrong type or value.
    pub(crate) fn field(param: impl Into<String>, message: impl Display) -> Self {
        let param = param.into();
        let message = format!("`{param}`: {message}");
        Self::new(ErrorKind::Invalid, message).with_param(param)
    }

    /// A field would change the output, and is not supported.
    pub(crate) fn unsupported(param: impl Into<String>, message: impl Display) -> Self {
        Self::field(param, message).with_code("unsupported_parameter")
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }

    pub(crate) fn forbidden(code: &'static str, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Forbidden, message).with_code(code)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotFound, message)
    }

    pub(crate) fn busy(message: impl Into<String>, retry_after: u32) -> Self {
        let error = Self::new(ErrorKind::Busy, message);
        Self { retry_after: Some(retry_after), ..error.with_code("queue_full") }
    }

    pub(crate) fn server(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Failed, message)
    }

    /// Something has panicked.
    pub(crate) fn bug() -> Self {
        Self::server("a bug in this server")
    }

    fn unavailable(code: &'static str, message: impl Into<String>, retry_after: Option<u32>) -> Self {
        let error = Self::new(ErrorKind::Unavailable, message);
        Self { retry_after, ..error.with_code(code) }
    }

    /// All connections are taken.
    pub(crate) fn no_connection(n_connections: usize) -> Self {
        Self::unavailable("connections", format!("all {n_connections} connections are taken"), Some(1))
    }

    /// The request was stopped: its client has gone, or the server stops.
    pub(crate) fn stopped() -> Self {
        Self::unavailable("stopped", "the request was stopped because the server stops", None)
    }

    /// The memory budget has no room for the request's model.
    pub(crate) fn no_memory(message: impl Into<String>) -> Self {
        Self::unavailable("models_memory", message, Some(5))
    }

    /// The request has waited too long for its computation.
    pub(crate) fn waited_too_long() -> Self {
        Self::unavailable("queue_time", "the request has waited too long", Some(30))
    }

    pub(crate) fn with_param(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    /// The same request would fail again.
    pub(crate) fn finally(self) -> Self {
        Self { is_final: true, ..self }
    }

    pub(crate) fn with_code(self, code: &'static str) -> Self {
        Self { code: Some(code), ..self }
    }

    /// An error of the engine, for the field of the request that has the text. Messages of tokenizers and templates might repeat text of
    /// the prompt.
    pub(crate) fn of_engine(error: impl Into<GenerateError>, param: &str) -> Self {
        let error = error.into();
        let (value, limit) = (error.value().unwrap_or_default(), error.limit().unwrap_or_default());
        match (error.kind(), error.field()) {
            (Kind::ContextFull, _) => Self::context_overflow(value as usize, limit as usize, param),
            (Kind::OverLimit, Some("text")) => {
                Self::field(param, format!("{value} bytes of text exceed the limit of {limit}"))
                    .with_code("context_length_exceeded")
            }
            (Kind::NotFound, Some("chat_template")) => {
                Self::field(param, "the model has no chat template; `/v1/completions` continues plain text")
            }
            (_, Some("chat_template")) => {
                Self::field(param, "the chat template of the model does not accept these messages")
            }
            (Kind::InvalidArgument, Some("token")) => {
                Self::field(param, format!("token {value} is outside the vocabulary of {limit} tokens"))
            }
            (Kind::InvalidArgument, Some("prompt")) => Self::field(param, "the prompt has no token"),
            (Kind::InvalidArgument, Some("stop")) => {
                Self::field("stop", format!("a string has {value} bytes, outside 1..={limit}"))
            }
            // Numbers of options, which the server sets.
            (Kind::InvalidArgument, _) => Self::server(error.to_string()),
            (Kind::OutOfMemory, _) => Self::server("there is no memory for another session"),
            (Kind::NoToken, _) => Self::bad_request(error.to_string()),
            (Kind::Processor, _) => match error.source().and_then(|source| source.downcast_ref()) {
                // The grammar is the client's, and so is its limit.
                Some(GrammarError::TooComplex { position, reason }) => {
                    let message =
                        format!("the grammar is too complex at output token {position}: {}", brief(reason));
                    Self::bad_request(message).with_code("unsupported_schema").finally()
                }
                Some(GrammarError::NoToken { position }) => {
                    let message =
                        format!("no token of the model continues the grammar at output token {position}");
                    Self::bad_request(message).with_code("unsupported_schema").finally()
                }
                Some(_) => Self::server("the parser of the grammar failed").finally(),
                None => Self::server("a processor of logits failed"),
            },
            (Kind::Unsupported | Kind::OverLimit, _) if error.file().is_some() => {
                Self::field(param, "the tokenizer of the model does not accept this text")
            }
            _ => Self::server("a pass of the model failed"),
        }
    }

    pub(crate) fn context_overflow(n_tokens: usize, context_len: usize, param: &str) -> Self {
        let message = format!(
            "the prompt has {n_tokens} tokens, and the context of the model {context_len}, output included"
        );
        let error = Self::field(param, message).with_code("context_length_exceeded");
        Self { overflow: Some((n_tokens, context_len)), ..error }
    }

    /// A schema or another grammar is refused. The reason names keywords of the schema, which are no text of a prompt.
    pub(crate) fn of_grammar(error: &GrammarError, param: &str) -> Self {
        match error {
            GrammarError::Busy { reason } => return Self::busy(brief(reason), GRAMMAR_RETRY_SECONDS),
            GrammarError::Schema { pointer: Some(pointer), reason } => {
                Self::field(param, format!("the schema is refused at `{pointer}`: {}", brief(reason)))
            }
            GrammarError::Refused { kind: kind @ GrammarKind::Gbnf, reason } => {
                Self::field(param, format!("the {kind} is refused: {}", brief(reason)))
            }
            GrammarError::Schema { pointer: None, reason } | GrammarError::Refused { reason, .. } => {
                Self::field(param, format!("the schema is refused: {}", brief(reason)))
            }
            error => Self::field(param, error),
        }
        .with_code("unsupported_schema")
    }
}

/// When a client tries again whose grammar nobody had time for.
const GRAMMAR_RETRY_SECONDS: u32 = 5;

/// The first line of a parser's message, at most 200 characters.
fn brief(reason: &str) -> String {
    reason.lines().next().unwrap_or_default().chars().take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grammar_that_nobody_has_time_for_is_no_fault_of_the_client() {
        let error = ApiError::of_grammar(&GrammarError::Busy { reason: "later".to_owned() }, "tools");
        assert_eq!(error.kind, ErrorKind::Busy);
        assert_eq!(error.retry_after, Some(GRAMMAR_RETRY_SECONDS));
    }
}
