//! The rows of a pass on their way through the layers, and a look at them between two layers.

use crate::kernels::Visible;
use crate::model::batch::Batch;
use crate::model::transformer::Compute;

/// Looks at the rows of a pass before one of the layers, and says which of them go on.
pub trait Interlude {
    /// The layer before which the rows are looked at, counted from 0. Where the model has no such layer they are not.
    fn layer_idx(&self) -> usize;

    /// Receives the residual stream, `[n_rows, hidden_dim]`. `kept` holds the numbers of all rows; those that are taken out go
    /// no further: the layers from here on neither compute nor write anything for them.
    ///
    /// What is left must rise, and with a row all rows of the batch that it sees must be left; padding may be taken out.
    fn look(&mut self, compute: Compute<'_>, hidden: &[f32], kept: &mut Vec<u32>);
}

/// The rows that a pass, or one call of a static graph, takes through layers.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// The cache slot of each row; rows behind them are padding of a static graph.
    pub(super) slots: &'a [u32],
    /// `[n_rows]`
    pub(super) positions: &'a [u32],
    /// `[n_rows]`
    pub(super) visible: &'a [Visible<'a>],
}

/// The rows that a pass still takes on. Between passes the vectors are empty, kept for their memory.
#[derive(Default)]
pub(super) struct Going<'a> {
    base: usize,
    slots: Vec<u32>,
    positions: Vec<u32>,
    visible: Vec<Visible<'a>>,
    /// Their numbers in the batch.
    kept: Vec<u32>,
    /// Whether each row of the batch goes on; filled when some do not.
    goes_on: Vec<bool>,
    n_rows: usize,
}

impl<'a> Going<'a> {
    /// All rows of `batch`, in the memory of an earlier pass.
    pub(super) fn all(batch: &'a Batch, memory: Going<'_>) -> Self {
        let mut going = memory.recycled();
        (going.base, going.n_rows) = (batch.base(), batch.len());
        going.slots.extend((batch.base()..).map(|slot| slot as u32).take(batch.len()));
        going.positions.extend_from_slice(batch.positions());
        going.visible.extend((0..batch.len()).map(|row| batch.visible(row)));
        going.kept.extend(0..batch.len() as u32);
        going
    }

    /// The same vectors without their rows, for another lifetime.
    pub(super) fn recycled<'b>(self) -> Going<'b> {
        let Going { mut slots, mut positions, mut visible, mut kept, mut goes_on, .. } = self;
        slots.clear();
        positions.clear();
        kept.clear();
        goes_on.clear();
        visible.clear();
        // The collection is in place.
        let visible = visible.into_iter().map(|_| unreachable!("the vector is empty")).collect();
        Going { base: 0, slots, positions, visible, kept, goes_on, n_rows: 0 }
    }

    pub(super) fn rows(&self) -> Rows<'_> {
        Rows { slots: &self.slots, positions: &self.positions, visible: &self.visible }
    }

    /// How many rows go on.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Lets `interlude` look at the residual stream `x`, `[len(), hidden_dim]`, and closes up the rows that go on.
    ///
    /// # Panics
    /// The interlude breaks its contract.
    pub(super) fn look(
        &mut self,
        interlude: &mut dyn Interlude,
        compute: Compute<'_>,
        x: &mut Vec<f32>,
        hidden_dim: usize,
    ) {
        assert_eq!(self.len(), self.n_rows, "rows are looked at once");
        interlude.look(compute, x, &mut self.kept);
        if self.len() == self.n_rows {
            return;
        }
        self.check();
        // Rising numbers: nothing is overwritten that is still to be moved.
        for (to, &from) in self.kept.iter().enumerate() {
            let from = from as usize;
            self.slots[to] = self.slots[from];
            self.positions[to] = self.positions[from];
            self.visible[to] = self.visible[from];
            x.copy_within(from * hidden_dim..(from + 1) * hidden_dim, to * hidden_dim);
        }
        self.slots.truncate(self.kept.len());
        self.positions.truncate(self.kept.len());
        self.visible.truncate(self.kept.len());
        x.truncate(self.kept.len() * hidden_dim);
    }

    /// A row that saw one which was left behind would read keys and values that no layer has written.
    fn check(&mut self) {
        self.goes_on.clear();
        self.goes_on.resize(self.n_rows, false);
        let mut next = 0;
        for &row in &self.kept {
            assert!(row >= next && (row as usize) < self.n_rows, "row {row} of {} kept rows", self.n_rows);
            next = row + 1;
            self.goes_on[row as usize] = true;
            let Visible { prefix_len, extra } = self.visible[row as usize];
            let seen = (self.base..prefix_len).chain(extra.iter().map(|&slot| slot as usize));
            let left = seen.filter(|&slot| slot >= self.base).find(|&slot| !self.goes_on[slot - self.base]);
            assert!(left.is_none(), "row {row} is kept and sees slot {left:?}, whose row is not");
        }
    }

    /// Puts the rows of `x`, `[len(), hidden_dim]`, back to their places in the batch. What stands in the places of rows that
    /// were left behind is not a number: nothing computed from it could pass for a result.
    pub(super) fn put_back(&self, x: &mut Vec<f32>, hidden_dim: usize) {
        if self.len() == self.n_rows {
            return;
        }
        x.resize(self.n_rows * hidden_dim, f32::NAN);
        let mut end = self.n_rows;
        for (from, &to) in self.kept.iter().enumerate().rev() {
            let to = to as usize;
            x.copy_within(from * hidden_dim..(from + 1) * hidden_dim, to * hidden_dim);
            x[(to + 1) * hidden_dim..end * hidden_dim].fill(f32::NAN);
            end = to;
        }
        x[..end * hidden_dim].fill(f32::NAN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenId;

    /// A root with the children 1 and 2, the leaf 3 under 1, 4 under 2, and a padding row.
    fn batch() -> Batch {
        let mut batch = Batch::new();
        batch.set_tree(7, &[TokenId(0); 5], &[0, 0, 0, 1, 2], 6);
        batch
    }

    struct Keeps(&'static [u32]);

    impl Interlude for Keeps {
        fn layer_idx(&self) -> usize {
            1
        }

        fn look(&mut self, _: Compute<'_>, _: &[f32], kept: &mut Vec<u32>) {
            kept.retain(|row| self.0.contains(row));
        }
    }

    fn look(kept: &'static [u32]) -> (Vec<u32>, Vec<u32>, Vec<f32>, Vec<f32>) {
        let batch = batch();
        let mut going = Going::all(&batch, Going::default());
        let pool = crate::kernels::Pool::new(1);
        let compute = Compute { kernels: crate::kernels::Kernels::detect(), pool: &pool };
        let mut x: Vec<f32> = (0..12).map(|i| i as f32).collect();
        going.look(&mut Keeps(kept), compute, &mut x, 2);
        let closed_up = x.clone();
        going.put_back(&mut x, 2);
        (going.slots.clone(), going.positions.clone(), closed_up, x)
    }

    #[test]
    fn rows_close_up_and_come_back_to_their_places() {
        let (slots, positions, closed_up, x) = look(&[0, 2, 4]);
        assert_eq!((slots, positions), (vec![7, 9, 11], vec![7, 8, 9]));
        assert_eq!(closed_up, [0.0, 1.0, 4.0, 5.0, 8.0, 9.0]);
        let shown: Vec<Option<f32>> = x.iter().map(|&x| (!x.is_nan()).then_some(x)).collect();
        let row = |a: f32| [Some(a), Some(a + 1.0)];
        assert_eq!(shown, [row(0.0), [None; 2], row(4.0), [None; 2], row(8.0), [None; 2]].concat());
        let (slots, _, _, x) = look(&[0, 1, 2, 3, 4, 5]);
        assert_eq!(slots, [7, 8, 9, 10, 11, 12]);
        assert!(x.iter().all(|x| !x.is_nan()));
    }

    #[test]
    #[should_panic(expected = "row 3 is kept and sees slot Some(8)")]
    fn a_row_goes_on_with_its_ancestors_only() {
        look(&[0, 3]);
    }
}
