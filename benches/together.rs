//! Tokens per second of several generations: steps that share passes, and steps in turns, side by side in one run.
//!
//! ```sh
//! cargo bench --bench together -- [--rounds N] [--tokens N] MODEL.gguf...
//! ```
//!
//! Without a model, the fixture model. Each generation continues another text; with drafts, it drafts from its own text. Every output is compared
//! with that of decoding in turns, and a difference ends the bench. Times are medians over the rounds, from the prefilled prompts to the end of the
//! last output; the first round warms up and is not counted.

use std::path::{Path, PathBuf};
use std::time::Instant;

use refrain::drafting::SharedPasses;
use refrain::{
    Drafting, Engine, EngineOptions, Event, GenerateOptions, OwnedGeneration, SessionOptions, SpecialTokens,
    TokenId, step_together,
};

type Failure = Box<dyn std::error::Error>;

/// What a bench run measures.
struct Plan {
    /// Rounds; the first one is not counted.
    rounds: usize,
    /// Output tokens of a generation.
    n_tokens: usize,
}

/// One way to run the generations.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Turns,
    Together,
}

/// The outputs of a way, their time, and the passes that were shared.
struct Outcome {
    outputs: Vec<Vec<TokenId>>,
    seconds: f64,
    steps: usize,
    shared: SharedPasses,
}

fn main() -> Result<(), Failure> {
    let mut plan = Plan { rounds: 6, n_tokens: 96 };
    let mut paths: Vec<PathBuf> = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().ok_or("a number is missing")?.parse::<usize>().map_err(Failure::from);
        match arg.as_str() {
            "--bench" => {}
            "--rounds" => plan.rounds = number()?,
            "--tokens" => plan.n_tokens = number()?,
            _ => paths.push(arg.into()),
        }
    }
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    if paths.is_empty() {
        paths.push(fixtures.join("target.gguf"));
    }
    let texts = texts(&fixtures.join("notes"))?;
    for path in paths {
        measure(&path, &texts, &plan)?;
    }
    Ok(())
}

fn measure(path: &Path, texts: &[String], plan: &Plan) -> Result<(), Failure> {
    let engine = Engine::open(path, EngineOptions::default())?;
    let (isa, n_threads) = (engine.device().isa(), engine.device().n_threads());
    println!("\n{}, {isa}, {n_threads} threads, {} tokens each\n", path.display(), plan.n_tokens);
    println!(
        "| generations | drafts | in turns, tokens/s | together, tokens/s | ratio | steps in shared passes | rows per shared pass |"
    );
    println!("| ---: | --- | ---: | ---: | ---: | ---: | ---: |");
    for (drafting, name) in [(Drafting::Off, "off"), (Drafting::Auto, "on")] {
        for n in [1, 2, 4] {
            let (mut turns_s, mut together_s, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            let (mut shared, mut steps) = (SharedPasses::default(), 0);
            for round in 0..=plan.rounds {
                // Each way is first in half of the rounds.
                let mut ways = [Way::Turns, Way::Together];
                if round % 2 == 1 {
                    ways.reverse();
                }
                let mut outcomes = Vec::new();
                for way in ways {
                    outcomes.push((way, run(&engine, &texts[..n], drafting, plan.n_tokens, way)?));
                }
                outcomes.sort_by_key(|(way, _)| *way == Way::Together);
                let [(_, turns), (_, together)] = &outcomes[..] else { return Err("two ways".into()) };
                if turns.outputs != together.outputs {
                    return Err("a shared pass has changed an output".into());
                }
                if round > 0 {
                    let n_tokens: usize = turns.outputs.iter().map(Vec::len).sum();
                    turns_s.push(n_tokens as f64 / turns.seconds);
                    together_s.push(n_tokens as f64 / together.seconds);
                    ratios.push(turns.seconds / together.seconds);
                    shared += together.shared;
                    steps += together.steps;
                }
            }
            println!(
                "| {n} | {name} | {:.1} | {:.1} | {:.2} | {:.0} % | {:.1} |",
                median(&mut turns_s),
                median(&mut together_s),
                median(&mut ratios),
                100.0 * shared.generations as f64 / steps as f64,
                shared.rows as f64 / shared.passes.max(1) as f64,
            );
        }
    }
    Ok(())
}

/// History is off, because it would contain the outputs of the previous round.
fn run(
    engine: &Engine,
    texts: &[String],
    drafting: Drafting,
    n_tokens: usize,
    way: Way,
) -> Result<Outcome, Failure> {
    let mut generations = Vec::new();
    for text in texts {
        let mut session =
            engine.session(SessionOptions { drafting, history: false, ..SessionOptions::default() })?;
        session.append_text(text, SpecialTokens::AsText)?;
        let options = GenerateOptions { max_tokens: n_tokens, ..GenerateOptions::default() };
        let mut generation = OwnedGeneration::new(session, options)?;
        generation.prefill(|_, _| {})?;
        generations.push(generation);
    }
    let mut outputs = vec![Vec::new(); generations.len()];
    let (mut shared, mut steps) = (SharedPasses::default(), 0);
    let since = Instant::now();
    let mut n_running = generations.len();
    while n_running > 0 {
        match way {
            Way::Together => {
                shared += step_together(&mut generations.iter_mut().collect::<Vec<_>>());
            }
            Way::Turns => {
                for generation in &mut generations {
                    step_together(&mut [generation]);
                }
            }
        }
        for (generation, output) in generations.iter_mut().zip(&mut outputs) {
            let ended = take(generation, output)?;
            n_running -= usize::from(ended.is_some());
            steps += ended.unwrap_or(0);
        }
    }
    Ok(Outcome { outputs, seconds: since.elapsed().as_secs_f64(), steps, shared })
}

/// Takes the events of a step; at the end of the output, the number of its steps.
fn take(generation: &mut OwnedGeneration, output: &mut Vec<TokenId>) -> Result<Option<usize>, Failure> {
    while !generation.awaits_pass() {
        match generation.next() {
            Some(Ok(Event::Token(token))) => output.push(token.id),
            Some(Ok(Event::Done(summary))) => return Ok(Some(summary.stats.steps)),
            Some(event) => drop(event?),
            None => break,
        }
    }
    Ok(None)
}

/// Four texts: notes of the fixtures, some after another.
fn texts(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.sort();
    let notes = paths.iter().map(std::fs::read_to_string).collect::<std::io::Result<Vec<_>>>()?;
    Ok((0..4)
        .map(|i| (0..4).map(|j| &*notes[(3 * i + j) % notes.len()]).collect::<Vec<_>>().join("\n"))
        .collect())
}

/// The middle value, or the mean of the two middle values.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    (values[(n - 1) / 2] + values[n / 2]) / 2.0
}
