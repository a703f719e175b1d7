//! Gathers rows of a packed matrix into a small one.
//!
//! A product with the gathered matrix has the bits of the product with the whole matrix: the sum of a lane
//! depends on its own weights only, and rows are copied lane by lane without change.

use super::aligned::{AlignedBuf, Line};
use super::block::BlockType;
use super::layout::{LayoutInfo, PANEL_ROWS};
use super::packed::{PackError, PackedMatrix};
use super::panels::Panels;

/// How a line holds its 16 rows.
#[derive(Clone, Copy)]
enum Lanes {
    /// Four bytes per row: codes of four columns, or one f32.
    Words,
    /// Two halves of 16 two-byte numbers.
    Halves,
    /// Four quarters of 16 bytes.
    Quarters,
}

impl PackedMatrix {
    /// An empty matrix of the same type and columns, with room for `n_rows_max` rows. Unused room takes no memory.
    ///
    /// # Errors
    /// [`PackError::Alloc`].
    pub fn empty_like(&self, n_rows_max: usize) -> Result<Self, PackError> {
        let n_lines = self.panel_lines.saturating_mul(n_rows_max.div_ceil(PANEL_ROWS));
        let data = Panels::Owned(AlignedBuf::zeroed(n_lines)?);
        Ok(PackedMatrix { n_rows: 0, data, ..*self })
    }

    /// Appends row `row` of `from`; `false` if there is no room.
    ///
    /// # Panics
    /// If `from` has no such row, or another type or number of columns, or `self` is mapped.
    pub fn push_row_of(&mut self, from: &PackedMatrix, row: usize) -> bool {
        assert!(row < from.n_rows, "row {row} of {}", from.n_rows);
        assert_eq!((self.ty, self.n_cols), (from.ty, from.n_cols), "type and columns");
        let Panels::Owned(data) = &mut self.data else { panic!("rows are added to a matrix in memory") };
        let start = self.n_rows / PANEL_ROWS * self.panel_lines;
        let Some(panel) = data.lines_mut().get_mut(start..start + self.panel_lines) else { return false };
        let (to_lane, from_lane) = (self.n_rows % PANEL_ROWS, row % PANEL_ROWS);
        let layout = self.ty.layout();
        for (i, (to, from)) in panel.iter_mut().zip(from.panel(row / PANEL_ROWS)).enumerate() {
            copy_lane(lanes(self.ty, layout, i), (from, from_lane), (to, to_lane));
        }
        self.n_rows += 1;
        true
    }
}

/// How line `i` of a panel holds its rows (see `layout.rs`).
fn lanes(ty: BlockType, layout: Option<LayoutInfo>, i: usize) -> Lanes {
    let Some(info) = layout else {
        return if ty == BlockType::F32 { Lanes::Words } else { Lanes::Halves };
    };
    let n_code_lines = info.unit_blocks * info.block_lines;
    match (i % info.unit_lines).checked_sub(n_code_lines) {
        None => Lanes::Words,
        Some(line) if line < info.half_lines => Lanes::Halves,
        Some(_) => Lanes::Quarters,
    }
}

fn copy_lane(lanes: Lanes, (from, from_lane): (&Line, usize), (to, to_lane): (&mut Line, usize)) {
    match lanes {
        Lanes::Words => to.0.as_chunks_mut::<4>().0[to_lane] = from.0.as_chunks::<4>().0[from_lane],
        Lanes::Halves => {
            for (to, from) in to.halves_mut().iter_mut().zip(from.halves()) {
                to[to_lane] = from[from_lane];
            }
        }
        Lanes::Quarters => {
            for quarter in 0..4 {
                to.0[16 * quarter + to_lane] = from.0[16 * quarter + from_lane];
            }
        }
    }
}
