//! The route `/mcp`: streamable HTTP, behind the checks that every request passes.
//!
//! rmcp has the protocol: sessions of clients up to version 2025-11-25, and requests without one from 2026-07-28 on. This file adds the
//! limits: of bodies, of JSON values, of sessions, and the end of open streams when the server stops.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, BodyDataStream};
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::Response;
use axum::routing::any;
use futures_core::Stream;
use rmcp::model::Extensions;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::session::{SessionId, SessionManager};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;

use super::state::Mcp;
use crate::app::App;
use crate::body;
use crate::error::ApiResult;
use crate::json;
use crate::page::Page;

/// Open sessions. One more closes the session that was used least recently. Each has a task and at most a few dozen messages.
const SESSIONS_MAX: usize = 64;
/// Time without a message after which a session ends. A job may take half an hour in silence.
const SESSION_IDLE: Duration = Duration::from_secs(60 * 60);

const SESSION_ID: &str = "mcp-session-id";

/// The state of the route. Cheap to clone.
#[derive(Clone)]
struct Endpoint {
    app: App,
    service: StreamableHttpService<Mcp, LocalSessionManager>,
    sessions: Arc<Sessions>,
}

struct Sessions {
    manager: Arc<LocalSessionManager>,
    /// Ids, the one that was used last at the end.
    used: Mutex<VecDeque<String>>,
    /// One session begins at a time, so that their number is known.
    beginning: tokio::sync::Mutex<()>,
}

/// A request's share of the bytes of all bodies. It lives as long as the request, which rmcp keeps with the head, or as the job that takes
/// it.
#[derive(Clone)]
pub(super) struct Share(Arc<Mutex<Option<OwnedSemaphorePermit>>>);

impl Share {
    /// The share of this request; `None` on standard input.
    pub(super) fn take(extensions: &Extensions) -> Option<OwnedSemaphorePermit> {
        let share: &Self = extensions.get::<Parts>()?.extensions.get()?;
        share.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The route.
pub(crate) fn router(page: Page, forgets: bool) -> Router {
    let app = page.app().clone();
    let mut manager = LocalSessionManager::default();
    manager.session_config.keep_alive = Some(SESSION_IDLE);
    let manager = Arc::new(manager);
    let config = StreamableHttpServerConfig::default()
        // `security` has judged `Host` and `Origin`, with the options of this server.
        .disable_allowed_hosts()
        .with_sse_keep_alive(Some(app.limits().ping_time))
        .with_max_request_body_bytes(app.limits().body_bytes);
    let mcp = Mcp::new(page, forgets);
    let service = StreamableHttpService::new(move || Ok(mcp.clone()), Arc::clone(&manager), config);
    let sessions = Sessions { manager, used: Mutex::default(), beginning: tokio::sync::Mutex::default() };
    let endpoint = Endpoint { app, service, sessions: Arc::new(sessions) };
    Router::new().route("/mcp", any(handle)).with_state(endpoint)
}

async fn handle(State(endpoint): State<Endpoint>, request: Request) -> ApiResult<Response> {
    let Endpoint { app, service, sessions } = endpoint;
    if let Some(id) = session_id(request.headers()) {
        sessions.touch(id);
    }
    match *request.method() {
        Method::POST => {
            let (mut parts, body) = request.into_parts();
            let (bytes, permit) = body::body(&app, body).await?;
            check_values(&bytes, app.limits().json_values)?;
            let begins = session_id(&parts.headers).is_none() && is_initialize(&bytes);
            parts.extensions.insert(Share(Arc::new(Mutex::new(permit))));
            let request = Request::from_parts(parts, Body::from(bytes));
            let response = match begins {
                true => sessions.begin(service.handle(request)).await,
                false => service.handle(request).await,
            };
            Ok(response.map(Body::new))
        }
        // The stream for messages of the server. It is open until the client closes it.
        Method::GET => {
            let response = service.handle(request).await.map(Body::new);
            Ok(response.map(|body| Body::from_stream(UntilStop::new(body, &app))))
        }
        Method::DELETE => {
            let mut response = service.handle(request).await.map(Body::new);
            // The official client for Python takes 202 for a failure.
            if response.status() == StatusCode::ACCEPTED {
                *response.status_mut() = StatusCode::NO_CONTENT;
            }
            Ok(response)
        }
        _ => Ok(service.handle(request).await.map(Body::new)),
    }
}

/// # Errors
/// Status 400: there are too many values.
fn check_values(bytes: &[u8], max: usize) -> ApiResult<()> {
    // Each value has at least a byte. What is no JSON is refused later, in the protocol's own form.
    match (bytes.len() > max).then(|| json::read(bytes, max)) {
        Some(Err(error)) if error.code.is_some() => Err(error),
        _ => Ok(()),
    }
}

fn session_id(headers: &HeaderMap) -> Option<&str> {
    headers.get(SESSION_ID)?.to_str().ok()
}

fn is_initialize(bytes: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Message {
        method: String,
    }
    serde_json::from_slice::<Message>(bytes).is_ok_and(|message| message.method == "initialize")
}

impl Sessions {
    fn used(&self) -> MutexGuard<'_, VecDeque<String>> {
        // Every change is complete before anything can panic.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn touch(&self, id: &str) {
        let mut used = self.used();
        if let Some(at) = used.iter().position(|known| known == id)
            && let Some(id) = used.remove(at)
        {
            used.push_back(id);
        }
    }

    /// Begins a session. The one that was used least recently makes room for it.
    async fn begin<B>(
        &self,
        begin: impl Future<Output = axum::http::Response<B>>,
    ) -> axum::http::Response<B> {
        let _beginning = self.beginning.lock().await;
        while self.manager.sessions.read().await.len() >= SESSIONS_MAX {
            let Some(oldest) = self.used().pop_front() else { break };
            // It may have ended already.
            let _ = self.manager.close_session(&SessionId::from(oldest)).await;
        }
        let response = begin.await;
        if let Some(id) = session_id(response.headers()) {
            let mut used = self.used();
            used.push_back(id.to_owned());
            // Ended sessions are forgotten.
            while used.len() > 2 * SESSIONS_MAX {
                used.pop_front();
            }
        }
        response
    }
}

/// A body that ends when the server stops.
struct UntilStop {
    body: BodyDataStream,
    stop: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl UntilStop {
    fn new(body: Body, app: &App) -> Self {
        let app = app.clone();
        Self { body: body.into_data_stream(), stop: Box::pin(async move { app.streams_end().await }) }
    }
}

impl Stream for UntilStop {
    type Item = <BodyDataStream as Stream>::Item;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        match self.stop.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => Pin::new(&mut self.body).poll_next(context),
        }
    }
}
