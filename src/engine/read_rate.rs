//! The rate at which this machine reads weights: the ground of an estimate of a model's speed before it is measured.

use crate::engine::cores::{THREADS_MAX, n_performance_cores};
use crate::engine::error::EngineProblem;
use crate::kernels::Instant;
use crate::kernels::{self, Activations, BlockType, IsaKind, Kernels, MatMul, PackError, PackedMatrix, Pool};

/// Bytes of the matrix, more than the last-level cache of a laptop or a phone.
const MATRIX_BYTES: usize = 64 << 20;

/// Columns of the matrix: a usual width of a residual stream.
const N_COLS: usize = 4096;

/// Products; the fastest one counts.
const PASSES: usize = 8;

/// The rate at which a row is multiplied with weights in 8 bits, by the kernels and threads that an engine with default options
/// has.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReadRate {
    /// Bytes of weights per second.
    pub bytes_per_s: f64,
    /// Instruction set of the kernels.
    pub isa: IsaKind,
    /// Threads.
    pub n_threads: usize,
}

impl ReadRate {
    /// Measures the rate, in about a tenth of a second.
    ///
    /// # Errors
    /// [`EngineProblem::Spawn`]: the threads could not be started. `Ok(None)`: there is no memory for the matrix.
    pub fn measure() -> Result<Option<Self>, EngineProblem> {
        let n_threads = n_performance_cores().min(THREADS_MAX);
        let pool = Pool::try_new(n_threads).map_err(|source| EngineProblem::Spawn { n_threads, source })?;
        let kernels = Kernels::detect();
        Ok(Self::read(kernels, &pool).ok().map(|bytes_per_s| Self {
            bytes_per_s,
            isa: kernels.isa(),
            n_threads,
        }))
    }

    fn read(k: Kernels, pool: &Pool) -> Result<f64, PackError> {
        let ty = BlockType::Q8_0;
        let row_bytes = N_COLS / ty.block_len() * ty.block_bytes();
        let n_rows = MATRIX_BYTES / row_bytes;
        // The panels are written, so that they are memory of their own.
        let fill = |panels: &mut [u8]| {
            panels.fill(0);
            Ok::<_, PackError>(())
        };
        let matrix = PackedMatrix::from_panels(ty, n_rows, N_COLS, fill)?;
        let (mut x, mut out) = (Activations::new(), vec![0.0; n_rows]);
        x.set(k, pool, &[0.5; N_COLS], 1, N_COLS, matrix.activation_form());
        let mut seconds = || {
            let start = Instant::now();
            kernels::matmul(k, pool, &x, &mut [MatMul { w: &matrix, out: &mut out }]);
            start.elapsed().as_secs_f64()
        };
        let least = (0..PASSES).map(|_| seconds()).fold(f64::INFINITY, f64::min);
        Ok(matrix.size_bytes() as f64 / least.max(1e-9))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_one_of_a_machine() {
        let rate = ReadRate::measure().unwrap().expect("memory for a matrix");
        // Between an emulator and a rack.
        assert!((1e6..1e13).contains(&rate.bytes_per_s), "{rate:?}");
        assert!(rate.n_threads >= 1 && rate.isa == Kernels::detect().isa());
    }
}
