//! Encoded pieces of conversations, by their text: a chat template writes all turns anew for every answer, and only the newest differs.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use refrain_trees::TokenId;

/// Bytes of pieces after which those that were not used since the last such moment are dropped.
const BYTES_MAX: usize = 1 << 20;
/// Bytes that a piece takes beside its text and tokens.
const PIECE_BYTES: usize = 64;

/// Pieces and their tokens. Two times [`BYTES_MAX`] at most, shared by threads.
#[derive(Default)]
pub(super) struct Memo(Mutex<Pieces>);

type Tokens = HashMap<Box<str>, Box<[TokenId]>>;

#[derive(Default)]
struct Pieces {
    newer: Tokens,
    newer_bytes: usize,
    older: Tokens,
}

impl Pieces {
    fn add(&mut self, text: Box<str>, tokens: Box<[TokenId]>) {
        let bytes = PIECE_BYTES + text.len() + size_of_val(&*tokens);
        if bytes > BYTES_MAX / 4 {
            return;
        }
        if self.newer_bytes + bytes > BYTES_MAX {
            self.older = std::mem::take(&mut self.newer);
            self.newer_bytes = 0;
        }
        if self.newer.insert(text, tokens).is_none() {
            self.newer_bytes += bytes;
        }
    }
}

impl Memo {
    /// Appends the tokens of `text` to `out`: those of the last time, or else those that `encode` gives.
    ///
    /// # Errors
    /// Those of `encode`; then nothing is appended.
    pub(super) fn extend<E>(
        &self,
        out: &mut Vec<TokenId>,
        text: &str,
        encode: impl FnOnce() -> Result<Vec<TokenId>, E>,
    ) -> Result<(), E> {
        {
            let mut pieces = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(tokens) = pieces.newer.get(text) {
                out.extend_from_slice(tokens);
                return Ok(());
            }
            if let Some((text, tokens)) = pieces.older.remove_entry(text) {
                out.extend_from_slice(&tokens);
                pieces.add(text, tokens);
                return Ok(());
            }
        }
        let tokens = encode()?;
        out.extend_from_slice(&tokens);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(text.into(), tokens.into());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_encoded_once_and_forgotten_when_others_came() {
        let memo = Memo::default();
        let mut n_encoded = 0;
        let mut ask = |text: &str| {
            let mut out = vec![TokenId(7)];
            let encode = || {
                n_encoded += 1;
                Ok::<_, ()>(text.bytes().map(|byte| TokenId(byte.into())).collect())
            };
            memo.extend(&mut out, text, encode).expect("encodes");
            let expected = std::iter::once(7).chain(text.bytes().map(u32::from));
            assert!(out.iter().map(|token| token.0).eq(expected), "{text}");
            n_encoded
        };
        assert_eq!((ask("a turn"), ask("a turn"), ask("another")), (1, 1, 2));
        // Each takes an eighth of the bound: the first half of these pushes `a turn` into the older ones, where it is found once more.
        let long = |i: usize| format!("{i} {}", "x".repeat(BYTES_MAX / 40));
        for i in 0..8 {
            ask(&long(i));
        }
        assert_eq!(ask("a turn"), 10, "used again, and kept");
        for i in 8..40 {
            ask(&long(i));
        }
        assert_eq!(ask("a turn"), 10 + 32 + 1, "forgotten");
        let pieces = memo.0.lock().unwrap();
        let sizes = [&pieces.newer, &pieces.older].map(|tokens| {
            tokens.iter().map(|(text, ids)| PIECE_BYTES + text.len() + 4 * ids.len()).sum::<usize>()
        });
        assert!(sizes.iter().all(|bytes| *bytes <= BYTES_MAX) && sizes[0] == pieces.newer_bytes, "{sizes:?}");
    }

    #[test]
    fn an_error_appends_nothing_and_a_piece_beyond_the_bound_is_not_kept() {
        let memo = Memo::default();
        let mut out = Vec::new();
        assert_eq!(memo.extend(&mut out, "a", || Err(1)), Err(1));
        let long = "x".repeat(BYTES_MAX);
        memo.extend(&mut out, &long, || Ok::<_, ()>(vec![TokenId(1)])).unwrap();
        assert_eq!(out, [TokenId(1)]);
        assert!(memo.0.lock().unwrap().newer.is_empty());
    }
}
