//! The index of notes on disk.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use refrain::CancelToken;
use refrain_index::notes::{self as library, Language, Metadata, ModelEmbedder};
use refrain_index::{NotesError, NotesIndex, NotesWriter, Search};

use crate::assistant::{filter, kind};
use crate::error::FfiError;
use crate::events::{JobResult, Stage};
use crate::guard::{Guarded, Made, lock};
use crate::job::{Job, Queue};
use crate::options::{Units, key};
use crate::results::{self, document, id_text, path};
use crate::tasks::{
    Document, DocumentChanges, DocumentInfo, Hit, NoteFile, NotesOptions, PutRequest, SearchRequest,
};

/// An index of notes, documents, mail, chats and calendars in a folder: searched by words, and by meaning with an embedding model. It
/// needs no engine.
///
/// Any number of processes and objects search one folder, and one writes at a time: another one waits for it up to two seconds, and then
/// gives [`InUse`](crate::ErrorKind::InUse).
#[cfg_attr(feature = "uniffi", derive(uniffi::Object))]
pub struct Notes(Guarded<NotesInner>);

struct NotesInner {
    folder: PathBuf,
    options: library::NotesOptions,
    embedder: Option<ModelEmbedder>,
    units: Units,
    /// The state that searches read; `None` before the first one.
    index: Mutex<Option<NotesIndex>>,
}

impl Made for NotesInner {}

impl NotesInner {
    /// The index, opened by the first call.
    fn index(&self) -> Result<NotesIndex, NotesError> {
        let mut index = lock(&self.index);
        if let Some(index) = &*index {
            return Ok(index.clone());
        }
        Ok(index.insert(NotesIndex::open_with_key(&self.folder, self.options.key.as_ref())?).clone())
    }

    fn refresh(&self) -> Result<(), NotesError> {
        // (What is opened here is new.)
        let known = lock(&self.index).clone();
        known.map_or_else(|| self.index().map(drop), |index| index.refresh())
    }

    /// Writes with `work`, then stores vectors, ends writing and shows searches the result. `is_cancelled` ends it early, and the next
    /// writer goes on.
    fn write<T>(
        &self,
        is_cancelled: &dyn Fn() -> bool,
        work: impl FnOnce(&mut NotesWriter) -> Result<T, NotesError>,
    ) -> Result<T, NotesError> {
        let goes_on = |_: u64, _: u64| match is_cancelled() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let mut writer = NotesWriter::open(&self.folder, self.options.clone())?;
        let done = work(&mut writer)?;
        if let Some(embedder) = &self.embedder {
            writer.embed(embedder, &mut { goes_on })?;
        }
        writer.close(&mut { goes_on }, &mut |_| {})?;
        self.refresh()?;
        Ok(done)
    }
}

/// Starts a job that writes an index and reports what it has done.
fn write_job(
    inner: &Arc<NotesInner>,
    work: impl FnOnce(&mut NotesWriter, &mut library::OnProgress<'_>) -> Result<library::UpdateReport, NotesError>
    + Send
    + 'static,
) -> Result<Arc<Job>, FfiError> {
    let (inner, cancel) = (Arc::clone(inner), CancelToken::new());
    let of_work = cancel.clone();
    let body = move |queue: &Queue| {
        let is_cancelled = || of_work.is_cancelled();
        let mut progress = |done: u64, total: u64| {
            queue.progress(Stage::Index, done, total);
            match is_cancelled() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let report = inner.write(&is_cancelled, |writer| work(writer, &mut progress))?;
        Ok(JobResult { update: Some(results::update(&report)), ..JobResult::default() })
    };
    Job::start(None, cancel, body)
}

/// The path that stands for the id of a document without a file: for filters and deletions.
#[cfg_attr(feature = "uniffi", uniffi::export)]
pub fn document_path(id: String) -> String {
    path(&library::document_path(id.as_bytes()))
}

impl Notes {
    /// Closes the object; its jobs go on. Allowed twice.
    ///
    /// # Errors
    /// [`Forked`](crate::ErrorKind::Forked), [`Reentrant`](crate::ErrorKind::Reentrant).
    pub fn close(&self) -> Result<(), FfiError> {
        self.0.close()
    }
}

#[cfg_attr(feature = "uniffi", uniffi::export)]
impl Notes {
    /// An index in a folder, which is opened by the first search, and made by the first write. It takes as long as opening the embedding
    /// model.
    ///
    /// # Errors
    /// [`InvalidArgument`](crate::ErrorKind::InvalidArgument): a language is unknown, or the key has another length. Or that of the
    /// embedding model.
    #[cfg_attr(feature = "uniffi", uniffi::constructor)]
    pub fn open(options: NotesOptions) -> Result<Arc<Self>, FfiError> {
        crate::guard::call(|| {
            let language = |code: &String| {
                let unknown = || FfiError::argument("languages", format!("has the unknown code {code:?}"));
                Language::of_code(code).ok_or_else(unknown)
            };
            let mut of_library = library::NotesOptions::default();
            of_library.key = key(options.key.as_deref())?;
            of_library.languages =
                options.languages.map(|codes| codes.iter().map(language).collect()).transpose()?;
            let embedder =
                options.embedder.map(|path| ModelEmbedder::open(path, Default::default())).transpose()?;
            Ok(Arc::new(Self(Guarded::new(NotesInner {
                folder: options.folder.into(),
                options: of_library,
                embedder,
                units: options.units.unwrap_or_default(),
                index: Mutex::new(None),
            }))))
        })
    }

    /// Adds files and folders, and reads what has changed of all. The job's result has `update`. A job that is cancelled ends well, with
    /// [`is_incomplete`](crate::UpdateReport::is_incomplete): the next update goes on.
    ///
    /// # Errors
    /// Those of objects. The job's: a path does not exist or is no source, the folder cannot be written, or another process writes.
    pub fn add(&self, paths: Vec<String>) -> Result<Arc<Job>, FfiError> {
        self.0.call(|inner| {
            write_job(inner, move |writer, progress| {
                writer.add(&paths)?;
                writer.update(progress)
            })
        })
    }

    /// Reads what has changed of the files and folders that were added. As [`add`](Self::add).
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn update(&self) -> Result<Arc<Job>, FfiError> {
        self.0.call(|inner| write_job(inner, |writer, progress| writer.update(progress)))
    }

    /// Removes files and folders from the index: when the job has ended, no file of the folder has a byte of their text. The notes stay,
    /// and later updates do not read them. ([`Assistant::forget`](crate::Assistant::forget) also deletes what was made from them.)
    ///
    /// # Errors
    /// As [`add`](Self::add).
    pub fn forget(&self, paths: Vec<String>) -> Result<Arc<Job>, FfiError> {
        self.0.call(|inner| write_job(inner, move |writer, _| writer.forget(&paths)))
    }

    /// Puts documents without files, and removes some, in one step. One that is there already, the same, is left alone. Returns the number
    /// of the last change, for [`documents_since`](Self::documents_since).
    ///
    /// # Errors
    /// An id or a text is too long, there is too much for one step, the folder cannot be written, or another process writes. Those of objects.
    pub fn put(&self, request: PutRequest) -> Result<u64, FfiError> {
        self.0.call(|inner| {
            let documents: Vec<_> =
                request.documents.into_iter().map(with_metadata).collect::<Result<_, FfiError>>()?;
            let change = inner.write(&|| false, |writer| {
                let mut transaction = writer.transaction();
                for (id, text, metadata) in &documents {
                    transaction.put(id.as_bytes(), text, metadata)?;
                }
                for id in &request.remove {
                    transaction.remove(id.as_bytes())?;
                }
                if let Some(cursor) = &request.cursor {
                    transaction.set_cursor(Some(cursor.as_bytes()))?;
                }
                let change = transaction.commit()?;
                writer.purge()?;
                Ok(change)
            })?;
            Ok(change)
        })
    }

    /// The passages that match a text best, best first.
    ///
    /// # Errors
    /// [`NotFound`](crate::ErrorKind::NotFound): there is no index. It cannot be read, or a kind is unknown. Those of objects.
    pub fn search(&self, request: SearchRequest) -> Result<Vec<Hit>, FfiError> {
        self.0.call(|inner| {
            let mut search = Search::new(&request.text, request.limit.unwrap_or(5) as usize);
            search.filter = filter(request.filter)?;
            search.earlier = request.earlier.iter().map(String::as_str).collect();
            search.embedder = inner.embedder.as_ref().map(|embedder| embedder as _);
            let hits = inner.index()?.search(&search)?;
            Ok(hits.into_iter().map(|hit| found(hit, inner.units)).collect())
        })
    }

    /// What changed among the documents since a number that [`put`](Self::put) or this method gave; 0: all of them.
    ///
    /// # Errors
    /// There is no index, or it cannot be read. Those of objects.
    pub fn documents_since(&self, change: u64) -> Result<DocumentChanges, FfiError> {
        self.0.call(|inner| {
            let changes = inner.index()?.documents_since(change)?;
            let info = |put: &library::NoteDocument| DocumentInfo {
                id: id_text(&put.id),
                bytes: put.bytes,
                passages: put.n_passages as u64,
                change: put.change,
            };
            Ok(DocumentChanges {
                change: changes.change,
                put: changes.put.iter().map(info).collect(),
                removed: changes.removed.iter().map(|id| id_text(id)).collect(),
                is_complete: changes.is_complete,
            })
        })
    }

    /// What the app stored with the last [`put`](Self::put). `None` also after the index was built again: the app puts its documents again.
    ///
    /// # Errors
    /// There is no index, or it cannot be read. Those of objects.
    pub fn cursor(&self) -> Result<Option<String>, FfiError> {
        self.0.call(|inner| Ok(inner.index()?.cursor()?.map(|cursor| id_text(&cursor))))
    }

    /// The files and documents with passages, by path.
    ///
    /// # Errors
    /// There is no index, or it cannot be read. Those of objects.
    pub fn files(&self) -> Result<Vec<NoteFile>, FfiError> {
        self.0.call(|inner| {
            let file = |file: library::NoteFile| NoteFile {
                document: document(&file.path),
                path: path(&file.path),
                bytes: file.bytes,
                modified: file.modified,
                passages: file.n_passages as u64,
            };
            Ok(inner.index()?.files()?.into_iter().map(file).collect())
        })
    }

    /// Reads the index as the last writer of any process has left it, for the next searches.
    ///
    /// # Errors
    /// There is no index, or it cannot be read. Those of objects.
    pub fn refresh(&self) -> Result<(), FfiError> {
        self.0.call(|inner| Ok(inner.refresh()?))
    }
}

fn with_metadata(given: Document) -> Result<(String, String, Metadata), FfiError> {
    let Document { id, text, title, date, tags, kind: name } = given;
    let kind = kind(name.as_deref().unwrap_or("note"))?;
    Ok((id, text, Metadata { title, date, tags, kind }))
}

fn found(hit: library::NoteHit, units: Units) -> Hit {
    let passage = hit.passage;
    let matched = hit.snippet.matched.iter().map(|word| units.place(&hit.snippet.text, word)).collect();
    Hit {
        document: document(&passage.path),
        path: path(&passage.path),
        kind: passage.kind.name().to_owned(),
        title: passage.title,
        text: passage.text,
        file_start: passage.place.start,
        file_end: passage.place.end,
        locator: passage.locator.map(|locator| locator.to_string()),
        date: passage.date,
        tags: passage.tags,
        score: hit.score,
        coverage: hit.coverage,
        snippet: hit.snippet.text,
        matched,
    }
}
