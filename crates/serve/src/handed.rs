//! Commands that other processes of the same program hand to the server: it has the store open, and they cannot.
//!
//! ```text
//! STORE/.server    the server's address and a secret, which only the owner of the store can read
//! ```
//!
//! | endpoint | request | answer |
//! | --- | --- | --- |
//! | `GET /handed/{nonce}` | a number of 32 hexadecimal digits | a hash of it and the secret |
//! | `POST /handed` | a command of the program, with the secret as its token | a stream of the command's events |
//!
//! A file that a killed server has left names a port that may be somebody else's now. So a client first asks for the hash of a random
//! number, and sends neither the secret nor a text to a server that does not know the secret. Pages of browsers are refused.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::{Path as AxumPath, Request, State};
use axum::http::{HeaderMap, header};
use axum::response::Response;
use axum::routing::{get, post};
use refrain::CancelToken;
use refrain_assistant::{Assistant, Forget, ForgetError, Forgotten};
use refrain_files::open_regular;
use refrain_files::replace::{Manner, replace_bytes};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::body;
use crate::error::{ApiError, ApiResult};
use crate::json::fields::Fields;
use crate::page::{Page, Sink, run_stream};

/// The file in the folder of the store.
const FILE: &str = ".server";
/// Maximum length of the file, in bytes.
const FILE_BYTES_MAX: u64 = 8192;
/// The path of the endpoints.
const PLACE: &str = "/handed";
/// What the hash of a client's number is for.
const PROOF: &str = "refrain-serve 2026-11: the server knows the secret of its store";
/// Length of a number and of a secret, in hexadecimal digits.
const DIGITS: usize = 32;
/// Time to connect, and to answer with the hash.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often a client looks whether it was cancelled.
const TICK: Duration = Duration::from_millis(100);
/// Maximum length of a server's proof with its head, in bytes.
const PROOF_BYTES_MAX: u64 = 4096;
/// Maximum length of an event or of the head of an answer, in bytes. The result of a command is one event.
const LINE_BYTES_MAX: u64 = 64 << 20;

/// A command that another process has handed over, while it runs.
pub struct Handed {
    command: Value,
    assistant: Assistant,
    page: Page,
    sink: Arc<Sink>,
}

impl Handed {
    /// The command, as the other process has given it to [`HoldingServer::run`].
    pub fn command(&self) -> &Value {
        &self.command
    }

    /// The assistant that has the store.
    pub fn assistant(&self) -> &Assistant {
        &self.assistant
    }

    /// Cancelled when the other process ends, or the server stops.
    pub fn cancel(&self) -> &CancelToken {
        self.sink.cancel()
    }

    /// Sends an event to the other process.
    pub fn send(&self, name: &str, data: &impl Serialize) {
        self.sink.send(name, data);
    }

    /// Deletes what the assistant has kept, and what the page was shown of it.
    ///
    /// # Errors
    /// As [`Assistant::forget_all`].
    pub fn forget_all(&self, what: &[Forget]) -> Result<Forgotten, ForgetError> {
        self.page.forget_with(&self.assistant, what)
    }
}

/// Runs commands that are handed over.
pub type RunHanded = dyn Fn(Handed) + Send + Sync;

#[derive(Clone)]
struct Handing {
    page: Page,
    secret: Arc<str>,
    run: Arc<RunHanded>,
}

/// The routes.
pub(crate) fn router(page: Page, secret: &str, run: Arc<RunHanded>) -> Router {
    Router::new().route(PLACE, post(handed)).route("/handed/{nonce}", get(proof)).with_state(Handing {
        page,
        secret: secret.into(),
        run,
    })
}

/// Whether a path is of these routes.
pub(crate) fn is_handed(path: &str) -> bool {
    path.strip_prefix(PLACE).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a path is public: the proof tells nothing of the secret.
pub(crate) fn is_proof(path: &str) -> bool {
    path.strip_prefix(PLACE).is_some_and(|rest| rest.starts_with('/'))
}

/// Pages have no command.
fn check_no_page(headers: &HeaderMap) -> ApiResult<()> {
    match headers.contains_key(header::ORIGIN) || headers.contains_key("sec-fetch-site") {
        true => Err(ApiError::forbidden("origin_not_allowed", "pages have no commands")),
        false => Ok(()),
    }
}

async fn proof(
    State(handing): State<Handing>,
    AxumPath(nonce): AxumPath<String>,
    headers: HeaderMap,
) -> ApiResult<String> {
    check_no_page(&headers)?;
    match is_digits(&nonce) {
        true => Ok(proof_of(&handing.secret, &nonce)),
        false => Err(ApiError::not_found("no such address")),
    }
}

async fn handed(State(handing): State<Handing>, request: Request) -> ApiResult<Response> {
    check_no_page(request.headers())?;
    let app = State(handing.page.app().clone());
    let read = |given: body::Given<'_>| {
        let mut fields = Fields::of_request(given.value)?;
        let command = fields.required("command")?.clone();
        fields.finish()?;
        Ok(command)
    };
    let (place, command) = body::read(&app, request, read).await?;
    let (_, assistant) = handing.page.assistant().await?;
    let Handing { page, run, .. } = handing;
    let theirs = page.clone();
    Ok(run_stream(&page, place, move |sink| {
        run(Handed { command, assistant, page: theirs, sink: Arc::clone(sink) });
        Ok(())
    }))
}

fn is_digits(text: &str) -> bool {
    text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn proof_of(secret: &str, nonce: &str) -> String {
    let mut hasher = blake3::Hasher::new_derive_key(PROOF);
    hasher.update(secret.as_bytes());
    hasher.update(nonce.as_bytes());
    hasher.finalize().to_hex().to_string()
}

/// The file of a server, which names it to other processes of the program until it is dropped.
pub struct Announcement {
    path: PathBuf,
    text: String,
}

/// Contents of the file.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Announced {
    /// Programs of another version have other commands.
    version: String,
    pid: u32,
    address: Option<SocketAddr>,
    socket: Option<PathBuf>,
    secret: String,
}

// Without the secret.
impl fmt::Debug for Announcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Announcement").field("path", &self.path).finish_non_exhaustive()
    }
}

impl fmt::Debug for HoldingServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HoldingServer").field("pid", &self.announced.pid).finish_non_exhaustive()
    }
}

impl Announcement {
    pub(crate) fn write(
        store: &Path,
        address: SocketAddr,
        socket: Option<&Path>,
        secret: &str,
    ) -> io::Result<Self> {
        let announced = Announced {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            address: socket.is_none().then_some(address),
            socket: socket.map(std::path::absolute).transpose()?,
            secret: secret.to_owned(),
        };
        let (path, text) = (store.join(FILE), serde_json::to_string(&announced)?);
        replace_bytes(&path, Manner::PrivateNotDurable, text.as_bytes()).map_err(|error| error.source)?;
        Ok(Self { path, text })
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        // Another server may have the store by now.
        if std::fs::read(&self.path).is_ok_and(|found| found == self.text.as_bytes()) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// A running server of the same program that has a store open.
pub struct HoldingServer {
    announced: Announced,
}

/// A command that was handed to a server has not ended well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandError {
    /// The server has gone, or the connection to it.
    #[error("the server that has the store (process {pid}) ended in the middle")]
    Ended {
        /// Its process.
        pid: u32,
    },
    /// The server has refused the command.
    #[error("the server that has the store (process {pid}) refused: {message}")]
    Refused {
        /// Its process.
        pid: u32,
        /// Its reason.
        message: String,
    },
    /// The caller has cancelled it.
    #[error("cancelled")]
    Cancelled,
}

impl HoldingServer {
    /// The server that has the store in a folder open, if it is of this version of the program and answers. What a killed server has left
    /// is none: nobody at the address knows the secret.
    pub fn of(store: &Path) -> Option<Self> {
        let mut text = String::new();
        open_regular(&store.join(FILE)).ok()?.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
        let announced: Announced = serde_json::from_str(&text).ok()?;
        let is_of_here = announced.version == env!("CARGO_PKG_VERSION") && is_digits(&announced.secret);
        if !is_of_here {
            return None;
        }
        let server = Self { announced };
        server.knows_secret().is_ok_and(|knows| knows).then_some(server)
    }

    fn knows_secret(&self) -> io::Result<bool> {
        let nonce = secret()?;
        let mut stream = self.connect()?;
        write!(stream, "GET {PLACE}/{nonce} HTTP/1.0\r\nHost: localhost\r\n\r\n")?;
        // Another program may have the address now, and answer slowly or without end.
        let (since, mut stream, mut answer) = (Instant::now(), stream.take(PROOF_BYTES_MAX), Vec::new());
        let mut piece = [0; 512];
        loop {
            match stream.read(&mut piece)? {
                0 => break,
                n => answer.extend_from_slice(&piece[..n]),
            }
            if since.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        let answer = String::from_utf8_lossy(&answer);
        let expected = proof_of(&self.announced.secret, &nonce);
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        // As hashes, in constant time.
        Ok(blake3::hash(body.as_bytes()) == blake3::hash(expected.as_bytes()))
    }

    fn connect(&self) -> io::Result<Box<dyn Stream>> {
        match (&self.announced.address, &self.announced.socket) {
            (Some(address), _) => {
                let stream = TcpStream::connect_timeout(address, PATIENCE)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                Ok(Box::new(stream))
            }
            #[cfg(unix)]
            (None, Some(path)) => {
                let stream = std::os::unix::net::UnixStream::connect(path)?;
                stream.set_read_timeout(Some(PATIENCE))?;
                Ok(Box::new(stream))
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Lets the server run a command, and passes on its events until its last one.
    ///
    /// # Errors
    /// [`HandError`]. The command may have had effects.
    pub fn run(
        &self,
        command: &Value,
        cancel: &CancelToken,
        on_event: &mut dyn FnMut(&str, Value),
    ) -> Result<(), HandError> {
        let pid = self.announced.pid;
        let ended = |_: io::Error| HandError::Ended { pid };
        let body = serde_json::json!({ "command": command }).to_string();
        let mut stream = self.connect().map_err(ended)?;
        stream.set_read_timeout(Some(TICK)).map_err(ended)?;
        // A server answers an older client without chunks: the body ends with the connection.
        let head = format!(
            "POST {PLACE} HTTP/1.0\r\nHost: localhost\r\nAuthorization: Bearer {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            self.announced.secret,
            body.len()
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body.as_bytes())).map_err(ended)?;
        let mut lines = Lines { reader: BufReader::new(stream), cancel, pid };
        let status = lines.next()?.unwrap_or_default();
        let is_ok = status.split(' ').nth(1) == Some("200");
        while lines.next()?.is_some_and(|line| !line.is_empty()) {}
        if !is_ok {
            let json: Value = serde_json::from_slice(&lines.rest()?).unwrap_or_default();
            let message = json["error"]["message"].as_str().unwrap_or("without a reason").to_owned();
            return Err(HandError::Refused { pid, message });
        }
        let mut name = String::new();
        while let Some(line) = lines.next()? {
            if let Some(given) = line.strip_prefix("event: ") {
                given.clone_into(&mut name);
            } else if let Some(data) = line.strip_prefix("data: ") {
                let data: Value = serde_json::from_str(data).map_err(|_| HandError::Ended { pid })?;
                match name.as_str() {
                    "error" => {
                        let message = data["message"].as_str().unwrap_or("without a reason").to_owned();
                        return Err(HandError::Refused { pid, message });
                    }
                    "exit" => {
                        on_event(&name, data);
                        return Ok(());
                    }
                    _ => on_event(&name, data),
                }
            }
        }
        Err(HandError::Ended { pid })
    }
}

/// A number that nobody can know before: the secret of a server, or what a client asks it.
pub(crate) fn secret() -> io::Result<String> {
    let mut bytes = [0; DIGITS / 2];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A connection whose reads may time out.
trait Stream: Read + Write + Send {
    fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()>;
}

impl Stream for TcpStream {
    fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        TcpStream::set_read_timeout(self, time)
    }
}

#[cfg(unix)]
impl Stream for std::os::unix::net::UnixStream {
    fn set_read_timeout(&self, time: Option<Duration>) -> io::Result<()> {
        std::os::unix::net::UnixStream::set_read_timeout(self, time)
    }
}

/// The lines of an answer.
struct Lines<'a> {
    reader: BufReader<Box<dyn Stream>>,
    cancel: &'a CancelToken,
    pid: u32,
}

impl Lines<'_> {
    /// The next line without its end; `None` at the end of the connection.
    fn next(&mut self) -> Result<Option<String>, HandError> {
        let ended = HandError::Ended { pid: self.pid };
        let mut line = Vec::new();
        loop {
            if self.cancel.is_cancelled() {
                return Err(HandError::Cancelled);
            }
            let room = LINE_BYTES_MAX - line.len() as u64;
            match (&mut self.reader).take(room).read_until(b'\n', &mut line) {
                Ok(0) if line.is_empty() => return Ok(None),
                Ok(_) if line.ends_with(b"\n") => break,
                // Cut, or too long.
                Ok(_) => return Err(ended),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                    ) => {}
                Err(_) => return Err(ended),
            }
        }
        line.truncate(line.trim_ascii_end().len());
        String::from_utf8(line).map(Some).map_err(|_| ended)
    }

    /// What follows up to the end of the connection.
    fn rest(&mut self) -> Result<Vec<u8>, HandError> {
        let mut bytes = Vec::new();
        loop {
            if self.cancel.is_cancelled() {
                return Err(HandError::Cancelled);
            }
            let room = LINE_BYTES_MAX - bytes.len() as u64;
            match (&mut self.reader).take(room).read_to_end(&mut bytes) {
                Ok(_) => return Ok(bytes),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                    ) => {}
                Err(_) => return Err(HandError::Ended { pid: self.pid }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    use super::*;

    /// A server with this secret that answers a command with these bytes and goes.
    fn server(store: &Path, knows: bool, answer: &'static str) -> (Announcement, JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let secret = super::secret().unwrap();
        let announced = Announcement::write(store, listener.local_addr().unwrap(), None, &secret).unwrap();
        let own = if knows { secret } else { super::secret().unwrap() };
        let serving = std::thread::spawn(move || {
            let mut heads = Vec::new();
            for _ in 0..if knows { 2 } else { 1 } {
                let (mut stream, _) = listener.accept().unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let (mut head, mut line) = (String::new(), String::new());
                while reader.read_line(&mut line).unwrap() > 2 {
                    head.push_str(&std::mem::take(&mut line));
                }
                let nonce = head.strip_prefix("GET /handed/").map(|rest| rest[..DIGITS].to_owned());
                let proof = nonce.map(|nonce| format!("HTTP/1.0 200 OK\r\n\r\n{}", proof_of(&own, &nonce)));
                stream.write_all(proof.as_deref().unwrap_or(answer).as_bytes()).unwrap();
                // A connection that closes before the request was read loses the answer.
                stream.shutdown(std::net::Shutdown::Write).unwrap();
                let _ = std::io::copy(&mut reader, &mut std::io::sink());
                heads.push(head);
            }
            heads
        });
        (announced, serving)
    }

    fn run(server: &HoldingServer) -> (Result<(), HandError>, Vec<String>) {
        let mut names = Vec::new();
        let command = serde_json::json!({ "args": ["ask"] });
        let done = server.run(&command, &CancelToken::new(), &mut |name, _| names.push(name.to_owned()));
        (done, names)
    }

    #[test]
    fn a_server_that_ends_in_the_middle_is_an_error() {
        const OK: &str = "HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n";
        let whole = "event: token\ndata: {}\n\nevent: exit\ndata: {\"code\":0}\n\n";
        let refused = "HTTP/1.0 429 Too Many Requests\r\n\r\n{\"error\":{\"message\":\"full\"}}";
        for (answer, expected) in [
            (format!("{OK}{whole}"), "Ok(())"),
            (format!("{OK}event: token\ndata: {{}}\n\n"), "Ended"),
            (format!("{OK}event: token\ndata: {{"), "Ended"),
            (String::new(), "Refused"),
            (refused.to_owned(), "full"),
            (format!("{OK}event: error\ndata: {{\"message\":\"a bug\"}}\n\n"), "a bug"),
        ] {
            let store = tempfile::tempdir().unwrap();
            let (announced, serving) = server(store.path(), true, answer.leak());
            let (done, names) = run(&HoldingServer::of(store.path()).expect("it knows the secret"));
            assert!(format!("{done:?}").contains(expected), "{expected}: {done:?} {names:?}");
            let heads = serving.join().unwrap();
            assert!(!heads[0].contains("Bearer") && heads[1].contains("Authorization: Bearer "));
            drop(announced);
            assert!(HoldingServer::of(store.path()).is_none() && !store.path().join(FILE).exists());
        }
    }

    #[test]
    fn what_another_program_answers_is_no_server() {
        let store = tempfile::tempdir().unwrap();
        // The port of a killed server may be somebody else's: neither the secret nor a text is sent there.
        let (announced, serving) = server(store.path(), false, "");
        assert!(HoldingServer::of(store.path()).is_none());
        assert!(serving.join().unwrap().iter().all(|head| !head.contains("Bearer")));
        // Nobody listens any more.
        assert!(HoldingServer::of(store.path()).is_none());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(store.path().join(FILE)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        std::mem::forget(announced);
        for text in
            ["", "{}", "x", "{\"version\":\"0\",\"pid\":1,\"address\":null,\"socket\":null,\"secret\":\"\"}"]
        {
            std::fs::write(store.path().join(FILE), text).unwrap();
            assert!(HoldingServer::of(store.path()).is_none(), "{text}");
        }
    }

    #[test]
    fn paths_of_commands_are_told_from_others() {
        assert!(is_handed("/handed") && is_handed("/handed/1") && !is_handed("/handed2"));
        assert!(is_proof("/handed/1") && !is_proof("/handed"));
    }
}
