//! Times of single layers, for measurements while loading.

use std::sync::atomic::AtomicBool;

use super::parts::Part;
use super::{At, Compute, ForwardError, Model, PassEnd, Workspace};
use crate::kernels::Instant;
use crate::kernels::{FloatEnv, resize_exact};
use crate::model::batch::Batch;
use crate::model::config::Mixer;
use crate::model::kv_cache::KvCache;
use crate::model::rows::ActiveRows;

/// The time of a layer, in µs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerTime {
    pub(crate) us: f32,
    /// Attention by itself, without its matrices; 0 without attention.
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
    /// Attention follows once more, of one layer after another: their matrices have taken its keys and values from the caches, as in a
    /// whole pass. Final hidden states are not computed. Returns the time of all that comes before the layers, in µs.
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
        self.begin_rows(compute, parts, &mut ws, None)?;
        let active = ActiveRows::all(std::iter::once(batch), ActiveRows::default());
        let begin = lap();
        for &layer_idx in layers {
            let layer = std::slice::from_ref(&self.weights.layers[layer_idx]);
            self.run_layers(compute, layer_idx, layer, &active.rows(), parts, &mut ws, PassEnd::Hidden)?;
            times.push(LayerTime { us: lap(), attention: 0.0 });
        }
        for (&layer_idx, time) in layers.iter().zip(times) {
            let (plan, layer) = (&self.config.layers[layer_idx], &self.weights.layers[layer_idx]);
            if let Mixer::Attention(attention) = &plan.mixer {
                resize_exact(&mut ws.q, batch.len() * attention.q_dim());
                lap();
                let at = At { compute, plan, layer, layer_idx };
                self.attention(&at, attention, &active.rows(), parts, &mut ws);
                time.attention = lap();
            }
        }
        parts[0].put_buffers(ws);
        Ok(begin)
    }
}
