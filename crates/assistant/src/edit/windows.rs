//! The windows of a text that is edited piece by piece.
//!
//! A window ends where the text has a border: before a heading, between paragraphs, else after a line, a sentence, a word, and only
//! then between characters. Windows are adjacent, so together they are the text, whatever is between the words.

use std::ops::Range;

use crate::fit::{CountTokens, INSIDE_LINES, last_that_fits};

/// Bytes of text in which the end of a window is looked for, per token. Tokens of text have 3 to 5 bytes on average; a window of longer
/// tokens is shorter than it could be.
const BYTES_PER_TOKEN: usize = 8;

/// A window that is shorter than this share of the possible length ends at a smaller border.
const SHARE_MIN: usize = 8;

/// A window, and the tokens of its text without the white space at its ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Window {
    pub(crate) place: Range<usize>,
    pub(crate) n_tokens: usize,
}

/// Divides a part of a text into windows of at most `tokens_max` tokens; none is blank, unless the part is. `headings` are the offsets at
/// which the lines of headings begin, ascending. `None`: a character has no room.
pub(crate) fn windows<E>(
    text: &str,
    part: Range<usize>,
    headings: &[usize],
    tokens_max: usize,
    count: &CountTokens<'_, E>,
) -> Result<Option<Vec<Window>>, E> {
    let (mut windows, mut at) = (Vec::new(), part.start);
    while at < part.end {
        let Some(window) = next(&text[..part.end], at, headings, tokens_max, count)? else { return Ok(None) };
        at = window.place.end;
        windows.push(window);
    }
    Ok(Some(windows))
}

/// The window that begins at `at`.
fn next<E>(
    text: &str,
    at: usize,
    headings: &[usize],
    tokens_max: usize,
    count: &CountTokens<'_, E>,
) -> Result<Option<Window>, E> {
    let rest = text[at..].trim_start();
    let start = text.len() - rest.len();
    let limit = rest.floor_char_boundary(tokens_max.saturating_mul(BYTES_PER_TOKEN));
    if limit == rest.len() {
        let n_tokens = count(rest.trim_end())?;
        if n_tokens <= tokens_max {
            return Ok(Some(Window { place: at..text.len(), n_tokens }));
        }
    }
    let view = &rest[..limit];
    let mut best: Option<Window> = None;
    let of_lines: [fn(&str) -> Vec<usize>; 2] =
        [paragraph_starts, |text| text.match_indices('\n').map(|(at, _)| at + 1).collect()];
    for (level, borders) in of_lines.iter().chain(&INSIDE_LINES).enumerate() {
        let found = last_that_fits(view, &borders(view), tokens_max, &|text: &str| count(text.trim_end()))?;
        let Some((mut end, mut n_tokens)) = found else { continue };
        // A section that begins in the second half begins the next window.
        let from = headings.partition_point(|&heading| heading <= start + end / 2);
        let inside = headings[from..].iter().take_while(|&&heading| heading <= start + end);
        if level == 0
            && let Some(&heading) = inside.last()
            && heading < start + end
        {
            end = heading - start;
            n_tokens = count(rest[..end].trim_end())?;
        }
        if best.as_ref().is_none_or(|best| best.n_tokens < n_tokens) {
            let end = if rest[end..].trim_start().is_empty() { rest.len() } else { end };
            best = Some(Window { place: at..start + end, n_tokens });
        }
        if n_tokens.saturating_mul(SHARE_MIN) >= tokens_max {
            break;
        }
    }
    Ok(best)
}

/// Where paragraphs begin behind an empty line; not inside fenced code.
fn paragraph_starts(text: &str) -> Vec<usize> {
    let (mut starts, mut at) = (Vec::new(), 0);
    let (mut is_behind_empty, mut fence) = (false, None);
    for line in text.split_inclusive('\n') {
        let is_empty = line.trim().is_empty();
        if is_behind_empty && !is_empty && fence.is_none() {
            starts.push(at);
        }
        let mark = line.trim_start().get(..3).filter(|mark| matches!(*mark, "```" | "~~~"));
        fence = match (fence, mark) {
            (None, mark) => mark,
            (open, mark) if open == mark => None,
            (open, _) => open,
        };
        is_behind_empty = is_empty;
        at += line.len();
    }
    starts
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    /// A token for each word and each line end.
    fn count(text: &str) -> Result<usize, Infallible> {
        Ok(text.split_whitespace().count() + text.matches('\n').count())
    }

    fn divided(text: &str, tokens_max: usize) -> Vec<&str> {
        let headings: Vec<usize> =
            refrain_index::Outline::of(text).headings.iter().map(|heading| heading.lines.start).collect();
        let Ok(windows) = windows(text, 0..text.len(), &headings, tokens_max, &count);
        windows.unwrap().into_iter().map(|window| &text[window.place]).collect()
    }

    #[test]
    fn windows_end_at_the_largest_border() {
        assert_eq!(divided("one two", 2), ["one two"]);
        let paragraphs = "a a a\n\nb b b\n\nc c c\n";
        assert_eq!(divided(paragraphs, 8), ["a a a\n\nb b b\n\n", "c c c\n"]);
        assert_eq!(
            divided(&paragraphs.replace('\n', "\r\n"), 8),
            ["a a a\r\n\r\nb b b\r\n\r\n", "c c c\r\n"]
        );
        let sections = "x x x\n\n# A\n\na a a\n\nb b b b b b\n";
        assert_eq!(divided(sections, 12), ["x x x\n\n# A\n\na a a\n\n", "b b b b b b\n"]);
        let sections = "x x x x x x\n\n# A\n\na\n\nb b b b b b\n";
        assert_eq!(divided(sections, 13), ["x x x x x x\n\n", "# A\n\na\n\nb b b b b b\n"]);
        assert_eq!(divided("a a\nb b\nc c", 5), ["a a\nb b\n", "c c"]);
        assert_eq!(divided("One two. Three four. Five.", 4), ["One two. Three four.", " Five."]);
        assert_eq!(divided("one two three", 2), ["one two", " three"]);
    }

    #[test]
    fn fenced_code_is_not_cut_at_its_empty_lines() {
        let code = "a a\n\n```\nb\n\nc\n```\n\nd d\n";
        assert_eq!(divided(code, 12), ["a a\n\n```\nb\n\nc\n```\n\n", "d d\n"]);
        assert_eq!(divided(code, 8), ["a a\n\n", "```\nb\n\nc\n```\n\n", "d d\n"]);
    }

    #[test]
    fn a_text_without_borders_is_cut_between_characters() {
        let by_bytes = |text: &str| -> Result<usize, Infallible> { Ok(text.len()) };
        let Ok(found) = windows("日本語の文", 0..15, &[], 7, &by_bytes);
        assert_eq!(found.unwrap().len(), 3);
        let Ok(none) = windows("日本", 0..6, &[], 2, &by_bytes);
        assert_eq!(none, None);
    }

    #[test]
    fn a_long_line_is_never_counted_whole() {
        let text = "word ".repeat(1 << 18);
        let bounded = |text: &str| {
            assert!(text.len() <= 100 * BYTES_PER_TOKEN, "{} bytes were counted", text.len());
            count(text)
        };
        let Ok(found) = windows(&text, 0..text.len(), &[], 100, &bounded);
        let found = found.unwrap();
        assert!(found.iter().all(|window| (1..=100).contains(&window.n_tokens)));
        assert_eq!(found.iter().map(|window| window.n_tokens).sum::<usize>(), 1 << 18);
    }

    proptest! {
        #[test]
        fn windows_are_the_text_and_fit(
            text in "([a-c日.]{1,3}|# |```|\r\n|\n\n|\n| ){0,60}",
            tokens_max in 1usize..20,
        ) {
            let headings: Vec<usize> =
                refrain_index::Outline::of(&text).headings.iter().map(|heading| heading.lines.start).collect();
            let Ok(found) = windows(&text, 0..text.len(), &headings, tokens_max, &count);
            let found = found.expect("a word has room");
            let joined: String = found.iter().map(|window| &text[window.place.clone()]).collect();
            prop_assert_eq!(&joined, &text);
            for window in &found {
                let shown = text[window.place.clone()].trim();
                prop_assert_eq!(window.n_tokens, count(shown).unwrap());
                prop_assert!(window.n_tokens <= tokens_max && (!shown.is_empty() || text.trim().is_empty()));
            }
            if count(text.trim()).unwrap() <= tokens_max && text.len() <= tokens_max * BYTES_PER_TOKEN {
                prop_assert!(found.len() <= 1, "equal to the whole where it fits");
            }
        }
    }
}
