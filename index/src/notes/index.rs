//! The reader: searches a state of the index, beside any number of other processes.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use refrain::drafting::DraftSource;
use refrain::internals::draft::PassagesSource;
use refrain::{SpecialTokens, TokenId, Tokenizer};

use super::catalogue::Catalogue;
use super::derived::{self, Derived, DerivedKind, decode_tokens};
use super::error::{NotesError, io_error};
use super::files::{self, Folder};
use super::functional::Functional;
use super::inbox;
use super::language::Language;
use super::names::names;
use super::options::NotesOptions;
use super::passage::NotePassage;
use super::paths;
use super::report::{NoteFile, NotesStatus};
use super::request::Request;
use super::snapshot::Snapshot;
use super::sources::Sources;
use super::store::{Store, check_own, tighten};
use super::vectors::Vectors;
use super::walk::Limits;
use crate::bounds::Bounds;
use crate::disk_file::if_there;

/// How often a state is read anew if a writer removes files of it meanwhile. Each attempt takes about a millisecond,
/// and a writer commits at most every ten.
const ATTEMPTS: usize = 50;

/// Searches the notes in a folder. Clones share their state. Other threads and processes may search and write at the
/// same time; [`refresh`](Self::refresh) shows what writers have changed since.
#[derive(Clone)]
pub struct NotesIndex {
    shared: Arc<Shared>,
}

struct Shared {
    folder: Folder,
    state: RwLock<Arc<State>>,
    /// Files whose checksums were compared.
    verified: Mutex<HashSet<PathBuf>>,
}

/// What one commit left.
pub(super) struct State {
    pub(super) snapshot: Snapshot,
    /// The languages of passages; `None` stands for passages without one.
    pub(super) languages: Vec<Option<Language>>,
    /// The function words of requests.
    pub(super) functional: Mutex<Functional>,
    /// The vectors of the embedder that was used last.
    pub(super) vectors: Mutex<Option<Arc<Vectors>>>,
    /// The token ids of the tokenizer that was used last, with its fingerprint.
    tokens: Mutex<Option<(u64, Arc<Derived>)>>,
}

impl NotesIndex {
    /// Opens the index in `folder` for reading, and compares its checksums.
    ///
    /// # Errors
    /// [`NotesError::NoIndex`]; [`NotesError::Damaged`]: a [`NotesWriter`](super::NotesWriter) builds the index again.
    pub fn open(folder: &Path) -> Result<Self, NotesError> {
        Self::open_with_key(folder, None)
    }

    /// As [`open`](Self::open), for an index that was written with [`NotesOptions::key`].
    ///
    /// # Errors
    /// As [`open`](Self::open), and [`NotesError::Key`].
    pub fn open_with_key(folder: &Path, key: Option<&[u8; 32]>) -> Result<Self, NotesError> {
        let folder = Folder::new(paths::absolute(folder)?, key);
        tighten(&folder);
        files::check_store_key(&folder, false)?;
        let mut verified = HashSet::new();
        let state = Arc::new(load(&folder, &mut verified)?);
        let shared = Shared { folder, state: RwLock::new(state), verified: Mutex::new(verified) };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Reads the state after the last commit of any process.
    ///
    /// # Errors
    /// As [`open`](Self::open). The state is the earlier one.
    pub fn refresh(&self) -> Result<(), NotesError> {
        let mut verified = self.shared.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let state = Arc::new(load(&self.shared.folder, &mut verified)?);
        *self.shared.state.write().unwrap_or_else(PoisonError::into_inner) = state;
        Ok(())
    }

    /// The number of passages.
    pub fn n_passages(&self) -> usize {
        self.state().snapshot.counts().0
    }

    /// All passages of a file, or of the files in a folder, or of a document without a file ([`document_path`](super::document_path)), in the
    /// order of the index.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn passages_of(&self, path: &Path) -> Result<Vec<NotePassage>, NotesError> {
        let path = paths::absolute(path)?;
        let snapshot = &self.state().snapshot;
        let addresses = snapshot.addresses(snapshot.fields.of_path(&path))?;
        let passages: Result<Vec<_>, _> =
            addresses.into_iter().map(|address| snapshot.passage(address)).collect();
        // Equal hashes of two paths would mix their passages.
        Ok(passages?.into_iter().filter(|passage| passage.path.starts_with(&path)).collect())
    }

    /// The files and the documents without files that have passages, by path, after the last commit of any process. Reads their list anew:
    /// about 160 bytes per file.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn files(&self) -> Result<Vec<NoteFile>, NotesError> {
        let catalogue = self.catalogue()?;
        let documents = catalogue.documents.as_files().collect::<Vec<_>>();
        let with_passages = catalogue.entries.into_iter().filter(|(_, entry)| entry.n_passages > 0);
        let files = with_passages.map(|(path, entry)| NoteFile {
            path,
            bytes: entry.stamp.bytes,
            modified: entry.stamp.modified.div_euclid(1_000_000_000),
            n_passages: entry.n_passages as usize,
        });
        // Their paths are behind those of files.
        Ok(files.chain(documents).collect())
    }

    /// The files and folders that updates read.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn roots(&self) -> Result<Vec<PathBuf>, NotesError> {
        Ok(self.sources()?.roots.into_iter().collect())
    }

    /// The token ids of passages. Those that the writer has not stored for this tokenizer are made here.
    ///
    /// # Errors
    /// The files cannot be read, or the tokenizer refuses a text.
    pub fn tokens(
        &self,
        tokenizer: &Tokenizer,
        passages: &[NotePassage],
    ) -> Result<Vec<Vec<TokenId>>, NotesError> {
        let stored = self.stored_tokens(tokenizer.fingerprint())?;
        let tokens = passages.iter().map(|passage| -> Result<Vec<TokenId>, NotesError> {
            let stored = stored.as_ref().map(|stored| stored.value(passage.key)).transpose()?.flatten();
            match stored {
                Some(bytes) => Ok(decode_tokens(&bytes)),
                None => Ok(tokenizer.encode(&passage.text, SpecialTokens::AsText)?),
            }
        });
        tokens.collect()
    }

    /// The file of token ids. It is read at the first use in a state: about a second per GB.
    fn stored_tokens(&self, tokenizer: u64) -> Result<Option<Arc<Derived>>, NotesError> {
        let state = self.state();
        let mut kept = state.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((of, tokens)) if *of == tokenizer => Ok(Some(Arc::clone(tokens))),
            _ => {
                let opened =
                    Derived::open(&self.shared.folder, DerivedKind::Tokens, tokenizer)?.map(Arc::new);
                *kept = opened.clone().map(|tokens| (tokenizer, tokens));
                Ok(opened)
            }
        }
    }

    /// A draft source of passages: a session drafts from their token ids. The suffix automaton is built here from the ids.
    ///
    /// # Errors
    /// As [`tokens`](Self::tokens).
    pub fn draft_source(
        &self,
        tokenizer: &Tokenizer,
        passages: &[NotePassage],
    ) -> Result<Box<dyn DraftSource>, NotesError> {
        let tokens = self.tokens(tokenizer, passages)?;
        Ok(Box::new(PassagesSource::new(tokens.iter().map(Vec::as_slice))))
    }

    /// All names of the files at paths and below them that a deletion of the paths means: the paths, the links and hard links
    /// inside the notes that lead there, and names that the index still has of files that were renamed. A folder among them
    /// stands for everything below it. Walks the notes, once, if the paths have files.
    ///
    /// # Errors
    /// The index cannot be read, or a path cannot be stored.
    pub fn names_of<P: AsRef<Path>>(&self, named: &[P]) -> Result<Vec<PathBuf>, NotesError> {
        let named: Vec<PathBuf> =
            named.iter().map(|path| paths::absolute(path.as_ref())).collect::<Result<_, _>>()?;
        let (sources, catalogue) = (self.sources()?, self.catalogue()?);
        let limits = Limits {
            file_bytes_max: sources.settings.file_bytes_max,
            n_entries_max: NotesOptions::default().n_entries_max,
            bounds: &Bounds::default(),
        };
        let names = names(&named, &sources, &catalogue, &self.shared.folder, limits);
        Ok(names.into_iter().flat_map(|names| names.now.into_iter().chain(names.earlier)).collect())
    }

    /// The paths that wait to be forgotten by the process that writes. Their text is in the index until then.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn waiting_to_be_forgotten(&self) -> Result<Vec<PathBuf>, NotesError> {
        let waiting = inbox::read(&self.shared.folder)?.into_iter().filter_map(|(_, request)| request);
        let paths = waiting.filter_map(|request| match request {
            Request::Forget(paths) => Some(paths),
            Request::Add(_) | Request::Update => None,
        });
        Ok(paths.flatten().collect())
    }

    /// The files and folders that updates of the index in `folder` read, including files and folders that wait to be added. Works
    /// also if other files of the index are damaged. `None` if the folder has no index. `key` is [`NotesOptions::key`].
    ///
    /// # Errors
    /// [`NotesError::Foreign`]: the folder has files of somebody else; [`NotesError::Version`]; [`NotesError::Key`]; the folder
    /// cannot be read.
    pub fn roots_in(folder: &Path, key: Option<&[u8; 32]>) -> Result<Option<Vec<PathBuf>>, NotesError> {
        let folder = Folder::new(paths::absolute(folder)?, key);
        check_own(&folder)?;
        files::check_store_key(&folder, false)?;
        if Store::is_none(&folder)? && !Sources::is_in(&folder) {
            return Ok(None);
        }
        let mut roots = match Sources::read(&folder) {
            Err(error) if error.is_damage() => Sources::default().roots,
            known => known?.unwrap_or_default().roots,
        };
        roots.extend(inbox::read(&folder)?.into_iter().flat_map(|(_, request)| match request {
            Some(Request::Add(added)) => added,
            _ => Vec::new(),
        }));
        Ok(Some(roots.into_iter().collect()))
    }

    /// The contents of the index, and what waits for a writer.
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn status(&self) -> Result<NotesStatus, NotesError> {
        let folder = &self.shared.folder;
        let state = self.state();
        let (n_passages, n_unpurged) = state.snapshot.counts();
        let catalogue = self.catalogue()?;
        let sources = self.sources()?;
        let derived = derived::list(folder)?;
        let identities =
            |kind| derived.iter().filter(move |(of, _)| *of == kind).map(|&(_, identity)| identity).collect();
        Ok(NotesStatus {
            n_forgotten: sources.n_forgotten(),
            roots: sources.roots.into_iter().collect(),
            n_files: catalogue.entries.len(),
            n_documents: catalogue.documents.len(),
            n_passages,
            by_kind: state.snapshot.kinds()?,
            n_unpurged,
            n_segments: state.snapshot.segments().count(),
            bytes: bytes_of(folder)?,
            tokenizers: identities(DerivedKind::Tokens),
            embedders: identities(DerivedKind::Vectors),
            n_requests: inbox::read(folder)?.len(),
            failed: inbox::failed(folder)?.into_iter().map(|(_, failed)| failed).collect(),
        })
    }

    /// The text that an app has stored with the index under a name ([`NotesWriter::set_label`](super::NotesWriter::set_label)).
    ///
    /// # Errors
    /// The index cannot be read.
    pub fn label(&self, name: &str) -> Result<Option<String>, NotesError> {
        Ok(self.sources()?.settings.labels.remove(name))
    }

    pub(super) fn sources(&self) -> Result<Sources, NotesError> {
        match Sources::read(&self.shared.folder) {
            // The next writer sets it aside.
            Err(error) if error.is_damage() => Ok(Sources::default()),
            known => Ok(known?.unwrap_or_default()),
        }
    }

    /// The list of files and documents after the last commit of any process.
    pub(super) fn catalogue(&self) -> Result<Catalogue, NotesError> {
        let folder = self.folder();
        retry(folder, || {
            let store =
                Store::open(folder)?.ok_or_else(|| NotesError::NoIndex { path: folder.to_path_buf() })?;
            match store.catalogue_number()? {
                0 => Ok(Catalogue::default()),
                number => Catalogue::read(folder, number),
            }
        })
    }

    pub(super) fn state(&self) -> Arc<State> {
        Arc::clone(&self.shared.state.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn folder(&self) -> &Folder {
        &self.shared.folder
    }
}

/// Opens the state after the last commit. A writer may remove files of a state between the reading of its list and the
/// opening of its files; the list is then read again.
fn load(folder: &Folder, verified: &mut HashSet<PathBuf>) -> Result<State, NotesError> {
    let load_once = |verified: &mut HashSet<PathBuf>| {
        let store = Store::open(folder)?.ok_or_else(|| NotesError::NoIndex { path: folder.to_path_buf() })?;
        store.verify(verified)?;
        let snapshot = store.snapshot()?;
        let languages = snapshot.languages()?;
        Ok(State {
            functional: Mutex::new(Functional::new(Language::ALL)),
            languages,
            snapshot,
            vectors: Mutex::new(None),
            tokens: Mutex::new(None),
        })
    };
    retry(folder, || load_once(verified))
}

/// Repeats an attempt that met damage, if a writer has committed meanwhile.
fn retry<T>(folder: &Path, mut attempt: impl FnMut() -> Result<T, NotesError>) -> Result<T, NotesError> {
    let mut n_attempts = 0;
    loop {
        let before = Store::commit_bytes(folder);
        match attempt() {
            Err(error) if error.is_damage() && n_attempts < ATTEMPTS => {
                if Store::commit_bytes(folder) == before {
                    return Err(error);
                }
                n_attempts += 1;
            }
            done => return done,
        }
    }
}

/// Length of all files in a folder and its subfolders.
fn bytes_of(folder: &Path) -> Result<u64, NotesError> {
    let mut bytes = 0;
    for name in files::names(folder)? {
        let path = folder.join(&name);
        bytes += match if_there(std::fs::symlink_metadata(&path)).map_err(io_error("read", &path))? {
            Some(metadata) if metadata.is_dir() => bytes_of(&path)?,
            Some(metadata) => metadata.len(),
            // Removed meanwhile.
            None => 0,
        };
    }
    Ok(bytes)
}
