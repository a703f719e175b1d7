//! Signs that a new text is not the edit that was asked for: most of the old text is gone, or the prompt stands in it.
//!
//! Small models answer, explain or begin anew where they should copy. The signs are measured in words, on the changes that
//! [`LiveDiff`](super::LiveDiff) has found. They cannot tell a wish from an accident: a translation drops all words, and so does an answer
//! in place of the text. Whoever asked for it decides.

use std::collections::HashMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::DiffEvent;
use crate::pieces::{Piece, Splitter};

/// A reason not to replace the old text by the new one without asking. Ranges are in bytes of the new text.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum EditDoubt {
    /// Fewer than half of the old text's words are in the new one, at their place or elsewhere, in upper or lower case. Signs do
    /// not count. Of a text that is edited in windows, the words of a window.
    #[error("the new text has {n_kept} of the {n_words} words of the old one")]
    DropsMost {
        /// Words of the old text that are in the new one.
        n_kept: usize,
        /// Words of the old text.
        n_words: usize,
    },
    /// The whole instruction was written into the text.
    #[error("the new text has the instruction in it")]
    HasInstruction {
        /// Its place.
        new: Range<usize>,
    },
    /// A text that is a part of prompts was written into the text: a control token as text, or a sentence of the prompt's template.
    #[error("the new text has `{marker}` in it, which is a part of the prompt")]
    HasMarker {
        /// The text.
        marker: String,
        /// Its place.
        new: Range<usize>,
    },
}

impl EditDoubt {
    /// The doubt about a text that begins at `start` of the whole.
    pub(crate) fn moved(mut self, start: usize) -> Self {
        if let Self::HasInstruction { new } | Self::HasMarker { new, .. } = &mut self {
            *new = start + new.start..start + new.end;
        }
        self
    }
}

/// Instructions of fewer words are not searched for: a text may come to have them by chance.
const INSTRUCTION_WORDS_MIN: usize = 2;

/// The doubts about an edit with these changes. `markers` are texts that prompts have and notes do not.
pub(crate) fn doubts<'a>(
    (old, new): (&str, &str),
    changes: &[DiffEvent],
    instruction: &str,
    markers: impl IntoIterator<Item = &'a str>,
) -> Vec<EditDoubt> {
    let inserted: Vec<&Range<usize>> = changes
        .iter()
        .filter_map(|change| match change {
            DiffEvent::Insert { new, .. } => Some(new),
            _ => None,
        })
        .collect();
    let is_inserted = |place: &Range<usize>| {
        let next = inserted.partition_point(|range| range.end <= place.start);
        inserted.get(next).is_some_and(|range| range.start < place.end)
    };
    let drops = drops_most((old, new), changes);
    let has_instruction =
        place_of(instruction, new, is_inserted).map(|new| EditDoubt::HasInstruction { new });
    let has_marker = markers.into_iter().find_map(|marker| {
        let places = new.match_indices(marker).map(|(at, _)| at..at + marker.len());
        let place = places.into_iter().find(is_inserted)?;
        Some(EditDoubt::HasMarker { marker: marker.to_owned(), new: place })
    });
    drops.into_iter().chain(has_instruction).chain(has_marker).collect()
}

fn drops_most((old, new): (&str, &str), changes: &[DiffEvent]) -> Option<EditDoubt> {
    // Words that were moved are deleted at one place and inserted at another.
    let mut moving: HashMap<String, usize> = HashMap::new();
    let (mut n_words, mut n_kept) = (0, 0);
    for change in changes {
        if let DiffEvent::Insert { new: range, .. } = change {
            words(&new[range.clone()]).for_each(|(_, word)| *moving.entry(word).or_default() += 1);
        }
    }
    for change in changes {
        match change {
            DiffEvent::Keep { old: range, .. } => {
                let n = words(&old[range.clone()]).count();
                (n_words, n_kept) = (n_words + n, n_kept + n);
            }
            DiffEvent::Delete { old: range } => {
                for (_, word) in words(&old[range.clone()]) {
                    n_words += 1;
                    if let Some(n) = moving.get_mut(&word).filter(|n| **n > 0) {
                        *n -= 1;
                        n_kept += 1;
                    }
                }
            }
            DiffEvent::Insert { .. } => {}
        }
    }
    (2 * n_kept < n_words).then_some(EditDoubt::DropsMost { n_kept, n_words })
}

/// The first place of `instruction` in `new` for which `is_new` holds; case, signs and white space may differ.
fn place_of(instruction: &str, new: &str, is_new: impl Fn(&Range<usize>) -> bool) -> Option<Range<usize>> {
    let wanted: Vec<String> = words(instruction).map(|(_, word)| word).collect();
    if wanted.len() < INSTRUCTION_WORDS_MIN {
        return None;
    }
    let (places, all): (Vec<Piece>, Vec<String>) = words(new).unzip();
    let mut found = all.windows(wanted.len()).enumerate().filter(|(_, window)| *window == wanted);
    found.find_map(|(at, _)| {
        let place = places[at].start..places[at + wanted.len() - 1].end;
        is_new(&place).then_some(place)
    })
}

/// The words of a text in lower case, with their places.
pub(super) fn words(text: &str) -> impl Iterator<Item = (Piece, String)> + '_ {
    let (mut splitter, mut pieces) = (Splitter::default(), Vec::new());
    splitter.read(text, |piece| pieces.push(piece));
    pieces.extend(splitter.finish());
    let is_word = |piece: &Piece| text[piece.clone()].contains(char::is_alphanumeric);
    pieces.into_iter().filter(is_word).map(|piece| (piece.clone(), text[piece].to_lowercase()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::edit::LiveDiff;

    fn of(old: &str, new: &str, instruction: &str) -> Vec<EditDoubt> {
        let mut diff = LiveDiff::new(old);
        let mut changes = diff.push(new);
        changes.extend(diff.finish());
        doubts((old, new), &changes, instruction, ["<|im_end|>", "Edit the text."])
    }

    fn drops(old: &str, new: &str) -> bool {
        of(old, new, "").iter().any(|doubt| matches!(doubt, EditDoubt::DropsMost { .. }))
    }

    const NOTE: &str = "# Trip\n\nThe train leaves at 08:15 from platform 4. Bring the tickets and the map.\n\nThe hotel is near the harbour. \
                        Breakfast is from seven to ten, and the key is at the bar.\n\nOn Sunday we visit Ada in her garden, with cake.\n";

    #[test]
    fn edits_that_keep_most_of_the_text_are_not_doubted() {
        let paragraphs: Vec<&str> = NOTE.split("\n\n").collect();
        let without_second = [paragraphs[0], paragraphs[1], paragraphs[3]].join("\n\n");
        let moved = [paragraphs[3].trim_end(), paragraphs[2], paragraphs[1], paragraphs[0]].join("\n\n");
        for new in [
            NOTE.to_owned(),
            without_second,
            moved,
            NOTE.to_uppercase(),
            NOTE.replace("08:15", "09:40"),
            NOTE.replace('\n', "\r\n"),
            NOTE.replace(". ", ".\n- "),
            format!("{NOTE}\n\nAnd much more text, which was not there before, about many other things.")
                .repeat(3),
        ] {
            assert_eq!(of(NOTE, &new, "Change it please"), [], "{new}");
        }
        let list = "pears\napples\nplums\ncherries\n";
        assert!(!drops(list, "apples\ncherries\npears\nplums\n"), "sorted");
        let typos = "teh trian leavs at nien";
        assert!(drops(typos, "the train leaves at nine"), "four of five words are others");
        assert!(!drops("", "Something."));
        assert!(!drops("--- ***\n", "text"), "no word is lost");
    }

    #[test]
    fn texts_that_lose_most_words_are_doubted() {
        for new in [
            "",
            "The train leaves at 08:15.",
            "A trip to the harbour.",
            "Sure! Here is the text with the changes that you asked for. Is there anything else that I can do for you today?",
            "# Reise\n\nDer Zug fährt um 08:15 von Gleis 4. Bring die Karten und den Plan mit.\n\nDas Hotel ist am Hafen. Frühstück gibt es von \
             sieben bis zehn, und der Schlüssel ist an der Bar.\n\nAm Sonntag besuchen wir Ada im Garten, mit Kuchen.\n",
        ] {
            assert!(drops(NOTE, new), "{new}");
        }
        assert!(drops("電車は八時に出ます。切符を持ってきてください。", "The train leaves at eight."));
        assert!(!drops(
            "電車は八時に出ます。切符を持ってきてください。",
            "電車は九時に出ます。切符を持ってきてください。"
        ));
        assert!(drops("поезд отходит в восемь часов утра", "The train leaves at eight."));
    }

    #[test]
    fn the_exact_half_is_kept() {
        assert!(!drops("one two three four", "one two"));
        assert!(drops("one two three four five", "one two"));
        let doubt = &of("one two three four five", "one two", "")[0];
        assert_eq!(*doubt, EditDoubt::DropsMost { n_kept: 2, n_words: 5 });
        assert_eq!(serde_json::to_string(doubt).unwrap(), r#"{"kind":"drops_most","n_kept":2,"n_words":5}"#);
    }

    #[test]
    fn an_instruction_in_the_text_is_found_in_any_dress() {
        let instruction = "Change 3 May to 4 May.";
        let has = |new: &str| {
            of(NOTE, new, instruction)
                .into_iter()
                .find(|doubt| matches!(doubt, EditDoubt::HasInstruction { .. }))
        };
        for echo in
            ["Request: Change 3 May to 4 May.", "CHANGE 3 MAY TO 4 MAY", "> change 3 May\n> to 4 May!"]
        {
            let new = format!("{NOTE}{echo}\n");
            let Some(EditDoubt::HasInstruction { new: place }) = has(&new) else { panic!("{echo}") };
            assert!(new[place.clone()].to_lowercase().starts_with("change") && place.start >= NOTE.len());
        }
        assert_eq!(has(&format!("{NOTE}Change 3 May to 5 May.")), None);
        assert_eq!(of(NOTE, &format!("{NOTE}Shorten"), "Shorten"), [], "one word may be the text's own");
        assert!(!of(NOTE, &format!("{NOTE}把文字改短"), "把文字改短").is_empty());
        // What the old text has is no leak.
        let old = format!("{NOTE}{instruction}");
        assert_eq!(of(&old, &old.replace("08:15", "09:40"), instruction), []);
    }

    #[test]
    fn markers_of_the_prompt_are_found_unless_the_text_had_them() {
        for marker in ["<|im_end|>", "Edit the text."] {
            let new = format!("{NOTE}{marker}\n");
            let expected = EditDoubt::HasMarker {
                marker: marker.to_owned(),
                new: NOTE.len()..NOTE.len() + marker.len(),
            };
            assert_eq!(of(NOTE, &new, ""), [expected]);
            assert_eq!(of(&new, &new.replace("08:15", "09:40"), ""), []);
        }
    }
}
