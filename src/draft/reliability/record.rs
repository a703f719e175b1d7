//! The record of one source, in memory and as stored.

use serde::{Deserialize, Serialize};

use super::cell::{Cell, CellSet, N_CELLS};
use super::drafted::DraftedShift;
use crate::draft::evidence::EvidenceClass;
use crate::draft::name::SourceName;

/// The record of one source.
#[derive(Clone, Debug)]
pub(super) struct SourceRecord {
    pub(super) name: SourceName,
    pub(super) class: EvidenceClass,
    /// Shape `[agreement, match length, probability, depth]`.
    pub(super) cells: Vec<Cell>,
    pub(super) since_sweep: SinceSweep,
    /// The hit rate of the source's likeliest claim, whatever its probability.
    pub(super) first: Cell,
    /// Not stored: it follows the text of the moment.
    pub(super) drafted: DraftedShift,
}

/// The state of a source between two sweeps.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct SinceSweep {
    pub(super) n_steps: u32,
    /// Cells whose claims were judged.
    pub(super) judged: CellSet,
    /// Cells with withheld claims.
    pub(super) withheld: CellSet,
}

/// A record as stored: its non-empty cells, in order of rising index.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(in crate::draft) struct StoredRecord {
    pub(super) name: SourceName,
    pub(super) class: EvidenceClass,
    /// Index, hits, expected hits.
    pub(super) cells: Vec<(u16, f32, f32)>,
    /// Hits, expected hits.
    pub(super) first: (f32, f32),
    /// Missing in files of earlier programs.
    #[serde(default)]
    pub(super) since_sweep: StoredSinceSweep,
}

/// [`SinceSweep`] as stored: a run may be shorter than the steps between two sweeps.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StoredSinceSweep {
    pub(super) n_steps: u32,
    /// Rising indices of cells.
    pub(super) judged: Vec<u16>,
    /// Rising indices of cells.
    pub(super) withheld: Vec<u16>,
}

/// Steps between two sweeps: several generations. A cell holds at most 128 expected hits; from this number,
/// claims without a hit return to a quarter of their prior in four sweeps.
pub(super) const SWEEP_STEPS: u32 = 256;

/// The longest name of a stored source, in bytes.
const NAME_BYTES_MAX: usize = 256;

impl SourceRecord {
    pub(super) fn new(name: SourceName, class: EvidenceClass) -> Self {
        SourceRecord {
            name,
            class,
            cells: vec![Cell::EMPTY; N_CELLS],
            since_sweep: SinceSweep::EMPTY,
            first: Cell::EMPTY,
            drafted: DraftedShift::NONE,
        }
    }

    pub(super) fn is_of(&self, name: &str, class: EvidenceClass) -> bool {
        self.name == *name && self.class == class
    }

    /// Approximate number of judged claims.
    pub(super) fn n_judged(&self) -> f32 {
        self.cells.iter().map(|cell| cell.expected).sum()
    }

    pub(super) fn sweep(&mut self) {
        let SinceSweep { judged, withheld, .. } = std::mem::replace(&mut self.since_sweep, SinceSweep::EMPTY);
        for (at, cell) in self.cells.iter_mut().enumerate() {
            if withheld.contains(at) && !judged.contains(at) {
                cell.halve();
            }
        }
    }

    pub(super) fn to_stored(&self) -> StoredRecord {
        let seen = self.cells.iter().enumerate().filter(|(_, cell)| !cell.is_empty());
        StoredRecord {
            name: self.name.clone(),
            class: self.class,
            cells: seen.map(|(at, cell)| (at as u16, cell.hits, cell.expected)).collect(),
            first: (self.first.hits, self.first.expected),
            since_sweep: self.since_sweep.to_stored(),
        }
    }

    pub(super) fn from_stored(stored: StoredRecord, hits_max: f32) -> Result<Self, &'static str> {
        let StoredRecord { name, class, cells, first, since_sweep } = stored;
        if name.as_str().is_empty() || name.as_str().len() > NAME_BYTES_MAX {
            return Err("a source has no name, or too long a one");
        }
        let mut record = Self::new(name, class);
        record.first = Cell::checked(first, hits_max)?;
        record.since_sweep = SinceSweep::from_stored(&since_sweep)?;
        if !cells.is_sorted_by(|a, b| a.0 < b.0) {
            return Err("the cells of a source do not rise");
        }
        for (at, hits, expected) in cells {
            let cell = record.cells.get_mut(usize::from(at)).ok_or("a source has too many cells")?;
            *cell = Cell::checked((hits, expected), hits_max)?;
        }
        Ok(record)
    }
}

impl SinceSweep {
    pub(super) const EMPTY: SinceSweep =
        SinceSweep { n_steps: 0, judged: CellSet::EMPTY, withheld: CellSet::EMPTY };

    fn to_stored(self) -> StoredSinceSweep {
        let SinceSweep { n_steps, judged, withheld } = self;
        StoredSinceSweep { n_steps, judged: judged.to_stored(), withheld: withheld.to_stored() }
    }

    fn from_stored(stored: &StoredSinceSweep) -> Result<Self, &'static str> {
        if stored.n_steps >= SWEEP_STEPS {
            return Err("a source has too many steps since its last sweep");
        }
        let [judged, withheld] = [&stored.judged, &stored.withheld].map(|cells| CellSet::from_stored(cells));
        Ok(SinceSweep { n_steps: stored.n_steps, judged: judged?, withheld: withheld? })
    }
}
