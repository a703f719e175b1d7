//! The kinds of commands for a screen.

/// A kind of command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum UiVerb {
    /// `tap 4 "Sign in"`
    Tap,
    /// `long_press 4 "Sign in"`
    LongPress,
    /// `type 4 "text"`
    Type,
    /// `scroll down`
    Scroll,
    /// `swipe left`, `swipe 4 left`
    Swipe,
    /// `back`
    Back,
    /// `key enter`
    Key,
    /// `open "Calendar"`
    Open,
    /// `wait`
    Wait,
    /// `ask "Which account?"`
    Ask,
    /// `done`
    Done,
    /// `none`
    NoAction,
}

impl UiVerb {
    /// All kinds, in the order in which a prompt lists them.
    pub const ALL: [Self; 12] = [
        Self::Tap,
        Self::LongPress,
        Self::Type,
        Self::Scroll,
        Self::Swipe,
        Self::Back,
        Self::Key,
        Self::Open,
        Self::Wait,
        Self::Ask,
        Self::Done,
        Self::NoAction,
    ];

    /// The word with which its commands begin.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tap => "tap",
            Self::LongPress => "long_press",
            Self::Type => "type",
            Self::Scroll => "scroll",
            Self::Swipe => "swipe",
            Self::Back => "back",
            Self::Key => "key",
            Self::Open => "open",
            Self::Wait => "wait",
            Self::Ask => "ask",
            Self::Done => "done",
            Self::NoAction => "none",
        }
    }

    pub(super) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|verb| verb.name() == name)
    }
}
