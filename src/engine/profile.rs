//! What steps cost on this machine, by rows and context: measured once, stored beside the model.
//!
//! An engine measures a short [`CostProfile`] whenever it is loaded. A [`MachineProfile`] takes longer, knows that rows cost
//! more behind a long context, and saves that second of loading.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::draft::{CostProfile, VERIFY_ROWS_MAX};
use crate::kernels::KvType;
use crate::model::transformer::{Compute, PassEnd};
use crate::model::{Batch, KvCache, Model, ModelConfig, Workspace, kv_cache::KvCacheError};
use crate::token::TokenId;

/// The format that this version writes and reads.
const VERSION: u32 = 1;

/// The largest file that is read as a profile.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Entries of each list at most.
const ENTRIES_MAX: usize = 4096;

/// What decides the cost of a pass, besides its rows and its context. Weights of the same shape and size cost the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileKey {
    /// Instruction set of the kernels.
    pub isa: String,
    /// Threads of the forward pass.
    pub n_threads: usize,
    /// Layers, and the widths of each.
    pub n_layers: usize,
    /// Width of the residual stream.
    pub hidden_dim: usize,
    /// Width of the feed-forward part.
    pub ffn_dim: usize,
    /// Query heads.
    pub n_heads: usize,
    /// Key and value heads.
    pub n_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Entries of the vocabulary.
    pub vocab_size: usize,
    /// Bytes of the packed weights.
    pub weights_bytes: usize,
}

/// A measured time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassCost {
    /// Tokens in the KV cache before the pass.
    pub context: usize,
    /// Rows of the pass.
    pub rows: usize,
    /// The least of several runs, µs.
    pub us: f32,
}

/// What steps cost on one machine for one model shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineProfile {
    version: u32,
    key: ProfileKey,
    /// To the final hidden states; every context with the same numbers of rows, ascending by context, then by rows.
    verify: Vec<PassCost>,
    /// Hidden states onto the vocabulary, ascending by rows; the context is 0.
    projection: Vec<PassCost>,
    /// Chunks without hidden states, ascending by rows; the context is 0.
    prefill: Vec<PassCost>,
}

/// Why a profile could not be read, written, or used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file could not be read or written; a file that was there before is unchanged.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is longer than any profile.
    #[error("{path}: {bytes} bytes exceed the {FILE_BYTES_MAX} of a profile")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The file is no profile.
    #[error("{path}: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        source: serde_json::Error,
    },
    /// The file has a version that this one does not know.
    #[error("{path}: version {given} of a profile, this program reads {VERSION}; measure it again")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        given: u32,
    },
    /// A list does not hold what it must.
    #[error("{path}: `{field}`: {reason}")]
    Field {
        /// The file.
        path: PathBuf,
        /// The list.
        field: &'static str,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// There was no memory for the measurement.
    #[error(transparent)]
    KvCache(#[from] KvCacheError),
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct ProfileOptions {
    /// Contexts; those that the model was not trained for are left out.
    pub contexts: Vec<usize>,
    /// Numbers of rows, each 1..=[`VERIFY_ROWS_MAX`].
    pub rows: Vec<usize>,
    /// Lengths of prefill chunks.
    pub prefill: Vec<usize>,
    /// Element type of the KV cache.
    pub kv_type: KvType,
    /// Time for each entry; at least two runs are made.
    pub entry_time: Duration,
}

impl Default for ProfileOptions {
    fn default() -> Self {
        Self {
            contexts: vec![0, 1024, 4096],
            rows: vec![1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64],
            prefill: vec![64, 128, 256, 512],
            kv_type: KvType::F16,
            entry_time: Duration::from_millis(150),
        }
    }
}

impl ProfileKey {
    pub(super) fn new(model: &Model, compute: Compute<'_>) -> Self {
        let ModelConfig { n_layers, hidden_dim, ffn_dim, n_heads, n_kv_heads, head_dim, vocab_size, .. } =
            *model.config();
        Self {
            isa: compute.kernels.isa().name().to_owned(),
            n_threads: compute.pool.n_threads(),
            n_layers,
            hidden_dim,
            ffn_dim,
            n_heads,
            n_kv_heads,
            head_dim,
            vocab_size,
            weights_bytes: model.memory_usage(),
        }
    }
}

impl MachineProfile {
    pub(super) fn measure(
        model: &Model,
        compute: Compute<'_>,
        options: &ProfileOptions,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Self, ProfileError> {
        let rows = ascending(&options.rows, VERIFY_ROWS_MAX);
        let trained_len = model.config().context_len;
        let contexts = ascending(&options.contexts, trained_len.saturating_sub(VERIFY_ROWS_MAX));
        let chunks = ascending(&options.prefill, trained_len);
        let n_slots =
            contexts.last().map_or(0, |c| c + VERIFY_ROWS_MAX).max(chunks.last().copied().unwrap_or(0));
        let mut probe = Probe::new(model, compute, options, n_slots)?;
        let n_entries = contexts.len() * rows.len() + rows.len() + chunks.len();
        let mut n_done = 0;
        let mut done = || {
            n_done += 1;
            progress(n_done, n_entries);
        };
        let mut verify = Vec::new();
        for &context in &contexts {
            for &rows in rows.iter().filter(|&&rows| rows > 0) {
                verify.push(probe.pass(context, rows, PassEnd::Hidden));
                done();
            }
        }
        let mut projection = Vec::new();
        for &rows in rows.iter().filter(|&&rows| rows > 0) {
            projection.push(probe.projection(rows));
            done();
        }
        let mut prefill = Vec::new();
        for &rows in chunks.iter().filter(|&&rows| rows > 0) {
            prefill.push(probe.pass(0, rows, PassEnd::KeysAndValues));
            done();
        }
        Ok(Self { version: VERSION, key: ProfileKey::new(model, compute), verify, projection, prefill })
    }

    /// What it was measured on.
    pub fn key(&self) -> &ProfileKey {
        &self.key
    }

    /// Passes to the final hidden states, ascending by context, then by rows.
    pub fn verify(&self) -> &[PassCost] {
        &self.verify
    }

    /// The output projection, ascending by rows.
    pub fn projection(&self) -> &[PassCost] {
        &self.projection
    }

    /// Prefill chunks, ascending by rows.
    pub fn prefill(&self) -> &[PassCost] {
        &self.prefill
    }

    /// The cost of a step behind `context` tokens when `projection_rows` rows are projected at a time: linear between the
    /// measured contexts, and the last one's beyond it.
    pub fn costs(&self, context: usize, projection_rows: usize) -> CostProfile {
        let above = self.verify.iter().map(|cost| cost.context).find(|&c| c >= context);
        let right = above.or(self.verify.last().map(|cost| cost.context)).unwrap_or(0);
        let left = self.verify.iter().map(|cost| cost.context).rfind(|&c| c <= context).unwrap_or(right);
        let weight = if right > left { (context - left) as f32 / (right - left) as f32 } else { 0.0 };
        let at = |context: usize| self.verify.iter().filter(move |cost| cost.context == context);
        let measurements: Vec<(usize, f32)> = at(left)
            .zip(at(right))
            .map(|(from, to)| {
                let us = from.us + weight * (to.us - from.us);
                (from.rows, us + self.projection_us(from.rows.min(projection_rows)))
            })
            .collect();
        CostProfile::from_measurements(&measurements)
    }

    /// Time of projecting `rows` rows: that of the next number measured.
    fn projection_us(&self, rows: usize) -> f32 {
        let next = self.projection.iter().find(|cost| cost.rows >= rows).or(self.projection.last());
        next.map_or(0.0, |cost| cost.us)
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// [`ProfileError`]: the file cannot be read, is too long, or is no profile of this version.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        let io = |source| ProfileError::Io { path: path.to_owned(), source };
        let file = fs::File::open(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(ProfileError::TooLarge { path: path.to_owned(), bytes });
        }
        let mut text = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(io)?;
        Self::parse(&text, path)
    }

    fn parse(text: &[u8], path: &Path) -> Result<Self, ProfileError> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let json = |source| ProfileError::Json { path: path.to_owned(), source };
        let Versioned { version } = serde_json::from_slice(text).map_err(json)?;
        if version != VERSION {
            return Err(ProfileError::Version { path: path.to_owned(), given: version });
        }
        let profile: Self = serde_json::from_slice(text).map_err(json)?;
        let field = |field, reason| ProfileError::Field { path: path.to_owned(), field, reason };
        for (name, list) in
            [("verify", &profile.verify), ("projection", &profile.projection), ("prefill", &profile.prefill)]
        {
            check(list).map_err(|reason| field(name, reason))?;
        }
        let rows_of = |context: usize| {
            let costs = profile.verify.iter().filter(move |cost| cost.context == context);
            costs.map(|cost| cost.rows)
        };
        let first = profile.verify.first().ok_or_else(|| field("verify", "it is empty"))?.context;
        if profile.verify.iter().any(|cost| !rows_of(cost.context).eq(rows_of(first))) {
            return Err(field("verify", "the contexts have different rows"));
        }
        Ok(profile)
    }

    /// Writes the profile, in place of a file that may be there already, whole or not at all.
    ///
    /// # Errors
    /// [`ProfileError::Io`]; the old file is unchanged.
    pub fn write(&self, path: &Path) -> Result<(), ProfileError> {
        let io = |source| ProfileError::Io { path: path.to_owned(), source };
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}.tmp", std::process::id()));
        let temporary = path.with_file_name(name);
        let written = fs::File::create(&temporary).and_then(|mut file| {
            serde_json::to_writer_pretty(&mut file, self)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&temporary, path)
        });
        written.map_err(|source| {
            // What is left of the attempt helps nobody; the error that matters is the first.
            let _ = fs::remove_file(&temporary);
            io(source)
        })
    }
}

/// Ascending, once each, none above `max`.
fn ascending(values: &[usize], max: usize) -> Vec<usize> {
    let mut values: Vec<usize> = values.iter().copied().filter(|&value| value <= max).collect();
    values.sort_unstable();
    values.dedup();
    values
}

/// What every list of a profile keeps to.
fn check(list: &[PassCost]) -> Result<(), &'static str> {
    if list.len() > ENTRIES_MAX {
        return Err("it has too many entries");
    }
    if list.iter().any(|cost| cost.rows == 0 || !cost.us.is_finite() || cost.us <= 0.0) {
        return Err("rows and times must be positive numbers");
    }
    if !list.is_sorted_by(|a, b| (a.context, a.rows) < (b.context, b.rows)) {
        return Err("entries must rise by context, then by rows");
    }
    Ok(())
}

/// Runs passes over a cache of zeros: what they cost does not depend on the values.
struct Probe<'a> {
    model: &'a Model,
    compute: Compute<'a>,
    kv: KvCache,
    workspace: Workspace,
    batch: Batch,
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
        Ok(Self {
            model,
            compute,
            kv: KvCache::new(model.config(), options.kv_type, n_slots)?,
            workspace: Workspace::new(model.config()),
            batch: Batch::new(),
            logits: Vec::new(),
            entry_time: options.entry_time,
        })
    }

    fn pass(&mut self, context: usize, rows: usize, end: PassEnd) -> PassCost {
        self.kv.truncate(0);
        self.kv.commit(0..context);
        self.batch.set_chain(context, &vec![TokenId(0); rows]);
        let us = least_us(self.entry_time, || {
            let Self { model, compute, batch, kv, workspace, .. } = self;
            let never = AtomicBool::new(false);
            model
                .forward(*compute, batch, kv, workspace, end, &never)
                .expect("rows of token 0 fit the cache");
        });
        PassCost { context, rows, us }
    }

    fn projection(&mut self, rows: usize) -> PassCost {
        self.pass(0, rows, PassEnd::Hidden);
        let all: Vec<u32> = (0..rows as u32).collect();
        let us = least_us(self.entry_time, || {
            self.model.logits(self.compute, &mut self.workspace, &all, &mut self.logits);
        });
        PassCost { context: 0, rows, us }
    }
}

/// The least of the runs that fit `time`, of two at least: the first one warms up.
fn least_us(time: Duration, mut run: impl FnMut()) -> f32 {
    let start = Instant::now();
    let mut least = f32::INFINITY;
    let mut n_runs = 0;
    while n_runs < 2 || start.elapsed() < time {
        let run_start = Instant::now();
        run();
        least = least.min(run_start.elapsed().as_secs_f32() * 1e6);
        n_runs += 1;
    }
    least.max(f32::MIN_POSITIVE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> MachineProfile {
        let key = ProfileKey {
            isa: "scalar".to_owned(),
            n_threads: 2,
            n_layers: 1,
            hidden_dim: 64,
            ffn_dim: 128,
            n_heads: 2,
            n_kv_heads: 1,
            head_dim: 32,
            vocab_size: 300,
            weights_bytes: 1000,
        };
        let cost = |context, rows, us| PassCost { context, rows, us };
        MachineProfile {
            version: VERSION,
            key,
            verify: vec![cost(0, 1, 100.0), cost(0, 8, 200.0), cost(1000, 1, 300.0), cost(1000, 8, 600.0)],
            projection: vec![cost(0, 1, 10.0), cost(0, 8, 40.0)],
            prefill: vec![cost(0, 64, 900.0)],
        }
    }

    #[test]
    fn costs_are_linear_between_contexts_and_constant_beyond() {
        let profile = profile();
        for (context, one, eight) in
            [(0, 110.0, 240.0), (500, 210.0, 440.0), (1000, 310.0, 640.0), (9999, 310.0, 640.0)]
        {
            let costs = profile.costs(context, 8);
            assert!((costs.verify_us(1) - one).abs() < 0.1, "{context}: {}", costs.verify_us(1));
            assert!((costs.verify_us(8) - eight).abs() < 0.1, "{context}: {}", costs.verify_us(8));
        }
        // One row projected at a time.
        assert!((profile.costs(0, 1).verify_us(8) - 210.0).abs() < 0.1);
    }

    #[test]
    fn written_profiles_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.profile.json");
        profile().write(&path).unwrap();
        assert_eq!(MachineProfile::read(&path).unwrap(), profile());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
        let missing = folder.path().join("none").join("m.json");
        assert!(matches!(profile().write(&missing), Err(ProfileError::Io { .. })));
        assert!(matches!(MachineProfile::read(&missing), Err(ProfileError::Io { .. })));
    }

    #[test]
    fn what_is_no_profile_is_refused_with_its_reason() {
        let parse = |profile: &MachineProfile| {
            MachineProfile::parse(&serde_json::to_vec(profile).unwrap(), Path::new("p.json"))
        };
        let changed = |change: &dyn Fn(&mut MachineProfile)| {
            let mut profile = profile();
            change(&mut profile);
            parse(&profile).unwrap_err().to_string()
        };
        assert!(changed(&|p| p.version = 9).contains("version 9"));
        assert!(changed(&|p| p.verify.clear()).contains("`verify`: it is empty"));
        assert!(changed(&|p| p.verify[2].rows = 2).contains("different rows"));
        assert!(changed(&|p| p.verify.swap(0, 1)).contains("must rise"));
        assert!(changed(&|p| p.projection[0].us = -1.0).contains("`projection`: rows and times"));
        assert!(changed(&|p| p.prefill[0].rows = 0).contains("`prefill`: rows and times"));
        for text in ["", "{}", "[]", "{\"version\":1}", "{\"version\":1,\"key\":3}"] {
            let error = MachineProfile::parse(text.as_bytes(), Path::new("p.json"));
            assert!(matches!(error, Err(ProfileError::Json { .. })), "{text}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long.json");
        fs::write(&path, vec![b' '; FILE_BYTES_MAX as usize + 1]).unwrap();
        assert!(
            matches!(MachineProfile::read(&path), Err(ProfileError::TooLarge { bytes, .. }) if bytes == FILE_BYTES_MAX + 1)
        );
    }
}
