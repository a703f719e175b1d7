//! Measures the time saved by pruning a verification batch, at a model's true shape.
//!
//! The time of a pass depends on the number of pruned rows, not on the rows themselves. So the weights may be
//! arbitrary: half-way, a predictor of arbitrary weights is computed, and then a given share of the rows
//! continues. Whole and pruned passes alternate, so other load on the machine affects both equally. The
//! median of each is reported.

use std::fmt::Write as _;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use refrain::checkpoint::Checkpoint;
use refrain::checkpoint::ModelConfig;
use refrain::drafting::Predictor;
use refrain::internals::error::ForwardError;
use refrain::internals::kernels::{Kernels, Pool};
use refrain::internals::model::kv_cache::KvCacheError;
use refrain::internals::model::packed::ModelIdentity;
use refrain::internals::model::transformer::{Compute, Part, PassEnd};
use refrain::internals::model::weights::{LoadOptions, WeightsError};
use refrain::internals::model::{Batch, Hooks, Interlude, KvCache, Model, Workspace};
use refrain::internals::pruning::{PredictorParts, PredictorScratch, f16};
use refrain::{KvType, LoadError, TokenId};
use serde::Serialize;
use thiserror::Error;

use crate::tally::median;

/// The parameters.
#[derive(Debug, Clone)]
pub struct PruningBench {
    /// Number of rows of the batches.
    pub n_rows: Vec<usize>,
    /// Share of the kept rows, 0 to 1.
    pub kept: f64,
    /// The layer before which rows are dropped.
    pub layer_idx: usize,
    /// Rank of the predictor.
    pub rank: usize,
    /// Number of tokens of its shadow pool.
    pub shadow_pool: usize,
    /// Number of tokens before the batch.
    pub context: usize,
    /// Number of passes of each kind.
    pub n_rounds: usize,
    /// Number of threads.
    pub n_threads: usize,
}

/// The measurements with batches of one length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct PruningCost {
    /// Number of rows of the batch.
    pub n_rows: usize,
    /// Number of kept rows.
    pub n_kept: usize,
    /// Time of a pass over all rows, in ms.
    pub whole_ms: f64,
    /// Time of a pruned pass, including the predictor, in ms.
    pub pruned_ms: f64,
    /// Time of the predictor, in ms.
    pub predictor_ms: f64,
}

/// The measurement failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PruningBenchError {
    /// The model could not be loaded.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The predictor could not be built.
    #[error(transparent)]
    Predictor(#[from] LoadError),
    /// The memory for the KV cache could not be allocated.
    #[error(transparent)]
    KvCache(#[from] KvCacheError),
    /// A pass failed.
    #[error(transparent)]
    Forward(#[from] ForwardError),
}

/// Measures the model of `checkpoint`. Calls `progress` with (lengths done, lengths to do).
///
/// # Errors
/// [`PruningBenchError`].
pub fn measure(
    checkpoint: &Checkpoint,
    bench: &PruningBench,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<PruningCost>, PruningBenchError> {
    let model = Model::load(checkpoint, LoadOptions::default())?;
    let pool = Pool::new(bench.n_threads);
    let longest = bench.n_rows.iter().copied().max().unwrap_or(1);
    let mut passes = Passes {
        predictor: Predictor::new(random_parts(model.config(), bench))?,
        kv: KvCache::new(model.config(), KvType::F16, bench.context + longest)?,
        workspace: Workspace::new(model.config()),
        batch: Batch::new(),
        scratch: PredictorScratch::default(),
        compute: Compute { kernels: Kernels::detect(), pool: &pool },
        model: &model,
    };
    passes.prefill(bench.context)?;
    let mut costs = Vec::new();
    for (done, &n_rows) in bench.n_rows.iter().enumerate() {
        progress(done, bench.n_rows.len());
        costs.push(passes.measure(bench, n_rows)?);
    }
    Ok(costs)
}

/// Every weight is 1: the time of arithmetic does not depend on the numbers.
fn random_parts(config: &ModelConfig, bench: &PruningBench) -> PredictorParts {
    let (hidden_dim, vocab_size) = (config.hidden_dim, config.vocab_size);
    let rank = bench.rank.clamp(1, hidden_dim);
    PredictorParts {
        model: ModelIdentity::from_bits(0),
        layer_idx: bench.layer_idx,
        hidden_dim,
        rank,
        vocab_size,
        down: vec![1.0; rank * hidden_dim],
        up: vec![f16::ONE; vocab_size * rank],
        shadow_pool: (0..bench.shadow_pool.min(vocab_size) as u32).map(TokenId).collect(),
    }
}

struct Passes<'m> {
    model: &'m Model,
    compute: Compute<'m>,
    predictor: Predictor,
    kv: KvCache,
    workspace: Workspace,
    batch: Batch,
    scratch: PredictorScratch,
}

/// Computes the predictor for a tree, then keeps the first rows.
struct Cut<'a> {
    predictor: &'a Predictor,
    scratch: &'a mut PredictorScratch,
    n_kept: usize,
    predictor_ms: f64,
}

impl Interlude for Cut<'_> {
    fn layer_idx(&self) -> usize {
        self.predictor.parts().layer_idx
    }

    fn look(&mut self, compute: Compute<'_>, hidden: &[f32], kept: &mut Vec<u32>) {
        let start = Instant::now();
        // The rows of the first half are parents of two children each.
        let (n_rows, hidden_dim) = (kept.len(), self.predictor.parts().hidden_dim);
        let n_parents = n_rows / 2;
        self.predictor.set_rows(compute, &hidden[..n_parents * hidden_dim], true, self.scratch);
        let scores = (0..n_parents).flat_map(|row| [(row, 2 * row + 1), (row, 2 * row + 2)]);
        let total: f32 =
            scores.map(|(row, token)| self.predictor.score(self.scratch, row, TokenId(token as u32))).sum();
        std::hint::black_box(total);
        kept.truncate(self.n_kept);
        self.predictor_ms = start.elapsed().as_secs_f64() * 1e3;
    }
}

impl Passes<'_> {
    fn prefill(&mut self, context: usize) -> Result<(), ForwardError> {
        for start in (0..context).step_by(256) {
            let end = context.min(start + 256);
            let tokens: Vec<TokenId> = (start..end).map(|i| TokenId(i as u32 % 200)).collect();
            self.batch.set_chain(start, &tokens);
            self.forward(None)?;
            self.kv.commit_all(&self.batch);
        }
        Ok(())
    }

    /// Measures a tree in which every node has two children, until the rows are used up.
    fn measure(&mut self, bench: &PruningBench, n_rows: usize) -> Result<PruningCost, ForwardError> {
        let n_kept = ((n_rows as f64 * bench.kept).round() as usize).clamp(1, n_rows);
        let tokens: Vec<TokenId> = (0..n_rows as u32).map(TokenId).collect();
        let parents: Vec<u32> = (0..n_rows as u32).map(|row| row.saturating_sub(1) / 2).collect();
        self.batch.set_tree(self.kv.len(), &tokens, &parents, n_rows);
        let [mut whole, mut pruned, mut asked] = [const { Vec::new() }; 3];
        // The first round warms up.
        for round in 0..=bench.n_rounds {
            let whole_ms = self.forward(None)?;
            let (pruned_ms, predictor_ms) = self.cut(n_kept)?;
            if round > 0 {
                whole.push(whole_ms);
                pruned.push(pruned_ms);
                asked.push(predictor_ms);
            }
        }
        let [whole_ms, pruned_ms, predictor_ms] = [whole, pruned, asked].map(|ms| median(ms).unwrap_or(0.0));
        Ok(PruningCost { n_rows, n_kept, whole_ms, pruned_ms, predictor_ms })
    }

    fn cut(&mut self, n_kept: usize) -> Result<(f64, f64), ForwardError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let Self { model, compute, predictor, kv, workspace, batch, .. } = self;
        let mut cut = Cut { predictor, scratch: &mut scratch, n_kept, predictor_ms: 0.0 };
        let never = AtomicBool::new(false);
        let start = Instant::now();
        let through = Some(&mut cut as &mut dyn Interlude);
        model.forward_through(
            *compute,
            Part::new(batch, kv, workspace, &never),
            PassEnd::Hidden,
            Hooks { interlude: through, ..Hooks::default() },
        )?;
        let times = (start.elapsed().as_secs_f64() * 1e3, cut.predictor_ms);
        self.scratch = scratch;
        Ok(times)
    }

    /// Milliseconds of a pass.
    fn forward(&mut self, interlude: Option<&mut dyn Interlude>) -> Result<f64, ForwardError> {
        let Self { model, compute, kv, workspace, batch, .. } = self;
        let (start, never) = (Instant::now(), AtomicBool::new(false));
        model.forward_through(
            *compute,
            Part::new(batch, kv, workspace, &never),
            PassEnd::Hidden,
            Hooks { interlude, ..Hooks::default() },
        )?;
        Ok(start.elapsed().as_secs_f64() * 1e3)
    }
}

/// The costs as a table.
pub fn write(costs: &[PruningCost]) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(out, "| rows | go on | whole batch, ms | cut down, ms | predictor, ms | saved |");
    let _ = writeln!(out, "| ---: | ---: | ---: | ---: | ---: | ---: |");
    for PruningCost { n_rows, n_kept, whole_ms, pruned_ms, predictor_ms } in costs {
        let saved = 100.0 * (1.0 - pruned_ms / whole_ms.max(f64::MIN_POSITIVE));
        let _ = writeln!(
            out,
            "| {n_rows} | {n_kept} | {whole_ms:.2} | {pruned_ms:.2} | {predictor_ms:.2} | {saved:.1} % |"
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fixture_is_measured() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
        let bench = PruningBench {
            n_rows: vec![1, 8],
            kept: 0.5,
            layer_idx: 3,
            rank: 8,
            shadow_pool: 16,
            context: 20,
            n_rounds: 2,
            n_threads: 1,
        };
        let costs = measure(&Checkpoint::open(path).unwrap(), &bench, |_, _| {}).unwrap();
        assert_eq!(costs.iter().map(|cost| (cost.n_rows, cost.n_kept)).collect::<Vec<_>>(), [(1, 1), (8, 4)]);
        assert!(costs.iter().all(|cost| cost.whole_ms > 0.0 && cost.pruned_ms > cost.predictor_ms));
        assert_eq!(write(&costs).lines().count(), 4);
    }
}
