//! The state of a session as bytes: keys and values of committed tokens, to be kept and restored bit for bit.

use std::fmt;
use std::ops::Range;

use xxhash_rust::xxh3::Xxh3;

use super::Session;
use crate::engine::error::SessionError;
use crate::model::rope::depends_on_context;
use crate::token::TokenId;

/// The version of the arithmetic and of the layout of a state. Every change to the bits of keys and values, or to the
/// order of their bytes, must increase it. (A test detects changes.)
const STATE_VERSION: u32 = 2;

/// A hash of everything besides the tokens that determines the bits of a session's [state](Session::write_state):
/// weights and hyper-parameters as loaded, tokenizer, type of the KV cache, and the version of the arithmetic; also the
/// context, if rotations depend on it.
///
/// Instruction set, threads, chunks, drafts, streaming and static graphs are no part of it, because they change no bit.
/// The hash has 128 bits (XXH3) and detects mistakes, not forgery. It is displayed as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StateKey(u128);

impl StateKey {
    /// The hash as a number.
    pub fn to_bits(self) -> u128 {
        self.0
    }
}

impl fmt::Display for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl Session {
    /// Encodes the turns, and returns the tokens that [`Session::generate`] continues. Keys and values of the longest
    /// common prefix of new and old tokens stay.
    ///
    /// # Errors
    /// The template fails, or the tokens do not fit: the newest turn is removed if it was appended since the last
    /// encoding; everything else is unchanged.
    pub fn encode(&mut self) -> Result<&[TokenId], SessionError> {
        self.encode_turns()?;
        Ok(&self.conversation.tokens)
    }

    /// Number of [`tokens`](Session::tokens), from the first on, whose keys and values are computed.
    pub fn n_cached_tokens(&self) -> usize {
        self.target.kv.len()
    }

    /// The key under which this session's state is valid. For a model that is not packed, the first call reads its
    /// weights once.
    pub fn state_key(&self) -> StateKey {
        let mut hash = Xxh3::new();
        hash.update(&STATE_VERSION.to_le_bytes());
        // Numbers have the byte order of the machine.
        hash.update(&1u32.to_ne_bytes());
        hash.update(&self.shared.model.identity().to_bits().to_le_bytes());
        hash.update(&self.shared.tokenizer.fingerprint().to_le_bytes());
        hash.update(self.options.kv_type.name().as_bytes());
        let ropes = &self.shared.model.config().ropes;
        if ropes.iter().any(|rope| depends_on_context(&rope.scaling)) {
            hash.update(&(self.target.kv.context_len() as u64).to_le_bytes());
        }
        StateKey(hash.digest128())
    }

    /// Bytes of the state of `n_tokens` tokens.
    pub fn state_bytes(&self, n_tokens: usize) -> u64 {
        self.target.kv.state_bytes(n_tokens)
    }

    /// Appends the state of the tokens in `range`, [`state_bytes`](Self::state_bytes) of it, to `out`: their keys and
    /// values in the layout of the KV cache. Equal tokens up to the end of the range give equal bytes.
    ///
    /// # Errors
    /// [`SessionError::StateRange`]: the keys and values are not computed; [`SessionError::RecurrentState`]: the model has
    /// recurrent layers; [`SessionError::BoundedWindows`]: layers with a window do not keep all tokens. `out` is unchanged.
    pub fn write_state(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), SessionError> {
        let n_cached = self.n_cached_tokens();
        if self.target.kv.is_recurrent() {
            return Err(SessionError::RecurrentState);
        }
        if self.target.kv.is_bounded() {
            return Err(SessionError::BoundedWindows);
        }
        if range.start > range.end || range.end > n_cached {
            return Err(SessionError::StateRange { start: range.start, end: range.end, n_cached });
        }
        self.target.kv.write_state(range, out);
        Ok(())
    }

    /// Takes keys and values from a state instead of computing them. `tokens` and `state` were those of a session with
    /// the same [key](Self::state_key), from position `first` on, and the tokens before `first` were the same as here.
    ///
    /// Restored are the positions behind the [cached](Self::n_cached_tokens) ones, as far as `tokens` agree with this
    /// session's tokens, without the newest, which the next step computes. Returns their number, which is 0 if nothing
    /// more agrees. The output is the same as after a prefill. Calibration has no predictions for restored positions,
    /// so drafts may differ; with [lossy acceptance](crate::Acceptance) drafts decide the output, so nothing is restored,
    /// and neither is the state of recurrent layers, nor any state with [bounded windows](crate::WindowCache::Bounded).
    ///
    /// # Errors
    /// [`SessionError::StateRange`]: positions between the cached ones and `first` are missing;
    /// [`SessionError::StateLength`]: the state has another length than these tokens need. The session is unchanged.
    pub fn restore_state(
        &mut self,
        first: usize,
        tokens: &[TokenId],
        state: &[u8],
    ) -> Result<usize, SessionError> {
        let n_cached = self.n_cached_tokens();
        if first > n_cached {
            let end = first.saturating_add(tokens.len());
            return Err(SessionError::StateRange { start: first, end, n_cached });
        }
        let (given, expected) = (state.len() as u64, self.state_bytes(tokens.len()));
        if given != expected {
            return Err(SessionError::StateLength { given, expected });
        }
        let kv = &self.target.kv;
        if self.options.acceptance.is_lossy() || kv.is_recurrent() || kv.is_bounded() {
            return Ok(0);
        }
        let own = &self.conversation.tokens;
        let n_agreed = own[first..].iter().zip(tokens).take_while(|(own, token)| own == token).count();
        let end = (first + n_agreed).min(own.len().saturating_sub(1));
        if end <= n_cached {
            return Ok(0);
        }
        self.target.kv.read_state(end, first, tokens.len(), state);
        Ok(end - n_cached)
    }
}
