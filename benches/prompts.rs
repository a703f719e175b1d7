//! Long prompts: of a model that is streamed from flash, in chunks and in passes that the memory budget allows; and beside a generation that
//! decodes, in turns with its steps and in its passes.
//!
//! ```sh
//! cargo bench --bench prompts -- streamed [--tokens 2048] [--memory MB] [--rate MB/s] [--rounds N] MODEL
//! cargo bench --bench prompts -- beside [--tokens 4096] [--drafts] [--rounds N] MODEL
//! ```
//!
//! `streamed` packs a model that is not packed. Without `--memory`, no layer is pinned; with it, the budget counts what the process holds.
//! Every answer is compared with that of the other way, and a difference ends the bench. `beside` measures the time of each token of the
//! generation that decodes.

use std::path::{Path, PathBuf};
use std::time::Instant;

use refrain::checkpoint::Checkpoint;
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{
    CancelToken, Drafting, Engine, EngineOptions, Event, GenerateOptions, OwnedGeneration, Quantize,
    Sampling, Session, SessionOptions, TokenId, step_together,
};

type Failure = Box<dyn std::error::Error>;

const USAGE: &str =
    "streamed|beside [--tokens N] [--memory MB] [--rate MB/s] [--rounds N] [--drafts] [MODEL]";

struct Plan {
    n_tokens: Option<usize>,
    memory: Option<u64>,
    rate: u64,
    rounds: usize,
    drafts: bool,
    model: PathBuf,
}

fn main() -> Result<(), Failure> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/target.gguf");
    let mut plan = Plan { n_tokens: None, memory: None, rate: 300, rounds: 3, drafts: false, model };
    let mut what = None;
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut number = || args.next().ok_or(USAGE)?.parse::<usize>().map_err(Failure::from);
        match arg.as_str() {
            "--bench" => {}
            "--tokens" => plan.n_tokens = Some(number()?),
            "--memory" => plan.memory = Some(number()? as u64 * 1_000_000),
            "--rate" => plan.rate = number()? as u64,
            "--rounds" => plan.rounds = number()?,
            "--drafts" => plan.drafts = true,
            "streamed" | "beside" => what = Some(arg),
            _ => plan.model = arg.into(),
        }
    }
    match what.as_deref() {
        Some("streamed") => streamed(&plan),
        Some(_) => beside(&plan),
        // All benches are run without arguments.
        None => {
            streamed(&plan)?;
            beside(&plan)
        }
    }
}

/// Tokens that no other prompt has, of the upper half of the vocabulary.
fn prompt(engine: &Engine, number: usize, n_tokens: usize) -> Vec<TokenId> {
    let vocab_size = engine.config().vocab_size as u64;
    let mut x = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        TokenId(((x >> 33) % (vocab_size / 2) + vocab_size / 4) as u32)
    };
    (0..n_tokens).map(|_| next()).collect()
}

fn session(engine: &Engine, plan: &Plan, context_len: usize) -> Result<Session, Failure> {
    Ok(engine.session(options(plan, context_len))?)
}

fn options(plan: &Plan, context_len: usize) -> SessionOptions {
    let drafting = if plan.drafts { Drafting::Auto } else { Drafting::Off };
    SessionOptions { context_len: Some(context_len), drafting, history: false, ..SessionOptions::default() }
}

/// The first tokens of an answer, and the seconds to the first one.
fn answer(session: &mut Session, since: Instant) -> Result<(f64, Vec<TokenId>), Failure> {
    let (mut seconds, mut tokens) = (0.0, Vec::new());
    let options = GenerateOptions { max_tokens: 3, ignore_eos: true, ..GenerateOptions::default() };
    for event in session.generate(options)? {
        if let Event::Token(token) = event? {
            if tokens.is_empty() {
                seconds = since.elapsed().as_secs_f64();
            }
            tokens.push(token.id);
        }
    }
    Ok((seconds, tokens))
}

fn streamed(plan: &Plan) -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let source = Checkpoint::open(&plan.model)?;
    let path = match source.packed() {
        Some(_) => plan.model.clone(),
        None => {
            let path = folder.path().join("model.refrain");
            pack(&source, &path, LoadOptions { quantize: Quantize::Keep, ..LoadOptions::default() })?;
            path
        }
    };
    drop(source);
    let source = Checkpoint::open(&path)?;
    let n_tokens = plan.n_tokens.unwrap_or(2048).min(source.config().context_len - 4);
    let context_len = n_tokens + 4;
    let mut streaming = StreamOptions::new(match plan.memory {
        Some(bytes) => Pinned::Memory(bytes),
        None => Pinned::Layers(0),
    });
    streaming.reserved_bytes = options(plan, context_len).memory_bytes(source.config());
    streaming.bandwidth_max = Some(plan.rate * 1_000_000);
    let streaming = Some(streaming);
    let engine = Engine::open(&path, EngineOptions { streaming, ..EngineOptions::default() })?;
    let streamed = engine.streamed().ok_or("the model is not streamed")?;
    let memory = streamed.memory();
    println!(
        "\n{}, a prompt of {n_tokens} tokens, a modelled disk of {} MB/s, {} of {} layers pinned, {:.1} MB for a prompt\n",
        plan.model.display(),
        plan.rate,
        memory.n_pinned_layers,
        source.config().n_layers(),
        memory.prompt_bytes as f64 / 1e6
    );
    println!("| | first token, s | read, MB | peak, MB |");
    println!("| --- | ---: | ---: | ---: |");
    let cancel = CancelToken::new();
    for round in 0..plan.rounds {
        let mut answers = Vec::new();
        for way in ["in chunks", "in long passes"] {
            reset_peak();
            let mut session = session(&engine, plan, context_len)?;
            session.append_tokens(&prompt(&engine, round, n_tokens))?;
            let (since, before) = (Instant::now(), streamed.flow().read_bytes);
            match way {
                "in chunks" => {
                    while let (done, end) = session.prefill_chunk(&cancel)?
                        && done < end
                    {}
                }
                _ => session.prefill(&cancel, |_, _| {})?,
            }
            let read = streamed.flow().read_bytes - before;
            let (seconds, tokens) = answer(&mut session, since)?;
            println!("| {way} | {seconds:.2} | {:.0} | {:.0} |", read as f64 / 1e6, peak() as f64 / 1e6);
            answers.push(tokens);
        }
        if answers[0] != answers[1] {
            return Err("the answers differ".into());
        }
    }
    Ok(())
}

/// Lets the peak of the process's memory begin anew, where the system can.
fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The peak of the process's memory, 0 where the system does not say it.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// How a prompt is read beside a generation that decodes.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// A chunk after each step.
    Turns,
    /// Some rows in each step.
    Joined,
}

fn beside(plan: &Plan) -> Result<(), Failure> {
    let engine = Engine::open(&plan.model, EngineOptions::default())?;
    let context_len = engine.config().context_len.min(2 * plan.n_tokens.unwrap_or(4096));
    let n_tokens = plan.n_tokens.unwrap_or(4096).min(context_len - 4);
    println!(
        "\n{}, a prompt of {n_tokens} tokens beside a generation, {} rounds\n",
        plan.model.display(),
        plan.rounds
    );
    println!("| | token p50, ms | token p99, ms | longest, ms | tokens | first token of the prompt, s |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: |");
    let (mut quiet, mut turns, mut joined) = (Row::default(), Row::default(), Row::default());
    for round in 0..plan.rounds {
        let mut prompted = session(&engine, plan, context_len)?;
        prompted.append_tokens(&prompt(&engine, round, n_tokens))?;
        let (seconds, alone) = answer(&mut prompted, Instant::now())?;
        quiet.first_s.push(seconds);
        let mut decoding = decoding(&engine, plan, context_len, round)?;
        quiet.time(&mut decoding, 400)?;
        for (way, row) in [(Way::Turns, &mut turns), (Way::Joined, &mut joined)] {
            decoding = self::decoding(&engine, plan, context_len, round)?;
            for _ in 0..20 {
                take(&mut decoding)?;
            }
            let found = row.beside(&engine, plan, way, &mut decoding, (round, n_tokens, context_len))?;
            if found != alone {
                return Err("the answers differ".into());
            }
        }
    }
    quiet.print("quiet, and the prompt alone");
    turns.print("a chunk after each step");
    joined.print("rows of the prompt in each step");
    Ok(())
}

/// A generation that decodes.
fn decoding(
    engine: &Engine,
    plan: &Plan,
    context_len: usize,
    seed: usize,
) -> Result<OwnedGeneration, Failure> {
    let mut session = session(engine, plan, context_len)?;
    session.append_tokens(&prompt(engine, 1000 + seed, 30))?;
    let sampling = Sampling { temperature: 1.0, seed: Some(seed as u64), ..Sampling::default() };
    let options =
        GenerateOptions { max_tokens: context_len, ignore_eos: true, sampling, ..GenerateOptions::default() };
    let mut generation = OwnedGeneration::new(session, options)?;
    take(&mut generation)?;
    Ok(generation)
}

/// The next token of a generation.
fn take(generation: &mut OwnedGeneration) -> Result<Option<TokenId>, Failure> {
    match generation.next().transpose()? {
        Some(Event::Token(token)) => Ok(Some(token.id)),
        _ => Ok(None),
    }
}

/// Times of tokens, and of first tokens of prompts.
#[derive(Default)]
struct Row {
    tokens_s: Vec<f64>,
    first_s: Vec<f64>,
}

impl Row {
    fn time(&mut self, generation: &mut OwnedGeneration, n: usize) -> Result<(), Failure> {
        for _ in 0..n {
            let since = Instant::now();
            if take(generation)?.is_none() {
                break;
            }
            self.tokens_s.push(since.elapsed().as_secs_f64());
        }
        Ok(())
    }

    /// Reads a prompt beside a generation that decodes; returns the first tokens of its answer.
    fn beside(
        &mut self,
        engine: &Engine,
        plan: &Plan,
        way: Way,
        decoding: &mut OwnedGeneration,
        (number, n_tokens, context_len): (usize, usize, usize),
    ) -> Result<Vec<TokenId>, Failure> {
        let mut session = session(engine, plan, context_len)?;
        session.append_tokens(&prompt(engine, number, n_tokens))?;
        let (begun, cancel) = (Instant::now(), CancelToken::new());
        let mut since = begun;
        let mut lap = |row: &mut Self| {
            let now = Instant::now();
            row.tokens_s.push((now - since).as_secs_f64());
            since = now;
        };
        if way == Way::Turns {
            while let (done, end) = session.prefill_chunk(&cancel)?
                && done < end
            {
                take(decoding)?.ok_or("the generation has ended")?;
                lap(self);
            }
        }
        let options = GenerateOptions { max_tokens: 3, ignore_eos: true, ..GenerateOptions::default() };
        let (mut prompted, mut tokens) = (OwnedGeneration::new(session, options)?, Vec::new());
        while tokens.len() < 3 {
            step_together(&mut [&mut *decoding, &mut prompted]);
            while !decoding.awaits_pass() {
                take(decoding)?.ok_or("the generation has ended")?;
                lap(self);
            }
            while !prompted.awaits_pass() && tokens.len() < 3 {
                tokens.push(take(&mut prompted)?.ok_or("the answer has ended")?);
                if tokens.len() == 1 {
                    self.first_s.push(begun.elapsed().as_secs_f64());
                }
            }
        }
        Ok(tokens)
    }

    fn print(&mut self, name: &str) {
        self.tokens_s.sort_by(f64::total_cmp);
        let last = self.tokens_s.len().saturating_sub(1);
        let at = |share: f64| {
            self.tokens_s.get(((last as f64 * share).ceil()) as usize).map_or(f64::NAN, |s| 1e3 * s)
        };
        let first: Vec<String> = self.first_s.iter().map(|s| format!("{s:.2}")).collect();
        println!(
            "| {name} | {:.2} | {:.2} | {:.2} | {} | {} |",
            at(0.5),
            at(0.99),
            at(1.0),
            self.tokens_s.len(),
            first.join(", ")
        );
    }
}
