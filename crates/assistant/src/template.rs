//! Prompts as templates: text with named places.
//!
//! A template consists of paragraphs, separated by empty lines. A place is a name in braces:
//!
//! | place | is replaced by |
//! | --- | --- |
//! | `{passages}` | the passages, each with its title as a heading |
//! | `{cited_passages}` | the same, with a number before each: `[1]`, `[2]`, … |
//! | `{request}` | the question, the goal, the instruction |
//!
//! A paragraph is left out if it has a place for which there is nothing. `{{` and `}}` are braces. Text that replaces a place is
//! not searched for places. What changes least should come first, because the prompts of a task share the computation of their
//! common start.

use std::fmt::Write as _;

use refrain::{Message, PromptPassage, Task};
use thiserror::Error;

/// A template of a task's user message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    paragraphs: Vec<Vec<Part>>,
    is_cited: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Part {
    Text(String),
    Passages,
    Request,
}

/// The prompt of an answer with citations.
const CITED_ANSWER: &str =
    "Answer the question from the notes. Cite the notes as [1].\n\n{cited_passages}\n\nQuestion: {request}";

/// A template was refused.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template names a place that does not exist.
    #[error("byte {offset}: there is no place `{name}`: the places are passages, cited_passages and request")]
    UnknownPlace {
        /// The name.
        name: String,
        /// The offset of its brace.
        offset: usize,
    },
    /// A brace is not closed, or closes nothing.
    #[error("byte {offset}: a single brace; `{{{{` and `}}}}` stand for braces")]
    SingleBrace {
        /// Its offset.
        offset: usize,
    },
    /// A place is missing.
    #[error("the place `{name}` is missing")]
    MissingPlace {
        /// Its name.
        name: &'static str,
    },
    /// A place occurs twice.
    #[error("byte {offset}: the place `{name}` occurs twice")]
    DuplicatePlace {
        /// Its name.
        name: &'static str,
        /// The offset of the second one.
        offset: usize,
    },
    /// The template is too long.
    #[error("the template has {given} bytes, more than {max}")]
    TooLong {
        /// Its bytes.
        given: usize,
        /// The limit.
        max: usize,
    },
}

impl Template {
    /// Maximum length of a template, in bytes.
    pub const BYTES_MAX: usize = 1 << 20;

    /// Parses a template. `{request}` and one of `{passages}` and `{cited_passages}` occur once.
    ///
    /// # Errors
    /// [`TemplateError`], with the offset of the place.
    pub fn new(text: &str) -> Result<Self, TemplateError> {
        if text.len() > Self::BYTES_MAX {
            return Err(TemplateError::TooLong { given: text.len(), max: Self::BYTES_MAX });
        }
        let (mut paragraphs, mut start) = (Vec::new(), 0);
        let mut places = Places::default();
        for paragraph in text.split("\n\n") {
            paragraphs.push(places.parse(paragraph, start)?);
            start += paragraph.len() + 2;
        }
        match places {
            Places { passages: false, .. } => Err(TemplateError::MissingPlace { name: "passages" }),
            Places { request: false, .. } => Err(TemplateError::MissingPlace { name: "request" }),
            Places { is_cited, .. } => Ok(Self { paragraphs, is_cited }),
        }
    }

    /// The template that gives the prompts of [`Task::user_message`].
    pub fn of_task(task: Task) -> Self {
        let passages = [PromptPassage::new("", "{passages}")];
        Self::new(&task.user_message(&passages, "{request}")).expect("the layout of a task has both places")
    }

    /// An answer that cites its passages as `[1]`. The model in the program is not trained on it.
    pub fn cited_answer() -> Self {
        Self::new(CITED_ANSWER).expect("it has both places")
    }

    /// The user's words alone: a turn of a conversation.
    pub(crate) fn words() -> Self {
        Self { paragraphs: vec![vec![Part::Request]], is_cited: false }
    }

    /// The user's words behind texts.
    pub(crate) fn words_behind_texts() -> Self {
        Self { paragraphs: vec![vec![Part::Passages], vec![Part::Request]], is_cited: false }
    }

    /// The template's own sentences of three words or more, which no note has by chance.
    pub(crate) fn sentences(&self) -> impl Iterator<Item = &str> {
        let texts = self.paragraphs.iter().flatten().filter_map(|part| match part {
            Part::Text(text) => Some(text.trim()),
            Part::Passages | Part::Request => None,
        });
        texts.filter(|text| text.split_whitespace().count() >= 3)
    }

    /// The user message.
    pub(crate) fn render(&self, passages: &[PromptPassage<'_>], request: &str) -> String {
        let request = request.trim();
        let is_there = |part: &Part| match part {
            Part::Text(_) => true,
            Part::Passages => !passages.is_empty(),
            Part::Request => !request.is_empty(),
        };
        let mut message = String::new();
        let mut is_first = true;
        for paragraph in self.paragraphs.iter().filter(|paragraph| paragraph.iter().all(is_there)) {
            if !std::mem::take(&mut is_first) {
                message.push_str("\n\n");
            }
            for part in paragraph {
                match part {
                    Part::Text(text) => message.push_str(text),
                    Part::Passages => push_passages(&mut message, passages, self.is_cited),
                    Part::Request => message.push_str(request),
                }
            }
        }
        message
    }
}

fn push_passages(message: &mut String, passages: &[PromptPassage<'_>], is_cited: bool) {
    for (at, passage) in passages.iter().enumerate() {
        if at > 0 {
            message.push_str("\n\n");
        }
        let (number, title) = (at + 1, passage.title.trim());
        // Writing to a string cannot fail.
        let _ = match (is_cited, title.is_empty()) {
            (true, true) => writeln!(message, "[{number}]"),
            (true, false) => writeln!(message, "# [{number}] {title}"),
            (false, true) => Ok(()),
            (false, false) => writeln!(message, "# {title}"),
        };
        message.push_str(passage.text.trim());
    }
}

/// The places that were found so far.
#[derive(Default)]
struct Places {
    passages: bool,
    is_cited: bool,
    request: bool,
}

impl Places {
    fn parse(&mut self, paragraph: &str, start: usize) -> Result<Vec<Part>, TemplateError> {
        let (mut parts, mut text, mut rest) = (Vec::new(), String::new(), paragraph);
        while let Some(at) = rest.find(['{', '}']) {
            let offset = start + (paragraph.len() - rest.len()) + at;
            text.push_str(&rest[..at]);
            let brace = &rest[at..];
            if brace.starts_with("{{") || brace.starts_with("}}") {
                text.push_str(&brace[..1]);
                rest = &brace[2..];
                continue;
            }
            let end = brace.find('}').filter(|_| brace.starts_with('{'));
            let end = end.ok_or(TemplateError::SingleBrace { offset })?;
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            parts.push(self.place(&brace[1..end], offset)?);
            rest = &brace[end + 1..];
        }
        text.push_str(rest);
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Ok(parts)
    }

    fn place(&mut self, name: &str, offset: usize) -> Result<Part, TemplateError> {
        let (seen, name, part) = match name {
            "passages" => (&mut self.passages, "passages", Part::Passages),
            "cited_passages" => {
                self.is_cited = true;
                (&mut self.passages, "cited_passages", Part::Passages)
            }
            "request" => (&mut self.request, "request", Part::Request),
            _ => return Err(TemplateError::UnknownPlace { name: name.to_owned(), offset }),
        };
        match std::mem::replace(seen, true) {
            true => Err(TemplateError::DuplicatePlace { name, offset }),
            false => Ok(part),
        }
    }
}

/// The templates of an assistant. The default ones give the prompts that the model in the program is trained on.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Prompts {
    /// Answers from notes. Default: [`Task::Answer`].
    pub answer: Template,
    /// Answers for a chat bubble ([`Assistant::ask`](crate::Assistant::ask)). Default: [`Template::cited_answer`].
    pub cited_answer: Template,
    /// Summaries, of notes and of the summaries of parts. Default: [`Task::Summarize`].
    pub summarize: Template,
    /// Commands for screens: the passages are the screen and the last action. Default: [`Task::Ui`].
    pub ui: Template,
    /// Replies: the passages are the message, earlier messages and notes. Default: [`Task::Reply`].
    pub reply: Template,
    /// Edits: the passage is the text.
    pub edit: Template,
}

impl Default for Prompts {
    fn default() -> Self {
        Self {
            answer: Template::of_task(Task::Answer),
            cited_answer: Template::cited_answer(),
            summarize: Template::of_task(Task::Summarize),
            ui: Template::of_task(Task::Ui),
            reply: Template::of_task(Task::Reply),
            edit: Template::new("Edit the text.\n\n{passages}\n\nRequest: {request}")
                .expect("it has both places"),
        }
    }
}

/// Turns as plain text, for a model without a chat template.
pub(crate) fn plain_text(messages: &[Message]) -> String {
    messages.iter().map(|message| message.content.as_str()).collect::<Vec<_>>().join("\n\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_default_templates_give_the_prompts_of_the_tasks(
            passages in prop::collection::vec(("[ a{}#\n]{0,5}", "[ b{}\n]{0,12}"), 0..4),
            request in "[ c{}\n]{0,8}",
        ) {
            let passages: Vec<_> =
                passages.iter().map(|(title, text)| PromptPassage::new(title, text)).collect();
            for &task in Task::ALL {
                let template = Template::of_task(task);
                prop_assert_eq!(template.render(&passages, &request), task.user_message(&passages, &request));
            }
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[{}a\n]{0,20}|(passages|request|\\{|\\}| ){0,8}") {
            let _ = Template::new(&text);
        }
    }

    #[test]
    fn places_are_checked() {
        use TemplateError::*;
        let refused = |text: &str| Template::new(text).unwrap_err();
        assert_eq!(refused("{passages}\n\n{goal}"), UnknownPlace { name: "goal".into(), offset: 12 });
        assert_eq!(refused("{passages}"), MissingPlace { name: "request" });
        assert_eq!(refused("{request}"), MissingPlace { name: "passages" });
        assert_eq!(
            refused("{passages} {cited_passages}"),
            DuplicatePlace { name: "cited_passages", offset: 11 }
        );
        assert_eq!(refused("{request}\n\n} {passages}"), SingleBrace { offset: 11 });
        assert_eq!(refused("{passages} {request"), SingleBrace { offset: 11 });
        assert!(matches!(refused(&"a".repeat(Template::BYTES_MAX + 1)), TooLong { .. }));
    }

    #[test]
    fn numbers_and_braces_are_shown() {
        let template = Template::new("Use {{n}}.\n\n{cited_passages}\n\nQ: {request}").unwrap();
        let passages = [PromptPassage::new("A", "{request}"), PromptPassage::new("", "two")];
        assert_eq!(
            template.render(&passages, "why?"),
            "Use {n}.\n\n# [1] A\n{request}\n\n[2]\ntwo\n\nQ: why?"
        );
        assert_eq!(template.render(&[], ""), "Use {n}.");
    }
}
