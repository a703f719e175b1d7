//! The cells of a measurement. Engines take turns, and the figure of a turn is the median of its passes.

use std::time::Instant;

use refrain_bench::tally::median;
use serde::Serialize;

use crate::engines::{BATCH_LEN, Engine, Logits, Result};

/// Contexts for decoding of one row.
pub const DECODE_CONTEXTS: [usize; 3] = [0, 1024, 4096];
/// Context of the verification batches.
pub const VERIFY_CONTEXT: usize = 512;
/// Rows of the verification batches.
pub const VERIFY_ROWS: [usize; 11] = [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64];
/// Context of the verification batches behind a long prompt.
pub const LONG_CONTEXT: usize = 4096;
/// Rows of these batches.
pub const LONG_ROWS: [usize; 5] = [1, 4, 8, 16, 32];
/// Rows and kept rows of the steps behind [`VERIFY_CONTEXT`] tokens.
pub const STEPS: [(usize, usize); 4] = [(4, 2), (8, 4), (16, 4), (16, 16)];
/// Steps that are measured together, so that work which a step leaves to the next one counts.
const N_STEPS: usize = 4;
/// Tokens of the prompts.
pub const PREFILL_LEN: usize = 512;
pub const LONG_PREFILL_LEN: usize = 4096;
/// Tokens in the context for the measurement of memory.
pub const CONTEXT_MEMORY: usize = 2048;
/// Required positions of a sequence.
pub const N_SLOTS: usize = 4096 + 64;

/// Seconds of a turn. The number of passes of a turn fits this time, and is at most [`PASSES_MAX`].
const TURN_SECONDS: f64 = 0.15;
const PASSES_MAX: usize = 20;

/// One cell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Cell {
    /// One row after `context` tokens, with its logits.
    Decode { context: usize },
    /// `rows` rows after `context` tokens, with the logits of all rows or of the last one.
    Verify { context: usize, rows: usize, all_logits: bool },
    /// A step of drafting: `rows` rows after [`VERIFY_CONTEXT`] tokens with the logits of all, of which the first `kept` stay. The mean of
    /// some steps behind each other.
    Step { rows: usize, kept: usize },
    /// A prompt of `len` tokens, up to the logits of its last token.
    Prefill { len: usize },
}

/// A kind of cell, for the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Kind {
    /// One row after 0, 1024 and 4096 tokens.
    Decode,
    /// 1 to 64 rows after 512 tokens.
    Verify,
    /// 4 to 16 rows after 512 tokens of which some are kept.
    Step,
    /// A prompt of 512 tokens.
    Prefill,
    /// 1 to 32 rows after 4096 tokens.
    LongVerify,
    /// A prompt of 4096 tokens.
    LongPrefill,
}

impl Cell {
    /// The cells of these kinds, from the shortest context to the longest: a cache is filled once.
    pub fn of_kinds(kinds: &[Kind]) -> Vec<Cell> {
        let mut cells = Vec::new();
        if kinds.contains(&Kind::Decode) {
            cells.extend(DECODE_CONTEXTS.map(|context| Cell::Decode { context }));
        }
        if kinds.contains(&Kind::Verify) {
            for all_logits in [true, false] {
                cells.extend(VERIFY_ROWS.map(|rows| Cell::verify(rows, all_logits)));
            }
        }
        if kinds.contains(&Kind::LongVerify) {
            cells.extend(LONG_ROWS.map(Cell::long_verify));
        }
        if kinds.contains(&Kind::Prefill) {
            cells.push(Cell::Prefill { len: PREFILL_LEN });
        }
        if kinds.contains(&Kind::LongPrefill) {
            cells.push(Cell::Prefill { len: LONG_PREFILL_LEN });
        }
        if kinds.contains(&Kind::Step) {
            cells.extend(STEPS.map(|(rows, kept)| Cell::Step { rows, kept }));
        }
        cells.sort_by_key(|cell| cell.context());
        cells
    }

    /// `rows` rows after [`VERIFY_CONTEXT`] tokens.
    pub fn verify(rows: usize, all_logits: bool) -> Cell {
        Cell::Verify { context: VERIFY_CONTEXT, rows, all_logits }
    }

    /// `rows` rows after [`LONG_CONTEXT`] tokens, with the logits of all.
    pub fn long_verify(rows: usize) -> Cell {
        Cell::Verify { context: LONG_CONTEXT, rows, all_logits: true }
    }

    /// Positions in the cache before a pass.
    pub fn context(self) -> usize {
        match self {
            Cell::Decode { context } | Cell::Verify { context, .. } => context,
            Cell::Step { .. } => VERIFY_CONTEXT,
            Cell::Prefill { .. } => 0,
        }
    }

    fn n_tokens(self) -> usize {
        match self {
            Cell::Decode { .. } => 1,
            Cell::Verify { rows, .. } => rows,
            Cell::Step { rows, kept } => (N_STEPS - 1) * kept + rows,
            Cell::Prefill { len } => len,
        }
    }

    /// Rows of a pass that are rolled back.
    fn n_rolled_back(self) -> usize {
        match self {
            Cell::Decode { .. } => 1,
            Cell::Verify { rows, .. } => rows,
            Cell::Step { rows, kept } => rows - kept,
            Cell::Prefill { .. } => 0,
        }
    }

    /// One pass, or several steps. The engine has [`Cell::context`] positions before it.
    fn run(self, engine: &mut dyn Engine, tokens: &[u32]) -> Result<()> {
        match self {
            Cell::Decode { .. } | Cell::Verify { all_logits: false, .. } => {
                engine.verify(tokens, Logits::Last)
            }
            Cell::Verify { all_logits: true, .. } => engine.verify(tokens, Logits::All),
            Cell::Step { rows, kept } => (0..N_STEPS).try_for_each(|step| {
                engine.verify(&tokens[step * kept..][..rows], Logits::All)?;
                engine.keep(kept)
            }),
            Cell::Prefill { .. } => engine.prefill(tokens),
        }
    }

    /// Takes back what [`run`](Self::run) added. The engine has marked its positions before it.
    fn undo(self, engine: &mut dyn Engine) -> Result<()> {
        match self {
            Cell::Decode { .. } | Cell::Verify { .. } => engine.keep(0),
            Cell::Step { .. } => engine.rewind(),
            Cell::Prefill { .. } => engine.clear(),
        }
    }

    /// Whether rows with the logits of all are rolled back.
    pub fn rolls_back(self) -> bool {
        matches!(self, Cell::Step { .. } | Cell::Verify { all_logits: true, context: VERIFY_CONTEXT, .. })
    }

    /// Steps of a pass.
    fn n_steps(self) -> usize {
        if let Cell::Step { .. } = self { N_STEPS } else { 1 }
    }
}

/// The times of one engine in one cell.
#[derive(Clone, Debug, Serialize)]
pub struct Times {
    pub engine: &'static str,
    /// Milliseconds of each turn, in the order taken.
    pub turns_ms: Vec<f64>,
}

impl Times {
    pub fn median_ms(&self) -> f64 {
        median(self.turns_ms.clone()).unwrap_or(f64::NAN)
    }

    pub fn min_ms(&self) -> f64 {
        self.turns_ms.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// Brings an engine that has the first `held` tokens of `text` to its first `len`.
pub fn fill(engine: &mut dyn Engine, text: &[u32], held: usize, len: usize) -> Result<()> {
    text[held..len].chunks(BATCH_LEN).try_for_each(|chunk| engine.prefill(chunk))
}

/// Measures one cell: `alternations` turns of each engine, one engine after the other. Before and after it, every
/// engine has the first [`Cell::context`] tokens of a text, which `tokens` continue. Leaves out an engine that cannot roll back the cell's
/// rows.
pub fn measure(
    cell: Cell,
    engines: &mut [Box<dyn Engine + '_>],
    tokens: &[u32],
    alternations: usize,
) -> Result<Vec<Times>> {
    let tokens = &tokens[..cell.n_tokens()];
    let mut engines: Vec<&mut Box<dyn Engine + '_>> =
        engines.iter_mut().filter(|engine| engine.rollback_max() >= cell.n_rolled_back()).collect();
    let pass = |engine: &mut dyn Engine| -> Result<f64> {
        let start = Instant::now();
        cell.run(engine, tokens)?;
        let seconds = start.elapsed().as_secs_f64();
        cell.undo(engine)?;
        Ok(seconds)
    };
    let mut times = Vec::new();
    let mut n_passes = Vec::new();
    for engine in engines.iter_mut() {
        if cell.n_steps() > 1 {
            engine.mark()?;
        }
        // The first pass grows buffers and plans graphs. The time of the second one gives the passes per turn; a long cell
        // needs none.
        let first = pass(engine.as_mut())?;
        let seconds = if first > 10.0 * TURN_SECONDS { first } else { pass(engine.as_mut())? };
        n_passes.push(((TURN_SECONDS / seconds) as usize).clamp(1, PASSES_MAX));
        times.push(Times { engine: engine.name(), turns_ms: Vec::new() });
    }
    for _ in 0..alternations {
        for ((engine, times), &n_passes) in engines.iter_mut().zip(&mut times).zip(&n_passes) {
            if n_passes > 1 {
                // The caches contain the other engine's weights, and this engine's threads are asleep.
                pass(engine.as_mut())?;
            }
            let turn: Result<Vec<f64>> = (0..n_passes).map(|_| pass(engine.as_mut())).collect();
            times.turns_ms.push(median(turn?).expect("a turn has a pass") * 1e3 / cell.n_steps() as f64);
        }
    }
    Ok(times)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    /// Counts positions, and refuses the same calls as a cache.
    struct Counter {
        held: usize,
        rows: usize,
        marked: Option<usize>,
        n_passes: usize,
    }

    impl Counter {
        fn new(held: usize) -> Self {
            Self { held, rows: 0, marked: None, n_passes: 0 }
        }
    }

    impl Engine for Counter {
        fn name(&self) -> &'static str {
            "counter"
        }

        fn clear(&mut self) -> Result<()> {
            self.held = 0;
            Ok(())
        }

        fn prefill(&mut self, tokens: &[u32]) -> Result<()> {
            self.verify(tokens, Logits::Last)?;
            self.keep(tokens.len())
        }

        fn verify(&mut self, tokens: &[u32], _: Logits) -> Result<()> {
            assert_eq!(self.rows, 0, "the rows of the last pass are kept or not");
            self.rows = tokens.len();
            self.n_passes += 1;
            assert!(self.held + self.rows <= N_SLOTS);
            Ok(())
        }

        fn keep(&mut self, n_rows: usize) -> Result<()> {
            assert!(n_rows <= self.rows, "{n_rows} of {} rows", self.rows);
            (self.held, self.rows) = (self.held + n_rows, 0);
            Ok(())
        }

        fn logits(&self, _: usize) -> &[f32] {
            &[]
        }

        fn mark(&mut self) -> Result<()> {
            self.marked = Some(self.held);
            Ok(())
        }

        fn rewind(&mut self) -> Result<()> {
            self.held = self.marked.unwrap();
            Ok(())
        }
    }

    #[test]
    fn every_cell_runs_at_its_context_and_rolls_back() {
        let text = vec![0; N_SLOTS];
        let cells = Cell::of_kinds(Kind::value_variants());
        assert_eq!(cells.len(), 3 + 14 + 1 + 5 + 1 + 4);
        let mut counter = Counter::new(0);
        let mut held = 0;
        for cell in cells {
            fill(&mut counter, &text, held, cell.context()).unwrap();
            held = cell.context();
            assert_eq!(counter.held, held);
            let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(Counter::new(held))];
            let times = measure(cell, &mut engines, &text, 2).unwrap();
            assert_eq!(times[0].turns_ms.len(), 2);
            assert!(
                fill(engines[0].as_mut(), &text, held, N_SLOTS).is_ok(),
                "the positions of {cell:?} are left"
            );
        }
        assert_eq!(counter.n_passes, 4096 / BATCH_LEN, "filled once");
    }
}
