//! Prompt lookup and SAM-Decoding against a scan over the whole text at every step, row by row: on generated rows, and
//! on recorded ones if there are some (`shared/replay` in or above the checkout).

use std::path::{Path, PathBuf};

use refrain::{TokenId, Tokenizer};
use refrain_bench::replay::Wanted;
use refrain_bench::rules::Baseline;
use refrain_bench::{Constants, Costs, Lane, Setting, Sources, Strategy, Tally, TokenRow, rows};

/// Steps of a walk with drafts from scanning, each with its number of committed tokens.
fn scan(row: &TokenRow, earlier: &[Vec<TokenId>], max_rows: usize, rule: Rule) -> Vec<usize> {
    let mut text = row.prompt.clone();
    let mut steps = Vec::new();
    let mut rest = row.response.as_slice();
    while !rest.is_empty() {
        let mut draft = rule(&text, earlier);
        draft.truncate((max_rows - 1).min(rest.len() - 1));
        let n = draft.iter().zip(rest).take_while(|(a, b)| a == b).count() + 1;
        text.extend_from_slice(&rest[..n]);
        rest = &rest[n..];
        steps.push(n);
    }
    steps
}

type Rule = fn(&[TokenId], &[Vec<TokenId>]) -> Vec<TokenId>;

/// The continuation of the first occurrence of the last 3, 2 or 1 tokens.
fn pld(text: &[TokenId], _earlier: &[Vec<TokenId>]) -> Vec<TokenId> {
    for n in [3, 2, 1] {
        for end in n..text.len() {
            if text.len() >= n && text[end - n..end] == text[text.len() - n..] {
                return text[end..].iter().copied().take(10).collect();
            }
        }
    }
    Vec::new()
}

/// The longest suffix of `text` that ends before `n_ends`, and the end of its first occurrence.
fn longest(within: &[TokenId], n_ends: usize, text: &[TokenId]) -> (usize, usize) {
    let mut best = (0, 0);
    for end in 1..n_ends {
        let len = (1..=end.min(text.len())).take_while(|&n| within[end - n] == text[text.len() - n]).count();
        if len > best.0 {
            best = (len, end);
        }
    }
    best
}

fn sam_from(text: &[TokenId], earlier: &[Vec<TokenId>], threshold: usize) -> Vec<TokenId> {
    let own = longest(text, text.len(), text);
    let mut other = (0, 0, 0);
    for (i, response) in earlier.iter().enumerate() {
        let (len, end) = longest(response, response.len() + 1, text);
        if len > other.0 {
            other = (len, end, i);
        }
    }
    let (len, rest) = match other.0 > own.0 + 5 {
        true => (other.0 - 5, &earlier[other.2][other.1..]),
        false => (own.0, &text[own.1..]),
    };
    if len >= threshold { rest.iter().copied().take(40).collect() } else { Vec::new() }
}

fn sam(text: &[TokenId], earlier: &[Vec<TokenId>]) -> Vec<TokenId> {
    sam_from(text, earlier, 5)
}

fn sam_only(text: &[TokenId], earlier: &[Vec<TokenId>]) -> Vec<TokenId> {
    sam_from(text, earlier, 1)
}

/// Replays `rows` both ways and compares every row. Returns the number of tokens that drafts saved.
fn check(rows: &[TokenRow], vocab_size: usize) -> usize {
    let mut n_saved = 0;
    for (baseline, rule) in
        [(Baseline::Pld, pld as Rule), (Baseline::Sam, sam), (Baseline::SamOnly, sam_only)]
    {
        let setting = Setting {
            strategy: Strategy::Baseline(baseline),
            sources: Sources::History,
            max_rows: 16,
            costs: Costs::free(),
            constants: Constants::default(),
            fresh: false,
            stake: None,
            draft_us_per_node: None,
            explain: false,
        };
        let mut lane = Lane::new(&setting, vocab_size);
        let (mut session, mut earlier) = (None, Vec::new());
        for row in rows {
            if row.session.is_none() || row.session != session {
                earlier.clear();
                session.clone_from(&row.session);
            }
            let expected = scan(row, &earlier, setting.max_rows, rule);
            let mut tally = Tally::default();
            let mut steps = Vec::new();
            lane.replay(row, &mut tally, Wanted { trace: Some(&mut steps), ..Wanted::default() });
            let lens: Vec<usize> = steps.iter().map(|step| step.tokens.len()).collect();
            assert_eq!(lens, expected, "{baseline}, row {}", row.id);
            assert_eq!(
                (tally.n_steps, tally.n_tokens),
                (expected.len(), row.response.len()),
                "row {}",
                row.id
            );
            n_saved += row.response.len() - expected.len();
            if row.session.is_some() {
                earlier.push(row.response.clone());
            }
        }
    }
    n_saved
}

/// xorshift64*: the same rows in every run.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n
    }
}

/// Rows with responses that copy from the prompt and from earlier responses, with changes.
fn generated(n_rows: usize) -> Vec<TokenRow> {
    let mut rng = Rng(7);
    let mut pool: Vec<TokenId> = (0..400).map(|_| TokenId(rng.below(60) as u32)).collect();
    let mut text = |pool: &mut Vec<TokenId>, n: usize| {
        let mut out = Vec::new();
        while out.len() < n {
            let (start, len) = (rng.below(pool.len() - 30), 2 + rng.below(28));
            out.extend_from_slice(&pool[start..start + len]);
            out.push(TokenId(rng.below(60) as u32));
        }
        pool.extend_from_slice(&out[..n / 4]);
        out
    };
    (0..n_rows)
        .map(|index| TokenRow {
            index,
            id: index.to_string(),
            task: "generated".to_owned(),
            subtask: String::new(),
            session: (index % 9 > 1).then(|| (index / 9).to_string()),
            prompt: text(&mut pool, 60 + index % 70),
            passages: Vec::new(),
            response: text(&mut pool, index % 80),
            target: None,
            accepted: rows::Accepted::default(),
        })
        .collect()
}

/// Right drafts increase the rows of a controller, wrong ones decrease them.
#[test]
fn controlled_rows_follow_acceptance() {
    let mut rng = Rng(3);
    let mut random = |n: usize| -> Vec<TokenId> { (0..n).map(|_| TokenId(rng.below(90) as u32)).collect() };
    let (prompt, noise) = (random(300), random(200));
    let rows_per_step = |response: &[TokenId]| {
        let setting = Setting {
            strategy: Strategy::Pid,
            sources: Sources::Prompt,
            max_rows: 16,
            costs: Costs::free(),
            constants: Constants::default(),
            fresh: false,
            stake: None,
            draft_us_per_node: None,
            explain: false,
        };
        let row = TokenRow { prompt: prompt.clone(), response: response.to_vec(), ..generated(1).remove(0) };
        let mut tally = Tally::default();
        Lane::new(&setting, 100).replay(&row, &mut tally, Wanted::default());
        assert_eq!(tally.n_tokens, response.len());
        tally.n_batch_rows as f32 / tally.n_steps as f32
    };
    let (copied, invented) = (rows_per_step(&prompt[50..250]), rows_per_step(&noise));
    assert!(copied > 8.0 && invented < 4.0, "{copied} and {invented} rows a step");
}

#[test]
fn rules_are_their_scan_on_generated_rows() {
    assert!(check(&generated(220), 100) > 1000);
}

#[test]
fn rules_are_their_scan_on_recorded_rows() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let found = root.ancestors().map(|folder| folder.join("shared/replay")).find(|folder| folder.is_dir());
    let Some(folder) = found else {
        println!("skipped: no folder shared/replay in or above {}", root.display());
        return;
    };
    let fixture = refrain::checkpoint::Checkpoint::open(root.join("../../fixtures/target.gguf")).unwrap();
    let tokenizer: Tokenizer = fixture.tokenizer().unwrap();
    let mut n_rows = 0;
    for task in ["summary", "rag", "ui", "reply", "chat"] {
        let path: PathBuf = folder.join(format!("{task}.jsonl"));
        let rows: Vec<_> = rows::read(&[path])
            .unwrap()
            .into_iter()
            .filter(|row| row.texts().unwrap().prompt.len() < 2500)
            .take(60)
            .collect();
        let rows = rows::encode(&rows, &tokenizer, 2).unwrap();
        check(&rows, tokenizer.vocab_size());
        n_rows += rows.len();
    }
    assert!(n_rows >= 200, "{n_rows} short rows");
}
