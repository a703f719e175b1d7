//! Decodes within a memory budget under repeated memory pressure. Tests whether the process stays within its budget
//! and whether the output stays the same.
//!
//! A streamed model decodes the same answer again and again. Another thread reports memory pressure at even
//! intervals, alternately rising and falling. Every answer is compared with the first one, which precedes all
//! reports. The peak memory is the system's number, so it includes the program's own pages and the memory for
//! loading.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use refrain::checkpoint::Checkpoint;
use refrain::device::MemoryPressure;
use refrain::drafting::Calibration;
use refrain::internals::model::streamed::StreamMemory;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{Engine, EngineOptions, GenerateOptions, Session, SessionOptions, TokenId};
use serde::Serialize;

use crate::BenchError;

/// The parameters.
#[derive(Debug, Clone)]
pub struct PressureBench {
    /// Memory budget of the process, in bytes.
    pub budget: u64,
    /// Duration.
    pub time: Duration,
    /// Number of reports in that time.
    pub n_reports: usize,
    /// Number of tokens of an answer.
    pub n_tokens: usize,
    /// Number of threads of the forward pass.
    pub n_threads: Option<usize>,
}

/// Memory outside the budget: the program itself, its stacks, and the allocator's reserve.
pub const ALLOWANCE: u64 = 64 << 20;

/// The result.
#[derive(Debug, Clone, Serialize)]
pub struct PressureReport {
    /// The model.
    pub model: String,
    /// Length of its file, in bytes.
    pub file_bytes: u64,
    /// The memory budget, in bytes.
    pub budget: u64,
    /// Peak memory of the process (`VmHWM`), in bytes.
    pub peak_bytes: u64,
    /// Whether the peak is within the budget plus [`ALLOWANCE`].
    pub is_within: bool,
    /// The memory for weights without pressure.
    pub memory: StreamMemory,
    /// Seconds from the first report to the end.
    pub seconds: f64,
    /// Number of reports.
    pub n_reports: usize,
    /// Number of reports answered by steps. Several reports between two steps count once.
    pub n_answered: usize,
    /// Number of answers compared with the first one. The last may be incomplete.
    pub n_answers: usize,
    /// Number of tokens of these answers.
    pub n_tokens: usize,
    /// The smallest and the largest number of pinned layers after a report.
    pub n_pinned_layers: (usize, usize),
}

/// The length of the prompt in tokens: enough for calibration, and a small part of the time.
const PROMPT_LEN: usize = 64;

/// Runs the packed file at `path`. Calls `progress` with (seconds done, seconds to do).
///
/// # Errors
/// [`BenchError`].
pub fn measure(
    path: &Path,
    bench: &PressureBench,
    mut progress: impl FnMut(u64, u64),
) -> Result<PressureReport, BenchError> {
    let checkpoint = Checkpoint::open(path)?;
    let options = session_options(bench);
    let engine = load(&checkpoint, bench, &options)?;
    let Some(streamed) = engine.streamed().filter(|streamed| streamed.pass_bytes() > 0) else {
        let (model, budget) = (checkpoint.name().to_owned(), bench.budget);
        return Err(BenchError::NotStreamed { model, budget });
    };
    let memory = streamed.memory();
    let mut session = engine.session(options)?;
    let word: Vec<TokenId> = (1..=16).map(TokenId).collect();
    session.append_tokens(&word.repeat(PROMPT_LEN / word.len()))?;
    let far = Instant::now() + Duration::from_secs(1 << 20);
    let (first, _) = answer(&mut session, bench.n_tokens, far)?;

    let start = Instant::now();
    let end = start + bench.time;
    let n_reports = AtomicUsize::new(0);
    let (mut n_answers, mut n_tokens, mut n_answered) = (0, 0, 0);
    let n_pinned = std::thread::scope(|scope| {
        let (stop, stopped) = mpsc::channel::<()>();
        let reporter = std::thread::Builder::new()
            .spawn_scoped(scope, || report(&engine, bench, start, &n_reports, stopped))
            .map_err(BenchError::Spawn)?;
        while Instant::now() < end {
            let (tokens, n_reports) = answer(&mut session, bench.n_tokens, end)?;
            let pairs = tokens.iter().zip(&first);
            if let Some((place, (found, expected))) = pairs.enumerate().find(|(_, (a, b))| a != b) {
                let (found, expected) = (found.0, expected.0);
                return Err(BenchError::Differs { n_answer: n_answers + 1, place, found, expected });
            }
            n_answers += 1;
            n_tokens += tokens.len();
            n_answered += n_reports;
            let seconds = |time: Duration| time.as_secs();
            progress(seconds(start.elapsed().min(bench.time)), seconds(bench.time));
        }
        drop(stop);
        Ok(reporter.join().expect("the reporter does not panic"))
    })?;
    let peak_bytes = peak_bytes().ok_or(BenchError::NoPeak)?;
    Ok(PressureReport {
        model: checkpoint.name().to_owned(),
        file_bytes: std::fs::metadata(path).map_or(0, |metadata| metadata.len()),
        budget: bench.budget,
        peak_bytes,
        is_within: peak_bytes <= bench.budget + ALLOWANCE,
        memory,
        seconds: start.elapsed().as_secs_f64(),
        n_reports: n_reports.into_inner(),
        n_answered,
        n_answers,
        n_tokens,
        n_pinned_layers: n_pinned,
    })
}

fn session_options(bench: &PressureBench) -> SessionOptions {
    SessionOptions {
        context_len: Some(PROMPT_LEN + bench.n_tokens),
        calibration: Calibration::InContext,
        history: false,
        prefill_chunk: PROMPT_LEN,
        ..SessionOptions::default()
    }
}

/// Opens the model within the budget, with memory left for the session.
fn load(
    checkpoint: &Checkpoint,
    bench: &PressureBench,
    options: &SessionOptions,
) -> Result<Engine, BenchError> {
    let reserved_bytes = options.memory_bytes(checkpoint.config());
    let mut streaming = StreamOptions::new(Pinned::Memory(bench.budget));
    streaming.reserved_bytes = reserved_bytes;
    let options =
        EngineOptions { n_threads: bench.n_threads, streaming: Some(streaming), ..EngineOptions::default() };
    Ok(Engine::load(checkpoint, options, |_, _| {})?)
}

/// Decodes the answer again until `end`. Returns its tokens and the number of reports answered meanwhile.
fn answer(session: &mut Session, n_tokens: usize, end: Instant) -> Result<(Vec<TokenId>, usize), BenchError> {
    session.truncate(PROMPT_LEN)?;
    let options = GenerateOptions { max_tokens: n_tokens, ignore_eos: true, ..GenerateOptions::default() };
    let mut tokens = Vec::with_capacity(n_tokens);
    let summary = session.generate(options)?.run(|token| {
        tokens.push(token.id);
        if Instant::now() < end { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    Ok((tokens, summary.stats.policy.memory_reports))
}

/// Reports at even intervals, until all reports are made or the sender of `stopped` is dropped. Returns the smallest
/// and the largest number of pinned layers.
fn report(
    engine: &Engine,
    bench: &PressureBench,
    start: Instant,
    n_made: &AtomicUsize,
    stopped: mpsc::Receiver<()>,
) -> (usize, usize) {
    use MemoryPressure::{Critical, Normal, Warning};
    const LEVELS: [MemoryPressure; 6] = [Warning, Critical, Normal, Critical, Critical, Normal];
    let interval = bench.time / bench.n_reports.max(1) as u32;
    let (mut least, mut most) = (usize::MAX, 0);
    for i in 0..bench.n_reports {
        engine.device().set_memory_pressure(LEVELS[i % LEVELS.len()]);
        n_made.fetch_add(1, Ordering::Relaxed);
        let next = start + interval * (i as u32 + 1);
        let waited = stopped.recv_timeout(next.saturating_duration_since(Instant::now()));
        // Read just before the next report. If steps are short enough, this report has been answered.
        let n_pinned = engine.streamed().map_or(0, |streamed| streamed.memory().n_pinned_layers);
        (least, most) = (least.min(n_pinned), most.max(n_pinned));
        if waited == Err(mpsc::RecvTimeoutError::Disconnected) {
            break;
        }
    }
    (least, most)
}

/// The peak resident set, including shared pages; `None` where the system does not say.
pub fn peak_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The report as text.
pub fn write(report: &PressureReport) -> String {
    let mib = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    let (least, most) = report.n_pinned_layers;
    format!(
        "{}: {:.0} MiB, streamed within {:.0} MiB ({} layers pinned without pressure, buffers of {:.0} MiB)\n\
         {} reports of memory pressure in {:.0} s, {} answered by steps; between {least} and {most} layers pinned\n\
         {} answers with {} tokens ({:.2} tokens/s), each the same as without pressure\n\
         peak of resident memory: {:.1} MiB, {} the budget and 64 MiB\n",
        report.model,
        mib(report.file_bytes),
        mib(report.budget),
        report.memory.n_pinned_layers,
        mib(report.memory.ring_bytes),
        report.n_reports,
        report.seconds,
        report.n_answered,
        report.n_answers,
        report.n_tokens,
        report.n_tokens as f64 / report.seconds.max(1e-9),
        mib(report.peak_bytes),
        if report.is_within { "within" } else { "BEYOND" },
    )
}
