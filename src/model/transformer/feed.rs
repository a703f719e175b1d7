//! Runs a pass through its layers: one by one, from memory or from flash, or through the blocks of static
//! graphs.

use std::sync::atomic::AtomicBool;

use super::{Compute, ForwardError, Model, PassEnd, Workspace};
use crate::kernels::Visible;
use crate::model::graphs::StaticGraphs;
use crate::model::kv_cache::KvCache;
use crate::model::rows::{ActiveRows, Interlude, Rows};
use crate::model::weights::Layer;

impl Model {
    /// Runs the rows through all layers, which `layer` returns one by one, and calls the interlude before its
    /// layer.
    #[allow(clippy::too_many_arguments, reason = "the arguments of one pass")]
    pub(super) fn run_each<L: AsRef<[Layer]>>(
        &self,
        compute: Compute<'_>,
        layer: impl Fn(usize) -> Result<L, ForwardError>,
        active: &mut ActiveRows<'_>,
        kv: &mut KvCache,
        ws: &mut Workspace,
        end: PassEnd,
        mut interlude: Option<&mut dyn Interlude>,
        cancel: &AtomicBool,
    ) -> Result<(), ForwardError> {
        for layer_idx in 0..self.config.n_layers {
            // A streamed layer is being read meanwhile.
            if let Some(interlude) = interlude.take_if(|interlude| interlude.layer_idx() == layer_idx) {
                active.look(interlude, compute, &mut ws.x, self.config.hidden_dim);
                ws.resize(&self.config, active.len());
            }
            let layer = layer(layer_idx)?;
            self.run_layers(compute, layer_idx, layer.as_ref(), &active.rows(), kv, ws, end, cancel)?;
        }
        Ok(())
    }

    /// Runs `rows` through blocks of static graphs, in calls of the graph's length. The last call is padded.
    ///
    /// A row sees only rows before it. Rows of earlier calls have written their keys and values in every
    /// layer of the block, so the split into calls does not affect bits. A padding row sees the first row of
    /// the batch, so that its arithmetic is finite, and writes nothing.
    #[allow(clippy::too_many_arguments, reason = "the arguments of one pass")]
    pub(super) fn run_graphs(
        &self,
        compute: Compute<'_>,
        graphs: &StaticGraphs,
        rows: &Rows<'_>,
        kv: &mut KvCache,
        ws: &mut Workspace,
        end: PassEnd,
        cancel: &AtomicBool,
    ) -> Result<(), ForwardError> {
        let (n_rows, hidden_dim) = (rows.positions.len(), self.config.hidden_dim);
        let padding = [rows.slots.first().copied().unwrap_or(0)];
        let padding = Visible { prefix_len: 0, extra: &padding };
        let (mut positions, mut visible) = (rows.positions.to_vec(), rows.visible.to_vec());
        let mut residual = std::mem::replace(&mut ws.x, std::mem::take(&mut ws.residual));
        let pass = graphs.pass(end);
        let mut first_layer = 0;
        for block_idx in 0..graphs.piece().blocks.len() {
            let block = pass.block(block_idx, cancel)?;
            let batch_len = block.batch_len;
            let padded_len = n_rows.next_multiple_of(batch_len);
            positions.resize(padded_len.max(positions.len()), 0);
            visible.resize(padded_len.max(visible.len()), padding);
            for start in (0..n_rows).step_by(batch_len) {
                let n_written = batch_len.min(n_rows - start);
                let call = Rows {
                    slots: &rows.slots[start..start + n_written],
                    positions: &positions[start..start + batch_len],
                    visible: &visible[start..start + batch_len],
                };
                let values = &mut residual[start * hidden_dim..(start + n_written) * hidden_dim];
                ws.resize(&self.config, batch_len);
                ws.x[..values.len()].copy_from_slice(values);
                ws.x[values.len()..].fill(0.0);
                self.run_layers(compute, first_layer, block.layers(), &call, kv, ws, end, cancel)?;
                values.copy_from_slice(&ws.x[..values.len()]);
            }
            first_layer += block.layers().len();
            pass.computed(block_idx, block);
        }
        pass.finish();
        ws.residual = std::mem::replace(&mut ws.x, residual);
        ws.resize(&self.config, n_rows);
        Ok(())
    }
}
