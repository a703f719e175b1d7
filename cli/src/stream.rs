//! `refrain bench stream`: how near decoding from flash comes to the bandwidth of the disk.

use refrain_bench::stream::{self, StreamBench, StreamBenchError};

use crate::args::BenchStreamArgs;
use crate::failure::{Exit, Failure};
use crate::progress::Progress;
use crate::terminal::{AnswerStream, visible};

pub(crate) fn bench(args: &BenchStreamArgs) -> Result<Exit, Failure> {
    let bench = StreamBench {
        pinned: args.pinned.clone(),
        n_tokens: args.tokens as usize,
        n_rows: args.rows as usize,
        n_rounds: args.rounds as usize,
        bandwidth_max: args.flash_bandwidth,
        n_threads: args.threads,
    };
    if bench.pinned.is_empty() {
        return Err(Failure::usage("nothing to measure", "name a share with --pinned"));
    }
    let report = {
        let progress = Progress::steps("measuring");
        stream::measure(&args.model, &bench, |done, total| progress.set(done as u64, total as u64))?
    };
    let mut out = AnswerStream::stdout();
    if args.json {
        out.line(&serde_json::to_string(&report).expect("strings and numbers have a JSON form"))?;
        return Ok(Exit::Done);
    }
    for line in stream::write(&report).lines() {
        out.line(&visible(line))?;
    }
    Ok(Exit::Done)
}

impl From<StreamBenchError> for Failure {
    fn from(error: StreamBenchError) -> Self {
        match error {
            StreamBenchError::Engine(error) => error.into(),
            StreamBenchError::Session(error) => error.into(),
            StreamBenchError::Generate(error) => error.into(),
            _ => Self::input(error, "check the path and the disk"),
        }
    }
}
