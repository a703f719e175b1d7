//! The keep set: the nodes of a tree that pass the remaining layers.
//!
//! Nodes are chosen in this order: nodes with a sufficient chance and their ancestors; the first nodes of the
//! backbone; the best children of the root; the best other nodes up to `rows_min`. The set is then extended
//! to a compiled batch length with the best remaining nodes, because the padding rows would cost the same. If
//! too few rows would be dropped (`saved_min`), none are.

use super::Safeguards;
use crate::draft::{DraftTree, NodeIdx, NodeSet};

/// The rules of a keep set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KeepRules<'a> {
    /// Minimum chance of a kept node.
    pub threshold: f32,
    /// Nodes that are always kept.
    pub safeguards: Option<Safeguards>,
    /// Batch lengths of the backend, rising; empty: any length.
    pub batch_lens: &'a [usize],
}

/// The kept nodes of `tree`; [`NodeSet::ALL`] if too few would be dropped. The ancestors of a kept node are
/// kept.
///
/// `chances` are the predictor's probabilities that the walk reaches each node: `[tree.len()]`, falling along
/// every path. Cost: O(n²) for n nodes, with n ≤ 64.
pub fn select(tree: &DraftTree, chances: &[f32], rules: &KeepRules<'_>) -> NodeSet {
    let n_nodes = tree.len();
    assert_eq!(chances.len(), n_nodes, "a chance for each node");
    let mut kept = NodeSet::ROOT;
    for node in (1..n_nodes as u32).map(NodeIdx) {
        if chances[node.index()] >= rules.threshold {
            keep_path(tree, node, &mut kept);
        }
    }
    if let Some(safeguards) = rules.safeguards {
        keep_safe(tree, chances, &safeguards, &mut kept);
    }
    let len = batch_len(kept.count(n_nodes), rules.batch_lens);
    grow(tree, chances, len, &mut kept);
    let len = batch_len(kept.count(n_nodes), rules.batch_lens);
    let most = rules.safeguards.map_or(n_nodes, |safeguards| rows_max(n_nodes, safeguards.saved_min));
    if len > most || len >= n_nodes { NodeSet::ALL } else { kept }
}

/// The smallest batch length that holds `n_rows` rows.
pub(super) fn batch_len(n_rows: usize, batch_lens: &[usize]) -> usize {
    batch_lens.iter().copied().find(|&len| len >= n_rows).unwrap_or(n_rows)
}

/// Maximum kept rows if the share `saved_min` of `n_rows` must be dropped.
pub(super) fn rows_max(n_rows: usize, saved_min: f32) -> usize {
    (n_rows as f32 * (1.0 - saved_min)).floor() as usize
}

fn keep_safe(tree: &DraftTree, chances: &[f32], safeguards: &Safeguards, kept: &mut NodeSet) {
    let mut node = NodeIdx::ROOT;
    for _ in 0..safeguards.backbone_len {
        // Siblings are in order of falling reach.
        let Some(child) = tree.children(node).next() else { break };
        kept.insert(child);
        node = child;
    }
    for _ in 0..safeguards.root_breadth {
        let n_of_root = tree.children(NodeIdx::ROOT).filter(|&child| kept.contains(child)).count();
        if n_of_root >= safeguards.root_breadth {
            break;
        }
        let left = tree.children(NodeIdx::ROOT).filter(|&child| !kept.contains(child));
        let Some(best) = best(left, chances) else { break };
        kept.insert(best);
    }
    grow(tree, chances, safeguards.rows_min, kept);
}

/// Adds the best nodes with kept parents until `len` nodes are kept.
fn grow(tree: &DraftTree, chances: &[f32], len: usize, kept: &mut NodeSet) {
    let n_nodes = tree.len();
    for _ in kept.count(n_nodes)..len.min(n_nodes) {
        let left = (1..n_nodes as u32).map(NodeIdx).filter(|&node| {
            !kept.contains(node) && tree.parent(node).is_some_and(|parent| kept.contains(parent))
        });
        let Some(best) = best(left, chances) else { break };
        kept.insert(best);
    }
}

fn keep_path(tree: &DraftTree, node: NodeIdx, kept: &mut NodeSet) {
    let mut next = Some(node);
    while let Some(node) = next.filter(|&node| !kept.contains(node)) {
        kept.insert(node);
        next = tree.parent(node);
    }
}

/// The first of the nodes with the best chance.
fn best(nodes: impl Iterator<Item = NodeIdx>, chances: &[f32]) -> Option<NodeIdx> {
    nodes.reduce(|best, node| if chances[node.index()] > chances[best.index()] { node } else { best })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use refrain_trees::TokenId;

    /// The same with sets and sorted lists.
    fn obvious(tree: &DraftTree, chances: &[f32], rules: &KeepRules<'_>) -> BTreeSet<usize> {
        let n_nodes = tree.len();
        let parent = |node: usize| tree.parents()[node] as usize;
        let all: BTreeSet<usize> = (0..n_nodes).collect();
        let mut kept = BTreeSet::from([0]);
        for node in (1..n_nodes).filter(|&node| chances[node] >= rules.threshold) {
            kept.extend(std::iter::successors(Some(node), |&node| (node > 0).then(|| parent(node))));
        }
        let mut by_chance: Vec<usize> = (1..n_nodes).collect();
        by_chance.sort_by(|&a, &b| chances[b].total_cmp(&chances[a]).then(a.cmp(&b)));
        let add_until = |len: usize, kept: &mut BTreeSet<usize>| {
            while kept.len() < len.min(n_nodes) {
                let next =
                    by_chance.iter().find(|&node| !kept.contains(node) && kept.contains(&parent(*node)));
                kept.insert(*next.expect("a node that is left has an ancestor whose parent is kept"));
            }
        };
        if let Some(safe) = rules.safeguards {
            let mut node = 0;
            for _ in 0..safe.backbone_len {
                if let Some(child) = (1..n_nodes).find(|&child| parent(child) == node) {
                    kept.insert(child);
                    node = child;
                } else {
                    break;
                }
            }
            for &child in by_chance.iter().filter(|&&node| parent(node) == 0) {
                if kept.iter().filter(|&&node| node > 0 && parent(node) == 0).count() < safe.root_breadth {
                    kept.insert(child);
                }
            }
            add_until(safe.rows_min, &mut kept);
        }
        let padded = |len: usize| rules.batch_lens.iter().copied().filter(|&l| l >= len).min().unwrap_or(len);
        add_until(padded(kept.len()), &mut kept);
        let len = padded(kept.len());
        let enough =
            rules.safeguards.is_none_or(|safe| len as f32 <= n_nodes as f32 * (1.0 - safe.saved_min));
        if len < n_nodes && enough { kept } else { all }
    }

    fn tree_of(parents: &[usize], shares: &[u8]) -> (DraftTree, Vec<f32>) {
        let mut tree = DraftTree::new(TokenId(0));
        let mut chances = vec![1.0f32];
        for (i, (&parent, &share)) in parents.iter().zip(shares).enumerate() {
            let reach = tree.reach()[parent] * 0.9;
            tree.push(NodeIdx(parent as u32), TokenId(i as u32), reach, 0);
            // Few distinct values, so ties occur.
            chances.push(chances[parent] * f32::from(share % 5) / 4.0);
        }
        (tree, chances)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn the_keep_set_is_that_of_the_obvious_implementation(
            nodes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..63),
            threshold in prop_oneof![Just(0.0f32), Just(0.25), Just(2.0), 0.0f32..1.0],
            safeguards in proptest::option::of((0usize..5, 0usize..5, 0usize..20, 0.0f32..1.0)),
            batch_lens in prop_oneof![Just(vec![]), Just(vec![1, 4, 16, 64]), Just(vec![8, 64])],
        ) {
            let parents: Vec<usize> = nodes.iter().enumerate().map(|(i, (pick, _))| pick.index(i + 1)).collect();
            let (tree, chances) = tree_of(&parents, &nodes.iter().map(|(_, share)| *share).collect::<Vec<_>>());
            let safeguards = safeguards.map(|(backbone_len, root_breadth, rows_min, saved_min)| Safeguards {
                backbone_len, root_breadth, rows_min, saved_min,
            });
            let rules = KeepRules { threshold, safeguards, batch_lens: &batch_lens };
            let kept = select(&tree, &chances, &rules);
            let found: BTreeSet<usize> = kept.nodes(tree.len()).map(NodeIdx::index).collect();
            prop_assert_eq!(&found, &obvious(&tree, &chances, &rules));
            for &node in &found {
                prop_assert!(found.contains(&(tree.parents()[node] as usize)), "the parent of {}", node);
            }
        }
    }

    #[test]
    fn a_lone_path_of_good_chances_goes_on_and_its_end_does_not() {
        let mut tree = DraftTree::new(TokenId(0));
        let mut node = NodeIdx::ROOT;
        for i in 1..10 {
            node = tree.push(node, TokenId(i), 0.9, 0);
        }
        let chances: Vec<f32> = (0..10).map(|depth| 0.5f32.powi(depth)).collect();
        let rules = KeepRules { threshold: 0.1, safeguards: Some(Safeguards::default()), batch_lens: &[] };
        assert_eq!(select(&tree, &chances, &rules).count(10), 4);
        let filled = KeepRules { batch_lens: &[1, 8, 16], ..rules };
        assert_eq!(select(&tree, &chances, &filled).count(10), 8, "a stair is filled");
        let dropped = KeepRules { threshold: 0.003, ..rules };
        assert_eq!(
            select(&tree, &chances, &dropped),
            NodeSet::ALL,
            "leaving one of ten out saves too little"
        );
    }
}
