//! The bytes of a model file: read from a file by position, or held in memory.
//!
//! This module reads files instead of mapping them, so that a truncated file or a failing disk is a typed
//! error and not a signal. Every range is checked against the length of the file before memory is allocated
//! for it. The file is opened once and stays open, because another file may take its name meanwhile.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::path::Path;

use refrain_files::open_regular;
use refrain_stream::{DirectFile, read_exact_at};

/// One readable, immutable range of bytes with a name for messages.
#[derive(Debug)]
pub struct Source {
    name: String,
    len: u64,
    data: Data,
}

#[derive(Debug)]
enum Data {
    File(File),
    Bytes(Cow<'static, [u8]>),
}

impl Source {
    /// Opens a file for positioned reads. Its length is read once.
    ///
    /// # Errors
    /// The error of the operating system; [`io::ErrorKind::InvalidInput`] if `path` is not a regular file.
    pub fn open(path: &Path) -> io::Result<Self> {
        let file = open_regular(path)?;
        let len = file.metadata()?.len();
        Ok(Self { name: path.display().to_string(), len, data: Data::File(file) })
    }

    /// Wraps bytes in memory (an embedded fixture).
    pub fn from_bytes(bytes: Cow<'static, [u8]>, name: &str) -> Self {
        Self { name: name.to_owned(), len: bytes.len() as u64, data: Data::Bytes(bytes) }
    }

    /// A second handle to the same file, for direct reads; `None` if the bytes are in memory.
    ///
    /// # Errors
    /// The system refuses a second handle.
    pub fn reopen_direct(&self) -> Option<io::Result<DirectFile>> {
        self.as_file().map(DirectFile::reopen)
    }

    /// The path in printable form, or the name given to [`Source::from_bytes`]. For messages only: a path
    /// that is not UTF-8 differs from its printable form.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The file; `None` if the bytes are in memory.
    pub fn as_file(&self) -> Option<&File> {
        match &self.data {
            Data::File(file) => Some(file),
            Data::Bytes(_) => None,
        }
    }

    /// Whether the source holds no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Fills `out` from `offset`.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the range is not inside the source, otherwise the error of the
    /// read; `out` is then unspecified.
    pub fn read_exact_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(out.len() as u64).filter(|&end| end <= self.len);
        let Some(end) = end else {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "range is past the end of the file"));
        };
        match &self.data {
            Data::File(file) => read_exact_at(file, offset, out),
            // `end <= len`, and `len` is the length of a slice: both casts are exact.
            Data::Bytes(bytes) => {
                out.copy_from_slice(&bytes[offset as usize..end as usize]);
                Ok(())
            }
        }
    }

    /// Fills `out` from byte `start` of the range of `len` bytes at `offset`.
    ///
    /// # Errors
    /// As [`Source::read_exact_at`]; [`io::ErrorKind::UnexpectedEof`] also if the range ends before `out` is full.
    pub fn read_range_at(&self, offset: u64, len: u64, start: u64, out: &mut [u8]) -> io::Result<()> {
        if start.checked_add(out.len() as u64).is_none_or(|end| end > len) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "range is past the end of the tensor"));
        }
        self.read_exact_at(offset.saturating_add(start), out)
    }

    /// Reads `len` bytes from `offset` into a new buffer; the range is checked before the buffer is allocated.
    ///
    /// # Errors
    /// As [`Source::read_exact_at`], and [`io::ErrorKind::OutOfMemory`] if the buffer cannot be allocated.
    pub fn read_vec(&self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "range is past the end of the file"));
        }
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        let mut out = Vec::new();
        out.try_reserve_exact(len).map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))?;
        out.resize(len, 0);
        self.read_exact_at(offset, &mut out)?;
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn sources() -> (tempfile::NamedTempFile, [Source; 2]) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(b"0123456789").unwrap();
        let on_disk = Source::open(file.path()).unwrap();
        (file, [on_disk, Source::from_bytes(Cow::Borrowed(b"0123456789"), "memory")])
    }

    #[test]
    fn ranges_inside_are_read_and_ranges_outside_refused() {
        let (_file, sources) = sources();
        for source in &sources {
            assert_eq!(source.read_vec(2, 3).unwrap(), b"234", "{}", source.name());
            assert_eq!(source.read_vec(10, 0).unwrap(), b"");
            for (offset, len) in [(0, 11), (10, 1), (u64::MAX, 1), (1, u64::MAX), (5, 1 << 60)] {
                let error = source.read_vec(offset, len).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{offset}+{len} in {}", source.name());
            }
        }
    }

    #[test]
    fn a_part_of_a_range_stays_inside_it() {
        let (_file, sources) = sources();
        for source in &sources {
            let mut out = [0; 2];
            source.read_range_at(3, 4, 2, &mut out).unwrap();
            assert_eq!(&out, b"56", "{}", source.name());
            for (offset, len, start) in [(3, 4, 3), (3, 4, u64::MAX), (9, 4, 0), (u64::MAX, 4, 2)] {
                let error = source.read_range_at(offset, len, start, &mut out).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof, "{offset} {len} {start}");
            }
        }
    }

    #[test]
    fn a_folder_is_not_a_source() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Source::open(dir.path()).is_err());
    }
}
