//! A session allocates at most [`SessionOptions::memory_bytes`], as counted by the allocator.

use refrain::drafting::{Calibration, EchoConfig, ReuseConfig};
use refrain::internals::draft::CostProfile;
use refrain::internals::engine::TARGET_READ_STEP_US_MIN;
use refrain::{CancelToken, EngineOptions, GenerateOptions, SessionOptions, TokenId};

use crate::common::{Rng, Tiny, plain, prompt};
use crate::{MEMORY, turn};

/// Long contexts with wide heads, so that rotations and attention scores are a large share of the memory.
const TINY: Tiny = Tiny { hidden_dim: 32, n_layers: 1, head_dim: 128, context_len: 12_000, ..Tiny::DEFAULT };

/// The stated bytes of logits: a wave of 8 MiB, and the same for a piece of a streamed output matrix. A model in
/// memory with a vocabulary of 257 tokens uses a few kilobytes of them.
const STATED_LOGITS: usize = 16 << 20;

/// Random text, and text with a small vocabulary.
fn texts(n: usize) -> [Vec<TokenId>; 2] {
    let mut rng = Rng(9);
    [(0..n).map(|_| TokenId(rng.below(256) as u32)).collect(), prompt(2, n)]
}

#[test]
fn a_session_stays_within_what_its_options_say() {
    let _turn = turn();
    let engine = TINY.engine(2);
    // Echo takes the place of calibration.
    let cost_profile = Some(CostProfile::free_rows(TARGET_READ_STEP_US_MIN));
    let slow = TINY.engine_with(EngineOptions { n_threads: Some(2), cost_profile, ..TINY.options() });
    let config = engine.config();
    let drafting = SessionOptions {
        history: false,
        calibration: Calibration::Full,
        reuse: Some(ReuseConfig::default()),
        ..SessionOptions::default()
    };
    let echo = EchoConfig { lists_max: 5_000, ..EchoConfig::default() };
    let echoing = SessionOptions { echo: Some(echo), ..drafting.clone() };
    let by_step = SessionOptions { calibration: Calibration::Auto, ..drafting.clone() };
    let sessions = [(&engine, plain()), (&engine, drafting), (&engine, echoing), (&slow, by_step)];
    for (i, (engine, options)) in sessions.into_iter().enumerate() {
        let options = SessionOptions { context_len: Some(12_000), ..options };
        let stated = options.memory_bytes(config) as usize - STATED_LOGITS;
        for (j, text) in texts(11_900).into_iter().enumerate() {
            MEMORY.reset_peak_usage();
            let before = MEMORY.current_usage();
            let mut session = engine.session(options.clone()).unwrap();
            // In several turns, so that buffers grow more than once.
            for part in text.chunks(2_500) {
                session.append_tokens(part).unwrap();
                session.prefill(&CancelToken::new(), |_, _| {}).unwrap();
            }
            let options = GenerateOptions { max_tokens: 64, ignore_eos: true, ..GenerateOptions::default() };
            session.generate(options).unwrap().run(|_| std::ops::ControlFlow::Continue(())).unwrap();
            let peak = MEMORY.peak_usage() - before;
            let drafts = session.draft_memory_usage();
            println!("session {i}, text {j}: peak {peak} of {stated}, drafts {drafts}");
            assert!(peak <= stated, "session {i}, text {j}: a peak of {peak} bytes, {stated} stated");
            // The stated bound is not loose. The lists of the last session come from steps, and there are few here.
            let to_come = if i == 3 { 200 * EchoConfig::AUTO.lists_max as usize } else { 0 };
            assert!(
                3 * (peak + to_come) > 2 * stated,
                "session {i}, text {j}: a peak of {peak} bytes, {stated} stated"
            );
        }
    }
}
