//! A disk in memory that fails at chosen operations, and loses unsynced data in a crash.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use super::disk::{Disk, Kind, SealedDisk};
use crate::disk_file::DiskFile;
use crate::seal::Seal;

/// The effect of a crash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Crash {
    /// The process was killed: all writes are kept.
    KeepsAll,
    /// The power failed: unsynced contents and names are lost.
    LosesUnsynced,
    /// The power failed, and one half of each file's unsynced contents was written.
    Tears,
}

#[derive(Clone, Default, Debug)]
pub(crate) struct MemDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Default, Debug)]
struct State {
    files: Vec<Contents>,
    folders: Vec<PathBuf>,
    names: BTreeMap<PathBuf, usize>,
    durable_names: BTreeMap<PathBuf, usize>,
    used_at: BTreeMap<PathBuf, SystemTime>,
    bytes_max: Option<usize>,
    locked: Arc<Mutex<BTreeSet<PathBuf>>>,
    is_read_only: bool,
    /// Folders that cannot be listed.
    unreadable: Vec<PathBuf>,
    /// Operations that change something, so far, and the ones that fail.
    n_ops: usize,
    fails: Option<Fails>,
}

#[derive(Clone, Default, Debug)]
struct Contents {
    now: Vec<u8>,
    durable: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fails {
    /// Only the operation of this number.
    Once(usize),
    /// This operation and all later ones, as after the end of the process or the machine.
    From(usize),
}

impl MemDisk {
    /// The disk without encryption.
    pub(super) fn plain(&self) -> SealedDisk {
        SealedDisk { disk: Box::new(self.clone()), seal: Seal::default() }
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn fail(&self, fails: Option<Fails>) {
        let mut state = self.lock_state();
        (state.n_ops, state.fails) = (0, fails);
    }

    pub(crate) fn n_ops(&self) -> usize {
        self.lock_state().n_ops
    }

    /// Refuses every change from now on, as a folder without write permission does.
    pub(crate) fn set_read_only(&self) {
        self.lock_state().is_read_only = true;
    }

    /// Refuses to list these folders from now on.
    pub(crate) fn set_unreadable(&self, folders: Vec<PathBuf>) {
        self.lock_state().unreadable = folders;
    }

    pub(crate) fn set_bytes_max(&self, bytes_max: usize) {
        self.lock_state().bytes_max = Some(bytes_max);
    }

    pub(crate) fn used_bytes(&self) -> usize {
        self.lock_state().used_bytes()
    }

    /// Simulates a crash: keeps only the contents visible to the next process.
    pub(crate) fn crash(&self, crash: Crash) {
        let mut state = self.lock_state();
        let State { files, names, durable_names, fails, locked, .. } = &mut *state;
        (*fails, *locked) = (None, Arc::default());
        if crash == Crash::KeepsAll {
            return;
        }
        names.clone_from(durable_names);
        for Contents { now, durable } in files {
            let kept = match crash {
                Crash::Tears => (durable.len() + now.len()) / 2,
                _ => durable.len(),
            };
            let unsynced = now.get(durable.len()..kept.min(now.len())).unwrap_or_default().to_vec();
            durable.extend(unsynced);
            now.clone_from(durable);
        }
    }

    pub(crate) fn contents(&self, path: &Path) -> Vec<u8> {
        let state = self.lock_state();
        state.files[state.names[path]].now.clone()
    }

    pub(crate) fn put(&self, path: &Path, bytes: &[u8]) {
        let contents = Contents { now: bytes.to_vec(), durable: bytes.to_vec() };
        let mut state = self.lock_state();
        let file = state.files.len();
        state.files.push(contents);
        state.names.insert(path.to_owned(), file);
        state.durable_names.insert(path.to_owned(), file);
    }

    pub(crate) fn paths(&self) -> Vec<PathBuf> {
        self.lock_state().names.keys().cloned().collect()
    }
}

impl State {
    /// Counts a changing operation. `Err` if it fails.
    fn op(&mut self) -> io::Result<()> {
        let op = self.n_ops;
        self.n_ops += 1;
        if self.is_read_only {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let fails = match self.fails {
            Some(Fails::Once(at)) => op == at,
            Some(Fails::From(at)) => op >= at,
            None => false,
        };
        if fails { Err(io::Error::other(format!("operation {op} fails"))) } else { Ok(()) }
    }

    fn used_bytes(&self) -> usize {
        self.names.values().map(|&file| self.files[file].now.len()).sum()
    }

    fn find(&self, path: &Path) -> io::Result<usize> {
        self.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

impl Disk for MemDisk {
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.op()?;
        if !state.folders.iter().any(|folder| folder == path) {
            state.folders.push(path.to_owned());
        }
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<String>> {
        let state = self.lock_state();
        if state.unreadable.iter().any(|folder| folder == path) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        if !state.folders.iter().any(|folder| folder.starts_with(path)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let children = state.names.keys().chain(&state.folders).filter_map(|name| {
            name.strip_prefix(path).ok()?.components().next()?.as_os_str().to_str().map(str::to_owned)
        });
        let mut children: Vec<String> = children.collect();
        children.sort();
        children.dedup();
        Ok(children)
    }

    fn list_kind(&self, path: &Path, kind: Kind) -> io::Result<Vec<String>> {
        let mut names = self.list(path)?;
        let state = self.lock_state();
        let kind_of = |name: &String| {
            if state.names.contains_key(&path.join(name)) { Kind::File } else { Kind::Folder }
        };
        names.retain(|name| kind_of(name) == kind);
        Ok(names)
    }

    fn remove_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.op()?;
        state.names.retain(|name, _| !name.starts_with(path));
        state.folders.retain(|folder| !folder.starts_with(path));
        Ok(())
    }

    fn open(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let file = self.lock_state().find(path)?;
        Ok(Box::new(MemFile { disk: self.clone(), file }))
    }

    fn open_to_write(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        if self.lock_state().is_read_only {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        self.open(path)
    }

    fn create(&self, path: &Path) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.lock_state();
        state.op()?;
        let file = state.files.len();
        state.files.push(Contents::default());
        state.names.insert(path.to_owned(), file);
        Ok(Box::new(MemFile { disk: self.clone(), file }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.op()?;
        let file = state.names.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.names.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.op()?;
        state.names.remove(path).map(|_| ()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.op()?;
        if state.names.keys().any(|name| name.starts_with(path)) {
            return Err(io::ErrorKind::DirectoryNotEmpty.into());
        }
        state.folders.retain(|folder| folder != path);
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.op()?;
        let State { names, durable_names, .. } = &mut *state;
        durable_names.retain(|name, _| name.parent() != Some(path));
        let here = names.iter().filter(|(name, _)| name.parent() == Some(path));
        durable_names.extend(here.map(|(name, &file)| (name.clone(), file)));
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Any + Send + Sync>>> {
        let mut state = self.lock_state();
        state.op()?;
        let locked = Arc::clone(&state.locked);
        let is_free = locked.lock().unwrap().insert(path.to_owned());
        Ok(is_free.then(|| Box::new(Unlock(locked, path.to_owned())) as _))
    }

    fn stat(&self, path: &Path) -> io::Result<(u64, SystemTime)> {
        let state = self.lock_state();
        let len = state.files[state.find(path)?].now.len() as u64;
        Ok((len, state.used_at.get(path).copied().unwrap_or(SystemTime::UNIX_EPOCH)))
    }

    fn set_time(&self, path: &Path, time: SystemTime) {
        self.lock_state().used_at.insert(path.to_owned(), time);
    }
}

struct Unlock(Arc<Mutex<BTreeSet<PathBuf>>>, PathBuf);

impl Drop for Unlock {
    fn drop(&mut self) {
        self.0.lock().unwrap().remove(&self.1);
    }
}

#[derive(Debug)]
struct MemFile {
    disk: MemDisk,
    file: usize,
}

impl DiskFile for MemFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk.lock_state().files[self.file].now.len() as u64)
    }

    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<()> {
        let state = self.disk.lock_state();
        let found =
            state.files[self.file].now.get(offset as usize..).and_then(|from| from.get(..bytes.len()));
        bytes.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.disk.lock_state();
        let failed = state.op();
        let mut n_written = if failed.is_ok() { bytes.len() } else { bytes.len() / 2 };
        let room = state.bytes_max.unwrap_or(usize::MAX).saturating_sub(state.used_bytes());
        let now = &mut state.files[self.file].now;
        let grows = (offset as usize + n_written).saturating_sub(now.len());
        let is_full = grows > room;
        n_written -= grows.saturating_sub(room).min(n_written);
        let end = offset as usize + n_written;
        now.resize(now.len().max(end), 0);
        now[offset as usize..end].copy_from_slice(&bytes[..n_written]);
        failed?;
        if is_full { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.disk.lock_state();
        state.op()?;
        state.files[self.file].now.resize(len as usize, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.disk.lock_state();
        state.op()?;
        let contents = &mut state.files[self.file];
        contents.durable.clone_from(&contents.now);
        Ok(())
    }
}
