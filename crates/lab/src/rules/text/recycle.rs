//! Token Recycling, from seen tokens.

use std::collections::HashMap;

use crate::rules::source::{Plan, Rule};
use refrain::TokenId;

/// Successors kept per token.
const N_SUCCESSORS: usize = 8;

/// Maximum number of tokens with successors: 2.5 MB.
const TOKENS_MAX: usize = 1 << 16;

#[derive(Clone, Debug)]
pub(super) struct Recycle {
    /// Accessed by token only; there is no iteration over it.
    successors: HashMap<TokenId, [TokenId; N_SUCCESSORS]>,
    earlier: HashMap<TokenId, [TokenId; N_SUCCESSORS]>,
    n_read: usize,
}

/// Marks an empty entry of a list.
const NONE: TokenId = TokenId(u32::MAX);

impl Recycle {
    pub(super) fn new(earlier: &[&[TokenId]]) -> Self {
        let mut successors = HashMap::new();
        for text in earlier {
            text.windows(2).for_each(|pair| put_first(&mut successors, pair[0], pair[1]));
        }
        Recycle { earlier: successors.clone(), successors, n_read: 0 }
    }
}

/// Moves `next` to the front of the successors of `token`.
fn put_first(successors: &mut HashMap<TokenId, [TokenId; N_SUCCESSORS]>, token: TokenId, next: TokenId) {
    if successors.len() >= TOKENS_MAX && !successors.contains_key(&token) {
        return;
    }
    let list = successors.entry(token).or_insert([NONE; N_SUCCESSORS]);
    let place = list.iter().position(|&t| t == next).unwrap_or(N_SUCCESSORS - 1);
    list[place] = next;
    list[..=place].rotate_right(1);
}

impl Rule for Recycle {
    fn read(&mut self, committed: &[TokenId]) {
        let new = &committed[self.n_read.saturating_sub(1).min(committed.len())..];
        if self.n_read < committed.len() {
            new.windows(2).for_each(|pair| put_first(&mut self.successors, pair[0], pair[1]));
        }
        self.n_read = committed.len();
    }

    fn reset(&mut self) {
        self.successors.clone_from(&self.earlier);
        self.n_read = 0;
    }

    fn plan(&mut self, committed: &[TokenId], plan: &mut Plan) {
        plan_template(committed, plan, |token, rank| {
            let next = self.successors.get(&token).map_or(NONE, |list| list[rank]);
            (next != NONE).then_some(next)
        });
    }

    fn memory_usage(&self) -> usize {
        let entry = size_of::<TokenId>() * (N_SUCCESSORS + 1) + 1;
        (self.successors.capacity() + self.earlier.capacity()) * entry
    }
}

/// Plans the template below the last token of `committed`. `successor` gives a token's successor of a rank.
pub(crate) fn plan_template(
    committed: &[TokenId],
    plan: &mut Plan,
    successor: impl Fn(TokenId, usize) -> Option<TokenId>,
) {
    let Some(&root) = committed.last() else { return };
    // The template's path of each planned node.
    let mut planned: Vec<(&[u8], usize)> = vec![(&[], 0)];
    for path in by_subtree() {
        let Some((&rank, above)) = path.split_last() else { continue };
        let Some(&(_, parent)) = planned.iter().find(|(path, _)| *path == above) else { continue };
        let token = if parent == 0 { root } else { plan.token(parent) };
        if let Some(next) = successor(token, usize::from(rank)) {
            let reach = plan.reach(parent) / f32::from(rank + 2);
            match plan.push(parent, next, reach) {
                Some(node) => planned.push((path, node)),
                None => return,
            }
        }
    }
}

/// The template's paths, largest subtrees first, so that a batch of any length uses the first ones.
fn by_subtree() -> &'static [&'static [u8]] {
    static ORDER: std::sync::LazyLock<Vec<&[u8]>> = std::sync::LazyLock::new(|| {
        let mut paths = TREE.to_vec();
        let size = |path: &[u8]| TREE.iter().filter(|below| below.starts_with(path)).count();
        paths.sort_by_key(|path| (std::cmp::Reverse(size(path)), path.len(), *path));
        paths
    });
    &ORDER
}

/// The authors' tree 2.2.2: each path is a node, and each number is the rank of a successor.
#[rustfmt::skip]
const TREE: [&[u8]; 80] = [
    &[0], &[1], &[2], &[3], &[4], &[5], &[6], &[7], &[0, 0], &[0, 1], &[0, 2], &[0, 3], &[0, 4], &[0, 5],
    &[0, 6], &[0, 7], &[1, 0], &[1, 1], &[1, 2], &[1, 3], &[2, 0], &[2, 1], &[2, 2], &[3, 0], &[3, 1],
    &[4, 0], &[5, 0], &[6, 0], &[7, 0], &[0, 0, 0], &[0, 0, 1], &[0, 0, 2], &[0, 0, 3], &[0, 0, 4],
    &[0, 0, 5], &[0, 0, 6], &[0, 0, 7], &[0, 1, 0], &[0, 1, 1], &[0, 1, 2], &[0, 2, 0], &[0, 2, 1],
    &[0, 3, 0], &[0, 4, 0], &[0, 5, 0], &[0, 6, 0], &[0, 7, 0], &[1, 0, 0], &[1, 0, 1], &[1, 1, 0],
    &[2, 0, 0], &[3, 0, 0], &[4, 0, 0], &[5, 0, 0], &[0, 0, 0, 0], &[0, 0, 0, 1], &[0, 0, 0, 2],
    &[0, 0, 0, 3], &[0, 0, 0, 4], &[0, 0, 1, 0], &[0, 0, 1, 1], &[0, 0, 2, 0], &[0, 0, 3, 0], &[0, 0, 4, 0],
    &[0, 1, 0, 0], &[0, 2, 0, 0], &[1, 0, 0, 0], &[2, 0, 0, 0], &[3, 0, 0, 0], &[0, 0, 0, 0, 0],
    &[0, 0, 0, 0, 1], &[0, 0, 0, 0, 2], &[0, 0, 0, 1, 0], &[0, 0, 0, 2, 0], &[0, 0, 1, 0, 0],
    &[0, 1, 0, 0, 0], &[1, 0, 0, 0, 0], &[0, 0, 0, 0, 0, 0], &[0, 0, 0, 0, 0, 1], &[0, 0, 0, 1, 0, 0],
];
