//! What a disk gives when nothing else is wanted of it: the measure of streaming.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::file::{DIRECT_ALIGN, DirectFile, read_full};
use super::options::StreamOptions;
use crate::kernels::PageBuf;

/// Buffers of this length lie in huge pages where the system has them, as those of a ring do. A disk may be three times as fast into
/// them: a read of 1 MiB into small pages is one of 256 pieces.
const BUFFER_LEN_MIN: usize = 4 << 20;

/// Reads a file once from its beginning to its last whole page, past the page cache as a ring does: `n_threads` reads of
/// `block_len` bytes at a time, in order, each thread into a buffer of its own. Returns the bytes read and the time it took.
///
/// # Errors
/// The system's; [`io::ErrorKind::OutOfMemory`] where there is no memory for the buffers.
///
/// # Panics
/// If `block_len` is 0 or no multiple of [`DIRECT_ALIGN`].
pub fn sequential_read(
    path: &Path,
    block_len: usize,
    n_threads: usize,
    options: &StreamOptions,
) -> io::Result<(u64, Duration)> {
    assert!(block_len > 0 && block_len.is_multiple_of(DIRECT_ALIGN), "blocks of {block_len}");
    let file = options.reader(Arc::new(DirectFile::open(path)?));
    let len = std::fs::metadata(path)?.len();
    let len = len - len % DIRECT_ALIGN as u64;
    let buffer = || PageBuf::zeroed(block_len.max(BUFFER_LEN_MIN));
    let buffers = (0..n_threads.max(1)).map(|_| buffer()).collect::<Result<Vec<_>, _>>();
    let buffers = buffers.map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
    let next = AtomicU64::new(0);
    let start = Instant::now();
    let read = |mut buffer: PageBuf| -> io::Result<()> {
        loop {
            let offset = next.fetch_add(block_len as u64, Ordering::Relaxed);
            if offset >= len {
                return Ok(());
            }
            let n_bytes = (block_len as u64).min(len - offset) as usize;
            read_full(&*file, offset, &mut buffer.bytes_mut()[..n_bytes]).map_err(|(_, error)| error)?;
        }
    };
    std::thread::scope(|scope| {
        let read = &read;
        let threads: Vec<_> = buffers.into_iter().map(|buffer| scope.spawn(move || read(buffer))).collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("the reader panicked")))
        })
    })?;
    Ok((len, start.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stream::Pinned;

    #[test]
    fn every_whole_page_is_read_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![1; 10 * DIRECT_ALIGN + 5]).unwrap();
        let options = StreamOptions::new(Pinned::Layers(0));
        for n_threads in [1, 3] {
            let (n_bytes, _) = sequential_read(&path, 4 * DIRECT_ALIGN, n_threads, &options).unwrap();
            assert_eq!(n_bytes, 10 * DIRECT_ALIGN as u64);
        }
        let slow = StreamOptions { bandwidth_max: Some(1_000_000), ..options };
        let (_, took) = sequential_read(&path, 4 * DIRECT_ALIGN, 2, &slow).unwrap();
        assert!(took >= Duration::from_millis(40), "{took:?}");
        assert!(sequential_read(&dir.path().join("missing"), DIRECT_ALIGN, 1, &slow).is_err());
    }
}
