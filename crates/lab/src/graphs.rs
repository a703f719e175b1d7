//! Measures the cost of graph changes during a prefill, on a model of static graphs, and simulates it from measured
//! or given times.

use std::fmt::Write as _;
use std::time::Instant;

use refrain::internals::model::graphs::{GraphMemory, StaticGraphs, Switching};
use refrain::internals::schedule::exact::exact;
use refrain::internals::schedule::{
    GraphKind, Plan, Prefill, SwitchTimes, asynchronous, progressive, simulate, synchronous,
};
use refrain::{CancelToken, Drafting, Engine, SessionOptions, TokenId};
use serde::Serialize;

use crate::BenchError;
use crate::tally::median;

/// The times of a prefill with each method of changing graphs.
#[derive(Debug, Clone, Serialize)]
pub struct GraphsReport {
    /// The origin of the times.
    pub label: String,
    /// Number of rows of the prefill.
    pub n_rows: usize,
    /// Number of rows of a chunk.
    pub chunk_len: usize,
    /// Number of blocks of layers.
    pub n_blocks: usize,
    /// The prefill with prefill graphs only; simulated, ms.
    pub prefill_simulated_ms: f64,
    /// The same, measured: the median of the synchronous runs up to the first change, ms.
    pub prefill_measured_ms: Option<f64>,
    /// Each method.
    pub ways: Vec<Way>,
    /// The memory for weights, if a model was run.
    pub memory: Option<GraphMemory>,
}

/// A method of changing graphs.
#[derive(Debug, Clone, Serialize)]
pub struct Way {
    /// Its name.
    pub name: &'static str,
    /// Number of blocks that change before the last chunk.
    pub n_early: usize,
    /// Time until the prompt is prefilled and every block has its verify graph; simulated, ms.
    pub simulated_ms: f64,
    /// The same, measured, for all rounds, ascending, ms.
    pub measured_ms: Vec<f64>,
}

impl Way {
    /// The median of the rounds.
    pub fn median_ms(&self) -> Option<f64> {
        median(self.measured_ms.clone())
    }
}

/// The plans for a prefill that begins with prefill graphs, from its times. Includes the optimal plan if it can be
/// computed.
fn plans(times: &SwitchTimes, prefill: &Prefill) -> Vec<(&'static str, Plan)> {
    let initial = vec![GraphKind::Prefill; times.blocks.len()];
    let mut plans = vec![
        ("synchronous", synchronous(prefill, &initial)),
        ("asynchronous", asynchronous(prefill, &initial)),
        ("progressive", progressive(times, prefill, &initial)),
    ];
    plans.extend(exact(times, prefill).map(|(plan, _)| ("exact", plan)));
    plans
}

/// Simulates a prefill of `n_rows` rows in whole prefill graphs.
pub fn simulated(times: &SwitchTimes, n_rows: usize) -> GraphsReport {
    let prefill = Prefill::new(0, n_rows, times.prefill_len);
    let initial = vec![GraphKind::Prefill; times.blocks.len()];
    let total_ms = |plan: &Plan| {
        let timeline = simulate(times, &prefill, &initial, plan);
        timeline.expect("plans made here can be followed").total_us / 1e3
    };
    let last = prefill.chunks.len().saturating_sub(1);
    let ways = plans(times, &prefill).into_iter().map(|(name, plan)| Way {
        name,
        n_early: plan.loads.iter().filter(|load| load.after.is_none_or(|after| after < last)).count(),
        simulated_ms: total_ms(&plan),
        measured_ms: Vec::new(),
    });
    GraphsReport {
        label: times.label.clone(),
        n_rows,
        chunk_len: times.prefill_len,
        n_blocks: times.blocks.len(),
        prefill_simulated_ms: total_ms(&Plan::default()),
        prefill_measured_ms: None,
        ways: ways.collect(),
        memory: None,
    }
}

/// Runs the prefill of `n_rows` rows `rounds` times with each method in turn, and simulates it from the engine's
/// times. Each run begins with prefill graphs in every block and ends when every block has its verify graph.
///
/// # Errors
/// [`BenchError`].
pub fn measured(
    engine: &Engine,
    n_rows: usize,
    rounds: usize,
    mut progress: impl FnMut(usize, usize),
) -> Result<GraphsReport, BenchError> {
    let graphs = engine.graphs().ok_or(BenchError::NoGraphs)?;
    let times = graphs.times().ok_or(BenchError::NoGraphs)?;
    let mut report = simulated(&times, n_rows);
    let plans = plans(&times, &Prefill::new(0, n_rows, times.prefill_len));
    let mut session = engine.session(SessionOptions {
        context_len: Some(n_rows + 1),
        drafting: Drafting::Off,
        history: false,
        prefill_chunk: times.prefill_len,
        ..SessionOptions::default()
    })?;
    let vocab_size = engine.config().vocab_size as u32;
    let tokens: Vec<TokenId> =
        (0..=n_rows as u32).map(|i| TokenId(i.wrapping_mul(2_654_435_761) % vocab_size)).collect();
    let mut prefill_ms = Vec::new();
    let n_runs = (rounds + 1) * plans.len();
    for run in 0..n_runs {
        let (name, plan) = &plans[run % plans.len()];
        graphs.load_all(GraphKind::Prefill)?;
        match *name {
            "synchronous" => graphs.set_switching(Switching::Synchronous),
            "asynchronous" => graphs.set_switching(Switching::Asynchronous),
            "progressive" => graphs.set_switching(Switching::Progressive),
            _ => graphs.set_plan(plan.clone()),
        }
        session.truncate(0)?;
        session.append_tokens(&tokens)?;
        let start = Instant::now();
        session.prefill(&CancelToken::new(), |_, _| {})?;
        let computed_ms = start.elapsed().as_secs_f64() * 1e3;
        graphs.wait()?;
        let total_ms = start.elapsed().as_secs_f64() * 1e3;
        // The first round includes page faults.
        if run >= plans.len() {
            report.ways[run % plans.len()].measured_ms.push(total_ms);
            if *name == "synchronous" {
                prefill_ms.push(computed_ms);
            }
        }
        progress(run + 1, n_runs);
    }
    report.ways.iter_mut().for_each(|way| way.measured_ms.sort_by(f64::total_cmp));
    report.prefill_measured_ms = median(prefill_ms);
    report.memory = Some(graphs.memory());
    Ok(report)
}

/// The report as a table.
pub fn write(report: &GraphsReport) -> String {
    let mut out = String::new();
    let GraphsReport { label, n_rows, chunk_len, n_blocks, .. } = report;
    // Writing to a string never fails.
    let _ = writeln!(out, "{label}\nprefill of {n_rows} rows in chunks of {chunk_len}, {n_blocks} blocks\n");
    let _ = writeln!(
        out,
        "| | blocks changed early | simulated ms | added | measured ms | added | simulated by |"
    );
    let _ = writeln!(out, "| --- | --- | --- | --- | --- | --- | --- |");
    let row = |name: &str, early: String, simulated_ms: f64, measured_ms: Option<f64>| {
        let added = |ms: f64, of: Option<f64>| match of {
            Some(of) if of > 0.0 => format!("{:+.1} %", (ms / of - 1.0) * 100.0),
            _ => String::new(),
        };
        let simulated_added = added(simulated_ms, Some(report.prefill_simulated_ms));
        let (measured, measured_added, off) = match measured_ms {
            Some(ms) => {
                (format!("{ms:.1}"), added(ms, report.prefill_measured_ms), added(simulated_ms, Some(ms)))
            }
            None => Default::default(),
        };
        format!(
            "| {name} | {early} | {simulated_ms:.1} | {simulated_added} | {measured} | {measured_added} | {off} |"
        )
    };
    let _ = writeln!(
        out,
        "{}",
        row("no change", String::new(), report.prefill_simulated_ms, report.prefill_measured_ms)
    );
    for way in &report.ways {
        let _ =
            writeln!(out, "{}", row(way.name, way.n_early.to_string(), way.simulated_ms, way.median_ms()));
    }
    if let Some(memory) = &report.memory {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let (limit, peak) = (mib(memory.limit_bytes), mib(memory.peak_bytes));
        let _ = writeln!(out, "\nmemory for weights: limit {limit:.1} MiB, at most {peak:.1} MiB were held");
    }
    out
}

/// The source of the graphs, for the report's heading.
pub fn conditions(graphs: &StaticGraphs) -> String {
    let bytes = graphs.graphs_bytes(GraphKind::Verify) as f64;
    let us: f64 =
        graphs.times().map_or(0.0, |times| times.blocks.iter().map(|block| block.verify.load_us).sum());
    let mode = graphs.read_mode();
    format!("graphs of {:.1} MB, read at {:.2} GB/s ({mode:?})", bytes / 1e6, bytes / us.max(1.0) / 1e3)
}
