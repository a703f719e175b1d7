//! The program `refrain-train`: what it trains is used, and changes no answer.

use refrain::checkpoint::Checkpoint;
use refrain::drafting::DraftModelOptions;
use refrain::drafting::Predictor;
use refrain::{Engine, EngineOptions, GenerateOptions, Role, SessionOptions};
use refrain_program::testing::{Ran, arg, repository, run};

fn train(args: &[&str]) -> Ran {
    run(env!("CARGO_BIN_EXE_refrain-train"), args, b"")
}

/// The tokens of an answer.
fn answer(engine: &Engine, draft_model: bool) -> Vec<u32> {
    let mut session = engine.session(SessionOptions { draft_model, ..SessionOptions::default() }).unwrap();
    session.append_turn(Role::User, "Who comes along on the trip to Aniarda?").unwrap();
    let options = GenerateOptions { max_tokens: 24, ..GenerateOptions::default() };
    let mut tokens = Vec::new();
    session
        .generate(options)
        .unwrap()
        .run(|token| {
            tokens.push(token.id.0);
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    tokens
}

#[test]
fn a_predictor_and_a_draft_model_are_trained_and_used() {
    let folder = tempfile::tempdir().unwrap();
    let (rows, model) = (repository("fixtures/rows.jsonl"), repository("fixtures/target.gguf"));
    let (predictor, draft) = (folder.path().join("target.predictor"), folder.path().join("draft.gguf"));
    let text = ["--text", arg(&rows), "--positions", "1500", "--threads", "1"];
    let args = ["predictor", arg(&model), "--steps", "60", "--rank", "16", "--out", arg(&predictor)];
    let shown = train(&[&args[..], &text].concat()).done();
    assert!(shown.contains("held out: ") && shown.contains("--pruning"), "{shown}");
    let args = ["draft", arg(&model), "--steps", "4", "--layers", "1", "--out", arg(&draft)];
    let shown = train(&[&args[..], &text].concat()).done();
    assert!(shown.contains("held out: ") && shown.contains("--draft"), "{shown}");
    let engine = Engine::open(&model, EngineOptions::default()).unwrap();
    let plain = answer(&engine, false);
    engine.set_predictor(Predictor::read(&predictor).unwrap()).unwrap();
    engine
        .set_draft_model(&Checkpoint::open(&draft).unwrap(), DraftModelOptions::default(), |_, _| {})
        .unwrap();
    assert_eq!(answer(&engine, true), plain);
    let to_folder = ["draft", arg(&model), "--out", arg(folder.path()), "--text", arg(&rows)];
    assert!(!folder.path().join("config.json").exists());
    train(&to_folder).refused(2);
}
