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

#[cfg(test)]
mod tests {
    use crate::tasks::ui::command::UiVerb;
    use crate::tasks::ui::screen::{Screen, ScreenForm};

    /// The screens of the example, in several forms.
    fn recorded(name: &str) -> Screen {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/screens");
        let source = std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
        let screen = Screen::read(&source).unwrap();
        let mut places = screen.elements().iter().map(|element| &source[element.place.clone()]);
        assert!(places.all(|place| place.starts_with(|c: char| !c.is_whitespace())), "{name}");
        screen
    }

    fn taking(screen: &Screen, verb: UiVerb) -> Vec<&str> {
        screen.taking(verb).map(|(id, _)| id).collect()
    }

    #[test]
    fn xml_of_android_says_what_can_be_touched() {
        let screen = recorded("settings.xml");
        assert_eq!(screen.form(), Some(ScreenForm::Xml));
        let lines =
            "1 EditText \"search\"\n2 RecyclerView \"list\"\n3 TextView \"Display\"\n4 TextView \"Hotspot\"";
        assert_eq!(screen.to_string(), lines);
        assert_eq!(taking(&screen, UiVerb::Tap), ["1", "3"]);
        assert_eq!(taking(&screen, UiVerb::LongPress), ["1"]);
        assert_eq!(taking(&screen, UiVerb::Type), ["1"]);
        assert_eq!(taking(&screen, UiVerb::Swipe), ["2"]);
    }

    #[test]
    fn xml_of_windows_keeps_its_ids() {
        let screen = recorded("editor.xml");
        assert_eq!(screen.title(), "Letter - Editor");
        assert_eq!(
            screen.to_string(),
            "42.100 Window \"Letter - Editor\"\n42.101 MenuBar \"Application\"\n42.102 MenuItem \"File\"\n\
            42.103 Document \"page\"\n42.104 Edit \"Text\"\n42.105 Button \"Save\""
        );
        assert_eq!(taking(&screen, UiVerb::Type), ["42.104"]);
        assert!(!taking(&screen, UiVerb::Tap).contains(&"42.105"));
    }

    #[test]
    fn elements_of_android_world_keep_their_numbers() {
        let screen = recorded("night-light.txt");
        assert_eq!(screen.form(), Some(ScreenForm::AndroidWorld));
        assert_eq!(screen.to_string(), "0 TextView \"Night light\"\n1 Switch \"It's on\"");
    }

    #[test]
    fn snapshots_of_playwright_keep_their_references() {
        let screen = recorded("sign-in.yaml");
        assert_eq!((screen.form(), screen.title()), (Some(ScreenForm::Aria), "Sign in"));
        assert_eq!(
            screen.to_string(),
            "e3 heading \"Sign in\"\ne5 textbox \"Name · Your name\"\ne7 textbox \"Password · secret\"\n\
            e8 link \"Help: forgotten?\"\ne9 button \"Sign in\"\ntext \"By signing in, you agree.\"\nf1e2 button \"\""
        );
        assert_eq!(taking(&screen, UiVerb::Tap), ["e3", "e5", "e7", "e8", "f1e2"]);
        assert_eq!(taking(&screen, UiVerb::Type), ["e5", "e7"]);
    }

    #[test]
    fn elements_of_browser_use_keep_their_indices() {
        let screen = recorded("inbox.txt");
        assert_eq!(screen.form(), Some(ScreenForm::BrowserUse));
        assert_eq!(
            screen.to_string(),
            "3 input \"Search mail\"\n12 link \"Ada Lunch on Friday\"\n14 button \"Archive\"\n\
            25 button \"Write a mail\"\ntext \"2 of 40 mails\""
        );
        assert_eq!(taking(&screen, UiVerb::Tap), ["3", "12", "25"]);
        assert_eq!(taking(&screen, UiVerb::Type), ["3"]);
        let older = Screen::read(
            "[33]<div>User form />\n\t*[35]<button aria-label=Send it>Send />\n7[:]<a Sign in/>",
        );
        let older = older.unwrap().to_string();
        assert_eq!(older, "33 div \"User form\"\n35 button \"Send · Send it\"\n7 a \"Sign in\"");
    }

    #[test]
    fn descriptions_of_xcui_test_keep_their_addresses() {
        let screen = recorded("settings-ios.txt");
        assert_eq!((screen.form(), screen.title()), (Some(ScreenForm::XcuiTest), "Reader"));
        assert_eq!(
            screen.to_string(),
            "0x600003a40000 Application \"Reader\"\n0x600003a40300 Button \"Ada's shelf\"\n0x600003a40400 Button \"Edit\"\n\
            0x600003a40500 SearchField \"Search\"\n0x600003a40600 Table \"\"\n0x600003a40700 Cell \"Moby-Dick chapter 3\""
        );
        assert!(!taking(&screen, UiVerb::Tap).contains(&"0x600003a40400"));
        assert_eq!(taking(&screen, UiVerb::Type), ["0x600003a40500"]);
    }

    #[test]
    fn lines_of_tags_keep_their_ids() {
        let screen = recorded("tasks.html");
        assert_eq!(screen.form(), Some(ScreenForm::Tags));
        assert_eq!(
            screen.to_string(),
            "0 p \"Sort by\"\n1 checkbox \"Name\"\n2 button \"More options\"\n7 input \"old · Find a folder text\"\n12 button \"OK\""
        );
        assert_eq!(taking(&screen, UiVerb::Type), ["7"]);
    }
}
