//! What drafts cost the first text behind a long prompt.
//!
//! ```sh
//! cargo bench --bench first                                              # the fixture target
//! REFRAIN_BENCH_MODEL=model.gguf cargo bench --bench first
//! ```
//!
//! The prompt has [`PROMPT_LEN`] tokens, drawn by Zipf's law; its second half repeats the first, so that there is something to draft. A
//! session without drafts and one with drafts take turns. The weights may be random. The time to the first text is noisy to several
//! milliseconds, so the parts that only drafts have are printed too: the prompt's rows, its reading by the sources, the first draft, and
//! the rows of the first step beyond one.

#[path = "support/zipf.rs"]
mod zipf;

use std::path::{Path, PathBuf};
use std::time::Instant;

use refrain::{Drafting, Engine, EngineOptions, Event, GenerateOptions, SessionOptions, TokenId};

type Error = Box<dyn std::error::Error>;

const PROMPT_LEN: usize = 2048;
/// Turns of each session; the first is not counted.
const ROUNDS: usize = 6;

/// Milliseconds to the first text, and of that: the prompt's rows, reading by the sources, the first draft, the first pass. Then the rows of
/// the first pass.
#[derive(Clone, Copy)]
struct First([f64; 6]);

fn main() -> Result<(), Error> {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/target.gguf");
    let path = std::env::var_os("REFRAIN_BENCH_MODEL").map_or(fixture, PathBuf::from);
    let engine = Engine::open(path, EngineOptions::default())?;
    let config = engine.config();
    let n = PROMPT_LEN.min(config.context_len - 64);
    let prompt = zipf::tokens(n / 2, config.vocab_size).repeat(2);
    println!(
        "{} tokens of prompt, {}, {} threads",
        prompt.len(),
        engine.device().isa(),
        engine.device().n_threads()
    );
    let (mut off, mut auto) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for (drafting, firsts) in [(Drafting::Off, &mut off), (Drafting::Auto, &mut auto)] {
            let first = first(&engine, &prompt, drafting)?;
            if round > 0 {
                firsts.push(first);
            }
        }
    }
    let median = |firsts: &[First], part: usize| {
        let mut values: Vec<f64> = firsts.iter().map(|first| first.0[part]).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let [rows, prime, draft] = [1, 2, 3].map(|part| median(&auto, part));
    let pass = median(&auto, 4) - median(&off, 4);
    println!(
        "| first text, ms | with drafts | prompt's rows | reading | draft | rows of the first step | these parts | number of these rows |"
    );
    println!("| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    println!(
        "| {:.1} | {:.1} | {rows:.3} | {prime:.3} | {draft:.3} | {pass:.3} | {:.3} | {} |",
        median(&off, 0),
        median(&auto, 0),
        rows + prime + draft + pass,
        median(&auto, 5) - median(&off, 5)
    );
    Ok(())
}

/// Prefills the prompt and takes the first token.
fn first(engine: &Engine, prompt: &[TokenId], drafting: Drafting) -> Result<First, Error> {
    let mut session = SessionOptions::default();
    (session.drafting, session.history) = (drafting, false);
    let mut session = engine.session(session)?;
    session.append_tokens(prompt)?;
    let mut options = GenerateOptions::default();
    (options.max_tokens, options.ignore_eos) = (48, true);
    let start = Instant::now();
    let mut generation = session.generate(options)?;
    while !matches!(generation.next().transpose()?, Some(Event::Token(_)) | None) {}
    let ms = start.elapsed().as_secs_f64() * 1e3;
    let stats = generation.stats();
    let time = &stats.time_us;
    let [rows, prime, draft] = [time.calibrate, time.prime, time.draft + time.observe].map(|us| us / 1e3);
    let n_rows = stats.rows.valid + stats.rows.wasted + stats.rows.padded;
    Ok(First([ms, rows, prime, draft, (time.forward + time.walk) / 1e3, n_rows as f64]))
}
