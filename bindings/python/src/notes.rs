//! The index of notes on disk.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};
use refrain_index::notes::{DocumentChanges, Language, Metadata, ModelEmbedder, NotesOptions, UpdateReport};
use refrain_index::{NoteFilter, NotesError, NotesIndex, NotesWriter, Search, SourceKind};
use serde_json::{Value, json};

use crate::border::compute;
use crate::embedder::{EmbedderModel, EmbedderSource};
use crate::errors::Failure;
use crate::options;
use crate::resident::Resident;
use crate::results::{self, object};

/// An index of notes, documents, mail, chats and calendars in a folder: searched by words, and by meaning with an embedding model.
///
/// Any number of processes search one folder, and one of them writes at a time: a method that writes waits up to two seconds for another
/// one. Reading needs no lock.
///
/// Args:
///     folder: the folder of the index. It is made by :meth:`add`, and readable by its owner only.
///     languages: codes of the notes' languages, such as ``["en", "de"]``; the empty list: all, detected for each note. Stored with the index.
///     embedder: the engine of an embedding model, or the path of one such as all-MiniLM-L6-v2, whose vectors are stored and searched.
///     key: 32 bytes that encrypt the index from its beginning. The app keeps them.
///
/// Raises:
///     OptionError: a language is unknown.
///     AssistantError: the engine's model is no embedding model.
#[pyclass(frozen, module = "refrain.assistant")]
pub(crate) struct Notes(Resident<Inner>);

struct Inner {
    folder: PathBuf,
    options: NotesOptions,
    embedder: Option<ModelEmbedder>,
    /// The state that searches read; `None` before the first one.
    index: Mutex<Option<NotesIndex>>,
}

impl Inner {
    /// The index, opened by the first call.
    fn index(&self) -> Result<NotesIndex, NotesError> {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = &*index {
            return Ok(index.clone());
        }
        Ok(index.insert(NotesIndex::open_with_key(&self.folder, self.options.key.as_ref())?).clone())
    }

    fn refresh(&self) -> Result<(), NotesError> {
        // (What is opened here is new.)
        let known = self.index.lock().unwrap_or_else(PoisonError::into_inner).clone();
        known.map_or_else(|| self.index().map(drop), |index| index.refresh())
    }

    /// Writes with `work`, then stores vectors, ends writing and shows searches the result.
    fn write(
        &self,
        work: impl FnOnce(&mut NotesWriter) -> Result<UpdateReport, NotesError>,
    ) -> Result<UpdateReport, NotesError> {
        let mut writer = NotesWriter::open(&self.folder, self.options.clone())?;
        let report = work(&mut writer)?;
        if let Some(embedder) = &self.embedder {
            writer.embed(embedder, &mut |_, _| ControlFlow::Continue(()))?;
        }
        writer.close(&mut |_, _| ControlFlow::Continue(()), &mut |_| {})?;
        self.refresh()?;
        Ok(report)
    }
}

/// A `refrain.assistant.Document`.
#[derive(FromPyObject)]
struct GivenDocument {
    id: Vec<u8>,
    text: String,
    title: Option<String>,
    date: Option<i64>,
    tags: Vec<String>,
    kind: String,
}

impl GivenDocument {
    fn with_metadata(self) -> Result<(Vec<u8>, String, Metadata), Failure> {
        let Self { id, text, title, date, tags, kind: name } = self;
        Ok((id, text, Metadata { title, date, tags, kind: kind(name)? }))
    }
}

/// The path that stands for the id of a document without a file, in searches, passages and deletions.
///
/// Raises:
///     NotesError: the id is empty, or longer than 512 bytes.
#[pyfunction]
pub(crate) fn document_path(id: Vec<u8>) -> Result<PathBuf, Failure> {
    refrain_index::notes::document_path(&id).map_err(Failure::Notes)
}

/// The id of the document that a path stands for; ``None`` for the path of a file.
#[pyfunction]
pub(crate) fn document_id(py: Python<'_>, path: PathBuf) -> Option<Bound<'_, PyBytes>> {
    refrain_index::notes::document_id(&path).map(|id| PyBytes::new(py, &id))
}

/// The conditions of a search.
pub(crate) fn filter(
    folders: Vec<PathBuf>,
    kinds: Vec<String>,
    from: Option<i64>,
    until: Option<i64>,
    tags: Vec<String>,
) -> Result<NoteFilter, Failure> {
    Ok(NoteFilter {
        kinds: kinds.into_iter().map(kind).collect::<Result<_, _>>()?,
        folders,
        from,
        until,
        tags,
    })
}

fn kind(name: String) -> Result<SourceKind, Failure> {
    name.parse().map_err(|_| Failure::Choice {
        option: "kinds",
        given: name,
        choices: SourceKind::ALL.into_iter().map(SourceKind::name).collect(),
    })
}

fn paths(paths: &[PathBuf]) -> Vec<String> {
    paths.iter().map(|path| path.to_string_lossy().into_owned()).collect()
}

fn report(report: &UpdateReport) -> Value {
    let skipped = report.skipped.iter().filter(|skipped| skipped.reason.is_notable());
    let skipped = skipped.map(|skipped| json!([skipped.path.to_string_lossy(), skipped.reason.to_string()]));
    json!({
        "n_added": report.n_added, "n_changed": report.n_changed, "n_unchanged": report.n_unchanged,
        "n_removed": report.n_removed, "n_passages": report.n_passages, "skipped": skipped.collect::<Vec<_>>(),
        "skipped_by_ending": report.skipped_by_ending(),
        "unknown": paths(&report.unknown), "is_incomplete": report.is_incomplete,
    })
}

#[pymethods]
impl Notes {
    #[new]
    #[pyo3(signature = (folder, *, languages = None, embedder = None, key = None))]
    fn new(
        py: Python<'_>,
        folder: PathBuf,
        languages: Option<Vec<String>>,
        embedder: Option<EmbedderModel>,
        key: Option<&[u8]>,
    ) -> PyResult<Self> {
        let language = |code: String| {
            let unknown = || Failure::Choice {
                option: "languages",
                given: code.clone(),
                choices: vec!["a language's code"],
            };
            Language::of_code(&code).ok_or_else(unknown)
        };
        let languages = languages.map(|codes| codes.into_iter().map(language).collect()).transpose()?;
        let embedder = embedder.map(EmbedderModel::source).transpose()?;
        let embedder = compute(py, || embedder.map(EmbedderSource::open).transpose())?;
        let options = NotesOptions { languages, key: options::key(key)?, ..NotesOptions::default() };
        Ok(Self(Resident::new(Inner { folder, options, embedder, index: Mutex::new(None) })))
    }

    /// Adds files and folders, and reads what has changed of all.
    ///
    /// Raises:
    ///     NotesError: a path does not exist or is no source, the folder cannot be written, or another process writes.
    fn add(&self, py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Py<PyAny>> {
        let inner = self.0.get()?;
        let done = compute(py, || {
            let work = |writer: &mut NotesWriter| {
                writer.add(&paths)?;
                writer.update(&mut |_, _| ControlFlow::Continue(()))
            };
            inner.write(work).map_err(Failure::Notes)
        })?;
        object(py, "UpdateReport", &report(&done))
    }

    /// Reads what has changed of the files and folders that were added.
    ///
    /// Raises:
    ///     NotesError: the folder cannot be written, or another process writes.
    fn update(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let inner = self.0.get()?;
        let done = compute(py, || {
            inner.write(|writer| writer.update(&mut |_, _| ControlFlow::Continue(()))).map_err(Failure::Notes)
        })?;
        object(py, "UpdateReport", &report(&done))
    }

    /// Removes files and folders from the index: when it returns, no file of the folder has a byte of their text. The notes stay, and
    /// later updates do not read them. (:meth:`Assistant.forget` also deletes what was made from them.)
    ///
    /// Raises:
    ///     NotesError: the folder cannot be written, or another process writes.
    fn forget(&self, py: Python<'_>, paths: Vec<PathBuf>) -> PyResult<Py<PyAny>> {
        let inner = self.0.get()?;
        let done = compute(py, || inner.write(|writer| writer.forget(&paths)).map_err(Failure::Notes))?;
        object(py, "UpdateReport", &report(&done))
    }

    /// The passages that match a text best.
    ///
    /// Args:
    ///     text: words in any form. With an embedder, their meaning counts too.
    ///     limit: the most passages.
    ///     kinds: of ``"note"``, ``"mail"``, ``"chat"``, ``"screen"``, ``"event"``, ``"document"``, ``"data"`` and
    ///         ``"code"``; empty: all.
    ///     folders: files and folders to search; empty: all.
    ///     since, until: dates in seconds since 1970, both included.
    ///     tags: a passage must have one of them; empty: all passages.
    ///     earlier: earlier texts of the conversation, newest first: their words are searched for too, with less weight.
    ///
    /// Raises:
    ///     NotesError: there is no index, or it cannot be read.
    #[allow(clippy::too_many_arguments, reason = "they are the keywords of a Python method")]
    #[pyo3(signature = (text, *, limit = 5, kinds = Vec::new(), folders = Vec::new(), since = None, until = None, tags = Vec::new(), earlier = Vec::new()))]
    fn search<'py>(
        &self,
        py: Python<'py>,
        text: &str,
        limit: usize,
        kinds: Vec<String>,
        folders: Vec<PathBuf>,
        since: Option<i64>,
        until: Option<i64>,
        tags: Vec<String>,
        earlier: Vec<String>,
    ) -> PyResult<Bound<'py, PyList>> {
        let inner = self.0.get()?;
        let mut search = Search::new(text, limit);
        search.filter = filter(folders, kinds, since, until, tags)?;
        search.earlier = earlier.iter().map(String::as_str).collect();
        search.embedder = inner.embedder.as_ref().map(|embedder| embedder as _);
        let hits =
            compute(py, || inner.index().and_then(|index| index.search(&search)).map_err(Failure::Notes))?;
        let hits = hits.iter().map(|hit| {
            let passage = &hit.passage;
            let matched = hit.snippet.matched.iter().map(|word| results::place(&hit.snippet.text, word));
            let value = json!({
                "path": passage.path.to_string_lossy(), "kind": passage.kind.name(), "title": passage.title,
                "text": passage.text, "place": [passage.place.start, passage.place.end],
                "is_verbatim": passage.is_verbatim, "locator": passage.locator.map(|locator| locator.to_string()),
                "date": passage.date, "tags": passage.tags, "score": hit.score,
                "coverage": hit.coverage, "similarity": hit.similarity,
                "snippet": hit.snippet.text, "matched": matched.collect::<Vec<_>>(),
            });
            object(py, "Hit", &value)
        });
        PyList::new(py, hits.collect::<PyResult<Vec<_>>>()?)
    }

    /// Puts documents without files, and removes some, in one step: other readers see all changes or none, also if the process is killed.
    ///
    /// A document that is there already, the same, is left alone. In a search, the path of a document's passage stands for its id
    /// (:func:`document_path`).
    ///
    /// Args:
    ///     documents: each takes the place of an earlier one with its id.
    ///     remove: ids of documents to remove.
    ///     cursor: up to 4096 bytes of the app that are stored in the same step, such as the number of its last change.
    ///
    /// Returns:
    ///     the number of the last change of the index, for :meth:`documents_since`.
    ///
    /// Raises:
    ///     NotesError: an id or a text is too long, there is too much for one step, the folder cannot be written, or another process writes.
    #[pyo3(signature = (documents, *, remove = Vec::new(), cursor = None))]
    fn put(
        &self,
        py: Python<'_>,
        documents: Vec<GivenDocument>,
        remove: Vec<Vec<u8>>,
        cursor: Option<Vec<u8>>,
    ) -> PyResult<u64> {
        let inner = self.0.get()?;
        let documents =
            documents.into_iter().map(GivenDocument::with_metadata).collect::<Result<Vec<_>, _>>()?;
        compute(py, || {
            let mut change = 0;
            let work = |writer: &mut NotesWriter| {
                let mut transaction = writer.transaction();
                for (id, text, metadata) in &documents {
                    transaction.put(id, text, metadata)?;
                }
                for id in &remove {
                    transaction.remove(id)?;
                }
                if let Some(cursor) = &cursor {
                    transaction.set_cursor(Some(cursor))?;
                }
                change = transaction.commit()?;
                writer.purge()?;
                Ok(UpdateReport::default())
            };
            inner.write(work).map_err(Failure::Notes)?;
            Ok(change)
        })
    }

    /// What changed among the documents without files since a number that :meth:`put` or this method gave; 0: all of them.
    ///
    /// Raises:
    ///     NotesError: there is no index, or it cannot be read.
    #[pyo3(signature = (change = 0))]
    fn documents_since(&self, py: Python<'_>, change: u64) -> PyResult<Py<PyAny>> {
        let inner = self.0.get()?;
        let DocumentChanges { change, put, removed, is_complete, .. } = compute(py, || {
            inner.index().and_then(|index| index.documents_since(change)).map_err(Failure::Notes)
        })?;
        let module = py.import("refrain.assistant")?;
        let (class, document) = (module.getattr("DocumentChanges")?, module.getattr("NoteDocument")?);
        let put = put
            .iter()
            .map(|put| document.call1((PyBytes::new(py, &put.id), put.bytes, put.n_passages, put.change)));
        let put = PyTuple::new(py, put.collect::<PyResult<Vec<_>>>()?)?;
        let removed = PyTuple::new(py, removed.iter().map(|id| PyBytes::new(py, id)))?;
        Ok(class.call1((change, put, removed, is_complete))?.unbind())
    }

    /// What the app stored with the last :meth:`put`; ``None`` also after the index was built again: the app puts all of its documents again.
    ///
    /// Raises:
    ///     NotesError: there is no index, or it cannot be read.
    fn cursor<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let inner = self.0.get()?;
        let cursor = compute(py, || inner.index().and_then(|index| index.cursor()).map_err(Failure::Notes))?;
        Ok(cursor.map(|cursor| PyBytes::new(py, &cursor)))
    }

    /// The files and documents with passages, by path.
    ///
    /// Raises:
    ///     NotesError: there is no index, or it cannot be read.
    fn files<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let inner = self.0.get()?;
        let files = compute(py, || inner.index().and_then(|index| index.files()).map_err(Failure::Notes))?;
        let files = files.iter().map(|file| {
            let value = json!({
                "path": file.path.to_string_lossy(), "bytes": file.bytes, "modified": file.modified,
                "n_passages": file.n_passages,
            });
            object(py, "NoteFile", &value)
        });
        PyList::new(py, files.collect::<PyResult<Vec<_>>>()?)
    }

    /// The index as the last writer of any process has left it, for the next searches of this object.
    ///
    /// Raises:
    ///     NotesError: there is no index, or it cannot be read.
    fn refresh(&self, py: Python<'_>) -> PyResult<()> {
        let inner = self.0.get()?;
        compute(py, || inner.refresh().map_err(Failure::Notes))
    }

    /// The folder of the index.
    #[getter]
    fn folder(&self) -> PyResult<&Path> {
        Ok(&self.0.get()?.folder)
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("Notes({:?})", self.0.get()?.folder))
    }
}
