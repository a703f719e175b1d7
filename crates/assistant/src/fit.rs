//! Fits passages into a number of tokens: whole passages in order, then the start of the first one that is
//! too long.

use refrain::PromptPassage;

use crate::pieces::{ZERO_WIDTH_JOINER, is_mark};

/// Maximum bytes of text encoded per token of room; tokens of text have 3 to 5 bytes on average. A longer
/// text is cut before its tokens are counted, so the time and memory of encoding depend on the room and not
/// on the text.
const BYTES_PER_TOKEN_MAX: usize = 32;

/// Maximum bytes of left-out text encoded for the report. The tokens of further text are estimated.
const COUNTED_BYTES_MAX: usize = 1 << 18;

/// Counts the tokens of a text.
pub type CountTokens<'a, E> = dyn Fn(&str) -> Result<usize, E> + 'a;

/// The part of a passage that fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fitted {
    /// Bytes of the text that are shown: a start of the text, 0 for none.
    pub shown_len: usize,
    /// Tokens of the text that are left out; estimated beyond the first 256 KiB of left-out text.
    pub left_out: usize,
}

/// Shows the passages, in their order, up to `tokens_max` tokens together: an entry per passage. The first passage that does
/// not fit is cut at a paragraph or at a line. If nothing else is shown, it may also be cut at a sentence, at a word, or between
/// characters, so that some of it is shown if there is room for a character. Everything after a cut is left out.
///
/// # Errors
/// Those of `count`.
pub fn fit<E>(
    passages: &[PromptPassage<'_>],
    tokens_max: usize,
    count: &CountTokens<'_, E>,
) -> Result<Vec<Fitted>, E> {
    let mut fitted = Vec::with_capacity(passages.len());
    let (mut room, mut is_full, mut left_out_bytes) = (tokens_max, false, 0_usize);
    for passage in passages {
        let (mut shown_len, mut n_tokens) = (0, 0);
        if !is_full {
            let n_head = count(&format!("\n\n# {}\n", passage.title))?;
            let cuts_lines = fitted.iter().all(|fitted: &Fitted| fitted.shown_len == 0);
            (shown_len, n_tokens) =
                longest_start(passage.text, room.saturating_sub(n_head), cuts_lines, count)?;
            n_tokens += n_head;
        }
        if passage.text[..shown_len].trim().is_empty() {
            (shown_len, n_tokens) = (0, 0);
        }
        room = room.saturating_sub(n_tokens);
        let rest = &passage.text[shown_len..];
        let mut left_out = 0;
        if !rest.trim().is_empty() {
            is_full = true;
            left_out_bytes = left_out_bytes.saturating_add(rest.len());
            left_out =
                if left_out_bytes <= COUNTED_BYTES_MAX { count(rest)? } else { (rest.len() / 4).max(1) };
        }
        fitted.push(Fitted { shown_len, left_out });
    }
    Ok(fitted)
}

/// The length in bytes of the longest start of `text` with at most `room` tokens, and its tokens. If the whole text
/// does not fit, it ends with a paragraph; if no paragraph fits, with a line. If no line fits and `cuts_lines` is true, it ends
/// with a sentence, else a word, else a character with its marks, else any character.
fn longest_start<E>(
    text: &str,
    room: usize,
    cuts_lines: bool,
    count: &CountTokens<'_, E>,
) -> Result<(usize, usize), E> {
    let limit = text.floor_char_boundary(room.saturating_mul(BYTES_PER_TOKEN_MAX));
    if limit == text.len() {
        let n_tokens = count(text)?;
        if n_tokens <= room {
            return Ok((text.len(), n_tokens));
        }
    }
    let start = &text[..limit];
    let before = |separator: &str| start.match_indices(separator).map(|(at, _)| at).collect::<Vec<_>>();
    let of_lines = ["\n\n", "\n"].into_iter().map(before);
    let inside_lines = INSIDE_LINES.iter().filter(|_| cuts_lines).map(|borders| borders(start));
    for borders in of_lines.chain(inside_lines) {
        if let Some(found) = last_that_fits(start, &borders, room, count)? {
            return Ok(found);
        }
    }
    Ok((0, 0))
}

/// The places inside lines at which a text may be cut, the better ones first: behind sentences, behind words, behind characters with their
/// marks, behind any character.
pub(crate) const INSIDE_LINES: [fn(&str) -> Vec<usize>; 4] = [
    sentence_ends,
    |text| text.match_indices(char::is_whitespace).map(|(at, _)| at).collect(),
    character_ends,
    |text| text.char_indices().map(|(at, c)| at + c.len_utf8()).collect(),
];

/// Where sentences end: behind `。！？`, and behind `.!?…` before white space, with the closing marks that follow.
fn sentence_ends(text: &str) -> Vec<usize> {
    let (mut ends, mut open) = (Vec::new(), None);
    for (at, c) in text.char_indices() {
        let is_closing =
            matches!(c, '"' | '\'' | ')' | ']' | '”' | '’' | '»' | '」' | '』' | '）' | '〉' | '》');
        open = match (c, open) {
            ('。' | '！' | '？' | '｡', _) => Some(true),
            ('.' | '!' | '?' | '…', _) => Some(false),
            (_, Some(is_wide)) if is_closing => Some(is_wide),
            (_, Some(is_wide)) => {
                if is_wide || c.is_whitespace() {
                    ends.push(at);
                }
                None
            }
            (_, None) => None,
        };
    }
    // The end of the text is no border: the whole was tried.
    ends
}

/// Where characters end, each with the marks that combine with it.
fn character_ends(text: &str) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut joins_next = false;
    for (at, c) in text.char_indices().skip(1) {
        if !is_mark(c) && !joins_next {
            ends.push(at);
        }
        joins_next = c == ZERO_WIDTH_JOINER;
    }
    ends
}

/// The last of the cut points (ascending) up to which the text has at most `room` tokens, and the number of
/// these tokens. The number grows with the text, except for a token or so at a cut point, so a binary search
/// finds it.
pub(crate) fn last_that_fits<E>(
    text: &str,
    borders: &[usize],
    room: usize,
    count: &CountTokens<'_, E>,
) -> Result<Option<(usize, usize)>, E> {
    let (mut fits, mut found) = (0..borders.len(), None);
    while !fits.is_empty() {
        let middle = fits.start + fits.len() / 2;
        let n_tokens = count(&text[..borders[middle]])?;
        if n_tokens <= room {
            if !text[..borders[middle]].trim().is_empty() {
                found = Some((borders[middle], n_tokens));
            }
            fits.start = middle + 1;
        } else {
            fits.end = middle;
        }
    }
    Ok(found)
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

    fn passage(text: &str) -> PromptPassage<'_> {
        PromptPassage::new("T", text)
    }

    fn fit_all(texts: &[&str], room: usize) -> Vec<(usize, usize)> {
        let passages: Vec<_> = texts.iter().map(|text| passage(text)).collect();
        let Ok(fitted) = fit(&passages, room, &count);
        fitted.into_iter().map(|fitted| (fitted.shown_len, fitted.left_out)).collect()
    }

    #[test]
    fn what_fits_is_shown_whole() {
        assert_eq!(fit_all(&["one two", "three"], 100), [(7, 0), (5, 0)]);
    }

    #[test]
    fn a_passage_is_cut_at_a_paragraph_then_at_a_line() {
        let text = "one\n\ntwo two\nthree three three three";
        // Passage x takes 6 tokens. A heading takes 5: `#`, the title and three line ends.
        assert_eq!(fit_all(&["x", text, "y"], 6 + 5 + 1), [(1, 0), (3, 9), (0, 1)]);
        assert_eq!(fit_all(&["x", text, "y"], 6 + 5 + 6), [(1, 0), (3, 9), (0, 1)]);
        assert_eq!(fit_all(&["x", "two two\nthree three three three"], 6 + 5 + 3), [(1, 0), (7, 5)]);
        assert_eq!(fit_all(&["x", text], 6), [(1, 0), (0, 10)], "not even one line");
    }

    #[test]
    fn only_the_first_passage_is_cut_at_a_word() {
        assert_eq!(fit_all(&["one two three four"], 5 + 2), [(7, 2)]);
        assert_eq!(fit_all(&["one two"], 3), [(0, 2)]);
    }

    /// A token for each byte, as a tokenizer may do with what it does not know.
    fn count_bytes(text: &str) -> Result<usize, Infallible> {
        Ok(text.len())
    }

    fn start_of(text: &str, room: usize) -> &str {
        let Ok((len, n_tokens)) = longest_start(text, room, true, &count_bytes);
        assert!(len == n_tokens && len <= room);
        &text[..len]
    }

    #[test]
    fn text_without_spaces_is_cut_at_sentences_then_between_characters() {
        assert_eq!(start_of("明日は晴れ。」明後日は雨。", 27), "明日は晴れ。」");
        assert_eq!(start_of("One. Two (really!) three", 19), "One. Two (really!)");
        assert_eq!(start_of("明日は晴れ", 7), "明日");
        assert_eq!(start_of("QUJDREVGR0g=", 5), "QUJDR");
        // Three letters e with an accent each.
        assert_eq!(start_of("e\u{301}e\u{301}e\u{301}", 5), "e\u{301}");
        assert_eq!(start_of(&format!("e{}", "\u{301}".repeat(50)), 4), "e\u{301}");
        assert_eq!(start_of("👩\u{200d}👧x", 11), "👩\u{200d}👧");
        assert_eq!(start_of("日", 2), "");
    }

    proptest! {
        #[test]
        fn something_is_shown_if_a_character_has_room(text in "\\PC{1,40}", room in 4usize..60) {
            let shown = start_of(&text, room);
            let first_len = text.trim_start().chars().next().map_or(0, char::len_utf8);
            let n_blank = text.len() - text.trim_start().len();
            prop_assert!(!shown.trim().is_empty() || text.trim().is_empty() || room < n_blank + first_len);
        }
    }

    #[test]
    fn a_long_text_is_never_encoded_whole() {
        let text = "word ".repeat(1 << 20);
        let bounded = |text: &str| {
            assert!(text.len() <= COUNTED_BYTES_MAX, "{} bytes were counted", text.len());
            count(text)
        };
        let Ok(fitted) = fit(&[passage(&text)], 100, &bounded);
        assert_eq!(count(&text[..fitted[0].shown_len]), Ok(95));
    }

    proptest! {
        #[test]
        fn what_is_shown_fits_and_nothing_is_lost(
            texts in prop::collection::vec("[a-c]{1,3}([ \n]{1,2}[a-c]{1,3}){0,12}", 1..6),
            room in 0usize..80,
        ) {
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            let fitted = fit_all(&texts, room);
            let shown = |text: &str, len: usize| if len == 0 { 0 } else { 5 + count(&text[..len]).unwrap() };
            let n_shown: usize = texts.iter().zip(&fitted).map(|(text, &(len, _))| shown(text, len)).sum();
            prop_assert!(n_shown <= room);
            for (text, &(len, left_out)) in texts.iter().zip(&fitted) {
                prop_assert_eq!(text[len..].trim().is_empty(), left_out == 0);
            }
            let is_whole = |&(_, left_out): &(usize, usize)| left_out == 0;
            let first_cut = fitted.iter().position(|fitted| !is_whole(fitted)).unwrap_or(fitted.len());
            prop_assert!(fitted.iter().skip(first_cut + 1).all(|&(len, _)| len == 0), "{:?}", fitted);
        }
    }
}
