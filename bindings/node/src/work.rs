//! Calls on threads of Node's pool.

use napi::bindgen_prelude::{AsyncTask, ToNapiValue, TypeName, retain_current_module_for_unload_safety};
use napi::{Env, Task};
use refrain_ffi::{ErrorKind, FfiError};

use crate::names;

/// A call, and the promise of its result.
pub struct Work<T>(Option<Box<dyn FnOnce() -> Result<T, FfiError> + Send>>);

impl<T: ToNapiValue + TypeName + Send + 'static> Task for Work<T> {
    type Output = T;
    type JsValue = T;

    fn compute(&mut self) -> napi::Result<T> {
        let again = || Err(FfiError::new(ErrorKind::WrongState, "the call has run"));
        let work = self.0.take();
        refrain_ffi::call(|| work.map_or_else(again, |work| work())).map_err(error)
    }

    fn resolve(&mut self, _env: Env, done: T) -> napi::Result<T> {
        Ok(done)
    }
}

/// Runs `work` on a thread of the pool.
pub(crate) fn later<T>(work: impl FnOnce() -> Result<T, FfiError> + Send + 'static) -> AsyncTask<Work<T>>
where
    T: ToNapiValue + TypeName + Send + 'static,
{
    // A worker thread that has loaded the library may end before a thread of a job does: the library stays until the process ends.
    retain_current_module_for_unload_safety();
    AsyncTask::new(Work(Some(Box::new(work))))
}

/// Runs `work`, which never waits, on the event loop.
pub(crate) fn now<T>(work: impl FnOnce() -> Result<T, FfiError>) -> napi::Result<T> {
    refrain_ffi::call(work).map_err(error)
}

/// An error of the library as one of JavaScript.
pub(crate) fn error(failed: FfiError) -> napi::Error {
    napi::Error::from_reason(names::write(failed.info()))
}
