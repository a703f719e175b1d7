//! What all routes share.

use std::collections::{BTreeSet, HashMap};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use refrain::CancelToken;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::blocking::blocking;
use crate::error::ApiResult;
use crate::limits::Limits;
use crate::metrics::{Gauges, Metrics};
use crate::models::{Model, ModelKind, Models};
use crate::options::ServeOptions;
use crate::queue::Queue;
use crate::responses::Responses;

/// The state of a server: models, queue, metrics. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App(Arc<Inner>);

struct Inner {
    limits: Limits,
    models: Models,
    queue: Arc<Queue>,
    metrics: Metrics,
    responses: Responses,
    running: Mutex<Registry>,
    /// Requests that are checked at a time: tokenizing takes the processor from the passes of the models.
    preparing: Arc<Semaphore>,
    /// Requests that compile a grammar or wait for one.
    compiling: Arc<Semaphore>,
    /// One model is loaded at a time.
    loading: Arc<Semaphore>,
    /// Bytes that bodies may still take.
    bodies: Arc<Semaphore>,
    /// Whether streams without an end of their own should end.
    ends_streams: watch::Sender<bool>,
    n_ids: AtomicU64,
    /// Lines of the log about ignored fields.
    noted: Mutex<BTreeSet<String>>,
    /// Random bits in every id, so that ids of two runs differ.
    salt: u64,
}

/// Work that a stop cancels.
#[derive(Default)]
struct Registry {
    work: HashMap<u64, CancelToken>,
    is_stopping: bool,
}

/// Requests that are checked at a time.
const PREPARING_MAX: usize = 2;

/// Requests that compile a grammar or wait for one, each on a thread of its own. A model compiles one at a time.
const COMPILING_MAX: usize = 16;

/// Lines of the log about ignored fields.
const NOTED_MAX: usize = 256;

/// Threads for work that blocks.
pub(crate) fn blocking_threads(limits: &Limits) -> usize {
    limits.running + PREPARING_MAX + COMPILING_MAX + 1
}

impl App {
    pub(crate) fn new(options: &ServeOptions, models: Models) -> Self {
        let limits = options.limits.clone();
        let bodies_bytes = limits.bodies_bytes.min(Semaphore::MAX_PERMITS);
        models.set_warm_bytes(limits.warm_bytes);
        Self(Arc::new(Inner {
            queue: Queue::new(limits.running, limits.waiting, limits.queue_time),
            limits,
            models,
            metrics: Metrics::default(),
            responses: Responses::default(),
            running: Mutex::default(),
            preparing: Arc::new(Semaphore::new(PREPARING_MAX)),
            compiling: Arc::new(Semaphore::new(COMPILING_MAX)),
            loading: Arc::new(Semaphore::new(1)),
            bodies: Arc::new(Semaphore::new(bodies_bytes)),
            ends_streams: watch::Sender::new(false),
            n_ids: AtomicU64::new(0),
            noted: Mutex::default(),
            // Without random numbers, ids of two processes differ.
            salt: getrandom::u64().unwrap_or(std::process::id().into()),
        }))
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.0.limits
    }

    pub(crate) fn models(&self) -> &Models {
        &self.0.models
    }

    pub(crate) fn queue(&self) -> &Arc<Queue> {
        &self.0.queue
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.0.metrics
    }

    pub(crate) fn responses(&self) -> &Responses {
        &self.0.responses
    }

    pub(crate) fn gauges(&self) -> Gauges {
        let (running, waiting) = self.queue().depth();
        Gauges { running, waiting, models: self.models().memory() }
    }

    /// A new id with this prefix, such as `chatcmpl-…`.
    pub(crate) fn id(&self, prefix: &str) -> String {
        let n = self.0.n_ids.fetch_add(1, Ordering::Relaxed);
        let hash = blake3::hash(&[self.0.salt.to_le_bytes(), n.to_le_bytes()].concat());
        format!("{prefix}{}", &hash.to_hex()[..24])
    }

    /// Says in the log that requests to an address have fields without an effect: each field once.
    pub(crate) fn note_ignored(&self, path: &str, names: &[String]) {
        let mut noted = self.0.noted.lock().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            if noted.len() < NOTED_MAX && noted.insert(format!("{path} {name}")) {
                // (A log that nobody reads any more is no reason to fail.)
                let _ = writeln!(
                    std::io::stderr(),
                    "the field `{name}` of requests to {path} has no effect here (said once)"
                );
            }
        }
    }

    /// Registers work that a stop of the server cancels. The guard ends the registration.
    pub(crate) fn register(&self, cancel: CancelToken) -> Registered {
        let id = self.0.n_ids.fetch_add(1, Ordering::Relaxed);
        let mut registry = self.registry();
        if registry.is_stopping {
            cancel.cancel();
        }
        registry.work.insert(id, cancel);
        drop(registry);
        Registered { app: self.clone(), id }
    }

    /// Cancels all work, now and from now on.
    pub(crate) fn cancel_all(&self) {
        let mut registry = self.registry();
        registry.is_stopping = true;
        registry.work.values().for_each(CancelToken::cancel);
    }

    /// Whether no work is registered.
    pub(crate) fn is_idle(&self) -> bool {
        self.registry().work.is_empty()
    }

    /// Ends the streams that would stay open for ever.
    pub(crate) fn end_streams(&self) {
        self.0.ends_streams.send_replace(true);
    }

    /// Waits until such streams should end.
    pub(crate) async fn streams_end(&self) {
        // The sender lives as long as this.
        let _ = self.0.ends_streams.subscribe().wait_for(|ends| *ends).await;
    }

    /// Waits for the right to check a request. It goes along with the work, which outlives a client that goes away.
    pub(crate) async fn preparing(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.preparing).acquire_owned().await.ok()
    }

    /// Waits for the right to compile a grammar.
    pub(crate) async fn compiling(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.0.compiling).acquire_owned().await.ok()
    }

    /// The model of this name, or the first one of this kind. Waits while it is loaded.
    pub(crate) async fn model(&self, id: Option<String>, kind: ModelKind) -> ApiResult<Arc<Model>> {
        if let Some(model) = self.models().loaded(id.as_deref(), kind)? {
            return Ok(model);
        }
        let start = Instant::now();
        let permit = Arc::clone(&self.0.loading).acquire_owned().await;
        let app = self.clone();
        let load = move || {
            let _permit = permit;
            app.models().get(id.as_deref(), kind, start)
        };
        blocking(load).await
    }

    pub(crate) fn bodies(&self) -> &Arc<Semaphore> {
        &self.0.bodies
    }

    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Registered {
    app: App,
    id: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.app.registry().work.remove(&self.id);
    }
}
