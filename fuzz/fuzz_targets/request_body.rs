//! The body of a request: read, checked, tokenized, its grammar compiled, up to the first pass of the model. The first byte chooses the
//! endpoint and a model, which calls in marked text or in channels, or fills gaps. Every body is accepted or refused with a status of the client's.
#![no_main]

#[path = "../../crates/serve/tests/support/bigram.rs"]
#[allow(dead_code)]
mod bigram;

use std::sync::OnceLock;

use bigram::Calls;
use libfuzzer_sys::fuzz_target;
use refrain::checkpoint::Checkpoint;
use refrain::{Engine, EngineOptions};
use refrain_serve::internals::BodyChecker;

const FORMS: [Calls; 3] = [Calls::Control, Calls::Channels, Calls::Infill];

fn checkers() -> &'static [BodyChecker; 3] {
    static CHECKERS: OnceLock<[BodyChecker; 3]> = OnceLock::new();
    CHECKERS.get_or_init(|| {
        FORMS.map(|calls| {
            let checkpoint = Checkpoint::from_gguf_bytes(bigram::gguf(calls).into(), "bigram").unwrap();
            let options = EngineOptions { n_threads: Some(1), ..EngineOptions::default() };
            BodyChecker::new(&Engine::load(&checkpoint, options, |_, _| {}).unwrap())
        })
    })
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, body)) = bytes.split_first() else { return };
    let choice = usize::from(choice);
    let endpoint = choice % BodyChecker::ENDPOINTS.len();
    let checker = &checkers()[choice / BodyChecker::ENDPOINTS.len() % FORMS.len()];
    if let Some(status) = checker.refusal(endpoint, body) {
        assert_eq!(status / 100, 4, "status {status}");
    }
});
