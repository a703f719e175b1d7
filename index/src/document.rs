//! A document: the text of one file, and the title for its passages.

use std::path::{Path, PathBuf};

use crate::front_matter::FrontMatter;
use crate::markdown::{Section, Structure};

/// The text of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The origin of the text, as the caller named it (a folder's path joined with the file's).
    pub path: PathBuf,
    /// The title in the front matter, else the first heading of level one, else the file name without its extension.
    pub title: String,
    /// The text, with `\n` line ends and no byte order mark.
    pub text: String,
    /// Whether lines that Markdown has as headings are headings.
    pub is_markdown: bool,
}

impl Document {
    /// Builds a document from a file's text. Line ends become `\n`; a byte order mark is dropped.
    pub fn new(path: impl Into<PathBuf>, text: &str) -> Self {
        let path = path.into();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
        let front = FrontMatter::read(&text).unwrap_or_default();
        let title = front.title.or_else(|| Some(Structure::read(&text, front.end).title()?.to_owned()));
        let title = title.unwrap_or_else(|| file_stem(&path));
        Self { path, title, text, is_markdown: true }
    }

    /// Builds a document whose lines are text as they are: source code, mail, what was decoded from another format. Its title is the file
    /// name without its extension.
    pub fn plain(path: impl Into<PathBuf>, text: &str) -> Self {
        let path = path.into();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
        Self { title: file_stem(&path), path, text, is_markdown: false }
    }

    /// Whether the text begins with a Markdown heading.
    pub fn begins_with_heading(&self) -> bool {
        if !self.is_markdown {
            return false;
        }
        let structure = self.structure();
        structure.headings.first().is_some_and(|first| self.text[..first.lines.start].trim().is_empty())
    }

    /// The sections of the text. Front matter is text of the first one.
    pub(crate) fn sections(&self) -> Vec<Section> {
        if !self.is_markdown {
            return vec![Section { heading: String::new(), body: 0..self.text.len() }];
        }
        self.structure().sections(&self.text, 0, &self.title)
    }

    fn structure(&self) -> Structure {
        Structure::read(&self.text, FrontMatter::read(&self.text).map_or(0, |front| front.end))
    }
}

fn file_stem(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_title_is_the_first_top_heading_or_the_file_name() {
        let title = |text: &str| Document::new("notes/trip plan.md", text).title;
        assert_eq!(title("intro\n\n# Oslo #\n\n# Second"), "Oslo");
        assert_eq!(title("## Only a section"), "trip plan");
        assert_eq!(title("```\n# a comment\n```\n# Real"), "Real");
        assert_eq!(title("#hashtag"), "trip plan");
        assert_eq!(title("#"), "trip plan");
        assert_eq!(title(""), "trip plan");
        assert_eq!(title("Oslo\n===\n"), "Oslo");
        assert_eq!(title("> # Quoted\n\n- # Item\n"), "trip plan");
        assert_eq!(title("a ```b``` c\n\n# Real"), "Real");
        assert_eq!(title("---\ntitle: >-\n  A\n  trip\ntags: [a]\n---\n# Oslo"), "A trip");
        assert_eq!(title("---\ntags: [a]\n---\n"), "trip plan");
    }

    #[test]
    fn lines_of_a_plain_text_are_no_headings() {
        let document = Document::plain("src/tap.py", "# Drips.\r\nx = 1\n");
        assert_eq!((document.title.as_str(), document.begins_with_heading()), ("tap", false));
        let passages = crate::split(&document);
        assert_eq!((passages.len(), passages[0].text.as_str()), (1, "# Drips.\nx = 1"));
    }

    #[test]
    fn line_ends_and_byte_order_mark_are_normalised() {
        let document = Document::new("a.txt", "\u{feff}one\r\ntwo");
        assert_eq!(document.text, "one\ntwo");
    }
}
