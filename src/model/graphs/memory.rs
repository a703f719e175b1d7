//! Accounting of a target's memory for weights. Memory is reserved here before it is allocated.

use serde::Serialize;

use super::GraphsError;

/// Memory for the weights of a model of static graphs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct GraphMemory {
    /// The limit, in bytes.
    pub limit_bytes: u64,
    /// Bytes held: embedding, norm and head, and one graph per block.
    pub used_bytes: u64,
    /// The most bytes held so far.
    pub peak_bytes: u64,
}

impl GraphMemory {
    pub(super) fn new(limit_bytes: u64) -> Self {
        Self { limit_bytes, used_bytes: 0, peak_bytes: 0 }
    }

    /// Reserves memory, before it is allocated.
    ///
    /// # Errors
    /// [`GraphsError::MemoryLimit`]; nothing is reserved.
    pub(super) fn take(&mut self, bytes: u64) -> Result<(), GraphsError> {
        let needed = self.used_bytes.saturating_add(bytes);
        if needed > self.limit_bytes {
            return Err(GraphsError::MemoryLimit { needed, limit: self.limit_bytes });
        }
        self.used_bytes = needed;
        self.peak_bytes = self.peak_bytes.max(needed);
        Ok(())
    }
}
