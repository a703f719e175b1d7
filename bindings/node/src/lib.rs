//! The engine Refrain for Node: the native half of the package, over which `ts/index.ts` has the classes that apps use.
//!
//! What the calls do is decided in `refrain-ffi`. This crate decides where they run: a call that may wait, compute or read a disk runs on a
//! thread of Node's pool and gives a promise, so that no call blocks the event loop. Every argument and result that is not an object is
//! JSON (`names.rs`), and every error is the JSON of its facts, in the message of a JavaScript error.

#![allow(unsafe_code, reason = "the scaffolding that napi-derive generates")]
#![allow(
    unreachable_pub,
    missing_docs,
    reason = "JavaScript reaches the items, and ts/index.ts has their documentation"
)]
#![cfg_attr(test, allow(dead_code, reason = "napi-derive registers nothing in tests"))]

mod job;
mod names;
mod objects;
mod work;
