//! Code of the app that the engine calls, and that calls the engine: draft sources, logits processors, callbacks, energy counters. It
//! works, or is a typed error; it never waits for itself.

use std::ops::ControlFlow;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use refrain::checkpoint::Checkpoint;
use refrain::device::{EnergyMeter, MemoryPressure};
use refrain::drafting::{
    Anchor, Candidates, Computed, ComputingSource, Cursor, DraftPolicy, DraftRows, DraftSource, StepOutcome,
};
use refrain::internals::error::ForwardError;
use refrain::internals::kernels::BlockType;
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{
    CancelToken, Drafting, Engine, EngineOptions, GenerateError, GenerateOptions, LogitsProcessor,
    ProcessorError, Quantize, SessionOptions, TokenId,
};

use crate::common::{Tiny, options, plain, prompt, run};

const TINY: Tiny = Tiny { n_layers: 4, ty: BlockType::Q8_0, ..Tiny::DEFAULT };

type Answer = Result<Vec<TokenId>, GenerateError>;

/// Calls the engine, and notes what came of it.
#[derive(Clone)]
struct App {
    engine: Engine,
    /// The hook, and the output of another session within it.
    answers: Arc<Mutex<Vec<(&'static str, Answer)>>>,
}

impl App {
    fn call(&self, hook: &'static str) {
        let engine = &self.engine;
        engine.device().set_energy_meter(engine.device().energy_meter());
        engine.learned().set(engine.learned().get());
        engine.history().append("of the app", &prompt(2, 20));
        engine.history().forget("of the app");
        engine.device().set_memory_pressure(MemoryPressure::Warning);
        engine.device().set_memory_pressure(MemoryPressure::Normal);
        let answer = (|| {
            let mut session = engine.session(plain())?;
            session.append_tokens(&prompt(7, 12))?;
            let mut tokens = Vec::new();
            session.generate(options(2))?.run(|token| {
                tokens.push(token.id);
                ControlFlow::Continue(())
            })?;
            Ok(tokens)
        })();
        self.answers.lock().unwrap().push((hook, answer));
    }
}

impl DraftSource for App {
    refrain::stateless_source!("of the app", TextMatch);

    fn computing(&mut self) -> Option<&mut dyn ComputingSource> {
        Some(self)
    }

    fn prime(&mut self, _: &[TokenId]) {
        self.call("prime");
    }

    fn anchors(&mut self, _: &[TokenId], _: &mut Vec<Anchor>) {
        self.call("anchors");
    }

    fn expand(&mut self, _: &[Cursor], _: &mut Candidates) {}

    fn observe(&mut self, _: &[TokenId], _: &StepOutcome<'_>) {
        self.call("observe");
    }
}

impl ComputingSource for App {
    fn watch(&mut self, _: &Arc<AtomicBool>) {}

    fn computed(&self) -> Computed {
        Computed::default()
    }

    fn compute_ahead(&mut self, _: f32) -> bool {
        self.call("compute_ahead");
        false
    }
}

impl LogitsProcessor for App {
    fn process(&mut self, _: &[TokenId], _: &mut [f32]) -> Result<(), ProcessorError> {
        self.call("process");
        Ok(())
    }
}

/// A counter that calls the engine when it is read, and when it is replaced.
struct Meter(Engine);

impl EnergyMeter for Meter {
    fn joules(&self) -> Option<f64> {
        drop(self.0.device().energy_meter());
        Some(1.0)
    }
}

impl Drop for Meter {
    fn drop(&mut self) {
        drop(self.0.device().energy_meter());
        drop(self.0.learned().get());
    }
}

/// Fails if `work` does not end.
fn within_a_minute(work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match is_done.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("it waits for itself"),
        _ => worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
    }
}

fn streamed() -> (tempfile::TempDir, Engine) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tiny.refrain");
    let checkpoint = Checkpoint::from_gguf_bytes(TINY.gguf().into(), "tiny").unwrap();
    pack(&checkpoint, &path, LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() }).unwrap();
    // Reading a layer takes some milliseconds, so that every pass waits.
    let mut slow = StreamOptions::new(Pinned::Layers(0));
    slow.bandwidth_max = Some(20_000_000);
    let options = EngineOptions { n_threads: Some(2), streaming: Some(slow), ..TINY.options() };
    (dir, Engine::open(&path, options).unwrap())
}

#[test]
fn hooks_of_the_app_call_the_engine() {
    within_a_minute(|| {
        let (_dir, of_disk) = streamed();
        for (engine, is_streamed) in [(TINY.engine(2), false), (of_disk, true)] {
            let expected = run(&engine, plain(), Vec::new(), &prompt(3, 40), options(6));
            let inner = run(&engine, plain(), Vec::new(), &prompt(7, 12), options(2)).tokens;
            let app = App { engine: engine.clone(), answers: Arc::default() };
            engine.device().set_energy_meter(Some(Arc::new(Meter(engine.clone()))));
            let policy = DraftPolicy { rows: DraftRows::Fixed(3), ..DraftPolicy::default() };
            let options_of = SessionOptions {
                drafting: Drafting::OwnSources,
                policy,
                history: false,
                ..SessionOptions::default()
            };
            let mut session = engine.session(options_of).unwrap();
            session.add_source(Box::new(app.clone())).unwrap();
            session.append_tokens(&prompt(3, 40)).unwrap();
            session.prefill(&CancelToken::new(), |_, _| app.call("progress")).unwrap();
            let mut tokens = Vec::new();
            let request = GenerateOptions { processors: vec![Box::new(app.clone())], ..options(6) };
            let summary = session.generate(request).unwrap().run(|token| {
                tokens.push(token.id);
                app.call("token");
                ControlFlow::Continue(())
            });
            summary.unwrap();
            assert_eq!(tokens, expected.tokens);
            engine.device().set_energy_meter(None);
            let mut hooks = Vec::new();
            for (hook, answer) in app.answers.lock().unwrap().drain(..) {
                match (hook, answer) {
                    // Within the target's own pass.
                    ("compute_ahead", Err(error))
                        if matches!(error.detail(), Some(ForwardError::Reentered)) => {}
                    (_, Ok(tokens)) if hook != "compute_ahead" => assert_eq!(tokens, inner, "{hook}"),
                    (_, answer) => panic!("{hook}: {answer:?}"),
                }
                hooks.push(hook);
            }
            for hook in ["prime", "anchors", "observe", "process", "progress", "token"] {
                assert!(hooks.contains(&hook), "{hook} in {hooks:?}");
            }
            assert_eq!(hooks.contains(&"compute_ahead"), is_streamed, "{hooks:?}");
        }
    });
}
