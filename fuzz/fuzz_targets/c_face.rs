//! Sequences of calls of the C face, with live, stale, foreign and null handles. Every call returns with a code.
#![no_main]

#[path = "../../bindings/c/tests/calls/mod.rs"]
mod calls;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    static ENGINE: OnceLock<refrain_c::Handle> = OnceLock::new();
    let engine = *ENGINE.get_or_init(|| calls::open_engine("../fixtures/target.gguf"));
    calls::run(bytes, engine);
});
