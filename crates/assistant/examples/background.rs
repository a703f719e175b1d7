//! Works in the background as the scheduler of a phone wants it: in slices of time, while the device is idle, on a charger and cool.
//!
//! ```sh
//! cargo run --release -p refrain-assistant --example background
//! ```

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use refrain::device::ThermalState;
use refrain::{Engine, EngineOptions};
use refrain_assistant::{
    AnswerRequest, Assistant, Background, BackgroundPlan, BackgroundTask, Conditions, Prefetch,
    SummarizeRequest,
};
use refrain_index::notes::{NotesOptions, NotesWriter};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("refrain-background-{}", std::process::id()));
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // The notes are known, and not read yet.
    NotesWriter::open(&folder.join("index"), NotesOptions::default())?.add(&[root.join("fixtures/notes")])?;
    let engine = Engine::open(root.join("fixtures/target.gguf"), EngineOptions::default())?;
    let assistant =
        Assistant::builder(engine).notes(folder.join("index")).store(folder.join("store")).build()?;

    let mut plan = BackgroundPlan::default();
    plan.budget = Duration::from_millis(50);
    let mut work = Background::new(&assistant, plan);
    work.add(BackgroundTask::Index);
    work.add(BackgroundTask::Prefetch(Prefetch::Ask(AnswerRequest::new("Who comes along to Aniarda?"))));
    work.add(BackgroundTask::Summarize(SummarizeRequest::query("the trip to Aniarda")));

    // Each run is a call of the system's scheduler. In the third one, the device is too hot.
    let mut n_runs = 0;
    while work.n_left() > 0 {
        n_runs += 1;
        let mut conditions = Conditions::default();
        if n_runs == 3 {
            conditions.thermal = ThermalState::Serious;
        }
        let ran = work.run(|| conditions);
        let ended = ran.pause.map_or_else(String::new, |pause| format!(", ended by {pause:?}"));
        println!(
            "run {n_runs}: {:.0} ms, done {:?}, {} left{ended}",
            ran.time.as_secs_f64() * 1e3,
            ran.done,
            ran.n_left
        );
        for (number, error) in ran.failed {
            println!("task {number} failed: {error}");
        }
    }
    drop((work, assistant));
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
