//! Learnt values of drafting, kept from run to run beside a stored profile.

use std::path::{Path, PathBuf};

use refrain::Engine;
use refrain::drafting::Learned;

use crate::profile;
use crate::terminal::{note, visible};

/// The file of a model's learnt values. There is none for a model without a stored profile.
pub(crate) struct LearnedFile {
    path: Option<PathBuf>,
    /// The learnt values at the start of the run.
    base: Learned,
}

impl LearnedFile {
    /// Loads the values beside the profile of `model` into `engine`. If the file cannot be used, a note gives the
    /// reason, the file stays as it is, and this run keeps nothing.
    pub(crate) fn open(model: Option<&Path>, engine: &Engine) -> Self {
        let path = model.filter(|_| engine.device().profile().is_some()).map(beside);
        let path = path.filter(|path| match engine.learned().load(path) {
            Err(error) if path.exists() => {
                note(&visible(&format!("what drafting has learnt is left aside: {error}")));
                false
            }
            _ => true,
        });
        Self { path, base: engine.learned().get() }
    }

    /// Saves the values of this run, merged with those that other processes saved meanwhile.
    pub(crate) fn keep(&self, engine: &Engine) {
        let Some(path) = &self.path else { return };
        if let Err(error) = engine.learned().merge_into(path, &self.base) {
            note(&visible(&format!("what drafting has learnt is not kept: {error}")));
        }
    }
}

/// `MODEL.learned` beside `MODEL.profile.json`; `refrain.learned` in a folder.
pub(crate) fn beside(model: &Path) -> PathBuf {
    profile::beside(model).with_extension("").with_extension("learned")
}
