//! Times of single layers, for measurements while loading.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use super::parts::Part;
use super::{Compute, ForwardError, Model, PassEnd, Workspace};
use crate::kernels::FloatEnv;
use crate::model::batch::Batch;
use crate::model::kv_cache::KvCache;
use crate::model::rows::ActiveRows;

impl Model {
    /// Runs the rows of a batch through `layers`, in this order and without the others, and writes times in µs to `us`: of
    /// all that comes before the layers, then of each of them. Final hidden states are not computed.
    ///
    /// # Errors
    /// As [`Model::forward`].
    ///
    /// # Panics
    /// If the layers are not in memory, or an index is out of range.
    pub(crate) fn time_layers(
        &self,
        compute: Compute<'_>,
        batch: &Batch,
        kv: &mut KvCache,
        workspace: &mut Workspace,
        layers: &[usize],
        us: &mut Vec<f32>,
    ) -> Result<(), ForwardError> {
        let _env = FloatEnv::ieee();
        let never = AtomicBool::new(false);
        let parts = &mut [Part::new(batch, kv, workspace, &never)];
        self.begin_parts(parts)?;
        us.clear();
        let mut start = Instant::now();
        let mut lap = || {
            let end = Instant::now();
            us.push((end - std::mem::replace(&mut start, end)).as_secs_f32() * 1e6);
        };
        let mut ws = parts[0].take_buffers();
        self.begin_rows(compute, parts, &mut ws)?;
        let active = ActiveRows::all(std::iter::once(batch), ActiveRows::default());
        lap();
        for &layer_idx in layers {
            let layer = std::slice::from_ref(&self.weights.layers[layer_idx]);
            self.run_layers(compute, layer_idx, layer, &active.rows(), parts, &mut ws, PassEnd::Hidden)?;
            lap();
        }
        parts[0].put_buffers(ws);
        Ok(())
    }
}
