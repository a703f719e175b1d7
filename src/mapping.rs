//! A file mapped into memory, read only: the one place with `unsafe` besides the kernels and io_uring.
//!
//! Only packed model files are mapped. They are the app's own, and immutable by contract: they are written under another
//! name and renamed, so a new version is a new file and the old one lives as long as it is mapped. What the contract
//! guards against: a file that is shortened under the mapping ends the process (SIGBUS), and one that is overwritten gives
//! other numbers. No lock is taken; an advisory lock binds only programs that ask for it, and none of ours writes in place.
//!
//! No contract guards against a disk that fails: a page that cannot be read when it is first used ends the process the same
//! way. Who must outlive that reads the file into memory, where it is an error like any other.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// A whole file, read only.
#[derive(Debug)]
pub(crate) struct Mapping {
    map: Mmap,
}

impl Mapping {
    /// Maps the whole of `file`, which must stay as it is while the mapping lives (see the module).
    pub(crate) fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the bytes are read as plain numbers, whatever they are, and nothing that was checked before is taken from
        // them. That nobody writes to the file is the contract of packed files; who cannot keep it reads them into memory.
        let map = unsafe { Mmap::map(file)? };
        // The first pass reads everything once, in order of the layers. Linux reads ahead its usual window and returns.
        #[cfg(unix)]
        let _ = map.advise(memmap2::Advice::WillNeed);
        Ok(Self { map })
    }

    /// The file's bytes; they begin on a page.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }
}
