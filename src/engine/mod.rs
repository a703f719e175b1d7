//! The engine: one loaded model, shared by threads, and the conversations it holds.
//!
//! [`Engine`] → [`Session`] (one conversation, with its KV cache and draft sources) → [`Generation`] (one output, as an
//! iterator of [`Event`]s). One decoding step is `Generation::step`: draft → batch → forward → walk → commit → observe.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use thiserror::Error;

use crate::draft::{CostProfile, HistoryStore, Learned, LearnedError, LearnedKey, ReliabilityTable};
use crate::draft_model::{DraftModel, VocabularyMismatch, vocabulary};
use crate::kernels::{IsaKind, Kernels, KvType, Pool};
use crate::model::checkpoint::LoadError;
use crate::model::graphs::{GraphsError, StaticGraphs};
use crate::model::packed::ModelIdentity;
use crate::model::streamed::Streamed;
use crate::model::transformer::{Compute, ForwardError, PassEnd};
use crate::model::weights::{LoadOptions, WeightsError};
use crate::model::{Batch, Checkpoint, KvCache, Model, ModelConfig, Workspace, kv_cache::KvCacheError};
use crate::pruning::{Predictor, PredictorError};
use crate::schedule::{GraphKind, SwitchTimes};
use crate::stream::Flow;
use crate::token::TokenId;
use crate::tokenizer::{Tokenizer, TokenizerError};
use policy::Device;
use profile::ProfileKey;

mod cores;
mod cpu;
mod generation;
mod options;
mod output;
mod overlap;
mod policy;
mod pressure;
pub mod profile;
mod projection;
mod reader;
mod session;
mod stats;
mod trace;

pub use generation::{Event, GenerateError, Generation, Origin, Summary, TokenEvent};
pub use options::{
    CONTEXT_LEN_DEFAULT_MAX, Calibration, DraftModelOptions, Drafting, EngineOptions, GenerateOptions,
    PREFILL_CHUNK_MAX, ProjectionMode, STOP_BYTES_MAX, SessionOptions, TARGET_READ_STEP_US_MIN,
    VERIFY_ROWS_MAX,
};
pub use output::FinishReason;
pub use policy::{
    Acceptance, AcceptanceFloor, DraftPolicy, DraftRows, LOSSY_ROWS, MemoryPressure, PidConfig, SkipRules,
    ThermalState,
};
pub use profile::{MachineProfile, ProfileError, ProfileMismatch, ProfileOptions};
pub use session::{CancelHandle, Session, SessionError};
pub use stats::{
    DraftingOffStats, LossyStats, PolicyStats, PruningStats, RowStats, SourceStats, StageTimes, Stats,
    StreamingStats,
};
pub use trace::{LogitsReceiver, Score, Traced};

/// A loaded model with its tokenizer, threads, cost profile and history. Cloning shares all of it.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

/// What the sessions of an engine share.
pub(crate) struct Shared {
    pub(crate) model: Model,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) kernels: Kernels,
    pub(crate) pool: Arc<Pool>,
    /// What sessions that are started from now on draft with, besides their texts.
    draft_model: Mutex<Option<Arc<DraftModel>>>,
    /// What sessions that are started from now on prune with.
    predictor: Mutex<Option<Arc<Predictor>>>,
    /// Generations start from a copy and merge what they have learnt.
    learned: Mutex<Learned>,
    /// What projecting rows onto the vocabulary costs.
    pub(crate) projection_costs: CostProfile,
    /// Where there is one, each generation with its type of KV cache starts from what it says of its context.
    pub(crate) profile: Option<MachineProfile>,
    /// Why the profile that was given is not used.
    pub(crate) profile_mismatch: Option<ProfileMismatch>,
    pub(crate) history: Arc<HistoryStore>,
    /// What the app has reported of the device.
    pub(crate) device: Device,
}

/// Why an engine, or its draft model, could not be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The checkpoint could not be opened.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The weights could not be read or packed.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The tokenizer could not be built.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The CPU does not have the instruction set asked for.
    #[error("this CPU does not have the instruction set {isa:?}")]
    Isa {
        /// What was asked for.
        isa: IsaKind,
    },
    /// The thread count is not usable.
    #[error("{given} threads are outside 1..={max}")]
    Threads {
        /// What was asked for.
        given: usize,
        /// The limit.
        max: usize,
    },
    /// The system gave fewer threads than asked for.
    #[error("{n_threads} threads could not be started: {source}")]
    Spawn {
        /// What was asked for.
        n_threads: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// The times of static graphs could not be measured.
    #[error(transparent)]
    Graphs(#[from] GraphsError),
    /// There was no memory for the cost measurement.
    #[error(transparent)]
    KvCache(#[from] KvCacheError),
    /// Streamed weights could not be read for the cost measurement.
    #[error(transparent)]
    Forward(#[from] ForwardError),
    /// A draft model's tokens are not the target's.
    #[error("`{name}` cannot draft: {mismatch}")]
    DraftVocabulary {
        /// The checkpoint.
        name: String,
        /// The first difference.
        mismatch: VocabularyMismatch,
    },
    /// Static graphs run batches of fixed lengths, and a draft model runs single rows.
    #[error("`{name}` is a folder of static graphs, which cannot draft; name the model that it was made of")]
    DraftGraphs {
        /// The folder.
        name: String,
    },
}

/// Threads at most; no phone or laptop has more cores.
const THREADS_MAX: usize = 256;

impl Engine {
    /// Loads the checkpoint at `path`: a GGUF file, a Hugging Face folder, a packed file, or a folder of static graphs.
    pub fn open(path: &Path, options: EngineOptions) -> Result<Self, EngineError> {
        Self::load(&Checkpoint::open(path)?, options, None)
    }

    /// Loads an opened checkpoint; `progress` is called with (bytes read, bytes to read) after each tensor.
    ///
    /// Unless a cost profile is given, the forward pass is measured for batch lengths of 1 to 64 rows, as many as fit a
    /// second, but two in any case; of a streamed model, two. Of static graphs, loads and calls are measured instead, unless the folder holds times of
    /// this machine.
    pub fn load(
        checkpoint: &Checkpoint,
        options: EngineOptions,
        progress: Option<&dyn Fn(u64, u64)>,
    ) -> Result<Self, EngineError> {
        let kernels = match options.isa {
            None => Kernels::detect(),
            Some(isa) => Kernels::with_isa(isa).ok_or(EngineError::Isa { isa })?,
        };
        let n_threads = options.n_threads.unwrap_or_else(|| cores::n_performance_cores().min(THREADS_MAX));
        if n_threads == 0 || n_threads > THREADS_MAX {
            return Err(EngineError::Threads { given: n_threads, max: THREADS_MAX });
        }
        let tokenizer = checkpoint.tokenizer()?;
        let EngineOptions { quantize, packed_access, graph_memory_max, ref streaming, .. } = options;
        let streaming = streaming.as_ref();
        let load = LoadOptions { quantize, packed_access, graph_memory_max, streaming, progress };
        let model = Model::load(checkpoint, load)?;
        let pool = Pool::try_new(n_threads).map_err(|source| EngineError::Spawn { n_threads, source })?;
        let pool = Arc::new(pool);
        let compute = Compute { kernels, pool: &pool };
        if let Some(graphs) = model.graphs() {
            graphs.set_switching(options.graph_switching);
            set_times(graphs, checkpoint, &model, compute)?;
        }
        let profile = options.profile.filter(|_| options.cost_profile.is_none());
        let profile_mismatch = profile.as_ref().and_then(|profile| {
            let here = ProfileKey::new(&model, compute, profile.key().kv_type);
            profile.key().mismatch(&here)
        });
        let profile = profile.filter(|_| profile_mismatch.is_none());
        let projection_costs = match (&options.cost_profile, &profile) {
            // Rows that cost nothing fill every wave.
            (Some(_), _) => CostProfile::free_rows(1.0),
            (None, Some(profile)) => profile.projection_costs(),
            // A pass would read weights from flash; waves are as long as they may be.
            (None, None) if model.graphs().is_some() || model.streamed().is_some() => {
                CostProfile::free_rows(1.0)
            }
            (None, None) => measure_projection(&model, compute)?,
        };
        let costs = match (options.cost_profile, &profile) {
            (Some(costs), _) => costs,
            (None, Some(profile)) => profile.costs(0, SessionOptions::default().projection_rows),
            (None, None) => match model.graphs().and_then(StaticGraphs::times) {
                Some(times) => graph_costs(&times),
                None => measure_costs(&model, compute)?,
            },
        };
        let shared = Shared {
            model,
            tokenizer,
            kernels,
            pool,
            draft_model: Mutex::new(None),
            predictor: Mutex::new(None),
            learned: Mutex::new(Learned::new(costs)),
            projection_costs,
            profile,
            profile_mismatch,
            history: Arc::new(match options.history_tokens_max {
                None => HistoryStore::new(),
                Some(n_tokens) => HistoryStore::with_tokens_max(n_tokens),
            }),
            device: Device::default(),
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Starts a conversation.
    ///
    /// # Errors
    /// [`SessionError`] when an option is out of range or the KV cache cannot be allocated.
    pub fn session(&self, options: SessionOptions) -> Result<Session, SessionError> {
        Session::new(Arc::clone(&self.shared), options)
    }

    /// Loads a smaller model that drafts for sessions started from now on, in place of an earlier one; `progress` as in
    /// [`Engine::load`]. It runs on the engine's threads, and what its passes cost is measured unless the options say.
    ///
    /// It is one source among others: the builder asks it when that pays, and it never changes the output.
    ///
    /// # Errors
    /// [`EngineError`], but for options of the engine itself; sessions go on as before.
    pub fn set_draft_model(
        &self,
        checkpoint: &Checkpoint,
        options: DraftModelOptions,
        progress: Option<&dyn Fn(u64, u64)>,
    ) -> Result<(), EngineError> {
        let DraftModelOptions { quantize, packed_access, cost_profile } = options;
        let name = checkpoint.name();
        if checkpoint.graphs().is_some() {
            return Err(EngineError::DraftGraphs { name: name.to_owned() });
        }
        vocabulary::check(self.tokenizer(), &checkpoint.tokenizer()?)
            .map_err(|mismatch| EngineError::DraftVocabulary { name: name.to_owned(), mismatch })?;
        let load = LoadOptions { quantize, packed_access, graph_memory_max: None, streaming: None, progress };
        let model = Model::load(checkpoint, load)?;
        let costs = match cost_profile {
            Some(costs) => costs,
            None => measure_costs(&model, self.shared.compute())?,
        };
        let (kernels, pool) = (self.shared.kernels, Arc::clone(&self.shared.pool));
        *self.shared.draft_model_slot() = Some(Arc::new(DraftModel::new(name, model, kernels, pool, costs)));
        Ok(())
    }

    /// The model that drafts, if there is one.
    pub fn draft_model(&self) -> Option<Arc<DraftModel>> {
        self.shared.draft_model()
    }

    /// Lets sessions that are started from now on prune their drafts half-way through the model, by what this predictor says of
    /// them, in place of an earlier one. It never changes the output.
    ///
    /// # Errors
    /// [`PredictorError`]: it was trained for another model, or this one's layers are static graphs; sessions go on as before.
    pub fn set_predictor(&self, predictor: Predictor) -> Result<(), PredictorError> {
        predictor.check_model(&self.shared.model)?;
        *self.shared.predictor_slot() = Some(Arc::new(predictor));
        Ok(())
    }

    /// What sessions prune with, if anything.
    pub fn predictor(&self) -> Option<Arc<Predictor>> {
        self.shared.predictor()
    }

    /// The model's dimensions.
    pub fn config(&self) -> &ModelConfig {
        self.shared.model.config()
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.shared.tokenizer
    }

    /// Earlier responses of this process, by namespace.
    pub fn history(&self) -> &HistoryStore {
        &self.shared.history
    }

    /// What drafting has learnt so far. Generations that run are not included: each adds its part at its end.
    pub fn learned(&self) -> Learned {
        self.shared.learned().clone()
    }

    /// Lets the next generations start from another value. A generation that runs adds its part to it at its end.
    pub fn set_learned(&self, learned: Learned) {
        *self.shared.learned() = learned;
    }

    /// Saves what drafting has learnt, for [`load_learned`](Self::load_learned) in another run.
    ///
    /// # Errors
    /// [`LearnedError`]: the file could not be written; one that was there before is unchanged.
    pub fn save_learned(&self, path: &Path) -> Result<(), LearnedError> {
        self.learned().save(path, &self.learned_key())
    }

    /// Adds what drafting has learnt since `base` to a file of learnt values, which other processes may have written meanwhile; a file
    /// that is not there is created.
    ///
    /// # Errors
    /// [`LearnedError`]: there is a file that cannot be read, or the new one could not be written. The file is unchanged.
    pub fn merge_learned(&self, path: &Path, base: &Learned) -> Result<(), LearnedError> {
        let mut learned = self.learned();
        match Learned::load(path, &self.learned_key(), base) {
            Ok(stored) => {
                let ours = std::mem::replace(&mut learned, stored.learned);
                learned.merge(base, &ours);
            }
            Err(LearnedError::Io { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        learned.save(path, &self.learned_key())
    }

    /// Goes on with what drafting has learnt in another run; `false` where that ran on another machine, or with other threads or
    /// memory: then the costs that were measured here stay, and the reliability of sources is taken over.
    ///
    /// # Errors
    /// [`LearnedError`]: the file cannot be read, is damaged, or is of another model. Nothing is changed.
    pub fn load_learned(&self, path: &Path) -> Result<bool, LearnedError> {
        let loaded = Learned::load(path, &self.learned_key(), &self.learned())?;
        self.set_learned(loaded.learned);
        Ok(!loaded.is_of_other_machine)
    }

    /// What learnt values hold for.
    fn learned_key(&self) -> LearnedKey {
        let (isa, n_threads) = self.compute();
        LearnedKey {
            model: self.model_identity().to_string(),
            cpu: cpu::cpu_name(),
            isa: isa.name().to_owned(),
            n_threads,
            weights_bytes: self.memory_usage(),
        }
    }

    /// How reliable each source was so far.
    pub fn reliability(&self) -> ReliabilityTable {
        self.shared.learned().reliability().clone()
    }

    /// Lets the next generations build on another table.
    pub fn set_reliability(&self, table: ReliabilityTable) {
        self.shared.learned().set_reliability(table);
    }

    /// The app reports how hot the device is; from any thread. Threads are bounded at once, drafts from each session's next step.
    /// The output stays the same, bit for bit; [`ThermalState`] says what is bounded.
    pub fn set_thermal_state(&self, state: ThermalState) {
        self.shared.device.set_thermal(state);
        self.shared.pool.limit(state.n_threads(self.shared.pool.n_threads()));
    }

    /// What was reported last.
    pub fn thermal_state(&self) -> ThermalState {
        self.shared.device.thermal()
    }

    /// The app reports that others need memory, or no longer do; from any thread. [`MemoryPressure`] says what is released.
    ///
    /// Sessions release at their next step or prefill, and again after every call of this; one that is idle does so with
    /// [`Session::release_memory`]. Pinned layers of a streamed model are released at once, or, where a pass is under way, before
    /// the next one; when the pressure is gone they are kept again as they come by. The KV cache stays, and the output is the
    /// same, bit for bit.
    pub fn set_memory_pressure(&self, level: MemoryPressure) {
        self.shared.device.set_pressure(level);
        if let Some(streamed) = self.shared.model.streamed() {
            streamed.set_lean(level == MemoryPressure::Critical);
        }
    }

    /// What was reported last.
    pub fn memory_pressure(&self) -> MemoryPressure {
        self.shared.device.pressure().level
    }

    /// What a verification batch costs, as measured so far; with a stored profile, at the start of a context.
    pub fn cost_profile(&self) -> CostProfile {
        match &self.shared.profile {
            Some(profile) => {
                let costs = profile.costs(0, SessionOptions::default().projection_rows);
                costs.corrected(self.shared.learned().correction())
            }
            None => self.shared.learned().costs().clone(),
        }
    }

    /// The stored profile that generations start from, if one was given and fits.
    pub fn profile(&self) -> Option<&MachineProfile> {
        self.shared.profile.as_ref()
    }

    /// Measures what steps cost here; `progress` is called with (entries done, entries to do). Takes some seconds to a minute,
    /// during which nothing else should run.
    ///
    /// # Errors
    /// [`ProfileError::KvCache`]: there is no memory for a cache of the longest context;
    /// [`ProfileError::NothingToMeasure`]: a list of the options has no usable entry.
    pub fn measure_profile(
        &self,
        options: &ProfileOptions,
        progress: impl FnMut(usize, usize),
    ) -> Result<MachineProfile, ProfileError> {
        MachineProfile::measure(&self.shared.model, self.shared.compute(), options, progress)
    }

    /// The model's layers as static graphs, where it is kept so.
    pub fn graphs(&self) -> Option<&StaticGraphs> {
        self.shared.model.graphs()
    }

    /// The weights on their way from flash, where the model is streamed.
    pub fn streamed(&self) -> Option<&Streamed> {
        self.shared.model.streamed()
    }

    /// Measures what loads and calls of static graphs take, each `rounds` times, and plans with it from now on; `None` where
    /// the model is not kept so. Nothing else should run meanwhile.
    ///
    /// # Errors
    /// [`GraphsError`]; the times are as they were.
    pub fn measure_graphs(&self, rounds: usize) -> Result<Option<SwitchTimes>, GraphsError> {
        let Some(graphs) = self.graphs() else { return Ok(None) };
        let compute = self.shared.compute();
        graphs.measure(&self.shared.model, compute, times_label(compute), rounds).map(Some)
    }

    /// What measurements of this model are kept under; see [`Model::identity`].
    pub fn model_identity(&self) -> ModelIdentity {
        self.shared.model.identity()
    }

    /// Bytes of the weights, those of a mapped file included; of a streamed model, those that stay in memory and the ring.
    pub fn memory_usage(&self) -> usize {
        self.shared.model.memory_usage()
    }

    /// Instruction set and thread count of the forward pass.
    pub fn compute(&self) -> (IsaKind, usize) {
        (self.shared.kernels.isa(), self.shared.pool.n_threads())
    }
}

impl Shared {
    pub(crate) fn compute(&self) -> Compute<'_> {
        Compute { kernels: self.kernels, pool: &self.pool }
    }

    pub(crate) fn draft_model(&self) -> Option<Arc<DraftModel>> {
        self.draft_model_slot().clone()
    }

    fn draft_model_slot(&self) -> std::sync::MutexGuard<'_, Option<Arc<DraftModel>>> {
        self.draft_model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn predictor(&self) -> Option<Arc<Predictor>> {
        self.predictor_slot().clone()
    }

    fn predictor_slot(&self) -> std::sync::MutexGuard<'_, Option<Arc<Predictor>>> {
        self.predictor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has flowed from flash so far: nothing where the model is not streamed.
    pub(crate) fn flow(&self) -> Flow {
        self.model.streamed().map(Streamed::flow).unwrap_or_default()
    }

    pub(crate) fn learned(&self) -> std::sync::MutexGuard<'_, Learned> {
        // Each change leaves a whole value, so a panic elsewhere cannot have left half of one.
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whose times these are: another machine, another instruction set and other threads take other times.
fn times_label(compute: Compute<'_>) -> String {
    let (isa, n_threads) = (compute.kernels.isa().name(), compute.pool.n_threads());
    format!("measured: {}, {isa}, {n_threads} threads", cpu::cpu_name())
}

/// Gives the graphs the times that their folder holds, or measures them.
fn set_times(
    graphs: &StaticGraphs,
    checkpoint: &Checkpoint,
    model: &Model,
    compute: Compute<'_>,
) -> Result<(), GraphsError> {
    let label = times_label(compute);
    // Times that cannot be read are as good as none: they are measured again.
    let stored = checkpoint.graphs().and_then(|folder| folder.times().ok().flatten());
    match stored.filter(|times| times.label == label && graphs.fits(times)) {
        Some(times) => graphs.set_times(times),
        None => drop(graphs.measure(model, compute, label, 1)?),
    }
    Ok(())
}

/// What a batch costs in verify graphs: as much as all calls that it takes. The projection is learnt from steps.
fn graph_costs(times: &SwitchTimes) -> CostProfile {
    let us: f64 = times.blocks.iter().map(|block| block.of(GraphKind::Verify).compute_us).sum();
    let calls = [1, 2].map(|n_calls| (n_calls * times.verify_len, n_calls as f32 * us as f32));
    CostProfile::from_measurements(&[(1, us as f32), calls[0], calls[1]])
}

/// Batch lengths measured while loading. The builder interpolates between them.
const COST_ROWS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Time for the measurement, after which the remaining lengths are extrapolated: loading must stay short.
const COST_BUDGET_S: f64 = 1.0;

/// Lengths measured in any case: a slope needs two.
const COST_LENGTHS_MIN: usize = 2;

/// Batch lengths measured of a streamed model, whose passes take long and vary as its disk does: a slope between one row and two
/// would be noise.
const COST_ROWS_STREAMED: [usize; 2] = [1, 32];

/// Measures forward pass and projection at a short context: the least of three runs each, the first one warming up; one
/// run each where a run takes longer than the time for all.
fn measure_costs(model: &Model, compute: Compute<'_>) -> Result<CostProfile, EngineError> {
    let longest = COST_ROWS[COST_ROWS.len() - 1];
    let mut kv = KvCache::new(model.config(), KvType::F16, longest)?;
    let mut workspace = Workspace::new(model.config());
    let (mut batch, mut logits) = (Batch::new(), Vec::new());
    let never = AtomicBool::new(false);
    let mut run = |n_rows: usize| -> Result<f32, ForwardError> {
        let start = Instant::now();
        batch.set_chain(0, &vec![TokenId(0); n_rows]);
        model.forward(compute, &batch, &mut kv, &mut workspace, PassEnd::Hidden, &never)?;
        let rows: Vec<u32> = (0..n_rows.min(8) as u32).collect();
        model.logits(compute, &mut workspace, &rows, &mut logits)?;
        Ok(start.elapsed().as_secs_f32() * 1e6)
    };
    if model.streamed().is_some() {
        // The ring learns its order, and memory is touched for the first time.
        run(1)?;
        let measured = COST_ROWS_STREAMED.map(|n_rows| run(n_rows).map(|us| (n_rows, us)));
        return Ok(CostProfile::from_measurements(&measured.into_iter().collect::<Result<Vec<_>, _>>()?));
    }
    let start = Instant::now();
    let mut measured: Vec<(usize, f32)> = Vec::new();
    for n_rows in COST_ROWS {
        let late = start.elapsed().as_secs_f64() > COST_BUDGET_S;
        if late && measured.len() >= COST_LENGTHS_MIN {
            break;
        }
        let mut least = f32::INFINITY;
        for _ in 0..if late { 1 } else { 3 } {
            least = least.min(run(n_rows)?);
        }
        measured.push((n_rows, least));
    }
    Ok(CostProfile::from_measurements(&measured))
}

/// Numbers of rows whose projection is measured: waves are no longer unless a session asks for it.
const PROJECTION_ROWS: [usize; 4] = [1, 2, 4, 8];

/// Measures the projection of some rows: the least of a few runs each, the first one warming up.
fn measure_projection(model: &Model, compute: Compute<'_>) -> Result<CostProfile, EngineError> {
    let longest = PROJECTION_ROWS[PROJECTION_ROWS.len() - 1];
    let mut kv = KvCache::new(model.config(), KvType::F16, longest)?;
    let mut workspace = Workspace::new(model.config());
    let (mut batch, mut logits) = (Batch::new(), Vec::new());
    let never = AtomicBool::new(false);
    batch.set_chain(0, &[TokenId(0); PROJECTION_ROWS[PROJECTION_ROWS.len() - 1]]);
    model.forward(compute, &batch, &mut kv, &mut workspace, PassEnd::Hidden, &never)?;
    let mut measured = Vec::new();
    for n_rows in PROJECTION_ROWS {
        let rows: Vec<u32> = (0..n_rows as u32).collect();
        let mut least = f32::INFINITY;
        for _ in 0..4 {
            let start = Instant::now();
            model.logits(compute, &mut workspace, &rows, &mut logits)?;
            least = least.min(start.elapsed().as_secs_f32() * 1e6);
        }
        measured.push((n_rows, least));
    }
    Ok(CostProfile::from_measurements(&measured))
}
