//! `refrain model graphs` splits a model into static graphs.

use std::time::Instant;

use indicatif::HumanBytes;
use refrain::LoadError;
use refrain::internals::model::graphs::{GraphsSummary, write_graphs};
use refrain::internals::model::weights::LoadOptions;
use refrain::internals::schedule::SwitchTimes;
use serde::Serialize;

use crate::args::GraphsArgs;
use crate::failure::{Exit, Failure};
use crate::progress::Progress;
use crate::terminal::{AnswerStream, visible};
use crate::{load, pack};

/// Number of measurements of each load and call for the stored times.
const ROUNDS: usize = 3;

pub(crate) fn graphs(args: &GraphsArgs) -> Result<Exit, Failure> {
    if args.out.exists() {
        let problem = format!("`{}` exists", args.out.display());
        return Err(Failure::usage(problem, "name another folder, or remove this one"));
    }
    let checkpoint = load::checkpoint(Some(&args.model))?;
    // Without a usable tokenizer, a split model could not be run. It is refused before the work.
    let tokenizer = checkpoint.tokenizer();
    tokenizer.map_err(LoadError::from)?;
    let start = Instant::now();
    let summary = {
        let progress = Progress::bytes("writing");
        let progress = |done, total| progress.set(done, total);
        let quantize = args.compute.quantize.quantize();
        let options = LoadOptions { quantize, progress: Some(&progress), ..LoadOptions::default() };
        let written = write_graphs(&checkpoint, &args.out, args.blocks, args.prefill, args.verify, options);
        written.map_err(pack::failure)?
    };
    let seconds = start.elapsed().as_secs_f64();
    let report = Report::new(args, &summary, seconds, &store_times(args)?);
    let mut out = AnswerStream::stdout();
    match args.json {
        true => out.line(&serde_json::to_string(&report).expect("strings and numbers have a JSON form"))?,
        false => out.line(&visible(&report.to_string()))?,
    }
    Ok(Exit::Done)
}

/// Measures loads and calls and stores the times in the folder, so that later runs need not measure them.
fn store_times(args: &GraphsArgs) -> Result<SwitchTimes, Failure> {
    let checkpoint = load::checkpoint(Some(&args.out))?;
    let engine = load::engine(&checkpoint, args.compute.engine_options())?;
    let times = engine.measure_graphs(ROUNDS)?;
    let (Some(folder), Some(times)) = (checkpoint.graphs(), times) else {
        return Err(Failure::new(Exit::Failed, "the written folder does not open as a folder of graphs"));
    };
    folder.store_times(&times)?;
    Ok(times)
}

/// The result, for people and programs.
#[derive(Serialize)]
struct Report {
    path: String,
    blocks: usize,
    prefill_len: usize,
    verify_len: usize,
    files: usize,
    file_bytes: u64,
    weights_bytes: u64,
    identity: String,
    seconds: f64,
    /// Times of all blocks together, ms: loading and computing a prefill graph, then a verify graph.
    times_ms: [[f64; 2]; 2],
}

impl Report {
    fn new(args: &GraphsArgs, summary: &GraphsSummary, seconds: f64, times: &SwitchTimes) -> Self {
        let sum = |times: &SwitchTimes, of: fn(&refrain::internals::schedule::BlockTimes) -> f64| {
            times.blocks.iter().map(of).sum::<f64>() / 1e3
        };
        Self {
            path: args.out.display().to_string(),
            blocks: summary.n_blocks,
            prefill_len: args.prefill,
            verify_len: args.verify,
            files: summary.n_files,
            file_bytes: summary.file_bytes,
            weights_bytes: summary.weights_bytes,
            identity: summary.identity.to_string(),
            seconds,
            times_ms: [
                [sum(times, |block| block.prefill.load_us), sum(times, |block| block.prefill.compute_us)],
                [sum(times, |block| block.verify.load_us), sum(times, |block| block.verify.compute_us)],
            ],
        }
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { path, blocks, prefill_len, verify_len, files, identity, seconds, .. } = self;
        let [all, weights] = [self.file_bytes, self.weights_bytes].map(HumanBytes);
        write!(
            f,
            "{path}: {weights} of weights in {blocks} blocks for {prefill_len} and {verify_len} rows, "
        )?;
        write!(f, "{files} files of {all}, in {seconds:.1} s (identity {identity})")?;
        let [[load, call], [verify_load, verify_call]] = self.times_ms;
        write!(f, "; a prefill chunk takes {call:.1} ms and its graphs {load:.1} ms to load, ")?;
        write!(f, "a verification batch {verify_call:.1} ms and its graphs {verify_load:.1} ms")
    }
}
