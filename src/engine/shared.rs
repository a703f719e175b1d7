//! State that the sessions of an engine share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::draft::{CostProfile, HistoryStore, JointCosts, Learned, PromptPace};
use crate::draft_model::DraftModel;
use crate::energy::EnergyMeter;
use crate::engine::measure::ContextCosts;
use crate::engine::measured::{CostsOrigin, Kept};
use crate::engine::policy::{Carried, DeviceState};
use crate::kernels::{Kernels, KernelsNotice, Pool};
use crate::model::streamed::Streamed;
use crate::model::transformer::Compute;
use crate::model::{GenerationDefaults, Model};
use crate::profile::{MachineProfile, ProfileMismatch};
use crate::pruning::Predictor;
use refrain_stream::Flow;
use refrain_tokenizer::Tokenizer;

/// State that the sessions of an engine share.
pub(crate) struct Shared {
    pub(crate) model: Arc<Model>,
    pub(crate) tokenizer: Tokenizer,
    pub(super) generation_defaults: GenerationDefaults,
    pub(crate) kernels: Kernels,
    pub(crate) pool: Arc<Pool>,
    /// The draft model of sessions started from now on.
    pub(super) draft_model: Mutex<Option<Arc<DraftModel>>>,
    /// The predictor of sessions started from now on.
    pub(super) predictor: Mutex<Option<Arc<Predictor>>>,
    /// Generations start from a copy and merge their learned values at their end.
    pub(super) learned: Mutex<Learned>,
    /// The learned difference between passes that generations share and passes of their own.
    pub(super) joint_costs: Mutex<JointCosts>,
    /// How many rows of prompts join passes of steps.
    pub(super) prompt_pace: Mutex<PromptPace>,
    /// The time that the drafts of ended generations have lost.
    pub(super) carried: Mutex<Carried>,
    /// Costs of projecting rows onto the vocabulary.
    pub(super) projection_costs: Mutex<CostProfile>,
    /// The stored profile. Generations with its KV cache type start from its costs for their context length.
    pub(crate) profile: Option<MachineProfile>,
    /// How costs grow with the context, if it was measured while loading.
    pub(crate) context_costs: Option<ContextCosts>,
    /// Costs that earlier starts have measured, and those that this one has.
    pub(super) kept: Kept,
    pub(super) costs_origin: CostsOrigin,
    /// Why the given profile is ignored.
    pub(crate) profile_mismatch: Option<ProfileMismatch>,
    pub(crate) history: Arc<HistoryStore>,
    /// The device state that the app reported.
    pub(crate) device: DeviceState,
    /// Why the kernels are slow.
    pub(super) kernels_notice: Option<KernelsNotice>,
    /// The energy counter of the system or the app.
    pub(super) energy_meter: Mutex<Option<Arc<dyn EnergyMeter>>>,
}

impl Shared {
    pub(crate) fn compute(&self) -> Compute<'_> {
        Compute { kernels: self.kernels, pool: &self.pool }
    }

    pub(crate) fn draft_model(&self) -> Option<Arc<DraftModel>> {
        self.draft_model_slot().clone()
    }

    pub(super) fn draft_model_slot(&self) -> MutexGuard<'_, Option<Arc<DraftModel>>> {
        self.draft_model.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn predictor(&self) -> Option<Arc<Predictor>> {
        self.predictor_slot().clone()
    }

    pub(super) fn predictor_slot(&self) -> MutexGuard<'_, Option<Arc<Predictor>>> {
        self.predictor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn energy_meter(&self) -> Option<Arc<dyn EnergyMeter>> {
        self.energy_meter.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Energy used so far; `None` without a meter.
    pub(crate) fn joules(&self) -> Option<f64> {
        self.energy_meter()?.joules()
    }

    /// Flash traffic so far; zero if the model is not streamed.
    pub(crate) fn flow(&self) -> Flow {
        self.model.streamed().map(Streamed::flow).unwrap_or_default()
    }

    pub(crate) fn learned(&self) -> MutexGuard<'_, Learned> {
        // Every change replaces the whole value, so a panic elsewhere cannot leave a partial one.
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn prompt_pace(&self) -> MutexGuard<'_, PromptPace> {
        self.prompt_pace.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn joint_costs(&self) -> MutexGuard<'_, JointCosts> {
        self.joint_costs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn carried(&self) -> MutexGuard<'_, Carried> {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn projection_costs(&self) -> MutexGuard<'_, CostProfile> {
        self.projection_costs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
