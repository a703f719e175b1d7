//! Segments of other hosts, which a fleet shares through a store of objects.
//!
//! The folder `.fleet/NAMESPACE` contains copies of other hosts' segments, each under the [name](SegmentName) of its
//! contents. The history searches them like its own segments, and changes none: a program that reaches the store (the
//! crate `refrain-fleet`) exports this host's responses, puts checked copies in place, and removes them. So no process
//! that drafts waits for a network. A copy is complete when it gets its name, and never changes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::changes::{put_file, remove, remove_files};
use super::context::{Context, read};
use super::disk::PARTIAL;
use super::error::{HistoryError, io_error};
use super::files::names;
use super::key::{RecordId, check_namespace};
use super::log::{Place, Record};
use super::pulled::{DELETED, FLEET, PULLED_MAX, deleted_up_to, fleet_folder, fleet_namespaces, pulled};
use super::segment::{Segment, SegmentName, write_segment};
use super::store::HistoryLog;
use crate::disk_file::DiskFile;

/// The folder in it for segments that are written to be shared.
const SCRATCH: &str = ".out";

/// A segment of this host, to be shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportedSegment {
    /// The name of its contents.
    pub name: SegmentName,
    /// The file. If it belongs to the history, its writer may replace it at any time.
    pub path: PathBuf,
}

/// The segments of a namespace, to be shared. On drop, the files that were written for it are removed.
#[derive(Debug)]
pub struct Export<'a> {
    log: &'a HistoryLog,
    segments: Vec<ExportedSegment>,
}

/// A copy of another host's segment while it is written. Dropped before [`finish`](Self::finish), it leaves nothing.
#[derive(Debug)]
pub struct IncomingSegment<'a> {
    log: &'a HistoryLog,
    namespace: String,
    name: SegmentName,
    partial: PathBuf,
    file: Option<Box<dyn DiskFile>>,
    n_written: u64,
}

impl HistoryLog {
    /// Maximum number of other hosts' segments that a namespace searches. A search visits every segment.
    pub const PULLED_MAX: usize = PULLED_MAX;

    /// The responses of a namespace as segments: its own ones as they are, and the responses of its log, including those
    /// handed in, in a segment of their own. The same responses always give the same names. Responses up to the id
    /// `deleted` are left out, and their segments are written without them. Damaged segments are left out too. Empty for
    /// an unknown namespace.
    ///
    /// Any process that may write to the folder may export, whatever its role, after a [`refresh`](Self::refresh). One at
    /// a time: an export removes what an interrupted one has left.
    ///
    /// # Errors
    /// A segment cannot be read, or one cannot be written. [`HistoryError::Encrypted`].
    pub fn export(&self, namespace: &str, deleted: Option<RecordId>) -> Result<Export<'_>, HistoryError> {
        check_namespace(namespace)?;
        let shared = self.shared();
        self.check_shares()?;
        let (context, scratch) = (&shared.context, shared.folder().join(FLEET).join(SCRATCH));
        let mut export = Export { log: self, segments: Vec::new() };
        remove_files(context.disk(), &scratch)?;
        let Some(found) = shared.find(namespace) else { return Ok(export) };
        let found = read(&found);
        let is_kept = |id: RecordId| deleted.is_none_or(|deleted| id > deleted);
        let freeze = |number: u64, records: &[Record]| {
            context.disk().create_dir(&scratch).map_err(io_error("create", &scratch))?;
            let place = Place { owner: self.key().owner(namespace), number };
            let path = write_segment(context.disk(), &scratch, place, &[], records)?;
            let segment = Segment::open(context.disk(), path.clone(), place, &mut context.cache())?;
            let name = segment.name();
            segment.close(&mut context.cache());
            Ok(ExportedSegment { name, path })
        };
        for segment in found.segments().iter().filter(|segment| !segment.is_faulty()) {
            if segment.records().iter().all(|record| is_kept(record.id)) {
                let path = segment.path().to_owned();
                export.segments.push(ExportedSegment { name: segment.name(), path });
            } else if segment.records().iter().any(|record| is_kept(record.id)) {
                export.segments.push(freeze(segment.number(), &segment.read_records(is_kept)?)?);
            }
        }
        let live: Vec<Record> = found.live().iter().filter(|record| is_kept(record.id)).cloned().collect();
        if let Some(newest) = live.iter().map(|record| record.id).max() {
            // A time in µs: far above the numbers of files.
            export.segments.push(freeze(newest.0, &live)?);
        }
        Ok(export)
    }

    /// Segments of a fleet are not encrypted.
    fn check_shares(&self) -> Result<(), HistoryError> {
        let shared = self.shared();
        match shared.context.disk().seal().encrypts() {
            true => Err(HistoryError::Encrypted { path: shared.folder().to_owned() }),
            false => Ok(()),
        }
    }

    /// Notes that the fleet has deleted a namespace's responses up to an id. The writer forgets them when it next
    /// [maintains](Self::maintain).
    ///
    /// # Errors
    /// The note cannot be written.
    pub fn note_deleted(&self, namespace: &str, deleted: RecordId) -> Result<(), HistoryError> {
        check_namespace(namespace)?;
        let shared = self.shared();
        let (disk, folder) = (shared.context.disk(), fleet_folder(shared.folder(), namespace));
        if deleted_up_to(disk, &folder)?.is_some_and(|noted| noted >= deleted) {
            return Ok(());
        }
        disk.create_dir(&folder).map_err(io_error("create", &folder))?;
        put_file(disk, &folder.join(format!("{DELETED}{}", deleted.0)), |_| Ok(())).map(drop)
    }

    /// The namespaces with segments of other hosts.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn pulled_namespaces(&self) -> Result<Vec<String>, HistoryError> {
        let shared = self.shared();
        fleet_namespaces(shared.context.disk(), shared.folder())
    }

    /// The segments of other hosts in a namespace, which [`maintain`](Self::maintain) begins to search. Their order is
    /// that of their names.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn pulled(&self, namespace: &str) -> Result<BTreeSet<SegmentName>, HistoryError> {
        check_namespace(namespace)?;
        let shared = self.shared();
        pulled(shared.context.disk(), &fleet_folder(shared.folder(), namespace))
    }

    /// Starts a copy of another host's segment.
    ///
    /// # Errors
    /// The file cannot be created. [`HistoryError::Encrypted`].
    pub fn put_pulled(
        &self,
        namespace: &str,
        name: SegmentName,
    ) -> Result<IncomingSegment<'_>, HistoryError> {
        check_namespace(namespace)?;
        let shared = self.shared();
        self.check_shares()?;
        let (disk, folder) = (shared.context.disk(), fleet_folder(shared.folder(), namespace));
        disk.create_dir(&folder).map_err(io_error("create", &folder))?;
        let partial = folder.join(format!("{name}{PARTIAL}"));
        let file = disk.create(&partial).map_err(io_error("create", &partial))?;
        let namespace = namespace.to_owned();
        Ok(IncomingSegment { log: self, namespace, name, partial, file: Some(file), n_written: 0 })
    }

    /// Removes the other hosts' segments of a namespace that are not among `kept`, and what an interrupted copy has left.
    /// Returns their number. Processes that have them open may draft from them until their next
    /// [`maintain`](Self::maintain).
    ///
    /// # Errors
    /// A file cannot be removed; the call may be repeated.
    pub fn keep_pulled(&self, namespace: &str, kept: &BTreeSet<SegmentName>) -> Result<usize, HistoryError> {
        check_namespace(namespace)?;
        let shared = self.shared();
        let (disk, folder) = (shared.context.disk(), fleet_folder(shared.folder(), namespace));
        let mut n_removed = 0;
        for name in names(disk, &folder)? {
            let parsed = SegmentName::parse(&name);
            if name.starts_with(DELETED) {
                continue;
            }
            if parsed.is_none_or(|name| !kept.contains(&name)) {
                remove(disk, &folder.join(&name))?;
                n_removed += usize::from(parsed.is_some());
            }
        }
        if n_removed > 0 {
            disk.sync_dir(&folder).map_err(io_error("sync", &folder))?;
        }
        Ok(n_removed)
    }
}

impl Export<'_> {
    /// The segments.
    pub fn segments(&self) -> &[ExportedSegment] {
        &self.segments
    }
}

impl Drop for Export<'_> {
    fn drop(&mut self) {
        let shared = self.log.shared();
        // The next export repeats it.
        let _ = remove_files(shared.context.disk(), &shared.folder().join(FLEET).join(SCRATCH));
    }
}

impl IncomingSegment<'_> {
    /// Appends bytes.
    ///
    /// # Errors
    /// There are more bytes than the name states, or they cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), HistoryError> {
        let end = self.n_written + bytes.len() as u64;
        if end > self.name.bytes {
            let max = self.name.bytes;
            return Err(HistoryError::TooLarge { path: self.partial.clone(), bytes: end, max });
        }
        let file = self.file.as_ref().expect("open until it is dropped");
        file.write_at(bytes, self.n_written).map_err(io_error("write", &self.partial))?;
        self.n_written = end;
        Ok(())
    }

    /// Checks every byte and puts the segment in place, durably.
    ///
    /// # Errors
    /// It is not the segment that its name states, or not one of this model and namespace, or the file system failed.
    /// Nothing was put in place.
    pub fn finish(mut self) -> Result<(), HistoryError> {
        let shared = self.log.shared();
        let context = &shared.context;
        let disk = context.disk();
        let file = self.file.take().expect("open until it is dropped");
        file.sync().map_err(io_error("sync", &self.partial))?;
        drop(file);
        let place = Place { owner: shared.key().owner(&self.namespace), number: self.name.number };
        check(context, &self.partial, place, self.name)?;
        let folder = fleet_folder(shared.folder(), &self.namespace);
        let path = folder.join(self.name.to_string());
        disk.rename(&self.partial, &path).map_err(io_error("rename to", &path))?;
        disk.sync_dir(&folder).map_err(io_error("sync", &folder))
    }
}

impl Drop for IncomingSegment<'_> {
    fn drop(&mut self) {
        // On Windows an open file cannot be removed.
        self.file = None;
        // After a success it has another name.
        let _ = self.log.shared().context.disk().remove_file(&self.partial);
    }
}

/// Reads every byte of a segment's file and compares it with its name and place.
fn check(context: &Context, path: &Path, place: Place, name: SegmentName) -> Result<(), HistoryError> {
    let segment = Segment::open(context.disk(), path.to_owned(), place, &mut context.cache())?;
    let is_named = segment.name() == name;
    let verified = segment.verify();
    segment.close(&mut context.cache());
    verified?;
    match is_named {
        true => Ok(()),
        false => Err(HistoryError::Misplaced { path: path.to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use refrain::TokenId;

    use super::super::testing::{Crash, Fails, MemDisk};
    use super::super::{HistoryKey, HistoryOptions};
    use super::*;

    const KEY: HistoryKey = HistoryKey { tokenizer: 1, model: 2 };

    fn open(disk: &MemDisk) -> HistoryLog {
        HistoryLog::open_on(Box::new(disk.clone()), Path::new("history"), KEY, HistoryOptions::default())
            .unwrap()
    }

    /// A copy is whole or absent, whatever fails, and a crash leaves nothing that stays.
    #[test]
    fn a_copy_is_whole_or_absent() {
        let from = MemDisk::default();
        let log = open(&from);
        log.append("a", &(0..9).map(TokenId).collect::<Vec<_>>()).unwrap();
        let export = log.export("a", None).unwrap();
        let [segment] = export.segments() else { panic!("{export:?}") };
        let (name, bytes) = (segment.name, from.contents(&segment.path));
        drop(export);
        assert!(
            from.paths().iter().all(|path| !path.to_string_lossy().contains(SCRATCH)),
            "{:?}",
            from.paths()
        );
        let copy = |log: &HistoryLog, bytes: &[u8]| {
            let mut incoming = log.put_pulled("a", name)?;
            incoming.write(&bytes[..5000])?;
            incoming.write(&bytes[5000..])?;
            incoming.finish()
        };
        let disk = MemDisk::default();
        let log = open(&disk);
        let n_before = disk.n_ops();
        copy(&log, &bytes).unwrap();
        for at in 0..disk.n_ops() - n_before {
            for crash in [None, Some(Crash::KeepsAll), Some(Crash::LosesUnsynced), Some(Crash::Tears)] {
                let disk = MemDisk::default();
                let log = open(&disk);
                let at = disk.n_ops() + at;
                disk.fail(Some(if crash.is_some() { Fails::From(at) } else { Fails::Once(at) }));
                let copied = copy(&log, &bytes);
                drop(log);
                crash.into_iter().for_each(|crash| disk.crash(crash));
                disk.fail(None);
                let log = open(&disk);
                let pulled = log.pulled("a").unwrap();
                assert!(copied.is_err() || pulled.len() == 1, "operation {at}, {crash:?}");
                assert_eq!(log.left_out(), [], "operation {at}, {crash:?}");
                assert_eq!(
                    log.stats().namespaces.iter().map(|stats| stats.n_pulled).sum::<usize>(),
                    pulled.len()
                );
                log.verify().unwrap();
                log.keep_pulled("a", &pulled).unwrap();
                assert!(disk.paths().iter().all(|path| !path.to_string_lossy().ends_with(PARTIAL)));
            }
        }
        // Every byte counts, and so does the length.
        for at in (0..bytes.len()).step_by(97) {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(copy(&log, &flipped).is_err(), "byte {at}");
        }
        assert!(copy(&log, &bytes[..bytes.len() - 1]).is_err());
        assert!(matches!(copy(&log, &[&bytes[..], &[0]].concat()), Err(HistoryError::TooLarge { .. })));
    }
}
