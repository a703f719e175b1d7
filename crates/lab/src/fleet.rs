//! Simulates workers that share their answers with a delay, on recorded rows.
//!
//! The rows that belong to sessions arrive one after the other, at a fixed interval, some sessions at a time. Each row goes to a
//! worker, chosen at random without regard to its session: the worst case, in which sharing matters most. An answer is history for
//! later rows of its session: on its own worker as soon as it is finished, on the others after the delay. Only a row's own
//! session is its history, because answers to one prompt by several models are near copies of one another.
//!
//! Bytes are those of the crate `refrain-fleet`: per worker and session (its namespace), the answers so far are published
//! as one segment whenever there are new ones, once per delay, and pulled by each other worker that has served the session.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use refrain::TokenId;

use crate::costs::Costs;
use crate::replay::{Lane, Setting, Wanted};
use crate::rows::TokenRow;
use crate::strategy::{Sources, Strategy};
use crate::tally::Tally;
use crate::threads;

/// The parameters of a simulation.
#[derive(Clone, PartialEq, Debug)]
pub struct FleetBench {
    /// Numbers of workers.
    pub n_workers: Vec<usize>,
    /// Delays of sharing, in s.
    pub delays: Vec<u64>,
    /// Time between two arrivals at the whole fleet, in s.
    pub interval: f64,
    /// Tokens per second of a worker. An answer is shared when it is finished.
    pub tokens_per_second: f64,
    /// Number of sessions that take turns.
    pub n_sessions: usize,
    /// Maximum rows of a verification batch; rows are free.
    pub max_rows: usize,
}

/// The result for one number of workers and one delay.
#[derive(Clone, Debug)]
pub struct FleetCell {
    /// Number of workers.
    pub n_workers: usize,
    /// The delay of sharing, in s.
    pub delay: u64,
    /// The counts.
    pub tally: Tally,
    /// Rows with an accepted token from history.
    pub n_hits: usize,
    /// Number of published segments.
    pub n_published: usize,
    /// Their bytes.
    pub up_bytes: u64,
    /// Bytes pulled by all workers together.
    pub down_bytes: u64,
}

impl FleetCell {
    /// Share of the rows with an accepted token from history.
    pub fn hit_rate(&self) -> f64 {
        self.n_hits as f64 / self.tally.n_rows.max(1) as f64
    }

    /// Tokens from history accepted per step.
    pub fn accepted_per_step(&self) -> f64 {
        self.tally.sources.get(HISTORY).map_or(0, |drafted| drafted.accepted) as f64
            / self.tally.n_steps.max(1) as f64
    }

    fn per_token(&self, bytes: u64) -> f64 {
        bytes as f64 / self.tally.n_tokens.max(1) as f64
    }
}

/// The name of the source of earlier answers.
const HISTORY: &str = "history";

/// A row's arrival and answer.
struct Served<'a> {
    row: &'a TokenRow,
    worker: usize,
    arrives: f64,
    finishes: f64,
}

/// Runs the simulation for every number of workers and every delay, on `n_threads` threads. With one worker the delay has no effect
/// on drafts. The result has the order of the parameters.
pub fn simulate(
    rows: &[TokenRow],
    bench: &FleetBench,
    vocab_size: usize,
    n_threads: usize,
) -> Vec<FleetCell> {
    let order = arrivals(rows, bench.n_sessions);
    let cells: Vec<(usize, u64)> =
        bench.n_workers.iter().flat_map(|&n| bench.delays.iter().map(move |&delay| (n, delay))).collect();
    threads::map(n_threads, &cells, |&cell| simulate_one(&order, bench, cell, vocab_size))
}

/// Rows with a session in the order of their arrival: `n_sessions` take turns; where one ends, the next begins.
fn arrivals(rows: &[TokenRow], n_sessions: usize) -> Vec<&TokenRow> {
    let mut sessions: Vec<Vec<&TokenRow>> = Vec::new();
    for row in rows.iter().filter(|row| row.session.is_some()) {
        match sessions.last_mut() {
            Some(last) if scope(last[0]) == scope(row) => last.push(row),
            _ => sessions.push(vec![row]),
        }
    }
    let mut waiting = sessions.into_iter().map(|session| session.into_iter());
    let mut active: Vec<_> = waiting.by_ref().take(n_sessions.max(1)).collect();
    let mut order = Vec::new();
    while !active.is_empty() {
        active.retain_mut(|session| match session.next() {
            Some(row) => {
                order.push(row);
                true
            }
            None => match waiting.next() {
                Some(next) => {
                    *session = next;
                    order.extend(session.next());
                    true
                }
                None => false,
            },
        });
    }
    order
}

/// What a row's history is limited to.
fn scope(row: &TokenRow) -> (&str, &str, Option<&str>) {
    (&row.task, &row.subtask, row.session.as_deref())
}

fn simulate_one(
    order: &[&TokenRow],
    bench: &FleetBench,
    (n_workers, delay): (usize, u64),
    vocab_size: usize,
) -> FleetCell {
    let setting = Setting::new(Strategy::Refrain, Sources::History, bench.max_rows, Costs::free());
    // Each worker learns the reliability of its sources by itself.
    let mut workers: Vec<Lane<'_>> = (0..n_workers).map(|_| Lane::new(&setting, vocab_size)).collect();
    let mut served: BTreeMap<_, Vec<Served<'_>>> = BTreeMap::new();
    let (mut tally, mut n_hits) = (Tally::default(), 0);
    for (i, &row) in order.iter().enumerate() {
        let arrives = i as f64 * bench.interval;
        let worker = (mixed(i as u64) % n_workers as u64) as usize;
        let earlier = served.entry(scope(row)).or_default();
        let is_known = |answer: &&Served<'_>| {
            let late = if answer.worker == worker { 0.0 } else { delay as f64 };
            answer.finishes + late <= arrives
        };
        let known = earlier.iter().filter(is_known).map(|answer| &answer.row.response[..]);
        let lane = &mut workers[worker];
        lane.set_history(row, known);
        let before = accepted(&tally);
        lane.replay(row, &mut tally, Wanted::default());
        n_hits += usize::from(accepted(&tally) > before);
        let finishes = arrives + row.response.len() as f64 / bench.tokens_per_second;
        earlier.push(Served { row, worker, arrives, finishes });
    }
    let (mut n_published, mut up_bytes, mut down_bytes) = (0, 0, 0);
    for answers in served.values().filter(|_| n_workers > 1) {
        for (at, bytes, from) in published(answers, delay) {
            let others: BTreeSet<usize> = answers
                .iter()
                .filter(|answer| answer.arrives <= at && answer.worker != from)
                .map(|answer| answer.worker)
                .collect();
            n_published += 1;
            up_bytes += bytes;
            down_bytes += bytes * others.len() as u64;
        }
    }
    FleetCell { n_workers, delay, tally, n_hits, n_published, up_bytes, down_bytes }
}

fn accepted(tally: &Tally) -> usize {
    tally.sources.get(HISTORY).map_or(0, |drafted| drafted.accepted)
}

/// The segments of a session that its workers publish: time, bytes and worker.
fn published(answers: &[Served<'_>], delay: u64) -> Vec<(f64, u64, usize)> {
    let mut by_worker: BTreeMap<usize, Vec<&Served<'_>>> = BTreeMap::new();
    answers.iter().for_each(|answer| by_worker.entry(answer.worker).or_default().push(answer));
    let time = |answer: &Served<'_>| match delay {
        0 => answer.finishes,
        delay => (answer.finishes / delay as f64).ceil() * delay as f64,
    };
    let mut all = Vec::new();
    for (worker, answers) in by_worker {
        for (i, answer) in answers.iter().enumerate() {
            // The last answer of its time.
            if answers.get(i + 1).is_none_or(|next| time(next) > time(answer)) {
                let texts: Vec<&[TokenId]> =
                    answers[..=i].iter().map(|answer| &answer.row.response[..]).collect();
                all.push((time(answer), segment_bytes(&texts), worker));
            }
        }
    }
    all
}

/// The length of a segment's file with 16-bit symbols: a header, four sections of whole pages, and tables.
fn segment_bytes(texts: &[&[TokenId]]) -> u64 {
    const PAGE: u64 = 4096;
    let n_tokens: u64 = texts.iter().map(|text| text.len() as u64).sum();
    let n_text = n_tokens + texts.len() as u64;
    let n_distinct = texts.iter().flat_map(|text| text.iter()).collect::<BTreeSet<_>>().len() as u64;
    let n_pages: u64 =
        [2 * n_text, 4 * n_tokens, 2 * n_tokens, 4 * n_tokens].map(|bytes| bytes.div_ceil(PAGE)).iter().sum();
    (1 + n_pages) * PAGE + 8 * n_pages + 16 * texts.len() as u64 + 8 * n_distinct + 4
}

/// A well mixed number (SplitMix64, Steele, Lea and Flood 2014).
fn mixed(i: u64) -> u64 {
    let mut x = i.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A delay in reports.
pub(crate) fn delay_text(delay: u64) -> String {
    match delay {
        0 => "0 s".to_owned(),
        s if s % 3600 == 0 => format!("{} h", s / 3600),
        s if s % 60 == 0 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}

/// The report as a table.
pub fn write(conditions: &[String], bench: &FleetBench, cells: &[FleetCell]) -> String {
    let mut out = String::new();
    // Writing to a string never fails.
    for condition in conditions {
        let _ = writeln!(out, "- {condition}");
    }
    let Some(first) = cells.first() else { return out };
    let n_rows = first.tally.n_rows;
    let seconds = n_rows as f64 * bench.interval;
    let _ = writeln!(
        out,
        "- {n_rows} rows of sessions, one every {} s for {:.1} h, {} sessions at a time; {} tokens at {} tokens/s; {} rows a batch, which are free\n",
        bench.interval,
        seconds / 3600.0,
        bench.n_sessions,
        first.tally.n_tokens,
        bench.tokens_per_second,
        bench.max_rows,
    );
    let _ = writeln!(
        out,
        "| workers | delay | rows with a hit | history tokens accepted per step | tokens per step | segments per hour | \
         published, bytes per token | pulled, bytes per token |"
    );
    let _ = writeln!(out, "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for cell in cells {
        let _ = writeln!(
            out,
            "| {} | {} | {:.1} % | {:.3} | {:.3} | {:.0} | {:.0} | {:.0} |",
            cell.n_workers,
            delay_text(cell.delay),
            100.0 * cell.hit_rate(),
            cell.accepted_per_step(),
            cell.tally.acceptance_length(),
            cell.n_published as f64 * 3600.0 / seconds,
            cell.per_token(cell.up_bytes),
            cell.per_token(cell.down_bytes),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(session: &str, index: usize, response: &[u32]) -> TokenRow {
        TokenRow {
            index,
            id: format!("{session}-{index}"),
            task: "t".to_owned(),
            subtask: String::new(),
            session: Some(session.to_owned()),
            prompt: vec![TokenId(1), TokenId(2)],
            passages: Vec::new(),
            response: response.iter().map(|&token| TokenId(token)).collect(),
            target: None,
            accepted: crate::rows::Accepted::default(),
        }
    }

    /// Three sessions that say the same again and again, each in words of its own.
    fn rows() -> Vec<TokenRow> {
        let words = |session: u32| (0..30).map(|i| 10 + 40 * session + i).collect::<Vec<u32>>();
        let sessions = ["a", "b", "c"].iter().zip(0..);
        sessions.flat_map(|(name, session)| (0..8).map(move |i| row(name, i, &words(session)))).collect()
    }

    fn bench() -> FleetBench {
        FleetBench {
            n_workers: vec![1, 4],
            delays: vec![0, 20, 100_000],
            interval: 10.0,
            tokens_per_second: 30.0,
            n_sessions: 2,
            max_rows: 8,
        }
    }

    #[test]
    fn sessions_take_turns_and_keep_their_order() {
        let rows = rows();
        let order: Vec<String> = arrivals(&rows, 2).iter().map(|row| row.id.clone()).collect();
        assert_eq!(&order[..4], ["a-0", "b-0", "a-1", "b-1"]);
        assert_eq!(order.len(), rows.len());
        assert_eq!(order[16..], ["c-0", "c-1", "c-2", "c-3", "c-4", "c-5", "c-6", "c-7"]);
    }

    #[test]
    fn a_longer_delay_gives_fewer_hits_and_one_worker_has_all() {
        let cells = simulate(&rows(), &bench(), 200, 2);
        let hits: Vec<usize> = cells.iter().map(|cell| cell.n_hits).collect();
        // Every row but the first of each session repeats an earlier one.
        assert_eq!(hits[..4], [21, 21, 21, 21]);
        assert!(hits[4] <= hits[3] && hits[5] < hits[3], "{hits:?}");
        assert!(cells[5].n_hits > 0, "a worker has its own answers");
        assert_eq!((cells[0].up_bytes, cells[0].down_bytes), (0, 0));
        assert!(cells[3].down_bytes > cells[5].down_bytes, "{cells:?}");
        assert!(cells.iter().all(|cell| cell.tally.n_tokens == 24 * 30));
    }

    #[test]
    fn segments_have_whole_pages() {
        let text = [TokenId(1), TokenId(2), TokenId(1)];
        assert_eq!(segment_bytes(&[&text]), 5 * 4096 + 4 * 8 + 16 + 2 * 8 + 4);
    }
}
