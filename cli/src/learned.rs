//! Learnt values of drafting, kept from run to run beside a stored profile.

use std::path::{Path, PathBuf};

use refrain::{Engine, Learned};

use crate::profile;
use crate::terminal::{note, visible};

/// The file of a model's learnt values. There is none for a model without a stored profile.
pub(crate) struct LearnedFile {
    path: Option<PathBuf>,
    /// What was learnt when the run began.
    base: Learned,
}

impl LearnedFile {
    /// Lets `engine` go on with the values beside the profile of `model`. A file that cannot be used is left as it is, with a note,
    /// and this run keeps nothing.
    pub(crate) fn open(model: Option<&Path>, engine: &Engine) -> Self {
        let path = model.filter(|_| engine.profile().is_some()).map(beside);
        let path = path.filter(|path| match engine.load_learned(path) {
            Err(error) if path.exists() => {
                note(&visible(&format!("what drafting has learnt is left aside: {error}")));
                false
            }
            _ => true,
        });
        Self { path, base: engine.learned() }
    }

    /// Keeps the values of this run, together with those that another process has kept meanwhile.
    pub(crate) fn keep(&self, engine: &Engine) {
        let Some(path) = &self.path else { return };
        if let Err(error) = engine.merge_learned(path, &self.base) {
            note(&visible(&format!("what drafting has learnt is not kept: {error}")));
        }
    }
}

/// `MODEL.learned` beside `MODEL.profile.json`; `refrain.learned` in a folder.
fn beside(model: &Path) -> PathBuf {
    profile::beside(model).with_extension("").with_extension("learned")
}
