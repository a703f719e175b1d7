//! Hosts that share their answers through a store: one that works, and ones that fail, lie or are slow.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::local::LocalFileSystem;
use object_store::path::Path as Object;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result as StoreResult,
};
use refrain_fleet::{Fleet, FleetError, FleetOptions};
use refrain_index::{HistoryError, HistoryKey, HistoryLog};

use crate::support::{self, KEY, drafted, fleet, open, response, unique};

/// Files below a folder that contain the bytes of a token that occurs in one response only.
fn holding(folder: &Path, token: u32) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(holding(&path, token));
        } else if std::fs::read(&path).expect("a file").windows(4).any(|bytes| bytes == token.to_le_bytes()) {
            found.push(path.display().to_string());
        }
    }
    found
}

/// A host that has answered, a host that has not, and what they share.
struct Two {
    folder: tempfile::TempDir,
    first: HistoryLog,
    second: HistoryLog,
}

impl Two {
    fn new(n_responses: u32) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [first, second] = ["first", "second"].map(|host| open(&folder.path().join(host)));
        for i in 0..n_responses {
            first.append("mail", &response(i)).expect("appends");
        }
        Two { folder, first, second }
    }

    fn store(&self) -> std::path::PathBuf {
        self.folder.path().join("store")
    }

    fn fleet(&self, host: &str) -> Fleet {
        fleet(self.store().to_str().expect("text"), host)
    }

    fn publish(&self) -> usize {
        let done = self.fleet("first").publish(&self.first);
        assert!(done.failed.is_empty(), "{:?}", done.failed);
        done.n_moved
    }

    fn pull(&self) -> usize {
        let done = self.fleet("second").pull(&self.second, &["mail"]);
        assert!(done.failed.is_empty(), "{:?}", done.failed);
        self.second.maintain().expect("reads");
        done.n_moved
    }
}

#[test]
fn a_host_drafts_from_what_another_has_published() {
    let two = Two::new(40);
    assert_eq!(drafted(&two.second, 7), 0);
    assert!(two.publish() > 1, "segments, and the log");
    assert!(two.pull() > 1);
    for i in 0..40 {
        assert_eq!(drafted(&two.second, i), response(i).len(), "response {i}");
    }
    // Nothing has changed, so nothing moves.
    assert_eq!((two.publish(), two.pull()), (0, 0));
    // Another host's responses are searched, and are none of this host's own.
    assert!(two.second.list().is_empty());
    let stats = two.second.stats();
    assert!(stats.namespaces[0].n_pulled > 1 && stats.namespaces[0].pulled_bytes > 0);
    // A process that opens the folder later, or only reads it, has them too.
    let reader = open(&two.folder.path().join("second"));
    assert_eq!(drafted(&reader, 7), response(7).len());
    // The first does not pull what it has published.
    let done = two.fleet("first").pull(&two.first, &["mail"]);
    assert_eq!((done.n_moved, done.failed.len()), (0, 0));
}

#[test]
fn namespaces_and_models_are_apart() {
    let two = Two::new(10);
    two.first.append("private", &response(90)).expect("appends");
    two.publish();
    two.pull();
    assert_eq!(drafted(&two.second, 90), 0);
    assert!(holding(&two.folder.path().join("second"), unique(90)).is_empty(), "not even pulled");
    let key = HistoryKey { model: 9, ..KEY };
    let options = support::options();
    let other = HistoryLog::open(&two.folder.path().join("other"), key, options).expect("opens");
    assert_eq!(two.fleet("other").pull(&other, &["mail"]).n_moved, 0);
}

#[test]
fn merged_segments_replace_their_parts() {
    let two = Two::new(0);
    for i in 0..200 {
        two.first.append("mail", &response(i)).expect("appends");
        if i % 20 == 0 {
            two.first.maintain().expect("merges");
            two.publish();
            two.pull();
        }
    }
    two.first.maintain().expect("merges");
    two.publish();
    two.pull();
    let n_here = two.first.stats().namespaces[0].n_segments + 1;
    assert_eq!(two.second.pulled("mail").expect("reads").len(), n_here);
    assert!((0..200).all(|i| drafted(&two.second, i) == response(i).len()));
    two.second.verify().expect("sound");
}

#[test]
fn what_is_forgotten_leaves_the_store_and_every_copy() {
    let two = Two::new(40);
    two.publish();
    two.pull();
    let count = || holding(two.folder.path(), unique(7)).len();
    assert_eq!(count(), 3, "host, store and copy");
    let id = two.first.list()[7].record;
    two.first.forget(id).expect("forgets");
    two.publish();
    two.pull();
    assert_eq!(count(), 0);
    assert_eq!(drafted(&two.second, 8), response(8).len());
    // A namespace that is forgotten as a whole.
    two.first.forget_namespace("mail").expect("forgets");
    two.publish();
    two.pull();
    assert!((0..40).all(|i| holding(two.folder.path(), unique(i)).is_empty()));
    assert!(!two.store().join(KEY.to_string()).exists(), "not even a folder");
}

#[test]
fn a_deleted_namespace_leaves_no_bytes_on_any_host() {
    let two = Two::new(40);
    two.second.append("mail", &response(50)).expect("appends");
    two.publish();
    two.pull();
    assert!(two.fleet("second").publish(&two.second).failed.is_empty());
    assert!(two.fleet("first").pull(&two.first, &["mail"]).n_moved > 0);
    let n_removed = two.fleet("third").delete(KEY, "mail").expect("deletes");
    assert!(n_removed > 2);
    assert!((0..=50).all(|i| holding(&two.store(), unique(i)).is_empty()));
    // A host that has not heard of it must not bring it back.
    two.publish();
    assert!((0..=50).all(|i| holding(&two.store(), unique(i)).is_empty()));
    two.pull();
    assert!(two.fleet("first").pull(&two.first, &["mail"]).failed.is_empty());
    two.first.maintain().expect("forgets");
    assert!((0..=50).all(|i| holding(two.folder.path(), unique(i)).is_empty()));
    assert_eq!((drafted(&two.first, 7), drafted(&two.second, 7)), (0, 0));
    // Later answers are shared again.
    two.first.append("mail", &response(60)).expect("appends");
    two.publish();
    two.pull();
    assert_eq!(drafted(&two.second, 60), response(60).len());
}

#[test]
fn copies_keep_within_their_bound() {
    let two = Two::new(200);
    two.publish();
    let options = FleetOptions { cache_bytes: 100_000, ..FleetOptions::new("second") };
    let fleet = Fleet::connect(two.store().to_str().expect("text"), [], options).expect("connects");
    let done = fleet.pull(&two.second, &["mail"]);
    assert!(done.failed.is_empty() && done.n_moved > 0, "{done:?}");
    let bytes: u64 = two.second.pulled("mail").expect("reads").iter().map(|name| name.bytes).sum();
    assert!((50_000..=100_000).contains(&bytes), "{bytes}");
    // A smaller bound removes some.
    let options = FleetOptions { cache_bytes: 30_000, ..FleetOptions::new("second") };
    let fleet = Fleet::connect(two.store().to_str().expect("text"), [], options).expect("connects");
    assert!(fleet.pull(&two.second, &["mail"]).n_removed > 0);
    let bytes: u64 = two.second.pulled("mail").expect("reads").iter().map(|name| name.bytes).sum();
    assert!(bytes <= 30_000, "{bytes}");
}

#[test]
fn a_process_that_only_hands_in_publishes_too() {
    let two = Two::new(10);
    let sidecar = open(&two.folder.path().join("first"));
    sidecar.append("mail", &response(70)).expect("handed in");
    let done = two.fleet("first").publish(&sidecar);
    assert!(done.failed.is_empty(), "{:?}", done.failed);
    two.pull();
    assert_eq!(drafted(&two.second, 70), response(70).len());
    assert_eq!(drafted(&two.second, 3), response(3).len());
}

#[test]
fn a_damaged_copy_is_left_out_and_comes_back() {
    let two = Two::new(40);
    two.publish();
    two.pull();
    let folder = two.folder.path().join("second").join(KEY.to_string()).join(".fleet/mail");
    let names: Vec<_> =
        std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("one").path()).collect();
    let n_names = names.len();
    for path in names {
        let mut bytes = std::fs::read(&path).expect("a file");
        bytes[5000] ^= 1;
        std::fs::write(&path, bytes).expect("writable");
    }
    let again = {
        drop(two.second);
        open(&two.folder.path().join("second"))
    };
    assert!(again.verify().is_err());
    assert_eq!(again.left_out().len(), n_names);
    assert_eq!(drafted(&again, 7), 0);
    again.maintain().expect("removes the copies");
    assert!(again.pulled("mail").expect("reads").is_empty());
    let fleet = fleet(two.folder.path().join("store").to_str().expect("text"), "second");
    assert_eq!(fleet.pull(&again, &["mail"]).n_moved, n_names);
    again.maintain().expect("reads");
    assert_eq!(drafted(&again, 7), response(7).len());
}

/// How a store answers.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    /// Every call fails.
    Fails,
    /// Nothing ever comes.
    Hangs,
    /// A body begins and does not end.
    Stalls,
    /// One byte of each body differs.
    Flips,
    /// Bodies end too early, though the stated length is right.
    Truncates,
    /// Bodies have more bytes than stated.
    Grows,
    /// Each object has the bytes of another one.
    Swaps,
    /// The listing states other lengths.
    ListsLengths,
    /// The listing has lengths that no memory holds, and so has the answer.
    ListsHuge,
}

/// A folder with a fault.
#[derive(Debug)]
struct Faulty {
    store: Arc<LocalFileSystem>,
    fault: Fault,
}

impl fmt::Display for Faulty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.fault)
    }
}

impl Faulty {
    fn error() -> object_store::Error {
        object_store::Error::Generic { store: "test", source: "a fault".into() }
    }

    async fn before(&self) -> StoreResult<()> {
        match self.fault {
            Fault::Fails => Err(Self::error()),
            Fault::Hangs => std::future::pending().await,
            _ => Ok(()),
        }
    }
}

#[async_trait::async_trait]
impl ObjectStore for Faulty {
    async fn put_opts(&self, at: &Object, body: PutPayload, options: PutOptions) -> StoreResult<PutResult> {
        self.before().await?;
        self.store.put_opts(at, body, options).await
    }

    async fn put_multipart_opts(
        &self,
        at: &Object,
        options: PutMultipartOptions,
    ) -> StoreResult<Box<dyn MultipartUpload>> {
        self.store.put_multipart_opts(at, options).await
    }

    async fn get_opts(&self, at: &Object, options: GetOptions) -> StoreResult<GetResult> {
        self.before().await?;
        let segments: Vec<Object> =
            self.store.list(None).filter_map(async |meta| Some(meta.ok()?.location)).collect().await;
        let is_segment = at.as_ref().contains("namespaces/");
        let swapped = segments.iter().find(|other| other.as_ref().contains("namespaces/") && *other != at);
        let from = if self.fault == Fault::Swaps && is_segment { swapped.expect("another") } else { at };
        let mut found = self.store.get_opts(from, options).await?;
        if !is_segment {
            return Ok(found);
        }
        let whole = self.store.get_opts(from, GetOptions::default()).await?.bytes().await?;
        let mut bytes = whole.to_vec();
        match self.fault {
            Fault::Flips => bytes[9000] ^= 4,
            Fault::Truncates => bytes.truncate(6000),
            Fault::Grows => bytes.push(0),
            Fault::ListsHuge => found.meta.size = u64::MAX / 2,
            // Its header says that it is another one; its length does not.
            Fault::Swaps => {
                let name = at.filename().expect("a name");
                found.meta.size =
                    u64::from_str_radix(name.split('-').nth(1).expect("a length"), 16).expect("hex");
                bytes.resize(found.meta.size as usize, 0);
            }
            _ => {}
        }
        let body = stream::iter([Ok(bytes.into())]);
        found.payload = GetResultPayload::Stream(match self.fault {
            Fault::Stalls => stream::pending().boxed(),
            _ => body.boxed(),
        });
        Ok(found)
    }

    fn delete_stream(
        &self,
        objects: BoxStream<'static, StoreResult<Object>>,
    ) -> BoxStream<'static, StoreResult<Object>> {
        match self.fault {
            Fault::Fails => stream::iter([Err(Self::error())]).boxed(),
            Fault::Hangs => stream::pending().boxed(),
            _ => self.store.delete_stream(objects),
        }
    }

    fn list(&self, prefix: Option<&Object>) -> BoxStream<'static, StoreResult<ObjectMeta>> {
        let fault = self.fault;
        let lies = move |meta: ObjectMeta| match fault {
            Fault::ListsLengths => ObjectMeta { size: meta.size + 1, ..meta },
            Fault::ListsHuge => {
                // The name states it too.
                let mut parts: Vec<&str> = meta.location.as_ref().split('-').collect();
                let at = parts.len() - 2;
                parts[at] = "7fffffffffffffff";
                let location = Object::from(parts.join("-"));
                ObjectMeta { size: u64::MAX / 2, location, ..meta }
            }
            _ => meta,
        };
        match fault {
            Fault::Fails => stream::iter([Err(Self::error())]).boxed(),
            Fault::Hangs => stream::pending().boxed(),
            _ => self.store.list(prefix).map(move |meta| meta.map(lies)).boxed(),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Object>) -> StoreResult<ListResult> {
        self.before().await?;
        self.store.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Object, to: &Object, options: CopyOptions) -> StoreResult<()> {
        self.before().await?;
        self.store.copy_opts(from, to, options).await
    }
}

/// A store with a fault gives a typed error within the time limit; drafting goes on, with what is there.
#[test]
fn a_store_that_fails_lies_or_is_slow_costs_drafts_only() {
    for fault in [
        Fault::Fails,
        Fault::Hangs,
        Fault::Stalls,
        Fault::Flips,
        Fault::Truncates,
        Fault::Grows,
        Fault::Swaps,
        Fault::ListsLengths,
        Fault::ListsHuge,
    ] {
        let two = Two::new(40);
        two.publish();
        two.second.append("mail", &response(80)).expect("appends");
        let store = Arc::new(LocalFileSystem::new_with_prefix(two.store()).expect("a folder"));
        // Others end by their fault, however long a disk takes.
        let ms = if matches!(fault, Fault::Hangs | Fault::Stalls) { 300 } else { 60_000 };
        let budget = Duration::from_millis(ms);
        let options = FleetOptions { budget, ..FleetOptions::new("second") };
        let faulty =
            Fleet::new(Arc::new(Faulty { store, fault }), Object::default(), options).expect("a fleet");
        let start = Instant::now();
        let pulled = faulty.pull(&two.second, &["mail"]);
        let published = faulty.publish(&two.second);
        // Twice the limit, and as much for a machine that is busy with other things.
        assert!(start.elapsed() < 4 * budget + Duration::from_secs(5), "{fault:?}: {:?}", start.elapsed());
        assert_eq!(pulled.n_moved, 0, "{fault:?}");
        assert!(!pulled.failed.is_empty() || fault == Fault::ListsHuge, "{fault:?}");
        for failed in &pulled.failed {
            let is_typed = match fault {
                Fault::Fails => matches!(failed, FleetError::Store { .. }),
                Fault::Hangs | Fault::Stalls => matches!(failed, FleetError::OutOfTime { .. }),
                Fault::Flips | Fault::Swaps => matches!(
                    failed,
                    FleetError::Segment {
                        source: HistoryError::Damaged { .. } | HistoryError::Misplaced { .. },
                        ..
                    }
                ),
                _ => matches!(failed, FleetError::Length { .. }),
            };
            assert!(is_typed, "{fault:?}: {failed:?}");
        }
        if matches!(fault, Fault::Fails | Fault::Hangs) {
            assert!(!published.failed.is_empty(), "{fault:?}");
            assert!(faulty.delete(KEY, "mail").is_err());
        }
        two.second.maintain().expect("goes on");
        assert!(two.second.pulled("mail").expect("reads").is_empty(), "{fault:?}");
        let leftovers: Vec<String> = holding(&two.folder.path().join("second"), unique(7));
        assert!(leftovers.is_empty(), "{fault:?}: {leftovers:?}");
        assert_eq!(drafted(&two.second, 80), response(80).len(), "{fault:?}");
        // A store that works again gives everything.
        two.pull();
        assert_eq!(drafted(&two.second, 7), response(7).len(), "{fault:?}");
        // And a fault takes nothing away that is there.
        let pulled = two.second.pulled("mail").expect("reads");
        faulty.pull(&two.second, &["mail"]);
        if matches!(fault, Fault::Fails | Fault::Hangs | Fault::Stalls) {
            assert_eq!(two.second.pulled("mail").expect("reads"), pulled, "{fault:?}");
        }
    }
}

#[test]
fn what_lies_in_the_store_by_mistake_is_ignored_or_named() {
    let two = Two::new(10);
    two.publish();
    let folder = two.store().join(KEY.to_string());
    std::fs::write(folder.join("namespaces/mail/first/notes.txt"), "hello").expect("writable");
    // The segment of another namespace under a name of this one.
    two.first.append("private", &response(90)).expect("appends");
    two.publish();
    let private = std::fs::read_dir(folder.join("namespaces/private/first")).expect("a folder").next();
    let private = private.expect("one").expect("one");
    std::fs::copy(private.path(), folder.join("namespaces/mail/first").join(private.file_name()))
        .expect("copies");
    let done = two.fleet("second").pull(&two.second, &["mail"]);
    let [FleetError::Segment { source: HistoryError::Misplaced { .. }, .. }] = &done.failed[..] else {
        panic!("{:?}", done.failed)
    };
    assert!(done.n_moved > 0);
    // A deletion without a time stops the namespace: nobody knows what must not be shared.
    std::fs::create_dir_all(folder.join("deleted")).expect("writable");
    std::fs::write(folder.join("deleted/mail"), "soon").expect("writable");
    let done = two.fleet("second").pull(&two.second, &["mail"]);
    assert!(matches!(done.failed[..], [FleetError::Deleted { .. }]), "{:?}", done.failed);
}

#[test]
fn bad_addresses_and_names_are_refused() {
    let long = "x".repeat(FleetOptions::HOST_BYTES_MAX + 1);
    for host in ["", &long] {
        let fleet = Fleet::connect("memory:///", [], FleetOptions::new(host));
        assert!(matches!(fleet, Err(FleetError::HostName { .. })));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    std::fs::write(&file, "mine").expect("writable");
    for address in ["gopher://store/", "s3://", file.to_str().expect("text")] {
        let fleet = Fleet::connect(address, [], FleetOptions::new("a"));
        assert!(matches!(fleet, Err(FleetError::Address { .. })), "{address}");
    }
}

/// Names that are no file names, and names that differ by case only.
#[test]
fn any_names_of_hosts_and_namespaces() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = folder.path().join("store");
    let store = store.to_str().expect("text");
    let log = open(&folder.path().join("first"));
    let names = ["../up", "A b/c", "%2e", "ä", "."];
    for (i, name) in (0..).zip(names) {
        log.append(name, &response(i)).expect("appends");
    }
    assert!(fleet(store, "../host").publish(&log).failed.is_empty());
    let other = open(&folder.path().join("second"));
    assert_eq!(fleet(store, "h/2").pull(&other, &names).n_moved, names.len());
    assert_eq!(
        other.pulled_namespaces().expect("reads").into_iter().collect::<BTreeSet<_>>(),
        names.map(str::to_owned).into()
    );
    assert_eq!(fleet(store, "../host").pull(&log, &names).n_moved, 0, "its own");
}
