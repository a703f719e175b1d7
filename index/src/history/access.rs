//! The role of a process in a folder (writer, hand-in or reader), and the contents of the folder on opening.

use std::any::Any;
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::{Arc, RwLock};

use super::changes::put_file;
use super::context::{Context, write};
use super::disk::SealedDisk;
use super::error::{HistoryError, io_error};
use super::inbox::Inbox;
use super::key::{HistoryKey, decode_namespace, encode_namespace};
use super::log::read_all;
use super::namespace::{NAMESPACES_MAX, Namespace, Namespaces};
use super::pulled::{fleet_namespaces, read_pulled};
use super::report::LeftOut;
use crate::disk_file::if_there;
use crate::seal::{KEY_FILE, check_key, is_before_key};

/// The role of this process.
#[derive(Debug)]
pub(super) enum Role {
    /// The lock is released on drop.
    Write {
        _lock: Box<dyn Any + Send + Sync>,
    },
    HandIn,
    Read {
        reason: Arc<HistoryError>,
    },
}

/// The role of a process in the folder of a [`HistoryLog`](super::HistoryLog).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Access {
    /// This process writes: appends go to the log.
    Write,
    /// Another process writes: appends are handed in, and the writer moves them to the log.
    HandIn,
    /// The folder cannot be written: appends are refused.
    Read {
        /// The reason.
        reason: Arc<HistoryError>,
    },
}

/// The contents of a folder.
pub(super) struct Loaded {
    pub(super) namespaces: Namespaces,
    pub(super) left_out: Vec<LeftOut>,
    pub(super) newest_id: u64,
}

/// Maximum length of the file that notes the key.
const KEY_BYTES_MAX: u64 = 4096;

/// The lock file lies beside the namespaces. Folder names of namespaces contain no dot.
const LOCK: &str = ".lock";

/// Opens a model's folder as its writer, or for reading if another process is the writer.
pub(super) fn enter(
    context: &Context,
    folder: &Path,
    key: HistoryKey,
) -> Result<(Role, Loaded), HistoryError> {
    let locked = lock_to_write(context.disk(), folder);
    let is_new = check_store_key(context.disk(), folder)?;
    let role = match locked {
        Ok(Some(lock)) => match load_to_write(context, folder, key, is_new) {
            Ok(loaded) => return Ok((Role::Write { _lock: lock }, loaded)),
            // For example on a full disk. The responses can still be read.
            Err(reason) => Role::Read { reason: Arc::new(reason) },
        },
        Ok(None) => Role::HandIn,
        Err(reason) => Role::Read { reason: Arc::new(reason) },
    };
    match (load_to_read(context, folder, key), role) {
        (Ok(loaded), role) => Ok((role, loaded)),
        (Err(_), Role::Read { reason }) => Err(Arc::into_inner(reason).expect("not shared yet")),
        (Err(error), _) => Err(error),
    }
}

fn lock_to_write(
    disk: &SealedDisk,
    folder: &Path,
) -> Result<Option<Box<dyn Any + Send + Sync>>, HistoryError> {
    // The named folder too: in one of another user, everything could be exchanged.
    for folder in folder.parent().into_iter().chain([folder]) {
        disk.create_dir(folder).map_err(io_error("create", folder))?;
    }
    let path = folder.join(LOCK);
    disk.lock(&path).map_err(io_error("lock", &path))
}

/// Compares the key with the folder. Returns whether the history is new, and its writer is to note the key.
fn check_store_key(disk: &SealedDisk, folder: &Path) -> Result<bool, HistoryError> {
    // Before the key is read: it is written first.
    // What is no folder is reported by the lock.
    let is_none =
        |error: &std::io::Error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory);
    let has_files = match disk.list(folder) {
        Err(error) if is_none(&error) => false,
        names => names.map_err(io_error("read", folder))?.iter().any(|name| !is_before_key(name)),
    };
    let path = folder.join(KEY_FILE);
    let found = match disk.open(&path) {
        Err(error) if is_none(&error) => None,
        file => Some(read_all(&*file.map_err(io_error("open", &path))?, &path, KEY_BYTES_MAX)?),
    };
    check_key(disk.seal(), found, has_files)
        .map_err(|problem| HistoryError::Key { path: folder.to_owned(), problem })
}

fn note_key(disk: &SealedDisk, folder: &Path) -> Result<(), HistoryError> {
    let path = folder.join(KEY_FILE);
    let blob = disk.seal().key_blob().map_err(io_error("encrypt", &path))?;
    put_file(disk, &path, |file| file.write_at(&blob, 0)).map(drop)
}

fn load_to_write(
    context: &Context,
    folder: &Path,
    key: HistoryKey,
    is_new: bool,
) -> Result<Loaded, HistoryError> {
    let disk = context.disk();
    if is_new {
        note_key(disk, folder)?;
    }
    let inbox = Inbox { disk, folder, key };
    inbox.remove_unfinished()?;
    let pulled = fleet_namespaces(disk, folder)?;
    let names = disk.list(folder).map_err(io_error("read", folder))?;
    let names =
        names.into_iter().chain(pulled.iter().map(|name| encode_namespace(name))).collect::<BTreeSet<_>>();
    load((context, folder, key, true), names, |name, left_out| {
        let path = folder.join(encode_namespace(name));
        if pulled.iter().any(|pulled| pulled == name) {
            disk.create_dir(&path).map_err(io_error("create", &path))?;
            return Namespace::open(context, path, key.owner(name), left_out).map(Some);
        }
        match disk.list(&path).map_err(io_error("read", &path)) {
            Ok(files) if files.is_empty() => {
                // The empty folder of a removed namespace, or of one without a first append.
                let _ = disk.remove_dir(&path);
                Ok(None)
            }
            Ok(_) => Namespace::open(context, path, key.owner(name), left_out).map(Some),
            // The other namespaces are used.
            Err(error) => {
                left_out.push(LeftOut::of(error)?);
                Ok(None)
            }
        }
    })
}

fn load_to_read(context: &Context, folder: &Path, key: HistoryKey) -> Result<Loaded, HistoryError> {
    let disk = context.disk();
    let names = match if_there(disk.list(folder)).map_err(io_error("read", folder))? {
        Some(names) => names,
        // A model without answers, in a folder of histories.
        None => {
            let parent = folder.parent().expect("a model's folder lies in another");
            disk.list(parent).map_err(io_error("read", parent))?;
            Vec::new()
        }
    };
    // Read before the logs: a response that the writer moves meanwhile is then found twice and counted once.
    let mut handed_in = Inbox { disk, folder, key }.read()?;
    let more: Vec<String> = handed_in.by_namespace.keys().map(|name| encode_namespace(name)).collect();
    let pulled = fleet_namespaces(disk, folder)?;
    let pulled = pulled.iter().map(|name| encode_namespace(name));
    let names = names.into_iter().chain(more).chain(pulled).collect::<BTreeSet<_>>();
    let mut loaded = load((context, folder, key, false), names, |name, left_out| {
        let records = handed_in.by_namespace.remove(name).unwrap_or_default();
        let records = records.into_iter().map(|(record, _)| record).collect();
        let path = folder.join(encode_namespace(name));
        Namespace::open_to_read(context, path, key.owner(name), records, left_out).map(Some)
    })?;
    loaded.left_out.append(&mut handed_in.left_out);
    Ok(loaded)
}

/// Opens each folder whose name is a namespace's.
fn load(
    (context, folder, key, writes): (&Context, &Path, HistoryKey, bool),
    names: impl IntoIterator<Item = String>,
    mut open: impl FnMut(&str, &mut Vec<LeftOut>) -> Result<Option<Namespace>, HistoryError>,
) -> Result<Loaded, HistoryError> {
    let (mut namespaces, mut left_out, mut newest) = (Namespaces::new(), Vec::new(), 0);
    let open_all = || {
        for name in names.into_iter().filter_map(|name| decode_namespace(&name)) {
            if namespaces.len() >= NAMESPACES_MAX {
                return Err(HistoryError::TooManyNamespaces { max: NAMESPACES_MAX });
            }
            if let Some(mut namespace) = open(&name, &mut left_out)? {
                let found = (writes, &mut left_out);
                read_pulled(context, folder, &name, key.owner(&name), &mut namespace, found)?;
                newest = newest.max(namespace.newest_id());
                namespaces.insert(name, Arc::new(RwLock::new(namespace)));
            }
        }
        Ok(())
    };
    match open_all() {
        Ok(()) => Ok(Loaded { namespaces, left_out, newest_id: newest }),
        Err(error) => {
            namespaces.into_values().for_each(|namespace| write(&namespace).close(&mut context.cache()));
            Err(error)
        }
    }
}
