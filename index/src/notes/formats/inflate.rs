//! Data packed by DEFLATE, unpacked within a budget: a kilobyte may stand for a megabyte.

use std::cell::Cell;

use miniz_oxide::inflate::{TINFLStatus, decompress_to_vec_with_limit, decompress_to_vec_zlib_with_limit};

use crate::notes::report::SkipReason;

/// Bytes that the parts of a file may still unpack to, all together. A part counts at least as its packed form: that of no byte may be
/// long, and read for each name of it.
#[derive(Debug)]
pub(super) struct Budget {
    left: Cell<usize>,
    limit: usize,
}

impl Budget {
    pub(super) fn new(limit: usize) -> Self {
        Self { left: Cell::new(limit), limit }
    }

    /// Takes bytes.
    ///
    /// # Errors
    /// [`SkipReason::Limit`]: not as many are left.
    pub(super) fn take(&self, n_bytes: usize, offset: usize) -> Result<(), SkipReason> {
        match self.left().checked_sub(n_bytes) {
            Some(left) => {
                self.left.set(left);
                Ok(())
            }
            None => Err(self.exceeded(offset)),
        }
    }

    /// Bytes that are left.
    pub(super) fn left(&self) -> usize {
        self.left.get()
    }

    /// The unpacked data of a part at an offset of its file, and whether the data was whole. `has_header`: in the form of zlib.
    ///
    /// # Errors
    /// [`SkipReason::Limit`]: it has more bytes than are left. Nothing is left then.
    pub(super) fn inflate(
        &self,
        packed: &[u8],
        has_header: bool,
        offset: usize,
    ) -> Result<(Vec<u8>, bool), SkipReason> {
        let unpacked = match has_header {
            true => decompress_to_vec_zlib_with_limit(packed, self.left()),
            false => decompress_to_vec_with_limit(packed, self.left()),
        };
        let (data, is_whole) = match unpacked {
            Ok(data) => (data, true),
            Err(error) if error.status == TINFLStatus::HasMoreOutput => {
                self.left.set(0);
                return Err(self.exceeded(offset));
            }
            Err(error) => (error.output, false),
        };
        self.take(data.len().max(packed.len()), offset)?;
        Ok((data, is_whole))
    }

    fn exceeded(&self, offset: usize) -> SkipReason {
        SkipReason::Limit { what: "unpacked bytes", limit: self.limit as u64, offset: offset as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packed_data_of_no_byte_counts() {
        // Stored blocks without a byte; the last one is the end.
        let mut packed = [0, 0, 0, 0xff, 0xff].repeat(10);
        packed.extend([1, 0, 0, 0xff, 0xff]);
        let budget = Budget::new(100);
        assert_eq!(budget.inflate(&packed, false, 0), Ok((Vec::new(), true)));
        assert_eq!(budget.left(), 45);
        assert!(matches!(budget.inflate(&packed, false, 7), Err(SkipReason::Limit { offset: 7, .. })));
    }
}
