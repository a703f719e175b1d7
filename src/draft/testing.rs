//! Extreme sources, for tests and for benches of the overhead.
//!
//! The builder, the verifier and the statistics treat them like any other source. The output must not depend
//! on them; the speed may.

use super::source::{Anchor, Candidate, Candidates, Cursor, DraftSource};
use refrain_trees::TokenId;

/// Implements the common methods of sources for tests: no text of their own, and a fork that is a clone.
#[cfg_attr(feature = "internals", macro_export)]
macro_rules! stateless_source {
    ($name:literal, $evidence:ident) => {
        fn name(&self) -> &str {
            $name
        }

        fn evidence(&self) -> $crate::drafting::EvidenceClass {
            $crate::drafting::EvidenceClass::$evidence
        }

        fn truncate(&mut self, _len: usize) {}

        fn fork(&self) -> Box<dyn $crate::drafting::DraftSource> {
            Box::new(self.clone())
        }
    };
}
#[cfg(test)]
pub(crate) use stateless_source;

/// A candidate with probability 0.99.
fn sure(parent: usize, token: TokenId, next: Cursor) -> Candidate {
    Candidate { parent: parent as u32, token, probability: 0.99, match_len: 32, count: 1, next }
}

/// Proposes the known output as one path: the upper limit of any draft.
#[derive(Clone, Debug)]
pub struct AlwaysRight {
    prompt_len: usize,
    output: Vec<TokenId>,
}

impl AlwaysRight {
    /// `output` are the target's tokens after `prompt_len` tokens.
    pub fn new(prompt_len: usize, output: Vec<TokenId>) -> Self {
        AlwaysRight { prompt_len, output }
    }
}

impl DraftSource for AlwaysRight {
    stateless_source!("always_right", Plain);

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        if let Some(position) = committed.len().checked_sub(self.prompt_len) {
            out.push(Anchor { cursor: Cursor(position as u64), match_len: 32 });
        }
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        for (parent, cursor) in frontier.iter().enumerate() {
            if let Some(&token) = self.output.get(cursor.0 as usize) {
                out.push(sure(parent, token, Cursor(cursor.0 + 1)));
            }
        }
    }
}

/// Proposes a wrong token with probability 0.99 at every position: the lower limit of any draft.
#[derive(Clone, Debug)]
pub struct AlwaysWrong {
    knows: AlwaysRight,
}

impl AlwaysWrong {
    /// `output` are the target's tokens after `prompt_len` tokens.
    pub fn new(prompt_len: usize, output: Vec<TokenId>) -> Self {
        AlwaysWrong { knows: AlwaysRight::new(prompt_len, output) }
    }
}

impl DraftSource for AlwaysWrong {
    stateless_source!("always_wrong", Plain);

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        self.knows.anchors(committed, out);
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        for (parent, cursor) in frontier.iter().enumerate() {
            let right = self.knows.output.get(cursor.0 as usize).copied().unwrap_or_default();
            // Another token, which exists in every vocabulary of at least two.
            let wrong = TokenId(u32::from(right.0 == 0));
            out.push(sure(parent, wrong, Cursor(cursor.0 + 1)));
        }
    }
}

/// Proposes random tokens with random probabilities, some outside the vocabulary, some twice under one node.
/// Deterministic for a seed: the proposals at a cursor depend only on the cursor.
#[derive(Clone, Debug)]
pub struct Random {
    seed: u64,
    vocab_size: u32,
}

impl Random {
    /// A source for a vocabulary of `vocab_size` tokens.
    pub fn new(seed: u64, vocab_size: u32) -> Self {
        Random { seed, vocab_size: vocab_size.max(1) }
    }
}

impl DraftSource for Random {
    stateless_source!("random", Plain);

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        let hash = committed.iter().fold(self.seed, |hash, token| mix(hash ^ u64::from(token.0)));
        let n_anchors = hash % 4;
        let cursors = (0..n_anchors).map(|i| Cursor(mix(hash.wrapping_add(i))));
        out.extend(cursors.map(|cursor| Anchor { cursor, match_len: (cursor.0 % 20) as u32 }));
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        for (parent, cursor) in frontier.iter().enumerate() {
            for i in 0..cursor.0 % 6 {
                let hash = mix(cursor.0 ^ self.seed ^ (i << 32));
                let token = match hash % 8 {
                    0 => u32::MAX - (hash >> 40) as u32 % 3,
                    1 => self.vocab_size,
                    2 => 0, // always the same token
                    _ => (hash >> 20) as u32 % self.vocab_size,
                };
                let probability = (hash >> 8) as u8 as f32 / 200.0; // up to 1.27: more than a probability
                out.push(Candidate {
                    parent: parent as u32,
                    token: TokenId(token),
                    probability,
                    match_len: (hash >> 16) as u32 % 30,
                    count: (hash >> 24) as u32 % 10,
                    next: Cursor(mix(hash)),
                });
            }
        }
    }
}

/// Proposes more tokens than any bound allows, each with probability 0.99, under every node and at every
/// depth.
#[derive(Clone, Debug)]
pub struct Endless {
    vocab_size: u32,
}

impl Endless {
    /// A source for a vocabulary of `vocab_size` tokens.
    pub fn new(vocab_size: u32) -> Self {
        Endless { vocab_size: vocab_size.max(1) }
    }
}

impl DraftSource for Endless {
    stateless_source!("endless", Plain);

    fn anchors(&mut self, committed: &[TokenId], out: &mut Vec<Anchor>) {
        out.extend((0..100).map(|i| Anchor { cursor: Cursor(committed.len() as u64 + i), match_len: 100 }));
    }

    fn expand(&mut self, frontier: &[Cursor], out: &mut Candidates) {
        for (parent, cursor) in frontier.iter().enumerate() {
            for i in 0.. {
                let token = TokenId((mix(cursor.0 + i) % u64::from(self.vocab_size)) as u32);
                if !out.push(sure(parent, token, Cursor(cursor.0.wrapping_add(i + 1)))) {
                    return;
                }
            }
        }
    }
}

/// Steele, Lea and Flood's SplitMix64 finaliser.
fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
