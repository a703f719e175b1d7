//! The engine Refrain for C: functions over checked handles, with options and results as JSON.
//!
//! `include/refrain.h` is generated from this crate, and states the rules of every function. What the calls do is decided in
//! `refrain-ffi`; this crate checks pointers, handles and texts, and catches panics.
//!
//! C cannot be kept from passing a pointer to nothing. Everything else that it can pass has a code: a handle is looked up in a table, a
//! buffer is freed only if the library has made it and not freed it yet, a text is checked as UTF-8 and as JSON.

#![allow(unsafe_code, reason = "pointers of C; each use names its rule")]
#![cfg_attr(
    not(feature = "notes"),
    allow(unused_variables, dead_code, reason = "functions of notes are there, and refuse")
)]

mod code;
mod face;
mod handles;
mod texts;

pub use code::Code;
pub use face::*;
pub use handles::Handle;
pub use texts::Buffer;

/// The version of the binary interface: of names, parameters and codes. It rises when a program must be compiled again; new functions and
/// fields do not raise it.
pub const REFRAIN_ABI_VERSION: u32 = 1;
