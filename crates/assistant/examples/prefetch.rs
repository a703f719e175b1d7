//! Computes the prompt of a question before it is asked, so that the answer begins with its first step.
//!
//! ```sh
//! cargo run --release -p refrain-assistant --example prefetch
//! ```

use std::error::Error;
use std::path::Path;
use std::time::Instant;

use refrain::{Engine, EngineOptions};
use refrain_assistant::{AnswerRequest, Assistant, JobEvent, JobOptions, Passage, Prefetch};

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::temp_dir().join(format!("refrain-prefetch-{}", std::process::id()));
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/target.gguf");
    let assistant =
        Assistant::builder(Engine::open(model, EngineOptions::default())?).store(&folder).build()?;
    let trips = (1..20).map(|n| format!("Trip {n} begins on {n} May and includes a stay at Hotel Byzo."));
    let note = Passage::new("Trips", trips.collect::<Vec<_>>().join("\n"));
    let request = |question: &str| {
        let mut request = AnswerRequest::new(question);
        request.passages = Some(vec![note.clone()]);
        request
    };

    // The user has opened the note. An empty question prepares every question about it.
    let prefetching = assistant.prefetch(Prefetch::Answer(request("")), JobOptions::default())?;
    let fetched = prefetching.run_with(|event| {
        if let JobEvent::Prefill { done, total } = event {
            println!("prefetched {done} of {total} tokens");
        }
    })?;
    println!("{} tokens are kept", fetched.n_kept);

    for question in ["When does trip 3 begin?", "Where is the stay of trip 7?"] {
        let asked = Instant::now();
        let mut first = None;
        let answer = assistant.answer(request(question), JobOptions::default())?.run_with(|event| {
            if let JobEvent::Text(_) = event {
                first.get_or_insert_with(|| asked.elapsed());
            }
        })?;
        let stats = &answer.report.stats[0];
        println!(
            "{question} {}\n  {} of {} prompt tokens were computed; the first word came after {:.1} ms",
            answer.text,
            stats.prefilled_tokens,
            stats.prompt_tokens,
            first.unwrap_or_default().as_secs_f64() * 1e3
        );
    }
    drop(assistant);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}
