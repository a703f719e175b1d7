//! `refrain-bench pruning`: measures the time saved by pruning batches half-way, at a model's shape.

use crate::pruning::{self, PruningBench, PruningBenchError};

use super::args::BenchPruningArgs;
use refrain_program::failure::{Exit, Failure};
use refrain_program::load;
use refrain_program::progress::Progress;
use refrain_program::terminal::AnswerStream;

pub(super) fn bench(args: &BenchPruningArgs) -> Result<Exit, Failure> {
    let checkpoint = load::checkpoint(Some(&args.model))?;
    let config = checkpoint.config();
    let layer_idx = args.layer.unwrap_or(config.n_layers() / 2);
    if !(1..config.n_layers()).contains(&layer_idx) {
        let problem = format!("--layer {layer_idx} is outside 1..={}", config.n_layers() - 1);
        return Err(Failure::usage(problem, "choose a layer of the model"));
    }
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let bench = PruningBench {
        n_rows: args.rows.iter().map(|&rows| rows as usize).collect(),
        kept: f64::from(args.kept) / 100.0,
        layer_idx,
        rank: args.rank,
        shadow_pool: args.shadow_pool,
        context: args.context,
        n_rounds: args.rounds as usize,
        n_threads: args.threads.unwrap_or_else(cores),
    };
    let costs = {
        let progress = Progress::steps("measuring");
        pruning::measure(&checkpoint, &bench, |done, total| progress.set(done as u64, total as u64))?
    };
    let mut out = AnswerStream::stdout();
    if args.json {
        out.line(&serde_json::to_string(&costs).expect("numbers have a JSON form"))?;
        return Ok(Exit::Done);
    }
    out.line(&format!(
        "{}: pruned before layer {layer_idx} of {}, context {}, rank {}, {} threads; medians of {} passes",
        checkpoint.name(),
        config.n_layers(),
        args.context,
        args.rank,
        bench.n_threads,
        args.rounds
    ))?;
    for line in pruning::write(&costs).lines() {
        out.line(line)?;
    }
    Ok(Exit::Done)
}

impl From<PruningBenchError> for Failure {
    fn from(error: PruningBenchError) -> Self {
        match error {
            PruningBenchError::Weights(error) => refrain::LoadError::from(error).into(),
            PruningBenchError::Predictor(error) => Self::usage(error, "choose a value in the range"),
            _ => Self::new(Exit::Failed, error.to_string()),
        }
    }
}
