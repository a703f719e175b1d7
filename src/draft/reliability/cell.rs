//! The sums of judged claims of one kind, and sets of such cells.

use crate::draft::evidence::{
    Agreement, DEPTHS, Evidence, MATCH_LENS, PROBABILITIES, depth_bucket, match_len_bucket,
    probability_bucket,
};

/// Cells of a source.
pub(super) const N_CELLS: usize = Agreement::COUNT * MATCH_LENS * PROBABILITIES * DEPTHS;

/// The sums of judged claims.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) hits: f32,
    pub(super) expected: f32,
    /// Number of times that the sums were halved, since the start of the generation or, outside a generation,
    /// since the engine was loaded. The sums of that time now count `2^-n_halvings`. (A factor instead would
    /// reach 0 in an engine that runs for days.)
    pub(super) n_halvings: f32,
}

/// Index of the cell of a claim.
pub(super) fn cell_index(evidence: &Evidence) -> usize {
    let by_len = evidence.agreement as usize * MATCH_LENS + match_len_bucket(evidence.match_len);
    (by_len * PROBABILITIES + probability_bucket(evidence.probability)) * DEPTHS
        + depth_bucket(evidence.depth)
}

impl Cell {
    pub(super) const EMPTY: Cell = Cell { hits: 0.0, expected: 0.0, n_halvings: 0.0 };

    /// A cell with the given sums of hits and expected hits.
    pub(super) fn checked((hits, expected): (f32, f32), hits_max: f32) -> Result<Self, &'static str> {
        // NaN is not in any range.
        let is_sum = |sum: f32| (0.0..=hits_max).contains(&sum);
        match is_sum(hits) && is_sum(expected) {
            true => Ok(Cell { hits, expected, n_halvings: 0.0 }),
            false => Err("sums of hits are not in their range"),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        (self.hits, self.expected) == (0.0, 0.0)
    }

    pub(super) fn add(&mut self, hit: bool, expected: f32, hits_max: f32) {
        self.expected += expected;
        self.hits += f32::from(u8::from(hit));
        self.bound(hits_max);
    }

    pub(super) fn fade(&mut self, factor: f32) {
        self.hits *= factor;
        self.expected *= factor;
        self.n_halvings -= factor.log2();
    }

    pub(super) fn halve(&mut self) {
        self.fade(0.5);
    }

    pub(super) fn bound(&mut self, hits_max: f32) {
        if self.expected.max(self.hits) > hits_max {
            self.halve();
        }
    }

    /// This cell plus the evidence between `base` and `theirs`. Halvings between the two apply here too.
    pub(super) fn merged(self, base: Cell, theirs: Cell, hits_max: f32) -> Cell {
        // If there are fewer than in `base`, the app has replaced the table, so nothing is known to have
        // faded.
        let n_theirs = (theirs.n_halvings - base.n_halvings).max(0.0);
        let n_halvings = self.n_halvings + n_theirs;
        if (self.hits, self.expected) == (base.hits, base.expected) {
            return Cell { n_halvings, ..theirs };
        }
        let kept = (-n_theirs).exp2();
        let add = |mine: f32, base: f32, theirs: f32| mine * kept + (theirs - base * kept).max(0.0);
        let mut merged = Cell {
            hits: add(self.hits, base.hits, theirs.hits),
            expected: add(self.expected, base.expected, theirs.expected),
            n_halvings,
        };
        merged.bound(hits_max);
        merged
    }
}

/// A set of cells of a source.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct CellSet([u64; N_CELLS.div_ceil(64)]);

impl CellSet {
    pub(super) const EMPTY: CellSet = CellSet([0; N_CELLS.div_ceil(64)]);

    pub(super) fn insert(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    pub(super) fn contains(&self, at: usize) -> bool {
        self.0[at / 64] & (1 << (at % 64)) != 0
    }

    /// The indices of its cells, ascending.
    pub(super) fn to_stored(self) -> Vec<u16> {
        (0..N_CELLS).filter(|&at| self.contains(at)).map(|at| at as u16).collect()
    }

    pub(super) fn from_stored(cells: &[u16]) -> Result<Self, &'static str> {
        if !cells.is_sorted_by(|a, b| a < b) || cells.last().is_some_and(|&at| usize::from(at) >= N_CELLS) {
            return Err("the cells since the last sweep do not rise, or there are too many");
        }
        let mut set = Self::EMPTY;
        cells.iter().for_each(|&at| set.insert(usize::from(at)));
        Ok(set)
    }
}
