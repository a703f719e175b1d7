//! Counts how many schemas of a public suite compile, and how many of their instances are judged rightly by the masks.
//!
//! ```sh
//! cargo run --release -p refrain-grammar --example conformance -- JSON-Schema-Test-Suite/tests/draft2020-12
//! cargo run --release -p refrain-grammar --example conformance -- jsonschemabench/maskbench/data
//! ```
//!
//! Each instance is written as compact JSON and followed through the masks of the engine's own processor: a token is taken if the
//! mask allows it. An instance is accepted if its bytes and then an end token are allowed. The vocabulary is that of the fixture
//! model, or of a `tokenizer.json` named as the second argument.

use std::collections::BTreeMap;
use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use refrain::{Engine, EngineOptions, LogitsProcessor, SpecialTokens, TokenId, Tokenizer};
use refrain_grammar::{Grammar, GrammarError, JsonOptions, Vocabulary};
use serde_json::Value;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/target.gguf");

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let suite = PathBuf::from(args.next().ok_or("usage: conformance FOLDER [TOKENIZER.json]")?);
    let started = Instant::now();
    let vocabulary = match args.next() {
        Some(path) => {
            Vocabulary::of_tokenizer(Arc::new(Tokenizer::from_json(&fs::read_to_string(&path)?, &path)?))?
        }
        None => Vocabulary::of_engine(&Engine::open(MODEL, EngineOptions::default())?)?,
    };
    let n_tokens = vocabulary.tokenizer().vocab_size();
    println!("vocabulary of {n_tokens} tokens, opened in {:.0} ms", started.elapsed().as_secs_f64() * 1e3);
    let mut paths = Vec::new();
    list(&suite, &mut paths)?;
    paths.sort();
    let mut counts = Counts::default();
    for path in &paths {
        for group in groups(&fs::read_to_string(path)?)? {
            counts.judge(&vocabulary, path, &group);
        }
    }
    counts.print();
    Ok(())
}

/// The JSON files of a folder. Subfolders hold optional tests, which are about formats and details of numbers.
fn list(folder: &Path, paths: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "json") {
            paths.push(path);
        }
    }
    Ok(())
}

/// A schema and its instances.
struct Group {
    description: String,
    schema: Value,
    tests: Vec<Value>,
}

/// The groups of a file: a list of them in JSON-Schema-Test-Suite, one in MaskBench.
fn groups(text: &str) -> Result<Vec<Group>, serde_json::Error> {
    let file: Value = serde_json::from_str(text)?;
    let groups = match file {
        Value::Array(groups) => groups,
        group => vec![group],
    };
    let group = |value: Value| Group {
        description: value["description"].as_str().unwrap_or_default().to_owned(),
        schema: value["schema"].clone(),
        tests: value["tests"].as_array().cloned().unwrap_or_default(),
    };
    Ok(groups.into_iter().map(group).collect())
}

#[derive(Default)]
struct Counts {
    compiled: usize,
    /// Number of schemas by the reason of the refusal.
    refused: BTreeMap<String, usize>,
    right: usize,
    tests_of_refused: usize,
    accepted_wrongly: Vec<String>,
    rejected_wrongly: Vec<String>,
    failed: Vec<String>,
    compile_us: Vec<f64>,
    mask_us: Vec<f64>,
}

impl Counts {
    fn judge(&mut self, vocabulary: &Vocabulary, path: &Path, group: &Group) {
        let started = Instant::now();
        let grammar =
            match Grammar::json_schema(vocabulary, &group.schema.to_string(), JsonOptions::default()) {
                Ok(grammar) => grammar,
                Err(error) => {
                    *self.refused.entry(reason(&error)).or_default() += 1;
                    self.tests_of_refused += group.tests.len();
                    return;
                }
            };
        self.compile_us.push(started.elapsed().as_secs_f64() * 1e6);
        self.compiled += 1;
        for test in &group.tests {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let name = format!(
                "{name}: {}: {}",
                group.description,
                test["description"].as_str().unwrap_or_default()
            );
            let is_valid = test["valid"].as_bool().unwrap_or_default();
            match self.accepts(vocabulary, &grammar, &test["data"].to_string()) {
                Ok(accepted) if accepted == is_valid => self.right += 1,
                Ok(true) => self.accepted_wrongly.push(name),
                Ok(false) => self.rejected_wrongly.push(name),
                Err(error) => self.failed.push(format!("{name}: {error}")),
            }
        }
    }

    /// Whether the masks allow a text and then an end token.
    fn accepts(
        &mut self,
        vocabulary: &Vocabulary,
        grammar: &Grammar,
        text: &str,
    ) -> Result<bool, refrain::ProcessorError> {
        let tokenizer = vocabulary.tokenizer();
        let mut mask = grammar.mask();
        let (mut tokens, mut rest) = (Vec::<TokenId>::new(), text.as_bytes());
        loop {
            let mut logits = vec![0.0; tokenizer.vocab_size()];
            let started = Instant::now();
            mask.process(&tokens, &mut logits)?;
            self.mask_us.push(started.elapsed().as_secs_f64() * 1e6);
            let is_allowed = |token: &TokenId| logits[token.index()] > f32::NEG_INFINITY;
            if rest.is_empty() {
                return Ok(tokenizer.eos().iter().any(is_allowed));
            }
            let Some(token) = next_token(tokenizer, rest, is_allowed) else { return Ok(false) };
            rest = &rest[tokenizer.token_bytes(token).map_or(0, <[u8]>::len)..];
            tokens.push(token);
        }
    }

    fn print(&mut self) {
        let n_refused: usize = self.refused.values().sum();
        println!("schemas: {} compiled, {n_refused} refused", self.compiled);
        let mut reasons: Vec<_> = self.refused.iter().collect();
        reasons.sort_by_key(|(_, n)| std::cmp::Reverse(**n));
        reasons.iter().take(25).for_each(|(reason, n)| println!("  {n:>5}  {reason}"));
        println!(
            "instances: {} right, {} accepted wrongly, {} rejected wrongly, {} failed, {} of refused schemas",
            self.right,
            self.accepted_wrongly.len(),
            self.rejected_wrongly.len(),
            self.failed.len(),
            self.tests_of_refused
        );
        for (kind, names) in [
            ("accepted wrongly", &self.accepted_wrongly),
            ("rejected wrongly", &self.rejected_wrongly),
            ("failed", &self.failed),
        ] {
            names.iter().take(60).for_each(|name| println!("  {kind}: {name}"));
        }
        for (name, times) in [("compile", &mut self.compile_us), ("mask", &mut self.mask_us)] {
            times.sort_by(f64::total_cmp);
            let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
            if !times.is_empty() {
                let mean = times.iter().sum::<f64>() / times.len() as f64;
                println!(
                    "{name} of {} in µs: mean {mean:.0}, p50 {:.0}, p90 {:.0}, p99 {:.0}, most {:.0}",
                    times.len(),
                    at(0.5),
                    at(0.9),
                    at(0.99),
                    at(1.0)
                );
            }
        }
    }
}

/// The next token of a text: that of the tokenizer if it is allowed, else the longest allowed one.
fn next_token(tokenizer: &Tokenizer, rest: &[u8], is_allowed: impl Fn(&TokenId) -> bool) -> Option<TokenId> {
    let continues = |token: &TokenId| {
        let bytes = tokenizer.token_bytes(*token).unwrap_or_default();
        !bytes.is_empty() && rest.starts_with(bytes) && !tokenizer.is_special(*token)
    };
    // A few words are enough for the first token.
    let start = String::from_utf8_lossy(&rest[..rest.len().min(64)]);
    let usual = tokenizer.encode(&start, SpecialTokens::AsText).ok()?.first().copied();
    usual.filter(|token| continues(token) && is_allowed(token)).or_else(|| {
        let ids = (0..tokenizer.vocab_size() as u32).map(TokenId);
        let allowed = ids.filter(|token| is_allowed(token) && continues(token));
        allowed.max_by_key(|token| tokenizer.token_bytes(*token).map_or(0, <[u8]>::len))
    })
}

/// The reason of a refusal, without the values of the schema.
fn reason(error: &GrammarError) -> String {
    let text = match error {
        GrammarError::Schema { reason, .. } | GrammarError::Refused { reason, .. } => reason.clone(),
        error => error.to_string(),
    };
    let line = text.lines().next().unwrap_or_default();
    line.chars().take(70).collect()
}
