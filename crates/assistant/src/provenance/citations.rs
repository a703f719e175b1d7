//! Citations of passages, such as `[2]`, and the support of each sentence.

use std::collections::BTreeMap;
use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::marks::citations;
use super::sentences::{lines, of_line};
use super::spans::{CopiedSpan, Shown, WORDS_MIN, n_words};
use super::support::{Passages, Shares, Support};

/// A sentence of an answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct CheckedSentence {
    /// Its place in the answer, in bytes, with its citations.
    pub text: Range<usize>,
    /// What supports it, among all passages.
    pub support: Support,
    /// Its citations, in order.
    pub citations: Vec<CheckedCitation>,
}

/// A passage that a sentence cites.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CheckedCitation {
    /// The citation's place in the answer, in bytes. The passages of `[1, 3]` share one place.
    pub text: Range<usize>,
    /// The cited number: 1 is the first passage.
    pub number: usize,
    /// Whether it holds.
    pub verdict: CitationVerdict,
}

/// Whether a citation holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CitationVerdict {
    /// The passage supports the sentence.
    Supports,
    /// No passage of this number was shown.
    NotShown,
    /// The passage has too little in common with the sentence.
    DoesNotSupport,
    /// The sentence is too short to be checked.
    TooShort,
}

/// Checks each sentence of an answer and its citations against the passages shown.
///
/// A passage supports a sentence if it has all of its numbers, and at least [`SUPPORT_SHARE_MIN`](super::SUPPORT_SHARE_MIN) of its content words close together (within
/// about 50 words): numbers, and words of at least four letters, by their first four. Of a sentence with fewer than two content words, all words count and
/// four fifths of them are required. The measure is about words: it does not see a negation. `spans` are those of
/// [`copied_spans`](super::copied_spans) for the same texts.
///
/// `[2]`, `[1, 3]` and `[1-3]` cite passages, `[1]` the first one; at most 16 in one pair of brackets. A citation after the full stop belongs to the sentence before it
/// unless that one has citations of its own.
///
/// Takes linear time in the texts; each word of the answer at most 256 places in the passages.
///
/// ```
/// use refrain_assistant::provenance::{CitationVerdict, Shown, SpanOptions, check_citations, copied_spans};
///
/// let passage = |text| Shown { document: "cellar.md", at: None, text };
/// let passages = [passage("The drain in the yard is blocked by leaves."), passage("The plumber comes on 14 October.")];
/// let answer = "The drain is blocked [1]. The plumber comes in October [1]. He is called Miller and lives in Leeds [3].";
/// let spans = copied_spans(answer, &passages, SpanOptions::default());
/// let checked = check_citations(answer, &passages, &spans);
/// let verdicts: Vec<CitationVerdict> = checked.iter().map(|sentence| sentence.citations[0].verdict).collect();
/// assert_eq!(verdicts, [CitationVerdict::Supports, CitationVerdict::DoesNotSupport, CitationVerdict::NotShown]);
/// assert!(checked[2].support.is_missing());
/// ```
pub fn check_citations(output: &str, passages: &[Shown<'_>], spans: &[CopiedSpan]) -> Vec<CheckedSentence> {
    let cited = citations(output, passages.len());
    let plain = without_citations(output, cited.iter().map(|(range, _)| range));
    let index = Passages::new(&plain, passages.iter().map(|passage| passage.text));
    let mut cited = cited.into_iter().peekable();
    let mut spans = spans.iter().filter(|span| span.passage < passages.len()).peekable();
    let bounds = bounds(&plain, cited.clone().map(|(range, _)| range));
    bounds
        .into_iter()
        .map(|(text, sentence)| {
            // Copied bytes inside the sentence, by passage. A few words of a longer span are no evidence.
            let mut copied: BTreeMap<usize, usize> = BTreeMap::new();
            while let Some(span) = spans.peek().filter(|span| span.output.start < sentence.end) {
                let part = span.output.start.max(sentence.start)..span.output.end.min(sentence.end);
                if !part.is_empty() && n_words(&plain[part.clone()]) >= WORDS_MIN {
                    *copied.entry(span.passage).or_default() += part.len();
                }
                if span.output.end > sentence.end {
                    break; // the next sentence has the rest
                }
                spans.next();
            }
            let shares = index.shares(&plain[sentence.clone()]);
            let mut citations = Vec::new();
            while let Some((range, numbers)) = cited.next_if(|(range, _)| range.start < text.end) {
                citations.extend(numbers.into_iter().map(|number| {
                    let verdict = match number.checked_sub(1).filter(|&passage| passage < passages.len()) {
                        None => CitationVerdict::NotShown,
                        Some(passage) => match &shares {
                            None => CitationVerdict::TooShort,
                            Some(shares) if shares.supports(passage) => CitationVerdict::Supports,
                            Some(_) => CitationVerdict::DoesNotSupport,
                        },
                    };
                    CheckedCitation { text: range.clone(), number, verdict }
                }));
            }
            CheckedSentence { text, support: support(&copied, shares.as_ref()), citations }
        })
        .collect()
}

/// A text without its citations, which contain marks that end sentences. Spaces keep the places.
pub(super) fn without_citations<'a>(text: &str, cited: impl Iterator<Item = &'a Range<usize>>) -> String {
    let mut plain = String::with_capacity(text.len());
    for range in cited {
        plain.push_str(&text[plain.len()..range.start]);
        plain.extend(std::iter::repeat_n(' ', range.len()));
    }
    plain.push_str(&text[plain.len()..]);
    plain
}

fn support(copied: &BTreeMap<usize, usize>, shares: Option<&Shares>) -> Support {
    let Some(shares) = shares else { return Support::TooShort };
    let copied = copied.iter().filter(|&(&passage, _)| shares.supports(passage));
    // The first of equal ones.
    if let Some((&passage, _)) = copied.rev().max_by_key(|&(_, n_bytes)| n_bytes) {
        return Support::Copied { passage, share: shares.of(passage) };
    }
    match shares.best() {
        Some((passage, share)) if shares.supports(passage) => Support::Words { passage, share },
        other => Support::None { share: other.map_or(0.0, |(_, share)| share) },
    }
}

/// The sentences, each with its citations and without. `plain` has spaces in the place of citations. A line of nothing but
/// citations counts as a sentence without text.
pub(super) fn bounds(
    plain: &str,
    cited: impl Iterator<Item = Range<usize>>,
) -> Vec<(Range<usize>, Range<usize>)> {
    let mut cited = cited.peekable();
    let mut all: Vec<(Range<usize>, Range<usize>)> = Vec::new();
    let mut own = Vec::new();
    for line in lines(plain) {
        let mut at = all.len();
        of_line(plain, line.clone(), &mut own);
        all.extend(own.drain(..).map(|sentence| (sentence.clone(), sentence)));
        let mut has_citations = false;
        while let Some(range) = cited.next_if(|range| range.start < line.end) {
            while all.get(at + 1).is_some_and(|(text, _)| text.start < range.start) {
                at += 1;
                has_citations = all[at].0.start < all[at].1.start;
            }
            let n = all.len();
            let Some((text, sentence)) = all.get_mut(at) else {
                all.push((range.clone(), range.start..range.start));
                continue;
            };
            // After a sentence with citations, between white space, it is the next one's.
            let is_next = at + 1 < n && has_citations && range.start > text.end;
            if range.start < sentence.end {
                has_citations = true;
                text.start = text.start.min(range.start);
            } else if !is_next {
                text.end = range.end;
            } else {
                at += 1;
                all[at].0.start = range.start;
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::marks::CITED_MAX;
    use super::super::spans::{SpanOptions, copied_spans};
    use super::*;

    type Checked<'a> = Vec<(&'a str, Support, Vec<(usize, CitationVerdict)>)>;

    fn check<'a>(answer: &'a str, texts: &[&str]) -> Checked<'a> {
        let passages: Vec<Shown<'_>> =
            texts.iter().map(|text| Shown { document: "", at: None, text }).collect();
        let spans = copied_spans(answer, &passages, SpanOptions::default());
        let checked = check_citations(answer, &passages, &spans).into_iter();
        checked
            .map(|sentence| {
                let citations = sentence.citations.iter().map(|citation| (citation.number, citation.verdict));
                (&answer[sentence.text], sentence.support, citations.collect())
            })
            .collect()
    }

    const PUMP: &str =
        "The pump had stopped during the night, because the float switch was stuck under the lid.";
    const DRAIN: &str = "The drain in the yard is the real problem: leaves have blocked the grating.";

    #[test]
    fn each_verdict() {
        use CitationVerdict::{DoesNotSupport, NotShown, Supports, TooShort};
        let answer = "The pump had stopped during the night [1][2]. Leaves blocked the drain. [2, 7] Nobody knows the price of a \
                      new machine [1-2]. Yes [2].";
        let checked = check(answer, &[PUMP, DRAIN]);
        assert_eq!(checked[0].1, Support::Copied { passage: 0, share: 1.0 });
        assert_eq!(checked[0].2, [(1, Supports), (2, DoesNotSupport)]);
        assert_eq!(checked[1].0, "Leaves blocked the drain. [2, 7]");
        assert_eq!(checked[1].1, Support::Words { passage: 1, share: 1.0 });
        assert_eq!(checked[1].2, [(2, Supports), (7, NotShown)]);
        assert!(checked[2].1.is_missing());
        assert_eq!(checked[2].2, [(1, DoesNotSupport), (2, DoesNotSupport)]);
        assert_eq!((checked[3].1, &checked[3].2[..]), (Support::TooShort, &[(2, TooShort)][..]));
        assert_eq!(checked.len(), 4);
    }

    #[test]
    fn a_copied_part_must_be_most_of_a_sentence() {
        let copy =
            "The pump had stopped during the night, because the float switch was stuck under the lid. He";
        let answer = format!(
            "{copy} robbed a bank in Leeds. The float switch was stuck under yesterday's enormous stolen purple marble elephant statue [1]."
        );
        let checked = check(&answer, &[copy]);
        assert_eq!(checked[0].1, Support::Copied { passage: 0, share: 1.0 });
        assert!(checked[1].1.is_missing(), "{checked:?}");
        assert_eq!(checked[2].2, [(1, CitationVerdict::DoesNotSupport)], "{checked:?}");
    }

    #[test]
    fn a_quotation_in_two_passages_supports_both_citations() {
        let checked = check("The pump had stopped during the night [2][1].", &[PUMP, PUMP]);
        assert_eq!(checked[0].2, [(2, CitationVerdict::Supports), (1, CitationVerdict::Supports)]);
    }

    #[test]
    fn a_citation_between_sentences_belongs_to_one_of_them() {
        let of =
            |answer| check(answer, &[PUMP, DRAIN]).into_iter().map(|(text, _, _)| text).collect::<Vec<_>>();
        assert_eq!(of("It stopped.[1] It runs."), ["It stopped.[1]", "It runs."]);
        assert_eq!(of("It stopped [1]. [2] It runs."), ["It stopped [1].", "[2] It runs."]);
        assert_eq!(of("[1] It stopped.\n[2]\n"), ["[1] It stopped.", "[2]"]);
        assert_eq!(
            of("It stopped [1] and runs [2]\nNext [1]."),
            ["It stopped [1] and runs [2]", "Next [1]."]
        );
        assert_eq!(of("It stopped [1]. [2]\nNext."), ["It stopped [1]. [2]", "Next."]);
        assert_eq!(of("It stopped [1].[2] [3][1] It runs."), ["It stopped [1].[2]", "[3][1] It runs."]);
        assert_eq!(of("[1] It. [2] It. [3]It. [1]"), ["[1] It.", "[2] It.", "[3]It. [1]"]);
        assert_eq!(of("[7]"), ["[7]"]);
        assert_eq!(check("[7]", &[PUMP]), [("[7]", Support::TooShort, vec![(7, CitationVerdict::NotShown)])]);
        assert_eq!(of("水が止まった【1】。次。"), ["水が止まった【1】。", "次。"]);
    }

    #[test]
    fn brackets_that_cite_nothing() {
        for text in [
            "[x]",
            "[2024]",
            "[]",
            "[1",
            "[1 2]",
            "[-]",
            "[1-]",
            "[,]",
            "a[i]",
            "[0, 1]",
            "[5-2]",
            "[1】",
            "[+1]",
            "x = a[1]",
            "by_word[1]",
            "n_[1]",
            "`words[1]`",
            "```\nwords[1]\n```",
            "[1](https://example.org)",
            " [1]: https://example.org",
        ] {
            assert_eq!(citations(text, 3), [], "{text}");
        }
        let of =
            |text: &str| citations(text, 9).into_iter().flat_map(|(_, numbers)| numbers).collect::<Vec<_>>();
        for text in [
            "[^1]",
            "［1］",
            "stopped[1]",
            "`x` [1]",
            "[1 ] ",
            "``` [1]\n``` [1]",
            "see [1]: it stopped",
            "[a [1]",
            "B2[1]",
        ] {
            assert_eq!(of(text), [1], "{text}");
        }
        for text in ["[1，2]", "[1、2]", "[1,2,]", "[1\u{2011}2]", "[1 and 2]", "[2, 1]", "[1;2]"] {
            assert_eq!(of(text), [1, 2], "{text}");
        }
        assert_eq!(of("[1, 2 and 3]"), [1, 2, 3]);
        let n_most = citations(&format!("[1{}]", ",1-999".repeat(100_000)), 999).remove(0).1.len();
        assert_eq!(n_most, CITED_MAX);
        assert_eq!(citations("[[1]] [3 - 900]", 4), [(1..4, vec![1]), (6..15, vec![3, 4, 5])]);
    }

    /// Prints the times of answers of 1 MB and passages of 10 MB.
    #[test]
    #[ignore = "a measurement"]
    fn times_of_long_texts() {
        let note = include_str!("../../tests/note.md");
        let cases = [
            ("text", note.repeat(550), note.replace("the ", "a ").repeat(5500)),
            ("one word", "a ".repeat(500_000), "a ".repeat(5_000_000)),
            ("two words", "a b b ".repeat(166_000), "a b a b b ".repeat(1_000_000)),
            ("no space", "ab".repeat(500_000), "ba".repeat(5_000_000)),
            ("ideographs", "水下水".repeat(111_000), "水下".repeat(1_666_000)),
            ("full stops", ". ".repeat(500_000), "a. ".repeat(3_333_000)),
            ("brackets", "a.(".repeat(333_000), "((".repeat(5_000_000)),
            ("citations", "[1-999]".repeat(142_000), note.repeat(5500)),
            ("cited sentences", "It came [1]. ".repeat(77_000), note.repeat(5500)),
            ("open citations", "[1,".repeat(333_000), "[1, ".repeat(2_500_000)),
        ];
        for (name, answer, passage) in cases {
            let passages = [Shown { document: "", at: None, text: &passage }];
            let start = std::time::Instant::now();
            let spans = copied_spans(&answer, &passages, SpanOptions::default());
            let found = start.elapsed();
            let checked = check_citations(&answer, &passages, &spans);
            println!(
                "{name}: {} spans {found:?}, {} sentences {:?}",
                spans.len(),
                checked.len(),
                start.elapsed() - found
            );
        }
    }

    proptest! {
        #[test]
        fn every_citation_is_in_one_sentence(
            answer in "(\\[[0-3]\\]|[a-c]{4} |[.] |\n|。|【2】|é|\\[1-[0-9]\\]){0,30}",
            passages in prop::collection::vec("([a-c]{4} ){0,20}", 0..3),
        ) {
            let passages: Vec<Shown<'_>> = passages.iter().map(|text| Shown { document: "", at: None, text }).collect();
            let spans = copied_spans(&answer, &passages, SpanOptions::default());
            let checked = check_citations(&answer, &passages, &spans);
            let mut found = Vec::new();
            let mut end = 0;
            for sentence in checked {
                prop_assert!(end <= sentence.text.start && sentence.text.start < sentence.text.end);
                end = sentence.text.end;
                prop_assert!(!answer[sentence.text.clone()].contains('\n'));
                for citation in sentence.citations {
                    prop_assert!(sentence.text.start <= citation.text.start && citation.text.end <= end);
                    found.push((citation.text, citation.number));
                }
            }
            let expected: Vec<(Range<usize>, usize)> = citations(&answer, passages.len()).into_iter()
                .flat_map(|(range, numbers)| numbers.into_iter().map(move |number| (range.clone(), number))).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
