//! Measured passes of a draft model of the target's own layers.

use crate::kernels::Instant;
use std::sync::{Arc, Mutex};

use super::kv_tree::{KvTree, ROOT};
use super::own_layers::{OwnLayers, SelfDraftError};
use super::{DraftModel, Weights};
use crate::draft::CostProfile;
use crate::kernels::{Kernels, Pool};
use crate::model::{Model, VariedTokens};
use crate::pruning::Predictor;
use refrain_trees::TokenId;

impl DraftModel {
    /// The first layers of a streamed target, with the predictor as an exit behind them. The cost of their passes is measured: some
    /// passes of one row and of several.
    ///
    /// # Errors
    /// [`SelfDraftError`]; [`SelfDraftError::Forward`] if a pass failed.
    pub(crate) fn of_target(
        target: &Arc<Model>,
        predictor: Predictor,
        kernels: Kernels,
        pool: Arc<Pool>,
    ) -> Result<Self, SelfDraftError> {
        let weights = Weights::Target(Box::new(OwnLayers::new(target, predictor)?));
        let costs = Mutex::new(CostProfile::free_rows(1.0));
        let model = Arc::new(Self {
            name: "self".to_owned(),
            weights,
            kernels,
            pool,
            costs,
            reads: None,
            tokens: None,
        });
        let measured = measure(&model)?;
        *model.costs() = measured;
        Ok(Arc::into_inner(model).expect("the measurement is over"))
    }
}

/// Rows of the measured passes.
const COST_ROWS: [usize; 3] = [1, 8, 32];

/// Measures the passes of a draft model of own layers, exit included: the best of three each, after one that touches the memory.
fn measure(model: &Arc<DraftModel>) -> Result<CostProfile, SelfDraftError> {
    let n_rows_max = COST_ROWS.into_iter().max().unwrap_or(1);
    let mut tree = KvTree::new(Arc::clone(model), n_rows_max, 1, n_rows_max)?;
    let mut tokens = VariedTokens::new(model.config().vocab_size);
    let mut measured = Vec::new();
    for n_rows in COST_ROWS {
        let mut best = f32::INFINITY;
        for _ in 0..4 {
            tree.truncate(0);
            tree.follow(&tokens.draw(1));
            tree.compute_root()?;
            let nodes: Vec<(u32, TokenId)> =
                tokens.draw(n_rows).into_iter().map(|token| (ROOT, token)).collect();
            let start = Instant::now();
            tree.compute(&nodes)?;
            best = best.min(start.elapsed().as_secs_f32() * 1e6);
        }
        measured.push((n_rows, best));
    }
    Ok(CostProfile::from_measurements(&measured))
}
