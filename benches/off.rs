//! The cost of a step that cannot pay for drafts, beside a step of a session without drafts, in instructions.
//!
//! ```sh
//! cargo bench --bench off            # needs valgrind; the kernels are those of the widest instruction set that it knows
//! ```
//!
//! The fixture target continues a prompt of [`PROMPT_LEN`] tokens by [`LENS`] tokens on one thread. A step takes the difference of the two
//! counts, divided by that of the tokens: loading, the prompt, and the reading of the prompt by the sources are in both. The account has no
//! stake, so no row is ever paid for.

use std::process::Command;

use refrain::checkpoint::Checkpoint;
use refrain::drafting::{CostProfile, DraftPolicy};
use refrain::{Drafting, Engine, EngineOptions, GenerateOptions, SessionOptions, TokenId};

type Error = Box<dyn std::error::Error>;

const PROMPT_LEN: u32 = 300;
/// Tokens of the answers.
const LENS: [usize; 2] = [40, 240];
/// The first argument of a run that is counted: the drafting and the number of tokens follow.
const RUN: &str = "--counted";

fn main() -> Result<(), Error> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [RUN, drafting, n_tokens] = args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        return run(drafting == "off", n_tokens.parse()?);
    }
    let [off, never] = ["off", "never"].map(per_step);
    let (off, never) = (off?, never?);
    println!("| session | instructions of a step | beside off |\n| --- | ---: | ---: |");
    println!("| without drafts | {off:.0} | |");
    println!("| drafts that are never paid for | {never:.0} | {:+.3} % |", 100.0 * (never / off - 1.0));
    Ok(())
}

/// Continues the prompt.
fn run(is_off: bool, n_tokens: usize) -> Result<(), Error> {
    let checkpoint = Checkpoint::open(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf"))?;
    let mut options = EngineOptions::default();
    options.n_threads = Some(1);
    options.cost_profile = Some(CostProfile::from_measurements(&[(1, 1000.0), (2, 1900.0), (64, 60_000.0)]));
    let engine = Engine::load(&checkpoint, options, |_, _| {})?;
    let mut session = SessionOptions::default();
    match is_off {
        true => session.drafting = Drafting::Off,
        false => session.policy = DraftPolicy { stake: Some(0.0), ..DraftPolicy::default() },
    }
    let mut session = engine.session(session)?;
    let prompt: Vec<TokenId> = (0..PROMPT_LEN).map(|i| TokenId(i * i % 200)).collect();
    session.append_tokens(&prompt)?;
    let mut options = GenerateOptions::default();
    (options.max_tokens, options.ignore_eos) = (n_tokens, true);
    let mut generation = session.generate(options)?;
    generation.by_ref().try_for_each(|event| event.map(drop))?;
    let stats = generation.stats();
    assert_eq!((stats.steps, stats.tokens), (n_tokens, n_tokens), "{:?}", stats.drafting_off);
    Ok(())
}

/// Instructions of a step.
fn per_step(drafting: &str) -> Result<f64, Error> {
    let [short, long] = LENS.map(|n| count(drafting, n));
    Ok((long? - short?) / (LENS[1] - LENS[0]) as f64)
}

/// Instructions of a run.
fn count(drafting: &str, n_tokens: usize) -> Result<f64, Error> {
    let program = std::env::current_exe()?;
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
    let output = valgrind.arg(program).args([RUN, drafting, &n_tokens.to_string()]).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().find(|line| line.contains("I refs:") || line.contains("I   refs:"));
    let digits: String = line
        .ok_or_else(|| format!("valgrind: {said}"))?
        .rsplit(':')
        .next()
        .unwrap_or_default()
        .chars()
        .filter(char::is_ascii_digit)
        .collect();
    if !output.status.success() {
        return Err(said.into());
    }
    Ok(digits.parse()?)
}
