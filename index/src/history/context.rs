//! The parts of a store that all its namespaces use.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::cache::PageCache;
use super::disk::SealedDisk;
use super::error::HistoryError;
use super::options::HistoryOptions;
use super::segment::Segment;
use crate::disk_file::if_there;

/// The data shared by all parts of a store.
#[derive(Debug)]
pub(super) struct Context {
    disk: SealedDisk,
    pub(super) options: HistoryOptions,
    cache: Mutex<PageCache>,
    stopped: AtomicBool,
}

impl Context {
    pub(super) fn new(disk: SealedDisk, options: HistoryOptions) -> Self {
        let cache = Mutex::new(PageCache::new(options.cache_bytes));
        Self { disk, options, cache, stopped: AtomicBool::new(false) }
    }

    pub(super) fn disk(&self) -> &SealedDisk {
        &self.disk
    }

    /// The cache contains only pages, each complete or absent, so a panic in another thread does no harm.
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

    pub(super) fn check_running(&self) -> Result<(), HistoryError> {
        if self.stopped.load(Ordering::Relaxed) { Err(HistoryError::Stopped) } else { Ok(()) }
    }

    /// Removes files that must not count after a later step has failed. If the removal fails too, the store stops,
    /// and the next open decides which files count.
    pub(super) fn undo(&self, folder: &Path, paths: &[PathBuf]) {
        let removed = paths.iter().try_for_each(|path| if_there(self.disk.remove_file(path)).map(drop));
        if removed.and_then(|()| self.disk.sync_dir(folder)).is_err() {
            self.stop();
        }
    }
}

/// A panic in another thread during a change of a namespace leaves its files complete. At worst, the data in memory
/// is older than the files.
pub(super) fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
