//! The state of a session as bytes, to be kept and restored bit for bit.
//!
//! Keys and values belong to tokens, so those of any range can be written, and any beginning of them can be restored. Recurrent layers have
//! one state for all tokens before a position. The state of a range is therefore
//!
//! ```text
//! keys and values of the range │ state of recurrent layers at its end
//! ```
//!
//! and it is restored as a whole, behind all tokens before it. Recurrent layers know their state at the newest position, at the end of the
//! newest prompt, and where [`SessionStateMut::remember`] asked for it.

use std::fmt;
use std::ops::Range;

use xxhash_rust::xxh3::Xxh3;

use super::Session;
use crate::engine::error::SessionProblem;
use crate::error::SessionError;
use crate::kernels::AllocError;
use crate::model::rope::depends_on_context;
use crate::model::state::Purpose;
use refrain_trees::TokenId;

/// The version of the arithmetic and of the layout of a state. Every change to the bits of keys and values, or to the
/// order of their bytes, must increase it. (A test detects changes.)
const STATE_VERSION: u32 = 2;

/// The same for the state of recurrent layers; other models' keys do not depend on it.
const RECURRENT_STATE_VERSION: u32 = 1;

/// A hash of everything besides the tokens that determines the bits of a session's [state](SessionState::write):
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
    /// The keys, values and recurrent states of this session, to be written elsewhere.
    pub fn state(&self) -> SessionState<'_> {
        SessionState { session: self }
    }

    /// Restores keys, values and recurrent states.
    pub fn state_mut(&mut self) -> SessionStateMut<'_> {
        SessionStateMut { end: self.target.kv.len(), session: self }
    }
}

/// What a [`Session`] has computed: keys, values and recurrent states.
#[derive(Debug, Clone, Copy)]
pub struct SessionState<'a> {
    session: &'a Session,
}

impl SessionState<'_> {
    /// Number of [`tokens`](Session::tokens), from the first on, whose keys and values are computed.
    pub fn n_cached_tokens(&self) -> usize {
        self.session.target.kv.len()
    }

    /// The key under which this session's state is valid. For a model that is not packed, the first call reads its
    /// weights once.
    pub fn key(&self) -> StateKey {
        let mut hash = Xxh3::new();
        hash.update(&STATE_VERSION.to_le_bytes());
        // Numbers have the byte order of the machine.
        hash.update(&1u32.to_ne_bytes());
        hash.update(&self.session.shared.model.identity().to_bits().to_le_bytes());
        hash.update(&self.session.shared.tokenizer.fingerprint().to_le_bytes());
        hash.update(self.session.options.kv_type.name().as_bytes());
        let ropes = &self.session.shared.model.config().ropes;
        if ropes.iter().any(|rope| depends_on_context(&rope.scaling)) {
            hash.update(&(self.session.target.kv.context_len() as u64).to_le_bytes());
        }
        if self.session.target.kv.state_ends().is_some() {
            hash.update(&RECURRENT_STATE_VERSION.to_le_bytes());
        }
        StateKey(hash.digest128())
    }

    /// Bytes of the [state](Self::write) of `n_tokens` tokens.
    pub fn bytes(&self, n_tokens: usize) -> u64 {
        self.keys_values_bytes(n_tokens).saturating_add(self.session.target.kv.recurrent_state_bytes())
    }

    /// Bytes of the [keys and values](Self::write_keys_values) of `n_tokens` tokens: less than
    /// [`bytes`](Self::bytes) if the model has recurrent layers.
    pub fn keys_values_bytes(&self, n_tokens: usize) -> u64 {
        self.session.target.kv.state_bytes(n_tokens)
    }

    /// Positions at which a [state](Self::write) can end, in rising order: the number of
    /// [cached tokens](Self::n_cached_tokens), the end of the newest prompt that was prefilled, and the position of the newest
    /// [`remember`](SessionStateMut::remember), as far as truncation has not removed them. `None` without recurrent layers:
    /// then a state can end at every position.
    pub fn ends(&self) -> Option<Vec<usize>> {
        self.session.target.kv.state_ends()
    }

    /// Appends the state of the tokens in `range`, [`bytes`](Self::bytes) of it, to `out`: their keys and
    /// values in the layout of the KV cache, then the state of recurrent layers at the end of the range. Equal tokens up to the
    /// end of the range give equal bytes.
    ///
    /// # Errors
    /// The tokens are not computed; recurrent layers do not know their state at the end of the range ([`ends`](Self::ends) lists
    /// where they do); there is no memory for a copy of it; or layers with a window do not keep all tokens. `out` is unchanged.
    pub fn write(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), SessionError> {
        let (start, end) = (out.len(), range.end);
        self.write_keys_values(range, out)?;
        let written = match self.ends() {
            Some(known) if !known.contains(&end) => Err(SessionProblem::StateEnd { end, known }),
            Some(_) => {
                let written =
                    self.session.target.kv.write_recurrent_state(self.session.shared.compute(), end, out);
                written.map_err(|AllocError { bytes, .. }| SessionProblem::StateMemory { bytes })
            }
            None => Ok(()),
        };
        Ok(written.inspect_err(|_| out.truncate(start))?)
    }

    /// As [`write`](Self::write) without the state of recurrent layers: a part of a
    /// state that [`SessionStateMut::add`] takes before the next one.
    ///
    /// # Errors
    /// The tokens are not computed, or layers with a window do not keep all tokens. `out` is unchanged.
    pub fn write_keys_values(&self, range: Range<usize>, out: &mut Vec<u8>) -> Result<(), SessionError> {
        let n_cached = self.n_cached_tokens();
        if self.session.target.kv.is_bounded() {
            return Err(SessionProblem::BoundedWindows.into());
        }
        if range.start > range.end || range.end > n_cached {
            return Err(SessionProblem::StateRange { start: range.start, end: range.end, n_cached }.into());
        }
        self.session.target.kv.write_state(range, out);
        Ok(())
    }
}

/// As [`SessionState`], for a session that takes a state instead of computing it: as a whole, or from the states of consecutive ranges.
///
/// With recurrent layers, [keys and values](SessionState::write_keys_values) alone are a part too. They count once a part behind them
/// brings the [state](SessionState::write) of these layers. If none does, they are given up when this value is dropped: the session is then
/// as the last part with such a state left it.
///
/// ```no_run
/// # use refrain::{Engine, EngineOptions, SessionError, SessionOptions, TokenId};
/// # fn restore(session: &mut refrain::Session, tokens: &[TokenId], parts: [&[u8]; 2]) -> Result<(), SessionError> {
/// let mut state = session.state_mut();
/// state.add(0, &tokens[..64], parts[0])?; // of `write_keys_values(0..64, …)`
/// state.add(64, &tokens[64..99], parts[1])?; // of `write(64..99, …)`
/// assert_eq!(session.state().n_cached_tokens(), 99);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct SessionStateMut<'a> {
    session: &'a mut Session,
    /// The position after the tokens whose keys and values are there.
    end: usize,
}

impl<'a> SessionStateMut<'a> {
    /// Encodes the turns, and returns the tokens that [`Session::generate`] continues. Keys and values of the longest
    /// common prefix of new and old tokens stay.
    ///
    /// # Errors
    /// The template fails, or the tokens do not fit: the newest turn is removed if it was appended since the last
    /// encoding; everything else is unchanged.
    pub fn encode(self) -> Result<&'a [TokenId], SessionError> {
        self.session.encode_turns()?;
        Ok(&self.session.conversation.tokens)
    }

    /// Makes prefills that come past `position` remember the state of recurrent layers there, so that a state can
    /// [end](SessionState::ends) at it. A later call replaces an earlier one. Positions behind which tokens are cached already are
    /// ignored, as is every call without recurrent layers. Takes the memory of one recurrent state; the output is unchanged.
    pub fn remember(self, position: usize) {
        let Session { shared, target, remembered, .. } = self.session;
        let kv = &mut target.kv;
        if kv.is_recurrent() && position >= kv.len() {
            *remembered = Some(position);
            if position == kv.len() {
                kv.checkpoint(shared.compute(), Purpose::Snapshot);
            }
        }
    }

    /// Takes a state instead of computing it. `tokens` and `state` were those of a session with the same
    /// [key](SessionState::key), from position `first` on, and the tokens before `first` were the same as here.
    ///
    /// Restored are the positions behind the [cached](SessionState::n_cached_tokens) ones, as far as `tokens` agree with this
    /// session's tokens, without the newest, which the next step computes. With recurrent layers, all tokens of the state must agree, and
    /// the newest must be behind them. Returns the number of restored positions, which is 0 if nothing more agrees. The output is the
    /// same as after a prefill. Calibration has no predictions for restored positions, so drafts may differ. No state is restored with
    /// [bounded windows](crate::state::WindowCache::Bounded).
    ///
    /// A later truncation to a position before a restored recurrent state recomputes everything.
    ///
    /// # Errors
    /// Positions between the cached ones and `first` are missing, or the state has another length than these tokens need. The session is
    /// unchanged.
    pub fn restore(mut self, first: usize, tokens: &[TokenId], state: &[u8]) -> Result<usize, SessionError> {
        let (given, expected) = (state.len() as u64, self.session.state().bytes(tokens.len()));
        if given != expected {
            return Err(SessionProblem::StateLength { given, expected }.into());
        }
        let n_cached = self.session.state().n_cached_tokens();
        self.add(first, tokens, state).map(|end| end - n_cached)
    }

    /// Adds the state of a range, as [`restore`](Self::restore) does, or its [keys and values](SessionState::write_keys_values) alone, of
    /// a state that was written in parts. Its first position may lie before the end of what is there. Returns the position after the tokens that are there now.
    ///
    /// # Errors
    /// As [`restore`](Self::restore); what was added before stays.
    pub fn add(&mut self, first: usize, tokens: &[TokenId], state: &[u8]) -> Result<usize, SessionError> {
        let Self { session, end: start } = self;
        if first > *start {
            let end = first.saturating_add(tokens.len());
            return Err(SessionProblem::StateRange { start: first, end, n_cached: *start }.into());
        }
        let [keys_values, whole] =
            [session.state().keys_values_bytes(tokens.len()), session.state().bytes(tokens.len())];
        let given = state.len() as u64;
        if given != keys_values && given != whole {
            return Err(SessionProblem::StateLength { given, expected: whole }.into());
        }
        let own = &session.conversation.tokens;
        let n_agreed = own[first..].iter().zip(tokens).take_while(|(own, token)| own == token).count();
        let end = (first + n_agreed).min(own.len().saturating_sub(1));
        let adds = if given == whole && keys_values < whole {
            // A recurrent state is that behind all of the tokens.
            end == first + tokens.len() && end >= *start && end > session.target.kv.len()
        } else {
            end > *start
        };
        if adds && !session.target.kv.is_bounded() {
            let (keys_values, recurrent) = state.split_at(keys_values as usize);
            session.target.kv.read_state(*start..end, first, tokens.len(), keys_values);
            if given == whole {
                session.target.kv.commit_state(end, recurrent);
            }
            *start = end;
        }
        Ok(*start)
    }
}
