//! Snippets: the part of a passage with the most of the request's words.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use super::language::Language;
use super::words::words;

/// Maximum length of a snippet, in bytes: two lines of a terminal.
pub const SNIPPET_BYTES_MAX: usize = 200;

/// A part of a passage.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Snippet {
    /// Its bytes in the passage's text.
    pub range: Range<usize>,
    /// Its text.
    pub text: String,
    /// The words of the request in it: ascending, disjoint bytes of [`text`](Self::text).
    pub matched: Vec<Range<usize>>,
}

/// The window with the most different words of a request; the first one of several. The start of the text if it has
/// none.
pub(super) fn snippet(
    text: &str,
    terms: &BTreeSet<String>,
    initials: &BTreeSet<String>,
    language: Option<Language>,
) -> Snippet {
    let matched = matches(text, terms, initials, language);
    let (mut best, mut n_best) = (0..0, 0);
    for (first, (start, _)) in matched.iter().enumerate() {
        let window =
            || matched[first..].iter().take_while(|(at, _)| at.end <= start.start + SNIPPET_BYTES_MAX);
        let n_different = window().map(|(_, word)| word).collect::<HashSet<_>>().len();
        if n_different > n_best {
            (best, n_best) = (first..first + window().count(), n_different);
        }
    }
    let hits = &matched[best];
    let covered = match (hits.first(), hits.last()) {
        (Some((first, _)), Some((last, _))) => first.start..last.end.max(first.end),
        _ => 0..0,
    };
    let range = around(text, covered);
    let inside = matched.iter().filter(|(at, _)| at.start >= range.start && at.end <= range.end);
    let inside = inside.map(|(at, _)| at.start - range.start..at.end - range.start).collect();
    Snippet { text: text[range.clone()].to_owned(), range, matched: joined(inside) }
}

/// The words of the text that a request has, with their forms.
fn matches(
    text: &str,
    terms: &BTreeSet<String>,
    initials: &BTreeSet<String>,
    language: Option<Language>,
) -> Vec<(Range<usize>, String)> {
    let found = words(text, language).filter_map(|word| {
        let is_whole = terms.contains(&word.text);
        let form = match is_whole {
            true => word.text,
            false => initials.iter().find(|&initial| word.text.starts_with(initial.as_str()))?.clone(),
        };
        // Of a pair of characters, only the first is known to match.
        let first = text[word.range.clone()].chars().next().map_or(0, char::len_utf8);
        let end = if is_whole { word.range.end } else { word.range.start + first };
        Some((word.range.start..end, form))
    });
    found.collect()
}

/// The bytes of a text around a part: up to the limit, at the ends of words where possible.
fn around(text: &str, part: Range<usize>) -> Range<usize> {
    let room = SNIPPET_BYTES_MAX.saturating_sub(part.len());
    let mut start = part.start.saturating_sub(room / 4);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    if start > 0 && start < part.start {
        start += text[start..part.start].find(char::is_whitespace).unwrap_or(0);
    }
    let mut end = start.saturating_add(SNIPPET_BYTES_MAX.max(part.end.saturating_sub(start))).min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    if end < text.len() && end > part.end {
        end = text[part.end..end].rfind(char::is_whitespace).map_or(end, |at| part.end + at);
    }
    let content = &text[start..end];
    let trimmed = start + content.len() - content.trim_start().len();
    trimmed..trimmed + content.trim().len()
}

/// Ranges that overlap or touch (pairs of characters) become one.
fn joined(ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    let mut joined: Vec<Range<usize>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(text: &str, terms: &[&str]) -> Snippet {
        let terms = terms.iter().map(|term| (*term).to_owned()).collect();
        snippet(text, &terms, &BTreeSet::from(["語".to_owned()]), Some(Language::English))
    }

    #[test]
    fn the_window_has_the_most_words() {
        let text =
            format!("meetings first. {}The tap drips at the meeting. {}", "x y ".repeat(80), "z ".repeat(90));
        let snippet = of(&text, &["meet", "tap"]);
        let shown: Vec<_> = snippet.matched.iter().map(|range| &snippet.text[range.clone()]).collect();
        assert_eq!(shown, ["tap", "meeting"]);
        assert!(snippet.text.len() <= SNIPPET_BYTES_MAX);
        assert_eq!(
            of("Nothing here", &["tap"]),
            Snippet { range: 0..12, text: "Nothing here".into(), matched: vec![] }
        );
    }

    #[test]
    fn pairs_of_characters_are_one_match() {
        let snippet = of("今日は東京都へ行く", &["東京", "京都"]);
        assert_eq!(&snippet.text[snippet.matched[0].clone()], "東京都");
        assert_eq!(of("日本語版", &[]).matched, vec![6..9; 1]);
    }

    proptest! {
        #[test]
        fn any_text_has_a_snippet(text in "([a-c ]|tap |é|語|\\PC){0,300}") {
            let snippet = of(&text, &["tap", "a", "語é"]);
            prop_assert_eq!(&text[snippet.range.clone()], &snippet.text);
            prop_assert!(snippet.text.len() <= SNIPPET_BYTES_MAX);
            for pair in snippet.matched.windows(2) {
                prop_assert!(pair[0].end < pair[1].start);
            }
            for range in &snippet.matched {
                prop_assert!(snippet.text.get(range.clone()).is_some_and(|word| !word.is_empty()));
            }
        }
    }
}
