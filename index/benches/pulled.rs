//! Measures drafting from segments of other hosts by their number: a search visits every segment.
//!
//! ```sh
//! cargo bench -p refrain-index --bench pulled
//! ```
//!
//! Each host has 30,000 tokens, responses of a hundred made of recurring phrases of ten tokens. A *step* is the work of one decoding
//! step: two new tokens are followed, and all anchors are expanded.

use std::path::Path;
use std::time::Instant;

use refrain::TokenId;
use refrain::drafting::{Candidates, Cursor, DraftSource};
use refrain_index::{HistoryKey, HistoryLog, HistoryOptions, SyncPolicy};

const KEY: HistoryKey = HistoryKey { tokenizer: 1, model: 1 };
const N_RESPONSES: usize = 300;

/// Xorshift (Marsaglia 2003).
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }

    fn response(&mut self) -> Vec<TokenId> {
        let phrase = |phrase: u64| {
            (0..10).map(move |i| TokenId((phrase.wrapping_mul(7919) + i * i * 31) as u32 % 50_000))
        };
        (0..10).flat_map(|_| phrase(self.below(20_000))).collect()
    }
}

fn open(folder: &Path) -> HistoryLog {
    let options = HistoryOptions { sync: SyncPolicy::Never, ..HistoryOptions::default() };
    HistoryLog::open(folder, KEY, options).expect("opens")
}

fn main() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut rng = Rng(1);
    println!("| segments | pulled MB | µs per step: median | 90 % | 99 % | memory, MiB |");
    println!("| ---: | ---: | ---: | ---: | ---: | ---: |");
    let here = open(&folder.path().join("here"));
    let mut n_hosts = 0;
    for n in [1, 4, 16, HistoryLog::PULLED_MAX] {
        while n_hosts < n {
            let host = open(&folder.path().join(n_hosts.to_string()));
            for _ in 0..N_RESPONSES {
                host.append("a", &rng.response()).expect("appends");
            }
            let export = host.export("a", None).expect("exports");
            for segment in export.segments() {
                let mut incoming = here.put_pulled("a", segment.name).expect("creates");
                incoming.write(&std::fs::read(&segment.path).expect("a file")).expect("writes");
                incoming.finish().expect("sound");
            }
            n_hosts += 1;
        }
        here.maintain().expect("reads");
        let stats = here.stats();
        assert_eq!(stats.namespaces[0].n_pulled, n);
        let mut source = here.source("a");
        let (mut us, mut candidates) = (Vec::new(), Candidates::with_limit(64));
        let (mut anchors, mut frontier) = (Vec::new(), Vec::<Cursor>::new());
        for _ in 0..200 {
            let text = rng.response();
            for end in (2..=text.len()).step_by(2) {
                let start = Instant::now();
                anchors.clear();
                candidates.clear();
                frontier.clear();
                source.anchors(&text[..end], &mut anchors);
                frontier.extend(anchors.iter().map(|anchor| anchor.cursor));
                source.expand(&frontier, &mut candidates);
                us.push(start.elapsed().as_secs_f64() * 1e6);
            }
            source.truncate(0);
        }
        us.sort_by(f64::total_cmp);
        let at = |share: f64| us[((us.len() - 1) as f64 * share) as usize];
        println!(
            "| {n} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} |",
            stats.namespaces[0].pulled_bytes as f64 / 1e6,
            at(0.5),
            at(0.9),
            at(0.99),
            here.stats().memory_bytes as f64 / f64::from(1 << 20),
        );
    }
}
