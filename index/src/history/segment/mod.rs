//! A segment: responses frozen with the order of their prefixes, searched from the file.
//!
//! # In the file
//!
//! Tokens are stored as *symbols*: the rank of a token among the segment's distinct tokens, counted from 1. The text
//! is every response followed by the symbol 0. A *prefix* is a response up to one of its tokens. All prefixes of all
//! responses are sorted by their last symbol, then by the symbol before it, and so on backwards. Prefixes that end
//! with the same tokens are then neighbours, an interval of *places*. The empty prefixes, one per response, have the
//! first places and are not stored. All numbers are little-endian. Sections begin on pages of 4096 bytes, so no
//! number crosses a page boundary.
//!
//! ```text
//! header   one page: magic 8 · version u32 · symbol bytes u32 (2 or 4) · owner u64 · number u64 · records u32 · symbols of the
//!          text u32 · distinct tokens u32 · replaced numbers u32 · sum of the tables u64 · those numbers u64 each · … XXH3 of
//!          the page before it u64
//! text     2 or 4 bytes per symbol
//! shorter  of each prefix: the place of the one without its last symbol u32
//! nexts    the symbol that follows each prefix, 2 or 4 bytes
//! ends     where each prefix ends in the text u32
//! tables   records (id u64 · start u32 · tokens u32) · distinct tokens u32, ascending · the first place of the prefixes that
//!          end with each symbol u32, and the end · XXH3 of each page before the tables u64
//! ```
//!
//! Opening a segment reads only the tables: 8 bytes per 4096 bytes of the other sections, 8 per distinct
//! token, 16 per record.
//!
//! # Cost of a search
//!
//! Among the prefixes with one last symbol, `shorter` ascends: the part before that symbol determines their order. So
//! two binary searches find the prefixes that end with a match and one more symbol: they search for the match's
//! interval among the prefixes that end with that symbol, in adjacent numbers (the backward search of compressed
//! suffix arrays, Sadakane 2003, in the reversed text). Intervals of shorter matches contain those of longer ones and
//! end near them. The successors of a match are adjacent in `nexts`.

/// What a segment is, for its encryption.
const SEALED: &str = "history segment";

mod layout;
mod name;
mod read;
mod write;

pub use name::SegmentName;
pub(super) use read::{Fault, Segment, Symbol};
pub(super) use write::write_segment;
