//! A line of HTML per element, whose values may stand without quotes: `<button id=4 text='More'>Sign in</button>`.

use super::source::{Form, Item, Line, join, push, source_lines};
use crate::screen::error::{ScreenError, ScreenForm};

/// Maximum number of attributes of a tag.
const ATTRIBUTES_MAX: usize = 64;

/// Attributes with text for the user, best first.
const TEXT: [&str; 7] = ["aria-label", "text", "placeholder", "alt", "title", "value", "name"];

/// Attributes without a value that are no text.
const FLAGS: [&str; 6] = ["disabled", "checked", "required", "selected", "readonly", "multiple"];

/// Types of `<input>` that take no text.
const BUTTONS: [&str; 9] =
    ["button", "checkbox", "color", "file", "image", "radio", "range", "reset", "submit"];

/// A start tag.
pub(super) struct Tag<'a> {
    pub(super) name: &'a str,
    attributes: Vec<(&'a str, &'a str)>,
    /// Words that are neither an attribute nor a flag.
    words: Vec<&'a str>,
}

impl<'a> Tag<'a> {
    /// The tag at the beginning of a line, and the text behind it; `None` if there is none, or it has no end.
    pub(super) fn read(text: &'a str) -> Option<(Self, &'a str)> {
        let rest = text.strip_prefix('<')?;
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '-' | '_'));
        let (name, mut rest) = rest.split_at(end?);
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return None;
        }
        let mut tag = Tag { name, attributes: Vec::new(), words: Vec::new() };
        loop {
            rest = rest.trim_start();
            if let Some(behind) = rest.strip_prefix("/>").or_else(|| rest.strip_prefix('>')) {
                return Some((tag, behind));
            }
            if tag.attributes.len() + tag.words.len() == ATTRIBUTES_MAX {
                return None;
            }
            let end = rest.find(|c: char| c == '=' || c == '>' || c.is_whitespace())?;
            let key = rest[..end].strip_suffix('/').filter(|_| rest[end..].starts_with('>'));
            let key = key.unwrap_or(&rest[..end]);
            rest = &rest[key.len()..];
            match rest.strip_prefix('=') {
                // A lone `=` is skipped, so that each turn takes a character.
                Some(behind) => {
                    let (value, behind) = value(behind)?;
                    tag.attributes.push((key, value));
                    rest = behind;
                }
                None if FLAGS.contains(&key) => tag.attributes.push((key, "true")),
                None => tag.words.push(key),
            }
        }
    }

    pub(super) fn get(&self, key: &str) -> Option<&'a str> {
        self.attributes.iter().find(|(other, _)| *other == key).map(|&(_, value)| value)
    }

    /// The role: that of ARIA, the type of an input that takes no text, or the tag's name.
    pub(super) fn role(&self) -> &'a str {
        let of_type = self.get("type").filter(|of_type| self.name == "input" && BUTTONS.contains(of_type));
        self.get("role").or(of_type).unwrap_or(self.name)
    }

    /// The text of the tag itself, behind `text`, which may end with a tag's end.
    pub(super) fn label(&self, text: &str) -> String {
        let text = text.trim();
        let end = text.rfind("</").filter(|&at| text[at..].find('>') == Some(text.len() - at - 1));
        let text = text[..end.unwrap_or(text.len())].trim_end().trim_end_matches("/>");
        let mut label = String::new();
        join(&mut label, text, "");
        join(&mut label, &self.words.join(" "), " · ");
        if let Some(value) = TEXT.iter().find_map(|key| self.get(key)) {
            join(&mut label, value, " · ");
        }
        label
    }

    pub(super) fn enabled(&self) -> Option<bool> {
        let is_off = |value: &str| !value.eq_ignore_ascii_case("false");
        ["disabled", "aria-disabled"].iter().find_map(|key| self.get(key)).map(|value| !is_off(value))
    }
}

/// The value at the beginning of a text, in quotes, or up to the next attribute or the tag's end; and the text behind it.
fn value(text: &str) -> Option<(&str, &str)> {
    if let Some(quote) = text.chars().next().filter(|quote| matches!(quote, '"' | '\'')) {
        return text[1..].split_once(quote);
    }
    // Without quotes, a value may have spaces: it ends before a word with `=`.
    let mut end = 0;
    loop {
        let word = text[end..].trim_start();
        let word_start = text.len() - word.len();
        let word_len = word.find(|c: char| c.is_whitespace() || c == '>')?;
        let word = &word[..word_len];
        let is_tag_end = text[word_start + word_len..].starts_with('>');
        if end > 0 && (word.contains('=') || (is_tag_end && matches!(word, "" | "/"))) {
            return Some((&text[..end], &text[end..]));
        }
        end = word_start + word_len;
        if is_tag_end {
            let end = end - usize::from(word.ends_with('/'));
            return Some((text[..end].trim_end(), &text[end..]));
        }
    }
}

/// Whether a line has this form. XML has no value without quotes.
pub(super) fn is_line(text: &str) -> bool {
    let attributes = text.strip_prefix('<').and_then(|rest| rest.split_once(' '));
    attributes.is_some_and(|(name, rest)| {
        let id = rest.trim_start().strip_prefix("id=");
        name.chars().all(|c| c.is_ascii_alphanumeric())
            && id.is_some_and(|id| id.starts_with(|c: char| c.is_ascii_alphanumeric()))
    })
}

pub(super) fn read(source: &str) -> Result<Form, ScreenError> {
    const FORM: ScreenForm = ScreenForm::Tags;
    let mut items: Vec<Item> = Vec::new();
    for line in source_lines(source) {
        match (line.text.starts_with('<'), items.last_mut()) {
            (true, _) => {
                let item = element(&line).ok_or_else(|| line.refused(FORM, "a tag that has no end"))?;
                if item.id.is_none() {
                    return Err(ScreenError::NoId { line: line.number });
                }
                push(&mut items, item)?;
            }
            // The text of an element goes on.
            (false, Some(last)) => {
                let text = line.text.split("</").next().unwrap_or_default();
                join(&mut last.label, text, " ");
                last.place.end = line.place.end;
            }
            (false, None) => return Err(line.refused(FORM, "text before the first tag")),
        }
    }
    Ok(Form { form: FORM, title: String::new(), items })
}

fn element(line: &Line<'_>) -> Option<Item> {
    let (tag, behind) = Tag::read(line.text)?;
    Some(Item {
        id: tag.get("id").map(str::to_owned),
        role: tag.role().to_owned(),
        label: tag.label(behind),
        enabled: tag.enabled(),
        ..line.item()
    })
}
