//! Snippets: the part of a passage with the most of the request's words.

use std::collections::{BTreeSet, HashSet};
use std::ops::Range;

use unicode_normalization::char::is_combining_mark;

use super::language::Language;
use super::words::{is_ignorable, words};

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
        let end = if is_whole { word.range.end } else { word.first_end };
        // Of a word that is too long for a snippet, the beginning matches.
        let start = word.range.start;
        let longest = text.floor_char_boundary(start + SNIPPET_BYTES_MAX);
        Some((start..with_marks(text, end).min(longest), form))
    });
    found.collect()
}

/// The end of the marks behind a place. They are shown with the character before.
fn with_marks(text: &str, at: usize) -> usize {
    let rest =
        text[at..].trim_start_matches(|c: char| !c.is_ascii() && (is_combining_mark(c) || is_ignorable(c)));
    text.len() - rest.len()
}

/// The bytes of a text around a part: up to the limit, at the ends of words where possible.
fn around(text: &str, part: Range<usize>) -> Range<usize> {
    let room = SNIPPET_BYTES_MAX.saturating_sub(part.len());
    let mut start = part.start.saturating_sub(room / 4);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    start = with_marks(text, start).min(part.start);
    if start > 0 && start < part.start {
        start += text[start..part.start].find(char::is_whitespace).unwrap_or(0);
    }
    let mut end = start.saturating_add(SNIPPET_BYTES_MAX.max(part.end.saturating_sub(start))).min(text.len());
    end = text.floor_char_boundary(end);
    let mut before_marks = end;
    while before_marks > part.end && with_marks(text, before_marks) > before_marks {
        before_marks = text.floor_char_boundary(before_marks - 1);
    }
    // A character may have more marks than fit.
    if before_marks > start {
        end = before_marks;
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
    use unicode_normalization::UnicodeNormalization;

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

    /// A terminal or a page that marks a match must not tear a letter from its marks.
    #[test]
    fn matches_and_cuts_keep_characters_whole() {
        let shown = |text: &str, terms: &[&str]| {
            let snippet = of(text, terms);
            snippet.matched.iter().map(|range| snippet.text[range.clone()].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(shown("ที่นี่", &["ที"]), ["ที่"]);
        assert_eq!(shown("the cafe\u{301}.", &["cafe"]), ["cafe\u{301}"]);
        assert_eq!(shown(&"語\u{fe00}".nfd().collect::<String>(), &[]), ["語\u{fe00}"]);
        let long = "x".repeat(1000);
        assert_eq!(shown(&long, &[&long[..128]]), [&long[..SNIPPET_BYTES_MAX]]);
        let text = of(&"e\u{301}".repeat(300), &[]).text;
        assert!(text.starts_with('e') && text.ends_with('\u{301}') && text.len() > 190, "{text}");
        assert!(!of(&format!("e{}", "\u{301}".repeat(300)), &[]).text.is_empty());
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
