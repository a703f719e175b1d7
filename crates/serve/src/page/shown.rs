//! What the page was shown since the start: passages under ids, and the list of answers. It is in memory, bounded, and forgotten with what it
//! was made from.

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};

use refrain_assistant::Passage;
use refrain_index::Locator;
use refrain_index::notes::document_id;
use serde::Serialize;

/// Passages that can be opened. Beyond it, the oldest cannot.
const SOURCES_MAX: usize = 2048;
/// Entries of the history. Beyond it, the oldest go.
const ENTRIES_MAX: usize = 256;
/// Bytes of all texts of the passages, and of the entries.
const BYTES_MAX: usize = 8 << 20;

#[derive(Debug, Default)]
pub(super) struct Shown {
    sources: VecDeque<Source>,
    entries: VecDeque<Entry>,
    n_entries: u64,
    /// Deletions so far: a job that began before one leaves nothing here.
    n_forgotten: u64,
}

/// A passage that an answer was made from.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub(super) id: String,
    pub(super) path: PathBuf,
    pub(super) title: String,
    pub(super) text: String,
    /// The bytes of the note that it was read from.
    pub(super) place: Range<u64>,
    /// The line or page on which it begins.
    pub(super) locator: Option<Locator>,
}

/// What the page shows of a source that it can open.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SourceName {
    pub(super) id: String,
    pub(super) title: String,
    pub(super) file: String,
}

/// A request that was answered.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Entry {
    pub(super) id: u64,
    pub(super) kind: &'static str,
    pub(super) at_ms: u64,
    pub(super) request: String,
    pub(super) text: String,
    pub(super) tokens: usize,
    pub(super) steps: usize,
    pub(super) is_kept: bool,
    pub(super) notes: Vec<SourceName>,
    #[serde(skip)]
    pub(super) paths: Vec<PathBuf>,
}

impl Shown {
    pub(super) fn n_forgotten(&self) -> u64 {
        self.n_forgotten
    }

    pub(super) fn source(&self, id: &str) -> Option<&Source> {
        self.sources.iter().find(|source| source.id == id)
    }

    /// Puts a passage under an id, the one that it has already if there is one. `None` for a passage that is from no note.
    pub(super) fn show(&mut self, passage: &Passage, new_id: impl FnOnce() -> String) -> Option<SourceName> {
        let note = passage.source.as_ref()?;
        let is_same = |known: &Source| {
            known.path == note.path && known.place == note.place && known.text == passage.text
        };
        let id = match self.sources.iter().position(is_same) {
            // The newest ones last.
            Some(at) => {
                let known = self.sources.remove(at)?;
                let id = known.id.clone();
                self.sources.push_back(known);
                id
            }
            None => {
                let id = new_id();
                self.sources.push_back(Source {
                    id: id.clone(),
                    path: note.path.clone(),
                    title: passage.title.clone(),
                    text: passage.text.clone(),
                    place: note.place.clone(),
                    locator: note.locator,
                });
                keep_newest(&mut self.sources, SOURCES_MAX, |source| source.text.len());
                id
            }
        };
        Some(SourceName { id, title: passage.title.clone(), file: short_path(&note.path) })
    }

    /// Adds an entry, unless something was forgotten since the job began.
    pub(super) fn add(&mut self, mut entry: Entry, n_forgotten: u64) {
        if n_forgotten == self.n_forgotten {
            self.n_entries += 1;
            entry.id = self.n_entries;
            self.entries.push_back(entry);
            keep_newest(&mut self.entries, ENTRIES_MAX, |entry| entry.text.len() + entry.request.len());
        }
    }

    /// Newest first.
    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().rev()
    }

    /// Also of a folder with every note below it.
    pub(super) fn forget_note(&mut self, path: &Path) {
        self.n_forgotten += 1;
        self.sources.retain(|source| !source.path.starts_with(path));
        self.entries.retain(|entry| !entry.paths.iter().any(|of| of.starts_with(path)));
    }

    pub(super) fn forget_before(&mut self, at_ms: u64) {
        self.n_forgotten += 1;
        self.entries.retain(|entry| entry.at_ms >= at_ms);
    }

    pub(super) fn forget_everything(&mut self) {
        self.n_forgotten += 1;
        self.sources.clear();
        self.entries.clear();
    }
}

fn keep_newest<T>(items: &mut VecDeque<T>, n_max: usize, bytes: impl Fn(&T) -> usize) {
    let mut total: usize = items.iter().map(&bytes).sum();
    while items.len() > n_max || (total > BYTES_MAX && items.len() > 1) {
        total -= items.pop_front().as_ref().map_or(0, &bytes);
    }
}

/// The file's name with its folder's, enough to know it by. A document without a file has the path that stands for its id.
pub(crate) fn short_path(path: &Path) -> String {
    if document_id(path).is_some() {
        return path.display().to_string();
    }
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let folder = path.parent().and_then(name);
    folder.into_iter().chain(name(path)).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passage(path: &str, text: &str) -> Passage {
        Passage::new("title", text).of_note(path).unwrap()
    }

    fn entry(path: &str, at_ms: u64) -> Entry {
        Entry {
            id: 0,
            kind: "answer",
            at_ms,
            request: "q".to_owned(),
            text: "a".to_owned(),
            tokens: 1,
            steps: 1,
            is_kept: true,
            notes: Vec::new(),
            paths: vec![PathBuf::from(path)],
        }
    }

    #[test]
    fn a_passage_keeps_its_id_until_its_note_is_forgotten() {
        let mut shown = Shown::default();
        let mut n = 0;
        let mut show = |shown: &mut Shown, passage: &Passage| {
            n += 1;
            shown.show(passage, || format!("src_{n}")).unwrap().id
        };
        let (a, b) = (passage("/n/a.md", "one"), passage("/n/b.md", "two"));
        assert_eq!(
            [show(&mut shown, &a), show(&mut shown, &b), show(&mut shown, &a)],
            ["src_1", "src_2", "src_1"]
        );
        assert_eq!(shown.source("src_1").unwrap().text, "one");
        shown.add(entry("/n/a.md", 5), 0);
        shown.add(entry("/n/b.md", 6), 0);
        shown.forget_note(Path::new("/n/a.md"));
        assert!(shown.source("src_1").is_none() && shown.source("src_2").is_some());
        assert_eq!(shown.entries().map(|entry| entry.at_ms).collect::<Vec<_>>(), [6]);
        // A job that began before the deletion leaves nothing.
        shown.add(entry("/n/a.md", 7), 0);
        shown.add(entry("/n/b.md", 8), 1);
        shown.forget_before(8);
        assert_eq!(shown.entries().map(|entry| (entry.id, entry.at_ms)).collect::<Vec<_>>(), [(3, 8)]);
        shown.forget_everything();
        assert_eq!((shown.entries().count(), shown.sources.len()), (0, 0));
        assert!(shown.show(&Passage::new("", "given"), String::new).is_none());
    }

    #[test]
    fn both_lists_are_bounded() {
        let mut shown = Shown::default();
        for n in 0..SOURCES_MAX + 5 {
            shown.show(&passage("/n/a.md", &n.to_string()), || n.to_string());
        }
        assert_eq!((shown.sources.len(), shown.sources[0].text.as_str()), (SOURCES_MAX, "5"));
        for _ in 0..3 {
            shown.add(Entry { text: "x".repeat(BYTES_MAX / 2), ..entry("/n/a.md", 1) }, 0);
        }
        assert_eq!(shown.entries.len(), 1);
    }

    #[test]
    fn a_file_is_named_with_its_folder() {
        assert_eq!(short_path(Path::new("/home/ada/notes/trip.md")), "notes/trip.md");
        assert_eq!(short_path(Path::new("/trip.md")), "trip.md");
        assert_eq!(short_path(Path::new("document:/trips/7")), "document:/trips/7");
    }
}
