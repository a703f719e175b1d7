//! Counts for `/metrics`, in the text format of Prometheus. They have numbers only.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use refrain::Stats;
use refrain::drafting::SharedPasses;

/// Upper bounds of the histograms of seconds.
const BOUNDS: [f64; 10] = [0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

#[derive(Debug, Default)]
pub(crate) struct Metrics {
    pub(crate) requests: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) connections: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    output_tokens: AtomicU64,
    steps: AtomicU64,
    shared_passes: AtomicU64,
    shared_steps: AtomicU64,
    shared_rows: AtomicU64,
    shared_prompt_rows: AtomicU64,
    drafted: AtomicU64,
    accepted: AtomicU64,
    first_token: Histogram,
    duration: Histogram,
    decode_us: AtomicU64,
    prefill_us: AtomicU64,
}

#[derive(Debug, Default)]
struct Histogram {
    counts: [AtomicU64; BOUNDS.len() + 1],
    sum_us: AtomicU64,
}

impl Histogram {
    fn add(&self, time: Duration) {
        let bound = BOUNDS.iter().position(|&bound| time.as_secs_f64() <= bound).unwrap_or(BOUNDS.len());
        add(&self.counts[bound], 1);
        add(&self.sum_us, time.as_micros() as u64);
    }

    fn write(&self, name: &str, help: &str, out: &mut String) {
        head(out, name, help, "histogram");
        let mut total = 0;
        for (bound, count) in BOUNDS.iter().zip(&self.counts) {
            total += get(count);
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {total}");
        }
        total += get(&self.counts[BOUNDS.len()]);
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {total}");
        let _ = writeln!(out, "{name}_sum {}", get(&self.sum_us) as f64 / 1e6);
        let _ = writeln!(out, "{name}_count {total}");
    }
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn head(out: &mut String, name: &str, help: &str, kind: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

/// Values that are read when the metrics are shown.
#[derive(Debug, Default)]
pub(crate) struct Gauges {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    /// Name, bytes of weights, bytes of kept prompts, of each loaded model.
    pub(crate) models: Vec<(String, usize, usize)>,
}

impl Metrics {
    /// Adds an output. `first_token`: from the start of the request's computation.
    pub(crate) fn add_output(&self, stats: &Stats, first_token: Option<Duration>) {
        add(&self.prompt_tokens, stats.prompt_tokens as u64);
        add(&self.cached_tokens, stats.cached_tokens as u64);
        add(&self.output_tokens, stats.tokens as u64);
        add(&self.steps, stats.steps as u64);
        add(&self.drafted, stats.sources.iter().map(|source| source.drafted as u64).sum());
        add(&self.accepted, stats.sources.iter().map(|source| source.accepted as u64).sum());
        add(&self.prefill_us, stats.time_us.prefill as u64);
        add(&self.decode_us, stats.time_us.decode() as u64);
        if let Some(time) = first_token {
            self.first_token.add(time);
        }
    }

    pub(crate) fn add_shared(&self, shared: &SharedPasses) {
        add(&self.shared_passes, shared.passes as u64);
        add(&self.shared_steps, shared.generations as u64);
        add(&self.shared_rows, shared.rows as u64);
        add(&self.shared_prompt_rows, shared.prompt_rows as u64);
    }

    pub(crate) fn add_request(&self, time: Duration) {
        self.duration.add(time);
    }

    /// The metrics as text.
    pub(crate) fn text(&self, gauges: &Gauges) -> String {
        let mut out = String::new();
        let counters: [(&str, &str, f64); 16] = [
            ("requests_total", "Requests to the models.", get(&self.requests) as f64),
            ("requests_refused_total", "Requests that were refused.", get(&self.refused) as f64),
            ("requests_failed_total", "Requests that failed.", get(&self.failed) as f64),
            ("requests_cancelled_total", "Requests whose client has gone.", get(&self.cancelled) as f64),
            ("prompt_tokens_total", "Tokens of prompts.", get(&self.prompt_tokens) as f64),
            (
                "prompt_tokens_cached_total",
                "Tokens of prompts that were not computed again.",
                get(&self.cached_tokens) as f64,
            ),
            ("output_tokens_total", "Tokens of outputs.", get(&self.output_tokens) as f64),
            ("steps_total", "Verification steps.", get(&self.steps) as f64),
            ("shared_passes_total", "Passes with rows of several requests.", get(&self.shared_passes) as f64),
            (
                "shared_steps_total",
                "Verification steps, and parts of prompts, in shared passes.",
                get(&self.shared_steps) as f64,
            ),
            ("shared_rows_total", "Rows of shared passes.", get(&self.shared_rows) as f64),
            (
                "shared_prompt_rows_total",
                "Tokens of prompts that were computed in passes of requests that decode.",
                get(&self.shared_prompt_rows) as f64,
            ),
            ("draft_tokens_total", "Draft tokens that were verified.", get(&self.drafted) as f64),
            ("draft_tokens_accepted_total", "Draft tokens that were accepted.", get(&self.accepted) as f64),
            ("prefill_seconds_total", "Time of prefills.", get(&self.prefill_us) as f64 / 1e6),
            ("decode_seconds_total", "Time of decoding.", get(&self.decode_us) as f64 / 1e6),
        ];
        for (name, help, value) in counters {
            let name = format!("refrain_{name}");
            head(&mut out, &name, help, "counter");
            let _ = writeln!(out, "{name} {value}");
        }
        // By the names of llama.cpp, which dashboards know. Its prompts count what was computed.
        let computed = get(&self.prompt_tokens).saturating_sub(get(&self.cached_tokens));
        let (prefill, decode) = (get(&self.prefill_us) as f64 / 1e6, get(&self.decode_us) as f64 / 1e6);
        let outputs = get(&self.output_tokens);
        let rate = |n: u64, seconds: f64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
        for (name, kind, help, value) in [
            ("prompt_tokens_total", "counter", "Tokens of prompts that were computed.", computed as f64),
            ("prompt_seconds_total", "counter", "Time of prefills.", prefill),
            ("tokens_predicted_total", "counter", "Tokens of outputs.", outputs as f64),
            ("tokens_predicted_seconds_total", "counter", "Time of decoding.", decode),
            ("n_decode_total", "counter", "Verification steps.", get(&self.steps) as f64),
            ("prompt_tokens_seconds", "gauge", "Mean tokens of prompts per second.", rate(computed, prefill)),
            (
                "predicted_tokens_seconds",
                "gauge",
                "Mean tokens of outputs per second.",
                rate(outputs, decode),
            ),
            ("requests_processing", "gauge", "Requests that compute.", gauges.running as f64),
            ("requests_deferred", "gauge", "Requests that wait.", gauges.waiting as f64),
        ] {
            let name = format!("llamacpp:{name}");
            head(&mut out, &name, help, kind);
            let _ = writeln!(out, "{name} {value}");
        }
        self.first_token.write(
            "refrain_first_token_seconds",
            "Time from the start of a computation to its first token.",
            &mut out,
        );
        self.duration.write("refrain_request_seconds", "Time of computations of requests.", &mut out);
        let values = [
            ("refrain_requests_running", "Requests that compute.", gauges.running as u64),
            ("refrain_requests_waiting", "Requests that wait.", gauges.waiting as u64),
            ("refrain_connections", "Open connections.", get(&self.connections)),
        ];
        for (name, help, value) in values {
            head(&mut out, name, help, "gauge");
            let _ = writeln!(out, "{name} {value}");
        }
        let bytes = [
            ("refrain_model_bytes", "Memory of a loaded model."),
            ("refrain_prompts_kept_bytes", "Keys and values of recent prompts."),
        ];
        for (index, (name, help)) in bytes.into_iter().enumerate() {
            head(&mut out, name, help, "gauge");
            for (model, weights, kept) in &gauges.models {
                let model = label(model);
                let _ = writeln!(out, "{name}{{model=\"{model}\"}} {}", [weights, kept][index]);
            }
        }
        out
    }
}

/// The value of a label.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
