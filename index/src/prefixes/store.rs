//! The store: restores the longest stored prefix of a prompt, and keeps what was computed.

use std::any::Any;
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use refrain::state::StateKey;
use refrain::{Session, TokenId};
use refrain_files::replace::tighten;

use super::block::{self, Head, block_id, file_bytes, root_id};
use super::error::io_error;
use super::folder::{BLOCK_TOKENS, Entry, LABEL_BYTES, Tree, label_name, partial_name, remove};
use super::seal::{Id, Seal};
use super::{Label, PrefixError, PrefixOptions, PrefixProblem};
use crate::disk_file::if_there;
use crate::history::disk::{Disk, RealDisk};

/// Maximum labels of a block: a bound on the files of a block that is never evicted.
pub(super) const LABELS_MAX: usize = 1024;

/// The file that is locked while names change.
pub(super) const CHANGES_LOCK: &str = "CHANGES.lock";

/// Time to wait for other processes that change the folder. Each takes milliseconds, or seconds on a slow disk.
const LOCK_SECONDS: u64 = 30;

/// Keys and values of computed prefixes in a folder. See the [module](super).
pub struct PrefixStore {
    pub(super) disk: Arc<dyn Disk>,
    /// What the caller named. It has the locks, and a folder per version of the format and key.
    pub(super) root: PathBuf,
    /// The folder of this version and key.
    pub(super) folder: PathBuf,
    pub(super) seal: Seal,
    pub(super) max_bytes: u64,
    sync: bool,
    /// Names this store's unfinished files, and the file that it locks as long as it lives.
    pub(super) id: Id,
    _lock: Box<dyn Any + Send + Sync>,
    n_written: AtomicU64,
    /// Bytes of evicted blocks and their labels.
    pub(super) evicted_bytes: AtomicU64,
    /// Blocks whose state turned out to be unusable; they are written again.
    pub(super) unusable: Mutex<HashSet<Id>>,
    clock: fn() -> SystemTime,
}

impl fmt::Debug for PrefixStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixStore").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl PrefixStore {
    /// Opens the store in a folder, or creates it. Finishes what a killed process was forgetting, removes what a
    /// killed process was writing, and removes blocks above [`PrefixOptions::max_bytes`]. Removes everything of another
    /// version of the format and of another key, or of none: with this key it cannot be forgotten.
    ///
    /// Any number of stores, in any number of processes, may use the folder at the same time.
    ///
    /// # Errors
    /// [`PrefixError::Io`]: the folder cannot be read and written.
    pub fn open(folder: &Path, options: PrefixOptions) -> Result<Self, PrefixError> {
        tighten(folder, |name| is_lock(name) || name.starts_with(block::FOLDER));
        Self::open_on(Arc::new(RealDisk), folder, options, SystemTime::now)
    }

    pub(super) fn open_on(
        disk: Arc<dyn Disk>,
        folder: &Path,
        options: PrefixOptions,
        clock: fn() -> SystemTime,
    ) -> Result<Self, PrefixError> {
        let PrefixOptions { max_bytes, key, sync } = options;
        disk.create_dir(folder).map_err(io_error("create", folder))?;
        let (id, lock) = claim(&*disk, folder)?;
        let seal = Seal::new(key.as_ref());
        let store = PrefixStore {
            disk,
            folder: folder.join(format!("{}{}", block::FOLDER, seal.id("key", &[]))),
            root: folder.to_owned(),
            seal,
            max_bytes,
            sync,
            id,
            _lock: lock,
            n_written: AtomicU64::new(0),
            evicted_bytes: AtomicU64::new(0),
            unusable: Mutex::default(),
            clock,
        };
        store.clean_up()?;
        Ok(store)
    }

    /// Restores the keys and values of the longest stored prefix of the session's prompt in a namespace, behind what
    /// the session has. Encodes pending turns first. Returns the number of restored tokens, which the statistics of
    /// the next answer count as [`cached`](refrain::Stats::cached_tokens).
    ///
    /// Every later bit is that of a session that computed them. Files that cannot be used are left aside, and less is
    /// restored. With recurrent layers, a prefix can be restored where their state was kept, and the prefill is told to remember it for the next
    /// [`keep`](Self::keep) where this prompt parts from stored ones ([`SessionStateMut::remember`](refrain::state::SessionStateMut::remember)).
    /// The predictions that calibration makes of a prompt are not stored.
    ///
    /// # Errors
    /// [`PrefixError::Session`]: the turns cannot be encoded, see [`SessionStateMut::encode`](refrain::state::SessionStateMut::encode). [`PrefixError::Io`]: the folder
    /// cannot be listed. The session keeps what it had.
    pub fn restore(&self, session: &mut Session, namespace: &str) -> Result<usize, PrefixError> {
        let tokens = session.state_mut().encode()?.to_vec();
        let n_before = session.state().n_cached_tokens();
        if n_before + 1 >= tokens.len() {
            // The newest token is computed in any case.
            return Ok(0);
        }
        let tree = Tree::list(&*self.disk, &self.namespace_folder(namespace))?;
        let root = root_id(&self.seal, namespace, session.state().key());
        let used = match session.state().ends() {
            None => self.restore_tokens(session, &tree, root, &tokens),
            Some(_) => self.restore_recurrent(session, &tree, root, &tokens),
        };
        // One time for all, so that no block is older than those that follow it.
        let now = self.now();
        used.iter().for_each(|entry| self.disk.set_time(&tree.path(entry), now));
        Ok(session.state().n_cached_tokens() - n_before)
    }

    /// Restores blocks as far as they agree with `tokens`. Returns the blocks that were used.
    fn restore_tokens(&self, session: &mut Session, tree: &Tree, root: Id, tokens: &[TokenId]) -> Vec<Entry> {
        let n_before = session.state().n_cached_tokens();
        let mut parent = root;
        let (mut used, mut buf) = (Vec::new(), Vec::new());
        for (index, start) in (0..tokens.len()).step_by(BLOCK_TOKENS).enumerate() {
            if session.state().n_cached_tokens() + 1 >= tokens.len() {
                break;
            }
            let wanted = &tokens[start..tokens.len().min(start + BLOCK_TOKENS)];
            let id = block_id(&self.seal, parent, wanted);
            if start + BLOCK_TOKENS <= n_before {
                used.extend(tree.blocks.get(&id).copied());
            } else {
                let mut candidates = self.candidates(tree, parent, index as u32, wanted, id);
                // Only those with more than the session has are worth reading.
                let last = tokens.len() - 1 - start;
                candidates.retain(|&(n, _)| start + n.min(last) > session.state().n_cached_tokens());
                let restored = candidates.into_iter().map(|(_, entry)| entry).find(|entry| {
                    let restored = self.restore_block(session, tree, entry, start, &mut buf);
                    self.judge(entry, restored).is_some_and(|n| n > 0)
                });
                used.extend(restored);
                if session.state().n_cached_tokens() < start + BLOCK_TOKENS {
                    break;
                }
            }
            parent = id;
        }
        used
    }

    /// Keeps the keys and values of the session's tokens before `up_to`, as far as they are computed, in a namespace. With recurrent
    /// layers, these are kept up to the last position before `up_to` at which their state is known, and with the state at each such
    /// position ([`SessionState::ends`](refrain::state::SessionState::ends)): prompts can be restored to these.
    ///
    /// Stored parts are not written again; they get the labels too. Returns the number of tokens from the first on
    /// that can be restored now: fewer if [`PrefixOptions::max_bytes`] leaves no room, if more than 1,024 labels begin in one
    /// block, or if another process forgets or removes a part meanwhile.
    ///
    /// A stored block that would get more than 1,024 labels is written again with those of this call, and what followed
    /// it is removed. Only the first block of a label gets it.
    ///
    /// # Errors
    /// [`PrefixError::Io`]: a file cannot be written (the disk is full, for example); blocks before it are kept.
    /// [`PrefixError::Busy`]: another process does not finish its change of the folder.
    pub fn keep(
        &self,
        session: &Session,
        namespace: &str,
        labels: &[Label],
        up_to: usize,
    ) -> Result<usize, PrefixError> {
        let n_tokens = up_to.min(session.state().n_cached_tokens());
        let n_tokens = match session.state().ends() {
            None => n_tokens,
            Some(ends) => ends.into_iter().filter(|&end| end <= n_tokens).max().unwrap_or(0),
        };
        let tokens = &session.tokens()[..n_tokens];
        if tokens.is_empty() {
            return Ok(0);
        }
        let folder = self.namespace_folder(namespace);
        let mut tree = Tree::list(&*self.disk, &folder)?;
        let mut plan = self.plan(&tree, session, namespace, tokens);
        // Later blocks of a label follow its first one, and are forgotten with it.
        let labels_of = |planned: &Planned| -> HashSet<Id> {
            let begins = |range: &Range<usize>| !range.is_empty() && planned.range.contains(&range.start);
            let begin = labels.iter().filter(|label| begins(&label.tokens));
            begin.map(|label| self.label_id(namespace, &label.name)).collect()
        };
        let of_labels = labels.len() as u64 * LABEL_BYTES;
        let needed = |plan: &[Planned]| {
            plan.iter().filter(|planned| !planned.is_stored).map(|planned| planned.bytes).sum::<u64>()
                + of_labels
        };
        self.disk.create_dir(&folder).map_err(io_error("create", &folder))?;
        let mut room = 0;
        if needed(&plan) > 0 {
            let _changing = self.lock_changes()?;
            if let Some(full) = self.full(&tree, &plan, labels_of) {
                tree = Tree::list(&*self.disk, &folder)?;
                tree.remove(&*self.disk, &tree.with_descendants([full]))?;
                tree = Tree::list(&*self.disk, &folder)?;
                plan = self.plan(&tree, session, namespace, tokens);
            }
            let chain = plan.iter().map(|planned| planned.entry.id).collect();
            room = self.make_room(needed(&plan), &chain)?;
        }
        let now = self.now();
        let mut n_kept = 0;
        for planned in &plan {
            let mut ids = labels_of(planned);
            if ids.len() > LABELS_MAX || (!planned.is_stored && planned.bytes > room) {
                return Ok(n_kept);
            }
            let is_kept = if planned.is_stored {
                ids.retain(|&id| tree.labels_of(planned.entry.id).all(|known| known != id));
                self.label_stored(&tree, planned, &ids)
            } else {
                room -= planned.bytes;
                let parent = planned.before.map(|before| tree.path(&plan[before].entry));
                self.write(session, &tree, planned, parent.as_deref(), ids)
            };
            if !unless_gone(is_kept)? {
                return Ok(n_kept);
            }
            self.disk.set_time(&tree.path(&planned.entry), now);
            if planned.has_end {
                n_kept = planned.range.end;
            }
        }
        Ok(n_kept)
    }

    /// A stored block that would get more than [`LABELS_MAX`] labels. It is removed with what follows it and written
    /// again: the session that is being kept has the same tokens, and its labels name them.
    fn full(&self, tree: &Tree, plan: &[Planned], labels_of: impl Fn(&Planned) -> HashSet<Id>) -> Option<Id> {
        let is_full = |planned: &&Planned| {
            let known: HashSet<Id> = tree.labels_of(planned.entry.id).collect();
            planned.is_stored && known.union(&labels_of(planned)).count() > LABELS_MAX
        };
        plan.iter().find(is_full).map(|planned| planned.entry.id)
    }

    /// Adds labels to a stored block. Returns false if it was removed meanwhile.
    fn label_stored(
        &self,
        tree: &Tree,
        planned: &Planned,
        labels: &HashSet<Id>,
    ) -> Result<bool, PrefixError> {
        let changing = if labels.is_empty() { None } else { Some(self.lock_changes()?) };
        let is_there = self.disk.stat(&tree.path(&planned.entry)).is_ok();
        if is_there {
            self.add_labels(&tree.folder, planned.entry.id, labels)?;
        }
        drop(changing);
        Ok(is_there)
    }

    /// Locks the folder against changes of other processes and threads, until the value is dropped.
    ///
    /// Labels can be lost only by a race: between the listing of a remover and its removal, a block is written or
    /// labelled. So every change of names is made under this lock, with a listing that was read under it, in an order
    /// of which each beginning is sound:
    ///
    /// - a block gets its name after its labels exist, durably, and while the block before it exists;
    /// - a block loses its labels after its removal is durable, and those that follow it are removed before it.
    ///
    /// So at any time, and after the death of any process, a block in the folder has every label that a
    /// [`keep`](Self::keep) that returned gave it, or the removal of the block that had them is still to be finished.
    /// What takes long is done without the lock: reading, encoding, and writing under another name.
    pub(super) fn lock_changes(&self) -> Result<Box<dyn Any + Send + Sync>, PrefixError> {
        let path = self.root.join(CHANGES_LOCK);
        // Pauses are counted, not time: while the system freezes this process, the holder of the lock may stand still too.
        for _ in 0..LOCK_SECONDS * 1000 {
            if let Some(lock) = self.disk.lock(&path).map_err(io_error("lock", &path))? {
                return Ok(lock);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Err(PrefixError::Busy { path, seconds: LOCK_SECONDS })
    }

    pub(super) fn namespace_folder(&self, namespace: &str) -> PathBuf {
        self.folder.join(self.seal.id("namespace", &[namespace.as_bytes()]).to_string())
    }

    pub(super) fn label_id(&self, namespace: &str, label: &str) -> Id {
        self.seal.id("label", &[namespace.as_bytes(), label.as_bytes()])
    }

    pub(super) fn now(&self) -> SystemTime {
        (self.clock)()
    }

    /// The blocks after `parent` that begin with `wanted`'s first token, with the number of tokens in which they agree, the
    /// longest first; only the whole
    /// block if it is there and usable.
    fn candidates(
        &self,
        tree: &Tree,
        parent: Id,
        index: u32,
        wanted: &[TokenId],
        id: Id,
    ) -> Vec<(usize, Entry)> {
        let whole =
            tree.blocks.get(&id).filter(|entry| entry.n_tokens == BLOCK_TOKENS && entry.index == index);
        if let Some(&entry) = whole.filter(|entry| self.head(tree, entry).is_some()) {
            return vec![(BLOCK_TOKENS, entry)];
        }
        let agreement = |entry: Entry| {
            let tokens = self.head(tree, &entry)?.tokens;
            Some((tokens.iter().zip(wanted).take_while(|(a, b)| a == b).count(), entry))
        };
        let mut found: Vec<(usize, Entry)> = tree.children(parent, index).filter_map(agreement).collect();
        found.retain(|&(n, _)| n > 0);
        found.sort_by_key(|&(n, entry)| (std::cmp::Reverse(n), entry.id));
        found
    }

    /// Everything of a block except its state; `None` if it is not usable.
    pub(super) fn head(&self, tree: &Tree, entry: &Entry) -> Option<Head> {
        if self.unusable.lock().unwrap_or_else(PoisonError::into_inner).contains(&entry.id) {
            return None;
        }
        let head = self.disk.open(&tree.path(entry)).map_err(PrefixProblem::from);
        self.judge(entry, head.and_then(|file| block::read_head(&self.seal, entry, &*file)))
    }

    /// Notes a damaged block, so that the next [`keep`](Self::keep) writes it again.
    pub(super) fn judge<T>(&self, entry: &Entry, result: Result<T, PrefixProblem>) -> Option<T> {
        use PrefixProblem::{Damaged, Misplaced, StateBytes};
        if matches!(result, Err(Damaged(_) | Misplaced | StateBytes { .. })) {
            self.unusable.lock().unwrap_or_else(PoisonError::into_inner).insert(entry.id);
        }
        result.ok()
    }

    /// Restores what a block has beyond the cached tokens. Returns the number of tokens.
    fn restore_block(
        &self,
        session: &mut Session,
        tree: &Tree,
        entry: &Entry,
        start: usize,
        buf: &mut Vec<u8>,
    ) -> Result<usize, PrefixProblem> {
        let expected = state_lens(session, entry.n_tokens);
        let (head, state) = self.read_block(tree, entry, session.state().key(), expected, buf)?;
        session.state_mut().restore(start, &head.tokens, state).map_err(|_| PrefixProblem::Misplaced)
    }

    /// Reads a block, and its state into `buf`. The state has one of the `expected` numbers of bytes: a seal without a key does not vouch for
    /// the number in a file, and memory is taken for it.
    pub(super) fn read_block<'a>(
        &self,
        tree: &Tree,
        entry: &Entry,
        key: StateKey,
        expected: [u64; 2],
        buf: &'a mut Vec<u8>,
    ) -> Result<(Head, &'a [u8]), PrefixProblem> {
        let file = self.disk.open(&tree.path(entry))?;
        let head = block::read_head(&self.seal, entry, &*file)?;
        if head.state_key != key.to_bits() {
            return Err(PrefixProblem::Misplaced);
        }
        if !expected.contains(&head.state_bytes) {
            let (given, n_tokens) = (head.state_bytes, entry.n_tokens);
            return Err(PrefixProblem::StateBytes { given, n_tokens, expected });
        }
        let state = block::read_state(&self.seal, &head, &*file, buf)?;
        Ok((head, state))
    }

    /// The blocks of a prefix, in order of their ends. Without recurrent layers, the last may be a stored block that is longer.
    fn plan(&self, tree: &Tree, session: &Session, namespace: &str, tokens: &[TokenId]) -> Vec<Planned> {
        let root = root_id(&self.seal, namespace, session.state().key());
        if let Some(ends) = session.state().ends() {
            return self.plan_recurrent(tree, session, root, tokens, &ends);
        }
        let mut parent = root;
        let mut plan: Vec<Planned> = Vec::new();
        for (index, tokens) in tokens.chunks(BLOCK_TOKENS).enumerate() {
            let (id, n_tokens) = (block_id(&self.seal, parent, tokens), tokens.len());
            let entry = Entry { index: index as u32, parent, id, n_tokens };
            let has =
                |entry: &Entry| self.head(tree, entry).is_some_and(|head| head.tokens.starts_with(tokens));
            let own = tree.blocks.get(&id).copied().filter(|stored| *stored == entry && has(stored));
            let longer =
                || tree.children(parent, entry.index).find(|other| other.n_tokens > n_tokens && has(other));
            let stored = own.or_else(longer);
            let start = index * BLOCK_TOKENS;
            plan.push(Planned {
                entry: stored.unwrap_or(entry),
                range: start..start + n_tokens,
                before: index.checked_sub(1),
                has_end: true,
                is_stored: stored.is_some(),
                bytes: file_bytes(n_tokens, session.state().bytes(n_tokens)),
            });
            parent = id;
        }
        plan
    }

    /// Stored blocks that are a beginning of a new block.
    fn shorter(&self, tree: &Tree, planned: &Planned, tokens: &[TokenId]) -> HashSet<Id> {
        let entry = &planned.entry;
        let is_shorter = |other: &Entry| {
            other.n_tokens < entry.n_tokens
                && block_id(&self.seal, entry.parent, &tokens[..other.n_tokens]) == other.id
        };
        tree.children(entry.parent, entry.index).filter(is_shorter).map(|other| other.id).collect()
    }

    /// Writes a block with its labels, and removes those that are its beginning. Returns false if another process
    /// removed it, or the one before it, meanwhile.
    fn write(
        &self,
        session: &Session,
        tree: &Tree,
        planned: &Planned,
        parent: Option<&Path>,
        labels: HashSet<Id>,
    ) -> Result<bool, PrefixError> {
        let Entry { parent: parent_id, id, n_tokens, .. } = planned.entry;
        let range = planned.range.clone();
        let tokens = &session.tokens()[range.clone()];
        let state_bytes = state_lens(session, n_tokens)[usize::from(planned.has_end)];
        let bytes =
            block::encode(&self.seal, parent_id, session.state().key(), tokens, state_bytes, |out| {
                Ok(if planned.has_end {
                    session.state().write(range, out)
                } else {
                    session.state().write_keys_values(range, out)
                }?)
            })?;
        let number = self.next_number();
        let (path, partial) = (tree.path(&planned.entry), tree.folder.join(partial_name(self.id, number)));
        // Recurrent layers have another state at the end of a shorter one.
        let shorter = match session.state().ends() {
            None => self.shorter(tree, planned, tokens),
            Some(_) => HashSet::new(),
        };
        let is_in_place = self.put(&partial, &path, &bytes, || {
            let changing = self.lock_changes()?;
            if parent.is_some_and(|parent| self.disk.stat(parent).is_err()) {
                // Forgotten or evicted meanwhile, with all that follows it.
                return Ok(None);
            }
            // The labels that other processes have given the shorter blocks meanwhile are in a new listing. If they
            // are too many, those of this session name its tokens, as in `full`.
            let fresh =
                if shorter.is_empty() { Tree::default() } else { Tree::list(&*self.disk, &tree.folder)? };
            let mut all = labels.clone();
            all.extend(shorter.iter().flat_map(|&block| fresh.labels_of(block)));
            let labels = if all.len() > LABELS_MAX { &labels } else { &all };
            self.add_labels(&tree.folder, id, labels)?;
            Ok(Some((changing, fresh)))
        });
        let is_in_place = is_in_place.inspect_err(|_| drop(self.disk.remove_file(&partial)))?;
        let Some((_changing, fresh)) = is_in_place else {
            remove(&*self.disk, &partial)?;
            return Ok(false);
        };
        if self.sync {
            self.disk.sync_dir(&tree.folder).map_err(io_error("sync", &tree.folder))?;
        }
        fresh.remove(&*self.disk, &shorter)?;
        self.unusable.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        Ok(true)
    }

    /// A number for the name of an unfinished file.
    pub(super) fn next_number(&self) -> u64 {
        self.n_written.fetch_add(1, Ordering::Relaxed)
    }

    /// Writes `partial`, and renames it to `path` if `before_rename` gives a value. `None` if it gives none, or if
    /// `partial` was removed meanwhile.
    pub(super) fn put<T>(
        &self,
        partial: &Path,
        path: &Path,
        bytes: &[u8],
        before_rename: impl FnOnce() -> Result<Option<T>, PrefixError>,
    ) -> Result<Option<T>, PrefixError> {
        let file = self.disk.create(partial).map_err(io_error("create", partial))?;
        file.write_at(bytes, 0).map_err(io_error("write", partial))?;
        if self.sync {
            file.sync().map_err(io_error("sync", partial))?;
        }
        drop(file);
        let Some(value) = before_rename()? else { return Ok(None) };
        let renamed = if_there(self.disk.rename(partial, path)).map_err(io_error("rename to", path))?;
        Ok(renamed.map(|()| value))
    }

    /// Gives a block labels, durably: without [`PrefixOptions::sync`], too, a failure of power must not leave a block
    /// without them.
    fn add_labels(&self, folder: &Path, block: Id, labels: &HashSet<Id>) -> Result<(), PrefixError> {
        for &label in labels {
            let path = folder.join(label_name(block, label));
            self.disk.create(&path).map_err(io_error("create", &path))?;
        }
        if !labels.is_empty() {
            self.disk.sync_dir(folder).map_err(io_error("sync", folder))?;
        }
        Ok(())
    }
}

/// Bytes of the state of a block of so many tokens, without and with that of recurrent layers.
pub(super) fn state_lens(session: &Session, n_tokens: usize) -> [u64; 2] {
    [session.state().keys_values_bytes(n_tokens), session.state().bytes(n_tokens)]
}

/// The default value where another process has removed the folder or a file meanwhile.
pub(super) fn unless_gone<T: Default>(result: Result<T, PrefixError>) -> Result<T, PrefixError> {
    match result {
        Err(PrefixError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        result => result,
    }
}

/// A block of a prefix that is kept.
pub(super) struct Planned {
    pub(super) entry: Entry,
    /// Positions of its tokens that are kept.
    pub(super) range: Range<usize>,
    /// The place in the plan of the block that it follows.
    pub(super) before: Option<usize>,
    /// Whether a prompt can be restored to its end: unless recurrent layers do not know their state there.
    pub(super) has_end: bool,
    pub(super) is_stored: bool,
    /// Bytes of its file.
    pub(super) bytes: u64,
}

/// The name of the file that a store locks as long as it lives.
pub(super) fn lock_name(store: Id) -> String {
    format!("{store}.lock")
}

fn is_lock(name: &str) -> bool {
    name == CHANGES_LOCK || name.strip_suffix(".lock").is_some_and(|id| Id::parse(id).is_some())
}

/// Gives a new store a name and a lock.
fn claim(disk: &dyn Disk, folder: &Path) -> Result<(Id, Box<dyn Any + Send + Sync>), PrefixError> {
    loop {
        let mut id = Id([0; 16]);
        getrandom::fill(&mut id.0).map_err(PrefixError::Random)?;
        let path = folder.join(lock_name(id));
        disk.create(&path).map_err(io_error("create", &path))?;
        let lock = disk.lock(&path).map_err(io_error("lock", &path))?;
        // A process that opens the folder may have taken the new file for that of a dead one.
        if let Some(lock) = lock.filter(|_| disk.stat(&path).is_ok()) {
            return Ok((id, lock));
        }
    }
}

impl Drop for PrefixStore {
    fn drop(&mut self) {
        // What remains is removed by the next open.
        let _ = self.disk.remove_file(&self.root.join(lock_name(self.id)));
    }
}
