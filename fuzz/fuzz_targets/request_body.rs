//! The body of a request: read, checked, tokenized, its grammar compiled, up to the first pass of the model. The first byte chooses the
//! endpoint. Every body is accepted or refused with a status of the client's.
#![no_main]

#[path = "../../serve/tests/support/bigram.rs"]
#[allow(dead_code)]
mod bigram;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;
use refrain::{Checkpoint, Engine, EngineOptions};
use refrain_serve::internals::BodyChecker;

fn checker() -> &'static BodyChecker {
    static CHECKER: OnceLock<BodyChecker> = OnceLock::new();
    CHECKER.get_or_init(|| {
        let checkpoint = Checkpoint::from_gguf_bytes(bigram::gguf(true).into(), "bigram").unwrap();
        let options = EngineOptions { n_threads: Some(1), ..EngineOptions::default() };
        BodyChecker::new(&Engine::load(&checkpoint, options, None).unwrap())
    })
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&endpoint, body)) = bytes.split_first() else { return };
    let endpoint = usize::from(endpoint) % BodyChecker::ENDPOINTS.len();
    if let Some(status) = checker().refusal(endpoint, body) {
        assert_eq!(status / 100, 4, "status {status}");
    }
});
