//! The cost of calibration per context token, beside its prefill.
//!
//! ```sh
//! REFRAIN_BENCH_MODEL=model.gguf cargo bench --bench calibration       # without the variable: the fixture target
//! ```
//!
//! The weights may be random, because the time does not depend on them. The text has [`CONTEXT_LEN`] tokens, drawn by
//! Zipf's law. A sample prefills it anew and times the projections. The bench also prints the ratio of a prefill with
//! calibration (the last layer of all rows, then the projections) to one without; the two take turns.

#[path = "support/zipf.rs"]
mod zipf;

use std::path::{Path, PathBuf};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use refrain::drafting::{Calibration, ReuseConfig, StageTimes};
use refrain::internals::draft::CostProfile;
use refrain::{Engine, EngineOptions, GenerateOptions, SessionOptions, TokenId};

/// Tokens of the context.
const CONTEXT_LEN: usize = 900;
/// Tokens of the context whose memory is reported.
const MEMORY_CONTEXT_LEN: usize = 4000;
/// Rounds of the comparison with plain prefill.
const ROUNDS: usize = 5;

/// One prefill of `text` and one step: the time, and the memory of drafting afterwards, in bytes.
fn session(engine: &Engine, text: &[TokenId], options: SessionOptions) -> (StageTimes, usize) {
    let mut session = engine.session(options).expect("options in range");
    session.append_tokens(text).expect("a text that fits");
    let options = GenerateOptions { max_tokens: 1, ..GenerateOptions::default() };
    let generation = session.generate(options).expect("a prompt");
    let summary = generation.run(|_| std::ops::ControlFlow::Continue(())).expect("a token");
    (summary.stats.time_us, session.draft_memory_usage())
}

fn prefill(engine: &Engine, text: &[TokenId], calibration: Calibration) -> StageTimes {
    session(engine, text, SessionOptions { calibration, history: false, ..SessionOptions::default() }).0
}

/// Memory of sources, builder and shortlist at [`MEMORY_CONTEXT_LEN`] tokens, or at the model's maximum.
fn print_memory(engine: &Engine) {
    let config = engine.config();
    let context_len = MEMORY_CONTEXT_LEN.min(config.context_len - 1);
    let options = SessionOptions {
        calibration: Calibration::InContext,
        reuse: Some(ReuseConfig::default()),
        context_len: Some(context_len + 1),
        ..SessionOptions::default()
    };
    let (_, bytes) = session(engine, &zipf::tokens(context_len, config.vocab_size), options);
    println!("{context_len} tokens of context: drafting holds {:.1} MiB", bytes as f64 / f64::from(1 << 20));
}

fn calibration(c: &mut Criterion) {
    let fixture = || Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/target.gguf");
    let path = std::env::var_os("REFRAIN_BENCH_MODEL").map_or_else(fixture, PathBuf::from);
    let options =
        EngineOptions { cost_profile: Some(CostProfile::free_rows(1.0)), ..EngineOptions::default() };
    let engine = Engine::open(&path, options).expect("a model");
    let text = zipf::tokens(CONTEXT_LEN, engine.config().vocab_size);
    let n_tokens = (text.len() - 1) as f64;

    let mut group = c.benchmark_group("calibration/per_token");
    group.sample_size(10);
    for mode in [Calibration::InContext, Calibration::Full] {
        group.bench_function(BenchmarkId::from_parameter(format!("{mode:?}")), |b| {
            b.iter_custom(|n| {
                let us: f64 = (0..n).map(|_| prefill(&engine, &text, mode).calibrate / n_tokens).sum();
                Duration::from_secs_f64(us / 1e6)
            });
        });
    }
    group.finish();

    let mut ratios = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let plain = prefill(&engine, &text, Calibration::Off).prefill;
        for (mode, ratios) in [Calibration::InContext, Calibration::Full].into_iter().zip(&mut ratios) {
            let times = prefill(&engine, &text, mode);
            ratios.push(((times.prefill + times.calibrate) / plain, times.calibrate / plain));
        }
    }
    for (mode, ratios) in ["in context", "in full"].into_iter().zip(&mut ratios) {
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (whole, projections) = ratios[ROUNDS / 2];
        println!(
            "{mode}: prefill takes {whole:.3} × as long, the projections {:.2} % of it",
            100.0 * projections
        );
    }
    print_memory(&engine);
}

criterion_group!(benches, calibration);
criterion_main!(benches);
