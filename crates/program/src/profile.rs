//! The measured costs of a model's passes, beside the model.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use refrain::device::MachineProfile;
use refrain::{Engine, EngineOptions, KvType};

use crate::args::ModelArgs;
use crate::load;
use crate::terminal::{note_once, visible};

/// The path of a model's profile: `MODEL.profile.json` beside a file, `refrain.profile.json` in a folder.
pub fn beside(model: &Path) -> PathBuf {
    let model = &*load::located(model);
    if model.is_dir() {
        return model.join("refrain.profile.json");
    }
    let mut name = OsString::from(model.file_name().unwrap_or_default());
    name.push(".profile.json");
    model.with_file_name(name)
}

/// The stored profile of a model, if there is one. An unusable one is ignored with a notice.
pub fn stored(model: Option<&Path>) -> Option<MachineProfile> {
    let path = beside(model?);
    if !path.exists() {
        return None;
    }
    match MachineProfile::read(&path) {
        Ok(profile) => Some(profile),
        Err(error) => {
            note_once(&format!("the stored profile is not used: {error}"));
            None
        }
    }
}

/// Prints the reason if sessions with this type of KV cache do not use the profile beside their model.
pub fn note_mismatch(engine: &Engine, kv_type: KvType) {
    if let Some(mismatch) = engine.device().profile_mismatch(kv_type) {
        note_once(&visible(&format!(
            "the stored profile is not used: {mismatch}; `refrain model profile` measures again"
        )));
    }
}

/// The options of an engine, with the profile stored beside the model.
pub fn engine_options(args: &ModelArgs) -> EngineOptions {
    EngineOptions { profile: stored(args.model.as_deref()), ..args.compute.engine_options() }
}
