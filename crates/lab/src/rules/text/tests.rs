//! Compares the rules with a direct computation: a scan over the whole text.

use proptest::prelude::*;

use super::*;
use crate::rules::source::built;
use refrain::drafting::{Candidates, Cursor, DraftTree, NodeIdx};

fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().copied().map(TokenId).collect()
}

/// The tree built from the rule's draft after `committed`.
fn draft(baseline: Baseline, max_rows: usize, earlier: &[&[TokenId]], committed: &[TokenId]) -> DraftTree {
    built(baseline.source(max_rows, earlier), max_rows, committed)
}

/// The tokens of a tree that is a path.
fn path(tree: &DraftTree) -> &[TokenId] {
    assert!(
        tree.parents().iter().enumerate().skip(1).all(|(i, &parent)| parent as usize == i - 1),
        "{tree:?}"
    );
    &tree.tokens()[1..]
}

/// Length and end of the longest suffix of `text` that ends in `within` at a position up to `n_ends`; the first such
/// end.
fn longest_match(within: &[TokenId], n_ends: usize, text: &[TokenId]) -> (usize, usize) {
    let common =
        |end: usize| within[..end].iter().rev().zip(text.iter().rev()).take_while(|(a, b)| a == b).count();
    (0..=n_ends).map(|end| (common(end), end)).rev().max_by_key(|&(len, _)| len).unwrap_or_default()
}

/// The draft of at most `n_tokens` tokens, for matches of at least `threshold`.
fn naive_sam(earlier: &[&[TokenId]], text: &[TokenId], threshold: usize, n_tokens: usize) -> Vec<TokenId> {
    let own = longest_match(text, text.len() - 1, text);
    let mut best = (0, 0, &[][..]);
    for &one in earlier {
        let (len, end) = longest_match(one, one.len(), text);
        if len > best.0 {
            best = (len, end, one);
        }
    }
    let (len, rest) = match own.0 + sam::BIAS >= best.0 {
        true => (own.0, &text[own.1..]),
        false => (best.0 - sam::BIAS, &best.2[best.1..]),
    };
    match len >= threshold {
        true => rest.iter().copied().take(n_tokens).collect(),
        false => Vec::new(),
    }
}

fn naive_pld(text: &[TokenId], ngram_max: usize, n_max: usize) -> Vec<TokenId> {
    for n in (1..=ngram_max.min(text.len())).rev() {
        let ngram = &text[text.len() - n..];
        for end in n..text.len() {
            if &text[end - n..end] == ngram {
                return text[end..].iter().copied().take(pld::N_TOKENS.min(n_max)).collect();
            }
        }
    }
    Vec::new()
}

fn texts(alphabet: u32) -> impl Strategy<Value = Vec<TokenId>> {
    prop::collection::vec((0..alphabet).prop_map(TokenId), 1..120)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn sam_and_pld_are_their_definitions(
        (text, earlier) in (2u32..6).prop_flat_map(|n| (texts(n), prop::collection::vec(texts(n), 0..4))),
        max_rows in 1usize..50,
    ) {
        let earlier: Vec<&[TokenId]> = earlier.iter().map(Vec::as_slice).collect();
        let n_max = max_rows - 1;
        for (baseline, ngram_max) in [(Baseline::Pld, 3), (Baseline::Pld2, 2)] {
            let pld = draft(baseline, max_rows, &earlier, &text);
            prop_assert_eq!(path(&pld), naive_pld(&text, ngram_max, n_max));
        }
        for (baseline, threshold) in [(Baseline::Sam, sam::THRESHOLD), (Baseline::SamOnly, 1)] {
            let tree = draft(baseline, max_rows, &earlier, &text);
            prop_assert_eq!(path(&tree), naive_sam(&earlier, &text, threshold, sam::N_TOKENS.min(n_max)), "{}", baseline);
        }
        let sam = draft(Baseline::Sam, max_rows, &earlier, &text);
        let expected = if sam.len() > 1 { sam } else { draft(Baseline::Recycle, max_rows, &earlier, &text) };
        prop_assert_eq!(draft(Baseline::SamRecycle, max_rows, &earlier, &text), expected);
    }

    #[test]
    fn every_rule_keeps_its_bounds_and_reads_step_by_step_as_at_once(
        (text, earlier) in (2u32..30).prop_flat_map(|n| (texts(n), texts(n))),
        max_rows in 1usize..64,
    ) {
        for baseline in Baseline::ALL {
            let tree = draft(baseline, max_rows, &[&earlier], &text);
            prop_assert!(tree.len() <= max_rows);
            let mut by_steps = baseline.source(max_rows, &[&earlier]);
            (1..text.len()).step_by(3).for_each(|n| by_steps.prime(&text[..n]));
            let mut at_once = baseline.source(max_rows, &[&earlier]);
            at_once.prime(&text);
            prop_assert_eq!(proposals(by_steps.as_mut(), &text), proposals(at_once.as_mut(), &text), "{}", baseline);
            by_steps.truncate(0);
            prop_assert_eq!(proposals(by_steps.as_mut(), &text), proposals(at_once.as_mut(), &text), "{}", baseline);
        }
    }
}

fn proposals(source: &mut dyn DraftSource, text: &[TokenId]) -> Vec<(u32, TokenId)> {
    source.anchors(text, &mut Vec::new());
    let mut candidates = Candidates::with_limit(1000);
    source.expand(&(0..64).map(Cursor).collect::<Vec<_>>(), &mut candidates);
    candidates.as_slice().iter().map(|candidate| (candidate.parent, candidate.token)).collect()
}

#[test]
fn suffix_takes_the_best_sum_of_probabilities() {
    // 3 followed "1 2" twice and 4 once; 3 followed "2" twice, 4 once, and 5 three times.
    let text = tokens(&[1, 2, 3, 0, 1, 2, 3, 9, 1, 2, 4, 2, 5, 2, 5, 2, 5, 8, 1, 2]);
    let tree = draft(Baseline::Suffix, 32, &[], &text);
    // A match of 2 may draft two tokens: 3 with 2 of the 4 occurrences, then 0, 9 or 4 with 1 of 4.
    assert_eq!(tree.len(), 3);
    assert_eq!(tree.token(NodeIdx(1)), TokenId(3));
    assert_eq!(tree.parents()[1], 0);
    assert!((tree.reach()[1] - 0.5).abs() < 1e-6 && (tree.reach()[2] - 0.25).abs() < 1e-6, "{tree:?}");
}

#[test]
fn suffix_prefers_earlier_text_only_where_it_promises_more() {
    let text = tokens(&[1, 2, 3, 7, 1, 2, 3]);
    // 7 follows one of the two occurrences in the text; the newest occurrence has no successor yet. 8, 9 and 5 follow
    // one in three each.
    let divided = tokens(&[1, 2, 3, 8, 0, 1, 2, 3, 9, 0, 1, 2, 3, 5]);
    assert_eq!(draft(Baseline::Suffix, 32, &[&divided], &text).tokens()[1..3], tokens(&[7, 1]));
    let longer = tokens(&[3, 7, 1, 2, 3, 8, 8, 8, 8, 8]);
    assert_eq!(draft(Baseline::Suffix, 32, &[&longer], &text).tokens()[1..3], tokens(&[8, 8]));
}

#[test]
fn recycle_drafts_the_newest_successors_first() {
    let text = tokens(&[1, 2, 1, 3, 5, 1]);
    let tree = draft(Baseline::Recycle, 3, &[], &text);
    let child = |token| tree.child(NodeIdx::ROOT, TokenId(token));
    assert!(child(3).is_some(), "{tree:?}");
    let wide = draft(Baseline::Recycle, 64, &[], &text);
    assert!(wide.child(NodeIdx::ROOT, TokenId(2)).is_some());
    assert_eq!(draft(Baseline::Recycle, 64, &[], &tokens(&[4])).len(), 1, "nothing is known of 4");
    assert!(draft(Baseline::Recycle, 64, &[&tokens(&[4, 6])], &tokens(&[4])).len() > 1);
}
