//! The beginnings of the newest responses, for drafts where a response begins.
//!
//! A history holds no prompts, so nothing of it matches before the first token of a response. But the responses of a task
//! often begin alike (`benches/RESULTS.md`, drafting on recorded text).

use super::source::{Candidate, Cursor};
use refrain_trees::TokenId;

/// The beginnings of some responses. Holds at most [`MAX`](Self::MAX) of [`LEN_MAX`](Self::LEN_MAX) tokens.
#[derive(Clone, Debug, Default)]
pub struct Openings {
    /// Newest first, each with [`END`] behind it.
    tokens: Vec<TokenId>,
}

/// The end of an opening: no token.
const END: TokenId = TokenId(u32::MAX);

/// A place in an opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpeningPlace {
    /// Index of the next token.
    pub next: u32,
    /// Number of tokens before it that agree with the response.
    pub agreed: u16,
}

/// The next token of an opening.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OpeningToken {
    token: TokenId,
    /// Number of openings at the same node that go on with the token, and of all that go on.
    n_same: u32,
    n_all: u32,
    agreed: u16,
    /// The place behind it.
    pub next: OpeningPlace,
}

impl Openings {
    /// Maximum number of openings. With 1, 2, 4 and 8, recorded phone actions (DroidTask) commit 5.26, 5.47, 5.63 and 5.67
    /// tokens per step at 16 rows (5.06 without), and 4.28, 4.34, 4.36 and 4.27 at 8 (4.19).
    pub const MAX: usize = 4;

    /// Maximum tokens of an opening: where more agree, the history's own matches go on.
    pub const LEN_MAX: usize = 64;

    /// Replaces the openings by those of these responses, given newest first.
    pub fn set<'a>(&mut self, newest: impl Iterator<Item = &'a [TokenId]>) {
        self.tokens.clear();
        for response in newest.take(Self::MAX) {
            self.tokens.extend_from_slice(&response[..response.len().min(Self::LEN_MAX)]);
            self.tokens.push(END);
        }
    }

    /// The place before the first token of each opening, newest first.
    pub fn begins(&self) -> impl Iterator<Item = OpeningPlace> + '_ {
        let is_begin = |at: usize| at == 0 || self.tokens[at - 1] == END;
        let begins = (0..self.tokens.len()).filter(move |&at| is_begin(at));
        begins.map(|at| OpeningPlace { next: at as u32, agreed: 0 })
    }

    /// The token at a place, if its opening goes on. `places` are all places at the same node.
    pub fn token(
        &self,
        place: OpeningPlace,
        places: impl Iterator<Item = OpeningPlace>,
    ) -> Option<OpeningToken> {
        let token_at =
            |place: OpeningPlace| self.tokens.get(place.next as usize).copied().filter(|&token| token != END);
        let token = token_at(place)?;
        let (mut n_same, mut n_all) = (0, 0);
        for other in places.filter_map(token_at) {
            n_same += u32::from(other == token);
            n_all += 1;
        }
        let next = OpeningPlace { next: place.next + 1, agreed: place.agreed.saturating_add(1) };
        Some(OpeningToken { token, n_same, n_all, agreed: place.agreed, next })
    }

    /// Bytes on the heap.
    pub fn memory_usage(&self) -> usize {
        self.tokens.capacity() * size_of::<TokenId>()
    }
}

impl OpeningToken {
    /// The candidate below cursor `parent`. Its probability is the share of the openings that go on with it.
    pub fn candidate(&self, parent: u32, next: Cursor) -> Candidate {
        Candidate {
            parent,
            token: self.token,
            probability: self.n_same as f32 / self.n_all.max(1) as f32,
            match_len: self.agreed.into(),
            count: self.n_same,
            next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn openings_that_agree_share_their_tokens() {
        let responses = [&[1, 7][..], &[5, 6], &[1, 2, 4], &[1, 2, 3], &[9]];
        let responses = responses.map(|ids| ids.iter().map(|&id| TokenId(id)).collect::<Vec<_>>());
        let mut openings = Openings::default();
        openings.set(responses.iter().map(Vec::as_slice));
        let begins: Vec<OpeningPlace> = openings.begins().collect();
        assert_eq!(begins.len(), Openings::MAX, "the oldest is left out");
        let tokens = |places: &[OpeningPlace]| -> Vec<OpeningToken> {
            places.iter().filter_map(|&place| openings.token(place, places.iter().copied())).collect()
        };
        let claims = |tokens: &[OpeningToken]| -> Vec<(u32, f32, u32)> {
            let candidates = tokens.iter().map(|token| token.candidate(0, Cursor(0)));
            candidates.map(|c| (c.token.0, c.probability, c.match_len)).collect()
        };
        let first = tokens(&begins);
        assert_eq!(claims(&first), [(1, 0.75, 0), (5, 0.25, 0), (1, 0.75, 0), (1, 0.75, 0)]);
        let after_one: Vec<OpeningPlace> = [0, 2, 3].map(|i: usize| first[i].next).to_vec();
        let second = tokens(&after_one);
        assert_eq!(claims(&second), [(7, 1.0 / 3.0, 1), (2, 2.0 / 3.0, 1), (2, 2.0 / 3.0, 1)]);
        assert!(tokens(&[second[0].next]).is_empty(), "an opening ends, and no other begins");
    }

    #[test]
    fn openings_are_bounded_and_replaced() {
        let long = vec![TokenId(3); 1000];
        let mut openings = Openings::default();
        openings.set(std::iter::repeat_n(long.as_slice(), 100));
        assert_eq!(openings.tokens.len(), Openings::MAX * (Openings::LEN_MAX + 1));
        openings.set(std::iter::empty());
        assert_eq!(openings.begins().count(), 0);
    }
}
