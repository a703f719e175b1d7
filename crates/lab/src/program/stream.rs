//! `refrain-bench stream` compares streaming with the bandwidth of the disk and measures drafting of streamed
//! models. `refrain-bench pressure` checks the memory budget.

use std::time::Duration;

use crate::pressure::{self, PressureBench};
use crate::stream::{self, StreamBench};
use crate::sweep::{self, Sweep, SweepDraft};
use crate::{BenchError, Strategy, rows};

use super::args::{BenchPressureArgs, BenchStreamArgs};
use super::replay::needs_draft_model;
use refrain_program::failure::{Exit, Failure};
use refrain_program::load::{self, Drafts, check_vocabulary, n_threads, open_tokenizer};
use refrain_program::progress::Progress;
use refrain_program::terminal::{AnswerStream, visible};

pub(super) fn bench(args: &BenchStreamArgs) -> Result<Exit, Failure> {
    if args.pinned.is_empty() {
        return Err(Failure::usage("nothing to measure", "name a share with --pinned"));
    }
    if !args.replay.is_empty() {
        return replay(args);
    }
    let bench = StreamBench {
        pinned: args.pinned.clone(),
        n_tokens: args.tokens as usize,
        n_rows: args.rows as usize,
        n_rounds: args.rounds as usize,
        bandwidth_max: args.flash_bandwidth,
        n_threads: args.threads,
    };
    let report = {
        let progress = Progress::steps("measuring");
        stream::measure(&args.model, &bench, |done, total| progress.set(done as u64, total as u64))?
    };
    print(args.json, || stream::write(&report), &report)
}

/// Text, or one JSON object.
fn print(json: bool, text: impl FnOnce() -> String, report: &impl serde::Serialize) -> Result<Exit, Failure> {
    let mut out = AnswerStream::stdout();
    if json {
        out.line(&serde_json::to_string(report).expect("strings and numbers have a JSON form"))?;
        return Ok(Exit::Done);
    }
    for line in text().lines() {
        out.line(&visible(line))?;
    }
    Ok(Exit::Done)
}

/// Replays recorded rows at each share and length.
fn replay(args: &BenchStreamArgs) -> Result<Exit, Failure> {
    let strategies = match (&args.strategy, &args.draft) {
        (given, _) if !given.is_empty() => given.clone(),
        (_, None) => vec![Strategy::Refrain],
        (_, Some(_)) => Strategy::streamed(),
    };
    let checkpoint = load::checkpoint(Some(&args.model))?;
    let draft = args.draft.as_ref().map(|draft| Drafts::open(draft, Some(&args.model))).transpose()?;
    let sweep_draft = draft.as_ref().map(SweepDraft::from);
    let (tokenizer, tokenizer_name) = match &args.tokenizer {
        Some(path) => open_tokenizer(Some(path))?,
        None => (checkpoint.tokenizer().map_err(refrain::LoadError::from)?, "the model's".to_owned()),
    };
    check_vocabulary(&tokenizer_name, tokenizer.vocab_size(), checkpoint.config().vocab_size)?;
    let rows = rows::encode(&rows::read(&args.replay)?, &tokenizer, n_threads(args.threads))?;
    let sweep = Sweep {
        pinned: args.pinned.clone(),
        lengths: match &args.lengths[..] {
            [] => vec![None],
            lengths => lengths.iter().map(|&n| Some(n as usize)).collect(),
        },
        strategies,
        n_rows: args.task_rows,
        verify_rows_max: args.rows as usize,
        bandwidth_max: args.flash_bandwidth,
        n_threads: args.threads,
    };
    let cells = {
        let progress = Progress::steps("replaying");
        let report = |done, total| progress.set(done as u64, total as u64);
        sweep::measure(&args.model, sweep_draft.as_ref(), &rows, &sweep, report)?
    };
    let mut conditions = vec![
        format!("model: {}, streamed; the walk follows the recorded tokens", checkpoint.name()),
        format!("tokenizer: {tokenizer_name}"),
        format!("{} rows a batch at most; plain decoding of each row in the same run", args.rows),
    ];
    conditions.extend(draft.map(|draft| match draft {
        Drafts::Model(draft) => format!("draft model: {}", draft.name()),
        Drafts::OwnLayers(exit) => {
            format!(
                "draft model: the model's first {} layers, which are pinned before others",
                exit.layer_idx()
            )
        }
    }));
    if let Some(bytes) = args.flash_bandwidth {
        conditions.push(format!("a slowed reader models a disk of {:.0} MB/s", bytes as f64 / 1e6));
    }
    print(args.json, || sweep::write(&conditions, &cells), &cells)
}

impl<'a> From<&'a Drafts> for SweepDraft<'a> {
    fn from(drafts: &'a Drafts) -> Self {
        match drafts {
            Drafts::Model(checkpoint) => Self::Model(checkpoint),
            Drafts::OwnLayers(predictor) => Self::OwnLayers(predictor),
        }
    }
}

pub(super) fn pressure(args: &BenchPressureArgs) -> Result<Exit, Failure> {
    let bench = PressureBench {
        budget: args.memory,
        time: Duration::from_secs(args.seconds),
        n_reports: args.reports as usize,
        n_tokens: args.tokens as usize,
        n_threads: args.threads,
    };
    let report = {
        let progress = Progress::steps("decoding");
        pressure::measure(&args.model, &bench, |done, total| progress.set(done, total))?
    };
    print(args.json, || pressure::write(&report), &report)?;
    if report.is_within {
        return Ok(Exit::Done);
    }
    let held = format!("the process held {} bytes with a budget of {}", report.peak_bytes, report.budget);
    Err(Failure::input(held, "at most 64 MiB more than the budget are allowed"))
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Engine(error) => error.into(),
            BenchError::Session(error) => error.into(),
            BenchError::Generate(error) => error.into(),
            BenchError::NoDraftModel(strategy) => needs_draft_model(strategy),
            BenchError::NotStreamed { .. } => Self::usage(error, "lower --memory"),
            BenchError::NoGraphs => Self::usage(error, "make them with `refrain model graphs MODEL FOLDER`"),
            BenchError::Read { .. } => Self::input(error, "check the path and the disk"),
            BenchError::Layers(_) => Self::new(Exit::Failed, error.to_string()),
            BenchError::Spawn(_) | BenchError::Differs { .. } | BenchError::NoPeak => {
                Self::input(error, "this is a fault of Refrain: please report it")
            }
        }
    }
}
