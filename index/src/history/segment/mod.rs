//! A segment: responses frozen with their suffix array, searched from the file.
//!
//! # In the file
//!
//! Tokens are stored as *symbols*: the place of a token among the segment's distinct tokens, counted from 1. The text is
//! every response followed by the symbol 0, so a suffix that is compared never runs past its response. All numbers are
//! little-endian; sections begin on pages of 4096 bytes, so no number straddles a page.
//!
//! ```text
//! header  one page: magic 8 · version u32 · symbol bytes u32 (2 or 4) · owner u64 · number u64 · records u32 · symbols of the
//!         text u32 · distinct tokens u32 · pairs u32 · sum of the tables u64 · replaced numbers u32 · 0 u32 · those u64 each ·
//!         … XXH3 of the page before it u64
//! text    2 or 4 bytes per symbol
//! array   start of each suffix in the text u32, in order of the suffixes; those that begin with 0 are left out
//! pairs   for each distinct pair of symbols, by the first and then by the second one: second u32 · its first place in
//!         the array u32
//! tables  records (id u64 · start u32 · tokens u32) · distinct tokens u32, ascending · first place in the array of each
//!         symbol u32, and the end · first pair of each symbol u32, and the end · XXH3 of each page of text, array, pairs u64
//! ```
//!
//! The tables are read when the segment is opened, and nothing else: 8 bytes for each 4096 of the rest, 12 for each distinct
//! token, 16 for each record.
//!
//! # Cost of a search
//!
//! The first token is a table, the second a binary search among neighbours in `pairs` (a page or two); each further one
//! narrows an interval of the array, which is short by then: the logarithm of its length in reads of array and text.

mod layout;
mod read;
mod write;

pub(super) use read::{Fault, Segment, Symbol};
pub(super) use write::write_segment;
