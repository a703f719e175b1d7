//! The four tasks of an assistant app and the prompts that state them.
//!
//! The default wording of a task's prompt. The generator of the fixture models' training text calls [`Task::user_message`] too, so prompts
//! at run time have the layout of the training prompts. The assistant renders the wording (`crates/assistant/src/template.rs`), which an
//! app may replace, and puts the system turn in front (`Assistant::turns`).

use std::fmt::{self, Display, Write as _};

/// The kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub enum Task {
    /// Restate the passages in fewer words.
    Summarize,
    /// Answer a question from the passages.
    Answer,
    /// Choose the next command of a UI agent; the passage is the screen, the request is the goal.
    Ui,
    /// Write a reply to a message; the passages are the message and notes that help.
    Reply,
}

/// A piece of context in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PromptPassage<'a> {
    /// Title of the note; may be empty.
    pub title: &'a str,
    /// The text.
    pub text: &'a str,
}

impl<'a> PromptPassage<'a> {
    /// A text with its title, which may be empty.
    pub const fn new(title: &'a str, text: &'a str) -> Self {
        Self { title, text }
    }
}

impl Task {
    /// All tasks, in the order of the documentation.
    pub const ALL: &[Self] = &[Self::Summarize, Self::Answer, Self::Ui, Self::Reply];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Summarize => "summarize",
            Self::Answer => "answer",
            Self::Ui => "ui",
            Self::Reply => "reply",
        }
    }

    /// First line of the user message.
    fn instruction(self) -> &'static str {
        match self {
            Self::Summarize => "Summarize the notes.",
            Self::Answer => "Answer the question from the notes.",
            Self::Ui => "Choose the next action on the screen.",
            Self::Reply => "Write a reply to the message.",
        }
    }

    /// The label before the request.
    fn request_label(self) -> &'static str {
        match self {
            Self::Summarize | Self::Reply => "Request",
            Self::Answer => "Question",
            Self::Ui => "Goal",
        }
    }

    /// The user message: the instruction, the passages, then the request, whose tokens attend to the
    /// passages. An empty request is left out.
    pub fn user_message(self, passages: &[PromptPassage<'_>], request: &str) -> String {
        let mut message = String::from(self.instruction());
        for passage in passages {
            message.push_str("\n\n");
            let title = passage.title.trim();
            if !title.is_empty() {
                let _ = writeln!(message, "# {title}"); // Writing to a string cannot fail.
            }
            message.push_str(passage.text.trim());
        }
        let request = request.trim();
        if !request.is_empty() {
            let _ = write!(message, "\n\n{}: {request}", self.request_label());
        }
        message
    }
}

impl Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_request_comes_last_and_empty_parts_leave_no_trace() {
        let passages =
            [PromptPassage::new("Kitchen", "The tap drips.\n"), PromptPassage::new("", "No title here.")];
        assert_eq!(
            Task::Answer.user_message(&passages, " What drips? "),
            "Answer the question from the notes.\n\n# Kitchen\nThe tap drips.\n\nNo title here.\n\nQuestion: What drips?"
        );
        assert_eq!(Task::Summarize.user_message(&[], ""), "Summarize the notes.");
    }
}
