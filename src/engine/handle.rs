//! [`Engine`]: a loaded model, shared by threads.

use std::cell::RefCell;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::draft::{CostProfile, HistoryStore, Learned, ReliabilityTable};
use crate::draft_model::{DraftModel, vocabulary};
use crate::energy::{EnergyMeter, Powercap};
use crate::engine::cores::{self, THREADS_MAX};
use crate::engine::device::Device;
use crate::engine::error::EngineProblem;
use crate::engine::learned::LearnedState;
use crate::engine::measure::{
    MEASURE_TIME_DEFAULT, assumed_costs, graph_costs, measure_load, measure_projection, measure_streamed,
    set_times, times_label,
};
use crate::engine::measured::{CostsOrigin, Kept, MeasuredCosts, StartCosts};
use crate::engine::options::{DraftModelOptions, EngineOptions, SessionOptions};
use crate::engine::policy::DeviceState;
use crate::engine::session::Session;
use crate::engine::shared::Shared;
use crate::error::{LoadError, SessionError};
use crate::face::internals;
use crate::kernels::{Kernels, Pool};
use crate::kernels::{MEMORY_MARGIN, has_room};
use crate::model::config::Eagle3;
use crate::model::graphs::{GraphsError, StaticGraphs};
use crate::model::packed::ModelIdentity;
use crate::model::streamed::Streamed;
use crate::model::transformer::Compute;
use crate::model::weights::{LoadOptions, PackedAccess};
use crate::model::{Checkpoint, GenerationDefaults, Model, ModelConfig};
use crate::profile::ProfileKey;
use crate::pruning::Predictor;
use crate::schedule::SwitchTimes;
use refrain_tokenizer::Tokenizer;
use refrain_trees::TokenId;

/// A loaded model with its tokenizer, threads, cost profile and history. Clones share all of them.
#[derive(Clone)]
pub struct Engine {
    shared: Arc<Shared>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("config", self.config())
            .field("isa", &self.device().isa())
            .field("n_threads", &self.device().n_threads())
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Loads the checkpoint at `path`: a GGUF file, a Hugging Face folder, a packed file, or a folder of
    /// static graphs.
    pub fn open(path: impl AsRef<Path>, options: EngineOptions) -> Result<Self, LoadError> {
        Self::load(&Checkpoint::open(path)?, options, |_, _| {})
    }

    /// Loads an opened checkpoint; `progress` is called with (bytes read, bytes to read) after each tensor.
    ///
    /// Unless a profile or costs are given, loading measures the forward pass for batch lengths of 1 to 32 rows, with and
    /// without a context, in about 300 ms ([`EngineOptions::measure_time`]); at least two lengths. A streamed model is
    /// measured for two lengths, however long they take. A model of static graphs measures its loads and calls instead, unless its folder
    /// holds times of this machine.
    pub fn load(
        checkpoint: &Checkpoint,
        options: EngineOptions,
        progress: impl FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        Self::load_measured(checkpoint, options, Vec::new(), progress)
    }

    internals! {
        /// As [`load`](Self::load). Where loading would measure, of this model or of a draft model later, and one of `measured` is of the
        /// same model on the same machine, that one is used.
        fn load_measured(
            checkpoint: &Checkpoint,
            options: EngineOptions,
            measured: Vec<MeasuredCosts>,
            progress: impl FnMut(u64, u64)
        ) -> Result<Self, LoadError> {
            Self::load_with(checkpoint, options, measured, progress)
        }
    }

    fn load_with(
        checkpoint: &Checkpoint,
        options: EngineOptions,
        measured: Vec<MeasuredCosts>,
        progress: impl FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let kernels = match options.isa {
            None => Kernels::detect(),
            Some(isa) => Kernels::with_isa(isa).ok_or(EngineProblem::Isa { isa })?,
        };
        let n_threads = options.n_threads.unwrap_or_else(|| cores::n_performance_cores().min(THREADS_MAX));
        if n_threads == 0 || n_threads > THREADS_MAX {
            return Err(EngineProblem::Threads { given: n_threads, max: THREADS_MAX }.into());
        }
        // Published heads have no tokenizer: what is missing is the model.
        Model::refuse_head(checkpoint)?;
        let EngineOptions { quantize, packed_access, graph_memory_max, ref streaming, .. } = options;
        let streaming = streaming.as_ref();
        let progress = shared_progress(progress);
        let load = LoadOptions {
            quantize,
            packed_access,
            graph_memory_max,
            streaming,
            progress: Some(&progress),
            n_threads: options.n_threads,
        };
        let read_tokenizer = || checkpoint.tokenizer_and_defaults();
        let ((tokenizer, generation_defaults), model) = match checkpoint.packed() {
            Some(_) => {
                let (read, model) = beside(&read_tokenizer, || Model::load(checkpoint, load));
                (read?, model?)
            }
            // Reading and packing takes so long that an unusable tokenizer should be known before.
            None => (read_tokenizer()?, Model::load(checkpoint, load)?),
        };
        let pool = Pool::try_new(n_threads).map_err(|source| EngineProblem::Spawn { n_threads, source })?;
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
        let time = options.measure_time.unwrap_or(MEASURE_TIME_DEFAULT);
        let is_in_memory = model.graphs().is_none() && model.streamed().is_none();
        let kept = Kept::new(measured);
        let mapped = is_mapped(checkpoint, packed_access);
        let free = || CostProfile::free_rows(1.0);
        let StartCosts { steps, projection, context, origin } = match (options.cost_profile, &profile) {
            (None, Some(profile)) => {
                let steps = profile.costs(0, SessionOptions::default().projection_rows);
                StartCosts::new(steps, profile.projection_costs(), CostsOrigin::Profile)
            }
            (Some(costs), Some(profile)) => {
                StartCosts::new(costs, profile.projection_costs(), CostsOrigin::Options)
            }
            (Some(costs), None) if is_in_memory && !time.is_zero() => {
                let projection = measure_projection(&model, compute, || false)?;
                StartCosts::new(costs, CostProfile::from_measurements(&projection), CostsOrigin::Options)
            }
            // A measurement of projections would read weights from flash. Free rows make waves as long as allowed.
            (Some(costs), None) => StartCosts::new(costs, free(), CostsOrigin::Options),
            (None, None) => match model.graphs().and_then(StaticGraphs::times) {
                Some(times) => StartCosts::new(graph_costs(&times), free(), CostsOrigin::Graphs),
                None if time.is_zero() => StartCosts::new(assumed_costs(), free(), CostsOrigin::Options),
                None => {
                    let measure = || match is_in_memory {
                        true => measure_load(&model, compute, time),
                        false => measure_streamed(&model, compute),
                    };
                    kept.get_or_measure(&model, compute, mapped, measure)?.into()
                }
            },
        };
        if !has_room(0) {
            return Err(EngineProblem::Memory { bytes: MEMORY_MARGIN }.into());
        }
        let shared = Shared {
            model: Arc::new(model),
            tokenizer,
            generation_defaults,
            kernels,
            pool,
            draft_model: Mutex::new(None),
            predictor: Mutex::new(None),
            learned: Mutex::new(Learned::new(steps)),
            projection_costs: Mutex::new(projection),
            joint_costs: Mutex::default(),
            prompt_pace: Mutex::default(),
            carried: Mutex::default(),
            profile,
            profile_mismatch,
            context_costs: context,
            kept,
            costs_origin: origin,
            history: Arc::new({
                let of_one = options.history_tokens_max.unwrap_or(HistoryStore::TOKENS_MAX);
                let total = options.history_total_tokens_max;
                total
                    .into_iter()
                    .fold(HistoryStore::with_tokens_max(of_one), HistoryStore::with_total_tokens_max)
            }),
            device: DeviceState::default(),
            energy_meter: Mutex::new(
                Powercap::open().ok().map(|meter| Arc::new(meter) as Arc<dyn EnergyMeter>),
            ),
            kernels_notice: options.isa.map_or_else(Kernels::notice, |_| None),
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

    /// Loads a smaller model that drafts for sessions started from now on, and replaces an earlier draft
    /// model. `progress` is called as in [`Engine::load`]. The draft model runs on the engine's threads. Its
    /// pass costs are measured unless the options contain them.
    ///
    /// A [head for multi-token prediction](Checkpoint::open_mtp) is a draft model of one layer that shares embedding and output
    /// matrix with the target. It reads the target's final hidden states, so prompts compute the target's last layer for every row.
    /// An EAGLE-3 head reads the target's hidden states before three layers and has an output matrix of its own. Published ones have no
    /// tokenizer: that their vocabulary is the target's is checked by its size alone.
    ///
    /// It is one draft source among others: the builder runs it only if it pays. It never changes the output.
    ///
    /// # Errors
    /// As [`Engine::load`]. Kind [`Mismatch`](crate::ErrorKind::Mismatch): the vocabulary differs, or the head is that of another model.
    /// Kind [`Unsupported`](crate::ErrorKind::Unsupported): this model has no layers that an EAGLE-3 head could read between. Existing
    /// sessions are unchanged.
    pub fn set_draft_model(
        &self,
        checkpoint: &Checkpoint,
        options: DraftModelOptions,
        progress: impl FnMut(u64, u64),
    ) -> Result<(), LoadError> {
        let DraftModelOptions { quantize, packed_access, cost_profile } = options;
        let name = checkpoint.name();
        if checkpoint.graphs().is_some() {
            return Err(EngineProblem::DraftGraphs { name: name.to_owned() }.into());
        }
        let [target, config] = [self.config(), checkpoint.config()];
        let hidden_dim = config.eagle3().map_or(config.hidden_dim, |eagle3| eagle3.target_hidden_dim);
        let is_head = config.draft_head.is_some();
        if is_head && (hidden_dim, config.vocab_size) != (target.hidden_dim, target.vocab_size) {
            let width = EngineProblem::HeadWidth {
                name: name.to_owned(),
                hidden_dim,
                vocab_size: config.vocab_size,
                target_hidden_dim: target.hidden_dim,
                target_vocab_size: target.vocab_size,
            };
            return Err(width.into());
        }
        let taps = config.eagle3().map(|eagle3| self.check_taps(name, eagle3)).transpose()?;
        if taps.is_none() {
            vocabulary::check(self.tokenizer(), &checkpoint.tokenizer()?)
                .map_err(|mismatch| EngineProblem::DraftVocabulary { name: name.to_owned(), mismatch })?;
        }
        let n_threads = Some(self.shared.pool.n_threads());
        let progress = shared_progress(progress);
        let progress = Some(&progress as &dyn Fn(u64, u64));
        let load = LoadOptions { quantize, packed_access, progress, n_threads, ..LoadOptions::default() };
        let model = match is_head {
            true => Model::load_head(checkpoint, &self.shared.model, load)?,
            false => Model::load(checkpoint, load)?,
        };
        let costs = match cost_profile {
            Some(costs) => costs,
            None => {
                let (compute, mapped) = (self.shared.compute(), is_mapped(checkpoint, packed_access));
                let measure = || measure_load(&model, compute, MEASURE_TIME_DEFAULT);
                self.shared.kept.get_or_measure(&model, compute, mapped, measure)?.0.costs()
            }
        };
        let (kernels, pool) = (self.shared.kernels, Arc::clone(&self.shared.pool));
        let model = DraftModel::new(name, model, kernels, pool, costs);
        let model = match taps {
            Some(taps) => model.eagle3(taps, checkpoint.draft_tokens().cloned()),
            None => model,
        };
        *self.shared.draft_model_slot() = Some(Arc::new(model));
        Ok(())
    }

    /// The layers of the model before which an EAGLE-3 head reads its residual stream.
    fn check_taps(&self, name: &str, eagle3: &Eagle3) -> Result<[usize; 3], EngineProblem> {
        let (config, name) = (self.config(), name.to_owned());
        let undivided = match (self.shared.model.graphs(), &config.streams) {
            (Some(_), _) => Some("static graphs"),
            (_, Some(_)) => Some("several residual streams"),
            (None, None) => None,
        };
        if let Some(target) = undivided {
            return Err(EngineProblem::NoTaps { name, target });
        }
        let (n_layers, taps) = (config.n_layers(), eagle3.taps_of(config.n_layers()));
        match taps.into_iter().find(|&layer_idx| layer_idx > n_layers) {
            Some(layer_idx) => Err(EngineProblem::HeadLayer { name, layer_idx, n_layers }),
            None => Ok(taps),
        }
    }

    /// Drafts with the first layers of the streamed model itself in sessions started from now on, in place of a draft model: the layers
    /// before that of `predictor`, which must be [pinned](crate::streaming::StreamOptions::pinned_first). They run while the disk reads the other
    /// layers. What they compute of a row is the first part of its verification, so nothing is computed twice.
    ///
    /// It is one draft source among others, named `self_draft`: the builder runs it only if it pays. It never changes the output. While
    /// memory pressure has released the layers, it drafts nothing. The memory of a session's state is
    /// [`SessionOptions::self_draft_bytes`].
    ///
    /// # Errors
    /// The model is not streamed, a layer is not pinned, the predictor is that of another model, the rows of this
    /// model cannot be kept, or a measured pass failed. Existing sessions and the draft model are unchanged.
    pub fn set_self_draft(&self, predictor: Predictor) -> Result<(), LoadError> {
        let (kernels, pool) = (self.shared.kernels, Arc::clone(&self.shared.pool));
        let model = DraftModel::of_target(&self.shared.model, predictor, kernels, pool)?;
        *self.shared.draft_model_slot() = Some(Arc::new(model));
        Ok(())
    }

    internals! {
        /// The draft model, if one is loaded.
        fn draft_model(&self) -> Option<Arc<DraftModel>> {
            self.shared.draft_model()
        }
    }

    /// Sets the predictor that prunes the drafts of sessions started from now on at a middle layer, and
    /// replaces an earlier predictor. It never changes the output.
    ///
    /// # Errors
    /// The predictor was trained for another model, or this model's layers are static
    /// graphs. Existing sessions are unchanged.
    pub fn set_predictor(&self, predictor: Predictor) -> Result<(), LoadError> {
        predictor.check_model(&self.shared.model)?;
        *self.shared.predictor_slot() = Some(Arc::new(predictor));
        Ok(())
    }

    /// The predictor that new sessions prune with, if one is set.
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

    /// Generation options that the model's authors recommend: see
    /// [`Sampling::with_model_defaults`](crate::Sampling::with_model_defaults).
    pub fn generation_defaults(&self) -> &GenerationDefaults {
        &self.shared.generation_defaults
    }

    /// Earlier responses of this process, by namespace.
    pub fn history(&self) -> &HistoryStore {
        &self.shared.history
    }

    /// The device as the app reports it and as it was measured: heat, memory pressure, power, energy, step costs.
    pub fn device(&self) -> Device<'_> {
        Device { shared: &self.shared }
    }

    /// What generations have learned for drafting.
    pub fn learned(&self) -> LearnedState<'_> {
        LearnedState { shared: &self.shared }
    }

    internals! {
        /// The measured reliability of each source.
        fn reliability(&self) -> ReliabilityTable {
            self.shared.learned().reliability().clone()
        }

        /// Replaces the reliability table for later generations.
        fn set_reliability(&self, table: ReliabilityTable) {
            self.shared.learned().set_reliability(table);
        }
    }

    internals! {
        /// The costs of a generation that starts behind `context` tokens.
        fn costs_behind(&self, context: usize) -> CostProfile {
            match &self.shared.profile {
                Some(profile) => {
                    let costs = profile.costs(context, SessionOptions::default().projection_rows);
                    costs.corrected(self.shared.learned().correction())
                }
                None => {
                    let costs = self.shared.learned().costs().clone();
                    match &self.shared.context_costs {
                        Some(measured) => costs.scaled(|rows| measured.factor(context, rows)),
                        None => costs,
                    }
                }
            }
        }
    }

    internals! {
        /// The model's layers as static graphs, if the model consists of static graphs.
        fn graphs(&self) -> Option<&StaticGraphs> {
            self.shared.model.graphs()
        }

        /// The streamed weights, if the model is streamed.
        fn streamed(&self) -> Option<&Streamed> {
            self.shared.model.streamed()
        }

        /// Measures loads and calls of static graphs `rounds` times each, and uses these times for planning
        /// from now on. `None` if the model has no static graphs. Nothing else should run meanwhile.
        ///
        /// # Errors
        /// [`GraphsError`]; the previous times are kept.
        fn measure_graphs(&self, rounds: usize) -> Result<Option<SwitchTimes>, GraphsError> {
            let Some(graphs) = self.graphs() else { return Ok(None) };
            let compute = self.shared.compute();
            graphs.measure(&self.shared.model, compute, times_label(compute), rounds).map(Some)
        }

        /// Replaces the measured costs of projection for later generations. With free rows, each wave takes
        /// all rows of a step, up to [`SessionOptions::projection_rows`]: eager projection, for comparison.
        fn set_projection_costs(&self, costs: CostProfile) {
            *self.shared.projection_costs() = costs;
        }

        /// The rows of some tokens in the output matrix, `[tokens.len(), hidden_dim]`; `None` if it is not in memory.
        ///
        /// # Panics
        /// A token is not in the vocabulary.
        fn output_rows(&self, tokens: &[TokenId]) -> Option<Vec<f32>> {
            self.shared.model.output_rows(tokens)
        }

        /// The identity under which measurements of this model are stored; see [`Model::identity`].
        fn model_identity(&self) -> ModelIdentity {
            self.shared.model.identity()
        }
    }

    /// Bytes of the weights, including those of a mapped file. For a streamed model: the weights that stay in
    /// memory, and the ring.
    pub fn memory_usage(&self) -> u64 {
        self.shared.model.memory_usage() as u64
    }
}

/// Whether the matrices of a model in memory are views of its file.
fn is_mapped(checkpoint: &Checkpoint, access: PackedAccess) -> bool {
    checkpoint.packed().is_some() && access == PackedAccess::Map
}

/// Runs `other` on a thread of its own, if the system gives one, while this thread runs `own`.
fn beside<A: Send, B>(other: &(impl Fn() -> A + Sync), own: impl FnOnce() -> B) -> (A, B) {
    if cfg!(target_family = "wasm") {
        return (other(), own());
    }
    std::thread::scope(|scope| match std::thread::Builder::new().spawn_scoped(scope, other) {
        Ok(thread) => {
            let own = own();
            (thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)), own)
        }
        Err(_) => (other(), own()),
    })
}

/// The callback for several readers of a file, which one thread calls in turn.
fn shared_progress(progress: impl FnMut(u64, u64)) -> impl Fn(u64, u64) {
    let progress = RefCell::new(progress);
    move |done, total| progress.borrow_mut()(done, total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::measure::ContextCosts;
    use crate::engine::options::{Drafting, GenerateOptions};
    use refrain_trees::TokenId;
    use std::ops::ControlFlow;

    /// With a context that makes eight rows dearer by the length of the context and one row not at all.
    #[test]
    fn a_context_that_has_grown_is_not_taken_for_a_change_of_the_machine() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf");
        let mut engine =
            Engine::open(path, EngineOptions { n_threads: Some(1), ..EngineOptions::default() }).unwrap();
        let steps = engine.device().cost_profile();
        let shared = Arc::get_mut(&mut engine.shared).expect("no session holds it");
        shared.context_costs = Some(ContextCosts::of([0.0, steps.verify_us(8, 1)], steps));
        let ratio = |engine: &Engine| {
            let costs = engine.device().cost_profile();
            costs.verify_us(8, 1) / costs.verify_us(1, 1)
        };
        let before = ratio(&engine);
        // Once with fewer tokens than move the costs, once with more.
        for max_tokens in [24, 60] {
            // Plain steps: those of more rows would show that they are not as dear.
            let options = SessionOptions { drafting: Drafting::Off, ..SessionOptions::default() };
            let mut session = engine.session(options).unwrap();
            session.append_tokens(&[TokenId(5); 8]).unwrap();
            let options = GenerateOptions { max_tokens, ignore_eos: true, ..GenerateOptions::default() };
            session.generate(options).unwrap().run(|_| ControlFlow::Continue(())).unwrap();
            // Times of single steps differ by less than the context would.
            let change = ratio(&engine) / before;
            assert!((0.5..2.0).contains(&change), "{change} after {max_tokens} tokens");
        }
    }

    #[test]
    fn costs_of_batches_that_are_given_say_nothing_of_the_projection() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf");
        let given = CostProfile::free_rows(1.0);
        let engine = Engine::open(
            path,
            EngineOptions { n_threads: Some(1), cost_profile: Some(given), ..EngineOptions::default() },
        )
        .unwrap();
        let costs = engine.shared.projection_costs();
        // A megabyte of weights, in products with one row and with eight rows.
        assert!(costs.verify_us(1, 1) > 2.0, "{costs:?}");
        assert!(costs.verify_us(8, 1) > costs.verify_us(1, 1), "{costs:?}");
    }
}
