//! The obvious implementation for comparison: scans every suffix.

/// End positions (over the concatenated sequences) of every occurrence of `pattern`, ascending.
pub(super) fn ends(sequences: &[Vec<u32>], pattern: &[u32]) -> Vec<u32> {
    let mut ends = Vec::new();
    let mut offset = 0;
    for sequence in sequences {
        let found = sequence.windows(pattern.len()).enumerate().filter(|(_, window)| *window == pattern);
        ends.extend(found.map(|(start, _)| (offset + start + pattern.len() - 1) as u32));
        offset += sequence.len();
    }
    ends
}

/// Tokens that follow `pattern`, with their counts, ascending.
pub(super) fn successors(sequences: &[Vec<u32>], pattern: &[u32]) -> Vec<(u32, u32)> {
    let mut counts = std::collections::BTreeMap::new();
    for sequence in sequences {
        for window in sequence.windows(pattern.len() + 1) {
            if window.starts_with(pattern) {
                *counts.entry(window[pattern.len()]).or_insert(0) += 1;
            }
        }
    }
    counts.into_iter().collect()
}

/// Length of the longest suffix of the last sequence that occurs before its end.
pub(super) fn suffix_match_len(sequences: &[Vec<u32>]) -> usize {
    let Some(last) = sequences.last() else { return 0 };
    let longest = (1..=last.len()).rev().find(|&len| ends(sequences, &last[last.len() - len..]).len() > 1);
    longest.unwrap_or(0)
}

/// Length of the longest suffix of `text` that occurs in the sequences.
pub(super) fn longest_suffix_len(sequences: &[Vec<u32>], text: &[u32]) -> usize {
    let occurs = |len: usize| !ends(sequences, &text[text.len() - len..]).is_empty();
    (1..=text.len()).rev().find(|&len| occurs(len)).unwrap_or(0)
}
