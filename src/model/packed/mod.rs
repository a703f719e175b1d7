//! Packed model files (`.refrain`): weights in the layout of the kernels, so that a model is loaded by
//! mapping its file.
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
//! All numbers are little endian. The tokenizer and every other *section* begin on a page (4096 bytes),
//! without gaps between them. The tensors of a section begin on lines of 64 bytes, in the order of the
//! header's table. So one read, also with direct I/O, returns a whole layer. The matrices of a layer's experts come last, so
//! that one read returns the layer without them. A matrix is stored as [`PackedMatrix::panel_bytes`], a vector as f32.
//!
//! **Checks.** Opening verifies the checksum of the prelude, which covers every byte before the data. It then
//! compares each offset, length, shape and type of the header with those that follow from the
//! hyper-parameters. It does not check the weights themselves. Each section has a checksum of all bytes up to
//! the next section. The checksum of the tokenizer is verified whenever it is read. Those of the weights are
//! verified only by [`PackedFile::verify`] (`refrain model inspect --verify`), since reading a gigabyte takes
//! longer than mapping it. Checksums (XXH3) detect damage, not forgery.
//!
//! **Pieces.** A model of static graphs ([`graphs`](crate::model::graphs)) consists of several files of this
//! format: one with everything except the layers, and two for each block of layers. The header of a piece
//! names the model and the piece; its sections are those of the piece.
//!
//! **Versions.** A file of another version or panel layout is refused with its number. The model must be
//! packed again.
//!
//! **Writing.** The file is written under another name in the same folder, synced, and renamed. So an
//! existing file is always complete, and a program that has mapped the old file keeps it.
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
pub use file::{PackedFile, PackedSection};
pub use identity::ModelIdentity;
pub use piece::Piece;
pub use plan::{PackedTensor, Part};
pub use write::{PackSummary, WritePackedError, pack};

pub(crate) use identity::{identity_of_weights, layout_of_weights};
pub(in crate::model) use pieces::{PieceFile, write_pieces};

/// The version of the format that is written, and the only one that is read.
pub const FORMAT_VERSION: u32 = 2;
/// The first bytes of a packed file. The last one is the end-of-file character of old systems, so that the
/// file is not printed by accident.
pub const MAGIC: [u8; 8] = *b"REFRAIN\x1a";
/// The alignment of sections: a page, which is also the alignment of direct reads.
pub const PAGE_BYTES: u64 = 4096;
/// The longest accepted JSON of a header. The deepest accepted model, with the longest table of rotary
/// factors, needs 3 MB.
pub const HEADER_BYTES_MAX: u64 = 8 << 20;

/// A line of a panel.
const LINE_BYTES: u64 = 64;
