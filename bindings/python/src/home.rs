//! The place of a session.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Where a session lives between generations.
pub(crate) struct Home(Mutex<Place>);

pub(crate) enum Place {
    Here(Box<refrain::Session>),
    /// A generation has it.
    Away,
}

impl Home {
    pub(crate) fn new(session: refrain::Session) -> Self {
        Self(Mutex::new(Place::Here(Box::new(session))))
    }

    /// A panic (of a draft source or a processor) leaves the session usable, so a poisoned lock is taken all the same.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Place> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn put_back(&self, session: refrain::Session) {
        *self.lock() = Place::Here(Box::new(session));
    }
}
