//! The gain of drafting, end to end: the fixture model answers the sample questions from the sample notes, with and
//! without drafts in turns, in one run.
//!
//! ```sh
//! cargo bench --bench decode
//! ```
//!
//! Every drafted answer is compared with the plain one, and a difference ends the bench. Times are medians over the
//! rounds. They exclude loading and prefill, which is the same for both.

use std::path::Path;

use refrain::{
    Drafting, Engine, EngineOptions, GenerateOptions, PromptPassage, Role, SessionOptions, Stats, Task,
};
use serde::Deserialize;

/// Rounds over all questions; the first one warms up and is not counted.
const ROUNDS: usize = 8;
/// Output tokens per answer at most.
const MAX_TOKENS: usize = 80;

/// A note with its title.
struct Note {
    file: String,
    title: String,
    text: String,
}

/// A row of `fixtures/questions.json`.
#[derive(Deserialize)]
struct Question {
    question: String,
    note: String,
}

/// The requests of one conversation.
struct Request<'a> {
    task: Task,
    passages: Vec<&'a Note>,
    text: &'a str,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let engine = Engine::open(fixtures.join("target.gguf"), EngineOptions::default())?;
    let notes = read_notes(&fixtures.join("notes"))?;
    let (isa, n_threads) = (engine.device().isa(), engine.device().n_threads());
    println!("fixture target, {isa}, {n_threads} threads, greedy, {} notes, {ROUNDS} rounds", notes.len());
    let costs = engine.device().cost_profile();
    let rows: Vec<String> =
        [1, 2, 4, 8, 16, 32].iter().map(|&n| format!("{n}: {:.0}", costs.verify_us(n, 1))).collect();
    println!("verification, µs by rows: {}\n", rows.join(", "));
    println!(
        "| task | answers | tokens | plain tokens/s | drafted tokens/s | ratio | tokens per step | draft + observe µs/step |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let questions: Vec<Question> = serde_json::from_slice(&std::fs::read(fixtures.join("questions.json"))?)?;
    let find =
        |file: &str| notes.iter().position(|note| note.file == file).ok_or("a question without its note");
    let mut answers = Vec::new();
    for question in &questions {
        let first = find(&question.note)?;
        let passages = (first..first + 3).map(|i| &notes[i % notes.len()]).collect();
        answers.push(Request { task: Task::Answer, passages, text: &question.question });
    }
    measure(&engine, "answer", &answers)?;
    let summary = |note| Request { task: Task::Summarize, passages: vec![note], text: "" };
    let summaries: Vec<Request<'_>> = notes.iter().map(summary).collect();
    measure(&engine, "summarize", &summaries)
}

fn measure(engine: &Engine, name: &str, requests: &[Request<'_>]) -> Result<(), Box<dyn std::error::Error>> {
    let (mut plain_us, mut drafted_us) = (Vec::new(), Vec::new());
    let (mut n_tokens, mut n_steps, mut overhead_us) = (0, 0, Vec::new());
    for round in 0..ROUNDS {
        let (mut plain_total, mut drafted_total) = (0.0, 0.0);
        (n_tokens, n_steps) = (0, 0);
        let mut overhead = 0.0;
        for request in requests {
            let (plain_text, plain) = answer(engine, request, Drafting::Off)?;
            let (text, drafted) = answer(engine, request, Drafting::Auto)?;
            if text != plain_text {
                return Err(format!("drafting changed an answer: {plain_text:?} became {text:?}").into());
            }
            plain_total += plain.time_us.decode();
            drafted_total += drafted.time_us.decode();
            overhead += drafted.time_us.draft + drafted.time_us.observe;
            n_tokens += drafted.tokens;
            n_steps += drafted.steps;
        }
        if round > 0 {
            plain_us.push(plain_total);
            drafted_us.push(drafted_total);
            overhead_us.push(overhead / n_steps as f64);
        }
    }
    let (plain, drafted) = (median(&mut plain_us), median(&mut drafted_us));
    let per_s = |us: f64| n_tokens as f64 * 1e6 / us;
    println!(
        "| {name} | {} | {n_tokens} | {:.0} | {:.0} | {:.2} | {:.2} | {:.1} |",
        requests.len(),
        per_s(plain),
        per_s(drafted),
        plain / drafted,
        n_tokens as f64 / n_steps as f64,
        median(&mut overhead_us),
    );
    Ok(())
}

/// One conversation of one turn. History is off, because it would contain the answer of the previous round.
fn answer(
    engine: &Engine,
    request: &Request<'_>,
    drafting: Drafting,
) -> Result<(String, Stats), Box<dyn std::error::Error>> {
    let passages: Vec<PromptPassage<'_>> =
        request.passages.iter().map(|note| PromptPassage::new(&note.title, &note.text)).collect();
    let mut session =
        engine.session(SessionOptions { drafting, history: false, ..SessionOptions::default() })?;
    session.append_turn(Role::User, request.task.user_message(&passages, request.text))?;
    let mut text = String::new();
    let options = GenerateOptions { max_tokens: MAX_TOKENS, ..GenerateOptions::default() };
    let summary = session.generate(options)?.run(|token| {
        text.push_str(&token.text);
        std::ops::ControlFlow::Continue(())
    })?;
    Ok((text, summary.stats))
}

fn read_notes(folder: &Path) -> std::io::Result<Vec<Note>> {
    let mut paths: Vec<_> =
        std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    paths.sort();
    paths
        .iter()
        .map(|path| {
            let whole = std::fs::read_to_string(path)?;
            let (title, text) = whole.split_once('\n').unwrap_or((&whole, ""));
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            Ok(Note { file, title: title.trim_start_matches("# ").to_owned(), text: text.trim().to_owned() })
        })
        .collect()
}

/// The middle value, or the mean of the two middle values.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let n = values.len();
    (values[(n - 1) / 2] + values[n / 2]) / 2.0
}
