//! The stored notes: time and memory to index 10,000 notes (30 MB), to update one, to search, to forget; and the quality
//! of retrieval beside tantivy's defaults.
//!
//! ```sh
//! cargo bench -p refrain-index --bench notes
//! cargo bench -p refrain-index --bench notes -- ROWS.jsonl    # quality on recorded rows with `prompt` and `context` too
//! cargo bench -p refrain-index --bench notes -- FOLDER        # only the questions of `fixtures/quality`, and those of a checkout of
//!                                                             # MT-RAG or ClapNQ (`questions::published`)
//! REFRAIN_BENCH_EMBEDDER=all-MiniLM-L6-v2 cargo bench …       # the quality alone, by meaning and by both too
//! ```
//!
//! The notes are generated from a seed, below a temporary folder: Markdown with headings, paragraphs and lists, in
//! English, German, French and Japanese. Words are drawn with Zipf's distribution. Indexing runs in a child process, whose
//! peak memory the system reports (Linux).

mod notes {
    pub(crate) mod corpus;
    pub(crate) mod quality;
    pub(crate) mod questions;
}

use std::error::Error;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use notes::corpus::{self, Rng};
use notes::{quality, questions};
use refrain::{Engine, EngineOptions};
use refrain_index::notes::{NotesIndex, NotesOptions, NotesWriter, Search};

/// The environment variable with the folder of the child that indexes.
const CHILD: &str = "REFRAIN_BENCH_NOTES";

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    if let Some(folder) = std::env::var_os(CHILD) {
        return index_all(Path::new(&folder));
    }
    let rows = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).map(PathBuf::from);
    if let Some(published) = rows.as_deref().filter(|path| path.is_dir()) {
        return all_questions(published);
    }
    if std::env::var_os(quality::EMBEDDER).is_some() {
        return quality_of(rows.as_deref());
    }
    let folder = tempfile::tempdir()?;
    let notes = folder.path().join("notes");
    let bytes = corpus::write(&notes, 10_000)?;
    println!("10,000 notes, {:.1} MB", bytes as f64 / 1e6);

    let status = Command::new(std::env::current_exe()?).env(CHILD, folder.path()).status()?;
    if !status.success() {
        return Err("indexing failed".into());
    }
    updates(folder.path())?;
    searches(folder.path())?;
    tokens(folder.path())?;
    deletions(folder.path())?;
    quality_of(rows.as_deref())
}

fn quality_of(rows: Option<&Path>) -> Outcome<()> {
    quality::paraphrased()?;
    quality::generated()?;
    rows.map_or(Ok(()), quality::recorded)
}

/// The questions of the fixture and of a published set.
fn all_questions(folder: &Path) -> Outcome<()> {
    let notes = questions::Notes::new(questions::notes()?)?;
    let index = notes.index()?;
    questions::print("questions", &index, &questions::questions()?)?;
    questions::print("follow-up questions", &index, &questions::follow_ups()?)?;
    let Some((name, notes, published)) = questions::published(folder)? else {
        return Err(format!("`{}` has neither MT-RAG nor ClapNQ", folder.display()).into());
    };
    let notes = questions::Notes::new(notes)?;
    let (first, follow_ups): (Vec<_>, Vec<_>) =
        published.into_iter().partition(|question| question.earlier.is_empty());
    for (what, questions) in [("first questions", first), ("follow-up questions", follow_ups)] {
        if !questions.is_empty() {
            questions::print(&format!("{name}, {what}"), &notes.index()?, &questions)?;
        }
    }
    Ok(())
}

fn open(folder: &Path) -> Outcome<NotesWriter> {
    Ok(NotesWriter::open(&folder.join("index"), NotesOptions { key: key(), ..NotesOptions::default() })?)
}

/// Encrypts the index if the variable is set.
fn key() -> Option<[u8; 32]> {
    std::env::var_os("REFRAIN_BENCH_KEY").map(|_| [7; 32])
}

/// Indexes the notes from nothing, and prints time and peak memory of this process.
fn index_all(folder: &Path) -> Outcome<()> {
    let since = Instant::now();
    let mut writer = open(folder)?;
    writer.add(&[folder.join("notes")])?;
    let report = writer.update(&mut |_, _| ControlFlow::Continue(()))?;
    println!(
        "index from nothing      {:>9.2} s   {} passages",
        since.elapsed().as_secs_f64(),
        report.n_passages
    );
    drop(writer);
    if let Ok(status) = fs::read_to_string("/proc/self/status") {
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let kib: f64 = peak.and_then(|peak| peak.split_whitespace().next()?.parse().ok()).unwrap_or_default();
        println!("peak memory             {:>9.1} MiB", kib / 1024.0);
    }
    let bytes = NotesIndex::open_with_key(&folder.join("index"), key().as_ref())?.status()?.bytes;
    println!("on disk                 {:>9.1} MB", bytes as f64 / 1e6);
    Ok(())
}

fn updates(folder: &Path) -> Outcome<()> {
    let since = Instant::now();
    let mut writer = open(folder)?;
    println!("open a writer           {:>9.2} ms", ms(since.elapsed()));
    let mut rng = Rng(7);
    let mut visible = Vec::new();
    for i in 0..60 {
        let path = corpus::path(&folder.join("notes"), rng.below(10_000));
        fs::write(&path, format!("{}\n\nChanged the {i}th time.\n", corpus::note(&mut rng)))?;
        let since = Instant::now();
        let report = writer.update_paths(&[&path])?;
        visible.push(since.elapsed());
        assert!(report.is_change());
    }
    print_times("update of one note", &mut visible);
    let since = Instant::now();
    writer.maintain()?;
    println!("purge of 60 changed     {:>9.2} ms", ms(since.elapsed()));
    // The stamps of young files prove nothing; they are read.
    let since = Instant::now();
    let report = writer.update(&mut |_, _| ControlFlow::Continue(()))?;
    println!("update without changes  {:>9.2} ms  {} files read", ms(since.elapsed()), report.n_read);
    Ok(())
}

fn searches(folder: &Path) -> Outcome<()> {
    let since = Instant::now();
    let index = NotesIndex::open_with_key(&folder.join("index"), key().as_ref())?;
    println!("open a reader           {:>9.2} ms", ms(since.elapsed()));
    let mut rng = Rng(11);
    let queries: Vec<String> = (0..2000).map(|_| corpus::query(&mut rng)).collect();
    let mut times = Vec::new();
    let mut n_hits = 0;
    for query in &queries {
        let since = Instant::now();
        n_hits += index.search(&Search::new(query, 5))?.len();
        times.push(since.elapsed());
    }
    assert!(n_hits > queries.len());
    print_times("search, 5 hits", &mut times[1000..]);
    let mut filtered = Vec::new();
    for query in &queries[..1000] {
        let mut search = Search::new(query, 5);
        search.filter.folders = vec![folder.join("notes/3")];
        let since = Instant::now();
        index.search(&search)?;
        filtered.push(since.elapsed());
    }
    print_times("search in a folder", &mut filtered);
    Ok(())
}

fn tokens(folder: &Path) -> Outcome<()> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fixtures/target.gguf");
    let engine = Engine::open(model, EngineOptions::default())?;
    let mut writer = open(folder)?;
    let since = Instant::now();
    let n = writer.tokenize(engine.tokenizer(), &mut |_, _| ControlFlow::Continue(()))?;
    println!(
        "token ids               {:>9.2} s   {n} passages, the fixture's tokenizer",
        since.elapsed().as_secs_f64()
    );
    drop(writer);
    let index = NotesIndex::open_with_key(&folder.join("index"), key().as_ref())?;
    let mut rng = Rng(13);
    let (mut times, mut n_tokens) = (Vec::new(), 0);
    for _ in 0..200 {
        let hits = index.search(&Search::new(&corpus::query(&mut rng), 4))?;
        let passages: Vec<_> = hits.into_iter().map(|hit| hit.passage).collect();
        let ids = index.tokens(engine.tokenizer(), &passages)?;
        n_tokens += ids.iter().map(Vec::len).sum::<usize>();
        let since = Instant::now();
        let source = refrain::internals::draft::PassagesSource::new(ids.iter().map(Vec::as_slice));
        times.push(since.elapsed());
        std::hint::black_box(source);
    }
    print_times("automaton of 4 passages", &mut times);
    println!("                        {:>9} tokens on average", n_tokens / 200);
    Ok(())
}

fn deletions(folder: &Path) -> Outcome<()> {
    let mut writer = open(folder)?;
    let mut rng = Rng(17);
    let mut times = Vec::new();
    for _ in 0..10 {
        let path = corpus::path(&folder.join("notes"), rng.below(10_000));
        let since = Instant::now();
        writer.forget(&[path])?;
        times.push(since.elapsed());
    }
    print_times("forget one note", &mut times);
    Ok(())
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

fn print_times(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: f64| ms(times[((times.len() - 1) as f64 * share).round() as usize]);
    println!("{what:<24}{:>9.2} ms  p99 {:.2} ms, max {:.2} ms", at(0.5), at(0.99), at(1.0));
}
