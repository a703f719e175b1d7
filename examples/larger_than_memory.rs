//! Streams a model from flash within a memory budget, with a draft model in memory, and releases memory during the
//! answer.
//!
//! ```sh
//! cargo run --release --example larger_than_memory
//! ```

use std::error::Error;
use std::path::Path;

use refrain::checkpoint::Checkpoint;
use refrain::device::MemoryPressure;
use refrain::drafting::DraftModelOptions;
use refrain::internals::model::packed::pack;
use refrain::internals::model::weights::LoadOptions;
use refrain::streaming::{Pinned, StreamOptions};
use refrain::{Engine, EngineOptions, Event, GenerateOptions, PromptPassage, Role, SessionOptions, Task};

const NOTE: PromptPassage<'_> = PromptPassage::new(
    "Orvane project",
    "The lead of the Orvane project is Petra Holvik. The project is due on 30 September and has a budget of \
           48,000 euros. A late delivery is holding up project Orvane. Next we have to call the supplier.",
);

/// Memory budget of the process, small enough that even this small target is streamed. An app asks the system for its
/// limit.
const BUDGET: u64 = 24 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let fixtures = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures"));
    // Once, when the model is installed, because only packed files are streamed. Outside this project, use `refrain model pack`:
    // the function `pack` needs the feature `internals`.
    let packed = std::env::temp_dir().join(format!("refrain-example-{}.refrain", std::process::id()));
    pack(&Checkpoint::open(fixtures.join("target.gguf"))?, &packed, LoadOptions::default())?;
    let answered = answer(&packed, &fixtures.join("draft.gguf"));
    std::fs::remove_file(&packed)?;
    answered
}

fn answer(target: &Path, draft: &Path) -> Result<(), Box<dyn Error>> {
    let (target, draft) = (Checkpoint::open(target)?, Checkpoint::open(draft)?);
    let (session, draft_model) = (SessionOptions::default(), DraftModelOptions::default());

    // Pinned layers take the part of the budget that the session and the draft model leave.
    let reserved_bytes = session.memory_bytes(target.config()) + draft_model.memory_bytes(&draft, &session);
    let mut streaming = StreamOptions::new(Pinned::Memory(BUDGET));
    streaming.reserved_bytes = reserved_bytes;
    let mut options = EngineOptions::default();
    options.streaming = Some(streaming);
    let engine = Engine::load(&target, options, |_, _| {})?;
    engine.set_draft_model(&draft, draft_model, |_, _| {})?;
    let pinned = || engine.streamed().map_or(0, |streamed| streamed.memory().n_pinned_layers);
    println!("{} of {} layers pinned\n", pinned(), target.config().n_layers());

    let mut session = engine.session(session)?;
    session
        .append_turn(Role::User, Task::Summarize.user_message(&[NOTE], "Write two or three sentences."))?;
    let mut n_tokens = 0;
    let mut options = GenerateOptions::default();
    options.max_tokens = 100;
    for event in session.generate(options)? {
        match event? {
            Event::Token(token) => {
                n_tokens += 1;
                if n_tokens == 10 {
                    // The system's callback does the same, on any thread.
                    engine.device().set_memory_pressure(MemoryPressure::Critical);
                }
                print!("{}", token.text);
            }
            Event::Done(summary) => {
                let stats = &summary.stats;
                println!("\n\n{} tokens in {} steps", stats.tokens, stats.steps);
                if let Some(streaming) = &stats.streaming {
                    let (kb, n_pinned) = (streaming.bytes_per_token / 1e3, streaming.memory.n_pinned_layers);
                    println!("{kb:.0} kB read for a token; {n_pinned} layers pinned at the end");
                }
            }
            _ => {}
        }
    }
    engine.device().set_memory_pressure(MemoryPressure::Normal);
    Ok(())
}
