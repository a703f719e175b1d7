//! Arithmetic over slices: weight matrices, attention and row-wise functions, and the threads that compute
//! them.
//!
//! The crate guarantees that **an output value depends on its own inputs only**, not on the number of rows
//! in the call, the tile of a row, the thread, or the instruction set. Speculative decoding is therefore
//! bitwise equal to plain decoding. Three rules give the guarantee:
//!
//! - *Lane = output row.* Matrices are packed in panels of 16 rows ([`PackedMatrix`]). A vector lane owns one
//!   output and sums it in column order, so there is no horizontal sum whose shape could depend on the vector
//!   width. Keys are stored in such panels too, with a lane for each slot.
//! - *Sixteen lanes everywhere else.* If a sum runs along a vector (norms, softmax), element `i` belongs to
//!   lane `i % 16`, and the lanes are added in one fixed tree, on every instruction set.
//! - *The same operations.* A fused multiply-add is fused everywhere, and `exp` is implemented here. Every
//!   algorithm is written once, over the small vector trait of `simd.rs`; `scalar.rs` is its portable
//!   implementation and the oracle of the others.
//!
//! The guarantee holds in the default floating-point environment of IEEE 754, which [`FloatEnv`] sets. The
//! pool sets it for its sections; code that computes outside a section sets it itself.
//!
//! The guarantee covers numbers. If a result is NaN, it is NaN on every instruction set, but payloads may
//! differ.
//!
//! `unsafe` is allowed only here and in the reads through io_uring. The crate handles slices and knows nothing of
//! models or files.
//!
//! It is a part of Refrain, outside semantic versioning: its names change with any release.
#![allow(unsafe_code)]
// Indices are lanes, rows of a tile and columns, each used with several arrays.
#![allow(clippy::needless_range_loop)]

mod activations;
mod aligned;
mod attention;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod block;
mod choice;
mod convolution;
mod cores;
mod float_env;
mod fused;
mod gather;
mod int8;
mod isa;
mod kv;
mod layout;
mod mapping;
mod math;
mod matmul;
#[cfg(target_arch = "aarch64")]
mod neon;
mod packed;
mod packing;
mod page_buf;
mod pages;
mod panels;
mod pool;
mod quantize;
mod recurrent;
mod ring;
mod room;
mod rows;
mod scalar;
mod simd;
#[cfg(all(target_family = "wasm", target_feature = "simd128"))]
mod simd128;
mod speeds;
mod system;
#[cfg(test)]
mod tests;
mod unpacked;

pub use activations::resize_exact;
pub use activations::{ActivationForm, Activations};
pub use aligned::AllocError;
pub use attention::{AttentionRule, AttentionScratch, AttentionShape, Visible, attention};
pub use block::BlockType;
pub use choice::{BLOCK_LEN, Likeliest, argmax, block_max, block_sums, exp_scaled, gather_above, likeliest};
pub use convolution::{CONV_LEN_MAX, ConvRows, NO_PARENT, convolve};
pub use cores::performance_cores;
pub use float_env::FloatEnv;
pub use isa::{IsaKind, Kernels, KernelsNotice};
pub use kv::{KvLayer, KvType};
pub use layout::PANEL_LAYOUT_VERSION;
pub use layout::PANEL_ROWS;
pub use mapping::Mapping;
pub use math::exp;
pub use matmul::{GroupedMatMul, MatMul, RowGroup, matmul, matmul_groups};
pub use packed::{PackError, PackedMatrix, PackedRows};
pub use packing::{Packing, PackingPart};
pub use page_buf::{PageBlock, PageBuf};
pub use pages::HUGE_PAGE_BYTES;
pub use pool::{Pool, SPIN_TIME_DEFAULT};
pub use quantize::{convert, dequantize, quantize};
pub use recurrent::{
    KeySharing, RowPart, StateBuf, StateInputs, StatePlace, StateRule, StateScratch, StateShape, StateStep,
    StateWalk, advance_states, fold_states,
};
pub use ring::RowRing;
pub use room::{MEMORY_MARGIN, has_room};
pub use rows::{
    add, add_scaled, dot, gelu, gelu_mul, l2_norm_in_place, layer_norm_in_place, log_sum_exp, mul, rms_norm,
    rms_norm_gated, rms_norm_in_place, rope, scale, sigmoid_mul, silu, silu_mul, silu_mul_by, softcap,
    softmax, swiglu_clamped_mul,
};
pub use system::{Instant, SystemTime, UNIX_EPOCH, random};

#[cfg(any(test, feature = "testing"))]
pub use float_env::testing;
