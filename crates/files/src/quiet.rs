//! Panics inside the crates that read outside data.
//!
//! Such a panic becomes a typed error, and its message belongs into that error. The panic hook would print it to standard
//! error as well, where an app's user takes it for a crash.

use std::any::Any;
use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// Calls of [`catch_quietly`] in this thread that have not returned.
    static N_CALLS: Cell<usize> = const { Cell::new(0) };
}

/// Runs code, and returns the message of its panic without printing it. (Has no effect if the program is built with
/// `panic = "abort"`.)
///
/// The first call wraps the process's panic hook in one that is silent for the code inside such calls, and calls the former
/// hook otherwise. A hook that the app sets later replaces both, and prints what it prints. The code may not hold a state
/// that a panic leaves half changed.
///
/// # Errors
/// The message of the panic.
pub fn catch_quietly<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    // In a thread that unwinds, the hook cannot be changed; a later call does it.
    if !std::thread::panicking() {
        HOOK.call_once(|| {
            let former = panic::take_hook();
            panic::set_hook(Box::new(move |info| {
                if !is_caught() {
                    former(info);
                }
            }));
        });
    }
    N_CALLS.set(N_CALLS.get() + 1);
    let outcome = catch_unwind(AssertUnwindSafe(run));
    N_CALLS.set(N_CALLS.get() - 1);
    outcome.map_err(|panic| message(&*panic))
}

/// Whether a panic of this thread would be returned by [`catch_quietly`]: a hook of the program prints nothing then.
pub fn is_caught() -> bool {
    // Thread locals may be gone at the end of a thread.
    N_CALLS.try_with(Cell::get).unwrap_or(0) > 0
}

/// The message of a panic.
fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned()
}
