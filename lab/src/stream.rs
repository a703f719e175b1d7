//! How near decoding from flash comes to the bandwidth of the disk.
//!
//! A streamed model decodes as fast as its disk reads, if the disk never rests. So each measured stretch of decoding stands between
//! two sequential reads of the same file, in blocks of the same size and as many at a time, and is compared with the mean of
//! both: what else the machine does meets all three. Counted are the bytes that have arrived when the stretch ends.
//!
//! A second stretch verifies batches of more rows, whose drafts are all wrong: the difference is what rows cost.

use std::fmt::Write as _;
use std::io;
use std::path::Path;
use std::time::Instant;

use refrain::internals::draft::CostProfile;
use refrain::internals::draft::testing::AlwaysRight;
use refrain::internals::model::streamed::{BLOCK_BYTES, N_READS, StreamMemory};
use refrain::internals::stream::{Flow, sequential_read};
use refrain::{
    Checkpoint, Drafting, Engine, EngineError, EngineOptions, GenerateError, GenerateOptions, Pinned,
    Session, SessionError, SessionOptions, StreamOptions, TokenId,
};
use serde::Serialize;
use thiserror::Error;

/// What to measure.
#[derive(Debug, Clone)]
pub struct StreamBench {
    /// Shares of the layers that stay in memory, in percent.
    pub pinned: Vec<u32>,
    /// Tokens of a stretch.
    pub n_tokens: usize,
    /// Rows of the larger batches.
    pub n_rows: usize,
    /// Rounds, of one stretch of each kind at each share.
    pub n_rounds: usize,
    /// Models a slower disk, of so many bytes per second.
    pub bandwidth_max: Option<u64>,
    /// Threads of the forward pass.
    pub n_threads: Option<usize>,
}

/// How decoding from flash compares with reading.
#[derive(Debug, Clone, Serialize)]
pub struct StreamReport {
    /// The model.
    pub model: String,
    /// How its file is read.
    pub read_mode: String,
    /// Bytes of a read.
    pub block_bytes: usize,
    /// Reads at a time.
    pub n_reads: usize,
    /// A modelled disk's bytes per second.
    pub bandwidth_max: Option<u64>,
    /// Threads of the forward pass.
    pub n_threads: usize,
    /// Rows of the larger batches.
    pub n_rows: usize,
    /// Each share.
    pub shares: Vec<Share>,
}

/// What was measured with a share of the layers in memory.
#[derive(Debug, Clone, Serialize)]
pub struct Share {
    /// The share, in percent.
    pub pinned_percent: u32,
    /// The memory for weights.
    pub memory: StreamMemory,
    /// Bytes that a token needs from flash.
    pub pass_bytes: u64,
    /// Each round.
    pub rounds: Vec<Round>,
}

/// One stretch of decoding, and one of larger batches.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Round {
    /// Bytes per second of the sequential reads before and after.
    pub sequential: f64,
    /// Bytes per second that arrived while decoding.
    pub arrived: f64,
    /// Of the decoding, the share in which nothing but reading went on.
    pub stalled: f64,
    /// Milliseconds of a token.
    pub token_ms: f64,
    /// Milliseconds of a step of more rows.
    pub batch_ms: f64,
}

/// Why nothing was measured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StreamBenchError {
    /// The model could not be loaded.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The session could not be started.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// Decoding failed.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// The file could not be read from beginning to end.
    #[error("{path}: {source}")]
    Read {
        /// The file.
        path: String,
        /// The system's error.
        source: io::Error,
    },
}

impl Share {
    /// The median of the rounds by some measure.
    pub fn median(&self, of: impl Fn(&Round) -> f64) -> f64 {
        let mut values: Vec<f64> = self.rounds.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        match values.len() {
            0 => 0.0,
            n => (values[(n - 1) / 2] + values[n / 2]) / 2.0,
        }
    }

    /// Whether anything comes from flash at all.
    pub fn streams(&self) -> bool {
        self.pass_bytes > 0
    }
}

/// Measures the packed file at `path`; `progress` is called with (stretches done, stretches to do).
///
/// # Errors
/// [`StreamBenchError`].
pub fn measure(
    path: &Path,
    bench: &StreamBench,
    mut progress: impl FnMut(usize, usize),
) -> Result<StreamReport, StreamBenchError> {
    let checkpoint = Checkpoint::open(path).map_err(EngineError::from)?;
    let n_layers = checkpoint.config().n_layers;
    let mut report = StreamReport {
        model: checkpoint.name().to_owned(),
        read_mode: String::new(),
        block_bytes: BLOCK_BYTES,
        n_reads: N_READS,
        bandwidth_max: bench.bandwidth_max,
        n_threads: 0,
        n_rows: bench.n_rows,
        shares: Vec::new(),
    };
    let n_stretches = bench.n_rounds * bench.pinned.len();
    for round in 0..bench.n_rounds {
        for (i, &percent) in bench.pinned.iter().enumerate() {
            let n_pinned = (n_layers * percent as usize).div_ceil(100);
            let options = StreamOptions {
                bandwidth_max: bench.bandwidth_max,
                ..StreamOptions::new(Pinned::Layers(n_pinned))
            };
            let engine = Engine::load(
                &checkpoint,
                EngineOptions {
                    n_threads: bench.n_threads,
                    // Every draft is verified whatever it costs, so nothing is measured for it.
                    cost_profile: Some(CostProfile::free_rows(1.0)),
                    streaming: Some(options.clone()),
                    ..EngineOptions::default()
                },
                None,
            )?;
            if let (0, Some(streamed)) = (round, engine.streamed()) {
                report.read_mode = streamed.read_mode().to_string();
                report.n_threads = engine.compute().1;
                report.shares.push(Share {
                    pinned_percent: percent,
                    memory: streamed.memory(),
                    pass_bytes: streamed.pass_bytes(),
                    rounds: Vec::new(),
                });
            }
            let measured = measure_round(path, &engine, bench, &options)?;
            report.shares[i].rounds.push(measured);
            progress(round * bench.pinned.len() + i + 1, n_stretches);
        }
    }
    Ok(report)
}

fn measure_round(
    path: &Path,
    engine: &Engine,
    bench: &StreamBench,
    options: &StreamOptions,
) -> Result<Round, StreamBenchError> {
    let sequential = || {
        let failed = |source| StreamBenchError::Read { path: path.display().to_string(), source };
        let (n_bytes, time) = sequential_read(path, BLOCK_BYTES, N_READS, options).map_err(failed)?;
        Ok::<_, StreamBenchError>((n_bytes as f64, time.as_secs_f64()))
    };
    let mut plain = session(engine, Drafting::Off, bench)?;
    // Memory is touched for the first time, and the ring learns its order.
    decode(engine, &mut plain, 2)?;
    let before = sequential()?;
    let stretch = decode(engine, &mut plain, bench.n_tokens)?;
    let after = sequential()?;
    let mut batches = session(engine, Drafting::AsClaimed, bench)?;
    // Certain of its draft, and wrong about it: the target says this token no more often than any other.
    let drafted = vec![TokenId(1); CONTEXT_LEN];
    batches.add_source(Box::new(AlwaysRight::new(PROMPT_LEN, drafted)))?;
    decode(engine, &mut batches, 1)?;
    let batch = decode(engine, &mut batches, bench.n_tokens)?;
    Ok(Round {
        sequential: (before.0 + after.0) / (before.1 + after.1),
        arrived: stretch.flow.read_bytes as f64 / stretch.seconds,
        stalled: stretch.flow.stall_us / 1e6 / stretch.seconds,
        token_ms: stretch.seconds * 1e3 / stretch.n_steps as f64,
        batch_ms: batch.seconds * 1e3 / batch.n_steps as f64,
    })
}

/// Tokens of a session at most: a long context would cost time of its own.
const CONTEXT_LEN: usize = 512;

const PROMPT_LEN: usize = 8;

fn session(engine: &Engine, drafting: Drafting, bench: &StreamBench) -> Result<Session, StreamBenchError> {
    let mut session = engine.session(SessionOptions {
        context_len: Some(CONTEXT_LEN.min(engine.config().context_len)),
        drafting,
        history: false,
        verify_rows_max: bench.n_rows,
        ..SessionOptions::default()
    })?;
    session.append_tokens(&(1..=PROMPT_LEN as u32).map(TokenId).collect::<Vec<_>>())?;
    Ok(session)
}

struct Stretch {
    n_steps: usize,
    seconds: f64,
    flow: Flow,
}

fn decode(engine: &Engine, session: &mut Session, n_tokens: usize) -> Result<Stretch, StreamBenchError> {
    if session.tokens().len() + n_tokens >= session.context_len() {
        session.truncate(PROMPT_LEN)?;
    }
    let flow = || engine.streamed().map(|streamed| streamed.flow()).unwrap_or_default();
    let options = GenerateOptions { max_tokens: n_tokens, ignore_eos: true, ..GenerateOptions::default() };
    let mut generation = session.generate(options)?;
    generation.prefill(|_, _| {})?;
    let (start, before) = (Instant::now(), flow());
    let summary = generation.run(|_| std::ops::ControlFlow::Continue(()))?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Stretch { n_steps: summary.stats.steps, seconds, flow: flow().since(&before) })
}

/// The report as a table.
pub fn write(report: &StreamReport) -> String {
    let mut out = String::new();
    let StreamReport { model, read_mode, block_bytes, n_reads, n_threads, n_rows, .. } = report;
    // Writing to a string never fails.
    let _ = writeln!(out, "{model}: {read_mode} of {} KiB, {n_reads} at a time", block_bytes >> 10);
    if let Some(bytes) = report.bandwidth_max {
        let _ = writeln!(out, "a modelled disk of {:.0} MB/s", bytes as f64 / 1e6);
    }
    let _ = writeln!(out, "{n_threads} threads; medians of {} rounds\n", report.shares[0].rounds.len());
    let _ = writeln!(
        out,
        "| pinned layers | weights in memory, MB | from flash per token, MB | sequential read, MB/s | decoding, MB/s | share | \
         tokens/s | waiting | a step of {n_rows} rows costs |"
    );
    let _ = writeln!(out, "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for share in &report.shares {
        let memory = (share.memory.pinned_bytes + share.memory.ring_bytes) as f64 / 1e6;
        let (sequential, arrived) = (share.median(|r| r.sequential), share.median(|r| r.arrived));
        let of_disk = match share.streams() {
            true => format!("{:.1} %", 100.0 * share.median(|round| round.arrived / round.sequential)),
            false => "–".to_owned(),
        };
        let _ = writeln!(
            out,
            "| {} % | {memory:.0} | {:.0} | {:.0} | {:.0} | {of_disk} | {:.2} | {:.0} % | {:.2} × |",
            share.pinned_percent,
            share.pass_bytes as f64 / 1e6,
            sequential / 1e6,
            arrived / 1e6,
            1e3 / share.median(|round| round.token_ms),
            100.0 * share.median(|round| round.stalled),
            share.median(|round| round.batch_ms / round.token_ms),
        );
    }
    out
}
