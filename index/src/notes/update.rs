//! Updates: what has changed on the disk changes in the index.
//!
//! A walk finds the files. Files whose stamp proves that they are the same are not read. The others are read, hashed,
//! divided and checked for their language on all cores, in batches of bounded size, while tantivy's thread writes the
//! words of the batch before. After [`PASSAGES_PER_COMMIT`] passages, what was read is committed, so that memory has a
//! bound and an interrupted update keeps its work.

use std::collections::HashSet;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::catalogue::Entry;
use super::error::{NotesError, index_error};
use super::ingest::{FileContents, Ingested, ingest};
use super::names::{Names, names};
use super::paths;
use super::report::{SkipReason, SkippedSource, UpdateReport};
use super::threads;
use super::walk::{Found, Limits, Walk, walk};
use super::writer::{NotesWriter, OnProgress};
use crate::bounds::Bounds;
use crate::front_matter::NAMES_BYTES_MAX;

/// Passages per commit, and so the length of a large segment. About 3 MB of text: a deletion writes the segments again
/// that it touches, and 3 MB take a third of a second.
pub(super) const PASSAGES_PER_COMMIT: usize = 4096;

/// Bytes of files that are read at the same time; one longer file is a batch of its own.
const BATCH_BYTES: u64 = 2 << 20;

/// Files that are read at the same time.
const BATCH_FILES: usize = 256;

impl NotesWriter {
    /// Compares the index with all files below the roots: reads new and changed files, and removes the passages of files
    /// that are gone. Requests of other processes are carried out first. In the end, small segments are merged, and no
    /// file of the folder has text of removed or replaced passages.
    ///
    /// Files and folders that cannot be read are skipped, with the reason in the report; what the index has of them
    /// stays, except if the file was readable and is no source any more.
    ///
    /// # Errors
    /// The folder of the index cannot be written. What was committed stays; the next writer finishes the rest.
    pub fn update(&mut self, on_progress: &mut OnProgress<'_>) -> Result<UpdateReport, NotesError> {
        self.check_running()?;
        self.take_requests()?;
        self.wants_update = false;
        let roots: Vec<PathBuf> = self.sources.roots.iter().cloned().collect();
        let walk = self.walk(&roots);
        let report = self.apply(walk, &roots, on_progress)?;
        self.merge_small()?;
        match report.is_incomplete {
            true => self.purge_passages()?,
            false => self.purge()?,
        }
        Ok(report)
    }

    /// Compares the index with the files at the given paths, and below them. Paths that updates do not read are ignored.
    /// The change is visible to readers on return; the text of replaced and removed passages stays on the disk until
    /// [`purge`](Self::purge), [`maintain`](Self::maintain) or [`update`](Self::update).
    ///
    /// # Errors
    /// As [`update`](Self::update).
    pub fn update_paths<P: AsRef<Path>>(&mut self, changed: &[P]) -> Result<UpdateReport, NotesError> {
        self.check_running()?;
        let changed: Vec<PathBuf> =
            changed.iter().map(|path| paths::absolute(path.as_ref())).collect::<Result<_, _>>()?;
        // Roots behind hidden and forgotten folders are not reached from above.
        let roots = changed.iter().flat_map(|path| self.sources.roots_below(path)).cloned();
        let mut starts: Vec<PathBuf> = roots.collect();
        let is_own = |path: &Path| path.starts_with(&self.folder);
        starts.extend(changed.into_iter().filter(|path| self.sources.is_read(path) && !is_own(path)));
        starts.sort_unstable();
        // A folder comes before its contents, and contains them.
        starts.dedup_by(|path, before| {
            path == before || path.starts_with(&*before) && !self.sources.roots.contains(path)
        });
        let mut walk = self.walk(&starts);
        if walk.has_other_names || starts.iter().any(|path| self.sources.leads_through_link(path)) {
            starts = self.sources.roots.iter().cloned().collect();
            walk = self.walk(&starts);
        }
        self.apply(walk, &starts, &mut |_, _| ControlFlow::Continue(()))
    }

    fn walk(&self, starts: &[PathBuf]) -> Walk {
        let bounds = self.sources.bounds();
        walk(starts.iter().map(PathBuf::as_path), &self.sources, &self.folder, self.limits(&bounds))
    }

    fn limits<'a>(&self, bounds: &'a Bounds) -> Limits<'a> {
        Limits {
            file_bytes_max: self.sources.settings.file_bytes_max,
            n_entries_max: self.options.n_entries_max,
            bounds,
        }
    }

    /// All names of the files at and below each path.
    pub(super) fn names(&self, named: &[PathBuf]) -> Vec<Names> {
        names(named, &self.sources, &self.catalogue, &self.folder, self.limits(&Bounds::default()))
    }

    /// Brings the index in agreement with a walk of `starts`.
    fn apply(
        &mut self,
        walk: Walk,
        starts: &[PathBuf],
        on_progress: &mut OnProgress<'_>,
    ) -> Result<UpdateReport, NotesError> {
        let mut report = UpdateReport { skipped: walk.skipped, ..UpdateReport::default() };
        self.remove_missing(&walk.found, &walk.unknown, &walk.cut, starts, &mut report);
        let (same, to_read): (Vec<Found>, Vec<Found>) =
            walk.found.into_iter().partition(|found| self.is_same(found));
        report.n_unchanged = same.len();
        let total: u64 = to_read.iter().map(|found| found.stamp.bytes).sum();
        let (mut done, mut n_uncommitted, mut has_stamps) = (0, 0, false);
        for batch in batches(&to_read) {
            if on_progress(done, total).is_break() {
                report.is_incomplete = true;
                break;
            }
            for (found, ingested) in batch.iter().zip(self.ingest_all(batch)) {
                report.n_read += 1;
                done += found.stamp.bytes;
                has_stamps = true;
                n_uncommitted += self.take(found, ingested, &mut report)?;
                if n_uncommitted >= PASSAGES_PER_COMMIT {
                    self.commit()?;
                    n_uncommitted = 0;
                }
            }
        }
        if n_uncommitted > 0 || has_stamps || report.is_change() {
            self.commit()?;
        }
        report.add_requests(std::mem::take(&mut self.carried_out));
        let _ = on_progress(done, total);
        Ok(report)
    }

    /// Removes what the walk has not found, except below paths that it could not read. Files that it did not look for,
    /// because of its limit, are looked for here.
    fn remove_missing(
        &mut self,
        found: &[Found],
        unknown: &[PathBuf],
        cut: &[PathBuf],
        starts: &[PathBuf],
        report: &mut UpdateReport,
    ) {
        let found: HashSet<&Path> = found.iter().map(|found| found.path.as_path()).collect();
        // A file that the walk saw and could not examine may be readable later.
        let unreadable: HashSet<PathBuf> = report
            .skipped
            .iter()
            .filter(|skipped| matches!(skipped.reason, SkipReason::Unreadable(_)))
            .map(|skipped| skipped.path.clone())
            .collect();
        let mut missing = Vec::new();
        for start in starts {
            let below = self.catalogue.entries.range(start.clone()..);
            // Paths are ordered by components, so those below `start` follow each other.
            for path in below.map(|(path, _)| path).take_while(|path| path.starts_with(start)) {
                let is_kept = found.contains(path.as_path())
                    || unknown.iter().any(|unknown| path.starts_with(unknown))
                    || unreadable.contains(path)
                    || cut.iter().any(|cut| path.starts_with(cut)) && !is_gone(path);
                if !is_kept {
                    missing.push(path.clone());
                }
            }
        }
        report.n_removed += missing.len();
        missing.iter().for_each(|path| self.remove_file(path));
    }

    /// Whether the file's stamp proves that its contents are those in the index.
    fn is_same(&self, found: &Found) -> bool {
        let entry = self.catalogue.entries.get(&found.path);
        !self.options.reads_all && entry.is_some_and(|entry| entry.is_settled && entry.stamp == found.stamp)
    }

    fn ingest_all(&self, batch: &[Found]) -> Vec<Ingested> {
        let (bytes_max, n_overlap) = (self.sources.settings.file_bytes_max, self.options.n_overlap_words);
        let (entries, languages) = (&self.catalogue.entries, &self.languages);
        let bounds = self.sources.bounds();
        threads::map(batch, |found| {
            ingest(found, entries.get(&found.path), &bounds, bytes_max, n_overlap, languages)
        })
    }

    /// Takes a file into the next commit. Returns the number of its new passages.
    fn take(
        &mut self,
        found: &Found,
        ingested: Ingested,
        report: &mut UpdateReport,
    ) -> Result<usize, NotesError> {
        let mut skip = |reason| report.skipped.push(SkippedSource { path: found.path.clone(), reason });
        match ingested {
            Ingested::Same { stamp, is_settled } => {
                if let Some(entry) = self.catalogue.entries.get_mut(&found.path) {
                    (entry.stamp, entry.is_settled) = (stamp, is_settled);
                }
                report.n_unchanged += 1;
                Ok(0)
            }
            Ingested::Unreadable(reason) => {
                skip(reason);
                Ok(0)
            }
            Ingested::Refused(reason) => {
                skip(reason);
                report.n_removed += usize::from(self.catalogue.entries.contains_key(&found.path));
                self.remove_file(&found.path);
                Ok(0)
            }
            Ingested::New { stamp, is_settled, hash, contents } => {
                let FileContents { passages, mut names, lost } = contents;
                lost.into_iter().for_each(&mut skip);
                match self.catalogue.entries.contains_key(&found.path) {
                    true => report.n_changed += 1,
                    false => report.n_added += 1,
                }
                self.remove_file(&found.path);
                let file = self.catalogue.new_file();
                // A root may lie in another one.
                let root = found.path.ancestors().filter(|&path| self.sources.roots.contains(path)).last();
                names.extend(names_in(&found.path, root.unwrap_or(&found.path)));
                for passage in &passages {
                    let document = self.store.fields.document(passage, file, &names);
                    self.writer.add_document(document).map_err(index_error(&self.store.words))?;
                }
                let n_passages = passages.len();
                let entry = Entry { file, stamp, is_settled, hash, n_passages: n_passages as u32 };
                self.catalogue.entries.insert(found.path.clone(), entry);
                report.n_passages += n_passages;
                Ok(n_passages)
            }
        }
    }
}

/// The name of a file without its extension, and those of the folders between it and its root; as many as fit.
fn names_in(path: &Path, root: &Path) -> Vec<String> {
    let folders = path.ancestors().skip(1).take_while(|&folder| folder != root && folder.starts_with(root));
    let names = path.file_stem().into_iter().chain(folders.filter_map(Path::file_name));
    let mut n_bytes = 0;
    let names = names.map(|name| name.to_string_lossy().into_owned()).take_while(|name| {
        n_bytes += name.len();
        n_bytes <= NAMES_BYTES_MAX
    });
    names.collect()
}

/// Whether no file is at a path any more.
fn is_gone(path: &Path) -> bool {
    path.metadata()
        .is_err_and(|error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory))
}

/// Runs of files of bounded number and length.
fn batches(files: &[Found]) -> impl Iterator<Item = &[Found]> {
    let mut rest = files;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |found: &&Found| {
            bytes += found.stamp.bytes;
            bytes <= BATCH_BYTES
        };
        let n_files = rest.iter().take(BATCH_FILES).take_while(fits).count().max(1);
        let (batch, after) = rest.split_at_checked(n_files)?;
        rest = after;
        Some(batch)
    })
}
