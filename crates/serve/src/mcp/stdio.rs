//! The protocol over standard input and output: a client starts the program and speaks with it, one message a line.

use std::time::{Duration, Instant};

use refrain::CancelToken;
use rmcp::service::{ServerInitializeError, serve_server};
use rmcp::transport::async_rw::AsyncRwTransport;

use super::state::Mcp;
use crate::app::{App, blocking_threads};
use crate::error::ServeError;
use crate::limits::Limits;
use crate::models::Models;
use crate::options::ServeOptions;
use crate::page::Page;
use crate::server::{IO_THREADS, LAST_EVENTS, stopped};

/// How often running jobs are looked at when the client has gone.
const END_POLL: Duration = Duration::from_millis(10);

/// A server of the Model Context Protocol on standard input and output, for one client. Nothing else may be written to standard output while
/// it runs.
///
/// Of the [`Limits`], those of bodies, of the queue and of the time of requests count.
pub struct StdioServer {
    app: App,
    mcp: Mcp,
}

impl std::fmt::Debug for StdioServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StdioServer").finish_non_exhaustive()
    }
}

impl StdioServer {
    /// A server of these models. The first text model should have an [`Assistant`](refrain_assistant::Assistant).
    ///
    /// # Errors
    /// A limit is too small.
    pub fn new(limits: Limits, models: Models) -> Result<Self, ServeError> {
        let mut options = ServeOptions::default();
        options.limits = limits;
        options.check()?;
        let app = App::new(&options, models);
        Ok(Self { mcp: Mcp::new(Page::new(app.clone()), false), app })
    }

    /// Whether the client may delete notes, and answers made from them, with the tool `forget`. Default: no.
    #[must_use]
    pub fn with_forget(mut self, forgets: bool) -> Self {
        self.mcp.forgets = forgets;
        self
    }

    /// Answers the client until it closes standard input, or until `stop` is cancelled. Running jobs are cancelled then.
    ///
    /// # Errors
    /// [`ServeError::Runtime`]: the threads cannot be started. [`ServeError::Handshake`]: the client does not speak the protocol.
    pub fn run(self, stop: &CancelToken) -> Result<(), ServeError> {
        let Self { app, mcp } = self;
        let limits = app.limits();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(IO_THREADS)
            // Two more for standard input and output.
            .max_blocking_threads(blocking_threads(limits) + 2)
            .thread_name("refrain-mcp")
            .enable_io()
            .enable_time()
            .build()
            .map_err(ServeError::Runtime)?;
        let body_bytes = limits.body_bytes;
        let served = runtime.block_on(async {
            let transport = AsyncRwTransport::new(tokio::io::stdin(), tokio::io::stdout());
            let transport = transport.with_max_line_length(body_bytes);
            let running = tokio::select! {
                running = serve_server(mcp, transport) => running,
                () = stopped(stop, None) => return Ok(()),
            };
            let running = match running {
                Ok(running) => running,
                // The client has gone before it said anything.
                Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
                Err(_) => return Err(ServeError::Handshake),
            };
            tokio::select! {
                _ = running.waiting() => {}
                () = stopped(stop, None) => {}
            }
            Ok(())
        });
        app.cancel_all();
        let started = Instant::now();
        while !app.is_idle() && started.elapsed() < LAST_EVENTS {
            std::thread::sleep(END_POLL);
        }
        // A thread may wait for standard input, which cannot be interrupted.
        runtime.shutdown_background();
        served
    }
}
