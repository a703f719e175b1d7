//! Places where a kill may end a pull or a removal: behind every file operation. Tests stop there.

use super::HubError;

/// Goes on, except in a test that stops here.
///
/// # Errors
/// The test's.
#[cfg(not(test))]
pub(super) fn point() -> Result<(), HubError> {
    Ok(())
}

#[cfg(test)]
pub(super) use of_tests::{after, point};

#[cfg(test)]
mod of_tests {
    use std::cell::Cell;
    use std::io;
    use std::path::Path;

    use super::HubError;

    thread_local! {
        static LEFT: Cell<usize> = const { Cell::new(usize::MAX) };
    }

    /// Runs code that ends behind its `n`-th file operation; `None` if it ended there.
    pub(in crate::hub) fn after<T>(n: usize, run: impl FnOnce() -> Result<T, HubError>) -> Option<T> {
        LEFT.set(n);
        let outcome = run();
        let is_stopped = LEFT.replace(usize::MAX) == 0;
        (!is_stopped).then(|| outcome.unwrap())
    }

    pub(in crate::hub) fn point() -> Result<(), HubError> {
        match LEFT.get() {
            usize::MAX => Ok(()),
            0 | 1 => {
                LEFT.set(0);
                Err(HubError::io("go on behind", Path::new("the kill"))(io::ErrorKind::Other.into()))
            }
            n => {
                LEFT.set(n - 1);
                Ok(())
            }
        }
    }
}
