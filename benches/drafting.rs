//! The cost of drafting per step (build and observe, by length of context and history), and the cost of the automaton
//! per token, degenerate texts included.
//!
//! `cargo bench --bench drafting`. A step is timed by the clock and by the processor time of its thread. If the system
//! gives the core to another process for some milliseconds, the 99th percentile of the clock rises and that of the
//! processor time does not. The text consists of Zipf-like random words in recurring sentences, so that matches of
//! every length occur. The walk follows the text, and the sources learn from it, as in a real step.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use refrain::drafting::{
    DraftSource, DraftTree, NodeIdx, ReuseConfig, StepOutcome, Successor, SuccessorLists,
};
use refrain::internals::draft::{
    BuilderConfig, ContextSource, CostProfile, PredictionsSource, ResumeSource, SUCCESSORS_MAX, StepLimits,
    TreeBuilder,
};
use refrain::{HistoryStore, TokenId};
use refrain_trees::sam::SuffixAutomaton;
use rustix::time::{ClockId, clock_gettime};

const VOCAB_SIZE: u32 = 50_000;

/// xorshift64*, so that the bench needs no dependency and every run sees the same text.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) * u64::from(n)) >> 32) as u32
    }

    /// Frequent tokens are small numbers: the logarithm is uniform, as in Zipf's law.
    fn token(&mut self) -> u32 {
        let log = f64::from(self.below(1 << 20)) / f64::from(1 << 20);
        (f64::from(VOCAB_SIZE).powf(log) - 1.0) as u32
    }
}

/// Text in which a fifth of the tokens are copies of earlier stretches of 3 to 30 tokens.
fn text(n: usize, seed: u64) -> Vec<TokenId> {
    let mut rng = Rng(seed);
    let mut tokens: Vec<TokenId> = Vec::with_capacity(n + 30);
    while tokens.len() < n {
        if tokens.len() > 100 && rng.below(64) == 0 {
            let len = 3 + rng.below(28) as usize;
            let start = rng.below((tokens.len() - len) as u32) as usize;
            tokens.extend_from_within(start..start + len);
        } else {
            tokens.push(TokenId(rng.token()));
        }
    }
    tokens.truncate(n);
    tokens
}

fn raw(tokens: &[TokenId]) -> Vec<u32> {
    tokens.iter().map(|token| token.0).collect()
}

fn extend(c: &mut Criterion) {
    let mut group = c.benchmark_group("sam/extend");
    let n = 100_000;
    let texts = [
        ("text", raw(&text(n, 1))),
        ("one_token", vec![7; n]),
        ("periodic", (0..n as u32).map(|i| i % 7).collect()),
        (
            "random",
            raw(&(0..n as u64).map(|i| TokenId(Rng(i * 77 + 1).below(VOCAB_SIZE))).collect::<Vec<_>>()),
        ),
        ("all_different", (0..n as u32).collect()),
    ];
    group.throughput(Throughput::Elements(n as u64)).sample_size(10).measurement_time(Duration::from_secs(3));
    for (name, text) in &texts {
        let mut automaton = SuffixAutomaton::new();
        automaton.extend_all(text).expect("below the bound");
        println!("{name}: {:.1} bytes per token", automaton.memory_usage() as f64 / n as f64);
        group.bench_function(*name, |b| {
            b.iter_batched_ref(
                SuffixAutomaton::new,
                |automaton| automaton.extend_all(black_box(text)),
                BatchSize::LargeInput,
            );
        });
    }
}

/// For each position of `text` a full list, which contains the text's next token.
fn likely_successors(text: &[TokenId]) -> SuccessorLists {
    let mut rng = Rng(5);
    let mut lists = SuccessorLists::new();
    for next in text.iter().skip(1) {
        let mut list = [Successor { token: *next, log_probability: -3.0 }; SUCCESSORS_MAX];
        for (successor, rank) in list.iter_mut().zip(1u8..) {
            if rng.below(2) == 0 {
                successor.token = TokenId(rng.token());
            }
            successor.log_probability = -f32::from(rank);
        }
        lists.push(&list);
    }
    lists
}

/// Processor time of this thread.
fn cpu_micros() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e6 + time.tv_nsec as f64 / 1e3
}

/// The quantile `q` of the values.
fn quantile(values: &mut [f64], q: f64) -> f64 {
    let at = (q * (values.len() - 1) as f64) as usize;
    *values.select_nth_unstable_by(at, f64::total_cmp).1
}

/// A session in the middle of decoding a long text.
struct Session {
    text: Vec<TokenId>,
    start: usize,
    position: usize,
    sources: Vec<Box<dyn DraftSource>>,
    builder: TreeBuilder,
    costs: CostProfile,
    tree: DraftTree,
    /// Successors of all positions of the text. If empty: without calibration and reuse.
    successors: SuccessorLists,
    n_rows: usize,
    micros: Vec<f64>,
    cpu_micros: Vec<f64>,
}

impl Session {
    fn new(context_len: usize, history_len: usize, is_calibrated: bool) -> Self {
        let text = text(context_len * 5 / 4 + history_len, 9);
        let (history, text) = text.split_at(history_len);
        let store = Arc::new(HistoryStore::with_tokens_max(4 << 20));
        history.chunks(200).for_each(|response| store.append("bench", response));
        let mut sources: Vec<Box<dyn DraftSource>> =
            vec![Box::new(ContextSource::new()), Box::new(ResumeSource::new())];
        if history_len > 0 {
            sources.push(Box::new(store.source("bench")));
        }
        let mut successors = SuccessorLists::new();
        if is_calibrated {
            sources.push(Box::new(PredictionsSource::new(Some(ReuseConfig::default()))));
            successors = likely_successors(text);
        }
        let mut before = successors.clone();
        before.truncate(context_len);
        for source in &mut sources {
            if let Some(source) = source.target_listener() {
                source.calibrate(text, 0, &before);
            }
            source.prime(&text[..context_len]);
        }
        Session {
            text: text.to_vec(),
            successors,
            start: context_len,
            position: context_len,
            sources,
            builder: TreeBuilder::new(BuilderConfig::new(VOCAB_SIZE as usize)),
            // Nearly flat, so that trees have their maximum size.
            costs: CostProfile::from_measurements(&[(1, 20_000.0), (32, 21_000.0)]),
            tree: DraftTree::default(),
            n_rows: 0,
            micros: Vec::new(),
            cpu_micros: Vec::new(),
        }
    }

    /// Build, walk along the text, observe: the time of one step. The walk takes a few comparisons.
    fn step(&mut self) -> Duration {
        if self.position + 64 >= self.text.len() {
            self.position = self.start;
            let mut before = self.successors.clone();
            before.truncate(self.start);
            self.sources.iter_mut().for_each(|source| {
                source.truncate(0);
                if let Some(source) = source.target_listener() {
                    source.calibrate(&self.text, 0, &before);
                }
                source.prime(&self.text[..self.start]);
            });
        }
        // The restart above is not part of a step.
        let (started, cpu_started) = (Instant::now(), cpu_micros());
        let Session { text, position, sources, builder, costs, tree, successors, .. } = self;
        builder.build(sources, &text[..*position], StepLimits::NONE, costs, tree);
        let mut accepted = [NodeIdx::ROOT; 64];
        let mut n = 0;
        let mut node = NodeIdx::ROOT;
        while let Some(child) = tree.child(node, text[*position + n]) {
            accepted[n] = child;
            node = child;
            n += 1;
        }
        let new_tokens = &text[*position..=*position + n];
        let mut visited = SuccessorLists::new();
        if !successors.is_empty() {
            for position in *position - 1..*position + n {
                visited.push(&successors.list(position).collect::<Vec<_>>());
            }
            let listeners = sources.iter_mut().filter_map(|source| source.target_listener());
            listeners.for_each(|source| source.calibrate(text, *position - 1, &visited));
        }
        *position += n + 1;
        let outcome = StepOutcome { tree, accepted: &accepted[..n], new_tokens };
        builder.observe(sources, &text[..*position], &outcome);
        let elapsed = started.elapsed();
        self.n_rows += self.tree.len();
        self.cpu_micros.push(cpu_micros() - cpu_started);
        self.micros.push(elapsed.as_secs_f64() * 1e6);
        elapsed
    }
}

fn step(c: &mut Criterion) {
    let mut group = c.benchmark_group("draft/step");
    let cases = [(2_000, 0, false), (8_000, 0, false), (8_000, 0, true), (8_000, 1_000_000, false)];
    for (context_len, history_len, is_calibrated) in cases {
        let mut session = Session::new(context_len, history_len, is_calibrated);
        let calibrated = if is_calibrated { "_calibrated" } else { "" };
        let id =
            BenchmarkId::from_parameter(format!("{context_len}_context_{history_len}_history{calibrated}"));
        group.bench_function(id, |b| b.iter_custom(|n| (0..n).map(|_| session.step()).sum()));
        if session.micros.is_empty() {
            continue; // left out by the filter of the command line
        }
        let rows = session.n_rows as f64 / session.micros.len() as f64;
        println!(
            "{context_len} context, {history_len} history{calibrated}: {rows:.1} rows; µs per step: median {:.1}, p99 {:.1}; of processor time: median {:.1}, p99 {:.1}, most {:.1}",
            quantile(&mut session.micros, 0.5),
            quantile(&mut session.micros, 0.99),
            quantile(&mut session.cpu_micros, 0.5),
            quantile(&mut session.cpu_micros, 0.99),
            quantile(&mut session.cpu_micros, 1.0),
        );
    }
    group.finish();
}

criterion_group!(benches, extend, step);
criterion_main!(benches);
