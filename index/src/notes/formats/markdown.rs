//! Markdown and plain text, with front matter and `#tags`.

use unicode_normalization::char::is_combining_mark;

use super::{Body, TAG_BYTES_MAX, Unit, lines, parse_date, sorted};
use crate::document::{first_heading, is_fence};
use crate::notes::report::SkipReason;
use crate::notes::words::is_ignorable;

/// The first lines between `---` and `---`.
#[derive(Default)]
struct FrontMatter {
    title: Option<String>,
    date: Option<i64>,
    tags: Vec<String>,
    /// Offset of the text behind it.
    end: usize,
}

pub(super) fn read(name: &str, text: &str) -> Result<Vec<Unit>, SkipReason> {
    let start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let front = front_matter(text, start);
    let body = &text[front.end..];
    let title = front.title.or_else(|| first_heading(body)).unwrap_or_else(|| name.to_owned());
    let mut tags = front.tags;
    tags.extend(tags_in(body));
    let unit =
        Unit { title, body: Body::Verbatim(front.end..text.len()), date: front.date, tags: sorted(tags) };
    Ok(vec![unit])
}

/// Reads `title`, `date` and `tags`; lists are `[a, b]`, `a, b`, or a line `- a` for each. Other keys are ignored. Text
/// that only begins like front matter stays text.
fn front_matter(text: &str, start: usize) -> FrontMatter {
    let none = FrontMatter { end: start, ..FrontMatter::default() };
    let mut lines = lines(&text[start..]);
    if lines.next().is_none_or(|(_, line)| line.trim_end() != "---") {
        return none;
    }
    let mut front = FrontMatter::default();
    let mut in_tags = false;
    for (place, line) in lines {
        if matches!(line.trim_end(), "---" | "...") {
            let after =
                text[start + place.end..].find('\n').map_or(text.len(), |n| start + place.end + n + 1);
            return FrontMatter { end: after, ..front };
        }
        if let Some(item) = line.trim_start().strip_prefix("- ").filter(|_| in_tags) {
            front.tags.extend(tag(item));
            continue;
        }
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        in_tags = false;
        match key.trim().to_ascii_lowercase().as_str() {
            "title" => front.title = Some(unquoted(value).to_owned()).filter(|title| !title.is_empty()),
            "date" | "created" => front.date = front.date.or_else(|| parse_date(unquoted(value))),
            "tags" | "tag" | "keywords" => {
                in_tags = true;
                let list = value.trim_start_matches('[').trim_end_matches(']');
                front.tags.extend(list.split(',').filter_map(tag));
            }
            _ => {}
        }
    }
    none
}

fn unquoted(value: &str) -> &str {
    value.trim().trim_matches(['"', '\''])
}

/// A tag in its stored form: lower case, without `#` and quotes.
fn tag(text: &str) -> Option<String> {
    let tag = unquoted(text).trim_start_matches('#').trim().to_lowercase();
    (!tag.is_empty() && tag.len() <= TAG_BYTES_MAX).then_some(tag)
}

/// Words `#tag` outside of code: a letter first, then letters with their marks, digits, `-`, `_` and `/`.
fn tags_in(text: &str) -> Vec<String> {
    let mut tags = Vec::new();
    let mut fenced = false;
    for (_, line) in lines(text) {
        fenced ^= is_fence(line);
        if fenced || !line.contains('#') {
            continue;
        }
        for word in line.split(|c: char| c.is_whitespace() || matches!(c, '(' | ')' | ',' | ';')) {
            let Some(word) = word.strip_prefix('#') else { continue };
            let word = word.trim_end_matches(['.', ':', '!', '?', '*', '"']);
            if is_tag(word) {
                tags.extend(tag(word));
            }
        }
    }
    tags
}

/// Whether a word after `#` is a tag (`#2` and `##` are not).
fn is_tag(word: &str) -> bool {
    word.starts_with(char::is_alphabetic)
        && word.chars().all(|c| {
            c.is_alphanumeric() || is_combining_mark(c) || is_ignorable(c) || matches!(c, '-' | '_' | '/')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unit(text: &str) -> Unit {
        read("name", text).unwrap().remove(0)
    }

    fn body(text: &str) -> &str {
        match unit(text).body {
            Body::Verbatim(place) => &text[place],
            Body::Decoded(_) => unreachable!("notes are text"),
        }
    }

    #[test]
    fn front_matter_gives_title_date_and_tags() {
        let text = "---\r\ntitle: \"A trip\"\r\ndate: 2024-05-01\r\ntags: [Travel, 'north']\r\nx: y\r\n---\r\n# Oslo\r\n";
        let unit = unit(text);
        assert_eq!((unit.title.as_str(), unit.date), ("A trip", Some(1_714_521_600)));
        assert_eq!(unit.tags, ["north", "travel"]);
        assert_eq!(body(text), "# Oslo\r\n");
        assert_eq!(super::read("n", "---\ntags:\n- a\n- b\n---\n").unwrap()[0].tags, ["a", "b"]);
    }

    #[test]
    fn unfinished_front_matter_is_text() {
        assert_eq!(body("---\ntitle: a\n"), "---\ntitle: a\n");
        assert_eq!(body("\u{feff}one"), "one");
        assert_eq!(unit("").title, "name");
    }

    #[test]
    fn tags_are_words_and_headings_are_none() {
        let text = "# Title\n#garden, see (#rep-air/roof). #2 ## a#b\n```\n#code\n```\n#Über!";
        assert_eq!(unit(text).tags, ["garden", "rep-air/roof", "über"]);
    }
}
