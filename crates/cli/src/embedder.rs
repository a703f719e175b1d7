//! The model for embeddings of an index of notes: the one that the user names, else the suggested one once it was pulled.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use refrain::EngineOptions;
use refrain::embedding::{Encoder, EncoderOptions};
use refrain_index::notes::{Embedder, ModelEmbedder, NotesIndex, NotesWriter};

use crate::failure::Failure;
use crate::key::key;
use crate::suggested::suggested_embedder;
use crate::terminal::{note, visible};
use crate::{load, models};
use refrain_program::args::bytes_text;

/// The label of the index with the path of the model whose vectors it stores, or [`NONE`].
const EMBEDDER: &str = "embedder";

/// What the user names for no model.
const NONE: &str = "none";

/// The label of an index whose user has been told that there is a model.
const TOLD: &str = "embedder suggested";

/// The model whose vectors a writer stores. The choice of the user is remembered.
///
/// # Errors
/// The model that the user has named, now or earlier, cannot be used.
pub(crate) fn of_writer(
    writer: &mut NotesWriter,
    named: Option<&Path>,
) -> Result<Option<ModelEmbedder>, Failure> {
    let path = match named {
        Some(none) if none == Path::new(NONE) => {
            writer.set_label(EMBEDDER, Some(NONE))?;
            return Ok(None);
        }
        Some(path) => Some(absolute(&models::located(path)?)?),
        None => writer.label(EMBEDDER).map(str::to_owned),
    };
    let Some(path) = path else { return of_default(writer) };
    if path == NONE {
        return Ok(None);
    }
    let opened = open(Path::new(&path))?;
    // Not before it is known to be one.
    writer.set_label(EMBEDDER, Some(&path))?;
    Ok(Some(opened))
}

/// The suggested model if it was pulled; otherwise one line says, once, how to get it.
fn of_default(writer: &mut NotesWriter) -> Result<Option<ModelEmbedder>, Failure> {
    let Some(folder) = pulled() else {
        if writer.label(TOLD).is_none() {
            let suggested = suggested_embedder();
            note(&format!(
                "the notes are searched by words; `refrain model pull {}` ({}) adds meaning",
                suggested.repo,
                bytes_text(suggested.bytes)
            ));
            writer.set_label(TOLD, Some("yes"))?;
        }
        return Ok(None);
    };
    match open(&folder) {
        Ok(embedder) => {
            note(&visible(&format!(
                "{} makes vectors, for searches by meaning (`--embedder none` ends it)",
                suggested_embedder().repo
            )));
            writer.set_label(EMBEDDER, Some(&absolute(&folder)?))?;
            Ok(Some(embedder))
        }
        // The user has not asked for it.
        Err(failure) => {
            note(&visible(&format!("no vectors are made: {}", failure.line())));
            Ok(None)
        }
    }
}

/// The folder of the suggested model.
fn pulled() -> Option<PathBuf> {
    let name = suggested_embedder().repo.parse().ok()?;
    models::store().ok()?.find(&name).ok().flatten().map(|pulled| pulled.path)
}

fn absolute(path: &Path) -> Result<String, Failure> {
    let advice = "name a model file with a Unicode path";
    let absolute = std::path::absolute(path).map_err(|error| Failure::usage(error, advice))?;
    absolute.into_os_string().into_string().map_err(|_| Failure::usage("the path is not Unicode", advice))
}

fn open(path: &Path) -> Result<ModelEmbedder, Failure> {
    if Encoder::is_encoder(path) {
        return Ok(Encoder::open(path, EncoderOptions::default())?.into());
    }
    // Nothing is drafted, so the times of rows choose nothing.
    let options = EngineOptions { measure_time: Some(Duration::ZERO), ..EngineOptions::default() };
    let engine = load::engine(&load::checkpoint(Some(path))?, options)?;
    let advice = "name a model for embeddings, or `--embedder none`";
    ModelEmbedder::new(engine).map_err(|error| Failure::input(error, advice))
}

/// The model whose vectors the index has. A search without it is by words.
pub(crate) fn stored(index: &NotesIndex) -> Result<Option<ModelEmbedder>, Failure> {
    let Some(path) = index.label(EMBEDDER)?.filter(|path| path != NONE) else { return Ok(None) };
    let opened = open(Path::new(&path));
    if let Err(failure) = &opened {
        note(&visible(&format!("searching by words alone: {}", failure.line())));
    }
    Ok(opened.ok())
}

/// The model whose vectors the index in a folder has.
pub(crate) fn of_folder(folder: &Path) -> Result<Option<Arc<dyn Embedder>>, Failure> {
    let embedder = stored(&NotesIndex::open_with_key(folder, key()?.as_ref())?)?;
    Ok(embedder.map(|embedder| Arc::new(embedder) as Arc<dyn Embedder>))
}
