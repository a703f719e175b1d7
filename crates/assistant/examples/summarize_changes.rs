//! Summarises a note, and again after the note has changed: the second summary is drafted from the first one, and its changes come
//! while it is written.
//!
//! ```sh
//! cargo run --release -p refrain-assistant --example summarize_changes
//! ```

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;
use std::{fs, io};

use refrain::{Engine, EngineOptions};
use refrain_assistant::edit::DiffEvent;
use refrain_assistant::{Assistant, JobOptions, SummarizeRequest};
use refrain_index::notes::{NotesOptions, NotesWriter};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("refrain-summaries-{}", std::process::id()));
    let (notes, index) = (folder.join("notes"), folder.join("index"));
    fs::create_dir_all(&notes)?;
    let note = notes.join("trip.md");
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/target.gguf");
    let engine = Engine::open(model, EngineOptions::default())?;

    for hotel in ["Prisinet", "Rorda"] {
        let text = format!(
            "# Trip to Thuntigrad\n\nThe Thuntigrad trip includes a stay at Hotel {hotel} and has a stop in Usta. The trip costs 820 euros.\n"
        );
        fs::write(&note, text)?;
        update(&index, &notes)?;
        let assistant =
            Assistant::builder(engine.clone()).notes(&index).store(folder.join("store")).build()?;
        let summary = assistant.summarize(SummarizeRequest::notes([&note]), JobOptions::default())?.run()?;
        println!("{}", summary.text);
        let (tokens, steps) = summary.report.tokens_and_steps();
        println!("  {tokens} tokens in {steps} steps");
        let previous = summary.previous.unwrap_or_default();
        for change in &summary.changes {
            match change {
                DiffEvent::Keep { .. } => {}
                DiffEvent::Insert { new, .. } => println!("  + {}", &summary.text[new.clone()]),
                DiffEvent::Delete { old } => println!("  - {}", &previous[old.clone()]),
            }
        }
    }
    fs::remove_dir_all(&folder)?;
    Ok(())
}

fn update(index: &Path, notes: &Path) -> Result<(), Box<dyn Error>> {
    let mut writer = NotesWriter::open(index, NotesOptions::default())?;
    writer.add(&[notes])?;
    let report = writer.update(&mut |_, _| ControlFlow::Continue(()))?;
    match report.skipped.first() {
        Some(skipped) => Err(io::Error::other(format!("{skipped:?}")).into()),
        None => Ok(()),
    }
}
