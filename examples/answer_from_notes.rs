//! Answers questions from notes over several turns. The first answer drafts from the prompt, the second one also from
//! the first answer, and a new conversation drafts from the history of the old one.
//!
//! ```sh
//! cargo run --release --example answer_from_notes
//! ```

use std::error::Error;
use std::path::Path;

use refrain::{
    Engine, EngineOptions, Event, GenerateOptions, Origin, PromptPassage, Role, Session, SessionOptions, Task,
};

const NOTES: [PromptPassage<'_>; 2] = [
    PromptPassage::new(
        "Trip to Bergholm",
        "The hotel for the trip to Bergholm is the Marlund and the booking code of the trip is KX-4471.",
    ),
    PromptPassage::new("Nadia Verlinck", "Nadia Verlinck works for Hestia Foods and lives in Tromvik."),
];

fn main() -> Result<(), Box<dyn Error>> {
    let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf"));
    let engine = Engine::open(model, EngineOptions::default())?;

    for conversation in 1..=2 {
        println!("conversation {conversation}");
        let mut session = engine.session(SessionOptions::default())?;
        let question = "What is the booking code of the trip to Bergholm?";
        ask(&mut session, &Task::Answer.user_message(&NOTES, question))?;
        // The notes are now in the conversation and in the KV cache, so the question is enough.
        ask(&mut session, "Where does Nadia Verlinck work?")?;
    }
    Ok(())
}

/// Generates an answer and prints it with [brackets] around drafted tokens.
fn ask(session: &mut Session, message: &str) -> Result<(), Box<dyn Error>> {
    session.append_turn(Role::User, message)?;
    let mut stats = None;
    let mut options = GenerateOptions::default();
    options.max_tokens = 60;
    for event in session.generate(options)? {
        match event? {
            Event::Token(token) if token.origin == Origin::Target => print!("{}", token.text),
            Event::Token(token) => print!("[{}]", token.text),
            Event::Done(summary) => stats = Some(summary.stats),
            _ => {}
        }
    }
    let stats = stats.ok_or("a generation ends with its statistics")?;
    println!(
        "\n  {} tokens in {} steps, {} from the KV cache",
        stats.tokens, stats.steps, stats.cached_tokens
    );
    Ok(())
}
