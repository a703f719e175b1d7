//! The store: namespaces of responses in a folder, written by one process and read by any number.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::SystemTime;

use refrain::TokenId;
use refrain::internals::draft::OrderConfig;

use super::access::{Access, Role, enter};
use super::cache::PageCache;
use super::disk::{Disk, RealDisk, remove};
use super::error::{HistoryError, io_error};
use super::inbox::Inbox;
use super::key::{HistoryKey, RecordId, check_namespace, encode_namespace};
use super::log::Record;
use super::namespace::Namespace;
use super::options::HistoryOptions;
use super::report::{HistoryStats, LeftOut, NamespaceStats, RecordInfo};
use super::segment::Segment;
use super::source::HistoryLogSource;
use super::upkeep::{maintain, note_use, renew};

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
    namespaces: Mutex<Namespaces>,
    /// Counts namespaces that have come or gone: a source looks its own up again when the number has changed.
    pub(super) n_changes: AtomicU64,
    newest_id: AtomicU64,
    /// The parts left out when the folder was last read, and since.
    left_out: Mutex<Vec<LeftOut>>,
    role: RwLock<Role>,
    /// Held by what changes files of more than one log: merges, forgetting.
    upkeep: Mutex<()>,
}

pub(super) type Namespaces = BTreeMap<String, SharedNamespace>;

/// Earlier responses of one model by namespace (an app, a user, a task), in a folder.
///
/// Cloning shares it. Threads may append, draft and maintain at the same time; a merge holds up nobody. Processes may have the
/// same folder open: one writes, the others read and hand in ([`access`](Self::access)). The [module](crate::history) says what
/// is promised about crashes, damage and other processes.
#[derive(Clone, Debug)]
pub struct HistoryLog {
    shared: Arc<Shared>,
}

impl HistoryLog {
    /// Namespaces at most.
    pub const NAMESPACES_MAX: usize = 1024;

    /// Opens the history of a model in `folder`, which is created if it is not there. Histories of other models in it are left
    /// alone.
    ///
    /// The first process to open it writes; while that process (or another `HistoryLog` of this one) has it open, and where the
    /// folder cannot be written, it is opened for reading: [`access`](Self::access) says which. Files and responses that are
    /// damaged, and files and folders of namespaces that cannot be read, are left out ([`left_out`](Self::left_out)). The writer sets damaged files aside under names
    /// that begin with `damaged.`; nothing of them is removed before [`repair`](Self::repair) or a [`forget`](Self::forget).
    ///
    /// # Errors
    /// An option is out of its range, the folder can neither be created nor read, or it holds too many namespaces.
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
        let cache = Mutex::new(PageCache::new(options.cache_bytes));
        let context = Context { disk, options, cache, stopped: AtomicBool::new(false) };
        let (role, loaded) = enter(&context, &folder, key)?;
        let shared = Shared {
            context,
            key,
            folder,
            namespaces: Mutex::new(loaded.namespaces),
            n_changes: AtomicU64::new(0),
            newest_id: AtomicU64::new(loaded.newest_id),
            left_out: Mutex::new(loaded.left_out),
            role: RwLock::new(role),
            upkeep: Mutex::new(()),
        };
        shared.start();
        Ok(HistoryLog { shared: Arc::new(shared) })
    }

    /// The keys of the histories in a folder, ascending. A folder that is not there has none.
    pub fn keys(folder: &Path) -> Result<Vec<HistoryKey>, HistoryError> {
        let names = match RealDisk.list(folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
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

    /// The role of this process. [`refresh`](Self::refresh) may change it.
    pub fn access(&self) -> Access {
        match &*read(&self.shared.role) {
            Role::Write { .. } => Access::Write,
            Role::HandIn => Access::HandIn,
            Role::Read { reason } => Access::Read { reason: Arc::clone(reason) },
        }
    }

    /// The parts of the folder that are not used: those found when it was read, and segments in which a draft or a merge has
    /// found damage since. (Pages that nothing has read are not known: [`verify`](Self::verify).)
    pub fn left_out(&self) -> Vec<LeftOut> {
        let mut left_out = self.shared.left_out().clone();
        for (_, namespace) in self.shared.all() {
            let namespace = read(&namespace);
            let faults = namespace.segments().iter().filter_map(|segment| segment.fault());
            left_out.extend(faults.filter_map(|fault| LeftOut::of(fault).ok()));
        }
        left_out
    }

    /// Appends a finished response to a namespace, which is there from its first response on. When this returns, the response
    /// is as durable as [`HistoryOptions::sync`] says (always durable where it is handed in), and sources draft from it. A
    /// response that is handed in gets another id when it is taken in, if a second process drew the same id in the same µs.
    ///
    /// # Errors
    /// The history is without the response. [`HistoryError::Io`]: the disk is full, say; it may be tried again. After a failed
    /// sync every later change is [`HistoryError::Stopped`] until the history is opened again. [`HistoryError::ReadOnly`]: the
    /// folder cannot be written. [`HistoryError::InboxFull`]: too many responses wait for the writer.
    pub fn append(&self, namespace: &str, response: &[TokenId]) -> Result<RecordId, HistoryError> {
        check_namespace(namespace)?;
        let shared = &self.shared;
        shared.context.check_running()?;
        let max = shared.context.options.live_tokens_max;
        if response.len() > max as usize {
            return Err(HistoryError::RecordTooLong { n_tokens: response.len(), max });
        }
        // Held until the response is in: no refresh comes in between.
        let role = read(&shared.role);
        match &*role {
            Role::Write { .. } => {
                let namespace = shared.ensure_namespace(namespace)?;
                let mut namespace = write(&namespace);
                // Within the lock: ids rise from record to record of a log.
                let id = shared.next_id();
                namespace.append(&shared.context, Record { id, tokens: response.into() })?;
                Ok(id)
            }
            Role::HandIn => {
                let record = Record { id: shared.next_id(), tokens: response.into() };
                let id = record.id;
                let here = shared.ensure_read_namespace(namespace)?;
                shared.inbox().put(namespace, &record)?;
                let mut namespace = write(&here);
                namespace.push(record);
                let is_long = namespace.n_live_tokens() > 2 * max as usize;
                drop(namespace);
                drop(role);
                if is_long {
                    // The writer has frozen most of it. The response is safe, so that a failure is the next one's to report.
                    let _ = self.refresh();
                }
                Ok(id)
            }
            Role::Read { reason } => Err(shared.read_only(reason)),
        }
    }

    /// Reads the folder again where another process writes it, and becomes the writer where none does any more. Then sources
    /// see what was appended, merged or forgotten since the folder was last read. The writer itself has nothing to read.
    ///
    /// # Errors
    /// The folder cannot be read; everything is as it was.
    pub fn refresh(&self) -> Result<(), HistoryError> {
        let _upkeep = self.shared.upkeep();
        self.shared.refresh()
    }

    /// Makes every append so far durable. Handed-in responses already are.
    ///
    /// # Errors
    /// The history has stopped.
    pub fn sync(&self) -> Result<(), HistoryError> {
        self.shared.context.check_running()?;
        let role = read(&self.shared.role);
        if !matches!(*role, Role::Write { .. }) {
            return Ok(());
        }
        for (_, namespace) in self.shared.all() {
            write(&namespace).log().sync().inspect_err(|_| self.shared.context.stop())?;
        }
        Ok(())
    }

    /// Removes a response from every file, handed in or in the log. Files of its namespace that were set aside as damaged may
    /// hold it too, and are removed with it; damaged parts of the segment that holds it are dropped. Files that were left out
    /// for another reason (a newer version, unreadable) are not touched.
    ///
    /// Another process that has the history open drafts from the response until its next [`refresh`](Self::refresh),
    /// [`maintain`](Self::maintain) or open.
    ///
    /// # Errors
    /// [`HistoryError::NoSuchRecord`]; [`HistoryError::InUse`] and [`HistoryError::ReadOnly`] where this process does not write.
    /// After another error the response may still be in a file; to forget it may be tried again.
    pub fn forget(&self, record: RecordId) -> Result<(), HistoryError> {
        let _upkeep = self.shared.upkeep();
        self.shared.context.check_running()?;
        self.shared.check_writes()?;
        let mut failed = self.shared.take_in()?;
        for (name, namespace) in self.shared.all() {
            let mut namespace = write(&namespace);
            if namespace.holds(record) {
                // A hand-in of this namespace may still hold the response, and would bring it back.
                if let Some(error) = failed.remove(&name) {
                    return Err(error);
                }
                self.shared.inbox().forget(Some(&name), false)?;
                namespace.forget(&self.shared.context, record)?;
                return Ok(());
            }
        }
        // The response may be among the hand-ins that were not taken in.
        Err(failed.into_values().next().unwrap_or(HistoryError::NoSuchRecord { record: record.0 }))
    }

    /// Removes a namespace with all its files, hand-ins and files that were set aside; `false` where there is none. Sources of it
    /// find it empty from the next step on, those of other processes from their next [`refresh`](Self::refresh) on, and see what
    /// is appended later.
    ///
    /// # Errors
    /// [`HistoryError::InUse`] and [`HistoryError::ReadOnly`] where this process does not write. After another error files of the namespace may still be there, and it drafts from them again when the next response is appended or the
    /// history is opened; to forget it may be tried again.
    pub fn forget_namespace(&self, namespace: &str) -> Result<bool, HistoryError> {
        let _upkeep = self.shared.upkeep();
        let shared = &self.shared;
        shared.context.check_running()?;
        check_namespace(namespace)?;
        shared.check_writes()?;
        let handed_in = shared.inbox().forget(Some(namespace), true)?;
        // Nobody finds or makes the namespace while its files go.
        let mut namespaces = shared.lock();
        let found = namespaces.remove(namespace);
        if let Some(found) = &found {
            write(found).close(&mut shared.context.cache());
            shared.n_changes.fetch_add(1, Ordering::Release);
        }
        // Also where it is not known: an earlier call may have failed half-way.
        let removed = remove_files(shared.context.disk(), &shared.folder.join(encode_namespace(namespace)))?;
        Ok(found.is_some() || removed || !handed_in.is_empty())
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
            let from = infos.len();
            infos.extend(frozen.chain(live).map(info));
            // Responses that were handed in may be older than those frozen before them.
            infos[from..].sort_by_key(|info| info.record);
        }
        infos
    }

    /// The tokens of a response; `None` where there is none of that id.
    ///
    /// # Errors
    /// The segment that holds it cannot be read.
    pub fn tokens(&self, record: RecordId) -> Result<Option<Vec<TokenId>>, HistoryError> {
        for (_, namespace) in self.shared.all() {
            if let Some(tokens) = read(&namespace).tokens(record)? {
                return Ok(Some(tokens.into_vec()));
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

    /// Reads every page of every segment, up to the first damaged one, and compares it with its checksum. (Logs and tables were
    /// compared when the history was opened.) Damage is in [`left_out`](Self::left_out) from then on.
    ///
    /// # Errors
    /// The first damage that is found.
    pub fn verify(&self) -> Result<(), HistoryError> {
        let mut verified = Ok(());
        for (_, namespace) in self.shared.all() {
            let namespace = read(&namespace);
            verified =
                namespace.segments().iter().map(|segment| segment.verify()).fold(verified, Result::and);
        }
        verified
    }

    /// Removes what is damaged, for good, and nothing else: reads every page as [`verify`](Self::verify) does, writes segments
    /// with damage anew (without the responses whose tokens are damaged, and with every other one), and removes the files that
    /// were set aside. Returns what was removed.
    ///
    /// # Errors
    /// [`HistoryError::InUse`] and [`HistoryError::ReadOnly`] where this process does not write. After another error what was
    /// damaged may still be there.
    pub fn repair(&self) -> Result<Vec<LeftOut>, HistoryError> {
        let _upkeep = self.shared.upkeep();
        let context = &self.shared.context;
        context.check_running()?;
        self.shared.check_writes()?;
        let mut dropped = Vec::new();
        for (_, namespace) in self.shared.all() {
            // Damage that a page holds is known once the page was read.
            read(&namespace).segments().iter().for_each(|segment| drop(segment.verify()));
            dropped.extend(renew(context, &namespace)?);
        }
        let mut removed = self.shared.inbox().forget(None, false)?;
        for (_, namespace) in self.shared.all() {
            removed.extend(read(&namespace).remove_aside(context)?);
        }
        // Of files that an earlier process has set aside only the name is known.
        let mut known = self.shared.left_out();
        dropped.extend(known.extract_if(.., |left_out| left_out.is_damage() && left_out.aside.is_some()));
        for path in removed {
            if dropped.iter().all(|left_out| left_out.aside.as_ref() != Some(&path)) {
                dropped.push(LeftOut::damaged(&path, 0, 0, "set aside earlier"));
            }
        }
        dropped.iter_mut().for_each(|left_out| left_out.aside = None);
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

    /// To be called when there is time, as after a response. The writer takes in what other processes have handed in, writes
    /// segments anew in which damage was found (the damaged file is set aside), merges segments, and drops what is over the
    /// limits of age and size. Any other process [refreshes](Self::refresh). Usually there is nothing to do. Drafts and appends
    /// go on meanwhile.
    ///
    /// # Errors
    /// The first failure. What was not done is done the next time; a namespace that fails does not hold up the others.
    pub fn maintain(&self) -> Result<(), HistoryError> {
        let _upkeep = self.shared.upkeep();
        self.shared.context.check_running()?;
        let now = now_us();
        if !matches!(self.access(), Access::Write) {
            for (_, namespace) in self.shared.all() {
                note_use(&self.shared.context, &read(&namespace), now);
            }
            self.shared.refresh()?;
        }
        if !matches!(self.access(), Access::Write) {
            return Ok(());
        }
        let taken_in = self.shared.take_in().and_then(|failed| failed.into_values().map(Err).collect());
        // What is wrong with one namespace is not the others' matter; the first failure is reported.
        let done = self.shared.all().into_iter().map(|(_, namespace)| {
            let renewed = maintain(&self.shared.context, &namespace, now)?;
            self.shared.left_out().extend(renewed);
            Ok(())
        });
        done.fold(taken_in, Result::and)
    }
}

impl Shared {
    pub(super) fn find(&self, namespace: &str) -> Option<SharedNamespace> {
        self.lock().get(namespace).map(Arc::clone)
    }

    fn lock(&self) -> MutexGuard<'_, Namespaces> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn upkeep(&self) -> MutexGuard<'_, ()> {
        self.upkeep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn all(&self) -> Vec<(String, SharedNamespace)> {
        self.lock().iter().map(|(name, namespace)| (name.clone(), Arc::clone(namespace))).collect()
    }

    fn left_out(&self) -> MutexGuard<'_, Vec<LeftOut>> {
        self.left_out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inbox(&self) -> Inbox<'_> {
        Inbox { disk: self.context.disk(), folder: &self.folder, key: self.key }
    }

    fn read_only(&self, reason: &Arc<HistoryError>) -> HistoryError {
        HistoryError::ReadOnly { path: self.folder.clone(), reason: Arc::clone(reason) }
    }

    fn check_writes(&self) -> Result<(), HistoryError> {
        match &*read(&self.role) {
            Role::Write { .. } => Ok(()),
            Role::HandIn => Err(HistoryError::InUse { path: self.folder.clone() }),
            Role::Read { reason } => Err(self.read_only(reason)),
        }
    }

    /// Takes responses that were handed in into the logs. The writer alone does. Returns the namespaces whose hand-ins could not be
    /// taken in; these hand-ins stay in the inbox, and may be in the log as well.
    ///
    /// # Errors
    /// The inbox cannot be read or changed, or the store has stopped.
    fn take_in(&self) -> Result<BTreeMap<String, HistoryError>, HistoryError> {
        let inbox = self.inbox();
        let mut found = inbox.read()?;
        let mut failed = BTreeMap::new();
        for (name, records) in found.by_namespace {
            let Err(error) = self.take_in_namespace(&name, records) else { continue };
            if self.context.check_running().is_err() {
                return Err(error);
            }
            failed.insert(name, error);
        }
        inbox.set_aside(&mut found.left_out)?;
        let mut left_out = self.left_out();
        found.left_out.retain(|found| !left_out.contains(found));
        left_out.append(&mut found.left_out);
        Ok(failed)
    }

    fn take_in_namespace(&self, name: &str, handed_in: Vec<(Record, PathBuf)>) -> Result<(), HistoryError> {
        let (records, paths): (Vec<Record>, Vec<PathBuf>) = handed_in.into_iter().unzip();
        if let Some(newest) = records.last() {
            self.newest_id.fetch_max(newest.id.0, Ordering::Relaxed);
        }
        let namespace = self.ensure_namespace(name)?;
        write(&namespace).take_in(&self.context, records, || self.next_id())?;
        self.inbox().remove(paths)
    }

    fn refresh(&self) -> Result<(), HistoryError> {
        let mut role = write(&self.role);
        if matches!(*role, Role::Write { .. }) {
            return Ok(());
        }
        let (new_role, loaded) = enter(&self.context, &self.folder, self.key)?;
        let mut namespaces = self.lock();
        let old = std::mem::replace(&mut *namespaces, loaded.namespaces);
        drop(namespaces);
        // Sources look their namespaces up again; the cursors that they hold are void.
        self.n_changes.fetch_add(1, Ordering::Release);
        old.into_values().for_each(|namespace| write(&namespace).close(&mut self.context.cache()));
        *self.left_out() = loaded.left_out;
        self.newest_id.fetch_max(loaded.newest_id, Ordering::Relaxed);
        *role = new_role;
        drop(role);
        self.start();
        Ok(())
    }

    /// The first work of a writer. Hand-ins that cannot be taken in now stay where they are; `maintain` tries again and reports.
    fn start(&self) {
        if self.check_writes().is_ok() {
            let _ = self.take_in();
        }
    }

    fn ensure_read_namespace(&self, name: &str) -> Result<SharedNamespace, HistoryError> {
        self.ensure(name, |folder| Ok(Namespace::new_to_read(folder, self.key.owner(name))))
    }

    fn ensure_namespace(&self, name: &str) -> Result<SharedNamespace, HistoryError> {
        self.ensure(name, |folder| {
            let disk = self.context.disk();
            disk.create_dir(&folder).map_err(io_error("create", &folder))?;
            disk.sync_dir(&self.folder).map_err(io_error("sync", &self.folder))?;
            let mut left_out = self.left_out();
            let opened = Namespace::open(&self.context, folder.clone(), self.key.owner(name), &mut left_out)?;
            // It may have been left out for a failure that has passed.
            left_out.retain(|left_out| left_out.path != folder);
            Ok(opened)
        })
    }

    fn ensure(
        &self,
        name: &str,
        open: impl FnOnce(PathBuf) -> Result<Namespace, HistoryError>,
    ) -> Result<SharedNamespace, HistoryError> {
        let mut namespaces = self.lock();
        if let Some(namespace) = namespaces.get(name) {
            return Ok(Arc::clone(namespace));
        }
        if namespaces.len() >= HistoryLog::NAMESPACES_MAX {
            return Err(HistoryError::TooManyNamespaces { max: HistoryLog::NAMESPACES_MAX });
        }
        let namespace = Arc::new(RwLock::new(open(self.folder.join(encode_namespace(name)))?));
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

    pub(super) fn close(&self, segments: impl IntoIterator<Item = Segment>) {
        let mut cache = self.cache();
        segments.into_iter().for_each(|segment| segment.close(&mut cache));
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
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        });
        if removed.and_then(|()| self.disk.sync_dir(folder)).is_err() {
            self.stop();
        }
    }
}

/// Removes a folder with its files, durably; `false` where there is none.
fn remove_files(disk: &dyn Disk, folder: &Path) -> Result<bool, HistoryError> {
    let names = match disk.list(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        names => names.map_err(io_error("read", folder))?,
    };
    for name in &names {
        let path = folder.join(name);
        remove(disk, &path)?;
    }
    disk.sync_dir(folder).map_err(io_error("sync", folder))?;
    // Without files it is no namespace, whether or not the system lets it go.
    let _ = disk.remove_dir(folder);
    Ok(!names.is_empty())
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(u64::MAX))
}

/// A panic elsewhere while a namespace was locked leaves its files whole; its memory is behind them at worst.
pub(super) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
