//! Citations as they stand in a text: `[1]`, `[1, 3]`, `[1-3]`.

use std::collections::BTreeSet;
use std::ops::Range;

/// Maximum digits of a cited number. Longer ones are years or other text in brackets.
const DIGITS_MAX: usize = 3;

/// Maximum passages of one citation; the others are not checked. It bounds the work for an answer of nothing but `[1-999]`.
pub(super) const CITED_MAX: usize = 16;

/// The citations with the passages' numbers, in order. Of a range such as `[1-3]`, the numbers up to the first that was not shown.
pub(super) fn citations(text: &str, n_passages: usize) -> Vec<(Range<usize>, Vec<usize>)> {
    citations_behind(text, n_passages, &mut 0)
}

/// As [`citations`] for the rest of a text from the start of a line on. `code`: backticks that opened code before it, as far as they are
/// not closed; then those at its end.
pub(super) fn citations_behind(
    text: &str,
    n_passages: usize,
    code: &mut usize,
) -> Vec<(Range<usize>, Vec<usize>)> {
    let mut found = Vec::new();
    let (mut at, mut line_start) = (0, 0);
    while let Some(open) = text[at..].find(['[', '【', '［', '`', '\n']).map(|open| at + open) {
        let (close, len) = match text.as_bytes()[open] {
            b'`' => {
                let n = text[open..].len() - text[open..].trim_start_matches('`').len();
                *code = if *code == 0 {
                    n
                } else if *code == n {
                    0
                } else {
                    *code
                };
                at = open + n;
                continue;
            }
            b'\n' => {
                (at, line_start) = (open + 1, open + 1);
                *code = if *code < 3 { 0 } else { *code };
                continue;
            }
            b'[' => (']', 1),
            _ if text[open..].starts_with('【') => ('】', 3),
            _ => ('］', 3),
        };
        at = open + len;
        let inside = text[at..].find(['[', ']', '【', '】', '［', '］', '`', '\n']).map(|n| at..at + n);
        let Some(inside) = inside else { break };
        let Some(rest) = text[inside.end..].strip_prefix(close).filter(|_| *code == 0) else { continue };
        // A link, the target of one, and an element such as `a[1]`.
        let is_target = rest.starts_with(':') && text[line_start..open].trim().is_empty();
        if rest.starts_with('(') || is_target || is_element(&text[line_start..open]) {
            continue;
        }
        if let Some(numbers) = numbers(&text[inside.clone()], n_passages) {
            found.push((open..inside.end + close.len_utf8(), numbers));
        }
        at = inside.end;
    }
    found
}

/// The length of a text up to which no text behind it changes its citations: before a bracket that may become one, and before backticks
/// that may be more.
pub(super) fn settled_len(text: &str) -> usize {
    let marks = ['[', '【', '［', ']', '】', '］', '`', '\n'];
    let without_ticks = text.trim_end_matches('`');
    if without_ticks.len() < text.len() {
        return without_ticks.len();
    }
    match text.char_indices().rfind(|(_, c)| marks.contains(c)) {
        Some((at, '[' | '【' | '［')) => at,
        // The next character tells a citation from a link.
        Some((at, c)) if at + c.len_utf8() == text.len() && !matches!(c, '`' | '\n') => {
            text[..at].rfind(['[', '【', '［']).unwrap_or(text.len())
        }
        _ => text.len(),
    }
}

/// Whether text ends with the name of a variable: one ASCII letter, or a word with an underscore. Other words may be cited without a space.
fn is_element(before: &str) -> bool {
    let bytes = before.bytes().rev();
    let mut name = bytes.take(64).take_while(|&c| c == b'_' || c.is_ascii_alphanumeric());
    match (name.next(), name.next()) {
        (Some(b'_'), _) | (_, Some(b'_')) => true,
        (Some(c), None) => c.is_ascii_alphabetic(),
        _ => name.any(|c| c == b'_'),
    }
}

/// The numbers of a list such as `1, 3-5 and 7`; `None` if it is none.
fn numbers(list: &str, n_passages: usize) -> Option<Vec<usize>> {
    let number = |text: &str| {
        let text = text.trim();
        let is_number = (1..=DIGITS_MAX).contains(&text.len()) && text.bytes().all(|c| c.is_ascii_digit());
        is_number.then(|| text.parse().ok()).flatten().filter(|&n: &usize| n > 0)
    };
    const COMMAS: [char; 7] = [',', ';', '&', '，', '、', '；', '､'];
    let list = list.trim();
    let list = list.strip_prefix('^').unwrap_or(list).trim_end_matches(COMMAS);
    let mut all = BTreeSet::new();
    for part in list.split(COMMAS).flat_map(|part| part.split(" and ")) {
        match part.split_once(['-', '–', '‐', '\u{2011}']) {
            None => _ = all.insert(number(part)?),
            Some((first, last)) => {
                let (first, last): (usize, usize) = (number(first)?, number(last)?);
                if last < first {
                    return None;
                }
                all.extend(first..=last.min(first.max(n_passages.saturating_add(1))).min(first + CITED_MAX));
            }
        }
    }
    Some(all.into_iter().take(CITED_MAX).collect())
}
