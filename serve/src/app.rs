//! What all routes share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use refrain::CancelToken;

use crate::limits::Limits;
use crate::metrics::{Gauges, Metrics};
use crate::models::Models;
use crate::options::ServeOptions;
use crate::queue::Queue;

/// The state of a server: models, queue, metrics. Cheap to clone.
#[derive(Clone)]
pub(crate) struct App(Arc<Inner>);

struct Inner {
    limits: Limits,
    models: Models,
    queue: Arc<Queue>,
    metrics: Metrics,
    running: Mutex<HashMap<u64, CancelToken>>,
    n_ids: AtomicU64,
    /// Random bits in every id, so that ids of two runs differ.
    salt: u64,
}

impl App {
    pub(crate) fn new(options: &ServeOptions, models: Models) -> Self {
        let limits = options.limits.clone();
        models.set_warm_bytes(limits.warm_bytes);
        Self(Arc::new(Inner {
            queue: Queue::new(limits.running, limits.waiting),
            limits,
            models,
            metrics: Metrics::default(),
            running: Mutex::default(),
            n_ids: AtomicU64::new(0),
            salt: random_bits(),
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

    /// Registers work that a stop of the server cancels. The guard ends the registration.
    pub(crate) fn register(&self, cancel: CancelToken) -> Registered {
        let id = self.0.n_ids.fetch_add(1, Ordering::Relaxed);
        self.running().insert(id, cancel);
        Registered { app: self.clone(), id }
    }

    pub(crate) fn cancel_all(&self) {
        self.running().values().for_each(CancelToken::cancel);
    }

    fn running(&self) -> MutexGuard<'_, HashMap<u64, CancelToken>> {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct Registered {
    app: App,
    id: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.app.running().remove(&self.id);
    }
}

/// Bits from the operating system's random numbers, via the keys of the standard library's hash maps.
fn random_bits() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

/// Seconds since 1970.
pub(crate) fn unix_time() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}
