//! State that the sessions of an engine share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::draft::{CostCorrection, CostProfile, HistoryStore, ReliabilityTable};
use crate::draft_model::DraftModel;
use crate::engine::policy::Device;
use crate::kernels::{Kernels, Pool};
use crate::model::streamed::Streamed;
use crate::model::transformer::Compute;
use crate::model::{GenerationDefaults, Model};
use crate::profile::{MachineProfile, ProfileMismatch};
use crate::pruning::Predictor;
use crate::stream::Flow;
use crate::tokenizer::Tokenizer;

/// State that the sessions of an engine share.
pub(crate) struct Shared {
    pub(crate) model: Model,
    pub(crate) tokenizer: Tokenizer,
    pub(super) generation_defaults: GenerationDefaults,
    pub(crate) kernels: Kernels,
    pub(crate) pool: Arc<Pool>,
    /// What sessions that are started from now on draft with, besides their texts.
    pub(super) draft_model: Mutex<Option<Arc<DraftModel>>>,
    /// What sessions that are started from now on prune with.
    pub(super) predictor: Mutex<Option<Arc<Predictor>>>,
    /// Generations without a stored profile start from it and give back what they have measured.
    pub(crate) costs: Mutex<CostProfile>,
    /// What projecting rows onto the vocabulary costs.
    pub(crate) projection_costs: CostProfile,
    /// Where there is one, each generation with its type of KV cache starts from what it says of its context.
    pub(crate) profile: Option<MachineProfile>,
    /// What the generations with that profile have found it to be wrong by; the last to end is kept.
    pub(crate) correction: Mutex<CostCorrection>,
    /// Why the profile that was given is not used.
    pub(crate) profile_mismatch: Option<ProfileMismatch>,
    pub(crate) history: Arc<HistoryStore>,
    /// Which drafts were accepted: as `costs`, and of generations that run at the same time the last to end is kept.
    pub(crate) reliability: Mutex<ReliabilityTable>,
    /// What the app has reported of the device.
    pub(crate) device: Device,
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

    /// What has flowed from flash so far: nothing where the model is not streamed.
    pub(crate) fn flow(&self) -> Flow {
        self.model.streamed().map(Streamed::flow).unwrap_or_default()
    }

    pub(crate) fn costs(&self) -> MutexGuard<'_, CostProfile> {
        // The profile is replaced as a whole, so a panic elsewhere cannot have left half of one.
        self.costs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn correction(&self) -> MutexGuard<'_, CostCorrection> {
        self.correction.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn reliability(&self) -> MutexGuard<'_, ReliabilityTable> {
        self.reliability.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
