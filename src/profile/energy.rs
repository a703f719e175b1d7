//! The energy of a token by the number of threads.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::ProfileError;
use crate::energy::EnergyMeter;
use crate::kernels::Instant;
use crate::kernels::KvType;
use crate::model::transformer::{Compute, PassEnd};
use crate::model::{Batch, KvCache, Model, Workspace};
use refrain_trees::TokenId;

/// The energy of plain decoding with a number of threads.
#[derive(Debug, Clone, Copy, PartialEq)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct ThreadEnergy {
    /// Threads of the forward pass.
    pub n_threads: usize,
    /// Joules of the device per token.
    pub joules_per_token: f64,
    /// Tokens per second.
    pub tokens_per_s: f64,
}

/// Time for each number of threads: counters advance every millisecond.
const TIME: Duration = Duration::from_millis(500);

/// Numbers of threads up to `n_threads`: every one up to 4, then with steps that double.
fn thread_counts(n_threads: usize) -> Vec<usize> {
    let mut counts: Vec<usize> = (1..=n_threads.min(4)).collect();
    let mut step = 2;
    while counts.last().is_some_and(|last| *last < n_threads) {
        counts.push((counts[counts.len() - 1] + step).min(n_threads));
        step *= 2;
    }
    counts
}

/// Measures passes of one row for each number of threads, the fewest first. `None` if the meter has no reading.
/// Leaves the pool limited to the last number.
pub(crate) fn measure_energy(
    model: &Model,
    compute: Compute<'_>,
    meter: &dyn EnergyMeter,
) -> Result<Option<Vec<ThreadEnergy>>, ProfileError> {
    let mut kv = KvCache::new(model.config(), KvType::F16, 1)?;
    let mut workspace = Workspace::new(model.config());
    let (mut batch, mut logits) = (Batch::new(), Vec::new());
    let never = AtomicBool::new(false);
    batch.set_chain(0, &[TokenId(0)]);
    let mut pass = || -> Result<(), ProfileError> {
        model.forward(compute, &batch, &mut kv, &mut workspace, PassEnd::Hidden, &never)?;
        Ok(model.logits(compute, &mut workspace, &[0], &mut logits)?)
    };
    let mut measured = Vec::new();
    for n_threads in thread_counts(compute.pool.n_threads()) {
        compute.pool.limit(n_threads);
        pass()?;
        let Some(before) = meter.joules() else { return Ok(None) };
        let (start, mut n_tokens) = (Instant::now(), 0u32);
        while n_tokens == 0 || start.elapsed() < TIME {
            pass()?;
            n_tokens += 1;
        }
        let seconds = start.elapsed().as_secs_f64();
        let Some(after) = meter.joules() else { return Ok(None) };
        let n_tokens = f64::from(n_tokens);
        let joules_per_token = (after - before) / n_tokens;
        measured.push(ThreadEnergy { n_threads, joules_per_token, tokens_per_s: n_tokens / seconds });
    }
    Ok(Some(measured))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thread_counts_end_at_all_threads() {
        assert_eq!(thread_counts(1), [1]);
        assert_eq!(thread_counts(4), [1, 2, 3, 4]);
        assert_eq!(thread_counts(6), [1, 2, 3, 4, 6]);
        assert_eq!(thread_counts(16), [1, 2, 3, 4, 6, 10, 16]);
    }
}
