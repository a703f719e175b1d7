//! The cells of a measurement. Engines take turns, and the figure of a turn is the median of its passes.

use std::time::Instant;

use serde::Serialize;

use crate::engines::{BATCH_LEN, Engine, Logits, Result};

/// Contexts for decoding of one row.
pub const DECODE_CONTEXTS: [usize; 3] = [0, 1024, 4096];
/// Context of the verification batches.
pub const VERIFY_CONTEXT: usize = 512;
/// Rows of the verification batches.
pub const VERIFY_ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// Context of the verification batches behind a long prompt.
pub const LONG_CONTEXT: usize = 4096;
/// Rows of these batches.
pub const LONG_ROWS: [usize; 5] = [1, 4, 8, 16, 32];
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
    /// A prompt of 512 tokens.
    Prefill,
    /// 1 to 32 rows after 4096 tokens.
    LongVerify,
    /// A prompt of 4096 tokens.
    LongPrefill,
}

impl Cell {
    /// The cells of these kinds, from the longest context to the shortest: a cache is filled once and then truncated.
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
        cells.sort_by_key(|cell| std::cmp::Reverse(cell.context()));
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
            Cell::Prefill { .. } => 0,
        }
    }

    fn n_tokens(self) -> usize {
        match self {
            Cell::Decode { .. } => 1,
            Cell::Verify { rows, .. } => rows,
            Cell::Prefill { len } => len,
        }
    }

    /// One pass. The engine has [`Cell::context`] positions before it, and more after it.
    fn run(self, engine: &mut dyn Engine, tokens: &[u32]) -> Result<()> {
        match self {
            Cell::Decode { .. } | Cell::Verify { all_logits: false, .. } => {
                engine.verify(tokens, Logits::Last)
            }
            Cell::Verify { all_logits: true, .. } => engine.verify(tokens, Logits::All),
            Cell::Prefill { .. } => engine.prefill(tokens),
        }
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
        median(&self.turns_ms)
    }

    pub fn min_ms(&self) -> f64 {
        self.turns_ms.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// Brings an engine to the first `len` tokens of `text`: drops further tokens, computes missing ones.
pub fn fill(engine: &mut dyn Engine, text: &[u32], held: usize, len: usize) -> Result<()> {
    engine.truncate(len.min(held))?;
    let missing = text.get(held..len).unwrap_or_default();
    missing.chunks(BATCH_LEN).try_for_each(|chunk| engine.prefill(chunk))
}

/// Measures one cell: `alternations` turns of each engine, one engine after the other. Before and after it, every
/// engine has the first [`Cell::context`] tokens of a text, which `tokens` continue.
pub fn measure(
    cell: Cell,
    engines: &mut [Box<dyn Engine + '_>],
    tokens: &[u32],
    alternations: usize,
) -> Result<Vec<Times>> {
    let tokens = &tokens[..cell.n_tokens()];
    let pass = |engine: &mut dyn Engine| -> Result<f64> {
        let start = Instant::now();
        cell.run(engine, tokens)?;
        let seconds = start.elapsed().as_secs_f64();
        engine.truncate(cell.context())?;
        Ok(seconds)
    };
    let mut times = Vec::new();
    let mut n_passes = Vec::new();
    for engine in engines.iter_mut() {
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
            times.turns_ms.push(median(&turn?) * 1e3);
        }
    }
    Ok(times)
}

/// The middle value, or the mean of the two middle values; without values, not a number.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n => (sorted[(n - 1) / 2] + sorted[n / 2]) / 2.0,
    }
}

/// The geometric mean; without values, not a number.
pub fn geometric_mean(values: &[f64]) -> f64 {
    (values.iter().map(|value| value.ln()).sum::<f64>() / values.len() as f64).exp()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum as _;

    use super::*;

    /// Counts positions, and refuses the same calls as a cache.
    struct Counter {
        held: usize,
        n_passes: usize,
    }

    impl Engine for Counter {
        fn name(&self) -> &'static str {
            "counter"
        }

        fn truncate(&mut self, len: usize) -> Result<()> {
            assert!(len <= self.held, "{len} of {} positions", self.held);
            self.held = len;
            Ok(())
        }

        fn prefill(&mut self, tokens: &[u32]) -> Result<()> {
            self.held += tokens.len();
            self.n_passes += 1;
            assert!(self.held <= N_SLOTS);
            Ok(())
        }

        fn verify(&mut self, tokens: &[u32], _: Logits) -> Result<()> {
            self.prefill(tokens)
        }

        fn logits(&self, _: usize) -> &[f32] {
            &[]
        }
    }

    #[test]
    fn every_cell_runs_at_its_context_and_rolls_back() {
        let text = vec![0; N_SLOTS];
        let cells = Cell::of_kinds(Kind::value_variants());
        assert_eq!(cells.len(), 3 + 14 + 1 + 5 + 1);
        let mut counter = Counter { held: 0, n_passes: 0 };
        let mut held = 0;
        for cell in cells {
            fill(&mut counter, &text, held, cell.context()).unwrap();
            held = cell.context();
            assert_eq!(counter.held, held);
            let mut engines: Vec<Box<dyn Engine>> = vec![Box::new(Counter { held, n_passes: 0 })];
            let times = measure(cell, &mut engines, &text, 2).unwrap();
            assert_eq!(times[0].turns_ms.len(), 2);
        }
        assert_eq!(counter.n_passes, 4096 / BATCH_LEN, "filled once, cut afterwards");
    }

    #[test]
    fn median_and_mean_of_known_values() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
        assert!((geometric_mean(&[1.0, 4.0]) - 2.0).abs() < 1e-12);
    }
}
