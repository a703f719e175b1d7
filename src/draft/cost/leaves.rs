//! Cost that the leaves of a tree add to its verification, learned per shape, for profiles with prices of leaves.
//!
//! A step costs `t_verify(rows, leaves)` (Lever, eq. 4). The measurement at load time covers chains, which
//! have one leaf. The cost of further leaves is learned from verified trees, over a grid of shapes in powers
//! of two of rows and of leaves:
//!
//! ```text
//! added(shape) = (leaves − 1) · (max(per_leaf(shape), 0) + UNSEEN_PER_LEAF / (1 + evidence(shape)))
//!     evidence = Σ n(s) · w(distance to s)              over the shapes s that were seen, n(s) times; w(0) = 1
//!     per_leaf = from its own steps                     of a shape that was seen
//!              = Σ n(s) · w · per_leaf(s) / evidence    of any other, and at least the nearest shape's
//! ```
//!
//! The added cost is smoothed so that it rises with rows and with leaves, and interpolated between the shapes
//! of the grid.
//!
//! The grid stores a cost per leaf, so the value learned for one shape is valid for its neighbours too. Costs
//! are in units of a one-row step, so heat, which slows everything, does not change them.

use refrain_trees::VERIFY_ROWS_MAX;

/// Classes of rows, and of leaves: 1, 2, 4, … [`VERIFY_ROWS_MAX`].
const N_CLASSES: usize = VERIFY_ROWS_MAX.ilog2() as usize + 1;

/// Assumed cost of a leaf if no similar shape was seen, in one-row steps. Measured (`benches/RESULTS.md`), it
/// is −0.2 to 3 % depending on the shape, without a clear rule. On replayed responses, with the measured
/// profile of a 1.5B model, a thousandth reduces the drafted rows by 0.3 % and does not change the speed.
const UNSEEN_PER_LEAF: f32 = 1.0 / 1024.0;

/// Maximum cost of a leaf, in one-row steps: a path would cost no more in a batch of its own.
const PER_LEAF_MAX: f32 = 1.0;

/// Share of an unexpected time that is attributed to leaves: half of `GLOBAL_RATE`, because the two cannot be
/// separated while steps are alike. In simulation the costs converge within several hundred steps.
const RATE: f32 = 1.0 / 16.0;

/// After this many consecutive steps with one leaf …
const FADING_STEPS: u8 = 64;
/// … costs fade by this share. Leaves that were estimated too expensive are otherwise never drafted again, so
/// their cost would never be corrected.
const FADING: f32 = 1.0 / 4.0;

/// Weight of a step for a shape this many classes away: a quarter per class.
const NEARNESS: [f32; 2 * N_CLASSES] = {
    let mut nearness = [1.0; 2 * N_CLASSES];
    let mut distance = 1;
    while distance < nearness.len() {
        nearness[distance] = nearness[distance - 1] / 4.0;
        distance += 1;
    }
    nearness
};

/// Costs of leaves by shape. Size: 600 bytes.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct LeafCosts {
    /// By class of rows, then of leaves. A single leaf adds nothing, so the first column stays empty.
    cells: [[Cell; N_CLASSES]; N_CLASSES],
    /// Added cost of each shape, in one-row steps: zero in the first column, rising with rows and with
    /// leaves.
    added: [[f32; N_CLASSES]; N_CLASSES],
    /// Steps since the last step with several leaves, or since costs faded.
    n_straight: u8,
}

/// The evidence for a shape.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
struct Cell {
    /// Cost of a leaf, in one-row steps. May be negative, so that noise averages out.
    per_leaf: f32,
    /// Number of steps with this shape.
    n_seen: u8,
}

/// The prices of one cost profile.
#[derive(Clone, Debug)]
pub(super) struct LeafPrices {
    pub(super) costs: LeafCosts,
    /// Cost that 1, 2, 4, … leaves add to each number of rows, in one-row steps.
    added: [[f32; N_CLASSES]; VERIFY_ROWS_MAX],
}

impl Default for LeafPrices {
    fn default() -> Self {
        Self { costs: LeafCosts::unknown(), added: [[0.0; N_CLASSES]; VERIFY_ROWS_MAX] }
    }
}

impl LeafPrices {
    /// Looks the added costs up, which already rise with rows and with leaves. `batch_lens` are the batch lengths of 1, 2, … rows.
    pub(super) fn fill(&mut self, batch_lens: &[usize; VERIFY_ROWS_MAX]) {
        self.added = batch_lens.map(|len| self.costs.added_by_class(len));
    }

    /// Multiplies the added costs, until they are looked up again.
    pub(super) fn scale(&mut self, factor: f32) {
        self.added.as_flattened_mut().iter_mut().for_each(|added| *added *= factor);
    }

    /// Cost that `leaves` leaves add to `rows` rows, in one-row steps.
    pub(super) fn added_to(&self, rows: usize, leaves: usize) -> f32 {
        let (class, weight) = place(leaves.min(rows));
        let of_rows = &self.added[rows.min(VERIFY_ROWS_MAX) - 1];
        of_rows[class] + weight * (of_rows[class + 1] - of_rows[class])
    }
}

impl LeafCosts {
    /// Costs without evidence.
    fn unknown() -> Self {
        let mut costs = LeafCosts { cells: Default::default(), added: Default::default(), n_straight: 0 };
        costs.fill_added();
        costs
    }

    /// Cost that `leaves` leaves add to a batch of `rows` rows, in one-row steps.
    pub(super) fn added(&self, rows: usize, leaves: usize) -> f32 {
        let (class, weight) = place(leaves);
        let added = self.added_by_class(rows);
        added[class] + weight * (added[class + 1] - added[class])
    }

    /// Cost that 1, 2, 4, … leaves add to a batch of `rows` rows, in one-row steps. Constant for rows beyond
    /// the largest class.
    fn added_by_class(&self, rows: usize) -> [f32; N_CLASSES] {
        let (class, weight) = place(rows);
        let (fewer, more) = (&self.added[class], &self.added[class + 1]);
        std::array::from_fn(|leaf_class| fewer[leaf_class] + weight * (more[leaf_class] - fewer[leaf_class]))
    }

    /// Learns from a step of this shape. `surprise` is its excess over the time expected from the steps
    /// before it, in one-row steps. Returns `true` if the costs of leaves changed.
    pub(super) fn observe(&mut self, rows: usize, leaves: usize, surprise: f32) -> bool {
        if leaves < 2 {
            self.n_straight += 1;
            if self.n_straight < FADING_STEPS {
                return false;
            }
            self.n_straight = 0;
            self.cells.as_flattened_mut().iter_mut().for_each(|cell| cell.per_leaf *= 1.0 - FADING);
        } else {
            self.n_straight = 0;
            let (row_class, leaf_class) = (nearest_class(rows), nearest_class(leaves));
            let (expected, _) = Seen::new(&self.cells).estimate(row_class, leaf_class);
            let learnt = expected + RATE * surprise / (leaves - 1) as f32;
            let cell = &mut self.cells[row_class][leaf_class];
            cell.per_leaf = learnt.clamp(-PER_LEAF_MAX, PER_LEAF_MAX);
            cell.n_seen = cell.n_seen.saturating_add(1);
        }
        self.fill_added();
        true
    }

    /// Computes the added costs: the mean of the two tightest monotone envelopes (the maximum over smaller
    /// shapes, the minimum over larger ones), which smooths noise.
    fn fill_added(&mut self) {
        let seen = Seen::new(&self.cells);
        let mut most = [[0.0; N_CLASSES]; N_CLASSES];
        for (row_class, added) in most.iter_mut().enumerate() {
            let (possible, beyond) = added.split_at_mut(row_class + 1);
            for (leaf_class, added) in possible.iter_mut().enumerate().skip(1) {
                let (per_leaf, evidence) = seen.estimate(row_class, leaf_class);
                let price = per_leaf.max(0.0) + UNSEEN_PER_LEAF / (1.0 + evidence);
                *added = ((1 << leaf_class) - 1) as f32 * price;
            }
            // No batch has more leaves than rows. These cells only end the interpolation to the last possible
            // shape, and raise nothing.
            beyond.fill(possible[row_class]);
        }
        let mut least = most;
        for row in 0..N_CLASSES {
            for column in 0..N_CLASSES {
                let smaller = most[row.saturating_sub(1)][column].max(most[row][column.saturating_sub(1)]);
                most[row][column] = smaller.max(most[row][column]);
            }
        }
        for row in (0..N_CLASSES).rev() {
            for column in (0..N_CLASSES).rev() {
                let (below, right) = ((row + 1).min(N_CLASSES - 1), (column + 1).min(N_CLASSES - 1));
                least[row][column] = least[row][column].min(least[below][column]).min(least[row][right]);
                self.added[row][column] = 0.5 * (most[row][column] + least[row][column]);
            }
        }
    }
}

/// The observed shapes, with their classes of rows and of leaves.
struct Seen {
    shapes: [(usize, usize, Cell); N_CLASSES * N_CLASSES],
    n: usize,
}

impl Seen {
    fn new(cells: &[[Cell; N_CLASSES]; N_CLASSES]) -> Self {
        let mut seen = Seen { shapes: [(0, 0, Cell::default()); N_CLASSES * N_CLASSES], n: 0 };
        for (row_class, cells) in cells.iter().enumerate() {
            for (leaf_class, &cell) in cells.iter().enumerate().filter(|(_, cell)| cell.n_seen > 0) {
                seen.shapes[seen.n] = (row_class, leaf_class, cell);
                seen.n += 1;
            }
        }
        seen
    }

    /// Estimated cost of a leaf of a shape, and the evidence: the observed steps, weighted by nearness.
    fn estimate(&self, row_class: usize, leaf_class: usize) -> (f32, f32) {
        let (mut evidence, mut sum) = (0.0, 0.0);
        let (mut nearest, mut distance_min) = (0.0, usize::MAX);
        for &(rows, leaves, Cell { per_leaf, n_seen }) in &self.shapes[..self.n] {
            let distance = row_class.abs_diff(rows) + leaf_class.abs_diff(leaves);
            let weight = f32::from(n_seen) * NEARNESS[distance];
            evidence += weight;
            sum += weight * per_leaf;
            if distance < distance_min || (distance == distance_min && per_leaf > nearest) {
                (nearest, distance_min) = (per_leaf, distance);
            }
        }
        let is_inferred = distance_min > 0 && evidence > 0.0;
        (if is_inferred { f32::max(nearest, sum / evidence) } else { nearest }, evidence)
    }
}

/// The class of a number of rows or of leaves (at most the last but one), and the fraction of the way to the
/// next class.
#[inline]
fn place(n: usize) -> (usize, f32) {
    let n = n.clamp(1, VERIFY_ROWS_MAX);
    let class = (n.ilog2() as usize).min(N_CLASSES - 2);
    (class, n as f32 / (1 << class) as f32 - 1.0)
}

fn nearest_class(n: usize) -> usize {
    let (class, weight) = place(n);
    class + usize::from(weight >= 0.5)
}
