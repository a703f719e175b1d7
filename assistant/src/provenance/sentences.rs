//! The sentences of an answer.

use std::ops::Range;

use unicode_segmentation::UnicodeSegmentation as _;

/// Abbreviations that a name, a number or more of the sentence follows, in lower case, without their last full stop.
const ABBREVIATIONS: [&str; 40] = [
    "abb", "art", "av", "bzw", "ca", "cf", "d.h", "dr", "dra", "e.g", "ed", "eds", "etc", "fig", "figs",
    "i.e", "ing", "inkl", "jr", "mr", "mrs", "ms", "nr", "p", "p.ej", "pp", "prof", "s", "sr", "sra", "st",
    "str", "tel", "u.a", "usw", "vgl", "vol", "vs", "z.b", "zzgl",
];

/// The sentences of a text, in order, without white space around them.
///
/// Boundaries are those of Unicode (UAX #29), which cover the marks of European, Chinese, Japanese and Korean sentences; the end of a
/// line is one too. A common abbreviation, an initial or the number of a list entry ends no sentence.
/// An ordinal number before a capital letter does, as in `3. Mai`.
///
/// ```
/// use refrain_assistant::provenance::sentences;
///
/// let text = "Dr. Okafor came at 11. 水が止まった。もう乾いている。";
/// let sentences: Vec<&str> = sentences(text).into_iter().map(|range| &text[range]).collect();
/// assert_eq!(sentences, ["Dr. Okafor came at 11.", "水が止まった。", "もう乾いている。"]);
/// ```
pub fn sentences(text: &str) -> Vec<Range<usize>> {
    let mut sentences: Vec<Range<usize>> = Vec::new();
    // Start of the newest part of the last sentence, and end of the parts.
    let (mut newest, mut done) = (0, 0);
    for (at, piece) in text.split_sentence_bound_indices() {
        // The rules of Unicode leave an opening mark, which needs no space before it, with the sentence before.
        let to = at + piece.trim_end_matches(['「', '『', '（', '《', '“', '‘']).len();
        let part = &text[done..to.max(done)];
        let mut start = done + (part.len() - part.trim_start().len());
        let end = start + part.trim().len();
        done = to.max(done);
        // French writes a space before the closing mark; the rules of Unicode end the sentence there.
        if let Some(rest) = text[start..end].strip_prefix("» ")
            && let Some(last) = sentences.last_mut()
        {
            last.end = start + '»'.len_utf8();
            start = end - rest.trim_start().len();
        }
        if start >= end {
            continue;
        }
        match sentences.last_mut() {
            Some(last) if goes_on(&text[newest..last.end], &text[last.end..end]) => last.end = end,
            _ => sentences.push(start..end),
        }
        newest = start;
    }
    // Opening marks at the end of the text.
    let end = text.trim_end().len();
    match sentences.last_mut() {
        Some(last) => last.end = end,
        None if end > 0 => sentences.push(end - text.trim().len()..end),
        None => {}
    }
    sentences
}

/// Whether a part that ends at a boundary is the start of a sentence only. `rest` is the text behind it, with white space.
fn goes_on(part: &str, rest: &str) -> bool {
    let space = &rest[..rest.len() - rest.trim_start().len()];
    if space.contains('\n') {
        return false;
    }
    // A quotation inside a sentence.
    if part.ends_with(['」', '』']) && space.is_empty() && !rest.starts_with(['「', '『']) {
        return true;
    }
    let Some(before) = part.strip_suffix('.') else { return !part.chars().any(char::is_alphanumeric) };
    let word = before.rsplit(|c: char| c.is_whitespace() || c == '(').next().unwrap_or(before);
    let is_initial = word.chars().count() == 1 && word.chars().all(char::is_uppercase);
    let is_number = word.len() == before.len() && word.chars().all(|c| c.is_ascii_digit());
    is_initial || is_number || ABBREVIATIONS.contains(&word.to_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn languages() {
        #[rustfmt::skip]
        let cases: [&[&str]; 8] = [
            &["It cost 3.50 euros.", "Was that much?", "No!", "\"Good,\" said Mr. Ito."],
            &["Das gilt z.B. für Dr. Kern, d.h. nicht für uns.", "Am 3.", "Mai kommt er."],
            &["Il a dit : « Non. »", "Puis il est parti.", "Vraiment ?"],
            &["¿Cuándo viene?", "La Sra. López viene hoy."],
            &["水位下降了。", "泵坏了吗？", "没有！"],
            &["ポンプが止まった。", "「なぜ？」と聞いた。"],
            &["펌프가 멈췄다.", "왜 그럴까?"],
            &["1. First point", "2. Second point.", "J. R. Smith wrote it."],
        ];
        for parts in cases {
            let separator = if parts[0].starts_with("1.") {
                "\n"
            } else if parts[0].is_ascii() || !parts[0].contains('。') {
                " "
            } else {
                ""
            };
            let text = parts.join(separator);
            let found: Vec<&str> = sentences(&text).into_iter().map(|range| &text[range]).collect();
            assert_eq!(found, parts);
        }
    }

    proptest! {
        #[test]
        fn hold_all_but_white_space(text in "\\PC{0,20}|([A-c .!?\n。「」»“]|Dr\\. ){0,30}") {
            let mut end = 0;
            for range in sentences(&text) {
                prop_assert!(text[end..range.start].trim().is_empty());
                prop_assert!(range.start < range.end);
                end = range.end;
            }
            prop_assert!(text[end..].trim().is_empty());
        }
    }
}
