//! Keeps a running answer in a struct, drives it from a worker thread, and continues the session afterwards.
//!
//! ```sh
//! cargo run --release --example background_answer
//! ```

use std::error::Error;
use std::path::Path;
use std::sync::mpsc::{self, Receiver};
use std::thread::{self, JoinHandle};

use refrain::{
    CancelToken, Engine, EngineOptions, Event, GenerateOptions, OwnedGeneration, PromptPassage, Role,
    Session, SessionOptions, Task,
};

/// A running answer.
struct Answer {
    pieces: Receiver<String>,
    cancel: CancelToken,
    worker: JoinHandle<Session>,
}

impl Answer {
    /// Starts to answer. The worker owns the session until the answer ends.
    fn start(session: Session, max_tokens: usize) -> Result<Self, Box<dyn Error>> {
        let mut options = GenerateOptions::default();
        options.max_tokens = max_tokens;
        let mut generation = OwnedGeneration::new(session, options)?;
        let cancel = generation.cancel_token();
        let (sender, pieces) = mpsc::channel();
        let worker = thread::spawn(move || {
            for event in &mut generation {
                let Ok(Event::Token(token)) = event else { break };
                if sender.send(token.text).is_err() {
                    break; // The screen is closed.
                }
            }
            generation.into_session()
        });
        Ok(Self { pieces, cancel, worker })
    }

    /// Stops the answer if it still runs, and returns the session for the next question.
    fn finish(self) -> Session {
        self.cancel.cancel();
        self.worker.join().expect("the worker does not panic")
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/target.gguf");
    let engine = Engine::open(model, EngineOptions::default())?;
    let mut session = engine.session(SessionOptions::default())?;
    let note =
        PromptPassage::new("Trip to Aniarda", "Nadia and Tomas come along. The train leaves at 08:15.");
    session.append_turn(Role::User, Task::Answer.user_message(&[note], "Who comes along?"))?;

    let answer = Answer::start(session, 40)?;
    for piece in &answer.pieces {
        print!("{piece}");
    }
    println!();

    let session = answer.finish();
    println!("the session holds {} turns and {} tokens", session.turns().len(), session.tokens().len());
    Ok(())
}
