//! The store: namespaces of responses in a folder, open in one process.

use std::any::Any;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::SystemTime;

use refrain::TokenId;
use refrain::internals::draft::OrderConfig;

use super::cache::PageCache;
use super::disk::{Disk, RealDisk};
use super::error::{HistoryError, io_error};
use super::key::{HistoryKey, RecordId, check_namespace, decode_namespace, encode_namespace};
use super::log::Record;
use super::namespace::Namespace;
use super::options::HistoryOptions;
use super::report::{HistoryStats, NamespaceStats, RecordInfo, Recovered};
use super::source::HistoryLogSource;
use super::upkeep::{maintain, repair};

/// What the parts of a store share.
#[derive(Debug)]
pub(super) struct Context {
    disk: Box<dyn Disk>,
    pub(super) options: HistoryOptions,
    cache: Mutex<PageCache>,
    stopped: AtomicBool,
}

/// A namespace that sources may hold while it is forgotten.
pub(super) type SharedNamespace = Arc<RwLock<Namespace>>;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) context: Context,
    key: HistoryKey,
    folder: PathBuf,
    namespaces: Mutex<BTreeMap<String, SharedNamespace>>,
    /// Counts namespaces that have come or gone: a source looks its own up again when the number has changed.
    pub(super) n_changes: AtomicU64,
    newest_id: AtomicU64,
    recovered: Vec<Recovered>,
    /// Held by what changes files of more than one log: merges, forgetting.
    upkeep: Mutex<()>,
    _lock: Box<dyn Any + Send + Sync>,
}

/// Earlier responses of one model by namespace (an app, a user, a task), in a folder.
///
/// Cloning shares it. Threads may append, draft and maintain at the same time; a merge holds up nobody. The [module](crate::history)
/// says what is promised about crashes and damage.
#[derive(Clone, Debug)]
pub struct HistoryLog {
    shared: Arc<Shared>,
}

impl HistoryLog {
    /// Namespaces at most.
    pub const NAMESPACES_MAX: usize = 1024;

    /// Opens the history of a model in `folder`, which is created where it is not there; histories of other models in it are
    /// left alone.
    ///
    /// # Errors
    /// [`HistoryError::InUse`] at once where another process (or another `HistoryLog`) has it open. Damage that is found now
    /// is an error too, unless [`HistoryOptions::repair`] is set: then what is damaged is dropped, and nothing else.
    pub fn open(folder: &Path, key: HistoryKey, options: HistoryOptions) -> Result<Self, HistoryError> {
        Self::open_on(Box::new(RealDisk), folder, key, options)
    }

    pub(super) fn open_on(
        disk: Box<dyn Disk>,
        folder: &Path,
        key: HistoryKey,
        options: HistoryOptions,
    ) -> Result<Self, HistoryError> {
        options.check()?;
        let folder = folder.join(key.to_string());
        disk.create_dir(&folder).map_err(io_error("create", &folder))?;
        let lock_path = folder.join(LOCK);
        let lock = disk.lock(&lock_path).map_err(io_error("lock", &lock_path))?;
        let lock = lock.ok_or_else(|| HistoryError::InUse { path: folder.clone() })?;
        let cache = Mutex::new(PageCache::new(options.cache_bytes));
        let context = Context { disk, options, cache, stopped: AtomicBool::new(false) };
        let (mut namespaces, mut recovered) = (BTreeMap::new(), Vec::new());
        for name in context.disk().list(&folder).map_err(io_error("read", &folder))? {
            let Some(name) = decode_namespace(&name) else { continue };
            let path = folder.join(encode_namespace(&name));
            if context.disk().list(&path).map_err(io_error("read", &path))?.is_empty() {
                // Forgotten, or not yet begun.
                let _ = context.disk().remove_dir(&path);
                continue;
            }
            if namespaces.len() >= Self::NAMESPACES_MAX {
                return Err(HistoryError::TooManyNamespaces { max: Self::NAMESPACES_MAX });
            }
            let namespace = Namespace::open(&context, path, key.owner(&name), &mut recovered)?;
            namespaces.insert(name, Arc::new(RwLock::new(namespace)));
        }
        let newest = |namespace: &SharedNamespace| newest_id(&read(namespace));
        let newest_id = namespaces.values().map(newest).max().unwrap_or(0);
        let shared = Shared {
            context,
            key,
            folder,
            namespaces: Mutex::new(namespaces),
            n_changes: AtomicU64::new(0),
            newest_id: AtomicU64::new(newest_id),
            recovered,
            upkeep: Mutex::new(()),
            _lock: lock,
        };
        Ok(HistoryLog { shared: Arc::new(shared) })
    }

    /// The keys of the histories in a folder, ascending. A folder that is not there has none.
    pub fn keys(folder: &Path) -> Result<Vec<HistoryKey>, HistoryError> {
        let names = match RealDisk.list(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            names => names.map_err(io_error("read", folder))?,
        };
        let mut keys: Vec<HistoryKey> = names.iter().filter_map(|name| HistoryKey::parse(name)).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    /// Whose history this is.
    pub fn key(&self) -> HistoryKey {
        self.shared.key
    }

    /// What was found when the history was opened, and dropped.
    pub fn recovered(&self) -> &[Recovered] {
        &self.shared.recovered
    }

    /// Appends a finished response to a namespace, which is there from its first response on. When this returns, the response
    /// is as durable as [`HistoryOptions::sync`] says, and sources draft from it.
    ///
    /// # Errors
    /// The history is without the response. [`HistoryError::Io`]: the disk is full, say; it may be tried again. After a failed
    /// sync every later change is [`HistoryError::Stopped`] until the history is opened again.
    pub fn append(&self, namespace: &str, response: &[TokenId]) -> Result<RecordId, HistoryError> {
        check_namespace(namespace)?;
        let shared = &self.shared;
        shared.context.check_running()?;
        let max = shared.context.options.live_tokens_max;
        if response.len() > max as usize {
            return Err(HistoryError::RecordTooLong { n_tokens: response.len(), max });
        }
        let namespace = shared.ensure_namespace(namespace)?;
        let mut namespace = write(&namespace);
        // Within the lock: ids rise from record to record of a log.
        let id = shared.next_id();
        namespace.append(&shared.context, Record { id, tokens: response.into() })?;
        Ok(id)
    }

    /// Makes every append so far durable.
    ///
    /// # Errors
    /// The history has stopped.
    pub fn sync(&self) -> Result<(), HistoryError> {
        self.shared.context.check_running()?;
        for (_, namespace) in self.shared.all() {
            write(&namespace).log().sync().inspect_err(|_| self.shared.context.stop())?;
        }
        Ok(())
    }

    /// Removes a response from every file.
    ///
    /// # Errors
    /// [`HistoryError::NoSuchRecord`]. After another error the response may still be in a file; to forget it may be tried
    /// again.
    pub fn forget(&self, record: RecordId) -> Result<(), HistoryError> {
        let _upkeep = self.shared.upkeep();
        self.shared.context.check_running()?;
        for (_, namespace) in self.shared.all() {
            if write(&namespace).forget(&self.shared.context, record)? {
                return Ok(());
            }
        }
        Err(HistoryError::NoSuchRecord { record: record.0 })
    }

    /// Removes a namespace with all its files; `false` where there is none. Sources of it find it empty from the next step
    /// on, and see what is appended later.
    ///
    /// # Errors
    /// Files of the namespace may still be there, and it drafts from them again when the next response is appended or the
    /// history is opened; to forget it may be tried again.
    pub fn forget_namespace(&self, namespace: &str) -> Result<bool, HistoryError> {
        let _upkeep = self.shared.upkeep();
        let shared = &self.shared;
        shared.context.check_running()?;
        check_namespace(namespace)?;
        // Nobody finds or makes the namespace while its files go.
        let mut namespaces = shared.lock();
        let found = namespaces.remove(namespace);
        if let Some(found) = &found {
            write(found).close(&mut shared.context.cache());
            shared.n_changes.fetch_add(1, Ordering::Release);
        }
        // Also where it is not known: an earlier call may have failed half-way.
        let removed = remove_files(shared.context.disk(), &shared.folder.join(encode_namespace(namespace)))?;
        Ok(found.is_some() || removed)
    }

    /// All responses, by namespace and then by age, oldest first.
    pub fn list(&self) -> Vec<RecordInfo> {
        let mut infos = Vec::new();
        for (name, namespace) in self.shared.all() {
            let namespace = read(&namespace);
            let frozen = namespace.segments().iter().flat_map(|segment| segment.records());
            let frozen = frozen.map(|record| (record.id, record.n_tokens));
            let live = namespace.live().iter().map(|record| (record.id, record.tokens.len() as u32));
            let info = |(record, n_tokens)| RecordInfo { record, namespace: name.clone(), n_tokens };
            infos.extend(frozen.chain(live).map(info));
        }
        infos
    }

    /// The tokens of a response; `None` where there is none of that id.
    ///
    /// # Errors
    /// The segment that holds it cannot be read.
    pub fn tokens(&self, record: RecordId) -> Result<Option<Vec<TokenId>>, HistoryError> {
        for (_, namespace) in self.shared.all() {
            let namespace = read(&namespace);
            if let Some(found) = namespace.live().iter().find(|found| found.id == record) {
                return Ok(Some(found.tokens.to_vec()));
            }
            for segment in namespace.segments() {
                if segment.records().binary_search_by_key(&record, |found| found.id).is_ok() {
                    let found = segment.read_records(|id| id == record)?;
                    return Ok(found.into_iter().next().map(|found| found.tokens.into_vec()));
                }
            }
        }
        Ok(None)
    }

    /// What the history holds.
    pub fn stats(&self) -> HistoryStats {
        let mut memory_bytes = self.shared.context.cache().memory_usage();
        let stats = |(name, namespace): (String, SharedNamespace)| {
            let namespace = read(&namespace);
            memory_bytes += namespace.memory_usage();
            let segments = namespace.segments();
            let n_frozen: u64 = segments.iter().map(|segment| u64::from(segment.n_tokens())).sum();
            let n_records: usize = segments.iter().map(|segment| segment.records().len()).sum();
            NamespaceStats {
                namespace: name,
                n_records: (n_records + namespace.live().len()) as u64,
                n_tokens: n_frozen + namespace.n_live_tokens() as u64,
                n_live_tokens: namespace.n_live_tokens() as u64,
                n_segments: segments.len(),
                bytes: namespace.bytes(),
                damaged: segments.iter().filter_map(|segment| segment.fault()).collect(),
            }
        };
        let namespaces = self.shared.all().into_iter().map(stats).collect();
        HistoryStats { namespaces, memory_bytes }
    }

    /// Reads every page of every segment and compares it with its checksum. (Logs and tables were compared when the history
    /// was opened.)
    ///
    /// # Errors
    /// The first damage that is found.
    pub fn verify(&self) -> Result<(), HistoryError> {
        for (_, namespace) in self.shared.all() {
            read(&namespace).segments().iter().try_for_each(|segment| segment.verify())?;
        }
        Ok(())
    }

    /// Reads every page as [`verify`](Self::verify) does, and writes segments with damage anew: without the responses whose
    /// tokens are damaged, and with every other one. Returns what was dropped. (Damage that keeps a history from being opened
    /// is dropped by [`HistoryOptions::repair`].)
    ///
    /// # Errors
    /// A segment could not be written; what was damaged still is.
    pub fn repair(&self) -> Result<Vec<Recovered>, HistoryError> {
        let _upkeep = self.shared.upkeep();
        self.shared.context.check_running()?;
        let mut dropped = Vec::new();
        for (_, namespace) in self.shared.all() {
            dropped.extend(repair(&self.shared.context, &namespace)?);
        }
        Ok(dropped)
    }

    /// A draft source that reads a namespace, also one that is not there yet.
    ///
    /// It asks for less than the sources of a session do, because each order is read from the disk: what follows a single
    /// token, in thousands of places, the session's own text knows better.
    pub fn source(&self, namespace: &str) -> HistoryLogSource {
        let config = OrderConfig { match_len_min: 2, n_candidates_max: 12, ..OrderConfig::default() };
        self.source_with_config(namespace, config)
    }

    /// A [`source`](Self::source) with other constants.
    pub fn source_with_config(&self, namespace: &str, config: OrderConfig) -> HistoryLogSource {
        HistoryLogSource::new(Arc::clone(&self.shared), namespace, config)
    }

    /// Merges segments, and drops what is over the limits of age and size: to be called when there is time, as after a
    /// response. Usually there is nothing to do. Drafts and appends go on meanwhile.
    ///
    /// # Errors
    /// What was not done is done the next time.
    pub fn maintain(&self) -> Result<(), HistoryError> {
        let _upkeep = self.shared.upkeep();
        self.shared.context.check_running()?;
        let now = now_us();
        // What is wrong with one namespace is not the others' matter; the first failure is reported.
        let done = self
            .shared
            .all()
            .into_iter()
            .map(|(_, namespace)| maintain(&self.shared.context, &namespace, now));
        done.fold(Ok(()), Result::and)
    }
}

impl Shared {
    pub(super) fn find(&self, namespace: &str) -> Option<SharedNamespace> {
        self.lock().get(namespace).map(Arc::clone)
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, SharedNamespace>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn upkeep(&self) -> MutexGuard<'_, ()> {
        self.upkeep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<(String, SharedNamespace)> {
        self.lock().iter().map(|(name, namespace)| (name.clone(), Arc::clone(namespace))).collect()
    }

    fn ensure_namespace(&self, name: &str) -> Result<SharedNamespace, HistoryError> {
        let mut namespaces = self.lock();
        if let Some(namespace) = namespaces.get(name) {
            return Ok(Arc::clone(namespace));
        }
        if namespaces.len() >= HistoryLog::NAMESPACES_MAX {
            return Err(HistoryError::TooManyNamespaces { max: HistoryLog::NAMESPACES_MAX });
        }
        let folder = self.folder.join(encode_namespace(name));
        let disk = self.context.disk();
        disk.create_dir(&folder).map_err(io_error("create", &folder))?;
        disk.sync_dir(&self.folder).map_err(io_error("sync", &self.folder))?;
        let namespace = Namespace::open(&self.context, folder, self.key.owner(name), &mut Vec::new())?;
        let namespace = Arc::new(RwLock::new(namespace));
        namespaces.insert(name.to_owned(), Arc::clone(&namespace));
        self.n_changes.fetch_add(1, Ordering::Release);
        Ok(namespace)
    }

    /// Now, or just after the newest one.
    fn next_id(&self) -> RecordId {
        let now = now_us();
        let next = |newest: u64| now.max(newest.saturating_add(1));
        let newest =
            self.newest_id.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |newest| Some(next(newest)));
        RecordId(next(newest.unwrap_or_else(|newest| newest)))
    }
}

impl Context {
    pub(super) fn disk(&self) -> &dyn Disk {
        &*self.disk
    }

    /// Only pages are in it, each whole or not there, so a panic elsewhere does no harm.
    pub(super) fn cache(&self) -> MutexGuard<'_, PageCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn check_running(&self) -> Result<(), HistoryError> {
        if self.stopped.load(Ordering::Relaxed) { Err(HistoryError::Stopped) } else { Ok(()) }
    }

    /// Takes back files that must not count, after what was to follow them has failed. Where that fails too, the store
    /// stops: which files count is settled when it is opened again.
    pub(super) fn undo(&self, folder: &Path, paths: &[PathBuf]) {
        let removed = paths.iter().try_for_each(|path| match self.disk.remove_file(path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        });
        if removed.and_then(|()| self.disk.sync_dir(folder)).is_err() {
            self.stop();
        }
    }
}

/// The file that is locked lies beside the namespaces; none of their folders has a dot in its name.
const LOCK: &str = ".lock";

/// Removes a folder with its files, durably; `false` where there is none.
fn remove_files(disk: &dyn Disk, folder: &Path) -> Result<bool, HistoryError> {
    let names = match disk.list(folder) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        names => names.map_err(io_error("read", folder))?,
    };
    for name in &names {
        let path = folder.join(name);
        disk.remove_file(&path).map_err(io_error("remove", &path))?;
    }
    disk.sync_dir(folder).map_err(io_error("sync", folder))?;
    // Without files it is no namespace, whether or not the system lets it go.
    let _ = disk.remove_dir(folder);
    Ok(!names.is_empty())
}

fn newest_id(namespace: &Namespace) -> u64 {
    let frozen = namespace.segments().last().and_then(|segment| segment.records().last());
    let frozen = frozen.map_or(0, |record| record.id.0);
    namespace.live().last().map_or(0, |record| record.id.0).max(frozen)
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(u64::MAX))
}

/// A panic elsewhere while a namespace was locked leaves its files whole; its memory is behind them at worst.
pub(super) fn read(namespace: &RwLock<Namespace>) -> RwLockReadGuard<'_, Namespace> {
    namespace.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn write(namespace: &RwLock<Namespace>) -> RwLockWriteGuard<'_, Namespace> {
    namespace.write().unwrap_or_else(PoisonError::into_inner)
}
