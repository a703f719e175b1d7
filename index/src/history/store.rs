//! The store: namespaces of responses in a folder, written by one process and read by any number.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::SystemTime;

use refrain::internals::draft::EchoStore;
use refrain::{Session, TokenId};
use refrain_files::replace::tighten;

use super::access::{Access, Role, enter};
use super::changes::remove_files;
use super::context::{Context, read, write};
use super::disk::{Disk, RealDisk, SealedDisk};
use super::echo::{Echoes, Kept, echo_bytes, remove_echo, verify_echo};
use super::error::{HistoryError, io_error};
use super::inbox::Inbox;
use super::key::{HistoryKey, RecordId, check_namespace, decode_namespace, encode_namespace};
use super::log::Record;
use super::namespace::{NAMESPACES_MAX, Namespace, Namespaces, SharedNamespace};
use super::options::HistoryOptions;
use super::pulled::{deleted_up_to, fleet_folder, fleet_namespaces, read_pulled, remove_pulled};
use super::report::{HistoryStats, LeftOut, NamespaceStats, RecordInfo};
use super::segment::Segment;
use super::upkeep::{maintain, note_use, renew};
use crate::disk_file::if_there;
use crate::seal::Seal;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) context: Context,
    key: HistoryKey,
    folder: PathBuf,
    namespaces: Mutex<Namespaces>,
    /// Counts added and removed namespaces. After a change, a source looks up its namespace again.
    pub(super) n_changes: AtomicU64,
    newest_id: AtomicU64,
    /// The parts left out when the folder was last read, and those found since.
    left_out: Mutex<Vec<LeftOut>>,
    role: RwLock<Role>,
    /// Held during changes of files other than one log: merges, forgetting.
    upkeep: Mutex<()>,
    /// The lists of echo in use. Held during all changes of their files, after `upkeep` and before `namespaces`.
    echoes: Mutex<Echoes>,
}

/// Earlier responses of one model in a folder, by namespace (an app, a user, a task).
///
/// Clones share the history. Threads may append, draft and maintain at the same time; a merge does not block them.
/// Several processes may open the same folder: one writes, the others read and hand in ([`access`](Self::access)).
/// The [module](crate::history) describes the guarantees about crashes, damage and other processes.
#[derive(Clone, Debug)]
pub struct HistoryLog {
    shared: Arc<Shared>,
}

impl HistoryLog {
    /// Maximum number of namespaces.
    pub const NAMESPACES_MAX: usize = NAMESPACES_MAX;

    /// Opens the history of a model in `folder`. The folder is created if it does not exist. Histories of other
    /// models in it are not changed.
    ///
    /// The first process to open it writes. As long as that process (or another `HistoryLog` of this one) has it
    /// open, or if the folder cannot be written, it is opened for reading. [`access`](Self::access) returns the role.
    /// Damaged and unreadable files and responses are left out ([`left_out`](Self::left_out)). The writer sets
    /// damaged files aside under names that begin with `damaged.`; only [`repair`](Self::repair) and
    /// [`forget`](Self::forget) remove them.
    ///
    /// # Errors
    /// An option is out of its range, the folder can neither be created nor read, or it contains too many namespaces.
    /// [`HistoryError::Key`]: the key is not that of the history, or there must be one, or none.
    pub fn open(folder: &Path, key: HistoryKey, options: HistoryOptions) -> Result<Self, HistoryError> {
        tighten(folder, |name| HistoryKey::parse(name).is_some());
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
        let seal = Seal::new(options.key.as_ref(), "refrain history 2026-11: contents of files");
        let context = Context::new(SealedDisk { disk, seal }, options);
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
            echoes: Mutex::new(Echoes::new()),
        };
        shared.start();
        Ok(HistoryLog { shared: Arc::new(shared) })
    }

    /// The keys of the histories in a folder, ascending. Empty if the folder does not exist.
    pub fn keys(folder: &Path) -> Result<Vec<HistoryKey>, HistoryError> {
        let names = if_there(RealDisk.list(folder)).map_err(io_error("read", folder))?.unwrap_or_default();
        let mut keys: Vec<HistoryKey> = names.iter().filter_map(|name| HistoryKey::parse(name)).collect();
        keys.sort_unstable();
        Ok(keys)
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The key of this history.
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

    /// The unused parts of the folder: those found when it was read, and segments in which a draft or a merge has
    /// found damage since. (Damage in pages that were never read is not included: call [`verify`](Self::verify).)
    pub fn left_out(&self) -> Vec<LeftOut> {
        let mut left_out = self.shared.left_out().clone();
        for (_, namespace) in self.shared.all() {
            let namespace = read(&namespace);
            let faults = namespace.searched().filter_map(Segment::fault);
            left_out.extend(faults.filter_map(|fault| LeftOut::of(fault).ok()));
        }
        left_out
    }

    /// Appends a finished response to a namespace, which is created by its first response. After the return, the
    /// response is durable according to [`HistoryOptions::sync`] (always, if it is handed in), and sources draft from
    /// it. A response that is handed in gets another id in the log if another process has used the same id in the
    /// same µs.
    ///
    /// # Errors
    /// The response was not appended.
    ///
    /// - [`HistoryError::Io`]: for example, the disk is full. The call may be retried. After a failed sync, every
    ///   later change returns [`HistoryError::Stopped`] until the history is opened again.
    /// - [`HistoryError::ReadOnly`]: the folder cannot be written.
    /// - [`HistoryError::InboxFull`]: too many responses wait for the writer.
    pub fn append(&self, namespace: &str, response: &[TokenId]) -> Result<RecordId, HistoryError> {
        check_namespace(namespace)?;
        let shared = &self.shared;
        shared.context.check_running()?;
        let max = shared.context.options.live_tokens_max;
        if response.len() > max as usize {
            return Err(HistoryError::RecordTooLong { n_tokens: response.len(), max });
        }
        // Held until the response is appended, so that no refresh runs in between.
        let role = read(&shared.role);
        match &*role {
            Role::Write { .. } => {
                let namespace = shared.ensure_namespace(namespace)?;
                let mut namespace = write(&namespace);
                // Under the lock: ids ascend from record to record of a log.
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
                    // The writer has frozen most of it. The response is safe, so a failure is left to the next
                    // refresh.
                    let _ = self.refresh();
                }
                Ok(id)
            }
            Role::Read { reason } => Err(shared.read_only(reason)),
        }
    }

    /// Makes the echo of a session, if it has one, draft from and add to the lists of a namespace, as [`echo`](Self::echo)
    /// gives them.
    ///
    /// # Errors
    /// As [`echo`](Self::echo). The session is unchanged.
    pub fn share_echo(
        &self,
        session: &mut Session,
        namespace: &str,
        lists_max: u32,
    ) -> Result<(), HistoryError> {
        session.share_echo(&self.echo(namespace, lists_max)?);
        Ok(())
    }

    /// The lists of echo of a namespace, at most `lists_max` of them (the largest value of all calls
    /// counts). The first call reads their file, if there is one. [`maintain`](Self::maintain) keeps them in the writer, once the namespace has a response; other processes only
    /// read.
    ///
    /// A damaged file is left out ([`left_out`](Self::left_out)) and set aside by the writer, and the lists begin empty. As
    /// long as there is a file that cannot be used for another reason, such as a newer version, nothing is kept.
    ///
    /// # Errors
    /// The name of the namespace is empty or too long, or a damaged file cannot be set aside.
    pub fn echo(&self, namespace: &str, lists_max: u32) -> Result<EchoStore, HistoryError> {
        check_namespace(namespace)?;
        let shared = &self.shared;
        let mut echoes = shared.echoes();
        if let Some(kept) = echoes.get_mut(namespace) {
            return Ok(kept.echo(lists_max));
        }
        let (folder, owner) = (shared.namespace_folder(namespace), shared.key.owner(namespace));
        let mut kept = Kept::new(&folder, owner, lists_max, now_us());
        let left_out = kept.read(shared.context.disk(), shared.check_writes().is_ok(), now_us())?;
        shared.left_out().extend(left_out);
        let echo = kept.echo(lists_max);
        echoes.insert(namespace.to_owned(), kept);
        Ok(echo)
    }

    /// Reads the folder again if another process writes it, and becomes the writer if there is none. Sources then see
    /// all changes since the folder was last read. Has no effect in the writer.
    ///
    /// # Errors
    /// The folder cannot be read. Nothing has changed.
    pub fn refresh(&self) -> Result<(), HistoryError> {
        let _upkeep = self.shared.upkeep();
        self.shared.refresh()
    }

    /// Makes all appends so far durable. Handed-in responses are already durable.
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

    /// Removes a response from every file: log, segment or hand-in. Files of its namespace that were set aside as
    /// damaged may contain it too, so they are removed as well. Damaged parts of its segment are dropped, and so are all
    /// [lists of echo](Self::echo) of its namespace. Files of responses that are left out for another reason (a newer
    /// version, unreadable) are not changed.
    ///
    /// Another process that has the history open may draft from the response until its next
    /// [`refresh`](Self::refresh), [`maintain`](Self::maintain) or open.
    ///
    /// # Errors
    /// - [`HistoryError::NoSuchRecord`]
    /// - [`HistoryError::InUse`], [`HistoryError::ReadOnly`]: this process does not write.
    ///
    /// After another error the response may still be in a file. The call may be retried.
    pub fn forget(&self, record: RecordId) -> Result<(), HistoryError> {
        match self.forget_all(&[record])? {
            0 => Err(HistoryError::NoSuchRecord { record: record.0 }),
            _ => Ok(()),
        }
    }

    /// As [`forget`](Self::forget), for several responses: a log and each segment are written again once, however many of
    /// the responses they contain. Returns the number of removed responses; ids that do not exist are ignored.
    ///
    /// # Errors
    /// As [`forget`](Self::forget), without [`HistoryError::NoSuchRecord`]. After an error some of the responses may be
    /// removed.
    pub fn forget_all(&self, records: &[RecordId]) -> Result<usize, HistoryError> {
        let _upkeep = self.shared.upkeep();
        self.shared.context.check_running()?;
        self.shared.check_writes()?;
        let mut failed = self.shared.take_in()?;
        let ids: BTreeSet<RecordId> = records.iter().copied().collect();
        let mut n_removed = 0;
        for (name, namespace) in self.shared.all() {
            if read(&namespace).n_held(&ids) == 0 {
                continue;
            }
            // A hand-in of this namespace may still hold the response, and would bring it back.
            if let Some(error) = failed.remove(&name) {
                return Err(error);
            }
            self.shared.inbox().forget(Some(&name), false)?;
            self.shared.forget_echo(&name)?;
            n_removed += write(&namespace).forget(&self.shared.context, &ids)?;
        }
        match failed.into_values().next() {
            // A missing response may be among the hand-ins that were not taken in.
            Some(error) if n_removed < ids.len() => Err(error),
            _ => Ok(n_removed),
        }
    }

    /// Removes a namespace with all its files, hand-ins and files that were set aside. `false` if it does not exist.
    /// Its sources find it empty from the next step on, those of other processes after their next
    /// [`refresh`](Self::refresh). Responses appended later are visible to them.
    ///
    /// # Errors
    /// [`HistoryError::InUse`], [`HistoryError::ReadOnly`]: this process does not write.
    ///
    /// After another error, files of the namespace may remain. It drafts from them again when the next response is
    /// appended or the history is opened. The call may be retried.
    pub fn forget_namespace(&self, namespace: &str) -> Result<bool, HistoryError> {
        let _upkeep = self.shared.upkeep();
        let shared = &self.shared;
        shared.context.check_running()?;
        check_namespace(namespace)?;
        shared.check_writes()?;
        let handed_in = shared.inbox().forget(Some(namespace), true)?;
        shared.forget_echo(namespace)?;
        // The lock keeps others from finding or creating the namespace during the removal.
        let mut namespaces = shared.lock();
        let found = namespaces.remove(namespace);
        if let Some(found) = &found {
            write(found).close(&mut shared.context.cache());
            shared.n_changes.fetch_add(1, Ordering::Release);
        }
        // Also for an unknown namespace: an earlier call may have failed half-way.
        let disk = shared.context.disk();
        let pulled = remove_pulled(disk, &shared.folder, namespace)?;
        let removed = remove_files(disk, &shared.namespace_folder(namespace))?;
        Ok(found.is_some() || removed || pulled || !handed_in.is_empty())
    }

    /// Removes every namespace, as [`forget_namespace`](Self::forget_namespace), also those that could not be opened. Returns
    /// the number of removed responses that could be read.
    ///
    /// # Errors
    /// As [`forget_namespace`](Self::forget_namespace).
    pub fn clear(&self) -> Result<usize, HistoryError> {
        let n_records = self.list().len();
        let shared = &self.shared;
        let names = shared.context.disk().list(&shared.folder).map_err(io_error("read", &shared.folder))?;
        let mut namespaces: BTreeSet<String> =
            names.iter().filter_map(|name| decode_namespace(name)).collect();
        namespaces.extend(shared.all().into_iter().map(|(name, _)| name));
        namespaces.iter().try_for_each(|namespace| self.forget_namespace(namespace).map(drop))?;
        let _upkeep = shared.upkeep();
        shared.inbox().forget(None, true)?;
        // Of namespaces without a response.
        shared.echoes().values_mut().for_each(|kept| kept.forget_lists(now_us()));
        shared.left_out().clear();
        Ok(n_records)
    }

    /// Removes the files that were set aside as damaged, of all namespaces. Which responses they contain is not known.
    /// Returns their number.
    ///
    /// # Errors
    /// As [`forget`](Self::forget), without [`HistoryError::NoSuchRecord`].
    pub fn remove_aside(&self) -> Result<usize, HistoryError> {
        let _upkeep = self.shared.upkeep();
        self.shared.context.check_running()?;
        self.shared.check_writes()?;
        // What is damaged among the responses of other processes is set aside here.
        self.shared.take_in()?;
        let mut n_removed = self.shared.inbox().forget(None, false)?.len();
        for (_, namespace) in self.shared.all() {
            n_removed += read(&namespace).remove_aside(&self.shared.context)?.len();
        }
        self.shared.left_out().retain(|left_out| left_out.aside.is_none());
        Ok(n_removed)
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
            // Handed-in responses may be older than those frozen before them.
            infos[from..].sort_by_key(|info| info.record);
        }
        infos
    }

    /// The tokens of a response. `None` if the id does not exist.
    ///
    /// # Errors
    /// The segment that contains it cannot be read.
    pub fn tokens(&self, record: RecordId) -> Result<Option<Vec<TokenId>>, HistoryError> {
        for (_, namespace) in self.shared.all() {
            if let Some(tokens) = read(&namespace).tokens(record)? {
                return Ok(Some(tokens.into_vec()));
            }
        }
        Ok(None)
    }

    /// Statistics of the history.
    pub fn stats(&self) -> HistoryStats {
        let mut memory_bytes = self.shared.context.cache().memory_usage();
        memory_bytes += self.shared.echoes().values().map(Kept::memory_usage).sum::<usize>();
        let stats = |(name, namespace): (String, SharedNamespace)| {
            let namespace = read(&namespace);
            memory_bytes += namespace.memory_usage();
            let of_echo = echo_bytes(self.shared.context.disk(), namespace.folder());
            let segments = namespace.segments();
            let n_frozen: u64 = segments.iter().map(|segment| u64::from(segment.n_tokens())).sum();
            let n_records: usize = segments.iter().map(|segment| segment.records().len()).sum();
            NamespaceStats {
                namespace: name,
                n_records: (n_records + namespace.live().len()) as u64,
                n_tokens: n_frozen + namespace.n_live_tokens() as u64,
                n_live_tokens: namespace.n_live_tokens() as u64,
                n_segments: segments.len(),
                bytes: namespace.bytes() + of_echo,
                n_pulled: namespace.pulled().len(),
                pulled_bytes: namespace.pulled().iter().map(Segment::bytes).sum(),
                damaged: namespace.searched().filter_map(Segment::fault).collect(),
            }
        };
        let namespaces = self.shared.all().into_iter().map(stats).collect();
        HistoryStats { namespaces, memory_bytes }
    }

    /// Reads the pages of every segment, up to its first damaged page, and the lists of echo, and compares them with their
    /// checksums. (Logs and tables were compared when the history was opened.) [`left_out`](Self::left_out) then includes the damage.
    ///
    /// # Errors
    /// The first damage found.
    pub fn verify(&self) -> Result<(), HistoryError> {
        let mut verified = Ok(());
        for (name, namespace) in self.shared.all() {
            let of_echo = self.shared.verify_echo(&name);
            let namespace = read(&namespace);
            verified = namespace.searched().map(Segment::verify).fold(verified, Result::and);
            verified = verified.and(of_echo);
        }
        verified
    }

    /// Permanently removes damaged data, and nothing else. Reads every page as [`verify`](Self::verify) does,
    /// rewrites damaged segments (only the responses with damaged tokens are lost), and removes damaged lists of echo and the
    /// files that were set aside. Returns the removed parts.
    ///
    /// # Errors
    /// [`HistoryError::InUse`], [`HistoryError::ReadOnly`]: this process does not write. After another error, damaged
    /// data may remain.
    pub fn repair(&self) -> Result<Vec<LeftOut>, HistoryError> {
        let _upkeep = self.shared.upkeep();
        let context = &self.shared.context;
        context.check_running()?;
        self.shared.check_writes()?;
        let mut dropped = Vec::new();
        for (name, namespace) in self.shared.all() {
            dropped.extend(self.shared.repair_echo(&name)?);
            // Damage in a page is known after the page was read.
            read(&namespace).searched().for_each(|segment| drop(segment.verify()));
            dropped.extend(renew(context, &namespace)?);
        }
        let mut removed = self.shared.inbox().forget(None, false)?;
        for (_, namespace) in self.shared.all() {
            removed.extend(read(&namespace).remove_aside(context)?);
        }
        // Of files set aside by an earlier process, only the name is known.
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

    /// Background work, to be called when there is time, for example after a response. The writer moves handed-in
    /// responses to its logs, rewrites damaged segments (the damaged file is set aside), merges segments, drops responses
    /// over the limits of age and size, opens segments that were pulled from other hosts, and writes the
    /// [lists of echo](Self::echo) that have changed. (Lists that begun
    /// before [`HistoryOptions::age_max`] are dropped, so they begin anew in every such period.) Any other process [refreshes](Self::refresh). Usually there is
    /// nothing to do. Drafts and appends continue meanwhile.
    ///
    /// # Errors
    /// Unfinished work is repeated the next time.
    pub fn maintain(&self) -> Result<(), HistoryError> {
        let forgotten = match self.access() {
            Access::Write => self.forget_deleted(),
            _ => Ok(()),
        };
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
        let taken_in = self.shared.take_in().and_then(|failed| failed.into_values().try_for_each(Err));
        let taken_in = forgotten.and(taken_in).and(self.shared.read_pulled());
        // A failure in one namespace does not stop the others; the first failure is reported.
        let done = self.shared.all().into_iter().map(|(_, namespace)| {
            let renewed = maintain(&self.shared.context, &namespace, now)?;
            self.shared.left_out().extend(renewed);
            Ok(())
        });
        let done = done.fold(taken_in, Result::and);
        done.and(self.shared.keep_echoes(now))
    }

    /// Forgets the responses that the fleet has deleted. Only for the writer.
    fn forget_deleted(&self) -> Result<(), HistoryError> {
        let shared = &self.shared;
        let disk = shared.context.disk();
        for namespace in fleet_namespaces(disk, &shared.folder)? {
            let Some(deleted) = deleted_up_to(disk, &fleet_folder(&shared.folder, &namespace))? else {
                continue;
            };
            let of_namespace = self.list().into_iter().filter(|info| info.namespace == namespace);
            let ids: Vec<RecordId> =
                of_namespace.map(|info| info.record).filter(|&id| id <= deleted).collect();
            if !ids.is_empty() {
                self.forget_all(&ids)?;
            }
        }
        Ok(())
    }
}

impl Shared {
    pub(super) fn key(&self) -> HistoryKey {
        self.key
    }

    /// The model's folder.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Opens other hosts' segments that were put in place since the last call, and closes removed ones.
    fn read_pulled(&self) -> Result<(), HistoryError> {
        for name in fleet_namespaces(self.context.disk(), &self.folder)? {
            self.ensure_namespace(&name)?;
        }
        for (name, namespace) in self.all() {
            let (owner, namespace) = (self.key.owner(&name), &mut write(&namespace));
            let found = (true, &mut *self.left_out());
            read_pulled(&self.context, &self.folder, &name, owner, namespace, found)?;
        }
        Ok(())
    }

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

    /// Each entry is complete at any time, so a panic in another thread does no harm.
    fn echoes(&self) -> MutexGuard<'_, Echoes> {
        self.echoes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn namespace_folder(&self, namespace: &str) -> PathBuf {
        self.folder.join(encode_namespace(namespace))
    }

    /// Removes the lists of echo of a namespace, in memory and on the disk.
    fn forget_echo(&self, namespace: &str) -> Result<(), HistoryError> {
        match self.echoes().get_mut(namespace) {
            Some(kept) => kept.forget(self.context.disk(), now_us()),
            None => remove_echo(self.context.disk(), &self.namespace_folder(namespace)),
        }
    }

    /// Writes the lists of echo that have changed, of namespaces with responses.
    fn keep_echoes(&self, now: u64) -> Result<(), HistoryError> {
        let age_max = self.context.options.age_max;
        let age_max = age_max.map(|age| u64::try_from(age.as_micros()).unwrap_or(u64::MAX));
        let oldest = age_max.map_or(0, |age| now.saturating_sub(age));
        let mut echoes = self.echoes();
        let mut written = Ok(());
        for (_, kept) in echoes.iter_mut().filter(|(name, _)| self.find(name).is_some()) {
            written = written.and(kept.write(self.context.disk(), oldest, now));
        }
        written
    }

    /// Checks the lists of echo on the disk. Damage is left out.
    ///
    /// # Errors
    /// The damage.
    fn verify_echo(&self, namespace: &str) -> Result<(), HistoryError> {
        let _echoes = self.echoes();
        let folder = self.namespace_folder(namespace);
        match verify_echo(self.context.disk(), &folder, self.key.owner(namespace)) {
            Err(HistoryError::Damaged { path, offset, what }) => {
                let mut left_out = self.left_out();
                if left_out.iter().all(|known| known.path != path || known.aside.is_some()) {
                    left_out.push(LeftOut::damaged(&path, offset, 0, what));
                }
                Err(HistoryError::Damaged { path, offset, what })
            }
            // A file that cannot be used for another reason is left out when it is read.
            _ => Ok(()),
        }
    }

    /// Removes damaged lists of echo from the disk. The lists in memory are kept.
    fn repair_echo(&self, namespace: &str) -> Result<Option<LeftOut>, HistoryError> {
        let _echoes = self.echoes();
        let folder = self.namespace_folder(namespace);
        match verify_echo(self.context.disk(), &folder, self.key.owner(namespace)) {
            Err(HistoryError::Damaged { path, offset, what }) => {
                remove_echo(self.context.disk(), &folder)?;
                self.left_out().retain(|known| known.path != path || known.aside.is_some());
                Ok(Some(LeftOut::damaged(&path, offset, 0, what)))
            }
            _ => Ok(None),
        }
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

    /// Moves handed-in responses to the logs; only the writer does so. Returns the namespaces whose hand-ins
    /// could not be moved. These hand-ins stay in the inbox and may also be in the log.
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
        let newest = write(&namespace).take_in(&self.context, records)?;
        self.newest_id.fetch_max(newest, Ordering::Relaxed);
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
        // Sources look up their namespaces again; their old cursors are invalid.
        self.n_changes.fetch_add(1, Ordering::Release);
        *self.left_out() = loaded.left_out;
        self.newest_id.fetch_max(loaded.newest_id, Ordering::Relaxed);
        *role = new_role;
        drop(role);
        let read_again = self.refresh_echoes(&old);
        old.into_values().for_each(|namespace| write(&namespace).close(&mut self.context.cache()));
        self.start();
        read_again
    }

    /// Reads the lists of echo again if their file has changed, or if a response of `old` is gone: the lists in memory may
    /// derive from it.
    fn refresh_echoes(&self, old: &Namespaces) -> Result<(), HistoryError> {
        let (disk, writes) = (self.context.disk(), self.check_writes().is_ok());
        let mut done = Ok(());
        for (name, kept) in self.echoes().iter_mut() {
            let now = self.find(name).map_or_else(BTreeSet::new, |namespace| read(&namespace).ids());
            let before = old.get(name).map_or_else(BTreeSet::new, |namespace| read(namespace).ids());
            if kept.is_changed(disk) || !before.is_subset(&now) {
                let left_out = kept.read(disk, writes, now_us());
                done = done.and(left_out.map(|left_out| self.left_out().extend(left_out)));
            }
        }
        done
    }

    /// The first work of a writer. If hand-ins cannot be moved now, they stay, and `maintain` retries and reports
    /// errors.
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
            // It may have been left out because of a temporary failure.
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
        if namespaces.len() >= NAMESPACES_MAX {
            return Err(HistoryError::TooManyNamespaces { max: NAMESPACES_MAX });
        }
        let namespace = Arc::new(RwLock::new(open(self.folder.join(encode_namespace(name)))?));
        namespaces.insert(name.to_owned(), Arc::clone(&namespace));
        self.n_changes.fetch_add(1, Ordering::Release);
        Ok(namespace)
    }

    /// The current time, or the newest id plus one.
    fn next_id(&self) -> RecordId {
        let now = now_us();
        let next = |newest: u64| now.max(newest.saturating_add(1));
        let newest =
            self.newest_id.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |newest| Some(next(newest)));
        RecordId(next(newest.unwrap_or_else(|newest| newest)))
    }
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(u64::MAX))
}
