//! A document: the text of one file, and the title for its passages.

use std::path::{Path, PathBuf};

/// The text of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Document {
    /// The origin of the text, as the caller named it (a folder's path joined with the file's).
    pub path: PathBuf,
    /// The first heading of level one, else the file name without its extension.
    pub title: String,
    /// The text, with `\n` line ends and no byte order mark.
    pub text: String,
}

impl Document {
    /// Builds a document from a file's text. Line ends become `\n`; a byte order mark is dropped.
    pub fn new(path: impl Into<PathBuf>, text: &str) -> Self {
        let path = path.into();
        let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
        let title = first_heading(&text).unwrap_or_else(|| file_stem(&path));
        Self { path, title, text }
    }
}

/// A Markdown heading (`## Title ##`): its level, 1 to 6, and its text.
pub(crate) fn heading(line: &str) -> Option<(usize, &str)> {
    let unmarked = line.trim_start_matches('#');
    let level = line.len() - unmarked.len();
    let is_heading = (1..=6).contains(&level) && (unmarked.is_empty() || unmarked.starts_with([' ', '\t']));
    is_heading.then(|| (level, unmarked.trim().trim_end_matches('#').trim_end()))
}

/// Whether a line opens or closes a fenced code block. Inside such a block, `#` starts a comment, not a heading.
pub(crate) fn is_fence(line: &str) -> bool {
    let line = line.trim_start();
    line.starts_with("```") || line.starts_with("~~~")
}

/// The text of the first heading of level one.
pub(crate) fn first_heading(text: &str) -> Option<String> {
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= is_fence(line);
        match heading(line) {
            Some((1, title)) if !fenced && !title.is_empty() => return Some(title.to_owned()),
            _ => {}
        }
    }
    None
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
    }

    #[test]
    fn line_ends_and_byte_order_mark_are_normalised() {
        let document = Document::new("a.txt", "\u{feff}one\r\ntwo");
        assert_eq!(document.text, "one\ntwo");
    }
}
