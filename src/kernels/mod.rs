//! Arithmetic over slices: the only place, besides file mapping, with `unsafe`.
#![allow(unsafe_code)]

mod block_type;

pub use block_type::BlockType;
