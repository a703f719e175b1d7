//! What the readers of all forms share: the lines of a source, and its elements as they come.

use std::ops::Range;

use crate::screen::error::{ScreenError, ScreenForm};

/// Maximum number of elements of a source, those without text included.
const ITEMS_MAX: usize = 20_000;

/// Maximum length of a label while its lines are joined, in bytes. Of it, a command has 120 characters.
const LABEL_BYTES_MAX: usize = 1024;

/// A source, read.
pub(in crate::screen) struct Form {
    pub(in crate::screen) form: ScreenForm,
    pub(in crate::screen) title: String,
    pub(in crate::screen) items: Vec<Item>,
}

/// An element, as its source gives it.
#[derive(Default)]
pub(in crate::screen) struct Item {
    pub(in crate::screen) id: Option<String>,
    pub(in crate::screen) role: String,
    pub(in crate::screen) label: String,
    /// A name for programs, if there is no label.
    pub(in crate::screen) name: String,
    pub(in crate::screen) place: Range<usize>,
    /// Its line, from 1.
    pub(in crate::screen) line: usize,
    /// The element around it, which stands before it.
    pub(in crate::screen) parent: Option<usize>,
    pub(in crate::screen) enabled: Option<bool>,
    pub(in crate::screen) shown: Option<bool>,
    pub(in crate::screen) tap: Option<bool>,
    pub(in crate::screen) long_press: Option<bool>,
    pub(in crate::screen) scrolls: Option<bool>,
    /// Whether it is kept without a label: a command for it does something.
    pub(in crate::screen) is_active: bool,
}

/// A line of a source that is not empty.
#[derive(Clone)]
pub(super) struct Line<'a> {
    /// Its number, from 1.
    pub(super) number: usize,
    /// Without the white space around it.
    pub(super) text: &'a str,
    /// Its white space before the text, in characters.
    pub(super) indent: usize,
    pub(super) place: Range<usize>,
}

impl Line<'_> {
    pub(super) fn refused(&self, form: ScreenForm, problem: &'static str) -> ScreenError {
        ScreenError::Line { line: self.number, form, problem }
    }

    pub(super) fn item(&self) -> Item {
        Item { line: self.number, place: self.place.clone(), ..Item::default() }
    }
}

/// The lines of a source with text. A byte order mark is no part of the first one.
pub(super) fn source_lines(source: &str) -> impl Iterator<Item = Line<'_>> {
    let text = source.trim_start_matches('\u{feff}');
    let mut start = source.len() - text.len();
    let lines = text.split_inclusive('\n').enumerate().map(move |(at, line)| {
        let text = line.trim_start();
        let before = line.len() - text.len();
        let (text, place_start) = (text.trim_end(), start + before);
        start += line.len();
        Line {
            number: at + 1,
            text,
            indent: line[..before].chars().count(),
            place: place_start..place_start + text.len(),
        }
    });
    lines.filter(|line| !line.text.is_empty())
}

/// Adds an item, or refuses one too many.
pub(super) fn push(items: &mut Vec<Item>, item: Item) -> Result<(), ScreenError> {
    if items.len() >= ITEMS_MAX {
        return Err(ScreenError::TooManyElements { given: items.len() + 1, max: ITEMS_MAX });
    }
    items.push(item);
    Ok(())
}

/// Adds text to a label, with a sign between, if it is not its beginning already.
pub(super) fn join(label: &mut String, text: &str, sign: &str) {
    let text = text.trim();
    if text.is_empty() || label.contains(text) || label.len() > LABEL_BYTES_MAX {
        return;
    }
    if !label.is_empty() {
        label.push_str(sign);
    }
    label.push_str(&text[..text.floor_char_boundary(LABEL_BYTES_MAX)]);
}

/// The elements around the next one, by indentation.
#[derive(Default)]
pub(super) struct Around(Vec<(usize, usize)>);

impl Around {
    /// The nearest element with a smaller indentation.
    pub(super) fn parent(&mut self, indent: usize) -> Option<usize> {
        while self.0.last().is_some_and(|&(other, _)| other >= indent) {
            self.0.pop();
        }
        self.0.last().map(|&(_, index)| index)
    }

    /// The element at an index has this indentation.
    pub(super) fn enter(&mut self, indent: usize, index: usize) {
        self.0.push((indent, index));
    }
}
