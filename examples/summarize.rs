//! Summarises a note and prints the summary as it is generated.
//!
//! ```sh
//! cargo run --release --example summarize
//! ```

use std::error::Error;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use refrain::{Engine, EngineOptions, GenerateOptions, PromptPassage, Role, SessionOptions, Task};

const NOTE: PromptPassage<'_> = PromptPassage::new(
    "Orvane project",
    "The lead of the Orvane project is Petra Holvik. The project is due on 30 September and has a budget of \
           48,000 euros. A late delivery is holding up project Orvane. Next we have to call the supplier.",
);

fn main() -> Result<(), Box<dyn Error>> {
    let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf"));
    let engine = Engine::open(model, EngineOptions::default())?;

    let mut session = engine.session(SessionOptions::default())?;
    session
        .append_turn(Role::User, Task::Summarize.user_message(&[NOTE], "Write two or three sentences."))?;

    let mut options = GenerateOptions::default();
    options.max_tokens = 100;
    let summary = session.generate(options)?.run(|token| {
        print!("{}", token.text);
        match std::io::stdout().flush() {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    })?;

    let stats = &summary.stats;
    println!(
        "\n\n{} tokens in {} steps: {:.2} per step",
        stats.tokens,
        stats.steps,
        stats.acceptance_length()
    );
    Ok(())
}
