//! The part of a text that an edit may change.

use std::ops::Range;

use refrain_index::Outline;
use thiserror::Error;

/// A part of a text.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum EditPart {
    /// All of it.
    #[default]
    Whole,
    /// A selection, in bytes.
    Bytes(Range<usize>),
    /// Lines, counted from 1.
    Lines {
        /// The first line.
        first: usize,
        /// The last line.
        last: usize,
    },
    /// The section under the heading with these words, such as `Hotel`: the heading and what stands below it, up to the next heading of
    /// its level or above. `## Hotel` is a heading of the second level alone.
    Section(String),
}

impl EditPart {
    /// Its place in a text, in bytes.
    ///
    /// # Errors
    /// [`EditPartError`].
    pub fn place_in(&self, text: &str) -> Result<Range<usize>, EditPartError> {
        match self {
            Self::Whole => Ok(0..text.len()),
            Self::Bytes(range) => {
                let Range { start, end } = *range;
                if start > end || end > text.len() {
                    return Err(EditPartError::Bytes { start, end, len: text.len() });
                }
                match [start, end].into_iter().find(|&offset| !text.is_char_boundary(offset)) {
                    Some(offset) => Err(EditPartError::InsideCharacter { offset }),
                    None => Ok(start..end),
                }
            }
            Self::Lines { first, last } => {
                let (first, last) = (*first, *last);
                let (mut place, mut at, mut n_lines) = (None, 0, 0);
                for line in text.split_inclusive('\n') {
                    n_lines += 1;
                    if n_lines == first {
                        place = Some(at..at);
                    }
                    at += line.len();
                    if let Some(place) = place.as_mut().filter(|_| n_lines <= last) {
                        place.end = at;
                    }
                }
                let place = place.filter(|_| first <= last && last <= n_lines);
                place.ok_or(EditPartError::Lines { first, last, n_lines })
            }
            Self::Section(title) => section(text, title),
        }
    }
}

/// The place of the section with a title.
fn section(text: &str, given: &str) -> Result<Range<usize>, EditPartError> {
    let outline = Outline::of(text);
    let marks = given.trim_start();
    let level = marks.len() - marks.trim_start_matches('#').len();
    let wanted = marks.trim_start_matches('#').split_whitespace().collect::<Vec<_>>().join(" ");
    let is_of_level = |n: &usize| level == 0 || outline.headings[*n].level == level;
    let all = || (0..outline.headings.len()).filter(is_of_level);
    let exact: Vec<usize> = all().filter(|&n| outline.headings[n].title == wanted).collect();
    let lower = wanted.to_lowercase();
    let found = match exact.is_empty() {
        true => all().filter(|&n| outline.headings[n].title.to_lowercase() == lower).collect(),
        false => exact,
    };
    let line = |n: usize| text[..outline.headings[n].lines.start].matches('\n').count() + 1;
    match found[..] {
        [] => Err(EditPartError::NoSection { title: wanted }),
        [only] => Ok(outline.section(only, text.len())),
        [first, second, ..] => {
            Err(EditPartError::SectionTwice { title: wanted, first: line(first), second: line(second) })
        }
    }
}

/// A part of a text that is to be edited is not there.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum EditPartError {
    /// The selection is outside of the text, or ends before it begins.
    #[error("the selection {start}..{end} is outside of the text, which has {len} bytes")]
    Bytes {
        /// Its start.
        start: usize,
        /// Its end.
        end: usize,
        /// Bytes of the text.
        len: usize,
    },
    /// The selection begins or ends inside a character.
    #[error("the selection begins or ends at byte {offset}, inside a character")]
    InsideCharacter {
        /// The offset.
        offset: usize,
    },
    /// The lines are outside of the text, or the last one is before the first.
    #[error("the text has {n_lines} lines, and {first} to {last} are not among them")]
    Lines {
        /// The first line.
        first: usize,
        /// The last line.
        last: usize,
        /// Lines of the text.
        n_lines: usize,
    },
    /// No heading has these words.
    #[error("the text has no section `{title}`")]
    NoSection {
        /// The words.
        title: String,
    },
    /// Two headings have these words: the lines name one of them.
    #[error("the text has two sections `{title}`, from line {first} and from line {second}: name the lines")]
    SectionTwice {
        /// The words.
        title: String,
        /// The line of the first heading, from 1.
        first: usize,
        /// The line of the second one.
        second: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_not_there_are_refused() {
        use EditPartError::*;
        let text = "# Ä\n\nx\n\n## B\n\ny\n\n## B\n\n# C";
        let len = text.len();
        let place = |part: EditPart| part.place_in(text);
        assert_eq!(place(EditPart::Bytes(0..99)), Err(Bytes { start: 0, end: 99, len }));
        #[allow(clippy::reversed_empty_ranges, reason = "an app may give it")]
        let reversed = 5..2;
        assert_eq!(place(EditPart::Bytes(reversed)), Err(Bytes { start: 5, end: 2, len }));
        assert_eq!(place(EditPart::Bytes(3..5)), Err(InsideCharacter { offset: 3 }));
        let lines = |first, last| place(EditPart::Lines { first, last });
        assert_eq!(lines(1, 11).map(|place| place.end), Ok(len));
        for (first, last) in [(0, 1), (2, 1), (3, 12), (12, 12)] {
            assert_eq!(lines(first, last), Err(Lines { first, last, n_lines: 11 }));
        }
        let section = |title: &str| place(EditPart::Section(title.to_owned()));
        assert_eq!(section("# B"), Err(NoSection { title: "B".to_owned() }));
        assert_eq!(section("B"), Err(SectionTwice { title: "B".to_owned(), first: 5, second: 9 }));
        assert_eq!(section("c"), Ok(len - 3..len));
    }
}
