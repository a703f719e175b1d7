//! The rows of a pass, and the hook that inspects and drops rows between two layers.

use std::ops::Range;

use crate::kernels::Visible;
use crate::model::batch::Batch;
use std::time::Duration;

use crate::model::compute::Compute;

/// A hook that inspects the rows of a pass before one of the layers and may drop some of them.
pub trait Interlude {
    /// The layer before which [`look`](Self::look) is called, counted from 0. It is not called if the model
    /// has no such layer.
    fn layer_idx(&self) -> usize;

    /// Receives the residual stream, `[n_rows, hidden_dim]`, and the numbers of all rows in `kept`. Rows
    /// removed from `kept` are dropped: the remaining layers neither compute nor write anything for them.
    ///
    /// The remaining numbers must be strictly rising. If a row is kept, every row of the batch that it sees
    /// must be kept; padding may be removed.
    fn look(&mut self, compute: Compute<'_>, hidden: &[f32], kept: &mut Vec<u32>);
}

/// Work for the time in which a pass waits for weights from flash.
pub trait Meanwhile {
    /// Does a part of the work whose expected time is at most `budget`, after which the next weights would be late; `false` if there is
    /// none.
    fn work(&mut self, budget: Duration) -> bool;
}

impl<M: Meanwhile + ?Sized> Meanwhile for &mut M {
    fn work(&mut self, budget: Duration) -> bool {
        (**self).work(budget)
    }
}

/// Rows of a pass that were computed before, up to one of the layers: their keys and values in the layers before it are in the cache
/// already.
#[derive(Debug, Clone, Copy)]
pub struct KeptRows<'a> {
    /// The layer before which the rows join the pass, 1 or more.
    pub layer_idx: usize,
    /// Numbers of the rows in the batch, strictly rising.
    pub rows: &'a [u32],
    /// Their residual streams before that layer, `[rows.len(), hidden_dim]`.
    pub hidden: &'a [f32],
}

/// What a pass calls on its way, and what it is given beside its batch.
#[derive(Default)]
pub struct Hooks<'a> {
    /// Before one of the layers.
    pub interlude: Option<&'a mut dyn Interlude>,
    /// While a layer is read from flash.
    pub meanwhile: Option<&'a mut dyn Meanwhile>,
    /// Rows that the first layers leave out.
    pub kept: Option<KeptRows<'a>>,
}

/// The rows that a pass, or one call of a static graph, computes.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    /// The cache slot of each row. Rows behind the last slot are padding of a static graph.
    pub(super) slots: &'a [u32],
    /// `[n_rows]`
    pub(super) positions: &'a [u32],
    /// `[n_rows]`
    pub(super) visible: &'a [Visible<'a>],
    /// The first row of each part of the pass.
    pub(super) starts: &'a [usize],
}

impl<'a> Rows<'a> {
    /// The rows of each part, and their numbers.
    pub(super) fn by_part(&self) -> impl Iterator<Item = (Range<usize>, Rows<'a>)> {
        let Self { slots, positions, visible, starts } = *self;
        starts.iter().enumerate().map(move |(part, &start)| {
            let end = starts.get(part + 1).copied().unwrap_or(positions.len());
            let own = Rows {
                slots: &slots[start..end.min(slots.len())],
                positions: &positions[start..end],
                visible: &visible[start..end],
                starts: &[0],
            };
            (start..end, own)
        })
    }

    /// The part that contains a row.
    pub(super) fn part_of(&self, row: usize) -> usize {
        self.starts.partition_point(|&start| start <= row) - 1
    }
}

/// The rows that a pass still computes. Between passes the vectors are empty, and only their memory is kept.
#[derive(Default)]
pub(super) struct ActiveRows<'a> {
    /// Committed tokens before the first part.
    base: usize,
    slots: Vec<u32>,
    positions: Vec<u32>,
    visible: Vec<Visible<'a>>,
    /// The first row of each part.
    starts: Vec<usize>,
    /// Numbers of the active rows in the batch.
    kept: Vec<u32>,
    /// Whether each row of the batch is active; filled when rows are dropped.
    is_active: Vec<bool>,
    n_rows: usize,
}

impl<'a> ActiveRows<'a> {
    /// All rows of the batches, one part each; reuses the memory of an earlier pass.
    pub(super) fn all(batches: impl Iterator<Item = &'a Batch>, memory: ActiveRows<'_>) -> Self {
        let mut active = memory.recycled();
        for batch in batches {
            if active.starts.is_empty() {
                active.base = batch.base();
            }
            active.starts.push(active.slots.len());
            active.slots.extend((batch.base()..).map(|slot| slot as u32).take(batch.len()));
            active.positions.extend_from_slice(batch.positions());
            active.visible.extend((0..batch.len()).map(|row| batch.visible(row)));
        }
        active.n_rows = active.slots.len();
        active.kept.extend(0..active.n_rows as u32);
        active
    }

    /// The emptied vectors, with another lifetime.
    pub(super) fn recycled<'b>(self) -> ActiveRows<'b> {
        let ActiveRows { mut slots, mut positions, mut visible, mut starts, mut kept, mut is_active, .. } =
            self;
        slots.clear();
        positions.clear();
        starts.clear();
        kept.clear();
        is_active.clear();
        visible.clear();
        // An empty vector is collected in place.
        let visible = visible.into_iter().map(|_| unreachable!("the vector is empty")).collect();
        ActiveRows { base: 0, slots, positions, visible, starts, kept, is_active, n_rows: 0 }
    }

    pub(super) fn rows(&self) -> Rows<'_> {
        Rows { slots: &self.slots, positions: &self.positions, visible: &self.visible, starts: &self.starts }
    }

    /// The numbers of the active rows.
    pub(super) fn kept(&self) -> &[u32] {
        &self.kept
    }

    /// The number of active rows.
    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Calls `interlude` with the residual stream `x`, `[len(), hidden_dim]`, and closes the gaps of the
    /// dropped rows.
    ///
    /// # Panics
    /// If the interlude breaks its contract.
    pub(super) fn look(
        &mut self,
        interlude: &mut dyn Interlude,
        compute: Compute<'_>,
        x: &mut Vec<f32>,
        hidden_dim: usize,
    ) {
        assert_eq!(self.starts.len(), 1, "rows of one part");
        assert_eq!(self.len(), self.n_rows, "rows are looked at once");
        interlude.look(compute, x, &mut self.kept);
        if self.len() == self.n_rows {
            return;
        }
        self.check();
        // The numbers rise, so no row is overwritten before it is moved.
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

    /// The active rows without those of `kept`.
    ///
    /// # Panics
    /// If the numbers of `kept` do not rise or are not those of active rows.
    pub(super) fn without(&self, kept: &KeptRows<'_>) -> ActiveRows<'a> {
        assert_eq!((self.starts.len(), self.len()), (1, self.n_rows), "all rows of one part");
        let mut fresh =
            ActiveRows { base: self.base, starts: vec![0], n_rows: self.n_rows, ..Default::default() };
        let mut left_out = kept.rows.iter().peekable();
        for (row, &number) in self.kept.iter().enumerate() {
            if left_out.next_if_eq(&&number).is_some() {
                continue;
            }
            fresh.kept.push(number);
            fresh.slots.push(self.slots[row]);
            fresh.positions.push(self.positions[row]);
            fresh.visible.push(self.visible[row]);
        }
        assert!(left_out.next().is_none(), "kept rows {:?} of {}", kept.rows, self.n_rows);
        fresh
    }

    /// Puts the rows of `kept` beside the active ones into `x`, `[len(), hidden_dim]`, which then has all rows of the batch.
    pub(super) fn join(&self, kept: &KeptRows<'_>, x: &mut Vec<f32>, hidden_dim: usize) {
        self.put_back(x, hidden_dim);
        for (&row, hidden) in kept.rows.iter().zip(kept.hidden.chunks_exact(hidden_dim)) {
            x[row as usize * hidden_dim..][..hidden_dim].copy_from_slice(hidden);
        }
    }

    /// Panics if an active row sees a dropped one: it would read keys and values that no layer has written.
    fn check(&mut self) {
        self.is_active.clear();
        self.is_active.resize(self.n_rows, false);
        let mut next = 0;
        for &row in &self.kept {
            assert!(row >= next && (row as usize) < self.n_rows, "row {row} of {} kept rows", self.n_rows);
            next = row + 1;
            self.is_active[row as usize] = true;
            let Visible { prefix_len, extra } = self.visible[row as usize];
            let seen = (self.base..prefix_len).chain(extra.iter().map(|&slot| slot as usize));
            let left = seen.filter(|&slot| slot >= self.base).find(|&slot| !self.is_active[slot - self.base]);
            assert!(left.is_none(), "row {row} is kept and sees slot {left:?}, whose row is not");
        }
    }

    /// Moves the rows of `x`, `[len(), hidden_dim]`, back to their positions in the batch. Dropped rows
    /// become NaN, so that results computed from them are visibly invalid.
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
    use refrain_trees::TokenId;

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
        let mut active = ActiveRows::all(std::iter::once(&batch), ActiveRows::default());
        let pool = crate::kernels::Pool::new(1);
        let compute = Compute { kernels: crate::kernels::Kernels::detect(), pool: &pool };
        let mut x: Vec<f32> = (0..12).map(|i| i as f32).collect();
        active.look(&mut Keeps(kept), compute, &mut x, 2);
        let closed_up = x.clone();
        active.put_back(&mut x, 2);
        (active.slots.clone(), active.positions.clone(), closed_up, x)
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
    fn kept_rows_join_the_others_in_their_places() {
        let batch = batch();
        let active = ActiveRows::all(std::iter::once(&batch), ActiveRows::default());
        for rows in [&[0u32, 1, 4][..], &[], &[5], &[0, 1, 2, 3, 4, 5]] {
            let value = |row: u32| [row as f32, row as f32 + 0.5];
            let hidden: Vec<f32> = rows.iter().flat_map(|&row| value(row)).collect();
            let kept = KeptRows { layer_idx: 1, rows, hidden: &hidden };
            let fresh = active.without(&kept);
            let others: Vec<u32> = (0..6).filter(|row| !rows.contains(row)).collect();
            assert_eq!(fresh.kept(), others);
            assert_eq!(fresh.slots, others.iter().map(|row| 7 + row).collect::<Vec<_>>());
            let positions = others.iter().map(|&row| batch.positions()[row as usize]);
            assert_eq!(fresh.positions, positions.collect::<Vec<_>>());
            let mut x: Vec<f32> = others.iter().flat_map(|&row| value(row)).collect();
            fresh.join(&kept, &mut x, 2);
            assert_eq!(x, (0..6).flat_map(value).collect::<Vec<_>>(), "{rows:?}");
        }
    }

    #[test]
    #[should_panic(expected = "kept rows [1, 9] of 6")]
    fn a_kept_row_is_one_of_the_batch() {
        let batch = batch();
        let active = ActiveRows::all(std::iter::once(&batch), ActiveRows::default());
        active.without(&KeptRows { layer_idx: 1, rows: &[1, 9], hidden: &[0.0; 4] });
    }

    #[test]
    #[should_panic(expected = "row 3 is kept and sees slot Some(8)")]
    fn a_row_is_active_with_its_ancestors_only() {
        look(&[0, 3]);
    }
}
