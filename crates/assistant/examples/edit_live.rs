//! Edits a text and prints the changes while the new text is written.
//!
//! The model in the program was not trained on edits, so what it writes here is not a good edit. The events are the same with any
//! model.
//!
//! ```sh
//! cargo run --release -p refrain-assistant --example edit_live
//! ```

use std::error::Error;
use std::path::Path;

use refrain::{Engine, EngineOptions};
use refrain_assistant::edit::DiffEvent;
use refrain_assistant::{Assistant, EditRequest, JobEvent, JobOptions};

const TEXT: &str =
    "The repair of the car is planned for 18 August. Qulittus Works takes care of the repair of the car.";

fn main() -> Result<(), Box<dyn Error>> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/target.gguf");
    let assistant = Assistant::builder(Engine::open(model, EngineOptions::default())?).build()?;
    let request = EditRequest::new(TEXT, "Write one sentence.");
    let mut written = String::new();
    for event in assistant.edit(request, JobOptions::default())? {
        match event? {
            JobEvent::Text(piece) => written.push_str(&piece.text),
            JobEvent::Edit(DiffEvent::Keep { new, .. }) => println!("  {}", &written[new]),
            JobEvent::Edit(DiffEvent::Insert { new, .. }) => println!("+ {}", &written[new]),
            JobEvent::Edit(DiffEvent::Delete { old }) => println!("- {}", &TEXT[old]),
            JobEvent::Done(edit) => {
                let (tokens, steps) = edit.report.tokens_and_steps();
                println!("\n{} changes; {tokens} tokens in {steps} steps", edit.changes.len());
            }
            _ => {}
        }
    }
    Ok(())
}
