//! Passages: pieces of a document, short enough for a prompt.
//!
//! A passage never crosses a heading with text below it. Under one heading, whole paragraphs and list items are packed together
//! while they fit. A paragraph that is too long is divided between sentences, a sentence between words, and a word between
//! characters. A passage is a slice of the document's text, so a quotation of a passage is a quotation of the note.
//!
//! [`split`] gives each part of the text once, for prompts. The stored index asks for an overlap, so that a sentence
//! keeps the words before it.

use std::ops::Range;
use std::path::PathBuf;

use crate::document::Document;
use crate::markdown::{Section, TITLE_BYTES_MAX};
use crate::notes::words::continues;

/// Maximum length of a passage, in words. About 160 tokens of English: several passages fit a small model's context
/// together, and one contains a whole paragraph of ordinary prose.
pub const PASSAGE_WORDS_MAX: usize = 120;

/// Bytes of text that count as one word if a "word" is longer: scripts without spaces, links, encoded data. English
/// words with their space have about six bytes, so this limits a passage to about three times the usual length.
const WORD_BYTES_MAX: usize = 16;

/// A piece of a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passage {
    /// The document's path.
    pub path: PathBuf,
    /// Line of the document on which the passage starts, from 1.
    pub line: usize,
    /// The document's title, followed by the heading above the passage if it is different.
    pub title: String,
    /// The text, without white space around it; never empty.
    pub text: String,
}

/// Splits a document into passages of at most [`PASSAGE_WORDS_MAX`] words, in the order of the text.
///
/// Headings become titles. A heading without text below it, and one too long for a title, is text itself. All other text except
/// white space is in exactly one passage. Of a document without text, the title is the only passage.
pub fn split(document: &Document) -> Vec<Passage> {
    let text = document.text.as_str();
    let sections = document.sections();
    let ranges = slices(text, &sections, 0).into_iter().map(|Slice { heading, range }| (heading, range));
    let mut passages = passages(document, ranges);
    let title = short_title(&document.title).trim();
    if passages.is_empty() && !title.is_empty() {
        let (path, title) = (document.path.clone(), title.to_owned());
        passages.push(Passage { path, line: 1, text: title.clone(), title });
    }
    passages
}

/// The sections of a document in the order of the text: all text under one heading as one passage of any length. Sections
/// without text are left out.
pub fn split_sections(document: &Document) -> Vec<Passage> {
    let sections = document.sections();
    let ranges =
        sections.iter().map(|section| (section.heading.as_str(), trim(&document.text, section.body.clone())));
    passages(document, ranges.filter(|(_, range)| !range.is_empty()))
}

/// The passages of ascending ranges, each with the heading above it.
fn passages<'a>(document: &Document, ranges: impl Iterator<Item = (&'a str, Range<usize>)>) -> Vec<Passage> {
    let text = document.text.as_str();
    let (mut line, mut counted_to) = (1, 0);
    let passages = ranges.map(|(heading, range)| {
        line += text[counted_to..range.start].matches('\n').count();
        counted_to = range.start;
        let title = title_below(&document.title, heading);
        Passage { path: document.path.clone(), line, title, text: text[range].to_owned() }
    });
    passages.collect()
}

/// The beginning of a title, for passages.
pub(crate) fn short_title(title: &str) -> &str {
    &title[..title.floor_char_boundary(TITLE_BYTES_MAX)]
}

/// A document's title, followed by the heading if it is different. Both are cut to [`TITLE_BYTES_MAX`].
pub(crate) fn title_below(title: &str, heading: &str) -> String {
    match (short_title(title), short_title(heading)) {
        (title, "") => title.to_owned(),
        (title, heading) if title == heading => title.to_owned(),
        (title, heading) => format!("{title}: {heading}"),
    }
}

/// Whether the title of a passage is a name, or a name with a heading below it.
pub(crate) fn is_titled(title: &str, name: &str) -> bool {
    title.strip_prefix(name).is_some_and(|heading| heading.is_empty() || heading.starts_with(": "))
}

/// A part of a text, and the heading above it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slice<'a> {
    /// Empty if there is none.
    pub(crate) heading: &'a str,
    /// Bytes of the text; trimmed, never empty.
    pub(crate) range: Range<usize>,
}

/// Divides sections into slices of at most [`PASSAGE_WORDS_MAX`] words. A slice repeats at most `n_overlap` words from
/// the end of the slice before it in the same section; from the start of a sentence, if one fits.
pub(crate) fn slices<'a>(text: &str, sections: &'a [Section], n_overlap: usize) -> Vec<Slice<'a>> {
    let slices = sections.iter().flat_map(|Section { heading, body }| {
        pack(text, body.clone(), n_overlap).into_iter().map(move |range| Slice { heading, range })
    });
    slices.collect()
}

/// Groups a section's pieces into ranges of at most [`PASSAGE_WORDS_MAX`] words, trimmed.
pub(crate) fn pack(text: &str, body: Range<usize>, n_overlap: usize) -> Vec<Range<usize>> {
    let mut packed: Vec<Range<usize>> = Vec::new();
    let mut n_words_open = 0;
    for piece in pieces(text, body) {
        let n_words = count_words(&text[piece.clone()]);
        match packed.last_mut() {
            Some(open) if n_words_open + n_words <= PASSAGE_WORDS_MAX => {
                open.end = piece.end;
                n_words_open += n_words;
            }
            last => {
                let room = n_overlap.min(PASSAGE_WORDS_MAX - n_words);
                let repeated =
                    last.map(|last| tail(text, last.clone(), room)).filter(|tail| !tail.is_empty());
                let start = repeated.map_or(piece.start, |tail| tail.start);
                n_words_open = count_words(&text[start..piece.end]);
                packed.push(start..piece.end);
            }
        }
    }
    packed
}

/// The last words of a range, at most `n_words`: whole sentences if one fits, else whole words. May be empty.
fn tail(text: &str, range: Range<usize>, n_words: usize) -> Range<usize> {
    let fits = |part: &Range<usize>| count_words(&text[part.start..range.end]) <= n_words;
    let first_that_fits = |parts: Vec<Range<usize>>| parts.into_iter().skip(1).find(fits);
    let start = first_that_fits(sentences(text, range.clone()))
        .or_else(|| first_that_fits(word_parts(text, range.clone())))
        .map_or(range.end, |part| part.start);
    start..range.end
}

/// The largest units of at most [`PASSAGE_WORDS_MAX`] words: paragraphs, else sentences, else runs of words, else
/// runs of characters. All are trimmed; none is empty.
fn pieces(text: &str, body: Range<usize>) -> Vec<Range<usize>> {
    let mut pieces = Vec::new();
    for paragraph in paragraphs(text, body) {
        if count_words(&text[paragraph.clone()]) <= PASSAGE_WORDS_MAX {
            pieces.push(paragraph);
            continue;
        }
        for sentence in sentences(text, paragraph) {
            if count_words(&text[sentence.clone()]) <= PASSAGE_WORDS_MAX {
                pieces.push(sentence);
            } else {
                pieces.extend(word_parts(text, sentence));
            }
        }
    }
    pieces
}

pub(crate) fn count_words(text: &str) -> usize {
    text.split_whitespace().map(|word| word.len().div_ceil(WORD_BYTES_MAX)).sum()
}

/// Lines of `range`, each with its line end.
fn lines(text: &str, range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut start = range.start;
    text[range].split_inclusive('\n').map(move |line| {
        let end = start + line.len();
        std::mem::replace(&mut start, end)..end
    })
}

/// Runs of lines without a blank line between them, and list items; trimmed.
fn paragraphs(text: &str, range: Range<usize>) -> Vec<Range<usize>> {
    let mut paragraphs = Vec::new();
    let mut open: Option<Range<usize>> = None;
    for line in lines(text, range) {
        let content = &text[line.clone()];
        if content.trim().is_empty() {
            paragraphs.extend(open.take());
            continue;
        }
        if is_list_item(content) {
            paragraphs.extend(open.take());
        }
        open.get_or_insert(line.clone()).end = line.end;
    }
    paragraphs.extend(open);
    paragraphs.into_iter().map(|paragraph| trim(text, paragraph)).collect()
}

/// Whether a line starts a Markdown list item: `- `, `* `, `+ `, `1. ` or `1) `.
fn is_list_item(line: &str) -> bool {
    let line = line.trim_start();
    let unmarked = match line.trim_start_matches(|c: char| c.is_ascii_digit()) {
        rest if rest.len() == line.len() => rest.strip_prefix(['-', '*', '+']),
        rest => rest.strip_prefix(['.', ')']),
    };
    unmarked.is_some_and(|rest| rest.starts_with([' ', '\t']))
}

/// Parts of a paragraph that end with a sentence mark (and closing quotes or brackets after it) or with a line end.
fn sentences(text: &str, range: Range<usize>) -> Vec<Range<usize>> {
    let mut sentences = Vec::new();
    let mut start = range.start;
    let mut ended = false;
    for (offset, character) in text[range.clone()].char_indices() {
        let position = range.start + offset;
        let wide_mark = matches!(character, '。' | '！' | '？');
        if character == '\n' || (ended && character.is_whitespace()) || wide_mark {
            let end = position + character.len_utf8();
            sentences.push(start..end);
            start = end;
        }
        ended = matches!(character, '.' | '!' | '?' | '…')
            || (ended && matches!(character, '"' | '\'' | ')' | ']' | '”' | '’' | '»'));
    }
    sentences.push(start..range.end);
    sentences.into_iter().map(|sentence| trim(text, sentence)).filter(|s| !s.is_empty()).collect()
}

/// Words of a sentence. Long words are divided between characters with their marks, so that each part counts as at most one passage.
fn word_parts(text: &str, range: Range<usize>) -> Vec<Range<usize>> {
    let part_bytes_max = PASSAGE_WORDS_MAX * WORD_BYTES_MAX;
    let mut parts = Vec::new();
    let mut open: Option<Range<usize>> = None;
    // The start of the last character with its marks.
    let mut whole = range.start;
    for (offset, character) in text[range.clone()].char_indices() {
        let position = range.start + offset;
        let end = position + character.len_utf8();
        if !continues(character) {
            whole = position;
        }
        if character.is_whitespace() {
            parts.extend(open.take());
        } else {
            let part = open.get_or_insert(position..end);
            if end - part.start > part_bytes_max {
                let cut = if whole > part.start { whole } else { position };
                parts.push(part.start..cut);
                part.start = cut;
            }
            part.end = end;
        }
    }
    parts.extend(open);
    parts
}

fn trim(text: &str, range: Range<usize>) -> Range<usize> {
    let content = &text[range.clone()];
    let start = range.start + content.len() - content.trim_start().len();
    start..start + content.trim().len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::markdown::Structure;

    fn sections_of(text: &str) -> Vec<Section> {
        Structure::read(text, 0).sections(text, 0, "")
    }

    /// The text of each slice.
    fn sliced(text: &str, n_overlap: usize) -> Vec<&str> {
        slices(text, &sections_of(text), n_overlap).into_iter().map(|slice| &text[slice.range]).collect()
    }

    fn split_text(text: &str) -> Vec<Passage> {
        split(&Document::new("note.md", text))
    }

    #[test]
    fn paragraphs_under_one_heading_are_packed_and_headings_become_titles() {
        let passages = split_text("# Trip\n\nWe fly to Oslo.\n\nOn Monday.\n\n## Hotel\nThe Bristol.\n");
        let shown: Vec<_> = passages.iter().map(|p| (p.line, p.title.as_str(), p.text.as_str())).collect();
        assert_eq!(shown, [(3, "Trip", "We fly to Oslo.\n\nOn Monday."), (8, "Trip: Hotel", "The Bristol.")]);
    }

    #[test]
    fn no_character_is_cut_from_its_marks() {
        for character in ["e\u{301}", "\u{1112}\u{116c}", "क\u{93c}"] {
            let passages = split_text(&character.repeat(2000));
            let first = character.chars().next().unwrap();
            assert!(passages.len() > 2 && passages.iter().all(|passage| passage.text.starts_with(first)));
        }
        assert!(split_text(&format!("e{}", "\u{301}".repeat(5000))).len() > 2);
    }

    #[test]
    fn sections_are_whole() {
        let text =
            format!("intro\n\n# Trip\n\n{}\n\n  - end\n\n## Empty\n\n# Trip\nlast\n", "word ".repeat(300));
        let sections = split_sections(&Document::new("note.md", &text));
        let found: Vec<_> = sections.iter().map(|s| (s.line, s.title.as_str())).collect();
        assert_eq!(found, [(1, "Trip"), (5, "Trip"), (9, "Trip"), (12, "Trip")]);
        assert!(sections[1].text.ends_with("word \n\n  - end") && text.contains(&sections[1].text));
    }

    #[test]
    fn a_long_paragraph_is_cut_between_sentences() {
        let sentence = "word ".repeat(49) + "end. ";
        let passages = split_text(&sentence.repeat(5));
        let n_words: Vec<_> = passages.iter().map(|p| count_words(&p.text)).collect();
        assert_eq!(n_words, [100, 100, 50]);
        assert!(passages.iter().all(|p| p.text.ends_with("end.")));
    }

    #[test]
    fn exactly_the_limit_is_one_passage_and_one_word_more_is_two() {
        for (n_words, n_passages) in [(1, 1), (119, 1), (120, 1), (121, 2), (240, 2), (241, 3)] {
            assert_eq!(split_text(&"word ".repeat(n_words)).len(), n_passages, "{n_words} words");
        }
    }

    #[test]
    fn text_without_spaces_is_cut_between_characters() {
        let passages = split_text(&"語".repeat(3000));
        assert!(passages.len() > 3, "{} passages", passages.len());
        assert!(passages.iter().all(|p| count_words(&p.text) <= PASSAGE_WORDS_MAX));
    }

    #[test]
    fn a_heading_that_is_no_title_is_text() {
        let passages = split_text(&format!("# {}zebra\n\ntext\n", "word ".repeat(60)));
        assert!(passages.iter().any(|passage| passage.text.contains("zebra")), "{passages:?}");
    }

    #[test]
    fn headings_and_names_alone_are_passages() {
        let shown = |text: &str| -> Vec<(usize, String, String)> {
            split_text(text).into_iter().map(|passage| (passage.line, passage.title, passage.text)).collect()
        };
        let passage = |line, title: &str, text: &str| (line, title.to_owned(), text.to_owned());
        assert_eq!(shown("# A\n\n## Boiler code 4410\n"), [passage(3, "A", "## Boiler code 4410")]);
        assert_eq!(shown("Boiler\n======\n"), [passage(1, "Boiler", "Boiler\n======")]);
        assert_eq!(shown(" \n"), [passage(1, "note", "note")]);
        assert_eq!(shown("# A\n\ntext\n"), [passage(3, "A", "text")]);
        assert!(split(&Document::new("", "")).is_empty());
        assert!(split_sections(&Document::new("note.md", "")).is_empty());
    }

    #[test]
    fn code_comments_are_no_headings() {
        let passages = split_text("```sh\n# build\nmake\n```\n");
        assert_eq!(passages.len(), 1);
        assert_eq!(passages[0].title, "note");
    }

    #[test]
    fn list_items_stay_whole() {
        let item = format!("- {}\n  the end\n", "word ".repeat(49));
        let text = item.repeat(3);
        assert_eq!(sliced(&text, 0), [item.repeat(2).trim(), item.trim()]);
    }

    #[test]
    fn an_overlap_starts_at_a_sentence_or_at_a_word() {
        let text = format!("{}One two three. {}", "word ".repeat(100) + "end. ", "more ".repeat(110));
        let overlaps = sliced(&text, 24);
        assert_eq!(overlaps.len(), 2);
        assert!(overlaps[1].starts_with("One two three. more"), "{}", overlaps[1]);
        let text = "word ".repeat(300);
        let sections = sections_of(&text);
        let overlaps: Vec<_> = slices(&text, &sections, 24).into_iter().map(|slice| slice.range).collect();
        assert_eq!(overlaps[1].start, overlaps[0].end - "word ".len() * 24 + 1);
        assert_eq!(sliced("# A\n\none\n\n# B\n\ntwo", 24), ["one", "two"]);
    }

    fn visible(text: &str) -> String {
        text.chars().filter(|c| !c.is_whitespace()).collect()
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_no_passage_is_too_long(
            text in prop_oneof![any::<String>(), "([a-z。.!?#\"`\n ]|word |é|語){0,900}"]
        ) {
            let document = Document::new("note.md", &text);
            let passages = split(&document);
            // The text of all sections, which have all text outside of headings (a test of `markdown`).
            let sections: String = document.sections().into_iter().map(|section| &document.text[section.body]).collect();
            let kept: String = passages.iter().map(|p| p.text.as_str()).collect();
            let is_title = visible(&sections).is_empty();
            prop_assert_eq!(visible(&kept), if is_title { visible(short_title(&document.title)) } else { visible(&sections) });
            for passage in &passages {
                prop_assert!(count_words(&passage.text) <= PASSAGE_WORDS_MAX);
                prop_assert!(!passage.text.is_empty());
                prop_assert_eq!(passage.text.trim(), passage.text.as_str());
            }
        }

        #[test]
        fn an_overlap_adds_words_and_changes_nothing_else(
            text in "([a-z。.!?#\"\\-`\n\r ]|word |é|語){0,900}", n_overlap in 0..40_usize
        ) {
            let sections = sections_of(&text);
            let (plain, overlapped) = (slices(&text, &sections, 0), slices(&text, &sections, n_overlap));
            let covered = |slices: &[Slice<'_>]| {
                let mut covered = vec![false; text.len()];
                slices.iter().for_each(|slice| covered[slice.range.clone()].fill(true));
                text.char_indices()
                    .filter(|&(at, c)| covered[at] && !c.is_whitespace())
                    .map(|(_, c)| c)
                    .collect::<String>()
            };
            prop_assert_eq!(covered(&plain), covered(&overlapped));
            for pair in overlapped.windows(2) {
                let (before, after) = (&pair[0].range, &pair[1].range);
                prop_assert!(before.start < after.start && before.end < after.end);
                let repeated = text.get(after.start..before.end).unwrap_or_default();
                prop_assert!(count_words(repeated) <= n_overlap);
            }
            for slice in &overlapped {
                prop_assert!(count_words(&text[slice.range.clone()]) <= PASSAGE_WORDS_MAX);
            }
        }
    }
}
