//! What steps cost on this machine, by rows and context: measured once, stored beside the model.
//!
//! An engine measures a short [`CostProfile`] whenever it is loaded. A [`MachineProfile`] takes longer, knows that rows cost
//! more behind a long context, and saves that second of loading.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::cpu::cpu_name;
use super::options::{PREFILL_CHUNK_MAX, kv_type_name};
use crate::draft::{CostProfile, VERIFY_ROWS_MAX};
use crate::kernels::KvType;
use crate::model::transformer::{Compute, PassEnd};
use crate::model::{Batch, KvCache, Model, ModelConfig, Workspace, kv_cache::KvCacheError};
use crate::replace::{ReplaceError, replace_file};
use crate::token::TokenId;

/// The format that this version writes and reads.
const VERSION: u32 = 2;

/// The largest file that is read as a profile.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Entries of each list at most.
const ENTRIES_MAX: usize = 4096;

/// The longest time of a pass, in µs: an hour, so that sums of times stay numbers.
const US_MAX: f32 = 3.6e9;

/// What decides the cost of a pass, besides its rows and its context. Weights of the same shape and size cost the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileKey {
    /// The CPU's model name.
    pub cpu: String,
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
    /// Element type of the KV cache. Sessions have their own: it is compared when one of them generates.
    #[serde(with = "kv_type_name")]
    pub kv_type: KvType,
}

/// Why a stored profile is left aside: it does not tell what steps cost here.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("it was measured with {field} {measured}, here it is {here}")]
pub struct ProfileMismatch {
    /// What differs.
    pub field: &'static str,
    /// What it was measured with.
    pub measured: String,
    /// What it is here.
    pub here: String,
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
    /// The new file could not be created, synced or renamed; a file that was there before is unchanged.
    #[error("cannot {action} `{}`: {source}", path.display())]
    Replace {
        /// What was tried.
        action: &'static str,
        /// With which file.
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
    /// Nothing of what was asked for can be measured.
    #[error("there is nothing to measure: `{option}` has no usable entry")]
    NothingToMeasure {
        /// The option.
        option: &'static str,
    },
    /// There was no memory for the measurement.
    #[error(transparent)]
    KvCache(#[from] KvCacheError),
}

impl From<ReplaceError> for ProfileError {
    fn from(ReplaceError { action, path, source }: ReplaceError) -> Self {
        Self::Replace { action, path, source }
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct ProfileOptions {
    /// Contexts besides 0; longer ones than the model was trained for become the longest that leaves room for a batch.
    pub contexts: Vec<usize>,
    /// Numbers of rows; those outside 1..=[`VERIFY_ROWS_MAX`] are left out.
    pub rows: Vec<usize>,
    /// Lengths of prefill chunks; longer ones than the model was trained for become that long.
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
    pub(super) fn new(model: &Model, compute: Compute<'_>, kv_type: KvType) -> Self {
        let ModelConfig { n_layers, hidden_dim, ffn_dim, n_heads, n_kv_heads, head_dim, vocab_size, .. } =
            *model.config();
        Self {
            cpu: cpu_name(),
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
            kv_type,
        }
    }

    /// The first thing that differs from `here`, the type of the KV cache aside.
    pub(super) fn mismatch(&self, here: &Self) -> Option<ProfileMismatch> {
        let fields = |key: &Self| {
            [
                ("CPU", key.cpu.clone()),
                ("instruction set", key.isa.clone()),
                ("threads", key.n_threads.to_string()),
                ("layers", key.n_layers.to_string()),
                ("hidden width", key.hidden_dim.to_string()),
                ("feed-forward width", key.ffn_dim.to_string()),
                ("heads", key.n_heads.to_string()),
                ("KV heads", key.n_kv_heads.to_string()),
                ("head width", key.head_dim.to_string()),
                ("vocabulary", key.vocab_size.to_string()),
                ("bytes of weights", key.weights_bytes.to_string()),
            ]
        };
        let mut pairs = fields(self).into_iter().zip(fields(here));
        let ((field, measured), (_, here)) = pairs.find(|(measured, here)| measured != here)?;
        Some(ProfileMismatch { field, measured, here })
    }

    /// The same for the type of the KV cache.
    pub(super) fn kv_mismatch(&self, kv_type: KvType) -> Option<ProfileMismatch> {
        let [measured, here] = [self.kv_type, kv_type].map(|kv_type| kv_type.to_string());
        (self.kv_type != kv_type).then_some(ProfileMismatch { field: "KV type", measured, here })
    }
}

impl MachineProfile {
    pub(super) fn measure(
        model: &Model,
        compute: Compute<'_>,
        options: &ProfileOptions,
        mut progress: impl FnMut(usize, usize),
    ) -> Result<Self, ProfileError> {
        let Plan { contexts, rows, prefill: chunks, n_slots } =
            Plan::new(options, model.config().context_len)?;
        let mut probe = Probe::new(model, compute, options, n_slots)?;
        let n_entries = contexts.len() * rows.len() + rows.len() + chunks.len();
        let mut n_done = 0;
        let mut done = || {
            n_done += 1;
            progress(n_done, n_entries);
        };
        let mut verify = Vec::new();
        for &context in &contexts {
            for &rows in &rows {
                verify.push(probe.pass(context, rows, PassEnd::Hidden));
                done();
            }
        }
        let mut projection = Vec::new();
        for &rows in &rows {
            projection.push(probe.projection(rows));
            done();
        }
        let mut prefill = Vec::new();
        for &rows in &chunks {
            prefill.push(probe.pass(0, rows, PassEnd::KeysAndValues));
            done();
        }
        let key = ProfileKey::new(model, compute, options.kv_type);
        Ok(Self { version: VERSION, key, verify, projection, prefill })
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

    /// Reads a profile that is in memory; `path` stands for it in messages.
    ///
    /// # Errors
    /// [`ProfileError`]: the text is too long, or no profile of this version.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, ProfileError> {
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(ProfileError::TooLarge { path: path.to_owned(), bytes: text.len() as u64 });
        }
        let json = |source| ProfileError::Json { path: path.to_owned(), source };
        // An object: for a struct, serde would take a list as well.
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(text).map_err(json)?;
        let version = object.get("version").unwrap_or(&serde_json::Value::Null);
        let version = u32::deserialize(version).map_err(json)?;
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
        let rows = |costs: &[PassCost]| costs.iter().map(|cost| cost.rows).collect::<Vec<_>>();
        let mut contexts = profile.verify.chunk_by(|a, b| a.context == b.context).map(rows);
        let first = contexts.next();
        if contexts.any(|rows| Some(rows) != first) {
            return Err(field("verify", "the contexts have different rows"));
        }
        Ok(profile)
    }

    /// Writes the profile, in place of a file that may be there already, whole or not at all.
    ///
    /// # Errors
    /// [`ProfileError::Io`], [`ProfileError::Replace`]; the old file is unchanged.
    pub fn write(&self, path: &Path) -> Result<(), ProfileError> {
        replace_file(path, |file| {
            let written = serde_json::to_writer_pretty(&mut *file, self).map_err(std::io::Error::from);
            let written = written.and_then(|()| file.write_all(b"\n"));
            written.map_err(|source| ProfileError::Io { path: path.to_owned(), source })
        })
    }
}

/// What is measured of a model, from what was asked for.
#[derive(Debug)]
struct Plan {
    contexts: Vec<usize>,
    rows: Vec<usize>,
    prefill: Vec<usize>,
    /// Of the KV cache: enough for each pass.
    n_slots: usize,
}

impl Plan {
    fn new(options: &ProfileOptions, trained_len: usize) -> Result<Self, ProfileError> {
        // The longest batch behind the longest context is inside of what the model was trained for.
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

/// Ascending, once each.
fn ascending(values: impl Iterator<Item = usize>) -> Vec<usize> {
    values.collect::<BTreeSet<_>>().into_iter().collect()
}

/// What every list of a profile keeps to.
fn check(list: &[PassCost]) -> Result<(), &'static str> {
    if list.is_empty() {
        return Err("it is empty");
    }
    if list.len() > ENTRIES_MAX {
        return Err("it has too many entries");
    }
    // Not a number is in no range.
    if list.iter().any(|cost| cost.rows == 0 || !(f32::MIN_POSITIVE..=US_MAX).contains(&cost.us)) {
        return Err("rows and times must be positive numbers, and no time over an hour");
    }
    if !list.is_sorted_by(|a, b| (a.context, a.rows) < (b.context, b.rows)) {
        return Err("entries must rise by context, then by rows");
    }
    Ok(())
}

/// Runs passes over a cache whose every slot has been written: what they cost does not depend on the values, but reading
/// memory that nobody has written costs nothing.
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
        let ModelConfig { n_kv_heads, head_dim, .. } = *model.config();
        let mut kv = KvCache::new(model.config(), options.kv_type, n_slots)?;
        kv.fill(compute.kernels, &vec![0.5; n_kv_heads * head_dim]);
        Ok(Self {
            model,
            compute,
            kv,
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
    least.clamp(f32::MIN_POSITIVE, US_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::{Kernels, Pool};
    use crate::model::Checkpoint;
    use crate::model::weights::LoadOptions;

    fn profile() -> MachineProfile {
        let key = ProfileKey {
            cpu: "A CPU".to_owned(),
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
            kv_type: KvType::F16,
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
        assert!(matches!(profile().write(&missing), Err(ProfileError::Replace { .. })));
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
        assert!(changed(&|p| p.projection.clear()).contains("`projection`: it is empty"));
        assert!(changed(&|p| p.prefill.clear()).contains("`prefill`: it is empty"));
        assert!(changed(&|p| p.verify[0].us = 3e38).contains("`verify`: rows and times"));
        assert!(changed(&|p| p.verify[2].rows = 2).contains("different rows"));
        assert!(changed(&|p| p.verify.swap(0, 1)).contains("must rise"));
        assert!(changed(&|p| p.projection[0].us = -1.0).contains("`projection`: rows and times"));
        assert!(changed(&|p| p.prefill[0].rows = 0).contains("`prefill`: rows and times"));
        for text in ["", "{}", "[]", "{\"version\":2}", "{\"version\":2,\"key\":3}"] {
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

    #[test]
    fn profiles_of_another_machine_or_model_are_told_apart() {
        let here = profile().key;
        assert_eq!(here.mismatch(&here), None);
        let told = |change: &dyn Fn(&mut ProfileKey)| {
            let mut measured = here.clone();
            change(&mut measured);
            measured.mismatch(&here).expect("they differ").to_string()
        };
        assert_eq!(
            told(&|key| key.cpu = "Another".to_owned()),
            "it was measured with CPU Another, here it is A CPU"
        );
        assert_eq!(told(&|key| key.n_threads = 7), "it was measured with threads 7, here it is 2");
        assert!(told(&|key| key.isa = "avx2".to_owned()).contains("instruction set avx2"));
        assert!(told(&|key| key.weights_bytes = 1).contains("bytes of weights 1,"));
        // The KV cache is a session's own.
        let other_kv = ProfileKey { kv_type: KvType::Q8_0, ..here.clone() };
        assert_eq!(other_kv.mismatch(&here), None);
        let mismatch = here.kv_mismatch(KvType::Q8_0).unwrap();
        assert_eq!(mismatch.to_string(), "it was measured with KV type f16, here it is q8_0");
        assert_eq!(here.kv_mismatch(KvType::F16), None);
    }

    #[test]
    fn what_is_asked_for_is_cut_to_what_the_model_was_trained_for() {
        let plan = |trained_len| Plan::new(&ProfileOptions::default(), trained_len).unwrap();
        assert_eq!(plan(4096).contexts, [0, 1024, 4096 - VERIFY_ROWS_MAX]);
        assert_eq!(plan(100_000).contexts, [0, 1024, 4096]);
        assert_eq!((plan(300).contexts, plan(300).prefill), (vec![0, 236], vec![64, 128, 256, 300]));
        // Fewer tokens than the longest batch: every row is measured all the same.
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
        let model =
            Model::load(&Checkpoint::open(fixture.as_ref()).unwrap(), LoadOptions::default()).unwrap();
        let (pool, n_slots) = (Pool::try_new(1).unwrap(), 40);
        let compute = Compute { kernels: Kernels::detect(), pool: &pool };
        let options = ProfileOptions { entry_time: Duration::ZERO, ..ProfileOptions::default() };
        let mut probe = Probe::new(&model, compute, &options, n_slots).unwrap();
        // What one row gives behind a context tells a slot of zeros from a written one.
        let logits = |probe: &mut Probe, context: usize| {
            probe.pass(context, 1, PassEnd::Hidden);
            model.logits(compute, &mut probe.workspace, &[0], &mut probe.logits);
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
