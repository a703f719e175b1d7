//! Replays recorded responses without a model: where the prior and the defaults come from.
//!
//! ```text
//! REFRAIN_REPLAY=folder-of-jsonl cargo test --release --lib replay -- --ignored --nocapture
//! ```
//!
//! Rows are JSON objects with `prompt`, `response`, `subtask` and perhaps `session`. Even rows fit, odd rows report. Text is
//! cut into pieces about as long as a BPE's tokens. `FIT=1` prints the fitted prior instead of acceptance lengths.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::prior;
use super::*;
use crate::token::TokenId;

struct Row {
    task: String,
    session: Option<String>,
    prompt: Vec<TokenId>,
    response: Vec<TokenId>,
}

/// A piece is a word with the space before it, cut after every six letters; a digit; a mark; or white space.
fn pieces(text: &str, ids: &mut BTreeMap<String, u32>) -> Vec<TokenId> {
    let mut tokens = Vec::new();
    let mut piece = String::new();
    let mut letters = 0;
    let mut flush = |piece: &mut String, tokens: &mut Vec<TokenId>| {
        if !piece.is_empty() {
            let next = ids.len() as u32;
            tokens.push(TokenId(*ids.entry(std::mem::take(piece)).or_insert(next)));
        }
    };
    for c in text.chars() {
        if !c.is_alphabetic() || letters == 6 {
            let space = piece == " " && c.is_alphabetic();
            if !space {
                flush(&mut piece, &mut tokens);
            }
            letters = 0;
        } else if !piece.is_empty() && piece != " " && letters == 0 {
            flush(&mut piece, &mut tokens);
        }
        letters += usize::from(c.is_alphabetic());
        piece.push(c);
    }
    flush(&mut piece, &mut tokens);
    tokens
}

fn load() -> (Vec<Row>, usize) {
    let folder = std::env::var("REFRAIN_REPLAY").expect("REFRAIN_REPLAY names a folder");
    let mut ids = BTreeMap::new();
    let mut rows = Vec::new();
    for task in ["summary", "rag", "ui", "reply", "chat"] {
        let text = std::fs::read_to_string(format!("{folder}/{task}.jsonl")).unwrap();
        for line in text.lines() {
            let row: serde_json::Value = serde_json::from_str(line).unwrap();
            let field = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
            rows.push(Row {
                task: format!("{task}/{}", field("subtask").split('_').take(3).collect::<Vec<_>>().join("_")),
                session: row["session"].as_str().map(str::to_owned),
                prompt: pieces(&field("prompt"), &mut ids),
                response: pieces(&field("response"), &mut ids),
            });
        }
    }
    (rows, ids.len())
}

fn env(name: &str, default: f32) -> f32 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// Prompt lookup: the first place where the last 3 (then 2, then 1) tokens stood, and up to 10 tokens from there.
fn prompt_lookup(committed: &[TokenId], max_rows: usize) -> Vec<TokenId> {
    for n in (1..=3).rev() {
        let Some(start) = committed.len().checked_sub(n) else { continue };
        let found =
            committed[..committed.len() - 1].windows(n).position(|window| window == &committed[start..]);
        if let Some(place) = found.filter(|place| place + n < committed.len()) {
            let end = (place + n + 10.min(max_rows - 1)).min(committed.len());
            return committed[place + n..end].to_vec();
        }
    }
    Vec::new()
}

#[derive(Default, Clone, Copy)]
struct Score {
    tokens: usize,
    steps: usize,
}

impl Score {
    fn mean(self) -> f64 {
        self.tokens as f64 / self.steps.max(1) as f64
    }
}

fn walk_lookup(row: &Row, max_rows: usize) -> Score {
    let mut committed = row.prompt.clone();
    let mut score = Score::default();
    let mut said = 0;
    while said < row.response.len() {
        let draft = prompt_lookup(&committed, max_rows);
        let rest = &row.response[said..];
        let accepted = draft.iter().zip(rest).take_while(|(a, b)| a == b).count();
        let n = (accepted + 1).min(rest.len());
        committed.extend_from_slice(&rest[..n]);
        said += n;
        score.tokens += n;
        score.steps += 1;
    }
    score
}

/// Called with each expanded, visited node's claims: (evidence, was it right).
type Sink<'a> = &'a mut dyn FnMut(&Evidence, bool);

fn walk_builder(
    builder: &mut TreeBuilder,
    sources: &mut [Box<dyn DraftSource>],
    row: &Row,
    max_rows: usize,
    sink: Option<Sink<'_>>,
) -> Score {
    let costs = CostProfile::from_measurements(&[]).with_draft_us_per_node(0.0);
    let mut committed = row.prompt.clone();
    let mut score = Score::default();
    let mut tree = DraftTree::default();
    let mut said = 0;
    let mut sink = sink;
    sources.iter_mut().for_each(|source| source.prime(&committed));
    while said < row.response.len() {
        let rest = &row.response[said..];
        let limits = StepLimits { max_rows, max_depth: rest.len().max(1) - 1 };
        builder.build(sources, &committed, limits, &costs, &mut tree);
        let mut accepted = Vec::new();
        let mut node = NodeIdx::ROOT;
        while let Some(child) = tree.child(node, rest[accepted.len()]) {
            accepted.push(child);
            node = child;
        }
        let new_tokens = &rest[..=accepted.len()];
        committed.extend_from_slice(new_tokens);
        let outcome = StepOutcome { tree: &tree, accepted: &accepted, new_tokens };
        if let Some(sink) = sink.as_mut() {
            builder.claims_seen(&outcome, sink);
        }
        builder.observe(sources, &committed, &outcome);
        said += new_tokens.len();
        score.tokens += new_tokens.len();
        score.steps += 1;
    }
    score
}

fn order_config() -> OrderConfig {
    let default = OrderConfig::default();
    OrderConfig {
        match_len_min: env("MIN", default.match_len_min as f32) as u32,
        n_candidates_max: env("CANDS", default.n_candidates_max as f32) as usize,
        n_links_max: env("LINKS", default.n_links_max as f32) as usize,
        recency_weight: env("RECENCY", default.recency_weight),
    }
}

fn sources(history: Option<HistorySource>) -> Vec<Box<dyn DraftSource>> {
    let context = ContextSource::with_config(order_config(), ContextSource::MAX_TOKENS);
    let mut sources: Vec<Box<dyn DraftSource>> = vec![Box::new(context)];
    sources.extend(history.map(|history| Box::new(history) as Box<dyn DraftSource>));
    sources
}

#[test]
#[ignore = "reads recorded responses from the folder that REFRAIN_REPLAY names"]
fn replay() {
    let (rows, vocab_size) = load();
    if env("FIT", 0.0) > 0.0 {
        return fit(&rows, vocab_size);
    }
    let budgets = [8, 16, 32];
    let mut scores: BTreeMap<&str, [[Score; 3]; 3]> = BTreeMap::new();
    let mut builders: BTreeMap<(&str, usize), TreeBuilder> = BTreeMap::new();
    let store = Arc::new(HistoryStore::new());
    let fresh = env("FRESH", 0.0) > 0.0;
    let with_history = env("HISTORY", 0.0) > 0.0;
    let with_lookup = env("PLD", 0.0) > 0.0;
    let every = env("EVERY", 2.0) as usize;
    let started = std::time::Instant::now();
    for (i, row) in rows.iter().enumerate() {
        if i % 2 == 1 && (i / 2) % (every / 2).max(1) == 0 {
            let scores = scores.entry(&row.task).or_default();
            for (j, &max_rows) in budgets.iter().enumerate() {
                if with_lookup {
                    add(&mut scores[0][j], walk_lookup(row, max_rows));
                }
                let new = || TreeBuilder::new(BuilderConfig::new(vocab_size));
                let builder = builders.entry((&row.task, j)).or_insert_with(new);
                if fresh {
                    *builder = new();
                }
                add(&mut scores[1][j], walk_builder(builder, &mut sources(None), row, max_rows, None));
                if with_history {
                    let builder = builders.entry((&row.task, j + 3)).or_insert_with(new);
                    let history = row.session.as_ref().map(|session| store.source(session));
                    add(&mut scores[2][j], walk_builder(builder, &mut sources(history), row, max_rows, None));
                }
            }
        }
        if let Some(session) = &row.session {
            store.append(session, &row.response);
        }
    }
    println!("{:<40} {:>6} | pld 8 16 32 | context 8 16 32 | + history 8 16 32", "subtask", "tokens");
    let mut logs = [[0.0; 3]; 3];
    let mut n = 0.0;
    for (task, scores) in &scores {
        print!("{task:<40} {:>6}", scores[1][0].tokens);
        for (i, by_strategy) in scores.iter().enumerate() {
            for (j, score) in by_strategy.iter().enumerate() {
                print!("{}{:.3}", if j == 0 { " | " } else { " " }, score.mean());
                logs[i][j] += if task.starts_with("chat") { 0.0 } else { score.mean().max(1e-9).ln() };
            }
        }
        println!();
        n += if task.starts_with("chat") { 0.0 } else { 1.0 };
    }
    println!("geometric means without chat: {:?}", logs.map(|row| row.map(|log| f64::exp(log / n))));
    let steps: usize = scores.values().flatten().flatten().map(|score| score.steps).sum();
    println!("{steps} steps in {:?}", started.elapsed());
}

fn add(to: &mut Score, score: Score) {
    to.tokens += score.tokens;
    to.steps += score.steps;
}

/// Prints acceptance by match length × probability × count, over the even rows. Every subtask weighs the same.
fn fit(rows: &[Row], vocab_size: usize) {
    let mut n_tokens: BTreeMap<&str, usize> = BTreeMap::new();
    for row in rows.iter().step_by(2) {
        *n_tokens.entry(&row.task).or_default() += row.response.len();
    }
    let mut cells = vec![(0.0f64, 0.0f64); prior::MATCH_LENS * prior::PROBABILITIES * prior::COUNTS];
    for row in rows.iter().step_by(2) {
        let weight = 1e4 / n_tokens[row.task.as_str()] as f64;
        let mut sink = |evidence: &Evidence, hit: bool| {
            let bucket = prior::match_len_bucket(evidence.match_len) * prior::PROBABILITIES
                + prior::probability_bucket(evidence.probability);
            let cell = &mut cells[bucket * prior::COUNTS + prior::count_bucket(evidence.count)];
            cell.0 += weight * f64::from(u8::from(hit));
            cell.1 += weight;
        };
        let mut builder = TreeBuilder::new(BuilderConfig::new(vocab_size));
        walk_builder(&mut builder, &mut sources(None), row, 16, Some(&mut sink));
    }
    for by_len in cells.chunks(prior::PROBABILITIES * prior::COUNTS) {
        println!("    [");
        for (i, by_probability) in by_len.chunks(prior::COUNTS).enumerate() {
            let permille = by_probability.iter().map(|&(hits, claims)| {
                // A cell that was hardly seen leans towards its claim times three quarters.
                let claim = 0.75 * f64::from(prior::bucket_probability(i));
                format!("{:.0}", 1000.0 * (hits + 3.0 * claim) / (claims + 3.0))
            });
            let permille: Vec<String> = permille.collect();
            println!(
                "        [{}],  // {:?}",
                permille.join(", "),
                by_probability.iter().map(|c| c.1 as u32).collect::<Vec<_>>()
            );
        }
        println!("    ],");
    }
}
