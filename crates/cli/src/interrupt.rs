//! Ctrl-C: cancels the running answer; without a running answer, ends the program.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use refrain::CancelToken;

use crate::failure::{Exit, Failure};

/// The target of Ctrl-C.
#[derive(Default)]
struct Target {
    /// Stops the running answer.
    cancel: Option<CancelToken>,
    /// Whether Ctrl-C was pressed during this answer.
    pressed: bool,
}

/// The handler of Ctrl-C. By default, it is not installed: of a command that another process has handed over.
#[derive(Clone, Default)]
pub(crate) struct Interrupt(Arc<Mutex<Target>>);

impl Interrupt {
    /// Installs the handler for the rest of the program.
    pub(crate) fn install() -> Result<Self, Failure> {
        let interrupt = Self::default();
        let handler = interrupt.clone();
        ctrlc::set_handler(move || handler.press()).map_err(|error| {
            Failure::new(Exit::Failed, format!("cannot install the handler of Ctrl-C: {error}"))
        })?;
        Ok(interrupt)
    }

    /// Until the guard is dropped, Ctrl-C cancels through `token`; a second one ends the program.
    pub(crate) fn cancels(&self, token: CancelToken) -> Cancelling<'_> {
        let mut target = self.target();
        (target.cancel, target.pressed) = (Some(token), false);
        drop(target);
        Cancelling(self)
    }

    fn press(&self) {
        let mut target = self.target();
        match &target.cancel {
            Some(token) if !target.pressed => {
                token.cancel();
                target.pressed = true;
            }
            _ => std::process::exit(Exit::Interrupted as i32),
        }
    }

    fn target(&self) -> MutexGuard<'_, Target> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Until it is dropped, Ctrl-C cancels an answer.
pub(crate) struct Cancelling<'a>(&'a Interrupt);

impl Drop for Cancelling<'_> {
    fn drop(&mut self) {
        let mut target = self.0.target();
        (target.cancel, target.pressed) = (None, false);
    }
}
