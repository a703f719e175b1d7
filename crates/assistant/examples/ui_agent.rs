//! Carries out goals on a screen: the model chooses a command, and can only name elements that are there.
//!
//! ```sh
//! cargo run --release -p refrain-assistant --example ui_agent
//! ```

use std::error::Error;
use std::path::Path;

use refrain::{Engine, EngineOptions};
use refrain_assistant::{Assistant, Command, JobOptions, Screen, UiRequest};

const SCREEN: &str = r#"# Contacts screen
1 field "Search"
2 item "Yainen Irlman"
3 switch "Night light"
4 button "Save"
5 button "Share"
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/target.gguf");
    let assistant = Assistant::builder(Engine::open(model, EngineOptions::default())?).build()?;
    let screen = Screen::read(SCREEN)?;
    let goals =
        ["Open Yainen Irlman", "Turn on Night light", "Type Usto into Search", "Find Othus Iseassberg"];
    for goal in goals {
        let request = UiRequest::new(screen.clone(), goal);
        let chosen = assistant.ui_command(request, JobOptions::default())?.run()?;
        let label = |id| screen.element(id).map_or("", |element| element.label.as_str());
        match &chosen.command {
            Command::Tap { element } => println!("{goal}: tap {:?}", label(*element)),
            Command::Type { element, text } => println!("{goal}: type {text:?} into {:?}", label(*element)),
            other => println!("{goal}: {other:?}"),
        }
        let stats = &chosen.report.stats[0];
        let forced = stats.sources.iter().find(|source| source.name.as_str() == "grammar");
        println!(
            "  {} tokens in {} steps, {} drafted by the grammar",
            stats.tokens,
            stats.steps,
            forced.map_or(0, |source| source.accepted)
        );
    }
    Ok(())
}
