//! State that the sessions of an engine share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::draft::{CostProfile, HistoryStore, Learned};
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
    /// Generations start from a copy and merge what they have learnt.
    pub(super) learned: Mutex<Learned>,
    /// What projecting rows onto the vocabulary costs.
    pub(super) projection_costs: Mutex<CostProfile>,
    /// Where there is one, each generation with its type of KV cache starts from what it says of its context.
    pub(crate) profile: Option<MachineProfile>,
    /// Why the profile that was given is not used.
    pub(crate) profile_mismatch: Option<ProfileMismatch>,
    pub(crate) history: Arc<HistoryStore>,
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

    pub(crate) fn learned(&self) -> MutexGuard<'_, Learned> {
        // Each change leaves a whole value, so a panic elsewhere cannot have left half of one.
        self.learned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn projection_costs(&self) -> MutexGuard<'_, CostProfile> {
        self.projection_costs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
