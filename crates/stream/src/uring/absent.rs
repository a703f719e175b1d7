//! Systems without io_uring: no queue can be created, so threads read without one.

use std::convert::Infallible;
use std::fs::File;
use std::io;

use super::Ended;
use crate::queue::Work;

/// A queue that cannot exist.
pub(crate) struct Uring(Infallible);

impl Uring {
    /// # Errors
    /// [`io::ErrorKind::Unsupported`].
    pub(crate) fn new(_file: File, _n_reads: usize) -> io::Result<Self> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn is_full(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn is_idle(&self) -> bool {
        match self.0 {}
    }

    pub(crate) fn push(&mut self, _work: Work) {
        match self.0 {}
    }

    pub(crate) fn wait(&mut self, _ended: &mut Vec<Ended>) -> io::Result<()> {
        match self.0 {}
    }
}
