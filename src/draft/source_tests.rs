//! Tests of each source alone.

use std::sync::Arc;

use super::*;
use refrain_trees::TokenId;

fn tokens(ids: &[u32]) -> Vec<TokenId> {
    ids.iter().copied().map(TokenId).collect()
}

/// The proposals after `committed`, best first, as (token, match length).
fn proposals(source: &mut dyn DraftSource, committed: &[TokenId]) -> Vec<(u32, u32)> {
    let mut anchors = Vec::new();
    source.anchors(committed, &mut anchors);
    let frontier: Vec<Cursor> = anchors.iter().map(|anchor| anchor.cursor).collect();
    let mut candidates = Candidates::with_limit(100);
    source.expand(&frontier, &mut candidates);
    candidates.as_slice().iter().map(|c| (c.token.0, c.match_len)).collect()
}

/// Probabilities of one expansion, summed.
fn mass(source: &mut dyn DraftSource, committed: &[TokenId]) -> f32 {
    let mut anchors = Vec::new();
    source.anchors(committed, &mut anchors);
    let mut candidates = Candidates::with_limit(100);
    source.expand(&[anchors[0].cursor], &mut candidates);
    candidates.as_slice().iter().map(|c| c.probability).sum()
}

fn observe(source: &mut dyn DraftSource, committed: &[TokenId]) {
    let tree = DraftTree::new(TokenId(0));
    source.observe(committed, &StepOutcome { tree: &tree, accepted: &[], new_tokens: &[] });
}

/// A context source that proposes only after a match.
fn matching() -> ContextSource {
    ContextSource::with_config(OrderConfig { match_len_min: 1, ..OrderConfig::default() }, 1000)
}

#[test]
fn context_proposes_longest_match_first_then_shorter_ones() {
    let mut source = matching();
    //                    ┌ "1 2" → 3        ┌ "2" → 5       ┌ now
    let text = tokens(&[1, 2, 3, 8, 8, 7, 2, 5, 9, 1, 2]);
    source.prime(&text);
    assert_eq!(proposals(&mut source, &text), [(3, 2), (5, 1)]);
}

#[test]
fn context_proposes_the_most_frequent_tokens_where_nothing_matches() {
    let mut source = ContextSource::new();
    let text = tokens(&[5, 1, 5, 2, 5, 3, 1, 4]);
    source.prime(&text);
    let found = proposals(&mut source, &text);
    assert_eq!(found[..2], [(5, 0), (1, 0)]);
    assert!(found.iter().all(|&(_, match_len)| match_len == 0));
}

#[test]
fn context_mixes_count_and_recency() {
    let mut source = matching();
    let text = tokens(&[1, 3, 1, 3, 1, 4, 1]);
    source.prime(&text);
    let mut anchors = Vec::new();
    source.anchors(&text, &mut anchors);
    let mut candidates = Candidates::with_limit(9);
    source.expand(&[anchors[0].cursor], &mut candidates);
    let found: Vec<_> = candidates.as_slice().iter().map(|c| (c.token.0, c.count)).collect();
    assert_eq!(found, [(3, 2), (4, 1)]);
    let recency_less =
        ContextSource::with_config(OrderConfig { recency_weight: 0.0, ..Default::default() }, 100);
    let mut source = recency_less;
    source.prime(&text);
    let mut by_count = Candidates::with_limit(9);
    source.expand(&[anchors[0].cursor], &mut by_count);
    assert!(candidates.as_slice()[1].probability > by_count.as_slice()[1].probability);
}

#[test]
fn raw_probabilities_never_exceed_one() {
    let text: Vec<TokenId> =
        (0..2000u32).map(|i| TokenId(i.wrapping_mul(i).wrapping_add(i / 7) % 23)).collect();
    let mut source = ContextSource::new();
    for n in 100..text.len() {
        source.prime(&text[..n]);
        let mass = mass(&mut source, &text[..n]);
        assert!((0.0..=1.0001).contains(&mass), "{mass} at {n}");
    }
}

#[test]
fn context_follows_its_own_proposals() {
    let mut source = ContextSource::new();
    let text = tokens(&[1, 2, 3, 4, 5, 1]);
    source.prime(&text);
    let mut anchors = Vec::new();
    source.anchors(&text, &mut anchors);
    let mut cursor = anchors[0].cursor;
    for (expected, match_len) in [(2, 1), (3, 2), (4, 3), (5, 4), (1, 5)] {
        let mut candidates = Candidates::with_limit(9);
        source.expand(&[cursor], &mut candidates);
        let first = candidates.as_slice()[0];
        assert_eq!((first.token.0, first.match_len), (expected, match_len));
        cursor = first.next;
    }
}

#[test]
fn context_notices_a_truncation() {
    let mut source = ContextSource::new();
    source.prime(&tokens(&[1, 2, 3, 1, 2]));
    let shorter = tokens(&[1, 2, 9, 1]);
    source.prime(&shorter);
    let mut fresh = ContextSource::new();
    fresh.prime(&shorter);
    assert_eq!(proposals(&mut source, &shorter), proposals(&mut fresh, &shorter));
}

#[test]
fn context_at_its_bound_keeps_the_newest_half() {
    let mut source = ContextSource::with_config(OrderConfig::default(), 100);
    let text: Vec<TokenId> = (0..1000).map(|i| TokenId(i % 10)).collect();
    for n in 1..=text.len() {
        source.prime(&text[..n]);
        if n > 200 {
            assert_eq!(proposals(&mut source, &text[..n])[0].0, n as u32 % 10);
        }
    }
    let mut at_once = ContextSource::with_config(OrderConfig::default(), 100);
    at_once.prime(&text);
    assert_eq!(proposals(&mut at_once, &text)[0].0, 0);
}

#[test]
fn history_proposes_what_was_answered_before() {
    let store = Arc::new(HistoryStore::new());
    store.append("mail", &tokens(&[1, 2, 3, 4]));
    let mut source = store.source("mail");
    let text = tokens(&[7, 1, 2]);
    source.prime(&text);
    assert_eq!(proposals(&mut source, &text), [(3, 2), (1, 0)], "and how the answer began");
}

#[test]
fn history_follows_token_by_token_and_sees_other_sessions() {
    let store = Arc::new(HistoryStore::new());
    let mut source = store.source("mail");
    let mut text = tokens(&[5, 1]);
    assert_eq!(proposals(&mut source, &text), []);
    store.append("mail", &tokens(&[1, 2, 3, 4]));
    assert_eq!(proposals(&mut source, &text), [(2, 1)]);
    for next in 2..4 {
        text.push(TokenId(next));
        observe(&mut source, &text);
        assert_eq!(proposals(&mut source, &text), [(next + 1, next)]);
    }
}

#[test]
fn history_does_not_run_from_one_response_into_the_next() {
    let store = Arc::new(HistoryStore::new());
    store.append("a", &tokens(&[1, 2]));
    store.append("a", &tokens(&[3, 4]));
    assert_eq!(proposals(&mut store.source("a"), &tokens(&[1, 2])), []);
}

#[test]
fn namespaces_do_not_see_each_other() {
    let store = Arc::new(HistoryStore::new());
    store.append("a", &tokens(&[1, 2, 3]));
    assert_eq!(proposals(&mut store.source("b"), &tokens(&[1, 2])), []);
    assert_eq!((store.n_tokens("a"), store.n_tokens("b")), (3, 0));
}

#[test]
fn history_is_forgotten_on_request() {
    let store = Arc::new(HistoryStore::new());
    store.append("a", &tokens(&[1, 2, 3]));
    store.append("b", &tokens(&[1, 2, 3]));
    let text = tokens(&[1, 2]);
    let (mut a, mut b) = (store.source("a"), store.source("b"));
    assert_eq!(proposals(&mut a, &text).len(), 1);
    store.forget("a");
    assert_eq!(proposals(&mut a, &text), []);
    assert_eq!(proposals(&mut b, &text).len(), 1);
    store.clear();
    assert_eq!(proposals(&mut b, &text), []);
}

#[test]
fn history_keeps_its_bound_and_the_newest() {
    let store = Arc::new(HistoryStore::with_tokens_max(100));
    for i in 0..1000 {
        store.append("a", &tokens(&[i, i + 1, i + 2, i + 3, i + 4, i + 5, i + 6]));
        assert!(store.n_tokens("a") <= 100);
    }
    assert!(store.n_tokens("a") >= 42, "{}", store.n_tokens("a"));
    assert_eq!(proposals(&mut store.source("a"), &tokens(&[999, 1000]))[0].0, 1001);
    store.append("a", &(0..1000).map(TokenId).collect::<Vec<_>>());
    assert!(store.n_tokens("a") <= 100);
    assert_eq!(proposals(&mut store.source("a"), &tokens(&[998]))[0].0, 999);
}

#[test]
fn a_cursor_of_a_dropped_history_proposes_nothing() {
    let store = Arc::new(HistoryStore::with_tokens_max(8));
    store.append("a", &tokens(&[1, 2, 3]));
    let mut source = store.source("a");
    let mut anchors = Vec::new();
    source.anchors(&tokens(&[1, 2]), &mut anchors);
    store.append("a", &tokens(&[4, 5, 6]));
    let mut candidates = Candidates::with_limit(9);
    source.expand(&[anchors[0].cursor], &mut candidates);
    assert!(candidates.as_slice().is_empty());
}

#[test]
fn history_is_shared_by_threads() {
    let store = Arc::new(HistoryStore::with_tokens_max(1000));
    std::thread::scope(|scope| {
        for thread in 0..4u32 {
            let store = &store;
            scope.spawn(move || {
                let mut source = store.source("a");
                for i in 0..200 {
                    let response: Vec<TokenId> = (0..20).map(|j| TokenId((i * thread + j) % 50)).collect();
                    proposals(&mut source, &response[..10]);
                    store.append("a", &response);
                }
            });
        }
    });
    assert!(store.n_tokens("a") <= 1000);
}

#[test]
fn a_fork_goes_its_own_way() {
    let mut source = matching();
    let text = tokens(&[1, 2, 3, 1]);
    source.prime(&text);
    let mut fork = source.fork();
    let mut longer = text.clone();
    longer.extend(tokens(&[9, 1]));
    fork.prime(&longer);
    assert_eq!(proposals(&mut source, &text), [(2, 1)]);
    assert_eq!(proposals(fork.as_mut(), &longer).len(), 2);
}
