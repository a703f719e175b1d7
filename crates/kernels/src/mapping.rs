//! A file mapped into memory, read only.
//!
//! **Undefined behaviour.** The mapping is handed out as `&[u8]`, and Rust requires that such bytes never
//! change. If any process writes to the file or shortens it while it is mapped, the behaviour is undefined.
//! In practice an overwritten file gives other weights, and access to a page beyond the end of a shortened
//! file ends the process with SIGBUS. No check can rule this out: an advisory lock affects only programs that
//! request it, and a private mapping still shows later writes to pages that it has not copied.
//!
//! So only packed model files are mapped. By contract they are never changed: Refrain writes a new file under
//! another name and renames it, and the old file stays unchanged while it is mapped. An app that cannot keep
//! other programs from changing its model files in place must read them into memory
//! (`PackedAccess::Read` of `refrain`).
//!
//! **Disk errors.** If the disk cannot read a page when it is first used, the process ends with SIGBUS too. A
//! process that must survive disk errors should read the file into memory; disk errors are then typed errors.

use std::fs::File;
use std::io;

use memmap2::Mmap;

/// A whole file, read only.
#[derive(Debug)]
pub struct Mapping {
    map: Mmap,
}

impl Mapping {
    /// Whether the system maps files; WebAssembly does not.
    pub const EXISTS: bool = !cfg!(target_family = "wasm");

    /// Maps the whole of `file`.
    ///
    /// The function is sound only under the contract of packed files, which the user of `PackedAccess::Map`
    /// accepts: no program writes to the file or shortens it while the mapping lives. Otherwise the behaviour
    /// is undefined (see the module).
    ///
    /// # Errors
    /// The system refuses the mapping.
    pub fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the file does not change while it is mapped, by the contract of packed files; Rust cannot
        // check it. The code that reads the bytes accepts all values, and uses none as a length or offset.
        let map = unsafe { Mmap::map(file)? };
        // The first pass reads the whole file in order. With this advice Linux starts to read ahead and
        // returns at once.
        #[cfg(unix)]
        let _ = map.advise(memmap2::Advice::WillNeed);
        Ok(Self { map })
    }

    /// The file's bytes, page-aligned.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }
}
