//! Packed model files (`.refrain`): weights in the very layout that the kernels read, so that loading is mapping.
//!
//! ```text
//! 0   magic "REFRAIN\x1a" · version u32 · panel layout u32 · header length u64 · file length u64 · checksum u64
//! 40  header: JSON · zeros up to the next page: here the data begins
//!     tokenizer: the source's own tokenizer files, one after another
//!     embedding: its matrix
//!     layer 0, layer 1, …: matrices, norms and biases of one layer
//!     output: the norm before the head, and the head where it is not the embedding
//! ```
//!
//! All numbers are little endian. The tokenizer and each other *section* begin on a page (4096 bytes) and follow each
//! other without a gap; the tensors of a section begin on lines of 64 bytes, in the order of the header's table. So one
//! read, direct I/O included, gives a whole layer. A matrix is [`PackedMatrix::panel_bytes`], a vector is f32.
//!
//! **What is checked when.** The checksum of the prelude covers every byte before the data, and opening verifies it; it
//! then compares each offset, length, shape and type of the header with what the hyper-parameters ask for, so that nothing
//! is left to trust but the numbers themselves. Each section has a checksum of its own that covers every byte up to the
//! next section: the tokenizer's is verified whenever it is read, the others by [`PackedFile::verify`] only (`refrain inspect --verify`),
//! since reading a gigabyte takes longer than mapping it. Checksums (XXH3) find damage, not forgery.
//!
//! **Pieces.** A model that is kept as static graphs ([`graphs`](crate::model::graphs)) lies in several files of this format:
//! one with everything but the layers, and two for each block of layers. Their headers say which piece of which model they
//! are, and their sections are those of the piece.
//!
//! **Versions.** A file of another version or panel layout is refused by its number: pack the model again.
//!
//! **Writing** goes to another name in the same folder, is synced, and then renamed: a file that is there is whole, and a
//! program that has the old one mapped keeps it.
//!
//! [`PackedMatrix::panel_bytes`]: crate::kernels::PackedMatrix::panel_bytes

mod error;
mod file;
mod header;
mod identity;
mod piece;
mod pieces;
mod plan;
mod sum;
mod tokenizer;
mod write;

pub use error::PackedFileError;
pub use file::{PackedFile, PackedSection, PackedTensor};
pub use identity::ModelIdentity;
pub use piece::Piece;
pub use plan::Part;
pub use write::{PackSummary, WritePackedError, pack};

pub(crate) use identity::identity_of_weights;
pub(in crate::model) use pieces::{PieceFile, write_pieces};

/// The version of the format that is written, and the only one that is read.
pub const FORMAT_VERSION: u32 = 1;
/// What a packed file begins with. The last byte ends a text on old systems, so the file is not printed by accident.
pub const MAGIC: [u8; 8] = *b"REFRAIN\x1a";
/// The alignment of sections: a page, and what direct reads ask for.
pub const PAGE_BYTES: u64 = 4096;
/// Longest JSON of a header accepted. The deepest model accepted, with the longest table of rotary factors, needs 3 MB.
pub const HEADER_BYTES_MAX: u64 = 8 << 20;

/// A line of a panel.
const LINE_BYTES: u64 = 64;
