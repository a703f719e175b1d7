//! Copies of a recurrent layer's state at earlier positions, so that truncation recomputes a bounded stretch.
//!
//! A copy takes as much memory as the state, so there are few. When another one is due and all are in use, the one goes whose loss
//! matters least: that leaves the smallest gap in proportion to the gap's distance from the end of the text. The positions then lie at
//! distances from the end that grow by a factor, so a truncation recomputes few positions if it drops few.

use crate::kernels::{AllocError, RowRing, StateBuf, StateShape};

/// When checkpoints are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckpointPolicy {
    /// Maximum number of checkpoints: each takes the memory of a state. 0: truncation recomputes everything.
    pub n_max: usize,
    /// Minimum distance of two automatic checkpoints, in positions.
    pub spacing_min: usize,
    /// Automatic checkpoints are at least one `spacing_share`th of the text apart, so that copying takes a bounded share of the time.
    pub spacing_share: usize,
}

impl Default for CheckpointPolicy {
    /// Four copies; 128 positions, which a prefill computes about as fast as one decoding step; an eighth of the text.
    fn default() -> Self {
        Self { n_max: 4, spacing_min: 128, spacing_share: 8 }
    }
}

impl CheckpointPolicy {
    /// No checkpoints.
    pub const NONE: Self = Self { n_max: 0, spacing_min: usize::MAX, spacing_share: 1 };
}

/// Why a checkpoint is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// It was due, so that truncation recomputes less. It goes when others are due.
    Truncation,
    /// A prompt ends there, from where the next text often goes on. The newest stays.
    Prompt,
    /// The state there is to be written. The newest stays.
    Snapshot,
}

/// The checkpoints of a layer.
///
/// # Invariants
/// - `held` is sorted by position, strictly rising, and has at most `policy.n_max` entries.
/// - Every copy is in `held` or in `free`.
/// - At most one entry has [`Purpose::Prompt`], and at most one [`Purpose::Snapshot`].
pub(super) struct Checkpoints {
    policy: CheckpointPolicy,
    held: Vec<Checkpoint>,
    free: Vec<Checkpoint>,
}

/// The state before a position.
pub(super) struct Checkpoint {
    pub(super) position: usize,
    purpose: Purpose,
    pub(super) state: Option<StateBuf>,
    /// `[conv_len − 1, conv_dim]`: the inputs before the position.
    pub(super) tail: RowRing,
}

impl Checkpoints {
    /// Memory for all checkpoints of the policy. Pages of unused ones take no memory.
    pub(super) fn new(
        policy: CheckpointPolicy,
        state: Option<StateShape>,
        tail_len: usize,
        conv_dim: usize,
    ) -> Result<Self, AllocError> {
        let copies = (0..policy.n_max).map(|_| -> Result<Checkpoint, AllocError> {
            let state = state.map(StateBuf::zeroed).transpose()?;
            Ok(Checkpoint {
                position: 0,
                purpose: Purpose::Truncation,
                state,
                tail: RowRing::zeroed(tail_len, conv_dim)?,
            })
        });
        let free: Result<Vec<Checkpoint>, AllocError> = copies.collect();
        Ok(Self { policy, held: Vec::with_capacity(policy.n_max), free: free? })
    }

    #[cfg(test)]
    pub(super) fn policy(&self) -> &CheckpointPolicy {
        &self.policy
    }

    pub(super) fn size_bytes(&self) -> usize {
        let copies = self.held.iter().chain(&self.free);
        copies.map(|copy| copy.state.as_ref().map_or(0, StateBuf::size_bytes) + copy.tail.size_bytes()).sum()
    }

    /// Whether an automatic checkpoint is due at `position`.
    pub(super) fn is_due(&self, position: usize) -> bool {
        let last = self.held.last().map_or(0, |last| last.position);
        let spacing = self.policy.spacing_min.max(position / self.policy.spacing_share.max(1));
        self.policy.n_max > 0 && position.saturating_sub(last) >= spacing
    }

    /// A checkpoint at `position`, to be filled. `None` if there is one already, or there may be no other.
    pub(super) fn add(&mut self, position: usize, purpose: Purpose) -> Option<&mut Checkpoint> {
        for held in self.held.iter_mut().filter(|held| held.purpose == purpose) {
            held.purpose = Purpose::Truncation;
        }
        if let Some(last) = self.held.last_mut() {
            assert!(last.position <= position, "position {position} after {}", last.position);
            if last.position == position {
                if purpose != Purpose::Truncation {
                    last.purpose = purpose;
                }
                return None;
            }
        }
        if self.free.is_empty() {
            let least = self.least_needed(position)?;
            self.free.push(self.held.remove(least));
        }
        let mut added = self.free.pop()?;
        (added.position, added.purpose) = (position, purpose);
        self.held.push(added);
        self.held.last_mut()
    }

    /// The checkpoint that goes for another one at `position`.
    fn least_needed(&self, position: usize) -> Option<usize> {
        let score = |i: usize| {
            let before = i.checked_sub(1).map_or(0, |i| self.held[i].position);
            let after = self.held.get(i + 1).map_or(position, |held| held.position);
            (after - before) as f64 / (position - before) as f64
        };
        let candidates = (0..self.held.len()).filter(|&i| self.held[i].purpose == Purpose::Truncation);
        // Of equal ones the first: it is the oldest.
        candidates.min_by(|&a, &b| score(a).total_cmp(&score(b)))
    }

    /// Forgets the checkpoints behind `position`, and returns the last one that is left.
    pub(super) fn truncate(&mut self, position: usize) -> Option<&Checkpoint> {
        while let Some(last) = self.held.pop_if(|last| last.position > position) {
            self.free.push(last);
        }
        self.held.last()
    }

    /// The checkpoint at `position` that was asked for.
    pub(super) fn asked_for(&self, position: usize) -> Option<&Checkpoint> {
        self.all_asked_for().find(|held| held.position == position)
    }

    /// Those that were asked for, in order of position.
    pub(super) fn all_asked_for(&self) -> impl Iterator<Item = &Checkpoint> {
        self.held.iter().filter(|held| held.purpose != Purpose::Truncation)
    }

    pub(super) fn clear(&mut self) {
        self.free.append(&mut self.held);
    }

    /// Copies the checkpoints of a layer of the same shape, the newest ones if it has more.
    pub(super) fn copy_from(&mut self, other: &Self) {
        self.clear();
        for from in &other.held[other.held.len().saturating_sub(self.policy.n_max)..] {
            let Some(mut to) = self.free.pop() else { return };
            (to.position, to.purpose) = (from.position, from.purpose);
            if let (Some(to), Some(from)) = (&mut to.state, &from.state) {
                to.copy_from(from);
            }
            for row in 0..to.tail.n_rows() {
                to.tail.row_mut(row).copy_from_slice(from.tail.row(row));
            }
            self.held.push(to);
        }
    }

    #[cfg(test)]
    pub(super) fn positions(&self) -> Vec<usize> {
        self.held.iter().map(|held| held.position).collect()
    }

    #[cfg(test)]
    pub(super) fn check_integrity(&self, end: usize) {
        assert_eq!(self.held.len() + self.free.len(), self.policy.n_max);
        assert!(self.positions().is_sorted_by(|a, b| a < b), "{:?}", self.positions());
        assert!(self.held.last().is_none_or(|last| last.position <= end), "{:?} of {end}", self.positions());
        for purpose in [Purpose::Prompt, Purpose::Snapshot] {
            assert!(self.held.iter().filter(|held| held.purpose == purpose).count() <= 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoints(policy: CheckpointPolicy) -> Checkpoints {
        Checkpoints::new(policy, None, 1, 1).unwrap()
    }

    /// Truncation by any number of positions recomputes at most as many as it drops, plus a spacing; and at most half of the text.
    #[test]
    fn a_truncation_recomputes_a_bounded_stretch() {
        for step in [1, 3, 17, 100, 512] {
            let mut all = checkpoints(CheckpointPolicy::default());
            for end in (step..60_000).step_by(step) {
                if all.is_due(end) {
                    all.add(end, Purpose::Truncation);
                }
                if end % 499 >= step {
                    continue;
                }
                all.check_integrity(end);
                let spacing = all.policy.spacing_min.max(end / all.policy.spacing_share) + step;
                let positions = all.positions();
                for len in (0..=end).step_by(61) {
                    let kept =
                        positions.iter().copied().filter(|&position| position <= len).max().unwrap_or(0);
                    let (recomputed, dropped) = (len - kept, end - len);
                    let most = (2 * dropped + spacing).min(end / 2 + spacing);
                    assert!(
                        recomputed <= most,
                        "{recomputed} of {dropped} dropped from {end}: {positions:?}"
                    );
                }
            }
            assert_eq!(all.held.len(), 4);
        }
    }

    #[test]
    fn the_one_that_was_asked_for_stays() {
        let mut all = checkpoints(CheckpointPolicy { n_max: 3, spacing_min: 10, spacing_share: 1000 });
        all.add(55, Purpose::Prompt);
        for position in (60..1000).filter(|position| position % 10 == 0) {
            all.add(position, Purpose::Truncation);
            assert!(all.positions().contains(&55), "{:?}", all.positions());
            all.check_integrity(position);
        }
        all.add(1000, Purpose::Prompt);
        for position in (1010..2000).filter(|position| position % 10 == 0) {
            all.add(position, Purpose::Truncation);
            assert!(all.positions().contains(&1000), "{:?}", all.positions());
        }
        assert!(!all.positions().contains(&55));
        // One of another purpose does not take its place.
        all.add(2000, Purpose::Snapshot);
        for position in (2010..3000).filter(|position| position % 10 == 0) {
            all.add(position, Purpose::Truncation);
            let asked_for: Vec<usize> = all.all_asked_for().map(|held| held.position).collect();
            assert_eq!(asked_for, [1000, 2000]);
            all.check_integrity(position);
        }
        assert_eq!(all.truncate(999).map(|last| last.position), None);
        assert_eq!(all.free.len(), 3);
    }

    #[test]
    fn none_is_never_due() {
        let mut none = checkpoints(CheckpointPolicy::NONE);
        assert!(!none.is_due(usize::MAX) && none.add(3, Purpose::Prompt).is_none());
        let mut one = checkpoints(CheckpointPolicy { n_max: 1, ..CheckpointPolicy::default() });
        assert!(
            one.add(3, Purpose::Prompt).is_some()
                && one.add(3, Purpose::Truncation).is_none()
                && one.add(7, Purpose::Truncation).is_none()
        );
        assert!(one.add(7, Purpose::Prompt).is_some());
        assert_eq!(one.positions(), [7]);
    }
}
