//! Measures a profile: chooses the passes and times them.

use std::collections::BTreeSet;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::{MachineProfile, PassCost, ProfileError, ProfileKey, US_MAX, VERSION};
use crate::draft::VERIFY_ROWS_MAX;
use crate::kernels::Instant;
use crate::kernels::KvType;
use crate::model::transformer::{Compute, ForwardError, PassEnd};
use crate::model::{
    Batch, KvCache, Model, PREFILL_CHUNK_MAX, VariedTokens, Workspace, kv_cache::KvCacheError,
};

/// The passes to measure.
#[derive(Debug, Clone)]
#[cfg_attr(not(feature = "internals"), non_exhaustive)]
pub struct ProfileOptions {
    /// Contexts besides 0. Longer contexts than the trained one become the longest context with room for a
    /// batch.
    pub contexts: Vec<usize>,
    /// Numbers of rows; values outside 1..=[`VERIFY_ROWS_MAX`] are ignored.
    pub rows: Vec<usize>,
    /// Lengths of prefill chunks; longer lengths than the trained context become that length.
    pub prefill: Vec<usize>,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// Time per entry, at most a minute; at least two runs are made, unless one takes longer than twice the time.
    pub entry_time: Duration,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        Self {
            contexts: vec![0, 1024, 4096],
            rows: vec![1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64],
            prefill: vec![64, 128, 256, 512],
            kv_type: KvType::F16,
            entry_time: Duration::from_millis(50),
        }
    }
}

impl MachineProfile {
    pub(crate) fn measure(
        model: &Model,
        compute: Compute<'_>,
        options: &ProfileOptions,
        mut progress: impl FnMut(u64, u64),
    ) -> Result<Self, ProfileError> {
        let Plan { contexts, rows, prefill: chunks, n_slots } =
            Plan::new(options, model.config().context_len)?;
        let mut probe = Probe::new(model, compute, options, n_slots)?;
        let n_entries = contexts.len() * rows.len() + rows.len() + chunks.len();
        let mut n_done = 0;
        let mut done = || {
            n_done += 1;
            progress(n_done as u64, n_entries as u64);
        };
        let mut verify = Vec::new();
        for &context in &contexts {
            for &rows in &rows {
                verify.push(probe.pass(context, rows, PassEnd::Hidden)?);
                done();
            }
        }
        let mut projection = Vec::new();
        for &rows in &rows {
            projection.push(probe.projection(rows)?);
            done();
        }
        let mut prefill = Vec::new();
        for &rows in &chunks {
            prefill.push(probe.pass(0, rows, PassEnd::KeysAndValues)?);
            done();
        }
        let key = ProfileKey::new(model, compute, options.kv_type);
        Ok(Self { version: VERSION, key, verify, projection, prefill })
    }
}

/// A longer time makes no measurement better.
const ENTRY_TIME_MAX: Duration = Duration::from_secs(60);

/// The measured passes for a model, from the options.
#[derive(Debug)]
struct Plan {
    contexts: Vec<usize>,
    rows: Vec<usize>,
    prefill: Vec<usize>,
    /// Slots of the KV cache: enough for each pass.
    n_slots: usize,
}

impl Plan {
    fn new(options: &ProfileOptions, trained_len: usize) -> Result<Self, ProfileError> {
        // The longest batch after the longest context is within the trained context length.
        let context_max = trained_len.saturating_sub(VERIFY_ROWS_MAX);
        let contexts = ascending(options.contexts.iter().map(|&context| context.min(context_max)).chain([0]));
        let rows =
            ascending(options.rows.iter().copied().filter(|rows| (1..=VERIFY_ROWS_MAX).contains(rows)));
        let chunk_max = trained_len.min(PREFILL_CHUNK_MAX);
        let prefill = ascending(options.prefill.iter().map(|&len| len.min(chunk_max)).filter(|&len| len > 0));
        let last =
            |list: &[usize], option| list.last().copied().ok_or(ProfileError::NothingToMeasure { option });
        let rows_max = last(&rows, "rows")?;
        let n_slots = (last(&contexts, "contexts")? + rows_max).max(last(&prefill, "prefill")?);
        Ok(Self { contexts, rows, prefill, n_slots })
    }
}

/// Sorts in ascending order and removes duplicates.
fn ascending(values: impl Iterator<Item = usize>) -> Vec<usize> {
    values.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Runs passes over a cache with every slot written. The cost of a pass does not depend on the values, but
/// reading memory that was never written costs nothing. It depends on the tokens if there are experts.
struct Probe<'a> {
    model: &'a Model,
    compute: Compute<'a>,
    kv: KvCache,
    workspace: Workspace,
    batch: Batch,
    tokens: VariedTokens,
    logits: Vec<f32>,
    entry_time: Duration,
}

impl<'a> Probe<'a> {
    fn new(
        model: &'a Model,
        compute: Compute<'a>,
        options: &ProfileOptions,
        n_slots: usize,
    ) -> Result<Self, KvCacheError> {
        let mut kv = KvCache::new(model.config(), options.kv_type, n_slots)?;
        kv.fill(compute.kernels, 0.5);
        Ok(Self {
            model,
            compute,
            kv,
            workspace: Workspace::new(model.config()),
            batch: Batch::new(),
            tokens: VariedTokens::new(model.config().vocab_size),
            logits: Vec::new(),
            entry_time: options.entry_time.min(ENTRY_TIME_MAX),
        })
    }

    fn pass(&mut self, context: usize, rows: usize, end: PassEnd) -> Result<PassCost, ForwardError> {
        self.kv.assume_len(context);
        self.batch.set_chain(context, &self.tokens.draw(rows));
        let us = least_us(self.entry_time, || {
            let Self { model, compute, batch, kv, workspace, .. } = self;
            let never = AtomicBool::new(false);
            model.forward(*compute, batch, kv, workspace, end, &never)
        })?;
        Ok(PassCost { context, rows, us })
    }

    fn projection(&mut self, rows: usize) -> Result<PassCost, ForwardError> {
        self.pass(0, rows, PassEnd::Hidden)?;
        let all: Vec<u32> = (0..rows as u32).collect();
        let us = least_us(self.entry_time, || {
            self.model.logits(self.compute, &mut self.workspace, &all, &mut self.logits)
        })?;
        Ok(PassCost { context: 0, rows, us })
    }
}

/// The minimum time of the runs within `time`, and of at least two runs: the first run is the warm-up. A run of more
/// than twice the time needs none.
fn least_us(time: Duration, mut run: impl FnMut() -> Result<(), ForwardError>) -> Result<f32, ForwardError> {
    let start = Instant::now();
    let mut least = f32::INFINITY;
    let mut n_runs = 0;
    while n_runs < 2 || start.elapsed() < time {
        let run_start = Instant::now();
        run()?;
        let run_time = run_start.elapsed();
        least = least.min(run_time.as_secs_f32() * 1e6);
        n_runs += 1;
        if run_time > 2 * time {
            break;
        }
    }
    Ok(least.clamp(f32::MIN_POSITIVE, US_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Kernels, Pool};
    use crate::model::Checkpoint;
    use crate::model::weights::LoadOptions;

    #[test]
    fn what_is_asked_for_is_cut_to_what_the_model_was_trained_for() {
        let plan = |trained_len| Plan::new(&ProfileOptions::default(), trained_len).unwrap();
        assert_eq!(plan(4096).contexts, [0, 1024, 4096 - VERIFY_ROWS_MAX]);
        assert_eq!(plan(100_000).contexts, [0, 1024, 4096]);
        assert_eq!((plan(300).contexts, plan(300).prefill), (vec![0, 236], vec![64, 128, 256, 300]));
        // The trained context is shorter than the longest batch: every number of rows is measured anyway.
        let Plan { contexts, rows, prefill, n_slots } = plan(32);
        assert_eq!((contexts, rows.last(), prefill, n_slots), (vec![0], Some(&64), vec![32], 64));
        let options = ProfileOptions { contexts: Vec::new(), ..ProfileOptions::default() };
        assert_eq!(Plan::new(&options, 4096).unwrap().contexts, [0]);
    }

    #[test]
    fn what_leaves_nothing_to_measure_is_refused() {
        let refused = |options: ProfileOptions| Plan::new(&options, 4096).unwrap_err().to_string();
        let rows =
            refused(ProfileOptions { rows: vec![0, VERIFY_ROWS_MAX + 1], ..ProfileOptions::default() });
        assert!(rows.contains("`rows`"), "{rows}");
        let prefill = refused(ProfileOptions { prefill: vec![0], ..ProfileOptions::default() });
        assert!(prefill.contains("`prefill`"), "{prefill}");
    }

    #[test]
    fn every_slot_that_is_measured_over_was_written() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf");
        let model = Model::load(&Checkpoint::open(fixture).unwrap(), LoadOptions::default()).unwrap();
        let (pool, n_slots) = (Pool::try_new(1).unwrap(), 40);
        let compute = Compute { kernels: Kernels::detect(), pool: &pool };
        let options = ProfileOptions { entry_time: Duration::ZERO, ..ProfileOptions::default() };
        let mut probe = Probe::new(&model, compute, &options, n_slots).unwrap();
        // The logits of one row after a context distinguish a slot of zeros from a written one.
        let logits = |probe: &mut Probe, context: usize| {
            probe.tokens = VariedTokens::new(model.config().vocab_size);
            probe.pass(context, 1, PassEnd::Hidden).unwrap();
            model.logits(compute, &mut probe.workspace, &[0], &mut probe.logits).unwrap();
            probe.logits.clone()
        };
        for context in [1, n_slots - 1] {
            let written = logits(&mut probe, context);
            let full = std::mem::replace(
                &mut probe.kv,
                KvCache::new(model.config(), options.kv_type, n_slots).unwrap(),
            );
            assert_ne!(logits(&mut probe, context), written, "context {context}");
            probe.kv = full;
        }
    }
}
