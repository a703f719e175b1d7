//! The sentences of an answer.
//!
//! A wrong boundary costs a sentence without support; a missing one hides a claim behind another. So in doubt there is a boundary.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::LazyLock;

/// The lists of words, as data.
static WORDS: LazyLock<Words> = LazyLock::new(|| Words::parse(include_str!("abbreviations.txt")));

/// Words in lower case, without their last full stop.
#[derive(Default)]
struct Words {
    /// Abbreviations that end no sentence.
    always: BTreeSet<&'static str>,
    /// Abbreviations that end no sentence before a number.
    before_numbers: BTreeSet<&'static str>,
    /// Abbreviations that end no sentence before a name.
    before_names: BTreeSet<&'static str>,
    /// Words with a capital letter that are no names, because they begin sentences.
    no_names: BTreeSet<&'static str>,
}

impl Words {
    fn parse(text: &'static str) -> Self {
        let mut words = Self::default();
        let mut list = &mut words.always;
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            list = match line {
                "[always]" => &mut words.always,
                "[before numbers]" => &mut words.before_numbers,
                "[before names]" => &mut words.before_names,
                "[no names]" => &mut words.no_names,
                _ => {
                    list.extend(line.split_whitespace());
                    list
                }
            };
        }
        words
    }

    /// Whether a text begins with a name.
    fn is_name(&self, rest: &str) -> bool {
        let word = rest.split(|c: char| !c.is_alphabetic()).next().unwrap_or_default();
        word.starts_with(char::is_uppercase) && !self.no_names.contains(word.to_lowercase().as_str())
    }
}

/// The sentences of a text, in order, without white space around them.
///
/// A sentence ends at the end of a line, at `.`, `!` or `?` before white space, and at the marks of Chinese, Japanese, Hindi,
/// Urdu, Armenian and Ethiopic sentences; closing quotes, brackets and marks of emphasis behind it belong to it. A common
/// abbreviation (`abbreviations.txt`), an initial behind a name or at the start, and the number of a list entry end no sentence; `U.S.` and `3.` end one
/// before a capital letter. Thai, Lao, Khmer and Burmese sentences end at the end of a line. Takes linear time.
///
/// ```
/// use refrain_assistant::provenance::sentences;
///
/// let text = "Dr. Okafor came at 11. 水が止まった。もう乾いている。";
/// let sentences: Vec<&str> = sentences(text).into_iter().map(|range| &text[range]).collect();
/// assert_eq!(sentences, ["Dr. Okafor came at 11.", "水が止まった。", "もう乾いている。"]);
/// ```
pub fn sentences(text: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    lines(text).for_each(|line| of_line(text, line, &mut found));
    found
}

/// The lines of a text, each with its end.
pub(super) fn lines(text: &str) -> impl Iterator<Item = Range<usize>> {
    text.split_inclusive(is_line_end).scan(0, |end, line| {
        *end += line.len();
        Some(*end - line.len()..*end)
    })
}

/// The marks that end a line.
pub(super) fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

/// Whether what follows the end of a sentence cannot change any more: a sentence may end before a word that a name would continue.
pub(super) fn is_settled(rest: &str) -> bool {
    rest.trim_start().chars().any(|c| !c.is_alphabetic())
}

/// Adds the sentences of a line of `text`.
pub(super) fn of_line(text: &str, line: Range<usize>, found: &mut Vec<Range<usize>>) {
    let n_before = found.len();
    let (line_start, line_end) = (line.start, line.end);
    let mut start = line_start;
    // A part without words is no sentence: it belongs to the next one, or at the end of the line to the one before.
    let mut has_word = false;
    let mut chars = text[line].char_indices().map(|(at, c)| (at + line_start, c)).peekable();
    while let Some((at, c)) = chars.next() {
        let mut is_wide = is_wide_end(c);
        if !is_wide && !is_end(c) {
            has_word |= c.is_alphanumeric();
            continue;
        }
        let (mut end, mut last) = (at + c.len_utf8(), c);
        while let Some((at, c)) = chars.next_if(|&(_, c)| is_end(c) || is_wide_end(c) || is_close(c, is_wide))
        {
            (end, last) = (at + c.len_utf8(), c);
            is_wide |= is_wide_end(c);
        }
        let rest = text[end..line_end].trim_start();
        let space = line_end - end - rest.len();
        // French writes a space before the closing mark.
        if rest.starts_with('»') {
            while chars.next().is_some_and(|(_, c)| c != '»') {}
            end += space + '»'.len_utf8();
        }
        let rest = text[end..line_end].chars().next();
        let is_inside = match rest {
            None => false,
            Some(next) if !next.is_whitespace() => {
                // A quotation inside a sentence.
                !is_wide || matches!(last, '」' | '』') && !matches!(next, '「' | '『')
            }
            Some(_) => {
                end == at + 1
                    && c == '.'
                    && goes_on(&text[start..at], &text[end..line_end], start == line_start)
            }
        };
        if has_word && !is_inside {
            push(text, start..end, found);
            (start, has_word) = (end, false);
        }
    }
    match found[n_before..].last_mut() {
        Some(last) if !has_word => last.end = start + text[start..line_end].trim_end().len(),
        _ => push(text, start..line_end, found),
    }
}

fn push(text: &str, part: Range<usize>, found: &mut Vec<Range<usize>>) {
    let trimmed = text[part.clone()].trim_start();
    let start = part.end - trimmed.len();
    if !trimmed.is_empty() {
        found.push(start..start + trimmed.trim_end().len());
    }
}

/// Whether a full stop behind `before`, the sentence so far, is part of an abbreviation, an initial or a list number. White space
/// and then `rest` follow.
fn goes_on(before: &str, rest: &str, is_line_start: bool) -> bool {
    let next = rest.trim_start().chars().next();
    let word = before.rsplit(|c: char| c.is_whitespace() || is_opening(c)).next().unwrap_or(before);
    let others =
        before[..before.len() - word.len()].trim_end_matches(|c: char| c.is_whitespace() || is_opening(c));
    let lower = word.to_lowercase();
    let is = |list: &BTreeSet<&str>| list.contains(lower.as_str());
    let mut letters = word.chars();
    match (letters.next(), letters.next()) {
        // Initials; `I` ends sentences.
        (Some(c), None) if c.is_uppercase() && c != 'I' => {
            let previous = others.rsplit(char::is_whitespace).next().unwrap_or(others);
            previous.chars().next().is_none_or(char::is_uppercase)
        }
        _ if others.is_empty() && is_line_start && is_list_number(word) => true,
        _ if is(&WORDS.always) => true,
        _ if is(&WORDS.before_numbers) && next.is_some_and(char::is_numeric) => true,
        _ if is(&WORDS.before_names) && word.starts_with(char::is_uppercase) => {
            WORDS.is_name(rest.trim_start())
        }
        // Such as `p.m`.
        _ if word.contains('.') && word.split('.').all(|part| (1..=2).contains(&part.chars().count())) => {
            word.chars().all(|c| c == '.' || c.is_alphabetic()) && next.is_some_and(char::is_lowercase)
        }
        _ => false,
    }
}

/// Whether a word is the number of a list entry, without its mark.
pub(super) fn is_list_number(word: &str) -> bool {
    (1..=3).contains(&word.len()) && word.bytes().all(|c| c.is_ascii_digit())
}

fn is_end(c: char) -> bool {
    matches!(c, '.' | '!' | '?' | '؟' | '۔')
}

/// The marks that end a sentence without white space behind them.
fn is_wide_end(c: char) -> bool {
    matches!(c, '。' | '！' | '？' | '｡' | '．' | '।' | '॥' | '։' | '።')
}

/// `“` and `‘` close German quotations and open Chinese ones.
fn is_close(c: char, is_wide: bool) -> bool {
    matches!(
        c,
        ')' | ']'
            | '}'
            | '"'
            | '\''
            | '”'
            | '’'
            | '»'
            | '›'
            | '」'
            | '』'
            | '）'
            | '】'
            | '》'
            | '*'
            | '_'
            | '`'
    ) || !is_wide && matches!(c, '“' | '‘')
}

fn is_opening(c: char) -> bool {
    matches!(c, '(' | '[' | '"' | '„' | '“' | '«' | '*' | '_')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(text: &str) -> Vec<&str> {
        sentences(text).into_iter().map(|range| &text[range]).collect()
    }

    #[test]
    fn languages() {
        #[rustfmt::skip]
        let cases: [(&str, &[&str]); 13] = [
            (" ", &["It cost 3.50 euros.", "Was that much?", "No!", "\"Good,\" said Mr. Ito."]),
            (" ", &["Das gilt z.B. für Dr. Kern, d.h. nicht für uns.", "Am 3.", "Mai kommt er.", "Er sagte: „Gut.“", "Dann ging er."]),
            (" ", &["Il a dit : « Non. »", "Puis il est parti.", "Vraiment ?"]),
            (" ", &["¿Cuándo viene?", "La Sra. López viene hoy."]),
            ("", &["水位下降了。", "泵坏了吗？", "没有！", "他说：“好。”", "他走了。", "“好。”"]),
            ("", &["ポンプが止まった。", "「なぜ？」と聞いた。", "「もう？」", "「まだ。」"]),
            (" ", &["펌프가 멈췄다.", "왜 그럴까?"]),
            ("\n", &["1. First point", "2. Second point.", "J. R. Smith wrote it.", "*", "- \"x\""]),
            (" ", &["It flooded at night.", "300 people drowned at 5.", "14 people came.", "the pump stopped.", "it rained."]),
            (" ", &["See No. 5 and p. 14.", "He said no.", "The art of art.", "He and I.", "I saw vitamin C.", "Bob lives on Main St.", "He left etc."]),
            (" ", &["It opens at 5 p.m. today.", "J. Doe of the U.S.", "Army **came.**", "`It.`", "Who?!", "Yes. ..."]),
            (" ", &["पंप रुक गया।", "क्यों?"]),
            ("\n", &["It is dry", "Now", "[1]"]),
        ];
        for (separator, parts) in cases {
            assert_eq!(split(&parts.join(separator)), parts);
        }
        assert_eq!(split("one.\rtwo\u{2028}three"), ["one.", "two", "three"]);
    }

    #[test]
    fn abbreviations_of_many_languages() {
        #[rustfmt::skip]
        let cases: [&[&str]; 8] = [
            &["Die Kirche St. Petri ist offen.", "Bob lives on Main St.", "He left.", "They climbed Mt. Fuji on Mar. 5."],
            &["Hr. Kern und Dipl. Ing. Voss kommen ggf. am Montag.", "Der Ort heißt St. Gallen."],
            &["Mme. Durand et Mlle. Petit viennent, p.ex. Lundi.", "Voilà."],
            &["La Srta. Ruiz y la Dra. López vienen."],
            &["Dhr. De Vries komt bijv. Maandag."],
            &["Np. Warszawa jest duża.", "Kościół św. Anny stoi."],
            &["Это напр. Москва.", "Дом на ул. Ленина."],
            &["Gen. Smith spoke to the gen.", "We listened.", "It ended in Dec.", "The rest is known."],
        ];
        for parts in cases {
            assert_eq!(split(&parts.join(" ")), parts);
        }
    }

    #[test]
    fn the_lists_are_lower_case_and_disjoint() {
        let lists = [&WORDS.always, &WORDS.before_numbers, &WORDS.before_names, &WORDS.no_names];
        assert!(lists.iter().all(|list| list.len() > 10));
        for word in lists.iter().copied().flatten() {
            assert_eq!(*word, word.to_lowercase());
            assert!(!word.ends_with('.') && !word.contains(['[', '#']), "{word}");
        }
        let all: BTreeSet<_> = lists[..3].iter().copied().flatten().collect();
        assert_eq!(all.len(), lists[..3].iter().map(|list| list.len()).sum::<usize>());
    }

    /// Prints the times of texts of 1 MB.
    #[test]
    #[ignore = "a measurement"]
    fn times_of_long_texts() {
        for part in ["a.  ", "a.)", ". ", "A. ", "a. »", " ", ")", "。「", "A.A. ", "»", ".\n"] {
            let text = part.repeat((1 << 20) / part.len());
            for text in [format!("a.{text}"), text] {
                let start = std::time::Instant::now();
                println!("{part:?}: {} sentences {:?}", sentences(&text).len(), start.elapsed());
            }
        }
    }

    proptest! {
        #[test]
        fn hold_all_but_white_space(text in "\\PC{0,20}|([A-c .!?\n。「」»“]|Dr\\. ){0,30}") {
            let mut end = 0;
            for range in sentences(&text) {
                prop_assert!(text[end..range.start].trim().is_empty());
                prop_assert!(range.start < range.end);
                prop_assert!(!text[range.clone()].contains('\n'));
                end = range.end;
            }
            prop_assert!(text[end..].trim().is_empty());
        }
    }
}
