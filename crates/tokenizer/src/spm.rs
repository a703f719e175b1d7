//! Sentence-piece scores as byte-pair merges.
//!
//! A llama-style vocabulary gives each piece a score. Among all adjacent pairs, the pair whose joined piece has the
//! highest score is merged first. So every split of a piece into two pieces is a merge, ranked by the score of the
//! whole piece (as in Hugging Face's `SentencePieceExtractor`). For equal scores, the longer left part comes first,
//! then the longer right.
//!
//! The splits of a piece are found without looking up its parts. The pieces that begin a piece form a chain of
//! prefixes, and the pieces that end it form a chain of suffixes. A split is a prefix and a suffix whose lengths add
//! up to the piece's length. Two sorts give both chains, so the time is that of sorting. The number of merges can be
//! quadratic: the pieces `a`, `aa`, … have a split at every character. So merges are counted before any is stored.

/// Bytes of one merge beside its text: two strings in the list, and its entry in the encoder's table.
const MERGE_BYTES: u64 = 128;
/// Maximum bytes of merges per byte of pieces in the file. Published vocabularies have 2 to 5 merges per piece of
/// about 7 letters, which [`merges`] counts as at most 18 bytes per byte.
const MERGES_PER_FILE_BYTE: u64 = 32;
/// A piece's length, score and type in the file.
const PIECE_BYTES: u64 = 16;
/// Bytes of merges allowed in any vocabulary, so that a small one may contain long runs of spaces.
const MERGES_BYTES_FREE: u64 = 1 << 20;

/// The merges of a vocabulary exceed the memory allowed for its file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooManyMerges {
    /// Bytes counted when the limit was exceeded.
    pub(super) bytes: u64,
    /// The limit: 32 times the bytes of the pieces in the file, plus one MiB.
    pub(super) limit: u64,
}

/// All merges of a vocabulary of scored pieces, best first.
///
/// # Errors
/// [`TooManyMerges`]: no memory was allocated for the merges.
pub(super) fn merges(pieces: &[(&str, f32)]) -> Result<Vec<(String, String)>, TooManyMerges> {
    let file_bytes: u64 = pieces.iter().map(|(text, _)| text.len() as u64 + PIECE_BYTES).sum();
    let limit = MERGES_BYTES_FREE + MERGES_PER_FILE_BYTE.saturating_mul(file_bytes);
    let chains = Chains::new(pieces);
    let (mut n_merges, mut bytes) = (0usize, 0u64);
    let mut suffixes = Vec::new();
    for index in 0..pieces.len() {
        let n = chains.cuts(pieces, index, &mut suffixes, |_| {});
        n_merges += n;
        bytes = bytes.saturating_add((n as u64).saturating_mul(MERGE_BYTES + pieces[index].0.len() as u64));
        if bytes > limit {
            return Err(TooManyMerges { bytes, limit });
        }
    }
    let mut merges: Vec<(f32, &str, &str)> = Vec::with_capacity(n_merges);
    for (index, (text, score)) in pieces.iter().enumerate() {
        chains.cuts(pieces, index, &mut suffixes, |cut| {
            let (left, right) = text.split_at(cut);
            merges.push((*score, left, right));
        });
    }
    merges.sort_by(|a, b| {
        let by_score = b.0.total_cmp(&a.0);
        by_score.then_with(|| b.1.len().cmp(&a.1.len())).then_with(|| b.2.len().cmp(&a.2.len()))
    });
    Ok(merges.into_iter().map(|(_, left, right)| (left.to_owned(), right.to_owned())).collect())
}

/// No piece: the end of a chain.
const NONE: u32 = u32::MAX;

/// For each piece, its longest proper prefix and its longest proper suffix among the pieces.
struct Chains {
    prefix: Vec<u32>,
    suffix: Vec<u32>,
}

impl Chains {
    fn new(pieces: &[(&str, f32)]) -> Self {
        let text = |index: u32| pieces[index as usize].0;
        let mut order: Vec<u32> = (0..pieces.len() as u32).collect();
        order.sort_unstable_by(|&a, &b| text(a).cmp(text(b)));
        let prefix = chain(&order, text, |long, short| long.starts_with(short));
        order.sort_unstable_by(|&a, &b| text(a).bytes().rev().cmp(text(b).bytes().rev()));
        let suffix = chain(&order, text, |long, short| long.ends_with(short));
        Self { prefix, suffix }
    }

    /// Calls `cut` with the length of every left part, longest first, if both the left part and the rest are pieces.
    /// Returns the number of calls. `suffixes` is scratch space.
    fn cuts(
        &self,
        pieces: &[(&str, f32)],
        index: usize,
        suffixes: &mut Vec<usize>,
        mut cut: impl FnMut(usize),
    ) -> usize {
        let len = pieces[index].0.len();
        let follow = |chain: &[u32], from: usize| Some(chain[from]).filter(|&next| next != NONE);
        suffixes.clear();
        let mut at = index;
        while let Some(next) = follow(&self.suffix, at) {
            at = next as usize;
            suffixes.push(pieces[at].0.len());
        }
        let mut n_cuts = 0;
        at = index;
        // Left parts get shorter along the chain, so right parts get longer: the end of the list comes first.
        while let Some(next) = follow(&self.prefix, at) {
            at = next as usize;
            let left = pieces[at].0.len();
            while suffixes.last().is_some_and(|&right| left + right < len) {
                suffixes.pop();
            }
            if suffixes.last().is_some_and(|&right| left + right == len) {
                cut(left);
                n_cuts += 1;
            }
        }
        n_cuts
    }
}

/// `order` sorts each text after its parts. For each text, returns the longest different text that is a part of it.
fn chain<'a>(
    order: &[u32],
    text: impl Fn(u32) -> &'a str,
    has_part: impl Fn(&str, &str) -> bool,
) -> Vec<u32> {
    let mut parents = vec![NONE; order.len()];
    let mut parts: Vec<u32> = Vec::new();
    for &index in order {
        while parts.last().is_some_and(|&part| !has_part(text(index), text(part))) {
            parts.pop();
        }
        match parts.last() {
            // A duplicate text. The vocabulary is refused for it later.
            Some(&part) if text(part).len() == text(index).len() => {
                parents[index as usize] = parents[part as usize];
            }
            parent => {
                parents[index as usize] = parent.copied().unwrap_or(NONE);
                if !text(index).is_empty() {
                    parts.push(index);
                }
            }
        }
    }
    parents
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    #[test]
    fn pieces_split_into_pieces_by_score() {
        let pieces = [("a", 0.0), ("b", 0.0), ("c", 0.0), ("ab", -1.0), ("bc", -2.0), ("abc", -3.0)];
        let pair = |l: &str, r: &str| (l.to_owned(), r.to_owned());
        let expected = vec![pair("a", "b"), pair("b", "c"), pair("ab", "c"), pair("a", "bc")];
        assert_eq!(merges(&pieces), Ok(expected));
        assert_eq!(merges(&[]), Ok(vec![]));
    }

    /// Every split of every piece, by lookup.
    fn merges_by_definition(pieces: &[(&str, f32)]) -> Vec<(String, String)> {
        let known: HashSet<&str> = pieces.iter().map(|(text, _)| *text).collect();
        let mut merges = Vec::new();
        for (text, score) in pieces {
            for (cut, _) in text.char_indices().skip(1) {
                let (left, right) = text.split_at(cut);
                if known.contains(left) && known.contains(right) {
                    merges.push((*score, left.to_owned(), right.to_owned()));
                }
            }
        }
        merges.sort_by(|a, b| {
            b.0.total_cmp(&a.0).then(b.1.len().cmp(&a.1.len())).then(b.2.len().cmp(&a.2.len()))
        });
        merges.into_iter().map(|(_, left, right)| (left, right)).collect()
    }

    proptest! {
        #[test]
        fn merges_equal_every_cut_looked_up(texts in prop::collection::vec("[ab▁é]{0,5}", 0..60)) {
            let mut seen = HashSet::new();
            let pieces: Vec<(&str, f32)> = texts.iter().enumerate()
                .filter(|(_, text)| !text.is_empty() && seen.insert(text.as_str()))
                .map(|(i, text)| (text.as_str(), -((i % 7) as f32)))
                .collect();
            prop_assert_eq!(merges(&pieces).unwrap(), merges_by_definition(&pieces));
        }
    }

    #[test]
    fn texts_given_twice_and_empty_ones_are_passed_over() {
        let pieces = [("aa", 0.0), ("", 0.0), ("a", 0.0), ("aa", 0.0), ("a", 0.0), ("", 0.0)];
        let pair = ("a".to_owned(), "a".to_owned());
        assert_eq!(merges(&pieces), Ok(vec![pair.clone(), pair]));
    }

    #[test]
    fn merges_are_counted_before_they_are_stored() {
        let runs: Vec<String> = (1..=2000).map(|n| "a".repeat(n)).collect();
        let pieces: Vec<(&str, f32)> = runs.iter().map(|text| (text.as_str(), 0.0)).collect();
        let refused = merges(&pieces).unwrap_err();
        assert_eq!(refused.limit, (1 << 20) + 32 * pieces.iter().map(|p| p.0.len() as u64 + 16).sum::<u64>());
        assert!(refused.bytes > refused.limit && refused.bytes < 2 * refused.limit, "{refused:?}");
        // Runs of the length found in published vocabularies.
        assert_eq!(merges(&pieces[..64]).map(|merges| merges.len()), Ok(64 * 63 / 2));
    }
}
