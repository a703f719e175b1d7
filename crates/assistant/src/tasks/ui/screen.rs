//! A screen: its elements, and which commands each of them takes.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use super::command::UiVerb;
use super::forms::{self, Form, Item};
use crate::error::ScreenError;

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

/// The form of a screen's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ScreenForm {
    /// A line per element: `4 button "Sign in"`.
    Lines,
    /// A line of HTML per element, with its id: `<button id=4>Sign in</button>`.
    Tags,
    /// The elements of browser-use: `*[25]<button aria-label='Sign in' />`.
    BrowserUse,
    /// An ARIA snapshot of Playwright: `- button "Sign in" [ref=e25]`.
    Aria,
    /// The elements of AndroidWorld: `UI element 4: UIElement(text='Sign in', …)`.
    AndroidWorld,
    /// The description of an application by XCUITest: `Button, 0x600003a4c1c0, …, label: 'Sign in'`.
    XcuiTest,
    /// Accessibility XML, of UI Automator, Appium, WinAppDriver and others.
    Xml,
}

impl fmt::Display for ScreenForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lines => "lines",
            Self::Tags => "tags",
            Self::BrowserUse => "browser-use",
            Self::Aria => "ARIA snapshot",
            Self::AndroidWorld => "AndroidWorld",
            Self::XcuiTest => "XCUITest",
            Self::Xml => "XML",
        })
    }
}

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
        if element.label.is_empty() && (!is_active || has_label_inside[at]) || item.shown == Some(false) {
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
