//! The forms of screens: which one a source has, and its elements. No reader recurses or keeps more than its limit of elements.

mod android_world;
mod aria;
mod browser_use;
mod lines;
pub(super) mod source;
mod tags;
mod xcui_test;
mod xml;

use self::source::{Form, source_lines};
use super::error::ScreenError;

/// Reads a source in the form that it has.
pub(super) fn read(source: &str) -> Result<Form, ScreenError> {
    // A line that only one form has decides; the others are XML or a line per element.
    let decides = source_lines(source).find_map(|line| {
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
    match (decides, source_lines(source).next()) {
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

#[cfg(test)]
mod tests {
    use crate::screen::{Screen, ScreenForm, UiVerb};

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
