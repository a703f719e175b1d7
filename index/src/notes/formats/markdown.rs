//! Markdown and plain text, with front matter and `#tags`.

use std::ops::Range;

use unicode_normalization::char::is_combining_mark;

use super::unit::{Body, TAG_BYTES_MAX, Unit, Verbatim, sorted};
use crate::front_matter::FrontMatter;
use crate::markdown::Structure;
use crate::notes::report::SkipReason;
use crate::notes::words::is_ignorable;

pub(super) fn read(name: &str, text: &str) -> Result<Vec<Unit>, SkipReason> {
    let start = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
    let front = FrontMatter::read(text);
    let front =
        front.unwrap_or_else(|| FrontMatter { text_start: start, end: start, ..FrontMatter::default() });
    let structure = Structure::read(text, front.end);
    let title = front.title.as_deref().or(structure.title()).unwrap_or(name).to_owned();
    // Front matter is text from the first entry with other values.
    let has_text = front.text_start < front.content_end;
    let start = if has_text { front.text_start } else { front.end };
    let mut sections = structure.sections(text, start, &title);
    let first = &mut sections[0].body;
    if has_text && text[front.end.min(first.end)..first.end].trim().is_empty() {
        first.end = front.content_end;
    }
    let mut tags: Vec<String> = front.tags.iter().filter_map(|label| tag(label)).collect();
    tags.extend(tags_in(&text[front.end..], front.end, &structure.literal));
    let body = Body::Verbatim(Verbatim { place: start..text.len(), sections, names: front.names });
    Ok(vec![Unit { title, body, date: front.date, tags: sorted(tags), page: None }])
}

/// A tag in its stored form: lower case, without `#`.
fn tag(text: &str) -> Option<String> {
    let tag = text.trim().trim_start_matches('#').trim().to_lowercase();
    (!tag.is_empty() && tag.len() <= TAG_BYTES_MAX).then_some(tag)
}

/// Tags in their stored form, sorted, each once.
pub(in crate::notes) fn tags_of<'a>(tags: impl IntoIterator<Item = &'a String>) -> Vec<String> {
    sorted(tags.into_iter().filter_map(|label| tag(label)).collect())
}

/// Words `#tag` of a text at `offset`, outside of `literal` places: a letter first, then letters with their
/// marks, digits, `-`, `_` and `/`.
fn tags_in(text: &str, offset: usize, literal: &[Range<usize>]) -> Vec<String> {
    let is_end = |c: char| c.is_whitespace() || matches!(c, '(' | ')' | ',' | ';');
    let mut literal = literal.iter().peekable();
    let mut tags = Vec::new();
    for (at, _) in text.match_indices('#') {
        while literal.next_if(|place| place.end <= offset + at).is_some() {}
        let is_literal = literal.peek().is_some_and(|place| place.start <= offset + at);
        if is_literal || !text[..at].chars().next_back().is_none_or(is_end) {
            continue;
        }
        let word = text[at + 1..].split(is_end).next().unwrap_or_default();
        let word = word.trim_end_matches(['.', ':', '!', '?', '*', '"']);
        if is_tag(word) {
            tags.extend(tag(word));
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
            Body::Verbatim(body) => &text[body.place],
            Body::Decoded(_) => unreachable!("notes are text"),
        }
    }

    #[test]
    fn front_matter_gives_title_date_and_tags() {
        let text = "---\r\ntitle: \"A trip\"\r\ndate: 2024-05-01\r\ntags: [Travel, '#north']\r\n---\r\n# Oslo #Fjord\r\n";
        let unit = unit(text);
        assert_eq!((unit.title.as_str(), unit.date), ("A trip", Some(1_714_521_600)));
        assert_eq!(unit.tags, ["fjord", "north", "travel"]);
        assert_eq!(body(text), "# Oslo #Fjord\r\n");
    }

    #[test]
    fn other_entries_are_the_first_text() {
        let sections = |text: &str| -> Vec<String> {
            let Body::Verbatim(body) = unit(text).body else { unreachable!("notes are text") };
            let sections = body.sections.into_iter().map(|section| text[section.body].trim().to_owned());
            sections.filter(|text| !text.is_empty()).collect()
        };
        assert_eq!(sections("---\ntitle: a\nauthor: Ada\n---\n# B\ntext\n"), ["author: Ada", "text"]);
        assert_eq!(sections("---\nauthor: Ada\n---\ntext\n"), ["author: Ada\n---\ntext"]);
        assert_eq!(sections("---\nauthor: Ada\n---\n"), ["author: Ada"]);
    }

    #[test]
    fn a_rule_at_the_start_is_text() {
        for text in
            ["---\n\nA sentence.\n\n---\n\nmore\n", "---\ntitle: a\n", "---\n---\n", "***\na: b\n***\n"]
        {
            assert_eq!(body(text), text);
        }
        assert_eq!(body("\u{feff}one"), "one");
        assert_eq!(unit("").title, "name");
    }

    #[test]
    fn tags_are_words_outside_of_code_and_links() {
        for (text, tags) in [
            (
                "# Title\n#garden, see (#rep-air/roof). #2 ## a#b\n```\n#code\n```\n#Über!",
                &["garden", "rep-air/roof", "über"][..],
            ),
            ("a ```x``` b\n\n#after\n", &["after"]),
            ("`#code` ``a #b`` *#no* #yes\n\n    #indented\n", &["yes"]),
            (
                "[#link](a) [a](b \"#t\") ![ #alt](c) <https://a.b/ #c> <a href= #top> https://a.b/#c [[#d]] #yes\n",
                &["yes"],
            ),
            ("<!-- #no -->\n\n<div>\n #no\n</div>\n\n\\#no #yes\n", &["yes"]),
            ("~~~\n```\n#no\n~~~\n#yes\n", &["yes"]),
            ("Title #one\n=====\n- [ ] #two\n> #three\n", &["one", "three", "two"]),
            ("#हिन्दी #cafe\u{301}\n", &["cafe\u{301}", "हिन्दी"]),
        ] {
            assert_eq!(unit(text).tags, tags, "{text}");
        }
    }
}
