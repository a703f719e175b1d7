//! Moves segments between a history's folder and a store of objects.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use object_store::local::LocalFileSystem;
use object_store::path::{Path, PathPart};
use object_store::{Error as StoreError, ObjectMeta, ObjectStore, ObjectStoreExt, PutPayload};
use refrain_index::history::{ExportedSegment, SegmentName};
use refrain_index::internals::create_private_folder;
use refrain_index::{HistoryError, HistoryKey, HistoryLog, RecordId};
use tokio::runtime::Runtime;
use tokio::time::{Instant, timeout_at};
use url::Url;

use crate::{FleetError, FleetOptions, Transfer};

/// Hosts that share the frozen segments of their histories through a store of objects.
///
/// The calls block, each at most for its [time limit](FleetOptions::budget), and must not be made from asynchronous code.
/// The limit covers all waiting for the store, not the file system of the history.
#[derive(Debug)]
pub struct Fleet {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    options: FleetOptions,
    /// One thread, the caller's. `None` only while it is dropped.
    runtime: Option<Runtime>,
}

/// Maximum number of objects in a listing: 64 segments of each of 1,024 hosts.
const OBJECTS_MAX: usize = 1 << 16;

/// Maximum length of the object that has the time of a deletion: the digits of a `u64`.
const DELETED_BYTES_MAX: u64 = 20;

/// Attempts of a publish and of a deletion against changes by other hosts.
const ATTEMPTS: usize = 3;

/// A segment in the store.
#[derive(Debug)]
struct Stored {
    meta: ObjectMeta,
    /// The host's part of the path.
    host: String,
    name: SegmentName,
}

/// The deadline of one call.
#[derive(Clone, Copy, Debug)]
struct Deadline {
    at: Instant,
    budget: Duration,
}

impl Deadline {
    /// Waits for the store, up to the deadline.
    async fn wait<T>(self, work: impl Future<Output = T>) -> Result<T, FleetError> {
        timeout_at(self.at, work).await.map_err(|_| FleetError::OutOfTime { budget: self.budget })
    }

    /// As [`wait`](Self::wait), for an operation on an object.
    async fn object<T>(
        self,
        action: &'static str,
        object: &Path,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, FleetError> {
        self.wait(work).await?.map_err(|source| store_error(action, object, source))
    }
}

fn store_error(action: &'static str, object: &Path, source: StoreError) -> FleetError {
    FleetError::Store { action, object: object.to_string(), source: Box::new(source) }
}

impl Fleet {
    /// Opens a store by its address: a folder, or a URL that `object_store` knows (`file:///folder`, `s3://bucket/folder`).
    /// Settings of S3 have the names of its variables (`AWS_ENDPOINT`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, …), so they are
    /// usually `std::env::vars()`; others are ignored. Nothing is sent yet.
    ///
    /// # Errors
    /// The address names no store, the folder cannot be created, or the name of the host is too long or empty.
    pub fn connect(
        address: &str,
        settings: impl IntoIterator<Item = (String, String)>,
        options: FleetOptions,
    ) -> Result<Self, FleetError> {
        // The client of S3 takes the ciphers of the process. If the app has chosen others, they are used.
        #[cfg(feature = "s3")]
        let _ = rustls::crypto::ring::default_provider().install_default();
        let (store, prefix) = open(address, settings)
            .map_err(|source| FleetError::Address { address: address.to_owned(), source })?;
        Self::new(store, prefix, options)
    }

    /// A fleet in a folder of a store.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub fn new(store: Arc<dyn ObjectStore>, prefix: Path, options: FleetOptions) -> Result<Self, FleetError> {
        let max = FleetOptions::HOST_BYTES_MAX;
        let bytes = options.host.len();
        if !(1..=max).contains(&bytes) {
            return Err(FleetError::HostName { bytes, max });
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = Some(runtime.map_err(FleetError::Runtime)?);
        Ok(Fleet { store, prefix, options, runtime })
    }

    /// Makes this host's segments in the store equal to its history, in every namespace: uploads new ones, and deletes those
    /// that were merged or forgotten.
    ///
    /// Call [`HistoryLog::refresh`] before, if another process writes the history.
    pub fn publish(&self, history: &HistoryLog) -> Transfer {
        let mut done = Transfer::default();
        let moved = &mut done;
        if let Err(error) = self.block_on(move |deadline| self.publish_all(deadline, history, moved)) {
            done.failed.push(error);
        }
        done
    }

    /// Copies other hosts' segments of these namespaces into the history's folder, newest first, up to
    /// [`FleetOptions::cache_bytes`] and [`HistoryLog::PULLED_MAX`] of each namespace, and removes copies that are no longer in
    /// the store. Namespaces that were pulled before are pulled again. Processes draft from the copies after their next
    /// [`HistoryLog::maintain`].
    ///
    /// Every byte is checked before a copy gets its name.
    pub fn pull(&self, history: &HistoryLog, namespaces: &[&str]) -> Transfer {
        let mut done = Transfer::default();
        let moved = &mut done;
        let pulled = self.block_on(move |deadline| self.pull_all(deadline, history, namespaces, moved));
        if let Err(error) = pulled {
            done.failed.push(error);
        }
        done
    }

    /// Deletes a namespace of a model in the store, of all hosts, and leaves the time. Each host forgets its own responses up to
    /// that time, and its copies of others', at its next [`publish`](Self::publish) or [`pull`](Self::pull) and its writer's next
    /// [`HistoryLog::maintain`]. Returns the number of removed objects.
    ///
    /// # Errors
    /// Some objects may be left, except after [`FleetError::Store`] of the action `write`: then all are. The call may be repeated.
    pub fn delete(&self, key: HistoryKey, namespace: &str) -> Result<usize, FleetError> {
        self.block_on(|deadline| async move {
            let noted = self.deleted(deadline, key, namespace).await?.map_or(0, |deleted| deleted.0);
            let deleted = now_us().max(noted);
            let path = self.deleted_path(key, namespace);
            let text = PutPayload::from(deleted.to_string());
            deadline.object("write", &path, self.store.put(&path, text)).await?;
            let folder = self.namespace_path(key, namespace);
            let mut n_removed = 0;
            // Other hosts may be uploading; they look for the deletion when they are done.
            for _ in 0..ATTEMPTS {
                let found = self.list(deadline, &folder).await?;
                if found.is_empty() {
                    break;
                }
                for object in found {
                    self.remove(deadline, &object.location).await?;
                    n_removed += 1;
                }
            }
            Ok(n_removed)
        })
    }

    fn block_on<T, F: Future<Output = Result<T, FleetError>>>(
        &self,
        work: impl FnOnce(Deadline) -> F,
    ) -> Result<T, FleetError> {
        let runtime = self.runtime.as_ref().expect("there until it is dropped");
        let budget = self.options.budget;
        // Without a clock's end, a year.
        let at = Instant::now() + budget.min(Duration::from_secs(365 * 86_400));
        runtime.block_on(work(Deadline { at, budget }))
    }

    fn key_path(&self, key: HistoryKey) -> Path {
        self.prefix.clone().join(key.to_string())
    }

    fn namespace_path(&self, key: HistoryKey, namespace: &str) -> Path {
        self.key_path(key).join("namespaces").join(namespace)
    }

    fn hosts_path(&self, key: HistoryKey) -> Path {
        self.key_path(key).join("hosts").join(self.options.host.as_str())
    }

    fn deleted_path(&self, key: HistoryKey, namespace: &str) -> Path {
        self.key_path(key).join("deleted").join(namespace)
    }

    /// The objects below a folder; none if there is no such folder.
    async fn list(&self, deadline: Deadline, folder: &Path) -> Result<Vec<ObjectMeta>, FleetError> {
        let mut objects = self.store.list(Some(folder));
        let mut found = Vec::new();
        while let Some(object) = deadline.wait(objects.next()).await? {
            match object {
                Ok(_) if found.len() == OBJECTS_MAX => {
                    return Err(FleetError::TooMany { object: folder.to_string(), max: OBJECTS_MAX });
                }
                Ok(object) => found.push(object),
                Err(StoreError::NotFound { .. }) => break,
                Err(source) => return Err(store_error("list", folder, source)),
            }
        }
        Ok(found)
    }

    /// The segments below a folder of a namespace. Objects with other names are ignored.
    async fn segments(&self, deadline: Deadline, folder: &Path) -> Result<Vec<Stored>, FleetError> {
        let found = self.list(deadline, folder).await?;
        let stored = |meta: ObjectMeta| {
            let parts: Vec<PathPart<'_>> = meta.location.parts().collect();
            let [.., host, name] = &parts[..] else { return None };
            let (host, name) = (host.as_ref().to_owned(), SegmentName::parse(name.as_ref())?);
            drop(parts);
            Some(Stored { meta, host, name })
        };
        Ok(found.into_iter().filter_map(stored).collect())
    }

    /// The id up to which the responses of a namespace are deleted.
    async fn deleted(
        &self,
        deadline: Deadline,
        key: HistoryKey,
        namespace: &str,
    ) -> Result<Option<RecordId>, FleetError> {
        let path = self.deleted_path(key, namespace);
        let found = match deadline.wait(self.store.get(&path)).await? {
            Err(StoreError::NotFound { .. }) => return Ok(None),
            found => found.map_err(|source| store_error("read", &path, source))?,
        };
        let invalid = || FleetError::Deleted { object: path.to_string() };
        if found.meta.size > DELETED_BYTES_MAX {
            return Err(invalid());
        }
        // The store may send more than it states.
        let (mut body, mut text) = (found.into_stream(), Vec::new());
        while let Some(bytes) = deadline.wait(body.next()).await? {
            text.extend_from_slice(&bytes.map_err(|source| store_error("read", &path, source))?);
            if text.len() as u64 > DELETED_BYTES_MAX {
                return Err(invalid());
            }
        }
        let id = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
        id.map(RecordId).map(Some).ok_or_else(invalid)
    }

    async fn remove(&self, deadline: Deadline, object: &Path) -> Result<(), FleetError> {
        match deadline.wait(self.store.delete(object)).await? {
            Err(StoreError::NotFound { .. }) => Ok(()),
            removed => removed.map_err(|source| store_error("delete", object, source)),
        }
    }

    async fn publish_all(
        &self,
        deadline: Deadline,
        history: &HistoryLog,
        done: &mut Transfer,
    ) -> Result<(), FleetError> {
        let key = history.key();
        let own = self.hosts_path(key);
        let stats = history.stats().namespaces;
        let here: Vec<&str> =
            stats.iter().filter(|stats| stats.n_records > 0).map(|stats| &*stats.namespace).collect();
        let published = self.list(deadline, &own).await?;
        let marked: BTreeSet<&Path> = published.iter().map(|object| &object.location).collect();
        // What was forgotten goes first.
        let here_marks: BTreeSet<Path> = here.iter().map(|&name| own.clone().join(name)).collect();
        for gone in marked.iter().copied().filter(|&mark| !here_marks.contains(mark)) {
            let Some(namespace) = gone.parts().next_back() else { continue };
            let folder =
                self.key_path(key).join("namespaces").join(namespace).join(self.options.host.as_str());
            for object in self.list(deadline, &folder).await? {
                self.remove(deadline, &object.location).await?;
                done.n_removed += 1;
            }
            self.remove(deadline, gone).await?;
        }
        for namespace in here {
            let mark = own.clone().join(namespace);
            if !marked.contains(&mark) {
                deadline.object("write", &mark, self.store.put(&mark, PutPayload::new())).await?;
            }
            for _ in 0..ATTEMPTS {
                let deleted = self.deleted(deadline, key, namespace).await?;
                self.publish_namespace(deadline, history, namespace, deleted, done).await?;
                if self.deleted(deadline, key, namespace).await? == deleted {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn publish_namespace(
        &self,
        deadline: Deadline,
        history: &HistoryLog,
        namespace: &str,
        deleted: Option<RecordId>,
        done: &mut Transfer,
    ) -> Result<(), FleetError> {
        if let Some(deleted) = deleted {
            history.note_deleted(namespace, deleted)?;
        }
        let export = history.export(namespace, deleted)?;
        let folder = self.namespace_path(history.key(), namespace).join(self.options.host.as_str());
        let stored = self.segments(deadline, &folder).await?;
        let known: BTreeSet<SegmentName> = stored.iter().map(|stored| stored.name).collect();
        for ExportedSegment { name, path } in export.segments() {
            if known.contains(name) {
                done.n_kept += 1;
                continue;
            }
            let bytes = match read(path, name.bytes) {
                Ok(bytes) => bytes,
                // For example, a merge has replaced it meanwhile. The next publish has the new one.
                Err(error) => {
                    done.failed.push(error);
                    continue;
                }
            };
            let object = folder.clone().join(name.to_string());
            deadline.object("write", &object, self.store.put(&object, PutPayload::from(bytes))).await?;
            done.n_moved += 1;
            done.moved_bytes += name.bytes;
        }
        let here: BTreeSet<SegmentName> = export.segments().iter().map(|segment| segment.name).collect();
        for old in stored.iter().filter(|stored| !here.contains(&stored.name)) {
            self.remove(deadline, &old.meta.location).await?;
            done.n_removed += 1;
        }
        Ok(())
    }

    async fn pull_all(
        &self,
        deadline: Deadline,
        history: &HistoryLog,
        namespaces: &[&str],
        done: &mut Transfer,
    ) -> Result<(), FleetError> {
        let mut names: BTreeSet<String> = history.pulled_namespaces()?.into_iter().collect();
        names.extend(namespaces.iter().map(|&name| name.to_owned()));
        let (mut candidates, mut room) = (Vec::new(), self.options.cache_bytes);
        let mut listed: BTreeMap<String, BTreeSet<SegmentName>> = BTreeMap::new();
        for namespace in names {
            match self.look(deadline, history, &namespace).await {
                Ok(found) => {
                    candidates.extend(found.into_iter().map(|stored| (namespace.clone(), stored)));
                    listed.insert(namespace, BTreeSet::new());
                }
                Err(error) => {
                    // Its copies stay.
                    room =
                        room.saturating_sub(history.pulled(&namespace)?.iter().map(|name| name.bytes).sum());
                    done.failed.push(error);
                }
            }
        }
        // Newest first; equal segments of two hosts count once.
        candidates.sort_by_key(|(_, stored)| (std::cmp::Reverse(stored.meta.last_modified), stored.name));
        let mut wanted = Vec::new();
        for (namespace, stored) in candidates {
            let of_namespace = listed.get_mut(&namespace).expect("listed");
            if stored.meta.size != stored.name.bytes {
                done.failed.push(length(&stored, stored.meta.size));
            } else if stored.name.bytes <= room
                && of_namespace.len() < HistoryLog::PULLED_MAX
                && of_namespace.insert(stored.name)
            {
                room -= stored.name.bytes;
                wanted.push((namespace, stored));
            }
        }
        let mut here = BTreeMap::new();
        for (namespace, kept) in &listed {
            done.n_removed += history.keep_pulled(namespace, kept)?;
            here.insert(namespace.clone(), history.pulled(namespace)?);
        }
        for (namespace, stored) in wanted {
            if here[&namespace].contains(&stored.name) {
                done.n_kept += 1;
                continue;
            }
            match self.fetch(deadline, history, &namespace, &stored).await {
                Ok(()) => {
                    done.n_moved += 1;
                    done.moved_bytes += stored.name.bytes;
                }
                // Neither gets better by another object.
                Err(error @ (FleetError::OutOfTime { .. } | FleetError::History(_))) => return Err(error),
                Err(error) => done.failed.push(error),
            }
        }
        Ok(())
    }

    /// The other hosts' segments of a namespace. Notes its deletion for the history's writer.
    async fn look(
        &self,
        deadline: Deadline,
        history: &HistoryLog,
        namespace: &str,
    ) -> Result<Vec<Stored>, FleetError> {
        if let Some(deleted) = self.deleted(deadline, history.key(), namespace).await? {
            history.note_deleted(namespace, deleted)?;
        }
        let folder = self.namespace_path(history.key(), namespace);
        let own = PathPart::from(self.options.host.as_str());
        let own: &str = own.as_ref();
        let mut stored = self.segments(deadline, &folder).await?;
        stored.retain(|stored| stored.host != own);
        Ok(stored)
    }

    async fn fetch(
        &self,
        deadline: Deadline,
        history: &HistoryLog,
        namespace: &str,
        stored: &Stored,
    ) -> Result<(), FleetError> {
        let object = &stored.meta.location;
        let found = deadline.object("read", object, self.store.get(object)).await?;
        if found.meta.size != stored.name.bytes {
            return Err(length(stored, found.meta.size));
        }
        let mut incoming = history.put_pulled(namespace, stored.name)?;
        let (mut body, mut n_read) = (found.into_stream(), 0_u64);
        while let Some(bytes) = deadline.wait(body.next()).await? {
            let bytes = bytes.map_err(|source| store_error("read", object, source))?;
            n_read += bytes.len() as u64;
            if n_read > stored.name.bytes {
                return Err(length(stored, n_read));
            }
            incoming.write(&bytes)?;
        }
        if n_read < stored.name.bytes {
            return Err(length(stored, n_read));
        }
        incoming.finish().map_err(|source| match source {
            HistoryError::Io { .. } => FleetError::History(source),
            source => FleetError::Segment { object: object.to_string(), source },
        })
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // A store's call that hangs is left alone.
        self.runtime.take().into_iter().for_each(Runtime::shutdown_background);
    }
}

type Opened = Result<(Arc<dyn ObjectStore>, Path), Box<dyn std::error::Error + Send + Sync>>;

fn open(address: &str, settings: impl IntoIterator<Item = (String, String)>) -> Opened {
    if address.contains("://") {
        let settings = settings.into_iter().filter(|(name, _)| name.starts_with("AWS_"));
        let (store, prefix) = object_store::parse_url_opts(&Url::parse(address)?, settings)?;
        return Ok((Arc::from(store), prefix));
    }
    // A folder that exists may be shared, as its permissions say.
    if !std::path::Path::new(address).is_dir() {
        create_private_folder(address.as_ref())?;
    }
    let store = LocalFileSystem::new_with_prefix(address)?.with_automatic_cleanup(true);
    Ok((Arc::new(store), Path::default()))
}

/// Reads a segment's file, if it has the length of its name.
fn read(path: &std::path::Path, bytes: u64) -> Result<Vec<u8>, FleetError> {
    let io = |source| HistoryError::Io { action: "read", path: path.to_owned(), source };
    let given = std::fs::metadata(path).map_err(io)?.len();
    if given != bytes {
        return Err(FleetError::Length { object: path.display().to_string(), stated: bytes, given });
    }
    Ok(std::fs::read(path).map_err(io)?)
}

fn length(stored: &Stored, given: u64) -> FleetError {
    FleetError::Length { object: stored.meta.location.to_string(), stated: stored.name.bytes, given }
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| u64::try_from(now.as_micros()).unwrap_or(u64::MAX))
}
