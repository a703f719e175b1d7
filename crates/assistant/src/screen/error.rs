//! The forms of screens, and why a screen or the actions of an agent cannot be used.

use std::fmt;

use refrain_index::notes::SkipReason;
use thiserror::Error;

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

/// A screen cannot be used.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ScreenError {
    /// The source is too long.
    #[error("the screen has {given} bytes, more than {max}")]
    TooLong {
        /// Its bytes.
        given: usize,
        /// The limit.
        max: usize,
    },
    /// There are too many elements.
    #[error("the screen has {given} elements, more than {max}")]
    TooManyElements {
        /// Its elements, or one above the limit.
        given: usize,
        /// The limit.
        max: usize,
    },
    /// There is no element with text.
    #[error("the screen has no element with text")]
    Empty,
    /// Some lines have an id and others do not, so the ids of the others are unknown.
    #[error("line {line} has no id, and other lines have one")]
    NoId {
        /// The line, from 1.
        line: usize,
    },
    /// Two elements have one id, so a command would name both.
    #[error("line {line} has the id `{id}` again")]
    DuplicateId {
        /// The line of the second one, from 1.
        line: usize,
        /// The id.
        id: String,
    },
    /// An id cannot be written in a command.
    #[error("line {line} has an id that is empty, has white space or quotes, or more than {max} characters")]
    Id {
        /// The line, from 1.
        line: usize,
        /// The limit.
        max: usize,
    },
    /// A line does not have the form of the others.
    #[error("line {line} of the {form} screen: {problem}")]
    Line {
        /// The line, from 1.
        line: usize,
        /// The form of the screen.
        form: ScreenForm,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// The screen has a form that is not known, and its ids are not guessed.
    #[error("line {line}: {what} is no form of a screen that is known")]
    UnknownForm {
        /// The line, from 1.
        line: usize,
        /// What it looks like.
        what: &'static str,
    },
    /// The XML cannot be read.
    #[error("line {line} of the XML screen: {reason}")]
    Xml {
        /// The line, from 1.
        line: usize,
        /// Why.
        reason: SkipReason,
    },
}

/// Actions of an agent cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ActionError {
    /// The JSON is too long.
    #[error("the actions have {given} bytes, more than {max}")]
    TooLong {
        /// Its bytes.
        given: usize,
        /// The limit.
        max: usize,
    },
    /// The text is not JSON.
    #[error("the actions are not JSON: line {line}, column {column}")]
    NotJson {
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
    },
    /// A value has another type or meaning than it must have.
    #[error("the actions have at `{pointer}`: {problem}")]
    Field {
        /// The JSON pointer of the value.
        pointer: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A name has other characters than it may have, is too long, or is that of another command.
    #[error("the actions have at `{pointer}` a name that cannot be used")]
    Name {
        /// The JSON pointer of the name.
        pointer: String,
    },
    /// Two actions have one name.
    #[error("there are two actions `{name}`")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// There are too many.
    #[error("there are {given} {what}, more than {max}")]
    TooMany {
        /// What.
        what: &'static str,
        /// Their number, or one above the limit.
        given: usize,
        /// The limit.
        max: usize,
    },
}
