//! Watching: changes in the folders are in the index shortly after they happen.
//!
//! The system reports changed paths to a bounded queue. After a pause of [`PAUSE`], or [`WAIT_MAX`] after the first
//! report, the paths are compared with the index. The folders of roots are watched too, so that a root is noticed when it is
//! replaced or comes back. If the queue was full, or the system has lost reports, everything is
//! compared. Text of replaced passages is removed from the disk when no note has changed for [`IDLE`], or after
//! [`PURGE_MAX`].

use std::collections::BTreeSet;
use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TrySendError, sync_channel};
use std::time::{Duration, Instant};

use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use refrain::CancelToken;
use walkdir::{DirEntry, WalkDir};

use super::error::NotesError;
use super::report::UpdateReport;
use super::sources::Sources;
use super::writer::NotesWriter;
use super::{files, inbox};

/// Reports that wait. A program that writes more files at once causes a comparison of everything, which is faster.
const QUEUE: usize = 1024;

/// Editors write a file in several steps.
const PAUSE: Duration = Duration::from_millis(200);

/// A file that changes all the time is in the index after this time.
const WAIT_MAX: Duration = Duration::from_secs(2);

/// The time after which nothing is expected to happen.
const IDLE: Duration = Duration::from_secs(5);

/// Longest time that replaced text stays on the disk while changes go on.
const PURGE_MAX: Duration = Duration::from_secs(60);

/// How often a cancellation is looked for.
const TICK: Duration = Duration::from_millis(50);

impl NotesWriter {
    /// Keeps the index in agreement with the notes until `cancel` is set. Begins with an [`update`](Self::update), and
    /// carries out the requests of other processes. `on_report` receives each update that has changed or skipped
    /// something; the first one always. It may [`tokenize`](Self::tokenize) and [`embed`](Self::embed) the new passages;
    /// changes of the notes wait meanwhile.
    ///
    /// # Errors
    /// [`NotesError::Watch`]: the system cannot watch a folder, for example because of its limit on watches. Others as
    /// for [`update`](Self::update), and those of `on_report`.
    pub fn watch(
        &mut self,
        cancel: &CancelToken,
        on_report: &mut dyn FnMut(&mut Self, &UpdateReport) -> Result<(), NotesError>,
    ) -> Result<(), NotesError> {
        let mut watching = Watching::start(self)?;
        let mut on_progress = |_: u64, _: u64| match cancel.is_cancelled() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        let report = self.update(&mut on_progress)?;
        on_report(self, &report)?;
        // The first and the newest change since the last purge.
        let mut unpurged: Option<(Instant, Instant)> = None;
        while !cancel.is_cancelled() {
            let changed = watching.changed(cancel);
            if unpurged
                .is_some_and(|(first, newest)| newest.elapsed() >= IDLE || first.elapsed() >= PURGE_MAX)
            {
                self.maintain()?;
                unpurged = None;
            }
            let Some(changed) = changed else { continue };
            let report = match changed {
                Changed::Paths(paths) => {
                    let requests = inbox::path(&self.folder);
                    let (asked, notes): (Vec<PathBuf>, Vec<PathBuf>) =
                        paths.into_iter().partition(|path| path.starts_with(&requests));
                    if !asked.is_empty() {
                        self.take_requests()?;
                    }
                    if self.wants_update {
                        // New roots are watched too.
                        watching = Watching::start(self)?;
                        self.update(&mut on_progress)?
                    } else {
                        // Before they are read, so that nothing changes unseen in between.
                        notes.iter().try_for_each(|path| watching.add(path, &self.sources, &self.folder))?;
                        self.update_paths(&notes)?
                    }
                }
                Changed::Unknown => {
                    // Reports of new folders may be among the lost ones.
                    watching = Watching::start(self)?;
                    self.update(&mut on_progress)?
                }
            };
            if report.is_change() {
                let now = Instant::now();
                unpurged = Some((unpurged.map_or(now, |(first, _)| first), now));
            }
            if report.is_notable() {
                on_report(self, &report)?;
            }
        }
        self.maintain().map(drop)
    }
}

/// What has changed.
#[derive(Debug, PartialEq, Eq)]
enum Changed {
    Paths(Vec<PathBuf>),
    /// Reports were lost.
    Unknown,
}

/// A running watch.
struct Watching {
    reports: Receiver<PathBuf>,
    has_lost: Arc<AtomicBool>,
    /// Ends on drop.
    watcher: RecommendedWatcher,
}

/// Whether the system watches a folder without its subfolders. notify then watches each of them, and fails if it may not
/// read one; here, folders that updates do not read are not watched, and unreadable ones are left out.
const WATCHES_EACH_FOLDER: bool = cfg!(any(target_os = "linux", target_os = "android"));

impl Watching {
    fn start(writer: &NotesWriter) -> Result<Self, NotesError> {
        let (sources, own_folder) = (&writer.sources, &writer.folder);
        let requests = inbox::path(own_folder);
        files::create_folder(&requests)?;
        let (sender, reports) = sync_channel(QUEUE);
        let has_lost = Arc::new(AtomicBool::new(false));
        let lost = Arc::clone(&has_lost);
        // The index reads notes itself, and its own files may lie below a root.
        let is_relevant = {
            let (sources, own_folder, requests) = (sources.clone(), own_folder.clone(), requests.clone());
            move |path: &Path| match path.starts_with(&own_folder) {
                true => path.starts_with(&requests),
                false => sources.is_read(path) || sources.roots_below(path).next().is_some(),
            }
        };
        let on_event = move |event: notify::Result<Event>| {
            let Ok(event) = event else { return lost.store(true, Ordering::Release) };
            if event.need_rescan() {
                lost.store(true, Ordering::Release);
            }
            if matches!(event.kind, EventKind::Access(_)) {
                return;
            }
            for path in event.paths.into_iter().filter(|path| is_relevant(path)) {
                if let Err(TrySendError::Full(_)) = sender.try_send(path) {
                    lost.store(true, Ordering::Release);
                }
            }
        };
        let watcher = notify::recommended_watcher(on_event).map_err(|source| {
            let path = own_folder.to_path_buf();
            NotesError::Watch { path, source }
        })?;
        let mut watching = Self { reports, has_lost, watcher };
        watching.watch(&requests, RecursiveMode::NonRecursive)?;
        for root in &sources.roots {
            // A root is created, replaced or renamed in its folder.
            if let Some(parent) = root.parent().filter(|parent| !sources.is_read(parent)) {
                watching.watch(parent, RecursiveMode::NonRecursive)?;
            }
            watching.add(root, sources, own_folder)?;
        }
        Ok(watching)
    }

    /// Watches a folder that updates read, with its subfolders. Ignores other paths.
    fn add(&mut self, path: &Path, sources: &Sources, own_folder: &Path) -> Result<(), NotesError> {
        if !WATCHES_EACH_FOLDER {
            let is_new = sources.roots.contains(path) && path.is_dir();
            return if is_new { self.watch(path, RecursiveMode::Recursive) } else { Ok(()) };
        }
        let bounds = sources.bounds();
        let is_read = |entry: &DirEntry| {
            let path = entry.path();
            let is_skipped = path == own_folder || !sources.is_read(path);
            let leads_out = || {
                let is_link = entry.path_is_symlink() && !sources.roots.contains(path);
                is_link && sources.check_target(path, &bounds).is_err()
            };
            entry.file_type().is_dir() && !is_skipped && !leads_out()
        };
        let folders = WalkDir::new(path).follow_links(true).into_iter().filter_entry(is_read);
        let folders: Vec<DirEntry> = folders.filter_map(Result::ok).collect();
        // The system reports changes in a folder under the last name that was watched: one that no link leads through.
        let is_linked =
            |entry: &DirEntry| entry.path().ancestors().take(entry.depth() + 1).any(Path::is_symlink);
        let (linked, plain): (Vec<_>, Vec<_>) = folders.into_iter().partition(is_linked);
        linked
            .iter()
            .chain(&plain)
            .try_for_each(|entry| self.watch(entry.path(), RecursiveMode::NonRecursive))
    }

    /// Watches a path. One that is not there, or may not be read, is left out: an update reports it.
    fn watch(&mut self, path: &Path, mode: RecursiveMode) -> Result<(), NotesError> {
        let is_left_out = |error: &notify::Error| match &error.kind {
            notify::ErrorKind::PathNotFound => true,
            notify::ErrorKind::Io(error) => {
                matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::NotFound)
            }
            _ => !path.exists(),
        };
        match self.watcher.watch(path, mode) {
            Err(error) if is_left_out(&error) => Ok(()),
            watched => watched.map_err(|source| NotesError::Watch { path: path.to_owned(), source }),
        }
    }

    /// Waits for reports, for at most a tick without one. `None` if there was none.
    fn changed(&self, cancel: &CancelToken) -> Option<Changed> {
        collect(&self.reports, &self.has_lost, || cancel.is_cancelled())
    }
}

/// Collects reports until they pause.
fn collect(
    reports: &Receiver<PathBuf>,
    has_lost: &AtomicBool,
    is_cancelled: impl Fn() -> bool,
) -> Option<Changed> {
    let mut paths = BTreeSet::new();
    let mut last = Instant::now();
    let first = last;
    loop {
        match reports.recv_timeout(TICK) {
            Ok(path) => {
                paths.insert(path);
                last = Instant::now();
            }
            Err(RecvTimeoutError::Timeout) => {}
            // The watcher has ended, which the system does not do.
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(TICK),
        }
        let is_lost = has_lost.load(Ordering::Acquire);
        if paths.is_empty() && !is_lost {
            return None;
        }
        let is_due = last.elapsed() >= PAUSE || first.elapsed() >= WAIT_MAX || is_cancelled();
        if is_due && has_lost.swap(false, Ordering::AcqRel) {
            // What is lost is compared together with what is queued.
            while reports.try_recv().is_ok() {}
            return Some(Changed::Unknown);
        }
        if is_due {
            return Some(Changed::Paths(paths.into_iter().collect()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_collected_and_an_overflow_means_everything() {
        let (sender, reports) = sync_channel(2);
        let has_lost = AtomicBool::new(false);
        assert_eq!(collect(&reports, &has_lost, || false), None);
        sender.send("/b".into()).unwrap();
        sender.send("/a".into()).unwrap();
        assert!(sender.try_send("/c".into()).is_err());
        let paths = vec![PathBuf::from("/a"), PathBuf::from("/b")];
        assert_eq!(collect(&reports, &has_lost, || false), Some(Changed::Paths(paths)));
        sender.send("/d".into()).unwrap();
        has_lost.store(true, Ordering::Release);
        assert_eq!(collect(&reports, &has_lost, || false), Some(Changed::Unknown));
        assert_eq!(collect(&reports, &has_lost, || false), None);
    }
}
