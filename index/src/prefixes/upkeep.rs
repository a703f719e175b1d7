//! Forgetting, eviction, and what killed processes leave behind.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use super::PrefixError;
use super::error::io_error;
use super::folder::{Entry, Intent, LABEL_BYTES, SEEN, Tree, list, nanos, remove};
use super::seal::Id;
use super::store::{PrefixStore, lock_name, unless_gone};
use crate::disk_file::if_there;
use crate::history::disk::Kind;

impl PrefixStore {
    /// Forgets every block of a namespace that contains tokens with this label, and all blocks that follow it, of every
    /// model. Returns the number of removed blocks.
    ///
    /// Afterwards no file of the folder holds the tokens or what was computed from them, including files that are
    /// damaged or were being written. The file system may still hold the freed blocks, and a process the memory of its
    /// session. A process that keeps such a session afterwards, or at the same moment, stores it again.
    ///
    /// # Errors
    /// [`PrefixError::Busy`]: another process does not finish its change of the folder, and nothing is forgotten.
    /// [`PrefixError::Io`]: a file cannot be removed. Forgetting is finished by the next call or
    /// [`open`](PrefixStore::open).
    pub fn forget(&self, namespace: &str, label: &str) -> Result<usize, PrefixError> {
        self.forget_all(namespace, &[label])
    }

    /// As [`forget`](Self::forget), for several labels.
    ///
    /// # Errors
    /// As [`forget`](Self::forget).
    pub fn forget_all<L: AsRef<str>>(&self, namespace: &str, labels: &[L]) -> Result<usize, PrefixError> {
        let intent = |label: &L| Intent::Label(self.label_id(namespace, label.as_ref()));
        let intents: Vec<Intent> = labels.iter().map(intent).collect();
        self.forget_in(&self.namespace_folder(namespace), &intents)
    }

    /// Forgets a namespace, as [`forget`](Self::forget).
    ///
    /// # Errors
    /// As [`forget`](Self::forget).
    pub fn forget_namespace(&self, namespace: &str) -> Result<usize, PrefixError> {
        self.forget_in(&self.namespace_folder(namespace), &[Intent::All])
    }

    /// Forgets the blocks that were last restored or kept before a time, and those whose time is in the future: the
    /// clock was wrong, so their age is unknown. Otherwise as [`forget`](Self::forget).
    ///
    /// # Errors
    /// As [`forget`](Self::forget).
    pub fn forget_before(&self, time: SystemTime) -> Result<usize, PrefixError> {
        self.forget_everywhere(Intent::Before(nanos(time)))
    }

    /// Forgets everything, also what was written with another key. Files that are not the store's stay. Otherwise as
    /// [`forget`](Self::forget).
    ///
    /// # Errors
    /// As [`forget`](Self::forget).
    pub fn clear(&self) -> Result<usize, PrefixError> {
        let n_removed = self.forget_everywhere(Intent::All)?;
        let _changing = self.lock_changes()?;
        self.remove_others()?;
        Ok(n_removed)
    }

    /// Removes the folders of other versions and keys.
    fn remove_others(&self) -> Result<(), PrefixError> {
        let is_other = |name: &str| {
            let Some((version, key)) = name.strip_prefix('v').and_then(|rest| rest.split_once('-')) else {
                return false;
            };
            version.parse::<u32>().is_ok() && Id::parse(key).is_some() && self.root.join(name) != self.folder
        };
        for name in self.disk.list_kind(&self.root, Kind::Folder).map_err(io_error("list", &self.root))? {
            if is_other(&name) {
                let path = self.root.join(name);
                self.disk.remove_all(&path).map_err(io_error("remove", &path))?;
            }
        }
        Ok(())
    }

    fn forget_everywhere(&self, intent: Intent) -> Result<usize, PrefixError> {
        self.trees()?.iter().try_fold(0, |n, tree| Ok(n + self.forget_in(&tree.folder, &[intent])?))
    }

    fn forget_in(&self, folder: &Path, intents: &[Intent]) -> Result<usize, PrefixError> {
        let Some(_changing) = unless_gone(self.lock_changes().map(Some))? else { return Ok(0) };
        let tree = Tree::list(&*self.disk, folder)?;
        let is_empty =
            tree.blocks.is_empty() && tree.partials.is_empty() && tree.labels.is_empty() && !tree.has_seen;
        if is_empty && tree.intents.is_empty() {
            return Ok(0);
        }
        let used: HashSet<Id> = tree.labels.values().flatten().copied().collect();
        // The first is carried out in any case: it also removes files that are being written.
        let is_due = |(at, intent): &(usize, &Intent)| {
            *at == 0 || !matches!(intent, Intent::Label(label) if !used.contains(label))
        };
        let due: Vec<Intent> = intents.iter().enumerate().filter(is_due).map(|(_, &intent)| intent).collect();
        // From here on, every open finishes them.
        for intent in &due {
            let path = folder.join(intent.to_string());
            let stated = self.disk.create(&path).and_then(|file| file.sync());
            stated.map_err(io_error("write", &path))?;
        }
        self.disk.sync_dir(folder).map_err(io_error("sync", folder))?;
        self.finish(&tree, &due)
    }

    /// Forgets, durably, and removes the intents, which stay after an error. Returns the number of removed blocks.
    /// The folder is locked, so one round is enough: a process that is writing a block will find its file, or the block
    /// before it, removed.
    fn finish(&self, tree: &Tree, intents: &[Intent]) -> Result<usize, PrefixError> {
        let (disk, folder) = (&*self.disk, &tree.folder);
        let sync = || disk.sync_dir(folder).map_err(io_error("sync", folder));
        let mut victims = self.victims(tree, intents)?;
        victims.extend(tree.orphans());
        let partials: Vec<Result<(), PrefixError>> = tree
            .partials
            .iter()
            .map(|(partial, _)| partial)
            .chain(&tree.copies)
            .map(|name| remove(disk, &folder.join(name)))
            .collect();
        let removed = tree.remove(disk, &victims);
        // A hash of what is forgotten may be among the others.
        remove(disk, &folder.join(SEEN))?;
        partials.into_iter().collect::<Result<(), PrefixError>>()?;
        let n_removed = removed?;
        tree.remove_stale_labels(disk)?;
        sync()?;
        intents.iter().try_for_each(|intent| remove(disk, &folder.join(intent.to_string())))?;
        sync()?;
        if intents.contains(&Intent::All) {
            // Fails if another process writes something there again.
            let _ = disk.remove_dir(folder);
        }
        Ok(n_removed)
    }

    fn victims(&self, tree: &Tree, intents: &[Intent]) -> Result<HashSet<Id>, PrefixError> {
        let now = nanos(self.now());
        let (mut chosen, mut forgotten) = (Vec::new(), HashSet::new());
        for &intent in intents {
            match intent {
                Intent::All => chosen.extend(tree.blocks.keys()),
                Intent::Label(label) => drop(forgotten.insert(label)),
                Intent::Before(time) => {
                    for entry in tree.blocks.values() {
                        if self.stat(tree, entry)?.is_some_and(|(_, used_at)| used_at < time || used_at > now)
                        {
                            chosen.push(entry.id);
                        }
                    }
                }
            }
        }
        let labelled = tree.labels.iter().filter(|(_, labels)| !labels.is_disjoint(&forgotten));
        chosen.extend(labelled.map(|(block, _)| block));
        Ok(tree.with_descendants(chosen))
    }

    /// Bytes and time of use of a block's file; `None` if it is gone.
    pub(super) fn stat(&self, tree: &Tree, entry: &Entry) -> Result<Option<(u64, u64)>, PrefixError> {
        let path = tree.path(entry);
        let found = if_there(self.disk.stat(&path)).map_err(io_error("read", &path))?;
        Ok(found.map(|(bytes, time)| (bytes, nanos(time))))
    }

    /// Bytes that this store has evicted since it was opened, so that the files take at most
    /// [`max_bytes`](super::PrefixOptions::max_bytes).
    pub fn evicted_bytes(&self) -> u64 {
        self.evicted_bytes.load(Ordering::Relaxed)
    }

    /// The namespaces of the folder.
    pub(super) fn trees(&self) -> Result<Vec<Tree>, PrefixError> {
        let names = list(&*self.disk, &self.folder, Kind::Folder)?;
        let folders =
            names.iter().filter(|name| Id::parse(name).is_some()).map(|name| self.folder.join(name));
        folders.map(|folder| Tree::list(&*self.disk, &folder)).collect()
    }

    /// With the folder locked, removes blocks until `needed` more bytes fit, the least recently used first, none before those that follow it,
    /// and none of `kept`. Returns the bytes that fit, at most `needed`.
    pub(super) fn make_room(&self, needed: u64, kept: &HashSet<Id>) -> Result<u64, PrefixError> {
        let trees = self.trees()?;
        let now = nanos(self.now());
        // (time, blocks after the first, bytes, tree, id)
        let mut blocks = Vec::new();
        let mut total = 0u64;
        for (tree_idx, tree) in trees.iter().enumerate() {
            total += tree.labels.values().map(|labels| labels.len() as u64 * LABEL_BYTES).sum::<u64>();
            let mut entries: Vec<&Entry> = tree.blocks.values().collect();
            entries.sort_by_key(|entry| Reverse(entry.index));
            // The newest use of a block or of one that follows it.
            let mut newest: HashMap<Id, u64> = HashMap::new();
            for entry in entries {
                let Some((bytes, used_at)) = self.stat(tree, entry)? else { continue };
                // A time in the future says nothing: the clock was wrong.
                let own = newest.get(&entry.id).copied().unwrap_or(0).max(used_at.min(now));
                let of_parent = newest.entry(entry.parent).or_default();
                *of_parent = own.max(*of_parent);
                total += bytes;
                let bytes = bytes + tree.labels_of(entry.id).count() as u64 * LABEL_BYTES;
                blocks.push((own, Reverse(entry.index), bytes, tree_idx, entry.id));
            }
            if tree.has_seen {
                total += self.disk.stat(&tree.folder.join(SEEN)).map_or(0, |(bytes, _)| bytes);
            }
            for (partial, _) in &tree.partials {
                total += self.disk.stat(&tree.folder.join(partial)).map_or(0, |(bytes, _)| bytes);
            }
        }
        blocks.sort_unstable();
        let needed = needed.min(self.max_bytes);
        let (mut victims, mut evicted) = (vec![HashSet::new(); trees.len()], 0);
        for (_, _, bytes, tree_idx, id) in blocks {
            if total <= self.max_bytes - needed {
                break;
            }
            if !kept.contains(&id) {
                victims[tree_idx].insert(id);
                total = total.saturating_sub(bytes);
                evicted += bytes;
            }
        }
        for (tree, victims) in trees.iter().zip(&victims) {
            tree.remove(&*self.disk, victims)?;
        }
        self.evicted_bytes.fetch_add(evicted, Ordering::Relaxed);
        Ok(needed.min(self.max_bytes.saturating_sub(total)))
    }

    /// Finishes and removes what killed processes left, and evicts.
    pub(super) fn clean_up(&self) -> Result<(), PrefixError> {
        let disk = &*self.disk;
        let mut alive = HashMap::from([(self.id, true)]);
        let _changing = self.lock_changes()?;
        for mut tree in self.trees()? {
            if !tree.intents.is_empty() {
                self.finish(&tree, &tree.intents)?;
                tree = Tree::list(disk, &tree.folder)?;
            }
            for (partial, store) in &tree.partials {
                if !*alive.entry(*store).or_insert_with(|| self.is_alive(*store)) {
                    remove(disk, &tree.folder.join(partial))?;
                }
            }
            for copy in &tree.copies {
                remove(disk, &tree.folder.join(copy))?;
            }
            tree.remove(disk, &tree.orphans())?;
            tree.remove_stale_labels(disk)?;
        }
        self.remove_others()?;
        for name in disk.list_kind(&self.root, Kind::File).map_err(io_error("list", &self.root))? {
            if let Some(store) = name.strip_suffix(".lock").and_then(Id::parse) {
                alive.entry(store).or_insert_with(|| self.is_alive(store));
            }
        }
        self.make_room(0, &HashSet::new())?;
        Ok(())
    }

    /// Whether a store's process lives: it holds its lock. Otherwise its lock file is removed.
    fn is_alive(&self, store: Id) -> bool {
        let path = self.root.join(lock_name(store));
        if matches!(if_there(self.disk.stat(&path)), Ok(None)) {
            return false;
        }
        // A file system without locks cannot tell.
        let is_alive = !self.disk.lock(&path).is_ok_and(|lock| lock.is_some());
        if !is_alive {
            let _ = self.disk.remove_file(&path);
        }
        is_alive
    }
}
