//! A screen: its elements, and which commands each of them takes.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use super::error::{ScreenError, ScreenForm};
use super::forms;
use super::forms::source::{Form, Item};
use super::verb::UiVerb;

/// Maximum length of a screen's source, in bytes.
pub(super) const SCREEN_BYTES_MAX: usize = 4 << 20;

/// Maximum number of elements. Each is an alternative of the grammar.
const ELEMENTS_MAX: usize = 1000;

/// Maximum characters of an id.
pub(super) const ID_CHARS_MAX: usize = 64;

/// Maximum characters of a label in prompt and grammar; longer ones are cut.
const LABEL_CHARS_MAX: usize = 120;

/// Parts of roles that take text, as Android, iOS, AT-SPI, UI Automation, ARIA and HTML name them, in lower case.
const EDITABLE: [&str; 10] = [
    "field",
    "edit",
    "input",
    "textbox",
    "searchbox",
    "textarea",
    "entry",
    "combobox",
    "spinbutton",
    "xcuielementtypetextview",
];

/// Parts of roles whose value a swipe changes, in lower case.
const SLIDERS: [&str; 3] = ["slider", "seekbar", "picker"];

/// A screen: its title and elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Screen {
    title: String,
    form: Option<ScreenForm>,
    elements: Vec<Element>,
}

/// An element of a screen.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Element {
    /// Its id in prompt and command; `None`: it is shown, and no command names it.
    pub id: Option<String>,
    /// Its role, such as `button`; empty if unknown.
    pub role: Role,
    /// Its label on one line, without `"`; empty for an icon without a name.
    pub label: String,
    /// Its bytes in the source that the screen was read from; empty for elements of [`Screen::new`].
    pub place: Range<usize>,
    takes: Takes,
}

/// The commands that an element takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Takes {
    tap: bool,
    long_press: bool,
    text: bool,
    swipe: bool,
}

/// The role of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Role(String);

impl Role {
    /// A role by the name that the platform uses.
    pub fn new(name: &str) -> Self {
        Self(name.split_whitespace().collect::<Vec<_>>().join(" "))
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Whether elements of this role take text.
    pub fn is_editable(&self) -> bool {
        self.has_part(&EDITABLE)
    }

    fn has_part(&self, parts: &[&str]) -> bool {
        let name = self.0.to_lowercase();
        parts.iter().any(|part| name.contains(part))
    }
}

impl<R: AsRef<str>, L: AsRef<str>> From<(R, L)> for Element {
    /// An element of a role and a label, without an id.
    fn from((role, label): (R, L)) -> Self {
        Self::new(role.as_ref(), label.as_ref())
    }
}

impl Element {
    /// An element without an id. If it has one, it takes every command; text only if its role takes text or is empty.
    pub fn new(role: &str, label: &str) -> Self {
        let role = Role::new(role);
        let text = role.is_editable() || role.0.is_empty();
        let takes = Takes { tap: true, long_press: true, text, swipe: true };
        Self { id: None, role, label: one_line(label, LABEL_CHARS_MAX), place: 0..0, takes }
    }

    /// The element with an id: at most 64 characters, without white space, `"` and `\`.
    #[must_use]
    pub fn with_id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The element, which takes these commands and no others of `tap`, `long_press`, `type` and `swipe`.
    #[must_use]
    pub fn taking(mut self, verbs: &[UiVerb]) -> Self {
        let takes = |verb| verbs.contains(&verb);
        self.takes = Takes {
            tap: takes(UiVerb::Tap),
            long_press: takes(UiVerb::LongPress),
            text: takes(UiVerb::Type),
            swipe: takes(UiVerb::Swipe),
        };
        self
    }

    /// Whether the element takes a command: it has an id, and its source does not say otherwise.
    pub fn takes(&self, verb: UiVerb) -> bool {
        let Takes { tap, long_press, text, swipe } = self.takes;
        self.id.is_some()
            && match verb {
                UiVerb::Tap => tap,
                UiVerb::LongPress => long_press,
                UiVerb::Type => text,
                UiVerb::Swipe => swipe,
                _ => false,
            }
    }
}

impl Screen {
    /// A screen of an app's own elements, such as pairs of role and label. If none of them has an id, they are numbered from 1.
    ///
    /// # Errors
    /// [`ScreenError::TooManyElements`], [`ScreenError::Empty`]; [`ScreenError::Id`] and [`ScreenError::DuplicateId`], whose line is the
    /// number of the element, from 1.
    pub fn new<E: Into<Element>>(
        title: impl Into<String>,
        elements: impl IntoIterator<Item = E>,
    ) -> Result<Self, ScreenError> {
        let elements = elements.into_iter().map(Into::into).zip(1..).collect();
        Self::of(title.into(), None, elements)
    }

    /// Reads a screen, in a form that [`ScreenForm`] names: lines, accessibility XML, or the dump of a common agent. A first line
    /// `# title` of lines is the title.
    ///
    /// Elements keep the ids that the source gives them. Only a source without any ids (lines without numbers, XML without ids) is
    /// numbered from 1. In lines, a number ends with a space, or with one of `]`, `)`, `:`, `.` before a space; other ids stand in
    /// brackets, such as `[e4]`.
    ///
    /// # Errors
    /// [`ScreenError`]; never are elements that have ids numbered anew.
    pub fn read(source: &str) -> Result<Self, ScreenError> {
        if source.len() > SCREEN_BYTES_MAX {
            return Err(ScreenError::TooLong { given: source.len(), max: SCREEN_BYTES_MAX });
        }
        let Form { form, title, items } = forms::read(source)?;
        Self::of(title, Some(form), elements_of(items))
    }

    /// A screen of elements with their lines.
    fn of(
        title: String,
        form: Option<ScreenForm>,
        elements: Vec<(Element, usize)>,
    ) -> Result<Self, ScreenError> {
        match elements.len() {
            0 => return Err(ScreenError::Empty),
            given if given > ELEMENTS_MAX => {
                return Err(ScreenError::TooManyElements { given, max: ELEMENTS_MAX });
            }
            _ => {}
        }
        let mut ids = HashSet::new();
        for (element, line) in &elements {
            let Some(id) = &element.id else { continue };
            let is_clean = |c: char| !c.is_whitespace() && !c.is_control() && !matches!(c, '"' | '\\');
            if id.is_empty() || id.chars().count() > ID_CHARS_MAX || !id.chars().all(is_clean) {
                return Err(ScreenError::Id { line: *line, max: ID_CHARS_MAX });
            }
            if !ids.insert(id) {
                return Err(ScreenError::DuplicateId { line: *line, id: id.clone() });
            }
        }
        let has_ids = !ids.is_empty();
        let mut elements: Vec<Element> = elements.into_iter().map(|(element, _)| element).collect();
        if !has_ids {
            (1..).zip(&mut elements).for_each(|(id, element)| element.id = Some(id.to_string()));
        }
        Ok(Self { title: one_line(&title, LABEL_CHARS_MAX), form, elements })
    }

    /// The title; may be empty.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The form of its source; `None` for [`Screen::new`].
    pub fn form(&self) -> Option<ScreenForm> {
        self.form
    }

    /// The elements.
    pub fn elements(&self) -> &[Element] {
        &self.elements
    }

    /// The element with an id.
    pub fn element(&self, id: &str) -> Option<&Element> {
        self.elements.iter().find(|element| element.id.as_deref() == Some(id))
    }

    /// The elements that take a command, with their ids.
    pub(super) fn taking(&self, verb: UiVerb) -> impl Iterator<Item = (&str, &Element)> {
        let taking = self.elements.iter().filter(move |element| element.takes(verb));
        taking.filter_map(|element| Some((element.id.as_deref()?, element)))
    }
}

impl fmt::Display for Screen {
    /// A line per element, as the prompt shows them: `4 button "Sign in"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Element { id, role, label, .. }) in self.elements.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            for word in [id.as_deref().unwrap_or_default(), role.name()] {
                if !word.is_empty() {
                    write!(f, "{word} ")?;
                }
            }
            write!(f, "\"{label}\"")?;
        }
        Ok(())
    }
}

/// The elements of items, with their lines: those with a label, and those that take a command.
fn elements_of(items: Vec<Item>) -> Vec<(Element, usize)> {
    // Children stand behind their parents.
    let mut has_label_inside = vec![false; items.len()];
    for (at, item) in items.iter().enumerate().rev() {
        if let Some(parent) = item.parent.filter(|_| has_label_inside[at] || !item.label.trim().is_empty()) {
            has_label_inside[parent] = true;
        }
    }
    // A touch reaches the elements around. Where no element says that it can be touched, all may.
    let says_tap = items.iter().any(|item| item.tap == Some(true));
    let says_long_press = items.iter().any(|item| item.long_press.is_some());
    let (mut tapped, mut pressed) = (Vec::with_capacity(items.len()), Vec::with_capacity(items.len()));
    for item in &items {
        let around = |touched: &[bool]| item.parent.is_some_and(|parent| touched[parent]);
        let (tap, press) = (around(&tapped), around(&pressed));
        tapped.push(item.tap == Some(true) || tap);
        pressed.push(item.long_press == Some(true) || press);
    }
    let mut elements = Vec::new();
    for (at, item) in items.into_iter().enumerate() {
        let mut element = Element::new(&item.role, &item.label);
        let is_slider = element.role.has_part(&SLIDERS);
        let is_editable = element.role.is_editable();
        let is_active = item.is_active || is_editable || is_slider;
        // A touch on a row is one on its text; what scrolls has no other element for it.
        let stands_for_it = has_label_inside[at] && item.scrolls != Some(true);
        let is_kept = !element.label.is_empty() || (is_active && !stands_for_it);
        if !is_kept || item.shown == Some(false) {
            continue;
        }
        if element.label.is_empty() {
            element.label = one_line(&item.name, LABEL_CHARS_MAX);
        }
        let is_enabled = item.enabled != Some(false);
        element.takes = Takes {
            tap: is_enabled && (!says_tap || tapped[at] || is_editable),
            long_press: is_enabled && (!says_long_press || pressed[at]),
            text: is_enabled && element.takes.text,
            swipe: is_enabled && (item.scrolls != Some(false) || is_slider),
        };
        (element.id, element.place) = (item.id, item.place);
        elements.push((element, item.line));
    }
    elements
}

/// A text on one line, without quotes, of bounded length.
pub(super) fn one_line(text: &str, chars_max: usize) -> String {
    // White space that follows the last character may be as long as the text.
    let words = text.split_whitespace().take(chars_max).flat_map(|word| [" ", word]).skip(1);
    let shown = words.flat_map(str::chars).filter(|c| !c.is_control());
    shown.map(|c| if c == '"' { '\'' } else { c }).take(chars_max).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(screen: &Screen) -> Vec<(&str, &str, &str)> {
        let label = |element| {
            let Element { id, role, label, .. }: &Element = element;
            (id.as_deref().unwrap_or_default(), role.name(), label.as_str())
        };
        screen.elements.iter().map(label).collect()
    }

    #[test]
    fn lines_keep_their_numbers() {
        let source = "# Mail screen\n1 field \"Search\"\n12 item \"Rafael \\\"O\\\"\"\n";
        let screen = Screen::read(source).unwrap();
        assert_eq!(screen.title(), "Mail screen");
        assert_eq!(labels(&screen)[0], ("1", "field", "Search"));
        assert_eq!((labels(&screen)[1].0, screen.elements[1].label.contains('"')), ("12", false));
        assert_eq!(&source[screen.elements[0].place.clone()], "1 field \"Search\"");
        let plain = Screen::read("[3] button Save as\n[4] x").unwrap();
        assert_eq!(labels(&plain), [("3", "button", "Save as"), ("4", "", "x")]);
        let unnumbered = Screen::read("button Save\nbutton Back").unwrap();
        assert_eq!(labels(&unnumbered), [("1", "button", "Save"), ("2", "button", "Back")]);
        assert_eq!(Screen::read(" \n"), Err(ScreenError::Empty));
        let marked = Screen::read("\u{feff}1 button Save\n2 button Back").unwrap();
        assert_eq!(labels(&marked), [("1", "button", "Save"), ("2", "button", "Back")]);
        assert_eq!(marked.elements[0].place, 3..16);
        assert_eq!(Screen::read("\u{feff}# Title\nbutton Save").unwrap().title, "Title");
        let named = Screen::read("[e4] button \"Save\"\n[f1e2] link Help").unwrap();
        assert_eq!(labels(&named), [("e4", "button", "Save"), ("f1e2", "link", "Help")]);
    }

    #[test]
    fn ids_are_never_changed() {
        let from_zero = Screen::read("0 button Save\n01 button Back\n").unwrap();
        assert_eq!(labels(&from_zero), [("0", "button", "Save"), ("01", "button", "Back")]);
        let refused = |source: &str| Screen::read(source).unwrap_err();
        assert_eq!(refused("3 a\n\n3 b"), ScreenError::DuplicateId { line: 3, id: "3".to_owned() });
        assert_eq!(refused("# T\n1 a\nbutton b\n3 c"), ScreenError::NoId { line: 3 });
        assert_eq!(refused(&format!("{} a", "9".repeat(65))), ScreenError::Id { line: 1, max: 64 });
        let times = Screen::read("12:30 Lunch\n3rd item\n[x] milk").unwrap();
        assert_eq!(labels(&times), [("1", "12:30", "Lunch"), ("2", "3rd", "item"), ("3", "[x]", "milk")]);
        for source in ["button Save\nlink Home uid=1_4", "- link \"Home\" [ref1]", "a b\n<x> id=3"] {
            let line = source.lines().count();
            assert!(
                matches!(refused(source), ScreenError::UnknownForm { line: at, .. } if at == line),
                "{source}"
            );
        }
        for source in ["{\"elements\": []}", "[{\"id\": 1}]", "[\n  {\"id\": 1}\n]"] {
            assert_eq!(refused(source), ScreenError::UnknownForm { line: 1, what: "JSON" });
        }
    }

    #[test]
    fn an_app_gives_its_own_elements() {
        let button = || Element::new("button", "Save");
        let screen = Screen::new("", [button().with_id("a.1"), Element::new("text", "Draft")]).unwrap();
        assert_eq!(labels(&screen), [("a.1", "button", "Save"), ("", "text", "Draft")]);
        assert_eq!(screen.to_string(), "a.1 button \"Save\"\ntext \"Draft\"");
        let twice = Screen::new("", [button().with_id("1"), button().with_id("1")]);
        assert_eq!(twice, Err(ScreenError::DuplicateId { line: 2, id: "1".to_owned() }));
        for id in ["", "a b", "a\"", "a\\", &"i".repeat(65)] {
            assert_eq!(Screen::new("", [button().with_id(id)]), Err(ScreenError::Id { line: 1, max: 64 }));
        }
        let none = button().with_id("1").taking(&[UiVerb::LongPress]);
        assert!(none.takes(UiVerb::LongPress) && !none.takes(UiVerb::Tap) && !none.takes(UiVerb::Done));
        let many = Screen::new("", (0..1001).map(|n| ("item", n.to_string())));
        assert_eq!(many, Err(ScreenError::TooManyElements { given: 1001, max: 1000 }));
    }

    #[test]
    fn xml_gives_roles_labels_and_places() {
        let xml = "<hierarchy title=\"Mail\"><node class=\"android.widget.EditText\" hint=\"To\"/><node text=\"Send\"/></hierarchy>";
        let screen = Screen::read(xml).unwrap();
        assert_eq!(screen.to_string(), "1 hierarchy \"Mail\"\n2 EditText \"To\"\n3 node \"Send\"");
        assert!(screen.elements[1].role.is_editable() && !screen.elements[2].role.is_editable());
        assert_eq!(&xml[screen.elements[2].place.clone()], "<node text=\"Send\"/>");
    }

    #[test]
    fn broken_and_hostile_sources_name_the_line() {
        let refused = |source: &str| Screen::read(source).unwrap_err();
        let truncated = "<hierarchy>\n<node text=\"a\"/>\n<node text=\"b";
        assert!(matches!(refused(truncated), ScreenError::Xml { line: 3, .. }), "{:?}", refused(truncated));
        let twice = "<a>\n<b id=\"1\" text=\"x\"/>\n<b id=\"1\" text=\"y\"/></a>";
        assert_eq!(refused(twice), ScreenError::DuplicateId { line: 3, id: "1".to_owned() });
        let line_of = |source: &str| match refused(source) {
            ScreenError::Line { line, .. } | ScreenError::NoId { line } => line,
            other => panic!("{source}: {other:?}"),
        };
        assert_eq!(line_of("<p id=1>a</p>\n<p id=2"), 2);
        assert_eq!(line_of("<p id=1>a</p>\n<p>b</p>"), 2);
        assert_eq!(line_of("text\n<p id=1>a</p>"), 1);
        assert_eq!(line_of("[1]<a>x</a>\n[2]<a href='y"), 2);
        assert_eq!(line_of("- link \"a\" [ref=e1]\n- link \"b [ref=e2]"), 2);
        assert_eq!(line_of("- link \"a\" [ref=e1]\n- link \"b\" [ref=e2"), 2);
        assert_eq!(line_of("- link \"a\" [ref=e1]\n- 'link \"b\" [ref=e2]"), 2);
        assert_eq!(line_of("- link \"a\" [ref=e1]\n- ref=e2 [unchanged]"), 2);
        assert_eq!(line_of("- link \"a\" [ref=e1]\nlink"), 2);
        assert_eq!(line_of("UI element 0: UIElement(text='a')\nUI element 1: UIElement(text='b"), 2);
        assert_eq!(line_of("UI element 0: UIElement(text='a')\n1 b"), 2);
        assert_eq!(line_of("Button, 0x1, label: 'a'\nnothing"), 2);
        let nested = format!("{}{}", "<a id=\"1\">".repeat(40_000), "</a>".repeat(40_000));
        assert!(Screen::read(&nested).is_err());
        let deep: String =
            (0..4000).map(|n| format!("{}- link [ref=e{n}]:\n", " ".repeat(n % 300))).collect();
        assert!(matches!(refused(&deep), ScreenError::TooManyElements { given: 4000, max: 1000 }));
        let many = "- text: a\n".repeat(30_000) + "- link [ref=e1]";
        assert!(matches!(refused(&many), ScreenError::TooManyElements { max: 20_000, .. }));
        let long = "a".repeat(SCREEN_BYTES_MAX + 1);
        assert!(matches!(refused(&long), ScreenError::TooLong { .. }));
        // One line as long as a screen may be.
        for start in
            ["[1]<a ", "<a id=1 ", "- link \"", "UI element 0: UIElement(", "B, 0x1, label: '", "<a b=\""]
        {
            for part in ["a='b' ", "x=y ", "\\\"", "(", "', label: '", "' "] {
                let _ = Screen::read(&format!("{start}{}", part.repeat((1 << 20) / part.len())));
            }
        }
    }

    proptest! {
        #[test]
        fn any_source_is_a_screen_or_refused(
            source in "(<|>|\"|'|[0-9]|\\[|\\]|[a-z #\n/=:*-]|\\[ref=|- |\\]<|<a id=|UI element |: UIElement\\(|\\)|, 0x|, label: '){0,60}",
        ) {
            if let Ok(screen) = Screen::read(&source) {
                prop_assert!(screen.elements.iter().all(|e| !e.label.contains(['"', '\n'])));
                let ids: Vec<_> = screen.elements.iter().filter_map(|e| e.id.as_deref()).collect();
                prop_assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
                prop_assert!(screen.elements.iter().all(|e| e.place.end <= source.len()));
                prop_assert!(!screen.title.contains('\n'));
            }
        }
    }
}
