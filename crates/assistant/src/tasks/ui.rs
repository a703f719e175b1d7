//! Commands for screens: the model chooses an action on an element of a screen, and a grammar allows no other output.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::ops::Range;

use refrain::DryOptions;
use refrain_grammar::Grammar;
use refrain_index::notes::{ScreenElement, read_screen_xml};

use crate::assistant::Assistant;
use crate::error::{ScreenError, TaskError};
use crate::job::{Job, JobEvent, Next, Prompt, Report, Step, Written};
use crate::options::JobOptions;
use crate::passage::Passage;

/// Maximum length of a screen's source, in bytes.
const SCREEN_BYTES_MAX: usize = 4 << 20;

/// Maximum number of elements. Each is an alternative of the grammar.
const ELEMENTS_MAX: usize = 1000;

/// Maximum characters of a label in prompt and grammar; longer ones are cut.
const LABEL_CHARS_MAX: usize = 120;

/// Maximum characters of a typed text.
const TYPED_CHARS_MAX: usize = 256;

/// Parts of roles that take text, as Android, iOS, AT-SPI, UI Automation and HTML name them, in lower case.
const EDITABLE: [&str; 7] = ["field", "edit", "input", "textbox", "searchbox", "textarea", "entry"];

/// A screen: its title and elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Screen {
    title: String,
    elements: Vec<Element>,
}

/// An element of a screen.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Element {
    /// Its number in prompt and command.
    pub id: u32,
    /// Its role, such as `button`; empty if unknown.
    pub role: Role,
    /// Its label on one line, without `"`.
    pub label: String,
    /// Its bytes in the source that the screen was read from; empty for elements of [`Screen::new`].
    pub place: Range<usize>,
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
        let name = self.0.to_lowercase();
        EDITABLE.iter().any(|part| name.contains(part))
    }
}

impl Screen {
    /// A screen of roles and labels, numbered from 1.
    ///
    /// # Errors
    /// [`ScreenError::TooManyElements`], [`ScreenError::Empty`].
    pub fn new<R: AsRef<str>, L: AsRef<str>>(
        title: impl Into<String>,
        elements: impl IntoIterator<Item = (R, L)>,
    ) -> Result<Self, ScreenError> {
        let element = |(role, label): (R, L)| Element {
            id: 0,
            role: Role::new(role.as_ref()),
            label: one_line(label.as_ref()),
            place: 0..0,
        };
        Self::of(title.into(), elements.into_iter().map(element).collect(), false)
    }

    /// Reads a screen: accessibility XML, or a line per element, such as `4 button "Sign in"` or `[4] button Sign in`. A first
    /// line `# title` is the title.
    ///
    /// Elements have the numbers of their lines, which may begin at 0. Lines without any numbers, and elements of XML, are
    /// numbered from 1. A number ends with a space, or with one of `]`, `)`, `:`, `.` before a space.
    ///
    /// # Errors
    /// [`ScreenError`]; never are elements that have numbers numbered anew.
    pub fn read(source: &str) -> Result<Self, ScreenError> {
        if source.len() > SCREEN_BYTES_MAX {
            return Err(ScreenError::TooLong { given: source.len(), max: SCREEN_BYTES_MAX });
        }
        if source.trim_start_matches('\u{feff}').trim_start().starts_with('<') {
            let screen = read_screen_xml(source).map_err(ScreenError::Xml)?;
            let element = |ScreenElement { role, label, place }| Element {
                id: 0,
                role: Role::new(&role),
                label: one_line(&label),
                place,
            };
            let title = screen.title.unwrap_or_default();
            return Self::of(title, screen.elements.into_iter().map(element).collect(), false);
        }
        // A byte order mark is no part of the first line.
        let lines = source.trim_start_matches('\u{feff}');
        let (mut title, mut elements, mut start) = (String::new(), Vec::new(), source.len() - lines.len());
        let (mut numbers, mut unnumbered) = (BTreeSet::new(), None);
        for (at, line) in lines.split_inclusive('\n').enumerate() {
            let place = start..start + line.trim_end().len();
            start += line.len();
            match line.trim() {
                "" => {}
                line if elements.is_empty() && title.is_empty() && line.starts_with("# ") => {
                    line[2..].trim().clone_into(&mut title);
                }
                text => {
                    let line = at + 1;
                    let (number, element) =
                        line_element(text, place).ok_or(ScreenError::LargeNumber { line })?;
                    match number {
                        Some(number) if !numbers.insert(number) => {
                            return Err(ScreenError::SameNumber { line, number });
                        }
                        Some(_) => {}
                        None => drop(unnumbered.get_or_insert(line)),
                    }
                    elements.push(element);
                }
            }
        }
        match unnumbered {
            Some(line) if !numbers.is_empty() => Err(ScreenError::NoNumber { line }),
            _ => Self::of(title, elements, !numbers.is_empty()),
        }
    }

    fn of(title: String, mut elements: Vec<Element>, has_ids: bool) -> Result<Self, ScreenError> {
        elements.retain(|element| !element.label.is_empty());
        match elements.len() {
            0 => return Err(ScreenError::Empty),
            given if given > ELEMENTS_MAX => {
                return Err(ScreenError::TooManyElements { given, max: ELEMENTS_MAX });
            }
            _ => {}
        }
        if !has_ids {
            (1..).zip(&mut elements).for_each(|(id, element)| element.id = id);
        }
        Ok(Self { title, elements })
    }

    /// The title; may be empty.
    pub fn title(&self) -> &str {
        &self.title
    }

    /// The elements with text.
    pub fn elements(&self) -> &[Element] {
        &self.elements
    }

    /// The element with a number.
    pub fn element(&self, id: u32) -> Option<&Element> {
        self.elements.iter().find(|element| element.id == id)
    }

    /// The regular expression of all commands for this screen.
    fn commands(&self) -> String {
        let labelled = |element: &Element| format!("{} \"{}\"", element.id, literal(&element.label));
        let tapped: Vec<String> = self.elements.iter().map(labelled).collect();
        let editable = self.elements.iter().filter(|element| element.role.is_editable());
        let editable: Vec<String> = editable.map(|element| element.id.to_string()).collect();
        let mut commands = format!("tap ({})|scroll (up|down)|back", tapped.join("|"));
        if !editable.is_empty() {
            commands += &format!("|type ({}) \"[^\"\\r\\n]{{1,{TYPED_CHARS_MAX}}}\"", editable.join("|"));
        }
        format!("({commands})")
    }

    /// The command of an output of [`commands`](Self::commands).
    fn command(&self, output: &str) -> Option<Command> {
        match output.trim_end() {
            "scroll up" => return Some(Command::Scroll(Direction::Up)),
            "scroll down" => return Some(Command::Scroll(Direction::Down)),
            "back" => return Some(Command::Back),
            _ => {}
        }
        let (verb, rest) = output.trim_end().split_once(' ')?;
        let (id, quoted) = rest.split_once(' ')?;
        let element = self.element(id.parse().ok()?)?.id;
        let text = quoted.strip_prefix('"')?.strip_suffix('"')?;
        match verb {
            "tap" => Some(Command::Tap { element }),
            "type" => Some(Command::Type { element, text: text.to_owned() }),
            _ => None,
        }
    }
}

impl fmt::Display for Screen {
    /// A line per element, as the prompt shows them: `4 button "Sign in"`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, Element { id, role, label, .. }) in self.elements.iter().enumerate() {
            let end = if at + 1 < self.elements.len() { "\n" } else { "" };
            let role = if role.0.is_empty() { String::new() } else { format!("{} ", role.0) };
            write!(f, "{id} {role}\"{label}\"{end}")?;
        }
        Ok(())
    }
}

/// The number and the element of a line `[4] role "label"`, whose number, role and quotes may be missing. `None` if the number is
/// too large.
fn line_element(line: &str, place: Range<usize>) -> Option<(Option<u32>, Element)> {
    let unmarked = line.trim_start_matches(['[', '(', '#']);
    let n_digits = unmarked.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, rest) = unmarked.split_at(n_digits);
    let after = rest.trim_start_matches([']', ')', ':', '.']);
    // `12:30 Lunch` and `3rd item` have no number.
    let ends = after.is_empty() || after.starts_with(char::is_whitespace);
    let (number, rest) = match digits {
        "" => (None, line),
        _ if !ends => (None, line),
        digits => (Some(digits.parse().ok()?), after.trim()),
    };
    let (role, label) = match (rest.split_once('"'), rest.split_once(' ')) {
        (Some((role, label)), _) => (role, label.strip_suffix('"').unwrap_or(label)),
        (None, Some((role, label))) => (role, label),
        (None, None) => ("", rest),
    };
    let (id, role) = (number.unwrap_or(0), Role::new(role.trim_end_matches([':', ' '])));
    Some((number, Element { id, role, label: one_line(label), place }))
}

/// A label on one line, without quotes, of bounded length.
fn one_line(label: &str) -> String {
    let words = label.split_whitespace().collect::<Vec<_>>().join(" ");
    let shown = words.chars().filter(|c| !c.is_control()).map(|c| if c == '"' { '\'' } else { c });
    shown.take(LABEL_CHARS_MAX).collect()
}

/// A regular expression for exactly this text.
fn literal(text: &str) -> String {
    let mut regex = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$#&-~/".contains(c) {
            regex.push('\\');
        }
        regex.push(c);
    }
    regex
}

/// A command for a screen.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Command {
    /// Tap or click an element.
    Tap {
        /// Its number.
        element: u32,
    },
    /// Type into an element.
    Type {
        /// Its number.
        element: u32,
        /// The text; never empty, one line, without `"`.
        text: String,
    },
    /// Scroll the screen.
    Scroll(Direction),
    /// Go to the screen before this one.
    Back,
}

/// Where a screen is scrolled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To its beginning.
    Up,
    /// To its end.
    Down,
}

/// A goal on a screen.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UiRequest {
    /// The screen.
    pub screen: Screen,
    /// What the user wants.
    pub goal: String,
    /// The command before, as [`UiCommand::text`]; `None` at the first screen.
    pub last_command: Option<String>,
}

impl UiRequest {
    /// A goal on a screen.
    pub fn new(screen: Screen, goal: impl Into<String>) -> Self {
        Self { screen, goal: goal.into(), last_command: None }
    }
}

/// The next command.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct UiCommand {
    /// The command.
    pub command: Command,
    /// The command as the model wrote it, such as `tap 4 "Sign in"`.
    pub text: String,
    /// How it came about.
    pub report: Report,
}

impl Assistant {
    /// Chooses the next command on a screen. The output is constrained to the commands for its elements: `tap` any, `type` a text
    /// into those that take text, `scroll up`, `scroll down`, `back`.
    ///
    /// # Errors
    /// [`TaskError::TextTooLong`]: the screen does not fit the context; [`TaskError::RequestTooLong`];
    /// [`TaskError::Vocabulary`], [`TaskError::Grammar`]. The job ends with [`TaskError::Incomplete`] if the output room is too
    /// small for the command.
    pub fn ui_command(
        &self,
        request: UiRequest,
        mut options: JobOptions,
    ) -> Result<Job<UiCommand>, TaskError> {
        let n_forgotten = self.n_forgotten();
        let UiRequest { screen, goal, last_command } = request;
        let mut passages = vec![Passage::new(screen.title.as_str(), screen.to_string())];
        passages.extend(last_command.map(|command| Passage::new("Last action", command)));
        let room = self.context_len() - self.answer_tokens(&options);
        let layout = self.lay_out_whole(&self.prompts().ui, &passages, &goal, room)?;
        // A model may have a token for the end of a command and the line end behind it, so the grammar allows a second line, and
        // the output stops before it.
        let grammar = Grammar::regex(self.vocabulary()?, &format!("{}(\n[^\n]*)?", screen.commands()))?;
        let kept = self.kept(&options, &layout, n_forgotten);
        let mut generate = self.last_generate_options(&mut options, &[]);
        // The form of a command repeats words.
        generate.sampling.dry = DryOptions::default();
        generate.stop = vec!["\n".to_owned()];
        let prompt = Prompt::new("ui", layout.turns, grammar.constrain(generate), kept);
        Ok(Job::new(self, options.cancel, options.priority, prompt, Box::new(Choosing { screen })))
    }
}

struct Choosing {
    screen: Screen,
}

impl Step<UiCommand> for Choosing {
    fn accepts(&self, text: &str) -> Result<(), TaskError> {
        match self.screen.command(text) {
            Some(_) => Ok(()),
            None => Err(TaskError::Incomplete { text: text.to_owned() }),
        }
    }

    fn written(
        self: Box<Self>,
        written: Written,
        _events: &mut VecDeque<JobEvent<UiCommand>>,
    ) -> Result<Next<UiCommand>, TaskError> {
        match self.screen.command(&written.text) {
            Some(command) => {
                let report = written.report(Vec::new());
                Ok(Next::Done(UiCommand { command, text: written.text, report }))
            }
            None => Err(TaskError::Incomplete { text: written.text }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(screen: &Screen) -> Vec<(u32, &str, &str)> {
        screen.elements.iter().map(|e| (e.id, e.role.name(), e.label.as_str())).collect()
    }

    #[test]
    fn lines_keep_their_numbers() {
        let source = "# Mail screen\n1 field \"Search\"\n12 item \"Rafael \\\"O\\\"\"\n";
        let screen = Screen::read(source).unwrap();
        assert_eq!(screen.title(), "Mail screen");
        assert_eq!(labels(&screen)[0], (1, "field", "Search"));
        assert_eq!((screen.elements[1].id, screen.elements[1].label.contains('"')), (12, false));
        assert_eq!(&source[screen.elements[0].place.clone()], "1 field \"Search\"");
        let plain = Screen::read("[3] button Save as\n[4] x").unwrap();
        assert_eq!(labels(&plain), [(3, "button", "Save as"), (4, "", "x")]);
        let unnumbered = Screen::read("button Save\nbutton Back").unwrap();
        assert_eq!(labels(&unnumbered), [(1, "button", "Save"), (2, "button", "Back")]);
        assert_eq!(Screen::read(" \n"), Err(ScreenError::Empty));
        let marked = Screen::read("\u{feff}1 button Save\n2 button Back").unwrap();
        assert_eq!(labels(&marked), [(1, "button", "Save"), (2, "button", "Back")]);
        assert_eq!(marked.elements[0].place, 3..16);
        assert_eq!(Screen::read("\u{feff}# Title\nbutton Save").unwrap().title, "Title");
    }

    #[test]
    fn numbers_are_never_changed() {
        let from_zero = Screen::read("0 button Save\n1 button Back\n").unwrap();
        assert_eq!(labels(&from_zero), [(0, "button", "Save"), (1, "button", "Back")]);
        assert_eq!(from_zero.command("tap 0 \"Save\""), Some(Command::Tap { element: 0 }));
        let refused = |source: &str| Screen::read(source).unwrap_err();
        assert_eq!(refused("3 a\n\n3 b"), ScreenError::SameNumber { line: 3, number: 3 });
        assert_eq!(refused("# T\n1 a\nbutton b\n3 c"), ScreenError::NoNumber { line: 3 });
        assert_eq!(refused("4294967296 a"), ScreenError::LargeNumber { line: 1 });
        let times = Screen::read("12:30 Lunch\n3rd item").unwrap();
        assert_eq!(labels(&times), [(1, "12:30", "Lunch"), (2, "3rd", "item")]);
    }

    #[test]
    fn xml_gives_roles_labels_and_places() {
        let xml = "<hierarchy title=\"Mail\"><node class=\"android.widget.EditText\" hint=\"To\"/><node text=\"Send\"/></hierarchy>";
        let screen = Screen::read(xml).unwrap();
        assert_eq!(screen.to_string(), "1 hierarchy \"Mail\"\n2 EditText \"To\"\n3 node \"Send\"");
        assert!(screen.elements[1].role.is_editable() && !screen.elements[2].role.is_editable());
        assert_eq!(&xml[screen.elements[2].place.clone()], "<node text=\"Send\"/>");
        assert!(matches!(Screen::read("<a>"), Err(ScreenError::Xml(_))));
    }

    #[test]
    fn commands_come_back_from_their_text() {
        let screen = Screen::new("", [("button", "Save (all)"), ("field", "To")]).unwrap();
        assert_eq!(
            screen.commands(),
            "(tap (1 \"Save \\(all\\)\"|2 \"To\")|scroll (up|down)|back|type (2) \"[^\"\\r\\n]{1,256}\")"
        );
        let typed = |text: &str| Command::Type { element: 2, text: text.to_owned() };
        assert_eq!(screen.command("tap 1 \"Save (all)\""), Some(Command::Tap { element: 1 }));
        assert_eq!(screen.command("type 2 \"Ada V\""), Some(typed("Ada V")));
        assert_eq!(screen.command("scroll down"), Some(Command::Scroll(Direction::Down)));
        assert_eq!(screen.command("back"), Some(Command::Back));
        for broken in ["", "tap", "tap 9 \"To\"", "tap 1 \"", "jump 1 \"a\""] {
            assert_eq!(screen.command(broken), None, "{broken}");
        }
    }

    proptest! {
        #[test]
        fn any_source_is_a_screen_or_refused(source in "(<|>|\"|[0-9]|\\[|\\]|[a-z #\n/=]){0,60}") {
            if let Ok(screen) = Screen::read(&source) {
                prop_assert!(screen.elements.iter().all(|e| !e.label.contains(['"', '\n']) && !e.label.is_empty()));
                let ids: BTreeSet<u32> = screen.elements.iter().map(|e| e.id).collect();
                prop_assert_eq!(ids.len(), screen.elements.len());
            }
        }
    }
}
