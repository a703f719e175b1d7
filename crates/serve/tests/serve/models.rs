//! Several models under a memory budget: loaded on demand, unloaded when they are idle, and never beyond the budget.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use refrain::{CancelToken, Engine, EngineOptions};
use refrain_assistant::{Gate, Priority};
use refrain_serve::{Limits, Loaded, ModelSpec, Models, ModelsError, ServeOptions};
use serde_json::{Value, json};

use crate::support::{Running, changed, engine};

/// How often a model was loaded, and how often unloaded.
#[derive(Debug, Default)]
struct Counts {
    loaded: AtomicUsize,
    unloaded: AtomicUsize,
}

impl Counts {
    fn get(&self) -> (usize, usize) {
        (self.loaded.load(Ordering::SeqCst), self.unloaded.load(Ordering::SeqCst))
    }
}

struct Guard(Arc<Counts>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.unloaded.fetch_add(1, Ordering::SeqCst);
    }
}

fn bytes() -> usize {
    engine().memory_usage() as usize
}

/// Models that are loaded anew each time, with a measure of their bytes.
fn fleet<const N: usize>(names: [&str; N]) -> (Vec<ModelSpec>, [Arc<Counts>; N]) {
    let counts: [Arc<Counts>; N] = std::array::from_fn(|_| Arc::default());
    let all = counts.clone();
    let specs = names.into_iter().zip(&counts).map(|(name, counts)| {
        let (counts, all) = (Arc::clone(counts), all.clone());
        let load = move || {
            // While it is loaded, the others and this one are within two models' bytes.
            let n_loaded: usize =
                all.iter().map(|counts| counts.get()).map(|(loaded, unloaded)| loaded - unloaded).sum();
            assert!(n_loaded < 2, "{n_loaded} models are loaded beside the new one");
            let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");
            let engine =
                Engine::open(path, EngineOptions { n_threads: Some(1), ..EngineOptions::default() })?;
            counts.loaded.fetch_add(1, Ordering::SeqCst);
            Ok(Loaded::new(engine).with_kept(Guard(Arc::clone(&counts))))
        };
        ModelSpec::new(name, load).with_memory(bytes)
    });
    (specs.collect(), counts)
}

fn start(specs: Vec<ModelSpec>, budget: usize) -> Running {
    // Kept prompts count too, and would blur the numbers.
    let mut limits = Limits::default();
    limits.warm_bytes = 0;
    Running::with_models(ServeOptions::default(), limits, Models::new(specs).unwrap().with_budget(budget))
}

fn ask(server: &Running, model: &str) -> Value {
    server.answer("/v1/completions", &json!({ "model": model, "prompt": "Hello", "max_tokens": 4 }))
}

#[test]
fn the_longest_unused_model_is_unloaded_the_first_one_too() {
    let (specs, [a, b, c]) = fleet(["a", "b", "c"]);
    let server = start(specs, 2 * bytes());
    let text = |answer: Value| answer["choices"][0]["text"].as_str().unwrap().to_owned();
    let first = text(ask(&server, "a"));
    assert_eq!(text(ask(&server, "b")), first, "the same model under another name");
    assert_eq!((a.get(), b.get(), c.get()), ((1, 0), (1, 0), (0, 0)));
    ask(&server, "c");
    assert_eq!((a.get(), b.get(), c.get()), ((1, 1), (1, 0), (1, 0)), "the first one");
    ask(&server, "b");
    assert_eq!(text(ask(&server, "a")), first);
    assert_eq!((a.get(), b.get(), c.get()), ((2, 1), (1, 0), (1, 1)), "`b` was used later than `c`");
    // What a loaded model keeps is dropped with the server.
    drop(server);
    assert_eq!((a.get(), b.get(), c.get()), ((2, 2), (1, 1), (1, 1)));
}

#[test]
fn a_model_that_answers_is_not_unloaded() {
    let (specs, [a, b]) = fleet(["a", "b"]);
    let gate = Arc::<Gate>::default();
    let models = Models::new(specs).unwrap().with_gate(Arc::clone(&gate)).with_budget(bytes() + bytes() / 2);
    let server = Running::with_models(
        ServeOptions::default(),
        changed(Limits::default(), |it| it.warm_bytes = 0),
        models,
    );
    // While the test has the turn, the request computes nothing and does not end.
    let turn = gate.enter(Priority::Interactive, &CancelToken::new()).expect("nobody cancels");
    let body = json!({ "model": "a", "prompt": "Hello", "max_tokens": 4, "stream": true });
    let mut running = server.begin("/v1/completions", &body);
    server.wait(|server| server.metric("refrain_requests_running") >= 1.0);
    let refused =
        server.post("/v1/completions", &json!({ "model": "b", "prompt": "Hello", "max_tokens": 1 }));
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert_eq!(refused.json()["error"]["code"], "models_memory");
    assert_eq!(refused.headers.get("retry-after").map(String::as_str), Some("5"));
    assert_eq!((a.get(), b.get()), ((1, 0), (0, 0)));
    drop(turn);
    let mut rest = String::new();
    running.read_to_string(&mut rest).expect("it ends");
    assert!(rest.contains("[DONE]"), "{rest}");
    server.wait(|server| {
        server.post("/v1/completions", &json!({ "model": "b", "prompt": "Hello", "max_tokens": 1 })).status
            == 200
    });
    assert_eq!((a.get(), b.get()), ((1, 1), (1, 0)));
}

#[test]
fn a_model_beyond_the_budget_is_refused_before_it_is_loaded() {
    let (specs, [a]) = fleet(["a"]);
    let server = start(specs, bytes() - 1);
    let refused = server.post("/v1/completions", &json!({ "prompt": "Hello" }));
    assert_eq!(refused.status, 503, "{}", refused.body);
    assert_eq!(refused.headers.get("x-should-retry").map(String::as_str), Some("false"));
    assert_eq!(a.get(), (0, 0));

    let (specs, [a]) = fleet(["a"]);
    let models = Models::new(specs).unwrap().with_budget(bytes() - 1);
    let refused = models.load("a").unwrap_err();
    assert!(matches!(&refused, ModelsError::Load { reason, .. } if reason.contains("budget")), "{refused}");
    assert_eq!(models.load("x"), Err(ModelsError::Unknown { id: "x".to_owned() }));
    assert_eq!(a.get(), (0, 0));
}

#[test]
fn requests_for_several_models_at_once_all_end() {
    let (specs, counts) = fleet(["a", "b", "c"]);
    let server = start(specs, 2 * bytes());
    let expected = ask(&server, "a")["choices"].clone();
    std::thread::scope(|scope| {
        for start in 0..3 {
            let (server, expected) = (&server, &expected);
            scope.spawn(move || {
                for n in 0..6 {
                    let model = ["a", "b", "c"][(start + n) % 3];
                    let body = json!({ "model": model, "prompt": "Hello", "max_tokens": 4 });
                    let reply = loop {
                        let reply = server.post("/v1/completions", &body);
                        if reply.status != 503 {
                            break reply;
                        }
                        // The other two answer.
                        std::thread::sleep(std::time::Duration::from_millis(5));
                    };
                    assert_eq!(reply.status, 200, "{}", reply.body);
                    assert_eq!(reply.json()["choices"], *expected);
                }
            });
        }
    });
    drop(server);
    for counts in counts {
        let (loaded, unloaded) = counts.get();
        assert!(loaded == unloaded && loaded > 0, "{loaded} {unloaded}");
    }
}

#[test]
fn a_model_that_is_loaded_before_its_server_keeps_prompts() {
    let (specs, _) = fleet(["one"]);
    let models = Models::new(specs).unwrap();
    models.load("one").unwrap();
    let server = Running::with_models(ServeOptions::default(), Limits::default(), models);
    let prompt = "The tap in the kitchen drips, and nobody has repaired it since the summer. ".repeat(4);
    let request = json!({ "model": "one", "prompt": prompt, "max_tokens": 4 });
    let n_cached = || {
        server.answer("/v1/completions", &request)["usage"]["prompt_tokens_details"]["cached_tokens"].clone()
    };
    assert_eq!(n_cached(), 0);
    assert!(n_cached().as_u64().unwrap() > 16);
}
