//! The state of one recurrent layer of one sequence: short convolutions, the gated delta rule, Mamba-2.
//!
//! ```text
//! positions   0 ……………………… start │ start ……………… len │ len ……… len + rows
//!             folded into state  │ journal: committed │ journal: the batch at hand
//! ```
//!
//! A row of a tree cannot be taken back from a state that it changed. The layer therefore keeps the state before position `start`,
//! and the inputs of the committed positions behind it in a *journal*, where the rows of the batch follow. A pass first folds
//! the journal's committed records into the state and then walks the tree from there, head by head, while the head's state is in the
//! cache. It writes the state after the root to a second buffer, the *shadow*: the root is always committed, so a commit only swaps the
//! buffers and keeps the records of the other accepted rows. The journal is thus never longer than the rows of a batch. A
//! pass that fails changes neither state nor committed records.
//!
//! A row's state and output depend on the sequence of its own inputs only, whether they are folded from records, or are rows of this batch
//! or of earlier ones. Every order of commits therefore gives the bits of plain decoding.
//!
//! Rows of a prefill chunk are not recorded: the shadow receives the state after the last row, and the chunk is committed as a whole.

use std::ops::Range;

use thiserror::Error;

use super::checkpoints::{CheckpointPolicy, Checkpoints, Purpose};
use super::tree::TreeRows;
use crate::kernels::{
    self, AllocError, CONV_LEN_MAX, ConvRows, RowPart, RowRing, StateBuf, StateInputs, StateScratch,
    StateShape, StateWalk,
};
use crate::model::compute::Compute;

/// The state of a recurrent layer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecurrentShape {
    /// Columns of the convolution; 0 without one.
    pub conv_dim: usize,
    /// Taps of the convolution.
    pub conv_len: usize,
    /// The states of the heads; `None` if the layer is a convolution alone.
    pub states: Option<StateShape>,
}

/// A configuration describes no recurrent layer.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ShapeError {
    /// There is neither a convolution nor a state.
    #[error("a recurrent layer has a convolution or a state")]
    Empty,
    /// The convolution is too short or too long.
    #[error("a convolution has 1 to {max} taps, not {given}")]
    ConvLen {
        /// Taps.
        given: usize,
        /// Maximum taps.
        max: usize,
    },
    /// A dimension of the states is 0.
    #[error("{n_heads} heads with keys of {key_dim} and values of {value_dim} elements")]
    ZeroDim {
        /// Heads.
        n_heads: usize,
        /// Elements of a key.
        key_dim: usize,
        /// Elements of a value.
        value_dim: usize,
    },
    /// Heads cannot share the keys evenly.
    #[error("{n_heads} heads are no multiple of {n_key_heads} key heads")]
    KeyHeads {
        /// Heads.
        n_heads: usize,
        /// Heads of keys.
        n_key_heads: usize,
    },
}

impl RecurrentShape {
    /// Checks a shape that comes from a file.
    ///
    /// # Errors
    /// [`ShapeError`].
    pub fn check(&self) -> Result<(), ShapeError> {
        if self.conv_dim == 0 && self.states.is_none() {
            return Err(ShapeError::Empty);
        }
        if self.conv_dim > 0 && !(1..=CONV_LEN_MAX).contains(&self.conv_len) {
            return Err(ShapeError::ConvLen { given: self.conv_len, max: CONV_LEN_MAX });
        }
        let Some(StateShape { n_heads, n_key_heads, key_dim, value_dim, .. }) = self.states else {
            return Ok(());
        };
        if n_heads == 0 || key_dim == 0 || value_dim == 0 {
            return Err(ShapeError::ZeroDim { n_heads, key_dim, value_dim });
        }
        if n_key_heads == 0 || !n_heads.is_multiple_of(n_key_heads) {
            return Err(ShapeError::KeyHeads { n_heads, n_key_heads });
        }
        Ok(())
    }

    /// Inputs of the convolution that are kept before a position.
    fn tail_len(&self) -> usize {
        if self.conv_dim == 0 { 0 } else { self.conv_len - 1 }
    }

    /// Inputs that are kept for batches of `n_rows_max` rows: the tail, the journal, and the rows of a batch (of a whole chunk, those of the
    /// next tail).
    fn n_inputs(&self, n_rows_max: usize) -> usize {
        self.tail_len() + (n_rows_max - 1) + n_rows_max.max(self.tail_len())
    }

    fn record_len(&self) -> Option<usize> {
        let Some(StateShape { n_heads, n_key_heads, key_dim, value_dim, .. }) = self.states else {
            return Some(0);
        };
        let keys = n_key_heads.checked_mul(key_dim)?;
        n_heads.checked_mul(value_dim)?.checked_add(keys)?.checked_add(n_heads.checked_mul(2)?)
    }
}

/// Records that are kept for batches of `n_rows_max` rows. The root of a batch is not recorded.
fn n_records(n_rows_max: usize) -> usize {
    2 * (n_rows_max - 1)
}

/// A batch does not fit the layer. Nothing was read or written.
#[derive(Debug, Error, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecurrentError {
    /// The batch does not continue the sequence.
    #[error("the batch starts at position {base}, but the recurrent state holds {len} tokens")]
    NotNext {
        /// The first position of the batch.
        base: usize,
        /// Committed tokens.
        len: usize,
    },
    /// The batch is not committed as a whole, and has more rows than the journal.
    #[error("{n_rows} rows exceed the {n_rows_max} rows of a recurrent layer's journal")]
    TooManyRows {
        /// Rows of the batch.
        n_rows: usize,
        /// Maximum rows of a batch.
        n_rows_max: usize,
    },
}

/// The state of one recurrent layer of one sequence.
///
/// A pass calls [`begin`](Self::begin), then [`convolve`](Self::convolve) if the layer has a convolution, and
/// [`advance`](Self::advance) if it has states. Then [`commit`](Self::commit) keeps a path, or another pass begins.
///
/// # Invariants
/// - `state` is the state before position `start`, and `start <= len <= start + n_rows_max − 1`.
/// - The first `len − start` rows of `records` are those of the positions `start..len`.
/// - The first `tail_len + len − start` rows of `inputs` are the convolution's inputs of the positions `start − tail_len..len`; before
///   position 0, zeros.
pub struct RecurrentLayer {
    shape: RecurrentShape,
    n_rows_max: usize,
    start: usize,
    len: usize,
    state: Option<StateBuf>,
    /// During a pass, the state after the root or after the whole chunk.
    shadow: Option<StateBuf>,
    /// `[n_records, record_len]`
    records: RowRing,
    /// `[n_inputs, conv_dim]`
    inputs: RowRing,
    pending: Option<Pending>,
    checkpoints: Checkpoints,
}

/// The batch at hand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pending {
    n_tokens: usize,
    whole: bool,
    is_convolved: bool,
    is_advanced: bool,
}

impl RecurrentLayer {
    /// A layer before position 0, for batches of up to `n_rows_max` rows that are not committed as a whole.
    ///
    /// # Errors
    /// [`AllocError`]: the memory could not be allocated; nothing stays allocated.
    ///
    /// # Panics
    /// If `shape` does not pass its [check](RecurrentShape::check), or `n_rows_max` is 0.
    pub fn new(
        shape: RecurrentShape,
        n_rows_max: usize,
        checkpoints: CheckpointPolicy,
    ) -> Result<Self, AllocError> {
        if let Err(err) = shape.check() {
            panic!("{err}");
        }
        assert!(n_rows_max > 0, "a batch has a row");
        let record_len = shape.record_len().ok_or(AllocError::new(usize::MAX))?;
        Ok(Self {
            shape,
            n_rows_max,
            start: 0,
            len: 0,
            state: shape.states.map(StateBuf::zeroed).transpose()?,
            shadow: shape.states.map(StateBuf::zeroed).transpose()?,
            records: RowRing::zeroed(n_records(n_rows_max), record_len)?,
            inputs: RowRing::zeroed(shape.n_inputs(n_rows_max), shape.conv_dim)?,
            pending: None,
            checkpoints: Checkpoints::new(checkpoints, shape.states, shape.tail_len(), shape.conv_dim)?,
        })
    }

    /// Bytes of a layer, saturating. Pages of unused checkpoints take no memory, but count here.
    pub fn bytes(shape: &RecurrentShape, n_rows_max: usize, checkpoints: CheckpointPolicy) -> u64 {
        let state_bytes = shape.states.map_or(0, |states| states.bytes());
        let tail_bytes = RowRing::bytes(shape.tail_len(), shape.conv_dim);
        let copies = state_bytes.saturating_add(tail_bytes).saturating_mul(checkpoints.n_max as u64);
        let records = RowRing::bytes(n_records(n_rows_max), shape.record_len().unwrap_or(usize::MAX));
        let inputs = RowRing::bytes(shape.n_inputs(n_rows_max), shape.conv_dim);
        state_bytes.saturating_mul(2).saturating_add(copies).saturating_add(records).saturating_add(inputs)
    }

    /// Bytes held: [`bytes`](Self::bytes) of this layer.
    pub fn memory_usage(&self) -> usize {
        let states = [&self.state, &self.shadow].into_iter().flatten().map(StateBuf::size_bytes);
        let rings = self.records.size_bytes() + self.inputs.size_bytes();
        states.sum::<usize>() + rings + self.checkpoints.size_bytes()
    }

    /// Dimensions.
    pub fn shape(&self) -> &RecurrentShape {
        &self.shape
    }

    /// Committed tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is committed.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Committed positions that are not folded into the state: truncation to the last of them is exact.
    pub fn n_journaled(&self) -> usize {
        self.len - self.start
    }

    /// Starts a pass over `rows`. An earlier pass that was not committed is forgotten.
    ///
    /// # Errors
    /// [`RecurrentError`].
    pub fn begin(&mut self, rows: &TreeRows) -> Result<(), RecurrentError> {
        let (base, n_rows, whole) = (rows.base(), rows.n_tokens(), rows.is_whole());
        if base != self.len {
            return Err(RecurrentError::NotNext { base, len: self.len });
        }
        if !whole && n_rows > self.n_rows_max {
            return Err(RecurrentError::TooManyRows { n_rows, n_rows_max: self.n_rows_max });
        }
        let (is_convolved, is_advanced) = (self.shape.conv_dim == 0, self.shape.states.is_none());
        self.pending = Some(Pending { n_tokens: n_rows, whole, is_convolved, is_advanced });
        Ok(())
    }

    /// Depthwise causal convolution of each row over its own ancestors' inputs
    /// ([formula](crate::kernels::convolve)); records the inputs.
    ///
    /// # Shapes
    /// - `x`: `[rows.len(), conv_dim]`, the rows that the pass still computes, padding last.
    /// - `weight`: `[conv_len, conv_dim]`, the newest tap last; `bias`: `[conv_dim]`.
    /// - `out`: `[rows.len(), conv_dim]`; padding rows are zero.
    ///
    /// # Panics
    /// If a length is wrong, or `rows` are not those of [`begin`](Self::begin).
    pub fn convolve(
        &mut self,
        compute: Compute<'_>,
        rows: &TreeRows,
        x: RowPart<'_>,
        weight: &[f32],
        bias: Option<&[f32]>,
        out: &mut [f32],
    ) {
        let RecurrentShape { conv_dim, conv_len, .. } = self.shape;
        assert_eq!(weight.len(), conv_len * conv_dim, "weights of {conv_len} taps and {conv_dim} columns");
        let n_committed = self.shape.tail_len() + self.n_journaled();
        // Of a whole chunk, only the inputs that later rows read are kept.
        let skipped = if rows.is_whole() { rows.n_tokens().saturating_sub(self.shape.tail_len()) } else { 0 };
        let out = without_padding(rows, conv_dim, out);
        let conv = ConvRows { x, parents: rows.parents(), numbers: rows.numbers(), skipped };
        self.pending_of(rows).is_convolved = true;
        let Compute { kernels: k, pool } = compute;
        kernels::convolve(k, pool, weight, bias, &mut self.inputs, n_committed, conv, out);
    }

    /// Applies each row to the states of its parent ([formula](crate::kernels::StateRule)), and reads them with its queries; records the
    /// inputs.
    ///
    /// # Shapes
    /// - `inputs`: rows that the pass still computes, padding last.
    /// - `out`: `[rows.len(), n_heads, value_dim]`; padding rows are zero.
    ///
    /// # Panics
    /// If the layer has no states, a length is wrong, or `rows` are not those of [`begin`](Self::begin).
    pub fn advance(
        &mut self,
        compute: Compute<'_>,
        rows: &TreeRows,
        inputs: StateInputs<'_>,
        scratch: &mut StateScratch,
        out: &mut [f32],
    ) {
        self.pending_of(rows).is_advanced = true;
        let n_folded = self.n_journaled();
        let (Some(state), Some(shadow)) = (&self.state, &mut self.shadow) else {
            panic!("a layer without states")
        };
        let skipped = if rows.is_whole() { rows.n_tokens() } else { 1 };
        let (steps, n_levels, numbers) = (rows.steps(), rows.n_levels(), rows.numbers());
        let walk = StateWalk { steps, n_levels, numbers, skipped };
        let out = without_padding(rows, state.shape().value_len(), out);
        let Compute { kernels: k, pool } = compute;
        let records = &mut self.records;
        kernels::advance_states(k, pool, state, shadow, records, n_folded, inputs, walk, scratch, out);
    }

    /// The batch at hand, which is that of `rows`.
    fn pending_of(&mut self, rows: &TreeRows) -> &mut Pending {
        let Some(pending) = &mut self.pending else { panic!("a pass begins before it computes") };
        assert_eq!(
            (rows.base(), rows.n_tokens(), rows.is_whole()),
            (self.len, pending.n_tokens, pending.whole)
        );
        pending
    }

    /// Commits the rows `path` of the pass at hand; all others are forgotten. `path` gives numbers of the batch, a row and then one of its
    /// children each, the root first. An empty path commits nothing. Takes a checkpoint where one is due.
    ///
    /// # Panics
    /// If the pass was not computed, `path` does not begin with the root or does not rise, or it is a part of rows that are committed as a
    /// whole.
    pub fn commit(&mut self, path: impl IntoIterator<Item = usize>) {
        let pending = self.pending.take();
        let mut path = path.into_iter();
        let Some(root) = path.next() else { return };
        let Some(Pending { n_tokens, whole, is_convolved, is_advanced }) = pending else {
            panic!("a pass is computed before it is committed");
        };
        assert!(is_convolved && is_advanced, "all of a pass is computed before it is committed");
        assert_eq!(root, 0, "the root is committed first");
        let (n_folded, n_inputs) = (self.n_journaled(), self.shape.tail_len() + self.n_journaled());
        if whole {
            assert_eq!(1 + path.count(), n_tokens, "rows that are committed as a whole");
            let n_kept = n_tokens.min(self.shape.tail_len());
            self.inputs.drop_first(n_folded + n_kept);
            self.start = self.len + n_tokens;
            self.len = self.start;
        } else {
            let (mut last, mut depth) = (0, 1);
            for row in path {
                assert!(last < row && row < n_tokens, "row {row} after {last} of {n_tokens}");
                // The path rises, so no record is overwritten before it is copied.
                if row != depth {
                    self.records.copy_row(n_folded + row - 1, n_folded + depth - 1);
                    self.inputs.copy_row(n_inputs + row, n_inputs + depth);
                }
                (last, depth) = (row, depth + 1);
            }
            self.inputs.drop_first(n_folded + 1);
            self.start = self.len + 1;
            self.len += depth;
        }
        self.records.drop_first(n_folded);
        std::mem::swap(&mut self.state, &mut self.shadow);
        if self.checkpoints.is_due(self.start) {
            self.take_checkpoint(Purpose::Truncation);
        }
    }

    /// Commits every row of a chain.
    ///
    /// # Panics
    /// As [`commit`](Self::commit).
    pub fn commit_all(&mut self) {
        let n_tokens = self.pending.map_or(0, |pending| pending.n_tokens);
        self.commit(0..n_tokens);
    }

    /// Takes a checkpoint at the last committed position. It stays until the next call with the same purpose; only truncation removes it
    /// earlier. To be called where a truncation is likely, for example before an answer, or where the state is to be written later.
    pub fn checkpoint(&mut self, compute: Compute<'_>, purpose: Purpose) {
        self.pending = None;
        let n_folded = self.n_journaled();
        if n_folded > 0 {
            if let (Some(state), Some(shadow)) = (&self.state, &mut self.shadow) {
                let Compute { kernels: k, pool } = compute;
                kernels::fold_states(k, pool, state, shadow, &self.records, n_folded);
            }
            std::mem::swap(&mut self.state, &mut self.shadow);
            self.records.drop_first(n_folded);
            self.inputs.drop_first(n_folded);
            self.start = self.len;
        }
        if self.len > 0 {
            self.take_checkpoint(purpose);
        }
    }

    fn take_checkpoint(&mut self, purpose: Purpose) {
        let Some(to) = self.checkpoints.add(self.start, purpose) else { return };
        if let (Some(to), Some(state)) = (&mut to.state, &self.state) {
            to.copy_from(state);
        }
        for row in 0..to.tail.n_rows() {
            to.tail.row_mut(row).copy_from_slice(self.inputs.row(row));
        }
    }

    /// Rolls back to the first `len` tokens, or to fewer of them: returns the number that is left. It is `len` for the last
    /// [journaled](Self::n_journaled) positions, else that of the last checkpoint up to `len`. The tokens behind it must be computed again.
    pub fn truncate(&mut self, len: usize) -> usize {
        if len >= self.len {
            return self.len;
        }
        self.pending = None;
        if len >= self.start {
            self.len = len;
            return len;
        }
        let tail_len = self.shape.tail_len();
        match self.checkpoints.truncate(len) {
            Some(from) => {
                if let (Some(state), Some(from)) = (&mut self.state, &from.state) {
                    state.copy_from(from);
                }
                for row in 0..tail_len {
                    self.inputs.row_mut(row).copy_from_slice(from.tail.row(row));
                }
                self.start = from.position;
            }
            None => {
                self.state.iter_mut().for_each(StateBuf::clear);
                (0..tail_len).for_each(|row| self.inputs.row_mut(row).fill(0.0));
                self.start = 0;
            }
        }
        self.len = self.start;
        self.len
    }

    /// Pretends that `len` tokens are committed, with some state: for measurements.
    pub(crate) fn assume_len(&mut self, len: usize) {
        self.pending = None;
        self.checkpoints.clear();
        (self.start, self.len) = (len, len);
    }

    /// Copies the committed state, the journal and the checkpoints of a layer of the same model.
    ///
    /// # Panics
    /// If the shapes differ, or the other layer's journal does not fit.
    pub fn copy_from(&mut self, other: &Self) {
        assert_eq!(self.shape, other.shape);
        let n_folded = other.n_journaled();
        assert!(n_folded < self.n_rows_max, "{n_folded} records, batches of {}", self.n_rows_max);
        if let (Some(to), Some(from)) = (&mut self.state, &other.state) {
            to.copy_from(from);
        }
        for row in 0..n_folded {
            self.records.row_mut(row).copy_from_slice(other.records.row(row));
        }
        for row in 0..self.shape.tail_len() + n_folded {
            self.inputs.row_mut(row).copy_from_slice(other.inputs.row(row));
        }
        self.checkpoints.copy_from(&other.checkpoints);
        self.pending = None;
        (self.start, self.len) = (other.start, other.len);
    }

    /// Bytes of the [state](Self::write_state), at any position.
    pub fn state_bytes(&self) -> u64 {
        let tail = (self.shape.tail_len() as u64).saturating_mul(self.shape.conv_dim as u64);
        let states = self.shape.states.map_or(0, |states| states.written_bytes());
        states.saturating_add(tail.saturating_mul(size_of::<f32>() as u64))
    }

    /// Positions whose state can be [written](Self::write_state), in rising order: those of the checkpoints that were asked for, and
    /// [`len`](Self::len). Position 0 has no state.
    pub fn state_ends(&self) -> Vec<usize> {
        let remembered = self.checkpoints.all_asked_for().map(|held| held.position);
        let mut ends: Vec<usize> = remembered.chain([self.len]).filter(|&end| end > 0).collect();
        ends.dedup();
        ends
    }

    /// Appends the state before position `end` to `out`, [`state_bytes`](Self::state_bytes) of it: the heads' states,
    /// `[n_heads, key_dim, value_dim]`, and the last inputs of the convolution, `[conv_len − 1, conv_dim]`, as f32 in the machine's byte
    /// order. Equal committed tokens give equal bytes.
    ///
    /// # Errors
    /// [`AllocError`]: a copy of the states could not be allocated; `out` is unchanged.
    ///
    /// # Panics
    /// If `end` is none of the [positions](Self::state_ends) with a known state.
    pub fn write_state(&self, compute: Compute<'_>, end: usize, out: &mut Vec<u8>) -> Result<(), AllocError> {
        if end != self.len {
            let from = self.checkpoints.asked_for(end);
            let Some(from) = from else { panic!("no state at {end} of {} tokens", self.len) };
            if let Some(state) = &from.state {
                state.write_bytes(out);
            }
            write_rows(&from.tail, 0..self.shape.tail_len(), out);
            return Ok(());
        }
        let n_folded = self.n_journaled();
        match &self.state {
            Some(state) if n_folded > 0 => {
                let mut folded = StateBuf::zeroed(*state.shape())?;
                let Compute { kernels: k, pool } = compute;
                kernels::fold_states(k, pool, state, &mut folded, &self.records, n_folded);
                folded.write_bytes(out);
            }
            Some(state) => state.write_bytes(out),
            None => {}
        }
        write_rows(&self.inputs, n_folded..n_folded + self.shape.tail_len(), out);
        Ok(())
    }

    /// Takes the state before position `len` from the bytes of [`write_state`](Self::write_state), with a checkpoint there, so that truncation
    /// goes back to it. Everything else is forgotten.
    ///
    /// # Panics
    /// If the number of bytes is wrong.
    pub fn read_state(&mut self, len: usize, bytes: &[u8]) {
        assert_eq!(bytes.len() as u64, self.state_bytes());
        let n_states = self.shape.states.map_or(0, |states| states.written_bytes()) as usize;
        let (states, tail) = bytes.split_at(n_states);
        if let Some(state) = &mut self.state {
            state.read_bytes(states);
        }
        for (row, bytes) in tail.chunks_exact(size_of::<f32>() * self.shape.conv_dim.max(1)).enumerate() {
            let numbers = bytes.as_chunks().0.iter().map(|&bytes| f32::from_ne_bytes(bytes));
            self.inputs.row_mut(row).iter_mut().zip(numbers).for_each(|(to, from)| *to = from);
        }
        self.pending = None;
        self.checkpoints.clear();
        (self.start, self.len) = (len, len);
        if len > 0 {
            self.take_checkpoint(Purpose::Truncation);
        }
    }

    /// The checkpoints' positions.
    #[cfg(test)]
    pub(super) fn checkpoint_positions(&self) -> Vec<usize> {
        self.checkpoints.positions()
    }

    /// Panics if an invariant is broken.
    #[cfg(test)]
    pub(super) fn check_integrity(&self) {
        assert!(
            self.start <= self.len && self.n_journaled() < self.n_rows_max,
            "{} to {}",
            self.start,
            self.len
        );
        assert_eq!(self.state.is_some(), self.shadow.is_some());
        self.checkpoints.check_integrity(self.start);
        let bytes = Self::bytes(&self.shape, self.n_rows_max, *self.checkpoints.policy());
        assert_eq!(self.memory_usage() as u64, bytes);
    }
}

/// Appends rows as f32 in the machine's byte order.
fn write_rows(from: &RowRing, rows: Range<usize>, out: &mut Vec<u8>) {
    rows.for_each(|row| out.extend(from.row(row).iter().flat_map(|x| x.to_ne_bytes())));
}

/// The outputs of rows with a token, `[n_rows, row_len]`; sets those of padding rows to zero.
fn without_padding<'a>(rows: &TreeRows, row_len: usize, out: &'a mut [f32]) -> &'a mut [f32] {
    assert_eq!(out.len(), rows.len() * row_len, "{} rows of {row_len}", rows.len());
    let (out, padding) = out.split_at_mut(rows.numbers().len() * row_len);
    padding.fill(0.0);
    out
}
