//! Files that are read past the page cache. Weights are read in every pass; through the page cache they would
//! evict the app's pages, and read times would not be those of the flash.

use std::fs::File;
use std::io;

use serde::Serialize;

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ReadMode {
    /// From the disk into the buffer (`O_DIRECT`), many reads at a time through io_uring.
    Queued,
    /// From the disk into the buffer (`O_DIRECT`), one read at a time in each of several threads.
    Direct,
    /// Through the page cache; the pages are dropped after each read.
    DropCache,
    /// Through the page cache, on systems without the other modes.
    Cached,
}

impl std::fmt::Display for ReadMode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ReadMode::Queued => "direct reads through io_uring",
            ReadMode::Direct => "direct reads",
            ReadMode::DropCache => "reads through the page cache, dropped from it",
            ReadMode::Cached => "reads through the page cache",
        })
    }
}

/// The alignment of offsets, lengths and buffers of direct reads, in bytes.
pub const DIRECT_ALIGN: usize = 4096;

/// A file from which weights are streamed, or a substitute for one: a slower disk, or a disk that fails.
pub trait ReadAt: Send + Sync {
    /// Reads into `out` from `offset` once, and returns the number of bytes read. Returns 0 only at the end
    /// of the file.
    ///
    /// `offset`, the length of `out` and the address of `out` are multiples of [`DIRECT_ALIGN`].
    ///
    /// # Errors
    /// The system's error; `out` is then unspecified. The caller repeats the read after
    /// [`io::ErrorKind::Interrupted`].
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize>;

    /// How the file is read.
    fn mode(&self) -> ReadMode;

    /// The file whose bytes [`read_at`](Self::read_at) returns unchanged, open for direct reads. If there is
    /// one, the ring may read it through io_uring instead. By default `None`: every read goes through
    /// `read_at`.
    fn direct_file(&self) -> Option<&File> {
        None
    }
}

/// Maximum bytes of one read: enough for full bandwidth, and few enough to locate a failure.
pub(super) const READ_BYTES_MAX: usize = 4 << 20;

/// Maximum consecutive results without progress (interrupted, or shorter than [`DIRECT_ALIGN`]) before a read
/// fails.
const FRUITLESS_MAX: usize = 64;

/// Fills `out` from `offset`. Interrupted reads are repeated. A short read is continued from the last
/// multiple of [`DIRECT_ALIGN`] that it reached.
///
/// # Errors
/// The offset of the failed read, and its error: [`io::ErrorKind::UnexpectedEof`] if the file is too short,
/// [`io::ErrorKind::InvalidData`] if the reader reports more bytes than were requested, otherwise the
/// system's error. `out` is then unspecified.
pub fn read_full(file: &dyn ReadAt, offset: u64, out: &mut [u8]) -> Result<(), (u64, io::Error)> {
    debug_assert!(offset.is_multiple_of(DIRECT_ALIGN as u64) && out.len().is_multiple_of(DIRECT_ALIGN));
    let mut progress = Progress::new(out.len());
    while !progress.is_complete() {
        let (done, at) = (progress.done(), offset + progress.done() as u64);
        let asked = (out.len() - done).min(READ_BYTES_MAX);
        let answer = file.read_at(at, &mut out[done..done + asked]);
        progress.advance(asked, answer).map_err(|error| (at, error))?;
    }
    Ok(())
}

/// The progress of a read over several results of the system.
pub(super) struct Progress {
    len: usize,
    done: usize,
    /// Consecutive results without progress.
    n_fruitless: usize,
}

impl Progress {
    /// The start of a read of `len` bytes.
    pub(super) fn new(len: usize) -> Self {
        Self { len, done: 0, n_fruitless: 0 }
    }

    /// Bytes read so far: a multiple of [`DIRECT_ALIGN`], or the whole length.
    pub(super) fn done(&self) -> usize {
        self.done
    }

    pub(super) fn is_complete(&self) -> bool {
        self.done == self.len
    }

    /// Records the result of a read of the next `asked` bytes.
    ///
    /// # Errors
    /// As [`read_full`]: the read failed permanently.
    pub(super) fn advance(&mut self, asked: usize, answer: io::Result<usize>) -> io::Result<()> {
        let advanced = match answer {
            Ok(n_bytes) if n_bytes == asked => asked,
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n_bytes) if n_bytes > asked => return Err(io::ErrorKind::InvalidData.into()),
            Ok(n_bytes) => n_bytes - n_bytes % DIRECT_ALIGN,
            Err(error) if error.kind() == io::ErrorKind::Interrupted && self.n_fruitless < FRUITLESS_MAX => 0,
            Err(error) => return Err(error),
        };
        self.n_fruitless = if advanced == 0 { self.n_fruitless + 1 } else { 0 };
        if self.n_fruitless > FRUITLESS_MAX {
            // A file that ends within a page returns the same few bytes each time.
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.done += advanced;
        Ok(())
    }
}

/// An open file that is read in whole pages.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    mode: ReadMode,
}

impl DirectFile {
    /// Opens `file` a second time for direct reads, or in the best mode that the system and the disk allow.
    ///
    /// The path is not used: the bytes are those of `file` even after it was renamed, replaced or deleted.
    ///
    /// # Errors
    /// The system does not provide a second handle.
    pub fn reopen(file: &File) -> io::Result<Self> {
        if let Some(file) = reopen_direct(file) {
            return Ok(Self { file, mode: ReadMode::Direct });
        }
        let mode = if CAN_DROP_CACHE { ReadMode::DropCache } else { ReadMode::Cached };
        Ok(Self { file: file.try_clone()?, mode })
    }
}

impl ReadAt for DirectFile {
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let n_bytes = read_once(&self.file, offset, out)?;
        if self.mode == ReadMode::DropCache {
            drop_cache(&self.file, offset, n_bytes as u64);
        }
        Ok(n_bytes)
    }

    fn mode(&self) -> ReadMode {
        self.mode
    }

    fn direct_file(&self) -> Option<&File> {
        (self.mode == ReadMode::Direct).then_some(&self.file)
    }
}

/// Fills `out` from `offset`, through the page cache.
///
/// # Errors
/// [`io::ErrorKind::UnexpectedEof`] if the file ends earlier, otherwise the system's error; `out` is then
/// unspecified.
pub fn read_exact_at(file: &File, mut offset: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match read_once(file, offset, out) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n_bytes) => {
                offset += n_bytes as u64;
                out = &mut out[n_bytes..];
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(unix)]
fn read_once(file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
    use std::os::unix::fs::FileExt;
    file.read_at(out, offset)
}

#[cfg(windows)]
fn read_once(file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
    use std::os::windows::fs::FileExt;
    file.seek_read(out, offset)
}

#[cfg(not(any(unix, windows)))]
fn read_once(mut file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
    use std::io::{Read, Seek, SeekFrom};
    use std::sync::{Mutex, PoisonError};
    // All threads share the file's cursor.
    static CURSOR: Mutex<()> = Mutex::new(());
    let _cursor = CURSOR.lock().unwrap_or_else(PoisonError::into_inner);
    file.seek(SeekFrom::Start(offset))?;
    file.read(out)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const CAN_DROP_CACHE: bool = true;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CAN_DROP_CACHE: bool = false;

/// `None` if the system or the file system refuses direct reads, on opening or at the first read.
///
/// A handle made by `dup` shares its flags with the first handle, whose reads are not aligned. Opening the
/// entry in `/proc/self/fd` gives a handle to the same file, whatever its name, with its own flags.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn reopen_direct(file: &File) -> Option<File> {
    use std::fs::OpenOptions;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

    use refrain_kernels::PageBuf;

    let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
    let entry = format!("/proc/self/fd/{}", file.as_raw_fd());
    let direct = OpenOptions::new().read(true).custom_flags(flags).open(entry).ok()?;
    // If `/proc` is not the system's, its entry may be another file.
    let identity = |file: &File| file.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    if identity(file)? != identity(&direct)? {
        return None;
    }
    let mut page = PageBuf::zeroed(DIRECT_ALIGN).ok()?;
    read_once(&direct, 0, page.bytes_mut()).ok()?;
    Some(direct)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn reopen_direct(_file: &File) -> Option<File> {
    None
}

/// Advice only; the system may ignore it.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn drop_cache(file: &File, offset: u64, len: u64) {
    let len = std::num::NonZeroU64::new(len);
    let _ = rustix::fs::fadvise(file, offset, len, rustix::fs::Advice::DontNeed);
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn drop_cache(_file: &File, _offset: u64, _len: u64) {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use refrain_kernels::PageBuf;

    #[test]
    fn every_mode_reads_the_same_and_says_where_the_file_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        let bytes: Vec<u8> = (0..5 << 20).map(|i: u32| (i / 7) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let opened = DirectFile::reopen(&File::open(&path).unwrap()).unwrap();
        let others = [ReadMode::DropCache, ReadMode::Cached];
        let others = others.map(|mode| DirectFile { file: File::open(&path).unwrap(), mode });
        for file in others.iter().chain([&opened]) {
            let mut out = PageBuf::zeroed(bytes.len() - DIRECT_ALIGN).unwrap();
            read_full(file, DIRECT_ALIGN as u64, out.bytes_mut()).unwrap();
            assert_eq!(out.bytes(), &bytes[DIRECT_ALIGN..], "{:?}", file.mode());
            let mut longer = PageBuf::zeroed(bytes.len() + DIRECT_ALIGN).unwrap();
            let (offset, error) = read_full(file, 0, longer.bytes_mut()).unwrap_err();
            assert_eq!((offset, error.kind()), (5 << 20, io::ErrorKind::UnexpectedEof), "{:?}", file.mode());
        }
    }

    #[test]
    fn a_second_handle_reads_the_first_ones_file_whatever_its_name_is_now() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        std::fs::write(&path, vec![1; 2 * DIRECT_ALIGN]).unwrap();
        let file = File::open(&path).unwrap();
        let usual_mode = DirectFile::reopen(&file).unwrap().mode();
        std::fs::write(dir.path().join("others"), vec![2; 2 * DIRECT_ALIGN]).unwrap();
        std::fs::rename(dir.path().join("others"), &path).unwrap();
        let reopened = DirectFile::reopen(&file).unwrap();
        assert_eq!(reopened.mode(), usual_mode);
        let mut out = PageBuf::zeroed(2 * DIRECT_ALIGN).unwrap();
        read_full(&reopened, 0, out.bytes_mut()).unwrap();
        assert!(out.bytes().iter().all(|&byte| byte == 1));
        // The first handle's reads need no alignment.
        let mut odd = [0; 5];
        read_exact_at(&file, 3, &mut odd).unwrap();
        assert_eq!(odd, [1; 5]);
        let end = read_exact_at(&file, 2 * DIRECT_ALIGN as u64 - 4, &mut odd).unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
    }

    /// Returns for each read the function's result for (number of the read, offset, length).
    struct Answers<F>(F, AtomicUsize);

    impl<F: Fn(usize, u64, usize) -> io::Result<usize> + Send + Sync> ReadAt for Answers<F> {
        fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
            assert!(offset.is_multiple_of(DIRECT_ALIGN as u64) && out.len().is_multiple_of(DIRECT_ALIGN));
            let n_bytes = (self.0)(self.1.fetch_add(1, Ordering::Relaxed), offset, out.len())?;
            for (i, byte) in out.iter_mut().take(n_bytes).enumerate() {
                *byte = byte_at(offset + i as u64);
            }
            Ok(n_bytes)
        }

        fn mode(&self) -> ReadMode {
            ReadMode::Cached
        }
    }

    fn byte_at(offset: u64) -> u8 {
        (offset / 3) as u8
    }

    fn read(
        f: impl Fn(usize, u64, usize) -> io::Result<usize> + Send + Sync,
    ) -> Result<(), (u64, io::ErrorKind)> {
        let mut out = PageBuf::zeroed(8 * DIRECT_ALIGN).unwrap();
        let start = 3 * DIRECT_ALIGN as u64;
        read_full(&Answers(f, AtomicUsize::new(0)), start, out.bytes_mut())
            .map_err(|(at, e)| (at, e.kind()))?;
        assert!(out.bytes().iter().enumerate().all(|(i, &byte)| byte == byte_at(start + i as u64)));
        Ok(())
    }

    #[test]
    fn short_and_interrupted_reads_go_on() {
        let page = DIRECT_ALIGN;
        read(|_, _, len| Ok(len)).unwrap();
        read(move |_, _, len| Ok(len.min(page))).unwrap();
        // Bytes beyond a page's end are read twice.
        read(move |_, _, len| Ok(len.min(page + 100))).unwrap();
        read(|i, _, len| if i % 3 < 2 { Err(io::ErrorKind::Interrupted.into()) } else { Ok(len) }).unwrap();
        read(move |i, _, len| Ok(if i % 2 == 0 { 100 } else { len.min(2 * page) })).unwrap();
    }

    #[test]
    fn reads_that_cannot_end_are_given_up() {
        let (page, start) = (DIRECT_ALIGN as u64, 3 * DIRECT_ALIGN as u64);
        let eof = io::ErrorKind::UnexpectedEof;
        assert_eq!(read(|_, _, _| Ok(0)), Err((start, eof)));
        assert_eq!(read(|_, _, _| Ok(100)), Err((start, eof)));
        assert_eq!(
            read(move |_, at, _| Ok(if at == start { page as usize } else { 0 })),
            Err((start + page, eof))
        );
        let interrupted = io::ErrorKind::Interrupted;
        assert_eq!(read(move |_, _, _| Err(interrupted.into())), Err((start, interrupted)));
        assert_eq!(read(|_, _, len| Ok(len + 1)), Err((start, io::ErrorKind::InvalidData)));
        let other = io::ErrorKind::Other;
        assert_eq!(read(move |_, _, _| Err(other.into())), Err((start, other)));
    }
}
