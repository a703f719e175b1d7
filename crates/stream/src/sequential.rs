//! Measures the bandwidth of a disk under sequential reads: the upper bound of streaming.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::file::{DIRECT_ALIGN, DirectFile};
use super::options::{StreamOptions, check_options, reader_of};
use super::{Extent, Meter, ReadFailure, Ring, RingOptions, TakeError};
use refrain_files::open_regular;
use refrain_kernels::PageBuf;

/// Number of buffers: one is filled while another is returned, and the third keeps the disk busy meanwhile.
const N_BUFFERS: usize = 3;

/// Reads a file once up to its last whole page through a ring, as layers are read: in order, with `n_reads`
/// concurrent reads of `block_len` bytes. Returns the bytes read and the time.
///
/// # Errors
/// [`io::ErrorKind::OutOfMemory`] if the buffers cannot be allocated, [`io::ErrorKind::TimedOut`] if no read
/// ends within [`StreamOptions::stall_max`], [`io::ErrorKind::InvalidInput`] for options out of range, otherwise the system's error.
///
/// # Panics
/// If `block_len` is 0 or not a multiple of [`DIRECT_ALIGN`].
pub fn sequential_read(
    path: &Path,
    block_len: usize,
    n_reads: usize,
    options: &StreamOptions,
) -> io::Result<(u64, Duration)> {
    assert!(block_len > 0 && block_len.is_multiple_of(DIRECT_ALIGN), "blocks of {block_len}");
    check_options(options).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    let file = open_regular(path)?;
    let len = file.metadata()?.len();
    let len = len - len % DIRECT_ALIGN as u64;
    let file = reader_of(options, Arc::new(DirectFile::reopen(&file)?));
    let n_reads = n_reads.max(1);
    let extent_len = PageBuf::huge_len((block_len * n_reads) as u64);
    let extents: Vec<Extent> = (0..len)
        .step_by(extent_len as usize)
        .map(|offset| Extent { offset, len: extent_len.min(len - offset) as usize })
        .collect();
    let n_extents = extents.len();
    let buffers = (0..N_BUFFERS).map(|_| PageBuf::zeroed(extent_len as usize)).collect::<Result<_, _>>();
    let mut buffers: Vec<PageBuf> = buffers.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    // The system allocates pages on their first write. They are written now, so that the measurement does not
    // include that time.
    buffers.iter_mut().for_each(|buffer| buffer.bytes_mut().fill(1));
    let options = RingOptions { block_len, n_reads, stall_max: options.stall_max };
    let ring = Ring::new(file, Arc::new(Meter::default()), extents, buffers, options)?;
    let never = AtomicBool::new(false);
    let start = Instant::now();
    for i in 0..n_extents {
        ring.take(i, &never).map_err(failure)?;
        // Otherwise the ring would start again after the last extent.
        ring.skip(i);
    }
    Ok((len, start.elapsed()))
}

fn failure(error: TakeError) -> io::Error {
    match error {
        TakeError::Failed(ReadFailure::Read { kind, message, .. }) => io::Error::new(kind, message),
        TakeError::Failed(ReadFailure::Stalled { .. }) => io::ErrorKind::TimedOut.into(),
        TakeError::Cancelled => io::ErrorKind::Interrupted.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pinned;

    #[test]
    fn every_whole_page_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![1; 10 * DIRECT_ALIGN + 5]).unwrap();
        let options = StreamOptions::new(Pinned::Layers(0));
        for n_reads in [1, 3] {
            let (n_bytes, _) = sequential_read(&path, 4 * DIRECT_ALIGN, n_reads, &options).unwrap();
            assert_eq!(n_bytes, 10 * DIRECT_ALIGN as u64);
        }
        let slow = StreamOptions { bandwidth_max: Some(1_000_000), ..options };
        let (_, took) = sequential_read(&path, 4 * DIRECT_ALIGN, 2, &slow).unwrap();
        assert!(took >= Duration::from_millis(40), "{took:?}");
        assert!(sequential_read(&dir.path().join("missing"), DIRECT_ALIGN, 1, &slow).is_err());
    }
}
