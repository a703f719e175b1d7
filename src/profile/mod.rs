//! The costs of steps on this machine, by rows and context: measured once, stored beside the model.
//!
//! An engine measures a short [`CostProfile`] whenever it is loaded. A [`MachineProfile`] takes longer to
//! measure, includes the higher cost of rows after a long context, and saves the second of measurement at
//! every load.

mod cpu;
mod energy;
mod measure;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::draft::CostProfile;
use crate::error::LoadError;
use crate::face::internals;
use crate::kernels::KvType;
use crate::model::config::{FeedForward, Widths};
use crate::model::transformer::{Compute, ForwardError};
use crate::model::{Model, ModelConfig, kv_cache::KvCacheError};
use refrain_files::replace::{Manner, ReplaceError, replace_file};
use refrain_files::{ErrorKind, Facts, Fault, open_regular};

pub use cpu::cpu_name;
pub use energy::ThreadEnergy;
pub(crate) use energy::measure_energy;
pub use measure::ProfileOptions;

pub(crate) mod kv_type_name {
    //! `KvType` as its name, because `kernels` does not depend on serde.
    use super::KvType;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(crate) fn serialize<S: Serializer>(kv_type: &KvType, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(kv_type.name())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<KvType, D::Error> {
        let name = String::deserialize(deserializer)?;
        let found = KvType::ALL.iter().copied().find(|kv_type| kv_type.name() == name);
        found.ok_or_else(|| D::Error::unknown_variant(&name, &["f16", "f32", "q8_0", "q4_0"]))
    }
}

/// The format version of this program.
const VERSION: u32 = 2;

/// Maximum size of a profile file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Maximum entries of each list.
const ENTRIES_MAX: usize = 4096;

/// Maximum time of a pass, in µs: an hour, so that sums of times stay finite.
const US_MAX: f32 = 3.6e9;

/// The key of a profile: everything that affects the cost of a pass, besides its rows and its context.
/// Weights of the same shape and size cost the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileKey {
    /// The CPU's model name.
    pub cpu: String,
    /// Instruction set of the kernels.
    pub isa: String,
    /// Threads of the forward pass.
    pub n_threads: usize,
    /// Number of layers.
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
    /// Experts of a layer, at most; 0: the model has none. Profiles of models with experts that lack it were measured with rows
    /// that all used the same experts, which is too cheap; they do not match.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub n_experts: usize,
    /// Element type of the KV cache. Each session chooses its own type, so it is compared when a generation
    /// starts.
    #[serde(with = "kv_type_name")]
    pub kv_type: KvType,
}

fn is_zero(n: &usize) -> bool {
    *n == 0
}

/// The first difference between the key of a stored profile and this machine, model or session: the profile
/// is ignored.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("it was measured with {field} {measured}, here it is {here}")]
pub struct ProfileMismatch {
    /// Name of the differing field.
    pub field: &'static str,
    /// Its value in the profile.
    pub measured: String,
    /// Its value here.
    pub here: String,
}

/// The measured time of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PassCost {
    /// Tokens in the KV cache before the pass.
    pub context: usize,
    /// Rows of the pass.
    pub rows: usize,
    /// The minimum of several runs, µs.
    pub us: f32,
}

/// The costs of steps on one machine for one model shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineProfile {
    version: u32,
    key: ProfileKey,
    /// Passes to the final hidden states; the same numbers of rows for every context; ascending by context,
    /// then by rows.
    verify: Vec<PassCost>,
    /// Projections of hidden states onto the vocabulary, ascending by rows; the context is 0.
    projection: Vec<PassCost>,
    /// Prefill chunks without hidden states, ascending by rows; the context is 0.
    prefill: Vec<PassCost>,
}

/// A profile could not be read, written, or used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file could not be read or written; an existing file is unchanged.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The new file could not be created, synced or renamed; an existing file is unchanged.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// The file is longer than any valid profile.
    #[error("{path}: {bytes} bytes exceed the {FILE_BYTES_MAX} of a profile")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The file is not a valid profile.
    #[error("{path}: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// The JSON error, with line and column.
        source: serde_json::Error,
    },
    /// The file has an unsupported version.
    #[error("{path}: version {given} of a profile, this program reads {VERSION}; measure it again")]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        given: u32,
    },
    /// A list has invalid content.
    #[error("{path}: `{field}`: {reason}")]
    Field {
        /// The file.
        path: PathBuf,
        /// The list.
        field: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// No requested entry can be measured.
    #[error("there is nothing to measure: `{option}` has no usable entry")]
    NothingToMeasure {
        /// The option.
        option: &'static str,
    },
    /// The memory for the measurement could not be allocated.
    #[error(transparent)]
    KvCache(#[from] KvCacheError),
    /// Streamed weights could not be read.
    #[error(transparent)]
    Forward(#[from] ForwardError),
}

impl Fault for ProfileError {
    fn facts(&self) -> Facts<'_> {
        let damaged = Facts::new(ErrorKind::Damaged);
        match self {
            Self::Io { path, source } => Facts::io(source.kind()).file(path),
            Self::Replace(error) => error.facts(),
            Self::TooLarge { path, bytes } => {
                Facts::new(ErrorKind::OverLimit).file(path).over(*bytes, FILE_BYTES_MAX)
            }
            Self::Json { path, .. } => damaged.file(path),
            Self::Version { path, .. } => Facts::new(ErrorKind::Unsupported).file(path),
            Self::Field { path, field, .. } => damaged.file(path).field(field),
            Self::NothingToMeasure { option } => Facts::new(ErrorKind::InvalidArgument).field(option),
            Self::KvCache(error) => error.facts(),
            Self::Forward(error) => error.facts(),
        }
    }
}

impl Fault for ProfileMismatch {
    fn facts(&self) -> Facts<'_> {
        Facts::new(ErrorKind::Mismatch).field(self.field)
    }
}

impl ProfileKey {
    pub(super) fn new(model: &Model, compute: Compute<'_>, kv_type: KvType) -> Self {
        Self {
            cpu: cpu_name(),
            isa: compute.kernels.isa().name().to_owned(),
            n_threads: compute.pool.n_threads(),
            ..Self::of(model.config(), kv_type, model.memory_usage())
        }
    }

    /// The part of the key that belongs to a model with so many bytes of weights; the machine is left open.
    pub(super) fn of(config: &ModelConfig, kv_type: KvType, weights_bytes: usize) -> Self {
        let ModelConfig { hidden_dim, vocab_size, .. } = *config;
        let Widths { n_heads, n_kv_heads, head_dim, ffn_dim, .. } = config.widths();
        let experts = config.layers.iter().map(|layer| match &layer.feed {
            FeedForward::Experts(experts) => experts.n_experts,
            FeedForward::None | FeedForward::Dense(_) => 0,
        });
        Self {
            cpu: String::new(),
            isa: String::new(),
            n_threads: 0,
            n_layers: config.n_layers(),
            hidden_dim,
            ffn_dim,
            n_heads,
            n_kv_heads,
            head_dim,
            vocab_size,
            weights_bytes,
            n_experts: experts.max().unwrap_or(0),
            kv_type,
        }
    }

    /// The first difference from `here`, except the type of the KV cache.
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
                ("experts", key.n_experts.to_string()),
            ]
        };
        let mut pairs = fields(self).into_iter().zip(fields(here));
        let ((field, measured), (_, here)) = pairs.find(|(measured, here)| measured != here)?;
        Some(ProfileMismatch { field, measured, here })
    }

    /// The difference in the type of the KV cache, if any.
    pub(super) fn kv_mismatch(&self, kv_type: KvType) -> Option<ProfileMismatch> {
        let [measured, here] = [self.kv_type, kv_type].map(|kv_type| kv_type.to_string());
        (self.kv_type != kv_type).then_some(ProfileMismatch { field: "KV type", measured, here })
    }
}

impl MachineProfile {
    internals! {
        /// The key of the profile.
        fn key(&self) -> &ProfileKey {
            &self.key
        }

        /// Passes to the final hidden states, ascending by context, then by rows.
        fn verify(&self) -> &[PassCost] {
            &self.verify
        }

        /// The output projection, ascending by rows.
        fn projection(&self) -> &[PassCost] {
            &self.projection
        }

        /// Prefill chunks, ascending by rows.
        fn prefill(&self) -> &[PassCost] {
            &self.prefill
        }

        /// The cost of a step after `context` tokens, with `projection_rows` rows projected at a time. Linear
        /// between the measured contexts, constant after the last one.
        fn costs(&self, context: usize, projection_rows: usize) -> CostProfile {
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
    }

    /// Cost of projecting rows onto the vocabulary.
    pub(super) fn projection_costs(&self) -> CostProfile {
        let measurements: Vec<(usize, f32)> =
            self.projection.iter().map(|cost| (cost.rows, cost.us)).collect();
        CostProfile::from_measurements(&measurements)
    }

    /// Time of a prefill chunk of `rows` rows without a context, µs: linear between the measured lengths and from a step of one row to the
    /// shortest, and in proportion beyond the longest.
    pub(super) fn prefill_us(&self, rows: usize) -> f64 {
        let one = self.verify.first().map(|cost| (cost.rows, f64::from(cost.us)));
        let points = self.prefill.iter().map(|cost| (cost.rows, f64::from(cost.us)));
        let mut before = one.unwrap_or((1, 0.0));
        for (to, us) in points {
            if rows <= to {
                let (from, from_us) = before;
                let share = rows.saturating_sub(from) as f64 / to.saturating_sub(from).max(1) as f64;
                return from_us + share * (us - from_us);
            }
            before = (to, us);
        }
        before.1 * rows as f64 / before.0 as f64
    }

    /// Time of projecting `rows` rows: the time of the next measured number of rows.
    fn projection_us(&self, rows: usize) -> f32 {
        let next = self.projection.iter().find(|cost| cost.rows >= rows).or(self.projection.last());
        next.map_or(0.0, |cost| cost.us)
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// The file cannot be read, is too long, or is not a profile of this version.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        let path = path.as_ref();
        let io = |source| ProfileError::Io { path: path.to_owned(), source };
        let file = open_regular(path).map_err(io)?;
        let bytes = file.metadata().map_err(io)?.len();
        if bytes > FILE_BYTES_MAX {
            return Err(ProfileError::TooLarge { path: path.to_owned(), bytes }.into());
        }
        let mut text = Vec::new();
        file.take(FILE_BYTES_MAX).read_to_end(&mut text).map_err(io)?;
        Self::parse(&text, path)
    }

    /// Parses a profile in memory; `path` is used in error messages.
    ///
    /// # Errors
    /// The text is too long, or not a profile of this version.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, LoadError> {
        if text.len() as u64 > FILE_BYTES_MAX {
            return Err(ProfileError::TooLarge { path: path.to_owned(), bytes: text.len() as u64 }.into());
        }
        let json = |source| ProfileError::Json { path: path.to_owned(), source };
        // Parsed as an object, because serde would also accept a list for a struct.
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_slice(text).map_err(json)?;
        let version = object.get("version").unwrap_or(&serde_json::Value::Null);
        let version = u32::deserialize(version).map_err(json)?;
        if version != VERSION {
            return Err(ProfileError::Version { path: path.to_owned(), given: version }.into());
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
            return Err(field("verify", "the contexts have different rows").into());
        }
        Ok(profile)
    }

    /// Writes the profile atomically; an existing file is replaced.
    ///
    /// # Errors
    /// The file cannot be written; the old file is unchanged.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<(), LoadError> {
        let path = path.as_ref();
        Ok(replace_file(path, Manner::Shared, |file| {
            let written = serde_json::to_writer_pretty(&mut *file, self).map_err(std::io::Error::from);
            let written = written.and_then(|()| file.write_all(b"\n"));
            written.map_err(|source| ProfileError::Io { path: path.to_owned(), source })
        })?)
    }
}

/// Checks the rules of every list of a profile.
fn check(list: &[PassCost]) -> Result<(), &'static str> {
    if list.is_empty() {
        return Err("it is empty");
    }
    if list.len() > ENTRIES_MAX {
        return Err("it has too many entries");
    }
    // NaN is in no range.
    if list.iter().any(|cost| cost.rows == 0 || !(f32::MIN_POSITIVE..=US_MAX).contains(&cost.us)) {
        return Err("rows and times must be positive numbers, and no time over an hour");
    }
    if !list.is_sorted_by(|a, b| (a.context, a.rows) < (b.context, b.rows)) {
        return Err("entries must rise by context, then by rows");
    }
    Ok(())
}

#[cfg(test)]
impl ProfileKey {
    /// The key of some machine and model.
    pub(crate) fn example() -> Self {
        Self {
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
            n_experts: 0,
            kv_type: KvType::F16,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn profile() -> MachineProfile {
        let key = ProfileKey::example();
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
            assert!((costs.verify_us(1, 1) - one).abs() < 0.1, "{context}: {}", costs.verify_us(1, 1));
            assert!((costs.verify_us(8, 1) - eight).abs() < 0.1, "{context}: {}", costs.verify_us(8, 1));
        }
        // One row is projected at a time.
        assert!((profile.costs(0, 1).verify_us(8, 1) - 210.0).abs() < 0.1);
    }

    #[test]
    fn chunks_between_the_measured_ones_have_times_between() {
        let profile = profile();
        for (rows, us) in [(1, 100.0), (64, 900.0), (128, 1800.0), (640, 9000.0)] {
            assert!((profile.prefill_us(rows) - us).abs() < 1e-6, "{rows}: {}", profile.prefill_us(rows));
        }
        assert!(profile.prefill_us(20) > 100.0 && profile.prefill_us(20) < 900.0);
    }

    #[test]
    fn written_profiles_are_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.profile.json");
        profile().write(&path).unwrap();
        assert_eq!(MachineProfile::read(&path).unwrap(), profile());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
        let missing = folder.path().join("none").join("m.json");
        assert!(matches!(profile().write(&missing).unwrap_err().detail(), Some(ProfileError::Replace(_))));
        assert!(matches!(
            MachineProfile::read(&missing).unwrap_err().detail(),
            Some(ProfileError::Io { .. })
        ));
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
            assert!(matches!(error.unwrap_err().detail(), Some(ProfileError::Json { .. })), "{text}");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("long.json");
        fs::write(&path, vec![b' '; FILE_BYTES_MAX as usize + 1]).unwrap();
        let error = MachineProfile::read(&path).unwrap_err();
        assert!(
            matches!(error.detail(), Some(ProfileError::TooLarge { bytes, .. }) if *bytes == FILE_BYTES_MAX + 1)
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
        // Files of before experts were counted have no number of them: those of dense models stay valid.
        assert!(!serde_json::to_string(&here).unwrap().contains("experts"));
        let with_experts = ProfileKey { n_experts: 128, ..here.clone() };
        assert_eq!(
            here.mismatch(&with_experts).unwrap().to_string(),
            "it was measured with experts 0, here it is 128"
        );
        let read = serde_json::from_str::<ProfileKey>(&serde_json::to_string(&with_experts).unwrap());
        assert_eq!(read.unwrap(), with_experts);
        // The KV cache type belongs to the session.
        let other_kv = ProfileKey { kv_type: KvType::Q8_0, ..here.clone() };
        assert_eq!(other_kv.mismatch(&here), None);
        let mismatch = here.kv_mismatch(KvType::Q8_0).unwrap();
        assert_eq!(mismatch.to_string(), "it was measured with KV type f16, here it is q8_0");
        assert_eq!(here.kv_mismatch(KvType::F16), None);
    }
}
