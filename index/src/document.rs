//! A document: the text of one file, and the title for its passages.

use std::ops::Range;
use std::path::{Path, PathBuf};

use crate::front_matter::FrontMatter;
use crate::markdown::{Heading, Section, Structure};

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

/// Where a Markdown text has its headings, in bytes of the text as it is: line ends and byte order mark are not changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outline {
    /// The end of front matter and byte order mark; 0 without them.
    pub start: usize,
    /// The headings in their order.
    pub headings: Vec<OutlineHeading>,
}

/// A heading of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutlineHeading {
    /// 1 to 6.
    pub level: usize,
    /// Its words, on one line.
    pub title: String,
    /// Its lines with their ends.
    pub lines: Range<usize>,
}

impl Outline {
    /// Reads a text.
    pub fn of(text: &str) -> Self {
        let mark = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        let start = FrontMatter::read(text).map_or(mark, |front| front.end);
        let headings = Structure::read(text, start).headings.into_iter();
        let headings = headings.map(|Heading { level, lines, title }| OutlineHeading { level, title, lines });
        Self { start, headings: headings.collect() }
    }

    /// The place of a section: its heading with all text up to the next heading of its level or above. `n` is the number of its heading.
    pub fn section(&self, n: usize, text_len: usize) -> Range<usize> {
        let heading = &self.headings[n];
        let next = self.headings[n + 1..].iter().find(|next| next.level <= heading.level);
        heading.lines.start..next.map_or(text_len, |next| next.lines.start)
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

    #[test]
    fn an_outline_has_places_of_the_text_as_it_is() {
        let text = "\u{feff}---\r\ntags: [a]\r\n---\r\n# Trip\r\n\r\n## Train\r\nAt nine.\r\n### Seat\r\n4\r\n## Hotel\r\nx\r\n";
        let outline = Outline::of(text);
        assert_eq!(&text[..outline.start], "\u{feff}---\r\ntags: [a]\r\n---\r\n");
        let sections: Vec<_> =
            (0..outline.headings.len()).map(|n| &text[outline.section(n, text.len())]).collect();
        assert_eq!(sections[0], &text[outline.start..]);
        assert_eq!(sections[1], "## Train\r\nAt nine.\r\n### Seat\r\n4\r\n");
        assert_eq!(sections[2..], ["### Seat\r\n4\r\n", "## Hotel\r\nx\r\n"]);
        assert_eq!(Outline::of("no headings"), Outline { start: 0, headings: Vec::new() });
    }
}
