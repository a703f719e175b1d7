//! Sentence-piece scores as byte-pair merges.
//!
//! A llama-style vocabulary gives each piece a score: the pair whose joined piece has the highest score is merged first.
//! So every way to split a piece into two pieces is a merge, ranked by the score of the whole (the conversion of
//! Hugging Face's `SentencePieceExtractor`). Among equal scores the longer left part goes first, then the longer right.

use std::collections::HashSet;

/// All merges of a vocabulary of pieces with scores, best first.
pub(super) fn merges(pieces: &[(&str, f32)]) -> Vec<(String, String)> {
    let known: HashSet<&str> = pieces.iter().map(|(text, _)| *text).collect();
    let mut merges: Vec<(f32, &str, &str)> = Vec::new();
    for (text, score) in pieces {
        for (cut, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(cut);
            if known.contains(left) && known.contains(right) {
                merges.push((*score, left, right));
            }
        }
    }
    merges.sort_by(|a, b| {
        let by_score = b.0.total_cmp(&a.0);
        by_score.then_with(|| b.1.len().cmp(&a.1.len())).then_with(|| b.2.len().cmp(&a.2.len()))
    });
    merges.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_split_into_pieces_by_score() {
        let pieces = [("a", 0.0), ("b", 0.0), ("c", 0.0), ("ab", -1.0), ("bc", -2.0), ("abc", -3.0)];
        let pair = |l: &str, r: &str| (l.to_owned(), r.to_owned());
        assert_eq!(merges(&pieces), [pair("a", "b"), pair("b", "c"), pair("ab", "c"), pair("a", "bc")]);
    }
}
