//! What a model said about an answer: the likeliest tokens after every row, rejected rows included.

use std::collections::HashMap;

use refrain::TokenId;
use refrain::drafting::{DraftTree, Successor};

/// Number of recorded tokens per row. Token Recycling and RACER keep 8 (`TOPK`, `max_breadth` of their code).
pub const TOP_LEN: usize = 8;

/// Marks an unused entry.
pub(super) const NONE: u32 = u32::MAX;

/// The target's likeliest tokens after a row, likeliest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Top {
    pub(super) tokens: [u32; TOP_LEN],
    /// Probabilities in 65,535ths, which is finer than any rule needs.
    pub(super) shares: [u16; TOP_LEN],
}

impl Top {
    /// The first [`TOP_LEN`] of `likeliest`.
    pub fn new(likeliest: impl IntoIterator<Item = (TokenId, f32)>) -> Self {
        let mut top = Top { tokens: [NONE; TOP_LEN], shares: [0; TOP_LEN] };
        for (i, (token, probability)) in likeliest.into_iter().take(TOP_LEN).enumerate() {
            top.tokens[i] = token.0;
            top.shares[i] = (probability.clamp(0.0, 1.0) * f32::from(u16::MAX)).round() as u16;
        }
        top
    }

    /// The tokens with their probabilities.
    pub fn iter(&self) -> impl Iterator<Item = (TokenId, f32)> + '_ {
        let all = self.tokens.iter().zip(&self.shares).take_while(|&(&token, _)| token != NONE);
        all.map(|(&token, &share)| (TokenId(token), f32::from(share) / f32::from(u16::MAX)))
    }

    /// The `rank`th likeliest token, from 0.
    pub fn token(&self, rank: usize) -> Option<TokenId> {
        self.tokens.get(rank).filter(|&&token| token != NONE).map(|&token| TokenId(token))
    }

    /// The probability of `token`; 0 if it is not among the likeliest.
    pub fn probability(&self, token: TokenId) -> f32 {
        self.iter().find(|likely| likely.0 == token).map_or(0.0, |likely| likely.1)
    }

    /// The tokens for calibration, which drafts none less likely than e⁻⁷ (as the engine).
    pub(crate) fn successors(&self) -> Vec<Successor> {
        let all =
            self.iter().map(|(token, probability)| Successor { token, log_probability: probability.ln() });
        all.take_while(|successor| successor.log_probability >= -7.0).collect()
    }
}

/// A row of a rejected draft.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Branch {
    /// The place of the row above: see [`Rows`].
    pub parent: u32,
    /// The row's token.
    pub token: TokenId,
    /// What follows it.
    pub top: Top,
}

/// All recorded rows of an answer.
///
/// A row has a *place*: the index of its token in prompt and response, or the number of their tokens plus the index of
/// its branch. The parent of a branch is the last row of the prompt, a row of the response, or an earlier branch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Rows {
    prompt_len: usize,
    /// `[prompt_len + response_len]`: after each token of the text.
    text: Vec<Top>,
    pub(super) branches: Vec<Branch>,
    /// Branches by parent and token. Only looked up, never iterated over.
    below: HashMap<(u32, TokenId), u32>,
}

impl Rows {
    /// The rows of a text, whose first `prompt_len` tokens are the prompt; without branches.
    pub fn new(prompt_len: usize, text: Vec<Top>) -> Self {
        Rows { prompt_len, text, ..Rows::default() }
    }

    /// After each token of prompt and response.
    pub fn text(&self) -> &[Top] {
        &self.text
    }

    /// The rejected rows.
    pub fn branches(&self) -> &[Branch] {
        &self.branches
    }

    /// What follows the row at a place.
    pub fn top(&self, place: u32) -> Option<&Top> {
        let place = place as usize;
        self.text.get(place).or_else(|| Some(&self.branches.get(place - self.text.len())?.top))
    }

    /// The place of the row with `token` below `place`. `response` is the text behind the prompt.
    pub fn child(&self, response: &[TokenId], place: u32, token: TokenId) -> Option<u32> {
        let next = place as usize + 1;
        let goes_on = next < self.text.len()
            && next.checked_sub(self.prompt_len).and_then(|i| response.get(i)) == Some(&token);
        if goes_on { Some(next as u32) } else { self.below.get(&(place, token)).copied() }
    }

    /// Adds a branch. Returns its place; `None` if the parent may not have branches, or there are too many.
    pub fn push(&mut self, branch: Branch) -> Option<u32> {
        let place =
            u32::try_from(self.text.len() + self.branches.len()).ok().filter(|&place| place != NONE)?;
        if branch.parent as usize + 1 < self.prompt_len || branch.parent >= place {
            return None;
        }
        self.below.insert((branch.parent, branch.token), place);
        self.branches.push(branch);
        Some(place)
    }

    /// The places of the nodes of `tree`, whose root is token `root` of the text; `None` for rows that are not there.
    /// Shape `[tree.len()]`.
    pub fn places(&self, response: &[TokenId], root: usize, tree: &DraftTree) -> Vec<Option<u32>> {
        let mut places = Vec::with_capacity(tree.len());
        places.push(u32::try_from(root).ok().filter(|_| root < self.text.len()));
        for (&parent, &token) in tree.parents().iter().zip(tree.tokens()).skip(1) {
            places.push(places[parent as usize].and_then(|place| self.child(response, place, token)));
        }
        places
    }

    /// What follows the nodes of `tree`, as [`places`](Self::places) finds them.
    pub fn tops(&self, response: &[TokenId], root: usize, tree: &DraftTree) -> Vec<Option<Top>> {
        let places = self.places(response, root, tree).into_iter();
        places.map(|place| place.and_then(|place| self.top(place).copied())).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::rows::TokenRow;

    /// A row of the given tokens whose target finds each next token likeliest.
    pub(crate) fn row(prompt: &[u32], response: &[u32]) -> TokenRow {
        let ids = |tokens: &[u32]| tokens.iter().map(|&id| TokenId(id)).collect::<Vec<_>>();
        let text = [prompt, response].concat();
        let after = text[1..].iter().chain(&[0]).map(|&next| Top::new([(TokenId(next), 0.75)])).collect();
        TokenRow {
            index: 0,
            id: "a".to_owned(),
            task: "t".to_owned(),
            subtask: String::new(),
            session: Some("t".to_owned()),
            prompt: ids(prompt),
            passages: Vec::new(),
            response: ids(response),
            target: Some(Box::new(Rows::new(prompt.len(), after))),
            accepted: crate::rows::Accepted::default(),
        }
    }

    #[test]
    fn the_likeliest_read_back_in_order() {
        let top = Top::new((0..20).map(|i| (TokenId(i), 0.5 / (i + 1) as f32)));
        assert_eq!(top.iter().count(), TOP_LEN);
        assert_eq!((top.token(0), top.token(7), top.token(8)), (Some(TokenId(0)), Some(TokenId(7)), None));
        assert!((top.probability(TokenId(1)) - 0.25).abs() < 1e-4);
        assert_eq!(top.probability(TokenId(9)), 0.0);
        assert_eq!(Top::new([]).iter().count(), 0);
    }

    #[test]
    fn a_tree_is_found_along_the_text_and_its_branches() {
        let row = row(&[1, 2], &[3, 4, 5]);
        let mut rows = row.target.as_deref().unwrap().clone();
        let branch = |parent, token| Branch { parent, token: TokenId(token), top: Top::new([]) };
        assert_eq!(rows.push(branch(2, 9)), Some(5));
        assert_eq!(rows.push(branch(5, 8)), Some(6));
        assert_eq!(rows.push(branch(0, 9)), None, "a row within the prompt has no drafts");
        assert_eq!(rows.push(branch(7, 9)), None, "a parent comes first");
        // The root is the prompt's last token: 3 → (4, 9 → 8), and 7, which is nowhere.
        let mut tree = DraftTree::new(TokenId(2));
        let three = tree.push(refrain::drafting::NodeIdx::ROOT, TokenId(3), 1.0, 0);
        tree.push(three, TokenId(4), 1.0, 0);
        let nine = tree.push(three, TokenId(9), 1.0, 0);
        tree.push(nine, TokenId(8), 1.0, 0);
        let seven = tree.push(refrain::drafting::NodeIdx::ROOT, TokenId(7), 1.0, 0);
        tree.push(seven, TokenId(4), 1.0, 0);
        assert_eq!(
            rows.places(&row.response, 1, &tree),
            [Some(1), Some(2), Some(3), Some(5), Some(6), None, None]
        );
        assert_eq!(rows.places(&row.response, 9, &DraftTree::new(TokenId(2))), [None]);
    }
}
