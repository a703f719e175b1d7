//! The bits of an answer do not depend on the calling thread's floating-point environment.

use refrain::drafting::CostProfile;
use refrain::{CancelToken, Engine, EngineOptions, GenerateOptions, Sampling, SessionOptions, SpecialTokens};
use refrain_kernels::testing::on_odd_thread;

/// Loading (which rounds to 8 bits), the tables of rotations, prefill, verification and sampling.
#[test]
fn an_engine_on_an_odd_thread_gives_the_same_bits() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/target.gguf");
    let answer = |n_threads: usize| {
        let cost_profile = Some(CostProfile::free_rows(100.0));
        let options = EngineOptions { n_threads: Some(n_threads), cost_profile, ..EngineOptions::default() };
        let engine = Engine::open(&path, options).unwrap();
        let mut bits = Vec::new();
        let mut session = engine.session(SessionOptions::default()).unwrap();
        let text = "The harbour office moves to Quay 7. The harbour office moves to";
        session.append_text(text, SpecialTokens::AsText).unwrap();
        session
            .score(&CancelToken::new(), Some(&mut |row: &[f32]| bits.extend(row.iter().map(|x| x.to_bits()))))
            .unwrap();
        let sampling = Sampling {
            seed: Some(5),
            temperature: 1.3,
            top_p: 0.9,
            presence_penalty: 0.3,
            ..Sampling::default()
        };
        let mut texts = Vec::new();
        for sampling in [Sampling::default(), sampling] {
            let mut session = engine.session(SessionOptions::default()).unwrap();
            session.append_text(text, SpecialTokens::AsText).unwrap();
            let options =
                GenerateOptions { max_tokens: 24, ignore_eos: true, sampling, ..GenerateOptions::default() };
            session.generate(options).unwrap().run(|_| std::ops::ControlFlow::Continue(())).unwrap();
            texts.push(session.tokens().to_vec());
        }
        (bits, texts)
    };
    let expected = answer(1);
    for n_threads in [1, 2] {
        if let Some(found) = on_odd_thread(|| answer(n_threads)) {
            assert!(found == expected, "{n_threads} threads");
        }
    }
}
