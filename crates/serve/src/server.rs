//! Accepts connections, checks every request, and stops gracefully.

use std::convert::Infallible;
use std::io::{self, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::{Request, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use refrain::CancelToken;
use refrain::internals::kernels::has_room;
use refrain_files::{catch_quietly, is_caught};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Sleep};

use crate::api::face::Face;
use crate::app::{App, blocking_threads};
use crate::error::{ApiError, ServeError};
use crate::handed::{self, Announcement, RunHanded};
use crate::json::Ignored;
use crate::limits::Limits;
use crate::models::Models;
use crate::options::ServeOptions;
use crate::page::Page;
use crate::security::{Rules, Verdict};
use crate::socket::{Bound, Connection, Listener};
use crate::{api, mcp, metrics, page};

/// How often the token of a stop is looked at, which wakes nobody.
const STOP_POLL: Duration = Duration::from_millis(50);
/// How long cancelled streams may take for their last event.
pub(crate) const LAST_EVENTS: Duration = Duration::from_secs(2);
/// Time for headers while more than half of the connections are taken.
const CROWDED_HEADER_TIME: Duration = Duration::from_secs(3);
/// Connections beyond the limit that answer monitors, while all others are taken.
const RESERVED_CONNECTIONS: usize = 4;
/// Bytes per second that a client must take while the server waits for it: a stream of text needs less than one.
const TAKEN_PER_SECOND_MIN: f64 = 16.0 * 1024.0;
/// Time between connections that are accepted while a foreground job computes: a burst of them would cost one of its tokens many
/// times the work of one connection, which is less than 0.1 ms.
const ACCEPT_PACE: Duration = Duration::from_millis(2);
/// How often a connection with unread input is looked at again.
const GONE_POLL: Duration = Duration::from_millis(200);
/// How long, and how much, a connection is read after its last answer.
const LINGER: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 16 << 20;
/// Threads that read requests and write responses. Models run elsewhere; a second thread would be woken for each event, and take a core
/// from a pass.
pub(crate) const IO_THREADS: usize = 1;
/// Address space of a thread's stack and of its first allocations.
const THREAD_BYTES: usize = 4 << 20;

/// The signal that stops a server, awaited from the moment that the server listens.
#[cfg(unix)]
pub(crate) type Sigterm = Option<tokio::signal::unix::Signal>;
#[cfg(not(unix))]
pub(crate) type Sigterm = Option<std::convert::Infallible>;

/// A server that listens.
pub struct Server {
    runtime: Runtime,
    sigterm: Sigterm,
    bound: Bound,
    address: SocketAddr,
    options: ServeOptions,
    app: App,
    page: Page,
    router: Router,
    /// The secret of the program's own commands.
    secret: Option<String>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Server {
    /// Listens. Connections wait in the backlog of the system until [`run`](Self::run), and so does the signal that stops the
    /// server ([`ServeOptions::stops_on_sigterm`]).
    ///
    /// # Errors
    /// An option is refused, the address cannot be listened on, or the system has no thread left.
    pub fn bind(options: ServeOptions, models: Models) -> Result<Self, ServeError> {
        options.check()?;
        let runtime = runtime(&options.limits)?;
        let sigterm = sigterm(&runtime, options.stops_on_sigterm);
        let (bound, address) = Bound::new(&options)?;
        let app = App::new(&options, models);
        let page = Page::new(app.clone());
        let router = api::router()
            .with_state(app.clone())
            .merge(mcp::router(page.clone(), options.mcp_forget))
            .merge(page::router(page.clone()));
        Ok(Self { runtime, sigterm, bound, address, options, app, page, router, secret: None })
    }

    /// Runs commands that other processes of the same program hand over, because the first model's assistant has the store in this folder
    /// open. They find the server ([`HoldingServer::of`](crate::HoldingServer::of)) until the announcement is dropped.
    ///
    /// # Errors
    /// [`ServeError::Announce`]: the folder of the store cannot be written, or the system has no random numbers.
    pub fn with_handed(
        mut self,
        store: &Path,
        run: Arc<RunHanded>,
    ) -> Result<(Self, Announcement), ServeError> {
        let failed = |source| ServeError::Announce { path: store.to_owned(), source };
        let secret = handed::secret().map_err(failed)?;
        let mut address = self.address;
        if address.ip().is_unspecified() {
            // Every address of this device, and so this one.
            let is_v4 = address.is_ipv4();
            address.set_ip(if is_v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
        }
        let announcement =
            Announcement::write(store, address, self.unix_socket(), &secret).map_err(failed)?;
        self.router = self.router.merge(handed::router(self.page.clone(), &secret, run));
        self.secret = Some(secret);
        Ok((self, announcement))
    }

    /// The address, with the port that was taken. Nothing listens there if the server has a [Unix socket](Self::unix_socket).
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The Unix socket that the server listens on instead of an address.
    pub fn unix_socket(&self) -> Option<&Path> {
        self.options.unix_socket.as_deref()
    }

    /// Answers requests until `stop` is cancelled. Then no connection is accepted, running requests have
    /// [`Limits::grace_time`] to end, and later ones are cancelled and end their streams with an error event.
    ///
    /// # Errors
    /// [`ServeError::Runtime`]: the system refuses to watch the connections.
    pub fn run(self, stop: &CancelToken) -> Result<(), ServeError> {
        let Self { runtime, sigterm, bound, options, app, router, secret, .. } = self;
        let rules = Arc::new(Rules::new(&options, secret.as_deref()));
        let served = runtime.block_on(async {
            let listener = bound.listen().map_err(ServeError::Runtime)?;
            // On the thread that serves: a connection wakes no second one.
            let (theirs, stop) = (app.clone(), stop.clone());
            let accepting =
                async move { accept(listener, rules, &theirs, router, stopped(&stop, sigterm)).await };
            tokio::spawn(accepting).await.map_err(|error| ServeError::Runtime(error.into()))
        });
        app.cancel_all();
        runtime.shutdown_timeout(LAST_EVENTS);
        app.models().unload_all();
        served
    }
}

/// Makes panics of this process print their place only. Messages of panics may quote texts.
pub fn quiet_panics() {
    std::panic::set_hook(Box::new(|info| {
        if is_caught() {
            return;
        }
        let place = info.location().map_or_else(String::new, |place| format!(" at {place}"));
        // A panic of the hook, where nobody reads the log any more, would end the process.
        let _ = writeln!(
            io::stderr(),
            "error: a bug in this program{place} (the request has failed; others go on)"
        );
    }));
}

/// The runtime that reads requests and writes responses.
fn runtime(limits: &Limits) -> Result<Runtime, ServeError> {
    if !has_room(IO_THREADS * THREAD_BYTES) {
        return Err(ServeError::Runtime(io::ErrorKind::OutOfMemory.into()));
    }
    // The runtime panics where the system refuses it a thread.
    let built = catch_quietly(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(IO_THREADS)
            // Requests are checked here, and embedded; others compute on threads of their own, so none waits for a check.
            .max_blocking_threads(blocking_threads(limits))
            .thread_name("refrain-serve")
            .enable_io()
            .enable_time()
            .build()
    });
    built.unwrap_or_else(|reason| Err(io::Error::other(reason))).map_err(ServeError::Runtime)
}

#[cfg(unix)]
fn sigterm(runtime: &Runtime, is_wanted: bool) -> Sigterm {
    use tokio::signal::unix::{SignalKind, signal};

    let _entered = runtime.enter();
    if is_wanted { signal(SignalKind::terminate()).ok() } else { None }
}

#[cfg(not(unix))]
fn sigterm(_runtime: &Runtime, _is_wanted: bool) -> Sigterm {
    None
}

/// Ends when the server should stop.
pub(crate) async fn stopped(stop: &CancelToken, sigterm: Sigterm) {
    let polled = async {
        while !stop.is_cancelled() {
            tokio::time::sleep(STOP_POLL).await;
        }
    };
    #[cfg(unix)]
    if let Some(mut signal) = sigterm {
        tokio::select! {
            () = polled => {}
            _ = signal.recv() => {}
        }
        return;
    }
    #[cfg(not(unix))]
    let _ = sigterm;
    polled.await;
}

async fn accept(
    listener: Listener,
    rules: Arc<Rules>,
    app: &App,
    router: Router,
    stopped: impl Future<Output = ()>,
) {
    let limits = app.limits().clone();
    let places = Arc::new(Semaphore::new(limits.connections));
    let reserved = Arc::new(Semaphore::new(RESERVED_CONNECTIONS));
    let (stopping, stop) = watch::channel(false);
    let gate = Arc::clone(app.models().gate());
    let mut connections = JoinSet::new();
    let mut stopped = pin!(stopped);
    loop {
        let next = async {
            let (mut place, mut is_reserved) = tokio::select! {
                biased;
                place = Arc::clone(&places).acquire_owned() => (place, false),
                place = Arc::clone(&reserved).acquire_owned() => (place, true),
            };
            let accepted = listener.accept().await;
            // A place may have become free meanwhile.
            if is_reserved && let Ok(free) = Arc::clone(&places).try_acquire_owned() {
                (place, is_reserved) = (Ok(free), false);
            }
            (place.expect("no semaphore is ever closed"), is_reserved, accepted)
        };
        let (place, is_reserved, accepted) = tokio::select! {
            () = &mut stopped => break,
            // Ended connections are forgotten.
            Some(_) = connections.join_next() => continue,
            next = next => next,
        };
        let Ok(stream) = accepted else {
            // No file handle is free, or the client has gone. A moment later there may be one.
            tokio::time::sleep(STOP_POLL).await;
            continue;
        };
        let crowded = Arc::clone(&places);
        let (app, rules, router, stop) = (app.clone(), Arc::clone(&rules), router.clone(), stop.clone());
        connections.spawn(async move {
            let _counted = Counted::new(&app);
            let room = match crowded.available_permits() {
                _ if is_reserved => Room::Reserved,
                free if free < app.limits().connections / 2 => Room::Crowded,
                _ => Room::Free,
            };
            serve(stream, &app, rules, router, stop, room).await;
            drop(place);
        });
        if gate.is_in_foreground() {
            tokio::time::sleep(ACCEPT_PACE).await;
        }
    }
    drop(listener);
    let _ = stopping.send(true);
    app.end_streams();
    if !have_ended(&mut connections, limits.grace_time).await {
        app.cancel_all();
        have_ended(&mut connections, LAST_EVENTS).await;
    }
}

/// How many connections were open when one was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Room {
    Free,
    /// More than half of them.
    Crowded,
    /// All: this one answers monitors only.
    Reserved,
}

/// An open connection in the metrics.
struct Counted<'a>(&'a App);

impl<'a> Counted<'a> {
    fn new(app: &'a App) -> Self {
        metrics::add(&app.metrics().connections, 1);
        Self(app)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.metrics().connections.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Waits until all connections have ended, at most this long; whether they have.
async fn have_ended(connections: &mut JoinSet<()>, time: Duration) -> bool {
    let ended = async { while connections.join_next().await.is_some() {} };
    tokio::time::timeout(time, ended).await.is_ok()
}

/// Answers the requests of one connection.
async fn serve(
    stream: Connection,
    app: &App,
    rules: Arc<Rules>,
    router: Router,
    mut stop: watch::Receiver<bool>,
    room: Room,
) {
    let Limits { header_time, header_bytes, headers, stall_time, .. } = *app.limits();
    let header_time = if room == Room::Free { header_time } else { header_time.min(CROWDED_HEADER_TIME) };
    let routes = TowerToHyperService::new(router);
    let service = service_fn(|request: Request<Incoming>| {
        let (rules, routes, app) = (Arc::clone(&rules), routes.clone(), app.clone());
        async move { Ok::<_, Infallible>(respond(&app, &rules, routes, request, room).await) }
    });
    let stream = Arc::new(stream);
    let io = TokioIo::new(Stalling::new(Arc::clone(&stream), stall_time));
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(header_time)
        .max_buf_size(header_bytes)
        .max_headers(headers);
    {
        let mut connection = pin!(builder.serve_connection(io, service));
        let mut gone = pin!(gone(&stream));
        let mut is_stopping = false;
        loop {
            tokio::select! {
                // The client's errors are its own; it has no answer to read.
                _ = &mut connection => break,
                () = &mut gone => return,
                _ = stop.changed(), if !is_stopping => {
                    is_stopping = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
    let _ = tokio::time::timeout(LINGER, linger(&stream)).await;
}

/// Ends when the client has closed the connection. (hyper does not look while it waits for an answer to a request with
/// `Connection: close`.)
async fn gone(stream: &Connection) {
    stream.input_end().await;
    // An end of the input is also the end of the client: nobody sends a request and then closes one half.
    while let Ok(1..) = stream.peek().await {
        // More input, which hyper reads.
        tokio::time::sleep(GONE_POLL).await;
    }
}

/// Reads what a refused request still sends. Closing before would reset the connection, and the client would lose the refusal.
async fn linger(stream: &Connection) {
    if stream.shutdown_write().is_err() {
        return;
    }
    let mut buffer = [0; 4096];
    let mut n_read = 0;
    while n_read < LINGER_BYTES_MAX && stream.readable().await.is_ok() {
        match stream.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(n) => n_read += n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(_) => return,
        }
    }
}

/// Checks a request, and answers it.
async fn respond(
    app: &App,
    rules: &Rules,
    routes: TowerToHyperService<Router>,
    request: Request<Incoming>,
    room: Room,
) -> Response {
    let face = Face::of(request.uri().path(), request.headers());
    let ignored = Ignored::default();
    let mut request = request.map(Body::new);
    request.extensions_mut().insert(ignored.clone());
    let path = request.uri().path().to_owned();
    let mut verdict = rules.judge(request.method(), request.uri(), request.headers());
    if room == Room::Reserved
        && !matches!(&*path, "/health" | "/metrics")
        && let Verdict::Pass(cors) = verdict
    {
        verdict = Verdict::Refused(ApiError::no_connection(app.limits().connections), cors);
    }
    let (mut response, cors) = match verdict {
        Verdict::Pass(cors) => {
            let Ok(response) = routes.call(request).await;
            (response, cors)
        }
        Verdict::Preflight(cors) => (StatusCode::NO_CONTENT.into_response(), cors),
        Verdict::Refused(error, cors) => {
            metrics::add(&app.metrics().refused, 1);
            // The body was not read, so the connection cannot be used again.
            let mut response = error.into_response();
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            (response, cors)
        }
    };
    let id = app.id("req_");
    face.write_refusal(&mut response, &id);
    let headers = response.headers_mut();
    let names = ignored.names();
    if let Ok(value) = HeaderValue::try_from(names.join(", "))
        && !names.is_empty()
    {
        headers.insert(HeaderName::from_static("x-refrain-ignored"), value);
        app.note_ignored(&path, &names);
    }
    if room == Room::Reserved {
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    let nothing = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(nothing);
    if let Ok(id) = HeaderValue::try_from(id) {
        if face == Face::Anthropic {
            headers.insert(HeaderName::from_static("request-id"), id.clone());
        }
        headers.insert(HeaderName::from_static("x-request-id"), id);
    }
    headers.extend(cors);
    response
}

/// A connection that fails if its client takes no byte for too long, or too few while the server waits for it.
struct Stalling {
    stream: Arc<Connection>,
    limit: Duration,
    timer: Pin<Box<Sleep>>,
    /// Since when the server waits for the client.
    waits_since: Option<Instant>,
    pace: Pace,
}

/// How fast a client reads, measured over the time that the server waits for it: an answer that grows slowly is nobody's fault.
#[derive(Debug, Default)]
struct Pace {
    waited: Duration,
    n_taken: usize,
}

impl Pace {
    /// Counts bytes that a client has taken after the server has waited for it; whether it is too slow. Every `period` of waiting is
    /// judged by itself.
    fn is_too_slow(&mut self, waited: Duration, n_taken: usize, period: Duration) -> bool {
        self.waited += waited;
        self.n_taken = self.n_taken.saturating_add(n_taken);
        if self.waited < period {
            return false;
        }
        let Self { waited, n_taken } = std::mem::take(self);
        (n_taken as f64) < waited.as_secs_f64() * TAKEN_PER_SECOND_MIN
    }
}

impl Stalling {
    fn new(stream: Arc<Connection>, limit: Duration) -> Self {
        let timer = Box::pin(tokio::time::sleep(limit));
        Self { stream, limit, timer, waits_since: None, pace: Pace::default() }
    }

    /// Writes as soon as the connection takes bytes.
    fn write(
        &mut self,
        context: &mut Context<'_>,
        write: impl Fn(&Connection) -> io::Result<usize>,
    ) -> Poll<io::Result<usize>> {
        while let Poll::Ready(ready) = self.stream.poll_write_ready(context) {
            ready?;
            match write(&self.stream) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => {
                    let waited = self.waits_since.take().map_or(Duration::ZERO, |since| since.elapsed());
                    let n_taken = written.as_ref().map_or(0, |n| *n);
                    if self.pace.is_too_slow(waited, n_taken, self.limit) {
                        return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                    }
                    return Poll::Ready(written);
                }
            }
        }
        if self.waits_since.is_none() {
            self.waits_since = Some(Instant::now());
            self.timer.as_mut().reset(Instant::now() + self.limit);
        }
        self.timer.as_mut().poll(context).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Stalling {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(context))?;
            match self.stream.try_read(buffer.initialize_unfilled()) {
                Ok(n) => {
                    buffer.advance(n);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Stalling {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream| stream.try_write(bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.write(context, |stream| stream.try_write_vectored(bytes))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // The connection has no buffer of its own.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // `linger` does it, after the last answer.
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_judged_by_the_time_that_the_server_waits_for_it() {
        const PERIOD: Duration = Duration::from_secs(30);
        let mut pace = Pace::default();
        // Nobody waits: the output grows slowly.
        assert!((0..100_000).all(|_| !pace.is_too_slow(Duration::ZERO, 1, PERIOD)));
        // 100 bytes each 29 seconds.
        let mut pace = Pace::default();
        assert!(!pace.is_too_slow(Duration::from_secs(29), 100, PERIOD));
        assert!(pace.is_too_slow(Duration::from_secs(29), 100, PERIOD));
        // A fast beginning does not count for later.
        let mut pace = Pace::default();
        assert!(!pace.is_too_slow(PERIOD, 1 << 20, PERIOD));
        assert!(pace.is_too_slow(PERIOD, 100 << 10, PERIOD));
        assert!(!pace.is_too_slow(PERIOD, 600 << 10, PERIOD));
    }
}
