//! Answers questions from a folder of notes, shows where the answers come from, and answers faster when asked again.
//!
//! ```sh
//! cargo run --release -p refrain-assistant --example ask_notes
//! ```

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use refrain::{Engine, EngineOptions, Origin};
use refrain_assistant::{AnswerRequest, Assistant, JobEvent, JobOptions};
use refrain_index::notes::{NotesOptions, NotesWriter};

fn main() -> Result<(), Box<dyn Error>> {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let folder = std::env::temp_dir().join(format!("refrain-ask-notes-{}", std::process::id()));

    // An app updates the index when notes change; searches go on meanwhile.
    let mut writer = NotesWriter::open(&folder.join("index"), NotesOptions::default())?;
    writer.add(&[fixtures.join("notes")])?;
    let report = writer.update(&mut |_done, _total| ControlFlow::Continue(()))?;
    println!("{} notes in the index", report.n_added);
    drop(writer);

    let engine = Engine::open(fixtures.join("target.gguf"), EngineOptions::default())?;
    let assistant =
        Assistant::builder(engine).notes(folder.join("index")).store(folder.join("store")).build()?;
    for question in [
        "Who comes along on the trip to Aniarda?",
        "What is the booking code of the Aniarda trip?",
        "Who comes along on the trip to Aniarda?",
    ] {
        println!("\n{question}");
        ask(&assistant, question)?;
    }
    drop(assistant);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

/// Prints an answer, with [brackets] around drafted text.
fn ask(assistant: &Assistant, question: &str) -> Result<(), Box<dyn Error>> {
    for event in assistant.answer(AnswerRequest::new(question), JobOptions::default())? {
        match event? {
            JobEvent::Text(piece) if piece.origin == Origin::Target => print!("{}", piece.text),
            JobEvent::Text(piece) => print!("[{}]", piece.text),
            JobEvent::Done(answer) => {
                let stats = &answer.report.stats[0];
                println!("\n  {} tokens in {} steps", stats.tokens, stats.steps);
                println!(
                    "  {} of {} prompt tokens were computed",
                    stats.prefilled_tokens, stats.prompt_tokens
                );
                for sentence in &answer.provenance.sentences {
                    println!("  {:?} by {:?}", &answer.text[sentence.text.clone()], sentence.support);
                }
                let files = answer.passages.iter().filter_map(|passage| passage.source.as_ref());
                for source in files.take(2) {
                    let name = source.path.file_name().unwrap_or_default().to_string_lossy();
                    println!("  shown: {name}, bytes {:?}", source.place);
                }
            }
            _ => {}
        }
    }
    Ok(())
}
