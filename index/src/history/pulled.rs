//! The copies of other hosts' segments, and the notes of what the fleet has deleted, in their folder.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::changes::{remove, remove_files};
use super::context::Context;
use super::disk::SealedDisk;
use super::error::HistoryError;
use super::files::names;
use super::key::{RecordId, decode_namespace, encode_namespace};
use super::log::Place;
use super::namespace::Namespace;
use super::report::LeftOut;
use super::segment::{Segment, SegmentName};

/// Maximum number of other hosts' segments that a namespace searches. A search visits every segment.
pub(super) const PULLED_MAX: usize = 64;

/// The folder, beside the namespaces. Folder names of namespaces contain no dot.
pub(super) const FLEET: &str = ".fleet";

/// Prefix of the file whose name has the id up to which the fleet has deleted a namespace's responses.
pub(super) const DELETED: &str = "deleted-";

pub(super) fn fleet_folder(folder: &Path, namespace: &str) -> PathBuf {
    folder.join(FLEET).join(encode_namespace(namespace))
}

pub(super) fn deleted_up_to(disk: &SealedDisk, folder: &Path) -> Result<Option<RecordId>, HistoryError> {
    let noted = names(disk, folder)?;
    let ids = noted.iter().filter_map(|name| name.strip_prefix(DELETED)?.parse().ok());
    Ok(ids.max().map(RecordId))
}

pub(super) fn pulled(disk: &SealedDisk, folder: &Path) -> Result<BTreeSet<SegmentName>, HistoryError> {
    Ok(names(disk, folder)?.iter().filter_map(|name| SegmentName::parse(name)).collect())
}

/// Namespaces with a folder for segments of other hosts.
pub(super) fn fleet_namespaces(disk: &SealedDisk, folder: &Path) -> Result<Vec<String>, HistoryError> {
    Ok(names(disk, &folder.join(FLEET))?.iter().filter_map(|name| decode_namespace(name)).collect())
}

/// Removes all segments of other hosts of a namespace. `false` if there are none.
pub(super) fn remove_pulled(disk: &SealedDisk, folder: &Path, namespace: &str) -> Result<bool, HistoryError> {
    remove_files(disk, &fleet_folder(folder, namespace))
}

/// Opens the other hosts' segments that are new, and closes those that have gone or are damaged. Parts that cannot be read
/// are added to `left_out`. With `writes`, damaged copies are removed; the next pull brings them back.
pub(super) fn read_pulled(
    context: &Context,
    folder: &Path,
    name: &str,
    owner: u64,
    namespace: &mut Namespace,
    (writes, left_out): (bool, &mut Vec<LeftOut>),
) -> Result<(), HistoryError> {
    let (disk, folder) = (context.disk(), fleet_folder(folder, name));
    let mut wanted: BTreeSet<SegmentName> = pulled(disk, &folder)?.into_iter().take(PULLED_MAX).collect();
    for damaged in namespace.pulled().iter().filter(|segment| segment.is_faulty()).map(Segment::name) {
        wanted.remove(&damaged);
        if writes {
            remove(disk, &folder.join(damaged.to_string()))?;
        }
    }
    let open: BTreeSet<SegmentName> = namespace.pulled().iter().map(Segment::name).collect();
    let mut opened = Vec::new();
    for name in wanted.difference(&open) {
        let (path, place) = (folder.join(name.to_string()), Place { owner, number: name.number });
        match Segment::open(disk, path, place, &mut context.cache()) {
            Ok(segment) => opened.push(segment),
            Err(HistoryError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                let found = LeftOut::of(error)?;
                if !left_out.contains(&found) {
                    left_out.push(found);
                }
            }
        }
    }
    namespace.replace_pulled(|segment| wanted.contains(&segment.name()), opened, &mut context.cache());
    Ok(())
}
