//! Compares the speed of decoding from flash with the bandwidth of the disk.
//!
//! If the disk is never idle, a streamed model decodes as fast as its disk reads. So each measured period of decoding
//! lies between two sequential reads of the same file, with the same block size and the same number of concurrent
//! reads. It is compared with the mean of both, so other load on the machine affects all three. The bytes that have
//! arrived at the end of the period are counted.
//!
//! A second period verifies larger batches, and all their drafts are wrong. The difference is the cost of rows.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

use refrain::checkpoint::Checkpoint;
use refrain::internals::draft::CostProfile;
use refrain::internals::draft::testing::AlwaysRight;
use refrain::internals::model::streamed::{BLOCK_BYTES, N_READS, StreamMemory};
use refrain::internals::stream::{Flow, sequential_read};
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{Drafting, Engine, EngineOptions, GenerateOptions, Session, SessionOptions, TokenId};
use serde::Serialize;

use crate::BenchError;
use crate::tally::median;

/// The parameters.
#[derive(Debug, Clone)]
pub struct StreamBench {
    /// Shares of the pinned layers, in percent.
    pub pinned: Vec<u32>,
    /// Number of tokens of a period.
    pub n_tokens: usize,
    /// Number of rows of the larger batches.
    pub n_rows: usize,
    /// Number of rounds, with one period of each kind at each share.
    pub n_rounds: usize,
    /// If set, simulates a slower disk with this bandwidth in bytes per second.
    pub bandwidth_max: Option<u64>,
    /// Number of threads of the forward pass.
    pub n_threads: Option<usize>,
}

/// The result: decoding from flash compared with reading.
#[derive(Debug, Clone, Serialize)]
pub struct StreamReport {
    /// The model.
    pub model: String,
    /// The method of reading its file.
    pub read_mode: String,
    /// Bytes per read.
    pub block_bytes: usize,
    /// Number of concurrent reads.
    pub n_reads: usize,
    /// Bandwidth of the simulated disk in bytes per second.
    pub bandwidth_max: Option<u64>,
    /// Number of threads of the forward pass.
    pub n_threads: usize,
    /// Number of rows of the larger batches.
    pub n_rows: usize,
    /// Each share.
    pub shares: Vec<Share>,
}

/// The measurements with one share of pinned layers.
#[derive(Debug, Clone, Serialize)]
pub struct Share {
    /// The share, in percent.
    pub pinned_percent: u32,
    /// The memory for weights.
    pub memory: StreamMemory,
    /// Bytes read from flash per token.
    pub pass_bytes: u64,
    /// Each round.
    pub rounds: Vec<Round>,
}

/// One period of decoding, and one of larger batches.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Round {
    /// Bytes per second of the sequential reads before and after.
    pub sequential: f64,
    /// Bytes per second that arrived during decoding.
    pub arrived: f64,
    /// Share of the time of decoding during which only reading was in progress.
    pub stalled: f64,
    /// Milliseconds per token.
    pub token_ms: f64,
    /// Milliseconds per step of the larger batches.
    pub batch_ms: f64,
}

impl Share {
    /// The median of a value over the rounds; 0 without rounds.
    pub fn median(&self, of: impl Fn(&Round) -> f64) -> f64 {
        median(self.rounds.iter().map(of).collect()).unwrap_or(0.0)
    }

    /// Whether any weights are read from flash.
    pub fn streams(&self) -> bool {
        self.pass_bytes > 0
    }
}

/// Measures the packed file at `path`. Calls `progress` with (periods done, periods to do).
///
/// # Errors
/// [`BenchError`].
pub fn measure(
    path: &Path,
    bench: &StreamBench,
    mut progress: impl FnMut(usize, usize),
) -> Result<StreamReport, BenchError> {
    let checkpoint = Checkpoint::open(path)?;
    let n_layers = checkpoint.config().n_layers();
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
            let mut options = StreamOptions::new(Pinned::Layers(n_pinned));
            options.bandwidth_max = bench.bandwidth_max;
            let engine = Engine::load(
                &checkpoint,
                EngineOptions {
                    n_threads: bench.n_threads,
                    // Every draft is verified at any cost, so no costs are measured for it.
                    cost_profile: Some(CostProfile::free_rows(1.0)),
                    streaming: Some(options.clone()),
                    ..EngineOptions::default()
                },
                |_, _| {},
            )?;
            if let (0, Some(streamed)) = (round, engine.streamed()) {
                report.read_mode = streamed.read_mode().to_string();
                report.n_threads = engine.device().n_threads();
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
) -> Result<Round, BenchError> {
    let sequential = || {
        let failed = |source| BenchError::Read { path: path.display().to_string(), source };
        let (n_bytes, time) = sequential_read(path, BLOCK_BYTES, N_READS, options).map_err(failed)?;
        Ok::<_, BenchError>((n_bytes as f64, time.as_secs_f64()))
    };
    let mut plain = session(engine, Drafting::Off, bench)?;
    // The first steps include page faults, and the ring learns its order.
    decode(engine, &mut plain, 2)?;
    let before = sequential()?;
    let stretch = decode(engine, &mut plain, bench.n_tokens)?;
    let after = sequential()?;
    let mut batches = session(engine, Drafting::AsClaimed, bench)?;
    // The source claims certainty, but its draft is wrong: the target chooses this token no more often than any
    // other.
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

/// Maximum tokens of a session: a longer context would add time of its own.
const CONTEXT_LEN: usize = 512;

const PROMPT_LEN: usize = 8;

fn session(engine: &Engine, drafting: Drafting, bench: &StreamBench) -> Result<Session, BenchError> {
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

fn decode(engine: &Engine, session: &mut Session, n_tokens: usize) -> Result<Stretch, BenchError> {
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
