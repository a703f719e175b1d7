//! The rows of one forward pass: tokens, positions, and the cache slots that each row sees.
//!
//! Prefill chunks, plain decoding steps and verification batches have the same form: rows behind a committed
//! prefix of `base` tokens, each with a parent. In a chain, the parent of each row is the row before it. Row
//! `i` is written to cache slot `base + i`.

use crate::kernels::Visible;
use refrain_trees::TokenId;

/// Maximum length of a prefill chunk, in tokens, so that its activations stay small beside the weights.
pub const PREFILL_CHUNK_MAX: usize = 8192;

/// The rows of one forward pass. Its buffers are kept between passes.
///
/// # Invariants
/// - All per-row vectors have `len()` entries.
/// - A row sees the slots `0..prefix_len` and then its `extra` slots, in order of logical position, its own
///   slot last.
#[derive(Debug, Default, Clone)]
pub struct Batch {
    base: usize,
    /// `[n_rows]`
    tokens: Vec<TokenId>,
    /// `[n_rows]`: position of the row in the sequence; padding rows have 0.
    positions: Vec<u32>,
    /// `[n_rows]`: the row before each row on its path; that of row 0 and of padding is of no use.
    parents: Vec<u32>,
    form: Form,
    /// `[n_rows]`
    seen: Vec<Seen>,
    /// Concatenated slots beyond each row's prefix; `seen` holds the ranges.
    extra: Vec<u32>,
    n_padding: usize,
}

/// How the rows of a batch depend on each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Form {
    /// A chain that is committed as a whole or not at all.
    #[default]
    Chain,
    /// A tree, of which a path is committed.
    Tree,
    /// Children of rows that earlier batches have computed.
    Leaves,
}

/// The slots that a row sees: `0..prefix_len`, then `extra[extra_start..][..extra_len]`.
#[derive(Debug, Clone, Copy)]
struct Seen {
    prefix_len: usize,
    extra_start: usize,
    extra_len: usize,
}

impl Seen {
    fn prefix(prefix_len: usize) -> Self {
        Self { prefix_len, extra_start: 0, extra_len: 0 }
    }
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Bytes on the heap.
    pub fn memory_usage(&self) -> usize {
        self.tokens.capacity() * size_of::<TokenId>()
            + (self.positions.capacity() + self.parents.capacity() + self.extra.capacity()) * size_of::<u32>()
            + self.seen.capacity() * size_of::<Seen>()
    }

    /// Fills the batch with `tokens` in sequence after `base` committed tokens (prefill, plain decoding).
    pub fn set_chain(&mut self, base: usize, tokens: &[TokenId]) {
        self.clear(base);
        for (row, &token) in tokens.iter().enumerate() {
            self.tokens.push(token);
            self.positions.push((base + row) as u32);
            self.parents.push(row.saturating_sub(1) as u32);
            self.seen.push(Seen::prefix(base + row + 1));
        }
    }

    /// Fills the batch with a token tree after `base` committed tokens, followed by padding up to `n_rows`
    /// rows.
    ///
    /// `parents[0]` is ignored (row 0 is the root, the newest committed token); `parents[i] < i` otherwise.
    /// Ancestors in consecutive slots from the root on become part of the row's prefix, so a chain is as
    /// cheap as in [`set_chain`](Self::set_chain). The order of the sums is always that of the committed
    /// sequence.
    ///
    /// # Panics
    /// If the slices differ in length, a parent does not come before its child, or `n_rows < tokens.len()`.
    pub fn set_tree(&mut self, base: usize, tokens: &[TokenId], parents: &[u32], n_rows: usize) {
        assert_eq!(tokens.len(), parents.len(), "one parent per row");
        assert!(tokens.len() <= n_rows, "{} rows do not fit a batch of {n_rows}", tokens.len());
        self.clear(base);
        for (row, &token) in tokens.iter().enumerate() {
            let parent = (row > 0).then(|| parents[row] as usize);
            assert!(parent.is_none_or(|p| p < row), "row {row} comes before its parent {parent:?}");
            let seen = self.seen_below(parent, row);
            self.tokens.push(token);
            self.positions.push(parent.map_or(base as u32, |p| self.positions[p] + 1));
            self.parents.push(parent.unwrap_or(0) as u32);
            self.seen.push(seen);
        }
        for row in tokens.len()..n_rows {
            // A padding row sees only itself, so that its arithmetic is finite. Its results are never read.
            let extra_start = self.extra.len();
            self.extra.push((base + row) as u32);
            self.tokens.push(TokenId(0));
            self.positions.push(0);
            self.parents.push(0);
            self.seen.push(Seen { prefix_len: 0, extra_start, extra_len: 1 });
        }
        self.n_padding = n_rows - tokens.len();
        self.form = Form::Tree;
    }

    /// Fills the batch with children of earlier rows, or of tree nodes whose keys and values are already in
    /// the cache behind a prefix of `prefix_len` tokens. `ancestors` appends to its argument the slots of a
    /// row's ancestors behind the prefix, from the top down. Row `i` is written to slot `base + i`.
    ///
    /// A row sees the same positions, and so has the same bits, as in a batch of [`set_tree`](Self::set_tree)
    /// with its ancestors.
    pub fn set_leaves(
        &mut self,
        prefix_len: usize,
        base: usize,
        tokens: &[TokenId],
        mut ancestors: impl FnMut(usize, &mut Vec<u32>),
    ) {
        self.clear(base);
        for (row, &token) in tokens.iter().enumerate() {
            let start = self.extra.len();
            ancestors(row, &mut self.extra);
            self.extra.push((base + row) as u32);
            let n_below = self.extra.len() - start;
            // Slots that continue the prefix become part of it.
            let straight =
                (prefix_len as u32..).zip(&self.extra[start..]).take_while(|(a, b)| a == *b).count();
            self.tokens.push(token);
            self.positions.push((prefix_len + n_below - 1) as u32);
            self.parents.push(0);
            self.seen.push(Seen {
                prefix_len: prefix_len + straight,
                extra_start: start + straight,
                extra_len: n_below - straight,
            });
        }
        self.form = Form::Leaves;
    }

    /// The visible slots of `row` below `parent`: those of the parent, and its own.
    fn seen_below(&mut self, parent: Option<usize>, row: usize) -> Seen {
        let slot = self.base + row;
        let Some(parent) = parent else { return Seen::prefix(slot + 1) };
        let above = self.seen[parent];
        if above.extra_len == 0 && above.prefix_len == slot {
            return Seen::prefix(slot + 1);
        }
        let extra_start = self.extra.len();
        self.extra.extend_from_within(above.extra_start..above.extra_start + above.extra_len);
        self.extra.push(slot as u32);
        Seen { prefix_len: above.prefix_len, extra_start, extra_len: above.extra_len + 1 }
    }

    fn clear(&mut self, base: usize) {
        self.base = base;
        self.tokens.clear();
        self.positions.clear();
        self.parents.clear();
        self.form = Form::Chain;
        self.seen.clear();
        self.extra.clear();
        self.n_padding = 0;
    }

    /// How the rows depend on each other, and the parents of those that have a token.
    pub(crate) fn form(&self) -> (Form, &[u32]) {
        (self.form, &self.parents[..self.len() - self.n_padding])
    }

    /// Committed tokens before the batch.
    pub fn base(&self) -> usize {
        self.base
    }

    /// Rows, padding included.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether the batch has no rows.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Rows without a token, at the end of the batch.
    pub fn n_padding(&self) -> usize {
        self.n_padding
    }

    /// `[n_rows]`
    pub fn tokens(&self) -> &[TokenId] {
        &self.tokens
    }

    /// `[n_rows]`
    pub fn positions(&self) -> &[u32] {
        &self.positions
    }

    /// The slots that a row sees.
    pub fn visible(&self, row: usize) -> Visible<'_> {
        let Seen { prefix_len, extra_start, extra_len } = self.seen[row];
        Visible { prefix_len, extra: &self.extra[extra_start..extra_start + extra_len] }
    }
}

/// Tokens for measurements, the same ones in every run: multiples of the golden ratio, spread over the vocabulary. Routers choose
/// experts for each row, so rows of one token would look cheaper than those of a text.
#[derive(Debug, Clone)]
pub(crate) struct VariedTokens {
    vocab_size: usize,
    /// The fraction of the vocabulary that was drawn last, in 2⁻³².
    fraction: u32,
}

impl VariedTokens {
    /// Tokens of a vocabulary.
    pub(crate) fn new(vocab_size: usize) -> Self {
        Self { vocab_size, fraction: 0 }
    }

    /// The next `n` tokens.
    pub(crate) fn draw(&mut self, n: usize) -> Vec<TokenId> {
        let mut next = || {
            // 2³² divided by the golden ratio.
            self.fraction = self.fraction.wrapping_add(0x9E37_79B9);
            TokenId(((u64::from(self.fraction) * self.vocab_size as u64) >> 32) as u32)
        };
        (0..n).map(|_| next()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The slots that a row sees, by walking its parents: the obvious implementation.
    fn slots_by_walking(base: usize, parents: &[u32], row: usize) -> Vec<u32> {
        let mut path = vec![row];
        while *path.last().unwrap() != 0 {
            path.push(parents[*path.last().unwrap()] as usize);
        }
        (0..base).chain(path.into_iter().rev().map(|r| base + r)).map(|s| s as u32).collect()
    }

    fn slots_of(batch: &Batch, row: usize) -> Vec<u32> {
        let visible = batch.visible(row);
        (0..visible.prefix_len as u32).chain(visible.extra.iter().copied()).collect()
    }

    proptest! {
        #[test]
        fn a_row_sees_the_prefix_and_its_ancestors(
            base in 0usize..5,
            picks in proptest::collection::vec(any::<proptest::sample::Index>(), 0..24),
            n_padding in 0usize..4,
        ) {
            let mut parents = vec![0u32];
            for pick in &picks {
                parents.push(pick.index(parents.len()) as u32);
            }
            let tokens: Vec<TokenId> = (0..parents.len() as u32).map(TokenId).collect();
            let mut batch = Batch::new();
            batch.set_tree(base, &tokens, &parents, tokens.len() + n_padding);
            for row in 0..tokens.len() {
                let slots = slots_by_walking(base, &parents, row);
                prop_assert_eq!(batch.positions()[row] as usize, slots.len() - 1);
                prop_assert_eq!(slots_of(&batch, row), slots);
            }
            for row in tokens.len()..batch.len() {
                prop_assert_eq!(slots_of(&batch, row), vec![(base + row) as u32]);
            }
            prop_assert_eq!(batch.n_padding(), n_padding);
        }
    }

    proptest! {
        #[test]
        fn leaves_see_what_they_see_in_one_batch_with_their_ancestors(
            base in 0usize..5,
            picks in proptest::collection::vec(any::<proptest::sample::Index>(), 1..24),
        ) {
            let mut parents = vec![0u32];
            for pick in &picks {
                parents.push(pick.index(parents.len()) as u32);
            }
            let tokens: Vec<TokenId> = (0..parents.len() as u32).map(TokenId).collect();
            let mut whole = Batch::new();
            whole.set_tree(base, &tokens, &parents, tokens.len());
            // The root is the last token of the prefix; every other row is in a batch of its own, at the same
            // slot.
            for row in 1..tokens.len() {
                let mut one = Batch::new();
                one.set_leaves(base + 1, base + row, &tokens[row..=row], |_, slots| {
                    let path = slots_by_walking(base, &parents, parents[row] as usize);
                    slots.extend_from_slice(&path[base + 1..]);
                });
                prop_assert_eq!(one.positions()[0], whole.positions()[row]);
                prop_assert_eq!(slots_of(&one, 0), slots_of(&whole, row));
            }
        }
    }

    #[test]
    fn a_chain_is_a_tree_of_single_children() {
        let tokens: Vec<TokenId> = (0..6).map(TokenId).collect();
        let (mut chain, mut tree) = (Batch::new(), Batch::new());
        chain.set_chain(3, &tokens);
        tree.set_tree(3, &tokens, &[0, 0, 1, 2, 3, 4], 6);
        for row in 0..6 {
            assert_eq!(slots_of(&chain, row), slots_of(&tree, row));
            assert_eq!(chain.positions()[row], tree.positions()[row]);
        }
        assert!(tree.extra.is_empty(), "a chain needs no extra slots");
    }

    #[test]
    fn tokens_for_measurements_are_spread_over_the_vocabulary() {
        for vocab_size in [257, 151_936, 1 << 24] {
            let mut tokens = VariedTokens::new(vocab_size);
            let drawn: Vec<TokenId> = [1, 8, 32, 64].into_iter().flat_map(|n| tokens.draw(n)).collect();
            assert_eq!(drawn, VariedTokens::new(vocab_size).draw(105), "in any parts");
            // Each eighth of the vocabulary has its share, and no token is drawn twice.
            let distinct: std::collections::BTreeSet<usize> =
                drawn.iter().map(|token| token.index()).collect();
            assert_eq!(distinct.len(), drawn.len());
            for eighth in 0..8 {
                let ids = eighth * vocab_size / 8..(eighth + 1) * vocab_size / 8;
                let n = distinct.iter().filter(|id| ids.contains(id)).count();
                assert!((11..=15).contains(&n), "{n} in {ids:?}");
            }
        }
        assert!(VariedTokens::new(1).draw(5).iter().all(|token| token.0 == 0));
    }
}
