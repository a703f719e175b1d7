//! Opens the model that the user named, or the one inside the program.

use std::path::Path;

use refrain::engine::{Engine, EngineOptions};
use refrain::model::Checkpoint;

use crate::failure::Failure;
use crate::progress::Progress;

/// The small model that is inside the program, and its name in messages.
#[cfg(feature = "embedded-model")]
pub(crate) static EMBEDDED_MODEL: &[u8] =
    include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/target.gguf"));

/// Opens the checkpoint at `path`; without a path, the embedded one.
pub(crate) fn checkpoint(path: Option<&Path>) -> Result<Checkpoint, Failure> {
    match path {
        Some(path) => {
            Checkpoint::open(path).map_err(|error| refrain::engine::EngineError::from(error).into())
        }
        None => embedded(),
    }
}

/// Loads a checkpoint, with progress.
pub(crate) fn engine(checkpoint: &Checkpoint, options: EngineOptions) -> Result<Engine, Failure> {
    let progress = Progress::bytes("loading");
    Ok(Engine::load(checkpoint, options, Some(&|done, total| progress.set(done, total)))?)
}

#[cfg(feature = "embedded-model")]
fn embedded() -> Result<Checkpoint, Failure> {
    let bytes = std::borrow::Cow::Borrowed(EMBEDDED_MODEL);
    Checkpoint::from_gguf_bytes(bytes, "embedded model")
        .map_err(|error| refrain::engine::EngineError::from(error).into())
}

#[cfg(not(feature = "embedded-model"))]
fn embedded() -> Result<Checkpoint, Failure> {
    Err(Failure::usage("this program was built without a model inside", "name one with --model"))
}
