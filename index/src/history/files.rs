//! Reads the files of a namespace, and puts them in order for the writer.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::HistoryError;
use super::changes::{ASIDE, remove, set_aside};
use super::context::Context;
use super::disk::{PARTIAL, SealedDisk};
use super::error::io_error;
use super::key::FileKind;
use super::log::{Log, Place, Record, Scan, read_log};
use super::report::LeftOut;
use super::segment::Segment;
use crate::disk_file::if_there;

/// The files of a namespace. Replaced files are not opened.
#[derive(Default)]
pub(super) struct Found {
    pub(super) logs: Vec<(Place, Scan)>,
    pub(super) segments: Vec<Segment>,
    pub(super) left_out: Vec<LeftOut>,
    /// Replaced files and unfinished files.
    stale: Vec<PathBuf>,
    /// The largest number of a file, including unused files.
    pub(super) newest: u64,
    /// Names of logs and segments.
    names: BTreeSet<String>,
    /// Whether a listed file had disappeared when it was opened.
    is_changed: bool,
}

/// Names of files; none if the folder does not exist.
pub(super) fn names(disk: &SealedDisk, folder: &Path) -> Result<Vec<String>, HistoryError> {
    Ok(if_there(disk.list(folder)).map_err(io_error("read", folder))?.unwrap_or_default())
}

impl Found {
    /// Reads the logs and opens the segments of a folder. Changes nothing.
    pub(super) fn read(context: &Context, folder: &Path, owner: u64) -> Result<Self, HistoryError> {
        let disk = context.disk();
        let mut found = Found::default();
        let (mut replaced, mut paths) = (BTreeSet::new(), Vec::new());
        for name in names(disk, folder)? {
            if name.ends_with(PARTIAL) {
                found.stale.push(folder.join(&name));
            }
            // The numbers of files set aside are not reused.
            let Some((kind, number)) = FileKind::parse(name.strip_prefix(ASIDE).unwrap_or(&name)) else {
                continue;
            };
            found.newest = found.newest.max(number);
            if name.starts_with(ASIDE) {
                continue;
            }
            let (place, path) = (Place { owner, number }, folder.join(&name));
            found.names.insert(name);
            paths.push((number, path.clone()));
            let opened = match kind {
                FileKind::Log => read_log(disk, path, place).map(|scan| {
                    replaced.insert(scan.replaces);
                    found.logs.push((place, scan));
                }),
                FileKind::Segment => open_segment(context, folder, place).map(|segment| {
                    replaced.extend(segment.replaces());
                    found.segments.push(segment);
                }),
            };
            match opened {
                Err(HistoryError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                    found.is_changed = true;
                }
                Err(error) => found.left_out.push(LeftOut::of(error)?),
                Ok(()) => {}
            }
        }
        let stale = paths.into_iter().filter(|(number, _)| replaced.contains(number)).map(|(_, path)| path);
        found.stale.extend(stale);
        found.logs.retain(|(place, _)| !replaced.contains(&place.number));
        context.close(found.segments.extract_if(.., |segment| replaced.contains(&segment.number())));
        found.segments.sort_by_key(|segment| segment.records().first().map(|record| record.id));
        found.left_out.retain(|left_out| !found.stale.contains(&left_out.path));
        for (_, scan) in &found.logs {
            let damaged = scan.damaged.iter();
            found
                .left_out
                .extend(damaged.map(|&(at, bytes, what)| LeftOut::damaged(&scan.path, at, bytes, what)));
            found.left_out.extend(scan.torn.map(|torn| LeftOut::torn(&scan.path, torn)));
        }
        Ok(found)
    }

    /// Whether the folder contains exactly the opened files.
    pub(super) fn is_still_there(&self, disk: &SealedDisk, folder: &Path) -> bool {
        let names = disk.list(folder).unwrap_or_default();
        let names = names.into_iter().filter(|name| FileKind::parse(name).is_some());
        !self.is_changed && names.collect::<BTreeSet<_>>() == self.names
    }
}

/// Puts the files of a namespace in order for its writer. Returns its one log and the log's records.
///
/// After a crash between a segment and the log that follows it, the folder has no log. It may have several logs if a
/// damaged header hides the number of the replaced log. In these cases, and if a log is damaged, a new log receives
/// all records. Damaged files are set aside; the others are removed.
pub(super) fn settle(
    disk: &SealedDisk,
    folder: &Path,
    place: Place,
    found: &mut Found,
) -> Result<(Log, Vec<Record>), HistoryError> {
    found.stale.iter().try_for_each(|path| remove(disk, path))?;
    let is_damaged = |scan: &Scan| !scan.damaged.is_empty();
    let settled = match &mut found.logs[..] {
        [(place, scan)] if !is_damaged(scan) => {
            let log = Log::resume(disk, *place, scan)?;
            (log, std::mem::take(&mut scan.records))
        }
        logs => {
            let taken = logs.iter_mut().flat_map(|(_, scan)| std::mem::take(&mut scan.records));
            let mut records: Vec<Record> = taken.collect();
            sort(&mut records);
            let log = Log::create(disk, folder, place, 0, &records)?;
            for (_, scan) in logs.iter().filter(|(_, scan)| !is_damaged(scan)) {
                remove(disk, &scan.path)?;
            }
            (log, records)
        }
    };
    let mut is_changed = !found.stale.is_empty() || found.logs.len() > 1;
    let mut aside: BTreeMap<&Path, PathBuf> = BTreeMap::new();
    for left_out in found.left_out.iter_mut().filter(|left_out| left_out.is_damage()) {
        // One file may have several damaged places.
        let known = aside.get(left_out.path.as_path()).cloned();
        let path = match known {
            Some(path) => path,
            None => set_aside(disk, &left_out.path)?,
        };
        is_changed = true;
        left_out.aside = Some(path.clone());
        aside.insert(&left_out.path, path);
    }
    if is_changed {
        disk.sync_dir(folder).map_err(io_error("sync", folder))?;
    }
    Ok(settled)
}

/// Sorts records by id and removes duplicates.
pub(super) fn sort(records: &mut Vec<Record>) {
    records.sort_by_key(|record| record.id);
    records.dedup_by_key(|record| record.id);
}

pub(super) fn open_segment(context: &Context, folder: &Path, place: Place) -> Result<Segment, HistoryError> {
    let path = FileKind::Segment.path(folder, place.number);
    Segment::open(context.disk(), path, place, &mut context.cache())
}
