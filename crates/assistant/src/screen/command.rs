//! The commands for a screen: their texts, the grammar that allows them, and their meaning.

use std::fmt::Write as _;

use super::actions::UiActions;
use super::elements::{Element, Screen};
use super::verb::UiVerb;

/// Maximum characters of a typed text and of a question.
const TYPED_CHARS_MAX: usize = 256;

/// Maximum characters of an app's name, if the apps are not listed.
const APP_CHARS_MAX: usize = 64;

/// A command for a screen.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Command {
    /// Tap or click an element.
    Tap {
        /// Its id.
        element: String,
    },
    /// Press an element for long.
    LongPress {
        /// Its id.
        element: String,
    },
    /// Type into an element.
    Type {
        /// Its id.
        element: String,
        /// The text; never empty, one line, without `"`.
        text: String,
    },
    /// Swipe over the screen or an element: the finger moves in the direction.
    Swipe {
        /// The id of the element; `None`: the screen.
        element: Option<String>,
        /// Where the finger moves.
        direction: Direction,
    },
    /// Scroll the screen, up or down.
    Scroll(Direction),
    /// Go to the screen before this one.
    Back,
    /// Press a key.
    Key(String),
    /// Open an app.
    Open(String),
    /// Wait for the screen to change.
    Wait,
    /// Ask the user.
    Ask(String),
    /// The goal is reached.
    Done,
    /// No command leads to the goal.
    NoAction,
    /// An action of the app.
    Own {
        /// Its name.
        name: String,
        /// Its arguments, as a JSON object; `{}` if it has none.
        arguments: String,
    },
}

/// A direction on the screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To its beginning.
    Up,
    /// To its end.
    Down,
    /// To the left.
    Left,
    /// To the right.
    Right,
}

impl Direction {
    /// All directions.
    pub const ALL: [Self; 4] = [Self::Up, Self::Down, Self::Left, Self::Right];

    /// Its word in a command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
            Self::Left => "left",
            Self::Right => "right",
        }
    }

    fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|direction| direction.name() == name)
    }
}

impl Command {
    /// Whether no screen follows: the goal is reached, or cannot be.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Done | Self::NoAction)
    }

    /// The command of a text, if it is one for this screen.
    pub(crate) fn read(text: &str, screen: &Screen, actions: &UiActions) -> Option<Self> {
        let text = text.trim_end();
        let (word, rest) = text.split_once(' ').map_or((text, None), |(word, rest)| (word, Some(rest)));
        let Some(verb) = UiVerb::of(word) else {
            let arguments = actions.read(word, rest, screen)?.to_owned();
            return Some(Self::Own { name: word.to_owned(), arguments });
        };
        if !actions.verbs().contains(&verb) {
            return None;
        }
        match (verb, rest) {
            (UiVerb::Back, None) => Some(Self::Back),
            (UiVerb::Wait, None) => Some(Self::Wait),
            (UiVerb::Done, None) => Some(Self::Done),
            (UiVerb::NoAction, None) => Some(Self::NoAction),
            (_, None) => None,
            (UiVerb::Scroll, Some(direction)) => {
                let direction = Direction::of(direction)?;
                matches!(direction, Direction::Up | Direction::Down).then_some(Self::Scroll(direction))
            }
            (UiVerb::Key, Some(key)) => {
                actions.keys().iter().any(|known| known == key).then(|| Self::Key(key.to_owned()))
            }
            (UiVerb::Open, Some(rest)) => {
                let app = quoted(rest, APP_CHARS_MAX)?;
                let is_known = actions.apps().is_empty() || actions.apps().iter().any(|known| known == app);
                is_known.then(|| Self::Open(app.to_owned()))
            }
            (UiVerb::Ask, Some(rest)) => Some(Self::Ask(quoted(rest, TYPED_CHARS_MAX)?.to_owned())),
            (UiVerb::Swipe, Some(rest)) => {
                let (id, direction) = match rest.split_once(' ') {
                    Some((id, direction)) => (Some(id), direction),
                    None => (None, rest),
                };
                let element = match id {
                    Some(id) => Some(element(screen, verb, id)?.0),
                    None => None,
                };
                Some(Self::Swipe { element, direction: Direction::of(direction)? })
            }
            (_, Some(rest)) => {
                let (id, rest) = rest.split_once(' ')?;
                let (id, element) = element(screen, verb, id)?;
                let label = rest.strip_prefix('"')?.strip_suffix('"')?;
                match verb {
                    UiVerb::Tap if label == element.label => Some(Self::Tap { element: id }),
                    UiVerb::LongPress if label == element.label => Some(Self::LongPress { element: id }),
                    UiVerb::Type => {
                        Some(Self::Type { element: id, text: quoted(rest, TYPED_CHARS_MAX)?.to_owned() })
                    }
                    _ => None,
                }
            }
        }
    }
}

/// The id and the element that takes a command.
fn element<'a>(screen: &'a Screen, verb: UiVerb, id: &str) -> Option<(String, &'a Element)> {
    screen.element(id).filter(|element| element.takes(verb)).map(|element| (id.to_owned(), element))
}

/// A text in quotes, on one line, of a bounded length.
fn quoted(text: &str, chars_max: usize) -> Option<&str> {
    let text = text.strip_prefix('"')?.strip_suffix('"')?;
    let is_one = !text.is_empty() && !text.contains(['"', '\r', '\n']) && text.chars().count() <= chars_max;
    is_one.then_some(text)
}

/// The regular expression of the commands for a screen, without those of the app; empty if there is none.
pub(crate) fn regex(screen: &Screen, actions: &UiActions) -> String {
    let verbs = actions.verbs();
    let mut commands: Vec<String> = Vec::new();
    // Labels stand once for the elements that take both touches.
    let touched = |takes: &dyn Fn(bool, bool) -> bool| {
        let labelled = screen.elements().iter().filter_map(|element| {
            let of = |verb| verbs.contains(&verb) && element.takes(verb);
            let is_in = takes(of(UiVerb::Tap), of(UiVerb::LongPress));
            let id = element.id.as_deref().filter(|_| is_in)?;
            Some(format!("{} \"{}\"", literal(id), literal(&element.label)))
        });
        labelled.collect::<Vec<_>>().join("|")
    };
    let both = touched(&|tap, press| tap && press);
    let (tapped, pressed) = (touched(&|tap, press| tap && !press), touched(&|tap, press| press && !tap));
    for (words, elements) in [("(tap|long_press)", both), ("tap", tapped), ("long_press", pressed)] {
        if !elements.is_empty() {
            commands.push(format!("{words} ({elements})"));
        }
    }
    let ids = |verb| screen.taking(verb).map(|(id, _)| literal(id)).collect::<Vec<_>>().join("|");
    let text = format!("\"[^\"\\r\\n]{{1,{TYPED_CHARS_MAX}}}\"");
    for &verb in verbs {
        match verb {
            UiVerb::Tap | UiVerb::LongPress => {}
            UiVerb::Type => {
                let ids = ids(verb);
                if !ids.is_empty() {
                    commands.push(format!("type ({ids}) {text}"));
                }
            }
            UiVerb::Scroll => commands.push("scroll (up|down)".to_owned()),
            UiVerb::Swipe => {
                let ids = ids(verb);
                let element = if ids.is_empty() { String::new() } else { format!("(({ids}) )?") };
                commands.push(format!("swipe {element}(up|down|left|right)"));
            }
            UiVerb::Key => {
                let keys: Vec<String> = actions.keys().iter().map(|key| literal(key)).collect();
                commands.push(format!("key ({})", keys.join("|")));
            }
            UiVerb::Open => {
                let apps: Vec<String> = actions.apps().iter().map(|app| literal(app)).collect();
                commands.push(match apps.is_empty() {
                    true => format!("open \"[^\"\\r\\n]{{1,{APP_CHARS_MAX}}}\""),
                    false => format!("open \"({})\"", apps.join("|")),
                });
            }
            UiVerb::Ask => commands.push(format!("ask {text}")),
            UiVerb::Back | UiVerb::Wait | UiVerb::Done | UiVerb::NoAction => {
                commands.push(verb.name().to_owned());
            }
        }
    }
    let mut regex = String::new();
    if !commands.is_empty() {
        // Writing to a string cannot fail.
        let _ = write!(regex, "({})", commands.join("|"));
    }
    regex
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_back_from_their_text() {
        let screen = Screen::new("", [("button", "Save (all)"), ("field", "To")]).unwrap();
        let actions = UiActions::default();
        assert_eq!(
            regex(
                &screen,
                &actions.clone().with_verbs(&[UiVerb::Tap, UiVerb::Scroll, UiVerb::Back, UiVerb::Type])
            ),
            "(tap (1 \"Save \\(all\\)\"|2 \"To\")|type (2) \"[^\"\\r\\n]{1,256}\"|scroll (up|down)|back)"
        );
        let read = |text: &str| Command::read(text, &screen, &actions);
        let id = |id: &str| id.to_owned();
        let typed = |text: &str| Command::Type { element: id("2"), text: text.to_owned() };
        let swipe = |element, direction| Command::Swipe { element, direction };
        for (text, command) in [
            ("tap 1 \"Save (all)\"", Command::Tap { element: id("1") }),
            ("long_press 2 \"To\"", Command::LongPress { element: id("2") }),
            ("type 2 \"Ada V\"", typed("Ada V")),
            ("scroll down", Command::Scroll(Direction::Down)),
            ("swipe left", swipe(None, Direction::Left)),
            ("swipe 2 up", swipe(Some(id("2")), Direction::Up)),
            ("back", Command::Back),
            ("key enter", Command::Key(id("enter"))),
            ("open \"Our notes\"", Command::Open(id("Our notes"))),
            ("wait", Command::Wait),
            ("ask \"Which one?\"", Command::Ask(id("Which one?"))),
            ("done\n", Command::Done),
            ("none", Command::NoAction),
        ] {
            assert_eq!(read(text), Some(command), "{text}");
        }
        for broken in [
            "",
            "tap",
            "tap 9 \"To\"",
            "tap 1 \"",
            "tap 1 \"To\"",
            "type 1 \"a\"",
            "type 2 \"\"",
            "type 2 \"a\"b\"",
            "scroll left",
            "swipe 9 up",
            "swipe 1",
            "key f1",
            "ask \"\"",
            "done 1",
            "jump 1 \"a\"",
        ] {
            assert_eq!(read(broken), None, "{broken}");
        }
    }

    #[test]
    fn what_no_element_takes_is_no_alternative() {
        let screen = Screen::new("", [Element::new("text", "Draft").with_id("e1").taking(&[])]).unwrap();
        let actions = UiActions::default().with_verbs(&[UiVerb::Tap, UiVerb::Type, UiVerb::LongPress]);
        assert_eq!(regex(&screen, &actions), "");
        let apps =
            UiActions::default().with_verbs(&[UiVerb::Open, UiVerb::Swipe]).with_apps(["A+", "B"]).unwrap();
        assert_eq!(regex(&screen, &apps), "(swipe (up|down|left|right)|open \"(A\\+|B)\")");
        assert_eq!(Command::read("open \"C\"", &screen, &apps), None);
    }
}
