//! Files that are read past the page cache: weights that are read again and again must not push out what the app needs, and
//! a read must cost what the flash takes.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use serde::Serialize;

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadMode {
    /// Straight from the disk into the buffer (`O_DIRECT`).
    Direct,
    /// Through the page cache, which is told to drop what was read.
    DropCache,
    /// Through the page cache, which keeps what it likes: the system has neither of the others.
    Cached,
}

/// What offsets, lengths and buffers of direct reads are multiples of.
pub(in crate::model) const DIRECT_ALIGN: usize = 4096;

/// Bytes that one read asks for: enough for full bandwidth, and little enough that a read that fails says where.
const READ_BYTES_MAX: usize = 4 << 20;

/// An open file that is read in whole pages.
#[derive(Debug)]
pub(in crate::model) struct DirectFile {
    file: File,
    mode: ReadMode,
}

impl DirectFile {
    /// Opens a file for direct reads, or the next best that the system and the disk allow.
    pub(in crate::model) fn open(path: &Path) -> io::Result<Self> {
        if let Some(file) = open_direct(path) {
            return Ok(Self { file, mode: ReadMode::Direct });
        }
        let mode = if CAN_DROP_CACHE { ReadMode::DropCache } else { ReadMode::Cached };
        Ok(Self { file: File::open(path)?, mode })
    }

    pub(in crate::model) fn mode(&self) -> ReadMode {
        self.mode
    }

    /// Fills `out` from `offset`; both offset and length are multiples of [`DIRECT_ALIGN`], and `out` begins on one.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] where the file ends before, else the system's; with the offset of the read that
    /// failed. `out` is then unspecified.
    pub(in crate::model) fn read_exact_at(
        &self,
        mut offset: u64,
        out: &mut [u8],
    ) -> Result<(), (u64, io::Error)> {
        debug_assert!(offset.is_multiple_of(DIRECT_ALIGN as u64) && out.len().is_multiple_of(DIRECT_ALIGN));
        for part in out.chunks_mut(READ_BYTES_MAX) {
            read_part(&self.file, offset, part).map_err(|error| (offset, error))?;
            if self.mode == ReadMode::DropCache {
                drop_cache(&self.file, offset, part.len() as u64);
            }
            offset += part.len() as u64;
        }
        Ok(())
    }
}

/// Reads until `out` is full. A read that was interrupted is repeated, one that was short is continued.
#[cfg(unix)]
fn read_part(file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    use std::os::unix::fs::FileExt;
    file.read_exact_at(out, offset)
}

#[cfg(not(unix))]
fn read_part(mut file: &File, offset: u64, out: &mut [u8]) -> io::Result<()> {
    use std::io::{Read, Seek, SeekFrom};
    // One thread reads the files of a target.
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(out)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
const CAN_DROP_CACHE: bool = true;
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CAN_DROP_CACHE: bool = false;

/// `None` where the system or the file system refuses, at once or with the first read.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn open_direct(path: &Path) -> Option<File> {
    use std::os::unix::fs::OpenOptionsExt;

    use crate::kernels::PageBuf;

    let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
    let file = OpenOptions::new().read(true).custom_flags(direct).open(path).ok()?;
    let mut page = PageBuf::zeroed(DIRECT_ALIGN).ok()?;
    read_part(&file, 0, page.bytes_mut()).ok()?;
    Some(file)
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn open_direct(_path: &Path) -> Option<File> {
    None
}

/// Advice: where it is not taken, the cache stays as it is.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn drop_cache(file: &File, offset: u64, len: u64) {
    let len = std::num::NonZeroU64::new(len);
    let _ = rustix::fs::fadvise(file, offset, len, rustix::fs::Advice::DontNeed);
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn drop_cache(_file: &File, _offset: u64, _len: u64) {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::PageBuf;

    #[test]
    fn every_mode_reads_the_same_and_says_where_the_file_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("weights");
        let bytes: Vec<u8> = (0..5 << 20).map(|i: u32| (i / 7) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let opened = DirectFile::open(&path).unwrap();
        let others = [ReadMode::DropCache, ReadMode::Cached];
        let others = others.map(|mode| DirectFile { file: File::open(&path).unwrap(), mode });
        for file in others.iter().chain([&opened]) {
            let mut out = PageBuf::zeroed(bytes.len() - DIRECT_ALIGN).unwrap();
            file.read_exact_at(DIRECT_ALIGN as u64, out.bytes_mut()).unwrap();
            assert_eq!(out.bytes(), &bytes[DIRECT_ALIGN..], "{:?}", file.mode());
            let mut longer = PageBuf::zeroed(bytes.len() + DIRECT_ALIGN).unwrap();
            let (offset, error) = file.read_exact_at(0, longer.bytes_mut()).unwrap_err();
            assert_eq!((offset, error.kind()), (4 << 20, io::ErrorKind::UnexpectedEof), "{:?}", file.mode());
        }
        assert!(DirectFile::open(&dir.path().join("missing")).is_err());
    }
}
