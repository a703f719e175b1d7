//! Runs a pass through its layers: one by one, from memory or from flash, or through the blocks of static
//! graphs.

use std::sync::atomic::AtomicBool;

use super::{Buffers, Compute, ForwardError, Model, Part, PassEnd};
use crate::kernels::Visible;
use crate::model::graphs::StaticGraphs;
use crate::model::resident::Layer;
use crate::model::rows::{ActiveRows, Interlude, KeptRows, Rows};

impl Model {
    /// The number of layers of a pass.
    pub(super) fn n_layers(&self, end: PassEnd) -> usize {
        match end {
            PassEnd::Hidden | PassEnd::Unprojected => self.config.n_layers(),
            PassEnd::KeysAndValues => self.config.last_stateful_layer() + 1,
        }
    }

    /// Runs the rows through all layers, which `layer` returns one by one unless the flag is set, and calls
    /// the interlude before its layer. `ws.x` begins with the rows that are not `kept`; those join before their layer.
    #[allow(clippy::too_many_arguments, reason = "the arguments of one pass")]
    pub(super) fn run_each<L: AsRef<[Layer]>>(
        &self,
        compute: Compute<'_>,
        mut layer: impl FnMut(usize, &AtomicBool) -> Result<L, ForwardError>,
        active: &mut ActiveRows<'_>,
        parts: &mut [Part<'_>],
        ws: &mut Buffers,
        end: PassEnd,
        mut interlude: Option<&mut dyn Interlude>,
        kept: Option<&KeptRows<'_>>,
    ) -> Result<(), ForwardError> {
        if let Some(kept) = kept {
            let fresh = active.without(kept);
            let n_layers = if fresh.len() > 0 { kept.layer_idx } else { 0 };
            for layer_idx in 0..n_layers {
                let layer = Part::wait(parts, |cancel| layer(layer_idx, cancel))?;
                self.run_layers(compute, layer_idx, layer.as_ref(), &fresh.rows(), parts, ws, end)?;
            }
            fresh.join(kept, &mut ws.x, self.config.hidden_dim);
            ws.resize(&self.config, active.len());
        }
        for layer_idx in kept.map_or(0, |kept| kept.layer_idx)..self.n_layers(end) {
            // A streamed layer is being read meanwhile.
            if let Some(interlude) = interlude.take_if(|interlude| interlude.layer_idx() == layer_idx) {
                active.look(interlude, compute, &mut ws.x, self.config.hidden_dim);
                parts[0].keep(active.kept());
                self.keep_per_layer(active.kept(), ws);
                self.keep_streams(active.kept(), ws);
                ws.resize(&self.config, active.len());
            }
            Part::tap(parts, layer_idx, active, &ws.x, self.config.hidden_dim);
            let layer = Part::wait(parts, |cancel| layer(layer_idx, cancel))?;
            self.run_layers(compute, layer_idx, layer.as_ref(), &active.rows(), parts, ws, end)?;
        }
        if end != PassEnd::KeysAndValues {
            Part::tap(parts, self.config.n_layers(), active, &ws.x, self.config.hidden_dim);
        }
        Ok(())
    }

    /// Runs the `rows` of the only part through blocks of static graphs, in calls of the graph's length. The last call is padded.
    ///
    /// A row sees only rows before it. Rows of earlier calls have written their keys and values in every
    /// layer of the block, so the split into calls does not affect bits. A padding row sees the first row of
    /// the batch, so that its arithmetic is finite, and writes nothing.
    pub(super) fn run_graphs(
        &self,
        compute: Compute<'_>,
        graphs: &StaticGraphs,
        rows: &Rows<'_>,
        parts: &mut [Part<'_>],
        ws: &mut Buffers,
        end: PassEnd,
    ) -> Result<(), ForwardError> {
        let (n_rows, hidden_dim) = (rows.positions.len(), self.config.hidden_dim);
        let padding = [rows.slots.first().copied().unwrap_or(0)];
        let padding = Visible { prefix_len: 0, extra: &padding };
        let (mut positions, mut visible) = (rows.positions.to_vec(), rows.visible.to_vec());
        let mut residual = std::mem::replace(&mut ws.x, std::mem::take(&mut ws.residual));
        let pass = graphs.pass(end);
        let mut first_layer = 0;
        for block_idx in 0..graphs.piece().blocks.len() {
            let block = pass.block(block_idx, parts[0].cancel())?;
            let batch_len = block.batch_len;
            let padded_len = n_rows.next_multiple_of(batch_len);
            positions.resize(padded_len.max(positions.len()), 0);
            visible.resize(padded_len.max(visible.len()), padding);
            self.pad_per_layer(padded_len, ws);
            self.pad_streams(n_rows, padded_len, ws);
            for start in (0..n_rows).step_by(batch_len) {
                let n_written = batch_len.min(n_rows - start);
                let call = Rows {
                    slots: &rows.slots[start..start + n_written],
                    positions: &positions[start..start + batch_len],
                    visible: &visible[start..start + batch_len],
                    starts: &[0],
                };
                let values = &mut residual[start * hidden_dim..(start + n_written) * hidden_dim];
                ws.resize(&self.config, batch_len);
                (ws.per_layer_start, ws.streams.start) = (start, start);
                ws.x[..values.len()].copy_from_slice(values);
                ws.x[values.len()..].fill(0.0);
                self.run_layers(compute, first_layer, block.layers(), &call, parts, ws, end)?;
                values.copy_from_slice(&ws.x[..values.len()]);
            }
            first_layer += block.layers().len();
            pass.computed(block_idx, block);
        }
        pass.finish();
        (ws.per_layer_start, ws.streams.start) = (0, 0);
        ws.residual = std::mem::replace(&mut ws.x, residual);
        ws.resize(&self.config, n_rows);
        Ok(())
    }
}
