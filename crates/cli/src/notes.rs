//! The notes of a server: an index, or folders that are added to one and watched while the server runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use refrain::CancelToken;
use refrain_index::NotesError;
use refrain_index::notes::{NotesIndex, NotesOptions, NotesWriter, Request};

use crate::failure::{Exit, Failure};
use crate::index::{folder_or_default, note_repairs, note_report, open_named, proceeds};
use crate::interrupt::Interrupt;
use crate::key::key;
use crate::progress::Progress;
use crate::terminal::{note, visible};

/// Time until notes that cannot be watched are compared again.
const RETRY: Duration = Duration::from_secs(30);
/// How often a stop is looked for meanwhile.
const TICK: Duration = Duration::from_millis(50);

/// What `--notes` names.
pub(crate) struct Notes {
    /// The folder of the index.
    index: PathBuf,
    /// Folders and files that the index reads from now on; none if the index was named itself.
    folders: Vec<PathBuf>,
}

impl Notes {
    /// Tells an index from folders of notes. `index` names the index of the folders.
    ///
    /// # Errors
    /// A path does not exist; an index is named together with folders; an index that was named has no notes.
    pub(crate) fn find(named: &[PathBuf], index: Option<&Path>) -> Result<Self, Failure> {
        if let Some(missing) = named.iter().find(|path| !path.exists()) {
            let problem = format!("`{}` does not exist", missing.display());
            return Err(Failure::input(problem, "--notes names folders of notes, or the folder of an index"));
        }
        let is_index = |path: &&PathBuf| -> Result<bool, Failure> {
            let key = key()?;
            match path.is_dir().then(|| NotesIndex::roots_in(path, key.as_ref())) {
                None | Some(Err(NotesError::Foreign { .. })) => Ok(false),
                Some(roots) => Ok(roots?.is_some()),
            }
        };
        let indexes = named.iter().map(|path| is_index(&path)).collect::<Result<Vec<_>, _>>()?;
        match (named, indexes.contains(&true)) {
            ([only], true) if index.is_none() => {
                let (index, _) = open_named(Some(only))?;
                Ok(Self { index, folders: Vec::new() })
            }
            (_, true) => {
                let advice = "name one index alone, or folders of notes";
                Err(Failure::usage("--notes names an index beside other notes", advice))
            }
            ([], _) => {
                let (index, _) = open_named(index)?;
                Ok(Self { index, folders: Vec::new() })
            }
            (folders, _) => Ok(Self { index: folder_or_default(index)?, folders: folders.to_vec() }),
        }
    }

    /// The folder of the index.
    pub(crate) fn index(&self) -> &Path {
        &self.index
    }

    /// Adds the folders to the index. With `reads`, they are read now, else when they are watched.
    ///
    /// # Errors
    /// The index cannot be changed, or the user has interrupted the reading.
    pub(crate) fn keep(&self, reads: bool, interrupt: &Interrupt) -> Result<Keeping, Failure> {
        let key = key()?;
        let mut keeping = Keeping::new(&self.index, key);
        if self.folders.is_empty() {
            keeping.ready.set();
            return Ok(keeping);
        }
        keeping.watches = true;
        let request = Request::Add(self.folders.clone());
        let options = NotesOptions { key, ..NotesOptions::default() };
        let writer = NotesWriter::open_or_hand_in(&self.index, options, &request)?;
        let Some(mut writer) = writer else {
            note("another process writes the index: the notes are left to it");
            keeping.ready.set();
            return Ok(keeping);
        };
        note_repairs(&writer);
        writer.add(&self.folders)?;
        if reads {
            let cancel = CancelToken::new();
            let _cancelling = interrupt.cancels(cancel.clone());
            let report = {
                let progress = Progress::bytes("reading notes");
                writer.update(&mut |done, total| {
                    progress.set(done, total);
                    proceeds(&cancel)
                })?
            };
            if report.is_incomplete {
                writer.leave()?;
                return Err(Failure::new(Exit::Interrupted, "interrupted while notes were read"));
            }
            note_report(&report);
            keeping.ready.set();
        }
        let roots: Vec<String> = writer.roots().map(|root| format!("`{}`", root.display())).collect();
        note(&visible(&format!(
            "notes of {}, and what changes there; index in `{}`",
            roots.join(", "),
            self.index.display()
        )));
        Ok(keeping)
    }
}

/// Keeps an index up to date on a thread of its own until it is dropped.
pub(crate) struct Keeping {
    index: PathBuf,
    key: Option<[u8; 32]>,
    watches: bool,
    ready: Arc<Ready>,
    cancel: CancelToken,
    thread: Option<JoinHandle<()>>,
}

/// Whether the notes have been read once.
#[derive(Debug, Default)]
pub(crate) struct Ready {
    is_set: Mutex<bool>,
    changed: Condvar,
}

impl Ready {
    fn set(&self) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits until the notes have been read, or cannot be.
    pub(crate) fn wait(&self) {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(is_set, |is_set| !*is_set));
    }
}

impl Keeping {
    fn new(index: &Path, key: Option<[u8; 32]>) -> Self {
        Self {
            index: index.to_owned(),
            key,
            watches: false,
            ready: Arc::default(),
            cancel: CancelToken::new(),
            thread: None,
        }
    }

    pub(crate) fn ready(&self) -> Arc<Ready> {
        Arc::clone(&self.ready)
    }

    /// Starts to watch, if there is something to watch. `searched` shows each change.
    pub(crate) fn watch(&mut self, searched: Option<&NotesIndex>) {
        if !self.watches {
            return;
        }
        let watching = Watching {
            index: self.index.clone(),
            key: self.key,
            ready: Arc::clone(&self.ready),
            cancel: self.cancel.clone(),
            searched: searched.cloned(),
        };
        let thread = std::thread::Builder::new().name("refrain-notes".to_owned());
        match thread.spawn(move || watching.run()) {
            Ok(thread) => self.thread = Some(thread),
            Err(error) => {
                note(&format!("changes of the notes are not seen: {error}"));
                self.ready.set();
            }
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.ready.set();
        if let Some(thread) = self.thread.take() {
            // Its panic was reported.
            let _ = thread.join();
        }
    }
}

struct Watching {
    index: PathBuf,
    key: Option<[u8; 32]>,
    ready: Arc<Ready>,
    cancel: CancelToken,
    searched: Option<NotesIndex>,
}

impl Watching {
    fn run(self) {
        // One notice for a problem that lasts.
        let told = OnceLock::new();
        while !self.cancel.is_cancelled() {
            if let Err(error) = self.watch()
                // Another process writes, and carries out what was left to it.
                && !matches!(error, NotesError::InUse { .. })
                && told.set(()).is_ok()
            {
                note(&visible(&format!(
                    "changes of the notes are read every {} s: {error}",
                    RETRY.as_secs()
                )));
            }
            self.ready.set();
            self.refresh();
            let started = Instant::now();
            while started.elapsed() < RETRY && !self.cancel.is_cancelled() {
                std::thread::sleep(TICK);
            }
        }
    }

    fn watch(&self) -> Result<(), NotesError> {
        let options = NotesOptions { key: self.key, ..NotesOptions::default() };
        let mut writer = NotesWriter::open(&self.index, options)?;
        let watched = writer.watch(&self.cancel, &mut |_, report| {
            if report.is_notable() {
                note_report(report);
            }
            self.refresh();
            self.ready.set();
            Ok(())
        });
        let mut on_progress = |_, _| proceeds(&self.cancel);
        if watched.is_err() && !self.cancel.is_cancelled() {
            // Without a watch, everything is compared.
            writer.update(&mut on_progress)?;
        }
        writer.close(&mut on_progress, &mut note_report)?;
        watched
    }

    fn refresh(&self) {
        if let Some(searched) = &self.searched {
            // If it cannot be read, the earlier state is searched.
            drop(searched.refresh());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_no_index_and_an_index_is_no_folder() {
        let place = tempfile::tempdir().unwrap();
        let (notes, index) = (place.path().join("notes"), place.path().join("index"));
        std::fs::create_dir(&notes).unwrap();
        // Also an empty one.
        for _ in 0..2 {
            let found = Notes::find(std::slice::from_ref(&notes), Some(&index)).unwrap_or_else(|_| panic!());
            assert_eq!((found.index(), &found.folders[..]), (&*index, std::slice::from_ref(&notes)));
            std::fs::write(notes.join("a.md"), "# Tap\n\nThe tap drips.").unwrap();
        }
        let mut writer = NotesWriter::open(&index, NotesOptions::default()).unwrap();
        // Its notes are none yet.
        assert!(Notes::find(std::slice::from_ref(&index), None).is_err());
        writer.add(std::slice::from_ref(&notes)).unwrap();
        writer.update(&mut |_, _| std::ops::ControlFlow::Continue(())).unwrap();
        let found = Notes::find(std::slice::from_ref(&index), None).unwrap_or_else(|_| panic!());
        assert_eq!((found.index(), found.folders.len()), (&*index, 0));
        assert!(Notes::find(&[index, notes], None).is_err());
        assert!(Notes::find(&[place.path().join("nowhere")], None).is_err());
    }
}
