//! Recorded responses through both engines: drafts, verification and rollback at their true cost, on any weights.
//!
//! In both engines the recorded token is the target's choice at every position, so both commit the same tokens. Refrain runs as in
//! `refrain-bench replay`, in a session with its own drafting. llama.cpp is driven here, step by step, with the drafting rules that
//! its server and its examples have ([`rules`]).

mod rules;

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use refrain::checkpoint::Checkpoint;
use refrain::{Engine as RefrainEngine, EngineOptions, SessionOptions, TokenId, Tokenizer};
use refrain_bench::model::{Timing, Timings};
use refrain_bench::rows::{self, TokenRow};
use refrain_bench::{Half, Sources, Strategy};
use serde::Serialize;

use self::rules::{Drafter, Rule};
use crate::engines::{Engine, FlashAttention, KvKind, Llama, LlamaModels, Logits, Result};

/// The options of a replay.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// The target; its weights may be random.
    file: PathBuf,
    /// Recorded rows, as JSON Lines.
    #[arg(required = true)]
    rows: Vec<PathBuf>,
    /// A tokenizer.json or a GGUF file, with no more tokens than the target.
    #[arg(long)]
    tokenizer: PathBuf,
    /// Rows of each subtask: the first odd ones, which Refrain's constants were not fitted to.
    #[arg(long, default_value_t = 1)]
    rows_of_subtask: usize,
    /// Only this many rows in all.
    #[arg(long)]
    rows_max: Option<usize>,
    /// Maximum rows of Refrain's batches, and of llama.cpp's with its rules `ngram-cache` and `pld`.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u16).range(2..=64))]
    batch_rows: u16,
    /// llama.cpp's drafting rules.
    #[arg(long, value_delimiter = ',', default_values_t = Rule::ALL)]
    rules: Vec<Rule>,
    /// llama.cpp's attention.
    #[arg(long, default_value = "on")]
    flash_attention: FlashAttention,
    /// Threads of each engine.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: u16,
    /// Writes the figures of every row too.
    #[arg(long)]
    pub json: Option<PathBuf>,
}

/// The times of an engine with a rule.
#[derive(Clone, Debug, Serialize)]
pub struct Arm {
    pub engine: String,
    pub rule: String,
    pub n_tokens: usize,
    pub n_steps: usize,
    /// Time of decoding, without the prompt.
    pub seconds: f64,
    /// Seconds of each row, in order.
    pub seconds_of_rows: Vec<f64>,
}

/// The measurement of a file.
#[derive(Debug, Serialize)]
pub struct Replay {
    pub file: String,
    pub n_rows: usize,
    /// Rows that do not fit the target's context.
    pub n_too_long: usize,
    /// Plain decoding of each engine comes before its rules.
    pub arms: Vec<Arm>,
}

/// Replays rows: for each row every arm of llama.cpp and then every arm of Refrain, so that other load affects all of them.
///
/// # Errors
/// A file cannot be read, the target has too few tokens, or an engine fails.
pub fn replay(options: &Options) -> Result<Replay> {
    let n_threads = usize::from(options.threads);
    let tokenizer = open_tokenizer(&options.tokenizer)?;
    let engine_options = EngineOptions { n_threads: Some(n_threads), ..EngineOptions::default() };
    let engine = RefrainEngine::open(&options.file, engine_options)?;
    if tokenizer.vocab_size() > engine.config().vocab_size {
        let (given, limit) = (tokenizer.vocab_size(), engine.config().vocab_size);
        return Err(format!("the tokenizer has {given} tokens, the target {limit}").into());
    }

    let mut rows = read_rows(options, &tokenizer, n_threads)?;
    let n_chosen = rows.len();
    rows.retain(|row| row.prompt.len() + row.response.len() < engine.config().context_len);
    let n_too_long = n_chosen - rows.len();

    let llama = LlamaModels::start(n_threads, false)?;
    let model = llama.load(&options.file, true)?;
    let n_draft_max = options.rules.iter().map(|rule| rule.n_draft_max(options.n_draft())).max().unwrap_or(0);
    let n_slots = rows.iter().map(|row| row.prompt.len() + row.response.len()).max().unwrap_or(0);
    let n_slots = n_slots + 1 + n_draft_max;
    let mut sequences = Vec::new();
    for rollback in llama.rollbacks(&model, n_draft_max as u32)? {
        sequences.push(llama.sequence(&model, n_slots, options.flash_attention, KvKind::F16, rollback)?);
    }
    let mut arms = arms(&sequences, options);

    // Refrain's replay takes the next row when it is done with the last one.
    let mut result = Ok(());
    let measured = rows.iter().inspect(|row| {
        if result.is_ok() {
            result = replay_row(row, &mut sequences, options, engine.config().vocab_size, &mut arms);
        }
    });
    let strategies = [Strategy::Plain, Strategy::Refrain];
    let session =
        SessionOptions { verify_rows_max: usize::from(options.batch_rows), ..SessionOptions::default() };
    let progress = |done: usize, of: usize| eprintln!("row {} of {of}", done + 1);
    let timings =
        refrain_bench::model::replay(&engine, measured, &strategies, Sources::Prompt, &session, true, progress)?;
    result?;
    arms.extend(arms_of_refrain(&timings));
    let name = options.file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Replay { file: name, n_rows: rows.len(), n_too_long, arms })
}

impl Options {
    /// The rules that a sequence can run: it must be able to roll back their whole draft.
    fn rules_of(&self, sequence: &Llama<'_>) -> Vec<Rule> {
        let fits = |rule: &Rule| rule.n_draft_max(self.n_draft()) <= sequence.rollback_max();
        self.rules.iter().copied().filter(fits).collect()
    }

    /// Drafted tokens of a full batch.
    fn n_draft(&self) -> usize {
        usize::from(self.batch_rows) - 1
    }
}

fn open_tokenizer(path: &Path) -> Result<Tokenizer> {
    if path.extension().is_some_and(|extension| extension == "json") {
        return Ok(Tokenizer::from_json(&std::fs::read_to_string(path)?, &path.display().to_string())?);
    }
    Ok(Checkpoint::open(path)?.tokenizer()?)
}

fn read_rows(options: &Options, tokenizer: &Tokenizer, n_threads: usize) -> Result<Vec<TokenRow>> {
    let rows = rows::encode(&rows::read(&options.rows)?, tokenizer, n_threads)?;
    let mut chosen = Vec::new();
    for rows in refrain_bench::run::by_subtask(&rows).into_values() {
        let odd = rows.into_iter().filter(|row| Half::Odd.takes(row) && !row.response.is_empty());
        chosen.extend(odd.take(options.rows_of_subtask).cloned());
    }
    chosen.truncate(options.rows_max.unwrap_or(usize::MAX));
    if chosen.is_empty() { Err("no subtask has an odd row".into()) } else { Ok(chosen) }
}

fn arms(sequences: &[Llama<'_>], options: &Options) -> Vec<Arm> {
    let mut arms = Vec::new();
    for sequence in sequences {
        let rules = options.rules_of(sequence).into_iter().map(|rule| rule.to_string());
        // Plain decoding rolls nothing back: once is enough.
        let plain = (arms.is_empty()).then(|| "plain".to_owned());
        arms.extend(plain.into_iter().chain(rules).map(|rule| Arm {
            engine: sequence.name().to_owned(),
            rule,
            n_tokens: 0,
            n_steps: 0,
            seconds: 0.0,
            seconds_of_rows: Vec::new(),
        }));
    }
    arms
}

/// One row through every arm of llama.cpp, in the order of [`arms`].
fn replay_row(
    row: &TokenRow,
    sequences: &mut [Llama<'_>],
    options: &Options,
    vocab_size: usize,
    arms: &mut [Arm],
) -> Result<()> {
    let mut arms = arms.iter_mut();
    for (i, sequence) in sequences.iter_mut().enumerate() {
        let before: Vec<u32> = row.prompt[..row.prompt.len() - 1].iter().map(|token| token.0).collect();
        sequence.clear()?;
        sequence.prefill(&before)?;
        sequence.mark()?;
        let plain = (i == 0).then_some(None);
        for rule in plain.into_iter().chain(options.rules_of(sequence).into_iter().map(Some)) {
            let arm = arms.next().expect("an arm for each sequence and rule");
            let mut drafter = rule.map(|rule| rule.drafter(options.n_draft(), vocab_size));
            sequence.rewind()?;
            let start = Instant::now();
            let n_steps = follow(row, sequence, drafter.as_deref_mut())?;
            let seconds = start.elapsed().as_secs_f64();
            arm.n_tokens += row.response.len();
            arm.n_steps += n_steps;
            arm.seconds += seconds;
            arm.seconds_of_rows.push(seconds);
        }
    }
    Ok(())
}

/// Decodes a row's response behind its prompt, of which the sequence has all but the last token. Returns the number of steps.
fn follow(
    row: &TokenRow,
    sequence: &mut Llama<'_>,
    mut drafter: Option<&mut (dyn Drafter + 'static)>,
) -> Result<usize> {
    let mut committed = row.prompt.clone();
    let (mut draft, mut rows) = (Vec::new(), Vec::new());
    let mut n_steps = 0;
    let end = row.prompt.len() + row.response.len();
    while committed.len() < end {
        let rest = &row.response[committed.len() - row.prompt.len()..];
        draft.clear();
        if let Some(drafter) = &mut drafter {
            drafter.draft(&committed, &mut draft);
        }
        // The last token is the target's own.
        draft.truncate(rest.len() - 1);
        rows.clear();
        rows.extend(committed.last().into_iter().chain(&draft).map(|token: &TokenId| token.0));
        sequence.verify(&rows, Logits::All)?;
        let n_accepted = draft.iter().zip(rest).take_while(|(drafted, token)| drafted == token).count();
        for row in 0..=n_accepted {
            // The choice costs its time, and the recorded token replaces it.
            black_box(first_choice(sequence.logits(row)));
        }
        sequence.keep(n_accepted + 1)?;
        committed.extend_from_slice(&rest[..n_accepted + 1]);
        n_steps += 1;
    }
    Ok(n_steps)
}

fn first_choice(logits: &[f32]) -> usize {
    let mut best = (0, f32::NEG_INFINITY);
    for (i, &logit) in logits.iter().enumerate() {
        if logit > best.1 {
            best = (i, logit);
        }
    }
    best.0
}

fn arms_of_refrain(timings: &Timings) -> Vec<Arm> {
    let arm = |timing: Timing| {
        let of_rows = timings.timings.iter().filter(|row| row.strategy == timing.strategy);
        Arm {
            engine: "refrain".to_owned(),
            rule: timing.strategy.to_string(),
            n_tokens: timing.n_tokens,
            n_steps: timing.n_steps,
            seconds: timing.decode_us() / 1e6,
            seconds_of_rows: of_rows.map(|row| row.decode_us() / 1e6).collect(),
        }
    };
    timings.by_strategy().into_iter().map(arm).collect()
}

impl Replay {
    /// A table with a line for each arm.
    pub fn markdown(&self) -> String {
        let tokens_per_s = |arm: &Arm| arm.n_tokens as f64 / arm.seconds;
        let best =
            self.arms.iter().filter(|arm| arm.engine != "refrain").map(tokens_per_s).fold(0.0, f64::max);
        let mut table = format!("{}: {} rows, {} too long\n\n", self.file, self.n_rows, self.n_too_long);
        table.push_str("| engine | drafts | tokens | tokens per step | ms per step | tokens/s | over its plain decoding | over llama.cpp's best |\n");
        table.push_str("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n");
        let mut plain = f64::NAN;
        for arm in &self.arms {
            if arm.rule == "plain" {
                plain = tokens_per_s(arm);
            }
            let (n_tokens, n_steps) = (arm.n_tokens as f64, arm.n_steps as f64);
            table.push_str(&format!(
                "| {} | {} | {} | {:.2} | {:.1} | {:.1} | {:.2} | {:.2} |\n",
                arm.engine,
                arm.rule,
                arm.n_tokens,
                n_tokens / n_steps,
                1e3 * arm.seconds / n_steps,
                tokens_per_s(arm),
                tokens_per_s(arm) / plain,
                tokens_per_s(arm) / best
            ));
        }
        table
    }
}
