//! [`LearnedState`]: what an engine has learned for drafting, in memory and in files.

use std::fmt;
use std::path::Path;

use crate::draft::{Learned, LearnedError, LearnedKey};
use crate::engine::shared::Shared;
use crate::error::LoadError;
use crate::profile::cpu_name;

/// The learned drafting state of an [`Engine`](crate::Engine): reliability of sources, and costs of steps.
#[derive(Clone, Copy)]
pub struct LearnedState<'a> {
    pub(super) shared: &'a Shared,
}

impl fmt::Debug for LearnedState<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LearnedState").field(&self.get()).finish()
    }
}

impl LearnedState<'_> {
    /// The learned drafting state so far. A running generation is not included: it merges its part when it
    /// ends.
    pub fn get(&self) -> Learned {
        self.shared.learned().clone()
    }

    /// Replaces the learned drafting state for later generations. A running generation merges its part when
    /// it ends.
    pub fn set(&self, learned: Learned) {
        *self.shared.learned() = learned;
    }

    /// Saves the learned drafting state to a file for [`load`](Self::load).
    ///
    /// # Errors
    /// The file could not be written; an existing file is unchanged.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), LoadError> {
        Ok(self.get().save(path.as_ref(), &self.key())?)
    }

    /// Adds the learned drafting state since `base` to a file of learned values, which other processes may
    /// have written meanwhile. Creates the file if it does not exist. The file is not locked between reading
    /// and writing: if two processes merge at the same moment, the later write wins, and the evidence of the
    /// other process is lost.
    ///
    /// # Errors
    /// An existing file cannot be read, or the new file could not be written. The file is
    /// unchanged.
    pub fn merge_into(&self, path: impl AsRef<Path>, base: &Learned) -> Result<(), LoadError> {
        let path = path.as_ref();
        let mut learned = self.get();
        match Learned::load(path, &self.key(), base) {
            Ok(stored) => {
                let ours = std::mem::replace(&mut learned, stored.learned);
                learned.merge(base, &ours);
            }
            Err(LearnedError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error.into()),
        }
        Ok(learned.save(path, &self.key())?)
    }

    /// Continues with the learned drafting state of another run. Returns `false` if that run used another
    /// machine, thread count or memory setting: then only the reliability of sources is loaded, and the costs
    /// measured here stay.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or belongs to another model. Nothing is
    /// changed.
    pub fn load(&self, path: impl AsRef<Path>) -> Result<bool, LoadError> {
        let loaded = Learned::load(path.as_ref(), &self.key(), &self.get())?;
        self.set(loaded.learned);
        Ok(!loaded.is_of_other_machine)
    }

    /// The model and machine that the learned state is valid for.
    fn key(&self) -> LearnedKey {
        LearnedKey {
            model: self.shared.model.identity().to_string(),
            cpu: cpu_name(),
            isa: self.shared.kernels.isa().name().to_owned(),
            n_threads: self.shared.pool.n_threads(),
            weights_bytes: self.shared.model.memory_usage(),
        }
    }
}
