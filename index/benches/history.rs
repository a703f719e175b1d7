//! Measures drafting from 10 M tokens of history on disk: the time of a lookup and of opening, and the
//! memory.
//!
//! ```sh
//! cargo bench -p refrain-index --bench history
//! ```
//!
//! The history is generated once, in the target folder, which takes a minute. It consists of responses of a
//! hundred tokens, made of recurring phrases with some words changed. The followed texts are generated in the
//! same way and are not part of the history. A *lookup* is the work of one decoding step: two new tokens are
//! followed, and all anchors are expanded.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use refrain::TokenId;
use refrain::drafting::{Candidates, Cursor, DraftSource};
use refrain_index::{HistoryKey, HistoryLog, HistoryLogSource, HistoryOptions, SyncPolicy};

const KEY: HistoryKey = HistoryKey { tokenizer: 10, model: 1 };
const N_TOKENS: usize = 10_000_000;
const RESPONSE_TOKENS: usize = 100;
const N_PHRASES: usize = 60_000;
const N_WORDS: f64 = 50_000.0;
const NAMESPACE: &str = "bench";

/// SplitMix64.
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A number from 0 to `n`; small numbers are more frequent, like word frequencies (Zipf, by inversion of
    /// 1/x).
    fn zipf(&mut self, n: f64) -> usize {
        let uniform = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        (n.powf(uniform)) as usize
    }
}

/// Generates responses.
struct Writer {
    phrases: Vec<Vec<TokenId>>,
    rng: Rng,
}

impl Writer {
    fn new(seed: u64) -> Self {
        let mut rng = Rng(1);
        let phrase = |_| {
            let n_words = 4 + rng.below(16);
            (0..n_words).map(|_| TokenId(rng.zipf(N_WORDS) as u32)).collect()
        };
        Writer { phrases: (0..N_PHRASES).map(phrase).collect(), rng: Rng(seed) }
    }

    fn response(&mut self) -> Vec<TokenId> {
        let mut response = Vec::with_capacity(2 * RESPONSE_TOKENS);
        while response.len() < RESPONSE_TOKENS {
            let phrase = self.rng.zipf(N_PHRASES as f64) % N_PHRASES;
            for &token in &self.phrases[phrase] {
                let changed = self.rng.below(12) == 0;
                response.push(if changed { TokenId(self.rng.zipf(N_WORDS) as u32) } else { token });
            }
        }
        response.truncate(RESPONSE_TOKENS);
        response
    }
}

fn options() -> HistoryOptions {
    // Encrypted if the variable is set.
    let key = std::env::var_os("REFRAIN_BENCH_KEY").map(|_| [7; 32]);
    HistoryOptions { sync: SyncPolicy::Never, key, ..HistoryOptions::default() }
}

/// The folder of the history, which is generated if it does not exist.
fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(if options().key.is_some() {
        "history-10m-key"
    } else {
        "history-10m"
    });
    let log = HistoryLog::open(&folder, KEY, options()).expect("opens");
    let held: u64 = log.stats().namespaces.iter().map(|namespace| namespace.n_tokens).sum();
    if held < N_TOKENS as u64 {
        eprintln!("making a history of {N_TOKENS} tokens in {}", folder.display());
        let start = Instant::now();
        let mut writer = Writer::new(3);
        for i in held as usize / RESPONSE_TOKENS..N_TOKENS / RESPONSE_TOKENS {
            log.append(NAMESPACE, &writer.response()).expect("appends");
            if i % 500 == 0 {
                log.maintain().expect("merges");
            }
        }
        log.maintain().expect("merges");
        eprintln!("made in {:.1} s", start.elapsed().as_secs_f64());
    }
    folder
}

/// Follows a text two tokens at a time and passes the time and the number of candidates of each lookup to
/// `each`.
fn follow(source: &mut HistoryLogSource, text: &[TokenId], mut each: impl FnMut(Duration, usize)) {
    let (mut anchors, mut frontier) = (Vec::new(), Vec::<Cursor>::new());
    let mut candidates = Candidates::with_limit(64);
    for end in (2..=text.len()).step_by(2) {
        let start = Instant::now();
        anchors.clear();
        candidates.clear();
        frontier.clear();
        source.anchors(&text[..end], &mut anchors);
        frontier.extend(anchors.iter().map(|anchor| anchor.cursor));
        source.expand(&frontier, &mut candidates);
        each(start.elapsed(), candidates.as_slice().len());
    }
    source.truncate(0);
}

/// Prints the times of single lookups, the share of lookups with candidates, and the memory.
fn report(log: &HistoryLog, texts: &[Vec<TokenId>]) {
    let mut source = log.source(NAMESPACE);
    let (mut us, mut n_proposing) = (Vec::new(), 0);
    for text in texts {
        follow(&mut source, text, |time, n_candidates| {
            us.push(time.as_secs_f64() * 1e6);
            n_proposing += usize::from(n_candidates > 0);
        });
    }
    us.sort_by(f64::total_cmp);
    let at = |share: f64| us[((us.len() - 1) as f64 * share) as usize];
    let stats = log.stats();
    println!(
        "{} lookups in {} tokens and {} segments: median {:.1} µs, 90 % {:.1}, 99 % {:.1}, longest {:.0}; {:.0} % propose",
        us.len(),
        stats.namespaces[0].n_tokens,
        stats.namespaces[0].n_segments,
        at(0.5),
        at(0.9),
        at(0.99),
        at(1.0),
        100.0 * n_proposing as f64 / us.len() as f64,
    );
    println!(
        "memory of the store {:.1} MiB, of the source {:.2}",
        mib(stats.memory_bytes),
        mib(source.memory_usage() as usize)
    );
}

fn mib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

fn bench(c: &mut Criterion) {
    let folder = folder();
    let start = Instant::now();
    let log = HistoryLog::open(&folder, KEY, options()).expect("opens");
    println!("opened in {:.1} ms", start.elapsed().as_secs_f64() * 1e3);
    let mut writer = Writer::new(4);
    let texts: Vec<Vec<TokenId>> = (0..400).map(|_| writer.response()).collect();
    // The first pass fills the cache; the second shows the usual state of an app.
    report(&log, &texts[..200]);
    report(&log, &texts[200..]);

    let mut source = log.source(NAMESPACE);
    let mut next = 0;
    c.bench_function("history/lookup", |b| {
        b.iter_custom(|n_lookups| {
            let (mut total, mut n_left) = (Duration::ZERO, n_lookups);
            while n_left > 0 {
                follow(&mut source, &texts[next % texts.len()], |time, _| {
                    if n_left > 0 {
                        (total, n_left) = (total + time, n_left - 1);
                    }
                });
                next += 1;
            }
            total
        });
    });
    drop((source, log));
    c.bench_function("history/open", |b| {
        b.iter(|| HistoryLog::open(&folder, KEY, options()).expect("opens"));
    });
}

criterion_group!(benches, bench);
criterion_main!(benches);
