//! The writer: opens a folder for changes, finishes what a crash has interrupted, and commits.

use std::any::Any;
use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use refrain::internals::kernels::has_room;
use tantivy::IndexWriter;
use tantivy::index::SegmentId;
use tantivy::indexer::{IndexWriterOptions, NoMergePolicy};

use super::catalogue::{Catalogue, Entry};
use super::error::{NotesError, index_error, io_error};
use super::files::{self, Folder};
use super::inbox;
use super::kind::SourceKind;
use super::language::Languages;
use super::options::NotesOptions;
use super::report::{Notice, UpdateReport};
use super::request::{FailedRequest, Request};
use super::sources::Sources;
use super::store::{ASIDE, LOCK, Store, check_own, remove_catalogues, tighten};
use super::{derived, paths};
use crate::history::disk::{Disk, RealDisk};

/// Memory of tantivy for words that are not written yet, in bytes. Its minimum is 15 MB.
const ARENA_BYTES: usize = 16 << 20;

/// Address space that the threads of an update take: arenas of 64 MiB of the C library where addresses are plenty. Where the system
/// refuses it to them, the process ends.
const WRITER_BYTES: usize =
    if cfg!(target_pointer_width = "64") { 20 * ARENA_BYTES } else { 6 * ARENA_BYTES };

/// Maximum length of a label's name and of its text, in bytes.
pub const LABEL_BYTES_MAX: usize = 4096;

/// Changes the index in a folder. While it is open, no other process can open one for the same folder.
///
/// After an error of a change, the folder contains the state before or after it. Later changes return
/// [`NotesError::Stopped`]; a new writer finishes or undoes the change.
pub struct NotesWriter {
    pub(super) folder: Folder,
    pub(super) options: NotesOptions,
    pub(super) languages: Languages,
    pub(super) sources: Sources,
    pub(super) catalogue: Catalogue,
    /// The number of the catalogue of the last commit.
    number: u64,
    pub(super) store: Store,
    pub(super) writer: IndexWriter,
    notices: Vec<Notice>,
    has_stopped: bool,
    /// Whether a request asks for an update.
    pub(super) wants_update: bool,
    /// What requests of other processes did since the last report.
    pub(super) carried_out: UpdateReport,
    /// Released on drop, after the threads of `writer` have ended.
    _lock: Box<dyn Any + Send + Sync>,
}

impl NotesWriter {
    /// Opens the index in `folder` for changes. The folder is created if it does not exist.
    ///
    /// A damaged index is emptied, and the next [`update`](Self::update) reads all notes again; an interrupted deletion
    /// is finished; requests of other processes to forget are carried out. [`notices`](Self::notices) tells.
    ///
    /// # Errors
    /// [`NotesError::InUse`] if another process is writing after [`NotesOptions::lock_wait`];
    /// [`NotesError::Version`] if a newer program has written the folder; [`NotesError::Key`]; [`NotesError::Io`].
    pub fn open(folder: &Path, options: NotesOptions) -> Result<Self, NotesError> {
        options.check()?;
        let folder = Folder::new(paths::absolute(folder)?, options.key.as_ref());
        check_own(&folder)?;
        files::create_folder(&folder)?;
        tighten(&folder);
        let lock = lock(&folder, options.lock_wait)?;
        files::check_store_key(&folder, true)?;
        let mut notices = Vec::new();
        let mut sources = match Sources::read(&folder) {
            Err(error) if !error.is_damage() => return Err(error),
            known => known.ok().flatten().unwrap_or_default(),
        };
        while let Some(path) = Sources::damaged(&folder) {
            let name = path.file_name().expect("the list has a name").to_string_lossy();
            let aside = folder.join(format!("{ASIDE}{name}"));
            fs::rename(&path, &aside).map_err(io_error("set aside", &path))?;
            notices.push(Notice::Roots { aside, n_roots: sources.roots.len() });
        }
        let settings = &mut sources.settings;
        settings.file_bytes_max = options.file_bytes_max.unwrap_or(settings.file_bytes_max);
        settings.languages = options.languages.clone().unwrap_or_else(|| settings.languages.clone());
        settings.follows_links = options.follows_links.unwrap_or(settings.follows_links);
        if !sources.is_stored_twice(&folder) {
            sources.write(&folder)?;
        }
        let (store, mut catalogue, number) = match open_index(&folder) {
            Err(error) if error.is_damage() => {
                let aside = Store::set_aside(&folder)?;
                notices.push(Notice::Rebuilt { reason: error.to_string(), aside });
                (Store::create(&folder)?, Catalogue::new(), 0)
            }
            opened => opened?,
        };
        if catalogue.languages != sources.settings.languages {
            catalogue.entries.values_mut().for_each(Entry::outdate);
            catalogue.documents.outdate();
        }
        if !has_room(WRITER_BYTES) {
            return Err(io_error("index", &folder)(std::io::ErrorKind::OutOfMemory.into()));
        }
        let options_of_writer = IndexWriterOptions::builder()
            // One thread: passages keep their order, and memory has a bound.
            .num_worker_threads(1)
            .num_merge_threads(1)
            .memory_budget_per_thread(ARENA_BYTES)
            .build();
        let writer: IndexWriter =
            store.index.writer_with_options(options_of_writer).map_err(index_error(&store.words))?;
        // Merges run when a caller has asked for them, never beside a search or an update.
        writer.set_merge_policy(Box::new(NoMergePolicy));
        let mut writer = Self {
            languages: Languages::new(&sources.settings.languages),
            folder,
            options,
            sources,
            catalogue,
            number,
            store,
            writer,
            notices,
            has_stopped: false,
            wants_update: false,
            carried_out: UpdateReport::default(),
            _lock: lock,
        };
        writer.finish()?;
        Ok(writer)
    }

    /// Opens the index for changes, or, if another process is writing, leaves it a request and returns `None`. A process
    /// that ends with [`close`](Self::close) carries out every request that was left to it.
    ///
    /// # Errors
    /// As [`open`](Self::open) and [`hand_in`](super::hand_in).
    pub fn open_or_hand_in(
        folder: &Path,
        options: NotesOptions,
        request: &Request,
    ) -> Result<Option<Self>, NotesError> {
        loop {
            match Self::open(folder, options.clone()) {
                Err(NotesError::InUse { .. }) => {}
                opened => return opened.map(Some),
            }
            let left = leave(folder, options.key.as_ref(), request)?;
            // The other process may have looked for requests for the last time before.
            match lock(&paths::absolute(folder)?, Duration::ZERO) {
                Err(NotesError::InUse { .. }) => return Ok(None),
                locked => {
                    let _lock = locked?;
                    files::remove(&left)?;
                }
            }
        }
    }

    /// Ends writing. Carries out the requests of other processes until none waits: a request that was left while this
    /// process held the folder is not forgotten. `on_report` receives each report that has something to tell.
    ///
    /// # Errors
    /// As [`update`](Self::update). Requests that were not carried out wait for the next writer.
    pub fn close(
        mut self,
        on_progress: &mut OnProgress<'_>,
        on_report: &mut dyn FnMut(&UpdateReport),
    ) -> Result<(), NotesError> {
        loop {
            self.take_requests()?;
            while self.wants_update {
                let report = self.update(on_progress)?;
                on_report(&report);
                if report.is_incomplete {
                    return self.leave();
                }
                self.take_requests()?;
            }
            if self.carried_out.is_notable() {
                on_report(&self.carried_out);
            }
            let (folder, options) = (self.folder.clone(), self.options.clone());
            drop(self);
            // Requests are left before their processes look whether the lock is free.
            if inbox::read(&folder)?.is_empty() {
                return Ok(());
            }
            match Self::open(&folder, NotesOptions { lock_wait: Duration::ZERO, ..options }) {
                Err(NotesError::InUse { .. }) => return Ok(()),
                opened => self = opened?,
            }
        }
    }

    /// Ends writing without reading files, also where a time or a person ends it: carries out the deletions that other processes have left until
    /// now. An update that they want waits for the next writer.
    ///
    /// # Errors
    /// As [`close`](Self::close).
    pub fn leave(mut self) -> Result<(), NotesError> {
        let (folder, options) = (self.folder.clone(), self.options.clone());
        let mut wants_update = false;
        loop {
            self.take_requests()?;
            wants_update |= self.wants_update;
            drop(self);
            // As in `close`.
            if inbox::read(&folder)?.is_empty() {
                break;
            }
            match Self::open(&folder, NotesOptions { lock_wait: Duration::ZERO, ..options.clone() }) {
                Err(NotesError::InUse { .. }) => break,
                opened => self = opened?,
            }
        }
        if wants_update { hand_in(&folder, options.key.as_ref(), &Request::Update) } else { Ok(()) }
    }

    /// Repairs that were made when the index was opened.
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    /// The files and folders that updates read.
    pub fn roots(&self) -> impl Iterator<Item = &Path> {
        self.sources.roots.iter().map(PathBuf::as_path)
    }

    /// Adds files and folders to the ones that updates read. [`update`](Self::update) then reads them. A path that was
    /// forgotten is read again; other forgotten paths, above and below it, stay forgotten.
    ///
    /// # Errors
    /// A path does not exist, is a file and no source, or cannot be stored; nothing was added.
    pub fn add<P: AsRef<Path>>(&mut self, added: &[P]) -> Result<(), NotesError> {
        self.check_running()?;
        let added = absolute(added)?;
        added.iter().try_for_each(|path| check_added(path))?;
        self.add_checked(&added)
    }

    fn set_sources(&mut self, sources: Sources) -> Result<(), NotesError> {
        sources.write(&self.folder)?;
        self.sources = sources;
        Ok(())
    }

    fn add_checked(&mut self, added: &[PathBuf]) -> Result<(), NotesError> {
        let mut sources = self.sources.clone();
        for path in added.iter().filter(|path| !self.sources.roots.contains(*path)) {
            // Folders between a new root and the files below it become names of these files.
            let below = self.catalogue.entries.range_mut(path.clone()..);
            below.take_while(|(file, _)| file.starts_with(path)).for_each(|(_, entry)| entry.outdate());
        }
        added.iter().for_each(|path| sources.add(path));
        self.set_sources(sources)?;
        self.wants_update = true;
        inbox::remove_failed(&self.folder, added)
    }

    /// Removes files and folders from the index, and from the list that updates read. A file is forgotten under all its
    /// names: links and hard links inside the notes that lead to it, and links that lead to the given path. If the index still has an
    /// earlier name of the file, the text is removed under this name too, but a later file of that name is read. After the return, no
    /// file in the folder has a byte of the forgotten text. The notes themselves are not changed. (The disk may hold
    /// freed blocks, and a reader that is open keeps the state that it has read.)
    ///
    /// If the index has nothing of a path, the path is in [`UpdateReport::unknown`]; later updates do not read it either.
    ///
    /// Of documents without files ([`document_path`](super::document_path)), not even the ids remain; the app may put them again.
    /// [`DOCUMENTS`](super::DOCUMENTS) means all of them, and is never unknown.
    ///
    /// # Errors
    /// A path cannot be stored; nothing was removed. After another error, the next writer finishes the removal of files when it
    /// opens the folder. Documents are then removed too, or all as before: they have no list of what is forgotten.
    pub fn forget<P: AsRef<Path>>(&mut self, forgotten: &[P]) -> Result<UpdateReport, NotesError> {
        self.check_running()?;
        let forgotten = absolute(forgotten)?;
        let (documents, files): (Vec<PathBuf>, Vec<PathBuf>) =
            forgotten.iter().cloned().partition(|path| paths::is_document(path));
        let mut sources = self.sources.clone();
        let mut unknown = Vec::new();
        let mut earlier = BTreeSet::new();
        for (path, names) in files.iter().zip(self.names(&files)) {
            if !names.now.iter().chain(&names.earlier).any(|name| self.is_known(name)) {
                unknown.push(path.clone());
            }
            names.now.iter().for_each(|name| sources.forget(name));
            earlier.extend(names.earlier);
        }
        // First, so that no update reads the notes again if a crash follows.
        self.set_sources(sources)?;
        let mut n_removed = self.remove_unread_and(&earlier)?;
        let mut has_forgotten = false;
        for path in documents {
            match self.forget_documents(&path) {
                Some(n) => (n_removed, has_forgotten) = (n_removed + n, true),
                // All documents, and there are none.
                None if paths::document_id(&path).is_none() => {}
                None => unknown.push(path),
            }
        }
        if has_forgotten {
            self.commit()?;
        }
        self.purge()?;
        inbox::remove_failed(&self.folder, &forgotten)?;
        Ok(UpdateReport { n_removed, unknown, ..UpdateReport::default() })
    }

    /// Whether the index has a file, or updates read a root, at or below a path.
    fn is_known(&self, path: &Path) -> bool {
        let first = self.catalogue.entries.range(path.to_owned()..).next();
        first.is_some_and(|(entry, _)| entry.starts_with(path))
            || self.sources.roots_below(path).next().is_some()
    }

    /// The text that an app has stored with the index under a name.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.sources.settings.labels.get(name).map(String::as_str)
    }

    /// Stores a text with the index under a name, for example the file of a model; `None` removes it. At most
    /// [`LABEL_BYTES_MAX`] bytes each.
    ///
    /// # Errors
    /// [`NotesError::OutOfRange`]; the folder cannot be written.
    pub fn set_label(&mut self, name: &str, text: Option<&str>) -> Result<(), NotesError> {
        self.check_running()?;
        let given = name.len().max(text.map_or(0, str::len)) as u64;
        if given > LABEL_BYTES_MAX as u64 {
            let max = LABEL_BYTES_MAX as u64;
            return Err(NotesError::OutOfRange { option: "label", given, min: 0, max });
        }
        if self.label(name) == text {
            return Ok(());
        }
        let mut sources = self.sources.clone();
        match text {
            Some(text) => drop(sources.settings.labels.insert(name.to_owned(), text.to_owned())),
            None => drop(sources.settings.labels.remove(name)),
        }
        self.set_sources(sources)
    }

    /// Merges small segments, removes the text of removed and replaced passages from the disk, and carries out requests
    /// of other processes, except that an update is left to the caller: returns whether one is requested.
    ///
    /// # Errors
    /// The writer has stopped; the next one finishes.
    pub fn maintain(&mut self) -> Result<bool, NotesError> {
        self.take_requests()?;
        self.merge_small()?;
        self.purge()?;
        Ok(self.wants_update)
    }

    /// Removes the text of removed and replaced passages from every file of the folder, and a damaged index that was set
    /// aside.
    ///
    /// # Errors
    /// The writer has stopped; the next one finishes.
    pub fn purge(&mut self) -> Result<(), NotesError> {
        self.purge_passages()?;
        Store::remove_aside(&self.folder)
    }

    /// As [`purge`](Self::purge), but keeps an index that was set aside.
    pub(super) fn purge_passages(&mut self) -> Result<(), NotesError> {
        self.check_running()?;
        let purged = self.rewrite_segments().and_then(|()| self.compact_derived());
        purged.inspect_err(|_| self.has_stopped = true)
    }

    /// Finishes what a crash has interrupted.
    fn finish(&mut self) -> Result<(), NotesError> {
        self.store.remove_leftovers()?;
        let number = self.number;
        remove_catalogues(&self.folder, |other| other != number)?;
        let is_rebuilt = self.notices.iter().any(|notice| matches!(notice, Notice::Rebuilt { .. }));
        if self.remove_unread()? > 0 {
            self.notices.push(Notice::FinishedDeletion);
        }
        self.rewrite_segments()?;
        // The token ids and vectors of an index that is built again are still those of its passages.
        if !is_rebuilt {
            self.compact_derived()?;
        }
        self.take_requests()
    }

    /// Carries out the requests of other processes, and removes them.
    pub(super) fn take_requests(&mut self) -> Result<(), NotesError> {
        self.check_running()?;
        for (path, request) in inbox::read(&self.folder)? {
            let failed = match request {
                Some(Request::Add(added)) => self.add_requested(added)?,
                Some(Request::Update) => {
                    self.wants_update = true;
                    None
                }
                Some(Request::Forget(forgotten)) => {
                    let report = self.forget(&forgotten)?;
                    self.carried_out.add_requests(report);
                    None
                }
                None => {
                    let reason = "its file is damaged, or a newer program has left it".to_owned();
                    Some(FailedRequest { request: None, reason })
                }
            };
            if let Some(failed) = failed {
                inbox::set_failed(&self.folder, &path, failed.request.as_ref(), &failed.reason)?;
                self.carried_out.failed.push(failed);
            }
            files::remove(&path)?;
        }
        Ok(())
    }

    /// Adds the paths of a request. Those that are gone by now are no error of this process.
    fn add_requested(&mut self, added: Vec<PathBuf>) -> Result<Option<FailedRequest>, NotesError> {
        let (mut refused, mut reasons) = (Vec::new(), Vec::new());
        let mut kept = added;
        kept.retain(|path| match check_added(path) {
            Ok(()) => true,
            Err(error) => {
                refused.push(path.clone());
                reasons.push(error.to_string());
                false
            }
        });
        if !kept.is_empty() {
            self.add_checked(&kept)?;
        }
        let request = Some(Request::Add(refused));
        Ok((!reasons.is_empty()).then(|| FailedRequest { request, reason: reasons.join("; ") }))
    }

    /// Removes the passages of files that updates do not read any more. Returns the number of files.
    fn remove_unread(&mut self) -> Result<usize, NotesError> {
        self.remove_unread_and(&BTreeSet::new())
    }

    /// As [`remove_unread`](Self::remove_unread), with other files.
    fn remove_unread_and(&mut self, others: &BTreeSet<PathBuf>) -> Result<usize, NotesError> {
        let is_removed = |path: &&PathBuf| others.contains(*path) || !self.sources.is_read(path);
        let paths = self.catalogue.entries.keys().filter(is_removed);
        let paths: Vec<PathBuf> = paths.cloned().collect();
        if paths.is_empty() {
            return Ok(0);
        }
        paths.iter().for_each(|path| self.remove_file(path));
        self.commit()?;
        Ok(paths.len())
    }

    /// Removes a file's passages with the next commit.
    pub(super) fn remove_file(&mut self, path: &Path) {
        if let Some(entry) = self.catalogue.entries.remove(path) {
            self.writer.delete_term(self.store.fields.of_file(entry.file));
        }
    }

    /// Makes all changes since the last commit visible and durable, in one step.
    pub(super) fn commit(&mut self) -> Result<(), NotesError> {
        self.check_running()?;
        let number = self.number + 1;
        self.catalogue.languages.clone_from(&self.sources.settings.languages);
        let committed = (|| {
            self.catalogue.write(&self.folder, number)?;
            let mut prepared = self.writer.prepare_commit().map_err(index_error(&self.store.words))?;
            prepared.set_payload(&format!("catalogue-{number}"));
            prepared.commit().map_err(index_error(&self.store.words))?;
            self.number = number;
            remove_catalogues(&self.folder, |other| other != number)
        })();
        committed.inspect_err(|_| self.has_stopped = true)
    }

    /// No change is possible any more.
    pub(super) fn stop(&mut self) {
        self.has_stopped = true;
    }

    pub(super) fn check_running(&self) -> Result<(), NotesError> {
        match self.has_stopped {
            true => Err(NotesError::Stopped { path: self.folder.to_path_buf() }),
            false => Ok(()),
        }
    }

    /// Writes segments with removed passages again, without them.
    fn rewrite_segments(&mut self) -> Result<(), NotesError> {
        let dirty = self.store.segments()?.into_iter().filter(|segment| segment.has_deletes());
        let dirty: Vec<SegmentId> = dirty.map(|segment| segment.id()).collect();
        for segment in &dirty {
            self.merge(&[*segment])?;
        }
        if !dirty.is_empty() {
            self.collect_garbage()?;
        }
        Ok(())
    }

    pub(super) fn merge(&mut self, segments: &[SegmentId]) -> Result<(), NotesError> {
        let merged = self.writer.merge(segments).wait();
        merged.map(drop).map_err(index_error(&self.store.words)).inspect_err(|_| self.has_stopped = true)
    }

    pub(super) fn collect_garbage(&mut self) -> Result<(), NotesError> {
        self.writer.garbage_collect_files().wait().map_err(index_error(&self.store.words))?;
        self.store.remove_leftovers()
    }

    /// Writes stored token ids and vectors again without those of texts that are in no passage any more.
    fn compact_derived(&mut self) -> Result<(), NotesError> {
        let derived = derived::list(&self.folder)?;
        if derived.is_empty() {
            return Ok(());
        }
        let live: HashSet<u64> = self.store.snapshot()?.keys()?;
        for (kind, identity) in derived {
            if derived::compact(&self.folder, kind, identity, &live)? {
                self.notices.push(Notice::Derived { path: kind.path(&self.folder, identity) });
            }
        }
        Ok(())
    }

    pub(super) fn note(&mut self, notice: Notice) {
        self.notices.push(notice);
    }
}

/// Leaves a request for the process that writes the index in `folder`. It carries out the request when it next opens,
/// updates, maintains, watches, leaves or closes the folder. If it cannot, [`NotesIndex::status`](super::NotesIndex::status) has the
/// reason. `key` is [`NotesOptions::key`].
///
/// # Errors
/// [`NotesError::InboxFull`]; [`NotesError::Key`]; a path cannot be stored; the folder cannot be written.
pub fn hand_in(folder: &Path, key: Option<&[u8; 32]>, request: &Request) -> Result<(), NotesError> {
    leave(folder, key, request).map(drop)
}

/// Leaves a request. Returns its file.
fn leave(folder: &Path, key: Option<&[u8; 32]>, request: &Request) -> Result<PathBuf, NotesError> {
    let folder = Folder::new(paths::absolute(folder)?, key);
    files::check_store_key(&folder, false)?;
    let request = match request {
        Request::Add(paths) => {
            let added = absolute(paths)?;
            added.iter().try_for_each(|path| check_added(path))?;
            Request::Add(added)
        }
        Request::Update => Request::Update,
        Request::Forget(paths) => Request::Forget(absolute(paths)?),
    };
    inbox::put(&folder, &request, SystemTime::now())
}

fn absolute<P: AsRef<Path>>(paths: &[P]) -> Result<Vec<PathBuf>, NotesError> {
    paths.iter().map(|path| paths::absolute(path.as_ref())).collect()
}

/// Refuses a path that does not exist, and a file that is no source: its user expects to find it.
fn check_added(path: &Path) -> Result<(), NotesError> {
    let metadata = fs::metadata(path).map_err(io_error("read", path))?;
    if !metadata.is_dir() && SourceKind::of(path).is_none() {
        let what = "its ending is not one of a source";
        return Err(NotesError::Path { path: path.to_owned(), what });
    }
    Ok(())
}

/// Reports progress in bytes: done, total. [`ControlFlow::Break`] ends an update early; what was read so far is kept.
pub type OnProgress<'a> = dyn FnMut(u64, u64) -> ControlFlow<()> + 'a;

/// Opens inverted index and catalogue, and verifies both.
fn open_index(folder: &Folder) -> Result<(Store, Catalogue, u64), NotesError> {
    let Some(store) = Store::open(folder)? else {
        return Ok((Store::create(folder)?, Catalogue::new(), 0));
    };
    store.verify(&mut HashSet::new())?;
    // Opens every segment, so that a missing file is noticed here.
    store.snapshot()?;
    let number = store.catalogue_number()?;
    let catalogue = if number == 0 { Catalogue::new() } else { Catalogue::read(folder, number)? };
    Ok((store, catalogue, number))
}

/// The pause between two tries to take the writer's lock.
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Takes the writer's lock. The system releases it when the process ends for any reason.
fn lock(folder: &Path, wait: Duration) -> Result<Box<dyn Any + Send + Sync>, NotesError> {
    let path = folder.join(LOCK);
    // Pauses are counted, not time: while the system freezes this process, the holder of the lock may stand still too.
    let mut n_pauses = wait.as_nanos().div_ceil(LOCK_PAUSE.as_nanos());
    loop {
        if let Some(lock) = RealDisk.lock(&path).map_err(io_error("lock", &path))? {
            return Ok(lock);
        }
        if n_pauses == 0 {
            return Err(NotesError::InUse { path: folder.to_owned() });
        }
        n_pauses -= 1;
        std::thread::sleep(LOCK_PAUSE);
    }
}
