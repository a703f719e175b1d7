//! The learned state of drafting, as one value that is passed between generations and between runs.
//!
//! ```text
//! engine ──start──► generation: table, times, costs ──merge(base, theirs)──► engine ──save──► file ──load──► the next run
//! ```
//!
//! A generation starts from a copy and merges its evidence into the engine's value at its end. Concurrent
//! generations therefore all count.
//!
//! # File
//! A line `refrain-learned VERSION CHECKSUM`, then JSON; the checksum is XXH3-64 of the JSON, in hexadecimal
//! digits. The JSON names the model and the machine. The reliability of sources is valid for a model on any
//! machine; times are valid for one machine. From a file of another machine only the reliability is loaded. A
//! file of another model is an error.

use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use super::cost::stored::{StoredCorrection, StoredCosts};
use super::cost::{CostCorrection, CostProfile};
use super::draft_times::{DraftTimes, Mean};
use super::name::SourceName;
use super::reliability::{ReliabilityTable, StoredRecord};
use crate::face::internals;
use refrain_files::replace::{Manner, ReplaceError, replace_file};
use refrain_files::{ErrorKind, Facts, Fault, open_regular};

/// The format version of this program.
const VERSION: u32 = 1;

/// Maximum size of a file; a full table takes less.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// The learned state of drafting: reliability of each source, times of drafting, and costs of verification
/// steps.
///
/// Memory: 20 KB, and 13 KB per source name (at most 254).
#[derive(Clone, Debug)]
pub struct Learned {
    reliability: ReliabilityTable,
    times: DraftTimes,
    costs: Counted<CostProfile>,
    correction: Counted<CostCorrection>,
}

/// Costs, and the number of steps that they were learned from.
#[derive(Clone, Debug)]
struct Counted<T> {
    costs: T,
    n_steps: u64,
}

/// The scope of a [`Learned`]: times are valid for one machine, reliability for one model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LearnedKey {
    /// The model's identity.
    pub model: String,
    /// The CPU's model name.
    pub cpu: String,
    /// Instruction set of the kernels.
    pub isa: String,
    /// Threads of the forward pass.
    pub n_threads: usize,
    /// Bytes of the weights in memory: a streamed model has other times.
    pub weights_bytes: usize,
}

/// The result of reading a file.
#[derive(Debug)]
pub struct Loaded {
    /// The valid part of the file's content; times of another machine are replaced by those of `fresh`.
    pub learned: Learned,
    /// Whether the times belong to another machine and were left out.
    pub is_of_other_machine: bool,
}

/// A file of learned values could not be read or written. An existing file is unchanged.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LearnedError {
    /// The file could not be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The new file could not be created, synced or renamed.
    #[error(transparent)]
    Replace(#[from] ReplaceError),
    /// The file is longer than any valid file.
    #[error("{}: {bytes} bytes exceed the {FILE_BYTES_MAX} of learnt values", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// The first line is not that of a file of learned values.
    #[error("{}: not a file of learnt values", path.display())]
    NotLearned {
        /// The file.
        path: PathBuf,
    },
    /// The program does not support the file's version.
    #[error("{}: version {given} of learnt values, this program reads {VERSION}", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        given: u32,
    },
    /// The content does not match the checksum.
    #[error("{}: damaged: checksum {found:016x} instead of {stated:016x}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The checksum in the file.
        stated: u64,
        /// The checksum of the content.
        found: u64,
    },
    /// The content is not valid JSON of the expected structure.
    #[error("{}: {source}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// The JSON error, with line and column.
        source: serde_json::Error,
    },
    /// A value is outside its range.
    #[error("{}: `{field}`: {reason}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// The part of the content.
        field: &'static str,
        /// The reason.
        reason: &'static str,
    },
    /// The values belong to another model.
    #[error("{}: learnt with the model {learnt}, here it is {here}", path.display())]
    OtherModel {
        /// The file.
        path: PathBuf,
        /// The identity in the file.
        learnt: String,
        /// The identity of the model here.
        here: String,
    },
}

impl Fault for LearnedError {
    fn facts(&self) -> Facts<'_> {
        let damaged = Facts::new(ErrorKind::Damaged);
        match self {
            Self::Io { path, source } => Facts::io(source.kind()).file(path),
            Self::Replace(error) => error.facts(),
            Self::TooLarge { path, bytes } => {
                Facts::new(ErrorKind::OverLimit).file(path).over(*bytes, FILE_BYTES_MAX)
            }
            Self::NotLearned { path } | Self::Checksum { path, .. } | Self::Json { path, .. } => {
                damaged.file(path)
            }
            Self::Version { path, .. } => Facts::new(ErrorKind::Unsupported).file(path),
            Self::Field { path, field, .. } => damaged.file(path).field(field),
            Self::OtherModel { path, .. } => Facts::new(ErrorKind::Mismatch).file(path),
        }
    }
}

/// The JSON of a file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    key: LearnedKey,
    reliability: Vec<StoredRecord>,
    builder_us: Mean,
    source_us: Vec<(SourceName, Mean)>,
    costs: StoredCosts,
    costs_steps: u64,
    correction: StoredCorrection,
    correction_steps: u64,
}

impl Learned {
    /// A state without evidence, with the measured step costs.
    pub(crate) fn new(measured: CostProfile) -> Self {
        Learned {
            reliability: ReliabilityTable::new(),
            times: DraftTimes::new(),
            costs: Counted { costs: measured, n_steps: 0 },
            correction: Counted { costs: CostCorrection::none(), n_steps: 0 },
        }
    }

    internals! {
        /// The measured reliability of each source.
        fn reliability(&self) -> &ReliabilityTable {
            &self.reliability
        }

        /// Replaces the reliability of all sources.
        fn set_reliability(&mut self, table: ReliabilityTable) {
            self.reliability = table;
        }

        /// The measured times of drafting.
        fn times(&self) -> &DraftTimes {
            &self.times
        }

        /// Costs of steps, used if there is no stored profile.
        fn costs(&self) -> &CostProfile {
            &self.costs.costs
        }
    }

    /// The learned correction of a stored profile.
    pub(crate) fn correction(&self) -> &CostCorrection {
        &self.correction.costs
    }

    /// The value that a generation starts from. The generation later passes it as `base` to
    /// [`merge`](Self::merge).
    pub(crate) fn start(&self) -> Self {
        Self { reliability: self.reliability.clone().started(), ..self.clone() }
    }

    /// Replaces the reliability and the draft times by those of a generation.
    pub(crate) fn with_drafting(mut self, reliability: &ReliabilityTable, times: &DraftTimes) -> Self {
        (self.reliability, self.times) = (reliability.clone(), times.clone());
        self
    }

    /// Replaces the costs by those that a generation learned from `n_steps` steps.
    pub(crate) fn with_costs(mut self, costs: CostProfile, n_steps: usize) -> Self {
        self.costs = Counted { costs, n_steps: self.costs.n_steps.saturating_add(n_steps as u64) };
        self
    }

    /// Replaces the correction of a stored profile by the correction that a generation learned from `n_steps`
    /// steps.
    pub(crate) fn with_correction(mut self, correction: CostCorrection, n_steps: usize) -> Self {
        let n_steps = self.correction.n_steps.saturating_add(n_steps as u64);
        self.correction = Counted { costs: correction, n_steps };
        self
    }

    /// Adds the evidence between `base` and `theirs`: claims are summed, times and costs are averaged by the
    /// number of steps. If nothing was added since `base`, the result equals `theirs`.
    pub(crate) fn merge(&mut self, base: &Learned, theirs: &Learned) {
        self.reliability.merge(&base.reliability, &theirs.reliability);
        self.times.merge(&base.times, &theirs.times);
        self.costs.merge(&base.costs, &theirs.costs, CostProfile::blend);
        self.correction.merge(&base.correction, &theirs.correction, CostCorrection::blend);
    }

    internals! {
        /// Writes the file atomically; an existing file is replaced.
        ///
        /// # Errors
        /// [`LearnedError::Io`], [`LearnedError::Replace`]; the old file is unchanged.
        fn save(&self, path: &Path, key: &LearnedKey) -> Result<(), LearnedError> {
            let (builder_us, source_us) = self.times.to_stored();
            let stored = Stored {
                key: key.clone(),
                reliability: self.reliability.to_stored(),
                builder_us,
                source_us: source_us.to_vec(),
                costs: self.costs.costs.to_stored(),
                costs_steps: self.costs.n_steps,
                correction: self.correction.costs.to_stored(),
                correction_steps: self.correction.n_steps,
            };
            let json = serde_json::to_vec(&stored)
                .map_err(|source| LearnedError::Json { path: path.to_owned(), source })?;
            replace_file(path, Manner::Private, |file| {
                let written = writeln!(file, "{MAGIC} {VERSION} {:016x}", xxh3_64(&json));
                let written = written.and_then(|()| file.write_all(&json));
                written.map_err(|source| LearnedError::Io { path: path.to_owned(), source })
            })
        }

        /// Reads a file. Times from another machine are replaced by the times in `fresh`, which were measured
        /// here.
        ///
        /// # Errors
        /// [`LearnedError`]: the file cannot be read, is damaged, or was written with another model.
        fn load(path: &Path, key: &LearnedKey, fresh: &Learned) -> Result<Loaded, LearnedError> {
            let io = |source| LearnedError::Io { path: path.to_owned(), source };
            let file = open_regular(path).map_err(io)?;
            let bytes = file.metadata().map_err(io)?.len();
            if bytes > FILE_BYTES_MAX {
                return Err(LearnedError::TooLarge { path: path.to_owned(), bytes });
            }
            let mut content = Vec::new();
            file.take(FILE_BYTES_MAX).read_to_end(&mut content).map_err(io)?;
            Self::parse(&content, path, key, fresh)
        }
    }

    /// Parses the content of a file; `path` is used in error messages.
    fn parse(content: &[u8], path: &Path, key: &LearnedKey, fresh: &Learned) -> Result<Loaded, LearnedError> {
        let path = || path.to_owned();
        let not_learned = || LearnedError::NotLearned { path: path() };
        let line_len = content.iter().take(LINE_BYTES_MAX).position(|&byte| byte == b'\n');
        let (line, json) = content.split_at(line_len.ok_or_else(not_learned)?);
        let json = &json[1..];
        let line = std::str::from_utf8(line).map_err(|_| not_learned())?;
        let words: Vec<&str> = line.split(' ').collect();
        let [MAGIC, version, stated] = words[..] else { return Err(not_learned()) };
        let given: u32 = version.parse().map_err(|_| not_learned())?;
        if given != VERSION {
            return Err(LearnedError::Version { path: path(), given });
        }
        let stated = u64::from_str_radix(stated, 16).map_err(|_| not_learned())?;
        let found = xxh3_64(json);
        if found != stated {
            return Err(LearnedError::Checksum { path: path(), stated, found });
        }
        let stored: Stored =
            serde_json::from_slice(json).map_err(|source| LearnedError::Json { path: path(), source })?;
        if stored.key.model != key.model {
            let (learnt, here) = (stored.key.model, key.model.clone());
            return Err(LearnedError::OtherModel { path: path(), learnt, here });
        }
        let field = |field| move |reason| LearnedError::Field { path: path(), field, reason };
        let is_of_other_machine = stored.key != *key;
        let reliability = ReliabilityTable::from_stored(stored.reliability).map_err(field("reliability"))?;
        let times =
            DraftTimes::from_stored(stored.builder_us, stored.source_us).map_err(field("source_us"))?;
        let costs = CostProfile::from_stored(stored.costs).map_err(field("costs"))?;
        let correction = CostCorrection::from_stored(stored.correction).map_err(field("correction"))?;
        let mut learned = Learned { reliability, ..fresh.clone() };
        if !is_of_other_machine {
            learned.times = times;
            learned.correction = Counted { costs: correction, n_steps: stored.correction_steps };
            // Free costs are fixed and stay.
            if !learned.costs.costs.is_free() && !costs.is_free() {
                learned.costs = Counted { costs, n_steps: stored.costs_steps };
            }
        }
        Ok(Loaded { learned, is_of_other_machine })
    }
}

/// The first word of a file.
const MAGIC: &str = "refrain-learned";

/// Maximum bytes of the first line.
const LINE_BYTES_MAX: usize = 128;

impl<T: Clone> Counted<T> {
    fn merge(&mut self, base: &Self, theirs: &Self, blend: impl Fn(&mut T, &T, f32)) {
        let n_mine = self.n_steps.saturating_sub(base.n_steps);
        let n_theirs = theirs.n_steps.saturating_sub(base.n_steps);
        if n_theirs == 0 {
            return;
        }
        if n_mine == 0 {
            *self = theirs.clone();
            return;
        }
        blend(&mut self.costs, &theirs.costs, n_theirs as f32 / (n_mine as f32 + n_theirs as f32));
        self.n_steps = self.n_steps.saturating_add(n_theirs);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::draft::evidence::{Agreement, Evidence, EvidenceClass};

    const CLAIM: Evidence = Evidence {
        class: EvidenceClass::TextMatch,
        probability: 0.6,
        match_len: 4,
        count: 3,
        depth: 1,
        agreement: Agreement::Unknown,
    };

    fn measured() -> CostProfile {
        CostProfile::from_measurements(&[(1, 1000.0), (8, 1500.0), (32, 4000.0)])
    }

    fn key() -> LearnedKey {
        LearnedKey {
            model: "00ff".to_owned(),
            cpu: "A CPU".to_owned(),
            isa: "scalar".to_owned(),
            n_threads: 2,
            weights_bytes: 1000,
        }
    }

    /// A value with evidence in each of its parts.
    fn learned() -> Learned {
        let fresh = Learned::new(measured());
        let (mut table, mut times, mut costs) = (ReliabilityTable::new(), DraftTimes::new(), measured());
        let slot = table.slot("history", EvidenceClass::TextMatch);
        (0..40).for_each(|i| table.update(slot, &CLAIM, i % 3 == 0));
        table.update_first(slot, true);
        (0..20).for_each(|_| times.observe_source("history", 0.7));
        times.observe_builder(0.2);
        for i in 0..50 {
            costs.observe(1 + i % 20, 1 + i % 3, 2000.0 + 10.0 * i as f32);
            costs.observe_hidden(300.0);
        }
        let correction = CostCorrection::between(&measured(), &costs);
        fresh.with_drafting(&table, &times).with_costs(costs, 50).with_correction(correction, 7)
    }

    /// The content of a file with this value.
    fn content(learned: &Learned, key: &LearnedKey) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("learned");
        learned.save(&path, key).unwrap();
        fs::read(path).unwrap()
    }

    fn parse(content: &[u8]) -> Result<Loaded, LearnedError> {
        Learned::parse(content, Path::new("learned"), &key(), &Learned::new(measured()))
    }

    #[test]
    fn a_file_reads_back_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("learned");
        let saved = learned();
        saved.save(&path, &key()).unwrap();
        let loaded = Learned::load(&path, &key(), &Learned::new(measured())).unwrap();
        assert!(!loaded.is_of_other_machine);
        assert_eq!(content(&loaded.learned, &key()), fs::read(&path).unwrap(), "the same bits");
        for rows in [1, 3, 8, 20, 40] {
            let us = |learned: &Learned| learned.costs().verify_us(rows, 2);
            assert_eq!(us(&loaded.learned), us(&saved), "{rows} rows");
        }
        assert_eq!(loaded.learned.times(), saved.times());
        assert_eq!(loaded.learned.correction(), saved.correction());
    }

    #[test]
    fn every_damaged_byte_is_noticed() {
        let good = content(&learned(), &key());
        for at in (0..good.len()).step_by(7).chain([good.len() - 1]) {
            let mut bad = good.clone();
            bad[at] ^= 0x11;
            assert!(parse(&bad).is_err(), "byte {at}");
        }
        for len in [0, 10, 30, good.len() / 2, good.len() - 1] {
            assert!(parse(&good[..len]).is_err(), "{len} bytes");
        }
        assert!(matches!(parse(b"{\"version\": 1}"), Err(LearnedError::NotLearned { .. })));
        let mut newer = good.clone();
        newer[MAGIC.len() + 1] = b'9';
        assert!(matches!(parse(&newer), Err(LearnedError::Version { given: 9, .. })));
    }

    /// Loads a file with a changed JSON and a correct checksum.
    fn changed(change: impl Fn(&mut serde_json::Value)) -> Result<Loaded, LearnedError> {
        let good = content(&learned(), &key());
        let start = good.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        let mut json: serde_json::Value = serde_json::from_slice(&good[start..]).unwrap();
        change(&mut json);
        let json = serde_json::to_vec(&json).unwrap();
        let mut content = format!("{MAGIC} {VERSION} {:016x}\n", xxh3_64(&json)).into_bytes();
        content.extend(json);
        parse(&content)
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        assert!(changed(|_| {}).is_ok());
        let field = |change: &dyn Fn(&mut serde_json::Value)| match changed(change) {
            Err(LearnedError::Field { field, .. }) => field,
            other => panic!("{other:?}"),
        };
        assert_eq!(field(&|json| json["reliability"][0]["cells"][0][1] = (-1.0).into()), "reliability");
        assert_eq!(field(&|json| json["reliability"][0]["cells"][0][2] = 1e30.into()), "reliability");
        assert_eq!(
            field(&|json| json["reliability"][0]["since_sweep"]["n_steps"] = 256.into()),
            "reliability"
        );
        assert_eq!(field(&|json| json["source_us"][0][1]["us"] = (-3.0).into()), "source_us");
        assert_eq!(field(&|json| json["costs"]["knots"][0]["log_us"] = 1e6.into()), "costs");
        assert_eq!(field(&|json| json["costs"]["knots"][1]["rows"] = 1.into()), "costs");
        assert_eq!(field(&|json| json["costs"]["knots"] = serde_json::json!([])), "costs");
        assert_eq!(field(&|json| json["costs"]["hidden_us"] = (-1.0).into()), "costs");
        assert_eq!(field(&|json| json["correction"]["log_factors"][3] = 100.into()), "correction");
        assert_eq!(field(&|json| json["correction"]["log_factors"] = serde_json::json!([0.0])), "correction");
        // A value beyond the range of its type, or not a number.
        for odd in [serde_json::json!(null), serde_json::json!("1")] {
            let odd = |json: &mut serde_json::Value| json["costs"]["knots"][0]["log_us"] = odd.clone();
            assert!(matches!(changed(odd), Err(LearnedError::Json { .. })));
        }
        assert!(matches!(changed(|json| json["more"] = 1.into()), Err(LearnedError::Json { .. })));
    }

    #[test]
    fn a_file_without_the_state_between_sweeps_is_read() {
        let loaded = changed(|json| {
            json["reliability"][0].as_object_mut().unwrap().remove("since_sweep").unwrap();
        });
        let loaded = loaded.unwrap().learned;
        assert_eq!(loaded.reliability().source_names().count(), 1);
    }

    #[test]
    fn another_model_is_refused_and_another_machine_gives_reliability_alone() {
        let other = |change: &dyn Fn(&mut LearnedKey)| {
            let mut key = key();
            change(&mut key);
            parse(&content(&learned(), &key))
        };
        let refused = other(&|key| key.model = "1234".to_owned()).unwrap_err();
        assert!(refused.to_string().contains("learnt with the model 1234, here it is 00ff"), "{refused}");
        for change in [
            |key: &mut LearnedKey| key.cpu.push('2'),
            |key: &mut LearnedKey| key.isa.push('2'),
            |key: &mut LearnedKey| key.n_threads = 1,
            |key: &mut LearnedKey| key.weights_bytes = 1,
        ] {
            let loaded = other(&change).unwrap();
            assert!(loaded.is_of_other_machine);
            assert_eq!(loaded.learned.costs().verify_us(8, 1), measured().verify_us(8, 1));
            assert_eq!(*loaded.learned.times(), DraftTimes::new());
            assert_eq!(loaded.learned.reliability().source_names().count(), 1);
        }
    }

    #[test]
    fn costs_by_decree_stay() {
        let fresh = Learned::new(CostProfile::free_rows(5.0));
        let content = content(&learned(), &key());
        let loaded = Learned::parse(&content, Path::new("learned"), &key(), &fresh).unwrap().learned;
        assert_eq!(loaded.costs().verify_us(30, 3), 5.0);
    }

    #[test]
    fn generations_that_run_at_the_same_time_both_count() {
        let mut shared = Learned::new(measured());
        let base = shared.start();
        let learnt = |us: f32, n_steps: usize| {
            let mut costs = base.costs().clone();
            (0..n_steps).for_each(|_| costs.observe(8, 1, us));
            base.clone().with_costs(costs, n_steps)
        };
        let (slow, fast) = (learnt(3000.0, 100), learnt(1000.0, 100));
        shared.merge(&base, &slow);
        assert_eq!(shared.costs().verify_us(8, 1), slow.costs().verify_us(8, 1), "the first is taken over");
        shared.merge(&base, &fast);
        let us = shared.costs().verify_us(8, 1);
        let [slow, fast] = [&slow, &fast].map(|learned| learned.costs().verify_us(8, 1));
        assert!((us.ln() - 0.5 * (slow.ln() + fast.ln())).abs() < 0.02, "{us} of {slow} and {fast}");
        // Merging a value without evidence changes nothing.
        let before = content(&shared, &key());
        shared.merge(&base, &base);
        assert_eq!(content(&shared, &key()), before);
    }
}
