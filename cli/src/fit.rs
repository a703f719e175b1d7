//! Fits passages into a number of tokens: whole passages in order, then the start of the first one that is
//! too long.

use std::path::PathBuf;

use serde::Serialize;

use crate::context::{Chosen, as_text};
use crate::failure::Failure;

/// Maximum bytes of text encoded per token of room; tokens of text have 3 to 5 bytes on average. A longer
/// text is cut before its tokens are counted, so the time and memory of encoding depend on the room and not
/// on the text.
const BYTES_PER_TOKEN_MAX: usize = 32;

/// Maximum bytes of left-out text encoded for the notice. The tokens of further text are estimated.
const COUNTED_BYTES_MAX: usize = 1 << 18;

/// Counts the tokens of a text.
pub(crate) type CountTokens<'a> = dyn Fn(&str) -> Result<usize, Failure> + 'a;

/// A passage, or the end of one, that is not in the prompt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct LeftOut {
    #[serde(serialize_with = "as_text")]
    pub(crate) path: PathBuf,
    pub(crate) line: usize,
    pub(crate) title: String,
    /// Number of left-out tokens; estimated beyond the first [`COUNTED_BYTES_MAX`] bytes.
    pub(crate) tokens: usize,
    /// Whether the start of the passage is in the prompt.
    pub(crate) start_shown: bool,
}

/// The passages that fit, and the others.
#[derive(Debug, Default)]
pub(crate) struct Fitted {
    pub(crate) shown: Vec<Chosen>,
    pub(crate) left_out: Vec<LeftOut>,
    /// Bytes of the texts that were left out.
    left_out_bytes: usize,
}

/// Shows the passages, in their order, up to `tokens_max` tokens together. The first passage that does not
/// fit is cut at a paragraph or at a line; the very first passage may be cut at a word. Everything after a
/// cut is left out.
pub(crate) fn fit(
    passages: &[Chosen],
    tokens_max: usize,
    count: &CountTokens<'_>,
) -> Result<Fitted, Failure> {
    let mut fitted = Fitted::default();
    let (mut room, mut is_full) = (tokens_max, false);
    for passage in passages {
        if is_full {
            fitted.leave_out(passage, &passage.text, false, count)?;
            continue;
        }
        let n_head = count(&format!("\n\n# {}\n", passage.title))?;
        let cuts_words = fitted.shown.is_empty();
        let (shown_len, n_tokens) =
            longest_start(&passage.text, room.saturating_sub(n_head), cuts_words, count)?;
        let (shown, rest) = passage.text.split_at(shown_len);
        if !shown.trim().is_empty() {
            fitted.shown.push(Chosen { text: shown.to_owned(), ..passage.clone() });
            room = room.saturating_sub(n_head + n_tokens);
        }
        if !rest.trim().is_empty() {
            is_full = true;
            fitted.leave_out(passage, rest, !shown.trim().is_empty(), count)?;
        }
    }
    Ok(fitted)
}

impl Fitted {
    fn leave_out(
        &mut self,
        passage: &Chosen,
        text: &str,
        start_shown: bool,
        count: &CountTokens<'_>,
    ) -> Result<(), Failure> {
        self.left_out_bytes = self.left_out_bytes.saturating_add(text.len());
        let tokens = if self.left_out_bytes <= COUNTED_BYTES_MAX { count(text)? } else { text.len() / 4 };
        let (path, line) = passage.source.place();
        let (path, title) = (path.to_owned(), passage.title.clone());
        self.left_out.push(LeftOut { path, line, title, tokens, start_shown });
        Ok(())
    }
}

/// The length in bytes of the longest start of `text` with at most `room` tokens, and its tokens. If the whole text
/// does not fit, it ends with a paragraph; if no paragraph fits, with a line; if no line fits and `cuts_words` is
/// true, with a word.
fn longest_start(
    text: &str,
    room: usize,
    cuts_words: bool,
    count: &CountTokens<'_>,
) -> Result<(usize, usize), Failure> {
    let limit = text.floor_char_boundary(room.saturating_mul(BYTES_PER_TOKEN_MAX));
    if limit == text.len() {
        let n_tokens = count(text)?;
        if n_tokens <= room {
            return Ok((text.len(), n_tokens));
        }
    }
    let start = &text[..limit];
    let ends = |separator: &str| start.match_indices(separator).map(|(at, _)| at).collect::<Vec<_>>();
    let words = || start.match_indices(char::is_whitespace).map(|(at, _)| at).collect::<Vec<_>>();
    for level in 0..3 {
        let borders = match level {
            0 => ends("\n\n"),
            1 => ends("\n"),
            _ if cuts_words => words(),
            _ => break,
        };
        if let Some(found) = last_that_fits(start, &borders, room, count)? {
            return Ok(found);
        }
    }
    Ok((0, 0))
}

/// The last of the cut points (ascending) up to which the text has at most `room` tokens, and the number of
/// these tokens. The number grows with the text, except for a token or so at a cut point, so a binary search
/// finds it.
fn last_that_fits(
    text: &str,
    borders: &[usize],
    room: usize,
    count: &CountTokens<'_>,
) -> Result<Option<(usize, usize)>, Failure> {
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
    use super::*;
    use crate::context::whole_text;
    use proptest::prelude::*;

    /// A token for each word and each line end.
    fn count(text: &str) -> Result<usize, Failure> {
        Ok(text.split_whitespace().count() + text.matches('\n').count())
    }

    fn passage(title: &str, text: &str) -> Chosen {
        let mut chosen = whole_text("note.md", text).remove(0);
        (chosen.title, chosen.text) = (title.to_owned(), text.to_owned());
        chosen
    }

    fn texts(fitted: &Fitted) -> Vec<&str> {
        fitted.shown.iter().map(|passage| passage.text.as_str()).collect()
    }

    #[test]
    fn what_fits_is_shown_whole() {
        let passages = [passage("A", "one two"), passage("B", "three")];
        let fitted = fit(&passages, 100, &count).unwrap();
        assert_eq!(texts(&fitted), ["one two", "three"]);
        assert_eq!(fitted.left_out, []);
    }

    #[test]
    fn a_passage_is_cut_at_a_paragraph_then_at_a_line() {
        let text = "one\n\ntwo two\nthree three three three";
        let shown = |room| {
            let fitted =
                fit(&[passage("A", "x"), passage("B", text), passage("C", "y")], room, &count).unwrap();
            let shown: Vec<String> = texts(&fitted).into_iter().map(str::to_owned).collect();
            (shown, fitted.left_out.iter().map(|left| left.start_shown).collect::<Vec<_>>())
        };
        // Passage A takes 6 tokens. The heading of B takes 5: `#`, the title and three line ends.
        assert_eq!(shown(6 + 5 + 1), (vec!["x".to_owned(), "one".to_owned()], vec![true, false]));
        assert_eq!(shown(6 + 5 + 6), (vec!["x".to_owned(), "one".to_owned()], vec![true, false]));
        let lines = "two two\nthree three three three";
        let fitted = fit(&[passage("A", "x"), passage("B", lines)], 6 + 5 + 3, &count).unwrap();
        assert_eq!(texts(&fitted), ["x", "two two"]);
        assert_eq!(shown(6), (vec!["x".to_owned()], vec![false, false]), "not even one line");
    }

    #[test]
    fn only_the_first_passage_is_cut_at_a_word() {
        let fitted = fit(&[passage("A", "one two three four")], 5 + 2, &count).unwrap();
        assert_eq!(texts(&fitted), ["one two"]);
        assert_eq!((fitted.left_out[0].tokens, fitted.left_out[0].start_shown), (2, true));
        assert!(fit(&[passage("A", "one two")], 3, &count).unwrap().shown.is_empty());
    }

    #[test]
    fn a_long_text_is_never_encoded_whole() {
        let text = "word ".repeat(1 << 20);
        let bounded = |text: &str| {
            assert!(text.len() <= COUNTED_BYTES_MAX, "{} bytes were counted", text.len());
            count(text)
        };
        let fitted = fit(&[passage("A", &text)], 100, &bounded).unwrap();
        assert_eq!(count(texts(&fitted)[0]).unwrap(), 95);
    }

    proptest! {
        #[test]
        fn what_is_shown_fits_and_nothing_is_lost(
            texts in proptest::collection::vec("[a-c]{1,3}([ \n]{1,2}[a-c]{1,3}){0,12}", 1..6),
            room in 0usize..80,
        ) {
            let passages: Vec<Chosen> = texts.iter().map(|text| passage("T", text)).collect();
            let fitted = fit(&passages, room, &count).unwrap();
            let shown: usize = fitted.shown.iter().map(|p| 5 + count(&p.text).unwrap()).sum();
            prop_assert!(shown <= room);
            for (shown, whole) in fitted.shown.iter().zip(&passages) {
                prop_assert!(whole.text.starts_with(&shown.text), "a prefix, in order");
            }
            let words = |text: &str| text.split_whitespace().count();
            let n_shown: usize = fitted.shown.iter().map(|p| words(&p.text)).sum();
            let n_all: usize = passages.iter().map(|p| words(&p.text)).sum();
            prop_assert_eq!(n_shown == n_all, fitted.left_out.is_empty());
        }
    }
}
