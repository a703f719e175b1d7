//! The names of files, and the folder of a namespace as a tree of blocks. Names alone tell which block follows which and
//! which labels it has, so forgetting and eviction read no file, and damaged files do not stop them.

use std::cmp::Reverse;
use std::collections::hash_map::Entry as Slot;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::PrefixError;
use super::error::io_error;
use super::seal::Id;
use crate::disk_file::if_there;
use crate::history::disk::{Disk, Kind, PARTIAL};

/// Tokens of a whole block. (A multiple of the positions that the KV cache stores together, so that blocks are copied
/// as they are.)
pub(super) const BLOCK_TOKENS: usize = 64;

/// Bytes that a label counts: an entry of a folder and an inode.
pub(super) const LABEL_BYTES: u64 = 512;

/// The name of a block's file: `INDEX-PARENT-ID-TOKENS`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Entry {
    /// Blocks before it.
    pub(super) index: u32,
    pub(super) parent: Id,
    pub(super) id: Id,
    /// 1..=[`BLOCK_TOKENS`]
    pub(super) n_tokens: usize,
}

impl Entry {
    fn parse(name: &str) -> Option<Self> {
        let mut words = name.split('-');
        let index = words.next()?.parse().ok()?;
        let (parent, id) = (Id::parse(words.next()?)?, Id::parse(words.next()?)?);
        let n_tokens = words.next()?.parse().ok().filter(|n| (1..=BLOCK_TOKENS).contains(n))?;
        let entry = Entry { index, parent, id, n_tokens };
        (entry.to_string() == name).then_some(entry)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Entry { index, parent, id, n_tokens } = self;
        write!(f, "{index}-{parent}-{id}-{n_tokens}")
    }
}

/// Something to forget. Its file exists until no file holds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Intent {
    /// Blocks with a label.
    Label(Id),
    /// All blocks.
    All,
    /// Blocks that were last used before a time, in ns since 1970.
    Before(u64),
}

impl Intent {
    fn parse(name: &str) -> Option<Self> {
        let rest = name.strip_prefix("forget-")?;
        let intent = match rest.strip_prefix("before-") {
            Some(time) => Intent::Before(time.parse().ok()?),
            None if rest == "all" => Intent::All,
            None => Intent::Label(Id::parse(rest)?),
        };
        (intent.to_string() == name).then_some(intent)
    }
}

impl fmt::Display for Intent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Intent::Label(label) => write!(f, "forget-{label}"),
            Intent::All => f.write_str("forget-all"),
            Intent::Before(time) => write!(f, "forget-before-{time}"),
        }
    }
}

/// The name of an empty file that gives a block a label.
pub(super) fn label_name(block: Id, label: Id) -> String {
    format!("{block}.{label}")
}

/// The name of the list of blocks that were seen and are not stored.
pub(super) const SEEN: &str = "seen";

/// The name of a file that is being written by a store.
pub(super) fn partial_name(store: Id, number: u64) -> String {
    format!("{store}-{number}{PARTIAL}")
}

/// The store in the name of a file that is being written.
fn parse_partial(name: &str) -> Option<Id> {
    let (store, number) = name.strip_suffix(PARTIAL)?.split_once('-')?;
    number.parse::<u64>().ok()?;
    Id::parse(store)
}

fn parse_label(name: &str) -> Option<(Id, Id)> {
    let (block, label) = name.split_once('.')?;
    Some((Id::parse(block)?, Id::parse(label)?))
}

/// The files in the folder of a namespace, by their names.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) folder: PathBuf,
    pub(super) blocks: HashMap<Id, Entry>,
    children: HashMap<Id, Vec<Id>>,
    /// The labels of each block.
    pub(super) labels: HashMap<Id, HashSet<Id>>,
    /// Names of files that are being written, with their stores.
    pub(super) partials: Vec<(String, Id)>,
    pub(super) intents: Vec<Intent>,
    /// Whether there is a list of blocks that were seen.
    pub(super) has_seen: bool,
    /// Second names of a block: copies that the store has not made. They are forgotten with any other.
    pub(super) copies: Vec<String>,
    pub(super) foreign: Vec<String>,
}

impl Tree {
    /// Lists a folder; without files if it does not exist.
    pub(super) fn list(disk: &dyn Disk, folder: &Path) -> Result<Self, PrefixError> {
        // Folders, links and pipes are not the store's, whatever their names.
        let mut foreign = list(disk, folder, Kind::Folder)?;
        foreign.extend(list(disk, folder, Kind::Other)?);
        let names = list(disk, folder, Kind::File)?;
        let mut tree = Tree { folder: folder.to_owned(), foreign, ..Tree::default() };
        for name in names {
            if let Some(entry) = Entry::parse(&name) {
                match tree.blocks.entry(entry.id) {
                    Slot::Occupied(_) => tree.copies.push(name),
                    Slot::Vacant(slot) => {
                        tree.children.entry(entry.parent).or_default().push(entry.id);
                        slot.insert(entry);
                    }
                }
            } else if let Some((block, label)) = parse_label(&name) {
                tree.labels.entry(block).or_default().insert(label);
            } else if let Some(store) = parse_partial(&name) {
                tree.partials.push((name, store));
            } else if name == SEEN {
                tree.has_seen = true;
            } else if let Some(intent) = Intent::parse(&name) {
                tree.intents.push(intent);
            } else {
                tree.foreign.push(name);
            }
        }
        Ok(tree)
    }

    pub(super) fn path(&self, entry: &Entry) -> PathBuf {
        self.folder.join(entry.to_string())
    }

    /// The blocks that follow `parent`, which has `index` blocks before its end.
    pub(super) fn children(&self, parent: Id, index: u32) -> impl Iterator<Item = Entry> {
        let ids = self.children.get(&parent).map_or(&[][..], Vec::as_slice);
        ids.iter().map(|id| self.blocks[id]).filter(move |entry| entry.index == index)
    }

    /// The labels of a block.
    pub(super) fn labels_of(&self, block: Id) -> impl Iterator<Item = Id> {
        self.labels.get(&block).into_iter().flatten().copied()
    }

    /// These blocks and all that follow them.
    pub(super) fn with_descendants(&self, blocks: impl IntoIterator<Item = Id>) -> HashSet<Id> {
        let mut found = HashSet::new();
        let mut open: Vec<Id> = blocks.into_iter().filter(|id| self.blocks.contains_key(id)).collect();
        while let Some(id) = open.pop() {
            if found.insert(id) {
                open.extend(self.children.get(&id).into_iter().flatten());
            }
        }
        found
    }

    /// Blocks that follow no block, and all that follow them: no prompt reaches them.
    pub(super) fn orphans(&self) -> HashSet<Id> {
        let has_parent = |entry: &Entry| {
            entry.index == 0
                || self.blocks.get(&entry.parent).is_some_and(|parent| parent.index + 1 == entry.index)
        };
        self.with_descendants(self.blocks.values().filter(|entry| !has_parent(entry)).map(|entry| entry.id))
    }

    /// Removes blocks, the ends of prefixes first, then their labels. Goes on after an error
    /// and reports the first. Returns the number of removed blocks.
    ///
    /// The removal of the blocks is durable before that of the labels begins, so no failure leaves a block without its
    /// labels. A block that cannot be removed keeps its own.
    pub(super) fn remove(&self, disk: &dyn Disk, blocks: &HashSet<Id>) -> Result<usize, PrefixError> {
        let mut entries: Vec<&Entry> = blocks.iter().filter_map(|id| self.blocks.get(id)).collect();
        entries.sort_by_key(|entry| Reverse(entry.index));
        let mut failed = None;
        let mut gone = Vec::new();
        for entry in entries {
            match remove(disk, &self.path(entry)) {
                Ok(()) => gone.push(entry.id),
                Err(error) => drop(failed.get_or_insert(error)),
            }
        }
        match self.remove_labels(disk, &gone) {
            Err(error) => Err(failed.unwrap_or(error)),
            Ok(()) => failed.map_or(Ok(gone.len()), Err),
        }
    }

    /// Removes labels whose block does not exist: of killed processes.
    pub(super) fn remove_stale_labels(&self, disk: &dyn Disk) -> Result<(), PrefixError> {
        let stale: Vec<Id> = self.labels.keys().filter(|id| !self.blocks.contains_key(id)).copied().collect();
        self.remove_labels(disk, &stale)
    }

    /// Removes the labels of removed blocks, after their removal is durable.
    fn remove_labels(&self, disk: &dyn Disk, gone: &[Id]) -> Result<(), PrefixError> {
        let of =
            |&block: &Id| self.labels_of(block).map(move |label| self.folder.join(label_name(block, label)));
        let paths: Vec<PathBuf> = gone.iter().flat_map(of).collect();
        if paths.is_empty() {
            return Ok(());
        }
        disk.sync_dir(&self.folder).map_err(io_error("sync", &self.folder))?;
        let removed: Vec<Result<(), PrefixError>> = paths.iter().map(|path| remove(disk, path)).collect();
        removed.into_iter().collect()
    }
}

/// Removes a file, if it exists.
pub(super) fn remove(disk: &dyn Disk, path: &Path) -> Result<(), PrefixError> {
    if_there(disk.remove_file(path)).map(drop).map_err(io_error("remove", path))
}

/// Names of one kind in a folder; none if it does not exist.
pub(super) fn list(disk: &dyn Disk, folder: &Path, kind: Kind) -> Result<Vec<String>, PrefixError> {
    Ok(if_there(disk.list_kind(folder, kind)).map_err(io_error("list", folder))?.unwrap_or_default())
}

/// A time in ns since 1970, 0 before.
pub(super) fn nanos(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos().try_into().unwrap_or(u64::MAX))
}
