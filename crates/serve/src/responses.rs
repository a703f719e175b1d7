//! Responses that a later request continues by their id: in memory only, few, and gone with the server.
//!
//! Their prompts are kept as those of every conversation (`work::warm`), so that a continued one computes its new part only.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use serde_json::Value;

/// Responses that are kept.
const KEPT_MAX: usize = 256;
/// Bytes of all of them, as JSON. As values in memory they take some times as much.
const BYTES_MAX: usize = 16 << 20;

/// A response that was sent.
#[derive(Debug)]
pub(crate) struct Stored {
    pub(crate) id: String,
    /// The items of its conversation: those of the request, of the responses before it, and its own.
    pub(crate) items: Vec<Value>,
    /// The response as JSON.
    pub(crate) response: String,
    pub(crate) at: SystemTime,
    n_bytes: usize,
}

impl Stored {
    pub(crate) fn new(id: String, items: Vec<Value>, response: String) -> Self {
        let n_items: usize = items.iter().map(|item| item.to_string().len()).sum();
        let n_bytes = n_items + response.len() + id.len();
        Self { id, items, response, at: SystemTime::now(), n_bytes }
    }
}

/// The kept responses, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Responses(Mutex<VecDeque<Arc<Stored>>>);

impl Responses {
    pub(crate) fn find(&self, id: &str) -> Option<Arc<Stored>> {
        self.lock().iter().find(|stored| stored.id == id).cloned()
    }

    /// Keeps a response, and drops the oldest ones beyond the limits.
    pub(crate) fn keep(&self, stored: Stored) {
        let mut kept = self.lock();
        kept.push_back(Arc::new(stored));
        let mut n_bytes: usize = kept.iter().map(|stored| stored.n_bytes).sum();
        while kept.len() > KEPT_MAX || n_bytes > BYTES_MAX {
            let Some(oldest) = kept.pop_front() else { return };
            n_bytes -= oldest.n_bytes;
        }
    }

    /// Drops a response; whether it was kept.
    pub(crate) fn remove(&self, id: &str) -> bool {
        let mut kept = self.lock();
        let n_before = kept.len();
        kept.retain(|stored| stored.id != id);
        kept.len() < n_before
    }

    /// Drops the responses before a time, or all.
    pub(crate) fn forget(&self, before: Option<SystemTime>) {
        self.lock().retain(|stored| before.is_some_and(|before| stored.at >= before));
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Arc<Stored>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::json;

    use super::*;

    fn stored(id: usize, n_bytes: usize) -> Stored {
        Stored::new(format!("resp_{id}"), vec![json!("x".repeat(n_bytes))], "{}".to_owned())
    }

    #[test]
    fn the_oldest_responses_make_room() {
        let responses = Responses::default();
        (0..=KEPT_MAX).for_each(|id| responses.keep(stored(id, 1)));
        assert!(responses.find("resp_0").is_none() && responses.find("resp_1").is_some());
        responses.keep(stored(1000, BYTES_MAX - 100));
        assert!(responses.find("resp_1").is_none() && responses.find("resp_1000").is_some());
        // One that is too large alone drops all.
        responses.keep(stored(1001, BYTES_MAX));
        assert!(responses.lock().is_empty());
    }

    #[test]
    fn responses_are_removed_and_forgotten() {
        let responses = Responses::default();
        (0..3).for_each(|id| responses.keep(stored(id, 1)));
        assert!(responses.remove("resp_1") && !responses.remove("resp_1"));
        responses.forget(Some(SystemTime::now() - Duration::from_secs(3600)));
        assert_eq!(responses.lock().len(), 2);
        responses.forget(Some(SystemTime::now() + Duration::from_secs(3600)));
        assert!(responses.lock().is_empty());
        responses.keep(stored(4, 1));
        responses.forget(None);
        assert!(responses.find("resp_4").is_none());
    }
}
