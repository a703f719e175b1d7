//! What a task has searched the notes for, and whether the notes have it.

use std::fmt;

use refrain_index::SearchedWord;

use crate::passage::Passage;

/// What a task has searched the notes for.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Searched {
    /// The words: those of the request, then those of earlier turns, which weigh less.
    pub words: Vec<SearchedWord>,
    /// The largest [coverage](refrain_index::NoteHit::coverage) of a passage that was found, 0 to 1.
    pub coverage: f32,
    /// The passages that were found and are not shown, because none covers enough of the request
    /// ([`AssistantOptions::coverage_min`](crate::AssistantOptions::coverage_min)); best first. Empty otherwise.
    pub nearest: Vec<Passage>,
    /// Whether they cover too little.
    pub(crate) is_too_far: bool,
}

impl Searched {
    /// What an app has searched texts of its own for, which do not have it.
    pub fn in_vain(words: Vec<SearchedWord>, coverage: f32, nearest: Vec<Passage>) -> Self {
        Self { words, coverage, nearest, is_too_far: true }
    }

    /// Whether the notes have no answer: nothing was found, or nothing that covers enough of the request.
    pub fn is_not_in_notes(&self) -> bool {
        self.is_too_far
    }

    /// The different titles of the nearest passages; of a passage without one, the name of its note.
    pub fn nearest_titles(&self) -> Vec<String> {
        let mut titles: Vec<String> = Vec::new();
        for passage in &self.nearest {
            let name =
                || passage.source.as_ref()?.path.file_name().map(|name| name.to_string_lossy().into_owned());
            let title = match passage.title.as_str() {
                "" => name().unwrap_or_default(),
                title => title.to_owned(),
            };
            if !titles.contains(&title) {
                titles.push(title);
            }
        }
        titles
    }
}

/// `dentist, charge; from earlier turns: practice`
impl fmt::Display for Searched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let join = |words: Vec<&SearchedWord>| {
            words.into_iter().map(|word| word.text.as_str()).collect::<Vec<_>>().join(", ")
        };
        let (own, earlier): (Vec<_>, Vec<_>) = self.words.iter().partition(|word| word.weight >= 1.0);
        match (own.is_empty(), earlier.is_empty()) {
            (_, true) => write!(f, "{}", join(own)),
            (true, false) => write!(f, "from earlier turns: {}", join(earlier)),
            (false, false) => write!(f, "{}; from earlier turns: {}", join(own), join(earlier)),
        }
    }
}
