//! Times of single layers, for measurements while loading.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::parts::Part;
use super::{Compute, ForwardError, Model, PassEnd, Workspace};
use crate::kernels::FloatEnv;
use crate::model::batch::Batch;
use crate::model::kv_cache::KvCache;
use crate::model::rows::ActiveRows;

/// The time of a layer, in µs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerTime {
    pub(crate) us: f32,
    /// The part of it that attention takes, without its matrices.
    pub(crate) attention: f32,
}

impl LayerTime {
    /// The lesser times of two runs.
    pub(crate) fn least(self, other: Self) -> Self {
        Self { us: self.us.min(other.us), attention: self.attention.min(other.attention) }
    }
}

impl Model {
    /// Runs the rows of a batch through `layers`, in this order and without the others, and writes the times of each to `times`.
    /// Final hidden states are not computed. Returns the time of all that comes before the layers, in µs.
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
        times: &mut Vec<LayerTime>,
    ) -> Result<f32, ForwardError> {
        let _env = FloatEnv::ieee();
        let never = AtomicBool::new(false);
        let parts = &mut [Part::new(batch, kv, workspace, &never)];
        self.begin_parts(parts)?;
        times.clear();
        let mut start = Instant::now();
        let mut lap = || {
            let end = Instant::now();
            (end - std::mem::replace(&mut start, end)).as_secs_f32() * 1e6
        };
        let mut ws = parts[0].take_buffers();
        self.begin_rows(compute, parts, &mut ws)?;
        let active = ActiveRows::all(std::iter::once(batch), ActiveRows::default());
        let begin = lap();
        for &layer_idx in layers {
            ws.attention_time = Duration::ZERO;
            let layer = std::slice::from_ref(&self.weights.layers[layer_idx]);
            self.run_layers(compute, layer_idx, layer, &active.rows(), parts, &mut ws, PassEnd::Hidden)?;
            times.push(LayerTime { us: lap(), attention: ws.attention_time.as_secs_f32() * 1e6 });
        }
        parts[0].put_buffers(ws);
        Ok(begin)
    }
}
