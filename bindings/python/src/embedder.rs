//! The embedding model of an index or an assistant: an engine, or the path of a model.

use std::path::PathBuf;

use pyo3::prelude::*;
use refrain::EngineOptions;
use refrain_index::notes::{ModelEmbedder, ModelEmbedderError};

use crate::engine::Engine;
use crate::errors::Failure;

/// What Python gives.
#[derive(FromPyObject)]
pub(crate) enum EmbedderModel {
    Engine(Py<Engine>),
    Path(PathBuf),
}

/// A model that can be opened without Python.
pub(crate) enum EmbedderSource {
    Engine(refrain::Engine),
    Path(PathBuf),
}

impl EmbedderModel {
    pub(crate) fn source(self) -> PyResult<EmbedderSource> {
        Ok(match self {
            Self::Engine(engine) => EmbedderSource::Engine(engine.get().engine()?.clone()),
            Self::Path(path) => EmbedderSource::Path(path),
        })
    }
}

impl EmbedderSource {
    pub(crate) fn open(self) -> Result<ModelEmbedder, Failure> {
        let opened = match self {
            Self::Engine(engine) => ModelEmbedder::new(engine),
            Self::Path(path) => ModelEmbedder::open(path, EngineOptions::default()),
        };
        opened.map_err(|error| match error {
            ModelEmbedderError::Load(error) => Failure::Load(error),
            error => Failure::Embedder(error),
        })
    }
}
