//! The forms of screens: which one a source has, and its elements. No reader recurses or keeps more than its limit of elements.

mod android_world;
mod aria;
mod browser_use;
mod lines;
mod tags;
mod xcui_test;
mod xml;

use std::ops::Range;

use super::screen::ScreenForm;
use crate::error::ScreenError;

/// Maximum number of elements of a source, those without text included.
const ITEMS_MAX: usize = 20_000;

/// Maximum length of a label while its lines are joined, in bytes. Of it, a command has 120 characters.
const LABEL_BYTES_MAX: usize = 1024;

/// A source, read.
pub(super) struct Form {
    pub(super) form: ScreenForm,
    pub(super) title: String,
    pub(super) items: Vec<Item>,
}

/// An element, as its source gives it.
#[derive(Default)]
pub(super) struct Item {
    pub(super) id: Option<String>,
    pub(super) role: String,
    pub(super) label: String,
    /// A name for programs, if there is no label.
    pub(super) name: String,
    pub(super) place: Range<usize>,
    /// Its line, from 1.
    pub(super) line: usize,
    /// The element around it, which stands before it.
    pub(super) parent: Option<usize>,
    pub(super) enabled: Option<bool>,
    pub(super) shown: Option<bool>,
    pub(super) tap: Option<bool>,
    pub(super) long_press: Option<bool>,
    pub(super) scrolls: Option<bool>,
    /// Whether it is kept without a label: a command for it does something.
    pub(super) is_active: bool,
}

/// A line of a source that is not empty.
#[derive(Clone)]
struct Line<'a> {
    /// Its number, from 1.
    number: usize,
    /// Without the white space around it.
    text: &'a str,
    /// Its white space before the text, in characters.
    indent: usize,
    place: Range<usize>,
}

impl Line<'_> {
    fn refused(&self, form: ScreenForm, problem: &'static str) -> ScreenError {
        ScreenError::Line { line: self.number, form, problem }
    }

    fn item(&self) -> Item {
        Item { line: self.number, place: self.place.clone(), ..Item::default() }
    }
}

/// The lines of a source with text. A byte order mark is no part of the first one.
fn lines(source: &str) -> impl Iterator<Item = Line<'_>> {
    let text = source.trim_start_matches('\u{feff}');
    let mut start = source.len() - text.len();
    let lines = text.split_inclusive('\n').enumerate().map(move |(at, line)| {
        let place = start..start + line.trim_end().len();
        start += line.len();
        let indent = line.chars().take_while(|c| c.is_whitespace()).count();
        Line { number: at + 1, text: line.trim(), indent, place }
    });
    lines.filter(|line| !line.text.is_empty())
}

/// Reads a source in the form that it has.
pub(super) fn read(source: &str) -> Result<Form, ScreenError> {
    // A line that only one form has decides; the others are XML or a line per element.
    let decides = lines(source).find_map(|line| {
        let read: fn(&str) -> Result<Form, ScreenError> = match line.text {
            text if tags::is_line(text) => tags::read,
            text if browser_use::is_line(text) => browser_use::read,
            text if aria::is_line(text) => aria::read,
            text if android_world::is_line(text) => android_world::read,
            text if xcui_test::is_line(text) => xcui_test::read,
            _ => return None,
        };
        Some(read)
    });
    match (decides, lines(source).next()) {
        (_, Some(first)) if first.text.starts_with('<') && !tags::is_line(first.text) => xml::read(source),
        (Some(read), _) => read(source),
        (None, Some(first)) if is_json(first.text) => {
            Err(ScreenError::UnknownForm { line: first.number, what: "JSON" })
        }
        (None, _) => lines::read(source),
    }
}

/// Whether a source that begins with this line is JSON.
fn is_json(first: &str) -> bool {
    let behind = first.strip_prefix('[').map(str::trim_start);
    first.starts_with('{') || behind.is_some_and(|behind| behind.is_empty() || behind.starts_with(['{', '"']))
}

/// Adds an item, or refuses one too many.
fn push(items: &mut Vec<Item>, item: Item) -> Result<(), ScreenError> {
    if items.len() >= ITEMS_MAX {
        return Err(ScreenError::TooManyElements { given: items.len() + 1, max: ITEMS_MAX });
    }
    items.push(item);
    Ok(())
}

/// Adds text to a label, with a sign between, if it is not its beginning already.
fn join(label: &mut String, text: &str, sign: &str) {
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
struct Around(Vec<(usize, usize)>);

impl Around {
    /// The nearest element with a smaller indentation.
    fn parent(&mut self, indent: usize) -> Option<usize> {
        while self.0.last().is_some_and(|&(other, _)| other >= indent) {
            self.0.pop();
        }
        self.0.last().map(|&(_, index)| index)
    }

    /// The element at an index has this indentation.
    fn enter(&mut self, indent: usize, index: usize) {
        self.0.push((indent, index));
    }
}
