//! Cancels a generation from another thread, and continues the same session afterwards.
//!
//! ```sh
//! cargo run --release --example cancel
//! ```

use std::error::Error;
use std::path::Path;
use std::thread;
use std::time::Duration;

use refrain::{Engine, EngineOptions, Event, GenerateOptions, SessionOptions, SpecialTokens};

fn main() -> Result<(), Box<dyn Error>> {
    let model = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/target.gguf"));
    let engine = Engine::open(model, EngineOptions::default())?;

    let mut session = engine.session(SessionOptions::default())?;
    session.append_text("Everything about the trip to Bergholm.", SpecialTokens::AsText)?;

    // Without an end token the output would fill the context.
    let mut endless = GenerateOptions::default();
    endless.max_tokens = usize::MAX;
    endless.ignore_eos = true;
    // Any thread may hold the token: a button, a battery monitor, a timer. It stops this generation and no other.
    let cancel = endless.cancel.clone();
    let timer = thread::spawn(move || {
        thread::sleep(Duration::from_millis(100));
        cancel.cancel();
    });

    for event in session.generate(endless)? {
        if let Event::Done(summary) = event? {
            println!("{:?} after {} tokens", summary.finish, summary.stats.tokens);
        }
    }
    timer.join().expect("the timer does not panic");

    // Committed tokens stay, and so does their KV cache.
    println!("the session holds {} tokens and goes on", session.tokens().len());
    let mut options = GenerateOptions::default();
    options.max_tokens = 8;
    for event in session.generate(options)? {
        if let Event::Done(summary) = event? {
            println!("{:?} after {} tokens", summary.finish, summary.stats.tokens);
        }
    }
    Ok(())
}
