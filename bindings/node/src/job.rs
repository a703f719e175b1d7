//! A job, whose batches of events the event loop asks for.
//!
//! A listener of the library gives a batch only when JavaScript has asked for one, and waits until then. So nothing grows if the event loop
//! is slow: pieces of text that came together are one piece, as for every slow reader.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use napi::bindgen_prelude::Object;
use napi::{Env, JsDeferred};
use napi_derive::napi;
use refrain_ffi::{ErrorKind, Event, EventListener, FfiError};

use crate::names;
use crate::work::{error, now};

/// The promise of a batch.
type Asked = JsDeferred<String, Give>;
type Give = Box<dyn FnOnce(Env) -> napi::Result<String>>;

#[napi]
pub struct Job {
    job: Arc<refrain_ffi::Job>,
    reader: Arc<Reader>,
}

/// Who takes the events.
#[derive(Default)]
struct Reader {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    asked: Option<Asked>,
    /// Whether the library has the listener.
    is_listening: bool,
    /// Whether JavaScript's object is closed or gone, with the garbage or with its worker thread.
    is_gone: bool,
}

impl Reader {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the listener.
    fn leave(&self) {
        let mut state = self.state();
        state.is_gone = true;
        let asked = state.asked.take();
        drop(state);
        self.changed.notify_all();
        if let Some(asked) = asked {
            asked.reject(error(closed()));
        }
    }
}

fn closed() -> FfiError {
    FfiError::new(ErrorKind::Closed, "this object is closed")
}

impl EventListener for Reader {
    fn on_events(&self, events: Vec<Event>) -> bool {
        let mut state = self.state();
        let asked = loop {
            match state.asked.take() {
                _ if state.is_gone => return false,
                Some(asked) => break asked,
                None => state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            }
        };
        drop(state);
        let batch = names::write(&events);
        // (Of a worker thread that has ended meanwhile, the promise is dropped.)
        asked.resolve(Box::new(move |_| Ok(batch)));
        true
    }
}

impl Job {
    pub(crate) fn new(job: Arc<refrain_ffi::Job>) -> Self {
        Self { job, reader: Arc::default() }
    }
}

#[napi]
impl Job {
    /// The events since the last call, as soon as there are any. Not to be called again before the promise is settled, or after the last
    /// event.
    #[napi]
    pub fn next<'env>(&self, env: &'env Env) -> napi::Result<Object<'env>> {
        let (asked, promise) = env.create_deferred::<String, Give>()?;
        let mut state = self.reader.state();
        let refused = match (state.is_gone, &state.asked) {
            (true, _) => Some(closed()),
            (_, Some(_)) => Some(FfiError::new(ErrorKind::Busy, "the events of this job are taken already")),
            _ => None,
        };
        if let Some(refused) = refused {
            drop(state);
            asked.reject(error(refused));
            return Ok(promise);
        }
        state.asked = Some(asked);
        let is_listening = std::mem::replace(&mut state.is_listening, true);
        drop(state);
        self.reader.changed.notify_all();
        if !is_listening
            && let Err(failed) = self.job.listen(Arc::clone(&self.reader) as Arc<dyn EventListener>)
        {
            let mut state = self.reader.state();
            state.is_listening = false;
            if let Some(asked) = state.asked.take() {
                asked.reject(error(failed));
            }
        }
        Ok(promise)
    }

    #[napi]
    pub fn cancel(&self) {
        self.job.cancel();
    }

    #[napi]
    pub fn close(&self) -> napi::Result<()> {
        now(|| self.job.close())?;
        self.reader.leave();
        Ok(())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.job.cancel();
        self.reader.leave();
    }
}
