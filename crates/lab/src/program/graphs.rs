//! `refrain-bench graphs` measures the time that switching static graphs adds to a prefill.

use crate::graphs;
use crate::pressure::peak_bytes;
use refrain::checkpoint::Checkpoint;
use refrain::internals::schedule::SwitchTimes;
use refrain::{Engine, EngineOptions};

use super::args::BenchGraphsArgs;
use refrain_program::failure::{Exit, Failure};
use refrain_program::load;
use refrain_program::progress::Progress;
use refrain_program::terminal::{AnswerStream, visible};

/// Number of measurements of each load and call.
const ROUNDS: usize = 3;

pub(super) fn bench(args: &BenchGraphsArgs) -> Result<Exit, Failure> {
    let n_rows = args.tokens as usize;
    let (report, conditions) = match (&args.folder, &args.times) {
        (Some(path), _) => {
            let checkpoint: Checkpoint = load::checkpoint(Some(path))?;
            let options = EngineOptions { n_threads: args.threads, ..EngineOptions::default() };
            let engine: Engine = load::engine(&checkpoint, options)?;
            engine.measure_graphs(ROUNDS)?;
            let progress = Progress::steps("measuring");
            let set = |done, total| progress.set(done as u64, total as u64);
            let report = graphs::measured(&engine, n_rows, args.rounds, set)?;
            (report, engine.graphs().map(graphs::conditions))
        }
        (None, Some(path)) => (graphs::simulated(&SwitchTimes::read(path)?, n_rows), None),
        (None, None) => return Err(Failure::usage("nothing to measure", "name a FOLDER or --times FILE")),
    };
    let mut out = AnswerStream::stdout();
    if args.json {
        out.line(&serde_json::to_string(&report).expect("strings and numbers have a JSON form"))?;
        return Ok(Exit::Done);
    }
    for line in graphs::write(&report).lines().chain(conditions.as_deref()) {
        out.line(&visible(line))?;
    }
    if let Some(peak) = peak_bytes() {
        out.line(&format!("peak memory of the process: {}", indicatif::HumanBytes(peak)))?;
    }
    Ok(Exit::Done)
}
